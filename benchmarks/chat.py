"""The chat server of the examples under load on the loopback: `python -m benchmarks.chat`, `--docs` for the page.

A server in a process of its own keeps its conversations in SQLite; this process is all of its clients. Each
conversation is given a word of its own with every message, and the model tells in every answer the first thing that it
was told. So a foreign word in an answer, or in what is stored, is a conversation that was mixed up with another one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import Factory, define, field, frozen

from benchmarks.measure import MILLI, ROOT, environment, wall
from benchmarks.table import digits, into_page

SERVER = ROOT / "examples" / "chat_server.py"
PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- chat: begin -->"
END = "<!-- chat: end -->"
USERS = tuple(f"u{number}" for number in range(10))
SESSIONS = 1_000
AT_ONCE = (1, 16, 128, 1_000)
"""How many turns are under way at any moment, in one part of the load after the other."""
STEADY = 16
"""The part that goes on for longer: `ROUNDS` turns of every conversation."""
ROUNDS = 5
WARM_UP = 100
MARKER = re.compile(r"w[0-9a-f]{16}")


# ----------------------------------------------------------------------------------------------------------- the client


@define
class Reply:
    """What a request came to.

    Attributes:
        status: Of the response.
        headers: Its headers, by their names in lower case.
        body: Its body.
        events: The server-sent events in it, name and data.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def events(self) -> list[tuple[str, dict[str, object]]]:
        blocks = [block.split("\n") for block in self.body.decode().split("\n\n") if block]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]

    @property
    def end(self) -> dict[str, object]:
        """The data of the last event, which is `end` unless the turn broke."""
        name, data = self.events[-1]
        if name != "end":
            raise AssertionError(f"the turn ended with {name}: {data}")
        return data


class Connection:
    """A connection to the server that stays open; one request at a time.

    Args:
        port: Where the server listens, on the loopback.
    """

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._stream = await anyio.connect_tcp("127.0.0.1", self._port)
        self._read = BufferedByteReceiveStream(self._stream)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await anyio.aclose_forcefully(self._stream)

    async def send(self, method: str, path: str, body: object = None, *, user: str = "", **headers: str) -> None:
        """Ask, and do not wait for the answer."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"host": "127.0.0.1", "authorization": f"Bearer {token_of(user)}", **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {text}" for name, text in given.items())]
        head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode()
        await self._stream.send(head + data)

    async def begun(self) -> Reply:
        """The head of the answer."""
        head = (await self._read.receive_until(b"\r\n\r\n", 65_536)).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
        return Reply(int(first.split()[1]), headers)

    async def piece(self) -> bytes:
        """The next piece of an answer that comes in pieces; empty behind the last one."""
        size = int(await self._read.receive_until(b"\r\n", 64), 16)
        return (await self._read.receive_exactly(size + 2))[:-2]

    async def ask(self, method: str, path: str, body: object = None, *, user: str = "", **headers: str) -> Reply:
        """Ask, and wait for the whole answer."""
        await self.send(method, path, body, user=user, **headers)
        reply = await self.begun()
        if "content-length" in reply.headers:
            reply.body = await self._read.receive_exactly(int(reply.headers["content-length"]))
        else:
            while data := await self.piece():
                reply.body += data
        return reply

    async def say(self, user: str, session: str, text: str, delivery: str | None = None) -> Reply:
        """Do a turn."""
        headers = {} if delivery is None else {"delivery-id": delivery}
        return await self.ask("POST", f"/sessions/{session}/messages", {"text": text}, user=user, **headers)


def token_of(user: str) -> str:
    """What a user says to the server to be known."""
    return f"token-of-{user}"


@define
class Running:
    """A server that runs."""

    port: int
    process: subprocess.Popen[str]

    def memory(self) -> int:
        """Bytes of it that are in the machine's memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@contextmanager
