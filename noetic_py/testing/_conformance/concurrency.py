"""Cases of concurrency and of cancellation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import NoeticError, PositionConflict, RunBusy, RunNotFound, VersionConflict
from noetic_py.journal.stored import Lease, Record, Transaction
from noetic_py.testing._conformance.base import SCOPE, Suite, equal, everything, fill, journal, payloads, record

TURNS = [0, 1, 2, 3, 4, 6, 9, 14, 30]


async def together(count: int, work: Callable[[int], Awaitable[object]]) -> list[object]:
    """Do work so many times at once; gives what each returned, or the library's error that it raised."""
    outcomes: list[object] = [None] * count

    async def one(index: int) -> None:
        try:
            outcomes[index] = await work(index)
        except NoeticError as error:
            outcomes[index] = error

    async with anyio.create_task_group() as group:
        for index in range(count):
            group.start_soon(one, index)
    return outcomes


async def cancelled_after(turns: int, work: Callable[[], Awaitable[object]]) -> None:
    """Begin work, and cancel it after so many turns of the event loop."""

    async def one() -> None:
        await work()

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        for _ in range(turns):
            await checkpoint()
        group.cancel_scope.cancel()


def count(outcomes: list[object], kind: type[object]) -> int:
    return sum(isinstance(each, kind) for each in outcomes)


