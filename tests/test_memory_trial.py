"""Memory on trial: what a replay shows, what it counts, what it refuses, and that it asks no model."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time
from typing import Any

import pytest

from benchmarks import trial as trial_benchmark
from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Message,
    SessionKey,
    call_model,
    errors,
    loop,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context.step import AnyStep
from noetic_py.memory import (
    Episodic,
    Facts,
    HistoryWindow,
    Observational,
    Permissions,
    SemanticRecall,
    StaticContent,
    ToolLimits,
    WorkingMemory,
    function,
)
from noetic_py.testing import ScriptedModel, VirtualRuntime, random_dialogue
from noetic_py.trial import Evidence, MemoryTrial, StoredRound, memory_trial
from tests.layer_runs import Letters

pytestmark = pytest.mark.anyio


class Notes(Memory):
    notes: WorkingMemory = WorkingMemory()


class Short(Memory):
    newest: HistoryWindow = HistoryWindow(max_items=2)


looked: list[str] = []


@tool
async def look(place: str) -> str:
    """Look a place up."""
    looked.append(place)
    return f"{place} has a harbour."


async def stored(
    backend: InMemoryBackend, flow: AnyStep, said: Sequence[str], *, memory: Memory | None = None
) -> list[str]:
    """The runs of a session in which that was said."""
    runtime = VirtualRuntime()
    run_ids: list[str] = []
    async with Harness(memory=memory or Memory(), checkpoints=backend, runtime=runtime, plugins=()) as harness:
        for text in said:
            await runtime.advance(60)
            run_ids.append((await harness.session("ada", "trip").run(flow, text)).run_id)
    return run_ids


async def tried(backend: InMemoryBackend, run_ids: Sequence[str], memory: Memory, **options: Any) -> MemoryTrial:
    async with Harness(checkpoints=backend, plugins=()) as harness:
        return await memory_trial(harness.runs, run_ids, memory, **options)


async def test_a_trial_asks_no_model_and_runs_no_tool() -> None:
    call = FunctionCall(name="look", arguments={"place": "Delft"})
    model, backend = ScriptedModel(call, "It has one.", "You asked for Delft."), InMemoryBackend()
    flow: AnyStep = loop(call_model(model, tools=[look]), until=until.no_tool_calls())
    run_ids = await stored(backend, flow, ["Is there a harbour?", "Where?"])
    looked.clear()
    trial = await tried(backend, run_ids, Notes(), flow=flow)
    assert (len(model.requests), looked) == (3, [])
    assert [each.query for each in trial.requests] == ["Is there a harbour?", "", "Where?"]
    assert [each.index for each in trial.requests] == [0, 1, 0]
    shown = trial.requests[2].items
    assert [item.type for item in shown] == [
        "message", "function_call", "function_call_output", "message", "message",
    ]  # fmt: skip
    assert shown[2] == model.requests[2].items[2]
    assert {str(each["name"]) for each in trial.requests[0].request.tools} >= {"look", "notes__update"}


async def test_outputs_of_tools_that_are_not_there_are_those_that_are_stored() -> None:
    call = FunctionCall(name="look", arguments={"place": "Delft"})
    backend = InMemoryBackend()
    flow: AnyStep = loop(call_model(ScriptedModel(call, "It has one."), tools=[look]), until=until.no_tool_calls())
    run_ids = await stored(backend, flow, ["Is there a harbour?"])
    trial = await tried(backend, run_ids, Notes())
    output = trial.requests[1].items[2]
    assert output.type == "function_call_output"
    assert output.text == "Delft has a harbour."


async def test_tokens_and_cached_tokens_are_those_of_the_account() -> None:
    class Some(Memory):
        rules: StaticContent = StaticContent(content="Be polite to every skipper.")
        past: Episodic = Episodic()
        notes: WorkingMemory = WorkingMemory()

    update = FunctionCall(name="notes__update", arguments={"patch": {"berth": "seven"}})
    model, backend = ScriptedModel("Aye.", [update], "Noted.", "Seven.", "Bye."), InMemoryBackend()
    flow: AnyStep = loop(call_model(model, instructions="You are a pilot."), until=until.no_tool_calls())
    run_ids = await stored(backend, flow, ["Hello", "My berth is seven", "Which one?", "Thanks"], memory=Some())
    async with Harness(checkpoints=backend, plugins=()) as harness:
        accounts = [view.account for each in run_ids for view in await harness.runs.views(each)]
        trial = await memory_trial(harness.runs, run_ids, Some(), flow=flow)
    assert [(each.tokens, each.cached) for each in trial.requests] == [
        (account.tokens, account.repeated) for account in accounts
    ]
    assert any(each.cached for each in trial.requests)


@pytest.mark.parametrize("texts", ["Delft", [""], [" "], [3], None])
def test_evidence_is_a_list_of_texts(texts: Any) -> None:
    with pytest.raises(errors.ConfigError, match="expected a list of texts"):
        Evidence(needed=texts)
    with pytest.raises(errors.ConfigError, match="outdated="):
        Evidence(outdated=texts)


async def test_two_bundles_are_compared_request_by_request() -> None:
    backend = InMemoryBackend()
    flow = call_model(ScriptedModel("Rex, I see.", "Good.", "Fine.", "It is Rex."), id="ask")
    said = ["The dog is called Rex", "It rains", "I am tired", "Who barks?"]
    run_ids = await stored(backend, flow, said)

    def evidence(asked: StoredRound) -> Evidence | None:
        return Evidence(["called  REX"], ["called Max"]) if asked.query == "Who barks?" else None

    steps: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        steps.append((done, total))

    trial = await tried(backend, run_ids, Memory(), against=Short(), evidence=evidence, progress=note)
    assert [each.found for each in trial.requests] == [None, None, None, 1.0]
    assert [each.found for each in trial.against] == [None, None, None, 0.0]
    assert trial.requests[-1].outdated == 0
    assert (trial.names, trial.runs, steps[-1], len(steps)) == (["Memory", "Short"], 4, (8, 8), 8)
    tokens = trial.summary()["tokens"]
    assert tokens.difference is not None
    assert tokens.against is not None
    assert tokens.difference.mean == pytest.approx(tokens.memory.mean - tokens.against.mean)
    assert tokens.memory.observations == 4
    assert "outdated shown" in trial.summary()


async def test_evidence_is_what_an_answer_took_from_earlier() -> None:
    backend = InMemoryBackend()
    flow = call_model(ScriptedModel("I see.", "Good.", "Fine.", "Your dog Rex barks."), id="ask")
    run_ids = await stored(backend, flow, ["The dog is called Rex", "It rains", "I am tired", "Who barks?"])
    whole, short = await tried(backend, run_ids, Memory()), await tried(backend, run_ids, Short())
    # "barks" is in the question, "your" was never said before: "dog" and "rex" are left.
    assert [each.found for each in whole.requests] == [None, None, None, 1.0]
    assert [each.found for each in short.requests] == [None, None, None, 0.0]


async def test_an_id_of_an_item_is_evidence_and_the_question_itself_is_not() -> None:
    backend = InMemoryBackend()
    flow = call_model(ScriptedModel("I see.", "Rex."), id="ask")
    run_ids = await stored(backend, flow, ["The dog is called Rex", "Is the dog called Max?"])
    async with Harness(checkpoints=backend, plugins=()) as harness:
        said = (await harness.runs.history(run_ids[1]))[0]

    def by_item(asked: StoredRound) -> Evidence:
        return Evidence([said.id])

    def by_text(asked: StoredRound) -> Evidence:
        return Evidence(["dog called Max"])

    by_id = await tried(backend, run_ids, Memory(), evidence=by_item)
    assert [each.found for each in by_id.requests] == [0.0, 1.0]
    asked = await tried(backend, run_ids, Memory(), evidence=by_text)
    assert [each.found for each in asked.requests] == [0.0, 0.0]


async def test_a_marked_line_shows_nothing_outdated() -> None:
    class Known(Memory):
        facts: Facts = Facts()

    class Unmarked(Memory):
        newest: HistoryWindow = HistoryWindow(max_turns=1)
        past: SemanticRecall = SemanticRecall(embedder=Letters(), least=-1)

    record = [
        FunctionCall(
            name="facts__record",
            arguments={"subject": "user", "attribute": "home", "value": town, "span": f"live in {town}"},
        )
        for town in ("Utrecht", "Delft")
    ]
    backend = InMemoryBackend()
    model = ScriptedModel([record[0]], "Noted.", [record[1]], "Noted.", "In Delft.")
    flow: AnyStep = loop(call_model(model), until=until.no_tool_calls())
    said = ["We live in Utrecht", "Now we live in Delft", "Where is our home?"]
    run_ids = await stored(backend, flow, said, memory=Known())

    def evidence(asked: StoredRound) -> Evidence | None:
        return Evidence(["Delft"], ["Utrecht"]) if asked.query == said[2] else None

    trial = await tried(backend, run_ids, Known(), against=Unmarked(), evidence=evidence)
    assert (trial.requests[-1].found, trial.requests[-1].outdated) == (1.0, 0)
    assert "outdated" in "".join(item.text for item in trial.requests[-1].items if isinstance(item, Message))
    assert trial.against[-1].outdated == 1


async def test_a_layer_that_asks_a_model_is_refused_by_name() -> None:
    class Distilled(Memory):
        seen: Observational = Observational(model=ScriptedModel(), every=1)

    model, backend = ScriptedModel("Aye.", "Aye."), InMemoryBackend()
    run_ids = await stored(backend, call_model(model), ["Hello", "Hello again"])
    with pytest.raises(errors.ConfigError, match="layer 'seen' asks a model") as caught:
        await tried(backend, run_ids, Distilled())
    assert caught.value.code == "trial"
    assert len(model.requests) == 2


async def test_a_layer_that_wants_an_approval_is_refused() -> None:
    class Asking(Memory):
        rules: Permissions = Permissions(otherwise="ask")

    call = FunctionCall(name="look", arguments={"place": "Delft"})
    backend = InMemoryBackend()
    flow: AnyStep = loop(call_model(ScriptedModel(call, "Yes."), tools=[look]), until=until.no_tool_calls())
    run_ids = await stored(backend, flow, ["Is there a harbour?"])
    with pytest.raises(errors.ConfigError, match="approval") as caught:
        await tried(backend, run_ids, Asking(), flow=flow)
    assert caught.value.code == "trial"


async def test_layers_judge_stored_calls() -> None:
    class Limited(Memory):
        limits: ToolLimits = ToolLimits(limits={"look": 1})

    calls = [FunctionCall(name="look", arguments={"place": place}) for place in ("Delft", "Gouda")]
    backend = InMemoryBackend()
    flow: AnyStep = loop(call_model(ScriptedModel(calls, "Yes."), tools=[look]), until=until.no_tool_calls())
    run_ids = await stored(backend, flow, ["Are there harbours?"])
    trial = await tried(backend, run_ids, Limited(), flow=flow)
    first, second = [item.text for item in trial.requests[1].items if item.type == "function_call_output"]
    assert first == "Delft has a harbour."
    assert "harbour" not in second


async def test_what_is_left_out_is_told() -> None:
    class Kept(MemoryLayer[list[str]]):
        @function
        async def keep(self, text: str) -> None:
            self.state = [*self.state, text]

    class Mem(Memory):
        kept: Kept = Kept()

    @step
    async def learn(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.kept.keep(text)
        return text

    model, backend = ScriptedModel("A sub-agent's.", "Aye."), InMemoryBackend()
    flow = learn >> spawn(call_model(model), id="sub") >> call_model(model)
    async with Harness(memory=Mem(), checkpoints=backend, plugins=()) as harness:
        result = await harness.run(flow, "Hello")
    trial = await tried(backend, [result.run_id], Mem(), flow=flow)
    assert len(trial.requests) == 1
    assert any("learn has written to layer 'kept'" in note for note in trial.notes)
    assert any("1 answers of other conversations" in note for note in trial.notes)


async def test_runs_without_a_session_begin_with_their_history() -> None:
    backend = InMemoryBackend()
    flow = call_model(ScriptedModel("One.", "Two."), output=str)
    async with Harness(checkpoints=backend, plugins=()) as harness:
        first = await harness.run(flow, "Count", thread_id="t", user_id="ada")
        second = await harness.run(flow, "Go on", history=first.items, thread_id="t", user_id="ada")
        trial = await memory_trial(harness.runs, [second.run_id, first.run_id], Notes(), flow=flow)
        assert await harness.runs.history(first.run_id) == ()
        assert len(await harness.runs.history(second.run_id)) == 2
    assert [each.run_id for each in trial.requests] == [first.run_id, second.run_id]
    assert [item.text for item in trial.requests[1].items if isinstance(item, Message)] == ["Count", "One.", "Go on"]
    assert [each.conversation for each in trial.requests] == ["t", "t"]


async def test_the_history_of_a_turn_is_what_its_session_held() -> None:
    backend = InMemoryBackend()
    run_ids = await stored(backend, call_model(ScriptedModel("One.", "Two.")), ["Count", "Go on"])
    async with Harness(checkpoints=backend, plugins=()) as harness:
        held = await harness.runs.history(run_ids[1])
        assert [item.text for item in held if isinstance(item, Message)] == ["Count", "One."]
        await harness.sessions.delete(SessionKey("ada", "trip"))
        with pytest.raises(errors.RunNotFound):
            await harness.runs.history(run_ids[1])


async def test_runs_without_an_answer_and_runs_that_are_not_there_are_refused() -> None:
    @step
    async def echo(text: str) -> str:
        return text

    backend = InMemoryBackend()
    run_ids = await stored(backend, echo, ["Hello"])
    for given in (run_ids, []):
        with pytest.raises(errors.ConfigError, match="no model has answered") as caught:
            await tried(backend, given, Memory())
        assert caught.value.code == "trial"
    with pytest.raises(errors.RunNotFound):
        await tried(backend, ["gone"], Memory())
    wrong: Any = Notes
    with pytest.raises(errors.ConfigError, match="not a valid bundle"):
        await tried(backend, run_ids, wrong)


async def test_a_trial_of_a_hundred_turns_is_quick() -> None:
    """1,000 turns are measured by `python -m benchmarks.trial`; here it is compared with the turns themselves."""
    dialogue, backend = random_dialogue(1, sessions=3, turns=30, questions=10), InMemoryBackend()
    turns = [turn for part in dialogue.sessions for turn in part.turns]
    model = ScriptedModel(*[turn.reply for turn in turns])
    began = process_time()
    run_ids = await stored(backend, call_model(model), [turn.said for turn in turns])
    stored_at = process_time()
    trial = await tried(backend, run_ids, Notes(), evidence=dialogue.evidence)
    # Twice at the most, measured with and without coverage.
    assert process_time() - stored_at < 6 * (stored_at - began)
    assert len(trial.requests) == len(turns) == 100
    # All of the conversation has room, so all evidence is shown.
    assert {each.found for each in trial.requests} == {None, 1.0}


async def test_the_benchmark_measures_a_session() -> None:
    lines = await trial_benchmark.measure(120)
    assert [line.split()[:5] for line in lines] == [
        [name, "120", "requests,", "0", "model"] for name in ("Memory", "Five")
    ]
