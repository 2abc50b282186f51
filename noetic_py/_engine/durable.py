"""A step of a durable run: what is asked of the journal before its body starts, and what is written when it is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from noetic_py._engine import ledger
from noetic_py._engine.fingerprint import fingerprint
from noetic_py._engine.fold import COMPOSITES, Node, Own, inside, left_by, tree
from noetic_py._engine.frame import Frame
from noetic_py._engine.state import DOORS, Execution, Run
from noetic_py._engine.types import declared_input, declared_output
from noetic_py.budget import NO_USAGE, Lease
from noetic_py.checkpoints.cells import StoredCells, apply_cells, unlike
from noetic_py.checkpoints.delta import apply_changes, digest_of, known_fields, mismatch
from noetic_py.checkpoints.records import ChildReplayed, Intent, Path, StepFailed, StepFinished
from noetic_py.checkpoints.stored import SameAsChild, Stored, dump_usage, read_usage
from noetic_py.codec import Codec
from noetic_py.codec.text import dump
from noetic_py.context import StepMeta
from noetic_py.domain import Domain
from noetic_py.errors import CodecError, LimitExceeded, NoeticError, ReplayDiverged, StepOutcomeUnknown
from noetic_py.items import FunctionCall, FunctionCallOutput
from noetic_py.models.base import ModelResponse
from noetic_py.state import Cells, copy_state, restore_state
from noetic_py.steps.flow import Mode
from noetic_py.steps.handoff import Handed, HandingSpec
from noetic_py.steps.spawn import SPAWNS
from noetic_py.steps.step import NOT_DONE, Step

__all__ = [
    "NOTHING",
    "Found",
    "begin",
    "call",
    "count_turns",
    "decided_by",
    "disown",
    "first_of",
    "look",
    "prepare",
    "put_down",
    "put_state",
    "recorded",
    "recover",
    "stop_again",
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
    if parent.x.run.store is not None:
        parent.x.run.store.check()
    if not own and (parent.touched or domain.log.size != parent.mark):
        ledger.close_segment(parent)
    node = parent.node
    path = (*parent.at, name)
    if step.replay == "once" and (again := _once_again(step, value, parent, path, domain)) is not None:
        return again
    if node is None:
        return None
    call(parent, name)
    child = node.children.get(name)
    if child is not None and child.finished is not None:
        left = left_by(child, own=own)
        differs = _difference(step, value, parent, child.finished) or _other_state(parent.x.run, domain, left)
        if differs is None or _keeps(parent.x.run, differs, path):
            return Found(_replay(step, child, left, parent, domain, path))
        node.drop(name)
        ledger.voided(parent.x.run, path)
        return None
    failed = node.failed.get(name)
    if failed is not None:
        raise _fail_again(failed[0].error, child, parent, domain, path)
    if parent.step.kind in _IN_ORDER and parent.x.run.on_diverge == "fail":
        _check_order(parent, node, name)
    return None


def call(frame: Frame, name: str) -> None:
    """Note that a body has called a child."""
    if frame.visited is None:
        frame.visited = set()
    frame.visited.add(name)


# What calls one child after the other, and nothing new before all that is recorded.
_IN_ORDER = frozenset({"sequence", "loop", "branch", "every", "handoff"})


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
        raise ReplayDiverged(f"is recorded, and {name} was called instead", path=left[0].path)


def _once_again(step: AnyStep, value: Any, parent: Frame, path: Path, domain: Domain) -> Found | None:
    """What is known of a step that may run only once, and that a step around it would run again.

    Raises:
        NoeticError: It has failed.
        StepOutcomeUnknown: It has run, and was something else, or was given something else.
    """
    run = parent.x.run
    record = run.once.get(path)
    known = None if parent.node is None else parent.node.children.get(path[-1])
    if record is None or isinstance(record, Intent) or (known is not None and known.finished is record):
        return None
    if isinstance(record, StepFailed):
        raise record.error
    child = tree(run.journal, path)
    child.finished = record
    left = left_by(child, own=domain is not parent.domain)
    if _difference(step, value, parent, record) or _other_state(run, domain, left):
        raise StepOutcomeUnknown(path=path)
    return Found(_replay(step, child, left, parent, domain, path))


def _fail_again(
    error: Exception, child: Node | None, parent: Frame, domain: Domain, path: tuple[str, ...]
) -> Exception:
    """Put down that a child has failed once more as it is recorded; returns what it raised."""
    run = parent.x.run
    begun = parent.node is not None and path[-1] in parent.node.begun
    if child is None or not (child.layout or begun) or run.store is None or not isinstance(error, NoeticError):
        return error
    # Steps below it had finished: when nobody handles the failure, what they have left is seen again.
    _stands_here(parent, path)
    given = [part for part in left_by(child, own=domain is not parent.domain) if part.delta or part.memory]
    if given:
        left = copy_state(domain.state)
        for part in given:
            apply_changes(left, part.delta, run.store.codec)
        error.left = (domain.state, left, _recalled(parent.x, domain.cells, given))
    ledger.remember(parent)
    return error


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


def _other_state(run: Run, domain: Domain, left: list[Own]) -> str | None:
    """In what the state differs from the one that the step has changed."""
    given = [change for part in left for change in part.delta]
    if run.store is None:
        return None
    if left and left[0].memory and (layer := unlike(domain.cells, left[0].memory, run.store.codec)) is not None:
        return f"the step meets another memory than was recorded: layer {layer!r} differs"
    if not given:
        return None
    if domain.known is None:
        domain.known = known_fields(domain.state, run.store.codec)
    field = mismatch(domain.known, given)
    return None if field is None else f"the step meets another state than was recorded: {field} differs"


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


def _stands_here(parent: Frame, path: Path, *, always: bool = False) -> None:
    """Write what stands before a child that is not run again, and where in its parent's layout it has its place.

    What is a composite's own is not void when a later owner goes on, so its children keep their places.
    """
    if always or parent.step.kind not in COMPOSITES or not (parent.clean and parent.opened):
        ledger.flush(parent)
        parent.x.run.journal.append(ChildReplayed(path))


def _replay(step: AnyStep, child: Node, left: list[Own], parent: Frame, domain: Domain, path: tuple[str, ...]) -> Any:
    """Put what a finished child has left where it left it, and return its output."""
    own = domain is not parent.domain
    run = parent.x.run
    _stands_here(parent, path, always=step.replay == "once")
    length = domain.log.size
    for part in left:
        domain.log.extend(part.items)
    if run.store is not None and any(part.delta or part.memory for part in left):
        # Looking at the state through a frame notes what it was, for whoever has to go back.
        state = Frame(step, parent, parent.x, path, domain, parent.lease, length).state
        for part in left:
            apply_changes(state, part.delta, run.store.codec)
        domain.known = known_fields(state, run.store.codec)
        domain.cells = _recalled(parent.x, domain.cells, left)
        domain.stored = StoredCells(domain.cells)
    if not own:
        ledger.returned(parent, domain.log.size)
    _recall(parent.x, child)
    _recall_verdict(run, child)
    _ask_loops_again(parent, child)
    if run.relaunched is not None:
        DOORS.relaunch(parent, step, child)
    output = output_of(child, step, run)
    parent.last_output = (path[-1], output)
    return output


def _recalled(x: Execution, cells: Cells, left: list[Own]) -> Cells:
    """The states of layers, as finished work has left them."""
    store = x.run.store
    if store is not None:
        for part in left:
            cells = apply_cells(cells, part.memory, x.layers.state_type, store.codec)
    return cells


def output_of(node: Node, step: AnyStep, run: Run) -> Any:
    """A finished step's output."""
    record = node.finished
    if record is None or run.store is None:
        return None
    if record.kind in ("tool_call", "send"):
        return record.items[-1] if record.items else None
    if node.answer is not None and record.kind in ("ask", "result"):
        return node.answer.value
    output = record.output
    if isinstance(output, SameAsChild):
        return output_of(node.children[output.name], step, run)
    if not isinstance(output, Stored):
        return output
    if record.kind == "handing":
        return _handed(output, step, run.store.codec)
    if record.kind == "answer":
        return _answer(output, record, run.store.codec)
    return _typed(output, output_type(step), run.store.codec)


