"""The contract of record transforms, and what this one is for."""

import pytest
from noetic_py import Harness, InMemoryBackend, step
from noetic_py.testing import TransformContract

from @MODULE@ import Squeeze

pytestmark = pytest.mark.anyio


class TestSqueeze(TransformContract):
    """What every record transform has to keep."""

    def make(self) -> Squeeze:
        return Squeeze()


@step
async def report(port: str) -> str:
    return f"{port}: high water at noon. " * 100


async def test_less_is_stored() -> None:
    sizes = []
    for transforms in ([], [Squeeze()]):
        backend = InMemoryBackend()
        harness = Harness(checkpoints=backend, record_transforms=transforms, plugins=())
        async with harness:
            await harness.run(report, "Brest", run_id="r")
        sizes.append(sum(len(record.payload) for record in await backend.read("r")))
    assert sizes[1] < sizes[0] / 2
