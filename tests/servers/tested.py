"""What the shared tests want to know of a server that they start."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

__all__ = ["ServerOfTests"]


class ServerOfTests(Protocol):
    """A server of a test's own."""

    @property
    def port(self) -> int:
        """Where it listens, on the loopback."""
        ...

    def space(self) -> AbstractContextManager[str]:
        """A part of it that a test has for itself, and that is empty."""
        ...

    def url(self, space: str = ..., /, *, port: int | None = None, more: str = "") -> str:
        """What a program would write as `checkpoints=`."""
        ...

    def lapse(self, space: str, /) -> None:
        """As if the time of every lease were up."""
        ...

    def bury(self, space: str, /) -> None:
        """As long after the death of every process that was connected: the server has noticed, their leases are up."""
        ...

    def wait_for_leases(self, space: str, /) -> None:
        """Wait until the time of every lease is up, by the server's clock; nobody may be renewing one."""
        ...

    def has_left_a_run(self, space: str, /) -> bool:
        """Whether there is a run that was not ended, and whose owner has not given it back."""
        ...

    def stored(self, space: str, /) -> object:
        """All that is stored of runs and values; compared, and not read."""
        ...

    def start(self) -> None:
        """Let it run."""
        ...

    def stop(self) -> None:
        """Let it end as it would like to."""
        ...

    def restart(self) -> None:
        """As after a crash: nobody was told, and what it had on its disk is read."""
        ...

    def end_sessions(self) -> None:
        """End all connections of backends, whatever they are doing."""
        ...
