"""Tools and resources of servers in runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from noetic_mcp import McpResources, McpServer, McpTools

from noetic_py import (
    Budget,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    InputImage,
    Memory,
    Message,
    RunResult,
    call_model,
    loop,
    until,
)
from noetic_py.core.types import Replay
from noetic_py.errors import BudgetExceeded, ConfigError, RunNotFound, StepOutcomeUnknown
from noetic_py.memory import TIMEOUTS, PermissionRule, Permissions
from noetic_py.testing import FaultyBackend, ScriptedModel
from tests.warm import forked

HERE = Path(__file__).parent


def served(name: str, **options: Any) -> McpServer:
    return McpServer.stdio(name, [*forked("served"), "stdio"], **options)


def call(name: str, **arguments: Any) -> FunctionCall:
    return FunctionCall(name=name, arguments=arguments)


def outputs(result: RunResult[Any, Any]) -> list[str]:
    return [item.text for item in result.items if isinstance(item, FunctionCallOutput)]


def offered(model: ScriptedModel, request: int) -> list[str]:
    return [str(tool["name"]) for tool in model.requests[request].tools]


def said(model: ScriptedModel, request: int) -> str:
    return "\n".join(item.text for item in model.requests[request].items if isinstance(item, Message))


def agent(*tools: Any) -> Any:
    return loop(call_model(tools=tools), until=until.no_tool_calls() | until.max_rounds(8))


async def test_a_model_uses_the_tools_of_two_servers() -> None:
    calls = [call("one__add", a=1, b=2), call("two__add", a=3, b=4), call("one__picture")]
    model = ScriptedModel(calls, [call("one__fail", why="no wind"), call("two__add", a="many")], "Done.")
    async with served("one") as one, served("two") as two, Harness(model=model) as harness:
        result = await harness.run(agent(one, two), "Add.")
    assert result.value == "Done."
    found = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert [item.text for item in found[:2]] == ["3", "7"]
    assert any(isinstance(part, InputImage) for part in found[2].output)
    assert found[3].text == "tool 'one__fail' failed: MCP server 'one': Error executing tool fail: no wind"
    assert "the arguments of two__add are not valid" in found[4].text
    assert {"one__add", "two__add"} <= set(offered(model, 0))


async def test_a_server_that_dies_is_told_to_the_model_and_used_again() -> None:
    model = ScriptedModel(call("one__die"), call("one__add", a=1, b=2), "Done.")
    async with served("one") as one, Harness(model=model) as harness:
        result = await harness.run(agent(one), "Go.")
    assert outputs(result) == [
        "tool 'one__die' failed: MCP server 'one': the connection ended during the call of 'die'",
        "3",
    ]


async def test_calls_wait_for_approval_and_a_run_goes_on_in_another_harness() -> None:
    backend, ask = InMemoryBackend(), call("one__add", a=1, b=2)
    async with served("one", needs_approval=True) as one:
        async with Harness(model=ScriptedModel(ask), checkpoints=backend) as harness:
            waits = await harness.run(agent(one), "Add.", run_id="r")
        assert waits.status == "suspended"
        async with Harness(model=ScriptedModel("Three."), checkpoints=backend) as harness:
            result = await harness.resume("r", agent(one), answers=[waits.pending[0].approve()])
    assert (outputs(result), result.value) == (["3"], "Three.")


@pytest.mark.parametrize("replay", ["once", "repeatable"])
async def test_a_crash_in_the_middle_of_a_call(replay: Replay) -> None:
    unknown, counts = 0, set[int]()
    async with served("one", replay=replay) as one:
        for at in range(1, 7):
            before = int(str(await one.call("count", {})))
            backend = FaultyBackend(InMemoryBackend(), dies_at=at)
            with backend.outlived():
                async with Harness(model=ScriptedModel(call("one__count"), "Done."), checkpoints=backend) as harness:
                    await harness.run(agent(one), "Go.", run_id="r")
            backend.revive()
            async with Harness(model=ScriptedModel("Done.", "Done."), checkpoints=backend) as harness:
                try:
                    await harness.resume("r", agent(one))
                except StepOutcomeUnknown:
                    unknown += 1
                except RunNotFound:
                    pass
            counts.add(int(str(await one.call("count", {}))) - before - 1)
    # Whether the call was made is unknown, so one that may be made only once is left to the caller.
    assert (max(counts), unknown > 0) == ((1, True) if replay == "once" else (2, False))


async def test_budgets_count_the_calls() -> None:
    model = ScriptedModel(call("one__add", a=1, b=2), call("one__add", a=1, b=2), "Done.")
    async with served("one") as one, Harness(model=model) as harness:
        with pytest.raises(BudgetExceeded):
            (await harness.run(agent(one), "Add.", budget=Budget(tool_calls=1))).value  # noqa: B018


class Mem(Memory):
    mcp: McpTools = McpTools()


async def test_a_layer_offers_the_tools_and_hears_a_changed_list() -> None:
    hand = McpServer.stdio("hand", [sys.executable, str(HERE / "by_hand.py")])
    model = ScriptedModel(call("hand__grow"), call("hand__later"), "Done.")
    async with hand, Harness(model=model, memory=Mem(mcp=McpTools(servers=[hand]))) as harness:
        result = await harness.run(agent(), "Grow.")
    assert outputs(result) == ["added", "later"]
    assert ["hand__later" in offered(model, request) for request in range(3)] == [False, True, True]


async def test_a_layer_shows_what_servers_say_about_their_use() -> None:
    model = ScriptedModel("Done.")
    async with served("one") as one, Harness(model=model, memory=Mem(mcp=McpTools(servers=[one]))) as harness:
        await harness.run(call_model(), "Go.")
    assert "one: Add whole numbers only." in said(model, 0)


async def test_a_run_goes_on_without_the_tools_of_a_server_that_is_not_there() -> None:
    model = ScriptedModel("Done.")
    missing = McpServer.stdio("missing", ["/nonexistent/program"])
    memory = Mem(mcp=McpTools(servers=[missing], on_init_error="disable"))
    async with missing, Harness(model=model, memory=memory) as harness:
        result = await harness.run(call_model(), "Go.")
    assert (result.value, offered(model, 0)) == ("Done.", [])


def test_a_layer_waits_for_a_server_as_long_as_the_server_may_take() -> None:
    slow = McpServer.stdio("slow", ["program"], start_timeout=200.0, timeout=20.0)
    usual = McpServer.stdio("usual", ["program"])
    assert McpTools(servers=[slow, usual]).timeouts == {"init": 310.0}
    assert McpResources(server=slow, uris=["a://", "b://"]).timeouts == {"init": 440.0}
    assert McpTools(servers=[]).timeouts == {"init": TIMEOUTS["init"]}
    assert McpTools(servers=[slow], timeouts={"init": 1.0}).timeouts == {"init": 1.0}


class Ruled(Memory):
    permissions: Permissions = Permissions(rules=[PermissionRule("deny", "one__fail")], otherwise="allow")


async def test_rules_hold_for_tools_of_servers() -> None:
    model = ScriptedModel(call("one__fail", why="no wind"), call("one__add", a=1, b=2), "Done.")
    async with served("one") as one, Harness(model=model, memory=Ruled()) as harness:
        result = await harness.run(agent(one), "Go.")
    shown = outputs(result)
    assert "one__fail" in shown[0]
    assert "no wind" not in shown[0]
    assert shown[1] == "3"


async def test_a_model_call_can_have_the_tools_that_are_listed() -> None:
    model = ScriptedModel(call("one__add", a=1, b=2), "Three.")
    async with served("one") as one, Harness(model=model) as harness:
        step = loop(call_model(tools=await one.tools()), until=until.no_tool_calls())
        result = await harness.run(step, "Add.")
    assert outputs(result) == ["3"]


def test_two_servers_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        McpTools(servers=[served("one"), served("one")])
    assert caught.value.code == "mcp-name"


class Docs(Memory):
    docs: McpResources


async def test_resources_are_shown_and_read() -> None:
    model = ScriptedModel(call("docs__read", uri="docs://style"), call("docs__read", uri="docs://picture"), "Short.")
    async with served("one") as one:
        memory = Docs(docs=McpResources(server=one, uris=["docs://style"], longest=5))
        async with Harness(model=model, memory=memory) as harness:
            result = await harness.run(agent(), "How do I write?")
    assert result.memory["docs"] == {"docs://style": "Write\n[cut after 5 characters]"}
    assert "docs://style:\nWrite" in said(model, 0)
    shown = outputs(result)
    assert shown[0] == "Write\n[cut after 5 characters]"
    assert "'docs://picture' is not text" in shown[1]


async def test_a_model_lists_resources_and_templates() -> None:
    model = ScriptedModel(call("docs__available"), call("docs__read", uri="tides://Brest"), "At noon.")
    async with served("one") as one, Harness(model=model, memory=Docs(docs=McpResources(server=one))) as harness:
        result = await harness.run(agent(), "When is high water?")
    listed, read = outputs(result)
    assert "tides://{port}: The tides of a port." in listed.splitlines()
    assert any(line.startswith("docs://style") for line in listed.splitlines())
    assert read == "High water at Brest is at noon."


async def test_a_prompt_is_a_models_input() -> None:
    model = ScriptedModel("Fine.")

    async with served("one") as one, Harness(model=model) as harness:
        prompt = await one.prompt("review", {"code": "f()"})
        result = await harness.run(call_model(), prompt)
    assert result.value == "Fine."
    assert said(model, 0) == "Review f()."


async def test_what_a_block_raises_is_not_wrapped() -> None:
    async def fail() -> None:
        async with served("one") as one:
            await one.tools()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
