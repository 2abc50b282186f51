"""Arguments of a tool: their schema, values checked against it, and the JSON that rules and people judge."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import attrs
from attrs import field, frozen
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, PydanticSerializationError, from_json, to_jsonable_python
from typing_extensions import TypeIs

from noetic_py.core.items import JsonValue
from noetic_py.core.secrets import NOT_KEPT, Secret
from noetic_py.core.values import copy_value, is_mapping
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.redaction import MASK, NOT_SHOWN, with_article
from noetic_py.tools.calls import secret_parameters

if TYPE_CHECKING:
    from noetic_py.tools.schema import SchemaCheck
from noetic_py.tools.signature import Injected, Parameter, Signature, accepts_none, resolve

_MANY = (list, tuple, set, frozenset, deque)
# Written without an exponent, a number of more digits than this is not text to compare.
_DIGITS = 400


def not_shown(why: str) -> str:
    """The placeholder for a value without JSON text."""
    return f"{NOT_SHOWN}: {why}]"


def as_received(value: object) -> JsonValue:
    """A value of a tool's parameter as JSON; the mark of `not_shown` stands for what has no JSON form."""
    try:
        return _plain(value)
    except (ValueError, TypeError, RecursionError):
        return not_shown(type(value).__name__)


def _plain(value: Any) -> JsonValue:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, (Secret, SecretStr, SecretBytes)):
        return MASK
    if isinstance(value, (bytes, bytearray)):
        # Other bytes than UTF-8 raise: they have no text.
        return value.decode()
    if is_mapping(value):
        return _mapping(value.items())
    if _is_many(value):
        return _several(value)
    if isinstance(value, RootModel):
        return _plain(value.root)  # pyright: ignore[reportUnknownMemberType] # of any kind
    fields = _fields(value)
    return _leaf(value) if fields is None else _mapping(fields)


def _is_many(value: object) -> TypeIs[Collection[object]]:
    return isinstance(value, _MANY)


def _several(values: Collection[object]) -> JsonValue:
    found = [_plain(each) for each in values]
    # A set has no order of its own.
    return sorted(found, key=json.dumps) if isinstance(values, (set, frozenset)) else found


def _mapping(pairs: Iterable[tuple[object, object]]) -> JsonValue:
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        plain = _plain(key)
        name = plain if isinstance(plain, str) else json.dumps(plain)
        if name in found:
            raise ValueError(f"two keys are {name!r} in JSON")
        found[name] = _plain(value)
    return found


def _fields(value: object) -> Iterable[tuple[Any, Any]] | None:
    """An object's fields by the names that the model sends; `None` for one that is not made of fields."""
    kind: Any = value.__class__
    if isinstance(value, BaseModel):
        named = [(_alias(name, info), getattr(value, name)) for name, info in kind.model_fields.items()]
        return [*named, *(value.__pydantic_extra__ or {}).items()]
    if dataclasses.is_dataclass(kind):
        known: Mapping[str, object] = getattr(kind, "__pydantic_fields__", {})
        names = [each.name for each in dataclasses.fields(kind)]
        # Arguments that only `__post_init__` gets (`InitVar`) are gone by now, and no field has them.
        made: Any = kind
        taken = [name for name in inspect.signature(made).parameters if name not in names]
        gone = [(name, not_shown("only read when it is made")) for name in taken]
        return [*((_alias(name, known.get(name)), getattr(value, name)) for name in names), *gone]
    if attrs.has(kind):
        return [(each.name, getattr(value, each.name)) for each in attrs.fields(kind)]
    return None


def _alias(name: str, info: Any) -> str:
    """The name that the schema has for a field."""
    alias = None if info is None else info.validation_alias or info.alias
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias if isinstance(alias, str) else name


def _leaf(value: object) -> JsonValue:
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, Iterator):
        # It can be read once, and that is for the tool to do.
        raise TypeError("an iterator")
    try:
        found: JsonValue = to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from error
    return found


