"""Runs `loop` and `every`: rounds until a condition holds, and a step at set times."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from itertools import count
from logging import ERROR, WARNING
from typing import Any

import anyio

from noetic_py.channels import Entry
from noetic_py.channels.declared import AnyChannel
from noetic_py.context.read import ContextScope, branch_at
from noetic_py.context.step import asks_model
from noetic_py.core.diagnostics import log, where_defined
from noetic_py.core.events import LoopIteration, LoopWaiting, UntilFailed
from noetic_py.core.items import Message
from noetic_py.core.types import OnError
from noetic_py.core.values import ATOMS, copy_value
from noetic_py.engine.body import call_apart
from noetic_py.engine.execute import as_error, execute, restore_log
from noetic_py.engine.frame import Frame
from noetic_py.engine.hooks import rounds_with_hooks
from noetic_py.engine.journaling.fold import AT_LIMIT
from noetic_py.engine.journaling.ledger import decided, write_down
from noetic_py.engine.journaling.replay import NOT_READ, NOTHING, recorded, restore_rounds
from noetic_py.engine.journaling.summaries import RoundSums
from noetic_py.engine.kind import Kind
from noetic_py.engine.kinds.channels import take
from noetic_py.engine.progress import forget_round
from noetic_py.engine.state import too_many_iterations
from noetic_py.engine.telemetry import describe_agent
from noetic_py.errors import ChannelClosed, ConfigError, LoopLimit, NoeticError, NoOutput
from noetic_py.journal.records import Decision
from noetic_py.redaction import without_secrets
from noetic_py.steps.loop import EverySpec, LoopSpec
from noetic_py.until import Predicate, Snapshot, Until, Verdict


class Inbox:
    """The inbox of a loop. Messages are received by a decision, so a failed iteration does not return its own."""

    def __init__(self, frame: Frame, channel: AnyChannel, patience: float) -> None:
        self._frame = frame
        self._channel = channel
        self._patience = patience
        attempt = frame.attempt
        # A reader of this attempt only: the next attempt opens its own.
        self._reader = frame.x.run.channels.live(channel).reader(lambda: frame.running and frame.attempt == attempt)

    async def next(self, iteration: int) -> Any:
        """The next message, waited for as long as the loop parks; `NOTHING` when none has come."""
        before = recorded(self._frame, f"inbox[{iteration}]")
        if before is not NOTHING:
            return before
        message = self._take(self._reader.take_now(), iteration)
        if message is not NOTHING or not self._patience:
            return message
        bus = self._frame.x.run.bus
        if bus.active:
            self._frame.publish(LoopWaiting(self._frame.at, iteration))
        return self._take(await self.wait(self._patience), iteration)

    def now(self, iteration: int) -> Any:
        """A message that is there, `None` otherwise."""
        before = recorded(self._frame, f"inbox[{iteration}]")
        if before is not NOTHING:
            return before
        message = self._take(self._reader.take_now(), iteration)
        return None if message is NOTHING else message

    async def wait(self, seconds: float) -> Entry | None:
        """A message within so many seconds."""
        try:
            with anyio.move_on_after(seconds):
                return await self._reader.take()
        except ChannelClosed:
            pass
        return None

    async def interrupt(self, cancel_scope: anyio.CancelScope, iteration: int) -> None:
        """Cancel the scope when a message comes."""
        entry = await self._reader.take()
        self._take(entry, iteration)
        cancel_scope.cancel()

    def _take(self, entry: Entry | None, iteration: int) -> object:
        if entry is None:
            return NOTHING
        key = f"inbox[{iteration}]"
        value = take(self._frame, self._channel, (*self._frame.at, key), entry, self._reader)
        decided(self._frame, key, value)
        if entry.sender and self._frame.x.run.store is not None:
            decided(self._frame, f"{key}.from", list(entry.sender))
        return value


KEPT = 100
"""How many outputs a snapshot shows."""


async def run_loop(value: object, frame: Frame) -> object:
    """Iterate until a verdict, `stop_loop`, or the cap."""
    if frame.own_span is not None and asks_model(frame.step.spec.body):
        describe_agent(frame.own_span, frame.step.id, frame.x.run.thread_id)
    output = NOTHING
    with Rounds(frame):
        output = await _iterate(value, frame)
    if output is NOTHING:
        # Cut short in the middle of a round: what that has finished stays.
        restore_log(frame)
        output = _stopped(frame, None)
    return output


class Rounds:
    """Rounds of a loop or a schedule that a step can cut short; a class, because that costs less than a generator."""

    __slots__ = ("_frame", "_scope")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._scope = frame.rounds = anyio.CancelScope()

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(self, *error: Any) -> bool:
        frame = self._frame
        try:
            return self._scope.__exit__(*error)
        finally:
            frame.rounds = None
            if frame.cut is not None:
                frame.x.run.has_stopped(-1)


def cut_short(frame: Frame, value: object, asking: Frame | None) -> None:
    """End a loop in the middle of a round.

    Args:
        frame: The loop.
        value: Its value.
        asking: The frame whose body asks for it; its changes so far stay.

    Raises:
        CodecError: That cannot be stored.
    """
    if frame.rounds is None or frame.cut is not None:
        return
    if asking is not None:
        write_down(asking)
    frame.cut = (value,)
    frame.x.run.has_stopped(1)
    frame.rounds.cancel()


async def _iterate(value: object, frame: Frame) -> object:
    spec: LoopSpec = frame.step.spec
    body = spec.body
    plain = spec.prepare_next is None and spec.inbox is None and not body.goes_on
    inbox = None if spec.inbox is None else Inbox(frame, spec.inbox, spec.inbox_timeout)
    judge = _judge(frame, spec.until)
    outputs: deque[object] = deque(maxlen=KEPT)
    snapshot: Snapshot[object] = Snapshot(frame, 0, outputs, None)
    bus, progress = frame.x.run.bus, frame.x.run.progress
    run_body = rounds_with_hooks(frame) if frame.x.run.dispatches_hooks else execute
    at = ""
    name = f"{body.id}["
    first, value = restore_rounds(frame, value)
    sums = RoundSums(frame, KEPT)
    for iteration in range(first, spec.max_iterations):
        if iteration >= sums.due:
            sums.look(iteration)
        at = counted(frame, f"{name}{iteration}]", at if progress else "")
        try:
            output = await run_body(body, value, frame, at)
        except Exception as error:  # noqa: BLE001 # raised again unless on_error decides otherwise
            value = await _after_error(frame, inbox, error, iteration, value)
            sums.failed(iteration)
            continue
        if frame.loop_stops:
            return _stopped(frame, output)
        shown = output if output.__class__ in ATOMS else copy_value(output)
        outputs.append(shown)
        snapshot.iteration, snapshot.output = iteration, shown
        try:
            verdict = judge(snapshot)
            if not isinstance(verdict, Verdict):
                verdict = await _wait(verdict, spec.until)
        except Exception as error:  # noqa: BLE001 # its verdict
            verdict = _raised(frame, iteration, error)
        if bus.active:
            frame.publish(LoopIteration(frame.at, iteration, *_verdict_fields(verdict)))
        if verdict.stop:
            value = NOTHING if inbox is None else await inbox.next(iteration + 1)
            if value is NOTHING:
                return _ended(frame, verdict, output)
        else:
            value = output if plain else await _next_input(frame, spec, inbox, output, verdict, iteration)
    return _limited(frame, spec, outputs[-1] if outputs else None)


def _limited(frame: Frame, spec: LoopSpec, output: object) -> object:
    """A loop has reached its limit: that is an error, or an end of which the conversation says so."""
    limit = spec.max_iterations
    if spec.at_limit == "raise":
        raise LoopLimit(limit, path=frame.at)
    reached = AT_LIMIT.format(limit)
    _traced(frame, Verdict(True, reached))
    frame.x.run.verdict = (frame.at, reached, "max_iterations")
    frame.log.append(Message.developer(f"Stopped after {limit} rounds, which is the limit."))
    return output


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
        limits = frame.x.run.limits
        if limits.iterations >= limits.max_iterations:
            raise too_many_iterations(limits.max_iterations)
        limits.iterations += 1
    return name


def _judge(frame: Frame, until: Until[object]) -> Callable[[Snapshot[object]], Verdict | Awaitable[Verdict]]:
    """A loop's predicate. All iterations share one snapshot; a predicate that may keep its own gets a copy."""
    judge, keeps = (until.judge, until.keeps) if isinstance(until, Predicate) else (until, True)
    asked: Callable[[Snapshot[object]], Any] = judge
    if keeps:
        asked = lambda snapshot: call_apart(frame, judge, snapshot.copy())  # noqa: E731
    return asked if frame.x.run.store is None else partial(_judged, frame, asked)


