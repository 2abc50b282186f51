"""`ScriptedModel`: a model that says what a test tells it to say."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from types import TracebackType
from typing import TypeAlias

import anyio
from attrs import evolve

from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import ID_SOURCE, FunctionCall, Item, ItemBase, Message, Opaque, Reasoning, Refusal
from noetic_py.errors import ModelError
from noetic_py.models.model import (
    ItemDone,
    ModelEvent,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelStream,
    Price,
    ReasoningPart,
    StopReason,
    TextPart,
    ToolCallPart,
)
from noetic_py.testing.unfinished import Unfinished

__all__ = ["ScriptExhausted", "ScriptedModel", "Turn"]

Turn: TypeAlias = str | Item | Sequence[Item] | Exception | Unfinished
"""One turn of a model: a text, one item, several items, an error that is raised, or an answer that breaks off."""

_WORDS = re.compile(r"\S+\s*|\s+")


class ScriptExhausted(ModelError):
    """A scripted model was called more often than it has turns."""


class ScriptedModel:
    """A model whose answers are written down: one for each call, in order.

    ```python
    model = ScriptedModel(FunctionCall(name="search", arguments={"query": "tides"}), "High tide is at noon.")
    ```

    An answer is streamed as from a provider: its text in pieces, each item when it is whole. An item that was used
    before gets new ids, so a call may stand in the script twice.

    Args:
        turns: The answers: text, an item, several items, an exception to raise, an `Unfinished` answer, or a function
            of the request that gives one of them.
        usage: The tokens that every call reports; `None` reports none.
        cost: USD that every call reports, and that its price says; `None` reports none, and the price is zero.
        delay: Seconds from the request to the answer.
        name: The model's name.
        chunk: Characters of a piece of text; whole words unless told.

    Raises:
        ValueError: `delay` or `cost` is negative, or `chunk` less than 1.
    """

    def __init__(
        self,
        *turns: Turn | Callable[[ModelRequest], Turn],
        usage: TokenUsage | None = None,
        cost: float | str | Decimal | None = None,
        delay: float = 0.0,
        name: str = "test:scripted",
        chunk: int | None = None,
    ) -> None:
        self._cost = None if cost is None else Decimal(str(cost))
        if delay < 0 or (chunk is not None and chunk < 1) or (self._cost is not None and self._cost < 0):
            raise ValueError("delay= and cost= are zero or more, and chunk= is 1 or more")
        self._turns = turns
        self._used = 0
        self._usage = usage
        self._delay = delay
        self._name = name
        self._chunk = chunk
        self._profile = ModelProfile(price=Price(per_call=self._cost or Decimal(0)))
        self._requests: list[ModelRequest] = []
        self._seen: set[str] = set()

    @property
    def name(self) -> str:
        """`"test:scripted"` unless told."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """A price of `cost` for each call."""
        return self._profile

    @property
    def requests(self) -> Sequence[ModelRequest]:
        """The requests so far, in order: the objects themselves, no copies."""
        return self._requests

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Answer with the next turn, which is taken when the context manager is entered.

        Raises:
            ScriptExhausted: On entering: there is no turn left.
            Exception: On entering: the one that the turn is.
        """
        return _Answer(self._answer, request, self._chunk)

    def assert_complete(self) -> None:
        """Check that every turn was used.

        Raises:
            AssertionError: Some were not.
        """
        left = len(self._turns) - self._used
        if left:
            following = repr(self._turns[self._used])
            raise AssertionError(
                f"{left} of {len(self._turns)} turns of {self._name} left, the next is {following:.200}"
            )

    def _take(self, request: ModelRequest) -> Turn | Callable[[ModelRequest], Turn]:
        self._requests.append(request)
        if self._used >= len(self._turns):
            raise ScriptExhausted(
                f"call {len(self._requests)} of a script with {len(self._turns)} turns",
                model=self._name,
                hint="add a turn, or look in model.requests for a call that should not have been made",
            )
        turn = self._turns[self._used]
        self._used += 1
        return turn

    async def _answer(self, request: ModelRequest) -> tuple[ModelResponse, Unfinished | None]:
        turn = self._take(request)
        if self._delay:
            await anyio.sleep(self._delay)
        said = turn(request) if callable(turn) else turn
        if isinstance(said, Exception):
            raise said
        unfinished = said if isinstance(said, Unfinished) else None
        if isinstance(said, Unfinished):
            said = said.said
        items: Sequence[Item]
        if isinstance(said, str):
            items = (Message.assistant(said),)
        elif isinstance(said, ItemBase):
            items = (self._fresh(said),)
        else:
            items = tuple(self._fresh(item) for item in said)
        return ModelResponse(items, self._usage, self._cost, _stop_reason(items), self._name), unfinished

    def _fresh(self, item: Item) -> Item:
        """The item, with new ids if it, or one of the same ids, was said before."""
        ids = {item.id, item.call_id} if isinstance(item, FunctionCall) else {item.id}
        if self._seen.isdisjoint(ids):
            self._seen |= ids
            return item
        if isinstance(item, FunctionCall):
            return FunctionCall(name=item.name, arguments=item.arguments, status=item.status, extra=item.extra)
        # The id of an opaque item stands in its bytes, which are kept.
        return item if isinstance(item, Opaque) else evolve(item, id=ID_SOURCE.get()())


