"""`Permissions`: calls that are made, wait or are refused, and what is remembered of that."""

from __future__ import annotations

from typing import Any

import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    RunResult,
    StateBag,
    call_model,
    errors,
    loop,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.memory import PermissionRule, Permissions
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    done.clear()


@tool
async def shell(command: str) -> str:
    """Run a command."""
    done.append(command)
    return f"ran {command}"


class Mem(Memory):
    permissions: Permissions = Permissions(
        rules=[
            PermissionRule("allow", "shell", {"command": "ls*"}),
            PermissionRule("deny", "shell", {"command": "*sudo*"}),
        ]
    )


def agent(*commands: str) -> Any:
    """A flow whose model wants these commands run at once."""
    calls = [FunctionCall(name="shell", arguments={"command": each}) for each in commands]
    return loop(call_model(ScriptedModel(calls, "done"), tools=[shell]), until=until.no_tool_calls())


def harness(backend: CheckpointBackend | None, memory: Memory | None = None) -> Any:
    return Harness(plugins=(), checkpoints=backend, memory=memory or Mem())


def told(result: RunResult[Any, Any]) -> list[str]:
    return [str(item.output) for item in result.items if isinstance(item, FunctionCallOutput)]


async def test_a_call_is_made_waits_or_is_refused() -> None:
    backend = InMemoryBackend()
    flow = agent("ls", "ls; sudo rm", "rm x")
    first = await harness(backend).run(flow, "go", run_id="r")
    (request,) = first.pending
    assert (request.kind, request.arguments, request.prompt) == (
        "approval",
        {"command": "rm x"},
        "no rule allows it",
    )
    assert done == ["ls"]
    result = await harness(backend).resume("r", flow, answers=[request.approve()])
    assert (result.value, done) == ("done", ["ls", "rm x"])
    assert told(result) == ["ran ls", "The call was refused: a rule for 'shell' says so.", "ran rm x"]


async def test_what_is_denied_by_then_is_not_made_although_it_was_approved() -> None:
    backend = InMemoryBackend()
    flow = agent("rm x")
    first = await harness(backend).run(flow, "go", run_id="r")

    class Strict(Memory):
        permissions: Permissions = Permissions(otherwise="deny")

    result = await harness(backend, Strict()).resume("r", flow, answers=[first.pending[0].approve()])
    assert (result.value, done, told(result)) == ("done", [], ["The call was refused: no rule allows it."])


async def test_rules_are_kept_for_the_thread() -> None:
    backend = InMemoryBackend()

    @step
    async def decide(x: str, ctx: Context[Mem, StateBag]) -> str:
        layer = ctx.memory.permissions
        await layer.allow("shell", {"command": "make *"})
        await layer.ask_for("shell", {"command": "* install"})
        await layer.deny("shell", {"command": "* clean"})
        return x

    @step
    async def relent(x: str, ctx: Context[Mem, StateBag]) -> int:
        await ctx.memory.permissions.set_mode("allow")
        return await ctx.memory.permissions.forget("shell")

    async def run(flow: Any, thread: str) -> RunResult[Any, Any]:
        result: RunResult[Any, Any] = await harness(backend).run(flow, "go", thread_id=thread)
        return result

    await run(decide, "t")
    for thread, pending, made in (("t", 1, ["make all"]), ("other", 3, [])):
        done.clear()
        result = await run(agent("make all", "make install", "make clean"), thread)
        assert (len(result.pending), done) == (pending, made)
    assert (await run(relent, "t")).value == 3
    done.clear()
    result = await run(agent("make all", "make clean"), "t")
    assert (result.value, sorted(done)) == ("done", ["make all", "make clean"])


async def test_children_are_bound_by_them_too() -> None:
    result = await harness(InMemoryBackend()).run(spawn(agent("rm x", "ls")), "go")
    assert (len(result.pending), done) == (1, ["ls"])


async def test_the_model_cannot_change_them() -> None:
    model = ScriptedModel(FunctionCall(name="permissions__allow", arguments={"tool": "*"}), "done")
    result = await harness(None).run(loop(call_model(model), until=until.no_tool_calls()), "go")
    assert told(result)[0].startswith("there is no tool 'permissions__allow'")
    names = [str(each["name"]) for request in model.requests for each in request.tools]
    assert not [name for name in names if name.startswith("permissions")]


async def test_there_is_an_end_of_rules() -> None:
    layer = Permissions(max_rules=2)
    await layer.allow("a")
    await layer.allow("a")
    await layer.deny("b")
    with pytest.raises(errors.ToolArgumentsInvalid, match="2 rules"):
        await layer.deny("c")
    assert [rule.tool for rule in layer.state.rules] == ["a", "b"]
    assert (await layer.forget(), layer.state.rules) == (2, ())


@pytest.mark.parametrize("settings", [{"otherwise": "maybe"}, {"max_rules": 0}, {"rules": ["shell"]}])
def test_wrong_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Permissions(**settings)
    assert caught.value.code == "permissions"


async def test_without_a_backend_what_needs_leave_says_so() -> None:
    with pytest.raises(errors.ConfigError) as caught:
        await harness(None).run(agent("rm x"), "go")
    assert caught.value.code == "no-backend"
