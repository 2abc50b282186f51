"""A model round: one request and its answer as a recorded child, then the tools that it calls, concurrently."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

from anyio import get_cancelled_exc_class
from attrs import evolve, field, frozen

from noetic_py import errors
from noetic_py.context.read import StepMeta
from noetic_py.context.step import AnyStep, Step
from noetic_py.context.step import frame as frame_name
from noetic_py.core.budget import NO_USAGE
from noetic_py.core.caches import cached
from noetic_py.core.events import ReasoningDelta, TextDelta
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, ItemBase, JsonValue, Message, Refusal
from noetic_py.core.log import ItemLog, ItemView, admit_value
from noetic_py.core.values import copy_value
from noetic_py.engine.execute import execute, restore_log
from noetic_py.engine.frame import Frame
from noetic_py.engine.hooks import after_model, before_model, cut_after, on_model_error
from noetic_py.engine.journaling.ledger import decided, holds_state, write_down, write_items_down
from noetic_py.engine.journaling.replay import NOTHING, recorded
from noetic_py.engine.kind import BodySegment, Kind, Node
from noetic_py.engine.kinds.flow import Path, first_of, run_paths
from noetic_py.engine.kinds.output import OutputPlan, output_plan
from noetic_py.engine.kinds.tool import CALL, TOOL_CALL, RequestedCall, judge_all
from noetic_py.engine.layers.handles import Live
from noetic_py.engine.layers.lifecycle import appended, is_guided, judged, mend_model_error, remember
from noetic_py.engine.layers.view import keep_view, project
from noetic_py.engine.merge import join_layer_states, join_states
from noetic_py.engine.provider_call import ProviderCall, RunCalls, Shown, check_reported, has_room
from noetic_py.journal.values import Stored, dump_usage, read_usage
from noetic_py.memory.history import paired
from noetic_py.models.model import (
    CALLS,
    Model,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    OutputSchema,
    ReasoningPart,
    TextPart,
    check_answer,
    check_settings,
    merge_settings,
)
from noetic_py.models.wrapper import ModelWrapper
from noetic_py.steps.handoff import HistoryFilter, is_transfer, one_too_many
from noetic_py.steps.model import ModelSpec
from noetic_py.tools.calls import conceal, hidden_in

if TYPE_CHECKING:
    from noetic_py.core.codec import Codec
    from noetic_py.engine.state import Run
    from noetic_py.memory.layer import AnyLayer
    from noetic_py.tools.definition import AnyTool


ANSWER: AnyStep = Step(id="answer", kind="answer")


@frozen(eq=False)
class RoundRequest:
    """The request of one model round.

    Attributes:
        model: The model to call.
        spec: The step's.
        tools: The tools that are offered, by their names on the wire.
        schema: What the answer has to fit.
        given: The arguments as the model sent them of calls that have masks, by call id.
        unavailable: Why the model may not call tools that exist, by their names.
    """

    model: Model
    spec: ModelSpec
    tools: Mapping[str, AnyTool]
    schema: OutputSchema | None
    given: dict[str, str] = field(factory=dict[str, str])
    unavailable: Mapping[str, str] = field(factory=dict[str, str])


async def run_answer(ask: RoundRequest, frame: Frame) -> ModelResponse:
    """Ask the model once; a wrapper may make several calls of it."""
    x = frame.x
    instructions = await _instructions(frame, ask.spec)
    definitions = tuple([tool.definition() for tool in ask.tools.values()])
    whole = shown_history(frame)
    settings = _settings(frame, ask.spec)
    check_settings(settings, ask.model, ask.model.name, frame.at)
    # Without layers the next call begins with all of this one: a log is only ever appended to.
    request = ModelRequest(
        whole,
        instructions,
        definitions,
        settings,
        ask.schema,
        stable=len(whole),
        cache_key=_cache_key(x.thread_id),
        metadata=known_of(x.run),
    )
    if not x.has_layers and has_room(frame, ask.spec, ask.model, request):
        response = await _response(frame, ask, Shown(whole), request)
    else:
        response = await _with_view(frame, ask, request, whole)
    if x.has_layers or x.run.dispatches_hooks:
        # They may have put calls into the answer.
        response = _fresh(frame, response)
    check_answer(response.items, ask.model.name)
    frame.log.extend(response.items)
    # Without a request nothing was paid.
    cost = frame.used_cost if frame.used_calls else Decimal(0)
    x.last_step = StepMeta((), frame.used_tokens or NO_USAGE, cost, response.items)
    if frame.cuts_short is not None:
        cut_after(frame)
    return response


async def _response(frame: Frame, ask: RoundRequest, shown: Shown, request: ModelRequest) -> ModelResponse:
    """An answer as hooks want it, of any source: the model, or a hook or a layer in its place."""
    hooks = frame.x.run.dispatches_hooks
    wanted = await before_model(frame, request) if hooks else request
    checked: ModelResponse | None = None
    if isinstance(wanted, ModelResponse):
        response = _confidential(_fresh(frame, wanted), ask)
    else:
        if wanted is not request:
            # The counted request is not the one that is sent.
            shown = evolve(shown, tokens=None)
        try:
            response = await _asked(frame, ask, shown, wanted)
            # A call has looked at what its model reports; a wrapper may have made something else of it.
            checked = None if isinstance(ask.model, ModelWrapper) else response
        except errors.ModelError as error:
            mended = await on_model_error(frame, error)
            if mended is None and frame.x.has_layers:
                mended = await mend_model_error(frame, error)
            if mended is None:
                raise
            response = _confidential(_fresh(frame, mended), ask)
    if hooks:
        response = await after_model(frame, response)
    if response is not checked:
        check_reported(ask.model.name, response)
    return response


async def _asked(frame: Frame, ask: RoundRequest, shown: Shown, request: ModelRequest) -> ModelResponse:
    """Send the request, and publish deltas while the run is watched."""
    run = frame.x.run
    token = CALLS.set(RunCalls(frame, ask.spec, shown)) if isinstance(ask.model, ModelWrapper) else None
    heard: list[str] = []
    try:
        answer = (
            ProviderCall(frame, ask.spec, ask.model, request, shown) if token is None else ask.model.respond(request)
        )
        async with answer as stream:
            if run.bus.active or run.store is not None or run.session is not None:
                # Parts of an answer that a shutdown cuts off are kept like other parts of the run.
                async for event in stream:
                    _hear(frame, event, heard)
                    if run.bus.active:
                        await run.bus.wait_for_space()
            return _confidential(_fresh(frame, await stream.response()), ask)
    except get_cancelled_exc_class():
        if heard:
            frame.heard = (Message(role="assistant", content="".join(heard), status="incomplete"),)
        raise
    finally:
        if token is not None:
            CALLS.reset(token)


async def _with_view(frame: Frame, ask: RoundRequest, request: ModelRequest, history: ItemView) -> ModelResponse:
    """Show the model a view of the conversation, and show the layers the answer first."""
    view, projector = await project(frame, ask.spec, ask.model, request, history)
    request = evolve(request, items=view.items, stable=view.stable)
    response = await _response(frame, ask, Shown(request.items, view.tokens), request)
    keep_view(frame, projector, response.usage)
    return await judged(frame, response)


def _hear(frame: Frame, event: ModelEvent, heard: list[str]) -> None:
    if isinstance(event, TextPart):
        heard.append(event.delta)
    if not frame.x.run.bus.active:
        return
    if isinstance(event, TextPart):
        frame.publish(TextDelta(frame.at, event.delta, event.item_id))
    elif isinstance(event, ReasoningPart):
        frame.publish(ReasoningDelta(frame.at, event.delta, event.item_id))


async def _instructions(frame: Frame, spec: ModelSpec) -> str | None:
    given = spec.instructions
    if given is None or isinstance(given, str):
        return given
    made = given(frame.read_only())
    if inspect.isawaitable(made):
        made = await made
    return str(made)


def _settings(frame: Frame, spec: ModelSpec) -> ModelSettings:
    run = frame.x.run
    if not run.resources.settings and not run.model_settings:
        return spec.settings
    return merge_settings(run.resources.settings, spec.settings, run.model_settings)


def known_of(run: Run) -> Mapping[str, JsonValue]:
    """The metadata of a run for models and the tracer: those of the caller, and the run's owner."""
    session, user = run.session, run.user_id
    metadata: Mapping[str, JsonValue] = copy_value(run.metadata) if run.metadata else {}
    if session is None and user is None:
        return metadata
    whose = (
        {"user_id": user}
        if session is None
        else {"user_id": session.user, "session_id": session.session, "app_name": session.app}
    )
    return {**{name: value for name, value in whose.items() if value is not None}, **metadata}


