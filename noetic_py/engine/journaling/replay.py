"""Replay: looks a step up in the journal of a durable run before its body starts, and migrates older records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.context.read import ContextScope, StepMeta
from noetic_py.context.step import NOT_DONE, AnyStep
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import digest_of, dump
from noetic_py.core.state import LayerStates, StateBag, restore_state
from noetic_py.core.values import copy_value, is_dict
from noetic_py.engine.body import call_apart
from noetic_py.engine.fingerprint import fingerprint
from noetic_py.engine.frame import Frame, innermost, settle_cuts
from noetic_py.engine.journaling import ledger
from noetic_py.engine.journaling.fold import FOLDED, OPEN, ended_with, inside, last_step, last_verdict, left_by, tree
from noetic_py.engine.journaling.ledger import NO_TREE, read_output, read_value
from noetic_py.engine.kind import BodySegment, Kinds, Node
from noetic_py.engine.state import Execution, Run
from noetic_py.journal import patches, values
from noetic_py.journal.changes import StoredLayerStates, apply_layer_states, last_views, unlike
from noetic_py.journal.records import (
    AttemptFailed,
    ChildReplayed,
    Intent,
    JournalRecord,
    Opening,
    RunBegun,
    Segment,
    StateRevised,
    StepFinished,
    StepStopped,
)
from noetic_py.memory.projector import Recorded
from noetic_py.redaction import with_article
from noetic_py.steps.flow import Mode

Trees: TypeAlias = Mapping[str, Any]
Deltas: TypeAlias = dict[int, tuple[patches.Change, ...]]


def version_of(kind: type[object] | None) -> int:
    """The version of a state type: its `schema_version`, 1 when it has none.

    Raises:
        ConfigError: The version is not a number from 1, or no step leads to it; code `"state-version"`.
    """
    version = getattr(kind, "schema_version", 1)
    if not isinstance(version, int) or version <= 1:
        # Or a field of the user's that happens to be called so.
        return 1
    if not callable(getattr(kind, "migrate", None)):
        raise errors.ConfigError(
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
            opening.state, opening.version = values.Stored(record.state), record.version
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
            record.output = values.Stored(revised.layers)


def migrated(
    records: list[JournalRecord], kinds: Kinds, kind: type[object] | None, codec: Codec
) -> StateRevised | None:
    """The journal migrated to the current version of the state's type; `None` if it has that version.

    Raises:
        CodecError: The type is older than what is stored, or its `migrate` failed.
    """
    opening, version = opening_of(records), version_of(kind)
    if kind is None or opening.version == version:
        return None
    if opening.version > version:
        raise errors.CodecError(
            f"the state was stored by version {opening.version} of {kind.__name__}, and this one is {version}",
            hint="resume the run with the newer code",
        )

    stored = _tree(opening)

    def newer(fields: Trees) -> object:
        made = patches.state_tree(stored, migrate_fields(kind, fields, opening.version), kind.__name__)
        return decoded(made, kind, codec)

    begun, deltas = patches.field_trees(stored), dict[int, tuple[patches.Change, ...]]()
    _walk(tree(records, kinds), begun, lambda fields: patches.known_fields(newer(fields), codec), deltas)
    return StateRevised((), version, codec.encode(newer(begun)), deltas)


def decoded(stored: object, kind: type[object], codec: Codec) -> object:
    """A stored state as one of a type.

    Raises:
        CodecError: It does not fit.
    """
    try:
        return codec.decode(stored, kind)
    except errors.CodecError as error:
        raise errors.CodecError(
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
        raise errors.CodecError(
            f"{kind.__name__}.migrate() failed on a state of version {version}: {type(error).__name__}: {error}",
            hint="it is given the stored fields, and returns those of its own version",
        ) from error
    if not is_dict(made):
        raise errors.CodecError(
            f"{kind.__name__}.migrate() returned {type(made).__name__}", hint="return a dict of fields"
        )
    return made


def replaced(records: list[JournalRecord], kinds: Kinds, state: object, codec: Codec) -> StateRevised:
    """The record that sets the flow's state at the end of a journal.

    Raises:
        CodecError: The state cannot be stored.
        ConfigError: It is of another type than the run's; code `"state-type"`.
    """
    now = patches.known_fields(state, codec)
    _check_type(_tree(opening_of(records)), state, codec)
    older = migrated(records, kinds, _kind(state), codec)
    if older is not None:
        revise([*records, older])
    revision = _ending_with(records, kinds, now, _kind(state), codec)
    return revision if older is None else evolve(revision, deltas={**older.deltas, **revision.deltas})


def _check_type(stored: object, state: object, codec: Codec) -> None:
    mine, other = (stored_type(each) for each in (codec.encode(as_stored(state)), stored))
    if mine != other:
        raise errors.ConfigError(
            f"the run's state is {with_article(other)}, and the new one {with_article(mine)}",
            code="state-type",
            hint="give a state of the type that the run was started with",
        )


def as_stored(state: object) -> object:
    """A state as the value that is stored for it."""
    return dict(state.view()) if isinstance(state, StateBag) else state


def stored_type(tree: Any) -> str:
    """The type of a stored state: the name of its class, or of a built-in type."""
    mark = tree.get("$", "dict") if is_dict(tree) else type(tree).__name__
    return str(tree["t"] if mark == "object" else mark).removeprefix("object:")


def _kind(state: object) -> type[object] | None:
    return None if isinstance(state, (StateBag, dict)) else type(state)


def _ending_with(
    records: list[JournalRecord],
    kinds: Kinds,
    state: Mapping[str, patches.Known],
    kind: type[object] | None,
    codec: Codec,
) -> StateRevised:
    root, opening = tree(records, kinds), opening_of(records)
    stored = _tree(opening)
    last: tuple[BodySegment, Trees] | None = None
    for segment, fields in _kept(root, patches.field_trees(stored)):
        last = segment, fields
    if last is None:
        begun = {key: known.tree for key, known in state.items()}
        return StateRevised((), opening.version, patches.state_tree(stored, begun), {})
    segment, fields = last
    # The state as the run will have it: with defaults for fields that its type has got since.
    before = (
        patches.known_of(fields)
        if kind is None
        else patches.known_fields(decoded(patches.state_tree(stored, fields), kind, codec), codec)
    )
    return StateRevised((), opening.version, stored, {segment.position: patches.changes(before, state)})


def opening_of(records: Iterable[JournalRecord]) -> Opening:
    """The input and state that a run began with.

    Raises:
        CodecError: The journal does not say.
    """
    started = next(iter(records))
    if not isinstance(started, RunBegun) or started.opening is None:
        raise errors.CodecError("the journal has no beginning")
    return started.opening


def _tree(opening: Opening) -> object:
    return opening.state.tree if isinstance(opening.state, values.Stored) else opening.state


def _walk(node: Node, fields: Trees, newer: Callable[[Trees], Mapping[str, patches.Known]], deltas: Deltas) -> Trees:
    """Rewrite every change at and below a step; returns the fields that it leaves, in their old form."""
    beside = fields
    for entry in node.layout:
        if isinstance(entry, BodySegment):
            after = patches.changed_fields(fields, entry.delta)
            if entry.delta:
                deltas[entry.position] = patches.changes(newer(fields), newer(after))
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
    """Whether a child changes its parent's state itself."""
    if node.kind.paths or entry.kind.apart:
        return False
    if entry.kind.shares is not None:
        return entry.kind.shares.state
    return entry.cause is None or entry.shown or ended_with(node, entry)


