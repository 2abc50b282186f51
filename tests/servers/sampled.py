"""Which cases of the suite for backends are tried at a server; with `NOETIC_EXAMPLES=full` all of them are."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.properties.checks import FULL

__all__ = ["leave_out_cases"]

_STEPS = {"name": 4, "turns": 2}
"""Of ids, and of moments at which a call is cancelled, every so-manieth: the other stores are given all of them."""


def leave_out_cases(config: pytest.Config, items: list[pytest.Item], folder: str) -> None:
    """Leave a part of the ids and moments out that the suite for backends tries.

    Args:
        config: Is told what was left out.
        items: What was collected.
        folder: The tests of a plugin for a server, from the root.
    """
    cases: defaultdict[object, list[pytest.Item]] = defaultdict(list)
    left: set[pytest.Item] = set()
    for item in items:
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        sampled = _STEPS.keys() & params.keys()
        if FULL or not sampled or not item.nodeid.startswith(f"{folder}/test_conformance.py"):
            continue
        same = cases[item.parent, item.location[2].partition("[")[0], params.get("anyio_backend")]
        if len(same) % _STEPS[sampled.pop()]:
            left.add(item)
        same.append(item)
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
