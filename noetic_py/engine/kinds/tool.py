"""Runs tool calls of models and steps, and their approval."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from logging import ERROR, INFO
from typing import Any

import anyio
from attrs import asdict, evolve, frozen

from noetic_py import errors
from noetic_py.context.hooks import Block
from noetic_py.context.protocol import CURRENT
from noetic_py.context.read import StepMeta
from noetic_py.context.step import NOT_DONE, AnyStep, Step
from noetic_py.context.step import frame as frame_name
from noetic_py.core.budget import NOTHING_USED
from noetic_py.core.codec.wire import MAX_ITEM_BYTES, check_size
from noetic_py.core.diagnostics import log
from noetic_py.core.events import Emitted, ToolFinished, ToolStarted
from noetic_py.core.items import FunctionCall, FunctionCallOutput, InputText
from noetic_py.core.state import LayerStates
from noetic_py.core.values import ATOMS, copy_value, is_array
from noetic_py.engine import hooks
from noetic_py.engine.body import call_apart
from noetic_py.engine.execute import execute
from noetic_py.engine.fingerprint import fingerprint_of
from noetic_py.engine.frame import Frame, failure_of, in_time, is_late, pause, resumed
from noetic_py.engine.journaling import ledger, replay
from noetic_py.engine.kind import BodySegment, Kind, Node
from noetic_py.engine.kinds.suspension import OTHER_ARGUMENTS, Request, answer_of, answer_to, check, with_room
from noetic_py.engine.layers.handles import Live
from noetic_py.engine.layers.lifecycle import after_tool_call, appended, before_tool_call, present
from noetic_py.engine.telemetry import describe_result, describe_tool, record_failure
from noetic_py.journal.records import JUDGING
from noetic_py.memory.layer import AnyLayer, answers
from noetic_py.memory.routing import inject_layer, is_routed, receipt, route, unrouted
from noetic_py.redaction import redact
from noetic_py.steps.handoff import is_handoff, is_transfer, undeclared
from noetic_py.steps.tool import ToolSpec, is_of_step
from noetic_py.tools import MISSING, RunBinding, render_output, set_run_binding
from noetic_py.tools.calls import Received, conceal, plain
from noetic_py.tools.definition import AnyTool

# The work of a tool as a step of its own: one that takes long is not started twice, and one that may be done only once
# is marked so when no approval is needed any more.
START: AnyStep = Step(id="start", kind="work")
START_ONCE: AnyStep = Step(id="start", kind="work", replay="once")
ONCE: AnyStep = Step(id="work", kind="work", replay="once")
RESULT: AnyStep = Step(id="result", kind="result")


def once(step: AnyStep, tool: AnyTool) -> AnyStep:
    """The work of a tool that may be done only once."""
    return step if tool.reconcile is None else evolve(step, reconcile=tool.reconcile)


@frozen(eq=False)
class Wanted:
    """A call of a tool that is about to be made.

    Attributes:
        tool: The tool.
        call_id: The model's id of the call, empty where no model has made it.
        received: The call as the tool will receive it.
    """

    tool: AnyTool
    call_id: str
    received: Received

    @property
    def arguments(self) -> str:
        """The arguments of the tool as JSON text."""
        return self.received.call.arguments

    @property
    def plain(self) -> str:
        """The arguments as they were sent, as JSON text that is the same for the same ones, and for no others."""
        return plain(self.received.sent.arguments)

    def approval(self, why: str) -> Request:
        """The essence of the request: an answer is for this call, these arguments and this code."""
        tool = self.tool
        essence = [self.call_id, tool.name, self.plain, fingerprint_of(tool)]
        return Request("approval", essence, self.call_id, tool.name, self.arguments, why, tool.parameters, tool.expires)

    def is_what_was(self, approved: str) -> bool:
        """Whether the tool will receive what a request has shown; that of an older version has shown what was sent."""
        return plain(approved) in (plain(self.arguments), self.plain)


def as_asked(frame: Frame, call_id: str, received: Received) -> Received:
    """A call that goes on after a request for it: with what that has shown, also where a default is new each time."""
    asked = None if frame.node is None or frame.node.asked is None else frame.node.asked[0]
    if asked is None or received.tool is None or asked.arguments == received.call.arguments:
        return received
    if Wanted(received.tool, call_id, received).approval("").digest != asked.digest:
        # The call has changed since, or a hook has changed it: approval is requested again.
        return received
    return received.as_shown(asked.arguments)


def may_ask(frame: Frame, tool: AnyTool, asks: str | None) -> bool:
    """Whether a call may need approval."""
    return asks is not None or tool.needs_approval is not False or frame.node is not None


async def refused(frame: Frame, wanted: Wanted, asks: str | None) -> str | None:
    """Why a call is refused; `None` when it needs no approval or has it.

    Args:
        frame: The call's step.
        wanted: What is about to be done.
        asks: Why a layer wants it approved, `None` when none does.
    """
    if asks is None and not await _needs_approval(frame, wanted.tool, wanted.received.call):
        return None
    request = evolve(wanted.approval(asks or ""), rules=_rules_for(frame, wanted.tool))
    try:
        answered = await answer_to(frame, request)
        asked = None if frame.node is None else frame.node.asked
        if answered.decision == "approved" and asked is not None and not wanted.is_what_was(asked[0].arguments):
            answered = await answer_to(frame, request, problem=OTHER_ARGUMENTS)
    except errors.RequestExpired as error:
        return error.message
    return answered.reason if answered.decision == "rejected" else None


def _rules_for(frame: Frame, tool: AnyTool) -> list[dict[str, object]] | None:
    """The rules of permission layers for a call's tool, so that an answer can be checked without the flow's code."""
    found: list[dict[str, object]] = []
    for layer in frame.x.layers.by_id.values():
        if answers(type(layer), "call_rules") and layer.id in frame.scope.layer_states:
            bound: AnyLayer = layer.bound(Live(frame, layer, reads=True))
            said = bound.call_rules()
            if said is not None:
                rules, otherwise = said
                found.append({"rules": [asdict(each) for each in rules], "otherwise": otherwise})
    return found or None


def _changed_arguments(frame: Frame, asked: Received) -> str | None:
    """The arguments that a call was approved with, as JSON text; `None` where the tool receives the same with them."""
    answer = None if frame.node is None else frame.node.answer
    if answer is None or answer.decision != "approved" or answer.arguments is None:
        return None
    other = Received(asked.tool, evolve(asked.sent, arguments=answer.arguments), asked.given)
    return None if plain(other.call.arguments) == plain(asked.call.arguments) else answer.arguments


def _with_changed_arguments(arguments: str, output: Any, *, made: bool = True) -> Any:
    """The output of a call that was approved with other arguments than the model's, so that the model knows of them.

    Args:
        arguments: What it was approved with.
        output: What came of it.
        made: Whether the tool was called.
    """
    what = "and was made with these" if made else "but was not made with these"
    note = redact(f"The call was approved with other arguments, {what}: {arguments}")
    return f"{note}\n{output}" if isinstance(output, str) else (InputText(text=note), *output)


async def with_changed(frame: Frame, wanted: Wanted, received: Received, asks: str | None) -> Wanted:
    """A call with the arguments that its approval has given; what the tool does not take is asked for anew.

    Args:
        frame: The call's step.
        wanted: The call as it was asked about.
        received: The call with the other arguments.
        asks: Why a layer wanted it approved.

    Raises:
        Waiting: The tool does not take them.
    """
    try:
        received.check()
    except errors.ToolArgumentsInvalid as error:
        request = evolve(wanted.approval(asks or ""), rules=_rules_for(frame, wanted.tool))
        await answer_to(frame, request, problem=error.message)
        raise
    return Wanted(wanted.tool, wanted.call_id, received)


async def _needs_approval(frame: Frame, tool: AnyTool, call: FunctionCall) -> bool:
    asked = frame.node is not None and frame.node.asked is not None and frame.node.asked[0].is_approval
    if asked or isinstance(tool.needs_approval, bool):
        # Approval that was requested once stays required, whatever a function returns now.
        return asked or bool(tool.needs_approval)
    needed = tool.needs_approval(call, frame.read_only())
    return bool(await needed if inspect.isawaitable(needed) else needed)


async def later_result(frame: Frame, wanted: Wanted) -> object:
    """Start the work, unless that is done, and wait for its result.

    Raises:
        Rejected: The answer says that the work has failed.
        RequestExpired: It has not come in time.
    """
    # Before it begins: work whose result could not be given is not started.
    check(frame, "result")
    start = once(START_ONCE, wanted.tool) if wanted.tool.replay == "once" else START
    prompt_parts = await execute(start, wanted, frame, start.id)
    if isinstance(prompt_parts, str):
        prompt = prompt_parts
    elif is_array(prompt_parts):
        prompt = "".join(getattr(part, "text", "") for part in prompt_parts)
    else:
        raise errors.CodecError(
            f"{prompt_parts!r:.60} is not a valid output of a tool; expected a text or parts of content",
            path=(*frame.at, start.id),
        )
    return await execute(RESULT, (wanted, prompt), frame, RESULT.id)


async def run_result(value: tuple[Wanted, str], frame: Frame) -> object:
    """Wait for the result of a long-running tool; a step of its own, after the approval."""
    wanted, prompt = value
    essence = [wanted.call_id, wanted.tool.name, wanted.plain]
    expires = wanted.tool.expires
    request = Request("result", essence, wanted.call_id, wanted.tool.name, wanted.arguments, prompt, expires=expires)
    answered = await answer_to(frame, request)
    if answered.decision == "rejected":
        raise errors.Rejected(answered.reason, path=frame.at)
    return answered.value


_APPROVAL_KINDS = (Kind("result", run_result, declared=False, digested=False, stored=False, load=answer_of),)


TOOL_CALL: AnyStep = Step(id="tool_call", kind="tool_call")
# No id of a user's can hold brackets, so no step of theirs has this place.
JUDGE: AnyStep = Step(id=JUDGING, kind="hook")


@frozen(eq=False)
class Judged:
    """What hooks and layers make of a call.

    Attributes:
        received: The call as they let it be made.
        asks: Why a layer wants it approved; `None` when none does.
        refusal: The text for the model in place of the call.
        output: The output that a hook gives in place of the tool's.
    """

    received: Received
    asks: str | None = None
    refusal: str | None = None
    output: FunctionCallOutput | None = None

    def stored(self, call: FunctionCall) -> list[object]:
        """What is recorded of it; `loaded` reads it."""
        sent, shown = self.received.sent.arguments, self.received.call.arguments
        return [
            None if sent == call.arguments else sent,
            None if shown == sent else shown,
            self.asks,
            self.refusal,
            self.output,
        ]

    @classmethod
    def loaded(cls, stored: Any, value: RequestedCall) -> Judged | None:
        """What is recorded for a call; `None` if the tool would receive something else than what was judged."""
        sent, shown, asks, refusal, output = stored
        call = value.call if sent is None else evolve(value.call, arguments=sent)
        shown = call.arguments if shown is None else shown
        # A default may be new each time.
        received = Received(value.tool, call, value.given).as_shown(shown)
        if refusal is None and output is None and received.call.arguments != shown and received.fits:
            return None
        return cls(received, asks, refusal, output)


@frozen(eq=False)
class RequestedCall:
    """A function call of an answer.

    Attributes:
        call: The call.
        tool: The tool it names, when there is one.
        known: The names of all tools.
        given: Its arguments, where `call` has masks.
        why: Why a tool that there is was not offered; `None` of an unknown tool.
        judged: What hooks and layers make of it, where they were asked before the round.
        before: The states of layers before these were asked about it; `None` where they were not yet.
        again: Whether these were asked about it before, in an earlier process.
    """

    call: FunctionCall
    tool: AnyTool | None
    known: tuple[str, ...]
    given: str | None = None
    why: str | None = None
    judged: Judged | None = None
    before: LayerStates | None = None
    again: bool = False

    @property
    def received(self) -> Received:
        """The call as the tool would receive it."""
        return Received(self.tool, self.call, self.given)


async def judge_all(frame: Frame, names: Sequence[str], calls: Sequence[RequestedCall]) -> Sequence[RequestedCall]:
    """Where layers have a say, ask hooks and layers about the calls of an answer before the first of them is made.

    One after the other, and each in a recorded step: what a layer keeps of a call is there for the next one, and a
    resumed run does not ask again.

    Args:
        frame: The model round.
        names: The frames of the calls.
        calls: The calls.
    """
    known = () if frame.node is None else frame.node.children
    if JUDGE.id not in known:
        if not frame.x.has_layers or not present(frame, "before_tool_call"):
            return calls
        if any(name in known for name in names):
            # An earlier release has begun the round, in which each call is judged in its own step.
            return calls
    return [await _judge(frame, call, frame_name(JUDGE.id, index)) for index, call in enumerate(calls)]


async def _judge(frame: Frame, value: RequestedCall, name: str) -> RequestedCall:
    before, found = frame.scope.layer_states, list[Judged]()

    async def work(below: Frame) -> object:
        below.source = below.find_source()._replace(call_id=value.call.call_id)
        found.append(await judge(below, value.received))
        return found[0].stored(value.call)

    stored = await execute(JUDGE, work, frame, name)
    judged = found[0] if found else Judged.loaded(stored, value)
    return evolve(value, judged=judged, before=before, again=not found)


async def judge(frame: Frame, received: Received, states: LayerStates | None = None) -> Judged:
    """Ask hooks, and then layers, what becomes of a call.

    Args:
        frame: The step in which they are asked.
        received: The call.
        states: For a call about which layers were asked before, their states of then.
    """
    made = await hooks.before_tool(frame, received) if _is_hooked(frame, received.tool) else received
    if isinstance(made, Block):
        return Judged(received, refusal=made.message)
    if isinstance(made, FunctionCallOutput):
        return Judged(received, output=made)
    answer = await before_tool_call(frame, made, states) if frame.x.has_layers else (made, None)
    return Judged(made, refusal=answer) if isinstance(answer, str) else Judged(*answer)


def _is_hooked(frame: Frame, tool: AnyTool | None) -> bool:
    """Whether there may be hooks for calls of a tool: any of the run's, or the tool's own."""
    return frame.x.run.dispatches_hooks or (tool is not None and bool(tool.hooks))


async def _judged_now(frame: Frame, judged: Judged, states: LayerStates) -> Judged:
    """What an earlier process has recorded, unless the rules of today are stricter."""
    if judged.refusal is not None or judged.output is not None:
        return judged
    answer = await before_tool_call(frame, judged.received, states, rules=True)
    if isinstance(answer, str):
        return evolve(judged, refusal=answer)
    return judged if answer[1] is None else evolve(judged, asks=judged.asks or answer[1])


async def run_tool_call(value: RequestedCall, frame: Frame) -> FunctionCallOutput:
    """Run a model's call; what goes wrong in it is its output, so that the model can do better."""
    call, bus = value.call, frame.x.run.bus
    frame.call_id, frame.source = call.call_id, None
    if frame.own_span is not None:
        arguments = call.arguments if frame.x.run.content else None
        describe_tool(frame.own_span, frame, call.name, value.tool, call.call_id, arguments)
    if bus.active:
        frame.publish(ToolStarted(frame.path, call))
    judged, before = value.judged, value.before or frame.scope.layer_states
    if judged is None:
        judged = await judge(frame, value.received, value.before)
    elif value.again:
        judged = await _judged_now(frame, judged, before)
    if judged.refusal is not None:
        return _blocked(frame, call, judged.refusal)
    failed = False
    if judged.output is not None:
        item = judged.output
    else:
        value = evolve(value, call=judged.received.sent, before=before)
        item, failed = await _output(frame, value, judged)
    item = await _as_wanted(frame, value, item)
    try:
        check_size(item)
    except errors.LimitExceeded as error:
        failed, item = True, FunctionCallOutput(call_id=item.call_id, output=_too_large(call.name, error))
    frame.log.append(item)
    _ended(frame, item, failed)
    if frame.cuts_short is not None:
        hooks.cut_after(frame)
    return item


