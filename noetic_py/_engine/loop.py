"""What a loop does."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from noetic_py._engine.execute import HANDLERS, as_error, execute
from noetic_py._engine.state import Frame
from noetic_py.checkpoints.records import Decision
from noetic_py.errors import ConfigError, LoopLimit, NoOutput
from noetic_py.events import LoopIteration
from noetic_py.steps.loop import LoopSpec
from noetic_py.steps.until import Predicate, Snapshot, Verdict

_KEPT = 100
"""How many outputs a snapshot shows."""


async def run_loop(frame: Frame, value: Any) -> Any:
    """Iterate until a verdict, `stop_loop`, or the cap."""
    spec: LoopSpec = frame.step.spec
    body = spec.body
    until = spec.until
    judge = until.judge if isinstance(until, Predicate) else until
    outputs: list[Any] = []
    bus = frame.x.run.bus
    for iteration in range(spec.max_iterations):
        try:
            output = await execute(body, value, frame, f"{body.id}[{iteration}]")
        except Exception as error:
            if spec.on_error is None:
                raise
            if await _on_error(frame, spec, error, iteration):
                continue
            raise
        if frame.loop_stop is not None:
            return _stopped(frame, output)
        outputs.append(output)
        if len(outputs) > 2 * _KEPT:
            del outputs[:-_KEPT]
        verdict = _ask(judge, Snapshot(frame, iteration, outputs, output))
        if not isinstance(verdict, Verdict):
            verdict = await _wait(verdict)
        if bus.active:
            bus.publish(LoopIteration(frame.path, iteration, verdict.stop, verdict.reason, verdict.feedback))
        if verdict.stop:
            return _ended(frame, verdict, output)
        if spec.prepare_next is not None:
            value = await _prepare(frame, spec, output, verdict, iteration)
        else:
            value = None if body.goes_on else output
    raise LoopLimit(spec.max_iterations, path=frame.path)


def _ask(judge: Any, snapshot: Snapshot[Any]) -> Verdict | Awaitable[Verdict]:
    try:
        verdict: Verdict | Awaitable[Verdict] = judge(snapshot)
    except Exception as error:  # noqa: BLE001 # a predicate that raises stops its loop, and says why
        return _raised(error)
    return verdict


async def _wait(verdict: Awaitable[object]) -> Verdict:
    try:
        found = await verdict
    except Exception as error:  # noqa: BLE001 # as above
        return _raised(error)
    if not isinstance(found, Verdict):
        return _raised(TypeError(f"until gave {found!r}, not a Verdict"))
    return found


def _raised(error: Exception) -> Verdict:
    return Verdict(True, f"until raised {type(error).__name__}: {error}")


def _ended(frame: Frame, verdict: Verdict, output: Any) -> Any:
    x = frame.x
    x.run.journal.append(Decision(frame.path, "verdict", verdict))
    if x.depth == 0:
        x.run.verdict = verdict.reason
    last = x.last_step
    if output is None and last is not None and last.tool_calls:
        raise NoOutput(
            f"the loop ended ({verdict.reason}) on a round of tool calls, which has no value",
            path=frame.path,
            hint="allow more rounds, or read result.items; on_error='result' gives the result without raising",
        )
    return output


def _stopped(frame: Frame, output: Any) -> Any:
    stop, frame.loop_stop = frame.loop_stop, None
    if frame.x.depth == 0:
        frame.x.run.verdict = "stop_loop"
    return output if stop is None or stop[0] is None else stop[0]


async def _on_error(frame: Frame, spec: LoopSpec, error: Exception, iteration: int) -> bool:
    """Whether the loop goes on after a failed iteration."""
    if spec.on_error is None:
        return False
    decided: Any = spec.on_error(as_error(frame, error), frame)
    if inspect.isawaitable(decided):
        decided = await decided
    frame.x.run.journal.append(Decision(frame.path, f"on_error[{iteration}]", decided))
    if decided not in ("retry", "skip", "abort"):
        raise ConfigError(
            f"on_error returned {decided!r}", code="loop", path=frame.path, hint='"retry", "skip" or "abort"'
        ) from error
    return bool(decided != "abort")


async def _prepare(frame: Frame, spec: LoopSpec, output: Any, verdict: Verdict, iteration: int) -> Any:
    if spec.prepare_next is None:
        return output
    value = spec.prepare_next(output, verdict, frame)
    if inspect.isawaitable(value):
        value = await value
    frame.x.run.journal.append(Decision(frame.path, f"next[{iteration}]", value))
    return value


HANDLERS["loop"] = run_loop
