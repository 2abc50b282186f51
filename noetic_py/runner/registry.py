"""The end of a harness: the runs that go on in it, and how they come to theirs when it is shut down."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from anyio.lowlevel import current_token

from noetic_py.access import Authorizer, Resource
from noetic_py.context.protocol import CURRENT
from noetic_py.context.step import Step, is_seconds
from noetic_py.core.control import Partial
from noetic_py.core.interruption import Interruption
from noetic_py.core.tracebacks import called_at, warn
from noetic_py.errors import ConfigError, RunBusy, RunNotFound, ShuttingDown, WrongThread
from noetic_py.runner.signals import Signals

if TYPE_CHECKING:
    from noetic_py.core.view import View

__all__ = ["Home", "Living", "Stopping", "check_shutdown", "note_cancelled", "stopping_on_signals"]

REASON = "shutdown"
"""Why a run has ended that a shutdown has interrupted."""
LAST_SECOND = 1.0
"""Seconds behind the grace, for what has been interrupted to be written."""
_VIEWS = 100
"""How many ended runs' views are kept."""


AnyStep: TypeAlias = "Step[Any, Any, Any, Any]"
_Shown: TypeAlias = "tuple[View | None, Resource]"


class Home:
    """The thread and the event loop that a harness belongs to: those in which it is used first.

    Args:
        opened: The scheme of a store that the harness has opened, and closes only when it is left.
    """

    def __init__(self, opened: str | None) -> None:
        self.opened = opened
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
            raise WrongThread(
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
            raise WrongThread(
                f"this harness belongs to thread {self._thread!r}, and was called from thread "
                f"{threading.current_thread().name!r} ({called_at()})",
                hint="anyio.from_thread.run(harness.run, step, input) calls it from a worker thread; or make one "
                "harness for each thread",
            )
        elif self._here[1] != here[1]:
            raise WrongThread(
                f"this harness belongs to another event loop of this thread ({called_at()})",
                hint="make one harness for each anyio.run(...): async with Harness() as harness: inside of it",
            )

    def require_no_loop(self) -> None:
        """Check that `run_sync` can start an event loop in this thread; it enters the harness for its run.

        Raises:
            WrongThread: One runs here already.
        """
        import sniffio

        self.opened = None
        try:
            sniffio.current_async_library()
        except sniffio.AsyncLibraryNotFoundError:
            return
        raise WrongThread("run_sync() would block the event loop of this thread", hint="await harness.run(...)")

    def leave(self) -> None:
        """Belong to no thread until the next use."""
        self._here = None


class Living:
    """The runs that go on in one harness, and whether another one may begin.

    Args:
        refuse: Has those who wait for their turn refused; called once, when no new run is taken any more.
    """

    def __init__(self, refuse: Callable[[], None]) -> None:
        self._runs: dict[str, Any] = {}
        self._refuse = refuse
        self._closing = False
        # What becomes of answers in flight, once the time is over.
        self._over: Partial | None = None
        self._empty = anyio.Event()
        # The runs that were cancelled since the last one began: when the program ends now, it is for the same reason.
        self._cancelled: list[Interruption] = []
        # What a model was shown last in the runs that have ended last.
        self._views: dict[str, _Shown] = {}
        # The flows of the stored runs that have ended last: one that waits may be completed.
        self._flows: dict[str, AnyStep] = {}

    def get(self, run_id: str) -> Any:
        """A run that goes on."""
        return self._runs.get(run_id)

    def admit(self, run_id: str, hint: str) -> None:
        """Check that a run may begin. While those that go on are waited for, these may still start others.

        Raises:
            ShuttingDown: It may not, because the harness is shut down.
            RunBusy: It goes on already.
        """
        if self._closing and (self._over is not None or not self._is_inside()):
            raise ShuttingDown
        if run_id in self._runs:
            raise RunBusy(f"run {run_id!r} goes on already", hint=hint)

    def _is_inside(self) -> bool:
        """Whether a run that goes on here asks."""
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
        """A run has ended; once more is no error."""
        there: Any = self._runs.get(run.run_id)
        if there is not run:
            return
        del self._runs[run.run_id]
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
        if not self._runs:
            self._empty.set()

    def flow(self, named: Mapping[str, AnyStep], run_id: str, flow: str) -> AnyStep | None:
        """A stored run's flow: the one that it was run with here, or the only one of `named` that has its id."""
        fit = [each for each in named.values() if each.id == flow]
        return self._flows.get(run_id) or (fit[0] if len(fit) == 1 else None)

    def view(self, run_id: str, access: Authorizer) -> View:
        """What the model was shown last in a run that goes on, or that has ended soon before.

        Args:
            run_id: The run.
            access: Asked whether the caller may read it.

        Raises:
            RunNotFound: Nothing is known of it, or the caller may not read it.
        """
        live = self._runs.get(run_id)
        shown: _Shown = (None, Resource(run_id))
        found, resource = self._views.get(run_id, shown) if live is None else (live.view, Resource.of_run(live))
        missing = RunNotFound(
            f"nothing is known of what a model was shown in run {run_id!r}",
            hint="a run with layers of this harness, while it goes on or soon after",
        )
        access.require_now("read", on=resource, hidden=missing)
        if found is None:
            raise missing
        return found

    def note_cancelled(self, error: BaseException) -> None:
        """Note on what has cancelled runs beside it which they are, and how to go on."""
        if not isinstance(error, Exception):
            for each in self._cancelled:
                each.put_on(error)

    async def shut_down(self, timeout: float | None, partial: Partial) -> None:
        """Take nothing new, wait for what goes on, and interrupt what does not end in time."""
        if self._is_inside():
            raise ConfigError(
                "a step waits for its own run when it shuts its harness down",
                code="shutdown",
                hint="shut down from outside of the run, or ctx.abort(reason)",
            )
        if not self._closing:
            self._closing = True
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
    """What is to be said of a run that was cancelled from outside; `None` of another one."""
    if run.left is None:
        return None
    stored = run.store is not None and run.resources.storage.durability != "none"
    return Interruption(run.run_id, run.flow, run.cancelled, stored=stored, session=run.session is not None)


def note_cancelled(error: BaseException, run: Any, harness: object) -> None:
    """Note on a cancellation the run that it has interrupted, and how to go on with it."""
    note = None if isinstance(error, Exception) else interruption(run)
    if note is not None:
        note.put_on(error, harness)


def check_shutdown(timeout: float | None, partial: Partial) -> None:
    """Refuse what is no way to shut down.

    Raises:
        ConfigError: Code `"shutdown"`.
    """
    if timeout is not None and (not is_seconds(timeout) or timeout <= 0):
        raise ConfigError(
            f"timeout={timeout!r} is not a valid timeout; expected a number of seconds above 0",
            code="shutdown",
            hint="None waits for ever",
        )
    if partial not in ("save", "discard"):
        raise ConfigError(f"partial={partial!r} is unknown", code="shutdown", hint='"save" or "discard"')


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
    return all(map(_is_refusal, inside)) if inside else isinstance(error, ShuttingDown)


@asynccontextmanager
async def stopping_on_signals(shut_down: Callable[[], Awaitable[None]], grace: float) -> AsyncGenerator[Stopping]:
    """See [`Harness.stopping_on_signals`][noetic_py.Harness.stopping_on_signals]."""
    failure: BaseException | None = None
    with Signals(most=grace + LAST_SECOND) as signals:
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
