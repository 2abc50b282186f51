"""How long storing and searching passages takes: in memory, in SQLite, and in PostgreSQL with pgvector.

    python -m benchmarks.recall_search memory|sqlite|URL [PASSAGES]

The passages are random words with random vectors, the hardest case for every index. URL is a PostgreSQL address.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
import numpy as np
from anyio import to_thread

from noetic_py import Context, Harness, Memory, step
from noetic_py.checkpoints import SqliteBackend
from noetic_py.memory import Owner, Scope, SemanticRecall, VectorStore

DIMENSIONS: Final = 256
SEARCHES: Final = 50
BATCH: Final = 5_000
WORDS: Final = tuple(sha256(str(number).encode()).hexdigest()[:6] for number in range(5_000))


class RandomEmbedder:
    """A vector for each text that has nothing to do with it."""

    name = "random"
    dimensions = DIMENSIONS

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """The vectors."""
        return await to_thread.run_sync(self._vectors, texts)

    def _vectors(self, texts: Sequence[str]) -> Any:
        seeds = [int.from_bytes(sha256(text.encode()).digest()[:8]) for text in texts]
        return np.stack([np.random.Generator(np.random.SFC64(seed)).standard_normal(DIMENSIONS) for seed in seeds])


def texts(count: int, seed: int) -> list[str]:
    """Passages of 20 words."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=20)) for _ in range(count)]


async def measure(layer: SemanticRecall, count: int) -> None:
    """Store passages, search, add one at a time, and print what it took."""
    begun = time.perf_counter()
    for begin in range(0, count, BATCH):
        await layer.remember("\n\n".join(texts(min(BATCH, count - begin), begin)))
    stored = time.perf_counter() - begun
    if isinstance(layer.vectors, VectorStore):
        begun, store = time.perf_counter(), layer.vectors
        await getattr(store, "build_index")(Owner(Scope.USER, "ada", "past"), layer.embedder.name)  # noqa: B009
        sys.stdout.write(f"index {time.perf_counter() - begun:.1f} s\n")
    first = await timed(layer, "first")
    taken = [await timed(layer, text) for text in texts(SEARCHES, 1_000_000)]
    after: list[float] = []
    for text in texts(5, 2_000_000):
        await layer.remember(text)
        after.append(await timed(layer, text))
    sys.stdout.write(
        f"{count} passages: stored in {stored:.1f} s, first search {first:.1f} ms, "
        f"search median {median(taken):.1f} ms, least {min(taken):.1f} ms, after an addition {median(after):.1f} ms\n"
    )


async def timed(layer: SemanticRecall, text: str) -> float:
    """The milliseconds of a search, with the query's vector."""
    begun = time.perf_counter()
    await layer.search(text, 5)
    return (time.perf_counter() - begun) * 1000


async def main(where: str, count: int = 100_000) -> None:
    """Measure one place."""
    vectors: Any = None
    if where.startswith("postgres"):
        from noetic_postgres import PgVectorStore

        vectors = PgVectorStore(where, timeout=900)
    layer = SemanticRecall(
        scope=Scope.USER, embedder=RandomEmbedder(), limit=count + 100, length=140, least=-1.0, vectors=vectors
    )
    if where == "memory":
        await measure(layer, count)
        return

    class Mem(Memory):
        past: SemanticRecall = layer

    @step
    async def work(passages: int, ctx: Context[Mem]) -> None:
        await measure(ctx.memory.past, passages)

    with tempfile.TemporaryDirectory() as folder:
        backend = SqliteBackend(Path(folder) / "recall.db")
        async with Harness(memory=Mem(), checkpoints=backend) as harness:
            await harness.run(work, count, user_id="ada")
    if vectors is not None:
        await vectors.close()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], *map(int, sys.argv[2:]))
