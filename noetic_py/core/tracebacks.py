"""Tracebacks and warnings as the author of a flow wants them: they show his lines, and not those of the library.

`NOETIC_TRACEBACK=full` in the environment leaves every frame of a traceback.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from types import FrameType, TracebackType

from noetic_py.errors import CheckpointError, CodecError, NoeticError, NoeticWarning, ParallelFailed, StepFailed

FULL = "NOETIC_TRACEBACK"
_OWN = (
    "noetic_py",
    "noetic_anthropic",
    "noetic_openai",
    "noetic_local",
    "noetic_mcp",
    "noetic_postgres",
    "noetic_redis",
    "noetic_signing",
)
# What the library calls, and what then calls it or a step's body back. Where a body calls these itself they are shown.
_BETWEEN = (
    "anyio",
    "asyncio",
    "trio",
    "outcome",
    "contextlib",
    "concurrent",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "h11",
    "anthropic",
    "mcp",
    "openai",
)


class _Hiding:
    """Trims the traceback of what leaves a block: around what a user calls, so that no frame of the library follows."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object, /) -> None:
        if error is not None:
            trim(error, causes=True)


HIDING = _Hiding()


def trim(error: BaseException, *, causes: bool = False) -> None:
    """Take the library's frames out of the traceback of an exception, of its causes and of the members of its group.

    Args:
        error: The exception.
        causes: Whether it has left its run, so that sections no longer need the failures of their steps as causes: what
            a step's body raised is printed once. `first` and `failed` of a section keep all of them.
    """
    if os.environ.get(FULL) == "full":
        return
    seen: set[int] = set()
    # The exceptions, and whether an error of the library says what is to be said of them.
    waiting: list[tuple[BaseException | None, bool]] = [(error, False)]
    while waiting:
        each, explained = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        members: tuple[BaseException, ...] = getattr(each, "exceptions", ())
        if isinstance(each, ParallelFailed):
            members = tuple(each.failed.values())
            if causes:
                _shorten(each)
        each.__traceback__ = _rebuilt(_visible(each, explained))
        explained = explained or isinstance(each, (CheckpointError, CodecError))
        waiting += [(below, explained) for below in (each.__cause__, each.__context__, *members)]


def _shorten(section: ParallelFailed) -> None:
    """Let a section have as its cause what the body of a step raised, with the note of that step."""
    cause = section.__cause__
    while isinstance(cause, ParallelFailed):
        cause = cause.__cause__
    if isinstance(cause, StepFailed) and cause.__cause__ is not None:
        raised = cause.__cause__
        # The lines that called the step, and those in it.
        raised.__traceback__ = _rebuilt([*_visible(cause), *_visible(raised)])
        for note in getattr(cause, "__notes__", ()):
            section.add_note(note)
        cause = raised
    section.__cause__ = cause


def note_place(failure: NoeticError, error: BaseException) -> None:
    """Note on a step's failure where in the user's code it came from: the step's path, file and line."""
    cause = failure.__cause__
    if getattr(failure, "__notes__", None) or (isinstance(cause, NoeticError) and getattr(cause, "__notes__", None)):
        return
    at_fault = error
    while (inner := getattr(at_fault, "exceptions", None)) and isinstance(at_fault, BaseExceptionGroup):
        # A group says where its tasks were awaited, and its members where they failed.
        at_fault = inner[0]
    frames = _visible(at_fault)
    place = next((each for each in reversed(frames) if not _is_installed(each)), frames[-1] if frames else None)
    if place is not None and _root(place) not in _OWN:
        code = place.tb_frame.f_code
        at = "/".join(failure.path) or "the run"
        failure.add_note(f"  in step {at}: {code.co_filename}:{place.tb_lineno}, in {code.co_qualname}")


def where_defined(value: object) -> str:
    """A function's name with the file and the line in which it begins; of anything else what it is."""
    code = getattr(value, "__code__", None) or getattr(value, "cr_code", None)
    if code is None:
        return repr(value)
    kind = "the coroutine of " if hasattr(value, "cr_code") else ""
    return f"{kind}{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def warn(message: str, category: type[NoeticWarning] = NoeticWarning) -> None:
    """Warn with the file and the line of the code that has called the library."""
    found = _caller()
    known = found.f_globals
    warnings.warn_explicit(
        message,
        category,
        found.f_code.co_filename,
        found.f_lineno,
        module=known.get("__name__"),
        registry=known.setdefault("__warningregistry__", {}),
    )


def called_at() -> str:
    """The file and the line of the code that has called the library."""
    found = _caller()
    return f"{found.f_code.co_filename}:{found.f_lineno}"


def _caller() -> FrameType:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
    outer: FrameType | None = frame
    while outer is not None and _root_of(outer) in (*_OWN, *_BETWEEN):
        outer = outer.f_back
    return frame if outer is None else outer


def _visible(error: BaseException, explained: bool = False) -> list[TracebackType]:
    """The frames worth showing. What the library calls is hidden with it, until a frame of other code follows."""
    shown: list[TracebackType] = []
    own: list[TracebackType] = []
    hiding, root = True, ""
    for each in _frames(error.__traceback__):
        root = _root(each)
        if root in _OWN:
            own.append(each)
        elif not hiding or root not in _BETWEEN:
            # What a body calls itself is shown, whatever it is.
            shown.append(each)
            own = []
        hiding = root in _OWN or (hiding and root in _BETWEEN)
    if root in _OWN and not explained and isinstance(error, Exception) and not isinstance(error, NoeticError):
        # Something is wrong in the library itself, or with what it was given.
        shown += own
    elsewhere = not isinstance(error, Exception) or isinstance(error, BaseExceptionGroup)
    while elsewhere and len(shown) > 1 and _root(shown[-1]) in _BETWEEN:
        # Where a cancellation has met the body says nothing about it, nor where a task group has put a group together.
        shown.pop()
    return shown


def forget_attempt(error: BaseException, before: BaseException) -> None:
    """Take the failure of an earlier attempt out of what a failure was raised in the handling of."""
    each: BaseException = error
    while each.__context__ is not None and each.__context__ is not before:
        each = each.__context__
    if each is not before:
        each.__context__ = None


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _root(trace: TracebackType) -> str:
    return _root_of(trace.tb_frame)


def _root_of(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _is_installed(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_INSTALLED)


_INSTALLED = (*(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")), "<frozen ")


def _rebuilt(frames: list[TracebackType]) -> TracebackType | None:
    trace: TracebackType | None = None
    for each in reversed(frames):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace
