"""`Step`: a frozen value that says what to do; the engine does it.

A step has an id, a kind, options and a specification that only its kind's interpreter reads. `await other(input, ctx)`
from a body runs it as a child of that body.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from enum import Enum
from sys import _getframe  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar, overload

from attrs import evolve, field, frozen
from typing_extensions import TypedDict, TypeIs, Unpack, override

from noetic_py.context.graph import Box, drawn
from noetic_py.context.hooks import AnyHook, read_hooks, read_tags
from noetic_py.context.protocol import CURRENT
from noetic_py.context.read import AnyReadContext
from noetic_py.core.budget import Budget
from noetic_py.core.diagnostics import LOST, AwaitedCall, known_keywords, unknown_keyword, where_defined
from noetic_py.core.types import A, B, I_contra, M, M_contra, O_co, R, Replay, S, S_contra, T
from noetic_py.core.values import copy_value
from noetic_py.errors import ConfigError, NoContextError

if TYPE_CHECKING:
    from noetic_py.context.context import Context
    from noetic_py.core.memory import Memory

__all__ = ["ADDED", "NOT_DONE", "NotDone", "Reconcile", "Retry", "Step", "StepOptions", "check_id"]


ADDED: Mapping[str, Any] = {"added": True}
"""Marks an option that a kind of step did not always have: a step's fingerprint has it only where it is given."""


Backoff: TypeAlias = Literal["fixed", "linear", "exponential"]


class Retry:
    """How often a step is tried, and how long it waits between.

    Each new attempt starts from the step's state and log position; what its finished children did is undone with it.

    Args:
        attempts: Tries in all, at least 1.
        backoff: How the wait grows: not at all, by `initial` each time, or twice each time.
        initial: The first wait, in seconds.
        max: The longest wait, in seconds.
        jitter: Whether each wait is a random part, at least half, of what it would be.
        on: The exceptions worth another try: classes, or a function of the exception.

    Raises:
        ConfigError: A number is out of range; code `"retry"`.
    """

    __slots__ = ("attempts", "backoff", "initial", "jitter", "max", "on")

    @known_keywords("Retry()")
    def __init__(
        self,
        attempts: int = 3,
        *,
        backoff: Backoff = "exponential",
        initial: float = 0.5,
        max: float = 30.0,
        jitter: bool = True,
        on: tuple[type[Exception], ...] | Callable[[Exception], bool] = (Exception,),
    ) -> None:
        if not is_whole(attempts, 1):
            raise ConfigError(f"attempts={attempts!r} is not a whole number, 1 or more", code="retry", hint="Retry(3)")
        if not all(is_seconds(each) for each in (initial, max)):
            raise ConfigError(
                f"initial={initial!r} and max={max!r} are not both finite seconds, 0 or more",
                code="retry",
                hint="Retry(3, initial=0.5, max=30.0)",
            )
        if isinstance(on, tuple) and not _are_exceptions(on):
            raise ConfigError(
                f"on={on!r} is not valid; expected exception classes", code="retry", hint="on=(TimeoutError,)"
            )
        if isinstance(on, type) or not (isinstance(on, tuple) or callable(on)):
            raise ConfigError(f"on={on!r} is neither a tuple nor a function", code="retry", hint="on=(TimeoutError,)")
        if backoff not in ("fixed", "linear", "exponential"):
            raise ConfigError(
                f"backoff={backoff!r} is unknown", code="retry", hint='"fixed", "linear" or "exponential"'
            )
        self.attempts: int = attempts
        self.backoff: Backoff = backoff
        self.initial: float = initial
        self.max: float = max
        self.jitter: bool = jitter
        self.on: tuple[type[Exception], ...] | Callable[[Exception], bool] = on

    def wait(self, attempt: int, random: float) -> float:
        """Seconds to wait after the given attempt, counted from 1, failed."""
        growth = {"fixed": 1, "linear": attempt, "exponential": 1 << min(attempt - 1, 62)}[self.backoff]
        seconds = min(self.initial * growth, self.max)
        return seconds * (0.5 + random / 2) if self.jitter else seconds

    def covers(self, error: Exception) -> bool:
        """Whether the exception, or what caused it, is worth another try."""
        cause = error.__cause__
        found = (error, cause) if isinstance(cause, Exception) else (error,)
        on = self.on
        if isinstance(on, tuple):
            return any(isinstance(each, on) for each in found)
        return any(on(each) for each in found)


