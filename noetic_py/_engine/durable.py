"""A step of a durable run: what is asked of the journal before its body starts, and what is written when it is done."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from noetic_py._engine import ledger
from noetic_py._engine.fingerprint import fingerprint
from noetic_py._engine.fold import COMPOSITES, Node, left_by
from noetic_py._engine.state import Execution, Frame, Run
from noetic_py._engine.types import declared_output
from noetic_py.budget import Lease
from noetic_py.checkpoints.delta import apply_changes, digest_of, known_fields
from noetic_py.checkpoints.records import ChildReplayed, Intent, StepFinished, Voided
from noetic_py.checkpoints.stored import SameAsChild, Stored, dump_usage, read_usage
from noetic_py.codec.text import dump
from noetic_py.context import Domain, StepMeta
from noetic_py.errors import CodecError, NoeticError, ReplayDiverged, StepOutcomeUnknown
from noetic_py.items import FunctionCall
from noetic_py.models.base import ModelResponse
from noetic_py.steps.step import NOT_DONE, Step

__all__ = [
    "NOTHING",
    "Found",
    "begin",
    "first_failed",
    "look",
    "prepare",
    "recorded",
    "recover",
    "stop_again",
    "winner_of",
]

AnyStep = Step[Any, Any, Any, Any]

NOTHING: Any = object()
"""Nothing is recorded, which `None` is not."""


@frozen(eq=False)
class Found:
    """What the journal says a step has given."""

    value: Any


def recorded(frame: Frame, key: str) -> Any:
    """What was decided for the step before, `NOTHING` when nothing was."""
    return NOTHING if frame.node is None else frame.node.decisions.get(key, NOTHING)


# ---------------------------------------------------------------------------------------------------- before


def look(step: AnyStep, value: Any, parent: Frame, name: str, domain: Domain) -> Found | None:
    """What the journal has of a child that is about to start: its output, put in place; `None` when it has to run.

    Raises:
        NoeticError: The child has failed for good, and so it fails again.
        ReplayDiverged: It is another step, or has another input, than the journal says.
    """
    own = domain is not parent.domain
    if not own and (parent.touched or domain.log.size != parent.mark):
        ledger.close_segment(parent)
    node = parent.node
    if node is None:
        return None
    if parent.visited is None:
        parent.visited = set()
    parent.visited.add(name)
    child = node.children.get(name)
    path = (*parent.at, name)
    if child is not None and child.finished is not None:
        differs = _difference(step, value, parent, child.finished)
        if differs is None or _keeps(parent.x.run, differs, path):
            return Found(_replay(step, child, parent, domain, path))
        node.drop(name)
        parent.x.run.journal.append(Voided(path))
        return None
    failed = node.failed.get(name)
    if failed is not None:
        error = failed[0].error
        raise error
    return None


def _difference(step: AnyStep, value: Any, parent: Frame, record: StepFinished) -> str | None:
    """In what the step that is called now differs from the recorded one."""
    if record.kind != step.kind:
        return f"a {record.kind} step is recorded, and a {step.kind} step is called"
    if record.fingerprint and record.fingerprint != fingerprint(step):
        return "the step's code or options have changed since it ran"
    digest = _digest(step, value if step.bound is None else step.bound.value, parent)
    if record.digest is not None and digest != record.digest:
        return "the step is called with another input than was recorded"
    return None


def _keeps(run: Run, differs: str, path: tuple[str, ...]) -> bool:
    """Whether a record that differs stands all the same: pinned it does, adopted it makes way for the new.

    Raises:
        ReplayDiverged: The run does neither.
    """
    if run.on_diverge == "fail":
        raise ReplayDiverged(
            differs,
            path=path,
            hint="run the code and the inputs that it was started with, or resume(..., on_diverge='adopt' or 'pin')",
        )
    return run.on_diverge == "pin"


def _replay(step: AnyStep, child: Node, parent: Frame, domain: Domain, path: tuple[str, ...]) -> Any:
    """Put what a finished child has left where it left it, and return its output."""
    own = domain is not parent.domain
    run = parent.x.run
    if parent.step.kind not in COMPOSITES:
        ledger.flush(parent)
        run.journal.append(ChildReplayed(path))
    left = left_by(child)
    length = domain.log.size
    for part in left:
        domain.log.extend(part.items)
    if run.store is not None and any(part.delta for part in left):
        # Looking at the state through a frame notes what it was, for whoever has to go back.
        state = Frame(step, parent, parent.x, path, domain, parent.lease, length).state
        for part in left:
            apply_changes(state, part.delta, run.store.codec)
        domain.known = known_fields(state, run.store.codec)
    if not own:
        ledger.returned(parent, domain.log.size)
    _count(parent, child)
    output = output_of(child, step, run)
    parent.last_output = (path[-1], output)
    return output


def output_of(node: Node, step: AnyStep, run: Run) -> Any:
    """A finished step's output."""
    record = node.finished
    if record is None or run.store is None:
        return None
    if record.kind in ("tool_call", "send"):
        return record.items[-1] if record.items else None
    output = record.output
    if isinstance(output, SameAsChild):
        return output_of(node.children[output.name], step, run)
    if not isinstance(output, Stored):
        return output
    if record.kind == "answer":
        return _answer(output, record, run.store.codec)
    return run.store.codec.decode(output.tree, output_type(step))


