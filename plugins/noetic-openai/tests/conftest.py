from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from noetic_local import LocalServer

from tests.leftovers import nothing_left_open as nothing_left_open

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def local_server() -> Iterator[LocalServer]:
    """A real server with a small real model; without its weights, the error says how to install them."""
    server = LocalServer()
    server.start()
    yield server
    server.stop()
