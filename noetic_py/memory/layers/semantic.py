"""`SemanticRecall`: what was said about the same thing, however long ago."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from anyio.lowlevel import checkpoint
from attrs import define, evolve, field, frozen

from noetic_py.core.caches import Cache
from noetic_py.core.items import Item, Message
from noetic_py.errors import ConfigError, LayerError, MissingExtra, NoeticError
from noetic_py.memory.binding import Alone, Draft
from noetic_py.memory.functions import function
from noetic_py.memory.layer import HookName, MemoryLayer, Recall, Returned
from noetic_py.memory.layers.common import COUNTER, at_least, readable_name, unseen, wrong
from noetic_py.memory.layers.vectors import (
    Embedder,
    Found,
    Reranker,
    VectorQuery,
    VectorStore,
    WordEmbedder,
    split,
)
from noetic_py.memory.scopes import LayerStorage, Owner, Slot
from noetic_py.models.model import ModelResponse

if TYPE_CHECKING:
    from noetic_py.memory.layers.passages import LocalShelf, Passages, Shelf
    from noetic_py.memory.layers.ranking import Vectors

T = TypeVar("T")

_ROLES: Final = ("user", "assistant")
_MOST_QUERIES: Final = 32
_MOST_FOUND: Final = 50
_MOST_WARNED: Final = 1_000
_BATCH: Final = 256
_SOME: Final = 4
# Passages of the conversation that are left out at most, because the request shows them.
_MOST_SHOWN: Final = 80


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


@define(eq=False)
class _Shared:
    """What all handles of a layer share; NumPy is needed from the first text on."""

    limit: int
    queries: Cache[str, Sequence[float]] = field(factory=lambda: Cache[str, Sequence[float]](_MOST_QUERIES))
    warned: Cache[tuple[str, str], bool] = field(factory=lambda: Cache[tuple[str, str], bool](_MOST_WARNED))
    _passages: Passages | None = None
    _local: LocalShelf | None = None

    def passages(self) -> Passages:
        """The passages that are ranked in this process.

        Raises:
            MissingExtra: NumPy is not installed.
        """
        if self._passages is None:
            try:
                from noetic_py.memory.layers.passages import Passages
            except ModuleNotFoundError as error:
                raise _without_numpy() from error
            self._passages = Passages(self.limit)
        return self._passages

    def local(self) -> LocalShelf:
        """Where a layer in no run keeps them."""
        if self._local is None:
            from noetic_py.memory.layers.passages import LocalShelf

            self._local = LocalShelf()
        return self._local


def _without_numpy() -> MissingExtra:
    return MissingExtra(
        "the package numpy, which SemanticRecall ranks with,", install='pip install "noetic-py[embeddings]"'
    )


class SemanticRecall(MemoryLayer[Remembered]):
    """Passages of the conversation, of which those nearest to the newest input are recalled.

        class Mem(Memory):
            past: SemanticRecall = SemanticRecall(scope=Scope.USER)

    Behind each answer the new messages of the user and the assistant are cut into passages, turned into vectors and
    stored with their date; a text that is there is not stored again. When the embedder or the store of vectors fails,
    an event says so, and the conversation goes on without; what could not be stored is tried again behind the next
    answer.

    Used by itself, in no run, it keeps its passages in memory: `remember` and `search` do the same there.

    Messages that the request shows are not recalled; those that it leaves out are, such as those before a
    `HistoryWindow`.

    Passages are in `storage` and not in the journal: a fork finds those that were stored after its point too, which a
    `LayerWarned` event says, and what a failed attempt has remembered stays.

    Passages with vectors of another embedder cannot be compared with a query, so they are not found. While there are
    such passages, each run says so with a `LayerWarned` event and a log record; `reindex` gives them new vectors.

    Attributes:
        embedder: What turns texts into vectors; needs the extra `embeddings` when left out.
        limit: Passages that are kept; the oldest go first.
        top: Passages that are recalled at most.
        least: How near a passage has to be; what the figures mean depends on the embedder. The same direction is 1,
            and `words` is added for the same words.
        words: How much it counts when a passage has all words of the query; 0 to go by the vectors alone.
        length: Characters of a passage; a longer message is cut at its paragraphs and sentences.
        vectors: A database that keeps the passages and searches them itself; without one they are in the layer's part
            of the harness's backend, and are read and ranked in this process.
        rerank: What puts the nearest passages in a better order: it scores four times as many as are asked for.

    Raises:
        ConfigError: A setting is wrong; code `"semantic-settings"`.
    """

    heading: ClassVar[str] = "From earlier conversation:"
    """The line above what is recalled."""

    slot: int = Slot.HISTORY
    timeouts: Mapping[HookName, float] = {"recall": 15.0, "store": 60.0}
    embedder: Embedder = WordEmbedder()
    limit: int = 2_000
    top: int = 5
    least: float = 0.15
    words: float = 0.4
    length: int = 500
    vectors: VectorStore | None = None
    rerank: Reranker | None = None

    def __attrs_post_init__(self) -> None:
        code = "semantic-settings"
        at_least(self, code, 1, limit=self.limit, top=self.top)
        at_least(self, code, 50, length=self.length)
        at_least(self, code, 0, words=self.words)
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
        if self.rerank is not None and not isinstance(self.rerank, Reranker):
            raise wrong(
                self,
                f"rerank={self.rerank!r} is not a valid reranker; expected a Reranker",
                code,
                "an object with async rerank(query, found), or leave it out",
            )
        self.__dict__["_shared"] = _Shared(self.limit)

    @property
    def _is_alone(self) -> bool:
        binding = self.binding
        return isinstance(binding.below if isinstance(binding, Draft) else binding, Alone)

    @property
    def _shelf(self) -> Shelf:
        return self._common.local() if self._is_alone else self.storage

    @property
    def _database(self) -> VectorStore | None:
        """Where the passages are when they are not on the shelf; outside of a run they have no owner."""
        return None if self._is_alone else self.vectors

    @property
    def _kept(self) -> Passages:
        return self._common.passages()

    @property
    def _common(self) -> _Shared:
        shared: _Shared = self.__dict__["_shared"]
        return shared

    @function(model=False)
    async def remember(
        self,
        text: str,
        role: str = "note",
        origin: str = "",
        said: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Keep a text of one's own, cut into passages.

        Args:
            text: The text.
            role: Its author.
            origin: Where it is from; what is found says so.
            said: When it was said or written; now when left out.
            metadata: Names and texts that a search can ask for.

        Returns:
            How many passages are new.

        Raises:
            LayerError: The embedder has failed, or the store of `vectors=`.
            MissingExtra: The extra `embeddings` is not installed.
        """
        when = self.runtime.now() if said is None else _aware(said)
        about = dict(metadata or {})
        passages = split(text, self.length)
        return await self._store([Found(each, role, origin=origin, said=when, metadata=about) for each in passages])

    async def replace(self, where: Mapping[str, str], passages: Sequence[Found]) -> int:
        """Put passages in the place of those with these metadata, such as those of a document that has changed.

        The passages are kept as they are and not cut. Their vectors are made first: when the embedder fails, what was
        there stays.

        Args:
            where: Which passages go; the new ones get these metadata too.
            passages: What is kept instead; none to only remove.

        Returns:
            How many passages are new; a text that is there with other metadata stays as it is.

        Raises:
            ConfigError: `where` is empty, or there are more passages than `limit`; code `"semantic-replace"`.
            LayerError: The embedder has failed, or the store of `vectors=`.
            MissingExtra: The extra `embeddings` is not installed.
        """
        if not where or len(passages) > self.limit:
            what = f"{len(passages)} passages" if where else f"where={where!r}"
            raise ConfigError(
                f"{what} is not valid for replace(); expected metadata, and at most {self.limit} passages",
                code="semantic-replace",
                hint='replace({"document": "guide.pdf"}, passages), or a larger SemanticRecall(limit=...)',
            )
        first: dict[str, Found] = {}
        for each in passages:
            first.setdefault(each.text, evolve(each, metadata={**each.metadata, **where}))
        given = list(first.values())
        vectors = await self._vectors([each.text for each in given])
        await self._forget(where)
        return await self._add(given, vectors) if given else 0

    @function
    async def search(
        self,
        query: str,
        limit: int = 5,
        since: datetime | None = None,
        until: datetime | None = None,
        where: Mapping[str, str] | None = None,
    ) -> Sequence[Found]:
        """Search what was said earlier for passages about something.

        Args:
            query: What to look for, in a few words or a sentence.
            limit: How many passages at most, 50 at the most.
            since: Only what was said at this time or later.
            until: Only what was said before this time.
            where: Only what has these metadata.

        Raises:
            LayerError: The embedder has failed, or the store of `vectors=`.
            MissingExtra: The extra `embeddings` is not installed.
        """
        await self._warn_of_others()
        limit = min(max(limit, 1), _MOST_FOUND)
        found = await self._search(query, limit, _aware(since), _aware(until), where or {})
        return [evolve(each, thread=readable_name(each.thread)) for each in found[:limit]]

    @function(model=False)
    async def reindex(self) -> int:
        """Give all passages of the layer's scope vectors of the layer's embedder, after it was changed.

        Passages keep their order, dates and metadata. A text that has such a vector already is kept once.

        Returns:
            How many passages have a new vector.

        Raises:
            LayerError: The embedder has failed, or the store of `vectors=`.
            MissingExtra: The extra `embeddings` is not installed.
        """
        if self._database is None:
            return await self._kept.replace(self._shelf, self.embedder.name, self._vectors)
        return await self.reindex_owner(self.storage)

    async def reindex_owner(self, storage: LayerStorage) -> int:
        """Give all passages of an owner vectors of the layer's embedder.

        Raises:
            LayerError: The embedder has failed, or the store of `vectors=`.
        """
        database, name, owner, changed = self.vectors, self.embedder.name, storage.owner, 0
        if database is None:
            return await self._kept.replace(storage, name, self._vectors)
        while others := await self._answered(database.others(owner, name, limit=_BATCH)):
            vectors = (await self._vectors([each.text for each in others])).tolist()
            changed += await self._answered(database.replace(owner, name, list(zip(others, vectors, strict=True))))
        return changed

    @function(model=False)
    async def forget(self, where: Mapping[str, str] | None = None) -> int:
        """Remove all that is kept for the layer's scope: of this thread, this user, all users or this execution.

        What was said before is not stored again; what is said from now on is.

        Args:
            where: Only what has these metadata.

        Returns:
            How many passages that were.

        Raises:
            LayerError: The store of `vectors=` has failed.
            StoreUnavailable: The harness's backend does not answer.
        """
        return await self._forget(where)

    async def erase_owner(self, owner: Owner) -> int:
        """Remove what an owner has in the database of `vectors=`; the rest is in the harness's store.

        Raises:
            LayerError: The database has failed.
        """
        return 0 if self.vectors is None else await self._answered(self.vectors.forget(owner))

    async def scrub(self) -> Sequence[str]:
        """Where the database of `vectors=` may still have what was removed.

        Raises:
            LayerError: The database has failed.
        """
        return () if self.vectors is None else await self._answered(self.vectors.scrub())

    async def recall(self, query: str, budget: int) -> Recall | None:
        """The nearest passages that the budget has room for, as they were said one after the other.

        Those of messages that the request shows are left out.
        """
        if not query.strip():
            return None
        await self._warn_of_others()
        # Besides those that are recalled, as many as the request may show; a reranker reads each, so it gets fewer.
        most = self.top + min(_SOME * len(self.ctx.items), _MOST_SHOWN)
        found = await self._search(query, most if self.rerank is None else min(most, _SOME * self.top))
        thread = self.ctx.thread_id

        def unseen(shown: Sequence[Item]) -> str:
            chosen = self._fitting(found, {item.id for item in shown}, thread, budget)
            return "\n".join([self.heading, *(line for _, line in sorted(chosen))]) if chosen else ""

        return Recall(unseen)

    def _fitting(
        self, found: Sequence[Found], without: Collection[str], thread: str, budget: int
    ) -> Sequence[tuple[int, str]]:
        """The lines of the nearest that the budget has room for, with their numbers; without those of some items."""
        left = budget - COUNTER.count_text(self.heading + "\n").value
        chosen: list[tuple[int, str]] = []
        for passage in found:
            if len(chosen) == self.top:
                break
            if passage.item not in without:
                line = self._line(passage, thread)
                takes = COUNTER.count_text(line + "\n").value
                if takes <= left:
                    left -= takes
                    chosen.append((passage.number, line))
        return chosen

    def _line(self, passage: Found, here: str) -> str:
        return f"[{_about(passage, here)}] {passage.text}"

    async def store(self, response: ModelResponse) -> None:
        """Keep what was said since the last time."""
        fresh = unseen(self.ctx.items, self.state.last)
        if not fresh:
            return
        thread, session, now = self.ctx.thread_id, self.ctx.session, self.runtime.now()
        origin = session.session if session is not None else ""
        said = [item for item in fresh if isinstance(item, Message) and item.role in _ROLES]
        passages = [
            Found(text, item.role, thread, item.id, origin, now)
            for item in said
            for text in split(item.text, self.length)
        ]
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
        first = {each.text: each for each in reversed(passages)}
        chosen = [first[text] for text in wanted]
        return await self._add(chosen, await self._vectors([each.text for each in chosen]))

    async def _forget(self, where: Mapping[str, str] | None) -> int:
        database = self._database
        if database is not None:
            return await self._answered(database.forget(self.storage.owner, where))
        return await (self._kept.forget_where(self._shelf, where) if where else self._kept.forget(self._shelf))

    async def _add(self, passages: Sequence[Found], vectors: Vectors) -> int:
        database, name = self._database, self.embedder.name
        if database is None:
            return await self._kept.add(self._shelf, name, passages, vectors)
        given = list(zip(passages, vectors.tolist(), strict=True))
        return await self._answered(database.add(self.storage.owner, name, given, limit=self.limit))

    async def _search(
        self,
        query: str,
        limit: int,
        since: datetime | None = None,
        until: datetime | None = None,
        where: Mapping[str, str] = MappingProxyType({}),
    ) -> Sequence[Found]:
        known = self._common.queries
        vector = known.get(query)
        if vector is None:
            # A round of tool calls asks the same once more.
            [vector] = (await self._vectors([query])).tolist()
            known.put(query, vector)
        wider = limit if self.rerank is None else 4 * limit
        wanted = VectorQuery(query, vector, wider, self.least, self.words, since, until, where)
        database = self._database
        if database is None:
            found: Sequence[Found] = await self._kept.nearest(self._shelf, self.embedder.name, wanted)
        else:
            found = await self._answered(database.nearest(self.storage.owner, self.embedder.name, wanted))
        return await self._reranked(query, found)

    async def _reranked(self, query: str, found: Sequence[Found]) -> Sequence[Found]:
        if self.rerank is None or len(found) < 2:
            return found
        try:
            scores = list(map(float, await self.rerank.rerank(query, found)))
        except NoeticError:
            raise
        except Exception as error:
            raise self._failed(f"the reranker failed: {type(error).__name__}: {error}") from error
        if len(scores) != len(found) or not all(map(math.isfinite, scores)):
            raise self._failed(f"the reranker did not give a number for each of {len(found)} passages")
        return [found[place] for place in sorted(range(len(found)), key=lambda place: -scores[place])]

    async def _warn_of_others(self) -> None:
        """Report passages that cannot be found because another embedder has made their vectors; once for each run."""
        database, name = self._database, self.embedder.name
        if database is None:
            others = await self._kept.others(self._shelf, name)
        else:
            others = {"another": 1} if await self._answered(database.others(self.storage.owner, name, limit=1)) else {}
        key = ("" if self._is_alone else self.ctx.run_id, name)
        if others and key not in self._common.warned:
            self._common.warned.put(key, True)
            what = ", ".join(f"{count} of {other!r}" for other, count in others.items())
            self.warn(f"passages with vectors of another embedder than {name!r} are not found: {what}; call reindex()")

    async def _vectors(self, texts: Sequence[str]) -> Vectors:
        """The vectors of texts, of length 1.

        Raises:
            LayerError: The embedder has failed, or gave something else.
            MissingExtra: NumPy is not installed.
        """
        try:
            import numpy as np
        except ModuleNotFoundError as error:
            raise _without_numpy() from error
        made: Vectors = np.empty((len(texts), self.embedder.dimensions), np.float32)
        for begin in range(0, len(texts), _BATCH):
            await checkpoint()
            part = texts[begin : begin + _BATCH]
            rows = np.array(await self._embedded(part), np.float64)
            if not np.isfinite(rows).all():
                raise self._failed(f"embedder {self.embedder.name!r} gave a number that is not finite")
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            # One without a direction stays without, and is near to nothing.
            made[begin : begin + len(part)] = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
        return made

    async def _embedded(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        name = self.embedder.name
        try:
            given = await self.embedder.embed(texts)
        except NoeticError:
            raise
        except Exception as error:
            raise self._failed(f"embedder {name!r} failed: {type(error).__name__}: {error}") from error
        if len(given) != len(texts) or any(len(each) != self.embedder.dimensions for each in given):
            raise self._failed(f"embedder {name!r} did not give {self.embedder.dimensions} numbers for each text")
        return given

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


def _about(passage: Found, here: str) -> str:
    """Author, date and origin; the origin says something only of what is from elsewhere."""
    origin = "" if passage.thread == here else readable_name(passage.origin or passage.thread)
    date = passage.said.date().isoformat() if passage.said is not None else ""
    return ", ".join(part for part in (passage.role, date, origin) if part)


def _aware(moment: datetime | None) -> datetime | None:
    """A time with its zone; one without a zone is in UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
