"""Sessions: one turn at a time in the order of arrival, nothing lost, nobody else's."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from attrs import Factory, define, evolve

from noetic_py import (
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    SessionKey,
    SessionPolicy,
    StateBag,
    call_model,
    sequence,
    step,
)
from noetic_py.checkpoints import CheckpointBackend, Lease, RunEntry, SqliteBackend, Transaction
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.core.runtime import Runtime
from noetic_py.errors import (
    LeaseLost,
    Overloaded,
    PositionConflict,
    RunBusy,
    RunNotFound,
    SessionConflict,
    SessionLoadError,
    StepFailed,
    StoreUnavailable,
)
from noetic_py.memory import Plan, Scope, WorkingMemory
from noetic_py.sessions.queue import SessionLock
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


@define
class Notes:
    """What a session keeps beside its conversation."""

    count: int = 0
    said: list[str] = Factory(list[str])


@step
async def note(text: str, ctx: Context[Memory, Notes]) -> str:
    """Say something and get it back; what a model would do, without one."""
    ctx.items.append(Message.user(text))
    ctx.state.count += 1
    ctx.state.said.append(text)
    await anyio.lowlevel.checkpoint()
    return text


@step
async def reply(text: str, ctx: Context[Memory, Notes]) -> str:
    """Answer what was said."""
    ctx.items.append(Message.assistant(f"re: {text}"))
    return f"re: {text}"


talk = sequence(note, reply)


def texts(items: Any) -> list[str]:
    """What was said."""
    return [item.text for item in items if isinstance(item, Message)]


@pytest.fixture(params=["none", "memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], CheckpointBackend | None]:
    """The same store again at each call, as another process would open it."""
    kept = InMemoryBackend()
    return {"none": lambda: None, "memory": lambda: kept, "sqlite": lambda: SqliteBackend(tmp_path / "runs.db")}[
        request.param
    ]


@asynccontextmanager
async def harness_on(store: CheckpointBackend | None, **options: Any) -> AsyncGenerator[Harness]:
    """A harness, and its backend closed behind it when that is a file."""
    async with Harness(plugins=[], checkpoints=store, **options) as harness:
        yield harness
    if isinstance(store, SqliteBackend):
        await store.close()


# ---------------------------------------------------------------------------------------------------- the lock


@pytest.mark.parametrize("seed", range(20))
async def test_the_gate_lets_in_one_at_a_time_in_the_order_of_arrival(seed: int) -> None:
    chance = random.Random(seed)
    lock = SessionLock()
    key = SessionKey("ada", "trip")
    arrived: list[int] = []
    came_in: list[int] = []
    inside = 0
    scopes = [anyio.CancelScope() for _ in range(60)]

    async def caller(number: int) -> None:
        nonlocal inside
        with scopes[number]:
            arrived.append(number)
            async with lock.acquire(key):
                inside += 1
                assert inside == 1
                came_in.append(number)
                try:
                    for _ in range(chance.randrange(3)):
                        await anyio.lowlevel.checkpoint()
                finally:
                    inside -= 1

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(caller, number)
            if chance.random() < 0.3:
                await anyio.lowlevel.checkpoint()
            if chance.random() < 0.3:
                scopes[chance.randrange(60)].cancel()
    assert came_in == [number for number in arrived if number in came_in], f"seed {seed}"
    assert {number for number in arrived if not scopes[number].cancel_called} <= set(came_in), f"seed {seed}"
    assert len(lock) == 0


async def test_a_cancelled_caller_who_was_let_in_lets_the_next_one_in() -> None:
    lock, key = SessionLock(), SessionKey(None, "s")
    done: list[str] = []
    second = anyio.CancelScope()

    async def wait(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            async with lock.acquire(key):
                done.append(name)

    async with anyio.create_task_group() as group, lock.acquire(key):
        group.start_soon(wait, "second", second)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(wait, "third", anyio.CancelScope())
        await anyio.wait_all_tasks_blocked()
        # The second is cancelled, and its turn comes before it has heard of that.
        second.cancel()
    assert done == ["third"]
    assert len(lock) == 0


# ---------------------------------------------------------------------------------------------------- turns


async def test_a_session_goes_on_from_what_was_said(backend: Callable[[], CheckpointBackend | None]) -> None:
    async with harness_on(backend()) as harness:
        session = harness.session("ada", "trip")
        for number in range(3):
            result = await session.run(talk, f"m{number}", state=Notes())
            assert result.value == f"re: m{number}"
            assert result.state.count == number + 1
            assert texts(result.new_items) == [f"m{number}", f"re: m{number}"]
            assert len(result.items) == 2 * (number + 1)
        assert texts(await session.items()) == ["m0", "re: m0", "m1", "re: m1", "m2", "re: m2"]
        state = await session.state(Notes)
        assert state == Notes(3, ["m0", "m1", "m2"])
        assert await session.state(StateBag) is None
        assert await harness.sessions.list("ada") == [session.key]


async def test_one_session_has_strict_order_and_loses_nothing(
    backend: Callable[[], CheckpointBackend | None],
) -> None:
    # `tests/properties/test_session_load.py` has a hundred callers, some of whom fail or give up.
    callers, turns = 20, 40
    async with harness_on(backend()) as harness:
        session = harness.session("ada", "trip")
        arrived: list[str] = []
        waiting = iter(range(turns))

        async def caller() -> None:
            for number in waiting:
                arrived.append(f"m{number}")
                assert (await session.run(talk, f"m{number}", state=Notes())).value == f"re: m{number}"

        async with anyio.create_task_group() as group:
            for _ in range(callers):
                group.start_soon(caller)
        expected = [text for name in arrived for text in (name, f"re: {name}")]
        assert texts(await session.items()) == expected
        state = await session.state(Notes)
        assert state is not None
        assert state.said == arrived


async def test_sessions_do_not_wait_for_each_other_and_leave_nothing() -> None:
    reached = anyio.Event()
    free = anyio.Event()

    @step
    async def slow(text: str, ctx: Ctx) -> str:
        reached.set()
        await free.wait()
        return text

    async with Harness(plugins=[]) as harness, anyio.create_task_group() as group:
        group.start_soon(harness.session("ada", "slow").run, slow, "x")
        await reached.wait()
        for number in range(2 * SessionPolicy().cache_size):
            session = harness.session(f"user {number}", "slow")
            assert (await session.run(talk, "hello", state=Notes())).value == "re: hello"
        free.set()
    assert harness._session_store.in_use == 0
    assert len(harness._session_store._known) <= SessionPolicy().cache_size
    assert harness._session_store._live == {}


async def test_a_waiter_that_gives_up_leaves_no_gap(backend: Callable[[], CheckpointBackend | None]) -> None:
    async with harness_on(backend()) as harness:
        session = harness.session("ada", "trip")
        scopes = [anyio.CancelScope() for _ in range(10)]
        begun = anyio.Event()
        free = anyio.Event()

        @step
        async def first(text: str, ctx: Context[Memory, Notes]) -> str:
            begun.set()
            await free.wait()
            ctx.items.append(Message.user(text))
            return text

        async def caller(number: int) -> None:
            with scopes[number]:
                await session.run(first if number == 0 else talk, f"m{number}", state=Notes())

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(caller, number)
                await anyio.wait_all_tasks_blocked() if number else await begun.wait()
            for number in (1, 4, 9):
                scopes[number].cancel()
            await anyio.wait_all_tasks_blocked()
            free.set()
        said = [text for text in texts(await session.items()) if not text.startswith("re")]
        assert said == ["m0", "m2", "m3", "m5", "m6", "m7", "m8"]


async def test_what_a_policy_refuses() -> None:
    begun, free = anyio.Event(), anyio.Event()

    @step
    async def slow(text: str, ctx: Ctx) -> str:
        begun.set()
        await free.wait()
        return text

    async with Harness(plugins=[], sessions=SessionPolicy(lock="reject")) as harness:
        session = harness.session("ada", "trip")
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, slow, "x")
            await begun.wait()
            with pytest.raises(RunBusy, match="has a turn already"):
                await session.run(slow, "y")
            free.set()
        assert (await session.run(slow, "z")).value == "z"

    begun, free = anyio.Event(), anyio.Event()
    async with Harness(plugins=[], sessions=SessionPolicy(max_waiting=2)) as harness:
        session = harness.session("ada", "trip")
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, slow, "x")
            await begun.wait()
            for _ in range(2):
                group.start_soon(session.run, slow, "y")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(Overloaded) as caught:
                await session.run(slow, "one too many")
            assert caught.value.waiting == 2
            free.set()


@pytest.mark.parametrize("policy", ["fail", "merge", "overwrite"])
async def test_turns_beside_each_other_meet_when_they_are_written(
    backend: Callable[[], CheckpointBackend | None], policy: Any
) -> None:
    both = anyio.Event()
    inside: list[str] = []

    @step
    async def meet(text: str, ctx: Context[Memory, Notes]) -> str:
        ctx.state.count += 1
        ctx.state.said.append(text)
        inside.append(text)
        if len(inside) == 2:
            both.set()
        await both.wait()
        ctx.items.append(Message.user(text))
        return text

    store = backend()
    async with harness_on(store, sessions=SessionPolicy(lock="none", on_conflict=policy)) as harness:
        session = harness.session("ada", "trip")
        both.set()
        await session.run(meet, "before", state=Notes())
        inside.clear()
        both = anyio.Event()
        conflicts: list[SessionConflict] = []

        async def turn(text: str) -> None:
            try:
                await session.run(meet, text, state=Notes())
            except SessionConflict as error:
                conflicts.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(turn, "a")
            group.start_soon(turn, "b")
        said = texts(await session.items())
        state = await session.state(Notes)
    assert said[0] == "before"
    assert state is not None
    if policy == "fail":
        assert len(conflicts) == 1
        assert conflicts[0].result is not None
        assert len(said) == 2
        assert texts(conflicts[0].result.new_items) == list({"a", "b"} - {said[1]})
        assert state.said == said
    elif policy == "merge":
        assert sorted(said[1:]) == ["a", "b"]
        assert not conflicts
    else:
        assert len(said) == 2
        assert state.said == said
        assert not conflicts


async def test_a_turn_that_fails_is_written_and_blocks_nobody(
    backend: Callable[[], CheckpointBackend | None],
) -> None:
    @step
    async def breaks(text: str, ctx: Context[Memory, Notes]) -> str:
        raise ValueError("no")

    async with harness_on(backend()) as harness:
        session = harness.session("ada", "trip")
        with pytest.raises(StepFailed, match="no"):
            await session.run(note >> breaks, "one", state=Notes())
        assert texts(await session.items()) == ["one"]
        result = await session.run(talk, "two", state=Notes())
        assert result.state.said == ["one", "two"]


async def test_a_cancelled_turn_is_written(backend: Callable[[], CheckpointBackend | None]) -> None:
    begun = anyio.Event()

    @step
    async def hangs(text: str, ctx: Context[Memory, Notes]) -> str:
        begun.set()
        await anyio.sleep_forever()
        return text

    async with harness_on(backend()) as harness:
        session = harness.session("ada", "trip")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.run(note >> hangs, "one", state=Notes()))
            await begun.wait()
            group.cancel_scope.cancel()
        assert texts(await session.items()) == ["one"]
        assert (await session.run(talk, "two", state=Notes())).state.said == ["one", "two"]


async def test_an_interrupt_stops_one_session_and_its_message_is_seen(
    backend: Callable[[], CheckpointBackend | None],
) -> None:
    begun = {name: anyio.Event() for name in ("trip", "other")}
    free = anyio.Event()

    @step
    async def wait(text: str, ctx: Context[Memory, Notes]) -> str:
        assert ctx.session is not None
        begun[ctx.session.session].set()
        await free.wait()
        return text

    model = ScriptedModel("I see.")
    async with harness_on(backend(), model=model) as harness:
        trip, other = harness.session("ada", "trip"), harness.session("ada", "other")
        assert await harness.interrupt(trip.key, "nobody hears this") is False
        results: dict[str, Any] = {}

        async def turn(name: str, session: Any) -> None:
            results[name] = await session.run(note >> wait, name, state=Notes())

        async with anyio.create_task_group() as group:
            group.start_soon(turn, "trip", trip)
            await begun["trip"].wait()
            group.start_soon(turn, "waits", trip)
            group.start_soon(turn, "other", other)
            await begun["other"].wait()
            begun["trip"] = anyio.Event()
            assert await harness.interrupt(trip.key, "Stop, and sum up.") is True
            # The one that has waited goes on; it was not meant.
            await begun["trip"].wait()
            free.set()
        assert {name: result.status for name, result in results.items()} == {
            "trip": "interrupted",
            "waits": "completed",
            "other": "completed",
        }
        assert texts(results["trip"].new_items) == ["trip"]
        assert texts(await trip.items()) == ["trip", "Stop, and sum up.", "waits"]
        await trip.run(call_model(), "And?")
        assert texts(model.requests[0].items) == ["trip", "Stop, and sum up.", "waits", "And?"]


# ---------------------------------------------------------------------------------------------------- stores


async def test_what_was_said_is_not_stored_again_with_every_turn(tmp_path: Path) -> None:
    sizes: list[int] = []
    async with Harness(plugins=[], checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
        session = harness.session("ada", "trip")
        for number in range(60):
            await session.run(talk, f"m{number}" + "x" * 500, state=Notes())
            sizes.append(sum(len(record.payload) for record in await _records(harness, session.key)))
        growth = [after - before for before, after in itertools.pairwise(sizes)]
        assert max(growth[30:]) <= 1.1 * max(growth[:10])
        runs = await harness.runs.list(session=session.key, limit=None)
        assert len(runs) == 60
        # The state, which grows, is in the head of each run; what was said is not.
        assert "m0" not in str((await harness.runs.journal(runs[0].run_id))[0].opening.items)  # type: ignore[union-attr]
        # Old runs can go, and the conversation stays.
        assert await harness.runs.prune(keep=0) == 60
        assert len(await session.items()) == 120
        assert (await session.run(talk, "again", state=Notes())).state.count == 61


async def _records(harness: Harness, key: SessionKey) -> Any:
    backend = harness._session_store.backend
    return await backend.read(key.stream)


async def test_a_message_that_is_delivered_again_is_answered_again_and_done_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    deliveries = [f"d{number}" for number in range(40) for _ in range(chance.randrange(1, 6))]
    chance.shuffle(deliveries)
    ran: list[str] = []

    @step
    async def once(text: str, ctx: Context[Memory, Notes]) -> str:
        ran.append(text)
        return f"{text} was number {len(ran)}"

    async with Harness(plugins=[], checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
        session = harness.session("ada", "trip")
        replies: dict[str, set[str]] = {}

        async def deliver(each: str) -> None:
            result = await session.run(note >> once >> reply, each, state=Notes(), delivery_id=each)
            replies.setdefault(each, set()).add(result.value)

        async with anyio.create_task_group() as group:
            for each in deliveries:
                group.start_soon(deliver, each)
        assert sorted(ran) == sorted(set(deliveries))
        assert all(len(found) == 1 for found in replies.values())
        assert len(await harness.runs.list(session=session.key, limit=None)) == len(set(deliveries))
        state = await session.state(Notes)
        assert state is not None
        assert sorted(state.said) == sorted(set(deliveries))


@pytest.mark.parametrize("persist", ["run", "step"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_dies_at_any_moment_of_a_turn(persist: Any, when: Any) -> None:
    """At each append of the second of three turns; what is said afterwards never contradicts what was acknowledged."""
    died = True
    at = 0
    while died:
        at += 1
        inner = InMemoryBackend()
        policy = SessionPolicy(persist=persist)
        async with Harness(plugins=[], checkpoints=inner, sessions=policy) as harness:
            await harness.session("ada", "trip").run(talk, "one", state=Notes())
        faulty = FaultyBackend(inner, dies_at=at, when=when)
        finished = False
        with faulty.outlived():
            async with Harness(plugins=[], checkpoints=faulty, sessions=policy) as harness:
                await harness.session("ada", "trip").run(talk, "two", state=Notes(), delivery_id="second")
                finished = True
        died = faulty.dead
        faulty.revive()
        async with Harness(plugins=[], checkpoints=faulty, sessions=policy) as harness:
            session = harness.session("ada", "trip")
            result = await session.run(talk, "three", state=Notes())
            said = texts(await session.items())
            state = result.state
            assert said[:2] == ["one", "re: one"]
            assert said[-2:] == ["three", "re: three"]
            between = said[2:-2]
            if finished:
                assert between == ["two", "re: two"], (persist, when, at)
            if persist == "step":
                assert between in ([], ["two"], ["two", "re: two"]), (persist, when, at)
            else:
                assert between in ([], ["two", "re: two"]), (persist, when, at)
            # The state and the conversation tell the same story.
            assert state.said == [text for text in said if not text.startswith("re")], (persist, when, at)
    assert at > 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_delivery_that_comes_again_after_its_process_has_died_goes_on(when: Any) -> None:
    died = True
    at = 0
    while died:
        at += 1
        inner = InMemoryBackend()
        faulty = FaultyBackend(inner, dies_at=at, when=when)
        with faulty.outlived():
            async with Harness(plugins=[], checkpoints=faulty) as harness:
                await harness.session("ada", "trip").run(talk, "one", state=Notes(), delivery_id="d")
        died = faulty.dead
        faulty.revive()
        async with Harness(plugins=[], checkpoints=faulty) as harness:
            session = harness.session("ada", "trip")
            for _ in range(2):
                result = await session.run(talk, "one", state=Notes(), delivery_id="d")
                assert result.value == "re: one"
            assert texts(await session.items()) == ["one", "re: one"], (when, at)
            assert (await session.state(Notes)) == Notes(1, ["one"]), (when, at)
    assert at > 3


async def test_a_turn_that_died_and_is_resumed_as_a_run_is_written_to_its_session() -> None:
    inner = InMemoryBackend()
    faulty = FaultyBackend(inner, dies_at=2, when="after")
    with faulty.outlived():
        async with Harness(plugins=[], checkpoints=faulty) as harness:
            await harness.session("ada", "trip").run(talk, "one", state=Notes(), run_id="r")
    assert faulty.dead
    faulty.revive()
    async with Harness(plugins=[], checkpoints=faulty) as harness:
        result = await harness.resume("r", talk, state_type=Notes)
        assert result.value == "re: one"
        session = harness.session("ada", "trip")
        assert texts(await session.items()) == ["one", "re: one"]
        again = await harness.resume("r", talk, state_type=Notes)
        assert texts(again.items) == ["one", "re: one"]
        assert texts(await session.items()) == ["one", "re: one"]


async def test_another_process_is_told_before_anything_happens(tmp_path: Path) -> None:
    """Two harnesses with a backend each, as two processes have; the lease is the store's."""
    begun, free = anyio.Event(), anyio.Event()
    effects: list[str] = []

    @step
    async def slow(text: str, ctx: Ctx) -> str:
        effects.append(text)
        begun.set()
        await free.wait()
        return text

    shared = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=shared) as one, Harness(plugins=[], checkpoints=shared) as two:
        async with anyio.create_task_group() as group:
            group.start_soon(one.session("ada", "trip").run, slow, "one")
            await begun.wait()
            with pytest.raises(RunBusy, match=r"^session 'trip' is held by .*\n.*SessionPolicy\(wait=30\)"):
                await two.session("ada", "trip").run(slow, "two")
            with pytest.raises(RunBusy, match=r"^session 'trip' is held by another process\n.*then delete it"):
                await two.sessions.delete(SessionKey("ada", "trip"))
            free.set()
        assert effects == ["one"]
        assert (await two.session("ada", "trip").run(slow, "two")).value == "two"


