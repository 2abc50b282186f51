"""How everything here is measured: the sides of a comparison take turns in one process, and the median counts.

A measurement is a function without arguments that does the work once and gives the seconds it took. The sides of a
comparison run one after the other, again and again, so that a machine that slows down slows all of them, and a ratio
is taken within a round, never across rounds. The garbage collector stays on, as it is for a user; it runs once before
each measurement, so that no side pays for what the other one left.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

import anyio
from attrs import asdict, field, frozen

ROOT = Path(__file__).resolve().parent.parent

Measurement = Callable[[], float]
"""Does the work once; gives seconds."""
Rounds = Mapping[str, Sequence[float]]
"""By side: its seconds, round by round."""
Clock = Callable[[], float]

cpu: Clock = time.process_time
wall: Clock = time.perf_counter

MICRO = 1e6
MILLI = 1e3
WARM_UP_ROUNDS = 1
EVEN = 1.2
"""What is taken as flat: the later, or the larger, costs at most this many times the earlier."""


@frozen
class Plan:
    """How thoroughly to measure.

    Attributes:
        rounds: How often each side is measured.
        scale: A factor for the amount of work; 1 except to try the benchmarks themselves.
    """

    rounds: int = 9
    scale: float = 1.0

    def size(self, full: int) -> int:
        """An amount of work, in this plan."""
        return max(2, int(full * self.scale))


@frozen
class Spread:
    """Several measurements of one thing: the median, and how far they lie apart."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float], factor: float = 1.0) -> Spread:
        """The spread of values, each times `factor`."""
        scaled = [value * factor for value in values]
        return Spread(statistics.median(scaled), min(scaled), max(scaled))


@frozen
class Figure:
    """One line of the table.

    Attributes:
        work: Which work it belongs to, such as `"W1"`.
        name: What was measured.
        unit: The unit of `baseline` and `ours`.
        ours: What the library took.
        baseline: What it is compared with; its name stands in `name`.
        ratio: `ours` by `baseline`, round by round.
        target: The limit; `None` for what is only shown.
        judged: Whether the target limits the ratio or `ours`.
    """

    work: str
    name: str
    unit: str
    ours: Spread
    baseline: Spread | None = None
    ratio: Spread | None = None
    target: float | None = None
    judged: Literal["ratio", "ours"] = "ratio"
    rounds: int = field(default=0, kw_only=True)

    @property
    def met(self) -> bool | None:
        """Whether the median keeps to the target; `None` without one."""
        judged = self.ours if self.judged == "ours" else self.ratio
        return None if self.target is None or judged is None else judged.median <= self.target

    def to_json(self) -> dict[str, object]:
        """The figure as JSON."""
        return {**asdict(self), "met": self.met}


def compare(
    work: str,
    name: str,
    baseline: Sequence[float],
    ours: Sequence[float],
    *,
    unit: str,
    factor: float,
    target: float | None = None,
) -> Figure:
    """A figure of two sides that took turns.

    Args:
        work: Which work it belongs to.
        name: What was measured.
        baseline: The baseline's seconds, round by round.
        ours: The library's seconds in the same rounds.
        unit: The unit to show.
        factor: From seconds to the unit.
        target: The limit of the ratio.
    """
    ratios = [mine / other for mine, other in zip(ours, baseline, strict=True)]
    return Figure(
        work=work,
        name=name,
        unit=unit,
        ours=Spread.of(ours, factor),
        baseline=Spread.of(baseline, factor),
        ratio=Spread.of(ratios),
        target=target,
        rounds=len(ratios),
    )


def take_turns(sides: Mapping[str, Measurement], rounds: int) -> dict[str, list[float]]:
    """Measure every side in turn, round after round, after a round that does not count."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, measurement in sides.items():
            gc.collect()
            seconds = measurement()
            if number >= WARM_UP_ROUNDS:
                found[name].append(seconds)
    return found


def in_loop(work: Callable[[], Awaitable[float]], backend: str = "asyncio") -> Measurement:
    """A measurement that needs an event loop: each time in a new one, which is not measured."""

    async def main() -> float:
        return await work()

    return partial(anyio.run, main, backend=backend)


def environment() -> dict[str, str]:
    """Where and with what this is measured."""
    packages = [f"{name} {metadata.version(name)}" for name in ("anyio", "attrs", "trio")]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        # Of these minutes: a benchmark alone makes 1.
        "load": f"{os.getloadavg()[1]:.1f}",
        "packages": ", ".join(packages),
    }


def commit() -> str:
    """The commit of the sources; says so when the library is not as it was committed."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return f"{head}, modified" if _git("status", "--porcelain", "--", "noetic_py", "benchmarks/*.py") else head


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()
