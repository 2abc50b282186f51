"""What a server asks for while one of its tools is called: a person's answer, a model's, or roots.

Everything is answered by the task that makes the call, in its step: a question is one of the run, and a model is asked
on the run's budget.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import anyio
from attrs import define, field, frozen
from mcp import types
from pydantic import FileUrl, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from noetic_mcp.content import InvalidContent, message_part
from noetic_py import Ask, Memory, Message, ModelSettings, Tool, call_model, current_context, spawn
from noetic_py.core.values import is_dict
from noetic_py.errors import ConfigError, NoeticError, Rejected, RequestExpired, ToolArgumentsInvalid

if TYPE_CHECKING:
    from collections.abc import Generator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client import Client
    from mcp.shared.dispatcher import ProgressFnT

    from noetic_py import Context
    from noetic_py.models import Model

__all__ = ["CallRequests", "Features", "RequestRefused", "as_roots"]

_LONGEST_TEXT: Final = 2000
_LONGEST_MESSAGE: Final = 500
_MOST_SCHEMA_BYTES: Final = 64 * 1024
_MOST_ROUNDS: Final = 20
_MOST_WAITING: Final = 16
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 1.0

R = TypeVar("R")
Elicitation: TypeAlias = "bool | Callable[[Ask[Any]], Awaitable[object]]"
Response = types.CreateMessageResult | types.ElicitResult | types.ListRootsResult


class RequestRefused(Exception):
    """A request of the server's that is not answered; the message says why."""


@frozen
class Features:
    """What a server may ask for.

    Attributes:
        elicitation: Whether it may ask the person that the run asks, or a function that asks a person at once.
        sampling: The model that it may ask.
        roots: The folders and files that it is told of.
        limit: The most bytes that it may send to the model.
    """

    elicitation: Elicitation = False
    sampling: str | Model | None = None
    roots: Sequence[types.Root] = ()
    limit: int = 1024 * 1024

    @property
    def any(self) -> bool:
        """Whether it may ask for something that takes a run."""
        return bool(self.elicitation) or self.sampling is not None


def as_roots(given: Sequence[str | Path]) -> Sequence[types.Root]:
    """Folders and files as the protocol names them.

    Raises:
        ConfigError: One is neither a path nor a `file://` address; code `"mcp-option"`.
    """
    if isinstance(given, str):
        given = [given]
    try:
        return tuple(_root(each) for each in given)
    except (TypeError, ValueError):
        raise ConfigError(
            f"roots={given!r:.80} is not a valid list of roots; expected paths or file:// addresses",
            code="mcp-option",
            hint='roots=["/srv/documents"]',
        ) from None


def _root(given: str | Path) -> types.Root:
    if isinstance(given, str) and "://" in given:
        return types.Root(uri=FileUrl(given))
    path = Path(given).absolute()
    return types.Root(uri=FileUrl(path.as_uri()), name=path.name or None)


@define(eq=False)
class _Asked:
    """A request that waits for the task of its call."""

    request: types.InputRequest
    done: anyio.Event = field(factory=anyio.Event)
    response: Response | None = None
    refusal: str = "the call has ended"


