"""W5: what a cold import costs, against importing asyncio: CPU time of fresh interpreters, start and end included.

What is measured is an installed package: the interpreters find compiled modules, in a cache of their own that the first
round fills.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.measure import MILLI, ROOT, Figure, Plan, compare, take_turns

TARGET = 2.0
NOTHING = "pass"
ASYNCIO = "import asyncio"
PACKAGE = "import noetic_py"
USED = "from noetic_py import Harness, step, loop, call_model"


def measure(plan: Plan) -> list[Figure]:
    """Every figure of W5."""
    with TemporaryDirectory() as cache:
        sides = {code: partial(child, code, cache) for code in (NOTHING, ASYNCIO, PACKAGE, USED)}
        found = take_turns(sides, plan.rounds)
    compared = partial(compare, "W5", unit="ms", factor=MILLI)
    return [
        compared(f"`{PACKAGE}`, against `{ASYNCIO}`", found[ASYNCIO], found[PACKAGE], target=TARGET),
        compared(f"`{USED}`, against `{ASYNCIO}`", found[ASYNCIO], found[USED], target=TARGET),
        compared(f"`{ASYNCIO}`, against an interpreter that imports nothing", found[NOTHING], found[ASYNCIO]),
    ]


def child(code: str, cache: str) -> float:
    """CPU seconds of a fresh interpreter that runs `code`, of the user and of the system."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": cache}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
