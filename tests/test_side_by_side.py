"""Tests that nothing gets lost of what is written side by side: by tool calls, paths, children, runs and forks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import pytest
from attrs import define, field, frozen

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    StateBag,
    Step,
    call_model,
    each,
    errors,
    loop,
    parallel,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core import reducers
from noetic_py.core.events import StepCommitted
from noetic_py.memory import ContextItem, ContextQueue, Returned, Scope, function
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio


@define
class State:
    hits: Annotated[int, reducers.sum] = 0
    words: list[str] = field(factory=list[str])
    plain: int = 0


class Tally(StateBag):
    reducers = {"hits": reducers.sum}  # noqa: RUF012 # as a user writes it


@tool
async def hit(ctx: Context[Memory, Any], by: int) -> str:
    """Hit."""
    if isinstance(ctx.state, StateBag):
        ctx.state["hits"] = ctx.state.get_as("hits", int) or 0
        ctx.state["hits"] += by
    else:
        ctx.state.hits += by
    return "ok"


def _calls(name: str, *values: int) -> list[FunctionCall]:
    return [FunctionCall(name=name, arguments={"by": value}) for value in values]


def _agent(*calls: FunctionCall, tools: Sequence[Any] = ()) -> Step[Any, Any, Any, Any]:
    def turn(request: Any) -> Any:
        answered = any(isinstance(item, FunctionCallOutput) for item in request.items)
        return "done" if answered else list(calls)

    return loop(call_model(ScriptedModel(turn, turn), tools=tools), until=until.no_tool_calls())


# ------------------------------------------------------------------------------------------------- the state of a run


@pytest.mark.parametrize("kind", [State, Tally])
async def test_calls_of_one_round_add_up(kind: Any) -> None:
    async with Harness() as harness:
        result: Any = await harness.run(_agent(*_calls("hit", 1, 1, 3), tools=[hit]), "go", state=kind())
    assert (result.state.hits if isinstance(result.state, State) else result.state["hits"]) == 5


async def test_calls_that_write_the_same_are_an_error_that_names_them() -> None:
    async with Harness() as harness:
        with pytest.raises(errors.ConfigError, match=r"state\['hits'\].*'hit\[0\]' and by 'hit\[1\]'") as caught:
            await harness.run(_agent(*_calls("hit", 1, 1), tools=[hit]), "go", state=StateBag({"hits": 0}))
    assert caught.value.code == "state-conflict"
    assert caught.value.path == ("loop", "call_model[0]")
    assert "reducers.sum" in (caught.value.hint or "")


@step
async def add(text: str, ctx: Context[Memory, State]) -> str:
    ctx.state.hits += len(text)
    ctx.state.words.append(text)
    return text


@pytest.mark.parametrize("kind", ["parallel", "each", "settle", "gather", "merge", "merge with states"])
async def test_paths_join_the_fields_that_have_a_reducer(kind: str) -> None:
    @step
    async def gathers(texts: list[str], ctx: Context[Memory, State]) -> None:
        await ctx.gather(*(add.bind(text) for text in texts))

    def merge(outputs: Any, ctx: Context[Memory, State], states: Sequence[State]) -> None:
        ctx.state.hits = states[0].hits * 100 + states[1].hits

    bound = [add.bind("a"), add.bind("bc")]
    flows: dict[str, Any] = {
        "parallel": parallel(bound),
        "each": each(add),
        "settle": settle(bound),
        "gather": gathers,
        "merge": parallel(bound, merge=lambda outputs, ctx: outputs),
        "merge with states": parallel(bound, merge=merge),
    }

    async with Harness() as harness:
        result = await harness.run(flows[kind], ["a", "bc"], state=State(1))
    assert result.state.hits == (203 if kind == "merge with states" else 4)
    assert result.state.words == [], "without a reducer a path's state is its own"
    await assert_resumable_everywhere(lambda: flows[kind], ["a", "bc"], state=State(1))


async def test_a_failed_path_adds_nothing() -> None:
    @step
    async def fails(text: str, ctx: Context[Memory, State]) -> str:
        ctx.state.hits += 10
        raise ValueError(text)

    async with Harness() as harness:
        result = await harness.run(settle([add, fails]), "a", state=State())
    assert result.state.hits == 1


async def test_a_bag_with_reducers_is_one_after_a_crash() -> None:
    backend = FaultyBackend(InMemoryBackend(), dies_at=4)
    calls = _calls("hit", 1, 2)
    with backend.outlived():
        async with Harness(checkpoints=backend) as harness:
            await harness.run(_agent(*calls, tools=[hit]), "go", state=Tally(), run_id="r")
    assert backend.dead
    backend.revive()
    async with Harness(checkpoints=backend) as harness:
        flow: Any = _agent(*calls, tools=[hit])
        result: Any = await harness.resume("r", flow, state_type=Tally)
    assert isinstance(result.state, Tally)
    assert result.state["hits"] == 3


# --------------------------------------------------------------------------------------------------------------- layers


@frozen
class Numbered:
    """Facts by number; two that begin with the same state hand out the same number."""

    facts: dict[str, str] = field(factory=dict[str, str])
    next: int = 1


class Facts(MemoryLayer[Numbered]):
    """It does not say what becomes of two states."""

    @function
    async def add(self, text: str) -> str:
        """Add one."""
        number = str(self.state.next)
        self.state = Numbered({**self.state.facts, number: text}, self.state.next + 1)
        return number


class Renumbered(Facts):
    """It numbers anew what was done beside it."""

    async def on_return(self, child: Returned[Numbered]) -> None:
        for number, text in child.state.facts.items():
            if number not in child.began.facts:
                await self.add(text)


class Counted(MemoryLayer[int]):
    """A count."""

    @function
    async def add(self, by: int) -> None:
        """Add to it."""
        self.state += by


class Summed(Counted):
    """A count that says how it is joined."""

    def merge(self, base: int, mine: int, theirs: int) -> int:
        return theirs + mine - base


class Grown(MemoryLayer[list[str]]):
    """A list."""

    @function
    async def add(self, text: str) -> None:
        """Append to it."""
        self.state.append(text)


@define
class Hits:
    """A field that says how it is joined, and one that does not."""

    hits: Annotated[int, reducers.sum] = 0
    last: str = ""


class Tallied(MemoryLayer[Hits]):
    """A state of which a part says how it is joined."""

    @function
    async def add(self, text: str) -> None:
        """Count it."""
        self.state.hits += 1
        self.state.last += text


def bundle(scope: Scope = Scope.USER) -> Any:
    """Layers that are joined in each of the ways."""

    class Mem(Memory):
        facts: Renumbered = Renumbered(scope=scope)
        counted: Counted = Counted(scope=scope)
        summed: Summed = Summed(scope=scope)
        grown: Grown = Grown(scope=scope)
        tallied: Tallied = Tallied(scope=Scope.EXECUTION)
        queue: ContextQueue[str] = ContextQueue(scope=scope)

    return Mem()


@step
async def note(text: str, ctx: Context[Any]) -> str:
    memory = ctx.memory
    number: str = await memory.facts.add(text)
    await memory.counted.add(1)
    await memory.summed.add(1)
    await memory.grown.add(text)
    await memory.tallied.add(text)
    await memory.queue.append(ContextItem(text))
    await anyio.lowlevel.checkpoint()
    return number


@step
async def look(_: object, ctx: Context[Any]) -> tuple[list[str], int, int, list[str], list[str]]:
    memory = ctx.memory
    entries = [entry.content for entry in memory.queue.entries]
    return (
        sorted(memory.facts.state.facts.values()), memory.counted.state, memory.summed.state,
        sorted(memory.grown.state), sorted(entries),
    )  # fmt: skip


def expected(*texts: str) -> tuple[Any, ...]:
    """What all layers hold when nothing was lost."""
    words = sorted(texts)
    return words, len(words), len(words), words, words


class Concurrency:
    """Lets several go on once all of them are there."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._all = anyio.Event()

    async def arrive(self) -> None:
        """Wait for the others."""
        self._left -= 1
        if not self._left:
            self._all.set()
        await self._all.wait()


