"""From a finished step to its record, with what its ancestors in flight had not written.

A body that has ended goes through this file from the top: `encode_finished` makes the record and what others read of
it, and `finished` appends it. `RunWriter.commit` (`journaling/writer.py`) stores what was appended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint as let_others_run
from attrs import evolve

from noetic_py import errors
from noetic_py.context.step import AnyStep
from noetic_py.core.codec import Codec
from noetic_py.core.codec.stored import unreadable
from noetic_py.core.codec.structure import dump, inside
from noetic_py.core.events import ItemsAppended, StepCommitted, StepDiscarded
from noetic_py.core.state import SavedState
from noetic_py.core.values import ATOMS, separate_state
from noetic_py.engine.fingerprint import declared_input, declared_output, fingerprint, known_types, one_value, read_as
from noetic_py.engine.frame import NO_ITEMS, Frame, acting, settle_cuts
from noetic_py.engine.journaling import deliveries
from noetic_py.engine.journaling.fold import BEGUN
from noetic_py.engine.kind import BodySegment, Kind
from noetic_py.engine.progress import forget
from noetic_py.journal import patches, values
from noetic_py.journal.records import (
    AttemptFailed,
    Decision,
    Intent,
    JournalRecord,
    ResultDiscarded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
)
from noetic_py.steps.handoff import HandoffOutput, HandoffSourceSpec

if TYPE_CHECKING:
    from noetic_py.core.budget import BudgetLease
    from noetic_py.core.items import Item
    from noetic_py.engine.journaling.writer import RunWriter
    from noetic_py.engine.state import Execution, RecordedUsage, Run


def packed(output: object) -> object:
    """The stored output of a step that may hand over."""
    to, given = (output.step, output.input) if isinstance(output, HandoffOutput) else (None, output)
    return {"to": to, "value": given}


def read_output(kind: Kind, output: values.Stored, step: AnyStep, codec: Codec) -> object:
    """An output from its stored form."""
    return _handed(output, step, codec) if kind.hands_over else read_value(output, step, codec)


def _handed(output: values.Stored, step: AnyStep, codec: Codec) -> object:
    """The output of a step that may hand over."""
    to, value = output.tree["to"], values.Stored(output.tree["value"])
    if to is None:
        return read_value(value, step, codec)
    spec: object = step.spec
    target = spec.targets.steps().get(to) if isinstance(spec, HandoffSourceSpec) else None
    return HandoffOutput(to, read_as(object if target is None else declared_input(target), value.tree, codec))


def read_value(value: values.Stored, step: AnyStep, codec: Codec) -> object:
    """A step's output from its stored form. A section may have steps inside that the flow does not declare."""
    kind = declared_output(step)
    try:
        return read_as(kind, value.tree, codec)
    except errors.CodecError:
        inner = known_types(step)
        if not inner:
            raise
        return read_as(kind, value.tree, Codec(inner))


NO_TREE: Any = object()
"""There is no stored form of its own: the output stands in another record."""


# ------------------------------------------------------------------------------------------------------ a finished step


def encode_finished(frame: Frame, store: RunWriter, value: object, output: object) -> object:
    """A body is done: make its record, and encode it, so that what cannot be stored is this step's failure.

    Returns:
        The output as the step hands it on: what a process that resumes the run reads from the record.

    Raises:
        CodecError: Its output, an item or its state cannot be stored, or not be read back.
    """
    step = frame.step
    if frame.segments is not None:
        flush(frame)
    record = StepFinished(frame.at, step.kind, None, None)
    tree: object = NO_TREE
    record.items = frame.scope.log.since(frame.mark)
    try:
        record.delta = capture(frame)
        record.memory = capture_layer_states(frame)
        record.fingerprint = fingerprint(step) if frame.kind.declared else ""
        record.digest = frame.digest
        record.output, output, tree = _output(frame, value, output, store.codec)
        note_used(record, frame)
        record.takes = tuple(frame.takes or ())
        record.loop_stops = _asked_of_loops(frame)
        record.cut = cut_loops(frame) if record.loop_stops else ()
        record.view = frame.view_change
        store.prepare(record)
    except (errors.CodecError, errors.LimitExceeded) as error:
        error.at(frame.at)
        raise
    # Others in this process read the value itself.
    frame.prepared = record
    # A step has a parent, be it the head of its execution.
    (frame if frame.up is None else frame.up).last_output = (frame.at[-1], output, tree)
    return output