@cached(1024)
def _cache_key(thread_id: str) -> str:
    """A digest of the conversation's id, which is the run's where none was given."""
    return sha256(f"noetic_py conversation\n{thread_id}".encode(errors="surrogatepass")).hexdigest()[:32]


def _fresh(frame: Frame, response: ModelResponse) -> ModelResponse:
    """The answer, with new ids for calls whose id the conversation has already seen, as some servers repeat them."""
    seen: set[str] = set()
    items: list[Item] = []
    replaced = False
    for item in response.items:
        new = item
        if isinstance(item, FunctionCall):
            if item.call_id in seen or frame.log.has_call(item.call_id):
                new = FunctionCall(name=item.name, arguments=item.arguments, id=item.id)
                replaced = True
            seen.add(item.call_id)
        items.append(new)
    return evolve(response, items=items) if replaced else response


def _confidential(response: ModelResponse, ask: RoundRequest) -> ModelResponse:
    """The answer with masks for secret arguments; only the tool sees what was sent."""
    if not any(tool.secret_parameters for tool in ask.tools.values()):
        return response
    items: list[Item] = []
    for item in response.items:
        if isinstance(item, FunctionCall):
            shown = conceal(item, hidden_in(item, ask.tools.get(item.name), ask.tools.values()))
            if shown is not item:
                ask.given[item.call_id] = item.arguments
            item = shown
        items.append(item)
    return evolve(response, items=items) if ask.given else response


