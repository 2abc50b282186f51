"""`RetryModel`: asks again when another try may help."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from logging import WARNING
from typing import Any, TypeAlias

from noetic_py.core.logs import log
from noetic_py.errors import AllModelsFailed, ConfigError, ContextOverflow, ModelError, RateLimited
from noetic_py.models.model import Model, ModelRequest, ModelStream, current_runtime, current_where
from noetic_py.models.wrapper import GeneratedAnswer, ModelWrapper, Part, checked_count, checked_seconds, parts_of

_CODE = "retry-model"


class RetryModel(ModelWrapper):
    """Asks its model again when a call failed in a way that another try may mend.

    That is every error whose `retryable` is true: rate limits, errors of the server, a provider that cannot be reached,
    a stream that was cut, stalled or is malformed. What was streamed of a failed try is void, and the events of the
    next one follow; a run says so with [`ModelFailed`][noetic_py.core.events.ModelFailed]. Each try is a
    call of its own in the budget, and nothing is held while the wrapper waits.

    The waits grow from `initial` seconds, twice as long each time, up to `max`, and each is a random part of that. A
    provider that says how long to wait is heard: the wait begins when that time is over.

    When the last try fails, its error is raised.

    Args:
        model: The model to ask, or its name.
        attempts: Tries in all, at least 1.
        initial: The most seconds to wait after the first try.
        max: The most seconds to wait after any.
        jitter: Whether each wait is a random part of what it may be, or all of it.
        max_wait: The most seconds that a provider may ask to wait; one that asks for more is not waited for, and its
            error is raised at once.
        on: The errors worth another try: classes, or a function of the error. Only errors of models are tried again,
            whatever it says.

    Raises:
        ConfigError: An argument is of the wrong kind or out of range; code `"retry-model"`.
    """

    def __init__(
        self,
        model: Model | str,
        attempts: int = 3,
        *,
        initial: float = 0.5,
        max: float = 30.0,
        jitter: bool = True,
        max_wait: float = 60.0,
        on: tuple[type[ModelError], ...] | Callable[[ModelError], bool] | None = None,
    ) -> None:
        super().__init__(model)
        self.attempts: int = checked_count(attempts, "attempts", code=_CODE)
        self.initial: float = checked_seconds(initial, "initial", code=_CODE, zero=True)
        self.max: float = checked_seconds(max, "max", code=_CODE, zero=True)
        self.max_wait: float = checked_seconds(max_wait, "max_wait", code=_CODE, zero=True)
        self.jitter: bool = jitter
        self.on: Callable[[ModelError], bool] = _chooser(on)

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask, and ask again.

        Raises:
            ModelError: The last try's, or one that another try cannot mend.
            BudgetExceeded: In a run: the budget does not allow another try.
        """
        return GeneratedAnswer(self.name, self._parts(request))

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[Part]:
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self.ask(self.model, request) as stream, aclosing(parts_of(stream)) as parts:
                    async for part in parts:
                        yield part
                return
            except ModelError as error:
                asked = waiting_time(error)
                if attempt == self.attempts or asked > self.max_wait or not self.on(error):
                    raise
                failure = error
            await self._wait(attempt, asked, failure)

    async def _wait(self, attempt: int, asked: float, failure: ModelError) -> None:
        runtime = current_runtime()
        longest = min(self.initial * (1 << min(attempt - 1, 62)), self.max)
        seconds = asked + (longest * runtime.random() if self.jitter else longest)
        log(
            "models",
            WARNING,
            "try %d of %d of %s failed, the next follows in %.3g s: %s",
            attempt,
            self.attempts,
            self.name,
            seconds,
            failure.message,
            where=current_where(),
        )
        await runtime.sleep(seconds)


def is_retryable(error: ModelError) -> bool:
    """Whether the same request may succeed later."""
    # A request stays too large, even where a server says so with a status of 500.
    return error.retryable and not isinstance(error, ContextOverflow)


def waiting_time(error: ModelError) -> float:
    """Seconds that the provider asks to wait; of several, the one that asks for the least."""
    if isinstance(error, AllModelsFailed):
        return min((waiting_time(each) for _, each in error.failures if is_retryable(each)), default=0.0)
    asked = error.retry_after if isinstance(error, RateLimited) else None
    return asked if asked is not None and asked > 0 else 0.0


_Errors: TypeAlias = tuple[type[ModelError], ...] | Callable[[ModelError], bool]


def _chooser(on: _Errors | None) -> Callable[[ModelError], bool]:
    if on is None:
        return is_retryable
    if isinstance(on, tuple) and _are_errors(on):
        return lambda error: isinstance(error, on)
    if isinstance(on, (tuple, type)) or not callable(on):
        raise ConfigError(
            f"on={on!r} is neither a tuple of model errors nor a function", code=_CODE, hint="on=(RateLimited,)"
        )
    return on


def _are_errors(kinds: Any) -> bool:
    return all(isinstance(each, type) and issubclass(each, ModelError) for each in kinds)
