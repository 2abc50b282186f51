"""`SemanticRecall`: passages of the conversation, found again by what they are about."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import recall as benchmark
from noetic_py import Context, FunctionCall, Harness, InMemoryBackend, Memory, Message, call_model, loop, step, until
from noetic_py.core.events import LayerFailed, LayerWarned
from noetic_py.core.items import FunctionCallOutput
from noetic_py.errors import (
    ConfigError,
    LayerError,
    MissingExtra,
    StoreUnavailable,
    ToolArgumentsInvalid,
    VersionConflict,
)
from noetic_py.memory import (
    Embedder,
    HistoryWindow,
    Owner,
    Recall,
    Remembered,
    Scope,
    SemanticRecall,
    VectorQuery,
    WordEmbedder,
)
from noetic_py.memory.layers.common import COUNTER
from noetic_py.memory.layers.passages import LocalShelf, Passages
from noetic_py.memory.layers.vectors import Found, split, unit
from noetic_py.models.model import ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio

TOPICS = ("tide sea moon water", "bread oven flour", "car road wheel", "cat dog")

needs_words = pytest.mark.skipif(importlib.util.find_spec("wordllama") is None, reason="the extra is not installed")


@define
class TopicEmbedder:
    """Knows four topics by their words; counts what it is asked, and fails when it is told to."""

    asked: list[str] = field(factory=list[str])
    broken: Exception | None = None
    name: str = "test:topics"
    dimensions: int = len(TOPICS) + 1

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        if self.broken is not None:
            raise self.broken
        self.asked += texts
        return [[*(sum(word in text.lower() for word in topic.split()) for topic in TOPICS), 0.01] for text in texts]


def make(embedder: Any = None, **settings: Any) -> Memory:
    layer = SemanticRecall(embedder=embedder or TopicEmbedder(), **settings)

    class Mem(Memory):
        past: SemanticRecall = layer

    return Mem()


def shown(request: ModelRequest) -> str:
    return "\n".join(item.text for item in request.items if isinstance(item, Message | FunctionCallOutput))


def recalled(request: ModelRequest) -> str:
    found = [item.text for item in request.items if isinstance(item, Message) and '<memory layer="past">' in item.text]
    return found[0] if found else ""


async def test_alone() -> None:
    embedder = TopicEmbedder()
    layer = SemanticRecall(embedder=embedder)
    assert await layer.search("water") == []
    assert await layer.remember("The tide follows the moon.", origin="a book") == 1
    assert await layer.remember("Bread needs an oven.", role="user") == 1
    assert await layer.remember("The tide follows the moon.") == 0
    assert embedder.asked.count("The tide follows the moon.") == 1
    [found] = await layer.search("sea water")
    assert (found.text, found.role, found.origin) == ("The tide follows the moon.", "note", "a book")
    assert found.score > 0.9
    assert [each.text for each in await layer.search("flour", limit=1)] == ["Bread needs an oven."]
    assert len(await layer.search("tide and bread", limit=1)) == 1
    assert isinstance(embedder, Embedder)


async def test_the_same_words_count_too() -> None:
    layer = SemanticRecall(embedder=TopicEmbedder(), words=0.4, least=0.0)
    for number in (4711, 4712, 4713):
        await layer.remember(f"Order {number} is about a car.")
    found = await layer.search("car order 4712")
    assert found[0].text == "Order 4712 is about a car."
    by_vector = SemanticRecall(embedder=TopicEmbedder(), words=0)
    for number in (4711, 4712, 4713):
        await by_vector.remember(f"Order {number} is about a car.")
    assert [each.score for each in await by_vector.search("car order 4712")] == [1.0] * 3


async def test_the_oldest_make_room() -> None:
    layer = SemanticRecall(embedder=TopicEmbedder(), limit=3)
    for number in range(5):
        await layer.remember(f"Tide number {number}.")
    assert sorted(each.text for each in await layer.search("tide", 50)) == [f"Tide number {n}." for n in (2, 3, 4)]


async def test_what_was_said_is_recalled_in_a_later_run() -> None:
    model = ScriptedModel("It follows the moon.", "In an oven.", "As I said.")
    async with Harness(memory=make(scope=Scope.USER), model=model) as harness:
        await harness.run(call_model(), "Why is there a tide?", thread_id="one", user_id="ada")
        await harness.run(call_model(), "How is bread made?", thread_id="two", user_id="ada")
        await harness.run(call_model(), "Tell me about the sea.", thread_id="three", user_id="ada")
        assert recalled(model.requests[0]) == ""
        assert recalled(model.requests[1]) == ""
        text = recalled(model.requests[2])
        assert re.search(
            r"\[user, \d{4}-\d\d-\d\d, one\] Why is there a tide\?\n\[assistant, [\d-]+, one\] It fol", text
        )
        assert "bread" not in text
        other = ScriptedModel("no")
        await harness.run(call_model(other), "Tell me about the sea.", thread_id="one", user_id="bob")
        assert recalled(other.requests[0]) == ""


async def test_what_the_model_sees_anyway_is_not_recalled() -> None:
    call = FunctionCall(name="past__search", arguments={"query": "sea"})
    model = ScriptedModel([call], "done", "again")
    flow: Any = loop(call_model(model), until=until.no_tool_calls())
    async with Harness(memory=make()) as harness:
        await harness.run(flow, "Tell me about the tide.", thread_id="t")
        assert recalled(model.requests[1]) == ""
        # The model may look all the same.
        assert "Tell me about the tide." in next(
            item.text for item in model.requests[1].items if isinstance(item, FunctionCallOutput)
        )
        await harness.run(flow, "The sea?", thread_id="t")
        assert "Tell me about the tide." in recalled(model.requests[2])


async def test_what_is_nearest_besides_the_newest_is_found_however_many_these_are() -> None:
    layer = TopicEmbedder()

    class Mem(Memory):
        newest: HistoryWindow = HistoryWindow(max_turns=10)
        past: SemanticRecall = SemanticRecall(embedder=layer, top=1)

    texts = ["The tide and the harbour.", *["The tide, the tide."] * 20]
    model = ScriptedModel(*[f"Tide {number}." for number in range(21)])
    async with Harness(memory=Mem()) as harness:
        session = harness.session("ada", "t")
        for number, text in enumerate(texts):
            await session.run(call_model(model), f"{text} {number}")
    # Every newer message is nearer.
    assert "The tide and the harbour. 0" in recalled(model.requests[10])
    assert "The tide, the tide. 1" in recalled(model.requests[11])


async def test_of_a_long_conversation_nothing_is_repeated() -> None:
    model = ScriptedModel(*[f"Tide {number}." for number in range(25)])
    async with Harness(memory=make(), model=model) as harness:
        session = harness.session("ada", "t")
        for number in range(25):
            await session.run(call_model(), f"The tide {number}")
    assert [recalled(request) for request in model.requests] == [""] * 25


async def test_from_code_in_a_run() -> None:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder())

    @step
    async def learn(text: str, ctx: Context[Mem]) -> int:
        return await ctx.memory.past.remember(text, origin="handbook")

    @step
    async def find(query: str, ctx: Context[Mem]) -> list[str]:
        return [each.text for each in await ctx.memory.past.search(query)]

    async with Harness(memory=Mem(), checkpoints=InMemoryBackend()) as harness:
        assert (await harness.run(learn, "A wheel is round.", thread_id="t")).value == 1
        assert (await harness.run(learn, "A wheel is round.", thread_id="t")).value == 0
        assert (await harness.run(find, "road", thread_id="t")).value == ["A wheel is round."]
        assert (await harness.run(find, "road", thread_id="u")).value == []


async def test_recall_stays_below_its_budget() -> None:
    class Big(SemanticRecall):
        async def recall(self, query: str, budget: int) -> Recall | None:
            recall = await super().recall(query, budget)
            assert recall is not None
            assert callable(recall.content)
            found = recall.content(())
            assert isinstance(found, str)
            assert COUNTER.count_text(found).value <= budget
            seen.append(len(found))
            return recall

    seen: list[int] = []

    class Mem(Memory):
        past: Big = Big(embedder=TopicEmbedder(), budget=60, top=50)

    async with Harness(memory=Mem(), model=ScriptedModel(*["The tide again, and again."] * 12)) as harness:
        for number in range(12):
            await harness.run(call_model(), f"What about tide number {number}?", thread_id="t")
    assert 50 < max(seen) < 400


async def test_an_embedder_that_fails_does_no_harm_and_what_was_said_is_stored_later() -> None:
    embedder = TopicEmbedder(broken=RuntimeError("no power"))
    model = ScriptedModel("one", "two", "three")
    async with Harness(memory=make(embedder), model=model) as harness:
        async with harness.stream(call_model(), "The tide is high.", thread_id="t") as stream:
            failed = [event async for event in stream.events if isinstance(event, LayerFailed)]
            assert (await stream.result()).value == "one"
        assert [(event.layer, event.hook) for event in failed] == [("past", "recall"), ("past", "store")]
        assert all("no power" in event.error for event in failed)
        embedder.broken = None
        await harness.run(call_model(), "What about the sea?", thread_id="t")
        await harness.run(call_model(), "What about the sea?", thread_id="t")
    assert "What about the sea?" in recalled(model.requests[2])


@define
class OddEmbedder(TopicEmbedder):
    """Gives what no embedder should."""

    gives: Any = None

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        given: Sequence[Sequence[float]] = self.gives
        return given


@pytest.mark.parametrize(
    "gives", [[], [[1.0]], [[1.0] * 5, [1.0] * 5], [[float("nan")] * 5], [[float("inf"), 0, 0, 0, 0]]]
)
async def test_code_is_told_of_an_embedder_that_fails(gives: Any) -> None:
    with pytest.raises(LayerError, match="test:topics"):
        await SemanticRecall(embedder=OddEmbedder(gives=gives)).remember("a tide")
    with pytest.raises(LayerError, match="no power") as caught:
        await SemanticRecall(embedder=TopicEmbedder(broken=RuntimeError("no power")), id="past").search("a tide")
    assert caught.value.layer == "past"
    with pytest.raises(ToolArgumentsInvalid):
        await SemanticRecall(embedder=TopicEmbedder()).search(3)  # type: ignore[arg-type] # what the test is about


async def test_vectors_of_another_embedder_are_not_compared() -> None:
    first, second = TopicEmbedder(), TopicEmbedder(name="test:others")
    backend = InMemoryBackend()

    @step
    async def find(query: str, ctx: Context[Any]) -> int:
        return len(await ctx.memory["past"].search(query))

    async with Harness(memory=make(first), checkpoints=backend, model=ScriptedModel("yes")) as harness:
        await harness.run(call_model(), "The tide is high.", thread_id="t")
        assert (await harness.run(find, "sea", thread_id="t")).value == 1
    async with (
        Harness(memory=make(second), checkpoints=backend) as harness,
        harness.stream(find, "sea", thread_id="t") as stream,
    ):
        warned = [event.message async for event in stream.events if isinstance(event, LayerWarned)]
        assert (await stream.result()).value == 0
    assert len(warned) == 1
    assert "2 of 'test:topics'" in warned[0]


def answering() -> ScriptedModel:
    def turn(request: ModelRequest) -> Any:
        searched = any(isinstance(item, FunctionCallOutput) for item in request.items)
        return "The moon makes it." if searched else [FunctionCall(name="past__search", arguments={"query": "sea"})]

    return ScriptedModel(turn, turn)


def flow(model: ScriptedModel) -> Any:
    return loop(call_model(model), until=until.no_tool_calls())


async def test_a_resumed_run_does_not_embed_again_what_is_stored() -> None:
    whole = FaultyBackend(InMemoryBackend())
    async with Harness(memory=make(), checkpoints=whole) as harness:
        await harness.run(flow(answering()), "Why is there a tide?", run_id="r")
    backend = FaultyBackend(InMemoryBackend(), dies_at=whole.appends)
    with backend.outlived():
        await Harness(memory=make(), checkpoints=backend).run(flow(answering()), "Why is there a tide?", run_id="r")
    backend.revive()
    again = TopicEmbedder()
    async with Harness(memory=make(again), checkpoints=backend) as harness:
        assert (await harness.resume("r", flow(answering()))).value == "The moon makes it."
    assert again.asked == []


async def test_a_run_comes_out_the_same_wherever_it_dies() -> None:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder())

    kills = await assert_resumable_everywhere(
        lambda: loop(call_model(ScriptedModel(lambda request: "The moon makes it.")), until=until.no_tool_calls()),
        "Why is there a tide?",
        make=lambda backend: Harness(memory=Mem(), checkpoints=backend),
    )
    assert kills > 4


async def test_two_writers_both_keep_what_they_have() -> None:
    shelf = LocalShelf()
    one, other = Passages(10), Passages(10)
    await one.add(shelf, "e", [Found("a")], np.eye(2, dtype=np.float32)[:1])
    await other.add(shelf, "e", [Found("b")], np.eye(2, dtype=np.float32)[1:])
    assert await one.count(shelf) == await other.count(shelf) == 2
    assert await one.missing(shelf, "e", ["a", "b", "c", "c"]) == ["c"]


async def test_a_writer_that_always_comes_too_late_says_so() -> None:
    class Busy(LocalShelf):
        async def put(self, key: str, value: object, *, expected: int | None = None) -> int:
            if expected is not None:
                raise VersionConflict("somebody else was quicker")
            return await super().put(key, value)

    with pytest.raises(VersionConflict, match="all the time"):
        await Passages(10).add(Busy(), "e", [Found("a")], np.ones((1, 1), np.float32))


async def test_forgetting_is_of_one_scope_and_lasts() -> None:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), scope=Scope.USER)

    @step
    async def learn(text: str, ctx: Context[Mem]) -> int:
        return await ctx.memory.past.remember(text)

    @step
    async def find(query: str, ctx: Context[Mem]) -> list[str]:
        return [each.text for each in await ctx.memory.past.search(query)]

    @step
    async def forget(what: str, ctx: Context[Mem]) -> int:
        return await ctx.memory.past.forget()

    backend = InMemoryBackend()
    async with Harness(memory=Mem(), checkpoints=backend) as harness:
        for user in ("ada", "bob"):
            for text in ("The tide is high.", "A wheel is round."):
                await harness.run(learn, text, user_id=user)
        assert (await harness.run(forget, "all", user_id="ada")).value == 2
        assert (await harness.run(forget, "all", user_id="ada")).value == 0
        assert (await harness.run(find, "sea", user_id="ada")).value == []
        assert (await harness.run(find, "sea", user_id="bob")).value == ["The tide is high."]
        assert (await harness.run(learn, "The tide is high.", user_id="ada")).value == 1
        assert (await harness.run(find, "sea", user_id="ada")).value == ["The tide is high."]
    # Another process has nothing in memory.
    async with Harness(memory=Mem(), checkpoints=backend) as harness:
        assert (await harness.run(find, "sea", user_id="ada")).value == ["The tide is high."]


async def test_forgetting_and_adding_at_once_leave_what_a_reader_finds() -> None:
    class Racing(LocalShelf):
        racer: Any = None
        looked: int = 0

        async def keys(self) -> Sequence[str]:
            found = await super().keys()
            self.looked += 1
            if self.looked == 2:
                await self.racer()
            return found

        async def remove(self, key: str, *, expected: int | None = None) -> bool:
            if expected is not None and self.values[key][1] != expected:
                raise VersionConflict("another version is there")
            return await super().remove(key)

    shelf, one = Racing(), Passages(10)
    await one.add(shelf, "e", [Found("a")], np.ones((1, 1), np.float32))

    async def add() -> None:
        await Passages(10).add(shelf, "e", [Found("b")], np.ones((1, 1), np.float32))

    shelf.racer = add
    assert await one.forget(shelf) == 2
    assert await one.count(shelf) == await Passages(10).count(shelf) == 0
    assert shelf.values == {}


async def test_who_forgets_while_others_always_write_says_so() -> None:
    class Busy(LocalShelf):
        async def put(self, key: str, value: object, *, expected: int | None = None) -> int:
            raise VersionConflict("somebody else was quicker")

    with pytest.raises(VersionConflict, match="all the time"):
        await Passages(10).forget(Busy())


@define
class Recorded:
    """A database that keeps whose it was asked for, and everything in lists."""

    asked: list[Owner] = field(factory=list[Owner])
    kept: dict[Owner, list[Found]] = field(factory=dict[Owner, list[Found]])
    limits: set[int] = field(factory=set[int])
    old: dict[Owner, list[Found]] = field(factory=dict[Owner, list[Found]])

    async def missing(self, owner: Owner, embedder: str, texts: Sequence[str], /) -> Sequence[str]:
        self.asked.append(owner)
        there = {each.text for each in self.kept.get(owner, [])}
        return [text for text in dict.fromkeys(texts) if text not in there]

    async def add(
        self, owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]], /, *, limit: int
    ) -> int:
        self.asked.append(owner)
        self.limits.add(limit)
        assert all(len(vector) == len(TOPICS) + 1 for _, vector in given)
        self.kept.setdefault(owner, []).extend(passage for passage, _ in given)
        return len(given)

    async def nearest(self, owner: Owner, embedder: str, query: VectorQuery, /) -> Sequence[Found]:
        self.asked.append(owner)
        return self.kept.get(owner, [])[: query.limit]

    async def forget(self, owner: Owner, where: Mapping[str, str] | None = None, /) -> int:
        self.asked.append(owner)
        kept, pairs = self.kept.pop(owner, []), (where or {}).items()
        left = [each for each in kept if not pairs <= each.metadata.items()]
        if left:
            self.kept[owner] = left
        return len(kept) - len(left)

    async def scrub(self) -> Sequence[str]:
        return ["the lists' files: end the process", "copies of them"]

    async def others(self, owner: Owner, embedder: str, /, *, limit: int) -> Sequence[Found]:
        self.asked.append(owner)
        return self.old.get(owner, [])[:limit]

    async def replace(self, owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]], /) -> int:
        self.asked.append(owner)
        taken = [passage for passage, _ in given]
        self.old[owner] = [passage for passage in self.old[owner] if passage not in taken]
        self.kept.setdefault(owner, []).extend(taken)
        return len(taken)


async def test_a_database_is_asked_in_the_name_of_each_scope() -> None:
    database = Recorded()
    scopes = {"past": Scope.THREAD, "mine": Scope.USER, "all": Scope.GLOBAL, "now": Scope.EXECUTION}

    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), vectors=database)
        mine: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), vectors=database, scope=Scope.USER)
        all: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), vectors=database, scope=Scope.GLOBAL, limit=7)
        now: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), vectors=database, scope=Scope.EXECUTION)

    @step
    async def learn(text: str, ctx: Context[Mem]) -> str:
        for name in scopes:
            layer: Any = ctx.memory[name]
            assert await layer.remember(text) == 1
            assert await layer.remember(text) == 0
            assert [each.text for each in await layer.search("anything")] == [text]
            assert await layer.forget() == 1
        return ctx.id

    async with Harness(memory=Mem(), checkpoints=InMemoryBackend()) as harness:
        execution = (await harness.run(learn, "The tide is high.", thread_id="t", user_id="ada")).value
    owners = {"past": "t", "mine": "ada", "all": "", "now": execution}
    assert set(database.asked) == {Owner(scopes[name], owners[name], name) for name in scopes}
    assert database.limits == {7, 2000}
    # By itself a layer has no owner, and keeps what it is told in memory.
    alone = SemanticRecall(embedder=TopicEmbedder(), vectors=database)
    before = list(database.asked)
    assert await alone.remember("The tide is high.") == 1
    assert await alone.forget() == 1
    assert database.asked == before


@pytest.mark.parametrize("database", [None, Recorded()], ids=["storage", "database"])
async def test_passages_take_the_place_of_those_with_the_same_metadata(database: Recorded | None) -> None:
    embedder = TopicEmbedder()

    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=embedder, vectors=database, scope=Scope.USER, limit=4)

    @step
    async def found(query: str, ctx: Context[Mem]) -> list[tuple[str, str]]:
        return sorted((each.text, each.metadata.get("page", "")) for each in await ctx.memory.past.search(query, 50))

    @step
    async def put(texts: Sequence[str], ctx: Context[Mem]) -> int:
        given = [Found(text, metadata={"page": str(page)}) for page, text in enumerate(texts)]
        return await ctx.memory.past.replace({"book": "pilot"}, given)

    @step
    async def note(text: str, ctx: Context[Mem]) -> int:
        return await ctx.memory.past.remember(text)

    async with Harness(memory=Mem(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(note, "A car.", user_id="ada")
        assert (await harness.run(put, ["tide", "moon", "tide"], user_id="ada")).value == 2
        assert (await harness.run(put, ["sea", "moon"], user_id="ada")).value == 2
        seen = [("A car.", ""), ("moon", "1"), ("sea", "0")]
        assert (await harness.run(found, "tide car", user_id="ada")).value == seen
        # The vectors come first, so what was there stays when there are none.
        embedder.broken = RuntimeError("offline")
        with pytest.raises(LayerError, match="offline"):
            _ = (await harness.run(put, ["water"], user_id="ada")).value
        embedder.broken = None
        assert (await harness.run(found, "tide car", user_id="ada")).value == seen
        with pytest.raises(ConfigError, match="5 passages is not valid"):
            _ = (await harness.run(put, list("abcde"), user_id="ada")).value
        assert (await harness.run(put, list[str](), user_id="ada")).value == 0
        assert (await harness.run(found, "tide car", user_id="ada")).value == [("A car.", "")]


async def test_a_replacement_needs_metadata() -> None:
    layer = SemanticRecall(embedder=TopicEmbedder())
    with pytest.raises(ConfigError, match="expected metadata"):
        await layer.replace({}, [Found("tide")])
    assert await layer.replace({"book": "pilot"}, [Found("tide")]) == 1
    assert await layer.forget({"book": "other"}) == 0
    assert await layer.forget({"book": "pilot"}) == 1


async def test_a_database_that_fails_does_no_harm_to_a_run() -> None:
    class Broken(Recorded):
        async def nearest(self, owner: Owner, embedder: str, query: VectorQuery, /) -> Sequence[Found]:
            raise StoreUnavailable("nobody answers", where="there", reason="timeout", hint="look there")

        async def missing(self, owner: Owner, embedder: str, texts: Sequence[str], /) -> Sequence[str]:
            raise ValueError("odd")

        async def forget(self, owner: Owner, where: Mapping[str, str] | None = None, /) -> int:
            raise ConfigError("not so", code="odd")

    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), vectors=Broken())

    async with (
        Harness(memory=Mem(), model=ScriptedModel("one")) as harness,
        harness.stream(call_model(), "The tide is high.") as stream,
    ):
        failed = [event async for event in stream.events if isinstance(event, LayerFailed)]
        assert (await stream.result()).value == "one"
    assert [(event.layer, event.hook) for event in failed] == [("past", "recall"), ("past", "store")]
    assert "the store of vectors failed: nobody answers" in failed[0].error
    assert "the store of vectors failed: ValueError: odd" in failed[1].error

    @step
    async def find(query: str, ctx: Context[Mem]) -> None:
        with pytest.raises(LayerError, match="nobody answers") as caught:
            await ctx.memory.past.search(query)
        assert (caught.value.hint, caught.value.layer) == ("look there", "past")
        assert isinstance(caught.value.__cause__, StoreUnavailable)
        with pytest.raises(ConfigError, match="not so"):
            await ctx.memory.past.forget()

    async with Harness(memory=Mem()) as harness:
        await harness.run(find, "sea")


@given(st.text(max_size=400), st.integers(50, 200))
def test_passages_are_short_and_hold_all_words(text: str, length: int) -> None:
    passages = split(text, length)
    assert all(0 < len(passage) <= length for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


def test_a_vector_without_a_direction() -> None:
    assert unit([0.0, 0.0]) == [0.0, 0.0]
    assert unit([3.0, 4.0]) == [0.6, 0.8]


def test_its_state_holds_no_texts() -> None:
    assert SemanticRecall(embedder=TopicEmbedder()).state == Remembered("", 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"limit": 0},
        {"top": 0},
        {"length": 10},
        {"least": float("nan")},
        {"words": -1},
        {"embedder": object()},
        {"vectors": object()},
        {"rerank": object()},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        SemanticRecall(**settings)
    assert caught.value.code == "semantic-settings"


# ---------------------------------------------------------------------------------------------------- the real embedder


@needs_words
async def test_word_vectors_know_what_is_near() -> None:
    embedder = WordEmbedder()
    assert await embedder.embed([]) == []
    tide, sea, bread, nothing = await embedder.embed(["the tide is rising", "waves on the ocean", "baking bread", ""])
    assert len(tide) == embedder.dimensions
    assert sum(a * b for a, b in zip(tide, sea, strict=True)) > sum(a * b for a, b in zip(tide, bread, strict=True))
    assert sum(value * value for value in tide) == pytest.approx(1)
    assert all(value == value for value in nothing)  # no not-a-number


@needs_words
def test_the_word_vectors_need_no_network_and_leave_the_logging_alone() -> None:
    code = """
