"""`Facts`: what is known by key, with the words that say it and the time in which it holds."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    Step,
    TokenUsage,
    call_model,
    each,
    loop,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.core.control import AnyResult
from noetic_py.core.events import LayerFailed, LayerWarned
from noetic_py.errors import ConfigError, ModelUnavailable, NoContextError, ToolArgumentsInvalid
from noetic_py.memory import Fact, Facts, KnownFacts, Scope
from noetic_py.memory.layers.common import COUNTER
from noetic_py.models.model import ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel, VirtualRuntime, assert_resumable_everywhere
from tests.layer_runs import HOSTILE, is_sealed

pytestmark = pytest.mark.anyio

START = datetime(2025, 1, 1, tzinfo=UTC)
DAY = 86_400.0


def day(number: int) -> datetime:
    """A day after the start."""
    return START + timedelta(days=number)


def alone(now: int = 365, **settings: Any) -> Facts:
    """A layer in no run, on a day after the start."""
    return Facts(clock=VirtualRuntime(start=day(now)), **settings)


async def tell(layer: Facts, value: str, when: int = 0, *, about: str = "home", **more: Any) -> str:
    """Record that Ada said something on a day, in a document of that day."""
    text = f"{about} is {value}"
    return await layer.record_from(
        f"letter {when}", text, "Ada", about, value, text, said=day(when), origin="letters", **more
    )


def values(layer: Facts) -> list[str]:
    return [fact.value for fact in layer.known]


def bundle(layer: Facts) -> Memory:
    class Mem(Memory):
        facts: Facts = layer

    return Mem()


def extracted(*facts: tuple[Any, ...], **more: Any) -> str:
    """The answer of an extracting model: source, span, subject, attribute and value of each fact."""
    names = ("source", "span", "subject", "attribute", "value")
    return json.dumps({"value": [{**dict(zip(names, fact, strict=True)), **more} for fact in facts]})


def shown(request: ModelRequest) -> str:
    """What a model was shown of the layer."""
    texts = [item.text for item in request.items if isinstance(item, Message) and "<memory" in item.text]
    return "\n".join(texts)


def doing(act: Callable[[Facts], Awaitable[object]]) -> Step[Any, Any, Any, Any]:
    @step(id="doing", version="1")
    async def body(value: Any, ctx: Context[Any]) -> Any:
        return await act(ctx.memory["facts"])

    return body


class Meeting:
    """A place where so many wait for each other."""

    def __init__(self, count: int) -> None:
        self.missing = count
        self.full = anyio.Event()

    async def arrive(self) -> None:
        """Wait for the others."""
        self.missing -= 1
        if not self.missing:
            self.full.set()
        await self.full.wait()


# -- which value holds


async def test_a_new_value_takes_the_place_of_the_old_one_which_is_kept() -> None:
    layer = alone()
    await tell(layer, "Utrecht")
    assert await tell(layer, "Delft", 90) == (
        "- Ada / home: Delft (2025-04-01, letters)\n"
        "- Ada / home, outdated since 2025-04-01: Utrecht (2025-01-01, letters)"
    )
    delft, utrecht = layer.known
    assert (delft.value, delft.valid_from, delft.valid_until) == ("Delft", day(90), None)
    assert (utrecht.value, utrecht.valid_from, utrecht.valid_until) == ("Utrecht", START, day(90))
    assert (delft.superseded_by, utrecht.superseded_by) == ("", delft.id)
    assert (utrecht.source, utrecht.span, utrecht.said) == ("letter 0", "home is Utrecht", START)
    assert [utrecht.holds(day(at)) for at in (-1, 0, 89, 90)] == [False, True, True, False]
    assert not layer.contradictions


async def test_the_order_in_which_facts_arrive_does_not_matter() -> None:
    days = {"Utrecht": 0, "Delft": 30, "Gouda": 60, "Leiden": 90}
    one, other = alone(), alone()
    for value, when in days.items():
        await tell(one, value, when)
    for value, when in reversed(days.items()):
        await tell(other, value, when)
    assert one.known == other.known
    assert values(one) == ["Leiden", "Gouda", "Delft", "Utrecht"]
    assert [fact.superseded_by for fact in one.known] == ["", *(fact.id for fact in one.known[:-1])]


async def test_a_value_that_comes_back_holds_again() -> None:
    layer = alone()
    await tell(layer, "Utrecht")
    await tell(layer, "Delft", 30)
    assert await tell(layer, "Utrecht", 60) == (
        "- Ada / home: Utrecht (2025-03-02, letters)\n"
        "- Ada / home, outdated since 2025-03-02: Delft (2025-01-31, letters)"
    )
    assert not layer.contradictions


async def test_what_is_said_again_is_not_outdated() -> None:
    layer = alone()
    await tell(layer, "Delft")
    assert await tell(layer, "delft ", 30) == "- Ada / home: delft (2025-01-31, letters)"
    assert not layer.contradictions
    await tell(layer, "delft ", 30)
    assert len(layer.known) == 2


@pytest.mark.parametrize("subject", ["ADA", " ada ", "\uff21da"])
@pytest.mark.parametrize("attribute", ["home town", "Home_Town", "home-town", "HOME  TOWN"])
async def test_one_key_in_other_letters(subject: str, attribute: str) -> None:
    layer = alone()
    await layer.record_from("1", "Utrecht", "Ada", "home town", "Utrecht", "Utrecht", said=START)
    await layer.record_from("2", "Delft", subject, attribute, "Delft", "Delft", said=day(1))
    assert [fact.superseded_by == "" for fact in layer.known] == [True, False]
    assert len({fact.key for fact in layer.known}) == 1


async def test_values_that_differ_by_a_sign_are_two() -> None:
    layer = alone()
    await tell(layer, "C", about="grade")
    await tell(layer, "C-", 1, about="grade")
    assert [fact.superseded_by == "" for fact in layer.known] == [True, False]


async def test_other_keys_stay_as_they_are() -> None:
    layer = alone()
    await tell(layer, "Utrecht")
    await tell(layer, "Arup", 1, about="employer")
    await layer.record_from("x", "Bob lives in Bonn", "Bob", "home", "Bonn", "Bonn", said=day(2))
    assert all(fact.superseded_by == "" for fact in layer.known)


async def test_a_later_beginning_leaves_the_old_value_until_then() -> None:
    layer = alone(0)
    await tell(layer, "Utrecht")
    told = await tell(layer, "Delft", 0, valid_from=day(30))
    assert (
        told
        == "- Ada / home: Utrecht (2025-01-01, letters)\n- Ada / home, from 2025-01-31: Delft (2025-01-01, letters)"
    )
    clock = layer.clock
    assert isinstance(clock, VirtualRuntime)
    await clock.advance(31 * DAY)
    assert await layer.recall("", 500) == (
        "- Ada / home: Delft (2025-01-01, letters)\n"
        "- Ada / home, outdated since 2025-01-31: Utrecht (2025-01-01, letters)"
    )


async def test_an_end_that_was_said_comes() -> None:
    layer = alone(0)
    await tell(layer, "Paris", valid_until=day(10))
    assert await layer.recall("", 500) == "- Ada / home: Paris (2025-01-01, letters)"
    clock = layer.clock
    assert isinstance(clock, VirtualRuntime)
    await clock.advance(10 * DAY)
    assert await layer.recall("", 500) == "- Ada / home, outdated since 2025-01-11: Paris (2025-01-01, letters)"


async def test_what_was_over_before_it_was_said_changes_nothing_that_holds() -> None:
    layer = alone(1)
    await tell(layer, "Utrecht", valid_from=day(-400))
    await tell(layer, "Rome", 1, valid_until=day(-1_000))
    assert {fact.value: (fact.valid_from, fact.superseded_by) for fact in layer.known} == {
        "Utrecht": (day(-400), ""),
        "Rome": (None, ""),
    }
    assert not layer.contradictions
    assert (await layer.recall("", 500) or "").splitlines()[0] == "- Ada / home: Utrecht (2025-01-01, letters)"


async def test_times_without_a_zone_are_in_utc() -> None:
    layer = alone(0)
    east = datetime(2025, 1, 1, 3, tzinfo=UTC).astimezone()
    await layer.record_from("1", "a", "Ada", "home", "a", "a", said=START.replace(tzinfo=None), valid_until=east)
    (fact,) = layer.known
    assert (fact.said, fact.valid_until) == (START, START + timedelta(hours=3))
    assert fact.valid_until is not None
    assert fact.valid_until.tzinfo is UTC


# -- contradictions


async def test_two_values_at_one_time_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    layer = alone()
    with caplog.at_level(logging.WARNING, "noetic_py"):
        await tell(layer, "Utrecht")
        assert not caplog.records
        told = await tell(layer, "Delft", 0)
        await tell(layer, "Arup", 1, about="employer")
    assert len(caplog.records) == 1
    assert "facts contradict each other" in caplog.text
    assert "Ada / home" in caplog.text
    assert "Delft" not in caplog.text
    ((later, earlier),) = layer.contradictions
    assert {later.value, earlier.value} == {"Utrecht", "Delft"}
    assert earlier.superseded_by == later.id
    assert told.splitlines()[1] == f"- Ada / home, disputed: {earlier.value} (2025-01-01, letters)"
    assert len(layer.known) == 3
    # Said once more, it is settled.
    assert await tell(layer, "Delft", 5) == (
        "- Ada / home: Delft (2025-01-06, letters)\n"
        "- Ada / home, outdated since 2025-01-01: Utrecht (2025-01-01, letters)"
    )


async def test_overlapping_times_are_a_contradiction(caplog: pytest.LogCaptureFixture) -> None:
    layer = alone(1, outdated=0)
    await tell(layer, "Utrecht")
    assert await tell(layer, "Paris", 1, valid_until=day(30)) == (
        "- Ada / home: Paris (2025-01-02, letters)\n- Ada / home, disputed: Utrecht (2025-01-01, letters)"
    )
    assert [(one.value, other.value) for one, other in layer.contradictions] == [("Paris", "Utrecht")]
    assert "contradict" in caplog.text
    clock = layer.clock
    assert isinstance(clock, VirtualRuntime)
    await clock.advance(31 * DAY)
    assert await layer.recall("", 500) == "- Ada / home: Utrecht (2025-01-01, letters)"


async def test_a_claim_about_the_same_past_is_a_contradiction() -> None:
    layer = alone()
    await tell(layer, "Utrecht", valid_from=day(-100))
    await tell(layer, "Delft", 1, valid_from=day(-100))
    delft, utrecht = layer.known
    assert [(one.value, other.value) for one, other in layer.contradictions] == [("Delft", "Utrecht")]
    assert utrecht.superseded_by == delft.id
    assert not any(utrecht.holds(day(at)) for at in (-200, -100, 0, 2))


async def test_a_stated_end_that_a_later_fact_does_not_wait_for() -> None:
    layer = alone()
    await tell(layer, "Paris", valid_until=day(30))
    await tell(layer, "Delft", 10)
    _, paris = layer.known
    assert (paris.valid_until, paris.ends) == (day(10), day(30))
    assert [(one.value, other.value) for one, other in layer.contradictions] == [("Delft", "Paris")]


# -- what a fact needs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"span": "ada lives in Delft"}, "does not stand in the source 'letter'"),
        ({"span": "Ada lives in  Delft"}, "does not stand in"),
        ({"span": ""}, "does not stand in"),
        ({"span": " \n"}, "does not stand in"),
        ({"subject": " "}, "needs a subject, an attribute and a value"),
        ({"attribute": "-_"}, "needs a subject, an attribute and a value"),
        ({"value": "\n"}, "needs a subject, an attribute and a value"),
        ({"value": "x" * 501}, "a text of 501 characters is too long; expected 500 at most"),
        ({"text": "y" * 600, "span": "y" * 600}, "a text of 600 characters is too long"),
        ({"valid_from": day(2), "valid_until": day(1)}, "valid_until is not valid"),
    ],
)
async def test_a_fact_that_is_refused(changes: dict[str, Any], message: str) -> None:
    layer = alone()
    given: dict[str, Any] = {
        "source": "letter",
        "text": "Ada lives in Delft now.",
        "span": "Ada lives in Delft",
        "subject": "Ada",
        "attribute": "home",
        "value": "Delft",
        **changes,
    }
    with pytest.raises(ToolArgumentsInvalid) as caught:
        await layer.record_from(**given)
    assert message in str(caught.value)
    assert layer.state == KnownFacts()


async def test_record_needs_a_conversation() -> None:
    with pytest.raises(NoContextError):
        await Facts().record("Ada", "home", "Delft", "Delft")


@tool
async def directory(name: str) -> str:
    """Look a person up."""
    return f"{name}: phone 0611 223344"


def calls(*each_one: FunctionCall | str, tools: Sequence[Any] = ()) -> Step[Any, Any, Any, Any]:
    """A model that makes calls one after the other."""
    return loop(call_model(ScriptedModel(*each_one), tools=tools), until=until.no_tool_calls())


def record(attribute: str, value: str, span: str) -> FunctionCall:
    arguments = {"subject": "user", "attribute": attribute, "value": value, "span": span}
    return FunctionCall(name="facts__record", arguments=json.dumps(arguments))


async def outputs(flow: Step[Any, Any, Any, Any], text: str, **options: Any) -> list[str]:
    """What a model's calls give."""
    async with Harness(memory=bundle(Facts()), runtime=VirtualRuntime(), plugins=()) as harness:
        result = await harness.run(flow, text, **options)
    return [item.text for item in result.items if isinstance(item, FunctionCallOutput)]


