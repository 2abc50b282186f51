"""Cases of journals: append, read, fork, delete, lists and prune."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from noetic_py.checkpoints.checks import MAX_BYTES, MAX_STATUS, MAX_SUMMARY
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import (
    ConfigError,
    InvalidId,
    LeaseLost,
    LimitExceeded,
    NoeticError,
    PositionConflict,
    RunBusy,
    RunNotFound,
    StoreUnavailable,
)
from noetic_py.journal.stored import Head, Lease, Record, Transaction
from noetic_py.testing._conformance.base import Suite, equal, everything, fill, journal, payloads, record

LARGE = bytes(range(256)) * 4096
OPERATIONS = (
    "append",
    "commit",
    "read",
    "head",
    "list",
    "fork",
    "delete",
    "prune",
    "stats",
    "acquire",
    "get",
    "put",
    "scan",
)
FAR = datetime(9000, 1, 1, tzinfo=UTC)


class AppendChecks(Suite):
    async def test_a_new_backend_is_empty(self, backend: CheckpointBackend) -> None:
        equal(list(await backend.list()), [])
        equal(await backend.head("r"), None)
        equal(await backend.entry("r"), None)
        stats = await backend.stats()
        equal((stats.runs, stats.records, stats.values, stats.blobs), (0, 0, 0, 0))

    async def test_it_says_what_it_is(self, backend: CheckpointBackend) -> None:
        equal(backend.durability in ("none", "process", "power"), True)
        equal(type(backend.shared), bool)
        described = await backend.describe()
        equal(all(isinstance(part, str) for pair in described.items() for part in pair), True)
        if not described.get("backend"):
            pytest.fail(f"describe() gave {described!r:.300}; expected a key 'backend' with the name of the backend")

    async def test_the_first_append_makes_the_run(self, backend: CheckpointBackend) -> None:
        equal(await backend.append("r", expected_position=0, fence=0, records=[record("a"), record("b")]), 2)
        equal(await backend.head("r"), Head(2, 0))

    async def test_positions_count_records(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1, 3, 2)
        equal(await backend.head("r"), Head(6, 0))

    @pytest.mark.parametrize("position", [0, 1, 3, 100])
    async def test_another_position_is_refused(self, backend: CheckpointBackend, position: int) -> None:
        written = await fill(backend, "r", 2)
        with pytest.raises(PositionConflict):
            await backend.append("r", expected_position=position, fence=0, records=[record("x")])
        equal(await everything(backend, "r"), written)

    async def test_a_new_run_begins_at_0(self, backend: CheckpointBackend) -> None:
        with pytest.raises(PositionConflict):
            await backend.append("r", expected_position=1, fence=0, records=[record("x")])
        equal(await backend.head("r"), None)

    async def test_a_new_run_has_no_fence(self, backend: CheckpointBackend) -> None:
        with pytest.raises(LeaseLost):
            await backend.append("r", expected_position=0, fence=7, records=[record("x")])
        equal(await backend.head("r"), None)

    async def test_kind_path_and_payload_come_back(self, backend: CheckpointBackend) -> None:
        records = [
            Record("StepFinished", ("flow", "agent[3]", "search#2"), b"\0\xff payload"),
            Record("RunStarted", (), b""),
            Record("K", ("a/b", "c:d", "ünïcode 漢字 🎈", "x" * 1000), b"x"),
        ]
        await backend.append("r", expected_position=0, fence=0, records=records)
        equal(await everything(backend, "r"), records)

    @pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 4095, 4096, 16383, 16384, 16385, 65536, 1_000_003])
    async def test_payloads_of_any_size(self, backend: CheckpointBackend, size: int) -> None:
        payload = (LARGE * (size // len(LARGE) + 1))[:size]
        await backend.append("r", expected_position=0, fence=0, records=[Record("K", (), payload), record("behind")])
        equal(payloads(await everything(backend, "r")) == [payload, b"behind"], True)

    async def test_a_large_payload_twice(self, backend: CheckpointBackend) -> None:
        await backend.append("r", expected_position=0, fence=0, records=[Record("K", (), LARGE)] * 2)
        await backend.append("s", expected_position=0, fence=0, records=[Record("K", (), LARGE)])
        await backend.delete("r")
        equal(payloads(await everything(backend, "s")) == [LARGE], True)
        await backend.delete("s")
        equal((await backend.stats()).blobs, 0)

    async def test_large_payloads_that_begin_alike(self, backend: CheckpointBackend) -> None:
        """Payloads of one length that differ at their end, in their middle or at their beginning alone are apart."""
        wanted = [LARGE, LARGE[:-1] + b"1", LARGE[:-1] + b"2", b"3" + LARGE[1:]]
        wanted.append(LARGE[: len(LARGE) // 2] + b"4" + LARGE[len(LARGE) // 2 + 1 :])
        for position, payload in enumerate(wanted):
            await backend.append("r", expected_position=position, fence=0, records=[Record("K", (), payload)])
        await backend.append("s", expected_position=0, fence=0, records=[Record("K", (), each) for each in wanted])
        for run in ("r", "s"):
            equal(payloads(await everything(backend, run)) == wanted, True)

    async def test_a_transaction_of_many_records(self, backend: CheckpointBackend) -> None:
        written = await fill(backend, "r", 3000)
        equal(await everything(backend, "r") == written, True)

    async def test_no_records_change_the_summary_only(self, backend: CheckpointBackend) -> None:
        written = await fill(backend, "r", 2, status="running")
        equal(await backend.append("r", expected_position=2, fence=0, records=[], summary=b"c", status="done"), 2)
        (entry,) = await backend.list()
        equal((entry.position, entry.summary, entry.status), (2, b"c", "done"))
        equal(await everything(backend, "r"), written)

    async def test_summary_and_status_stay_until_they_are_replaced(self, backend: CheckpointBackend) -> None:
        await backend.append("r", expected_position=0, fence=0, records=[record("a")], summary=b"one", status="running")
        await backend.append("r", expected_position=1, fence=0, records=[record("b")])
        (entry,) = await backend.list()
        equal((entry.summary, entry.status), (b"one", "running"))
        equal(await backend.entry("r"), entry)
        await backend.append("r", expected_position=2, fence=0, records=[record("c")], summary=b"")
        (entry,) = await backend.list()
        equal((entry.summary, entry.status), (b"", "running"))
        await backend.append("r", expected_position=3, fence=0, records=[], status="completed")
        (entry,) = await backend.list()
        equal((entry.summary, entry.status), (b"", "completed"))

    async def test_a_refused_append_leaves_summary_and_status(self, backend: CheckpointBackend) -> None:
        await backend.append("r", expected_position=0, fence=0, records=[record("a")], summary=b"one", status="running")
        with pytest.raises(PositionConflict):
            await backend.append("r", expected_position=5, fence=0, records=[], summary=b"two", status="failed")
        (entry,) = await backend.list()
        equal((entry.summary, entry.status), (b"one", "running"))

    async def test_a_transaction_that_is_too_large_is_refused(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        for payload in ([bytes(MAX_BYTES + 1)], [bytes(MAX_BYTES // 2 + 1)] * 2):
            with pytest.raises(LimitExceeded):
                await backend.append(
                    "r", expected_position=1, fence=0, records=[Record("K", (), each) for each in payload]
                )
        equal(await backend.head("r"), Head(1, 0))

    async def test_a_summary_or_status_that_is_too_large_is_refused(self, backend: CheckpointBackend) -> None:
        await backend.append(
            "r", expected_position=0, fence=0, records=[], summary=bytes(MAX_SUMMARY), status="s" * MAX_STATUS
        )
        with pytest.raises(LimitExceeded):
            await backend.append("r", expected_position=0, fence=0, records=[], summary=bytes(MAX_SUMMARY + 1))
        with pytest.raises(InvalidId):
            await backend.append("r", expected_position=0, fence=0, records=[], status="s" * (MAX_STATUS + 1))
        (entry,) = await backend.list()
        equal((len(entry.summary), entry.status), (MAX_SUMMARY, "s" * MAX_STATUS))

    @pytest.mark.parametrize("operation", OPERATIONS)
    async def test_a_closed_backend_refuses(self, backend: CheckpointBackend, operation: str) -> None:
        await fill(backend, "r", 1)
        await backend.close()
        await backend.close()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: backend.append("r", expected_position=1, fence=0, records=[record("x")]),
            "commit": lambda: backend.commit([]),
            "read": lambda: backend.read("r"),
            "head": lambda: backend.head("r"),
            "entry": lambda: backend.entry("r"),
            "list": backend.list,
            "fork": lambda: backend.fork("r", at=1, new_run_id="f"),
            "delete": lambda: backend.delete("r"),
            "prune": lambda: backend.prune(keep=0),
            "stats": backend.stats,
            "acquire": lambda: backend.acquire("r", ttl=1.0),
            "get": lambda: backend.get(("s",), "k"),
            "put": lambda: backend.put(("s",), "k", b"v"),
            "scan": lambda: backend.scan(("s",)),
        }
        with pytest.raises(StoreUnavailable) as caught:
            await calls[operation]()
        equal(caught.value.reason, "closed")


class Commits(Suite):
    async def test_several_runs_are_written_at_once(self, backend: CheckpointBackend) -> None:
        await fill(backend, "a", 1)
        lease = await backend.acquire("b", ttl=60.0)
        done = await backend.commit(
            [
                Transaction("a", 1, 0, [record("a1"), record("a2")]),
                Transaction("b", 0, lease.fence, [record("b0")], summary=b"summary", status="running"),
                Transaction("c", 0, 0, [Record("K", (), LARGE)]),
            ]
        )
        equal(list(done), [Lease("a", 0), Lease("b", lease.fence), Lease("c", 0)])
        equal([each.position for each in done], [3, 1, 1])
        equal(payloads(await everything(backend, "a"))[1:], [b"a1", b"a2"])
        equal(payloads(await everything(backend, "c")), [LARGE])
        entry = await backend.entry("b")
        equal(entry and (entry.position, entry.status, entry.summary, entry.held), (1, "running", b"summary", True))

    async def test_nothing_is_a_commit_too(self, backend: CheckpointBackend) -> None:
        equal(list(await backend.commit([])), [])

    async def test_a_commit_acquires(self, backend: CheckpointBackend) -> None:
        await fill(backend, "old", 2)
        given = [Transaction("old", 2, 0, [record("a")], acquire=60.0), Transaction("new", 0, 0, [], acquire=60.0)]
        old, new = await backend.commit(given)
        equal((old.position, new.position), (3, 0))
        equal([await backend.head("old"), await backend.head("new")], [Head(3, old.fence), Head(0, new.fence)])
        for lease in (old, new):
            with pytest.raises(RunBusy):
                await backend.acquire(lease.run_id, ttl=60.0)
            equal(await backend.renew(lease, ttl=60.0), lease)
        equal(await backend.append("new", expected_position=0, fence=new.fence, records=[record("x"), record("y")]), 2)
        with pytest.raises(LeaseLost):
            await backend.append("old", expected_position=3, fence=0, records=[record("z")])

    async def test_a_commit_acquires_after_a_given_owner(self, backend: CheckpointBackend) -> None:
        def after(fence: int, position: int) -> list[Transaction]:
            return [Transaction("r", position, fence, [record("x")], acquire=60.0, release=True)]

        with pytest.raises(LeaseLost):
            await backend.commit(after(1, 0))
        equal(await backend.head("r"), None)
        (first,) = await backend.commit(after(0, 0))
        (second,) = await backend.commit(after(first.fence, 1))
        equal(await backend.head("r"), Head(2, second.fence))
        # Another owner has come since, whether it has written or not, or the run is another one.
        with pytest.raises(LeaseLost):
            await backend.commit(after(first.fence, 2))
        other = await backend.acquire("r", ttl=60.0)
        with pytest.raises(RunBusy):
            await backend.commit(after(second.fence, 2))
        await backend.release(other)
        with pytest.raises(LeaseLost):
            await backend.commit(after(second.fence, 2))
        await backend.delete("r")
        for position in (0, 2):
            with pytest.raises(LeaseLost):
                await backend.commit(after(other.fence, position))
            await fill(backend, "r", 2)
        equal(await backend.head("r"), Head(4, 0))

    async def test_a_commit_releases(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        given = [
            Transaction("r", 0, lease.fence, [record("end")], status="ended", release=True),
            Transaction("both", 0, 0, [record("x")], acquire=60.0, release=True),
        ]
        _, both = await backend.commit(given)
        equal([each.held for each in await backend.list()], [False, False])
        with pytest.raises(LeaseLost):
            await backend.renew(lease, ttl=60.0)
        equal((await backend.acquire("r", ttl=60.0)).fence > lease.fence, True)
        equal((await backend.acquire("both", ttl=60.0)).fence > both.fence, True)

    @pytest.mark.parametrize("place", [0, 1, 2])
    @pytest.mark.parametrize("why", ["position", "fence", "busy", "conflict of an owner to be"])
    async def test_all_of_it_or_nothing(self, backend: CheckpointBackend, why: str, place: int) -> None:
        await fill(backend, "a", 1)
        lease = await backend.acquire("b", ttl=60.0)
        await backend.acquire("busy", ttl=60.0)
        bad, error = {
            "position": (Transaction("bad", 1, 0, [record("x")]), PositionConflict),
            "fence": (Transaction("busy", 0, 0, [record("x")]), LeaseLost),
            "busy": (Transaction("busy", 0, 0, [record("x")], acquire=60.0), RunBusy),
            "conflict of an owner to be": (Transaction("bad", 7, 0, [record("x")], acquire=60.0), PositionConflict),
        }[why]
        given = [
            Transaction("a", 1, 0, [record("a1")], summary=b"new", status="new", acquire=60.0),
            Transaction("b", 0, lease.fence, [record("b0")], release=True),
        ]
        before = [await backend.entry("a"), await backend.entry("b"), await backend.head("busy")]
        given.insert(place, bad)
        with pytest.raises(error):
            await backend.commit(given)
        equal([await backend.entry("a"), await backend.entry("b"), await backend.head("busy")], before)
        equal(await journal(backend, "a"), [b"a/0"])
        equal(await backend.head("bad"), None)
        # What was to be given up is still held, and what was to be acquired is free.
        equal(await backend.renew(lease, ttl=60.0), lease)
        equal((await backend.acquire("a", ttl=60.0)).position in (1, None), True)

    async def test_a_run_is_named_once(self, backend: CheckpointBackend) -> None:
        with pytest.raises(ConfigError) as caught:
            await backend.commit([Transaction("r", 0, 0, [record("a")]), Transaction("r", 1, 0, [record("b")])])
        equal(caught.value.code, "commit")
        equal(await backend.head("r"), None)

    async def test_what_cannot_be_stored_is_refused_with_all(self, backend: CheckpointBackend) -> None:
        half = Record("K", (), bytes(MAX_BYTES // 2 + 1))
        cases: list[tuple[list[Transaction], type[NoeticError]]] = [
            ([Transaction("a", 0, 0, [record("x")]), Transaction("", 0, 0, [record("none")])], InvalidId),
            ([Transaction("a", 0, 0, [half]), Transaction("b", 0, 0, [half])], LimitExceeded),
            ([Transaction("a", 0, 0, [record("x")], acquire=0.0)], ConfigError),
        ]
        for given, error in cases:
            with pytest.raises(error):
                await backend.commit(given)
        equal(list(await backend.list()), [])


class Reading(Suite):
    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 19, 20, 21, 1000, 2**80])
    async def test_pages_join_up(self, backend: CheckpointBackend, limit: int) -> None:
        written = await fill(backend, "r", 3, 1, 5, 1, 1, 9)
        equal(await everything(backend, "r", limit=limit), written)

    @pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 8, 9, 10])
    async def test_a_page_begins_anywhere(self, backend: CheckpointBackend, after: int) -> None:
        written = await fill(backend, "r", 3, 1, 6)
        equal(list(await backend.read("r", after=after)), written[after:])
        equal(list(await backend.read("r", after=after, limit=2)), written[after : after + 2])

    @pytest.mark.parametrize("after", [11, 1000, 2**70])
    async def test_behind_the_end_is_nothing(self, backend: CheckpointBackend, after: int) -> None:
        await fill(backend, "r", 10)
        equal(list(await backend.read("r", after=after)), [])

    async def test_an_unknown_run_is_named(self, backend: CheckpointBackend) -> None:
        with pytest.raises(RunNotFound):
            await backend.read("r")

    async def test_a_run_without_records_is_there(self, backend: CheckpointBackend) -> None:
        await backend.acquire("r", ttl=60.0)
        equal(list(await backend.read("r")), [])

    @pytest.mark.parametrize(("after", "limit"), [(-1, 10), (0, 0), (0, -1)])
    async def test_a_page_that_is_none(self, backend: CheckpointBackend, after: int, limit: int) -> None:
        await fill(backend, "r", 1)
        with pytest.raises(ConfigError):
            await backend.read("r", after=after, limit=limit)

    async def test_pages_of_large_records(self, backend: CheckpointBackend) -> None:
        for position in range(6):
            large = bytes([position]) * 10_000_000
            await backend.append("r", expected_position=position, fence=0, records=[Record("K", (), large)])
        equal([each.payload[:1] for each in await everything(backend, "r")], [bytes([n]) for n in range(6)])


class Forking(Suite):
    @pytest.mark.parametrize("at", [0, 3, 4, 9])
    async def test_a_fork_has_the_beginning(self, backend: CheckpointBackend, at: int) -> None:
        written = await fill(backend, "r", 3, 1, 5)
        await backend.fork("r", at=at, new_run_id="f")
        equal(await backend.head("f"), Head(at, 0))
        equal(await everything(backend, "f"), written[:at])
        for limit in (1, 2, 4):
            equal(await everything(backend, "f", limit=limit), written[:at])

    @pytest.mark.parametrize("at", [-1, 1, 2, 5, 8, 10, 2**70])
    async def test_only_at_the_end_of_a_transaction(self, backend: CheckpointBackend, at: int) -> None:
        await fill(backend, "r", 3, 1, 5)
        with pytest.raises(PositionConflict):
            await backend.fork("r", at=at, new_run_id="f")
        equal(await backend.head("f"), None)

    async def test_both_go_on_apart(self, backend: CheckpointBackend) -> None:
        written = await fill(backend, "r", 2, 2)
        await backend.fork("r", at=2, new_run_id="f")
        mine = await fill(backend, "f", 3)
        more = await fill(backend, "r", 1)
        equal(await everything(backend, "f"), written[:2] + mine)
        equal(await everything(backend, "f", limit=1), written[:2] + mine)
        equal(await everything(backend, "r"), written + more)

    async def test_forks_of_forks(self, backend: CheckpointBackend) -> None:
        expected = await fill(backend, "r0", 2)
        for n in range(1, 8):
            await backend.fork(f"r{n - 1}", at=len(expected), new_run_id=f"r{n}")
            expected += await fill(backend, f"r{n}", 1, 2)
        equal(await everything(backend, "r7"), expected)
        equal(await everything(backend, "r7", limit=2), expected)
        await backend.fork("r7", at=5, new_run_id="early")
        equal(await everything(backend, "early"), expected[:5])
        with pytest.raises(PositionConflict):
            await backend.fork("r7", at=4, new_run_id="half")

    async def test_a_fork_outlives_what_it_was_forked_from(self, backend: CheckpointBackend) -> None:
        written = await fill(backend, "r", 2, 2, 2)
        await backend.append("r", expected_position=6, fence=0, records=[Record("K", (), LARGE)])
        await backend.fork("r", at=4, new_run_id="f")
        await backend.fork("f", at=2, new_run_id="g")
        await backend.delete("r")
        mine = await fill(backend, "f", 1)
        equal(await everything(backend, "f"), written[:4] + mine)
        equal(await everything(backend, "g"), written[:2])
        await backend.delete("f")
        equal(await everything(backend, "g"), written[:2])
        await backend.delete("g")
        stats = await backend.stats()
        equal((stats.runs, stats.records, stats.blobs), (0, 0, 0))

    async def test_a_fork_shares_large_payloads(self, backend: CheckpointBackend) -> None:
        await backend.append("r", expected_position=0, fence=0, records=[Record("K", (), LARGE)])
        await backend.fork("r", at=1, new_run_id="f")
        await backend.delete("r")
        equal(payloads(await everything(backend, "f")) == [LARGE], True)

    async def test_the_new_id_must_be_free(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        other = await fill(backend, "f", 2)
        for name in ("f", "r"):
            with pytest.raises(PositionConflict):
                await backend.fork("r", at=1, new_run_id=name)
        equal(await everything(backend, "f"), other)

    @pytest.mark.parametrize("at", [0, 2])
    async def test_a_fork_begins_with_a_transaction_of_its_own(self, backend: CheckpointBackend, at: int) -> None:
        large = LARGE
        await fill(backend, "r", 2, 2)
        own = [record("own"), Record("K", (), large)]
        await backend.fork("r", at=at, new_run_id="f", records=own, summary=b"mine", status="forked")
        beginning = payloads(await everything(backend, "r"))[:at]
        equal(payloads(await everything(backend, "f")), [*beginning, b"own", large])
        equal(await backend.append("f", expected_position=at + 2, fence=0, records=[record("more")]), at + 3)
        # The transaction is one, so a fork of the fork can end where it does, and not in it.
        with pytest.raises(PositionConflict):
            await backend.fork("f", at=at + 1, new_run_id="half")
        await backend.fork("f", at=at + 2, new_run_id="g")
        await backend.delete("f")
        await backend.delete("r")
        equal(payloads(await everything(backend, "g")), [*beginning, b"own", large])
        equal([(each.run_id, each.position) for each in await backend.list()], [("g", at + 2)])

    async def test_a_fork_that_is_refused_leaves_nothing(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 2)
        await fill(backend, "there", 1)
        for at, name in ((1, "f"), (2, "there")):
            with pytest.raises(PositionConflict):
                await backend.fork("r", at=at, new_run_id=name, records=[record("own")])
        with pytest.raises(LimitExceeded):
            await backend.fork("r", at=2, new_run_id="f", records=[Record("K", (), bytes(MAX_BYTES + 1))])
        equal(await backend.head("f"), None)
        equal(payloads(await everything(backend, "there")), [b"there/0"])

    async def test_an_unknown_run_cannot_be_forked(self, backend: CheckpointBackend) -> None:
        with pytest.raises(RunNotFound):
            await backend.fork("r", at=0, new_run_id="f")

    async def test_a_fork_begins_without_owner_summary_and_status(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        await backend.append(
            "r", expected_position=0, fence=lease.fence, records=[record("a")], summary=b"c", status="running"
        )
        await backend.fork("r", at=1, new_run_id="f")
        await backend.fork("r", at=1, new_run_id="g", summary=b"mine", status="forked")
        g, f, r = await backend.list()
        equal([await backend.entry(each) for each in ("g", "f", "r")], [g, f, r])
        equal((f.run_id, f.summary, f.status, f.held), ("f", b"", None, False))
        equal((g.run_id, g.summary, g.status, g.held), ("g", b"mine", "forked", False))
        await backend.append("f", expected_position=1, fence=0, records=[record("b")])


class Deleting(Suite):
    async def test_a_deleted_run_is_gone(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 2, 3)
        await backend.delete("r")
        equal(await journal(backend, "r"), None)
        equal(await backend.head("r"), None)
        equal(list(await backend.list()), [])
        await backend.delete("r")

    async def test_it_can_be_made_again(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 5)
        await backend.delete("r")
        written = await fill(backend, "r", 1)
        equal(await everything(backend, "r"), written)

    async def test_others_stay(self, backend: CheckpointBackend) -> None:
        written = {name: await fill(backend, name, 2, 2) for name in "abc"}
        await backend.delete("b")
        equal(await everything(backend, "a"), written["a"])
        equal(await everything(backend, "c"), written["c"])

    async def test_what_an_owner_holds_is_not_deleted(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        with pytest.raises(RunBusy):
            await backend.delete("r")
        await backend.release(lease)
        await backend.delete("r")
        equal(await backend.head("r"), None)


class Listing(Suite):
    async def test_the_newest_comes_first(self, backend: CheckpointBackend) -> None:
        for name in ("b", "a", "c"):
            await fill(backend, name, 1)
        await fill(backend, "b", 2)
        entries = await backend.list()
        equal([(each.run_id, each.position) for each in entries], [("c", 1), ("a", 1), ("b", 3)])

    async def test_times_are_of_the_wall_clock(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        (first,) = await backend.list()
        await fill(backend, "r", 1)
        (second,) = await backend.list()
        equal(first.created.utcoffset(), timedelta(0))
        equal(second.created, first.created)
        equal(first.created <= first.updated <= second.updated, True)

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11, 100])
    async def test_pages_join_up(self, backend: CheckpointBackend, limit: int) -> None:
        for n in range(10):
            await fill(backend, f"r{n}", 1)
        seen: list[str] = []
        after: int | None = None
        while page := await backend.list(after=after, limit=limit):
            seen += [each.run_id for each in page]
            after = page[-1].cursor
        equal(seen, [f"r{n}" for n in reversed(range(10))])

    async def test_pages_join_up_while_runs_come_and_go(self, backend: CheckpointBackend) -> None:
        for n in range(10):
            await fill(backend, f"r{n}", 1)
        page = await backend.list(limit=4)
        await backend.delete(page[-1].run_id)
        await backend.delete("r3")
        await fill(backend, "new", 1)
        rest = await backend.list(after=page[-1].cursor)
        equal([each.run_id for each in rest], ["r5", "r4", "r2", "r1", "r0"])

    async def test_only_one_status(self, backend: CheckpointBackend) -> None:
        for n in range(9):
            await fill(backend, f"r{n}", 1, status=("running", "failed", "completed")[n % 3])
        await fill(backend, "r0", 1, status="failed")
        failed = await backend.list(status="failed")
        equal([each.run_id for each in failed], ["r7", "r4", "r1", "r0"])
        equal([each.run_id for each in await backend.list(status="failed", limit=2)], ["r7", "r4"])
        rest = await backend.list(status="failed", after=failed[1].cursor)
        equal([each.run_id for each in rest], ["r1", "r0"])
        equal(list(await backend.list(status="' OR 1=1 --")), [])

    async def test_who_is_held(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)
        (entry,) = await backend.list()
        equal((entry.held, entry.position, entry.status, entry.summary), (True, 0, None, b""))
        await backend.release(lease)
        (entry,) = await backend.list()
        equal(entry.held, False)

    async def test_stats_count(self, backend: CheckpointBackend) -> None:
        await fill(backend, "a", 2, 3)
        await fill(backend, "b", 1)
        await backend.put(("s",), "k", b"v")
        stats = await backend.stats()
        equal((stats.runs, stats.records, stats.values), (2, 6, 1))
        equal(stats.bytes > 0, True)

    async def test_prune_needs_a_limit(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        with pytest.raises(ConfigError):
            await backend.prune(statuses=["completed"])
        with pytest.raises(ConfigError):
            await backend.prune(keep=-1)
        with pytest.raises(ConfigError):
            await backend.prune(before=FAR.replace(tzinfo=None))
        equal((await backend.stats()).runs, 1)

    async def test_prune_by_count(self, backend: CheckpointBackend) -> None:
        for n in range(7):
            await fill(backend, f"r{n}", 1)
        equal(await backend.prune(keep=3), 4)
        equal([each.run_id for each in await backend.list()], ["r6", "r5", "r4"])
        equal(await backend.prune(keep=3), 0)
        equal(await backend.prune(keep=0), 3)

    async def test_prune_by_status(self, backend: CheckpointBackend) -> None:
        for n in range(8):
            await fill(backend, f"r{n}", 1, status=("running", "completed")[n % 2])
        await fill(backend, "none", 1)
        equal(await backend.prune(keep=1, statuses=["completed", "failed"]), 3)
        equal([each.run_id for each in await backend.list()], ["none", "r7", "r6", "r4", "r2", "r0"])

    async def test_prune_by_time(self, backend: CheckpointBackend) -> None:
        await fill(backend, "old", 1)
        (old,) = await backend.list()
        equal(await backend.prune(before=old.updated), 0)
        equal(await backend.prune(before=old.updated + timedelta(microseconds=1)), 1)
        for n in range(3):
            await fill(backend, f"r{n}", 1)
        equal(await backend.prune(before=FAR, keep=2), 1)
        equal([each.run_id for each in await backend.list()], ["r2", "r1"])

    async def test_prune_leaves_what_is_held(self, backend: CheckpointBackend) -> None:
        await backend.acquire("held", ttl=60.0)
        await fill(backend, "free", 1)
        equal(await backend.prune(keep=0), 1)
        equal([each.run_id for each in await backend.list()], ["held"])

    async def test_prune_of_hundreds(self, backend: CheckpointBackend) -> None:
        await backend.commit([Transaction(f"r{n}", 0, 0, [record(str(n))]) for n in range(450)])
        equal(await backend.prune(keep=7), 443)
        equal(len(await backend.list()), 7)


class Journals(AppendChecks, Commits, Reading, Forking, Deleting, Listing):
    """All of them."""