import socket, logging, anyio
def refuse(*args, **kwargs): raise AssertionError("a socket")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from noetic_py.memory import WordEmbedder
anyio.run(WordEmbedder().embed, ["a tide"])
assert logging.getLogger().handlers == [] and logging.getLogger().level == logging.WARNING
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordEmbedder, "_model", None)

    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    with pytest.raises(MissingExtra, match=r"noetic-py\[embeddings\]"):
        await SemanticRecall().search("a tide")


@needs_words
@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it_finds_more_than_a_search_by_words() -> None:
    assert len(benchmark.questions()) >= 25
    found = await benchmark.share(await benchmark.filled())
    assert found >= 0.45
    assert found > benchmark.share_by_words()


# ------------------------------------------------------------------------------------- dates, filters, order, embedders


async def test_what_is_recalled_has_a_readable_date_and_origin() -> None:
    model = ScriptedModel(*["It follows the moon."] * 3)
    async with Harness(memory=make(scope=Scope.USER), model=model) as harness:
        await harness.session("ada", "harbour").run(call_model(), "Why is there a tide?")
        await harness.session("ada", "0123456789abcdef0123456789abcdef").run(call_model(), "Is the sea salt?")
        await harness.session("ada", "other").run(call_model(), "Tell me about the tide and the sea.")
    lines = recalled(model.requests[2]).splitlines()
    today = datetime.now(UTC).date().isoformat()
    assert f"[user, {today}, harbour] Why is there a tide?" in lines
    # An id that says nothing to a reader is left out.
    assert f"[user, {today}] Is the sea salt?" in lines
    assert not re.search("[0-9a-f]{32}", "".join(lines))


