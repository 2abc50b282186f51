"""Registers the provider `anthropic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.models import Model
    from noetic_py.plugins import ModelRegistry

__all__ = ["register_models"]


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    """Make `"anthropic:claude-sonnet-5"` and the like known."""
    registry.provider("anthropic", _model)


def _model(name: str) -> Model:
    from noetic_anthropic.model import AnthropicModel

    return AnthropicModel(name)
