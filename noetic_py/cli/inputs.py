"""Reads command lines: the input of a run by the step's type, limits, and spans of time."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from collections.abc import Generator as AbcGenerator
from collections.abc import Iterable as AbcIterable
from collections.abc import Iterator as AbcIterator
from collections.abc import Sequence as AbcSequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import attrs

from noetic_py.context.step import AnyStep, entry_of, function_of
from noetic_py.core.budget import Budget
from noetic_py.core.types import annotations_of
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.steps.flow import BranchSpec, ParallelSpec
from noetic_py.steps.tool import ToolSpec


class Special(Enum):
    """Inputs that no type is needed for."""

    NOTHING = "nothing"
    """The step takes no input."""
    TEXT = "text"
    """The step takes text, or nothing tells what it takes."""


def input_type(step: AnyStep) -> Any:
    """The type of a step's input: a type for pydantic, or one of `Special`."""
    if step.bound is not None:
        return Special.NOTHING
    function = function_of(step)
    if function is not None:
        return _of_function(function, Special.NOTHING)
    spec: object = step.spec
    match spec:
        case BranchSpec():
            return _of_branch(spec)
        case ParallelSpec():
            return _of_section(spec)
        case ToolSpec():
            return _of_function(spec.args, Special.NOTHING) if callable(spec.args) else Special.NOTHING
        case _:
            entry = entry_of(step)
            return Special.TEXT if entry is None else input_type(entry)


def _of_function(function: Callable[..., Any], without: Special) -> Any:
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return Special.TEXT
    if first is None:
        return without
    return _plain(annotations_of(function).get(first.name, Any))


def _of_branch(spec: BranchSpec) -> Any:
    found = _of_function(spec.route, Special.TEXT)
    if found is not Special.TEXT:
        return found
    cases = [*(spec.cases or {}).values(), *([spec.default] if spec.default is not None else [])]
    return next((kind for kind in map(input_type, cases) if kind is not Special.NOTHING), Special.TEXT)


def _of_section(spec: ParallelSpec) -> Any:
    if spec.each is not None:
        element = input_type(spec.each)
        return _list_of(Any if isinstance(element, Special) else element)
    if spec.make is not None:
        return _of_function(spec.make, Special.TEXT)
    kinds = [input_type(path) for path in spec.paths]
    return next((kind for kind in kinds if kind is not Special.NOTHING), Special.NOTHING)


def _plain(hint: Any) -> Any:
    """The hint without what does not matter here: aliases, and laziness that would put errors off."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if hint in (Any, object, str, inspect.Parameter.empty) or isinstance(hint, (str, TypeVar)):
        return Special.TEXT
    origin = get_origin(hint)
    if origin in (Union, UnionType) and str in get_args(hint):
        return Special.TEXT
    if (origin or hint) in (AbcIterable, AbcIterator, AbcGenerator):
        return _list_of((*get_args(hint), Any)[0])
    return hint


def _list_of(element: Any) -> Any:
    return GenericAlias(list, (element,))


def read_input(step: AnyStep, argument: str | None) -> Any:
    """Read the input that a step is given.

    Args:
        step: The step.
        argument: The command line's: text, `@file`, `-` for standard input, `@@...` for text that begins with `@`, or
            `None` when there is none.

    Raises:
        ConfigError: There is none and the step needs one, it cannot be read, or it does not fit the step's type.
    """
    kind = input_type(step)
    if kind is Special.NOTHING:
        if argument is not None:
            raise ConfigError(f"step {step.id!r} takes no input", code="input", hint="leave INPUT out")
        return None
    text = _text(step, argument)
    if text is None:
        if kind is not Special.TEXT and type(None) in get_args(kind):
            return None
        raise ConfigError(
            f"step {step.id!r} needs an input{_wanted(kind)}",
            code="input",
            hint="give INPUT, @FILE, or - with something on standard input",
        )
    return text if kind is Special.TEXT else _parse(step, kind, text)


def _text(step: AnyStep, argument: str | None) -> str | None:
    if argument is None:
        if sys.stdin is None or sys.stdin.isatty():
            return None
        # Nothing at all is not an input: so it is where a scheduler starts the command.
        return _decode(sys.stdin.buffer.read(), "standard input") or None
    if argument == "-":
        if sys.stdin is None:
            raise ConfigError("standard input is closed", code="input", hint="give INPUT or @FILE")
        return _decode(sys.stdin.buffer.read(), "standard input")
    if argument.startswith("@@") or not argument.startswith("@"):
        return argument.removeprefix("@") if argument.startswith("@@") else argument
    path = Path(argument[1:])
    try:
        return _decode(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror or error}",
            code="input",
            hint=f"@FILE reads a file; for the text itself write '@{argument}'",
        ) from error


def _decode(data: bytes, source: str) -> str:
    """Text without the line end that editors and shells put last."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text: {error.reason}", code="input", hint="convert it") from error
    return text.removesuffix("\n").removesuffix("\r")


