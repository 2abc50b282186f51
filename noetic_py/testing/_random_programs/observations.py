"""The observations of the bodies and the model of a random program: all that an oracle knows of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from attrs import define, field, frozen

from noetic_py.context.context import AnyContext, current_context
from noetic_py.engine.journaling.fold import BEGUN
from noetic_py.journal.records import AttemptFailed, Decision, JournalRecord, Pending, StepFinished, StepStopped
from noetic_py.testing.ledger import Attempt, attempt_of

if TYPE_CHECKING:
    import anyio

    from noetic_py.core.items import Item
    from noetic_py.engine.frame import Frame

Asked: TypeAlias = tuple[Attempt, int]
"""A call of a model: the attempt of the body that made it, and the number of the operation there."""

Request: TypeAlias = tuple[Attempt, str, int]
"""A request for the end of an execution: who made it, which one, and the value."""


@define
class Observations:
    """The observations and choices of the bodies and the model of one run, over all the processes that carry it.

    Which path of a race was the first, who asked for a stop before others did, which call a budget refused: a run may
    choose, and its bodies note it here. [`expected_outcome`][noetic_py.testing.expected_outcome] looks these choices up
    and knows nothing else of a run.

    Attributes:
        bodies: How many attempts have begun, each round of a model among them.
        calls: How many times a model was asked.
        cost: What the model says that its calls have cost.
        deaths: How many processes have died.
        starts: How many times each attempt of a step has begun.
        done: The attempts whose body has come to its end.
        asked: The steps whose request was stored, and with it what stood around them.
        marks: Of each section the path that ended first.
        winners: Of each race, by the sequence it stands in and its id, the path whose value came out.
        controls: Of each execution the first request for its end; the run's own has an empty key.
        refused: The calls that a budget refused.
        answered: The calls that a model answered.
        cancelled: How many calls were cancelled.
        bad_requests: Conversations that a strict provider would have refused.
        unexpected: Errors that no program may bring about.
    """

    bodies: int = 0
    calls: int = 0
    cost: Decimal = Decimal(0)
    deaths: int = 0
    starts: Counter[Attempt] = field(factory=Counter[Attempt])
    done: set[Attempt] = field(factory=set[Attempt])
    asked: set[Attempt] = field(factory=set[Attempt])
    marks: dict[Attempt, int] = field(factory=dict[Attempt, int])
    winners: dict[tuple[Attempt, str], int] = field(factory=dict[tuple[Attempt, str], int])
    controls: dict[Attempt, Request] = field(factory=dict[Attempt, Request])
    refused: set[Asked] = field(factory=set[Asked])
    answered: set[Asked] = field(factory=set[Asked])
    cancelled: int = 0
    bad_requests: list[Sequence[Item]] = field(factory=list["Sequence[Item]"])
    unexpected: list[Exception] = field(factory=list[Exception])
    _waiting: dict[Attempt, anyio.CancelScope] = field(factory=dict[Attempt, "anyio.CancelScope"])

    def after_death(self, journal: Sequence[JournalRecord]) -> Self:
        """Drop what is not known when a process has died; keep the notes of attempts that the journal knows too.

        A body that runs again notes its work again, so what the dead process has noted of it must not count.

        Args:
            journal: What the journal of the run holds by now, as
                [`Runs.journal`][noetic_py.runner.runs.Runs.journal] gives it.

        Returns:
            New observations, to build the program with that the next process carries.
        """
        found = read_journal(journal)
        left = type(self)()
        left.marks = dict(found.marks)
        left.winners = {
            (key, section): index
            for (key, section), index in self.winners.items()
            if (*key, (f"{section}r", 1)) in found.finished
        }
        left.controls = {at: control for at, control in self.controls.items() if control[0] in found.controls}
        # A call that was refused before it was recorded may be answered now.
        left.refused = {ask for ask in self.refused if _model_round(ask) in found.ended}
        left.answered = {ask for ask in self.answered if _model_round(ask) in found.ended}
        left.done = {key for key in self.done if key in found.ended}
        # What waits is known too, though it has come to no end: a race may be won without it.
        waits = {key[:at] for key in found.asked for at in range(1, len(key) + 1)}
        known = found.ended.keys() | waits | found.begun
        left.starts = Counter({key: count for key, count in self.starts.items() if key in known})
        left.bodies = len(left.starts)
        left.calls, left.cost, left.deaths = self.calls, self.cost, self.deaths + 1
        # A model round that starts again finds its answer, and its start is not noted.
        open_rounds = sum(key[-1][0] == "answer" and not found.ended[key[:-1]] for key in found.ended)
        left.cancelled = self.cancelled + open_rounds
        left.bad_requests, left.unexpected = self.bad_requests, self.unexpected
        return left

    def enter(self) -> None:
        """A body begins; for an answer its model round does."""
        frame: Any = current_context(required=True)
        key = attempt_of(frame)
        # An attempt that another process starts again is the same one.
        self.starts[key[:-1] if frame.kind.part else key] += 1
        self.bodies = len(self.starts)

    def wait(self, ctx: object, cancel_scope: anyio.CancelScope) -> None:
        """A body waits for a child that it gives up when that hangs."""
        self._waiting[attempt_of(ctx)] = cancel_scope

    def wait_no_longer(self, ctx: object) -> None:
        """That child has come to an end, or was given up."""
        del self._waiting[attempt_of(ctx)]

    def give_up(self, ctx: object) -> None:
        """Let the nearest body above that waits for this one wait no longer."""
        key = attempt_of(ctx)
        while key not in self._waiting:
            key = key[:-1]
        self._waiting[key].cancel()

    def request(self, ctx: AnyContext, kind: Literal["complete", "abort"], value: int) -> None:
        """Ask for a stop, and note who was the first in its execution."""
        self.controls.setdefault(_execution(ctx), (attempt_of(ctx), kind, value))
        if kind == "complete":
            ctx.complete(value)
        else:
            ctx.abort(str(value))


def _execution(ctx: Any) -> Attempt:
    """The attempt of the spawn whose execution a step belongs to; empty for the run."""
    node: Frame | None = ctx
    while node is not None and not node.virtual:
        node = node.up
    return () if node is None else attempt_of(node.up)


def _model_round(ask: Asked) -> Attempt:
    """The attempt of the model round that one of a body's operations runs."""
    key, index = ask
    return (*key, (f"ask{index}", 1))


