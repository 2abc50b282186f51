"""Sums up finished rounds of a loop in its journal, and reads these summaries in place of the records of the rounds.

A summary covers the rounds of a loop from the first on, and is written when the rounds behind it have given all outputs
that the loop's condition may look at. What resumes the run reads the summaries, and the records that none covers: what
this costs does not grow with the run. A loop is summed up only while nothing in its rounds has a meaning beyond the
round, besides usage and changes of the state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from attrs import define, evolve, field

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.budget import NO_USAGE
from noetic_py.core.codec import Codec
from noetic_py.core.values import is_list
from noetic_py.engine.frame import Frame
from noetic_py.engine.journaling.fold import DETACHED_START, Begun, discards, placed, tree, visible
from noetic_py.engine.journaling.replay import opening_of, version_of
from noetic_py.engine.journaling.run_history import (
    PAGE,
    RunHistory,
    is_unpriced,
    iterations_in,
    record_at,
    recorded_usage,
    run_history_of,
)
from noetic_py.engine.journaling.writer import SUMMARIES, RunWriter
from noetic_py.engine.kind import Kind, Kinds, Node
from noetic_py.engine.state import Run
from noetic_py.errors import CodecError, CorruptRecord, LimitExceeded
from noetic_py.journal import patches
from noetic_py.journal.fields import summary_fields
from noetic_py.journal.records import (
    AttemptFailed,
    CallStarted,
    ChildReplayed,
    Decision,
    Folded,
    JournalRecord,
    RunEnded,
    Segment,
    StateRevised,
    StepFinished,
    StepOpened,
    StepStopped,
    check_journal,
    dump_record,
)
from noetic_py.journal.run_summary import load_records
from noetic_py.journal.stored import RunEntry

EVERY = 200
"""How many rounds at the least lie between two summaries of a loop."""
SHARE = 10
"""How many times as large as a summary the records are that were written since the one before."""
_MOST_KEPT = 64
"""How many records between the rounds of a loop are read one by one."""
MOST_NAMED = 100
"""How many summaries a run names: of loops that ended earlier all records are read."""

_NEVER: Final = 2**63
# Decisions of the loop itself about one of its rounds.
_OF_A_ROUND: Final = re.compile(r"(?:verdict|next|on_error)\[(\d+)\]")


def _can_be_summed_up(frame: Frame) -> bool:
    """Whether nothing around a loop, and nothing of the run, gives its rounds a meaning beyond themselves."""
    run, spec = frame.x.run, frame.step.spec
    plain = run.on_diverge == "fail" and frame.x is run.root and not frame.x.has_layers and spec.inbox is None
    return plain and not run.detached and run.recovered_work is None and all(map(_lets_through, _around(frame)))


def _around(frame: Frame) -> Iterator[Frame]:
    """A step and those around it, in its execution."""
    node: Frame | None = frame
    while node is not None and not node.virtual:
        yield node
        node = node.up


def _lets_through(frame: Frame) -> bool:
    """Whether what a step calls works on the conversation and the state of the run, one after the other."""
    kind = frame.kind
    one_by_one = kind.composite and kind.in_order and (kind.judged or not kind.rounds)
    return one_by_one and _is_plain(kind) and frame.step.replay != "once"


_Place: TypeAlias = Literal["own", "kept", "behind", "beyond"]
"""What a record is to rounds that are summed up: one of theirs, another one that is read all the same, one of a later
round, or one that has a meaning beyond its round."""


@define
class _Stretch:
    """A stretch of the journal.

    Attributes:
        end: The position behind it.
        records: Its records.
        own: Those of the rounds.
        kept: The positions of those that are neither the rounds' nor the loop's about them.
    """

    end: int
    records: list[JournalRecord] = field(factory=list["JournalRecord"])
    own: list[JournalRecord] = field(factory=list["JournalRecord"])
    kept: list[int] = field(factory=list[int])


class RoundSums:
    """Sums up the rounds of a loop in flight, and writes that down.

    Args:
        frame: The loop.
        outputs: How many of its latest outputs its condition may look at.

    Attributes:
        due: The iteration before which there is something to do.
    """

    __slots__ = (
        "_before", "_bytes", "_frame", "_made", "_new_fields", "_outputs", "_prefix", "_started", "_step", "_store",
        "_total", "due",
    )  # fmt: skip

    def __init__(self, frame: Frame, outputs: int) -> None:
        self._frame = frame
        self._outputs = outputs
        # The summary that waits for the rounds behind it, with its size in bytes.
        self._made: tuple[Folded, int] | None = None
        self.due = _NEVER
        store = frame.x.run.store
        if store is not None and _can_be_summed_up(frame):
            self._begin(frame, store)

    def _begin(self, frame: Frame, store: RunWriter) -> None:
        self._store = store
        self._step = EVERY
        self._prefix = f"{frame.step.spec.body.id}["
        self._bytes = store.size
        node = frame.node
        known = None if node is None else node.folded
        # Of each field of the state that was changed, the digest that it had before; and whether fields came or went.
        self._before: dict[str, str | None] = {}
        self._new_fields = False
        if known is None:
            first = _first_of(frame)
            self._started = False
            self._total = Folded(frame.at, f"{self._prefix}0]", 0, first, first)
        else:
            self._started = True
            self._total = evolve(known, stands=False, delta=())
            self._note(known.delta)
        self.due = self._total.rounds + EVERY

    def look(self, iteration: int) -> None:
        """All rounds before one are over: sum them up, or write down an earlier sum when it is time."""
        made = self._made
        if made is None or iteration >= made[0].rounds + self._step:
            self._made = self._sum(iteration)
            # What is not possible now will not be possible later either.
            self.due = _NEVER if self._made is None else iteration + self._outputs
        elif self._is_replayed(iteration - 1):
            self.due = iteration + 1
        else:
            self._write(*made)
            self._made = None
            self.due = max(made[0].rounds + self._step, iteration + 1)

    def failed(self, iteration: int) -> None:
        """A round has failed, and another one follows: it gives no output."""
        if self.due != _NEVER:
            self.due += 1
        if self._made is not None and self._made[0].rounds == iteration:
            # The input of the round behind a summary is not stored, and so that one must have an output.
            self._made, self.due = None, iteration + 1

    def _is_replayed(self, iteration: int) -> bool:
        node = self._frame.node
        return node is not None and node.holds(f"{self._prefix}{iteration}]")

    # -- summing up

    def _sum(self, iteration: int) -> tuple[Folded, int] | None:
        """Sum up the rounds before one; `None` where that is not possible."""
        stretch = self._stretch(iteration)
        if stretch is None:
            return None
        own, run, total = stretch.own, self._frame.x.run, self._total
        usages = recorded_usage(own, run.kinds, Begun(run.kinds))
        if any(usage.tool is not None or not usage.sure for usage in usages):
            return None
        leaves = any(map(_leaves_something, own))
        left = visible(tree(stretch.records, run.kinds, self._frame.at)) if leaves else ()
        if any(part.items for part in left):
            return None
        for part in left:
            self._note(part.delta)
        meta = self._frame.x.last_step
        if meta is not None and (meta.items or meta.usage.total):
            return None
        costs = [usage.used.cost for usage in usages if usage.used.cost is not None]
        tokens = sum((usage.used.tokens for usage in usages), total.usage or NO_USAGE)
        self._total = total = evolve(
            total,
            next=f"{self._prefix}{iteration}]",
            rounds=iteration,
            end=stretch.end,
            kept=(*total.kept, *stretch.kept),
            iterations=total.iterations + iterations_in(own, run.kinds, self._frame.at),
            steps=total.steps + sum(usage.steps for usage in usages),
            usage=None if tokens == NO_USAGE else tokens,
            cost=sum(costs, total.cost or Decimal(0)) if costs else total.cost,
            calls=total.calls + sum(usage.used.model_calls for usage in usages),
            unpriced=total.unpriced or is_unpriced(own),
            stepped=meta is not None,
        )
        return self._make(total)

    def _make(self, total: Folded) -> tuple[Folded, int] | None:
        known = self._frame.scope.known
        if (self._before and known is None) or len(total.kept) > _MOST_KEPT:
            return None
        record = evolve(total, delta=_delta(self._before, known or {}, reordered=self._new_fields))
        try:
            return record, len(dump_record(record, self._store.codec).payload)
        except (CodecError, LimitExceeded):
            # Each change could be stored, and all of them together cannot.
            return None

    def _stretch(self, iteration: int) -> _Stretch | None:
        """The records since the last sum up to a round; `None` where one has a meaning beyond its round."""
        total, found = self._total, _Stretch(self._frame.x.run.position)
        for position, record in placed(self._frame.x.run.journal):
            if position < total.end:
                continue
            place = self._place(record, iteration)
            if place == "behind":
                found.end = position
                break
            if place == "beyond":
                return None
            found.records.append(record)
            if place == "own":
                self._started = True
                found.own.append(record)
            elif place == "kept" and self._started:
                found.kept.append(position)
            elif place == "kept":
                total.first = total.end = position + 1
        return found

    def _place(self, record: JournalRecord, iteration: int) -> _Place | None:
        """What a record is to the rounds before one; `None` for what the loop says about them, and an earlier sum."""
        at, depth = self._frame.at, len(self._frame.at)
        if isinstance(record, Folded) and not record.stands:
            return None
        if len(record.path) > depth and record.path[:depth] == at:
            number = self._total.round_of(record.path[depth])
            if number is None or number >= iteration:
                return "beyond" if number is None else "behind"
            if number < self._total.rounds:
                return None if isinstance(record, ChildReplayed) else "beyond"
            return "own" if _is_of_a_round(record, self._frame.x.run.kinds) else "beyond"
        decided = _OF_A_ROUND.fullmatch(record.key) if isinstance(record, Decision) and record.path == at else None
        if decided is not None:
            return "behind" if int(decided[1]) >= iteration else None
        return "beyond" if isinstance(record, StateRevised) else "kept"

    def _note(self, delta: Sequence[patches.Change]) -> None:
        for change in delta:
            self._new_fields |= change.op == "unset" or change.before is None
            self._before.setdefault(change.key, change.before)

    # -- writing down

    def _write(self, record: Folded, size: int) -> None:
        """Append a summary, unless it is large for what was written since the last one."""
        run, store = self._frame.x.run, self._store
        if size * SHARE > store.size - self._bytes:
            self._step *= 2
            return
        self._step, self._bytes = EVERY, store.size
        named = [one for one in _named(store.summary_fields) if not record.first <= one < record.end]
        store.name_summaries([*named, run.position][-MOST_NAMED:])
        store.set_summary()
        run.journal.append(record)
        _forget(run, store, record)


def _forget(run: Run, store: RunWriter, record: Folded) -> None:
    """Put a summary in place of the records that it stands for, in this process's memory of the journal."""
    if store.staged < record.end:
        return
    places = [(at, each) for at, each in placed(run.journal) if at < record.end]
    first = sum(at < record.first for at, _ in places)
    wanted = set(record.kept)
    kept = [each for at, each in places[first:] if at in wanted and not (isinstance(each, Folded) and each.stands)]
    run.journal[first : len(places)] = [evolve(record, stands=True), *kept]
    store.unread += len(places) - first - 1 - len(kept)


