"""What a body sets in a context variable is seen by what it calls, and by nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Retry,
    Step,
    branch,
    call_model,
    call_tool,
    current_context,
    each,
    loop,
    parallel,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

AnyStep = Step[Any, Any, Any, Any]
UNSET = "<unset>"
BARE: ContextVar[str] = ContextVar("BARE")
WITH_DEFAULT: ContextVar[str] = ContextVar("WITH_DEFAULT", default=UNSET)
SET_BEFORE: ContextVar[str] = ContextVar("SET_BEFORE")
OUTSIDE = (UNSET, UNSET, "outside")


@pytest.fixture(autouse=True)
def _outside() -> Any:
    token = SET_BEFORE.set("outside")
    yield
    SET_BEFORE.reset(token)


def seen() -> tuple[str, str, str]:
    return BARE.get(UNSET), WITH_DEFAULT.get(), SET_BEFORE.get()


def set_all(value: str) -> None:
    for var in (BARE, WITH_DEFAULT, SET_BEFORE):
        var.set(value)


class Looker:
    """Notes what each body has seen when it began, and then sets everything."""

    def __init__(self, *, fails: int = 0, waits: bool = False) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.fails, self.waits = fails, waits

    def look(self, value: str = "mine") -> None:
        self.seen.append(seen())
        set_all(value)

    def step(self, **options: Any) -> AnyStep:
        @step(id="looks", **options)
        async def body(x: object) -> object:
            self.look()
            if self.waits:
                await anyio.lowlevel.checkpoint()
            assert seen() == ("mine", "mine", "mine")
            if len(self.seen) <= self.fails:
                raise ValueError("again")
            return x

        return body


def body_of(looks: AnyStep, times: int) -> Any:
    async def body(x: object, ctx: Context) -> object:
        for _ in range(times):
            await looks(x, ctx)
            assert seen() == OUTSIDE
        await ctx.gather(looks.bind(x), looks.bind(x))
        assert seen() == OUTSIDE
        return x

    return body


def count(outputs: Sequence[Any], ctx: object) -> int:
    return len(outputs)


async def many(x: object) -> list[object]:
    return [x, x]


async def always(*args: object) -> Any:
    set_all("decided")
    return "looks"


def detaches(looks: AnyStep) -> Any:
    async def body(x: object, ctx: Context) -> object:
        await ctx.spawn_detached(looks, x).wait()
        assert seen() == OUTSIDE
        return await looks(x, ctx)

    return body


SHAPES: dict[str, tuple[Callable[[AnyStep], AnyStep], int]] = {
    "sequence": (lambda looks: sequence(looks, looks, looks), 3),
    "nested": (lambda looks: sequence(sequence(looks, id="inner"), looks), 2),
    "loop": (lambda looks: loop(looks, until=until.max_rounds(3)), 3),
    "branch": (lambda looks: sequence(branch(always, {"looks": looks}), looks), 2),
    "parallel": (lambda looks: sequence(parallel([looks, looks], merge=count), looks), 3),
    "parallel of one": (lambda looks: sequence(parallel([looks], merge=count), looks), 2),
    "one at a time": (lambda looks: sequence(step(id="many")(many), each(looks, concurrency=1)), 2),
    "settle": (lambda looks: sequence(settle([looks, looks]), looks), 3),
    "spawn": (lambda looks: sequence(spawn(looks), looks), 2),
    "body": (lambda looks: step(id="body")(body_of(looks, 2)), 4),
    "detached": (lambda looks: step(id="detaches")(detaches(looks)), 2),
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
async def test_nothing_around_or_after_it_sees_it(shape: str, durable: bool, waits: bool) -> None:
    make, times = SHAPES[shape]
    for options in ({}, {"timeout": 60}, {"replay": "once"} if durable else {}, {"budget": Budget(steps=9)}):
        looker = Looker(waits=waits)
        async with Harness(checkpoints=InMemoryBackend() if durable else None) as harness:
            await harness.run(make(looker.step(**options)), 1)
            assert seen() == OUTSIDE
            await harness.run(looker.step(), 1)
        assert looker.seen == [OUTSIDE] * (times + 1), options


@pytest.mark.parametrize("waits", [False, True])
async def test_the_next_attempt_does_not_see_it(waits: bool) -> None:
    looker = Looker(fails=2, waits=waits)
    async with Harness() as harness:
        await harness.run(looker.step(retry=Retry(3, initial=0.0)), 1)
        failed = Looker(fails=9, waits=waits)
        assert (await harness.run(failed.step(), 1, on_error="result")).status == "failed"
        assert seen() == OUTSIDE
    assert looker.seen == [OUTSIDE] * 3


async def test_a_wrap_up_does_not_see_it() -> None:
    looker = Looker()

    @step(budget=Budget(steps=1, wrap_up=looker.step(), reserve=Budget(steps=1)))
    async def spends(x: int, ctx: Context) -> int:
        set_all("spent")
        await looker.step()(x, ctx)
        return x

    async with Harness() as harness:
        await harness.run(spends, 1, on_error="result")
    assert looker.seen == [OUTSIDE]


async def test_what_functions_decide_with_is_their_own() -> None:
    looker = Looker()

    async def more(*args: object) -> Any:
        set_all("mine")
        return 1

    def enough(snapshot: object) -> bool:
        assert seen() == OUTSIDE
        set_all("mine")
        return len(looker.seen) >= 3

    flow: AnyStep = loop(looker.step(), until=until.custom(enough), prepare_next=more)
    async with Harness() as harness:
        await harness.run(flow, 1)
        assert seen() == OUTSIDE
    assert looker.seen == [OUTSIDE] * 3


async def test_tools_do_not_see_each_others() -> None:
    looker = Looker()

    @tool
    async def look() -> str:
        """Look."""
        looker.look()
        return "seen"

    @tool
    def look_in_a_thread() -> str:
        """Look."""
        looker.look()
        return "seen"

    names = ["look", "look_in_a_thread"]
    model = ScriptedModel(
        *[FunctionCall(name=name, arguments={}) for name in names * 2],
        [FunctionCall(name=name, arguments={}) for name in names],
        "done",
    )
    async with Harness(model=model) as harness:
        await harness.run(loop(call_model(tools=[look, look_in_a_thread]), until=until.no_tool_calls()), "go")
        await harness.run(sequence(call_tool(look, args={}), call_tool(look, args={})), None)
        assert seen() == OUTSIDE
    assert looker.seen == [OUTSIDE] * 8


async def test_what_it_calls_sees_it() -> None:
    found: dict[str, Any] = {}

    @step
    async def child(name: str) -> None:
        await anyio.lowlevel.checkpoint()
        found[name] = seen()
        set_all("child")

    @step
    async def parent(x: int, ctx: Context) -> None:
        set_all("parent")
        token = BARE.set("parent again")
        await child("called", ctx)
        await ctx.gather(child.bind("gathered"), child.bind("too"))
        await spawn(child)("spawned", ctx)
        await ctx.spawn_detached(child, "detached").wait()
        async with anyio.create_task_group() as group:
            group.start_soon(note, "task")
        found["thread"] = await to_thread.run_sync(seen)
        # Steps in between change nothing of it, and it can be taken back.
        assert seen() == ("parent again", "parent", "parent")
        BARE.reset(token)
        assert BARE.get() == "parent"
        assert current_context() is ctx

    async def note(name: str) -> None:
        found[name] = seen()

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        await harness.run(parent, 1)
    expected = ("parent again", "parent", "parent")
    assert found == dict.fromkeys(("called", "gathered", "too", "spawned", "detached", "task", "thread"), expected)


async def test_a_session_and_a_stream_and_the_next_turn() -> None:
    looker = Looker(waits=True)
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        session = harness.session("ada", "s")
        await session.run(looker.step(), "x")
        await session.run(looker.step(), "x")
        async with harness.stream(looker.step(), "x") as stream:
            await stream.result()
        await harness.start(looker.step(), "x").result()
        assert seen() == OUTSIDE
    assert looker.seen == [OUTSIDE] * 4


async def test_scopes_and_groups_of_a_body_hold_its_steps() -> None:
    """A body runs in its caller's task: what it has opened is around the steps that it calls."""

    @step
    async def forever(x: int) -> int:
        await anyio.sleep_forever()
        return x

    @step
    async def body(x: int, ctx: Context) -> str:
        with anyio.move_on_after(0.001) as scope:
            await forever(x, ctx)
        assert scope.cancelled_caught
        task = anyio.get_current_task().id
        return "same" if task == await where(x, ctx) else "other"

    @step
    async def where(x: int) -> int:
        return anyio.get_current_task().id

    async with Harness() as harness:
        assert (await harness.run(body, 1)).value == "same"


