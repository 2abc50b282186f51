"""Serves steps and tools as resources and prompts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen
from mcp import MCPError, types

from noetic_mcp.served_step import ServedStep, block_of, served_step
from noetic_py import Harness, Message, Tool
from noetic_py.context.step import AnyStep
from noetic_py.core.items import ContentPart, InputFile, InputImage
from noetic_py.core.values import is_array
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.tools.definition import AnyTool, render_output

__all__ = ["ServedPrompts", "ServedResources"]

Contents: TypeAlias = "types.TextResourceContents | types.BlobResourceContents"


@frozen(eq=False)
class ServedResources:
    """Steps and tools that clients read, by their URIs: each reading is a run."""

    harness: Harness[Any]
    listed: Sequence[types.Resource]
    steps: Mapping[str, AnyStep]

    @classmethod
    def of(cls, harness: Harness[Any], given: Mapping[str, AnyStep | AnyTool]) -> ServedResources:
        """Make steps and tools readable.

        Raises:
            ConfigError: One is neither, or has arguments that a reader cannot give; code `"mcp-resource"`.
        """
        steps: dict[str, AnyStep] = {}
        listed: list[types.Resource] = []
        for uri, each in given.items():
            if ":" not in uri:
                raise ConfigError(
                    f"{uri!r} is not a valid URI of a resource; expected scheme:rest",
                    code="mcp-resource",
                    hint='resources={"tides://brest": step}',
                )
            if isinstance(each, Tool) and each.parameters.get("required"):
                raise ConfigError(
                    f"the resource {uri!r} is the tool {each.name!r}, which needs arguments, and a reader gives none",
                    code="mcp-resource",
                    hint="serve a tool without required arguments, or a step",
                )
            served = served_step(each.name if isinstance(each, Tool) else "resource", each)
            steps[uri] = served.step
            name = each.name if isinstance(each, Tool) else each.id
            listed.append(types.Resource(uri=uri, name=name, description=served.listed.description))
        return cls(harness, listed, steps)

    async def list(self, ctx: object, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """What clients can read."""
        return types.ListResourcesResult(resources=[*self.listed])

    async def read(self, ctx: object, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Run a resource's step, and show its output."""
        uri = str(params.uri)
        step = self.steps.get(uri)
        if step is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri!r:.200}")
        value = await _run(self.harness, step, {} if step.kind == "tool" else None)
        shown = _rendered(value, uri)
        parts = [shown] if isinstance(shown, str) else shown
        return types.ReadResourceResult(contents=[_contents(uri, part) for part in parts])


@frozen(eq=False)
class ServedPrompts:
    """Steps and tools whose output is a prompt, by their names: each request is a run."""

    harness: Harness[Any]
    served: Sequence[ServedStep]

    @classmethod
    def of(cls, harness: Harness[Any], given: Mapping[str, AnyStep | AnyTool]) -> ServedPrompts:
        """Make steps and tools prompts.

        Raises:
            ConfigError: One is neither, or a type has no JSON schema.
        """
        return cls(harness, [served_step(name, each) for name, each in given.items()])

    async def list(self, ctx: object, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        """The prompts, with their arguments."""
        return types.ListPromptsResult(prompts=[_prompt(each.listed) for each in self.served])

    async def get(self, ctx: object, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        """Run a prompt's step, and give its output as messages."""
        served = next((each for each in self.served if each.listed.name == params.name), None)
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
