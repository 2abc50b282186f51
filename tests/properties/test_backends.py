"""All backends do the same, whatever is asked of them; and damage is found, or changes nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend, Lease, Record, SqliteBackend, Transaction
from noetic_py.checkpoints.packing import pack, pack_scope, unpack
from noetic_py.errors import CheckpointError, CorruptRecord, NoeticError
from noetic_py.testing import VirtualRuntime
from noetic_py.testing._conformance.base import SCOPE, everything
from noetic_py.testing._conformance.lasting import Damaging
from tests.properties.checks import examples
from tests.properties.damage import damage

pytestmark = pytest.mark.anyio

LONG = 1e6
RUNS = st.sampled_from(["a", "b", "c", "\u00e9", "e\u0301", "a ", ""])
SCOPES = st.sampled_from([("s",), ("s", "t"), ("st",), ("s:t",), ()])
KEYS = st.sampled_from(["k", "K", "\u6f22", "k\0"])
STATUSES = st.none() | st.sampled_from(["running", "completed", "s" * 65])
CARDS = st.none() | st.sampled_from([b"", b"card"])
WHICH = st.integers(0, 5)
PAGES = st.sampled_from([1, 2, 3, 1000])


def records() -> st.SearchStrategy[list[Record]]:
    payload = st.sampled_from([b"", b"x", b"\0\xff" * 100, b"large" * 5000])
    path = st.lists(st.sampled_from(["flow", "step#2", "a/b", "\u6f22"]), max_size=3).map(tuple)
    return st.lists(st.builds(Record, st.sampled_from(["StepFinished", "K"]), path, payload), max_size=4)


def operation(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.fixed_dictionaries(arguments).map(lambda chosen: (name, chosen))


APPEND = {"run": RUNS, "off": st.sampled_from([0, 0, 0, 1, -1]), "which": WHICH, "records": records()}
OPERATIONS = st.one_of(
    operation("append", card=CARDS, status=STATUSES, **APPEND),
    operation("append", card=st.none(), status=st.none(), **APPEND),
    operation("append_many", several=st.lists(st.fixed_dictionaries(APPEND), max_size=3)),
    operation("read", run=RUNS, after=st.integers(-1, 12), limit=st.integers(0, 5)),
    operation("head", run=RUNS),
    operation("list", limit=PAGES, status=STATUSES),
    operation("fork", run=RUNS, at=st.integers(-1, 9), new=RUNS, card=CARDS, status=STATUSES),
    operation("delete", run=RUNS),
    operation("prune", keep=st.none() | st.integers(-1, 3), age=st.none() | st.integers(0, 5)),
    operation("prune", keep=st.integers(0, 3), age=st.none(), statuses=st.sampled_from([["running"], ["completed"]])),
    operation("acquire", run=RUNS),
    operation("renew", which=WHICH),
    operation("release", which=WHICH),
    operation("put", scope=SCOPES, key=KEYS, value=st.binary(max_size=5), which=st.none() | WHICH),
    operation("get", scope=SCOPES, key=KEYS),
    operation("remove", scope=SCOPES, key=KEYS, which=st.none() | WHICH),
    operation("scan", scope=SCOPES, limit=PAGES),
    operation("wait"),
    operation("lapse"),
    operation("stats"),
)


class World:
    """One backend, and the numbers that it gave: others give others, so they are known by when they were given."""

    def __init__(self, make: Callable[[VirtualRuntime], CheckpointBackend]) -> None:
        self.runtime = VirtualRuntime()
        self.make = make
        self.backend = make(self.runtime)
        self.leases: list[Lease] = []
        self.current: set[int] = set()
        self.versions: list[int] = []

    def fence(self, which: int) -> int:
        return 0 if which == 0 or not self.leases else self.leases[-min(which, len(self.leases))].fence

    def version(self, which: int | None) -> int | None:
        if which is None:
            return None
        return 0 if which == 0 or not self.versions else self.versions[-min(which, len(self.versions))]

    def known(self, number: int, given: Sequence[int]) -> int:
        return given.index(number) + 1 if number else 0

    async def do(self, name: str, arguments: dict[str, Any]) -> object:
        method: Callable[..., Awaitable[object]] = getattr(self, name)
        try:
            return await method(**arguments)
        except NoeticError as error:
            return type(error).__name__

    async def _given(self, run: str, off: int, which: int, records: list[Record]) -> Transaction:
        head = await self.backend.head(run) if run else None
        fence = 0 if head is None else head.fence
        return Transaction(
            run, (head.position if head else 0) + off, self.fence(which) if which > 3 else fence, records
        )

    async def append(self, run: str, off: int, which: int, records: list[Record], **more: Any) -> object:
        given = await self._given(run, off, which, records)
        return await self.backend.append(
            run, expected_position=given.expected_position, fence=given.fence, records=records, **more
        )

    async def append_many(self, several: list[dict[str, Any]]) -> object:
        given = [await self._given(**each) for each in several]
        outcomes = await self.backend.append_many(given)
        return [each if isinstance(each, int) else type(each).__name__ for each in outcomes]

    async def read(self, run: str, after: int, limit: int) -> object:
        return list(await self.backend.read(run, after=after, limit=limit))

    async def head(self, run: str) -> object:
        head = await self.backend.head(run)
        return head and (head.position, self.known(head.fence, [lease.fence for lease in self.leases]))

    async def list(self, limit: int, status: str | None) -> object:
        entries: list[object] = []
        after: int | None = None
        while page := await self.backend.list(after=after, limit=limit, status=status):
            entries += [(e.run_id, e.position, e.status, e.card, e.created, e.updated, e.held) for e in page]
            after = page[-1].cursor
        return entries

    async def fork(self, run: str, at: int, new: str, card: bytes | None, status: str | None) -> object:
        await self.backend.fork(run, at=at, new_run_id=new, card=card, status=status)
        return None

    async def delete(self, run: str) -> object:
        await self.backend.delete(run)
        return None

    async def prune(self, keep: int | None, age: int | None, statuses: Sequence[str] | None = None) -> object:
        before = None if age is None else self.runtime.now() - timedelta(seconds=age)
        return await self.backend.prune(before=before, keep=keep, statuses=statuses)

    async def acquire(self, run: str) -> object:
        lease = await self.backend.acquire(run, ttl=LONG)
        self.leases.append(lease)
        self.current.add(lease.fence)
        return lease.run_id

    async def renew(self, which: int) -> object:
        for lease in self.leases[-which:][:1]:
            # One that has lapsed may be renewed or not, while nobody else has the run.
            if lease.fence in self.current:
                return (await self.backend.renew(lease, ttl=LONG)) == lease
        return None

    async def release(self, which: int) -> object:
        for lease in self.leases[-which:][:1]:
            await self.backend.release(lease)
        return None

    async def put(self, scope: tuple[str, ...], key: str, value: bytes, which: int | None) -> object:
        self.versions.append(await self.backend.put(scope, key, value, expected=self.version(which)))
        return None

    async def get(self, scope: tuple[str, ...], key: str) -> object:
        found = await self.backend.get(scope, key)
        return found and (found.key, found.value, self.known(found.version, self.versions))

    async def remove(self, scope: tuple[str, ...], key: str, which: int | None) -> object:
        return await self.backend.remove(scope, key, expected=self.version(which))

    async def scan(self, scope: tuple[str, ...], limit: int) -> object:
        page = await self.backend.scan(scope, limit=limit)
        return [(each.key, each.value, self.known(each.version, self.versions)) for each in page]

    async def wait(self) -> object:
        await self.runtime.advance(1.0)
        return None

    async def lapse(self) -> object:
        """Time passes in one that lives by it; what lasts is closed and opened again."""
        await self.runtime.advance(10 * LONG)
        self.current.clear()
        if isinstance(self.backend, SqliteBackend):
            await self.backend.close()
            self.backend = self.make(self.runtime)
        return None

    async def stats(self) -> object:
        stats = await self.backend.stats()
        return stats.runs, stats.records, stats.values

    async def everything(self) -> object:
        runs = {each.run_id: await everything(self.backend, each.run_id) for each in await self.backend.list()}
        values = [await self.scan(scope, 1000) for scope in (("s",), ("s", "t"), ("st",), ("s:t",))]
        return runs, values, await self.list(1000, None), await self.stats()


@settings(max_examples=examples(sample=15, full=1000))
@given(st.lists(OPERATIONS, min_size=30, max_size=50))
async def test_all_backends_do_the_same(operations: list[tuple[str, dict[str, Any]]]) -> None:
    folder = Path(tempfile.mkdtemp())
    worlds = [
        World(lambda runtime: InMemoryBackend(runtime=runtime)),
        World(lambda runtime: SqliteBackend(folder / "turns.db", runtime=runtime)),
        World(lambda runtime: SqliteBackend(folder / "alone.db", runtime=runtime, exclusive=True, blob_threshold=50)),
    ]
    try:
        for name, arguments in operations:
            outcomes = [await world.do(name, arguments) for world in worlds]
            assert outcomes[1:] == outcomes[:1] * 2, (name, arguments)
        ends = [await world.everything() for world in worlds]
        assert ends[1:] == ends[:1] * 2
        await worlds[1].backend.prune(keep=0)
        if not any(each.held for each in await worlds[1].backend.list()):
            assert (await worlds[1].backend.stats()).blobs == 0
    finally:
        for world in worlds:
            await world.backend.close()
        shutil.rmtree(folder)


CHUNKS = 5


def damaged_copy(good: Path, work: Path, seed: int) -> str:
    for each in work.parent.glob("work.db*"):
        each.unlink()
    shutil.copy(good, work)
    return damage(work, seed)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_damage_is_found_or_changes_nothing(tmp_path: Path, chunk: int) -> None:
    cases = Damaging()
    good, work = tmp_path / "good.db", tmp_path / "work.db"
    async with SqliteBackend(good) as backend:
        expected = await cases._write(backend)
        listed, values = await backend.list(), await backend.scan(SCOPE)
    noticed = 0
    for seed in range(chunk, examples(sample=100, full=5000), CHUNKS):
        what = damaged_copy(good, work, seed)
        backend = SqliteBackend(work)
        wrong: list[object] = []
        try:
            wrong += [name for name, written in expected.items() if await everything(backend, name) != written]
            wrong += [await backend.list()] if await backend.list() != listed else []
            wrong += [await backend.scan(SCOPE)] if await backend.scan(SCOPE) != values else []
        except CheckpointError:
            noticed += 1
        finally:
            await backend.close()
        assert wrong == [], (seed, what)
    assert noticed > 0


@given(records())
def test_packed_records_come_back(given: list[Record]) -> None:
    packed = pack(given, threshold=200)
    assert unpack(packed.body, len(given), packed.blobs.__getitem__) == given
    for skip in range(len(given) + 1):
        assert unpack(packed.body, len(given), packed.blobs.__getitem__, skip=skip) == given[skip:]


@given(records(), st.data())
def test_cut_or_changed_bytes_are_refused_or_whole(given: list[Record], data: st.DataObject) -> None:
    packed = pack(given, threshold=200)
    cut = data.draw(st.integers(0, len(packed.body)))
    changed = packed.body[:cut] + data.draw(st.binary(max_size=4)) + packed.body[cut + data.draw(st.integers(0, 3)) :]
    try:
        seen = unpack(changed, len(given), lambda digest: packed.blobs.get(digest, b""))
    except CorruptRecord:
        return
    # The checksum is somebody else's; here nothing but a list of as many records may come out.
    assert len(seen) == len(given)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCOPE_TUPLES = st.lists(TEXTS | st.sampled_from(["a", "a:b", "b:c", "a__3Ab", "\x01a", "YQ=="]), max_size=4).map(tuple)


@settings(max_examples=examples(sample=300, full=10_000))
@given(SCOPE_TUPLES, SCOPE_TUPLES)
def test_two_scopes_are_equal_exactly_when_their_bytes_are(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (pack_scope(one) == pack_scope(other)) is (one == other)
