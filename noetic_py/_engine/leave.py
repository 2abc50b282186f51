"""Leave to call a tool, and the result of one that takes long: what a call waits for."""

from __future__ import annotations

import inspect
import json
from typing import Any

from attrs import frozen

from noetic_py._engine.execute import HANDLERS, execute
from noetic_py._engine.fingerprint import fingerprint_of
from noetic_py._engine.frame import Frame
from noetic_py._engine.suspension import Request, answer_to, check
from noetic_py.errors import Rejected, RequestExpired
from noetic_py.items import FunctionCall
from noetic_py.steps.step import Step
from noetic_py.tools import Tool

__all__ = ["ONCE", "Wanted", "later_result", "may_ask", "refused"]

# The work of a tool as a step of its own: one that takes long is not started twice, and one that may be done only once
# is marked so when nobody has to give leave any more.
START: Step[Any, Any, Any, Any] = Step(id="start", kind="work")
START_ONCE: Step[Any, Any, Any, Any] = Step(id="start", kind="work", replay="once")
ONCE: Step[Any, Any, Any, Any] = Step(id="work", kind="work", replay="once")
RESULT: Step[Any, Any, Any, Any] = Step(id="result", kind="result")


@frozen(eq=False)
class Wanted:
    """A call of a tool that is about to be made.

    Attributes:
        tool: The tool.
        call_id: The model's id of the call, empty where no model has made it.
        arguments: The arguments, as JSON text.
        values: The same as the function gets them.
    """

    tool: Tool[..., Any, Any, Any]
    call_id: str
    arguments: str
    values: dict[str, object]

    @property
    def plain(self) -> str:
        """The arguments as JSON text that is the same for the same arguments, and for no others."""
        return json.dumps(json.loads(self.arguments), sort_keys=True)

    def approval(self, why: str) -> Request:
        """What is asked: an answer holds for this call, these arguments and this code."""
        tool = self.tool
        essence = [self.call_id, tool.name, self.plain, fingerprint_of(tool)]
        return Request("approval", essence, self.call_id, tool.name, self.arguments, why, expires=tool.expires)


def may_ask(frame: Frame, tool: Tool[..., Any, Any, Any], asks: str | None) -> bool:
    """Whether anybody may have to give leave, which most calls never need."""
    return asks is not None or tool.needs_approval is not False or frame.node is not None


async def refused(frame: Frame, wanted: Wanted, call: FunctionCall, asks: str | None) -> str | None:
    """Why a call is not to be made; `None` when it is: it needs no leave, or has it.

    Args:
        frame: The call's step.
        wanted: What is about to be done.
        call: The call.
        asks: Why a layer wants somebody to approve it, `None` when none does.
    """
    if asks is None and not await _needs_leave(frame, wanted.tool, call):
        return None
    try:
        answered = await answer_to(frame, wanted.approval(asks or ""))
    except RequestExpired as error:
        return error.message
    return answered.reason if answered.decision == "rejected" else None


async def _needs_leave(frame: Frame, tool: Tool[..., Any, Any, Any], call: FunctionCall) -> bool:
    asked = frame.node is not None and frame.node.asked is not None and frame.node.asked[0].kind == "approval"
    if asked or isinstance(tool.needs_approval, bool):
        # What was asked for once is needed, whatever a function would say of it now.
        return asked or bool(tool.needs_approval)
    needed = tool.needs_approval(call, frame.read_only())
    return bool(await needed if inspect.isawaitable(needed) else needed)


async def later_result(frame: Frame, wanted: Wanted) -> Any:
    """Start the work, unless that is done, and wait for its result.

    Raises:
        Rejected: Whoever does the work says that it has failed.
        RequestExpired: It has not come in time.
    """
    # Before it begins: work whose result nobody could give is not started.
    check(frame, "result")
    start = START_ONCE if wanted.tool.replay == "once" else START
    told = await execute(start, wanted, frame, start.id)
    prompt = told if isinstance(told, str) else "".join(getattr(part, "text", "") for part in told)
    return await execute(RESULT, (wanted, prompt), frame, RESULT.id)


async def run_result(value: tuple[Wanted, str], frame: Frame) -> Any:
    """Wait for the result: a step of its own, beside the leave to start."""
    wanted, told = value
    essence = [wanted.call_id, wanted.tool.name, wanted.plain]
    expires = wanted.tool.expires
    request = Request("result", essence, wanted.call_id, wanted.tool.name, wanted.arguments, told, expires=expires)
    answered = await answer_to(frame, request)
    if answered.decision == "rejected":
        raise Rejected(answered.reason, path=frame.at)
    return answered.value


HANDLERS["result"] = run_result
