"""Which cases of the tests a run of the suite tries; with `NOETIC_EXAMPLES=full` it tries all of them.

Each case runs on one of the two event loops, and with `NOETIC_OTHER_LOOP=1` on the other one.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any, TypeAlias

import pytest

from tests.properties.checks import FULL

__all__ = ["every_pair", "leave_out"]

Row: TypeAlias = Sequence[tuple[str, Hashable]]
"""A case: the names of its parameters, and what stands for their values."""
_LOOPS = ("asyncio", "trio")
_KILLS = re.compile("kill|dies|died|interrupted")
_TURN = int(bool(os.environ.get("NOETIC_OTHER_LOOP")))
# Suites for backends and plugins: of these all cases are run.
_WHOLE = ("plugins/", *(f"tests/test_checkpoints_{kind}.py" for kind in ("files", "signed", "sqlite")))
# At a server a case takes longer: every fourth id, and every second moment of a cancellation, is tried there.
_SERVERS = tuple(f"plugins/noetic-{server}/tests/test_conformance.py" for server in ("postgres", "redis"))
_STEPS = {"name": 4, "turns": 2}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave of the cases of each test a sample, unless all of them are asked for."""
    if FULL:
        return
    left: set[pytest.Item] = set()
    cases: defaultdict[object, list[tuple[pytest.Item, Row]]] = defaultdict(list)
    for item in items:
        # With fewer parameters each case is a pair of its own. The class is one: a kit is run for several.
        if not isinstance(item, pytest.Function) or item.nodeid.startswith(_WHOLE):
            continue
        if len(_params(item)) + (item.cls is not None) > 2:
            # By the place of its function, which all classes of a kit share.
            cases[item.location[:2]].append((item, _row(item)))
    for each in cases.values():
        chosen = every_pair([row for _, row in each])
        left.update(item for item, row in each if row not in chosen)
    left.update(_at_servers(items))
    # Where one loop is asked for by its name, all cases are run on it.
    if not any(loop in config.option.keyword for loop in _LOOPS):
        left.update(_twins([item for item in items if item not in left]))
    _mark_unwatched([item for item in items if item not in left])
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _at_servers(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Of the cases that the suite for backends has at servers, those that only the other stores are given."""
    numbers = Counter[object]()
    for item in items:
        sampled = _STEPS.keys() & _params(item).keys()
        if sampled and item.nodeid.startswith(_SERVERS):
            case = (item.parent, item.location[2].partition("[")[0], _params(item).get("anyio_backend"))
            if numbers[case] % _STEPS[sampled.pop()]:
                yield item
            numbers[case] += 1


def _twins(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Of the cases that both event loops have, those of the other one: half of them run on each."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        loop = _params(item).get("anyio_backend")
        if loop in _LOOPS:
            cases[item.nodeid.replace(str(loop), "")].append(item)
    for case, each in cases.items():
        if len(each) == len(_LOOPS):
            loop = _LOOPS[(zlib.crc32(case.encode()) + _TURN) % 2]
            yield from (item for item in each if _params(item)["anyio_backend"] != loop)


def _mark_unwatched(items: Sequence[pytest.Item]) -> None:
    """Mark cases on trio that cover what others do: of the same test, or of a run that goes on after a kill."""
    on_asyncio = {item.location[:2] for item in items if _params(item).get("anyio_backend") == "asyncio"}
    for item in items:
        if _params(item).get("anyio_backend") == "trio" and (
            item.location[:2] in on_asyncio or _KILLS.search(item.name)
        ):
            item.add_marker("unwatched")


def every_pair(rows: Sequence[Row]) -> set[Row]:
    """A choice of rows: each two values that stand together in a row do so in one that is chosen."""
    pairs = {row: set(combinations(row, 2)) for row in rows}
    missing = set[object]().union(*pairs.values())
    chosen: set[Row] = set()
    # Those that add the most first. What a row adds only gets less, so it is counted again when its turn comes.
    waiting = [(-len(each), place, row) for place, (row, each) in enumerate(pairs.items())]
    heapify(waiting)
    while missing:
        promised, place, row = heappop(waiting)
        added = len(pairs[row] & missing)
        if added == -promised:
            chosen.add(row)
            missing -= pairs[row]
        elif added:
            heappush(waiting, (-added, place, row))
    return chosen


def _params(item: pytest.Item) -> dict[str, Any]:
    found: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return found


def _row(item: pytest.Function) -> Row:
    """What are one parameter to `parametrize` are one here."""
    params = {name: _stand_in(value) for name, value in _params(item).items()}
    row: list[tuple[str, Hashable]] = [("", item.cls)]
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        together = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        row.append((str(names), tuple(params.pop(name) for name in together if name in params)))
    return (*row, *params.items())


def _stand_in(value: object) -> Hashable:
    # Not every value can be hashed. Whether equal constants are one object may differ between the workers, and the
    # choice may not.
    return (type(value), value) if isinstance(value, str | bytes | int | float | None) else id(value)
