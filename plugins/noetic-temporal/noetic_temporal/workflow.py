"""The workflow: it has a worker go on with a run, waits as long as the run waits, and does so again.

Temporal replays its code, and its sandbox would import this module once more, so it imports the standard library and
`temporalio` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TimedOut

__all__ = ["ACTIVITY", "WORKFLOW", "Begin", "GoOn", "NoeticRun", "Standing"]

WORKFLOW = "noetic-run"
ACTIVITY = "go_on"

_ENDLESS = timedelta(days=3650)
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
    """

    status: str
    ended: bool = False
    reason: str | None = None
    seconds: float | None = None
    requests: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])


@workflow.defn(name=WORKFLOW)
class NoeticRun:
    """One run of noetic_py."""

    def __init__(self) -> None:
        self._answers: list[dict[str, Any]] = []
        self._woken = False
        self._standing = Standing("queued")

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
                await self._wait(begin)
        except BaseException as error:
            if is_cancelled_exception(error):
                await self._go_on(GoOn(workflow.info().workflow_id, replace(begin, answers=[]), stop=True))
            raise
        if self._standing.status == "failed":
            raise ApplicationError(self._standing.reason or "the run has failed", type="RunFailed")
        return self._standing.status

    async def _wait(self, begin: Begin) -> None:
        """Wait until the run may go on."""
        if self._standing.ended:
            return
        seconds = self._standing.seconds
        try:
            timeout = None if seconds is None else timedelta(seconds=seconds)
            await workflow.wait_condition(lambda: self._woken, timeout=timeout)
        except TimeoutError:
            pass
        info = workflow.info()
        if info.is_continue_as_new_suggested() or info.get_current_history_length() > _EVENTS:
            workflow.continue_as_new(replace(begin, answers=self._answers))

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
