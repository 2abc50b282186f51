"""Going on with a run that was begun before, or saying what that would do."""

from __future__ import annotations

import json
import shlex
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from attrs import frozen

from noetic_py.cli.database import Place, chosen, find, folder_of, is_file, opened, read_runs
from noetic_py.cli.formatting import printable
from noetic_py.cli.inputs import with_limits
from noetic_py.cli.loading import FlowFile, load_flow, make_harness, takes_checkpoints
from noetic_py.cli.output_capture import captured_output
from noetic_py.cli.report import FAILED, say, write_out
from noetic_py.cli.running import FlowJob, ViewOptions, perform
from noetic_py.cli.stored_runs import guarded
from noetic_py.core.state import StateBag
from noetic_py.errors import ConfigError, RunNotFound
from noetic_py.runner.runs import RunInfo

if TYPE_CHECKING:
    from noetic_py.harness import Harness
    from noetic_py.journal.run_summary import PlannedStep, ResumePlan
    from noetic_py.runner.registry import RunStream


@frozen(eq=False)
class ResumeRequest:
    """The options of `noetic resume`; see `noetic resume --help`."""

    run: str
    flow: str | None
    model: str | None
    db: str | None
    budget: tuple[str, ...]
    on_diverge: str


def resume_request(request: ResumeRequest, view: ViewOptions) -> int:
    """Find the run and its flow, resume it, report.

    Returns:
        The exit code.
    """
    return perform(lambda: _job(request), view, besides=lambda error: _besides(request, error))


def _job(request: ResumeRequest) -> FlowJob:
    info = anyio.run(_located, request)
    file = _flow_of(request, info)
    options: dict[str, Any] = {"on_error": "result", "on_diverge": request.on_diverge}
    budget = with_limits(file.budget, request.budget)
    if budget is not None:
        options["budget"] = budget
    kind = StateBag if file.state is None else type(file.state())
    if kind is not StateBag:
        options["state_type"] = kind

    def go_on(harness: Harness[Any]) -> AbstractAsyncContextManager[RunStream[Any, Any]]:
        return harness.resume_stream(info.run_id, file.step, **options)

    return FlowJob(file, request.model, _database(request, file), budget, go_on)


async def _located(request: ResumeRequest) -> RunInfo:
    async with read_runs(request.db) as (runs, _):
        return await find(runs, request.run)


def _database(request: ResumeRequest, file: FlowFile) -> Place | None:
    return chosen(request.db) if takes_checkpoints(file) else None


def _flow_of(request: ResumeRequest, info: RunInfo) -> FlowFile:
    """The flow that the run was started with: what `--flow` names, or a file below this folder that the run names.

    Raises:
        RunNotFound: The run has no records yet.
        ConfigError: It is not said which flow it is, it is not there any more, or it is elsewhere; code `"source"`.
    """
    if request.flow is not None:
        return load_flow(request.flow)
    return load_flow(_source_of(request, info))


def _source_of(request: ResumeRequest, info: RunInfo) -> str:
    """The flow that the run names, if it is below this folder: a database from elsewhere can name any file.

    Raises:
        RunNotFound: The run has no records yet.
        ConfigError: It names none, or one that is not there, elsewhere or a part of the database; code `"source"`.
    """
    if not info.position:
        raise RunNotFound(f"run {info.run_id!r} has no records yet", hint="start it again")
    if info.source is None:
        raise ConfigError(f"run {info.run_id!r} does not record the file of its flow {info.flow!r}", code="source")
    name, _, _ = info.source.rpartition(":")
    if not is_file(name):
        raise ConfigError(
            f"the flow of run {info.run_id!r} was {info.source}, which is not there",
            code="source",
            hint="go to the folder that it was started in",
        )
    here = Path.cwd().resolve()
    # A file may be called what stands with the colon.
    if not all(Path(each).resolve().is_relative_to(here) for each in (name, info.source)):
        raise ConfigError(
            f"run {info.run_id!r} names {info.source}, which is not below this folder, so it is not imported",
            code="source",
            hint="look at that file; then name it with --flow, or go to the folder that it is in",
        )
    kept = folder_of(chosen(request.db))
    if kept is not None and any(Path(each).resolve().is_relative_to(kept.resolve()) for each in (name, info.source)):
        raise ConfigError(
            f"run {info.run_id!r} names {info.source}, which is a part of its database, so it is not imported",
            code="source",
            hint="look at that file; then name it with --flow",
        )
    return info.source


def _besides(request: ResumeRequest, error: Exception) -> str | None:
    if isinstance(error, ConfigError) and error.code in ("source", "flow-file"):
        return f"noetic resume {request.run} --flow FILE:STEP"
    return None


# -- what it would do


def plan_request(request: ResumeRequest, view: ViewOptions) -> int:
    """Print what going on would do; nothing is run, and only the flow that the command line names is imported.

    Returns:
        The exit code: 0 when it can go on, 1 when it would fail at once.
    """

    def work() -> int:
        with captured_output():
            info = anyio.run(_located, request)
            plan = anyio.run(_plan, request, info, load_flow(_named(request, info)))
        write_out(_as_json(plan) if view.json else "\n".join(map(_line, plan.steps)) or "nothing is left to run")
        say(_counts(plan))
        return FAILED if any(step.action in ("differ", "unknown") for step in plan.steps) else 0

    return guarded(work, trace=view.trace, besides=lambda error: _besides(request, error))


def _named(request: ResumeRequest, info: RunInfo) -> str:
    if request.flow is not None:
        return request.flow
    source = _source_of(request, info)
    raise ConfigError(
        f"--dry-run imports only what --flow names, and run {info.run_id!r} says that its flow is {source}",
        code="dry-run",
        hint=f"look at that file, then: noetic resume {request.run} --dry-run --flow {shlex.quote(source)}",
    )


async def _plan(request: ResumeRequest, info: RunInfo, file: FlowFile) -> ResumePlan:
    db = _database(request, file)
    async with AsyncExitStack() as stack:
        backend = None if db is None else await stack.enter_async_context(opened(db))
        harness = await make_harness(file, request.model, backend)
        async with harness:
            return await harness.plan_resume(info.run_id, file.step)


def _as_json(plan: ResumePlan) -> str:
    steps = [
        {"path": list(step.path), "kind": step.kind, "action": step.action, "reason": step.reason}
        for step in plan.steps
    ]
    return json.dumps({"run_id": plan.run_id, "status": plan.status, "diverges": plan.diverges, "steps": steps})


def _line(step: PlannedStep) -> str:
    why = f": {printable(step.reason)}" if step.reason else ""
    return f"{step.action:<8} {printable('/'.join(step.path))}  {step.kind}{why}"


def _counts(plan: ResumePlan) -> str:
    found = [step.action for step in plan.steps]
    counts = ", ".join(f"{found.count(action)} {action}" for action in ("replay", "run", "differ", "unknown"))
    return f"{plan.run_id} is {plan.status}; {counts}"
