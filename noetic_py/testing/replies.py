r"""A server on this machine that answers HTTP requests by a script, for tests of providers of models.

It counts connections, so that a test sees whether one was left open, and breaks off where the script says so:

```python
from noetic_py.testing.replies import CUT, Reply, replying

event = b'data: {"text": "High"}\n\n'


async def test_a_stream_that_is_cut() -> None:
    async with replying(Reply([event, CUT])) as server:
        ...  # ask a model at server.url
        await server.all_closed()
```
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketStream
from attrs import define, field, frozen

__all__ = ["CUT", "STALL", "ConnectionHandler", "Piece", "Reply", "ReplyServer", "SeenRequest", "replying", "serving"]

CUT: Literal["cut"] = "cut"
"""Close the connection in the middle of the answer."""
STALL: Literal["stall"] = "stall"
"""Keep the connection open and send nothing more."""

CLOSING_TIMEOUT = 20


Piece: TypeAlias = bytes | Literal["cut", "stall"]
"""A piece of a body, sent by itself; or how the body ends early."""


@frozen
class Reply:
    """The server's answer to one request.

    Attributes:
        pieces: The body in pieces, each sent by itself; `CUT` and `STALL` end it early.
        status: The status.
        headers: Headers besides those of a stream of events, or in their place.
    """

    pieces: Iterable[Piece] = ()
    status: int = 200
    headers: Mapping[str, str] = field(factory=dict[str, str])

    @staticmethod
    def json(value: object, status: int = 200, **headers: str) -> Reply:
        """A reply whose body is a JSON value; headers are written with `_` in the place of `-`."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return Reply([json.dumps(value).encode()], status, {"content-type": "application/json", **named})


@frozen
class SeenRequest:
    """A request that came to the server.

    Attributes:
        path: Its path.
        headers: Its headers, the names in lower case.
        body: Its body, which is JSON.
    """

    path: str
    headers: Mapping[str, str]
    body: Any


@define
class ReplyServer:
    """The server, and what has come to it.

    Attributes:
        port: Its port on 127.0.0.1.
        open: How many connections are open.
        opened: How many were opened.
        requests: The requests so far.
    """

    port: int = 0
    open: int = 0
    opened: int = 0
    requests: list[SeenRequest] = field(factory=list[SeenRequest])
    _changed: anyio.Event = field(factory=anyio.Event, init=False)

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def count(self, change: int) -> None:
        """Note that a connection was opened, 1, or closed, -1."""
        self.open += change
        self.opened += max(change, 0)
        self._changed.set()
        self._changed = anyio.Event()

    async def all_closed(self) -> None:
        """Wait until every connection is closed.

        Raises:
            TimeoutError: One stays open.
        """
        with anyio.fail_after(CLOSING_TIMEOUT):
            while self.open:
                await self._changed.wait()


ConnectionHandler: TypeAlias = Callable[[SocketStream, ReplyServer], Awaitable[None]]
"""Answers what comes on one connection, until it is over."""


@asynccontextmanager
async def replying(*replies: Reply) -> AsyncGenerator[ReplyServer]:
    """A server that answers the first request with the first reply, and so on; for as long as the block lasts."""
    script = iter(replies)

    async def handle(stream: SocketStream, server: ReplyServer) -> None:
        while True:
            server.requests.append(await _request(stream))
            if not await _answer(stream, next(script)):
                return

    async with serving(handle) as server:
        yield server


@asynccontextmanager
async def serving(handle: ConnectionHandler) -> AsyncGenerator[ReplyServer]:
    """A server whose connections are answered by a function; for as long as the block lasts."""
    server = ReplyServer()

    async def counted(stream: SocketStream) -> None:
        server.count(1)
        try:
            async with stream:
                await handle(stream, server)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass
        finally:
            server.count(-1)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server.port = listener.extra_attributes[SocketAttribute.local_port]()
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, counted)
        yield server
        tasks.cancel_scope.cancel()


async def _request(stream: SocketStream) -> SeenRequest:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive()
    return SeenRequest(first.split(" ")[1], headers, json.loads(body or b"null"))


async def _answer(stream: SocketStream, reply: Reply) -> bool:
    """Send a reply; whether the connection may take another request."""
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    await stream.send("\r\n".join([*lines, "", ""]).encode())
    for piece in reply.pieces:
        if isinstance(piece, bytes):
            await stream.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        elif piece == CUT:
            return False
        else:
            # Nothing is sent any more; this ends when the client goes.
            await stream.receive()
    await stream.send(b"0\r\n\r\n")
    return True
