"""A flow with a step of the kind, run and killed everywhere."""

import pytest
from noetic_py import Harness, step
from noetic_py.errors import PluginError
from noetic_py.testing import assert_resumable_everywhere

from @MODULE@ import longest, plugin

pytestmark = pytest.mark.anyio


@step
async def short(port: str) -> str:
    return port


@step
async def polite(port: str) -> str:
    return f"{port}, please."


async def test_it_gives_the_longest_text() -> None:
    async with Harness(plugins=[plugin]) as harness:
        assert (await harness.run(longest(short, polite), "Brest")).value == "Brest, please."


async def test_it_can_be_killed_anywhere() -> None:
    await assert_resumable_everywhere(
        lambda: longest(short, polite),
        "Brest",
        make=lambda backend: Harness(checkpoints=backend, plugins=[plugin]),
    )


async def test_it_needs_the_plugin() -> None:
    async with Harness(plugins=[]) as harness:
        with pytest.raises(PluginError, match="@PREFIX@.longest"):
            await harness.run(longest(short, polite), "Brest")
