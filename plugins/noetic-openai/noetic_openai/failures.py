"""Maps failures of providers to named errors, one per cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetic_openai.narrow import is_object
from noetic_py.errors import ModelError, ModelStatusError
from noetic_py.models.failures import ProviderFailures
from noetic_py.models.http import retry_after

__all__ = ["Failures"]

# Servers agree neither on a code nor on a status for it, so their words are looked at as well.
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"})
_OVERFLOW_WORDS = (
    "exceeds the available context size",
    "maximum context length",
    "exceeds the context window",
    "context window is full",
    "prompt is too long",
)
_RATE_CODES = frozenset({"rate_limit_exceeded", "rate_limit_error", "too_many_requests"})
_SPENT_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})


class Failures(ProviderFailures):
    """Makes errors of one model from what a server of OpenAI's interface says."""

    def status(self, status: int, headers: Mapping[str, str], body: object) -> ModelStatusError:
        """The error for a response with an error status.

        Args:
            status: The HTTP status.
            headers: The response's headers.
            body: The decoded body, or its text.
        """
        return self._status(status, _detail(body), retry_after(headers))

    def event(self, error: object) -> ModelError:
        """The error for an error that came inside the stream.

        Args:
            error: The event's `error`, as the provider sent it.
        """
        detail = _detail(error)
        status = _status_of(detail)
        if status is not None:
            return self._status(status, detail, None)
        return self.broken_off(_text(detail))

    def _status(self, status: int, detail: Mapping[str, Any], after: float | None) -> ModelStatusError:
        words = _text(detail)
        if _is_overflow(detail):
            return self.overflow(status, words)
        if status == 429:
            limited = self.limited(words, after)
            # The account is empty: waiting does not fill it.
            limited.retryable = _codes(detail).isdisjoint(_SPENT_CODES)
            return limited
        hint = None
        if status == 404:
            hint = f"check the model's name, {self._model!r}, and base_url=; a server lists its models at /models"
        return self.refused(status, words, hint)


def _detail(body: object) -> Mapping[str, Any]:
    """The part of a body that tells what is wrong; servers wrap it in `error`, or do not."""
    # A loop: a body may be nested deeper than functions may call each other.
    while is_object(body):
        inner = body.get("error")
        if not inner:
            return body
        body = inner
    return {"message": str(body) if body else ""}


def _text(detail: Mapping[str, Any]) -> str:
    message = detail.get("message")
    return message if isinstance(message, str) and message else "no reason given"


def _codes(detail: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(value for value in (detail.get("code"), detail.get("type")) if isinstance(value, str))


def _is_overflow(detail: Mapping[str, Any]) -> bool:
    words = _text(detail).lower()
    return not _codes(detail).isdisjoint(_OVERFLOW_CODES) or any(part in words for part in _OVERFLOW_WORDS)


def _status_of(detail: Mapping[str, Any]) -> int | None:
    """The status an error inside a stream would have had as a response."""
    code = detail.get("code")
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599:
        return code
    if _is_overflow(detail):
        return 400
    codes = _codes(detail)
    return 429 if codes & (_RATE_CODES | _SPENT_CODES) else None
