"""OpenTelemetry spans that mirror the tree of steps; free of cost while nobody has set a provider."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

__all__ = ["current_span", "recorded_span", "tracer"]


def tracer() -> Tracer | None:
    """The tracer to use, `None` when nothing would be recorded.

    A program that records has imported opentelemetry and set a provider before its first run, so a run that finds the
    module not loaded need not load it.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    found: Tracer = provider.get_tracer("noetic_py")
    return found


def current_span() -> Span:
    """The span that is active here, an invalid one when there is none."""
    from opentelemetry.trace import get_current_span

    return get_current_span()


@contextmanager
def recorded_span(tracer: Tracer, name: str, attributes: Mapping[str, str | int]) -> Generator[Span]:
    """A span that is active within the block; what is written to it, and what is raised, is told without secrets."""
    from opentelemetry.trace import StatusCode, use_span

    from noetic_py.tracing.guarded import GuardedSpan

    span = GuardedSpan(tracer.start_span(name, attributes=attributes))
    # The API would record an exception as it is, with the texts of its causes.
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except Exception as error:
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, f"{type(error).__qualname__}: {error}")
            raise
