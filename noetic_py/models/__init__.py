"""Models: the interface that providers implement, wrappers around models, prices, and the guard for tests."""

from noetic_py.models.base import (
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
)
from noetic_py.models.fallback import FallbackModel
from noetic_py.models.guard import allow_real_models, check_real_model
from noetic_py.models.limited import LimitedModel
from noetic_py.models.pricing import price_of, profile_of, set_price
from noetic_py.models.retry import RetryModel
from noetic_py.models.timed import TimedModel
from noetic_py.models.wrapper import ModelWrapper

__all__ = [
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
    "ProfiledModel",
    "ReasoningPart",
    "RetryModel",
    "StopReason",
    "TextPart",
    "TimedModel",
    "ToolCallPart",
    "allow_real_models",
    "check_real_model",
    "price_of",
    "profile_of",
    "set_price",
]
