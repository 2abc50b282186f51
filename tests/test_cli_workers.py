"""`noetic submit`, `noetic worker`, `noetic budgets`, `noetic queues` and `noetic schedules`."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import pytest

from noetic_py.checkpoints import BudgetChange, SqliteBackend, Transaction
from tests.cli_shell import TIMEOUT, Inside, Shell, posix, read_until

BUYING = """
@step
async def flow(item: str, ctx: Context[Memory, StateBag]) -> str:
    return "bought " + item if await ctx.ask(Ask(f"Buy {item}?", bool)) else "kept the money"
"""
SHARING = """
from noetic_py.checkpoints import SharedBudget

@step
async def flow(text: str) -> str:
    return text.upper()

team = SharedBudget("team-a", Budget(steps=1, cost="0.50"), per="month")
harness = Harness(budget=team, checkpoints="sqlite:runs.db")
"""
SLOW = """
@step(replay="repeatable")
async def flow(text: str, ctx: Context[Memory, StateBag]) -> str:
    print("began", flush=True)
    await anyio.sleep(0.0 if Path("free").exists() else 60.0)
    return text.upper()
"""


@contextmanager
def a_worker(shell: Shell, *options: str) -> Generator[subprocess.Popen[bytes]]:
    process = shell.start("worker", "flow.py", *options)
    try:
        assert process.stderr is not None
        assert b"working at" in read_until(process.stderr, b"Ctrl-C stops\n")
        yield process
    finally:
        process.kill()
        process.communicate()


def status_of(inside: Inside, run_id: str) -> str:
    found = json.loads(inside.run("show", run_id, "--json").stdout)
    status: str = found["status"]
    return status


def reaches(inside: Inside, run_id: str, status: str) -> None:
    end = time.monotonic() + TIMEOUT
    while status_of(inside, run_id) != status:
        assert time.monotonic() < end, status_of(inside, run_id)
        time.sleep(0.05)


@posix
def test_a_run_is_submitted_carried_out_and_answered(shell: Shell, inside: Inside) -> None:
    shell.write(BUYING)
    done = inside.run("submit", "flow.py", "tea")
    assert (done.returncode, done.stderr) == (0, "carried out by: noetic worker flow.py\n")
    run_id = done.stdout.strip()
    assert status_of(inside, run_id) == "queued"
    (found,) = json.loads(inside.run("queues", "--json").stdout)
    assert (found["queue"], found["ready"], found["owned"], found["waiting"]) == ("default", 1, 0, 0)
    table = inside.run("queues").stdout.splitlines()
    assert table[0].split()[:5] == ["QUEUE", "FLOW", "READY", "OWNED", "WAITING"]
    assert table[1].startswith("default  flow@")
    with a_worker(shell, "--concurrency", "2") as worker:
        reaches(inside, run_id, "suspended")
        assert "queue      default" in inside.run("show", run_id).stdout
        answered = inside.run("answer", run_id, "--value", "true")
        assert answered.returncode == 0
        assert answered.stderr == "all requests are answered; a worker of queue default goes on with it\n"
        reaches(inside, run_id, "completed")
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=TIMEOUT)
    assert worker.returncode == 0
    assert f"run {run_id} of flow started".encode() in said
    assert f"run {run_id} of flow ended: completed".encode() in said
    assert inside.run("resume", run_id).stdout == "bought tea\n"
    assert inside.run("queues").stdout.splitlines()[1:] == []


@posix
@pytest.mark.slow
def test_a_signal_hands_the_run_over(shell: Shell, inside: Inside) -> None:
    shell.write(SLOW)
    run_id = inside.run("submit", "flow.py", "tea", "--queue", "slow").stdout.strip()
    with a_worker(shell, "--queue", "slow", "--grace", "0.1") as worker:
        assert worker.stdout is not None
        read_until(worker.stdout, b"began\n")
        worker.send_signal(signal.SIGINT)
        _, said = worker.communicate(timeout=TIMEOUT)
        assert (worker.returncode, b"no more runs are claimed" in said) == (0, True)
    (found,) = json.loads(inside.run("queues", "--json").stdout)
    assert (found["ready"], found["owned"]) == (1, 0)
    (shell.folder / "free").touch()
    with a_worker(shell, "--queue", "slow"):
        reaches(inside, run_id, "completed")


def test_a_run_of_a_later_time(inside: Inside) -> None:
    inside.write(BUYING)
    assert (
        inside.run("submit", "flow.py", "tea", "--after", "1h", "--run-id", "order-7", "--priority", "3").returncode
        == 0
    )
    (found,) = json.loads(inside.run("queues", "--json").stdout)
    assert (found["ready"], found["waiting"], found["since"]) == (0, 1, None)
    again = inside.run("submit", "flow.py", "tea", "--run-id", "order-7")
    assert (again.returncode, "order-7" in again.stderr) == (2, True)


def test_shared_budgets_are_shown(inside: Inside) -> None:
    inside.write(SHARING)
    assert inside.run("run", "flow.py", "tea").returncode == 0
    assert inside.run("run", "flow.py", "tea").returncode == 4
    (found,) = json.loads(inside.run("budgets", "--db", "sqlite:runs.db", "--json").stdout)
    assert (found["name"], found["limits"], found["used"]) == ("team-a", {"steps": 1, "cost": "0.5"}, {"steps": 1})
    assert (found["reserved"], found["runs"], len(found["period"])) == ({}, {}, len("2026-11"))
    lines = [line.split() for line in inside.run("budgets", "--db", "sqlite:runs.db").stdout.splitlines()]
    assert lines[0] == ["BUDGET", "PERIOD", "LIMIT", "OF", "USED", "RESERVED", "LIMIT", "RUNS"]
    period = found["period"]
    assert lines[1:] == [
        ["team-a", period, "cost", "$0.00", "$0.00", "$0.50", "0"],
        ["team-a", period, "steps", "1", "0", "1", "0"],
    ]


def test_budgets_of_periods_that_are_over(inside: Inside) -> None:
    async def take() -> None:
        limits = {"steps": 5}
        taken = [BudgetChange("team-a", period, {"steps": 2}, None, limits) for period in ("2020-01", "ever")]
        holds = BudgetChange("team-a", "2020-02", {}, {"tokens": 1}, limits)
        async with SqliteBackend(inside.folder / "runs.db") as backend:
            await backend.commit([Transaction("r", 0, 0, (), acquire=60.0, budgets=[*taken, holds])])

    def periods(*options: str) -> list[str]:
        done = inside.run("budgets", "--db", "sqlite:runs.db", "--json", *options)
        return [row["period"] for row in json.loads(done.stdout)]

    anyio.run(take)
    assert periods() == ["2020-02", "ever"]
    assert periods("--all") == ["2020-01", "2020-02", "ever"]
    done = inside.run("prune", "--db", "sqlite:runs.db", "--older-than", "1d")
    assert (done.returncode, done.stdout) == (0, "0 runs forgotten\n")
    assert periods("--all") == ["2020-02", "ever"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit", "flow.py", "tea", "--after", "soon"), "'soon' is not a valid span of time"),
        (("submit", "flow.py", "tea", "--queue", ""), "queue is not a text"),
        (("submit", "flow.py", "tea", "--db", "files:there"), "has no queues"),
        (("worker", "flow.py", "--db", "files:there"), "has no queues"),
        (("worker", "flow.py", "--db", "none"), "keeps no runs"),
        (("worker", "other.py"), "there is no file"),
        (("queues", "--db", "files:there"), "has no queues"),
        (("budgets", "--db", "files:there"), "has no shared budgets"),
    ],
)
def test_what_cannot_be(inside: Inside, arguments: tuple[str, ...], said: str) -> None:
    inside.write(BUYING)
    (inside.folder / "there").mkdir()
    done = inside.run(*arguments)
    assert done.returncode != 0
    assert said in done.stderr


SEVERAL = """
@step
async def first(text: str, ctx: Context[Memory, StateBag]) -> str:
    return text.upper()


