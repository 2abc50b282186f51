"""The contracts of backends.

When the store outlives its process, add `LastingContract` and `KillContract` of `noetic_py.testing`; when a test can reach
its bytes, `DamageContract`.
"""

from pathlib import Path

import pytest
from noetic_py import Harness, step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.testing import VirtualRuntime
from noetic_py.testing.conformance import BackendContract, QueueContract

from @MODULE@ import Store, plugin

pytestmark = pytest.mark.anyio


class TestStore(BackendContract, QueueContract):
    """What every backend has to keep."""

    def make(self, folder: Path) -> CheckpointBackend:
        self.runtime = VirtualRuntime()
        return Store(str(folder), runtime=self.runtime)

    async def lapse(self, backend: CheckpointBackend) -> None:
        await self.runtime.advance(3600.0)


@step
async def double(number: int) -> int:
    return 2 * number


async def test_a_run_is_stored_by_name() -> None:
    async with Harness(checkpoints="@PREFIX@:address", plugins=[plugin]) as harness:
        await harness.run(double, 3, run_id="r")
        assert (await harness.resume("r", double)).value == 6
