"""Canonical JSON by RFC 8785: one value, one row of bytes."""

from __future__ import annotations

from typing import Any

import rfc8785

__all__ = ["canonical_json"]


def canonical_json(value: Any) -> bytes:
    """A value as canonical JSON in UTF-8.

    Args:
        value: `None`, booleans, numbers, texts, lists, tuples, and mappings whose keys are texts.

    Raises:
        ValueError: It has no such form: a number that is not finite, an integer beyond 2^53 - 1, a lone surrogate, a
            key that is not text, or nothing that JSON has.
    """
    try:
        return rfc8785.dumps(value)
    except RecursionError:
        raise ValueError("nested too deep for canonical JSON") from None
