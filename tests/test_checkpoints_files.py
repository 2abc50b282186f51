"""The backend on plain files: the contract, and what only files can do and suffer."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from noetic_py import Ask, Context, Harness, step
from noetic_py.checkpoints import CheckpointBackend, FileBackend, Head, Lease, Record, backend_from
from noetic_py.checkpoints.files import folder
from noetic_py.errors import (
    CheckpointError,
    CheckpointFailed,
    ConfigError,
    CorruptRecord,
    StoreUnavailable,
)
from noetic_py.testing._conformance.base import SCOPE, everything, fill, payloads, record
from noetic_py.testing._conformance.durability import Damaging
from noetic_py.testing._conformance.ids import KEPT
from noetic_py.testing.conformance import BackendContract, DamageContract, LastingContract
from tests.properties.checks import examples
from tests.properties.damage import damage_folder
from tests.test_checkpoints_sqlite import (
    another_owner,
    child,
    lines,
    see_a_killed_owner_replaced,
    see_a_killed_writer_leave_no_halves,
    see_a_stopped_owner_keep_its_run,
    see_two_processes_take_turns,
)

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parent.parent
BIG = b"x" * 20_000


async def become_another_owner(backend: CheckpointBackend) -> None:
    """As if the process had died and another one had come: the kernel has freed what it held."""
    assert isinstance(backend, FileBackend)
    folder = backend._opening.folder
    if folder is not None:
        another_owner(folder.locks)


class TestFiles(BackendContract, LastingContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return FileBackend(folder / "runs")

    async def lapse(self, backend: CheckpointBackend) -> None:
        await become_another_owner(backend)


class TestDamage(DamageContract):
    def make(self, folder: Path) -> CheckpointBackend:
        return FileBackend(folder / "runs")

    async def damage(self, folder: Path, seed: int) -> None:
        damage_folder(folder / "runs", seed)


async def test_it_says_what_it_is(tmp_path: Path) -> None:
    async with FileBackend(tmp_path / "runs") as backend:
        described = await backend.describe()
        assert (backend.durability, backend.shared) == ("power", False)
    assert (described["backend"], described["path"]) == ("files", str(tmp_path / "runs"))


def test_it_has_a_name(tmp_path: Path) -> None:
    assert isinstance(backend_from(f"files:{tmp_path}/runs"), FileBackend)
    for spec in ("files", "files:"):
        with pytest.raises(ConfigError) as caught:
            backend_from(spec)
        assert caught.value.code == "checkpoints"
    assert list(tmp_path.iterdir()) == []


@step
async def double(number: int) -> int:
    return number * 2


async def test_a_harness_keeps_runs_in_a_folder(tmp_path: Path) -> None:
    async with Harness(checkpoints=f"files:{tmp_path}/runs", plugins=()) as harness:
        result = await harness.run(double, 21, run_id="r")
        assert (result.value, result.status) == (42, "completed")
    async with Harness(checkpoints=f"files:{tmp_path}/runs", plugins=()) as harness:
        assert (await harness.resume("r", double)).value == 42


@pytest.mark.parametrize("path", ["", "runs\0"])
def test_a_path_that_is_none(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FileBackend(path)
    assert caught.value.code == "files-path"


def test_settings_that_are_none() -> None:
    wrong: list[dict[str, int]] = [{"busy_timeout": -1}, {"blob_threshold": -1}, {"max_bytes": 0}, {"max_bytes": 2**40}]
    for settings in wrong:
        with pytest.raises(ConfigError) as caught:
            FileBackend("runs", **settings)  # type: ignore[arg-type]  # settings by name
        assert caught.value.code == "files-setting"


# -- names


IDS = [f"{name}{more}" for name in KEPT.values() for more in ("", ".lock", "/../x") if not more or len(name) < 200]

WATCH = """
import os, sys, threading
import anyio
from noetic_py.checkpoints import FileBackend, Record
from tests.test_checkpoints_files import IDS

