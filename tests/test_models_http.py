"""What has come of a provider's stream: its signs of life, and what an SDK is kept from reading."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest

from noetic_py.models import http
from noetic_py.models.http import ReceivedBytes

pytestmark = pytest.mark.anyio


async def events(received: ReceivedBytes, *chunks: bytes) -> AsyncGenerator[str]:
    """A stream that ends in an event once these bytes have come."""
    for chunk in chunks:
        await anyio.lowlevel.checkpoint()
        received.add(chunk)
    yield "event"


async def test_bytes_without_an_event_are_signs_of_life() -> None:
    received = ReceivedBytes()
    deadlines: list[float] = []

    async def comments() -> AsyncGenerator[str]:
        for _ in range(3):
            assert received._scope is not None
            deadlines.append(received._scope.deadline)
            await anyio.lowlevel.checkpoint()
            received.add(b": still thinking\n\n")
        yield "event"

    async with aclosing(comments()) as stream:
        assert await received.next_of(stream, 1000) == "event"
        assert await received.next_of(stream, 1000) is None
    assert deadlines == sorted(set(deadlines))
    assert len(deadlines) == 3


async def test_a_stream_without_bytes_has_stalled() -> None:
    async def silent() -> AsyncGenerator[str]:
        await anyio.sleep_forever()
        yield "never"

    async with aclosing(silent()) as stream:
        with pytest.raises(TimeoutError):
            await ReceivedBytes().next_of(stream, 0.01)


async def test_an_event_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_EVENT", 10)
    received = ReceivedBytes()
    async with aclosing(events(received, b"12345", b"67890")) as stream:
        assert await received.next_of(stream, 1000) == "event"
    async with aclosing(events(received, b"12345", b"67890", b"1")) as stream:
        with pytest.raises(ValueError, match="larger than 10 bytes"):
            await received.next_of(stream, 1000)


async def test_what_is_not_a_text_is_refused_wherever_it_was_cut() -> None:
    received = ReceivedBytes()
    async with aclosing(events(received, "é".encode()[:1], "é".encode()[1:])) as stream:
        assert await received.next_of(stream, 1000) == "event"
    async with aclosing(events(received, b"\xff")) as stream:
        with pytest.raises(ValueError, match="utf-8"):
            await received.next_of(stream, 1000)