def _output(frame: Frame, value: object, output: object, codec: Codec) -> tuple[Any, Any, Any]:
    """The output to store (a reference if it is stored elsewhere), the value to return, and its stored form.

    Raises:
        CodecError: It cannot be stored, or not be read back.
    """
    step, kind = frame.step, frame.kind
    if not kind.stored:
        return None, output, NO_TREE
    if kind.dump is not None:
        return kind.dump(value, output), output, NO_TREE
    last = frame.last_output
    if last is not None and output is not None and last[1] is output and _unchanged(step, last, codec):
        return (
            values.SameAsChild(last[0]),
            output if step.body is None else _own(frame, output, last[2], codec),
            last[2],
        )
    try:
        tree = codec.encode(packed(output) if kind.hands_over else output)
    except errors.CodecError as error:
        raise inside(error, "output") from error
    return None if output is None else values.Stored(tree), _own(frame, output, tree, codec), tree


def _unchanged(step: AnyStep, last: tuple[str, object, object], codec: Codec) -> bool:
    """Whether an output that is a child's is still what the child gave: a body may have changed it."""
    _, output, tree = last
    if step.body is None or output.__class__ in ATOMS:
        return True
    return tree is not NO_TREE and dump(codec.encode(output)) == dump(tree)


def _own(frame: Frame, output: object, tree: object, codec: Codec) -> object:
    """An output as it is read from its record, so that every process goes on with the same value.

    Raises:
        CodecError: It cannot be read back.
    """
    if output.__class__ in ATOMS or tree is NO_TREE:
        return output
    try:
        read = read_output(frame.kind, values.Stored(tree), frame.step, codec)
    except errors.CodecError as error:
        raise inside(unreadable(error), "output") from error
    return one_value(output, read, tree)


def _asked_of_loops(frame: Frame) -> tuple[tuple[values.Path, object], ...]:
    """The last request of a step, or of steps below it, to each loop and each handoff around it."""
    found: list[tuple[values.Path, object]] = []
    node = frame.up
    while node is not None:
        asked = [value for value, path in node.loop_stops or () if path[: len(frame.at)] == frame.at]
        if asked:
            value = asked[-1]
            found.append((node.at, packed(value) if node.kind.hands_over else value))
        node = node.up
    return tuple(found)


def cut_loops(frame: Frame) -> tuple[values.Path, ...]:
    """The loops that are to end in the middle of the round because a step, or one below it, has asked for it."""
    found: list[values.Path] = []
    node = frame.up
    while node is not None:
        asked = any(path[: len(frame.at)] == frame.at for _, path in node.loop_stops or ())
        if asked and node.cut is not None:
            found.append(node.at)
        node = node.up
    return tuple(found)


def note_used(record: StepFinished, frame: Frame) -> None:
    """Put into the record of a step what the engine has noted of it while it ran."""
    record.attempt = frame.attempt
    record.usage = frame.used_tokens
    record.cost = frame.used_cost
    record.control = frame.control
    record.winner = frame.winner
    record.calls = frame.used_calls
    record.tool = frame.used_tool
    record.tool_error = frame.tool_error


def finished(frame: Frame, value: object, output: object, length: int) -> None:
    """Commit a step that is done; `length` is its log's, now."""
    run = frame.x.run
    parent = frame.up
    if parent is not None and not (parent.clean and parent.opened):
        flush(parent)
    step = frame.step
    if run.in_flight:
        run.in_flight.discard((frame.at, frame.attempt))
        if parent is not None and parent.ends_by == "race":
            _note_begun(parent, frame)
    if run.unacknowledged and frame.noted:
        deliveries.release(run, frame)
    if frame.prepared is not None:
        _append_prepared(frame, frame.prepared)
        return
    record = StepFinished(frame.at, step.kind, value if step.bound is None else step.bound.value, output)
    if length != frame.mark or frame.segments is not None:
        record.items = _last_segment(frame)
    if frame.noted:
        note_used(record, frame)
    run.journal.append(record)
    if run.bus.active:
        _publish_finished(frame, record)


def _append_prepared(frame: Frame, record: StepFinished) -> None:
    run = frame.x.run
    # The position of the step's commit can be forked at: it is the last record of it.
    run.settle()
    run.journal.append(record)
    if frame.at in run.once:
        note_outcome(run.once, record)
    if run.bus.active:
        _publish_finished(frame, record)


