"""Schedules: when their times are, that each begins one run whatever happens to workers, and how they are paused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py import Context, Harness, Memory, Principal, acting_as, errors, step
from noetic_py.access import RoleAccess
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.checkpoints.files import FileBackend
from noetic_py.context.step import AnyStep
from noetic_py.schedules import Schedule, Scheduler
from noetic_py.testing import VirtualRuntime
from tests.servers.races import race_for_times

pytestmark = pytest.mark.anyio

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


@step
async def report(city: str, ctx: Context) -> str:
    return f"{city} {ctx.metadata['scheduled']}"


@define
class Tally:
    total: int = 0


@step
async def count(x: int, ctx: Context[Memory, Tally]) -> int:
    ctx.state.total += x
    return ctx.state.total


# ---------------------------------------------------------------------------------------------------------- the times


@pytest.mark.parametrize(
    ("when", "zone", "after", "expected"),
    [
        ("0 9 * * MON-FRI", "UTC", "2026-11-27T10:00:00+00:00", ["2026-11-30T09:00", "2026-12-01T09:00"]),
        ("0 9 * * *", "Europe/Berlin", "2026-10-24T10:00:00+00:00", ["2026-10-25T08:00", "2026-10-26T08:00"]),
        # Clocks are set forward at two: half past two does not exist, and comes right after the gap.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        # Clocks are set back at three: half past two exists twice, and comes once.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        (timedelta(minutes=20), "UTC", "2026-11-27T10:19:59+00:00", ["2026-11-27T10:20", "2026-11-27T10:40"]),
        (timedelta(minutes=20), "UTC", "2026-11-27T10:20:00+00:00", ["2026-11-27T10:40", "2026-11-27T11:00"]),
    ],
)
def test_times(when: str | timedelta, zone: str, after: str, expected: list[str]) -> None:
    schedule = Schedule(when, report, "Brest", timezone=zone)
    found = list(islice(schedule.times(datetime.fromisoformat(after)), 2))
    assert [f"{each:%Y-%m-%dT%H:%M}" for each in found] == expected
    # The last one until a moment is that moment itself, if it is one.
    assert schedule.last(found[1]) == found[1]
    assert schedule.last(found[1] - timedelta(microseconds=1)) == found[0]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["*/5 * * * *", "0 9 * * MON-FRI", "30 2 * * *", "15 */6 1,15 * *", "0 0 29 2 *", "*/90 * * * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.timedeltas(timedelta(0), timedelta(days=1000)).map(lambda passed: BEGIN + passed),
)
def test_the_last_time_is_the_one_before_the_next(when: str, zone: str, moment: datetime) -> None:
    schedule = Schedule(when, report, "Brest", timezone=zone)
    last, following = schedule.last(moment), schedule.following(moment)
    assert last <= moment < following
    assert schedule.following(last) == following
    assert following.astimezone(ZoneInfo(zone)).second == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"when": "0 9 * *"}, "is not a valid cron expression"),
        ({"when": "0 0 30 2 *"}, "is not a valid cron expression"),
        ({"when": 60}, "expected a cron expression or a timedelta"),
        ({"when": timedelta(0)}, "expected a second or more"),
        ({"timezone": "Europe/Nowhere"}, "is not a known time zone"),
        ({"timezone": "../etc/passwd"}, "is not a known time zone"),
        ({"timezone": 2}, "is not a known time zone"),
        ({"catch_up": "some"}, "is not a valid rule"),
        ({"run_id": "x"}, "run_id= cannot be given"),
        ({"retries": 3}, "submit"),
        ({"step": "report"}, "expected a Step"),
    ],
)
def test_what_cannot_be_a_schedule(given: dict[str, Any], message: str) -> None:
    make: Any = Schedule
    with pytest.raises(errors.ConfigError, match=message):
        make(given.pop("when", "0 9 * * *"), given.pop("step", report), "Brest", **given)


def test_what_cannot_be_the_schedules_of_a_harness() -> None:
    make: Any = Harness
    ours = Schedule("0 9 * * *", report, "Brest")
    with pytest.raises(errors.ConfigError, match="expected one of the harness's flows"):
        make(plugins=[], schedules={"daily": ours})
    for wrong in ({"daily": "0 9 * * *"}, [ours]):
        with pytest.raises(errors.ConfigError, match="expected"):
            make(plugins=[], flows={"report": report}, schedules=wrong)
    with pytest.raises(errors.InvalidId):
        make(plugins=[], flows={"report": report}, schedules={"": ours})


# ------------------------------------------------------------------------------------------------------------ its runs


@asynccontextmanager
async def worlds(**schedules: Schedule) -> AsyncGenerator[tuple[Harness[Memory], VirtualRuntime, InMemoryBackend]]:
    clock = VirtualRuntime(start=BEGIN)
    async with InMemoryBackend(runtime=clock) as backend, harness_of(backend, clock, **schedules) as harness:
        yield harness, clock, backend


def harness_of(backend: CheckpointBackend, clock: VirtualRuntime, **schedules: Schedule) -> Harness[Memory]:
    flows: dict[str, AnyStep] = {"report": report, "count": count}
    return Harness(plugins=[], checkpoints=backend, runtime=clock, flows=flows, schedules=schedules, lease=1e6)


def scheduler_of(harness: Any) -> Scheduler:
    found: Scheduler = harness._scheduler()
    return found


async def runs_of(harness: Harness[Any]) -> list[str]:
    return sorted(each.run_id for each in await harness.runs.list(limit=None))


async def test_a_worker_begins_runs_at_their_times() -> None:
    ours = Schedule("* * * * *", report, "Brest", user_id="ada", metadata={"order": 7})
    async with worlds(ours=ours) as (harness, clock, _), anyio.create_task_group() as group:
        group.start_soon(harness.work)
        await until_seen(harness, "ours")
        for run_id in ("ours@2026-03-02T08:01:00Z", "ours@2026-03-02T08:02:00Z"):
            await clock.advance(60)
            await until_true(partial(there, harness, run_id))
        result = await harness.result("ours@2026-03-02T08:01:00Z", report)
        assert result.value == "Brest 2026-03-02T08:01:00+00:00"
        info = await harness.runs.get("ours@2026-03-02T08:02:00Z")
        assert (info.status, info.user_id) == ("completed", "ada")
        assert await runs_of(harness) == ["ours@2026-03-02T08:01:00Z", "ours@2026-03-02T08:02:00Z"]
        await harness.shutdown()


async def until_true(check: Callable[[], Awaitable[bool]], clock: VirtualRuntime | None = None) -> None:
    with anyio.fail_after(20):
        while not await check():
            await anyio.sleep(0.002)
            if clock is not None:
                await clock.advance(1)


async def there(harness: Harness[Any], run_id: str) -> bool:
    """Whether a run has ended."""
    with suppress(errors.RunNotFound):
        return (await harness.runs.get(run_id)).status == "completed"
    return False


async def until_seen(harness: Any, name: str, clock: VirtualRuntime | None = None) -> None:
    """Wait until a worker has looked at a schedule, so that its times count from now on."""

    async def seen() -> bool:
        return await harness._backend.get(("schedules",), name) is not None

    await until_true(seen, clock)


@pytest.mark.parametrize(
    ("catch_up", "late", "begun"),
    [
        ("last", 0, ["08:05", "08:10", "08:15"]),
        ("last", 120, ["08:05", "08:15"]),
        ("all", 120, ["08:05", "08:10", "08:15"]),
        ("none", 30, ["08:05", "08:10", "08:15"]),
        ("none", 120, ["08:05"]),
    ],
)
async def test_times_that_passed_without_a_worker(catch_up: Any, late: int, begun: list[str]) -> None:
    ours = Schedule(timedelta(minutes=5), report, "Brest", catch_up=catch_up)
    async with worlds(ours=ours) as (harness, clock, _):
        scheduler = scheduler_of(harness)
        assert await scheduler.fire() == 1.0
        await clock.advance(300)
        await scheduler.fire()
        if late < 120:
            await clock.advance(300 + late)
            await scheduler.fire()
            await clock.advance(300)
        else:
            # A worker was away for two times, and comes back late for the second.
            await clock.advance(600 + late)
        await scheduler.fire()
        await scheduler.fire()
        assert await runs_of(harness) == [f"ours@2026-03-02T{each}:00Z" for each in begun]


async def test_many_times_are_made_up_for_in_parts() -> None:
    async with worlds(ours=Schedule(MINUTE, report, "Brest", catch_up="all")) as (harness, clock, _):
        scheduler = scheduler_of(harness)
        await scheduler.fire()
        await clock.advance(250 * 60)
        assert (await harness.schedules.list())[0].next == BEGIN + MINUTE
        assert [await scheduler.fire() for _ in range(3)] == [0.0, 0.0, 1.0]
        assert len(await runs_of(harness)) == 250


class Dies(DelegatingBackend):
    """A process that dies before it writes down that it has begun a run."""

    async def put(self, scope: tuple[str, ...], key: str, value: bytes, *, expected: int | None = None) -> int:
        if expected:
            raise KeyboardInterrupt
        return await self.inner.put(scope, key, value, expected=expected)


async def test_a_worker_that_dies_in_between_begins_no_run_twice() -> None:
    ours = Schedule(HOUR, report, "Brest")
    async with worlds(ours=ours) as (harness, clock, backend):
        async with harness_of(Dies(backend), clock, ours=ours) as dying:
            await scheduler_of(dying).fire()
            await clock.advance(3600)
            with pytest.raises(KeyboardInterrupt):
                await scheduler_of(dying).fire()
        (before,) = await runs_of(harness)
        position = (await harness.runs.get(before)).position
        await scheduler_of(harness).fire()
        assert await runs_of(harness) == [before]
        assert (await harness.runs.get(before)).position == position
        assert (await harness.schedules.list())[0].last_run == before


async def test_many_workers_begin_each_run_once() -> None:
    ours = Schedule(MINUTE, report, "Brest", catch_up="all")
    async with worlds(ours=ours) as (harness, clock, backend):
        others = [harness_of(backend, clock, ours=ours) for _ in range(4)]
        for _ in range(30):
            async with anyio.create_task_group() as group:
                for each in others:
                    group.start_soon(scheduler_of(each).fire)
            await clock.advance(60)
        expected = [f"ours@{BEGIN + n * MINUTE:%Y-%m-%dT%H:%M:%SZ}" for n in range(1, 30)]
        assert await runs_of(harness) == expected
        assert {each.position for each in await harness.runs.list(limit=None)} == {1}


async def test_processes_race_for_the_times_of_a_schedule(tmp_path: Path) -> None:
    await race_for_times(str(tmp_path / "runs.db"))


async def test_workers_with_another_definition_do_not_disturb_each_other() -> None:
    old, new = Schedule("0 * * * *", report, "old"), Schedule("30 * * * *", report, "new")
    async with worlds(ours=old) as (harness, clock, backend), harness_of(backend, clock, ours=new) as newer:
        for _ in range(9):
            for each in (harness, newer):
                await scheduler_of(each).fire()
            await clock.advance(15 * 60)
        # The first look is when its times begin to count.
        assert await runs_of(harness) == [
            f"ours@2026-03-02T{each}:00Z" for each in ("08:30", "09:00", "09:30", "10:00")
        ]


async def test_a_schedule_is_paused_everywhere() -> None:
    ours = Schedule(HOUR, report, "Brest", catch_up="all")
    async with worlds(ours=ours) as (harness, clock, backend), harness_of(backend, clock, ours=ours) as other:
        await scheduler_of(harness).fire()
        await other.schedules.pause("ours")
        (info,) = await harness.schedules.list()
        assert (info.paused, info.next, info.last_run) == (True, None, None)
        await clock.advance(3 * 3600)
        await scheduler_of(harness).fire()
        assert await runs_of(harness) == []
        # Begun by hand it is all the same.
        run_id = await harness.schedules.trigger("ours")
        assert await runs_of(harness) == [run_id]
        await other.schedules.resume("ours")
        assert (await harness.schedules.list())[0].next == BEGIN + 4 * HOUR
        await scheduler_of(harness).fire()
        await clock.advance(3600)
        await scheduler_of(harness).fire()
        assert sorted(await runs_of(harness)) == sorted([run_id, "ours@2026-03-02T12:00:00Z"])
        with pytest.raises(errors.ConfigError, match="is not a schedule of this harness"):
            await harness.schedules.pause("other")


async def test_each_run_has_a_state_of_its_own() -> None:
    async with worlds(ours=Schedule(HOUR, count, 3, state=Tally(4))) as (harness, clock, _):
        scheduler = scheduler_of(harness)
        await scheduler.fire()
        for _ in range(2):
            await clock.advance(3600)
            await scheduler.fire()
        for run_id in await runs_of(harness):
            assert (await harness.resume(run_id, count, state_type=Tally)).value == 7


async def test_a_run_that_cannot_be_stored_is_logged_and_the_next_one_begins(caplog: pytest.LogCaptureFixture) -> None:
    bad: Any = object()
    ours, good = Schedule(HOUR, report, bad), Schedule(HOUR, report, "Brest")
    async with worlds(bad=ours, good=good) as (harness, clock, _):
        scheduler = scheduler_of(harness)
        await scheduler.fire()
        await clock.advance(3600)
        await scheduler.fire()
        assert await runs_of(harness) == ["good@2026-03-02T09:00:00Z"]
        assert caplog.text.count("schedule bad could not begin its run") == 1
        await scheduler.fire()
        assert caplog.text.count("schedule bad could not begin its run") == 1


async def test_a_stored_schedule_that_is_damaged_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with worlds(bad=Schedule(HOUR, report, "x"), good=Schedule(HOUR, report, "y")) as (harness, clock, backend):
        scheduler = scheduler_of(harness)
        await scheduler.fire()
        await backend.put(("schedules",), "bad", b'{"paused": false}')
        await clock.advance(3600)
        await scheduler.fire()
        assert await runs_of(harness) == ["good@2026-03-02T09:00:00Z"]
        assert "schedule bad begins no runs" in caplog.text


async def test_a_store_that_cannot_be_reached_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualRuntime(start=BEGIN)

    class Away(DelegatingBackend):
        away = 3

        async def clock(self) -> float:
            if self.away:
                self.away -= 1
                raise errors.StoreUnavailable("no route", where="db", reason="network")
            return await self.inner.clock()

    ours = Schedule(HOUR, report, "Brest")
    async with InMemoryBackend(runtime=clock) as backend, anyio.create_task_group() as group:
        harness = harness_of(Away(backend), clock, ours=ours)
        group.start_soon(scheduler_of(harness).run)
        await until_seen(harness, "ours", clock)
        group.cancel_scope.cancel()
    assert caplog.text.count("schedules are looked at again") == 3


async def test_a_folder_of_files_has_no_queues(tmp_path: Any) -> None:
    async with FileBackend(tmp_path / "runs") as backend:
        harness = Harness(
            plugins=[], checkpoints=backend, flows={"r": report}, schedules={"ours": Schedule(HOUR, report, "x")}
        )
        async with harness:
            with pytest.raises(errors.ConfigError) as caught:
                await harness.work()
            assert caught.value.code == "queues"


async def test_the_policy_is_asked_for_changes_and_not_for_runs() -> None:
    clock = VirtualRuntime(start=BEGIN)
    policy = RoleAccess({"user": {"run", "read"}, "guest": {"read"}})
    ours = Schedule(HOUR, report, "Brest", user_id="ada")
    async with (
        InMemoryBackend(runtime=clock) as backend,
        Harness(
            plugins=[], checkpoints=backend, runtime=clock, flows={"r": report}, schedules={"ours": ours}, access=policy
        ) as harness,
    ):
        # A worker has no principal.
        await scheduler_of(harness).fire()
        await clock.advance(3600)
        await scheduler_of(harness).fire()
        with acting_as(Principal("ada", {"user"})):
            assert await runs_of(harness) == ["ours@2026-03-02T09:00:00Z"]
            await harness.schedules.pause("ours")
        with acting_as(Principal("ada", {"guest"})):
            for change in (harness.schedules.pause, harness.schedules.resume, harness.schedules.trigger):
                with pytest.raises(errors.AccessDenied):
                    await change("ours")
