"""Imports everything that a run needs by running one, so that a forked child imports nothing."""

from __future__ import annotations

import os
import threading
from typing import Any

import crash_jobs

from tests.crash import jobs
from tests.crash.folders import quick_folder


def _nobody(what: Any) -> None:
    """What is said while warming up, nobody hears."""


def warm_up() -> None:
    """Run a program on each event loop, and end all threads that it had."""
    with quick_folder() as folder:
        for number, loop in enumerate(("asyncio", "trio")):
            given: jobs.Given = {"folder": str(folder), "seed": 5, "process": number, "loop": loop}
            crash_jobs.carry({**given, "store": os.environ[crash_jobs.ADDRESS]}, _nobody)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(10)
    assert threading.active_count() == 1, threading.enumerate()


warm_up()
