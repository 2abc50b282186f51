"""Imports everything that a run needs by running one, so that a forked child imports nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tests.crash import jobs
from tests.crash.folders import quick_folder
from tests.crash.server import Say
from tests.servers.jobs import ADDRESS

__all__ = ["warm_up"]


def _nobody(what: Any) -> None:
    """What is said while warming up, nobody hears."""


def warm_up(carry: Callable[[jobs.Given, Say], Any]) -> None:
    """Run a program on each event loop, and end all threads that it had."""
    with quick_folder() as folder:
        for number, loop in enumerate(("asyncio", "trio")):
            given: jobs.Given = {"folder": str(folder), "seed": 5, "process": number, "loop": loop}
            carry({**given, "store": os.environ[ADDRESS]}, _nobody)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(10)
    assert threading.active_count() == 1, threading.enumerate()
