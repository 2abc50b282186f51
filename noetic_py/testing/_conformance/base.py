"""The base of all cases: how a backend is made, and how journals are written and read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import RunNotFound
from noetic_py.journal.stored import Record

__all__ = ["Suite", "equal", "everything", "fill", "journal", "payloads", "record"]

SCOPE = ("user", "u-1", "layer", "facts")


class Suite:
    """The methods that the author of a backend fills in."""

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    def make(self, folder: Path) -> CheckpointBackend:
        raise NotImplementedError("make(folder) has to make a backend that stores in `folder`")

    async def lapse(self, backend: CheckpointBackend) -> None:
        raise NotImplementedError("lapse(backend) has to let every lease of `backend` end that was not released")

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncGenerator[CheckpointBackend]:
        async with self.make(tmp_path) as made:
            yield made


def equal(actual: object, expected: object) -> None:
    """Fail unless two values are equal; said with both, because assertions of a library are not rewritten."""
    if actual != expected:
        pytest.fail(f"is      {actual!r:.2000}\nnot as  {expected!r:.2000}")


def record(text: str, *, kind: str = "Test", path: tuple[str, ...] = ("flow", "step#2")) -> Record:
    return Record(kind, path, text.encode())


async def fill(
    backend: CheckpointBackend, run_id: str, *counts: int, fence: int = 0, status: str | None = None
) -> list[Record]:
    """Append transactions of so many records each, behind what is there; gives the new records."""
    head = await backend.head(run_id)
    position = 0 if head is None else head.position
    written: list[Record] = []
    for count in counts:
        records = [record(f"{run_id}/{position + index}") for index in range(count)]
        position = await backend.append(run_id, expected_position=position, fence=fence, records=records, status=status)
        written += records
    return written


async def everything(backend: CheckpointBackend, run_id: str, *, limit: int = 1000) -> list[Record]:
    """A whole journal, page by page."""
    records: list[Record] = []
    while page := await backend.read(run_id, after=len(records), limit=limit):
        if len(page) > limit:
            pytest.fail(f"a page of {limit} holds {len(page)}")
        records += page
    return records


def payloads(records: Sequence[Record]) -> list[bytes]:
    return [each.payload for each in records]


async def journal(backend: CheckpointBackend, run_id: str) -> list[bytes] | None:
    """Return the content of a run's journal, `None` when the run does not exist."""
    try:
        return payloads(await everything(backend, run_id))
    except RunNotFound:
        return None
