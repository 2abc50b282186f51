"""An item type: the height of the water at a port, as part of a conversation."""

from .item import Height

__all__ = ["Height"]