async def _next_input(
    frame: Frame, spec: LoopSpec, inbox: Inbox | None, output: object, verdict: Verdict, iteration: int
) -> object:
    """The input of an iteration that follows another: what prepare_next makes, a message, or what there is anyway."""
    value = None if spec.body.goes_on else output
    if spec.prepare_next is not None:
        value = await _prepare(frame, spec.prepare_next, output, verdict, iteration)
    return inbox.now(iteration + 1) if inbox is not None and value is None else value


async def _after_error(frame: Frame, inbox: Inbox | None, error: Exception, iteration: int, value: object) -> object:
    """The input of the iteration after a failed one; raises the failure when there is to be none."""
    if value is NOT_READ:
        # It had finished, so this is no failure of its own, and without its output there is no input.
        raise error
    if await on_error(frame, frame.step.spec.on_error, error, iteration) == "retry" or inbox is None:
        return value
    message = await inbox.next(iteration + 1)
    if message is NOTHING:
        raise error
    return message


async def _judged(frame: Frame, judge: Any, snapshot: Snapshot[object]) -> Verdict:
    """A verdict that is recorded, and not asked for twice."""
    key = f"verdict[{snapshot.iteration}]"
    before = recorded(frame, key)
    if before is not NOTHING:
        return Verdict(*before)
    try:
        verdict = judge(snapshot)
        if not isinstance(verdict, Verdict):
            verdict = await _wait(verdict, frame.step.spec.until)
    except Exception as error:  # noqa: BLE001 # what a predicate raises is its verdict too
        verdict = _raised(frame, snapshot.iteration, error)
    # Only a failure has a mark, so that all other verdicts are stored as they always were.
    decided(frame, key, [*_verdict_fields(verdict), True] if verdict.failed else list(_verdict_fields(verdict)))
    return verdict


