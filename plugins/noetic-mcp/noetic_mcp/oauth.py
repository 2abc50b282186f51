"""OAuth for servers over HTTP: a person logs in once, and a file keeps the login; or a program logs in by itself."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import compare_digest, token_hex
from typing import Any, Final, NoReturn
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import httpx2
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import field, frozen
from attrs.converters import optional
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_scope_from_www_auth, union_scopes
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, Field, PrivateAttr, ValidationError
from typing_extensions import override

from noetic_mcp.errors import McpError, McpLoginFailed, McpLoginRequired, McpUnavailable
from noetic_mcp.framing import END_CONNECTION
from noetic_py import Secret
from noetic_py.errors import ConfigError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["OAuth", "OAuthClientCredentials", "OpenHttp", "authentication", "log_in"]

OpenHttp = Callable[[httpx2.Auth], AbstractAsyncContextManager[Any]]
"""Opens the streams of a server over HTTP, with what authenticates its requests."""
_PATH: Final = "/callback"
_CODE: Final = re.compile(r"[a-z_]{1,40}")
_SCOPES: Final = re.compile(r"[!#-\[\]-~]+( [!#-\[\]-~]+)*")
_LONGEST_SCOPES: Final = 1000
_ATTEMPTS: Final = 2
_LONG_AGO: Final = 1.0
_ANSWERED: Final = "noetic_mcp_answered"
_LONGEST_HEAD: Final = 16 * 1024
_HEAD_SECONDS: Final = 10.0
_LOCK_PAUSE: Final = 0.02


def _as_path(storage: str | Path) -> Path:
    return Path(storage).expanduser()


def _as_secret(value: str | Secret[str]) -> Secret[str]:
    return value if isinstance(value, Secret) else Secret(value)


@frozen
class OAuth:
    """The login of a person, for `auth=` of [`McpServer.streamable_http`][noetic_mcp.McpServer.streamable_http].

        docs = McpServer.streamable_http("docs", "https://docs.example.com/mcp", auth=OAuth("docs-login.json"))
        anyio.run(docs.login)

    [`login`][noetic_mcp.McpServer.login] shows the address where the person logs in. The tokens are stored in a file
    that only its owner can read, are renewed without the person, and are sent to this server only. Without a valid
    login requests raise `McpLoginRequired`; they do not wait for a person.

    Attributes:
        storage: The file for the login; made by the login. Use one for each server and account, and delete it to log
            in as another person.
        redirect_port: The port on this machine that the browser comes back to, at `http://127.0.0.1:PORT/callback`; a
            free one by default. Set it where the client is registered by hand.
        client_id: The client's id, where it is registered by hand; by default each login registers a client.
        client_secret: The client's secret. No error and no log of the library shows it, and it is not stored.

    Raises:
        ConfigError: A secret without a client's id; code `"mcp-option"`.
    """

    storage: Path = field(converter=_as_path)
    redirect_port: int = field(default=0, kw_only=True)
    client_id: str | None = field(default=None, kw_only=True)
    client_secret: Secret[str] | None = field(default=None, kw_only=True, converter=optional(_as_secret))

    def __attrs_post_init__(self) -> None:
        if self.client_secret is not None and self.client_id is None:
            raise ConfigError(
                "client_secret= without client_id= is not a valid client; expected both", code="mcp-option"
            )


@frozen
class OAuthClientCredentials:
    """The login of a program, for `auth=` of [`McpServer.streamable_http`][noetic_mcp.McpServer.streamable_http].

    Tokens are requested when they are needed, and not stored.

    Attributes:
        client_id: The id of the program.
        client_secret: Its secret. No error and no log of the library shows it.
        issuer: The address of the authorization server that gave them out. They are sent to no other.
    """

    client_id: str
    client_secret: Secret[str] = field(converter=_as_secret)
    issuer: str = field(kw_only=True)


def authentication(auth: OAuth | OAuthClientCredentials | httpx2.Auth, name: str, url: str) -> httpx2.Auth:
    """What authenticates the requests of one connection; what the SDK knows of tokens is of one event loop.

    Args:
        auth: As the server's `auth=`.
        name: The server's name.
        url: Its address.
    """
    if isinstance(auth, OAuth):

        async def refuse(address: str = "") -> NoReturn:
            raise _required(auth, name)

        storage = _TokenFile(auth, url)
        provider = OAuthClientProvider(url, _ClientMetadata(auth.redirect_port), storage, refuse, refuse)
        storage.context = provider.context
        return _Authentication(provider, name, storage, partial(_required, auth, name))
    if isinstance(auth, OAuthClientCredentials):
        # It imports cryptography, which takes a quarter of a second.
        from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

        secret = auth.client_secret.reveal()
        return _Authentication(
            ClientCredentialsOAuthProvider(url, _Nowhere(), auth.client_id, secret, issuer=auth.issuer), name
        )
    return auth


async def log_in(
    auth: OAuth, name: str, url: str, connect: OpenHttp, show: Callable[[str], object] | None, timeout: float
) -> None:
    """Log in at a server, unless the stored login is valid; see [`McpServer.login`][noetic_mcp.McpServer.login]."""
    try:
        with anyio.fail_after(timeout):
            file = _TokenFile(auth, url)
            with suppress(McpLoginRequired):
                if await file.wanted() is None:
                    await _greet(name, connect(authentication(auth, name, url)))
                    return
            # A server may say during the login that it needs more rights than it has named before.
            for _ in range(_ATTEMPTS):
                with suppress(McpLoginRequired):
                    shown = show or partial(_show_address, name)
                    await _ask_person(auth, name, url, connect, shown, await file.wanted())
                    return
    except TimeoutError:
        raise McpLoginFailed(
            f"the login was not completed within {timeout:g} s",
            server=name,
            hint="call login() again and open the address that it shows; timeout= allows more time",
        ) from None
    raise McpLoginFailed(
        "it refuses the login, which does not have the rights that it needs",
        server=name,
        hint="log in with an account that has them",
    )


async def _ask_person(
    auth: OAuth, name: str, url: str, connect: OpenHttp, show: Callable[[str], object], scopes: str | None
) -> None:
    """Have a person log in, with `scopes` besides those that the server names."""
    try:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=auth.redirect_port)
    except OSError:
        raise McpLoginFailed(
            f"the port {auth.redirect_port} of this machine is in use",
            server=name,
            hint="end the program that has it, or set another redirect_port=",
        ) from None
    async with listener:
        redirect = _Redirect(listener, name)
        storage = _TokenFile(auth, url, ignored=True)

        async def begin(address: str) -> None:
            # How a client sends its secret depends on the authorization server, which is known by now.
            context = storage.context
            context.client_info = _own_client(auth, context.oauth_metadata) or context.client_info
            redirect.expect(address)
            show(address)

        port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610  # nosec B610  # anyio's, and not Django's
        provider = OAuthClientProvider(url, _ClientMetadata(port, scopes), storage, begin, redirect.wait)
        storage.context = provider.context
        await _greet(name, connect(_Authentication(provider, name, storage, partial(_required, auth, name))))


def _show_address(name: str, address: str) -> None:
    # The standard output may be a connection.
    sys.stderr.write(f"Open this address to log in to {name!r}:\n{address}\n")
    sys.stderr.flush()


def _required(auth: OAuth, name: str, scopes: str | None = None) -> McpLoginRequired:
    login = f"with anyio.run({name.replace('-', '_')}.login)"
    if scopes is not None:
        return McpLoginRequired(
            f"its login in {auth.storage} does not have the rights {scopes!r}, which this needs; log in again {login}",
            server=name,
            hint="the next login requests these rights too",
        )
    return McpLoginRequired(
        f"there is no valid login for it in {auth.storage}; log in once {login}",
        server=name,
        hint="for another account, delete the file first",
    )


def _own_client(auth: OAuth, metadata: OAuthMetadata | None) -> OAuthClientInformationFull | None:
    """The client that is registered by hand, if there is one."""
    if auth.client_id is None:
        return None
    secret, method = None, "none"
    if auth.client_secret is not None:
        offered = (metadata and metadata.token_endpoint_auth_methods_supported) or ["client_secret_basic"]
        secret = auth.client_secret.reveal()
        method = "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"
    return OAuthClientInformationFull(client_id=auth.client_id, client_secret=secret, token_endpoint_auth_method=method)


class _ClientMetadata(OAuthClientMetadata):
    """What the client registers with; adds scopes to those that the SDK takes from the server before."""

    _more: str | None = PrivateAttr(None)

    def __init__(self, port: int, more: str | None = None) -> None:
        super().__init__(redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}{_PATH}")], client_name="noetic_py")
        self._more = more

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, union_scopes(value, self._more) if name == "scope" else value)


async def _greet(name: str, transport: AbstractAsyncContextManager[Any]) -> None:
    """Connect and list the tools: a server may ask for a login with the first request, or not before this one."""
    try:
        async with Client(transport, cache=None) as client:
            if client.server_capabilities.tools is not None:
                await client.list_tools()
    except Exception as error:  # noqa: BLE001 - whatever a transport raises means that there is no connection
        raise _as_mcp_error(error, name) from None


def _as_mcp_error(error: BaseException, name: str) -> McpError:
    found = _leaves(error)
    for each in found:
        if isinstance(each, McpError):
            return each
    kind = type(found[0]).__name__
    return McpUnavailable(f"it could not be reached: {kind}", server=name, hint="open its address to see what it says")


def _leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in groups."""
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    return [leaf for each in inner for leaf in _leaves(each)] or [error]


