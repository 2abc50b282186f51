"""Serves a step or a tool as an MCP tool: its schemas, its arguments and its output."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from attrs import frozen
from mcp import types
from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from noetic_py import InputFile, InputImage, InputText, Tool, call_tool, step_tool
from noetic_py.context.step import AnyStep, exit_of, function_of, require_step
from noetic_py.core.items import ContentPart
from noetic_py.errors import CodecError
from noetic_py.steps.model import ModelSpec
from noetic_py.tools.definition import AnyTool, render_output
from noetic_py.tools.schema import SchemaCheck

__all__ = ["Served", "ServedStep", "block_of", "served_step"]

V = TypeVar("V")

_WRAPPED = "result"


@frozen(eq=False)
class ServedStep:
    """A step that MCP clients can call as a tool.

    Attributes:
        step: What runs.
        listed: How the list of tools describes it.
        read: Makes the step's input of a call's arguments; raises `ToolArgumentsInvalid`.
        wrapped: Whether structured output is an object with the value as its only property.
    """

    step: AnyStep
    listed: types.Tool
    read: Callable[[Mapping[str, object]], object]
    wrapped: bool

    def show(self, value: object) -> tuple[list[types.ContentBlock], dict[str, Any] | None]:
        """A value as content, and as structured output where the step has a type.

        Raises:
            CodecError: It has no JSON form, or does not fit the type.
        """
        shown = render_output(value, tool=self.listed.name)
        if not isinstance(shown, str):
            return [block_of(part) for part in shown], None
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=shown)]
        schema = self.listed.output_schema
        if schema is None:
            return content, None
        found: Any = json.loads(shown) if not isinstance(value, str) else shown
        structured = {_WRAPPED: found} if self.wrapped else found
        problems = SchemaCheck(self.listed.name, schema, frozenset()).problems(structured)
        if problems:
            raise CodecError(f"the output of {self.listed.name} does not fit its type: {'; '.join(problems[:5])}")
        return content, structured


class Served(Generic[V]):
    """What a mapping serves now: it may change while it is served, and what is unchanged is not made again.

    Args:
        given: Steps and tools by name.
        make: Makes the served form of one.
    """

    def __init__(self, given: Mapping[str, AnyStep | AnyTool], make: Callable[[str, Any], V]) -> None:
        self._given, self._make = given, make
        self._made: dict[str, tuple[object, V]] = {}
        self.now()

    def now(self) -> dict[str, V]:
        """The served forms, by name.

        Raises:
            ConfigError: One cannot be served.
        """
        made: dict[str, tuple[object, V]] = {}
        for name, each in self._given.items():
            known = self._made.get(name)
            made[name] = known if known is not None and known[0] is each else (each, self._make(name, each))
        self._made = made
        return {name: served for name, (_, served) in made.items()}


def served_step(name: str, given: AnyStep | AnyTool) -> ServedStep:
    """Make a step or a tool callable by clients.

    Args:
        name: What clients call it.
        given: The step or the tool.

    Raises:
        ConfigError: It is neither, the name is not valid, or a type has no JSON schema.
    """
    if isinstance(given, Tool):
        tool: AnyTool = given.with_options(name=name)
        schema, wrapped = _output_schema(_returned(given.fn))
        step: AnyStep = call_tool(tool, args=dict)
        read = _arguments_of(tool)
    else:
        step = require_step(given, f"serve_mcp, as {name!r}")
        tool = step_tool(step, name=name, description=_description(step))
        schema, wrapped = _output_schema(_type_of(step))
        read = _input_of(tool)
    listed = types.Tool(
        name=tool.wire_name,
        description=tool.description or None,
        input_schema=dict(tool.parameters),
        output_schema=schema,
    )
    return ServedStep(step, listed, read, wrapped)


def _input_of(tool: AnyTool) -> Callable[[Mapping[str, object]], object]:
    return lambda arguments: tool.parse(json.dumps(arguments))["input"]


def _arguments_of(tool: AnyTool) -> Callable[[Mapping[str, object]], object]:
    def read(arguments: Mapping[str, object]) -> object:
        # Checked as a model's are, so that a client cannot fill what the run injects.
        tool.parse(json.dumps(arguments))
        return {name: value for name, value in arguments.items() if name not in tool.injected}

    return read


def _description(step: AnyStep) -> str:
    return inspect.getdoc(function_of(step)) or f"Runs {step.id}."


def _type_of(step: AnyStep) -> Any:
    """The type of a step's output, `None` where nothing tells it."""
    last = exit_of(step)
    if last is not None:
        return _type_of(last)
    if isinstance(step.spec, ModelSpec):
        return step.spec.outputs[0] if len(step.spec.outputs) == 1 else None
    return _returned(function_of(step))


def _returned(function: Any) -> Any:
    try:
        return inspect.get_annotations(inspect.unwrap(function), eval_str=True).get("return")
    except (NameError, TypeError, AttributeError, ValueError):
        # A function whose annotations cannot be read tells as little as one that has none.
        return None


def _output_schema(kind: Any) -> tuple[dict[str, Any] | None, bool]:
    """The schema of structured output, and whether the value is wrapped: an output is an object."""
    if kind in (None, Any, object, str) or isinstance(kind, TypeVar):
        return None, False
    try:
        adapter = TypeAdapter[Any](kind)
        schema = adapter.json_schema(mode="serialization", by_alias=False)
    except (PydanticUserError, PydanticInvalidForJsonSchema):
        return None, False
    if schema.get("type") == "object":
        return schema, False
    definitions = schema.pop("$defs", None)
    wrapper: dict[str, Any] = {"type": "object", "properties": {_WRAPPED: schema}, "required": [_WRAPPED]}
    return wrapper | ({"$defs": definitions} if definitions else {}), True


def block_of(part: ContentPart) -> types.ContentBlock:
    """A part of content as a block of the protocol."""
    match part:
        case InputText():
            return types.TextContent(type="text", text=part.text)
        case InputImage(data=bytes() as data):
            encoded = base64.b64encode(data).decode()
            return types.ImageContent(type="image", data=encoded, mime_type=part.media_type or "image/png")
        case InputFile(data=bytes() as data):
            encoded, kind = base64.b64encode(data).decode(), part.media_type or "application/octet-stream"
            if kind.startswith("audio/"):
                return types.AudioContent(type="audio", data=encoded, mime_type=kind)
            resource = types.BlobResourceContents(
                uri=f"file:///{part.filename or 'file'}", blob=encoded, mime_type=kind
            )
            return types.EmbeddedResource(type="resource", resource=resource)
        case _:
            return types.TextContent(type="text", text=str(getattr(part, "text", None) or getattr(part, "url", "")))
