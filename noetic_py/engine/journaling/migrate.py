"""A journal's state in another form: what a newer state type makes of it, and what a fork was given instead.

The journal stays as it was written. A `StateRevised` record says, for the records before it, what they would say had
the state always had its new form; a reader of the journal puts that in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from attrs import evolve

from noetic_py.core.codec import Codec
from noetic_py.core.codec.text import dump, is_dict
from noetic_py.core.state import StateBag
from noetic_py.engine.journaling.fold import OPEN, ended_with, tree
from noetic_py.engine.kind import BodySegment, Kinds, Node
from noetic_py.errors import CodecError, ConfigError
from noetic_py.journal.delta import (
    Known,
    changed_fields,
    changes,
    digest_of,
    field_trees,
    known_fields,
    known_of,
    state_tree,
)
from noetic_py.journal.records import JournalRecord, Opening, RunBegun, Segment, StateRevised, StepFinished, StepStopped
from noetic_py.journal.values import Change, Stored

__all__ = [
    "as_stored",
    "decoded",
    "migrate_fields",
    "migrated",
    "opening_of",
    "replaced",
    "revise",
    "stored_type",
    "version_of",
]

Trees: TypeAlias = Mapping[str, Any]
Deltas: TypeAlias = dict[int, tuple[Change, ...]]


def version_of(kind: type[Any] | None) -> int:
    """The version of a state type: its `schema_version`, 1 when it has none.

    Raises:
        ConfigError: That is no number from 1 on, or there is no way to it from an earlier one; code `"state-version"`.
    """
    version = getattr(kind, "schema_version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        # A field of the user's that happens to be called so.
        return 1
    if version > 1 and not callable(getattr(kind, "migrate", None)):
        raise ConfigError(
            f"state type {getattr(kind, '__name__', kind)} has schema_version {version} and no migrate()",
            code="state-version",
            hint="add a classmethod migrate(stored, version) that returns the fields of this version",
        )
    return version


def revise(records: list[JournalRecord]) -> None:
    """Put what later records say of earlier ones in their place."""
    for record in records:
        if isinstance(record, StateRevised):
            opening = opening_of(records)
            opening.state, opening.version = Stored(record.state), record.version
            for position, delta in record.deltas.items():
                earlier = records[position]
                if isinstance(earlier, (Segment, StepFinished, StepStopped)):
                    earlier.delta = delta
            _revise_layers(records, record)


def _revise_layers(records: list[JournalRecord], revised: StateRevised) -> None:
    for position, memory in revised.memory.items():
        earlier = records[position]
        if isinstance(earlier, (Segment, StepFinished, StepStopped)):
            earlier.memory = memory
    for record in records if revised.layers else ():
        if isinstance(record, StepFinished) and record.path == (*revised.path, OPEN):
            record.output = Stored(revised.layers)


def migrated(records: list[JournalRecord], kinds: Kinds, kind: type[Any] | None, codec: Codec) -> StateRevised | None:
    """What a newer version of the state's type makes of a journal; `None` when it is of this version.

    Raises:
        CodecError: The type is older than what is stored, or its `migrate` failed.
    """
    opening, version = opening_of(records), version_of(kind)
    if kind is None or opening.version == version:
        return None
    if opening.version > version:
        raise CodecError(
            f"the state was stored by version {opening.version} of {kind.__name__}, and this one is {version}",
            hint="resume the run with the newer code",
        )

    stored = _tree(opening)

    def newer(fields: Trees) -> Any:
        made = state_tree(stored, migrate_fields(kind, fields, opening.version), kind.__name__)
        return decoded(made, kind, codec)

    begun, deltas = field_trees(stored), dict[int, tuple[Change, ...]]()
    _walk(tree(records, kinds), begun, lambda fields: known_fields(newer(fields), codec), deltas)
    return StateRevised((), version, codec.encode(newer(begun)), deltas)


def decoded(stored: Any, kind: type[Any], codec: Codec) -> Any:
    """A stored state as one of a type.

    Raises:
        CodecError: It does not fit.
    """
    try:
        return codec.decode(stored, kind)
    except CodecError as error:
        raise CodecError(
            f"the stored state is not a valid {kind.__name__}: {error.message}",
            hint=f"when {kind.__name__} has changed, give it a schema_version and migrate(stored, version)",
        ) from error


def migrate_fields(kind: type[Any], fields: Trees, version: int) -> Trees:
    """The fields of a stored state as its type's own version has them.

    Raises:
        CodecError: Its `migrate` failed.
    """
    migrate: Callable[[dict[str, Any], int], Any] = kind.migrate
    try:
        made = migrate(deepcopy(dict(fields)), version)
        dump(made)
    except Exception as error:
        raise CodecError(
            f"{kind.__name__}.migrate() failed on a state of version {version}: {type(error).__name__}: {error}",
            hint="it is given the stored fields, and returns those of its own version",
        ) from error
    if not is_dict(made):
        raise CodecError(f"{kind.__name__}.migrate() returned {type(made).__name__}", hint="return a dict of fields")
    return made


def replaced(records: list[JournalRecord], kinds: Kinds, state: object, codec: Codec) -> StateRevised:
    """What makes of a journal one at whose end the flow's state is another one.

    Raises:
        CodecError: The state cannot be stored.
        ConfigError: It is of another type than the run's; code `"state-type"`.
    """
    now = known_fields(state, codec)
    _check_type(_tree(opening_of(records)), state, codec)
    older = migrated(records, kinds, _kind(state), codec)
    if older is not None:
        revise([*records, older])
    revision = _ending_with(records, kinds, now, _kind(state), codec)
    return revision if older is None else evolve(revision, deltas={**older.deltas, **revision.deltas})


def _check_type(stored: Any, state: object, codec: Codec) -> None:
    mine, other = (stored_type(each) for each in (codec.encode(as_stored(state)), stored))
    if mine != other:
        raise ConfigError(
            f"the run's state is a {other}, and the new one a {mine}",
            code="state-type",
            hint="give a state of the type that the run was started with",
        )


def as_stored(state: Any) -> Any:
    """A state as the value that is stored for it."""
    return dict(state.view()) if isinstance(state, StateBag) else state


def stored_type(tree: Any) -> str:
    """What a stored state is: the name of its class, or of a type of Python's own."""
    mark = tree.get("$", "dict") if is_dict(tree) else type(tree).__name__
    return str(tree["t"] if mark == "object" else mark).removeprefix("object:")


