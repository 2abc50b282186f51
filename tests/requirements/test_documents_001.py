"""The examples of document 001, "InvocationContext", in Python."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from noetic_py import (
    Context,
    Emitted,
    FunctionCall,
    Harness,
    Memory,
    Message,
    ReadContext,
    StateBag,
    ToolFinished,
    call_model,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


async def test_document_001_a_context_with_session_user_app_agent_and_state() -> None:
    """`ctx = InvocationContext(session_id=..., ...)`: the harness makes it of a key, a step and a state."""
    seen: list[Ctx] = []

    @step(id="RootAgent")
    async def root_agent(text: str, ctx: Ctx) -> str:
        seen.append(ctx)
        key = ctx.session
        assert key is not None
        assert (key.session, key.user, key.app) == ("session-1", "user-1", "my-app")
        assert (ctx.name, ctx.branch, ctx.user_id) == ("RootAgent", "RootAgent", "user-1")
        assert ctx.state["user_name"] == "Alice"
        assert ctx.input == text
        # The session's history is its log.
        assert [item.text for item in ctx.items.view(Message)] == ["earlier"]
        return text

    @step
    async def earlier(text: str, ctx: Ctx) -> None:
        ctx.items.append(Message.user(text))
        ctx.state["user_name"] = "Alice"

    async with Harness(plugins=[]) as harness:
        session = harness.session("user-1", "session-1", app="my-app")
        await session.run(earlier, "earlier")
        result = await session.run(root_agent, "Hello")
    assert result.run_id == seen[0].run_id


async def test_document_001_inside_a_custom_tool() -> None:
    """`ctx.event_callback(my_event)`: what a tool emits is pushed to the parent's stream immediately."""
    released = anyio.Event()

    @tool
    async def custom(ctx: Context) -> str:
        """Tells how far it is."""
        ctx.emit({"progress": 0.5})
        await released.wait()
        return "done"

    agent = loop(
        call_model(ScriptedModel(FunctionCall(name="custom"), "ok"), tools=[custom]), until=until.no_tool_calls()
    )
    order: list[str] = []
    async with Harness(plugins=[]) as harness, harness.stream(spawn(agent), "Go.") as stream:
        async for event in stream.events:
            if isinstance(event, Emitted):
                order.append(f"emitted {event.event}")
                # The tool has not ended yet, and only now may it.
                released.set()
            elif isinstance(event, ToolFinished):
                order.append("finished")
    assert order == ["emitted {'progress': 0.5}", "finished"]


@pytest.mark.clause("001-17b")
async def test_document_001_nobody_has_to_listen() -> None:
    """`if ctx.event_callback is not None`: without a listener the same tool runs as well."""

    @step
    async def emits(_: object, ctx: Ctx) -> str:
        ctx.emit("x")
        return "ok"

    async with Harness(plugins=[]) as harness:
        assert (await harness.run(emits, None)).value == "ok"


async def test_document_001_get_events_of_this_branch_in_the_current_invocation() -> None:
    """`ctx.get_events(current_branch=True, current_invocation=True)`."""
    seen: dict[str, list[str]] = {}

    @step
    async def say(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user(text))
        return text

    @step(id="ChildAgent")
    async def child(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user("the child's"))
        events = ctx.items.view(branch=ctx.branch, run_id=ctx.run_id)
        seen["child"] = [item.text for item in events if isinstance(item, Message)]
        return text

    @step
    async def look(_: object, ctx: Ctx) -> None:
        events = ctx.items.view(branch=ctx.branch, run_id=ctx.run_id)
        seen["root"] = [item.text for item in events if isinstance(item, Message)]

    flow = sequence(say, parallel([spawn(child, items="view")]), look, id="RootAgent")
    async with Harness(plugins=[]) as harness:
        session = harness.session("user-1", "session-1")
        await session.run(say, "an earlier turn's")
        await session.run(flow, "the root's")
    assert seen == {"child": ["the child's"], "root": ["the root's"]}


async def test_document_001_instructions_get_a_read_only_context() -> None:
    """`def instructions(ctx: ReadonlyContext) -> str`."""

    def instructions(ctx: ReadContext[Memory, StateBag]) -> str:
        untyped: Any = ctx
        with pytest.raises(TypeError):
            untyped.state["user_name"] = "Mallory"
        return f"Help {ctx.state['user_name']}."

    model = ScriptedModel("Hello, Alice.")
    async with Harness(plugins=[]) as harness:
        result = await harness.run(
            call_model(model, instructions=instructions), "Hi", state=StateBag({"user_name": "Alice"})
        )
    assert model.requests[0].instructions == "Help Alice."
    assert result.state["user_name"] == "Alice"
