"""Every error the library raises, one class per cause.

```
NoeticError
├── ConfigError                 a definition or a setting is wrong; found before anything ran (code, hint)
│   └── UnknownKeyword          a keyword that a function does not take; the hint names the nearest (also a TypeError)
├── AccessDenied                the access policy does not let the caller do it: action
├── NoContextError              an engine method was called on a context outside a run
├── NotAwaited                  a step or a run was called without await, a stream without async with
├── WrongThread                 a harness was used from a second thread or event loop
├── ShuttingDown                a harness that is being shut down takes no new runs
├── StateTypeError              a value in a StateBag is not of the type asked for (also a TypeError)
├── NoStateField                a step asks a StateBag for a field: the run was given no state (also an AttributeError)
├── SecretNotKept               the value of a secret was not stored, only its name: name
├── InvalidId                   an id from outside is empty, too long or holds control characters
├── InvalidEntry                an entry that a pool cannot keep: no id, no description (also a ValueError)
├── AmbiguousAttribute          several attributes are of the class asked for, and none is the most special one
├── NameNotFound                no entry of a pool, or no listener, goes by a name (also a KeyError)
├── ReadOnlyMemory              a tool wrote to a pool that it may only read
├── StepError
│   ├── StepFailed              the body of a step raised; error_type and error_message say what
│   ├── StepTimeout             a step ran longer than its timeout (also a TimeoutError)
│   ├── ParallelFailed          a path of a parallel section failed: succeeded, failed
│   ├── RouteError              a branch got an unknown key, or something that is not a step
│   ├── HandoffLimit            a chain of handoffs reached max_handoffs
│   ├── LoopLimit               a loop reached max_iterations
│   ├── NoOutput                a model round that holds tool calls only was asked for a value
│   ├── Rejected                a question was rejected, or a tool that a step calls: reason
│   └── ConcurrentStepCall      two child steps of one body were in flight outside a section
├── LimitExceeded               a structural bound was reached: spawn depth, live children, log length, size
├── BudgetExceeded              a limit of a budget would have been passed: dimension, limit, requested
├── UnknownPrice                a cost limit is set and the model has no price
├── Stopped                     asking a stopped run for its value
│   ├── Aborted                 abort(reason) was called; also raised by a spawn whose child aborted
│   ├── Interrupted             the run was interrupted
│   ├── Cancelled               the run was cancelled from outside
│   └── Suspended               the run waits for an answer
├── AnswerError                 an answer was not taken
│   ├── RequestNotFound         the run has no open request that it is for
│   ├── RequestExpired          the time for it is over
│   ├── AnswerConflict          the request was answered otherwise before
│   └── AnswerInvalid           it is of the wrong kind, or has no JSON form
│       └── ArgumentsRefused    its changed arguments do not fit, or are denied
├── ModelError                  a model call failed: model
│   ├── ModelRefused            the model declined to answer
│   ├── ModelParseError         the answer does not fit the output type after the allowed retries
│   ├── UsageInvalid            a provider reported a usage or a cost that cannot be booked
│   ├── ModelUnavailable        connection refused or lost before an answer began
│   ├── ModelStatusError        the provider answered with an error status: status, body
│   │   ├── RateLimited         too many requests: retry_after
│   │   └── ContextOverflow     the request is larger than the model's window
│   ├── ModelStreamError        a stream was cut, stalled or malformed after it had begun
│   │   └── AnswerTooLarge      an answer has more bytes than answers may have: limit
│   ├── ModelBusy               too many requests wait for a limited model already: waiting
│   ├── AllModelsFailed         each model of a fallback failed: failures
│   ├── ModelNotFound           no plugin knows the name, or its package is missing
│   └── RealModelRefused        a real model was called while tests forbid it
├── ToolError                   a tool call failed: tool
│   ├── UnknownTool             a name that no tool has
│   ├── ToolArgumentsInvalid    the arguments do not fit the tool's parameters
│   └── ToolFailed              the tool's function raised
├── LayerError                  a memory layer failed, or is not there: layer, hook
├── HookFailed                  a hook raised, or returned what it may not: hook, event
├── ModelRetry                  raised by tools and validators to ask the model again with a message
├── LogError
│   ├── UnpairedOutput          an output without an open call
│   ├── DuplicateCall           a call id that the log already holds
│   └── ForgedEvent             items from outside hold one that only the library makes: entry, index, kind
├── CodecError                  a value cannot be encoded or decoded: where
│   └── ItemSchemaMismatch      stored or wire data does not fit the item's schema
├── ChannelError
│   ├── ChannelTimeout          nothing came, or no place was free, in time (also a TimeoutError)
│   ├── ChannelValueInvalid     what was sent is not of the channel's type: channel
│   └── ChannelClosed           the channel was closed
├── CheckpointError
│   ├── CheckpointFailed        a commit was not taken by the backend
│   │   └── StoreUnavailable    the store cannot be opened, read or written: where, reason
│   ├── CorruptRecord           stored bytes are not what was written
│   ├── RecordRefused           a record transform does not know them to be: run_id, position, transform, verdict
│   ├── TransformMissing        they went through a record transform that is not here: transform
│   ├── PositionConflict        another owner wrote at the expected position
│   ├── VersionConflict         another owner wrote the value of a key
│   ├── LeaseLost               the writer's fence is no longer the current one
│   ├── ReplayDiverged          a resumed run differs from its journal
│   ├── StepOutcomeUnknown      a step that may run only once was started, and has no recorded outcome
│   ├── SessionConflict         another turn has written the session meanwhile
│   ├── SessionLoadError        what is stored of a session cannot be read
│   ├── SessionSuspended        a turn of the session waits for an answer: run_id
│   ├── RunBusy                 another owner holds the run, or the session
│   ├── RunOver                 too late to complete a run, or to wrap it up
│   └── RunNotFound             no such run, or not yours
├── Overloaded                  too many wait already: waiting
├── PluginError                 a plugin was refused or failed to load
└── MissingExtra                an optional dependency is not installed: extra, the install line
```

Every error carries `path` (the step's path, empty outside a run), `hint` (the next thing to try) and, when it ended a
run, `result` (the run's [`RunResult`][noetic_py.RunResult] with the partial items, the usage and the checkpoint).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

from noetic_py.redaction import html_table, redact


class NoeticWarning(UserWarning):
    """Something works, but probably not as its author meant."""


class NoeticDeprecationWarning(NoeticWarning, DeprecationWarning):
    """A name or a behaviour goes away in two minor versions."""


class NoDescriptionWarning(NoeticWarning):
    """A tool has no description, so that a model can only guess what it is for."""


class FailedRun(Protocol):
    """The protocol of a failed run, as an error carries it; at run time the [`RunResult`][noetic_py.RunResult]."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        ...

    @property
    def status(self) -> str:
        """How it ended."""
        ...

    @property
    def reason(self) -> str | None:
        """Why, where that is known."""
        ...

    @property
    def steps(self) -> int:
        """How many steps it has run."""
        ...

    @property
    def model_calls(self) -> int:
        """How often a model was called."""
        ...

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        ...

    @property
    def cost(self) -> Decimal | None:
        """The cost of its model calls, `None` without prices."""
        ...

    @property
    def usage(self) -> Any:
        """Its usage."""
        ...

    @property
    def state(self) -> Any:
        """Its state."""
        ...

    @property
    def items(self) -> Sequence[Any]:
        """Its whole conversation."""
        ...

    @property
    def new_items(self) -> Sequence[Any]:
        """The items that the run has added to the conversation."""
        ...

    @property
    def text(self) -> str:
        """The text of the last answer."""
        ...

    @property
    def value(self) -> Any:
        """The return value of the flow."""
        ...

    @property
    def error(self) -> NoeticError | None:
        """Its error."""
        ...

    @property
    def pending(self) -> Sequence[Any]:
        """Its open requests."""
        ...


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
    # Likewise how the model saw the conversation last, by scope; only in a run that is not stored.
    views: dict[Any, object] | None = None

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
        kept = {name: value for name, value in self.__dict__.items() if name not in ("result", "left", "views")}
        return _rebuild, (type(self), self.args, kept)

    def _repr_html_(self) -> str:
        """A table of what happened, where, and what to try, which a notebook shows."""
        rows = {
            "error": type(self).__name__,
            "message": self.message,
            "step": "/".join(self.path),
            "note": "\n".join(note.strip() for note in getattr(self, "__notes__", ())),
            "try": self.hint,
            "run": None if self.result is None else self.result.run_id,
        }
        return html_table([(name, text) for name, text in rows.items() if text])

    def _render_traceback_(self) -> list[str]:
        """The traceback that IPython prints when a cell fails; in a notebook the table is shown above it."""
        shell = sys.modules["IPython"].get_ipython()
        # Notebooks show a traceback as plain text, so the table is an output of its own; a terminal prints no HTML.
        # IPython asks once more for its history, when the error has been handled.
        if sys.exc_info()[1] is self:
            shell.display_pub.publish({"text/html": self._repr_html_()})
        lines = shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
        return [redact(line) for line in lines]

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
        # The hint of the path that failed is more useful than how to handle its failure.
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
        shared: The name of the shared budget that refused; `None` for a budget of a run or of a harness.
        period: Which of its periods, such as `"2026-11"`.
        reserved: What runs, this one among them, held of it for work under way.
    """

    dimension: str
    limit: int | float | Decimal
    requested: int | float | Decimal
    settled: int | float | Decimal
    # Stored with the error only where they say something.
    shared: str | None = None
    period: str | None = None
    reserved: int | float | Decimal = 0

    def __init__(
        self,
        dimension: str,
        *,
        limit: int | float | Decimal,
        requested: int | float | Decimal,
        settled: int | float | Decimal,
        shared: str | None = None,
        period: str | None = None,
        reserved: int | float | Decimal = 0,
        path: tuple[str, ...] = (),
    ) -> None:
        keyword = dimension.partition(":")[0]
        if shared is None:
            text = f"budget of {limit} {dimension} reached: {settled} spent, {requested} more asked for"
            hint = f"raise {keyword}= of the budget, or give it wrap_up= and reserve="
        else:
            text = (
                f"shared budget {shared!r} of {limit} {dimension} reached (period {period}): {settled} spent, "
                f"{reserved} reserved by runs, {requested} more asked for"
            )
            hint = f"raise {keyword}= of the shared budget, or resume the run in the next period; see noetic budgets"
        super().__init__(text, path=path, hint=hint)
        if shared is not None:
            self.shared, self.period, self.reserved = shared, period, reserved
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
    """The time for an answer is over; also raised by `ctx.ask` when the run is resumed without one."""


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


class ModelError(NoeticError):
    """A model call failed.

    Args:
        message: What happened.
        model: The model's name, such as `"openai:gpt-5-mini"`.
    """

    model: str
    retryable: bool = False

    def __init__(self, message: str, *, model: str, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.model = model


class ModelRefused(ModelError):
    """The model declined to answer."""


class ModelParseError(ModelError):
    """The answer does not fit the output type, after the allowed `output_retries`."""


class UsageInvalid(ModelError):
    """A provider has reported a usage or a cost that cannot be booked; what was reserved counts as used."""


class ModelUnavailable(ModelError):
    """The provider could not be reached, or the connection was lost before an answer began."""

    retryable = True


class ModelStatusError(ModelError):
    """The provider answered with an error status.

    Args:
        status: The HTTP status.
        body: The provider's error text, shortened.
    """

    status: int
    body: str

    def __init__(
        self,
        message: str,
        *,
        model: str,
        status: int,
        body: str = "",
        path: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, model=model, path=path, hint=hint)
        self.status = status
        self.body = redact(body)
        self.retryable: bool = status in (408, 409, 429) or status >= 500


class RateLimited(ModelStatusError):
    """Too many requests.

    Args:
        retry_after: Seconds the provider asks to wait, `None` when it did not say.
    """

    retry_after: float | None

    def __init__(
        self,
        message: str,
        *,
        model: str,
        retry_after: float | None = None,
        status: int = 429,
        body: str = "",
        path: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            message, model=model, status=status, body=body, path=path, hint="wait, or give the step retry="
        )
        self.retry_after = retry_after


class ContextOverflow(ModelStatusError):
    """The request is larger than the model's context window."""


