"""Cases for backends whose processes are killed: real processes, at their commits and at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import anyio
import pytest

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.context.context import Context
from noetic_py.core.items import Message
from noetic_py.core.memory import Memory
from noetic_py.core.state import StateBag
from noetic_py.harness import Harness
from noetic_py.journal.stored import Lease, Record, Transaction
from noetic_py.steps.code import step
from noetic_py.steps.flow import parallel, sequence
from noetic_py.steps.loop import loop
from noetic_py.testing._conformance.base import Suite, equal
from noetic_py.testing._conformance.carrying import carry
from noetic_py.testing._conformance.processes import start
from noetic_py.testing.ledger import Ledger
from noetic_py.until import max_rounds

__all__ = ["Killing"]

_Job: TypeAlias = Literal["carry", "run"]
_Kill: TypeAlias = tuple[Literal["before", "after", "time"], float]
"""Before or after a commit, counted from 1; or so many seconds after the process has begun."""

_RUN = "killed"
_PATIENCE = 60.0


class Killing(Suite):
    """Processes of a store are killed, and the next ones go on."""

    kills: ClassVar[int] = 24

    def test_no_acknowledged_write_is_lost(self, tmp_path: Path) -> None:
        """Each transaction is there whole or not at all, and if its call has returned, it is there."""
        _kill_and_go_on(self, "carry", tmp_path)

    def test_a_killed_run_comes_to_the_same_end(self, tmp_path: Path) -> None:
        """The next process can own the run, repeats no step whose outcome is stored, and has the same result."""
        _kill_and_go_on(self, "run", tmp_path)


def _kill_and_go_on(contract: Killing, job: _Job, folder: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("processes are killed by signals of POSIX")
    whole = _Life(contract, job, folder / "whole")
    whole.process()
    expected = whole.said()
    dice, killed = random.Random(0), 0  # noqa: S311 # no secret
    for number in range(contract.kills):
        life = _Life(contract, job, folder / f"life-{number}")
        for _ in range(4):
            if life.process(_drawn(dice, expected)):
                break
        else:
            life.process()
        killed += len(life.kills)
        equal((life.shown(), life.said()["result"]), (life.shown(), expected["result"]))
        if killed >= contract.kills:
            return


def _drawn(dice: random.Random, expected: dict[str, Any]) -> _Kill:
    when: Literal["before", "after", "time"] = dice.choice(("before", "after", "time"))
    most = expected["commits"]
    return (when, dice.uniform(0.0, expected["seconds"])) if when == "time" else (when, dice.randint(1, most))


class _Life:
    """One store and its processes."""

    def __init__(self, contract: Killing, job: _Job, folder: Path) -> None:
        self._contract, self._job, self._folder = contract, job, folder
        self.kills: list[_Kill] = []
        (folder / "store").mkdir(parents=True)

    def shown(self) -> str:
        return "killed " + (", ".join(f"{when} {at:.6g}" for when, at in self.kills) or "never")

    def said(self) -> dict[str, Any]:
        """What the last process said at its end."""
        found: dict[str, Any] = json.loads((self._folder / "said").read_text())
        return found

    def process(self, kill: _Kill | None = None) -> bool:
        """Run a process; returns whether it came to its end."""
        process = start(_process, self._contract, self._job, str(self._folder), kill)
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            pytest.fail(f"{self.shown()}: the process hangs")
        failure = self._folder / "failure"
        if failure.exists():
            pytest.fail(f"{self.shown()}: {failure.read_text()}")
        if process.exitcode in (-signal.SIGKILL, -signal.SIGALRM) and kill is not None:
            self.kills.append(kill)
        elif process.exitcode:
            pytest.fail(f"{self.shown()}: the process has ended with {process.exitcode}")
        return not process.exitcode


class _Dying(DelegatingBackend):
    """Kills its process before or after one of its commits."""

    def __init__(self, inner: CheckpointBackend, kill: _Kill | None) -> None:
        super().__init__(inner)
        self._kill = kill
        self.commits = 0

    def _strike(self, when: str) -> None:
        if self._kill is not None and self._kill[0] == when and self._kill[1] == self.commits:
            os.kill(os.getpid(), signal.SIGKILL)

    async def append(
        self,
        run_id: str,
        *,
        expected_position: int,
        fence: int,
        records: Sequence[Record],
        summary: bytes | None = None,
        status: str | None = None,
    ) -> int:
        self.commits += 1
        self._strike("before")
        position = await super().append(
            run_id, expected_position=expected_position, fence=fence, records=records, summary=summary, status=status
        )
        self._strike("after")
        return position

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self.commits += 1
        self._strike("before")
        done = await super().commit(transactions)
        self._strike("after")
        return done


def _process(contract: Killing, job: _Job, folder: str, kill: _Kill | None) -> None:
    """The whole process. What it has to say is in files, which outlive it."""
    try:
        anyio.run(_work, contract, job, Path(folder), kill)
    except BaseException:  # noqa: BLE001 # whatever it was, the test is told
        Path(folder, "failure").write_text(traceback.format_exc())


async def _work(contract: Killing, job: _Job, folder: Path, kill: _Kill | None) -> None:
    begun = time.perf_counter()
    if kill is not None and kill[0] == "time":
        # No handler is set, so the kernel ends the process wherever it is.
        signal.setitimer(signal.ITIMER_REAL, max(kill[1], 1e-6))
    async with _Dying(contract.make(folder / "store"), kill) as backend:
        if job == "carry":
            result: Any = await carry(backend, folder / "acknowledged", contract.lapse)
        else:
            result = await _carry_run(backend, Ledger(folder / "ledger"), contract.lapse)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    said = {"result": result, "commits": backend.commits, "seconds": time.perf_counter() - begun}
    (folder / "said").write_text(json.dumps(said))


def _flow(ledger: Ledger) -> Any:
    @step(id="count", version="1")
    async def count(number: int, ctx: Context[Memory, StateBag]) -> int:
        with ledger.body(ctx):
            ctx.state["last"] = number
            ctx.items.append(Message.assistant(f"number {number} " * (number % 7)))
            await anyio.lowlevel.checkpoint()
        return number + 1

    @step(id="large", version="1")
    async def large(number: int, ctx: Context[Memory, StateBag]) -> str:
        with ledger.body(ctx):
            return chr(97 + number % 26) * 20_000

    @step(id="double", version="1")
    async def double(number: int, ctx: Context[Memory, StateBag]) -> int:
        with ledger.body(ctx):
            return 2 * number

    def add(results: Sequence[int], ctx: object) -> int:
        return sum(results)

    both = parallel([double, double.with_options(id="other")], merge=add, id="both")
    return sequence(loop(count, until=max_rounds(5), id="rounds"), both, large, id="flow")


async def _carry_run(backend: CheckpointBackend, ledger: Ledger, lapse: Callable[..., Any]) -> Any:
    """Begin the run or go on with it, and look whether its bodies and the list of runs agree with its journal."""
    await lapse(backend)
    async with Harness(checkpoints=backend, plugins=()) as harness:
        head = await backend.head(_RUN)
        if head is None or not head.position:
            ledger.begin()
            result = await harness.run(_flow(ledger), 1, run_id=_RUN)
        else:
            ledger.begin(await harness.runs.journal(_RUN))
            result = await harness.resume(_RUN, _flow(ledger), state_type=StateBag)
        info = await harness.runs.get(_RUN)
    equal(ledger.problems(), [])
    equal((result.status, info.status), ("completed", "completed"))
    items = [item.text for item in result.items if isinstance(item, Message)]
    return [result.value, dict(result.state), items]