async def test_found_passages_have_no_digest_of_a_session() -> None:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), scope=Scope.USER)

    @step
    async def find(query: str, ctx: Context[Mem]) -> list[tuple[str, str]]:
        return [(each.thread, each.origin) for each in await ctx.memory.past.search(query)]

    async with Harness(memory=Mem(), model=ScriptedModel("It follows the moon.")) as harness:
        await harness.session("ada", "harbour").run(call_model(), "Why is there a tide?")
        found = (await harness.run(find, "sea", user_id="ada")).value
    assert set(found) == {("", "harbour")}


async def test_filters_of_time_and_metadata() -> None:
    layer = SemanticRecall(embedder=TopicEmbedder())
    for day in (1, 2, 3):
        said = datetime(2026, 5, day, tzinfo=UTC)
        await layer.remember(f"Tide of day {day}.", said=said, metadata={"port": "Brest" if day < 3 else "Dover"})
    noon = datetime(2026, 5, 2, 0, 0)  # noqa: DTZ001 # without a zone it is UTC

    async def found(**filters: Any) -> list[str]:
        return sorted(each.text[-2] for each in await layer.search("tide", **filters))

    assert await found() == ["1", "2", "3"]
    assert await found(since=noon) == ["2", "3"]
    assert await found(until=noon) == ["1"]
    assert await found(where={"port": "Brest"}) == ["1", "2"]
    assert await found(where={"port": "Brest"}, since=noon) == ["2"]
    assert await found(where={"port": "Brest", "book": "pilot"}) == []
    [third] = await layer.search("tide", where={"port": "Dover"})
    assert (third.said, third.metadata) == (datetime(2026, 5, 3, tzinfo=UTC), {"port": "Dover"})


