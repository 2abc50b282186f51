"""Runs sequences, branches and parallel sections."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from logging import WARNING
from typing import Any

import anyio
from attrs import define, field

from noetic_py.context.read import ContextScope, branch_at
from noetic_py.context.step import AnyStep, SequenceSpec, Step, is_step, require_step
from noetic_py.core.diagnostics import log
from noetic_py.core.items import Message
from noetic_py.core.reducers import reducers_of
from noetic_py.core.state import class_of, copy_state, restore_state
from noetic_py.core.types import ShareState
from noetic_py.core.values import copy_value
from noetic_py.engine.body import call_apart
from noetic_py.engine.execute import as_error, execute, forget_loop_stops
from noetic_py.engine.frame import Frame, Waiting, failure_of, lost_task
from noetic_py.engine.journaling import ledger, replay
from noetic_py.engine.journaling.deliveries import nack
from noetic_py.engine.kind import Kind
from noetic_py.engine.layers.lifecycle import fork_layers, join_returned
from noetic_py.engine.merge import Written, join_declared, join_states, lost_fields
from noetic_py.engine.progress import forget
from noetic_py.errors import BudgetExceeded, ConfigError, NoeticError, ParallelFailed, ReplayDiverged, RouteError
from noetic_py.steps.flow import BranchSpec, GatherSpec, Mode, ParallelSpec, Settled, check_shared

_WITH_STATES = 3
"""How many arguments a `merge` takes that looks at the paths' states."""


async def run_sequence(value: object, frame: Frame) -> object:
    """Each step gets what the one before returned."""
    spec: SequenceSpec = frame.step.spec
    given: object = None
    for step, name in zip(spec.steps, spec.frames, strict=True):
        if value is None and spec.hand_on == "text":
            value = _last_text(frame, given)
        given = value
        value = await execute(step, value, frame, name)
    return value


def _is_last(frame: Frame, name: str, output: object) -> bool:
    spec: SequenceSpec = frame.step.spec
    return name == spec.frames[-1]


def _last_text(frame: Frame, given: object) -> object:
    """The text of the last answer in a sequence; what its last step was given, when there is none."""
    answers = (item for item in reversed(frame.log.since(frame.start)) if isinstance(item, Message) and item.is_final)
    return next((item.text for item in answers if item.text), given)


async def run_branch(value: object, frame: Frame) -> object:
    """Ask the route, record what it said, run that."""
    spec: BranchSpec = frame.step.spec
    before = replay.recorded(frame, "route")
    if before is not replay.NOTHING and (known := _route_again(spec, before)) is not None:
        return await execute(known, value, frame, known.id)
    shown = copy_value(value)
    answer = await call_apart(frame, spec.route, shown, *((frame.read_only(),) if spec.takes_context else ()))
    step = _chosen(frame, spec, answer)
    chosen = None if step is None else step.id
    if before is replay.NOTHING:
        ledger.decided(frame, "route", chosen)
    elif before != chosen:
        raise ReplayDiverged(f"the route chose {before!r} before, and {chosen!r} now", path=frame.path)
    if step is None:
        return value
    return await execute(step, value, frame, step.id)


def _route_again(spec: BranchSpec, id: str | None) -> AnyStep | None:
    """The case that was chosen before, when its id alone says which; a function that returns steps is asked again."""
    cases = [*(spec.cases or {}).values(), *([] if spec.default is None else [spec.default])]
    found = [case for case in cases if case.id == id]
    return found[0] if len(found) == 1 else None


def _chosen(frame: Frame, spec: BranchSpec, answer: object) -> AnyStep | None:
    if spec.cases is None:
        if answer is None:
            return None
        if is_step(answer):
            return answer
        raise RouteError(
            f"the route returned {answer!r}, which is neither a step nor None",
            path=frame.path,
            hint="return a step, or give branch(route, cases) the cases by key",
        )
    try:
        found = spec.cases.get(answer, spec.default)
    except TypeError:
        found = None
    if found is None:
        raise RouteError(
            f"the route returned {answer!r}, for which there is no case",
            path=frame.path,
            hint=f"the cases are {list(spec.cases)}; default= takes every other key",
        )
    return found


@define(eq=False)
class Path:
    """One path of a section: a step, its input, its frame."""

    step: AnyStep
    value: Any
    name: str
    # Whether layers say what it begins with, as they do of a child.
    seeded: bool = True


