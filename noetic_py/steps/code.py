"""`@step`: an async function becomes a step."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, is_typeddict, overload

from typing_extensions import Unpack

from noetic_py.context.context import Context
from noetic_py.context.step import AnyStep, Step, StepOptions, body_of, check_id, function_of, read_options
from noetic_py.core.codec.structure import type_name
from noetic_py.core.diagnostics import where_defined
from noetic_py.core.types import M, R, S, T, annotations_of
from noetic_py.errors import ConfigError
from noetic_py.steps.handoff import MAX_HANDOFFS, Handoff, HandoffTargets, with_handoffs

# So many elements of a list that a failed step was given are compared with its annotation.
_LOOKED_AT = 100


class StepDecorator(Protocol):
    """The decorator that `@step(...)` returns. A function that returns `R | Handoff[R]` makes a step of `R`."""

    @overload
    def __call__(self, fn: Callable[[T, Context[M, S]], Awaitable[Handoff[R]]], /) -> Step[T, R, M, S]: ...
    @overload
    def __call__(self, fn: Callable[[T, Context[M, S]], Awaitable[R | Handoff[R]]], /) -> Step[T, R, M, S]: ...
    @overload
    def __call__(self, fn: Callable[[T], Awaitable[Handoff[R]]], /) -> Step[T, R]: ...
    @overload
    def __call__(self, fn: Callable[[T], Awaitable[R | Handoff[R]]], /) -> Step[T, R]: ...
    @overload
    def __call__(self, fn: Callable[[], Awaitable[Handoff[R]]], /) -> Step[object, R]: ...
    @overload
    def __call__(self, fn: Callable[[], Awaitable[R | Handoff[R]]], /) -> Step[object, R]: ...


@overload
def step(fn: Callable[[T, Context[M, S]], Awaitable[R]], /) -> Step[T, R, M, S]: ...
@overload
def step(fn: Callable[[T], Awaitable[R]], /) -> Step[T, R]: ...
@overload
def step(fn: Callable[[], Awaitable[R]], /) -> Step[object, R]: ...
@overload
def step(*, handoffs: HandoffTargets, max_handoffs: int = ..., **options: Unpack[StepOptions]) -> StepDecorator: ...
@overload
def step(**options: Unpack[StepOptions]) -> StepDecorator: ...
def step(fn: object = None, /, **options: object) -> Any:
    """Make a step of an async function that takes `(input, ctx)`, `(input)` or nothing.

    Args:
        fn: The function.
        **options: See [`StepOptions`][noetic_py.context.step.StepOptions]. With `handoffs=`, the steps it may hand over
            to or a function that gives them, the function may return a [`Handoff`][noetic_py.Handoff]; `max_handoffs=`
            is how many one chain that begins here may have, 1,000 when left out. The options then are those of this
            step alone, not of the steps that it hands over to.

    Returns:
        The step, or with options a decorator.

    Raises:
        ConfigError: The function is sync, a method, or takes something else; code `"step-signature"`. Or `handoffs` or
            `max_handoffs` is out of range; code `"handoff"`.
        HandoffLimit: While running: there were more handoffs than `max_handoffs`.
    """
    if fn is None:
        return partial(_make, options=options)
    return _make(fn, options)


def _make(fn: Any, options: Any) -> AnyStep:
    options = dict(options)
    handoffs, limit = options.pop("handoffs", None), options.pop("max_handoffs", MAX_HANDOFFS)
    fields = read_options(options)
    parameters = _check(fn)
    name = fields.pop("id", None) or check_id(_name(fn))
    made: AnyStep = Step(
        id=name,
        kind="code",
        spec=fn,
        body=body_of(fn, len(parameters)),
        counted=True,
        goes_on=bool(parameters) and takes_none(fn, parameters[0]),
        **fields,
    )
    return made if handoffs is None else with_handoffs(made, handoffs, limit)


def _name(fn: object) -> str:
    name: str | None = getattr(fn, "__name__", None)
    if name is None:
        raise ConfigError(f"{fn!r} has no name", code="step-id", hint='step(id="...")(function)')
    return "lambda" if name == "<lambda>" else name


def _check(fn: Any) -> list[inspect.Parameter]:
    if isinstance(fn, Step):
        raise ConfigError(
            f"{fn!r} is a step already", code="step-signature", hint="with_options(...) changes its options"
        )
    if not callable(fn) or isinstance(fn, type):
        raise ConfigError(
            f"@step needs an async function, not {fn!r}", code="step-signature", hint="put it on an async def"
        )
    place = where_defined(fn)
    if isinstance(fn, (staticmethod, classmethod)) or inspect.ismethod(fn) or _is_method(fn):
        raise ConfigError(
            f"{place} is a method",
            code="step-signature",
            hint="a step is a value without self: use a function, and services= for what it needs",
        )
    if inspect.isasyncgenfunction(fn):
        raise ConfigError(
            f"{place} yields; a step returns one value",
            code="step-signature",
            hint="return the result; report meanwhile with ctx.progress(...) or ctx.emit(...)",
        )
    if not inspect.iscoroutinefunction(fn):
        raise ConfigError(
            f"{where_defined(fn)} is not async",
            code="step-signature",
            hint="async def; anyio.to_thread.run_sync for blocking work",
        )
    parameters = list(inspect.signature(fn).parameters.values())
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) or len(parameters) > 2:
        raise ConfigError(
            f"{where_defined(fn)} takes {inspect.signature(fn)}; expected (input, ctx), (input) or nothing",
            code="step-signature",
            hint="put several values into one input, a tuple or a class",
        )
    if len(parameters) == 2 and not _may_be_context(fn, parameters[1]):
        second = parameters[1]
        raise ConfigError(
            f"{where_defined(fn)}: the second parameter of a step is its context, and {str(second)!r} is not",
            code="step-signature",
            hint=f"put {second.name!r} into the input (a tuple or a class), or annotate it: {second.name}: Context",
        )
    if len(parameters) == 1 and _is_context(fn, parameters[0]):
        raise ConfigError(
            f"{where_defined(fn)} takes the context alone",
            code="step-signature",
            hint=f"async def {_name(fn)}(input: object, ctx: Context)",
        )
    return parameters


def _is_method(fn: Any) -> bool:
    outer = getattr(fn, "__qualname__", "").rpartition(".")[0]
    first = next(iter(inspect.signature(fn).parameters), None)
    return bool(outer) and not outer.endswith("<locals>") and first in ("self", "cls")


def _is_context(fn: object, parameter: inspect.Parameter) -> bool:
    hint = _hint(fn, parameter)
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "Context"
    return getattr(get_origin(hint) or hint, "__noetic_context__", False) is True or (
        hint is inspect.Parameter.empty and parameter.name in ("ctx", "context")
    )


def wrong_input(step: AnyStep, value: object, giver: str | None) -> str | None:
    """The message for an input that does not fit the annotation of a step's function; `None` if it may fit.

    Args:
        step: The step.
        value: What it was given.
        giver: Where that comes from, as the message says it: `"step 'search'"`.
    """
    function = function_of(step)
    if function is None:
        return None
    parameter = next(iter(inspect.signature(function).parameters.values()), None)
    wanted = None if parameter is None else _hint(function, parameter)
    given, giver = (value, giver) if step.bound is None else (step.bound.value, "bind()")
    try:
        if parameter is None or wanted is parameter.empty or _may_be(given, wanted):
            return None
    except Exception:  # noqa: BLE001 # a class may refuse the question, and that is not what has failed
        return None
    kind = type_name(wanted)
    return (
        f"step {step.id!r} was given {type_name(type(given))}{f' from {giver}' if giver else ''}, and its parameter "
        f"{parameter.name!r} is declared as {kind} ({where_defined(function)}); give it {kind}, or convert the value "
        "before"
    )


def _may_be(value: object, hint: object) -> bool:
    """Whether a value may be of an annotation's type: only what is plainly something else is not."""
    while inner := getattr(hint, "__value__", None) or getattr(hint, "__supertype__", None):
        hint = inner
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _may_be(value, inside[0])
    if origin in (Union, types.UnionType):
        return any(_may_be(value, each) for each in inside)
    if origin is Literal:
        return value in inside
    if hint is None or hint is Any:
        return hint is Any or value is None
    return _may_be_of(value, origin or hint, inside)


