"""Workers that are killed while they carry out runs, and what has to be true of the runs afterwards."""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from noetic_py import Context, Harness, each, sequence, step
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.context.step import AnyStep
from tests.crash.children import Children
from tests.crash.server import Say

WORK = "tests.crash.working:work"
PARTS = 3
"""How many steps run beside each other in a run."""
PAUSE = 0.003
LINES = 2 * (PARTS + 2)
"""How many lines a run writes at least: each step when it begins and when it ends."""
_STAGES = ("first", "part", "last")


def flow_into(path: Path, process: int, pause: float = PAUSE, *, spread: bool = False) -> AnyStep:
    """The flow of the runs: a step, some beside each other, and a step; each writes down when it begins and ends.

    Args:
        path: Where lines are written, one in one write.
        process: Which process this is.
        pause: Half of the seconds that a step takes.
        spread: Whether workers carry out the steps in the middle, each as a run of its own.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def body(stage: str, number: int, run_id: str, value: int) -> int:
        for what in ("start", "end"):
            line = [process, time.monotonic(), run_id, stage, number, what]
            os.write(handle, json.dumps(line).encode() + b"\n")
            await anyio.sleep(pause)
        return value

    @step(replay="repeatable", version="1")
    async def first(x: int, ctx: Context) -> list[tuple[str, int]]:
        await body("first", 0, ctx.run_id, x)
        return [(ctx.run_id, x + n) for n in range(PARTS)]

    @step(replay="repeatable", version="1")
    async def part(given: tuple[str, int]) -> int:
        run_id, x = given
        return await body("part", x, run_id, 2 * x)

    @step(replay="repeatable", version="1")
    async def last(xs: list[int], ctx: Context) -> int:
        return await body("last", 0, ctx.run_id, sum(xs))

    return sequence(first, each(part, id="parts", queue="default" if spread else None), last, id="flow")


def value_of(number: int) -> int:
    """What a run comes to that was given a number."""
    return sum(2 * (number + n) for n in range(PARTS))


def work(given: dict[str, Any], say: Say, made: Callable[[str], CheckpointBackend] = SqliteBackend) -> None:
    """What a worker does, until it is killed.

    Args:
        given: Its store, its process number, and the like.
        say: Says when it is ready.
        made: Makes a backend of the store's address.
    """

    async def main() -> None:
        flow = flow_into(Path(given["lines"]), given["process"], given["pause"], spread=given["spread"])
        async with (
            made(given["store"]) as backend,
            Harness(checkpoints=backend, plugins=[], flows={"flow": flow}, lease=given["lease"]) as harness,
        ):
            say(["ready", True])
            await harness.work(concurrency=given["concurrency"], lives=1000)

    anyio.run(main)


@dataclass
class Killed:
    """What came of it.

    Attributes:
        kills: How many workers were killed.
        seconds: How long it took until all runs had ended.
        waits: How long each run that a killed worker was at stood still, in seconds.
    """

    kills: int
    seconds: float
    waits: list[float] = field(default_factory=list[float])

    @property
    def longest(self) -> float:
        """The longest of all but one in a hundred of the waits."""
        ordered = sorted(self.waits)
        return ordered[max(0, -(-99 * len(ordered) // 100) - 1)] if ordered else 0.0


@dataclass
class Workers:
    """Worker processes of one store.

    Attributes:
        children: The fork server.
        store: The address of the store.
        lines: Where they write what they do.
        dice: Who is killed, and when.
        lease: Their lease, in seconds.
        job: What they do.
        concurrency: How many runs each carries out at once.
        pause: Half of the seconds that a step takes.
        between: How many lines they write before another one is killed.
        spread: Whether they carry out parts of a run as runs of their own.
    """

    children: Children
    store: str
    lines: Path
    dice: random.Random
    lease: float = 30.0
    job: str = WORK
    concurrency: int = 4
    pause: float = PAUSE
    between: int = 0
    spread: bool = False
    pids: list[int] = field(default_factory=list[int])
    killed: list[float] = field(default_factory=list[float])
    started: int = 0

    def start(self) -> int:
        """Start a worker; returns its pid."""
        pid = self.children.start(
            self.job, store=self.store, lines=str(self.lines), process=self.started, lease=self.lease,
            concurrency=self.concurrency, pause=self.pause, spread=self.spread,
        )  # fmt: skip
        self.started += 1
        self.pids.append(pid)
        self.children.hear(pid, "ready")
        return pid

    async def write(self, lines: int, most: int) -> None:
        """Wait until they have written so many lines more, or as many as they do at least.

        A slow machine takes longer to start a worker than the others need for what is left.
        """
        wanted = min(self._written() + lines, most)
        with anyio.fail_after(60):
            while self._written() < wanted:  # noqa: ASYNC110 # other processes work
                await anyio.sleep(0.005)

    def _written(self) -> int:
        return self.lines.read_bytes().count(b"\n")

    def kill(self) -> None:
        """Kill one of them."""
        self.children.kill(self.pids.pop(self.dice.randrange(len(self.pids))))
        self.killed.append(time.monotonic())

    def since(self, begin: float, end: float) -> float:
        """When a run that stood still has lost its owner: a worker that took it over may have been killed in its turn.

        Args:
            begin: The last line of the one owner.
            end: The first line of the next one that has written any.
        """
        return max((moment for moment in self.killed if begin + self.lease < moment < end), default=begin)

    def stop(self) -> None:
        """Kill all that are left."""
        while self.pids:
            self.kill()


Submit: TypeAlias = Callable[[Harness, AnyStep, int, str], Awaitable[str]]


async def _submit(harness: Harness, flow: AnyStep, number: int, run_id: str) -> str:
    return await harness.submit(flow, number, run_id=run_id)


async def carried_out(
    backend: CheckpointBackend,
    workers: Workers,
    runs: int,
    kills: int,
    restart: Callable[[], object] | None = None,
    submit: Submit = _submit,
) -> Killed:
    """Submit runs, kill workers while they carry them out, and check what came of it.

    Args:
        backend: The store of the workers.
        workers: The workers.
        runs: How many runs.
        kills: How many workers are killed.
        restart: Restarts the store's server; called once, half-way.
        submit: Submits a run.
    """
    flow = flow_into(workers.lines, -1, spread=workers.spread)
    began = time.monotonic()
    async with Harness(checkpoints=backend, plugins=[], flows={"flow": flow}) as harness:
        # All are there before a worker is: what is submitted slowly would be done before the first one is killed.
        ids = [await submit(harness, flow, number, f"run-{number}") for number in range(runs)]
        try:
            for _ in range(4):
                await anyio.to_thread.run_sync(workers.start)
            for number in range(kills):
                await workers.write(workers.between, runs * LINES)
                await anyio.sleep(workers.dice.uniform(0.02, 0.3))
                await anyio.to_thread.run_sync(workers.kill)
                if restart is not None and number == kills // 2:
                    await anyio.to_thread.run_sync(restart)
                await anyio.to_thread.run_sync(workers.start)
            with anyio.fail_after(60 + 2 * workers.lease + runs / 2):
                while not await _completed(backend) >= {*ids}:  # noqa: ASYNC110 # other processes work
                    await anyio.sleep(0.05)
        finally:
            await anyio.to_thread.run_sync(workers.stop)
        seconds = time.monotonic() - began
        for number, run_id in enumerate(ids):
            result = await harness.resume(run_id, flow)
            assert (result.status, result.value) == ("completed", value_of(number)), run_id
    assert list(await backend.queues()) == []
    return Killed(kills, seconds, _checked(workers, runs))


async def _completed(backend: CheckpointBackend) -> set[str]:
    found: set[str] = set()
    after: int | None = None
    while page := await backend.list(after=after, status="completed"):
        found.update(entry.run_id for entry in page)
        after = page[-1].cursor
    return found


def _checked(workers: Workers, runs: int) -> list[float]:
    """Check that no step began again once a later one had begun, which says that it was stored.

    Returns:
        How long runs stood still between a line of one process and the next one of another.
    """
    by_run: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for text in workers.lines.read_text().splitlines():
        process, moment, run_id, stage, number, what = json.loads(text)
        by_run[run_id].append([process, moment, _STAGES.index(stage), number, what])
    assert len(by_run) == runs
    waits: list[float] = []
    for run_id, found in by_run.items():
        reached = 0
        for process, _, stage, _, what in found:
            if what == "start":
                assert stage >= reached, f"{run_id}: stage {stage} of process {process} began after stage {reached}"
                reached = stage
        ended = {(stage, number) for _, _, stage, number, what in found if what == "end"}
        assert len(ended) == PARTS + 2, f"{run_id}: {ended}"
        # A part that is a run of its own says nothing of when its parent went on.
        waits += (
            []
            if workers.spread
            else [
                later[1] - workers.since(earlier[1], later[1])
                for earlier, later in pairwise(found)
                if later[0] != earlier[0]
            ]
        )
    return waits