async def test_the_model_records_what_the_user_says_word_for_word() -> None:
    flow = calls(record("home", "Delft", "live in Delft"), record("home", "Delft", "lives in Delft"), "Noted.")
    first, second = await outputs(flow, "We live in Delft now.", thread_id="trip")
    assert first == "- user / home: Delft (user, 2025-01-01, trip)"
    assert "does not stand in what the user or a tool has said" in second


async def test_a_tools_output_is_a_source_and_is_named() -> None:
    look = FunctionCall(name="directory", arguments='{"name": "Ada"}')
    flow = calls(look, record("phone", "0611 223344", "phone 0611 223344"), "Noted.", tools=[directory])
    assert (await outputs(flow, "What is my number?", thread_id="t"))[1] == (
        "- user / phone: 0611 223344 (directory, 2025-01-01, t)"
    )


async def test_the_models_own_words_are_no_source() -> None:
    history = [Message.user("Where do I live?"), Message.assistant("You live in Rome.")]
    flow = calls(record("home", "Rome", "live in Rome"), "Noted.")
    assert "does not stand in" in (await outputs(flow, "Really?", history=history))[0]


async def test_what_memory_has_recalled_is_no_source() -> None:
    """Or an old statement would become a new one."""

    @step
    async def older(value: Any, ctx: Context[Any]) -> str:
        await ctx.memory["facts"].record_from("1", "We live in Rome.", "user", "home", "Rome", "live in Rome")
        return "Where do we live?"

    flow = older >> calls(
        FunctionCall(name="facts__find", arguments="{}"), record("home", "Rome", "live in Rome"), "Noted."
    )
    found, refused = await outputs(flow, "go")
    assert "live in Rome" in found
    assert "does not stand in" in refused