def _ended(frame: Frame, item: FunctionCallOutput, failed: bool) -> None:
    """Say what a call has given, on its span and as an event."""
    run = frame.x.run
    if frame.own_span is not None and run.content:
        describe_result(frame.own_span, item)
    if run.bus.active:
        frame.publish(ToolFinished(frame.path, item, failed))


def _too_large(tool: str, error: errors.LimitExceeded) -> str:
    return f"tool {tool!r} failed: its output is too large, since the {error.message} bytes"


async def _output(frame: Frame, value: RequestedCall, judged: Judged) -> tuple[FunctionCallOutput, bool]:
    """Make the call; gives its output, and whether it has failed."""
    failed = False
    try:
        output = await _called(frame, value, judged)
        frame.x.whole.tool_failures.pop(value.call.name, None)
        frame.x.whole.tool_failures.pop(f"{value.call.name}()", None)
    except errors.ToolFailed as error:
        failed, output = True, str(error.message)
        _failed(frame, output, error.__cause__ or error)
        log("tools", ERROR, "%s", output, where=frame.where, error=error.__cause__ or error)
    except (errors.ToolError, errors.ModelRetry) as error:
        failed, output = True, _again(frame, value, error)
        _failed(frame, error.message, error)
        log("tools", INFO, "%s", error.message, where=frame.where)
    return FunctionCallOutput(call_id=value.call.call_id, output=output), failed


