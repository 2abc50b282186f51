"""A token counter: it counts for the models of a provider, in the place of an estimate."""

from .counter import Words

__all__ = ["Words"]
