"""The examples of document 002, "Context & Event Log", in Python; its types of items are shown by their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

import pytest
from attrs import define

from noetic_py import (
    Channel,
    Context,
    Harness,
    InMemoryBackend,
    InputText,
    Item,
    Memory,
    Message,
    StateBag,
    TokenUsage,
    call_model,
    sequence,
    spawn,
    step,
)
from noetic_py.core.log import ItemView
from noetic_py.core.view import LayerUsage
from noetic_py.errors import Aborted, ChannelTimeout, ChannelValueInvalid
from noetic_py.memory import WorkingMemory
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


class Mem(Memory):
    """`const mem = memory([workingMemory()])`, with a name for the layer."""

    working: WorkingMemory = WorkingMemory()


async def test_document_002_quick_example() -> None:
    """`const greet = step.run({ id: 'greet', ... })`."""
    printed: list[str] = []

    @step(id="greet")
    async def greet(input: str, ctx: Context) -> str:
        printed.append(f"Execution {ctx.id}, step #{ctx.step_count}")
        printed.append(f"Tokens so far: {ctx.tokens.total}")
        ctx.items.append(Message(role="user", content=[InputText(text=input)]))
        return f"Hello, {input}!"

    async with Harness(plugins=[]) as harness:
        result = await harness.run(greet, "Ada")
    assert result.value == "Hello, Ada!"
    assert printed == [f"Execution {result.run_id}, step #1", "Tokens so far: 0"]
    (item,) = result.items
    assert isinstance(item, Message)
    assert (item.role, item.text, item.status, bool(item.id)) == ("user", "Ada", "completed", True)


@define
class State:
    drafts: int = 0


async def test_document_002_shape_of_a_context() -> None:
    """`type ContextShape<TMemory = ContextMemory, TState = unknown>`."""

    @step
    async def typed(_: object, ctx: Context[Mem, State]) -> int:
        assert_type(ctx.memory, Mem)
        assert_type(ctx.state, State)
        ctx.state.drafts += 1
        return ctx.state.drafts

    @step
    async def bare(value: int, ctx: Context) -> tuple[int, int, bool]:
        assert_type(ctx.memory, Memory)
        assert_type(ctx.state, object)
        return value, ctx.depth, ctx.parent is None

    async with Harness(plugins=[], memory=Mem()) as harness:
        assert (await harness.run(typed >> bare, None, state=State())).value == (1, 0, True)


async def test_document_002_snapshot_and_update_of_a_layer() -> None:
    """`ctx.memory['working-memory'].snapshot`, and `update({ key: 'value' })`."""

    @step
    async def look(_: object, ctx: Context[Mem]) -> tuple[object, object]:
        before = ctx.memory.working.snapshot
        await ctx.memory.working.update({"key": "value"})
        # By its name in text too; both are read live.
        named = ctx.memory["working"]
        assert named is ctx.memory.working
        return before, ctx.memory.working.snapshot

    async with Harness(plugins=[], memory=Mem()) as harness:
        before, after = (await harness.run(look, None)).value
    assert not before
    assert after == {"key": "value"}


def test_document_002_types_of_memory() -> None:
    """`type Mem = InferMemory<typeof mem>`: a bundle is a class, so its layers' types are the annotations."""

    async def check(ctx: Context[Mem]) -> None:
        assert_type(ctx.memory.working, WorkingMemory)
        # A context with more memory is one where less is asked for.
        less: Context[Memory] = ctx
        assert less is ctx

    assert callable(check)
    assert isinstance(Mem().working, WorkingMemory)


async def test_document_002_token_usage() -> None:
    """`interface TokenUsage { input, output, total }`."""

    @step
    async def used(_: object, ctx: Context) -> tuple[int, int, int]:
        return ctx.tokens.input, ctx.tokens.output, ctx.tokens.total

    model = ScriptedModel("a", "b", usage=TokenUsage(10, 5))
    async with Harness(plugins=[]) as harness:
        result = await harness.run(sequence(call_model(model), spawn(call_model(model)), used), "x")
    assert result.value == (20, 10, 30)


