"""The state of the oracle of random programs while it foretells a run, and its answer at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from attrs import define, field, frozen

from noetic_py.core.control import RunStatus
from noetic_py.testing._random_programs.conversation import ItemText
from noetic_py.testing.ledger import Attempt

State = dict[str, Any]


class AmbiguousOutcome(Exception):
    """Two outcomes are right, and the choice between them was not noted."""


class Unfinished(Exception):
    """This path was cancelled; the section around it knows why."""


class Failed(Exception):
    """A step failed."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
        # What each scope that it passed had written by then.
        self.left: dict[ProgramScope, tuple[list[ItemText], State]] = {}

    def note(self, scope: ProgramScope) -> None:
        """Note what is written in a scope and around it, unless that was noted further inside."""
        node: ProgramScope | None = scope
        while node is not None:
            self.left.setdefault(node, node.written)
            node = node.up


class GivenUp(Exception):
    """A body hung, and the nearest that waits for it gives it up."""


class Stopped(Exception):
    """An execution was stopped from inside."""

    def __init__(self, execution: Attempt) -> None:
        super().__init__(execution)
        self.execution = execution


@define(eq=False)
class ProgramScope:
    """A conversation and a state, what of them is written, and the scope around; items may be written before a state.

    Its version counts how many times items were written, and how many times the state.
    """

    items: list[ItemText]
    state: State
    up: ProgramScope | None = None
    version: tuple[int, int] = (0, 0)
    written: tuple[list[ItemText], State] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.written = self.now()

    def now(self) -> tuple[list[ItemText], State]:
        """A copy of its contents."""
        return list(self.items), deepcopy(self.state)

    def put(self, contents: tuple[list[ItemText], State]) -> None:
        """Go back to earlier contents, in place: they may be shared."""
        items, state = contents
        self.items[:] = items
        self.state.clear()
        self.state.update(deepcopy(state))

    def commit(self) -> None:
        """Something below has finished: all that stands here and around is written."""
        node: ProgramScope | None = self
        while node is not None:
            node.written = node.now()
            node.version = node.version[0] + 1, node.version[1] + 1
            node = node.up

    def commit_items(self) -> None:
        """A model was asked: the items that stand here and around are written, and no state."""
        node: ProgramScope | None = self
        while node is not None:
            node.written = list(node.items), node.written[1]
            node.version = node.version[0] + 1, node.version[1]
            node = node.up

    def since(
        self, version: tuple[int, int], before: tuple[list[ItemText], State], after: tuple[list[ItemText], State]
    ) -> tuple[list[ItemText], State]:
        """Of two contents the first, as far as nothing was written since a version, and else the second."""
        items, state = self.version
        return before[0] if items == version[0] else after[0], before[1] if state == version[1] else after[1]

    def back(
        self,
        start: tuple[list[ItemText], State],
        version: tuple[int, int],
        written: tuple[list[ItemText], State],
    ) -> None:
        """A step has failed: all is as at its start, what was written meanwhile too, here and where this is shared."""
        self.put(start)
        self.written = self.since(version, written, start)
        node = self.up
        while node is not None:
            items, state = node.written
            node.written = (
                self.written[0] if node.items is self.items else items,
                self.written[1] if node.state is self.state else state,
            )
            node = node.up

    def path(self) -> ProgramScope:
        """The scope of a path; what is committed in it is its section's business."""
        return ProgramScope(list(self.items), deepcopy(self.state))


@frozen
class ExpectedOutcome:
    """The expected outcome of a program.

    Items are tuples that say what can be foretold: `("message", text)`, `("call", call, name)` and
    `("output", call, text)`, where calls are numbered in their order.

    Attributes:
        status: The status of the result.
        value: The value; `None` where there is none.
        error: The name of the error's class; `None` where there is none.
        items: The conversation, with an output for every call.
        live: The conversation as the run has left it, where a call that was stopped is open.
        state: The fields of the state.
    """

    status: RunStatus
    value: int | None
    error: str | None
    items: tuple[ItemText, ...]
    live: tuple[ItemText, ...]
    state: Mapping[str, Any]


def blank() -> State:
    """The state a program begins with."""
    return {"n": 0, "l": [], "a": 0, "b": 0}


def closed(items: Sequence[ItemText]) -> list[ItemText]:
    """The conversation with an output for every call: a missing one stands behind the calls and outputs next to it."""
    answered = {item[1] for item in items if item[0] == "output"}
    out: list[ItemText] = []
    waiting: list[ItemText] = []
    for item in items:
        if item[0] == "message":
            out += waiting
            waiting = []
        out.append(item)
        if item[0] == "call" and item[1] not in answered:
            waiting.append(("output", item[1], "Not finished"))
    return out + waiting
