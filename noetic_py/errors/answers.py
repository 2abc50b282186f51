"""What goes wrong between a run that waits and whoever answers it."""

from __future__ import annotations

from noetic_py.errors.general import NoeticError, StepError

__all__ = ["AnswerConflict", "AnswerError", "AnswerInvalid", "Rejected", "RequestExpired", "RequestNotFound"]


class AnswerError(NoeticError):
    """An answer was not taken. Nothing of the run has changed."""


class RequestNotFound(AnswerError):
    """The run has no open request that this answer is for: another run's, void by now, or never made."""


class RequestExpired(AnswerError):
    """The time for an answer is over; raised by `ctx.ask` too, when the run goes on without one."""


class AnswerConflict(AnswerError):
    """The request was answered otherwise before."""


class AnswerInvalid(AnswerError):
    """The answer is of the wrong kind for its request, or has no JSON form."""


class Rejected(StepError):
    """Somebody has said no: to a question of `ctx.ask`, or to a tool that a step calls.

    Attributes:
        reason: Why, in their words.
    """

    reason: str

    def __init__(self, reason: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"rejected: {reason}" if reason else "rejected", path=path, hint="except Rejected handles it")
        self.reason = reason
