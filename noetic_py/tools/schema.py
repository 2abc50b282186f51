"""Values checked against a JSON schema: arguments of tools whose schema comes from elsewhere, and answers.

The only module that imports jsonschema; it is imported when such a value first comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any

from jsonschema.exceptions import SchemaError, best_match  # pyright: ignore[reportUnknownVariableType] # as its stubs are
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from noetic_py.core.items import JsonValue
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import ConfigError
from noetic_py.tools.arguments import dotted
from noetic_py.tools.confidential import beside, properties_of

# Its stubs leave open what it returns.
_closest: Callable[[list[Any]], Any] = best_match  # pyright: ignore[reportUnknownVariableType]

_SHOWN = 200
# More than these are not reported, so more are not searched.
_MOST = 100
# Messages of these name parameters, and no values.
_NAMES_ONLY = frozenset({"required", "additionalProperties", "dependentRequired", "unevaluatedProperties"})


class SchemaCheck:
    """Says in what arguments do not fit a schema.

    A schema may refer to parts of itself. What it refers to elsewhere is not fetched.

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
        self._validator: Any = kind(schema, registry=Registry[Any]())

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


def _kinds(part: Mapping[str, object]) -> Iterator[object]:
    """The schema of each item of a list, `None` without one."""
    first, rest = part.get("prefixItems"), part.get("items")
    yield from first if is_list(first) else ()
    yield from rest if is_list(rest) else ()
    yield from repeat(rest if is_dict(rest) else None)
