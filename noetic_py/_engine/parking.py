"""The end of a task that waits for an answer."""

from __future__ import annotations

__all__ = ["Parked", "parked_in"]


class Parked(BaseException):
    """A step waits for an answer: its task ends here, and so do those around it.

    It is no exception that a body could handle: one that catches it all the same is parked when it returns.
    """


def parked_in(error: BaseException) -> Parked | None:
    """The mark that a task waits, when that is what has ended it; a task group of the body's own wraps it."""
    if isinstance(error, Parked):
        return error
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return next(filter(None, map(parked_in, inside)), None)