# -- authentication of requests


class _Authentication(httpx2.Auth):
    """The SDK's provider, of which this gets tokens, with the logins that other processes store.

    The provider sends one request at a time: it holds a lock until the server has begun its answer, which may be at the
    end of a call. So requests are sent from here, and the provider is asked when a token is missing or was refused.
    """

    def __init__(
        self,
        provider: OAuthClientProvider,
        name: str,
        storage: _TokenFile | None = None,
        required: Callable[..., McpLoginRequired] | None = None,
    ) -> None:
        self._provider, self._context = provider, provider.context
        self._name, self._storage, self._required = name, storage, required
        self._is_login = storage is not None and storage.ignored
        self._end = END_CONNECTION.get(None)
        # The texts of its errors quote answers of authorization servers, with what may be tokens.
        logging.getLogger("mcp.client.auth.oauth2").addFilter(_without_error)

    @override
    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        with self._own_errors():
            await self._load()
            if self._required is not None and not self._is_login and self._context.current_tokens is None:
                raise self._required()
            for _ in range(_ATTEMPTS):
                if not self._context.is_token_valid():
                    async with self._alone():
                        flow = self._new_token(request)
                        try:
                            sent = await anext(flow)
                            while True:
                                sent = await flow.asend((yield sent))
                        except StopAsyncIteration:
                            pass
                        finally:
                            await flow.aclose()
                    if request.extensions.pop(_ANSWERED, False):
                        return
                token = self._token()
                request.headers["Authorization"] = f"Bearer {token}"
                response = yield request
                if not _is_refused(response):
                    return
                if not await self._load() and token == self._token():
                    await self._check_rights(response)
                    self._context.token_expiry_time = _LONG_AGO
            if self._required is not None and not self._is_login:
                raise self._required()
            raise McpLoginFailed(
                "it refuses the tokens of its authorization server",
                server=self._name,
                hint="check the rights of the client",
            )

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """Be the only process that renews the stored login, and begin with what others have stored.

        A refresh token often holds once, and an authorization server that gets it twice may end the login.
        """
        if self._storage is None or self._is_login:
            yield
            return
        async with self._storage.alone():
            await self._load()
            yield

    async def _new_token(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Have the provider get a token, up to where it would send the request with it."""
        if self._context.is_token_valid():
            return
        flow = self._provider.async_auth_flow(request)
        try:
            sent = await anext(flow)
            while sent is not request or not self._context.is_token_valid():
                response = yield sent
                if sent is request:
                    # A server may answer without a token; the request is not to be sent twice then.
                    request.extensions[_ANSWERED] = not _is_refused(response)
                elif sent.method == "POST":
                    self._check(response)
                sent = await flow.asend(response)
        except StopAsyncIteration:
            return
        except McpLoginRequired:
            # Another process may have renewed the login, which ends the tokens that were known here.
            if not await self._load():
                raise
        finally:
            await flow.aclose()

    @contextmanager
    def _own_errors(self) -> Generator[None]:
        """Raise errors of this package, and end the connection with them: the SDK shows its users none."""
        try:
            yield
        except (OAuthFlowError, McpError) as error:
            found = error if isinstance(error, McpError) else _failed(error, self._name)
            if self._end is not None:
                self._end(found)
            raise found from None

    def _token(self) -> str | None:
        tokens = self._context.current_tokens
        return tokens.access_token if tokens is not None else None

    async def _load(self) -> bool:
        return self._storage is not None and await self._storage.load()

    async def _check_rights(self, response: httpx2.Response) -> None:
        """Have a person log in again for a request that needs more rights: a renewed token has the same ones."""
        scopes = extract_scope_from_www_auth(response) if response.status_code == 403 else None
        if self._storage is None or self._required is None or scopes is None:
            return
        if len(scopes) <= _LONGEST_SCOPES and _SCOPES.fullmatch(scopes):
            await self._storage.lacks(scopes)
            raise self._required(scopes)

    def _check(self, response: httpx2.Response) -> None:
        """A failing authorization server is not a refused login."""
        if response.status_code >= 500 or response.status_code == 429:
            raise McpUnavailable(
                f"its authorization server answered with status {response.status_code}",
                server=self._name,
                hint="try again later; the login is kept",
            )


def _is_refused(response: httpx2.Response) -> bool:
    return response.status_code == 401 or (
        response.status_code == 403 and "insufficient_scope" in response.headers.get("WWW-Authenticate", "")
    )


def _failed(error: OAuthFlowError, name: str) -> McpLoginFailed:
    # What comes after the first colon and a space is text of the authorization server.
    text = " ".join(str(error).split()).partition(": ")[0][:200]
    return McpLoginFailed(
        f"the login failed: {text}", server=name, hint="check the client's id, secret and redirect address"
    )


def _without_error(record: logging.LogRecord) -> bool:
    """Leave the error out of the SDK's records: callers get it, and what it quotes is not for logs."""
    record.exc_info = None
    return True


# -- the stored login


class _Login(BaseModel):
    """What the file holds: the tokens, what is needed to renew them, and scopes that the next login is to request."""

    server: str
    tokens: OAuthToken = Field(repr=False)
    lacking: str | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = Field(None, repr=False)
    authorization_server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class _TokenFile:
    """A login in a file, as the SDK's `TokenStorage`.

    The SDK stores neither when a token expires nor where it is renewed, so that a later process could not renew it.
    Both are taken from the provider's context, and put back there.

    Args:
        auth: The file, and the client that is registered by hand.
        url: The server that the login is for; the login of another one is not used.
        ignored: Whether what is stored is not used, but replaced: by a login.
    """

    context: OAuthContext

    def __init__(self, auth: OAuth, url: str, *, ignored: bool = False) -> None:
        self._auth, self._url, self.ignored = auth, url, ignored
        self._seen: bytes | None = None
        self._lacking: str | None = None
        # A login that is being stored is not to be taken for another process's.
        self._lock = anyio.Lock()
        # Held for as long as the connection is, so that no text shows them.
        self._secrets: list[Secret[str]] = []

    async def load(self) -> bool:
        """Take the stored login over if it is not the one that was seen last; whether it was."""
        if self.ignored:
            return False
        async with self._lock:
            content = await anyio.to_thread.run_sync(_read, self._auth.storage)
        if content == self._seen:
            return False
        self._seen = content
        login = self._login(content)
        if login is None:
            return False
        self._lacking = login.lacking
        context = self.context
        context.oauth_metadata, context.protected_resource_metadata = login.authorization_server, login.resource
        context.client_info = _own_client(self._auth, login.authorization_server) or login.client
        context.current_tokens, context.token_expiry_time = login.tokens, login.expires_at
        self._hide(login.tokens, context.client_info)
        return True

    def _login(self, content: bytes) -> _Login | None:
        try:
            login = _Login.model_validate_json(content)
        except ValidationError:
            return None
        return login if login.server == self._url else None

    async def _stored(self) -> _Login | None:
        return self._login(await anyio.to_thread.run_sync(_read, self._auth.storage))

    async def wanted(self) -> str | None:
        """The scopes that the next login is to request, those of this one too; `None` where none was lacking."""
        login = await self._stored()
        return None if login is None or login.lacking is None else union_scopes(login.tokens.scope, login.lacking)

    async def lacks(self, scopes: str) -> None:
        """Note scopes that a request was refused for, for the next login."""
        async with self.alone():
            login = await self._stored()
            if login is not None:
                self._lacking = login.lacking = union_scopes(login.lacking, scopes)
                await self._store(login)

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Be the only one that renews the login, in this process and in others; the lock of a dead process is free."""
        path = self._auth.storage.with_name(f".{self._auth.storage.name}.lock")
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _try_lock(handle):  # noqa: ASYNC110 # no event comes from another process
                await anyio.sleep(_LOCK_PAUSE)
            try:
                yield
            finally:
                # By itself: a forked child may have the file open too.
                _unlock(handle)
        finally:
            os.close(handle)

    def _hide(self, tokens: OAuthToken, client: OAuthClientInformationFull | None) -> None:
        found = (tokens.access_token, tokens.refresh_token, client.client_secret if client else None)
        self._secrets += [Secret(each) for each in found if each]

    async def get_tokens(self) -> OAuthToken | None:
        await self.load()
        return self.context.current_tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = self.context
        self._hide(tokens, context.client_info)
        login = _Login(
            server=self._url,
            tokens=tokens,
            expires_at=context.token_expiry_time,
            client=context.client_info if self._auth.client_id is None else None,
            authorization_server=context.oauth_metadata,
            resource=context.protected_resource_metadata,
            lacking=self._lacking,
        )
        await self._store(login)

    async def _store(self, login: _Login) -> None:
        content = login.model_dump_json(exclude_none=True).encode()
        async with self._lock:
            await anyio.to_thread.run_sync(_write, self._auth.storage, content)
            self._seen = content

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.context.client_info or _own_client(self._auth, None)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Nothing: it is in the context, and stored with the tokens that it gets."""


class _Nowhere:
    """A `TokenStorage` that stores nothing."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        return None

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        return None


def _try_lock(handle: int) -> bool:
    """Lock a file of this lock's own if no other handle has it."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(handle: int) -> None:
    if sys.platform == "win32":
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _write(path: Path, content: bytes) -> None:
    """Replace the file at once, by one that only its owner may read from its beginning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


# -- the login of a person


class _Redirect:
    """What the browser comes back to: one request with a code, on a port of this machine."""

    def __init__(self, listener: Any, name: str) -> None:
        self._listener, self._name = listener, name
        self._state = ""
        self._given: dict[str, str] = {}
        self._came = anyio.Event()

    def expect(self, address: str) -> None:
        """Note the state that the authorization server is to send back; a login may be asked for more than once."""
        self._given, self._came = {}, anyio.Event()
        self._state = parse_qs(urlsplit(address).query)["state"][0]

    async def wait(self) -> AuthorizationCodeResult:
        async with anyio.create_task_group() as group:
            group.start_soon(self._listener.serve, self._answer)
            await self._came.wait()
            group.cancel_scope.cancel()
        given = self._given
        if "code" not in given:
            why = given.get("error", "")
            raise McpLoginFailed(
                f"the login was refused{f' ({why})' if _CODE.fullmatch(why) else ''}",
                server=self._name,
                hint="call login() again and allow the access",
            )
        return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss"))

    async def _answer(self, stream: ByteStream) -> None:
        async with stream:
            try:
                with anyio.fail_after(_HEAD_SECONDS):
                    head = await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", _LONGEST_HEAD)
                    given = self._read(head.decode("latin-1").split("\r\n", 1)[0])
                    await stream.send(_OK if given is not None else _REFUSED)
            except (TimeoutError, ValueError, anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError):
                return
        if given is not None:
            self._given = given
            self._came.set()

    def _read(self, line: str) -> dict[str, str] | None:
        """The parameters of a request, if it is the one that is expected."""
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        given = {name: values[0] for name, values in parse_qs(target.query).items()}
        # Any page can send a browser here; only the authorization server knows the state.
        is_ours = compare_digest(given.get("state", "").encode(), self._state.encode())
        if method != "GET" or target.path != _PATH or not is_ours or not given.keys() & {"code", "error"}:
            return None
        return given


def _page(status: str, text: str) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n"
        f"Connection: close\r\n\r\n{text}"
    ).encode("ascii")


_OK: Final = _page("200 OK", "The answer has arrived. You can close this window.")
_REFUSED: Final = _page("400 Bad Request", "This is not the answer to the login.")