def _first_of(frame: Frame) -> int:
    """The position from which on the journal holds records of a loop that is begun."""
    run, at, first = frame.x.run, frame.at, None
    for position, record in placed(run.journal) if frame.node is not None and frame.node.children else ():
        if at[: len(record.path)] == record.path and discards(record):
            first = None
        elif first is None and len(record.path) > len(at) and record.path[: len(at)] == at:
            first = position
    return run.position if first is None else first


def _is_of_a_round(record: JournalRecord, kinds: Kinds) -> bool:
    """Whether a record in a round of a loop has no meaning beyond the round besides usage and changes of the state."""
    if isinstance(record, (StepOpened, AttemptFailed, StepStopped, StepFinished)) and not _is_plain(kinds[record.kind]):
        return False
    match record:
        case Decision():
            return ".from" not in record.key and record.key != DETACHED_START
        case AttemptFailed():
            return record.control is None
        case StepStopped():
            return not (record.items or record.delta or record.takes or record.control is not None)
        case StepFinished():
            # Where it has stopped the loop, that ends before a summary of the round would be written.
            return record.control is None and not record.takes
        case _:
            return isinstance(record, (CallStarted, ChildReplayed, Folded, Segment, StepOpened))


def _leaves_something(record: JournalRecord) -> bool:
    """Whether a record may have changed the conversation or the state."""
    if isinstance(record, (StepFinished, Segment)):
        return bool(record.items or record.delta)
    return isinstance(record, Folded) and bool(record.delta)


