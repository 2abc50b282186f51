"""Random programs run durably: killed, and resumed by a process that shares nothing with the one before but a journal.

What bodies note is kept apart by what the journal says: of a process that died only the notes of attempts survive that
its journal knows too, so a body that runs again does not note its work twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import anyio

from noetic_py import Budget, Harness, InMemoryBackend, Item, RunResult, StateBag, current_context, errors
from noetic_py._engine.fold import items_below, tree, visible
from noetic_py._engine.keeping import codec_for
from noetic_py._engine.resume import read_journal
from noetic_py._engine.state import Frame
from noetic_py.checkpoints.delta import apply_changes, known_fields, mismatch
from noetic_py.checkpoints.records import (
    JournalRecord,
    Path,
    RunEnded,
    RunStarted,
    StepFailed,
    StepFinished,
    StepStopped,
)
from noetic_py.checkpoints.stored import Stored
from noetic_py.codec import Codec
from noetic_py.context import Domain
from noetic_py.log import ItemLog
from noetic_py.testing.faults import FaultyBackend, When
from tests.properties.checks import pairing_error, renumbered, told, valid
from tests.properties.oracle import Ambiguous, Expected, foretell
from tests.properties.programs import Builder, Fields, Key, Program, World, new_state, plain_state, where

Kill = tuple[int, When]
"""At which append a process dies, counted from its own first one, and whether that is stored."""
STATES: dict[str, Any] = {"bag": None, "dict": dict, "attrs": Fields}


# ------------------------------------------------------------------------------------------------ what a journal says


@dataclass
class Told:
    """What a journal says of the attempts of steps, by their keys."""

    ended: Counter[Key] = field(default_factory=Counter[Key])
    finished: dict[Key, int] = field(default_factory=dict[Key, int])
    controls: set[Key] = field(default_factory=set[Key])
    marks: dict[Key, int] = field(default_factory=dict[Key, int])


def read_told(records: Sequence[JournalRecord]) -> Told:
    """What the records say; those of an attempt that failed keep the attempt's number."""
    found = Told()
    attempts: dict[Path, int] = {}
    for position, record in enumerate(records):
        if not isinstance(record, (StepFinished, StepFailed, StepStopped)):
            continue
        path = record.path
        key = tuple((path[at], attempts.get(path[: at + 1], 1)) for at in range(len(path)))
        found.ended[key] += 1
        if record.control is not None:
            found.controls.add(key)
        if isinstance(record, StepFinished):
            assert key not in found.finished, f"{path} finished twice"
            found.finished[key] = position
            if path[-1].endswith("]"):
                found.marks.setdefault(key[:-1], int(path[-1].rpartition("[")[2][:-1]))
        elif isinstance(record, StepFailed) and not record.final:
            attempts = {other: n for other, n in attempts.items() if other[: len(path)] != path}
            attempts[path] = record.attempt + 1
    return found


# ------------------------------------------------------------------------------------------------------ what is noted


def model_key(ask: tuple[Key, int]) -> Key:
    """The key of the model round that one of a body's operations runs."""
    key, index = ask
    return (*key, (f"ask{index}", 1))


