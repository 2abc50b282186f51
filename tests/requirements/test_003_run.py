"""Rows 003-10, 003-18 to 003-22, 003-41 and 003-48: queues and pools in runs and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import attrs
import pytest

from noetic_py import Context, Harness, Inject, Memory, step, tool
from noetic_py.errors import ConfigError, ModelParseError, NoContextError
from noetic_py.memory import CatalogueView, ContextItem, ContextPool, ContextQueue
from noetic_py.memory.routing import inject_layer
from noetic_py.steps.model import select_entries
from noetic_py.testing import ScriptedModel
from noetic_py.tools import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


class Mem(Memory):
    window: ContextQueue[str] = ContextQueue()
    shelf: ContextPool[int] = ContextPool()


def injecting(memory: Memory) -> Callable[[str, type[Any]], object]:
    return lambda name, kind: inject_layer(memory, name, kind)


@pytest.mark.clause("003-10a", "003-10b")
async def test_003_10_a_queue_comes_with_an_execution() -> None:
    @step
    async def look(_: object, ctx: Context[Mem]) -> int:
        assert ctx.memory.window is ctx.memory[ContextQueue]
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            ctx.memory.window = ContextQueue()  # type: ignore[misc]  # that is the test
        with pytest.raises(AttributeError):
            ctx.memory.window.limit = 20  # type: ignore[misc]  # as above
        await ctx.memory.window.append(ContextItem("a"))
        return ctx.memory.window.limit

    assert Mem().window.limit == 10
    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(look, None)).value == 10
    async with Harness(memory=Mem(window=ContextQueue(limit=20))) as harness:
        assert (await harness.run(look, None)).value == 20


@pytest.mark.clause("003-41a", "003-41b")
async def test_003_41_a_pool_comes_with_an_execution() -> None:
    @step
    async def look(_: object, ctx: Context[Mem]) -> int | None:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            ctx.memory.shelf = ContextPool()  # type: ignore[misc]  # that is the test
        await ctx.memory.shelf.add(ContextItem(1, "one", "a"))
        assert ctx.memory.shelf.get("a").content == 1
        return ctx.memory.shelf.limit

    async with Harness(memory=Mem()) as harness:
        assert (await harness.run(look, None)).value is None
    async with Harness(memory=Mem(shelf=ContextPool(limit=4))) as harness:
        assert (await harness.run(look, None)).value == 4


@tool
async def think(question: str, window: ContextQueue[str] | None = None) -> list[str]:
    return [entry.content for entry in window] if window is not None else ["nothing"]


@tool
async def remember(question: str, window: ContextQueue[str]) -> int:
    return len(window)


@pytest.mark.clause("003-18a", "003-18b")
async def test_003_18_optional_layers() -> None:
    memory = Mem()
    await memory.window.append(ContextItem("a"))
    assert await think.call({"question": "x"}, inject=injecting(memory)) == ["a"]
    assert await think("x") == ["nothing"]
    assert await think.call({"question": "x"}, inject=injecting(Memory())) == ["nothing"]


async def test_003_19_required_layers_outside() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'window'"):
        await remember("x")  # type: ignore[call-arg]  # that is the test
    # In a run that has none, the run says what is missing.
    with pytest.raises(ConfigError, match="nothing of type ContextQueue to inject into parameter 'window'"):
        await remember.call({"question": "x"}, inject=injecting(Memory()))


@pytest.mark.clause("003-20a", "003-20b")
async def test_003_20_an_argument_wins() -> None:
    memory, other = Mem(), ContextQueue[str](limit=3)
    await other.append(ContextItem("mine"))
    assert await think.call({"question": "x", "window": other}, inject=injecting(memory)) == ["mine"]

    @step
    async def body(_: object, ctx: Context[Mem]) -> list[list[str]]:
        return [await think("x", other), await think("x", window=other), await think("x", None)]

    async with Harness(memory=memory) as harness:
        assert (await harness.run(body, None)).value == [["mine"], ["mine"], ["nothing"]]


@pytest.mark.clause("003-21a")
async def test_003_21_every_form_of_annotation() -> None:
    memory = Mem()

    @tool
    async def forms(
        a: ContextQueue,
        b: ContextQueue[str],
        c: ContextQueue[str] | None,
        d: Annotated[ContextQueue[str], "note"],
        e: "ContextQueue[str]",  # noqa: UP037 # one text inside another
        f: Annotated[ContextQueue[str] | None, "note"],
        g: Inject[ContextQueue[str]],
        h: ContextPool[int],
        i: CatalogueView[int],
    ) -> list[object]:
        return [a, b, c, d, e, f, g, h, i]

    assert forms.parameters["properties"] == {}
    kinds = [each.type for each in forms.injected.values()]
    assert kinds == [ContextQueue] * 7 + [ContextPool, CatalogueView]
    assert forms.injected["b"].hint == ContextQueue[str]
    found: Any = await forms.call({}, inject=injecting(memory))
    assert all(each is memory.window for each in found[:7])
    assert all(isinstance(each, ContextPool) for each in found[7:])

    async def several(a: list[ContextQueue[str]]) -> None: ...

    assert tool(several).injected == {}, "a list of queues is no queue"
    with pytest.raises(ConfigError, match="parameter 'a'"):
        _ = tool(several).parameters


@pytest.mark.clause("003-21b")
async def test_003_21_of_several() -> None:
    class Two(Memory):
        window: ContextQueue[str] = ContextQueue()
        steps: ContextQueue[int] = ContextQueue()

    memory = Two()
    assert inject_layer(memory, "steps", ContextQueue) is memory.steps
    assert inject_layer(memory, "window", ContextQueue) is memory.window
    assert inject_layer(memory, "other", ContextQueue, ContextQueue[int]) is memory.steps
    assert inject_layer(memory, "other", ContextPool) is MISSING
    assert inject_layer(memory, "other", str) is MISSING
    with pytest.raises(ConfigError, match="several injectable ones without a matching name: window, steps") as caught:
        inject_layer(memory, "other", ContextQueue)
    assert caught.value.code == "layer-ambiguous"


def test_003_22_annotations_that_name_nothing() -> None:
    def wrong(a: str, window: str) -> None: ...
    def broken(a: str, window: str) -> None: ...

    wrong.__annotations__["window"] = "Unknown[str]"
    broken.__annotations__["window"] = "ContextQueue[str"
    with pytest.raises(ConfigError, match="cannot be evaluated"):
        tool(broken)
    # A name may still be defined further down; what is missing then is an error, and no parameter without a value.
    made = tool(wrong)
    with pytest.raises(ConfigError, match="'Unknown' is not defined") as caught:
        _ = made.injected
    assert caught.value.code == "tool-annotation"


@pytest.mark.clause("003-48a", "003-48b")
async def test_003_48_a_model_chooses() -> None:
    pool = ContextPool[str](limit=5)
    for name in "abc":
        await pool.add(ContextItem(f"content of {name}", f"about {name}", name))
    model = ScriptedModel('{"value": ["c", "z"]}', '{"value": ["c", "a", "c"]}', '{"value": []}')

    @step
    async def ask(query: str, ctx: Context) -> list[str]:
        found = await select_entries(model, pool, query, limit=2)
        assert len(ctx.items) == 0, "it leaves nothing in the conversation"
        nothing = await select_entries(model, pool, query)
        assert nothing == ()
        assert await select_entries(model, pool, query, limit=0) == ()
        assert await select_entries(model, ContextPool[str](), query) == ()
        return [entry.content for entry in found]

    async with Harness() as harness:
        result = await harness.run(ask, "what is c?")
    assert result.value == ["content of c", "content of a"]
    model.assert_complete()
    shown = str(list(model.requests[0].items))
    assert all(text in shown for text in ("- [a] about a", "what is c?", ", 2 at most"))
    assert "content of" not in shown, "the model chooses by the descriptions"
    assert "there is no entry 'z'" in str(list(model.requests[1].items))

    @step
    async def stubborn(query: str, ctx: Context) -> int:
        return len(await select_entries(ScriptedModel('{"value": ["z"]}'), pool, query, output_retries=0))

    async with Harness() as harness:
        with pytest.raises(ModelParseError):
            await harness.run(stubborn, "x")
    with pytest.raises(NoContextError):
        await select_entries(model, pool, "x")
    with pytest.raises(ConfigError, match="limit=-1"):
        await select_entries(model, pool, "x", limit=-1)