def _dumped(ask: RoundRequest, response: ModelResponse) -> list[object]:
    """An answer without its items, which are those of its record."""
    usage = dump_usage(response.usage)
    return [usage, response.cost, response.stop_reason, response.model, response.response_id]


def _loaded(node: Node, codec: Codec) -> ModelResponse | None:
    record = node.finished
    if record is None or not isinstance(record.output, Stored):
        return None
    usage, cost, stop_reason, model, response_id = codec.decode(record.output.tree)
    return ModelResponse(record.items, read_usage(usage), cost, stop_reason, model, response_id)


ANSWERS = Kind(
    "answer", run_answer, declared=False, part=True, reported=False, digested=False, dump=_dumped, load=_loaded
)


def input_items(value: Any, path: tuple[str, ...]) -> Sequence[Item]:
    """The items of a model step's input.

    Raises:
        ConfigError: It is not such an input; code `"model-input"`.
        ForgedEvent: It holds what only a run makes.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return [Message.user(value)]
    admit_value(value, entry="input", path=path)
    if isinstance(value, ItemBase):
        return [value]  # type: ignore[list-item] # an Item, as every item class is one
    odd: object = value
    if _is_many(value):
        items: Sequence[Any] = value
        odd = next((item for item in items if not isinstance(item, ItemBase)), None)
        if odd is None:
            return items
    kind = type(odd).__name__ if odd is value else f"a list with {type(odd).__name__}"
    hint = "a text, a Message, a list of items, or None; put a step that makes one of these before it"
    if isinstance(odd, Mapping):
        hint += "; Message.user(text), or noetic_py.core.codec.from_wire(message) for messages of a provider"
    raise errors.ConfigError(f"call_model got {kind} as its input", code="model-input", path=path, hint=hint)


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
    """Whether two items have the same content; their ids differ each time."""
    return type(one) is type(other) and evolve(one, id=other.id) == other


_NONE: Mapping[str, str] = {}


@frozen(eq=False)
class AvailableTools:
    """The tools of a round, by their names on the wire, and why some are unavailable."""

    tools: Mapping[str, AnyTool]
    unavailable: Mapping[str, str] = _NONE


async def available_tools(frame: Frame, spec: ModelSpec) -> AvailableTools:
    """One set by name on the wire: the step's own tools win over those of layers, and these over the harness's."""
    common = frame.x.run.resources.tools
    # Where only the step has tools they are the same in each round.
    fixed = not common and not frame.x.has_layers
    known: AvailableTools | None = spec.cache.get("tools") if fixed else None
    if known is not None:
        return known
    layers = _tool_layers(frame)
    theirs = [each for layer in layers for each in layer.available_tools()]
    given: tuple[Any, ...] = (*common, *_functions(frame), *theirs, *spec.tools)
    found: dict[str, AnyTool] = {}
    for each in given:
        if listing := hasattr(each, "tools"):
            fixed = False
        listed = await each.tools() if listing else (each,)
        for tool in listed:
            if is_transfer(tool) and any(getattr(own, "wire_name", None) == tool.wire_name for own in spec.tools):
                raise errors.ConfigError(
                    f"a tool of the step and one of handoffs= have the name {tool.wire_name!r}",
                    code="handoff",
                    hint="rename the tool, or give the step that is handed over to another id",
                    path=frame.at,
                )
            found[tool.wire_name] = tool
    unavailable = {name: why for layer in layers for name, why in layer.unavailable_tools().items()}
    available = AvailableTools(found, unavailable)
    if fixed:
        spec.cache["tools"] = available
    return available


def _tool_layers(frame: Frame) -> Sequence[AnyLayer]:
    """The layers of this execution that have a say in which tools are offered, as they are now."""
    layer_states = frame.scope.layer_states
    return [
        layer.bound(Live(frame, layer, reads=True)) for layer in frame.x.layers.tool_layers if layer.id in layer_states
    ]


def _functions(frame: Frame) -> Sequence[AnyTool]:
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
    """Whether the frame writes to the turn's own conversation, and not to that of a path or a spawn."""
    top = frame
    while top.up is not None:
        top = top.up
    return frame.log is top.log


