"""A session's stream: what each of its turns has added, and the conversation that this comes to.

A session has a journal of its own in the backend, one record when a turn begins and one when it ends. The run of a turn
has another one, which names the session and the position at which it began instead of repeating what was said before;
so both grow with what was added, and old runs can be forgotten while the conversation stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import define, evolve, field, frozen

from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump, parse
from noetic_py.core.control import RunStatus
from noetic_py.core.items import ContentPart, FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from noetic_py.core.log import ItemLog, Origin
from noetic_py.errors import CodecError, LogError
from noetic_py.journal import patches, values
from noetic_py.journal.changes import ViewChange, ViewState, clipped
from noetic_py.journal.fields import refuse_transformed, summary_fields
from noetic_py.journal.stored import Record, RunEntry

_STARTED, _ENDED, _EDITED, _LOADED = "TurnStarted", "TurnEnded", "SessionEdited", "SessionLoaded"
_MAX_BYTES = 64 * 1024 * 1024
_PAGE = 1000

Fields = Mapping[str, Any]


@frozen
class OpenTurn:
    """A turn that has begun, and whose end is not written.

    Attributes:
        run_id: Its run.
        delivery_id: What its message was delivered as, `None` when it was not given.
    """

    run_id: str
    delivery_id: str | None


@frozen
class ShutTurn:
    """The last turn of a session, when a shutdown has interrupted it.

    Attributes:
        run_id: Its run.
        items: How many items of it are there, at the end.
    """

    run_id: str
    items: int


@frozen
class StoredState:
    """A state of a session, in its stored form.

    Attributes:
        like: The state as it was stored whole: what kind of object it is.
        fields: Its fields now.
        version: The `schema_version` of its type.
    """

    like: Any
    fields: Fields
    version: int


@define(eq=False)
class StoredConversation:
    """The state of a session's stream at a position.

    Attributes:
        position: How many records that takes.
        log: The items.
        states: The states by the names of their types.
        open: The turn that has begun and not ended.
        delivered: The runs of the turns by what their messages were delivered as.
        unfinished: Of these runs, and of those that wait for an answer, those that have not completed: how many items
            of theirs are written, the position at which they were, and how they stood.
        taken: What messages were delivered as that came in between the rounds of a turn.
        shut: The turn that a shutdown has interrupted, until the next write.
        turns: How many turns have begun.
        status: How the last turn stood that has ended.
        settled: How many items there were when a turn had completed last, or they were edited by hand.
        noted: Whether the stream says whose session it is.
        view: How a model was shown the conversation last.
        shown: What a process keeps beside it for as long as `view` is the same, and items are only added.
        fence: The fence of the owner whose last write this process has seen, if that was its own; otherwise 0.
    """

    position: int = 0
    log: ItemLog = field(factory=ItemLog)
    states: Mapping[str, StoredState] = field(factory=dict[str, StoredState])
    open: OpenTurn | None = None
    delivered: dict[str, str] = field(factory=dict[str, str])
    unfinished: dict[str, tuple[int, int, str]] = field(factory=dict[str, tuple[int, int, str]])
    taken: set[str] = field(factory=set[str])
    shut: ShutTurn | None = None
    turns: int = 0
    status: RunStatus | None = None
    settled: int = 0
    noted: bool = False
    view: ViewState = field(factory=dict[str, Any])
    shown: Any = None
    fence: int = 0

    def advance(self, records: Iterable[Record], codec: Codec, written: Sequence[Item] = ()) -> None:
        """Take in records that follow, up to the first that cannot be read.

        Args:
            records: The records.
            codec: What reads the items.
            written: The items that this process has written with them.

        Raises:
            CodecError: One of them cannot be read; the message says which.
        """
        for record in records:
            try:
                self._take(record, codec, written)
            except (CodecError, LogError, LookupError, TypeError, ValueError, AttributeError) as error:
                where = f"record {self.position + 1} of the session"
                raise CodecError(
                    f"is not a valid {record.kind}: {type(error).__name__}: {error}", where=where
                ) from error
            self.position += 1

    def _take(self, record: Record, codec: Codec, written: Sequence[Item]) -> None:
        """Take in one record: what can fail comes first, so that one that cannot be read changes nothing."""
        fields = parse(record.payload, _MAX_BYTES, "record size")
        if record.kind == _STARTED:
            begun = OpenTurn(fields["run"], fields.get("d"))
            if begun.delivery_id is not None:
                self.delivered[begun.delivery_id] = begun.run_id
            self.open, self.shut = begun, None
            self.turns += 1
        elif record.kind == _ENDED:
            self._end(fields, _as_written(values.read_items(fields.get("i"), codec), written))
        elif record.kind == _EDITED:
            log = ItemLog()
            log.put(values.read_items(fields.get("i"), codec), values.read_origins(fields.get("o")))
            kept = fields.get("kept")
            states = self.states if kept is None else {name: self.states[name] for name in kept}
            self.view, self.shown = clipped(self.view, log[: _alike(self.log, log)]), None
            self.log, self.settled, self.states, self.shut = log, log.size, states, None
        elif record.kind == _LOADED:
            log = ItemLog()
            log.put(values.read_items(fields.get("i"), codec), values.read_origins(fields.get("o")))
            states, turns = _states({}, fields.get("s") or {}), fields["turns"]
            self.log, self.settled, self.view, self.shown, self.shut = log, log.size, {}, None, None
            self.states, self.turns, self.status = states, turns, fields.get("status")
        else:
            raise CodecError("a record of a kind that this version does not know", hint="install a newer noetic-py")

    def _end(self, fields: Fields, items: Sequence[Item]) -> None:
        """A turn has ended."""
        run_id: str = fields["run"]
        status, said = fields["status"], fields.get("said", 0)
        states = {**self.states, **_states(self.states, fields.get("s") or {})} if fields.get("s") else self.states
        took = dict.fromkeys(fields.get("took", ()), run_id)
        log, view, shown = self.log, self.view, self.shown
        if fields.get("back"):
            # Forked, so that what was there before can be put back.
            log = log.fork()
            log.rollback(log.size - fields["back"])
            view, shown = clipped(view, log.frozen()), None
        if "view" in fields:
            view = ViewChange(None, fields["view"]["put"], fields["view"]["gone"]).applied(view)
        # Earlier versions have not said which branch it was.
        origin = run_id, fields.get("b", "")
        log.put(items, [(len(items) - said, origin)])
        self.log, self.view, self.shown, self.states = log, view, shown, states
        self._note_end(fields, run_id, status, len(items) - said - fields.get("cut", 0))
        self.taken.update(took)
        self.delivered.update(took)
        self.shut = ShutTurn(run_id, len(items)) if fields.get("down") and not said else None
        self.open = None
        if not fields.get("void"):
            self.settled = log.size if self.status == "completed" else min(self.settled, log.size)

    def _note_end(self, fields: Fields, run: str, status: RunStatus, own: int) -> None:
        """Note of a turn that was delivered whether it is to be gone on with when it is delivered again."""
        if fields.get("void"):
            self.delivered = {name: other for name, other in self.delivered.items() if other != run}
            return
        delivered = self.open is not None and self.open.run_id == run and self.open.delivery_id is not None
        before = self.unfinished.pop(run, None)
        self.status = status
        if status == "suspended" or (status != "completed" and (delivered or before is not None)):
            written = 0 if before is None or "back" in fields else before[0]
            self.unfinished[run] = (written + own, self.position + 1, status)


def _as_written(read: Sequence[Item], written: Sequence[Item]) -> Sequence[Item]:
    """The items that were read, as the objects that were written where these are equal and cannot change.

    What layers and views have counted of the same objects is not counted again.
    """
    if len(read) != len(written):
        return read
    return [
        mine if type(mine) is type(each) and mine == each and _is_fixed(mine) else each
        for each, mine in zip(read, written, strict=True)
    ]


def _is_fixed(item: Item) -> bool:
    """Whether an item holds texts alone: `extra`, and items of other classes, can hold what code changes later."""
    parts: Sequence[ContentPart] = ()
    match item:
        case Message(content=content):
            parts = content
        case Reasoning(content=content, summary=summary):
            parts = (*content, *summary)
        case FunctionCallOutput(output=tuple(content)):
            parts = content
        case FunctionCall() | FunctionCallOutput():
            pass
        case _:
            return False
    return item.extra is None and all(part.extra is None for part in parts)


def _alike(one: ItemLog, other: ItemLog) -> int:
    """How many items at the start two conversations have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(one.size, other.size))


