"""What a tool makes of the arguments a model sends: their schema, and values checked against it.

The only module of the tools that imports pydantic; it is imported when a schema or a check is first needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypeGuard

from attrs import field, frozen
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, from_json

from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.models.base import JsonValue
from noetic_py.redaction import MASK
from noetic_py.secret import NOT_KEPT
from noetic_py.tools.confidential import secret_parameters
from noetic_py.tools.signature import Injected, Parameter, Signature, accepts_none, resolve

__all__ = ["Arguments", "GivenArguments", "ModelledArguments", "model_arguments", "split_parameters"]

_SHOWN = 80
_PROBLEMS = 10
_PYDANTIC_REFUSES = (PydanticUserError, PydanticUndefinedAnnotation, RecursionError)
_PLAIN_DEFAULTS = (str, int, float, bool, Enum, list, tuple, dict, type(None))


class Arguments(Protocol):
    """The arguments of one tool."""

    @property
    def schema(self) -> dict[str, JsonValue]:
        """Their JSON schema, an object at its root."""
        ...

    @property
    def injected(self) -> Mapping[str, Injected]:
        """The parameters that the run fills."""
        ...

    @property
    def secret(self) -> frozenset[str]:
        """The parameters whose values nobody else is to see."""
        ...

    def parse(self, arguments: str | Mapping[str, object], *, explicit: bool) -> dict[str, object]:
        """The values by parameter; see [`Tool.parse`][noetic_py.Tool.parse]."""
        ...


def split_parameters(signature: Signature, tool: str) -> tuple[list[Parameter], dict[str, Injected]]:
    """Part what the model fills from what the run fills.

    Raises:
        ConfigError: An annotation names something that does not exist.
    """
    model: list[Parameter] = []
    injected: dict[str, Injected] = {}
    for parameter in resolve(signature, tool).parameters:
        if parameter.role == "injected" or (parameter.role == "undecided" and not _has_schema(parameter.hint)):
            injected[parameter.name] = parameter.as_injected()
        else:
            model.append(parameter)
    return model, injected


def _has_schema(hint: Any) -> bool:
    try:
        TypeAdapter(hint)
    except _PYDANTIC_REFUSES as error:
        # Any other error means data that is defined wrongly; the tool's own schema will say what is wrong with it.
        return not isinstance(error, PydanticSchemaGenerationError)
    return True


_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class _Schema(GenerateJsonSchema):
    # A default without a JSON form is left out of the schema, and nobody needs to be told.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


@frozen(eq=False)
class ModelledArguments:
    """Arguments read from a function's signature.

    Attributes:
        tool: The tool's name.
        schema: The JSON schema.
        injected: What the run fills.
        model: The pydantic model with a field for each parameter the model fills.
        fields: Parameter and field name, in the order of the signature.
        droppable: Parameters for which a strict schema allows null in place of leaving them out.
        secret: Parameters whose values nobody else is to see.
    """

    tool: str
    schema: dict[str, JsonValue]
    injected: Mapping[str, Injected]
    model: type[BaseModel]
    fields: Sequence[tuple[str, str]]
    droppable: frozenset[str]
    secret: frozenset[str]

    def parse(self, arguments: str | Mapping[str, object], *, explicit: bool) -> dict[str, object]:
        """The values by parameter; what was not sent is left to the function's default."""
        given: dict[str, object] = {}
        try:
            if isinstance(arguments, str):
                # Some providers send an empty text for a call without arguments.
                checked = self.model.model_validate_json(arguments if arguments.strip() else "{}")
            else:
                if explicit:
                    given = {name: value for name, value in arguments.items() if name in self.injected}
                    arguments = {name: value for name, value in arguments.items() if name not in given}
                checked = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            # Its text repeats what was sent.
            raise self._invalid(error) from (None if self.secret else error)
        sent, values = checked.model_fields_set, checked.__dict__
        found: dict[str, object] = {name: values[private] for name, private in self.fields if private in sent}
        for name in self.droppable:
            if name in found and found[name] is None:
                del found[name]
        found.update(given)
        return found

    def _invalid(self, error: ValidationError) -> ToolArgumentsInvalid:
        problems = error.errors(include_url=False, include_context=False)
        lines = [self._problem(problem) for problem in problems[:_PROBLEMS]]
        if len(problems) > _PROBLEMS:
            lines.append(f"and {len(problems) - _PROBLEMS} more")
        return _arguments_invalid(self.tool, lines)

    def _problem(self, problem: ErrorDetails) -> str:
        where, sent = _where(problem["loc"]), _shorten(problem["input"])
        if self.secret and (not where or problem["loc"][0] in self.secret) and problem["type"] != "missing":
            return f"{where or 'the whole'}: {problem['msg'].partition(':')[0]}"
        match problem["type"]:
            case "json_invalid":
                reason = problem["msg"].removeprefix("Invalid JSON: ")
                return f"not valid JSON ({reason}), sent: {_cut(str(problem['input']))}"
            case "missing":
                return f"{where}: required, and not sent"
            case "extra_forbidden" if len(problem["loc"]) == 1:
                known = ", ".join(name for name, _ in self.fields) or "none"
                return f"{where}: no such parameter (parameters: {known})"
            case _ if not where:
                return f"a JSON object is wanted, sent: {sent}"
            case _:
                return f"{where}: {problem['msg']}, sent: {sent}"


