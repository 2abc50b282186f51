from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))

from temporal_server import TemporalServer  # only now can it be found

from tests.servers.figures import say_figures  # as the one above


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what the full sets have counted."""
    say_figures(terminalreporter, "noetic-temporal")


@pytest.fixture
def anyio_backend() -> str:
    """The client of Temporal runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """A real server; without its program the tests are left out."""
    made = TemporalServer()
    try:
        made.start()
        yield made
    finally:
        made.close()
