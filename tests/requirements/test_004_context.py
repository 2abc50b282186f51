"""What a call of a session finds around it: its session, its state, its own data, and what its layers hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import anyio
import pytest
from attrs import define, frozen

from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    Inject,
    InMemoryBackend,
    Memory,
    Message,
    SessionKey,
    StateBag,
    call_model,
    current_context,
    loop,
    parallel,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.errors import ConfigError, NoContextError
from noetic_py.memory import Compaction, MemoryLayer, Plan, PlanItem
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

KEY = SessionKey("ada", "trip")


@frozen
class Tenant:
    name: str


@define
class Profile:
    name: str
    turns: int = 0


@pytest.mark.clause("004-13a", "004-13b")
async def test_004_13_a_session_can_hold_a_summary() -> None:
    class Mem(Memory):
        short: Compaction = Compaction(window=400, above=0.5, down_to=0.2, tiers=("summary",), keep_first=False)

    @step
    async def summary(_: None, ctx: Context[Mem]) -> str:
        return ctx.memory.short.summary

    backend = InMemoryBackend()
    model = ScriptedModel("They asked about tides.", "As I said.")
    async with Harness(plugins=[], memory=Mem(), checkpoints=backend, model=model) as harness:
        session = harness.session("ada", "trip")
        assert (await session.run(summary, None)).value == ""
        async with session.edit() as edit:
            edit.items.extend([Message.user("The tide rises. " * 40), Message.assistant("And it falls. " * 40)])
        await session.run(call_model(), "Again?")
    model = ScriptedModel("Once more.")
    async with Harness(plugins=[], memory=Mem(), checkpoints=backend, model=model) as harness:
        session = harness.session("ada", "trip")
        assert (await session.run(summary, None)).value == "They asked about tides."
        # It is another one's that has none.
        assert (await harness.session("bob", "trip").run(summary, None)).value == ""
        await session.run(call_model(), "And?")
    shown = "\n".join(item.text for item in model.requests[0].items if isinstance(item, Message))
    assert "They asked about tides." in shown
    assert "The tide rises." not in shown


async def test_004_16_a_session_holds_a_list_of_tasks() -> None:
    class Mem(Memory):
        tasks: Plan = Plan()

    @step
    async def make(_: None, ctx: Context[Mem]) -> None:
        await ctx.memory.tasks.set_plan(["read the report", "write the summary"])
        await ctx.memory.tasks.complete("1", note="12 pages")

    @step
    async def look(_: None, ctx: Context[Mem]) -> Mapping[str, PlanItem]:
        return ctx.memory.tasks.items

    backend = InMemoryBackend()
    async with Harness(plugins=[], memory=Mem(), checkpoints=backend) as harness:
        await harness.run(make, None, session=KEY)
    async with Harness(plugins=[], memory=Mem(), checkpoints=backend) as harness:
        found = (await harness.run(look, None, session=KEY)).value
        assert [(item.text, item.status, item.note) for item in found.values()] == [
            ("read the report", "done", "12 pages"),
            ("write the summary", "pending", ""),
        ]
        assert (await harness.run(look, None, session=SessionKey("ada", "other"))).value == {}


@pytest.mark.clause("004-43a", "004-43b")
async def test_004_43_a_call_can_carry_data_for_its_tools_and_hooks_that_is_never_stored() -> None:
    seen: list[object] = []

    class Hooked(MemoryLayer[None]):
        async def recall(self, query: str, budget: int) -> str | None:
            seen.append(("hook", self.ctx.services[Tenant], self.ctx.session))
            return None

    class Mem(Memory):
        hooked: Hooked = Hooked()

    @tool
    async def look(ctx: Context, tenant: Inject[Tenant]) -> str:
        """Look."""
        seen.append(("tool", tenant, ctx.session))
        untyped: Any = ctx
        for name in ("session", "user_id"):
            with pytest.raises(AttributeError):
                setattr(untyped, name, None)
        return "ok"

    class Listening(InMemoryBackend):
        """Remembers all bytes that it was given."""

        def __init__(self) -> None:
            super().__init__()
            self.heard: list[bytes] = []

        async def append(self, run_id: str, **given: Any) -> int:
            self.heard += [record.payload for record in given["records"]] + [given.get("summary") or b""]
            return await super().append(run_id, **given)

        async def put(self, scope: Any, key: str, value: bytes, **given: Any) -> int:
            self.heard.append(value)
            return await super().put(scope, key, value, **given)

    backend = Listening()
    model = ScriptedModel(FunctionCall(name="look", arguments={}), "Seen.")
    agent = loop(call_model(tools=[look]), until=until.no_tool_calls())
    tenant = Tenant("secret-tenant-7")
    async with Harness(plugins=[], memory=Mem(), checkpoints=backend, model=model) as harness:
        await harness.run(agent, "Look.", session=KEY, services={Tenant: tenant})
        heard = b"".join(backend.heard)
        assert (b"Seen." in heard, b"secret-tenant" in heard) == (True, False)
        assert set(map(str, seen)) == {str(("hook", tenant, KEY)), str(("tool", tenant, KEY))}
        # The next call of the session does not have it.

        @step
        async def without(_: None, ctx: Context) -> bool:
            return Tenant in ctx.services

        assert (await harness.run(without, None, session=KEY)).value is False


async def test_004_44_a_call_without_such_data_has_an_empty_set() -> None:
    @step
    async def look(_: None, ctx: Context) -> None:
        assert (dict(ctx.services.by_type), dict(ctx.metadata)) == ({}, {})
        assert ctx.services.get(Tenant) is None
        assert (ctx.session, ctx.user_id, ctx.request_id) == (None, None, None)
        with pytest.raises(ConfigError):
            ctx.services[Tenant]

    async with Harness(plugins=[]) as harness:
        assert (await harness.run(look, None)).status == "completed"


Typed: TypeAlias = Context[Memory, Profile]


@pytest.mark.clause("004-50a", "004-50b")
async def test_004_50_inside_a_run_the_sessions_state_is_always_there() -> None:
    seen: list[tuple[str, str, int]] = []

    @tool
    async def look(ctx: Typed) -> str:
        """Look."""
        seen.append(("tool", ctx.state.name, ctx.state.turns))
        return "ok"

    @step
    async def count(text: str, ctx: Typed) -> str:
        ctx.state.turns += 1
        seen.append(("step", ctx.state.name, ctx.state.turns))
        return text

    call = FunctionCall(name="look", arguments={})
    model = ScriptedModel(call, "Seen.", call, "Seen.")
    agent = count >> loop(call_model(tools=[look]), until=until.no_tool_calls())
    backend = InMemoryBackend()
    for turn in (1, 2):
        async with Harness(plugins=[], checkpoints=backend, model=model) as harness:
            session = harness.session("ada", "trip")
            # What is given is what the first turn begins with.
            result = await session.run(agent, "Look.", state=Profile("ada" if turn == 1 else "nobody"))
            assert result.state == await session.state(Profile) == Profile("ada", turn)
    assert seen == [("step", "ada", 1), ("tool", "ada", 1), ("step", "ada", 2), ("tool", "ada", 2)]
    # Outside of a run there is no context that could be asked for one.
    assert current_context() is None


async def test_004_51_code_below_a_run_finds_the_sessions_state() -> None:
    def far_below() -> tuple[object, SessionKey | None]:
        ctx = current_context(required=True)
        return ctx.state, ctx.session

    @step
    async def look(name: str, ctx: Context[Memory, StateBag]) -> bool:
        ctx.state["name"] = name
        await anyio.lowlevel.checkpoint()
        return far_below() == (StateBag({"name": name}), SessionKey(name, "trip"))

    found: list[bool] = []
    async with Harness(plugins=[]) as harness:

        async def turn(user: str) -> None:
            found.append((await harness.session(user, "trip").run(look, user)).value)

        async with anyio.create_task_group() as group:
            group.start_soon(turn, "ada")
            group.start_soon(turn, "bob")
    assert found == [True, True]
    with pytest.raises(NoContextError):
        far_below()


async def test_004_52_the_state_of_some_last_active_session_cannot_be_asked_for() -> None:
    @step
    async def note(text: str, ctx: Context[Memory, StateBag]) -> None:
        ctx.state["text"] = text

    async with Harness(plugins=[]) as harness:
        await harness.session("ada", "trip").run(note, "ada's")
        untyped: Any = harness
        for name in ("state", "agent_state", "current_session", "items"):
            assert not hasattr(untyped, name)
        for arguments in ((), ("ada",)):
            with pytest.raises(TypeError):
                untyped.session(*arguments)
        assert await harness.session("bob", "trip").state(StateBag) is None
        assert await harness.session(None, "trip").state(StateBag) is None


@pytest.mark.clause("004-53a", "004-53b", "004-53c")
async def test_004_53_a_child_call_takes_over_ids_session_and_services() -> None:
    seen: list[Any] = []

    @step
    async def look(_: None, ctx: Context) -> None:
        whose = (ctx.run_id, ctx.thread_id, ctx.user_id, ctx.request_id, ctx.session, dict(ctx.metadata))
        seen.append((*whose, ctx.services[Tenant], id(ctx.services[Tenant])))

    tenant = Tenant("t")
    flow = parallel(look, spawn(look), spawn(spawn(look)))
    async with Harness(plugins=[]) as harness:
        await harness.run(
            flow,
            None,
            session=KEY,
            run_id="run",
            request_id="request",
            services={Tenant: tenant},
            metadata={"from": "web"},
        )
    expected = ("run", KEY.stream, "ada", "request", KEY, {"from": "web"}, tenant, id(tenant))
    assert seen == [expected] * 3
