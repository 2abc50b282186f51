"""What a step has raised as a stored value."""

from __future__ import annotations

from typing import Any

from noetic_py.codec import Codec
from noetic_py.errors import CodecError, NoeticError, StepFailed

__all__ = ["load_error", "store_error"]


def store_error(error: Exception, codec: Codec) -> Any:
    """An error in its stored form; what is none of the library's is stored as what its step shows to others."""
    if not isinstance(error, NoeticError):
        error = StepFailed(path=(), error_type=type(error).__name__, error_message=str(error))
    return codec.encode(error)


def load_error(tree: Any, codec: Codec) -> NoeticError:
    """The error that `store_error` has stored.

    Raises:
        CodecError: It is malformed, or of a class that this version does not know.
    """
    found = codec.decode(tree)
    if not isinstance(found, NoeticError):
        raise CodecError("is no stored error", where="error")
    return found
