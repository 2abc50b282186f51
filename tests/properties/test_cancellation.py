"""A run that is cancelled from outside at any scheduling point leaves nothing behind, and no state that is torn."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeAlias

import anyio
import pytest
import sniffio
from anyio.lowlevel import checkpoint
from attrs import define, field

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Message,
    ModelRequest,
    Retry,
    RunFinished,
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
    tool,
    until,
)
from noetic_py.core.log import ItemLog
from noetic_py.engine.journaling.fold import items_below
from noetic_py.testing import ScriptedModel
from noetic_py.testing._random_programs.conversation import pairing_error, told
from tests.properties.checks import SEED, examples, left_over, tasks
from tests.properties.stepping import Points

pytestmark = pytest.mark.anyio

AnyStep: TypeAlias = Step[Any, Any, Any, Any]
AnyContext: TypeAlias = Context[Any, Any]


@define
class State:
    """`a` and `b` go up together; `seen` grows."""

    a: int = 0
    b: int = 0
    seen: list[str] = field(factory=list[str])


Note: TypeAlias = Callable[[State], None]


def body(note: Note, name: str, *, fails: int = 0, children: tuple[AnyStep, ...] = (), **options: Any) -> AnyStep:
    """A step that changes all it can, with waits in between, and notes each state that is whole."""

    async def work(x: Any, ctx: AnyContext) -> Any:
        state: State = ctx.state
        note(state)
        state.a += 1
        await checkpoint()
        ctx.items.append(Message.assistant(f"{name} begins"))
        call = FunctionCall(name=name)
        ctx.items.append(call)
        await checkpoint()
        state.b += 1
        ctx.items.append(FunctionCallOutput(call_id=call.call_id, output="done"))
        state.seen.append(name)
        for child in children:
            note(state)
            x = await child(x, ctx)
            note(state)
        if getattr(ctx, "attempt") <= fails:  # noqa: B009 # not a part of the public context
            raise ValueError(name)
        note(state)
        return x

    return step(id=name, **options)(work)


# ------------------------------------------------------------------------------------------------- reference programs


def in_a_row(note: Note) -> AnyStep:
    return sequence(body(note, "one"), body(note, "two"), body(note, "three"))


def nested(note: Note) -> AnyStep:
    inner = body(note, "inner", children=(body(note, "leaf"), body(note, "leaf2")))
    return body(note, "outer", children=(inner, body(note, "last")))


def looped(note: Note) -> AnyStep:
    return loop(body(note, "round", children=(body(note, "leaf"),)), until=until.max_rounds(3))


def paths(note: Note) -> AnyStep:
    def merge(outputs: Any, ctx: AnyContext, states: Any) -> int:
        ctx.state.a = ctx.state.b = sum(state.a for state in states)
        ctx.items.append(Message.assistant("merged"))
        note(ctx.state)
        return 1

    section = parallel([body(note, f"path{index}", children=(body(note, "leaf"),)) for index in range(3)], merge=merge)
    return sequence(body(note, "before"), section, body(note, "after"))


def raced(note: Note) -> AnyStep:
    slow = sequence(body(note, "slow"), body(note, "slower"), body(note, "slowest"))
    return sequence(body(note, "before"), race([slow, body(note, "fast")]), body(note, "after"))


def settled(note: Note) -> AnyStep:
    section = settle(
        [body(note, "good"), body(note, "bad", fails=1), body(note, "ugly")], merge=lambda outcomes, ctx: 1
    )
    return sequence(body(note, "before"), section, body(note, "after"))


def spawned(note: Note) -> AnyStep:
    child = body(note, "child", children=(body(note, "leaf"),))
    shared = spawn(child, state="share", items="share", id="shared")
    return sequence(body(note, "before"), spawn(child, id="own"), shared, body(note, "after"))


def modelled(note: Note) -> AnyStep:
    @tool
    async def mark(ctx: AnyContext, x: int) -> str:
        await checkpoint()
        ctx.state.seen.append(f"tool {x}")
        await checkpoint()
        return f"marked {x}"

    def answer(request: ModelRequest) -> Item | list[Item]:
        if isinstance(request.items[-1], FunctionCallOutput):
            return Message.assistant("done")
        return [FunctionCall(name="mark", arguments={"x": x}) for x in range(2)]

    model = ScriptedModel(*[answer] * 2, cost=1)
    agent = loop(call_model(model, tools=[mark]), until=until.no_tool_calls())
    return sequence(body(note, "before"), agent.bind("go"), body(note, "after"))


def retried(note: Note) -> AnyStep:
    leaf = body(note, "leaf")
    often = body(note, "often", fails=2, children=(leaf,), retry=Retry(3, initial=0))
    composite = sequence(body(note, "first"), often).with_options(retry=Retry(2, initial=0))
    return sequence(body(note, "before"), composite, body(note, "after"))


def gathered(note: Note) -> AnyStep:
    leaves = [body(note, f"leaf{index}") for index in range(3)]

    async def work(x: Any, ctx: AnyContext) -> int:
        ctx.state.a += 1
        await checkpoint()
        ctx.state.b += 1
        note(ctx.state)
        await ctx.gather(*[leaf.bind(x) for leaf in leaves])
        note(ctx.state)
        try:
            await ctx.gather(leaves[0].bind(x), body(note, "bad", fails=1).bind(x))
        except errors.ParallelFailed:
            ctx.state.a += 1
            await checkpoint()
            ctx.state.b += 1
        note(ctx.state)
        return 1

    return step(id="work")(work)


def wrapped_up(note: Note) -> AnyStep:
    wrap = body(note, "wrap")
    budget = Budget(steps=4, wrap_up=wrap, reserve=Budget(steps=1))
    work = sequence(*[body(note, f"work{index}") for index in range(4)]).with_options(budget=budget)
    return sequence(body(note, "before"), work, body(note, "after"))


def timed(note: Note) -> AnyStep:
    async def work(x: Any, ctx: AnyContext) -> int:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await body(note, "never", children=(body(note, "leaf"),))(x, ctx)
        ctx.state.a += 1
        await checkpoint()
        ctx.state.b += 1
        note(ctx.state)
        return 1

    return step(id="work", timeout=60.0)(work) >> body(note, "after")


PROGRAMS: tuple[Callable[[Note], AnyStep], ...] = (
    in_a_row, nested, looped, paths, raced, settled, spawned, modelled, retried, gathered, wrapped_up, timed,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- checks


@contextmanager
def nothing_unretrieved() -> Generator[None]:
    """Whatever asyncio would only log, because nobody asks a dead task for its error, is an error here."""
    if sniffio.current_async_library() == "trio":
        yield
        return
    found: list[dict[str, Any]] = []
    event_loop = asyncio.get_running_loop()
    before = event_loop.get_exception_handler()
    event_loop.set_exception_handler(lambda _, context: found.append(context))
    try:
        yield
        gc.collect()
    finally:
        event_loop.set_exception_handler(before)
    assert not found, found


class Trial:
    """One run that is cancelled at one point."""

    def __init__(self, program: Callable[[Note], AnyStep], at: int) -> None:
        self.states = [State()]
        self.flow = program(lambda state: self.states.append(deepcopy(state)))
        self.ctx: Context[Any, State] = Context(state=State())
        self.harness = Harness(plugins=(), budget=Budget(cost=100, steps=1000))
        self.scope = anyio.CancelScope()
        self.points = Points(at, self.scope.cancel)
        self.finished: list[RunFinished] = []
        self.events: list[object] = []
        self.run: Any = None

    async def go(self) -> None:
        """Run, cancelled or not."""
        with self.scope:
            await self.points.run(self._work)

    async def _work(self) -> None:
        harness: Any = self.harness
        async with harness.stream(self.flow, 1, ctx=self.ctx) as stream:
            self.run = stream._run
            self.run.bus.watch(self.events.append)
            await stream.result()

    def check(self, allowed: list[State]) -> None:
        """What has to hold however it went."""
        state = self.ctx.state
        assert state.a == state.b, state
        assert state in allowed or state in self.states, state
        log = ItemLog(items_below(self.run.journal, self.run.kinds, ()))
        assert told(log) == told(self.ctx.items)
        assert pairing_error(log.rendered("cancelled")) is None
        finished = [event for event in self.events if isinstance(event, RunFinished)]
        # A run that was cancelled before it began has no end to tell of.
        assert finished == self.events[-1:]
        if self.scope.cancelled_caught and finished:
            assert finished[0].status in ("cancelled", "completed")
        lease = self.harness._resources.lease
        assert not any(lease._held.values())
        assert not any(lease._kept.values())
        assert self.run.limits.children == 0


@step
async def still_works(x: int) -> int:
    await checkpoint()
    return x + 1


async def trial(program: Callable[[Note], AnyStep], at: int, allowed: list[State]) -> Trial:
    before = tasks()
    found = Trial(program, at)
    await found.go()
    assert await left_over(before) == set()
    assert (await found.harness.run(still_works, 1)).value == 2
    if found.run is not None:
        found.check(allowed)
    return found


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_cancelled_run_leaves_nothing_half_done(program: Callable[[Note], AnyStep]) -> None:
    whole = await trial(program, 0, [])
    assert whole.events
    assert isinstance(whole.events[-1], RunFinished)
    assert whole.events[-1].status == "completed"
    # Its last state is one that nobody noted, where a section or a round of tools made it.
    allowed = [*whole.states, whole.ctx.state]
    points = range(1, whole.points.count + 1)
    chosen = random.Random(SEED).sample(points, min(len(points), examples(sample=12, full=10_000)))
    cancelled = 0
    with nothing_unretrieved():
        for at in sorted(chosen):
            try:
                cancelled += (await trial(program, at, allowed)).scope.cancelled_caught
            except BaseException as error:
                error.add_note(f"NOETIC_SEED={SEED}, {program.__name__} at point {at}")
                raise
    assert cancelled >= len(chosen) / 2
