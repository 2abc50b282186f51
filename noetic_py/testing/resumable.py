"""Killing a flow everywhere, and looking whether it comes out the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.core.events import Event, StepDiscarded, StepStarted
from noetic_py.core.state import StateBag, class_of, copy_state
from noetic_py.errors import NoeticError
from noetic_py.harness import Harness
from noetic_py.journal.records import AttemptFailed, JournalRecord, ResultDiscarded, StepFinished
from noetic_py.testing._renamed import Names
from noetic_py.testing.faults import FaultyBackend, When

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.context.step import Step
    from noetic_py.core.control import AnyResult
    from noetic_py.core.types import M, R, S, T

__all__ = ["NotReached", "Outcome", "ResumeCheck", "assert_resumable_everywhere", "kill_points"]

_RUN = "resumable"
Path = tuple[str, ...]


async def assert_resumable_everywhere(
    flow: Callable[[], Step[T, R, M, S]],
    input: T,
    *,
    state: object = None,
    make: Callable[[CheckpointBackend], Harness[M]] | None = None,
    user_id: str | None = None,
    also: Callable[[CheckpointBackend], Awaitable[object]] | None = None,
) -> int:
    """Run a flow, kill it before and after every one of its commits, resume it, and compare how it comes out.

    Each time a new flow goes on in a new harness, as in a new process. Value, status, state, memory, conversation,
    usage and the counts of steps and model calls have to be those of the run that was not killed, and no body may run
    again whose step was committed. So the flow has to do the same each time: give it a model that answers what it is
    asked, such as a [`ScriptedModel`][noetic_py.testing.ScriptedModel] whose turns are functions of the request, and no
    clock or chance but the runtime's. Ids are drawn anew for what was not stored, so they are compared by where they
    stand: what refers to the third item of the conversation, in a state or a layer's, has to refer to the third again.

    Args:
        flow: Makes the flow.
        input: Its input.
        state: The state it begins with; each run gets a copy.
        make: Makes the harness of a backend; one without a model when left out.
        user_id: The owner of the run.
        also: Reads what else has to be the same when a run is over, such as what layers have put into their storage.

    Returns:
        How many times it was killed.

    Raises:
        AssertionError: A run came out another way; the message says where it was killed, and what was different.
    """
    check = ResumeCheck(flow, input, state, make or _plain, user_id, also)
    expected, appends = await check.whole()
    points = kill_points(appends)
    for at, when in points:
        await check.kill(at, when, expected)
    return len(points)


def kill_points(appends: int) -> list[tuple[int, When]]:
    """Where a run with so many commits can be killed: before and after each of them."""
    whens: tuple[When, ...] = ("before", "after")
    return [(at, when) for at in range(1, appends + 1) for when in whens]


def _plain(backend: CheckpointBackend) -> Harness[Any]:
    return Harness(checkpoints=backend)


class NotReached(AssertionError):
    """A run has fewer commits than before; where paths run side by side, several may be written in one."""


@frozen(eq=False)
class Outcome:
    """The values that must be the same.

    Attributes:
        parts: It, by what it is called in a message.
    """

    parts: dict[str, Any]


@frozen(eq=False)
class ResumeCheck:
    """One flow, and how it is run, for who chooses where it is killed.

    Args:
        flow: As for `assert_resumable_everywhere`, like all that follows.
        input: Its input.
        state: Its state.
        make: Makes the harness.
        user_id: The owner of the run.
        also: What else is compared.
    """

    flow: Callable[[], Any]
    input: Any
    state: Any = None
    make: Callable[[CheckpointBackend], Any] = _plain
    user_id: str | None = None
    also: Callable[[CheckpointBackend], Awaitable[object]] | None = None

    async def whole(self) -> tuple[Outcome, int]:
        """Return the outcome of the run that is not killed, and its number of commits.

        Raises:
            AssertionError: It has none.
        """
        backend = FaultyBackend(InMemoryBackend())
        outcome = await self.run(backend, [])
        if outcome is None:
            raise AssertionError("a run that was not killed has died")
        if not backend.appends:
            raise AssertionError("the run has no commits: make(backend) has to give a harness with checkpoints=backend")
        return outcome, backend.appends

    async def run(self, backend: FaultyBackend, events: list[Event]) -> Outcome | None:
        """Begin the run; `None` when it has died."""
        options: dict[str, Any] = {} if self.state is None else {"state": copy_state(self.state)}
        if self.user_id is not None:
            options["user_id"] = self.user_id
        harness = self.make(backend)
        stream = harness.stream(self.flow(), self.input, run_id=_RUN, on_error="result", **options)
        return await self._watched(backend, harness, stream, events)

    async def resume(self, backend: FaultyBackend, events: list[Event]) -> Outcome | None:
        """Go on with it."""
        kind: Any = class_of(self.state)
        options: dict[str, Any] = {} if self.state is None or kind is StateBag else {"state_type": kind}
        harness = self.make(backend)
        stream = harness.resume_stream(_RUN, self.flow(), on_error="result", **options)
        return await self._watched(backend, harness, stream, events)

    async def kill(self, at: int, when: When, expected: Outcome) -> None:
        """Kill it once, and go on.

        Raises:
            AssertionError: It comes out another way.
            NotReached: It has not got so far.
        """
        where = f"killed {when} commit {at}"
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
        await self.run(backend, [])
        if not backend.dead:
            raise NotReached(f"{where}: the run has fewer commits than before, so it does not do the same each time")
        backend.revive()
        events: list[Event] = []
        begun = await backend.head(_RUN)
        committed: set[Path] = set()
        try:
            if begun is None or not begun.position:
                outcome = await self.run(backend, events)
            else:
                committed = _committed(await self.make(backend).runs.journal(_RUN))
                outcome = await self.resume(backend, events)
        except NoeticError as error:
            raise AssertionError(f"{where}: it does not go on: {error}") from error
        _check_again(events, committed, where)
        _compare(expected, outcome, where)

    async def _watched(
        self,
        backend: FaultyBackend,
        harness: Harness[Any],
        stream: AbstractAsyncContextManager[Any],
        events: list[Event],
    ) -> Outcome | None:
        result: AnyResult | None = None
        with backend.outlived():
            async with harness, stream as watched:
                events += [event async for event in watched.events]
                result = await watched.result()
        if result is None or backend.dead:
            return None
        return _outcome(result, None if self.also is None else await self.also(backend))


def _outcome(result: AnyResult, also: object) -> Outcome:
    error, names = result.error, Names()
    items = names.items(result.items)
    return Outcome(
        {
            "status": result.status,
            "value": names.value(result.output_or(None)),
            "error": None if error is None else (type(error).__name__, error.path),
            "state": names.state(result.state),
            "memory": {layer: names.value(state) for layer, state in result.memory.items()},
            "items": items,
            "usage": result.usage,
            "cost": result.cost,
            "steps": result.steps,
            "model calls": result.model_calls,
            "what else was read": names.value(also),
        }
    )


def _committed(journal: Sequence[JournalRecord]) -> set[Path]:
    """The steps that have finished and are not discarded."""
    found: set[Path] = set()
    for record in journal:
        if isinstance(record, StepFinished):
            found.add(record.path)
        elif isinstance(record, ResultDiscarded) or (isinstance(record, AttemptFailed) and not record.final):
            found = {path for path in found if path[: len(record.path)] != record.path}
    return found


def _check_again(events: Sequence[Event], committed: set[Path], where: str) -> None:
    """No step that was committed has run its body again, unless a step around it was tried again."""
    for event in events:
        if isinstance(event, StepStarted) and event.path in committed:
            raise AssertionError(f"{where}: step {'/'.join(event.path)} was committed, and has run again")
        if isinstance(event, StepDiscarded) and not event.final:
            committed = {path for path in committed if path[: len(event.path)] != event.path}


def _compare(expected: Outcome, outcome: Outcome | None, where: str) -> None:
    if outcome is None:
        raise AssertionError(f"{where}: the run that went on has died too")
    for name, wanted in expected.parts.items():
        if outcome.parts[name] != wanted:
            raise AssertionError(
                f"{where}: {name} {'are' if name.endswith('s') and name != 'status' else 'is'} "
                f"{outcome.parts[name]!r}, and without the kill {wanted!r}"
            )
