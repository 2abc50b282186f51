"""One request to a provider and its span: reserved before it starts, read while it streams, settled when it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from decimal import Decimal
from functools import partial
from logging import DEBUG, WARNING
from types import TracebackType
from typing import TYPE_CHECKING

import anyio.to_thread
from attrs import evolve, frozen

from noetic_py.context.read import ContextScope, Counted
from noetic_py.core.budget import NO_USAGE, NOTHING_USED, BudgetLease, Reservation, TokenUsage, Usage, problem_of
from noetic_py.core.diagnostics import Where, log
from noetic_py.core.events import FeeUnknown, ModelFailed, ModelFinished, ModelStarted
from noetic_py.core.items import FunctionCall, FunctionCallOutput, InputText, Item, Message, OutputText
from noetic_py.core.runtime import Runtime
from noetic_py.core.shared_budget import HELD, SharedBudget
from noetic_py.core.tokens import (
    CounterByName,
    TiktokenCounter,
    TokenCount,
    TokenCounter,
    counter_for,
    counter_of_encoding,
)
from noetic_py.engine.frame import Frame, in_time
from noetic_py.engine.shared_budgets import RunBudgets, Slice
from noetic_py.engine.telemetry import CallSpan, names_of
from noetic_py.errors import BudgetExceeded, ConfigError, ModelError, ModelStreamError, UnknownPrice, UsageInvalid
from noetic_py.journal.records import CallStarted
from noetic_py.models.model import (
    CALLS,
    AnswerSize,
    ItemDone,
    Model,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ModelStream,
    Price,
    close_events,
    merge_settings,
    price_of,
    profile_of,
)
from noetic_py.redaction import redact
from noetic_py.steps.model import ModelSpec

if TYPE_CHECKING:
    from noetic_py.core.telemetry import Metrics


def counter_of(model: Model, by_name: CounterByName) -> TokenCounter:
    """The token counter of a model: of the encoding that it names itself, otherwise the one for its name."""
    encoding = profile_of(model).encoding
    return by_name(model.name) if encoding is None else counter_of_encoding(encoding)


async def ready_counter_of(model: Model, by_name: CounterByName = counter_for) -> TokenCounter:
    """The same, ready to count."""
    counter = counter_of(model, by_name)
    if isinstance(counter, TiktokenCounter) and not counter.ready:
        # Loading the ranks takes half a second, in which other runs shall go on.
        await anyio.to_thread.run_sync(counter.load)
    return counter


_NO_SPAN = nullcontext()
_TRIES = 10
"""How often a call without a limit of its own asks shared budgets for what is left, while other runs are faster."""
TOKEN_LIMITS = ("tokens", "input_tokens", "output_tokens", "cached_input_tokens", "cost")


@frozen(eq=False)
class Shown:
    """The conversation as a step shows it to the model.

    Attributes:
        items: The items.
        tokens: What the whole request takes with them; counted when it is wanted, when `None`.
    """

    items: Sequence[Item]
    tokens: int | None = None


class ProviderCall:
    """One call in flight, a context manager and a stream: what it has used is known at every moment.

    So it is settled whatever ends it: its answer, its failure, a cancellation, or a wrapper that has lost interest.

    Args:
        frame: The step that asks.
        spec: What the step says of its model round.
        model: The model, which is not a wrapper.
        request: What is asked.
        shown: The conversation as the step shows it, of which a wrapper may have made something else.
    """

    # Whether an answer may take several calls, so that the journal has to say how many there were.
    _one_of_several = False
    # Most calls never need these: a class default costs a call nothing.
    _read = 0
    _heard: list[str]
    _size: AnswerSize
    _stream: ModelStream | None = None
    _events: AsyncIterator[ModelEvent] | None = None
    _response: ModelResponse | None = None
    # Only errors that the model raised, not those of the reader of its answer.
    _failure: BaseException | None = None
    _span: CallSpan | None = None
    _began = 0.0
    _slices: Sequence[Slice] = ()
    # The shared budget of this model alone.
    budget: SharedBudget | None = None
    _manager: AbstractAsyncContextManager[ModelStream]
    _reservation: Reservation

    def __init__(self, frame: Frame, spec: ModelSpec, model: Model, request: ModelRequest, shown: Shown) -> None:
        self._frame = frame
        self._spec = spec
        self._model = model
        self._request = request
        self._shown = shown
        self._price = price_of(model)

    async def __aenter__(self) -> ModelStream:
        frame, request = self._frame, self._request
        if frame.x.run.timed:
            # Instructions, hooks and layers may have used the time up without waiting for anything.
            await in_time()
        self._reservation = reservation = await self._reserve()
        if self._read or self._one_of_several:
            held = reservation.amounts
            store = frame.x.run.store
            started = CallStarted(
                frame.at,
                int(held.get("tokens", 0)),
                held.get("cost", Decimal(0)),
                int(held.get("output_tokens", 0)),
                0 if store is None else store.fence,
            )
            frame.x.run.journal.append(started)
        frame.used_calls += 1
        frame.noted = True
        if reservation.max_output is not None and "max_output_tokens" not in request.settings:
            most = merge_settings(request.settings, {"max_output_tokens": reservation.max_output})
            request = evolve(request, settings=most)
        frame.x.turns += 1
        frame.x.run.turns += 1
        try:
            run = frame.x.run
            if run.store is not None:
                if self._read or self._one_of_several:
                    # After a crash the journal says what the call may have cost, whatever became of it.
                    await run.store.commit(run.journal)
                # Instructions, a wait for the budget or for another try may have taken longer than the lease lasts.
                await run.store.hold()
            bus = run.bus
            if bus.active:
                frame.publish(ModelStarted(frame.at, self._model.name))
            if run.metrics is not None:
                self._began = run.runtime.monotonic()
            if run.tracer is not None:
                self._span = CallSpan(run, run.tracer, self._model.name, request)
            await run.resources.open_models.open(self._model)
            self._manager = self._model.respond(request)
            with _NO_SPAN if self._span is None else self._span.active():
                self._stream = await self._manager.__aenter__()
        except BaseException as error:
            self._failure = error
            self._end(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        try:
            try:
                if self._events is not None:
                    await close_events(self._events)
            finally:
                await self._manager.__aexit__(kind, error, trace)
        except BaseException as other:
            error = other
            raise
        finally:
            self._end(error)

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        events = self._events
        if events is None:
            if self._stream is None:
                raise _not_entered()
            self._heard = []
            self._size = AnswerSize(self._model.name)
            events = self._events = aiter(self._stream)
        try:
            event = await anext(events)
            self._size.add(event)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._failure = error
            raise
        if self._read and not isinstance(event, ItemDone):
            self._heard.append(event.delta)
        return event

    async def response(self) -> ModelResponse:
        response, stream = self._response, self._stream
        if response is not None:
            return response
        if stream is None:
            raise _not_entered()
        if self._read:
            # Always consumed, so that a stream that is cut counts the same with and without a listener.
            async for _ in self:
                pass
        try:
            response = await stream.response()
            check_reported(self._model.name, response)
            self._response = response
        except BaseException as error:
            self._failure = error
            raise
        return response

    # -- what it takes

    async def _reserve(self) -> Reservation:
        """Hold the most this call can use, when anything limits it."""
        lease, shared = self._frame.lease, self._frame.x.run.shared
        if self.budget is not None:
            shared = self._run_budgets()
            lease = shared.lease_of(self.budget, lease, now=self._frame.x.run.runtime.monotonic())
        if shared is None:
            return await self._reserve_here(lease)
        from noetic_py.engine.kinds.suspension import with_room

        return await with_room(self._frame, shared, partial(self._reserve_shared, shared, lease))

    def _run_budgets(self) -> RunBudgets:
        """What the run takes of shared budgets, also where it has none itself."""
        run = self._frame.x.run
        if run.store is None:
            raise ConfigError(
                f"a shared budget of {self._model.name!r} without checkpoints= is not valid; expected a store that "
                "other runs see",
                code="budgets",
                path=self._frame.at,
                hint='Harness(checkpoints="sqlite:runs.db")',
            )
        if run.shared is None:
            now = run.runtime.monotonic()
            run.shared = run.store.budgets = RunBudgets((), run.store, run.resources.lease, now=now)
        return run.shared

    async def _reserve_shared(self, shared: RunBudgets, lease: BudgetLease) -> Reservation:
        """The same where other runs take of the same budgets."""
        tries = _TRIES
        while True:
            await shared.look(lease)
            reservation = await self._reserve_here(lease)
            try:
                self._slices = await shared.reserve(reservation.amounts, lease)
                return reservation
            except BudgetExceeded as error:
                reservation.cancel()
                tries -= 1
                # Another run was faster. A call with a limit of its own cannot ask for less, and where it can wait for
                # room it does not.
                fixed = "max_output_tokens" in self._request.settings or shared.waits_for(error) is not None
                if not tries or error.dimension not in HELD or fixed:
                    raise
            except BaseException:
                reservation.cancel()
                raise

    async def _reserve_here(self, lease: BudgetLease) -> Reservation:
        """The same against the budgets of this process."""
        frame, request, price = self._frame, self._request, self._price
        most = request.settings.get("max_output_tokens")
        if lease.free or not lease.limited(*TOKEN_LIMITS):
            return await lease.reserve(max_output=most)
        cost_of = None
        if lease.limited("cost"):
            if price is None:
                raise UnknownPrice(self._model.name, path=frame.at)
            cost_of = price.max_cost
        counter = await ready_counter_of(self._model, frame.x.run.resources.counters)
        if self._shown.tokens is not None and request.items is self._shown.items:
            read = self._shown.tokens
        else:
            read = self._history(counter) + _around(self._spec, counter, request)
        self._read = read
        cap = profile_of(self._model).max_output_tokens
        return await lease.reserve(input_tokens=read, max_output=most, cost_of=cost_of, output_cap=cap)

    def _history(self, counter: TokenCounter) -> int:
        items = self._request.items
        if items is self._shown.items:
            return _counted(self._frame.scope, counter, items)
        return sum(counter.count_item(item).value for item in items)

    # -- what it has used

    def _end(self, error: BaseException | None) -> None:
        frame, response = self._frame, self._response
        cost = None
        try:
            used = self._used()
            cost = used.cost
        except BaseException:
            # Whatever a model's price or counter does, nothing stays reserved for ever.
            self._settle(self._reservation.max_usage)
            raise
        finally:
            if self._span is not None:
                self._span.end(response, self._failure, cost)
        self._settle(used)
        if used is not NOTHING_USED:
            _book(frame, used)
        if frame.x.run.metrics is not None:
            self._measure(frame.x.run.metrics, used, error)
        if error is not None and isinstance(error, ModelError):
            error.at(frame.at)
        if frame.x.run.verbose:
            self._log(used, error)
        bus = frame.x.run.bus
        if not bus.active:
            return
        name = self._model.name
        if response is not None and error is None:
            frame.publish(ModelFinished(frame.at, name, response.usage, used.cost))
            return
        why = redact(str(error)) or type(error).__name__ if isinstance(error, Exception) else "stopped"
        tokens = None if used is NOTHING_USED else used.tokens
        frame.publish(ModelFailed(frame.at, name, why, tokens, used.cost))

    def _settle(self, used: Usage) -> None:
        self._reservation.settle(used)
        shared, slices, self._slices = self._frame.x.run.shared, self._slices, ()
        if shared is not None:
            shared.settle(slices, used)

    def _measure(self, metrics: Metrics, used: Usage, error: BaseException | None) -> None:
        names, response = names_of(self._model.name), self._response
        if response is not None and response.model is not None:
            names["gen_ai.response.model"] = response.model
        seconds = self._frame.x.run.runtime.monotonic() - self._began
        metrics.called(names, seconds, None if response is None else response.usage, used.cost, self._failure or error)

    def _log(self, used: Usage, error: BaseException | None) -> None:
        how = "answered" if error is None else f"failed ({type(error).__name__})"
        log(
            "models",
            DEBUG,
            "%s %s: %d input tokens, %d output tokens, cost %s",
            self._model.name,
            how,
            used.tokens.input,
            used.tokens.output,
            used.cost,
            where=self._frame.where,
        )

    def _used(self) -> Usage:
        """Refused before an answer began is nothing; what was cut off in the middle was read, and partly written."""
        if self._response is not None:
            return self._answered(self._response)
        if isinstance(self._failure, UsageInvalid):
            return self._all_reserved()
        return NOTHING_USED if self._was_refused else self._cut_off()

    def _all_reserved(self) -> Usage:
        """All that was reserved, for it is not known what was used."""
        most = self._reservation.max_usage
        if most.cost is None and self._price is not None:
            return evolve(most, cost=self._price.max_cost(most.tokens.input, most.tokens.output))
        self._frame.x.run.unpriced = self._frame.x.run.unpriced or most.cost is None
        return most

    @property
    def _was_refused(self) -> bool:
        failure = self._failure
        if not isinstance(failure, Exception) or isinstance(failure, ModelStreamError):
            return False
        return self._stream is None or isinstance(failure, ModelError)

    def _answered(self, response: ModelResponse) -> Usage:
        tokens = response.usage
        if tokens is None and self._reservation.lease.limited(*TOKEN_LIMITS):
            # A provider that reports nothing must not be free under a token budget.
            counter = counter_of(self._model, self._frame.x.run.resources.counters)
            tokens = TokenUsage(self._read, sum(counter.count_item(item).value for item in response.items))
        cost = response.cost
        if cost is None and self._price is not None:
            cost = self._price.cost(tokens or NO_USAGE)
            if response.server_tools:
                cost += self._fees(self._price, response.server_tools)
        if cost is None:
            self._frame.x.run.unpriced = True
        return Usage(tokens or NO_USAGE, cost)

    def _fees(self, price: Price, uses: Mapping[str, int]) -> Decimal:
        """What the provider charges for its own tools, as far as it is known; it says so where it is not."""
        fees, unknown = price.tool_cost(uses)
        name = self._model.name
        for tool in unknown:
            log(
                "models",
                WARNING,
                "%s used %s %d times, and its fee is not known: set_price(%r, Price(..., tools={%r: ...}))",
                name,
                tool,
                uses[tool],
                name,
                tool,
                where=self._frame.where,
            )
            self._frame.publish(FeeUnknown(self._frame.at, name, tool, uses[tool]))
        return fees

    def _cut_off(self) -> Usage:
        """The minimum usage of a call that never ended: the request, and the received part."""
        text = "" if self._events is None else "".join(self._heard)
        written = counter_of(self._model, self._frame.x.run.resources.counters).count_text(text).value if text else 0
        tokens = TokenUsage(self._read, written)
        if self._price is None:
            self._frame.x.run.unpriced = True
            return Usage(tokens)
        return Usage(tokens, self._price.cost(tokens))


class _SubCall(ProviderCall):
    """A call under a wrapper: the model behind is not part of the run, so that wrappers in it do not count again."""

    _one_of_several = True

    async def __aenter__(self) -> ModelStream:
        token = CALLS.set(None)
        try:
            return await super().__aenter__()
        finally:
            CALLS.reset(token)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        token = CALLS.set(None)
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            CALLS.reset(token)

    async def __anext__(self) -> ModelEvent:
        token = CALLS.set(None)
        try:
            return await super().__anext__()
        finally:
            CALLS.reset(token)

    async def response(self) -> ModelResponse:
        token = CALLS.set(None)
        try:
            return await super().response()
        finally:
            CALLS.reset(token)


@frozen(eq=False)
class RunCalls:
    """Opens the calls of wrappers for the step that asks them; what several use is added up in the step's frame.

    Attributes:
        frame: The step.
        spec: What the step says of its model round.
        shown: The conversation as the step shows it.
    """

    frame: Frame
    spec: ModelSpec
    shown: Shown

    @property
    def runtime(self) -> Runtime:
        """The run's clock and randomness."""
        return self.frame.x.run.runtime

    @property
    def where(self) -> Where:
        """The step that asks."""
        return self.frame.where

    def find(self, name: str, /) -> Model:
        """The model of a name, from the harness's plugins."""
        return self.frame.x.run.resources.models(name)

    def open(
        self, model: Model, request: ModelRequest, /, budget: SharedBudget | None = None
    ) -> AbstractAsyncContextManager[ModelStream]:
        """A call of a model that is not a wrapper."""
        call = _SubCall(self.frame, self.spec, model, request, self.shown)
        call.budget = budget
        return call


