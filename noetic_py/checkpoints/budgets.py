"""Rows of shared budgets: how a change is applied, when it is refused, and how a row is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal

from attrs import evolve

from noetic_py.core.values import is_dict
from noetic_py.errors import BudgetExceeded, CorruptRecord
from noetic_py.journal.stored import BudgetChange, BudgetRow, Transaction

_NANO = Decimal("1e-9")


def amount_of(dimension: str, stored: int) -> int | Decimal:
    """A stored amount in the unit that a budget has."""
    return (Decimal(stored) * _NANO).normalize() + 0 if dimension == "cost" else stored


def refused(change: BudgetChange, dimension: str, *, used: int, reserved: int, asked: int) -> BudgetExceeded:
    """Why a change is not taken.

    Args:
        change: The change.
        dimension: Whose limit it would pass.
        used: What the row has used.
        reserved: What runs hold of it.
        asked: By how much it would raise the sum of both.
    """
    return BudgetExceeded(
        dimension,
        limit=amount_of(dimension, change.limits[dimension]),
        requested=amount_of(dimension, asked),
        settled=amount_of(dimension, used),
        shared=change.name,
        period=change.period,
        reserved=amount_of(dimension, reserved),
    )


def changed(row: BudgetRow, run_id: str, change: BudgetChange) -> BudgetRow:
    """A row after a change.

    Raises:
        BudgetExceeded: It would raise what is used and held above a limit.
    """
    old = row.held.get(run_id, {})
    new = old if change.held is None else {name: amount for name, amount in change.held.items() if amount}
    reserved = row.reserved
    for name, limit in change.limits.items():
        raised = change.spent.get(name, 0) + new.get(name, 0) - old.get(name, 0)
        before = row.used.get(name, 0) + reserved.get(name, 0)
        if raised > 0 and before + raised > limit:
            raise refused(change, name, used=row.used.get(name, 0), reserved=reserved.get(name, 0), asked=raised)
    used = {**row.used}
    for name, amount in change.spent.items():
        if amount:
            used[name] = used.get(name, 0) + amount
    held = {other: amounts for other, amounts in row.held.items() if other != run_id}
    if new:
        held[run_id] = new
    return evolve(row, used=used, held=held, limits=change.limits or row.limits)


def rows_after(
    given: Sequence[Transaction], found: Mapping[tuple[str, str], BudgetRow]
) -> dict[tuple[str, str], BudgetRow]:
    """The rows that transactions change, as they are afterwards.

    Args:
        given: The transactions.
        found: The rows as they are; one that is not there yet is empty.

    Raises:
        BudgetExceeded: One of the changes would pass a limit.
    """
    rows: dict[tuple[str, str], BudgetRow] = {}
    for each in given:
        for change in each.budgets:
            key = change.name, change.period
            row = rows.get(key) or found.get(key) or BudgetRow(*key)
            rows[key] = changed(row, each.run_id, change)
    return rows


def places_of(given: Sequence[Transaction]) -> list[tuple[str, str]]:
    """The names and periods of the rows that transactions change, in the order in which every session takes them."""
    return sorted({(change.name, change.period) for each in given for change in each.budgets})


def dump_row(row: BudgetRow) -> bytes:
    """A row as it is stored: numbers are texts, as not every server has them whole."""
    held = {run_id: _texts(amounts) for run_id, amounts in row.held.items()}
    return json.dumps({"limits": _texts(row.limits), "used": _texts(row.used), "held": held}).encode()


def load_row(name: str, period: str, stored: bytes) -> BudgetRow:
    """A stored row.

    Raises:
        CorruptRecord: It is not what was written.
    """
    try:
        tree = json.loads(stored)
        held = {str(run_id): _numbers(amounts) for run_id, amounts in tree["held"].items()}
        return BudgetRow(name, period, _numbers(tree["limits"]), _numbers(tree["used"]), held)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptRecord(f"the row of shared budget {name!r} is damaged", hint="restore a copy of it") from error


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _numbers(tree: object) -> dict[str, int]:
    if not is_dict(tree):
        raise TypeError("not an object")
    return {str(name): int(str(amount)) for name, amount in tree.items()}
