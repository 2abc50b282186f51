"""`call_tool`: a tool as a step. `step_tool`: a step as a tool."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, overload

from attrs import frozen

from noetic_py.context.context import AnyContext, Context
from noetic_py.context.step import AnyStep, Spec, Step, check_id, function_of, require_step
from noetic_py.core.diagnostics import where_defined
from noetic_py.core.types import M, R, S, T, annotations_of
from noetic_py.core.values import copy_value
from noetic_py.errors import ConfigError, ToolFailed
from noetic_py.tools import Tool, make_tool
from noetic_py.tools.definition import AnyTool


@frozen(eq=False)
class ToolSpec(Spec):
    """A tool step's parts; see [`call_tool`][noetic_py.call_tool]."""

    tool: AnyTool
    args: Mapping[str, object] | Callable[[Any], Mapping[str, object]]

    async def arguments_of(self, value: object) -> tuple[Mapping[str, object], dict[str, object]]:
        """The arguments of a call with an input, as they are given and as the function gets them.

        Raises:
            ToolArgumentsInvalid: They do not fit.
        """
        args: Any = self.args(copy_value(value)) if callable(self.args) else self.args
        if inspect.isawaitable(args):
            args = await args
        return args, self.tool.parse(copy_value(args), explicit=True)


@overload
def call_tool(
    tool: Tool[..., Awaitable[R], M, S], /, *, args: Mapping[str, object], id: str | None = None
) -> Step[object, R, M, S]: ...
@overload
def call_tool(
    tool: Tool[..., Awaitable[R], M, S], /, *, args: Callable[[T], Mapping[str, object]], id: str | None = None
) -> Step[T, R, M, S]: ...
@overload
def call_tool(
    tool: Tool[..., R, M, S], /, *, args: Mapping[str, object], id: str | None = None
) -> Step[object, R, M, S]: ...
@overload
def call_tool(
    tool: Tool[..., R, M, S], /, *, args: Callable[[T], Mapping[str, object]], id: str | None = None
) -> Step[T, R, M, S]: ...
def call_tool(tool: AnyTool, /, *, args: object, id: str | None = None) -> Any:
    """Call a tool from a flow, without a model; the output is the function's own value.

    Args:
        tool: The tool.
        args: Its arguments, or a function of the step's input that gives them; checked like a model's.
        id: The step's id, the tool's name when left out.

    Raises:
        ConfigError: The first argument is not a tool; code `"call-tool"`.
        ToolArgumentsInvalid: While running: the arguments do not fit.
        ToolFailed: While running: the function raised.
    """
    called: AnyTool = tool
    given: Any = args
    if not _is(tool, Tool):
        raise ConfigError(
            f"{where_defined(tool)} is not a valid tool for call_tool; expected a function with @tool",
            code="call-tool",
            hint="put @tool on the function",
        )
    if not _is(args, Mapping) and not callable(args):
        raise ConfigError(
            f"args={args!r} is neither a mapping nor a function", code="call-tool", hint='args={"name": ...}'
        )
    made: AnyStep = Step(
        id=check_id(id) if id is not None else called.wire_name,
        kind="tool",
        spec=ToolSpec(called, given),
        counted=True,
        # Only the start of a long-running tool may happen once, and that is a step of its own.
        replay="repeatable" if called.long_running else called.replay,
        reconcile=None if called.long_running else called.reconcile,
        named=id is not None,
    )
    return made


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind)


def step_tool(
    step: Step[T, R, M, S], *, name: str, description: str, input_type: type[T] | None = None
) -> Tool[[T], Awaitable[R], M, S]:
    """Make a tool of a step, so that a model can call it; spawn the step to give it a conversation of its own.

    A call with an empty input does not run the step; the model gets a message. It also gets one when the step returns
    nothing, neither a value nor a text.

    Args:
        step: The step.
        name: What the model calls it.
        description: What the model reads about it.
        input_type: The type of its input; of a code step its annotation, otherwise `str`, when left out.

    Raises:
        ConfigError: Something that is not a step, or a name that providers do not take.
    """
    inner = require_step(step, "step_tool")
    wanted = input_type if input_type is not None else input_type_of(inner)

    async def run(ctx: AnyContext, input: object) -> Any:
        if isinstance(input, str) and not input.strip():
            raise ToolFailed("The request cannot be empty.", tool=name, path=ctx.path)
        return await inner(input, ctx)

    run.__annotations__ = {"ctx": Context, "input": wanted}
    # Fingerprints use the step, and not this function.
    vars(run)["step"] = inner
    made: Tool[[T], Awaitable[R], M, S] = make_tool(run, {"name": name, "description": description})
    return made


def is_of_step(tool: AnyTool) -> bool:
    """Whether `step_tool` has made the tool."""
    return "step" in getattr(tool.fn, "__dict__", ())


def input_type_of(step: AnyStep) -> object:
    """The type of a step's input as a model is to send it: of a code step its annotation, otherwise `str`.

    Raises:
        ConfigError: The annotation names something that does not exist; code `"step-tool"`.
    """
    function = function_of(step)
    if function is not None:
        first = next(iter(inspect.signature(function).parameters.values()), None)
        if first is not None and first.annotation is not first.empty:
            hints = annotations_of(function)
            if first.name not in hints:
                raise ConfigError(
                    f"the input type of {step!r} is not known: {first.annotation!r} cannot be evaluated",
                    code="step-tool",
                    hint="step_tool(..., input_type=...)",
                )
            return hints[first.name]
    entry = step.spec.entry() if isinstance(step.spec, Spec) and step.spec.typed_by_entry else None
    return str if entry is None else input_type_of(entry)
