"""Schedules: runs that workers begin at times that are known before, such as each weekday at nine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from attrs import frozen
from typing_extensions import Unpack

from noetic_py import errors
from noetic_py.access import Authorizer, Resource
from noetic_py.checkpoints.contract import CheckpointBackend, Scope
from noetic_py.context.step import AnyStep, Step, awaited, require_step
from noetic_py.core.codec.structure import dump, parse
from noetic_py.core.control import check_callers_id
from noetic_py.core.diagnostics import log
from noetic_py.core.runtime import Runtime
from noetic_py.core.state import StateBag
from noetic_py.core.types import M, R, S, T
from noetic_py.core.values import is_mapping
from noetic_py.journal.stored import Queued, StoredValue
from noetic_py.runner.workers import SubmitOptions, check_submit, place_in

if TYPE_CHECKING:
    from cronsim import CronSim

    from noetic_py.engine.run import RunPlan
    from noetic_py.engine.state import Run

    PlanRun: TypeAlias = Callable[[AnyStep, object, object, None, Mapping[str, object]], tuple[Run, RunPlan]]
    """Makes a run of a step, its input, its state and its options, and a plan of how it begins."""
    StoreQueued: TypeAlias = Callable[[Run, RunPlan, Queued], Awaitable[str]]
    """Stores the beginning of a run that a worker carries out."""

__all__ = ["CatchUp", "Schedule", "ScheduleInfo", "Schedules"]

CatchUp = Literal["last", "all", "none"]
"""What becomes of times that passed while no worker was there: the last one is made up for, all are, or none is."""

_SCOPE: Scope = ("schedules",)
_MAX_BYTES = 64 * 1024
_LOOK = 1.0
"""Seconds between two looks at what other processes have changed, at most."""
_GRACE = timedelta(seconds=60)
"""How late a time may be that is not one to be made up for."""
_AT_ONCE = 100
"""How many times are made up for with one look."""
_LONGEST_PAUSE = 10.0
_DEFINITIONS = 8
"""How many definitions of one schedule are kept, of workers with other code."""


class Schedule:
    """When runs of a flow begin, and with what input; give it to `Harness(schedules={"report": Schedule(...)})`.

    A worker of any process begins each run, and exactly one does: its id is `"NAME@TIME"`, the time in UTC, such as
    `"report@2026-11-27T08:00:00Z"`. `ctx.metadata["scheduled"]` is that time.

    Args:
        when: A cron expression, such as `"0 9 * * MON-FRI"`; or the time from one run to the next, counted from 1970.
        step: The flow, one of the harness's `flows`.
        input: The input of each run.
        state: The state of each run; needed when the step asks for a type of its own.
        timezone: What a cron expression means, as an IANA name. In the night when clocks are set forward, a time that
            does not exist comes right after the gap; when they are set back, a time that exists twice comes once,
            unless the expression is for every hour or minute.
        catch_up: What becomes of times that passed while no worker was there.
        queue: The queue of the runs.
        priority: Their priority there.
        **options: See [`SubmitOptions`][noetic_py.runner.workers.SubmitOptions]; `run_id` cannot be given.

    Raises:
        ConfigError: An argument is wrong; code `"schedule"`.
    """

    @overload
    def __init__(
        self,
        when: str | timedelta,
        step: Step[T, R, M, StateBag],
        input: T,
        *,
        timezone: str = ...,
        catch_up: CatchUp = ...,
        queue: str = ...,
        priority: int = ...,
        **options: Unpack[SubmitOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        when: str | timedelta,
        step: Step[T, R, M, S],
        input: T,
        *,
        state: S,
        timezone: str = ...,
        catch_up: CatchUp = ...,
        queue: str = ...,
        priority: int = ...,
        **options: Unpack[SubmitOptions],
    ) -> None: ...
    def __init__(
        self,
        when: object,
        step: object,
        input: object,
        *,
        state: object = None,
        timezone: object = "UTC",
        catch_up: object = "last",
        queue: str = "default",
        priority: int = 0,
        **options: Any,
    ) -> None:
        self.step: AnyStep = require_step(step, "Schedule")
        self.input: object = input
        self.state: object = state
        self.options: Mapping[str, Any] = options
        self.queue: str = queue
        self.priority: int = priority
        self.zone: ZoneInfo = _zone(timezone)
        if catch_up not in ("last", "all", "none"):
            raise _wrong(
                f'catch_up={catch_up!r} is not a valid rule; expected "last", "all" or "none"', 'catch_up="last"'
            )
        self.catch_up: CatchUp = catch_up
        if isinstance(when, timedelta):
            if when < timedelta(seconds=1):
                raise _wrong(
                    f"{when!r} is not a valid time between runs; expected a second or more", "timedelta(hours=1)"
                )
        elif not isinstance(when, str):
            raise _wrong(
                f"{when!r} is not a valid time; expected a cron expression or a timedelta", '"0 9 * * MON-FRI"'
            )
        self.when: str | timedelta = when
        # Now, so that an expression without a time is refused here.
        self.following(datetime.now(UTC))
        check_submit(options)
        if "run_id" in options:
            raise _wrong("run_id= cannot be given: each run of a schedule has one of its own", "leave out run_id=")

    @property
    def definition(self) -> str:
        """When runs begin, as a text: two with the same text have the same times."""
        return (
            f"{self.when!s} {self.zone.key}" if isinstance(self.when, str) else f"every {self.when.total_seconds()} s"
        )

    def following(self, moment: datetime) -> datetime:
        """The first time after a moment."""
        return next(self.times(moment))

    def times(self, after: datetime) -> Iterator[datetime]:
        """The times after a moment, in order."""
        if isinstance(self.when, str):
            yield from (each.astimezone(UTC) for each in self._cron(after))
            return
        at = _grid(after, self.when)
        while True:
            at += self.when
            yield at

    def last(self, moment: datetime) -> datetime:
        """The last time until a moment, which it may be itself."""
        if isinstance(self.when, str):
            return next(self._cron(moment + timedelta(microseconds=1), reverse=True)).astimezone(UTC)
        return _grid(moment, self.when)

    def _cron(self, moment: datetime, *, reverse: bool = False) -> CronSim:
        from cronsim import CronSim, CronSimError

        try:
            return CronSim(str(self.when), moment.astimezone(self.zone), reverse=reverse)
        except CronSimError as error:
            raise _wrong(f"{self.when!r} is not a valid cron expression: {error}", '"0 9 * * MON-FRI"') from error


def _grid(moment: datetime, interval: timedelta) -> datetime:
    """The last multiple of an interval since 1970."""
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    return begin + (moment - begin) // interval * interval


def _wrong(message: str, hint: str) -> errors.ConfigError:
    return errors.ConfigError(message, code="schedule", hint=hint)


def _zone(name: object) -> ZoneInfo:
    try:
        if isinstance(name, str):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise _wrong(
        f"timezone={name!r} is not a known time zone; expected an IANA name",
        'timezone="Europe/Berlin"; where the machine has no time zones: pip install tzdata',
    )


def check_schedules(schedules: object, flows: Mapping[str, AnyStep]) -> Mapping[str, Schedule]:
    """The schedules of a harness by name.

    Raises:
        ConfigError: One is not a schedule, code `"schedule"`; or of a step without a name, code `"flows"`.
        InvalidId: A name cannot be one.
    """
    if not is_mapping(schedules):
        raise _wrong(
            f"schedules={schedules!r} is not a valid mapping; expected schedules by name",
            'schedules={"report": Schedule(...)}',
        )
    found: dict[str, Schedule] = {}
    for name, schedule in schedules.items():
        check_callers_id(name, "name of a schedule")
        if not isinstance(schedule, Schedule):
            raise _wrong(
                f"schedules[{name!r}] is {schedule!r}; expected a Schedule", 'Schedule("0 9 * * *", flow, input)'
            )
        place_in(schedule.queue, schedule.step, flows, 0.0, schedule.priority, None)
        found[name] = schedule
    return found


@frozen
class ScheduleInfo:
    """How a schedule stands.

    Attributes:
        name: Its name.
        when: Its cron expression, or the time from one run to the next.
        timezone: The time zone of the expression.
        queue: The queue of its runs.
        paused: Whether it begins no runs.
        next: When the next run begins, UTC; `None` while it is paused.
        last_run: The id of the run that it has begun last, `None` without one.
    """

    name: str
    when: str | timedelta
    timezone: str
    queue: str
    paused: bool
    next: datetime | None
    last_run: str | None


@awaited("harness.schedules")
class Schedules:
    """The schedules of a harness; get it as `harness.schedules`. Its changes hold for the workers of all processes."""

    def __init__(self, scheduler: Scheduler, access: Authorizer) -> None:
        self._scheduler = scheduler
        self._schedules = scheduler.schedules
        self._backend = scheduler.backend
        self._access = access

    async def list(self) -> Sequence[ScheduleInfo]:
        """How each stands, by name."""
        await self._access.require("read", on=Resource())
        now = await _clock(self._backend)
        found: list[ScheduleInfo] = []
        for name, schedule in sorted(self._schedules.items()):
            state = await _State.read(self._backend, name)
            after = state.after.get(schedule.definition, now)
            begin = min(after, now) if schedule.catch_up == "all" else now
            upcoming = None if state.paused else schedule.following(begin)
            found.append(
                ScheduleInfo(
                    name, schedule.when, schedule.zone.key, schedule.queue, state.paused, upcoming, state.last_run
                )
            )
        return found

    async def pause(self, name: str) -> None:
        """Begin no runs any more, in no process, until `resume`.

        Raises:
            ConfigError: There is no such schedule; code `"schedule"`.
        """
        await self._change(name, paused=True)

    async def resume(self, name: str) -> None:
        """Begin runs again from now on; times that passed meanwhile are not made up for.

        Raises:
            ConfigError: There is no such schedule; code `"schedule"`.
        """
        await self._change(name, paused=False)

    async def trigger(self, name: str) -> str:
        """Begin a run now, besides those at its times; also of a schedule that is paused.

        Returns:
            The run's id.

        Raises:
            ConfigError: There is no such schedule; code `"schedule"`.
        """
        schedule = self._known(name)
        await self._access.require("run", on=Resource(owner=schedule.options.get("user_id")))
        now = await _clock(self._backend)
        run_id = f"{name}@{now:%Y-%m-%dT%H:%M:%S.%fZ}"
        await self._scheduler.begin(schedule, run_id, now)
        return run_id

    async def _change(self, name: str, *, paused: bool) -> None:
        schedule = self._known(name)
        await self._access.require("run", on=Resource(owner=schedule.options.get("user_id")))
        now = await _clock(self._backend)
        while True:
            state = await _State.read(self._backend, name)
            after = state.after if paused else dict.fromkeys([*state.after, schedule.definition], now)
            if await state.write(self._backend, after, paused=paused, last_run=state.last_run):
                return

    def _known(self, name: str) -> Schedule:
        if name not in self._schedules:
            known = ", ".join(sorted(self._schedules)) or "none"
            raise _wrong(f"{name!r} is not a schedule of this harness", f"its schedules: {known}")
        return self._schedules[name]


async def _clock(backend: CheckpointBackend) -> datetime:
    return datetime.fromtimestamp(await backend.clock(), UTC)


@frozen
class _State:
    """What is stored of a schedule.

    Attributes:
        name: Its name.
        version: The version of the stored value, 0 for none.
        paused: Whether it begins no runs.
        after: For each definition the time up to which runs have begun: workers with other code, which has another
            one, do not disturb each other.
        last_run: The run that was begun last.
    """

    name: str
    version: int
    paused: bool
    after: Mapping[str, datetime]
    last_run: str | None

    @classmethod
    async def read(cls, backend: CheckpointBackend, name: str) -> _State:
        """Read it.

        Raises:
            CodecError: It cannot be read.
        """
        return cls.of(name, await backend.get(_SCOPE, name))

    @classmethod
    def of(cls, name: str, found: StoredValue | None) -> _State:
        """What a stored value says.

        Raises:
            CodecError: It cannot be read.
        """
        if found is None:
            return cls(name, 0, False, {}, None)
        fields: Any = parse(found.value, _MAX_BYTES, "a schedule")
        try:
            after = {str(key): datetime.fromisoformat(value) for key, value in fields["after"].items()}
            last = fields["last_run"]
            return cls(name, found.version, bool(fields["paused"]), after, None if last is None else str(last))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            where = f"schedule {name!r}"
            raise errors.CodecError("what is stored of it is not valid; remove it", where=where) from error

    async def write(
        self, backend: CheckpointBackend, after: Mapping[str, datetime], *, paused: bool, last_run: str | None
    ) -> bool:
        """Replace it; returns whether no other process has changed it since it was read."""
        newest = sorted(after.items(), key=lambda each: each[1])[-_DEFINITIONS:]
        fields = {"paused": paused, "after": {key: at.isoformat() for key, at in newest}, "last_run": last_run}
        try:
            await backend.put(_SCOPE, self.name, dump(fields), expected=self.version)
        except errors.VersionConflict:
            return False
        return True


class Scheduler:
    """Begins the runs of schedules at their times, in a worker.

    Several workers do so at once. Each submits the run of a time by the same id, which the store takes once, and then
    writes down how far it has come. A worker that dies in between leaves the run, and another one finds it.
    """

    def __init__(
        self,
        schedules: Mapping[str, Schedule],
        backend: CheckpointBackend,
        flows: Mapping[str, AnyStep],
        runtime: Runtime,
        plan: PlanRun,
        store: StoreQueued,
    ) -> None:
        self.schedules = schedules
        self.backend = backend
        self._flows = flows
        self._runtime = runtime
        self._plan = plan
        self._store = store

    async def run(self) -> None:
        """Begin runs until cancelled, or until the harness takes no more."""
        pause = _LOOK
        while True:
            try:
                pause = await self.fire()
            except errors.ShuttingDown:
                pause = _LONGEST_PAUSE
            except errors.StoreUnavailable as error:
                pause = min(2 * max(pause, _LOOK), _LONGEST_PAUSE)
                log("runs", WARNING, "schedules are looked at again in %s s: %s", pause, error.message)
            await self._runtime.sleep(pause)

    async def begin(self, schedule: Schedule, run_id: str, at: datetime) -> None:
        """Submit a run of a schedule for a time; the access policy is not asked: a schedule is part of the program.

        Raises:
            RunBusy: There is a run with this id.
            CodecError: Its input or its state cannot be stored.
        """
        metadata = {**schedule.options.get("metadata", {}), "scheduled": at.isoformat()}
        options = {**schedule.options, "run_id": run_id, "metadata": metadata}
        user = schedule.options.get("user_id")
        queued = place_in(schedule.queue, schedule.step, self._flows, at.timestamp(), schedule.priority, user)
        run, plan = self._plan(schedule.step, schedule.input, schedule.state, None, options)
        await self._store(run, plan, queued)

    async def fire(self) -> float:
        """Begin the runs whose time has come.

        Returns:
            Seconds until the next look.
        """
        now = await _clock(self.backend)
        left = _LOOK
        stored = await self._stored()
        for name, schedule in self.schedules.items():
            try:
                following = await self._fire(_State.of(name, stored.get(name)), schedule, now)
            except errors.CodecError as error:
                log("runs", ERROR, "schedule %s begins no runs", name, error=error)
                continue
            left = min(left, max((following - now).total_seconds(), 0.0))
        return left

    async def _stored(self) -> Mapping[str, StoredValue]:
        """What is stored of all schedules: a worker asks for it each second, and not for each of them."""
        found: dict[str, StoredValue] = {}
        after = None
        while not self.schedules.keys() <= found.keys():
            page = await self.backend.scan(_SCOPE, after=after)
            if not page:
                break
            found |= {each.key: each for each in page}
            after = page[-1].key
        return found

    async def _fire(self, state: _State, schedule: Schedule, now: datetime) -> datetime:
        """Begin the runs of one; returns when the next one is due."""
        if state.paused:
            return now + timedelta(seconds=_LOOK)
        after = state.after.get(schedule.definition)
        if after is None:
            await state.write(
                self.backend, {**state.after, schedule.definition: now}, paused=False, last_run=state.last_run
            )
            return schedule.following(now)
        due = _due(schedule, after, now)
        if due is None:
            return schedule.following(max(after, now))
        begun = state.last_run
        for at in due:
            run_id = f"{state.name}@{at:%Y-%m-%dT%H:%M:%SZ}"
            if await self._begun(state.name, schedule, run_id, at):
                begun = run_id
        # A time that is not made up for counts as done, and so does one whose run cannot be stored.
        come = due[-1] if len(due) == _AT_ONCE else now
        await state.write(self.backend, {**state.after, schedule.definition: come}, paused=False, last_run=begun)
        return now if come < now else schedule.following(now)

    async def _begun(self, name: str, schedule: Schedule, run_id: str, at: datetime) -> bool:
        try:
            await self.begin(schedule, run_id, at)
        except errors.RunBusy:
            # Another worker was faster.
            return True
        except (errors.CheckpointError, errors.ShuttingDown):
            raise
        except errors.NoeticError as error:
            log("runs", ERROR, "schedule %s could not begin its run of %s", name, at, error=error)
            return False
        log("runs", INFO, "schedule %s has begun %s", name, run_id)
        return True


def _due(schedule: Schedule, after: datetime, now: datetime) -> Sequence[datetime] | None:
    """The times whose runs are to begin; `None` while none has come."""
    last = schedule.last(now)
    if last <= after:
        return None
    if schedule.catch_up == "all":
        return [at for at in islice(schedule.times(after), _AT_ONCE) if at <= last]
    return [last] if schedule.catch_up == "last" or now - last <= _GRACE else []
