"""Helpers for providers' HTTP clients: clients for each event loop, limits on bodies, waits.

For clients of httpx2, and of httpx, which has the same hooks. This module imports neither: it is handed their objects.

An SDK reads the body of an error whole, and the HTTP client that of a redirection; the client unpacks a piece of any
response in one go. So a few packed kilobytes could fill the memory. While a request is under way inside of `limited`, a
hook of the HTTP client replaces the client's own unpacking by the one of this module.
"""

from __future__ import annotations

import math
import sys
import zlib
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import anyio
from anyio.lowlevel import current_token
from attrs import define

from noetic_py.core.runtime import SYSTEM
from noetic_py.errors import ConfigError

MAX_BODY: Final = 64 * 1024
"""Bytes that are read of the body of an error or a redirection: packed, and unpacked."""
ACCEPTED: Final = "gzip, deflate"
"""The encodings that a request asks for: those that can be unpacked in pieces of a limited size."""
MAX_EVENT: Final = 32 * 1024 * 1024
"""Bytes that an event of a stream may have."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
"""The names of this machine, between which and a client no proxy may come."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds that closing a connection may take."""

MAX_SECONDS: Final = 10.0
"""How long the body of an error may take; what has come by then is the body."""
_PIECE = 64 * 1024
# The window's size as zlib wants it: a header of gzip or zlib is recognised, or there is no header.
_ANY_HEADER = 47
_NO_HEADER = -15

E = TypeVar("E")

_active: ContextVar[ReceivedBytes | None] = ContextVar("noetic_py_limited_bodies", default=None)


class ReceivedBytes:
    """The received answer to a request made inside `limited`.

    An SDK's stream hides the bytes, and the signs of life between its events. So `next_of` watches them.

    Attributes:
        response: The response of the HTTP client, for SDKs that hide it too; `None` before it has begun.
    """

    __slots__ = ("_decoder", "_idle", "_scope", "_unread", "response")

    def __init__(self) -> None:
        self.response: Any = None
        self._unread = 0
        self._decoder = getincrementaldecoder("utf-8")()
        self._idle = math.inf
        self._scope: anyio.CancelScope | None = None

    async def next_of(self, events: AsyncIterator[E], idle: float) -> E | None:
        """The next event of an SDK's stream, `None` at its end.

        Args:
            events: The stream.
            idle: Seconds without a byte after which it counts as stalled.

        Raises:
            TimeoutError: It has stalled.
            ValueError: The event is larger than `MAX_EVENT`, or no UTF-8.
        """
        self._unread, self._idle = 0, idle
        event: E | None = None
        with anyio.move_on_after(idle) as scope:
            self._scope = scope
            try:
                event = await anext(events, None)
            finally:
                self._scope = None
        if scope.cancelled_caught:
            raise TimeoutError
        return event

    def add(self, chunk: bytes) -> None:
        """Note that bytes have come.

        What an SDK would raise itself in the middle of its reading would leave the reading open, so it is raised here.

        Raises:
            ValueError: An event is larger than `MAX_EVENT`, or no UTF-8.
        """
        if self._scope is None:
            return
        self._decoder.decode(chunk)
        self._unread += len(chunk)
        if self._unread > MAX_EVENT:
            raise ValueError(f"an event is larger than {MAX_EVENT} bytes")
        self._scope.deadline = anyio.current_time() + self._idle


@contextmanager
def limited() -> Generator[ReceivedBytes]:
    """Limit the bodies of responses to requests of the block."""
    received = ReceivedBytes()
    token = _active.set(received)
    try:
        yield received
    finally:
        _active.reset(token)


def limit_bodies_of(client: Any) -> None:
    """Have an HTTP client limit bodies inside of `limited`; its other requests are as before.

    Args:
        client: An asynchronous client.
    """
    hooks: dict[str, list[Any]] = client.event_hooks
    if _limit not in hooks["response"]:
        client.event_hooks = {**hooks, "response": [*hooks["response"], _limit]}


