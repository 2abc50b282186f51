"""An answer under way: events in, items out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from attrs import define, field

from noetic_openai.failures import Failures
from noetic_openai.narrow import is_array, is_object
from noetic_openai.sse import EventReader
from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import ID_SOURCE
from noetic_py.errors import ModelError
from noetic_py.models import AnswerSize, ModelEvent, ModelResponse

__all__ = ["Answer", "Malformed", "ProviderError", "Reading", "array", "mapping", "money", "text", "tokens_of"]


class Malformed(Exception):
    """An event is not as the provider's interface says."""


class ProviderError(Exception):
    """The stream holds an error of the provider.

    Args:
        error: What the provider sent.
    """

    def __init__(self, error: object) -> None:
        super().__init__("the provider sent an error")
        self.error = error


@define
class Reading(ABC):
    """Puts the events of one answer together; one class per interface."""

    complete: bool = field(default=False, init=False)
    # Bytes of the last event that are kept and are in no event of the framework's.
    unheard: int = field(default=0, init=False)

    @abstractmethod
    def feed(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """What one event of the provider means; sets `complete` when it is the last.

        Raises:
            ProviderError: The event is an error.
            Malformed: The event is not as it should be.
        """

    @abstractmethod
    def end(self) -> Iterable[ModelEvent]:
        """What the end of the stream means, for streams without a last event of their own.

        Raises:
            Malformed: The answer is not complete.
        """

    @abstractmethod
    def response(self) -> ModelResponse:
        """The whole answer, once `complete`."""

    def check(self, event: Mapping[str, Any]) -> None:
        """Raise `ProviderError` for an event that carries an error."""
        if event.get("error"):
            raise ProviderError(event["error"])

    def new_id(self) -> str:
        """An id where the provider gave none."""
        return ID_SOURCE.get()()


class Answer:
    """An answer that is being streamed; a `ModelStream`.

    Args:
        events: The response's events.
        reading: What puts them together.
        failures: Makes the errors.
    """

    def __init__(self, events: EventReader, reading: Reading, failures: Failures) -> None:
        self._events = events
        self._reading = reading
        self._failures = failures
        self._ready: deque[ModelEvent] = deque()
        self._error: ModelError | None = None
        self._size = AnswerSize(events.model)

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        while not self._ready:
            if self._reading.complete:
                raise StopAsyncIteration
            await self.pull()
        return self._ready.popleft()

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated.

        Raises:
            ModelError: The answer broke off, also if that was raised before.
        """
        while not self._reading.complete:
            await self.pull()
        return self._reading.response()

    async def drain(self) -> None:
        """Read what follows a whole answer, so that its connection can serve the next call."""
        if self._reading.complete:
            await self._events.drain()

    async def pull(self) -> None:
        """Read one event of the provider."""
        if self._error is not None:
            raise self._error
        try:
            event = await self._events.next()
            said = False
            for part in self._reading.end() if event is None else self._reading.feed(event):
                self._size.add(part)
                self._ready.append(part)
                said = True
            unheard, self._reading.unheard = self._reading.unheard, 0
            if unheard or not said:
                # An event that says nothing counts as a piece, so that they come to an end.
                self._size.count(unheard)
        except Malformed as error:
            self._error = self._events.malformed(str(error))
        except ProviderError as error:
            self._error = self._failures.event(error.error)
        except ModelError as error:
            self._error = error
        if self._error is not None:
            raise self._error


def text(event: Mapping[str, Any], name: str) -> str:
    """A field's text, empty when it is absent or null.

    Raises:
        Malformed: The field is something else.
    """
    value = event.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"{name} is no text")
    return value


def tokens_of(usage: Mapping[str, Any], names: tuple[str, str], details: tuple[str, str]) -> TokenUsage | None:
    """A usage as the provider reports it; `None` where that does not say how much was read and written.

    What is no number of tokens stays as it is: the engine refuses it by name, and books what was reserved.

    Args:
        usage: The object.
        names: What it calls the tokens read and written.
        details: What it calls the objects with their parts.
    """
    read, written = (_count(usage, name) for name in names)
    if read is None or written is None:
        return None
    of_read, of_written = (mapping(usage.get(name) or {}, name) for name in details)
    reasoning = _count(of_written, "reasoning_tokens")
    if _stands_apart(usage, read, written, reasoning):
        written += reasoning
    return TokenUsage(
        input=read,
        output=written,
        cached_input=_count(of_read, "cached_tokens"),
        cache_write=_count(of_read, "cache_write_tokens"),
        reasoning=reasoning,
        input_audio=_count(of_read, "audio_tokens"),
        output_audio=_count(of_written, "audio_tokens"),
        input_image=_count(of_read, "image_tokens"),
        output_image=_count(of_written, "image_tokens"),
    )


def _stands_apart(usage: Mapping[str, Any], read: Any, written: Any, reasoning: Any) -> bool:
    """Whether a provider counts reasoning beside what was written, as its total says."""
    numbers = (read, written, reasoning)
    return reasoning != 0 and all(type(each) is int for each in numbers) and usage.get("total_tokens") == sum(numbers)


def _count(event: Mapping[str, Any], name: str) -> Any:
    """A field's number of tokens, `None` when it is absent or null."""
    value = event.get(name)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def money(event: Mapping[str, Any], name: str) -> Decimal | None:
    """A field's amount, `None` when it is absent or null; "not a number", which the engine refuses, when it is none."""
    value = event.get(name)
    if value is None:
        return None
    try:
        return Decimal("NaN") if isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        return Decimal("NaN")


def mapping(value: object, name: str) -> Mapping[str, Any]:
    """The value as a JSON object.

    Raises:
        Malformed: It is something else.
    """
    if not is_object(value):
        raise Malformed(f"{name} is no object")
    return value


def array(value: object, name: str) -> list[Any]:
    """The value as a JSON array, an empty one when it is null.

    Raises:
        Malformed: It is something else.
    """
    if value is None:
        return []
    if not is_array(value):
        raise Malformed(f"{name} is no list")
    return value
