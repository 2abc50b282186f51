"""What a child process does: carry a run from where its journal ends, and die where it is told to."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from typing_extensions import TypedDict

from noetic_py import Harness, RunResult, errors
from noetic_py.checkpoints import CheckpointBackend, FileBackend, Lease, SqliteBackend, Transaction
from noetic_py.checkpoints.adapter import EmbeddedBackend
from noetic_py.engine.journaling.run_history import read_journal
from noetic_py.engine.journaling.writer import TTL
from noetic_py.journal.records import RunEnded
from noetic_py.runner.lease import codec_for
from noetic_py.testing._random_programs.conversation import told
from noetic_py.testing._random_programs.states import Kind, new_state, plain_state, state_type
from noetic_py.testing.ledger import outcomes
from tests.crash.effects import Effects
from tests.crash.ledger import Ledger
from tests.crash.programs import Maker, gated
from tests.crash.server import Say

RUN = "run"
KINDS: tuple[Kind, ...] = ("bag", "dict", "attrs")


class Clock:
    """The wall clock that this process is shown, as a file says; it jumps.

    Args:
        path: The file.
        jumps: What it says after each jump, again and again.
    """

    def __init__(self, path: str, jumps: Sequence[str]) -> None:
        self._path = Path(path)
        self._jumps = itertools.cycle(jumps)

    def jump(self) -> None:
        """Show another time from now on."""
        self._path.write_text(next(self._jumps))


class Death:
    """Kills its process at an append, before it or once it has taken effect and nobody knows yet.

    Args:
        given: What the process was told.

    Attributes:
        appends: How many were begun.
    """

    def __init__(self, given: Given) -> None:
        self.appends = 0
        self._clock = Clock(given["clock"], given.get("jumps", [])) if "clock" in given else None
        self._when = given.get("when", "")
        self._at = given.get("at", 0)

    def before(self) -> None:
        """An append is about to be made."""
        self.appends += 1
        if self._clock is not None:
            self._clock.jump()
        self._strike("before")

    def after(self) -> None:
        """It was made."""
        self._strike("after")

    def _strike(self, when: str) -> None:
        if self.appends == self._at and when == self._when:
            os.kill(os.getpid(), signal.SIGKILL)


class Dying(EmbeddedBackend[Any]):
    """A backend that kills its process at an append."""

    death: Death

    async def append(self, run_id: str, **given: Any) -> int:
        self.death.before()
        position = await super().append(run_id, **given)
        self.death.after()
        return position

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self.death.before()
        done = await super().commit(transactions)
        self.death.after()
        return done


class DyingBackend(Dying, SqliteBackend):
    """In a file."""

    def __init__(self, path: str, death: Death, **settings: Any) -> None:
        super().__init__(path, **settings)
        self.death = death


class DyingFiles(Dying, FileBackend):
    """In a folder of files."""

    def __init__(self, path: str, death: Death, **settings: Any) -> None:
        super().__init__(path, **settings)
        self.death = death


async def found(backend: CheckpointBackend, flow: Any, *types: Any) -> dict[str, Any] | None:
    """What the run's journal says now; `None` when there is none."""
    head = await backend.head(RUN)
    if head is None or not head.position:
        return None
    records = await read_journal(backend, RUN, codec_for(flow, *types))
    held = outcomes(records)
    status = next(entry.status for entry in await backend.list() if entry.run_id == RUN)
    ended = records[-1].status if isinstance(records[-1], RunEnded) else None
    finished = [attempt for attempt, well in held.items() if well]
    return {"closed": list(held), "finished": finished, "status": status, "ended": ended, "position": len(records)}


def causes(error: Exception | None) -> list[tuple[str, str]]:
    """The errors that lie behind one, by name, each with its path."""
    if isinstance(error, errors.ParallelFailed):
        return [cause for each in error.failed.values() for cause in causes(each)]
    return [(type(error).__name__, "/".join(error.path))] if isinstance(error, errors.NoeticError) else []


def reasons(error: Exception | None) -> list[str]:
    """Why the store could not be used, when that is what broke a run."""
    return [error.reason] if isinstance(error, errors.StoreUnavailable) else []


def plain(result: RunResult[Any, Any]) -> dict[str, Any]:
    """A result as JSON, as far as it is the same in every run of the program."""
    return {
        "status": result.status,
        "value": result.output_or(None),
        "errors": causes(result.error),
        "reasons": reasons(result.error),
        "state": plain_state(result.state),
        "items": told(result.items),
        "usage": [result.usage.input, result.usage.output],
        "cost": str(result.cost),
        "steps": result.steps,
        "calls": result.model_calls,
    }


