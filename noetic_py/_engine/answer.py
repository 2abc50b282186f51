"""One call of a model: reserved, asked, streamed, settled, written into the conversation."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from attrs import evolve, frozen

from noetic_py._engine.execute import HANDLERS
from noetic_py._engine.state import Frame
from noetic_py.budget import NO_USAGE, NOTHING_USED, Reservation, TokenUsage, Usage
from noetic_py.checkpoints.records import CallStarted
from noetic_py.context import Counted, Domain, StepMeta
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
from noetic_py.tokens import TiktokenCounter, TokenCounter, counter_for, counter_of_encoding

if TYPE_CHECKING:
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


async def run_answer(ask: Ask, frame: Frame) -> ModelResponse:
    """Ask the model once."""
    x = frame.x
    bus = x.run.bus
    instructions = await _instructions(frame, ask.spec)
    settings = _settings(frame, ask.spec)
    definitions = tuple([tool.definition() for tool in ask.tools.values()])
    request = ModelRequest(frame.log.rendered("interrupted"), instructions, definitions, settings, ask.schema)
    price = price_of(ask.model)
    reservation, read = await _reserve(frame, ask, request, price)
    if reservation.max_output is not None and "max_output_tokens" not in settings:
        request = evolve(request, settings=merge_settings(settings, {"max_output_tokens": reservation.max_output}))
    x.turns += 1
    x.run.turns += 1
    if bus.active:
        bus.publish(ModelStarted(frame.at, ask.model.name))
    call = _Call(frame, ask, price, read)
    try:
        response = await call.make(request)
    finally:
        used = call.used
        reservation.settle(used)
        if used is not NOTHING_USED:
            frame.used_tokens, frame.used_cost, frame.noted = used.tokens, used.cost, True
    response = _fresh(frame, response)
    frame.log.extend(response.items)
    x.last_step = StepMeta((), used.tokens, used.cost, response.items)
    if bus.active:
        bus.publish(ModelFinished(frame.at, ask.model.name, response.usage, used.cost))
    return response


class _Call:
    """One call in flight: what it has used is known at every moment, so that a cancelled one is settled too."""

    __slots__ = ("_ask", "_frame", "_pieces", "_price", "_read", "used")

    def __init__(self, frame: Frame, ask: Ask, price: Price | None, read: int) -> None:
        self._frame = frame
        self._ask = ask
        self._price = price
        self._read = read
        self._pieces: list[str] = []
        self.used = NOTHING_USED

    async def make(self, request: ModelRequest) -> ModelResponse:
        """Ask, and pass on what is heard."""
        bus = self._frame.x.run.bus
        try:
            async with self._ask.model.respond(request) as stream:
                if bus.active:
                    async for event in stream:
                        self._hear(event)
                response = await stream.response()
        except ModelError as error:
            # Refused before an answer began costs nothing; what was cut off in the middle was read, and partly written.
            if isinstance(error, ModelStreamError):
                self.used = self._cut_off()
            error.at(self._frame.at)
            raise
        except BaseException as stop:
            if not isinstance(stop, Exception):
                self.used = self._cut_off()
            raise
        self.used = _used(self._frame, self._ask, response, self._price, self._read)
        return response

    def _hear(self, event: ModelEvent) -> None:
        out: Event
        if isinstance(event, TextPart):
            self._pieces.append(event.delta)
            out = TextDelta(self._frame.at, event.delta)
        elif isinstance(event, ReasoningPart):
            out = ReasoningDelta(self._frame.at, event.delta)
        else:
            return
        self._frame.x.run.bus.publish(out)

    def _cut_off(self) -> Usage:
        """What a call that never ended has used at the least: the request, and the text that was heard."""
        text = "".join(self._pieces)
        written = counter_of(self._ask.model).count_text(text).value if text and self._read else 0
        tokens = TokenUsage(self._read, written)
        return Usage(tokens, None if self._price is None else self._price.cost(tokens))


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


async def _reserve(frame: Frame, ask: Ask, request: ModelRequest, price: Price | None) -> tuple[Reservation, int]:
    """Hold the most this call can use, when anything limits it."""
    lease = frame.lease
    most = request.settings.get("max_output_tokens")
    if lease.free or not lease.limited(*_TOKEN_LIMITS):
        return await lease.reserve(max_output=most), 0
    cost_of = None
    if lease.limited("cost"):
        if price is None:
            raise UnknownPrice(ask.model.name, path=frame.at)
        cost_of = price.most
    counter = counter_of(ask.model)
    if isinstance(counter, TiktokenCounter) and not counter.ready:
        # Loading the ranks takes half a second, in which other runs shall go on.
        await anyio.to_thread.run_sync(counter.load)
    read = _history(frame.domain, counter, request) + _around(ask.spec, counter, request)
    cap = profile_of(ask.model).max_output_tokens
    reservation = await lease.reserve(input_tokens=read, max_output=most, cost_of=cost_of, output_cap=cap)
    amounts = reservation.amounts
    frame.x.run.journal.append(CallStarted(frame.at, int(amounts.get("tokens", 0)), amounts.get("cost", Decimal(0))))
    return reservation, read


def counter_of(model: Model) -> TokenCounter:
    """What counts tokens for a model."""
    encoding = profile_of(model).encoding
    return counter_for(model.name) if encoding is None else counter_of_encoding(encoding)


def _history(domain: Domain, counter: TokenCounter, request: ModelRequest) -> int:
    """Tokens of the conversation: what was counted for the last call of this domain is not counted again."""
    items = request.items
    start = total = 0
    counted = domain.counted
    # Where the item that was last then still stands, nothing before it was taken back either.
    if counted is not None and counted.counter is counter and items[counted.size - 1 : counted.size] == (counted.last,):
        start, total = counted.size, counted.total
    for item in items[start:]:
        total += counter.count_item(item).value
    if items:
        domain.counted = Counted(counter, len(items), items[-1], total)
    return total


def _around(spec: ModelSpec, counter: TokenCounter, request: ModelRequest) -> int:
    """Tokens of what stands around the conversation, remembered while it stays the same."""
    key = (counter, request.instructions, request.tools, request.output)
    known = spec.cache.get("around")
    if known is not None and all(a is b or a == b for a, b in zip(known[0], key, strict=True)):
        total: int = known[1]
        return total
    texts = [request.instructions or "", *(json.dumps(definition) for definition in request.tools)]
    if request.output is not None:
        texts.append(json.dumps(request.output.schema))
    total = sum(counter.count_text(text).value for text in texts if text)
    spec.cache["around"] = (key, total)
    return total


def _used(frame: Frame, ask: Ask, response: ModelResponse, price: Price | None, read: int) -> Usage:
    tokens = response.usage
    if tokens is None and frame.lease.limited(*_TOKEN_LIMITS):
        # A provider that reports nothing must not be free under a token budget.
        counter = counter_of(ask.model)
        tokens = TokenUsage(read, sum(counter.count_item(item).value for item in response.items))
    cost = response.cost
    if cost is None and price is not None:
        cost = price.cost(tokens or NO_USAGE)
    if cost is None:
        frame.x.run.unpriced = True
    return Usage(tokens or NO_USAGE, cost)


def _fresh(frame: Frame, response: ModelResponse) -> ModelResponse:
    """The answer, with new ids for calls whose id the conversation has already seen, as some servers repeat them."""
    seen: set[str] = set()
    items: list[Item] = []
    replaced = False
    for item in response.items:
        kept = item
        if isinstance(item, FunctionCall):
            if item.call_id in seen or frame.log.has_call(item.call_id):
                kept = FunctionCall(name=item.name, arguments=item.arguments, id=item.id)
                replaced = True
            seen.add(item.call_id)
        items.append(kept)
    return evolve(response, items=items) if replaced else response


HANDLERS["answer"] = run_answer