def _decimal(value: Decimal) -> str:
    """One text for equal numbers: `1E+3`, `1000` and `1000.00` are `1000`."""
    if not value.is_finite() or abs(value.adjusted()) > _DIGITS:
        return str(value)
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) if value else "0"


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
        """The parameters whose values only the tool may see."""
        ...

    def parse(self, arguments: str | Mapping[str, object], *, explicit: bool) -> dict[str, object]:
        """The values by parameter; see [`Tool.parse`][noetic_py.Tool.parse]."""
        ...

    def received(self, values: Mapping[str, object]) -> dict[str, JsonValue]:
        """The arguments of the function as JSON; see [`Tool.received`][noetic_py.Tool.received]."""
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
    # A default without a JSON form is left out of the schema, and that needs no message.
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
        defaults: The function's defaults, by parameter.
        droppable: Parameters for which a strict schema allows null in place of leaving them out.
        secret: Parameters whose values only the tool may see.
    """

    tool: str
    schema: dict[str, JsonValue]
    injected: Mapping[str, Injected]
    model: type[BaseModel]
    fields: Sequence[tuple[str, str]]
    defaults: Mapping[str, object]
    droppable: frozenset[str]
    secret: frozenset[str]

    def parse(self, arguments: str | Mapping[str, object], *, explicit: bool) -> dict[str, object]:
        """The values by parameter; what was not sent is left to the function's default, of which it gets a copy."""
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
        # A default that only the annotation has is not the function's: it is given as if it was sent.
        found: dict[str, object] = {
            name: values[private] for name, private in self.fields if private in sent or name not in self.defaults
        }
        for name in self.droppable:
            if name in found and found[name] is None:
                del found[name]
        found.update(given)
        return _with_defaults(found, self.defaults)

    def received(self, values: Mapping[str, object]) -> dict[str, JsonValue]:
        """Every parameter, those that were not sent with the function's default."""
        whole = {name: self.defaults[name] for name, _ in self.fields if name in self.defaults} | dict(values)
        named = dict.fromkeys([name for name, _ in self.fields if name in whole]) | whole
        return {name: MASK if name in self.secret else as_received(value) for name, value in named.items()}

    def _invalid(self, error: ValidationError) -> ToolArgumentsInvalid:
        problems = error.errors(include_url=False, include_context=False)
        lines = [self._problem(problem) for problem in problems[:_PROBLEMS]]
        if len(problems) > _PROBLEMS:
            lines.append(f"and {len(problems) - _PROBLEMS} more")
        return _arguments_invalid(self.tool, lines)

    def _problem(self, problem: ErrorDetails) -> str:
        where, sent = dotted(problem["loc"]), _shorten(problem["input"])
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


def _with_defaults(found: dict[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """Add copies of the defaults that can change, so that a call sees nothing of what another one did to them."""
    for name in [name for name in defaults if name not in found]:
        try:
            own = copy_value(defaults[name])
        except Exception:  # noqa: BLE001, S112 # it is not data: its class refuses, so it is handed on as it is
            continue
        if own is not defaults[name]:
            found[name] = own
    return found


@frozen(eq=False)
class SchemaArguments:
    """Arguments whose schema comes from elsewhere, checked against it.

    Attributes:
        tool: The tool's name.
        schema: The JSON schema as it came.
        secret: Parameters whose values only the tool may see.
        defaults: The function's defaults, by parameter.
        injected: Nothing.
    """

    tool: str
    schema: dict[str, JsonValue]
    secret: frozenset[str]
    defaults: Mapping[str, object]
    injected: Mapping[str, Injected] = field(factory=dict[str, Injected], init=False)
    _known: list[SchemaCheck] = field(factory=list["SchemaCheck"], init=False)

    def parse(self, arguments: str | Mapping[str, object], *, explicit: bool) -> dict[str, object]:
        """The object that was sent, as it was sent, with copies of the function's defaults that can change."""
        if not isinstance(arguments, str):
            found = dict(arguments)
            # Values from code may have types that JSON lacks.
            self._check({name: as_received(value) for name, value in found.items()})
            return _with_defaults(found, self.defaults)
        found = self._read(arguments)
        self._check(found)
        return _with_defaults(found, self.defaults)

    @property
    def _schema(self) -> SchemaCheck:
        if not self._known:
            from noetic_py.tools.schema import SchemaCheck

            self._known.append(SchemaCheck(self.tool, self.schema, self.secret))
        return self._known[0]

    def _check(self, found: Mapping[str, Any]) -> None:
        problems = self._schema.problems(found)
        if problems:
            lines = problems[:_PROBLEMS]
            if len(problems) > _PROBLEMS:
                lines.append(f"and {len(problems) - _PROBLEMS} more")
            raise _arguments_invalid(self.tool, lines)

    def _read(self, arguments: str) -> dict[str, object]:
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

    def received(self, values: Mapping[str, object]) -> dict[str, JsonValue]:
        """The sent arguments, and those that the function or the schema adds: a default, or a hidden value."""
        # A default of the function itself takes precedence over the schema.
        given = {name: as_received(value) for name, value in {**self.defaults, **values}.items()}
        unknown = not_shown("not sent, the tool decides")
        whole = {**dict.fromkeys(self._schema.names(given), unknown), **self._schema.filled(given)}
        return {name: MASK if name in self.secret else value for name, value in whole.items()}


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
    defaults = {parameter.name: parameter.default for parameter in parameters if not parameter.required}
    return ModelledArguments(
        tool, schema, injected, model, names, defaults, frozenset(droppable), secret_parameters(raw)
    )


def _field(parameter: Parameter) -> object:
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
    # The model knows the tool by the name that it was offered.
    tool = tool.replace("/", "__")
    message = "\n- ".join([f"the arguments of {tool} are not valid:", *problems])
    return ToolArgumentsInvalid(message, tool=tool, hint=f"send a JSON object that fits the parameters of {tool}")


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def dotted(location: Iterable[int | str]) -> str:
    """A place inside a value, as code would name it: `lines[0].price`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _shorten(value: object) -> str:
    if isinstance(value, str):
        value = value[:_SHOWN]
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = with_article(type(value).__name__)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
