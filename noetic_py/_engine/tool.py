"""What a tool call does, whether a model or a step makes it."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import anyio
from attrs import evolve, frozen

from noetic_py._engine.execute import HANDLERS, execute
from noetic_py._engine.frame import Frame
from noetic_py._engine.hooked import after_tool, before_tool
from noetic_py._engine.leave import ONCE, Wanted, later_result, may_ask, refused
from noetic_py._engine.memory import after_tool_call, appended, before_tool_call
from noetic_py.context import CURRENT, StepMeta
from noetic_py.errors import (
    BudgetExceeded,
    CheckpointError,
    CodecError,
    ConcurrentStepCall,
    ConfigError,
    InvalidEntry,
    LimitExceeded,
    LogError,
    ModelRetry,
    NoeticError,
    Rejected,
    RequestExpired,
    StateTypeError,
    ToolArgumentsInvalid,
    ToolError,
    ToolFailed,
    UnknownPrice,
    UnknownTool,
)
from noetic_py.events import Emitted, ToolFinished, ToolStarted
from noetic_py.hooks import Block
from noetic_py.items import FunctionCall, FunctionCallOutput
from noetic_py.memory.routing import inject_layer, is_routed, receipt, route, unrouted
from noetic_py.steps.handoff import is_handoff, undeclared
from noetic_py.steps.step import Step
from noetic_py.steps.tool import ToolSpec, is_of_step
from noetic_py.tools import MISSING, RunBinding, render_output, set_run_binding
from noetic_py.tools.confidential import conceal, restored

if TYPE_CHECKING:
    from noetic_py.tools import Tool

__all__ = ["TOOL_CALL", "Call"]

TOOL_CALL: Step[Any, Any, Any, Any] = Step(id="tool_call", kind="tool_call")


@frozen(eq=False)
class Call:
    """A function call of an answer, the tool it names, when there is one, and its arguments where it has masks."""

    call: FunctionCall
    tool: Tool[..., Any, Any, Any] | None
    known: tuple[str, ...]
    given: str | None = None
    # Why a layer wants somebody to approve it; `None` when none does.
    asks: str | None = None
    # Why a tool that there is was not offered; `None` of what nobody knows.
    why: str | None = None


async def run_tool_call(value: Call, frame: Frame) -> FunctionCallOutput:
    """Run a model's call; what goes wrong in it is its output, so that the model can do better."""
    call, bus = value.call, frame.x.run.bus
    frame.call_id, frame.source = call.call_id, None
    if bus.active:
        frame.tell(ToolStarted(frame.path, call))
    made = await before_tool(frame, call, value.tool)
    if isinstance(made, Block):
        return _blocked(frame, call, made.message)
    failed = False
    if isinstance(made, FunctionCallOutput):
        item = made
    else:
        value = evolve(value, call=made)
        if frame.x.layers:
            answer = await before_tool_call(frame, made)
            if isinstance(answer, str):
                return _blocked(frame, call, answer)
            value = evolve(value, call=answer[0], asks=answer[1])
        item, failed = await _output(frame, value)
    item = await _as_wanted(frame, value, item)
    frame.log.append(item)
    if bus.active:
        frame.tell(ToolFinished(frame.path, item, failed))
    return item


async def _output(frame: Frame, value: Call) -> tuple[FunctionCallOutput, bool]:
    """Make the call; gives its output, and whether it has failed."""
    failed = False
    try:
        output = await _called(frame, value)
        frame.x.tool_failures.pop(value.call.name, None)
    except ToolFailed as error:
        failed, output = True, str(error.message)
    except (ToolError, ModelRetry) as error:
        failed, output = True, _again(frame, value, error)
    return FunctionCallOutput(call_id=value.call.call_id, output=output), failed


def _blocked(frame: Frame, call: FunctionCall, message: str) -> FunctionCallOutput:
    """A hook or a layer does not let the call be made: the model is told so."""
    item = FunctionCallOutput(call_id=call.call_id, output=message)
    frame.log.append(item)
    if frame.x.run.bus.active:
        frame.tell(ToolFinished(frame.path, item, True))
    return item


