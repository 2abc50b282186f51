"""Values checked against a JSON schema: arguments of tools whose schema comes from elsewhere, and answers.

The only module that imports jsonschema; it is imported when such a value first comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import repeat
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import SchemaError, ValidationError, best_match  # pyright: ignore[reportUnknownVariableType] # as its stubs are
from jsonschema.validators import Draft202012Validator, validator_for
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

from noetic_py.core.items import JsonValue
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import ConfigError
from noetic_py.tools.arguments import dotted
from noetic_py.tools.calls import beside, properties_of

# Its stubs leave open what it returns.
_extended: Callable[[Any, Mapping[str, Any]], Any] = validators.extend  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
_closest: Callable[[list[Any]], Any] = best_match  # pyright: ignore[reportUnknownVariableType]

_SHOWN = 200
# More than these are not reported, so more are not searched.
_MOST = 100
# What stands here is a value, and no schema.
_VALUES = frozenset({"const", "enum", "default", "examples"})
# Messages of these name parameters, and no values.
_NAMES_ONLY = frozenset({"required", "additionalProperties", "dependentRequired", "unevaluatedProperties"})


class SchemaCheck:
    """Says in what arguments do not fit a schema.

    A schema may refer to parts of itself. What it refers to elsewhere is not fetched. A regular expression takes time
    that grows as the text does; one that may need more, with a look-around or a back-reference, is not checked.

    Args:
        tool: The tool's name.
        schema: The JSON schema, of the draft that `$schema` names, 2020-12 when it names none.
        secret: Parameters whose values only the tool may see.

    Raises:
        ConfigError: It is not a JSON schema; code `"tool-schema"`.
    """

    def __init__(self, tool: str, schema: Mapping[str, JsonValue], secret: frozenset[str]) -> None:
        self._tool = tool
        self._secret = secret
        kind: Any = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise self._wrong(error.message) from error
        # An empty registry: the default one opens connections.
        self._validator: Any = _linear(kind)(_of_one_draft(schema), registry=Registry[Any]())

    def problems(self, arguments: JsonValue | Mapping[str, JsonValue]) -> list[str]:
        """Where arguments do not fit, and why, in the order of the schema: `"lines[0].price: -1 is less than 0"`.

        Raises:
            ConfigError: The schema refers to what is not in it; code `"tool-schema"`.
        """
        found: list[str] = []
        try:
            for error in self._validator.iter_errors(arguments):
                # Of several alternatives that do not fit, report the one that was most likely meant.
                inner = _closest([error])
                where = dotted(inner.absolute_path)
                found.append(f"{where}: {self._describe(inner)}" if where else self._describe(inner))
                if len(found) == _MOST:
                    break
        except Unresolvable as error:
            raise self._wrong(f"it refers to {error.ref!r:.200}, which is not in it") from error
        except RecursionError:
            found.append("nested too deeply")
        return found

    def filled(self, value: object, part: object = None) -> Any:
        """A value with the defaults that the schema has for what is not in it.

        Args:
            value: As JSON has it.
            part: The part of the schema that the value belongs to; the whole when left out.
        """
        parts = list(self._parts(self._validator.schema if part is None else part, value))
        for each in parts:
            if is_dict(value):
                value = self._with_defaults(value, each)
            elif is_list(value):
                both = zip(value, _kinds(each), strict=False)
                value = [one if kind is None else self.filled(one, kind) for one, kind in both]
        return value

    def names(self, value: Mapping[str, object]) -> list[str]:
        """The properties that the schema names for an object."""
        return [name for part in self._parts(self._validator.schema, value) for name in properties_of(part)]

    def _with_defaults(self, value: Mapping[str, object], part: Mapping[str, object]) -> dict[str, object]:
        found = dict(value)
        for name, each in properties_of(part).items():
            if name in found:
                found[name] = self.filled(found[name], each)
            else:
                absent = next((one for one in beside(each, self._validator.schema) if "default" in one), None)
                if absent is not None:
                    found[name] = self.filled(absent["default"], each)
        rest = part.get("additionalProperties")
        if is_dict(rest):
            found |= {name: self.filled(found[name], rest) for name in found.keys() - properties_of(part)}
        return found

    def _parts(self, part: object, value: object) -> Iterator[Mapping[str, Any]]:
        """The parts of the schema for a value: of several alternatives those that match."""
        for each in beside(part, self._validator.schema):
            try:
                fits = each is part or self._validator.evolve(schema=each).is_valid(value)
            except (Unresolvable, RecursionError):
                fits = True
            if fits:
                yield each

    def _describe(self, error: Any) -> str:
        path, message = error.absolute_path, str(error.message)
        if self._secret and error.validator not in _NAMES_ONLY and (not path or path[0] in self._secret):
            return f"does not fit the schema ({error.validator})"
        return message if len(message) <= _SHOWN else f"{message[: _SHOWN - 1]}…"

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"the parameters of tool {self._tool!r} are not a valid JSON schema: {why:.200}",
            code="tool-schema",
            hint="mend the schema where the tool comes from; references to other documents are not fetched",
        )


@lru_cache(maxsize=64)
def _linear(kind: Any) -> Any:
    """A validator whose regular expressions are linear: those of jsonschema are Python's, and may take any time.

    Whether properties are evaluated by a pattern is asked by jsonschema in a place of its own, so it is not checked.
    """
    own: dict[str, Any] = {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _rest}
    standard = kind.VALIDATORS.get("unevaluatedProperties")
    if standard is not None:

        def unevaluated(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            return iter(()) if _has_patterns(validator.schema) else standard(validator, value, instance, schema)

        own["unevaluatedProperties"] = unevaluated
    return _extended(kind, own)


def _of_one_draft(schema: object) -> Any:
    """A schema whose parts do not choose a draft for themselves, and with it a validator of jsonschema's own."""
    if is_dict(schema):
        kept = {name: each for name, each in schema.items() if name != "$schema" or not isinstance(each, str)}
        return {name: each if name in _VALUES else _of_one_draft(each) for name, each in kept.items()}
    return list(map(_of_one_draft, schema)) if is_list(schema) else schema


def _has_patterns(schema: object) -> bool:
    if is_dict(schema):
        return "patternProperties" in schema or any(map(_has_patterns, schema.values()))
    return is_list(schema) and any(map(_has_patterns, schema))


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Callable[[str], bool]:
    try:
        found = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError:
        return lambda _: True
    return found.isinstance_python


def _pattern(validator: Any, pattern: str, instance: object, schema: object) -> Iterator[Any]:
    if isinstance(instance, str) and not _matcher(pattern)(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: object, schema: object) -> Iterator[Any]:
    if is_dict(instance):
        for pattern, each in patterns.items():
            for name, value in instance.items():
                if _matcher(pattern)(name):
                    yield from validator.descend(value, each, path=name, schema_path=pattern)


def _rest(validator: Any, allowed: Any, instance: object, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Properties that the schema does not name, neither by their names nor by a pattern."""
    if not is_dict(instance):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [name for name in instance if name not in known and not any(_matcher(each)(name) for each in patterns)]
    if is_dict(allowed):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extra:
        names = ", ".join(map(repr, sorted(extra)))
        verb = "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


def _kinds(part: Mapping[str, object]) -> Iterator[object]:
    """The schema of each item of a list, `None` without one."""
    first, rest = part.get("prefixItems"), part.get("items")
    yield from first if is_list(first) else ()
    yield from rest if is_list(rest) else ()
    yield from repeat(rest if is_dict(rest) else None)
