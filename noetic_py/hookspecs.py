"""The hooks of the plugin interface, version 1. Each is synchronous and only registers typed objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from noetic_py.plugins import (
        BackendRegistry,
        HookRegistry,
        ItemTypeRegistry,
        LayerRegistry,
        ModelRegistry,
        PluginRegistry,
        ServiceRegistry,
        TransformRegistry,
    )

__all__ = ["PROJECT", "VERSION", "Hooks", "hookimpl"]

PROJECT = "noetic_py"
VERSION = 1

hookspec: pluggy.HookspecMarker = pluggy.HookspecMarker(PROJECT)
hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(PROJECT)


class Hooks:
    """What a plugin may implement."""

    @hookspec
    def register_models(self, registry: ModelRegistry) -> None:
        """Register providers: `registry.provider("acme", lambda name: AcmeModel(name))` serves `"acme:..."`."""

    @hookspec
    def register_item_types(self, registry: ItemTypeRegistry) -> None:
        """Register item types: `registry.item_type(Note)`, a class with `@extension_item`."""

    @hookspec
    def register_checkpoint_backends(self, registry: BackendRegistry) -> None:
        """Register backends: `registry.checkpoint_backend("acme", AcmeBackend)` serves `checkpoints="acme:..."`."""

    @hookspec
    def register_memory_layers(self, registry: LayerRegistry) -> None:
        """Register layers: `registry.memory_layer("acme-facts", Facts)`, a class below `MemoryLayer`."""

    @hookspec
    def register_services(self, registry: ServiceRegistry) -> None:
        """Register services: `registry.service(Db, Db("..."))`, for runs and harnesses that bring none of that type."""

    @hookspec
    def register_record_transforms(self, registry: TransformRegistry) -> None:
        """Register transforms: `registry.record_transform(Seal())`, an object of a class below `RecordTransform`."""

    @hookspec
    def register_hooks(self, registry: HookRegistry) -> None:
        """Register hooks: `registry.hook(audit)`, made by `noetic_py.context.hooks.after_model` or one of its like."""

    @hookspec
    def noetic_register(self, registry: PluginRegistry) -> None:
        """Register everything at once: one registry with the methods of all the others."""
