"""The module that the entry point names: it registers the kind of step."""

from noetic_py.plugins import StepKindRegistry, hookimpl


@hookimpl
def register_step_kinds(registry: StepKindRegistry) -> None:
    """Let harnesses that load this plugin run steps of the kind."""
    from .longest import Longest

    registry.step_kind(Longest)