def _note_begun(section: Frame, path: Frame) -> None:
    """A path decides how its section ends: a later process starts no other one, and counts what has begun in them."""
    run, depth = section.x.run, len(section.at)
    others = [
        [list(at), attempt] for at, attempt in run.in_flight if at[:depth] == section.at and at[: depth + 1] != path.at
    ]
    if others:
        run.journal.append(Decision(section.at, BEGUN, sorted(others)))


def _publish_finished(frame: Frame, record: StepFinished) -> None:
    run = frame.x.run
    if record.items:
        frame.publish(ItemsAppended(frame.at, record.items))
    frame.publish(StepCommitted(frame.at, record.kind, run.position))


def _last_segment(frame: Frame) -> tuple[Item, ...]:
    items = frame.scope.log.since(frame.mark)
    segments = frame.segments
    if segments is not None:
        # Closed before a child that wrote nothing: it goes into this record together with the last one.
        for earlier in reversed(segments):
            items = earlier.items + items
    return items


# ---------------------------------------------------------------------------------------------- what is not written yet


def close_segment(frame: Frame) -> None:
    """A child is about to start, and the body has appended something: that is a segment of its own."""
    log = frame.scope.log
    items = log.since(frame.mark)
    known, stored = frame.scope.known, frame.scope.stored
    delta = capture(frame)
    memory = capture_layer_states(frame)
    if not items and not delta and not memory:
        return
    segment = Segment(frame.at, frame.attempt, items, delta, memory)
    try:
        prepare(frame, segment)
    except errors.NoeticError:
        frame.scope.known, frame.scope.stored = known, stored
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
        except (errors.CodecError, errors.LimitExceeded) as error:
            error.at(frame.at)
            raise


def discarded(run: Run, path: values.Path) -> None:
    """Record that the result of a finished step is discarded: its code or its input has changed."""
    run.journal.append(ResultDiscarded(path))
    _count_anew(run, path)
    forget(run, path)


def _count_anew(run: Run, path: values.Path) -> None:
    """Discard what an earlier process has begun there: what begins there now is another step."""
    run.begun = {each for each in run.begun if each[0][: len(path)] != path}


def decided(frame: Frame, key: str, value: object) -> None:
    """Write what a function has decided for a step.

    Raises:
        CodecError: It cannot be stored.
    """
    record = Decision(frame.at, key, value)
    store = frame.x.run.store
    if store is not None and value.__class__ not in ATOMS:
        try:
            store.codec.require_readable(store.codec.encode(value))
        except errors.CodecError as error:
            raise inside(error, key.partition("[")[0]).at(frame.at) from error
    prepare(frame, record)
    frame.x.run.journal.append(record)


def capture(frame: Frame) -> tuple[patches.Change, ...]:
    """How the body has changed the state since that was stored last, in a durable run.

    Raises:
        CodecError: The state cannot be stored.
        LimitExceeded: It is nested too deep.
    """
    store = frame.x.run.store
    scope = frame.scope
    if frame.touched:
        separate_state(scope.state)
    if store is None or not frame.touched:
        return ()
    try:
        now = patches.known_fields(scope.state, store.codec)
        delta = patches.changes(scope.known or {}, now)
        patches.require_readable(scope.state, delta, now, store.codec)
    except errors.CodecError as error:
        error.at(frame.at)
        raise
    scope.known = now
    return delta


def capture_layer_states(frame: Frame) -> values.LayerDeltas:
    """How the body has changed the states of layers since they were stored last, in a durable run.

    Raises:
        CodecError: A state cannot be stored.
    """
    store, scope = frame.x.run.store, frame.scope
    if store is None or not frame.touched or scope.stored is None or scope.stored.layer_states is scope.layer_states:
        return ()
    try:
        deltas, after = scope.stored.changes(scope.layer_states, store.codec)
        for layer, delta in deltas:
            kind = frame.x.layers.state_type(layer)
            patches.require_readable(
                scope.layer_states.get(layer),
                delta,
                after.form(layer, store.codec),
                store.codec,
                declared=kind,
                where=f"memory.{layer}",
            )
    except errors.CodecError as error:
        error.at(frame.at)
        raise
    scope.stored = after
    return deltas


def returned(frame: Frame, length: int) -> None:
    """A child has committed: all that the body did before is written, and what comes now is a new segment."""
    frame.mark = frame.written = length
    if frame.touched:
        frame.saved = SavedState(frame.scope.state)
        frame.saved_layer_states = frame.scope.layer_states
        frame.clean = False


