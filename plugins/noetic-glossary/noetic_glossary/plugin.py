"""The plugin of the entry point: it registers the layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.plugins import LayerRegistry

__all__ = ["register_memory_layers"]


@hookimpl
def register_memory_layers(registry: LayerRegistry) -> None:
    """Serve the name `"glossary"`."""
    from noetic_glossary.layer import Glossary

    registry.memory_layer("glossary", Glossary)
