"""A model round: an answer that is a recorded child, then the tools that it calls, concurrently."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from noetic_py.context.context import StepMeta
from noetic_py.context.step import frame as frame_name
from noetic_py.core.budget import NO_USAGE
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, ItemBase, Message, Refusal
from noetic_py.core.validation import admit_value
from noetic_py.engine.execute import execute, restore_log
from noetic_py.engine.frame import Frame
from noetic_py.engine.journaling.ledger import decided, holds_state, write_down, write_items_down
from noetic_py.engine.journaling.replay import NOTHING, recorded
from noetic_py.engine.kind import BodySegment, Kind, Node
from noetic_py.engine.kinds.flow import Path, first_of, run_paths
from noetic_py.engine.kinds.model_round import ANSWER, RoundRequest
from noetic_py.engine.kinds.output import OutputPlan, output_plan
from noetic_py.engine.kinds.tool import CALL, TOOL_CALL, RequestedCall
from noetic_py.engine.layers.handles import Live
from noetic_py.engine.layers.lifecycle import appended, is_guided, remember
from noetic_py.engine.merge import join_layer_states, join_states
from noetic_py.errors import CodecError, ConfigError, LayerError, ModelParseError, ModelRefused, ModelRetry, NoOutput
from noetic_py.steps.handoff import is_transfer, one_too_many
from noetic_py.steps.model import ModelSpec

if TYPE_CHECKING:
    from noetic_py.core.log import ItemLog
    from noetic_py.engine.state import Run
    from noetic_py.memory.layer import MemoryLayer
    from noetic_py.models.model import Model, ModelResponse
    from noetic_py.tools import Tool

__all__ = ["KINDS", "AvailableTools", "available_tools", "between_rounds", "input_items", "run_model", "unsaid"]


def input_items(value: Any, path: tuple[str, ...]) -> Sequence[Item]:
    """The items of a model step's input.

    Raises:
        ConfigError: It is no such input; code `"model-input"`.
        ForgedEvent: It holds what only a run makes.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return [Message.user(value)]
    admit_value(value, entry="input", path=path)
    if isinstance(value, ItemBase):
        return [value]  # type: ignore[list-item] # an Item, as every item class is one
    if _is_many(value):
        items: Sequence[Item] = value
        return items
    raise ConfigError(
        f"call_model got {type(value).__name__} as its input",
        code="model-input",
        path=path,
        hint="a text, a Message, a list of items, or None; put a step that makes one of these before it",
    )


def _is_many(value: object) -> bool:
    return isinstance(value, Sequence)


def unsaid(run: Run, log: ItemLog, items: Sequence[Item]) -> Sequence[Item]:
    """An input, or nothing of it when the conversation ends with it already.

    A run that has not completed leaves what the user said. When the next one begins by saying the same, it goes on from
    there instead of saying it twice.
    """
    at = run.asked
    if at is None or not items or log.size <= at:
        return items
    for index in range(log.size - 1, at, -1):
        origin = log.origin_of(index)
        if origin is not None and origin[0] == run.run_id and _is_said(log[index]):
            return items
    there = log[max(0, at + 1 - len(items)) : at + 1]
    same = len(there) == len(items) and all(_is_same(*pair) for pair in zip(there, items, strict=True))
    return () if same else items


def _is_said(item: Item) -> bool:
    return isinstance(item, FunctionCall) or (isinstance(item, Message) and item.role in ("user", "assistant"))


def _is_same(one: Item, other: Item) -> bool:
    """Whether two items say the same; the ids of items are made anew each time."""
    return type(one) is type(other) and evolve(one, id=other.id) == other


_NONE: Mapping[str, str] = {}


@frozen(eq=False)
class AvailableTools:
    """The tools of a round, by their names on the wire, and why some are withheld."""

    tools: Mapping[str, Tool[..., Any, Any, Any]]
    withheld: Mapping[str, str] = _NONE


