"""One connection: scripts that read, and scripts that write and do so once however often they are sent.

A write that was sent may have been done although its answer never came. So every thread has a random session, every
write of it a number that counts up, and the script notes the write's result under both, in the same moment. A caller
that loses the connection sends the same write again, and gets that result if it is there. What is still under way from
an earlier connection finds its number noted, or finds that the session has gone on, and does nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import redis
from redis import exceptions

from noetic_py.errors import CheckpointError, StoreUnavailable
from noetic_redis.address import Address
from noetic_redis.failures import from_connecting, from_making, from_server, is_passing
from noetic_redis.scripts import NAMES, Script, script
from noetic_redis.settings import ASKED, Found, check

__all__ = ["VERSION", "Argument", "Link"]

VERSION = 4
"""The version of the stored format."""

_NAME = "noetic_py"

Argument: TypeAlias = bytes | str | int


class Link:
    """A connection; used by one thread.

    Args:
        address: Where it leads.
        met: Told what was found there.
        seconds: How long connecting may take.

    Attributes:
        address: Where it leads.
        sent: Whether a write was sent whose answer has not come.
        written: How many writes there were since `begin`.
    """

    def __init__(self, address: Address, met: Callable[[Found], None], *, seconds: float) -> None:
        self.address = address
        self.sent = False
        self.written = 0
        self._begun = ("", 0, False)
        self._base = f"{{{address.prefix}}}:"
        self._store = f"{self._base}store"
        self._connection = address.connection(seconds)
        try:
            self._connection.connect()
            self._salt = self._prepare(met)
        except (redis.RedisError, OSError, UnicodeError) as error:
            self.close()
            # Its text may hold what was connected with.
            raise from_connecting(error, address.where) from None
        except BaseException:
            self.close()
            raise

    def _prepare(self, met: Callable[[Found], None]) -> bytes:
        # A user may be forbidden each of these; nothing depends on them.
        asked: list[Sequence[Argument]] = [("CLIENT", "SETNAME", _NAME), ("INFO",)]
        _, info, *told = self._exchange([*asked, *(("CONFIG", "GET", name) for name in ASKED)])
        for answer in (info, *told):
            if isinstance(answer, Exception) and is_passing(answer):
                raise answer
        settings = _settings(told)
        server = _info(info)
        if "maxmemory_policy" in server:
            settings.setdefault("maxmemory-policy", server["maxmemory_policy"])
        found = Found(server.get("redis_version", ""), settings)
        where = self.address.where
        check(found, self.address.require, where)
        hello = script("hello")
        command = ("EVAL", hello.source, 1, self._store, self._base, VERSION, secrets.token_hex(8))
        (answer,) = self._exchange([command])
        if isinstance(answer, Exception):
            raise from_making(answer, where)
        version, salt = answer
        if version != b"%d" % VERSION:
            told_version = version.decode("ascii", "replace")[:20]
            raise StoreUnavailable(
                f"{where}: the store is of version {told_version}, and this release knows {VERSION}",
                where=where,
                reason="newer",
                hint="pip install -U noetic-redis, or give another prefix=",
            )
        met(found)
        return bytes(salt)

    def close(self) -> None:
        """End the connection; the server may still be busy with what was sent."""
        try:
            self._connection.disconnect()
        except (redis.RedisError, OSError):
            # It is gone already.
            return

    # -- scripts

    def begin(self, session: str, floor: int, *, again: bool) -> None:
        """Begin a piece of work.

        Args:
            session: Whose it is.
            floor: The number of its first write.
            again: Whether its writes may have been sent before.
        """
        self._begun = (session, floor, again)
        self.written = 0
        self.sent = False

    def read(self, name: str, *arguments: Argument) -> Any:
        """Run a script that changes nothing, or that may be run twice."""
        return self._one(self._run(script(name), [("", 0, 0, 0, *arguments)]))

    def write(self, name: str, *arguments: Argument) -> list[str]:
        """Run a script once; its words, the first of which says how it went."""
        return _words(self._one(self.write_all(name, [arguments])))

    def write_all(self, name: str, several: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run a script once with each of several rows of arguments, each by itself.

        Returns:
            For each its words as they came, or the driver's error.
        """
        session, floor, again = self._begun
        rows: list[Sequence[Argument]] = []
        for arguments in several:
            rows.append((session, floor, floor + self.written, int(again), *arguments))
            self.written += 1
        self.sent = True
        answers = self._run(script(name), rows)
        self.sent = False
        return answers

    def goodbye(self) -> None:
        """Let the server forget the results of the session's writes."""
        self._one(self._run(script("goodbye"), [(self._begun[0], 0, 0, 0)]))

    def words(self, answer: Any) -> list[str] | CheckpointError:
        """One of the answers of `write_all`: its words, or the library's error."""
        return from_server(answer, self.address.where) if isinstance(answer, Exception) else _words(answer)

    def _one(self, answers: Sequence[Any]) -> Any:
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _run(self, what: Script, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        commands = [("EVALSHA", what.digest, 1, self._store, self._base, self._salt, *row) for row in rows]
        answers = self._exchange(commands)
        if any(isinstance(answer, exceptions.NoScriptError) for answer in answers):
            # The server was restarted, or its scripts were flushed. A script that is sent again reports an earlier run.
            for answer in self._exchange([("SCRIPT", "LOAD", script(name).source) for name in NAMES]):
                if isinstance(answer, Exception):
                    raise answer
            answers = self._exchange(commands)
        passing = [answer for answer in answers if isinstance(answer, Exception) and is_passing(answer)]
        if passing:
            # Where all say so, nothing was run.
            self.sent = self.sent and len(passing) < len(answers)
            raise passing[0]
        return answers

    def _exchange(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together, and take all their answers; those that are errors are among them.

        Raises:
            redis.ConnectionError: The connection was lost.
        """
        self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(self._connection.read_response())
            except redis.ResponseError as error:
                answers.append(error)
        return answers


def _words(answer: Sequence[bytes]) -> list[str]:
    return [word.decode() for word in answer]


def _settings(told: Sequence[Any]) -> dict[str, str]:
    """The settings from `CONFIG GET`; a user may lack the right to read them."""
    found: dict[str, str] = {}
    for answer in told:
        if isinstance(answer, Exception):
            continue
        texts = [each.decode("utf-8", "replace") for each in answer]
        found |= dict(zip(texts[::2], texts[1::2], strict=False))
    return found


def _info(answer: Any) -> dict[str, str]:
    if isinstance(answer, Exception):
        return {}
    lines = bytes(answer).decode("utf-8", "replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
