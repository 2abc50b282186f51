"""Ids from outside are data: each is kept as it is or refused, no two are one, and none leads to what is another's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from noetic_py import Context, Harness, Memory, Message, SessionKey, StateBag, step
from noetic_py.checkpoints import CheckpointBackend, FileBackend, InMemoryBackend, SqliteBackend
from noetic_py.errors import InvalidId
from noetic_py.testing._conformance.ids import KEPT, LONG, REFUSED
from tests.properties.checks import examples
from tests.servers.figures import Figure
from tests.servers.hostile_ids import BROKEN, INSIDE, MIXED, PLAIN, HostileIdsContract, victim_in

pytestmark = pytest.mark.anyio

STORES = ["memory", "sqlite", "files"]
IDS = list(dict.fromkeys([*KEPT.values(), *REFUSED.values(), *LONG.values(), *PLAIN, *BROKEN, *INSIDE, *MIXED]))


def backend_of(kind: str, place: Path) -> CheckpointBackend:
    if kind == "memory":
        return InMemoryBackend()
    return SqliteBackend(place / "runs.db") if kind == "sqlite" else FileBackend(place / "runs")


class TestInjection(HostileIdsContract):
    """Two hundred payloads as runs, statuses, keys and scopes reach nothing that is not theirs."""

    sample = 40

    @pytest.fixture(params=STORES)
    async def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[CheckpointBackend]:
        async with backend_of(request.param, tmp_path) as made, victim_in(made):
            yield made


@step
async def say(text: str, ctx: Context[Memory, StateBag]) -> str:
    ctx.items.append(Message.user(text))
    return text


@pytest.mark.parametrize("place", ["user", "session", "app"])
@pytest.mark.parametrize("kind", STORES)
async def test_every_id_is_a_session_of_its_own_or_refused(
    kind: str, place: str, tmp_path: Path, figure: Figure
) -> None:
    assert len(IDS) >= 120
    tried = IDS[:: max(1, len(IDS) // examples(20, len(IDS)))]
    kept: list[SessionKey] = []
    async with Harness(plugins=[], checkpoints=backend_of(kind, tmp_path)) as harness:
        for name in tried:
            parts: dict[str, Any] = {"user": "ada", "session": "trip", "app": None, place: name}
            try:
                key = SessionKey(**parts)
            except InvalidId:
                continue
            session = harness.session(key.user, key.session, app=key.app)
            await session.run(say, f"of {len(kept)}")
            kept.append(key)
        assert len(set(kept)) == len(kept)
        for number, key in enumerate(kept):
            items = await harness.session(key.user, key.session, app=key.app).items()
            assert [item.text for item in items if isinstance(item, Message)] == [f"of {number}"]
    figure("ids", f"{len(kept)} kept, {len(tried) - len(kept)} refused")
    assert len(tried) // 3 < len(kept) < len(tried)


@pytest.mark.parametrize("kind", STORES)
async def test_every_id_is_a_run_of_its_own_or_refused(kind: str, tmp_path: Path) -> None:
    kept: list[str] = []
    async with Harness(plugins=[], checkpoints=backend_of(kind, tmp_path)) as harness:
        for name in IDS[:: max(1, len(IDS) // examples(20, len(IDS)))]:
            try:
                await harness.run(say, name, run_id=name, thread_id=name, user_id=name, request_id=name)
            except InvalidId:
                continue
            kept.append(name)
        for name in kept:
            run = await harness.runs.get(name)
            assert (run.run_id, run.thread_id, run.user_id, run.request_id) == (name,) * 4
