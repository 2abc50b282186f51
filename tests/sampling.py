"""Which cases of the tests a run of the suite tries; with `NOETIC_EXAMPLES=full` it tries all of them.

Where a missing program is no failure, which is anywhere but in CI, each case runs on one of the two event loops.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any, TypeAlias

import pytest
from sniffio import current_async_library

from tests.properties.checks import FULL

__all__ = ["every_pair", "is_for_this_loop", "leave_out"]

Row: TypeAlias = Sequence[tuple[str, Hashable]]
"""A case: the names of its parameters, and what stands for their values."""
_LOOPS = ("asyncio", "trio")
ONE_LOOP = not os.environ.get("NOETIC_REQUIRE_ALL")
"""Whether a case that both event loops have is run on one of them."""
_PLUGINS = ("plugins/",)
_FILES = tuple(f"tests/test_checkpoints_{kind}.py" for kind in ("files", "signed", "sqlite"))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave of the cases of each test a sample, unless all of them are asked for."""
    if FULL:
        return
    left: set[pytest.Item] = set()
    turns: defaultdict[str, dict[str, int]] = defaultdict(dict)
    cases: defaultdict[object, list[tuple[pytest.Item, Row]]] = defaultdict(list)
    # Where one loop is asked for by its name, all cases are run on it.
    on_both = not any(loop in config.option.keyword for loop in _LOOPS)
    for item in items:
        if on_both and (item.nodeid.startswith(_PLUGINS + _FILES) or _takes_turns(item)):
            if _on_the_other_loop(item, turns[item.nodeid.partition("[")[0]]):
                left.add(item)
            elif item.nodeid.startswith(_FILES):
                item.add_marker("watched")
        # With fewer parameters each case is a pair of its own. The class is one: a kit is run for several.
        elif isinstance(item, pytest.Function) and len(_params(item)) + (item.cls is not None) > 2:
            # By the place of its function, which all classes of a kit share.
            cases[item.location[:2]].append((item, _row(item)))
    for each in cases.values():
        left.update(_beside_the_pairs(each))
    if on_both and ONE_LOOP:
        left.update(_twins([item for item in items if item not in left]))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _beside_the_pairs(cases: Sequence[tuple[pytest.Item, Row]]) -> Iterator[pytest.Item]:
    """The cases of a test that are not run, for each two values meet in others."""
    chosen = every_pair([row for _, row in cases])
    for item, row in cases:
        if row not in chosen:
            yield item
        elif len(chosen) < len(cases):
            # What it covers may be covered on this event loop alone.
            item.add_marker("watched")


def _twins(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Of the cases that both event loops have, those of the other one."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        loop = _params(item).get("anyio_backend")
        if loop in _LOOPS:
            cases[item.nodeid.replace(str(loop), "")].append(item)
    for each in cases.values():
        if len(each) == len(_LOOPS):
            yield from (item for item in each if _on_the_other_loop(item, {}))


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


def is_for_this_loop(number: int) -> bool:
    """Whether a case that a test counts itself is tried on this event loop.

    In full all are on both, and where the test itself is run on one loop they are all on that one.
    """
    return FULL or ONE_LOOP or number % 2 == _LOOPS.index(current_async_library())


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


def _takes_turns(item: pytest.Item) -> bool:
    """Whether a test is marked so, and has cases besides the two event loops."""
    params = _params(item)
    return item.get_closest_marker("either_loop") is not None and "anyio_backend" in params and len(params) == 2


def _on_the_other_loop(item: pytest.Item, seen: dict[str, int]) -> bool:
    """Whether a case is left to the other event loop; half of them run on each.

    A backend with a server or with files does its work in threads, which are the same under both, and most plugins call
    a client that does. There a test with one case is run on one loop too. `seen` has the cases of the test that came
    before, with their places.
    """
    loop = _params(item).get("anyio_backend")
    case = item.nodeid.replace(str(loop), "")
    place = seen.setdefault(case, len(seen)) if _takes_turns(item) else zlib.crc32(case.encode())
    return loop in _LOOPS and _LOOPS[place % 2] != loop
