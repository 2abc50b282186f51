"""The statements of the capacity page that split the largest table, on a server that has runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from noetic_py import Context, Harness, sequence, step
from noetic_py.journal.records import StepFinished

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "capacity.md"


@step
async def double(x: int, ctx: Context) -> int:
    return 2 * x


flow = sequence(double, double.with_options(id="again"), id="flow")


async def test_runs_go_on_when_their_records_are_split(server: PostgresServer) -> None:
    [statements] = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    with server.database("split", vectors=False):
        address = server.url(database="split")
        async with Harness(plugins=["postgres"], checkpoints=address) as harness:
            before = [(await harness.run(flow, each, run_id=f"before-{each}")).run_id for each in range(4)]
        with server.connect("split") as connection:
            connection.execute(statements.encode())
        async with Harness(plugins=["postgres"], checkpoints=address) as harness:
            assert [(await harness.resume(each, flow)).value for each in before] == [4 * each for each in range(4)]
            for each in range(4):
                assert (await harness.run(flow, each, run_id=f"after-{each}")).value == 4 * each
            journal = await harness.runs.journal("before-3")
            at = next(end for end, each in enumerate(journal, 1) if isinstance(each, StepFinished))
            fork = await harness.fork("before-3", at=at)
            assert (await harness.resume(fork, flow)).value == 12
            with server.connect("split") as connection:
                split = connection.execute("SELECT count(DISTINCT tableoid) FROM noetic.transactions").fetchone()
            assert split is not None
            assert split[0] > 1
            assert (await harness.runs.stats()).runs == 9
            assert await harness.runs.prune(keep=1) == 8
            assert (await harness.resume(fork, flow)).value == 12
        with server.connect("split") as connection:
            left = connection.execute("SELECT count(DISTINCT stream) FROM noetic.transactions").fetchone()
        assert left == (2,)
