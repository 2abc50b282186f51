"""What going on with a run would do, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

if TYPE_CHECKING:
    from noetic_py.control import RunStatus

__all__ = ["PlannedStep", "ResumePlan"]


@frozen
class PlannedStep:
    """One step of a run that would go on.

    Attributes:
        path: The step.
        kind: Its kind.
        action: `"replay"`: it gives its recorded outcome. `"run"`: its body runs. `"differ"`: the flow is not the one
            that was recorded, so the run would fail there. `"unknown"`: it may run only once, and nobody knows whether
            it has.
        reason: Why, where the action does not say it.
    """

    path: tuple[str, ...]
    kind: str
    action: Literal["replay", "run", "differ", "unknown"]
    reason: str | None = None


@frozen
class ResumePlan:
    """What going on with a run would do.

    Attributes:
        run_id: The run.
        status: How it stands.
        steps: What would happen, in the order of the flow as far as that is known. Below a step that is replayed
            nothing is listed; what a body or a route will choose is not known yet.
    """

    run_id: str
    status: RunStatus
    steps: tuple[PlannedStep, ...]

    @property
    def diverges(self) -> bool:
        """Whether the flow differs from what is recorded."""
        return any(step.action == "differ" for step in self.steps)
