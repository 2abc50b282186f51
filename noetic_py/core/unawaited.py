"""Calls whose `await` or `async with` was forgotten: the first use of what they gave names them, and the line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from inspect import CORO_CREATED, getcoroutinelocals, getcoroutinestate
from pathlib import Path
from sys import _getframe  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
from types import CoroutineType, TracebackType
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from noetic_py.core.tracebacks import HIDING
from noetic_py.errors import NotAwaited

_PACKAGE = str(Path(__file__).parents[1])

F = TypeVar("F", bound=Callable[..., Any])


class LostCalls:
    """The calls inside a harness's block that nothing has awaited."""

    def __init__(self) -> None:
        self._open: WeakSet[AwaitedCall] = WeakSet()
        # What was called, by the place of the call: a line that is run a thousand times is told once.
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
        """What a call gave is not there any more, and was not awaited."""
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
            raise NotAwaited(said, hint=f"await {next(iter(self._lost.values()))}")


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

    def __await__(self) -> Generator[Any, Any, Any]:
        self._block = None
        return self._made.__await__()

    def send(self, value: Any, /) -> Any:
        """Go on with it; it counts as awaited."""
        self._block = None
        return self._made.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in it."""
        return self._made.throw(*error)

    def close(self) -> None:
        """End it."""
        self._made.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("cr_", "gi_", "ag_", "_")) or getcoroutinestate(self._made) != CORO_CREATED:
            # What event loops and debuggers ask of whatever they run; and once it runs it was awaited.
            return getattr(self._made, name)
        self._made.close()
        raise NotAwaited(
            f"{self._what} was called and not awaited ({self._place}), so there is no {name!r} yet",
            hint=f"(await {self._what}).{name}",
        )


class _Entered(AbstractAsyncContextManager[Any, "bool | None"]):
    """An async context manager that says, when it is used without being entered, how to enter it."""

    __slots__ = ("_made", "_place", "_what")

    def __init__(self, made: AbstractAsyncContextManager[Any, bool | None], what: str, place: str) -> None:
        self._made, self._what, self._place = made, what, place

    async def __aenter__(self) -> Any:
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
        raise NotAwaited(
            f"{self._what} was {how} without being entered ({self._place})",
            hint=f"async with {self._what} as stream: ...",
        )


def not_a_value(made: CoroutineType[Any, Any, Any], what: str, *, path: tuple[str, ...] = ()) -> NotAwaited:
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
    return NotAwaited(
        f"{what} the coroutine of {code.co_qualname}(){place}, which is not a value",
        path=path,
        hint=f"await {code.co_name}(...) first, and use what that gives",
    )


def must_enter(what: str) -> Callable[[F], F]:
    """Make a forgotten `async with` an error that names what was to be entered."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            caller = _getframe(1)
            return _Entered(function(*args, **kwargs), what, f"{caller.f_code.co_filename}:{caller.f_lineno}")

        made: Any = noting
        same: F = made
        return same

    return decorate