def check_reported(model: str, response: ModelResponse) -> None:
    """Refuse a usage or a cost that cannot be booked.

    Raises:
        UsageInvalid: One is negative, not whole, not finite, too large, of another type, or a part is more than the
            whole.
    """
    if response.usage is None and response.cost is None:
        return
    problem = problem_of(response.usage, response.cost)
    if problem is not None:
        raise UsageInvalid(
            f"{model} reported a usage that cannot be booked: {problem}",
            model=model,
            hint="mend the model's adapter; a usage that is not known is None",
        )


def _not_entered() -> RuntimeError:
    return RuntimeError("enter the call before asking for its answer")


def _book(frame: Frame, used: Usage) -> None:
    """Add what a call used to what its step has used."""
    frame.noted = True
    before, cost = frame.used_tokens, frame.used_cost
    frame.used_tokens = used.tokens if before is None else before + used.tokens
    if used.cost is not None:
        frame.used_cost = used.cost if cost is None else cost + used.cost


def _counted(scope: ContextScope, counter: TokenCounter, items: Sequence[Item]) -> int:
    """Tokens of the conversation: what was counted for the last call of this scope is not counted again."""
    start = total = 0
    counted = scope.counted
    # Where the item that was last then still stands, nothing before it was taken back either.
    if counted is not None and counted.counter is counter and items[counted.size - 1 : counted.size] == (counted.last,):
        start, total = counted.size, counted.total
    for item in items[start:]:
        total += counter.count_item(item).value
    if items:
        scope.counted = Counted(counter, len(items), items[-1], total)
    return total


