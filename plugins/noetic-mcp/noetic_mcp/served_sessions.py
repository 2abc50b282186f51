"""Tells clients of protocols before 2026-07-28 what has changed: they subscribe for a session, and not by a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio
from attrs import define, field
from mcp import MCPError, types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ResourceUpdated, ServerEvent, SubscriptionBus
from mcp.shared.subscriptions import event_to_notification

from noetic_mcp.served_run import Request

__all__ = ["AnnouncingServer", "Sessions"]

_MOST_URIS: Final = 1000


class AnnouncingServer(Server[Any]):
    """A server that says by `listChanged` that it announces changes, also to clients that begin with a handshake."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """What a client is told at the handshake."""
        announced = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(
            notification_options or announced, experimental_capabilities, extensions
        )


@define(eq=False)
class _Session:
    """What a client wants to be told of, and what it has not been told yet: the same change once."""

    uris: set[str] = field(factory=set[str])
    untold: dict[ServerEvent, None] = field(factory=dict[ServerEvent, None])
    changed: anyio.Event = field(factory=anyio.Event)

    def hear(self, event: ServerEvent) -> None:
        if not isinstance(event, ResourceUpdated) or event.uri in self.uris:
            self.untold[event] = None
            self.changed.set()

    async def next(self) -> Sequence[ServerEvent]:
        await self.changed.wait()
        self.changed = anyio.Event()
        found, self.untold = tuple(self.untold), {}
        return found


class Sessions:
    """The sessions that are open.

    Args:
        changes: Where changes are announced.
    """

    def __init__(self, changes: SubscriptionBus) -> None:
        self._changes = changes
        # By the identity of what a client said at its handshake, which all requests of its session have in common.
        self._open: dict[int, _Session] = {}

    def serve(self, server: Server[Any], *, resources: bool) -> None:
        """Have a server announce changes, and take subscriptions if it has resources."""
        server.add_notification_handler("notifications/initialized", types.NotificationParams, self.announce)
        if resources:
            server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.subscribe)
            server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe)

    async def announce(self, ctx: Request, params: types.NotificationParams | None) -> None:
        """Tell a client of changes.

        As the handler of `notifications/initialized` it is cancelled when the session ends.
        """
        said = ctx.session.client_params
        if said is None or id(said) in self._open:
            return
        session = self._open[id(said)] = _Session()
        unsubscribe = self._changes.subscribe(session.hear)
        try:
            while True:
                for event in await session.next():
                    await ctx.session.send_notification(event_to_notification(event, {}))
        finally:
            unsubscribe()
            del self._open[id(said)]

    async def subscribe(self, ctx: Request, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Tell a client of changes of a resource."""
        uris = self._session(ctx).uris
        if len(uris) >= _MOST_URIS:
            raise MCPError(types.INVALID_REQUEST, f"a session may subscribe to {_MOST_URIS} resources")
        uris.add(str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Request, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        """Tell a client no more of changes of a resource."""
        self._session(ctx).uris.discard(str(params.uri))
        return types.EmptyResult()

    def _session(self, ctx: Request) -> _Session:
        session = self._open.get(id(ctx.session.client_params))
        if session is None:
            raise MCPError(types.INVALID_REQUEST, "the session has not been initialized")
        return session
