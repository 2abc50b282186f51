"""`ModelWrapper`, a model made of another one, and the wrappers of the library: timed, limited, fallback, retry."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from logging import WARNING
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

import anyio
from anyio import CancelScope
from attrs import define, field

from noetic_py import errors
from noetic_py.core.diagnostics import log
from noetic_py.core.runtime import Runtime
from noetic_py.core.shared_budget import HELD, SharedBudget
from noetic_py.models.model import (
    CALLS,
    Model,
    ModelEvent,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelStream,
    close_events,
    current_runtime,
    current_where,
    profile_of,
)

Part: TypeAlias = ModelEvent | ModelResponse
"""An incoming answer: its events, then the whole response."""


class ModelWrapper:
    """A model that passes requests on to another one; the base of all wrappers, also of your own.

    A wrapper overrides `respond`, and asks its model through `ask`, never through the model's own `respond`. Then each
    request that really goes to a provider is a call of its own in the run: within the budget, with that model's price,
    and with events of its own. Whatever way a wrapper is left, it has to leave what it has entered.

    ```python
    class Polite(ModelWrapper):
        @asynccontextmanager
        async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
            async with self.ask(self.model, evolve(request, instructions="Be polite.")) as stream:
                yield stream
    ```

    Args:
        model: The model to ask, or its name, which only a run can resolve.

    Raises:
        ConfigError: It is not a model; code `"model-wrapper"`.
    """

    def __init__(self, model: Model | str) -> None:
        self.model: Model | str = checked_model(model)

    @property
    def name(self) -> str:
        """The name of the model behind."""
        return name_of(self.model)

    @property
    def profile(self) -> ModelProfile:
        """The properties of the wrapped model; empty while it is only a name."""
        return ModelProfile() if isinstance(self.model, str) else profile_of(self.model)

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask the model behind.

        Raises:
            ModelError: One of its subclasses, on entering, while streaming or on leaving.
            BudgetExceeded: In a run: the budget does not allow the call.
        """
        return self.ask(self.model, request)

    @staticmethod
    def ask(model: Model | str, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Ask a model on behalf of the run that asks this wrapper, or simply ask it where there is none.

        Args:
            model: The model, or its name.
            request: What to ask.

        Raises:
            ModelNotFound: It is a name that no plugin knows, or there is no run to resolve it.
        """
        calls = CALLS.get()
        if isinstance(model, str):
            if calls is None:
                raise errors.ModelNotFound(
                    f"the model {model!r} is only a name, and no run is here to resolve it",
                    model=model,
                    hint="give the wrapper an object, or use it as a run's model",
                )
            model = calls.find(model)
        if calls is None or isinstance(model, ModelWrapper):
            return model.respond(request)
        return calls.open(model, request)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class GeneratedAnswer:
    """An answer whose parts come out of a generator, which may ask as often as it likes.

    It is the context manager and the stream. The generator is begun on entering, so that what fails before the answer
    begins is raised there, and it is closed before the block is left, with all that it has entered.

    Args:
        name: The name of the model that answers, for errors.
        parts: The answer's events, and then the whole.
    """

    __slots__ = ("_first", "_name", "_parts", "_whole")

    def __init__(self, name: str, parts: AsyncGenerator[Part]) -> None:
        self._name = name
        self._parts = parts
        self._first: ModelEvent | None = None
        self._whole: ModelResponse | None = None

    async def __aenter__(self) -> GeneratedAnswer:
        self._first = await self._pull()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        # Closed without the error: an error of the reader is not a failure of the wrapped model.
        await self._parts.aclose()

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        event, self._first = self._first, None
        if event is None:
            event = await self._pull()
        if event is None:
            raise StopAsyncIteration
        return event

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated.

        Raises:
            ModelStreamError: The answer broke off, which was raised before.
        """
        async for _ in self:
            pass
        if self._whole is None:
            raise errors.ModelStreamError("the answer broke off before it was whole", model=self._name)
        return self._whole

    async def _pull(self) -> ModelEvent | None:
        async for part in self._parts:
            if not isinstance(part, ModelResponse):
                return part
            self._whole = part
        return None


async def parts_of(stream: ModelStream) -> AsyncGenerator[Part]:
    """The events of a stream that are still to come, and then the whole; close it when it is left early."""
    events = aiter(stream)
    try:
        async for event in events:
            yield event
    finally:
        await close_events(events)
    yield await stream.response()


def name_of(model: Model | str) -> str:
    """The name of a model, or the name itself."""
    return model if isinstance(model, str) else model.name


def checked_model(model: object, *, code: str = "model-wrapper") -> Model | str:
    """The model, or its name.

    Raises:
        ConfigError: It is neither.
    """
    if _is_model(model):
        return model
    raise errors.ConfigError(
        f"{model!r} is not a valid model; expected a model or its name",
        code=code,
        hint='give a name such as "openai:gpt-5-mini", or an object that has been made, not its class',
    )


def _is_model(model: object) -> TypeGuard[Model | str]:
    if isinstance(model, str):
        return bool(model)
    return not isinstance(model, type) and callable(getattr(model, "respond", None)) and hasattr(model, "name")


def checked_count(value: object, name: str, *, code: str, least: int = 1) -> int:
    """The whole number.

    Raises:
        ConfigError: It is not valid, or below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise errors.ConfigError(
            f"{name}={value!r} is not a whole number, {least} or more", code=code, hint=f"{name}={max(least, 3)}"
        )
    return value


def checked_seconds(value: Any, name: str, *, code: str, zero: bool = False) -> float:
    """The seconds.

    Raises:
        ConfigError: They are not finite numbers above 0, or 0 where that has a meaning.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 <= value < float("inf") and (value > 0 or zero):
        return float(value)
    bound = "0 or more" if zero else "above 0"
    raise errors.ConfigError(
        f"{name}={value!r} is not a finite number of seconds, {bound}", code=code, hint=f"{name}=30.0"
    )


_TIMED = "timed-model"
_T = TypeVar("_T")

Limit: TypeAlias = Literal["begin", "idle", "total"]
_NEVER = float("inf")


class TimedModel(ModelWrapper):
    """Gives up on an answer that takes too long, which is then an error that another try may mend.

    The seconds count while the answer is waited for, and not while its reader is busy. What the models inside of it
    wait for counts as well: a place in a `LimitedModel`, a budget that others have to give something back to first, the
    pauses of a `RetryModel`.

    As with `anyio.fail_after`, the block of the answer is cancelled, and the error is raised where the block is left.

    Args:
        model: The model to ask, or its name.
        begin: Seconds to the first event of the answer; to the whole, for a model that streams none.
        idle: Seconds from one event to the next.
        total: Seconds to the end of the answer.

    Raises:
        ConfigError: A number is out of range, or no time is given; code `"timed-model"`.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        begin: float | None = None,
        idle: float | None = None,
        total: float | None = None,
    ) -> None:
        super().__init__(model)
        given: dict[Limit, float | None] = {"begin": begin, "idle": idle, "total": total}
        self.seconds: dict[Limit, float] = {
            name: checked_seconds(value, name, code=_TIMED) for name, value in given.items() if value is not None
        }
        if not self.seconds:
            raise errors.ConfigError("no time is given", code=_TIMED, hint="TimedModel(model, begin=60.0, idle=30.0)")

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Ask, and wait for the first event.

        Raises:
            ModelUnavailable: On entering: the answer did not begin in time.
            ModelStreamError: On leaving: it did not go on, or did not end, in time.
            ModelError: The model behind failed.
            BudgetExceeded: In a run: the budget does not allow the call.
        """
        watch = _Watch(self.seconds)
        # One scope around all of it, and not one around each wait: the model behind may open scopes of its own in one
        # wait and close them in another, and scopes have to be closed in the reverse order.
        with watch.scope:
            watch.start("begin")
            async with self.ask(self.model, request) as stream:
                timed = _TimedStream(stream, watch)
                try:
                    await timed.begin()
                    if watch.late:
                        raise watch.error(self.name)
                    yield timed
                finally:
                    await timed.close()
        if watch.scope.cancelled_caught or watch.late:
            raise watch.error(self.name)


class _Watch:
    """Cancels its scope when something that is waited for does not come in time."""

    __slots__ = ("_end", "_limit", "_seconds", "begun", "late", "scope")

    def __init__(self, seconds: Mapping[Limit, float]) -> None:
        self._seconds = seconds
        self._end = anyio.current_time() + seconds.get("total", _NEVER)
        self._limit: Limit = "total"
        self.begun = False
        # Whether something came when its time was over, from a model that blocks or catches its cancellation.
        self.late = False
        self.scope = CancelScope()

    def start(self, limit: Limit) -> None:
        """Something is waited for."""
        if self.late:
            return
        deadline = anyio.current_time() + self._seconds.get(limit, _NEVER)
        self._limit = limit if deadline < self._end else "total"
        self.scope.deadline = min(deadline, self._end)

    def stop(self) -> None:
        """It has come."""
        if anyio.current_time() >= self.scope.deadline:
            self.late = True
        else:
            self.scope.deadline = _NEVER

    async def wait(self, awaited: Awaitable[_T]) -> _T:
        """Wait for a part of an answer that has begun."""
        self.start("idle")
        try:
            return await awaited
        finally:
            self.stop()

    def error(self, model: str) -> errors.ModelError:
        """The error after the timeout."""
        seconds = self._seconds[self._limit]
        what = {
            "begin": f"the answer did not begin within {seconds:g} s",
            "idle": f"the stream stalled: nothing came for {seconds:g} s",
            "total": f"the answer took longer than {seconds:g} s",
        }
        kind = errors.ModelStreamError if self.begun else errors.ModelUnavailable
        return kind(what[self._limit], model=model, hint=f"raise {self._limit}= of the TimedModel, or try again")


class _TimedStream:
    """A stream that is watched, and that reads by itself when it is not iterated."""

    __slots__ = ("_events", "_first", "_stream", "_watch", "_whole")

    def __init__(self, stream: ModelStream, watch: _Watch) -> None:
        self._stream = stream
        self._watch = watch
        self._events = aiter(stream)
        self._first: ModelEvent | None = None
        self._whole: ModelResponse | None = None

    async def begin(self) -> None:
        """Wait for the first event; without one for the whole."""
        self._first = await anext(self._events, None)
        if self._first is None:
            self._whole = await self._stream.response()
        self._watch.stop()
        self._watch.begun = not self._watch.late

    async def close(self) -> None:
        """End the iteration, which may have been left in the middle."""
        await close_events(self._events)

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        event, self._first = self._first, None
        return event if event is not None else await self._watch.wait(anext(self._events))

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated, one event after the other, since each has its time."""
        async for _ in self:
            pass
        if self._whole is None:
            self._whole = await self._watch.wait(self._stream.response())
        return self._whole


_LIMITED = "limited-model"
_MINUTE = 60.0
_ROUNDING = 1e-6


class LimitedModel(ModelWrapper):
    """Limits concurrent requests, requests per minute and the budget of a model; further requests wait.

    Requests run in order of arrival. A request holds its slot until its stream is closed, and waits for one before
    anything is reserved for it in a budget. All callers of one `LimitedModel` share its slots: the paths of a run, and
    all runs of one event loop.

    It counts the requests that come to it. Put it inside of a `RetryModel`, and every try waits for its turn; put it
    around one, and a request keeps its place over all its tries.

    A budget holds for all processes whose runs have the same store. It is of one model, so the model inside of it is no
    wrapper.

    Args:
        model: The model to ask, or its name.
        concurrency: Requests at once; `None` for any number.
        requests_per_minute: Requests that may begin within any 60 seconds; `None` for any number.
        max_waiting: Requests that may wait for a place; one more is refused. `None` lets any number wait.
        budget: What all runs that ask this model may use, such as its tokens a minute; they have to be stored.

    Raises:
        ConfigError: A number is out of range, no limit is given, or the budget is not one of a model; code
            `"limited-model"`.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        concurrency: int | None = None,
        requests_per_minute: int | None = None,
        max_waiting: int | None = None,
        budget: SharedBudget | None = None,
    ) -> None:
        super().__init__(model)
        if concurrency is None and requests_per_minute is None and budget is None:
            raise errors.ConfigError("nothing is limited", code=_LIMITED, hint="LimitedModel(model, concurrency=4)")
        for name, value, least in (
            ("concurrency", concurrency, 1),
            ("requests_per_minute", requests_per_minute, 1),
            ("max_waiting", max_waiting, 0),
        ):
            if value is not None:
                checked_count(value, name, code=_LIMITED, least=least)
        self.concurrency: int | None = concurrency
        self.requests_per_minute: int | None = requests_per_minute
        self.max_waiting: int | None = max_waiting
        self.budget: SharedBudget | None = budget
        if budget is not None:
            _check_model_budget(budget, model)
        self._limiter = _CallLimiter(concurrency, requests_per_minute)

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._limiter.line)

    @property
    def running(self) -> int:
        """Requests that have a place now."""
        return self._limiter.running

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Wait for a place, and ask.

        Raises:
            ModelBusy: On entering: too many wait already.
            ModelError: The model behind failed.
            BudgetExceeded: In a run: the budget does not allow the call.
            ConfigError: It has a budget, and no stored run asks; code `"budgets"`.
        """
        limiter, runtime = self._limiter, current_runtime()
        if not limiter.try_enter(runtime):
            if self.max_waiting is not None and len(limiter.line) >= self.max_waiting:
                raise errors.ModelBusy(len(limiter.line), model=self.name)
            await limiter.wait(runtime)
        try:
            async with self._asked(request) as stream:
                yield stream
        finally:
            limiter.leave()

    def _asked(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Ask the model, within its budget."""
        if self.budget is None:
            return self.ask(self.model, request)
        calls = CALLS.get()
        if calls is None:
            raise errors.ConfigError(
                f"the shared budget {self.budget.name!r} of {self.name!r} is not valid outside of a run; expected a "
                "step that asks",
                code="budgets",
                hint='Harness(model=..., checkpoints="sqlite:runs.db")',
            )
        model = calls.find(self.model) if isinstance(self.model, str) else self.model
        _check_model_budget(self.budget, model)
        return calls.open(model, request, budget=self.budget)