class Concurrency(Suite):
    @pytest.mark.parametrize("runs", [2, 20, 100])
    async def test_many_runs_at_once(self, backend: CheckpointBackend, runs: int) -> None:
        async def work(index: int) -> object:
            return await fill(backend, f"r{index}", 1, 2, 1)

        written = await together(runs, work)
        for index in range(runs):
            equal(await everything(backend, f"r{index}"), written[index])

    async def test_one_writer_wins_a_position(self, backend: CheckpointBackend) -> None:
        for position in range(10):

            async def work(index: int, position: int = position) -> object:
                return await backend.append(
                    "r", expected_position=position, fence=0, records=[record(f"{position}/{index}")]
                )

            outcomes = await together(10, work)
            equal((count(outcomes, int), count(outcomes, PositionConflict)), (1, 9))
        written = payloads(await everything(backend, "r"))
        equal([int(each.split(b"/")[0]) for each in written], list(range(10)))

    async def test_one_owner_wins_a_run(self, backend: CheckpointBackend) -> None:
        for n in range(5):

            async def work(index: int, n: int = n) -> object:
                return await backend.acquire(f"r{n}", ttl=60.0)

            outcomes = await together(10, work)
            equal((count(outcomes, Lease), count(outcomes, RunBusy)), (1, 9))

    async def test_one_fork_wins_an_id(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)
        outcomes = await together(10, lambda _: backend.fork("r", at=1, new_run_id="f"))
        equal((outcomes.count(None), count(outcomes, PositionConflict)), (1, 9))

    async def test_one_creator_wins_a_key(self, backend: CheckpointBackend) -> None:
        outcomes = await together(10, lambda index: backend.put(SCOPE, "k", b"%d" % index, expected=0))
        equal((count(outcomes, int), count(outcomes, VersionConflict)), (1, 9))
        (won,) = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        found = await backend.get(SCOPE, "k")
        equal(None if found is None else found.value, b"%d" % won)

    @pytest.mark.parametrize("writers", [2, 10])
    async def test_a_counter_counts_every_writer(self, backend: CheckpointBackend, writers: int) -> None:
        async def add() -> bool:
            found = await backend.get(SCOPE, "n")
            value, version = (0, 0) if found is None else (int(found.value), found.version)
            try:
                await backend.put(SCOPE, "n", b"%d" % (value + 1), expected=version)
            except VersionConflict:
                return False
            return True

        async def work(index: int) -> object:
            added = 0
            while added < 5:
                added += await add()
            return added

        await together(writers, work)
        found = await backend.get(SCOPE, "n")
        equal(None if found is None else found.value, b"%d" % (writers * 5))

    async def test_only_one_removes(self, backend: CheckpointBackend) -> None:
        await backend.put(SCOPE, "k", b"v")
        equal(sorted(map(str, await together(8, lambda _: backend.remove(SCOPE, "k")))), ["False"] * 7 + ["True"])

    async def test_readers_see_whole_transactions(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 5)
        done = anyio.Event()

        async def write() -> None:
            await fill(backend, "r", *[5] * 30)
            done.set()

        async def read() -> None:
            while not done.is_set():
                seen = await backend.read("r", limit=10_000)
                equal(len(seen) % 5, 0)
                equal(payloads(seen), [b"r/%d" % n for n in range(len(seen))])

        async with anyio.create_task_group() as group:
            for task in (write, read, read, read):
                group.start_soon(task)

    async def test_lists_are_right_while_runs_are_written(self, backend: CheckpointBackend) -> None:
        done = anyio.Event()

        async def write() -> None:
            for n in range(30):
                await backend.commit(
                    [Transaction(f"r{n}-{m}", 0, 0, [record("x")], summary=b"%d" % n, status=f"s{n}") for m in range(3)]
                )
            done.set()

        async def look() -> None:
            while not done.is_set():
                for entry in await backend.list():
                    equal((entry.position, entry.status), (1, f"s{int(entry.summary)}"))

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            group.start_soon(look)
        equal(len(await backend.list(limit=1000)), 90)

    async def test_appending_while_forks_come_and_go(self, backend: CheckpointBackend) -> None:
        await fill(backend, "r", 1)

        async def work(index: int) -> object:
            if index == 0:
                return await fill(backend, "r", *[1] * 20)
            await backend.fork("r", at=1, new_run_id=f"f{index}")
            own = await fill(backend, f"f{index}", 2)
            seen = await everything(backend, f"f{index}")
            equal(payloads(seen), [b"r/0", *payloads(own)])
            await backend.delete(f"f{index}")
            return None

        await together(11, work)
        equal(payloads(await everything(backend, "r")), [b"r/%d" % n for n in range(21)])
        equal((await backend.stats()).runs, 1)

    async def test_deleting_and_writing_at_once(self, backend: CheckpointBackend) -> None:
        for n in range(10):
            await fill(backend, f"r{n}", 2)

            async def work(index: int, run_id: str = f"r{n}") -> object:
                if index == 0:
                    return await backend.append(run_id, expected_position=2, fence=0, records=[record("x")])
                await backend.delete(run_id)
                return None

            outcomes = await together(2, work)
            left = await journal(backend, f"r{n}")
            equal(left, None)
            equal(outcomes[0] == 3 or isinstance(outcomes[0], PositionConflict), True)

    async def test_the_owner_writes_while_others_try(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=60.0)

        async def work(index: int) -> object:
            if index == 0:
                return await fill(backend, "r", *[1] * 20, fence=lease.fence)
            for _ in range(10):
                with pytest.raises(RunBusy):
                    await backend.acquire("r", ttl=60.0)
                with pytest.raises(NoeticError):
                    await backend.append("r", expected_position=20, fence=lease.fence + index, records=[record("x")])
            return None

        await together(5, work)
        equal(payloads(await everything(backend, "r")), [b"r/%d" % n for n in range(20)])

    async def test_one_refused_writer_hurts_nothing_beside_it(self, backend: CheckpointBackend) -> None:
        def work(index: int) -> Awaitable[object]:
            expected = 7 if index % 3 == 0 else 0
            return backend.append(f"r{index}", expected_position=expected, fence=0, records=[record("x")])

        outcomes = await together(30, work)
        for index, outcome in enumerate(outcomes):
            equal(type(outcome), PositionConflict if index % 3 == 0 else int)
        equal((await backend.stats()).runs, 20)

    async def test_closing_waits_for_what_was_begun(self, backend: CheckpointBackend) -> None:
        outcomes: list[object] = []

        async def write(index: int) -> None:
            outcomes.append(await backend.append(f"r{index}", expected_position=0, fence=0, records=[record("x")]))

        with anyio.fail_after(60):
            try:
                async with anyio.create_task_group() as group:
                    for index in range(20):
                        group.start_soon(write, index)
                    await backend.close()
            except ExceptionGroup as errors:
                left = errors.split(NoeticError)[1]
                equal(left, None)
        equal(all(each == 1 for each in outcomes), True)


