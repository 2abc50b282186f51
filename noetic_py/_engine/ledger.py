"""Writing the journal: what a step commits, and what its ancestors in flight had not written before.

Every function here is one synchronous section, so a transaction is composed in the moment in which it is appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py._engine import custody
from noetic_py._engine.frame import NO_ITEMS, Frame
from noetic_py._engine.progress import forget
from noetic_py.checkpoints.delta import changes, known_fields
from noetic_py.checkpoints.records import Decision, Segment, StepFailed, StepFinished, StepOpened, StepStopped, Voided
from noetic_py.errors import CodecError, LimitExceeded, NoeticError, StepOutcomeUnknown
from noetic_py.events import ItemsAppended, StepCommitted, StepVoided
from noetic_py.state import copy_state

if TYPE_CHECKING:
    from noetic_py._engine.state import Run
    from noetic_py.checkpoints.records import Change, Intent, JournalRecord, LayerDeltas, Path
    from noetic_py.items import Item

__all__ = [
    "capture",
    "capture_cells",
    "close_segment",
    "decided",
    "failed",
    "finished",
    "flush",
    "note_outcome",
    "parked",
    "prepare",
    "remember",
    "returned",
    "stopped",
    "voided",
]


def close_segment(frame: Frame) -> None:
    """A child is about to start, and the body has appended something: that is a segment of its own."""
    log = frame.domain.log
    items = log.since(frame.mark)
    known, stored = frame.domain.known, frame.domain.stored
    delta = capture(frame)
    memory = capture_cells(frame)
    if not items and not delta and not memory:
        return
    segment = Segment(frame.at, frame.attempt, items, delta, memory)
    try:
        prepare(frame, segment)
    except NoeticError:
        frame.domain.known, frame.domain.stored = known, stored
        raise
    frame.mark = log.size
    frame.clean = False
    if frame.segments is None:
        frame.segments = [segment]
    else:
        frame.segments.append(segment)


def prepare(frame: Frame, record: JournalRecord) -> None:
    """Encode a record of a durable run before it is appended, so that what cannot be stored fails the step.

    Raises:
        CodecError: It cannot be stored.
        LimitExceeded: It is too large.
    """
    store = frame.x.run.store
    if store is not None:
        try:
            store.prepare(record)
        except (CodecError, LimitExceeded) as error:
            error.at(frame.at)
            raise


def voided(run: Run, path: Path) -> None:
    """Write that a finished step is void: the run goes on with other code, or another input, than it had."""
    run.journal.append(Voided(path))
    forget(run, path)


def decided(frame: Frame, key: str, value: object) -> None:
    """Write what a function has decided for a step.

    Raises:
        CodecError: It cannot be stored.
    """
    record = Decision(frame.at, key, value)
    prepare(frame, record)
    frame.x.run.journal.append(record)


def capture(frame: Frame) -> tuple[Change, ...]:
    """How the body has changed the state since that was stored last, in a durable run.

    Raises:
        CodecError: The state cannot be stored.
    """
    store = frame.x.run.store
    if store is None or not frame.touched:
        return ()
    domain = frame.domain
    try:
        now = known_fields(domain.state, store.codec)
    except CodecError as error:
        error.at(frame.at)
        raise
    delta = changes(domain.known or {}, now)
    domain.known = now
    return delta


def capture_cells(frame: Frame) -> LayerDeltas:
    """How the body has changed the states of layers since they were stored last, in a durable run.

    Raises:
        CodecError: A state cannot be stored.
    """
    store, domain = frame.x.run.store, frame.domain
    if store is None or not frame.touched or domain.stored is None or domain.stored.cells is domain.cells:
        return ()
    try:
        deltas, domain.stored = domain.stored.changes(domain.cells, store.codec)
    except CodecError as error:
        error.at(frame.at)
        raise
    return deltas


def returned(frame: Frame, length: int) -> None:
    """A child has committed: all that the body did before is written, and what comes now is a new segment."""
    frame.mark = frame.written = length
    if frame.touched:
        frame.saved = copy_state(frame.domain.state)
        frame.saved_cells = frame.domain.cells
        frame.clean = False


def remember(frame: Frame) -> None:
    """All that a body did is written, and it goes on: it may still hold the state, so what that is now is noted now."""
    if frame.touched and frame.clean:
        frame.saved = copy_state(frame.domain.state)
        frame.saved_cells = frame.domain.cells
        frame.clean = False


def flush(frame: Frame | None) -> None:
    """Write what a frame and its ancestors have not written, outermost first; above a clean frame all are clean."""
    if frame is None or (frame.clean and frame.opened):
        return
    flush(frame.up)
    journal = frame.x.run.journal
    if not frame.opened:
        frame.opened = True
        if not frame.virtual:
            store = frame.x.run.store
            fence = 0 if store is None else store.fence
            journal.append(StepOpened(frame.at, frame.step.kind, frame.attempt, fence))
    segments = frame.segments
    if segments is not None:
        journal.extend(segments)
        frame.segments = None
        if frame.x.run.bus.active:
            for segment in segments:
                if segment.items:
                    frame.tell(ItemsAppended(frame.at, segment.items))
    frame.written = frame.mark
    frame.clean = True


def _last_segment(frame: Frame) -> tuple[Item, ...]:
    items = frame.domain.log.since(frame.mark)
    segments = frame.segments
    if segments is not None:
        # Closed before a child that wrote nothing: it goes into this record together with the last one.
        for earlier in reversed(segments):
            items = earlier.items + items
    return items


def finished(frame: Frame, value: object, output: object, length: int) -> None:
    """Commit a step that is done; `length` is its log's, now."""
    run = frame.x.run
    parent = frame.up
    if parent is not None and not (parent.clean and parent.opened):
        flush(parent)
    step = frame.step
    if frame.prepared is not None:
        _append_prepared(frame, frame.prepared)
        return
    record = StepFinished(frame.at, step.kind, value if step.bound is None else step.bound.value, output)
    if length != frame.mark or frame.segments is not None:
        record.items = _last_segment(frame)
    if frame.noted:
        record.attempt = frame.attempt
        record.usage = frame.used_tokens
        record.cost = frame.used_cost
        record.control = frame.control
        record.winner = frame.winner
        record.calls = frame.used_calls
        record.tool = frame.used_tool
        if run.custody is not None:
            custody.release(run, frame)
    run.journal.append(record)
    if run.bus.active:
        _tell_finished(frame, record)


