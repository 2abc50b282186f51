"""`serve_mcp`: serve steps and tools to MCP clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from logging import Logger
from typing import Any, Final

from attrs import frozen
from mcp import MCPError, types
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler, SubscriptionBus

from noetic_mcp.elicitation import pending_text
from noetic_mcp.served_content import serve_content
from noetic_mcp.served_logging import ClientLog
from noetic_mcp.served_run import RUN_ID, Opened, Request, Runs, wanted_run
from noetic_mcp.served_sessions import AnnouncingServer, Sessions
from noetic_mcp.served_step import Served, ServedStep, served_step
from noetic_py import Harness
from noetic_py.context.step import AnyStep
from noetic_py.core.control import AnyResult
from noetic_py.errors import ConfigError, NoeticError, RunNotFound
from noetic_py.tools.definition import AnyTool

__all__ = ["mcp_server", "serve_mcp"]

_CONTINUE: Final = "continue_run"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def mcp_server(
    harness: Harness[Any],
    flows: Mapping[str, AnyStep | AnyTool] | None = None,
    *,
    resources: Mapping[str, AnyStep | AnyTool] | None = None,
    prompts: Mapping[str, AnyStep | AnyTool] | None = None,
    changes: SubscriptionBus | None = None,
    logger: Logger | None = None,
    name: str = "noetic",
    instructions: str | None = None,
    state: Callable[[], object] | None = None,
) -> Server[Any]:
    """A server of the SDK that serves steps and tools, for you to run or mount.

    `mcp_server(...).streamable_http_app()` is an ASGI application. For a server in one line see
    [`serve_mcp`][noetic_mcp.serve_mcp].

    Args:
        harness: Runs the steps; entered by you.
        flows: Steps and tools, by the names that clients use; those of `Harness(flows=)` when left out.
        resources: Steps and tools that make what clients read, by its URI; a step gets the input `None`. A URI template
            such as `"tides://{port}"` gives a step its one variable, and a tool its arguments.
        prompts: Steps and tools that make a prompt, by its name: a text, a message or messages.
        changes: Where you announce that one of these mappings has changed; clients then list it again.
        logger: What it gets while a request is served is sent to the client, from the level on that the client sets.
        name: The server's name.
        instructions: Instructions for clients on the use of the server.
        state: Makes the state of a run; needed by steps that ask for a type of their own.

    Raises:
        ConfigError: No flow is given (code `"mcp-flows"`), something is not a step or a tool, or the arguments of
            a resource are not those of its URI (`"mcp-resource"`).
    """
    given = harness.flows if flows is None else flows
    if not (given or resources or prompts or changes):
        raise ConfigError("there is no flow to serve", code="mcp-flows", hint='serve_mcp(harness, {"ask": flow})')
    runs = Runs(harness, state)
    calls = _Calls(runs, Served(given, served_step))
    server = (Server[Any] if changes is None else AnnouncingServer)(
        name,
        version=version("noetic-mcp"),
        instructions=instructions,
        on_list_tools=calls.list_tools,
        on_call_tool=calls.call_tool,
        on_subscriptions_listen=None if changes is None else ListenHandler(changes),
    )
    serve_content(server, runs, resources, prompts)
    if changes is not None:
        Sessions(changes).serve(server, resources=resources is not None)
    if logger is not None:
        ClientLog(logger).serve(server)
    # A client must return the request state that it was given.
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=name))
    return server


async def serve_mcp(
    harness: Harness[Any],
    flows: Mapping[str, AnyStep | AnyTool] | None = None,
    *,
    resources: Mapping[str, AnyStep | AnyTool] | None = None,
    prompts: Mapping[str, AnyStep | AnyTool] | None = None,
    changes: SubscriptionBus | None = None,
    logger: Logger | None = None,
    name: str = "noetic",
    instructions: str | None = None,
    state: Callable[[], object] | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve steps and tools to MCP clients, over standard input and output, or over streamable HTTP.

        async with Harness(model="openai:gpt-5-mini", flows={"ask": agent}) as harness:
            await serve_mcp(harness)

    Each call is a run. Cancelling the call cancels the run. What steps leave as `ctx.progress` or send with `ctx.emit`
    is sent as progress. A run that waits for an approval or an answer asks the person at the client; where the client
    cannot ask, the result says how to answer.

    Args:
        harness: Runs the steps; entered by you.
        flows: Steps and tools, by the names that clients use; those of `Harness(flows=)` when left out.
        resources: Steps and tools that make what clients read, by its URI; a step gets the input `None`. A URI template
            such as `"tides://{port}"` gives a step its one variable, and a tool its arguments.
        prompts: Steps and tools that make a prompt, by its name: a text, a message or messages.
        changes: Where you announce that one of these mappings has changed; clients then list it again.
        logger: What it gets while a request is served is sent to the client, from the level on that the client sets.
        name: The server's name.
        instructions: Instructions for clients on the use of the server.
        state: Makes the state of a run; needed by steps that ask for a type of their own.
        host: The address to listen at.
        port: The port to listen at, for `http://host:port/mcp`; standard input and output when left out.
        allowed_hosts: Values of the header `Host` that are served besides those of the loopback, such as
            `"mcp.example.com"`; needed for another `host`.

    Raises:
        ConfigError: No flow is given (code `"mcp-flows"`), or HTTP cannot be served so (`"mcp-http"`).
    """
    server = mcp_server(
        harness,
        flows,
        resources=resources,
        prompts=prompts,
        changes=changes,
        logger=logger,
        name=name,
        instructions=instructions,
        state=state,
    )
    if port is not None:
        await _serve_http(server, host, port, allowed_hosts)
        return
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