async def test_said_is_when_the_item_was_made_and_not_when_it_was_recorded() -> None:
    """A statement that is recorded late does not supersede a newer one."""
    runtime = VirtualRuntime()
    async with Harness(memory=bundle(Facts()), runtime=runtime, plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.run(call_model(ScriptedModel("Ah.")), "We live in Utrecht.")
        await runtime.advance(90 * DAY)
        await session.run(calls(record("home", "Delft", "in Delft"), "Ah."), "We live in Delft.")
        await runtime.advance(DAY)
        result = await session.run(calls(record("home", "Utrecht", "in Utrecht"), "Ah."), "And before?")
    facts = sorted(result.memory["facts"].facts.values(), key=lambda fact: fact.said)
    assert [(fact.value, fact.said, fact.superseded_by == "") for fact in facts] == [
        ("Utrecht", START, False),
        ("Delft", day(90), True),
    ]


# -- what is forgotten


async def test_superseded_facts_go_first_and_then_the_oldest() -> None:
    layer = alone(max_facts=3)
    await tell(layer, "Arup", about="employer")
    for number, value in enumerate(["Utrecht", "Delft", "Gouda"], start=1):
        await tell(layer, value, number)
    assert values(layer) == ["Arup", "Gouda", "Delft"]
    for number, about in enumerate(["car", "boss"], start=10):
        await tell(layer, "x", number, about=about)
    assert values(layer) == ["x", "x", "Gouda"]


async def test_facts_are_forgotten_by_age() -> None:
    layer = alone(0, max_age=timedelta(days=30))
    await tell(layer, "Utrecht")
    await tell(layer, "Arup", 20, about="employer")
    clock = layer.clock
    assert isinstance(clock, VirtualRuntime)
    await clock.advance(31 * DAY)
    assert await layer.recall("", 500) == "- Ada / employer: Arup (2025-01-21, letters)"
    assert [fact.value for fact in await layer.find()] == ["Arup"]
    await tell(layer, "Volvo", 31, about="car")
    assert values(layer) == ["Volvo", "Arup"]


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({}, []),
        ({"subject": "ADA"}, ["Bonn"]),
        ({"attribute": "home"}, ["Arup"]),
        ({"subject": "Ada", "attribute": "Home", "value": "DELFT"}, ["Arup", "Utrecht", "Bonn"]),
    ],
)
async def test_forget(wanted: dict[str, str], left: list[str]) -> None:
    layer = alone()
    await tell(layer, "Utrecht")
    await tell(layer, "Delft", 1)
    await tell(layer, "Arup", 1, about="employer")
    await layer.record_from("x", "Bonn", "Bob", "home", "Bonn", "Bonn", said=day(2))
    assert await layer.forget(**wanted) == 4 - len(left)
    assert values(layer) == left
    assert all(fact.superseded_by == "" for fact in layer.known)


