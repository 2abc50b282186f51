"""Rows 003-11 to 003-14, 003-16, 003-17, 003-40 and 003-47: what a run does with entries, queues and pools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, call_model, call_tool, loop, step, tool, until
from noetic_py.core.events import Emitted
from noetic_py.core.items import FunctionCall, FunctionCallOutput
from noetic_py.errors import ConfigError, InvalidEntry
from noetic_py.memory import ContextItem, ContextPool, ContextQueue
from noetic_py.memory.listeners import Appended
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@attrs.frozen
class Doc:
    text: str


class Mem(Memory):
    window: ContextQueue[str] = ContextQueue(limit=5)
    shelf: ContextPool[Doc] = ContextPool()


@tool
async def note(text: str) -> ContextItem[str]:
    return ContextItem(text)


@tool
async def keep(id: str, text: str) -> ContextItem[Doc]:
    return ContextItem(Doc(text), f"about {id}", id)


@tool
async def nameless(text: str) -> ContextItem[str]:
    return ContextItem(text, id="x")


@tool
async def many() -> list[ContextItem[Any]]:
    return [ContextItem("a"), ContextItem(Doc("d"), "about d", "d"), ContextItem("b")]


@tool
async def stream(window: ContextQueue[str]) -> AsyncIterator[object]:
    yield ContextItem("first")
    yield len(window)
    yield ContextItem(Doc("d"), "about d", "d")
    yield "plain"


@step
async def look(_: object, ctx: Context[Mem]) -> tuple[str, str]:
    return ctx.memory.window.render(), ctx.memory.shelf.catalogue()


def agent(*calls: FunctionCall) -> Any:
    model = ScriptedModel(*calls, "done")
    return loop(call_model(model, tools=(note, keep, nameless, many, stream, peek)), until=until.no_tool_calls())


def outputs(result: Any) -> list[object]:
    return [each.output for each in result.new_items if isinstance(each, FunctionCallOutput)]


@pytest.mark.clause("003-11a", "003-11c")
async def test_003_11_entries_without_id_go_into_the_queue() -> None:
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(agent(FunctionCall(name="note", arguments={"text": "hello"})) >> look, "x")
    assert result.value == ("hello", "")
    assert outputs(result) == ["Noted."], "the model is told that it was kept, and not what"


@pytest.mark.clause("003-12a", "003-12c")
async def test_003_12_entries_with_id_go_into_the_pool() -> None:
    call = FunctionCall(name="keep", arguments={"id": "a", "text": "long"})
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(agent(call) >> look, "x")
        assert result.value == ("", "- [a] about a")
        assert outputs(result) == ["Stored as [a]: about a"]
        with pytest.raises(InvalidEntry, match="the entry 'x' has no description") as caught:
            await harness.run(agent(FunctionCall(name="nameless", arguments={"text": "x"})), "x")
    assert any("nameless" in each for each in caught.value.path), "the error names the step"
    async with Harness() as harness:
        with pytest.raises(ConfigError, match="no ContextQueue"):
            await harness.run(call_tool(note, args={"text": "x"}), None)


@step
async def jot(text: str) -> ContextItem[str]:
    return ContextItem(text)


@step
async def shelve(value: object) -> list[ContextItem[Any]]:
    return [ContextItem(Doc("long"), "about a", "a"), ContextItem("second")]


@step
async def misname(value: object) -> ContextItem[str]:
    return ContextItem("x", id="x")


@pytest.mark.clause("003-11b")
async def test_003_11_entries_of_a_step_go_into_the_queue_and_on() -> None:
    async with Harness(memory=Mem()) as harness:
        async with harness.stream(jot >> look, "hello") as stream:
            told = [event.event async for event in stream.events if isinstance(event, Emitted)]
            assert (await stream.result()).value == ("hello", "")
        assert told == [ContextItem("hello")]
        result = await harness.run(jot, "hello")
    assert result.value == ContextItem("hello"), "it is the value of the step as well"


@pytest.mark.clause("003-12b", "003-12c")
async def test_003_12_entries_of_a_step_go_into_the_pool_and_on() -> None:
    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(shelve >> look, "x")).value == ("second", "- [a] about a")
        with pytest.raises(InvalidEntry, match="the entry 'x' has no description") as caught:
            await harness.run(misname, "x")
    assert caught.value.path == ("misname",)


@pytest.mark.clause("003-13a", "003-13b")
async def test_003_13_streaming_tools() -> None:
    async with Harness(memory=Mem()) as harness:
        value: object = (await harness.run(call_tool(stream, args={}), None)).value
        assert value == [1, "plain"], "it sees its own entry, and its caller none"
        result = await harness.run(agent(FunctionCall(name="stream", arguments={})) >> look, "x")
        assert result.value == ("first", "- [d] about d")
        assert outputs(result) == ['[1,"plain"]']


async def test_003_14_lists_of_entries() -> None:
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(agent(FunctionCall(name="many", arguments={})) >> look, "x")
    assert result.value == ("a\nb", "- [d] about d")
    assert outputs(result) == ["Stored as [d]: about d"]


async def test_003_16_an_event_tells_of_routed_values() -> None:
    memory = Mem()
    order: list[object] = []

    @memory.window.on(Appended)
    async def log(event: Appended[str]) -> None:
        order.append("appended")

    work = call_tool(note, args={"text": "a"})
    async with Harness(memory=memory) as harness, harness.stream(work, None) as stream:
        order.extend([event.event async for event in stream.events if isinstance(event, Emitted)])
    assert order == ["appended", ContextItem("a")]


@tool
async def peek(window: ContextQueue[str], shelf: ContextPool[Doc] | None = None) -> list[object]:
    assert shelf is not None
    return [window.render(), shelf.catalogue()]


@pytest.mark.clause("003-17a", "003-17b")
async def test_003_17_layers_by_annotation() -> None:
    @step
    async def fill(_: object, ctx: Context[Mem]) -> list[object]:
        await ctx.memory.window.append(ContextItem("a"))
        await ctx.memory.shelf.add(ContextItem(Doc("d"), "about d", "d"))
        return await peek()  # type: ignore[call-arg]  # the run fills it

    heard: list[str] = []
    memory = Mem()

    @memory.window.on(Appended)
    async def log(event: Appended[str], *, shelf: ContextPool[Doc]) -> None:
        heard.append(shelf.catalogue())

    async with Harness(memory=memory) as harness:
        assert (await harness.run(fill, None)).value == ["a", "- [d] about d"]
        result = await harness.run(agent(FunctionCall(name="peek", arguments={})), "x")
    assert outputs(result) == ['["",""]'], "each run has its own"
    assert heard == [""]


@tool
async def overstep(shelf: ContextPool[Doc]) -> str:
    await shelf.add(ContextItem(Doc("x"), "about", "x"))
    return "done"


async def test_003_40_tools_only_read() -> None:
    async with Harness(memory=Mem()) as harness:
        with pytest.raises(Exception, match="can only be read"):
            await harness.run(call_tool(overstep, args={}), None)
        result = await harness.run(agent(FunctionCall(name="peek", arguments={})), "x")
        assert result.value == "done"


def filled(names: str) -> Any:
    @step(id="fill")
    async def fill(_: object, ctx: Context[Mem]) -> None:
        for name in names:
            await ctx.memory.window.append(ContextItem(name))
            await ctx.memory.shelf.add(ContextItem(Doc(name), f"about {name}", name))

    return fill


@step
async def shown(_: object, ctx: Context[Mem]) -> tuple[str, str]:
    return ctx.memory.window.render(), ctx.memory.shelf.catalogue()


@pytest.mark.clause("003-47b")
@pytest.mark.parametrize("how", [{}, {"preset": "fork"}, {"preset": "copy"}, {"session": "new"}], ids=str)
@pytest.mark.parametrize("backend", [None, InMemoryBackend()], ids=["in memory", "kept"])
async def test_003_47_a_branch_has_a_copy_of_queue_and_pool(how: Any, backend: InMemoryBackend | None) -> None:
    async with Harness(memory=Mem(), checkpoints=backend) as harness:

        async def there(ctx: Context[Any]) -> tuple[str, str]:
            return (await harness.run(shown, None, ctx=ctx)).value

        ctx: Any = Context()
        await harness.run(filled("a"), None, ctx=ctx)
        child, other = ctx.child(**how), ctx.child(**how)
        await harness.run(filled("b"), None, ctx=ctx)
        await harness.run(filled("c"), None, ctx=child)
        # Neither sees what the others have done since, in this run of theirs and in later ones.
        assert await there(ctx) == ("a\nb", "- [a] about a\n- [b] about b")
        assert await there(child) == ("a\nc", "- [a] about a\n- [c] about c")
        assert await there(other) == ("a", "- [a] about a")
        await harness.run(filled("d"), None, ctx=child.child(**how))
        assert await there(child) == ("a\nc", "- [a] about a\n- [c] about c")
        assert await there(ctx.child(preset="isolated")) == ("", "")


@pytest.mark.clause("003-47c")
async def test_003_47_a_stored_context_has_its_queue_and_pool_in_any_harness() -> None:
    ctx: Any = Context()
    async with Harness(memory=Mem()) as harness:
        await harness.run(filled("ab"), None, ctx=ctx)
        data = ctx.snapshot()
        await harness.run(filled("c"), None, ctx=ctx)
        both: list[Any] = [Context.restore(data), ctx]
        here = [await harness.run(shown, None, ctx=each) for each in both]
    assert [result.value[0] for result in here] == ["a\nb", "a\nb\nc"]
    restored: Any = Context.restore(data)
    async with Harness(memory=Mem()) as harness:
        await harness.run(filled("d"), None, ctx=restored)
    again: Any = Context.restore(restored.snapshot())
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(shown, None, ctx=again)
    assert result.value == ("a\nb\nd", "- [a] about a\n- [b] about b\n- [d] about d")


@pytest.mark.clause("003-47a")
async def test_003_47_an_execution_that_goes_on_has_its_queue_and_pool() -> None:
    backend = InMemoryBackend()
    fails = [True]

    @step
    async def fill(_: object, ctx: Context[Mem]) -> None:
        for name in "abc":
            await ctx.memory.window.append(ContextItem(name))
            await ctx.memory.shelf.add(ContextItem(Doc(name), f"about {name}", name))

    @step
    async def change(_: object, ctx: Context[Mem]) -> None:
        await ctx.memory.shelf.add(ContextItem(Doc("new"), "new", "a"), touch=True)
        await ctx.memory.shelf.remove("b")
        await ctx.memory.window.append(ContextItem("d"))

    @step
    async def end(_: object, ctx: Context[Mem]) -> tuple[str, str, str]:
        if fails.pop():
            raise RuntimeError("not yet")
        fails.append(False)
        return ctx.memory.window.render(), ctx.memory.shelf.catalogue(), ctx.memory.shelf.get("a").content.text

    async with Harness(memory=Mem(), checkpoints=backend) as harness:
        with pytest.raises(Exception, match="not yet"):
            await harness.run(fill >> change >> end, None, run_id="r1", thread_id="t")
    fails.append(False)
    async with Harness(memory=Mem(), checkpoints=backend) as harness:
        result = await harness.resume("r1", fill >> change >> end)
    assert result.value == ("a\nb\nc\nd", "- [c] about c\n- [a] new", "new")


@pytest.mark.clause("003-11d")
async def test_003_11_several_calls_at_once_lose_no_entry() -> None:
    class Small(Memory):
        window: ContextQueue[str] = ContextQueue(limit=3)
        shelf: ContextPool[Doc] = ContextPool(limit=3)

    @tool
    async def both(text: str) -> list[ContextItem[Any]]:
        return [ContextItem(text), ContextItem(Doc(text), f"about {text}", text)]

    calls = [FunctionCall(name="both", arguments={"text": text}) for text in "abcde"]
    model = ScriptedModel(calls, "done")
    async with Harness(memory=Small()) as harness:
        flow = loop(call_model(model, tools=(both,)), until=until.no_tool_calls()) >> look
        result = await harness.run(flow, "x")  # type: ignore[arg-type]  # another bundle with the same fields
    assert result.value == ("c\nd\ne", "- [c] about c\n- [d] about d\n- [e] about e")