# What a call of a model counts against; steps and tools are not of a model.
_OF_MODELS = HELD | {"model_calls"}


def _check_model_budget(budget: object, model: object) -> None:
    """Refuse a budget that is not one of a model.

    Raises:
        ConfigError: It is not a shared budget, or limits something else, or the model is a wrapper.
    """
    if not isinstance(budget, SharedBudget):
        raise errors.ConfigError(
            f"budget={budget!r} is not a valid budget of a model; expected a SharedBudget",
            code=_LIMITED,
            hint='SharedBudget("openai", Budget(model_calls=500), per="minute", wait=True)',
        )
    other = next((name for name in budget.budget.limits if name not in _OF_MODELS), None)
    if other is not None:
        raise errors.ConfigError(
            f"a budget with {other}= is not a valid budget of a model; expected model_calls=, tokens or cost",
            code=_LIMITED,
            hint="give it to the harness or to a run",
        )
    if isinstance(model, ModelWrapper):
        raise errors.ConfigError(
            f"{model!r} is not a valid model to have a budget; expected one that is not a wrapper",
            code=_LIMITED,
            hint="RetryModel(LimitedModel(model, budget=...)), and not the other way round",
        )


@define(eq=False)
class _WaitingCall:
    """A place in the line; `called` when the waiter should look again."""

    called: anyio.Event = field(factory=anyio.Event)


