"""Killing a flow everywhere, and looking whether it comes out the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py.checkpoints.in_memory import InMemoryBackend
from noetic_py.checkpoints.records import StepFailed, StepFinished, Voided
from noetic_py.errors import NoeticError
from noetic_py.events import Event, StepStarted, StepVoided
from noetic_py.harness import Harness
from noetic_py.state import StateBag, copy_state
from noetic_py.testing._renamed import Names
from noetic_py.testing.faults import FaultyBackend, When

if TYPE_CHECKING:
    from noetic_py._types import M, R, S, T
    from noetic_py.checkpoints.backend import CheckpointBackend
    from noetic_py.checkpoints.records import JournalRecord
    from noetic_py.control import RunResult
    from noetic_py.steps.step import Step

__all__ = ["assert_resumable_everywhere"]

_RUN = "resumable"
Path = tuple[str, ...]


async def assert_resumable_everywhere(
    flow: Callable[[], Step[T, R, M, S]],
    input: T,
    *,
    state: object = None,
    make: Callable[[CheckpointBackend], Harness[M]] | None = None,
    user_id: str | None = None,
) -> int:
    """Run a flow, kill it before and after every one of its commits, resume it, and compare how it comes out.

    Each time a new flow goes on in a new harness, as in a new process. Value, status, state, memory, conversation,
    usage and the counts of steps and model calls have to be those of the run that nobody killed, and no body may run
    again whose step was committed. So the flow has to do the same each time: give it a model that answers what it is
    asked, such as a [`ScriptedModel`][noetic_py.testing.ScriptedModel] whose turns are functions of the request, and no
    clock or chance but the runtime's. Ids are drawn anew for what was not stored, so they are compared by where they
    stand: what refers to the third item of the conversation, in a state or a layer's, has to refer to the third again.

    Args:
        flow: Makes the flow.
        input: Its input.
        state: The state it begins with; each run gets a copy.
        make: Makes the harness of a backend; one without a model when left out.
        user_id: Whose run it is.

    Returns:
        How many times it was killed.

    Raises:
        AssertionError: A run came out another way; the message says where it was killed, and what was different.
    """
    check = _Check(flow, input, state, make or _plain, user_id)
    whole = FaultyBackend(InMemoryBackend())
    expected = await check.run(whole, [])
    if expected is None:
        raise AssertionError("a run that nobody kills has died")
    if not whole.appends:
        raise AssertionError("the run has no commits: make(backend) has to give a harness with checkpoints=backend")
    kills = 0
    for at in range(1, whole.appends + 1):
        for when in ("before", "after"):
            await check.kill(at, when, expected)
            kills += 1
    return kills


def _plain(backend: CheckpointBackend) -> Harness[Any]:
    return Harness(checkpoints=backend)


@frozen(eq=False)
class _Outcome:
    """What has to be the same."""

    parts: dict[str, Any]


@frozen(eq=False)
class _Check:
    """One flow, and how it is run."""

    flow: Callable[[], Any]
    input: Any
    state: Any
    make: Callable[[CheckpointBackend], Any]
    user_id: str | None

    async def run(self, backend: FaultyBackend, events: list[Event]) -> _Outcome | None:
        """Begin the run; `None` when it has died."""
        options: dict[str, Any] = {} if self.state is None else {"state": copy_state(self.state)}
        if self.user_id is not None:
            options["user_id"] = self.user_id
        harness = self.make(backend)
        return await _watched(
            backend, harness.stream(self.flow(), self.input, run_id=_RUN, on_error="result", **options), events
        )

    async def resume(self, backend: FaultyBackend, events: list[Event]) -> _Outcome | None:
        """Go on with it."""
        plain = self.state is None or isinstance(self.state, StateBag)
        options: dict[str, Any] = {} if plain else {"state_type": type(self.state)}
        harness = self.make(backend)
        return await _watched(backend, harness.resume_stream(_RUN, self.flow(), on_error="result", **options), events)

    async def kill(self, at: int, when: When, expected: _Outcome) -> None:
        """Kill it once, and go on."""
        where = f"killed {when} commit {at}"
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
        await self.run(backend, [])
        if not backend.dead:
            raise AssertionError(
                f"{where}: the run has fewer commits than before, so it does not do the same each time"
            )
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
    backend: FaultyBackend, stream: AbstractAsyncContextManager[Any], events: list[Event]
) -> _Outcome | None:
    outcome: _Outcome | None = None
    with backend.outlived():
        async with stream as watched:
            events += [event async for event in watched.events]
            outcome = _outcome(await watched.result())
    return outcome


def _outcome(result: RunResult[Any, Any]) -> _Outcome:
    error, names = result.error, Names()
    items = names.items(result.items)
    return _Outcome(
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
        }
    )


def _committed(journal: Sequence[JournalRecord]) -> set[Path]:
    """The steps that have finished and are not void."""
    found: set[Path] = set()
    for record in journal:
        if isinstance(record, StepFinished):
            found.add(record.path)
        elif isinstance(record, Voided) or (isinstance(record, StepFailed) and not record.final):
            found = {path for path in found if path[: len(record.path)] != record.path}
    return found


def _check_again(events: Sequence[Event], committed: set[Path], where: str) -> None:
    """No step that was committed has run its body again, unless a step around it was tried again."""
    for event in events:
        if isinstance(event, StepStarted) and event.path in committed:
            raise AssertionError(f"{where}: step {'/'.join(event.path)} was committed, and has run again")
        if isinstance(event, StepVoided) and not event.final:
            committed = {path for path in committed if path[: len(event.path)] != event.path}


def _compare(expected: _Outcome, outcome: _Outcome | None, where: str) -> None:
    if outcome is None:
        raise AssertionError(f"{where}: the run that went on has died too")
    for name, wanted in expected.parts.items():
        if outcome.parts[name] != wanted:
            raise AssertionError(
                f"{where}: {name} {'are' if name.endswith('s') and name != 'status' else 'is'} "
                f"{outcome.parts[name]!r}, and without the kill {wanted!r}"
            )
