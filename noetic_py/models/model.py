"""The model interface: one request in, a stream of events out, one response at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from attrs import field, frozen
from typing_extensions import TypedDict

from noetic_py.core.items import Item, ItemBase, JsonValue
from noetic_py.core.logs import NOWHERE, Where
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.core.secrets import Secret
from noetic_py.core.usage import TokenUsage
from noetic_py.errors import RealModelRefused
from noetic_py.models.price import Price

__all__ = [
    "CALLS",
    "Calls",
    "ItemDone",
    "JsonValue",
    "Model",
    "ModelEvent",
    "ModelProfile",
    "ModelRequest",
    "ModelResponse",
    "ModelSettings",
    "ModelStream",
    "OutputSchema",
    "Price",
    "ProfiledModel",
    "ReasoningPart",
    "StopReason",
    "TextPart",
    "ToolCallPart",
    "allow_real_models",
    "check_real_model",
    "current_runtime",
    "current_where",
]

_allowed: ContextVar[bool | None] = ContextVar("noetic_real_models", default=None)
_default = True


def set_real_models_default(allowed: bool) -> bool:
    """Set what holds where no other decision was made, and return what held before; the pytest plugin forbids."""
    global _default
    before, _default = _default, allowed
    return before


@contextmanager
def allow_real_models(allowed: bool = True) -> Generator[None]:
    """Allow, or forbid, real models for the block and the tasks it starts.

    Args:
        allowed: `False` makes every real model raise [`RealModelRefused`][noetic_py.errors.RealModelRefused].
    """
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_real_model(name: str) -> None:
    """Called by every provider before it opens a connection.

    Args:
        name: The model's name.

    Raises:
        RealModelRefused: Real models are forbidden here.
    """
    allowed = _allowed.get()
    if not (_default if allowed is None else allowed):
        raise RealModelRefused(
            f"a real model was called in a test: {name}",
            model=name,
            hint="use ScriptedModel, or `with allow_real_models():` in a test that means it",
        )


class Calls(Protocol):
    """What a run does for the wrappers it asks."""

    @property
    def runtime(self) -> Runtime:
        """The run's clock and randomness."""
        ...

    @property
    def where(self) -> Where:
        """The step that asks, for log records."""
        ...

    def find(self, name: str, /) -> Model:
        """The model of a name.

        Raises:
            ModelNotFound: No plugin knows it.
        """
        ...

    def open(self, model: Model, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """A call of a model that is no wrapper, reserved on entering and settled on leaving.

        Raises:
            BudgetExceeded: On entering: the call does not fit the budget.
        """
        ...


CALLS: ContextVar[Calls | None] = ContextVar("noetic_model_calls", default=None)
"""Who opens calls here; `None` outside of a run, and inside a model that is no wrapper."""


def current_runtime() -> Runtime:
    """The clock and randomness of the run that asks; the machine's own outside of one."""
    calls = CALLS.get()
    return SYSTEM if calls is None else calls.runtime


def current_where() -> Where:
    """Where a log record of a wrapper belongs: to the step that asks, if there is one."""
    calls = CALLS.get()
    return NOWHERE if calls is None else calls.where


StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "other"]
"""Why a model stopped."""


class ModelSettings(TypedDict, total=False):
    """Settings of one model call; what is left out is the provider's default.

    Attributes:
        temperature: Sampling temperature.
        top_p: Nucleus sampling mass.
        max_output_tokens: The most tokens the model may write, reasoning included.
        tool_choice: `"auto"`, `"required"`, `"none"` or the name of the one tool to call.
        parallel_tool_calls: Whether one answer may hold several calls.
        seed: Sampling seed, where a provider has one.
        stop: Texts that end the answer.
        reasoning_effort: `"minimal"`, `"low"`, `"medium"` or `"high"`, where a model reasons.
        timeout: Seconds the provider may take to begin its answer.
        extra: Provider's own fields, passed on as they are; a `Secret` in it is revealed to the provider alone.
    """

    temperature: float
    top_p: float
    max_output_tokens: int
    tool_choice: Literal["auto", "required", "none"] | str
    parallel_tool_calls: bool
    seed: int
    stop: Sequence[str]
    reasoning_effort: Literal["minimal", "low", "medium", "high"]
    timeout: float
    extra: Mapping[str, JsonValue | Secret[Any]]


