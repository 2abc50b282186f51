"""Plans a resume from the journal and the flow's declaration; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from noetic_py.context.step import AnyStep, SequenceSpec
from noetic_py.engine.fingerprint import fingerprint
from noetic_py.engine.journaling.run_history import RunHistory
from noetic_py.engine.kind import Kind, Node
from noetic_py.engine.stops import asked_in
from noetic_py.errors import ReplayDiverged
from noetic_py.journal.records import AttemptFailed, StepFinished, StepStopped
from noetic_py.journal.run_summary import PlannedStep, ResumePlan
from noetic_py.journal.values import Path
from noetic_py.redaction import with_article
from noetic_py.steps.flow import BranchSpec, ParallelSpec
from noetic_py.steps.handoff import HandoffSourceSpec, HandoffSpec, members
from noetic_py.steps.loop import EverySpec, LoopSpec
from noetic_py.steps.spawn import SpawnSpec

Declared = tuple[str, AnyStep]


def plan_of(run_history: RunHistory, flow: AnyStep) -> ResumePlan:
    """Compare a journal with the flow that would resume it."""
    status = "running" if run_history.ended is None else run_history.ended.status
    started = run_history.started
    if started.flow != flow.id:
        why = f"the run was started with step {started.flow!r}, and this one is {flow.id!r}"
        return ResumePlan(started.run_id, status, (PlannedStep((flow.id,), flow.kind, "differ", why),))
    steps = tuple(_look(run_history.index, flow, flow.id))
    if _was_stopped(run_history):
        # Nothing is started any more, so nothing is compared.
        steps = tuple(each for each in steps if each.action == "replay")
    return ResumePlan(started.run_id, status, steps)


def check(run_history: RunHistory, flow: AnyStep) -> None:
    """Compare a flow that is not the one that the run was started with, before anything of it runs.

    Raises:
        ReplayDiverged: It does something else than is recorded.
    """
    opening = run_history.started.opening
    if opening is None or opening.fingerprint == fingerprint(flow):
        return
    for planned in plan_of(run_history, flow).steps:
        if planned.action == "differ":
            raise ReplayDiverged(
                planned.reason or "the flow has changed",
                path=planned.path,
                hint="run the code that it was started with, or resume(..., on_diverge='adopt' or 'pin')",
            )


def _was_stopped(run_history: RunHistory) -> bool:
    """Whether a step has asked for the run's end, or something outside for an end without a wrap-up; both hold."""
    asked = asked_in(run_history.records)
    return (asked is not None and not asked.rule.wraps_up) or any(
        record.control is not None and record.control.at == ()
        for record in run_history.records
        if isinstance(record, (StepFinished, AttemptFailed, StepStopped))
    )


def _look(above: Node, step: AnyStep, name: str) -> Iterator[PlannedStep]:
    """The action of the flow's next call of a step."""
    path = (*above.path, name)
    node = above.children.get(name)
    if node is not None and node.finished is not None:
        yield _recorded(node.kind, node.finished, step, path)
    elif name in above.failed:
        yield PlannedStep(path, step.kind, "replay", f"fails again: {above.failed[name][0].error}")
    elif name in above.intents and step.reconcile is None:
        yield PlannedStep(path, step.kind, "unknown", "it may run only once, was started, and has no recorded outcome")
    elif name in above.intents:
        yield PlannedStep(path, step.kind, "run", "unless its reconcile says that it has")
    elif node is None:
        yield PlannedStep(path, step.kind, "run")
    else:
        yield PlannedStep(path, step.kind, "run", "begins again")
        yield from _below(node, step)


def _recorded(kind: Kind, record: StepFinished, step: AnyStep, path: Path) -> PlannedStep:
    why = None
    if not kind.is_named(step.kind):
        why = f"{with_article(kind.name)} step is recorded, and the flow has {with_article(step.kind)} step"
    elif record.fingerprint and record.fingerprint != fingerprint(step):
        why = "the step's code or options have changed since it ran"
    return PlannedStep(path, step.kind, "replay" if why is None else "differ", why)


