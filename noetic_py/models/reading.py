"""An answer under way: a provider's events in, the framework's out, and the items at the end."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Protocol, get_args, get_origin

from attrs import define, field

from noetic_py.core.items import ID_SOURCE, Opaque
from noetic_py.core.values import is_list, is_mapping
from noetic_py.errors import ItemSchemaMismatch, ModelError, ModelStreamError
from noetic_py.models.model import AnswerSize, ModelEvent, ModelResponse

BEGUN: Final = 256
"""Bytes that a call, or another part of an answer that begins, counts besides its text: it is an object of its own."""


class Malformed(Exception):
    """An event is not as the provider's interface says."""


class ProviderError(Exception):
    """The stream holds an error of the provider.

    Args:
        error: What the provider sent.
    """

    error: object

    def __init__(self, error: object) -> None:
        super().__init__("the provider sent an error")
        self.error = error


@define
class AnswerReading(ABC):
    """Puts the events of one answer together; one class per interface."""

    complete: bool = field(default=False, init=False)
    # Bytes of the last event that are kept and are in no event of the framework's.
    unheard: int = field(default=0, init=False)

    @abstractmethod
    def feed(self, event: Mapping[str, object]) -> Iterable[ModelEvent]:
        """Handle one event of the provider; sets `complete` on the last.

        Raises:
            ProviderError: The event is an error.
            Malformed: The event is not as it should be.
        """

    @abstractmethod
    def end(self) -> Iterable[ModelEvent]:
        """Handle the end of a stream that has no last event.

        Raises:
            Malformed: The answer is not complete.
        """

    @abstractmethod
    def response(self) -> ModelResponse:
        """The whole answer, once `complete`."""

    def check(self, event: Mapping[str, object]) -> None:
        """Raise `ProviderError` for an event that carries an error."""
        if event.get("error"):
            raise ProviderError(event["error"])

    def new_id(self) -> str:
        """An id where the provider gave none."""
        return ID_SOURCE.get()()


class AnswerStream:
    """An answer that is being streamed; a `ModelStream`.

    Args:
        events: The response's events.
        reading: What puts them together.
        model: The model's name.
        error_of: Makes the error for what a `ProviderError` holds.
    """

    def __init__(
        self, events: ProviderEvents, reading: AnswerReading, model: str, error_of: Callable[[object], ModelError]
    ) -> None:
        self._events = events
        self._reading = reading
        self._model = model
        self._error_of = error_of
        self._ready: deque[ModelEvent] = deque()
        self._error: ModelError | None = None
        self._size = AnswerSize(model)

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
            self._error = ModelStreamError(f"the stream is malformed: {error}", model=self._model)
        except ProviderError as error:
            self._error = self._error_of(error.error)
        except ModelError as error:
            self._error = error
        if self._error is not None:
            raise self._error


class ProviderEvents(Protocol):
    """The events of one response of a provider."""

    async def next(self) -> Mapping[str, object] | None:
        """The next event, `None` at the end of the stream.

        Raises:
            ModelError: The stream broke or stalled.
            ProviderError: It was an error.
            Malformed: It is not an object.
        """
        ...

    async def drain(self) -> None:
        """Read to the end and forget it; given up after a moment, which costs no more than the connection."""
        ...


def as_sdk_type(item: Opaque, *unions: object, sdk: str) -> Any:
    """An item that was kept as it came, as one of the types of a provider's SDK.

    Args:
        item: The item.
        unions: Unions of models of pydantic that differ in the literal of their field `type`; the first with it counts.
        sdk: The SDK's package.

    Raises:
        ItemSchemaMismatch: The SDK has no type for the item, or the item does not fit it.
    """
    for union in unions:
        members: Any = get_args(union)[0] if get_origin(union) is Annotated else union
        for model in get_args(members):
            if item.kind in get_args(model.model_fields["type"].annotation):
                return as_sdk_model(item, json.loads(item.raw), model, sdk)
    raise no_sdk_type(item, sdk)


def as_sdk_model(item: Opaque, data: object, model: Any, sdk: str) -> Any:
    """An item as an instance of a model of a provider's SDK.

    Args:
        item: The item.
        data: What of its JSON is the instance.
        model: The model of pydantic.
        sdk: The SDK's package.

    Raises:
        ItemSchemaMismatch: It does not fit.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ItemSchemaMismatch(
            f"an item {item.kind!r} is not a valid {model.__name__} of {sdk}: {first['msg']}",
            where=".".join(map(str, first["loc"])),
            hint=_RAW.format(sdk=sdk),
        ) from None


def no_sdk_type(item: Opaque, sdk: str) -> ItemSchemaMismatch:
    """The error for an item that a provider's SDK has no type for."""
    return ItemSchemaMismatch(
        f"an item {item.kind!r} is not a valid item of {sdk}; expected one of a type that it has",
        hint=_RAW.format(sdk=sdk),
    )


_RAW = "read item.raw, which is the JSON that came, or install a newer {sdk}"


def text(event: Mapping[str, object], name: str) -> str:
    """A field's text, empty when it is absent or null.

    Raises:
        Malformed: The field is something else.
    """
    value = event.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"{name} is not text")
    return value


def mapping(value: object, name: str) -> Mapping[str, Any]:
    """The value as a JSON object.

    Raises:
        Malformed: It is something else.
    """
    if not is_mapping(value):
        raise Malformed(f"{name} is not an object")
    return value


def array(value: object, name: str) -> list[Any]:
    """The value as a JSON array, an empty one when it is null.

    Raises:
        Malformed: It is something else.
    """
    if value is None:
        return []
    if not is_list(value):
        raise Malformed(f"{name} is not a list")
    return value