def _unhanded(output: Any) -> Any:
    """What a step has given that might have handed over, as it is stored."""
    to, given = (output.step, output.input) if isinstance(output, Handed) else (None, output)
    return {"to": to, "value": given}


def _handed(output: Stored, step: AnyStep, codec: Codec) -> Any:
    """What a step gave that might have handed over."""
    to, value = output.tree["to"], Stored(output.tree["value"])
    if to is None:
        return _typed(value, output_type(step), codec)
    spec: object = step.spec
    target = spec.targets.steps().get(to) if isinstance(spec, HandingSpec) else None
    return Handed(to, _typed(value, object if target is None else declared_input(target), codec))


def output_type(step: AnyStep) -> Any:
    """The type that a step's output is declared to have, `object` where nobody says."""
    return declared_output(step)


def _answer(output: Stored, record: StepFinished, codec: Any) -> ModelResponse:
    usage, cost, stop_reason, model, response_id = codec.decode(output.tree)
    return ModelResponse(record.items, read_usage(usage), cost, stop_reason, model, response_id)


def _asked_of_loops(frame: Frame) -> tuple[tuple[Path, object], ...]:
    """What loops around a step, and steps that hand over, have been asked in it or below it: the last word of each."""
    found: list[tuple[Path, object]] = []
    node = frame.up
    while node is not None:
        asked = [value for value, path in node.loop_stops or () if path[: len(frame.at)] == frame.at]
        if asked:
            value = asked[-1]
            found.append((node.at, _unhanded(value) if node.step.kind == "handing" else value))
        node = node.up
    return tuple(found)