def _verdict_fields(verdict: Verdict) -> tuple[bool, str | None, str | None]:
    """A verdict as it leaves the process."""
    return verdict.stop, without_secrets(verdict.reason), without_secrets(verdict.feedback)


def _raised(frame: Frame, iteration: int, error: Exception) -> Verdict:
    """A predicate that raises stops its loop, and says why: to the run's result, to its listeners and to the log."""
    verdict = Verdict(True, f"until raised {type(error).__name__}: {error}", failed=True)
    log(
        "until",
        ERROR,
        "the condition of a loop has failed after iteration %d: %s",
        iteration,
        verdict.reason,
        where=frame.where,
        error=error,
    )
    if frame.x.run.bus.active:
        frame.publish(UntilFailed(frame.at, iteration, type(error).__name__, without_secrets(str(error)) or ""))
    return verdict


async def _wait(verdict: object, until: object) -> Verdict:
    """Await the result of a predicate, and refuse it if it is not a verdict."""
    found = await verdict if isawaitable(verdict) else verdict
    if not isinstance(found, Verdict):
        raise ConfigError(
            f"{found!r:.80} is not a valid verdict of {where_defined(until)}; expected a Verdict",
            code="until",
            hint="return Verdict(stop=...), or put until.custom(...) around what gives a truth value",
        )
    return found


def _ended(frame: Frame, verdict: Verdict, output: object) -> object:
    x = frame.x
    _traced(frame, verdict)
    if x.run.store is None:
        x.run.journal.append(Decision(frame.path, "verdict", verdict))
    x.run.verdict = (frame.at, without_secrets(verdict.reason), "until_failed" if verdict.failed else "until")
    last = x.last_step
    if output is None and last is not None and last.tool_calls:
        raise NoOutput(
            f"the loop ended ({verdict.reason}) on a round of tool calls, which has no value",
            path=frame.path,
            hint="allow more rounds, or read result.items; on_error='result' gives the result without raising",
        )
    return output


