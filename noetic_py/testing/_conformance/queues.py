"""Cases of queues and inboxes: who may claim a run, when, and what wakes it."""

from __future__ import annotations

import pytest
from attrs import evolve

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.values import is_list
from noetic_py.errors import ConfigError, InvalidId, LeaseLost, PositionConflict, RunNotFound
from noetic_py.journal.stored import Claim, Head, Lease, Queued, QueueStats, Signal, Transaction
from noetic_py.testing._conformance.base import Suite, equal, everything, fill, payloads, record
from noetic_py.testing._conformance.concurrency import TURNS, cancelled_after, together

HOUR = 3600.0
NOW = Queued("jobs", "flow-1")
LATER = evolve(NOW, at=None)


async def submit(backend: CheckpointBackend, run_id: str, queued: Queued = NOW) -> None:
    await backend.commit([Transaction(run_id, 0, 0, [record(f"{run_id}/0")], queued=queued)])


async def claim(backend: CheckpointBackend, *queues: str, limit: int = 10, flow: str = "flow-1") -> list[Claim]:
    return list(await backend.claim(queues or ("jobs",), flows=[flow], ttl=60.0, limit=limit))


async def claimed(backend: CheckpointBackend, *queues: str, limit: int = 10, flow: str = "flow-1") -> list[str]:
    return [each.lease.run_id for each in await claim(backend, *queues, limit=limit, flow=flow)]


async def store(backend: CheckpointBackend, lease: Lease, *, read: int = 0, queued: Queued | None = None) -> None:
    """What an owner commits that gives its run up; nothing is appended."""
    head = await backend.head(lease.run_id)
    position = 0 if head is None else head.position
    given = Transaction(lease.run_id, position, lease.fence, [], release=True, read=read, queued=queued)
    await backend.commit([given])


async def nothing_waits(backend: CheckpointBackend, run_id: str) -> None:
    """Nothing can be claimed, and there is no signal for a run."""
    equal(await claim(backend), [])
    equal(list(await backend.inbox(run_id)), [])


