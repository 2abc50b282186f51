"""Making a run durable: its lease, its head, its heart-beat; and taking over one that another process has begun."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain
from logging import WARNING
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio
from attrs import evolve, frozen

from noetic_py.checkpoints.checks import is_owned, no_run
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.signed import SignedBackend
from noetic_py.context.read import ContextScope
from noetic_py.context.step import AnyStep
from noetic_py.core.codec import Codec
from noetic_py.core.codec.stored import unreadable
from noetic_py.core.codec.structure import dump, inside
from noetic_py.core.control import Answer, AnyResult, RunStatus, is_stream, stream_of
from noetic_py.core.diagnostics import Where, log
from noetic_py.core.items import Item, ItemBase, Opaque
from noetic_py.core.log import ItemLog
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.core.state import StateBag
from noetic_py.core.types import T
from noetic_py.core.values import copy_value, is_array
from noetic_py.engine.fingerprint import declared_input, fingerprint, known_types, one_value, read_as
from noetic_py.engine.journaling.dry_run import check
from noetic_py.engine.journaling.fold import tree, visible
from noetic_py.engine.journaling.replay import as_stored, decoded, replaced, stored_type, version_of
from noetic_py.engine.journaling.run_history import (
    OVER,
    RunHistory,
    answer,
    answers_for,
    end_at,
    has_open_requests,
    open_requests,
    read_journal,
    run_history_of,
    store_time,
    summary_of,
    take_over,
)
from noetic_py.engine.journaling.summaries import read_summed_up
from noetic_py.engine.journaling.writer import ENDED, PARENT, TTL, RunStorage, RunWriter, ended_signals, parent_in
from noetic_py.engine.kind import Kinds
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.layers.versions import revise_layers
from noetic_py.engine.run import RunPlan, open_journal
from noetic_py.engine.shared_budgets import held_by
from noetic_py.engine.state import Run, budget_of, limits_of
from noetic_py.errors import (
    CodecError,
    ConfigError,
    CorruptRecord,
    Interrupted,
    LeaseLost,
    NoeticError,
    PositionConflict,
    RecordRefused,
    ReplayDiverged,
    RequestNotFound,
    RunBusy,
    RunNotFound,
    Suspended,
    TransformMissing,
)
from noetic_py.journal.changes import ViewState, last_views
from noetic_py.journal.fields import refuse_transformed, summary_fields
from noetic_py.journal.patches import Change, field_trees
from noetic_py.journal.records import (
    AttemptFailed,
    JournalRecord,
    Opening,
    RunBegun,
    RunEnded,
    StepFinished,
    dump_record,
)
from noetic_py.journal.run_summary import PlainCodec, forked_from
from noetic_py.journal.session_stream import StoredState, read_conversation
from noetic_py.journal.stored import Head, Lease, Record, Signal, Transaction
from noetic_py.journal.values import Stored
from noetic_py.memory.projector import Recorded
from noetic_py.memory.view_state import decisive, recorded_of
from noetic_py.redaction import with_article
from noetic_py.runner.inbox import heard, received, send_answers
from noetic_py.steps.flow import Settled

if TYPE_CHECKING:
    pass

# Seconds between two looks at a run that another owner has.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

_codecs: WeakKeyDictionary[AnyStep, dict[tuple[int, ...], Codec]] = WeakKeyDictionary()
# What is known besides the flow, such as the class of its input, may be another one for each run.
_MOST_CODECS = 8


def codec_for(step: AnyStep, *more: Any) -> Codec:
    """The codec of a flow's values, which knows the classes that its annotations name."""
    types = known_types(step, *more)
    # The result of `settle` is known to every flow that has no class of the same name.
    if all(kind.__name__ != Settled.__name__ for kind in types):
        types.append(Settled)
    # A codec compiles a function for each class, so one serves all runs of a flow. It holds the classes, so that none
    # of another run has the same id. Other flows have their own: in theirs `int | str` may be `str | int`.
    codecs, ids = _codecs.setdefault(step, {}), tuple(map(id, types))
    codec = codecs.get(ids)
    if codec is None:
        if len(codecs) == _MOST_CODECS:
            codecs.clear()
        codec = codecs[ids] = Codec(types)
    return codec


