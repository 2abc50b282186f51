"""Runs that workers carry out: how one is put into a queue, and what a worker does with those that it claims."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from logging import ERROR, WARNING
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from attrs import evolve
from typing_extensions import TypedDict

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.context.step import AnyStep, Retry
from noetic_py.core.budget import Budget
from noetic_py.core.control import check_callers_id
from noetic_py.core.diagnostics import Where, log, unknown_keyword
from noetic_py.core.runtime import SYSTEM, Runtime, sleep_or_event
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.core.values import is_mapping
from noetic_py.engine.fingerprint import fingerprint, referenced
from noetic_py.engine.journaling.writer import ClaimedRun, ended_signals, parent_in
from noetic_py.engine.shared_budgets import held_by
from noetic_py.journal.fields import summary_fields
from noetic_py.journal.records import RunEnded, dump_record
from noetic_py.journal.run_summary import PlainCodec
from noetic_py.journal.stored import Claim, Queued, QueueLimits, Transaction
from noetic_py.runner.lease import out_of_queue

if TYPE_CHECKING:
    from noetic_py.core.items import Item, JsonValue

__all__ = ["QueueWorker", "SubmitOptions", "label_of", "place_in", "when_of"]

_POLL = 0.5
"""Seconds between two looks for runs that may be claimed, where none was there."""
_LONGEST_PAUSE = 10.0
"""Seconds between two looks while the store cannot be reached, at most."""


class SubmitOptions(TypedDict, total=False):
    """Options of a run that a worker carries out; all of them are stored with it.

    Attributes:
        history: Items the conversation begins with: a whole one, every call with its output.
        run_id: The run's id; made when left out.
        request_id: A correlation id of the caller's.
        traceparent: The place in a distributed trace that the run belongs below, as the header of a request; the active
            span of OpenTelemetry when left out.
        thread_id: The conversation's id; made when left out.
        user_id: The user or tenant the run belongs to.
        budget: Limits of the run, or a budget that it shares with others, besides the worker's harness's.
        metadata: JSON that travels with the run.
        source: Where the flow is found again, such as `"agents.py:triage"`; its name in `flows` when left out.
    """

    history: Iterable[Item]
    run_id: str
    request_id: str
    traceparent: str
    thread_id: str
    user_id: str
    budget: Budget | SharedBudget
    metadata: Mapping[str, JsonValue]
    source: str


def label_of(name: str, step: AnyStep) -> str:
    """What queues call a flow: its name and its code, so that a worker with other code leaves the run alone.

    Raises:
        ConfigError: A function has no source and its step has no `version=`; code `"no-source"`.
    """
    # A body may call steps that the flow does not declare.
    parts = sorted(fingerprint(each) for each in referenced(step))
    return f"{name}@{blake2b(''.join(parts).encode(), digest_size=8).hexdigest()}"


def place_in(
    queue: str, step: AnyStep, flows: Mapping[str, AnyStep], at: float, priority: object, key: str | None
) -> Queued:
    """Where a new run of a step waits.

    Raises:
        ConfigError: The harness has no name for the step, code `"flows"`; or the priority is wrong, code `"submit"`.
    """
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise errors.ConfigError(
            f"priority={priority!r} is not a valid priority; expected a whole number", code="submit", hint="priority=10"
        )
    name = next((name for name, flow in flows.items() if flow is step), None)
    if name is None:
        raise errors.ConfigError(
            f"step {step.id!r} is not a valid step to submit; expected one of the harness's flows",
            code="flows",
            hint=f'Harness(flows={{"{step.id}": step}}), in the worker too',
        )
    return Queued(queue, label_of(name, step), at, priority, key or "")


async def claim_one(
    backend: CheckpointBackend, run_id: str, step: AnyStep, flows: Mapping[str, AnyStep], ttl: float
) -> ClaimedRun | None:
    """Become the owner of one submitted run, as a worker that claims it; `None` for one that is in no queue.

    Raises:
        RunBusy: Another owner has it.
        ConfigError: The step is not one of the flows; code `"flows"`.
    """
    entry = await backend.entry(run_id)
    fields = {} if entry is None else summary_fields(entry.summary)
    queue, user = fields.get("queue"), fields.get("user_id")
    if queue is None:
        return None
    from noetic_py.runner.children import named_steps

    # When the run suspends, its place says when it goes on.
    queued = place_in(str(queue), step, dict(named_steps(flows)), 0.0, 0, None if user is None else str(user))
    now = await backend.clock()
    asked = SYSTEM.monotonic()
    lease = await backend.acquire(run_id, ttl=ttl)
    return ClaimedRun(Claim(lease, queued, 1, now), asked)


async def when_of(at: object, backend: CheckpointBackend) -> float:
    """A time as queues store it: seconds since 1970 by the store's clock.

    Raises:
        ConfigError: It is not a time, or has no time zone; code `"submit"`.
    """
    if at is None:
        return await backend.clock()
    if isinstance(at, timedelta):
        return await backend.clock() + max(at.total_seconds(), 0.0)
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise errors.ConfigError(
            f"at={at!r} is not a valid time; expected one with a time zone",
            code="submit",
            hint="datetime.now(UTC) + timedelta(hours=1), or at=timedelta(hours=1)",
        )
    return at.astimezone(UTC).timestamp()


def labelled(flows: Mapping[str, AnyStep]) -> Mapping[str, AnyStep]:
    """The flows of a harness, and the steps that they spawn into queues, by what queues call them.

    Raises:
        ConfigError: There are none; code `"flows"`.
    """
    if not flows:
        raise errors.ConfigError(
            "a harness without flows cannot work; expected the flows of the runs that it is to carry out",
            code="flows",
            hint='Harness(flows={"triage": triage}), as where they are submitted',
        )
    from noetic_py.runner.children import named_steps

    return {label_of(name, step): step for name, step in named_steps(flows)}


def check_submit(options: Mapping[str, object]) -> None:
    """Refuse an option that cannot be stored with a run.

    Raises:
        ConfigError: Code `"run-option"`.
    """
    for name in options:
        if name not in SubmitOptions.__annotations__:
            known = ("state", "queue", "at", "priority", "key", *SubmitOptions.__annotations__)
            raise unknown_keyword("submit()", name, known, code="run-option")
    budget = options.get("budget")
    if isinstance(budget, Budget) and budget.wrap_up is not None:
        raise errors.ConfigError(
            "budget= with wrap_up= cannot be submitted: the step would not be stored with the run",
            code="run-option",
            hint="give it to the flow: flow.with_options(budget=Budget(..., wrap_up=...))",
        )


def check_queues(queues: object) -> Mapping[str, QueueLimits]:
    """The limits of a harness's queues, by name.

    Raises:
        ConfigError: They are not limits; code `"queue-limits"`.
        InvalidId: A name cannot be one.
    """
    if not is_mapping(queues) or not all(isinstance(each, QueueLimits) for each in queues.values()):
        raise errors.ConfigError(
            f"queues={queues!r} is not a valid mapping; expected limits by queue",
            code="queue-limits",
            hint='queues={"default": QueueLimits(concurrency=20, per_key=2)}',
        )
    for name in queues:
        check_callers_id(name, "name of a queue")
    return dict(queues)


def check_work(queues: object, concurrency: object, lives: object, retry: object) -> None:
    """Refuse invalid options of a worker.

    Raises:
        ConfigError: One is wrong; code `"work"`.
    """
    if isinstance(queues, str) or not queues:
        raise errors.ConfigError(
            f"queues={queues!r} is not a valid list of queues; expected several texts",
            code="work",
            hint='queues=["default"]',
        )
    for name, value in (("concurrency", concurrency), ("lives", lives)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise errors.ConfigError(
                f"{name}={value!r} is not a valid {name}; expected a number from 1", code="work", hint=f"{name}=10"
            )
    if retry is not None and not isinstance(retry, Retry):
        raise errors.ConfigError(
            f"retry={retry!r} is not a valid policy; expected a Retry", code="work", hint="retry=Retry(3, initial=60.0)"
        )


class QueueWorker:
    """Claims runs, and carries out so many at once.

    Args:
        backend: Where the runs are.
        queues: The queues, in any order.
        limits: How many of their runs may be at work at once.
        flows: The flows that can be carried out, by what queues call them.
        go_on: Carries out a run that was claimed.
        runtime: The clock of pauses.
        concurrency: How many runs at once.
        lives: How many owners in a row may die with a run; the next one ends it as failed.
        ttl: Seconds after which a run may be taken over when this worker is silent.
        retry: How often a run that fails is tried.
    """

    def __init__(
        self,
        backend: CheckpointBackend,
        queues: Sequence[str],
        limits: Mapping[str, QueueLimits],
        flows: Mapping[str, AnyStep],
        go_on: Callable[[ClaimedRun, AnyStep], Awaitable[object]],
        runtime: Runtime,
        *,
        concurrency: int,
        lives: int,
        ttl: float,
        retry: Retry | None,
    ) -> None:
        self._backend = backend
        self._queues = tuple(queues)
        self._limits = limits
        self._flows = flows
        self._carries = go_on
        self._runtime = runtime
        self._concurrency = concurrency
        self._lives = lives
        self._ttl = ttl
        self._retry = retry
        self._busy = 0
        self._stopped = anyio.Event()
        self._changed = anyio.Event()

    def stop(self) -> None:
        """Claim nothing more; `run` returns when the runs that go on have ended."""
        self._stopped.set()
        self.look()

    def look(self) -> None:
        """Look for runs at once, and not with the next poll."""
        self._changed.set()

    async def run(self) -> None:
        """Work until `stop` is called.

        Raises:
            ConfigError: The backend has no queues; code `"queues"`.
            StoreUnavailable: The backend was closed.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            try:
                await self._claim(group)
            except Exception as error:  # noqa: BLE001 # raised below, outside the group, which would wrap it
                failure = error
        if failure is not None:
            raise failure

    async def _claim(self, group: anyio.abc.TaskGroup) -> None:
        """Start the runs that may be claimed, until `stop` is called."""
        pause = _POLL
        while not self._stopped.is_set():
            self._changed = anyio.Event()
            free = self._concurrency - self._busy
            claims: Sequence[Claim] = ()
            asked = SYSTEM.monotonic()
            try:
                if free:
                    claims = await self._backend.claim(
                        self._queues, flows=self._flows, ttl=self._ttl, limit=free, limits=self._limits
                    )
                pause = _POLL
            except errors.StoreUnavailable as error:
                if error.reason == "closed":
                    raise
                log("runs", WARNING, "no runs can be claimed for %s s: %s", pause, error.message)
                await sleep_or_event(self._runtime, pause, self._changed)
                # It may be there again at once, and may be away for long.
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            for claim in claims:
                self._busy += 1
                group.start_soon(self._carry, claim, asked)
            if free == len(claims):
                # A run that ends says so.
                await self._changed.wait()
            else:
                await self._pause()

    async def _pause(self) -> None:
        """Wait for the next look: until something has changed here, or the store says so, but no longer than a poll."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen)
            await sleep_or_event(self._runtime, _POLL, self._changed)
            group.cancel_scope.cancel()

    async def _listen(self) -> None:
        try:
            # Its timeout is by another clock than that of the pauses, so only a notification ends the pause.
            if await self._backend.wait_for_runs(self._queues, timeout=_POLL):
                self.look()
        except errors.CheckpointError:
            # The next claim says what is wrong, if it still is.
            pass

    async def _carry(self, claim: Claim, asked: float) -> None:
        try:
            readable = await self._go_on(claim, asked)
        finally:
            self._busy -= 1
            self.look()
        if not readable:
            # Kept for a while, but in no place of another run: it would be claimed again at once, and be as it is.
            try:
                await sleep_or_event(self._runtime, _LONGEST_PAUSE, self._stopped)
            finally:
                await self._release(claim)

    async def _go_on(self, claim: Claim, asked: float) -> bool:
        """Carry out a run; one that cannot be begun fails, or is left to others if that may be for a moment only.

        Returns:
            Whether the run could be read; the claim of one that could not is not given up.
        """
        run_id = claim.lease.run_id
        try:
            if claim.lives > self._lives:
                await self._fail(claim, f"{claim.lives - 1} workers in a row have died while they had the run")
                return True
            await self._carries(ClaimedRun(claim, asked, self._retry), self._flows[claim.queued.flow])
        except (errors.CheckpointError, errors.ShuttingDown) as error:
            log("runs", WARNING, "run %s is left to other workers: %s", run_id, error.message, where=Where(run_id))
            if not isinstance(error, errors.ShuttingDown | errors.RunBusy | errors.RunNotFound):
                return False
            await self._release(claim)
        except errors.NoeticError as error:
            log("runs", ERROR, "run %s cannot be carried out", run_id, where=Where(run_id), error=error)
            await self._fail(claim, error.message)
        except BaseException:
            await self._release(claim)
            raise
        return True

    async def _release(self, claim: Claim) -> None:
        """Let others claim a run; where the store cannot be reached, that is when the lease runs out."""
        with anyio.CancelScope(shield=True):
            try:
                await self._backend.release(claim.lease)
            except errors.CheckpointError as error:
                log("runs", WARNING, "run %s was not released: %s", claim.lease.run_id, error.message)

    async def _fail(self, claim: Claim, reason: str) -> None:
        """End a run as failed, without its code; `resume` tries it once more."""
        run_id = claim.lease.run_id
        record = dump_record(RunEnded((), "failed", reason, None), PlainCodec())
        try:
            entry = await self._backend.entry(run_id)
            if entry is None:
                return
            summary = out_of_queue(entry.summary)
            given = Transaction(run_id, entry.position, claim.lease.fence, [record], summary, "failed", ended=True)
            held = await held_by(self._backend, run_id, entry.summary)
            told = ended_signals(run_id, parent_in(entry.summary))
            await self._backend.commit([evolve(given, release=True, budgets=held, signals=told)])
        except errors.CheckpointError as error:
            log("runs", WARNING, "run %s was not marked as failed: %s", run_id, error.message, where=Where(run_id))
            await self._release(claim)
