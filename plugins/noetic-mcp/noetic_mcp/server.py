"""`McpServer`: an MCP server as a source of tools, resources and prompts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO, TypeVar

import anyio
import httpx2
from mcp import MCPError, StdioServerParameters, stdio_client, types
from pydantic import ValidationError
from typing_extensions import TypedDict, Unpack

from noetic_mcp.connection import Connection, OpenTransport, first_reason
from noetic_mcp.content import InvalidContent, check_size, error_text, message_part, resource_part, tool_output
from noetic_mcp.errors import McpConnectionLost, McpError, McpProtocolError, McpTimeout, McpToolError, McpUnavailable
from noetic_mcp.framing import bounded_utf8
from noetic_mcp.oauth import OAuth, OAuthClientCredentials, authentication, log_in
from noetic_mcp.requests import CallRequests, Features, RequestRefused, as_roots
from noetic_py import Ask, Message, Secret, Tool
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.tools import Approval

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from mcp.client import Client

    from noetic_py.core.items import ContentPart
    from noetic_py.core.types import Replay
    from noetic_py.models import Model

__all__ = ["McpServer", "McpServerOptions"]

_NAME: Final = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME: Final = 64
_MOST_PAGES: Final = 100
_MOST_TOOLS: Final = 1000
_MOST_LIST_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 1024 * 1024
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 30.0

R = TypeVar("R")
T = TypeVar("T")


class McpServerOptions(TypedDict, total=False):
    """The settings of a server, for any transport.

    Attributes:
        needs_approval: Whether calls of its tools wait for a person, or a function that says so; as of a tool.
        replay: Whether a call that was in flight at a crash may run again; as of a tool.
        timeout: Seconds that a request may take; 60 by default.
        start_timeout: Seconds that its start and the handshake may take; 30 by default.
        max_output_bytes: The most bytes that an output, a resource or a prompt may have; 1 MiB by default.
        elicitation: Whether its tools may ask the person that the run asks, as `ctx.ask` does; not by default. Such a
            run needs a backend, and the call is made again when it is answered. Or a function that gets the
            [`Ask`][noetic_py.Ask] and gives the answer while the call goes on; it raises `Rejected` to decline.
        sampling: The model, or its name, that its tools may ask on the run's budget; none by default.
        roots: Folders and files that the server is told of, as paths or `file://` addresses; none by default.
    """

    needs_approval: Approval
    replay: Replay
    timeout: float
    start_timeout: float
    max_output_bytes: int
    elicitation: bool | Callable[[Ask[Any]], Awaitable[object]]
    sampling: str | Model | None
    roots: Sequence[str | Path]


class McpServer:
    """An MCP server; its tools are offered as `name__tool` by the layer [`McpTools`][noetic_mcp.McpTools].

        time = McpServer.stdio("time", ["mcp-server-time"])

        class Mem(Memory):
            mcp: McpTools = McpTools(servers=[time])

        async with time, Harness(model=..., memory=Mem()) as harness:
            await harness.run(agent, "What time is it in Brest?")

    The server is started, or connected to, when it is first used, by one task that belongs to the `async with`; leaving
    the block ends it. When it dies it is started again at its next use, after a delay that grows with each failure.
    Changes of its list of tools hold from the next model call on.

    Make one with [`stdio`][noetic_mcp.McpServer.stdio] or [`streamable_http`][noetic_mcp.McpServer.streamable_http].
    """

    def __init__(
        self, name: str, transport: OpenTransport, secrets: Sequence[object], options: McpServerOptions
    ) -> None:
        given: object = name
        if not isinstance(given, str) or _NAME.fullmatch(given) is None:
            raise ConfigError(
                f"{name!r:.60} is not a valid name of an MCP server; expected letters, digits, '-' and single '_'",
                code="mcp-name",
                hint='McpServer.stdio("files", [...]); its tools are called files__read and so on',
            )
        unknown = sorted(set(options) - set(McpServerOptions.__annotations__))
        if unknown:
            raise ConfigError(
                f"{unknown[0]!r} is not a valid option of an MCP server; expected one of "
                f"{', '.join(McpServerOptions.__annotations__)}",
                code="mcp-option",
            )
        self._name = name
        self._transport = transport
        # Held for as long as the server is, so that no text shows them.
        self._secrets = secrets
        self._approval: Approval = options.get("needs_approval", False)
        self._replay: Replay = options.get("replay", "repeatable")
        self._timeout = _above_zero("timeout", options.get("timeout", 60.0))
        self._start_timeout = _above_zero("start_timeout", options.get("start_timeout", 30.0))
        self._limit = int(_above_zero("max_output_bytes", options.get("max_output_bytes", _MOST_BYTES)))
        elicitation, sampling = options.get("elicitation", False), options.get("sampling")
        self._features = Features(elicitation, sampling, as_roots(options.get("roots", ())), self._limit)
        self._group: anyio.abc.TaskGroup | None = None
        self._wanted = anyio.Event()
        self._connection: Connection | None = None
        self._listed: tuple[Connection, int, Sequence[Tool[..., Awaitable[object]]]] | None = None
        self._failures = 0
        self._log_in: Callable[[Callable[[str], object] | None, float], Awaitable[None]] | None = None

    @classmethod
    def stdio(
        cls,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str | Secret[str]] | None = None,
        cwd: str | Path | None = None,
        **options: Unpack[McpServerOptions],
    ) -> McpServer:
        """A server that is a program on this machine, and speaks over its standard input and output.

        Args:
            name: What its tools' names begin with.
            command: The program and its arguments; no shell reads them.
            env: Variables for it, besides the few that are safe to inherit (`PATH`, `HOME` and the like). No error and
                no log of the library shows their values.
            cwd: Its working directory.
            options: See [`McpServerOptions`][noetic_mcp.McpServerOptions].

        Raises:
            ConfigError: The name, the command or an option is not valid; code `"mcp-name"`, `"mcp-command"` or
                `"mcp-option"`.
        """
        if isinstance(command, str) or not command:
            raise ConfigError(
                f"command={command!r:.60} is not a valid command; expected a list of the program and its arguments",
                code="mcp-command",
                hint='["uvx", "mcp-server-time"]',
            )
        shown, secrets = _revealed(env or {})
        largest = int(_above_zero("max_output_bytes", options.get("max_output_bytes", _MOST_BYTES)))
        params = StdioServerParameters(
            command=command[0],
            args=list(command[1:]),
            env=shown,
            cwd=cwd,
            # An output as JSON may have six times its bytes, and is sent as text and as structured content.
            encoding=bounded_utf8(12 * largest + 2 * _MOST_LIST_BYTES),
        )
        return cls(name, partial(_stdio, params), secrets, options)

    @classmethod
    def streamable_http(
        cls,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str | Secret[str]] | None = None,
        auth: OAuth | OAuthClientCredentials | httpx2.Auth | None = None,
        **options: Unpack[McpServerOptions],
    ) -> McpServer:
        """A server that is reached over streamable HTTP.

        Args:
            name: What its tools' names begin with.
            url: Its address, without a user and a password.
            headers: Headers of each request, such as `Authorization`. No error and no log of the library shows their
                values.
            auth: Authenticates each request: the login of a person, [`OAuth`][noetic_mcp.OAuth], or of a program,
                [`OAuthClientCredentials`][noetic_mcp.OAuthClientCredentials], or any `httpx2.Auth`.
            options: See [`McpServerOptions`][noetic_mcp.McpServerOptions].

        Raises:
            ConfigError: The name, the address or an option is not valid; code `"mcp-name"`, `"mcp-url"` or
                `"mcp-option"`.
        """
        scheme, _, rest = url.partition("://")
        if scheme not in ("http", "https") or "@" in rest.partition("/")[0] or not rest:
            raise ConfigError(
                "url= is not a valid address of an MCP server; expected http:// or https:// without a user",
                code="mcp-url",
                hint='send credentials by headers={"Authorization": ...}',
            )
        shown, secrets = _revealed(headers or {})
        given: object = auth
        if given is not None and not isinstance(given, OAuth | OAuthClientCredentials | httpx2.Auth):
            raise ConfigError(
                f"auth= of type {type(given).__name__} is not a valid authentication; expected OAuth(...), "
                "OAuthClientCredentials(...) or an httpx2.Auth",
                code="mcp-option",
            )
        connect = partial(_http, url, shown)
        made = partial(authentication, auth, name, url) if auth is not None else None
        server = cls(name, lambda: connect(made() if made else None), (*secrets, *Secret.in_address(url)), options)
        if isinstance(auth, OAuth):
            server._log_in = partial(log_in, auth, name, url, connect)
        return server

    @property
    def longest_wait(self) -> float:
        """Seconds that its start and one request may take together: the sum of its two timeouts."""
        return self._start_timeout + self._timeout

    @property
    def name(self) -> str:
        """The prefix of its tools' names."""
        return self._name

    def __repr__(self) -> str:
        return f"McpServer({self._name!r})"

    async def login(self, *, show: Callable[[str], object] | None = None, timeout: float = 300.0) -> None:
        """Have a person log in, and store the login; nothing where the stored login is valid.

        The server need not be entered: `anyio.run(server.login)`.

        Args:
            show: Gets the address that the person is to open, on this machine, such as `webbrowser.open`. By default
                it is written to the standard error.
            timeout: Seconds that the login may take.

        Raises:
            McpLoginFailed: It was refused, or not completed in time.
            McpUnavailable: The server, or its authorization server, could not be reached.
            ConfigError: The server has no `auth=OAuth(...)`; code `"mcp-login"`.
        """
        if self._log_in is None:
            raise ConfigError(
                f"{self!r} has no login", code="mcp-login", hint="McpServer.streamable_http(..., auth=OAuth(FILE))"
            )
        await self._log_in(show, _above_zero("timeout", timeout))

    # -- its life

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise ConfigError(
                f"{self!r} is in use already", code="mcp-entered", hint="enter it once, and use it in many runs"
            )
        self._wanted = anyio.Event()
        self._connection, self._listed, self._failures = None, None, 0
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        group.start_soon(self._own)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            # The block's exception is raised as it is, and not in an exception group.
            await group.__aexit__(None, None, None)

    async def _own(self) -> None:
        """Hold one connection after the other, each once it is wanted."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                connection = self._connection
                if connection is None:
                    continue
                if self._failures:
                    await anyio.sleep(min(_FIRST_DELAY * 2 ** (self._failures - 1), _LONGEST_DELAY))
                # Until something is answered the connection counts as a failure, so that a server that dies at each
                # request is not started in a tight circle.
                self._failures += 1
                await connection.hold(self._transport, self._start_timeout)
        finally:
            # Tasks outside the block may wait for a connection that is not opened any more.
            if self._connection is not None:
                self._connection.abandon("its block was left")

    async def _connected(self) -> tuple[Connection, Client]:
        if self._group is None:
            raise ConfigError(
                f"{self!r} was not entered",
                code="mcp-not-entered",
                hint=f"async with McpServer(...) as {self._name}: around the runs that use it",
            )
        connection = self._connection
        if connection is None or connection.lost.is_set():
            connection = self._connection = Connection(self._features)
            self._wanted.set()
        await connection.ready.wait()
        if connection.client is None:
            if isinstance(connection.failure, McpError):
                raise connection.failure
            raise McpUnavailable(
                f"it could not be started: {connection.failure or 'it ended at once'}",
                server=self._name,
                hint="run its command, or open its address, by hand to see what it says",
            )
        return connection, connection.client

    async def _request(
        self, what: str, send: Callable[[Client], Awaitable[R]], requests: CallRequests | None = None
    ) -> R:
        """Send a request and wait for its answer, at most for the time that a request may take."""
        connection, client = await self._connected()
        malformed = connection.malformed
        try:
            with anyio.fail_after(self._timeout) as scope:
                if requests is None:
                    answer = await send(client)
                else:
                    requests.within(scope, self._timeout)
                    answer = await self._answering(connection, requests, partial(send, client))
        except TimeoutError:
            raise self._late(what, connection.malformed - malformed) from None
        except MCPError as error:
            raise self._refused(what, connection, error) from None
        except RequestRefused as error:
            raise McpProtocolError(f"{what} cannot go on: {error}", server=self._name) from None
        except (ValidationError, RuntimeError) as error:
            # The SDK raises these for an answer that does not fit the protocol, or the tool's own output schema.
            raise McpProtocolError(
                f"its answer to {what} is not valid: {_one_line(error)}", server=self._name
            ) from None
        self._failures = 0
        return answer

    async def _answering(self, connection: Connection, requests: CallRequests, send: Callable[[], Awaitable[R]]) -> R:
        """Send a call, and answer what the server asks for over the connection meanwhile."""
        if connection.asks_in_answers or not requests.answers:
            return await send()
        connection.calls.add(requests)
        try:
            return await requests.during(send)
        finally:
            connection.calls.discard(requests)

    def _late(self, what: str, malformed: int) -> McpTimeout | McpProtocolError:
        if malformed:
            return McpProtocolError(
                f"it sent {malformed} frames that are not valid messages, and no answer to {what} within "
                f"{self._timeout:g} s",
                server=self._name,
                hint="a server writes nothing but messages to its standard output",
            )
        return McpTimeout(
            f"no answer to {what} within {self._timeout:g} s", server=self._name, hint="raise timeout= of the server"
        )

    def _refused(self, what: str, connection: Connection, error: MCPError) -> McpError:
        if isinstance(connection.failure, McpError):
            return connection.failure
        if error.code == types.REQUEST_TIMEOUT:
            return self._late(what, 0)
        if error.message in _GONE:
            # Other requests may use a connection of which only one answer broke off; this one is of no more use.
            connection.lost.set()
        if connection.failure is not None:
            return McpProtocolError(
                f"{connection.failure}, which ended {what}",
                server=self._name,
                hint="raise max_output_bytes= of the server if such a message is wanted",
            )
        if error.code == types.CONNECTION_CLOSED or error.message in _GONE:
            return McpConnectionLost(
                f"the connection ended during {what}",
                server=self._name,
                hint="it is unknown whether the request was carried out; the next use connects anew",
            )
        return McpProtocolError(f"it refused {what}: {_one_line(error)} (code {error.code})", server=self._name)

    # -- tools

    async def tools(self) -> Sequence[Tool[..., Awaitable[object]]]:
        """The tools there are now, named `server__tool`; asked for before each model call.

        Raises:
            McpUnavailable: The server could not be started or reached.
            McpProtocolError: Its list is not valid, or has more than 1,000 tools.
            McpError: It did not answer.
            ConfigError: It was not entered with `async with`; code `"mcp-not-entered"`.
        """
        connection, _ = await self._connected()
        if self._listed is not None and connection.listens:
            known, changes, tools = self._listed
            if known is connection and changes == connection.changes:
                return tools
        changes = connection.changes
        tools = self._tools_of(self._bounded(await self._request("tools/list", self._all_tools)))
        # A change that was announced meanwhile may not be in the list, which is then fetched again.
        self._listed = (connection, changes, tools)
        return tools

    async def _all_tools(self, client: Client) -> list[types.Tool]:
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None and len(found) <= _MOST_TOOLS:
                return found
            if len(found) > _MOST_TOOLS:
                break
        raise McpProtocolError(
            f"its list of tools is too long; {_MOST_TOOLS} tools on {_MOST_PAGES} pages are allowed", server=self._name
        )

    def _bounded(self, listed: Sequence[types.Tool]) -> Sequence[types.Tool]:
        """The list, if it is not too large: all of it goes into every request to the model."""
        size = sum(len(each.model_dump_json(exclude_none=True).encode()) for each in listed)
        if size > _MOST_LIST_BYTES:
            raise McpProtocolError(
                f"its list of tools has {size} bytes, and {_MOST_LIST_BYTES} are allowed", server=self._name
            )
        return listed

    def _tools_of(self, listed: Sequence[types.Tool]) -> Sequence[Tool[..., Awaitable[object]]]:
        made: dict[str, Tool[..., Awaitable[object]]] = {}
        for each in listed:
            tool = self._tool(each)
            if tool.wire_name in made:
                raise McpProtocolError(f"two of its tools are named {tool.wire_name!r}", server=self._name)
            made[tool.wire_name] = tool
        return tuple(made.values())

    def _tool(self, listed: types.Tool) -> Tool[..., Awaitable[object]]:
        schema: dict[str, Any] = dict(listed.input_schema)
        if schema.get("type") != "object":
            raise self._bad_schema(listed, "expected an object at its root")
        if not listed.name:
            raise McpProtocolError("one of its tools has no name", server=self._name)
        name = _tool_name(self._name, listed.name)
        made = Tool.from_schema(
            _Call(self, listed.name).call,
            parameters=schema,
            name=name,
            description=listed.description or listed.title or listed.name,
            needs_approval=self._approval,
            replay=self._replay,
        )
        try:
            # A schema is read with the first arguments; what is wrong with it is to be known before a model is asked.
            made.parse("{}")
        except ToolArgumentsInvalid:
            pass
        except ConfigError as error:
            raise self._bad_schema(listed, error.message) from None
        return made

    def _bad_schema(self, listed: types.Tool, why: str) -> McpProtocolError:
        return McpProtocolError(
            f"the schema of its tool {listed.name!r:.80} is not valid; {' '.join(why.split())[:300]}", server=self._name
        )

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str | list[ContentPart]:
        """Call a tool by the server's own name of it, without a model.

        Args:
            tool: Its name at the server.
            arguments: Its arguments, by name.

        Returns:
            A text, or content parts where the output is not text alone.

        Raises:
            McpToolError: The tool says that it failed.
            McpConnectionLost: The server ended meanwhile.
            McpTimeout: It did not answer in time.
            McpProtocolError: Its answer is not valid, or too large; or the arguments have no JSON form.
            McpUnavailable: It could not be started or reached.
        """
        sent = self._sendable(f"the call of {tool!r}", dict(arguments))
        requests = CallRequests(self._features, self._name)
        result = await self._request(f"the call of {tool!r}", partial(self._sent, requests, tool, sent), requests)
        if result.is_error:
            raise McpToolError(error_text(result), server=self._name)
        return self._valid(f"the call of {tool!r}", lambda: tool_output(result, self._limit))

    async def _sent(
        self, requests: CallRequests, tool: str, arguments: Mapping[str, Any], client: Client
    ) -> types.CallToolResult:
        try:
            return await requests.call(client, tool, arguments)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
        # Over HTTP the server wants headers made of the tool's schema, which the SDK takes from the list of tools.
        await self._all_tools(client)
        return await requests.call(client, tool, arguments)

    # -- resources and prompts

    async def instructions(self) -> str:
        """The server's instructions from the handshake; empty without any.

        Raises:
            McpUnavailable: It could not be started or reached.
        """
        _, client = await self._connected()
        return client.instructions or ""

    async def resources(self) -> Sequence[types.Resource | types.ResourceTemplate]:
        """The resources that can be read, and the templates of the URIs of others; none where there are none.

        Raises:
            McpProtocolError: The list is not valid, or too long.
            McpError: The server did not answer.
        """
        return await self._request("the list of resources", self._all_resources)

    async def _all_resources(self, client: Client) -> Sequence[types.Resource | types.ResourceTemplate]:
        if client.server_capabilities.resources is None:
            return ()
        found: list[types.Resource | types.ResourceTemplate] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await client.list_resources(cursor=cursor)
            found += page.resources
            cursor = page.next_cursor
            if cursor is None:
                return [*found, *await self._all_templates(client)]
        raise self._too_many_pages()

    async def _all_templates(self, client: Client) -> Sequence[types.ResourceTemplate]:
        found: list[types.ResourceTemplate] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await client.list_resource_templates(cursor=cursor)
            except MCPError as error:
                # A server with resources need not know templates.
                if error.code == types.METHOD_NOT_FOUND:
                    return ()
                raise
            found += page.resource_templates
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise self._too_many_pages()

    def _too_many_pages(self) -> McpProtocolError:
        return McpProtocolError(
            f"its list of resources is too long; {_MOST_PAGES} pages are allowed", server=self._name
        )

    async def read(self, uri: str) -> Sequence[ContentPart]:
        """Read a resource.

        Args:
            uri: Its URI.

        Raises:
            McpProtocolError: There is no such resource, or it is not valid or too large.
            McpError: The server did not answer.
        """
        self._sendable(f"reading {uri!r}", uri)
        result = await self._request(f"reading {uri!r}", lambda client: client.read_resource(uri))
        return self._valid(f"reading {uri!r}", lambda: self._sized([resource_part(each) for each in result.contents]))

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Sequence[Message]:
        """A prompt of the server's, as messages for `call_model`.

        Args:
            name: Its name at the server.
            arguments: Its arguments.

        Raises:
            McpProtocolError: There is no such prompt, or it is not valid or too large.
            McpError: The server did not answer.
        """
        sent = self._sendable(f"the prompt {name!r}", dict(arguments or {}))
        result = await self._request(f"the prompt {name!r}", lambda client: client.get_prompt(name, sent))
        parts = self._valid(
            f"the prompt {name!r}", lambda: self._sized([message_part(each.content) for each in result.messages])
        )
        return [_message(said.role, part) for said, part in zip(result.messages, parts, strict=True)]

    def _sendable(self, what: str, value: T) -> T:
        """The value as JSON has it. One without a JSON form would end the connection, with all calls in flight."""
        try:
            found: T = json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise McpProtocolError(
                f"{what} cannot be sent: {_one_line(error)}",
                server=self._name,
                hint="arguments are JSON: text, whole numbers, finite numbers, lists and objects",
            ) from None
        return found

    def _sized(self, parts: list[ContentPart]) -> list[ContentPart]:
        check_size(parts, self._limit)
        return parts

    def _valid(self, what: str, read: Callable[[], R]) -> R:
        try:
            return read()
        except InvalidContent as error:
            raise McpProtocolError(
                f"the answer to {what} cannot be used: {error}",
                server=self._name,
                hint="raise max_output_bytes= of the server" if error.too_large else None,
            ) from None


class _Call:
    """The function of a server's tool; takes any arguments by name."""

    def __init__(self, server: McpServer, tool: str) -> None:
        self._server, self._tool = server, tool

    # By position only, so that an argument may have any name.
    async def call(self, /, **arguments: object) -> object:
        return await self._server.call(self._tool, arguments)


