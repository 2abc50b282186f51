"""An authorization server and MCP servers of the SDK that want its tokens, in a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from secrets import token_hex

import anyio
import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send


class Authority(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The authorization server: every request of a person is granted at once, unless it `refuses`."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.issued: list[str] = []
        self.refuses = self.is_broken = False
        self.needed, self.needed_for = "", "tools/call"
        self.before_renewal: Callable[[RefreshToken], None] = lambda token: None
        self.before_request: Callable[[str], None] = lambda method: None
        self.meets = False
        self.used: set[str] = set()
        self._meeting: list[anyio.Event] = []
        self.logins = self.renewals = 0

    def expire(self) -> None:
        """End all access tokens before their time."""
        self.access.clear()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.refuses:
            raise AuthorizeError("access_denied", "the person says no")
        self.logins += 1
        code = AuthorizationCode(
            code=token_hex(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self.issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        if self.is_broken:
            raise RuntimeError("the authorization server is broken")
        if self.meets:
            await self._meet()
        if refresh_token in self.refresh:
            self.before_renewal(self.refresh[refresh_token])
        elif refresh_token in self.used:
            self.end()
        return self.refresh.get(refresh_token)

    async def _meet(self) -> None:
        """Let a renewal wait a moment for another one, so that two which may come at once do."""
        came = anyio.Event()
        self._meeting.append(came)
        if len(self._meeting) > 1:
            for each in self._meeting:
                each.set()
        with anyio.move_on_after(0.5):
            await came.wait()
        self._meeting.remove(came)

    def end(self) -> None:
        """End the login, as many servers do when a refresh token comes twice: one of the two was stolen."""
        self.refresh.clear()
        self.access.clear()

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.renewals += 1
        if refresh_token.token in self.used:
            self.end()
            raise TokenError("invalid_grant", "the refresh token was used before")
        self.used.add(refresh_token.token)
        del self.refresh[refresh_token.token]
        return self.issue(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def issue(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = f"access-{token_hex(16)}", f"refresh-{token_hex(16)}"
        self.access[access] = AccessToken(token=access, client_id=client_id, scopes=scopes, resource=resource)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes, resource=resource)
        self.issued += [access, refresh]
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600, scope=" ".join(scopes) or None)


class Machines:
    """An authorization server for programs, which the SDK has none of: one client, tokens without a refresh token."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client, self.secret = "robot", "kept-from-texts-robot"
        self.access: dict[str, AccessToken] = {}
        self.needed, self.needed_for = "", "tools/call"
        self.before_request: Callable[[str], None] = lambda method: None

    async def verify_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def metadata(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.address,
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
                "grant_types_supported": ["client_credentials"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            }
        )

    async def token(self, request: Request) -> Response:
        import base64

        wanted = base64.b64encode(f"{self.client}:{self.secret}".encode()).decode()
        form = await request.form()
        if request.headers.get("authorization") != f"Basic {wanted}" or form["grant_type"] != "client_credentials":
            given = request.headers.get("authorization", "")
            return JSONResponse({"error": "invalid_client", "error_description": given}, status_code=401)
        access = f"access-{token_hex(16)}"
        self.access[access] = AccessToken(
            token=access, client_id=self.client, scopes=str(form.get("scope", "")).split()
        )
        return JSONResponse({"access_token": access, "token_type": "bearer", "expires_in": 3600})


class Door:
    """Tells the authority of requests, and refuses those of one method whose token lacks a scope."""

    def __init__(self, app: ASGIApp, authority: Authority | Machines) -> None:
        self._app, self._authority = app, authority

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needed = self._authority.needed
        if scope["type"] == "http":
            request = Request(scope)
            token = self._authority.access.get(request.headers.get("authorization", "").removeprefix("Bearer "))
            method = request.headers.get("mcp-method", "")
            self._authority.before_request(method)
            if needed and method == self._authority.needed_for and token and needed not in token.scopes:
                challenge = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{needed}"'}
                await Response(status_code=403, headers=challenge)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def add_tools(server: MCPServer) -> MCPServer:
    both = anyio.Event()
    waiting: list[str] = []
    counted: list[int] = []

    @server.tool()
    async def count() -> int:
        """How often it was called."""
        counted.append(1)
        return len(counted)

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def meet(name: str) -> str:
        """Wait for another call."""
        waiting.append(name)
        if len(waiting) == 2:
            both.set()
        await both.wait()
        return name

    return server


@contextmanager
def served(
    make: Callable[[], MCPServer], listening: socket.socket, authority: Authority | Machines | None = None
) -> Generator[None]:
    def application() -> ASGIApp:
        app = add_tools(make()).streamable_http_app()
        return app if authority is None else Door(app, authority)

    # Made in the thread, so that its locks are of the loop there.
    config = uvicorn.Config(application, factory=True, log_level="critical", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.force_exit = server.should_exit = True
        thread.join()


@contextmanager
def _listening() -> Generator[tuple[socket.socket, str]]:
    # asyncio sends small answers at once only where the protocol is named.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening, f"http://127.0.0.1:{listening.getsockname()[1]}"


def _settings(address: str, *, registers: bool) -> AuthSettings:
    # As texts: an address that is parsed here would end in a slash.
    return AuthSettings.model_validate(
        {
            "issuer_url": address,
            "resource_server_url": f"{address}/mcp",
            "client_registration_options": ClientRegistrationOptions(enabled=registers),
            "validate_token_resource": registers,
        }
    )


@contextmanager
def guarded() -> Generator[tuple[str, Authority]]:
    """A server for persons: its address, and its authorization server."""
    with _listening() as (listening, address):
        authority = Authority()

        def make() -> MCPServer:
            auth = _settings(address, registers=True)
            return MCPServer("guarded", log_level="CRITICAL", auth_server_provider=authority, auth=auth)

        with served(make, listening, authority):
            yield f"{address}/mcp", authority


@contextmanager
def for_machines() -> Generator[tuple[str, Machines]]:
    """A server for programs: its address, and its authorization server."""
    with _listening() as (listening, address):
        machines = Machines(address)

        def make() -> MCPServer:
            auth = _settings(address, registers=False)
            server = MCPServer("machines", log_level="CRITICAL", token_verifier=machines, auth=auth)
            server.custom_route("/.well-known/oauth-authorization-server", methods=["GET"])(machines.metadata)
            server.custom_route("/token", methods=["POST"])(machines.token)
            return server

        with served(make, listening, machines):
            yield f"{address}/mcp", machines


@contextmanager
def for_all() -> Generator[str]:
    """A server that wants no tokens: its address."""
    with _listening() as (listening, address), served(lambda: MCPServer("open", log_level="CRITICAL"), listening):
        yield f"{address}/mcp"