root = os.path.abspath(sys.argv[1])
seen, outside = 0, []

def watch(event, arguments):
    global seen
    if threading.current_thread().name != "noetic-files" or not watching:
        return
    if event == "open" or event.startswith(("os.", "shutil.")):
        for path in arguments[:2]:
            if isinstance(path, (str, bytes, os.PathLike)) and (event != "open" or path is arguments[0]):
                seen += 1
                inside = event == "os.remove" and arguments[1] != -1
                if not inside and not (os.path.normpath(os.fsdecode(path)) + os.sep).startswith(root + os.sep):
                    outside.append((event, path))

watching = False
sys.addaudithook(watch)

async def use(backend, name):
    lease = await backend.acquire(name, ttl=1.0)
    await backend.append(name, expected_position=0, fence=lease.fence, records=[Record("K", (), name.encode() * 300)])
    await backend.release(lease)
    await backend.fork(name, at=1, new_run_id=name[:200] + " fork")
    for scope, key in (((name,), "k"), (("u", name), "k"), (("u",), name)):
        await backend.put(scope, key, name.encode(), expected=0)

async def main():
    global watching
    async with FileBackend(root, blob_threshold=10_000) as backend:
        await use(backend, "first")
        watching = True
        for name in IDS:
            await use(backend, name)
        for name in IDS:
            assert [each.payload for each in await backend.read(name)] == [name.encode() * 300]
            for scope, key in (((name,), "k"), (("u", name), "k"), (("u",), name)):
                assert (await backend.get(scope, key)).value == name.encode()
        listed = [each.run_id async for each in everyone(backend)]
        assert len(listed) == len(set(listed)) == 2 * len(IDS) + 2, len(listed)
        await backend.delete(IDS[0])
    print(len(IDS), seen > 10 * len(IDS), outside[:5], end="")

async def everyone(backend):
    after = None
    while page := await backend.list(after=after):
        for each in page:
            yield each
        after = page[-1].cursor

