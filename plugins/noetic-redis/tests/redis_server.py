"""A real Redis server that the tests start themselves: in a folder of its own, on a free port of the loopback."""

from __future__ import annotations

import itertools
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis import exceptions

from tests.crash.folders import MEMORY
from tests.programs import need
from tests.servers.ports import free_port

PASSWORD = "correct horse battery staple"


class RedisServer:
    """One server; `start` runs it, `close` ends it by its process and takes everything away.

    Args:
        **settings: Of the server, with underscores for dashes, besides those that the tests want.
    """

    def __init__(self, **settings: str) -> None:
        self._program = str(need("redis-server"))
        # In memory where there is one: to a process that is killed it is a disk like any other.
        self.folder = Path(tempfile.mkdtemp(prefix="noetic-redis-", dir=MEMORY if MEMORY.is_dir() else None))
        self.port = free_port()
        self.socket = self.folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        self._quick: Any = None
        self._count = itertools.count()
        self.settings = {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "requirepass": PASSWORD,
            "maxmemory-policy": "noeviction",
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }

    def __getstate__(self) -> dict[str, object]:
        """What another process needs of it: where it listens, and no connection."""
        return {**vars(self), "_quick": None, "_count": None, "_process": None}

    def start(self) -> None:
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start it, and do not wait."""
        command = [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--daemonize", "no"]
        command += ["--dir", str(self.folder), "--unixsocket", str(self.socket), "--logfile", str(self.folder / "log")]
        for name, value in self.settings.items():
            command += [f"--{name}", value]
        # With the signals as this process has them: a file that may not grow is an error to it then, and no death.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, restore_signals=False)

    @property
    def pid(self) -> int:
        """The number of its process."""
        return 0 if self._process is None else self._process.pid

    def limit_files(self, size: int | None) -> None:
        """Let no file of it grow beyond a size, as on a disk that is full; `None` takes that back."""
        limit = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def wait(self) -> None:
        """Return when it answers, and has read what it had stored."""
        end = time.monotonic() + 60
        while True:
            try:
                self.command("PING")
                return
            except exceptions.RedisError:
                gone = self._process is None or self._process.poll() is not None
                if gone or time.monotonic() > end:
                    raise RuntimeError(f"the server does not start: {self.log()}") from None

    def is_loading(self) -> bool:
        """Whether it answers that it is still reading what it had stored."""
        try:
            self.command("PING")
        except exceptions.BusyLoadingError:
            return True
        except exceptions.ConnectionError:
            # It does not listen yet.
            return False
        raise RuntimeError("it has read everything already")

    def is_busy(self) -> bool:
        """Whether it answers that it is running a script."""
        try:
            self.command("PING")
        except exceptions.ResponseError as error:
            return "BUSY" in str(error)
        return False

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """As a crash of its process: no client was told."""
        self.signal(signal.SIGKILL)
        self.ended()

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        self.ended()

    def ended(self) -> None:
        if self._process is not None:
            self._process.wait(60)
            self._process = None

    def restart(self) -> None:
        """Kill it, and start it anew with what it had on its disk."""
        self.kill()
        self.start()

    def close(self) -> None:
        if self._quick is not None:
            self._quick.disconnect()
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(
        self,
        prefix: str = "noetic",
        *,
        port: int | None = None,
        user: str = "",
        password: str | None = None,
        database: int = 0,
        more: str = "",
    ) -> str:
        """What a program would write as `checkpoints=`."""
        secret = (self.settings["requirepass"] if password is None else password).replace(" ", "%20")
        login = f"{user}:{secret}@" if user or secret else ""
        return f"redis://{login}127.0.0.1:{port or self.port}/{database}?prefix={prefix}{more}"

    def connect(self) -> Any:
        """A connection of the test's own, past everything that is tested."""
        pool = redis.ConnectionPool(port=self.port, password=self.settings["requirepass"] or None, protocol=2)
        return pool.make_connection()

    def command(self, *words: str | bytes | int) -> Any:
        """What the server answers, as it comes; one that was lost meanwhile is made anew."""
        if self._quick is None:
            self._quick = self.connect()
        try:
            return _asked(self._quick, words)
        except exceptions.BusyLoadingError:
            raise
        except exceptions.ConnectionError:
            return _asked(self._quick, words)

    def alone(self, *words: str | bytes | int) -> Any:
        """As `command`, on a connection that no other test has."""
        connection = self.connect()
        try:
            return _asked(connection, words)
        finally:
            connection.disconnect()

    @contextmanager
    def prefix(self) -> Generator[str]:
        """A prefix that was not used before."""
        name = f"test-{next(self._count)}"
        try:
            yield name
        finally:
            if self._process is not None and self.keys(name):
                self.command("UNLINK", *self.keys(name))

    def space(self) -> AbstractContextManager[str]:
        """What a test has for itself."""
        return self.prefix()

    def keys(self, prefix: str) -> list[bytes]:
        """The names of all keys of a prefix; a test may ask for all."""
        found: list[bytes] = self.command("KEYS", f"{{{prefix}}}:*")
        return sorted(found)

    @contextmanager
    def configured(self, **values: str) -> Generator[None]:
        """Run with other settings for a while; those that need no restart."""
        before = {name: self.command("CONFIG", "GET", name.replace("_", "-"))[1] for name in values}
        try:
            for name, value in values.items():
                self.command("CONFIG", "SET", name.replace("_", "-"), value)
            yield
        finally:
            for name, value in before.items():
                self.command("CONFIG", "SET", name.replace("_", "-"), value)

    def runs(self, prefix: str) -> list[str]:
        """The names of the keys of runs."""
        numbers: list[bytes] = self.command("ZRANGE", f"{{{prefix}}}:runs", 0, -1)
        return [f"{{{prefix}}}:run:{number.decode()}" for number in numbers]

    def lapse(self, prefix: str) -> None:
        """As if the time of every lease were up."""
        for name in self.runs(prefix):
            if self.command("HEXISTS", name, "until"):
                self.command("HSET", name, "until", 1)
        for key in self.keys(prefix):
            if b":owned:" in key:
                for number in self.command("ZRANGE", key, 0, -1):
                    self.command("ZADD", key, 1, number)

    def leases(self, prefix: str) -> list[int]:
        """When the leases end that were not given back, in microseconds of the server's clock."""
        found = [self.command("HGET", name, "until") for name in self.runs(prefix)]
        return [int(until) for until in found if until]

    def now(self) -> int:
        """The server's clock, in microseconds."""
        seconds, micros = self.command("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def wait_for_leases(self, prefix: str) -> None:
        """Wait until the time of every lease is up, by the server's clock; no owner may be renewing one."""
        while (left := max(self.leases(prefix), default=0) - self.now()) > 0:
            time.sleep(left / 1_000_000)

    def sessions(self) -> list[int]:
        """The connections of backends of the tests."""
        rows: bytes = self.command("CLIENT", "LIST")
        found = [line.split() for line in rows.decode().splitlines()]
        # Each line begins with the connection's number, `id=7`.
        return [int(words[0].partition("=")[2]) for words in found if "name=noetic_py" in words]

    def end_sessions(self) -> None:
        """End them all, whatever they are doing."""
        for number in self.sessions():
            self.command("CLIENT", "KILL", "ID", number)

    def wait_until_nobody_is_connected(self) -> None:
        """Return when the server has noticed that its clients are gone."""
        end = time.monotonic() + 30
        while left := self.sessions():
            assert time.monotonic() < end, f"still connected: {left}"

    def bury(self, prefix: str) -> None:
        """As long after the death of every process that was connected: the server has noticed, their leases are up."""
        self.wait_until_nobody_is_connected()
        self.lapse(prefix)

    def has_left_a_run(self, prefix: str) -> bool:
        """Whether there is a run that was not ended, and whose owner has not given it back."""
        left = [name for name in self.runs(prefix) if self.command("HEXISTS", name, "until")]
        return any(self.command("HGET", name, "status") != b"scompleted" for name in left)

    def stored(self, prefix: str) -> dict[bytes, bytes]:
        """All that is stored of the runs and values, as the server would move it elsewhere."""
        mine = [key for key in self.keys(prefix) if b":mark:" not in key and not key.endswith(b":used")]
        return {key: self.command("DUMP", key) for key in mine}


def _asked(connection: Any, words: Sequence[str | bytes | int]) -> Any:
    connection.send_command(*words)
    return connection.read_response()
