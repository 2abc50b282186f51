"""The module that the entry point names: it registers the provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.plugins import ModelRegistry, hookimpl

if TYPE_CHECKING:
    from noetic_py import Model

URL = "http://127.0.0.1:8080"


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    """Serve every name `"@PREFIX@:..."`."""
    registry.provider("@PREFIX@", _made)


def _made(name: str) -> Model:
    # Imported with the first call, so that a program that asks no such model does not load the HTTP client.
    from .model import LineModel

    return LineModel(name, URL)
