"""Handoffs that a model decides on: transfer tools, what is sent along, what the target is shown, and chains."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Handoff,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    Message,
    ModelRequest,
    StateBag,
    Step,
    ToolFinished,
    call_model,
    errors,
    handoff_to,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
    with_memory,
)
from noetic_py.checkpoints import FileBackend, SqliteBackend
from noetic_py.context.hooks import Hook, HookContext
from noetic_py.core.events import HandedOver
from noetic_py.journal.records import StepFinished
from noetic_py.memory import Permissions, WorkingMemory
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere
from noetic_py.tools.permissions import PermissionRule

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
# What no checker lets through.
WRONG_MODEL: Any = call_model
WRONG_TARGET: Any = handoff_to
AnyStep = Step[Any, Any, Any, Any]


class Claim(BaseModel):
    order: int
    why: str = ""


def call(name: str, /, **arguments: Any) -> FunctionCall:
    return FunctionCall(name=name, arguments=arguments)


def agent(name: str, *, tools: Sequence[Any] = (), **options: Any) -> Step[Any, str, Any, Any]:
    """An agent whose instructions are its name."""
    return loop(call_model(instructions=name, tools=tools, **options), until=until.no_tool_calls(), id=name)


class Desk:
    """A model that answers by instructions: what each agent says at its n-th turn, and what it was shown."""

    def __init__(self, **says: list[Any]) -> None:
        self.says = says
        self.shown: list[tuple[str, list[str], list[str]]] = []

    def answer(self, request: ModelRequest) -> Any:
        name = request.instructions or ""
        texts = [item.text if isinstance(item, Message | FunctionCallOutput) else item.type for item in request.items]
        self.shown.append((name, [str(each["name"]) for each in request.tools], texts))
        # How often it has spoken is read from the conversation, so that a later process says the same.
        turn = sum(1 for item in request.items if isinstance(item, FunctionCallOutput))
        return self.says[name][min(turn, len(self.says[name]) - 1)]

    def model(self) -> ScriptedModel:
        return ScriptedModel(*[self.answer] * 40)


async def run(flow: AnyStep, desk: Desk, value: Any = "hello", **options: Any) -> Any:
    """Run it, and see that each call has exactly one output."""
    given: Any = {"model": desk.model(), "plugins": (), **options.pop("harness", {})}
    async with Harness(**given) as harness:
        made: Any = harness.run
        result = await made(flow, value, **options)
    made_calls = [item.call_id for item in result.items if isinstance(item, FunctionCall)]
    outputs = [item.call_id for item in result.items if isinstance(item, FunctionCallOutput)]
    assert sorted(made_calls) == sorted(outputs)
    return result


def outputs(result: Any) -> list[str]:
    return [item.text for item in result.items if isinstance(item, FunctionCallOutput)]


async def test_the_model_chooses_who_goes_on() -> None:
    billing = agent("billing")

    @step
    async def refunds(claim: Claim, ctx: Ctx) -> str:
        """Give money back.

        Slowly.
        """
        return f"refunded {claim.order}"

    for target, arguments, value in (
        ("billing", {}, "it is paid"),
        ("refunds", {"input": {"order": 7}}, "refunded 7"),
    ):
        desk = Desk(triage=[call(f"transfer_to_{target}", **arguments)], billing=["it is paid"])
        flow = agent("triage", handoffs=(billing, refunds))
        result = await run(flow, desk)
        assert (result.status, result.value) == ("completed", value)
        assert outputs(result) == [f"Transferred to {target}."]
        assert desk.shown[0][1] == ["transfer_to_billing", "transfer_to_refunds"]
        if target == "billing":
            assert desk.shown[1] == ("billing", [], ["hello", "function_call", "Transferred to billing."])
        # Without a handoff it is an agent like any other.
        assert (await run(flow, Desk(triage=["hi"]))).value == "hi"


async def test_a_round_alone_hands_over_too() -> None:
    desk = Desk(ask=[call("transfer_to_billing")], billing=["it is paid"])
    result = await run(call_model(instructions="ask", handoffs=[agent("billing")]), desk)
    assert result.value == "it is paid"


def definitions(flow: AnyStep) -> list[Any]:
    from noetic_py.steps.handoff import transfer_tools

    return [each.definition() for each in transfer_tools(flow.spec.targets)]


def test_what_the_model_reads_of_a_target() -> None:
    @step
    async def refunds(claim: Claim) -> str:
        """Give money back.

        Slowly.
        """
        return ""

    @step
    async def quiet(text: str | None) -> str:
        return ""

    flow = agent(
        "triage",
        handoffs=[
            refunds,
            quiet,
            agent("plain"),
            handoff_to(agent("told").with_options(id="a b"), description="Why.", input=str),
        ],
    )
    found = {each["name"]: each for each in definitions(flow)}
    assert [each["description"] for each in found.values()] == [
        "Hand the conversation over to refunds. Give money back.",
        "Hand the conversation over to quiet.",
        "Hand the conversation over to plain.",
        "Why.",
    ]
    assert {name: list(each["parameters"]["properties"]) for name, each in found.items()} == {
        "transfer_to_refunds": ["input"],
        "transfer_to_quiet": [],
        "transfer_to_plain": [],
        "transfer_to_a_b": ["input"],
    }


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: WRONG_MODEL(handoffs=agent("x")), "handoff"),
        (lambda: WRONG_MODEL(handoffs=handoff_to(agent("x"))), "handoff"),
        (lambda: WRONG_MODEL(handoffs="x"), "handoff"),
        (lambda: WRONG_MODEL(handoffs=[1]), "not-a-step"),
        (lambda: WRONG_MODEL(handoffs=[agent("x"), agent("x")]), "duplicate-id"),
        (lambda: WRONG_MODEL(handoffs=[agent("x")], max_handoffs=0), "handoff"),
        (lambda: WRONG_TARGET(1), "not-a-step"),
        (lambda: WRONG_TARGET(agent("x"), history=3), "handoff"),
        (lambda: definitions(agent("t", handoffs=[agent("a b"), agent("a_b")])), "handoff"),
    ],
)
def test_what_is_declared_wrongly_is_refused(made: Any, code: str) -> None:
    with pytest.raises(errors.ConfigError) as refused:
        made()
    assert refused.value.code == code


async def test_what_is_sent_along_reaches_the_target() -> None:
    seen: list[Any] = []

    @step
    async def typed(claim: Claim, ctx: Ctx) -> str:
        seen.append(claim)
        return "typed"

    @step
    async def text(brief: str) -> str:
        seen.append(brief)
        return "text"

    asked = agent("asked")
    flow = agent("triage", handoffs=[typed, text, handoff_to(asked, input=Claim), handoff_to(agent("told"), input=str)])
    for name, given, shown in (
        ("typed", {"order": 1, "why": "torn"}, None),
        ("text", "look at it", None),
        ("asked", {"order": 2}, '{"order":2,"why":""}'),
        ("told", "look again", "look again"),
    ):
        desk = Desk(triage=[call(f"transfer_to_{name}", input=given)], asked=["asked"], told=["told"])
        assert (await run(flow, desk)).value == name
        if shown is not None:
            assert desk.shown[-1][2][-1] == shown
    assert seen == [Claim(order=1, why="torn"), "look at it"]


@tool
async def look(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


async def test_only_the_first_transfer_is_made_and_other_calls_beside_it_are() -> None:
    desk = Desk(
        triage=[[call("look", order=3), call("transfer_to_billing"), call("transfer_to_other"), call("look", order=4)]],
        billing=["paid"],
        other=["never"],
    )
    result = await run(agent("triage", tools=[look], handoffs=[agent("billing"), agent("other")]), desk)
    assert result.value == "paid"
    assert outputs(result) == [
        "order 3",
        "Transferred to billing.",
        "Not transferred: only the first transfer of an answer is made.",
        "order 4",
    ]


async def test_a_transfer_that_cannot_be_made_is_told_to_the_model() -> None:
    @step
    async def refunds(claim: Claim) -> str:
        return f"refunded {claim.order}"

    desk = Desk(
        triage=[
            [call("transfer_to_refunds", input={"order": "many"}), call("transfer_to_nobody")],
            "unused",
            call("transfer_to_refunds", input={"order": 9}),
        ]
    )
    result = await run(agent("triage", handoffs=[refunds]), desk)
    assert result.value == "refunded 9"
    wrong, unknown, made = outputs(result)
    assert "input.order: Input should be a valid integer" in wrong
    assert unknown.startswith("there is no tool 'transfer_to_nobody'")
    assert made == "Transferred to refunds."


def round_trip() -> Step[Any, str, Any, Any]:
    triage = agent("triage", tools=[look], handoffs=lambda: [billing])
    billing: Step[Any, str, Any, Any] = agent(
        "billing", handoffs=lambda: [triage, handoff_to(closing, history=lambda items: items[:1])]
    )
    closing: Step[Any, str, Any, Any] = agent("closing")
    return triage


def talk() -> Desk:
    return Desk(
        triage=[[call("look", order=1), call("transfer_to_billing")], "-", "-", call("transfer_to_billing")],
        billing=["-", "-", call("transfer_to_triage"), "-", call("transfer_to_closing")],
        closing=["goodbye"],
    )


async def test_agents_hand_back_and_the_chain_is_flat() -> None:
    desk = talk()
    result = await run(round_trip(), desk)
    assert (result.value, len(desk.shown)) == ("goodbye", 5)
    assert [name for name, _, _ in desk.shown] == ["triage", "billing", "triage", "billing", "closing"]
    # The last one is shown what its filter gives, the conversation keeps all.
    assert desk.shown[-1][2] == ["hello"]
    assert len(outputs(result)) == 5


async def test_a_chain_has_at_most_as_many_handoffs_as_the_first_says() -> None:
    one = loop(
        call_model(instructions="one", handoffs=lambda: [two], max_handoffs=3), until=until.no_tool_calls(), id="one"
    )
    two: Step[Any, str, Any, Any] = agent("two", handoffs=lambda: [one])
    desk = Desk(one=[call("transfer_to_two")], two=[call("transfer_to_one")])
    with pytest.raises(errors.HandoffLimit):
        await run(one, desk)
    assert len(desk.shown) == 4
    # And a budget holds for all of it.
    limited = await run(two, Desk(one=[call("transfer_to_two")], two=[call("transfer_to_one")]), budget=Budget(steps=7))
    assert limited.status == "budget_exceeded"
    tools = await run(
        two, Desk(one=[call("transfer_to_two")], two=[call("transfer_to_one")]), budget=Budget(tool_calls=2)
    )
    assert tools.status == "budget_exceeded"


async def test_an_agent_that_has_handed_over_is_not_asked_again_by_a_later_process() -> None:
    @step(version="1")
    async def refunds(claim: Claim, ctx: Ctx) -> str:
        return f"refunded {claim.order}"

    def desk() -> Desk:
        return Desk(triage=[call("transfer_to_refunds", input={"order": 3})])

    flow = call_model(instructions="triage", handoffs=[refunds])
    whole = FaultyBackend(InMemoryBackend())
    await run(flow, desk(), run_id="r", harness={"checkpoints": whole})
    journal = await Harness(plugins=(), checkpoints=whole).runs.journal("r")
    for at in range(2, whole.appends):
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when="after")
        with backend.outlived():
            await run(flow, desk(), run_id="r", harness={"checkpoints": backend})
        backend.revive()
        stored = await Harness(plugins=(), checkpoints=backend).runs.journal("r")
        again = desk()
        async with Harness(plugins=(), model=again.model(), checkpoints=backend) as harness:
            assert (await harness.resume("r", flow)).value == "refunded 3"
        answered = any(isinstance(each, StepFinished) and each.usage is not None for each in stored)
        assert len(again.shown) == (0 if answered else 1)
        assert len(stored) < len(journal)


async def test_a_chain_goes_on_after_a_kill_anywhere() -> None:
    def made(backend: Any) -> Harness[Any]:
        return Harness(plugins=(), model=talk().model(), checkpoints=backend)

    assert await assert_resumable_everywhere(round_trip, "hello", make=made) >= 30


@pytest.mark.parametrize("place", ["sequence", "parallel", "spawn"])
async def test_chains_in_other_steps_go_on_after_a_kill_anywhere(place: str) -> None:
    def flow() -> AnyStep:
        @step
        async def refunds(claim: Claim, ctx: Ctx) -> str:
            ctx.state["claim"] = claim.order
            return f"refunded {claim.order}"

        @step
        async def last(text: str) -> str:
            return f"<{text}>"

        chain = agent("triage", handoffs=[refunds, agent("billing")])
        if place == "sequence":
            return sequence(chain, last)
        return spawn(chain) if place == "spawn" else parallel(chain, last, concurrency=1)

    def made(backend: Any) -> Harness[Any]:
        desk = Desk(triage=[call("transfer_to_refunds", input={"order": 3})])
        return Harness(plugins=(), model=desk.model(), checkpoints=backend)

    assert await assert_resumable_everywhere(flow, "hello", make=made) >= 12


@pytest.mark.parametrize("store", ["memory", "sqlite", "files"])
async def test_a_transfer_waits_for_a_person(tmp_path: Path, store: str) -> None:
    made: Any = {
        "memory": InMemoryBackend,
        "sqlite": lambda: SqliteBackend(tmp_path / "r.db"),
        "files": lambda: FileBackend(tmp_path / "r"),
    }[store]

    def flow() -> AnyStep:
        @step
        async def refunds(claim: Claim) -> str:
            return f"refunded {claim.order}"

        return agent("triage", tools=[look], handoffs=[handoff_to(refunds, needs_approval=True)])

    asked = [call("look", order=1), call("transfer_to_refunds", input={"order": 3})]
    async with made() as backend:
        for name, answers in (("yes", None), ("no", "not today"), ("other", {"input": {"order": 8}})):
            desk = Desk(triage=[asked, "-", "I am sorry"])
            async with Harness(plugins=(), model=desk.model(), checkpoints=backend) as harness:
                (request,) = (await harness.run(flow(), "go", run_id=name)).pending
            assert (request.tool, request.arguments) == ("transfer_to_refunds", {"input": {"order": 3, "why": ""}})
            answer = request.reject(answers) if isinstance(answers, str) else request.approve(arguments=answers)
            async with Harness(plugins=(), model=desk.model(), checkpoints=backend) as harness:
                result = await harness.resume(name, flow(), answers=[answer])
            assert result.value == {"yes": "refunded 3", "no": "I am sorry", "other": "refunded 8"}[name]
            assert outputs(result)[0] == "order 1"


async def test_permission_rules_hold_for_transfers() -> None:
    class Mem(Memory):
        permissions: Permissions = Permissions(
            rules=[PermissionRule("deny", "transfer_to_billing"), PermissionRule("allow", "transfer_*")]
        )

    desk = Desk(triage=[call("transfer_to_billing"), call("transfer_to_other")], billing=["-"], other=["done"])
    flow = agent("triage", handoffs=[agent("billing"), agent("other")])
    result = await run(flow, desk, harness={"memory": Mem()})
    assert result.value == "done"
    assert outputs(result) == [
        "The call was refused: a rule for 'transfer_to_billing' says so.",
        "Transferred to other.",
    ]


async def test_what_the_target_is_shown_goes_through_its_filter() -> None:
    def last_words(items: Sequence[Item]) -> Sequence[Item]:
        # An output whose call is left out goes too.
        return items[-1:]

    def first(items: Sequence[Item]) -> Sequence[Item]:
        return [*items[:1], Message.developer("this is all")]

    for memory in (Memory(), None):
        billing = agent("billing", tools=[look])
        flow = agent(
            "triage", handoffs=[handoff_to(billing, history=first), handoff_to(agent("other"), history=last_words)]
        )
        desk = Desk(triage=[call("transfer_to_billing")], billing=[call("look", order=5), "done"])
        result = await run(flow, desk, harness={} if memory is None else {"memory": memory})
        assert result.value == "done"
        assert [texts for name, _, texts in desk.shown if name == "billing"] == [
            ["hello", "this is all"],
            ["hello", "this is all", "function_call", "order 5"],
        ]
        assert [item.text for item in result.items if isinstance(item, Message)] == ["hello", "done"]
        other = Desk(triage=[call("transfer_to_other")], other=["done"])
        await run(flow, other)
        assert other.shown[-1][2] == []


async def test_the_filter_holds_with_layers_and_in_the_paths_of_the_target_but_in_no_spawn() -> None:
    class Mem(Memory):
        notes: WorkingMemory = WorkingMemory()

    inside = agent("inside")

    @step
    async def both(_: object, ctx: Ctx) -> str:
        texts = await ctx.gather(inside.bind("a"), inside.bind("b"))
        return await spawn(inside)("alone", ctx) + "".join(texts)

    target = sequence(with_memory(agent("first"), memory=Mem()), both)
    flow = agent("triage", handoffs=[handoff_to(target.with_options(id="target"), history=lambda items: [])])
    desk = Desk(triage=[call("transfer_to_target")], first=["1"], inside=["2"])
    result = await run(flow, desk, harness={"memory": Mem()})
    assert result.value == "222"
    shown = [(name, texts) for name, _, texts in desk.shown if name != "triage"]
    assert all("hello" not in texts for _, texts in shown)


async def test_who_watches_sees_the_handoff() -> None:
    desk = talk()
    seen: list[Any] = []
    async with Harness(plugins=(), model=desk.model(), checkpoints=InMemoryBackend()) as harness:
        async with harness.stream(round_trip(), "hello", run_id="r") as stream:
            seen = [event async for event in stream.select(HandedOver, ToolFinished)]
            await stream.result()
        async with harness.resume_stream("r", round_trip()) as again:
            replayed = [event async for event in again.select(HandedOver)]
            assert (await again.result()).value == "goodbye"
    moves = [(event.step, event.to, event.path) for event in seen if isinstance(event, HandedOver)]
    assert moves == [
        ("triage", "billing", ("triage",)),
        ("billing", "triage", ("triage",)),
        ("triage", "billing", ("triage",)),
        ("billing", "closing", ("triage",)),
    ]
    assert len([event for event in seen if isinstance(event, ToolFinished)]) == 5
    assert replayed == []


async def test_a_function_and_a_model_hand_over_to_each_other() -> None:
    @step(handoffs=lambda: [clerk])
    async def door(text: str) -> str | Handoff[str]:
        return text if text.startswith("out") else Handoff(clerk, text)

    clerk: Step[Any, str, Any, Any] = agent("clerk", handoffs=lambda: [door])
    desk = Desk(clerk=[call("transfer_to_door", input="out again")])
    assert (await run(door, desk, "in")).value == "out again"
    assert [texts for _, _, texts in desk.shown] == [["in"]]


async def test_a_hook_in_an_agent_hands_over_too() -> None:
    billing = agent("billing")

    async def before(ctx: HookContext, request: ModelRequest) -> None:
        ctx.effects.hand_off(billing, None)

    flow = agent("triage", handoffs=[billing], hooks=[Hook("before_model", before, "before")])
    desk = Desk(triage=["-"], billing=["done"])
    assert (await run(flow, desk)).value == "done"


async def test_options_are_those_of_the_agent_and_not_of_its_targets() -> None:
    flow = agent("triage", handoffs=[agent("billing")]).with_options(id="front", timeout=60.0, budget=Budget(steps=1))
    desk = Desk(triage=[call("transfer_to_billing")], billing=["done"])
    result = await run(flow, desk)
    assert (result.value, flow.id) == ("done", "front")
    given: Any = call_model(instructions="triage", handoffs=[agent("billing")]).bind("given")
    bound: Any = loop(given, until=until.no_tool_calls())
    desk = Desk(triage=[call("transfer_to_billing")], billing=["done"])
    assert (await run(bound, desk)).value == "done"
    assert desk.shown[0][2] == ["given"]


async def test_a_plan_and_a_graph_know_the_agents() -> None:
    backend = InMemoryBackend()
    async with Harness(plugins=(), model=talk().model(), checkpoints=backend) as harness:
        await harness.run(round_trip(), "hello", run_id="r")
        plan = await harness.plan_resume("r", round_trip())
        assert {each.action for each in plan.steps} == {"replay"}
        drawn = harness.graph(round_trip())
        assert drawn.count("(agent)") == 2
        kinds: set[str] = set()
        for at in range(1, 8):
            with suppress(errors.PositionConflict):
                half = await harness.fork("r", at=at)
                kinds |= {each.kind for each in (await harness.plan_resume(half, round_trip())).steps}
        assert {"handoff", "agent", "loop", "model"} <= kinds


async def test_a_wrap_up_knows_the_agents() -> None:
    there = anyio.Event()

    @tool
    async def hang() -> str:
        """Wait."""
        there.set()
        await anyio.sleep_forever()
        return ""

    def answer(request: ModelRequest) -> Any:
        if request.instructions == "triage":
            return call("transfer_to_billing")
        return [Message.assistant("so far"), call("look", order=1)] if len(request.items) < 4 else call("hang")

    billing = agent("billing", tools=[hang, look])
    flow = agent("triage", handoffs=[billing])
    backend = InMemoryBackend()
    async with Harness(plugins=(), model=ScriptedModel(*[answer] * 5), checkpoints=backend) as harness:
        handle = harness.start(flow, "hello", run_id="r")
        await there.wait()
        assert handle.wrap_up("enough")
        assert (await handle.result()).value == "so far"
        assert (await harness.resume("r", flow)).value == "so far"


async def test_two_tools_of_one_name_are_refused() -> None:
    @tool(name="a/b")
    async def one() -> str:
        """One."""
        return "one"

    with pytest.raises(errors.ConfigError, match="two of tools= have the name 'a__b'"):
        call_model(tools=[one, one.with_options(name="a__b")])

    @step
    async def billing(claim: Any, ctx: Ctx) -> str:
        return "billed"

    flow = call_model(tools=[one.with_options(name="transfer_to_billing")], handoffs=[billing])
    async with Harness(model=ScriptedModel("hello"), plugins=()) as harness:
        with pytest.raises(errors.ConfigError, match="have the name 'transfer_to_billing'") as caught:
            await harness.run(flow, "hi")
    assert caught.value.path
