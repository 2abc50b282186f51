"""The conformance suite for event sinks that a plugin registers, to be run with pytest against one of your own.

A sink that passes it takes the events of a run with model calls, tools and failures, and events that a later release
adds. It serves one event loop after another, and can be cancelled.

```python
from noetic_py import Event
from noetic_py.testing import EventSinkContract


class Counter:
    def __init__(self) -> None:
        self.events = 0

    async def send(self, run_id: str, event: Event) -> None:
        self.events += 1


class TestCounter(EventSinkContract):
    def make(self) -> EventSink:
        return Counter().send
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import anyio
import pytest
from attrs import frozen

from noetic_py.context.context import Context
from noetic_py.core.events import Event
from noetic_py.core.items import FunctionCall
from noetic_py.core.sinks import EventSink
from noetic_py.harness import Harness
from noetic_py.plugins import EventSinkRegistry
from noetic_py.steps.code import step
from noetic_py.steps.loop import loop
from noetic_py.steps.model import call_model
from noetic_py.testing.scripted import ScriptedModel
from noetic_py.tools.definition import tool
from noetic_py.until import no_tool_calls

__all__ = ["EventSinkContract"]


@frozen(eq=False)
class _OfAnotherRelease(Event):
    detail: str


@tool
async def _look_up(port: str) -> str:
    """Look a tide up."""
    if port == "Atlantis":
        raise LookupError(port)
    return "06:12"


@step(id="note")
async def _note(text: str, ctx: Context) -> str:
    ctx.emit({"text": text})
    return text


async def _events() -> Sequence[Event]:
    """The events of a run with a model, tools and a failure, and one that this release does not know."""
    calls = [FunctionCall(name="_look_up", arguments={"port": port}) for port in ("Brest", "Atlantis")]
    agent: Any = loop(call_model(tools=[_look_up]), until=no_tool_calls())
    async with (
        Harness(model=ScriptedModel(calls, "At noon.", chunk=3), plugins=()) as harness,
        harness.stream(agent >> _note, "When?", run_id="contract") as stream,
    ):
        found: list[Event] = [event async for event in stream.events]
        await stream.result()
    return [*found, _OfAnotherRelease(("note",), "x" * 10_000)]


class EventSinkContract:
    """The contract of an event sink.

    Attributes:
        patience: Seconds that the events of a run may take; more means that the sink waits for ever.
    """

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio
    patience: ClassVar[float] = 20.0

    def make(self) -> EventSink:
        """Make the sink as the plugin does."""
        raise NotImplementedError("make() has to make the sink")

    async def _send(self, sink: EventSink, events: Sequence[Event]) -> None:
        with anyio.fail_after(self.patience):
            for event in events:
                await sink("contract", event)

    def test_it_can_be_registered(self) -> None:
        """It is an async function of a run's id and an event."""
        EventSinkRegistry().event_sink(self.make())

    async def test_it_takes_every_event(self) -> None:
        """Of a whole run, more than once, and of kinds that a later release adds."""
        sink, events = self.make(), await _events()
        await self._send(sink, events)
        await self._send(sink, events)

    def test_it_serves_one_event_loop_after_another(self) -> None:
        """A harness may be entered in each of them."""
        sink = self.make()

        async def use() -> None:
            await self._send(sink, await _events())

        for name in ("asyncio", "trio", "asyncio"):
            anyio.run(use, backend=name)

    async def test_it_is_usable_after_a_call_that_was_cancelled(self) -> None:
        """A harness that is left cancels a sink that takes too long."""
        sink, events = self.make(), await _events()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sink("contract", events[0])
        await self._send(sink, events)