class ModelStreamError(ModelError):
    """A stream was cut, stalled or malformed after it had begun."""

    retryable = True


class AnswerTooLarge(ModelStreamError):
    """An answer has more bytes than answers may have, so it was cut off; what came of it counts against the budget.

    Args:
        limit: How many bytes an answer may have.
    """

    retryable = False
    limit: int

    def __init__(self, limit: int, *, model: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"an answer is limited to {limit} bytes",
            model=model,
            path=path,
            hint="set max_output_tokens=, or look at what the provider sends",
        )
        self.limit = limit


class ModelBusy(ModelError):
    """The queue of a `LimitedModel` is full, so one more request was refused.

    Args:
        waiting: How many wait.
    """

    retryable = True
    waiting: int

    def __init__(self, waiting: int, *, model: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"{waiting} requests wait for the model already",
            model=model,
            path=path,
            hint="try again later, ask another model, or raise max_waiting=",
        )
        self.waiting = waiting


class AllModelsFailed(ModelError):
    """Each model of a `FallbackModel` failed; `__cause__` is the last one's error.

    Args:
        failures: The models' names and errors, in the order in which they were asked.
    """

    failures: tuple[tuple[str, ModelError], ...]

    def __init__(self, failures: Iterable[tuple[str, ModelError]], *, model: str, path: tuple[str, ...] = ()) -> None:
        self.failures = tuple(failures)
        said = "; ".join(f"{name}: {error.message}" for name, error in self.failures)
        super().__init__(f"every model failed: {said}", model=model, path=path)
        self.retryable: bool = any(error.retryable for _, error in self.failures)


