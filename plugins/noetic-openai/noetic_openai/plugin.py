"""Registers the providers `openai`, `openai-chat` and `openrouter`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.models import Model
    from noetic_py.plugins import ModelRegistry

__all__ = ["register_models"]

_OPENROUTER = "https://openrouter.ai/api/v1"


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    """Make `"openai:gpt-5-mini"`, `"openai-chat:..."` and `"openrouter:maker/model"` known."""
    registry.provider("openai", _responses)
    registry.provider("openai-chat", _chat)
    registry.provider("openrouter", _openrouter)


def _responses(name: str) -> Model:
    from noetic_openai.model import OpenAIModel

    return OpenAIModel(name)


def _chat(name: str) -> Model:
    from noetic_openai.model import OpenAIModel

    return OpenAIModel(name, api="chat", name=f"openai-chat:{name}")


def _openrouter(name: str) -> Model:
    from noetic_openai.model import OpenAIModel
    from noetic_py.errors import ConfigError

    key = os.environ.get("OPENROUTER_API_KEY")
    if not key:
        raise ConfigError(
            f"openrouter:{name} needs an API key",
            code="model-key",
            hint="set the environment variable OPENROUTER_API_KEY",
        )
    return OpenAIModel(name, api="chat", base_url=_OPENROUTER, api_key=key, name=f"openrouter:{name}")
