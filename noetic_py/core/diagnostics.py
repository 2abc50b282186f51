"""Diagnostics for developers: log records, trimmed tracebacks, calls that were not awaited, and misspelt names."""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from inspect import CORO_CREATED, getcoroutinelocals, getcoroutinestate
from pathlib import Path
from sys import _getframe  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
from types import CoroutineType, FrameType, TracebackType
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar, get_args
from weakref import WeakSet

import attrs

from noetic_py import errors
from noetic_py.redaction import redact, redact_record, with_article

FULL = "NOETIC_TRACEBACK"
_OWN = (
    "noetic_py",
    "noetic_anthropic",
    "noetic_documents",
    "noetic_embeddings",
    "noetic_google",
    "noetic_openai",
    "noetic_local",
    "noetic_mcp",
    "noetic_postgres",
    "noetic_redis",
    "noetic_signing",
    "noetic_temporal",
)
# Packages that the library calls and that call it or a step's body back. Where a body calls them they are shown.
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
    "google",
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
        if isinstance(each, errors.ParallelFailed):
            members = tuple(each.failed.values())
            if causes:
                _shorten(each)
        each.__traceback__ = _rebuilt(_visible(each, explained))
        explained = explained or isinstance(each, (errors.CheckpointError, errors.CodecError))
        waiting += [(below, explained) for below in (each.__cause__, each.__context__, *members)]


def _shorten(section: errors.ParallelFailed) -> None:
    """Let a section have as its cause what the body of a step raised, with the note of that step."""
    cause = section.__cause__
    while isinstance(cause, errors.ParallelFailed):
        cause = cause.__cause__
    if isinstance(cause, errors.StepFailed) and cause.__cause__ is not None:
        raised = cause.__cause__
        # The lines that called the step, and those in it.
        raised.__traceback__ = _rebuilt([*_visible(cause), *_visible(raised)])
        for note in getattr(cause, "__notes__", ()):
            section.add_note(note)
        cause = raised
    section.__cause__ = cause


def note_place(failure: errors.NoeticError, error: BaseException) -> None:
    """Note on a step's failure where in the user's code it came from: the step's path, file and line."""
    cause = failure.__cause__
    if getattr(failure, "__notes__", None) or (
        isinstance(cause, errors.NoeticError) and getattr(cause, "__notes__", None)
    ):
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