class Clock(Runtime):
    """The machine's clock, put forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_an_owner_that_has_lost_its_lease_writes_nothing() -> None:
    clock = Clock()
    backend = InMemoryBackend(runtime=clock)
    begun, free = anyio.Event(), anyio.Event()

    @step
    async def slow(text: str, ctx: Context[Memory, Notes]) -> str:
        ctx.items.append(Message.user(text))
        begun.set()
        await free.wait()
        return text

    caught: list[BaseException] = []
    async with Harness(plugins=[], checkpoints=backend) as harness, anyio.create_task_group() as group:
        session = harness.session("ada", "trip")

        async def turn() -> None:
            try:
                await session.run(slow, "stale", state=Notes())
            except (LeaseLost, PositionConflict) as error:
                caught.append(error)

        group.start_soon(turn)
        await begun.wait()
        # Its time has run out, as far as the store knows, and somebody else has taken over.
        stream = session.key.stream
        clock.ahead = 3_600.0
        lease = await backend.acquire(stream, ttl=30)
        head = await backend.head(stream)
        assert head is not None
        await backend.release(lease)
        free.set()
    assert len(caught) == 1
    assert "stale" not in texts(await _items(backend, SessionKey("ada", "trip")))


@pytest.mark.parametrize("persist", ["run", "step"])
async def test_an_owner_that_wakes_when_another_has_had_a_turn_does_and_writes_nothing_more(persist: Any) -> None:
    clock = Clock()
    backend = InMemoryBackend(runtime=clock)
    policy = SessionPolicy(persist=persist)
    begun, free = anyio.Event(), anyio.Event()
    done: list[str] = []
    heads: dict[str, Any] = {}

    @step
    async def slow(text: str, ctx: Context[Memory, Notes]) -> str:
        ctx.items.append(Message.user(text))
        begun.set()
        await free.wait()
        return text

    @step
    async def act(text: str, ctx: Context[Memory, Notes]) -> str:
        done.append(text)
        return text

    async with (
        Harness(plugins=[], checkpoints=backend, sessions=policy) as harness,
        Harness(plugins=[], checkpoints=backend, sessions=policy) as other,
        anyio.create_task_group() as group,
    ):

        async def turn() -> None:
            with pytest.raises(LeaseLost):
                await harness.session("ada", "trip").run(slow >> act, "stale", state=Notes())

        group.start_soon(turn)
        await begun.wait()
        clock.ahead = 3_600.0
        await other.session("ada", "trip").run(talk, "fresh", state=Notes())
        heads = {run.run_id: await backend.head(run.run_id) for run in await other.runs.list()}
        free.set()
    assert done == []
    assert len(heads) == 2
    assert {run_id: await backend.head(run_id) for run_id in heads} == heads
    assert texts(await _items(backend, SessionKey("ada", "trip"))) == ["fresh", "re: fresh"]


async def test_a_turn_whose_session_is_lost_begins_no_further_step() -> None:
    backend = InMemoryBackend()
    begun, free = anyio.Event(), anyio.Event()
    done: list[str] = []

    class Forgetful(DelegatingBackend):
        """Loses the lease of a session when it is to be renewed."""

        async def renew(self, lease: Lease, *, ttl: float) -> Lease:
            if begun.is_set():
                free.set()
            raise LeaseLost("somebody else has it")

    @step
    async def slow(text: str, ctx: Context[Memory, Notes]) -> str:
        begun.set()
        await free.wait()
        return text

    @step
    async def act(text: str, ctx: Context[Memory, Notes]) -> str:
        done.append(text)
        return text

    # A lease is renewed after a third of it.
    async with Harness(plugins=[], checkpoints=Forgetful(backend), lease=3.0) as harness:
        with pytest.raises(LeaseLost):
            await harness.session("ada", "trip").run(slow >> act, "stale", state=Notes())
    assert done == []


async def test_a_turn_behind_ones_own_keeps_its_session() -> None:
    key, kept = SessionKey("ada", "trip"), anyio.Event()

    class Renewing(DelegatingBackend):
        """Says when the lease of the session is renewed."""

        async def renew(self, lease: Lease, *, ttl: float) -> Lease:
            renewed = await super().renew(lease, ttl=ttl)
            if lease.run_id == key.stream:
                kept.set()
            return renewed

    @step
    async def slow(text: str, ctx: Context[Memory, Notes]) -> str:
        await kept.wait()
        return text

    async with Harness(plugins=[], checkpoints=Renewing(InMemoryBackend()), lease=3.0) as harness:
        session = harness.session("ada", "trip")
        await session.run(talk, "a", state=Notes())
        assert (await session.run(slow, "b", state=Notes())).value == "b"


class Calls(DelegatingBackend):
    """Notes which of its methods turns call."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self.made: list[str] = []

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self.made.append("commit")
        return await super().commit(transactions)

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        self.made.append("acquire")
        return await super().acquire(run_id, ttl=ttl)

    async def entry(self, run_id: str) -> RunEntry | None:
        self.made.append("entry")
        return await super().entry(run_id)

    def take(self) -> list[str]:
        made, self.made = self.made, []
        return made


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_turn_behind_ones_own_is_two_commits(kind: str, tmp_path: Path) -> None:
    backend: CheckpointBackend = InMemoryBackend() if kind == "memory" else SqliteBackend(tmp_path / "runs.db")
    calls, key = Calls(backend), SessionKey("ada", "trip")
    async with backend, Harness(plugins=[], checkpoints=calls) as one, Harness(plugins=[], checkpoints=calls) as other:

        async def turn(harness: Any, text: str) -> list[str]:
            await harness.session("ada", "trip").run(talk, text, state=Notes())
            return calls.take()

        read = ["acquire", "entry", "commit", "commit"]
        assert await turn(one, "a") == read
        assert await turn(one, "b") == ["commit", "commit"]
        # Another process has written: that is found out by the commit, which was not taken.
        assert await turn(other, "c") == read
        assert await turn(one, "d") == ["commit", *read]
        assert await turn(one, "e") == ["commit", "commit"]
        said = ["a", "re: a", "b", "re: b", "c", "re: c", "d", "re: d", "e", "re: e"]
        assert texts(await _items(backend, key)) == said
        # Another session with the same name, which is as long as this one was.
        await other.sessions.delete(key)
        for text in "vwxyz":
            await turn(other, text)
        assert len(await backend.read(key.stream)) == 10
        assert await turn(one, "f") == ["commit", *read]
        said = [each for text in "vwxyzf" for each in (text, f"re: {text}")]
        assert texts(await _items(backend, key)) == said


