"""The runs in progress of this process: their registry, stops, and event streams."""

from __future__ import annotations

import ast
import linecache
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import getattr_static
from logging import ERROR
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, overload
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import current_token
from typing_extensions import Unpack

from noetic_py import errors
from noetic_py.access import Authorizer, Resource
from noetic_py.context.protocol import CURRENT
from noetic_py.context.step import AnyStep, awaited, is_seconds
from noetic_py.core.control import AnyResult, Control, Partial, RunResult
from noetic_py.core.diagnostics import FULL, HIDING, Where, called_at, log, trim, warn
from noetic_py.core.events import Event, EventT, ItemsAppended, ReasoningDelta, TextDelta
from noetic_py.core.selections import Choice, CommittedItems, Deltas, Partials, Selection, SelectOptions, Snapshots
from noetic_py.core.types import O_co, S_co, T
from noetic_py.core.values import copy_value

if TYPE_CHECKING:
    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.channels.declared import AnyChannel
    from noetic_py.core.items import Item
    from noetic_py.core.view import View
    from noetic_py.engine.state import Run

__all__ = ["Home", "Living", "Stopping", "check_shutdown", "note_cancelled", "stopping_on_signals"]


_METHODS = {"run": 0, "stream": 0, "run_sync": 0, "resume": 1, "resume_stream": 1}
"""The methods that run a step, and where the step stands among their arguments."""


_STORE = 'Harness(checkpoints="sqlite:runs.db") stores runs, so that they can be resumed'
_AGAIN = "run it again"


class Interruption(str):
    """A note on a cancellation: the run it has interrupted, where, and how to resume it.

    Args:
        run_id: The run.
        step: Its flow.
        paths: The steps that were in flight; `None` when the run had not begun.
        stored: Whether another process can resume it.
        session: Whether it is a turn of a session.
    """

    __slots__ = ("harness", "other", "run_id", "session", "step", "stored", "what")

    what: str
    other: str
    run_id: str
    step: object
    stored: bool
    session: bool
    # The harness that the code which the cancellation reaches has run the step with; none where it has only started it.
    harness: object

    def __new__(
        cls, run_id: str, step: object, paths: Iterable[tuple[str, ...]] | None, *, stored: bool, session: bool
    ) -> Self:
        """Make the note's text, with general names for the harness and the step."""
        if paths is None:
            where, lost = "before it began", ""
        else:
            where = "at " + (", ".join(sorted("/".join(path) for path in paths)) or "its beginning")
            lost = "" if stored else ", and ends with the process"
        what = f"run {run_id!r} was interrupted {where}{lost}"
        other = _AGAIN if paths is None else _STORE
        note = super().__new__(cls, f"{what}\n  Try: {_remedy(run_id) if stored else other}")
        note.other = other
        note.what, note.run_id, note.step, note.stored, note.session = what, run_id, step, stored, session
        note.harness = None
        return note

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # A copy of the exception, and another process, have the text.
        return str, (str(self),)

    def put_on(self, error: BaseException, harness: object = None) -> None:
        """Note it on a cancellation, once.

        Args:
            error: The cancellation.
            harness: With what the code that the cancellation reaches has run the step, if it has not only started it.
        """
        self.harness = harness
        if self not in getattr(error, "__notes__", ()):
            error.add_note(self)
        if sys.excepthook is sys.__excepthook__:
            # A hook of the application's, or of another library, stays.
            sys.excepthook = _show

    def describe(self, error: BaseException) -> str:
        """The note with the names that the code has where the cancellation came through."""
        known = getattr(sys.modules.get("__main__"), "__dict__", {})
        named = next((name for name, value in known.items() if value is self.step), "step")
        harness, step = _as_called(error, self) or ("harness", named)
        return f"{self.what}\n  Try: {_remedy(self.run_id, harness, step) if self.stored else self.other}"


