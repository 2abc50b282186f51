from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("journeys")

from postgres_server import PostgresServer


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