@define(eq=False)
class _CallLimiter:
    """Limits calls by number and by rate, in order of arrival.

    A finished call wakes the first waiter, which then checks the limits itself and takes its slot without waiting in
    between. So a call that is cancelled while it waits holds no slot that it would have to pass on.
    """

    concurrency: int | None
    per_minute: int | None
    running: int = 0
    line: deque[_WaitingCall] = field(factory=deque[_WaitingCall])
    # When the latest requests began: as many as a minute allows, the oldest first, and by whose clock.
    _begun: deque[float] = field(init=False)
    _clock: Runtime | None = None

    def __attrs_post_init__(self) -> None:
        self._begun = deque(maxlen=self.per_minute or 0)

    def try_enter(self, runtime: Runtime) -> bool:
        """Take a slot if none waits and one is free."""
        if self.line or self._is_full or self._pause(runtime):
            return False
        self._take(runtime)
        return True

    async def wait(self, runtime: Runtime) -> None:
        """Wait in line for a slot, and take it."""
        place = _WaitingCall()
        self.line.append(place)
        try:
            while True:
                if self.line[0] is not place or self._is_full:
                    await place.called.wait()
                    place.called = anyio.Event()
                elif pause := self._pause(runtime):
                    await runtime.sleep(pause)
                else:
                    break
            self._take(runtime)
        finally:
            self.line.remove(place)
            self._call_first()

    def leave(self) -> None:
        """Release the slot."""
        self.running -= 1
        self._call_first()

    @property
    def _is_full(self) -> bool:
        return self.concurrency is not None and self.running >= self.concurrency

    def _take(self, runtime: Runtime) -> None:
        self.running += 1
        self._begun.append(runtime.monotonic())

    def _call_first(self) -> None:
        if self.line:
            self.line[0].called.set()

    def _pause(self, runtime: Runtime) -> float:
        """Seconds until another request may begin."""
        if self.per_minute is None:
            return 0.0
        if runtime is not self._clock:
            # Times of two clocks have nothing to do with each other.
            self._clock = runtime
            self._begun.clear()
        if len(self._begun) < self.per_minute:
            return 0.0
        left = self._begun[0] + _MINUTE - runtime.monotonic()
        # Less is what adding and subtracting has left.
        return left if left > _ROUNDING else 0.0