def _remedy(run_id: str, harness: str = "harness", step: str = "step") -> str:
    return f"await {harness}.resume({run_id!r}, {step})"


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
    """Print what a Ctrl-C has interrupted, and anything else as Python does."""
    notes = dict(_notes(error)) if _is_ctrl_c(error) and os.environ.get(FULL) != "full" else {}
    if not notes:
        sys.__excepthook__(kind, error, trace)
        return
    lines = ("KeyboardInterrupt", *(note.describe(on) for note, on in notes.items()), "")
    sys.stderr.write("\n".join(lines))


def _is_ctrl_c(error: BaseException) -> bool:
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return all(map(_is_ctrl_c, inside)) if inside else isinstance(error, KeyboardInterrupt)


def _notes(error: BaseException) -> Iterator[tuple[Interruption, BaseException]]:
    """The notes on an exception, on those that it was raised in the handling of, and on the members of a group."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        for note in getattr(each, "__notes__", ()):
            if isinstance(note, Interruption):
                yield note, each
        waiting += (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))


def _as_called(error: BaseException, note: Interruption) -> tuple[str, str] | None:
    """The harness and the step in the call that a cancellation came through, as its source has them."""
    trace = error.__traceback__
    while trace is not None:
        call = _call_at(trace)
        if call is not None and isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
            place = _METHODS[call.func.attr]
            given = [*call.args[place : place + 1], *(each.value for each in call.keywords if each.arg == "step")]
            owner = call.func.value
            if note.session and isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
                # A turn is run with what the method `session` of a harness gives.
                owner = owner.func.value
            if given and note.harness is not None and _value(owner, trace.tb_frame) is note.harness:
                return ast.unparse(owner), ast.unparse(given[0])
        trace = trace.tb_next
    return None


def _value(expression: ast.expr, frame: FrameType) -> object:
    """The value of a name, or of an attribute of one; nothing is called for it."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return getattr_static(_value(expression.value, frame), expression.attr, None)
    return None