def prepare_new_run(run: Run, plan: RunPlan, storage: RunStorage) -> tuple[RunPlan, RunWriter]:
    """Encode how a new run begins, which is not stored yet.

    Raises:
        CodecError: Its input, its state or its conversation cannot be stored.
    """
    state = plan.scope.state
    codec = codec_for(plan.step, type(state), type(plan.value), *run.resources.layers.state_types)
    opening = Opening(
        fingerprint=fingerprint(plan.step),
        items=() if plan.base is not None and plan.base.position >= 0 else tuple(plan.scope.log.frozen()),
        state=_encoded(as_stored(state), "state", codec),
        user_id=run.user_id,
        request_id=run.request_id,
        metadata=run.metadata,
        source=storage.source,
        budget=limits_of(plan.limits),
        version=version_of(state.__class__),
        base=plan.base,
        depth=run.depth,
        turns=run.context_turns,
        trace=run.trace,
        asked=run.asked,
        memory=None if run.memory.owner is None else run.memory,
        parent=run.parent,
    )
    view: ViewState = {} if plan.scope.view is None else decisive(recorded_of(plan.scope.view).state)
    run.views = {None: view}
    if opening.base is None or opening.base.position < 0:
        opening.view = view
    if opening.items:
        opening.origins = tuple(plan.scope.log.origins())
    begun: dict[str, object] = {"input": plan.value, "history": list(opening.items), "metadata": dict(run.metadata)}
    trees = {where: _encoded(value, where, codec) for where, value in begun.items()}
    plan = evolve(plan, value=_as_read(plan, trees["input"], codec), opening=opening)
    store = _writer(run, storage, codec, plan.step.id, storage.source)
    store.set_summary()
    run.keep_in(store)
    open_journal(run, plan)
    return plan, store


async def begin_stored_run(run: Run, plan: RunPlan, storage: RunStorage) -> RunPlan:
    """Become the owner of a new run.

    Raises:
        RunBusy: Another process has the run, or it is there already.
        CodecError: Its input, its state or its conversation cannot be stored.
    """
    plan, store = prepare_new_run(run, plan, storage)
    try:
        await store.begin(run.journal)
        return plan
    except BaseException as error:
        # It has not begun here.
        run.journal.clear()
        if isinstance(error, RunBusy):
            raise _held(run.run_id, error) from error
        # Where there is no such run, its session was written by another owner meanwhile.
        if not isinstance(error, PositionConflict) or await storage.backend.head(run.run_id) is None:
            raise
    if storage.again:
        state, codec = plan.scope.state, store.codec
        kind = None if type(state) is StateBag else state.__class__
        whole = bool(run.resources.layers.by_id)
        run_history = await load_run_history(storage.backend, run.run_id, codec, run.kinds, kind, summaries=not whole)
        return await go_on(run, run_history, plan.step, codec, storage, {"state_type": kind, "budget": plan.limits})
    raise RunBusy(f"run {run.run_id!r} is there already", hint="resume it, leave out run_id=, or delete the old run")


def _writer(
    run: Run, storage: RunStorage, codec: Codec, flow: str, source: str | None, *, position: int = 0
) -> RunWriter:
    """Where a run is written to that goes on from a position of its journal."""
    store = RunWriter(storage, run.run_id, codec, position=position)
    store.status = "running" if storage.queued is None else "queued"
    store.parent = run.parent
    queued = storage.claimed.claim.queued if storage.claimed is not None else storage.queued
    store.summary_fields = _run_summary(run, flow, source, None if queued is None else queued.queue)
    return store


async def acquire_lease(backend: CheckpointBackend, run_id: str, ttl: float) -> tuple[Lease, Head | None]:
    """Become the owner of a run, and see where it ends; a caller that is cancelled meanwhile does not own it.

    Raises:
        RunBusy: Another owner has it.
    """
    try:
        lease = await backend.acquire(run_id, ttl=ttl)
    except RunBusy as busy:
        raise _held(run_id, busy) from busy
    if lease.position is not None:
        return lease, Head(lease.position, lease.fence)
    try:
        head = await backend.head(run_id)
    except BaseException:
        await release_lease(backend, lease)
        raise
    if head is not None and head.fence != lease.fence:
        raise RunBusy("the lease ran out before it was known here", hint="try again; the store answers slowly")
    return lease, head


