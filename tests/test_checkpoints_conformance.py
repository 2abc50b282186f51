"""The backend in memory passes the suite that every backend has to pass; a backend that cheats does not."""

from __future__ import annotations

from pathlib import Path

from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.testing import VirtualRuntime
from noetic_py.testing.conformance import BackendContract, QueueContract


class TestInMemoryBackend(BackendContract, QueueContract):
    def make(self, folder: Path) -> CheckpointBackend:
        self.runtime = VirtualRuntime()
        return InMemoryBackend(runtime=self.runtime)

    async def lapse(self, backend: CheckpointBackend) -> None:
        await self.runtime.advance(3600.0)
