"""Runs as a whole: leases, lists, forks, deletion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

from attrs import evolve, frozen

from noetic_postgres.checksums import FARTHEST, int8
from noetic_postgres.journals import RESTORE, Found, ended, refusal_of
from noetic_postgres.link import Row, Values
from noetic_postgres.queues import LONGEST, Queues
from noetic_py.checkpoints.adapter import PrunePage
from noetic_py.checkpoints.checks import is_held, is_owned, is_taken, no_end, no_run, not_held
from noetic_py.checkpoints.server import PackedTransaction
from noetic_py.errors import CorruptRecord, NoeticError, StoreUnavailable
from noetic_py.journal.stored import Lease, RunEntry, Stats, Transaction

__all__ = ["Runs"]

_PRUNED_AT_ONCE = 200
_FORGETTING = ("streams", "drop_shared", "drop_queued", "drop_signals", "drop_runs")


@frozen(eq=False)
class _Planned:
    """One transaction of several.

    Attributes:
        what: The transaction, with the fence of a new owner.
        number: The run's number.
        statements: What writes it; each gives one row, with the count of runs that were as they were found.
        has_blobs: Whether it has large payloads, which are stored apart.
    """

    what: Transaction
    number: int
    statements: Sequence[tuple[bytes, Values]]
    has_blobs: bool

    @property
    def lease(self) -> Lease:
        """Its owner's lease, and where the run ends with it."""
        return ended(self.what)


def _is_plain(what: Transaction) -> bool:
    """Whether it only appends to a run that has its owner."""
    return what.acquire is None and what.only_appends


def _released(leases: Collection[Lease]) -> dict[str, object]:
    return {"run_ids": [each.run_id for each in leases], "fences": [int8(each.fence) for each in leases]}


def _may_be_ready(given: Iterable[Transaction]) -> Iterator[str]:
    """The runs that transactions may have made ready: whether their time has come, the server says."""
    for each in given:
        yield from (signal.run_id for signal in each.signals)
        if each.queued is not None and each.queued.at is not None:
            yield each.run_id