def _fits(node: Node, fields: Trees) -> bool:
    """Whether a step that has a state of its own has begun with its parent's: a spawn may have been given any other."""
    first = next(_changes(node), None)
    # Without a change there is nothing to rewrite.
    return first is not None and first.before == (digest_of(dump(fields[first.key])) if first.key in fields else None)


def _changes(node: Node) -> Iterator[patches.Change]:
    for entry in node.layout:
        yield from entry.delta if isinstance(entry, BodySegment) else _changes(entry)


def _kept(node: Node, fields: Trees) -> Iterator[tuple[BodySegment, Trees]]:
    """The changes of finished steps in the flow's own scope, each with the fields before it."""
    for entry in node.layout:
        if isinstance(entry, BodySegment):
            if node.finished is not None:
                yield entry, fields
            fields = patches.changed_fields(fields, entry.delta)
        elif _in_place(node, entry) and not node.kind.firings:
            for segment, before in _kept(entry, fields):
                yield segment, before
                fields = patches.changed_fields(before, segment.delta)


NOTHING: Any = object()
"""Nothing is recorded, which `None` is not."""


NOT_READ: Any = object()
"""In place of the input of a finished step whose input follows from records that were not read."""


@frozen(eq=False)
class ReplayedOutput:
    """The recorded output of a step."""

    value: Any


