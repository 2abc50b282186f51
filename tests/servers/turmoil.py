"""Writing while something happens to the server, again and again."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread

from noetic_py.checkpoints import CheckpointBackend
from tests.servers.journeys import journal, record

__all__ = ["in_turmoil"]


class Written:
    """How much was written to each run."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.enough = False
        self._moved = anyio.Event()

    def add(self, run_id: str) -> None:
        self.counts[run_id] = self.counts.get(run_id, 0) + 1
        self._moved.set()

    async def more(self, count: int) -> None:
        """Return when so much was written since."""
        goal = sum(self.counts.values()) + count
        while sum(self.counts.values()) < goal:
            self._moved = anyio.Event()
            await self._moved.wait()


async def _write(backend: CheckpointBackend, run_id: str, written: Written) -> None:
    lease = await backend.acquire(run_id, ttl=600.0)
    # Each writes once at least, however long the others were faster.
    while not written.enough or run_id not in written.counts:
        position = written.counts.get(run_id, 0)
        text = f"{run_id}/{position}"
        await backend.append(run_id, expected_position=position, fence=lease.fence, records=[record(text)])
        assert await backend.put(("s",), run_id, text.encode())
        written.add(run_id)
    await backend.release(lease)


async def in_turmoil(backend: CheckpointBackend, turmoil: Callable[[], None], times: int) -> None:
    """Write while something happens to the server again and again; then look whether all is there, once."""
    written = Written()
    async with anyio.create_task_group() as group:
        for index in range(6):
            group.start_soon(_write, backend, f"r{index}", written)
        for _ in range(times):
            await anyio.to_thread.run_sync(turmoil)
            with anyio.fail_after(30):
                await written.more(12)
        written.enough = True
    assert len(written.counts) == 6
    for run_id, count in written.counts.items():
        assert await journal(backend, run_id) == [f"{run_id}/{n}".encode() for n in range(count)]
        found = await backend.get(("s",), run_id)
        assert found is not None
        assert found.value == f"{run_id}/{count - 1}".encode()