def _parse(step: AnyStep, kind: Any, text: str) -> Any:
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return _structure(step, kind, text)
    is_text = get_origin(kind) is Annotated and get_args(kind)[0] is str
    try:
        return adapter.validate_python(text) if is_text else adapter.validate_json(text)
    except ValidationError as error:
        try:
            # Dates, paths, names of choices: what JSON has quotes for is taken without them.
            return adapter.validate_strings(text)
        except ValidationError:
            raise _unfit(step, kind, _problems(error), _example(adapter)) from error


def _structure(step: AnyStep, kind: Any, text: str) -> Any:
    """Values of classes that pydantic does not know, attrs classes before all."""
    from noetic_py.core.codec import Codec

    try:
        return Codec().loads(text, kind)
    except (NoeticError, TypeError) as error:
        fields = [each.name for each in attrs.fields(kind)] if isinstance(kind, type) and attrs.has(kind) else []
        example = _outline(dict.fromkeys(fields, "..."))
        raise _unfit(step, kind, getattr(error, "message", str(error)), example) from error


def _unfit(step: AnyStep, kind: Any, problems: str, example: str | None) -> ConfigError:
    hint = f"JSON such as {example}" if example else "JSON that fits it"
    return ConfigError(f"INPUT does not fit step {step.id!r}{_wanted(kind)}: {problems}", code="input", hint=hint)


def _problems(error: Any) -> str:
    found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}".lstrip(": ") for each in error.errors()]
    return "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _example(adapter: Any) -> str | None:
    """The outline of an object, from its schema."""
    fields = adapter.json_schema().get("properties", {})
    return _outline({name: about.get("type", "...") for name, about in fields.items()})


def _outline(fields: Mapping[str, str]) -> str | None:
    return "{" + ", ".join(f'"{name}": {kind}' for name, kind in fields.items()) + "}" if fields else None


def _wanted(kind: Any) -> str:
    if isinstance(kind, Special):
        return ""
    return f" of type {kind.__name__ if isinstance(kind, type) and not get_args(kind) else kind}"


# -- limits and spans of time

_COUNTS = (
    "steps",
    "model_calls",
    "tool_calls",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "tokens",
    "depth",
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MOST_DAYS = 100_000


def with_limits(base: Budget | None, options: AbcSequence[str]) -> Budget | None:
    """A budget in which some limits are replaced.

    Args:
        base: The budget; `None` for one without limits.
        options: Limits as `NAME=VALUE`.

    Raises:
        ConfigError: A name is unknown, or a value none; code `"budget"`.
    """
    if not options:
        return base
    limits: dict[str, Any] = {}
    if base is not None:
        limits = {name: amount for name, amount in base.limits.items() if ":" not in name and name != "cost"}
        limits = {name: int(amount) for name, amount in limits.items()}
        limits |= {"cost": base.limits.get("cost"), "per_tool": base.per_tool, "seconds": base.seconds}
        limits |= {"depth": base.depth, "warn_at": base.warn_at, "wrap_up": base.wrap_up, "reserve": base.reserve}
    for each in options:
        name, _, value = each.partition("=")
        limits[name] = _limit(name, value)
    return Budget(**limits)


def _limit(name: str, value: str) -> int | float | str:
    try:
        if name in _COUNTS:
            return int(value.replace("_", ""))
        if name == "seconds":
            return float(value)
    except ValueError:
        raise ConfigError(
            f"{name}={value!r} is not a valid limit; expected a number", code="budget", hint="--budget steps=20"
        ) from None
    if name == "cost":
        return value
    raise ConfigError(
        f"--budget knows no {name!r}", code="budget", hint=f"one of {', '.join((*_COUNTS, 'cost', 'seconds'))}"
    )


def read_age(text: str) -> timedelta:
    """A span of time such as `30d`, `12h` or `90s`.

    Raises:
        ConfigError: It is not valid; code `"age"`.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is not None:
        span = float(found[1])
        unit = _UNITS[found[2]]
        if span <= _MOST_DAYS:
            return timedelta(**{unit: span})
    raise ConfigError(
        f"{text!r} is not a valid span of time; expected a number with a unit",
        code="age",
        hint="30d, 12h, 90m, 45s or 2w",
    )
