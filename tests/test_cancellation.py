"""A cancellation that nothing has requested is a failure; one that was requested goes through, whatever it meets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    HookContext,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    ModelRequest,
    ModelResponse,
    Retry,
    Step,
    branch,
    call_model,
    call_tool,
    each,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.context import hooks
from noetic_py.context.hooks import StepCall
from noetic_py.errors import NoeticError, ParallelFailed, StepFailed
from noetic_py.models import ModelStream
from noetic_py.testing import Died, ScriptedModel

pytestmark = pytest.mark.anyio

AnyStep = Step[Any, Any, Any, Any]
Fault = Callable[[], Awaitable[None]]


# --------------------------------------------------------------------------------------------------------------- faults


async def raises() -> None:
    raise asyncio.CancelledError


async def raises_a_group() -> None:
    raise BaseExceptionGroup("several", [asyncio.CancelledError("gone"), ValueError("too")])


async def awaits_a_cancelled_future() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel("the connection was closed")
    await future


async def awaits_a_future_that_is_cancelled_later() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_soon(future.cancel)
    await future


async def awaits_a_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def waits_for_a_cancelled_future() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await asyncio.wait_for(future, 60)


async def raises_in_a_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        await awaits_a_cancelled_future()


async def raises_in_an_anyio_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 60)
        await awaits_a_cancelled_future()


async def raises_in_a_scope_that_is_over() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await raises()


EVERYWHERE: list[Fault] = [raises, raises_a_group]
ASYNCIO: list[Fault] = [
    awaits_a_cancelled_future,
    awaits_a_future_that_is_cancelled_later,
    awaits_a_cancelled_task,
    waits_for_a_cancelled_future,
    raises_in_a_task_group,
    raises_in_an_anyio_group,
    raises_in_a_scope_that_is_over,
]


def faults(anyio_backend: str) -> list[Fault]:
    """trio makes no cancellation that nothing has requested: there only what is raised by hand is one."""
    return [*EVERYWHERE, *ASYNCIO] if anyio_backend == "asyncio" else EVERYWHERE


# ------------------------------------------------------------------------------------------------------------- sections


class Unlucky:
    """What meets the fault, for as many calls as it is told."""

    def __init__(self, fault: Fault, times: int) -> None:
        self.fault = fault
        self.left = times

    async def meet(self) -> None:
        self.left -= 1
        if self.left >= 0:
            await self.fault()

    def step(self, **options: Any) -> AnyStep:
        @step(id="unlucky", **options)
        async def body(n: int) -> int:
            await self.meet()
            return n

        return body


@step
async def good(n: int) -> int:
    return n


@step
async def patient(n: int) -> int:
    await anyio.sleep(0.02)
    return n


def count(outputs: Sequence[Any], ctx: object) -> int:
    return len(outputs)


Section = Callable[[AnyStep], AnyStep]
SECTIONS: dict[str, Section] = {
    "alone": lambda bad: bad,
    "sequence": lambda bad: sequence(good, bad, good),
    "branch": lambda bad: branch(lambda n: "bad", {"bad": bad}),
    "parallel": lambda bad: parallel([bad, patient], merge=count),
    "parallel of one": lambda bad: parallel([bad], merge=count),
    "two at a time": lambda bad: parallel([good, bad, patient], concurrency=2, merge=count),
    "each": lambda bad: sequence(step(id="many")(many), each(bad)),
    "gather": lambda bad: step(id="gathers")(gathers(bad)),
    "loop": lambda bad: loop(bad, until=until.max_rounds(2)),
    "spawn": lambda bad: spawn(bad),
    "call": lambda bad: step(id="calls")(calls(bad)),
    "detached": lambda bad: step(id="detaches")(detaches(bad)),
}


async def many(n: int) -> list[int]:
    return [n, n + 1]


def gathers(bad: AnyStep) -> Any:
    async def body(n: int, ctx: Context) -> list[int]:
        return list(await ctx.gather(bad.bind(n), patient.bind(n)))

    return body


def calls(bad: AnyStep) -> Any:
    async def body(n: int, ctx: Context) -> int:
        found: int = await bad(n, ctx)
        return found

    return body


def detaches(bad: AnyStep) -> Any:
    async def body(n: int, ctx: Context) -> int:
        result = await ctx.spawn_detached(bad, n).wait()
        found: int = result.value
        return found

    return body


def store(durable: bool) -> InMemoryBackend | None:
    return InMemoryBackend() if durable else None


def first_failure(error: NoeticError | None) -> StepFailed:
    """The failure that all others came of."""
    cause: object = error
    while isinstance(cause, ParallelFailed) or (
        isinstance(cause, NoeticError) and isinstance(cause.__cause__, NoeticError)
    ):
        cause = cause.first if isinstance(cause, ParallelFailed) else cause.__cause__
    assert isinstance(cause, StepFailed)
    return cause


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", SECTIONS)
async def test_it_is_a_failure_of_that_step(name: str, durable: bool, anyio_backend: str) -> None:
    async with Harness(checkpoints=store(durable)) as harness:
        healthy = harness.start(patient, 7)
        for fault in faults(anyio_backend):
            flow = SECTIONS[name](Unlucky(fault, 1_000).step())
            result = await harness.run(flow, 1, on_error="result")
            assert result.status == "failed", fault
            failure = first_failure(result.error)
            assert failure.path[-1].startswith("unlucky"), fault
            assert failure.error_type == "CancelledError", fault
        assert (await healthy.result()).value == 7


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", SECTIONS)
async def test_another_attempt_follows(name: str, durable: bool, anyio_backend: str) -> None:
    async with Harness(checkpoints=store(durable)) as harness:
        for fault in faults(anyio_backend):
            bad = Unlucky(fault, 1).step(retry=Retry(2, initial=0.0))
            expected = await harness.run(SECTIONS[name](good.with_options(id="unlucky")), 1)
            assert (await harness.run(SECTIONS[name](bad), 1)).value == expected.value, fault


@pytest.mark.parametrize("durable", [False, True])
async def test_siblings_in_a_settle_and_a_race(durable: bool, anyio_backend: str) -> None:
    async with Harness(checkpoints=store(durable)) as harness:
        for fault in faults(anyio_backend):
            bad = Unlucky(fault, 1_000).step()
            settled = (await harness.run(settle([bad, patient]), 3)).value
            assert isinstance(settled[0].error, StepFailed)
            assert settled[1].value == 3
            assert (await harness.run(race([bad, patient]), 3)).value == 3
            lost = await harness.run(race([bad, bad.with_options(id="other")]), 3, on_error="result")
            assert lost.status == "failed"


async def test_the_error_says_what_happened() -> None:
    async with Harness() as harness:
        with pytest.raises(StepFailed) as caught:
            await harness.run(Unlucky(raises, 1).step(), 1)
    assert caught.value.error_type == "CancelledError"
    assert "nothing has cancelled the step" in caught.value.error_message
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


async def test_a_failed_step_stays_failed_for_a_resumed_run(anyio_backend: str) -> None:
    """Its caller has handled the failure: a process that goes on meets the failure again, and not the fault."""
    for fault in faults(anyio_backend):
        unlucky, broken = Unlucky(fault, 1), [True]
        flow: AnyStep = step(id="handles")(handles(unlucky.step(), broken))
        async with Harness(checkpoints=InMemoryBackend()) as harness:
            assert (await harness.run(flow, 1, run_id="run", on_error="result")).status == "failed"
            broken.clear()
            assert (await harness.resume("run", flow)).value == "CancelledError"
        assert unlucky.left == 0, fault


def handles(bad: AnyStep, broken: list[bool]) -> Any:
    async def body(n: int, ctx: Context) -> str:
        try:
            await bad(n, ctx)
        except StepFailed as error:
            await good(n, ctx)
            if broken:
                raise ValueError("broken") from None
            return error.error_type
        return "no failure"

    return body


# ---------------------------------------------------------------------------------------------- in what users give else


async def test_in_a_tool(anyio_backend: str) -> None:
    """The model is told of it, as of every other failure."""

    met: list[Fault] = [raises]

    @tool
    async def search() -> str:
        """Search."""
        await met[0]()
        return "found"

    @tool
    def in_a_thread() -> str:
        """Work in a thread."""
        raise asyncio.CancelledError

    for fault in faults(anyio_backend):
        met[0] = fault
        for each_tool in (search, in_a_thread):
            model = ScriptedModel(FunctionCall(name=each_tool.name, arguments={}), "done")
            async with Harness(model=model) as harness:
                result = await harness.run(loop(call_model(tools=[each_tool]), until=until.no_tool_calls()), "go")
                told = [item.text for item in result.items if isinstance(item, FunctionCallOutput)]
                assert [text.startswith(f"tool '{each_tool.name}' failed: CancelledError") for text in told] == [True]
                direct = await harness.run(call_tool(each_tool, args={}), None, on_error="result")
                assert (direct.status, type(direct.error).__name__) == ("failed", "ToolFailed")


class Stumbling:
    """A model whose client loses its connection when it is asked, or while it answers."""

    name = "test:stumbling"

    def __init__(self, fault: Fault, where: str) -> None:
        self.fault, self.where, self.asked = fault, where, 0
        self.inner = ScriptedModel("hello there", "hello there")

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        self.asked += 1
        if self.where == "enter" and self.asked == 1:
            await self.fault()
        async with self.inner.respond(request) as stream:
            yield _Stumbling(stream, self) if self.where == "stream" and self.asked == 1 else stream
        if self.where == "exit" and self.asked == 1:
            await self.fault()


class _Stumbling:
    def __init__(self, stream: ModelStream, model: Stumbling) -> None:
        self.stream, self.model = stream, model

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for event in self.stream:
            yield event
            await self.model.fault()

    async def response(self) -> ModelResponse:
        await self.model.fault()
        return await self.stream.response()


@pytest.mark.parametrize("where", ["enter", "stream", "exit"])
@pytest.mark.parametrize("durable", [False, True])
async def test_in_a_model(where: str, durable: bool, anyio_backend: str) -> None:
    for fault in faults(anyio_backend):
        async with Harness(model=Stumbling(fault, where), checkpoints=store(durable)) as harness:
            failed = await harness.run(call_model(), "hi", on_error="result")
            assert (failed.status, type(failed.error).__name__) == ("failed", "StepFailed"), fault
        async with Harness(model=Stumbling(fault, where), checkpoints=store(durable)) as harness:
            retried = await harness.run(call_model(retry=Retry(2, initial=0.0)), "hi")
            assert retried.value == "hello there", fault


async def test_in_a_hook(anyio_backend: str) -> None:
    for fault in faults(anyio_backend):

        @hooks.before_step
        async def ask(ctx: HookContext, call: StepCall, fault: Any = fault) -> None:
            await fault()

        async with Harness(hooks=[ask]) as harness:
            result = await harness.run(good, 1, on_error="result")
        assert (result.status, type(result.error).__name__) == ("failed", "HookFailed"), fault


class Notes(MemoryLayer[list[str]]):
    where: str = "recall"
    fault: Any = raises

    async def init(self) -> None:
        if self.where == "init":
            await self.fault()

    async def recall(self, query: str, budget: int) -> str:
        if self.where == "recall":
            await self.fault()
        return "a note"


@pytest.mark.parametrize("where", ["init", "recall"])
async def test_in_a_layer(where: str, anyio_backend: str) -> None:
    """It fails as a hook fails: what ends the run with `init` is left out with `recall`."""
    for fault in faults(anyio_backend):

        class Mem(Memory):
            first: Notes = Notes(where=where, fault=fault)
            second: Notes = Notes(where="nowhere")

        async with Harness(memory=Mem(), model=ScriptedModel("hello")) as harness:
            result = await harness.run(call_model(), "hi", on_error="result")
        if where == "recall":
            assert result.value == "hello", fault
        else:
            assert (result.status, type(result.error).__name__) == ("failed", "LayerError"), fault


def meets(fault: Fault) -> Any:
    async def decide(*args: object) -> None:
        await fault()

    return decide


async def test_in_functions_that_decide(anyio_backend: str) -> None:
    for fault in faults(anyio_backend):
        decide: Any = meets(fault)
        flows: dict[str, AnyStep] = {
            "route": branch(decide, {"good": good}),
            "merge": parallel([good, good], merge=decide),
            "paths": parallel(decide),
            "next": loop(good, until=until.max_rounds(2), prepare_next=decide),
            "on_error": loop(Unlucky(raises, 9).step(), until=until.max_rounds(2), on_error=decide),
        }
        async with Harness(checkpoints=InMemoryBackend()) as harness:
            for name, flow in flows.items():
                result = await harness.run(flow, 1, on_error="result")
                assert (result.status, type(result.error).__name__) == ("failed", "StepFailed"), (name, fault)
            # A predicate that raises ends its loop and says why.
            ended = await harness.run(loop(good, until=until.custom(decide), max_iterations=3), 1, on_error="result")
            assert "CancelledError" in f"{ended.reason} {ended.error}", fault


async def test_in_a_turn_of_a_session(anyio_backend: str) -> None:
    for fault in faults(anyio_backend):
        unlucky = Unlucky(fault, 1)
        async with Harness(checkpoints=InMemoryBackend()) as harness:
            session = harness.session("ada", "s")
            with pytest.raises(StepFailed):
                await session.run(unlucky.step(), 1)
            # The session is free again.
            assert (await session.run(unlucky.step(), 2)).value == 2


def status_of_detached(bad: AnyStep) -> Any:
    async def body(n: int, ctx: Context) -> str:
        return (await ctx.spawn_detached(bad, n).wait()).status

    return body


async def test_in_detached_work(anyio_backend: str) -> None:
    for fault in faults(anyio_backend):
        bad = Unlucky(fault, 1).step()

        flow: AnyStep = step(id="starts")(status_of_detached(bad))

        async with Harness() as harness:
            assert (await harness.run(flow, 1)).value == "failed"


class Losing(DelegatingBackend):
    """A backend whose client is told that its connection is closed, before or after an append has arrived."""

    def __init__(self, fault: Fault, at: int, after: bool) -> None:
        super().__init__(InMemoryBackend())
        self.fault, self.at, self.after = fault, at, after

    async def append(self, *args: Any, **options: Any) -> int:
        self.at -= 1
        if self.at == 0 and not self.after:
            await self.fault()
        done = await super().append(*args, **options)
        if self.at == 0:
            await self.fault()
        return done


@pytest.mark.parametrize("after", [False, True])
async def test_in_a_backend(after: bool, anyio_backend: str) -> None:
    """What was cut off is looked for and written once: nothing is lost, and nothing fails."""
    flow = sequence(good, good, good)
    for fault, at in itertools.product(faults(anyio_backend), range(1, 5)):
        if fault is raises_a_group or anyio_backend == "trio":
            continue
        backend = Losing(fault, at, after)
        async with Harness(checkpoints=backend) as harness:
            result = await harness.run(flow, 1, run_id="run")
            assert (result.status, result.value) == ("completed", 1), (fault, at)
            assert (await harness.resume("run", flow)).value == 1


# ------------------------------------------------------------------------------------------- what was requested goes on


async def stubborn_path(n: int) -> int:
    await anyio.sleep_forever()
    return n


@pytest.fixture(params=sorted(SECTIONS))
def waiting(request: pytest.FixtureRequest) -> AnyStep:
    """A section that waits in its step."""
    return SECTIONS[request.param](step(id="unlucky")(stubborn_path))


@pytest.mark.parametrize("durable", [False, True])
async def test_a_scope_around_a_run(waiting: AnyStep, durable: bool) -> None:
    async with Harness(checkpoints=store(durable)) as harness:
        with anyio.move_on_after(0.01) as scope:
            await harness.run(waiting, 1, on_error="result")
            raise AssertionError
        assert scope.cancelled_caught
        assert (await harness.run(good, 1)).value == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_task_of_asyncio_around_a_run(waiting: AnyStep, durable: bool, anyio_backend: str) -> None:
    async with Harness(checkpoints=store(durable)) as harness:
        task = asyncio.create_task(harness.run(waiting, 1, on_error="result", run_id="run"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        # Before it has begun at all.
        task = asyncio.create_task(harness.run(waiting, 1, on_error="result"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(harness.run(waiting, 1, on_error="result"), 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await harness.run(waiting, 1, on_error="result")
        assert (await harness.run(good, 1)).value == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_scopes_and_timeouts_in_a_body(anyio_backend: str) -> None:
    @step
    async def body(n: int, ctx: Context) -> list[str]:
        found: list[str] = []
        try:
            async with asyncio.timeout(0.01):
                await step(id="a")(stubborn_path)(n, ctx)
        except TimeoutError:
            found.append("asyncio")
        try:
            with anyio.fail_after(0.01):
                await step(id="b")(stubborn_path)(n, ctx)
        except TimeoutError:
            found.append("anyio")
        return found

    for backend in (None, InMemoryBackend()):
        async with Harness(checkpoints=backend) as harness:
            assert (await harness.run(body, 1)).value == ["asyncio", "anyio"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_of_the_librarys_own_that_is_cancelled_alone(anyio_backend: str) -> None:
    """What runs in a task of its own fails or ends alone: its section and its harness do not end with it."""

    @step
    async def leaves(n: int) -> int:
        task = asyncio.current_task()
        if task is not None:
            task.cancel()
        await asyncio.sleep(60)
        return n

    @step
    async def starts(n: int, ctx: Context) -> str:
        return (await ctx.spawn_detached(leaves, n).wait()).status

    async with Harness() as harness:
        healthy = harness.start(patient, 7)
        result = await harness.run(parallel([leaves, patient]), 1, on_error="result")
        assert (result.status, type(result.error).__name__) == ("failed", "ParallelFailed")
        settled = (await harness.run(settle([leaves, patient]), 1)).value
        assert [each.ok for each in settled] == [False, True]
        assert (await harness.run(race([leaves, patient]), 1)).value == 1
        assert (await harness.run(starts, 1)).value == "cancelled"
        alone = harness.start(leaves, 1)
        with pytest.raises(NoeticError):
            await alone.result()
        assert (await healthy.result()).value == 7
        # In the caller's own task it is the caller that is cancelled.
        task = asyncio.create_task(harness.run(leaves, 1))
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_is_no_cancellation_goes_through() -> None:
    @step
    async def leave(n: int) -> int:
        raise Died

    with pytest.raises(BaseExceptionGroup) as caught:
        async with Harness() as harness:
            await harness.run(parallel([leave, patient]), 1)
    assert caught.group_contains(Died)
