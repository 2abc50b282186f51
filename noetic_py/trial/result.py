"""What a trial has found: each request, and means with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import cos, inf, pi, sin, sqrt, tan
from statistics import fmean, stdev
from typing import Final

from attrs import frozen

from noetic_py.core.control import SessionKey
from noetic_py.core.items import Item
from noetic_py.models.model import ModelRequest

CONFIDENCE: Final = 0.95


@frozen(eq=False)
class TrialRequest:
    """One request of a trial.

    Attributes:
        run_id: The stored run.
        index: Which of its answered requests it stands for, from 0.
        conversation: What tells its conversation from others: a session, a thread, or the run itself.
        query: What the user had said last, empty where nothing new was said.
        request: What the model would have been sent.
        tokens: Tokens of the whole request: instructions, tools and items.
        cached: How many of them begin the conversation's request before as well: what a provider can serve from its
            cache.
        found: Which share of the evidence is shown; `None` where there is none.
        outdated: How many outdated texts its layers show without a mark; `None` where no text is called outdated.
        seconds: CPU time of the round.
    """

    run_id: str
    index: int
    conversation: str | SessionKey
    query: str
    request: ModelRequest
    tokens: int
    cached: int
    found: float | None
    outdated: int | None
    seconds: float

    @property
    def items(self) -> Sequence[Item]:
        """What the model would have been shown: the conversation, and what layers recalled."""
        return self.request.items

    @property
    def cached_share(self) -> float:
        """The share of the tokens that a provider can serve from its cache."""
        return self.cached / self.tokens if self.tokens else 0.0


@frozen
class Interval:
    """A mean, and the 95 % confidence interval around it.

    Attributes:
        mean: The mean.
        low: Where the interval begins; minus infinity where one observation is all there is.
        high: Where it ends.
        observations: How many observations it was made from: conversations, or the requests of a single one.
    """

    mean: float
    low: float
    high: float
    observations: int

    @property
    def excludes_zero(self) -> bool:
        """Whether zero is outside of it."""
        return self.low > 0 or self.high < 0


@frozen
class Comparison:
    """One measure of a trial.

    Attributes:
        memory: With the bundle on trial.
        against: With the other bundle, `None` where there is none.
        difference: The first minus the second, request by request.
    """

    memory: Interval
    against: Interval | None = None
    difference: Interval | None = None


MEASURES: Final[Mapping[str, Callable[[TrialRequest], float | None]]] = {
    "evidence found": lambda each: each.found,
    "outdated shown": lambda each: each.outdated,
    "tokens": lambda each: each.tokens,
    "cached share": lambda each: each.cached_share,
    "ms": lambda each: each.seconds * 1000,
}
"""The measures by name, each of one request; `None` where the request has none."""


@frozen(eq=False)
class MemoryTrial:
    """The result of a trial.

    Attributes:
        names: The names of the bundles' classes, the one on trial first.
        runs: How many runs were replayed.
        requests: The requests with the bundle on trial.
        against: The same requests with the other bundle; empty without one.
        notes: What of the stored runs was left out.
    """

    names: Sequence[str]
    runs: int
    requests: Sequence[TrialRequest]
    against: Sequence[TrialRequest]
    notes: Sequence[str]

    def summary(self) -> Mapping[str, Comparison]:
        """Means of the measures that were taken, with 95 % intervals.

        Requests of one conversation are alike, so the means of conversations are the observations, each with the same
        weight. In a trial of a single conversation its requests are. The intervals are those of Student's t, and the
        one of the difference is paired.
        """
        found = {name: self._compared(measure) for name, measure in MEASURES.items()}
        return {name: each for name, each in found.items() if each is not None}

    def _compared(self, measure: Callable[[TrialRequest], float | None]) -> Comparison | None:
        mine = _observed(self.requests, measure)
        if not mine:
            return None
        if not self.against:
            return Comparison(interval_of(mine))
        theirs = _observed(self.against, measure)
        return Comparison(
            interval_of(mine), interval_of(theirs), interval_of([a - b for a, b in zip(mine, theirs, strict=True)])
        )


def _observed(requests: Sequence[TrialRequest], measure: Callable[[TrialRequest], float | None]) -> Sequence[float]:
    by: dict[str | SessionKey, list[float]] = {}
    for each in requests:
        value = measure(each)
        if value is not None:
            by.setdefault(each.conversation, []).append(value)
    return [fmean(values) for values in by.values()] if len(by) > 1 else [*by.popitem()[1]] if by else []


def interval_of(observed: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of numbers of any size, with Student's t interval.

    Args:
        observed: The numbers.
        confidence: How often such intervals contain the true mean.
    """
    mean = fmean(observed)
    if len(observed) < 2:
        return Interval(mean, -inf, inf, len(observed))
    half = _student_quantile(confidence, len(observed) - 1) * stdev(observed) / sqrt(len(observed))
    return Interval(mean, mean - half, mean + half, len(observed))


def _student_quantile(confidence: float, freedom: int) -> float:
    """How many standard errors around the mean hold a share of Student's distribution."""
    low, high = 0.0, pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _student_share(angle, freedom) < confidence else (low, angle)
    return sqrt(freedom) * tan(low)


def _student_share(angle: float, freedom: int) -> float:
    """The share within `sqrt(freedom) * tan(angle)`, by the finite series for whole degrees of freedom."""
    odd = freedom % 2
    term = total = (cos(angle) if freedom > 1 else 0.0) if odd else 1.0
    for power in range(odd + 2, freedom - 1, 2):
        term *= (power - 1) / power * cos(angle) ** 2
        total += term
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total
