"""`LineModel`: a model behind a server that answers in lines of JSON; write your provider's form in their place."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2
from noetic_py import FunctionCall, Message, ModelRequest, ModelResponse, TokenUsage
from noetic_py.core.codec import to_wire
from noetic_py.core.items import Item, Refusal
from noetic_py.errors import (
    ContextOverflow,
    ModelStatusError,
    ModelStreamError,
    ModelUnavailable,
    RateLimited,
)
from noetic_py.models import (
    ItemDone,
    ModelEvent,
    ModelStream,
    StopReason,
    TextPart,
    ToolCallPart,
    check_real_model,
)
from noetic_py.models.http import end_reading


class LineModel:
    """A model that is asked by POST, and answers in lines: pieces of text, pieces of calls, and how it ended.

    Args:
        model: The model's name at the provider.
        url: The address that requests are sent to.
    """

    def __init__(self, model: str, url: str) -> None:
        self._model = model
        self._url = url

    @property
    def name(self) -> str:
        """The name in events and errors; prices are found by it."""
        return f"@PREFIX@:{self._model}"

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Ask the provider.

        Raises:
            ModelError: The provider refuses, cannot be reached, or breaks off.
        """
        # Keeps tests from spending money; before a connection is opened.
        check_real_model(self.name)
        body = {
            "items": [to_wire(item) for item in request.items],
            "instructions": request.instructions,
            "tools": list(request.tools),
        }
        try:
            async with (
                httpx2.AsyncClient(trust_env=False, timeout=None) as client,
                client.stream("POST", self._url, json=body) as response,
            ):
                if response.is_error:
                    raise self._refused(response, (await response.aread()).decode())
                lines = response.aiter_lines()
                try:
                    yield LineStream(lines, self.name)
                finally:
                    await end_reading(response, lines)
        except httpx2.ConnectError as error:
            raise ModelUnavailable(f"no server at {self._url}", model=self.name) from error

    def _refused(self, response: httpx2.Response, text: str) -> ModelStatusError:
        status = response.status_code
        if status == 429:
            seconds = response.headers.get("retry-after")
            after = None if seconds is None else float(seconds)
            return RateLimited("too many requests", model=self.name, retry_after=after, body=text)
        kind = ContextOverflow if status == 413 else ModelStatusError
        return kind(f"status {status}", model=self.name, status=status, body=text)


class LineStream:
    """An answer: what the lines say, until one says that it is whole."""

    def __init__(self, lines: AsyncIterator[str], model: str) -> None:
        self._lines = lines
        self._model = model
        self._text: list[str] = []
        self._calls: dict[int, FunctionCall] = {}
        self._error: ModelStreamError | None = None
        self._response: ModelResponse | None = None

    async def __aiter__(self) -> AsyncGenerator[ModelEvent]:
        while self._response is None:
            line = await self._line()
            match line:
                case {"text": str(delta)}:
                    self._text.append(delta)
                    yield TextPart(delta)
                case {
                    "call": int(index),
                    "id": str(call_id),
                    "name": str(name),
                    "arguments": str(delta),
                }:
                    before = self._calls[index].arguments if index in self._calls else ""
                    self._calls[index] = FunctionCall(
                        name=name, arguments=before + delta, call_id=call_id
                    )
                    yield ToolCallPart(call_id, name, delta)
                case {"end": str(reason)}:
                    self._response = self._whole(reason, line)
                    for item in self._response.items:
                        yield ItemDone(item)
                case _:
                    raise self._broken("a line is not of the form that was agreed")

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated."""
        async with aclosing(aiter(self)) as events:
            async for _ in events:
                pass
        if self._response is None:
            raise self._broken("the answer is not complete")
        return self._response

    async def _line(self) -> Any:
        if self._error is not None:
            raise self._error
        try:
            return json.loads(await anext(self._lines))
        except (httpx2.HTTPError, StopAsyncIteration):
            raise self._broken("it was cut") from None
        except ValueError:
            raise self._broken("a line is not JSON") from None

    def _broken(self, why: str) -> ModelStreamError:
        self._error = self._error or ModelStreamError(f"the stream broke: {why}", model=self._model)
        return self._error

    def _whole(self, reason: str, line: Any) -> ModelResponse:
        items: list[Item] = []
        if reason == "refusal":
            items.append(Message.assistant([Refusal(refusal=line["words"])]))
        elif self._text:
            items.append(Message.assistant("".join(self._text)))
        items += self._calls.values()
        stop: StopReason = (
            "refusal" if reason == "refusal" else "tool_calls" if self._calls else "stop"
        )
        usage = line.get("usage")
        return ModelResponse(
            items, None if usage is None else TokenUsage(**usage), stop_reason=stop
        )
