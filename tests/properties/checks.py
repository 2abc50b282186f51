"""How much of the full sets a test run tries, and what no test may leave behind."""

from __future__ import annotations

import os

import anyio
from anyio.lowlevel import checkpoint

SEED = int(os.environ.get("NOETIC_SEED", "1"))
"""Where random tests start; printed by whatever fails."""


def examples(sample: int, full: int) -> int:
    """How many examples to try: a sample, or as many as `NOETIC_EXAMPLES` says, `full` being the whole set."""
    wanted = os.environ.get("NOETIC_EXAMPLES")
    if wanted is None:
        return sample
    return full if wanted == "full" else int(wanted)


FULL = os.environ.get("NOETIC_EXAMPLES") == "full"
"""Whether everything is tried, or a sample."""


def tasks() -> set[int]:
    """The tasks that are alive."""
    return {task.id for task in anyio.get_running_tasks()}


async def left_over(before: set[int]) -> set[str | None]:
    """The names of tasks that were not alive before, once those that are just ending have ended."""
    for _ in range(3):
        await checkpoint()
    return {task.name for task in anyio.get_running_tasks() if task.id not in before}
