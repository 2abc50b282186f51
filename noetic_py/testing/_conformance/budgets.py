"""Cases of shared budgets: what may be reserved, by whom, and what is given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import BudgetExceeded, ConfigError, InvalidId, LeaseLost, PositionConflict
from noetic_py.journal.stored import BudgetChange, BudgetRow, Head, Lease, Transaction
from noetic_py.testing._conformance.base import Suite, equal, journal, record
from noetic_py.testing._conformance.concurrency import TURNS, cancelled_after, count, together

LIMITS = {"model_calls": 3, "tokens": 100}
CALL = BudgetChange("team", "2026-11", {"model_calls": 1}, {"tokens": 40}, LIMITS)
MOST = 2**53


async def change(backend: CheckpointBackend, lease: Lease, *changes: BudgetChange) -> None:
    """What an owner commits besides its records, here without any."""
    await backend.commit([Transaction(lease.run_id, 0, lease.fence, [], budgets=changes)])


async def row(backend: CheckpointBackend) -> BudgetRow | None:
    rows = await backend.budgets(name="team")
    equal(len(rows) < 2, True)
    return rows[0] if rows else None


async def owned(backend: CheckpointBackend, *run_ids: str) -> list[Lease]:
    return [await backend.acquire(run_id, ttl=60.0) for run_id in run_ids]


async def is_row(
    backend: CheckpointBackend, used: Mapping[str, int], held: Mapping[str, Mapping[str, int]] | None = None
) -> None:
    found = await row(backend)
    equal(None if found is None else (found.used, found.held), (used, held or {}))


class Budgets(Suite):
    async def test_an_empty_store_has_no_budget(self, backend: CheckpointBackend) -> None:
        equal(list(await backend.budgets()), [])
        equal(list(await backend.budgets(name="team", since="2026-11")), [])

    async def test_a_change_makes_a_row(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")
        await change(backend, lease, CALL)
        equal(await row(backend), BudgetRow("team", "2026-11", LIMITS, {"model_calls": 1}, {"r": {"tokens": 40}}))

    async def test_what_is_held_is_replaced_and_what_is_spent_is_added(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")
        await change(backend, lease, CALL)
        await change(backend, lease, BudgetChange("team", "2026-11", {"tokens": 7}))
        await is_row(backend, {"model_calls": 1, "tokens": 7}, {"r": {"tokens": 40}})
        await change(backend, lease, BudgetChange("team", "2026-11", {"tokens": 25, "cost": 0}, {"tokens": 0}))
        await is_row(backend, {"model_calls": 1, "tokens": 32})
        equal(await row(backend), BudgetRow("team", "2026-11", LIMITS, {"model_calls": 1, "tokens": 32}))

    async def test_a_change_goes_with_records_or_not_at_all(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")
        given = Transaction("r", 0, lease.fence, [record("call")], b"{}", "running", budgets=[CALL])
        await backend.commit([given])
        too_much = evolve(CALL, held={"tokens": 101})
        with pytest.raises(BudgetExceeded):
            await backend.commit([evolve(given, expected_position=1, status="failed", budgets=[too_much])])
        entry = await backend.entry("r")
        equal((await journal(backend, "r"), entry and entry.status), ([b"call"], "running"))
        await is_row(backend, {"model_calls": 1}, {"r": {"tokens": 40}})

    async def test_a_limit_is_reached_and_not_passed(self, backend: CheckpointBackend) -> None:
        a, b = await owned(backend, "a", "b")
        await change(backend, a, CALL)
        await change(backend, b, evolve(CALL, held={"tokens": 60}))
        with pytest.raises(BudgetExceeded) as caught:
            await change(backend, a, evolve(CALL, held={"tokens": 41}))
        error = caught.value
        equal((error.dimension, error.limit, error.settled, error.requested), ("tokens", 100, 0, 1))
        equal((error.shared, error.period, error.reserved), ("team", "2026-11", 100))
        await change(backend, a, evolve(CALL, held=None))
        with pytest.raises(BudgetExceeded) as caught:
            await change(backend, b, evolve(CALL, held={}))
        error = caught.value
        equal((error.dimension, error.limit, error.settled, error.requested), ("model_calls", 3, 3, 1))
        await is_row(backend, {"model_calls": 3}, {"a": {"tokens": 40}, "b": {"tokens": 60}})

    async def test_money_is_told_in_usd(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")
        with pytest.raises(BudgetExceeded) as caught:
            await change(backend, lease, BudgetChange("team", "x", {}, {"cost": 500_000_001}, {"cost": 500_000_000}))
        equal((str(caught.value.limit), str(caught.value.requested)), ("0.5", "0.500000001"))

    async def test_what_was_used_is_settled_above_a_limit(self, backend: CheckpointBackend) -> None:
        a, b = await owned(backend, "a", "b")
        await change(backend, a, evolve(CALL, held={"tokens": 100}))
        await change(backend, a, BudgetChange("team", "2026-11", {"tokens": 130}, {}))
        # A lower limit refuses what asks for more, and nothing else.
        await change(backend, b, BudgetChange("team", "2026-11", {"model_calls": 1}, None, LIMITS))
        with pytest.raises(BudgetExceeded):
            await change(backend, b, BudgetChange("team", "2026-11", {"tokens": 1}, None, LIMITS))
        await is_row(backend, {"model_calls": 2, "tokens": 130})

    async def test_only_the_owner_changes_a_budget(self, backend: CheckpointBackend) -> None:
        (old,) = await owned(backend, "r")
        await change(backend, old, CALL)
        await self.lapse(backend)
        new = await backend.acquire("r", ttl=60.0)
        with pytest.raises(LeaseLost):
            await change(backend, old, CALL)
        with pytest.raises(LeaseLost):
            await change(backend, old, BudgetChange("team", "2026-11", {}, {}))
        # That a lease has run out gives nothing back; the next owner does, and says what may have been used.
        await is_row(backend, {"model_calls": 1}, {"r": {"tokens": 40}})
        await change(backend, new, BudgetChange("team", "2026-11", {"tokens": 40}, {}))
        await is_row(backend, {"model_calls": 1, "tokens": 40})

    @pytest.mark.parametrize("wrong", ["position", "fence"])
    async def test_a_refused_commit_changes_no_budget(self, backend: CheckpointBackend, wrong: str) -> None:
        a, b = await owned(backend, "a", "b")
        position, fence = (1, b.fence) if wrong == "position" else (0, b.fence + 1)
        given = [
            Transaction("a", 0, a.fence, [record("x")], budgets=[CALL]),
            Transaction("b", position, fence, [], budgets=[evolve(CALL, held={"tokens": 101})]),
        ]
        with pytest.raises((PositionConflict, LeaseLost)):
            await backend.commit(given)
        equal((await row(backend), await backend.head("a")), (None, Head(0, a.fence)))

    async def test_several_changes_of_one_commit(self, backend: CheckpointBackend) -> None:
        a, b = await owned(backend, "a", "b")
        other = BudgetChange("others", "2026-11", {"steps": 1}, None, {"steps": 1})
        given = [
            Transaction("a", 0, a.fence, [], budgets=[CALL, other]),
            Transaction("b", 0, b.fence, [], budgets=[evolve(CALL, held={"tokens": 60})]),
        ]
        await backend.commit(given)
        await is_row(backend, {"model_calls": 2}, {"a": {"tokens": 40}, "b": {"tokens": 60}})
        with pytest.raises(BudgetExceeded) as caught:
            await backend.commit([evolve(given[1], budgets=[evolve(CALL, held=None), other])])
        equal((caught.value.shared, caught.value.dimension), ("others", "steps"))
        await is_row(backend, {"model_calls": 2}, {"a": {"tokens": 40}, "b": {"tokens": 60}})
        both = [evolve(CALL, held=None), evolve(CALL, held=None)]
        with pytest.raises(BudgetExceeded):
            await backend.commit([evolve(given[0], budgets=both)])

    async def test_the_end_of_a_run_gives_back(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")
        await change(backend, lease, CALL)
        back = BudgetChange("team", "2026-11", {"tokens": 33}, {})
        ended = Transaction("r", 0, lease.fence, [record("end")], release=True, ended=True, budgets=[back])
        await backend.commit([ended])
        await is_row(backend, {"model_calls": 1, "tokens": 33})
        await backend.acquire("r", ttl=60.0)

    async def test_a_new_owner_may_begin_with_a_change(self, backend: CheckpointBackend) -> None:
        await backend.commit([Transaction("r", 0, 0, [record("begun")], acquire=60.0, budgets=[CALL])])
        await is_row(backend, {"model_calls": 1}, {"r": {"tokens": 40}})
        too_much = evolve(CALL, spent={"model_calls": 4})
        with pytest.raises(BudgetExceeded):
            await backend.commit([Transaction("s", 0, 0, [record("begun")], acquire=60.0, budgets=[too_much])])
        equal(await backend.head("s"), None)

    async def test_rows_are_by_name_and_period(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")
        places = [
            ("b", "2026-11"),
            ("a", "2026-12"),
            ("a", "2026-11"),
            ("ab", "2026-11"),
            ("a", "2026-10"),
            ("日本", "ever"),
        ]
        for name, period in places:
            await change(backend, lease, BudgetChange(name, period, {"steps": 1}))

        def found(rows: Sequence[BudgetRow]) -> list[tuple[str, str]]:
            return [(each.name, each.period) for each in rows]

        equal(found(await backend.budgets()), sorted(places))
        equal(found(await backend.budgets(name="a", since="2026-11")), [("a", "2026-11"), ("a", "2026-12")])
        equal(found(await backend.budgets(since="2026-12")), [("a", "2026-12"), ("日本", "ever")])
        equal(found(await backend.budgets(name="none")), [])

    async def test_rows_that_no_run_holds_anything_of_are_forgotten(self, backend: CheckpointBackend) -> None:
        a, b = await owned(backend, "a", "b")
        before = evolve(CALL, period="2026-10")
        await change(backend, a, CALL, before, evolve(CALL, name="other", held=None))
        await change(backend, a, evolve(before, spent={"tokens": 9}, held={}))
        await change(backend, b, CALL)
        given = [("team", "2026-10"), ("team", "2026-11"), ("team", "2026-09"), ("other", "2026-10"), ("none", "x")]
        for _ in range(2):
            await backend.forget_budgets(given)
            equal([each.name for each in await backend.budgets()], ["other", "team"])
            await is_row(backend, {"model_calls": 2}, {"a": {"tokens": 40}, "b": {"tokens": 40}})
        await change(backend, a, evolve(CALL, spent={"tokens": 40}, held={}))
        await backend.forget_budgets(given)
        await is_row(backend, {"model_calls": 2, "tokens": 40}, {"b": {"tokens": 40}})
        await change(backend, b, evolve(CALL, spent={}, held={}))
        await backend.forget_budgets([])
        await is_row(backend, {"model_calls": 2, "tokens": 40})
        await backend.forget_budgets(given)
        equal([(each.name, each.period) for each in await backend.budgets()], [("other", "2026-11")])
        await change(backend, a, CALL)
        equal(await row(backend), BudgetRow("team", "2026-11", LIMITS, {"model_calls": 1}, {"a": {"tokens": 40}}))

    async def test_what_is_taken_while_rows_are_forgotten_is_kept(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")

        async def work(index: int) -> object:
            for amount in range(1, 21):
                if index:
                    await backend.forget_budgets([("team", "x"), ("other", "x"), ("team", "y")])
                    continue
                held = {"tokens": amount}
                takes = BudgetChange("team", "x", {"steps": 1}, held)
                await change(backend, lease, takes, evolve(takes, name="other"))
                rows = await backend.budgets()
                equal([(each.name, each.held) for each in rows], [("other", {"r": held}), ("team", {"r": held})])
                await change(backend, lease, evolve(takes, held={}), evolve(takes, name="other", held={}))
            return None

        equal(await together(4, work), [None] * 4)
        await backend.forget_budgets([("team", "x"), ("other", "x")])
        equal(list(await backend.budgets()), [])

    async def test_no_more_is_taken_at_once_than_there_is(self, backend: CheckpointBackend) -> None:
        leases = await owned(backend, *(f"r{n}" for n in range(20)))

        async def work(index: int) -> object:
            await change(backend, leases[index], BudgetChange("team", "x", {"steps": 1}, None, {"steps": 7}))
            return None

        equal(count(await together(20, work), BudgetExceeded), 13)
        await is_row(backend, {"steps": 7})

    async def test_sums_are_exact_when_all_settle_at_once(self, backend: CheckpointBackend) -> None:
        leases = await owned(backend, *(f"r{n}" for n in range(10)))

        async def work(index: int) -> object:
            await change(backend, leases[index], BudgetChange("team", "x", {}, {"tokens": 50}, {"tokens": 500}))
            await change(backend, leases[index], BudgetChange("team", "x", {"tokens": index}, {}))
            return None

        equal(await together(10, work), [None] * 10)
        await is_row(backend, {"tokens": 45})

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_change_is_whole_or_not_there(self, backend: CheckpointBackend, turns: int) -> None:
        (lease,) = await owned(backend, "r")

        async def work() -> None:
            given = Transaction("r", 0, lease.fence, [record("x")], budgets=[CALL])
            await backend.commit([given])

        await cancelled_after(turns, work)
        written = await journal(backend, "r")
        found = await row(backend)
        used = None if found is None else (found.used, found.held)
        equal(used, ({"model_calls": 1}, {"r": {"tokens": 40}}) if written else None)

    async def test_large_amounts_are_exact(self, backend: CheckpointBackend) -> None:
        (lease,) = await owned(backend, "r")
        limits = {"cost": MOST}
        await change(backend, lease, BudgetChange("team", "x", {"cost": MOST - 2}, {"cost": 1}, limits))
        await change(backend, lease, BudgetChange("team", "x", {"cost": 1}, {"cost": 1}, limits))
        with pytest.raises(BudgetExceeded):
            await change(backend, lease, BudgetChange("team", "x", {"cost": 1}, None, limits))
        await is_row(backend, {"cost": MOST - 1}, {"r": {"cost": 1}})

    @pytest.mark.parametrize("amount", [-1, MOST + 1, True, 1.5])
    async def test_an_amount_that_cannot_be(self, backend: CheckpointBackend, amount: int) -> None:
        (lease,) = await owned(backend, "r")
        for wrong in (
            BudgetChange("team", "x", {"steps": amount}),
            BudgetChange("team", "x", {}, {"steps": amount}),
            BudgetChange("team", "x", {}, None, {"steps": amount}),
        ):
            with pytest.raises(ConfigError):
                await change(backend, lease, wrong)
        equal(await row(backend), None)

    @pytest.mark.parametrize(("name", "period"), [("", "x"), ("a\nb", "x"), ("team", ""), ("team", "x\n")])
    async def test_a_name_of_a_budget_that_cannot_be(self, backend: CheckpointBackend, name: str, period: str) -> None:
        (lease,) = await owned(backend, "r")
        with pytest.raises(InvalidId):
            await change(backend, lease, BudgetChange(name, period, {"steps": 1}))
        with pytest.raises(InvalidId):
            await backend.forget_budgets([("team", "2026-11"), (name, period)])

    async def test_hostile_names_of_budgets(self, backend: CheckpointBackend) -> None:
        names = ["a b", "a'b", 'a"b', "a%", "a\\b", "日本", "a:b", "{a}", "[1]", "1", "null"]
        for name in names:
            (lease,) = await owned(backend, name)
            await change(backend, lease, BudgetChange(name, name, {name: 1}, {name: 2}, {name: 3}))
        for name in names:
            equal(
                list(await backend.budgets(name=name)), [BudgetRow(name, name, {name: 3}, {name: 1}, {name: {name: 2}})]
            )
        for name in names:
            (lease,) = await owned(backend, f"{name}2")
            await change(backend, lease, BudgetChange(f"{name}2", name, {name: 1}))
        await backend.forget_budgets([(f"{name}2", name) for name in names])
        equal([each.name for each in await backend.budgets()], sorted(names))