async def test_a_turn_that_meets_another_process_waits_for_it() -> None:
    backend = InMemoryBackend()
    begun, free = anyio.Event(), anyio.Event()
    events: list[str] = []

    @step
    async def slow(text: str, ctx: Context[Memory, Notes]) -> str:
        begun.set()
        await free.wait()
        return await talk(text, ctx)

    policy = SessionPolicy(wait=60.0)
    async with (
        Harness(plugins=[], checkpoints=backend, sessions=policy) as one,
        Harness(plugins=[], checkpoints=backend) as other,
    ):
        session = one.session("ada", "trip")
        await session.run(talk, "a", state=Notes())
        async with anyio.create_task_group() as group:
            group.start_soon(partial(other.session("ada", "trip").run, slow, "b", state=Notes()))
            await begun.wait()

            group.start_soon(partial(session.run, talk, "c", state=Notes()))
            await anyio.wait_all_tasks_blocked()
            free.set()
        async with session.watch() as watched:
            while events.count("RunFinished") < 2:
                events.append(type(await anext(watched.events)).__name__)
    assert texts(await _items(backend, SessionKey("ada", "trip"))) == ["a", "re: a", "b", "re: b", "c", "re: c"]
    # Its run was begun once, for whoever watches.
    assert events.count("RunStarted") == 2


