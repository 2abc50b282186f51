"""Memory: the bundle that a run carries."""

from noetic_py.memory.layer import Memory

__all__ = ["Memory"]
