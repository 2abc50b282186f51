"""What a journal is made of.

A run's journal is a list of records, and a position in it is a checkpoint. A step's place is its path: a tuple of
frames such as `("pipeline", "agent[3]", "search#2")`. The work a body does itself is cut into segments by its child
calls; a body's layout is the order of its segments and its children, and the conversation is the fold of the layouts
from the root, never the order of the records.

When a step commits, whatever its ancestors in flight had not written yet goes before it in the same transaction:
`StepOpened` the first time, then a `Segment`. A child's first record stands for the reference to it in its parent's
layout, at the place where the parent's layout then ends; the paths of a section are ordered by their index.

Without a durable backend records hold references: nothing is encoded, compared or copied.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import define

from noetic_py.budget import TokenUsage
from noetic_py.control import Control, RunStatus

if TYPE_CHECKING:
    from noetic_py.items import Item

__all__ = [
    "CallStarted",
    "Decision",
    "JournalRecord",
    "Path",
    "RunEnded",
    "RunStarted",
    "Segment",
    "StepFailed",
    "StepFinished",
    "StepOpened",
    "StepStopped",
]

Path: TypeAlias = tuple[str, ...]


@define(eq=False)
class RunStarted:
    """The head of a journal: which flow, with which input, from which conversation."""

    path: Path
    run_id: str
    thread_id: str
    flow: str
    input: object
    history: int


@define(eq=False)
class StepOpened:
    """A composite or a body with children is in flight; written with the first commit below it."""

    path: Path
    kind: str
    attempt: int


@define(eq=False)
class Segment:
    """Own work of a body in flight, up to a child call: the items it appended."""

    path: Path
    attempt: int
    items: tuple[Item, ...]


class StepFinished:
    """A step is done: its output, and what of its own work was not written yet.

    Written once for every step, so what most steps do not have is a default of the class and costs them nothing.

    Attributes:
        path: The step.
        kind: Its kind.
        input: What it was given.
        output: What it gave.
        attempt: Which attempt, from 1.
        items: The last segment's items.
        usage: Tokens that the step itself used, children apart; `None` for none.
        cost: USD likewise.
        control: The stop that the step's body asked for.
        winner: The index of a race's winning path.
    """

    attempt: int = 1
    items: tuple[Item, ...] = ()
    usage: TokenUsage | None = None
    cost: Decimal | None = None
    control: Control | None = None
    winner: int | None = None

    def __init__(self, path: Path, kind: str, input: object, output: object) -> None:
        self.path = path
        self.kind = kind
        self.input = input
        self.output = output

    def __repr__(self) -> str:
        return f"StepFinished({'/'.join(self.path)}, {self.kind}, output={self.output!r}, items={len(self.items)})"


@define(eq=False)
class StepFailed:
    """An attempt failed. Not final: everything below the path is void. Final: an outcome like a result."""

    path: Path
    kind: str
    attempt: int
    final: bool
    error: Exception
    usage: TokenUsage | None
    cost: Decimal | None
    control: Control | None


@define(eq=False)
class StepStopped:
    """An attempt was cancelled: its own unwritten work is void, what it used is not.

    Attributes:
        items: Own work kept, when the attempt itself asked for the stop.
        control: The stop that it had asked for.
    """

    path: Path
    kind: str
    attempt: int
    items: tuple[Item, ...]
    usage: TokenUsage | None
    cost: Decimal | None
    control: Control | None


@define(eq=False)
class Decision:
    """What a function decided for a composite: a route, a verdict's feedback, names of dynamic paths, a next input."""

    path: Path
    key: str
    value: Any


@define(eq=False)
class CallStarted:
    """A call that costs is about to start; without an outcome its whole reservation counts as possibly spent."""

    path: Path
    reserved_tokens: int
    reserved_cost: Decimal


@define(eq=False)
class RunEnded:
    """The run is over in this journal."""

    path: Path
    status: RunStatus
    reason: str | None
    control: Control | None


JournalRecord: TypeAlias = (
    RunStarted | StepOpened | Segment | StepFinished | StepFailed | StepStopped | Decision | CallStarted | RunEnded
)
