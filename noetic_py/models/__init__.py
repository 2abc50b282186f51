"""Models: the interface that providers implement, wrappers around models, prices, and the guard for tests."""

from noetic_py.models.fallback import FallbackModel
from noetic_py.models.limited import LimitedModel
from noetic_py.models.model import (
    ItemDone,
    JsonValue,
    Model,
    ModelEvent,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    ModelStream,
    OutputSchema,
    Price,
    ProfiledModel,
    ReasoningPart,
    StopReason,
    TextPart,
    ToolCallPart,
    allow_real_models,
    check_real_model,
)
from noetic_py.models.price_table import PriceSource, genai_prices, price_of, profile_of, set_price, set_price_source
from noetic_py.models.retry import RetryModel
from noetic_py.models.timed import MAX_ANSWER_BYTES, AnswerSize, TimedModel
from noetic_py.models.wrapper import ModelWrapper

__all__ = [
    "MAX_ANSWER_BYTES",
    "AnswerSize",
    "FallbackModel",
    "ItemDone",
    "JsonValue",
    "LimitedModel",
    "Model",
    "ModelEvent",
    "ModelProfile",
    "ModelRequest",
    "ModelResponse",
    "ModelSettings",
    "ModelStream",
    "ModelWrapper",
    "OutputSchema",
    "Price",
    "PriceSource",
    "ProfiledModel",
    "ReasoningPart",
    "RetryModel",
    "StopReason",
    "TextPart",
    "TimedModel",
    "ToolCallPart",
    "allow_real_models",
    "check_real_model",
    "genai_prices",
    "price_of",
    "profile_of",
    "set_price",
    "set_price_source",
]
