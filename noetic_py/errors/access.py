"""What goes wrong when somebody may not do a thing."""

from __future__ import annotations

from noetic_py.errors.general import NoeticError

__all__ = ["AccessDenied"]


class AccessDenied(NoeticError):
    """The access policy does not let the caller do this. Nothing was changed.

    What the policy raised, when it could not say, is the `__cause__`.

    Attributes:
        action: What was to be done, such as `"resume"`.
    """

    action: str

    def __init__(self, message: str, *, action: str, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.action = action
