"""The SDK's clients, made so that the framework alone repeats, waits and limits."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from noetic_openai.wire import Server
from noetic_py.models.http import limit_bodies_of, without_password

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from noetic_py import Secret

__all__ = ["CONNECT_TIMEOUT", "new_client", "tuned"]

CONNECT_TIMEOUT = 10.0
"""Seconds a connection may take to open."""


def new_client(server: Server, api_key: Secret[str]) -> AsyncOpenAI:
    """A client for a server.

    Args:
        server: Where to connect to.
        api_key: The key.
    """
    import openai

    address, auth = without_password(server.base_url)
    http = openai.DefaultAsyncHttpxClient(
        timeout=_timeout(), trust_env=not server.is_loopback, verify=_certificates(), auth=auth
    )
    limit_bodies_of(http)
    return openai.AsyncOpenAI(api_key=api_key.reveal(), base_url=address, http_client=http, max_retries=0)


def tuned(client: AsyncOpenAI) -> AsyncOpenAI:
    """A client that the model's user gave, for the model's own calls; both share their connections."""
    # The SDK has no public name for its HTTP client; without the hook it reads the body of an error whole.
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
