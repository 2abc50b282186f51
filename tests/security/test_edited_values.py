"""Values beside the journals that were edited under a valid checksum: whatever reads them reads or refuses by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, MemoryLayer, call_model, errors, step
from noetic_py.access import ALLOW_ALL
from noetic_py.checkpoints.memory import MemoryStore
from noetic_py.core.runtime import SYSTEM
from noetic_py.core.values import is_dict, is_list
from noetic_py.journal.stored import StoredValue
from noetic_py.memory import Scope, function
from noetic_py.runner.runs import Runs
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

ODD: list[Any] = [None, 0.5, [[]], {"$": 1}]
Place = tuple[tuple[str, ...], str]


class Facts(MemoryLayer[dict[str, int]]):
    scope: Scope = Scope.THREAD

    def initial(self) -> dict[str, int]:
        return {}

    @function
    async def count(self) -> int:
        """Count."""
        self.state = {"a": self.state.get("a", 0) + 1}
        return self.state["a"]


class Newer(Facts):
    schema_version = 2

    def migrate(self, state: Any, version: Any) -> dict[str, int]:
        return {"a": int(state["a"])}


class Mem(Memory):
    facts: Facts = Facts()


class Next(Memory):
    facts: Facts = Newer(id="facts")


@step
async def talk(text: str, ctx: Context[Any, Any]) -> str:
    return f"{text} {await ctx.memory.facts.count()}"


flow = talk >> call_model()


def harness(backend: InMemoryBackend, memory: Memory) -> Harness[Any]:
    return Harness(model=ScriptedModel(*["said"] * 9), memory=memory, checkpoints=backend, plugins=())


async def world() -> InMemoryBackend:
    """A session with a turn behind it and a message before it, and a run of which a stop is asked."""
    backend = InMemoryBackend()
    async with harness(backend, Mem()) as running:
        session = running.session("ada", "one")
        await session.run(flow, "hi")
        await session.send("later")
    # Another process has the run, for as long as the test takes.
    await backend.acquire("r", ttl=1e6)
    letter = {"asked": {"kind": "wrap_up", "reason": "late", "key": "k"}, "until": 4e9, "taken": None}
    await backend.put(("run stops",), "r", json.dumps(letter).encode())
    return backend


def kept(backend: InMemoryBackend) -> dict[Place, StoredValue]:
    store: MemoryStore = getattr(backend, "_store")  # noqa: B009 # no method of a backend lists the scopes
    return {(scope, key): value for scope, found in store.values.items() for key, value in found.items()}


def edited(tree: Any) -> Iterator[Any]:
    """A value with each of its parts in turn left out, or replaced by each of the odd ones."""
    yield from ODD
    if is_dict(tree):
        for key, part in tree.items():
            yield {name: each for name, each in tree.items() if name != key}
            yield from ({**tree, key: each} for each in edited(part))
    elif is_list(tree):
        for at, part in enumerate(tree):
            yield [*tree[:at], *tree[at + 1 :]]
            yield from ([*tree[:at], each, *tree[at + 1 :]] for each in edited(part))


async def read(room: str, backend: InMemoryBackend, memory: Memory) -> None:
    """Do what reads such values."""
    if room == "run stops":
        await Runs(backend, SYSTEM, ALLOW_ALL).wrap_up("r", "now", wait=0)
        return
    async with harness(backend, memory) as running:
        session = running.session("ada", "one")
        if room == "memory":
            await session.dump()
            await session.run(flow, "again")
        else:
            await session.queued()
            await session.next_turn(flow)


PLACES = ["session queue", "memory", "run stops"]


@pytest.mark.parametrize("room", PLACES)
async def test_a_value_that_was_edited_is_read_or_refused_by_name(room: str) -> None:
    backend = await world()
    before = kept(backend)
    places = [place for place in before if place[0][0] == room]
    assert places
    refused = 0
    for place in places:
        for tree in [*edited(json.loads(before[place].value))][:: 3 if room == "session queue" else 1]:
            for memory in (Mem(), Next()) if room == "memory" else (Mem(),):
                for (scope, key), value in before.items():
                    await backend.put(scope, key, value.value)
                await backend.put(*place, json.dumps(tree).encode())
                try:
                    with anyio.fail_after(20):
                        await read(room, backend, memory)
                except errors.NoeticError as error:
                    cause = error.__cause__ if isinstance(error, errors.StepFailed) else None
                    # What a layer's own function makes of a value is its own.
                    assert cause is None or isinstance(cause, errors.NoeticError) or room == "memory", tree
                    refused += 1
    assert refused
