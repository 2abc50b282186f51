"""What a program does that has runs carried out: it submits, answers and schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import asdict
from temporalio.client import Client, ScheduleActionStartWorkflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from noetic_py import Answer, Harness, Memory, Step
from noetic_py.errors import RunBusy
from noetic_py.runner.workers import SubmitOptions, place_in
from noetic_temporal.workflow import WORKFLOW, Begin

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["QUEUE", "answer", "scheduled", "submit", "task_queue"]

QUEUE = "temporal"
"""The queue of these runs in the store, which keeps the library's own workers away from them."""

M = TypeVar("M", bound=Memory)
T = TypeVar("T")


def task_queue(label: str) -> str:
    """The task queue of a flow's label: its name and its code, so that only workers with this code take its runs."""
    return f"noetic:{label}"


def _queue_of(harness: Harness[Any], flow: Step[Any, Any, Any, Any]) -> str:
    return task_queue(place_in(QUEUE, flow, harness.flows, 0.0, 0, None).flow)


async def submit(
    client: Client,
    harness: Harness[M],
    flow: Step[T, Any, M, Any],
    input: T,
    *,
    state: object = None,
    heartbeat: float = 10.0,
    **options: Unpack[SubmitOptions],
) -> str:
    """Store a run, and start the workflow that carries it out. Temporal gets the run's id, and no input or result.

    If the call was cut short, call it again with the same `run_id=`: the run and its workflow are there once.

    Args:
        client: The client of Temporal.
        harness: The harness, with the store and the flows of the workers'.
        flow: The flow, one of the harness's `flows`.
        input: Its input.
        state: The state; needed when the flow asks for a type of its own.
        heartbeat: Seconds after which a worker that is silent counts as dead.
        **options: See `noetic_py.runner.workers.SubmitOptions`.

    Returns:
        The run's id, which is the workflow's too.

    Raises:
        ConfigError: The flow is not one of `flows`, code `"flows"`; or an option is unknown or of the wrong kind.
        RunBusy: There is a run with this id.
        CodecError: The input or the state cannot be stored.
    """
    queue, run_id = _queue_of(harness, flow), options.get("run_id")
    store: Any = harness.submit
    try:
        run_id = await store(flow, input, state=state, queue=QUEUE, **options)
    except RunBusy:
        # An earlier call may have stored it, and not have come so far as to start its workflow.
        if run_id is None or (await harness.runs.get(run_id)).queue != QUEUE:
            raise
    try:
        await client.start_workflow(
            WORKFLOW,
            Begin(heartbeat),
            id=str(run_id),
            task_queue=queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            task_timeout=timedelta(seconds=heartbeat),
        )
    except WorkflowAlreadyStartedError:
        raise RunBusy(
            f"run {run_id!r} is there already", hint="leave out run_id=, or look at harness.runs.get(run_id)"
        ) from None
    return str(run_id)


async def answer(client: Client, run_id: str, *answers: Answer) -> None:
    """Send answers to a run by a signal; it goes on as soon as a worker has it. No worker has to be there now.

    An answer that the run does not take is in `refused` of the workflow's query `standing`.

    Args:
        client: The client of Temporal.
        run_id: The run.
        *answers: The answers, made by the run's requests: `(await harness.runs.get(run_id)).pending`. Without any the
            workflow looks at its run: after `harness.runs.answer`, `complete`, `wrap_up` or `delete`.

    Raises:
        temporalio.service.RPCError: There is no such workflow, or it has ended.
    """
    given = [asdict(each, recurse=False) for each in answers]
    await client.get_workflow_handle(run_id).signal("answer", given)


def scheduled(
    harness: Harness[M], flow: Step[Any, Any, M, Any], input: Any, *, run_id: str, heartbeat: float = 10.0
) -> ScheduleActionStartWorkflow:
    """The action of a schedule of Temporal's that begins a run each time.

    It is bound to the code of the flow. Update the schedule when you deploy other code.

    Args:
        harness: The harness.
        flow: The flow, one of the harness's `flows`.
        input: Its input, which JSON can hold; Temporal keeps it in the schedule.
        run_id: What the ids of the runs begin with; Temporal adds the time.
        heartbeat: As for `submit`.

    Raises:
        ConfigError: The flow is not one of `flows`; code `"flows"`.
    """
    begin = Begin(heartbeat, scheduled=True, input=input)
    queue, silent = _queue_of(harness, flow), timedelta(seconds=heartbeat)
    return ScheduleActionStartWorkflow(WORKFLOW, begin, id=run_id, task_queue=queue, task_timeout=silent)