class CallRequests:
    """One call of a tool, which answers what its server asks for.

    Args:
        features: What the server may ask for.
        server: Its name.
    """

    def __init__(self, features: Features, server: str) -> None:
        self._features, self._server = features, server
        self._context: Context[Any, Any] | None = current_context()
        self._scope: anyio.CancelScope | None = None
        self._time = math.inf
        self._waiting: MemoryObjectSendStream[_Asked] | None = None

    @property
    def answers(self) -> bool:
        """Whether it answers anything but roots."""
        return callable(self._features.elicitation) or (self._features.any and self._context is not None)

    def within(self, scope: anyio.CancelScope, time: float) -> None:
        """Take the time limit of the call, which stands still while something is answered."""
        self._scope, self._time = scope, time

    async def call(self, client: Client, tool: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Call a tool, and answer what the server asks before it gives the result.

        Raises:
            RequestRefused: It asks for what it may not, or too often.
            MCPError: The server refuses the call.
        """
        responses: dict[str, Any] | None = None
        state: str | None = None
        delay = _FIRST_DELAY
        for _ in range(_MOST_ROUNDS):
            result = await client.session.call_tool(
                tool,
                dict(arguments),
                progress_callback=self._progress(),
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
            )
            if isinstance(result, types.CallToolResult):
                return result
            if not isinstance(result, types.InputRequiredResult):
                raise RequestRefused("its answer has a form that was not agreed on")
            state, responses = result.request_state, None
            if result.input_requests:
                # In their order by name: a run that goes on has to ask the same again.
                wanted = sorted(result.input_requests.items())
                responses = {key: await self.answer(request) for key, request in wanted}
            else:
                await anyio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
        raise RequestRefused(f"it asked for more than {_MOST_ROUNDS} times before it gave a result")

    def _progress(self) -> ProgressFnT | None:
        ctx = self._context
        if ctx is None:
            return None

        async def told(progress: float, total: float | None, message: str | None) -> None:
            value: dict[str, Any] = {
                "progress": progress,
                "total": total,
                "message": message and message[:_LONGEST_MESSAGE],
            }
            # The call may have ended, or not belong to a run.
            with suppress(NoeticError):
                ctx.progress.set({name: each for name, each in value.items() if each is not None})

        return told

    # -- requests that come by themselves, before 2026-07-28

    async def ask(self, request: types.InputRequest) -> Response | types.ErrorData:
        """Have the task of the call answer a request that came over the connection."""
        asked = _Asked(request)
        try:
            if self._waiting is not None:
                self._waiting.send_nowait(asked)
                await asked.done.wait()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.WouldBlock):
            pass
        return asked.response or types.ErrorData(code=types.INVALID_REQUEST, message=asked.refusal)

    async def during(self, send: Callable[[], Awaitable[R]]) -> R:
        """Make a call in a task of its own, and answer here what comes over the connection meanwhile."""
        results: list[R] = []
        raised: list[BaseException] = []
        self._waiting, inbox = anyio.create_memory_object_stream[_Asked](_MOST_WAITING)

        async def run(waiting: MemoryObjectSendStream[_Asked]) -> None:
            try:
                with waiting:
                    results.append(await send())
            except Exception as error:  # noqa: BLE001 - raised below, not in a group
                raised.append(error)

        with inbox:
            async with anyio.create_task_group() as group:
                group.start_soon(run, self._waiting)
                await self._serve(inbox, raised)
                if raised:
                    group.cancel_scope.cancel()
        if raised:
            raise raised[0]
        return results[0]

    async def _serve(self, inbox: MemoryObjectReceiveStream[_Asked], raised: list[BaseException]) -> None:
        """Answer until the call has ended; what ends its step, such as waiting for a person, ends it too."""
        asked: _Asked | None = None
        try:
            async for asked in inbox:
                try:
                    asked.response = await self.answer(asked.request)
                except RequestRefused as error:
                    asked.refusal = str(error)
                asked.done.set()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised by the caller, not in a group
            raised.insert(0, error)
        finally:
            if asked is not None:
                asked.done.set()
            with suppress(anyio.EndOfStream, anyio.WouldBlock):
                while True:
                    inbox.receive_nowait().done.set()

    # -- answers

    async def answer(self, request: types.InputRequest) -> Response:
        """The answer to a request.

        Raises:
            RequestRefused: The server may not ask for it.
        """
        match request:
            case types.ListRootsRequest():
                return types.ListRootsResult(roots=list(self._features.roots))
            case types.ElicitRequest():
                with self._unhurried():
                    return await self._elicited(request.params)
            case types.CreateMessageRequest():
                with self._unhurried():
                    return await self._sampled(request.params)

    @contextmanager
    def _unhurried(self) -> Generator[None]:
        """The time limit is one of the server, and not of a person or a model that it asks."""
        scope = self._scope
        if scope is not None:
            scope.deadline = math.inf
        yield
        if scope is not None:
            scope.deadline = anyio.current_time() + self._time

    def _run(self, what: str, allowed: object) -> Context[Any, Any]:
        if not allowed:
            raise RequestRefused(f"it asks for {what}, which it may not")
        if self._context is None:
            raise RequestRefused(f"it asks for {what}, and the call belongs to no run")
        return self._context

    async def _elicited(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        ask = self._person()
        said = f"MCP server {self._server!r} asks: {params.message[:_LONGEST_TEXT]}"
        try:
            if isinstance(params, types.ElicitRequestURLParams):
                opened = await ask(Ask(f"{said}\nOpen {params.url[:_LONGEST_TEXT]} and say when it is done.", bool))
                return types.ElicitResult(action="accept" if opened else "decline")
            schema = params.requested_schema
            if len(json.dumps(schema)) > _MOST_SCHEMA_BYTES:
                raise RequestRefused(f"the schema of its question has more than {_MOST_SCHEMA_BYTES} bytes")
            form = await ask(Ask(said, _form(schema)))
            return types.ElicitResult(action="accept", content=dict(form))
        except Rejected:
            return types.ElicitResult(action="decline")
        except RequestExpired:
            return types.ElicitResult(action="cancel")

    def _person(self) -> Callable[[Ask[Any]], Awaitable[Any]]:
        """Asks the person: a question of the run, or one that the program puts at once."""
        allowed = self._features.elicitation
        if not callable(allowed):
            return self._run("a person's answer", allowed).ask
        answer = allowed

        async def ask(question: Ask[Any]) -> Any:
            try:
                return question.adapter().validate_python(await answer(question))
            except ValidationError as error:
                raise RequestRefused(f"the answer to its question is not valid: {error.errors()[0]['msg']}") from None

        return ask

    async def _sampled(self, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        model = self._features.sampling
        ctx = self._run("a model's answer", model)
        settings = ModelSettings(max_output_tokens=params.max_tokens)
        if params.temperature is not None:
            settings["temperature"] = params.temperature
        if params.stop_sequences:
            settings["stop"] = params.stop_sequences
        asked = call_model(model, instructions=params.system_prompt, settings=settings, id="sampling")
        # The server gets an answer to what it sent, and nothing of the run's conversation, memory or state.
        text = await spawn(asked, memory=Memory(), state="new", id="sampling")(self._messages(params.messages), ctx)
        name = model if isinstance(model, str) else getattr(model, "name", "")
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text=text or ""), model=name, stop_reason="endTurn"
        )

    def _messages(self, sent: Sequence[types.SamplingMessage]) -> Sequence[Message]:
        """What the server says to the model; ids of their places, so that a run that goes on finds the answer."""
        if len("".join(each.model_dump_json() for each in sent).encode()) > self._features.limit:
            raise RequestRefused(f"it sent more than {self._features.limit} bytes to the model")
        return [Message(role=each.role, content=_content(each), id=f"sampling-{at}") for at, each in enumerate(sent)]


def _content(said: types.SamplingMessage) -> Any:
    parts: list[Any] = []
    for block in said.content_as_list:
        if isinstance(block, types.ToolUseContent | types.ToolResultContent):
            raise RequestRefused("it sent calls of tools to the model, which was not agreed on")
        try:
            parts.append(message_part(block))
        except InvalidContent as error:
            raise RequestRefused(str(error)) from None
    if said.role == "assistant":
        return "\n".join(getattr(part, "text", "") for part in parts)
    return parts


def _form(schema: Mapping[str, Any]) -> type[dict[str, Any]]:
    """A type whose values are the objects that fit a schema, for a question of a run."""
    check = Tool.from_schema(_no_tool, parameters=dict(schema), name="form")
    with suppress(ToolArgumentsInvalid):
        try:
            check.parse("{}")
        except ConfigError as error:
            raise RequestRefused(f"the schema of its question is not valid; {error.message[:300]}") from None

    fields: Mapping[str, Any] = schema.get("properties", {})
    # A schema may also be `true`.
    defaults = {name: each["default"] for name, each in fields.items() if is_dict(each) and "default" in each}

    def fitting(given: dict[str, Any]) -> dict[str, Any]:
        given = defaults | given
        try:
            check.parse(given)
        except ToolArgumentsInvalid as error:
            raise ValueError(error.message) from None
        return given

    class Form(dict[str, Any]):
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
            return core_schema.no_info_after_validator_function(
                fitting, core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
            )

        @classmethod
        def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
            return dict(schema)

    return Form


async def _no_tool(**answer: object) -> None:
    """A form has the checks of a tool's arguments, and nothing to call."""