def _states(before: Mapping[str, StoredState], given: Mapping[str, Any]) -> dict[str, StoredState]:
    found: dict[str, StoredState] = {}
    for name, change in given.items():
        if "w" in change:
            found[name] = StoredState(change["w"], patches.field_trees(change["w"]), change["v"])
        else:
            old = before[name]
            delta = _read_changes(change["c"] if "c" in change else change["p"])
            found[name] = evolve(old, fields=patches.changed_fields(old.fields, delta))
    return found


def _read_changes(tree: object) -> tuple[patches.Change, ...]:
    if not values.is_changes(tree):
        raise CodecError(f"{tree!r:.80} is not a valid change of a state", hint="install a newer noetic-py")
    return values.read_changes(tree)


class StreamReader(Protocol):
    """The part of a backend that reads records; see `CheckpointBackend.read`."""

    async def read(self, run_id: str, *, after: int = 0, limit: int = ...) -> Sequence[Record]:
        """The records after a position, in order."""
        ...


async def read_conversation(
    backend: StreamReader,
    stream: str,
    codec: Codec,
    *,
    known: StoredConversation | None = None,
    upto: int | None = None,
) -> StoredConversation:
    """The contents of a session's stream.

    Args:
        backend: Where it is.
        stream: Its id.
        codec: What reads the items.
        known: What was read of it before, which is read on.
        upto: The position at which to end; its end when left out.

    Raises:
        RunNotFound: There is no such stream.
        CodecError: A record cannot be read.
        CorruptRecord: The stored value is not what was written.
    """
    found = StoredConversation() if known is None else known
    while upto is None or found.position < upto:
        begun = found.position
        page = await backend.read(stream, after=begun, limit=_PAGE)
        if not page:
            break
        # The writer of the session may have taken in some of it meanwhile.
        found.advance(page[found.position - begun : None if upto is None else upto - begun], codec)
    return found