@pytest.mark.parametrize("at", ["before", "after"])
async def test_a_turn_that_is_cancelled_as_its_run_begins_leaves_the_run_free(at: str) -> None:
    reached = anyio.Event()

    class Stuck(DelegatingBackend):
        """Begins the first run, and never says so; gives the run back when its caller is cancelled."""

        async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
            if reached.is_set():
                return await super().commit(transactions)
            done = await super().commit(transactions) if at == "after" else ()
            reached.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    for lease in done[1:]:
                        await self.release(lease)
            return done

        async def release(self, lease: Lease) -> None:
            await anyio.lowlevel.checkpoint()
            await super().release(lease)

        async def acquire(self, run_id: str, *, ttl: float) -> Lease:
            # A backend need not say where the journal ends, and is asked then.
            return evolve(await super().acquire(run_id, ttl=ttl), position=None)

    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=Stuck(backend)) as harness, anyio.create_task_group() as group:
        session = harness.session("ada", "trip")

        async def turn() -> None:
            await session.run(talk, "first", state=Notes(), run_id="first")

        group.start_soon(turn)
        await reached.wait()
        group.cancel_scope.cancel()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        await backend.release(await backend.acquire("first", ttl=30))
        session = harness.session("ada", "trip")
        await session.run(talk, "second", state=Notes())
        assert texts(await session.items()) == ["second", "re: second"]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_turn_whose_commit_fails_says_so_and_its_run_has_ended(stored: bool) -> None:
    class Failing(DelegatingBackend):
        """Fails in the commit of a turn's end, and has taken it or not."""

        failing = False

        async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
            if self.failing and len(transactions) == 2:
                if stored:
                    await super().commit(transactions)
                raise StoreUnavailable("the answer was lost", where="here", reason="unknown")
            return await super().commit(transactions)

    backend = Failing(InMemoryBackend())

    @step
    async def lose(text: str, ctx: Context[Memory, Notes]) -> str:
        backend.failing = text == "two"
        return text

    async with Harness(plugins=[], checkpoints=backend) as harness:
        session = harness.session("ada", "trip")
        await session.run(lose >> talk, "one", state=Notes())
        with pytest.raises(StoreUnavailable) as caught:
            await session.run(lose >> talk, "two", state=Notes(), run_id="two")
        backend.failing = False
        assert (caught.value.reason, getattr(caught.value.result, "status", None)) == ("unknown", "completed")
        info = await harness.runs.get("two")
        assert (info.status, info.alive) == ("completed", False)
        await session.run(lose >> talk, "three", state=Notes())
        said = texts(await session.items())
        assert (said[:2], said[-2:]) == (["one", "re: one"], ["three", "re: three"])
        assert said[2:-2] in ([["two", "re: two"]] if stored else [[], ["two", "re: two"]])


