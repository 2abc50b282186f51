"""The SDK's clients, made so that the framework alone repeats, waits, limits and traces."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from noetic_py.models.http import LOOPBACK, host_of, limit_bodies_of, without_password

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.lib.vertex import AsyncAnthropicVertex

    from noetic_py import Secret

__all__ = ["CONNECT_TIMEOUT", "new_client", "tuned"]

CONNECT_TIMEOUT = 10.0
"""Seconds a connection may take to open."""


def new_client(base_url: str | None, api_key: Secret[str]) -> AsyncAnthropic:
    """A client for a server.

    Args:
        base_url: Its address, `None` for Anthropic's own.
        api_key: The key.
    """
    import anthropic

    address, auth = without_password(base_url or "https://api.anthropic.com")
    local = host_of(address) in LOOPBACK
    # No proxy may come between a server of this machine and its client.
    mounts = {f"{scheme}://": None for scheme in ("http", "https", "all")} if local else {}
    http = anthropic.DefaultAsyncHttpxClient(
        timeout=_timeout(), trust_env=not local, mounts=mounts, verify=_certificates(), auth=auth
    )
    limit_bodies_of(http)
    return anthropic.AsyncAnthropic(
        api_key=api_key.reveal(), base_url=address, http_client=http, max_retries=0, open_telemetry=False
    )


def tuned(client: AsyncAnthropic | AsyncAnthropicVertex) -> AsyncAnthropic | AsyncAnthropicVertex:
    """A client that the model's user gave, for the model's own calls; both share their connections."""
    # The SDK has no public name for its HTTP client; without the hook it reads the body of an error whole.
    limit_bodies_of(client._client)  # pyright: ignore[reportPrivateUsage]
    # Repeating is the framework's business, and so is waiting: the budget and the journal see each attempt.
    return client.with_options(max_retries=0, timeout=_timeout())


def _timeout() -> Any:
    import anthropic

    return anthropic.Timeout(None, connect=CONNECT_TIMEOUT)


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()
