"""What happens in a session, turn after turn, for those who watch it, late ones included."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Any

from noetic_py.core.events import CAPACITY, Backlog, Event, ReasoningDelta, Subscription, TextDelta
from noetic_py.core.items import Item
from noetic_py.core.selections import CommittedItems, Deltas
from noetic_py.core.session_key import SessionKey
from noetic_py.sessions.policy import SessionPolicy

__all__ = ["SessionStream", "SessionWatchers"]


class SessionStream:
    """A session as it is watched: first what is remembered of its turns, and then what happens.

    Each of `events`, `text`, `reasoning` and `items` has a buffer of its own, so they can be read side by side, each by
    one task. They end when the watcher leaves, or the session is deleted.

    Attributes:
        missed: Events that were forgotten before the watcher came; the oldest go first.
    """

    def __init__(self, missed: int, subscriptions: dict[str, Subscription]) -> None:
        self.missed: int = missed
        self._subscriptions = subscriptions
        self._read: set[str] = set()

    @property
    def dropped(self) -> int:
        """Events that the slowest reader has lost because it did not read them in time."""
        return max((self._subscriptions[name].dropped for name in self._read), default=0)

    @property
    def events(self) -> AsyncIterator[Event]:
        """Every event in order; a `RunStarted` begins each turn, and a `RunFinished` ends it."""
        return self._subscription("events")

    @property
    def text(self) -> AsyncIterator[str]:
        """The answers' text, piece by piece."""
        return Deltas(self._subscription("text"), TextDelta)

    @property
    def reasoning(self) -> AsyncIterator[str]:
        """The models' visible reasoning, piece by piece."""
        return Deltas(self._subscription("reasoning"), ReasoningDelta)

    @property
    def items(self) -> AsyncIterator[Item]:
        """Items as they are committed, of every step, in the order of the commits."""
        return CommittedItems(self._subscription("items"))

    def _subscription(self, name: str) -> Subscription:
        self._read.add(name)
        return self._subscriptions[name]


class _WatchedSession:
    """What is remembered of one session, and who watches it."""

    def __init__(self, limit: int) -> None:
        self.history: Backlog[Event] = Backlog(limit)
        self.watchers: list[Subscription] = []

    def put(self, event: Event) -> None:
        size = event.size
        self.history.put(event, size)
        for watcher in self.watchers:
            watcher.put(event, size)

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.close()


class SessionWatchers:
    """What is remembered of the sessions of one harness; of those that were quiet longest nothing is."""

    def __init__(self, policy: SessionPolicy) -> None:
        self._history = policy.history
        self._limit = policy.cache_size
        self._watched: OrderedDict[SessionKey, _WatchedSession] = OrderedDict()

    def __len__(self) -> int:
        """Of how many sessions something is remembered."""
        return len(self._watched)

    def observe(self, run: Any) -> None:
        """Remember what happens in a turn's run."""
        key: SessionKey = run.session
        if self._history or key in self._watched:
            run.bus.watch(self._session(key).put)

    def forget(self, key: SessionKey) -> None:
        """Forget a session, and let those go who watch it."""
        watched = self._watched.pop(key, None)
        if watched is not None:
            watched.close()

    @contextmanager
    def watch(self, key: SessionKey) -> Generator[SessionStream]:
        """Watch a session for as long as the block lasts."""
        watched = self._session(key)
        names = ("events", "text", "reasoning", "items")
        made = {name: Subscription(max(CAPACITY, self._history)) for name in names}
        for each in made.values():
            for event, size in watched.history:
                each.put(event, size)
        watched.watchers += made.values()
        try:
            yield SessionStream(watched.history.dropped, made)
        finally:
            for each in made.values():
                watched.watchers.remove(each)
                each.close()
            if not self._history and not watched.watchers and self._watched.get(key) is watched:
                del self._watched[key]
            self._trim()

    def _session(self, key: SessionKey) -> _WatchedSession:
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _WatchedSession(self._history)
        self._watched.move_to_end(key)
        self._trim(key)
        return watched

    def _trim(self, kept: SessionKey | None = None) -> None:
        spare = len(self._watched) - self._limit
        if spare <= 0:
            return
        idle = [key for key, watched in self._watched.items() if not watched.watchers and key != kept]
        for key in idle[:spare]:
            del self._watched[key]