def recorded(frame: Frame, key: str) -> Any:
    """The recorded decision of the step, `NOTHING` without one."""
    return NOTHING if frame.node is None else frame.node.decisions.get(key, NOTHING)


# ---------------------------------------------------------------------------------------------------- before


def lookup(step: AnyStep, value: object, parent: Frame, name: str, scope: ContextScope) -> ReplayedOutput | None:
    """Look up a child that is about to start: its recorded output, applied; `None` if it has to run.

    Raises:
        NoeticError: The child has failed for good, and so it fails again.
        ReplayDiverged: It is another step, or has another input, than the journal says.
    """
    own = scope is not parent.scope
    # A body that calls many steps would otherwise look for changes before each of them.
    if parent.touched or parent.scope.log.size != parent.mark:
        ledger.close_segment(parent)
    if parent.cuts is not None:
        settle_cuts(parent)
    node = parent.node
    path = (*parent.at, name)
    if step.replay == "once" and (again := _once_again(step, value, parent, path, scope)) is not None:
        return again
    if node is None:
        return None
    call(parent, name)
    child = node.children.get(name)
    if child is not None and child.finished is not None and not child.kind.derived:
        # The context of a derived part is made again, so that its step restores its changes there.
        left = left_by(child, own=own)
        differs = _differs(step, value, parent, child.finished, scope, left)
        if differs is None or _keeps(parent.x.run, differs, path):
            return ReplayedOutput(_replay(step, child, left, parent, scope, path))
        node.drop(name)
        ledger.discarded(parent.x.run, path)
        return None
    failed = node.failed.get(name)
    if failed is not None:
        raise _fail_again(failed[0], node, parent, path)
    if parent.kind.in_order and parent.x.run.on_diverge == "fail":
        _check_order(parent, node, name)
    return None


def is_new(parent: Frame, name: str) -> bool:
    """Whether a child that starts is another step for the budgets, and not one that an earlier process had begun."""
    # A step that was cut off may have no place in the journal besides that it has begun.
    tried = 0 if parent.node is None else parent.node.tries.get(name, 0)
    return ((*parent.at, name), tried + 1) not in parent.x.run.begun


def call(frame: Frame, name: str) -> None:
    """Note that a body has called a child."""
    if frame.visited is None:
        frame.visited = set()
    frame.visited.add(name)


def _check_order(parent: Frame, node: Node, name: str) -> None:
    """Find other code before it runs: something new is called while something that is recorded is left.

    Raises:
        ReplayDiverged: That is so.
    """
    if len(parent.visited or ()) > len(node.children):
        # All of them, and something new already.
        return
    # Out of time, a wrap-up follows a child that is not recorded.
    left = [orphan for orphan in _orphans(parent) if orphan.name != "wrap_up"]
    if left:
        raise errors.ReplayDiverged(f"is recorded, and {name} was called instead", path=left[0].path)


def _once_again(
    step: AnyStep, value: object, parent: Frame, path: values.Path, scope: ContextScope
) -> ReplayedOutput | None:
    """The known outcome of a step that may run only once, when a step around it is retried.

    Returns:
        Its output; `None` where nothing is known, or where its `reconcile` has to be asked before it runs.

    Raises:
        NoeticError: It has failed.
        StepOutcomeUnknown: It has run, and was something else, or was given something else, and has no `reconcile`.
    """
    run = parent.x.run
    record = run.once.get(path)
    known = None if parent.node is None else parent.node.children.get(path[-1])
    if record is None or isinstance(record, Intent) or (known is not None and known.finished is record):
        return None
    if isinstance(record, AttemptFailed):
        raise record.error
    # The tree at the time it finished: an attempt around it that failed later does not discard it.
    child = tree(run.journal[: run.journal.index(record) + 1], run.kinds, path)
    left = left_by(child, own=scope is not parent.scope)
    differs = _difference(step, value, parent, record) or _other_state(run, scope, left)
    if differs is not None:
        if step.reconcile is None:
            raise _has_run(f"{differs}; it gave {_shown(child, step, run)}", path)
        # The same as after a crash: the effect may or may not have happened already.
        run.once[path] = Intent(path, record.digest)
        return None
    return ReplayedOutput(_replay(step, child, left, parent, scope, path))


