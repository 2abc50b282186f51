"""Messages that steps have taken and may have to give back.

A take belongs to the step that took it. What makes the step void, a failed attempt of it or of a step around it, a lost
race, a cancellation, gives the message back to its place in the queue. A message is kept in mind only while somebody
could still make its taker void and go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from noetic_py.steps.loop import LoopSpec

if TYPE_CHECKING:
    from noetic_py._engine.state import Frame, Run
    from noetic_py.channels import Entry, Reader

__all__ = ["Taken", "give_back", "keep", "release"]


@define(eq=False)
class Taken:
    """A message, who took it, and the step whose end makes that final."""

    path: tuple[str, ...]
    until: Frame
    reader: Reader
    entry: Entry


# A failure below these is the run's: nobody goes on after it.
_PASS_ON = frozenset({"run", "sequence", "branch", "loop", "every", "spawn", "spawn_shared", "detached"})


def keep(frame: Frame, path: tuple[str, ...], reader: Reader, entry: Entry) -> None:
    """Note a take by the step at `path`, which is the frame's or below it."""
    until: Frame | None = None
    node: Frame | None = frame
    while node is not None:
        if node.step.retry is not None or (node is not frame and _handles(node)):
            until = node
        node = node.up
    if until is not None:
        until.noted = True
        run = frame.x.run
        if run.custody is None:
            run.custody = []
        run.custody.append(Taken(path, until, reader, entry))


def _handles(node: Frame) -> bool:
    """Whether the step can go on although one below it was cancelled or has failed."""
    if node.step.kind not in _PASS_ON:
        return True
    return isinstance(node.step.spec, LoopSpec) and node.step.spec.on_error is not None


def give_back(run: Run, path: tuple[str, ...], *, below: bool) -> None:
    """The step's attempt is void, and with `below` everything under it too: its messages go back, latest first."""
    custody = run.custody or []
    depth = len(path)
    void = [each for each in custody if each.path == path or (below and each.path[:depth] == path)]
    if void:
        run.custody = [each for each in custody if each not in void]
        for each in reversed(void):
            each.reader.give_back(each.entry)


def release(run: Run, frame: Frame) -> None:
    """The step is over, and with it what was kept for its sake."""
    run.custody = [each for each in run.custody or [] if each.until is not frame] or None
