"""`Episodic`: what was asked before, and what came of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from noetic_py import Context, Message, call_model, spawn, step
from noetic_py.core.codec import Codec
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.memory import Episode, Episodic, Scope
from noetic_py.testing import ScriptedModel, VirtualRuntime
from tests.layer_runs import LayerCases, acting, agent, call, harness, reading, text_of

pytestmark = pytest.mark.anyio

START = datetime(2025, 1, 1, 12, tzinfo=UTC)
PAST = [("tides in Hamburg", "high at noon"), ("trains to Berlin", "every hour"), ("a poem", "about the sea")]


def still(**settings: Any) -> Episodic:
    """A layer whose clock stands still, for a thread."""
    return Episodic(clock=VirtualRuntime(start=START), scope=Scope.THREAD, **settings)


async def past(**settings: Any) -> Episodic:
    """A layer with a past of a day per episode."""
    clock = VirtualRuntime(start=START)
    layer = Episodic(clock=clock, **settings)
    for asked, outcome in PAST:
        await layer.note(asked, outcome)
        await clock.advance(86_400)
    return layer


# -- by itself


async def test_episodes_are_noted() -> None:
    layer = await past()
    assert [episode.asked for episode in layer.episodes] == ["a poem", "trains to Berlin", "tides in Hamburg"]
    assert [episode.at.day for episode in layer.episodes] == [3, 2, 1]


async def test_what_shares_words_is_recalled_and_the_newest() -> None:
    layer = await past()
    assert text_of(await layer.recall("When is HIGH water in Hamburg?", 200)) == (
        "2025-01-03: asked: a poem | outcome: about the sea\n"
        "2025-01-01: asked: tides in Hamburg | outcome: high at noon"
    )
    layer = await past(recent=0)
    assert text_of(await layer.recall("nothing of that kind", 200)) == ""
    told = text_of(await layer.recall("trains, tides and a poem about Hamburg", 200))
    assert told.count("\n") == 2


async def test_the_best_match_counts_where_few_are_recalled() -> None:
    layer = await past(recent=0, max_recalled=1)
    told = text_of(await layer.recall("trains from Hamburg to Berlin", 200))
    assert told == "2025-01-02: asked: trains to Berlin | outcome: every hour"


async def test_an_episode_that_the_conversation_shows_is_not_repeated() -> None:
    found: list[tuple[int, int]] = []

    @step
    async def look(text: str, ctx: Context[Any]) -> None:
        recall = await ctx.memory.layer.recall("tides", 200)
        found.append((text_of(recall, *ctx.items).count("asked: "), text_of(recall).count("asked: ")))

    async with harness(still()) as built:
        await built.run(agent("high at noon"), "tides in Hamburg", thread_id="t")
        session = built.session("ada", "trip")
        for answer in ("high at six", "low at noon"):
            await session.run(agent(answer), "tides in Brest")
        await session.run(look, "tides")
        await built.run(look, "tides", user_id="ada", thread_id="t")
    assert found == [(0, 2), (1, 1)]


async def test_one_thing_is_noted_once() -> None:
    layer = still()
    await layer.note("a", "b")
    await layer.note("a", "b")
    assert len(layer.episodes) == 1


async def test_the_oldest_go() -> None:
    layer = await past(max_episodes=2)
    assert [episode.asked for episode in layer.episodes] == ["a poem", "trains to Berlin"]


async def test_long_texts_are_cut_and_blank_ones_refused() -> None:
    layer = still(max_characters=20)
    await layer.note("word " * 50, "line\n" * 50)
    assert [len(layer.episodes[0].asked) <= 20, len(layer.episodes[0].outcome) <= 20] == [True, True]
    for asked, outcome in (("", "x"), ("x", " \n")):
        with pytest.raises(ToolArgumentsInvalid):
            await layer.note(asked, outcome)
    assert len(layer.episodes) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"max_episodes": 0},
        {"max_recalled": -1},
        {"max_characters": "x"},
        {"recent": -1},
        {"recent": 9},
        {"recent": True},
        {"children": "x"},
    ],
)
def test_wrong_settings(settings: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Episodic(**settings)
    assert caught.value.code == "episodic"


# -- in a run


class TestEpisodic(LayerCases):
    calls = (call("note", asked="a", outcome="b"),)
    turns = (call("note", asked="c", outcome="d"),)

    def make(self, **settings: Any) -> Episodic:
        return still(max_recalled=20, **settings)

    async def act(self, layer: Any) -> None:
        await layer.note("a", "b")

    async def fill(self, layer: Any) -> None:
        for number in range(20):
            await layer.note(f"hi, number {number}", "many words " * 10)

    async def put(self, layer: Any, text: str) -> None:
        await layer.note("x" + text, text + "x")


@pytest.mark.clause("002-50d")
async def test_a_run_becomes_an_episode_of_its_user() -> None:
    runtime = VirtualRuntime(start=START)
    model = ScriptedModel("At noon.", "I said so.", "Hello.")
    async with harness(Episodic(), runtime=runtime) as built:
        await built.run(call_model(model), "When is high tide?", user_id="ada")
        await runtime.advance(86_400)
        await built.run(call_model(model), "And again, when?", user_id="ada")
        await built.run(call_model(model), "When?", user_id="bob")
    seen = [[item.text for item in request.items if isinstance(item, Message)] for request in model.requests]
    assert seen[0] == ["When is high tide?"]
    assert seen[1][0] == (
        '<memory layer="layer">\n2025-01-01: asked: When is high tide? | outcome: At noon.\n</memory>'
    )
    assert seen[2] == ["When?"]


async def test_an_episode_of_another_session_says_so() -> None:
    model = ScriptedModel("At noon.", "I said so.")
    async with harness(Episodic(), runtime=VirtualRuntime(start=START)) as built:
        await built.session("ada", "harbour").run(call_model(model), "When is high tide?")
        await built.session("ada", "trip").run(call_model(model), "And again, when?")
    texts = [item.text for item in model.requests[1].items if isinstance(item, Message)]
    assert "2025-01-01, harbour: asked: When is high tide? | outcome: At noon." in texts[0]


async def test_episodes_of_earlier_releases_have_no_origin() -> None:
    codec = Codec([Episode])
    stored = codec.dumps({"a": Episode("tides", "at noon", START, "trip")}).replace(b',"origin":"trip"', b"")
    assert b"trip" not in stored
    assert codec.loads(stored, dict[str, Episode]) == {"a": Episode("tides", "at noon", START)}


async def test_a_run_without_a_user_is_refused() -> None:
    async with harness(Episodic()) as built:
        with pytest.raises(ConfigError) as caught:
            await built.run(reading, "hi")
    assert caught.value.code == "layer-scope"


async def test_how_an_execution_ended_is_told() -> None:
    @step
    async def abort(x: object, ctx: Context) -> None:
        ctx.abort("too late")

    async with harness(still()) as built:
        await built.run(call_model(ScriptedModel("Well.")) >> abort, "What is to be done?", thread_id="t")
        text = str((await built.run(reading, "hi", thread_id="t")).value)
    assert "asked='What is to be done?', outcome='aborted: too late'" in text


async def test_nothing_asked_is_no_episode() -> None:
    async with harness(still()) as built:
        await built.run(acting(lambda layer: layer.recall("", 1)), "hi", thread_id="t")
        assert (await built.run(reading, "hi", thread_id="t")).value == "{}"


async def test_a_run_that_was_interrupted_is_one_episode(tmp_path: Path) -> None:
    broken = [True]

    @step
    async def breaking(x: str) -> str:
        if broken[0]:
            raise ValueError("broken")
        return x

    flow = agent("At noon.") >> breaking
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with harness(still(), checkpoints=url) as built:
        await built.run(flow, "When?", run_id="r", thread_id="t", on_error="result")
        broken[0] = False
        await built.resume("r", flow)
        text = str((await built.run(reading, "hi", thread_id="t")).value)
    assert text.count("Episode(") == 1
    assert "asked='When?', outcome='At noon.'" in text


async def test_episodes_of_a_child_come_back() -> None:
    flow = spawn(acting(lambda layer: layer.note("a", "b"))) >> reading
    for children, kept in (("merge", 1), ("ignore", 0)):
        async with harness(still(children=children)) as built:
            assert str((await built.run(flow, "hi")).value).count("Episode(") == kept
