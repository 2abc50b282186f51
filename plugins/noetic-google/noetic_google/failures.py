"""Maps failures of the provider to named errors, one per cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from noetic_py.core.values import is_list, is_mapping
from noetic_py.errors import ModelError, ModelStatusError
from noetic_py.models.failures import ProviderFailures
from noetic_py.models.http import retry_after

if TYPE_CHECKING:
    from google.genai.errors import APIError

__all__ = ["Failures"]

_OVERFLOW_WORDS = ("exceeds the maximum number of tokens", "request payload size exceeds the limit")
# The API refuses a wrong key with the status 400.
_KEY_WORDS = ("api key not valid", "api key expired")


class Failures(ProviderFailures):
    """Makes errors of one model from what Google's API says."""

    def of(self, error: APIError, *, begun: bool) -> ModelError:
        """The error for one that the SDK raised: for an error status, or for an error inside the stream.

        Args:
            error: What the SDK raised.
            begun: Whether the answer had begun: then something was read and written, whatever the cause.
        """
        found: Any = error
        words = found.message
        said = words if isinstance(words, str) and words else "no reason given"
        if begun:
            return self.broken_off(said)
        headers: Mapping[str, str] = getattr(found.response, "headers", {})
        return self.status(error.code, said, headers, found.details)

    def status(self, status: int, words: str, headers: Mapping[str, str], details: object = None) -> ModelStatusError:
        """The error for an error status.

        Args:
            status: The HTTP status.
            words: What the provider says.
            headers: The response's headers.
            details: The decoded body.
        """
        lowered = words.lower()
        if status == 413 or any(part in lowered for part in _OVERFLOW_WORDS):
            return self.overflow(status, words)
        if status == 429:
            after = _retry_delay(details)
            return self.limited(words, retry_after(headers) if after is None else after)
        hint = None
        if any(part in lowered for part in _KEY_WORDS):
            hint = f"check {self._key}"
        elif status == 404:
            hint = f"check the model's name, {self._model!r}, and base_url="
        return self.refused(status, words, hint)


def _retry_delay(body: object) -> float | None:
    """The seconds of the error's `RetryInfo`, `None` where it has none."""
    error: Any = body.get("error") if is_mapping(body) else None
    details: Any = error.get("details") if is_mapping(error) else None
    for detail in details if is_list(details) else ():
        if is_mapping(detail) and str(detail.get("@type")).endswith("google.rpc.RetryInfo"):
            try:
                seconds = float(str(detail.get("retryDelay")).removesuffix("s"))
            except ValueError:
                continue
            if math.isfinite(seconds):
                return max(0.0, seconds)
    return None
