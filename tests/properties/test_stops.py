"""Whatever stops a run, and whenever: one end, nothing alive, and a log and a state that are whole."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, frozen

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Message,
    RunFinished,
    RunHandle,
    RunResult,
    Step,
    call_model,
    errors,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    until,
)
from noetic_py.core.log import ItemLog
from noetic_py.engine.journaling.fold import items_below
from noetic_py.journal.records import RunEnded, StepFinished
from noetic_py.testing import ScriptedModel
from noetic_py.testing._random_programs.conversation import pairing_error, told
from tests.properties.checks import SEED, examples, left_over, tasks
from tests.properties.stepping import Points

pytestmark = pytest.mark.anyio

AnyStep: TypeAlias = Step[Any, Any, Any, Any]
AnyContext: TypeAlias = Context[Any, Any]
How: TypeAlias = Literal["complete", "abort", "handle_abort", "interrupt", "budget", "deadline", "cancel"]

KINDS: tuple[How, ...] = ("complete", "abort", "handle_abort", "interrupt", "budget", "deadline", "cancel")
SHAPES = ("all", "settle", "race", "gather", "nested", "spawned")
STATUS: dict[How, str] = {
    "complete": "completed",
    "abort": "aborted",
    "handle_abort": "aborted",
    "interrupt": "interrupted",
    "budget": "budget_exceeded",
    "deadline": "budget_exceeded",
    "cancel": "cancelled",
}


@define
class State:
    """Fields that are changed together, with a wait between."""

    a: int = 0
    b: int = 0


@frozen
class Moment:
    """What is stopped, how, and when."""

    seed: int
    how: How
    shape: str
    paths: int
    at: int


def moment(seed: int) -> Moment:
    """The moment of a seed."""
    chance = random.Random(seed)
    paths = chance.choice((2, 3, 4, 6, 8, 16, 32, 64))
    inside = 5 * paths + 6
    how = KINDS[seed % len(KINDS)]
    # Bodies count their own waits, the event loop's points are more.
    return Moment(seed, how, chance.choice(SHAPES), paths, chance.randint(1, inside if how != "budget" else 2 * paths))


class Trial:
    """One run, with what its bodies saw."""

    def __init__(self, wanted: Moment) -> None:
        self.wanted = wanted
        self.ticks = 0
        self.stopped = False
        self.started_late: list[str] = []
        self.torn: list[str] = []
        self.whole = [State()]
        self.kept: list[str] = []
        self.bodies = 0
        self.model = ScriptedModel(*["yes"] * 200, cost="0.01")
        self.events: list[object] = []
        self.handle: RunHandle[Any, State] | None = None
        self.ctx: Context[Any, State] = Context(state=State())
        self.scope = anyio.CancelScope()

    # -- the flow

    def body(self, name: str, *children: AnyStep) -> AnyStep:
        """A step that changes two fields and writes a call and its output, all with waits between."""

        async def work(x: Any, ctx: AnyContext) -> int:
            self.bodies += 1
            if self.stopped:
                self.started_late.append(name)
            state: State = ctx.state
            if state.a != state.b:
                self.torn.append(name)
            self.whole.append(deepcopy(state))
            state.a += 1
            await self.tick(ctx)
            call = FunctionCall(name=name)
            ctx.items.append(call)
            await self.tick(ctx)
            state.b += 1
            ctx.items.append(FunctionCallOutput(call_id=call.call_id, output="done"))
            for child in children:
                self.whole.append(deepcopy(state))
                await child(x, ctx)
            ctx.items.append(Message.assistant(name))
            self.whole.append(deepcopy(state))
            if ctx.branch == "flow":
                self.kept.append(name)
            return 1

        return step(id=name)(work)

    def section(self) -> AnyStep:
        """The paths, in the shape that is wanted."""
        ask = call_model(self.model).bind("well?")
        paths: list[AnyStep] = [
            sequence(self.body(f"path{index}"), self.body(f"more{index}", ask)) for index in range(self.wanted.paths)
        ]
        match self.wanted.shape:
            case "settle":
                return settle([*paths, self.failing()], merge=lambda outcomes, ctx: 1)
            case "race":
                return race(paths)
            case "gather":
                return self.gathering(paths)
            case "nested":
                return parallel([parallel(paths, merge=lambda outputs, ctx: 1), self.body("beside")], merge=self.merge)
            case "spawned":
                return parallel([spawn(path) for path in paths], merge=self.merge)
            case _:
                return parallel(paths, merge=self.merge)

    def merge(self, outputs: Any, ctx: AnyContext, states: Any) -> int:
        """Change the parent's state at the join."""
        ctx.state.a = ctx.state.b = sum(state.a for state in states)
        self.whole.append(deepcopy(ctx.state))
        return 1

    def failing(self) -> AnyStep:
        """A path that fails."""

        async def fail(x: Any, ctx: AnyContext) -> int:
            self.bodies += 1
            ctx.state.a += 1
            await self.tick(ctx)
            raise ValueError("path")

        return step(id="failing")(fail)

    def gathering(self, paths: list[AnyStep]) -> AnyStep:
        """A body that runs the paths."""

        async def gather(x: Any, ctx: AnyContext) -> int:
            self.bodies += 1
            await ctx.gather(*[path.bind(x) for path in paths])
            return 1

        return step(id="gathering")(gather)

    def flow(self) -> AnyStep:
        """The whole: a step, the section, a step, twice."""
        once = sequence(self.body("before", self.body("child")), self.section(), self.body("after"))
        return sequence(loop(once, until=until.max_rounds(2)), id="flow")

    # -- the stop

    async def tick(self, ctx: AnyContext) -> None:
        """A wait that counts; at the wanted one the body itself may ask for the stop."""
        self.ticks += 1
        if self.ticks == self.wanted.at and self.wanted.how in ("complete", "abort"):
            self.stopped = True
            # From a spawn it is the run that is stopped, not the spawn alone.
            target: AnyContext = ctx.root if self.wanted.shape == "spawned" else ctx
            if self.wanted.how == "complete":
                target.complete("early")
            else:
                target.abort("because")
        await checkpoint()

    def from_outside(self) -> None:
        """Stop the run from where nobody runs in it."""
        handle = self.handle
        assert handle is not None
        root = handle._run.root
        match self.wanted.how:
            case "handle_abort":
                self.stopped = not handle.done
                handle.abort("because")
            case "interrupt":
                self.stopped = not handle.done
                handle.interrupt("because")
            case "deadline":
                if root is not None:
                    root.cancel_scope.deadline = anyio.current_time()
            case "cancel":
                self.scope.cancel()
            case _:
                raise AssertionError(self.wanted)

    async def go(self, harness: Harness[Any]) -> RunResult[Any, State] | None:
        """Run it to its end."""
        budget = Budget(steps=self.wanted.at) if self.wanted.how == "budget" else Budget()
        outside = self.wanted.how in ("handle_abort", "interrupt", "deadline", "cancel")
        points = Points(self.wanted.at + 3 if outside else 0, self.from_outside)
        result: RunResult[Any, State] | None = None

        async def work() -> None:
            nonlocal result
            with self.scope:
                async with harness:
                    start: Any = harness.start
                    handle: RunHandle[Any, State] = start(
                        self.flow(), 1, ctx=self.ctx, budget=budget, deadline=600.0, on_error="result"
                    )
                    self.handle = handle
                    handle._run.bus.watch(self.events.append)
                    result = await handle.result()

        await points.run(work)
        return result