# -- what the model sees


async def test_outdated_facts_are_marked_or_left_out() -> None:
    for count in (0, 1, 2, 9):
        layer = alone(outdated=count)
        for number, value in enumerate(["Utrecht", "Delft", "Gouda", "Leiden"]):
            await tell(layer, value, number)
        lines = (await layer.recall("", 500) or "").splitlines()
        assert lines[0] == "- Ada / home: Leiden (2025-01-04, letters)"
        assert len(lines) == 1 + min(count, 3)
        assert all("outdated since" in line for line in lines[1:])


async def test_the_order_is_that_of_the_keys_and_of_what_fits_the_question() -> None:
    layer = alone()
    for number in range(40):
        await tell(layer, f"value {number}", number, about=f"attribute{number:02}")
    lines = (await layer.recall("attribute07?", 5_000) or "").splitlines()
    assert [line[8:19] for line in lines] == [f"attribute{number:02}" for number in range(40)]
    short = (await layer.recall("What of attribute07?", 120) or "").splitlines()
    assert "attribute07" in short[0]
    assert "attribute39" in short[1]
    assert "left out" in short[-1]


async def test_what_was_said_long_ago_counts_less() -> None:
    for half_life, first in ((None, "harbour"), (timedelta(days=10), "newest39")):
        layer = alone(half_life=half_life)
        await tell(layer, "six", about="harbour")
        for number in range(1, 40):
            await tell(layer, f"value {number}", number, about=f"newest{number:02}")
        assert first in (await layer.recall("When does the harbour open?", 120) or "").splitlines()[0]


