"""Calls whose `await` or `async with` was forgotten: the first use of what they gave names them, and the line."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from inspect import CORO_CREATED, getcoroutinestate
from pathlib import Path
from sys import _getframe  # pyright: ignore[reportPrivateUsage] # the documented way to a caller's line
from types import CoroutineType, TracebackType
from typing import Any, NoReturn, TypeVar

from noetic_py.core.tracebacks import HIDING
from noetic_py.errors import NotAwaited

_PACKAGE = str(Path(__file__).parents[1])

F = TypeVar("F", bound=Callable[..., Any])


class _Awaited(Coroutine[Any, Any, Any]):
    """A coroutine that says, when it is taken for its result, that it was not awaited."""

    __slots__ = ("_made", "_place", "_what")

    def __init__(self, made: Coroutine[Any, Any, Any], what: str, place: str) -> None:
        self._made, self._what, self._place = made, what, place

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._made.__await__()

    def send(self, value: Any, /) -> Any:
        return self._made.send(value)

    def throw(self, *error: Any) -> Any:
        return self._made.throw(*error)

    def close(self) -> None:
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


def must_await(what: str) -> Callable[[F], F]:
    """Make a coroutine function's forgotten `await` an error that names it; type checkers see the function as it is.

    Args:
        what: The call, as its caller writes it: `"harness.run(...)"`.
    """
    return _noting(_Awaited, what)


def must_enter(what: str) -> Callable[[F], F]:
    """Make a forgotten `async with` an error that names what was to be entered."""
    return _noting(_Entered, what)


def _noting(
    kind: Callable[[Any, str, str], Awaitable[Any] | AbstractAsyncContextManager[Any]], what: str
) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            caller = _getframe(1)
            return kind(function(*args, **kwargs), what, f"{caller.f_code.co_filename}:{caller.f_lineno}")

        made: Any = noting
        same: F = made
        return same

    return decorate
