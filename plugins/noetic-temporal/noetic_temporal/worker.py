"""The worker: the activity that goes on with a run, and the Temporal workers that carry it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import anyio
from temporalio import activity
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from noetic_py import Answer, Harness, Step, errors
from noetic_py.core.control import Decided
from noetic_py.journal.records import RunEnded
from noetic_py.runner.runs import RunInfo
from noetic_py.runner.workers import labelled
from noetic_temporal.client import QUEUE, task_queue
from noetic_temporal.workflow import ACTIVITY, LOOK, GoOn, NoeticRun, Standing

__all__ = ["work"]

_BEAT = 2.0
"""Seconds between two heartbeats, at most; by the answer to one a worker learns that it is to stop."""
_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
"""Seconds between two looks at a run that another owner has."""


async def connected() -> Client:
    """Connect to the server that the environment names, for `noetic worker --on temporal`.

    `TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE` and the others are those of Temporal's own programs.

    Raises:
        ConfigError: There is no server, or it does not let this program in; code `"temporal"`.
    """
    given = ClientConfig.load_client_connect_config()
    given.setdefault("target_host", "localhost:7233")
    try:
        return await Client.connect(**given)
    except RuntimeError as error:
        raise errors.ConfigError(
            f"Temporal cannot be reached at {given.get('target_host')}: {error}",
            code="temporal",
            hint="TEMPORAL_ADDRESS=localhost:7233, or temporal server start-dev",
        ) from error


async def work(client: Client, harness: Harness[Any], *, concurrency: int = 10, lives: int = 5) -> None:
    """Carry out the runs that were submitted to Temporal, until the task is cancelled; then wait for it to end.

    There is a Temporal worker for each of the harness's `flows`, and for each step that they spawn into a queue, at the
    task queue of the flow's code: runs of other code are left to other workers.

    Args:
        client: The client of Temporal.
        harness: The harness, which was entered.
        concurrency: How many runs of each flow at once.
        lives: How many workers in a row may die with a run; its workflow fails after that, with the reason.

    Raises:
        ConfigError: The harness has no `flows`; code `"flows"`.
    """
    flows = labelled(harness.flows)
    queues = {step.id: task_queue(label) for label, step in flows.items()}
    workers = [
        Worker(
            client,
            task_queue=task_queue(label),
            workflows=[NoeticRun],
            # A sandbox imports the workflow's module again for each run, which takes longer than the workflow.
            workflow_runner=UnsandboxedWorkflowRunner(),
            activities=[_Carrier(harness, flow, lives, queues).go_on],
            max_concurrent_activities=concurrency,
            max_heartbeat_throttle_interval=timedelta(seconds=_BEAT),
            # Temporal leaves a workflow to the worker that has it cached for a while, also when that has died; and its
            # history is short.
            max_cached_workflows=0,
        )
        for label, flow in flows.items()
    ]
    stack = AsyncExitStack()
    try:
        for worker in workers:
            await stack.enter_async_context(worker)
        await asyncio.get_running_loop().create_future()
    finally:
        # A scope that was cancelled would cut this off, and Temporal would learn nothing of what ends here.
        with anyio.CancelScope(shield=True):
            await stack.aclose()


class _Carrier:
    """Goes on with the runs of one flow."""

    def __init__(
        self, harness: Harness[Any], flow: Step[Any, Any, Any, Any], lives: int, queues: Mapping[str, str]
    ) -> None:
        self._harness = harness
        self._flow = flow
        self._lives = lives
        self._queues = queues

    @activity.defn(name=ACTIVITY)
    async def go_on(self, what: GoOn) -> Standing:
        """Go on with a run until it ends or waits, or end it."""
        before: Sequence[Any] = activity.info().heartbeat_details
        lives = 1 + (int(before[0]) if before else what.deaths)
        if lives > self._lives:
            why = f"{lives - 1} workers in a row have died while they had the run"
            async with _beating(lives):
                return await self._give_up(what.run_id, ApplicationError(why, type="WorkersDied", non_retryable=True))
        async with _beating(lives):
            try:
                return await self._go_on(what)
            except BaseException as error:
                # This worker is alive: what the next attempt reads must not count it as dead.
                activity.heartbeat(0)
                if not isinstance(error, errors.NoeticError):
                    raise
                if activity.is_cancelled():
                    # What a run makes of that, such as a step that was cut off, is no reason of its own.
                    raise asyncio.CancelledError from error
                failure = _failure(error)
                if not failure.non_retryable:
                    raise failure from error
                return await self._give_up(what.run_id, failure)

    async def _give_up(self, run_id: str, failure: ApplicationError) -> Standing:
        """End a run that cannot go on and that another one waits for; the workflow of any other fails."""
        try:
            info = await self._harness.runs.get(run_id)
            if info.parent is not None and not _is_over(info):
                return await self._standing(await self._harness.runs.abort(run_id, failure.message), [])
        except errors.RunNotFound:
            pass
        except errors.NoeticError as error:
            raise _failure(error) from error
        raise failure

    async def _go_on(self, what: GoOn) -> Standing:
        if what.stop:
            return await self._stop(what.run_id)
        refused: list[str] = []
        answers = what.begin.answers
        pause = _PAUSE
        while True:
            info = await self._found(what)
            if _is_over(info):
                return await self._standing(info, refused)
            try:
                while answers:
                    refused += await self._answered(what.run_id, answers[0])
                    answers = answers[1:]
                await self._harness.resume(what.run_id, self._flow, as_worker=True, on_error="result")
                break
            except errors.RunBusy:
                # Its owner has died, and its lease goes on; or this worker has lost Temporal for a while, and has it.
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        info = await self._harness.runs.get(what.run_id)
        if not _is_over(info) and info.status != "suspended":
            raise ApplicationError("the worker stops, and hands the run over", type="HandedOver")
        return await self._standing(info, refused)

    async def _stop(self, run_id: str) -> Standing:
        try:
            return await self._standing(await self._harness.runs.abort(run_id, "the workflow was cancelled"), [])
        except errors.RunOver:
            return await self._standing(await self._harness.runs.get(run_id), [])
        except errors.RunNotFound:
            return Standing("aborted", ended=True)

    async def _found(self, what: GoOn) -> RunInfo:
        try:
            return await self._harness.runs.get(what.run_id)
        except errors.RunNotFound:
            if not what.begin.scheduled:
                raise
        with suppress(errors.RunBusy):
            await self._harness.submit(self._flow, what.begin.input, queue=QUEUE, run_id=what.run_id)
        return await self._harness.runs.get(what.run_id)

    async def _answered(self, run_id: str, given: dict[str, Any]) -> list[str]:
        """Store an answer; returns why it was not taken."""
        try:
            await self._harness.runs.answer(_answer_of(run_id, given))
        except errors.AnswerError as error:
            return [error.message]
        return []

    async def _standing(self, info: RunInfo, refused: list[str]) -> Standing:
        if not _is_over(info):
            ends = [each.expires for each in info.pending if each.expires is not None]
            # Not less than a second: the store's clock may be behind this machine's.
            seconds = max((min(ends) - datetime.now(UTC)).total_seconds(), 1.0) if ends else None
            runs = [each.key for each in info.pending if each.kind == "run"]
            children = await self._workflows(runs)
            if len(children) < len(runs):
                # A worker of a queue carries it out, and tells the store of its end.
                seconds = LOOK if seconds is None else min(seconds, LOOK)
            requests = [each.key for each in info.pending if each.kind not in ("timer", "run")]
            return Standing(info.status, seconds=seconds, requests=requests, refused=refused, children=children)
        reason = None
        if info.status == "failed":
            last = (await self._harness.runs.journal(info.run_id, after=info.position - 1))[-1]
            reason = last.reason if isinstance(last, RunEnded) else None
        return Standing(info.status, ended=True, reason=reason, refused=refused)

    async def _workflows(self, run_ids: Sequence[str]) -> dict[str, str]:
        """The task queues of those runs that Temporal is to carry out."""
        found: dict[str, str] = {}
        for run_id in run_ids:
            with suppress(errors.RunNotFound):
                info = await self._harness.runs.get(run_id)
                if info.queue == QUEUE:
                    found[run_id] = self._queues[info.flow]
        return found


def _failure(error: errors.NoeticError) -> ApplicationError:
    """What Temporal is told: whether another attempt may help."""
    passes = isinstance(error, errors.CheckpointError | errors.ShuttingDown)
    final = isinstance(error, errors.RunNotFound) or not passes
    return ApplicationError(error.message, type=type(error).__name__, non_retryable=final)


def _answer_of(run_id: str, given: dict[str, Any]) -> Answer:
    """An answer as a signal has brought it, which programs in other languages may have sent.

    Raises:
        AnswerInvalid: It is not a valid answer.
    """
    try:
        fields: dict[str, Any] = {"decision": "answered", **given, "run_id": run_id}
        made = Answer(**fields)
    except TypeError:
        made = None
    if made is None or made.decision not in get_args(Decided):
        raise errors.AnswerInvalid(
            f"{given!r:.100} is not a valid answer; expected the fields of noetic_py.Answer",
            hint='{"key": "...", "value": true}',
        )
    return made


def _is_over(info: RunInfo) -> bool:
    """Whether a run has ended: one that was cut off stays in its queue."""
    return info.queue is None and info.status not in ("running", "suspended")


@asynccontextmanager
async def _beating(lives: int) -> AsyncGenerator[None]:
    """Tell Temporal beside a block that this worker is alive."""
    timeout = activity.info().heartbeat_timeout
    pause = _BEAT if timeout is None else min(timeout.total_seconds() / 5, _BEAT)

    async def beat() -> None:
        while True:
            activity.heartbeat(lives)
            await asyncio.sleep(pause)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
