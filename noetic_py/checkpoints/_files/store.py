"""What is done to the folder, in one thread; each part of it that is written is locked against other processes.

Who reads locks nothing: small files are replaced whole, journals only grow, and where something was replaced or deleted
in between, it is read again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import TypeVar

from attrs import evolve

from noetic_py.checkpoints._files import blobs
from noetic_py.checkpoints._files.frames import Frame, Journal, JournalDamaged, framed
from noetic_py.checkpoints._files.heads import Part, RunHead, load_head, store_head
from noetic_py.checkpoints._files.place import Folder
from noetic_py.checkpoints._files.sealed import read_file, write_new
from noetic_py.checkpoints._files.values import Values
from noetic_py.checkpoints._local.folders import sync_folder
from noetic_py.checkpoints._local.pages import FAR, Page, PrunePage
from noetic_py.checkpoints._local.rules import (
    RESTORE,
    Pruning,
    check_turn,
    is_held,
    is_taken,
    no_end,
    no_run,
    not_held,
)
from noetic_py.checkpoints.backend import Head, Lease, Record, RunEntry, Stats, Transaction
from noetic_py.checkpoints.packing import Packed, pack, pack_scope, unpack
from noetic_py.errors import CorruptRecord

__all__ = ["FileStore"]

T = TypeVar("T")

_MARKS = 512
_NOTHING = Packed(b"", {})


def _journal(index: int) -> str:
    return f"journal-{index}"


class FileStore(Values):
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

    # -- as the thread uses it: nothing is done in groups

    def begin(self, *, write: bool) -> None:
        """Look whether the folder is still there."""
        if write:
            self._folder.check()

    def savepoint(self) -> None:
        """Nothing: each piece is whole by itself."""

    def release(self, *, undo: bool) -> None:
        """Nothing."""

    def undo(self) -> None:
        """Nothing."""

    def commit(self) -> None:
        """Nothing: what was written is on the disk."""

    def rollback(self) -> None:
        """Nothing."""

    def patience(self) -> None:
        """Nothing is held between two pieces of work."""

    def close(self) -> None:
        """Nothing is open."""

    # -- heads of runs

    def _place(self, run_id: str) -> str:
        return self._folder.at("runs", hashlib.sha256(pack_scope((run_id,))).hexdigest())

    def _writing(self, run_id: str) -> AbstractContextManager[None]:
        return self._folder.holding(b"run" + pack_scope((run_id,)))

    def _find(self, run_id: str) -> RunHead | None:
        place, what = self._place(run_id), f"the head of run {run_id!r}"
        head = self._head_at(place, what)
        if head is not None and head.run_id != run_id:
            raise CorruptRecord(f"{what} is that of another run", hint=RESTORE)
        return head

    def _head_at(self, place: str, what: str) -> RunHead | None:
        path = os.path.join(place, "head")
        for _ in range(2):
            with suppress(FileNotFoundError):
                return load_head(read_file(path), what, seed=self._folder.seed)
            # A run comes and goes with its folder, perhaps between these two.
            if not os.path.lexists(place):
                return None
        raise CorruptRecord(f"{what} is missing", hint=RESTORE)

    def _require(self, run_id: str) -> RunHead:
        run = self._find(run_id)
        if run is None:
            raise no_run()
        return run

    def _heads(self) -> Sequence[RunHead]:
        """All of them, the newest first."""
        found: list[RunHead] = []
        for name in os.listdir(self._folder.at("runs")):
            run = self._head_at(self._folder.at("runs", name), f"the head of the run in {name}")
            if run is None:
                continue
            if os.path.basename(self._place(run.run_id)) != name:
                raise CorruptRecord(f"run {run.run_id!r} is in the place of another one", hint=RESTORE)
            found.append(run)
        return sorted(found, key=lambda run: -run.number)

    def _save(self, run: RunHead) -> None:
        self._folder.replace(self._place(run.run_id), "head", store_head(run, seed=self._folder.seed))

    def _is_held(self, run: RunHead) -> bool:
        return run.owner != 0 and run.fence not in self._folder.void and self._folder.locks.alive(run.owner)

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
        below = FAR if after is None else after
        fit = [run for run in self._heads() if run.number < below and (status is None or run.status == status)]
        return [run.entry(held=self._is_held(run)) for run in fit[:limit]]

    # -- writing journals

    def append(self, given: Transaction, now: int) -> int:
        """Append one transaction."""
        with self._writing(given.run_id):
            run = self._find(given.run_id)
            check_turn(given, 0 if run is None else run.position, 0 if run is None else run.fence)
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
                    card=run.card if given.card is None else bytes(given.card),
                    status=run.status if given.status is None else given.status,
                )
            )
            return own.upto

    def _begun(self, given: Transaction, packed: Packed, now: int) -> int:
        """Make a run by its first transaction."""
        count, number = len(given.records), self._folder.tick()
        data = framed(packed, 0, count, stream=number, seed=self._folder.seed) if count else b""
        parts = (Part(number, count, len(data)),)
        run = RunHead(given.run_id, number, parts, 0, 0, now, now, given.status, bytes(given.card or b""))
        self._make(run, data, packed)
        return count

    def _extended(self, run: RunHead, packed: Packed, count: int) -> Part:
        """Write a transaction behind the end of a run's own journal."""
        own, place = run.own, self._place(run.run_id)
        data = framed(packed, own.upto, count, stream=own.stream, seed=self._folder.seed)
        self._keep(place, packed)
        try:
            with closing(self._open(run, len(run.parts) - 1, write=True)) as journal:
                journal.append(data, own.upto, own.end)
        except (JournalDamaged, FileNotFoundError):
            raise _damaged(run, own.upto) from None
        return Part(own.stream, own.upto + count, own.end + len(data))

    def _keep(self, place: str, packed: Packed) -> None:
        for digest, payload in packed.blobs.items():
            blobs.keep(place, self._folder.at("blobs"), self._folder.temporary(), digest, payload)
        if packed.blobs:
            sync_folder(place)

    def _make(
        self, run: RunHead, data: bytes = b"", packed: Packed = _NOTHING, links: Iterable[tuple[str, str]] = ()
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
                blobs.link(path, os.path.join(made, name))
            self._keep(made, packed)
            write_new(os.path.join(made, _journal(len(run.parts) - 1)), data)
            write_new(os.path.join(made, "head"), store_head(run, seed=self._folder.seed))
            sync_folder(made)
            os.rename(made, self._place(run.run_id))
        except BaseException:
            with suppress(OSError):
                blobs.discard(made, self._folder.at("blobs"))
            raise
        sync_folder(self._folder.at("runs"))

    # -- reading journals

    def _open(self, run: RunHead, index: int, *, write: bool = False) -> Journal:
        path = os.path.join(self._place(run.run_id), _journal(index))
        return Journal(path, stream=run.parts[index].stream, seed=self._folder.seed, write=write)

    def _settled(self, run_id: str, work: Callable[[RunHead], T]) -> T:
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
                    raise CorruptRecord(f"a file of run {run_id!r} is missing", hint=RESTORE) from None
                run = now

    def read(self, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """A page of records."""
        return self._settled(run_id, lambda run: self._page(run, Page(after, limit)))

    def _page(self, run: RunHead, page: Page) -> Sequence[Record]:
        begin = 0
        for index, part in enumerate(run.parts):
            if page.at < part.upto:
                self._read_part(run, index, begin, page)
            if page.full:
                break
            begin = part.upto
        return page.records[: page.limit]

    def _read_part(self, run: RunHead, index: int, begin: int, page: Page) -> None:
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
            except JournalDamaged:
                self._marks.pop(part.stream, None)
                raise _damaged(run, page.at) from None
            except CorruptRecord as error:
                raise CorruptRecord(
                    f"run {run.run_id!r}, after position {page.at}: {error.message}", hint=RESTORE
                ) from None

    def _mark(self, stream: int, frame: Frame) -> None:
        if len(self._marks) == _MARKS:
            self._marks.clear()
        self._marks[stream] = frame.first + frame.count, frame.end

    def _frames(self, journal: Journal, part: Part, begin: int, after: int) -> Iterator[Frame]:
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
            raise JournalDamaged

    def _payload(self, run: RunHead) -> Callable[[bytes], bytes]:
        def payload(digest: bytes) -> bytes:
            return read_file(os.path.join(self._place(run.run_id), digest.hex()))

        return payload

    # -- runs as a whole

    def fork(self, run_id: str, at: int, new_run_id: str, card: bytes | None, status: str | None, now: int) -> None:
        """Make a run that shares a journal's beginning."""
        with self._writing(new_run_id):

            def work(run: RunHead) -> None:
                shares, digests = self._shared(run, at)
                if self._find(new_run_id) is not None:
                    raise is_taken(new_run_id)
                number = self._folder.tick()
                parts = (*shares, Part(number, at, 0))
                names = [*(_journal(index) for index in range(len(shares))), *sorted(digests)]
                made = RunHead(new_run_id, number, parts, 0, 0, now, now, status, bytes(card or b""))
                links = [(os.path.join(self._place(run_id), name), name) for name in names]
                self._make(made, links=links)

            self._settled(run_id, work)

    def _shared(self, run: RunHead, at: int) -> tuple[Sequence[Part], set[str]]:
        """The parts of a journal's beginning, and the names of its large payloads."""
        shares: list[Part] = []
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
                except JournalDamaged:
                    raise _damaged(run, begin) from None
            if end:
                shares.append(Part(part.stream, begin, end))
        if begin != at:
            raise no_end(at)
        return shares, digests

    def delete(self, run_id: str) -> None:
        """Forget a run."""
        with self._writing(run_id):
            run = self._find(run_id)
            if run is None:
                return
            if self._is_held(run):
                raise is_held(deleting=True)
            self._forget(run)

    def _forget(self, run: RunHead) -> None:
        gone = self._folder.temporary()
        os.rename(self._place(run.run_id), gone)
        sync_folder(self._folder.at("runs"))
        # The run is gone; what cannot be deleted now is when the folder is next opened.
        with suppress(OSError):
            blobs.discard(gone, self._folder.at("blobs"))

    def prune(
        self, page: PrunePage, before: int | None, keep: int | None, statuses: Collection[str] | None, limit: int
    ) -> PrunePage:
        """Delete what is old among the next runs, the newest first."""
        below = FAR if page.below is None else page.below
        runs = [run for run in self._heads() if run.number < below][:limit]
        pruning, deleted = Pruning(page.kept, before, keep, statuses), 0
        for run in runs:
            if pruning.takes(run.status, run.updated):
                deleted += self._pruned(run)
        return PrunePage(runs[-1].number if len(runs) == limit else None, pruning.kept, deleted)

    def _pruned(self, run: RunHead) -> bool:
        """Delete a run, if it still is as it was found."""
        with self._writing(run.run_id):
            if self._is_held(run) or self._find(run.run_id) != run:
                return False
            self._forget(run)
            return True

    def stats(self) -> Stats:
        """How much there is."""
        heads = self._heads()
        payloads: set[str] = set()
        sizes: dict[tuple[int, int], int] = {}
        values = 0
        for folder, _, names in os.walk(self._folder.at()):
            payloads.update(filter(blobs.is_blob, names if _is_of_runs(folder, self._folder.at()) else ()))
            values += len(names) if os.path.dirname(folder) == self._folder.at("values") else 0
            for name in names:
                with suppress(FileNotFoundError):
                    status = os.lstat(os.path.join(folder, name))
                    sizes[status.st_dev, status.st_ino] = status.st_size
        return Stats(len(heads), sum(run.position for run in heads), values, len(payloads), sum(sizes.values()))

    # -- leases

    def acquire(self, run_id: str, now: int) -> Lease:
        """Become the owner."""
        with self._writing(run_id):
            run = self._find(run_id)
            if run is not None and self._is_held(run):
                raise is_held(deleting=False)
            return self._owned(run_id, run, now)

    def _owned(self, run_id: str, run: RunHead | None, now: int) -> Lease:
        number = self._folder.tick() if run is None else run.number
        fence = self._folder.tick()
        if run is not None and fence <= max(run.fence, run.number):
            raise CorruptRecord("the store's counter has gone back", hint=RESTORE)
        owner = self._folder.locks.owner
        try:
            if run is None:
                self._make(RunHead(run_id, number, (Part(number, 0, 0),), fence, owner, now, now, None, b""))
            else:
                # Whoever has made the run may have died before its name was on the disk.
                sync_folder(self._folder.at("runs"))
                self._save(evolve(run, fence=fence, owner=owner))
        except OSError:
            # It may stand there all the same, as a lease that nobody will ever give back.
            self._folder.void.add(fence)
            with suppress(OSError):
                taken = self._find(run_id)
                if taken is not None and taken.fence == fence:
                    self._save(evolve(taken, owner=0))
            raise
        return Lease(run_id, fence)

    def renew(self, lease: Lease) -> Lease:
        """Look whether the lease is still held; nothing runs out while its owner lives."""
        if not self._holds(self._find(lease.run_id), lease):
            raise not_held()
        return lease

    def give_back(self, lease: Lease) -> None:
        """End a lease."""
        with self._writing(lease.run_id):
            run = self._find(lease.run_id)
            if run is not None and self._holds(run, lease):
                self._save(evolve(run, owner=0))

    def _holds(self, run: RunHead | None, lease: Lease) -> bool:
        return run is not None and (run.fence, run.owner) == (lease.fence, self._folder.locks.owner)


def _is_of_runs(folder: str, root: str) -> bool:
    return folder == os.path.join(root, "blobs") or os.path.dirname(folder) == os.path.join(root, "runs")


def _damaged(run: RunHead, position: int) -> CorruptRecord:
    return CorruptRecord(f"run {run.run_id!r} is damaged after position {position}", hint=RESTORE)