def _has_run(what: str, path: values.Path) -> errors.StepOutcomeUnknown:
    return errors.StepOutcomeUnknown(
        f"the step may run only once, and has run in an attempt of a step around it: {what}",
        path=path,
        hint="give the step reconcile=, or move what differs between attempts out of the retried step",
    )


def _shown(child: Node, step: AnyStep, run: Run) -> str:
    """The output of a finished step as text."""
    try:
        return f"{output_of(child, step, run)!r:.100}"
    except errors.NoeticError:
        return "what cannot be read any more"


def _fail_again(record: AttemptFailed, node: Node, parent: Frame, path: values.Path) -> Exception:
    """Put down that a child of a node has failed once more as it is recorded; returns what it raised."""
    if node.children[path[-1]].layout or path[-1] in node.begun:
        # Something below it was written: when the failure is not handled, what finished steps have left is seen again.
        _stands_here(parent, path, held=record.held)
        ledger.remember(parent)
    return record.error


def _difference(step: AnyStep, value: object, parent: Frame, record: StepFinished) -> str | None:
    """In what the step that is called now differs from the recorded one."""
    if not parent.x.run.kinds[record.kind].is_named(step.kind):
        return f"{with_article(record.kind)} step is recorded, and {with_article(step.kind)} step is called"
    if record.fingerprint and record.fingerprint != fingerprint(step):
        return "the step's code or options have changed since it ran"
    if value is NOT_READ:
        return None
    digest = _digest(step, value if step.bound is None else step.bound.value, parent)
    if record.digest is not None and digest != record.digest:
        return "the step is called with another input than was recorded"
    return None


def _other_state(run: Run, scope: ContextScope, left: list[BodySegment]) -> str | None:
    """In what the state differs from the one that the step has changed."""
    given = [change for part in left for change in part.delta]
    if run.store is None:
        return None
    if left and left[0].memory and (layer := unlike(scope.layer_states, left[0].memory, run.store.codec)) is not None:
        return f"the step meets another memory than was recorded: layer {layer!r} differs"
    if not given:
        return None
    if scope.known is None:
        scope.known = patches.known_fields(scope.state, run.store.codec)
    field = patches.mismatch(scope.known, given)
    return None if field is None else f"the step meets another state than was recorded: {field} differs"


def _differs(
    step: AnyStep, value: object, parent: Frame, record: StepFinished, scope: ContextScope, left: list[BodySegment]
) -> str | None:
    """In what the step, or the state that it meets, differs from what is recorded."""
    differs = _difference(step, value, parent, record) or _other_state(parent.x.run, scope, left)
    if differs is not None and record.path == ("wrap_up",):
        _begin_as_before(parent)
        differs = _difference(step, value, parent, record) or _other_state(parent.x.run, scope, left)
    return differs


def _begin_as_before(root: Frame) -> None:
    """Earlier releases have written what a run's wrap-up changed by what the state was before the flow had begun."""
    opened = None if root.node is None else root.node.children.get(OPEN)
    put_state(root, [] if opened is None else left_by(opened, own=False))


def _keeps(run: Run, differs: str, path: tuple[str, ...]) -> bool:
    """Whether a record that differs stands all the same: pinned it does, adopted it makes way for the new.

    Raises:
        ReplayDiverged: The run does neither.
    """
    if run.on_diverge == "fail":
        raise errors.ReplayDiverged(
            differs,
            path=path,
            hint="run the code and the inputs that it was started with, or resume(..., on_diverge='adopt' or 'pin')",
        )
    return run.on_diverge == "pin"


def _stands_here(parent: Frame, path: values.Path, *, always: bool = False, held: bool = False) -> None:
    """Write what stands before a child that is not run again, and where in its parent's layout it has its place.

    Records of a composite itself are not discarded when a later owner goes on, so its children keep their places.
    `held` says that changes of the state were not written when the child ended.
    """
    if always or not parent.kind.composite or not (parent.clean and parent.opened):
        ledger.flush_items(parent, path) if held else ledger.flush(parent)
        parent.x.run.journal.append(ChildReplayed(path))