def _is_plain(kind: Kind) -> bool:
    """Whether steps of a kind leave nothing outside of the execution, and have none of their own."""
    return not (kind.shares is not None or kind.apart or kind.firings or kind.sends or kind.hands_over)


def _delta(
    before: Mapping[str, str | None], known: Mapping[str, patches.Known], *, reordered: bool
) -> tuple[patches.Change, ...]:
    """The changes that make the fields of a state what they are now.

    Args:
        before: The fields that were changed, with the digests that they had; `None` for one that was not there.
        known: All fields as they are.
        reordered: Whether fields came or went, so that the order of fields may have changed.
    """
    if not reordered:
        return tuple(patches.Change("set", key, digest, known[key].tree) for key, digest in before.items())
    names = list(known)
    from_here = next((index for index, name in enumerate(names) if name in before), len(names))
    digests = {name: known[name].digest for name in names[from_here:]} | dict(before)
    gone = [patches.Change("unset", key, digest) for key, digest in digests.items() if digest is not None]
    return (*gone, *(patches.Change("set", name, None, known[name].tree) for name in names[from_here:]))


# ------------------------------------------------------------------------------------------------------------- reading


async def read_summed_up(
    backend: CheckpointBackend,
    entry: RunEntry,
    codec: Codec,
    kinds: Kinds,
    state_type: Callable[[Sequence[JournalRecord]], type[object] | None],
) -> RunHistory | None:
    """The history of a run in which summaries stand for finished rounds; `None` where all records have to be read.

    Args:
        backend: Where the run is kept.
        entry: The run's list entry.
        codec: What reads it.
        kinds: All kinds of steps.
        state_type: Says of records which type the state has now.

    Raises:
        CodecError: A record cannot be read, or refers to one that is not there.
    """
    run_id = entry.run_id
    try:
        named = _named(summary_fields(entry.summary))
    except CorruptRecord:
        return None
    summaries: list[Folded] = []
    for position in named:
        record = await record_at(backend, run_id, position, codec)
        if not isinstance(record, Folded) or record.end > position:
            # Its commit was lost after the one that has named it.
            return None
        summaries.append(evolve(record, stands=True))
    found = await _read_between(backend, entry, codec, summaries) if summaries else None
    if found is None:
        return None
    records, position = found
    if any(isinstance(record, StateRevised) or (isinstance(record, RunEnded) and record.pending) for record in records):
        return None
    kind = state_type(records)
    if kind is not None and opening_of(records).version != version_of(kind):
        return None
    check_journal(records, run_id)
    history = run_history_of(records, kinds, run_id, kind, codec)
    if not all(_stands(history.index, each) for each in summaries):
        return None
    return evolve(history, position=position, summaries=named)