def _may_be_of(value: Any, kind: Any, inside: tuple[Any, ...]) -> bool:
    """Whether a value may be of a class with arguments: elements of a list or a set are looked at too."""
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if is_typeddict(kind):
        kind = Mapping
    elif kind in (float, complex):
        return isinstance(value, (kind, int, float))
    if not isinstance(value, kind):
        return False
    looked_at = islice(value, _LOOKED_AT) if len(inside) == 1 and kind in (list, set, frozenset) else ()
    return all(_may_be(item, inside[0]) for item in looked_at)


def _may_be_context(fn: object, parameter: inspect.Parameter) -> bool:
    """Whether a second parameter takes the context: its class says so, or without a class its name."""
    hint = _hint(fn, parameter)
    if isinstance(hint, str) and "Context" in hint:
        return True
    if hint is inspect.Parameter.empty or isinstance(hint, str):
        # A class that is only known to type checkers says as little as none.
        name = parameter.name.strip("_").lower()
        return name in ("", "c", "ctx", "context") or name.endswith(("ctx", "context"))
    return _takes(hint)


def _takes(hint: object) -> bool:
    """Whether a value of the annotation's type may be a context."""
    if isinstance(hint, TypeVar):
        bounds = hint.__constraints__ or (hint.__bound__,)
        return any(each is None or _takes(each) for each in bounds)
    inner = getattr(hint, "__value__", None) or getattr(hint, "__supertype__", None)
    if inner is not None:
        return _takes(inner)
    origin = get_origin(hint)
    if origin is Annotated or origin in (Union, types.UnionType):
        return any(_takes(each) for each in (get_args(hint)[:1] if origin is Annotated else get_args(hint)))
    kind = origin or hint
    if hint is Any or not isinstance(kind, type):
        return hint is Any
    return getattr(kind, "_is_protocol", False) or issubclass(Context, kind) or issubclass(kind, Context)


def _hint(fn: Any, parameter: inspect.Parameter) -> object:
    """The annotation, resolved when it is a text that resolves by now."""
    hint = parameter.annotation
    # Where it names something that is defined later, or for checkers alone, the text itself is looked at.
    return annotations_of(fn).get(parameter.name, hint) if isinstance(hint, str) else hint


def takes_none(fn: object, parameter: inspect.Parameter) -> bool:
    """Whether the input may be None, which is how a loop knows that the body can go on from the log."""
    hint = _hint(fn, parameter)
    if isinstance(hint, str):
        return hint.replace(" ", "").endswith("|None") or hint.startswith("Optional[")
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)
