"""A conversation that goes on over runs: its items, its questions, and the context it lives in."""

from __future__ import annotations

from collections.abc import MutableSequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    InputImage,
    InputText,
    Item,
    Memory,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    StateBag,
    Step,
    call_model,
    loop,
    parallel,
    race,
    step,
    tool,
    until,
)
from noetic_py.core.log import ItemView
from noetic_py.errors import ModelUnavailable, StepFailed, UnpairedOutput
from noetic_py.models import ModelRequest
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@tool
async def search(query: str) -> str:
    """Search for something."""
    return f"found {query}"


@step
async def echo(text: str) -> str:
    return text


def texts(items: Any) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


@pytest.mark.clause("000-01a")
async def test_000_01_the_same_context_given_again_continues_the_conversation() -> None:
    model = ScriptedModel("one", "two", "three")
    agent = call_model()
    ctx, other = Context(), Context()
    async with Harness(model=model) as harness:
        await harness.run(agent, "a", ctx=ctx)
        await harness.run(agent, "b", ctx=other)
        await harness.run(agent, "c", ctx=ctx)
    assert texts(ctx.items) == ["a", "one", "c", "three"]
    assert texts(other.items) == ["b", "two"]
    assert [texts(request.items) for request in model.requests] == [["a"], ["b"], ["a", "one", "c"]]


@pytest.mark.clause("000-01b")
async def test_000_01_a_step_and_a_harness_serve_many_contexts_at_once() -> None:
    inside: list[str] = []
    all_there = anyio.Event()

    @step
    async def note(text: str, ctx: Context[Memory, StateBag]) -> None:
        ctx.state["last"] = text
        ctx.items.append(Message.user(text))
        inside.append(text)
        if len(inside) == 2:
            all_there.set()
        await all_there.wait()

    contexts = [Context(), Context()]
    async with Harness() as harness:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for place, ctx in enumerate(contexts):
                    group.start_soon(partial(harness.run, note, str(place), ctx=ctx))
    assert [ctx.state["last"] for ctx in contexts] == ["0", "1"]
    assert [texts(ctx.items) for ctx in contexts] == [["0"], ["1"]]


@pytest.mark.clause("000-02a", "000-02b")
def test_000_02_a_new_context_holds_nothing() -> None:
    ctx = Context()
    assert list(ctx.items) == []
    assert dict(ctx.state.view()) == {}
    assert ctx.turns == 0
    assert ctx.request_id is None
    assert not ctx.span.get_span_context().is_valid


@pytest.mark.clause("000-03a")
def test_000_03_given_items_are_copied() -> None:
    given: list[Item] = [Message.user("a"), Message.assistant("b")]
    ctx = Context(items=given)
    given.append(Message.user("later"))
    assert texts(ctx.items) == ["a", "b"]
    ctx.items.append(Message.user("c"))
    assert texts(given) == ["a", "b", "later"]
    assert ctx.turns == 0
    assert len(ctx.state) == 0


@pytest.mark.clause("000-03b")
@pytest.mark.parametrize("start", [None, (), []])
def test_000_03_an_empty_start_is_an_empty_context(start: list[Item] | None) -> None:
    assert len(Context(items=start).items) == 0


@pytest.mark.clause("000-04a")
def test_000_04_a_message_is_added_at_the_end() -> None:
    ctx = Context(items=[Message.user("a")])
    last = Message.user("b")
    ctx.items.append(last)
    assert ctx.items[-1] is last
    assert texts(ctx.items) == ["a", "b"]


@pytest.mark.clause("000-04b")
@pytest.mark.parametrize("wrong", [None, "text", {"role": "user"}])
def test_000_04_what_is_no_item_is_refused(wrong: Any) -> None:
    ctx = Context(items=[Message.user("a")])
    with pytest.raises(TypeError):
        ctx.items.append(wrong)
    assert texts(ctx.items) == ["a"]


