"""A memory layer: short notes by name, which the model writes and sees."""

from .layer import Notes

__all__ = ["Notes"]
