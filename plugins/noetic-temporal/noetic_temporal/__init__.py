"""Has Temporal carry out the runs of noetic_py: its workers, timers, signals and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_temporal.client import answer, scheduled, submit
    from noetic_temporal.worker import work

__all__ = ["answer", "scheduled", "submit", "work"]

_CLIENT = ("answer", "scheduled", "submit")


def __getattr__(name: str) -> Any:
    # A sandbox of Temporal's, such as that of its `Replayer`, imports the module of the workflow once more, and this
    # package with it: nothing else of noetic_py may come with that.
    if name in _CLIENT:
        from noetic_temporal import client

        return getattr(client, name)
    if name == "work":
        from noetic_temporal.worker import work

        return work
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