def _kind(state: object) -> type[Any] | None:
    return None if isinstance(state, (StateBag, dict)) else type(state)


def _ending_with(
    records: list[JournalRecord], kinds: Kinds, state: Mapping[str, Known], kind: type[Any] | None, codec: Codec
) -> StateRevised:
    root, opening = tree(records, kinds), opening_of(records)
    stored = _tree(opening)
    last: tuple[BodySegment, Trees] | None = None
    for segment, fields in _kept(root, field_trees(stored)):
        last = segment, fields
    if last is None:
        begun = {key: known.tree for key, known in state.items()}
        return StateRevised((), opening.version, state_tree(stored, begun), {})
    segment, fields = last
    # As the run will have it: with what its type has got since as a default.
    before = known_of(fields) if kind is None else known_fields(decoded(state_tree(stored, fields), kind, codec), codec)
    return StateRevised((), opening.version, stored, {segment.position: changes(before, state)})


def opening_of(records: Iterable[JournalRecord]) -> Opening:
    """What a run began with.

    Raises:
        CodecError: The journal does not say.
    """
    started = next(iter(records))
    if not isinstance(started, RunBegun) or started.opening is None:
        raise CodecError("the journal has no beginning")
    return started.opening


def _tree(opening: Opening) -> Any:
    return opening.state.tree if isinstance(opening.state, Stored) else opening.state


def _walk(node: Node, fields: Trees, newer: Callable[[Trees], Mapping[str, Known]], deltas: Deltas) -> Trees:
    """Rewrite every change at and below a step; returns the fields that it leaves, in their old form."""
    beside = fields
    for entry in node.layout:
        if isinstance(entry, BodySegment):
            after = changed_fields(fields, entry.delta)
            if entry.delta:
                deltas[entry.position] = changes(newer(fields), newer(after))
            fields = after
        elif node.kind.firings:
            # One firing begins with what the last one left; what all have done is the schedule's own change.
            beside = _walk(entry, beside, newer, deltas)
        elif _in_place(node, entry):
            fields = _walk(entry, fields, newer, deltas)
        elif _fits(entry, fields):
            _walk(entry, fields, newer, deltas)
    return fields


def _in_place(node: Node, entry: Node) -> bool:
    """Whether what a child does to the state is done to its parent's own."""
    if node.kind.paths or entry.kind.apart:
        return False
    if entry.kind.shares is not None:
        return entry.kind.shares.state
    return entry.cause is None or entry.shown or ended_with(node, entry)


def _fits(node: Node, fields: Trees) -> bool:
    """Whether a step that has a state of its own has begun with its parent's: a spawn may have been given any other."""
    first = next(_changes(node), None)
    if first is None:
        return True
    return first.before == (digest_of(dump(fields[first.key])) if first.key in fields else None)


def _changes(node: Node) -> Iterator[Change]:
    for entry in node.layout:
        yield from entry.delta if isinstance(entry, BodySegment) else _changes(entry)


def _kept(node: Node, fields: Trees) -> Iterator[tuple[BodySegment, Trees]]:
    """What finished steps have done in the flow's own scope, each with the fields before it."""
    for entry in node.layout:
        if isinstance(entry, BodySegment):
            if node.finished is not None:
                yield entry, fields
            fields = changed_fields(fields, entry.delta)
        elif _in_place(node, entry) and not node.kind.firings:
            for segment, before in _kept(entry, fields):
                yield segment, before
                fields = changed_fields(before, segment.delta)
