"""Owners that reserve, settle, die and are followed by others, compared with a budget that is counted in the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import anyio
import pytest
from attrs import define, field
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from noetic_py import Budget, InMemoryBackend, TokenUsage, errors
from noetic_py.checkpoints import BudgetRow, CheckpointBackend, SharedBudget, SqliteBackend
from noetic_py.core.budget import BudgetLease, Usage
from noetic_py.core.codec import Codec
from noetic_py.core.runtime import SYSTEM
from noetic_py.engine.journaling.writer import RunStorage, RunWriter
from noetic_py.engine.shared_budgets import RunBudgets, Slice, held_by
from noetic_py.journal.records import JournalRecord, RunEnded
from tests.properties.checks import SEED, examples

LIMITS = {"tokens": 100, "steps": 12, "model_calls": 9}
SHARED = SharedBudget("team", Budget(tokens=100, steps=12, model_calls=9))
RUNS = ("r0", "r1", "r2")
Operation: TypeAlias = tuple[str, int, int]


@define(eq=False)
class Owner:
    """One owner of a run: what the program has, and what the test counts.

    Attributes:
        calls: Open calls, with what each holds.
        pending: What ended calls have used that is not stored yet.
    """

    writer: RunWriter
    budgets: RunBudgets
    journal: list[JournalRecord]
    calls: list[tuple[Sequence[Slice], int]] = field(factory=list[tuple[Sequence[Slice], int]])
    pending: int = 0

    @property
    def held(self) -> int:
        """What its open calls hold."""
        return sum(amount for _, amount in self.calls)


@define(eq=False)
class Counted:
    """The row as it has to be."""

    used: dict[str, int] = field(factory=dict[str, int])
    held: dict[str, int] = field(factory=dict[str, int])

    def total(self, name: str) -> int:
        return self.used.get(name, 0) + (sum(self.held.values()) if name == "tokens" else 0)

    def add(self, name: str, amount: int) -> None:
        if amount:
            self.used[name] = self.used.get(name, 0) + amount

    def stored(self, run_id: str, owner: Owner) -> None:
        """A commit of the owner: what is pending is used, and it holds what its calls hold."""
        self.add("tokens", owner.pending)
        owner.pending = 0
        self.held.pop(run_id, None)
        if owner.held:
            self.held[run_id] = owner.held


class Machine:
    """Does operations with the program, and counts what has to come of them."""

    def __init__(self, backend: CheckpointBackend) -> None:
        self.backend = backend
        self.row = Counted()
        self.owners: dict[str, Owner] = {}
        self.ghosts: list[tuple[str, Owner]] = []

    async def owner(self, run_id: str) -> Owner:
        """The owner of a run; a new one gives back what those before it have left."""
        known = self.owners.get(run_id)
        if known is not None:
            return known
        lease = await self.backend.acquire(run_id, ttl=3600.0)
        writer = RunWriter(RunStorage(self.backend, "step", None), run_id, Codec(), position=lease.position or 0)
        writer.own(lease, SYSTEM.monotonic())
        # What earlier owners have written is not held here.
        writer.unread = lease.position or 0
        entry = await self.backend.entry(run_id)
        held = () if entry is None else await held_by(self.backend, run_id, entry.summary)
        if held:
            await writer.change_budgets(lambda: held)
        self.row.add("tokens", self.row.held.pop(run_id, 0))
        budgets = writer.budgets = RunBudgets([SHARED], writer, BudgetLease(None), now=0.0)
        made = self.owners[run_id] = Owner(writer, budgets, [])
        return made

    def fits(self, run_id: str, owner: Owner, name: str, asked: int) -> bool:
        """Whether a change fits: what is pending, and what calls have given back since, is part of it."""
        more = asked
        if name == "tokens":
            more += owner.pending + owner.held - self.row.held.get(run_id, 0)
        return more <= 0 or self.row.total(name) + more <= LIMITS[name]

    async def call(self, run_id: str, amount: int) -> None:
        owner = await self.owner(run_id)
        fits = self.fits(run_id, owner, "tokens", amount) and self.fits(run_id, owner, "model_calls", 1)
        try:
            slices = await owner.budgets.reserve({"tokens": Decimal(amount)}, BudgetLease(None))
        except errors.BudgetExceeded:
            assert not fits
        else:
            assert fits
            owner.calls.append((slices, amount))
            self.row.stored(run_id, owner)
            self.row.add("model_calls", 1)

    async def step(self, run_id: str, amount: int) -> None:
        owner = await self.owner(run_id)
        fits = self.fits(run_id, owner, "tokens", 0) and self.fits(run_id, owner, "steps", 1)
        try:
            await owner.budgets.start({"steps": 1})
        except errors.BudgetExceeded:
            assert not fits
        else:
            assert fits
            self.row.stored(run_id, owner)
            self.row.add("steps", 1)

    async def settle(self, run_id: str, amount: int) -> None:
        owner = self.owners.get(run_id)
        if owner is not None and owner.calls:
            slices, most = owner.calls.pop(0)
            used = min(amount, most)
            owner.budgets.settle(slices, Usage(TokenUsage(used)))
            owner.pending += used

    async def commit(self, run_id: str, amount: int) -> None:
        owner = await self.owner(run_id)
        owner.journal.append(RunEnded((), "failed", str(amount), None))
        await owner.writer.commit(owner.journal)
        self.row.stored(run_id, owner)

    async def die(self, run_id: str, amount: int) -> None:
        owner = self.owners.pop(run_id, None)
        if owner is not None:
            await owner.writer.release()
            self.ghosts.append((run_id, owner))

    async def ghost(self, run_id: str, amount: int) -> None:
        """An owner that was followed by another one writes nothing."""
        for of, owner in self.ghosts:
            if of == run_id and run_id in self.owners:
                with pytest.raises(errors.LeaseLost):
                    await owner.budgets.start({"steps": 1})

    async def end(self, run_id: str, amount: int) -> None:
        owner = await self.owner(run_id)
        while owner.calls:
            await self.settle(run_id, amount)
        owner.journal.append(RunEnded((), "completed", str(amount), None))
        await owner.writer.end(owner.journal, followed=False)
        self.row.stored(run_id, owner)
        del self.owners[run_id]

    async def check(self) -> None:
        """Compare the row, and refuse one above a limit."""
        row = next(iter(await self.backend.budgets()), BudgetRow("team", "ever"))
        held = {run_id: amounts["tokens"] for run_id, amounts in row.held.items()}
        assert (row.used, held) == (self.row.used, self.row.held)
        assert all(self.row.total(name) <= limit for name, limit in LIMITS.items())


OPERATIONS = ("call", "step", "settle", "commit", "die", "ghost", "end")


async def compared(backend: CheckpointBackend, operations: Sequence[Operation]) -> None:
    async with backend:
        machine = Machine(backend)
        does: dict[str, Callable[[str, int], Awaitable[None]]] = {name: getattr(machine, name) for name in OPERATIONS}
        for name, run, amount in operations:
            await does[name](RUNS[run], amount)
            await machine.check()
        for run_id in RUNS:
            await machine.end(run_id, 1)
        await machine.check()
        assert machine.row.held == {}


operations = st.lists(
    st.tuples(st.sampled_from(("call", "call", *OPERATIONS)), st.integers(0, len(RUNS) - 1), st.integers(0, 70)),
    max_size=40,
)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_sums_are_exact_whoever_dies(kind: str, loop: str) -> None:
    @seed(SEED)
    @settings(max_examples=examples(40 if kind == "memory" else 8, 5_000 if kind == "memory" else 500), deadline=None)
    @given(operations)
    def check(drawn: Sequence[Operation]) -> None:
        with TemporaryDirectory() as folder:
            backend = InMemoryBackend() if kind == "memory" else SqliteBackend(Path(folder) / "runs.db")
            anyio.run(compared, backend, drawn, backend=loop)

    check()