_FALLBACK = "fallback-model"
_Candidate = TypeVar("_Candidate", bound=Hashable)

# No key or a wrong one, nothing paid, not allowed, not known, no longer there: all of that is about one provider.
_OF_THE_PROVIDER = frozenset({401, 402, 403, 404, 410})


class FallbackModel(ModelWrapper):
    """Asks its models one after the other, until one answers.

    The next model is asked when one fails with an error that it may not have: every `retryable` one, every rate limit,
    a name that cannot be resolved, a key that is not accepted, a model that the provider does not have. A model that
    refuses, a request that is wrong or too large, and an answer that does not fit would be the same everywhere, and are
    raised as they are. What was streamed of a failed answer is discarded, and the events of the next model follow.

    Each model's calls have its own price and its own tokenizer. `ModelResponse.model` names the model that answered.

    Args:
        models: The models, or their names, the best first.
        when: Whether the next model is asked after an error; only errors of models are asked about.

    Raises:
        ConfigError: There are no models, one is none, or `when` is not a function; code `"fallback-model"`.
    """

    def __init__(self, *models: Model | str, when: Callable[[errors.ModelError], bool] | None = None) -> None:
        if not models:
            raise errors.ConfigError(
                "() is not a valid list of models; expected at least one",
                code=_FALLBACK,
                hint="FallbackModel(first, second)",
            )
        if when is not None and not callable(when):
            raise errors.ConfigError(
                f"when={when!r} is not a valid condition; expected a function of an error",
                code=_FALLBACK,
                hint="when=lambda error: error.retryable",
            )
        self.models: tuple[Model | str, ...] = tuple(checked_model(model, code=_FALLBACK) for model in models)
        super().__init__(self.models[0])
        self.when: Callable[[errors.ModelError], bool] = may_differ if when is None else when

    @property
    def name(self) -> str:
        """The names of all models, such as `"openai:gpt-5-mini|local:smollm2"`."""
        return "|".join(map(name_of, self.models))

    @property
    def profile(self) -> ModelProfile:
        """The common properties of all models: the smallest window, and an equal price or tokenizer."""
        profiles = [ModelProfile() if isinstance(model, str) else profile_of(model) for model in self.models]
        return ModelProfile(
            context_window=_least(profile.context_window for profile in profiles),
            max_output_tokens=_least(profile.max_output_tokens for profile in profiles),
            price=_common(profile.price for profile in profiles),
            encoding=_common(profile.encoding for profile in profiles),
            settings=frozenset[str]().union(*(profile.settings for profile in profiles)),
        )

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask the models in order.

        Raises:
            AllModelsFailed: Every model failed.
            ModelError: A model failed in a way for which `when` asks no other.
            BudgetExceeded: In a run: the budget does not allow the next call.
        """
        return GeneratedAnswer(self.name, self._parts(request))

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[Part]:
        failures: list[tuple[str, errors.ModelError]] = []
        for model in self.models:
            try:
                async with self.ask(model, request) as stream, aclosing(parts_of(stream)) as parts:
                    async for part in parts:
                        yield part
                return
            except errors.ModelError as error:
                if not self.when(error):
                    raise
                failures.append((name_of(model), error))
                left = len(self.models) - len(failures)
                if left:
                    name = name_of(model)
                    message = "%s failed, the next of %d others is asked: %s"
                    log("models", WARNING, message, name, left, error.message, where=current_where())
        raise errors.AllModelsFailed(failures, model=self.name) from failures[-1][1]


def may_differ(error: errors.ModelError) -> bool:
    """Whether another model may answer where one failed so."""
    if isinstance(error, errors.AllModelsFailed):
        return True
    if isinstance(error, errors.ModelStatusError) and error.status in _OF_THE_PROVIDER:
        return True
    # An account that is empty answers with a rate limit that no waiting lifts.
    return is_retryable(error) or isinstance(error, (errors.ModelNotFound, errors.RateLimited))


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _common(values: Iterable[_Candidate | None]) -> _Candidate | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None


_RETRY = "retry-model"


class RetryModel(ModelWrapper):
    """Asks its model again when a call failed in a way that another try may mend.

    That is every error whose `retryable` is true: rate limits, errors of the server, a provider that cannot be reached,
    a stream that was cut, stalled or is malformed. What a failed try has streamed is discarded, and the events of the
    next one follow; a run says so with [`ModelFailed`][noetic_py.core.events.ModelFailed]. Each try is a
    call of its own in the budget, and nothing is held while the wrapper waits.

    The waits grow from `initial` seconds, twice as long each time, up to `max`, and each is a random part of that. A
    provider that says how long to wait is heard: the wait begins when that time is over.

    When the last try fails, its error is raised.

    Args:
        model: The model to ask, or its name.
        attempts: Tries in all, at least 1.
        initial: The most seconds to wait after the first try.
        max: The most seconds to wait after any.
        jitter: Whether each wait is a random part of what it may be, or all of it.
        max_wait: The most seconds that a provider may ask to wait; one that asks for more is not waited for, and its
            error is raised at once.
        on: The errors worth another try: classes, or a function of the error. Only errors of models are tried again,
            whatever it says.

    Raises:
        ConfigError: An argument is of the wrong kind or out of range; code `"retry-model"`.
    """

    def __init__(
        self,
        model: Model | str,
        attempts: int = 3,
        *,
        initial: float = 0.5,
        max: float = 30.0,
        jitter: bool = True,
        max_wait: float = 60.0,
        on: tuple[type[errors.ModelError], ...] | Callable[[errors.ModelError], bool] | None = None,
    ) -> None:
        super().__init__(model)
        self.attempts: int = checked_count(attempts, "attempts", code=_RETRY)
        self.initial: float = checked_seconds(initial, "initial", code=_RETRY, zero=True)
        self.max: float = checked_seconds(max, "max", code=_RETRY, zero=True)
        self.max_wait: float = checked_seconds(max_wait, "max_wait", code=_RETRY, zero=True)
        self.jitter: bool = jitter
        self.on: Callable[[errors.ModelError], bool] = _chooser(on)

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask, and ask again.

        Raises:
            ModelError: The last try's, or one that another try cannot mend.
            BudgetExceeded: In a run: the budget does not allow another try.
        """
        return GeneratedAnswer(self.name, self._parts(request))

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[Part]:
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self.ask(self.model, request) as stream, aclosing(parts_of(stream)) as parts:
                    async for part in parts:
                        yield part
                return
            except errors.ModelError as error:
                asked = waiting_time(error)
                if attempt == self.attempts or asked > self.max_wait or not self.on(error):
                    raise
                failure = error
            await self._wait(attempt, asked, failure)

    async def _wait(self, attempt: int, asked: float, failure: errors.ModelError) -> None:
        runtime = current_runtime()
        longest = min(self.initial * (1 << min(attempt - 1, 62)), self.max)
        seconds = asked + (longest * runtime.random() if self.jitter else longest)
        log(
            "models",
            WARNING,
            "try %d of %d of %s failed, the next follows in %.3g s: %s",
            attempt,
            self.attempts,
            self.name,
            seconds,
            failure.message,
            where=current_where(),
        )
        await runtime.sleep(seconds)


