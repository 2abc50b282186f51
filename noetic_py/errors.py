"""Every error the library raises, one class per cause.

```
NoeticError
├── ConfigError                 a definition or a setting is wrong; found before anything ran (code, hint)
├── NoContextError              an engine method was called on a context outside a run
├── WrongThread                 a harness was used from a second thread or event loop
├── StateTypeError              a value in a StateBag is not of the type asked for (also a TypeError)
├── InvalidId                   an id from outside is empty, too long or holds control characters
├── InvalidEntry                an entry that a pool cannot keep: no id, no description (also a ValueError)
├── NameNotFound                no entry of a pool, or no listener, goes by a name (also a KeyError)
├── ReadOnlyMemory              a tool wrote to a pool that it may only read
├── StepError
│   ├── StepFailed              the body of a step raised; error_type and error_message say what
│   ├── StepTimeout             a step ran longer than its timeout (also a TimeoutError)
│   ├── ParallelFailed          a path of a parallel section failed: succeeded, failed
│   ├── RouteError              a branch got an unknown key, or something that is no step
│   ├── LoopLimit               a loop reached max_iterations
│   ├── NoOutput                a model round that holds tool calls only was asked for a value
│   └── ConcurrentStepCall      two child steps of one body were in flight outside a section
├── LimitExceeded               a structural bound was reached: spawn depth, live children, log length, size
├── BudgetExceeded              a limit of a budget would have been passed: dimension, limit, requested
├── UnknownPrice                a cost limit is set and the model has no price
├── Stopped                     asking a stopped run for its value
│   ├── Aborted                 abort(reason) was called; also raised by a spawn whose child aborted
│   ├── Interrupted             somebody interrupted the run
│   ├── Cancelled               the run was cancelled from outside
│   └── Suspended               the run waits for an answer
├── ModelError                  a model call failed: model
│   ├── ModelRefused            the model declined to answer
│   ├── ModelParseError         the answer does not fit the output type after the allowed retries
│   ├── ModelUnavailable        connection refused or lost before an answer began
│   ├── ModelStatusError        the provider answered with an error status: status, body
│   │   ├── RateLimited         too many requests: retry_after
│   │   └── ContextOverflow     the request is larger than the model's window
│   ├── ModelStreamError        a stream was cut, stalled or malformed after it had begun
│   ├── ModelBusy               too many requests wait for a limited model already: waiting
│   ├── AllModelsFailed         each model of a fallback failed: failures
│   ├── ModelNotFound           no plugin knows the name, or its package is missing
│   └── RealModelRefused        a real model was called while tests forbid it
├── ToolError                   a tool call failed: tool
│   ├── UnknownTool             a name that no tool has
│   ├── ToolArgumentsInvalid    the arguments do not fit the tool's parameters
│   └── ToolFailed              the tool's function raised
├── LayerError                  a memory layer failed, or is not there: layer, hook
├── ModelRetry                  raised by tools and validators to ask the model again with a message
├── LogError
│   ├── UnpairedOutput          an output without an open call
│   └── DuplicateCall           a call id that the log already holds
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
│   ├── PositionConflict        somebody else wrote at the expected position
│   ├── VersionConflict         somebody else wrote the value of a key
│   ├── LeaseLost               the writer's fence is no longer the current one
│   ├── ReplayDiverged          a run that goes on does something else than its journal says
│   ├── StepOutcomeUnknown      a step that may run only once was started, and has no recorded outcome
│   ├── RunBusy                 another owner holds the run
│   └── RunNotFound             no such run, or not yours
├── PluginError                 a plugin was refused or failed to load
└── MissingExtra                an optional dependency is not installed: extra, the install line
```

Every error carries `path` (the step's path, empty outside a run), `hint` (the next thing to try) and, when it ended a
run, `result` (the run's [`RunResult`][noetic_py.RunResult] with the partial items, the usage and the checkpoint).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_py.control import RunResult

__all__ = [
    "Aborted",
    "AllModelsFailed",
    "BudgetExceeded",
    "Cancelled",
    "ChannelClosed",
    "ChannelError",
    "ChannelTimeout",
    "ChannelValueInvalid",
    "CheckpointError",
    "CheckpointFailed",
    "CodecError",
    "ConcurrentStepCall",
    "ConfigError",
    "ContextOverflow",
    "CorruptRecord",
    "DuplicateCall",
    "Interrupted",
    "InvalidEntry",
    "InvalidId",
    "ItemSchemaMismatch",
    "LayerError",
    "LeaseLost",
    "LimitExceeded",
    "LogError",
    "LoopLimit",
    "MissingExtra",
    "ModelBusy",
    "ModelError",
    "ModelNotFound",
    "ModelParseError",
    "ModelRefused",
    "ModelRetry",
    "ModelStatusError",
    "ModelStreamError",
    "ModelUnavailable",
    "NameNotFound",
    "NoContextError",
    "NoOutput",
    "NoeticDeprecationWarning",
    "NoeticError",
    "NoeticWarning",
    "ParallelFailed",
    "PluginError",
    "PositionConflict",
    "RateLimited",
    "ReadOnlyMemory",
    "RealModelRefused",
    "ReplayDiverged",
    "RouteError",
    "RunBusy",
    "RunNotFound",
    "StateTypeError",
    "StepError",
    "StepFailed",
    "StepOutcomeUnknown",
    "StepTimeout",
    "Stopped",
    "StoreUnavailable",
    "Suspended",
    "ToolArgumentsInvalid",
    "ToolError",
    "ToolFailed",
    "UnknownPrice",
    "UnknownTool",
    "UnpairedOutput",
    "VersionConflict",
    "WrongThread",
]


class NoeticWarning(UserWarning):
    """Something works, but probably not as its author meant."""


class NoeticDeprecationWarning(NoeticWarning, DeprecationWarning):
    """A name or a behaviour goes away in two minor versions."""


class NoeticError(Exception):
    """Base of every error of the library.

    Args:
        message: What happened, in one sentence.
        path: The path of the step it happened in; empty outside a run.
        hint: The next thing to try.
    """

    path: tuple[str, ...]
    hint: str | None
    result: RunResult[Any, Any] | None
    # Where the state stood when the failure passed a handler that could have caught it: the engine's own note.
    left: tuple[object, Any, Any] | None = None

    def __init__(self, message: str = "", *, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.hint = hint
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


def _rebuild(kind: type[NoeticError], args: tuple[Any, ...], kept: dict[str, Any]) -> NoeticError:
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


class NoContextError(NoeticError):
    """An engine method was called on a context that belongs to no run."""


class WrongThread(NoeticError):
    """A harness or a context was used from another thread or event loop than its own."""


class StateTypeError(NoeticError, TypeError):
    """A stored value is not of the type that was asked for."""


class InvalidId(NoeticError, ValueError):
    """An id is empty, too long, or holds characters that no id may hold."""


class InvalidEntry(NoeticError, ValueError):
    """An entry that a pool cannot keep: it has no id or no description, or its id is there twice."""


class NameNotFound(NoeticError, KeyError):
    """A pool has no entry of that id, or stored data name a listener that nobody has given."""


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
        self.error_message = error_message


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
        failed: The errors of the paths that failed, by index; `__cause__` is the first.
    """

    succeeded: Mapping[int, object]
    failed: Mapping[int, NoeticError]

    def __init__(
        self,
        *,
        succeeded: Mapping[int, object],
        failed: Mapping[int, NoeticError],
        first: NoeticError,
        path: tuple[str, ...] = (),
    ) -> None:
        what = f"{len(failed)} path failed" if len(failed) == 1 else f"{len(failed)} paths failed"
        super().__init__(
            f"{what}, first: {first.message}", path=path, hint="use settle(...) to get every path's outcome"
        )
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