@dataclass
class DurableWorld(World):
    """What the bodies of all processes saw."""

    starts: Counter[Key] = field(default_factory=Counter[Key])
    # What this process has started, those that came to no end too.
    now: Counter[Key] = field(default_factory=Counter[Key])
    root: Domain | None = None

    def enter(self) -> None:
        """A body begins; for an answer its model round does."""
        super().enter()
        frame = current_context(required=True)
        assert isinstance(frame, Frame)
        key = where(frame)
        key = key[:-1] if frame.step.kind == "answer" else key
        self.starts[key] += 1
        self.now[key] += 1
        head = None if frame.x.run.root is None else frame.x.run.root.frame
        self.root = None if head is None else head.domain

    def survive(self, records: Sequence[JournalRecord]) -> DurableWorld:
        """What is left of the notes when the process has died with this journal."""
        found = read_told(records)
        left = DurableWorld()
        left.marks = dict(found.marks)
        left.winners = {
            (key, section): index
            for (key, section), index in self.winners.items()
            if (*key, (f"{section}r", 1)) in found.finished
        }
        left.controls = {at: control for at, control in self.controls.items() if control[0] in found.controls}
        # A call that was refused before it was recorded may be answered now.
        left.refused = {ask for ask in self.refused if model_key(ask) in found.ended}
        left.answered = {ask for ask in self.answered if model_key(ask) in found.ended}
        left.done = {key for key in self.done if key in found.ended}
        left.starts = Counter({key: min(count, found.ended[key]) for key, count in self.starts.items()})
        left.bodies = sum(left.starts.values())
        left.calls, left.cost = self.calls, self.cost
        # A model round that starts again finds its answer, and nobody notes that it has started.
        open_rounds = sum(key[-1][0] == "answer" and not found.ended[key[:-1]] for key in found.ended)
        left.cancelled = self.cancelled + open_rounds
        left.bad_requests, left.unexpected = self.bad_requests, self.unexpected
        return left


# ------------------------------------------------------------------------------------------------------ the processes


@dataclass
class Life:
    """A run, over all the processes that carry it."""

    program: Program
    inner: InMemoryBackend = field(default_factory=InMemoryBackend)
    world: DurableWorld = field(default_factory=DurableWorld)
    run_id: str = "run"
    deaths: int = 0

    @cached_property
    def backend(self) -> FaultyBackend:
        """What its processes see."""
        return FaultyBackend(self.inner)

    @cached_property
    def races(self) -> frozenset[str]:
        """The ids of all races."""
        return frozenset(re.findall(r"Section\(id='(\w+)', mode='race'", repr(self.program)))

    @property
    def state_type(self) -> Any:
        """What its state is read as."""
        return STATES[self.program.state]

    def flow(self) -> Any:
        """The flow, made anew."""
        return Builder(self.world, valid).build(self.program.flow)

    async def journal(self) -> list[JournalRecord]:
        """All records, as another process reads them."""
        codec = codec_for(self.flow(), *(() if self.state_type is None else (self.state_type,)))
        try:
            return await read_journal(self.inner, self.run_id, codec)
        except errors.RunNotFound:
            return []

    async def process(self) -> RunResult[Any, Any] | None:
        """One process: it begins the run or goes on with it; `None` when it has died."""
        before = await self.journal()
        self.world = self.world.survive(before)
        harness = Harness(plugins=(), checkpoints=self.backend)
        result: RunResult[Any, Any] | None = None
        with anyio.fail_after(60), self.backend.outlived():
            result = await (self._resume(harness) if before else self._begin(harness))
        check_started(self.world, read_told(before), self.races)
        if self.backend.dead:
            self.deaths += 1
            return None
        return result

    async def _begin(self, harness: Any) -> RunResult[Any, Any]:
        result: RunResult[Any, Any] = await harness.run(
            self.flow(),
            self.program.value,
            run_id=self.run_id,
            state=new_state(self.program.state),
            budget=Budget(model_calls=self.program.model_calls),
            on_error="result",
        )
        return result

    async def _resume(self, harness: Any) -> RunResult[Any, Any]:
        result: RunResult[Any, Any] = await harness.resume(
            self.run_id, self.flow(), on_error="result", state_type=self.state_type
        )
        return result

    async def live(self, kills: Iterable[Kill] = ()) -> RunResult[Any, Any] | None:
        """Processes until one gets to the end; `None` when one died with the very last breath of a run that broke."""
        for at, when in kills:
            self.backend.revive(dies_at=at, when=when)
            result = await self.process()
            if result is not None:
                return result
            ended = await self.check_journal()
            if ended in ("failed", "budget_exceeded"):
                # Resuming it would try again, which is another run.
                return None
        self.backend.revive()
        result = await self.process()
        assert result is not None
        return result

    async def check_journal(self) -> str | None:
        """What the journal tells can be read back wherever it ends; returns how the run has ended."""
        journal = await self.journal()
        if not journal:
            return None
        read_back(journal, self.state_type)
        return journal[-1].status if isinstance(journal[-1], RunEnded) else None

    async def fork(self, at: int) -> Life:
        """The run as it was when its journal ended at a position."""
        world = self.world.survive((await self.journal())[:at])
        forked = await Harness(plugins=(), checkpoints=self.inner).fork(self.run_id, at=at)
        return Life(self.program, self.inner, world, forked)

    @property
    def ends(self) -> list[int]:
        """Where the transactions of the run end."""
        return list(self.inner._runs[self.run_id].ends)


