"""Processes that a contract starts: forked by one that has imported what they need."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

__all__ = ["start"]

_PRELOADED = [
    "__main__",
    "asyncio",
    "noetic_py.engine.run",
    "noetic_py.plugins",
    "noetic_py.runner.lease",
    "noetic_py.sessions.store",
    "noetic_py.testing.conformance",
]
"""What a run imports, so that no process spends its time on it."""


def start(target: Callable[..., None], contract: object, *given: Any) -> BaseProcess:
    """Start a process that calls a function with a copy of the contract."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=target, args=(contract, *given), daemon=True)
    try:
        process.start()
    except Exception as error:  # noqa: BLE001 # whatever pickling raises
        pytest.fail(
            f"{type(contract).__qualname__} cannot be sent to a process: {error}; define it at the top of its module, "
            "and keep addresses in it, no connections"
        )
    return process
