"""The module that the entry point names: it registers the backend."""

from noetic_py.plugins import BackendRegistry, hookimpl


@hookimpl
def register_checkpoint_backends(registry: BackendRegistry) -> None:
    """Serve `checkpoints="@PREFIX@:..."`."""
    from .backend import Store

    registry.checkpoint_backend("@PREFIX@", Store)
