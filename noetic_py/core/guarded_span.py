"""A span that masks secrets in texts. Apart from `runtime`, because it loads OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import Span, SpanContext, Status, StatusCode

from noetic_py.core.secrets import is_secret
from noetic_py.core.values import is_array, is_mapping
from noetic_py.redaction import redact, rendered


class GuardedSpan(Span):
    """Forwards to another span, with secrets in texts masked.

    Args:
        span: The span that is recorded.
    """

    def __init__(self, span: Span) -> None:
        self._span = span

    def __getattr__(self, name: str) -> object:
        # Other attributes of an SDK's span.
        return getattr(self._span, name)

    def end(self, end_time: int | None = None) -> None:
        """End it."""
        self._span.end(end_time)

    def get_span_context(self) -> SpanContext:
        """Its ids."""
        return self._span.get_span_context()

    def is_recording(self) -> bool:
        """Whether anything of it is kept."""
        return self._span.is_recording()

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """Set several attributes."""
        self._span.set_attributes(_clean(attributes))

    def set_attribute(self, key: str, value: object) -> None:
        """Set an attribute."""
        self._span.set_attribute(key, _clean(value))

    def add_event(
        self, name: str, attributes: Mapping[str, object] | None = None, timestamp: int | None = None
    ) -> None:
        """Add an event."""
        self._span.add_event(redact(name), _clean(attributes), timestamp)

    def update_name(self, name: str) -> None:
        """Give it another name."""
        self._span.update_name(redact(name))

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Say how it went."""
        if isinstance(status, Status):
            self._span.set_status(Status(status.status_code, _clean(status.description)))
        else:
            self._span.set_status(status, _clean(description))

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, object] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an event for an exception, with its traceback and its causes."""
        fields = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": rendered(exception),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", fields | dict(attributes or {}), timestamp)


def _clean(value: object) -> Any:
    if isinstance(value, str):
        return redact(value)
    if is_mapping(value):
        return {key: _clean(part) for key, part in value.items()}
    if is_array(value):
        return [_clean(part) for part in value]
    return str(value) if is_secret(value) else value
