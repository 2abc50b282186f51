"""`SemanticRecall`: what was said about the same thing, however long ago."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from attrs import frozen

from noetic_py.core.items import Item, Message
from noetic_py.errors import ConfigError, LayerError, NoeticError
from noetic_py.memory.binding import Alone, Draft
from noetic_py.memory.functions import function
from noetic_py.memory.layer import HookName, MemoryLayer, Returned
from noetic_py.memory.layers.common import COUNTER, at_least, unseen, wrong
from noetic_py.memory.layers.vectors import (
    Embedder,
    Found,
    LocalShelf,
    Passages,
    Shelf,
    VectorQuery,
    VectorStore,
    WordEmbedder,
    split,
    unit,
)
from noetic_py.memory.scopes import Slot
from noetic_py.models.model import ModelResponse

T = TypeVar("T")

_ROLES: Final = ("user", "assistant")
_MOST_QUERIES: Final = 32
_HEAD: Final = "From earlier conversation:"


@frozen
class Remembered:
    """The state of [`SemanticRecall`][noetic_py.memory.SemanticRecall]; the passages are in its storage.

    Attributes:
        last: The id of the last item that was looked at.
        passages: How many passages there were in its storage when it had stored last; with `vectors=`, how many were
            new so far.
    """

    last: str = ""
    passages: int = 0


class SemanticRecall(MemoryLayer[Remembered]):
    """Passages of the conversation, of which those nearest to the newest input are recalled.

        class Mem(Memory):
            past: SemanticRecall = SemanticRecall(scope=Scope.USER)

    Behind each answer the new messages of the user and the assistant are cut into passages, turned into vectors and
    stored; a text that is there is not stored again. When the embedder or the store of vectors fails, an event says so,
    and the conversation goes on without; what could not be stored is tried again behind the next answer.

    Used by itself, in no run, it keeps its passages in memory: `remember` and `search` do the same there.

    Attributes:
        embedder: What turns texts into vectors; needs the extra `embeddings` when left out.
        limit: Passages that are kept; the oldest go first.
        top: Passages that are recalled at most.
        least: How near a passage has to be; what the figures mean depends on the embedder. The same direction is 1,
            and `words` is added for the same words.
        words: How much it counts when a passage has all words of the query; 0 to go by the vectors alone.
        length: Characters of a passage; a longer message is cut at its paragraphs and sentences.
        skip_newest: Passages of so many newest items of the conversation are not recalled: the model sees them anyway.
        vectors: A database that keeps the passages and searches them itself; without one they are in the layer's part
            of the harness's backend, and are read and ranked in this process.

    Raises:
        ConfigError: A setting is wrong; code `"semantic-settings"`.
    """

    slot: int = Slot.HISTORY
    timeouts: Mapping[HookName, float] = {"recall": 15.0, "store": 60.0}
    embedder: Embedder = WordEmbedder()
    limit: int = 2_000
    top: int = 5
    least: float = 0.15
    words: float = 0.4
    length: int = 500
    skip_newest: int = 40
    vectors: VectorStore | None = None

    def __attrs_post_init__(self) -> None:
        code = "semantic-settings"
        at_least(self, code, 1, limit=self.limit, top=self.top)
        at_least(self, code, 50, length=self.length)
        at_least(self, code, 0, skip_newest=self.skip_newest, words=self.words)
        at_least(self, code, -1, least=self.least)
        if not isinstance(self.embedder, Embedder):
            raise wrong(
                self,
                f"embedder={self.embedder!r} is not a valid embedder; expected name, dimensions and embed",
                code,
                "an object with name, dimensions and embed",
            )
        if self.vectors is not None and not isinstance(self.vectors, VectorStore):
            raise wrong(
                self,
                f"vectors={self.vectors!r} is not a valid store; expected a VectorStore",
                code,
                "a VectorStore, or leave it out",
            )
        # Shared by all handles of the layer.
        self.__dict__["_passages"] = Passages(self.limit)
        self.__dict__["_local"] = LocalShelf()
        self.__dict__["_queries"] = OrderedDict[str, list[float]]()

    @property
    def _is_alone(self) -> bool:
        binding = self.binding
        return isinstance(binding.below if isinstance(binding, Draft) else binding, Alone)

    @property
    def _shelf(self) -> Shelf:
        local: LocalShelf = self.__dict__["_local"]
        return local if self._is_alone else self.storage

    @property
    def _database(self) -> VectorStore | None:
        """Where the passages are when they are not on the shelf; outside of a run they have no owner."""
        return None if self._is_alone else self.vectors

    @property
    def _kept(self) -> Passages:
        kept: Passages = self.__dict__["_passages"]
        return kept

    @function(model=False)
    async def remember(self, text: str, role: str = "note", origin: str = "") -> int:
        """Keep a text of one's own, cut into passages.

        Args:
            text: The text.
            role: Its author.
            origin: Where it is from; what is found says so.

        Returns:
            How many passages are new.

        Raises:
            LayerError: The embedder has failed, or the store of `vectors=`.
            MissingExtra: The extra `embeddings` is not installed.
        """
        return await self._store([Found(each, role, origin) for each in split(text, self.length)])

    @function
    async def search(self, query: str, limit: int = 5) -> Sequence[Found]:
        """Search what was said earlier for passages about something.

        Args:
            query: What to look for, in a few words or a sentence.
            limit: How many passages at most, 50 at the most.

        Raises:
            LayerError: The embedder has failed, or the store of `vectors=`.
            MissingExtra: The extra `embeddings` is not installed.
        """
        return await self._search(query, min(max(limit, 1), 50))

    @function(model=False)
    async def forget(self) -> int:
        """Remove all that is kept for the layer's scope: of this thread, this user, all users or this execution.

        What was said before is not stored again; what is said from now on is.

        Returns:
            How many passages that were.

        Raises:
            LayerError: The store of `vectors=` has failed.
            StoreUnavailable: The harness's backend does not answer.
        """
        database = self._database
        if database is None:
            return await self._kept.forget(self._shelf)
        return await self._answered(database.forget(self.storage.owner))

    async def recall(self, query: str, budget: int) -> str:
        """The nearest passages that the budget has room for, as they were said one after the other."""
        if not query.strip():
            return ""
        here = self.ctx.thread_id
        newest = {item.id for item in _last(self.ctx.items, self.skip_newest)}
        found = await self._search(query, self.top + 4 * len(newest))
        left = budget - COUNTER.count_text(_HEAD + "\n").value
        chosen: list[tuple[int, str]] = []
        for passage in found:
            if passage.item in newest or len(chosen) == self.top:
                continue
            # Where it is from says something only of what is from elsewhere.
            origin = "" if passage.thread == here else passage.thread
            line = f"[{', '.join(part for part in (passage.role, origin) if part)}] {passage.text}"
            takes = COUNTER.count_text(line + "\n").value
            if takes <= left:
                left -= takes
                chosen.append((passage.number, line))
        return "\n".join([_HEAD, *(line for _, line in sorted(chosen))]) if chosen else ""

    async def store(self, response: ModelResponse) -> None:
        """Keep what was said since the last time."""
        fresh = unseen(self.ctx.items, self.state.last)
        if not fresh:
            return
        thread = self.ctx.thread_id
        said = [item for item in fresh if isinstance(item, Message) and item.role in _ROLES]
        passages = [Found(text, item.role, thread, item.id) for item in said for text in split(item.text, self.length)]
        new = await self._store(passages)
        # Counted on the shelf: what a process had stored before it died is not new to the next one.
        there = await self._kept.count(self._shelf) if self._database is None else self.state.passages + new
        self.state = Remembered(fresh[-1].id, there)

    def merge(self, base: Remembered, mine: Remembered, theirs: Remembered) -> Remembered:
        """The later of the two; the passages themselves are in the storage, where nothing of them was lost."""
        return Remembered(mine.last, max(mine.passages, theirs.passages))

    async def on_return(self, child: Returned[Remembered]) -> None:
        """How far a child's conversation was stored says nothing of another one."""

    async def _store(self, passages: Sequence[Found]) -> int:
        passages = passages[-self.limit :]
        database, name, texts = self._database, self.embedder.name, [each.text for each in passages]
        if database is None:
            wanted: Sequence[str] = await self._kept.missing(self._shelf, name, texts)
        else:
            wanted = await self._answered(database.missing(self.storage.owner, name, texts))
        if not wanted:
            return 0
        vectors = dict(zip(wanted, await self._vectors(wanted), strict=True))
        given = [(each, vectors[each.text]) for each in passages if each.text in vectors]
        if database is None:
            return await self._kept.add(self._shelf, name, given)
        return await self._answered(database.add(self.storage.owner, name, given, limit=self.limit))

    async def _search(self, query: str, limit: int) -> Sequence[Found]:
        known: OrderedDict[str, list[float]] = self.__dict__["_queries"]
        vector = known.get(query)
        if vector is None:
            # A round of tool calls asks the same once more.
            [vector] = await self._vectors([query])
            known[query] = vector
            while len(known) > _MOST_QUERIES:
                known.popitem(last=False)
        wanted = VectorQuery(query, vector, limit, self.least, self.words)
        database = self._database
        if database is None:
            return await self._kept.nearest(self._shelf, self.embedder.name, wanted)
        return await self._answered(database.nearest(self.storage.owner, self.embedder.name, wanted))

    async def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts, of length 1.

        Raises:
            LayerError: The embedder has failed, or gave something else.
        """
        name = self.embedder.name
        try:
            given = await self.embedder.embed(texts)
        except NoeticError:
            raise
        except Exception as error:
            raise self._failed(f"embedder {name!r} failed: {type(error).__name__}: {error}") from error
        if len(given) != len(texts) or any(len(each) != self.embedder.dimensions for each in given):
            raise self._failed(f"embedder {name!r} did not give {self.embedder.dimensions} numbers for each text")
        if not all(math.isfinite(value) for each in given for value in each):
            raise self._failed(f"embedder {name!r} gave a number that is not finite")
        return [unit(each) for each in given]

    async def _answered(self, answer: Awaitable[T]) -> T:
        """The results of the database of `vectors=`.

        Raises:
            ConfigError: It cannot be used so.
            LayerError: It has failed. That does not end a run, unlike a failure of the store that keeps the run.
        """
        try:
            return await answer
        except ConfigError:
            raise
        except Exception as error:
            what = error.message if isinstance(error, NoeticError) else f"{type(error).__name__}: {error}"
            hint = error.hint if isinstance(error, NoeticError) else None
            raise self._failed(f"the store of vectors failed: {what}", hint) from error

    def _failed(self, what: str, hint: str | None = None) -> LayerError:
        return LayerError(what, layer=self.id or type(self).__name__, hint=hint)


def _last(items: Sequence[Item], count: int) -> Iterable[Item]:
    for place, item in enumerate(reversed(items)):
        if place >= count:
            return
        yield item