@define(eq=False)
class Outcomes:
    """How the paths of a section ended, in the order in which they did."""

    values: dict[int, Any] = field(factory=dict[int, Any])
    errors: dict[int, NoeticError] = field(factory=dict[int, NoeticError])
    scopes: dict[int, ContextScope] = field(factory=dict[int, ContextScope])
    # The paths that wait for an answer.
    waiting: set[int] = field(factory=set[int])
    # Which outcome ends the section early: in "all" the first error, in a race the first value.
    cancel_scope: anyio.CancelScope | None = None
    mode: Mode = "settle"


async def run_paths(frame: Frame, paths: Sequence[Path], mode: Mode, concurrency: int | None = None) -> Outcomes:
    """Run paths at once, each in a scope of its own, and await all of them whatever happens.

    Raises:
        Waiting: One waits for an answer, and how the section ends depends on it.
    """
    outcomes = Outcomes()
    frame.ends_by = mode
    await _run_all(frame, paths, mode, concurrency, outcomes)
    # The outcome is settled, whatever other paths still report.
    decided = outcomes.values if mode == "race" else outcomes.errors if mode == "all" else {}
    if outcomes.waiting and not decided:
        raise Waiting
    frame.waits_below = False
    return outcomes


async def _run_all(
    frame: Frame, paths: Sequence[Path], mode: Mode, concurrency: int | None, outcomes: Outcomes
) -> None:
    decided = replay.decided_by(frame, [path.name for path in paths], mode)
    if decided is not None and frame.node is not None and frame.node.layout:
        # Something below was written, in paths that are not put down again too, and with it what stands around it: all
        # of that, or only the items where nothing had finished.
        held = [each for index in decided for each in frame.node.failed.get(paths[index].name, ())[:1] if each.held]
        if held:
            ledger.flush_items(frame, held[0].path)
        else:
            ledger.flush(frame)
    if decided is not None or len(paths) == 1:
        for index in decided or (0,):
            await _run_path(frame, paths[index], index, outcomes)
        return
    async with anyio.create_task_group() as group:
        outcomes.cancel_scope = group.cancel_scope
        outcomes.mode = mode
        if concurrency is None or concurrency >= len(paths):
            for index, path in enumerate(paths):
                group.start_soon(_run_path, frame, path, index, outcomes)
            return
        places = anyio.Semaphore(concurrency, fast_acquire=True)
        for index, path in enumerate(paths):
            await places.acquire()
            if frame.x.run.children is not None and len(outcomes.waiting) >= concurrency:
                # Workers are at work on as many as may be at once.
                return
            # Each has a task of its own, so that none finds what another has put into a context variable.
            group.start_soon(_run_in_place, frame, path, index, outcomes, places, concurrency)


async def _run_in_place(
    frame: Frame, path: Path, index: int, outcomes: Outcomes, places: anyio.Semaphore, concurrency: int
) -> None:
    try:
        await _run_path(frame, path, index, outcomes)
    finally:
        # A path that waits for a worker keeps its place; the last one wakes who waits for a place.
        waits = frame.x.run.children is not None and index in outcomes.waiting
        if not waits or len(outcomes.waiting) >= concurrency:
            places.release()


def _over(outcomes: Outcomes) -> bool:
    """Whether the section has its outcome, so that a path that has not begun need not."""
    return outcomes.cancel_scope is not None and outcomes.cancel_scope.cancel_called


async def _run_path(frame: Frame, path: Path, index: int, outcomes: Outcomes) -> None:
    if _over(outcomes):
        return
    own = outcomes.scopes[index] = frame.scope.fork(branch_at((*frame.at, path.name)))
    try:
        if frame.x.has_layers and path.seeded:
            await fork_layers(frame, index, own)
        outcomes.values[index] = await execute(path.step, path.value, frame, path.name, own)
    except Waiting:
        outcomes.waiting.add(index)
    except BaseException as error:
        failure = failure_of(error) if outcomes.cancel_scope is None else lost_task(error)
        if failure is None:
            raise
        # An outcome like a value: the section decides what it means.
        outcomes.errors[index] = as_error(frame, failure)
        if outcomes.mode == "all" and outcomes.cancel_scope is not None:
            outcomes.cancel_scope.cancel()
    else:
        if outcomes.mode == "race" and outcomes.cancel_scope is not None:
            outcomes.cancel_scope.cancel()


