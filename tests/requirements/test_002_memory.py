"""Rows 002-08, 002-16 to 002-19, 002-36, 002-37 and 002-47 to 002-51: memory layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    MemoryLayer,
    Message,
    ModelResponse,
    call_model,
    errors,
    loop,
    spawn,
    step,
    until,
)
from noetic_py import memory as memory_module
from noetic_py.core.view import LayerUsage
from noetic_py.memory import TIMEOUTS, Scope, Seed, Slot, function
from noetic_py.memory.layer import hooks_of
from noetic_py.memory.projector import Demand, allocate
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Notes(MemoryLayer[dict[str, int]]):
    """A layer with data and a function."""

    @property
    def snapshot(self) -> Mapping[str, int]:
        """What there is."""
        return dict(self.state)

    @function
    async def put(self, key: str, value: int) -> int:
        """Keep a number.

        Args:
            key: Its name.
            value: The number.
        """
        self.state = {**self.state, key: value}
        if value < 0:
            raise ValueError("below zero")
        return len(self.state)

    async def recall(self, query: str, budget: int) -> str:
        return str(self.state)


class Bare(MemoryLayer[None]):
    """A layer that provides nothing."""

    async def recall(self, query: str, budget: int) -> None:
        return None


class Mem(Memory):
    """The bundle of these tests."""

    notes: Notes = Notes()
    bare: Bare = Bare()


@pytest.mark.clause("002-08a", "002-08b", "002-08c")
async def test_002_08_layers_by_name_in_a_container_that_stands() -> None:
    @step
    async def body(_: object, ctx: Context[Mem]) -> list[str]:
        await ctx.memory.notes.put("a", 1)
        assert ctx.memory["notes"].state == ctx.memory[Notes].state == ctx.memory.notes.state == {"a": 1}
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            ctx.memory.notes = Notes()  # type: ignore[misc] # that is the test
        with pytest.raises(KeyError, match="no layer 'other'"):
            _ = ctx.memory["other"]
        # A layer that provides nothing gives a handle with nothing in it.
        assert ctx.memory.bare.state is None
        return [ctx.memory.notes.id, ctx.memory.bare.id]

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(body, None)).value == ["notes", "bare"]


async def test_002_43b_memory_of_its_own_takes_the_place_of_the_parents() -> None:
    class Own(Memory):
        other: Notes = Notes()

    @step
    async def child(_: object, ctx: Context[Own]) -> tuple[Mapping[str, int], list[str]]:
        before = ctx.memory.other.snapshot
        await ctx.memory.other.put("child", 1)
        untyped: Any = ctx.memory
        return before, [name for name in ("notes", "bare", "other") if hasattr(untyped, name)]

    @step
    async def parent(_: object, ctx: Context[Mem]) -> object:
        await ctx.memory.notes.put("parent", 1)
        found = await spawn(child, memory=Own())(None, ctx)
        return found, ctx.memory.notes.snapshot

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(parent, None)).value == (({}, ["other"]), {"parent": 1})


@pytest.mark.clause("002-16a", "002-16b")
def test_002_16_checkers_know_every_layer() -> None:
    # Both checkers run this program in tests/test_typing.py, and have to err on the marked lines and no others.
    program = Path(__file__).parent.parent / "typing" / "programs" / "memory.py"
    lines = program.read_text().splitlines()
    marked = [line.partition("#")[0].strip() for line in lines if line.endswith("# E")]
    assert "ctx.memory.fcats.newest" in marked
    assert "await ctx.memory.facts.forget(text)" in marked
    assert any("assert_type(ctx.memory.facts.state, list[str])" in line for line in lines)


async def test_002_17_data_are_read_live() -> None:
    @step
    async def body(_: object, ctx: Context[Mem]) -> None:
        notes = ctx.memory.notes
        assert notes.snapshot == {}
        await notes.put("a", 1)
        assert notes.snapshot == {"a": 1}
        await child(None, ctx)
        assert notes.snapshot == {"a": 1, "b": 2}

    @step
    async def child(_: object, ctx: Context[Mem]) -> None:
        await ctx.memory.notes.put("b", 2)

    async with Harness(memory=Mem()) as harness:
        await harness.run(body, None)


@pytest.mark.clause("002-18a", "002-18b", "002-18c")
async def test_002_18_functions_check_and_change() -> None:
    @step
    async def body(_: object, ctx: Context[Mem]) -> Mapping[str, int]:
        notes: Any = ctx.memory.notes
        assert await notes.put("a", 1) == 1
        # What plainly means the type passes, as from a model.
        assert await notes.put("b", value="2") == 2
        for wrong in ({"key": "c", "value": "many"}, {"key": 1, "value": 1}):
            with pytest.raises(errors.ToolArgumentsInvalid):
                await notes.put(**wrong)
        with pytest.raises(TypeError):
            await notes.put("c")
        with pytest.raises(ValueError, match="below zero"):
            await notes.put("c", -1)
        return ctx.memory.notes.snapshot

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(body, None)).value == {"a": 1, "b": 2}


@pytest.mark.clause("002-19a", "002-19b")
async def test_002_19_a_bundle_keeps_its_layers() -> None:
    class More(Mem):
        other: Notes = Notes(id="named", slot=5)

    async with Harness(memory=More(notes=Notes(budget=7))) as harness:

        @step
        async def body(_: object, ctx: Context[More]) -> list[Any]:
            memory = ctx.memory
            with pytest.raises(KeyError, match="several layers 'Notes'"):
                _ = memory[Notes]
            return [memory.notes.budget, memory.other.id, memory.other.slot, type(memory.bare)]

        assert (await harness.run(body, None)).value == [7, "named", 5, Bare]


@pytest.mark.clause("002-36a", "002-36b", "002-36c")
async def test_002_36_and_37_usage_by_layer() -> None:
    seen: list[LayerUsage | None] = []

    @step
    async def look(value: object, ctx: Context[Mem]) -> object:
        seen.append(ctx.last_layer_usage)
        return None if value is None else await ctx.memory.notes.put("long", len(seen))

    first = call_model(ScriptedModel("one"), instructions="Be brief.", id="first")
    second = call_model(ScriptedModel("two"), id="second")

    @step
    async def flow(text: str, ctx: Context[Mem]) -> None:
        await look(None, ctx)
        await first(text, ctx)
        await look(1, ctx)
        await second(text, ctx)
        await look(None, ctx)

    async with Harness(memory=Mem()) as harness:
        result = await harness.run(flow, "hello")
    before, after_first, after_second = seen
    assert before is None
    assert after_first is not None
    assert after_second is not None
    assert set(after_first.layers) == {"notes", "bare"}
    assert after_first.system > 0
    assert after_first.tools > 0
    assert after_first.history > 0
    for usage in (after_first, after_second):
        assert usage.total == usage.system + usage.tools + usage.history + sum(usage.layers.values())
    # The next call's figures take the place of the last one's.
    assert (after_second.system, after_second is after_first) == (0, False)
    assert result.last_layer_usage == after_second
    async with Harness() as plain:
        assert (await plain.run(call_model(ScriptedModel("x")), "y")).last_layer_usage is None


async def test_002_37_the_result_has_them_too() -> None:
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(call_model(ScriptedModel("one")), "hello")
    assert result.last_layer_usage == harness.explain_view(result.run_id).usage


SEEN: list[str] = []


class Every(MemoryLayer[int]):
    """Notes each hook that is called."""

    async def init(self) -> None:
        SEEN.append("init")

    async def recall(self, query: str, budget: int) -> str:
        SEEN.append("recall")
        return query

    async def store(self, response: ModelResponse) -> None:
        SEEN.append("store")

    async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
        SEEN.append("on_item_append")
        return items

    async def project_history(self, items: Sequence[Item]) -> Sequence[Item]:
        SEEN.append("project_history")
        return items

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        SEEN.append("before_tool_call")
        return call

    async def after_model_call(self, response: ModelResponse) -> None:
        SEEN.append("after_model_call")

    async def on_spawn(self) -> Seed[int]:
        SEEN.append("on_spawn")
        return Seed(self.state)

    async def on_return(self, child: Any) -> None:
        SEEN.append("on_return")

    async def on_complete(self) -> None:
        SEEN.append("on_complete")

    async def dispose(self) -> None:
        SEEN.append("dispose")


@pytest.mark.clause("002-47a", "002-47b")
async def test_002_47_hooks_at_every_stage() -> None:
    seen = SEEN
    seen.clear()

    class Bundle(Memory):
        every: Every = Every()
        notes: Notes = Notes()

    call = FunctionCall(name="notes__put", arguments='{"key": "k", "value": 1}')
    flow = spawn(loop(call_model(ScriptedModel(call, "done")), until=until.no_tool_calls()))
    async with Harness(memory=Bundle()) as harness:
        await harness.run(flow, "go")
    rounds = ["recall", "project_history", "after_model_call", "store"]
    assert seen == [
        "init", "on_spawn", "on_item_append", *rounds, "before_tool_call", "on_item_append", *rounds, "on_return",
        "on_complete", "dispose",
    ]  # fmt: skip
    # A child hears of its parent's changes in test_a_child_hears_of_its_parent of tests/test_engine_memory.py.
    assert set(seen) | {"on_parent_update", "render_delta", "after_tool_call", "on_model_error"} == set(TIMEOUTS)
    assert hooks_of(Bare) == {"recall"}


@pytest.mark.clause("002-48a", "002-48b")
async def test_002_48_scopes_that_nothing_leaves() -> None:
    class Keeps(MemoryLayer[list[str]]):
        @function
        async def keep(self, key: str, value: str) -> None:
            """Keep a value beside the state."""
            await self.storage.put(key, value)
            self.state = [*self.state, value]

        async def all(self) -> dict[str, Any]:
            """What is kept."""
            return dict(await self.storage.scan())

    class Scoped(Memory):
        a: Keeps = Keeps(scope=Scope.THREAD)
        b: Keeps = Keeps(scope=Scope.USER)
        c: Keeps = Keeps(scope=Scope.GLOBAL)
        d: Keeps = Keeps(scope=Scope.EXECUTION)

    @step
    async def put(value: str, ctx: Context[Scoped]) -> list[dict[str, Any]]:
        for layer in (ctx.memory.a, ctx.memory.b, ctx.memory.c, ctx.memory.d):
            await layer.keep("key", value)
        return [await layer.all() for layer in (ctx.memory.a, ctx.memory.b, ctx.memory.c, ctx.memory.d)]

    @step
    async def look(_: object, ctx: Context[Scoped]) -> list[Any]:
        layers = (ctx.memory.a, ctx.memory.b, ctx.memory.c, ctx.memory.d)
        return [(layer.state, await layer.storage.get("key")) for layer in layers]

    twins = [("a", "b"), ("a/b", ""), ("a|b", "c"), ("A", "B"), ("a'; drop table x --", "%")]
    async with Harness(memory=Scoped(), checkpoints=InMemoryBackend()) as harness:
        for thread, user in twins:
            await harness.run(put, f"{thread}|{user}", thread_id=thread or "t", user_id=user or "u")
        for thread, user in twins:
            mine = f"{thread}|{user}"
            seen = (await harness.run(look, None, thread_id=thread or "t", user_id=user or "u")).value
            assert seen[0] == ([mine], mine)
            assert seen[1] == ([mine], mine)
            assert seen[2][0] == [f"{one}|{two}" for one, two in twins]
            assert seen[3] == ([], None)


@pytest.mark.clause("002-49b", "002-49d", "002-49f")
def test_002_49_order_and_budgets() -> None:
    assert Slot.SYSTEM < Slot.ENTITY < Slot.HISTORY
    demands = [Demand("a", 100, 200), Demand("b", 50, 50), Demand("c", 0, None)]
    shares = allocate(1000, demands)
    assert shares.total == 1000
    assert shares.layers["a"] >= 100
    assert shares.layers["b"] == 50
    # Three fifths of what the minimums leave go to the layers at most, the rest to the conversation.
    assert shares.history is not None
    assert shares.history >= (1000 - 150) * 2 // 5
    # What a layer leaves over is the conversation's and no other layer's.
    fewer = allocate(1000, [Demand("a", 100, 200), Demand("b", 0, 0)])
    assert fewer.layers == {"a": 200, "b": 0}
    assert fewer.history == 800
    # Too little for all: the earlier get theirs.
    assert dict(allocate(120, demands).layers) == {"a": 100, "b": 20, "c": 0}


@pytest.mark.clause("002-49a")
def test_002_49_a_layer_stands_where_its_slot_says() -> None:
    class Ordered(Memory):
        late: Notes = Notes(slot=300)
        early: Notes = Notes(slot=100)

    from noetic_py.engine.layers.handles import layers_for

    assert [layer.id for layer in layers_for(Ordered()).by_slot] == ["early", "late"]


@pytest.mark.clause("002-51a", "002-51b", "002-51c")
async def test_002_51_functions_are_tools() -> None:
    class Hidden(Notes):
        @function(model=False)
        async def put(self, key: str, value: int) -> int:
            """Not for the model."""
            self.state = {**self.state, key: value}
            return 0

    class Bundle(Memory):
        notes: Notes = Notes()
        hidden: Hidden = Hidden()

    wrong = FunctionCall(name="notes__put", arguments='{"key": "k", "value": "many"}')
    right = FunctionCall(name="notes__put", arguments='{"key": "k", "value": 3}')
    model = ScriptedModel(wrong, right, "done")
    async with Harness(memory=Bundle()) as harness:
        result = await harness.run(loop(call_model(model), until=until.no_tool_calls()), "go")
    tools = model.requests[0].tools
    # `notes/put` is no name that a provider allows.
    assert [tool["name"] for tool in tools] == ["notes__put"]
    assert tools[0]["description"] == "Keep a number."
    properties = tools[0]["parameters"]
    assert isinstance(properties, dict)
    assert properties["properties"] == {
        "key": {"type": "string", "description": "Its name."},
        "value": {"type": "integer", "description": "The number."},
    }
    outputs = [item.output for item in result.items if isinstance(item, FunctionCallOutput)]
    assert "value: Input should be a valid integer" in str(outputs[0])
    assert outputs[1] == "1"
    assert result.memory["notes"] == {"k": 3}
    assert any(isinstance(item, Message) and item.text == "done" for item in result.items)
    assert memory_module.function is function
