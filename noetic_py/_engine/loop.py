"""What a loop does."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from noetic_py._engine import family as bounds
from noetic_py._engine.durable import NOTHING, recorded
from noetic_py._engine.execute import HANDLERS, as_error, execute
from noetic_py._engine.frame import Frame
from noetic_py._engine.hooked import hooked_rounds
from noetic_py._engine.inbox import Inbox
from noetic_py._engine.ledger import decided
from noetic_py._engine.progress import forget_round
from noetic_py._types import OnError
from noetic_py.checkpoints.records import Decision
from noetic_py.errors import ConfigError, LoopLimit, NoOutput
from noetic_py.events import LoopIteration
from noetic_py.redaction import without_secrets
from noetic_py.steps.loop import LoopSpec
from noetic_py.steps.until import Predicate, Snapshot, Until, Verdict

_KEPT = 100
"""How many outputs a snapshot shows."""


async def run_loop(value: Any, frame: Frame) -> Any:
    """Iterate until a verdict, `stop_loop`, or the cap."""
    spec: LoopSpec = frame.step.spec
    body = spec.body
    plain = spec.prepare_next is None and spec.inbox is None
    inbox = None if spec.inbox is None else Inbox(frame, spec.inbox, spec.park_timeout)
    judge = _judge(frame, spec.until)
    outputs: deque[Any] = deque(maxlen=_KEPT)
    snapshot: Snapshot[Any] = Snapshot(frame, 0, outputs, None)
    bus, progress = frame.x.run.bus, frame.x.run.progress
    run_body = hooked_rounds(frame) if frame.x.run.hooked else execute
    at = ""
    name = f"{body.id}["
    for iteration in range(spec.max_iterations):
        at = counted(frame, f"{name}{iteration}]", at if progress else "")
        try:
            output = await run_body(body, value, frame, at)
        except Exception as error:  # noqa: BLE001 # raised again unless on_error decides otherwise
            value = await _after_error(frame, spec, inbox, error, iteration, value)
            continue
        if frame.loop_stops:
            return _stopped(frame, output)
        outputs.append(output)
        snapshot.iteration, snapshot.output = iteration, output
        try:
            verdict = judge(snapshot)
            if not isinstance(verdict, Verdict):
                verdict = await _wait(verdict)
        except Exception as error:  # noqa: BLE001 # its verdict
            verdict = _raised(error)
        if bus.active:
            frame.tell(LoopIteration(frame.at, iteration, *_told(verdict)))
        if verdict.stop:
            value = NOTHING if inbox is None else await inbox.next(iteration + 1)
            if value is NOTHING:
                return _ended(frame, verdict, output)
        elif plain:
            value = None if body.goes_on else output
        else:
            value = await _next_input(frame, spec, inbox, output, verdict, iteration)
    raise LoopLimit(spec.max_iterations, path=frame.at)


def counted(frame: Frame, name: str, before: str = "") -> str:
    """The name of an iteration, counted for the run; one that a resumed run has of an earlier process is already.

    Args:
        frame: The loop.
        name: The iteration.
        before: The one before, of whose progress nothing is to be left.
    """
    if before:
        forget_round(frame, before)
    node = frame.node
    if node is None or not node.holds(name):
        # Counted here, as every iteration comes by.
        family = frame.x.run.family
        if family.iterations >= bounds.MAX_ITERATIONS:
            raise bounds.too_many_iterations()
        family.iterations += 1
    return name


def _judge(frame: Frame, until: Until[Any]) -> Callable[[Snapshot[Any]], Verdict | Awaitable[Verdict]]:
    """A loop's predicate. All iterations share one snapshot; a predicate that may keep its own gets a copy."""
    judge, keeps = (until.judge, until.keeps) if isinstance(until, Predicate) else (until, True)
    asked: Callable[[Snapshot[Any]], Any] = (lambda snapshot: judge(snapshot.copy())) if keeps else judge
    return asked if frame.x.run.store is None else partial(_judged, frame, asked)