def _ask_loops_again(parent: Frame, child: Node) -> None:
    """What was asked of loops around a finished child, in it or below it."""
    store, record = parent.x.run.store, child.finished
    if store is None or record is None:
        return
    for path, value in record.loop_stops:
        node: Frame | None = parent
        while node is not None and (node.at != path or node.virtual):
            node = node.up
        if node is None or not isinstance(value, Stored):
            continue
        if node.step.kind == "handing":
            node.stop_loop_with(_handed(value, node.step, store.codec), child.path)
        else:
            node.stop_loop_with(_typed(value, output_type(node.step), store.codec), child.path)


def _typed(value: Stored, kind: Any, codec: Codec) -> Any:
    """A value of the type that its place declares; of its own, where nobody has kept to that."""
    try:
        return codec.decode(value.tree, kind)
    except CodecError as error:
        try:
            return codec.decode(value.tree)
        except CodecError:
            raise error from None


def _recall(x: Execution, child: Node) -> None:
    """Let the execution know what it has done last."""
    node = max(_done(child), key=lambda each: each.position, default=None)
    if node is None:
        return
    answers = [each for each in node.children.values() if each.kind == "answer" and each.finished is not None]
    answer = max(answers, key=lambda each: each.position).finished if answers and node.kind == "model" else None
    if answer is None:
        x.last_step = StepMeta()
        return
    calls = tuple(item for item in answer.items if isinstance(item, FunctionCall))
    if any(_is_answer(each) for each in node.children.values()):
        calls = ()
    x.last_step = StepMeta(calls, answer.usage or NO_USAGE, answer.cost, answer.items)


