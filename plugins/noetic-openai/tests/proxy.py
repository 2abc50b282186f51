"""What servers of OpenAI's interface send; a server without an end, and one before a real one that breaks off."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketStream

from noetic_py.testing.replies import STALL, Reply, ReplyServer, serving


def sse(*events: Any, done: bool = False) -> list[bytes]:
    """Events as the pieces of a stream."""
    pieces = [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in events]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def error_reply(status: int, error: object, **headers: str) -> Reply:
    """A reply with an error status."""
    return Reply.json({"error": error}, status, **headers)


def endless(piece: bytes) -> AbstractAsyncContextManager[ReplyServer]:
    """A server that answers every request with the same bytes for as long as the client takes them."""

    async def handle(stream: SocketStream, _: ReplyServer) -> None:
        await stream.receive()
        while True:
            await stream.send(piece)

    return serving(handle)


def proxied(port: int, *, after: int, then: Literal["cut", "stall"]) -> AbstractAsyncContextManager[ReplyServer]:
    """A proxy before `127.0.0.1:port` that lets `after` bytes of each connection's answers through."""

    async def handle(stream: SocketStream, _: ReplyServer) -> None:
        async with await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as tasks:

            async def back() -> None:
                left = after
                with suppress(anyio.BrokenResourceError):
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

    return serving(handle)


async def _copy(source: ByteReceiveStream, sink: ByteSendStream) -> None:
    with suppress(anyio.BrokenResourceError):
        async for data in source:
            await sink.send(data)