def server(folder: Path, users: Sequence[str]) -> Generator[Running]:
    """The example, as anybody would start it.

    Args:
        folder: Where its conversations are kept.
        users: Who may ask.
    """
    tokens = ",".join(f"{token_of(user)}={user}" for user in users)
    command = [sys.executable, str(SERVER), "--port", "0", "--store", f"sqlite:{folder}/chat.db", "--users", tokens]
    # What a process has covered is measured elsewhere, and measuring it here would only slow it down.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    with subprocess.Popen(
        command, cwd=ROOT, env={**kept, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "listening on" not in line:
                raise RuntimeError(f"the server did not start: {line}")
            yield Running(int(line.rpartition(":")[2]), process)
        finally:
            process.terminate()
            process.wait(30)


# ------------------------------------------------------------------------------------------------------------- the load


@frozen
class Talk:
    """One conversation, and what was said in it."""

    user: str
    name: str
    marker: str = field(factory=lambda: f"w{secrets.token_hex(8)}")
    said: list[str] = Factory(list[str])

    def answer(self, turn: int) -> str:
        """What the model of the example says in a turn."""
        return f"You have said {turn} things; the first was: {self.said[0]}"


@frozen
class Part:
    """How one part of the load went.

    Attributes:
        at_once: How many turns were under way at any moment.
        seconds: From its beginning to its end.
        took: Seconds of each turn, as its client saw it.
    """

    at_once: int
    seconds: float
    took: list[float]

    def share(self, part: float) -> float:
        """The seconds within which this part of the turns was done."""
        return sorted(self.took)[min(len(self.took) - 1, int(len(self.took) * part))]


def talks(sessions: int) -> list[Talk]:
    """Conversations of all users; each name is one of every user."""
    return [Talk(USERS[number % len(USERS)], f"talk{number // len(USERS)}") for number in range(sessions)]


async def load(port: int, chats: Sequence[Talk], at_once: int, rounds: int = 1) -> Part:
    """Let every conversation have so many turns, so many of them at once, and look at each answer."""
    took: list[float] = []

    async def client(waiting: Iterator[Talk]) -> None:
        async with Connection(port) as connection:
            for chat in waiting:
                chat.said.append(f"Turn {len(chat.said) + 1} of {chat.marker}")
                began = wall()
                reply = await connection.say(chat.user, chat.name, chat.said[-1], delivery=f"d{len(chat.said)}")
                took.append(wall() - began)
                expected = chat.answer(len(chat.said))
                if reply.status != 200 or reply.end["answer"] != expected:
                    raise AssertionError(f"{reply.status} {reply.body!r}, not {expected!r}")

    began = wall()
    for _ in range(rounds):
        waiting = iter(chats)
        async with anyio.create_task_group() as group:
            for _ in range(min(at_once, len(chats))):
                group.start_soon(client, waiting)
    return Part(at_once, wall() - began, took)


async def look(port: int, chats: Sequence[Talk]) -> int:
    """Compare all that is stored with what was said and answered; gives how many items that were.

    Raises:
        AssertionError: Something is missing, is there twice, or is of another conversation.
    """
    seen = 0
    async with Connection(port) as connection:
        for chat in chats:
            reply = await connection.ask("GET", f"/sessions/{chat.name}", user=chat.user)
            told = [item["text"] for item in json.loads(reply.body)["items"]]
            wanted = [text for turn, said in enumerate(chat.said, 1) for text in (said, chat.answer(turn))]
            if told != wanted or set(MARKER.findall(" ".join(told))) != {chat.marker}:
                raise AssertionError(f"{chat.user}, {chat.name}: {told}, not {wanted}")
            seen += len(told)
    return seen


@frozen
class Found:
    """What came out.

    Attributes:
        sessions: How many conversations there were.
        parts: The parts of the load.
        items: How many stored items were compared with what was said.
        began: Bytes that the server had in memory after the warm-up.
        idle: The same when all conversations had had their turns, a few at a time.
        ended: The same at the end, when all had had a turn at once.
    """

    sessions: int
    parts: list[Part]
    items: int
    began: int
    idle: int
    ended: int

    def report(self) -> str:
        """As Markdown."""
        turns = sum(len(part.took) for part in self.parts)
        lines = [
            "; ".join(f"{name} {value}" for name, value in environment().items()) + ".",
            "",
            f"| Turns at once, {self.sessions:,} conversations | Turns | Turns a second | p50, ms | p99, ms |",
            "| --: | --: | --: | --: | --: |",
        ]
        for part in self.parts:
            times = [digits(part.share(each) * MILLI) for each in (0.5, 0.99)]
            rate = digits(len(part.took) / part.seconds)
            lines.append(f"| {part.at_once:,} | {len(part.took):,} | {rate} | {times[0]} | {times[1]} |")
        kept = (self.idle - self.began) / max(1, self.sessions - WARM_UP) / 1024
        told = (
            f"{turns:,} answers and {self.items:,} stored items looked at: no foreign word, none missing, none twice.\n"
            f"The server had {self.began / 2**20:.0f} MB of memory with its first {WARM_UP} conversations and "
            f"{self.idle / 2**20:.0f} MB with all of them, {STEADY} turns at once: {digits(kept)} KB for each further\n"
            f"conversation; {self.ended / 2**20:.0f} MB after all had had a turn at once."
        )
        return "\n".join([*lines, "", told, ""])


async def measure(running: Running, sessions: int, rounds: int = ROUNDS) -> Found:
    """The whole load on a server that has just been started."""
    chats = talks(sessions)
    await load(running.port, chats[:WARM_UP], STEADY)
    began = running.memory()
    idle, parts = began, list[Part]()
    for at_once in AT_ONCE:
        if at_once <= sessions:
            parts.append(await load(running.port, chats, at_once, rounds if at_once == STEADY else 1))
        if at_once == STEADY:
            idle = running.memory()
    items = await look(running.port, chats)
    return Found(sessions, parts, items, began, idle, running.memory())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and say what came out."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.chat", description="Load the chat server of the examples."
    )
    made.add_argument("--sessions", type=int, default=SESSIONS, help="how many conversations there are")
    made.add_argument("--docs", action="store_true", help=f"put the figures into {PAGE.relative_to(ROOT)}")
    given = made.parse_args(arguments)
    if given.sessions < 2 or (given.docs and given.sessions != SESSIONS):
        made.error("--sessions is 2 or more, and --docs takes all of them")
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), USERS) as running:
        found = anyio.run(measure, running, given.sessions)
    text = found.report()
    sys.stdout.write(text)
    if given.docs:
        PAGE.write_text(into_page(PAGE.read_text(encoding="utf-8"), text, BEGIN, END), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