class NoOutput(StepError):
    """A model round held tool calls only, so it has no value."""


class ConcurrentStepCall(StepError):
    """Two child steps of one body were in flight at once outside a section, or a foreign task called one."""


class LimitExceeded(NoeticError):
    """A structural bound was reached.

    Args:
        what: The bound: `"spawn depth"`, `"live children"`, `"log length"`, `"item size"`, `"nesting"`.
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
            hint="register one with noetic_py.models.set_price(...), or remove cost= from the budget",
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
    """Somebody interrupted the run."""


class Cancelled(Stopped):
    """The run was cancelled from outside."""


class Suspended(Stopped):
    """The run waits for an answer; see `result.pending`."""


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
        self.body = body
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


class ModelBusy(ModelError):
    """As many requests wait for a `LimitedModel` as may wait, so one more was refused.

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
        tool: The tool's name.
    """

    tool: str

    def __init__(self, message: str, *, tool: str, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.tool = tool


class UnknownTool(ToolError):
    """The model named a tool that it was not given."""


class ToolArgumentsInvalid(ToolError):
    """The arguments are no JSON object, or do not fit the tool's parameters."""


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
    """What was sent is not of the channel's type.

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
        reason: A short stable code: `"full"`, `"io"`, `"busy"`, `"readonly"`, `"permission"`, `"not-a-database"`,
            `"newer"`, `"closed"`, ...
    """

    where: str
    reason: str

    def __init__(self, message: str, *, where: str, reason: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where
        self.reason = reason


class CorruptRecord(CheckpointError):
    """Stored bytes are not what was written: damaged, missing, or of another place. Nothing of them was accepted."""


class PositionConflict(CheckpointError):
    """Another writer has appended at the expected position."""


class VersionConflict(CheckpointError):
    """The stored value of a key is not of the version that was expected: somebody else wrote it."""


class LeaseLost(CheckpointError):
    """The writer's fence is no longer the current one."""


class ReplayDiverged(CheckpointError):
    """A run that goes on does something else than its journal says.

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
    """A step that may run only once was started, and nobody knows whether it has done its work."""

    def __init__(self, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            "the step may run only once, was started before, and has no recorded outcome",
            path=path,
            hint="look whether its effect has happened, and give the step reconcile= to answer that",
        )


class RunBusy(CheckpointError):
    """Another owner holds the run or the session."""


class RunNotFound(CheckpointError):
    """There is no such run, or it is not yours."""


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