def check_end(trial: Trial, result: RunResult[Any, State] | None) -> str:
    """The status, and that there is one end."""
    assert trial.handle is not None
    ends = [event for event in trial.events if isinstance(event, RunFinished)]
    assert ends == trial.events[-1:]
    status = ends[0].status
    records = trial.handle._run.journal
    assert [record.status for record in records if isinstance(record, RunEnded)] == [status]
    if result is None:
        assert trial.wanted.how == "cancel"
        # The cancellation may have come when the run was over, and only its result was not read yet.
        assert status in ("cancelled", "completed")
        return status
    assert result.status == status
    if trial.wanted.how == "complete" and trial.stopped:
        assert result.value == "early"
    if status != "completed":
        assert status == STATUS[trial.wanted.how], result.error
        assert result.reason
        with pytest.raises(errors.NoeticError):
            _ = result.value
    if status == "budget_exceeded":
        assert isinstance(result.error, errors.BudgetExceeded)
        assert result.error.dimension == ("steps" if trial.wanted.how == "budget" else "seconds")
    return status


def check_log(trial: Trial, items: list[Item]) -> None:
    """A provider takes it, and no finished step is missing."""
    assert pairing_error(items) is None
    said = [item.text for item in items if isinstance(item, Message) and item.role == "assistant"]
    missing = Counter(trial.kept) - Counter(said)
    assert not missing, missing


