"""Servers that fail on purpose: one that answers by a script, and one that stands before a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute, SocketStream
from attrs import define, field

CUT: Literal["cut"] = "cut"
"""Close the connection in the middle."""
STALL: Literal["stall"] = "stall"
"""Keep the connection open and send nothing more."""

Piece: TypeAlias = bytes | Literal["cut", "stall"]


def sse(*events: Any, done: bool = False) -> list[bytes]:
    """Events as the pieces of a stream."""
    pieces = [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in events]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


@define
class Reply:
    """What the scripted server answers to one request."""

    pieces: Iterable[Piece] = ()
    status: int = 200
    headers: dict[str, str] = field(factory=dict[str, str])


def error_reply(status: int, error: object, **headers: str) -> Reply:
    """A reply with an error status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([json.dumps({"error": error}).encode()], status, {"content-type": "application/json", **named})


@define
class Seen:
    """A request the scripted server got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@define
class Connections:
    """How many connections there are and were."""

    port: int = 0
    open: int = 0
    opened: int = 0
    requests: list[Seen] = field(factory=list[Seen])
    _changed: anyio.Event = field(factory=anyio.Event, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def count(self, change: int) -> None:
        self.open += change
        self.opened += max(change, 0)
        self._changed.set()
        self._changed = anyio.Event()

    async def all_closed(self) -> None:
        """Wait until every connection is closed; a leaked one fails the test."""
        with anyio.fail_after(20):
            while self.open:
                await self._changed.wait()


Handler: TypeAlias = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def _serving(state: Connections, handle: Handler) -> AsyncGenerator[Connections]:
    async def counted(stream: SocketStream) -> None:
        state.count(1)
        try:
            async with stream:
                await handle(stream)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass
        finally:
            state.count(-1)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    state.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, counted)
        yield state
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def scripted(*replies: Reply) -> AsyncGenerator[Connections]:
    """A server that answers the first request with the first reply, and so on."""
    state = Connections()
    script = iter(replies)

    async def handle(stream: SocketStream) -> None:
        while True:
            state.requests.append(await _request(stream))
            if not await _answer(stream, next(script)):
                return

    async with _serving(state, handle):
        yield state


@asynccontextmanager
async def endless(piece: bytes) -> AsyncGenerator[Connections]:
    """A server that answers every request with the same bytes for as long as the client takes them."""
    state = Connections()

    async def handle(stream: SocketStream) -> None:
        state.requests.append(await _request(stream))
        while True:
            await stream.send(piece)

    async with _serving(state, handle):
        yield state


async def _request(stream: SocketStream) -> Seen:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += await stream.receive()
    return Seen(first.split(" ")[1], headers, json.loads(body))


async def _answer(stream: SocketStream, reply: Reply) -> bool:
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    await stream.send("\r\n".join([*lines, "", ""]).encode())
    for piece in reply.pieces:
        if isinstance(piece, bytes):
            await stream.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        elif piece == CUT:
            return False
        else:
            # Nobody sends anything now; this ends when the client goes.
            await stream.receive()
    await stream.send(b"0\r\n\r\n")
    return True


@asynccontextmanager
async def proxied(port: int, *, after: int, then: Literal["cut", "stall"]) -> AsyncGenerator[Connections]:
    """A proxy before `127.0.0.1:port` that lets `after` bytes of each connection's answers through."""
    state = Connections()

    async def handle(stream: SocketStream) -> None:
        async with await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as tasks:

            async def back() -> None:
                left = after
                async for data in server:
                    await stream.send(data[:left])
                    left -= len(data)
                    if left <= 0:
                        if then == STALL:
                            await anyio.sleep_forever()
                        break
                tasks.cancel_scope.cancel()

            tasks.start_soon(back)
            await _copy(stream, server)
            tasks.cancel_scope.cancel()

    async with _serving(state, handle):
        yield state


async def _copy(source: ByteReceiveStream, sink: ByteSendStream) -> None:
    async for data in source:
        await sink.send(data)
