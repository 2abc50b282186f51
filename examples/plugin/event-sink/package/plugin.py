"""The module that the entry point names: it registers the event sink."""

from noetic_py.plugins import EventSinkRegistry, hookimpl


@hookimpl
def register_event_sinks(registry: EventSinkRegistry) -> None:
    """Take the events of every run of a harness that loads this plugin."""
    from .sink import EventCounts

    registry.event_sink(EventCounts().send)