async def _limit(response: Any) -> None:
    received = _active.get()
    if received is None:
        return
    received.response = response
    library = sys.modules[type(response).__module__.partition(".")[0]]
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if response.is_success:
        chunks = _counted(_unpacked(response.stream, encoding, library), received)
    else:
        chunks = _beginning(response.stream, encoding, library)
        # The client would decode the text by the codec of the header, and some codecs unpack.
        response.encoding = "utf-8"
    response.stream = _stream(response.stream, chunks)


async def _counted(chunks: AsyncGenerator[bytes], received: ReceivedBytes) -> AsyncGenerator[bytes]:
    async with aclosing(chunks):
        async for chunk in chunks:
            received.add(chunk)
            yield chunk


def _stream(inner: Any, chunks: AsyncGenerator[bytes]) -> object:
    """A stream of a response, of the class that its client asks for."""
    base = next(each for each in type(inner).__mro__ if each.__name__ == "AsyncByteStream")

    def chunks_of(_: object) -> AsyncGenerator[bytes]:
        return chunks

    async def aclose(_: object) -> None:
        await inner.aclose()

    return type("LimitedStream", (base,), {"__aiter__": chunks_of, "aclose": aclose})()


async def _beginning(stream: object, encoding: str, library: Any) -> AsyncGenerator[bytes]:
    """Read a body until a limit is reached or the connection breaks, and return the part that has come."""
    body = bytearray()
    pieces = _unpacked(stream, encoding, library, MAX_BODY)
    with anyio.move_on_after(MAX_SECONDS), suppress(library.HTTPError, library.StreamError, OSError):
        async with aclosing(pieces):
            async for piece in pieces:
                body += piece
                if len(body) >= MAX_BODY:
                    break
    yield bytes(body[:MAX_BODY])


async def _unpacked(stream: Any, encoding: str, library: Any, most: int | None = None) -> AsyncGenerator[bytes]:
    """A body in pieces of a limited size; of not more packed bytes than `most`.

    Raises:
        DecodingError: Of the client's library: it is damaged, or of another encoding than was asked for.
    """
    unpacker = _unpacker(encoding)
    if unpacker is None:
        raise library.DecodingError(f"{encoding!r:.80} is not an encoding that was asked for")
    received = 0
    chunks = aiter(stream)
    try:
        async for chunk in chunks:
            received += len(chunk)
            for piece in unpacker.pieces(chunk):
                yield piece
            # Bytes after the end of packed data are not part of the body, and zlib would keep them.
            if unpacker.ended or (most is not None and received >= most):
                break
    except zlib.error as error:
        raise library.DecodingError(f"the body is not valid {encoding}") from error
    finally:
        await end_reading(stream, chunks)


def _unpacker(encoding: str) -> _Plain | _Packed | None:
    if encoding in ("identity", ""):
        return _Plain()
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Packed()
    return None


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


class ClosableResponse(Protocol):
    """A response, or its stream."""

    def aclose(self) -> Awaitable[object]:
        """Close it."""
        ...


async def end_reading(response: ClosableResponse, chunks: AsyncIterator[object]) -> None:
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


# ---------------------------------------------------------------------------------------------------- clients


class ClosableClient(Protocol):
    """A client of an SDK."""

    def close(self) -> Awaitable[None]:
        """Close its connections."""
        ...


C = TypeVar("C", bound=ClosableClient)


@define
class _OpenClient(Generic[C]):
    client: C
    users: int = 1


