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

from postgres_server import PostgresServer  # noqa: E402  # only now can it be found

from tests.servers.figures import say_figures  # noqa: E402  # as the one above


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what the full sets have counted."""
    say_figures(terminalreporter, "noetic-postgres")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGPASSFILE", "PGOPTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A real server; without its programs the error says how to install them."""
    made = PostgresServer()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def schema(server: PostgresServer) -> Iterator[str]:
    """A schema of the test's own, which is empty."""
    with server.schema() as name:
        yield name


@pytest.fixture(scope="session")
def vector_server() -> Iterator[PostgresServer]:
    """A real server with pgvector; without it the error says how to install it."""
    made = PostgresServer(with_vectors=True)
    try:
        made.start()
        made.query("CREATE EXTENSION vector")
        yield made
    finally:
        made.close()


@pytest.fixture
def vector_schema(vector_server: PostgresServer) -> Iterator[str]:
    """A schema of the test's own, which is not made yet."""
    with vector_server.schema(fresh=True) as name:
        yield name