anyio.run(main)
"""


def test_no_id_leads_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WATCH, str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == (f"{len(IDS)} True []", "")
    assert len(IDS) >= 120
    assert [each.name for each in tmp_path.iterdir()] == ["runs"]
    names = {part for path in tmp_path.rglob("*") for part in path.relative_to(tmp_path / "runs").parts[1:]}
    strange = {name for name in names if not (len(name) == 64 and set(name) <= set("0123456789abcdef"))}
    assert {name.rstrip("0123456789") for name in strange} == {"head", "journal-"}


# -- what may lie at a path


async def refused(path: Path) -> StoreUnavailable:
    backend = FileBackend(path)
    with pytest.raises(StoreUnavailable) as caught:
        await backend.append("r", expected_position=0, fence=0, records=[record("x")])
    await backend.close()
    assert str(path) in str(caught.value)
    assert caught.value.hint
    return caught.value


async def made(path: Path) -> None:
    async with FileBackend(path) as backend:
        await fill(backend, "r", 1)
        await backend.put(SCOPE, "k", b"v")


async def test_a_root_that_is_a_link_is_refused(tmp_path: Path) -> None:
    await made(tmp_path / "runs")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    assert (await refused(tmp_path / "link")).reason == "link"
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    assert (await refused(tmp_path / "nowhere")).reason == "link"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("name", ["runs", "blobs", "values", "tmp", "lock"])
async def test_a_link_in_the_root_is_refused(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    await made(root)
    (root / name).rename(elsewhere)
    (root / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    assert (await refused(root)).reason == "link"
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("name", ["head", "journal-0"])
async def test_a_link_in_a_run_is_not_followed(tmp_path: Path, name: str) -> None:
    await made(tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob(f"runs/*/{name}")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    async with FileBackend(tmp_path / "runs") as backend:
        with pytest.raises(StoreUnavailable) as caught:
            await everything(backend, "r")
    assert caught.value.reason == "link"


async def test_a_root_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(tmp_path / "runs")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert (await refused(tmp_path / "runs")).reason == "permission"


async def test_a_path_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert (await refused(tmp_path / "file")).reason == "directory"
    assert (await refused(tmp_path / "file" / "runs")).reason == "directory"


async def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    leave(folder / "letter.txt")
    folder.chmod(0o755)
    assert (await refused(folder)).reason == "not-a-store"
    assert names_in(folder) == ["letter.txt"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


async def test_a_newer_version(tmp_path: Path) -> None:
    await made(tmp_path / "runs")
    before, folder.VERSION = folder.VERSION, 0
    try:
        error = await refused(tmp_path / "runs")
    finally:
        folder.VERSION = before
    assert (error.reason, "version 1" in str(error)) == ("newer", True)


async def test_files_are_of_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with FileBackend(tmp_path / "new" / "runs") as backend:
            await fill(backend, "r", 1)
            await backend.append("r", expected_position=1, fence=0, records=[Record("K", (), BIG)])
            await backend.fork("r", at=2, new_run_id="f")
            await backend.put(SCOPE, "k", b"v")
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*")}
    finally:
        os.umask(before)
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "new" / "runs").chmod(0o777)
    async with FileBackend(tmp_path / "new" / "runs") as backend:
        assert await backend.head("r") == Head(2, 0)
    assert stat.S_IMODE((tmp_path / "new" / "runs").stat().st_mode) == 0o700


async def test_a_folder_that_went_away_is_missed(tmp_path: Path) -> None:
    async with FileBackend(tmp_path / "runs") as backend:
        await fill(backend, "r", 2)
        (tmp_path / "runs").rename(tmp_path / "elsewhere")
        for replaced in (False, True):
            if replaced:
                await made(tmp_path / "runs")
            with pytest.raises(StoreUnavailable) as caught:
                await backend.append("r", expected_position=2, fence=0, records=[record("x")])
            assert caught.value.reason == "moved"
        shutil.rmtree(tmp_path / "runs")
        (tmp_path / "elsewhere").rename(tmp_path / "runs")
        assert len(await fill(backend, "r", 1)) == 1


def leave(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("half")


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def test_what_the_dead_have_left_is_swept(tmp_path: Path) -> None:
    await made(tmp_path / "runs")
    beside = tmp_path / "runs" / "tmp"
    leave(beside / "0000000000000007-0" / "head")
    leave(beside / "0000000000000007-1")
    async with FileBackend(tmp_path / "runs") as backend:
        assert await backend.head("r") == Head(1, 0)
        assert names_in(beside) == []
        living = backend._opening.folder
        assert living is not None
        leave(Path(living.temporary()))
        await made(tmp_path / "runs")
        assert len(names_in(beside)) == 1


# -- journals


def journal_of(root: Path) -> Path:
    """The journal of the one run."""
    (path,) = root.glob("runs/*/journal-*")
    return path


async def test_a_torn_append_is_cut_at_every_byte(tmp_path: Path) -> None:
    """An append that the loss of power has torn: its head was never replaced."""
    root = tmp_path / "runs"
    async with FileBackend(root) as backend:
        written = await fill(backend, "r", 1, 2)
    path = journal_of(root)
    head, whole = (path.parent / "head").read_bytes(), path.read_bytes()
    async with FileBackend(root) as backend:
        await backend.append("r", expected_position=3, fence=0, records=[record("a"), record("b")])
    longer = path.read_bytes()
    new = record("new")
    for end in range(len(whole), len(longer) + 1):
        (path.parent / "head").write_bytes(head)
        path.write_bytes(longer[:end])
        async with FileBackend(root) as backend:
            assert await backend.head("r") == Head(3, 0)
            assert await everything(backend, "r") == written
            assert await backend.append("r", expected_position=3, fence=0, records=[new]) == 4
            assert await everything(backend, "r") == [*written, new]


async def test_an_acknowledged_append_that_is_cut_is_damage_at_every_byte(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    async with FileBackend(root) as backend:
        await fill(backend, "r", 1, 2, 2)
    path = journal_of(root)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        async with FileBackend(root) as backend:
            with pytest.raises(CorruptRecord, match=r"run 'r' is damaged after position \d"):
                await everything(backend, "r")
            with pytest.raises(CorruptRecord, match="run 'r' is damaged after position 5"):
                await backend.append("r", expected_position=5, fence=0, records=[record("x")])
        assert path.read_bytes() == whole[:end]


async def test_every_byte_of_a_journal_counts(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    async with FileBackend(root) as backend:
        await fill(backend, "r", 1, 2)
    path = journal_of(root)
    for file in (path, path.parent / "head"):
        whole = file.read_bytes()
        async with FileBackend(root) as backend:
            for at in range(len(whole)):
                file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
                with pytest.raises(CorruptRecord, match="'r'"):
                    await everything(backend, "r")
        file.write_bytes(whole)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _is_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _is_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _is_missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", ["head", "journal-0"])
@pytest.mark.parametrize("damage", [_cut, _is_a_folder, _is_a_link, _is_missing])
async def test_a_damaged_run_is_in_the_way_of_no_other(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    @step
    async def asks(text: str, ctx: Context) -> str:
        return await ctx.ask(Ask("Which?", str))

    root = tmp_path / "runs"
    async with FileBackend(root) as backend:
        async with Harness(checkpoints=backend, plugins=()) as harness:
            await harness.run(asks, "x", run_id="bad")
        damage(next((root / "runs").iterdir()) / name)
        # What a desktop leaves in a folder that it shows.
        (root / "runs" / ".DS_Store").write_bytes(b"x")
        async with Harness(checkpoints=backend, plugins=()) as harness:
            for run_id in ("one", "two"):
                await harness.run(asks, "x", run_id=run_id)
            found = {each.run_id: each.problem for each in await harness.runs.list()}
            assert (found.pop("one"), found.pop("two")) == (None, None)
            (problem,) = found.values()
            assert problem
            assert (await harness.runs.stats()).runs == (2 if name == "head" else 3)
            assert await harness.runs.prune(keep=0, statuses=["suspended"]) >= 2


async def test_an_older_head_hides_nothing(tmp_path: Path) -> None:
    """A write that the disk lost: one append may have been under way, but not two."""
    root = tmp_path / "runs"
    async with FileBackend(root) as backend:
        await fill(backend, "r", 1)
    path = journal_of(root)
    head = (path.parent / "head").read_bytes()
    async with FileBackend(root) as backend:
        await fill(backend, "r", 1, 1)
        (path.parent / "head").write_bytes(head)
        before = path.read_bytes()
        with pytest.raises(CorruptRecord, match="'r' is damaged after position 1"):
            await everything(backend, "r")
        with pytest.raises(CorruptRecord):
            await backend.append("r", expected_position=1, fence=0, records=[record("x")])
    assert path.read_bytes() == before


async def test_a_counter_that_went_back_gives_no_number_again(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    await made(root)
    ticks = (root / "ticks").read_bytes()
    async with FileBackend(root) as backend:
        await backend.release(await backend.acquire("r", ttl=1.0))
        await backend.put(SCOPE, "k", b"w")
        (root / "ticks").write_bytes(ticks)
        with pytest.raises(CorruptRecord, match="counter"):
            await backend.acquire("r", ttl=1.0)
        (root / "ticks").write_bytes(ticks)
        with pytest.raises(CorruptRecord, match="counter"):
            await backend.put(SCOPE, "k", b"x")
        (root / "ticks").unlink()
        with pytest.raises(CorruptRecord, match="counter is missing"):
            await backend.put(SCOPE, "k", b"x")


CHUNKS = 4


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_damage_is_found_or_changes_nothing(tmp_path: Path, chunk: int) -> None:
    cases = Damaging()
    good, work = tmp_path / "good", tmp_path / "work"
    async with FileBackend(good) as backend:
        expected = await cases._write(backend)
        listed, values = await backend.list(), await backend.scan(SCOPE)
    noticed = 0
    for seed in range(chunk, examples(sample=100, full=5000), CHUNKS):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(good, work)
        what = damage_folder(work, seed)
        backend = FileBackend(work)
        wrong: list[object] = []
        for look in (*expected, "list", "scan"):
            try:
                if look == "list":
                    # What is damaged is listed as that, and the others as they are.
                    seen = await backend.list()
                    noticed += any(each.problem for each in seen)
                    wrong += [each for each in seen if not each.problem and each not in listed]
                elif look == "scan":
                    wrong += [await backend.scan(SCOPE)] if await backend.scan(SCOPE) != values else []
                elif await everything(backend, look) != expected[look]:
                    wrong.append(look)
            except CheckpointError:
                noticed += 1
        await backend.close()
        assert wrong == [], (seed, what)
    assert noticed > 0


# -- sharing


async def test_a_fork_and_a_large_payload_are_stored_once(tmp_path: Path) -> None:
    async with FileBackend(tmp_path / "runs") as backend:
        await backend.append("r", expected_position=0, fence=0, records=[Record("K", (), os.urandom(10_000))] * 50)
        await backend.append("r", expected_position=50, fence=0, records=[Record("K", (), os.urandom(1_000_000))])
        before = (await backend.stats()).bytes
        for n in range(20):
            await backend.fork("r", at=51, new_run_id=f"f{n}")
        stats = await backend.stats()
        assert stats.bytes - before < 20_000
        assert stats.blobs == 1
        expected = await everything(backend, "r")
        await backend.delete("r")
        await backend.prune(keep=1)
        assert await everything(backend, "f19") == expected
        await fill(backend, "f19", 1)
        await backend.fork("f19", at=50, new_run_id="g")
        await backend.delete("f19")
        assert await everything(backend, "g") == expected[:50]
        assert (await backend.stats()).blobs == 0


@contextmanager
def failing(name: str, number: int, after: int) -> Generator[list[int]]:
    """A system call fails from its so-manyth on, in the backend's thread."""
    before: Callable[..., object] = getattr(os, name)
    calls = [0]

    def call(*arguments: object, **more: object) -> object:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(number, os.strerror(number))
        return before(*arguments, **more)

    setattr(os, name, call)
    try:
        yield calls
    finally:
        setattr(os, name, before)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