def _held(run_id: str, busy: RunBusy) -> RunBusy:
    return RunBusy(f"another owner holds run {run_id!r}", hint=busy.hint)


async def _owned(storage: RunStorage, run_id: str) -> tuple[Lease, Head | None, float]:
    """The lease of a run, which a worker has claimed already or which is acquired now, and when it was asked for."""
    claimed = storage.claimed
    if claimed is None:
        asked = SYSTEM.monotonic()
        return *await acquire_lease(storage.backend, run_id, storage.ttl), asked
    lease = claimed.claim.lease
    head = await storage.backend.head(run_id) if lease.position is None else Head(lease.position, lease.fence)
    if head is not None and head.fence != lease.fence:
        raise RunBusy("the lease of the claim has run out", hint="another worker goes on with the run")
    return lease, head, claimed.asked


async def release_lease(backend: CheckpointBackend, lease: Lease) -> None:
    """Give a lease back; cannot be cancelled."""
    with anyio.CancelScope(shield=True):
        await backend.release(lease)


def _run_summary(run: Run, flow: str, source: str | None, queue: str | None) -> Mapping[str, object]:
    """The summary of a run for lists."""
    fields = {
        "flow": flow,
        "source": source,
        "thread_id": run.thread_id,
        "user_id": run.user_id,
        "request_id": run.request_id,
        "session": None if run.session is None else run.session.parts,
        "forked": run.forked or None,
        "queue": queue,
        PARENT: run.parent,
    }
    return {key: value for key, value in fields.items() if value is not None}


async def _forked(backend: CheckpointBackend, run_id: str) -> tuple[tuple[str, int], ...]:
    """The runs that a fork was made of, and where in its journal each ends.

    Raises:
        CorruptRecord: The run's summary cannot be read.
    """
    entry = await backend.entry(run_id)
    return () if entry is None else forked_from(summary_fields(entry.summary))


def _encoded(value: object, where: str, codec: Codec) -> object:
    try:
        tree = codec.encode(value)
        dump(tree)
    except CodecError as error:
        raise inside(error, where) from error
    return tree


@frozen
class PlannedFork:
    """A run that is to be made of another one's beginning.

    Attributes:
        run_id: Its id.
        at: Up to which position it is the other one.
        summary: What lists show of it.
    """

    run_id: str
    at: int
    summary: bytes


async def load_run_history(
    backend: CheckpointBackend,
    run_id: str,
    codec: Codec,
    kinds: Kinds,
    kind: type[object] | None = None,
    step: AnyStep | None = None,
    *,
    summaries: bool = False,
) -> RunHistory:
    """Read a run's journal, for a state of a type; of the one that the flow's annotations name where none is given.

    Args:
        backend: Where it is kept.
        run_id: The run.
        codec: What reads it.
        kinds: The kinds that its steps may have.
        kind: The type that its state has now.
        step: The flow.
        summaries: Whether summaries may stand for finished rounds of its loops.

    Raises:
        RunNotFound: There is no such run.
        CodecError: The state is of a newer version of that type, or could not be made one of it.
        PluginError: A step is of a kind that no plugin here provides.
    """
    read = partial(_state_type, kind, step)
    # What is signed is read whole and to its end, because each record is checked with those before it.
    entry = None if isinstance(backend, SignedBackend) or is_stream(run_id) else await backend.entry(run_id)
    if entry is None:
        records = await read_journal(backend, run_id, codec)
        return run_history_of(records, kinds, run_id, read(records), codec)
    found = await read_summed_up(backend, entry, codec, kinds, read) if summaries else None
    if found is None:
        records = await read_journal(backend, run_id, codec, upto=entry.position)
        found = run_history_of(records, kinds, run_id, read(records), codec)
    return evolve(found, summary=entry.summary)


def _state_type(
    kind: type[object] | None, step: AnyStep | None, records: Sequence[JournalRecord]
) -> type[object] | None:
    """The type that a run's state has now: the given one, or the class that an annotation of the flow names."""
    begun = records[0] if records else None
    if kind is not None or step is None or not isinstance(begun, RunBegun) or begun.opening is None:
        return kind
    return _declared_state(begun.opening.state, step)


