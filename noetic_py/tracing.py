"""OpenTelemetry spans that mirror the tree of steps; free of cost while nobody has set a provider."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

__all__ = ["tracer"]


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
