"""Sends what a program logs while it serves a request to the client that made it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import get_ident
from typing import Any, Final, get_args
from weakref import finalize

import anyio
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import field, frozen
from mcp import MCPError, types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from noetic_mcp.served_run import Request
from noetic_py.redaction import redact

__all__ = ["ClientLog"]

_LEVELS: Final[tuple[types.LoggingLevel, ...]] = get_args(types.LoggingLevel)
"""From the least to the most severe."""
_LOGGING: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The requests that are served by runs."""
_MOST_WAITING: Final = 1000


@frozen(eq=False)
class _Listener:
    """A client that is told what its request logs."""

    handler: logging.Handler
    tell: MemoryObjectSendStream[types.LoggingMessageNotificationParams]
    loop: EventLoopToken = field(factory=current_token)
    thread: int = field(factory=get_ident)

    def hear(self, message: types.LoggingMessageNotificationParams) -> None:
        """Take a message, in any thread, and without waiting: the code that logs may hold up the event loop."""
        if get_ident() == self.thread:
            self._take(message)
            return
        loop: Any = self.loop.native_token
        # That of asyncio, and that of trio.
        soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        # Once the loop has ended there is no client to tell.
        with suppress(RuntimeError):
            soon(self._take, message)

    def _take(self, message: types.LoggingMessageNotificationParams) -> None:
        # What is logged once the request has ended is not its client's; a client that does not read loses messages.
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.WouldBlock):
            self.tell.send_nowait(message)


_LISTENER: Final[ContextVar[_Listener | None]] = ContextVar("noetic_mcp.listener", default=None)


def _level(number: int) -> types.LoggingLevel:
    """The protocol's name of a level of Python."""
    if number >= logging.ERROR:
        return "critical" if number >= logging.CRITICAL else "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        listener = _LISTENER.get()
        if listener is None or listener.handler is not self:
            return
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - as other handlers: what is wrong with a record does not end who logs
            self.handleError(record)
            return
        error = record.exc_info[1] if record.exc_info else None
        said = text if error is None else f"{text}: {type(error).__name__}: {error}"
        level = _level(record.levelno)
        listener.hear(types.LoggingMessageNotificationParams(level=level, data=redact(said), logger=record.name))


class ClientLog:
    """Tells clients what a logger of the program gets while their requests are served.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger, self._handler, self._requests = logger, _Handler(), 0
        # By the identity of what a client said at its handshake, which all requests of its session have in common.
        self._least: dict[int, types.LoggingLevel] = {}

    def serve(self, server: Server[Any]) -> None:
        """Have a server offer it."""
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self.set_level)
        server.middleware.append(self.follow)

    async def set_level(self, ctx: Request, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Take the least level that a session wants, until it ends."""
        said = ctx.session.client_params
        if said is None:
            raise MCPError(types.INVALID_REQUEST, "there is no session, which a level is set for")
        if id(said) not in self._least:
            finalize(said, self._least.pop, id(said), None)
        self._least[id(said)] = params.level
        return types.EmptyResult()

    def _wanted(self, ctx: Request) -> types.LoggingLevel | None:
        """The least level that the client wants; of later protocols each request says it, and else wants nothing."""
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return self._least.get(id(ctx.session.client_params), "debug")
        asked: object = (ctx.meta or {}).get(LOG_LEVEL_META_KEY)
        return next((level for level in _LEVELS if level == asked), None)

    async def follow(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        """Serve a request, and send meanwhile what it logs."""
        if ctx.method not in _LOGGING or self._wanted(ctx) is None:
            return await call_next(ctx)
        tell, told = anyio.create_memory_object_stream[types.LoggingMessageNotificationParams](_MOST_WAITING)
        result: HandlerResult = None
        raised: Exception | None = None
        with told:
            async with anyio.create_task_group() as group:
                group.start_soon(self._send, ctx, told)
                with tell, self._heard_by(_Listener(self._handler, tell)):
                    try:
                        result = await call_next(ctx)
                    except Exception as error:  # noqa: BLE001 - raised below, not in a group
                        raised = error
        if raised is not None:
            raise raised
        return result

    @contextmanager
    def _heard_by(self, listener: _Listener) -> Generator[None]:
        self._logger.addHandler(self._handler)
        self._requests += 1
        token = _LISTENER.set(listener)
        try:
            yield
        finally:
            _LISTENER.reset(token)
            self._requests -= 1
            if not self._requests:
                self._logger.removeHandler(self._handler)

    async def _send(
        self, ctx: Request, told: MemoryObjectReceiveStream[types.LoggingMessageNotificationParams]
    ) -> None:
        async for message in told:
            least = self._wanted(ctx)
            if least is not None and _LEVELS.index(message.level) >= _LEVELS.index(least):
                await ctx.session.send_notification(
                    types.LoggingMessageNotification(params=message), related_request_id=ctx.request_id
                )
