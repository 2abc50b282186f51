"""`Compaction`: a long conversation shown shorter, and the log left whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import FunctionCall, Harness, InMemoryBackend, Item, Memory, Message, call_model, loop, tool, until
from noetic_py.core.codec import Codec, to_wire
from noetic_py.core.items import FunctionCallOutput
from noetic_py.errors import ConfigError, ModelUnavailable
from noetic_py.memory import Compacted, Compaction
from noetic_py.memory.blocks import weigh
from noetic_py.memory.layers.common import COUNTER
from noetic_py.models.model import ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere
from tests.properties.checks import examples

pytestmark = pytest.mark.anyio

PAGE = "The tide rises and falls twice a day, and nobody asks it to. " * 20


def round_of(number: int, output: str) -> list[Item]:
    return [
        FunctionCall(name="read", arguments={"page": number}, call_id=f"call-{number}", id=f"c{number}"),
        FunctionCallOutput(call_id=f"call-{number}", output=output, id=f"o{number}"),
    ]


def conversation(rounds: int, *, same: bool = False) -> list[Item]:
    items: list[Item] = [Message(role="user", content="Read the book.", id="first")]
    for number in range(rounds):
        items += round_of(number, PAGE if same else f"{number}: {PAGE}")
        items.append(Message(role="assistant", content=f"I have read page {number}.", id=f"a{number}"))
    return [*items, Message(role="user", content="And what is it about?", id="last")]


def texts(items: Sequence[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, FunctionCallOutput | Message)]


def assert_paired(items: Sequence[Item]) -> None:
    calls = [item.call_id for item in items if isinstance(item, FunctionCall)]
    outputs = [item.call_id for item in items if isinstance(item, FunctionCallOutput)]
    assert calls == outputs


def small(**settings: Any) -> Compaction:
    chosen: dict[str, Any] = {"window": 2_000, "above": 0.8, "down_to": 0.4, **settings}
    return Compaction(**chosen)


async def test_a_short_conversation_stays_as_it_is() -> None:
    items = conversation(3)
    layer = small()
    assert await layer.project_history(items) == items
    assert layer.state == Compacted()


async def test_repeated_outputs_refer_to_the_first() -> None:
    items = conversation(12, same=True)
    layer = small(tiers=("repeats",))
    shown = await layer.project_history(items)
    assert len(shown) == len(items)
    assert_paired(shown)
    assert [item.id for item in shown] == [item.id for item in items]
    outputs = [item.text for item in shown if isinstance(item, FunctionCallOutput)]
    assert outputs == [PAGE] + ["[the same output as of the call call-0]"] * 11
    assert layer.saved == {"repeats": weigh(items, COUNTER) - weigh(shown, COUNTER)}


async def test_old_outputs_become_placeholders_behind_their_calls() -> None:
    items = conversation(12)
    layer = small(tiers=("repeats", "outputs"), keep_rounds=2)
    shown = await layer.project_history(items)
    outputs = [item.text for item in shown if isinstance(item, FunctionCallOutput)]
    assert [text.startswith("[an output of") for text in outputs] == [True] * 10 + [False] * 2
    assert_paired(shown)
    assert set(layer.saved) == {"outputs"}


async def test_the_window_leaves_out_whole_rounds_and_keeps_what_was_asked_for() -> None:
    items = conversation(12)
    layer = small(tiers=("window",))
    shown = await layer.project_history(items)
    assert_paired(shown)
    assert weigh(shown, COUNTER) <= 2_000 * 0.5
    assert shown[0] is items[0]
    assert shown[-1] is items[-1]
    left_out = len(items) - (len(shown) - 1)
    assert texts(shown)[1] == f"[{left_out} earlier items of this conversation are no longer shown]"
    without = small(tiers=("window",), keep_first=False)
    assert items[0] not in await without.project_history(items)


@pytest.mark.parametrize("tiers", [("repeats", "outputs"), ("window",), ("repeats", "outputs", "window")])
@pytest.mark.parametrize("seed", range(examples(2, 6)))
async def test_what_is_known_of_conversations_changes_nothing(tiers: Any, seed: int) -> None:
    source, layer = random.Random(seed), small(tiers=tiers)
    talks: list[list[Item]] = [[Message(role="user", content=f"Talk {number}")] for number in range(20)]
    states = [Compacted()] * len(talks)
    for number in range(400):
        at = source.randrange(len(talks)) if source.random() < 0.3 else 0
        items = talks[at]
        if source.random() < 0.1:
            del items[source.randint(1, len(items)) :]
        items += round_of(number, PAGE if source.random() < 0.3 else f"{number}: {PAGE}")
        items.append(Message(role="user", content=f"And {number}?"))
        anew = small(tiers=tiers)
        layer.state = anew.state = states[at]
        assert await layer.project_history(items) == await anew.project_history(items)
        assert layer.state == anew.state
        states[at] = layer.state
    assert len({state.cut for state in states} | {state.outputs for state in states}) > 1


async def test_cheap_means_come_first() -> None:
    same = small()
    await same.project_history(conversation(12, same=True))
    assert set(same.saved) == {"repeats"}
    other = small(keep_rounds=1)
    await other.project_history(conversation(12))
    assert set(other.saved) == {"outputs"}
    all_of_them = small(keep_rounds=30)
    await all_of_them.project_history(conversation(12))
    assert set(all_of_them.saved) == {"window"}


async def test_what_was_decided_stays_so_that_the_start_is_the_same_bytes() -> None:
    layer = small(keep_rounds=1)
    items = conversation(12)[:-1]
    shown = [to_wire(item) for item in await layer.project_history(items)]
    state, moved = layer.state, 0
    for number in range(12, 30):
        items += round_of(number, f"{number}: {PAGE[:300]}")
        now = [to_wire(item) for item in await layer.project_history(items)]
        if layer.state is state:
            assert now[: len(shown)] == shown
        else:
            state, moved = layer.state, moved + 1
        shown = now
    assert 0 < moved < 6


@given(
    st.integers(0, 25),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([("repeats", "outputs", "window"), ("window",), ("outputs", "window")]),
)
async def test_calls_keep_their_outputs_and_the_newest_stays(rounds: int, keep: int, same: bool, tiers: Any) -> None:
    items = conversation(rounds, same=same)
    before = list(items)
    layer = small(window=1_500, keep_rounds=keep, tiers=tiers)
    shown = await layer.project_history(items)
    assert items == before
    assert_paired(shown)
    assert shown[-1] is items[-1]
    assert weigh(shown, COUNTER) <= weigh(items, COUNTER) + 20
    assert [to_wire(item) for item in await layer.project_history(items)] == [to_wire(item) for item in shown]


def test_its_state_can_be_stored() -> None:
    state = Compacted("a", "b", "c", "d", "e", (("window", 3),))
    codec = Codec([Compacted])
    assert codec.loads(codec.dumps(state), Compacted) == state


# ------------------------------------------------------------------------------------------------------------- in a run


@tool
async def read(page: int) -> str:
    """Read a page."""
    return f"{page}: {PAGE}"


def make(layer: Compaction) -> Memory:
    class Mem(Memory):
        short: Compaction = layer

    return Mem()


def reader(rounds: int) -> ScriptedModel:
    """Reads page after page, and says the same to the same."""

    def turn(request: ModelRequest) -> Any:
        pages = max(
            [item.text.partition(":")[0] for item in request.items if isinstance(item, FunctionCallOutput)],
            key=len,
            default="",
        )
        done = pages and int([item for item in request.items if isinstance(item, FunctionCall)][-1].arguments[8:-1])
        number = 0 if done == "" else int(done) + 1
        return "It is about tides." if number >= rounds else [FunctionCall(name="read", arguments={"page": number})]

    return ScriptedModel(*[turn] * (rounds + 1))


def flow(model: ScriptedModel) -> Any:
    return loop(call_model(model, tools=[read]), until=until.no_tool_calls())


SETTINGS: dict[str, Any] = {
    "window": 2_000,
    "above": 0.8,
    "down_to": 0.5,
    "keep_rounds": 9,
    "tiers": ("repeats", "outputs", "summary"),
    "max_summary": 200,
}


def summariser(calls: int = 50) -> ScriptedModel:
    def turn(request: ModelRequest) -> str:
        [asked] = request.items
        assert isinstance(asked, Message)
        return f"Summary {asked.text.count('assistant calls read')}: tides."

    return ScriptedModel(*[turn] * calls)


async def test_a_model_summarises_once_what_is_left_out_and_the_log_stays_whole() -> None:
    model, summaries = reader(12), summariser()
    async with Harness(memory=make(Compaction(model=summaries, **SETTINGS))) as harness:
        result = await harness.run(flow(model), "Read the book.")
    assert result.value == "It is about tides."
    log = list(result.new_items)
    assert sum(isinstance(item, FunctionCallOutput) for item in log) == 12
    assert all(item.text.endswith(PAGE) for item in log if isinstance(item, FunctionCallOutput))
    asked = len(summaries.requests)
    assert 1 <= asked <= 4
    last = model.requests[-1].items
    assert_paired(last)
    [told] = [text for text in texts(last) if "A summary of them:" in text]
    assert "Summary" in told
    assert told.startswith("<memory")
    assert texts(last).count("Read the book.") == 1
    # The summary so far goes into the next one.
    if asked > 1:
        assert "The summary so far:\nSummary" in texts(summaries.requests[1].items)[0]
    assert all(weigh(request.items, COUNTER) < 2_000 for request in model.requests)


async def test_a_provider_may_keep_what_it_has_between_two_decisions() -> None:
    model, summaries = reader(14), summariser()
    async with Harness(memory=make(Compaction(model=summaries, **SETTINGS))) as harness:
        await harness.run(flow(model), "Read the book.")
    requests = [[to_wire(item) for item in request.items] for request in model.requests]
    kept = sum(now[: len(before)] == before for before, now in pairwise(requests))
    assert kept >= len(requests) - 1 - len(summaries.requests)


async def test_a_failing_summary_leaves_the_items_out_without() -> None:
    def gone(request: ModelRequest) -> Exception:
        return ModelUnavailable("gone", model="test:summariser")

    model = reader(12)
    async with Harness(memory=make(Compaction(model=ScriptedModel(*[gone] * 20), **SETTINGS))) as harness:
        result = await harness.run(flow(model), "Read the book.")
    assert result.value == "It is about tides."
    last = texts(model.requests[-1].items)
    assert any("no longer shown" in text for text in last)
    assert not any("A summary" in text for text in last)


async def test_a_resumed_run_does_not_summarise_again() -> None:
    whole = FaultyBackend(InMemoryBackend())
    summaries = summariser()
    async with Harness(memory=make(Compaction(model=summaries, **SETTINGS)), checkpoints=whole) as harness:
        await harness.run(flow(reader(12)), "Read the book.", run_id="r")
    expected = len(summaries.requests)
    summaries = summariser()
    memory = make(Compaction(model=summaries, **SETTINGS))
    backend = FaultyBackend(InMemoryBackend(), dies_at=whole.appends)
    with backend.outlived():
        await Harness(memory=memory, checkpoints=backend).run(flow(reader(12)), "Read the book.", run_id="r")
    backend.revive()
    async with Harness(memory=memory, checkpoints=backend) as harness:
        result = await harness.resume("r", flow(reader(12)))
    assert result.value == "It is about tides."
    assert len(summaries.requests) == expected


async def test_a_run_comes_out_the_same_wherever_it_dies() -> None:
    memory = make(Compaction(model=summariser(500), **SETTINGS))
    kills = await assert_resumable_everywhere(
        lambda: flow(reader(7)), "Read the book.", make=lambda backend: Harness(memory=memory, checkpoints=backend)
    )
    assert kills > 10


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 0}, {"above": 0}, {"above": 1.5}, {"down_to": 0.7},
        {"down_to": float("nan")}, {"tiers": ()}, {"tiers": ("window", "outputs")},
        {"tiers": ("all",)}, {"keep_rounds": -1}, {"max_summary": 3}, {"instructions": ""},
    ],
)  # fmt: skip
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Compaction(**settings)
    assert caught.value.code == "compaction-settings"
