"""The SDK's clients: one for each call, or one for each event loop while the model is open."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import anyio
from anyio.lowlevel import current_token
from attrs import define

from noetic_openai.bodies import CLOSE_TIMEOUT, limit_bodies_of
from noetic_openai.wire import Server

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from noetic_py import Secret

__all__ = ["CONNECT_TIMEOUT", "Clients"]

CONNECT_TIMEOUT = 10.0
"""Seconds a connection may take to open."""


@define
class _Open:
    client: AsyncOpenAI
    users: int = 1


class Clients:
    """Hands out the SDK's clients.

    A connection belongs to the event loop it was opened on. So a client lives for one call only, unless somebody opened
    the model on this loop, or gave a client of their own.

    Args:
        server: Where to connect to.
        api_key: The key.
        given: A client that somebody else owns.
    """

    def __init__(self, server: Server, api_key: Secret[str], given: AsyncOpenAI | None) -> None:
        self._server = server
        self._api_key = api_key
        self._given = given
        self._open: dict[Any, _Open] = {}

    @property
    def kept(self) -> bool:
        """Whether the client of a call on this event loop lives on after it."""
        return self._given is not None or current_token() in self._open

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[AsyncOpenAI]:
        """A client for one call."""
        shared = self._open.get(current_token())
        if self._given is not None:
            yield _tuned(self._given)
        elif shared is not None:
            yield shared.client
        else:
            client = self._new()
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
            self._open[current_token()] = _Open(self._new())

    async def close(self) -> None:
        """Undo one `open` on this event loop."""
        shared = self._open.get(current_token())
        if shared is None:
            return
        shared.users -= 1
        if shared.users == 0:
            del self._open[current_token()]
            await _close(shared.client)

    def _new(self) -> AsyncOpenAI:
        import openai

        address, auth = _without_password(self._server.base_url)
        http = openai.DefaultAsyncHttpxClient(
            timeout=_timeout(), trust_env=not self._server.is_loopback, verify=_certificates(), auth=auth
        )
        limit_bodies_of(http)
        return openai.AsyncOpenAI(api_key=self._api_key.reveal(), base_url=address, http_client=http, max_retries=0)


def _without_password(address: str | None) -> tuple[str | None, tuple[str, str] | None]:
    """An address without the user and the password in it, and these: the client writes addresses to its log."""
    parts = urlsplit(address or "")
    if "@" not in parts.netloc:
        return address, None
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host)), (unquote(parts.username or ""), unquote(parts.password or ""))


def _tuned(client: AsyncOpenAI) -> AsyncOpenAI:
    # The SDK has no public name for its HTTP client; it reads the body of an error before anybody can bound it.
    limit_bodies_of(client._client)  # pyright: ignore[reportPrivateUsage]
    # Repeating is the framework's business, and so is waiting: the budget and the journal see each attempt.
    return client.with_options(max_retries=0, timeout=_timeout())


def _timeout() -> Any:
    import openai

    return openai.Timeout(None, connect=CONNECT_TIMEOUT)


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


async def _close(client: AsyncOpenAI) -> None:
    # Also when the call was cancelled: what it opened has to be closed, and that must not take for ever.
    with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
        await client.close()