def _declared_state(state: object, step: AnyStep) -> type[object] | None:
    """The class of a stored state, if an annotation of the flow names it."""
    return find_state_type(stored_type(state.tree if isinstance(state, Stored) else state), step)


def find_state_type(name: str, step: AnyStep) -> type[object] | None:
    """The class of this name, if an annotation of the flow names it."""
    return next((kind for kind in known_types(step) if kind.__name__ == name), None)


async def fork_at(backend: CheckpointBackend, run_id: str, new: PlannedFork, state: object) -> None:
    """Make a run that is another one up to a position, with another state when one is given.

    Raises:
        RunNotFound: There is no such run.
        PositionConflict: The position is not the end of a step or of a transaction.
        CodecError: The state cannot be stored.
        ConfigError: It is of another type than the run's; code `"state-type"`.
        TransformMissing: The run was written through a record transform that is not here.
    """
    entry = await backend.entry(run_id)
    refuse_transformed(b"" if entry is None else entry.summary)
    codec = Codec()
    records: list[Record] = []
    ended = await end_at(backend, run_id, new.at)
    waits = ended is not None and ended.status == "suspended"
    if state is not None:
        journal = await read_journal(backend, run_id, PlainCodec())
        records.append(dump_record(replaced(journal[: new.at], KINDS, state, codec), codec))
        if ended is not None and waits:
            # The last record of a run has its open requests.
            records.append(dump_record(ended, codec))
    status = "suspended" if waits else "interrupted"
    fork = partial(backend.fork, run_id, new_run_id=new.run_id, summary=new.summary, status=status)
    try:
        await fork(at=new.at, records=records)
    except PositionConflict:
        last = await backend.read(run_id, after=new.at - 1, limit=1) if new.at > 0 else ()
        if not last or last[0].kind != StepFinished.__name__ or await backend.head(new.run_id) is not None:
            raise
        # Several steps were stored at once: those behind the end of the transaction before are copied.
        between: list[Record] = []
        for at in range(new.at - 1, -1, -1):
            between[:0] = await backend.read(run_id, after=at, limit=1)
            with suppress(PositionConflict):
                return await fork(at=at, records=[*between, *records])
        raise


async def when_free(take: Callable[[], Awaitable[T]], wait: float, runtime: Runtime) -> T:
    """Take a run, and wait for so many seconds when another owner has it.

    Raises:
        RunBusy: It still has it.
    """
    ends = runtime.monotonic() + wait
    pause = _FIRST_PAUSE
    while True:
        try:
            return await take()
        except RunBusy:
            left = ends - runtime.monotonic()
            if left <= 0:
                raise
        await runtime.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)


async def failure_of(backend: CheckpointBackend, run_id: str, status: RunStatus) -> NoeticError:
    """Why a run has no result: what broke it, or how it stands.

    Raises:
        CodecError: Its journal cannot be read.
    """
    journal = await read_journal(backend, run_id, PlainCodec())
    last = journal[-1] if journal else None
    ended = last if isinstance(last, RunEnded) else None
    reason = "it has no end yet" if ended is None or ended.reason is None else ended.reason
    if ended is not None and ended.control is not None and ended.control.error is not None:
        return ended.control.error
    match status:
        case "suspended":
            hint = f"harness.runs.get({run_id!r}).pending, then harness.runs.answer(...)"
            return Suspended(f"run {run_id!r} waits for an answer: {reason}", hint=hint)
        case "failed" | "budget_exceeded":
            errors = [each.error for each in journal if isinstance(each, AttemptFailed) and each.final]
            found = [error for error in errors if error.message == reason]
            return found[-1] if found else NoeticError(reason, hint="harness.resume(...) tries it once more")
        case _:
            return Interrupted(f"run {run_id!r} is {status}: {reason}", hint="harness.resume(...) goes on")