@pytest.mark.parametrize("budget", [0, 5, 30, 60, 200, 1_000])
async def test_a_budget_is_kept_and_nothing_outdated_is_unmarked(budget: int) -> None:
    layer = alone()
    for number in range(30):
        await tell(layer, f"old{number}", number, about=f"a{number}")
        await tell(layer, f"new{number}", number + 100, about=f"a{number}")
    told = await layer.recall("a3 a4", budget) or ""
    assert COUNTER.count_text(told).value <= budget
    assert all("outdated since" in line for line in told.splitlines() if ": old" in line)


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_stays_inside(text: str) -> None:
    layer = Facts(max_characters=4_000)
    model = ScriptedModel("done")

    async def put(facts: Facts) -> None:
        await facts.record_from(text, text, f"x{text}", f"{text}x", f"y{text}", text, origin=text)

    class Mem(Memory):
        facts: Facts = Facts(max_characters=4_000, id="layer")

    @step
    async def putting(value: str, ctx: Context[Mem]) -> str:
        await put(ctx.memory.facts)
        return value

    assert layer.id == ""
    async with Harness(memory=Mem(), plugins=()) as harness:
        await harness.run(putting >> call_model(model), "hi")
    (message,) = [item for item in model.requests[0].items if isinstance(item, Message) and "<memory" in item.text]
    assert is_sealed(message)
    assert len(message.text.splitlines()) == 3


async def test_find_gives_the_newest_of_a_key_first() -> None:
    layer = alone()
    await tell(layer, "Utrecht")
    await tell(layer, "Arup", 1, about="employer")
    await tell(layer, "Delft", 2)
    assert [fact.value for fact in await layer.find("ada", "HOME")] == ["Delft", "Utrecht"]
    assert [fact.value for fact in await layer.find(attribute="employer")] == ["Arup"]
    assert [fact.value for fact in await layer.find(limit=1)] == ["Arup"]
    assert list(await layer.find("Bob")) == []


# -- extraction


async def test_a_model_extracts_with_the_known_facts_and_the_dates() -> None:
    extractor = ScriptedModel(
        extracted((1, "flat in <Utrecht>", "user", "home", "Utrecht")),
        extracted((2, "Delft", "User", "Home", "Delft")),
        extracted(),
    )
    runtime = VirtualRuntime()
    model = ScriptedModel("Noted.", "When?", "Fine.", "In Delft.")
    layer = Facts(scope=Scope.USER, extract=True, model=extractor)
    async with Harness(memory=bundle(layer), model=model, runtime=runtime, plugins=()) as harness:
        await harness.run(call_model(), "We have a flat in <Utrecht>.", user_id="a", thread_id="one")
        await runtime.advance(90 * DAY)
        await harness.run(
            call_model(), "We moved.", user_id="a", thread_id="two", history=[Message.user("Now it is Delft.")]
        )
        result = await harness.run(call_model(), "Where do I live?", user_id="a", thread_id="three")
    texts = [last.text for request in extractor.requests if isinstance(last := request.items[-1], Message)]
    assert "[1] 2025-01-01 00:00 user: We have a flat in &lt;Utrecht>.\nassistant: Noted." in texts[0]
    assert "Known facts:\nnone" in texts[0]
    assert "Known facts:\n- user / home: Utrecht (user, 2025-01-01, one)" in texts[1]
    assert "[2] 2025-04-01 00:00 user: We moved." in texts[1]
    facts = result.memory["facts"].facts.values()
    # Of the two lines of the second conversation the words stand in the first.
    assert [fact.value for fact in facts] == ["Utrecht"]
    assert "Utrecht" in shown(model.requests[2])


async def test_extracted_facts_need_their_words_and_what_is_refused_is_told() -> None:
    extractor = ScriptedModel(
        extracted(
            (1, "live in Delft", "user", "home", "Delft"),
            (1, "lived in Rome", "user", "birthplace", "Rome"),
            (7, "live in Delft", "user", "town", "Delft"),
            (1, "live", "user", " ", "Delft"),
        )
    )
    layer = Facts(extract=True, model=extractor)
    async with (
        Harness(memory=bundle(layer), runtime=VirtualRuntime(), plugins=()) as harness,
        harness.stream(call_model(ScriptedModel("Noted.")), "I live in Delft.") as stream,
    ):
        warned = [event async for event in stream.events if isinstance(event, LayerWarned)]
        result = await stream.result()
    (fact,) = result.memory["facts"].facts.values()
    assert (fact.value, fact.span, fact.by, fact.said) == ("Delft", "live in Delft", "user", START)
    assert next(item.id for item in result.items if isinstance(item, Message)) == fact.source
    (event,) = warned
    assert event.layer == "facts"
    assert event.message.startswith("3 of 4 extracted facts were refused: ")
    assert "there is no line 7" in event.message
    assert "Rome" not in event.message