class Runs(Queues):
    """Runs as a whole: leases, lists, forks, deletion."""

    # -- leases

    def acquire(self, run_id: str, ttl: float, now: datetime) -> Lease:
        """Become the owner until the server's clock says that the time is up."""
        while True:
            ticks, rows = self.link.batch(
                [(self.link.sql["tick"], {"count": 1}), (self.link.sql["find"], {"run_id": run_id})]
            )
            tick: int = ticks[0][0]
            run = self.run_of(run_id, rows[0]) if rows else None
            lease = Lease(run_id, tick, 0 if run is None else run.position)
            if run is not None:
                if rows[0][4]:
                    raise is_owned("its lease to run out")
                if tick > run.fence and self._take(run, lease, ttl):
                    self.numbers.put(run_id, run.id)
                    return lease
            elif self._create(lease, ttl):
                self.numbers.put(run_id, tick)
                return lease

    def _take(self, run: Found, lease: Lease, ttl: float) -> bool:
        return self.link.write(self.link.sql.acquire, self._taking(run, lease, ttl), lease)

    def _taking(self, run: Found, lease: Lease, ttl: float) -> dict[str, object]:
        return {
            "id": run.id,
            "position": run.position,
            "fence": run.fence,
            "new_fence": lease.fence,
            "crc": self.link.checksums.head(run.id, lease.run_id, run.position, lease.fence),
            "ttl": min(ttl, LONGEST),
        }

    def _create(self, lease: Lease, ttl: float) -> bool:
        values = self._made(lease.fence, lease.run_id, 0, lease.fence)
        return self.link.write(self.link.sql.acquire_new, {**values, "ttl": min(ttl, LONGEST)}, lease)

    def _made(
        self, number: int, run_id: str, position: int, fence: int, summary: bytes = b"", status: str | None = None
    ) -> dict[str, object]:
        """The values of a new run's row."""
        checksums = self.link.checksums
        return {
            "id": number,
            "run_id": run_id,
            "new": position,
            "fence": fence,
            "crc": checksums.head(number, run_id, position, fence),
            "ttl": None,
            "status": status,
            "status_crc": checksums.status(number, status),
            "card": summary,
            "card_crc": checksums.summary(number, summary),
            "lock": None,
        }

    def commit_many(self, given: Sequence[Sequence[Transaction]]) -> Sequence[Sequence[Lease] | NoeticError]:
        """Do commits of different runs: one append in one statement, all else in one transaction of the server."""
        if len(given) > 1 and any(what.budgets for each in given for what in each):
            # One that is refused shall not undo the others.
            raise StoreUnavailable(
                "shared budgets are changed one by one", where=self.link.address.where, reason="alone", hint="try again"
            )
        packed = [[PackedTransaction.of(what, self.threshold) for what in each] for each in given]
        if len(packed) == 1 and len(packed[0]) == 1 and _is_plain(packed[0][0].what):
            return [self.append_one(packed[0][0])]
        while (outcomes := self._commit_together(packed)) is None:
            # A run was written, taken, deleted or made again meanwhile; what is found the next time says why.
            self.link.undo()
            for each in given:
                for what in each:
                    self.numbers.drop(what.run_id)
            if len(given) > 1:
                raise StoreUnavailable(
                    "a run was changed meanwhile", where=self.link.address.where, reason="changed", hint="try again"
                )
        return outcomes

    def _commit_together(
        self, given: Sequence[Sequence[PackedTransaction]]
    ) -> Sequence[Sequence[Lease] | NoeticError] | None:
        """Do commits in one transaction; `None` if one that was not refused was not taken."""
        plain = self._plain(given)
        planned = self._planned({index: each for index, each in enumerate(given) if index not in plain})
        outcomes: dict[int, Sequence[Lease] | NoeticError] = {}
        steps: list[_Planned] = []
        for index, plan in planned.items():
            if isinstance(plan, NoeticError):
                outcomes[index] = plan
            else:
                outcomes[index] = [step.lease for step in plan]
                steps += plan
        # Every session takes the rows of several runs in the same order, so that no two wait for each other.
        steps.sort(key=lambda step: step.what.run_id)
        queueing = [step.what for step in steps if not step.what.only_appends]
        statements: list[tuple[bytes, Values | None]] = [(b"BEGIN", None)]
        if any(step.has_blobs for step in steps):
            statements.append((self.link.sql["keep"], {"lock": self.link.lock}))
        locked = len(statements)
        if queueing or (plain and steps):
            run_ids = [*(one.what.run_id for one, _ in plain.values()), *(step.what.run_id for step in steps)]
            statements += self.locking(queueing, run_ids)
        if plain:
            statements.append(self.group(sorted(plain.values(), key=lambda each: each[0].what.run_id)))
        begun = len(statements)
        statements += [statement for step in steps for statement in step.statements]
        results = self.link.batch(statements)
        if not all(count for ((count,),) in results[begun:]):
            return None
        done = {number for (number,) in results[begun - 1]} if plain else set[int]()
        for index, (one, number) in plain.items():
            outcomes[index] = [ended(one.what)] if number in done else self.append_again(one)
        result = [outcomes[index] for index in range(len(given))]
        numbers = {step.what.run_id: step.number for step in steps}
        last = self.queueing(queueing, {**dict(results[locked]), **numbers}, results[locked + 1]) if queueing else ()
        self.link.commit(result, list(last))
        self.link.ready += _may_be_ready(queueing)
        for run_id, number in numbers.items():
            self.numbers.put(run_id, number)
        return result

    def _plain(self, given: Sequence[Sequence[PackedTransaction]]) -> dict[int, tuple[PackedTransaction, int]]:
        """The commits that one statement does for all of them, by their place, with the numbers of their runs."""
        plain: dict[int, tuple[PackedTransaction, int]] = {}
        for index, each in enumerate(given):
            number = self.numbers.get(each[0].what.run_id) if len(each) == 1 else None
            if number is not None and _is_plain(each[0].what) and not each[0].packed.blobs:
                plain[index] = each[0], number
        return plain

    def _planned(self, given: Mapping[int, Sequence[PackedTransaction]]) -> dict[int, Sequence[_Planned] | NoeticError]:
        """What writes commits, or why one is refused."""
        found: dict[str, Found | CorruptRecord] = {}
        held: set[str] = set()
        unknown: list[str] = []
        for each in chain.from_iterable(given.values()):
            number = self.numbers.get(each.what.run_id) if each.what.acquire is None else None
            if number is None:
                unknown.append(each.what.run_id)
            else:
                # The statement says whether it is so.
                found[each.what.run_id] = Found(number, each.what.expected_position, each.what.fence)
        ticks = dict[str, int]()
        if unknown:
            # The numbers are drawn first: a fence has to be larger than any that is found.
            drawn, rows = self.link.batch(
                [(self.link.sql["tick"], {"count": len(unknown)}), (self.link.sql["find_all"], {"run_ids": unknown})]
            )
            ticks = {run_id: tick for run_id, (tick,) in zip(unknown, drawn, strict=True)}
            for run_id, *row in rows:
                try:
                    found[run_id] = self.run_of(run_id, tuple(row))
                except CorruptRecord as error:
                    found[run_id] = error
                if row[4]:
                    held.add(run_id)
        planned: dict[int, Sequence[_Planned] | NoeticError] = {}
        for index, commit in given.items():
            try:
                planned[index] = [
                    self._step(each, ticks.get(name := each.what.run_id, 0), found.get(name), held=name in held)
                    for each in commit
                ]
            except NoeticError as error:
                planned[index] = error
        return planned

    def _step(self, given: PackedTransaction, tick: int, run: Found | CorruptRecord | None, *, held: bool) -> _Planned:
        """What writes one transaction.

        Args:
            given: The transaction.
            tick: A number for a new run, and the fence of a new owner.
            run: The run, or what is wrong with its row.
            held: Whether it has an owner.

        Raises:
            RunBusy: Another owner holds a run that is to be acquired.
            LeaseLost: The fence is not the latest owner's.
            PositionConflict: The journal does not end where it should.
            CorruptRecord: The row is damaged.
        """
        if isinstance(run, CorruptRecord):
            raise run
        what = given.what
        if what.acquire is not None and held:
            raise is_owned("its lease to run out")
        refused = refusal_of(what, run)
        if refused is not None:
            raise refused
        number = tick if run is None else run.id
        what = evolve(what, fence=what.fence if what.acquire is None else tick)
        given = evolve(given, what=what)
        statements: list[tuple[bytes, Values]] = []
        if run is None:
            ttl = None if what.acquire is None or what.release else min(what.acquire, LONGEST)
            values = {**self.new_values(given, number), "lock": None, "ttl": ttl}
            statements.append((self.link.sql.batch_append_new, values))
        else:
            if what.acquire is not None:
                statements.append((self.link.sql.batch_acquire, self._taking(run, ended(what), what.acquire)))
            statements.append(self.appending(given, number))
        return _Planned(what, number, statements, bool(given.packed.blobs))

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Renew the lease."""
        values = {"run_id": lease.run_id, "fence": int8(lease.fence), "ttl": min(ttl, LONGEST)}
        if not self.link.rows(self.link.sql["renew"], values):
            raise not_held()
        return lease

    def release(self, leases: Collection[Lease]) -> None:
        """End leases; those that are not held any more are left as they are."""
        if leases:
            self.link.ready += [run_id for (run_id,) in self.link.rows(self.link.sql["release"], _released(leases))]

    # -- lists

    def entry(self, run_id: str) -> RunEntry | None:
        """One run, as lists show it."""
        rows = self.link.rows(self.link.sql["entry"], {"run_id": run_id})
        return self._entry(rows[0]) if rows else None

    def list(self, after: int | None, limit: int, status: str | None) -> Sequence[RunEntry]:
        """A page of runs."""
        if after == 0:
            # Only a damaged row has a number below it, and stood on the page before.
            return []
        values = {"upto": FARTHEST if after is None else after - 1, "limit": limit, "status": status}
        query = self.link.sql["list" if status is None else "list_status"]
        return [self._listed(row) for row in self.link.rows(query, values)]

    def _listed(self, row: Row) -> RunEntry:
        try:
            return self._entry(row)
        except CorruptRecord as error:
            return RunEntry.damaged(row[1], max(row[0], 0), error.message)

    def _entry(self, row: Row) -> RunEntry:
        number, run_id, position, fence, crc, status, status_crc, summary, summary_crc, created, updated, held = row
        self.run_of(run_id, (number, position, fence, crc))
        if summary_crc != self.link.checksums.summary(number, summary) or status_crc != self.link.checksums.status(
            number, status
        ):
            raise CorruptRecord("the summary or the status of a run is damaged", hint=RESTORE)
        if created is None or updated is None:
            raise CorruptRecord("a time of a run is damaged", hint=RESTORE)
        return RunEntry(
            run_id=run_id,
            position=position,
            status=status,
            summary=summary,
            created=created.astimezone(UTC),
            updated=updated.astimezone(UTC),
            held=held,
            cursor=number,
        )

    def stats(self) -> Stats:
        """How much there is."""
        ((runs, records, values, blobs, size),) = self.link.rows(
            self.link.sql["stats"], {"schema": self.link.address.schema}
        )
        return Stats(runs=runs, records=records, values=values, blobs=blobs, bytes=size)

    def scrub(self) -> Sequence[str]:
        """Delete nothing more: the files are the server's, and the data of other programs are in them too."""
        return self.link.address.left_behind

    # -- forks and deletion

    def fork(self, run_id: str, given: Transaction, now: datetime) -> None:
        """Make a run that shares a journal's beginning, up to where a transaction is appended to it."""
        at = given.expected_position
        # Summary and status are those of the run's row.
        behind = PackedTransaction.of(evolve(given, summary=None, status=None), self.threshold)
        keep = [(self.link.sql["keep"], {"lock": self.link.lock})] if behind.packed.blobs else []
        # The other run's row cannot go away before this is committed, and may change: appends go on.
        find, tick = self.link.sql["find_to_fork"], self.link.sql["tick"]
        begin: list[tuple[bytes, Values | None]] = [(b"BEGIN", None), *keep]
        rows, ticks = self.link.batch([*begin, (find, {"run_id": run_id}), (tick, {"count": 1})])[len(begin) :]
        if not rows:
            raise no_run(run_id)
        run = self.run_of(run_id, rows[0])
        parts = self._parts_upto(run, min(at, run.position + 1))
        number: int = ticks[0][0]
        values = self._made(number, given.run_id, at if parts else 0, 0, given.summary or b"", given.status)
        ((made,),) = self.link.rows(self.link.sql.fork, values)
        if not made:
            raise is_taken(given.run_id)
        shared = {
            "run": number,
            "uptos": [upto for _, upto in parts],
            "streams": [stream for stream, _ in parts],
            "crcs": [self.link.checksums.shared(number, upto, stream) for stream, upto in parts],
        }
        self.link.run(self.link.sql["share"], shared)
        if given.records:
            self.extend(behind, number)
        self.link.commit(None)

    def _parts_upto(self, run: Found, at: int) -> Sequence[tuple[int, int]]:
        """The streams that the first `at` records of a journal are in.

        Raises:
            PositionConflict: No transaction ends there.
        """
        if at == 0:
            return []
        parts: list[tuple[int, int]] = []
        for stream, upto in self.parts_of(run, self.link.rows(self.link.sql["parts"], {"id": run.id})):
            if not parts or parts[-1][1] < at:
                parts.append((stream, min(upto, at)))
        stream, upto = parts[-1]
        if at < 0 or upto != at or not self.link.rows(self.link.sql["ends"], {"stream": stream, "at": at}):
            raise no_end(at)
        return parts

    def delete(self, run_id: str) -> None:
        """Forget a run."""
        self.numbers.drop(run_id)
        # One after another: records that two runs share are deleted with the second one.
        collect = self.link.sql["collect"], {"lock": self.link.lock}
        rows = self.link.batch([(b"BEGIN", None), collect, (self.link.sql["find_to_delete"], {"run_id": run_id})])[-1]
        if not rows:
            self.link.undo()
            return
        ((number, held),) = rows
        if held:
            raise is_held()
        self._forget([number])
        self.link.commit(None)

    def _forget(self, ids: Sequence[int]) -> None:
        """Take runs away, and what is not read any more then: all of a stream, or what is behind its last fork."""
        values: Mapping[str, object] = {"ids": ids}
        rows = self.link.batch([(self.link.sql[name], values) for name in _FORGETTING])[0]
        streams = sorted({*ids, *(stream for (stream,) in rows)})
        digests = sorted({digest for (digest,) in self.link.rows(self.link.sql["trim"], {"streams": streams})})
        if digests:
            self.link.run(self.link.sql["drop_blobs"], {"digests": digests})

    def prune(
        self, page: PrunePage, before: datetime | None, keep: int | None, statuses: Sequence[str] | None
    ) -> PrunePage:
        """Delete what is old among the next runs, the newest first."""
        rows = self.link.rows(self.link.sql["old"], {"below": page.below, "before": before, "limit": _PRUNED_AT_ONCE})
        kept = page.kept
        old: list[int] = []
        for number, status, is_old, held in rows:
            if statuses is not None and status not in statuses:
                continue
            if keep is not None and kept < keep:
                kept += 1
            elif is_old and not held:
                old.append(number)
        below = rows[-1][0] if len(rows) == _PRUNED_AT_ONCE else None
        if not old:
            return PrunePage(below, kept, 0)
        values = {"ids": old, "before": before, "statuses": statuses}
        collect = self.link.sql["collect"], {"lock": self.link.lock}
        locked = self.link.batch([(b"BEGIN", None), collect, (self.link.sql["lock_old"], values)])[-1]
        ids = [number for (number,) in locked]
        self._forget(ids)
        result = PrunePage(below, kept, len(ids))
        self.link.commit(result)
        return result