def _below(node: Node, step: AnyStep) -> Iterator[PlannedStep]:
    declared = dict(_declared(node, step))
    moved = _out_of_place(node, step.spec.frames) if isinstance(step.spec, SequenceSpec) else None
    for name, child in declared.items():
        if moved is not None and moved[0] == name:
            why = f"is called where {moved[1]} is recorded"
            yield PlannedStep((*node.path, name), child.kind, "differ", why)
        else:
            yield from _look(node, child, name)
    for name, other in node.children.items():
        if name in declared or (other.finished is None and name not in node.failed):
            continue
        if isinstance(step.spec, (SequenceSpec, LoopSpec, SpawnSpec)) and not _is_own(other):
            yield PlannedStep(
                other.path, other.kind.name, "differ", "is recorded, and the flow does not call it any more"
            )
        else:
            yield PlannedStep(
                other.path, other.kind.name, "replay", "when its step calls it again; it was not compared"
            )


def _is_own(node: Node) -> bool:
    """Whether it is a step of the engine's own, which no flow declares."""
    return node.name == "wrap_up" or not node.kind.declared


def _out_of_place(node: Node, frames: Sequence[str]) -> tuple[str, str] | None:
    """The first of a sequence's steps that is called where another one is recorded, with that one."""
    done = [entry.name for entry in node.layout if isinstance(entry, Node) and entry.finished is not None]
    for called, known in zip(frames, done, strict=False):
        if called != known:
            # One that is not called any more is named itself.
            return (called, known) if known in frames else None
    return None


def _declared(node: Node, step: AnyStep) -> Sequence[Declared]:
    """The children that the step will call, by the names of their frames, as far as that is known."""
    spec: object = step.spec
    match spec:
        case SequenceSpec():
            return tuple(zip(spec.frames, spec.steps, strict=True))
        case LoopSpec():
            return _rounds(node, spec.body, goes_on=True)
        case EverySpec():
            return _rounds(node, spec.body, goes_on=False)
        case SpawnSpec():
            return ((spec.step.id, spec.step),)
        case BranchSpec():
            return _chosen(node, spec)
        case ParallelSpec():
            return _paths(node, spec)
        case HandoffSourceSpec() if spec.inner is not None:
            return ((spec.inner.id, spec.inner),)
        case HandoffSpec():
            # The recorded children come first; the steps themselves say what follows.
            known = {each.id: each for each in members(spec)}
            return [(name, known[own]) for name in node.children if (own := name.partition("#")[0]) in known]
        case _:
            return ()


def _rounds(node: Node, body: AnyStep, *, goes_on: bool) -> Sequence[Declared]:
    """The rounds that are recorded, and the one after them when the loop is known to go on."""
    count = first = 0 if node.folded is None else node.folded.rounds
    while f"{body.id}[{count}]" in node.children or f"{body.id}[{count}]" in node.failed:
        count += 1
    before = node.decisions.get(f"verdict[{count - 1}]")
    if goes_on and before is not None and not before[0]:
        count += 1
    return [(f"{body.id}[{number}]", body) for number in range(first, count)]


def _chosen(node: Node, spec: BranchSpec) -> Sequence[Declared]:
    chosen = node.decisions.get("route")
    cases = [*(spec.cases or {}).values(), *([] if spec.default is None else [spec.default])]
    found = [case for case in cases if case.id == chosen]
    return [(found[0].id, found[0])] if len(found) == 1 else ()


def _paths(node: Node, spec: ParallelSpec) -> Sequence[Declared]:
    if spec.each is None:
        return [(f"{path.id}[{index}]", path) for index, path in enumerate(spec.paths)]
    head = f"{spec.each.id}["
    return [(name, spec.each) for name in node.children if name.startswith(head)]
