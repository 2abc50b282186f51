"""Registers the provider `pydantic-ai`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.models import Model
    from noetic_py.plugins import ModelRegistry

__all__ = ["register_models"]


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    """Make `"pydantic-ai:mistral:mistral-large-latest"` and the like known."""
    registry.provider("pydantic-ai", _model)


def _model(name: str) -> Model:
    from noetic_pydantic_ai.model import PydanticAIModel

    return PydanticAIModel(name)