async def run_parallel(value: object, frame: Frame) -> object:
    """All, the first, or whatever comes."""
    spec: ParallelSpec = frame.step.spec
    paths = await _paths(frame, spec, value)
    outcomes = await run_paths(frame, paths, spec.mode, spec.concurrency)
    if spec.mode == "race":
        winner = first_of(frame, paths, outcomes.values)
        await _discard_losers(frame, paths, winner)
        return _win(frame, paths, outcomes, winner)
    await _return_layers(frame, paths, outcomes)
    results: list[object]
    if spec.mode == "all":
        results = all_values(frame, paths, outcomes)
    else:
        results = [
            Settled(None, outcomes.errors[index]) if index in outcomes.errors else Settled(outcomes.values[index])
            for index in range(len(paths))
        ]
    if spec.state == "share" or spec.merge_arity < _WITH_STATES:
        # A merge that is given the states says what becomes of them.
        _join_state(frame, paths, outcomes, spec.state)
    if spec.merge is not None:
        return await _merge(frame, spec, results, outcomes)
    return tuple(results) if spec.shape == "tuple" else results


async def _paths(frame: Frame, spec: ParallelSpec, value: Any) -> list[Path]:
    if spec.each is not None:
        if not _is_many(value):
            raise ConfigError(
                f"each got {type(value).__name__}, not a list",
                code="each",
                path=frame.path,
                hint="each(step) takes an iterable of inputs",
            )
        return [Path(spec.each, element, f"{spec.each.id}[{index}]") for index, element in enumerate(value)]
    steps = spec.paths
    if spec.make is not None:
        shown = copy_value(value)
        given = await call_apart(frame, spec.make, shown, *((frame,) if spec.takes_context else ()))
        if not _is_many(given):
            raise RouteError(
                f"{given!r}, which the function for the paths gave, is not valid; expected a list of steps",
                path=frame.path,
                hint="return steps",
            )
        steps = tuple([_require(frame, step) for step in given])
        if spec.mode == "race":
            frame.x.run.opening = frame.x.run.opening or steps
        ids = tuple(step.id for step in steps)
        before = replay.recorded(frame, "paths")
        if before is replay.NOTHING:
            ledger.decided(frame, "paths", ids)
        elif tuple(before) != ids:
            raise ReplayDiverged(f"the paths were {', '.join(before)}, and are {', '.join(ids)} now", path=frame.path)
    return [Path(step, value, f"{step.id}[{index}]") for index, step in enumerate(steps)]


async def _return_layers(frame: Frame, paths: Sequence[Path], outcomes: Outcomes) -> None:
    """Merge the layer states of the paths that have succeeded, in the order of the paths."""
    if frame.x.has_layers:
        ended = sorted(outcomes.values)
        children = {f"{frame.x.id}/{paths[at].name}": (outcomes.scopes[at], outcomes.values[at]) for at in ended}
        await join_returned(frame, children)


def _join_state(frame: Frame, paths: Sequence[Path], outcomes: Outcomes, state: ShareState) -> None:
    """The changes of the paths that have succeeded; where nothing is shared, only fields with a reducer."""
    ended = [(paths[at].name, outcomes.scopes[at]) for at in sorted(outcomes.values)]
    touched = [each for each in ended if not each[1].untouched]
    if touched and state == "share":
        join_states(frame.state, touched, frame.path)
    elif touched:
        joined = reducers_of(class_of(touched[0][1].state))
        _warn_of_lost(frame, touched, joined)
        if joined:
            join_declared(frame.state, touched, frame.path)


def _warn_of_lost(frame: Frame, touched: Written, joined: Collection[str]) -> None:
    """Say once in a run what paths have changed of their copies of the state that nothing takes over."""
    noticed, what = frame.x.run.noticed, f"state of {frame.step.kind} {frame.step.id}"
    if what in noticed:
        return
    noticed.add(what)
    lost = lost_fields(frame.scope.state, touched, joined)
    if lost:
        fields = "; ".join(f"{field!r} by {_named(names)}" for field, names in lost.items())
        log(
            "steps",
            WARNING,
            "paths changed their copies of the state, and these changes are lost: %s",
            fields,
            where=frame.where,
            hint='state="share", a reducer for the field, or a merge that takes (outputs, ctx, states)',
        )


def _named(names: Sequence[str]) -> str:
    more = len(names) - 2
    return " and ".join(map(repr, names[:2])) + (f" and {more} more" if more > 0 else "")


