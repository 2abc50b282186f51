"""How a package registers the backends of a server."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from noetic_py import Harness, step
from noetic_py.errors import ConfigError, StoreUnavailable
from noetic_py.plugins import load_plugins
from tests.servers.tested import ServerOfTests

__all__ = ["SECRET", "PluggedIn"]

SECRET = "hunter2"


@step
async def double(number: int) -> int:
    return number * 2


class PluggedIn:
    """Tests of a package; a class below it has a fixture `wrong` with an address whose password, `SECRET`, is refused.

    Attributes:
        server: A server.
        package: The package, as it is imported.
        name: The entry point's.
        schemes: What its addresses begin with.
        heavy: What registering may not import.
    """

    server: ServerOfTests
    package: str
    name: str
    schemes: Sequence[str]
    heavy: Sequence[str]

    @property
    def plugin(self) -> object:
        """Its module."""
        return import_module(f"{self.package}.plugin")

    def test_the_entry_point_is_the_plugin(self) -> None:
        folder = Path(import_module(self.package).__file__ or "").parents[1]
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert project["entry-points"]["noetic_py"] == {self.name: f"{self.package}.plugin"}

    def test_it_serves_its_schemes(self) -> None:
        assert load_plugins([self.plugin]).backends.schemes == sorted(["memory", "sqlite", *self.schemes])

    def test_registering_loads_nothing_heavy(self) -> None:
        heavy = {*self.heavy, "asyncio", f"{self.package}.backend"}
        code = f"import sys, {self.package}.plugin; assert not {heavy} & set(sys.modules), sorted(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)

    @pytest.mark.anyio
    async def test_a_harness_keeps_its_runs_there(self) -> None:
        with self.server.space() as space:
            url = self.server.url(space)
            for value in (1, 2):
                async with Harness(checkpoints=url, plugins=[self.plugin]) as harness:
                    result = await harness.run(double, value, run_id=f"run-{value}")
                    assert result.value == value * 2
            async with Harness(checkpoints=url, plugins=[self.plugin]) as harness:
                infos = await harness.runs.list()
                assert [(each.run_id, each.status, each.alive) for each in infos] == [
                    ("run-2", "completed", False),
                    ("run-1", "completed", False),
                ]
                assert (await harness.resume("run-2", double)).value == 4
            # Nobody is connected any more.
            self.server.bury(space)

    @pytest.mark.anyio
    async def test_a_harness_names_what_is_wrong(self, wrong: str) -> None:
        async with Harness(checkpoints=wrong, plugins=[self.plugin]) as harness:
            with pytest.raises(StoreUnavailable) as caught:
                await harness.run(double, 1)
        assert caught.value.reason == "auth"
        assert SECRET not in str(caught.value)

    def test_without_the_plugin_the_error_names_its_package(self) -> None:
        for scheme in self.schemes:
            with pytest.raises(ConfigError) as caught:
                Harness(checkpoints=f"{scheme}://u:{SECRET}@host/0", plugins=[])
            assert caught.value.code == "checkpoints"
            assert caught.value.hint == f"pip install {self.package.replace('_', '-')}"
            assert SECRET not in str(caught.value)
