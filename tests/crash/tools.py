"""Tracing processes with `strace`, and reading what it has written."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.programs import need


@contextmanager
def traced(pid: int, *options: str) -> Generator[None]:
    """Trace a process and its threads for as long as the block lasts; the process has to end in it."""
    command = [str(need("strace")), "-f", "-qq", "-p", str(pid), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            yield
        except BaseException:
            tracer.kill()
            raise
        _, said = tracer.communicate(timeout=30)
        assert tracer.returncode in (0, None) or "No such process" in said, said


def counted(log: Path) -> dict[str, int]:
    """How often each system call was made, by the thread that made it most often: threads are counted apart."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        thread, _, rest = line.partition(" ")
        name, opened, _ = rest.strip().partition("(")
        if opened and name.isidentifier():
            counts[thread, name] += 1
    most: dict[str, int] = {}
    for (_, name), count in counts.items():
        most[name] = max(count, most.get(name, 0))
    return most


def spread(points: Sequence[tuple[str, int]], wanted: int) -> list[tuple[str, int]]:
    """So many of the points, from all parts of the run."""
    step = max(1.0, len(points) / wanted)
    return [points[int(index * step)] for index in range(min(wanted, len(points)))]
