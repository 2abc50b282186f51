"""What bounds a run and everything that it starts, whatever the budget allows."""

from __future__ import annotations

from noetic_py.errors import LimitExceeded

__all__ = ["MAX_CHILDREN", "MAX_DEPTH", "MAX_ITERATIONS", "Family", "too_many_iterations"]

MAX_DEPTH = 16
"""Spawns below one another."""
MAX_CHILDREN = 256
"""Spawns of one run in flight at once, and runs that its steps have started."""
MAX_ITERATIONS = 50_000
"""Iterations of all loops of one run, whatever each of them allows; likewise."""


class Family:
    """What a run and all runs that its steps have started use up together.

    Attributes:
        children: Spawns and started runs in flight.
        iterations: Iterations of loops, those of earlier processes counted in.
    """

    __slots__ = ("children", "iterations")

    def __init__(self) -> None:
        self.children = self.iterations = 0

    def check(self, depth: int) -> None:
        """Check that one more child may start at a depth.

        Raises:
            LimitExceeded: Too deep, or too many in flight.
        """
        if depth > MAX_DEPTH:
            raise LimitExceeded("spawn depth", MAX_DEPTH, hint="spawn less deeply, or loop instead")
        if self.children >= MAX_CHILDREN:
            raise LimitExceeded("live children", MAX_CHILDREN, hint="use concurrency= to run fewer spawns at once")


def too_many_iterations() -> LimitExceeded:
    """Why there is no further iteration in a run that has had `MAX_ITERATIONS`."""
    return LimitExceeded(
        "iterations of a run", MAX_ITERATIONS, hint="end loops sooner, or start a run for each part of the work"
    )
