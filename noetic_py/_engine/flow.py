"""What sequences, branches and sections do."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import anyio
from attrs import define, field, frozen

from noetic_py._engine import durable, ledger
from noetic_py._engine.custody import give_back
from noetic_py._engine.execute import HANDLERS, AnyStep, as_error, execute, forget_loop_stops
from noetic_py._engine.frame import Frame
from noetic_py._engine.memory import fork_layers, join_returned
from noetic_py._engine.parking import Parked
from noetic_py._engine.progress import forget
from noetic_py._engine.state import DOORS
from noetic_py.domain import Domain, branch_at
from noetic_py.errors import BudgetExceeded, ConfigError, NoeticError, ParallelFailed, ReplayDiverged, RouteError
from noetic_py.state import copy_state, restore_state
from noetic_py.steps.flow import BranchSpec, Mode, ParallelSpec, SequenceSpec, Settled
from noetic_py.steps.step import Step, is_step, require_step

__all__ = ["Outcomes", "Path", "first_of", "gather_step", "run_paths"]


async def run_sequence(value: Any, frame: Frame) -> Any:
    """Each step gets what the one before returned."""
    spec: SequenceSpec = frame.step.spec
    for step, name in zip(spec.steps, spec.frames, strict=True):
        value = await execute(step, value, frame, name)
    return value


async def run_branch(value: Any, frame: Frame) -> Any:
    """Ask the route, record what it said, run that."""
    spec: BranchSpec = frame.step.spec
    before = durable.recorded(frame, "route")
    if before is not durable.NOTHING and (known := _route_again(spec, before)) is not None:
        return await execute(known, value, frame, known.id)
    answer = spec.route(value, frame.read_only()) if spec.takes_context else spec.route(value)
    if inspect.isawaitable(answer):
        answer = await answer
    step = _chosen(frame, spec, answer)
    chosen = None if step is None else step.id
    if before is durable.NOTHING:
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


def _chosen(frame: Frame, spec: BranchSpec, answer: Any) -> AnyStep | None:
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


@define(eq=False)
class Outcomes:
    """How the paths of a section ended, in the order in which they did."""

    values: dict[int, Any] = field(factory=dict[int, Any])
    errors: dict[int, NoeticError] = field(factory=dict[int, NoeticError])
    domains: dict[int, Domain] = field(factory=dict[int, Domain])
    # The paths that wait for an answer.
    parked: set[int] = field(factory=set[int])
    # What ends the section early, and when: in "all" the first error, in a race the first value.
    scope: anyio.CancelScope | None = None
    mode: Mode = "settle"


async def run_paths(frame: Frame, paths: Sequence[Path], mode: Mode, concurrency: int | None = None) -> Outcomes:
    """Run paths at once, each in a domain of its own, and await all of them whatever happens.

    Raises:
        Parked: One waits for an answer, and how the section ends depends on it.
    """
    outcomes = Outcomes()
    await _run_all(frame, paths, mode, concurrency, outcomes)
    # A winner has won, and what has failed has failed, whatever another path may still be told.
    decided = outcomes.values if mode == "race" else outcomes.errors if mode == "all" else {}
    if outcomes.parked and not decided:
        raise Parked
    frame.parks = False
    return outcomes


async def _run_all(
    frame: Frame, paths: Sequence[Path], mode: Mode, concurrency: int | None, outcomes: Outcomes
) -> None:
    decided = durable.decided_by(frame, [path.name for path in paths], mode)
    if decided is not None and frame.node is not None and frame.node.layout:
        # Something below had finished, in paths that are not put down again too: what stands around it was written.
        ledger.flush(frame)
    if decided is not None or len(paths) == 1:
        for index in decided or (0,):
            await _run_path(frame, paths[index], index, outcomes)
        return
    async with anyio.create_task_group() as group:
        outcomes.scope = group.cancel_scope
        outcomes.mode = mode
        if concurrency is None or concurrency >= len(paths):
            for index, path in enumerate(paths):
                group.start_soon(_run_path, frame, path, index, outcomes)
        else:
            queue = iter(enumerate(paths))
            for _ in range(concurrency):
                group.start_soon(_work_off, frame, queue, outcomes)


async def _work_off(frame: Frame, queue: Iterator[tuple[int, Path]], outcomes: Outcomes) -> None:
    for index, path in queue:
        await _run_path(frame, path, index, outcomes)


def _over(outcomes: Outcomes) -> bool:
    """Whether the section has its outcome, so that a path that has not begun need not."""
    return outcomes.scope is not None and outcomes.scope.cancel_called


async def _run_path(frame: Frame, path: Path, index: int, outcomes: Outcomes) -> None:
    if _over(outcomes):
        return
    own = outcomes.domains[index] = frame.domain.fork(branch_at((*frame.at, path.name)))
    try:
        if frame.x.layers and path.step.kind != "tool_call":
            await fork_layers(frame, index, own)
        outcomes.values[index] = await execute(path.step, path.value, frame, path.name, own)
    except Exception as error:  # noqa: BLE001 # an outcome like a value: the section decides what it means
        outcomes.errors[index] = as_error(frame, error)
        if outcomes.mode == "all" and outcomes.scope is not None:
            outcomes.scope.cancel()
    except Parked:
        outcomes.parked.add(index)
    else:
        if outcomes.mode == "race" and outcomes.scope is not None:
            outcomes.scope.cancel()


async def run_parallel(value: Any, frame: Frame) -> Any:
    """All, the first, or whatever comes."""
    spec: ParallelSpec = frame.step.spec
    paths = await _paths(frame, spec, value)
    outcomes = await run_paths(frame, paths, spec.mode, spec.concurrency)
    if spec.mode == "race":
        winner = first_of(frame, paths, outcomes.values)
        await _void_losers(frame, paths, winner)
        return _win(frame, paths, outcomes, winner)
    await _return_layers(frame, paths, outcomes)
    results: list[Any]
    if spec.mode == "all":
        results = all_values(frame, paths, outcomes)
    else:
        results = [
            Settled(None, outcomes.errors[index]) if index in outcomes.errors else Settled(outcomes.values[index])
            for index in range(len(paths))
        ]
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
        given = spec.make(value, frame) if spec.takes_context else spec.make(value)
        if inspect.isawaitable(given):
            given = await given
        if not _is_many(given):
            raise RouteError(f"paths gave {given!r}, which is no list of steps", path=frame.path, hint="return steps")
        steps = tuple([_require(frame, step) for step in given])
        ids = tuple(step.id for step in steps)
        before = durable.recorded(frame, "paths")
        if before is durable.NOTHING:
            ledger.decided(frame, "paths", ids)
        elif tuple(before) != ids:
            raise ReplayDiverged(f"the paths were {', '.join(before)}, and are {', '.join(ids)} now", path=frame.path)
    return [Path(step, value, f"{step.id}[{index}]") for index, step in enumerate(steps)]


async def _return_layers(frame: Frame, paths: Sequence[Path], outcomes: Outcomes) -> None:
    """What layers take of the paths that have succeeded, in the order of the paths."""
    if frame.x.layers:
        ended = sorted(outcomes.values)
        children = {f"{frame.x.id}/{paths[at].name}": (outcomes.domains[at], outcomes.values[at]) for at in ended}
        await join_returned(frame, children)


def _require(frame: Frame, value: Any) -> AnyStep:
    if not is_step(value):
        raise RouteError(f"paths gave {value!r}, which is no step", path=frame.path, hint="return steps")
    return value


def _is_many(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


def first_of(frame: Frame, paths: Sequence[Path], ended: Iterable[int]) -> int | None:
    """Which of the paths that have ended was the first; `None` when none has."""
    names = {index: paths[index].name for index in ended}
    return durable.first_of(frame, names) if names else None


def all_values(frame: Frame, paths: Sequence[Path], outcomes: Outcomes) -> list[Any]:
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


async def _void_losers(frame: Frame, paths: Sequence[Path], winner: int | None) -> None:
    """What losers have taken goes back, what they have started beside ends, and nobody hears what else they said."""
    run = frame.x.run
    for index, path in enumerate(paths):
        if index != winner and winner is not None:
            lost = (*frame.at, path.name)
            if run.detached:
                await run.dismiss(lost)
            give_back(run, lost, below=True)
            forget_loop_stops(frame, lost)
            if run.progress:
                forget(run, lost)


def _win(frame: Frame, paths: Sequence[Path], outcomes: Outcomes, winner: int | None) -> Any:
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
    domain = outcomes.domains[winner]
    frame.winner = winner
    frame.noted = True
    frame.log.extend(domain.log.since(frame.mark))
    frame.mark = frame.written = len(frame.log)
    if not domain.untouched:
        # Reading frame.state notes what it was, so that a step around the race can still go back.
        restore_state(frame.state, copy_state(domain.state))
    if domain.cells is not frame.domain.cells:
        frame.put_cells(domain.cells)
    return value


async def _merge(frame: Frame, spec: ParallelSpec, results: list[Any], outcomes: Outcomes) -> Any:
    merge = spec.merge
    if merge is None:
        return results
    if spec.merge_arity >= 3:
        merged = merge(results, frame, [outcomes.domains[index].state for index in range(len(results))])
    elif spec.merge_arity == 2:
        merged = merge(results, frame)
    else:
        merged = merge(results)
    return await merged if inspect.isawaitable(merged) else merged


@frozen(eq=False)
class GatherSpec:
    """The steps of one `ctx.gather`."""

    steps: tuple[AnyStep, ...]


def gather_step(steps: Sequence[AnyStep]) -> AnyStep:
    """The section that `ctx.gather` runs."""
    return Step(id="gather", kind="gather", spec=GatherSpec(tuple(require_step(step, "gather") for step in steps)))


async def run_gather(value: Any, frame: Frame) -> list[Any]:
    """Bound steps at once."""
    spec: GatherSpec = frame.step.spec
    paths = [Path(step, value, f"{step.id}[{index}]") for index, step in enumerate(spec.steps)]
    if not paths:
        return []
    outcomes = await run_paths(frame, paths, "all")
    await _return_layers(frame, paths, outcomes)
    return all_values(frame, paths, outcomes)


DOORS.section = gather_step
HANDLERS.update(sequence=run_sequence, branch=run_branch, parallel=run_parallel, gather=run_gather)