class LoopClients(Generic[C]):
    """Hands out an SDK's clients.

    A connection belongs to the event loop it was opened on. So a client lives for one call only, unless the model was
    opened on this loop, or its user gave a client.

    Args:
        make: Makes a client.
        given: A client that its user closes.
    """

    def __init__(self, make: Callable[[], C], given: C | None = None) -> None:
        self._make = make
        self._given = given
        self._open: dict[object, _OpenClient[C]] = {}

    @property
    def kept(self) -> bool:
        """Whether the client of a call on this event loop lives on after it."""
        return self._given is not None or current_token() in self._open

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[C]:
        """A client for one call."""
        shared = self._open.get(current_token())
        if self._given is not None:
            yield self._given
        elif shared is not None:
            yield shared.client
        else:
            client = self._make()
            try:
                yield client
            finally:
                await _close(client)

    async def open(self) -> None:
        """Keep connections open on this event loop until `close`; may be nested."""
        shared = self._open.get(current_token())
        if shared is not None:
            shared.users += 1
        elif self._given is None:
            self._open[current_token()] = _OpenClient(self._make())

    async def close(self) -> None:
        """Undo one `open` on this event loop."""
        shared = self._open.get(current_token())
        if shared is None:
            return
        shared.users -= 1
        if shared.users == 0:
            del self._open[current_token()]
            await _close(shared.client)


async def _close(client: ClosableClient) -> None:
    # Also when the call was cancelled: what it opened has to be closed, and that must not take for ever.
    with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
        await client.close()


def check_asyncio(model: str, reason: str, hint: str) -> None:
    """Refuse to ask a model on another event loop than asyncio.

    Args:
        model: The model's name.
        reason: What needs asyncio, as the subject of "on asyncio only".
        hint: What can be done instead of changing the loop.

    Raises:
        ConfigError: The loop is another one; code `"model-loop"`.
    """
    # "asyncio.exceptions" or "trio": anyio does not give the loop's name.
    loop = anyio.get_cancelled_exc_class().__module__.partition(".")[0]
    if loop != "asyncio":
        raise ConfigError(
            f"{model} cannot be asked on {loop}; {reason} on asyncio only",
            code="model-loop",
            hint=f"run the program on asyncio, or {hint}",
        )


def check_address(address: str) -> None:
    """Refuse an address that an SDK cannot append its paths to, and would show in its errors and its log.

    Raises:
        ConfigError: It has parameters, a fragment or an invalid port; code `"model-address"`. The message
            shows nothing of it.
    """
    try:
        parts = urlsplit(address)
        valid = not parts.query and not parts.fragment and (parts.port is None or parts.port >= 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(
            "base_url= is not a valid address of a model's server; expected a URL without parameters",
            code="model-address",
            hint='"http://127.0.0.1:8000/v1"; give an SDK client of your own (client=) for parameters and headers',
        )


def host_of(address: str | None) -> str:
    """The host's name in an address; empty for none."""
    return (urlsplit(address).hostname or "") if address else ""


def shown_host(address: str | None, home: str) -> str:
    """Host and port of a server, as errors name them; of an address with a password nothing, however it is read.

    Args:
        address: The server's address, `None` for the provider's own.
        home: The provider's own.
    """
    if address is None or "@" not in address:
        return urlsplit(address or home).netloc or repr(address)
    return "the address of base_url="


def without_password(address: str | None) -> tuple[str | None, tuple[str, str] | None]:
    """An address without the user and the password in it, and these: an HTTP client writes addresses to its log."""
    parts = urlsplit(address or "")
    if "@" not in parts.netloc:
        return address, None
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host)), (unquote(parts.username or ""), unquote(parts.password or ""))


# ---------------------------------------------------------------------------------------------------- headers


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds a provider asks to wait, `None` when it does not say.

    Args:
        headers: The response's headers, with names in lower case or a mapping that does not mind.
    """
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return millis / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        return None
    return max(0.0, (until - _date(headers.get("date"))).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def _date(text: str | None) -> datetime:
    # The provider's own clock, so that a machine whose clock is wrong does not wait for hours.
    try:
        date = parsedate_to_datetime(text or "")
    except ValueError:
        return SYSTEM.now()
    return date if date.tzinfo is not None else SYSTEM.now()