async def test_document_002_item_log() -> None:
    """`interface ItemLog { readonly items; append(item) }`, to which a model's answer is added as well."""

    @step
    async def read(_: object, ctx: Context) -> list[str]:
        ctx.items.append(Message.user("mine"))
        log: Sequence[Item] = ctx.items
        view: ItemView = ctx.items.frozen()
        assert not hasattr(view, "append")
        return [item.text for item in log if isinstance(item, Message)]

    async with Harness(plugins=[]) as harness:
        result = await harness.run(sequence(call_model(ScriptedModel("answer")), read), "question")
    assert result.value == ["question", "answer", "mine"]


async def test_document_002_channels() -> None:
    """`const approvals = channel('approvals', { schema: z.boolean(), mode: 'queue' })`."""
    approvals = Channel("approvals", bool, mode="queue")

    @step
    async def body(_: object, ctx: Context) -> tuple[bool, bool | None]:
        await ctx.send(approvals, True)
        approved = await ctx.recv(approvals, timeout=5.0)
        maybe = ctx.try_recv(approvals)
        with pytest.raises(ChannelTimeout):
            await ctx.recv(approvals, timeout=0.01)
        wrong: Any = "yes"
        with pytest.raises(ChannelValueInvalid):
            await ctx.send(approvals, wrong)
        return approved, maybe

    async with Harness(plugins=[]) as harness:
        assert (await harness.run(body, None)).value == (True, None)


async def test_document_002_checkpoint() -> None:
    """`await ctx.checkpoint()`: kept where there is a backend, nothing without one."""
    stored: list[int] = []
    backend = InMemoryBackend()

    @step
    async def body(_: object, ctx: Ctx) -> str:
        ctx.items.append(Message.user("half way"))
        await ctx.checkpoint()
        head = await backend.head(ctx.run_id)
        stored.append(0 if head is None else head.position)
        return "done"

    async with Harness(plugins=[]) as harness:
        assert (await harness.run(body, None)).value == "done"
    async with Harness(plugins=[], checkpoints=backend) as harness:
        assert (await harness.run(body, None)).value == "done"
    without, kept = stored
    assert (without, kept > 1) == (0, True)


async def test_document_002_complete() -> None:
    """`ctx.complete(finalValue)`: `completed` is true, and `completionValue` the value."""
    seen: list[tuple[bool, object]] = []
    ran: list[str] = []

    @step
    async def body(_: object, ctx: Context) -> str:
        seen.append((ctx.completed, ctx.completion_value))
        ctx.complete("final")
        seen.append((ctx.completed, ctx.completion_value))
        return "not this"

    @step
    async def later(text: str) -> str:
        ran.append(text)
        return text

    async with Harness(plugins=[]) as harness:
        result = await harness.run(body >> later, None)
    assert (result.status, result.value, ran) == ("completed", "final", [])
    assert seen == [(False, None), (True, "final")]


async def test_document_002_abort() -> None:
    """`ctx.abort('user cancelled')`: `aborted` is true, and `abortReason` the reason."""
    seen: list[tuple[bool, str | None]] = []

    @step
    async def body(_: object, ctx: Context) -> str:
        ctx.abort("user cancelled")
        seen.append((ctx.aborted, ctx.abort_reason))
        return "not this"

    async with Harness(plugins=[]) as harness:
        result = await harness.run(body, None)
    assert (result.status, result.reason) == ("aborted", "user cancelled")
    assert seen == [(True, "user cancelled")]
    with pytest.raises(Aborted, match="user cancelled"):
        _ = result.value


async def test_document_002_usage_by_layer() -> None:
    """`for (const layer of usage.layers) console.log(...)`, inside of the run and after it."""
    printed: list[str] = []
    inside: list[LayerUsage | None] = []

    @step
    async def fill(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.working.update({"topic": "tides"})
        return text

    @step
    async def look(_: object, ctx: Context[Mem]) -> None:
        usage = ctx.last_layer_usage
        inside.append(usage)
        if usage is not None:
            for layer, tokens in usage.layers.items():
                printed.append(f"{layer}: {tokens > 0}")
            printed.append(f"system: {usage.system > 0}, history: {usage.history > 0}")

    ask = call_model(ScriptedModel("At noon."), instructions="Be brief.")
    async with Harness(plugins=[], memory=Mem()) as harness:
        result = await harness.run(sequence(fill, ask, look), "When?")
    assert printed == ["working: True", "system: True, history: True"]
    (usage,) = inside
    assert usage is not None
    assert result.last_layer_usage == usage
    assert usage.total == sum(usage.layers.values()) + usage.system + usage.tools + usage.history
