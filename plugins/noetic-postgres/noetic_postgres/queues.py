"""Queues and inboxes: which runs may be claimed, and the signals that wake them.

A place in a queue and an inbox change only while the row of their run is locked, so that what wakes a run and what
lets it sleep see each other, and a later signal never becomes visible before an earlier one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import zip_longest

from attrs import evolve, frozen

from noetic_postgres.checksums import FARTHEST, int8
from noetic_postgres.journals import RESTORE, Journals
from noetic_postgres.link import Row, Values
from noetic_postgres.schema import lock_of
from noetic_py.checkpoints import budgets
from noetic_py.checkpoints.checks import no_run
from noetic_py.checkpoints.turns import Candidate, ClaimRequest
from noetic_py.errors import CorruptRecord
from noetic_py.journal.stored import BudgetRow, Claim, Lease, Queued, QueueStats, Signal, Transaction

__all__ = ["LONGEST", "Queues"]

LONGEST = 3e8
"""The longest lease: ten years; the server's own times end somewhere."""
# To plan the statement of a claim takes longer than to run it, and its plan is the same for all values.
_ONE_PLAN = b"SET LOCAL plan_cache_mode = force_generic_plan"


@frozen
class _Ready:
    """A run that may be claimed, and whose row is locked.

    Attributes:
        id: The run's number.
        crc: The checksum of the row of the run as it will be.
        claim: What its new owner gets.
    """

    id: int
    crc: int
    claim: Claim