@step
async def second(text: str, ctx: Context[Memory, StateBag]) -> str:
    return text.lower()


def harness(checkpoints=None) -> Harness:
    return Harness(checkpoints=checkpoints, flows={"first": first, "second": second})
"""


@posix
def test_a_worker_carries_out_all_flows_of_the_files_harness(shell: Shell, inside: Inside) -> None:
    shell.write(SEVERAL)
    run_ids = [inside.run("submit", f"flow.py:{name}", "Tea").stdout.strip() for name in ("first", "second")]
    with a_worker(shell):
        for run_id in run_ids:
            reaches(inside, run_id, "completed")
    shell.write(SEVERAL.partition("def harness")[0])
    refused = inside.run("worker", "flow.py")
    assert (refused.returncode, "defines more than one step" in refused.stderr) == (2, True)


TIMED = """
from datetime import timedelta

from noetic_py.schedules import Schedule


@step
async def flow(text: str, ctx: Context[Memory, StateBag]) -> str:
    return text.upper()


def harness(checkpoints=None) -> Harness:
    morning = Schedule("30 9 * * MON-FRI", flow, "tea", timezone="Europe/Paris")
    seconds = Schedule(timedelta(seconds=1), flow, "milk", catch_up="all")
    return Harness(checkpoints=checkpoints, flows={"flow": flow}, schedules={"morning": morning, "seconds": seconds})
"""


@posix
def test_schedules_are_shown_paused_and_triggered(shell: Shell, inside: Inside) -> None:
    shell.write(TIMED)
    lines = inside.run("schedules", "flow.py").stdout.splitlines()
    assert lines[0].split()[:5] == ["SCHEDULE", "WHEN", "TIME", "ZONE", "QUEUE"]
    assert lines[1].startswith("morning   30 9 * * MON-FRI  Europe/Paris  default  2")
    assert lines[2].startswith("seconds   every 0:00:01")
    paused = inside.run("schedules", "flow.py", "--pause", "morning", "--json")
    morning, seconds = json.loads(paused.stdout)
    assert (morning["paused"], morning["next"], seconds["paused"]) == (True, None, False)
    triggered = inside.run("schedules", "flow.py", "--trigger", "morning")
    assert triggered.stderr.startswith("submitted: morning@")
    run_id = triggered.stderr.split()[1]
    with a_worker(shell):
        reaches(inside, run_id, "completed")
        end = time.monotonic() + TIMEOUT
        while not (begun := [line for line in inside.run("runs").stdout.splitlines() if line.startswith("seconds@")]):
            assert time.monotonic() < end
            time.sleep(0.05)
    assert begun
    unknown = inside.run("schedules", "flow.py", "--resume", "evening")
    assert (unknown.returncode, "is not a schedule of this harness" in unknown.stderr) == (2, True)
    shell.write("@step\nasync def flow(x: str) -> str:\n    return x\n")
    assert inside.run("schedules", "flow.py").stdout == "the file's harness has no schedules\n"
