"""`TimedModel`: gives up on an answer that does not begin, does not go on, or does not end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeAlias, TypeVar

import anyio
from anyio import CancelScope

from noetic_py.core.items import Item
from noetic_py.core.values import size_of
from noetic_py.errors import AnswerTooLarge, ConfigError, LimitExceeded, ModelError, ModelStreamError, ModelUnavailable
from noetic_py.models.model import ItemDone, Model, ModelEvent, ModelRequest, ModelResponse, ModelStream
from noetic_py.models.wrapper import ModelWrapper, checked_seconds, close_events

MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""How many bytes the pieces of an answer may have together: text, reasoning and arguments of calls."""

_SMALLEST: Final = 16
"""What a piece counts at the least, since each is an object."""


class AnswerSize:
    """Counts the bytes of one answer.

    Args:
        model: The model's name, for the error.
    """

    __slots__ = ("_items", "_model", "_size")

    def __init__(self, model: str) -> None:
        self._model = model
        self._size = 0
        # Whole items repeat the pieces, so they are counted apart.
        self._items = 0

    def add(self, event: ModelEvent) -> None:
        """Count an event.

        Raises:
            AnswerTooLarge: It is one too many.
        """
        if isinstance(event, ItemDone):
            self._items += size_of(event.item)
        else:
            delta = event.delta
            self.count(len(delta) if delta.isascii() else len(delta.encode(errors="surrogatepass")))
        if self._items > 2 * MAX_ANSWER_BYTES:
            raise AnswerTooLarge(MAX_ANSWER_BYTES, model=self._model)

    def count(self, size: int) -> None:
        """Count a piece of so many bytes.

        Raises:
            AnswerTooLarge: It is one too many.
        """
        self._size += max(_SMALLEST, size)
        if self._size > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(MAX_ANSWER_BYTES, model=self._model)


def check_answer(items: Iterable[Item], model: str) -> None:
    """Refuse an answer of which an item, or all together, are larger than an item may be.

    Raises:
        AnswerTooLarge: It is.
    """
    # Loaded here: a program that only defines tools does not load the codec.
    from noetic_py.core.codec.wire import check_size

    total = 0
    try:
        for item in items:
            total += check_size(item)
    except LimitExceeded:
        total = MAX_ANSWER_BYTES + 1
    if total > MAX_ANSWER_BYTES:
        raise AnswerTooLarge(MAX_ANSWER_BYTES, model=model)


_CODE = "timed-model"
_T = TypeVar("_T")

Limit: TypeAlias = Literal["begin", "idle", "total"]
_NEVER = float("inf")


class TimedModel(ModelWrapper):
    """Gives up on an answer that takes too long, which is then an error that another try may mend.

    The seconds count while the answer is waited for, and not while its reader is busy. What the models inside of it
    wait for counts as well: a place in a `LimitedModel`, a budget that others have to give something back to first, the
    pauses of a `RetryModel`.

    As with `anyio.fail_after`, the block of the answer is cancelled, and the error is raised where the block is left.

    Args:
        model: The model to ask, or its name.
        begin: Seconds to the first event of the answer; to the whole, for a model that streams none.
        idle: Seconds from one event to the next.
        total: Seconds to the end of the answer.

    Raises:
        ConfigError: A number is out of range, or no time is given; code `"timed-model"`.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        begin: float | None = None,
        idle: float | None = None,
        total: float | None = None,
    ) -> None:
        super().__init__(model)
        given: dict[Limit, float | None] = {"begin": begin, "idle": idle, "total": total}
        self.seconds: dict[Limit, float] = {
            name: checked_seconds(value, name, code=_CODE) for name, value in given.items() if value is not None
        }
        if not self.seconds:
            raise ConfigError("no time is given", code=_CODE, hint="TimedModel(model, begin=60.0, idle=30.0)")

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Ask, and wait for the first event.

        Raises:
            ModelUnavailable: On entering: the answer did not begin in time.
            ModelStreamError: On leaving: it did not go on, or did not end, in time.
            ModelError: The model behind failed.
            BudgetExceeded: In a run: the budget does not allow the call.
        """
        watch = _Watch(self.seconds)
        # One scope around all of it, and not one around each wait: the model behind may open scopes of its own in one
        # wait and close them in another, and scopes have to be closed in the reverse order.
        with watch.scope:
            watch.start("begin")
            async with self.ask(self.model, request) as stream:
                timed = _TimedStream(stream, watch)
                try:
                    await timed.begin()
                    if watch.late:
                        raise watch.error(self.name)
                    yield timed
                finally:
                    await timed.close()
        if watch.scope.cancelled_caught or watch.late:
            raise watch.error(self.name)


class _Watch:
    """Cancels its scope when something that is waited for does not come in time."""

    __slots__ = ("_end", "_limit", "_seconds", "begun", "late", "scope")

    def __init__(self, seconds: Mapping[Limit, float]) -> None:
        self._seconds = seconds
        self._end = anyio.current_time() + seconds.get("total", _NEVER)
        self._limit: Limit = "total"
        self.begun = False
        # Whether something came when its time was over, from a model that blocks or catches its cancellation.
        self.late = False
        self.scope = CancelScope()

    def start(self, limit: Limit) -> None:
        """Something is waited for."""
        if self.late:
            return
        deadline = anyio.current_time() + self._seconds.get(limit, _NEVER)
        self._limit = limit if deadline < self._end else "total"
        self.scope.deadline = min(deadline, self._end)

    def stop(self) -> None:
        """It has come."""
        if anyio.current_time() >= self.scope.deadline:
            self.late = True
        else:
            self.scope.deadline = _NEVER

    async def wait(self, awaited: Awaitable[_T]) -> _T:
        """Wait for a part of an answer that has begun."""
        self.start("idle")
        try:
            return await awaited
        finally:
            self.stop()

    def error(self, model: str) -> ModelError:
        """What to say when the time was over."""
        seconds = self._seconds[self._limit]
        what = {
            "begin": f"the answer did not begin within {seconds:g} s",
            "idle": f"the stream stalled: nothing came for {seconds:g} s",
            "total": f"the answer took longer than {seconds:g} s",
        }
        kind = ModelStreamError if self.begun else ModelUnavailable
        return kind(what[self._limit], model=model, hint=f"raise {self._limit}= of the TimedModel, or try again")


class _TimedStream:
    """A stream that is watched, and that reads by itself when it is not iterated."""

    __slots__ = ("_events", "_first", "_stream", "_watch", "_whole")

    def __init__(self, stream: ModelStream, watch: _Watch) -> None:
        self._stream = stream
        self._watch = watch
        self._events = aiter(stream)
        self._first: ModelEvent | None = None
        self._whole: ModelResponse | None = None

    async def begin(self) -> None:
        """Wait for the first event; without one for the whole."""
        self._first = await anext(self._events, None)
        if self._first is None:
            self._whole = await self._stream.response()
        self._watch.stop()
        self._watch.begun = not self._watch.late

    async def close(self) -> None:
        """End the iteration, which may have been left in the middle."""
        await close_events(self._events)

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        event, self._first = self._first, None
        return event if event is not None else await self._watch.wait(anext(self._events))

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated, one event after the other, since each has its time."""
        async for _ in self:
            pass
        if self._whole is None:
            self._whole = await self._watch.wait(self._stream.response())
        return self._whole