async def available_tools(frame: Frame, spec: ModelSpec) -> AvailableTools:
    """One set by name on the wire: the step's own tools win over those of layers, and these over the harness's."""
    common = frame.x.run.resources.tools
    if not frame.x.layers:
        before: tuple[Any, AvailableTools] | None = spec.cache.get("offer")
        if before is not None and before[0] is common:
            return before[1]
    layers = _tool_layers(frame)
    theirs = [each for layer in layers for each in layer.offered()]
    given: tuple[Any, ...] = (*common, *_functions(frame), *theirs, *spec.tools)
    found: dict[str, Tool[..., Any, Any, Any]] = {}
    fixed = not frame.x.layers
    for each in given:
        if listing := hasattr(each, "tools"):
            fixed = False
        listed = await each.tools() if listing else (each,)
        for tool in listed:
            if is_transfer(tool) and any(getattr(own, "wire_name", None) == tool.wire_name for own in spec.tools):
                raise ConfigError(
                    f"a tool of the step and one of handoffs= have the name {tool.wire_name!r}",
                    code="handoff",
                    hint="rename the tool, or give the step that is handed over to another id",
                    path=frame.at,
                )
            found[tool.wire_name] = tool
    withheld = {name: why for layer in layers for name, why in layer.withheld().items()}
    made = AvailableTools(found, withheld)
    if fixed:
        # The same in each round, and in each run of the harness.
        spec.cache["offer"] = common, made
    return made


def _tool_layers(frame: Frame) -> Sequence[MemoryLayer[Any]]:
    """The layers of this execution that have a say in which tools are offered, as they are now."""
    layer_states = frame.scope.layer_states
    return [
        layer.bound(Live(frame, layer, reads=True)) for layer in frame.x.layers.tool_layers if layer.id in layer_states
    ]


def _functions(frame: Frame) -> Sequence[Tool[..., Any, Any, Any]]:
    """The functions of the layers that are in this execution."""
    layers = frame.x.layers
    if not layers.tools:
        return ()
    return [tool for tool in layers.tools if tool.name.partition("/")[0] in frame.scope.layer_states]


_KEY = "between"


async def between_rounds(frame: Frame) -> Sequence[Item]:
    """The messages that the conversation does not hold yet; none before a turn's first round."""
    run = frame.x.run
    if run.session is None or run.resources.steering is None or run.depth or not _is_conversation(frame):
        return ()
    known = recorded(frame, _KEY)
    if known is NOTHING:
        begun = frame.node is not None and frame.node.children
        if frame.x.last_step is None or begun:
            # A round that was answered before without them stays what it was.
            return ()
        known = await run.resources.steering(run.session)
    if not known:
        return ()
    there = {item.id for item in frame.log if isinstance(item, Message)}
    new = [item for item in known if item.id not in there]
    if new and recorded(frame, _KEY) is NOTHING:
        decided(frame, _KEY, new)
    return new


def _is_conversation(frame: Frame) -> bool:
    """Whether what the frame says is said in the turn's own conversation, and not in that of a path or a spawn."""
    top = frame
    while top.up is not None:
        top = top.up
    return frame.log is top.log


_MOST_GUIDES = 3
"""How often layers may have the model answer a round again."""


@frozen(eq=False)
class _Fit:
    """Whether an answer fits: its value, or what the model should mend."""

    value: Any = None
    problem: str | None = None
    error: Exception | None = None


async def run_model(value: Any, frame: Frame) -> Any:
    """Say what is new, and answer it; what was said stays, whatever becomes of the answer."""
    new = not _is_handed_on(frame, value)
    said = unsaid(frame.x.run, frame.log, input_items(value, frame.path))
    await _append(frame, [*said, *await between_rounds(frame)])
    said_to = frame.log.size
    if new and said_to != frame.mark and not holds_state(frame.up):
        write_down(frame)
    try:
        return await _answered(frame)
    except BaseException:
        # Bodies around have changed the state, which is not to be written for an answer that does not come.
        if new and frame.written < said_to:
            write_items_down(frame)
        raise


async def _answered(frame: Frame) -> Any:
    """Ask, run the tools, read the output; ask again while it does not fit."""
    spec: ModelSpec = frame.step.spec
    model = _model(frame, spec)
    offered = await available_tools(frame, spec)
    plan = _plan(spec)
    ask = RoundRequest(model, spec, offered.tools, None if plan is None else plan.schema, withheld=offered.withheld)
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
                # For hooks and predicates, the round has answered.
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


def _is_handed_on(frame: Frame, value: Any) -> bool:
    """Whether the input is the answer before it, which the conversation holds already."""
    last = frame.log[-1] if frame.log.size else None
    return isinstance(last, Message) and last.role == "assistant" and last.text == value


