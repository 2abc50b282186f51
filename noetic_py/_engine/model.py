"""What a model round does: an answer that is a recorded child, then the tools it calls, at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from noetic_py._engine.answer import ANSWER, Ask
from noetic_py._engine.between import between_rounds
from noetic_py._engine.execute import HANDLERS, execute, restore_log
from noetic_py._engine.flow import Path, first_of, run_paths
from noetic_py._engine.frame import Frame
from noetic_py._engine.memory import appended, is_guided, remember
from noetic_py._engine.merge import join_cells, join_states
from noetic_py._engine.offer import offer
from noetic_py._engine.output import OutputPlan, output_plan
from noetic_py._engine.tool import TOOL_CALL, Call
from noetic_py.admission import admit_value
from noetic_py.context import StepMeta
from noetic_py.errors import CodecError, ConfigError, LayerError, ModelParseError, ModelRefused, ModelRetry, NoOutput
from noetic_py.items import FunctionCall, FunctionCallOutput, Item, ItemBase, Message, Refusal
from noetic_py.steps.model import ModelSpec
from noetic_py.steps.step import frame as frame_name

if TYPE_CHECKING:
    from noetic_py.models.base import Model, ModelResponse

__all__ = ["run_model"]


_MOST_GUIDES = 3
"""How often layers may have the model answer a round again."""


@frozen(eq=False)
class _Fit:
    """Whether an answer fits: its value, or what the model should mend."""

    value: Any = None
    problem: str | None = None
    error: Exception | None = None


async def run_model(value: Any, frame: Frame) -> Any:
    """Ask, run the tools, read the output; ask again while it does not fit."""
    spec: ModelSpec = frame.step.spec
    await _append(frame, [*_input(frame, value), *await between_rounds(frame)])
    model = _model(frame, spec)
    offered = await offer(frame, spec)
    plan = _plan(spec)
    ask = Ask(model, spec, offered.tools, None if plan is None else plan.schema, withheld=offered.withheld)
    if spec.output_retries < 0:
        raise ConfigError("output_retries is below 0", code="call-model", path=frame.path)
    guided = 0
    for attempt in count():
        response: ModelResponse = await execute(ANSWER, ask, frame, frame_name("answer", attempt))
        if is_guided(response):
            guided += 1
            if guided <= _MOST_GUIDES:
                continue
            raise _guided_too_often(frame, response)
        await remember(frame, response, frame_name("memory[store]", attempt))
        calls = tuple(item for item in response.items if isinstance(item, FunctionCall))
        meta = _meta(frame, response, calls)
        if calls:
            answers = [output.text for output in await _run_tools(frame, calls, ask) if output.final]
            if answers:
                # For whoever judges the round it is one that has answered.
                frame.x.last_step = evolve(meta, tool_calls=())
                return await _final(frame, spec, plan, model, "\n".join(answers))
            frame.x.last_step = meta
            return _text(response) or None if plan is None and _text(response) else _no_value(frame)
        frame.x.last_step = meta
        _refuse(frame, response, model)
        fit = await _fit(spec, None if plan is None else plan.parse, _text(response))
        if fit.problem is None:
            return fit.value
        if attempt - guided >= spec.output_retries:
            raise ModelParseError(
                fit.problem,
                model=model.name,
                path=frame.path,
                hint="raise output_retries=, simplify the output type, or use a stronger model",
            ) from fit.error
        await _append(frame, [Message.user(f"{fit.problem}\nAnswer again.")])
    raise AssertionError


async def _append(frame: Frame, items: Sequence[Item]) -> None:
    """Put input into the conversation, as layers want it."""
    if items and frame.x.layers:
        items = await appended(frame, items)
    frame.log.extend(items)


def _guided_too_often(frame: Frame, response: ModelResponse) -> LayerError:
    return LayerError(
        f"layers have asked for another answer {_MOST_GUIDES + 1} times; at last: {_text(response)}",
        layer="",
        hook="after_model_call",
        path=frame.path,
        hint="let after_model_call return Halt(reason) where guiding does not help, or say more clearly what is wrong",
    )


def _input(frame: Frame, value: Any) -> Sequence[Item]:
    if value is None:
        return ()
    if isinstance(value, str):
        return [Message.user(value)]
    admit_value(value, entry="input", path=frame.path)
    if isinstance(value, ItemBase):
        return [value]  # type: ignore[list-item] # an Item, as every item class is one
    if _is_many(value):
        items: Sequence[Item] = value
        return items
    raise ConfigError(
        f"call_model got {type(value).__name__} as its input",
        code="model-input",
        path=frame.path,
        hint="a text, a Message, a list of items, or None; put a step that makes one of these before it",
    )


def _is_many(value: object) -> bool:
    return isinstance(value, Sequence)


def _model(frame: Frame, spec: ModelSpec) -> Model:
    resources = frame.x.run.resources
    wanted = spec.model if spec.model is not None else resources.model
    if wanted is None:
        raise ConfigError(
            "no model", code="no-model", path=frame.path, hint='call_model("openai:gpt-5-mini") or Harness(model=...)'
        )
    return resources.models(wanted) if isinstance(wanted, str) else wanted


def _plan(spec: ModelSpec) -> OutputPlan | None:
    if not spec.outputs:
        return None
    plan = spec.cache.get("plan")
    if plan is None:
        plan = spec.cache["plan"] = output_plan(spec.outputs)
    found: OutputPlan = plan
    return found


def _meta(frame: Frame, response: ModelResponse, calls: tuple[FunctionCall, ...]) -> StepMeta:
    last = frame.x.last_step
    # Of a wrapped model the answer tells the last call's usage, and run_answer has noted that of all.
    if last is None:
        return StepMeta(calls, items=response.items)
    return StepMeta(calls, last.usage, last.cost, response.items)


def _text(response: ModelResponse) -> str:
    return "".join(item.text for item in response.items if isinstance(item, Message))


def _no_value(frame: Frame) -> None:
    """A round of tool calls only: nothing inside a loop, an error outside."""
    node = frame.up
    while node is not None and not node.virtual:
        if node.step.kind == "loop":
            return
        node = node.up
    raise NoOutput(
        "the model called tools, so this round has no value",
        path=frame.path,
        hint="put call_model into loop(..., until=until.no_tool_calls())",
    )


def _refuse(frame: Frame, response: ModelResponse, model: Model) -> None:
    for item in response.items:
        if isinstance(item, Message):
            for part in item.content:
                if isinstance(part, Refusal):
                    raise ModelRefused(
                        f"the model refused: {part.refusal}",
                        model=model.name,
                        path=frame.path,
                        hint="rephrase the input",
                    )


async def _fit(spec: ModelSpec, parse: Callable[[str], Any] | None, text: str) -> _Fit:
    value: Any = text
    if parse is not None:
        try:
            value = parse(text)
        except CodecError as error:
            return _Fit(problem=error.message, error=error)
    if spec.validate is None:
        return _Fit(value)
    try:
        validated = spec.validate(value)
        return _Fit(await validated if inspect.isawaitable(validated) else validated)
    except ModelRetry as error:
        return _Fit(problem=error.message, error=error)


async def _final(frame: Frame, spec: ModelSpec, plan: OutputPlan | None, model: Model, text: str) -> Any:
    """The value of a round whose answer is the output of a tool, which no model puts into words."""
    fit = await _fit(spec, None if plan is None else plan.parse_output, text)
    if fit.problem is None:
        return fit.value
    raise ModelParseError(
        f"the output of a tool stands for the answer: {fit.problem}",
        model=model.name,
        path=frame.path,
        hint="skip_summary() only where the output is of the step's output type",
    ) from fit.error


async def _run_tools(frame: Frame, calls: tuple[FunctionCall, ...], ask: Ask) -> Sequence[FunctionCallOutput]:
    """Run a round's calls at once; their outputs enter the conversation in the order of the calls."""
    tools = ask.tools
    paths = [
        Path(
            TOOL_CALL,
            Call(
                call, tools.get(call.name), tuple(tools), ask.given.get(call.call_id), why=ask.withheld.get(call.name)
            ),
            f"{call.name if call.name in tools else 'tool'}[{index}]",
        )
        for index, call in enumerate(calls)
    ]
    try:
        outcomes = await run_paths(frame, paths, "settle")
    except BaseException as stop:
        if not isinstance(stop, Exception):
            # What finished calls gave is in the journal, and so it belongs into the conversation.
            restore_log(frame)
        raise
    failed = first_of(frame, paths, outcomes.errors)
    if failed is not None:
        raise outcomes.errors[failed]
    outputs: list[FunctionCallOutput] = []
    for index in range(len(calls)):
        output = outcomes.values[index]
        if isinstance(output, FunctionCallOutput):
            outputs.append(output)
    frame.log.extend(outputs)
    # They belong to the records of the calls, and are no segment of the round's own.
    frame.mark = frame.written = len(frame.log)
    domains = [outcomes.domains[index] for index in range(len(calls))]
    if not all(domain.untouched for domain in domains):
        join_states(frame.state, domains)
    if any(domain.cells is not frame.domain.cells for domain in domains):
        frame.put_cells(join_cells(frame.domain.cells, [each.cells for each in domains], frame.x.layers.by_id))
    return outputs


HANDLERS["model"] = run_model