async def test_extracted_times_hold() -> None:
    extractor = ScriptedModel(
        extracted((1, "Paris until May", "user", "home", "Paris"), valid_until="2025-05-01", valid_from=None)
    )
    layer = Facts(extract=True, model=extractor)
    async with Harness(memory=bundle(layer), runtime=VirtualRuntime(), plugins=()) as harness:
        result = await harness.run(call_model(ScriptedModel("Noted.")), "I am in Paris until May.")
    (fact,) = result.memory["facts"].facts.values()
    assert (fact.valid_from, fact.valid_until) == (START, datetime(2025, 5, 1, tzinfo=UTC))


async def test_what_is_extracted_again_from_the_same_words_changes_nothing() -> None:
    keys = (("user", "home", "Paris", "2025-05-01"), ("User", "Home", "paris", "2026-05-01"))
    names = ("subject", "attribute", "value", "valid_until")
    found = [{"source": 1, "span": "Paris until May", **dict(zip(names, key, strict=True))} for key in keys]
    extractor = ScriptedModel(json.dumps({"value": found}))
    layer = Facts(extract=True, model=extractor)
    async with Harness(memory=bundle(layer), runtime=VirtualRuntime(), plugins=()) as harness:
        result = await harness.run(call_model(ScriptedModel("Noted.")), "I am in Paris until May.")
    (fact,) = result.memory["facts"].facts.values()
    assert (fact.subject, fact.ends) == ("user", datetime(2025, 5, 1, tzinfo=UTC))


@pytest.mark.parametrize("by_body", [False, True])
async def test_the_source_of_a_fact_is_an_item_of_the_run_wherever_processes_died(by_body: bool) -> None:
    """A fact is stored before the step that holds its source has ended, and another process runs that step again."""

    @step(id="asking", version="1")
    async def asking(text: str, ctx: Context[Any, Any]) -> str:
        ctx.state["asked"] = text
        answer = await call_model(ScriptedModel("Noted."))(text, ctx)
        return str(answer)

    async def process(backend: CheckpointBackend, *, first: bool = False) -> AnyResult:
        flow = asking if by_body else call_model(ScriptedModel("Noted."))
        model = ScriptedModel(extracted((1, "live in Delft", "user", "home", "Delft")))
        memory = bundle(Facts(extract=True, model=model, scope=Scope.USER))
        async with Harness(memory=memory, checkpoints=backend, plugins=()) as harness:
            if first:
                return await harness.run(flow, "I live in Delft.", run_id="r", user_id="ada")
            return await harness.resume("r", flow)

    whole = FaultyBackend(InMemoryBackend())
    await process(whole, first=True)
    for at, again in itertools.product(range(2, whole.appends + 1), (1, 2)):
        backend = FaultyBackend(InMemoryBackend(), dies_at=at)
        with backend.outlived():
            await process(backend, first=True)
        backend.revive(dies_at=again)
        with backend.outlived():
            await process(backend)
        backend.revive()
        result = await process(backend)
        (fact,) = result.memory["facts"].facts.values()
        assert fact.source in {item.id for item in result.items if isinstance(item, Message) and item.role == "user"}


async def test_it_reads_each_conversation_once_and_not_before_the_tools_have_answered() -> None:
    extractor = ScriptedModel(*[extracted()] * 5)
    layer = Facts(extract=True, model=extractor, scope=Scope.USER)
    async with Harness(memory=bundle(layer), plugins=()) as harness:
        sessions = {name: harness.session("ada", name) for name in "ab"}
        for number, name in enumerate("abaab"):
            look = FunctionCall(name="directory", arguments=json.dumps({"name": f"Bob{number}"}))
            await sessions[name].run(calls(look, "ok", tools=[directory]), f"text {number}")
    texts = [last.text for request in extractor.requests if isinstance(last := request.items[-1], Message)]
    read = [[number for number in range(5) if f"text {number}" in text] for text in texts]
    assert read == [[0], [1], [2], [3], [4]]
    assert all("[2] 20" in text and f"directory: Bob{number}: phone" in text for number, text in enumerate(texts))


