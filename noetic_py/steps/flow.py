"""Composites without a loop: `sequence`, `branch`, `parallel`, `race`, `settle`, `each`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, TypeAlias, get_args, get_origin, overload

from attrs import field, frozen
from typing_extensions import override

from noetic_py.context.context import Context
from noetic_py.context.read import ReadContext
from noetic_py.context.step import ADDED, AnyStep, HandOn, Spec, Step, check_id, in_sequence, require_step
from noetic_py.core.diagnostics import known_keywords
from noetic_py.core.types import A, B, C, D, E, K, M, O_co, R, S, ShareState, T, annotations_of
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.steps.spawn import spawn

__all__ = ["Settled", "branch", "check_shared", "each", "parallel", "race", "sequence", "settle"]

Mode: TypeAlias = Literal["all", "race", "settle"]


@frozen(eq=False)
class BranchSpec(Spec):
    """A route, and the cases it chooses from; without cases the route gives the step itself."""

    route: Callable[..., object]
    takes_context: bool
    cases: Mapping[object, AnyStep] | None
    default: AnyStep | None

    outline: ClassVar[tuple[str, str]] = ("{", "}")

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        cases = [(repr(key), each) for key, each in (self.cases or {}).items()]
        return cases + ([("otherwise", self.default)] if self.default is not None else [])

    @override
    def label(self, step: AnyStep) -> str:
        return Spec.label(self, step) + (": step chosen while running" if self.cases is None else "")


@frozen(eq=False)
class ParallelSpec(Spec):
    """Paths that run at once.

    Attributes:
        mode: `"all"` needs every path, `"race"` the first, `"settle"` takes what comes.
        paths: The steps, when they are known beforehand.
        make: A function of the input that gives them, when they are not.
        takes_context: Whether that function takes the context too.
        shape: What the outputs become: a tuple, a list, or what `merge` makes of them.
        merge: Called with the outputs, and with the context and the paths' states when it takes them.
        merge_arity: How many of those three it takes.
        concurrency: How many paths may run at once, `None` for all.
        each: The one step of `each`, whose paths are the input's elements.
        state: Whether the parent's state gets what the paths have changed.
    """

    mode: Mode
    paths: tuple[AnyStep, ...] = ()
    make: Callable[..., Any] | None = None
    takes_context: bool = False
    shape: Literal["tuple", "list"] = "list"
    merge: Callable[..., object] | None = None
    merge_arity: int = 0
    concurrency: int | None = None
    each: AnyStep | None = None
    state: ShareState = field(default="copy", metadata=ADDED)

    outline: ClassVar[tuple[str, str]] = ("[/", "/]")

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [("each", self.each)] if self.each is not None else [("", each) for each in self.paths]

    @override
    def label(self, step: AnyStep) -> str:
        kind = step.kind if self.mode == "all" else self.mode
        label = step.id if step.id == kind else f"{step.id} ({kind})"
        return label + (": paths made while running" if self.make is not None else "")


@frozen(eq=False)
class GatherSpec(Spec):
    """The steps of one `ctx.gather`, and whether they share their state."""

    steps: tuple[AnyStep, ...]
    state: ShareState = field(default="copy", metadata=ADDED)

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [("", each) for each in self.steps]


@frozen(eq=False)
class Settled(Generic[O_co]):
    """One path's outcome in `settle`; exactly one of value and error is set."""

    _value: Any = None
    error: NoeticError | None = None

    @property
    def ok(self) -> bool:
        """Whether the path finished."""
        return self.error is None

    @property
    def value(self) -> O_co:
        """The path's output.

        Raises:
            NoeticError: The path failed; its own error.
        """
        if self.error is not None:
            raise self.error
        value: O_co = self._value
        return value


# -- sequence