async def _as_wanted(frame: Frame, value: Call, item: FunctionCallOutput) -> FunctionCallOutput:
    """An output as layers and hooks want the conversation to have it."""
    if frame.x.layers:
        item = await after_tool_call(frame, value.call, item)
    item = await after_tool(frame, value.call, item, value.tool)
    if not frame.x.layers:
        return item
    items = await appended(frame, [item])
    return next(each for each in items if isinstance(each, FunctionCallOutput) and each.call_id == item.call_id)


def _again(frame: Frame, value: Call, error: ToolError | ModelRetry) -> str:
    """Tell the model what to mend, unless it was told often enough.

    Raises:
        ToolError: The tool's `retries` are used up; the error itself, with the step's path.
    """
    failures = frame.x.tool_failures
    count, round_path = failures.get(value.call.name, (0, ()))
    above = frame.at[:-1]
    # Several calls of one round are told to the model at once, so they count once.
    if round_path != above:
        count += 1
    failures[value.call.name] = (count, above)
    if count > (1 if value.tool is None else value.tool.retries):
        if isinstance(error, ToolError):
            raise error.at(frame.path)
        raise ToolFailed(
            f"tool {value.call.name!r} asked for another try {count} times: {error.message}",
            tool=value.call.name,
            path=frame.path,
            hint="raise retries= of the tool, or make its message clearer",
        ) from error
    return f"{error.message}\n{error.hint}" if error.hint else error.message


async def _called(frame: Frame, value: Call) -> Any:
    call, tool = value.call, value.tool
    if tool is None:
        raise UnknownTool(
            f"there is no tool {call.name!r}" if value.why is None else f"there is no tool {call.name!r}: {value.why}",
            tool=call.name,
            path=frame.path,
            hint=f"the tools are {', '.join(value.known) or 'none'}",
        )
    sent = call.arguments if value.given is None else restored(call.arguments, value.given, tool.secret_parameters)
    values = tool.parse(sent)
    wanted = Wanted(tool, call.call_id, call.arguments, values)
    refusal = await refused(frame, wanted, call, value.asks) if may_ask(frame, tool, value.asks) else None
    if refusal is not None:
        return f"The call was rejected: {refusal}" if refusal else "The call was rejected."
    if tool.long_running:
        return await _result_of(frame, wanted)
    if tool.replay == "once":
        return await execute(ONCE, wanted, frame, ONCE.id)
    return await run_work(wanted, frame)


async def run_work(wanted: Wanted, frame: Frame) -> Any:
    """Do what was wanted, and render what comes of it.

    Raises:
        CodecError: There is no JSON for it.
        ConfigError: It is a handoff, which a step may return, and a tool may not; code `"handoff"`.
    """
    tool = wanted.tool
    _count(frame, tool)
    result = await call_tool(frame, tool, wanted.values)
    if is_handoff(result):
        raise undeclared(frame.at, result)
    if (result is None or (isinstance(result, str) and not result)) and is_of_step(tool):
        return f"{tool.name!r} has ended without an answer."
    try:
        return receipt(result) if is_routed(result) else render_output(result, tool=tool.name)
    except CodecError as error:
        error.at(frame.path)
        raise


def _count(frame: Frame, tool: Tool[..., Any, Any, Any]) -> None:
    frame.lease.take_tool_call(tool.name)
    frame.used_tool = tool.name
    frame.noted = True


async def _result_of(frame: Frame, wanted: Wanted) -> str:
    """What a tool that takes long comes to, as the model is told it."""
    try:
        value = await later_result(frame, wanted)
    except Rejected as error:
        return f"The work has failed: {error.reason}" if error.reason else "The work has failed."
    except RequestExpired as error:
        return f"The work has no result: {error.message}"
    return value if isinstance(value, str) else json.dumps(value)


