"""The examples of document 004, "Context & AgentState", in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from attrs import frozen

from noetic_py import (
    Context,
    Harness,
    InMemoryBackend,
    Item,
    Key,
    Memory,
    Message,
    SessionKey,
    StateBag,
    call_model,
    step,
)
from noetic_py.checkpoints import Lease, Transaction
from noetic_py.sessions.export import SessionData
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


def texts(items: Sequence[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


@step
async def talk(text: str, ctx: Ctx) -> int:
    """Says it, and gives how much has been said."""
    ctx.items.append(Message.user(text))
    return len(ctx.items)


@frozen
class MyTenantInfo:
    name: str


async def test_document_004_one_harness_with_a_state_for_each_session() -> None:
    """The drawing of the stateless engine: `("alice","s1") → AgentState`, `("bob","s2") → AgentState`."""
    async with Harness(plugins=[]) as harness:
        for user, session, said in (("alice", "s1", "a"), ("bob", "s2", "b"), ("alice", "s1", "c")):
            await harness.session(user, session).run(talk, said)
        assert texts(await harness.session("alice", "s1").items()) == ["a", "c"]
        assert texts(await harness.session("bob", "s2").items()) == ["b"]


@pytest.mark.clause("004-04a")
async def test_document_004_the_flow_of_a_call() -> None:
    """The drawing `call(msgs, RuntimeContext(...))`: load, work on the state, save once, return."""

    class Counting(InMemoryBackend):
        writes = 0

        async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
            self.writes += any(each.run_id == key.stream for each in transactions)
            return await super().commit(transactions)

    @step
    async def work(_: object, ctx: Ctx) -> int:
        for number in range(50):
            ctx.items.append(Message.user(str(number)))
            ctx.state["n"] = number
        return len(ctx.items)

    key = SessionKey("alice", "s1")
    backend = Counting()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        assert (await harness.run(work, None, session=key)).value == 50
    # That it began, and what it came to: not one write for each message.
    assert backend.writes == 2
    async with Harness(plugins=[], checkpoints=backend) as harness:
        result = await harness.run(talk, "more", session=key)
    assert (result.value, result.state["n"]) == (51, 49)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_document_004_switching_the_store_is_one_argument(kind: str, tmp_path: Path) -> None:
    """`HarnessAgent.builder()....build()`, with and without a store of one's own."""
    async with Harness(plugins=[]) as harness:
        await harness.session("alice", "s1").run(talk, "lost on exit")
    async with Harness(plugins=[], checkpoints=f"{kind}:{tmp_path / 'kept'}") as harness:
        await harness.session("alice", "s1").run(talk, "kept")
    async with Harness(plugins=[], checkpoints=f"{kind}:{tmp_path / 'kept'}") as harness:
        assert texts(await harness.session("alice", "s1").items()) == ["kept"]


async def test_document_004_node_b_goes_on_where_node_a_ended() -> None:
    """`HarnessAgent agentA = ...`, `HarnessAgent agentB = ...`: the same store, user and session."""
    store = InMemoryBackend()
    said, seen = ScriptedModel("Hello, Alice."), ScriptedModel("You are Alice.")
    agent_a = Harness(plugins=[], checkpoints=store, model=said)
    agent_b = Harness(plugins=[], checkpoints=store, model=seen)
    key = SessionKey("alice", "alice-2026-06-02-001")
    await agent_a.run(call_model(), "I am Alice.", session=key)
    await agent_b.run(call_model(), "Who am I?", session=key)
    assert texts(seen.requests[0].items) == ["I am Alice.", "Hello, Alice.", "Who am I?"]


async def test_document_004_two_users_have_nothing_of_each_other() -> None:
    """`.sessionId("alice-1").userId("alice")` and `.sessionId("bob-1").userId("bob")`."""
    async with Harness(plugins=[]) as harness:
        await harness.session("alice", "alice-1").run(talk, "alice's")
        await harness.session("bob", "bob-1").run(talk, "bob's")
        # Not even under the same session's name.
        assert texts(await harness.session("bob", "alice-1").items()) == []
        assert texts(await harness.session("alice", "alice-1").items()) == ["alice's"]


