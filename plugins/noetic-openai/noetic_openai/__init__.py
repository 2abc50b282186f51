"""OpenAI's models, and every server that speaks their interface, for noetic_py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_openai.model import OpenAIModel

__all__ = ["OpenAIModel"]


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name != "OpenAIModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noetic_openai.model import OpenAIModel

    return OpenAIModel
