"""Looking back: the events of a conversation, by branch and by run, and the answers of earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    InputFile,
    InputImage,
    Item,
    Memory,
    Message,
    Reasoning,
    StateBag,
    call_model,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.core.items import Refusal
from noetic_py.core.log import ItemLog
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


def texts(items: Sequence[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


@step
async def say(text: str, ctx: Ctx) -> str:
    ctx.items.append(Message.user(text))
    return text


# --------------------------------------------------------------------------------------------------------------- 001-29


@pytest.mark.clause("001-29a", "001-29b")
async def test_001_29_the_events_so_far_are_a_view_that_nobody_can_change() -> None:
    @step
    async def look(text: str, ctx: Ctx) -> None:
        assert list(ctx.items.view()) == []
        ctx.items.append(Message.user(text))
        for view in (ctx.items.view(), ctx.read_only().items, ctx.items.frozen(), ctx.items[:]):
            changed: Any = view
            assert texts(view) == [text]
            for change in ("append", "extend", "clear", "pop", "insert"):
                assert not hasattr(changed, change)
            with pytest.raises(TypeError):
                changed[0] = Message.user("forged")
            with pytest.raises(TypeError):
                del changed[0]
        before = ctx.items.view()
        ctx.items.append(Message.user("more"))
        assert (len(before), len(ctx.items)) == (1, 2)

    async with Harness(plugins=[]) as harness:
        await harness.run(look, "x")


@pytest.mark.clause("001-29a")
def test_001_29_without_a_session_there_are_none() -> None:
    assert list(Context().items.view()) == []
    assert list(Context().items.view(branch="any", run_id="any", final=True)) == []


# --------------------------------------------------------------------------------------------------------------- 001-30


@pytest.mark.clause("001-30a")
async def test_001_30_items_of_exactly_this_branch() -> None:
    seen: dict[str, list[str]] = {}

    @step
    async def child(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user(f"{text} of {ctx.branch}"))
        # It began with the parent's conversation in view.
        seen["all"] = texts(ctx.items)
        seen["own"] = texts(ctx.items.view(branch=ctx.branch))
        seen["root's"] = texts(ctx.items.view(branch="Root"))
        seen["below the root"] = texts(ctx.items.view(branch_prefix="Root"))
        seen["a piece of a name"] = texts(ctx.items.view(branch_prefix="Ro"))
        return text

    flow = sequence(say, spawn(child, items="view", id="part"), id="Root")
    async with Harness(plugins=[]) as harness:
        await harness.run(flow, "x")
    assert seen == {
        "all": ["x", "x of Root.part.child"],
        "own": ["x of Root.part.child"],
        "root's": ["x"],
        "below the root": ["x", "x of Root.part.child"],
        "a piece of a name": [],
    }


@pytest.mark.clause("001-30b")
async def test_001_30_those_of_branches_below_are_left_out() -> None:
    """A shared conversation shows them by prefix only."""
    log = ItemLog()
    for branch in ("Root", "Root.a", "Root.a.b", "Root.ab", "Root"):
        log.origin = ("r", branch)
        log.append(Message.user(branch))
    assert texts(log.view(branch="Root")) == ["Root", "Root"]
    assert texts(log.view(branch="Root.a")) == ["Root.a"]
    assert texts(log.view(branch_prefix="Root.a")) == ["Root.a", "Root.a.b"]
    assert len(log.view(branch_prefix="Root")) == 5


@pytest.mark.clause("001-30c", "001-31c")
@pytest.mark.parametrize("other", [False, True], ids=["in the same harness", "in another one"])
async def test_001_30_items_of_earlier_turns_keep_their_branch_and_run(other: bool) -> None:
    @step
    async def look(text: str, ctx: Ctx) -> list[list[str]]:
        ctx.items.append(Message.user(text))
        return [texts(ctx.items.view(branch=ctx.branch)), texts(ctx.items.view(run_id=first.run_id))]

    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        first = await harness.session("ada", "s").run(say, "first")
        async with Harness(plugins=[], checkpoints=backend) as another:
            second_harness = another if other else harness
            second = await second_harness.session("ada", "s").run(sequence(look, id="say"), "second")
    assert second.value == [["first", "second"], ["first"]]


@pytest.mark.clause("001-30a")
async def test_001_30_each_path_sees_its_own() -> None:
    @step
    async def own(text: str, ctx: Ctx) -> list[str]:
        ctx.items.append(Message.user(ctx.name))
        return texts(ctx.items.view(branch=ctx.branch))

    async with Harness(plugins=[]) as harness:
        result = await harness.run(say >> parallel([own, own]), "x")
    assert result.value == [["own[0]"], ["own[1]"]]


# --------------------------------------------------------------------------------------------------------------- 001-31


@pytest.mark.clause("001-31a", "001-31b")
async def test_001_31_items_of_this_run_and_filters_combine() -> None:
    seen: list[list[str]] = []

    @step
    async def look(text: str, ctx: Ctx) -> None:
        ctx.items.append(Message.assistant("noted"))
        views: list[Any] = [
            ctx.items.view(run_id=ctx.run_id),
            ctx.items.view(run_id=ctx.run_id, role="user"),
            ctx.items.view(Message, run_id=ctx.run_id, branch=ctx.branch, role="assistant"),
            ctx.items.view(run_id=ctx.run_id, branch="elsewhere"),
            ctx.items.view(run_id="no such run"),
            ctx.items.view(exclude_run=ctx.run_id),
        ]
        seen.extend(texts(view) for view in views)

    ctx = Context()
    async with Harness(plugins=[]) as harness:
        await harness.run(say, "first", ctx=ctx)
        await harness.run(sequence(say, look), "second", ctx=ctx)
        assert seen == [["second", "noted"], ["second"], ["noted"], [], [], ["first"]]
        # So it is in a session.
        seen.clear()
        session = harness.session("ada", "s")
        await session.run(say, "first")
        await session.run(sequence(say, look), "second")
    assert seen == [["second", "noted"], ["second"], ["noted"], [], [], ["first"]]


# --------------------------------------------------------------------------------------------------------------- 001-32


@tool
async def search(query: str) -> str:
    """Search."""
    return query


PICTURE = Message.assistant([InputImage(url="https://example.org/map.png")])


@pytest.mark.clause("001-32a")
async def test_001_32_the_final_answers_of_earlier_runs() -> None:
    seen: list[list[str]] = []

    @step
    async def earlier(_: object, ctx: Ctx) -> None:
        answers = ctx.items.view(Message, final=True, exclude_run=ctx.run_id)
        seen.append([answer.text for answer in answers if answer.text])
        # One that only shows something is an answer without text.
        assert len(answers) == len([answer for answer in answers if answer.text]) + (PICTURE in answers)

    asks: list[Item] = [Message.assistant("Let me look."), FunctionCall(name="search", arguments={"query": "tides"})]
    model = ScriptedModel(asks, "At noon.", "At six.", PICTURE, "No.", "Now.")
    agent = loop(call_model(model, tools=[search]), until=until.no_tool_calls())
    async with Harness(plugins=[]) as harness:
        session = harness.session("ada", "s")
        for question in ("When?", "And then?", "Show me."):
            await session.run(agent, question, on_error="result")
        await session.run(sequence(spawn(agent, items="copy"), earlier), "Is it?")
        await session.run(sequence(agent, earlier), "And now?")
    # Neither what announced a call nor what this run has said itself.
    assert seen == [["At noon.", "At six."]] * 2


@pytest.mark.clause("001-32b")
async def test_001_32_there_may_be_none() -> None:
    @step
    async def earlier(_: object, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("mine"))
        return len(ctx.items.view(final=True, exclude_run=ctx.run_id))

    async with Harness(plugins=[]) as harness:
        assert (await harness.run(earlier, None)).value == 0


# --------------------------------------------------------------------------------------------------------------- 001-33


FINAL: list[tuple[str, Item, bool]] = [
    ("text", Message.assistant("At noon."), True),
    ("data", PICTURE, True),
    ("a file", Message.assistant([InputFile(file_id="f")]), True),
    ("nothing", Message.assistant(""), False),
    ("a refusal", Message.assistant([Refusal(refusal="no")]), False),
    ("partial", Message(role="assistant", content="At", status="in_progress"), False),
    ("cut off", Message(role="assistant", content="At", status="incomplete"), False),
    ("failed", Message(role="assistant", content="At noon.", status="failed"), False),
    ("the user", Message.user("At noon."), False),
    ("the system", Message.system("At noon."), False),
    ("the developer", Message.developer("At noon."), False),
    ("a call", FunctionCall(name="search"), False),
    ("an output", FunctionCallOutput(call_id="c", output="x"), False),
    ("reasoning", Reasoning(), False),
]


@pytest.mark.clause("001-33a")
@pytest.mark.parametrize(("item", "final"), [case[1:] for case in FINAL], ids=[case[0] for case in FINAL])
def test_001_33_what_a_final_answer_is(item: Item, final: bool) -> None:
    assert item.is_final is final


@pytest.mark.clause("001-33b")
def test_001_33_an_answer_with_tool_calls_is_none() -> None:
    call = FunctionCall(name="search", call_id="c")
    log = ItemLog([Message.user("When?"), Message.assistant("Let me look."), Reasoning(), call])
    # While a call waits nothing is final, whoever says it.
    log.append(Message.assistant("Wait."))
    assert texts(log.view(final=True)) == []
    log.append(FunctionCallOutput(call_id="c", output="noon"))
    log.append(Message.assistant("At noon."))
    assert texts(log.view(final=True)) == ["At noon."]
    assert texts(log.view(final=False)) == ["When?", "Let me look.", "Wait."]
