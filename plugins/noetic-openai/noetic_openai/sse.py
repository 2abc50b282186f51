"""Server-sent events, read from a response's bytes one at a time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio

from noetic_openai.narrow import is_object
from noetic_py.errors import ModelStreamError
from noetic_py.models.http import MAX_EVENT
from noetic_py.models.reading import Malformed

__all__ = ["DONE", "EventReader", "SSEDecoder"]

DONE = "[DONE]"
"""The last event of a chat completion's stream."""

_DRAIN_TIMEOUT = 0.1
_SMALLEST = 16
"""The minimum size of a line: reading it takes time, however short it is."""


class SSEDecoder:
    """Splits bytes into the data of events; pieces may be cut anywhere, also inside a character."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[str]:
        """The events that `chunk` completes.

        Args:
            chunk: The next bytes.

        Raises:
            ValueError: The bytes are not UTF-8, or one event is larger than `MAX_EVENT`.
        """
        if not chunk:
            return []
        if self._skip_newline and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._skip_newline = chunk[-1:] == b"\r"
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest += first
        lines: list[bytes] = []
        if others:
            lines = [bytes(self._rest), *others[:-1]]
            self._rest = bytearray(others[-1])
        events = [data for line in lines if (data := self._line(line)) is not None]
        if len(self._rest) + self._size > MAX_EVENT:
            raise ValueError(f"an event is larger than {MAX_EVENT} bytes")
        return events

    def _line(self, line: bytes) -> str | None:
        if line:
            name, _, value = line.decode().partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
        # Lines without data count too, empty ones as well: an event comes at some time.
        self._size += max(_SMALLEST, len(line) + 1)
        if line:
            return None
        data, self._data = self._data, []
        if not data:
            return None
        self._size = 0
        return "\n".join(data)


class EventReader:
    """The events of one response, as JSON objects.

    Args:
        chunks: The response's bytes.
        model: The model's name, for errors.
        idle: Seconds without a byte after which the stream counts as stalled.
        broken: The exceptions that reading raises when the connection breaks.
    """

    def __init__(
        self, chunks: AsyncIterator[bytes], *, model: str, idle: float, broken: tuple[type[Exception], ...]
    ) -> None:
        self._chunks = chunks
        self._model = model
        self._idle = idle
        self._broken = broken
        self._decoder = SSEDecoder()
        self._ready: deque[str] = deque()

    async def next(self) -> Mapping[str, Any] | None:
        """The next event, `None` at the end of the stream.

        Raises:
            ModelStreamError: The stream broke or stalled.
            Malformed: It holds something that is not a JSON object.
        """
        while not self._ready:
            chunk = await self._read()
            if chunk is None:
                return None
            try:
                self._ready.extend(self._decoder.feed(chunk))
            except ValueError as error:
                raise Malformed(str(error)) from None
        data = self._ready.popleft()
        if data.strip() == DONE:
            return None
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise Malformed("an event is not JSON") from None
        if not is_object(event):
            raise Malformed("an event is not a JSON object")
        return event

    async def drain(self) -> None:
        """Read to the end and forget it; given up after a moment, which costs no more than the connection."""
        with anyio.move_on_after(_DRAIN_TIMEOUT):
            try:
                while await anext(self._chunks, None) is not None:
                    pass
            except self._broken:
                return

    async def _read(self) -> bytes | None:
        chunk: bytes | None = None
        with anyio.move_on_after(self._idle) as scope:
            try:
                chunk = await anext(self._chunks, None)
            except self._broken as error:
                raise ModelStreamError(
                    f"the stream broke before the answer was complete: {type(error).__name__}", model=self._model
                ) from error
        if scope.cancelled_caught:
            raise ModelStreamError(
                f"the stream stalled: nothing came for {self._idle:g} s",
                model=self._model,
                hint="raise idle_timeout= of the model if it may be silent for longer",
            )
        return chunk
