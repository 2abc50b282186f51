"""The view of a conversation goes on from turn to turn, in other processes and after crashes; its account is true."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from attrs import evolve

from noetic_py import FunctionCall, Harness, Memory, MemoryLayer, Message, call_model, loop, tool, until
from noetic_py.checkpoints import InMemoryBackend, SqliteBackend
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.cli.stored_runs import show_views
from noetic_py.context.step import AnyStep
from noetic_py.core.control import SessionKey
from noetic_py.core.events import LayerWarned, ViewMade
from noetic_py.core.items import FunctionCallOutput, Item
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.core.values import is_dict
from noetic_py.core.view import View
from noetic_py.errors import LimitExceeded, ModelUnavailable
from noetic_py.memory import (
    Compaction,
    HistoryWindow,
    Plan,
    Recall,
    StaticContent,
    Temporal,
    ToolMemory,
    WorkingMemory,
    function,
)
from noetic_py.models.model import ModelProfile, ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel, VirtualRuntime
from tests.properties.checks import FULL

pytestmark = pytest.mark.anyio

COUNTER = EstimatedCounter()
WORDS = ("harbour", "tide", "pilot", "chart", "anchor", "buoy", "lantern", "mast", "rope", "keel", "compass", "storm")


def say(seed: str, count: int) -> str:
    """Words that are the same for the same seed."""
    return " ".join(Random(seed).choices(WORDS, k=count))


@tool
async def lookup(place: str) -> str:
    """Look a place up in the pilot book."""
    return say(f"lookup {place}", 25)


def answer(request: ModelRequest) -> str | Sequence[FunctionCall]:
    """An answer that follows from the request alone, so that a process that asks again gets the same."""
    last = request.items[-1]
    if not isinstance(last, Message):
        return say(last.text if isinstance(last, FunctionCallOutput) else last.type, 20)
    turn = int(last.text.split()[1])
    calls = [FunctionCall(name="lookup", arguments=json.dumps({"place": f"place {turn % 7}"}))]
    if turn % 4 == 1 and any(each["name"] == "notes__update" for each in request.tools):
        patch = {"patch": {WORDS[turn % 9]: say(f"note {turn}", 5)}}
        calls.append(FunctionCall(name="notes__update", arguments=json.dumps(patch)))
    return say(last.text, 20) if turn % 5 == 3 else calls


class Windowed(ScriptedModel):
    """A model with a window that is known."""

    def __init__(self, window: int | None) -> None:
        super().__init__(*[answer] * 2_000)
        self._window = window

    @property
    def profile(self) -> ModelProfile:
        return evolve(super().profile, context_window=self._window, max_output_tokens=100, encoding=None)


class Five(Memory):
    rules: StaticContent = StaticContent(content="Cite the pilot book. " + say("rules", 20))
    notes: WorkingMemory = WorkingMemory()
    plan: Plan = Plan()
    calls: ToolMemory = ToolMemory(max_calls=4, budget=300)
    time: Temporal = Temporal(clock=VirtualRuntime())


class Short(Five):
    short: Compaction = Compaction(window=1_500)


class Newest(Memory):
    notes: WorkingMemory = WorkingMemory(placement="anchor")
    window: HistoryWindow = HistoryWindow(max_turns=4)


def wire(item: Item) -> str:
    """What of an item depends on no id."""
    match item:
        case Message():
            return f"{item.role}: {item.text}"
        case FunctionCall():
            return f"call {item.name} {item.arguments}"
        case FunctionCallOutput():
            return f"output {item.text}"
        case _:
            return repr(item)


def head(request: ModelRequest) -> int:
    texts = [request.instructions or "", *map(json.dumps, request.tools)]
    return sum(COUNTER.count_text(text).value for text in texts if text)


def measured(request: ModelRequest) -> int:
    return head(request) + sum(COUNTER.count_item(item).value for item in request.items)


def common(before: ModelRequest | None, now: ModelRequest) -> int:
    """Tokens at the start of a request that the one before has too."""
    if before is None or (before.instructions, before.tools) != (now.instructions, now.tools):
        return 0
    tokens = head(now)
    for one, other in zip(before.items, now.items, strict=False):
        if wire(one) != wire(other):
            break
        tokens += COUNTER.count_item(other).value
    return tokens


def agent(model: ScriptedModel) -> AnyStep:
    asking = call_model(model, instructions="You are a pilot.", tools=[lookup], id="ask")
    return loop(asking, until=until.no_tool_calls(), id="agent")


async def talk(
    model: Windowed, memory: Memory | None, turns: range, backend: CheckpointBackend | None = None
) -> list[View]:
    """Turns of one session in one process; the views of its requests."""
    views: list[View] = []
    async with Harness(memory=memory, checkpoints=backend, plugins=()) as harness:
        session = harness.session("ada", "t")
        for turn in turns:
            async with session.stream(agent(model), f"Turn {turn} {say(str(turn), 12)}") as stream:
                views += [event.view async for event in stream.events if isinstance(event, ViewMade)]
    return views


def requests_of(model: ScriptedModel) -> list[list[str]]:
    return [[*map(wire, request.items)] for request in model.requests]


BUNDLES = pytest.mark.parametrize("memory", [Five(), Short(), Newest()], ids=["five", "compaction", "window"])
OR_NONE = pytest.mark.parametrize(
    "memory", [Five(), Short(), Newest(), None], ids=["five", "compaction", "window", "none"]
)


@BUNDLES
@pytest.mark.parametrize("window", [1_500, 6_000])
async def test_the_account_is_what_the_model_received_in_every_request(memory: Memory, window: int) -> None:
    model = Windowed(window)
    views = await talk(model, memory, range(24))
    assert len(views) == len(model.requests)
    before: ModelRequest | None = None
    for view, request in zip(views, model.requests, strict=True):
        assert [*map(wire, view.items)] == [*map(wire, request.items)]
        assert view.tokens == measured(request) <= window - 100
        assert sum(block.tokens for block in view.blocks) == view.tokens
        assert view.repeated == common(before, request)
        before = request
    assert [view.reason for view in views if view.reason != "cold start"] or views[-1].epoch == 1


@OR_NONE
async def test_another_process_asks_with_the_same_bytes(memory: Memory | None) -> None:
    one = Windowed(1_500)
    views = await talk(one, memory, range(12))
    other, backend = Windowed(1_500), InMemoryBackend()
    again = [view for turn in range(12) for view in await talk(other, memory, range(turn, turn + 1), backend)]
    assert requests_of(other) == requests_of(one)
    told = [(view.tokens, view.repeated, view.moved, view.epoch, view.reason, view.stable) for view in again]
    said = [(view.tokens, view.repeated, view.moved, view.epoch, view.reason, view.stable) for view in views]
    # Without layers a process looks for itself whether a conversation that was never cut may be too long.
    assert told == said or (memory is None and said[-len(told) :] == told)


@OR_NONE
async def test_a_resumed_run_asks_with_the_bytes_of_the_one_that_died(memory: Memory | None) -> None:
    """Wherever a process dies, the next one asks what that one would have asked."""
    steady = Windowed(1_500)
    await talk(steady, memory, range(10), InMemoryBackend())
    dying = range(1, 40) if FULL else range(1, 9, 3)
    for dies_at in dying:
        model = Windowed(1_500)
        backend = FaultyBackend(InMemoryBackend())
        await talk(model, memory, range(8), backend)
        backend.revive(dies_at=dies_at)
        turn, flow = f"Turn 8 {say('8', 12)}", agent(model)
        for _ in range(2):
            with ExitStack() as stack:
                stack.enter_context(backend.outlived())
                async with Harness(memory=memory, checkpoints=backend, plugins=()) as harness:
                    await harness.session("ada", "t").run(flow, turn, delivery_id="eighth")
            backend.revive()
        await talk(model, memory, range(9, 10), backend)
        asked = requests_of(model)
        assert [one for one, two in zip(asked, [*asked[1:], None], strict=True) if one != two] == requests_of(steady)


async def test_every_view_can_be_explained_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the journal, any request of any run, in any process."""
    file = tmp_path / "runs.db"
    async with SqliteBackend(file) as backend:
        views = await talk(Windowed(1_500), Short(), range(8), backend)
    async with Harness(checkpoints=f"sqlite:{file}", plugins=()) as harness:
        runs = [info.run_id for info in reversed(await harness.runs.list())]
        found = [view for run in runs for view in await harness.runs.views(run)]
        for view, seen in zip(found, views, strict=True):
            assert view.account.explain() == seen.explain()
            assert view.account.usage == seen.usage
            assert (view.account.stable, view.account.blocks) == (seen.stable, seen.blocks)
            shown = {item.id for items in view.contents.values() for item in items}
            assert shown <= {item.id for item in seen.items}
        await harness.sessions.delete(SessionKey("ada", "t"))
        # What a turn had only told as a difference is gone with the session, and the first one had nothing before it.
        assert [view.path for view in await harness.runs.views(runs[0])] == [view.path for view in found[:2]]
        assert len(await harness.runs.views(runs[-1])) <= 2
    assert await show_views(f"sqlite:{file}", runs[0], as_json=False) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("agent/ask[0]/answer")
    assert views[0].explain().splitlines()[3] in printed
    assert await show_views(f"sqlite:{file}", runs[0], as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert '<memory layer="rules">' in json.dumps(told[0]["blocks"][2]["contents"]).replace("\\", "")


@pytest.mark.parametrize("memory", [None, Memory()], ids=["none", "empty"])
async def test_the_window_is_kept_without_layers(memory: Memory | None) -> None:
    model = Windowed(1_500)
    views = await talk(model, memory, range(24))
    assert all(measured(request) <= 1_400 for request in model.requests)
    # While there is certainly room in the window, there is nothing to tell.
    quiet = len(model.requests) - len(views)
    assert 0 < quiet < 10
    for place, view in enumerate(views, quiet):
        before, request = model.requests[place - 1 : place + 1]
        assert [*map(wire, view.items)] == [*map(wire, request.items)]
        assert (view.tokens, view.repeated) == (measured(request), common(before, request))
    assert {block.kind for view in views for block in view.blocks} == {"system", "tools", "history", "tail"}
    assert "the oldest of what has no room" in views[-1].explain()


async def test_what_cannot_be_left_out_is_refused_without_layers_too() -> None:
    async with Harness(plugins=()) as harness:
        with pytest.raises(LimitExceeded, match="the request to the model takes"):
            await harness.run(agent(Windowed(1_500)), "Turn 1 " + "word " * 5_000)


async def test_nothing_is_written_where_nothing_is_decided() -> None:
    """A conversation without layers that has room in the window is stored as it always was."""
    for window in (None, 100_000):
        backend, model = InMemoryBackend(), Windowed(window)
        await talk(model, None, range(4), backend)
        async with Harness(checkpoints=backend, plugins=()) as harness:
            runs = [run.run_id for run in await harness.runs.list()]
        assert len(runs) == 4
        for run in [*runs, SessionKey("ada", "t").stream]:
            for record in await backend.read(run):
                written: object = json.loads(record.payload)
                if is_dict(written):
                    assert not {"v", "view"} & set(written)
                    assert "shown" not in (written.get("opening") or ())


async def test_a_session_in_a_file_goes_on_after_a_restart(tmp_path: Path) -> None:
    one, other = Windowed(1_500), Windowed(1_500)
    await talk(one, Five(), range(8))
    for turn in range(8):
        async with SqliteBackend(tmp_path / "runs.db") as backend:
            await talk(other, Five(), range(turn, turn + 1), backend)
    assert requests_of(other) == requests_of(one)


@pytest.mark.parametrize("memory", [None, Five()], ids=["none", "five"])
async def test_a_late_turn_does_as_much_as_an_early_one(memory: Memory | None) -> None:
    """Counted in calls of functions, which no other program on the machine changes."""
    turns = 50 if FULL else 25
    calls: list[int] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        calls[-1] += event == "call"

    model = Windowed(100_000)
    async with Harness(memory=memory, plugins=()) as harness:
        session, flow = harness.session("ada", "t"), agent(model)
        for turn in range(turns):
            calls.append(0)
            sys.setprofile(note)
            try:
                await session.run(flow, f"Turn {turn} {say(str(turn), 12)}")
            finally:
                sys.setprofile(None)
    assert sum(calls[-5:]) <= 1.2 * sum(calls[5:10])


async def test_an_edit_by_hand_begins_no_conversation_anew() -> None:
    model = Windowed(None)
    async with Harness(memory=Five(), plugins=()) as harness:
        session = harness.session("ada", "t")
        for turn in range(4):
            await session.run(agent(model), f"Turn {turn}")
        before = model.requests[-1]
        async with session.edit() as edit:
            del edit.items[-3:]
        result = await session.run(agent(model), "Turn 4")
        view = harness.explain_view(result.run_id)
    assert view.epoch == 1
    assert common(before, model.requests[-1]) > head(before)


async def test_an_edit_by_hand_is_counted_anew_without_layers() -> None:
    """A message in the middle becomes a long one, and the last one stays."""
    for turns in (3, 8):
        model = Windowed(1_500)
        async with Harness(plugins=()) as harness:
            session = harness.session("ada", "t")
            for turn in range(turns):
                await session.run(agent(model), f"Turn {turn} {say(str(turn), 12)}")
            async with session.edit() as edit:
                edit.items[0] = Message.user("word " * 1_000)
            await session.run(agent(model), "Turn 99")
        assert all(measured(request) <= 1_400 for request in model.requests)


class Counting(MemoryLayer[int]):
    """Counts the answers, and says so."""

    placement = "anchor"

    @function
    async def add(self) -> None:
        """Count one more."""
        self.state = (self.state or 0) + 1

    async def recall(self, query: str, budget: int) -> str:
        return f"Counted: {self.state or 0}"


class Counted(Memory):
    count: Counting = Counting()


async def test_a_step_that_is_tried_again_asks_as_if_it_had_not_failed() -> None:
    """What a discarded attempt has shown the model is discarded with it, in this process and in the next."""
    from noetic_py import Context, Retry, step

    model = ScriptedModel("One.", "Two.", "Three.", "Four.")
    asking = call_model(model, id="ask")
    failures = iter([True, False])

    @step(retry=Retry(attempts=2))
    async def tries(x: str, ctx: Context[Counted]) -> str:
        await ctx.memory.count.add()
        said = await asking(x, ctx)
        if next(failures):
            raise ValueError("not yet")
        return said

    async with Harness(memory=Counted(), plugins=()) as harness:
        result = await harness.run(asking >> tries, "How many?")
        view = harness.explain_view(result.run_id)
    assert requests_of(model)[1] == requests_of(model)[2]
    assert view.epoch == 1


def _answering(request: ModelRequest, *, down: bool) -> str | Sequence[FunctionCall]:
    """Another tool call in each turn; `down`: the model fails behind it where the user says `fail`."""
    asked = [place for place, item in enumerate(request.items) if isinstance(item, Message) and item.role == "user"]
    said, since = str(request.items[asked[-1]]), request.items[asked[-1] :]
    rounds = sum(isinstance(item, FunctionCall) and item.name == "lookup" for item in since)
    if rounds == 1:
        return [FunctionCall(name="lookup", arguments='{"place": "Dover"}')]
    if rounds > 1 and "fail" in said and down:
        raise ModelUnavailable("down", model="m")
    return answer(request)


def _failing(kind: str) -> tuple[AnyStep, ScriptedModel]:
    """A flow that fails behind answered requests where the user says `fail`, and its model."""
    from noetic_py import Context, Retry, parallel, step

    model = ScriptedModel(*[partial(_answering, down=kind in ("model", "handled"))] * 60)
    asks = agent(model)

    def fails(ctx: Context) -> bool:
        return "fail" in [item.text for item in ctx.items if isinstance(item, Message) and item.role == "user"][-1]

    @step
    async def breaks(said: str, ctx: Context) -> str:
        if fails(ctx):
            raise ValueError("broken")
        return said

    @step
    async def again(said: str, ctx: Context) -> str:
        return f"Turn 6 again{' fail' * fails(ctx)}"

    @step(retry=Retry(attempts=2, initial=0.0))
    async def tries(said: str, ctx: Context) -> str:
        await asks(said, ctx)
        return await breaks(said, ctx)

    @step
    async def handles(said: str, ctx: Context) -> str:
        try:
            await asks(said, ctx)
        except ModelUnavailable:
            return "handled"
        return said

    flows: dict[str, AnyStep] = {
        "model": asks,
        "step": asks >> breaks,
        "attempts": asks >> again >> tries,
        "path": asks >> again >> parallel(asks, breaks),
        "handled": handles,
    }
    return flows[kind], model


@pytest.mark.parametrize("kind", ["model", "step", "attempts", "path", "handled"])
async def test_what_follows_a_failed_turn_is_the_same_with_a_store_and_without(kind: str) -> None:
    seen: list[object] = []
    for stored in (False, True):
        flow, model = _failing(kind)
        async with Harness(memory=Five(), checkpoints=InMemoryBackend() if stored else None, plugins=()) as harness:
            session, views = harness.session("ada", "t"), list[object]()
            for text in ("Turn 3 one", "Turn 5 two fail", "Turn 1 three", "Turn 9 four fail", "Turn 4 five"):
                result = await session.run(flow, text, on_error="result")
                assert (result.status == "failed") == ("fail" in text and kind != "handled")
                view = harness.explain_view(result.run_id)
                views.append((view.tokens, view.repeated, view.epoch, view.moved, view.stable))
        seen += [views, "\n".join(map(str, requests_of(model)))]
    assert seen[:2] == seen[2:]


async def test_the_request_after_an_attempt_that_a_later_process_made_follows_that_attempts() -> None:
    """The first attempt died with its process, and its call is made again at the same place."""
    from noetic_py import Budget, Context, Retry, sequence, step

    asking = call_model(id="ask")

    @step(version="1", retry=Retry(attempts=2, initial=0))
    async def tries(x: str, ctx: Context[Counted]) -> str:
        frame: Any = ctx
        for number in range(frame.attempt):
            ctx.items.append(Message.user(f"attempt {frame.attempt}, line {number}"))
        said = await asking(x, ctx)
        if frame.attempt == 1:
            raise ValueError("not yet")
        return said

    budget = Budget(model_calls=3, wrap_up=call_model(id="wrap_up"), reserve=Budget(model_calls=1))
    flow = sequence(tries, asking, id="flow").with_options(budget=budget)

    async def last_view(backend: CheckpointBackend, *, resumed: bool) -> View | None:
        """That of the last request of this process."""
        model = ScriptedModel(*["An answer."] * 5)
        async with Harness(memory=Counted(), plugins=(), model=model, checkpoints=backend) as harness:
            result = await (harness.resume("r", flow) if resumed else harness.run(flow, "How many?", run_id="r"))
            return harness.explain_view(result.run_id) if model.requests else None

    whole = FaultyBackend(InMemoryBackend())
    expected = await last_view(whole, resumed=False)
    assert expected is not None
    assert expected.moved is None
    for at in range(2, whole.appends):
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when="after")
        with backend.outlived():
            await last_view(backend, resumed=False)
        backend.revive()
        view = await last_view(backend, resumed=True)
        assert view is None or (view.repeated, view.moved) == (expected.repeated, expected.moved)


