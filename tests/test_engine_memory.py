"""Tests of the life of layers in a run: order, scopes, failures, children, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from attrs import define, evolve, field

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    Message,
    ModelRequest,
    ModelResponse,
    ReadContext,
    Retry,
    call_model,
    errors,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    tool,
    until,
    with_memory,
)
from noetic_py.checkpoints import CheckpointBackend, StoredValue
from noetic_py.context.read import StepMeta
from noetic_py.core.events import LayerFailed, ViewMade
from noetic_py.memory import (
    AppendedItems,
    Guide,
    Halt,
    HookName,
    MemoryLayer,
    Recall,
    Returned,
    Scope,
    Seed,
    function,
)
from noetic_py.plugins import LayerRegistry, hookimpl
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere
from noetic_py.testing.faults import When

pytestmark = pytest.mark.anyio

TOLD: list[str] = []


@pytest.fixture(autouse=True)
def told() -> list[str]:
    """What the layers of a test were asked, in order."""
    TOLD.clear()
    return TOLD


class Facts(MemoryLayer[list[str]]):
    """Thirty lines of a user's: facts, kept by code and by the model."""

    @function
    async def remember(self, fact: str) -> int:
        """Keep a fact.

        Args:
            fact: What to keep.
        """
        self.state.append(fact)
        if fact == "no":
            raise ValueError("that is no fact")
        return len(self.state)

    async def recall(self, query: str, budget: int) -> str:
        return "\n".join(self.state)


class Mem(Memory):
    """One layer."""

    facts: Facts = Facts()


class Every(MemoryLayer[int]):
    """Notes each hook that it is asked for."""

    def note(self, hook: str) -> None:
        """Count and tell."""
        TOLD.append(f"{self.id}.{hook}")
        self.state += 1

    def merge(self, base: int, mine: int, theirs: int) -> int:
        return theirs + mine - base

    async def init(self) -> None:
        self.note("init")

    async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
        self.note("on_item_append")
        return items

    async def recall(self, query: str, budget: int) -> str:
        self.note("recall")
        return f"{self.id} knows {query}"

    async def project_history(self, items: Sequence[Item]) -> Sequence[Item]:
        self.note("project_history")
        return items

    async def after_model_call(self, response: ModelResponse) -> None:
        self.note("after_model_call")

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        self.note("before_tool_call")
        return call

    async def after_tool_call(self, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
        self.note("after_tool_call")
        return output

    async def store(self, response: ModelResponse) -> None:
        self.note("store")

    async def on_complete(self) -> None:
        self.note("on_complete")

    async def dispose(self) -> None:
        self.note("dispose")


class Two(Memory):
    """Two of them; the slots are against the order of declaration."""

    late: Every = Every(slot=300)
    early: Every = Every(slot=100)


def calling(name: str, **arguments: str) -> FunctionCall:
    """A function call."""
    import json

    return FunctionCall(name=name, arguments=json.dumps(arguments))


@pytest.mark.clause("002-47b")
async def test_hooks_are_called_in_their_order() -> None:
    model = ScriptedModel(calling("late__x"), "done")

    async with Harness(memory=Two()) as harness:
        result = await harness.run(loop(call_model(model), until=until.no_tool_calls()), "go")
    assert result.value == "done"
    by_slot = ["early", "late"]
    round_1 = [f"{layer}.{hook}" for hook in ("recall", "project_history", "after_model_call") for layer in by_slot]
    assert TOLD[:2] == ["late.init", "early.init"]
    assert TOLD[2:4] == ["early.on_item_append", "late.on_item_append"]
    assert TOLD[4:10] == round_1
    assert sorted(TOLD[10:12]) == ["early.store", "late.store"]
    tools = ["before_tool_call", "after_tool_call", "on_item_append"]
    assert TOLD[12:18] == [f"{layer}.{hook}" for hook in tools for layer in by_slot]
    assert TOLD[18:24] == round_1
    assert TOLD[26:] == ["early.on_complete", "late.on_complete", "early.dispose", "late.dispose"]
    assert dict(result.memory) == {"late": 15, "early": 15}


async def test_code_and_the_model_change_one_state() -> None:
    @step
    async def by_code(text: str, ctx: Context[Mem]) -> str:
        assert await ctx.memory.facts.remember("from code") == 1
        assert ctx.memory[Facts].state == ctx.memory["facts"].state == ["from code"]
        return text

    model = ScriptedModel([calling("facts__remember", fact="one"), calling("facts__remember", fact="two")], "done")
    flow = by_code >> loop(call_model(model), until=until.no_tool_calls())
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(flow, "hi")
    # Both calls of a round began with the same state, and both count.
    assert result.memory["facts"] == ["from code", "one", "two"]
    first, second = model.requests
    assert [tool["name"] for tool in first.tools] == ["facts__remember"]
    shown = "\n".join(item.text for item in second.items if isinstance(item, Message))
    assert '<memory layer="facts">\nfrom code' in shown
    assert "two" in shown
    usage = result.last_layer_usage
    assert usage is not None
    assert usage.layers["facts"] > 0
    assert usage.total == usage.system + usage.tools + usage.history + sum(usage.layers.values())


async def test_what_is_wrong_leaves_the_state_as_it_was() -> None:
    @step
    async def body(text: str, ctx: Context[Mem]) -> list[str]:
        await ctx.memory.facts.remember("a")
        with pytest.raises(ValueError, match="no fact"):
            await ctx.memory.facts.remember("no")
        wrong: Any = {"not": "a text"}
        with pytest.raises(errors.ToolArgumentsInvalid, match="fact: Input should be a valid string"):
            await ctx.memory.facts.remember(wrong)
        with pytest.raises(TypeError):
            await ctx.memory.facts.remember()  # type: ignore[call-arg] # what is tested
        return ctx.memory.facts.state

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(body, "")).value == ["a"]


