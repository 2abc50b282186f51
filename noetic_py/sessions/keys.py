"""Whose conversation, and how sessions behave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from noetic_py.checkpoints.naming import stream_of
from noetic_py.errors import (
    ConfigError,
    InvalidId,
)
from noetic_py.steps.step import is_seconds

if TYPE_CHECKING:
    pass

__all__ = ["SessionKey", "SessionPolicy"]

_MAX_ID = 256


def _or_none(value: str | None) -> str | None:
    return value or None


def _check(value: object, name: str) -> None:
    if value is not None and (not isinstance(value, str) or len(value) > _MAX_ID or not value.isprintable()):
        raise InvalidId(f"{name} is not a printable text of at most {_MAX_ID} characters", hint="use a UUID, or a name")


@frozen
class SessionKey:
    """Whose conversation, and which of them. Two keys are one session exactly when all three parts are equal.

    Args:
        user: Whose; `None` and the empty text are one user, who is nobody in particular.
        session: Which conversation of that user.
        app: Of which application, where several share a backend.

    Raises:
        InvalidId: A part is no printable text of at most 256 characters, or `session` is empty.
    """

    user: str | None = field(converter=_or_none)
    session: str
    app: str | None = field(default=None, kw_only=True, converter=_or_none)

    def __attrs_post_init__(self) -> None:
        """Refuse what is no id."""
        for name in ("user", "session", "app"):
            _check(getattr(self, name), name)
        if not self.session or not self.session.strip():
            raise InvalidId("session is empty", hint="a UUID for each conversation")

    @property
    def parts(self) -> tuple[str | None, str | None, str]:
        """Application, user and session."""
        return self.app, self.user, self.session

    @property
    def stream(self) -> str:
        """The id under which a backend keeps the session, which is also the `thread_id` of its runs."""
        return stream_of(self.parts)


@frozen(kw_only=True)
class SessionPolicy:
    """How the sessions of a harness behave.

    Attributes:
        gate: What a turn does while another one of its session goes on in this process: `"queue"` waits, in the order
            of arrival; `"reject"` raises `RunBusy`; `"none"` goes on beside it, and what both have made meets when it
            is written.
        wait: How many seconds a turn waits for a session that another process holds, before `RunBusy`.
        max_waiting: How many turns of one session may wait; one more raises `Overloaded`. `None` is any number.
        persist: What a process that dies in the middle of a turn leaves of it in the conversation, besides the run,
            which can be resumed either way: with `"step"` what its finished steps have added, with `"run"` nothing.
            `"item"` is as `"step"`, for an item is stored with its step. With `"manual"` a turn is written only by
            `await session.save()`.
        on_conflict: What happens when somebody else has written the session since a turn of gate `"none"` began:
            `"fail"` raises `SessionConflict`, which carries the result; `"merge"` adds what the turn has made behind
            what is there; `"overwrite"` makes the session what the turn has seen and made.
        on_suspended: What a turn does while an earlier one waits for an answer: `"refuse"` raises
            [`SessionSuspended`][noetic_py.errors.SessionSuspended]; `"close"` ends the earlier one with what it has,
            its open calls closed, and goes on. Its run can be answered and resumed all the same, and then adds the rest
            where `on_conflict` lets it.
        on_load_error: Whether a session that cannot be read raises `SessionLoadError`, or begins `"fresh"`.
        shared: Whether turns of one session may come to several machines. The harness is refused then with a backend
            that other machines do not see, and so is `persist="manual"`, for what waits in one process is seen by no
            other.
        cache_size: How many conversations are kept in memory. What is kept is compared with the backend at every turn.
    """

    gate: Literal["queue", "reject", "none"] = "queue"
    wait: float = 0.0
    max_waiting: int | None = None
    persist: Literal["item", "step", "run", "manual"] = "run"
    on_conflict: Literal["fail", "merge", "overwrite"] = "fail"
    on_suspended: Literal["refuse", "close"] = "refuse"
    on_load_error: Literal["raise", "fresh"] = "raise"
    shared: bool = False
    cache_size: int = 256

    @property
    def distributed(self) -> bool:
        """Whether its turns come to several machines."""
        return self.shared

    def __attrs_post_init__(self) -> None:
        """Refuse what is no policy."""
        allowed: Mapping[str, tuple[str, ...]] = {
            "gate": ("queue", "reject", "none"),
            "persist": ("item", "step", "run", "manual"),
            "on_conflict": ("fail", "merge", "overwrite"),
            "on_suspended": ("refuse", "close"),
            "on_load_error": ("raise", "fresh"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is unknown", code="session-policy", hint=", ".join(values)
                )
        shared: object = self.shared
        if not isinstance(shared, bool) or (shared and self.persist == "manual"):
            raise ConfigError(
                f"shared={self.shared!r} does not go with persist={self.persist!r}",
                code="session-policy",
                hint='shared=True with persist="run" or "step"',
            )
        counts = (self.cache_size, 0 if self.max_waiting is None else self.max_waiting)
        if not is_seconds(self.wait) or not all(type(count) is int and count >= 0 for count in counts):
            raise ConfigError(
                "wait is a number of seconds, cache_size and max_waiting are whole numbers, and none is below 0",
                code="session-policy",
                hint="SessionPolicy(wait=5.0, cache_size=256, max_waiting=100)",
            )
