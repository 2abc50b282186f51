"""The module that the entry point names: it registers the layer."""

from noetic_py.plugins import LayerRegistry, hookimpl


@hookimpl
def register_memory_layers(registry: LayerRegistry) -> None:
    """Serve the name `"@PREFIX@"`."""
    from .layer import Notes

    registry.memory_layer("@PREFIX@", Notes)