# ---------------------------------------------------------------------------------------------------- what is appended


def started(run_id: str, delivery_id: str | None) -> Record:
    """A turn begins."""
    fields = {"run": run_id} if delivery_id is None else {"run": run_id, "d": delivery_id}
    return Record(_STARTED, (), dump(fields))


def ended(
    run_id: str,
    status: RunStatus,
    items: Sequence[Item],
    states: Mapping[str, object],
    codec: Codec,
    *,
    branch: str = "",
    said: int = 0,
    cut: int | None = None,
    back: int = 0,
    took: Sequence[str] = (),
    view: ViewChange | None = None,
) -> Record:
    """A turn has ended, and this is what it adds.

    Args:
        run_id: Its run.
        status: How that stands.
        items: What it adds.
        states: How the states have changed.
        codec: What writes the items.
        branch: Which branch of the run they are of.
        said: How many of the last items are not its run's.
        cut: When a shutdown has interrupted it, how many of the items before those are of an answer that was cut off.
        back: How many of the session's last items it takes back, because it has gone on and all of its own follow.
        took: What the messages were delivered as that it has taken in between its rounds.
        view: How what a model is shown of the conversation has changed.

    Raises:
        CodecError: An item cannot be stored.
    """
    fields: dict[str, object] = {"run": run_id, "status": status}
    if back:
        fields["back"] = back
    if took:
        fields["took"] = list(took)
    if items:
        fields["i"] = values.write_items(tuple(items), codec)
    if items and branch:
        fields["b"] = branch
    if said:
        fields["said"] = said
    if cut is not None:
        fields["down"] = True
    if cut:
        fields["cut"] = cut
    if states:
        fields["s"] = states
    if view is not None:
        fields["view"] = {"put": view.put, "gone": [*view.gone]}
    return Record(_ENDED, (), dump(fields))


def discarded(run_id: str) -> Record:
    """A turn has ended whose run was never begun."""
    return Record(_ENDED, (), dump({"run": run_id, "status": "interrupted", "void": True}))


def edited(
    items: Sequence[Item],
    states: Iterable[str] | None,
    codec: Codec,
    *,
    origins: Sequence[tuple[int, Origin | None]] = (),
) -> Record:
    """The conversation was edited by hand: from here on it is this one.

    Args:
        items: All its items.
        states: The names of the states that stay; all when `None`.
        codec: What writes the items.
        origins: Where the items came from.

    Raises:
        CodecError: An item cannot be stored.
    """
    fields: dict[str, object] = {"i": values.write_items(tuple(items), codec)}
    if came := values.write_origins(origins):
        fields["o"] = came
    if states is not None:
        fields["kept"] = sorted(states)
    return Record(_EDITED, (), dump(fields))


def loaded(
    items: Sequence[Item],
    states: Mapping[str, object],
    *,
    turns: int,
    status: RunStatus | None,
    codec: Codec,
    origins: Sequence[tuple[int, Origin | None]] = (),
) -> Record:
    """The session is one that was written as data elsewhere: from here on it holds this, and nothing from before.

    Raises:
        CodecError: An item cannot be stored.
    """
    fields = {"i": values.write_items(tuple(items), codec), "s": dict(states), "turns": turns, "status": status}
    if came := values.write_origins(origins):
        fields["o"] = came
    return Record(_LOADED, (), dump(fields))


def state_change(before: StoredState | None, state: object, version: int, codec: Codec) -> Mapping[str, object] | None:
    """How a state is to be stored: whole the first time, and then what has changed; `None` when nothing has.

    Raises:
        CodecError: It cannot be stored.
    """
    if before is None or before.version != version:
        return {"w": codec.encode(state), "v": version}
    found = patches.changes(patches.known_of(before.fields), patches.known_fields(state, codec))
    return _write_changes(found) if found else None


def deltas_change(
    before: StoredState | None, begun: StoredState, given: Sequence[patches.Change]
) -> Mapping[str, object] | None:
    """How a state is to be stored that began so, and was changed so and not otherwise."""
    if not given:
        return None
    if before is not None and before.version == begun.version:
        return _write_changes(given)
    return {"w": patches.state_tree(begun.like, patches.changed_fields(begun.fields, given)), "v": begun.version}


def _write_changes(given: Sequence[patches.Change]) -> Mapping[str, object]:
    # Versions before patches would have taken one for an append. They look for changes under "c".
    return {"p" if any(change.op == "patch" for change in given) else "c": values.write_changes(given)}


def begins_at(entry: RunEntry) -> int:
    """From which position on a stream is to be read: what is before it was given up as unreadable.

    Raises:
        TransformMissing: Only a record transform can read it, which is not here.
        CorruptRecord: The summary is damaged.
    """
    refuse_transformed(entry.summary)
    begins: object = summary_fields(entry.summary).get("from")
    return begins if isinstance(begins, int) else 0