class NotDone(Enum):
    """The type of [`NOT_DONE`][noetic_py.NOT_DONE]."""

    NOT_DONE = "not done"


NOT_DONE = NotDone.NOT_DONE
"""Returned by `reconcile` when a step has not done its work and has to run."""

Reconcile: TypeAlias = Callable[[Any, AnyReadContext], Awaitable[Any]]
"""Says what became of a step that may run only once: its output, or `NOT_DONE`."""


class StepOptions(TypedDict, total=False):
    """Options that every step takes.

    Attributes:
        id: The step's id; a part of its path.
        retry: A number of attempts, or a [`Retry`][noetic_py.Retry].
        timeout: Seconds an attempt may take.
        replay: What a crash in the middle means: run again, run again with the same key, or never run twice.
        reconcile: For `replay="once"`: an async function `(input, ctx)` that is asked when the step was started before
            a crash, and it is not known whether it has done its work. It gives the step's output, or `NOT_DONE`, and
            then the step runs.
        budget: Limits for everything below the step.
        version: Stands for the source where there is none to fingerprint.
        tags: Words about the step, for lists and drawings, and for hooks.
        hooks: Functions that are called for it and for everything below it; see [`Hook`][noetic_py.context.hooks.Hook].
    """

    id: str
    retry: Retry | int
    timeout: float
    replay: Replay
    reconcile: Reconcile
    budget: Budget
    version: str
    tags: Iterable[str]
    hooks: Iterable[AnyHook]


_RESERVED = frozenset("/#[]")


def is_whole(value: object, least: int) -> bool:
    """Whether it is a whole number, and not below `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_seconds(value: object) -> bool:
    """Whether it is a finite number, 0 or more."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def check_id(id: object) -> str:
    """An id that can be a frame of a path.

    Raises:
        ConfigError: It is empty, too long, or holds one of `/ # [ ]` or a control character; code `"step-id"`.
    """
    if not isinstance(id, str) or not id or len(id) > 200:
        raise ConfigError(f"id={id!r} is not a text of 1 to 200 characters", code="step-id", hint='id="search"')
    if not id.isprintable() or not _RESERVED.isdisjoint(id):
        raise ConfigError(
            f"id={id!r} holds a character that paths use", code="step-id", hint="leave out / # [ ] and controls"
        )
    return str(id)


@frozen(eq=False)
class Bound:
    """An input tied to a step."""

    value: Any


Body: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


