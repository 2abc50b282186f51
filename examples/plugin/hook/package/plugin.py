"""The module that the entry point names: it registers the hook."""

from noetic_py.plugins import HookRegistry, hookimpl


@hookimpl
def register_hooks(registry: HookRegistry) -> None:
    """Call the hook in every run of a harness that loads this plugin."""
    from .hook import count_answers

    registry.hook(count_answers)