async def test_a_disk_without_second_names(tmp_path: Path, number: int) -> None:
    with failing("link", number, 0):
        async with FileBackend(tmp_path / "runs") as backend:
            for _ in range(2):
                await backend.append("r", expected_position=0, fence=0, records=[Record("K", (), BIG), record("x")])
                await fill(backend, "r", 2)
                await backend.fork("r", at=4, new_run_id="f")
                expected = await everything(backend, "r")
                await backend.delete("r")
                assert await everything(backend, "f") == expected
                await backend.delete("f")
                assert (await backend.stats()).blobs == 0


# -- other processes


async def test_a_killed_owner_is_replaced_at_once(tmp_path: Path, anyio_backend: str) -> None:
    await see_a_killed_owner_replaced(tmp_path / "runs", anyio_backend, FileBackend, "files")


async def test_a_stopped_owner_keeps_its_run(tmp_path: Path, anyio_backend: str) -> None:
    await see_a_stopped_owner_keep_its_run(tmp_path / "runs", anyio_backend, FileBackend, "files")


@pytest.mark.parametrize("wanted", [1, 7, 60, 200])
async def test_a_killed_writer_leaves_no_halves(tmp_path: Path, anyio_backend: str, wanted: int) -> None:
    await see_a_killed_writer_leave_no_halves(tmp_path / "runs", anyio_backend, FileBackend, wanted, "files")
    async with FileBackend(tmp_path / "runs") as backend:
        for entry in await backend.list():
            await fill(backend, entry.run_id, 1)


