"""One answer of a model: the request is put together, the model asked, its answer written into the conversation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from anyio import get_cancelled_exc_class
from attrs import evolve, field, frozen

from noetic_py.context.context import StepMeta
from noetic_py.context.step import Step
from noetic_py.core.budget import NO_USAGE
from noetic_py.core.events import ReasoningDelta, TextDelta
from noetic_py.core.items import FunctionCall, Item, Message
from noetic_py.core.log import ItemView
from noetic_py.core.values import copy_value
from noetic_py.engine.frame import Frame
from noetic_py.engine.hooks import after_model, before_model, cut_after, on_model_error
from noetic_py.engine.kind import Kind, Node
from noetic_py.engine.kinds.handoff import shown_history
from noetic_py.engine.layers.lifecycle import judged, mend_model_error
from noetic_py.engine.layers.view import project, projector_of
from noetic_py.engine.provider_call import ProviderCall, RunCalls, Shown, check_reported
from noetic_py.errors import ModelError
from noetic_py.journal.values import Stored, dump_usage, read_usage
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
    merge_settings,
)
from noetic_py.models.price_table import check_settings
from noetic_py.models.timed import check_answer
from noetic_py.models.wrapper import ModelWrapper
from noetic_py.steps.model import ModelSpec
from noetic_py.tools.confidential import conceal, hidden_in

if TYPE_CHECKING:
    from noetic_py.core.codec import Codec
    from noetic_py.engine.state import Run
    from noetic_py.models.model import JsonValue
    from noetic_py.tools import Tool

__all__ = ["ANSWER", "KINDS", "RoundRequest", "known_of"]

ANSWER: Step[Any, Any, Any, Any] = Step(id="answer", kind="answer")


@frozen(eq=False)
class RoundRequest:
    """What one model round asks for.

    Attributes:
        model: Whom.
        spec: The step's.
        tools: The tools that are offered, by their names on the wire.
        schema: What the answer has to fit.
        given: The arguments as the model sent them of calls that have masks, by call id.
        withheld: Why tools that there are are not offered, by their names.
    """

    model: Model
    spec: ModelSpec
    tools: Mapping[str, Tool[..., Any, Any, Any]]
    schema: OutputSchema | None
    given: dict[str, str] = field(factory=dict[str, str])
    withheld: Mapping[str, str] = field(factory=dict[str, str])


async def run_answer(ask: RoundRequest, frame: Frame) -> ModelResponse:
    """Ask the model once; a wrapper may make several calls of it."""
    x = frame.x
    instructions = await _instructions(frame, ask.spec)
    definitions = tuple([tool.definition() for tool in ask.tools.values()])
    whole = shown_history(frame)
    settings = _settings(frame, ask.spec)
    check_settings(settings, ask.model, ask.model.name, frame.path)
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
    if x.layers:
        response = await _with_layers(frame, ask, request, whole)
    else:
        response = await _answered(frame, ask, Shown(whole), request)
    if x.layers or x.run.dispatches_hooks:
        # They may have put calls into the answer.
        response = _fresh(frame, response)
    check_answer(response.items, ask.model.name)
    frame.log.extend(response.items)
    # Without a request nothing was paid.
    cost = frame.used_cost if frame.used_calls else Decimal(0)
    x.last_step = StepMeta((), frame.used_tokens or NO_USAGE, cost, response.items)
    cut_after(frame)
    return response


async def _answered(frame: Frame, ask: RoundRequest, shown: Shown, request: ModelRequest) -> ModelResponse:
    """An answer as hooks want it, of any source: the model, or a hook or a layer in its place."""
    wanted = await before_model(frame, request)
    checked: ModelResponse | None = None
    if isinstance(wanted, ModelResponse):
        response = _confidential(_fresh(frame, wanted), ask)
    else:
        if wanted is not request:
            # What was counted is not what is sent.
            shown = evolve(shown, tokens=None)
        try:
            response = await _asked(frame, ask, shown, wanted)
            # A call has looked at what its model reports; a wrapper may have made something else of it.
            checked = None if isinstance(ask.model, ModelWrapper) else response
        except ModelError as error:
            mended = await on_model_error(frame, error)
            if mended is None and frame.x.layers:
                mended = await mend_model_error(frame, error)
            if mended is None:
                raise
            response = _confidential(_fresh(frame, mended), ask)
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
                # What is kept of a run is kept of an answer too that a shutdown cuts off.
                async for event in stream:
                    _hear(frame, event, heard)
                    if run.bus.active:
                        await run.bus.room()
            return _confidential(_fresh(frame, await stream.response()), ask)
    except get_cancelled_exc_class():
        if heard:
            frame.heard = (Message(role="assistant", content="".join(heard), status="incomplete"),)
        raise
    finally:
        if token is not None:
            CALLS.reset(token)


async def _with_layers(frame: Frame, ask: RoundRequest, request: ModelRequest, history: ItemView) -> ModelResponse:
    """Ask with what the layers recall, and let them look at the answer before anybody else does."""
    view = await project(frame, ask.spec, ask.model, request, history)
    request = evolve(request, items=view.items, stable=view.stable)
    response = await _answered(frame, ask, Shown(view.items, view.tokens), request)
    projector = projector_of(frame.scope)
    if projector is not None:
        projector.answered(response.usage)
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
    """What models and the tracer are told of a run: what its caller says, and whose it is where he does not."""
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


@lru_cache(maxsize=1024)
def _cache_key(thread_id: str) -> str:
    """A digest of the conversation's id, which is the run's where none was given."""
    return sha256(f"noetic_py conversation\n{thread_id}".encode(errors="surrogatepass")).hexdigest()[:32]


def _fresh(frame: Frame, response: ModelResponse) -> ModelResponse:
    """The answer, with new ids for calls whose id the conversation has already seen, as some servers repeat them."""
    seen: set[str] = set()
    repeated = False
    for item in response.items:
        if isinstance(item, FunctionCall):
            repeated = repeated or item.call_id in seen or frame.log.has_call(item.call_id)
            seen.add(item.call_id)
    return evolve(response, items=_renewed(frame, response.items)) if repeated else response


def _renewed(frame: Frame, items: Sequence[Item]) -> list[Item]:
    seen: set[str] = set()
    renewed: list[Item] = []
    for item in items:
        new = item
        if isinstance(item, FunctionCall):
            if item.call_id in seen or frame.log.has_call(item.call_id):
                new = FunctionCall(name=item.name, arguments=item.arguments, id=item.id)
            seen.add(item.call_id)
        renewed.append(new)
    return renewed


def _confidential(response: ModelResponse, ask: RoundRequest) -> ModelResponse:
    """The answer with masks for secret arguments; only the tool sees what was sent."""
    items: list[Item] = []
    for item in response.items:
        if isinstance(item, FunctionCall):
            shown = conceal(item, hidden_in(item, ask.tools.get(item.name), ask.tools.values()))
            if shown is not item:
                ask.given[item.call_id] = item.arguments
            item = shown
        items.append(item)
    return evolve(response, items=items) if ask.given else response


def _dumped(ask: RoundRequest, response: ModelResponse) -> list[Any]:
    """An answer without its items, which are those of its record."""
    usage = dump_usage(response.usage)
    return [usage, response.cost, response.stop_reason, response.model, response.response_id]


def _loaded(node: Node, codec: Codec) -> ModelResponse | None:
    record = node.finished
    if record is None or not isinstance(record.output, Stored):
        return None
    usage, cost, stop_reason, model, response_id = codec.decode(record.output.tree)
    return ModelResponse(record.items, read_usage(usage), cost, stop_reason, model, response_id)


KINDS = (
    Kind("answer", run_answer, declared=False, part=True, reported=False, essence=None, dump=_dumped, load=_loaded),
)