@overload
def sequence(a: Step[T, A, M, S], /, *, id: str | None = ..., hand_on: HandOn = ...) -> Step[T, A, M, S]: ...
@overload
def sequence(
    a: Step[T, A, M, S], b: Step[A, B, M, S], /, *, id: str | None = ..., hand_on: HandOn = ...
) -> Step[T, B, M, S]: ...
@overload
def sequence(
    a: Step[T, A, M, S], b: Step[A, B, M, S], c: Step[B, C, M, S], /, *, id: str | None = ...
) -> Step[T, C, M, S]: ...
@overload
def sequence(
    a: Step[T, A, M, S], b: Step[A, B, M, S], c: Step[B, C, M, S], d: Step[C, D, M, S], /, *, id: str | None = ...
) -> Step[T, D, M, S]: ...
@overload
def sequence(
    a: Step[T, A, M, S],
    b: Step[A, B, M, S],
    c: Step[B, C, M, S],
    d: Step[C, D, M, S],
    e: Step[D, E, M, S],
    /,
    *,
    id: str | None = ...,
    hand_on: HandOn = ...,
) -> Step[T, E, M, S]: ...
@overload
def sequence(
    a: Step[T, T, M, S], /, *rest: Step[T, T, M, S], id: str | None = ..., hand_on: HandOn = ...
) -> Step[T, T, M, S]: ...
@known_keywords("sequence()")
def sequence(*steps: object, id: str | None = None, hand_on: HandOn = "output") -> Any:
    """Steps one after the other; each gets what the one before returned. They share state and conversation.

    Args:
        *steps: At least one step.
        id: The step's id, `"sequence"` when left out.
        hand_on: What the next step gets of one whose output is `None`: that, or with `"text"` the text of the last
            answer in the sequence, or else what the step itself was given.

    Raises:
        ConfigError: No step, something that is not a step, two different steps given one id, or an unknown `hand_on`.
    """
    if not steps:
        raise ConfigError("sequence() needs a step", code="empty", hint="sequence(a, b)")
    if hand_on not in get_args(HandOn):
        raise ConfigError(f"hand_on={hand_on!r} is unknown", code="hand-on", hint='hand_on="output" or "text"')
    return in_sequence(steps, id, hand_on)


# -- branch


@overload
def branch(
    route: Callable[[T], K | Awaitable[K]],
    cases: Mapping[K, Step[T, R, M, S]],
    *,
    default: Step[T, R, M, S] | None = None,
    id: str | None = None,
) -> Step[T, R, M, S]: ...
@overload
def branch(
    route: Callable[[T, ReadContext[M, S]], K | Awaitable[K]],
    cases: Mapping[K, Step[T, R, M, S]],
    *,
    default: Step[T, R, M, S] | None = None,
    id: str | None = None,
) -> Step[T, R, M, S]: ...
@overload
def branch(
    route: Callable[[T, ReadContext[M, S]], Step[T, R, M, S] | Awaitable[Step[T, R, M, S]]],
    /,
    *,
    id: str | None = None,
) -> Step[T, R, M, S]: ...
@overload
def branch(
    route: Callable[[T, ReadContext[M, S]], Step[T, R, M, S] | Awaitable[Step[T, R, M, S] | None] | None],
    /,
    *,
    id: str | None = None,
) -> Step[T, R | T, M, S]: ...
@known_keywords("branch()")
def branch(
    route: object,
    cases: Mapping[Any, AnyStep] | None = None,
    *,
    default: AnyStep | None = None,
    id: str | None = None,
) -> Any:
    """Choose a step by the input: by key, or by a function that gives the step itself.

    Args:
        route: `(input)` or `(input, ctx)`, sync or async. With `cases` it gives a key; a `Literal` or `Enum` return
            annotation is checked against the cases at once. Without, it gives a step, or `None` to pass the input on.
        cases: The step of each key.
        default: The step for every other key.
        id: The step's id, `"branch"` when left out.

    Raises:
        ConfigError: A key of the return annotation has no case, or a case no key; code `"branch-cases"`.
    """
    if not callable(route):
        raise ConfigError(
            f"branch needs a function, not {route!r}", code="branch-route", hint="branch(route, {'a': step_a})"
        )
    steps = None if cases is None else {key: require_step(step, "branch") for key, step in cases.items()}
    if steps is not None:
        _check_cases(route, steps, default is not None)
    every = [] if steps is None else [*steps.values(), *([default] if default is not None else [])]
    made: AnyStep = Step(
        id=check_id(id) if id is not None else "branch",
        kind="branch",
        spec=BranchSpec(route, _arity(route) > 1, steps, None if default is None else require_step(default, "branch")),
        goes_on=bool(every) and all(step.goes_on for step in every),
        named=id is not None,
    )
    return made


def _check_cases(route: Callable[..., object], cases: Mapping[object, AnyStep], has_default: bool) -> None:
    if not cases:
        raise ConfigError("branch has no cases", code="branch-cases", hint='branch(route, {"a": step_a})')
    keys = _returned_keys(route)
    if keys is None:
        return
    missing = [key for key in keys if key not in cases]
    unknown = [key for key in cases if key not in keys]
    if missing and not has_default:
        raise ConfigError(f"branch has no case for {missing[0]!r}", code="branch-cases", hint="add it, or default=")
    if unknown:
        raise ConfigError(
            f"the route never gives {unknown[0]!r}", code="branch-cases", hint=f"its keys are {list(keys)}"
        )


