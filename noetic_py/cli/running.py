"""One run of the command line, begun or gone on with: from its arguments to the exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, TextIO, TypeGuard

import anyio
from attrs import frozen

from noetic_py.cli.database import LAST, Place, chosen, flag, opened
from noetic_py.cli.display import Display, make_display
from noetic_py.cli.formatting import program
from noetic_py.cli.inputs import read_input
from noetic_py.cli.loading import FlowFile, load_flow, make_harness, takes_checkpoints
from noetic_py.cli.output_capture import OutputCapture, captured_output
from noetic_py.cli.progress import ProgressState
from noetic_py.cli.record_lines import pending_lines
from noetic_py.cli.report import EXIT_CODES, FAILED, USAGE, code_of, print_error, print_result, say, summary
from noetic_py.core.budget import Budget
from noetic_py.core.control import AnyResult
from noetic_py.errors import CodecError, ConfigError, InvalidId, ReplayDiverged, StoreUnavailable
from noetic_py.harness import Harness
from noetic_py.runner.registry import RunStream, Signals

_FRAMES_A_SECOND = 10
# Seconds in which a stopped run has to end; a body that may run only once is shielded for ten of them.
_MOST = 11.0
# The statuses that a resume can change. An abort is final.
_RESUMABLE = frozenset({"failed", "interrupted", "cancelled", "budget_exceeded", "suspended"})

Opens = Callable[[Harness[Any]], AbstractAsyncContextManager[RunStream[Any, Any]]]


@frozen
class ViewOptions:
    """How a run is shown: as a JSON object, without progress, with tracebacks."""

    json: bool
    quiet: bool
    trace: bool


@frozen(eq=False)
class RunRequest:
    """The options of `noetic run`; see `noetic run --help`."""

    target: str
    input: str | None
    model: str | None
    db: str | None
    run_id: str | None


@frozen(eq=False)
class FlowJob:
    """A command for a flow.

    Attributes:
        file: Where the flow is from.
        model: The model that the command line asks for.
        db: The database that we keep the run in; `None` when the file's harness decides, or it is not stored.
        budget: The run's budget, to be shown.
        open: Starts or resumes the run.
    """

    file: FlowFile
    model: str | None
    db: Place | None
    budget: Budget | None
    open: Opens


@frozen(eq=False)
class RunOutcome:
    """How a run ended, the signal that ended it, if one did, and the database that holds it, if one does."""

    result: AnyResult
    signal: signal.Signals | None
    db: Place | None

    @property
    def code(self) -> int:
        """The exit code."""
        # A run that was over before the signal could stop it has done what was asked.
        if self.signal is not None and self.result.status != "completed":
            return 128 + self.signal
        return EXIT_CODES.get(self.result.status, FAILED)


# -- begin a run


def run_request(request: RunRequest, view: ViewOptions) -> int:
    """Load, run, report.

    Returns:
        The exit code.
    """
    return perform(lambda: _job(request), view)


def _job(request: RunRequest) -> FlowJob:
    file = load_flow(request.target)
    value = read_input(file.step, request.input)
    options: dict[str, Any] = {"on_error": "result", "source": file.source}
    if file.budget is not None:
        options["budget"] = file.budget
    if request.run_id is not None:
        if request.run_id == LAST:
            raise InvalidId(f"run_id is {LAST!r}, which means the newest run", hint="take another name")
        options["run_id"] = request.run_id

    def begin(harness: Harness[Any]) -> AbstractAsyncContextManager[RunStream[Any, Any]]:
        if file.state is not None:
            options["state"] = file.state()
        return harness.stream(file.step, value, **options)

    return FlowJob(file, request.model, database_of(file, request.db), file.budget, begin)


def database_of(file: FlowFile, option: str | None) -> Place | None:
    """The database that a new run of a file's flow is kept in by us.

    Raises:
        ConfigError: The command line names one, and the file has a harness of its own.
    """
    if takes_checkpoints(file):
        return chosen(option)
    if option is not None:
        raise ConfigError(
            f"--db has no effect: {file.path} has a harness of its own",
            code="flow-file",
            hint="let it take the database: def harness(model: str | None, checkpoints) -> Harness",
        )
    return None


# -- do what is to be done


def perform(
    prepare: Callable[[], FlowJob], view: ViewOptions, *, besides: Callable[[Exception], str | None] | None = None
) -> int:
    """Prepare, run, report.

    Args:
        prepare: Loads the flow.
        view: How the run is shown.
        besides: What else can be tried when it did not begin.

    Returns:
        The exit code.
    """
    terminal = sys.stderr
    job: FlowJob | None = None
    try:
        with captured_output() as capture:
            job = prepare()
            outcome = anyio.run(_run, job, view, capture, terminal)
        return _report(job, view, outcome)
    except KeyboardInterrupt:
        say("interrupted before the run could be asked to stop")
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 # the last place where an error can become a message and an exit code
        found = _only(error)
        else_ = _besides(job, found) or (None if besides is None else besides(found))
        print_error(found, None if job is None else job.file.path, trace=view.trace, besides=else_)
        if job is None and isinstance(found, StoreUnavailable):
            return code_of(found)
        # A value that cannot be stored and is not a step's is the input.
        return USAGE if job is None or isinstance(found, CodecError) else code_of(found)


def _only(error: Exception) -> Exception:
    """The one exception in a group of one."""
    return _only(error.exceptions[0]) if _is_group(error) and len(error.exceptions) == 1 else error


def _is_group(error: Exception) -> TypeGuard[ExceptionGroup[Exception]]:
    return isinstance(error, ExceptionGroup)


def _besides(job: FlowJob | None, error: BaseException) -> str | None:
    """The hint for a run that could not be stored, or whose record cannot be used."""
    if isinstance(error, ReplayDiverged):
        return "noetic resume RUN --on-diverge adopt, or pin"
    if job is None or job.db is None:
        return None
    no_source = isinstance(error, ConfigError) and error.code == "no-source"
    if no_source or isinstance(error, (CodecError, StoreUnavailable)):
        return "--db none, to run without a database"
    return None


def _report(job: FlowJob, view: ViewOptions, outcome: RunOutcome) -> int:
    result = outcome.result
    print_result(result, job.file, as_object=view.json)
    if result.error is not None:
        print_error(result.error, job.file.path, trace=view.trace, besides=_besides(job, result.error))
    say(summary(result))
    if result.pending:
        say("\n".join(pending_lines(result.pending)))
    if outcome.db is not None and result.pending:
        say(f"to answer: {program()} answer {result.run_id}{flag(outcome.db)}")
    if outcome.db is not None and result.status in _RESUMABLE:
        say(f"to resume it: {program()} resume {result.run_id}{flag(outcome.db)}")
    elif outcome.db is not None and not view.quiet:
        say(f"to look further: {program()} show {result.run_id}{flag(outcome.db)}")
    return outcome.code


async def _run(job: FlowJob, view: ViewOptions, capture: OutputCapture, terminal: TextIO) -> RunOutcome:
    progress = ProgressState()
    display = make_display(progress, job.file.title, capture, terminal, quiet=view.quiet)
    with Signals(display.farewell, limit=_MOST) as signals:
        async with AsyncExitStack() as stack:
            backend = None if job.db is None else await stack.enter_async_context(opened(job.db))
            harness = await make_harness(job.file, job.model, backend)
            budgets = (job.budget, job.file.step.budget, harness.budget)
            progress.budgets = tuple(budget for budget in budgets if isinstance(budget, Budget))
            async with harness:
                place = job.db if isinstance(job.db, str) else await _place_of(harness)
                async with job.open(harness) as stream:
                    result = await _follow(stream, display, signals)
            return RunOutcome(result, signals.received, place)


async def _place_of(harness: Harness[Any]) -> Path | None:
    """The file that a harness keeps its runs in, if it is one."""
    try:
        runs = harness.runs
    except ConfigError:
        return None
    path = (await runs.describe()).get("path")
    return None if path is None else Path(path)


async def _follow(stream: RunStream[Any, Any], display: Display, signals: Signals) -> AnyResult:
    display.start()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_on_signal, stream, signals)
            group.start_soon(_draw, display)
            async for event in stream.events:
                display.event(event)
            group.cancel_scope.cancel()
    finally:
        display.stop()
    return await stream.result()


async def _draw(display: Display) -> None:
    while True:
        await anyio.sleep(1 / _FRAMES_A_SECOND)
        display.tick()


async def _stop_on_signal(stream: RunStream[Any, Any], signals: Signals) -> None:
    received = await signals.wait()
    say(f"{received.name}: stopping the run; once more ends the program at once")
    stream.interrupt(received.name)
