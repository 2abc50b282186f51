from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from noetic_redis import RedisBackend, plugin
from redis_server import RedisServer

from noetic_py import Harness, step
from noetic_py.errors import ConfigError, StoreUnavailable
from noetic_py.plugins import load_plugins

SECRET = "hunter2"


@step
async def double(number: int) -> int:
    return number * 2


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["redis"]) is plugin


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://host", "redis://host:6379/0 (prefix noetic)"),
        (f"redis://u:{SECRET}@host:6380/3?prefix=mine", "redis://u@host:6380/3 (prefix mine)"),
        (f"redis://:{SECRET}@host/?db=4&timeout=5", "redis://host:6379?db=4 (prefix noetic)"),
        (f"rediss://:{SECRET}@host?ssl_cert_reqs=none", "rediss://host:6379/0 (prefix noetic)"),
        (f"unix://u:{SECRET}@/run/redis.sock?db=2", "unix://u@/run/redis.sock?db=2 (prefix noetic)"),
        ("redis://[::1]:7000/0", "redis://[::1]:7000/0 (prefix noetic)"),
    ],
)
def test_addresses_become_backends(address: str, shown: str) -> None:
    backends = load_plugins([plugin]).backends
    assert backends.schemes == ["memory", "redis", "rediss", "sqlite", "unix"]
    made = backends(address)
    assert isinstance(made, RedisBackend)
    assert repr(made) == f"RedisBackend({shown!r})"


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_redis.plugin; "
        "assert not {'redis', 'asyncio', 'noetic_redis.backend'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.anyio
async def test_a_harness_keeps_its_runs_there(redis_server: RedisServer, prefix: str) -> None:
    for value in (1, 2):
        async with Harness(checkpoints=redis_server.url(prefix), plugins=[plugin]) as harness:
            result = await harness.run(double, value, run_id=f"run-{value}")
            assert result.value == value * 2
    async with Harness(checkpoints=redis_server.url(prefix), plugins=[plugin]) as harness:
        infos = await harness.runs.list()
        assert [(each.run_id, each.status, each.alive) for each in infos] == [
            ("run-2", "completed", False),
            ("run-1", "completed", False),
        ]
        assert (await harness.resume("run-2", double)).value == 4
    redis_server.wait_until_nobody_is_connected()


@pytest.mark.anyio
async def test_a_harness_names_what_is_wrong(redis_server: RedisServer) -> None:
    async with Harness(checkpoints=redis_server.url(password=SECRET), plugins=[plugin]) as harness:
        with pytest.raises(StoreUnavailable) as caught:
            await harness.run(double, 1)
    assert caught.value.reason == "auth"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix"])
def test_without_the_plugin_the_error_names_its_package(scheme: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Harness(checkpoints=f"{scheme}://u:{SECRET}@host/0", plugins=[])
    assert caught.value.code == "checkpoints"
    assert caught.value.hint == "pip install noetic-redis"
    assert SECRET not in str(caught.value)
