"""The measured process: `python child.py FILE WORK SIZE` runs one work of one library and prints a line of JSON.

It is run by the interpreter of the library's own environment, so it imports the standard library alone. FILE is the
library's file in `peers/`; it is loaded by its path, because its name may be that of the package which it imports.

A file may have these functions. What they are given is made ready, what they return is run and measured:

- `w1(steps)`: a coroutine function that runs so many trivial steps in one run and gives how many were run.
- `w2(branches)`: the same for parallel branches; it gives how many results were joined.
- `w3(steps, file)`: a run of so many steps, each kept in an SQLite database at that path before the next one begins,
  and each changing a text of `TEXT` characters and adding a message of `MESSAGE`; it gives how many were run.
- `w4(turns, stamp)`: an agent whose model calls `stamp()` whenever it is asked; it gives how many tool calls were
  answered.
- `w6()`: a coroutine function that makes a conversation of the given texts; what it gives is kept.
- `w7(runs, steps, seconds)`: runs at once, each of so many steps that sleep so long; it gives how many steps were run.
- `w8(turns, file)`: a chat of so many turns, a user's message and a model's answer, each kept in an SQLite database at
  that path before the next one begins, and each shown the conversation so far; it gives how many messages are kept.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import itertools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import ModuleType

Run = Callable[[], Awaitable[int]]
Figures = dict[str, float]
"""By name: seconds, bytes, or a ratio."""

WARM_UP = 10
"""The warm-up does this part of the work."""
SHORT = 10
"""The short run of W1 has this part of the steps."""
EARLY, LATE, AROUND = 0.05, 0.95, 8
"""Which turns of W4 are compared, as parts of all, and how many neighbours on each side are looked at with them."""
TEXT, MESSAGE = 1_000, 200
ITEMS = 20
STEPS = 20
SECONDS = 0.001


class Refused(RuntimeError):
    """A library tried to reach something outside."""


def main(file: str, work: str, size: int) -> None:
    """Measure, and print."""
    attempts = stay_inside()
    figures = imports(file) if work == "W5" else asyncio.run(WORKS[work](load(file), size))
    if attempts:
        raise Refused(f"a connection to {attempts[0]} was tried")
    sys.stdout.write(json.dumps({"work": work, "size": size, "figures": figures}) + "\n")
    sys.stdout.flush()
    # What is left in memory is not worth the time to take it apart.
    os._exit(0)


def stay_inside() -> list[str]:
    """Refuse every connection of this process; the list tells afterwards what was tried."""
    attempts: list[str] = []

    def refuse(connection: socket.socket, address: object) -> None:
        attempts.append(repr(address))
        raise Refused(f"no connection to {address!r}: nothing here may call out")

    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, refuse)
    return attempts


def load(file: str) -> ModuleType:
    """A library's file as a module."""
    spec = importlib.util.spec_from_file_location("measured", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module at {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["measured"] = module
    spec.loader.exec_module(module)
    return module


async def cpu_of(run: Run, expected: int) -> float:
    """CPU seconds of one run that did all its work."""
    gc.collect()
    began = time.process_time()
    done = await run()
    seconds = time.process_time() - began
    check(done, expected)
    return seconds


def check(done: int, expected: int) -> None:
    """Refuse a figure of work that was not done."""
    if done != expected:
        raise AssertionError(f"{done} were done, not {expected}")


async def w1(module: ModuleType, size: int) -> Figures:
    """CPU seconds a step, in a long run and in a short one."""
    short, long = max(2, size // SHORT), size
    await cpu_of(module.w1(short), short)
    return {
        "short": await cpu_of(module.w1(short), short) / short,
        "long": await cpu_of(module.w1(long), long) / long,
    }


async def w2(module: ModuleType, size: int) -> Figures:
    """CPU seconds a branch."""
    warm = max(2, size // WARM_UP)
    await cpu_of(module.w2(warm), warm)
    return {"branch": await cpu_of(module.w2(size), size) / size}


async def w3(module: ModuleType, size: int) -> Figures:
    """Seconds a step by the wall clock, and bytes that a step leaves, in a long run and in a short one."""
    short, long = max(2, size // SHORT), size
    check(await module.w3(short, fresh())(), short)
    figures: Figures = {}
    for name, steps in (("short", short), ("long", long)):
        file = fresh()
        run = module.w3(steps, file)
        gc.collect()
        began = time.perf_counter()
        done = await run()
        figures[f"{name} seconds"] = (time.perf_counter() - began) / steps
        check(done, steps)
        figures[f"{name} bytes"] = sum(path.stat().st_size for path in Path(file).parent.iterdir()) / steps
    return figures


def fresh() -> str:
    """The path of a database that is not there yet, in a folder of its own."""
    return str(Path(tempfile.mkdtemp(dir=".")) / "kept.db")


async def w4(module: ModuleType, size: int) -> Figures:
    """CPU seconds a turn, and how many times as long a late turn takes as an early one."""
    stamps: list[float] = []

    def stamp() -> None:
        stamps.append(time.process_time())

    warm = max(2, size // WARM_UP)
    await cpu_of(module.w4(warm, stamp), warm)
    stamps.clear()
    await cpu_of(module.w4(size, stamp), size)
    check(len(stamps), size + 1)
    turns = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    return {
        "turn": (stamps[-1] - stamps[0]) / size,
        "growth": around(turns, int(size * LATE)) / around(turns, int(size * EARLY)),
    }


def around(turns: list[float], turn: int) -> float:
    """What a turn took, as the median of it and its neighbours: one alone is too short to be told from noise."""
    return statistics.median(turns[max(0, turn - AROUND) : turn + AROUND + 1])


def imports(code: str) -> Figures:
    """CPU seconds of a fresh interpreter that runs the code, its start and its end included; the second time."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    subprocess.run([sys.executable, "-I", "-c", code], check=True, stdout=subprocess.DEVNULL)
    began = used()
    subprocess.run([sys.executable, "-I", "-c", code], check=True, stdout=subprocess.DEVNULL)
    return {"import": used() - began}


async def w6(module: ModuleType, size: int) -> Figures:
    """Bytes a conversation that is not in use."""

    def texts(conversation: int) -> list[str]:
        return [f"text {number} of conversation {conversation}" for number in range(ITEMS)]

    make = module.w6()
    for number in range(max(2, size // WARM_UP)):
        await make(texts(-number))
    gc.collect()
    tracemalloc.start()
    kept = [await make(texts(number)) for number in range(size)]
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    check(len(kept), size)
    return {"session": taken / size}


async def w7(module: ModuleType, size: int) -> Figures:
    """Seconds of many runs at once, by the wall clock and by the processor's."""
    warm = max(2, size // WARM_UP)
    await cpu_of(module.w7(warm, STEPS, SECONDS), warm * STEPS)
    run = module.w7(size, STEPS, SECONDS)
    gc.collect()
    began = time.perf_counter()
    seconds = await cpu_of(run, size * STEPS)
    return {"wall": time.perf_counter() - began, "cpu": seconds}


async def w8(module: ModuleType, size: int) -> Figures:
    """Seconds a turn by the wall clock."""
    warm = max(2, size // WARM_UP)
    check(await module.w8(warm, fresh())(), 2 * warm)
    run = module.w8(size, fresh())
    gc.collect()
    began = time.perf_counter()
    done = await run()
    seconds = time.perf_counter() - began
    check(done, 2 * size)
    return {"turn": seconds / size}


Measure = Callable[[ModuleType, int], Coroutine[None, None, Figures]]
WORKS: dict[str, Measure] = {
    "W1": w1,
    "W2": w2,
    "W3": w3,
    "W4": w4,
    "W6": w6,
    "W7": w7,
    "W8": w8,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