async def _read_between(
    backend: CheckpointBackend, entry: RunEntry, codec: Codec, summaries: Sequence[Folded]
) -> tuple[list[JournalRecord], int] | None:
    """The summaries with all records that none of them covers, and the end of the journal."""
    run_id = entry.run_id
    found: list[JournalRecord] = []
    position = 0
    for each in sorted(summaries, key=lambda one: (one.first, -one.end)):
        if each.end <= position:
            # A longer one of the same loop covers it.
            continue
        if each.first < position:
            return None
        while position < each.first:
            limit = min(PAGE, each.first - position)
            page = await backend.read(run_id, after=position, limit=limit)
            if not page:
                return None
            found += load_records(page, codec, run_id, position)
            position += len(page)
        kept = [await record_at(backend, run_id, one, codec) for one in each.kept]
        found += [each, *[one for one in kept if one is not None]]
        position = each.end
    while position < entry.position:
        page = await backend.read(run_id, after=position, limit=PAGE)
        if not page:
            return None
        found += load_records(page, codec, run_id, position)
        position += len(page)
    return found, position


def _named(fields: Mapping[str, object]) -> list[int]:
    """The positions of the summaries that a run names."""
    named = fields.get(SUMMARIES)
    return [one for one in named if isinstance(one, int) and one > 0] if is_list(named) else []


def _stands(index: Node, record: Folded) -> bool:
    """Whether a summary can stand for its rounds: the round behind it has its output."""
    node: Node | None = index
    for name in record.path:
        node = None if node is None else node.children.get(name)
    if node is None or node.folded is not record:
        # The attempt that it belongs to was discarded.
        return True
    after = node.children.get(record.next)
    return after is not None and after.finished is not None