async def test_two_runs_of_one_user_lose_nothing(backend: CheckpointBackend) -> None:
    here = Concurrency(3)

    @step
    async def meet(value: str) -> str:
        await here.arrive()
        return value

    async with (
        Harness(memory=bundle(), checkpoints=backend) as one,
        Harness(memory=bundle(), checkpoints=backend) as two,
    ):
        async with anyio.create_task_group() as group:
            for harness, text in ((one, "a"), (two, "b"), (one, "c")):
                group.start_soon(partial(harness.run, note >> meet, text, user_id="ada"))
        assert (await two.run(look, None, user_id="ada")).value == expected("a", "b", "c")


async def test_a_conflict_of_two_runs_names_both() -> None:
    class Mem(Memory):
        facts: Facts = Facts(scope=Scope.USER)

    here = Concurrency(2)

    @step
    async def fact(text: str, ctx: Context[Mem]) -> str:
        number = await ctx.memory.facts.add(text)
        await here.arrive()
        return number

    async with Harness(memory=Mem()) as harness:
        failed: list[errors.ConfigError] = []

        async def run(name: str) -> None:
            try:
                await harness.run(fact, name, user_id="ada", run_id=name)
            except errors.ConfigError as error:
                failed.append(error)

        async with anyio.create_task_group() as group:
            for name in ("one", "two"):
                group.start_soon(run, name)
    assert len(failed) == 1, "the number that it was told is another one's"
    assert failed[0].code == "state-conflict"
    assert "run 'one'" in str(failed[0])
    assert "run 'two'" in str(failed[0])
    assert "merge(self, base, mine, theirs) in Facts" in str(failed[0])


