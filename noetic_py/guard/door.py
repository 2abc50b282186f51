"""What a harness passes everything through that somebody does to a run or a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from noetic_py.errors import ConfigError
from noetic_py.runs import Runs
from noetic_py.streams import RunStream

if TYPE_CHECKING:
    from noetic_py._engine.resume import Past
    from noetic_py.access import AccessAction, AccessPolicy
    from noetic_py.checkpoints.backend import CheckpointBackend
    from noetic_py.runtime import Runtime
    from noetic_py.sessions.desk import Desk
    from noetic_py.sessions.keys import SessionKey
    from noetic_py.sessions.session import Session, Sessions

__all__ = ["Door", "Leave", "Options", "door_of"]

Options: TypeAlias = Mapping[str, Any]
Leave: TypeAlias = Callable[[], Awaitable[None]]
"""Asks whether a run may begin."""


class Door:
    """The door of a harness without a policy: nobody is asked."""

    async def run(self, options: Options, ctx: Any) -> Options:
        """A run is to begin; its options, with what follows from who begins it.

        Raises:
            AccessDenied: It may not.
        """
        return options

    def start(self, options: Options, ctx: Any) -> tuple[Options, Leave | None]:
        """The same for a run that begins in a task of its own, which has to ask first."""
        return options, None

    async def reopen(self, run_id: str, options: Options) -> Options:
        """Somebody wants to go on with a run; its options, the answers among them signed.

        Raises:
            RunNotFound: There is no such run, or it is not theirs.
            AccessDenied: They may not.
        """
        if not options.get("answers"):
            return options
        from noetic_py.access import signed

        return {**options, "answers": signed(options["answers"])}

    async def goes_on(self, run_id: str, past: Past) -> None:
        """The same once more, now that its journal says how it has ended.

        Raises:
            AccessDenied: They may not.
        """

    async def past(self, action: AccessAction, run_id: str) -> None:
        """Something is to be done to a kept run.

        Raises:
            RunNotFound: There is no such run, or it is not theirs.
            AccessDenied: They may not.
        """

    def live(self, run: Any, *actions: AccessAction) -> Any:
        """Something is to be done to a run that goes on; `None` when it is not there for whoever asks.

        Raises:
            AccessDenied: They may not.
        """
        return run

    def sees(self, run_id: str, owner: str | None, session: SessionKey | None) -> bool:
        """Whether a run is there for whoever asks."""
        return True

    async def session(self, action: AccessAction, key: SessionKey) -> None:
        """Something is to be done to a session.

        Raises:
            AccessDenied: It may not.
        """

    def runs(self, backend: CheckpointBackend, runtime: Runtime) -> Runs:
        """What a harness gives as its runs."""
        return Runs(backend, runtime)

    def sessions(self, desk: Desk) -> Sessions:
        """What a harness gives as its sessions."""
        from noetic_py.sessions.session import Sessions

        return Sessions(desk)

    def session_of(self, key: SessionKey, run: Callable[..., Any], stream: Callable[..., Any], desk: Desk) -> Any:
        """What a harness gives as one session."""
        from noetic_py.sessions.session import Session

        made: Session[Any] = Session(key, run, stream, desk)
        return made

    def stream(self, run: Any) -> RunStream[Any, Any]:
        """What a harness gives to whoever watches a run."""
        return RunStream(run)


_OPEN = Door()


def door_of(policy: AccessPolicy | None, backend: CheckpointBackend | None, runtime: Runtime) -> Door:
    """The door of a harness.

    Raises:
        ConfigError: It is no policy; code `"access"`.
    """
    if policy is None:
        return _OPEN
    if not callable(getattr(policy, "allows", None)):
        raise ConfigError(f"access={policy!r:.100} is no access policy", code="access", hint="RoleAccess({...})")
    from noetic_py.guard.asking import Guard

    return Guard(policy, backend, runtime)
