"""The progress of a run from its events: a tree of steps with counts, usage, and text as it arrives.

The tree is one of step ids, not of paths: a thousand parallel paths of one step are one node that counts to a thousand.
So it stays small however long a run is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from attrs import define, field

from noetic_py.core.budget import NO_USAGE, Budget, TokenUsage
from noetic_py.core.events import (
    BudgetWarning,
    Event,
    LoopIteration,
    ModelFailed,
    ModelFinished,
    ModelStarted,
    ReasoningDelta,
    StepCommitted,
    StepDiscarded,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from noetic_py.engine.kinds import KINDS

MAX_NODES = 5_000
"""The most nodes a tree has; steps beyond that are counted in a node of their parent's called "(others)"."""
OTHERS = "(others)"
_PLACE = re.compile(r"(?:\[\d{1,9}\]|#\d{1,9}){1,8}$")
_MAX_STREAMS = 64
_TAIL = 2_000
"""Characters of an answer that are kept for the screen."""


def _id(frame: str) -> str:
    """The step's id, without its place among others of that id."""
    return _PLACE.sub("", frame) if frame[-1:] == "]" or "#" in frame else frame


@define(eq=False)
class ProgressRow:
    """All steps with one id at one place of the flow.

    Attributes:
        name: The id.
        kind: What interprets it.
        children: The nodes below, in the order of their first start.
        running: Bodies in flight.
        done: Steps that finished.
        failed: Steps that failed for good.
        stopped: Steps that were cancelled.
        retried: Attempts that failed and were followed by another.
        rounds: Iterations that a loop has finished.
        since: When the first of those in flight started, by the caller's clock.
        touched: The number of the event that changed it last.
    """

    name: str
    kind: str
    children: dict[str, ProgressRow] = field(factory=dict[str, "ProgressRow"])
    running: int = 0
    done: int = 0
    failed: int = 0
    stopped: int = 0
    retried: int = 0
    rounds: int = 0
    since: float = 0.0
    touched: int = 0

    @property
    def seen(self) -> int:
        """Steps of this node so far."""
        return self.running + self.done + self.failed + self.stopped


@define(eq=False)
class Meter:
    """The usage and the limit of one dimension of a budget."""

    dimension: str
    used: Decimal
    limit: Decimal


