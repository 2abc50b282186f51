"""When a loop stops: predicates over a snapshot of the loop, combined with `|` and `&`."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any, Generic, Literal, Protocol, overload

from attrs import field, frozen
from typing_extensions import TypeVar

from noetic_py.context.context import AnyContext
from noetic_py.context.read import StepMeta
from noetic_py.core.budget import TokenUsage
from noetic_py.core.diagnostics import text_or_none
from noetic_py.errors import ConfigError

__all__ = [
    "Snapshot",
    "Until",
    "Verdict",
    "converged",
    "custom",
    "max_cost",
    "max_rounds",
    "max_seconds",
    "max_steps",
    "max_tokens",
    "max_turns",
    "never",
    "no_tool_calls",
    "output_contains",
    "output_equals",
    "verified",
]

T = TypeVar("T")
O_co = TypeVar("O_co", covariant=True, default=object)
O_contra = TypeVar("O_contra", contravariant=True, default=object)


@frozen
class Verdict:
    """The verdict of a predicate after an iteration.

    Attributes:
        stop: Whether the loop ends.
        reason: Why, shown in results and events.
        feedback: What the next iteration should know; given to `prepare_next`.
        failed: Whether the predicate raised instead of judging; the loop ends for it.
    """

    stop: bool = field(converter=bool)
    reason: str | None = field(default=None, validator=text_or_none)
    feedback: str | None = field(default=None, validator=text_or_none)
    failed: bool = False


GO_ON = Verdict(False)


class Snapshot(Generic[O_co]):
    """The loop as a predicate sees it, after an iteration."""

    __slots__ = ("_ctx", "_outputs", "iteration", "output")

    iteration: int
    output: O_co

    def __init__(self, ctx: AnyContext, iteration: int, outputs: deque[O_co], output: O_co) -> None:
        self._ctx = ctx
        self._outputs = outputs
        self.iteration = iteration
        self.output = output

    def copy(self) -> Snapshot[O_co]:
        """One that keeps its iteration and output when the loop goes on."""
        return Snapshot(self._ctx, self.iteration, self._outputs, self.output)

    @property
    def step_count(self) -> int:
        """Bodies started in the execution."""
        return self._ctx.step_count

    @property
    def turns(self) -> int:
        """Model calls of the execution."""
        return self._ctx.turns

    @property
    def run_turns(self) -> int:
        """Model calls of the whole run."""
        return self._ctx.engine.run_turns

    @property
    def tokens(self) -> TokenUsage:
        """Tokens used in the execution and below."""
        return self._ctx.tokens

    @property
    def cost(self) -> Decimal:
        """USD spent in the execution and below."""
        return self._ctx.cost

    @property
    def elapsed(self) -> float:
        """Seconds since the execution began."""
        return self._ctx.elapsed

    @property
    def outputs(self) -> Sequence[O_co]:
        """The latest outputs of this loop, this one last; 100 at the most are kept."""
        return tuple(self._outputs)

    @property
    def text(self) -> str:
        """The output as text: itself when it is a str, otherwise the last assistant message."""
        if isinstance(self.output, str):
            return self.output
        return self._ctx.items.last_text("assistant", "")

    @property
    def last_step(self) -> StepMeta | None:
        """The most recently completed step."""
        return self._ctx.engine.last_step


class Until(Protocol[O_contra]):
    """A predicate: `await until(snapshot)` gives a [`Verdict`][noetic_py.until.Verdict]."""

    async def __call__(self, snapshot: Snapshot[O_contra], /) -> Verdict:
        """Judge the loop after an iteration."""
        ...

    @overload
    def __or__(self: Until[object], other: Until[T], /) -> Until[T]: ...
    @overload
    def __or__(self: Until[T], other: Until[T], /) -> Until[T]: ...
    def __or__(self, other: Any, /) -> Any:
        """Stop when either says so."""
        ...

    @overload
    def __and__(self: Until[object], other: Until[T], /) -> Until[T]: ...
    @overload
    def __and__(self: Until[T], other: Until[T], /) -> Until[T]: ...
    def __and__(self, other: Any, /) -> Any:
        """Stop when both say so after the same iteration."""
        ...


class Predicate(Until[Any]):
    """The one implementation of `Until`.

    `judge` returns a verdict, or an awaitable of one when it has to ask something that waits.
    """

    __slots__ = ("judge", "keeps", "name")

    def __init__(
        self, name: str, judge: Callable[[Snapshot[object]], Verdict | Awaitable[Verdict]], *, keeps: bool = False
    ) -> None:
        self.name: str = name
        self.judge: Callable[[Snapshot[object]], Verdict | Awaitable[Verdict]] = judge
        # Whether the snapshot is handed to a user's function, which may keep it: then each iteration needs a new one.
        self.keeps: bool = keeps

    async def __call__(self, snapshot: Snapshot[object], /) -> Verdict:
        verdict = self.judge(snapshot)
        return verdict if isinstance(verdict, Verdict) else await verdict

    def __or__(self, other: Any, /) -> Any:
        _require(other, "|")
        return Predicate(
            f"{self.name} | {_name(other)}", _Combined(self, other, every=False), keeps=_keeps(self, other)
        )

    def __and__(self, other: Any, /) -> Any:
        _require(other, "&")
        return Predicate(f"{self.name} & {_name(other)}", _Combined(self, other, every=True), keeps=_keeps(self, other))

    def __repr__(self) -> str:
        return f"<until {self.name}>"


def _keeps(*predicates: object) -> bool:
    return not all(isinstance(each, Predicate) and not each.keeps for each in predicates)


def _require(value: object, where: str) -> None:
    if not callable(value):
        raise ConfigError(
            f"{value!r} is not a valid predicate for {where}; expected a function of a Snapshot",
            code="until",
            hint="until.max_rounds(10)",
        )


def _name(other: object) -> str:
    return other.name if isinstance(other, Predicate) else getattr(other, "__name__", type(other).__name__)


def _judge(predicate: Any, snapshot: Snapshot[object]) -> Verdict | Awaitable[Verdict]:
    judged: Verdict | Awaitable[Verdict] = (
        predicate.judge(snapshot) if isinstance(predicate, Predicate) else predicate(snapshot)
    )
    return judged


class _Combined:
    """Both predicates, asked in order; the second only while the first leaves the answer open."""

    __slots__ = ("a", "b", "every")

    def __init__(self, a: Any, b: Any, *, every: bool) -> None:
        self.a = a
        self.b = b
        self.every = every

    def __call__(self, snapshot: Snapshot[object]) -> Verdict | Awaitable[Verdict]:
        first = _judge(self.a, snapshot)
        if not isinstance(first, Verdict):
            return self._wait(first, None, snapshot)
        if first.stop is not self.every:
            return first
        second = _judge(self.b, snapshot)
        if not isinstance(second, Verdict):
            return self._wait(None, second, snapshot, first)
        return self._settle(first, second)

    def _settle(self, first: Verdict, second: Verdict) -> Verdict:
        if self.every:
            return _join(first, second, second.stop)
        return second if second.stop or first.feedback is None else _join(first, second, False)

    async def _wait(
        self,
        a: Awaitable[Verdict] | None,
        b: Awaitable[Verdict] | None,
        snapshot: Snapshot[Any],
        first: Verdict = GO_ON,
    ) -> Verdict:
        if a is not None:
            first = await a
            if first.stop is not self.every:
                return first
            judged = _judge(self.b, snapshot)
            if isinstance(judged, Verdict):
                return self._settle(first, judged)
            b = judged
        second = await b if b is not None else GO_ON
        return self._settle(first, second)


def _join(first: Verdict, second: Verdict, stop: bool) -> Verdict:
    def both(x: str | None, y: str | None) -> str | None:
        return "; ".join(text for text in (x, y) if text) or None

    return Verdict(stop, both(first.reason, second.reason), both(first.feedback, second.feedback))


def _reached(name: str, limit: Any, read: Callable[[Snapshot[Any]], Any], unit: str) -> Predicate:
    number = not isinstance(limit, bool) and isinstance(limit, (int, float, Decimal))
    if not number or limit != limit or limit < 0:
        raise ConfigError(f"until.{name}({limit!r}) needs a number, 0 or more", code="until", hint=f"until.{name}(10)")
    stop = Verdict(True, f"{name}: {limit} {unit.removesuffix('s') if limit == 1 else unit} reached")
    return Predicate(f"{name}({limit})", lambda snapshot: stop if read(snapshot) >= limit else GO_ON)


def max_rounds(n: int, /) -> Until:
    """Stop after `n` iterations of this loop."""
    counted = _reached("max_rounds", n, lambda snapshot: snapshot.iteration + 1, "rounds")
    last = n - 1
    # Asked after every iteration of nearly every loop: most answers are no, and need not be worked out.
    return Predicate(
        f"max_rounds({n})", lambda snapshot: GO_ON if snapshot.iteration < last else counted.judge(snapshot)
    )


def max_steps(n: int, /) -> Until:
    """Stop when the execution has started `n` bodies."""
    return _reached("max_steps", n, lambda snapshot: snapshot.step_count, "steps")


def max_turns(n: int, /, *, scope: Literal["run", "context"] = "run") -> Until:
    """Stop after `n` model calls: of the whole run, or of this execution as `ctx.turns` counts them.

    With `scope="context"` the calls that earlier runs made with the same `Context` are counted in.
    """
    if scope not in ("run", "context"):
        raise ConfigError(f"scope={scope!r} is unknown", code="until", hint='"run" or "context"')
    read: Callable[[Snapshot[Any]], int] = (lambda s: s.run_turns) if scope == "run" else (lambda s: s.turns)
    return _reached("max_turns", n, read, "model calls")


def max_tokens(n: int, /) -> Until:
    """Stop when the execution has used `n` tokens."""
    return _reached("max_tokens", n, lambda snapshot: snapshot.tokens.total, "tokens")


def max_cost(usd: float | Decimal, /) -> Until:
    """Stop when the execution has spent `usd` USD."""
    limit: Any = usd if not isinstance(usd, float) else Decimal(str(usd)) if usd == usd else usd
    if isinstance(limit, Decimal) and limit.is_nan():
        limit = float("nan")
    return _reached("max_cost", limit, lambda snapshot: snapshot.cost, "USD")


def max_seconds(s: float, /) -> Until:
    """Stop when the execution is `s` seconds old."""
    return _reached("max_seconds", s, lambda snapshot: snapshot.elapsed, "seconds")


def no_tool_calls() -> Until:
    """Stop after an iteration whose last step asked for no tool."""
    stop = Verdict(True, "no tool calls")

    def judge(snapshot: Snapshot[object]) -> Verdict:
        last = snapshot.last_step
        return stop if last is None or not last.tool_calls else GO_ON

    return Predicate("no_tool_calls", judge)


def _verdict(value: object, reason: str) -> Verdict:
    return value if isinstance(value, Verdict) else Verdict(bool(value), reason if value else None)


def _asked(name: str, ask: Callable[[Snapshot[Any]], object]) -> Until[object]:
    def judge(snapshot: Snapshot[object]) -> Verdict | Awaitable[Verdict]:
        answer = ask(snapshot)
        return wait(answer) if inspect.isawaitable(answer) else _verdict(answer, name)

    async def wait(answer: Awaitable[object]) -> Verdict:
        return _verdict(await answer, name)

    return Predicate(name, judge, keeps=True)


def verified(check: Callable[[T], bool | Verdict | Awaitable[bool | Verdict]], /) -> Until[T]:
    """Stop when `check(output)` is true or says stop; its feedback goes to `prepare_next`."""
    _require(check, "verified()")
    return _asked("verified", lambda snapshot: check(snapshot.output))


def custom(fn: Callable[[Snapshot[T]], bool | Verdict | Awaitable[bool | Verdict]], /) -> Until[T]:
    """Stop when `fn(snapshot)` is true or says stop."""
    _require(fn, "custom()")
    return _asked(getattr(fn, "__name__", "custom"), fn)


def converged(*, threshold: float = 0.95) -> Until:
    """Stop when two outputs in a row are alike.

    Args:
        threshold: Share of words, each counted as often as it stands, that both texts have; 1.0 asks for equal outputs.
    """
    if not _is_share(threshold):
        raise ConfigError(f"threshold={threshold!r} is not above 0 and at most 1", code="until", hint="threshold=0.95")
    stop = Verdict(True, f"converged: {threshold:g} alike")

    def judge(snapshot: Snapshot[object]) -> Verdict:
        outputs = snapshot.outputs
        return stop if len(outputs) > 1 and _alike(outputs[-2], outputs[-1]) >= threshold else GO_ON

    return Predicate("converged", judge)


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1


def _alike(a: object, b: object) -> float:
    """Dice's coefficient of the two bags of words; 1.0 for equal values."""
    from collections import Counter

    if a == b:
        return 1.0
    one, two = Counter(str(a).split()), Counter(str(b).split())
    total = one.total() + two.total()
    # Just below 1.0, so that a threshold of 1.0 asks for equality and not for the same words in another order.
    return min(2 * (one & two).total() / total, 1.0 - 1e-9) if total else 0.0


def output_contains(text: str, /) -> Until:
    """Stop when the output's text contains `text`."""
    stop = Verdict(True, f"output contains {text!r}")
    return Predicate("output_contains", lambda snapshot: stop if text in snapshot.text else GO_ON)


def output_equals(value: object, /) -> Until:
    """Stop when the output equals `value`."""
    stop = Verdict(True, f"output equals {value!r}")
    return Predicate("output_equals", lambda snapshot: stop if snapshot.output == value else GO_ON)


def never() -> Until:
    """Never stop of itself; `max_iterations`, a budget or `complete` does."""
    return Predicate("never", lambda snapshot: GO_ON)