def _replay(
    step: AnyStep, child: Node, left: list[BodySegment], parent: Frame, scope: ContextScope, path: tuple[str, ...]
) -> object:
    """Put what a finished child has left where it left it, and return its output."""
    run = parent.x.run
    _put_left(step, left, parent, scope, path)
    _recall(parent.x, child)
    _ask_loops_again(parent, child)
    if run.recovered_work is not None:
        run.interpreter.recover_detached(parent, step, child)
    output = output_of(child, step, run)
    parent.last_output = (path[-1], output, _stored_output(child))
    return output


def restore_finished(step: AnyStep, parent: Frame, name: str, scope: ContextScope, *, held: bool) -> None:
    """Put what has finished in a child that was cut off where it left it.

    `held` says that changes of the state before it were not written then.
    """
    child = None if parent.node is None else parent.node.children.get(name)
    if child is None or not child.layout:
        return
    left = left_by(child, own=scope is not parent.scope)
    _put_left(step, left, parent, scope, (*parent.at, name), held=held)
    _recall(parent.x, child)
    for done in _finished(child):
        _ask_loops_again(parent, done)


def _recall(x: Execution, child: Node) -> None:
    """Let the execution know what has been done last, and the run why its last loop has ended."""
    x.last_step = last_step(child) or x.last_step
    x.run.verdict = last_verdict(child) or x.run.verdict


def _finished(node: Node) -> Iterator[Node]:
    """The outermost steps below a node that have finished."""
    for child in node.children.values():
        if child.finished is not None:
            yield child
        else:
            yield from _finished(child)


def _put_left(
    step: AnyStep,
    left: list[BodySegment],
    parent: Frame,
    scope: ContextScope,
    path: tuple[str, ...],
    *,
    held: bool = False,
) -> None:
    own = scope is not parent.scope
    run = parent.x.run
    _stands_here(parent, path, always=step.replay == "once", held=held)
    for part in left:
        scope.log.extend(part.items)
    restore_view(parent, scope, left)
    if run.store is not None and any(part.delta or part.memory for part in left):
        state = _seen_through(step, parent, scope, path)
        for part in left:
            patches.apply_changes(state, part.delta, run.store.codec)
        scope.known = patches.known_fields(state, run.store.codec)
        scope.layer_states = _recalled(parent.x, scope.layer_states, left)
        scope.stored = StoredLayerStates(scope.layer_states)
    if not own:
        ledger.returned(parent, scope.log.size)


def restore_rounds(frame: Frame, value: object) -> tuple[int, object]:
    """Put what the rounds that a summary stands for have left where they left it.

    Returns:
        How many these are, and the input of the round behind them; without a summary none, and the loop's own input.
    """
    folded = None if frame.node is None else frame.node.folded
    if folded is None:
        return 0, value
    run, scope = frame.x.run, frame.scope
    if folded.delta and run.store is not None:
        state = _seen_through(frame.step, frame, scope, (*frame.at, FOLDED))
        patches.apply_changes(state, folded.delta, run.store.codec)
        scope.known = patches.known_fields(state, run.store.codec)
        ledger.returned(frame, scope.log.size)
    if folded.stepped:
        frame.x.last_step = StepMeta()
    return folded.rounds, NOT_READ


def restore_view(frame: Frame, scope: ContextScope, left: Sequence[BodySegment]) -> None:
    """A model sees the conversation next as it would have after finished work."""
    path = next((part.view for part in reversed(left) if part.view is not None), None)
    if path is None:
        return
    run = frame.x.run
    state = run.views.get(path)
    if state is None:
        # An answer of this process.
        state = last_views(run.journal, run.views.get(None, {}))[path]
    view = Recorded(path, state)
    if scope is frame.scope:
        frame.put_view(view)
    else:
        scope.view = view


def _seen_through(step: AnyStep, parent: Frame, scope: ContextScope, path: values.Path) -> object:
    """The state that a step meets; what it is now is noted, so that a step can go back to it or begin with it."""
    return Frame(step, parent, parent.x, path, scope, parent.lease, scope.log.size).state


def _recalled(x: Execution, layer_states: LayerStates, left: list[BodySegment]) -> LayerStates:
    """The states of layers, as finished work has left them."""
    store = x.run.store
    if store is not None:
        for part in left:
            layer_states = apply_layer_states(layer_states, part.memory, x.layers.state_type, store.codec)
    return layer_states


