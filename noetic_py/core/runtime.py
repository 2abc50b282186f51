"""A run's clock, random numbers and ids; its place in a distributed trace, its tracer and its metrics."""

from __future__ import annotations

import itertools
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Self

import anyio
from attrs import evolve, field, frozen

from noetic_py.core.values import is_list
from noetic_py.errors import ConfigError, InvalidId

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

    from noetic_py.core.telemetry import Metrics

__all__ = ["SYSTEM", "Runtime", "sleep_or_event"]


# The last 48 bits of an id count within one millisecond. The count starts between 2**44 and 2**47, so it always has
# twelve hexadecimal digits, and goes up in strides, so that a neighbour's id is not this one plus one.
_COUNT_START = 1 << 44
_COUNT_SPREAD_BITS = 46
_COUNT_END = 1 << 48
_STRIDE_BITS = 16


class Runtime:
    """Clock, ids and randomness of the machine it runs on; subclass it to supply others.

    Safe to use from several threads.
    """

    __slots__ = ("_lock", "_random", "_stamp")

    def __init__(self) -> None:
        self.reseed()

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        return time.monotonic()

    def now(self) -> datetime:
        """The wall clock in UTC, for display only: it may jump."""
        return datetime.now(UTC)

    def new_id(self) -> str:
        """A new UUIDv7 in canonical text; ids of one process compare in the order they were made."""
        millis = int(time.time() * 1000)
        stamp = self._stamp
        if millis != stamp[0]:
            stamp = self._restamp(millis)
        return stamp[1] + hex(stamp[2]())[2:]  # noqa: FURB116  # formatting takes four times as long

    def random(self) -> float:
        """A random number in [0.0, 1.0), for jitter; not for secrets."""
        return self._random.random()

    def reseed(self) -> None:
        """Start ids and randomness afresh; a forked process would otherwise repeat its parent's."""
        self._lock = threading.Lock()
        self._random = random.Random(os.urandom(32))  # noqa: S311
        # (millisecond, text before the count, its next value): replaced as one, so a reader never sees a mixture.
        self._stamp: tuple[int, str, Callable[[], int]] = (-1, "", itertools.count().__next__)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; a checkpoint when it is zero or less."""
        await anyio.sleep(max(0.0, seconds))

    def _restamp(self, millis: int) -> tuple[int, str, Callable[[], int]]:
        with self._lock:
            last, _, count = self._stamp
            # A clock that was set back goes on counting in the latest millisecond, while that has room.
            if millis <= last:
                if count() < _COUNT_END - (1 << 32):
                    return self._stamp
                millis = last + 1
            noise = int.from_bytes(os.urandom(12), "big")
            time_text = f"{millis:012x}"
            head = f"{time_text[:8]}-{time_text[8:]}-7{noise & 0xFFF:03x}-{0x8000 | noise >> 12 & 0x3FFF:04x}-"
            start = _COUNT_START + (noise >> 26 & (1 << _COUNT_SPREAD_BITS) - 1)
            stride = 1 + (noise >> 72 & (1 << _STRIDE_BITS) - 1)
            self._stamp = (millis, head, itertools.count(start, stride).__next__)
            return self._stamp


_VERSION = 7
_STAMP_BITS = 80


def made_at(id: str) -> datetime | None:
    """When an id was made, which a UUIDv7 tells; `None` of an id of another kind."""
    from uuid import UUID

    try:
        made = UUID(id)
        return datetime.fromtimestamp((made.int >> _STAMP_BITS) / 1000, UTC) if made.version == _VERSION else None
    except (ValueError, OverflowError, OSError):
        return None


SYSTEM = Runtime()
"""The runtime of the machine, used wherever no other is given."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SYSTEM.reseed)


async def sleep_or_event(runtime: Runtime, seconds: float, event: anyio.Event) -> None:
    """Wait by a clock, until an event at the latest."""
    async with anyio.create_task_group() as group:

        async def sleep() -> None:
            await runtime.sleep(seconds)
            group.cancel_scope.cancel()

        group.start_soon(sleep)
        await event.wait()
        group.cancel_scope.cancel()


# From https://www.w3.org/TR/trace-context/: version, trace, span, flags; later versions may add more after these.
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_TRACE_DIGITS = 32
_SPAN_DIGITS = 16


def _check(value: object, name: str, digits: int) -> None:
    if not isinstance(value, str) or len(value) != digits or not set(value) <= set("0123456789abcdef"):
        raise InvalidId(f"{name} is not {digits} lowercase hexadecimal digits", hint="Trace.from_traceparent(header)")
    if not value.strip("0"):
        raise InvalidId(f"{name} is all zeros, which is not a valid id", hint="leave the trace out")


