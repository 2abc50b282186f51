"""The guard against real models in tests."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from noetic_py.errors import RealModelRefused

__all__ = ["allow_real_models", "check_real_model"]

_allowed: ContextVar[bool | None] = ContextVar("noetic_real_models", default=None)
_default = True


def set_real_models_default(allowed: bool) -> bool:
    """Set what holds where nobody decided otherwise, and return what held before; the pytest plugin forbids."""
    global _default
    before, _default = _default, allowed
    return before


@contextmanager
def allow_real_models(allowed: bool = True) -> Generator[None]:
    """Allow, or forbid, real models for the block and the tasks it starts.

    Args:
        allowed: `False` makes every real model raise [`RealModelRefused`][noetic_py.errors.RealModelRefused].
    """
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_real_model(name: str) -> None:
    """Called by every provider before it opens a connection.

    Args:
        name: The model's name.

    Raises:
        RealModelRefused: Real models are forbidden here.
    """
    allowed = _allowed.get()
    if not (_default if allowed is None else allowed):
        raise RealModelRefused(
            f"a real model was called in a test: {name}",
            model=name,
            hint="use ScriptedModel, or `with allow_real_models():` in a test that means it",
        )
