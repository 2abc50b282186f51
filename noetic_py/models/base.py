"""What the engine asks of a model: one request in, a stream of events out, one response at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from attrs import field, frozen
from typing_extensions import TypedDict

from noetic_py.budget import TokenUsage
from noetic_py.items import Item, ItemBase, JsonValue
from noetic_py.secret import Secret

__all__ = [
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
]

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
class Price:
    """USD a model costs; exact, so that a bill adds up.

    Attributes:
        input: USD for a million input tokens.
        output: USD for a million output tokens.
        cached_input: USD for a million input tokens served from cache; the input price when `None`.
        per_call: USD for each call besides.
    """

    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)
    cached_input: Decimal | None = None
    per_call: Decimal = Decimal(0)

    def cost(self, usage: TokenUsage) -> Decimal:
        """USD for a usage."""
        cached = usage.cached_input or 0
        cached_price = self.input if self.cached_input is None else self.cached_input
        tokens = (usage.input - cached) * self.input + cached * cached_price + usage.output * self.output
        return tokens / 1_000_000 + self.per_call

    def most(self, read: int, written: int) -> Decimal:
        """USD that a call of so many input and output tokens costs at the most."""
        return (
            read * max(self.input, self.cached_input or self.input) + written * self.output
        ) / 1_000_000 + self.per_call


@frozen
class ModelProfile:
    """What a model says of itself; `None` where it does not know.

    Attributes:
        context_window: Tokens that request and answer may have together.
        max_output_tokens: The most tokens one answer may have.
        price: Its price; the price table is asked when `None`.
        encoding: The tiktoken encoding that counts for it.
    """

    context_window: int | None = None
    max_output_tokens: int | None = None
    price: Price | None = None
    encoding: str | None = None


@runtime_checkable
class ProfiledModel(Protocol):
    """A model that tells its window, its price and its tokenizer."""

    @property
    def profile(self) -> ModelProfile:
        """What is known of it."""
        ...