def _failed(frame: Frame, message: str, error: BaseException | None = None) -> None:
    """Record why a call failed: the model continues, and `noetic show` lists it."""
    frame.tool_error, frame.noted = message, True
    if frame.own_span is not None:
        record_failure(frame.own_span, error, message)


def _blocked(frame: Frame, call: FunctionCall, message: str) -> FunctionCallOutput:
    """A hook or a layer refuses the call; the model gets the reason."""
    item = FunctionCallOutput(call_id=call.call_id, output=message)
    _failed(frame, message)
    frame.log.append(item)
    if frame.x.run.bus.active:
        frame.publish(ToolFinished(frame.path, item, True))
    return item


async def _as_wanted(frame: Frame, value: RequestedCall, item: FunctionCallOutput) -> FunctionCallOutput:
    """An output as layers and hooks want the conversation to have it."""
    if frame.x.has_layers:
        item = await after_tool_call(frame, value.call, item)
    if _is_hooked(frame, value.tool):
        item = await hooks.after_tool(frame, value.call, item, value.tool)
    if not frame.x.has_layers:
        return item
    items = await appended(frame, [item])
    return next(each for each in items if isinstance(each, FunctionCallOutput) and each.call_id == item.call_id)


def _again(frame: Frame, value: RequestedCall, error: errors.ToolError | errors.ModelRetry) -> str:
    """Tell the model what to correct, up to the limit of retries.

    Raises:
        ToolError: The tool's `retries` are used up; the error itself, with the step's path.
    """
    failures = frame.x.whole.tool_failures
    # Failures of the function are counted apart from invalid arguments, which the model has corrected by now.
    name = value.call.name if frame.used_tool is None else f"{value.call.name}()"
    count, round_path = failures.get(name, (0, ()))
    above = frame.at[:-1]
    # Several failures of one round go to the model together, so they count once.
    if round_path != above:
        count += 1
    failures[name] = (count, above)
    if count > (1 if value.tool is None else value.tool.retries):
        if isinstance(error, errors.ToolError):
            raise error.at(frame.path)
        raise errors.ToolFailed(
            f"tool {value.call.name!r} asked for another try {count} times: {error.message}",
            tool=value.call.name,
            path=frame.path,
            hint="raise retries= of the tool, or make its message clearer",
        ) from error
    return f"{error.message}\n{error.hint}" if error.hint else error.message