class Queues(Journals):
    """Queues and inboxes."""

    def clock(self) -> float:
        """The server's clock."""
        seconds: float
        ((seconds,),) = self.link.rows(self.link.sql["clock"])
        return seconds

    # -- claiming

    def claim(self, wanted: ClaimRequest, now: datetime) -> Sequence[Claim]:
        """Become the owner of queued runs until the server's clock says that the time is up."""
        values: Values = {"queues": list(wanted.queues), "flows": list(wanted.flows), "limit": wanted.limit}
        moved, counts, taken = self._without_keys(values, wanted)
        if counts:
            taken = self._in_turn(values, wanted)
        claims = [each.claim for each in taken]
        if not taken:
            if moved:
                self.link.batch([(b"COMMIT", None)])
            self.link.undo()
            return claims
        claim = {
            "ids": [each.id for each in taken],
            "fences": [each.lease.fence for each in claims],
            "crcs": [each.crc for each in taken],
            "lives": [each.lives for each in claims],
            "ttl": min(wanted.ttl, LONGEST),
        }
        self.link.commit(claims, [(self.link.sql["claim"], claim)])
        for each in taken:
            self.numbers.put(each.claim.lease.run_id, each.id)
        return claims

    def _without_keys(self, values: Values, wanted: ClaimRequest) -> tuple[bool, bool, Sequence[_Ready]]:
        """Lock runs that may be claimed; where that depends on what is at work, say only so.

        Returns:
            Whether runs have become due, whether those at work are to be counted, and the runs.
        """
        sql, damaged = self.link.sql, list[int]()
        due = sql["due"], {**values, "limited": list(wanted.limits)}
        opened = [(b"BEGIN", None), (_ONE_PLAN, None), due, (sql["ready"], {**values, "damaged": damaged})]
        *_, ((moved, counts),), rows = self.link.batch(opened)
        if counts:
            return moved, True, ()
        while (found := self._all_checked(rows, damaged)) is None:
            rows = self.link.rows(sql["ready"], {**values, "damaged": damaged})
        # Of several queues each gives as many as are wanted.
        return moved, False, sorted(found, key=_turn)[: wanted.limit]

    def _in_turn(self, values: Values, wanted: ClaimRequest) -> Sequence[_Ready]:
        """Lock runs that may be claimed, in the order of their turns; only one claim at a time counts those at work."""
        sql = self.link.sql
        locks = sorted(lock_of(f"{self.link.address.schema}\0queue\0{queue}") for queue in wanted.queues)
        counted = self.link.batch([(sql["lock"], {"locks": locks}), (sql["at_work"], values)])[-1]
        at_work = {row[:2]: row[2] for row in counted}
        pages = (self.numbers.turns.pages(queue, partial(self._keys, queue)) for queue in wanted.queues)
        for page in zip_longest(*pages, fillvalue=()):
            lanes = [(queue, key) for queue, keys in zip(wanted.queues, page, strict=True) for key in keys]
            looked = {**values, "queues": [queue for queue, _ in lanes], "keys": [key for _, key in lanes]}
            if found := self._chosen(looked, at_work, wanted):
                return found
        return ()

    def _chosen(self, looked: Values, at_work: Mapping[tuple[str, str], int], wanted: ClaimRequest) -> Sequence[_Ready]:
        """Lock those of some keys whose turn it is."""
        sql, damaged = self.link.sql, list[int]()
        while True:
            found = self.link.rows(sql["next"], {**looked, "damaged": damaged})
            waiting = [
                Candidate(Queued(queue, flow, at, priority, key), run, run)
                for run, queue, flow, at, priority, key in found
            ]
            order = [each.run for each in self.numbers.turns.choose(waiting, at_work, wanted)]
            rows = self.link.rows(sql["chosen"], {"chosen": order}) if order else []
            ready = self._all_checked(rows, damaged)
            if ready is not None:
                return sorted(ready, key=lambda each: order.index(each.id))

    def _keys(self, queue: str, low: str, most: int) -> Sequence[str]:
        return [key for (key,) in self.link.rows(self.link.sql["keys"], {"queue": queue, "low": low, "most": most})]

    def _all_checked(self, rows: Sequence[Row], damaged: list[int]) -> Sequence[_Ready] | None:
        """Runs that were locked; `None` if some are damaged: these do not keep those behind them from being claimed."""
        found: list[_Ready] = []
        for row in rows:
            try:
                found.append(self._checked_ready(row))
            except CorruptRecord:
                damaged.append(row[0])
        return found if len(found) == len(rows) else None

    def _checked_ready(self, row: Row) -> _Ready:
        number, queue, flow, at, priority, key, crc, lives, run_id, position, fence, head_crc, *rest = row
        signals, new_fence, now = rest
        self.run_of(run_id, (number, position, fence, head_crc))
        queued = Queued(queue, flow, at, priority, key)
        self._check_place(queued, crc)
        lease = Lease(run_id, new_fence, position)
        return _Ready(
            number,
            self.link.checksums.head(number, run_id, position, new_fence),
            Claim(lease, queued, lives + 1, now, signals),
        )

    def _check_place(self, queued: Queued, crc: int) -> None:
        if crc != self.link.checksums.queued(queued):
            raise CorruptRecord("the place of a run in a queue is damaged", hint=RESTORE)

    def queues(self, now: datetime) -> Sequence[QueueStats]:
        """How full each queue is."""
        found: dict[tuple[str, str], QueueStats] = {}
        for queue, flow, priority, key, crc, owned, ready, waiting, since in self.link.rows(self.link.sql["queues"]):
            self._check_place(Queued(queue, flow, None, priority, key), crc)
            stats = found.get((queue, flow)) or QueueStats(queue, flow, 0, 0, 0, None)
            found[queue, flow] = evolve(
                stats,
                ready=stats.ready + ready,
                owned=stats.owned + owned,
                waiting=stats.waiting + waiting,
                since=min((each for each in (stats.since, since) if each is not None), default=None),
            )
        return list(found.values())

    # -- signals

    def send(self, run_id: str, key: str, body: bytes, now: datetime) -> int:
        """Put a signal into a run's inbox, and let the run be claimed."""
        sql = self.link.sql
        runs, there, ticks = self.link.batch(
            [
                (b"BEGIN", None),
                (sql["lock_runs"], {"run_ids": [run_id]}),
                (sql["signal"], {"run_id": run_id, "name": _name_of(key)}),
                (sql["tick"], {"count": 1}),
            ]
        )[1:]
        if not runs:
            raise no_run(run_id)
        number: int
        ((number,),) = there or ticks
        if there:
            # It has woken the run, or what lets the run sleep has seen it.
            self.link.undo()
        else:
            self.link.commit(number, list(self._sending([Signal(run_id, key, body, number)], dict(runs))))
            self.link.ready.append(run_id)
        return number

    def _sending(self, signals: Sequence[Signal], numbers: Mapping[str, int]) -> Iterator[tuple[bytes, Values]]:
        """What puts signals into inboxes and lets their runs be claimed; those of runs that are not there get none."""
        sent = [(numbers[each.run_id], each) for each in signals if each.run_id in numbers]
        if sent:
            yield (
                self.link.sql["send"],
                {
                    "runs": [run for run, _ in sent],
                    "numbers": [each.number for _, each in sent],
                    "names": [_name_of(each.key) for _, each in sent],
                    "keys": [each.key for _, each in sent],
                    "crcs": [self.link.checksums.signal(run, each.number, each.key, each.body) for run, each in sent],
                    "bodies": [bytes(each.body) for _, each in sent],
                },
            )
            yield self.link.sql["wake"], {"ids": [run for run, _ in sent]}

    def inbox(self, run_id: str, after: int, limit: int) -> Sequence[Signal]:
        """A page of a run's signals."""
        values = {"run_id": run_id, "after": after, "limit": limit}
        found: list[Signal] = []
        for run, number, key, crc, body in self.link.rows(self.link.sql["inbox"], values):
            if crc != self.link.checksums.signal(run, number, key, body):
                raise CorruptRecord(f"a signal of run {run_id!r} is damaged", hint=RESTORE)
            found.append(Signal(run_id, key, body, number))
        return found

    # -- what a commit does with them

    def locking(self, given: Sequence[Transaction], run_ids: Collection[str]) -> list[tuple[bytes, Values]]:
        """What comes before the appends of a commit.

        It locks the rows of all runs that the transaction of the server writes, and gives their numbers; and draws
        those of the signals.
        """
        signals = [signal for each in given for signal in each.signals]
        names = {*run_ids, *(each.run_id for each in signals)}
        return [
            (self.link.sql["lock_runs"], {"run_ids": sorted(names)}),
            (self.link.sql["tick"], {"count": len(signals)}),
        ]

    def queueing(
        self, given: Sequence[Transaction], numbers: Mapping[str, int], ticks: Sequence[Row]
    ) -> Iterator[tuple[bytes, Values]]:
        """What comes after the appends of a commit.

        Args:
            given: The transactions.
            numbers: The numbers of their runs, and of those that get signals.
            ticks: The numbers of the signals.
        """
        signals = [signal for each in given for signal in each.signals]
        yield from self._sending(
            [evolve(signal, number=tick) for signal, (tick,) in zip(signals, ticks, strict=True)], numbers
        )
        read = [(numbers[each.run_id], FARTHEST if each.ended else int8(each.read)) for each in given]
        yield self.link.sql["drop_read"], {"runs": [run for run, _ in read], "numbers": [upto for _, upto in read]}
        placed = [(numbers[each.run_id], each.queued, each.release) for each in given if each.queued is not None]
        if placed:
            checksums = self.link.checksums
            yield (
                self.link.sql["enqueue"],
                {
                    "runs": [run for run, *_ in placed],
                    "queues": [to.queue for _, to, _ in placed],
                    "flows": [to.flow for _, to, _ in placed],
                    "ats": [None if to.at is None else float(to.at) for _, to, _ in placed],
                    "priorities": [to.priority for _, to, _ in placed],
                    "crcs": [checksums.queued(to) for _, to, _ in placed],
                    "keys": [to.key for _, to, _ in placed],
                    "given_up": [given_up for *_, given_up in placed],
                },
            )
        ended = [numbers[each.run_id] for each in given if each.ended]
        if ended:
            yield self.link.sql["drop_queued"], {"ids": ended}
        if any(each.budgets for each in given):
            yield from self._changing_budgets(given)

    # -- shared budgets

    def _changing_budgets(self, given: Sequence[Transaction]) -> list[tuple[bytes, Values]]:
        """What changes shared budgets in a transaction of the server that is open; it locks their rows.

        Raises:
            BudgetExceeded: One of them would pass a limit.
            CorruptRecord: A row is not what was written.
        """
        places = budgets.places_of(given)
        names, periods = [name for name, _ in places], [period for _, period in places]
        sql, sums = self.link.sql, self.link.checksums
        schema = self.link.address.schema
        # In one order for every session. Two rows with the same number only wait for each other.
        locks = sorted({lock_of(f"{schema}\0{name}\0{period}") for name, period in places})
        found = self.link.batch(
            [(sql["lock"], {"locks": locks}), (sql["find_budgets"], {"names": names, "periods": periods})]
        )[1]
        after = budgets.rows_after(given, {row[:2]: self._budget(row) for row in found})
        bodies = [budgets.dump_row(after[place]) for place in places]
        crcs = [sums.budget(*place, body) for place, body in zip(places, bodies, strict=True)]
        return [(sql["put_budgets"], {"names": names, "periods": periods, "crcs": crcs, "bodies": bodies})]

    def _budget(self, row: Row) -> BudgetRow:
        name, period, crc, body = row
        if crc != self.link.checksums.budget(name, period, body):
            raise CorruptRecord(f"the row of shared budget {name!r} is damaged", hint=RESTORE)
        return budgets.load_row(name, period, body)

    def budgets(self, name: str | None, since: str) -> Sequence[BudgetRow]:
        """The rows of shared budgets."""
        rows = self.link.rows(self.link.sql["budgets"], {"name": name, "since": since})
        return [self._budget(row) for row in rows]

    def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows of shared budgets that no run holds anything of."""
        sql, names, periods = self.link.sql, [name for name, _ in places], [period for _, period in places]
        found = self.link.rows(sql["find_budgets"], {"names": names, "periods": periods})
        free = [row for row in found if not self._budget(row).held]
        # One that has changed since, or is being changed, stays.
        bodies = [body for *_, body in free]
        values = {"names": [row[0] for row in free], "periods": [row[1] for row in free], "bodies": bodies}
        self.link.run(sql["drop_budgets"], values)


def _turn(ready: _Ready) -> tuple[int, float, int]:
    """What decides which of two runs goes first."""
    queued = ready.claim.queued
    return -queued.priority, queued.at or 0.0, ready.id


def _name_of(key: str) -> bytes:
    """A key as an index finds it."""
    return hashlib.sha256(key.encode()).digest()