def output_type(step: AnyStep) -> Any:
    """The type that a step's output is declared to have, `object` where nobody says."""
    return declared_output(step)


def _answer(output: Stored, record: StepFinished, codec: Any) -> ModelResponse:
    usage, cost, stop_reason, model, response_id = codec.decode(output.tree)
    return ModelResponse(record.items, read_usage(usage), cost, stop_reason, model, response_id)


def _count(parent: Frame, child: Node) -> None:
    """Counters that a finished child has moved."""
    answers = [node for node in _below(child) if node.kind == "answer" and node.finished is not None]
    x = parent.x
    x.run.turns += len(answers)
    x.turns += sum(1 for node in answers)
    last = answers[-1].finished if answers else None
    if last is not None:
        calls = tuple(item for item in last.items if isinstance(item, FunctionCall))
        x.last_step = StepMeta(calls, last.usage if last.usage is not None else StepMeta().usage, last.cost, last.items)


def winner_of(frame: Frame, names: list[str]) -> int | None:
    """Which path of a race had finished first, before this process had the run."""
    if frame.node is None:
        return None
    done = [
        (child.position, index)
        for index, name in enumerate(names)
        if (child := frame.node.children.get(name)) is not None and child.finished is not None
    ]
    return min(done)[1] if done else None


def first_failed(frame: Frame, errors: dict[int, NoeticError]) -> NoeticError:
    """The failure that came first: of those that are replayed the one that is first in the journal."""
    if frame.node is not None:
        order = {id(record.error): position for record, position in frame.node.failed.values()}
        return min(errors.values(), key=lambda error: order.get(id(error), len(order) + 10**12))
    return next(iter(errors.values()))


def recover(run: Run, lease: Lease, path: tuple[str, ...]) -> None:
    """Charge a lease with what the steps below a path had used before this process had the run."""
    depth = len(path)
    for spent in run.spent:
        if spent.path[:depth] == path and (not path or len(spent.path) > depth):
            lease.recover(spent.used, spent.steps, spent.tool)


def stop_again(x: Execution, path: tuple[str, ...]) -> None:
    """An execution that was stopped before this process had the run starts nothing."""
    run = x.run
    for control in run.stopped:
        if control.at == path and run.store is not None:
            value = control.value
            x.request(
                evolve(control, value=run.store.codec.decode(value.tree)) if isinstance(value, Stored) else control
            )
            return


def _below(node: Node) -> list[Node]:
    found = [node]
    for child in node.children.values():
        found += _below(child)
    return found


# ---------------------------------------------------------------------------------------------------- a body


