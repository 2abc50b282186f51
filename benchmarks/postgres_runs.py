"""Durable steps in PostgreSQL: 1,000 runs at once, each of 10 steps that change 1 KB of state, against four connections
that insert one row of 1 KB after the other.

The command: `python -m benchmarks.postgres_runs postgresql://user@host/database`. It makes a schema of its own in the
database, and drops it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from threading import Thread

import anyio
import psycopg

from benchmarks.measure import MICRO, Plan, compare, environment, in_loop, take_turns, wall
from benchmarks.table import report
from benchmarks.w1_steps import check
from benchmarks.w3_durable import STATE_BYTES, State, work
from noetic_py import Harness, loop, until

RUNS = 1_000
STEPS = 10
CONNECTIONS = 4
SCHEMA = "noetic_benchmark"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and say what came out."""
    commands = argparse.ArgumentParser(prog="python -m benchmarks.postgres_runs")
    commands.add_argument("address", help="a database: postgresql://user@host/database")
    commands.add_argument("--rounds", type=int, default=3)
    commands.add_argument("--scale", type=float, default=1.0, help="a factor for the amount of work")
    given = commands.parse_args(arguments)
    count = Plan(given.rounds, given.scale).size(RUNS)
    with psycopg.connect(given.address, autocommit=True) as connection:
        try:
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
            connection.execute(f"CREATE TABLE {SCHEMA}.raw (id bigserial PRIMARY KEY, body bytea)")
            sides = {"raw": lambda: rows(given.address, count), "ours": in_loop(lambda: runs(given.address, count))}
            found = take_turns(sides, given.rounds)
        finally:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    name = f"{count:,} runs of {STEPS} steps at once, against {CONNECTIONS} connections that insert rows"
    figure = compare("PostgreSQL", name, found["raw"], found["ours"], unit="µs a step", factor=MICRO)
    sys.stdout.write(report([figure], environment()))
    return 0


async def runs(address: str, count: int) -> float:
    """Seconds a step."""
    flow = loop(work, until=until.max_rounds(STEPS), max_iterations=STEPS)
    mark = "&" if "?" in address else "?"
    async with Harness(plugins=["postgres"], checkpoints=f"{address}{mark}schema={SCHEMA}") as harness:

        async def one() -> None:
            check((await harness.run(flow, 0, state=State())).steps, STEPS)

        await one()
        begun = wall()
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(one)
        return (wall() - begun) / (count * STEPS)


def rows(address: str, count: int) -> float:
    """Seconds a row."""
    each = count * STEPS // CONNECTIONS

    def insert() -> None:
        with psycopg.connect(address, autocommit=True) as connection:
            for number in range(each):
                body = f"{number:08d}".encode() * (STATE_BYTES // 8)
                connection.execute(f"INSERT INTO {SCHEMA}.raw (body) VALUES (%b)", [body])

    threads = [Thread(target=insert) for _ in range(CONNECTIONS)]
    begun = wall()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (wall() - begun) / (each * CONNECTIONS)


if __name__ == "__main__":
    sys.exit(main())
