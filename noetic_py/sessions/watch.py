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

__all__ = ["Feeds", "SessionStream"]


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


class _Feed:
    """What is remembered of one session, and who watches it."""

    def __init__(self, most: int) -> None:
        self.history: Backlog[Event] = Backlog(most)
        self.watchers: list[Subscription] = []

    def put(self, event: Event) -> None:
        size = event.size
        self.history.put(event, size)
        for watcher in self.watchers:
            watcher.put(event, size)

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.close()


class Feeds:
    """What is remembered of the sessions of one harness; of those that were quiet longest nothing is."""

    def __init__(self, policy: SessionPolicy) -> None:
        self._most = policy.history
        self._sessions = policy.cache_size
        self._feeds: OrderedDict[SessionKey, _Feed] = OrderedDict()

    def __len__(self) -> int:
        """Of how many sessions something is remembered."""
        return len(self._feeds)

    def attend(self, run: Any) -> None:
        """Remember what happens in a turn's run."""
        key: SessionKey = run.session
        if self._most or key in self._feeds:
            run.bus.watch(self._feed(key).put)

    def forget(self, key: SessionKey) -> None:
        """Forget a session, and let those go who watch it."""
        feed = self._feeds.pop(key, None)
        if feed is not None:
            feed.close()

    @contextmanager
    def watch(self, key: SessionKey) -> Generator[SessionStream]:
        """Watch a session for as long as the block lasts."""
        feed = self._feed(key)
        names = ("events", "text", "reasoning", "items")
        made = {name: Subscription(max(CAPACITY, self._most)) for name in names}
        for each in made.values():
            for event, size in feed.history:
                each.put(event, size)
        feed.watchers += made.values()
        try:
            yield SessionStream(feed.history.dropped, made)
        finally:
            for each in made.values():
                feed.watchers.remove(each)
                each.close()
            if not self._most and not feed.watchers and self._feeds.get(key) is feed:
                del self._feeds[key]
            self._trim()

    def _feed(self, key: SessionKey) -> _Feed:
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(self._most)
        self._feeds.move_to_end(key)
        self._trim(key)
        return feed

    def _trim(self, kept: SessionKey | None = None) -> None:
        spare = len(self._feeds) - self._sessions
        if spare <= 0:
            return
        idle = [key for key, feed in self._feeds.items() if not feed.watchers and key != kept]
        for key in idle[:spare]:
            del self._feeds[key]
