"""Structured output: the schema that is sent, and the value that comes back."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Union

from attrs import frozen

from noetic_py.core.items import JsonValue
from noetic_py.errors import CodecError, ConfigError
from noetic_py.models.model import OutputSchema

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


_WRAPPED = "value"
_QUOTES = re.compile(r'\\.|"', re.DOTALL)


@frozen(eq=False)
class OutputPlan:
    """How answers of one `call_model` are asked for and read."""

    adapter: TypeAdapter[object]
    schema: OutputSchema
    wrapped: bool

    def parse(self, text: str) -> Any:
        """The answer's value.

        Raises:
            CodecError: It does not fit; the message tells a model what to mend.
        """
        try:
            value: object = json.loads(_unfenced(text))
            # Through JSON again: what is valid JSON for a type, such as a date's text, is not valid Python for it.
            answer = json.dumps(_unwrap(value) if self.wrapped else value)
        except RecursionError:
            raise CodecError("the answer is nested too deep") from None
        except ValueError as error:
            raise CodecError(f"the answer is not JSON: {error}") from None
        return self._validated(answer)

    def parse_output(self, text: str) -> object:
        """The value of a tool's output that stands for the answer: JSON, or a text as it is.

        Raises:
            CodecError: It does not fit.
        """
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            text = json.dumps(text)
        return self._validated(text)

    def _validated(self, answer: str) -> object:
        from pydantic import ValidationError

        try:
            return self.adapter.validate_json(answer)
        except ValidationError as error:
            raise CodecError(misfit(error)) from None

    def partial(self, text: str) -> Any:
        """Parse the received part of an answer.

        A text that has begun counts as far as it goes, a number once it has ended, the last entry of a list once
        it fits.

        Raises:
            CodecError: It is not enough for a value.
        """
        from pydantic import ValidationError
        from pydantic_core import from_json

        begun = text.lstrip()
        if begun.startswith("```"):
            begun = begun.partition("\n")[2]
            closed = begun.rstrip()
            begun = closed[:-3] if closed.endswith("```") else begun
        if begun[-1:].isdigit() and not _ends_in_text(begun):
            # A partial number 1 may become 11.
            begun = begun.rstrip("0123456789.eE+-")
        try:
            value = from_json(begun, allow_partial="trailing-strings")
            answer = json.dumps(_unwrap(value) if self.wrapped else value)
            return self.adapter.validate_json(answer, experimental_allow_partial=True)
        except RecursionError:
            raise CodecError("the answer is nested too deep") from None
        except (ValueError, ValidationError) as error:
            raise CodecError(f"the answer is not a value yet: {error}") from None


def _ends_in_text(begun: str) -> bool:
    """Whether the beginning of some JSON ends inside a text."""
    return _QUOTES.findall(begun).count('"') % 2 == 1


def misfit(error: ValidationError) -> str:
    """Why an answer is not of its type, in words that say what to correct."""
    problems = [f"{'.'.join(map(str, each['loc'])) or 'the answer'}: {each['msg']}" for each in error.errors()[:5]]
    return f"the answer does not fit: {'; '.join(problems)}"


def _unwrap(value: Any) -> object:
    if not _is_wrapped(value):
        raise CodecError(f'the answer is not an object with the one key "{_WRAPPED}"')
    inner: object = value[_WRAPPED]
    return inner


def _is_wrapped(value: object) -> bool:
    return isinstance(value, dict) and len(value) == 1 and _WRAPPED in value  # pyright: ignore[reportUnknownArgumentType] # any JSON


def _unfenced(text: str) -> str:
    """The text inside a Markdown fence, which models like to put around JSON."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```") and len(stripped) > 6:
        return stripped[3:-3].partition("\n")[2] or stripped[3:-3]
    return stripped


def output_plan(outputs: tuple[object, ...]) -> OutputPlan:
    """Make the plan of a type, or of several.

    Raises:
        ConfigError: A type has no JSON schema; code `"output-type"`.
    """
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema

    wanted: Any = outputs[0] if len(outputs) == 1 else Union[outputs]  # noqa: UP007 # of a tuple that is only known here
    name = "_or_".join(getattr(each, "__name__", "output") for each in outputs)
    try:
        adapter: TypeAdapter[object] = TypeAdapter(wanted)
        schema: dict[str, Any] = adapter.json_schema()
    except (PydanticUserError, PydanticInvalidForJsonSchema) as error:
        raise ConfigError(
            f"output type {name} has no JSON schema: {error}",
            code="output-type",
            hint="a pydantic model, a dataclass, ...",
        ) from error
    wrapped = schema.get("type") != "object" or "$ref" in schema or len(outputs) > 1
    if wrapped:
        definitions = schema.pop("$defs", None)
        schema = {"type": "object", "properties": {_WRAPPED: schema}, "required": [_WRAPPED]}
        if definitions is not None:
            schema["$defs"] = definitions
    strict = _close(schema)
    return OutputPlan(adapter, OutputSchema(name=_short(name), schema=schema, strict=strict), wrapped)


def _short(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)[:64] or "output"


def _close(node: JsonValue) -> bool:
    """Forbid unknown keys where keys are known; says whether every key is required, as strict providers want it."""
    if isinstance(node, list):
        return all([_close(each) for each in node])  # noqa: C419 # every one has to be closed
    if not isinstance(node, dict):
        return True
    strict = all([_close(each) for each in node.values()])  # noqa: C419 # as above
    properties = node.get("properties")
    if isinstance(properties, dict):
        node.setdefault("additionalProperties", False)
        required = node.get("required")
        return strict and isinstance(required, list) and len(required) == len(properties)
    return strict and node.get("type") != "object"
