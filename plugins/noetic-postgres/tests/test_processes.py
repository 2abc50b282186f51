"""Processes that are killed, stopped, or two at once."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dying_child
import pytest
from journeys import FULL, SEED
from noetic_postgres import PostgresBackend
from postgres_server import PostgresServer

from noetic_py.errors import RunBusy

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks are the kernel's")

KILLS = 200 if FULL else 20
PATIENCE = 60.0
SHORT = 1.0


@pytest.fixture(scope="module")
def processes() -> Any:
    """Where children come from: a process that has imported everything, and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dying_child", "noetic_py.harness", "psycopg", "noetic_postgres.backend"])
    return context


class Child:
    """A child process, as a test sees it."""

    def __init__(self, processes: Any, work: Callable[..., None], *given: object) -> None:
        self.pipe, theirs = processes.Pipe()
        self.process = processes.Process(target=work, args=(theirs, *given), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> list[Any]:
        """The next thing it says; `["killed"]` when it says nothing more."""
        pipe: Connection = self.pipe
        if not pipe.poll(PATIENCE):
            raise AssertionError("a child says nothing")
        try:
            said: list[Any] = pipe.recv()
        except EOFError:
            return ["killed"]
        return said

    def until(self, *kinds: str) -> list[Any]:
        """What it says that is of one of these kinds, or the last."""
        while (said := self.hear())[0] not in (*kinds, "end", "error", "killed"):
            pass
        return said

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join(PATIENCE)


@contextmanager
def child(processes: Any, work: Callable[..., None], *given: object) -> Generator[Child]:
    made = Child(processes, work, *given)
    try:
        yield made
    finally:
        if made.process.is_alive():
            made.kill()
        made.process.join(PATIENCE)
        made.pipe.close()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def unkilled(processes: Any, server: PostgresServer, path: Path) -> tuple[dict[str, Any], list[str]]:
    """What a run gives that nobody disturbs, and what its steps have done."""
    with server.schema() as schema, child(processes, dying_child.carry, server.url(schema), str(path)) as one:
        kind, result = one.until()
    assert kind == "end"
    assert len(lines(path)) == dying_child.ROUNDS + 5
    return result, lines(path)


def test_killed_runs_go_on_where_they_were(processes: Any, server: PostgresServer, tmp_path: Path) -> None:
    """Kills at random moments; finished steps never run again, and the end is what it is without them."""
    expected, effects = unkilled(processes, server, tmp_path / "unkilled")
    dice = random.Random(SEED)
    kills = 0
    for run in itertools.count():
        if kills >= KILLS:
            break
        ledger = tmp_path / f"ledger-{run}"
        with server.schema() as schema:
            for _restart in range(10):
                backend = dice.choice(["asyncio", "trio"])
                with child(processes, dying_child.carry, server.url(schema), str(ledger), backend) as one:
                    said = _kill_somewhere(one, dice)
                if said[0] == "end":
                    break
                assert said == ["killed"], said
                kills += 1
                server.lapse(schema)
            else:
                with child(processes, dying_child.carry, server.url(schema), str(ledger)) as one:
                    said = one.until()
        assert said == ["end", expected]
        # Only the step in flight may have run again, and it did so next.
        assert [what for what, _ in itertools.groupby(lines(ledger))] == effects


def _kill_somewhere(one: Child, dice: random.Random) -> list[Any]:
    """Kill a child a moment after something that it says; gives the last that it has said."""
    for _ in range(dice.randrange(12)):
        said = one.hear()
        if said[0] != "step":
            return said
    # What comes between two things that it says takes a millisecond or two, and a commit is a part of that.
    end = time.perf_counter() + dice.choice([0, 0.0005, 0.001, 0.002, 0.004]) * dice.random()
    while time.perf_counter() < end:
        pass
    one.kill()
    return one.until()


def test_one_of_two_processes_goes_on(processes: Any, server: PostgresServer, tmp_path: Path) -> None:
    expected, effects = unkilled(processes, server, tmp_path / "unkilled")
    for trial in range(10 if FULL else 3):
        ledger = tmp_path / f"ledger-{trial}"
        with server.schema() as schema:
            given = (server.url(schema), str(ledger))
            with child(processes, dying_child.carry, *given) as begun:
                begun.until("step")
                begun.kill()
            server.lapse(schema)
            with (
                child(processes, dying_child.carry_slowly, *given) as one,
                child(processes, dying_child.carry_slowly, *given, "trio") as other,
            ):
                said = [one.hear(), other.hear()]
                assert sorted(said) == [["error", "RunBusy"], ["step", "begin"]]
                winner = (one, other)[said.index(["step", "begin"])]
                while said[0] != "end":
                    winner.pipe.send("go")
                    winner.hear()
                    said = winner.hear()
                assert said == ["end", expected]
        assert [what for what, _ in itertools.groupby(lines(ledger))] == effects


@pytest.mark.parametrize("trial", range(20 if FULL else 3))
def test_a_stopped_owner_writes_nothing_when_it_wakes(
    processes: Any, server: PostgresServer, tmp_path: Path, trial: int
) -> None:
    expected, effects = unkilled(processes, server, tmp_path / "unkilled")
    ledger = tmp_path / "ledger"
    with server.schema() as schema:
        given = (server.url(schema), str(ledger))
        with child(processes, dying_child.carry_slowly, *given) as stopped:
            for _ in range(trial % 5 + 1):
                assert stopped.until("step") == ["step", "begin"]
                stopped.pipe.send("go")
                stopped.until("step")
            stopped.signal(signal.SIGSTOP)
            server.lapse(schema)
            with child(processes, dying_child.carry, *given) as other:
                assert other.until() == ["end", expected]
            stopped.signal(signal.SIGCONT)
            kind, error = "step", ""
            while kind == "step":
                stopped.pipe.send("go")
                kind, error = stopped.hear()
            assert (kind, error) == ("error", "LeaseLost")
        assert [what for what, _ in itertools.groupby(lines(ledger))] == effects


@pytest.mark.anyio
async def test_a_dead_owners_run_is_free_when_its_time_is_up(processes: Any, server: PostgresServer) -> None:
    with server.schema() as schema:
        with child(processes, dying_child.hold, server.url(schema), SHORT) as one:
            kind, fence = one.hear()
            assert kind == "held"
            one.kill()
        begun = time.monotonic()
        async with PostgresBackend(server.url(schema)) as backend:
            tries = 0
            while True:
                try:
                    lease = await backend.acquire(dying_child.RUN, ttl=60.0)
                    break
                except RunBusy:
                    tries += 1
            assert time.monotonic() - begun < SHORT + 1.0
            assert lease.fence > fence


def test_a_forked_process_refuses(processes: Any, server: PostgresServer) -> None:
    with server.schema() as schema, child(processes, dying_child.use_after_fork, server.url(schema)) as one:
        assert one.hear() == ["child", "forked"]
        assert one.hear() == ["end", "parent"]