class Shared(Memory):
    """Layers with a maximum, and one that takes what there is."""

    long: StaticContent = StaticContent(content=say("long", 300), budget=600)
    rules: StaticContent = StaticContent(content="Cite the pilot book.", id="rules")
    little: StaticContent = StaticContent(content="Be kind.", budget=600, id="little")
    sure: StaticContent = StaticContent(content="Be sure.", budget=(40, 40), id="sure")


async def test_a_budget_that_the_window_cuts_is_told_once_and_stands_in_the_account() -> None:
    told: list[tuple[str, str]] = []
    async with Harness(memory=Shared(), model=Windowed(1_500), checkpoints=InMemoryBackend(), plugins=()) as harness:
        for turn in range(2):
            session = harness.session("ada", "t")
            async with session.stream(call_model(), f"Turn {turn}", run_id=f"r{turn}") as stream:
                told += [(each.layer, each.message) async for each in stream.events if isinstance(each, LayerWarned)]
        # What has recalled little is not warned of, and what has a guaranteed minimum has it.
        [(layer, message)] = told
        [found] = re.findall(r"it may take (\d+) of the 600 tokens", message)
        assert (layer, 100 < int(found) < 600) == ("long", True)
        assert "budget=(600, 600)" in message
        for account in (harness.explain_view("r1"), (await harness.runs.views("r1"))[-1].account):
            notes = {block.layer: block.note for block in account.blocks}
            cut = f"it may take {found} of the 600 tokens of its budget, because layers share the window"
            assert (notes["long"], notes["little"], notes["sure"], notes["rules"]) == (cut, cut, None, None)
            assert cut in account.explain()