async def test_a_body_that_is_no_plain_function() -> None:
    """A compiled function, say, may give an awaitable of any kind."""

    async def add(more: int, x: int) -> int:
        await anyio.lowlevel.checkpoint()
        set_all("added")
        return x + more

    made: AnyStep = step(id="add")(partial(add, 2))
    async with Harness() as harness:
        assert (await harness.run(sequence(made, made), 1)).value == 5
        assert seen() == OUTSIDE


def same(inner: AnyStep) -> AnyStep:
    return inner


def spawned(inner: AnyStep) -> AnyStep:
    return spawn(inner)


def twice(inner: AnyStep) -> AnyStep:
    return sequence(inner, inner)


WRAPS: list[Callable[[AnyStep], AnyStep]] = [same, spawned, twice]


class Programs:
    """Bodies that set, call and wait at random; what one has seen that it should not is noted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.wrong: list[str] = []

    def expect(self, where: str, expected: tuple[str, str, str]) -> None:
        if seen() != expected:
            self.wrong.append(f"{where}: {seen()}, not {expected}")

    def make(self, depth: int, name: str) -> AnyStep:
        rng = self.rng
        below = [self.make(depth - 1, f"{name}.{at}") for at in range(rng.randint(0, 3))] if depth else []
        acts = [rng.choice(("set", "wait", *(("call", "gather") if below else ()))) for _ in range(rng.randint(1, 5))]
        picks = [rng.choice(WRAPS)(rng.choice(below)) if below else None for _ in acts]
        fails = [True] if rng.random() < 0.3 else []

        @step(id=name, retry=Retry(2, initial=0.0))
        async def body(given: tuple[str, str, str], ctx: Context) -> tuple[str, str, str]:
            self.expect(name, given)
            mine = given
            for at, (act, pick) in enumerate(zip(acts, picks, strict=True)):
                if act == "set":
                    mine = (f"{name}/{at}", f"{name}/{at}", f"{name}/{at}")
                    set_all(mine[0])
                elif act == "call" and pick is not None:
                    await pick(mine, ctx)
                elif act == "gather" and pick is not None:
                    await ctx.gather(pick.bind(mine), below[0].bind(mine))
                else:
                    await anyio.lowlevel.checkpoint()
                self.expect(f"{name} after {act}", mine)
            if fails:
                raise ValueError(fails.pop())
            return given

        return body


@pytest.mark.parametrize("seed", range(40))
async def test_random_programs(seed: int) -> None:
    """Each body sees what those above it had set when they called it, and nothing else."""
    programs = Programs(seed)
    async with Harness(checkpoints=InMemoryBackend() if seed % 2 else None) as harness:
        await harness.run(programs.make(3, "root"), OUTSIDE)
        assert seen() == OUTSIDE
    assert programs.wrong == []