async def _called(frame: Frame, value: RequestedCall, judged: Judged) -> Any:
    call, tool, received, asks = value.call, value.tool, judged.received, judged.asks
    if tool is None:
        raise errors.UnknownTool(
            f"there is no tool {call.name!r}" if value.why is None else f"there is no tool {call.name!r}: {value.why}",
            tool=call.name,
            path=frame.path,
            hint=f"the tools are {', '.join(value.known) or 'none'}",
        )
    # Before approval is requested: invalid arguments go back to the model.
    received.check()
    if frame.x.run.store is not None:
        received = as_asked(frame, call.call_id, received)
        _note_received(frame, received)
    wanted = Wanted(tool, call.call_id, received)
    refusal = await refused(frame, wanted, asks) if may_ask(frame, tool, asks) else None
    if refusal is not None:
        return f"The call was rejected: {refusal}" if refusal else "The call was rejected."
    changed = _changed_arguments(frame, wanted.received)
    if changed is None:
        return await _done(frame, wanted)
    made = await _rejudged(frame, wanted, value, asks, changed)
    if not isinstance(made, Wanted):
        return _with_changed_arguments(changed, made, made=False)
    try:
        return _with_changed_arguments(changed, await _done(frame, made))
    except (errors.ToolError, errors.ModelRetry) as error:
        error.message = _with_changed_arguments(changed, error.message)
        raise