async def test_in_a_large_window_a_layer_gets_its_budget_whatever_others_may_take() -> None:
    async with Harness(memory=Shared(), model=Windowed(8_000), checkpoints=InMemoryBackend(), plugins=()) as harness:
        await harness.run(call_model(), "Turn 3", run_id="r2")
        view = harness.explain_view("r2")
    assert "of the 600 tokens" not in view.explain()
    assert all(block.dropped is None for block in view.blocks)


SEEN: dict[str, list[list[str]]] = {}


class Sees(MemoryLayer[int]):
    """Notes what is shown in any case; what it recalls takes now nothing, now all that it may."""

    async def recall(self, query: str, budget: int) -> Recall:
        greedy = Random(f"{self.id} {query} {len(self.ctx.items)}").random() < 0.4

        def text(shown: Sequence[Item]) -> str:
            SEEN.setdefault(self.id, []).append([item.id for item in shown])
            return "word " * budget if greedy else "."

        return Recall(text)


class Seeing(Five):
    first: Sees = Sees(slot=-1, id="first")
    second: Sees = Sees(slot=1_000, id="second", placement="anchor")
    third: Sees = Sees(slot=1_001, id="third")


class SeeingShort(Seeing):
    short: Compaction = Compaction(window=1_500)


class SeeingNewest(Seeing):
    window: HistoryWindow = HistoryWindow(max_turns=4)


@pytest.mark.parametrize("memory", [Seeing(), SeeingShort(), SeeingNewest()], ids=["five", "compaction", "window"])
@pytest.mark.parametrize("window", [1_500, 4_000, None])
async def test_what_a_layer_is_told_to_be_shown_is_shown_whatever_others_recall(
    memory: Memory, window: int | None
) -> None:
    model = Windowed(window)
    SEEN.clear()
    async with Harness(memory=memory, plugins=()) as harness:
        session = harness.session("ada", "t")
        for turn in range(24):
            # Other instructions begin the view anew.
            asking = call_model(model, instructions=f"You are pilot {turn // 6}.", tools=[lookup], id="ask")
            flow = loop(asking, until=until.no_tool_calls(), id="agent")
            await session.run(flow, f"Turn {turn} {say(str(turn), 12)}")
    assert {layer: len(seen) for layer, seen in SEEN.items()} == dict.fromkeys(
        ("first", "second", "third"), len(model.requests)
    )
    for seen in SEEN.values():
        for ids, request in zip(seen, model.requests, strict=True):
            assert set(ids) <= {item.id for item in request.items}
        assert sum(map(len, seen)) > len(model.requests)