# --------------------------------------------------------------------------------------------------------- the checks


def check_started(world: DurableWorld, before: Told, races: frozenset[str]) -> None:
    """No body ran again in a step that had finished, nor in a race that had a finished path beside that one."""
    for key in world.now:
        for at in range(1, len(key) + 1):
            above = key[:at]
            assert above not in before.finished, f"{key} ran again"
            if at < len(key) and above in before.marks and above[-1][0] in races:
                assert key[at][0].endswith(f"[{before.marks[above]}]"), f"{key} ran in a race that was won"


def read_back(journal: Sequence[JournalRecord], state_type: Any, cause: Path = ()) -> tuple[list[Item], Any]:
    """The conversation and the state that a journal tells, each change of the state checked against what it met.

    Args:
        journal: The records.
        state_type: What the state is read as.
        cause: Where the failure that ended the run came from, when one did.
    """
    items = list(ItemLog(items_below(journal, (), cause)).rendered("interrupted"))
    assert pairing_error(items) is None, pairing_error(items)
    started = journal[0]
    assert isinstance(started, RunStarted)
    assert started.opening is not None
    assert isinstance(started.opening.state, Stored)
    codec = Codec()
    stored = started.opening.state.tree
    state = StateBag(codec.decode(stored)) if state_type is None else codec.decode(stored, state_type)
    index = tree(journal)
    index.cause = index.cause or cause
    for own in visible(index):
        differs = mismatch(known_fields(state, codec), own.delta)
        assert differs is None, f"{differs} is not what it was"
        apply_changes(state, own.delta, codec)
    return items, state


def check_books(life: Life, result: RunResult[Any, Any]) -> None:
    """Every attempt that the journal knows is counted once, and no limit is passed."""
    world, program = life.world, life.program
    assert world.bodies <= result.steps <= world.bodies + world.cancelled
    assert result.cost is not None
    # What a call in flight has cost when its process died, nobody could tell.
    assert result.cost <= world.cost if life.deaths else result.cost == world.cost
    if program.model_calls is not None:
        assert result.model_calls <= program.model_calls


async def check_end(life: Life, result: RunResult[Any, Any] | None) -> str:
    """Everything is as the oracle foretells it for the choices that were noted."""
    world = life.world
    journal = await life.journal()
    assert isinstance(journal[-1], RunEnded)
    assert not world.bad_requests, pairing_error(world.bad_requests[0])
    assert not world.unexpected, world.unexpected[0]
    if result is None:
        return "died"
    assert pairing_error(result.items) is None
    check_books(life, result)
    # Of two paths that end while one commit is under way, the journal knows the first.
    world.marks |= read_told(journal).marks
    try:
        expected = foretell(life.program, world)
    except Ambiguous:
        return "ambiguous"
    check_against(expected, result)
    if world.root is not None:
        assert told(world.root.log) == renumbered(expected.live)
    items, state = read_back(journal, life.state_type, () if result.error is None else result.error.path)
    assert told(items) == renumbered(expected.items)
    assert plain_state(state) == expected.state
    return result.status


def check_against(expected: Expected, result: RunResult[Any, Any]) -> None:
    """Status, value, error, state and conversation."""
    assert result.status == expected.status, result.error
    assert result.output_or(None) == expected.value
    if result.status == "failed":
        assert type(result.error).__name__ == expected.error, result.error
    assert plain_state(result.state) == expected.state
    assert told(result.items) == renumbered(expected.items)
    assert told(result.new_items) == renumbered(expected.items)