async def go_on(
    run: Run, run_history: RunHistory, step: AnyStep, codec: Codec, storage: RunStorage, options: Any
) -> RunPlan:
    """Acquire a run that was started before, and read what it continues with.

    Raises:
        RunBusy: Another process has the run.
        ReplayDiverged: The step is another one than the run was started with.
        AnswerError: An answer is not taken.
    """
    signals = await received(storage.backend, run.run_id) if _may_have_signals(storage, run_history) else ()
    run_history = heard(run_history, run.run_id, signals)
    if answers := options.get("answers", ()):
        now = await store_time(storage.backend, run.runtime)
        run_history = answer(run_history, run.kinds, run.run_id, answers, now)
    started = run_history.started
    opening = started.opening
    if opening is None or started.flow != step.id:
        raise ReplayDiverged(f"the run was started with step {started.flow!r}, and is resumed with {step.id!r}")
    if run.on_diverge == "fail":
        check(run_history, step)
    # Data of a newer version of the code are refused before the run is changed.
    run_history = evolve(
        run_history, layers=revise_layers(run_history.records, run_history.index, run.resources.layers, codec)
    )
    log, view = await _beginning(started, opening, storage.backend, codec)
    log.origin = (run.run_id, step.id)
    state = opening.state
    tree = state.tree if isinstance(state, Stored) else state
    made = _state(tree, options.get("state_type") or _declared_state(tree, step), codec)
    plan = RunPlan(
        step,
        _input(started, step, codec),
        _scope(log, made, step, view),
        budget_of(opening.budget, options.get("budget")),
        options.get("deadline"),
        opening,
        run_history,
    )
    run.forked = () if started.run_id == run.run_id else await _forked(storage.backend, run.run_id)
    store = _writer(run, storage, codec, step.id, opening.source, position=run_history.position)
    store.read = signals[-1].number if signals else 0
    if storage.reads:
        _continue(run, run_history, store, view, signals)
        return plan
    # Last, so that whatever is wrong with the call leaves the run free.
    lease, head, asked = await _owned(storage, run.run_id)
    try:
        if head is None or head.position != run_history.position:
            raise RunBusy(f"run {run.run_id!r} was written by another owner just now", hint="try again")
        store.own(lease, asked)
        _continue(run, run_history, store, view, signals)
        await _store_first(run, run_history, store)
    except BaseException:
        await release_lease(storage.backend, lease)
        raise
    _log_unknown(run.run_id, run_history)
    return plan


def _may_have_signals(storage: RunStorage, run_history: RunHistory) -> bool:
    """Whether something in a run's inbox may matter to its next owner: answers, or what has woken it in its queue."""
    if storage.claimed is not None:
        # What has come since makes the run ready again when it suspends.
        return storage.claimed.claim.signals
    summary = run_history.summary
    return summary is None or "queue" in summary_fields(summary) or has_open_requests(run_history.index)


async def give_back(backend: CheckpointBackend, run_id: str) -> None:
    """Give back what a run that no process has holds of shared budgets, before it is deleted.

    Raises:
        RunBusy: A process has the run.
    """
    try:
        entry, head = await backend.entry(run_id), await backend.head(run_id)
        held = () if entry is None else await held_by(backend, run_id, entry.summary)
    except (CorruptRecord, RecordRefused, TransformMissing) as error:
        # A run that cannot be read can be deleted all the same.
        text = "what run %s holds of shared budgets is not known, and stays reserved: %s"
        log("runs", WARNING, text, run_id, error.message, where=Where(run_id))
        return
    if held and head is not None:
        given = Transaction(run_id, head.position, head.fence, (), acquire=TTL, release=True, budgets=held)
        await backend.commit([given])


async def _store_first(run: Run, run_history: RunHistory, store: RunWriter) -> None:
    """Store what comes before anything is done: what earlier owners have left of shared budgets, and answers."""
    summary = run_history.summary if store.claimed is not None else None
    if summary is None:
        # An owner that was there when the journal was read may have named more since.
        entry = await store.backend.entry(run.run_id)
        summary = b"" if entry is None else entry.summary
    held = await held_by(store.backend, run.run_id, summary)
    if held:
        await store.change_budgets(lambda: held)
    if run_history.answered:
        await store.commit(run.journal, force=True)