def merge_settings(*parts: ModelSettings) -> ModelSettings:
    """Settings put together; a later part wins."""
    merged = ModelSettings()
    for part in parts:
        merged.update(part)
    return merged


@frozen
class OutputSchema:
    """The JSON schema an answer has to follow.

    Attributes:
        name: A short name, as providers ask for one.
        schema: The JSON schema; its root is an object.
        strict: Whether the provider is to enforce it, where it can.
    """

    name: str
    schema: Mapping[str, JsonValue]
    strict: bool = True


@frozen
class ModelRequest:
    """One call of a model.

    Attributes:
        items: The conversation as the model shall see it: provider-valid, every call has its output.
        instructions: The system instructions, `None` for none.
        tools: Function tools: mappings with `name`, `description`, `parameters` (a JSON schema) and `strict`.
        settings: The call's settings.
        output: The schema the answer has to follow, `None` for free text.
        stable: How many items at the start are likely to be the same in the next call of this conversation, for
            providers that want to be told what to cache.
        cache_key: The same text for all calls of a conversation, for providers that look for what they have cached by
            such a key; a digest, in which neither the thread's nor the user's id can be read. `None` outside of a run.
        metadata: What is known of the run: its `metadata=`, and `user_id`, `session_id` and `app_name` where it has
            them and does not say otherwise. For models and wrappers to look at; the library's own send none of it.
    """

    items: Sequence[Item]
    instructions: str | None = None
    tools: Sequence[Mapping[str, JsonValue]] = ()
    settings: ModelSettings = field(factory=ModelSettings)
    output: OutputSchema | None = None
    stable: int = 0
    cache_key: str | None = None
    metadata: Mapping[str, JsonValue] = field(factory=dict[str, JsonValue])


@frozen
class ModelResponse:
    """What one call gave.

    Attributes:
        items: Messages, reasoning and function calls, in the model's order.
        usage: Tokens as the provider reported them, `None` when it did not.
        cost: USD as the provider reported it, `None` when it did not; the price table then tells.
        stop_reason: Why the model stopped.
        model: The name of the model that really answered.
        response_id: The provider's id of the answer.
    """

    items: Sequence[Item]
    usage: TokenUsage | None = None
    cost: Decimal | None = None
    stop_reason: StopReason = "stop"
    model: str | None = None
    response_id: str | None = None


@frozen
class TextPart:
    """A piece of the answer's text."""

    delta: str
    item_id: str | None = None


@frozen
class ReasoningPart:
    """A piece of visible reasoning."""

    delta: str
    item_id: str | None = None


@frozen
class ToolCallPart:
    """A piece of a function call's arguments."""

    call_id: str
    name: str
    delta: str


@frozen
class ItemDone:
    """An item of the answer is whole."""

    item: ItemBase


ModelEvent: TypeAlias = TextPart | ReasoningPart | ToolCallPart | ItemDone
"""What a stream of an answer is made of."""


class ModelStream(Protocol):
    """An answer under way: iterate for its events, then ask for the whole."""

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        """The events in order; may be left early."""
        ...

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated."""
        ...


class Model(Protocol):
    """A model as the engine sees it."""

    @property
    def name(self) -> str:
        """The name it is known by, such as `"openai:gpt-5-mini"`."""
        ...

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask; the answer is streamed while the context manager is open.

        Raises:
            ModelError: One of its subclasses, on entering or while streaming.
        """
        ...


@frozen
class ModelProfile:
    """What a model says of itself; `None` where it does not know.

    Attributes:
        context_window: Tokens that request and answer may have together.
        max_output_tokens: The most tokens one answer may have.
        price: Its price; the price table is asked when `None`.
        encoding: The tiktoken encoding that counts for it.
        settings: Names of settings that it takes besides those of [`ModelSettings`][noetic_py.ModelSettings].
    """

    context_window: int | None = None
    max_output_tokens: int | None = None
    price: Price | None = None
    encoding: str | None = None
    settings: frozenset[str] = frozenset()


@runtime_checkable
class ProfiledModel(Protocol):
    """A model that tells its window, its price and its tokenizer."""

    @property
    def profile(self) -> ModelProfile:
        """What is known of it."""
        ...
