"""Messages that steps have received and may have to return to their queue.

A received message belongs to the step that received it. When that step is discarded (a failed attempt of it or of a
step around it, a lost race, a cancellation), the message returns to its place in the queue. A message is remembered
only while a step could still discard its receiver and go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from noetic_py.engine.frame import Frame
from noetic_py.engine.protocol import Giver, UnackedDelivery
from noetic_py.engine.state import Run
from noetic_py.steps.flow import ParallelSpec
from noetic_py.steps.loop import EverySpec, LoopSpec

if TYPE_CHECKING:
    from noetic_py.channels import Entry, Reader


@frozen
class Former:
    """Where messages go back to that were taken before this process had the run."""

    run: Run
    name: str

    def give_back(self, *entries: Entry) -> None:
        """Undo takes."""
        for entry in entries:
            self.run.requeue(self.name, entry)


def going_on(frame: Frame) -> Iterator[Frame]:
    """A frame and those around it that have not ended, from the inside; around detached work is what started it."""
    node: Frame | None = frame
    starter: Frame | None = None
    while node is not None:
        if node.virtual or node.running:
            yield node
        above = node.up
        if starter is not None:
            above, starter = starter, None
        elif node.virtual and node.kind.beside:
            # Its own frame, the next one, hangs from the run: what started it is known by its execution alone.
            starter = _starter(node)
        node = above


def _starter(head: Frame) -> Frame | None:
    found = head.x.parent_context
    return found if isinstance(found, Frame) else None


def note_delivery(frame: Frame, path: tuple[str, ...], reader: Reader, entry: Entry) -> None:
    """Note a take by the step at `path`, which is the frame's or below it."""
    until = _until(frame, path)
    if until is not None:
        until.noted = True
        run = frame.x.run
        if run.unacknowledged is None:
            run.unacknowledged = []
        run.unacknowledged.append(UnackedDelivery(path, frame, until, reader, entry))


def note_former_delivery(run: Run, path: tuple[str, ...], name: str, entry: Entry) -> None:
    """Note a take of which only the journal knows."""
    if run.unacknowledged is None:
        run.unacknowledged = []
    run.unacknowledged.append(UnackedDelivery(path, None, None, Former(run, name), entry))


def _until(frame: Frame, path: tuple[str, ...]) -> Frame | None:
    """The outermost step that can discard everything below it, or else the taker when its end can be handled."""
    until: Frame | None = None
    handled = False
    for node in going_on(frame):
        if node.step.retry is not None or _is_race(node):
            until = node
        elif node is not frame and _handles(node):
            handled = True
    if until is None and path == frame.at and frame.running and (handled or _wraps_up(frame)):
        return frame
    return until


def _is_race(node: Frame) -> bool:
    return isinstance(node.step.spec, ParallelSpec) and node.step.spec.mode == "race"


def _handles(node: Frame) -> bool:
    """Whether the step can go on although one below it was cancelled or has failed."""
    if not node.kind.passes_on:
        return True
    return isinstance(node.step.spec, (LoopSpec, EverySpec)) and node.step.spec.on_error is not None


def _wraps_up(frame: Frame) -> bool:
    """Whether a step would run after a budget is spent."""
    lease = frame.lease
    while lease.parent is not None:
        if lease.budget is not None and lease.budget.wrap_up is not None:
            return True
        lease = lease.parent
    return False


def nack(run: Run, path: tuple[str, ...], *, below: bool) -> None:
    """The step's attempt is discarded, and with `below` everything under it too: its messages go back."""
    depth = len(path)
    kept: list[UnackedDelivery] = []
    discarded: dict[Giver, list[Entry]] = {}
    for each in run.unacknowledged or ():
        if each.path == path or (below and each.path[:depth] == path):
            discarded.setdefault(each.reader, []).append(each.entry)
        else:
            kept.append(each)
    if discarded:
        run.unacknowledged = kept or None
        for reader, entries in discarded.items():
            reader.give_back(*entries)


def release(run: Run, frame: Frame) -> None:
    """The step is over, and with it what was kept for its sake, unless work that it has started beside goes on."""
    kept: list[UnackedDelivery] = []
    for each in run.unacknowledged or ():
        if each.until is frame and each.frame is not None:
            until = _until(each.frame, each.path)
            if until is None:
                continue
            until.noted = True
            each.until = until
        kept.append(each)
    run.unacknowledged = kept or None