async def _rejudged(
    frame: Frame, wanted: Wanted, value: RequestedCall, asks: str | None, arguments: str
) -> Wanted | Any:
    """The call with the arguments of its approval, as hooks and layers let it be made; or the text for the model."""
    received = Received(wanted.tool, evolve(value.call, arguments=arguments), value.given)
    judged = await judge(frame, received, value.before)
    if judged.refusal is not None:
        return judged.refusal
    if judged.output is not None:
        return judged.output.output
    return await with_changed(frame, wanted, judged.received, asks)


async def _done(frame: Frame, wanted: Wanted) -> object:
    """Do what was wanted, in the way in which its tool is called."""
    if wanted.tool.long_running:
        return await _result_of(frame, wanted)
    if wanted.tool.replay == "once":
        return await execute(once(ONCE, wanted.tool), wanted, frame, ONCE.id)
    return await run_work(wanted, frame)


def _note_received(frame: Frame, received: Received) -> None:
    """The journal says what the tool receives, where that is not what was sent."""
    text = received.call.arguments
    if plain(text) != plain(received.sent.arguments) and replay.recorded(frame, "arguments") != text:
        ledger.decided(frame, "arguments", text)


async def run_work(wanted: Wanted, frame: Frame) -> object:
    """Do what was wanted, and render what comes of it.

    Raises:
        CodecError: There is no JSON for it.
        ConfigError: It is a handoff, which a step may return, and a tool may not; code `"handoff"`.
        ToolFailed: It is larger than an item may be.
    """
    tool = wanted.tool
    await _count(frame, tool)
    try:
        resumed(frame)
        result = await call_tool(frame, tool, wanted.received.values)
        pause(frame)
    except errors.LimitExceeded as error:
        # The value of the step that the tool is made of.
        if error.what != "record size":
            raise
        raise errors.ToolFailed(_too_large(tool.name, error), tool=tool.name, path=frame.path) from error
    if result.__class__ not in ATOMS and is_handoff(result):
        if not is_transfer(tool):
            raise undeclared(frame.at, result)
        hooks.hand_over(frame, result)
        return f"Transferred to {result.step.id}."
    if (result is None or (isinstance(result, str) and not result)) and is_of_step(tool):
        return f"{tool.wire_name!r} has ended without an answer."
    return _rendered(frame, wanted, result)


