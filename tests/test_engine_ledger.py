"""What is written of attempts that asked for the end themselves, or whose child was refused before it began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import anyio
import pytest
from attrs import field, frozen, make_class

from noetic_py import (
    Ask,
    Budget,
    Channel,
    Context,
    Handoff,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Message,
    ModelRequest,
    Retry,
    StateBag,
    Step,
    TokenUsage,
    call_model,
    call_tool,
    loop,
    parallel,
    race,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core.control import Control
from noetic_py.core.events import ItemsAppended, ModelStarted, StepDiscarded
from noetic_py.engine.journaling.fold import BEGUN
from noetic_py.errors import BudgetExceeded, CodecError, ConfigError, ModelUnavailable, StepFailed
from noetic_py.journal.records import Decision, JournalRecord, StepFinished, stored_name
from noetic_py.journal.values import SameAsChild
from noetic_py.memory import function
from noetic_py.testing import ScriptedModel, assert_resumable_everywhere

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
            assert again.state == result.state


@step(version="1")
async def notes_and_asks(value: str, ctx: Ctx) -> str:
    ctx.state["begun"] = value
    return await call_model()(value, ctx)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("flow", [call_model(), notes_and_asks])
@pytest.mark.parametrize("error", [ModelUnavailable, ConfigError])
async def test_a_question_without_an_answer_stays_although_nothing_was_written_before_it(
    error: type[Exception], flow: Any, kept: bool
) -> None:
    """The model does not answer, or there is none."""
    answers = [ModelUnavailable("down", model="m") for _ in range(2)]
    model = ScriptedModel(*answers) if error is ModelUnavailable else None
    async with Harness(plugins=[], model=model, checkpoints=InMemoryBackend() if kept else None) as harness:
        result: Any = await harness.run(flow, "tides", on_error="result")
    assert isinstance(result.error, error)
    assert ([item.text for item in result.items], dict(result.state)) == (["tides"], {})


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
        told += [f"= {record.output.name}"] if isinstance(record.output, SameAsChild) else []
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


def making(made: Callable[[], Step[Any, Any, Any, Any]]) -> Step[Any, Any, Any, Any]:
    """A body that makes a flow, which the flow around it does not declare."""

    @step(id="body", version="1")
    async def body(text: str, ctx: Ctx) -> str:
        found = await made()(text, ctx)
        return found.text if isinstance(found, Note) else f"{found}!"

    return body


@tool
async def listed(text: str) -> list[str]:
    """What is said, in a list."""
    return [text]


@step(version="1")
async def passes_on(text: str, ctx: Ctx) -> str:
    return await race([say], id="race")(text, ctx)


@step(version="1")
async def cuts(text: str, ctx: Ctx) -> str:
    """A body that cuts a sequence off, and goes on."""
    with anyio.CancelScope() as scope:

        @step(id="cut", version="1")
        async def cut(text: str) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        await sequence(say, cut, id="row")(text, ctx)
    return text


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
            "StepFinished flow = say",
        ],
    ),
    "outputs of children": (
        sequence(parallel([passes_on], id="both"), id="flow"),
        [
            "StepOpened flow",
            "StepOpened flow/both",
            "StepOpened flow/both/passes_on[0]",
            "StepOpened flow/both/passes_on[0]/race",
            "StepFinished flow/both/passes_on[0]/race/say[0] go",
            "StepFinished flow/both/passes_on[0]/race winner=0 = say[0]",
            "StepFinished flow/both/passes_on[0] = race",
            "StepFinished flow/both",
            "StepFinished flow = both",
        ],
    ),
    "an output of a tool": (
        sequence(call_tool(listed, args={"text": "go"}), id="flow"),
        ["StepOpened flow", "StepFinished flow/listed tool=listed", "StepFinished flow = listed"],
    ),
    "steps that are cut off": (
        cuts,
        [
            "StepOpened cuts",
            "StepOpened cuts/row",
            "StepFinished cuts/row/say go",
            "StepStopped cuts/row/cut",
            "StepFinished cuts",
        ],
    ),
    "a race": (
        race([say], id="flow"),
        ["StepOpened flow", "StepFinished flow/say[0] go", "StepFinished flow winner=0 = say[0]"],
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
            "StepFinished flow = take#1",
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


# ------------------------------------------------------------------------------------------ the same in every process


class Said(MemoryLayer[list[str]]):
    """A layer that keeps texts."""

    @function
    async def add(self, text: str) -> None:
        """Keep a text."""
        self.state = [*self.state, text]

    @function
    async def spoil(self) -> None:
        """Keep what cannot be stored."""
        unstored: Any = Unstored()
        self.state = [unstored]

    @function
    async def pass_off(self) -> None:
        """Keep what can be stored, and is not what the layer declares."""
        other: Any = Note("no text")
        self.state = [other]


class Mem(Memory):
    said: Said = Said()


@frozen
class Note:
    """What only steps declare that a body makes."""

    text: str


@step(version="1")
async def note(text: str) -> Note:
    return Note(text)


@step(version="1")
async def read(note: Note) -> str:
    return note.text


@step(version="1", handoffs=[read])
async def forward(text: str) -> str | Handoff[str]:
    return Handoff(read, Note(text))


@step(version="1")
async def quiet(text: str) -> str:
    return text


@step(version="1")
async def words(text: str) -> list[str]:
    return [text]


@step(version="1")
async def extends(text: str, ctx: Ctx) -> list[str]:
    """A body that changes what its child gave."""
    found = await words(text, ctx)
    found.append("more")
    return found


@step(version="1", retry=Retry(2, initial=0), budget=Budget(steps=1))
async def tries_again(text: str, ctx: Ctx) -> str:
    """A body with a budget that its own attempts are no part of."""
    frame: Any = ctx
    if frame.attempt == 1:
        raise ValueError(text)
    return await say(text, ctx)


@step(version="1")
async def shares(text: str, ctx: Ctx) -> str:
    ctx.state["one"] = ctx.state["other"] = [text]
    return text


@step(version="1")
async def adds(text: str, ctx: Ctx) -> list[Any]:
    """One of two fields that were one value."""
    ctx.state["one"].append("more")
    return [ctx.state["one"], ctx.state["other"]]


HELD: list[list[str]] = []


@step(version="1")
async def holds(text: str) -> list[str]:
    """A body that still has what it gives."""
    HELD.append([text])
    return HELD[-1]


@step(version="1")
async def asks_holder(text: str, ctx: Ctx) -> list[str]:
    found = await holds(text, ctx)
    HELD[-1].append("more")
    return [*found]


def cutting(inner: Callable[[str, Any, Callable[[], None]], Any], after: Any = None) -> Step[Any, Any, Any, Any]:
    """A body that cuts another one off, and what it sees then."""

    @step(id="outer", version="1", retry=Retry(2, initial=0))
    async def outer(text: str, ctx: Context[Mem, StateBag]) -> list[Any]:
        @step(id="inner", version="1", retry=Retry(2, initial=0))
        async def body(text: str, ctx: Context[Mem, StateBag]) -> str:
            await inner(text, ctx, scope.cancel)
            await anyio.sleep_forever()
            return text

        with anyio.CancelScope() as scope:
            await body(text, ctx)
        if after is not None:
            return [await after(text, ctx)]
        said = [item.text for item in ctx.items if isinstance(item, Message)]
        return [said, ctx.memory.said.state]

    return outer


async def says_and_calls(text: str, ctx: Context[Mem, StateBag], end: Callable[[], None]) -> None:
    ctx.items.append(Message.assistant("written"))
    await quiet(text, ctx)
    ctx.items.append(Message.assistant("unwritten"))
    end()


async def adds_and_calls(text: str, ctx: Context[Mem, StateBag], end: Callable[[], None]) -> None:
    await ctx.memory.said.add("written")
    await quiet(text, ctx)
    await ctx.memory.said.add("unwritten")
    end()


async def takes_below(text: str, ctx: Context[Mem, StateBag], end: Callable[[], None]) -> None:
    await take(text, ctx)
    end()


@step(version="1", retry=Retry(2, initial=0))
async def takes_again(text: str, ctx: Ctx) -> str:
    frame: Any = ctx
    taken = await ctx.recv(ORDERS)
    if frame.attempt == 1:
        raise ValueError(text)
    return taken


ALIKE: dict[str, tuple[Step[Any, Any, Any, Any], Any]] = {
    "an output that only a path of a race declares": (making(lambda: race([note], id="row")), "go"),
    "an output that only a step of a sequence declares": (making(lambda: sequence(quiet, note, id="row")), "go"),
    "an output that only a round declares": (making(lambda: loop(note, until=until.max_rounds(1), id="row")), "go"),
    "an input that only the target of a handoff declares": (making(lambda: forward), "go!"),
    "an output of a child that the body has changed": (extends, ["go", "more"]),
    "an output that its step has changed since": (asks_holder, ["go"]),
    "a budget behind a failed attempt": (sequence(tries_again, quiet, id="flow"), "go"),
    "one value in two fields of the state": (sequence(shares, adds, id="flow"), [["go", "more"], ["go"]]),
    "items of a body that was cut off": (cutting(says_and_calls), [["written"], []]),
    "memory of a body that was cut off": (cutting(adds_and_calls), [[], ["written"]]),
    "a message taken below a body that was cut off": (sequence(send, cutting(takes_below, take), id="flow"), ["go!"]),
    "a message taken by a failed attempt": (sequence(send, takes_again, take, id="flow"), "go!"),
}


def remembering(backend: CheckpointBackend | None) -> Harness[Mem]:
    return Harness(plugins=[], memory=Mem(), checkpoints=backend)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", ALIKE)
async def test_a_run_comes_out_the_same_stored_or_not(name: str, kept: bool) -> None:
    flow, expected = ALIKE[name]
    async with remembering(InMemoryBackend() if kept else None) as harness:
        assert (await harness.run(flow, "go")).value == expected


@pytest.mark.parametrize("name", ALIKE)
async def test_a_run_comes_out_the_same_wherever_its_process_dies(name: str) -> None:
    flow, _ = ALIKE[name]
    await assert_resumable_everywhere(lambda: flow, "go", make=remembering)


# --------------------------------------------------------------------------------------------------- what others see


async def test_a_question_is_seen_before_its_answer_and_a_step_that_is_cut_off_for_the_last_time() -> None:
    @step(version="1")
    async def asks(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.assistant("before"))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await forever(text, ctx)
        await flaky(text, ctx)
        return await call_model()(text, ctx)

    seen: list[str] = []
    async with (
        Harness(plugins=[], model=ScriptedModel("answer"), checkpoints=InMemoryBackend()) as harness,
        harness.stream(asks, "question") as stream,
    ):
        async for event in stream.events:
            if isinstance(event, ItemsAppended):
                seen += [item.text for item in event.items if isinstance(item, Message)]
            elif isinstance(event, StepDiscarded):
                seen.append(f"{event.path[-1]} {event.reason} {event.final}")
            elif isinstance(event, ModelStarted):
                seen.append("model")
    assert seen == [
        "forever stopped True", "flaky ValueError: question [at asks/flaky] False", "before", "unwritten",
        "question", "model", "answer",
    ]  # fmt: skip


async def test_an_answer_that_is_cut_off_leaves_its_question() -> None:
    scope = anyio.CancelScope()

    @step(version="1")
    async def asks(text: str, ctx: Ctx) -> list[str]:
        with scope:
            await call_model()(text, ctx)
        return [item.text for item in ctx.items if isinstance(item, Message)]

    async with (
        Harness(plugins=[], model=ScriptedModel("never", delay=1000), checkpoints=InMemoryBackend()) as harness,
        harness.stream(asks, "question") as stream,
    ):
        async for event in stream.events:
            if isinstance(event, ModelStarted):
                scope.cancel()
        assert (await stream.result()).value == ["question"]


@pytest.mark.parametrize("ends", ["finishes", "is cut off", "waits"])
async def test_messages_of_a_step_that_has_ended_are_kept_in_mind_no_longer(ends: str) -> None:
    """One that waits has taken nothing itself: another step gets its message."""
    scopes: list[anyio.CancelScope] = []
    over = anyio.Event()

    @step(version="1", retry=Retry(2, initial=0))
    async def takes(text: str, ctx: Ctx) -> None:
        await take(text, ctx)
        if ends == "is cut off":
            scopes[-1].cancel()
            await anyio.sleep_forever()
        if ends == "waits":
            await ctx.recv(ORDERS)
            try:
                await ctx.ask(Ask("Go on?", bool))
            finally:
                over.set()

    @step(version="1")
    async def ends_it(text: str, ctx: Ctx) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await takes(text, ctx)
        over.set()

    seen: list[object] = []

    @step(version="1")
    async def looks(text: str, ctx: Ctx) -> None:
        await over.wait()
        frame: Any = ctx
        seen.extend([frame.x.run.unacknowledged, await ctx.recv(ORDERS)])

    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        await harness.run(sequence(send, parallel([ends_it, looks]), id="flow"), "tea", on_error="result")
    assert seen == [None, "tea!"]


class Unstored:
    """What cannot be stored."""


async def _to_state(ctx: Any) -> None:
    ctx.state["client"] = Unstored()


async def _to_layer(ctx: Any) -> None:
    await ctx.memory.said.spoil()


async def _other_to_layer(ctx: Any) -> None:
    await ctx.memory.said.pass_off()


async def _to_items(ctx: Any) -> None:
    ctx.items.append(Message.assistant("\ud83d\ude00"))


@pytest.mark.parametrize("put", [_to_state, _to_layer, _other_to_layer, _to_items])
async def test_what_cannot_be_stored_is_named_with_its_step_at_the_next_call(put: Any) -> None:
    @step(version="1")
    async def body(text: str, ctx: Ctx) -> str:
        await put(ctx)
        with pytest.raises(CodecError) as caught:
            await quiet(text, ctx)
        named.append(caught.value.path)
        return text

    named: list[object] = []
    async with Harness(plugins=[], memory=Mem(), checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(body, "go", on_error="result")
    assert isinstance(result.error, CodecError)
    assert [*named, result.error.path] == [("body",), ("body",)]


@frozen
class Local:
    """What no function of the flow declares."""


async def test_a_decision_that_could_not_be_read_again_fails_its_step() -> None:
    def prepare(output: str, verdict: Any, ctx: Any) -> Any:
        return Local()

    flow = loop(quiet, until=until.max_rounds(2), prepare_next=prepare, id="flow")
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        with pytest.raises(CodecError, match="Local") as caught:
            await harness.run(flow, "go")
    assert caught.value.path == ("flow",)


async def test_an_output_that_cannot_be_read_is_explained_by_the_class_that_the_flow_declares() -> None:
    def flow(version: int) -> Step[Any, Any, Any, Any]:
        fields = {f"field{version}": field(type=int)}
        made: Any = make_class("Row", fields, frozen=True)

        async def loose(text: str) -> object:
            return made(1)

        async def typed(row: object) -> None:
            await anyio.sleep_forever()

        loose.__annotations__ = {"text": str, "return": object}
        typed.__annotations__ = {"row": made, "return": None}
        return sequence(step(id="loose", version="1")(loose), step(id="typed", version="1")(typed), id="flow")

    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        await harness.run(flow(1), "go", run_id="r", budget=Budget(steps=1), on_error="result")
    async with Harness(plugins=[], checkpoints=backend) as harness:
        with pytest.raises(CodecError, match="field2"):
            await harness.resume("r", flow(2))


async def test_a_failed_step_says_nothing_about_one_that_may_run_only_once() -> None:
    """In the next attempt of the body around them it has the same place."""

    @step(id="pay", version="1")
    async def fails(text: str) -> str:
        raise OSError("not now")

    @step(id="pay", version="1", replay="once")
    async def once(text: str) -> str:
        return f"paid {text}"

    @step(version="1", retry=Retry(2, initial=0))
    async def body(text: str, ctx: Ctx) -> str:
        frame: Any = ctx
        return await (fails if frame.attempt == 1 else once)(text, ctx)

    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        assert (await harness.run(body, "tea")).value == "paid tea"


async def test_what_is_stored_of_an_output_that_stands_elsewhere_and_of_what_a_call_has_cost() -> None:
    both = sequence(parallel([words, words], id="both"), id="row")
    model = ScriptedModel("answer", usage=TokenUsage(7, 3), cost="0.5")
    async with Harness(plugins=[], model=model, checkpoints=InMemoryBackend()) as harness:
        await harness.run(sequence(call_model(id="ask"), both, id="flow"), "go", run_id="r")
        journal = await harness.runs.journal("r")
    stored: dict[str, Any] = {each.path[-1]: each for each in journal if isinstance(each, StepFinished)}
    assert {name: getattr(each.output, "name", None) for name, each in stored.items() if "[" not in name} == {
        "answer": None, "ask": None, "both": None, "row": "both", "flow": "row"
    }  # fmt: skip
    assert [(name, each.usage, each.cost) for name, each in stored.items() if each.usage or each.cost] == [
        ("answer", TokenUsage(7, 3), Decimal("0.5"))
    ]


async def left_by(inner: Step[str, str, Memory, StateBag], scopes: list[anyio.CancelScope]) -> object:
    """What the state says after a body that was cut off, which finds its scope in the list."""

    @step(version="1")
    async def outer(text: str, ctx: Ctx) -> object:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await inner(text, ctx)
        return ctx.state["n"]

    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        return (await harness.run(outer, "go")).value


async def test_what_a_body_does_to_the_state_after_a_checkpoint_goes_when_it_is_cut_off() -> None:
    scopes: list[anyio.CancelScope] = []

    @step(version="1")
    async def inner(text: str, ctx: Ctx) -> str:
        state = ctx.state
        state["n"] = 1
        await ctx.checkpoint()
        state["n"] = 2
        scopes[-1].cancel()
        await anyio.sleep_forever()
        return text

    assert await left_by(inner, scopes) == 1


async def test_what_a_body_does_to_the_state_after_a_failed_call_goes_when_it_is_cut_off() -> None:
    scopes: list[anyio.CancelScope] = []

    @step(version="1")
    async def breaks(text: str) -> str:
        raise ValueError(text)

    # What finishes in it writes what the body has done before.
    broken = sequence(quiet, breaks, id="broken")

    @step(version="1")
    async def inner(text: str, ctx: Ctx) -> str:
        ctx.state["n"] = 1
        with pytest.raises(StepFailed):
            await broken(text, ctx)
        ctx.state["n"] = 2
        scopes[-1].cancel()
        await anyio.sleep_forever()
        return text

    assert await left_by(inner, scopes) == 1


async def test_an_answer_that_a_shutdown_cuts_off_is_written_behind_its_question_and_what_was_done_before() -> None:
    class Hanging(ScriptedModel):
        """A model that says when it is asked, and does not answer."""

        def __init__(self) -> None:
            super().__init__("never", delay=1000)
            self.asked = anyio.Event()

        def respond(self, request: ModelRequest) -> Any:
            self.asked.set()
            return super().respond(request)

    @step(version="1")
    async def asks(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.developer("before"))
        ctx.state["noted"] = text
        return await call_model()(text, ctx)

    model = Hanging()
    async with Harness(plugins=[], model=model, checkpoints=InMemoryBackend()) as harness:
        handle = harness.start(sequence(asks, id="flow"), "question", run_id="r")
        await model.asked.wait()
        await harness.shutdown(timeout=0.001)
        result = await handle.result()
        written = lines(await harness.runs.journal("r"))
    assert [item.text for item in result.items if isinstance(item, Message)] == ["before", "question"]
    assert dict(result.state) == {"noted": "question"}
    assert written[1:-1] == [
        "StepOpened flow",
        "StepOpened flow/asks",
        "Segment flow/asks before +noted",
        "StepOpened flow/asks/call_model",
        "Segment flow/asks/call_model question",
        "StepStopped flow/asks/call_model/answer calls=1",
        "StepStopped flow/asks/call_model",
        "StepStopped flow/asks",
    ]


# ------------------------------------------------------------------------------------------ what counts as begun before


async def test_work_beside_the_path_that_wins_a_race_is_not_noted_as_another_paths() -> None:
    began, won = anyio.Event(), anyio.Event()

    @step(version="1")
    async def beside(text: str) -> str:
        began.set()
        await won.wait()
        return text

    @step(version="1")
    async def wins(text: str, ctx: Ctx) -> str:
        ctx.spawn_detached(beside, text)
        await began.wait()
        return text

    @step(version="1")
    async def after(text: str) -> str:
        won.set()
        return text

    paths: list[Step[str, str, Memory, StateBag]] = [wins, forever]
    flow = sequence(race(paths, id="race"), after, id="flow")
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        await harness.run(flow, "go", run_id="r")
        journal = await harness.runs.journal("r")
    noted = [(each.path, each.value) for each in journal if isinstance(each, Decision) and each.key == BEGUN]
    assert noted == [(("flow", "race"), [[["flow", "race", "forever[1]"], 1]])]


@pytest.mark.parametrize(("version", "steps"), [("1", 3), ("2", 5)])
async def test_what_stands_below_a_discarded_result_is_counted_once_more(version: str, steps: int) -> None:
    def flow(version: str) -> Step[Any, Any, Any, Any]:
        @step(version=version)
        async def body(text: str, ctx: Ctx) -> str:
            return await quiet(text, ctx)

        @step(version="1")
        async def asks(text: str, ctx: Ctx) -> str:
            return f"{text} {await ctx.ask(Ask('Go on?', bool))}"

        return sequence(body, asks, id="flow")

    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        assert (await harness.run(flow("1"), "go", run_id="r")).steps == 3
    async with Harness(plugins=[], checkpoints=backend) as harness:
        assert (await harness.resume("r", flow(version), on_diverge="adopt")).steps == steps


async def test_work_beside_a_step_that_has_failed_for_good_is_not_counted_once_more() -> None:
    """A later process begins it again, and comes after the failure to what an earlier one had begun."""

    def flow(*, resumed: bool) -> Step[Any, Any, Any, Any]:
        came, failed = anyio.Event(), anyio.Event()

        @step(version="1")
        async def beside(text: str, ctx: Ctx) -> str:
            if resumed:
                await failed.wait()
            with anyio.CancelScope() as scope:

                @step(id="cut", version="1")
                async def cut(text: str) -> None:
                    scope.cancel()
                    await anyio.sleep_forever()

                await cut(text, ctx)
            came.set()
            if not resumed:
                await anyio.sleep_forever()
            return text

        @step(version="1")
        async def starts(text: str, ctx: Ctx) -> None:
            ctx.spawn_detached(beside, text)
            if not resumed:
                await came.wait()
            await ctx.ask(Ask("Go on?", bool))
            raise ValueError(text)

        @step(version="1")
        async def body(text: str, ctx: Ctx) -> str:
            with pytest.raises(StepFailed):
                await starts(text, ctx)
            failed.set()
            await came.wait()
            return text

        return body

    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        first = await harness.run(flow(resumed=False), "go", run_id="r")
        assert (first.status, first.steps) == ("suspended", 4)
    async with Harness(plugins=[], checkpoints=backend) as harness:
        again = await harness.resume("r", flow(resumed=True), answers=[first.pending[0].answer(True)])
        assert (again.status, again.steps) == ("completed", 4)