class _Answer:
    """One answer: the context manager, the stream, and the iterator over its events."""

    __slots__ = ("_ask", "_chunk", "_events", "_request", "_response", "_unfinished")

    def __init__(
        self,
        ask: Callable[[ModelRequest], Awaitable[tuple[ModelResponse, Unfinished | None]]],
        request: ModelRequest,
        chunk: int | None,
    ) -> None:
        self._ask = ask
        self._request = request
        self._chunk = chunk
        self._response: ModelResponse | None = None
        self._unfinished: Unfinished | None = None
        self._events: Iterator[ModelEvent] = iter(())

    async def __aenter__(self) -> _Answer:
        self._response, self._unfinished = await self._ask(self._request)
        # A plain generator, which needs no closing: to leave early leaves nothing behind.
        self._events = events_of(self._response.items, self._chunk, whole=self._unfinished is None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._events = iter(())

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> ModelEvent:
        for event in self._events:
            return event
        if self._unfinished is not None:
            await self._unfinished.end()
        raise StopAsyncIteration

    async def response(self) -> ModelResponse:
        if self._response is None:
            raise RuntimeError("enter the answer before asking for its response")
        if self._unfinished is not None:
            await self._unfinished.end()
        return self._response


def _stop_reason(items: Iterable[Item]) -> StopReason:
    reason: StopReason = "stop"
    for item in items:
        if isinstance(item, FunctionCall):
            return "tool_calls"
        if isinstance(item, Message) and any(isinstance(part, Refusal) for part in item.content):
            reason = "refusal"
    return reason


def events_of(items: Sequence[Item], chunk: int | None, *, whole: bool) -> Iterator[ModelEvent]:
    """The events with which an answer of these items is streamed, texts word by word or in pieces of `chunk`."""
    for item in items:
        if isinstance(item, Message):
            for piece in _pieces(item.text, chunk):
                yield TextPart(piece, item.id)
        elif isinstance(item, FunctionCall):
            yield ToolCallPart(item.call_id, item.name, item.arguments)
        elif isinstance(item, Reasoning):
            for piece in _pieces(item.text, chunk):
                yield ReasoningPart(piece, item.id)
        if whole or item is not items[-1]:
            yield ItemDone(item)


def _pieces(text: str, chunk: int | None) -> Sequence[str]:
    if chunk is None:
        return _WORDS.findall(text)
    return [text[start : start + chunk] for start in range(0, len(text), chunk)]
