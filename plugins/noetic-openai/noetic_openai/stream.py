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
from noetic_py.errors import ModelError
from noetic_py.items import ID_SOURCE
from noetic_py.models import ModelEvent, ModelResponse

__all__ = ["Answer", "Malformed", "ProviderError", "Reading", "array", "count", "mapping", "money", "text"]


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
            self._ready.extend(self._reading.end() if event is None else self._reading.feed(event))
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


def count(event: Mapping[str, Any], name: str) -> int | None:
    """A field's number of tokens, `None` when it is absent, null or no number."""
    value = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def money(event: Mapping[str, Any], name: str) -> Decimal | None:
    """A field's amount, `None` when it is absent, null or no amount."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount >= 0 else None


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