class Cancelling(Suite):
    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_append_is_whole_or_not_there(self, backend: CheckpointBackend, turns: int) -> None:
        written = payloads(await fill(backend, "r", 2))
        large = Record("K", (), b"x" * 100_000)
        await cancelled_after(
            turns,
            lambda: backend.append(
                "r",
                expected_position=2,
                fence=0,
                records=[record("a"), large, record("b")],
                summary=b"new",
                status="new",
            ),
        )
        (entry,) = await backend.list()
        whole = [*written, b"a", large.payload, b"b"]
        equal(
            (await journal(backend, "r"), entry.summary, entry.status)
            in ((written, b"", None), (whole, b"new", "new")),
            True,
        )
        await fill(backend, "r", 1)

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_append_has_ended(self, backend: CheckpointBackend, turns: int) -> None:
        """Once the call is over nothing of it is written any more, so that its writer can go on from what it sees."""
        large = [Record("K", (), b"x" * 200_000)] * 20
        await cancelled_after(
            turns, lambda: backend.append("r", expected_position=0, fence=0, records=large, status="new")
        )
        found = await journal(backend, "r")
        for _ in range(20):
            await fill(backend, "other", 1)
            equal(await journal(backend, "r") == found, True)
        await fill(backend, "r", 1)

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_commit_is_whole(self, backend: CheckpointBackend, turns: int) -> None:
        given = [Transaction(f"r{n}", 0, 0, [record("a"), record("b")]) for n in range(20)]
        await cancelled_after(turns, lambda: backend.commit(given))
        equal([await journal(backend, f"r{n}") for n in range(20)] in ([None] * 20, [[b"a", b"b"]] * 20), True)

    async def test_commits_over_the_same_runs_take_turns(self, backend: CheckpointBackend) -> None:
        names = ["a", "b", "c"]

        async def work(index: int) -> object:
            ordered = names if index % 2 else names[::-1]
            return await backend.commit([Transaction(name, 0, 0, [record(str(index))]) for name in ordered])

        outcomes = await together(8, work)
        equal(count(outcomes, PositionConflict), 7)
        written = [await journal(backend, name) for name in names]
        equal(written[1:], written[:-1])

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_acquire_can_be_done_again(self, backend: CheckpointBackend, turns: int) -> None:
        leases: list[Lease] = []

        async def work() -> None:
            leases.append(await backend.acquire("r", ttl=60.0))

        await cancelled_after(turns, work)
        for lease in leases:
            await backend.release(lease)
        await self.lapse(backend)
        await backend.acquire("r", ttl=60.0)

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_fork_is_whole_or_not_there(self, backend: CheckpointBackend, turns: int) -> None:
        written = payloads(await fill(backend, "r", 2, 1))
        await cancelled_after(turns, lambda: backend.fork("r", at=2, new_run_id="f"))
        equal(await journal(backend, "f") in (None, written[:2]), True)
        equal(await journal(backend, "r"), written)

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_delete_is_whole_or_not_done(self, backend: CheckpointBackend, turns: int) -> None:
        written = payloads(await fill(backend, "r", 2, 1))
        await backend.fork("r", at=2, new_run_id="f")
        await cancelled_after(turns, lambda: backend.delete("r"))
        equal(await journal(backend, "r") in (None, written), True)
        equal(await journal(backend, "f"), written[:2])

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_put_is_whole_or_not_done(self, backend: CheckpointBackend, turns: int) -> None:
        old = await backend.put(SCOPE, "k", b"old")
        await cancelled_after(turns, lambda: backend.put(SCOPE, "k", b"new" * 50_000, expected=old))
        found = await backend.get(SCOPE, "k")
        if found is None:
            pytest.fail("the value is gone")
        equal((found.value, found.version == old) in ((b"old", True), (b"new" * 50_000, False)), True)

    @pytest.mark.parametrize("turns", TURNS)
    async def test_a_cancelled_reader_disturbs_nothing(self, backend: CheckpointBackend, turns: int) -> None:
        written = await fill(backend, "r", 5, 5)
        await cancelled_after(turns, lambda: backend.read("r"))
        await cancelled_after(turns, backend.list)
        await cancelled_after(turns, lambda: backend.scan(SCOPE))
        equal(await everything(backend, "r"), written)

    async def test_what_is_cancelled_before_it_begins_does_nothing(self, backend: CheckpointBackend) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await backend.append("r", expected_position=0, fence=0, records=[record("x")])
        equal(scope.cancelled_caught, True)
        with pytest.raises(RunNotFound):
            await backend.read("r")

    async def test_many_cancelled_writers_leave_whole_transactions(self, backend: CheckpointBackend) -> None:
        async def write(run_id: str) -> None:
            await fill(backend, run_id, *[3] * 50)

        for turns in (5, 20, 50):
            async with anyio.create_task_group() as group:
                for n in range(10):
                    group.start_soon(write, f"r{turns}-{n}")
                for _ in range(turns):
                    await checkpoint()
                group.cancel_scope.cancel()
            for n in range(10):
                name = f"r{turns}-{n}".encode()
                left = await journal(backend, name.decode()) or []
                equal(left, [b"%s/%d" % (name, k) for k in range(len(left) // 3 * 3)])
