"""OpenAI's models, and every server that speaks their interface, for noetic_py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_openai.model import OpenAIModel
    from noetic_openai.server_tools import sdk_item

__all__ = ["OpenAIModel", "sdk_item"]

_HOMES = {"OpenAIModel": "noetic_openai.model", "sdk_item": "noetic_openai.server_tools"}


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