async def _items(backend: CheckpointBackend, key: SessionKey) -> Any:
    async with Harness(plugins=[], checkpoints=backend) as harness:
        return await harness.session(key.user, key.session).items()


async def test_a_session_that_cannot_be_read(tmp_path: Path) -> None:
    backend = InMemoryBackend()
    async with Harness(plugins=[], checkpoints=backend) as harness:
        session = harness.session("ada", "trip")
        await session.run(talk, "one", state=Notes())
    stream = session.key.stream
    lease = await backend.acquire(stream, ttl=30)
    head = await backend.head(stream)
    assert head is not None
    from noetic_py.checkpoints import Record

    await backend.append(
        stream, expected_position=head.position, fence=lease.fence, records=[Record("TurnEnded", (), b"{not json")]
    )
    await backend.release(lease)
    async with Harness(plugins=[], checkpoints=backend) as harness:
        with pytest.raises(SessionLoadError, match="record 3"):
            await harness.session("ada", "trip").run(talk, "two", state=Notes())
        assert await harness.sessions.exists(session.key)
    fresh = SessionPolicy(on_load_error="fresh")
    async with Harness(plugins=[], checkpoints=backend, sessions=fresh) as harness:
        result = await harness.session("ada", "trip").run(talk, "two", state=Notes())
        assert texts(result.items) == ["two", "re: two"]
    # What was there before is still stored, and is not read any more.
    async with Harness(plugins=[], checkpoints=backend) as harness:
        result = await harness.session("ada", "trip").run(talk, "three", state=Notes())
        assert texts(result.items) == ["two", "re: two", "three", "re: three"]
        assert len(await backend.read(stream)) == 7


