"""`PgVectorStore`: passages with their vectors in a PostgreSQL database, which ranks them itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from anyio.lowlevel import checkpoint

from noetic_postgres import passages
from noetic_postgres.address import Address, address_of
from noetic_postgres.link import Link
from noetic_postgres.passages import VectorLink, checked_vectors, place_of
from noetic_postgres.reconnect import Reconnector, Server
from noetic_postgres.statements import statements_of
from noetic_py import Secret
from noetic_py.checkpoints.server import ServerWorker
from noetic_py.checkpoints.threads import Job, WorkerPool
from noetic_py.memory import Found, Owner, VectorQuery

__all__ = ["PgVectorStore"]

T = TypeVar("T")


class PgVectorStore:
    """Keeps the passages of [`SemanticRecall`][noetic_py.memory.SemanticRecall] in PostgreSQL with pgvector.

        store = PgVectorStore("postgresql://ada@127.0.0.1/agents")

        class Mem(Memory):
            past: SemanticRecall = SemanticRecall(scope=Scope.USER, vectors=store)

    What is found is the same as without it, and found by the server: nothing but the passages that are recalled
    travels. Scope, owner and layer are columns, and every statement names all three. The search is exact: it looks at
    all passages of the one owner, of which there are no more than the layer's `limit`. For an owner with more than some
    ten thousand, [`build_index`][noetic_postgres.PgVectorStore.build_index] makes it quick and approximate.

    The server is reached when it is first needed, on any event loop; `async with` reaches it at once. Connections that
    are lost are made anew, as with [`PostgresBackend`][noetic_postgres.PostgresBackend], and so is what went wrong
    told: `StoreUnavailable` with a reason. The table is made when it is not there.

    Args:
        address: As of `PostgresBackend`; it may be the same one.
        schema: The schema that everything is in; `"noetic"` when left out.
        connections: How many connections there may be at once; 4 when left out.
        timeout: How many seconds an operation may take, with everything that is tried again; 30 when left out.

    Raises:
        ConfigError: The address or a setting is wrong; codes `"postgres-address"` and `"postgres-setting"`.
    """

    def __init__(
        self,
        address: str | Secret[str],
        *,
        schema: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self._address = address_of(address, schema=schema, connections=connections, timeout=timeout)
        server = Server(self._address.where, self._address.timeout, partial(_connected, self._address))
        timeout_seconds = self._address.timeout

        def worker() -> ServerWorker[Link, VectorLink]:
            return ServerWorker(Reconnector(server), _own, timeout=timeout_seconds)

        self._pool = WorkerPool[VectorLink](
            worker,
            size=self._address.connections,
            name="noetic-postgres",
            where=self._address.where,
            ended=server.timeouts.close,
        )
        weakref.finalize(self, self._pool.abandon)

    def __repr__(self) -> str:
        return f"PgVectorStore({self._address.where!r})"

    async def close(self) -> None:
        """Finish what was begun and close the connections; a second time is not an error."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        await self._pool.run(Job(_nothing, write=False))
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self.close()

    async def missing(self, owner: Owner, embedder: str, texts: Sequence[str], /) -> Sequence[str]:
        """The texts that are not there yet, each once, in their order.

        Raises:
            StoreUnavailable: The server cannot be used.
            InvalidId: The owner or the embedder's name is not an id.
        """
        wanted = {place_of(owner, embedder, text): text for text in texts}
        if not wanted:
            await checkpoint()
            return []
        there = await self._run(partial(passages.there, owner=owner, places=list(wanted)), write=False)
        return [text for place, text in wanted.items() if place not in there]

    async def add(
        self, owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]], /, *, limit: int
    ) -> int:
        """Keep passages with their vectors of length 1, in one transaction; one that is there already stays as it is.

        Args:
            owner: Their owner.
            embedder: What made the vectors.
            given: The passages, in their order.
            limit: How many the owner may have; the oldest go.

        Returns:
            How many are new.

        Raises:
            ConfigError: The vectors do not have the number of dimensions that the owner's others of this embedder
                have, or cannot be stored; code `"vector-dimensions"`.
            StoreUnavailable: The server cannot be used.
            InvalidId: The owner or the embedder's name is not an id.
        """
        rows = checked_vectors(owner, embedder, given[-limit:] if limit > 0 else [])
        if not rows:
            await checkpoint()
            return 0
        return await self._run(
            partial(passages.add, owner=owner, embedder=embedder, rows=rows, limit=limit), write=True
        )

    async def nearest(self, owner: Owner, embedder: str, query: VectorQuery, /) -> Sequence[Found]:
        """The passages nearest to a query, the nearest first; of equal ones the oldest.

        Raises:
            ConfigError: The query's vector does not have the number of dimensions that the owner's others of this
                embedder have; code `"vector-dimensions"`.
            StoreUnavailable: The server cannot be used.
            InvalidId: The owner or the embedder's name is not an id.
            CorruptRecord: The stored value is not what was written.
        """
        return await self._run(partial(passages.nearest, owner=owner, embedder=embedder, query=query), write=False)

    async def forget(self, owner: Owner, where: Mapping[str, str] | None = None, /) -> int:
        """Remove the passages of an owner, or those with these metadata; returns how many that were.

        Raises:
            StoreUnavailable: The server cannot be used.
            InvalidId: The owner is not valid.
        """
        return await self._run(partial(passages.forget, owner=owner, where=where), write=True)

    async def scrub(self) -> Sequence[str]:
        """Where the server may still have what was removed: its files are not touched."""
        await checkpoint()
        return self._address.left_behind

    async def others(self, owner: Owner, embedder: str, /, *, limit: int) -> Sequence[Found]:
        """Passages with a vector of another embedder, which `nearest` does not find; the oldest first.

        Raises:
            StoreUnavailable: The server cannot be used.
            InvalidId: The owner or the embedder's name is not an id.
            CorruptRecord: The stored value is not what was written.
        """
        return await self._run(partial(passages.others, owner=owner, embedder=embedder, limit=limit), write=False)

    async def replace(self, owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]], /) -> int:
        """Give passages of `others` vectors of this embedder, in one transaction; they keep their numbers.

        Raises:
            ConfigError: The vectors do not have the number of dimensions that the owner's others of this embedder
                have, or cannot be stored; code `"vector-dimensions"`.
            StoreUnavailable: The server cannot be used.
            InvalidId: The owner or the embedder's name is not an id.
        """
        rows, numbers = checked_vectors(owner, embedder, given), [passage.number for passage, _ in given]
        if not rows:
            await checkpoint()
            return 0
        work = partial(passages.replace, owner=owner, embedder=embedder, rows=rows, numbers=numbers)
        return await self._run(work, write=True)

    async def build_index(self, owner: Owner, embedder: str) -> int:
        """Make indexes for the passages of one owner with many of them: HNSW for vectors, GIN for words.

        From then on a search without filters looks at the nearest by the index of vectors and at those with rare words
        of the query, so it is quick and may miss passages. Writes of all owners wait while the indexes are made.

        Args:
            owner: The owner of the passages.
            embedder: The name of what made the vectors.

        Returns:
            How many passages were there.

        Raises:
            ConfigError: The vectors have more than 2,000 dimensions; code `"vector-dimensions"`.
            StoreUnavailable: The server cannot be used, or `timeout` was too short; then nothing was made.
            InvalidId: The owner or the embedder's name is not an id.
        """
        return await self._run(partial(passages.build_index, owner=owner, embedder=embedder), write=True)

    async def _run(self, work: Callable[[VectorLink], T], *, write: bool) -> T:
        return await self._pool.run(Job(work, write=write))


def _connected(address: Address, seconds: float) -> Link:
    return VectorLink(address, statements_of(address.schema), _nothing, seconds=seconds)


def _own(link: Link) -> VectorLink:
    if not isinstance(link, VectorLink):
        raise TypeError("a link of another store")
    return link


def _nothing(what: object) -> None:
    """Reach the server, and do nothing."""
