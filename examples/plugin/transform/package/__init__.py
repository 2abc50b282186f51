"""A record transform: records of runs are compressed before they are stored."""

from .transform import Squeeze

__all__ = ["Squeeze"]