@frozen(eq=False, repr=False)
class Step(Generic[I_contra, O_co, M_contra, S_contra]):
    """Something to do with an input in a context; made by `step`, `call_model`, `sequence` and their like.

    Attributes:
        id: A part of its path.
        kind: What interprets it: `"code"`, `"model"`, `"tool"`, `"sequence"`, `"branch"`, `"parallel"`, `"loop"`, ...
        retry: How often it is tried, `None` for once.
        timeout: Seconds an attempt may take, `None` for any.
        replay: What a crash in its middle means.
        reconcile: Says what became of it, when it may run only once and a crash came in its middle.
        budget: Limits for everything below it.
        version: Stands for its source where there is none.
        tags: Words about the step, for lists and drawings, and for hooks.
        hooks: Functions that are called for it and for everything below it.
    """

    # A step is not data: it is passed on as it is.
    __noetic_shared__: ClassVar[bool] = True

    id: str
    kind: str
    spec: Any = field(default=None)
    body: Body | None = None
    counted: bool = False
    goes_on: bool = False
    named: bool = False
    retry: Retry | None = None
    timeout: float | None = None
    replay: Replay = "repeatable"
    reconcile: Reconcile | None = None
    budget: Budget | None = None
    version: str | None = None
    tags: frozenset[str] = frozenset()
    hooks: tuple[AnyHook, ...] = ()
    bound: Bound | None = None
    plain: bool = field(init=False, default=True)

    def __attrs_post_init__(self) -> None:
        plain = self.retry is None and self.timeout is None and self.budget is None and self.bound is None
        object.__setattr__(self, "plain", plain and not self.hooks)

    def __repr__(self) -> str:
        return f"<{self.kind} step {self.id!r}>"

    if TYPE_CHECKING:

        def __call__(self, input: I_contra, ctx: Context[M_contra, S_contra]) -> Coroutine[Any, Any, O_co]:
            """Run as a child of the body that `ctx` belongs to.

            Raises:
                ConcurrentStepCall: Another child of that body is in flight, or this is not the body's own task.
                NoContextError: `ctx` belongs to no run.
                NotAwaited: The call was not awaited; raised when the body ends.
            """
            ...

    else:

        def __call__(self, input: object = None, ctx: object = None) -> Any:
            """Run as a child of the body that `ctx` belongs to; without a context the error says so."""
            try:
                engine = ctx.engine
            except AttributeError:
                raise _without_context(self, ctx) from None
            return engine.call(ctx, self, input)

    def bind(self: Step[T, R, M, S], value: T, /, *, id: str | None = None) -> Step[object, R, M, S]:
        """The same step with an input of its own, whatever it is given."""
        bound: Step[Any, R, M, S] = evolve(
            self, bound=Bound(copy_value(value)), id=check_id(id) if id is not None else self.id
        )
        return bound

    def _repr_svg_(self) -> str:
        """The tree of steps as a picture, which a notebook shows."""
        return drawn(box_of(self), "svg")

    @overload
    def __rshift__(self: Step[T, A, Memory, object], other: Step[A, B, M, S]) -> Step[T, B, M, S]: ...
    @overload
    def __rshift__(self: Step[T, A, M, object], other: Step[A, B, M, S]) -> Step[T, B, M, S]: ...
    @overload
    def __rshift__(self: Step[T, A, Memory, S], other: Step[A, B, M, S]) -> Step[T, B, M, S]: ...
    @overload
    def __rshift__(self: Step[T, A, M, S], other: Step[A, B, M, S]) -> Step[T, B, M, S]: ...
    def __rshift__(self, other: object) -> Any:
        """`a >> b` gives `b` what `a` returns; chains are flat."""
        return chain(self, other)

    def with_options(self, **options: Unpack[StepOptions]) -> Self:
        """The same step with other options.

        Raises:
            ConfigError: An option is unknown or out of range.
        """
        fields = read_options(options)
        changed = getattr(self.spec, "changed", None)
        if changed is not None:
            fields = changed(fields)
        return evolve(self, **fields)


def _without_context(step: AnyStep, ctx: object) -> NoContextError:
    given = "without a context" if ctx is None else f"with {type(ctx).__name__} as its context"
    return NoContextError(
        f"step {step.id!r} was called {given}",
        hint=f"await {step.id}(input, ctx) inside a step, or await harness.run({step.id}, input)",
    )


_KNOWN = ("id", "retry", "timeout", "replay", "reconcile", "budget", "version", "tags", "hooks")


def read_options(options: Any) -> dict[str, Any]:
    """Check options as a user wrote them, and turn them into fields of a `Step`."""
    unknown = [name for name in options if name not in _KNOWN]
    if unknown:
        raise unknown_keyword("a step", unknown[0], _KNOWN, code="step-option")
    fields = dict(options)
    if "id" in fields:
        if fields["id"] is None:
            del fields["id"]
        else:
            check_id(fields["id"])
            fields["named"] = True
    if "retry" in fields:
        fields["retry"] = _read_retry(fields["retry"])
    _check_options(fields)
    if "tags" in fields:
        fields["tags"] = read_tags(fields["tags"], code="step-option")
    if "hooks" in fields:
        fields["hooks"] = read_hooks(fields["hooks"], "the step")
    return fields


def _check_options(fields: dict[str, object]) -> None:
    timeout = fields.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
        raise ConfigError(
            f"timeout={timeout!r} is not a number of seconds above 0", code="step-option", hint="timeout=30.0"
        )
    if fields.get("replay", "repeatable") not in ("repeatable", "keyed", "once"):
        raise ConfigError(
            f"replay={fields['replay']!r} is unknown", code="step-option", hint='"repeatable", "keyed" or "once"'
        )
    _check_reconcile(fields)
    if fields.get("budget") is not None and not isinstance(fields["budget"], Budget):
        raise ConfigError(
            f"budget={fields['budget']!r} is not a valid budget; expected a Budget",
            code="step-option",
            hint="budget=Budget(steps=10)",
        )
    if fields.get("version") is not None and not isinstance(fields["version"], str):
        raise ConfigError(f"version={fields['version']!r} is not a text", code="step-option", hint='version="2"')