async def _serve_http(server: Server[Any], host: str, port: int, allowed_hosts: Sequence[str]) -> None:
    import asyncio

    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "serve_mcp() serves HTTP on asyncio only",
            code="mcp-http",
            hint="mcp_server(...).streamable_http_app() in an ASGI server for trio",
        ) from None
    if host not in _LOOPBACK and not allowed_hosts:
        raise ConfigError(
            f"host={host!r} is reached from other machines, and allowed_hosts= is empty",
            code="mcp-http",
            hint='allowed_hosts=["mcp.example.com"], the names under which clients reach the server',
        )
    hosts = [*(f"{each}:*" for each in ("127.0.0.1", "localhost", "[::1]")), *allowed_hosts]
    origins = [f"{scheme}://{each}" for scheme in ("http", "https") for each in hosts]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=hosts, allowed_origins=origins
    )
    app = server.streamable_http_app(host=host, transport_security=security)
    await uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning", lifespan="on")).serve()


@frozen(eq=False)
class _Calls:
    """Answers the requests of clients."""

    runs: Runs
    known: Served[ServedStep]

    @property
    def served(self) -> Sequence[ServedStep]:
        """What is served now."""
        return tuple(self.known.now().values())

    async def list_tools(self, ctx: Request, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """The steps that clients can call."""
        return types.ListToolsResult(tools=[*(each.listed for each in self.served), *_CONTINUED[: self.runs.stored]])

    async def call_tool(
        self, ctx: Request, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run a step, or resume its run."""
        try:
            served, opened = await self._opened(ctx, params)
            result = await self.runs.to_the_end(ctx, params, served.step, opened)
        except NoeticError as error:
            return _failed(error)
        if isinstance(result, types.InputRequiredResult):
            return result
        return _waiting(result) if result.status == "suspended" else _ended(served, result)

    async def _opened(self, ctx: Request, params: types.CallToolRequestParams) -> tuple[ServedStep, Opened]:
        arguments = params.arguments or {}
        if params.name == _CONTINUE and self.runs.stored:
            return await self._continued(str(arguments.get("run_id", "")), params)
        served = next((each for each in self.served if each.listed.name == params.name), None)
        if served is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r:.80}")
        if params.request_state is not None:
            return await self._continued(params.request_state, params)
        wanted = wanted_run(ctx)
        if wanted is not None and self.runs.stored:
            try:
                return await self._continued(wanted, params)
            except RunNotFound:
                pass
        return served, self.runs.begin(served.step, served.read(arguments), wanted)

    async def _continued(self, run_id: str, params: types.CallToolRequestParams) -> tuple[ServedStep, Opened]:
        """A run that an earlier call has begun, with what the person at the client has answered."""
        info = await self.runs.info(run_id)
        served = next((each for each in self.served if each.step.id == info.flow), None)
        if served is None or params.name not in (_CONTINUE, served.listed.name):
            raise RunNotFound(f"there is no run {run_id!r:.80} of {params.name}", hint="name it to the tool it is of")
        return served, self.runs.resume(served.step, info, params)


def _ended(served: ServedStep, result: AnyResult) -> types.CallToolResult:
    try:
        content, structured = served.show(result.value)
    except NoeticError as error:
        return _failed(error, result.run_id)
    return types.CallToolResult(content=content, structured_content=structured, _meta={RUN_ID: result.run_id})


def _waiting(result: AnyResult) -> types.CallToolResult:
    """Not an output, which would have to fit the tool's type."""
    return _error(pending_text(result.run_id, result.pending), run_id=result.run_id)


def _failed(error: NoeticError, run_id: str | None = None) -> types.CallToolResult:
    return _error(f"{type(error).__name__}: {error.message}", hint=error.hint, run_id=run_id)


def _error(message: str, *, hint: str | None = None, run_id: str | None = None) -> types.CallToolResult:
    text = message if hint is None else f"{message}\nTry: {hint}"
    meta: Any = None if run_id is None else {RUN_ID: run_id}
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True, _meta=meta)


_CONTINUED: Final = (
    types.Tool(
        name=_CONTINUE,
        description="Give the result of a run that waited for an answer, once a person has answered.",
        input_schema={
            "type": "object",
            "properties": {"run_id": {"type": "string", "description": "As the earlier result says it."}},
            "required": ["run_id"],
        },
    ),
)