_GONE: Final = ("Connection closed", "Session terminated")
"""The SDK's errors for a connection that has ended and for an unknown session over HTTP."""


@asynccontextmanager
async def _stdio(params: StdioServerParameters) -> AsyncGenerator[Any]:
    with _error_file() as errors:
        async with stdio_client(params, errors) as streams:
            yield streams


@contextmanager
def _error_file() -> Generator[TextIO]:
    """Where a program's errors go: a file, which the standard error of a notebook or a test may not be."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    yield sys.stderr


@asynccontextmanager
async def _http(url: str, headers: Mapping[str, str], auth: httpx2.Auth | None) -> AsyncGenerator[Any]:
    from mcp.client.streamable_http import streamable_http_client

    # Each request says how long its answer may take; a stream of notifications may be silent for any time.
    timeout = httpx2.Timeout(30.0, read=None)
    async with (
        httpx2.AsyncClient(headers=dict(headers), auth=auth, timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def _message(role: str, part: ContentPart) -> Message:
    from noetic_py import InputText

    if role == "assistant":
        return Message(role="assistant", content=part.text if isinstance(part, InputText) else [part])
    return Message(role="user", content=[part])


def _revealed(values: Mapping[str, str | Secret[str]]) -> tuple[dict[str, str], list[Secret[str]]]:
    secrets = [each if isinstance(each, Secret) else Secret(each) for each in values.values()]
    return {name: each.reveal() for name, each in zip(values, secrets, strict=True)}, secrets


def _tool_name(server: str, tool: str) -> str:
    """`server/tool`, in the characters and the length that providers allow, which are fewer than the protocol's."""
    own = _NOT_IN_NAMES.sub("_", tool)
    if len(server) + 2 + len(own) > _LONGEST_NAME:
        digest = sha256(tool.encode()).hexdigest()[:8]
        own = f"{own[: _LONGEST_NAME - len(server) - 11]}_{digest}"
    return f"{server}/{own}"


def _above_zero(name: str, value: float) -> float:
    given: object = value
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise ConfigError(
            f"{name}={value!r} is not a valid option of an MCP server; expected a number above 0", code="mcp-option"
        )
    return value


def _one_line(error: BaseException) -> str:
    text = first_reason(error) if not isinstance(error, MCPError) else error.message
    return " ".join(text.split())[:500]
