"""Runs as a whole: leases, lists, forks, deletion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from noetic_postgres.journals import RESTORE, Found, Numbers, parts_of, run_of
from noetic_postgres.link import Link, Row
from noetic_postgres.sums import FARTHEST, int8
from noetic_py.checkpoints.backend import Lease, RunEntry, Stats
from noetic_py.checkpoints.served import PrunePage
from noetic_py.errors import CorruptRecord, LeaseLost, PositionConflict, RunBusy, RunNotFound

__all__ = ["acquire", "delete", "entry", "fork", "give_back", "list_runs", "prune", "renew", "stats"]

# Ten years; the server's own times end somewhere.
_LONGEST = 3e8


# ---------------------------------------------------------------------------------------------------- leases


def acquire(link: Link, run_id: str, ttl: float, numbers: Numbers) -> Lease:
    """Become the owner until the server's clock says that the time is up."""
    while True:
        ticks, rows = link.batch([(link.sql["tick"], {"count": 1}), (link.sql["find"], {"run_id": run_id})])
        tick: int = ticks[0][0]
        lease = Lease(run_id, tick)
        if rows:
            run = run_of(link, run_id, rows[0])
            if rows[0][4]:
                raise RunBusy("another owner holds the run", hint="wait for it to end, or for its lease to run out")
            if tick > run.fence and _take(link, run, lease, ttl):
                numbers.put(run_id, run.id)
                return lease
        elif _create(link, lease, ttl):
            numbers.put(run_id, tick)
            return lease


def _take(link: Link, run: Found, lease: Lease, ttl: float) -> bool:
    values = {
        "id": run.id,
        "position": run.position,
        "fence": run.fence,
        "new_fence": lease.fence,
        "crc": link.sums.head(run.id, lease.run_id, run.position, lease.fence),
        "ttl": min(ttl, _LONGEST),
    }
    return link.write(link.sql.acquire, values, lease)


def _create(link: Link, lease: Lease, ttl: float) -> bool:
    values = _made(link, lease.fence, lease.run_id, 0, lease.fence)
    return link.write(link.sql.acquire_new, {**values, "ttl": min(ttl, _LONGEST)}, lease)


def _made(
    link: Link, number: int, run_id: str, position: int, fence: int, card: bytes = b"", status: str | None = None
) -> dict[str, object]:
    """The values of a new run's row."""
    sums = link.sums
    return {
        "id": number,
        "run_id": run_id,
        "new": position,
        "fence": fence,
        "crc": sums.head(number, run_id, position, fence),
        "ttl": None,
        "status": status,
        "status_crc": sums.status(number, status),
        "card": card,
        "card_crc": sums.card(number, card),
        "lock": None,
    }


def renew(link: Link, lease: Lease, ttl: float) -> Lease:
    """Begin the time anew."""
    values = {"run_id": lease.run_id, "fence": int8(lease.fence), "ttl": min(ttl, _LONGEST)}
    if not link.rows(link.sql["renew"], values):
        raise LeaseLost("the lease is not held any more", hint="acquire the run again")
    return lease


def give_back(link: Link, leases: Collection[Lease]) -> None:
    """End leases; those that are not held any more are left as they are."""
    if leases:
        values = {"run_ids": [each.run_id for each in leases], "fences": [int8(each.fence) for each in leases]}
        link.run(link.sql["release"], values)


# ---------------------------------------------------------------------------------------------------- lists


def entry(link: Link, run_id: str) -> RunEntry | None:
    """One run, as lists show it."""
    rows = link.rows(link.sql["entry"], {"run_id": run_id})
    return _entry(link, rows[0]) if rows else None


def list_runs(link: Link, after: int | None, limit: int, status: str | None) -> list[RunEntry]:
    """A page of runs."""
    values = {"below": FARTHEST if after is None else min(after, FARTHEST), "limit": limit, "status": status}
    return [_entry(link, row) for row in link.rows(link.sql["list" if status is None else "list_status"], values)]


def _entry(link: Link, row: Row) -> RunEntry:
    number, run_id, position, fence, crc, status, status_crc, card, card_crc, created, updated, held = row
    run_of(link, run_id, (number, position, fence, crc))
    if card_crc != link.sums.card(number, card) or status_crc != link.sums.status(number, status):
        raise CorruptRecord("the card or the status of a run is damaged", hint=RESTORE)
    return RunEntry(
        run_id=run_id,
        position=position,
        status=status,
        card=card,
        created=created.astimezone(UTC),
        updated=updated.astimezone(UTC),
        held=held,
        cursor=number,
    )