class Run(TypedDict):
    """Which run a child carries.

    Attributes:
        folder: Where the ledger is, and the file unless `store` says otherwise.
        seed: Of the program; also picks its state and the event loop.
        process: Which process of the run it is, from 0.
    """

    folder: str
    seed: int
    process: int


class Given(Run, total=False):
    """What a child is told.

    Attributes:
        flow: `"program"`, `"effects"` or `"gate"`.
        when: With `at`, where to die: `"before"` or `"after"` an append, or at a `"line"` of the ledger.
        at: Its number, from 1.
        store: The file, `files:` and a folder, or the address.
        settings: Of the backend.
        loop: The event loop.
        traced: Whether a tracer is to be waited for.
        moment: When to go on, on the clock that all processes share.
        ttl: Seconds for which a lease is asked.
        user: Whom to become.
        reconcile: Whether `once` steps can ask what became of them.
        clock: A file with what is added to the wall clock, and `jumps` to write there, one before each append.
        jumps: See `clock`.
        limit: The size in bytes that no file may pass at first.
    """

    flow: str
    when: str
    at: int
    store: str
    settings: dict[str, Any]
    loop: str
    traced: bool
    moment: float
    ttl: float
    user: int
    reconcile: bool
    clock: str
    jumps: list[str]
    limit: int


def make(given: Given, ledger: Ledger, say: Say) -> Any:
    """The flow that a child is to carry."""
    folder = Path(given["folder"])
    match given.get("flow", "program"):
        case "effects":
            return Effects(given["seed"], ledger, folder, reconcile=given.get("reconcile", False)).flow()
        case "gate":
            return gated(ledger, folder / "gate", lambda: say(["held", time.time()]))
        case _:
            return Maker(given["seed"], ledger).flow()


def wait_for_tracer() -> None:
    """Go on once this process is traced."""
    while "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
        os.sched_yield()


def given_lease(given: Given) -> float:
    """How long a lease of this process lasts without a renewal."""
    seconds: float = given.get("ttl", TTL)
    return seconds


def prepare(given: Given) -> None:
    """What is set up before anything of the run is touched."""
    if "traced" in given:
        wait_for_tracer()
    if "user" in given:
        os.setuid(given["user"])


class Carrier:
    """One process of a run: it begins the run, or goes on with it."""

    def __init__(self, given: Given, say: Say) -> None:
        self.given = given
        self.say = say
        when, at = given.get("when", ""), given.get("at", 0)
        self.ledger = Ledger(Path(given["folder"]) / "ledger", given["process"], at if when == "line" else 0)
        self.flow = make(given, self.ledger, say)
        self.kind = KINDS[given["seed"] % 3]
        self.state_type = state_type(self.kind)
        self.death = Death(given)
        self.backend = self.opened()

    def opened(self) -> CheckpointBackend:
        """The backend that the run is kept in."""
        given = self.given
        writer, settings = given.get("store", f"{given['folder']}/runs.db"), given.get("settings", {})
        if writer.startswith("files:"):
            return DyingFiles(writer.removeprefix("files:"), self.death, **settings)
        return DyingBackend(writer, self.death, **settings)

    async def once(self, harness: Harness) -> dict[str, Any]:
        """Carry the run as far as it goes."""
        before = await found(self.backend, self.flow, self.state_type)
        self.say(["found", before])
        limit = self.given.get("limit")
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if before is None:
            state, value = new_state(self.kind), self.given["seed"] % 97
            result = await harness.run(self.flow, value, run_id=RUN, state=state, on_error="result")
        else:
            result = await harness.resume(RUN, self.flow, state_type=self.state_type, on_error="result")
        return plain(result)

    async def outcome(self, harness: Harness) -> dict[str, Any]:
        """What came of it, with how much was written."""
        try:
            result = await self.once(harness)
        except errors.NoeticError as error:
            result = {"status": "refused", "errors": causes(error), "reasons": reasons(error)}
        return {**result, "appends": self.death.appends, "lines": self.ledger.lines}

    async def work(self) -> dict[str, Any]:
        """The whole process."""
        while time.monotonic() < self.given.get("moment", 0.0):
            pass
        async with Harness(checkpoints=self.backend, plugins=(), lease=given_lease(self.given)) as harness:
            result = await self.outcome(harness)
            if "limit" in self.given:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                del self.given["limit"]
                self.ledger.process += 1
                result["again"] = await self.outcome(harness)
            await self.backend.close()
            return result


def carry(given: Given, say: Say, carrier: Callable[[Given, Say], Carrier] = Carrier) -> Any:
    """Begin the run, or go on with it; says first what the journal held."""
    prepare(given)
    loop = given.get("loop") or ("asyncio", "trio")[given["seed"] // 3 % 2]
    return anyio.run(carrier(given, say).work, backend=loop)
