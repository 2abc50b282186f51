"""Limits on the bytes of a provider's response: on a body that is read whole, and on what one packed piece becomes.

The SDK reads the body of an error whole, and the HTTP client that of a redirection; the client unpacks a piece of any
response in one go. So a few packed kilobytes could fill the memory. While a request of this package is under way, a
hook of the HTTP client replaces the client's own unpacking by the one of this module.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    import httpx2

__all__ = ["ACCEPTED", "CLOSE_TIMEOUT", "MAX_BODY", "MAX_SECONDS", "end_reading", "limit_bodies_of", "limited"]

MAX_BODY = 64 * 1024
"""Bytes that are read of the body of an error or a redirection: packed, and unpacked."""
ACCEPTED = "gzip, deflate"
"""The encodings that a request asks for: those that can be unpacked in pieces of a limited size."""
CLOSE_TIMEOUT = 5.0
"""Seconds that closing a connection may take."""

MAX_SECONDS = 10.0
"""How long the body of an error may take; what has come by then is the body."""
_PIECE = 64 * 1024
# The window's size as zlib wants it: a header of gzip or zlib is recognised, or there is no header.
_ANY_HEADER = 47
_NO_HEADER = -15

_active: ContextVar[bool] = ContextVar("noetic_openai_limited", default=False)


@contextmanager
def limited() -> Generator[None]:
    """Limit the bodies of responses to requests of the block."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)


def limit_bodies_of(client: Any) -> None:
    """Have an HTTP client limit bodies inside of `limited`; its other requests are as before.

    Args:
        client: An asynchronous client of httpx2, or of httpx, which has the same hooks.
    """
    hooks: dict[str, list[Any]] = client.event_hooks
    if _limit not in hooks["response"]:
        client.event_hooks = {**hooks, "response": [*hooks["response"], _limit]}


async def _limit(response: httpx2.Response) -> None:
    if not _active.get():
        return
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if response.is_success:
        chunks = _unpacked(response.stream, encoding)
    else:
        chunks = _beginning(response.stream, encoding)
        # The client would decode the text by the codec of the header, and some codecs unpack.
        response.encoding = "utf-8"
    response.stream = _stream(response.stream, chunks)


def _stream(inner: Any, chunks: AsyncGenerator[bytes]) -> Any:
    """A stream of a response, of the class that its client asks for."""
    base = next(each for each in type(inner).__mro__ if each.__name__ == "AsyncByteStream")

    def chunks_of(_: object) -> AsyncGenerator[bytes]:
        return chunks

    async def aclose(_: object) -> None:
        await inner.aclose()

    return type("LimitedStream", (base,), {"__aiter__": chunks_of, "aclose": aclose})()


async def _beginning(stream: Any, encoding: str) -> AsyncGenerator[bytes]:
    """As much of a body as has come when a limit is reached or the connection breaks."""
    import httpx2

    body = bytearray()
    pieces = _unpacked(stream, encoding, MAX_BODY)
    with anyio.move_on_after(MAX_SECONDS), suppress(httpx2.HTTPError, httpx2.StreamError, OSError):
        async with aclosing(pieces):
            async for piece in pieces:
                body += piece
                if len(body) >= MAX_BODY:
                    break
    yield bytes(body[:MAX_BODY])


async def _unpacked(stream: Any, encoding: str, most: int | None = None) -> AsyncGenerator[bytes]:
    """A body in pieces of a limited size; of not more packed bytes than `most`.

    Raises:
        DecodingError: It is damaged, or of another encoding than was asked for.
    """
    import httpx2

    unpacker = _unpacker(encoding)
    received = 0
    chunks = aiter(stream)
    try:
        async for chunk in chunks:
            received += len(chunk)
            for piece in unpacker.pieces(chunk):
                yield piece
            # What comes after the end of packed data is no part of the body, and would be kept by zlib.
            if unpacker.ended or (most is not None and received >= most):
                break
    except zlib.error as error:
        raise httpx2.DecodingError(f"the body is not valid {encoding}") from error
    finally:
        await end_reading(stream, chunks)


def _unpacker(encoding: str) -> _Plain | _Packed:
    import httpx2

    if encoding in ("identity", ""):
        return _Plain()
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Packed()
    raise httpx2.DecodingError(f"{encoding!r:.80} is not an encoding that was asked for")


class _Plain:
    ended = False

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk


class _Packed:
    def __init__(self) -> None:
        self._object = zlib.decompressobj(_ANY_HEADER)
        self._begun = False

    @property
    def ended(self) -> bool:
        return self._object.eof

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        try:
            piece = self._object.decompress(chunk, _PIECE)
        except zlib.error:
            # Some servers send "deflate" without the header that belongs to it.
            if self._begun:
                raise
            self._object = zlib.decompressobj(_NO_HEADER)
            piece = self._object.decompress(chunk, _PIECE)
        self._begun = True
        while piece:
            yield piece
            # A full piece may have left something inside, also where all of the chunk is taken.
            piece = self._object.decompress(self._object.unconsumed_tail, _PIECE) if len(piece) == _PIECE else b""


async def end_reading(response: httpx2.Response | httpx2.AsyncByteStream, chunks: AsyncIterator[bytes]) -> None:
    """Close a response, also one that was left in the middle.

    Args:
        response: The response, or its stream.
        chunks: The iterator it is being read with.
    """
    with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
        await response.aclose()
        # A chain of generators stands behind the iterator, and not each of them closes the next. Reading from what is
        # closed now ends them all; with which error does not matter, since the answer is over.
        with suppress(Exception):
            while await anext(chunks, None) is not None:
                pass