def _traced(frame: Frame, verdict: Verdict) -> None:
    """Say on the loop's span why it ended."""
    span = frame.own_span
    if span is not None:
        fields = {"stop": verdict.stop, "reason": verdict.reason, "feedback": verdict.feedback}
        span.set_attributes({f"noetic.verdict.{name}": each for name, each in fields.items() if each is not None})


def _stopped(frame: Frame, output: object) -> object:
    _traced(frame, Verdict(True, "stop_loop"))
    value = frame.cut[0] if frame.cut is not None else frame.loop_stops[-1][0] if frame.loop_stops else None
    frame.x.run.verdict = (frame.at, "stop_loop", "stop_loop")
    return output if value is None else value


async def on_error(frame: Frame, ask: Callable[..., object] | None, error: Exception, iteration: int) -> OnError:
    """Ask what to do about a failed iteration; raises it when nothing else is to be done."""
    if ask is None:
        raise error
    key = f"on_error[{iteration}]"
    answer: object = recorded(frame, key)
    if answer is NOTHING:
        answer = await call_apart(frame, ask, as_error(frame, error), frame)
        decided(frame, key, answer)
    if answer not in ("retry", "skip", "abort"):
        raise ConfigError(
            f"on_error returned {answer!r}", code="loop", path=frame.at, hint='"retry", "skip" or "abort"'
        ) from error
    if answer == "abort":
        raise error
    message = error.message if isinstance(error, NoeticError) else str(error)
    log("steps", WARNING, "iteration %d failed, on_error says %s: %s", iteration, answer, message, where=frame.where)
    allowed: OnError = answer
    return allowed


async def _prepare(
    frame: Frame, prepare: Callable[..., object], output: object, verdict: Verdict, iteration: int
) -> object:
    key = f"next[{iteration}]"
    value = recorded(frame, key)
    if value is NOTHING:
        value = copy_value(await call_apart(frame, prepare, copy_value(output), verdict, frame))
        decided(frame, key, value)
    return value


async def run_every(value: object, frame: Frame) -> None:
    """Run the step again and again, at its times."""
    with Rounds(frame):
        await _go_on(frame)


async def _go_on(frame: Frame) -> None:
    spec: EverySpec = frame.step.spec
    runtime = frame.x.run.runtime
    wake = None if spec.wake is None else Inbox(frame, spec.wake, float("inf"))
    due = runtime.monotonic()
    at_once = False
    name = ""
    for tick in count():
        left = 0.0 if at_once else due - runtime.monotonic() + spec.jitter * (runtime.random() if spec.jitter else 0.0)
        await _rest(frame, max(0.0, left), wake, tick)
        at_once = False
        due = runtime.monotonic() + spec.interval
        if tick and frame.x.run.progress:
            forget_round(frame, name)
        log, name = frame.log.fork(), f"{spec.body.id}[{tick}]"
        branch = branch_at((*frame.at, name))
        log.origin = (frame.x.run_id, branch)
        scope = ContextScope(log, frame.state, branch, layer_states=frame.scope.layer_states)
        try:
            await execute(spec.body, None, frame, name, scope)
        except Exception as error:  # noqa: BLE001 # raised again unless on_error decides otherwise
            at_once = await on_error(frame, spec.on_error, error, tick) == "retry"
        if scope.layer_states is not frame.scope.layer_states:
            frame.put_layer_states(scope.layer_states)
        if frame.loop_stops:
            return


async def _rest(frame: Frame, seconds: float, wake: Inbox | None, tick: int) -> None:
    """Wait until it is time, or until the schedule is woken."""
    runtime = frame.x.run.runtime
    if wake is None:
        await runtime.sleep(seconds)
        return
    async with anyio.create_task_group() as group:
        group.start_soon(wake.interrupt, group.cancel_scope, tick)
        await runtime.sleep(seconds)
        group.cancel_scope.cancel()


KINDS = (
    Kind("loop", run_loop, composite=True, in_order=True, passes_on=True, rounds=True, stoppable=True, judged=True),
    Kind("every", run_every, composite=True, in_order=True, passes_on=True, firings=True, stoppable=True),
)
