"""One run of the command line, from its arguments to the exit code."""

from __future__ import annotations

import signal
import sys
from typing import Any, TextIO, TypeGuard

import anyio
from attrs import frozen

from noetic_py.cli.display import Display, make_display
from noetic_py.cli.inputs import read_input
from noetic_py.cli.loading import FlowFile, load_flow, make_harness
from noetic_py.cli.progress import Progress
from noetic_py.cli.relay import Relay, relayed
from noetic_py.cli.report import EXIT_CODES, FAILED, USAGE, print_error, print_result, say, summary
from noetic_py.cli.signals import Signals
from noetic_py.control import RunResult
from noetic_py.errors import ConfigError, MissingExtra, PluginError
from noetic_py.streams import RunStream

__all__ = ["Outcome", "Request", "run_request"]

_FRAMES_A_SECOND = 10


@frozen(eq=False)
class Request:
    """What the command line asks for; see `noetic run --help`."""

    target: str
    input: str | None
    model: str | None
    json: bool
    quiet: bool
    trace: bool


@frozen(eq=False)
class Outcome:
    """How a run ended, and the signal that ended it, if one did."""

    result: RunResult[Any, Any]
    signal: signal.Signals | None

    @property
    def code(self) -> int:
        """The exit code."""
        # A run that was over before the signal could stop it has done what was asked.
        if self.signal is not None and self.result.status != "completed":
            return 128 + self.signal
        return EXIT_CODES.get(self.result.status, FAILED)


def run_request(request: Request) -> int:
    """Load, run, report.

    Returns:
        The exit code.
    """
    terminal = sys.stderr
    file: FlowFile | None = None
    try:
        with relayed() as relay:
            file, value = _prepare(request)
            outcome = anyio.run(_run, request, file, value, relay, terminal)
        return _report(request, file, outcome)
    except KeyboardInterrupt:
        say("interrupted before the run could be asked to stop")
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 # the last place where an error can become a message and an exit code
        found = _only(error)
        print_error(found, None if file is None else file.path, trace=request.trace)
        return USAGE if file is None or isinstance(found, (ConfigError, MissingExtra, PluginError)) else FAILED


def _only(error: Exception) -> Exception:
    """The one exception in a group of one."""
    return _only(error.exceptions[0]) if _is_group(error) and len(error.exceptions) == 1 else error


def _is_group(error: Exception) -> TypeGuard[ExceptionGroup[Exception]]:
    return isinstance(error, ExceptionGroup)


def _prepare(request: Request) -> tuple[FlowFile, Any]:
    file = load_flow(request.target)
    return file, read_input(file.step, request.input)


def _report(request: Request, file: FlowFile, outcome: Outcome) -> int:
    result = outcome.result
    print_result(result, file, as_object=request.json)
    if result.error is not None:
        print_error(result.error, file.path, trace=request.trace)
    say(summary(result))
    return outcome.code


async def _run(request: Request, file: FlowFile, value: Any, relay: Relay, terminal: TextIO) -> Outcome:
    options: dict[str, Any] = {"on_error": "result"}
    if file.budget is not None:
        options["budget"] = file.budget
    if file.state is not None:
        options["state"] = file.state()
    progress = Progress()
    display = make_display(progress, file.title, relay, terminal, quiet=request.quiet)
    with Signals(display.farewell) as signals:
        harness = await make_harness(file, request.model)
        budgets = (file.budget, file.step.budget, harness.budget)
        progress.budgets = tuple(budget for budget in budgets if budget is not None)
        async with harness, harness.stream(file.step, value, **options) as stream:
            result = await _follow(stream, display, signals)
        return Outcome(result, signals.received)


async def _follow(stream: RunStream[Any, Any], display: Display, signals: Signals) -> RunResult[Any, Any]:
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
