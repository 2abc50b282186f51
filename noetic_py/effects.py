"""`Effects`: what a hook asks the engine to do once it has returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from noetic_py._types import T
    from noetic_py.artifacts import ArtifactScope
    from noetic_py.steps.step import Step

__all__ = ["Compact", "Effects", "HandOff", "Saved", "StopLoop"]


@frozen
class Saved:
    """An artifact that is to be saved."""

    name: str
    data: bytes
    media_type: str
    scope: ArtifactScope


@frozen(eq=False)
class StopLoop:
    """The nearest loop is to end, with a value of its own where that is not `None`."""

    value: object


@frozen(eq=False)
class HandOff:
    """Another step is to go on."""

    step: Step[Any, Any, Any, Any]
    input: object


@frozen
class Compact:
    """Older items are to be shown as a summary."""

    summary: str
    keep: int


class Effects:
    """What a hook asks the engine to do once it has returned. Nothing of it is done when the hook raises.

    It is all done within the step that the hook was called in, and becomes a part of that step's record: a step that
    fails leaves nothing of it, and a run that goes on in another process has it once.
    """

    __slots__ = ("_state", "compaction", "finished", "handoff", "saved", "skips", "stop")

    def __init__(self) -> None:
        self._state: dict[str, object] = {}
        # For the engine: what was asked for.
        self.saved: list[Saved] = []
        self.stop: StopLoop | None = None
        self.handoff: HandOff | None = None
        self.compaction: Compact | None = None
        self.skips: bool = False
        self.finished: bool = False

    @property
    def state(self) -> dict[str, object]:
        """Values of the state by name: `ctx.effects.state["last_model"] = response.model`.

        They are merged into the state: other values stay. Assigning a mapping merges that too.
        """
        return self._state

    @state.setter
    def state(self, changes: Mapping[str, object]) -> None:
        self._state.update(changes)

    def save(
        self,
        name: str,
        data: bytes,
        *,
        media_type: str = "application/octet-stream",
        scope: ArtifactScope = "session",
    ) -> None:
        """Save an artifact in the run's [`ArtifactStore`][noetic_py.ArtifactStore].

        Args:
            name: Its name; saving under a name that is taken makes another version.
            data: The bytes.
            media_type: What they are.
            scope: Whose it is: of the `"session"`, the `"user"` or the `"run"`.
        """
        self.saved.append(Saved(name, data, media_type, scope))

    def stop_loop(self, value: object = None) -> None:
        """End the nearest loop after this round; its value is `value`, or the round's when that is `None`."""
        self.stop = StopLoop(value)

    def hand_off(self, step: Step[T, Any, Any, Any], input: T) -> None:
        """Let another step go on in place of the nearest step around that may hand over, when its body has ended.

        Loops between that step and the hook end after this round. From `before_step` the body does not run at all.

        Args:
            step: One of those that the step around has declared with `hands_to=`.
            input: Its input.
        """
        self.handoff = HandOff(step, input)

    def skip_summary(self) -> None:
        """From `after_tool`: the output is the answer. No model puts it into words, and a loop around ends with it."""
        self.skips = True

    def finish(self) -> None:
        """Mark the step's progress as done, as `ctx.progress.finish()` does; no loop ends by that."""
        self.finished = True

    def compact(self, summary: str, *, keep: int = 0) -> None:
        """Show models a summary in place of older items from now on; the conversation keeps them all.

        Args:
            summary: The summary.
            keep: How many of the newest items are shown as they are, at the least. What waits for an answer always is,
                and a call is never shown without its output.
        """
        self.compaction = Compact(summary, keep)
