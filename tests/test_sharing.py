"""What works across machines needs a backend that all of them see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import define

from noetic_py import Harness, InMemoryBackend, Memory, MemoryLayer, SessionPolicy, Tool, errors, step
from noetic_py.checkpoints import CheckpointBackend, Distributed, FileBackend, SqliteBackend
from noetic_py.checkpoints.checks import check_shared
from noetic_py.memory import function
from noetic_py.plugins import ServiceRegistry, hookimpl
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Served(InMemoryBackend):
    """Stands for one on a server."""

    @property
    def shared(self) -> bool:
        return True


class Disk(MemoryLayer[list[str]]):
    distributed: ClassVar[bool] = True

    @function
    async def look(self) -> list[str]:
        """Look at the disk."""
        return self.state


class Mem(Memory):
    disk: Disk = Disk()


@define
class Pool:
    distributed: bool = True


class Source(Pool):
    async def tools(self) -> Sequence[Tool[..., object]]:
        return []


class Remote(ScriptedModel):
    distributed = True


class Plugin:
    @hookimpl
    def register_services(self, registry: ServiceRegistry) -> None:
        registry.service(Pool, Pool())


PARTS: list[tuple[dict[str, Any], str]] = [
    ({"sessions": SessionPolicy(shared=True)}, r"SessionPolicy\(shared=True\)"),
    ({"memory": Mem()}, "memory layer 'disk'"),
    ({"tools": [Source()]}, "Source"),
    ({"services": {Pool: Pool()}}, "service Pool"),
    ({"model": Remote()}, "Remote"),
    ({"plugins": [Plugin()]}, "service Pool"),
]


@pytest.mark.parametrize(("options", "name"), PARTS)
async def test_a_part_that_works_across_machines_needs_a_backend_that_does(
    options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    options = {"plugins": (), **options}
    local: list[tuple[CheckpointBackend | str | None, str]] = [
        (None, "there is no backend"),
        (InMemoryBackend(), "InMemoryBackend is on this machine only"),
        (f"sqlite:{tmp_path}/runs.db", "SqliteBackend is on this machine only"),
        (SqliteBackend(tmp_path / "runs.db"), "SqliteBackend is on this machine only"),
        (FileBackend(tmp_path / "runs"), "FileBackend is on this machine only"),
    ]
    for backend, why in local:
        with pytest.raises(errors.ConfigError, match=f"{name}.* works across machines, and {why}") as error:
            Harness(checkpoints=backend, **options)
        assert error.value.code == "not-shared"
        assert error.value.hint
    async with Harness(checkpoints=Served(), **options) as harness:
        assert (await harness.session("ada", "trip").run(say, "hi")).value == "hi"


@step
async def say(text: str) -> str:
    return text


async def test_what_says_no_or_nothing_is_fine_everywhere() -> None:
    Harness(plugins=(), services={Pool: Pool(False), str: "x"}, sessions=SessionPolicy())
    for answer in (1, "yes", None):
        Harness(plugins=(), services={Pool: Pool(answer)})  # type: ignore[arg-type] # what does not count


def test_sessions_of_several_machines_are_written_with_each_turn() -> None:
    refused: list[dict[str, Any]] = [{"shared": True, "persist": "manual"}, {"shared": 1}]
    for bad in refused:
        with pytest.raises(errors.ConfigError) as error:
            SessionPolicy(**bad)
        assert error.value.code == "session-policy"
    assert SessionPolicy(persist="manual").distributed is False


def test_the_check_is_there_for_parts_of_one_s_own() -> None:
    part: Distributed = Pool()
    check_shared(Served(), [("pool", part)])
    with pytest.raises(errors.ConfigError, match="pool works across machines"):
        check_shared(None, [("pool", part)])