async def test_what_does_not_fit_is_read_after_the_next_answer() -> None:
    extractor = ScriptedModel(*[extracted()] * 4)
    layer = Facts(extract=True, model=extractor, max_input=180)
    warned: list[str] = []

    @step
    async def before(text: str, ctx: Context[Any]) -> None:
        for number in range(4):
            ctx.items.append(Message.user(f"text {number} " + "x" * 50))

    async with Harness(memory=bundle(layer), model=ScriptedModel(*["ok"] * 3), plugins=()) as harness:
        session = harness.session("ada", "trip")
        await session.run(before, "go")
        for text in ("text 4 " + "y" * 50, "text 5", "text 6"):
            async with session.stream(call_model(), text) as stream:
                warned += [event.message async for event in stream.events if isinstance(event, LayerWarned)]
    texts = [last.text for request in extractor.requests if isinstance(last := request.items[-1], Message)]
    read = [[number for number in range(7) if f"text {number}" in text] for text in texts]
    assert read == [[0, 1], [2, 3], [4, 5, 6]]
    assert warned[0] == "facts were extracted from 2 items; 4 more are read after the next answer"


async def test_a_failing_model_changes_nothing_and_is_asked_again() -> None:
    def gone(request: ModelRequest) -> Exception:
        return ModelUnavailable("gone", model="test:extractor")

    extractor = ScriptedModel(gone, extracted((1, "Ada", "user", "name", "Ada")))
    layer = Facts(extract=True, model=extractor)
    async with Harness(memory=bundle(layer), model=ScriptedModel("one", "two", "three"), plugins=()) as harness:
        for number in range(2):
            async with harness.stream(call_model(), "I am Ada", thread_id="t") as stream:
                failed = [event async for event in stream.events if isinstance(event, LayerFailed)]
                result = await stream.result()
            assert result.status == "completed"
            assert [(event.layer, event.hook) for event in failed] == [("facts", "store")][number:]
            assert len(result.memory["facts"].facts) == number


async def test_its_model_counts_against_the_budget_of_the_run() -> None:
    extractor = ScriptedModel(extracted(), usage=TokenUsage(input=70, output=30))
    model = ScriptedModel("one", usage=TokenUsage(input=5, output=5))
    async with Harness(memory=bundle(Facts(extract=True, model=extractor)), model=model, plugins=()) as harness:
        result = await harness.run(call_model(), "hi", budget=Budget(model_calls=5))
    assert result.usage.total == 110


async def test_without_extract_no_model_is_asked() -> None:
    async with Harness(memory=bundle(Facts()), model=ScriptedModel("one"), plugins=()) as harness:
        assert (await harness.run(call_model(), "I am Ada")).value == "one"


# -- runs


async def test_a_run_comes_out_the_same_wherever_it_dies() -> None:
    def answer(request: ModelRequest) -> Any:
        if request.output is not None:
            return extracted((1, "Delft", "user", "home", "Delft"))
        done = any(isinstance(item, FunctionCallOutput) for item in request.items)
        return "Noted." if done else [record("home", "Utrecht", "Utrecht"), record("car", "Volvo", "Volvo")]

    @step(id="say", version="1")
    async def say(value: Any, ctx: Context[Any]) -> None:
        ctx.items.append(Message.user("From Utrecht we move to Delft, in the Volvo."))

    def flow() -> Step[Any, Any, Any, Any]:
        return say >> loop(call_model(id="ask"), until=until.no_tool_calls())

    # Two processes draw other ids.
    seeds = itertools.count()

    def make(backend: CheckpointBackend) -> Harness[Any]:
        model = ScriptedModel(*[answer] * 50)
        runtime = VirtualRuntime(seed=next(seeds))
        return Harness(
            memory=bundle(Facts(extract=True)), model=model, checkpoints=backend, runtime=runtime, plugins=()
        )

    assert await assert_resumable_everywhere(flow, "go", make=make) > 4


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_two_runs_of_one_user_keep_the_facts_of_both(kind: str, tmp_path: Any) -> None:
    backend: CheckpointBackend = InMemoryBackend() if kind == "memory" else SqliteBackend(tmp_path / "runs.db")
    here = Meeting(2)

    @step
    async def meet(value: str) -> str:
        await here.arrive()
        return value

    def telling(value: str, when: int) -> Step[Any, Any, Any, Any]:
        return doing(lambda layer: tell(layer, value, when)) >> meet

    def make() -> Harness[Any]:
        return Harness(memory=bundle(Facts(scope=Scope.USER)), checkpoints=backend, plugins=())

    async with backend, make() as one, make() as two:
        await one.run(doing(lambda layer: tell(layer, "Bonn", about="birthplace")), "", user_id="a")
        async with anyio.create_task_group() as group:
            group.start_soon(partial(one.run, telling("Delft", 5), "", user_id="a"))
            group.start_soon(partial(two.run, telling("Utrecht", 2), "", user_id="a"))
        result = await two.run(doing(lambda layer: layer.find()), "", user_id="a")
    assert [(fact.value, fact.valid_until) for fact in result.value] == [
        ("Bonn", None),
        ("Delft", None),
        ("Utrecht", day(5)),
    ]


