"""Google's Gemini models for noetic_py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_google.model import GoogleModel

__all__ = ["GoogleModel"]


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name != "GoogleModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noetic_google.model import GoogleModel

    return GoogleModel
