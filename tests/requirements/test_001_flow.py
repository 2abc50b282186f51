"""How loops stop, what the parts of a sequence hand on, and steps that are offered as tools."""

from __future__ import annotations

from typing import Any

import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Memory,
    MemoryLayer,
    Message,
    StateBag,
    Step,
    call_model,
    call_tool,
    loop,
    sequence,
    spawn,
    step,
    step_tool,
    until,
)
from noetic_py.core.events import LoopIteration
from noetic_py.errors import LoopLimit, NoContextError, NoOutput, StepFailed
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


@step
async def up(number: int) -> int:
    return number + 1


@step
async def shout(text: str) -> str:
    return text.upper()


# --------------------------------------------------------------------------------------------------------------- 001-26


def asking(ask: Any, *, question: object = "When?") -> tuple[Step[Any, Any], ScriptedModel]:
    model = ScriptedModel(FunctionCall(name=ask.name, arguments={"input": question}), "ok")
    return loop(call_model(model, tools=[ask]), until=until.no_tool_calls()), model


async def answer_of(ask: Any, **options: Any) -> object:
    """What a model is told of a call of the tool."""
    agent, model = asking(ask)
    async with Harness(plugins=[], **options) as harness:
        await harness.run(agent, "Go.")
    (output,) = [item for item in model.requests[1].items if isinstance(item, FunctionCallOutput)]
    return output.output


def expert(*turns: Any) -> Any:
    agent = loop(call_model(ScriptedModel(*turns), tools=[search]), until=until.no_tool_calls() | until.max_rounds(3))
    return step_tool(spawn(agent), name="expert", description="Ask the expert.")


search = step_tool(shout, name="search", description="Search.")


@pytest.mark.clause("001-26a")
async def test_001_26_a_step_that_is_a_tool_answers_with_its_final_text() -> None:
    looks = [Message.assistant("Let me look."), FunctionCall(name="search", arguments={"input": "x"})]
    assert await answer_of(expert(looks, "At noon.")) == "At noon."


@pytest.mark.clause("001-26b")
async def test_001_26_and_says_so_when_there_is_none() -> None:
    assert await answer_of(expert("")) == "'expert' has ended without an answer."

    @step
    async def nothing(question: str) -> None:
        """Gives nothing."""

    assert await answer_of(step_tool(nothing, name="quiet", description="Nothing.")) == (
        "'quiet' has ended without an answer."
    )
    # One that only calls tools until it may not go on.
    assert "no value" in str(await answer_of(expert(*[FunctionCall(name="search", arguments={"input": "x"})] * 3)))


@pytest.mark.clause("001-26d")
async def test_001_26_called_by_code_it_gives_the_steps_own_value() -> None:
    @step
    async def nothing(question: str) -> None:
        """Gives nothing."""

    quiet = step_tool(nothing, name="quiet", description="Nothing.")
    async with Harness(plugins=[]) as harness:
        assert (await harness.run(call_tool(quiet, args={"input": "x"}), None)).value is None
        assert (await harness.run(call_tool(search, args={"input": "x"}), None)).value == "X"


@pytest.mark.clause("001-26d")
async def test_001_26_outside_of_a_run_it_is_refused_by_name() -> None:
    call: Any = search
    with pytest.raises(NoContextError):
        await call("x")


@pytest.mark.clause("001-26c")
async def test_001_26_a_layer_may_answer_in_its_place() -> None:
    ran: list[str] = []

    @step
    async def costly(question: str) -> str:
        ran.append(question)
        return question

    class Steering(MemoryLayer[None]):
        async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
            return "The answer is known: noon." if call.name == "costly" else call

    class Mem(Memory):
        steering: Steering = Steering()

    ask = step_tool(costly, name="costly", description="Costly.")
    assert await answer_of(ask, memory=Mem()) == "The answer is known: noon."
    assert ran == []


# --------------------------------------------------------------------------------------------------------------- 001-43


@pytest.mark.clause("001-43a")
async def test_001_43_a_loop_stops_on_a_signal() -> None:
    rounds: list[int] = []
    verdicts: list[int] = []

    @step
    async def escalates(number: int, ctx: Ctx) -> int:
        rounds.append(number)
        if number == 2:
            # From as deep as it likes, within its execution.
            await inner(number, ctx)
        return number + 1

    @step
    async def inner(number: int, ctx: Ctx) -> None:
        ctx.stop_loop(9)

    def asked(snapshot: until.Snapshot[Any]) -> bool:
        verdicts.append(snapshot.output)
        return False

    async with Harness(plugins=[]) as harness:
        result = await harness.run(loop(escalates, until=until.custom(asked)) >> up, 0)
    # No other round follows, the condition is not asked, and the flow goes on behind the loop.
    assert (rounds, verdicts) == ([0, 1, 2], [1, 2])
    assert (result.status, result.value) == ("completed", 10)


@pytest.mark.clause("001-43a")
async def test_001_43_only_the_nearest_loop_stops() -> None:
    @step
    async def stops(number: int, ctx: Ctx) -> int:
        ctx.stop_loop()
        return number + 1

    inner = loop(stops, until=until.never())
    async with Harness(plugins=[]) as harness:
        assert (await harness.run(loop(inner, until=until.max_rounds(3)), 0)).value == 3


