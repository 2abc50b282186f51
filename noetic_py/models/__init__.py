"""Models: the interface that providers implement, prices, and the guard for tests."""

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
from noetic_py.models.guard import allow_real_models, check_real_model
from noetic_py.models.pricing import price_of, profile_of, set_price

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
    "allow_real_models",
    "check_real_model",
    "price_of",
    "profile_of",
    "set_price",
]
