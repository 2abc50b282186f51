"""The SDK's clients, made so that the framework alone repeats, waits and limits; on asyncio and on trio."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py.models.http import ACCEPTED, LOOPBACK, host_of, limit_bodies_of, without_password

if TYPE_CHECKING:
    import httpx2
    from google.auth.credentials import Credentials
    from google.genai.client import AsyncClient, Client

    from noetic_py import Secret

__all__ = ["CONNECT_TIMEOUT", "Account", "GoogleClient", "new_client"]

CONNECT_TIMEOUT = 10.0
"""Seconds a connection may take to open."""


@frozen
class Account:
    """Where a model is, and what signs its requests.

    Attributes:
        vertex: Whether it is asked at Vertex AI.
        api_key: The key, `None` where credentials sign.
        project: The project at Google Cloud.
        location: Its location there.
        credentials: The credentials; `None` for those that the environment has.
    """

    vertex: bool
    api_key: Secret[str] | None
    project: str | None
    location: str | None
    credentials: Credentials | None


class GoogleClient:
    """A client of the SDK and the HTTP client that it sends with.

    Args:
        sdk: The SDK's client.
        http: The HTTP client, which the SDK leaves open.
    """

    def __init__(self, sdk: Client, http: httpx2.AsyncClient) -> None:
        self._sdk = sdk
        self._http = http

    @property
    def aio(self) -> AsyncClient:
        """The SDK's asynchronous side."""
        return self._sdk.aio

    async def close(self) -> None:
        """Close the connections."""
        self._sdk.close()
        await self._http.aclose()


def new_client(base_url: str | None, account: Account) -> GoogleClient:
    """A client for a server.

    The SDK's own HTTP client keeps its connections by loops of asyncio. So it gets one of ours, which runs on trio too
    and limits what it reads.

    Args:
        base_url: Its address, `None` for Google's own.
        account: What signs the requests.
    """
    import httpx2
    from google import genai
    from google.genai.types import HttpOptions

    address, auth = without_password(base_url)
    local = host_of(address) in LOOPBACK
    # No proxy may come between a server of this machine and its client.
    mounts = {f"{scheme}://": None for scheme in ("http", "https", "all")} if local else {}
    certificates = _certificates()
    http = httpx2.AsyncClient(
        headers={"Accept-Encoding": ACCEPTED},
        trust_env=not local,
        mounts=mounts,
        verify=certificates,
        auth=auth,
        event_hooks={"request": [_bound_connecting]},
    )
    limit_bodies_of(http)
    verify = {"verify": certificates}
    # The SDK makes clients besides, which nothing uses: with certificates that are read once they cost nothing.
    options = HttpOptions(
        base_url=address, httpx_async_client=http, client_args=verify, async_client_args={**verify, "ssl": certificates}
    )
    sdk = genai.Client(
        vertexai=account.vertex,
        api_key=account.api_key.reveal() if account.api_key is not None else None,
        project=account.project,
        location=account.location,
        credentials=account.credentials,
        http_options=options,
    )
    return GoogleClient(sdk, http)


async def _bound_connecting(request: httpx2.Request) -> None:
    # The SDK sends without any time limit of the HTTP client's; the model bounds the rest itself.
    limits: dict[str, Any] = request.extensions.get("timeout", {})
    request.extensions = {**request.extensions, "timeout": {**limits, "connect": CONNECT_TIMEOUT}}


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()