async def _next_input(
    frame: Frame, spec: LoopSpec, inbox: Inbox | None, output: Any, verdict: Verdict, iteration: int
) -> Any:
    """The input of an iteration that follows another: what prepare_next makes, a message, or what there is anyway."""
    value = None if spec.body.goes_on else output
    if spec.prepare_next is not None:
        value = await _prepare(frame, spec.prepare_next, output, verdict, iteration)
    return inbox.now(iteration + 1) if inbox is not None and value is None else value


async def _after_error(
    frame: Frame, spec: LoopSpec, inbox: Inbox | None, error: Exception, iteration: int, value: Any
) -> Any:
    """The input of the iteration after a failed one; raises the failure when there is to be none."""
    if await on_error(frame, spec.on_error, error, iteration) == "retry" or inbox is None:
        return value
    message = await inbox.next(iteration + 1)
    if message is NOTHING:
        raise error
    return message


async def _judged(frame: Frame, judge: Any, snapshot: Snapshot[Any]) -> Verdict:
    """A verdict that is recorded, and not asked for twice."""
    key = f"verdict[{snapshot.iteration}]"
    before = recorded(frame, key)
    if before is not NOTHING:
        return Verdict(*before)
    try:
        verdict = judge(snapshot)
        if not isinstance(verdict, Verdict):
            verdict = await _wait(verdict)
    except Exception as error:  # noqa: BLE001 # what a predicate raises is its verdict too
        verdict = _raised(error)
    decided(frame, key, list(_told(verdict)))
    return verdict


def _told(verdict: Verdict) -> tuple[bool, str | None, str | None]:
    """A verdict as it leaves the process."""
    return verdict.stop, without_secrets(verdict.reason), without_secrets(verdict.feedback)


def _raised(error: Exception) -> Verdict:
    """A predicate that raises stops its loop, and says why."""
    return Verdict(True, f"until raised {type(error).__name__}: {error}")


async def _wait(verdict: Awaitable[object]) -> Verdict:
    found = await verdict
    if not isinstance(found, Verdict):
        raise TypeError(f"until gave {found!r}, not a Verdict")
    return found


def _ended(frame: Frame, verdict: Verdict, output: Any) -> Any:
    x = frame.x
    if x.run.store is None:
        x.run.journal.append(Decision(frame.path, "verdict", verdict))
    x.run.verdict = (frame.at, without_secrets(verdict.reason))
    last = x.last_step
    if output is None and last is not None and last.tool_calls:
        raise NoOutput(
            f"the loop ended ({verdict.reason}) on a round of tool calls, which has no value",
            path=frame.path,
            hint="allow more rounds, or read result.items; on_error='result' gives the result without raising",
        )
    return output


def _stopped(frame: Frame, output: Any) -> Any:
    value = frame.loop_stops[-1][0] if frame.loop_stops else None
    frame.x.run.verdict = (frame.at, "stop_loop")
    return output if value is None else value


async def on_error(frame: Frame, ask: Callable[..., Any] | None, error: Exception, iteration: int) -> OnError:
    """Ask what to do about a failed iteration; raises it when nothing else is to be done."""
    if ask is None:
        raise error
    key = f"on_error[{iteration}]"
    answer: Any = recorded(frame, key)
    if answer is NOTHING:
        answer = ask(as_error(frame, error), frame)
        if inspect.isawaitable(answer):
            answer = await answer
        decided(frame, key, answer)
    if answer not in ("retry", "skip", "abort"):
        raise ConfigError(
            f"on_error returned {answer!r}", code="loop", path=frame.at, hint='"retry", "skip" or "abort"'
        ) from error
    if answer == "abort":
        raise error
    allowed: OnError = answer
    return allowed


async def _prepare(frame: Frame, prepare: Callable[..., Any], output: Any, verdict: Verdict, iteration: int) -> Any:
    key = f"next[{iteration}]"
    value = recorded(frame, key)
    if value is NOTHING:
        value = prepare(output, verdict, frame)
        if inspect.isawaitable(value):
            value = await value
        decided(frame, key, value)
    return value


HANDLERS["loop"] = run_loop
