"""`ClientModel`: the model of the client that a flow is served to, asked by `sampling/createMessage`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from mcp import MCPError, types
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from noetic_mcp.errors import ClientModelUnavailable
from noetic_mcp.served_run import REQUEST, Request
from noetic_mcp.served_step import block_of
from noetic_py.core.items import Item, Message, Reasoning
from noetic_py.errors import ConfigError
from noetic_py.models import ItemDone, ModelProfile, ModelRequest, ModelResponse, ModelStream, Price, TextPart
from noetic_py.models.wrapper import GeneratedAnswer, Part

__all__ = ["ClientModel"]

_NAME: Final = "mcp:client"
_MOST_TOKENS: Final = 4096
_SENT: Final = (types.TextContent, types.ImageContent, types.AudioContent)


class ClientModel:
    """The model of the MCP client that calls a served flow; the client chooses and pays it.

        agent = call_model(FallbackModel(ClientModel(), "openai:gpt-5-mini"))

    It takes texts, images and sounds, and no tools. An output type is asked for by the instructions. The protocol
    reports no usage, so tokens are estimated for the run's budget, and their price is zero. An answer has at most 4,096
    tokens unless the settings say otherwise.
    """

    @property
    def name(self) -> str:
        """`"mcp:client"`."""
        return _NAME

    @property
    def profile(self) -> ModelProfile:
        """It costs the run nothing."""
        return ModelProfile(max_output_tokens=_MOST_TOKENS, price=Price())

    def __repr__(self) -> str:
        return "ClientModel()"

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask the client whose request the run serves.

        Args:
            request: What to ask. The setting `timeout` bounds the seconds until the answer, in which the client may
                ask its user.

        Raises:
            ClientModelUnavailable: There is no such client, it has no model for servers, or it refused.
            ConfigError: The request has tools, or content that the protocol does not carry; code `"model-content"`.
        """
        return GeneratedAnswer(_NAME, _answer(request))


async def _answer(request: ModelRequest) -> AsyncGenerator[Part]:
    ctx = _client()
    asked = types.CreateMessageRequest(params=_params(request))
    try:
        said = await ctx.session.send_request(
            asked,
            types.CreateMessageResult,
            request.settings.get("timeout"),
            ServerMessageMetadata(related_request_id=ctx.request_id),
        )
    except MCPError as error:
        raise ClientModelUnavailable(f"the client did not answer: {error.error.message:.500}", model=_NAME) from error
    if not isinstance(said.content, types.TextContent):
        raise ClientModelUnavailable(f"the client answered with {said.content.type}, and not with text", model=_NAME)
    message = Message.assistant(said.content.text)
    yield TextPart(message.text, message.id)
    yield ItemDone(message)
    cut = said.stop_reason == "maxTokens"
    yield ModelResponse((message,), stop_reason="length" if cut else "stop", model=said.model)


def _client() -> Request:
    """The request that the run serves.

    Raises:
        ClientModelUnavailable: Its client cannot be asked.
    """
    ctx = REQUEST.get()
    if ctx is None:
        why = "the run does not serve a request of a client"
    elif ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        why = f"servers cannot ask a client of protocol version {ctx.protocol_version} during a call"
    elif ctx.session.client_capabilities is None or ctx.session.client_capabilities.sampling is None:
        why = "the client offers no model to servers (sampling)"
    else:
        return ctx
    hint = 'FallbackModel(ClientModel(), "openai:gpt-5-mini") asks another model then'
    raise ClientModelUnavailable(why, model=_NAME, hint=hint)


def _params(request: ModelRequest) -> types.CreateMessageRequestParams:
    if request.tools:
        raise _not_sent("tools")
    system = [] if request.instructions is None else [request.instructions]
    messages: list[types.SamplingMessage] = []
    for item in request.items:
        if isinstance(item, Message) and item.role in ("system", "developer"):
            system.append(item.text)
        elif not isinstance(item, Reasoning):
            messages += _messages(item)
    if request.output is not None:
        system.append(f"Answer with JSON only, which fits this schema: {json.dumps(dict(request.output.schema))}")
    return types.CreateMessageRequestParams(
        messages=messages,
        system_prompt="\n\n".join(system) or None,
        temperature=request.settings.get("temperature"),
        max_tokens=request.settings.get("max_output_tokens", _MOST_TOKENS),
        stop_sequences=list(request.settings.get("stop", ())) or None,
    )


def _messages(item: Item) -> Sequence[types.SamplingMessage]:
    """One message for each part: clients of earlier protocols take no message of several."""
    if not isinstance(item, Message):
        raise _not_sent(type(item).__name__)
    role: types.Role = "assistant" if item.role == "assistant" else "user"
    found: list[types.SamplingMessage] = []
    for part in item.content:
        block = block_of(part)
        if not isinstance(block, _SENT):
            raise _not_sent(type(part).__name__)
        found.append(types.SamplingMessage(role=role, content=block))
    return found


def _not_sent(what: str) -> ConfigError:
    return ConfigError(
        f"{what} cannot be sent to the model of an MCP client; it takes texts, images and sounds",
        code="model-content",
        hint="give this call a model of your own",
    )
