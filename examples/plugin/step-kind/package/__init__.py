"""A kind of step: it runs its steps in order, and gives the longest of their texts."""

from .longest import Longest, longest

__all__ = ["Longest", "longest"]