def is_retryable(error: errors.ModelError) -> bool:
    """Whether the same request may succeed later."""
    # A request stays too large, even where a server says so with a status of 500.
    return error.retryable and not isinstance(error, errors.ContextOverflow)


def waiting_time(error: errors.ModelError) -> float:
    """Seconds that the provider asks to wait; of several, the one that asks for the least."""
    if isinstance(error, errors.AllModelsFailed):
        return min((waiting_time(each) for _, each in error.failures if is_retryable(each)), default=0.0)
    asked = error.retry_after if isinstance(error, errors.RateLimited) else None
    return asked if asked is not None and asked > 0 else 0.0


_Errors: TypeAlias = tuple[type[errors.ModelError], ...] | Callable[[errors.ModelError], bool]


def _chooser(on: _Errors | None) -> Callable[[errors.ModelError], bool]:
    if on is None:
        return is_retryable
    if isinstance(on, tuple) and _are_errors(on):
        return lambda error: isinstance(error, on)
    if isinstance(on, (tuple, type)) or not callable(on):
        raise errors.ConfigError(
            f"on={on!r} is neither a tuple of model errors nor a function", code=_RETRY, hint="on=(RateLimited,)"
        )
    return on


def _are_errors(kinds: Any) -> bool:
    return all(isinstance(each, type) and issubclass(each, errors.ModelError) for each in kinds)
