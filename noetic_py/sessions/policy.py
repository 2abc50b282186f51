"""`SessionPolicy`: how the sessions of a harness behave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from noetic_py import errors
from noetic_py.context.step import is_seconds


@frozen(kw_only=True)
class SessionPolicy:
    """How the sessions of a harness behave.

    Attributes:
        lock: What a turn does while another turn of its session runs in this process: `"queue"` waits, in the order
            of arrival; `"reject"` raises `RunBusy`; `"none"` goes on beside it, and what both have made meets when it
            is written.
        wait: How many seconds a turn waits for a session that another process holds, before `RunBusy`.
        max_waiting: How many turns of one session may wait; one more raises `Overloaded`. `None` is any number.
        persist: What a process that dies in the middle of a turn leaves of it in the conversation, besides the run,
            which can be resumed either way: with `"step"` what its finished steps have added, with `"run"` nothing.
            `"item"` is as `"step"`, for an item is stored with its step. With `"manual"` a turn is written only by
            `await session.save()`.
        on_conflict: What happens when another process has written the session since a turn of lock `"none"` began:
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
        max_queued: How many messages may wait for a session; `send` raises `LimitExceeded` for one more.
        history: How many events of a session's turns are kept for later watchers; 0 for none.
            So it is for as many sessions as `cache_size` says, and in this process.
    """

    lock: Literal["queue", "reject", "none"] = "queue"
    wait: float = 0.0
    max_waiting: int | None = None
    persist: Literal["item", "step", "run", "manual"] = "run"
    on_conflict: Literal["fail", "merge", "overwrite"] = "fail"
    on_suspended: Literal["refuse", "close"] = "refuse"
    on_load_error: Literal["raise", "fresh"] = "raise"
    shared: bool = False
    cache_size: int = 256
    max_queued: int = 1000
    history: int = 100

    @property
    def distributed(self) -> bool:
        """Whether its turns come to several machines."""
        return self.shared

    def __attrs_post_init__(self) -> None:
        """Refuse an invalid policy."""
        allowed: Mapping[str, tuple[str, ...]] = {
            "lock": ("queue", "reject", "none"),
            "persist": ("item", "step", "run", "manual"),
            "on_conflict": ("fail", "merge", "overwrite"),
            "on_suspended": ("refuse", "close"),
            "on_load_error": ("raise", "fresh"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise errors.ConfigError(
                    f"{name}={getattr(self, name)!r} is unknown", code="session-policy", hint=", ".join(values)
                )
        shared: object = self.shared
        if not isinstance(shared, bool) or (shared and self.persist == "manual"):
            raise errors.ConfigError(
                f"shared={self.shared!r} does not go with persist={self.persist!r}",
                code="session-policy",
                hint='shared=True with persist="run" or "step"',
            )
        waiting = 0 if self.max_waiting is None else self.max_waiting
        counts = (self.cache_size, self.max_queued, self.history, waiting)
        if not is_seconds(self.wait) or not all(type(count) is int and count >= 0 for count in counts):
            raise errors.ConfigError(
                "wait is a number of seconds, the other limits are whole numbers, and none is below 0",
                code="session-policy",
                hint="SessionPolicy(wait=5.0, cache_size=256, max_waiting=100)",
            )


def checked_policy(policy: object) -> SessionPolicy:
    """The policy of a harness; `None` stands for the usual one.

    Raises:
        ConfigError: It is not a policy; code `"session-policy"`.
    """
    if policy is None:
        return SessionPolicy()
    if not isinstance(policy, SessionPolicy):
        raise errors.ConfigError(
            f"sessions={policy!r} is not a valid policy; expected a SessionPolicy",
            code="session-policy",
            hint='SessionPolicy(lock="reject")',
        )
    return policy
