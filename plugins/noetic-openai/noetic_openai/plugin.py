"""Registers the providers `openai`, `openai-chat`, and those of the presets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from noetic_openai.presets import PRESETS
from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.models import Model
    from noetic_py.plugins import ModelRegistry

__all__ = ["register_models"]


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    """Make `"openai:gpt-5-mini"`, `"openai-chat:..."`, `"ollama:qwen3"` and other servers' models known."""
    registry.provider("openai", _responses)
    registry.provider("openai-chat", _chat)
    for prefix, preset in PRESETS.items():
        registry.provider(prefix, partial(preset.model, prefix))


def _responses(name: str) -> Model:
    from noetic_openai.model import OpenAIModel

    return OpenAIModel(name)


def _chat(name: str) -> Model:
    from noetic_openai.model import OpenAIModel

    return OpenAIModel(name, api="chat", name=f"openai-chat:{name}")
