"""Registers the provider `google`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.models import Model
    from noetic_py.plugins import ModelRegistry

__all__ = ["register_models"]


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    """Make `"google:gemini-3.8-flash"` and the like known."""
    registry.provider("google", _model)


def _model(name: str) -> Model:
    from noetic_google.model import GoogleModel

    return GoogleModel(name)
