"""Registers the provider `local`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.models import Model
    from noetic_py.plugins import ModelRegistry

__all__ = ["register_models"]


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    """Make `"local:smollm2"` and `"local:/path/to/model.gguf"` known."""
    registry.provider("local", _local)


def _local(name: str) -> Model:
    from noetic_local.model import LocalModel

    return LocalModel(name)
