"""One call of a model: reserved, asked, streamed, settled, written into the conversation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py._engine.execute import HANDLERS
from noetic_py._engine.state import Frame
from noetic_py.budget import NO_USAGE, NOTHING_USED, Reservation, TokenUsage, Usage
from noetic_py.checkpoints.records import CallStarted
from noetic_py.context import StepMeta
from noetic_py.errors import ModelError, ModelStreamError, UnknownPrice
from noetic_py.events import Event, ModelFinished, ModelStarted, ReasoningDelta, TextDelta
from noetic_py.items import FunctionCall, Item
from noetic_py.models.base import (
    Model,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    OutputSchema,
    Price,
    ReasoningPart,
    TextPart,
    merge_settings,
)
from noetic_py.models.pricing import price_of, profile_of
from noetic_py.steps.model import ModelSpec
from noetic_py.steps.step import Step

if TYPE_CHECKING:
    from noetic_py.log import ItemView
    from noetic_py.tokens import TokenCounter
    from noetic_py.tools import Tool

__all__ = ["ANSWER", "Ask"]

ANSWER: Step[Any, Any, Any, Any] = Step(id="answer", kind="answer")

_TOKEN_LIMITS = ("tokens", "input_tokens", "output_tokens", "cached_input_tokens", "cost")


@frozen(eq=False)
class Ask:
    """What one model round asks for."""

    model: Model
    spec: ModelSpec
    tools: Mapping[str, Tool[..., Any, Any, Any]]
    schema: OutputSchema | None


async def run_answer(frame: Frame, ask: Ask) -> ModelResponse:
    """Ask the model once."""
    x = frame.x
    instructions = await _instructions(frame, ask.spec)
    view = frame.log.rendered("interrupted")
    settings = _settings(frame, ask.spec)
    definitions = tuple(tool.definition() for tool in ask.tools.values())
    price = price_of(ask.model)
    reservation, read = await _reserve(frame, ask, view, instructions, definitions, settings, price)
    if reservation.max_output is not None and "max_output_tokens" not in settings:
        settings = merge_settings(settings, {"max_output_tokens": reservation.max_output})
    x.turns += 1
    bus = x.run.bus
    if bus.active:
        bus.publish(ModelStarted(frame.path, ask.model.name))
    request = ModelRequest(view, instructions, definitions, settings, ask.schema)
    used = NOTHING_USED
    heard = _Heard(frame)
    try:
        try:
            async with ask.model.respond(request) as stream:
                if bus.active:
                    async for event in stream:
                        heard.take(event)
                response = await stream.response()
        except ModelError as error:
            # Refused before an answer began costs nothing; what was cut off in the middle was read, and written so far.
            if isinstance(error, ModelStreamError):
                used = _cut_off(ask, price, read, heard.text)
            raise error.at(frame.path) from error.__cause__
        except Exception:
            raise
        except BaseException:
            used = _cut_off(ask, price, read, heard.text)
            raise
        used = _used(frame, ask, response, price, read)
    finally:
        reservation.settle(used)
        if used is not NOTHING_USED:
            frame.used_tokens, frame.used_cost = used.tokens, used.cost
            frame.noted = True
    frame.log.extend(_fresh(frame, response.items))
    x.last_step = StepMeta((), used.tokens, used.cost, response.items)
    if bus.active:
        bus.publish(ModelFinished(frame.path, ask.model.name, response.usage, used.cost))
    return response


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


async def _reserve(
    frame: Frame,
    ask: Ask,
    view: ItemView,
    instructions: str | None,
    definitions: tuple[Mapping[str, Any], ...],
    settings: ModelSettings,
    price: Price | None,
) -> tuple[Reservation, int]:
    """Hold the most this call can use, when anything limits it."""
    lease = frame.lease
    if lease.free or not lease.limited(*_TOKEN_LIMITS):
        return await lease.reserve(max_output=settings.get("max_output_tokens")), 0
    cost_of = None
    if lease.limited("cost"):
        if price is None:
            raise UnknownPrice(ask.model.name, path=frame.path)
        cost_of = price.most
    read = _count(_counter(ask.model), view, instructions, definitions, ask.schema)
    profile = profile_of(ask.model)
    reservation = await lease.reserve(
        input_tokens=read,
        max_output=settings.get("max_output_tokens"),
        cost_of=cost_of,
        output_cap=profile.max_output_tokens,
    )
    amounts = reservation.amounts
    frame.x.run.journal.append(
        CallStarted(frame.path, int(amounts.get("tokens", 0)), amounts.get("cost", Decimal(0)))
    )
    return reservation, read


def _counter(model: Model) -> TokenCounter:
    from noetic_py.tokens import TiktokenCounter, counter_for

    encoding = profile_of(model).encoding
    return counter_for(model.name) if encoding is None else TiktokenCounter(encoding)


def _count(
    counter: TokenCounter,
    view: ItemView,
    instructions: str | None,
    definitions: tuple[Mapping[str, Any], ...],
    schema: OutputSchema | None,
) -> int:
    """Tokens of a request: its items, which a counter remembers, and what stands around them."""
    import json

    total = sum(counter.count_item(item).value for item in view)
    around = [instructions or ""]
    around += [json.dumps(definition) for definition in definitions]
    if schema is not None:
        around.append(json.dumps(schema.schema))
    return total + sum(counter.count_text(text).value for text in around if text)


def _used(frame: Frame, ask: Ask, response: ModelResponse, price: Price | None, read: int) -> Usage:
    tokens = response.usage
    if tokens is None and frame.lease.limited(*_TOKEN_LIMITS):
        # A provider that reports nothing must not be free under a token budget.
        counter = _counter(ask.model)
        tokens = TokenUsage(read, sum(counter.count_item(item).value for item in response.items))
    cost = response.cost
    if cost is None and price is not None:
        cost = price.cost(tokens or NO_USAGE)
    if cost is None:
        frame.x.run.unpriced = True
    return Usage(tokens or NO_USAGE, cost)


def _cut_off(ask: Ask, price: Price | None, read: int, text: str) -> Usage:
    """What a call that never ended has used at the least: the request, and the text that was seen."""
    written = _counter(ask.model).count_text(text).value if text and read else 0
    tokens = TokenUsage(read, written)
    return Usage(tokens, None if price is None else price.cost(tokens))


class _Heard:
    """Passes a stream's deltas on as events, and remembers the text."""

    __slots__ = ("_frame", "_pieces")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._pieces: list[str] = []

    def take(self, event: ModelEvent) -> None:
        out: Event
        if isinstance(event, TextPart):
            self._pieces.append(event.delta)
            out = TextDelta(self._frame.path, event.delta)
        elif isinstance(event, ReasoningPart):
            out = ReasoningDelta(self._frame.path, event.delta)
        else:
            return
        self._frame.x.run.bus.publish(out)

    @property
    def text(self) -> str:
        return "".join(self._pieces)


def _fresh(frame: Frame, items: Any) -> list[Item]:
    """The answer's items; a call id that the conversation has already seen, as some servers repeat them, is replaced."""
    seen: set[str] = set()
    out: list[Item] = []
    for item in items:
        if isinstance(item, FunctionCall) and (item.call_id in seen or frame.log.has_call(item.call_id)):
            item = FunctionCall(name=item.name, arguments=item.arguments, id=item.id)  # noqa: PLW2901 # the one that is kept
        if isinstance(item, FunctionCall):
            seen.add(item.call_id)
        out.append(item)
    return out


HANDLERS["answer"] = run_answer
