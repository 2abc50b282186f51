"""Random programs run durably: killed, and resumed by a process that shares nothing with the one before but a journal.

What bodies note is kept apart by what the journal says: of a process that died only the notes of attempts survive that
its journal knows too, so a body that runs again does not note its work twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import anyio
from attrs import define, field

from noetic_py import Harness, InMemoryBackend, Item, RunResult, StateBag, current_context, errors
from noetic_py.context.read import ContextScope
from noetic_py.core.codec import Codec
from noetic_py.core.log import ItemLog
from noetic_py.engine.frame import Frame
from noetic_py.engine.journaling.fold import items_below, tree, visible
from noetic_py.engine.journaling.run_history import read_journal
from noetic_py.engine.kinds import KINDS
from noetic_py.journal.patches import apply_changes, known_fields, mismatch
from noetic_py.journal.records import JournalRecord, RunBegun, RunEnded
from noetic_py.journal.values import Path, Stored
from noetic_py.runner.lease import codec_for
from noetic_py.testing import Observations, RandomProgram, assert_expected_outcome
from noetic_py.testing._random_programs.conversation import pairing_error, told
from noetic_py.testing._random_programs.description import Ask, Both, Call, Code, Fail, Inc, Op, Push, Say, See, Tick
from noetic_py.testing._random_programs.generation import Generator, Place
from noetic_py.testing._random_programs.observations import Told
from noetic_py.testing._random_programs.observations import read_journal as read_told
from noetic_py.testing._random_programs.states import plain_state
from noetic_py.testing.faults import FaultyBackend, When
from noetic_py.testing.ledger import Attempt, attempt_of

Kill = tuple[int, When]
"""At which append a process dies, counted from its own first one, and whether that is stored."""


# ------------------------------------------------------------------------------------------------------ what is noted


@define
class DurableObservations(Observations):
    """What the bodies of all processes saw."""

    # What this process has started, those that came to no end too.
    now: Counter[Attempt] = field(factory=Counter[Attempt])
    root: ContextScope | None = None

    def enter(self) -> None:
        """A body begins."""
        super().enter()
        frame = current_context(required=True)
        assert isinstance(frame, Frame)
        key = attempt_of(frame)
        self.now[key[:-1] if frame.step.kind == "answer" else key] += 1
        head = None if frame.x.run.root is None else frame.x.run.root.frame
        self.root = None if head is None else head.scope


# ------------------------------------------------------------------------------------------------- programs tried again


class TriedAgain(Generator):
    """Programs whose bodies change the state around each call, ask in vain, fail behind what finished, try again."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fails = self.models = True
        self.budget = False

    def _attempts(self) -> int:
        return self.random.choice((1, 2, 2, 3))

    def code(self, place: Place) -> Code:
        """A body."""
        ops: list[Op] = []
        for _ in range(self.random.randint(1, 3)):
            changes: tuple[Op, ...] = (Push(place.in_place), Push(place.in_place), Inc(), Both(), See(), Say(), Tick())
            ops.append(self.random.choice(changes))
            if place.depth > 0 and self.random.random() < 0.7:
                ops.append(Call(self.node(self._deeper(place)), catch=self.random.random() < 0.4))
            elif self.random.random() < 0.3:
                ops.append(Ask(self.random.choice(("down", "down", "text")), catch=self.random.random() < 0.8))
            ops.append(self.op(place))
            if self.random.random() < 0.3:
                ops.append(Fail(self.random.randint(1, 2)))
        return Code(self._id("s"), tuple(ops), self._attempts())


# ------------------------------------------------------------------------------------------------------ the processes


@define(slots=False)
class Life:
    """A run, over all the processes that carry it."""

    program: RandomProgram
    inner: InMemoryBackend = field(factory=InMemoryBackend)
    seen: DurableObservations = field(factory=DurableObservations)
    run_id: str = "run"
    processes: int = 0

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
        return self.program.state_type

    def flow(self) -> Any:
        """The flow, made anew."""
        return self.program.flow(self.seen)

    async def journal(self) -> list[JournalRecord]:
        """All records, as another process reads them."""
        codec = codec_for(self.flow(), self.state_type)
        try:
            return await read_journal(self.inner, self.run_id, codec)
        except errors.RunNotFound:
            return []

    async def process(self) -> RunResult[Any, Any] | None:
        """One process: it begins the run or goes on with it; `None` when it has died."""
        before = await self.journal()
        if self.processes:
            self.seen = self.seen.after_death(before)
        self.processes += 1
        harness = Harness(plugins=(), checkpoints=self.backend)
        result: RunResult[Any, Any] | None = None
        with anyio.fail_after(60), self.backend.outlived():
            result = await (self._resume(harness) if before else self._begin(harness))
        check_started(self.seen, read_told(before), self.races)
        return None if self.backend.dead else result

    async def _begin(self, harness: Any) -> RunResult[Any, Any]:
        result: RunResult[Any, Any] = await harness.run(
            self.flow(),
            self.program.input,
            run_id=self.run_id,
            state=self.program.new_state(),
            budget=self.program.budget,
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
        seen = self.seen.after_death((await self.journal())[:at])
        forked = await Harness(plugins=(), checkpoints=self.inner).fork(self.run_id, at=at)
        return Life(self.program, self.inner, seen, forked)

    @property
    def ends(self) -> list[int]:
        """Where the transactions of the run end."""
        return list(self.inner._store.runs[self.run_id].ends)


# --------------------------------------------------------------------------------------------------------- the checks


def check_started(seen: DurableObservations, before: Told, races: frozenset[str]) -> None:
    """No body ran again in a step that had finished, nor in a race that had a finished path beside that one."""
    for key in seen.now:
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
    items = list(ItemLog(items_below(journal, KINDS, (), cause)).rendered("interrupted"))
    assert pairing_error(items) is None, pairing_error(items)
    started = journal[0]
    assert isinstance(started, RunBegun)
    assert started.opening is not None
    assert isinstance(started.opening.state, Stored)
    codec = Codec()
    stored = started.opening.state.tree
    state = StateBag(codec.decode(stored)) if state_type is StateBag else codec.decode(stored, state_type)
    index = tree(journal, KINDS)
    index.cause = index.cause or cause
    for own in visible(index):
        differs = mismatch(known_fields(state, codec), own.delta)
        assert differs is None, f"{differs} is not what it was"
        apply_changes(state, own.delta, codec)
    return items, state


async def check_end(life: Life, result: RunResult[Any, Any] | None) -> str:
    """Everything is as the oracle foretells it for the choices that were noted."""
    journal = await life.journal()
    assert isinstance(journal[-1], RunEnded)
    assert not life.seen.bad_requests, pairing_error(life.seen.bad_requests[0])
    assert not life.seen.unexpected, life.seen.unexpected[0]
    if result is None:
        return "died"
    expected = assert_expected_outcome(life.program, life.seen, result, journal=journal)
    if expected is None:
        return "ambiguous"
    if life.seen.root is not None:
        assert tuple(told(life.seen.root.log)) == expected.live
    items, state = read_back(journal, life.state_type, () if result.error is None else result.error.path)
    assert tuple(told(items)) == expected.items
    assert plain_state(state) == expected.state
    return result.status