def _check_reconcile(fields: dict[str, object]) -> None:
    reconcile = fields.get("reconcile")
    if reconcile is None:
        return
    if not inspect.iscoroutinefunction(reconcile):
        raise ConfigError(
            f"reconcile={reconcile!r} is not valid; expected an async function",
            code="step-option",
            hint="async def look(input, ctx): ...",
        )
    if fields.get("replay") != "once":
        raise ConfigError("reconcile= needs replay='once'", code="step-option", hint='replay="once"')


def _are_exceptions(given: Any) -> bool:
    return all(isinstance(each, type) and issubclass(each, Exception) for each in given)


def _read_retry(value: Any) -> Retry | None:
    if value is None or isinstance(value, Retry):
        return value
    return None if type(value) is int and value == 1 else Retry(value)


def is_step(value: object) -> TypeIs[AnyStep]:
    """Whether the value is a step, whatever it takes and gives."""
    return isinstance(value, Step)


def require_step(value: object, where: str) -> AnyStep:
    """The value itself when it is a step.

    Raises:
        ConfigError: It is not; code `"not-a-step"`.
    """
    if is_step(value):
        return value
    hint = "put @step on the function" if callable(value) else "@step, call_model(), sequence() and the like make one"
    if inspect.iscoroutine(value):
        hint = "pass the step itself or step.bind(input), without calling it"
    raise ConfigError(
        f"{where_defined(value)} is not a valid step for {where}; expected a Step", code="not-a-step", hint=hint
    )


def frames(steps: Iterable[AnyStep], where: str) -> tuple[str, ...]:
    """Path frames of steps in a row: the id, and `#n` where it occurs again.

    Raises:
        ConfigError: Two different steps were given one id; code `"duplicate-id"`.
    """
    seen: dict[str, tuple[AnyStep, int]] = {}
    found: list[str] = []
    for each in steps:
        first, count = seen.get(each.id, (each, 0))
        if first is not each and first.named and each.named and first.spec is not each.spec:
            raise ConfigError(
                f"{where} has two different steps with id {each.id!r}: {where_defined(first.spec):.200} and "
                f"{where_defined(each.spec):.200}",
                code="duplicate-id",
                hint='rename one: @step(id="..."), or step.with_options(id="...")',
            )
        seen[each.id] = (first, count + 1)
        found.append(frame(each.id, count))
    return tuple(found)


def frame(id: str, occurrence: int) -> str:
    """A path frame: `search` the first time, `search#1` the second."""
    return f"{id}#{occurrence}" if occurrence else id


HandOn: TypeAlias = Literal["output", "text"]


AnyStep: TypeAlias = Step[Any, Any, Any, Any]


class Spec:
    """The definition of a step; the defaults are those of a step without children.

    A kind of step that has parts derives its specification from this, so that nothing has to ask for its kind.
    """

    __slots__ = ()

    outline: ClassVar[tuple[str, str]] = ("[", "]")
    """The delimiters of its label in a Mermaid flowchart."""
    asks_model: ClassVar[bool] = False
    """Whether its input is what a model is asked."""

    typed_by_entry: ClassVar[bool] = False
    """Whether a model that calls it as a tool is shown the type of its first step's input, and not a text."""

    def entry(self) -> AnyStep | None:
        """The step that gets the step's input first, so that it declares the type of that."""
        return None

    def exit(self) -> AnyStep | None:
        """The step whose output is the step's, so that it declares the type of that."""
        return None

    def children(self) -> Sequence[tuple[str, AnyStep]]:
        """The steps that it declares, each with the label of the way to it."""
        return ()

    def label(self, step: AnyStep) -> str:
        """How a drawing names the step."""
        return step.id if step.id == step.kind else f"{step.id} ({step.kind})"

    def facts(self) -> Sequence[str]:
        """The lines below the label of a drawing: tools, conditions, types."""
        return ()


def entry_of(step: AnyStep) -> AnyStep | None:
    """The step that gets the step's input first, `None` when that is the step itself."""
    return step.spec.entry() if isinstance(step.spec, Spec) else None


def exit_of(step: AnyStep) -> AnyStep | None:
    """The step whose output is the step's, `None` when that is the step itself."""
    return step.spec.exit() if isinstance(step.spec, Spec) else None


def children_of(step: AnyStep) -> Sequence[tuple[str, AnyStep]]:
    """The steps that a step declares, each with the label of the way to it."""
    return step.spec.children() if isinstance(step.spec, Spec) else ()