class Queues(Suite):
    async def test_an_empty_queue(self, backend: CheckpointBackend) -> None:
        equal(await claim(backend), [])
        equal(list(await backend.queues()), [])
        equal(list(await backend.inbox("r")), [])

    async def test_a_queued_run_is_claimed_once(self, backend: CheckpointBackend) -> None:
        before = await backend.clock()
        await submit(backend, "r")
        (found,) = await claim(backend)
        equal((found.lease.run_id, found.lease.position in (None, 1), found.queued, found.lives), ("r", True, NOW, 1))
        equal(before <= found.now <= await backend.clock(), True)
        equal(await backend.head("r"), Head(1, found.lease.fence))
        equal(await claim(backend), [])
        await fill(backend, "r", 2, fence=found.lease.fence)
        equal(await backend.renew(found.lease, ttl=60.0), found.lease)

    async def test_a_run_without_a_queue_is_not_claimed(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        equal(await claim(backend), [])

    async def test_the_first_of_a_queue_goes_first(self, backend: CheckpointBackend) -> None:
        for run_id, at, priority in [("c", 3, 0), ("a", 1, 0), ("x", 9, 5), ("b", 2, 0), ("y", 8, 5), ("z", 1, -1)]:
            await submit(backend, run_id, evolve(NOW, at=float(at), priority=priority))
        equal(await claimed(backend, limit=1), ["y"])
        equal(await claimed(backend, limit=3), ["x", "a", "b"])
        equal(await claimed(backend), ["c", "z"])

    async def test_queues_and_flows_are_apart(self, backend: CheckpointBackend) -> None:
        await submit(backend, "a")
        await submit(backend, "b", evolve(NOW, queue="other"))
        await submit(backend, "c", evolve(NOW, flow="flow-2"))
        equal(await claimed(backend, "none"), [])
        equal(await claimed(backend, flow="flow-2"), ["c"])
        equal(list(await backend.claim(["jobs", "other"], flows=[], ttl=60.0)), [])
        equal(sorted(await claimed(backend, "jobs", "other", "jobs")), ["a", "b"])

    async def test_a_run_is_not_claimed_before_its_time(self, backend: CheckpointBackend) -> None:
        now = await backend.clock()
        await submit(backend, "past", evolve(NOW, at=now - 1))
        await submit(backend, "future", evolve(NOW, at=now + HOUR))
        await submit(backend, "never", LATER)
        equal(await claimed(backend), ["past"])
        (stats,) = await backend.queues()
        equal((stats.ready, stats.owned, stats.waiting, stats.since), (0, 1, 2, None))

    async def test_how_full_queues_are(self, backend: CheckpointBackend) -> None:
        await submit(backend, "a", evolve(NOW, at=7.5))
        await submit(backend, "b", evolve(NOW, at=6.25))
        await submit(backend, "c", evolve(NOW, queue="z", flow="flow-2"))
        found = list(await backend.queues())
        equal(found, [QueueStats("jobs", "flow-1", 2, 0, 0, 6.25), QueueStats("z", "flow-2", 1, 0, 0, 0.0)])

    async def test_a_claim_takes_nothing_away(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        await backend.send("r", "k", b"hello")
        (first,) = await claim(backend)
        await self.lapse(backend)
        (second,) = await claim(backend)
        equal((second.lives, second.queued.at, second.lease.fence > first.lease.fence), (2, 0.0, True))
        equal((first.signals, second.signals), (True, True))
        equal([each.body for each in await backend.inbox("r")], [b"hello"])
        with pytest.raises(LeaseLost):
            await store(backend, first.lease, queued=LATER)
        equal(len(await backend.inbox("r")), 1)

    async def test_lives_begin_anew_when_a_run_is_given_up(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        for lives in (1, 2, 3):
            (found,) = await claim(backend)
            equal(found.lives, lives)
            await self.lapse(backend)
        (found,) = await claim(backend)
        equal(found.lives, 4)
        await backend.release(found.lease)
        (found,) = await claim(backend)
        equal(found.lives, 1)
        await store(backend, found.lease)
        (found,) = await claim(backend)
        equal(found.lives, 1)

    async def test_a_run_sleeps(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        (found,) = await claim(backend)
        await store(backend, found.lease, queued=evolve(NOW, at=await backend.clock() + HOUR))
        equal(await claim(backend), [])
        lease = await backend.acquire("r", ttl=60.0)
        await store(backend, lease, queued=NOW)
        equal(await claimed(backend), ["r"])

    async def test_a_run_changes_its_queue(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        (found,) = await claim(backend)
        await store(backend, found.lease, queued=Queued("other", "flow-2", 1.0, 3))
        equal(await claimed(backend), [])
        (found,) = await claim(backend, "other", flow="flow-2")
        equal(found.queued, Queued("other", "flow-2", 1.0, 3))

    async def test_a_signal_wakes_a_run(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r", LATER)
        equal(await claim(backend), [])
        number = await backend.send("r", "k", b"hello")
        equal(list(await backend.inbox("r")), [Signal("r", "k", b"hello", number)])
        (found,) = await claim(backend)
        await store(backend, found.lease, read=number, queued=LATER)
        equal(list(await backend.inbox("r")), [])
        equal(await claim(backend), [])

    async def test_a_signal_that_was_not_read_wakes_a_run_that_falls_asleep(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        (found,) = await claim(backend)
        first = await backend.send("r", "a", b"1")
        second = await backend.send("r", "b", b"2")
        await store(backend, found.lease, read=first, queued=LATER)
        (found,) = await claim(backend)
        equal([each.number for each in await backend.inbox("r")], [second])
        await store(backend, found.lease, read=second, queued=evolve(NOW, at=await backend.clock() + HOUR))
        equal(await claim(backend), [])

    async def test_signals_are_in_order(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        numbers = [await backend.send("r", f"k{n}", str(n).encode()) for n in range(9, 0, -1)]
        equal(numbers, sorted(set(numbers)))
        equal([each.body for each in await backend.inbox("r")], [str(n).encode() for n in range(9, 0, -1)])
        equal([each.key for each in await backend.inbox("r", after=numbers[3], limit=2)], ["k5", "k4"])
        equal(list(await backend.inbox("r", after=numbers[-1])), [])

    async def test_a_key_waits_once(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r", LATER)
        number = await backend.send("r", "k", b"first")
        equal(await backend.send("r", "k", b"second"), number)
        equal([each.body for each in await backend.inbox("r")], [b"first"])
        (found,) = await claim(backend)
        await store(backend, found.lease, read=number)
        equal(await backend.send("r", "k", b"third") > number, True)

    async def test_a_signal_for_a_run_that_is_not_there(self, backend: CheckpointBackend) -> None:
        with pytest.raises(RunNotFound):
            await backend.send("none", "k", b"hello")
        equal(list(await backend.inbox("none")), [])

    async def test_a_commit_sends_signals(self, backend: CheckpointBackend) -> None:
        await submit(backend, "parent", LATER)
        await submit(backend, "child")
        (found,) = await claim(backend)
        sent = [Signal("parent", "child ended", b"42"), Signal("gone", "child ended", b"42")]
        ended = Transaction("child", 1, found.lease.fence, [record("end")], release=True, ended=True, signals=sent)
        await backend.commit([ended])
        equal(await claimed(backend), ["parent"])
        equal([(each.key, each.body) for each in await backend.inbox("parent")], [("child ended", b"42")])

    @pytest.mark.parametrize("wrong", ["position", "fence"])
    async def test_a_refused_commit_changes_no_queue(self, backend: CheckpointBackend, wrong: str) -> None:
        await submit(backend, "a", LATER)
        await submit(backend, "b", LATER)
        position, fence = (2, 0) if wrong == "position" else (1, 7)
        given = [
            Transaction("a", 1, 0, [record("x")], queued=NOW, signals=[Signal("b", "k", b"x")]),
            Transaction("b", position, fence, [], queued=NOW),
            Transaction("c", 0, 0, [record("x")], queued=NOW),
        ]
        with pytest.raises((PositionConflict, LeaseLost)):
            await backend.commit(given)
        await nothing_waits(backend, "b")
        equal((await backend.head("a"), await backend.head("c")), (Head(1, 0), None))

    async def test_a_commit_makes_a_run_for_a_queue(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("parent", ttl=60.0)
        given = [
            Transaction("parent", 0, lease.fence, [record("submitted")]),
            Transaction("child", 0, 0, [record("begun")], b"{}", "queued", queued=NOW),
        ]
        await backend.commit(given)
        equal(payloads(await everything(backend, "child")), [b"begun"])
        with pytest.raises(PositionConflict):
            await backend.commit([evolve(given[0], expected_position=1), given[1]])
        equal(await claimed(backend), ["child"])

    async def test_a_run_that_has_ended_leaves_its_queue(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        (found,) = await claim(backend)
        await backend.send("r", "k", b"late")
        await backend.commit([Transaction("r", 1, found.lease.fence, [record("end")], release=True, ended=True)])
        await nothing_waits(backend, "r")
        equal(list(await backend.queues()), [])
        # It has no queue, so there is nothing to wake.
        await backend.send("r", "k", b"later still")
        equal(await claim(backend), [])

    async def test_a_deleted_run_is_not_claimed(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        await backend.send("r", "k", b"hello")
        await backend.delete("r")
        equal(await claim(backend), [])
        equal(list(await backend.queues()), [])
        await fill(backend, "r", 1)
        await nothing_waits(backend, "r")

    async def test_a_fork_is_not_queued(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r")
        await backend.send("r", "k", b"hello")
        await backend.fork("r", at=1, new_run_id="f")
        equal(await claimed(backend), ["r"])
        equal(list(await backend.inbox("f")), [])

    async def test_many_workers_claim_at_once(self, backend: CheckpointBackend) -> None:
        for n in range(12):
            await submit(backend, f"r{n}")

        async def work(index: int) -> object:
            return await claimed(backend, limit=1 + index % 3)

        found = await together(10, work)
        runs = await claimed(backend, limit=12)
        for each in found:
            runs += each if is_list(each) else []
        equal(sorted(runs), sorted(f"r{n}" for n in range(12)))

    async def test_signals_at_once_are_all_there(self, backend: CheckpointBackend) -> None:
        await submit(backend, "r", LATER)

        async def work(index: int) -> object:
            return await backend.send("r", f"k{index % 10}", b"x")

        numbers = await together(20, work)
        equal(
            sorted(each.number for each in await backend.inbox("r")), sorted({n for n in numbers if isinstance(n, int)})
        )
        equal((len(set(numbers)), await claimed(backend)), (10, ["r"]))

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_claim_owns_nothing(self, backend: CheckpointBackend, turns: int) -> None:
        for n in range(3):
            await submit(backend, f"r{n}")
        owned: list[str] = []

        async def work() -> None:
            owned.extend(await claimed(backend, limit=2))

        await cancelled_after(turns, work)
        found = [*owned]
        for _ in range(1000):
            # What a cancelled caller has claimed is given back a moment later.
            found += await claimed(backend, limit=1)
            if len(found) == 3:
                break
        equal(sorted(found), ["r0", "r1", "r2"])

    @pytest.mark.parametrize("at", [-1.0, float("nan"), float("inf"), 1e15])
    async def test_a_time_that_cannot_be(self, backend: CheckpointBackend, at: float) -> None:
        with pytest.raises(ConfigError):
            await submit(backend, "r", evolve(NOW, at=at))
        equal(await backend.head("r"), None)

    @pytest.mark.parametrize("queued", [Queued("", "f"), Queued("q", ""), Queued("a\nb", "f"), Queued("q" * 257, "f")])
    async def test_a_name_that_cannot_be(self, backend: CheckpointBackend, queued: Queued) -> None:
        with pytest.raises(InvalidId):
            await submit(backend, "r", queued)
        equal(await backend.head("r"), None)

    async def test_a_run_that_has_ended_is_not_queued(self, backend: CheckpointBackend) -> None:
        with pytest.raises(ConfigError):
            await backend.commit([Transaction("r", 0, 0, [record("x")], queued=NOW, ended=True)])
        equal(await backend.head("r"), None)

    async def test_hostile_names(self, backend: CheckpointBackend) -> None:
        names = ["a b", "a'b", "a%", "a_", "日本", "a:b", "a\u00a0b", "{a}"]
        for number, name in enumerate(names):
            await submit(backend, f"r{number}", Queued(name, name))
            await backend.send(f"r{number}", name, b"\x00\xff")
        for number, name in enumerate(names):
            equal(await claimed(backend, name, flow=name), [f"r{number}"])
            equal([(each.key, each.body) for each in await backend.inbox(f"r{number}")], [(name, b"\x00\xff")])
