"""The module that the entry point names: it registers the transform."""

from noetic_py.plugins import TransformRegistry, hookimpl


@hookimpl
def register_record_transforms(registry: TransformRegistry) -> None:
    """Compress the records of every harness that loads this plugin."""
    from .transform import Squeeze

    registry.record_transform(Squeeze())
