from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))
SHARED = (
    "tests.crash.talks",
    "tests.servers.conversations",
    "tests.servers.journeys",
    "tests.servers.lost",
    "tests.servers.processes",
    "tests.servers.together",
)
# In a run of everything the tests of the core have imported them, and had them rewritten, before.
pytest.register_assert_rewrite(*[name for name in SHARED if name not in sys.modules])

from redis_server import RedisServer  # noqa: E402  # only now can it be found

from tests.servers.figures import say_figures  # noqa: E402  # as the one above


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what the full sets have counted."""
    say_figures(terminalreporter, "noetic-redis")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real server; without its program the error says how to install it."""
    made = RedisServer()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def prefix(redis_server: RedisServer) -> Iterator[str]:
    """A prefix of the test's own, under which nothing is."""
    with redis_server.prefix() as name:
        yield name