_MOST_GUIDES = 3
"""How often layers may have the model answer a round again."""
_MOST_PAUSES = 16
"""How often a provider may pause in one answer."""


@frozen(eq=False)
class _Fit:
    """Whether an answer fits: its value, or what the model should mend."""

    value: Any = None
    problem: str | None = None
    error: Exception | None = None


async def run_model(value: object, frame: Frame) -> object:
    """Say what is new, and answer it; what was said stays, whatever becomes of the answer."""
    new = not _is_handed_on(frame, value)
    said = unsaid(frame.x.run, frame.log, input_items(value, frame.at))
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
    available = await available_tools(frame, spec)
    plan = _plan(spec)
    ask = RoundRequest(
        model, spec, available.tools, None if plan is None else plan.schema, unavailable=available.unavailable
    )
    if spec.output_retries < 0:
        raise errors.ConfigError("output_retries is below 0", code="call-model", path=frame.path)
    guided = paused = 0
    for attempt in count():
        response: ModelResponse = await execute(ANSWER, ask, frame, frame_name("answer", attempt))
        if frame.x.has_layers and is_guided(response):
            guided += 1
            _check_guided(frame, response, guided)
            continue
        if frame.x.has_layers:
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
        if response.stop_reason == "paused":
            paused += 1
            _check_paused(frame, model, paused)
            continue
        fit = await _fit(spec, None if plan is None else plan.parse, _text(response))
        if fit.problem is None:
            return fit.value
        if attempt - guided - paused >= spec.output_retries:
            raise errors.ModelParseError(
                fit.problem,
                model=model.name,
                path=frame.path,
                hint="raise output_retries=, simplify the output type, or use a stronger model",
            ) from fit.error
        await _append(frame, [Message.user(f"{fit.problem}\nAnswer again.")])
    raise AssertionError


def _is_answered(frame: Frame, name: str, output: object) -> bool:
    """Whether an answer is the step's value as it is: it calls no tool, and nothing reads or continues it."""
    spec: ModelSpec = frame.step.spec
    return (
        isinstance(output, ModelResponse)
        and not spec.outputs
        and output.stop_reason != "paused"
        and not any(isinstance(item, FunctionCall) for item in output.items)
    )


def _is_handed_on(frame: Frame, value: object) -> bool:
    """Whether the input is the answer before it, which the conversation holds already."""
    last = frame.log[-1] if frame.log.size else None
    return isinstance(last, Message) and last.role == "assistant" and last.text == value


async def _append(frame: Frame, items: Sequence[Item]) -> None:
    """Put input into the conversation, as layers want it."""
    items = _as_recorded(frame, items)
    if items and frame.x.has_layers:
        items = _as_recorded(frame, await appended(frame, items))
    if items:
        frame.log.extend(items)


def _as_recorded(frame: Frame, items: Sequence[Item]) -> Sequence[Item]:
    """Items as an earlier process has recorded them in this step: what layers keep of them goes by their ids."""
    own = () if frame.node is None else [each for each in frame.node.layout if isinstance(each, BodySegment)]
    recorded_items = [item for segment in own for item in segment.items]
    if not recorded_items:
        return items
    made, there = list[Item](), {item.id for item in frame.log}
    for item in items:
        known = (each for each in recorded_items if each.id not in there and _is_same(each, item))
        made.append(next(known, item))
        there.add(made[-1].id)
    return made


def _check_guided(frame: Frame, response: ModelResponse, times: int) -> None:
    if times <= _MOST_GUIDES:
        return
    raise errors.LayerError(
        f"layers have asked for another answer {times} times; at last: {_text(response)}",
        layer="",
        hook="after_model_call",
        path=frame.path,
        hint="let after_model_call return Halt(reason) where guiding does not help, or say more clearly what is wrong",
    )


def _check_paused(frame: Frame, model: Model, times: int) -> None:
    if times <= _MOST_PAUSES:
        return
    raise errors.ModelError(
        f"the provider has paused {times} times in one answer",
        model=model.name,
        path=frame.path,
        hint="limit how often its own tools may be used, such as max_uses of a web search",
    )