def _append_prepared(frame: Frame, record: StepFinished) -> None:
    run = frame.x.run
    if run.custody is not None:
        custody.release(run, frame)
    # Whoever hears where the step was committed can fork there: it is the last record of it.
    run.settle()
    run.journal.append(record)
    if frame.at in run.once:
        note_outcome(run.once, record)
    if run.bus.active:
        _tell_finished(frame, record)


def note_outcome(once: dict[Path, Intent | StepFinished | StepFailed], record: StepFinished | StepFailed) -> None:
    """Note what became of a step that may run only once: a failed attempt that another one follows is none."""
    if isinstance(record, StepFinished) or (record.final and not isinstance(record.error, StepOutcomeUnknown)):
        once[record.path] = record
    elif not record.final:
        once.pop(record.path, None)


def _tell_finished(frame: Frame, record: StepFinished) -> None:
    run = frame.x.run
    if record.items:
        frame.tell(ItemsAppended(frame.at, record.items))
    frame.tell(StepCommitted(frame.at, record.kind, len(run.journal)))


def failed(frame: Frame, error: NoeticError, *, final: bool) -> None:
    """Commit an attempt that failed, before anybody reacts to it."""
    run = frame.x.run
    if run.custody is not None:
        custody.give_back(run, frame.at, below=not final)
        if final:
            custody.release(run, frame)
    if run.progress and not final:
        forget(run, frame.at)
    record = StepFailed(
        frame.at, frame.step.kind, frame.attempt, final, error, frame.used_tokens, frame.used_cost, frame.control,
        frame.used_calls, frame.used_tool,
    )  # fmt: skip
    run.journal.append(record)
    if frame.at in run.once:
        note_outcome(run.once, record)
    if run.bus.active:
        frame.tell(StepVoided(frame.at, frame.attempt, str(error), final))


def stopped(frame: Frame) -> None:
    """Write what a cancelled attempt used; its own work, and its ancestors', only when it asked for the stop itself."""
    run = frame.x.run
    kept = NO_ITEMS
    if run.custody is not None:
        if frame.control is None:
            custody.give_back(run, frame.at, below=False)
        custody.release(run, frame)
    if frame.control is not None:
        if run.store is not None:
            _keep_what_can_be(frame)
            flush(frame)
        else:
            kept = _last_segment(frame)
        flush(frame.up)
    elif frame.step.kind == "answer" and (partial := run.shutdown) is not None:
        # Whoever goes on asks again. Until then the conversation shows what was asked, and how far the answer had come.
        kept = frame.heard if partial == "save" else NO_ITEMS
        flush(frame.up)
    used = frame.used_tokens is not None or frame.used_cost is not None
    if frame.control is not None or kept or used or (run.store is not None and _counts(frame)):
        record = StepStopped(
            frame.at, frame.step.kind, frame.attempt, kept, frame.used_tokens, frame.used_cost, frame.control, (),
            frame.used_calls, frame.used_tool, tuple(frame.takes or ()) if frame.control is not None else (),
        )  # fmt: skip
        run.journal.append(record)
    if run.bus.active:
        if kept:
            frame.tell(ItemsAppended(frame.at, kept))
        frame.tell(StepVoided(frame.at, frame.attempt, "stopped", True))


def parked(frame: Frame) -> None:
    """A step waits for an answer: that is no attempt, and not written; what its body has taken goes back."""
    run = frame.x.run
    around = frame.up or frame
    frame.parks = around.parks = True
    if run.custody is not None:
        custody.give_back(run, frame.at, below=False)
        custody.release(run, frame)


def _keep_what_can_be(frame: Frame) -> None:
    """The body's own work as a segment; what cannot be stored is not kept, for the stop has no room for a failure."""
    try:
        close_segment(frame)
    except (CodecError, LimitExceeded):
        frame.drop_unwritten()


def _counts(frame: Frame) -> bool:
    """Whether the attempt counts against a budget, so that it has to be known after a crash."""
    return frame.step.counted or frame.used_calls > 0 or frame.used_tool is not None