def output_of(node: Node, step: AnyStep, run: Run) -> object:
    """A finished step's output."""
    record = node.finished
    if record is None or run.store is None:
        return None
    kind = run.kinds[record.kind]
    if kind.load is not None:
        return kind.load(node, run.store.codec)
    output = record.output
    if isinstance(output, values.SameAsChild):
        child = node.children.get(output.name)
        if child is None:
            raise errors.CodecError(f"its output is that of {output.name!r:.60}, which was discarded", path=node.path)
        return output_of(child, step, run)
    if not isinstance(output, values.Stored):
        return output
    return read_output(kind, output, step, run.store.codec)


def _stored_output(node: Node) -> object:
    """The stored form of a finished step's output, `NO_TREE` where another record has it."""
    output = None if node.finished is None else node.finished.output
    if isinstance(output, values.SameAsChild):
        return _stored_output(node.children[output.name])
    return output.tree if isinstance(output, values.Stored) else NO_TREE


def _ask_loops_again(parent: Frame, child: Node) -> None:
    """The requests to loops of a finished child and of steps below it."""
    store, record = parent.x.run.store, child.finished
    if store is None or record is None:
        return
    for path, value in record.loop_stops:
        node: Frame | None = parent
        while node is not None and (node.at != path or node.virtual):
            node = node.up
        if node is None or not isinstance(value, values.Stored):
            continue
        if node.kind.hands_over:
            node.stop_loop_with(read_output(node.kind, value, node.step, store.codec), child.path)
        else:
            known = read_value(value, node.step, store.codec)
            node.stop_loop_with(known, child.path)
            if path in record.cut:
                parent.x.run.interpreter.cut_short(node, known, None)


def decided_by(frame: Frame, names: list[str], mode: Mode) -> list[int] | None:
    """The paths whose records say already how their section ends: a race's winner, and what "all" has failed of.

    Returns:
        The paths to put down again, in the order of the journal; no other is started. `None` when all are to run.
    """
    node = frame.node
    if node is None or mode == "settle":
        return None
    finished = {
        index: child.position
        for index, name in enumerate(names)
        if (child := node.children.get(name)) is not None and child.finished is not None
    }
    if mode == "race":
        return [min(finished, key=finished.__getitem__)] if finished else None
    failed = {index: node.failed[name][1] for index, name in enumerate(names) if name in node.failed}
    order = finished | failed
    return sorted(order, key=order.__getitem__) if failed else None


def first_of(frame: Frame, names: Mapping[int, str]) -> int:
    """The first of several paths that have ended: the one that is first in the journal."""
    first = next(iter(names))
    if len(names) == 1:
        # The journal grows with the run: a race that one path has won does not look through it.
        return first
    paths: dict[values.Path, int] = {(*frame.at, name): index for index, name in names.items()}
    for record in reversed(frame.x.run.journal):
        if isinstance(record, (StepFinished, AttemptFailed)) and record.path in paths:
            first = paths.pop(record.path)
            if not paths:
                break
    return first


def put_down(frame: Frame, node: Node) -> None:
    """A spawn whose child was stopped before this process had the run: nothing runs in it, its steps have left this."""
    store = frame.x.run.store
    if store is None:
        return
    ledger.flush(frame)
    if frame.visited is not None:
        frame.visited.update(node.children)
    scope = frame.scope
    state = _seen_through(frame.step, frame, scope, frame.at)
    for segment in inside(node):
        scope.log.extend(segment.items)
        patches.apply_changes(state, segment.delta, store.codec)
    scope.known = patches.known_fields(state, store.codec)
    scope.layer_states = _recalled(frame.x, scope.layer_states, inside(node))
    scope.stored = StoredLayerStates(scope.layer_states)
    frame.mark = frame.written = scope.log.size


def put_state(frame: Frame, left: list[BodySegment]) -> None:
    """Make of the state at a frame's start, and of those of layers, what work below it has made of them."""
    store, scope = frame.x.run.store, frame.scope
    if store is None:
        return
    # Looking at the state notes what it was, unless a step below has looked at it.
    state = frame.state
    restore_state(state, frame.base)
    for part in left:
        patches.apply_changes(state, part.delta, store.codec)
    scope.known = patches.known_fields(state, store.codec)
    scope.layer_states = _recalled(frame.x, frame.base_layer_states, left)
    scope.stored = StoredLayerStates(scope.layer_states)
    ledger.returned(frame, scope.log.size)


