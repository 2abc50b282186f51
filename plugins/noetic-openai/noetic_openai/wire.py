"""Shared by both wire forms: server differences, schemas, tools, data URLs."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from mimetypes import guess_type
from typing import Any

from attrs import frozen

from noetic_openai.narrow import is_array, is_object
from noetic_py.core.items import InputFile, InputImage
from noetic_py.models import ModelRequest, OutputSchema
from noetic_py.models.http import LOOPBACK, host_of, shown_host

__all__ = [
    "Server",
    "add_extra",
    "file_data",
    "function",
    "image_url",
    "output_schema",
    "strict_schema",
    "tool_fields",
    "typed",
]

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
_HOSTS = ("openai.com", "openai.azure.com")


@frozen
class Server:
    """The server a model is asked from, and in what it differs.

    Attributes:
        base_url: Its address, `None` for OpenAI's own.
        schema_in_extra_body: Whether the Responses API takes a schema as the field `json_schema` of the request's body,
            as llama.cpp does, and not as `text.format`.
        store: Whether the provider may keep answers.
    """

    base_url: str | None = None
    schema_in_extra_body: bool = False
    store: bool = False

    @property
    def host(self) -> str:
        """The host's name; empty for OpenAI's own address."""
        return host_of(self.base_url)

    @property
    def where(self) -> str:
        """Host and port, as errors name them; of an address with a password nothing, however it is read."""
        return shown_host(self.base_url, "https://api.openai.com")

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI itself, which refuses fields it does not know and some that others need."""
        host = self.host
        return not self.base_url or any(host == own or host.endswith(f".{own}") for own in _HOSTS)

    @property
    def is_loopback(self) -> bool:
        """Whether it runs on this machine, so that no proxy may come between."""
        return self.host in LOOPBACK


def function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as the fields `name`, `description`, `parameters` and `strict` of a function."""
    parameters: Any = tool.get("parameters")
    strict = bool(tool.get("strict"))
    if strict:
        tight = strict_schema(parameters)
        strict, parameters = tight is not None, tight if tight is not None else parameters
    # `strict` is never left out: the Responses API takes its absence for true.
    found: dict[str, Any] = {"name": tool["name"], "strict": strict}
    if tool.get("description"):
        found["description"] = tool["description"]
    found["parameters"] = parameters or {"type": "object", "properties": {}}
    return found


def output_schema(output: OutputSchema) -> dict[str, Any]:
    """An answer's schema as the fields `name`, `schema` and `strict`."""
    schema: Any = dict(output.schema)
    tight = strict_schema(schema) if output.strict else None
    name = _NOT_IN_NAMES.sub("_", output.name)[:64] or "answer"
    return {"name": name, "schema": schema if tight is None else tight, "strict": tight is not None}


def strict_schema(schema: object) -> Any | None:
    """The schema with every object closed and every property required, as strict answers need it.

    Returns:
        The schema, or `None` when it cannot be made strict: it has an object with free keys.
    """
    try:
        return _strict(schema)
    except _FreeKeys:
        return None


class _FreeKeys(Exception):
    """An object of the schema takes any key."""


def _strict(schema: object) -> Any:
    if is_array(schema):
        return [_strict(part) for part in schema]
    if not is_object(schema):
        return schema
    # A property may have a keyword's name, so the maps of subschemas are walked by value and never read as schemas.
    made = {key: _mapped(value) if key in _MAPS else _inside(key, value) for key, value in schema.items()}
    made.pop("default", None)
    if made.get("type") == "object" or "properties" in made:
        if "properties" not in made or made.get("additionalProperties", False) is not False:
            raise _FreeKeys
        made["additionalProperties"] = False
        made["required"] = list(made["properties"])
    return made


_MAPS = frozenset({"properties", "$defs", "definitions"})
_SCHEMAS = frozenset({"items", "anyOf", "allOf", "oneOf", "prefixItems", "not"})


def _inside(key: str, value: object) -> Any:
    return _strict(value) if key in _SCHEMAS else value


def _mapped(value: object) -> Any:
    return {name: _strict(part) for name, part in value.items()} if is_object(value) else value


def image_url(image: InputImage) -> str | None:
    """The address of an image, one that holds its bytes if it has them; `None` when it has only a file id."""
    if image.data is None:
        return image.url
    return f"data:{image.media_type};base64,{b64encode(image.data).decode()}"


def file_data(file: InputFile) -> str | None:
    """The bytes of a file as an address that holds them, `None` when it has none."""
    if file.data is None:
        return None
    text = b64encode(file.data).decode()
    return f"data:{file.media_type};base64,{text}" if file.media_type else typed(text, file.filename)


def typed(data: str, filename: str | None) -> str:
    """Base64 text as an address that holds it, of the media type that the file's name speaks for."""
    guessed, _ = guess_type(filename or "")
    return f"data:{guessed or 'application/octet-stream'};base64,{data}"


def add_extra(params: dict[str, Any], extra: dict[str, Any]) -> None:
    """Add a provider's own fields to a request; tools among them stand beside those of the step.

    Args:
        params: The request, which is changed.
        extra: The fields.
    """
    tools = extra.pop("tools", None)
    if tools is not None:
        params["tools"] = [*params.get("tools", ()), *tools]
    if extra:
        params["extra_body"] = extra


def tool_fields(request: ModelRequest, *, nested: bool) -> dict[str, Any]:
    """The fields `tools`, `tool_choice` and `parallel_tool_calls`; none of them without tools.

    Args:
        request: The request.
        nested: Whether a function's fields stand in an object of their own, as in chat completions.
    """
    if not request.tools:
        return {}
    settings = request.settings
    functions = [function(tool) for tool in request.tools]
    fields: dict[str, Any] = {
        "tools": [{"type": "function", "function": one} if nested else {"type": "function", **one} for one in functions]
    }
    choice = settings.get("tool_choice")
    if choice in ("auto", "required", "none"):
        fields["tool_choice"] = choice
    elif choice is not None:
        named = {"name": choice}
        fields["tool_choice"] = {"type": "function", "function": named} if nested else {"type": "function", **named}
    if "parallel_tool_calls" in settings:
        fields["parallel_tool_calls"] = settings["parallel_tool_calls"]
    return fields
