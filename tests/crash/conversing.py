"""What a child process does with a session: turns, each with effects that a ledger outside of the library sees."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
from attrs import Factory, define

from noetic_py import Context, Harness, Memory, Message, SessionPolicy, sequence, step
from noetic_py.checkpoints import CheckpointBackend, Scope
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.errors import LeaseLost, RunBusy, StoreUnavailable
from tests.crash.jobs import Death, DyingBackend, given_lease, prepare
from tests.crash.server import Say

KEY = ("ada", "trip")


@define
class Told:
    """The state of the session."""

    said: list[str] = Factory(list[str])


class Book:
    """A file that bodies write lines to as they begin and end; the witness."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, line: str) -> None:
        """Append a line, at once."""
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{line}\n".encode())
        finally:
            os.close(handle)


def flow_of(given: Mapping[str, Any], say: Say) -> Any:
    """Say something, take it down; answer."""
    book = Book(given["book"])

    @step
    async def note(text: str, ctx: Context[Memory, Told]) -> str:
        book.write(f"note {text}")
        say(["noted", text])
        ctx.items.append(Message.user(text))
        ctx.state.said.append(text)
        if "gate" in given:
            # A pipe: it is read when somebody writes to it.
            await anyio.to_thread.run_sync(Path(given["gate"]).read_bytes)
        await anyio.lowlevel.checkpoint()
        return text

    @step
    async def reply(text: str, ctx: Context[Memory, Told]) -> str:
        book.write(f"reply {text}")
        ctx.items.append(Message.assistant(f"re: {text}"))
        return f"re: {text}"

    return sequence(note, reply)


Opened: TypeAlias = Callable[[str, Death], CheckpointBackend]
"""Opens the backend of an address, which dies when it is told to."""


class _DyingAtValues(DelegatingBackend):
    """Kills its process at what is put and removed too."""

    def __init__(self, inner: CheckpointBackend, death: Death) -> None:
        super().__init__(inner)
        self._death = death

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        self._death.before()
        version = await super().put(scope, key, value, expected=expected)
        self._death.after()
        return version

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        self._death.before()
        removed = await super().remove(scope, key, expected=expected)
        self._death.after()
        return removed


async def _post(given: Any, say: Say, opened: Opened) -> None:
    flow, death = flow_of(given, say), Death(given)
    async with (
        opened(given["store"], death) as backend,
        Harness(plugins=[], checkpoints=_DyingAtValues(backend, death)) as harness,
    ):
        session = harness.session(*KEY)
        for number, text in enumerate(given["texts"]):
            await session.send(text, delivery_id=text)
            say(["sent", text])
            if number % 3 == 2 and (result := await session.next_turn(flow, state=Told())) is not None:
                say(["answered", result.value])
        while given["drain"] and (result := await session.next_turn(flow, state=Told())) is not None:
            say(["answered", result.value])


def post(given: Any, say: Say, opened: Opened = DyingBackend) -> None:
    """Send messages to one session, and do some of its turns; all of them when told to."""
    anyio.run(_post, given, say, opened, backend=given.get("loop", "asyncio"))


async def _converse(given: Any, say: Say, opened: Opened) -> Any:
    flow = flow_of(given, say)
    told: list[Any] = []
    async with opened(given["store"], Death(given)) as backend:
        policy = SessionPolicy(persist=given.get("persist", "run"))
        async with Harness(plugins=[], checkpoints=backend, sessions=policy, lease=given_lease(given)) as harness:
            session = harness.session(*KEY)
            for text in given["texts"]:
                options = {"delivery_id": text} if given.get("deliveries") else {}
                try:
                    result = await session.run(flow, text, state=Told(), **options)
                except (RunBusy, LeaseLost, StoreUnavailable) as error:
                    told.append([text, type(error).__name__])
                else:
                    told.append([text, result.value])
                    say(["answered", text])
    return told


def converse(given: Any, say: Say, opened: Opened = DyingBackend) -> Any:
    """Do turns of one session; returns what each came to."""
    prepare(given)
    return anyio.run(_converse, given, say, opened, backend=given.get("loop", "asyncio"))


async def _read(given: Any, opened: Opened) -> Any:
    async with opened(given["store"], Death(given)) as backend, Harness(plugins=[], checkpoints=backend) as harness:
        session = harness.session(*KEY)
        state = await session.state(Told)
        items = [item.text for item in await session.items() if isinstance(item, Message)]
        return {"items": items, "said": [] if state is None else state.said}


def read(given: Any, say: Say, opened: Opened = DyingBackend) -> Any:
    """What the session holds."""
    return anyio.run(_read, given, opened)