def _call_at(trace: TracebackType) -> ast.Call | None:
    """The call that a frame was in, read from its file."""
    code = trace.tb_frame.f_code
    first, last, begins, ends = list(code.co_positions())[trace.tb_lasti // 2]
    if first is None or last is None or begins is None or ends is None:
        return None
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
    if len(lines) != last - first + 1:
        return None
    lines[-1] = lines[-1][:ends]
    lines[0] = lines[0][begins:]
    try:
        found = ast.parse(b"(" + b"".join(lines) + b"\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    found = found.value if isinstance(found, ast.Await) else found
    return found if isinstance(found, ast.Call) else None


class Signals:
    """Handles SIGINT and SIGTERM inside its block.

    The handlers are Python's own and not the event loop's: asyncio knows SIGINT only, and a step that never lets the
    loop run would keep the loop's from being called, while the second signal has to work then, too. On Windows, and
    outside the main thread, nothing is handled, and Ctrl-C raises `KeyboardInterrupt`.

    Args:
        farewell: Text that is written to standard error when the process is ended at once.
        limit: Seconds after the first signal until the process is ended if the block has not been left; `None` for
            no limit.

    Attributes:
        received: The first signal that came, `None` before.
    """

    def __init__(self, farewell: str = "", *, limit: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self._farewell = farewell.encode()
        self._limit = limit
        self._watchdog: threading.Timer | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._reader, self._writer = socket.socketpair()

    def __enter__(self) -> Self:
        for each in (self._reader, self._writer):
            each.setblocking(False)
        if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)
        self._reader.close()
        self._writer.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._end_now(number)
        self.received = signal.Signals(number)
        with suppress(OSError):
            self._writer.send(b"!")
        if self._limit is not None:
            # A thread of its own: what blocks the event loop blocks every timer of that.
            self._watchdog = threading.Timer(self._limit, self._end_now, (number,))
            self._watchdog.daemon = True
            self._watchdog.start()

    def _end_now(self, number: int) -> None:
        with suppress(OSError):
            os.write(2, self._farewell)
        os._exit(128 + number)

    async def wait(self) -> signal.Signals:
        """Wait for the first signal."""
        while self.received is None:
            await anyio.wait_readable(self._reader)
        return self.received


REASON = "shutdown"
"""Why a run has ended that a shutdown has interrupted."""
LAST_SECOND = 1.0
"""Seconds after the grace period in which interrupted runs are stored."""
_VIEWS = 100
"""How many ended runs' views are kept."""


_Shown: TypeAlias = "tuple[View | None, Resource]"


class Home:
    """The thread and the event loop that a harness belongs to: those in which it is used first.

    Args:
        opened: The scheme of a store that the harness has opened, and closes only when it is left; `"memory"` for none.
    """

    def __init__(self, opened: str) -> None:
        self.opened = None if opened == "memory" else opened
        self._here: tuple[int, object] | None = None
        self._thread = ""

    def check(self) -> None:
        """Take this thread and event loop as the harness's own, or compare them.

        Raises:
            WrongThread: The harness belongs to others.
        """
        try:
            here = (threading.get_ident(), current_token())
        except RuntimeError as error:
            raise errors.WrongThread(
                f"this thread runs no event loop ({called_at()})", hint="call it where the harness runs"
            ) from error
        if self._here is None:
            self._here, self._thread = here, threading.current_thread().name
            if self.opened is not None:
                warn(
                    f"the harness was not entered, so the {self.opened} store that it opened is not closed; use: "
                    "async with Harness(...) as harness"
                )
        elif self._here[0] != here[0]:
            raise errors.WrongThread(
                f"this harness belongs to thread {self._thread!r}, and was called from thread "
                f"{threading.current_thread().name!r} ({called_at()})",
                hint="anyio.from_thread.run(harness.run, step, input) calls it from a worker thread; or make one "
                "harness for each thread",
            )
        elif self._here[1] != here[1]:
            raise errors.WrongThread(
                f"this harness belongs to another event loop of this thread ({called_at()})",
                hint="make one harness for each anyio.run(...): async with Harness() as harness: inside of it",
            )

    def require_no_loop(self) -> None:
        """Check that `run_sync` can start an event loop in this thread; it enters the harness for its run.

        Raises:
            WrongThread: One runs here already.
        """
        self.opened = None
        try:
            current_token()
        except RuntimeError:
            return
        raise errors.WrongThread("run_sync() would block the event loop of this thread", hint="await harness.run(...)")

    def leave(self) -> None:
        """Belong to no thread until the next use."""
        self._here = None


class Living:
    """The runs in progress of one harness, and whether another one may begin.

    Args:
        refuse: Refuses turns that wait for the lock; called once, when a shutdown begins.

    Attributes:
        closing: Whether a shutdown has begun.
    """

    def __init__(self, refuse: Callable[[], None]) -> None:
        self._runs: dict[str, Any] = {}
        self._refuse = refuse
        self.closing: bool = False
        # How answers in flight are treated after the timeout.
        self._over: Partial | None = None
        # Set when the last run has ended, for a shutdown that waits for it.
        self._empty: anyio.Event | None = None
        # The runs that were cancelled since the last one began: when the program ends now, it is for the same reason.
        self._cancelled: list[Interruption] = []
        # The last model views of the runs that ended last.
        self._views: dict[str, _Shown] = {}
        # The flows of the stored runs that have ended last: one that waits may be completed.
        self._flows: dict[str, AnyStep] = {}
        # Kept by those that wait for them.
        self._ends: WeakValueDictionary[str, anyio.Event] = WeakValueDictionary()

    def get(self, run_id: str) -> Any:
        """A run in progress."""
        return self._runs.get(run_id)

    def admit(self, run_id: str, hint: str) -> None:
        """Check that a run may begin. During a shutdown, runs in progress may still start others.

        Raises:
            ShuttingDown: It may not, because the harness is shut down.
            RunBusy: It is already running.
        """
        if self.closing and (self._over is not None or not self._is_inside()):
            raise errors.ShuttingDown
        if run_id in self._runs:
            raise errors.RunBusy(f"run {run_id!r} is already running", hint=hint)

    def _is_inside(self) -> bool:
        """Whether the caller is a run in progress of this harness."""
        asking = CURRENT.get()
        return asking is not None and asking.run_id in self._runs

    def add(self, run: Any) -> None:
        """A run begins.

        Raises:
            LimitExceeded: It was started too deep below another one, or too many are in flight there.
        """
        if run.depth:
            run.limits.check(run.depth)
            run.limits.children += 1
        self._cancelled.clear()
        self._runs[run.run_id] = run

    def remove(self, run: Any) -> None:
        """A run has ended; once more is not an error."""
        there: Any = self._runs.get(run.run_id)
        if there is not run:
            return
        del self._runs[run.run_id]
        ended = self._ends.pop(run.run_id, None)
        if ended is not None:
            ended.set()
        note = interruption(run)
        if note is not None:
            self._cancelled.append(note)
        run.limits.children -= run.depth > 0
        if run.view is not None:
            self._views[run.run_id] = run.view, Resource.of_run(run)
            while len(self._views) > _VIEWS:
                del self._views[next(iter(self._views))]
        if run.store is not None and run.flow is not None:
            self._flows.pop(run.run_id, None)
            self._flows[run.run_id] = run.flow
            while len(self._flows) > _VIEWS:
                del self._flows[next(iter(self._flows))]
        if self._empty is not None and not self._runs:
            self._empty.set()

    def end_of(self, run_id: str) -> anyio.Event:
        """Is set when the run ends or suspends here; a worker of the harness may not have begun it yet."""
        return self._ends.setdefault(run_id, anyio.Event())

    def flow(self, named: Mapping[str, AnyStep], run_id: str, flow: str) -> AnyStep | None:
        """A stored run's flow: the one that it was run with here, or the only one of `named` that has its id."""
        fit = [each for each in named.values() if each.id == flow]
        return self._flows.get(run_id) or (fit[0] if len(fit) == 1 else None)

    def view(self, run_id: str, access: Authorizer) -> View:
        """The last view of the model in a run that is in progress or has just ended.

        Args:
            run_id: The run.
            access: Asked whether the caller may read it.

        Raises:
            RunNotFound: Nothing is known of it, or the caller may not read it.
        """
        live = self._runs.get(run_id)
        shown: _Shown = (None, Resource(run_id))
        found, resource = self._views.get(run_id, shown) if live is None else (live.view, Resource.of_run(live))
        missing = errors.RunNotFound(
            f"no model view is known of run {run_id!r}",
            hint="a run with layers of this harness, while it goes on or soon after",
        )
        access.require_now("read", on=resource, hidden=missing)
        if found is None:
            raise missing
        return found

    def of_user(self, user_id: str) -> list[str]:
        """The runs in progress of a user, by their ids."""
        return [run_id for run_id, run in self._runs.items() if run.user_id == user_id]

    def forget(self, run_id: str) -> None:
        """Drop what is remembered of a run that has ended."""
        self._views.pop(run_id, None)
        self._flows.pop(run_id, None)

    def forget_user(self, user_id: str) -> None:
        """Drop what is remembered of a user's runs that have ended, those that were not stored included."""
        for run_id in [run_id for run_id, (_, shown) in self._views.items() if shown.owner == user_id]:
            self.forget(run_id)

    def note_cancelled(self, error: BaseException) -> None:
        """Note on what has cancelled runs beside it which they are, and how to go on."""
        if not isinstance(error, Exception):
            for each in self._cancelled:
                each.put_on(error)

    async def shut_down(self, timeout: float | None, partial: Partial) -> None:
        """Refuse new runs, wait for those in progress, and interrupt those that do not end in time."""
        if self._is_inside():
            raise errors.ConfigError(
                "a step waits for its own run when it shuts its harness down",
                code="shutdown",
                hint="shut down from outside of the run, or ctx.abort(reason)",
            )
        if not self.closing:
            self.closing = True
            self._refuse()
        with anyio.move_on_after(timeout):
            await self._ended()
            return
        self._over = partial
        for run in tuple(self._runs.values()):
            run.stop_from_outside("interrupt", REASON, shutdown=partial)
        await self._ended()

    async def _ended(self) -> None:
        while self._runs:
            self._empty = anyio.Event()
            await self._empty.wait()


def interruption(run: Any) -> Interruption | None:
    """The note for a run that was cancelled from outside; `None` for other runs."""
    if run.left is None:
        return None
    stored = run.store is not None and run.resources.storage.durability != "none"
    return Interruption(run.run_id, run.flow, run.cancelled, stored=stored, session=run.session is not None)


def note_cancelled(error: BaseException, run: Any, harness: object) -> None:
    """Note on a cancellation the run that it has interrupted, and how to resume it."""
    if isinstance(error, Exception):
        return
    note = interruption(run)
    if note is None and not run.journal:
        note = Interruption(run.run_id, run.flow, None, stored=False, session=False)
    if note is not None:
        note.put_on(error, harness)


def check_shutdown(timeout: float | None, partial: Partial) -> None:
    """Refuse invalid arguments of a shutdown.

    Raises:
        ConfigError: Code `"shutdown"`.
    """
    if timeout is not None and (not is_seconds(timeout) or timeout <= 0):
        raise errors.ConfigError(
            f"timeout={timeout!r} is not a valid timeout; expected a number of seconds above 0",
            code="shutdown",
            hint="None waits for ever",
        )
    if partial not in ("save", "discard"):
        raise errors.ConfigError(f"partial={partial!r} is unknown", code="shutdown", hint='"save" or "discard"')


class Stopping:
    """Whether a signal has come; what [`stopping_on_signals`][noetic_py.Harness.stopping_on_signals] gives."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    @property
    def received(self) -> signal.Signals | None:
        """The first signal that came, `None` before."""
        return self._signals.received


def _is_refusal(error: BaseException) -> bool:
    """Whether all that was raised is that nothing new is taken."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return all(map(_is_refusal, inside)) if inside else isinstance(error, errors.ShuttingDown)


@asynccontextmanager
async def stopping_on_signals(shut_down: Callable[[], Awaitable[None]], grace: float) -> AsyncGenerator[Stopping]:
    """See [`Harness.stopping_on_signals`][noetic_py.Harness.stopping_on_signals]."""
    failure: BaseException | None = None
    with Signals(limit=grace + LAST_SECOND) as signals:
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                await signals.wait()
                await shut_down()
                group.cancel_scope.cancel()

            group.start_soon(listen)
            try:
                yield Stopping(signals)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001 # raised below, outside the group, which would wrap it
                failure = error
            if signals.received is not None and (failure is None or _is_refusal(failure)):
                # The block has ended because of the signal, and before the runs have.
                failure = None
                await anyio.sleep_forever()
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if signals.received is not None:
        raise SystemExit(128 + signals.received)


_SELECTED: Mapping[str, tuple[type[Event], ...]] = {
    "events": (),
    "text": (TextDelta,),
    "reasoning": (ReasoningDelta,),
    "items": (ItemsAppended,),
}


@awaited("stream")
class RunStream(Generic[O_co, S_co]):
    """A run under way: its events, its text, its items, and at the end its result.

    Each of `events`, `text`, `reasoning` and `items` has a buffer of its own, so they can be read side by side, each by
    one task; they begin with the run. Events of spawns, of parallel paths and of steps that tools call are among them.
    """

    def __init__(self, run: Any, access: Authorizer) -> None:
        self._run: Run = run
        self._access = access
        self._outcome: RunResult[O_co, S_co] | errors.NoeticError | None = None
        # Whether anything has asked how the run ended, and so knows of a failure.
        self._reported = False
        self._done = anyio.Event()
        self._views: dict[str, Selection[Event]] = {
            name: Selection(run.bus, Choice(kinds)) for name, kinds in _SELECTED.items()
        }
        self._read: set[str] = set()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def dropped(self) -> int:
        """Events that the slowest reader of these four has lost because it did not read them in time."""
        return max((self._views[name].dropped for name in self._read), default=0)

    def _view(self, name: str) -> Selection[Event]:
        self._read.add(name)
        return self._views[name]

    @property
    def events(self) -> AsyncIterator[Event]:
        """Every event in order, `RunFinished` last."""
        return self._view("events")

    @property
    def text(self) -> AsyncIterator[str]:
        """The answers' text, piece by piece."""
        return Deltas(self._view("text"), TextDelta)

    @property
    def reasoning(self) -> AsyncIterator[str]:
        """The models' visible reasoning, piece by piece."""
        return Deltas(self._view("reasoning"), ReasoningDelta)

    @property
    def items(self) -> AsyncIterator[Item]:
        """Items as they are committed, of every step, in the order of the commits."""
        return CommittedItems(self._view("items"))

    @overload
    def select(self, **options: Unpack[SelectOptions]) -> Selection[Event]: ...
    @overload
    def select(self, *kinds: type[EventT], **options: Unpack[SelectOptions]) -> Selection[EventT]: ...
    def select(self, *kinds: type[Any], **options: Unpack[SelectOptions]) -> Selection[Any]:
        """Some of the events, from now on: `async for event in stream.select(ToolStarted, depth=0)`.

        With `overflow="wait"` nothing is lost: while the buffer is full, the run waits before its next step and behind
        each piece of an answer or of what a tool yields. It does so until the iterator is closed, left by its loop, or
        garbage; a reader that holds it and does not read holds the run up, and the log says so after half a minute.

        Args:
            *kinds: Events of these classes; of any when left out.
            **options: Which of them, and how many may wait: see
                [`SelectOptions`][noetic_py.core.selections.SelectOptions].

        Raises:
            ConfigError: An option cannot be met, or a kind is not a class of events; code `"stream"`.
        """
        return Selection(self._run.bus, Choice(kinds, **options))

    def snapshots(self, **options: Unpack[SelectOptions]) -> Snapshots:
        """Items while they grow, each time whole, and as they are committed; from now on.

        A snapshot takes the place of the one before that has the same `key`. What a failed call had said so far comes
        once more as `"discarded"`.

        Args:
            **options: As for `select`.

        Raises:
            ConfigError: As for `select`.
        """
        return Snapshots(self._run.bus, Choice(**options))

    def partial(self, type: type[T], **options: Unpack[SelectOptions]) -> Partials[T]:
        """The typed output of `call_model(..., output=type)` while it comes in, and at last as it is committed.

        It begins now. Each value fits the type. A text may still grow, and the last entry of a list may be missing; a
        class has to have all the fields that it requires, so give those a default, or use a `TypedDict` whose keys may
        be missing. Nothing of it is final before its step is committed: a failed call begins anew. Values of answers
        elsewhere that fit the type come too, unless `path=` or another option says which are meant.

        Args:
            type: What the answers are.
            **options: As for `select`.

        Raises:
            ConfigError: The type has no JSON schema, code `"output-type"`; or as for `select`.
        """
        from noetic_py.engine.kinds.output import output_plan

        plan = output_plan((type,))
        return Partials(self._run.bus, Choice(**options), plan.partial, plan.parse)

    async def result(self) -> RunResult[O_co, S_co]:
        """Wait for the end.

        Raises:
            NoeticError: The run broke, and `on_error` is `"raise"`.
        """
        await self._done.wait()
        self._reported = True
        if isinstance(self._outcome, errors.NoeticError):
            with HIDING:
                raise self._outcome
        if self._outcome is None:
            raise errors.RunBusy("the run was left before its end", hint="await stream.result() inside the async with")
        return self._outcome

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._done.is_set()

    @property
    def outcome(self) -> RunResult[O_co, S_co] | None:
        """How the run ended, `None` before; of a run that was cancelled or that raised, too."""
        self._reported = self._reported or self.done
        if isinstance(self._outcome, errors.NoeticError):
            left: Any = self._outcome.result
            result: RunResult[O_co, S_co] | None = left
            return result
        return self._run.left if self._outcome is None else self._outcome

    async def ended(self) -> RunResult[O_co, S_co]:
        """Wait for the end, whatever it is."""
        await self._done.wait()
        if self.outcome is None:
            if isinstance(self._outcome, errors.NoeticError):
                raise self._outcome
            raise errors.RunBusy("the run was left before it began", hint="await it inside the async with")
        return self.outcome

    def finish(self, outcome: AnyResult | errors.NoeticError | None) -> None:
        """Say how the run ended; the harness does."""
        if isinstance(outcome, errors.NoeticError):
            # Its frames hold on to the stream, which could not be collected then.
            trim(outcome, causes=True)
        self._outcome = outcome
        self._done.set()

    def __del__(self) -> None:
        """Log a failure of which nothing has heard: that is known once nothing can ask for it any more."""
        outcome = self._outcome
        error = outcome.error if isinstance(outcome, RunResult) and outcome.status == "failed" else outcome
        if isinstance(error, errors.NoeticError) and not self._reported:
            message = "run %s failed, and nothing asked for its result: %s"
            log("runs", ERROR, message, self.run_id, error.message, where=Where(self.run_id), error=error)

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of the run's external channels, to send and to read.

        Raises:
            ConfigError: The channel is not external; code `"channel"`.
        """
        self._access.require_now("send", on=Resource.of_run(self._run))
        return handle_of(self._run, channel)

    def complete(self, value: object) -> bool:
        """End the run with a value: its status becomes `"completed"`, and what runs in it is cancelled.

        Returns:
            Whether this has ended it: `False` when it had ended, or when something else had stopped it before.

        Raises:
            ConfigError: The value is not of the type that the flow is annotated with; code `"complete"`.
            CodecError: The run is stored, and the value cannot be.
        """
        from noetic_py.engine.stops import COMPLETED, asked_by, check_value

        self._access.require_now("complete", on=Resource.of_run(self._run))
        check_value(value, self._run.flow, None if self._run.store is None else self._run.store.codec)
        return self._run.take_stop(Control("complete", value=copy_value(value), reason=COMPLETED, by=asked_by()))

    def wrap_up(self, reason: str) -> bool:
        """Have the run finish with what it has: its status becomes `"completed"`, and what runs in it is cancelled.

        The value is that of the budget's `wrap_up` step, which is run now. Without one it is the last value of the
        loop in flight that would have given the flow's output, if there is one.

        Returns:
            Whether it finishes for this: `False` when it had ended, or when something else had stopped it before.
        """
        from noetic_py.engine.stops import asked_by

        self._access.require_now("complete", on=Resource.of_run(self._run))
        return self._run.take_stop(Control("wrap_up", reason=reason, by=asked_by()))

    def abort(self, reason: str) -> bool:
        """Stop the run: its status becomes `"aborted"`; says whether nothing else had ended or stopped it."""
        from noetic_py.engine.stops import asked_by

        self._access.require_now("abort", on=Resource.of_run(self._run))
        return self._run.take_stop(Control("abort", reason=reason, by=asked_by()))

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Stop the run: its status becomes `"interrupted"`; says whether nothing else had ended or stopped it."""
        self._access.require_now("abort", on=Resource.of_run(self._run))
        return self._run.stop_from_outside("interrupt", reason)


@awaited("handle")
class RunHandle(Generic[O_co, S_co]):
    """A run that was started in the background; the harness owns its task."""

    def __init__(self, run: Any, stream: RunStream[O_co, S_co]) -> None:
        self._run: Run = run
        self.stream: RunStream[O_co, S_co] = stream

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self.stream.done

    async def result(self) -> RunResult[O_co, S_co]:
        """Wait for the end.

        Raises:
            NoeticError: The run broke, and `on_error` is `"raise"`.
        """
        with HIDING:
            return await self.stream.result()

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """A handle of one of the run's external channels, to send and to read.

        Raises:
            ConfigError: The channel is not external; code `"channel"`.
        """
        return self.stream.channel(channel)

    def complete(self, value: object) -> bool:
        """End the run with a value; see [`RunStream.complete`][noetic_py.RunStream.complete].

        Raises:
            ConfigError: The value is not of the type that the flow is annotated with; code `"complete"`.
            CodecError: The run is stored, and the value cannot be.
        """
        return self.stream.complete(value)

    def wrap_up(self, reason: str) -> bool:
        """Have the run finish with what it has; see [`RunStream.wrap_up`][noetic_py.RunStream.wrap_up]."""
        return self.stream.wrap_up(reason)

    def abort(self, reason: str) -> bool:
        """Stop the run: its status becomes `"aborted"`; says whether nothing else had ended or stopped it."""
        return self.stream.abort(reason)

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Stop the run: its status becomes `"interrupted"`; says whether nothing else had ended or stopped it."""
        return self.stream.interrupt(reason)


class DetachedHarnessRun:
    """A detached run of the harness; the implementation behind `DetachedRun`."""

    def __init__(self, handle: RunHandle[Any, Any]) -> None:
        self._handle = handle
        self.run_id: str = handle.run_id
        self.path: tuple[str, ...] = ()

    @property
    def outcome(self) -> AnyResult | None:
        """How it ended, `None` while it runs."""
        return self._handle.stream.outcome

    async def wait(self) -> AnyResult:
        """Wait for its end."""
        from noetic_py.engine.frame import waited

        return await waited(CURRENT.get(), self.run_id, self._handle.stream.ended)

    def complete(self, value: object) -> bool:
        """End it with a value."""
        return self._handle.complete(value)

    def wrap_up(self, reason: str) -> bool:
        """Have it finish with what it has."""
        return self._handle.wrap_up(reason)

    def abort(self, reason: str) -> None:
        """Stop it."""
        if not self._handle.done:
            self._handle.abort(reason)

    def channel(self, channel: AnyChannel) -> ChannelHandle[Any]:
        """A handle of one of its channels."""
        return self._handle.channel(channel)


@asynccontextmanager
async def beside(
    follow: Callable[[], Coroutine[object, object, None]], over: Callable[[], bool]
) -> AsyncGenerator[None]:
    """Carry a run beside a block, for as long as that lasts; one that is over by then still says how it has ended."""
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        try:
            yield
        except Exception as error:  # noqa: BLE001 # it is raised below, outside the group, which would wrap it
            failure = error
        if failure is not None or not over():
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def deliver(result: AnyResult, on_error: str) -> AnyResult:
    """Return a result, or raise what broke its run."""
    if result.status != "failed" or on_error == "result":
        return result
    error = result.error
    if error is None:
        raise errors.StepFailed(path=(), error_type="unknown", error_message="the run failed without an error")
    if isinstance(error, errors.StepFailed) and error.__cause__ is not None:
        raise error from error.__cause__
    raise error


def handle_of(run: Any, channel: Channel[T]) -> ChannelHandle[T]:
    """A handle of one of a run's external channels."""
    from noetic_py.engine.detached import external_handle

    return external_handle(run, channel)