def stop_again(x: Execution, path: tuple[str, ...]) -> None:
    """An execution that was stopped before this process had the run starts nothing."""
    run = x.run
    for control in run.stopped:
        if control.at == path and run.store is not None:
            value = control.value
            x.request(
                evolve(control, value=run.store.codec.decode(value.tree))
                if isinstance(value, values.Stored)
                else control
            )
            return


# ---------------------------------------------------------------------------------------------------- a body


async def begin(frame: Frame, value: object) -> ReplayedOutput | None:
    """A body is about to start: find its place in the journal, and for one that may run only once say that it does.

    Returns:
        Its output, when the step's `reconcile` knows that it has done its work already.

    Raises:
        StepOutcomeUnknown: It may run only once, was started before, and it is not known whether it has done its work.
    """
    above = None if frame.up is None else frame.up.node
    name = frame.at[-1]
    if above is not None and frame.attempt == 1:
        frame.node = above.children.get(name)
        tried = above.tries.get(name)
        if tried is not None:
            frame.attempt = tried + 1
            if name in above.begun:
                ledger.flush_items(frame.up, frame.at) if above.begun[name] else ledger.flush(frame.up)
    run = frame.x.run
    if frame.step.counted:
        run.in_flight.add((frame.at, frame.attempt))
    # Before the body, which may change it.
    frame.digest = _digest(frame.step, value, frame)
    frame.around = innermost()
    if run.store is not None:
        await run.store.hold()
    if frame.step.replay == "once" and run.store is not None:
        if isinstance(run.once.get(frame.at), Intent):
            output = await _reconcile(frame, value)
            if output is not NOT_DONE:
                return ReplayedOutput(output)
        intent = run.once[frame.at] = Intent(frame.at, frame.digest)
        run.journal.append(intent)
        await run.store.commit(run.journal)
        # A commit may take longer than the lease lasts, and what follows may be done by one owner only.
        await run.store.hold()
    return None


async def ask_step(frame: Frame, value: object) -> object:
    """The result of the step's `reconcile` for an input."""
    ask = frame.step.reconcile
    return NOT_DONE if ask is None else await call_apart(frame, ask, copy_value(value), frame.read_only())


async def _reconcile(frame: Frame, value: object) -> object:
    if frame.step.reconcile is None:
        raise errors.StepOutcomeUnknown(path=frame.at)
    try:
        return await (frame.kind.reconcile or ask_step)(frame, value)
    except (errors.Stopped, errors.CheckpointError):
        raise
    except Exception as error:
        # A retry asks again: the body does not run, because it is not known whether it has.
        what = f"{type(error).__name__}: {error}"
        raise errors.StepOutcomeUnknown(
            f"the step may run only once, was started before, and its reconcile= failed: {what}",
            path=frame.at,
            hint="resume the run once reconcile= can answer",
        ) from error


def _orphans(frame: Frame) -> list[Node]:
    """The children that are recorded, and that the body has not called this time."""
    node = frame.node
    if node is None or frame.kind.skips:
        return []
    called = frame.visited or set()
    return [
        child
        for name, child in node.children.items()
        if name not in called and (child.finished is not None or name in node.failed)
    ]


def check_called(frame: Frame) -> None:
    """Refuse or discard what is recorded below a body that has ended and was not called this time.

    Raises:
        ReplayDiverged: There is something, and the run does not go on with other code.
    """
    for child in _orphans(frame):
        if frame.x.run.on_diverge == "fail":
            raise errors.ReplayDiverged("is recorded, and was not called this time", path=child.path)
        ledger.discarded(frame.x.run, child.path)


def disown(frame: Frame, failure: errors.NoeticError) -> None:
    """Discard what a body has begun beyond what is recorded, so that the right code goes on."""
    if frame.node is not None and (isinstance(failure, errors.ReplayDiverged) or _orphans(frame)):
        for name in (frame.visited or set()) - frame.node.children.keys():
            ledger.discarded(frame.x.run, (*frame.at, name))


def _digest(step: AnyStep, value: object, frame: Frame) -> str | None:
    """A digest of what the step was given, where that is not derived from what is recorded."""
    store = frame.x.run.store
    kind = frame.x.run.kinds[step.kind]
    if store is None or not kind.digested:
        return None
    try:
        return digest_of(dump(store.codec.encode(value if kind.essence is None else kind.essence(value))))
    except errors.CodecError as error:
        raise errors.CodecError(
            f"the input of a step in a durable run cannot be stored: {error.message}", path=frame.at, hint=error.hint
        ) from error