def _returned_keys(route: Callable[..., object]) -> Sequence[object] | None:
    # One that cannot be evaluated here is checked when the route has run.
    hint = annotations_of(route).get("return")
    if get_origin(hint) is Literal:
        return get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)
    return None


def _arity(function: Callable[..., object]) -> int:
    """How many positional arguments it takes, at most 3."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    return min(3, sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters))


# -- parallel and its like


@overload
def parallel(
    a: Step[T, A, M, S],
    b: Step[T, B, M, S],
    /,
    *,
    id: str | None = ...,
    concurrency: int | None = ...,
    state: ShareState = ...,
) -> Step[T, tuple[A, B], M, S]: ...
@overload
def parallel(
    a: Step[T, A, M, S],
    b: Step[T, B, M, S],
    c: Step[T, C, M, S],
    /,
    *,
    id: str | None = ...,
    concurrency: int | None = ...,
    state: ShareState = ...,
) -> Step[T, tuple[A, B, C], M, S]: ...
@overload
def parallel(
    a: Step[T, A, M, S],
    b: Step[T, B, M, S],
    c: Step[T, C, M, S],
    d: Step[T, D, M, S],
    /,
    *,
    id: str | None = ...,
    concurrency: int | None = ...,
    state: ShareState = ...,
) -> Step[T, tuple[A, B, C, D], M, S]: ...
@overload
def parallel(
    paths: Iterable[Step[T, R, M, S]] | Callable[[T, Context[M, S]], Iterable[Step[T, R, M, S]]],
    /,
    *,
    merge: Callable[[Sequence[R], Context[M, S]], A] | Callable[[Sequence[R], Context[M, S], Sequence[S]], A],
    id: str | None = ...,
    concurrency: int | None = ...,
    state: ShareState = ...,
) -> Step[T, A, M, S]: ...
@overload
def parallel(
    paths: Iterable[Step[T, R, M, S]] | Callable[[T, Context[M, S]], Iterable[Step[T, R, M, S]]],
    /,
    *,
    id: str | None = ...,
    concurrency: int | None = ...,
    state: ShareState = ...,
) -> Step[T, list[R], M, S]: ...
@known_keywords("parallel()")
def parallel(
    *steps: object,
    merge: object = None,
    id: str | None = None,
    concurrency: int | None = None,
    state: ShareState = "copy",
) -> Any:
    """Run steps at once, each on the input, with a deep copy of the state and a view of the conversation of its own.

    The first failure cancels the others. Afterwards the parent's conversation is as it was, and so is its state, unless
    `merge` changes it or the paths share theirs.

    Args:
        *steps: Two to four steps, or one iterable of steps, or a function `(input, ctx)` that gives them.
        merge: `(outputs, ctx)`, or `(outputs, ctx, states)` to see the paths' states: makes the step's output, and may
            change `ctx.state`.
        id: The step's id, `"parallel"` when left out.
        concurrency: How many paths may run at once.
        state: `"share"` puts what the paths have changed into the parent's state once all have ended, in their order.
            Until then a path sees its own changes and not those of the others, because an attempt that fails, or a
            crash, takes changes back.

    Raises:
        ConfigError: No paths, something that is not a step, a concurrency below 1, or an unknown `state`.
        ParallelFailed: While running: a path failed.
    """
    if len(steps) == 1 and not isinstance(steps[0], Step):
        return _section("all", "parallel", steps[0], merge, id, concurrency, state=state)
    return _section("all", "parallel", steps, merge, id, concurrency, shape="tuple", state=state)


@known_keywords("race()")
def race(
    paths: Iterable[Step[T, R, M, S]] | Callable[[T, Context[M, S]], Iterable[Step[T, R, M, S]]],
    /,
    *,
    id: str | None = None,
    concurrency: int | None = None,
) -> Step[T, R, M, S]:
    """Run steps at once and take the first that finishes; the others are cancelled and leave nothing.

    The winner's state replaces the parent's, and its items join the parent's conversation.

    Args:
        paths: Steps, or a function `(input, ctx)` that gives them.
        id: The step's id, `"race"` when left out.
        concurrency: How many paths may run at once.

    Raises:
        ConfigError: No paths, something that is not a step, or a concurrency below 1.
        ParallelFailed: While running: every path failed.
    """
    return _section("race", "race", paths, None, id, concurrency)


@overload
def settle(
    paths: Iterable[Step[T, R, M, S]] | Callable[[T, Context[M, S]], Iterable[Step[T, R, M, S]]],
    /,
    *,
    merge: Callable[[Sequence[Settled[R]], Context[M, S]], A]
    | Callable[[Sequence[Settled[R]], Context[M, S], Sequence[S]], A],
    id: str | None = ...,
    concurrency: int | None = ...,
    state: ShareState = ...,
) -> Step[T, A, M, S]: ...
@overload
def settle(
    paths: Iterable[Step[T, R, M, S]] | Callable[[T, Context[M, S]], Iterable[Step[T, R, M, S]]],
    /,
    *,
    id: str | None = ...,
    concurrency: int | None = ...,
    state: ShareState = ...,
) -> Step[T, list[Settled[R]], M, S]: ...
@known_keywords("settle()")
def settle(
    paths: object,
    /,
    *,
    merge: object = None,
    id: str | None = None,
    concurrency: int | None = None,
    state: ShareState = "copy",
) -> Any:
    """Run steps at once and wait for all; a failure is an outcome like a value, and cancels no other step.

    Args:
        paths: Steps, or a function `(input, ctx)` that gives them.
        merge: As in [`parallel`][noetic_py.parallel], with the outcomes.
        id: The step's id, `"settle"` when left out.
        concurrency: How many paths may run at once.
        state: As in `parallel`, of the paths that have succeeded.

    Raises:
        ConfigError: No paths, something that is not a step, a concurrency below 1, or an unknown `state`.
    """
    return _section("settle", "settle", paths, merge, id, concurrency, state=state)


@known_keywords("each()")
def each(
    step: Step[T, R, M, S],
    /,
    *,
    id: str | None = None,
    concurrency: int | None = None,
    state: ShareState = "copy",
    queue: str | None = None,
) -> Step[Iterable[T], list[R], M, S]:
    """Run one step on every element of the input, at once, as `parallel` does; the outputs come in the input's order.

    Args:
        step: The step.
        id: The step's id, `"each"` when left out.
        concurrency: How many elements may be worked on at once.
        state: As in `parallel`.
        queue: Has workers carry the step out, as `each(spawn(step, queue=queue))` does; see [`spawn`][noetic_py.spawn].

    Raises:
        ConfigError: Something that is not a step, a concurrency below 1, or an unknown `state`.
        ParallelFailed: While running: an element failed.
    """
    inner: AnyStep = require_step(step, "each")
    if queue is not None:
        inner = spawn(inner, queue=queue)
    spec = ParallelSpec(
        mode="all", concurrency=_check_concurrency(concurrency), each=inner, state=check_shared(state, "each")
    )
    made: AnyStep = Step(
        id=check_id(id) if id is not None else "each", kind="parallel", spec=spec, named=id is not None
    )
    return made


def check_shared(state: object, name: str) -> ShareState:
    """Whether paths share their state.

    Raises:
        ConfigError: It is neither `"copy"` nor `"share"`; code `"path-state"`.
    """
    if state == "share":
        return "share"
    if state != "copy":
        raise ConfigError(f"{name}: state={state!r} is unknown", code="path-state", hint='state="copy" or "share"')
    return "copy"


def _check_concurrency(concurrency: object) -> int | None:
    if concurrency is None:
        return None
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigError(f"concurrency={concurrency!r} is not 1 or more", code="concurrency", hint="concurrency=4")
    return int(concurrency)


def _iterable(value: Any, name: str) -> Iterable[object]:
    try:
        iter(value)
    except TypeError:
        raise ConfigError(f"{name} needs steps, not {value!r}", code="not-a-step", hint=f"{name}([a, b])") from None
    many: Iterable[object] = value
    return many


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, (Step, Iterable))


def _section(
    mode: Mode,
    name: str,
    paths: Any,
    merge: object,
    id: str | None,
    concurrency: int | None,
    *,
    shape: Literal["tuple", "list"] = "list",
    state: ShareState = "copy",
) -> AnyStep:
    takes_context = _is_function(paths)
    steps: tuple[AnyStep, ...] | None = None
    if not takes_context:
        steps = tuple(require_step(step, name) for step in _iterable(paths, name))
        if not steps:
            raise ConfigError(f"{name} needs a step", code="empty", hint=f"{name}([a, b])")
    if merge is not None and not callable(merge):
        raise ConfigError(f"merge={merge!r} is not a function", code="merge", hint="merge=lambda outputs, ctx: ...")
    spec = ParallelSpec(
        mode=mode,
        paths=steps or (),
        make=paths if steps is None else None,
        takes_context=takes_context and _arity(paths) > 1,
        shape=shape,
        merge=merge,
        merge_arity=0 if merge is None else _arity(merge),
        concurrency=_check_concurrency(concurrency),
        state=check_shared(state, name),
    )
    goes_on = steps is not None and all(step.goes_on for step in steps)
    made: AnyStep = Step(
        id=check_id(id) if id is not None else name, kind="parallel", spec=spec, goes_on=goes_on, named=id is not None
    )
    return made
