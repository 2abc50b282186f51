"""Processes that are killed, stopped, or two at once; with the programs and the judge of the tests of SQLite."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from noetic_py.checkpoints import CheckpointBackend
from noetic_py.checkpoints.server import ServerBackend
from noetic_py.testing import KillContract
from tests.crash.children import Children, Ended, fork_server
from tests.crash.folders import quick_folder
from tests.crash.jobs import RUN
from tests.crash.ledger import read_ledger, shown
from tests.crash.lives import Life, NewLife, same, two_at_once
from tests.crash.working import Workers, carried_out
from tests.properties.checks import FULL, SEED, examples
from tests.servers.jobs import ADDRESS
from tests.servers.tested import ServerOfTests

__all__ = ["Processes", "ServedKills", "children_of"]

TOGETHER = examples(sample=2, full=200)
STOPPED = examples(sample=2, full=100)
WORKED = examples(sample=12, full=1000)
WORKERS_KILLED = examples(sample=2, full=100)
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="forks and signals are the kernel's")
LEASE = 1.0
"""Seconds, for owners whose time is to run out."""

Figure = Callable[[str, object], None]


@contextmanager
def children_of(server: ServerOfTests, folder: Path, warm: str) -> Generator[Children]:
    """A fork server whose children keep their runs at a server.

    Args:
        server: The server.
        folder: Where the modules of the jobs are.
        warm: The module that warms it up.
    """
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    with server.space() as space, fork_server(warm, PYTHONPATH=path, **{ADDRESS: server.url(space)}) as made:
        yield made


@contextmanager
def new_life(children: Children, server: ServerOfTests, seed: int, job: str) -> Generator[Life]:
    """A run in a space of its own; whoever dies is gone for long when somebody else comes."""
    with server.space() as space, quick_folder() as folder:
        given = {"seed": seed, "store": server.url(space), "space": space}
        yield Life(children, folder, given, job, partial(server.bury, space))
        server.bury(space)


class ServedKills(KillContract):
    """The contract of killed processes at a server, where a folder stands for a space; a class below it names a server.

    Attributes:
        server: The server.
    """

    pytestmark: pytest.MarkDecorator = ON_LINUX
    kills = examples(sample=2, full=200)
    server: ServerOfTests

    def opened(self, url: str) -> CheckpointBackend:
        """A backend."""
        raise NotImplementedError

    def make(self, folder: Path) -> CheckpointBackend:
        space = f"killed_{blake2b(bytes(folder), digest_size=8).hexdigest()}"
        # Before this process is connected itself: the last call of the dead one may still go on at the server.
        self.server.bury(space)
        return self.opened(self.server.url(space))


class Processes:
    """Tests of processes that share a server; a class below it has a fixture `children`.

    Attributes:
        server: The server.
        jobs: The module of their jobs.
    """

    pytestmark: pytest.MarkDecorator = ON_LINUX
    server: ServerOfTests
    jobs: str

    def made(self, url: str) -> ServerBackend[Any]:
        """A backend."""
        raise NotImplementedError

    def new_life(self, children: Children) -> NewLife:
        """Makes a run of the program of a seed."""
        return lambda seed: new_life(children, self.server, seed, f"{self.jobs}:carry")

    def test_two_that_begin_at_one_moment(self, children: Children, record_property: Figure) -> None:
        new = self.new_life(children)
        seen = Counter(two_at_once(new, SEED * 1_000_000 + trial) for trial in range(TOGETHER))
        record_property("trials", dict(seen))
        assert seen.total() == TOGETHER
        assert len(seen) == 4 or TOGETHER < 50, seen

    def test_a_stopped_owner_writes_nothing_when_it_wakes(self, children: Children, record_property: Figure) -> None:
        seen: Counter[str] = Counter()
        for trial in range(STOPPED):
            with self.new_life(children)(SEED * 1_000_000 + trial) as life:
                life.given["ttl"] = LEASE
                life.between = _nothing
                space = life.given["space"]
                stop = stopped_anywhere if trial % 2 else stopped_at_a_gate
                seen[stop(life, self.server, space)] += 1
        record_property("trials", dict(seen))
        assert seen["in a step"] >= STOPPED // 2
        assert seen["anywhere"] or STOPPED < 10, seen

    @pytest.mark.anyio
    @pytest.mark.parametrize("spread", [False, True], ids=["whole", "spread"])
    async def test_workers_that_are_killed(self, children: Children, record_property: Figure, spread: bool) -> None:
        with self.server.space() as space, quick_folder() as folder:
            store = self.server.url(space)
            workers = Workers(children, store, folder / "lines", random.Random(SEED), LEASE, f"{self.jobs}:work")
            workers.spread = spread
            async with self.made(store) as backend:
                came = await carried_out(backend, workers, WORKED, WORKERS_KILLED, self.server.restart)
        record_property("runs", WORKED)
        record_property("kills", came.kills)
        record_property("seconds", round(came.seconds, 1))
        record_property("takeover, 99 of 100, seconds", round(came.longest, 2))
        # Of a few runs one in a hundred is the one that the server's restart has kept waiting.
        assert came.longest < LEASE + (1.0 if WORKERS_KILLED >= 100 else 30.0)

    @pytest.mark.anyio
    async def test_a_dead_owners_run_is_free_when_its_time_is_up(self, children: Children) -> None:
        with self.server.space() as space:
            owner = children.start(f"{self.jobs}:hold", store=self.server.url(space), ttl=LEASE)
            fence = children.hear(owner, "held")
            children.kill(owner)
            begun = time.monotonic()
            async with self.made(self.server.url(space)) as backend:
                # By the server's clock, until the time is up, and not longer.
                await anyio.to_thread.run_sync(self.server.wait_for_leases, space)
                lease = await backend.acquire(RUN, ttl=60.0)
                # The sample may run on a busy machine.
                assert time.monotonic() - begun < LEASE + (1.0 if FULL else 30.0)
                assert lease.fence > fence

    def test_a_forked_process_refuses(self, children: Children) -> None:
        with self.server.space() as space:
            assert children.run(f"{self.jobs}:use_after_fork", store=self.server.url(space)).result == "forked"


_PATIENCE = 8
"""How often the next owner tries while the stopped one keeps a lock of the server."""


def woken(children: Children, owner: int, gate: Path) -> Ended:
    """Let a stopped process go on, to its end."""
    os.kill(owner, signal.SIGCONT)
    end = time.monotonic() + 30
    # The kernel has it wait at the gate once more, or lets it pass.
    while children.event([owner], 0.01) is None and time.monotonic() < end:
        with suppress(OSError):
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    return children.ended(owner)


def wakes_too_late(life: Life, server: ServerOfTests, owner: int) -> None:
    """Let a stopped owner go on after its run was finished by another process: it gets an error and writes nothing."""
    space = life.given["space"]
    before, lines = server.stored(space), len(read_ledger(life.folder / "ledger"))
    result = woken(life.children, owner, life.folder / "gate").result
    # One that was stopped while it took the run sees what the other has written, before any body.
    refused = [name for name, _ in result["errors"]] == ["RunBusy"] and result["lines"] == 0
    assert refused or [name for name, _ in result["errors"]] == ["LeaseLost"], life.explain(result)
    begun = [line.key for line in read_ledger(life.folder / "ledger")[lines:] if line.what == "start"]
    # It may have been stopped between looking at its lease and the first line of a body; a model is asked later.
    bodies = [shown(key) for key in begun if key[-1][0] != "answer"]
    assert len(bodies) <= 1, life.explain(f"it began other bodies: {bodies}")
    assert server.stored(space) == before, life.explain("a stale write was taken")


def stopped_at_a_gate(life: Life, server: ServerOfTests, space: str) -> str:
    """An owner is stopped in the middle of a step, for longer than its lease."""
    life.given["flow"] = "gate"
    life.make_gate()
    owner = life.begin()
    life.children.hear(owner, "held")
    os.kill(owner, signal.SIGSTOP)
    server.wait_for_leases(space)
    heir = life.begin()
    life.children.hear(heir, "held")
    life.open_gate()
    result = life.children.ended(heir).result
    assert (result["status"], result["value"]) == ("completed", life.given["seed"] % 97 + 3), life.explain(result)
    wakes_too_late(life, server, owner)
    return "in a step"


def stopped_anywhere(life: Life, server: ServerOfTests, space: str) -> str:
    """An owner is stopped at any moment, for longer than its lease."""
    dice = random.Random(life.given["seed"])
    with new_life(life.children, server, life.given["seed"], life.job) as unharmed:
        pid = unharmed.begin()
        life.children.hear(pid, "found")
        begun = time.monotonic()
        whole = life.children.ended(pid)
        seconds = time.monotonic() - begun
    owner = life.begin()
    life.children.hear(owner, "found")
    moment = time.monotonic() + dice.uniform(0.0, seconds)
    while (event := life.children.event([owner], moment - time.monotonic())) is not None:
        if event[1][0] == "result":
            # Too late, it was faster.
            break
    os.kill(owner, signal.SIGSTOP)
    server.wait_for_leases(space)
    held = server.has_left_a_run(space)
    heir = life.process()
    for _ in range(_PATIENCE):
        if heir.result["status"] != "refused":
            break
        # What the owner had sent before it was stopped has reached the server only now; or it was stopped within a
        # transaction, which the server ends after a while.
        assert heir.result["lines"] == 0, life.explain(heir.result)
        server.wait_for_leases(space)
        held = server.has_left_a_run(space)
        heir = life.process()
    assert same(heir.result) == same(whole.result), life.explain(heir.result)
    if held:
        wakes_too_late(life, server, owner)
        return "anywhere"
    # It did not own the run yet, or was done with it.
    os.kill(owner, signal.SIGCONT)
    late = life.children.ended(owner).result
    refused = [name for name, _ in late["errors"]] == ["RunBusy"] and late["lines"] == 0
    assert refused or same(late) == same(whole.result), life.explain(late)
    return "too early or too late"


def _nothing() -> None:
    """Whoever is stopped is not dead."""
