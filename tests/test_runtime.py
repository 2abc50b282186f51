"""The clock, the ids and the randomness, real and virtual."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.testing.virtual import VirtualRuntime

asynchronous = pytest.mark.anyio


def test_ids_are_uuid7_in_order() -> None:
    ids = [SYSTEM.new_id() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    for text in ids[::1000]:
        made = uuid.UUID(text)
        assert str(made) == text
        assert made.version == 7
        assert made.variant == uuid.RFC_4122


def test_an_id_tells_the_time_it_was_made() -> None:
    before = datetime.now(UTC)
    millis = int(SYSTEM.new_id().replace("-", "")[:12], 16)
    after = datetime.now(UTC)
    made = datetime.fromtimestamp(millis / 1000, UTC)
    assert before - timedelta(milliseconds=1) <= made <= after


def test_ids_stay_in_order_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, now = Runtime(), 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    ids = [runtime.new_id() for _ in range(10)]
    now -= 3600
    ids += [runtime.new_id() for _ in range(10)]
    now += 3600.001
    ids += [runtime.new_id() for _ in range(10)]
    assert ids == sorted(set(ids))


def test_ids_stay_in_order_when_a_millisecond_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, now = Runtime(), 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    first = runtime.new_id()
    millis, head, _ = runtime._stamp
    runtime._stamp = (millis, head, iter([(1 << 48) - 1] * 3).__next__)
    now -= 1
    ids = [first, runtime.new_id(), runtime.new_id()]
    assert ids == sorted(set(ids))
    assert all(len(text) == 36 for text in ids)


def test_threads_never_get_the_same_id() -> None:
    made: list[list[str]] = []

    def make() -> None:
        made.append([SYSTEM.new_id() for _ in range(5000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({text for ids in made for text in ids}) == 20_000
    assert all(ids == sorted(ids) for ids in made)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_makes_ids_of_its_own() -> None:
    SYSTEM.new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "".join(SYSTEM.new_id() for _ in range(100)).encode())
        os._exit(0)
    os.close(writing)
    mine = {SYSTEM.new_id() for _ in range(100)}
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    theirs = {text[start : start + 36] for start in range(0, len(text), 36)}
    assert len(theirs) == 100
    assert not mine & theirs


def test_clock_and_randomness() -> None:
    assert SYSTEM.now().tzinfo is UTC
    assert abs(SYSTEM.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert SYSTEM.monotonic() <= SYSTEM.monotonic()
    assert all(0 <= SYSTEM.random() < 1 for _ in range(100))


@asynchronous
async def test_sleep_waits() -> None:
    start = SYSTEM.monotonic()
    await SYSTEM.sleep(0.01)
    assert SYSTEM.monotonic() - start >= 0.009
    await SYSTEM.sleep(-1)


# ------------------------------------------------------------------------------------------------ virtual


def test_one_seed_gives_one_history() -> None:
    first, second, other = VirtualRuntime(7), VirtualRuntime(7), VirtualRuntime(8)
    ids = [first.new_id() for _ in range(50)]
    assert ids == [second.new_id() for _ in range(50)]
    assert ids == sorted(set(ids))
    assert uuid.UUID(ids[0]).version == 7
    assert ids[0] != other.new_id()
    assert [first.random() for _ in range(5)] == [second.random() for _ in range(5)]


def test_virtual_ids_of_one_moment_stay_in_order() -> None:
    runtime = VirtualRuntime()
    ids = [runtime.new_id() for _ in range(5000)]
    assert ids == sorted(set(ids))


@asynchronous
async def test_virtual_time_moves_when_told() -> None:
    runtime = VirtualRuntime(start=datetime(2030, 1, 1, tzinfo=UTC))
    before = runtime.new_id()
    assert runtime.monotonic() == 0
    await runtime.advance(90)
    assert runtime.monotonic() == 90
    assert runtime.now() == datetime(2030, 1, 1, 0, 1, 30, tzinfo=UTC)
    assert runtime.new_id() > before
    with pytest.raises(ValueError, match="go back"):
        await runtime.advance(-1)


@asynchronous
async def test_sleepers_wake_at_their_deadlines_in_order() -> None:
    runtime = VirtualRuntime()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await runtime.sleep(nap)
            woken.append((name, runtime.monotonic()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper, "a", 5.0, 1.0)
        tasks.start_soon(sleeper, "b", 2.0, 2.0, 100.0)
        tasks.start_soon(sleeper, "c", 0.0, 10.0)
        await runtime.advance(7)
        assert woken == [("c", 0.0), ("b", 2.0), ("b", 4.0), ("a", 5.0), ("a", 6.0)]
        assert runtime.sleeping() == 2
        await runtime.advance(3)
        assert woken[-1] == ("c", 10.0)
        tasks.cancel_scope.cancel()
    assert runtime.sleeping() == 0


@asynchronous
async def test_a_cancelled_sleeper_is_forgotten() -> None:
    runtime = VirtualRuntime()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.sleep, 1)
        tasks.start_soon(runtime.sleep, 2)
        with anyio.move_on_after(0):
            await runtime.sleep(1.5)
        await runtime.advance(0)
        assert runtime.sleeping() == 2
        await runtime.advance(5)