async def begin(frame: Frame, value: Any) -> Found | None:
    """A body is about to start: find its place in the journal, and for one that may run only once say that it does.

    Returns:
        Its output, when the step's `reconcile` knows that it has done its work already.

    Raises:
        StepOutcomeUnknown: It may run only once, was started before, and nobody knows whether it has done its work.
    """
    above = None if frame.up is None else frame.up.node
    name = frame.at[-1]
    if above is not None and frame.attempt == 1:
        frame.node = above.children.get(name)
        tried = above.tries.get(name)
        if tried is not None:
            frame.attempt = tried + 1
            frame.noted = True
    run = frame.x.run
    if frame.step.replay == "once" and run.store is not None:
        if above is not None and name in above.intents:
            output = await _reconcile(frame, value)
            if output is not NOT_DONE:
                return Found(output)
        run.journal.append(Intent(frame.at, _digest(frame.step, value, frame)))
        await run.store.commit(run.journal)
    return None


async def _reconcile(frame: Frame, value: Any) -> Any:
    ask = frame.step.reconcile
    if ask is None:
        raise StepOutcomeUnknown(path=frame.at)
    return await ask(value, frame.read_only())


def prepare(frame: Frame, value: Any, output: Any) -> None:
    """A body is done: make its record, and encode it, so that what cannot be stored is this step's failure.

    Raises:
        CodecError: Its output, an item or its state cannot be stored.
        ReplayDiverged: A child is recorded that was not called this time.
    """
    run, step = frame.x.run, frame.step
    store = run.store
    if store is None:
        return
    _check_orphans(frame)
    if frame.segments is not None:
        ledger.flush(frame)
    record = StepFinished(frame.at, step.kind, None, _output(frame, value, output))
    record.items = frame.domain.log.since(frame.mark)
    try:
        record.delta = ledger.capture(frame)
        record.fingerprint = fingerprint(step) if step.kind not in _UNNAMED else ""
        record.digest = _digest(step, value if step.bound is None else step.bound.value, frame)
        record.attempt = frame.attempt
        record.usage = frame.used_tokens
        record.cost = frame.used_cost
        record.control = frame.control
        record.winner = frame.winner
        record.takes = tuple(frame.takes or ())
        store.prepare(record)
    except CodecError as error:
        error.at(frame.at)
        raise
    # Others in this process read the value itself.
    frame.prepared = record


# The engine's own steps: what they are follows from the step around them.
_UNNAMED = frozenset({"answer", "tool_call", "send", "gather", "detached"})


def _output(frame: Frame, value: Any, output: Any) -> Any:
    """What is stored as the output: not twice what stands elsewhere."""
    kind = frame.step.kind
    if kind == "answer":
        return [dump_usage(output.usage), output.cost, output.stop_reason, output.model, output.response_id]
    if kind == "send":
        return [value.channel.name, value.value]
    if kind == "tool_call":
        return None
    last = frame.last_output
    if last is not None and output is not None and last[1] is output:
        return SameAsChild(last[0])
    return output


def _check_orphans(frame: Frame) -> None:
    node = frame.node
    if node is None or frame.step.kind in ("parallel", "model"):
        return
    called = frame.visited or set()
    for name, child in node.children.items():
        if name not in called and (child.finished is not None or name in node.failed):
            if frame.x.run.on_diverge == "fail":
                raise ReplayDiverged("is recorded, and was not called this time", path=child.path)
            frame.x.run.journal.append(Voided(child.path))


def _digest(step: AnyStep, value: Any, frame: Frame) -> str | None:
    """A digest of what the step was given, where that is not derived from what is recorded."""
    store = frame.x.run.store
    if store is None or step.kind in ("answer", "gather", "detached", "parallel_path"):
        return None
    essence = value
    if step.kind == "tool_call":
        call = value.call
        essence = [call.call_id, call.name, call.arguments]
    elif step.kind == "send":
        essence = [value.channel.name, value.value]
    try:
        return digest_of(dump(store.codec.encode(essence)))
    except CodecError as error:
        raise CodecError(
            f"the input of a step in a durable run cannot be stored: {error.message}", path=frame.at, hint=error.hint
        ) from error