@frozen(eq=False)
class GivenArguments:
    """Arguments whose schema comes from elsewhere; whoever takes the call checks them.

    Attributes:
        tool: The tool's name.
        schema: The JSON schema as it came.
        injected: Nothing.
        secret: Parameters whose values nobody else is to see.
    """

    tool: str
    schema: dict[str, JsonValue]
    secret: frozenset[str]
    injected: Mapping[str, Injected] = field(factory=dict[str, Injected], init=False)

    def parse(self, arguments: str | Mapping[str, object], *, explicit: bool) -> dict[str, object]:
        """The object that was sent; only that it is one is checked."""
        if not isinstance(arguments, str):
            return dict(arguments)
        try:
            found: object = from_json(arguments if arguments.strip() else "{}", allow_inf_nan=False)
        except ValueError as error:
            sent = "" if self.secret else f", sent: {_cut(arguments)}"
            raise _arguments_invalid(self.tool, [f"not valid JSON ({error}){sent}"]) from error
        if not _is_object(found):
            sent = "" if self.secret else f", sent: {_shorten(found)}"
            raise _arguments_invalid(self.tool, [f"a JSON object is wanted{sent}"])
        if lost := sorted(name for name in self.secret if found.get(name) == MASK):
            raise _arguments_invalid(self.tool, [f"{name}: {NOT_KEPT}" for name in lost])
        return found


def model_arguments(signature: Signature, docs: Mapping[str, str], *, tool: str, strict: bool) -> ModelledArguments:
    """Make the arguments of a function.

    Raises:
        ConfigError: A parameter's type has no JSON schema.
    """
    parameters, injected = split_parameters(signature, tool)
    fields: dict[str, Any] = {}
    droppable: set[str] = set()
    # Fields have names of their own, so that a parameter may be called `copy` or `_x`, which a model's field may not.
    for number, parameter in enumerate(parameters):
        hint = parameter.hint
        if strict and not parameter.required and not accepts_none(hint):
            hint = hint | None
            droppable.add(parameter.name)
        fields[f"p{number}"] = (hint, _field(parameter))
    try:
        model = create_model("Arguments", __config__=_CONFIG, **fields)
        raw = model.model_json_schema(schema_generator=_Schema)
    except _PYDANTIC_REFUSES as error:
        raise _no_schema(tool, parameters, error) from error
    _describe(raw, docs)
    schema = _tidy(raw, strict)
    schema.setdefault("properties", {})
    schema["additionalProperties"] = False
    names = [(parameter.name, f"p{number}") for number, parameter in enumerate(parameters)]
    return ModelledArguments(tool, schema, injected, model, names, frozenset(droppable), secret_parameters(raw))


def _field(parameter: Parameter) -> Any:
    if parameter.required:
        return Field(alias=parameter.name)
    # Anything else could be costly to copy, and has no place in a schema.
    if issubclass(type(parameter.default), _PLAIN_DEFAULTS):
        return Field(default=parameter.default, alias=parameter.name)
    return Field(default_factory=lambda: None, alias=parameter.name)


def _no_schema(tool: str, parameters: Sequence[Parameter], error: Exception) -> ConfigError:
    culprit = next((parameter for parameter in parameters if _fails(parameter.hint)), None)
    named = "its parameters have" if culprit is None else f"parameter {culprit.name!r} ({culprit.hint!r}) has"
    reason = str(error).partition("\n")[0]
    return ConfigError(
        f"tool {tool!r}: {named} no JSON schema: {reason}",
        code="tool-schema",
        hint="use a type that pydantic can read from JSON, or Inject[...] when the run is to fill it",
    )


def _fails(hint: Any) -> bool:
    try:
        TypeAdapter(hint).json_schema(schema_generator=_Schema)
    except _PYDANTIC_REFUSES:
        return True
    return False


# ------------------------------------------------------------------------------------------------------------- schemas


def _describe(schema: Mapping[str, JsonValue], docs: Mapping[str, str]) -> None:
    properties = schema.get("properties")
    for name, part in properties.items() if isinstance(properties, dict) else ():
        if name in docs and isinstance(part, dict):
            part.setdefault("description", docs[name])


def _tidy(schema: Mapping[str, JsonValue], strict: bool) -> dict[str, JsonValue]:
    """The schema without titles; a strict one also closed, and with every property required."""
    found: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties") and isinstance(value, dict):
            found[key] = {name: _tidy_any(part, strict) for name, part in value.items()}
        elif key in ("default", "const", "enum", "examples", "discriminator"):
            found[key] = value
        elif key != "title":
            found[key] = _tidy_any(value, strict)
    if strict:
        found.pop("default", None)
        # Strict providers refuse words that they do not know.
        found.pop("writeOnly", None)
        if found.get("format") == "password":
            del found["format"]
        _close(found)
    return found


def _tidy_any(value: JsonValue, strict: bool) -> JsonValue:
    if isinstance(value, dict):
        return _tidy(value, strict)
    return [_tidy_any(part, strict) for part in value] if isinstance(value, list) else value


def _close(schema: dict[str, JsonValue]) -> None:
    properties = schema.get("properties")
    # A mapping with free keys cannot be closed.
    if isinstance(properties, dict) and not schema.get("additionalProperties"):
        schema["additionalProperties"] = False
        schema["required"] = list(properties)
    if "$ref" in schema and len(schema) > 1:
        # Strict providers allow nothing next to a reference.
        schema["anyOf"] = [{"$ref": schema.pop("$ref")}]


# ------------------------------------------------------------------------------------------------------------ messages


def _arguments_invalid(tool: str, problems: Sequence[str]) -> ToolArgumentsInvalid:
    message = "\n- ".join([f"the arguments of {tool} are not valid:", *problems])
    return ToolArgumentsInvalid(message, tool=tool, hint=f"send a JSON object that fits the parameters of {tool}")


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _where(location: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _shorten(value: object) -> str:
    if isinstance(value, str):
        value = value[:_SHOWN]
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
