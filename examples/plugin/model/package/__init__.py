"""A model provider: models behind a server that answers in lines of JSON."""

from .model import LineModel

__all__ = ["LineModel"]
