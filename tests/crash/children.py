"""Child processes from a fork server, as a test sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 60.0
"""Seconds after which a child that says nothing is taken to hang."""


class ChildFailed(AssertionError):
    """A child raised, or hangs."""


@dataclass
class Ended:
    """How a child ended.

    Attributes:
        result: What its job returned; `None` when it was killed.
        killed: Whether it was.
        said: What it said before.
        seconds: How long it lived.
    """

    result: Any = None
    killed: bool = False
    said: list[Any] = field(default_factory=list[Any])
    seconds: float = 0.0

    def heard(self, what: str) -> Any:
        """The first thing it said of a kind; `None` when it did not."""
        return next((rest[0] for kind, *rest in self.said if kind == what), None)


class Children:
    """Starts children, listens to them, and kills them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._since: dict[int, float] = {}
        self._said: dict[int, list[Any]] = {}

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildFailed(f"the fork server has died: {self._process.wait()}")
        return json.loads(answer)

    def start(self, job: str, **given: Any) -> int:
        """Fork a child that does a job, `module:function`; returns its pid."""
        pid: int = self._ask("start", job, given)
        self._since[pid] = time.monotonic()
        self._said[pid] = []
        return pid

    def event(self, pids: Sequence[int], seconds: float = PATIENCE) -> tuple[int, list[Any]] | None:
        """The next thing that one of some children says, or `["end", status]`; `None` when nothing comes in time.

        Raises:
            ChildFailed: A child has raised.
        """
        pid, what = self._ask("event", list(pids), max(0.0, seconds))
        if not pid:
            return None
        if what[0] == "error":
            raise ChildFailed(f"in the child, after it had said {self._said[pid][-1:]}:\n{what[1]}")
        self._said[pid].append(what)
        return pid, what

    def hear(self, pid: int, what: str) -> Any:
        """Wait until a child says something of a kind."""
        while True:
            event = self.event([pid])
            if event is None or event[1][0] == "end":
                raise ChildFailed(f"the child never said {what!r}: {event or 'it hangs'}")
            if event[1][0] == what:
                return event[1][1]

    def ended(self, pid: int, *, kill_after: float | None = None, codes: Collection[int] = (0,)) -> Ended:
        """Wait for a child's end.

        Args:
            pid: The child.
            kill_after: Seconds from its start after which it is killed.
            codes: The exit codes that it may end with.
        """
        begun, killing = self._since[pid], kill_after is not None
        while True:
            seconds = begun + kill_after - time.monotonic() if killing and kill_after is not None else PATIENCE
            event = self.event([pid], seconds)
            if event is not None and event[1][0] == "end":
                return self._summed_up(pid, event[1][1], codes)
            if event is None:
                os.kill(pid, signal.SIGKILL)
                if not killing:
                    raise ChildFailed(f"the child hangs; it said {self._said[pid]}")
                killing = False

    def _summed_up(self, pid: int, status: int, codes: Collection[int]) -> Ended:
        said = self._said.pop(pid)
        ended = Ended(said=said, killed=status == -signal.SIGKILL, seconds=time.monotonic() - self._since.pop(pid))
        if not ended.killed:
            if status not in codes:
                raise ChildFailed(f"the child ended with {status}; it said {said}")
            ended.result = ended.heard("result")
        return ended

    def run(self, job: str, **given: Any) -> Ended:
        """Start a child and wait for its end."""
        return self.ended(self.start(job, **given))

    def kill(self, pid: int) -> Ended:
        """Kill a child."""
        os.kill(pid, signal.SIGKILL)
        return self.ended(pid)


@contextmanager
def fork_server(warm: str = "tests.crash.warm", **environment: str) -> Generator[Children]:
    """A fork server, for as long as the block lasts.

    Args:
        warm: A module that it imports first, which imports what its children need.
        **environment: What its environment has besides this process's.
    """
    command = [sys.executable, "-m", "tests.crash.server", warm]
    # What a process has covered is lost with it, and measuring it would only make its life longer.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    merged: Mapping[str, str] = {**kept, **environment}
    with subprocess.Popen(
        command, cwd=ROOT, env=merged, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Children(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
