"""Runs that are signed, and databases that another program has written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from attrs import frozen
from noetic_signing import Signer, Signing

from noetic_py import Context, Harness, Memory, Message, StateBag, step
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend, Record, RunEntry, SqliteBackend

SIGNER = Signer.generate()
STORE = (("noetic", "store"), "identity")


@step
async def one(text: str, ctx: Context) -> str:
    ctx.items.append(Message.user(f"{text}: one"))
    return text + "1"


@step
async def two(text: str, ctx: Context[Memory, StateBag]) -> str:
    ctx.state["seen"] = text
    return text + "2"


@step
async def three(text: str) -> str:
    return text + "3"


flow = one >> two >> three


def harness(backend: CheckpointBackend, signing: Signing | None = None) -> Harness[Any]:
    return Harness(checkpoints=backend, plugins=(), record_transforms=[signing or Signing(SIGNER)])


@frozen
class Kept:
    """What a database holds of a run."""

    records: tuple[Record, ...]
    entry: RunEntry
    store: bytes

    async def put(self, backend: CheckpointBackend, records: Sequence[Record] | None = None, **parts: Any) -> None:
        """Write it to a database, as a program without the key can: with other records, summary, status or run id.

        The database passes for the one that it was in, unless `store` says otherwise.
        """
        if await backend.get(*STORE) is None:
            await backend.put(*STORE, parts.get("store", self.store))
        await backend.append(
            parts.get("run_id", self.entry.run_id),
            expected_position=0,
            fence=0,
            records=self.records if records is None else records,
            summary=parts.get("summary", self.entry.summary),
            status=parts.get("status", self.entry.status),
        )


async def kept(backend: CheckpointBackend, run_id: str = "r") -> Kept:
    records: list[Record] = []
    while page := await backend.read(run_id, after=len(records)):
        records += page
    entry = await backend.entry(run_id)
    assert entry is not None
    store = await backend.get(*STORE)
    return Kept(tuple(records), entry, b"" if store is None else store.value)


async def signed_run(text: str = "go", run_id: str = "r", signing: Signing | None = None) -> Kept:
    backend = InMemoryBackend()
    result = await harness(backend, signing).run(flow, text, run_id=run_id, user_id="ada")
    assert result.value == f"{text}123"
    return await kept(backend, run_id)


_numbers = count()


@asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncGenerator[CheckpointBackend]:
    """An empty database."""
    backend = InMemoryBackend() if kind == "memory" else SqliteBackend(folder / f"{next(_numbers)}.db")
    async with backend:
        yield backend