def test_000_05_any_kind_of_item_is_added_in_order() -> None:
    added: list[Item] = [
        Message.developer("d"),
        Message.user("u"),
        FunctionCall(name="search", call_id="c1"),
        FunctionCallOutput(call_id="c1", output="o"),
        Reasoning(content=[OutputText(text="hm")]),
        Message.assistant("a"),
    ]
    ctx = Context()
    for item in added:
        ctx.items.append(item)
    assert all(mine is theirs for mine, theirs in zip(ctx.items, added, strict=True))


@pytest.mark.clause("000-06a")
async def test_000_06_a_tools_result_is_an_item_of_the_same_log() -> None:
    ctx = Context()
    model = ScriptedModel(FunctionCall(name="search", arguments={"query": "tides"}, call_id="c1"), "At noon.")
    async with Harness(plugins=[], model=model) as harness:
        await harness.run(loop(call_model(tools=[search]), until=until.no_tool_calls()), "u", ctx=ctx)
    assert [item.type for item in ctx.items] == ["message", "function_call", "function_call_output", "message"]
    result = ctx.items[2]
    assert isinstance(result, FunctionCallOutput)
    assert (result.call_id, result.output) == ("c1", "found tides")


@pytest.mark.clause("000-06b")
def test_000_06_an_output_without_an_open_call_is_refused() -> None:
    ctx = Context(items=[Message.user("u")])
    with pytest.raises(UnpairedOutput):
        ctx.items.append(FunctionCallOutput(call_id="nobody's", output="found"))
    assert len(ctx.items) == 1


@pytest.mark.clause("000-07a", "000-07b")
def test_000_07_the_history_is_read_live_and_not_written() -> None:
    ctx = Context(items=[Message.user("a")])
    items = ctx.items
    ctx.items.append(Message.user("b"))
    assert texts(items) == ["a", "b"]
    writable: Any = items
    with pytest.raises(TypeError):
        writable[0] = Message.user("x")
    with pytest.raises(TypeError):
        del writable[0]
    with pytest.raises(AttributeError):
        writable.clear()
    with pytest.raises(AttributeError):
        Context.__setattr__(ctx, "items", [])
    assert not isinstance(items, MutableSequence)
    assert texts(ctx.items) == ["a", "b"]


@pytest.mark.clause("000-08a", "000-08b")
def test_000_08_a_snapshot_is_a_list_of_its_own() -> None:
    ctx = Context(items=[Message.user("a")])
    taken = ctx.items.snapshot()
    taken.append(Message.user("mine"))
    taken[0] = Message.user("changed")
    assert texts(ctx.items) == ["a"]
    ctx.items.append(Message.user("b"))
    assert texts(taken) == ["changed", "mine"]


@pytest.mark.clause("000-18a", "000-18b")
def test_000_18_items_are_counted() -> None:
    ctx = Context()
    assert len(ctx.items) == 0
    assert not ctx.items
    ctx.items.extend(
        [Message.user("a"), FunctionCall(name="f", call_id="c"), FunctionCallOutput(call_id="c", output="")]
    )
    assert len(ctx.items) == 3
    assert ctx.items


def picture(*more: InputText) -> Message:
    return Message.user([InputImage(url="https://example.com/a.png"), *more])


@pytest.mark.clause("000-19a")
def test_000_19_the_last_user_text_skips_messages_without_text() -> None:
    ctx = Context(items=[Message.user("old"), Message.user("new"), picture(), Message.assistant("answer")])
    assert ctx.items.last_text("user") == "new"
    ctx.items.append(picture(InputText(text="first"), InputText(text="second")))
    assert ctx.items.last_text("user") == "first"


@pytest.mark.clause("000-19b")
@pytest.mark.parametrize("items", [[], [Message.assistant("a"), Message.developer("d")], [picture()]])
def test_000_19_there_may_be_no_user_text(items: list[Item]) -> None:
    assert Context(items=items).items.last_text("user") is None


@pytest.mark.clause("000-20a")
def test_000_20_the_fallback_is_for_no_text_at_all() -> None:
    nothing = Context(items=[picture(), Message.assistant("a")])
    assert nothing.items.last_text("user", default="fallback") == "fallback"
    found = Context(items=[Message.user("older")])
    assert found.items.last_text("user", default="fallback") == "older"