async def test_editing_by_hand(backend: Callable[[], CheckpointBackend | None]) -> None:
    async with harness_on(backend()) as harness:
        session = harness.session("ada", "trip")
        await session.run(talk, "one", state=Notes())
        async with session.edit() as edit:
            edit.items[1] = Message.assistant("something better")
            edit.items.append(Message.user("more"))
        assert texts(await session.items()) == ["one", "something better", "more"]
        assert await session.state(Notes) == Notes(1, ["one"])
        await session.clear()
        assert await session.items() == ()
        assert await session.state(Notes) == Notes(1, ["one"])
        async with session.edit() as edit:
            edit.states.clear()
        assert await session.state(Notes) is None
        result = await session.run(talk, "two", state=Notes())
        assert texts(result.items) == ["two", "re: two"]
        assert result.state == Notes(1, ["two"])


async def test_turns_that_are_written_when_somebody_says_so(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    policy = SessionPolicy(persist="manual")
    async with Harness(plugins=[], checkpoints=f"sqlite:{path}", sessions=policy) as harness:
        session = harness.session("ada", "trip")
        for text in ("one", "two"):
            result = await session.run(talk, text, state=Notes())
        assert texts(result.items) == ["one", "re: one", "two", "re: two"]
        assert await session.save() == 2
        assert await session.save() == 0
        await session.run(talk, "three", state=Notes())
        lease = await harness._session_store.backend.acquire(session.key.stream, ttl=30)
        with pytest.raises(RunBusy):
            await session.save()
        await harness._session_store.backend.release(lease)
        # What was not taken is not lost.
        assert await session.save() == 1
        await session.run(talk, "lost", state=Notes())
    async with Harness(plugins=[], checkpoints=f"sqlite:{path}", sessions=policy) as harness:
        session = harness.session("ada", "trip")
        assert texts(await session.items()) == ["one", "re: one", "two", "re: two", "three", "re: three"]
        assert await session.state(Notes) == Notes(3, ["one", "two", "three"])


async def test_a_deleted_session_is_gone_for_everybody(backend: Callable[[], CheckpointBackend | None]) -> None:
    async with harness_on(backend()) as harness:
        session = harness.session("ada", "trip")
        await session.run(talk, "one", state=Notes())
        await harness.session("bob", "trip").run(talk, "bob's", state=Notes())
        await harness.sessions.delete(session.key)
        assert not await harness.sessions.exists(session.key)
        assert await harness.sessions.list("ada") == []
        assert await session.items() == ()
        result = await session.run(talk, "anew", state=Notes())
        assert texts(result.items) == ["anew", "re: anew"]
        assert texts(await harness.session("bob", "trip").items()) == ["bob's", "re: bob's"]


async def test_a_turn_never_gets_hold_of_another_run(tmp_path: Path) -> None:
    """A run id that is somebody else's is refused, and neither its items nor its result come in by a side door."""
    policy = SessionPolicy(persist="step")
    async with Harness(plugins=[], checkpoints=InMemoryBackend(), sessions=policy) as harness:
        await harness.session("bob", "secret").run(talk, "bob's secret", state=Notes(), run_id="bobs")
        ada = harness.session("ada", "trip")
        for _ in range(2):
            with pytest.raises(RunBusy):
                await ada.run(talk, "mine", state=Notes(), run_id="bobs", delivery_id="d")
        result = await ada.run(talk, "mine", state=Notes(), delivery_id="d")
        assert result.run_id != "bobs"
        assert texts(await ada.items()) == ["mine", "re: mine"]
        assert await ada.state(Notes) == Notes(1, ["mine"])


async def test_reading_while_a_turn_is_written() -> None:
    async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
        session = harness.session("ada", "trip")
        over = False

        async def read() -> None:
            while not over:
                said = texts(await session.items())
                assert said == [text for number in range(len(said) // 2) for text in (f"m{number}", f"re: m{number}")]

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(read)
            for number in range(40):
                await session.run(talk, f"m{number}", state=Notes())
            over = True
        assert len(await session.items()) == 80


async def test_a_turn_that_is_cancelled_and_cannot_be_written_stays_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = anyio.Event()
    clock = Clock()
    backend = InMemoryBackend(runtime=clock)

    @step
    async def hangs(text: str, ctx: Context[Memory, Notes]) -> str:
        begun.set()
        await anyio.sleep_forever()
        return text

    async with Harness(plugins=[], checkpoints=backend) as harness:
        session = harness.session("ada", "trip")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.run(note >> hangs, "one", state=Notes()))
            await begun.wait()
            clock.ahead = 3_600.0
            await backend.release(await backend.acquire(session.key.stream, ttl=30))
            group.cancel_scope.cancel()
        assert "a cancelled turn was not written" in caplog.text


async def test_all_that_was_said_by_those_who_interrupt_is_kept() -> None:
    begun = anyio.Event()

    @step
    async def hangs(text: str, ctx: Context[Memory, Notes]) -> str:
        begun.set()
        await anyio.sleep_forever()
        return text

    async with Harness(plugins=[]) as harness:
        session = harness.session("ada", "trip")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.run(note >> hangs, "one", state=Notes()))
            await begun.wait()
            assert await session.interrupt("stop")
            assert await session.interrupt("really")
        assert texts(await session.items()) == ["one", "stop", "really"]


async def test_a_delivery_whose_run_never_began_is_done_after_another_turn() -> None:
    backend = InMemoryBackend()
    faulty = FaultyBackend(backend, dies_at=1)
    with faulty.outlived():
        async with Harness(plugins=[], checkpoints=faulty) as harness:
            await harness.session("ada", "trip").run(talk, "one", state=Notes(), delivery_id="d")
    faulty.revive()
    async with Harness(plugins=[], checkpoints=faulty) as harness:
        session = harness.session("ada", "trip")
        await session.run(talk, "two", state=Notes())
        for _ in range(2):
            result = await session.run(talk, "one", state=Notes(), delivery_id="d")
            assert result.value == "re: one"
        assert texts(await session.items()) == ["two", "re: two", "one", "re: one"]


async def test_a_run_of_a_deleted_session_does_not_go_on_in_its_namesake() -> None:
    backend = InMemoryBackend()
    faulty = FaultyBackend(backend, dies_at=6, when="after")
    async with Harness(plugins=[], checkpoints=backend) as harness:
        await harness.session("ada", "trip").run(talk, "zero", state=Notes())
    with faulty.outlived():
        async with Harness(plugins=[], checkpoints=faulty) as harness:
            await harness.session("ada", "trip").run(talk, "one", state=Notes(), run_id="r")
    faulty.revive()
    async with Harness(plugins=[], checkpoints=faulty) as harness:
        session = harness.session("ada", "trip")
        await harness.sessions.delete(session.key)
        for text in ("a", "b"):
            await session.run(talk, text, state=Notes())
        with pytest.raises(RunNotFound, match="no longer exists"):
            await harness.resume("r", talk, state_type=Notes)
        assert texts(await session.items()) == ["a", "re: a", "b", "re: b"]


class Minds(Memory):
    """What layers keep of a session, and of a person."""

    plan: Plan = Plan()
    facts: WorkingMemory = WorkingMemory(scope=Scope.USER)


async def test_a_deleted_session_is_deleted_from_memory_too(tmp_path: Path) -> None:
    @step
    async def think(text: str, ctx: Context[Minds, StateBag]) -> str:
        await ctx.memory.facts.update({"name": text})
        await ctx.memory.plan.add(text)
        return text

    @step
    async def recall(text: None, ctx: Context[Minds, StateBag]) -> tuple[int, object]:
        return len(ctx.memory.plan.items), ctx.memory.facts.snapshot

    async with Harness(plugins=[], memory=Minds(), checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
        session, other = harness.session("ada", "trip"), harness.session("ada", "other")
        for each in (session, other):
            await each.run(think, "Ada")
        await harness.sessions.delete(session.key)
        assert (await session.run(recall, None)).value == (0, {"name": "Ada"})
        assert (await other.run(recall, None)).value == (1, {"name": "Ada"})


async def test_a_failed_turn_that_is_delivered_again_goes_on_and_is_written(tmp_path: Path) -> None:
    broken = True

    @step
    async def fragile(text: str, ctx: Context[Memory, Notes]) -> str:
        if broken:
            raise ValueError("not today")
        return text

    flow = note >> fragile >> reply
    async with Harness(plugins=[], checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
        session = harness.session("ada", "trip")
        for _ in range(2):
            with pytest.raises(StepFailed, match="not today"):
                await session.run(flow, "one", state=Notes(), delivery_id="d")
            assert texts(await session.items()) == ["one"]
        broken = False
        for _ in range(2):
            assert (await session.run(flow, "one", state=Notes(), delivery_id="d")).value == "re: one"
            assert texts(await session.items()) == ["one", "re: one"]
        assert await session.state(Notes) == Notes(1, ["one"])


@pytest.mark.parametrize("policy", ["fail", "merge"])
async def test_a_failed_turn_that_is_delivered_again_after_another_one(policy: Any) -> None:
    broken = True

    @step
    async def fragile(text: str, ctx: Context[Memory, Notes]) -> str:
        if broken:
            raise ValueError("not today")
        return text

    flow = note >> fragile >> reply
    policy = SessionPolicy(on_conflict=policy)
    async with Harness(plugins=[], checkpoints=InMemoryBackend(), sessions=policy) as harness:
        session = harness.session("ada", "trip")
        with pytest.raises(StepFailed):
            await session.run(flow, "one", state=Notes(), delivery_id="d")
        broken = False
        await session.run(flow, "two", state=Notes())
        if policy.on_conflict == "fail":
            for _ in range(2):
                with pytest.raises(SessionConflict, match="delivered again") as caught:
                    await session.run(flow, "one", state=Notes(), delivery_id="d")
                assert caught.value.result is not None
                assert caught.value.result.value == "re: one"
            assert texts(await session.items()) == ["one", "two", "re: two"]
        else:
            for _ in range(2):
                assert (await session.run(flow, "one", state=Notes(), delivery_id="d")).value == "re: one"
            assert texts(await session.items()) == ["one", "two", "re: two", "re: one"]


@pytest.mark.parametrize("persist", ["run", "step"])
async def test_a_turn_that_died_and_was_closed_by_another_one_is_delivered_again(persist: Any) -> None:
    policy = SessionPolicy(persist=persist, on_conflict="merge")
    faulty = FaultyBackend(InMemoryBackend(), dies_at=4)
    with faulty.outlived():
        async with Harness(plugins=[], checkpoints=faulty, sessions=policy) as harness:
            await harness.session("ada", "trip").run(talk, "one", state=Notes(), delivery_id="d")
    faulty.revive()
    async with Harness(plugins=[], checkpoints=faulty, sessions=policy) as harness:
        session = harness.session("ada", "trip")
        await session.run(talk, "two", state=Notes())
        for _ in range(2):
            assert (await session.run(talk, "one", state=Notes(), delivery_id="d")).value == "re: one"
        said = texts(await session.items())
        assert sorted(said) == ["one", "re: one", "re: two", "two"]


async def test_who_has_looked_before_the_first_turn_forgets_none_of_those_of_others() -> None:
    @step
    async def note(text: str, ctx: Ctx) -> None:
        ctx.items.append(Message.user(text))

    backend = InMemoryBackend()
    first, second, third = (Harness(plugins=(), checkpoints=backend).session("ada", "trip") for _ in range(3))
    assert await first.items() == ()
    for text in ("one", "two"):
        await second.run(note, text)
    await first.run(note, "three")
    for session in (first, second, third):
        assert [item.text for item in await session.items() if isinstance(item, Message)] == ["one", "two", "three"]


async def test_a_turn_that_is_cancelled_at_any_moment_leaves_the_session_free() -> None:
    """Also behind the end of its run, which is stored with the end of the turn."""
    backend, cancelled = InMemoryBackend(), 0
    async with Harness(plugins=[], checkpoints=backend) as harness:
        for moment in itertools.count():
            session, over = harness.session("ada", f"trip {moment}"), False
            async with anyio.create_task_group() as group:

                async def leave(scope: anyio.CancelScope, after: int) -> None:
                    for _ in range(after):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                group.start_soon(leave, group.cancel_scope, moment)
                await session.run(talk, "a", state=Notes())
                over = True
                group.cancel_scope.cancel()
            cancelled += not over
            with anyio.fail_after(10):
                await session.run(talk, "b", state=Notes())
            assert texts(await session.items())[-2:] == ["b", "re: b"]
            held = [entry.run_id for entry in await backend.list(limit=1000) if entry.held]
            assert held == []
            if over and moment > cancelled + 20:
                break
    assert cancelled > 5
