"""The contract of services, and the service in a run."""

import pytest
from noetic_py import Context, Harness, step
from noetic_py.testing import ServiceContract

from @MODULE@ import Tides, plugin

pytestmark = pytest.mark.anyio


class TestTides(ServiceContract[Tides]):
    """What every service has to keep."""

    kind = Tides

    def make(self) -> Tides:
        return Tides()

    async def use(self, service: Tides, number: int) -> int:
        return await service.height(number)


@step
async def at_noon(port: str, ctx: Context) -> int:
    return await ctx.services.get(Tides).height(12)


async def test_a_step_uses_it() -> None:
    async with Harness(plugins=[plugin]) as harness:
        assert (await harness.run(at_noon, "Brest")).value == 6