class ModelNotFound(ModelError):
    """No plugin knows the model's name, or the package that does is not installed."""


class RealModelRefused(ModelError):
    """A real model was about to be called while `noetic_py.models` forbids it, as it does under pytest."""


class ToolError(NoeticError):
    """A tool call failed.

    Args:
        message: What happened; the model sees it as the call's output.
        tool: The tool's name, as the model was offered it; a tool that raises one may leave it out.
    """

    tool: str

    def __init__(self, message: str, *, tool: str = "", path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.tool = tool


class UnknownTool(ToolError):
    """The model named a tool that it was not given."""


class ToolArgumentsInvalid(ToolError):
    """The arguments are not a JSON object, or do not fit the tool's parameters."""


class ToolFailed(ToolError):
    """The tool's function raised."""


class LayerError(NoeticError):
    """A memory layer has failed, or is not in this execution.

    Args:
        message: What happened.
        layer: The layer's id.
        hook: In which hook, `""` outside of one.
    """

    layer: str
    hook: str

    def __init__(
        self, message: str, *, layer: str, hook: str = "", path: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.layer = layer
        self.hook = hook


class HookFailed(NoeticError):
    """A hook has raised, or has returned what it may not; what it was called for fails with it.

    Args:
        message: What happened.
        hook: The hook's name.
        event: What it was called for, such as `"after_model"`.
    """

    hook: str
    event: str

    def __init__(
        self, message: str, *, hook: str, event: str, path: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.hook = hook
        self.event = event


class ModelRetry(NoeticError):
    """Raised by a tool or an output validator: ask the model again, with this message.

    Args:
        message: What the model should do differently.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class LogError(NoeticError):
    """Base of what an item log refuses."""


class UnpairedOutput(LogError):
    """A function call's output was appended, and no such call is open."""

    call_id: str

    def __init__(self, call_id: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"output for call {call_id!r}, which is not open in this log",
            path=path,
            hint="append the FunctionCall first, and its output once",
        )
        self.call_id = call_id


class DuplicateCall(LogError):
    """A function call was appended whose call id the log already holds."""

    call_id: str

    def __init__(self, call_id: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"call id {call_id!r} is already in this log", path=path, hint="use a new call_id for each call"
        )
        self.call_id = call_id


class ForgedEvent(LogError):
    """Items that come from outside hold one that only the library itself makes; none of them was taken.

    Args:
        message: Which item it is, and why it is refused.
        entry: Where it came in: `"history"`, `"context"`, `"input"`, `"session"` or `"channel"`.
        index: Which one of the items it is, from 0.
        kind: Its type, such as `"function_call"`.
    """

    entry: str
    index: int
    kind: str

    def __init__(self, message: str, *, entry: str, index: int, kind: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            message, path=path, hint="hand over messages, and calls only together with their outputs, as result.items"
        )
        self.entry = entry
        self.index = index
        self.kind = kind


class CodecError(NoeticError):
    """A value cannot be encoded or decoded.

    Args:
        message: What is wrong.
        where: The field path inside the value, such as `"content[0].text"`.
    """

    where: str

    def __init__(self, message: str, *, where: str = "", path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message, path=path, hint=hint)
        self.where = where


class ItemSchemaMismatch(CodecError):
    """Stored or wire data does not fit the item's schema."""


class ChannelError(NoeticError):
    """Base of what a channel can raise."""


class ChannelTimeout(ChannelError, TimeoutError):
    """Nothing came, or no place was free, within the timeout."""


class ChannelValueInvalid(ChannelError):
    """A message is not of the channel's type.

    Args:
        message: What does not fit, and where in the value.
        channel: The channel's name.
    """

    channel: str

    def __init__(self, message: str, *, channel: str, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.channel = channel


class ChannelClosed(ChannelError):
    """The channel was closed."""


class CheckpointError(NoeticError):
    """Base of what storing a run can raise."""


class CheckpointFailed(CheckpointError):
    """The backend did not take a commit; the run ends in this process."""


class StoreUnavailable(CheckpointFailed):
    """The store itself cannot be opened, read or written.

    Args:
        message: What happened.
        where: The store, as it was named: a file's path, a server's address without its secrets.
        reason: A short stable code: `"full"`, `"io"`, `"busy"`, `"readonly"`, `"permission"`, `"descriptors"`,
            `"not-a-database"`, `"newer"`, `"closed"`, ...
    """

    where: str
    reason: str

    def __init__(self, message: str, *, where: str, reason: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where
        self.reason = reason


class CorruptRecord(CheckpointError):
    """Stored bytes are not what was written: damaged, missing, or of another place. Nothing of them was accepted."""


class RecordRefused(CheckpointError):
    """A record transform does not know a stored record to be what was written there; nothing of it was accepted.

    Args:
        message: What it found.
        run_id: The run.
        position: The record's number in the journal, from 1; of the end of the journal, how many records there are.
        transform: The transform's name.
        verdict: `"forged"`: it is not what was written. `"unverified"`: it cannot be checked here.
        reason: Why, in one sentence.
        path: The step that the record is of.
    """

    run_id: str
    position: int
    transform: str
    verdict: str
    reason: str | None

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        position: int,
        transform: str,
        verdict: str,
        reason: str | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, path=path, hint="noetic verify RUN says what else is wrong")
        self.run_id = run_id
        self.position = position
        self.transform = transform
        self.verdict = verdict
        self.reason = reason


class TransformMissing(CheckpointError):
    """A run was written through a record transform that is not here. What is stored stays as it is.

    Args:
        message: What happened.
        transform: The transform's name.
        path: The step that a record is of.
        hint: Where it is to be had.
    """

    transform: str

    def __init__(self, message: str, *, transform: str, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.transform = transform


class PositionConflict(CheckpointError):
    """Another writer has appended at the expected position."""


class VersionConflict(CheckpointError):
    """The stored value of a key is not of the version that was expected: another owner wrote it."""


class LeaseLost(CheckpointError):
    """The writer's fence is no longer the current one."""


class ReplayDiverged(CheckpointError):
    """A resumed run differs from its journal.

    Args:
        message: What differs.
    """

    def __init__(self, message: str, *, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(
            message,
            path=path,
            hint=hint or "run the code that the run was started with, or start a new run",
        )


class StepOutcomeUnknown(CheckpointError):
    """A step that may run only once was started, and it is not known whether it has done its work.

    Args:
        message: What is known of it.
    """

    def __init__(
        self,
        message: str = "the step may run only once, was started before, and has no recorded outcome",
        *,
        path: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(
            message,
            path=path,
            hint=hint or "look whether its effect has happened, and give the step reconcile= to answer that",
        )


class SessionConflict(CheckpointError):
    """Another turn has written the session while this one went on; `result` is what this one has made."""


class SessionLoadError(CheckpointError):
    """The stored data of a session cannot be read. Nothing was changed."""


class SessionSuspended(CheckpointError):
    """A turn of the session waits for an answer, and no other can begin before it has ended.

    Attributes:
        run_id: The run of that turn.
    """

    run_id: str

    def __init__(self, message: str, *, run_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.run_id = run_id


class Overloaded(NoeticError):
    """So many wait already that one more is refused.

    Attributes:
        waiting: How many.
    """

    waiting: int

    def __init__(self, message: str, *, waiting: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.waiting = waiting


class RunBusy(CheckpointError):
    """Another owner holds the run or the session, or there is a run with this `run_id=` already."""


class RunOver(CheckpointError):
    """The run has ended, or is being stopped, so that it cannot be completed or wrapped up any more."""


class RunNotFound(CheckpointError):
    """There is no such run, or it is not yours."""