async def test_a_fork_counts_what_it_has_in_common_once(backend: CheckpointBackend) -> None:
    @step
    async def again(text: str, ctx: Context[Any]) -> str:
        await note(f"again {text}", ctx)
        return text

    flow = note >> again
    async with Harness(memory=bundle(), checkpoints=backend) as harness:
        async with harness.stream(flow, "a", user_id="ada", run_id="r") as stream:
            committed = [event async for event in stream.events if isinstance(event, StepCommitted)]
        positions = [event.position for event in committed if event.path == ("sequence", "note")]
        assert (await harness.run(look, None, user_id="ada")).value == expected("a", "again 1")
        fork = await harness.fork("r", at=positions[0])
        await harness.resume(fork, flow)
        found = (await harness.run(look, None, user_id="ada")).value
    assert found == expected("a", "again 1", "again 1")


@pytest.mark.parametrize("kind", ["parallel", "each", "settle", "gather", "spawn"])
async def test_paths_and_children_come_back_where_a_layer_says_how(kind: str) -> None:
    @step
    async def gathers(texts: list[str], ctx: Context[Any]) -> None:
        await ctx.gather(*(note.bind(text) for text in texts))

    @step
    async def spawns(texts: list[str], ctx: Context[Any]) -> None:
        for text in texts:
            await spawn(note)(text, ctx)

    bound = [note.bind("a"), note.bind("b")]
    flows: dict[str, Any] = {
        "parallel": parallel(bound),
        "each": each(note),
        "settle": settle(bound),
        "gather": gathers,
        "spawn": spawns,
    }
    async with Harness(memory=bundle(Scope.EXECUTION)) as harness:
        result = await harness.run(flows[kind], ["a", "b"])
    assert result.memory["summed"] == 2
    assert sorted(result.memory["facts"].facts.values()) == ["a", "b"]
    assert [entry.content for entry in result.memory["queue"]] == ["a", "b"]
    assert result.memory["tallied"] == Hits(2)
    assert result.memory["grown"] == [], "without a merge and an on_return what a path has changed is its own"

    def make(store: CheckpointBackend) -> Harness[Any]:
        return Harness(memory=bundle(Scope.EXECUTION), checkpoints=store)

    await assert_resumable_everywhere(lambda: flows[kind], ["a", "b"], make=make)