def _continue(run: Run, run_history: RunHistory, store: RunWriter, view: ViewState, signals: Sequence[Signal]) -> None:
    """Let a run continue where its journal ends."""
    ended = run_history.ended
    if ended is not None and ended.control is not None and ended.control.shutdown is not None:
        # It goes on, and so a shutdown has not the last word any more.
        store.set_summary()
    run.keep_in(store)
    take_over(run, run_history)
    if run.children is not None and ended is not None and ended.status == "suspended" and store.claimed is not None:
        # Where an owner was cut off, what it had read may have had no effect, and each child is looked at.
        run.children.ended = frozenset(each.key.removeprefix(ENDED) for each in signals)
    run.views = last_views(run_history.records, view)


async def write_answers(backend: CheckpointBackend, run_id: str, answers: Sequence[Answer], now: datetime) -> None:
    """Commit answers to what a suspended run waits for; it stays suspended until it is resumed.

    A process that has the run at that moment finds them in its inbox.

    Raises:
        RunBusy: Another process has the run, and the backend has no inboxes.
        RunNotFound: There is no such run.
        AnswerError: One is not taken; then none is.
    """

    def made(journal: Sequence[JournalRecord]) -> Sequence[JournalRecord]:
        taken = answers_for(run_id, tree(journal, KINDS), answers, now)
        last = journal[-1] if journal else None
        if taken and (not isinstance(last, RunEnded) or last.status != "suspended"):
            raise RequestNotFound(f"run {run_id!r} is not suspended", hint="look at harness.runs.get(run_id).status")
        if not taken:
            return ()
        still = open_requests([*journal, *taken], KINDS)
        return [*taken, RunEnded((), "suspended", summary_of(list(still.values())), None, tuple(still))]

    try:
        await write_without_owner(backend, run_id, made)
    except RunBusy:
        if not await send_answers(backend, run_id, answers, now):
            raise


async def write_without_owner(
    backend: CheckpointBackend,
    run_id: str,
    made: Callable[[Sequence[JournalRecord]], Sequence[JournalRecord]],
    status: RunStatus | None = None,
) -> None:
    """Write to a run that no process has, in one commit: where nothing is written, no owner loses the run.

    Args:
        backend: Where it is kept.
        run_id: The run.
        made: What to write behind its journal; nothing, or what it raises, leaves the run as it is.
        status: Its new status.

    Raises:
        RunBusy: A process has the run, or has written it meanwhile.
        RunNotFound: There is no such run.
    """
    entry = await backend.entry(run_id)
    if entry is None:
        raise no_run(run_id)
    if entry.held:
        raise is_owned("its lease to run out")
    codec = PlainCodec()
    journal = await read_journal(backend, run_id, codec)
    records = [dump_record(each, codec) for each in made(journal)]
    if not records:
        return
    queue = summary_fields(entry.summary).get("queue")
    ended = queue is not None and status in OVER
    # A worker goes on with a run that came out of a queue.
    signals = [Signal(run_id, "written", b"")] if queue is not None and not ended else []
    if ended:
        signals += ended_signals(run_id, parent_in(entry.summary))
    # What its last owner holds of shared budgets ends with the run; nothing has come after that one.
    head = await backend.head(run_id) if status in OVER else None
    held = () if head is None else await held_by(backend, run_id, entry.summary)
    given = Transaction(
        run_id,
        len(journal),
        head.fence if held and head is not None else 0,
        records,
        summary=out_of_queue(entry.summary) if ended else None,
        status=status,
        acquire=TTL,
        release=True,
        signals=signals,
        ended=ended,
        budgets=held,
    )
    try:
        await backend.commit([given])
    except (PositionConflict, LeaseLost) as error:
        raise RunBusy(f"run {run_id!r} was written by another owner just now", hint="try again") from error


def out_of_queue(summary: bytes) -> bytes:
    """The summary of a run that no worker is to claim any more."""
    return json.dumps({name: value for name, value in summary_fields(summary).items() if name != "queue"}).encode()


def _scope(log: ItemLog, state: object, step: AnyStep, view: ViewState) -> ContextScope:
    scope = ContextScope(log, state, step.id)
    scope.view = Recorded(None, view) if view else None
    return scope


