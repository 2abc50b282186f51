"""Event sinks: functions of plugins that get the events of all runs of a harness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from logging import WARNING
from typing import TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from attrs import define, field

from noetic_py.core.diagnostics import NOWHERE, Where, log, where_defined
from noetic_py.core.diagnostics import warn as warn_caller
from noetic_py.core.events import CAPACITY, Bus, Event, Subscription

__all__ = ["EventSink", "EventSinks"]

EventSink: TypeAlias = Callable[[str, Event], Awaitable[object]]
"""An async function that gets the id of a run and one of its events."""

_BREATHE = 1_000
PATIENCE = 5.0
"""Seconds that a harness waits, when it is left, for its sinks to take the events that they have not had yet."""


@define(eq=False)
class _Feed:
    """A sink with the events that wait for it; the oldest are lost where it is too slow.

    Attributes:
        plugin: The plugin that has registered it.
        sink: The sink.
        failed: How many events it has failed with.
    """

    plugin: str
    sink: EventSink
    failed: int = 0
    buffer: Subscription[tuple[str, Event]] = field(factory=lambda: Subscription[tuple[str, Event]](CAPACITY))
    scope: anyio.CancelScope = field(factory=lambda: anyio.CancelScope(shield=True))
    over: anyio.Event = field(factory=anyio.Event)

    def hear(self, run_id: str, event: Event) -> None:
        """Take an event of a run."""
        before = self.buffer.dropped
        self.buffer.put((run_id, event), event.size)
        if self.buffer.dropped and not before:
            self._say("is too slow, and loses events from now on; run %s goes on", run_id, where=Where(run_id))

    async def work(self) -> None:
        """Give the sink one event after the other; what it raises ends nothing."""
        # What runs have sent before they were cancelled is still delivered.
        with self.scope:
            given = 0
            async for run_id, event in self.buffer:
                given += 1
                try:
                    await self.sink(run_id, event)
                except Exception as error:  # noqa: BLE001 # whatever a plugin raises
                    self.failed += 1
                    if self.failed == 1:
                        what = "failed with an event of run %s; it gets the next ones, and further failures are counted"
                        self._say(what, run_id, where=Where(run_id, event.path), error=error)
                # A sink that never waits would starve the event loop. One event a turn would be too few: a run that
                # never waits lets others run after many steps only.
                if not given % _BREATHE:
                    await checkpoint()
        self.over.set()

    def report(self) -> None:
        """Say in the log what it has not taken."""
        lost = self.buffer.dropped + self.buffer.unread
        if lost or self.failed > 1:
            self._say("has lost %d events, and failed with %d", lost, self.failed)

    def _say(self, what: str, *args: object, where: Where = NOWHERE, error: Exception | None = None) -> None:
        what = f"event sink %s of plugin %r {what}"
        log("events", WARNING, what, where_defined(self.sink), self.plugin, *args, where=where, error=error)


class EventSinks:
    """The event sinks of a harness. Each has a task of its own while the harness is entered.

    Args:
        sinks: The sinks, each behind the plugin that has registered it.
    """

    def __init__(self, sinks: Sequence[tuple[str, EventSink]]) -> None:
        self._sinks = sinks
        self._feeds: Sequence[_Feed] = ()
        self._group: anyio.abc.TaskGroup | None = None
        self._warned = False

    async def start(self) -> None:
        """Events are delivered from now on, until the task that calls this calls `close`."""
        self._feeds = [_Feed(plugin, sink) for plugin, sink in self._sinks]
        if self._feeds:
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
            for feed in self._feeds:
                self._group.start_soon(feed.work)

    async def close(self) -> None:
        """Deliver the events that wait, for at most `PATIENCE` seconds; a sink that takes longer is cancelled."""
        group, self._group = self._group, None
        if group is None:
            return
        for feed in self._feeds:
            feed.buffer.close()
        with anyio.move_on_after(PATIENCE, shield=True):
            for feed in self._feeds:
                await feed.over.wait()
        for feed in self._feeds:
            feed.scope.cancel()
            feed.report()
        await group.__aexit__(None, None, None)

    def follow(self, bus: Bus) -> None:
        """Deliver the events of a run."""
        if self._group is not None:
            for feed in self._feeds:
                bus.watch(partial(feed.hear, bus.run_id))
        elif self._sinks and not self._warned:
            self._warned = True
            warn_caller(
                f"the harness was not entered, so the event sink of plugin {self._sinks[0][0]!r} gets no events; use: "
                "async with Harness(...) as harness"
            )