async def test_a_failed_step_leaves_memory_as_it_was() -> None:
    tries: list[int] = []

    @step(retry=Retry(2, initial=0))
    async def again(text: str, ctx: Context[Mem]) -> str:
        assert ctx.memory.facts.state == ["before"]
        await ctx.memory.facts.remember("in the attempt")
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("once more")
        return text

    @step
    async def fails(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.facts.remember("never")
        raise ValueError("no")

    @step
    async def body(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.facts.remember("before")
        await again(text, ctx)
        with pytest.raises(errors.StepFailed):
            await fails(text, ctx)
        return text

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(body, "")).memory["facts"] == ["before", "in the attempt"]


async def test_scopes_share_and_keep_apart() -> None:
    class Scoped(Memory):
        thread: Facts = Facts(scope=Scope.THREAD)
        user: Facts = Facts(scope=Scope.USER)
        everybody: Facts = Facts(scope=Scope.GLOBAL)
        once: Facts = Facts(scope=Scope.EXECUTION)

    @step
    async def add(text: str, ctx: Context[Scoped]) -> dict[str, list[str]]:
        memory = ctx.memory
        layers = {"thread": memory.thread, "user": memory.user, "global": memory.everybody, "once": memory.once}
        for layer in layers.values():
            await layer.remember(text)
        return {name: list(layer.state) for name, layer in layers.items()}

    async with Harness(memory=Scoped(), checkpoints=InMemoryBackend()) as harness:
        one = (await harness.run(add, "1", thread_id="a/b", user_id="ada")).value
        two = (await harness.run(add, "2", thread_id="a", user_id="ada")).value
        three = (await harness.run(add, "3", thread_id="a/b", user_id="bob")).value
        with pytest.raises(errors.ConfigError, match="no user_id") as caught:
            await harness.run(add, "4", thread_id="a/b")
    assert caught.value.code == "layer-scope"
    assert one == {"thread": ["1"], "user": ["1"], "global": ["1"], "once": ["1"]}
    assert two == {"thread": ["2"], "user": ["1", "2"], "global": ["1", "2"], "once": ["2"]}
    assert three == {"thread": ["1", "3"], "user": ["3"], "global": ["1", "2", "3"], "once": ["3"]}


async def test_runs_that_share_a_scope_lose_nothing() -> None:
    class Shared(Memory):
        facts: Facts = Facts(scope=Scope.GLOBAL)

    together = anyio.Event()
    waiting: list[str] = []

    @step
    async def add(text: str, ctx: Context[Shared]) -> str:
        await ctx.memory.facts.remember(text)
        waiting.append(text)
        if len(waiting) == 3:
            together.set()
        await together.wait()
        return text

    async with Harness(memory=Shared()) as harness:
        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(harness.run, add, name)
        result = await harness.run(add, "d")
    assert sorted(result.memory["facts"]) == ["a", "b", "c", "d"]


async def test_a_state_of_none_is_forgotten() -> None:
    class Clears(MemoryLayer[list[str]]):
        @function
        async def clear(self) -> None:
            """Forget."""
            nothing: Any = None
            self.state = nothing

        @function
        async def keep(self, text: str) -> None:
            """Keep one."""
            self.state = [text]

    class Bundle(Memory):
        notes: Clears = Clears()

    @step
    async def fill(text: str, ctx: Context[Bundle]) -> Any:
        before = list(ctx.memory.notes.state)
        await ctx.memory.notes.keep("kept")
        return before

    @step
    async def clear(text: str, ctx: Context[Bundle]) -> Any:
        before = list(ctx.memory.notes.state)
        await ctx.memory.notes.clear()
        return before, ctx.memory.notes.state

    backend = InMemoryBackend()
    async with Harness(memory=Bundle(), checkpoints=backend) as harness:
        assert (await harness.run(fill, "", thread_id="t")).value == []
        assert (await backend.stats()).values == 1
        assert (await harness.run(clear, "", thread_id="t")).value == (["kept"], None)
        assert (await backend.stats()).values == 0
        assert (await harness.run(fill, "", thread_id="t")).value == []


# ---------------------------------------------------------------------------------------------------- failing hooks


HOOKS: tuple[HookName, ...] = (
    "init", "on_item_append", "recall", "project_history", "after_model_call", "before_tool_call", "after_tool_call",
    "store", "on_spawn", "on_return", "on_complete", "dispose",
)  # fmt: skip


class Failing(Every):
    """Fails in one hook, before or after it has waited, or waits for ever."""

    at: HookName = "recall"
    how: str = "before"

    async def fail(self, hook: str) -> None:
        """Do what is to be done in this hook."""
        self.note(hook)
        if hook != self.at:
            return
        if self.how == "before":
            raise ValueError("planned")
        await anyio.lowlevel.checkpoint()
        if self.how == "timeout":
            await anyio.sleep_forever()
        raise ValueError("planned")

    async def init(self) -> None:
        await self.fail("init")

    async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
        await self.fail("on_item_append")
        return items

    async def recall(self, query: str, budget: int) -> str:
        await self.fail("recall")
        return "known"

    async def project_history(self, items: Sequence[Item]) -> Sequence[Item]:
        await self.fail("project_history")
        return items

    async def after_model_call(self, response: ModelResponse) -> None:
        await self.fail("after_model_call")

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        await self.fail("before_tool_call")
        return call

    async def after_tool_call(self, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
        await self.fail("after_tool_call")
        return output

    async def store(self, response: ModelResponse) -> None:
        await self.fail("store")

    async def on_spawn(self) -> Seed[int] | None:
        await self.fail("on_spawn")
        return Seed(self.state)

    async def on_return(self, child: Returned[int]) -> None:
        await self.fail("on_return")

    async def on_complete(self) -> None:
        await self.fail("on_complete")

    async def dispose(self) -> None:
        await self.fail("dispose")


@pytest.mark.clause("002-47d")
@pytest.mark.parametrize("how", ["before", "after", "timeout"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_hook_that_fails_changes_nothing(hook: HookName, how: str) -> None:
    short: dict[HookName, float] = {hook: 0.02} if how == "timeout" else {}

    class Bundle(Memory):
        bad: Failing = Failing(at=hook, how=how, on_init_error="disable", timeouts=short)
        good: Facts = Facts()

    class Sound(Memory):
        bad: Failing = Failing(at="render_delta")
        good: Facts = Facts()

    @step
    async def child(text: str, ctx: Context[Memory]) -> str:
        return text

    def flow() -> Any:
        model = ScriptedModel([calling("good__remember", fact="x")], "done")
        return spawn(child) >> loop(call_model(model), until=until.no_tool_calls())

    seen: list[LayerFailed] = []
    async with Harness(memory=Bundle()) as harness, harness.stream(flow(), "go") as stream:
        seen += [event async for event in stream.events if isinstance(event, LayerFailed)]
        result = await stream.result()
    TOLD.clear()
    async with Harness(memory=Sound()) as sound:
        whole = await sound.run(flow(), "go")
    assert result.value == whole.value == "done"
    # The log is as if nothing had been wrong; the other layer too.
    assert [type(item) for item in result.items] == [type(item) for item in whole.items]
    assert result.memory["good"] == whole.memory["good"] == ["x"]
    assert {(event.layer, event.hook) for event in seen} == {("bad", hook)}
    assert ("took longer" in seen[0].error) == (how == "timeout")
    counted = TOLD.count(f"bad.{hook}")
    if hook == "init":
        # Left out of the execution: nothing else of it is called.
        assert "bad" not in result.memory
    elif hook == "on_spawn":
        # The child has nothing of it, so it has nothing to return either.
        assert result.memory["bad"] == whole.memory["bad"] - 1
    else:
        assert result.memory["bad"] == whole.memory["bad"] - counted


@pytest.mark.clause("002-47e")
async def test_an_init_that_fails_fails_the_run_unless_told_otherwise() -> None:
    class Bundle(Memory):
        bad: Failing = Failing(at="init")

    @step
    async def body(text: str) -> str:
        raise AssertionError("nothing runs")

    async with Harness(memory=Bundle()) as harness:
        with pytest.raises(errors.LayerError, match="failed in init: ValueError: planned") as caught:
            await harness.run(body, "")
    assert (caught.value.layer, caught.value.hook) == ("bad", "init")
    assert TOLD == ["bad.init"]


async def test_a_layer_that_is_left_out_says_so() -> None:
    class Bundle(Memory):
        bad: Failing = Failing(at="init", on_init_error="disable")

    @step
    async def body(text: str, ctx: Context[Bundle]) -> int:
        return ctx.memory.bad.state

    async with Harness(memory=Bundle()) as harness:
        with pytest.raises(errors.LayerError, match="not in this execution"):
            await harness.run(body, "")


async def test_a_check_that_fails_blocks_where_it_has_to() -> None:
    class Bundle(Memory):
        guard: Failing = Failing(at="before_tool_call", fail_closed=True)
        facts: Facts = Facts()

    model = ScriptedModel(calling("facts__remember", fact="x"), "done")
    async with Harness(memory=Bundle()) as harness:
        result = await harness.run(loop(call_model(model), until=until.no_tool_calls()), "go")
    assert result.memory["facts"] == []
    output = next(item for item in result.items if isinstance(item, FunctionCallOutput))
    assert output.output == "The call was blocked: guard could not check it."


# ---------------------------------------------------------------------------------------------------- what hooks may do


async def test_a_layer_rewrites_blocks_and_mends() -> None:
    class Guard(MemoryLayer[list[str]]):
        async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
            return [evolve_text(item) for item in items]

        async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
            if "secret" in call.arguments:
                return "not that"
            return evolve(call, arguments=call.arguments.replace("colour", "color"))

        async def after_tool_call(self, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
            return evolve(output, output=f"[{output.output}]")

        async def on_model_error(self, error: errors.ModelError) -> ModelResponse:
            return ModelResponse((Message.assistant("mended"),))

    def evolve_text(item: Item) -> Item:
        return Message.user(item.text.upper()) if isinstance(item, Message) else item

    class Bundle(Memory):
        guard: Guard = Guard()
        facts: Facts = Facts()

    calls = [calling("facts__remember", fact="colour"), calling("facts__remember", fact="secret")]
    model = ScriptedModel(calls, errors.ModelUnavailable("gone", model="m"))
    async with Harness(memory=Bundle()) as harness:
        result = await harness.run(loop(call_model(model), until=until.no_tool_calls()), "go")
    assert result.value == "mended"
    assert result.memory["facts"] == ["color"]
    assert isinstance(result.items[0], Message)
    assert result.items[0].text == "GO"
    assert [item.output for item in result.items if isinstance(item, FunctionCallOutput)] == ["[1]", "not that"]


async def test_a_layer_guides_and_halts() -> None:
    class Judge(MemoryLayer[int]):
        async def after_model_call(self, response: ModelResponse) -> Guide | Halt | None:
            self.state += 1
            text = "".join(item.text for item in response.items if isinstance(item, Message))
            if "rude" in text:
                return Guide("be kind")
            return Halt("enough") if "end" in text else None

    class Bundle(Memory):
        judge: Judge = Judge()

    async with Harness(memory=Bundle()) as harness:
        model = ScriptedModel("rude", "kind")
        result = await harness.run(call_model(model), "go")
        assert (result.value, result.memory["judge"]) == ("kind", 2)
        told = model.requests[1].items[-1]
        assert isinstance(told, Message)
        assert (told.role, "be kind" in told.text) == ("developer", True)
        assert not any("rude" in item.text for item in result.items if isinstance(item, Message))
        halted = await harness.run(call_model(ScriptedModel("the end")), "go")
        assert (halted.status, halted.reason) == ("aborted", "enough")
        with pytest.raises(errors.LayerError, match="asked for another answer 4 times"):
            await harness.run(call_model(ScriptedModel(*["rude"] * 9)), "go")


async def test_an_output_cannot_be_taken_away() -> None:
    class Drops(MemoryLayer[None]):
        async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
            return [item for item in items if not isinstance(item, FunctionCallOutput)]

    class Bundle(Memory):
        drops: Drops = Drops()
        facts: Facts = Facts()

    model = ScriptedModel(calling("facts__remember", fact="x"), "done")
    flow = loop(call_model(model), until=until.no_tool_calls())
    async with Harness(memory=Bundle()) as harness, harness.stream(flow, "go") as stream:
        failed = [event async for event in stream.events if isinstance(event, LayerFailed)]
        result = await stream.result()
    assert [(event.layer, event.hook) for event in failed] == [("drops", "on_item_append")]
    assert any(isinstance(item, FunctionCallOutput) for item in result.items)


async def test_an_eventual_layer_recalls_when_something_has_changed() -> None:
    class Slow(MemoryLayer[int]):
        async def recall(self, query: str, budget: int) -> Recall:
            TOLD.append(query)
            return Recall(f"about {query}", tokens=3)

        async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item] | AppendedItems:
            return AppendedItems(items) if any("again" in str(item) for item in items) else items

    class Bundle(Memory):
        slow: Slow = Slow(recall_mode="eventual")

    asks = call_model(ScriptedModel("a", "b", "c"), id="asks")

    @step
    async def body(text: str, ctx: Context[Memory]) -> str:
        for each in ("one", "two", "again three"):
            await asks(each, ctx)
        return text

    async with Harness(memory=Bundle()) as harness:
        await harness.run(body, "")
    assert TOLD == ["one", "again three"]


# ------------------------------------------------------------------------------------------------------------- children


@define
class Notes:
    """A state with fields."""

    seen: list[str] = field(factory=list[str])
    depth: int = 0


class Family(MemoryLayer[Notes]):
    """Passes on to children, and takes of them."""

    @function
    async def see(self, what: str) -> None:
        """Note something."""
        self.state.seen.append(what)

    async def on_spawn(self) -> Seed[Notes] | None:
        if self.state.depth > 1:
            return None
        return Seed(Notes([*self.state.seen, "born"], self.state.depth + 1), [Message.developer("your seed")])

    async def on_return(self, child: Returned[Notes]) -> None:
        TOLD.append(f"{len(child.items)} items, value {child.value}")
        self.state.seen.extend(child.state.seen[len(self.state.seen) :])


class Kin(Memory):
    """A family."""

    family: Family = Family()


@step
async def see(text: str, ctx: Context[Kin]) -> str:
    """Note the input."""
    await ctx.memory.family.see(text)
    return text


@pytest.mark.clause("002-43g")
async def test_children_begin_and_return_as_hooks_say() -> None:
    async with Harness(memory=Kin()) as harness:
        result = await harness.run(see >> spawn(see), "s")
        assert result.memory["family"].seen == ["s", "born", "s"]
        assert TOLD == ["1 items, value s"]
        result = await harness.run(parallel([see, see], merge=lambda values, ctx: values[0]), "p")
        assert result.memory["family"].seen == ["born", "p"]
        result = await harness.run(race([see, see]), "r")
        assert result.memory["family"].seen == ["born", "r"]
        # A child that the layer gives nothing has none of it.
        with pytest.raises(errors.LayerError, match="on_spawn gave nothing"):
            await harness.run(spawn(spawn(spawn(see))), "deep")


@pytest.mark.clause("002-40e")
async def test_with_memory_changes_nothing_else() -> None:
    @step
    async def inside(text: str, ctx: Context[Mem, Any]) -> str:
        await ctx.memory.facts.remember(text)
        ctx.state["n"] = len(ctx.items)
        ctx.items.append(Message.user("inside"))
        assert ctx.depth == 0
        return f"{text}!"

    @step
    async def ends(text: str, ctx: Context[Mem]) -> str:
        ctx.complete("early")
        await anyio.lowlevel.checkpoint()
        raise AssertionError("it was stopped")

    async with Harness(memory=Kin()) as harness:
        result = await harness.run(see >> with_memory(inside, memory=Mem()) >> see, "x")
        assert result.value == "x!"
        assert result.memory["family"].seen == ["x", "x!"]
        assert "facts" not in result.memory
        assert result.state["n"] == 0
        assert [item.text for item in result.items if isinstance(item, Message)] == ["inside"]
        ended = await harness.run(with_memory(ends, memory=Mem()) >> see, "y")
        assert (ended.status, ended.value) == ("completed", "early")


COUNTED = ("input", "depth", "turns", "step_count", "tokens", "cost", "parent", "name")


def wrapped(inner: Any) -> Any:
    return with_memory(inner, memory=Mem())


async def seen_with(wrap: Any) -> list[Any]:
    """What a step and a tool see of their context, and how the run ends, with a loop that is written around both."""
    seen: list[Any] = []

    @step
    async def look(value: object, ctx: Context[Any]) -> object:
        seen.append([getattr(ctx, name) for name in COUNTED])
        seen.append([call.call_id for call in (ctx.last_step or StepMeta()).tool_calls])
        return value

    @tool
    async def work(ctx: Context[Any], n: int) -> str:
        """Work."""
        seen.append([getattr(ctx, name) for name in COUNTED])
        if n == 2:
            ctx.stop_loop("enough")
        return "done"

    def call(request: ModelRequest) -> Any:
        n = sum(isinstance(item, FunctionCall) for item in request.items)
        return FunctionCall(name="work", arguments={"n": "none" if n == 1 else n}, call_id=f"c{n}")

    def flow() -> Any:
        ask = call_model(ScriptedModel(*[call] * 9), tools=[work])
        return look >> loop(wrap(wrap(ask) >> look), until=until.max_turns(9)) >> look

    async with Harness(memory=Kin()) as harness:
        result = await harness.run(flow(), "go", budget=Budget(steps=50, model_calls=20))
        seen.append([result.value, result.steps, result.model_calls, result.usage])
        agent = await harness.run(
            wrap(loop(wrap(call_model(ScriptedModel("hello"))), until=until.no_tool_calls())), "a"
        )
        seen.append([agent.value, agent.reason])
        refused = call_model(ScriptedModel(*[FunctionCall(name="work", arguments={"n": "none"})] * 9), tools=[work])
        with pytest.raises(errors.ToolArgumentsInvalid):
            await harness.run(loop(wrap(refused), until=until.no_tool_calls(), max_iterations=5), "b")
    found = list(seen)
    if wrap is wrapped:
        await assert_resumable_everywhere(flow, "go", make=lambda backend: Harness(checkpoints=backend))
    return found


async def test_a_step_with_other_memory_counts_loops_and_ends_as_it_would_without() -> None:
    def plain(inner: Any) -> Any:
        return inner

    assert await seen_with(wrapped) == await seen_with(plain)


async def test_a_child_hears_of_what_came_before_its_first_question() -> None:
    class Listens(MemoryLayer[str]):
        @function
        async def hear(self, text: str) -> None:
            """Hear."""
            self.state = text

        async def on_parent_update(self, state: str) -> None:
            self.state = f"heard {state}"

    class Bundle(Memory):
        ears: Listens = Listens()

    ask = call_model(ScriptedModel("answer"))
    go_on = anyio.Event()

    @step
    async def child(text: str, ctx: Context[Bundle]) -> str:
        await go_on.wait()
        await ask("one", ctx)
        return ctx.memory.ears.state

    @step
    async def parent(text: str, ctx: Context[Bundle]) -> str:
        work = ctx.spawn_detached(child, text)
        await ctx.memory.ears.hear("early")
        go_on.set()
        return (await work.wait()).value

    async with Harness(memory=Bundle()) as harness:
        assert (await harness.run(parent, "x")).value == "heard early"


@pytest.mark.clause("002-47c")
async def test_a_child_hears_of_its_parent() -> None:
    class Listens(MemoryLayer[list[str]]):
        @function
        async def hear(self, texts: list[str]) -> None:
            """Hear."""
            self.state = texts

        async def on_parent_update(self, state: list[str]) -> None:
            self.state = [f"parent has {len(state)}"]

        async def recall(self, query: str, budget: int) -> str:
            return "\n".join(self.state)

    class Bundle(Memory):
        ears: Listens = Listens()

    changed = anyio.Event()
    model = ScriptedModel("first", "second")
    ask = call_model(model)

    @step
    async def child(text: str, ctx: Context[Bundle]) -> str:
        await ask("one", ctx)
        changed.set()
        await go_on.wait()
        await ask("two", ctx)
        return ctx.memory.ears.state[0]

    go_on = anyio.Event()

    @step
    async def parent(text: str, ctx: Context[Bundle]) -> Any:
        work = ctx.spawn_detached(child, text)
        await changed.wait()
        await ctx.memory.ears.hear(["a", "b"])
        go_on.set()
        return (await work.wait()).value

    async with Harness(memory=Bundle()) as harness:
        result = await harness.run(parent, "x")
    assert result.value == "parent has 2"


# ---------------------------------------------------------------------------------------------------- durability


async def test_a_kill_between_any_two_steps_leaves_log_and_memory_agreeing() -> None:
    tried: list[int] = []

    def answer(request: Any) -> Any:
        answered = any(isinstance(item, FunctionCallOutput) for item in request.items)
        return "done" if answered else [calling("facts__remember", fact="m1"), calling("facts__remember", fact="m2")]

    class Whole(Kin):
        facts: Facts = Facts(scope=Scope.GLOBAL)
        every: Every = Every(scope=Scope.EXECUTION)

    @step
    async def body(text: str, ctx: Context[Whole]) -> str:
        await ctx.memory.facts.remember(f"a {text}")
        await see(text, ctx)
        await ctx.memory.facts.remember(f"b {text}")
        tried.append(1)
        return text

    @step
    async def shown(text: str, ctx: Context[Whole]) -> str:
        return await see(text, ctx)

    def flow() -> Any:
        ask = loop(call_model(ScriptedModel(*[answer] * 2)), until=until.no_tool_calls())
        both = parallel([body, shown], merge=lambda values, ctx: values[0])
        return sequence(body, both, spawn(body), ask, with_memory(ask_again(), memory=Mem()))

    def ask_again() -> Any:
        return call_model(ScriptedModel("again"), id="again")

    kills = await assert_resumable_everywhere(
        flow, "x", make=lambda backend: Harness(memory=Whole(), checkpoints=backend)
    )
    assert kills > 40


async def test_an_interrupted_run_goes_on_with_its_memory() -> None:
    backend = FaultyBackend(InMemoryBackend())
    stop: list[bool] = [True]

    @step
    async def first(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.facts.remember(text)
        return text

    @step
    async def second(text: str, ctx: Context[Mem]) -> list[str]:
        if stop:
            raise ValueError("not yet")
        await ctx.memory.facts.remember("second")
        return list(ctx.memory.facts.state)

    flow = first >> second
    async with Harness(memory=Mem(), checkpoints=backend) as harness:
        failed = await harness.run(flow, "x", run_id="r", on_error="result")
        assert (failed.status, failed.memory["facts"]) == ("failed", ["x"])
        stop.clear()
        result = await harness.resume("r", flow)
    assert result.value == ["x", "second"]


async def test_a_model_call_of_a_layer_is_not_made_twice() -> None:
    asked: list[str] = []

    def distil(request: Any) -> str:
        asked.append("asked")
        return f"summary {len(asked)}"

    class Distils(MemoryLayer[list[str]]):
        async def store(self, response: ModelResponse) -> None:
            self.state.append(await self.call(call_model(ScriptedModel(*[distil] * 3)), "sum up"))

    class Bundle(Memory):
        one: Distils = Distils()
        two: Distils = Distils()

    def flow() -> Any:
        return call_model(ScriptedModel("answer"))

    async with Harness(memory=Bundle()) as harness:
        result = await harness.run(flow(), "go")
    assert result.model_calls == 3
    assert len(result.items) == 2
    assert sorted(result.memory["one"] + result.memory["two"]) == ["summary 1", "summary 2"]

    def made(backend: Any) -> Harness[Any]:
        asked.clear()
        return Harness(memory=Constant(), checkpoints=backend)

    class Says(MemoryLayer[list[str]]):
        async def store(self, response: ModelResponse) -> None:
            self.state.append(await self.call(call_model(ScriptedModel("same", "same")), "sum up"))

    class Constant(Memory):
        one: Says = Says()
        two: Says = Says()

    assert await assert_resumable_everywhere(flow, "x", make=made) > 6


# ---------------------------------------------------------------------------------------------------- misuse


async def test_memory_can_only_be_read_where_nothing_may_change() -> None:
    @step
    async def body(text: str, ctx: Context[Mem]) -> str:
        reader: ReadContext[Mem, object] = ctx.read_only()
        assert reader.memory.facts.state == []
        with pytest.raises(errors.NoContextError, match="can only be read"):
            await reader.memory.facts.remember("x")
        kept.append(ctx.memory)
        return text

    kept: list[Mem] = []
    async with Harness(memory=Mem()) as harness:
        await harness.run(body, "")
    with pytest.raises(errors.NoContextError, match="after its execution has ended"):
        await kept[0].facts.remember("late")


def test_a_bundle_that_cannot_work_is_refused() -> None:
    class Twice(Memory):
        a: Facts = Facts(id="same")
        b: Facts = Facts(id="same")

    class Bad(Memory):
        facts: Facts

    cases: list[tuple[Memory, str]] = [
        (Twice(), "layer-id"),
        (Bad(facts=Facts(budget=(5, 1))), "layer-budget"),
        (Bad(facts=Facts(budget=-1)), "layer-budget"),
        (Bad(facts=Facts(slot=float("nan"))), "layer-slot"),  # type: ignore[arg-type] # what is tested
        (Bad(facts=Facts(scope="thread")), "layer-scope"),  # type: ignore[arg-type] # what is tested
        (Bad(facts=Facts(placement="top")), "layer-placement"),  # type: ignore[arg-type] # what is tested
        (Bad(facts=Facts(timeouts={"recall": 0})), "layer-timeout"),
        (Bad(facts=Facts(id="a b")), "layer-id"),
    ]
    for memory, code in cases:
        with pytest.raises(errors.ConfigError) as caught:
            Harness(memory=memory)
        assert caught.value.code == code

    class Idle(MemoryLayer[None]):
        pass

    class Useless(Memory):
        idle: Idle = Idle()

    with pytest.warns(errors.NoeticWarning, match="'idle' has neither a hook"):
        Harness(memory=Useless())
    with pytest.raises(AttributeError, match="is fixed"):
        Facts().id = "other"  # type: ignore[misc] # what is tested


async def test_a_state_that_cannot_be_stored_says_where() -> None:
    class Holds(MemoryLayer[dict[str, Any]]):
        @function
        async def put(self, key: str) -> None:
            """Keep something that nothing stores."""
            self.state = {key: anyio.sleep}

        async def recall(self, query: str, budget: int) -> str:
            return ""

    class Bundle(Memory):
        holds: Holds = Holds(scope=Scope.EXECUTION)

    @step
    async def body(text: str, ctx: Context[Bundle]) -> str:
        await ctx.memory.holds.put("mod")
        return text

    async with Harness(memory=Bundle(), checkpoints=InMemoryBackend()) as harness:
        with pytest.raises(errors.CodecError, match=r"memory\.holds\.state\.mod") as caught:
            await harness.run(body, "")
    assert caught.value.path == ("body",)


async def test_a_stored_state_that_no_longer_fits() -> None:
    class Old(MemoryLayer[list[str]]):
        @function
        async def add(self, text: str) -> None:
            """Add."""
            self.state.append(text)

    class New(MemoryLayer[dict[str, int]]):
        async def recall(self, query: str, budget: int) -> str:
            return ""

    class Newer(New):
        schema_version = 2

        def migrate(self, state: Any, version: int) -> Any:
            assert version == 1
            return dict.fromkeys(state, 0)

    class Unmigrated(New):
        schema_version = 2

    class Bundle(Memory):
        notes: MemoryLayer[Any]

    @step
    async def body(text: str, ctx: Context[Bundle]) -> Any:
        notes = ctx.memory.notes
        if isinstance(notes, Old):
            await notes.add(text)
        return notes.state

    backend = InMemoryBackend()

    async def run(layer: MemoryLayer[Any]) -> Any:
        async with Harness(memory=Bundle(notes=layer), checkpoints=backend) as harness:
            return (await harness.run(body, "x", thread_id="t")).value

    assert await run(Old()) == ["x"]
    with pytest.raises(errors.LayerError, match="notes: v1"):
        await run(New())
    with pytest.raises(errors.ConfigError, match=r"define migrate\(self, state, version\)"):
        await run(Unmigrated())
    assert await run(Newer()) == {"x": 0}


@pytest.mark.parametrize("empties", [False, True])
@pytest.mark.parametrize("scope", [Scope.USER, Scope.THREAD])
async def test_older_code_does_not_write_once_newer_code_has(
    backend: CheckpointBackend, scope: Scope, empties: bool
) -> None:
    class Old(MemoryLayer[list[str] | None]):
        def initial(self) -> list[str] | None:
            return []

        async def recall(self, query: str, budget: int) -> str:
            return ""

        @function
        async def add(self, text: str) -> None:
            """Add."""
            self.state = None if empties and self.state else [*(self.state or ()), text]

    class Newer(Old):
        schema_version = 2

        def migrate(self, state: Any, version: int) -> Any:
            assert version == 1
            return state

    class Bundle(Memory):
        notes: MemoryLayer[Any]

    begun, go = anyio.Event(), anyio.Event()

    @step
    async def waits(text: str, ctx: Context[Bundle]) -> Any:
        notes: Any = ctx.memory.notes
        begun.set()
        await go.wait()
        await notes.add(text)
        return notes.state

    @step
    async def adds(text: str, ctx: Context[Bundle]) -> Any:
        notes: Any = ctx.memory.notes
        await notes.add(text)
        return notes.state

    def harness(kind: type[Old]) -> Harness[Bundle]:
        return Harness(plugins=(), memory=Bundle(notes=kind(id="notes", scope=scope)), checkpoints=backend)

    ids: dict[str, Any] = {"thread_id": "t", "user_id": "u"}
    async with harness(Old) as older, harness(Newer) as newer:
        assert (await older.run(adds, "first", **ids)).value == ["first"]
        handle = older.start(waits, "late", run_id="late", on_error="result", **ids)
        await begun.wait()
        again = newer.run(adds, "newer", **ids)
        expected = None if empties else ["first", "newer"]
        assert (await again).value == expected
        if empties:
            assert (await newer.run(adds, "newer", **ids)).value == ["newer"]
            expected = ["newer"]
        go.set()
        result = await handle.result()
        assert isinstance(result.error, errors.ConfigError)
        assert (result.error.code, "'notes'" in result.error.message) == ("layer-version", True)
        assert (await newer.run(read, None, **ids)).value == expected


@step
async def read(_: None, ctx: Context[Any]) -> Any:
    notes: Any = ctx.memory.notes
    return notes.state


# ---------------------------------------------------------------------------------------------------- seen from outside


async def test_the_view_explains_itself() -> None:
    class Bundle(Memory):
        facts: Facts = Facts(placement="anchor")
        time: Every = Every(placement="live")

    model = ScriptedModel("one", "two")
    ask = call_model(model, instructions="Be brief.", id="a")
    flow = ask >> ask.with_options(id="b")
    async with Harness(memory=Bundle()) as harness:
        async with harness.stream(flow, "x") as s:
            made = [event.view async for event in s.events if isinstance(event, ViewMade)]
            result = await s.result()
        view = harness.explain_view(result.run_id)
        assert view is made[-1]
        with pytest.raises(errors.RunNotFound):
            harness.explain_view("other")
    assert len(made) == 2
    assert [block.layer for block in view.blocks if block.kind == "live"] == ["time"]
    told = view.explain()
    assert all(word in told for word in ("system", "tail", "time", "the step's instructions"))
    assert list(model.requests[1].items) == list(view.items)
    assert model.requests[1].stable == view.stable
    assert result.last_layer_usage == view.usage


def test_layers_are_registered_by_plugins() -> None:
    class Acme:
        @hookimpl
        def register_memory_layers(self, registry: LayerRegistry) -> None:
            registry.memory_layer("acme-facts", Facts)

    class Twice:
        @hookimpl
        def register_memory_layers(self, registry: LayerRegistry) -> None:
            registry.memory_layer("context-queue", Facts)

    class Wrong:
        @hookimpl
        def register_memory_layers(self, registry: LayerRegistry) -> None:
            registry.memory_layer("other", str)  # type: ignore[arg-type] # what is tested

    harness = Harness(plugins=[Acme()])
    assert harness.memory_layers("acme-facts") is Facts
    assert harness.memory_layers("context-queue").__name__ == "ContextQueue"
    for name in harness.memory_layers.names:
        assert issubclass(harness.memory_layers(name), MemoryLayer)
    with pytest.raises(errors.ConfigError, match="no plugin provides a memory layer 'x'"):
        harness.memory_layers("x")
    with pytest.raises(errors.PluginError, match="both provide a memory layer 'context-queue'"):
        Harness(plugins=[Twice()])
    with pytest.raises(errors.PluginError, match="is not a valid memory layer"):
        Harness(plugins=[Wrong()])


async def test_what_stores_a_layers_values_is_made_once() -> None:
    found: list[object] = []

    @step
    async def look(x: str, ctx: Context[Any]) -> str:
        found.extend(ctx.memory.facts.storage._codec for _ in range(2))
        return x

    memory = Mem()
    async with Harness(memory=memory, checkpoints=InMemoryBackend()) as harness:
        await harness.run(look, "x")
        await harness.run(look, "x")
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


class OfExecution(Memory):
    """One layer whose values end with the execution."""

    facts: Facts = Facts(scope=Scope.EXECUTION)


@step
async def put_beside(text: str, ctx: Context[OfExecution]) -> str:
    """Keep a value beside the state."""
    await ctx.memory.facts.storage.put(text, "kept")
    return text


@step
async def look_beside(text: str, ctx: Context[OfExecution]) -> str:
    """Look for it."""
    return f"{text}: {await ctx.memory.facts.storage.get(text)}"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("dies_at", range(1, 7))
async def test_a_childs_values_are_there_when_it_goes_on(dies_at: int, when: When) -> None:
    backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when=when)
    flow = sequence(spawn(sequence(put_beside, look_beside), id="child"), look_beside)
    with backend.outlived():
        async with Harness(memory=OfExecution(), checkpoints=backend) as harness:
            await harness.run(flow, "one", run_id="r")
    assert backend.dead
    backend.revive()
    async with Harness(memory=OfExecution(), checkpoints=backend) as harness:
        head = await backend.head("r")
        begun = head is not None and head.position
        result = await (harness.resume("r", flow) if begun else harness.run(flow, "one", run_id="r"))
    assert result.value == "one: kept: None"


async def test_a_childs_values_end_with_its_attempt() -> None:
    seen: list[str] = []

    @step(retry=Retry(2, initial=0))
    async def again(text: str, ctx: Context[OfExecution]) -> str:
        seen.append(await spawn(look_beside)(text, ctx))
        await spawn(put_beside >> look_beside, id="puts")(text, ctx)
        seen.append(await spawn(look_beside, id="other")(text, ctx))
        if len(seen) < 4:
            raise ValueError("again")
        return text

    async with Harness(memory=OfExecution(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(again, "one")
    assert seen == ["one: None"] * 4


async def test_the_store_is_not_written_where_nothing_has_changed() -> None:
    class Quiet(Memory):
        facts: Facts = Facts(scope=Scope.USER)
        other: Facts = Facts(scope=Scope.USER)

    @step
    async def body(text: str, ctx: Context[Quiet]) -> str:
        await ctx.memory.other.remember(text)
        return text

    inner = InMemoryBackend()
    for run in range(2):
        for dies_at in range(1, 6):
            backend = FaultyBackend(inner, dies_at=dies_at)
            with backend.outlived():
                async with Harness(memory=Quiet(), checkpoints=backend) as harness:
                    await harness.run(body, "x", run_id=f"{run} {dies_at}", user_id="ada")
            backend.revive()
            async with Harness(memory=Quiet(), checkpoints=backend) as harness:
                if dies_at > 1:
                    await harness.resume(f"{run} {dies_at}", body)
    async with Harness(memory=Quiet(), checkpoints=inner) as harness:
        result = await harness.run(body, "y", user_id="ada")
    assert (result.memory["facts"], result.memory["other"][-1]) == ([], "y")
    values: Any = inner._store.values
    assert [scope[-1] for scope in values] == ["other"]


async def test_a_state_that_is_written_while_it_is_looked_for_is_found() -> None:
    class Late(InMemoryBackend):
        """Somebody else writes a state behind the first look at it."""

        late = True

        async def get(self, scope: tuple[str, ...], key: str) -> StoredValue | None:
            found = await super().get(scope, key)
            if self.late:
                self.late = False
                await self.put(scope, key, b'{"$":"tuple","v":["another run",["from another"]]}')
            return found

    @step
    async def found(text: str, ctx: Context[Mem]) -> list[str]:
        return list(ctx.memory.facts.state)

    async with Harness(memory=Mem(), checkpoints=Late()) as harness:
        result = await harness.run(found, "x", thread_id="t")
    assert result.value == ["from another"]