async def test_functions_that_are_called_in_one_round() -> None:
    class Mem(Memory):
        summed: Summed = Summed()
        counted: Counted = Counted()
        grown: Grown = Grown()

    summed = _agent(*_calls("summed__add", 1, 2, 3))
    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(summed, "go")).memory["summed"] == 6
        with pytest.raises(errors.ConfigError, match=r"memory\.counted was changed.*'counted__add\[0\]'"):
            await harness.run(_agent(*_calls("counted__add", 1, 2)), "go")
        words = [FunctionCall(name="grown__add", arguments={"text": text}) for text in "ab"]
        assert (await harness.run(_agent(*words), "go")).memory["grown"] == ["a", "b"]


async def test_a_function_is_called_again_where_another_call_came_before() -> None:
    called: list[str] = []

    class Slow(Facts):
        @function
        async def slowly(self, text: str) -> str:
            """Add one, and give way to others in between."""
            called.append(text)
            state = self.state
            await anyio.lowlevel.checkpoint()
            self.state = Numbered({**state.facts, str(state.next): text}, state.next + 1)
            return str(state.next)

    class Mem(Memory):
        facts: Slow = Slow()

    @step
    async def both(_: object, ctx: Context[Mem]) -> list[str]:
        numbers: list[str] = []

        async def one(text: str) -> None:
            numbers.append(await ctx.memory.facts.slowly(text))

        async with anyio.create_task_group() as group:
            for text in "abc":
                group.start_soon(one, text)
        return sorted(numbers)

    async with Harness(memory=Mem()) as harness:
        result = await harness.run(both, None)
    assert result.value == ["1", "2", "3"], "each number is right"
    assert sorted(result.memory["facts"].facts.values()) == ["a", "b", "c"]
    assert len(called) > 3


async def test_a_merge_that_changes_what_it_is_given_changes_nothing_else() -> None:
    class Rude(Grown):
        def merge(self, base: list[str], mine: list[str], theirs: list[str]) -> list[str]:
            theirs.extend(mine[len(base) :])
            base.clear()
            mine.clear()
            return theirs

    class Mem(Memory):
        grown: Rude = Rude()

    @step
    async def grow(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.grown.add(text)
        return text

    async with Harness(memory=Mem()) as harness:
        result = await harness.run(each(grow), ["a", "b", "c"])
    assert result.memory["grown"] == ["a", "b", "c"]


# --------------------------------------------------------------------------------------------------------- at random


@pytest.mark.parametrize("seed", range(12))
async def test_random_runs_of_one_user_that_are_killed_lose_nothing(seed: int) -> None:
    """Runs that are killed and go on, beside others: each change counts once."""
    random = Random(seed)
    store = InMemoryBackend()

    class Mem(Memory):
        summed: Summed = Summed(scope=Scope.USER)
        queue: ContextQueue[str] = ContextQueue(scope=Scope.USER, limit=100)

    @step
    async def adds(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.summed.add(1)
        await ctx.memory.queue.append(ContextItem(text))
        for _ in range(random.randrange(4)):
            await anyio.lowlevel.checkpoint()
        return text

    async def live(name: str) -> None:
        backend = FaultyBackend(store, dies_at=random.randint(1, 8), when=random.choice(["before", "after"]))
        flow = adds >> parallel([adds, adds], merge=lambda outputs, ctx: outputs[0]) >> adds
        with backend.outlived():
            async with Harness(memory=Mem(), checkpoints=backend) as harness:
                await harness.run(flow, name, user_id="ada", run_id=name)
        if backend.dead:
            backend.revive()
            async with Harness(memory=Mem(), checkpoints=backend) as harness:
                try:
                    await harness.resume(name, flow)
                except errors.RunNotFound:
                    await harness.run(flow, name, user_id="ada", run_id=name)

    async with anyio.create_task_group() as group:
        for index in range(3):
            group.start_soon(live, f"run{index}")
    async with Harness(memory=Mem(), checkpoints=store) as harness:

        @step
        async def ends(_: object, ctx: Context[Mem]) -> tuple[int, int]:
            return ctx.memory.summed.state, len(ctx.memory.queue)

        assert (await harness.run(ends, None, user_id="ada")).value == (12, 12), f"seed {seed}"
