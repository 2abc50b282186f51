"""OpenTelemetry spans that mirror the tree of steps; free of cost while nobody has set a provider."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from noetic_py.traces import Trace

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

__all__ = ["current_span", "place_of", "recorded_span", "tracer"]


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


def place_of(span: Span) -> Trace:
    """Where a span stands."""
    context = span.get_span_context()
    return Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled)


@contextmanager
def recorded_span(
    tracer: Tracer, name: str, attributes: Mapping[str, str | int], below: Trace | None = None
) -> Generator[Span]:
    """A span that is active within the block; what is written to it, and what is raised, is told without secrets.

    Args:
        tracer: What records it.
        name: Its name.
        attributes: Its attributes.
        below: Its parent; the active span when left out.
    """
    from opentelemetry.trace import Link, NonRecordingSpan, StatusCode, set_span_in_context, use_span

    from noetic_py.tracing.guarded import GuardedSpan

    parent = None if below is None else set_span_in_context(NonRecordingSpan(_remote(below)))
    links = [] if below is None or below.link is None else [Link(_remote(below.link))]
    span = GuardedSpan(tracer.start_span(name, context=parent, attributes=attributes, links=links))
    # The API would record an exception as it is, with the texts of its causes.
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except Exception as error:
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, f"{type(error).__qualname__}: {error}")
            raise


def _remote(place: Trace) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(place.trace_id, 16), int(place.span_id, 16), is_remote=True, trace_flags=flags)
