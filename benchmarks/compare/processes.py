"""One measurement: a fresh interpreter of a library's own environment, which prints a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import TAIL, Failed
from benchmarks.compare.registry import Library

CHILD = Path(__file__).resolve().parent / "child.py"
MINUTES = 10
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT")
"""Which variables a measured process sees: no key of a provider, no option of a tracer."""
Figures = dict[str, float]
"""By name: seconds, bytes or a ratio."""


def measure(
    library: Library, python: Path | str, work: str, size: int, *, minutes: float = MINUTES
) -> dict[str, float]:
    """The figures of one work of one library.

    Args:
        library: What is measured.
        python: The interpreter of its environment.
        work: The work, such as `"W1"`.
        size: How much of it.
        minutes: How long it may take.

    Raises:
        Failed: The process did not end well, or printed something else; the text has what it said.
    """
    what = f"{library.name}, {work}"
    arguments = [str(python), "-I", "-X", "utf8", str(CHILD), library.subject(work), work, str(size)]
    with tempfile.TemporaryDirectory() as home:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ} | {"HOME": home}
        try:
            done = subprocess.run(
                arguments, cwd=home, env=kept, check=False, capture_output=True, encoding="utf-8", timeout=60 * minutes
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{what}: not finished after {minutes:g} minutes") from None
    if done.returncode:
        raise Failed(f"{what}: the process ended with {done.returncode}:\n{done.stderr.strip()[-TAIL:]}")
    return figures_in(done.stdout, what, work)


def figures_in(printed: str, what: str, work: str) -> Figures:
    """The figures in the last line that a process printed; a library may have printed lines of its own before."""
    last = printed.rstrip().rpartition("\n")[2]
    try:
        line: Any = json.loads(last)
        found = {str(name): float(value) for name, value in line["figures"].items()}
        if line["work"] == work:
            return found
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise Failed(f"{what}: the process printed no figures but {last[:200]!r}")
