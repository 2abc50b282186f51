"""What bodies write down themselves, outside of everything that is tested: one line each, in one write.

A line says which process it comes from, what happened, and the key of the step: its path, with the attempt of each
frame. Nothing here reads a journal.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from noetic_py.testing.ledger import Attempt, attempt_of

What: TypeAlias = Literal["start", "end", "got"]
"""A body begins; it is about to return; a body has got what a child of it returned."""


@dataclass(frozen=True)
class Line:
    """One line."""

    process: int
    what: What
    key: Attempt


class Ledger:
    """The file, as the bodies of one process write it.

    Args:
        path: Where it is.
        process: Which process of the run this is, from 0.
        dies_at: At which of its lines the process kills itself, counted from 1, once the line is written; 0 for never.
    """

    def __init__(self, path: Path, process: int, dies_at: int = 0) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.process = process
        self._dies_at = dies_at
        self.lines = 0

    def write(self, what: What, key: Attempt) -> None:
        """Write a line, and die when it is time."""
        os.write(self._handle, json.dumps([self.process, what, key]).encode() + b"\n")
        self.lines += 1
        if self.lines == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def body(self, ctx: Any) -> Generator[None]:
        """A body, from its first line to its last."""
        key = attempt_of(ctx)
        self.write("start", key)
        yield
        self.write("end", key)

    def got(self, ctx: Any, child: str) -> None:
        """A child has returned, so it is stored; the attempt that did is not known here and stands as 0."""
        self.write("got", (*attempt_of(ctx), (child, 0)))


def key_of(tree: Sequence[Sequence[Any]]) -> Attempt:
    """A key out of JSON."""
    return tuple((str(name), int(attempt)) for name, attempt in tree)


def read_ledger(path: Path) -> list[Line]:
    """Every line."""
    lines: list[Line] = []
    if path.exists():
        for text in path.read_text().splitlines():
            process, what, key = json.loads(text)
            lines.append(Line(process, what, key_of(key)))
    return lines


def shown(key: Attempt) -> str:
    """A key for people: `flow/s3(2)/s4` is the second attempt of `s3`."""
    return "/".join(name if attempt < 2 else f"{name}({attempt})" for name, attempt in key)


def problems(lines: Sequence[Line], process: int, closed: set[Attempt], finished: set[Attempt]) -> list[str]:
    """What a process did that it must not do.

    Args:
        lines: The ledger.
        process: The process.
        closed: The attempts whose outcome the journal held when the process began.
        finished: Those of them that had finished well.
    """
    found: list[str] = []
    before = [line for line in lines if line.process < process]
    starts = Counter(line.key for line in lines if line.process == process and line.what == "start")
    for key, count in starts.items():
        done = next((key[:at] for at in range(1, len(key) + 1) if key[:at] in closed), None)
        if done is not None:
            found.append(f"{shown(key)} started, though the journal held the outcome of {shown(done)}")
        if count > 1:
            found.append(f"{shown(key)} started {count} times in one process")
    known = {(*key[:-1], (key[-1][0], 0)) for key in finished}
    lost = {line.key for line in before if line.what == "got"} - known
    # What an attempt that has failed had got is void with it.
    lost = {key for key in lost if not any(key[:at] in closed for at in range(1, len(key)))}
    found += [f"{shown(key)} had returned, and its record is lost" for key in sorted(lost)]
    return found


def opened(lines: Sequence[Line], process: int, closed: set[Attempt], letter: str) -> set[str]:
    """The steps of a kind that had begun before a process did, and whose outcome nobody has stored."""
    keys = {line.key for line in lines if line.process < process and line.what == "start"} - closed
    return {"/".join(name for name, _ in key) for key in keys if key[-1][0].startswith(letter)}


def again(lines: Sequence[Line], process: int) -> int:
    """How many bodies a process started that another one had started before."""
    before = {line.key for line in lines if line.process < process and line.what == "start"}
    return sum(line.key in before for line in lines if line.process == process and line.what == "start")
