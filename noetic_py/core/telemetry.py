"""What is loaded only where a program uses OpenTelemetry: a span that masks secrets, and the library's instruments.

`runtime` finds out whether it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span, SpanContext, Status, StatusCode

from noetic_py.core.secrets import is_secret
from noetic_py.core.values import is_array, is_mapping
from noetic_py.redaction import redact, rendered

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from noetic_py.core.budget import TokenUsage


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


# The boundaries that the conventions for GenAI advise.
_TOKENS = tuple(4**power for power in range(14))
_SECONDS = tuple(2**power / 100 for power in range(14))
# A commit takes less than a millisecond on a local disk.
_COMMIT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


# The counters of tokens: their names in the conventions, and what they count.
_USED = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read.input_tokens": "cached input",
    "cache_write.input_tokens": "input (written to a cache)",
    "reasoning.output_tokens": "reasoning",
}


def _shares(usage: TokenUsage) -> Iterator[tuple[str, str, int | None]]:
    """Counter, modality and tokens of each part; a provider does not say of what kind the rest is."""
    for name, total, audio, image in (
        ("input_tokens", usage.input, usage.input_audio, usage.input_image),
        ("output_tokens", usage.output, usage.output_audio, usage.output_image),
    ):
        yield name, "audio", audio
        yield name, "image", image
        yield name, "unknown", max(0, total - (audio or 0) - (image or 0))
    yield "cache_read.input_tokens", "unknown", usage.cached_input
    yield "cache_write.input_tokens", "unknown", usage.cache_write
    yield "reasoning.output_tokens", "unknown", usage.reasoning


class Metrics:
    """The instruments of a process that measures.

    Args:
        meter: What makes them; a second instrument of a name is the first one.
    """

    def __init__(self, meter: Meter) -> None:
        self._used = {
            name: meter.create_counter(
                f"gen_ai.client.inference.usage.{name}", unit="{token}", description=f"Number of {what} tokens used."
            )
            for name, what in _USED.items()
        }
        self._of_call = {
            name: meter.create_histogram(
                f"gen_ai.client.inference.operation.{name}_tokens",
                unit="{token}",
                description=f"Number of {name} tokens used by one call.",
                explicit_bucket_boundaries_advisory=_TOKENS,
            )
            for name in ("input", "output")
        }
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._cost = meter.create_counter("noetic.client.cost", unit="USD", description="Cost of model calls.")
        self._steps = meter.create_counter("noetic.steps", unit="{step}", description="Steps that ran.")
        self._replayed = meter.create_counter(
            "noetic.steps.replayed", unit="{step}", description="Steps whose output was read from a journal."
        )
        self._refusals = meter.create_counter(
            "noetic.budget.refusals", unit="{refusal}", description="Work that did not start because of a budget."
        )
        self._waiting = meter.create_up_down_counter(
            "noetic.sessions.waiting", unit="{turn}", description="Turns that wait for their session."
        )
        self._commit = meter.create_histogram(
            "noetic.commit.duration",
            unit="s",
            description="Duration of commits of stored runs.",
            explicit_bucket_boundaries_advisory=_COMMIT,
        )

    def called(
        self,
        attributes: Mapping[str, Any],
        seconds: float,
        usage: TokenUsage | None,
        cost: Decimal | None,
        error: BaseException | None,
    ) -> None:
        """Measure a call of a model.

        Args:
            attributes: What was called, in the names of the conventions.
            seconds: How long it took.
            usage: The tokens that it used, when they are known.
            cost: What it cost, when that is known.
            error: What it failed with.
        """
        failed = {} if error is None else {"error.type": type(error).__qualname__}
        self._duration.record(seconds, {**attributes, **failed})
        if usage is not None:
            self._of_call["input"].record(usage.input, attributes)
            self._of_call["output"].record(usage.output, attributes)
            for name, modality, tokens in _shares(usage):
                if tokens is not None:
                    self._used[name].add(tokens, {**attributes, "gen_ai.token.modality": modality})
        if cost is not None:
            self._cost.add(float(cost), attributes)

    def ran(self, flow: str, steps: int, replayed: int) -> None:
        """Count the steps of a run that is over in this process."""
        self._steps.add(steps, {"noetic.flow": flow})
        self._replayed.add(replayed, {"noetic.flow": flow})

    def refused(self, dimension: str) -> None:
        """Count what a budget has refused."""
        self._refusals.add(1, {"noetic.budget.dimension": dimension})

    def waits(self, more: int) -> None:
        """Count a turn that begins to wait for its session, or with -1 one that does not wait any more."""
        self._waiting.add(more)

    def committed(self, seconds: float) -> None:
        """Measure a commit."""
        self._commit.record(seconds)
