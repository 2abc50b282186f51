"""Serves steps and tools as resources and prompts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen
from mcp import MCPError, types

from noetic_mcp.served_step import Served, ServedStep, block_of, served_step
from noetic_py import Harness, Message, Tool
from noetic_py.context.step import AnyStep
from noetic_py.core.items import ContentPart, InputFile, InputImage
from noetic_py.core.values import is_array
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.tools.definition import AnyTool, render_output

__all__ = ["ServedPrompts", "ServedResources", "served_resource"]

Contents: TypeAlias = "types.TextResourceContents | types.BlobResourceContents"


def served_resource(uri: str, given: AnyStep | AnyTool) -> tuple[types.Resource, AnyStep]:
    """Make a step or a tool readable.

    Raises:
        ConfigError: It is neither, or has arguments that a reader cannot give; code `"mcp-resource"`.
    """
    if ":" not in uri:
        raise ConfigError(
            f"{uri!r} is not a valid URI of a resource; expected scheme:rest",
            code="mcp-resource",
            hint='resources={"tides://brest": step}',
        )
    if isinstance(given, Tool) and given.parameters.get("required"):
        raise ConfigError(
            f"the resource {uri!r} is the tool {given.name!r}, which needs arguments, and a reader gives none",
            code="mcp-resource",
            hint="serve a tool without required arguments, or a step",
        )
    served = served_step(given.name if isinstance(given, Tool) else "resource", given)
    name = given.name if isinstance(given, Tool) else given.id
    return types.Resource(uri=uri, name=name, description=served.listed.description), served.step


@frozen(eq=False)
class ServedResources:
    """Steps and tools that clients read, by their URIs: each reading is a run."""

    harness: Harness[Any]
    served: Served[tuple[types.Resource, AnyStep]]

    async def list(self, ctx: object, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """What clients can read."""
        return types.ListResourcesResult(resources=[listed for listed, _ in self.served.now().values()])

    async def read(self, ctx: object, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Run a resource's step, and show its output."""
        uri = str(params.uri)
        found = self.served.now().get(uri)
        if found is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri!r:.200}")
        step = found[1]
        value = await _run(self.harness, step, {} if step.kind == "tool" else None)
        shown = _rendered(value, uri)
        parts = [shown] if isinstance(shown, str) else shown
        return types.ReadResourceResult(contents=[_contents(uri, part) for part in parts])


@frozen(eq=False)
class ServedPrompts:
    """Steps and tools whose output is a prompt, by their names: each request is a run."""

    harness: Harness[Any]
    served: Served[ServedStep]

    async def list(self, ctx: object, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        """The prompts, with their arguments."""
        return types.ListPromptsResult(prompts=[_prompt(each.listed) for each in self.served.now().values()])

    async def get(self, ctx: object, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        """Run a prompt's step, and give its output as messages."""
        served = next((each for each in self.served.now().values() if each.listed.name == params.name), None)
        if served is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r:.80}")
        try:
            given = served.read(dict(params.arguments or {}))
        except NoeticError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from error
        value = await _run(self.harness, served.step, given)
        said = value if is_array(value) and value and all(isinstance(each, Message) for each in value) else (value,)
        return types.GetPromptResult(messages=[each for one in said for each in _messages(one, params.name)])


async def _run(harness: Harness[Any], step: AnyStep, given: object) -> object:
    try:
        return (await harness.run(step, given)).value
    except NoeticError as error:
        text = f"{type(error).__name__}: {error.message}"
        raise MCPError(types.INTERNAL_ERROR, text if error.hint is None else f"{text}\nTry: {error.hint}") from error


def _rendered(value: object, name: str) -> str | Sequence[ContentPart]:
    try:
        return render_output(value, tool=name)
    except NoeticError as error:
        raise MCPError(types.INTERNAL_ERROR, f"{type(error).__name__}: {error.message}") from error


def _contents(uri: str, part: str | ContentPart) -> Contents:
    match part:
        case str():
            return types.TextResourceContents(uri=uri, text=part)
        case InputImage(data=bytes() as data) | InputFile(data=bytes() as data):
            encoded = base64.b64encode(data).decode()
            return types.BlobResourceContents(uri=uri, blob=encoded, mime_type=part.media_type)
        case _:
            text = str(getattr(part, "text", None) or getattr(part, "url", None) or "")
            return types.TextResourceContents(uri=uri, text=text)


def _prompt(listed: types.Tool) -> types.Prompt:
    fields: Mapping[str, Any] = listed.input_schema.get("properties", {})
    required = listed.input_schema.get("required", ())
    arguments = [
        types.PromptArgument(name=name, description=field.get("description"), required=name in required)
        for name, field in fields.items()
    ]
    return types.Prompt(name=listed.name, description=listed.description, arguments=arguments)


def _messages(value: object, name: str) -> list[types.PromptMessage]:
    """One message for each part: the protocol has no message of several."""
    role: types.Role = "assistant" if isinstance(value, Message) and value.role == "assistant" else "user"
    shown = value.content if isinstance(value, Message) else _rendered(value, name)
    blocks = [types.TextContent(type="text", text=shown)] if isinstance(shown, str) else [block_of(p) for p in shown]
    return [types.PromptMessage(role=role, content=block) for block in blocks]