def _model(frame: Frame, spec: ModelSpec) -> Model:
    resources = frame.x.run.resources
    wanted = spec.model if spec.model is not None else resources.model
    if wanted is None:
        raise errors.ConfigError(
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
    # The answer of a wrapped model gives the usage of the last call; run_answer has recorded that of all calls.
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
    raise errors.NoOutput(
        "the model called tools, so this round has no value",
        path=frame.path,
        hint="put call_model into loop(..., until=until.no_tool_calls())",
    )


def _refuse(frame: Frame, response: ModelResponse, model: Model) -> None:
    for item in response.items:
        if isinstance(item, Message):
            for part in item.content:
                if isinstance(part, Refusal):
                    raise errors.ModelRefused(
                        f"the model refused: {part.refusal}",
                        model=model.name,
                        path=frame.path,
                        hint="rephrase the input",
                    )


async def _fit(spec: ModelSpec, parse: Callable[[str], object] | None, text: str) -> _Fit:
    value: object = text
    if parse is not None:
        try:
            value = parse(text)
        except errors.CodecError as error:
            return _Fit(problem=error.message, error=error)
    if spec.validate is None:
        return _Fit(value)
    try:
        validated = spec.validate(value)
        return _Fit(await validated if inspect.isawaitable(validated) else validated)
    except errors.ModelRetry as error:
        return _Fit(problem=error.message, error=error)


async def _final(frame: Frame, spec: ModelSpec, plan: OutputPlan | None, model: Model, text: str) -> object:
    """The value of a round whose answer is the output of a tool, which no model puts into words."""
    fit = await _fit(spec, None if plan is None else plan.parse_output, text)
    if fit.problem is None:
        return fit.value
    raise errors.ModelParseError(
        f"the output of a tool stands for the answer: {fit.problem}",
        model=model.name,
        path=frame.path,
        hint="skip_summary() only where the output is of the step's output type",
    ) from fit.error


async def _run_tools(frame: Frame, calls: tuple[FunctionCall, ...], ask: RoundRequest) -> Sequence[FunctionCallOutput]:
    """Run a round's calls, several at once; their outputs enter the conversation in the order of the calls."""
    tools = ask.tools
    called = [tools.get(call.name) for call in calls]
    if len(called) > 1:
        transfers = [(index, tool) for index, tool in enumerate(called) if tool is not None and is_transfer(tool)]
        for index, tool in transfers[1:]:
            called[index] = one_too_many(tool)
    requested: Sequence[RequestedCall] = [
        RequestedCall(
            call, called[index], tuple(tools), ask.given.get(call.call_id), why=ask.unavailable.get(call.name)
        )
        for index, call in enumerate(calls)
    ]
    names = [f"{call.name if call.name in tools else 'tool'}[{index}]" for index, call in enumerate(calls)]
    most = ask.spec.max_parallel_tools or frame.x.run.resources.max_parallel_tools
    try:
        requested = await judge_all(frame, names, requested)
        paths = [Path(TOOL_CALL, *each, seeded=False) for each in zip(requested, names, strict=True)]
        outcomes = await run_paths(frame, paths, "settle", most)
    except BaseException as stop:
        if not isinstance(stop, Exception):
            # Outputs of finished calls are in the journal, so they belong into the conversation.
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
    # They belong to the records of the calls, and are not a segment of the round itself.
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
    """The model usage of a finished round, for the steps after it."""
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


def shown_history(frame: Frame) -> ItemView:
    """The conversation as a model is shown it: of what was said before a handoff what its filter gives."""
    whole = frame.log.rendered("interrupted", frame.x.run.unfinished)
    filters: list[tuple[int, HistoryFilter]] = []
    node, up = frame, frame.up
    while up is not None and (up.x is node.x or up.log is node.log):
        node, up = up, up.up
        if node.narrowed is not None:
            filters.append(node.narrowed)
    items: Sequence[Item] = whole
    for start, narrow in reversed(filters):
        later = frame.log.since(start)
        # A view closes calls that are still open, so places in it are not those of the log.
        at = next((place for place, item in enumerate(items) if later and item is later[0]), len(items))
        items = [*paired(list(narrow(tuple(items[:at])))), *items[at:]]
    return ItemLog(items).rendered("interrupted") if filters else whole


ROUNDS = Kind(
    "model",
    run_model,
    counted=True,
    reported=False,
    at_once=True,
    skips=True,
    ends_with=_is_answered,
    ordered=_in_call_order,
    meta=_recalled,
)
KINDS = (ANSWERS, ROUNDS)