_SURELY_FITS = MAX_ITEM_BYTES // 8
"""So many characters are an item that is small enough, whatever their form in JSON."""


def _rendered(frame: Frame, wanted: Wanted, result: object) -> object:
    tool = wanted.tool
    try:
        kept = result.__class__ not in ATOMS and is_routed(result)
        output = receipt(result) if kept else render_output(result, tool=tool.name)
        # Before it is in a journal: there it would be the end of the run, and of each that resumes it.
        if not isinstance(output, str) or len(output) > _SURELY_FITS:
            check_size(FunctionCallOutput(call_id=wanted.call_id or tool.name, output=output))
    except errors.CodecError as error:
        error.at(frame.path)
        raise
    except errors.LimitExceeded as error:
        raise errors.ToolFailed(_too_large(tool.name, error), tool=tool.name, path=frame.path) from error
    return output


async def _count(frame: Frame, tool: AnyTool) -> None:
    frame.lease.take_tool_call(tool.name)
    shared = frame.x.run.shared
    if shared is not None:
        counts = {"tool_calls": 1, f"per_tool:{tool.name}": 1}
        await with_room(frame, shared, partial(shared.start, counts))
    frame.used_tool = tool.name
    frame.noted = True


async def _result_of(frame: Frame, wanted: Wanted) -> str:
    """The output of a long-running tool for the model."""
    try:
        value = await later_result(frame, wanted)
    except errors.Rejected as error:
        return f"The work has failed: {error.reason}" if error.reason else "The work has failed."
    except errors.RequestExpired as error:
        return f"The work has no result: {error.message}"
    return value if isinstance(value, str) else json.dumps(value)


