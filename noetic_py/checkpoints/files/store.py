"""Reads and writes the folder of a file store, in one thread, locked against other processes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from datetime import datetime
from typing import TypeVar

from attrs import evolve

from noetic_py.checkpoints import checks
from noetic_py.checkpoints.adapter import FARTHEST, LARGEST, PrunePage
from noetic_py.checkpoints.contract import Scope
from noetic_py.checkpoints.files import folder, journals
from noetic_py.checkpoints.files.folder import Folder, decode_file, encode_file, read_file, write_new
from noetic_py.checkpoints.locks import sync_folder
from noetic_py.checkpoints.turns import ClaimRequest
from noetic_py.errors import CorruptRecord
from noetic_py.journal.stored import (
    BudgetRow,
    Claim,
    Head,
    Lease,
    QueueStats,
    Record,
    RunEntry,
    Signal,
    Stats,
    StoredValue,
    Transaction,
)
from noetic_py.journal.transforms import Packed, pack, pack_scope, scopes_behind, unpack


def _hashed(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()


class FileValues:
    """The values in a folder. Every method may raise `OSError`.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def _scope(self, scope: bytes) -> str:
        return self._folder.at("values", _hashed(scope))

    def _changing(self, scope: bytes) -> AbstractContextManager[None]:
        return self._folder.holding(b"scope" + scope)

    def _value(self, scope: bytes, name: str) -> StoredValue | None:
        """The value in a file; its name is that of its key."""
        try:
            content = read_file(os.path.join(self._scope(scope), name))
        except FileNotFoundError:
            return None
        fields, data = decode_file(content, "the value of a key", seed=self._folder.seed)
        match fields:
            case {"scope": str(found), "key": str(key), "version": int(version)} if (
                found.encode("latin-1") == scope and _hashed(pack_scope((key,))) == name
            ):
                return StoredValue(key, data, version)
            case _:
                raise CorruptRecord("the value of a key is that of another one", hint=checks.RESTORE)

    def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key."""
        return self._found(pack_scope(scope), key)

    def _found(self, scope: bytes, key: str) -> StoredValue | None:
        return self._value(scope, _hashed(pack_scope((key,))))

    def put(self, scope: Scope, key: str, value: bytes, expected: int | None) -> int:
        """Give a key a value."""
        packed = pack_scope(scope)
        with self._changing(packed):
            found = self._found(packed, key)
            checks.check_version(found, expected)
            version = self._folder.tick()
            if found is not None and version <= found.version:
                raise CorruptRecord("the store's counter has gone back", hint=checks.RESTORE)
            place = self._scope(packed)
            with suppress(FileExistsError):
                os.mkdir(place, 0o700)
            if found is None:
                sync_folder(self._folder.at("values"))
            # The scope as bytes: where a part of it ends is a length, and not any character that it may hold.
            fields = {"scope": packed.decode("latin-1"), "key": key, "version": version}
            self._folder.replace(place, _hashed(pack_scope((key,))), encode_file(fields, value, seed=self._folder.seed))
            return version

    def remove(self, scope: Scope, key: str, expected: int | None) -> bool:
        """Take a key's value away."""
        packed = pack_scope(scope)
        with self._changing(packed):
            found = self._found(packed, key)
            checks.check_version(found, expected)
            if found is None:
                return False
            place = self._scope(packed)
            os.unlink(os.path.join(place, _hashed(pack_scope((key,)))))
            sync_folder(place)
            with suppress(OSError):
                os.rmdir(place)
            return True

    def scan(self, scope: Scope, after: str, limit: int) -> Sequence[StoredValue]:
        """A page of a scope's values, behind a key."""
        packed = pack_scope(scope)
        try:
            names = os.listdir(self._scope(packed))
        except FileNotFoundError:
            return []
        found = [value for name in names if (value := self._value(packed, name)) is not None]
        found.sort(key=lambda value: value.key)
        return [value for value in found if value.key > after][:limit]

    def scopes(self, prefix: bytes, after: bytes, limit: int) -> Sequence[bytes]:
        """A page of the scopes that hold a value."""
        found = [self._scope_in(name) for name in os.listdir(self._folder.at("values"))]
        return scopes_behind((each for each in found if each is not None), prefix, after, limit)

    def _scope_in(self, folder_name: str) -> bytes | None:
        """The scope of the values in a folder, which any of its files says; `None` if it has none any more."""
        place = self._folder.at("values", folder_name)
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(place):
                with suppress(FileNotFoundError):
                    content = read_file(os.path.join(place, name))
                    fields, _ = decode_file(content, "the value of a key", seed=self._folder.seed)
                    scope = str(fields.get("scope")).encode("latin-1", "replace")
                    if _hashed(scope) != folder_name:
                        raise CorruptRecord("the value of a key is that of another one", hint=checks.RESTORE)
                    return scope
        return None


