"""The contract of event sinks, and the sink in a run."""

import pytest
from noetic_py import Harness, step
from noetic_py.core.sinks import EventSink
from noetic_py.plugins import EventSinkRegistry, hookimpl
from noetic_py.testing import EventSinkContract

from @MODULE@ import EventCounts

pytestmark = pytest.mark.anyio


class TestEventCounts(EventSinkContract):
    """What every event sink has to keep."""

    def make(self) -> EventSink:
        return EventCounts().send


@step
async def shout(text: str) -> str:
    return text.upper()


async def test_events_are_counted() -> None:
    counts = EventCounts()

    class Plugin:
        @hookimpl
        def register_event_sinks(self, registry: EventSinkRegistry) -> None:
            registry.event_sink(counts.send)

    async with Harness(plugins=[Plugin()]) as harness:
        await harness.run(shout, "go")
    assert [counts.counts[name] for name in ("RunStarted", "RunFinished")] == [1, 1]
