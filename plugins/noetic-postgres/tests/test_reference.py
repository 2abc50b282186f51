"""Rows of operations do on a real server what they do in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import pytest
from noetic_postgres import PostgresBackend
from postgres_server import PostgresServer

from noetic_py.checkpoints import CheckpointBackend
from noetic_py.testing import ReferenceContract
from tests.properties.checks import examples

DATABASE = "clocked"
SCHEMA = "reference"
# What is built in is known to the server by its number, whatever is defined in its place.
CLOCK: tuple[LiteralString, ...] = (
    "CREATE SCHEMA clock",
    "CREATE TABLE clock.shows (at timestamptz)",
    "ALTER FUNCTION pg_catalog.now() RENAME TO real_now",
    "CREATE FUNCTION pg_catalog.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM clock.shows'",
)


class TestBesideTheReference(ReferenceContract):
    """In a database whose `now()` the test sets, because the backend tells all time by the server's clock."""

    examples = examples(sample=12, full=500)
    # More connections change nothing for operations that come one after the other.
    connections = 1

    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer) -> Iterator[None]:
        self.server = server
        if not server.query("SELECT FROM pg_database WHERE datname = %s", DATABASE):
            server.query(f"CREATE DATABASE {DATABASE}")
            with server.connect(DATABASE) as connection:
                for each in CLOCK:
                    connection.execute(each)
        with server.connect(DATABASE) as self.connection:
            yield

    def make(self, folder: Path) -> CheckpointBackend:
        self.connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        self._show()
        return PostgresBackend(self.server.url(SCHEMA, database=DATABASE), connections=self.connections)

    async def moved(self, backend: CheckpointBackend) -> None:
        self._show()

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Its leases end with the server's clock, which has been moved."""

    def _show(self) -> None:
        self.connection.execute("DELETE FROM clock.shows")
        self.connection.execute("INSERT INTO clock.shows VALUES (%s)", [self.runtime.now()])


class TestMostPayloadsApart(TestBesideTheReference):
    """Nearly every payload is stored by its content."""

    examples = examples(sample=4, full=200)

    def make(self, folder: Path) -> CheckpointBackend:
        super().make(folder)
        return PostgresBackend(self.server.url(SCHEMA, database=DATABASE), blob_threshold=0)