@pytest.mark.clause("001-43b")
async def test_001_43_a_loop_stops_on_its_condition() -> None:
    flow = loop(up, until=until.custom(lambda snapshot: snapshot.output >= 3))
    async with Harness(plugins=[]) as harness, harness.stream(flow, 0) as stream:
        rounds = [event async for event in stream.events if isinstance(event, LoopIteration)]
        result = await stream.result()
    assert (result.value, [event.stop for event in rounds]) == (3, [False, False, True])
    # It is asked with what the round gave, after each and not before the first.
    assert [event.iteration for event in rounds] == [0, 1, 2]


@pytest.mark.clause("001-43c")
async def test_001_43_a_limit_of_rounds_is_reported() -> None:
    flow = loop(up, until=until.never(), max_iterations=3)
    async with Harness(plugins=[]) as harness:
        with pytest.raises(LoopLimit) as caught:
            await harness.run(flow, 0)
        assert "3" in caught.value.message
        assert caught.value.path == ("loop",)
        result = await harness.run(flow, 0, on_error="result")
        assert result.status == "failed"
        assert isinstance(result.error, LoopLimit)
        # A limit that is meant is a condition, and ends the loop with its last value and the reason.
        meant = await harness.run(loop(up, until=until.max_rounds(3)), 0)
    assert (meant.status, meant.value) == ("completed", 3)
    assert "3" in (meant.reason or "")


@pytest.mark.clause("001-43e")
async def test_001_43_a_signal_can_end_the_round_at_once() -> None:
    ran: list[str] = []

    @step
    async def escalates(number: int, ctx: Ctx) -> int:
        ran.append(f"escalates {number}")
        if number == 1:
            ctx.stop_loop("enough", now=True)
        return number

    @step
    async def rest(number: int) -> int:
        ran.append(f"rest {number}")
        return number + 1

    async with Harness(plugins=[]) as harness:
        result: Any = await harness.run(loop(sequence(escalates, rest), until=until.never()), 0)
    assert (result.status, result.value, result.reason) == ("completed", "enough", "stop_loop")
    assert ran == ["escalates 0", "rest 0", "escalates 1"]


@pytest.mark.clause("001-43f")
async def test_001_43_a_limit_can_be_an_item_and_an_end() -> None:
    async with Harness(plugins=[]) as harness:
        result = await harness.run(loop(up, until=until.never(), max_iterations=3, at_limit="end") >> up, 0)
    assert (result.status, result.value) == ("completed", 4)
    [item] = result.items
    assert isinstance(item, Message)
    assert (item.role, item.text) == ("developer", "Stopped after 3 rounds, which is the limit.")


@pytest.mark.clause("001-43d")
async def test_001_43_every_loop_has_a_limit() -> None:
    ran: list[int] = []

    @step
    async def count(_: object) -> None:
        ran.append(1)

    async with Harness(plugins=[]) as harness:
        with pytest.raises(LoopLimit):
            await harness.run(loop(count, until=until.never()), None)
    assert len(ran) == 1000


# --------------------------------------------------------------------------------------------------------------- 001-44


@pytest.mark.clause("001-44a")
async def test_001_44_each_part_of_a_sequence_gets_the_output_of_the_one_before() -> None:
    first, second = ScriptedModel("draft"), ScriptedModel("final")
    async with Harness(plugins=[]) as harness:
        result = await harness.run(sequence(call_model(first), shout, call_model(second)), "topic")
    assert result.value == "final"
    assert [item.text for item in second.requests[0].items if isinstance(item, Message)] == ["topic", "draft", "DRAFT"]


@pytest.mark.clause("001-44b")
async def test_001_44_what_has_no_output_hands_on_none_and_an_agent_goes_on_from_the_log() -> None:
    @step
    async def note(text: str, ctx: Ctx) -> None:
        ctx.items.append(Message.user(f"Noted: {text}"))

    model = ScriptedModel("ok")
    async with Harness(plugins=[]) as harness:
        await harness.run(sequence(note, call_model(model)), "x")
    assert [item.text for item in model.requests[0].items if isinstance(item, Message)] == ["Noted: x"]


@pytest.mark.clause("001-44c")
async def test_001_44_the_last_text_can_be_handed_on_and_the_input_where_there_is_none() -> None:
    @step
    async def note(text: str) -> None:
        """Gives nothing."""

    async with Harness(plugins=[]) as harness:
        parts: list[Any] = [note, shout]
        said = await harness.run(sequence(call_model(ScriptedModel("draft")), *parts, hand_on="text"), "topic")
        unsaid = await harness.run(sequence(parts[0], *parts, hand_on="text"), "topic")
    assert (said.value, unsaid.value) == ("DRAFT", "TOPIC")


async def test_001_44_an_agent_that_says_nothing_is_an_error_and_no_silent_repetition() -> None:
    model = ScriptedModel(FunctionCall(name="search", arguments={"input": "x"}))
    async with Harness(plugins=[]) as harness:
        with pytest.raises(NoOutput):
            await harness.run(sequence(call_model(model, tools=[search]), shout), "x")


@pytest.mark.clause("001-44d")
async def test_001_44_a_sequence_ends_with_the_part_that_breaks() -> None:
    @step
    async def breaks(text: str) -> str:
        raise ValueError(text)

    async with Harness(plugins=[]) as harness:
        with pytest.raises(StepFailed) as caught:
            await harness.run(sequence(shout, breaks, shout, id="Root"), "x")
    assert caught.value.path == ("Root", "breaks")