def remember(frame: Frame) -> None:
    """All that a body did is written, and it goes on: it may still hold the state, so what that is now is noted now."""
    if frame.touched and frame.clean:
        frame.saved = SavedState(frame.scope.state)
        frame.saved_layer_states = frame.scope.layer_states
        frame.clean = False


def write_down(frame: Frame) -> None:
    """Write what a body, and those around it, have done so far; it goes on, and what comes now is a new segment.

    Raises:
        CodecError: An item or the state cannot be stored.
    """
    close_segment(frame)
    flush(frame)
    returned(frame, frame.log.size)


def holds_state(frame: Frame | None) -> bool:
    """Whether a body, or one around it, may have changed the state and has not written that."""
    while frame is not None and not (frame.clean and frame.opened):
        if frame.touched and not frame.clean:
            return True
        frame = frame.up
    return False


def write_items_down(frame: Frame) -> None:
    """Write the items of a body that ends without a result, and those before them; changes of states stay unwritten."""
    _keep_what_can_be(frame)
    flush_items(frame, frame.at)


def flush_items(frame: Frame | None, path: values.Path) -> None:
    """Write the items that a frame and its ancestors have not written, outermost first.

    Args:
        frame: The frame.
        path: The step that it is done for, which gets its place before the changes of states are written.
    """
    if frame is None or (frame.clean and frame.opened):
        return
    flush_items(frame.up, path)
    child = next(iter(path[len(frame.at) :]), None)
    again = child is not None and _has_written_changes(frame, child)
    held: list[Segment] = []
    if not again:
        segments = frame.segments or []
        held = [evolve(each, items=NO_ITEMS, before=child) for each in segments if each.delta or each.memory]
        frame.segments = [Segment(each.path, each.attempt, each.items) for each in segments if each.items] or None
    _flush_own(frame)
    frame.segments = held or None
    # Unwritten changes here and around are written before anything below is committed.
    frame.clean = (again or not frame.touched) and (frame.up is None or frame.up.clean)


def _has_written_changes(frame: Frame, child: str) -> bool:
    """Whether an earlier process has written what the body had changed before a child, so that it is shown since then.

    It is written again then, even if the work that it was written for, beside a failure, is not done again.
    """
    known = None if frame.node is None else frame.node.children.get(child)
    if frame.node is None or known is None or not known.placed:
        return False
    for entry in reversed(frame.node.layout[: frame.node.layout.index(known)]):
        if not isinstance(entry, BodySegment):
            return False
        if entry.delta or entry.memory:
            return True
    return False


def flush(frame: Frame | None) -> None:
    """Write what a frame and its ancestors have not written, outermost first; above a clean frame all are clean."""
    if frame is None or (frame.clean and frame.opened):
        return
    flush(frame.up)
    _flush_own(frame)


def _flush_own(frame: Frame) -> None:
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
                    frame.publish(ItemsAppended(frame.at, segment.items))
    frame.written = frame.mark
    frame.clean = True


def note_outcome(
    once: dict[values.Path, Intent | StepFinished | AttemptFailed], record: StepFinished | AttemptFailed
) -> None:
    """Note what became of a step that may run only once: a failed attempt that another one follows is none."""
    if isinstance(record, StepFinished) or (record.final and not isinstance(record.error, errors.StepOutcomeUnknown)):
        once[record.path] = record
    elif not record.final:
        once.pop(record.path, None)


def failed(frame: Frame, error: errors.NoeticError, *, final: bool) -> None:
    """Commit a failed attempt before any step reacts to it."""
    run = frame.x.run
    deliveries.nack(run, frame.at, below=not final)
    if final:
        deliveries.release(run, frame)
    if run.progress and not final:
        forget(run, frame.at)
    record = AttemptFailed(
        frame.at, frame.step.kind, frame.attempt, final, error, frame.used_tokens, frame.used_cost, frame.control,
        frame.used_calls, frame.used_tool, _is_held(frame),
    )  # fmt: skip
    run.in_flight.discard((frame.at, frame.attempt))
    if final and run.in_flight and frame.up is not None and frame.up.ends_by == "all":
        _note_begun(frame.up, frame)
    run.journal.append(record)
    if not final:
        _count_anew(run, frame.at)
    if frame.at in run.once:
        note_outcome(run.once, record)
    if run.bus.active:
        frame.publish(StepDiscarded(frame.at, frame.attempt, str(error), final))


def _is_held(frame: Frame) -> bool:
    """Whether an attempt had something written, without what bodies around it had done to the state."""
    return frame.up is not None and (frame.opened or frame.node is not None) and frame.up.holds_changes()


