"""Imports everything that a run needs by running one, so that a forked child imports nothing.

Both event loops are run and have ended, with every thread that they had, before anything is forked.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from tests.crash import jobs
from tests.crash.folders import quick_folder


def _nobody(what: Any) -> None:
    """What is said while warming up, nobody hears."""


def warm_up() -> None:
    """Run a program of each kind on each event loop."""
    with quick_folder() as folder:
        for number, (flow, loop) in enumerate(itertools.product(("program", "effects"), ("asyncio", "trio"))):
            below = folder / str(number)
            below.mkdir()
            for process in range(2):
                given: jobs.Given = {"folder": str(below), "seed": 5, "process": process, "flow": flow, "loop": loop}
                jobs.carry(given, _nobody)
    assert threading.active_count() == 1, threading.enumerate()


warm_up()