async def test_two_processes_take_turns(tmp_path: Path, anyio_backend: str) -> None:
    await see_two_processes_take_turns(tmp_path / "runs", anyio_backend, FileBackend, "files")


async def test_one_of_two_processes_makes_a_run(tmp_path: Path, anyio_backend: str) -> None:
    path, count = tmp_path / "runs", 40
    won: Counter[int] = Counter()
    with (
        child(path, anyio_backend, "create", "files", str(count)) as one,
        child(path, anyio_backend, "create", "files", str(count)) as other,
    ):
        said = [[next(lines(each)) for _ in range(count)] for each in (one, other)]
        for n in range(count):
            outcomes = [each[n][0] for each in said]
            assert sorted(outcomes) == ["PositionConflict", "mine"]
            won[outcomes.index("mine")] += 1
        pids = [one.pid, other.pid]
    async with FileBackend(path) as backend:
        for n in range(count):
            (wrote,) = payloads(await everything(backend, f"r{n}"))
            assert int(wrote) == pids[[each[n][0] == "mine" for each in said].index(True)]
    assert won.total() == count


async def test_a_run_that_another_process_goes_on_writing_is_busy(tmp_path: Path) -> None:
    async with FileBackend(tmp_path / "runs") as one, FileBackend(tmp_path / "runs", busy_timeout=0.1) as other:
        folder = one._opening.folder
        assert folder is not None
        await fill(one, "r", 1)
        store = one._opening.store()
        with store._writing("r"):
            with pytest.raises(StoreUnavailable) as caught:
                await fill(other, "r", 1)
            assert (caught.value.reason, isinstance(caught.value, CheckpointFailed)) == ("busy", True)
            assert await everything(other, "r") == [record("r/0")]
            await fill(other, "another", 1)
        await fill(other, "r", 1)


