"""A step in flight: the context that its body holds, and the engine's own notes about it."""

from __future__ import annotations

from contextvars import Token
from typing import TYPE_CHECKING, Any

from noetic_py.budget import Lease, TokenUsage
from noetic_py.checkpoints.cells import StoredCells
from noetic_py.checkpoints.delta import known_fields
from noetic_py.context import CURRENT, Context, Derived
from noetic_py.domain import Domain
from noetic_py.errors import ConfigError
from noetic_py.events import Event, Source
from noetic_py.state import NO_CELLS, Cells, copy_state, restore_state

if TYPE_CHECKING:
    from decimal import Decimal

    from opentelemetry.trace import Span

    from noetic_py._engine.fold import Node
    from noetic_py._engine.state import Execution
    from noetic_py.channels import Reader
    from noetic_py.checkpoints.records import Segment, StepFinished
    from noetic_py.control import Control
    from noetic_py.items import Item
    from noetic_py.log import ItemLog
    from noetic_py.steps.step import Step

__all__ = ["NO_ITEMS", "Frame", "acting", "frame_around", "frame_of"]

NO_ITEMS: tuple[Item, ...] = ()


class Frame(Context[Any, Any]):
    """A step in flight: the context its body holds, and the engine's own notes about it.

    Attributes:
        clean: Whether everything the body did itself is in the journal; then so it is for all frames above.
        saved: The state before the body's unwritten work, while `_touched` and not clean.
        base: The state at the step's start, once somebody below may change it.
        saved_cells: The states of layers likewise.
        base_cells: The same of them.
        start: The log's length at the step's start.
        mark: The log's length up to which the items have their place: a segment, or a child.
        written: The log's length up to which they are in the journal.
    """

    # Most steps never need most of these: a class default costs a step nothing.
    attempt = 1
    # Whether the step's record has to hold more than its output and its items.
    noted = False
    clean = True
    opened = False
    has_base = False
    base: Any = None
    saved: Any = None
    base_cells: Cells = NO_CELLS
    saved_cells: Cells = NO_CELLS
    # The layers as the step has them, once it has asked.
    bundle: Any = None
    busy: str | None = None
    token: Token[Context[Any, Any] | None] | None = None
    control: Control | None = None
    occurrences: dict[str, int] | None = None
    used_tokens: TokenUsage | None = None
    used_cost: Decimal | None = None
    # How many model calls the attempt has made, and the tool that it has called.
    used_calls = 0
    used_tool: str | None = None
    # What the model had said when an answer was cut off.
    heard: tuple[Item, ...] = NO_ITEMS
    # What `stop_loop` was given, or to which step a hook hands over, and by which steps; the last word counts.
    loop_stops: list[tuple[object, tuple[str, ...]]] | None = None
    # The lease of the step's own budget, and the one of its wrap-up.
    own_lease: Lease | None = None
    wrap_up: Lease | None = None
    segments: list[Segment] | None = None
    # What the journal of a resumed run says of the step, and which of its children were called this time.
    node: Node | None = None
    visited: set[str] | None = None
    # In a durable run: the last child's name and output; the record that is about to be committed; messages taken.
    last_output: tuple[str, Any] | None = None
    prepared: StepFinished | None = None
    takes: list[tuple[str, ...]] | None = None
    own_span: Span | None = None
    # What the body takes messages from, by channel and attempt.
    readers: dict[tuple[str, int], Reader] | None = None
    winner: int | None = None
    # Whether a child waits for an answer, so that the body cannot come to an end.
    parks = False
    # The function call that a tool call is made for; and where its events come from, once it has sent one.
    call_id: str | None = None
    source: Source | None = None
    # The head of an execution: it stands for the spawn, or the run, that has records of its own.
    virtual = False

    def __init__(
        self,
        step: Step[Any, Any, Any, Any],
        parent: Frame | None,
        x: Execution,
        path: tuple[str, ...],
        domain: Domain,
        lease: Lease,
        length: int,
    ) -> None:
        self.engine = x
        self.domain = domain
        self.at = path
        self.touched = False
        self.x: Execution = x
        self.step = step
        self.up = parent
        self.lease = lease
        self.mark = self.written = self.start = length

    def tell(self, event: Event) -> None:
        """Send an event of the step's, with the branch and the tool call that it belongs to."""
        self.x.run.bus.publish(event.tagged(self.source or self.find_source()))

    def find_source(self) -> Source:
        """Where its events come from: as its parent's do, unless it has a conversation of its own, or is a call."""
        up = self.up
        around = None if up is None else up.source or up.find_source()
        if up is not None and around is not None and self.domain is up.domain and self.call_id is None:
            self.source = around
        else:
            above = None if around is None else around.call_id
            self.source = Source(self.domain.branch, self.call_id or above, self.x.depth)
        return self.source

    @property
    def log(self) -> ItemLog:
        """The conversation the body writes to."""
        return self.domain.log

    def stop_loop_with(self, value: object, path: tuple[str, ...]) -> None:
        """A step asks this loop to end, or this step to hand over."""
        self.loop_stops = [*(self.loop_stops or ()), (value, path)]

    @property
    def handover(self) -> Any:
        """To whom a hook hands over in this step's place; `None` when none does."""
        return self.loop_stops[-1][0] if self.loop_stops and self.step.kind == "handing" else None

    def rewind(self) -> None:
        """Go back to the step's start: its state and its place in the log."""
        self.log.rollback(self.start)
        self.mark = self.written = self.start
        self.segments = None
        if self.has_base:
            restore_state(self.domain.state, copy_state(self.base))
            self.domain.cells = self.base_cells
            self._look_again()
        self.touched = False
        self.clean = True

    def drop_unwritten(self) -> None:
        """Forget what the body did itself and no commit has written."""
        self.log.rollback(self.written)
        self.mark = self.written
        self.segments = None
        if self.touched and not self.clean:
            restore_state(self.domain.state, copy_state(self.saved))
            self.domain.cells = self.saved_cells
            self._look_again()

    def _look_again(self) -> None:
        """The state was put back, so what is known of it is not what was stored last."""
        store = self.x.run.store
        if store is not None and self.domain.known is not None:
            self.domain.known = known_fields(self.domain.state, store.codec)
            self.domain.stored = StoredCells(self.domain.cells)

    def put_cells(self, cells: Cells) -> None:
        """Put states of layers in place of those that are there, as work of the body's own."""
        if not self.touched:
            self.x.touch(self)
        self.domain.cells = cells


def acting(frame: Frame) -> Frame:
    """Whose work it is: what is asked for through `ctx.root` or `ctx.parent` belongs to the body that asks."""
    asking = CURRENT.get() if frame.virtual else None
    return asking if isinstance(asking, Frame) else frame


def frame_of(ctx: Context[Any, Any]) -> Frame:
    """The frame that a context is.

    Raises:
        ConfigError: It is none; code `"not-running"`, or `"derived"` when it was derived from one.
    """
    if isinstance(ctx, Frame):
        return ctx
    if isinstance(ctx, Derived):
        raise ConfigError(
            "steps are called with the context of a step",
            code="derived",
            path=ctx.path,
            hint="spawn(step, state=..., items=...) runs one with a log, a state and a branch of its own",
        )
    raise ConfigError("this context is not the engine's", code="not-running")


def frame_around(ctx: Context[Any, Any]) -> Frame:
    """The frame that a context is, or that it was derived from."""
    while isinstance(ctx, Derived):
        ctx = ctx.within
    return frame_of(ctx)
