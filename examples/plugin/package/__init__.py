"""A memory layer for noetic_py: short notes by name, which the model writes and sees."""

from .layer import Notes

__all__ = ["Notes"]
