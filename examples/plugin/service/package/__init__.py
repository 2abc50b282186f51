"""A service: the heights of the tide, for steps and tools of every run."""

from .service import Tides

__all__ = ["Tides"]
