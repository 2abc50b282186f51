"""One connection to a server: opened, watched and closed by one task."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import anyio
from anyio.abc import TaskStatus
from mcp import MCPError, types
from mcp.client import Client
from mcp.client.subscriptions import SubscriptionLost

from noetic_mcp.errors import McpError
from noetic_mcp.framing import END_CONNECTION
from noetic_mcp.requests import CallRequests, Features

__all__ = ["Connection", "OpenTransport", "first_reason"]

OpenTransport = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the two streams of a transport."""
_TOOLS_CHANGED: Final = "notifications/tools/list_changed"


class Connection:
    """A connection from its start to its loss.

    Attributes:
        ready: Set when the handshake is done, or has failed.
        lost: Set when the connection is of no more use.
        client: The SDK's client, while it is connected.
        failure: Why it could not be opened, or was ended by this side.
        malformed: How many frames were not valid messages.
        changes: How often the server has said that its list of tools changed.
        listens: Whether such a change is heard.
        calls: The calls of tools under way that answer what the server asks for.

    Args:
        features: What the server may ask for.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self.ready = anyio.Event()
        self.lost = anyio.Event()
        self.client: Client | None = None
        self.failure: str | McpError | None = None
        self.malformed = 0
        self.changes = 0
        self.listens = False
        self.calls: set[CallRequests] = set()

    async def hold(self, transport: OpenTransport, start_timeout: float) -> None:
        """Open the connection, and hold it until it is lost or the task is cancelled."""
        try:
            # Its deadline goes once the handshake is done: a scope inside could not be left before the client's own.
            with anyio.CancelScope(deadline=anyio.current_time() + start_timeout) as scope:
                await self._open(transport, scope)
            if scope.cancelled_caught:
                self.failure = f"the handshake was not done within {start_timeout:g} s"
        except* Exception as errors:  # noqa: BLE001 - whatever a transport raises means that there is no connection
            # The task that cancels this one may be in the same group, and goes on.
            if not self.ready.is_set() and not isinstance(self.failure, McpError):
                self.failure = first_reason(errors)
        finally:
            self.abandon(self.failure or "it ended at once")

    def end(self, why: str | McpError) -> None:
        """End it: the server has sent what cannot be read, or wants a login."""
        self.failure = why
        self.lost.set()

    def abandon(self, why: str | McpError) -> None:
        """Wake the waiters: the connection is unusable."""
        if not self.ready.is_set():
            self.failure = why
        self.client = None
        self.lost.set()
        self.ready.set()

    async def _open(self, transport: OpenTransport, scope: anyio.CancelScope) -> None:
        async with Client(_watched(transport, self), cache=None, **self._callbacks()) as client:
            scope.deadline = math.inf
            tools = client.server_capabilities.tools
            announces = tools is not None and bool(tools.list_changed)
            self.client = client
            async with anyio.create_task_group() as group:
                if announces and client.session.discover_result is not None:
                    await group.start(self._listen, client)
                else:
                    # Before 2026-07-28 a server tells of changes without being asked.
                    self.listens = announces
                self.ready.set()
                await self.lost.wait()
                group.cancel_scope.cancel()

    @property
    def asks_in_answers(self) -> bool:
        """Whether the server asks in answers to calls, as it does since 2026-07-28, and not over the connection."""
        return self.client is not None and self.client.session.discover_result is not None

    def _callbacks(self) -> dict[str, Any]:
        """What the server may ask for over the connection; the SDK tells it so in the handshake."""
        features, found = self._features, dict[str, Any]()
        if features.roots:

            async def roots(context: object) -> types.ListRootsResult:
                return types.ListRootsResult(roots=list(features.roots))

            found["list_roots_callback"] = roots
        if features.elicitation:

            async def elicit(context: object, params: types.ElicitRequestParams) -> Any:
                return await self._asked(types.ElicitRequest(params=params))

            found["elicitation_callback"] = elicit
        if features.sampling is not None:

            async def sample(context: object, params: types.CreateMessageRequestParams) -> Any:
                return await self._asked(types.CreateMessageRequest(params=params))

            found["sampling_callback"] = sample
        return found

    async def _asked(self, request: types.InputRequest) -> Any:
        """Hand a request to the call that it is of: the protocol does not say which one that is."""
        calls = tuple(self.calls)
        if self.asks_in_answers or len(calls) != 1:
            why = "several calls are under way" if len(calls) > 1 else "no call is under way"
            return types.ErrorData(
                code=types.INVALID_REQUEST, message=f"{why}, so the request belongs to none; make one call at a time"
            )
        return await calls[0].ask(request)

    async def _listen(self, client: Client, *, task_status: TaskStatus[None]) -> None:
        """Have a server since 2026-07-28 tell of changes; where it does not, its tools are listed each time."""
        try:
            async with client.listen(tools_list_changed=True) as events:
                self.listens = True
                task_status.started()
                async for _ in events:
                    pass
        except (MCPError, SubscriptionLost, TimeoutError):
            if not self.listens:
                task_status.started()
        finally:
            self.listens = False

    def saw(self, message: object) -> None:
        """Note incoming messages before the answers after them are delivered."""
        if isinstance(message, Exception):
            self.malformed += 1
        elif getattr(getattr(message, "message", None), "method", None) == _TOOLS_CHANGED:
            self.changes += 1


def first_reason(error: BaseException) -> str:
    """The first exception in a group, in words."""
    inner: object = error
    while isinstance(inner, BaseException):
        error, inner = inner, next(iter(getattr(inner, "exceptions", ())), None)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@asynccontextmanager
async def _watched(transport: OpenTransport, connection: Connection) -> AsyncGenerator[Any]:
    END_CONNECTION.set(connection.end)
    async with transport() as (reads, writes):
        yield _Watched(reads, connection), writes


class _Watched:
    """A stream of messages that tells its connection of each, and of its end."""

    def __init__(self, stream: Any, connection: Connection) -> None:
        self._stream, self._connection = stream, connection

    async def receive(self) -> Any:
        try:
            message = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._connection.lost.set()
            raise
        self._connection.saw(message)
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        # The SDK looks for `last_context` on streams that have it.
        return getattr(self._stream, name)