@define
class Backwards:
    """Likes what was stored last."""

    gives: Any = None
    asked: list[int] = field(factory=list[int])

    async def rerank(self, query: str, found: Sequence[Found], /) -> Sequence[float]:
        self.asked.append(len(found))
        if isinstance(self.gives, Exception):
            raise self.gives
        scores: Sequence[float] = [each.number for each in found] if self.gives is None else self.gives
        return scores


async def test_a_reranker_orders_four_times_as_many_as_are_asked_for() -> None:
    reranker = Backwards()
    layer = SemanticRecall(embedder=TopicEmbedder(), rerank=reranker)
    for number in range(9):
        await layer.remember(f"Tide number {number}.")
    assert [each.text[-2] for each in await layer.search("tide", limit=2)] == ["7", "6"]
    assert reranker.asked == [8]
    for gives in ([1.0], [float("nan")] * 8, RuntimeError("no power")):
        broken = SemanticRecall(embedder=TopicEmbedder(), rerank=Backwards(gives))
        for number in range(9):
            await broken.remember(f"Tide number {number}.")
        with pytest.raises(LayerError, match="the reranker"):
            await broken.search("tide", limit=2)


@pytest.mark.parametrize("with_database", [False, True])
async def test_another_embedder_is_told_of_and_mended_by_a_reindex(with_database: bool) -> None:
    backend, database = InMemoryBackend(), Recorded() if with_database else None

    @step
    async def reindex(what: str, ctx: Context[Any]) -> int:
        count: int = await ctx.memory["past"].reindex()
        return count

    async def warnings(harness: Any, model: ScriptedModel) -> list[LayerWarned]:
        async with harness.stream(call_model(model), "The sea?", thread_id="t") as stream:
            found = [event async for event in stream.events if isinstance(event, LayerWarned)]
            await stream.result()
        return found

    first = make(TopicEmbedder(), vectors=database)
    async with Harness(memory=first, checkpoints=backend, model=ScriptedModel("It is.")) as harness:
        await harness.run(call_model(), "The tide is high.", thread_id="t")
    if database is not None:
        owner = Owner(Scope.THREAD, "t", "past")
        database.old[owner] = database.kept.pop(owner)
    model = ScriptedModel("One.", "Two.")
    second = make(TopicEmbedder(name="test:others"), vectors=database)
    async with Harness(memory=second, checkpoints=backend) as harness:
        [warned] = await warnings(harness, model)
        assert warned.layer == "past"
        assert "another embedder than 'test:others' are not found" in warned.message
        assert "reindex()" in warned.message
        assert recalled(model.requests[0]) == ""
        assert (await harness.run(reindex, "all", thread_id="t")).value == 2
        assert (await harness.run(reindex, "all", thread_id="t")).value == 0
        assert await warnings(harness, model) == []
        assert "The tide is high." in recalled(model.requests[1])


