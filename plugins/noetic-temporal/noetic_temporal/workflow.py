"""The workflow: it has a worker go on with a run, waits as long as the run waits, and does so again.

Temporal replays its code, and its sandbox would import this module once more, so it imports the standard library and
`temporalio` only.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TimedOut

__all__ = ["ACTIVITY", "LOOK", "WORKFLOW", "Begin", "GoOn", "NoeticRun", "Standing"]

WORKFLOW = "noetic-run"
ACTIVITY = "go_on"

_ENDLESS = timedelta(days=3650)
LOOK = 2.0
"""Seconds between two looks at children whose ends Temporal does not tell."""
_EVENTS = 500
"""A history is begun anew after so many: workers cache none, so each task of the workflow replays it."""
# An attempt that fails may fail for long. After the death of a worker the workflow asks for another one itself: the
# server's pause before a retry takes a second at least.
_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    non_retryable_error_types=["TemporalTimeout:Heartbeat"],
)


@dataclass
class Begin:
    """What the workflow of a run is started with.

    Attributes:
        heartbeat: Seconds after which a worker that is silent counts as dead.
        scheduled: Whether the run is stored when the workflow begins, and not before.
        input: Of a scheduled run its input, as JSON.
        answers: Those that have come and were not given to the run yet.
    """

    heartbeat: float
    scheduled: bool = False
    input: Any = None
    answers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass
class GoOn:
    """What a worker is asked for.

    Attributes:
        run_id: The run, whose id is that of the workflow.
        begin: What the workflow was started with, with the answers that are new.
        stop: Whether to end the run instead.
        deaths: How many workers in a row have died with the run.
    """

    run_id: str
    begin: Begin
    stop: bool = False
    deaths: int = 0


@dataclass
class Standing:
    """How a run stands.

    Attributes:
        status: Its status.
        ended: Whether it has ended.
        reason: Why a run has failed.
        seconds: After how many seconds it goes on without an answer; `None` when only an answer lets it go on.
        requests: The keys of what it waits for.
        refused: Why answers were not taken.
        children: The runs that it waits for and that are workflows too: the task queue of each, by its id.
    """

    status: str
    ended: bool = False
    reason: str | None = None
    seconds: float | None = None
    requests: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    children: dict[str, str] = field(default_factory=dict[str, str])


@workflow.defn(name=WORKFLOW)
class NoeticRun:
    """One run of noetic_py."""

    def __init__(self) -> None:
        self._answers: list[dict[str, Any]] = []
        self._woken = False
        self._standing = Standing("queued")
        self._children: dict[str, asyncio.Task[None]] = {}
        self._waking: list[asyncio.Task[None]] = []

    @workflow.run
    async def run(self, begin: Begin) -> str:
        """Go on with the run until it has ended.

        Returns:
            Its status.
        """
        self._answers[:0] = begin.answers
        try:
            while not self._standing.ended:
                given = replace(begin, answers=self._answers)
                self._answers, self._woken = [], False
                self._standing = await self._go_on(GoOn(workflow.info().workflow_id, given))
                self._follow(begin.heartbeat)
                await self._wait(begin)
        except BaseException as error:
            if not is_cancelled_exception(error):
                raise
            self._standing = await self._go_on(GoOn(workflow.info().workflow_id, replace(begin, answers=[]), stop=True))
            if self._standing.status == "aborted" or not self._standing.ended:
                raise
        if self._standing.status == "failed":
            raise ApplicationError(self._standing.reason or "the run has failed", type="RunFailed")
        return self._standing.status

    async def _wait(self, begin: Begin) -> None:
        """Wait until the run may go on."""
        if self._standing.ended:
            return
        seconds = self._standing.seconds
        if any(self._children[each].done() for each in self._standing.children):
            # Its workflow was ended by hand, or belongs to this one's history before it was begun anew.
            seconds = LOOK if seconds is None else min(seconds, LOOK)
        try:
            timeout = None if seconds is None else timedelta(seconds=seconds)
            await workflow.wait_condition(lambda: self._woken, timeout=timeout)
        except TimeoutError:
            pass
        info = workflow.info()
        # A history that is begun anew is not told of the ends of children.
        is_long = info.get_current_history_length() > _EVENTS and all(each.done() for each in self._children.values())
        if info.is_continue_as_new_suggested() or is_long:
            workflow.continue_as_new(replace(begin, answers=self._answers))

    def _follow(self, heartbeat: float) -> None:
        """Start the workflows of children that are waited for, and have those of others look at their runs."""
        for run_id, task_queue in self._standing.children.items():
            if run_id not in self._children:
                self._children[run_id] = asyncio.create_task(self._child(run_id, task_queue, heartbeat))
        for run_id in [each for each in self._children if each not in self._standing.children]:
            if not self._children.pop(run_id).done():
                self._waking.append(asyncio.create_task(_wake(run_id)))

    async def _child(self, run_id: str, task_queue: str, heartbeat: float) -> None:
        # How it has ended, the run's journal says.
        with suppress(FailureError):
            await workflow.execute_child_workflow(
                WORKFLOW,
                Begin(heartbeat),
                id=run_id,
                task_queue=task_queue,
                task_timeout=timedelta(seconds=heartbeat),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            )
        self._woken = True

    async def _go_on(self, what: GoOn) -> Standing:
        while True:
            try:
                return await self._attempt(what)
            except ActivityError as error:
                died = error.cause
                if not isinstance(died, TimedOut) or died.type is not TimeoutType.HEARTBEAT:
                    raise
                known = died.last_heartbeat_details
                what = replace(what, deaths=int(known[0]) if known else what.deaths + 1)

    async def _attempt(self, what: GoOn) -> Standing:
        standing: Standing = await workflow.execute_activity(
            ACTIVITY,
            what,
            result_type=Standing,
            start_to_close_timeout=_ENDLESS,
            heartbeat_timeout=timedelta(seconds=what.begin.heartbeat),
            retry_policy=_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return standing

    @workflow.signal
    def answer(self, answers: list[dict[str, Any]]) -> None:
        """Take answers to what the run waits for, and let it go on; without any it looks whether it may."""
        self._answers += answers
        self._woken = True

    @workflow.query
    def standing(self) -> Standing:
        """How the run stood when a worker had it last."""
        return self._standing


async def _wake(run_id: str) -> None:
    """Have the workflow of a run look at it."""
    with suppress(FailureError):
        await workflow.get_external_workflow_handle(run_id).signal("answer", [])