# What is no failure of the tool's own: limits, wrong definitions, what the tool wants the model to know.
_THROUGH = (
    BudgetExceeded,
    UnknownPrice,
    LimitExceeded,
    ConfigError,
    CodecError,
    InvalidEntry,
    LogError,
    CheckpointError,
    ConcurrentStepCall,
    StateTypeError,
    ToolError,
    ModelRetry,
)


async def call_tool(frame: Frame, tool: Tool[..., Any, Any, Any], values: dict[str, object]) -> object:
    """Run a tool's function with injected services, under its timeout.

    Raises:
        ToolFailed: It raised, or took too long.
    """
    kept = False

    async def emit(value: object) -> None:
        nonlocal kept
        kept = await _keep(frame, value) or kept
        if frame.x.run.bus.active:
            frame.tell(Emitted(frame.path, value))
            await frame.x.run.bus.room()

    try:
        with anyio.move_on_after(tool.timeout):
            result: Any = await tool.call(values, ctx=frame, inject=_injector(frame), emit=emit)
            if kept:
                # Of a generator each entry was kept before it went on.
                return unrouted(result)
            if await _keep(frame, result) and frame.x.run.bus.active:
                frame.tell(Emitted(frame.path, result))
            return result
    except _THROUGH:
        raise
    except Exception as error:
        what = error.message if isinstance(error, NoeticError) else f"{type(error).__name__}: {error}"
        raise ToolFailed(f"tool {tool.name!r} failed: {what}", tool=tool.name, path=frame.path) from error
    raise ToolFailed(f"tool {tool.name!r} took longer than {tool.timeout:g} s", tool=tool.name, path=frame.path)


async def _keep(frame: Frame, value: object) -> bool:
    """Put an entry that a tool gives into the queue or the pool of the run; says whether it was one."""
    return is_routed(value) and await route(frame.memory, value, where=frame.path)


def _injector(frame: Frame) -> Any:
    services = frame.x.services

    def inject(name: str, kind: type[Any]) -> object:
        found = services.get(kind, MISSING)
        return inject_layer(frame.memory, name, kind) if found is MISSING and frame.x.layers else found

    return inject


async def run_tool_step(value: Any, frame: Frame) -> Any:
    """`call_tool` as a step: its value is the function's own."""
    spec: ToolSpec = frame.step.spec
    tool = spec.tool
    args = spec.args(value) if callable(spec.args) else spec.args
    if inspect.isawaitable(args):
        args = await args
    try:
        values = tool.parse(args, explicit=True)
    except ToolArgumentsInvalid as error:
        error.at(frame.path)
        raise
    if tool.long_running or may_ask(frame, tool, None):
        output = await _waited_for(frame, tool, args, values)
    else:
        output = await _made(frame, tool, values)
    frame.x.last_step = StepMeta()
    return output


async def _made(frame: Frame, tool: Tool[..., Any, Any, Any], values: dict[str, object]) -> object:
    _count(frame, tool)
    return await call_tool(frame, tool, values)


async def _waited_for(frame: Frame, tool: Tool[..., Any, Any, Any], args: object, values: dict[str, object]) -> object:
    """Make a call that may need somebody's leave, or whose result comes later.

    Raises:
        Rejected: Whoever was asked does not want it.
    """
    call = FunctionCall(name=tool.wire_name, arguments=json.dumps(args, default=repr))
    call = conceal(call, tool.secret_parameters)
    wanted = Wanted(tool, "", call.arguments, values)
    refusal = await refused(frame, wanted, call, None)
    if refusal is not None:
        raise Rejected(refusal, path=frame.path)
    return await (later_result(frame, wanted) if tool.long_running else _made(frame, tool, values))


def _binding() -> RunBinding | None:
    """Where a tool that is called like a function from a step's body finds its run."""
    frame = CURRENT.get()
    return RunBinding(frame, _injector(frame)) if isinstance(frame, Frame) else None


set_run_binding(_binding)
HANDLERS["tool_call"] = run_tool_call
HANDLERS["tool"] = run_tool_step
HANDLERS["work"] = run_work
