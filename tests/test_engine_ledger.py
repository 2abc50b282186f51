"""What is written of attempts that asked for the end themselves, or whose child was refused before it began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from noetic_py import (
    Ask,
    Budget,
    Channel,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    Retry,
    StateBag,
    Step,
    call_model,
    loop,
    race,
    sequence,
    step,
    until,
)
from noetic_py.core.control import Control
from noetic_py.errors import BudgetExceeded, ModelUnavailable
from noetic_py.journal.records import JournalRecord, StepFinished, stored_name
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
ORDERS = Channel("orders", str, mode="queue")


@step(version="1")
async def send(value: str, ctx: Ctx) -> str:
    """Two messages."""
    await ctx.send(ORDERS, value)
    await ctx.send(ORDERS, value + "!")
    return value


@pytest.mark.parametrize("kept", [True, False])
async def test_what_an_attempt_has_taken_before_it_asked_for_the_end_is_taken(kept: bool) -> None:
    @step(version="1")
    async def take(value: str, ctx: Ctx) -> str:
        taken = await ctx.recv(ORDERS)
        ctx.complete(taken)
        await anyio.sleep_forever()
        return "never"

    flow = sequence(send, take, id="flow")
    async with Harness(plugins=[], checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(flow, "tea", run_id="r")
        assert (result.status, result.value) == ("completed", "tea")
        if kept:
            again = await harness.resume("r", flow)
            assert (again.status, again.value) == ("completed", "tea")


@pytest.mark.parametrize("kept", [True, False])
async def test_a_take_below_what_may_be_tried_again_is_taken_by_who_asked_for_the_end(kept: bool) -> None:
    @step(version="1")
    async def take(value: str, ctx: Ctx) -> str:
        taken = await ctx.recv(ORDERS)
        ctx.complete(taken)
        await anyio.sleep_forever()
        return "never"

    flow = sequence(send, sequence(take, id="tried").with_options(retry=2), id="flow").with_options(retry=2)
    async with Harness(plugins=[], checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(flow, "tea", run_id="r")
        assert (result.status, result.value) == ("completed", "tea")
        if kept:
            again = await harness.resume("r", flow)
            assert (again.status, again.value) == ("completed", "tea")


async def test_what_a_once_step_has_tried_in_vain_is_no_outcome() -> None:
    tries: list[int] = []

    def flow() -> Step[int, int, Memory, StateBag]:
        @step(replay="once", retry=3, version="1")
        async def pay(x: int) -> int:
            tries.append(x)
            if len(tries) % 2:
                raise OSError("not now")
            return x + 1

        return sequence(pay, id="flow")

    result = await Harness(plugins=[], checkpoints=InMemoryBackend()).run(flow(), 1)
    assert (result.value, tries) == (2, [1, 1])


async def test_work_that_cannot_be_stored_is_not_kept_of_an_attempt_that_asked_for_the_end() -> None:
    @step(version="1")
    async def end(value: str, ctx: Ctx) -> str:
        ctx.state["client"] = object()
        ctx.complete(value)
        await anyio.sleep_forever()
        return "never"

    @step(version="1")
    async def begin(value: str, ctx: Ctx) -> str:
        ctx.state["seen"] = value
        return value

    flow = sequence(begin, end, id="flow")
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(flow, "tea", run_id="r")
        again = await harness.resume("r", flow)
    assert (result.status, result.value) == (again.status, again.value) == ("completed", "tea")
    assert again.state == StateBag({"seen": "tea"})


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("handled", [True, False])
async def test_a_question_without_an_answer_stays_and_what_a_body_around_it_has_begun_does_not(
    kept: bool, handled: bool
) -> None:
    """The items before the question are written with it; changes of the state are those of bodies that finish."""
    model = ScriptedModel(*(ModelUnavailable("down", model="m") for _ in range(2)))

    @step(version="1")
    async def child(value: str, ctx: Ctx) -> str:
        ctx.state["child"] = value
        return value

    @step(version="1")
    async def asks(value: str, ctx: Ctx) -> str:
        ctx.items.append(Message.developer("before"))
        ctx.state["before"] = value
        await child(value, ctx)
        ctx.items.append(Message.developer("between"))
        ctx.state["begun"] = value
        try:
            await call_model()(value, ctx)
        except ModelUnavailable:
            if not handled:
                raise
        return "handled"

    async with Harness(plugins=[], model=model, checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(asks, "tides", run_id="r", on_error="result")
        texts = [item.text for item in result.items if isinstance(item, Message)]
        if handled:
            assert (result.status, texts) == ("completed", ["before", "between"])
            assert dict(result.state) == {"before": "tides", "child": "tides", "begun": "tides"}
        else:
            assert (result.status, texts) == ("failed", ["before", "between", "tides"])
            assert dict(result.state) == {"before": "tides", "child": "tides"}
            if kept:
                again = await harness.resume("r", asks, on_error="result")
                assert [item.text for item in again.items if isinstance(item, Message)] == texts


async def test_what_a_body_said_before_a_child_that_was_refused_is_written() -> None:
    ran: list[str] = []

    @step(version="1")
    async def body(value: str, ctx: Ctx) -> str:
        ran.append(value)
        ctx.items.append(Message.user("before"))
        ctx.state["noted"] = 1
        with pytest.raises(BudgetExceeded):
            await send(value, ctx)
        ctx.items.append(Message.user("after"))
        return value

    @step(version="1")
    async def ask(value: str, ctx: Ctx) -> str:
        return f"{value} {await ctx.ask(Ask('Go on?', bool))}"

    flow = sequence(body, ask, id="flow")
    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        first = await harness.run(flow, "tea", run_id="r", budget=Budget(steps=1))
        assert [item.text for item in first.items if isinstance(item, Message)] == ["before", "after"]
    async with Harness(plugins=[], checkpoints=backend) as harness:
        again = await harness.resume("r", flow, budget=Budget(steps=5))
    assert (again.status, ran) == ("suspended", ["tea"])
    assert [item.text for item in again.items if isinstance(item, Message)] == ["before", "after"]
    assert again.state["noted"] == 1


# ---------------------------------------------------------------------------------------------- record by record


def lines(journal: Sequence[JournalRecord]) -> list[str]:
    """A journal as text: of each record what it is, where, and what it says that is not what records mostly say."""
    return [" ".join([stored_name(record), "/".join(record.path) or "-", *_told(record)]) for record in journal]


def _told(record: Any) -> list[str]:
    told = [item.text if isinstance(item, Message) else item.type for item in getattr(record, "items", ())]
    told += [f"+{change.key}" for change in getattr(record, "delta", ())]
    for name in (
        "attempt",
        "winner",
        "cut",
        "takes",
        "calls",
        "tool",
        "tool_error",
        "control",
        "held",
        "key",
        "before",
    ):
        value = getattr(record, name, None)
        if (value and (name, value) != ("attempt", 1)) or (name == "winner" and value is not None):
            told.append(f"{name}={value.kind if isinstance(value, Control) else value}")
    if isinstance(record, StepFinished):
        told += [f"loop {'/'.join(path)}" for path, _ in record.loop_stops]
    return told


@step(version="1")
async def say(text: str, ctx: Ctx) -> str:
    ctx.items.append(Message.assistant(text))
    return text


@step(version="1")
async def talk(text: str, ctx: Ctx) -> str:
    """A body with work of its own before, between and after its children."""
    ctx.items.append(Message.assistant("1"))
    ctx.state["n"] = 1
    await say("2", ctx)
    await say("3", ctx)
    ctx.items.append(Message.assistant("4"))
    await say("5", ctx)
    ctx.state["n"] = 2
    ctx.items.append(Message.assistant("6"))
    return text


@step(version="1")
async def chat(text: str, ctx: Ctx) -> str:
    """A body that leaves the state alone."""
    await say("1", ctx)
    ctx.items.append(Message.assistant("2"))
    await say("3", ctx)
    ctx.items.append(Message.assistant("4"))
    await say("5", ctx)
    return text


@step(version="1", retry=Retry(2, initial=0))
async def flaky(text: str, ctx: Ctx) -> str:
    frame: Any = ctx
    ctx.items.append(Message.assistant("unwritten"))
    if frame.attempt == 1:
        raise ValueError(text)
    return text


@step(version="1")
async def end_now(text: str, ctx: Ctx) -> str:
    ctx.items.append(Message.assistant("end"))
    ctx.stop_loop("ended", now=True)
    return text


@step(version="1")
async def finish(text: str, ctx: Ctx) -> str:
    ctx.items.append(Message.assistant("finish"))
    ctx.complete("finished")
    return text


@step(version="1")
async def forever(text: str) -> str:
    await anyio.sleep_forever()
    return text


@step(version="1")
async def take(text: str, ctx: Ctx) -> str:
    return await ctx.recv(ORDERS)


JOURNALS: dict[str, tuple[Step[Any, Any, Any, Any], list[str]]] = {
    "a body with children": (
        talk,
        [
            "StepOpened talk",
            "Segment talk 1 +n",
            "StepFinished talk/say 2",
            "StepFinished talk/say#1 3",
            "Segment talk 4",
            "StepFinished talk/say#2 5",
            "StepFinished talk 6 +n",
        ],
    ),
    "a body that leaves the state alone": (
        chat,
        [
            "StepOpened chat",
            "StepFinished chat/say 1",
            "Segment chat 2",
            "StepFinished chat/say#1 3",
            "Segment chat 4",
            "StepFinished chat/say#2 5",
            "StepFinished chat",
        ],
    ),
    "an attempt that failed": (
        sequence(flaky, say, id="flow"),
        [
            "StepFailed flow/flaky",
            "StepOpened flow",
            "StepFinished flow/flaky unwritten attempt=2",
            "StepFinished flow/say go",
            "StepFinished flow",
        ],
    ),
    "a race": (
        race([say], id="flow"),
        ["StepOpened flow", "StepFinished flow/say[0] go", "StepFinished flow winner=0"],
    ),
    "a loop that is cut": (
        loop(sequence(end_now, forever, id="row"), until=until.max_steps(3), id="flow"),
        [
            "StepOpened flow",
            "StepOpened flow/row[0]",
            "StepOpened flow/row[0]/end_now",
            "Segment flow/row[0]/end_now end",
            "StepFinished flow/row[0]/end_now cut=(('flow',),) loop flow",
            "StepFinished flow",
        ],
    ),
    "a body that completes the run": (
        sequence(finish, forever, id="flow"),
        [
            "StepOpened flow",
            "StepFinished flow/finish finish control=complete",
        ],
    ),
    "messages that are taken": (
        sequence(send, take, take, id="flow"),
        [
            "StepOpened flow",
            "StepOpened flow/send",
            "StepFinished flow/send/send",
            "StepFinished flow/send/send#1",
            "StepFinished flow/send",
            "StepFinished flow/take takes=(('flow', 'send', 'send'),)",
            "StepFinished flow/take#1 takes=(('flow', 'send', 'send#1'),)",
            "StepFinished flow",
        ],
    ),
}


@pytest.mark.parametrize("name", JOURNALS)
async def test_a_run_is_written_record_by_record(name: str) -> None:
    flow, expected = JOURNALS[name]
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(flow, "go", run_id="r")
        assert lines((await harness.runs.journal("r"))[1:-1]) == expected
        # And read back it is the same conversation.
        again = await harness.resume("r", flow)
        assert ([*again.items], again.state) == ([*result.items], result.state)


@pytest.mark.parametrize("kept", [True, False])
async def test_what_is_said_around_children_that_write_nothing_keeps_its_order(kept: bool) -> None:
    @step(version="1")
    async def body(text: str, ctx: Ctx) -> str:
        for number in ("1", "2", "3"):
            ctx.items.append(Message.assistant(number))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await forever(text, ctx)
        ctx.items.append(Message.assistant("4"))
        return text

    async with Harness(plugins=[], checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(sequence(body, say, id="flow"), "go", run_id="r")
        assert [item.text for item in result.items if isinstance(item, Message)] == ["1", "2", "3", "4", "go"]


@pytest.mark.parametrize("kept", [True, False])
async def test_what_a_step_that_is_cut_off_has_taken_comes_back(kept: bool) -> None:
    scopes: list[anyio.CancelScope] = []

    @step(version="1")
    async def cut(text: str, ctx: Ctx) -> str:
        await ctx.recv(ORDERS)
        scopes[-1].cancel()
        await anyio.sleep_forever()
        return text

    @step(version="1")
    async def body(text: str, ctx: Ctx) -> list[str]:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await cut(text, ctx)
        return [await take(text, ctx), await take(text, ctx)]

    async with Harness(plugins=[], checkpoints=InMemoryBackend() if kept else None) as harness:
        result = await harness.run(sequence(send, body, id="flow"), "tea", run_id="r")
        assert result.value == ["tea", "tea!"]
