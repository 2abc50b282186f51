"""A witness outside of the library: what bodies write down themselves, and what their journal says beside it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import frozen

from noetic_py.journal.records import AttemptFailed, JournalRecord, RunEnded, StepFinished

if TYPE_CHECKING:
    from noetic_py.engine.frame import Frame

__all__ = ["Attempt", "Ledger", "LedgerLine"]

Attempt: TypeAlias = tuple[tuple[str, int], ...]
"""An attempt of a step: the frames of its path, each with the number of its attempt, from 1."""

_What: TypeAlias = Literal["process", "start", "end"]


@frozen
class LedgerLine:
    """One line of a ledger.

    Attributes:
        process: Which process wrote it, from 0 on.
        what: `"process"` when one began, `"start"` and `"end"` of a body.
        attempt: Whose it is; empty for a process.
        held: For a process: the attempts whose outcome the journal held when it began.
    """

    process: int
    what: _What
    attempt: Attempt
    held: frozenset[Attempt] = frozenset()


class Ledger:
    """A file to which every process of a run adds one line for each body that begins, and one for each that ends.

    Lines are appended with one write each, so those of a process that was killed are there. Nothing of it is read from
    the journal, except what `begin` is given; so it can say whether the journal tells the truth.

    ```python
    from noetic_py import Context, InMemoryBackend, Harness, step
    from noetic_py.testing import Ledger

    ledger = Ledger("ledger.jsonl")


    @step
    async def greet(name: str, ctx: Context) -> str:
        with ledger.body(ctx):
            return f"Hello, {name}"


    async def process(harness: Harness, run_id: str) -> None:
        ledger.begin(await harness.runs.journal(run_id))
        await harness.resume(run_id, greet)
        assert ledger.problems() == []
    ```

    Args:
        path: The file; it is made when it is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self._process = 1 + max((line.process for line in self.lines()), default=-1)
        self._begun = False

    def begin(self, journal: Sequence[JournalRecord] = ()) -> None:
        """Say that this process is about to start the run, or to go on with it.

        Args:
            journal: What the run's journal holds by now; nothing for a new run.
        """
        if self._begun:
            self._process += 1
        self._begun = True
        self._write("process", (), sorted(outcomes(journal)))

    @contextmanager
    def body(self, ctx: object) -> Generator[None]:
        """A body of a step: put it around all that the body does.

        Args:
            ctx: The body's context.
        """
        attempt = attempt_of(ctx)
        self._write("start", attempt)
        yield
        self._write("end", attempt)

    def lines(self) -> list[LedgerLine]:
        """All lines, of every process."""
        if not self.path.exists():
            return []
        return [_line(json.loads(text)) for text in self.path.read_text(encoding="utf-8").splitlines()]

    def starts(self, step_id: str) -> int:
        """How many times the bodies of a step have begun, in all processes and places."""
        frames = (line.attempt[-1][0] for line in self.lines() if line.what == "start")
        return sum(frame.partition("#")[0].partition("[")[0] == step_id for frame in frames)

    def problems(self) -> list[str]:
        """Return each violation by a process of the run as a sentence; empty when there is none.

        No body begins whose outcome, or that of a step around it, the journal held when its process began, and none
        begins twice in one process. So after a death no body begins again but those that were in flight.
        """
        lines = self.lines()
        found: list[str] = []
        for process in sorted({line.process for line in lines}):
            its = [line for line in lines if line.process == process]
            held = {attempt for line in its for attempt in line.held}
            starts = Counter(line.attempt for line in its if line.what == "start")
            for attempt, count in starts.items():
                done = next((attempt[:at] for at in range(1, len(attempt) + 1) if attempt[:at] in held), None)
                if done is not None:
                    found.append(f"{_shown(attempt)} began, though the journal held the outcome of {_shown(done)}")
                if count > 1:
                    found.append(f"{_shown(attempt)} began {count} times in process {process}")
        return found

    def _write(self, what: _What, attempt: Attempt, held: Sequence[Attempt] = ()) -> None:
        line = json.dumps([self._process, what, attempt, held]).encode() + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def attempt_of(ctx: object) -> Attempt:
    """The attempt that a context belongs to."""
    frames: list[tuple[str, int]] = []
    frame: Any = ctx
    node: Frame | None = frame
    while node is not None:
        if not node.virtual:
            frames.append((node.path[-1], node.attempt))
        node = node.up
    return tuple(reversed(frames))


def outcomes(journal: Sequence[JournalRecord]) -> dict[Attempt, bool]:
    """The attempts whose outcome a journal holds, each with whether it finished.

    The failure that ended a run is none: it is tried again.
    """
    found: dict[Attempt, bool] = {}
    attempts: dict[tuple[str, ...], int] = {}
    failed: set[Attempt] = set()
    for record in journal:
        if isinstance(record, RunEnded) and record.status == "failed":
            found = {attempt: well for attempt, well in found.items() if attempt not in failed}
        if not isinstance(record, (StepFinished, AttemptFailed)):
            continue
        path = record.path
        attempt = tuple((path[at], attempts.get(path[: at + 1], 1)) for at in range(len(path)))
        found[attempt] = isinstance(record, StepFinished)
        if isinstance(record, AttemptFailed) and record.final:
            failed.add(attempt)
        elif isinstance(record, AttemptFailed):
            attempts = {other: n for other, n in attempts.items() if other[: len(path)] != path}
            attempts[path] = record.attempt + 1
    return found


def _line(tree: Any) -> LedgerLine:
    process, what, attempt, held = tree
    return LedgerLine(process, what, _attempt(attempt), frozenset(map(_attempt, held)))


def _attempt(tree: Sequence[Sequence[Any]]) -> Attempt:
    return tuple((str(name), int(number)) for name, number in tree)


def _shown(attempt: Attempt) -> str:
    return "/".join(name if number == 1 else f"{name}({number})" for name, number in attempt)
