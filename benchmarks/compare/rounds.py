"""Ours and each of the others by turns, round after round, and what comes out of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from attrs import asdict, field, frozen

from benchmarks.compare.environments import Failed
from benchmarks.compare.registry import OURS, WORKS, Library
from benchmarks.measure import Spread

Measure = Callable[[Library, str, int], Mapping[str, float]]
"""The figures of a library, a work and its size, from a process of its own."""


@frozen
class Plan:
    """What to measure, and how often.

    Attributes:
        works: The works.
        peers: The libraries beside ours.
        rounds: How often.
        scale: A factor for the amount of work; 1 except to try things out.
    """

    works: Sequence[str]
    peers: Sequence[Library]
    rounds: int
    scale: float = 1.0


@frozen
class Pair:
    """One figure of both sides, by rounds."""

    ours: list[float] = field(factory=list[float])
    peer: list[float] = field(factory=list[float])


@frozen
class Line:
    """One line of the table.

    Attributes:
        work: The work, such as `"W1"`.
        text: What was measured.
        peer: The name of the library beside ours.
        unit: The unit of `ours` and `theirs`.
        ours: What our library took; `None` where the other cannot do the work.
        theirs: What the other took.
        ratio: `theirs` by `ours`, round by round: above 1, ours took less.
        rounds: The figures as measured, in seconds, bytes or ratios.
    """

    work: str
    text: str
    peer: str
    unit: str
    ours: Spread | None = None
    theirs: Spread | None = None
    ratio: Spread | None = None
    rounds: Pair = field(factory=Pair)

    def to_json(self) -> dict[str, object]:
        """The line as JSON."""
        return asdict(self)


@frozen
class Outcome:
    """The lines of the table, and what every library that failed said, by its name."""

    lines: list[Line]
    failures: dict[str, str]


def compare(plan: Plan, measure: Measure, failures: Mapping[str, str] | None = None) -> Outcome:
    """Measure every work, ours before each of the others in turn.

    A library that fails is not asked again, and none of its lines are kept. That ours fails is not taken as a result.

    Args:
        plan: What to measure.
        measure: How to.
        failures: What failed before, by library.

    Raises:
        Failed: Ours could not be measured.
    """
    failed = dict(failures or {})
    lines: list[Line] = []
    for work in plan.works:
        found: dict[tuple[str, str], Pair] = {}
        for number in range(plan.rounds):
            sys.stderr.write(f"{work}, round {number + 1} of {plan.rounds} ...\n")
            for peer in plan.peers:
                if peer.name not in failed and work not in peer.absent:
                    take_turns(peer, work, peer.size(work, plan.scale), measure, found, failed)
        lines += lines_of(work, plan, found)
    return Outcome([line for line in lines if line.peer not in failed], failed)


def take_turns(
    peer: Library,
    work: str,
    size: int,
    measure: Measure,
    found: dict[tuple[str, str], Pair],
    failed: dict[str, str],
) -> None:
    """Measure ours, then the other; both figures are kept, or none."""
    ours = measure(OURS, work, size)
    try:
        theirs = measure(peer, work, size)
    except Failed as failure:
        failed[peer.name] = str(failure)
        return
    for shown in WORKS[work].shown:
        pair = found.setdefault((peer.name, shown.figure), Pair())
        pair.ours.append(ours[shown.figure])
        pair.peer.append(theirs[shown.figure])


def lines_of(work: str, plan: Plan, found: Mapping[tuple[str, str], Pair]) -> list[Line]:
    """The lines of a work: for each figure, every library; once for one that cannot do it."""
    lines: list[Line] = []
    for shown in WORKS[work].shown:
        for peer in plan.peers:
            if work in peer.absent and shown is not WORKS[work].shown[0]:
                continue
            size = peer.size(work, plan.scale)
            text = shown.text.format(size=f"{size:,}", part=f"{max(2, size // 10):,}")
            line = Line(work, text, peer.name, shown.unit)
            pair = found.get((peer.name, shown.figure))
            if pair is not None:
                ratios = [theirs / ours for ours, theirs in zip(pair.ours, pair.peer, strict=True)]
                line = Line(
                    work,
                    text,
                    peer.name,
                    shown.unit,
                    Spread.of(pair.ours, shown.factor),
                    Spread.of(pair.peer, shown.factor),
                    Spread.of(ratios),
                    pair,
                )
            lines.append(line)
    return lines