def _is_answer(call: Node) -> bool:
    """Whether a call's output stands for the answer of its round."""
    items = () if call.finished is None or call.kind != "tool_call" else call.finished.items
    return any(isinstance(item, FunctionCallOutput) and item.final for item in items)


def _recall_verdict(run: Run, child: Node) -> None:
    """Let the run know why the last loop at or below a finished step has ended."""
    loop = max(_loops(child), key=lambda each: each.position, default=None)
    if loop is not None:
        reasons = [made[1] for key, made in loop.decisions.items() if key.startswith("verdict[") and made[0]]
        run.verdict = (loop.path, reasons[-1] if reasons else "stop_loop")


def _loops(node: Node) -> Iterator[Node]:
    if node.kind == "loop" and node.finished is not None:
        yield node
    for child in node.lasting:
        yield from _loops(child)


def _done(node: Node) -> Iterator[Node]:
    """The bodies at and below a node that have finished in its own execution."""
    if node.kind in ("code", "handing", "model", "tool") and node.finished is not None:
        yield node
    if node.kind not in SPAWNS:
        for child in node.children.values():
            yield from _done(child)


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
    """Which of several paths that have ended was the first: in a durable run the one that is first in the journal."""
    run = frame.x.run
    if run.store is None or len(names) == 1:
        return next(iter(names))
    paths: dict[Path, int] = {(*frame.at, name): index for index, name in names.items()}
    first = next(iter(names))
    for record in reversed(run.journal):
        if isinstance(record, (StepFinished, StepFailed)) and record.path in paths:
            first = paths.pop(record.path)
            if not paths:
                break
    return first


def recover(run: Run, lease: Lease, path: tuple[str, ...], *, attempts: bool = True) -> None:
    """Charge a lease with what the steps below a path had used before this process had the run.

    Args:
        run: The run.
        lease: The lease.
        path: Whose it is.
        attempts: Whether it holds for all attempts of that step, or for one.
    """
    depth = len(path)
    for spent in run.spent:
        below = spent.path[:depth] == path and (not path or len(spent.path) > depth)
        if below and (spent.void is None or depth < spent.void or (attempts and depth == spent.void)):
            lease.recover(spent.used, spent.steps, spent.tool)


def count_turns(x: Execution, path: tuple[str, ...]) -> None:
    """Count the model calls that an execution had made before this process had the run."""
    x.turns += sum(spent.used.model_calls for spent in x.run.spent if spent.execution == path)


def put_down(frame: Frame, node: Node) -> None:
    """A spawn whose child was stopped before this process had the run: nothing runs in it, its steps have left this."""
    store = frame.x.run.store
    if store is None:
        return
    ledger.flush(frame)
    if frame.visited is not None:
        frame.visited.update(node.children)
    domain = frame.domain
    for own in inside(node):
        domain.log.extend(own.items)
        apply_changes(domain.state, own.delta, store.codec)
    domain.cells = _recalled(frame.x, domain.cells, inside(node))
    if domain.known is not None:
        domain.known = known_fields(domain.state, store.codec)
        domain.stored = StoredCells(domain.cells)
    frame.mark = frame.written = domain.log.size


