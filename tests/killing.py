"""Runs that are killed before and after each of their commits, half of the times on each event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetic_py import Harness, Step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.testing.resumable import ResumeCheck, kill_points
from tests.sampling import is_for_this_loop

__all__ = ["assert_resumable"]


def _harness(backend: CheckpointBackend) -> Harness[Any]:
    return Harness(checkpoints=backend)


async def assert_resumable(
    flow: Callable[[], Step[Any, Any, Any, Any]],
    input: Any,
    *,
    make: Callable[[CheckpointBackend], Harness[Any]] = _harness,
    **options: Any,
) -> int:
    """What `assert_resumable_everywhere` does, in a test that runs on both event loops.

    Neighbours, and before and after of one commit, are on different ones. Returns how often both together kill the run.
    """
    check = ResumeCheck(flow, input, make=make, **options)
    expected, appends = await check.whole()
    points = kill_points(appends)
    for at, when in points:
        if is_for_this_loop(at + (when == "after")):
            await check.kill(at, when, expected)
    return len(points)