async def _append(frame: Frame, items: Sequence[Item]) -> None:
    """Put input into the conversation, as layers want it."""
    if items and frame.x.layers:
        items = await appended(frame, items)
    if items:
        frame.log.extend(items)


def _guided_too_often(frame: Frame, response: ModelResponse) -> LayerError:
    return LayerError(
        f"layers have asked for another answer {_MOST_GUIDES + 1} times; at last: {_text(response)}",
        layer="",
        hook="after_model_call",
        path=frame.path,
        hint="let after_model_call return Halt(reason) where guiding does not help, or say more clearly what is wrong",
    )


def _model(frame: Frame, spec: ModelSpec) -> Model:
    resources = frame.x.run.resources
    wanted = spec.model if spec.model is not None else resources.model
    if wanted is None:
        raise ConfigError(
            "there is no model: neither the step nor the harness has one",
            code="no-model",
            path=frame.path,
            hint='call_model("openai:gpt-5-mini") or Harness(model=...)',
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
    while node is not None and not (node.virtual and node.x.whole is node.x):
        if node.kind.judged or node.handover is not None:
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


async def _run_tools(frame: Frame, calls: tuple[FunctionCall, ...], ask: RoundRequest) -> Sequence[FunctionCallOutput]:
    """Run a round's calls, several at once; their outputs enter the conversation in the order of the calls."""
    tools = ask.tools
    called = [tools.get(call.name) for call in calls]
    transfers = [index for index, tool in enumerate(called) if is_transfer(tool)]
    for index, tool in enumerate(called):
        if index in transfers[1:] and tool is not None:
            called[index] = one_too_many(tool)
    paths = [
        Path(
            TOOL_CALL,
            RequestedCall(
                call, called[index], tuple(tools), ask.given.get(call.call_id), why=ask.withheld.get(call.name)
            ),
            f"{call.name if call.name in tools else 'tool'}[{index}]",
            seeded=False,
        )
        for index, call in enumerate(calls)
    ]
    most = ask.spec.max_parallel_tools or frame.x.run.resources.max_parallel_tools
    try:
        outcomes = await run_paths(frame, paths, "settle", most)
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
    written = [(path.name, outcomes.scopes[index]) for index, path in enumerate(paths)]
    if not all(scope.untouched for _, scope in written):
        join_states(frame.state, written, frame.path)
    if any(scope.layer_states is not frame.scope.layer_states for _, scope in written):
        frame.put_layer_states(join_layer_states(frame.scope.layer_states, written, frame.x.layers.by_id, frame.path))
    return outputs


def _in_call_order(layout: list[BodySegment | Node]) -> list[BodySegment | Node]:
    """A round's layout: its tool calls in the order of the answer, not of their arrival."""
    calls = [entry for entry in layout if isinstance(entry, Node) and entry.kind is CALL]
    if len(calls) < 2:
        return layout
    calls.sort(key=lambda entry: int(entry.name.rpartition("[")[2][:-1]))
    place = next(at for at, entry in enumerate(layout) if entry in calls)
    others = [entry for entry in layout if not (isinstance(entry, Node) and entry.kind is CALL)]
    return [*others[:place], *calls, *others[place:]]


def _recalled(node: Node) -> StepMeta:
    """What a finished round has left for the steps after it."""
    answers = [each for each in node.children.values() if each.kind.part and each.finished is not None]
    answer = max(answers, key=lambda each: each.position).finished if answers else None
    if answer is None:
        return StepMeta()
    calls = tuple(item for item in answer.items if isinstance(item, FunctionCall))
    if any(_is_answer(each) for each in node.children.values()):
        calls = ()
    return StepMeta(calls, answer.usage or NO_USAGE, answer.cost, answer.items)


def _is_answer(call: Node) -> bool:
    """Whether a call's output stands for the answer of its round."""
    items = () if call.finished is None or call.kind is not CALL else call.finished.items
    return any(isinstance(item, FunctionCallOutput) and item.final for item in items)


KINDS = (
    Kind(
        "model",
        run_model,
        counted=True,
        reported=False,
        at_once=True,
        skips=True,
        ordered=_in_call_order,
        meta=_recalled,
    ),
)