def stopped(frame: Frame) -> None:
    """Write what a cancelled attempt used; its own work, and its ancestors', only when it asked for the stop itself."""
    run = frame.x.run
    run.in_flight.discard((frame.at, frame.attempt))
    kept = NO_ITEMS
    if frame.control is None:
        deliveries.nack(run, frame.at, below=False)
    deliveries.release(run, frame)
    if frame.control is not None:
        if run.store is not None:
            _keep_what_can_be(frame)
            flush(frame)
        else:
            kept = _last_segment(frame)
        flush(frame.up)
    elif frame.kind.part and (partial := run.shutdown) is not None:
        # A resumed run asks again. Until then the conversation shows what was asked, and how far the answer had come.
        kept = frame.heard if partial == "save" else NO_ITEMS
        flush(frame.up)
    if frame.control is not None or kept or _counts(frame):
        record = StepStopped(
            frame.at, frame.step.kind, frame.attempt, kept, (), frame.used_tokens, frame.used_cost, frame.control,
            takes=tuple(frame.takes or ()) if frame.control is not None else (),
            calls=frame.used_calls, tool=frame.used_tool,
        )  # fmt: skip
        run.journal.append(record)
    if run.bus.active:
        if kept:
            frame.publish(ItemsAppended(frame.at, kept))
        frame.publish(StepDiscarded(frame.at, frame.attempt, "stopped", True))


def waiting(frame: Frame) -> None:
    """A step waits for an answer: that is not an attempt, and not written; what its body has taken goes back."""
    run = frame.x.run
    run.in_flight.discard((frame.at, frame.attempt))
    around = frame.up or frame
    frame.waits_below = around.waits_below = True
    deliveries.nack(run, frame.at, below=False)
    deliveries.release(run, frame)


def _keep_what_can_be(frame: Frame) -> None:
    """The body's own work as a segment; what cannot be stored is not kept, for the stop has no room for a failure."""
    try:
        close_segment(frame)
    except (errors.CodecError, errors.LimitExceeded):
        frame.drop_unwritten()


def _counts(frame: Frame) -> bool:
    """Whether the attempt counts against a budget, so that it has to be known after a crash."""
    return frame.step.counted or frame.used_calls > 0 or frame.used_tool is not None


def recover(run: Run, lease: BudgetLease, path: tuple[str, ...], *, attempts: bool = True) -> None:
    """Charge a lease with what the steps below a path had used before this process had the run.

    Args:
        run: The run.
        lease: The lease.
        path: Whose it is.
        attempts: Whether it holds for all attempts of that step, or for one.
    """
    for usage in _charged(run, path, attempts):
        lease.recover(usage.used, usage.steps, usage.tool)
    for at, limits in run.children.kept.items() if run.children is not None else ():
        if at[: len(path)] == path:
            lease.keep(limits)


def _charged(run: Run, path: values.Path, attempts: bool) -> Iterator[RecordedUsage]:
    depth = len(path)
    for usage in run.recorded_usage:
        below = usage.path[:depth] == path and len(usage.path) > depth
        if below and (usage.discarded is None or depth < usage.discarded or (attempts and depth == usage.discarded)):
            yield usage


def recover_wrap_up(run: Run, lease: BudgetLease, path: tuple[str, ...]) -> None:
    """Charge the lease of a wrap-up with what the wrap-up had used before this process had the run.

    Args:
        run: The run.
        lease: The lease.
        path: The step that is wrapped up.
    """
    depth = len(path)
    for usage in _charged(run, path, False):
        if usage.path[depth] == "wrap_up" and usage.discarded != depth + 1:
            lease.recover(usage.used, usage.steps, usage.tool)
    lease.begin_again()


def count_turns(x: Execution, path: tuple[str, ...]) -> None:
    """Count the model calls that an execution had made before this process had the run."""
    x.turns += sum(spent.used.model_calls for spent in x.run.recorded_usage if spent.execution == path)


async def checkpoint(frame: Frame) -> None:
    """Write what the body and those around it have not written yet, and wait until it is stored.

    It shows in the run's conversation and state from now on. When the process dies the body still starts again, and
    what it had written itself is then replaced.
    """
    frame = acting(frame)
    store = frame.x.run.store
    await let_others_run()
    if store is None:
        return
    settle_cuts(frame)
    write_down(frame)
    await store.commit(frame.x.run.journal, force=True)