@define(eq=False)
class ProgressState:
    """Everything the screen shows, kept by `apply`.

    Args:
        budgets: Those in force for the whole run; where two limit a dimension, the lower limit holds.
    """

    budgets: tuple[Budget, ...] = ()
    root: ProgressRow = field(factory=lambda: ProgressRow("", "run"))
    steps: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    tools: dict[str, int] = field(factory=dict[str, int])
    usage: TokenUsage = NO_USAGE
    cost: Decimal = Decimal(0)
    unpriced: bool = False
    warnings: dict[str, Meter] = field(factory=dict[str, Meter])
    _streams: dict[tuple[str, ...], str] = field(factory=dict[tuple[str, ...], str])
    _failed_tools: set[tuple[str, ...]] = field(factory=set[tuple[str, ...]])
    _nodes: int = 0
    _events: int = 0

    def apply(self, event: Event, now: float) -> None:
        """Take an event in.

        Args:
            event: The event.
            now: Seconds, by any clock that does not go back.
        """
        self._events += 1
        match event:
            case StepStarted():
                self._started(event, now)
            case StepCommitted():
                self._ended(event.path, "failed" if event.path in self._failed_tools else "done")
                self._failed_tools.discard(event.path)
            case StepDiscarded():
                self._discarded(event)
            case TextDelta() | ReasoningDelta():
                self._said(event.path, event.delta)
            case _:
                self._count(event)

    def _count(self, event: Event) -> None:
        match event:
            case ModelStarted():
                self.model_calls += 1
            case ModelFinished() | ModelFailed():
                self._answered(event)
            case ToolStarted():
                self.tool_calls += 1
                self.tools[event.call.name] = self.tools.get(event.call.name, 0) + 1
            case ToolFinished() if event.failed:
                # The call's own step is committed after it, and has done what it can.
                self._failed_tools.add(event.path)
            case LoopIteration():
                node = self._find(event.path)
                if node is not None:
                    node.rounds += 1
            case BudgetWarning():
                self.warnings[event.dimension] = Meter(event.dimension, event.used, event.limit)
            case _:
                pass

    def _started(self, event: StepStarted, now: float) -> None:
        kind = KINDS[event.kind]
        self.steps += kind.counted
        if kind.part:
            # The step above stands for it.
            return
        node = self._make(event.path, event.kind)
        if not node.running:
            node.since = now
        node.running += 1
        node.touched = self._events

    def _ended(self, path: tuple[str, ...], outcome: str) -> None:
        node = self._find(path)
        if node is None:
            return
        # Events that a full buffer dropped leave a count behind, which must not go below zero.
        node.running = max(0, node.running - 1)
        setattr(node, outcome, getattr(node, outcome) + 1)
        node.touched = self._events

    def _discarded(self, event: StepDiscarded) -> None:
        self._streams = {path: text for path, text in self._streams.items() if path[: len(event.path)] != event.path}
        stopped = event.reason == "stopped"
        self._ended(event.path, "stopped" if stopped else "failed" if event.final else "retried")

    def _said(self, path: tuple[str, ...], delta: str) -> None:
        if path in self._streams or len(self._streams) < _MAX_STREAMS:
            self._streams[path] = (self._streams.get(path, "") + delta)[-_TAIL:]

    def _answered(self, event: ModelFinished | ModelFailed) -> None:
        self._streams.pop(event.path, None)
        if event.usage is not None:
            self.usage += event.usage
        if event.cost is None:
            # A call that failed before it used anything has no cost, and is not an unpriced one either.
            self.unpriced = self.unpriced or isinstance(event, ModelFinished) or event.usage is not None
        else:
            self.cost += event.cost

    @property
    def speaking(self) -> tuple[tuple[str, ...], str] | None:
        """The answer that comes in and began first, with its path: one is followed to its end before the next."""
        return next(iter(self._streams.items()), None)

    def at_work(self) -> Iterator[tuple[tuple[str, ...], ProgressRow]]:
        """The steps that are running and have no running step below, with their paths."""
        below: list[tuple[tuple[str, ...], ProgressRow]] = [((), self.root)]
        while below:
            path, row = below.pop()
            running = [((*path, name), each) for name, each in row.children.items() if each.running]
            below += reversed(running)
            if path and not running:
                yield path, row

    def meters(self, seconds: float) -> list[Meter]:
        """The limits and the usage of the budgets, and warnings of budgets that are not known here.

        Args:
            seconds: How long the run has taken.
        """
        limits: dict[str, Decimal] = {}
        for budget in self.budgets:
            for name, limit in budget.limits.items():
                limits[name] = min(limit, limits.get(name, limit))
            if budget.seconds is not None:
                limit = Decimal(str(budget.seconds))
                limits["seconds"] = min(limit, limits.get("seconds", limit))
        found = [Meter(name, self._used(name, seconds), limit) for name, limit in limits.items()]
        return found + [meter for name, meter in self.warnings.items() if name not in limits]

    def _used(self, dimension: str, seconds: float) -> Decimal:
        used: dict[str, int | Decimal] = {
            "steps": self.steps,
            "model_calls": self.model_calls,
            "tool_calls": self.tool_calls,
            "input_tokens": self.usage.input,
            "cached_input_tokens": self.usage.cached_input or 0,
            "output_tokens": self.usage.output,
            "tokens": self.usage.total,
            "cost": self.cost,
            "seconds": Decimal(str(round(seconds, 1))),
        }
        _, _, tool = dimension.partition("per_tool:")
        return Decimal(self.tools.get(tool, 0) if tool else used.get(dimension, 0))

    def _find(self, path: tuple[str, ...]) -> ProgressRow | None:
        node = self.root
        for frame in path:
            name = _id(frame)
            below = node.children.get(name) or node.children.get(OTHERS)
            if below is None:
                return None
            node = below
        return node

    def _make(self, path: tuple[str, ...], kind: str) -> ProgressRow:
        node = self.root
        for frame in path:
            name = _id(frame)
            below = node.children.get(name)
            if below is None:
                name = OTHERS if self._nodes >= MAX_NODES else name
                below = node.children.get(name) or ProgressRow(name, kind)
                node.children[name] = below
                self._nodes += 1
            node = below
        return node
