"""All backends do the same, whatever is asked of them; and damage is found, or changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py.checkpoints import CheckpointBackend, FileBackend, Record, SqliteBackend
from noetic_py.errors import CheckpointError, CorruptRecord
from noetic_py.journal.transforms import pack, pack_scope, unpack
from noetic_py.testing import ReferenceContract
from noetic_py.testing._conformance.base import SCOPE, everything
from noetic_py.testing._conformance.durability import Damaging
from noetic_py.testing.reference import records
from tests.properties.checks import examples
from tests.properties.damage import damage
from tests.test_checkpoints_files import become_another_owner as become_another_owner_of_files
from tests.test_checkpoints_sqlite import become_another_owner

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class TestTurns(ReferenceContract):
    """The file as it is by default."""

    examples = examples(sample=6, full=1000)

    def make(self, folder: Path) -> CheckpointBackend:
        return SqliteBackend(folder / "turns.db", runtime=self.runtime)

    async def lapse(self, backend: CheckpointBackend) -> None:
        await become_another_owner(backend)


class TestAlone(TestTurns):
    """A write-ahead log, one process, and most payloads apart."""

    def make(self, folder: Path) -> CheckpointBackend:
        return SqliteBackend(folder / "alone.db", runtime=self.runtime, exclusive=True, blob_threshold=50)


class TestInFiles(ReferenceContract):
    """A folder of files, and most payloads apart."""

    examples = examples(sample=4, full=500)

    def make(self, folder: Path) -> CheckpointBackend:
        return FileBackend(folder / "runs", runtime=self.runtime, blob_threshold=50)

    async def lapse(self, backend: CheckpointBackend) -> None:
        await become_another_owner_of_files(backend)


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
    for seed in range(chunk, examples(sample=40, full=5000), CHUNKS):
        what = damaged_copy(good, work, seed)
        backend = SqliteBackend(work)
        wrong: list[object] = []
        try:
            wrong += [name for name, written in expected.items() if await everything(backend, name) != written]
            seen = await backend.list()
            # What is damaged is listed as that, and the others as they are.
            noticed += any(each.problem for each in seen)
            wrong += [each for each in seen if not each.problem and each not in listed]
            wrong += [seen] if len(seen) != len(listed) else []
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


@settings(max_examples=examples(sample=100, full=10_000))
@given(SCOPE_TUPLES, SCOPE_TUPLES)
def test_two_scopes_are_equal_exactly_when_their_bytes_are(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (pack_scope(one) == pack_scope(other)) is (one == other)