@frozen(eq=False)
class Told:
    """The attempts of steps as a journal names them.

    Attributes:
        ended: How many outcomes of each it holds.
        finished: Where those stand that finished.
        controls: Those that have asked for the end of their execution.
        asked: Those whose request is stored, and with it what stood around them, whether or not it was answered.
        marks: Of each section the path that finished first.
        begun: Those that were in flight in the other paths when one path had decided a section.
    """

    ended: Counter[Attempt] = field(factory=Counter[Attempt])
    finished: dict[Attempt, int] = field(factory=dict[Attempt, int])
    controls: set[Attempt] = field(factory=set[Attempt])
    asked: set[Attempt] = field(factory=set[Attempt])
    marks: dict[Attempt, int] = field(factory=dict[Attempt, int])
    begun: set[Attempt] = field(factory=set[Attempt])


def read_journal(journal: Sequence[JournalRecord]) -> Told:
    """Read the records; those of an attempt that failed keep the attempt's number."""
    found = Told()
    attempts: dict[tuple[str, ...], int] = {}
    for position, record in enumerate(journal):
        if isinstance(record, Decision) and record.key == BEGUN:
            found.begun.update(
                (*_attempt_at(tuple(around), attempts), (last, attempt)) for (*around, last), attempt in record.value
            )
            continue
        if not isinstance(record, (StepFinished, AttemptFailed, StepStopped, Pending)):
            continue
        path = record.path
        key = _attempt_at(path, attempts)
        if isinstance(record, Pending):
            found.asked.add(key)
            continue
        found.ended[key] += 1
        if record.control is not None:
            found.controls.add(key)
        if isinstance(record, StepFinished):
            if key in found.finished:
                raise AssertionError(f"{path} finished twice")
            found.finished[key] = position
            if path[-1].endswith("]"):
                found.marks.setdefault(key[:-1], int(path[-1].rpartition("[")[2][:-1]))
        elif isinstance(record, AttemptFailed) and not record.final:
            attempts = {other: n for other, n in attempts.items() if other[: len(path)] != path}
            attempts[path] = record.attempt + 1
    return found


def _attempt_at(path: tuple[str, ...], attempts: Mapping[tuple[str, ...], int]) -> Attempt:
    return tuple((path[at], attempts.get(path[: at + 1], 1)) for at in range(len(path)))
