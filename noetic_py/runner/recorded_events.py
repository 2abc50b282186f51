"""Events of a stored run, read from its journal: for readers in any process, who go on behind a cursor.

Readers follow the journal itself, so an event is there once its record is committed, as long as the run is stored, and
once: its cursor follows from the record's position, whichever process has written it or reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from noetic_py.core.events import (
    Event,
    ItemsAppended,
    LoopIteration,
    ProgressSet,
    RequestMade,
    RunFinished,
    RunStarted,
    StepCommitted,
    StepDiscarded,
    StepStarted,
)
from noetic_py.engine.journaling.run_history import request_of
from noetic_py.journal.records import (
    AttemptFailed,
    Decision,
    JournalRecord,
    Pending,
    Progressed,
    RunBegun,
    RunEnded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
)

if TYPE_CHECKING:
    from noetic_py.runner.runs import Runs

__all__ = ["RecordReader", "RecordedEvent", "RecordedEvents"]

_PER_RECORD = 4
"""More than the events of any record, so that cursors of different records never meet."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


@frozen(eq=False)
class RecordedEvent:
    """An event of a stored run.

    Attributes:
        cursor: Where to go on behind it: `runs.events(run_id, after=cursor)`. It grows within a run, and the same event
            has the same cursor for every reader.
        event: The event.
    """

    cursor: int
    event: Event


class RecordReader:
    """The records of a run from a position on, and those that come.

    Args:
        runs: The runs.
        run_id: The run.
        after: The position.
        sleep: Waits between two looks.
    """

    def __init__(self, runs: Runs, run_id: str, after: int, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._runs = runs
        self._run_id = run_id
        self._position = after
        self._sleep = sleep

    async def next(self) -> Sequence[tuple[int, JournalRecord]]:
        """Wait for the next records, each with its position, counted from 1.

        Returns:
            The records; an empty list when all were given, no process has the run, and no worker will take it.
        """
        pause = _FIRST_PAUSE
        while True:
            # Asked first: what a process wrote before it was gone is read afterwards.
            info = await self._runs.get(self._run_id)
            records = await self._runs.journal(self._run_id, after=self._position)
            if records or (not info.alive and info.queue is None):
                found = list(enumerate(records, self._position + 1))
                self._position += len(found)
                return found
            await self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class RecordedEvents(AsyncIterator[RecordedEvent]):
    """The events of a stored run behind a cursor, and those that come; get it as `harness.runs.events(run_id)`.

    A reader may leave its loop, and enter another one over the same object later.
    """

    # No generator: one that is left before its end would have to be closed by its reader.

    def __init__(self, runs: Runs, run_id: str, after: int, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._reader = RecordReader(runs, run_id, max(0, after - 1) // _PER_RECORD, sleep)
        self._run_id = run_id
        self._after = after
        self._found: deque[RecordedEvent] = deque()

    async def __anext__(self) -> RecordedEvent:
        while not self._found:
            records = await self._reader.next()
            if not records:
                raise StopAsyncIteration
            for position, record in records:
                first = (position - 1) * _PER_RECORD + 1
                for cursor, event in enumerate(_events_of(record, self._run_id, position), first):
                    if cursor > self._after:
                        self._found.append(RecordedEvent(cursor, event))
        return self._found.popleft()


def _events_of(  # noqa: C901  # one case for each kind of record
    record: JournalRecord, run_id: str, position: int
) -> Iterator[Event]:
    match record:
        case RunBegun():
            yield RunStarted((), run_id)
        case StepOpened():
            yield StepStarted(record.path, record.kind, record.attempt)
        case Segment(items=items) if items:
            yield ItemsAppended(record.path, items)
        case StepFinished():
            if record.items:
                yield ItemsAppended(record.path, record.items)
            yield StepCommitted(record.path, record.kind, position)
        case AttemptFailed():
            yield StepDiscarded(record.path, record.attempt, str(record.error), record.final)
        case StepStopped():
            if record.items:
                yield ItemsAppended(record.path, record.items)
            yield StepDiscarded(record.path, record.attempt, "stopped", True)
        case Decision(key=key) if key.startswith("verdict["):
            stop, reason, feedback = record.value[:3]
            yield LoopIteration(record.path, int(key[len("verdict[") : -1]), stop, reason, feedback)
        case Pending():
            yield RequestMade(record.path, request_of(record, run_id))
        case Progressed():
            yield ProgressSet(record.path, record.value, record.what == "done")
        case RunEnded():
            yield RunFinished((), run_id, record.status, record.reason)
        case _:
            # What a later process needs, and what tells a reader nothing.
            pass
