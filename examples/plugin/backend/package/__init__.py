"""A checkpoint backend: where runs, sessions and memory are stored."""

from .backend import Store

__all__ = ["Store"]
