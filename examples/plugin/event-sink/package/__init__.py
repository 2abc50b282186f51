"""An event sink: it counts the events of all runs by their names."""

from .sink import EventCounts

__all__ = ["EventCounts"]