# Errors that are no failure of the tool itself: limits, wrong definitions, messages of the tool to the model.
_THROUGH = (
    errors.BudgetExceeded,
    errors.UnknownPrice,
    errors.LimitExceeded,
    errors.ConfigError,
    errors.CodecError,
    errors.InvalidEntry,
    errors.LogError,
    errors.CheckpointError,
    errors.ConcurrentStepCall,
    errors.StateTypeError,
    errors.ToolError,
    errors.ModelRetry,
)


async def call_tool(frame: Frame, tool: AnyTool, values: dict[str, object]) -> object:
    """Run a tool's function with injected services, under its timeout.

    Raises:
        ToolFailed: It raised, or took too long.
    """
    kept = False

    async def emit(value: object) -> None:
        nonlocal kept
        kept = await _keep(frame, value) or kept
        if frame.x.run.bus.active:
            frame.publish(Emitted(frame.path, value))
            await frame.x.run.bus.wait_for_space()

    if frame.x.run.timed:
        # The checks of the call may have used up the time without an await.
        await in_time()
    try:
        work = tool.call(values, ctx=frame, inject=_injector(frame), emit=emit)
        result: Any = await (work if tool.timeout is None else _within(tool.timeout, work, frame, tool))
        if kept:
            # Each entry of a generator was stored before the generator went on.
            return unrouted(result)
        if await _keep(frame, result) and frame.x.run.bus.active:
            frame.publish(Emitted(frame.path, result))
        return result
    except BaseException as raised:
        failed = _failed_in(frame, tool, raised)
        if failed is raised:
            raise
        raise failed from raised


async def _within(seconds: float, work: Awaitable[object], frame: Frame, tool: AnyTool) -> object:
    """The result of a tool's function, within its timeout."""
    frame.x.run.has_deadline()
    with anyio.move_on_after(seconds) as cancel_scope:
        result = await work
        if not is_late(cancel_scope):
            return result
    raise errors.ToolFailed(
        f"tool {tool.wire_name!r} took longer than {seconds:g} s", tool=tool.wire_name, path=frame.path
    )


def _failed_in(frame: Frame, tool: AnyTool, raised: BaseException) -> BaseException:
    """The error that a call raises for an exception of its function: the exception itself, or a tool failure."""
    if isinstance(raised, _THROUGH):
        if isinstance(raised, errors.ToolError) and not raised.tool:
            raised.tool = tool.wire_name
        return raised
    error = failure_of(raised)
    if error is None:
        return raised
    what = error.message if isinstance(error, errors.NoeticError) else f"{type(error).__name__}: {error}"
    return errors.ToolFailed(f"tool {tool.wire_name!r} failed: {what}", tool=tool.wire_name, path=frame.path)


async def _keep(frame: Frame, value: object) -> bool:
    """Put an entry that a tool gives into the queue or the pool of the run; says whether it was one."""
    return value.__class__ not in ATOMS and is_routed(value) and await route(frame.memory, value, where=frame.path)


def _injector(frame: Frame) -> Any:
    services = frame.x.services

    def inject(name: str, kind: type[object]) -> object:
        found = services.get(kind, MISSING)
        return inject_layer(frame.memory, name, kind) if found is MISSING and frame.x.has_layers else found

    return inject


async def run_tool_step(value: object, frame: Frame) -> object:
    """`call_tool` as a step: its value is the function's own."""
    spec: ToolSpec = frame.step.spec
    tool = spec.tool
    if frame.own_span is not None:
        describe_tool(frame.own_span, frame, tool.wire_name, tool)
    try:
        args, values = await spec.arguments_of(value)
    except errors.ToolArgumentsInvalid as error:
        error.at(frame.path)
        raise
    if tool.long_running or may_ask(frame, tool, None):
        output = await _waited_for(frame, tool, args, values)
    else:
        output = await _made(frame, tool, values)
    frame.x.last_step = StepMeta()
    return copy_value(output)


