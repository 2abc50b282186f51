"""Deleting and pruning runs: with a run goes what only this run could have read."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, acting_as, step
from noetic_py.access import AccessRequest, Principal
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.memory import MemoryLayer, Scope
from noetic_py.memory.functions import function
from noetic_py.runner.runs import all_scopes

pytestmark = pytest.mark.anyio


class Drawer(MemoryLayer[list[str]]):
    """Keeps values beside its state."""

    @function
    async def put(self, value: str) -> None:
        await self.storage.put(value, value)


class Mem(Memory):
    mine: Drawer = Drawer(scope=Scope.EXECUTION)
    ours: Drawer = Drawer(scope=Scope.USER)


class All:
    """A policy that allows everything."""

    async def allows(self, request: AccessRequest) -> bool:
        return True


@step
async def keep(value: str, ctx: Context[Mem]) -> str:
    await ctx.memory.mine.put(value)
    await ctx.memory.ours.put(value)
    return value


async def kept_alone(backend: CheckpointBackend) -> set[str]:
    """The runs that own values."""
    found = [scope for scope in await all_scopes(backend, ()) if "execution" in scope or scope[1:2] == ("run",)]
    return {part for scope in found for part in scope if part in ("one", "two", "three")}


async def of_user(backend: CheckpointBackend) -> int:
    scopes = [scope for scope in await all_scopes(backend, ()) if "user" in scope]
    return sum([len(await backend.scan(scope)) for scope in scopes])


@pytest.mark.parametrize("way", ["delete", "prune", "prune what is allowed"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_with_a_run_goes_what_it_alone_owns(kind: str, way: str, tmp_path: Path) -> None:
    backend: CheckpointBackend = InMemoryBackend() if kind == "memory" else SqliteBackend(tmp_path / "runs.db")
    access = All() if way == "prune what is allowed" else None
    artifacts = StoredArtifacts(backend)
    services: dict[type[Any], object] = {ArtifactStore: artifacts}
    async with Harness(memory=Mem(), checkpoints=backend, access=access, services=services, plugins=()) as harness:
        with acting_as(Principal("ada")):
            for name in ("one", "two", "three"):
                await harness.run(keep, name, run_id=name, user_id="ada", thread_id=f"thread of {name}")
                await artifacts.save(ArtifactOwner("run", name), "page", b"text")
            await artifacts.save(ArtifactOwner("user", "ada"), "page", b"text")
            assert await kept_alone(backend) == {"one", "two", "three"}
            shared = await of_user(backend)
            assert shared > 0
            if way == "delete":
                await harness.runs.delete("one")
                await harness.runs.delete("two")
                await harness.runs.delete("two")
            else:
                assert await harness.runs.prune(keep=1, older_than=timedelta(0)) == 2
            assert await kept_alone(backend) == {"three"}
            assert await of_user(backend) == shared
