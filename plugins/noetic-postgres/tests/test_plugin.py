from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from noetic_postgres import PostgresBackend, plugin
from postgres_server import PostgresServer

from noetic_py import Harness, step
from noetic_py.errors import ConfigError, PluginError, StoreUnavailable
from noetic_py.plugins import BackendRegistry, hookimpl, load_plugins

SECRET = "hunter2"


@step
async def double(number: int) -> int:
    return number * 2


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["postgres"]) is plugin


def test_addresses_become_backends() -> None:
    backends = load_plugins([plugin]).backends
    assert backends.schemes == ["files", "memory", "postgres", "postgresql", "sqlite"]
    for scheme in ("postgres", "postgresql"):
        made = backends(f"{scheme}://u:{SECRET}@host:5433/d?schema=mine")
        assert isinstance(made, PostgresBackend)
        assert repr(made) == "PostgresBackend('postgresql://u@host:5433/d (schema mine)')"


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_postgres.plugin; "
        "assert not {'psycopg', 'asyncio', 'noetic_postgres.backend'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.anyio
async def test_a_harness_keeps_its_runs_there(server: PostgresServer, schema: str) -> None:
    for value in (1, 2):
        async with Harness(checkpoints=server.url(schema), plugins=[plugin]) as harness:
            result = await harness.run(double, value, run_id=f"run-{value}")
            assert result.value == value * 2
    async with Harness(checkpoints=server.url(schema), plugins=[plugin]) as harness:
        infos = await harness.runs.list()
        assert [(each.run_id, each.status, each.alive) for each in infos] == [
            ("run-2", "completed", False),
            ("run-1", "completed", False),
        ]
        assert (await harness.resume("run-2", double)).value == 4
    server.wait_until_nobody_is_connected()


@pytest.mark.anyio
async def test_a_harness_names_what_is_wrong(server: PostgresServer) -> None:
    async with Harness(checkpoints=server.url(password=SECRET), plugins=[plugin]) as harness:
        with pytest.raises(StoreUnavailable) as caught:
            await harness.run(double, 1)
    assert caught.value.reason == "auth"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_without_the_plugin_the_error_names_its_package(scheme: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Harness(checkpoints=f"{scheme}://u:{SECRET}@host/d", plugins=[])
    assert caught.value.code == "checkpoints"
    assert caught.value.hint == "pip install noetic-postgres"
    assert SECRET not in str(caught.value)


def test_nothing_takes_a_scheme_that_is_taken() -> None:
    class Other:
        def __init__(self, scheme: str) -> None:
            self.scheme = scheme

        @hookimpl
        def register_checkpoint_backends(self, registry: BackendRegistry) -> None:
            registry.checkpoint_backend(self.scheme, PostgresBackend)

    for scheme in ("postgresql", "sqlite", "memory"):
        with pytest.raises(PluginError, match=scheme):
            load_plugins([plugin, Other(scheme)])
    for scheme in ("", "a b", "a:b", "é"):
        with pytest.raises(PluginError):
            load_plugins([Other(scheme)])
