"""`harness.erase`: what was erased is in no object of the process any more, whichever cache it was in."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, ReadContext, SessionPolicy, call_model, step
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.checkpoints.signed import SignedBackend
from noetic_py.core.caches import Cache, cached, clear_caches
from noetic_py.memory import Compaction, Episodic
from noetic_py.testing import ScriptedModel
from noetic_py.tools.permissions import PermissionRule
from tests.erasing import harness_on, lives
from tests.test_checkpoints_signed import Sum, Veil

pytestmark = pytest.mark.anyio

MARK = "erased-marker"
MAKES: dict[str, Callable[[Path], CheckpointBackend]] = {
    "memory": lambda folder: InMemoryBackend(),
    "sqlite": lambda folder: SqliteBackend(folder / "runs.db"),
    "signed": lambda folder: SignedBackend(InMemoryBackend(), [Sum(), Veil()]),
}


def holders(mark: str) -> list[str]:
    """The types of the objects that hold a text with a mark, but for the mark itself."""
    return [f"{type(each).__module__}.{type(each).__qualname__}: {text[:80]!r}" for each, text in _held(mark)]


def _held(mark: str) -> Iterator[tuple[object, str | bytes]]:
    data = mark.encode()
    gc.collect()
    for each in gc.get_objects():
        if isinstance(each, FrameType):
            continue
        for found in gc.get_referents(each):
            in_text = isinstance(found, str) and mark in found and found != mark
            if in_text or (isinstance(found, bytes) and data in found):
                yield each, found


def forgotten(model: ScriptedModel) -> None:
    """Drop what a model of these tests has of its requests."""
    assert isinstance(model.requests, list)
    model.requests.clear()


@pytest.mark.parametrize("kind", MAKES)
async def test_no_object_of_the_process_holds_what_was_erased(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel(*["Fine."] * 40)
    async with MAKES[kind](tmp_path) as backend, harness_on(backend, model=model) as harness:
        await lives(harness, "ann", MARK)
        assert len(holders(MARK)) > 20
        await harness.erase("ann")
        forgotten(model)
        caplog.clear()
        assert holders(MARK) == []


class Said(Memory):
    past: Episodic = Episodic()
    smaller: Compaction = Compaction(window=200, tiers=("window",))


def told(ctx: ReadContext[Said]) -> str:
    """Instructions that say something of the user."""
    return f"This is for {ctx.run_id}."


@step
async def records(text: str, ctx: Context[Said]) -> str:
    assert not PermissionRule("deny", where={"text": "2026-01-01"}).fits("any", {"text": text[:50]})
    await ctx.memory.past.note(text, f"{text} is known")
    return text


async def test_layers_and_steps_hold_nothing_without_a_store_either(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(*["Fine."] * 40)
    answers = records >> call_model(instructions=told)
    async with Harness(memory=Said(), model=model, plugins=()) as harness:
        for number in range(3):
            await harness.run(answers, f"{MARK} {number} " * 40, user_id="ann", run_id=f"{MARK}-{number}")
        assert harness.explain_view(f"{MARK}-2").blocks
        assert len(holders(MARK)) > 5
        await harness.run(answers, "kept", user_id="bob", run_id="kept")
        await harness.erase("ann")
        forgotten(model)
        caplog.clear()
        assert holders(MARK) == []
        assert harness.explain_view("kept").blocks


async def test_a_harness_forgets_what_another_one_has_erased_when_it_erases_too() -> None:
    backend, policy = InMemoryBackend(), SessionPolicy(persist="manual")
    async with (
        Harness(checkpoints=backend, plugins=(), model=ScriptedModel("Fine."), sessions=policy) as first,
        Harness(checkpoints=backend, plugins=()) as second,
    ):
        session = first.session("ann", "trip")
        await session.run(call_model(), "in Brest")
        found = await second.erase("ann")
        assert any("erase the user there, too" in each for each in found.remaining)
        await first.erase("ann")
        assert await session.save() == 0
        assert list(await session.items()) == []


def test_a_cache_keeps_what_was_used_last() -> None:
    cache: Cache[str, Any] = Cache(2)
    assert [cache.put(key, key * 2) for key in "ab"] == ["aa", "bb"]
    assert cache.get("a") == "aa"
    cache.put("c", "cc")
    assert ("a" in cache, cache.get("b"), cache.get("c")) == (True, None, "cc")
    cache.drop("c")
    cache.drop("c")
    assert cache.get("c") is None
    sized: Cache[str, str] = Cache(5, size=len)
    for key in ("123", "45", "6"):
        sized.put(key, key)
    assert [sized.get(key) for key in ("123", "45", "6")] == [None, "45", "6"]
    sized.put("large", "more than the limit")
    assert (sized.get("6"), sized.get("large")) == (None, "more than the limit")


def test_clearing_drops_what_is_in_caches_and_what_functions_remember() -> None:
    calls: list[str] = []

    @cached(10)
    def heard(text: str) -> str:
        calls.append(text)
        return text.upper()

    cache: Cache[str, str] = Cache(10)
    cache.put("a", heard("a"))
    assert (heard("a"), calls) == ("A", ["a"])
    clear_caches()
    assert cache.get("a") is None
    assert (heard("a"), calls) == ("A", ["a", "a"])