@pytest.mark.clause("000-20b")
def test_000_20_an_empty_text_is_a_text() -> None:
    ctx = Context(items=[Message.user("older"), Message.user("")])
    assert ctx.items.last_text("user", default="fallback") == ""


@pytest.mark.clause("000-14a")
async def test_000_14_a_turn_is_one_model_call() -> None:
    seen: list[int] = []

    @step
    async def look(_: object, ctx: Context) -> None:
        seen.append(ctx.turns)
        ctx.items.append(Message.user("a message is no turn"))
        seen.append(ctx.turns)

    model = ScriptedModel(
        [FunctionCall(name="search", arguments={"query": "x"}), FunctionCall(name="search", arguments={"query": "y"})],
        "done",
    )
    agent = loop(call_model(tools=(search,)), until=until.no_tool_calls())
    async with Harness(model=model) as harness:
        await harness.run(look >> agent >> look, "x")
    assert len(model.requests) == 2
    assert seen == [0, 0, 2, 2]


@pytest.mark.clause("000-14b")
async def test_000_14_only_the_engine_counts() -> None:
    @step
    async def count(_: str, ctx: Context) -> None:
        with pytest.raises(AttributeError):
            Context.__setattr__(ctx, "turns", 7)

    async with Harness() as harness:
        await harness.run(count, "x")
    with pytest.raises(AttributeError):
        Context.__setattr__(Context(), "turns", 7)


@pytest.mark.clause("000-34a")
async def test_000_34_a_text_is_added_as_the_users_message_before_the_run() -> None:
    ctx = Context(items=[Message.developer("be brief")])
    model = ScriptedModel("answer")
    async with Harness(model=model) as harness:
        await harness.run(call_model(), "question", ctx=ctx)
    [request] = model.requests
    last = request.items[-1]
    assert isinstance(last, Message)
    assert (last.role, last.text) == ("user", "question")
    assert [(item.role, item.text) for item in ctx.items.view(Message)] == [
        ("developer", "be brief"),
        ("user", "question"),
        ("assistant", "answer"),
    ]


@pytest.mark.clause("000-34b")
@pytest.mark.parametrize(
    "given", [Message.user("q"), [Message.user("p"), Message.user("q")]], ids=["a message", "items"]
)
async def test_000_34_items_are_added_as_they_are(given: Any) -> None:
    ctx = Context()
    async with Harness(model=ScriptedModel("answer")) as harness:
        await harness.run(call_model(), given, ctx=ctx)
    added = [given] if isinstance(given, Message) else given
    assert texts(ctx.items) == [*texts(added), "answer"]


@pytest.mark.clause("000-34c")
async def test_000_34_a_failure_raises_or_is_a_result() -> None:
    @step
    async def breaks(text: str) -> str:
        raise ValueError(text)

    async with Harness() as harness:
        with pytest.raises(StepFailed):
            await harness.run(breaks, "no", ctx=Context())
        result = await harness.run(breaks, "no", ctx=Context(), on_error="result")
    assert result.status == "failed"
    assert isinstance(result.error, StepFailed)


@pytest.mark.clause("000-34d")
@pytest.mark.parametrize("durable", [False, True])
async def test_000_34_what_the_user_said_stays_when_the_model_fails(durable: bool) -> None:
    ctx = Context()
    model = ScriptedModel(ModelUnavailable("down", model="m"), "At noon.")
    async with Harness(plugins=[], model=model, checkpoints=InMemoryBackend() if durable else None) as harness:
        result = await harness.run(call_model(), "hello", ctx=ctx, on_error="result")
        assert (result.status, texts(result.items), texts(ctx.items)) == ("failed", ["hello"], ["hello"])
        # Said again it is the same message, and is there once.
        await harness.run(call_model(), "hello", ctx=ctx)
    assert texts(ctx.items) == ["hello", "At noon."]


@step
async def same(x: str) -> str:
    return x


@step
async def fails(x: str) -> str:
    raise LookupError(x)