async def test_document_004_reading_a_state_from_outside_and_as_json() -> None:
    """`agent.getAgentState("alice", "session-001")`, `state.toJson()`, `AgentState.fromJsonString(json)`."""
    async with Harness(plugins=[]) as harness:
        session = harness.session("alice", "session-001")
        await session.run(talk, "hello")
        state = await session.dump()
        assert len(state.items) == 1
        json = state.to_json()
        restored = SessionData.from_json(json)
        assert restored == state
    async with Harness(plugins=[]) as other:
        await other.sessions.load(restored)
        assert (await other.session("alice", "session-001").run(talk, "again")).value == 2


async def test_document_004_interrupting_one_session() -> None:
    """`agent.interrupt("alice", "session-001")`, and with a message of the user's."""
    begun: list[str | None] = []
    all_begun, bob_may_end = anyio.Event(), anyio.Event()
    statuses: dict[str, str] = {}

    @step
    async def works(_: object, ctx: Ctx) -> None:
        begun.append(ctx.user_id)
        if len(begun) == 2:
            all_begun.set()
        await bob_may_end.wait()

    async with Harness(plugins=[]) as harness:

        async def call(user: str) -> None:
            statuses[user] = (await harness.session(user, "session-001").run(talk >> works, "Plan.")).status

        async with anyio.create_task_group() as group:
            group.start_soon(call, "alice")
            group.start_soon(call, "bob")
            await all_begun.wait()
            assert await harness.interrupt(SessionKey("alice", "session-001"), "Please stop and summarise.")
            bob_may_end.set()
        assert statuses == {"alice": "interrupted", "bob": "completed"}
        # What was done is kept, and the message stands behind it.
        assert texts(await harness.session("alice", "session-001").items()) == ["Plan.", "Please stop and summarise."]
        assert texts(await harness.session("bob", "session-001").items()) == ["Plan."]


async def test_document_004_concurrent_calls() -> None:
    """`Mono.zip(aliceCall, bobCall)` in parallel, `Flux.merge(call1, call2)` one after the other."""
    inside: dict[str, int] = {}
    most: dict[str, int] = {}
    both = anyio.Event()
    order: list[str] = []

    @step
    async def meet(text: str, ctx: Ctx) -> None:
        user = str(ctx.user_id)
        inside[user] = inside.get(user, 0) + 1
        most[user] = max(most.get(user, 0), inside[user])
        if len(inside) == 2:
            both.set()
        # The first call of each user ends only when the other's goes on too.
        await both.wait()
        await anyio.lowlevel.checkpoint()
        order.append(text)
        ctx.items.append(Message.user(text))
        inside[user] -= 1

    async with Harness(plugins=[]) as harness:
        async with anyio.create_task_group() as group:
            for user, session, text in (
                ("alice", "s1", "first"),
                ("bob", "s2", "bob's"),
            ):
                group.start_soon(harness.session(user, session).run, meet, text)
            await both.wait()
            # Queues behind the first.
            group.start_soon(harness.session("alice", "s1").run, meet, "second")
        assert most == {"alice": 1, "bob": 1}
        assert texts(await harness.session("alice", "s1").items()) == ["first", "second"]
        assert sorted(order) == ["bob's", "first", "second"]


REQUEST = Key("request_id", str)


async def test_document_004_data_of_one_call() -> None:
    """`RuntimeContext.builder().userId("alice")....put(MyTenantInfo.class, ...)`: for one call, and never stored."""
    seen: list[tuple[object, ...]] = []

    @step
    async def look(text: str, ctx: Ctx) -> str:
        key = ctx.session
        assert key is not None
        seen.append((key.user, key.session, ctx.attrs[REQUEST], ctx.attrs[MyTenantInfo].name, ctx.request_id))
        # The state of this call's session.
        ctx.state["looked"] = True
        return text

    @step
    async def later(_: object, ctx: Ctx) -> tuple[object, ...]:
        return ctx.attrs.get(REQUEST), ctx.attrs.get(MyTenantInfo), ctx.state["looked"]

    async with Harness(plugins=[]) as harness:
        session = harness.session("alice", "s-001")
        result = await session.run(
            look,
            "Hi",
            request_id="req-2026-06-01-abc",
            attrs={REQUEST: "req-2026-06-01-abc", MyTenantInfo: MyTenantInfo("tenant-7")},
        )
        assert result.value == "Hi"
        assert (await session.run(later, None)).value == (None, None, True)
    assert seen == [("alice", "s-001", "req-2026-06-01-abc", "tenant-7", "req-2026-06-01-abc")]
