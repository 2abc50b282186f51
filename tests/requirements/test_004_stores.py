"""Where the state of agents is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetic_py import Harness, step
from noetic_py.checkpoints import backend_from
from noetic_py.testing._conformance.ids import KEPT

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("spec", ["sqlite:{}/kept/runs.db", "files:{}/kept/runs"])
async def test_004_26_a_store_in_a_local_file_keeps_every_id_inside(spec: str, tmp_path: Path) -> None:
    @step
    async def told(name: str) -> str:
        return name

    place = spec.format(tmp_path)
    async with Harness(checkpoints=place, plugins=()) as harness:
        for name in filter(str.isprintable, KEPT.values()):
            assert (await harness.run(told, name, run_id=name)).value == name
    async with backend_from(place) as backend:
        for name in KEPT.values():
            await backend.put(("user", name), name, name.encode(), expected=0)
        assert {entry.run_id for entry in await backend.list()} == set(filter(str.isprintable, KEPT.values()))
        for name in KEPT.values():
            assert [each.value for each in await backend.scan(("user", name))] == [name.encode()]
    assert names_below(tmp_path, "*") == {"kept"}
    assert names_below(tmp_path, "**/*").isdisjoint(KEPT.values())


def names_below(folder: Path, pattern: str) -> set[str]:
    return {path.name for path in folder.glob(pattern)}