def asks_model(step: AnyStep) -> bool:
    """Whether a step's input is what a model is asked."""
    return isinstance(step.spec, Spec) and step.spec.asks_model


def box_of(step: AnyStep) -> Box:
    """A step and all below it as they are drawn."""
    spec: object = step.spec
    below = [(way, box_of(child)) for way, child in children_of(step)]
    if isinstance(spec, Spec):
        return Box([spec.label(step), *spec.facts()], spec.outline, below)
    return Box([step.id], Spec.outline, below)


def function_of(step: AnyStep) -> Any:
    """The function that a step of code was made of, `None` of any other step."""
    return None if step.body is None else getattr(step.spec, "fn", step.spec)


def body_of(fn: object, arity: int) -> Body:
    """The body that calls a user's function, with as many of the input and the context as it takes."""
    if not (isinstance(fn, FunctionType) and fn.__code__.co_flags & inspect.CO_COROUTINE):
        # It may give an awaitable of any kind, and the engine drives coroutines.
        return lambda given, ctx: _awaited(fn, (given, ctx)[:arity])
    if arity == 2:
        body: Body = fn
        return body
    if arity == 1:
        return lambda given, ctx: fn(given)
    return lambda given, ctx: fn()


async def _awaited(fn: Any, args: tuple[object, ...]) -> object:
    return await fn(*args)


@frozen(eq=False)
class SequenceSpec(Spec):
    """Steps one after the other, with their path frames, and what is handed on where one has no output."""

    steps: tuple[AnyStep, ...]
    frames: tuple[str, ...]
    hand_on: HandOn = field(default="output", metadata=ADDED)

    typed_by_entry: ClassVar[bool] = True

    @override
    def entry(self) -> AnyStep:
        return self.steps[0]

    @override
    def exit(self) -> AnyStep:
        return self.steps[-1]

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [(str(number), each) for number, each in enumerate(self.steps, 1)]


def in_sequence(steps: Iterable[object], id: str | None, hand_on: HandOn = "output") -> AnyStep:
    """Steps one after the other, as a step."""
    each = tuple(require_step(step, "sequence") for step in steps)
    return Step(
        id=check_id(id) if id is not None else "sequence",
        kind="sequence",
        spec=SequenceSpec(each, frames(each, "sequence"), hand_on),
        goes_on=each[0].goes_on,
        named=id is not None,
    )


def chain(a: object, b: object) -> AnyStep:
    """The result of `a >> b`: one flat sequence, unless a part has a name or options."""
    parts: list[AnyStep] = []
    for part in (require_step(a, ">>"), require_step(b, ">>")):
        spec: object = part.spec
        plain = part.plain and not part.named and not part.tags
        parts += spec.steps if plain and isinstance(spec, SequenceSpec) and spec.hand_on == "output" else (part,)
    return in_sequence(parts, None)


C = TypeVar("C", bound=type)


def awaited(name: str) -> Callable[[C], C]:
    """Make a forgotten `await` of any public async method of a class an error.

    In the body of a step it is that step's failure. Elsewhere what the call gave says so when it is used, and the
    harness when its block ends.

    Args:
        name: What users call an object of the class: `"harness"`.
    """

    def decorate(kind: C) -> C:
        for method, function in tuple(vars(kind).items()):
            if method.startswith("_") or not isinstance(function, FunctionType):
                continue
            if inspect.iscoroutinefunction(function):
                setattr(kind, method, _noting(function, f"{name}.{method}({_arguments(function)})"))
        return kind

    return decorate


def _arguments(function: FunctionType) -> str:
    """The arguments that a call needs, as its caller writes them."""
    code = function.__code__
    return ", ".join(code.co_varnames[1 : code.co_argcount - len(function.__defaults__ or ())])


def _noting(function: Callable[..., Any], what: str) -> Callable[..., AwaitedCall]:
    @functools.wraps(function)
    def noting(*args: object, **kwargs: object) -> AwaitedCall:
        made = function(*args, **kwargs)
        made.__qualname__ = what
        caller = _getframe(1)
        call = AwaitedCall(made, what, f"{caller.f_code.co_filename}:{caller.f_lineno}")
        ctx = CURRENT.get()
        if ctx is None or not ctx.engine.note_call(ctx, made, caller.f_code, caller.f_lasti):
            block = LOST.get()
            if block is not None:
                call.lose_in(block)
        return call

    return noting
