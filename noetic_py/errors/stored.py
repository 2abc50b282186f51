"""What goes wrong with logs, channels and everything that is stored."""

from __future__ import annotations

from noetic_py.errors.general import NoeticError


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
        verdict: `"forged"`: it is not what was written. `"unverified"`: it cannot be told here.
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
    """What is stored of a session cannot be read. Nothing of it was changed."""


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
    """Another owner holds the run or the session."""


class RunOver(CheckpointError):
    """The run has ended, or is being stopped, so that it cannot be completed or wrapped up any more."""


class RunNotFound(CheckpointError):
    """There is no such run, or it is not yours."""