def race_of(kind: str, model: ScriptedModel) -> Step[str, object]:
    """A flow that begins with a race of models."""
    a, b, c = (call_model(model, id=each) for each in "abc")
    match kind:
        case "in a sequence":
            return race([a, b]) >> same
        case "in a loop":
            return loop(race([a, b]), until=until.max_rounds(1))
        case "in another one":
            return race([race([a, b]), c])
        case "with code":
            return race([fails, a >> same])
        case "made while running":
            return race(lambda text, _: [a, b] if text else [c])
        case "made while running, in another one":
            return race([race(lambda _, ctx: [a, b]), c])
        case _:
            return race([a, b])


RACES = (
    "alone", "in a sequence", "in a loop", "in another one", "with code", "made while running",
    "made while running, in another one",
)  # fmt: skip


@pytest.mark.clause("000-34d")
@pytest.mark.parametrize("store", [None, "memory:", "sqlite:"])
@pytest.mark.parametrize("kind", RACES)
async def test_000_34_what_the_user_said_stays_when_every_path_of_a_race_fails(
    kind: str, store: str | None, tmp_path: Path
) -> None:
    works: list[bool] = []
    down = ModelUnavailable("down", model="m")

    def answer(request: ModelRequest) -> str | ModelUnavailable:
        return "At noon." if works else down

    model = ScriptedModel(*[answer] * 12)
    flow, ctx = race_of(kind, model), Context()
    async with Harness(plugins=[], checkpoints=f"sqlite:{tmp_path}/r.db" if store == "sqlite:" else store) as harness:
        session = harness.session("ada", "s")
        result = await harness.run(flow, "hello", ctx=ctx, on_error="result")
        assert (result.status, texts(result.items), texts(ctx.items)) == ("failed", ["hello"], ["hello"])
        result = await session.run(flow, "hello", on_error="result")
        assert (result.status, texts(result.items), texts(await session.items())) == ("failed", ["hello"], ["hello"])
        # Said again it is the same message, and is there once.
        works.append(True)
        await harness.run(flow, "hello", ctx=ctx)
        await session.run(flow, "hello")
        assert texts(ctx.items) == texts(await session.items()) == ["hello", "At noon."]


def code(_: str, __: Context) -> list[Step[str, str]]:
    return [fails]


async def test_000_34_paths_that_keep_their_conversations_leave_nothing() -> None:
    down = ModelUnavailable("down", model="m")
    a, b = call_model(ScriptedModel(down), id="a"), call_model(ScriptedModel(down), id="b")
    async with Harness(plugins=[]) as harness:
        results = [
            await harness.run(parallel(a, b), "hello", on_error="result"),
            await harness.run(parallel([a, b]), "hello", on_error="result"),
            await harness.run(race([fails]), "hello", on_error="result"),
            await harness.run(race(code), "hello", on_error="result"),
        ]
    for result in results:
        assert (result.status, texts(result.items)) == ("failed", [])


def everything() -> ItemView:
    return Context(
        items=[
            Message.user("u1"),
            FunctionCall(name="search", call_id="c1"),
            FunctionCallOutput(call_id="c1", output="o1"),
            Message.assistant("a1"),
            Message.user("u2"),
            FunctionCall(name="search", call_id="c2"),
            FunctionCallOutput(call_id="c2", output="o2"),
            Message.assistant("a2"),
        ]
    ).items


@pytest.mark.clause("000-36a")
def test_000_36_items_by_type_and_role_in_their_order() -> None:
    items = everything()
    assert texts(items.view(Message)) == ["u1", "a1", "u2", "a2"]
    assert texts(items.view(Message, role="user")) == ["u1", "u2"]
    assert texts(items.view(role="assistant")) == ["a1", "a2"]
    assert [call.call_id for call in items.view(FunctionCall)] == ["c1", "c2"]
    assert [output.output for output in items.view(FunctionCallOutput)] == ["o1", "o2"]
    assert list(items.view(Opaque)) == []
    assert list(items.view(FunctionCall, role="user")) == []


@pytest.mark.clause("000-36b")
def test_000_36_the_last_one_of_a_kind() -> None:
    items = everything()
    last = items.last(Message, role="user")
    assert last is not None
    assert last.text == "u2"
    call = items.last(FunctionCall)
    assert call is not None
    assert call.call_id == "c2"
    assert items.last() is items[-1]
    assert items.last(role="system") is None
    assert items.last(Reasoning) is None
