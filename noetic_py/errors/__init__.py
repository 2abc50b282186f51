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
│   ├── RouteError              a branch got an unknown key, or something that is no step
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
│   ├── ReplayDiverged          a run that goes on does something else than its journal says
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

from noetic_py.errors.general import (
    Aborted,
    AccessDenied,
    AmbiguousAttribute,
    AnswerConflict,
    AnswerError,
    AnswerInvalid,
    ArgumentsRefused,
    BudgetExceeded,
    Cancelled,
    ConcurrentStepCall,
    ConfigError,
    HandoffLimit,
    Interrupted,
    InvalidEntry,
    InvalidId,
    LimitExceeded,
    LoopLimit,
    MissingExtra,
    NameNotFound,
    NoContextError,
    NoDescriptionWarning,
    NoeticDeprecationWarning,
    NoeticError,
    NoeticWarning,
    NoOutput,
    NoStateField,
    NotAwaited,
    ParallelFailed,
    PluginError,
    ReadOnlyMemory,
    Rejected,
    RequestExpired,
    RequestNotFound,
    RouteError,
    SecretNotKept,
    ShuttingDown,
    StateTypeError,
    StepError,
    StepFailed,
    StepTimeout,
    Stopped,
    Suspended,
    UnknownKeyword,
    UnknownPrice,
    WrongThread,
)
from noetic_py.errors.models import (
    AllModelsFailed,
    AnswerTooLarge,
    ContextOverflow,
    HookFailed,
    LayerError,
    ModelBusy,
    ModelError,
    ModelNotFound,
    ModelParseError,
    ModelRefused,
    ModelRetry,
    ModelStatusError,
    ModelStreamError,
    ModelUnavailable,
    RateLimited,
    RealModelRefused,
    ToolArgumentsInvalid,
    ToolError,
    ToolFailed,
    UnknownTool,
    UsageInvalid,
)
from noetic_py.errors.stored import (
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
    ChannelValueInvalid,
    CheckpointError,
    CheckpointFailed,
    CodecError,
    CorruptRecord,
    DuplicateCall,
    ForgedEvent,
    ItemSchemaMismatch,
    LeaseLost,
    LogError,
    Overloaded,
    PositionConflict,
    RecordRefused,
    ReplayDiverged,
    RunBusy,
    RunNotFound,
    RunOver,
    SessionConflict,
    SessionLoadError,
    SessionSuspended,
    StepOutcomeUnknown,
    StoreUnavailable,
    TransformMissing,
    UnpairedOutput,
    VersionConflict,
)

__all__ = [
    "Aborted",
    "AccessDenied",
    "AllModelsFailed",
    "AmbiguousAttribute",
    "AnswerConflict",
    "AnswerError",
    "AnswerInvalid",
    "AnswerTooLarge",
    "ArgumentsRefused",
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
    "ForgedEvent",
    "HandoffLimit",
    "HookFailed",
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
    "NoDescriptionWarning",
    "NoOutput",
    "NoStateField",
    "NoeticDeprecationWarning",
    "NoeticError",
    "NoeticWarning",
    "NotAwaited",
    "Overloaded",
    "ParallelFailed",
    "PluginError",
    "PositionConflict",
    "RateLimited",
    "ReadOnlyMemory",
    "RealModelRefused",
    "RecordRefused",
    "Rejected",
    "ReplayDiverged",
    "RequestExpired",
    "RequestNotFound",
    "RouteError",
    "RunBusy",
    "RunNotFound",
    "RunOver",
    "SecretNotKept",
    "SessionConflict",
    "SessionLoadError",
    "SessionSuspended",
    "ShuttingDown",
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
    "TransformMissing",
    "UnknownKeyword",
    "UnknownPrice",
    "UnknownTool",
    "UnpairedOutput",
    "UsageInvalid",
    "VersionConflict",
    "WrongThread",
]

for _name in __all__:
    # They are named, in tracebacks and elsewhere, after the place from which users import them.
    globals()[_name].__module__ = __name__
