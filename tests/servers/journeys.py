"""What tests do with a backend again and again: a journey through all of its methods that says what has to come out."""

from __future__ import annotations

from noetic_py.checkpoints import CheckpointBackend, Head, Record, Transaction
from noetic_py.errors import PositionConflict, VersionConflict

__all__ = ["LARGE", "SCOPE", "THRESHOLD", "Journey", "journal", "record"]

LARGE = bytes(range(256)) * 40
THRESHOLD = 1000
"""Of the backends that go on the journey: it has payloads on both sides."""
SCOPE = ("user", "u-1")


def record(text: str | bytes) -> Record:
    return Record("Test", ("flow", "step#2"), text if isinstance(text, bytes) else text.encode())


async def journal(backend: CheckpointBackend, run_id: str) -> list[bytes]:
    found: list[bytes] = []
    while page := await backend.read(run_id, after=len(found)):
        found += [each.payload for each in page]
    return found


class Journey:
    """Goes through every method that writes; each result, and the end, is what it is when nothing goes wrong."""

    def __init__(self, backend: CheckpointBackend) -> None:
        self.backend = backend

    async def go(self) -> None:
        await self._journals()
        await self._values()
        await self._end()

    async def _append(
        self, run_id: str, position: int, fence: int, *payloads: str | bytes, **more: str | bytes
    ) -> None:
        summary, status = more.get("summary"), more.get("status")
        done = await self.backend.append(
            run_id,
            expected_position=position,
            fence=fence,
            records=[record(each) for each in payloads],
            summary=summary if isinstance(summary, bytes) else None,
            status=status if isinstance(status, str) else None,
        )
        assert done == position + len(payloads)

    async def _journals(self) -> None:
        backend = self.backend
        lease = await backend.acquire("r", ttl=600.0)
        assert await backend.head("r") == Head(0, lease.fence)
        await self._append("r", 0, lease.fence, "a", "b", summary=b"one", status="running")
        await self._append("r", 2, lease.fence, "c")
        await self._append("r", 3, lease.fence, LARGE, "d")
        await self._append("r", 5, lease.fence, summary=b"two")
        assert await backend.renew(lease, ttl=600.0) == lease
        await self._append("new", 0, 0, LARGE, status="fresh")
        await self._append("new", 1, 0, "n")
        many = Transaction("many", 0, 0, [record("m0")], acquire=600.0)
        done = await backend.commit([Transaction("r", 5, lease.fence, [record("e")]), many])
        assert [each.position for each in done] == [6, 1]
        try:
            await backend.commit([Transaction("r", 6, lease.fence, [record("x")]), Transaction("new", 9, 0, [])])
            raise AssertionError("half of a commit was taken")
        except PositionConflict:
            pass
        await backend.commit([Transaction("many", 1, done[1].fence, [record("m1"), record(LARGE)], release=True)])
        await backend.fork("r", at=5, new_run_id="fork", summary=b"forked", status="f")
        await self._append("fork", 5, 0, "own")
        await backend.release(lease)
        again = await backend.acquire("r", ttl=600.0)
        assert again.fence > lease.fence
        await self._append("r", 6, again.fence, "f")
        await backend.release(again)

    async def _values(self) -> None:
        backend = self.backend
        first = await backend.put(SCOPE, "k", b"1", expected=0)
        second = await backend.put(SCOPE, "k", b"2", expected=first)
        try:
            await backend.put(SCOPE, "k", b"stale", expected=first)
            raise AssertionError("a stale version was replaced")
        except VersionConflict:
            pass
        await backend.put(SCOPE, "any", b"x")
        assert await backend.remove(SCOPE, "k", expected=second)
        assert not await backend.remove(SCOPE, "k")
        assert await backend.put(SCOPE, "k", b"3", expected=0) not in (first, second)

    async def _end(self) -> None:
        backend = self.backend
        whole: list[bytes] = [b"a", b"b", b"c", LARGE, b"d"]
        assert await journal(backend, "r") == [*whole, b"e", b"f"]
        assert await journal(backend, "fork") == [*whole, b"own"]
        assert await journal(backend, "new") == [LARGE, b"n"]
        assert await journal(backend, "many") == [b"m0", b"m1", LARGE]
        entries = await backend.list()
        assert [(each.run_id, each.position, each.summary, each.status, each.held) for each in entries] == [
            ("fork", 6, b"forked", "f", False),
            ("many", 3, b"", None, False),
            ("new", 2, b"", "fresh", False),
            ("r", 7, b"two", "running", False),
        ]
        assert [(each.key, each.value) for each in await backend.scan(SCOPE)] == [("any", b"x"), ("k", b"3")]
        await backend.delete("r")
        assert await journal(backend, "fork") == [*whole, b"own"]
        assert await backend.prune(keep=1) == 2
        stats = await backend.stats()
        assert (stats.runs, stats.records, stats.values, stats.blobs) == (1, 6, 2, 1)
        await backend.delete("fork")
        assert (await backend.stats()).blobs == 0
