"""Leave to call a tool, and the result of one that takes long: what a call waits for."""

from __future__ import annotations

import inspect
from typing import Any

from attrs import evolve, frozen

from noetic_py.context.step import Step
from noetic_py.core.items import FunctionCall
from noetic_py.engine.execute import execute
from noetic_py.engine.fingerprint import fingerprint_of
from noetic_py.engine.frame import Frame
from noetic_py.engine.kind import Kind
from noetic_py.engine.kinds.suspension import Request, answer_of, answer_to, check, not_stored
from noetic_py.engine.tool_arguments import Received, plain, rules_for
from noetic_py.errors import Rejected, RequestExpired, ToolArgumentsInvalid
from noetic_py.tools import Tool

__all__ = ["KINDS", "ONCE", "Wanted", "as_asked", "later_result", "may_ask", "once", "refused", "with_changed"]

# The work of a tool as a step of its own: one that takes long is not started twice, and one that may be done only once
# is marked so when no approval is needed any more.
START: Step[Any, Any, Any, Any] = Step(id="start", kind="work")
START_ONCE: Step[Any, Any, Any, Any] = Step(id="start", kind="work", replay="once")
ONCE: Step[Any, Any, Any, Any] = Step(id="work", kind="work", replay="once")
RESULT: Step[Any, Any, Any, Any] = Step(id="result", kind="result")


def once(step: Step[Any, Any, Any, Any], tool: Tool[..., Any, Any, Any]) -> Step[Any, Any, Any, Any]:
    """The work of a tool that may be done only once."""
    return step if tool.reconcile is None else evolve(step, reconcile=tool.reconcile)


_OTHER = "the tool would receive other arguments than those that were approved"


@frozen(eq=False)
class Wanted:
    """A call of a tool that is about to be made.

    Attributes:
        tool: The tool.
        call_id: The model's id of the call, empty where no model has made it.
        received: The call as the tool will receive it.
    """

    tool: Tool[..., Any, Any, Any]
    call_id: str
    received: Received

    @property
    def arguments(self) -> str:
        """What the tool will receive, as JSON text."""
        return self.received.call.arguments

    @property
    def plain(self) -> str:
        """The arguments as they were sent, as JSON text that is the same for the same ones, and for no others."""
        return plain(self.received.sent.arguments)

    def approval(self, why: str) -> Request:
        """What is asked: an answer holds for this call, these arguments and this code."""
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
        # Something else was sent by now, or a layer has changed it: that is asked about anew.
        return received
    again = received.changed(evolve(received.call, arguments=asked.arguments))
    if again.call.arguments != asked.arguments:
        return received
    return Received(received.tool, received.sent, received.given, again.values, again.call)


def may_ask(frame: Frame, tool: Tool[..., Any, Any, Any], asks: str | None) -> bool:
    """Whether anybody may have to give leave, which most calls never need."""
    return asks is not None or tool.needs_approval is not False or frame.node is not None


async def refused(frame: Frame, wanted: Wanted, asks: str | None) -> str | None:
    """Why a call is not to be made; `None` when it is: it needs no leave, or has it.

    Args:
        frame: The call's step.
        wanted: What is about to be done.
        asks: Why a layer wants it approved, `None` when none does.
    """
    if asks is None and not await _needs_approval(frame, wanted.tool, wanted.received.call):
        return None
    request = evolve(wanted.approval(asks or ""), rules=rules_for(frame, wanted.tool))
    try:
        answered = await answer_to(frame, request)
        asked = None if frame.node is None else frame.node.asked
        if answered.decision == "approved" and asked is not None and not wanted.is_what_was(asked[0].arguments):
            answered = await answer_to(frame, request, problem=_OTHER)
    except RequestExpired as error:
        return error.message
    return answered.reason if answered.decision == "rejected" else None


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
    except ToolArgumentsInvalid as error:
        request = evolve(wanted.approval(asks or ""), rules=rules_for(frame, wanted.tool))
        await answer_to(frame, request, problem=error.message)
        raise
    return Wanted(wanted.tool, wanted.call_id, received)


async def _needs_approval(frame: Frame, tool: Tool[..., Any, Any, Any], call: FunctionCall) -> bool:
    asked = frame.node is not None and frame.node.asked is not None and frame.node.asked[0].is_approval
    if asked or isinstance(tool.needs_approval, bool):
        # What was asked for once is needed, whatever a function would say of it now.
        return asked or bool(tool.needs_approval)
    needed = tool.needs_approval(call, frame.read_only())
    return bool(await needed if inspect.isawaitable(needed) else needed)


async def later_result(frame: Frame, wanted: Wanted) -> Any:
    """Start the work, unless that is done, and wait for its result.

    Raises:
        Rejected: The answer says that the work has failed.
        RequestExpired: It has not come in time.
    """
    # Before it begins: work whose result could not be given is not started.
    check(frame, "result")
    start = once(START_ONCE, wanted.tool) if wanted.tool.replay == "once" else START
    prompt_parts = await execute(start, wanted, frame, start.id)
    prompt = (
        prompt_parts if isinstance(prompt_parts, str) else "".join(getattr(part, "text", "") for part in prompt_parts)
    )
    return await execute(RESULT, (wanted, prompt), frame, RESULT.id)


async def run_result(value: tuple[Wanted, str], frame: Frame) -> Any:
    """Wait for the result: a step of its own, beside the leave to start."""
    wanted, prompt = value
    essence = [wanted.call_id, wanted.tool.name, wanted.plain]
    expires = wanted.tool.expires
    request = Request("result", essence, wanted.call_id, wanted.tool.name, wanted.arguments, prompt, expires=expires)
    answered = await answer_to(frame, request)
    if answered.decision == "rejected":
        raise Rejected(answered.reason, path=frame.at)
    return answered.value


KINDS = (Kind("result", run_result, declared=False, essence=None, dump=not_stored, load=answer_of),)