def stats(link: Link) -> Stats:
    """How much there is."""
    ((runs, records, values, blobs, size),) = link.rows(link.sql["stats"], {"schema": link.address.schema})
    return Stats(runs=runs, records=records, values=values, blobs=blobs, bytes=size)


# ---------------------------------------------------------------------------------------------------- forks


def fork(link: Link, run_id: str, at: int, new_run_id: str, card: bytes | None, status: str | None) -> None:
    """Make a run that shares a journal's beginning."""
    # The other run's row cannot go away before this is committed, and may change: appends go on.
    rows, ticks = link.batch(
        [(b"BEGIN", None), (link.sql["find_to_fork"], {"run_id": run_id}), (link.sql["tick"], {"count": 1})]
    )[1:]
    if not rows:
        raise RunNotFound("there is no such run", hint="look at the run's id, and at the backend it was written to")
    run = run_of(link, run_id, rows[0])
    parts = _parts_upto(link, run, min(at, run.position + 1))
    number: int = ticks[0][0]
    ((made,),) = link.rows(link.sql.fork, _made(link, number, new_run_id, at if parts else 0, 0, card or b"", status))
    if not made:
        raise PositionConflict(f"run {new_run_id!r} exists already", hint="fork to a new id")
    shared = {
        "run": number,
        "uptos": [upto for _, upto in parts],
        "streams": [stream for stream, _ in parts],
        "crcs": [link.sums.shared(number, upto, stream) for stream, upto in parts],
    }
    link.run(link.sql["share"], shared)
    link.commit(None)


def _parts_upto(link: Link, run: Found, at: int) -> list[tuple[int, int]]:
    """The streams that the first `at` records of a journal are in.

    Raises:
        PositionConflict: No transaction ends there.
    """
    if at == 0:
        return []
    parts: list[tuple[int, int]] = []
    for stream, upto in parts_of(link, run, link.rows(link.sql["parts"], {"id": run.id})):
        if not parts or parts[-1][1] < at:
            parts.append((stream, min(upto, at)))
    stream, upto = parts[-1]
    if at < 0 or upto != at or not link.rows(link.sql["ends"], {"stream": stream, "at": at}):
        raise PositionConflict(f"{at} is not the end of a transaction", hint="take a position of a checkpoint")
    return parts


# ---------------------------------------------------------------------------------------------------- deletion


def delete(link: Link, run_id: str, numbers: Numbers) -> None:
    """Forget a run."""
    numbers.drop(run_id)
    # One after another: what two runs share goes with the second, and only who sees the first gone knows that.
    rows = link.batch(
        [(b"BEGIN", None), (link.sql["collect"], {"lock": link.lock}), (link.sql["find_to_delete"], {"run_id": run_id})]
    )[-1]
    if not rows:
        link.undo()
        return
    ((number, held),) = rows
    if held:
        raise RunBusy("an owner holds the run", hint="wait for it to end, then delete it")
    _forget(link, [number])
    link.commit(None)


def _forget(link: Link, ids: Sequence[int]) -> None:
    """Take runs away, and what nobody reads any more then: all of a stream, or what is behind its last fork."""
    values: Mapping[str, object] = {"ids": ids}
    rows = link.batch(
        [(link.sql["streams"], values), (link.sql["drop_shared"], values), (link.sql["drop_runs"], values)]
    )[0]
    streams = sorted({*ids, *(stream for (stream,) in rows)})
    digests = sorted({digest for (digest,) in link.rows(link.sql["trim"], {"streams": streams})})
    if digests:
        link.run(link.sql["drop_blobs"], {"digests": digests})


def prune(
    link: Link,
    page: PrunePage,
    before: datetime | None,
    keep: int | None,
    statuses: Sequence[str] | None,
    limit: int,
) -> PrunePage:
    """Delete what is old among the next runs, the newest first."""
    rows = link.rows(link.sql["old"], {"below": page.below, "before": before, "limit": limit})
    kept = page.kept
    old: list[int] = []
    for number, status, is_old, held in rows:
        if statuses is not None and status not in statuses:
            continue
        if keep is not None and kept < keep:
            kept += 1
        elif is_old and not held:
            old.append(number)
    below = rows[-1][0] if len(rows) == limit else None
    if not old:
        return PrunePage(below, kept, 0)
    values = {"ids": old, "before": before, "statuses": statuses}
    locked = link.batch([(b"BEGIN", None), (link.sql["collect"], {"lock": link.lock}), (link.sql["lock_old"], values)])[
        -1
    ]
    ids = [number for (number,) in locked]
    _forget(link, ids)
    result = PrunePage(below, kept, len(ids))
    link.commit(result)
    return result
