"""The module that the entry point names: it registers the token counter."""

from noetic_py.plugins import TokenCounterRegistry, hookimpl


@hookimpl
def register_token_counters(registry: TokenCounterRegistry) -> None:
    """Count for the models whose names fit the pattern."""
    from .counter import Words

    registry.token_counter("@PREFIX@:*", Words())
