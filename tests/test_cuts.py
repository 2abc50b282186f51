"""A scope in a body has cut off a step: a process that goes on cuts it off again, and asks no clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from noetic_py import (
    Channel,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    StateBag,
    Step,
    call_tool,
    loop,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.checkpoints.files import FileBackend
from noetic_py.checkpoints.sqlite import SqliteBackend
from noetic_py.context.detached import DetachedRun
from noetic_py.errors import ChannelTimeout, StepTimeout, ToolFailed
from noetic_py.testing import FaultyBackend, assert_resumable_everywhere

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]
SOON = 0.002


def nothing() -> None:
    """What cuts it off comes by itself."""


# What a body's scope is told by the step that it is around, once that has begun: no test waits for a clock.
STRIKE: ContextVar[Callable[[], None]] = ContextVar("STRIKE", default=nothing)


@step
async def quick(name: str, ctx: Ctx) -> str:
    ctx.items.append(Message.user(name))
    times: Any = ctx.state.get(name, 0)
    ctx.state[name] = times + 1
    return name


class Slow:
    """A step that is cut off in the first process, and would be quick in the next."""

    def __init__(self, *, always: bool = False) -> None:
        self.begun = 0
        self.always = always

        @step
        async def slow(name: str, ctx: Ctx) -> str:
            self.begun += 1
            ctx.items.append(Message.user(f"unwritten {name}"))
            if always or self.begun == 1:
                STRIKE.get()()
                await anyio.sleep_forever()
            return name

        @step
        async def deep(name: str, ctx: Ctx) -> str:
            ctx.items.append(Message.user(f"own {name}"))
            await quick(f"{name} inside", ctx)
            return await slow(name, ctx)

        self.step: AnyStep = slow
        self.deep: AnyStep = deep


# ---------------------------------------------------------------------------------------------- ways to cut off a step


Cut = Callable[[AnyStep, str, Any], Any]


async def by_move_on(slow: AnyStep, name: str, ctx: Any) -> bool:
    with anyio.move_on_after(60) as scope:
        STRIKE.set(lambda: end(scope))
        await slow(name, ctx)
    return scope.cancelled_caught


async def by_fail(slow: AnyStep, name: str, ctx: Any) -> bool:
    try:
        with anyio.fail_after(60) as scope:
            STRIKE.set(lambda: end(scope))
            await slow(name, ctx)
    except TimeoutError:
        return True
    return False


async def by_an_outer_scope(slow: AnyStep, name: str, ctx: Any) -> bool:
    with anyio.move_on_after(60) as outer:
        STRIKE.set(lambda: end(outer))
        with anyio.move_on_after(60) as inner, anyio.CancelScope():
            await slow(name, ctx)
        assert not inner.cancel_called
    return outer.cancelled_caught


async def by_a_task(slow: AnyStep, name: str, ctx: Any) -> bool:
    async with anyio.create_task_group() as group:
        begun = anyio.Event()

        async def cancel() -> None:
            await begun.wait()
            group.cancel_scope.cancel()

        group.start_soon(cancel)
        STRIKE.set(begun.set)
        await slow(name, ctx)
    return group.cancel_scope.cancel_called


def end(scope: anyio.CancelScope) -> None:
    """The time of a scope is over, whatever the clock says."""
    scope.deadline = anyio.current_time()


async def by_the_time_of_asyncio(slow: AnyStep, name: str, ctx: Any) -> bool:
    try:
        async with asyncio.timeout(SOON):
            STRIKE.set(nothing)
            await slow(name, ctx)
    except TimeoutError:
        return True
    return False


CUTS: list[Cut] = [by_move_on, by_fail, by_an_outer_scope, by_a_task]


def body_of(cut: Cut, slow: Any, broken: list[bool] | None = None) -> AnyStep:
    @step
    async def body(name: str, ctx: Ctx) -> list[Any]:
        found: list[Any] = [await quick("before", ctx), await cut(slow, "cut", ctx)]
        found.append(await quick("after", ctx))
        if broken:
            raise ValueError("broken")
        return found

    return body


def texts(result: Any) -> list[str]:
    return [item.text for item in result.items]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("cut", CUTS, ids=lambda each: each.__name__)
async def test_it_is_cut_off_again_without_running(cut: Cut, deep: bool) -> None:
    slow, broken = Slow(), [True]
    flow = body_of(cut, slow.deep if deep else slow.step, broken)
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        first = await harness.run(flow, "go", run_id="run", on_error="result")
        assert first.status == "failed"
        broken.clear()
        second = await harness.resume("run", flow)
        assert second.value == ["before", True, "after"]
        assert slow.begun == 1
        whole = await harness.run(body_of(cut, Slow().deep if deep else Slow().step), "go")
        assert texts(second) == texts(whole)
        assert second.state == whole.state
        # The body that is tried again counts once.
        assert second.steps == whole.steps


# ---------------------------------------------------------------------------------- what a body waits for besides steps


Waits = Callable[[Any, str, Any], Any]
TALK = Channel("talk", str)


async def for_work(slow: Slow, name: str, ctx: Any) -> str:
    work = ctx.spawn_detached(slow.step, name)
    try:
        return str((await work.wait()).value)
    finally:
        work.abort("enough")


async def for_work_that_has_ended_by_then(slow: Slow, name: str, ctx: Any) -> str:
    """The work is done when the next process comes to wait for it."""
    work = ctx.spawn_detached(slow.step, name)
    try:
        if slow.begun:
            while work.status == "running":
                await anyio.lowlevel.checkpoint()
        return str((await work.wait()).value)
    finally:
        work.abort("enough")


async def for_work_of_the_harness(slow: Slow, name: str, ctx: Any) -> str:
    work = ctx.spawn_detached(slow.step, name, owner="harness")
    try:
        return str((await work.wait()).value)
    finally:
        work.abort("enough")


async def for_a_message(slow: Slow, name: str, ctx: Any) -> str:
    if slow.begun:
        await ctx.send(TALK, name, timeout=60)
    else:
        STRIKE.get()()
    slow.begun += 1
    return str(await ctx.recv(TALK, timeout=60))


WAITS: list[Waits] = [for_work, for_work_that_has_ended_by_then, for_work_of_the_harness, for_a_message]


@pytest.mark.parametrize("wait", WAITS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("cut", CUTS, ids=lambda each: each.__name__)
async def test_what_a_body_waits_for_is_cut_off_again(cut: Cut, wait: Waits, backend: CheckpointBackend) -> None:
    slow, broken = Slow(), [True]

    async def waiting(name: str, ctx: Any) -> str:
        return str(await wait(slow, name, ctx))

    flow = body_of(cut, waiting, broken)
    with anyio.fail_after(20):
        async with Harness(checkpoints=backend) as harness:
            first = await harness.run(flow, "go", run_id="run", on_error="result")
            assert first.status == "failed"
            broken.clear()
            assert (await harness.resume("run", flow)).value == ["before", True, "after"]


async def test_the_timeout_of_a_wait_strikes_again(backend: CheckpointBackend) -> None:
    slow, broken = Slow(), [True]

    @step
    async def body(name: str, ctx: Ctx) -> list[str]:
        found = list[str]()
        work = ctx.spawn_detached(slow.step, name)
        try:
            await work.wait(timeout=SOON)
        except StepTimeout:
            found.append("not done")
        try:
            found.append(await ctx.recv(TALK, timeout=SOON))
        except ChannelTimeout:
            found.append("no message")
        await ctx.send(TALK, "late", timeout=60)
        found.append(await ctx.recv(TALK, timeout=60))
        found.append(await quick("after", ctx))
        work.abort("enough")
        if broken:
            raise ValueError("broken")
        return found

    @step
    async def talks(name: str, ctx: Ctx) -> list[str]:
        if not broken:
            await ctx.send(TALK, "early", timeout=60)
        return await body(name, ctx)

    with anyio.fail_after(20):
        async with Harness(checkpoints=backend) as harness:
            first = await harness.run(talks, "go", run_id="run", on_error="result")
            assert first.status == "failed"
            broken.clear()
            result = await harness.resume("run", talks)
    assert result.value[:2] == ["not done", "no message"]
    assert result.value[-1] == "after"


async def test_of_several_that_wait_in_tasks_of_the_body_the_first_is_the_first_again(
    backend: CheckpointBackend,
) -> None:
    """What a task of the body's has waited for has no order of its own, so nothing is decided of it."""
    broken = [True]

    @step
    async def at_once(name: str) -> str:
        return name

    @step
    async def never(name: str) -> str:
        await anyio.sleep_forever()
        return name

    @step
    async def body(name: str, ctx: Ctx) -> list[str]:
        works = [ctx.spawn_detached(never, name), ctx.spawn_detached(at_once, name)]
        found = list[str]()
        async with anyio.create_task_group() as group:

            async def wait(work: DetachedRun[str]) -> None:
                found.append((await work.wait()).value)
                group.cancel_scope.cancel()

            for work in works:
                group.start_soon(wait, work)
        await quick("after", ctx)
        if broken:
            raise ValueError("broken")
        works[0].abort("enough")
        return found

    with anyio.fail_after(20):
        async with Harness(checkpoints=backend) as harness:
            assert (await harness.run(body, "go", run_id="run", on_error="result")).status == "failed"
            broken.clear()
            assert (await harness.resume("run", body)).value == ["go"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_no_scope_cuts_it_off_by_its_own_clock(anyio_backend: str) -> None:
    slow, broken = Slow(), [True]
    flow = body_of(by_the_time_of_asyncio, slow.step, broken)
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        await harness.run(flow, "go", run_id="run", on_error="result")
        broken.clear()
        assert (await harness.resume("run", flow)).value == ["before", True, "after"]
    assert slow.begun == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_event_loop_that_does_not_show_its_scopes(monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> None:
    """Then the scope of the body comes to its end by itself."""
    monkeypatch.setattr("noetic_py.engine.frame._scopes", list)
    slow, broken = Slow(), [True]
    flow = body_of(by_its_clock, slow.step, broken)
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        await harness.run(flow, "go", run_id="run", on_error="result")
        broken.clear()
        assert (await harness.resume("run", flow)).value == ["before", True, "after"]
    assert slow.begun == 1


async def by_its_clock(slow: AnyStep, name: str, ctx: Any) -> bool:
    with anyio.move_on_after(SOON) as scope:
        await slow(name, ctx)
    return scope.cancelled_caught


@pytest.mark.parametrize(
    ("kind", "cut"),
    [*(("memory", cut) for cut in CUTS), ("files", by_fail), ("sqlite", by_fail)],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_killed_anywhere(kind: str, cut: Cut, tmp_path: Any) -> None:
    """Where the process dies before the body has gone on, nothing is decided, and the step runs again."""
    make: dict[str, Callable[[int], Any]] = {
        "memory": lambda at: InMemoryBackend(),
        "files": lambda at: FileBackend(tmp_path / f"{at}"),
        "sqlite": lambda at: SqliteBackend(tmp_path / f"{at}.db"),
    }
    for at in range(1, 9):
        slow = Slow(always=True)
        inner = make[kind](at)
        backend = FaultyBackend(inner, dies_at=at)
        flow = body_of(cut, slow.deep)
        with backend.outlived():
            async with Harness(checkpoints=backend) as harness:
                await harness.run(flow, "go", run_id="run")
        died = backend.dead
        backend.revive()
        async with Harness(checkpoints=backend) as harness:
            if at == 1:
                # It died before it had begun.
                continue
            result = await harness.resume("run", flow)
            assert result.value == ["before", True, "after"], at
            assert slow.begun <= 2
        await inner.close()
        if not died:
            return
    raise AssertionError("the process died at every commit, so there are more")


async def test_a_process_that_is_cancelled_decides_nothing() -> None:
    """What has cancelled the body itself may not come again: the step runs to its end."""
    slow = Slow()
    flow = body_of(by_never, slow.step)
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        with anyio.move_on_after(60) as scope:
            STRIKE.set(lambda: end(scope))
            await harness.run(flow, "go", run_id="run")
        STRIKE.set(nothing)
        assert (await harness.resume("run", flow)).value == ["before", False, "after"]
        out_of_time = Slow()
        flow = body_of(by_never, out_of_time.step)
        ended = await harness.run(flow, "go", run_id="other", deadline=0.05, on_error="result")
        assert ended.status == "budget_exceeded"
        assert (await harness.resume("other", flow)).value == ["before", False, "after"]


async def by_never(slow: AnyStep, name: str, ctx: Any) -> bool:
    with anyio.move_on_after(600) as scope:
        await slow(name, ctx)
    return scope.cancelled_caught


@pytest.mark.parametrize("how", ["scope", "deadline", "task"])
async def test_a_body_that_puts_things_in_order_when_it_is_cancelled(how: str, anyio_backend: str) -> None:
    """It goes on to call a step, and still it was not its own scope: a process that goes on runs what was cut off."""
    if how == "task" and anyio_backend == "trio":
        return
    slow = Slow()

    @step
    async def body(name: str, ctx: Ctx) -> str:
        found = "cut off"
        try:
            with anyio.move_on_after(600):
                found = await slow.step(name, ctx)
        finally:
            with anyio.CancelScope(shield=True):
                await quick("in order", ctx)
        return found

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        if how == "deadline":
            await harness.run(body, "go", run_id="run", deadline=0.05, on_error="result")
        elif how == "scope":
            with anyio.move_on_after(60) as scope:
                STRIKE.set(lambda: end(scope))
                await harness.run(body, "go", run_id="run")
        else:
            task = asyncio.create_task(harness.run(body, "go", run_id="run"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        STRIKE.set(nothing)
        with anyio.fail_after(5):
            assert (await harness.resume("run", body)).value == "go"
    assert slow.begun == 2


async def test_another_attempt_is_not_cut_off() -> None:
    slow = Slow()
    tried: list[int] = []

    @step(retry=2)
    async def body(name: str, ctx: Ctx) -> bool:
        tried.append(1)
        with anyio.move_on_after(60) as scope:
            STRIKE.set(lambda: end(scope))
            await slow.step(name, ctx)
        await quick("after", ctx)
        if len(tried) == 1:
            raise ValueError("again")
        return scope.cancelled_caught

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        assert (await harness.run(body, "go")).value is False
    assert slow.begun == 2


async def test_a_step_that_had_finished_when_its_scope_was_over() -> None:
    """A step that may run only once is left in peace: it has its value, and its block is left all the same."""
    ran: list[str] = []
    broken = [True]

    @step(replay="once")
    async def pay(name: str) -> str:
        ran.append(name)
        STRIKE.get()()
        return "paid"

    @step
    async def body(name: str, ctx: Ctx) -> str:
        found = "cut off"
        with anyio.move_on_after(60) as scope:
            STRIKE.set(lambda: end(scope))
            found = await pay(name, ctx)
        await quick("after", ctx)
        if broken:
            raise ValueError("broken")
        return found

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        await harness.run(body, "go", run_id="run", on_error="result")
        broken.clear()
        assert (await harness.resume("run", body)).value == "cut off"
    assert ran == ["go"]


async def test_what_else_commits_what_the_body_knows_by_then() -> None:
    """Progress, a checkpoint and work beside the flow come after the cut, and so does what they say."""
    for act in ("progress", "checkpoint", "detached"):
        slow, broken = Slow(), [True]

        flow: AnyStep = step(id="body")(goes_on(act, slow, broken))
        async with Harness(checkpoints=InMemoryBackend()) as harness:
            await harness.run(flow, "go", run_id="run", on_error="result")
            broken.clear()
            assert (await harness.resume("run", flow)).value is True, act
        assert slow.begun == 1, act


def goes_on(act: str, slow: Slow, broken: list[bool]) -> Any:
    async def body(name: str, ctx: Any) -> bool:
        cut = await by_move_on(slow.step, name, ctx)
        if act == "progress":
            ctx.progress.set("passed")
        elif act == "checkpoint":
            await ctx.checkpoint()
        else:
            await ctx.spawn_detached(quick, "beside").wait()
        if broken:
            raise ValueError("broken")
        return bool(cut)

    return body


async def test_steps_of_a_tool_that_took_too_long() -> None:
    slow, broken = Slow(), [True]

    @tool(timeout=0.05)
    async def work(ctx: Context) -> str:
        """Call a slow step."""
        await slow.step("x", ctx)
        return "done"

    @step
    async def body(name: str, ctx: Ctx) -> str:
        try:
            return str(await call_tool(work, args={})(None, ctx))
        except ToolFailed as error:
            await quick("after", ctx)
            if broken:
                raise ValueError("broken") from None
            return type(error).__name__

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        await harness.run(body, "go", run_id="run", on_error="result")
        broken.clear()
        assert (await harness.resume("run", body)).value == "ToolFailed"
    assert slow.begun == 1


# ------------------------------------------------------------------------------------------------------ random programs


def same(inner: AnyStep) -> AnyStep:
    return inner


def after_quick(inner: AnyStep) -> AnyStep:
    return sequence(quick, inner)


def spawned(inner: AnyStep) -> AnyStep:
    return spawn(inner)


WRAPS: list[Callable[[AnyStep], AnyStep]] = [same, after_quick, spawned]


class Program:
    """Bodies with scopes around steps, which do the same each time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def flow(self) -> AnyStep:
        self.rng = random.Random(self.seed)
        return self.body(1, "root")

    def body(self, depth: int, name: str) -> AnyStep:
        rng = self.rng
        slow = Slow(always=True)
        acts = [rng.choice(("quick", "own", "cut", "cut", "in time", "below")) for _ in range(rng.randint(2, 3))]
        cuts = [rng.choice(CUTS) for _ in acts]
        below: list[AnyStep] = [self.body(depth - 1, f"{name}{at}") if depth else quick for at in range(len(acts))]
        wraps = [rng.choice(WRAPS) for _ in acts]
        inner: list[AnyStep] = [
            rng.choice((slow.step, slow.deep, sequence(below[at], slow.step))) for at in range(len(acts))
        ]
        wrapped = [wrap(each) for wrap, each in zip(wraps, inner, strict=True)]

        @step(id=name)
        async def body(given: str, ctx: Ctx) -> str:
            found: list[Any] = []
            for at, act in enumerate(acts):
                if act == "quick":
                    await quick(f"{name}/{at}", ctx)
                elif act == "own":
                    ctx.items.append(Message.user(f"{name}/{at} itself"))
                elif act == "cut":
                    found.append(await cuts[at](wrapped[at], f"{name}/{at}", ctx))
                elif act == "in time":
                    with anyio.move_on_after(60):
                        await quick(f"{name}/{at}", ctx)
                else:
                    await below[at](f"{name}/{at}", ctx)
            return f"{given} {found}"

        return body


@pytest.mark.parametrize("seed", range(6))
async def test_random_programs(seed: int) -> None:
    """Killed before and after every commit, each comes out as the run that was not killed."""
    await assert_resumable_everywhere(Program(seed).flow, "go", state=StateBag())


async def test_a_loop_in_a_scope() -> None:
    """A scope around a composite: the rounds that were done stay, and no more are."""
    slow = Slow()

    @step
    async def every_other(name: str, ctx: Ctx) -> str:
        await quick("round", ctx)
        if ctx.state["round"] == 3:
            await slow.step(name, ctx)
        return name

    broken = [True]
    flow = body_of(by_move_on, loop(every_other, until=until.max_rounds(9)), broken)
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        await harness.run(flow, "go", run_id="run", on_error="result")
        broken.clear()
        result = await harness.resume("run", flow)
        assert result.value == ["before", True, "after"]
        assert result.state["round"] == 3
    assert slow.begun == 1