async def _beginning(
    started: RunBegun, opening: Opening, backend: CheckpointBackend, codec: Codec
) -> tuple[ItemLog, ViewState]:
    """The conversation that a run began with, and how a model had been shown it.

    Raises:
        RunNotFound: The session that it was a turn of was deleted.
    """
    base = opening.base
    if base is None or base.position < 0:
        log = ItemLog()
        log.put(opening.items, opening.origins)
        return log, opening.view
    stream = stream_of((base.app, base.user, base.session))
    found = await read_conversation(backend, stream, codec, upto=base.position)
    # The last record there says that this turn begins, or another session has the name by now.
    if found.open is None or found.open.run_id != started.run_id:
        raise RunNotFound(
            f"run {started.run_id!r} was a turn of a session that no longer exists",
            hint="its input was deleted with the session",
        )
    return found.log, found.view


def left_view(run_history: RunHistory, begun: ViewState) -> ViewState:
    """How a model was shown the conversation last in a run without an end, or before it."""
    paths = [part.view for part in visible(run_history.index) if part.view is not None]
    return last_views(run_history.records, begun)[paths[-1]] if paths else begun


def left_of(run_history: RunHistory) -> tuple[list[Item], list[Change], StoredState]:
    """The items and state changes of a run without an end, and the state it began with."""
    own = visible(run_history.index)
    opening = run_history.started.opening
    stored = None if opening is None else opening.state
    tree = stored.tree if isinstance(stored, Stored) else stored
    begun = StoredState(tree, field_trees(tree), 1 if opening is None else opening.version)
    return [item for each in own for item in each.items], [change for each in own for change in each.delta], begun


def _log_unknown(run_id: str, run_history: RunHistory) -> None:
    """Log which extension items are of unknown types: they are kept, and steps that look for them find none."""
    parts = [getattr(record, "items", ()) for record in run_history.records]
    opening = run_history.started.opening
    items = chain(() if opening is None else opening.items, *parts)
    types = sorted({item.type for item in items if isinstance(item, Opaque) and ":" in item.type})
    if types:
        log(
            "checkpoints",
            WARNING,
            "run %s holds items of %s, which no plugin here has registered: they are kept as they are",
            run_id,
            ", ".join(types),
            where=Where(run_id),
        )


def _state(tree: object, kind: type[object] | None, codec: Codec) -> object:
    """The state that a run began with.

    Raises:
        ConfigError: It is of an unknown type; code `"state-type"`.
        CodecError: It is not of that type.
    """
    if kind is not None:
        return kind(codec.decode(tree)) if issubclass(kind, StateBag) else decoded(tree, kind, codec)
    name = stored_type(tree)
    if name == "dict":
        return StateBag(codec.decode(tree))
    raise ConfigError(
        f"the run's state is {with_article(name)}, and the record does not name its module",
        code="state-type",
        hint=f"resume(..., state_type={name})",
    )


def _as_read(plan: RunPlan, tree: object, codec: Codec) -> Any:
    """The input as a process that resumes the run reads it.

    Raises:
        CodecError: It can be stored, and not be read back.
    """
    value = plan.value
    if isinstance(value, ItemBase) or (is_array(value) and all(isinstance(each, ItemBase) for each in value)):
        # Items do not change, and whether they may come in is decided where the conversation takes them.
        return copy_value(value)
    try:
        return one_value(value, read_as(declared_input(plan.step), tree, codec), tree)
    except CodecError as error:
        raise inside(unreadable(error), "input") from error


def _input(started: RunBegun, step: AnyStep, codec: Codec) -> object:
    value = started.input
    return read_as(declared_input(step), value.tree, codec) if isinstance(value, Stored) else value


async def with_heartbeat(run: Run, work: Callable[[], Awaitable[AnyResult]]) -> AnyResult:
    """Do the work, and renew the run's lease meanwhile."""
    from noetic_py.runner.stop_requests import hear

    if run.store is None:
        return await work()
    return await beside(partial(run.store.beat, partial(hear, run)), work)


async def beside(beat: Callable[[], Coroutine[object, object, None]], work: Callable[[], Awaitable[T]]) -> T:
    """Do the work with an endless task beside it."""
    result: list[T] = []
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        try:
            result.append(await work())
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 # raised below, outside the group, which would wrap it
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result[0]