T = TypeVar("T")

_MARKS = 512
# A page of them costs a look at all heads.
_PRUNED_AT_ONCE = 5000
# Error codes that concern one file, and not the whole folder.
_OF_ONE_FILE = frozenset(
    {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EIO, errno.ENAMETOOLONG}
)
_NOTHING = Packed(b"", {})


def _journal(index: int) -> str:
    return f"journal-{index}"


class FileStore(FileValues):
    """The folder. Every method may raise `OSError`.

    Args:
        folder: It.
        threshold: Payloads longer than this, in bytes, are files of their own.
    """

    def __init__(self, folder: Folder, *, threshold: int) -> None:
        super().__init__(folder)
        self._threshold = threshold
        # Where reading has come to in a journal; what lies there is checked like everything else.
        self._marks: dict[int, tuple[int, int]] = {}

    def check(self) -> None:
        """Look whether the folder is still there.

        Raises:
            StoreUnavailable: It is not; reason `"moved"`.
        """
        self._folder.check()

    # -- heads of runs

    def _place(self, run_id: str) -> str:
        return self._folder.at("runs", hashlib.sha256(pack_scope((run_id,))).hexdigest())

    def _writing(self, run_id: str) -> AbstractContextManager[None]:
        return self._folder.holding(b"run" + pack_scope((run_id,)))

    def _find(self, run_id: str) -> journals.RunHead | None:
        place, what = self._place(run_id), f"the head of run {run_id!r}"
        head = self._head_at(place, what)
        if head is not None and head.run_id != run_id:
            raise CorruptRecord(f"{what} is that of another run", hint=checks.RESTORE)
        return head

    def _head_at(self, place: str, what: str) -> journals.RunHead | None:
        path = os.path.join(place, "head")
        for _ in range(2):
            with suppress(FileNotFoundError):
                return journals.load_head(read_file(path), what, seed=self._folder.seed)
            # A run comes and goes with its folder, perhaps between these two.
            if not os.path.lexists(place):
                return None
        raise CorruptRecord(f"{what} is missing", hint=checks.RESTORE)

    def _require(self, run_id: str) -> journals.RunHead:
        run = self._find(run_id)
        if run is None:
            raise checks.no_run(run_id)
        return run

    def _heads(self, damaged: list[tuple[str, str]]) -> Sequence[journals.RunHead]:
        """All of them, the newest first; what is damaged is put aside, with its folder and what is wrong."""
        found: list[journals.RunHead] = []
        for name in os.listdir(self._folder.at("runs")):
            try:
                run = self._head_in(name)
            except CorruptRecord as error:
                damaged.append((name, error.message))
            except OSError as error:
                if error.errno not in _OF_ONE_FILE:
                    raise
                # A desktop leaves files of its own in folders that it shows.
                if os.path.isdir(self._folder.at("runs", name)):
                    damaged.append((name, f"the head of the run in {name}: {error.strerror}"))
            else:
                if run is not None:
                    found.append(run)
        return sorted(found, key=lambda run: -run.number)

    def _head_in(self, name: str) -> journals.RunHead | None:
        run = self._head_at(self._folder.at("runs", name), f"the head of the run in {name}")
        if run is not None and os.path.basename(self._place(run.run_id)) != name:
            raise CorruptRecord(f"run {run.run_id!r} is in the place of another one", hint=checks.RESTORE)
        return run

    def _save(self, run: journals.RunHead) -> None:
        self._folder.replace(self._place(run.run_id), "head", journals.store_head(run, seed=self._folder.seed))

    def _is_held(self, run: journals.RunHead) -> bool:
        return run.owner != 0 and run.fence not in self._folder.discarded and self._folder.locks.alive(run.owner)

    def head(self, run_id: str) -> Head | None:
        """Where the journal ends."""
        run = self._find(run_id)
        return None if run is None else Head(run.position, run.fence)

    def entry(self, run_id: str) -> RunEntry | None:
        """One run, as lists show it."""
        run = self._find(run_id)
        return None if run is None else run.entry(held=self._is_held(run))

    def list(self, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]:
        """A page of runs."""
        below = LARGEST if after is None else after
        damaged: list[tuple[str, str]] = []
        heads = self._heads(damaged)
        fit = [run for run in heads if run.number < below and (status is None or run.status == status)]
        found = [run.entry(held=self._is_held(run)) for run in fit[:limit]]
        if status is None and below > 0 and len(fit) <= len(found) < limit:
            # Their age is not known, so they come last, and together: they have no cursor of their own.
            bad = sorted(damaged, key=lambda each: each[0])
            found += [RunEntry.damaged(f"({name})", 0, problem) for name, problem in bad]
        return found

    # -- writing journals

    def append(self, given: Transaction, now: datetime) -> int:
        """Append one transaction."""
        with self._writing(given.run_id):
            run = self._find(given.run_id)
            self._check_turn(given, run)
            return self._appended(given, run, checks.micros(now))

    def commit(self, given: Sequence[Transaction], now: datetime) -> Sequence[Lease]:
        """Append to several runs in order, begin and end ownership of them; all of it was checked before."""
        for each in given:
            self.enqueue(each, now)
        with ExitStack() as locks:
            # In one order everywhere, so that no two wait for each other.
            for run_id in sorted(each.run_id for each in given):
                locks.enter_context(self._writing(run_id))
            found = [self._find(each.run_id) for each in given]
            for each, run in zip(given, found, strict=True):
                self._check_turn(each, run)
            return [self._committed(each, run, checks.micros(now)) for each, run in zip(given, found, strict=True)]

    def _committed(self, given: Transaction, run: journals.RunHead | None, now: int) -> Lease:
        fence = given.fence
        if given.acquire is not None:
            fence = self._owned(given.run_id, run, now).fence
            run = self._require(given.run_id)
        if run is not None and given.release and (run.fence, run.owner) == (fence, self._folder.locks.owner):
            run = evolve(run, owner=0)
        return Lease(given.run_id, fence, self._appended(given, run, now))

    def _check_turn(self, given: Transaction, run: journals.RunHead | None) -> None:
        """Refuse a transaction whose turn it is not.

        Raises:
            RunBusy: It is to acquire a run that another owner has.
            LeaseLost: The fence is not the latest owner's.
            PositionConflict: The journal does not end where it should.
        """
        position, fence = (0, 0) if run is None else (run.position, run.fence)
        if given.acquire is not None and run is not None and self._is_held(run):
            raise checks.is_owned("its process to end")
        checks.check_turn(given, position, fence)

    def _appended(self, given: Transaction, run: journals.RunHead | None, now: int) -> int:
        """Write what was checked; returns where the journal ends."""
        packed = pack(given.records, threshold=self._threshold)
        count = len(given.records)
        if run is None:
            return self._begun(given, packed, now)
        own = run.own
        if count:
            own = self._extended(run, packed, count)
        self._save(
            evolve(
                run,
                parts=(*run.parts[:-1], own),
                updated=now,
                summary=run.summary if given.summary is None else bytes(given.summary),
                status=run.status if given.status is None else given.status,
            )
        )
        return own.upto

    def _begun(
        self,
        given: Transaction,
        packed: Packed,
        now: int,
        shares: Sequence[journals.JournalPart] = (),
        links: Iterable[tuple[str, str]] = (),
    ) -> int:
        """Make a run by its first transaction, behind what it shares with another; returns where it ends."""
        at, count, number = given.expected_position, len(given.records), self._folder.tick()
        data = journals.framed(packed, at, count, stream=number, seed=self._folder.seed) if count else b""
        parts = (*shares, journals.JournalPart(number, at + count, len(data)))
        run = journals.RunHead(given.run_id, number, parts, 0, 0, now, now, given.status, bytes(given.summary or b""))
        self._make(run, data, packed, links)
        return at + count

    def _extended(self, run: journals.RunHead, packed: Packed, count: int) -> journals.JournalPart:
        """Write a transaction behind the end of a run's own journal."""
        own, place = run.own, self._place(run.run_id)
        data = journals.framed(packed, own.upto, count, stream=own.stream, seed=self._folder.seed)
        self._keep(place, packed)
        try:
            with closing(self._open(run, len(run.parts) - 1, write=True)) as journal:
                journal.append(data, own.upto, own.end)
        except (journals.JournalDamaged, FileNotFoundError):
            raise _damaged(run, own.upto) from None
        return journals.JournalPart(own.stream, own.upto + count, own.end + len(data))

    def _keep(self, place: str, packed: Packed) -> None:
        for digest, payload in packed.blobs.items():
            folder.keep(place, self._folder.at("blobs"), self._folder.temporary(), digest, payload)
        if packed.blobs:
            sync_folder(place)

    def _make(
        self, run: journals.RunHead, data: bytes = b"", packed: Packed = _NOTHING, links: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Make a run whole, and give it its place.

        Args:
            run: Its head.
            data: What is in its own journal.
            packed: The large payloads of that.
            links: Files that it shares, and their names in its folder.
        """
        made = self._folder.temporary()
        os.mkdir(made, 0o700)
        try:
            for path, name in links:
                folder.link(path, os.path.join(made, name))
            self._keep(made, packed)
            write_new(os.path.join(made, _journal(len(run.parts) - 1)), data)
            write_new(os.path.join(made, "head"), journals.store_head(run, seed=self._folder.seed))
            sync_folder(made)
            os.rename(made, self._place(run.run_id))
        except BaseException:
            with suppress(OSError):
                folder.discard(made, self._folder.at("blobs"))
            raise
        sync_folder(self._folder.at("runs"))

    # -- reading journals

    def _open(self, run: journals.RunHead, index: int, *, write: bool = False) -> journals.Journal:
        path = os.path.join(self._place(run.run_id), _journal(index))
        return journals.Journal(path, stream=run.parts[index].stream, seed=self._folder.seed, write=write)

    def _settled(self, run_id: str, work: Callable[[journals.RunHead], T]) -> T:
        """Read of a run; once more when what is read was replaced meanwhile."""
        run = self._require(run_id)
        while True:
            try:
                return work(run)
            except (CorruptRecord, FileNotFoundError) as error:
                now = self._require(run_id)
                if now == run and isinstance(error, CorruptRecord):
                    raise
                if now == run:
                    raise CorruptRecord(f"a file of run {run_id!r} is missing", hint=checks.RESTORE) from None
                run = now

    def read(self, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """A page of records."""
        return self._settled(run_id, lambda run: self._page(run, checks.Page(after, limit)))

    def _page(self, run: journals.RunHead, page: checks.Page) -> Sequence[Record]:
        begin = 0
        for index, part in enumerate(run.parts):
            if page.at < part.upto:
                self._read_part(run, index, begin, page)
            if page.full:
                break
            begin = part.upto
        return page.records[: page.limit]

    def _read_part(self, run: journals.RunHead, index: int, begin: int, page: checks.Page) -> None:
        part = run.parts[index]
        with closing(self._open(run, index)) as journal:
            try:
                for frame in self._frames(journal, part, begin, page.at):
                    skip = max(0, page.at - frame.first)
                    page.add(unpack(frame.body, frame.count, self._payload(run), skip=skip), frame.first + frame.count)
                    self._mark(part.stream, frame)
                    if page.full:
                        return
                if index == len(run.parts) - 1:
                    journal.check_tail(part.upto, part.end)
            except journals.JournalDamaged:
                self._marks.pop(part.stream, None)
                raise _damaged(run, page.at) from None
            except CorruptRecord as error:
                raise CorruptRecord(
                    f"run {run.run_id!r}, after position {page.at}: {error.message}", hint=checks.RESTORE
                ) from None

    def _mark(self, stream: int, frame: journals.FileTransaction) -> None:
        if len(self._marks) == _MARKS:
            self._marks.clear()
        self._marks[stream] = frame.first + frame.count, frame.end

    def _frames(
        self, journal: journals.Journal, part: journals.JournalPart, begin: int, after: int
    ) -> Iterator[journals.FileTransaction]:
        """The transactions of a part, from the one that holds the first record behind a position on."""
        position, offset = begin, 0
        mark = self._marks.get(part.stream)
        if mark is not None and begin <= mark[0] <= after:
            position, offset = mark
        while position < part.upto:
            last, end = journal.after(position, offset, part.end)
            if last > after:
                frame = journal.frame(position, offset, part.end)
                yield frame
            position, offset = last, end
        if (position, offset) != (part.upto, part.end):
            raise journals.JournalDamaged

    def _payload(self, run: journals.RunHead) -> Callable[[bytes], bytes]:
        def payload(digest: bytes) -> bytes:
            return read_file(os.path.join(self._place(run.run_id), digest.hex()))

        return payload

    # -- runs as a whole

    def fork(self, run_id: str, given: Transaction, now: datetime) -> None:
        """Make a run that shares a journal's beginning, up to where a transaction is appended to it."""
        with self._writing(given.run_id):

            def work(run: journals.RunHead) -> None:
                shares, digests = self._shared(run, given.expected_position)
                if self._find(given.run_id) is not None:
                    raise checks.is_taken(given.run_id)
                names = [*(_journal(index) for index in range(len(shares))), *sorted(digests)]
                links = [(os.path.join(self._place(run_id), name), name) for name in names]
                self._begun(given, pack(given.records, threshold=self._threshold), checks.micros(now), shares, links)

            self._settled(run_id, work)

    def _shared(self, run: journals.RunHead, at: int) -> tuple[Sequence[journals.JournalPart], set[str]]:
        """The parts of a journal's beginning, and the names of its large payloads."""
        shares: list[journals.JournalPart] = []
        digests: set[str] = set()
        begin = 0
        for index, part in enumerate(run.parts):
            if begin >= at:
                break
            end = 0
            with closing(self._open(run, index)) as journal:
                try:
                    for frame in self._frames(journal, part, begin, begin):
                        if frame.first >= at:
                            break
                        begin, end = frame.first + frame.count, frame.end
                        digests.update(digest.hex() for digest in frame.digests)
                except journals.JournalDamaged:
                    raise _damaged(run, begin) from None
            if end:
                shares.append(journals.JournalPart(part.stream, begin, end))
        if begin != at:
            raise checks.no_end(at)
        return shares, digests

    def delete(self, run_id: str) -> None:
        """Forget a run."""
        with self._writing(run_id):
            run = self._find(run_id)
            if run is None:
                return
            if self._is_held(run):
                raise checks.is_held()
            self._forget(run)

    def _forget(self, run: journals.RunHead) -> None:
        gone = self._folder.temporary()
        os.rename(self._place(run.run_id), gone)
        sync_folder(self._folder.at("runs"))
        # The run is gone; what cannot be deleted now is when the folder is next opened.
        with suppress(OSError):
            folder.discard(gone, self._folder.at("blobs"))

    def prune(
        self, page: PrunePage, before: datetime | None, keep: int | None, statuses: Sequence[str] | None
    ) -> PrunePage:
        """Delete what is old among the next runs, the newest first."""
        below = FARTHEST if page.below is None else page.below
        # A run that cannot be read does not keep the others from being removed; it is left for a repair.
        runs = [run for run in self._heads([]) if run.number < below][:_PRUNED_AT_ONCE]
        pruning, deleted = checks.Pruning(page.kept, before, keep, statuses), 0
        for run in runs:
            if pruning.takes(run.status, run.updated):
                deleted += self._pruned(run)
        return PrunePage(runs[-1].number if len(runs) == _PRUNED_AT_ONCE else None, pruning.kept, deleted)

    def _pruned(self, run: journals.RunHead) -> bool:
        """Delete a run, if it still is as it was found."""
        with self._writing(run.run_id):
            if self._is_held(run) or self._find(run.run_id) != run:
                return False
            self._forget(run)
            return True

    def stats(self) -> Stats:
        """How much there is."""
        heads = self._heads([])
        payloads: set[str] = set()
        sizes: dict[tuple[int, int], int] = {}
        values = 0
        for parent, _, names in os.walk(self._folder.at()):
            payloads.update(filter(folder.is_blob, names if _is_of_runs(parent, self._folder.at()) else ()))
            values += len(names) if os.path.dirname(parent) == self._folder.at("values") else 0
            for name in names:
                with suppress(FileNotFoundError):
                    status = os.lstat(os.path.join(parent, name))
                    sizes[status.st_dev, status.st_ino] = status.st_size
        return Stats(len(heads), sum(run.position for run in heads), values, len(payloads), sum(sizes.values()))

    def scrub(self) -> Sequence[str]:
        """Delete what could not be deleted at once."""
        self._folder.sweep(own=True)
        return ()

    # -- leases

    def acquire(self, run_id: str, ttl: float, now: datetime) -> Lease:
        """Become the owner; nothing runs out while it lives."""
        with self._writing(run_id):
            run = self._find(run_id)
            if run is not None and self._is_held(run):
                raise checks.is_owned("its process to end")
            return self._owned(run_id, run, checks.micros(now))

    def _owned(self, run_id: str, run: journals.RunHead | None, now: int) -> Lease:
        number = self._folder.tick() if run is None else run.number
        fence = self._folder.tick()
        if run is not None and fence <= max(run.fence, run.number):
            raise CorruptRecord("the store's counter has gone back", hint=checks.RESTORE)
        owner = self._folder.locks.owner
        try:
            if run is None:
                self._make(
                    journals.RunHead(
                        run_id, number, (journals.JournalPart(number, 0, 0),), fence, owner, now, now, None, b""
                    )
                )
            else:
                # The process that made the run may have died before its name was on the disk.
                sync_folder(self._folder.at("runs"))
                self._save(evolve(run, fence=fence, owner=owner))
        except OSError:
            # It may stand there all the same, as a lease that is never released.
            self._folder.discarded.add(fence)
            with suppress(OSError):
                taken = self._find(run_id)
                if taken is not None and taken.fence == fence:
                    self._save(evolve(taken, owner=0))
            raise
        return Lease(run_id, fence, 0 if run is None else run.position)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Look whether the lease is still held."""
        if not self._holds(self._find(lease.run_id), lease):
            raise checks.not_held()
        return lease

    def release(self, leases: Collection[Lease]) -> None:
        """End leases."""
        for lease in leases:
            with self._writing(lease.run_id):
                run = self._find(lease.run_id)
                if run is not None and self._holds(run, lease):
                    self._save(evolve(run, owner=0))

    # -- queues and inboxes: a folder has none, as a claim would have to read every run

    def enqueue(self, given: Transaction, now: datetime) -> None:
        """Refuse to queue a run, to send a signal, and to change a shared budget."""
        if given.budgets:
            raise checks.no_budgets("a folder of files")
        if given.queued is not None or given.signals:
            raise checks.no_queues("a folder of files")

    def claim(self, wanted: ClaimRequest, now: datetime) -> Sequence[Claim]:
        """Refuse to claim."""
        raise checks.no_queues("a folder of files")

    def queues(self, now: datetime) -> Sequence[QueueStats]:
        """Refuse to look at queues."""
        raise checks.no_queues("a folder of files")

    def send(self, run_id: str, key: str, body: bytes, now: datetime) -> int:
        """Refuse to send a signal."""
        raise checks.no_queues("a folder of files")

    def inbox(self, run_id: str, after: int, limit: int) -> Sequence[Signal]:
        """There are no signals."""
        return ()

    def budgets(self, name: str | None, since: str) -> Sequence[BudgetRow]:
        """Refuse to look at shared budgets, whose changes would not be one write with those of a run."""
        raise checks.no_budgets("a folder of files")

    def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Refuse to remove shared budgets."""
        raise checks.no_budgets("a folder of files")

    def _holds(self, run: journals.RunHead | None, lease: Lease) -> bool:
        return run is not None and (run.fence, run.owner) == (lease.fence, self._folder.locks.owner)


def _is_of_runs(folder: str, root: str) -> bool:
    return folder == os.path.join(root, "blobs") or os.path.dirname(folder) == os.path.join(root, "runs")


def _damaged(run: journals.RunHead, position: int) -> CorruptRecord:
    return CorruptRecord(f"run {run.run_id!r} is damaged after position {position}", hint=checks.RESTORE)
