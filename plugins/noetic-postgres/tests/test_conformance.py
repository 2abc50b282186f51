"""The suite that every backend has to pass, against a real server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import pytest
from noetic_postgres import PostgresBackend
from postgres_server import PostgresServer
from psycopg import sql

from noetic_py.checkpoints import CheckpointBackend
from noetic_py.testing.conformance import BackendContract, DamageContract, LastingContract, QueueContract
from tests.properties.checks import FULL


class _OnServer:
    """A folder stands for a schema of the server, and every test has one."""

    @pytest.fixture(autouse=True)
    def use(self, server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[None]:
        self.server = server
        with server.schema(fresh=self.needs_its_own(request)) as self.schema:
            yield

    def needs_its_own(self, request: pytest.FixtureRequest) -> bool:
        """Whether no other test may have the schema afterwards."""
        return False

    def make(self, folder: Path) -> CheckpointBackend:
        return PostgresBackend(self.server.url(self.schema))

    async def lapse(self, backend: CheckpointBackend) -> None:
        self.server.lapse(self.schema)


class TestPostgres(_OnServer, BackendContract, QueueContract, LastingContract):
    pass


class TestOneConnection(_OnServer, BackendContract, QueueContract):
    """Everything goes through one connection, so that appends wait and share commits; and every payload is apart."""

    __test__ = FULL

    # What an event loop has to do with it was shown above.
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    def make(self, folder: Path) -> CheckpointBackend:
        return PostgresBackend(self.server.url(self.schema), connections=1, blob_threshold=0)


CHANGES: tuple[LiteralString, ...] = (
    "UPDATE {schema}.transactions SET body = set_byte(body, {at} % length(body), {byte}) WHERE last = {last}",
    "UPDATE {schema}.transactions SET body = substr(body, 1, length(body) - 1) WHERE last = {last}",
    "UPDATE {schema}.transactions SET last = last + 1 WHERE last = {last}",
    "UPDATE {schema}.transactions SET count = count + 1 WHERE last = {last}",
    "UPDATE {schema}.transactions SET stream = stream + 100 WHERE last = {last}",
    """UPDATE {schema}.transactions t SET body = (SELECT body FROM {schema}.transactions o
    WHERE o.stream <> t.stream AND o.last = t.last LIMIT 1), crc = (SELECT crc FROM {schema}.transactions o
    WHERE o.stream <> t.stream AND o.last = t.last LIMIT 1) WHERE last = {last}""",
    "DELETE FROM {schema}.transactions WHERE last = {last}",
    "UPDATE {schema}.blobs SET data = set_byte(data, {at} % length(data), {byte})",
    "DELETE FROM {schema}.blobs",
    "UPDATE {schema}.runs SET position = position + 2",
    "UPDATE {schema}.runs SET fence = fence + 1",
    "UPDATE {schema}.runs SET run_id = run_id || 'x' WHERE run_id = 'r3'",
    "UPDATE {schema}.runs SET card = 'other'",
    "UPDATE {schema}.runs SET status = 'completed'",
    "UPDATE {schema}.runs SET status = NULL",
    "UPDATE {schema}.shared SET upto = upto - 2",
    "UPDATE {schema}.shared SET stream = stream + 1",
    "DELETE FROM {schema}.store",
    "UPDATE {schema}.store SET salt = 'other'",
    "UPDATE {schema}.pairs SET value = set_byte(value, {at} % length(value), {byte})",
    "UPDATE {schema}.pairs SET version = version + 1",
    "UPDATE {schema}.pairs SET key = key || 'x'",
)


class TestDamaged(_OnServer, DamageContract):
    def needs_its_own(self, request: pytest.FixtureRequest) -> bool:
        # What makes the store is not emptied.
        return ".store" in CHANGES[request.getfixturevalue("seed") % len(CHANGES)]

    async def damage(self, folder: Path, seed: int) -> None:
        dice = random.Random(seed)
        query = sql.SQL(CHANGES[seed % len(CHANGES)]).format(
            schema=sql.Identifier(self.schema),
            at=dice.randrange(1000),
            byte=dice.randrange(256),
            last=dice.choice([1, 4, 6]),
        )
        with self.server.connect() as connection:
            connection.execute(query)
