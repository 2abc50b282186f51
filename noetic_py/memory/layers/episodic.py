"""`Episodic`: what was asked before, what came of it, and when."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from attrs import field, frozen

from noetic_py.core.caches import cached
from noetic_py.core.items import Item, Message
from noetic_py.core.runtime import Runtime
from noetic_py.memory.functions import function
from noetic_py.memory.layer import MemoryLayer, Recall, Returned
from noetic_py.memory.layers import common
from noetic_py.memory.scopes import Scope, Slot

_WORD: Final = re.compile(r"\w+")
# Shorter ones are mostly articles and the like, which everything has in common.
_SHORT: Final = 3


@frozen
class Episode:
    """Something that was asked, and what came of it.

    Attributes:
        asked: What.
        outcome: What came of it.
        at: When it was over, in UTC.
        origin: The name of the session or thread; empty for an id that says nothing to a reader.
        item: The id of the message that asked; empty for what was noted.
    """

    asked: str
    outcome: str
    at: datetime
    origin: str = ""
    item: str = field(default="", eq=False, repr=False)


class Episodic(MemoryLayer[dict[str, Episode]]):
    """Remembers what a user asked in earlier runs and what came of it, and recalls what belongs to the question.

        class Mem(Memory):
            past: Episodic = Episodic(max_recalled=3)

        await harness.run(agent, "When is high tide?", user_id="ada")

    An execution becomes an episode when it is over; `note` adds one at any time. Recalled are those that share most
    words with the question, and of equal ones the newest. No model and no embedding takes part, so the same question
    recalls the same. It belongs to a person, so the run needs a `user_id`; or give it another `scope`.

    Attributes:
        max_episodes: How many are remembered; the oldest go first.
        max_recalled: How many the model sees.
        max_characters: How much of a question and of an outcome is kept.
        recent: How many of the newest are recalled whatever the question is, within `max_recalled`.
        children: What is taken of a child that has succeeded: the episodes it has noted, or nothing.
        clock: A clock of the layer's own, in place of the run's.

    Raises:
        ConfigError: A setting is wrong; code `"episodic"`.
    """

    max_episodes: int = 200
    max_recalled: int = 5
    max_characters: int = 500
    recent: int = 1
    children: common.MergeMode = "merge"
    clock: Runtime | None = None
    scope: Scope = Scope.USER
    slot: int = Slot.HISTORY

    def __attrs_post_init__(self) -> None:
        common.check_counts(
            self,
            "episodic",
            max_episodes=self.max_episodes,
            max_recalled=self.max_recalled,
            max_characters=self.max_characters,
        )
        if isinstance(self.recent, bool) or not 0 <= self.recent <= self.max_recalled:
            raise common.wrong(self, f"recent={self.recent!r} is not between 0 and max_recalled=", "episodic")
        common.is_one_of(self, "episodic", "children", self.children, ("merge", "ignore"))

    @property
    def episodes(self) -> Sequence[Episode]:
        """The remembered entries, newest first."""
        kept = self._kept
        return [kept[key] for key in _newest_first(kept)]

    @property
    def _kept(self) -> dict[str, Episode]:
        """The state itself, which nothing here changes in place: a copy of many episodes takes a while."""
        kept: dict[str, Episode] = self.binding.peek()
        return kept

    @function
    async def note(self, asked: str, outcome: str) -> None:
        """Remember something for later conversations: what it was about, and what came of it.

        Args:
            asked: What it was about.
            outcome: What came of it.

        Raises:
            ToolArgumentsInvalid: One of them is blank.
        """
        if not asked.strip() or not outcome.strip():
            raise common.refused(self, "note", "an episode needs both what was asked and what came of it")
        self._add(f"{asked}\0{outcome}", asked, outcome)

    async def recall(self, query: str, budget: int) -> Recall:
        """The episodes that belong to a question, the newest first, as many as there is room for.

        One whose question the conversation still shows, and so what came of it, is not repeated.
        """
        kept, wanted = self._kept, _words(query)
        newest = _newest_first(kept)
        shared = {key: len(wanted & _words_of(each.asked, each.outcome)) for key, each in kept.items()}
        rest = newest[self.recent :]
        ranked = newest[: self.recent] + sorted(filter(shared.__getitem__, rest), key=shared.__getitem__, reverse=True)
        chosen = set(ranked[: self.max_recalled])
        best = [kept[key] for key in newest if key in chosen]

        def unseen(shown: Sequence[Item]) -> str:
            there = {item.id for item in shown}
            return common.within(self, [_line(each) for each in best if each.item not in there], budget)

        return Recall(unseen)

    async def on_complete(self) -> None:
        """Makes an episode of the execution that is over, when the user has asked something in it."""
        ctx = self.ctx
        asked, outcome, item = _of_conversation(ctx.items)
        if ctx.aborted:
            outcome = f"aborted: {ctx.abort_reason}"
        if asked:
            # By the execution's id, so that one that went on after a crash is one episode.
            self._add(ctx.id, asked, outcome or "no answer", item)

    def merge(
        self, base: dict[str, Episode], mine: dict[str, Episode], theirs: dict[str, Episode]
    ) -> dict[str, Episode]:
        """The newest episodes of both."""
        return self._newest(common.latest(base, mine, theirs))

    async def on_return(self, child: Returned[dict[str, Episode]]) -> None:
        """The child's episodes, where `children` says so."""
        if self.children == "merge":
            self.state = self._newest(common.merged(self._kept, child, child.state))

    def _add(self, source: str, asked: str, outcome: str, item: str = "") -> None:
        key = sha256(source.encode(errors="replace")).hexdigest()[:32]
        now = (self.clock or self.runtime).now().astimezone(UTC)
        said, came = (common.one_line(text, self.max_characters) for text in (asked, outcome))
        made = Episode(said, came, now, common.conversation_of(self), item)
        self.state = self._newest({**self._kept, key: made})

    def _newest(self, episodes: Mapping[str, Episode]) -> dict[str, Episode]:
        if len(episodes) <= self.max_episodes:
            return dict(episodes)
        kept = set(_newest_first(episodes)[: self.max_episodes])
        return {key: episode for key, episode in episodes.items() if key in kept}


def _newest_first(episodes: Mapping[str, Episode]) -> list[str]:
    # Of one moment: by key backwards, so that equal states are equal bytes.
    return [key for _, key in sorted([(each.at, key) for key, each in episodes.items()], reverse=True)]


@cached(4_096)
def _words_of(asked: str, outcome: str) -> frozenset[str]:
    """The words of an episode, which are found once, and not at each recall; texts know their hash."""
    return _words(asked) | _words(outcome)


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(text.casefold()) if len(word) >= _SHORT)


def _line(episode: Episode) -> str:
    when = f"{episode.at:%Y-%m-%d}{f', {common.plain(episode.origin)}' if episode.origin else ''}"
    return f"{when}: asked: {common.plain(episode.asked)} | outcome: {common.plain(episode.outcome)}"


def _of_conversation(items: Sequence[Item]) -> tuple[str, str, str]:
    """The newest thing that the user said, the model's newest words after that, and the id of the first."""
    outcome = ""
    for item in reversed(items):
        if isinstance(item, Message) and item.text.strip():
            if item.role == "user":
                return item.text, outcome, item.id
            if item.role == "assistant" and not outcome:
                outcome = item.text
    return "", outcome, ""