class FailingEmbedder(TopicEmbedder):
    """Fails once, after so many calls."""

    def __init__(self, name: str, after: int) -> None:
        super().__init__(name=name)
        self.left = after

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("no power")
        return await super().embed(texts)


@pytest.mark.parametrize("scope", [Scope.THREAD, Scope.USER, Scope.GLOBAL])
async def test_all_owners_are_indexed_anew_and_a_call_that_failed_goes_on(scope: Scope) -> None:
    backend = InMemoryBackend()
    names = ["ada", "bob", "thread", "user", "past"]

    def of(embedder: TopicEmbedder) -> Memory:
        return make(embedder, scope=scope)

    async with Harness(
        memory=of(TopicEmbedder()), checkpoints=backend, model=ScriptedModel(*["It is."] * 5)
    ) as harness:
        for name in names:
            await harness.run(call_model(), f"The tide is high, says {name}.", thread_id=name, user_id=name)
        assert [each.changed async for each in harness.reindex()] == [0] * (1 if scope is Scope.GLOBAL else 5)
    broken = FailingEmbedder("test:others", 3)
    done: list[str] = []
    async with Harness(memory=of(broken), checkpoints=backend) as harness:
        with pytest.raises(LayerError, match="no power") if scope is not Scope.GLOBAL else nullcontext():
            async for each in harness.reindex():
                assert each.changed == (6 if scope is Scope.GLOBAL else 2)
                done.append(each.owner)
        again = [each async for each in harness.reindex()]
    wanted = [""] if scope is Scope.GLOBAL else sorted(names)
    assert [each.owner for each in again] == wanted
    assert [each.owner for each in again if each.changed] == [name for name in wanted if name not in done]
    assert [(each.layer, each.done, each.total) for each in again] == [
        ("past", place + 1, len(wanted)) for place in range(len(wanted))
    ]
    model = ScriptedModel("One.")
    async with Harness(memory=of(TopicEmbedder(name="test:others")), checkpoints=backend, model=model) as harness:
        await harness.run(call_model(), "The sea?", thread_id="ada", user_id="ada")
        assert "says ada." in recalled(model.requests[0])
        assert scope is Scope.GLOBAL or "says bob." not in recalled(model.requests[0])


async def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "noetic_py.memory.layers.passages"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"noetic-py\[embeddings\]"):
        await SemanticRecall(embedder=TopicEmbedder()).search("a tide")
    with pytest.raises(MissingExtra, match=r"noetic-py\[embeddings\]"):
        await SemanticRecall(embedder=TopicEmbedder(), vectors=Recorded())._vectors(["a"])


def test_numpy_is_loaded_with_the_first_text() -> None:
    code = "import sys, noetic_py, noetic_py.memory as m; m.SemanticRecall(); assert 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
