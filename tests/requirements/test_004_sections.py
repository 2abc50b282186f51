"""What else a session holds: permissions, a plan, sections of plugins; and when it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import pytest

from noetic_py import (
    Ask,
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Message,
    SessionKey,
    SessionPolicy,
    StateBag,
    call_model,
    loop,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.errors import ModelUnavailable
from noetic_py.memory import PermissionRule, Permissions, Plan, PlanItem, function
from noetic_py.plugins import LayerRegistry, hookimpl, load_plugins
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

KEY = SessionKey("ada", "trip")


@pytest.mark.clause("004-04a", "004-04b")
async def test_004_04_a_session_is_stored_once_a_call_and_also_after_failure_interruption_and_pause() -> None:
    @step
    async def say(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.items.append(Message.user(text))
        ctx.state["said"] = text
        return text

    @step
    async def end(text: str, ctx: Context[Memory, StateBag]) -> str:
        match text:
            case "fail":
                raise ValueError("broken")
            case "interrupt":
                ctx.abort("enough")
            case "pause":
                await ctx.ask(Ask("Go on?", bool))
            case _:
                pass
        return text

    flow: Any = sequence(say, end)
    backend = InMemoryBackend()

    async def turn(text: str, **options: Any) -> str:
        # Each turn in a process of its own.
        async with Harness(plugins=[], checkpoints=backend) as harness:
            result = await harness.session(*KEY.parts[1:]).run(flow, text, on_error="result", **options)
            return str(result.status)

    async def there() -> list[str]:
        async with Harness(plugins=[], checkpoints=backend) as harness:
            return [item.text for item in await harness.session(*KEY.parts[1:]).items() if isinstance(item, Message)]

    assert (await turn("a"), await there()) == ("completed", ["a"])
    # One record when it begins, and one with all that it has added.
    kinds = [record.kind for record in await backend.read(KEY.stream)]
    assert kinds == ["TurnStarted", "TurnEnded"]
    assert (await turn("fail"), await there()) == ("failed", ["a", "fail"])
    assert (await turn("interrupt"), await there()) == ("aborted", ["a", "fail", "interrupt"])
    assert await turn("pause") == "suspended"
    async with Harness(plugins=[], checkpoints=backend) as harness:
        (info,) = await harness.runs.list(status="suspended", session=KEY)
        # What it has so far is stored with its run, in whatever process it is looked at.
        assert [record.kind for record in await backend.read(info.run_id)][-1] == "RunEnded"
        result = await harness.resume(info.run_id, flow, answers=[info.pending[0].answer(True)])
        assert result.value == "pause"
    assert await there() == ["a", "fail", "interrupt", "pause"]


@pytest.mark.clause("004-04d")
async def test_004_04_what_was_said_to_a_model_that_fails_is_stored_too() -> None:
    backend = InMemoryBackend()
    for answer, there in ((ModelUnavailable("down", model="m"), ["hello"]), ("ok", ["hello", "again", "ok"])):
        async with Harness(plugins=[], checkpoints=backend, model=ScriptedModel(answer)) as harness:
            session = harness.session(*KEY.parts[1:])
            await session.run(call_model(), there[-2] if "ok" in there else "hello", on_error="result")
            assert [item.text for item in await session.items() if isinstance(item, Message)] == there


@step
async def note(text: str, ctx: Context[Memory, StateBag]) -> str:
    ctx.items.append(Message.user(text))
    return text


@pytest.mark.clause("004-04c")
@pytest.mark.parametrize(("persist", "there"), [("step", ["turn 0", "turn 1"]), ("run", ["turn 1"])])
async def test_004_04_and_more_often_when_asked(persist: Any, there: list[str]) -> None:
    """What the finished steps of a turn have added stays although its process has died, where that is asked for."""
    dying = FaultyBackend(InMemoryBackend())

    @step
    async def die(text: str, ctx: Context[Memory, StateBag]) -> str:
        # With the next commit.
        dying.revive(dies_at=1)
        return text

    def process() -> Harness[Memory]:
        dying.revive()
        return Harness(plugins=[], checkpoints=dying, sessions=SessionPolicy(persist=persist))

    flows: list[Any] = [sequence(note, die), note]
    for number, flow in enumerate(flows):
        with dying.outlived():
            async with process() as harness:
                await harness.session("ada", "x").run(flow, f"turn {number}")
    async with process() as harness:
        items = await harness.session("ada", "x").items()
    assert [item.text for item in items if isinstance(item, Message)] == there


@pytest.mark.clause("004-14a", "004-14b", "004-14c")
async def test_004_14_a_session_holds_permissions() -> None:
    done: list[str] = []

    @tool
    async def shell(command: str) -> str:
        """Run."""
        done.append(command)
        return "ran"

    class Mem(Memory):
        permissions: Permissions = Permissions(
            rules=[PermissionRule("allow", "shell", within="command", folders=["/srv/data"])], otherwise="deny"
        )

    @step
    async def decide(_: None, ctx: Context[Mem, StateBag]) -> None:
        await ctx.memory.permissions.allow("shell", {"command": "ls"})
        await ctx.memory.permissions.ask_for("shell", {"command": "rm*"})
        await ctx.memory.permissions.deny("shell", {"command": "sudo*"})
        await ctx.memory.permissions.set_mode("allow")

    def agent() -> Any:
        commands = ["ls", "rm x", "sudo ls", "/srv/data/a", "other"]
        calls = [FunctionCall(name="shell", arguments={"command": each}) for each in commands]
        return loop(call_model(ScriptedModel(calls, "done"), tools=[shell]), until=until.no_tool_calls())

    backend = InMemoryBackend()
    for session, decides, pending, made in (
        ("other", False, 0, ["/srv/data/a"]),
        ("trip", True, 1, ["/srv/data/a", "ls", "other"]),
    ):
        done.clear()
        if decides:
            async with Harness(plugins=[], memory=Mem(), checkpoints=backend) as harness:
                await harness.session("ada", session).run(decide, None)
        async with Harness(plugins=[], memory=Mem(), checkpoints=backend) as harness:
            result = await harness.session("ada", session).run(agent(), "go")
        assert (len(result.pending), sorted(done)) == (pending, made)


@pytest.mark.clause("004-15a", "004-15b")
async def test_004_15_a_session_holds_whether_planning_is_active_and_the_plan() -> None:
    class Mem(Memory):
        plan: Plan = Plan()

    @step
    async def begin(_: None, ctx: Context[Mem, StateBag]) -> None:
        await ctx.memory.plan.set_plan(["one"])

    @step
    async def look(_: None, ctx: Context[Mem, StateBag]) -> tuple[bool, Mapping[str, PlanItem]]:
        plan = ctx.memory.plan
        return bool(plan.items) and not plan.finished, plan.items

    @step
    async def end(_: None, ctx: Context[Mem, StateBag]) -> None:
        await ctx.memory.plan.complete("1")

    backend = InMemoryBackend()

    async def turn(flow: Any) -> Any:
        async with Harness(plugins=[], memory=Mem(), checkpoints=backend) as harness:
            return (await harness.session("ada", "trip").run(flow, None)).value

    assert await turn(look) == (False, {})
    await turn(begin)
    active, items = await turn(look)
    assert (active, [item.text for item in items.values()]) == (True, ["one"])
    await turn(end)
    assert (await turn(look))[0] is False


class Mood(MemoryLayer[dict[str, int]]):
    """A section that a plugin brings."""

    @function
    async def better(self) -> int:
        """Be better."""
        self.state = {"mood": self.state.get("mood", 0) + 1}
        return self.state["mood"]


async def test_004_20_plugins_can_add_typed_sections_to_a_session() -> None:
    class Provides:
        @hookimpl
        def register_memory_layers(self, registry: LayerRegistry) -> None:
            registry.memory_layer("acme-mood", Mood)

    class Mem(Memory):
        mood: Mood = Mood()

    @step
    async def better(_: None, ctx: Context[Mem, StateBag]) -> int:
        return await ctx.memory.mood.better()

    backend = InMemoryBackend()
    for session, expected in (("trip", 1), ("trip", 2), ("other", 1), ("trip", 3)):
        async with Harness(plugins=[Provides()], memory=Mem(), checkpoints=backend) as harness:
            assert harness.memory_layers("acme-mood") is Mood
            assert (await harness.session("ada", session).run(better, None)).value == expected


async def test_004_27_stores_on_shared_servers_exist_as_packages_of_their_own() -> None:
    plugins = load_plugins(["postgres", "redis"])
    assert {"postgresql", "redis"} <= set(plugins.backends.schemes)
    for address, name in (
        ("postgresql://127.0.0.1:1/x", "noetic-postgres"),
        ("redis://127.0.0.1:1/0", "noetic-redis"),
    ):
        backend = plugins.backends(address)
        # Other machines see what is kept there, and the core needs none of it.
        assert backend.shared
        assert name in {each.name for each in metadata.distributions()}
        assert not [each for each in metadata.requires("noetic-py") or () if each.startswith(name.split("-")[1])]
        await backend.close()
