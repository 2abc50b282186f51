"""A hook: it counts the answers of models in the state of each run."""

from .hook import count_answers

__all__ = ["count_answers"]