class _Bytes:
    """Counts more tokens than any tokenizer does, and needs none: no token is shorter than a byte."""

    def count_text(self, text: str, /) -> TokenCount:
        return TokenCount(len(text) if text.isascii() else 4 * len(text), "estimated")

    def count_item(self, item: Item, /) -> TokenCount:
        texts: Sequence[str] = ()
        match item:
            case Message() if all(isinstance(part, InputText | OutputText) for part in item.content):
                texts = (item.text,)
            case FunctionCall():
                texts = (item.name, item.arguments)
            case FunctionCallOutput() if isinstance(item.output, str):
                texts = (item.output,)
            case _:
                return TokenCount(_UNKNOWN, "estimated")
        return TokenCount(_FRAME + sum(self.count_text(text).value for text in texts), "estimated")


_BYTES = _Bytes()
_FRAME = 16
"""More than what stands around an item takes."""
_UNKNOWN = 1 << 40


def has_room(frame: Frame, spec: ModelSpec, model: Model, request: ModelRequest) -> bool:
    """Whether a request certainly has room in the model's window, found without a tokenizer."""
    window, scope = profile_of(model).context_window, frame.scope
    if window is None:
        return True
    if scope.view is not None or frame.lease.limited(*TOKEN_LIMITS):
        return False
    limit = window - room_for_answer(model, request, window)
    return _around(spec, _BYTES, request) + _counted(scope, _BYTES, request.items) <= limit


# The part of a window that is kept for the answer where no limit is given.
_ANSWER_PART = 8


def room_for_answer(model: Model, request: ModelRequest, window: int) -> int:
    """Tokens of a window that are kept for the answer."""
    longest = request.settings.get("max_output_tokens") or profile_of(model).max_output_tokens or window
    return min(longest, window // _ANSWER_PART)


def _around(spec: ModelSpec, counter: TokenCounter, request: ModelRequest) -> int:
    """Tokens of what stands around the conversation, remembered while it stays the same."""
    key = (counter, request.instructions, request.tools, request.output)
    known = spec.counted.get("around")
    if known is not None and all(a is b or a == b for a, b in zip(known[0], key, strict=True)):
        total: int = known[1]
        return total
    texts = [request.instructions or "", *(json.dumps(definition) for definition in request.tools)]
    if request.output is not None:
        texts.append(json.dumps(request.output.schema))
    total = sum(counter.count_text(text).value for text in texts if text)
    spec.counted.put("around", (key, total))
    return total
