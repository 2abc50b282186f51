"""Calling the function of a tool, and its value as the model reads it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, closing
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypeGuard

import attrs
from anyio import to_thread
from attrs import frozen

from noetic_py.core.items import ContentPart, InputText, OutputText
from noetic_py.core.secrets import is_secret
from noetic_py.errors import CodecError, ConfigError, NoContextError
from noetic_py.errors.redaction import MASK, redact
from noetic_py.tools.signature import Injected, Signature


def render_output(value: object, *, tool: str) -> str | tuple[ContentPart, ...]:
    """A tool's value as the output of a function call.

    Text and content parts stay as they are, `None` is an empty text. Everything else becomes compact JSON: JSON's own
    values, pydantic models, dataclasses, attrs classes, enums, dates, decimals, UUIDs, paths, sets and bytes that are
    text. This is for reading, not for storing: no type can be told from it afterwards. Secrets are masked, and so is
    every value that is known as one.

    Args:
        value: What the tool returned.
        tool: The tool's name, for messages.

    Raises:
        CodecError: There is no JSON for the value, or for something inside it.
    """
    if isinstance(value, str):
        return redact(value)
    if value is None:
        return ""
    if isinstance(value, ContentPart):
        return (_shown(value),)
    if _is_content(value):
        return tuple(InputText(text=redact(part)) if isinstance(part, str) else _shown(part) for part in value)
    if is_secret(value):
        return MASK
    # Loaded by now, because the arguments of the call were checked with it.
    from pydantic_core import to_json

    try:
        return redact(to_json(value, fallback=_fields, inf_nan_mode="strings").decode())
    except (ValueError, TypeError, RecursionError) as error:
        raise CodecError(
            f"tool {tool!r} returned a {type(value).__qualname__} that has no JSON form: {error}",
            hint="return text, JSON values, content parts, or a pydantic model, dataclass or attrs class of these",
        ) from error


def _is_content(value: object) -> TypeGuard[list[str | ContentPart] | tuple[str | ContentPart, ...]]:
    if not isinstance(value, list | tuple):
        return False
    kinds: list[type[object]] = [type(part) for part in _parts(value)]
    # A list of nothing but text is data, and no list of parts.
    return any(issubclass(kind, ContentPart) for kind in kinds) and all(issubclass(k, str | ContentPart) for k in kinds)


def _parts(value: Any) -> list[object]:
    return list(value)


def _shown(part: ContentPart) -> ContentPart:
    if isinstance(part, InputText | OutputText) and redact(part.text) != part.text:
        return attrs.evolve(part, text=redact(part.text))
    return part


def _fields(value: object) -> object:
    if is_secret(value):
        return MASK
    kind: type[object] = type(value)
    if not attrs.has(kind):
        raise TypeError(f"{kind.__qualname__} is not a class that can be read")
    return {f.name: getattr(value, f.name) for f in attrs.fields(kind)}


class _Missing(Enum):
    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing.MISSING
"""What an injector returns when it has nothing of the type; the function's default is used then."""

Injector: TypeAlias = Callable[[str, type[Any]], object]
"""Gives the value for a parameter, by its name and the class that is asked for, or `MISSING`."""

Emit: TypeAlias = Callable[[object], Awaitable[None] | None]
"""Takes each value of a generator tool, before the generator goes on."""


@frozen(eq=False)
class RunBinding:
    """What a run lends to a tool that is called directly from the body of a step.

    Attributes:
        ctx: The context.
        inject: Where injected values come from.
    """

    ctx: object
    inject: Injector


def _no_run() -> RunBinding | None:
    return None


_binding: Callable[[], RunBinding | None] = _no_run


def set_run_binding(source: Callable[[], RunBinding | None]) -> Callable[[], RunBinding | None]:
    """Say where a tool that is called directly finds its run, and return what held before; the engine does."""
    global _binding
    before, _binding = _binding, source
    return before


def inject_missing(
    tool: str, injected: Mapping[str, Injected], given: Mapping[str, object], inject: Injector
) -> dict[str, object]:
    """The values of injected parameters that were not given.

    Raises:
        ConfigError: There is nothing of the type, and the parameter has no default.
    """
    found: dict[str, object] = {}
    for parameter in injected.values():
        if parameter.name in given:
            continue
        value = inject(parameter.name, parameter.type)
        if value is not MISSING:
            found[parameter.name] = value
        elif parameter.required:
            kind = parameter.type.__qualname__
            raise ConfigError(
                f"tool {tool!r}: nothing of type {kind} to inject into parameter {parameter.name!r}",
                code="tool-injection",
                hint=f"give the run services={{{kind}: ...}}, or a layer of that type; data that the model is to send "
                "needs a type that pydantic knows",
            )
    return found


def fill_direct_call(
    tool: str,
    signature: Signature,
    injected: Callable[[], Mapping[str, Injected]],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a direct call, with what the run fills where the caller gave nothing.

    Raises:
        NoContextError: The tool takes a context, none was given, and there is no run to take it from.
    """
    run = _binding()
    if signature.context is not None and signature.context not in kwargs and not (args and _is_context(args[0])):
        if run is None:
            raise NoContextError(
                f"tool {tool!r} takes a context, and was called outside a run",
                hint="call it from a step, or give the context as its first argument",
            )
        args = (run.ctx, *args)
    if run is None:
        return args, kwargs
    given = signature.source.bind_partial(*args, **kwargs).arguments
    return args, kwargs | inject_missing(tool, injected(), given, run.inject)


def _is_context(value: object) -> bool:
    return getattr(type(value), "__noetic_context__", False) is True


# ------------------------------------------------------------------------------------------------------------- running


def kind_of(fn: Callable[..., object]) -> Literal["here", "thread"]:
    """Whether calling the function is quick, because it only makes a coroutine or a generator, or wants a thread."""
    # An object may have a `__call__` that is a coroutine function.
    for candidate in (fn, getattr(fn, "__call__")):  # noqa: B004, B009
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            return "here"
    return "thread"


async def run(
    fn: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    where: Literal["here", "thread"],
    emit: Emit | None = None,
) -> object:
    """Call the function and wait for its value; a generator is run to its end, and its values are a list.

    Context variables are seen in a worker thread as well; a cancelled call waits for the thread.
    """
    result: Any
    if where == "here":
        result = fn(*args, **kwargs)
    else:
        # Boxed, because trio refuses a bare coroutine that comes out of a thread.
        (result,) = await to_thread.run_sync(lambda: (fn(*args, **kwargs),))
    if inspect.isawaitable(result):
        result = await result
    if inspect.isasyncgen(result):
        return await _drain(result, emit)
    if inspect.isgenerator(result):
        return await _drain_in_thread(result, emit)
    return result


async def _drain(generator: AsyncGenerator[object, Any], emit: Emit | None) -> list[object]:
    values: list[object] = []
    async with aclosing(generator):
        async for value in generator:
            values.append(value)
            await _pass_on(value, emit)
    return values


async def _drain_in_thread(generator: Generator[object, Any, object], emit: Emit | None) -> list[object]:
    values: list[object] = []
    with closing(generator):
        while (value := await to_thread.run_sync(next, generator, MISSING)) is not MISSING:
            values.append(value)
            await _pass_on(value, emit)
    return values


async def _pass_on(value: object, emit: Emit | None) -> None:
    if emit is not None:
        done = emit(value)
        if done is not None:
            await done
