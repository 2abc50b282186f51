"""Runs that are killed before and after each of their commits, half of the times on each event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetic_py import Step
from noetic_py.testing.resumable import ResumeCheck, kill_points
from tests.sampling import is_for_this_loop

__all__ = ["assert_resumable"]


async def assert_resumable(flow: Callable[[], Step[Any, Any, Any, Any]], input: Any, **options: Any) -> int:
    """What `assert_resumable_everywhere` does, in a test that runs on both event loops.

    Neighbours, and before and after of one commit, are on different ones. Returns how often both together kill the run.
    """
    check = ResumeCheck(flow, input, **options)
    expected, appends = await check.whole()
    points = kill_points(appends)
    for at, when in points:
        if is_for_this_loop(at + (when == "after")):
            await check.kill(at, when, expected)
    return len(points)
