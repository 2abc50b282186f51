"""Where wrappers meet the engine: under a run, every request to a provider goes through the run that pays for it.

A wrapper may ask its model several times for one answer, and each time is a call of its own: reserved before it starts
and settled when it ends. So a wrapper does not ask by itself. It says which model and what, and whoever stands behind
`CALLS` opens the call; outside of a run nobody does, and the model is asked directly.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Protocol

from noetic_py.models.base import Model, ModelRequest, ModelStream
from noetic_py.runtime import SYSTEM, Runtime

__all__ = ["CALLS", "Calls", "current_runtime"]


class Calls(Protocol):
    """What a run does for the wrappers it asks."""

    @property
    def runtime(self) -> Runtime:
        """The run's clock and randomness."""
        ...

    def find(self, name: str, /) -> Model:
        """The model of a name.

        Raises:
            ModelNotFound: No plugin knows it.
        """
        ...

    def open(self, model: Model, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """A call of a model that is no wrapper, reserved on entering and settled on leaving.

        Raises:
            BudgetExceeded: On entering: the call does not fit the budget.
        """
        ...


CALLS: ContextVar[Calls | None] = ContextVar("noetic_model_calls", default=None)
"""Who opens calls here; `None` outside of a run, and inside a model that is no wrapper."""


def current_runtime() -> Runtime:
    """The clock and randomness of the run that asks; the machine's own outside of one."""
    calls = CALLS.get()
    return SYSTEM if calls is None else calls.runtime