def _require(frame: Frame, value: object) -> AnyStep:
    if not is_step(value):
        raise RouteError(
            f"{value!r}, which the function for the paths gave, is not a valid step",
            path=frame.path,
            hint="return steps",
        )
    return value


def _is_many(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


def first_of(frame: Frame, paths: Sequence[Path], ended: Iterable[int]) -> int | None:
    """The first path that has ended; `None` without one."""
    names = {index: paths[index].name for index in ended}
    return replay.first_of(frame, names) if names else None


def all_values(frame: Frame, paths: Sequence[Path], outcomes: Outcomes) -> list[object]:
    """Every path's output in order.

    Raises:
        BudgetExceeded: That is what the first path failed of.
        ParallelFailed: A path failed of something else.
    """
    failed = first_of(frame, paths, outcomes.errors)
    if failed is not None:
        first = outcomes.errors[failed]
        if isinstance(first, BudgetExceeded):
            raise first
        raise ParallelFailed(succeeded=outcomes.values, failed=outcomes.errors, first=first, path=frame.path)
    return [outcomes.values[index] for index in range(len(paths))]


async def _discard_losers(frame: Frame, paths: Sequence[Path], winner: int | None) -> None:
    """Clean up after lost paths: return their messages, end their detached work, and hide their output."""
    run = frame.x.run
    for index, path in enumerate(paths):
        if index != winner and winner is not None:
            lost = (*frame.at, path.name)
            if run.detached:
                await run.dismiss(lost)
            nack(run, lost, below=True)
            forget_loop_stops(frame, lost)
            if run.progress:
                forget(run, lost)


def _win(frame: Frame, paths: Sequence[Path], outcomes: Outcomes, winner: int | None) -> object:
    if winner is None:
        failed = first_of(frame, paths, outcomes.errors)
        if failed is None:
            raise RouteError("a race without a path has no winner", path=frame.path, hint="return at least one step")
        first = outcomes.errors[failed]
        raise (
            first
            if isinstance(first, BudgetExceeded)
            else ParallelFailed(succeeded={}, failed=outcomes.errors, first=first, path=frame.path)
        )
    value = outcomes.values[winner]
    scope = outcomes.scopes[winner]
    frame.winner = winner
    frame.noted = True
    frame.log.extend(scope.log.since(frame.mark))
    frame.mark = frame.written = len(frame.log)
    if not scope.untouched:
        # Reading frame.state notes what it was, so that a step around the race can still go back.
        restore_state(frame.state, copy_state(scope.state))
    if scope.layer_states is not frame.scope.layer_states:
        frame.put_layer_states(scope.layer_states)
    return value


async def _merge(frame: Frame, spec: ParallelSpec, results: list[Any], outcomes: Outcomes) -> object:
    merge = spec.merge
    if merge is None:
        return results
    results = copy_value(results)
    states = [outcomes.scopes[index].state for index in range(len(results))] if spec.merge_arity >= _WITH_STATES else []
    return copy_value(await call_apart(frame, merge, *(results, frame, states)[: max(1, spec.merge_arity)]))


def gather_step(steps: Sequence[AnyStep], state: ShareState) -> AnyStep:
    """The section that `ctx.gather` runs.

    Raises:
        ConfigError: Something is not a step, or `state` is unknown.
    """
    bound = tuple(require_step(step, "gather") for step in steps)
    return Step(id="gather", kind="gather", spec=GatherSpec(bound, check_shared(state, "gather")))


async def run_gather(value: object, frame: Frame) -> list[object]:
    """Bound steps at once."""
    spec: GatherSpec = frame.step.spec
    paths = [Path(step, value, f"{step.id}[{index}]") for index, step in enumerate(spec.steps)]
    if not paths:
        return []
    outcomes = await run_paths(frame, paths, "all")
    await _return_layers(frame, paths, outcomes)
    values = all_values(frame, paths, outcomes)
    _join_state(frame, paths, outcomes, spec.state)
    return values


KINDS = (
    Kind("sequence", run_sequence, composite=True, in_order=True, ends_with=_is_last, passes_on=True),
    Kind(
        "branch", run_branch, composite=True, in_order=True, ends_with=lambda frame, name, output: True, passes_on=True
    ),
    Kind("parallel", run_parallel, composite=True, paths=True, at_once=True, skips=True),
    Kind("gather", run_gather, declared=False, digested=False, composite=True, paths=True, at_once=True),
)