# -- disks that fail


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [
        ("write", errno.ENOSPC, "full"), ("write", errno.EIO, "io"), ("fsync", errno.EIO, "io"),
        ("replace", errno.EIO, "io"), ("replace", errno.EROFS, "readonly"), ("link", errno.ENOSPC, "full"),
        ("rename", errno.ENOSPC, "full"), ("mkdir", errno.ENOSPC, "full"), ("open", errno.EACCES, "permission"),
    ],
)  # fmt: skip
async def test_a_disk_that_fails_is_named_and_loses_nothing(
    tmp_path: Path, name: str, number: int, reason: str
) -> None:
    async def journey(backend: FileBackend) -> None:
        head = await backend.head("r")
        position = 0 if head is None else head.position
        fence = 0 if head is None else head.fence
        await backend.append("r", expected_position=position, fence=fence, records=[record("x"), Record("K", (), BIG)])
        await backend.append(f"new {position}", expected_position=0, fence=0, records=[Record("K", (), BIG + b"y")])
        await backend.put(SCOPE, f"k{position}", b"v")
        await backend.fork("r", at=position + 2, new_run_id=f"f{position}")
        leases.append(await backend.acquire("r", ttl=1.0))
        await backend.delete(f"f{position}")

    leases: list[Lease] = []
    reasons: list[str] = []
    async with FileBackend(tmp_path / "runs") as backend:
        await journey(backend)
        for after in range(0, 60, 3):
            while leases:
                await backend.release(leases.pop())
            before = await everything(backend, "r")
            with failing(name, number, after) as calls:
                try:
                    await journey(backend)
                except StoreUnavailable as error:
                    reasons.append(error.reason)
            now = await everything(backend, "r")
            assert now[: len(before)] == before
            assert len(now) - len(before) in (0, 2)
            for entry in await backend.list():
                assert len(await everything(backend, entry.run_id)) == entry.position
            if calls[0] <= after:
                break
        while leases:
            await backend.release(leases.pop())
        await journey(backend)
    assert set(reasons) == {reason}
