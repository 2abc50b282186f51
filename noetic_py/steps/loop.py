"""`loop`: a step again and again, until a predicate says stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, get_args, overload

from attrs import evolve, field, frozen
from typing_extensions import override

from noetic_py.channels import Channel, is_channel
from noetic_py.channels.declared import AnyChannel
from noetic_py.context.context import AnyContext, Context
from noetic_py.context.step import ADDED, AnyStep, Spec, Step, check_id, is_seconds, is_whole, require_step
from noetic_py.core.diagnostics import known_keywords
from noetic_py.core.types import M, OnError, R, S, T
from noetic_py.errors import ConfigError
from noetic_py.steps.handoff import agent, asked_by_model
from noetic_py.until import Predicate, Until, Verdict

AtLimit: TypeAlias = Literal["raise", "end"]


@frozen(eq=False)
class LoopSpec(Spec):
    """A loop's parts; see [`loop`][noetic_py.loop]."""

    body: AnyStep
    until: Until[object]
    prepare_next: Callable[..., object] | None
    on_error: Callable[[Exception, AnyContext], OnError] | None
    max_iterations: int
    inbox: AnyChannel | None
    inbox_timeout: float
    at_limit: AtLimit = field(default="raise", metadata=ADDED)

    outline: ClassVar[tuple[str, str]] = ("([", "])")

    @override
    def entry(self) -> AnyStep:
        return self.body

    @override
    def exit(self) -> AnyStep:
        return self.body

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [("again", self.body)]

    @override
    def facts(self) -> Sequence[str]:
        named = self.until.name if isinstance(self.until, Predicate) else getattr(self.until, "__name__", "a condition")
        return [f"until {named}"]


@overload
def loop(
    body: Step[T, R, M, S],
    /,
    *,
    until: Until[R],
    prepare_next: Callable[[R, Verdict, Context[M, S]], T],
    on_error: Callable[[Exception, Context[M, S]], OnError] | None = None,
    max_iterations: int = 1000,
    at_limit: AtLimit = "raise",
    inbox: Channel[T] | None = None,
    inbox_timeout: float = 0.0,
    id: str | None = None,
) -> Step[T, R, M, S]: ...
@overload
def loop(
    body: Step[T | None, R, M, S],
    /,
    *,
    until: Until[R],
    on_error: Callable[[Exception, Context[M, S]], OnError] | None = None,
    max_iterations: int = 1000,
    at_limit: AtLimit = "raise",
    inbox: Channel[T] | None = None,
    inbox_timeout: float = 0.0,
    id: str | None = None,
) -> Step[T, R, M, S]: ...
@overload
def loop(
    body: Step[T, T, M, S],
    /,
    *,
    until: Until[T],
    on_error: Callable[[Exception, Context[M, S]], OnError] | None = None,
    max_iterations: int = 1000,
    at_limit: AtLimit = "raise",
    inbox: Channel[T] | None = None,
    inbox_timeout: float = 0.0,
    id: str | None = None,
) -> Step[T, T, M, S]: ...
@known_keywords("loop()")
def loop(
    body: object,
    /,
    *,
    until: object = None,
    prepare_next: Callable[[Any, Verdict, Any], object] | None = None,
    on_error: Callable[[Exception, Any], OnError] | None = None,
    max_iterations: int = 1000,
    at_limit: AtLimit = "raise",
    inbox: AnyChannel | None = None,
    inbox_timeout: float = 0.0,
    id: str | None = None,
) -> Any:
    """Run a step again and again; the loop's output is the last iteration's.

    From the second iteration on the input is what `prepare_next` makes; without it a body that can go on from the log,
    such as `call_model`, gets `None`, and any other gets its own last output.

    Args:
        body: The step.
        until: When to stop; see `noetic_py.until`. A predicate that raises stops the loop, with that as the reason.
        prepare_next: `(output, verdict, ctx)` makes the next input.
        on_error: `(error, ctx)` decides on a failed iteration: `"retry"` the same input, `"skip"` it and go on with the
            next message of the inbox, without an inbox with the same input, or `"abort"`, which raises. It is never
            asked about a cancellation.
        max_iterations: The bound that holds whatever `until` says.
        at_limit: What happens there: an error, or with `"end"` a message of the developer's in the conversation that
            says so, and the last output as the loop's.
        inbox: A channel whose messages are inputs. Where `until` says stop, the next message starts another iteration
            instead; a body that goes on from the log, such as `call_model`, also gets what came between two rounds.
        inbox_timeout: Seconds that the loop waits for a message before it stops; `float("inf")` waits until it is
            stopped.
        id: The step's id, `"loop"` when left out.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"loop"`.
        LoopLimit: While running: `max_iterations` is reached, and that does not end the loop.
    """
    inner = require_step(body, "loop")
    chain = asked_by_model(inner)
    if chain is not None:
        # The target of a handoff replaces the loop; it does not run inside its round.
        inner = chain.first.spec.inner if inner.bound is None else evolve(chain.first.spec.inner, bound=inner.bound)
    _check_end(until, max_iterations, at_limit)
    _check_inbox(inbox, inbox_timeout)
    for name, function in (("prepare_next", prepare_next), ("on_error", on_error)):
        if function is not None and not callable(function):
            raise ConfigError(f"{name}={function!r} is not a function", code="loop", hint=f"{name}=lambda ...: ...")
    judge: Any = until
    made: AnyStep = Step(
        id=check_id(id) if id is not None else "loop",
        kind="loop",
        spec=LoopSpec(inner, judge, prepare_next, on_error, max_iterations, inbox, inbox_timeout, at_limit),
        goes_on=inner.goes_on,
        named=id is not None,
    )
    return made if chain is None else agent(made, chain.targets, chain.limit)


