"""Cases of queues and inboxes: who may claim a run, when, and what wakes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random

import pytest
from anyio import create_task_group, fail_after
from attrs import evolve
from typing_extensions import TypedDict

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.checkpoints.turns import MOST_KEYS
from noetic_py.core.values import is_list
from noetic_py.errors import ConfigError, InvalidId, LeaseLost, PositionConflict, RunNotFound
from noetic_py.journal.stored import Claim, Head, Lease, Queued, QueueLimits, QueueStats, Signal, Transaction
from noetic_py.testing._conformance.base import Suite, equal, everything, fill, payloads, record
from noetic_py.testing._conformance.concurrency import TURNS, cancelled_after, together

HOUR = 3600.0
PATIENCE = 30.0
NOW = Queued("jobs", "flow-1")
LATER = evolve(NOW, at=None)


async def submit(backend: CheckpointBackend, run_id: str, queued: Queued = NOW) -> None:
    await backend.commit([Transaction(run_id, 0, 0, [record(f"{run_id}/0")], queued=queued)])


async def submit_keyed(backend: CheckpointBackend, *run_ids: str, queue: str = "jobs") -> None:
    """Submit runs in their order; the first letter of an id is its key."""
    for run_id in run_ids:
        await submit(backend, run_id, evolve(NOW, queue=queue, key=run_id[0]))


class ClaimOptions(TypedDict, total=False):
    limit: int
    flow: str
    limits: Mapping[str, QueueLimits]


async def claim(
    backend: CheckpointBackend,
    *queues: str,
    limit: int = 10,
    flow: str = "flow-1",
    limits: Mapping[str, QueueLimits] | None = None,
) -> list[Claim]:
    return list(await backend.claim(queues or ("jobs",), flows=[flow], ttl=60.0, limit=limit, limits=limits))


async def claimed(
    backend: CheckpointBackend,
    *queues: str,
    limit: int = 10,
    flow: str = "flow-1",
    limits: Mapping[str, QueueLimits] | None = None,
) -> list[str]:
    return [each.lease.run_id for each in await claim(backend, *queues, limit=limit, flow=flow, limits=limits)]


async def end(backend: CheckpointBackend, lease: Lease) -> None:
    """End a run that was claimed."""
    head = await backend.head(lease.run_id)
    position = 0 if head is None else head.position
    await backend.commit([Transaction(lease.run_id, position, lease.fence, [], ended=True, release=True)])


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

    async def test_waiting_for_runs_ends_by_itself(self, backend: CheckpointBackend) -> None:
        with fail_after(PATIENCE):
            equal(await backend.wait_for_runs(["jobs", "other"], timeout=0.01), False)

    async def test_waiting_for_runs_ends_when_it_is_cancelled(self, backend: CheckpointBackend) -> None:
        with fail_after(PATIENCE):
            await cancelled_after(20, partial(backend.wait_for_runs, ["jobs"], timeout=HOUR))

    async def test_a_run_may_end_the_wait_and_is_claimed_after_it(self, backend: CheckpointBackend) -> None:
        async with create_task_group() as group:
            group.start_soon(submit, backend, "r")
            # A notification may come, and one is not certain to.
            with fail_after(PATIENCE):
                await backend.wait_for_runs(["jobs"], timeout=0.05)
        equal(await claimed(backend), ["r"])

    async def test_a_run_without_a_queue_is_not_claimed(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        equal(await claim(backend), [])

    async def test_the_first_of_a_queue_goes_first(self, backend: CheckpointBackend) -> None:
        for run_id, at, priority in [("c", 3, 0), ("a", 1, 0), ("x", 9, 5), ("b", 2, 0), ("y", 8, 5), ("z", 1, -1)]:
            await submit(backend, run_id, evolve(NOW, at=float(at), priority=priority))
        equal(await claimed(backend, limit=1), ["y"])
        equal(await claimed(backend, limit=3), ["x", "a", "b"])
        equal(await claimed(backend), ["c", "z"])

    async def test_keys_take_turns(self, backend: CheckpointBackend) -> None:
        await submit_keyed(backend, "a1", "a2", "a3", "a4", "b1", "b2", "c1")
        equal(await claimed(backend, limit=4), ["a1", "b1", "c1", "a2"])
        await submit_keyed(backend, "d1")
        # Those of the key with the fewest at work go first, however long the others have waited.
        equal(await claimed(backend, limit=2), ["d1", "b2"])
        equal(await claimed(backend), ["a3", "a4"])
        equal(await claimed(backend), [])

    async def test_keys_take_turns_with_one_worker(self, backend: CheckpointBackend) -> None:
        """None is at work when the worker claims, however much one key has waiting."""
        await submit_keyed(backend, "a1", "a2", "a3", "b1", "b2", "c1")
        found: list[str] = []
        while claims := await claim(backend, limit=1):
            found.append(claims[0].lease.run_id)
            await end(backend, claims[0].lease)
        equal(found, ["a1", "b1", "c1", "a2", "b2", "a3"])

    async def test_a_priority_goes_before_the_turn_of_a_key(self, backend: CheckpointBackend) -> None:
        await submit_keyed(backend, "a1", "b1")
        for run_id in ("a2", "a3"):
            await submit(backend, run_id, evolve(NOW, key="a", priority=1))
        equal(await claimed(backend), ["a2", "a3", "b1", "a1"])

    async def test_keys_of_queues_are_apart(self, backend: CheckpointBackend) -> None:
        await submit_keyed(backend, "a1", "a2")
        await submit_keyed(backend, "a3", "b1", queue="other")
        await submit(backend, "none")
        equal(await claimed(backend, "jobs", limit=2), ["a1", "none"])
        equal(await claimed(backend, "jobs", "other"), ["a3", "b1", "a2"])

    async def test_a_key_keeps_its_turn_while_a_run_waits(self, backend: CheckpointBackend) -> None:
        await submit_keyed(backend, "a1", "a2", "b1")
        (first,) = await claim(backend, limit=1)
        equal((first.lease.run_id, first.queued.key), ("a1", "a"))
        await store(backend, first.lease, queued=evolve(first.queued, at=None))
        equal(await claimed(backend, limit=1), ["b1"])
        await backend.send("a1", "wake", b"")
        # It is not at work any more, and has waited for less long.
        equal(await claimed(backend, limit=1), ["a2"])
        (again,) = await claim(backend)
        equal((again.lease.run_id, again.queued.key), ("a1", "a"))

    async def test_so_many_of_a_queue_at_once(self, backend: CheckpointBackend) -> None:
        limits = {"jobs": QueueLimits(concurrency=2)}
        for run_id in ("r1", "r2", "r3", "r4", "r5"):
            await submit(backend, run_id)
        await submit(backend, "o1", evolve(NOW, queue="other"))
        first, second = await claim(backend, limits=limits)
        equal(await claim(backend, limits=limits), [])
        equal(await claimed(backend, "jobs", "other", limits=limits), ["o1"])
        await end(backend, first.lease)
        (third,) = await claim(backend, limits=limits)
        equal((first.lease.run_id, second.lease.run_id, third.lease.run_id), ("r1", "r2", "r3"))
        # One that waits leaves its place to others, and one that is given up too.
        await store(backend, second.lease, queued=LATER)
        await backend.release(third.lease)
        equal(await claimed(backend, limits=limits), ["r3", "r4"])
        # Runs that wait for another flow count, and a worker without limits is not held up.
        equal(await claimed(backend, flow="flow-2", limits=limits), [])
        equal(await claimed(backend), ["r5"])

    async def test_so_many_of_a_key_at_once(self, backend: CheckpointBackend) -> None:
        limits = {"jobs": QueueLimits(concurrency=4, per_key=2)}
        await submit_keyed(backend, "a1", "a2", "a3", "b1", "c1", "c2")
        found = await claim(backend, limit=3, limits=limits)
        equal([each.lease.run_id for each in found], ["a1", "b1", "c1"])
        equal(await claimed(backend, limits=limits), ["a2"])
        equal(await claimed(backend, limits=limits), [])
        await end(backend, found[1].lease)
        equal(await claimed(backend, limits=limits), ["c2"])
        await end(backend, found[0].lease)
        equal(await claimed(backend, limits=limits), ["a3"])

    async def test_every_key_comes_up(self, backend: CheckpointBackend) -> None:
        """Of more keys than one claim looks at."""
        run_ids = [f"r{number}" for number in range(3 * MOST_KEYS // 2)]
        for number in range(0, len(run_ids), 50):
            page = run_ids[number : number + 50]
            await backend.commit(
                [Transaction(each, 0, 0, [record(each)], queued=evolve(NOW, key=f"k{each}")) for each in page]
            )
        found: list[str] = []
        while more := await claimed(backend, limit=100):
            found += more
        equal(sorted(found), sorted(run_ids))

    async def test_many_workers_keep_to_the_limits(self, backend: CheckpointBackend) -> None:
        limits = {"jobs": QueueLimits(concurrency=5, per_key=2)}
        await submit_keyed(backend, *(f"{key}{number}" for key in "abcd" for number in range(4)))
        found: list[str] = []

        async def work(index: int) -> object:
            found.extend(await claimed(backend, limit=3, limits=limits))
            return None

        await together(6, work)
        equal(len(found), 5)
        equal(max(Counter(each[0] for each in found).values()) <= 2, True)

    @pytest.mark.parametrize("seed", range(3))
    async def test_claims_at_random(self, backend: CheckpointBackend, seed: int) -> None:
        """As from the backend in memory, whatever was claimed, given up and limited before."""
        chance, reference = Random(seed), InMemoryBackend()  # noqa: S311 # runs that are made up
        owned: list[tuple[Claim, Claim]] = []
        for number in range(60):
            what = chance.choice(["submit", "submit", "claim", "end", "wait", "release"])
            if what == "submit":
                place = Queued(
                    chance.choice(["jobs", "other"]),
                    chance.choice(["flow-1", "flow-2"]),
                    chance.choice([float(number), None]),
                    chance.choice([0, 0, 0, 5]),
                    chance.choice(["", "a", "b", "c"]),
                )
                for each in (backend, reference):
                    await submit(each, f"r{number}", place)
            elif what == "claim":
                given: ClaimOptions = {
                    "flow": chance.choice(["flow-1", "flow-2"]),
                    "limit": chance.randint(1, 5),
                    "limits": {
                        "jobs": QueueLimits(chance.choice([None, 2, 4]), chance.choice([None, 1, 2])),
                        "other": QueueLimits(per_key=chance.choice([None, 1])),
                    },
                }
                found = await claim(backend, "jobs", "other", **given)
                expected = await claim(reference, "jobs", "other", **given)
                seen = [(each.lease.run_id, each.queued, each.lives) for each in found]
                right = [(each.lease.run_id, each.queued, each.lives) for each in expected]
                equal((seed, number, seen), (seed, number, right))
                owned += zip(found, expected, strict=True)
            elif owned:
                pair, at = owned.pop(chance.randrange(len(owned))), chance.choice([float(number), None])
                for each, its in zip((backend, reference), pair, strict=True):
                    if what == "end":
                        await end(each, its.lease)
                    elif what == "release":
                        await each.release(its.lease)
                    else:
                        await store(each, its.lease, queued=evolve(its.queued, at=at))

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

    @pytest.mark.parametrize("in_queue", [True, False])
    async def test_an_owner_that_goes_on_takes_signals_out(self, backend: CheckpointBackend, in_queue: bool) -> None:
        if in_queue:
            await submit(backend, "r")
            lease = (await claim(backend))[0].lease
        else:
            await fill(backend, "r", 1)
            lease = await backend.acquire("r", ttl=30.0)
        numbers = [await backend.send("r", key, b"hello") for key in "abc"]
        head = await backend.head("r")
        position = 0 if head is None else head.position
        given = Transaction("r", position, lease.fence, [record("more")], read=numbers[1])
        await backend.commit([given])
        equal([each.key for each in await backend.inbox("r")], ["c"])
        with pytest.raises(PositionConflict):
            await backend.commit([evolve(given, read=numbers[2])])
        with pytest.raises(LeaseLost):
            await backend.commit(
                [evolve(given, fence=lease.fence - 1, expected_position=position + 1, read=numbers[2])]
            )
        equal([each.key for each in await backend.inbox("r")], ["c"])
        # It is the owner still.
        equal(await claim(backend), [])
        await backend.append("r", expected_position=position + 1, fence=lease.fence, records=[record("more")])
        await backend.release(lease)

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
