"""Errors of definitions, steps, limits, stops, plugins, access and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from noetic_py.errors.redaction import redact

if TYPE_CHECKING:
    pass

__all__ = [
    "Aborted",
    "AccessDenied",
    "AmbiguousAttribute",
    "AnswerConflict",
    "AnswerError",
    "AnswerInvalid",
    "ArgumentsRefused",
    "BudgetExceeded",
    "Cancelled",
    "ConcurrentStepCall",
    "ConfigError",
    "HandoffLimit",
    "Interrupted",
    "InvalidEntry",
    "InvalidId",
    "LimitExceeded",
    "LoopLimit",
    "MissingExtra",
    "NameNotFound",
    "NoContextError",
    "NoDescriptionWarning",
    "NoOutput",
    "NoStateField",
    "NoeticDeprecationWarning",
    "NoeticError",
    "NoeticWarning",
    "NotAwaited",
    "ParallelFailed",
    "PluginError",
    "ReadOnlyMemory",
    "Rejected",
    "RequestExpired",
    "RequestNotFound",
    "RouteError",
    "SecretNotKept",
    "StateTypeError",
    "StepError",
    "StepFailed",
    "StepTimeout",
    "Stopped",
    "Suspended",
    "UnknownKeyword",
    "UnknownPrice",
    "WrongThread",
]


class NoeticWarning(UserWarning):
    """Something works, but probably not as its author meant."""


class NoeticDeprecationWarning(NoeticWarning, DeprecationWarning):
    """A name or a behaviour goes away in two minor versions."""


class NoDescriptionWarning(NoeticWarning):
    """A tool has no description, so that a model can only guess what it is for."""


class FailedRun(Protocol):
    """What an error shows of the run that it ended: a part of the run's `RunResult`."""

    @property
    def run_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def model_calls(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def cost(self) -> Decimal | None: ...
    @property
    def usage(self) -> Any: ...
    @property
    def state(self) -> Any: ...
    @property
    def items(self) -> Sequence[Any]: ...
    @property
    def new_items(self) -> Sequence[Any]: ...
    @property
    def text(self) -> str: ...
    @property
    def value(self) -> Any: ...
    @property
    def error(self) -> NoeticError | None: ...
    @property
    def pending(self) -> Sequence[Any]: ...


class NoeticError(Exception):
    """Base of every error of the library. No message shows a value that is known as a secret.

    Args:
        message: What happened, in one sentence.
        path: The path of the step it happened in; empty outside a run.
        hint: The next thing to try.
    """

    path: tuple[str, ...]
    hint: str | None
    result: FailedRun | None
    # Where the state, and the states of layers by scope, stood when the failure passed what could have caught
    # it: a note of the engine for itself.
    left: tuple[object, Any, Any] | None = None

    def __init__(self, message: str = "", *, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        message = redact(message)
        super().__init__(message)
        self.message = message
        self.path = path
        self.hint = hint if hint is None else redact(hint)
        self.result = None

    def __str__(self) -> str:
        text = self.message
        if self.path:
            text = f"{text} [at {'/'.join(self.path)}]"
        if self.hint:
            text = f"{text}\n  Try: {self.hint}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only parameters and a result that belongs to its process: the default way fails on both.
        kept = {name: value for name, value in self.__dict__.items() if name not in ("result", "left")}
        return _rebuild, (type(self), self.args, kept)

    def at(self, path: tuple[str, ...]) -> NoeticError:
        """Name the step's path, unless an inner step already did."""
        if not self.path:
            self.path = path
        return self


def _rebuild(kind: type[NoeticError], args: tuple[object, ...], kept: dict[str, object]) -> NoeticError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(kept, result=None)
    return error


class ConfigError(NoeticError):
    """A definition or a setting is wrong; raised before anything runs.

    Args:
        message: What is wrong.
        code: A short stable code such as `"step-signature"`.
        hint: How to mend it.
    """

    code: str

    def __init__(self, message: str, *, code: str, hint: str | None = None, path: tuple[str, ...] = ()) -> None:
        super().__init__(message, path=path, hint=hint)
        self.code = code


class UnknownKeyword(ConfigError, TypeError):
    """A function or a class was given a keyword that it does not take; the hint names the nearest one."""


class NoContextError(NoeticError):
    """An engine method was called on a context that belongs to no run."""


class NotAwaited(NoeticError, AttributeError):
    """A call was made and its result was not awaited: a step in a body, a run, or a stream that was not entered."""


class WrongThread(NoeticError):
    """A harness or a context was used from another thread or event loop than its own."""


class ShuttingDown(NoeticError):
    """The harness is being shut down, and takes no new runs; another process may have what was to be done."""

    def __init__(self) -> None:
        super().__init__("the harness is being shut down", hint="deliver it again, to another process or a later one")


class StateTypeError(NoeticError, TypeError):
    """A stored value is not of the type that was asked for."""


class NoStateField(NoeticError, AttributeError):
    """A step asks the default state, a `StateBag`, for a field: the run was not given the state that the step wants."""


class SecretNotKept(NoeticError):
    """The value of a secret is asked for that came out of a checkpoint, which has its name only.

    Attributes:
        name: The secret's name.
    """

    name: str

    def __init__(self, name: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"the value of secret {name!r} was not stored", path=path, hint="give it again, such as by services="
        )
        self.name = name


class InvalidId(NoeticError, ValueError):
    """An id is empty, too long, or holds characters that no id may hold."""


class AmbiguousAttribute(NoeticError):
    """Several attributes of a run are of the class that was asked for, and none is the most special one."""


class InvalidEntry(NoeticError, ValueError):
    """An entry that a pool cannot keep: it has no id or no description, or its id is there twice."""


class NameNotFound(NoeticError, KeyError):
    """A pool has no entry of that id, or stored data name a listener that is not registered."""


class ReadOnlyMemory(NoeticError):
    """A tool wrote to a pool that it may only read."""


class StepError(NoeticError):
    """Base of what can go wrong in a step."""


class StepFailed(StepError):
    """The body of a step raised.

    Outside the step its failure always has this class, live and on replay, so that a handler that works today works
    after a restart. While the process lives, `__cause__` is the exception itself.

    Args:
        path: The step that raised.
        error_type: The exception's class name, such as `"ValueError"`.
        error_message: The exception's text.
    """

    error_type: str
    error_message: str

    def __init__(self, *, path: tuple[str, ...], error_type: str, error_message: str) -> None:
        super().__init__(f"{error_type}: {error_message}" if error_message else error_type, path=path)
        self.error_type = error_type
        self.error_message = redact(error_message)


class StepTimeout(StepError, TimeoutError):
    """A step ran longer than its `timeout`, in seconds."""

    seconds: float

    def __init__(self, seconds: float, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"the step took longer than {seconds:g} s", path=path, hint="raise timeout=, or add retry=")
        self.seconds = seconds


class ParallelFailed(StepError):
    """A path of a parallel section failed; the others were cancelled and awaited.

    Args:
        succeeded: The outputs of the paths that finished, by index.
        failed: The errors of the paths that failed, by index.
        first: The error of the path that failed first. It is the `__cause__` inside of the run. The `__cause__` of an
            error that has left its run is what the body raised, so that a traceback shows that once.
    """

    succeeded: Mapping[int, object]
    failed: Mapping[int, NoeticError]
    first: NoeticError

    def __init__(
        self,
        *,
        succeeded: Mapping[int, object],
        failed: Mapping[int, NoeticError],
        first: NoeticError,
        path: tuple[str, ...] = (),
    ) -> None:
        what = f"{len(failed)} path failed" if len(failed) == 1 else f"{len(failed)} paths failed"
        # What mends the path that failed says more than how to live with its failure.
        hint = first.hint or "use settle(...) to get every path's outcome"
        super().__init__(f"{what}, first: {first.message}", path=path, hint=hint)
        self.succeeded = succeeded
        self.failed = failed
        self.first = first
        self.__cause__: BaseException | None = first


class RouteError(StepError):
    """A branch's route gave a key that no case has, or something that is neither a step nor None."""


class LoopLimit(StepError):
    """A loop reached `max_iterations`."""

    limit: int

    def __init__(self, limit: int, *, path: tuple[str, ...] = ()) -> None:
        hint = "give until= a condition that is met, or raise max_iterations="
        super().__init__(f"the loop did not stop within {limit} iterations", path=path, hint=hint)
        self.limit = limit


class HandoffLimit(StepError):
    """A chain of handoffs reached `max_handoffs`."""

    limit: int

    def __init__(self, limit: int, *, path: tuple[str, ...] = ()) -> None:
        hint = "let one of the steps return a value, or raise max_handoffs="
        super().__init__(f"the steps handed over more than {limit} times", path=path, hint=hint)
        self.limit = limit


class NoOutput(StepError):
    """A model round held tool calls only, so it has no value."""


class ConcurrentStepCall(StepError):
    """Two child steps of one body were in flight at once outside a section, or a foreign task called one."""


class LimitExceeded(NoeticError):
    """A structural bound was reached.

    Args:
        what: The bound: `"spawn depth"`, `"live children"`, `"iterations of a run"`, `"log length"`, `"item size"`,
            `"nesting"`.
        limit: Its value.
    """

    what: str
    limit: int

    def __init__(self, what: str, limit: int, *, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(f"{what} is limited to {limit}", path=path, hint=hint)
        self.what = what
        self.limit = limit


class BudgetExceeded(NoeticError):
    """A budget would have been passed, so the work was not started; or its time ran out.

    Args:
        dimension: The budget's dimension, such as `"model_calls"`, `"cost"`, `"seconds"` or `"per_tool:search"`.
        limit: The limit of the budget that refused, in the dimension's unit (USD, tokens, seconds, count).
        requested: What would have been reserved.
        settled: What that budget had already spent.
    """

    dimension: str
    limit: int | float | Decimal
    requested: int | float | Decimal
    settled: int | float | Decimal

    def __init__(
        self,
        dimension: str,
        *,
        limit: int | float | Decimal,
        requested: int | float | Decimal,
        settled: int | float | Decimal,
        path: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            f"budget of {limit} {dimension} reached: {settled} spent, {requested} more asked for",
            path=path,
            hint=f"raise {dimension.partition(':')[0]}= of the budget, or give it wrap_up= and reserve=",
        )
        self.dimension = dimension
        self.limit = limit
        self.requested = requested
        self.settled = settled


class UnknownPrice(NoeticError):
    """A cost limit is set and the model has no price, so the limit could not be kept."""

    model: str

    def __init__(self, model: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"no price is known for model {model!r}, and a cost limit is set",
            path=path,
            hint="register one with noetic_py.models.set_price(...) or a source with set_price_source(...), or remove "
            "cost= from the budget",
        )
        self.model = model


class Stopped(NoeticError):
    """Asking a run that was stopped for its value; base of one class per way to stop."""


class Aborted(Stopped):
    """`abort(reason)` ended the execution; a spawn raises it in its parent when its child aborted."""

    reason: str

    def __init__(self, reason: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"aborted: {reason}", path=path)
        self.reason = reason


class Interrupted(Stopped):
    """The run was interrupted."""


class Cancelled(Stopped):
    """The run was cancelled from outside."""


class Suspended(Stopped):
    """The run waits for an answer; see `result.pending`."""


class PluginError(NoeticError):
    """A plugin was refused, or failed to load."""


class MissingExtra(NoeticError):
    """An optional dependency is not installed.

    Args:
        extra: What is missing.
        install: The line that installs it.
    """

    extra: str

    def __init__(self, extra: str, *, install: str) -> None:
        super().__init__(f"{extra} is not installed", hint=install)
        self.extra = extra


class AccessDenied(NoeticError):
    """The access policy does not let the caller do this. Nothing was changed.

    What the policy raised, when it could not say, is the `__cause__`.

    Attributes:
        action: What was to be done, such as `"resume"`.
    """

    action: str

    def __init__(self, message: str, *, action: str, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.action = action


class AnswerError(NoeticError):
    """An answer was not taken. Nothing of the run has changed."""


class RequestNotFound(AnswerError):
    """The run has no such open request: it belongs to another run, was discarded, or never existed."""


class RequestExpired(AnswerError):
    """The time for an answer is over; raised by `ctx.ask` too, when the run goes on without one."""


class AnswerConflict(AnswerError):
    """The request was answered otherwise before."""


class AnswerInvalid(AnswerError):
    """The answer is of the wrong kind for its request, or has no JSON form."""


class ArgumentsRefused(AnswerInvalid):
    """An approval changes the arguments to what the tool's schema does not take, or a permission rule denies."""


class Rejected(StepError):
    """An answer was no: to a question of `ctx.ask`, or to a tool that a step calls.

    Attributes:
        reason: Why, in their words.
    """

    reason: str

    def __init__(self, reason: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"rejected: {reason}" if reason else "rejected", path=path, hint="except Rejected handles it")
        self.reason = reason
