"""What a run takes of shared budgets: before work begins, under its fence, and settled with its next commit.

A count is spent for good when the work begins. Tokens and money of a call are held at their maximum, and what the call
has used is added when it has ended. All that a run still holds when its owner dies was held for calls of unknown
outcome, so its next owner books it as used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from noetic_py.core.budget import Amounts, BudgetLease, Usage, amounts_of
from noetic_py.core.shared_budget import HELD, SharedBudget, SharedLease, from_store, in_store
from noetic_py.core.values import is_list
from noetic_py.engine.journaling.writer import HOLDS
from noetic_py.journal.fields import summary_fields
from noetic_py.journal.stored import BudgetChange, BudgetRow

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.engine.journaling.writer import RunWriter
    from noetic_py.errors import BudgetExceeded

_LOOK = 1.0
"""Seconds after which a call looks again for what other calls have given back."""


@define(eq=False)
class _Account:
    """What the run has of one row.

    Attributes:
        held: What it holds.
        spent: What it has spent that is not in the store yet.
        stored: What the store says that it holds.
    """

    name: str
    period: str
    held: dict[str, int] = field(factory=dict[str, int])
    spent: dict[str, int] = field(factory=dict[str, int])
    stored: dict[str, int] = field(factory=dict[str, int])

    @property
    def open(self) -> bool:
        """Whether the store has not heard of everything."""
        return bool(self.spent) or self.held != self.stored

    def change(self) -> BudgetChange:
        """What brings the store up to date."""
        return BudgetChange(self.name, self.period, self.spent, self.held)

    def taking(self, spent: Mapping[str, int], held: Mapping[str, int], limits: Mapping[str, int]) -> BudgetChange:
        """The same, and what takes more."""
        return BudgetChange(self.name, self.period, _sum(self.spent, spent), _sum(self.held, held), limits)

    def took(self, change: BudgetChange, spent: Mapping[str, int]) -> None:
        """The store has taken a change; what was spent by then beside this is in it."""
        self.stored = dict(change.held or {})
        self.spent = _minus(self.spent, _minus(change.spent, spent))


@frozen(eq=False)
class Slice:
    """What one call holds of a shared budget."""

    account: _Account
    amounts: Mapping[str, int]


class RunBudgets:
    """The shared budgets of a run that this process owns.

    Args:
        budgets: The budgets, the nearest first.
        store: Where the run is written.
        above: The lease of the harness.
        now: Monotonic seconds.

    Attributes:
        lease: What the run's own lease lives under.
    """

    def __init__(self, budgets: Sequence[SharedBudget], store: RunWriter, above: BudgetLease, *, now: float) -> None:
        self._store = store
        self._budgets = tuple(budgets)
        self._of_models: dict[str, SharedBudget] = {}
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._sent: Sequence[tuple[_Account, BudgetChange]] = ()
        self._leases: list[SharedLease] = []
        self.lease = above
        for shared in reversed(self._budgets):
            self.lease = SharedLease(shared, self.lease, now=now)
            self._leases.insert(0, self.lease)

    def of_run(self, harness: SharedBudget | None) -> SharedBudget | None:
        """The one that is the run's own, and not its harness's."""
        return next((shared for shared in self._budgets if shared is not harness), None)

    def close(self) -> None:
        """The run has ended."""
        for lease in self._leases:
            lease.close()

    def lease_of(self, shared: SharedBudget, lease: BudgetLease, *, now: float) -> BudgetLease:
        """The lease of a call whose model has a budget of its own; the run's budget holds where both have one name.

        Args:
            shared: The model's budget.
            lease: The lease of the step that calls.
            now: Monotonic seconds.
        """
        if any(each.name == shared.name for each in self._budgets):
            return lease
        self._of_models[shared.name] = shared
        leases = lease.of_models = {} if lease.of_models is None else lease.of_models
        found = leases.get(shared.name)
        if not isinstance(found, SharedLease) or found.shared is not shared:
            found = leases[shared.name] = SharedLease(shared, lease, now=now)
        return found

    async def _periods(self, budgets: Sequence[SharedBudget]) -> list[str]:
        """The period of each budget, by the store's clock."""
        timed = any(shared.per is not None for shared in budgets)
        now = await self._store.backend.clock() if timed else 0.0
        return [shared.period_at(now) for shared in budgets]

    def _account(self, name: str, period: str) -> _Account:
        account = self._accounts.get((name, period))
        if account is None:
            account = self._accounts[name, period] = _Account(name, period)
        return account

    # -- before work begins

    async def look(self, under: BudgetLease) -> None:
        """Learn how much there is of what calls hold; for one that waits for room that is the whole budget.

        Args:
            under: The lease of the call.
        """
        periods: list[str] | None = None
        leases = [*self._leases, under] if isinstance(under, SharedLease) else self._leases
        for index, lease in enumerate(leases):
            if not lease.limits:
                continue
            shared = lease.shared
            if shared.wait:
                lease.see("", {name: shared.budget.limits[name] for name in lease.limits}, {}, {})
                continue
            periods = await self._periods([each.shared for each in leases]) if periods is None else periods
            period = periods[index]
            rows = await self._store.backend.budgets(name=shared.name, since=period)
            row = next((each for each in rows if each.period == period), BudgetRow(shared.name, period))
            account = self._account(shared.name, period)
            others = _minus(row.reserved, row.held.get(self._store.run_id, {}))
            taken = _sum(_sum(row.used, account.spent), _sum(others, account.held))
            left = {
                name: limit - from_store(name, taken.get(name, 0))
                for name, limit in shared.budget.limits.items()
                if name in HELD
            }
            lease.see(period, left, row.used, row.reserved)

    async def start(self, counts: Mapping[str, int]) -> None:
        """Count work that begins.

        Raises:
            BudgetExceeded: A budget has none left; nothing was counted.
            CheckpointError: The store has not taken it.
        """
        await self._take(counts, {}, self._budgets)

    async def reserve(self, amounts: Amounts, under: BudgetLease) -> Sequence[Slice]:
        """Count a call of a model that begins, and hold what it may use.

        Args:
            amounts: The most that it may use.
            under: The lease of the call.

        Raises:
            BudgetExceeded: A budget has not enough left; nothing is held.
            CheckpointError: The store has not taken it.
        """
        held = {name: in_store(name, amount) for name, amount in amounts.items() if name in HELD}
        own = (under.shared,) if isinstance(under, SharedLease) else ()
        return await self._take({"model_calls": 1}, held, (*self._budgets, *own))

    def waits_for(self, error: BudgetExceeded) -> SharedBudget | None:
        """The budget that has refused something, where that is waited for."""
        budgets = (*self._budgets, *self._of_models.values())
        return next((each for each in budgets if each.wait and each.name == error.shared), None)

    async def time_to_wait(self, error: BudgetExceeded) -> float | None:
        """How many seconds to wait until there may be room for what was refused.

        Args:
            error: Why it was refused.

        Returns:
            `None` where waiting is of no use, or the budget is not one that is waited for.
        """
        shared = self.waits_for(error)
        if shared is None or error.requested > error.limit:
            return None
        now = await self._store.backend.clock()
        if shared.period_at(now) != error.period:
            return 0.0
        left = shared.left_of_period(now)
        if Decimal(error.settled) + Decimal(error.requested) > Decimal(error.limit):
            return left
        # What calls under way hold may be given back at any time.
        return _LOOK if left is None else min(left, _LOOK)

    async def _take(
        self, counts: Mapping[str, int], held: Mapping[str, int], budgets: Sequence[SharedBudget]
    ) -> Sequence[Slice]:
        asked: list[tuple[SharedBudget, Mapping[str, int], Mapping[str, int]]] = []
        for shared in budgets:
            limited = shared.budget.limits.keys()
            asked.append((shared, _only(counts, limited), _only(held, limited)))
        if not any(count or hold for _, count, hold in asked):
            return ()
        periods = await self._periods(budgets)
        slices: list[Slice] = []

        def changes() -> Sequence[BudgetChange]:
            made: list[BudgetChange] = []
            for (shared, count, hold), period in zip(asked, periods, strict=True):
                if count or hold:
                    account = self._account(shared.name, period)
                    made.append(account.taking(count, hold, shared.limits))
            return made

        def taken(made: Sequence[BudgetChange]) -> None:
            by_place = {(change.name, change.period): change for change in made}
            for (shared, count, hold), period in zip(asked, periods, strict=True):
                if count or hold:
                    account = self._account(shared.name, period)
                    account.held = _sum(account.held, hold)
                    account.took(by_place[shared.name, period], count)
                    slices.append(Slice(account, hold))

        places = [(shared.name, period) for (shared, _, hold), period in zip(asked, periods, strict=True) if hold]
        await self._store.change_budgets(changes, taken, places)
        return slices

    # -- when it has ended

    def settle(self, slices: Sequence[Slice], used: Usage) -> None:
        """A call has ended: its next commit gives back what it held, and adds what it has used."""
        spent = amounts_of(used)
        for each in slices:
            account = each.account
            account.held = _minus(account.held, each.amounts)
            more = {name: in_store(name, spent.get(name, Decimal(0))) for name in each.amounts}
            account.spent = _sum(account.spent, more)

    @property
    def open(self) -> bool:
        """Whether something is to be settled."""
        return any(account.open for account in self._accounts.values())

    def changes(self) -> Sequence[BudgetChange]:
        """What the next commit of the run settles."""
        self._sent = [(account, account.change()) for account in self._accounts.values() if account.open]
        return [change for _, change in self._sent]

    def settled(self) -> None:
        """The store has taken them."""
        for account, change in self._sent:
            account.took(change, {})
        self._sent = ()


async def held_by(backend: CheckpointBackend, run_id: str, summary: bytes) -> Sequence[BudgetChange]:
    """What gives back all that earlier owners of a run have left: it may have been used, and is booked as that.

    Only the owner of the run may commit it, and once.

    Args:
        backend: Where the run is stored.
        run_id: The run.
        summary: The run's summary, which names the rows.
    """
    named: object = summary_fields(summary).get(HOLDS)
    found: list[BudgetChange] = []
    for place in named if is_list(named) else ():
        match place:
            case [str(name), str(period)]:
                rows = await backend.budgets(name=name, since=period)
            case _:
                continue
        held = next((row.held[run_id] for row in rows if row.period == period and run_id in row.held), None)
        if held:
            found.append(BudgetChange(name, period, held, {}))
    return found


def _only(amounts: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in names and amount}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    total = {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}
    return {name: amount for name, amount in total.items() if amount}


def _minus(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    left = {name: amount - other.get(name, 0) for name, amount in one.items()}
    return {name: amount for name, amount in left.items() if amount > 0}
