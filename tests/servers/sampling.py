"""What of the long suites a sample tries."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.properties.checks import FULL

__all__ = ["one_loop_each"]

_LOOPS = ("asyncio", "trio")


def one_loop_each(config: pytest.Config, items: list[pytest.Item], folder: Path) -> None:
    """Leave of each case of a server's tests one event loop, half of them on each; in full both stay.

    A backend on a server does its work in threads, which are the same under both.
    """
    if FULL:
        return
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        loop = params.get("anyio_backend")
        ours = item.path.is_relative_to(folder) and loop in _LOOPS
        case = item.nodeid.replace(str(loop), "").encode()
        (kept if not ours or _LOOPS[zlib.crc32(case) % 2] == loop else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept
