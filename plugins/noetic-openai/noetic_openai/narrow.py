"""Decoded JSON, narrowed to what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

__all__ = ["is_array", "is_object"]


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether the value is a JSON object."""
    return isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether the value is a JSON array."""
    return isinstance(value, list)