def check_state(trial: Trial, state: State) -> None:
    """Old or new."""
    assert state.a == state.b
    assert state in trial.whole
    assert not trial.torn


def check_books(trial: Trial, harness: Harness[Any], result: RunResult[Any, State] | None) -> None:
    """What was reserved has come back, what was used is counted."""
    lease = harness._resources.lease
    assert not any(lease._held.values())
    assert lease.cost == Decimal("0.01") * len(trial.model.requests)
    assert lease.calls == len(trial.model.requests)
    if result is not None:
        assert result.cost == lease.cost
        if trial.wanted.how == "budget":
            assert result.steps <= trial.wanted.at


async def attempt(wanted: Moment) -> str:
    """Stop a run at a moment, and check everything; returns how it ended."""
    trial = Trial(wanted)
    harness = Harness(plugins=(), budget=Budget(cost=1000))
    before = tasks()
    with anyio.fail_after(60):
        result = await trial.go(harness)
    assert await left_over(before) == set()
    status = check_end(trial, result)
    assert trial.handle is not None
    run = trial.handle._run
    items = list(ItemLog(items_below(run.journal, run.kinds, ())).rendered("x") if result is None else result.items)
    # A body that asked for the stop keeps what it had begun, and waits in the middle of it.
    asked = wanted.how in ("complete", "abort") and trial.stopped
    if not asked:
        check_state(trial, trial.ctx.state)
    check_log(trial, items)
    assert told(trial.ctx.items.rendered("x")) == told(items)
    check_books(trial, harness, result)
    assert trial.started_late == []
    assert run.limits.children == 0
    assert all(record.path for record in run.journal if isinstance(record, StepFinished))
    return status


async def test_stops_at_random_moments() -> None:
    count = examples(sample=40, full=500)
    ends: Counter[str] = Counter()
    for seed in range(SEED * 10_000, SEED * 10_000 + count):
        wanted = moment(seed)
        try:
            ends[await attempt(wanted)] += 1
        except BaseException as error:
            error.add_note(f"NOETIC_SEED={SEED}, {wanted}")
            raise
    # Most moments lie within their runs, and among many each way to stop occurs.
    assert count < 500 or set(ends) >= set(STATUS.values()), ends


@pytest.mark.parametrize("how", ["complete", "abort"])
async def test_what_the_asking_body_did_until_its_next_wait_is_kept(how: str) -> None:
    async def work(x: int, ctx: AnyContext) -> int:
        ctx.state.a += 1
        ctx.items.append(Message.assistant("before"))
        getattr(ctx, how)("now")
        ctx.items.append(Message.assistant("until the wait"))
        ctx.state.b += 1
        await checkpoint()
        ctx.state.a += 1
        return x

    result = await Harness(plugins=()).run(step(id="work")(work), 1, state=State())
    assert result.state == State(1, 1)
    assert [item.text for item in result.items if isinstance(item, Message)] == ["before", "until the wait"]


async def test_a_failure_cancels_the_paths_beside_it() -> None:
    cancelled: list[int] = []

    async def fail(x: int) -> int:
        await checkpoint()
        raise ValueError("path")

    async def hang(x: int) -> int:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(x)
        return x

    before = tasks()
    with anyio.fail_after(10), pytest.raises(errors.ParallelFailed) as caught:
        await Harness(plugins=()).run(parallel([step(id="hang")(hang), step(id="fail")(fail)]), 1)
    assert list(caught.value.failed) == [1]
    assert cancelled == [1]
    assert await left_over(before) == set()


@pytest.mark.parametrize("concurrency", [None, 1, 3])
@pytest.mark.parametrize("mode", ["all", "race"])
async def test_a_section_that_is_over_begins_no_path(mode: str, concurrency: int | None) -> None:
    begun: list[int] = []

    async def end(x: int) -> int:
        begun.append(x)
        if mode == "all":
            raise ValueError("path")
        return x

    paths = [step(id=f"path{index}")(end) for index in range(20)]
    make: Any = parallel if mode == "all" else race
    flow: AnyStep = make(paths, concurrency=concurrency)
    result: RunResult[Any, Any] = await Harness(plugins=()).run(flow, 1, on_error="result")
    assert result.status == ("failed" if mode == "all" else "completed")
    assert len(begun) == 1