async def test_a_contradiction_of_two_runs_is_reported_by_the_next_one_once() -> None:
    here = Meeting(2)

    @step
    async def meet(value: str) -> str:
        await here.arrive()
        return value

    layer = Facts(scope=Scope.USER)
    reported: list[list[str]] = []
    async with Harness(memory=bundle(layer), plugins=()) as harness:

        async def run(flow: Step[Any, Any, Any, Any]) -> None:
            async with harness.stream(flow, "", user_id="a") as stream:
                reported.append([event.message async for event in stream.events if isinstance(event, LayerWarned)])

        async with anyio.create_task_group() as group:
            for value in ("Utrecht", "Delft"):
                group.start_soon(run, doing(partial(tell, value=value)) >> meet)
        for _ in range(2):
            await run(doing(lambda facts: facts.find()))
    assert [len(each_one) for each_one in reported] == [0, 0, 1, 0]


async def test_what_one_run_forgets_another_does_not_bring_back() -> None:
    layer = Facts()
    base = alone()
    await tell(base, "Utrecht")
    await tell(base, "Arup", about="employer")
    mine, theirs = alone(), alone()
    for each_one in (mine, theirs):
        await tell(each_one, "Utrecht")
        await tell(each_one, "Arup", about="employer")
    await theirs.forget("Ada", "home")
    await tell(mine, "Delft", 3)
    merged = layer.merge(base.state, mine.state, theirs.state)
    assert sorted(fact.value for fact in merged.facts.values()) == ["Arup", "Delft"]


async def test_paths_and_children_give_their_facts_back() -> None:
    @step(id="path", version="1")
    async def path(number: int, ctx: Context[Any]) -> int:
        await tell(ctx.memory["facts"], f"town {number}", number)
        return number

    async with Harness(memory=bundle(Facts()), plugins=()) as harness:
        result = await harness.run(each(path), [1, 2, 3])
        facts = result.memory["facts"].facts.values()
        assert [fact.value for fact in facts if fact.superseded_by == ""] == ["town 3"]
        assert len(facts) == 3
    child = doing(partial(tell, value="Delft"))
    for layer, count in ((Facts(children="merge"), 1), (Facts(children="ignore"), 0)):
        async with Harness(memory=bundle(layer), plugins=()) as harness:
            result = await harness.run(spawn(child), "")
            assert len(result.memory["facts"].facts) == count


async def test_a_fork_knows_what_was_known_at_its_point() -> None:
    learning = [True]

    @step(id="first", version="1")
    async def first(value: str, ctx: Context[Any]) -> str:
        await tell(ctx.memory["facts"], "Utrecht")
        return value

    @step(id="learn", version="1")
    async def learn(value: str, ctx: Context[Any]) -> str:
        if learning[0]:
            await tell(ctx.memory["facts"], "Delft", 30)
        return value

    model = ScriptedModel("a", "b")
    flow = first >> learn >> call_model(model)
    async with Harness(memory=bundle(Facts()), checkpoints=InMemoryBackend(), plugins=()) as harness:
        await harness.run(flow, "What do you know?", run_id="one", thread_id="t")
        learning[0] = False
        result = await harness.resume(await harness.fork("one", at=2), flow)
    assert "Delft" in shown(model.requests[0])
    assert "Delft" not in shown(model.requests[1])
    assert "- Ada / home: Utrecht (2025-01-01, letters)" in shown(model.requests[1])
    (fact,) = result.memory["facts"].facts.values()
    assert (fact.valid_until, fact.superseded_by) == (None, "")


async def test_a_resumed_run_does_not_extract_again() -> None:
    def make(backend: CheckpointBackend, extractor: ScriptedModel) -> Harness[Any]:
        memory = bundle(Facts(extract=True, model=extractor))
        return Harness(memory=memory, model=ScriptedModel("Noted.", "Noted."), checkpoints=backend, plugins=())

    whole = FaultyBackend(InMemoryBackend())
    async with make(whole, ScriptedModel(extracted())) as harness:
        await harness.run(call_model(), "We live in Delft.", run_id="r")
    extractor = ScriptedModel(extracted((1, "Delft", "user", "home", "Delft")))
    backend = FaultyBackend(InMemoryBackend(), dies_at=whole.appends)
    with backend.outlived():
        await make(backend, extractor).run(call_model(), "We live in Delft.", run_id="r")
    backend.revive()
    async with make(backend, extractor) as harness:
        result = await harness.resume("r", call_model())
    assert len(extractor.requests) == 1
    assert [fact.value for fact in result.memory["facts"].facts.values()] == ["Delft"]


@pytest.mark.parametrize(
    "settings",
    [
        {"outdated": -1},
        {"max_facts": 0},
        {"max_characters": 0},
        {"max_input": 0},
        {"max_age": timedelta(0)},
        {"half_life": 5},
        {"instructions": " "},
        {"children": "x"},
        {"outdated": float("nan")},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Facts(**settings)
    assert caught.value.code == "facts"


def test_a_fact_has_a_key_that_compares() -> None:
    fact = Fact("The  Boat", "Home_port", "Delft", "1", "Delft", START)
    assert fact.key == ("the boat", "home port")