def warn(message: str, category: type[errors.NoeticWarning] = errors.NoeticWarning) -> None:
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
            # Calls of the body itself are always shown.
            shown.append(each)
            own = []
        hiding = root in _OWN or (hiding and root in _BETWEEN)
    if root in _OWN and not explained and isinstance(error, Exception) and not isinstance(error, errors.NoeticError):
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
    return trace.tb_frame.f_code.co_filename.startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    """How the names of files begin that are not of the user's own code."""
    import sysconfig  # loads the settings of the interpreter's build

    return (*(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")), "<frozen ")


def _rebuilt(frames: list[TracebackType]) -> TracebackType | None:
    trace: TracebackType | None = None
    for each in reversed(frames):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


Area: TypeAlias = Literal[
    "channels", "checkpoints", "events", "memory", "models", "runs", "sessions", "steps", "tools", "until"
]
"""The part of the library that a record is about, which is the last part of its logger's name."""


class Where(NamedTuple):
    """The run, the step and the attempt of a log record.

    Attributes:
        run: The run's id; empty when the record belongs to no run.
        path: The step's path; empty when it belongs to no step.
        attempt: The step's attempt, from 1 on; 0 when it belongs to no step.
    """

    run: str = ""
    path: tuple[str, ...] = ()
    attempt: int = 0


NOWHERE: Final = Where()
"""The run id of a log record that belongs to no run."""


def logger(area: str) -> logging.Logger:
    """The logger of an area. A filter of a parent does not see the records of its children, so each logger has one."""
    found = logging.getLogger(f"noetic_py.{area}" if area else "noetic_py")
    if redact_record not in found.filters:
        found.addFilter(redact_record)
    return found


_LOGGERS: Final = {area: logger(area) for area in get_args(Area)}
# Loggers that write one record or more for each step, which is only worth its cost when it is read.
_VERBOSE: Final = (_LOGGERS["models"], _LOGGERS["steps"])
logger("")


def is_verbose() -> bool:
    """Whether steps and model calls are to be logged; a run asks once, when it begins."""
    models, steps = _VERBOSE
    return steps.isEnabledFor(logging.DEBUG) or models.isEnabledFor(logging.DEBUG)


def log(
    area: Area,
    level: int,
    message: str,
    *args: object,
    where: Where = NOWHERE,
    error: BaseException | None = None,
    hint: str = "",
) -> None:
    """Write a log record.

    Args:
        area: The part of the library.
        level: DEBUG for details and for failures that are raised to a caller, INFO for the beginning and the end of
            runs, WARNING and ERROR for failures that nothing raises.
        message: What has happened, with a `%s` for each argument.
        *args: The arguments.
        where: The run, the step and the attempt; the path is added to the message.
        error: The exception whose traceback belongs to it.
        hint: What to do about it; it stands on a line of its own.
    """
    found = _LOGGERS[area]
    if not found.isEnabledFor(level):
        return
    path = redact("/".join(where.path))
    if path:
        message, args = f"{message} [at %s]", (*args, path)
    if hint:
        message, args = f"{message}\n  Try: %s", (*args, hint)
    if error is not None:
        trim(error)
    fields = {"run": redact(where.run), "path": path, "attempt": where.attempt}
    found.log(level, message, *args, exc_info=error, extra=fields, stacklevel=2)


_PACKAGE = str(Path(__file__).parents[1])

F = TypeVar("F", bound=Callable[..., Any])


class LostCalls:
    """The calls inside a harness's block that nothing has awaited."""

    def __init__(self) -> None:
        self._open: WeakSet[AwaitedCall] = WeakSet()
        # Calls by their place: a line that runs a thousand times is reported once.
        self._lost: dict[str, str] = {}
        self._around: LostCalls | None = None

    def enter(self) -> None:
        """Take the calls that are made from now on."""
        self._around = LOST.get()
        LOST.set(self)

    def leave(self) -> None:
        """Leave calls to the block around this one."""
        if LOST.get() is self:
            LOST.set(self._around)

    def add(self, call: AwaitedCall) -> None:
        """A call was made."""
        self._open.add(call)

    def lose(self, what: str, place: str) -> None:
        """Report a coroutine that was collected without being awaited."""
        self._lost[place] = what

    def refuse(self, owner: object) -> None:
        """Raise for the calls that were lost, and for those of the owner's that nothing can await any more.

        Raises:
            NotAwaited: There are some.
        """
        for call in tuple(self._open):
            if call.is_lost() and call.belongs_to(owner):
                self.lose(*call.close_lost())
        if self._lost:
            said = ", ".join(f"{what} was called and not awaited ({place})" for place, what in self._lost.items())
            raise errors.NotAwaited(said, hint=f"await {next(iter(self._lost.values()))}")


LOST: ContextVar[LostCalls | None] = ContextVar("noetic_lost_calls", default=None)
"""The calls of the innermost harness that was entered."""


class AwaitedCall(Coroutine[Any, Any, Any]):
    """A coroutine that says, when it is taken for its result, that it was not awaited."""

    __slots__ = ("__weakref__", "_block", "_made", "_place", "_what")

    def __init__(self, made: CoroutineType[Any, Any, Any], what: str, place: str) -> None:
        self._made, self._what, self._place = made, what, place
        self._block: LostCalls | None = None

    def lose_in(self, block: LostCalls) -> None:
        """Have a block know of the call until it is awaited."""
        self._block = block
        block.add(self)

    def is_lost(self) -> bool:
        """Whether nothing has awaited it, or has closed it."""
        return self._block is not None and getcoroutinestate(self._made) == CORO_CREATED

    def belongs_to(self, owner: object) -> bool:
        """Whether it is a call of a method of an object."""
        return getcoroutinelocals(self._made).get("self") is owner

    def close_lost(self) -> tuple[str, str]:
        """Close it, so that Python does not warn of it too, and say what was called, and where."""
        self._made.close()
        return self._what, self._place

    def __del__(self) -> None:
        """Have the block tell of a call that nothing has awaited."""
        block = self._block
        if block is not None and self.is_lost():
            block.lose(self._what, self._place)

    def __await__(self) -> Generator[object, Any, object]:
        self._block = None
        return self._made.__await__()

    def send(self, value: object, /) -> object:
        """Go on with it; it counts as awaited."""
        self._block = None
        return self._made.send(value)

    def throw(self, *error: Any) -> object:
        """Raise an exception in it."""
        return self._made.throw(*error)

    def close(self) -> None:
        """End it."""
        self._made.close()

    def __getattr__(self, name: str) -> object:
        if name.startswith(("cr_", "gi_", "ag_", "_")) or getcoroutinestate(self._made) != CORO_CREATED:
            # Event loops and debuggers ask for these attributes; a coroutine that runs was awaited.
            return getattr(self._made, name)
        self._made.close()
        raise errors.NotAwaited(
            f"{self._what} was called and not awaited ({self._place}), so there is no {name!r} yet",
            hint=f"(await {self._what}).{name}",
        )


class _Entered(AbstractAsyncContextManager[Any, "bool | None"]):
    """An async context manager that says, when it is used without being entered, how to enter it."""

    __slots__ = ("_made", "_place", "_what")

    def __init__(self, made: AbstractAsyncContextManager[Any, bool | None], what: str, place: str) -> None:
        self._made, self._what, self._place = made, what, place

    async def __aenter__(self) -> object:
        return await self._made.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        with HIDING:
            return await self._made.__aexit__(kind, error, trace)

    def __await__(self) -> NoReturn:
        self._refuse("awaited")

    def __aiter__(self) -> NoReturn:
        self._refuse("iterated")

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse(f"asked for {name!r}")

    def _refuse(self, how: str) -> NoReturn:
        raise errors.NotAwaited(
            f"{self._what} was {how} without being entered ({self._place})",
            hint=f"async with {self._what} as stream: ...",
        )


def not_a_value(
    made: CoroutineType[object, object, object], what: str, *, path: tuple[str, ...] = ()
) -> errors.NotAwaited:
    """The error for a coroutine that is taken for a value.

    Args:
        made: The coroutine. One of a user's function is closed, so that Python does not warn of it too; of one of the
            library's the step that has made it says more, or Python does.
        what: What has it, as the message begins: `"the step returned"`.
        path: The step's path.
    """
    code = made.cr_code
    place = ""
    if not code.co_filename.startswith(_PACKAGE):
        made.close()
        place = f" ({code.co_filename}:{code.co_firstlineno})"
    return errors.NotAwaited(
        f"{what} the coroutine of {code.co_qualname}(){place}, which is not a value",
        path=path,
        hint=f"await {code.co_name}(...) first, and use what that gives",
    )


def must_enter(what: str) -> Callable[[F], F]:
    """Make a forgotten `async with` an error that names what was to be entered."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def noting(*args: object, **kwargs: object) -> object:
            caller = _getframe(1)
            return _Entered(function(*args, **kwargs), what, f"{caller.f_code.co_filename}:{caller.f_lineno}")

        made: Any = noting
        same: F = made
        return same

    return decorate


# ----------------------------------------------------------------------------------------------------- names


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a misspelt one; `None` when none is like it."""
    from difflib import get_close_matches

    names = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), names, n=1)
    if close:
        return names[close[0]]
    # "tokens" for "max_output_tokens" is too far for the measure, and yet plain.
    parts = [each for each in names if len(name) > 3 and name.lower() in each]
    return names[min(parts, key=len)] if parts else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The hint of an error about a name that is not known."""
    names = sorted(known)
    close = nearest(name, names)
    listed = f"known are {', '.join(names)}" if names else "none is known"
    return listed if close is None else f"did you mean {close!r}? {listed}"


def text_or_none(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse a field that is neither text nor `None`; a validator of attrs.

    Raises:
        ConfigError: It is something else; code `"text"`.
    """
    if value is not None and not isinstance(value, str):
        raise errors.ConfigError(
            f"{value!r:.80} is not a valid {attribute.name} of {with_article(type(instance).__name__)}; expected text",
            code="text",
            hint="str(value) makes a text of it",
        )


def unknown_keyword(where: str, name: str, known: Iterable[str], *, code: str) -> errors.UnknownKeyword:
    """The error for a keyword that a function does not take.

    Args:
        where: The function, as its caller writes it: `"Harness()"`.
        name: The keyword.
        known: Those it takes.
        code: The code of the error.
    """
    return errors.UnknownKeyword(f"{where} takes no keyword {name!r}", code=code, hint=suggestion(name, known))


def known_keywords(where: str) -> Callable[[F], F]:
    """Make a function refuse keywords that it does not have with the nearest name; type checkers see it as it is.

    Args:
        where: The function, as its caller writes it: `"Harness()"`.
    """

    def decorate(function: F) -> F:
        code = function.__code__
        known = frozenset(code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount])

        @functools.wraps(function)
        def checked(*args: object, **kwargs: object) -> object:
            for name in kwargs:
                if name not in known:
                    raise unknown_keyword(where, name, known - {"self"}, code="unknown-keyword")
            return function(*args, **kwargs)

        made: Any = checked
        same: F = made
        return same

    return decorate