def put_state(frame: Frame, left: list[Own]) -> None:
    """Make of the state at a frame's start, and of those of layers, what work below it has made of them."""
    store, domain = frame.x.run.store, frame.domain
    if store is None:
        return
    # Looking at the state notes what it was, unless somebody below has looked at it.
    state = frame.state
    restore_state(state, copy_state(frame.base))
    for part in left:
        apply_changes(state, part.delta, store.codec)
    domain.known = known_fields(state, store.codec)
    domain.cells = _recalled(frame.x, frame.base_cells, left)
    domain.stored = StoredCells(domain.cells)
    ledger.returned(frame, domain.log.size)


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
            if name in above.begun:
                ledger.flush(frame.up)
    run = frame.x.run
    if run.store is not None:
        await run.store.hold()
    if frame.step.replay == "once" and run.store is not None:
        if isinstance(run.once.get(frame.at), Intent):
            output = await _reconcile(frame, value)
            if output is not NOT_DONE:
                return Found(output)
        intent = run.once[frame.at] = Intent(frame.at, _digest(frame.step, value, frame))
        run.journal.append(intent)
        await run.store.commit(run.journal)
        # A commit may take longer than the lease lasts, and what follows may be done by one owner only.
        await run.store.hold()
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
        record.memory = ledger.capture_cells(frame)
        record.fingerprint = fingerprint(step) if step.kind not in _UNNAMED else ""
        record.digest = _digest(step, value if step.bound is None else step.bound.value, frame)
        record.attempt = frame.attempt
        record.usage = frame.used_tokens
        record.cost = frame.used_cost
        record.control = frame.control
        record.winner = frame.winner
        record.calls = frame.used_calls
        record.tool = frame.used_tool
        record.takes = tuple(frame.takes or ())
        record.loop_stops = _asked_of_loops(frame)
        store.prepare(record)
    except (CodecError, LimitExceeded) as error:
        error.at(frame.at)
        raise
    # Others in this process read the value itself.
    frame.prepared = record
    if frame.up is not None:
        frame.up.last_output = (frame.at[-1], output)


# The engine's own steps: what they are follows from the step around them.
_UNNAMED = frozenset({"answer", "tool_call", "send", "gather", "detached", "memory", "hook", "ask", "work", "result"})


def _output(frame: Frame, value: Any, output: Any) -> Any:
    """What is stored as the output: not twice what stands elsewhere."""
    kind = frame.step.kind
    if kind == "answer":
        return [dump_usage(output.usage), output.cost, output.stop_reason, output.model, output.response_id]
    if kind == "handing":
        return _unhanded(output)
    if kind == "send":
        return [value.channel.name, value.value]
    if kind in ("tool_call", "ask", "result"):
        # Of a call the item, and of a question the answer is recorded.
        return None
    last = frame.last_output
    if last is not None and output is not None and last[1] is output:
        return SameAsChild(last[0])
    return output


def _orphans(frame: Frame) -> list[Node]:
    """The children that are recorded, and that the body has not called this time."""
    node = frame.node
    if node is None or frame.step.kind in ("parallel", "model"):
        return []
    called = frame.visited or set()
    return [
        child
        for name, child in node.children.items()
        if name not in called and (child.finished is not None or name in node.failed)
    ]


def _check_orphans(frame: Frame) -> None:
    for child in _orphans(frame):
        if frame.x.run.on_diverge == "fail":
            raise ReplayDiverged("is recorded, and was not called this time", path=child.path)
        ledger.voided(frame.x.run, child.path)


def disown(frame: Frame, failure: NoeticError) -> None:
    """A body did something else than is recorded: what it has begun besides is void, so that the right code goes on."""
    if frame.node is not None and (isinstance(failure, ReplayDiverged) or _orphans(frame)):
        for name in (frame.visited or set()) - frame.node.children.keys():
            ledger.voided(frame.x.run, (*frame.at, name))


_DERIVED = frozenset({"answer", "gather", "detached", "parallel_path", "memory", "hook", "work", "result"})


def _digest(step: AnyStep, value: Any, frame: Frame) -> str | None:
    """A digest of what the step was given, where that is not derived from what is recorded."""
    store = frame.x.run.store
    if store is None or step.kind in _DERIVED:
        return None
    essence = value
    if step.kind == "tool_call":
        call = value.call
        essence = [call.call_id, call.name, call.arguments]
    elif step.kind == "send":
        essence = [value.channel.name, value.value]
    elif step.kind == "ask":
        essence = value.prompt
    try:
        return digest_of(dump(store.codec.encode(essence)))
    except CodecError as error:
        raise CodecError(
            f"the input of a step in a durable run cannot be stored: {error.message}", path=frame.at, hint=error.hint
        ) from error