def _check_wake(wake: object) -> None:
    if wake is not None and (not is_channel(wake) or wake.mode == "value"):
        raise ConfigError(
            f"wake={wake!r} is not a valid wake; expected a Channel of messages",
            code="every",
            hint='wake=Channel("wake", str), not mode="value"',
        )


def _check_end(until: object, max_iterations: object, at_limit: object) -> None:
    """Refuse what cannot end a loop.

    Raises:
        ConfigError: One of these is of the wrong kind; code `"loop"`.
    """
    if until is None:
        raise ConfigError(
            "loop() needs until=, the condition that ends it",
            code="loop",
            hint="until=until.no_tool_calls() for an agent, until=until.max_rounds(10) for a number of rounds",
        )
    if not callable(until):
        raise ConfigError(
            f"until={until!r} is not a valid predicate; expected a function of a Snapshot",
            code="loop",
            hint="until=until.max_rounds(10)",
        )
    if not is_whole(max_iterations, 1):
        raise ConfigError(
            f"max_iterations={max_iterations!r} is not 1 or more", code="loop", hint="max_iterations=1000"
        )
    if at_limit not in get_args(AtLimit):
        raise ConfigError(f"at_limit={at_limit!r} is unknown", code="loop", hint='at_limit="raise" or "end"')


def _check_inbox(inbox: object, inbox_timeout: object) -> None:
    if inbox is not None and (not is_channel(inbox) or inbox.mode != "queue"):
        raise ConfigError(
            f"inbox={inbox!r} is not a valid inbox; expected a Channel that keeps messages",
            code="loop",
            hint='inbox=Channel("inbox", str)',
        )
    if not is_seconds(inbox_timeout) and inbox_timeout != float("inf"):
        raise ConfigError(
            f"inbox_timeout={inbox_timeout!r} is not a number of seconds", code="loop", hint="inbox_timeout=60.0"
        )
    if inbox_timeout and inbox is None:
        raise ConfigError("inbox_timeout= waits for an inbox", code="loop", hint="inbox=Channel(...)")


@frozen(eq=False)
class EverySpec(Spec):
    """A schedule's parts; see [`every`][noetic_py.every]."""

    body: AnyStep
    interval: float
    jitter: float
    on_error: Callable[[Exception, AnyContext], OnError] | None
    wake: AnyChannel | None


@known_keywords("every()")
def every(
    interval: float,
    step: Step[None, object, M, S],
    *,
    jitter: float = 0.0,
    on_error: Callable[[Exception, Context[M, S]], OnError] | None = None,
    wake: AnyChannel | None = None,
    id: str | None = None,
) -> Step[object, None, M, S]:
    """Run a step now, and then again every `interval` seconds, until something stops it.

    `ctx.stop_loop()` in the step ends the schedule after this time, `ctx.complete(...)` and `ctx.abort(...)` end the
    execution. A time that takes longer than the interval is followed by the next at once; none are made up for. State
    is shared with the steps around; the conversation is not: each time begins with the one that the schedule found, and
    what it adds goes with it, so that a schedule may run for ever.

    Args:
        interval: Seconds from one start to the next; above 0.
        step: What to run; its input is `None`.
        jitter: Up to so many seconds more before each start, at random, so that many schedules do not start at once.
        on_error: `(error, ctx)` decides on a failure: `"skip"` waits for the next time, `"retry"` runs again at once,
            `"abort"`, as without it, raises.
        wake: A channel; a message in it starts the step at once, and the interval counts from there.
        id: The step's id, `"every"` when left out.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"every"`.
    """
    inner = require_step(step, "every")
    if not is_seconds(interval) or not interval > 0:
        raise ConfigError(
            f"interval={interval!r} is not a number of seconds above 0", code="every", hint="every(60.0, poll)"
        )
    if not is_seconds(jitter):
        raise ConfigError(f"jitter={jitter!r} is not a number of seconds", code="every", hint="jitter=5.0")
    if on_error is not None and not callable(on_error):
        raise ConfigError(
            f"on_error={on_error!r} is not a function", code="every", hint="on_error=lambda error, ctx: ..."
        )
    _check_wake(wake)
    made: AnyStep = Step(
        id=check_id(id) if id is not None else "every",
        kind="every",
        spec=EverySpec(inner, interval, jitter, on_error, wake),
        named=id is not None,
    )
    return made
