"""The case for a loss of power: a process is traced, and its disk is rebuilt as it may be then."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from noetic_py.testing._conformance.base import Suite
from noetic_py.testing._conformance.carrying import carry
from noetic_py.testing._conformance.disk_image import (
    Disk,
    DiskEvent,
    NotFollowed,
    read_files,
    read_trace,
    trace_options,
    write_files,
)
from noetic_py.testing._conformance.processes import start

__all__ = ["PowerLoss"]

_PATIENCE = 60.0
_SET_PTRACER = 0x59616D61  # of prctl(2)


class PowerLoss(Suite):
    """The machine of a store loses its power, and its disk holds any part of what was not synced."""

    states: ClassVar[int] = 100

    def test_no_acknowledged_write_is_lost_with_the_power(self, tmp_path: Path) -> None:
        """Whatever the disk holds of what was not synced: each transaction is whole or not there, and goes on."""
        (tmp_path / "new").mkdir()
        durability = anyio.run(_durability, self, tmp_path / "new")
        if durability != "power":
            pytest.skip(f"its durability is {durability!r}, so it promises nothing for a loss of power")
        try:
            events = traced_events(self, tmp_path)
            found = lost(self, events, tmp_path, self.states)
        except NotFollowed as call:
            pytest.skip(f"what a disk holds of it is not known, because it uses {call}")
        if found:
            pytest.fail(f"{len(found)} of {self.states} states of the disk are wrong; the first: {found[0]}")


async def _durability(contract: Suite, folder: Path) -> str:
    async with contract.make(folder) as backend:
        return backend.durability


def traced_events(contract: Suite, folder: Path) -> list[DiskEvent]:
    """Trace a process that writes to a store.

    Raises:
        NotFollowed: It does so in a way that cannot be seen, such as through memory.
    """
    tracer = shutil.which("strace")
    if tracer is None or sys.platform != "linux":
        pytest.skip("it needs Linux and its package strace, which says what a process writes")
    store, acknowledged, log = folder / "store", folder / "acknowledged", folder / "log"
    store.mkdir()
    process = start(_process, contract, str(store), str(acknowledged))
    command = [tracer, "-f", "-qq", "-p", str(process.pid), *trace_options(log)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracing:  # noqa: S603 # of this machine
        try:
            _, said = tracing.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            tracing.kill()
            said = "the process hangs"
    process.join(_PATIENCE if not tracing.returncode else 0)
    if process.exitcode is None:
        process.kill()
        pytest.skip(f"strace cannot trace a process here: {said.strip()}")
    if process.exitcode:
        pytest.fail(f"the process that writes has ended with {process.exitcode}; KillContract shows why")
    events = read_trace(log, store, acknowledged)
    if not any(event.call == "write" for event in events):
        pytest.skip("it stores nothing in files of the folder")
    disk = Disk({})
    for event in events:
        disk.do(event)
    real, seen = read_files(store), disk.now()
    wrong = sorted(name for name in {*real, *seen} if real.get(name) != seen.get(name))
    if wrong:
        raise NotFollowed(f"writes to {wrong[0]} that are no calls of write()")
    return events


def lost(contract: Suite, events: list[DiskEvent], folder: Path, states: int, *, syncs: bool = True) -> list[str]:
    """What is wrong with states of the disk at random points, each with where it was.

    Args:
        contract: Opens the store.
        events: What a process has done to it.
        folder: Where each state is put.
        states: How many.
        syncs: Whether the disk heeds calls that sync; a contract finds something on one that does not.
    """
    dice = random.Random(0)  # noqa: S311 # no secret
    points = Counter(dice.randint(0, len(events)) for _ in range(states))
    disk, found = Disk({}), list[str]()
    for at in range(len(events) + 1):
        for _ in range(points[at]):
            problem = anyio.run(_problem, contract, disk, dice, folder)
            if problem is not None:
                last = f"after {events[at - 1].call} of {events[at - 1].name}" if at else "before the first call"
                found.append(f"the power was lost {last}, call {at} of {len(events)}: {problem}")
        if at < len(events):
            disk.do(events[at], syncs=syncs)
    return found


async def _problem(contract: Suite, disk: Disk, dice: random.Random, folder: Path) -> str | None:
    store, acknowledged = folder / "left", folder / "left-acknowledged"
    write_files(store, disk.left(dice))
    acknowledged.write_bytes(b"".join(disk.acknowledged))
    try:
        async with contract.make(store) as backend:
            await carry(backend, acknowledged, contract.lapse)
    except Exception as error:  # noqa: BLE001 # whatever a backend makes of it, the case names it
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(store)
    return None


def _process(contract: Suite, store: str, acknowledged: str) -> None:
    """The whole process: wait for the tracer, and write."""
    wait_for_tracer()
    anyio.run(_work, contract, Path(store), Path(acknowledged))


async def _work(contract: Suite, store: Path, acknowledged: Path) -> None:
    async with contract.make(store) as backend:
        await carry(backend, acknowledged, contract.lapse)


def wait_for_tracer() -> None:
    """Let any process trace this one, and go on once it is traced."""
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_long(-1))
    while "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
        time.sleep(0.001)