async def _made(frame: Frame, tool: AnyTool, values: dict[str, object]) -> object:
    await _count(frame, tool)
    return await call_tool(frame, tool, values)


async def _waited_for(frame: Frame, tool: AnyTool, args: object, values: dict[str, object]) -> object:
    """Make a call that may need approval, or whose result comes later.

    Raises:
        Rejected: It was not approved.
    """
    wanted = _wanted(frame, tool, args, values)
    refusal = await refused(frame, wanted, None)
    if refusal is not None:
        raise errors.Rejected(refusal, path=frame.path)
    changed = _changed(frame, wanted)
    if changed is not None:
        wanted = await with_changed(frame, wanted, changed, None)
    return await (later_result(frame, wanted) if tool.long_running else _made(frame, tool, wanted.received.values))


def _wanted(frame: Frame, tool: AnyTool, args: object, values: dict[str, object]) -> Wanted:
    call = FunctionCall(name=tool.wire_name, arguments=json.dumps(args, default=repr))
    call = conceal(call, tool.secret_parameters)
    return Wanted(tool, "", as_asked(frame, "", Received(tool, call, values=values)))


def _changed(frame: Frame, wanted: Wanted) -> Received | None:
    """The call with the arguments that its approval has given, where these are others."""
    changed = _changed_arguments(frame, wanted.received)
    return None if changed is None else Received(wanted.tool, evolve(wanted.received.sent, arguments=changed))


async def reconcile_work(frame: Frame, wanted: Wanted) -> object:
    """The outcome of a model's tool call that was started before; `NOT_DONE` if it has to be made."""
    result = await _reconciled(frame, wanted.tool, wanted.received)
    return result if result is NOT_DONE else _rendered(frame, wanted, result)


async def reconcile_step(frame: Frame, value: object) -> object:
    """The outcome of a tool step's call that was started before; `NOT_DONE` if it has to be made."""
    spec: ToolSpec = frame.step.spec
    if frame.step.reconcile is not spec.tool.reconcile:
        return await replay.ask_step(frame, value)
    wanted = _wanted(frame, spec.tool, *await spec.arguments_of(value))
    return await _reconciled(frame, spec.tool, _changed(frame, wanted) or wanted.received)


async def _reconciled(frame: Frame, tool: AnyTool, received: Received) -> object:
    if tool.reconcile is None:
        return NOT_DONE
    result = await call_apart(frame, tool.reconcile, copy_value(received.values), frame.read_only())
    if result is NOT_DONE:
        return result
    # It was made, and its process ended before it could say so.
    frame.lease.recover(NOTHING_USED, 0, tool.name)
    frame.used_tool, frame.noted = tool.name, True
    return result


def _binding() -> RunBinding | None:
    """Where a tool that is called like a function from a step's body finds its run."""
    frame = CURRENT.get()
    return RunBinding(frame, _injector(frame)) if isinstance(frame, Frame) else None


set_run_binding(_binding)


def _called_with(value: RequestedCall) -> list[str]:
    return [value.call.call_id, value.call.name, value.call.arguments]


def _work_on(wanted: Wanted) -> list[str]:
    # Whichever call of the model's it is: a round that is tried again has other ones.
    return [wanted.tool.name, wanted.plain]


def _outputs(node: Node) -> Iterator[BodySegment]:
    """Return the output of a tool call for the conversation; other items that the tool wrote stay on its own path."""
    if node.finished is not None:
        outputs = [item for item in node.finished.items[-1:] if isinstance(item, FunctionCallOutput)]
        yield BodySegment(tuple(outputs))


def _output_of(node: Node, codec: object) -> object:
    return None if node.finished is None or not node.finished.items else node.finished.items[-1]


CALL = Kind(
    "tool_call",
    run_tool_call,
    declared=False,
    apart=True,
    essence=_called_with,
    stored=False,
    load=_output_of,
    left=_outputs,
)
KINDS = (
    *_APPROVAL_KINDS,
    CALL,
    Kind("tool", run_tool_step, counted=True, written=True, reconcile=reconcile_step),
    Kind("work", run_work, declared=False, essence=_work_on, reconcile=reconcile_work),
)
