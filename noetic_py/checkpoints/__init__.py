"""Checkpoints: the records of a journal, what stores them, and the backend in memory."""

from noetic_py.checkpoints.backend import CheckpointBackend, Head, Lease, Record
from noetic_py.checkpoints.in_memory import InMemoryBackend

__all__ = ["CheckpointBackend", "Head", "InMemoryBackend", "Lease", "Record"]
