"""Maps failures of the provider to named errors, one per cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetic_py.core.values import is_mapping
from noetic_py.errors import ModelError, ModelStatusError
from noetic_py.models.failures import ProviderFailures
from noetic_py.models.http import retry_after

__all__ = ["Failures"]

_OVERFLOW_TYPE = "request_too_large"
_OVERFLOW_WORDS = ("prompt is too long", "exceed context limit", "exceeds the context window")
_RATE_TYPE = "rate_limit_error"
_STATUSES: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    _RATE_TYPE: 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Failures(ProviderFailures):
    """Makes errors of one model from what Anthropic's API says."""

    def status(self, status: int, headers: Mapping[str, str], body: object) -> ModelStatusError:
        """The error for a response with an error status.

        Args:
            status: The HTTP status.
            headers: The response's headers.
            body: The decoded body, or its text.
        """
        kind, words = _said(body)
        if _is_overflow(status, kind, words):
            return self.overflow(status, words)
        if status == 429 or kind == _RATE_TYPE:
            return self.limited(words, retry_after(headers))
        hint = f"check the model's name, {self._model!r}, and base_url=" if status == 404 else None
        return self.refused(status, words, hint)

    def event(self, body: object, *, begun: bool) -> ModelError:
        """The error for an error that came inside the stream.

        Args:
            body: The event.
            begun: Whether the answer had begun: then something was read and written, whatever the cause.
        """
        kind, words = _said(body)
        status = _STATUSES.get(kind)
        if begun or status is None:
            return self.broken_off(words)
        return self.status(status, {}, body)


def _said(body: object) -> tuple[str, str]:
    """The error's type and what the provider says; a gateway before it may send anything."""
    error: Any = body.get("error") if is_mapping(body) else None
    if not is_mapping(error):
        return "", str(body) if body else "no reason given"
    kind, words = error.get("type"), error.get("message")
    return kind if isinstance(kind, str) else "", words if isinstance(words, str) and words else "no reason given"


def _is_overflow(status: int, kind: str, words: str) -> bool:
    lowered = words.lower()
    return status == 413 or kind == _OVERFLOW_TYPE or any(part in lowered for part in _OVERFLOW_WORDS)
