"""The module that the entry point names: it registers the item type."""

from noetic_py.plugins import ItemTypeRegistry, hookimpl


@hookimpl
def register_item_types(registry: ItemTypeRegistry) -> None:
    """Read and write items of the type `"@MODULE@:height"`."""
    from .item import Height

    registry.item_type(Height)