@frozen
class Trace:
    """A place in a distributed trace: what begins there is shown below that span.

    Attributes:
        trace_id: The trace: 32 lowercase hexadecimal digits.
        span_id: The span in it: 16 of them.
        sampled: Whether the trace is recorded.
        link: A place in another trace that this one follows from.

    Raises:
        InvalidId: An id has another form, or is all zeros.
    """

    trace_id: str = field()
    span_id: str = field()
    sampled: bool = True
    link: Trace | None = None

    def __attrs_post_init__(self) -> None:
        _check(self.trace_id, "trace_id", _TRACE_DIGITS)
        _check(self.span_id, "span_id", _SPAN_DIGITS)

    @classmethod
    def from_traceparent(cls, header: str, /) -> Self:
        """The place that a `traceparent` header of HTTP names.

        Raises:
            InvalidId: It is not such a header.
        """
        found = _HEADER.fullmatch(header.strip())
        if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
            raise InvalidId(
                "the text is not a valid traceparent header; expected version-trace_id-span_id-flags",
                hint="00-<32 hexadecimal digits>-<16 of them>-<2 of them>; without a header leave the trace out",
            )
        return cls(found[2], found[3], bool(int(found[4], 16) & 1))

    @property
    def traceparent(self) -> str:
        """It as the header, to be sent on."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def as_headers(self) -> list[str]:
        """It as headers: its own, and that of the place it links to."""
        return [self.traceparent] if self.link is None else [self.traceparent, self.link.traceparent]

    @classmethod
    def from_headers(cls, headers: object, /) -> Trace:
        """The place that `as_headers` has made these of.

        Raises:
            InvalidId: They are none.
        """
        found = [cls.from_traceparent(each) for each in headers if isinstance(each, str)] if is_list(headers) else []
        if len(found) not in (1, 2) or not is_list(headers) or len(headers) != len(found):
            raise InvalidId(
                "the value is not a valid place in a trace; expected one traceparent header, or two",
                hint="one traceparent header, or two",
            )
        return evolve(found[0], link=found[1]) if len(found) == 2 else found[0]

    def below(self, span_id: str) -> Trace:
        """Another place in this trace."""
        return evolve(self, span_id=span_id, link=None)


def new_trace(runtime: Runtime, *, within: Trace | None = None, link: Trace | None = None) -> Trace:
    """A new span's place: in the trace of another one, or at the beginning of a new one."""
    span_id = _digits(runtime, _SPAN_DIGITS)
    if within is not None:
        return within.below(span_id)
    return Trace(_digits(runtime, _TRACE_DIGITS), span_id, link=link)


def trace_of_run(run_id: str) -> Trace:
    """The trace of a run that is not recorded: the same in every process that resumes it."""
    digest = sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()
    return Trace(digest[:_TRACE_DIGITS], digest[_TRACE_DIGITS:][:_SPAN_DIGITS], sampled=False)


def _digits(runtime: Runtime, count: int) -> str:
    # One random bit for each bit of the digits; never all zeros.
    parts: Iterable[int] = (int(runtime.random() * (1 << 32)) for _ in range(count // 8))
    found = "".join(f"{part:08x}" for part in parts)
    return found if found.strip("0") else found[:-1] + "1"


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


def metrics() -> Metrics | None:
    """The instruments to use, `None` when nothing would be measured; found out as for `tracer`."""
    module = sys.modules.get("opentelemetry.metrics")
    if module is None:
        return None
    provider = module.get_meter_provider()
    # The API's own providers record nothing.
    if type(provider).__module__.startswith("opentelemetry.metrics."):
        return None
    from noetic_py.core.telemetry import Metrics

    return Metrics(provider.get_meter("noetic_py"))


CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable by which instrumentations of GenAI are told to record messages."""
_RECORDS = {"": False, "false": False, "no_content": False, "true": True, "span_only": True}


def records_content() -> bool:
    """Whether spans hold what was said to models and to tools, and what they answered.

    Raises:
        ConfigError: The setting has a value that is not known; code `"content"`.
    """
    value = os.environ.get(CONTENT, "")
    found = _RECORDS.get(value.lower())
    if found is None:
        raise ConfigError(
            f"{CONTENT}={value!r} is not a valid setting; expected true or false",
            code="content",
            hint="messages are attributes of spans; events are not sent",
        )
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
    tracer: Tracer, name: str, attributes: Mapping[str, str | int], below: Trace | None = None, *, follows: bool = False
) -> Generator[Span]:
    """A span that is active within the block; secrets in what is written to it, and in errors, are masked.

    Args:
        tracer: What records it.
        name: Its name.
        attributes: Its attributes.
        below: Its parent; the active span when left out.
        follows: Whether it goes on where that parent has ended, and is linked to it.
    """
    from opentelemetry.trace import Link, NonRecordingSpan, StatusCode, set_span_in_context, use_span

    from noetic_py.core.telemetry import GuardedSpan

    parent = None if below is None else set_span_in_context(NonRecordingSpan(_remote(below)))
    places = [] if below is None else [below if follows else None, below.link]
    links = [Link(_remote(place)) for place in places if place is not None]
    span = GuardedSpan(tracer.start_span(name, context=parent, attributes=attributes, links=links))
    # The API would record an exception as it is, with the texts of its causes.
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except Exception as error:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR, f"{type(error).__qualname__}: {error}")
            raise


def _remote(place: Trace) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(place.trace_id, 16), int(place.span_id, 16), is_remote=True, trace_flags=flags)
