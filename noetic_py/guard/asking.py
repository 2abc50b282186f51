"""The door of a harness with a policy.

Two rules hold everywhere. What somebody may not read is not there for them: they get what they would get if it were
not. And the policy is asked whether or not a thing is there, so that not even an error of its own tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py.access import AccessAction, AccessPolicy, AccessRequest, current_principal
from noetic_py.checkpoints.naming import is_stream
from noetic_py.checkpoints.records import RunEnded
from noetic_py.errors import AccessDenied, ConfigError, RunNotFound
from noetic_py.guard.door import Door, Leave, Options
from noetic_py.options import outside_of
from noetic_py.runs import RunInfo, Runs, info_of
from noetic_py.sessions.keys import SessionKey

if TYPE_CHECKING:
    from noetic_py._engine.resume import Past
    from noetic_py.checkpoints.backend import CheckpointBackend, RunEntry
    from noetic_py.runtime import Runtime
    from noetic_py.sessions.desk import Desk
    from noetic_py.sessions.session import Sessions
    from noetic_py.streams import RunStream

__all__ = ["Guard", "Thing", "thing_of", "thing_of_run"]

_BROKEN = ("failed", "budget_exceeded")
"""How a run has ended that is tried again, and not just gone on with."""


@frozen
class Thing:
    """What something is done to.

    Attributes:
        run_id: The run, when it is one.
        owner: Whose it is.
        session: The session, or the run's.
    """

    run_id: str | None = None
    owner: str | None = None
    session: SessionKey | None = None


class Guard(Door):
    """Asks a policy.

    Args:
        policy: The policy.
        backend: What keeps the runs.
        runtime: Where ids come from.
    """

    def __init__(self, policy: AccessPolicy, backend: CheckpointBackend | None, runtime: Runtime) -> None:
        self._policy = policy
        self._backend = backend
        self._runtime = runtime

    # -- asking

    async def allows(self, action: AccessAction, thing: Thing) -> bool:
        """Whether the policy says so.

        Raises:
            AccessDenied: Nobody is known to act, or the policy has raised, which is the cause.
        """
        return await self._says(_request(action, thing))

    async def _says(self, request: AccessRequest) -> bool:
        try:
            return await self._policy.allows(request) is True
        except Exception as error:  # whatever it is, who cannot say yes says no
            raise _broken(request.action) from error

    async def needs(self, action: AccessAction, thing: Thing) -> None:
        """The same, of something whose being there is no secret.

        Raises:
            AccessDenied: It does not.
        """
        if not await self.allows("read", thing) or not (action == "read" or await self.allows(action, thing)):
            raise _denied(action)

    def needs_now(self, action: AccessAction, thing: Thing) -> None:
        """The same for what cannot wait.

        Raises:
            AccessDenied: It does not.
        """
        if not self.allows_now("read", thing) or not self.allows_now(action, thing):
            raise _denied(action)

    def allows_now(self, action: AccessAction, thing: Thing) -> bool:
        """The same for what cannot wait.

        Raises:
            AccessDenied: As of `allows`; or the policy has to wait for something.
        """
        request = _request(action, thing)
        try:
            waiting: Generator[Any, Any, bool] = self._policy.allows(request).__await__()
            try:
                next(waiting)
            except StopIteration as told:
                return told.value is True
            waiting.close()
        except Exception as error:  # whatever it is, who cannot say yes says no
            raise _broken(action) from error
        raise AccessDenied(
            f"the access policy waits for something, and {action!r} is asked where nothing can wait",
            action=action,
            hint="use what is async, such as harness.interrupt(session), or a policy that knows its answer",
        )

    # -- runs

    async def run(self, options: Options, ctx: Any) -> Options:
        """Ask whether a run may begin."""
        options, leave = self.start(options, ctx)
        await leave()
        return options

    def start(self, options: Options, ctx: Any) -> tuple[Options, Leave]:
        """Say as who a run would begin, and how to ask."""
        session, run_id, thread_id = options.get("session"), options.get("run_id"), options.get("thread_id")
        if isinstance(session, SessionKey):
            request = _request("run", Thing(run_id, session.user, session))
            return options, partial(self._begins, request)
        if ctx is not None:
            outside = outside_of(ctx)
            thread_id = outside.thread_id if outside.named else thread_id
        elif thread_id is None:
            # Not the run's id, which the caller may have chosen as the name of another's thread.
            options = {**options, "thread_id": self._runtime.new_id()}
        principal = current_principal()
        if "user_id" not in options and principal is not None and principal.user_id is not None:
            options = {**options, "user_id": principal.user_id}
        return options, partial(self._begins, _request("run", Thing(run_id, options.get("user_id")), thread_id))

    async def _begins(self, request: AccessRequest) -> None:
        if not await self._says(request):
            raise _denied("run")

    async def reopen(self, run_id: str, options: Options) -> Options:
        """Ask whether a run may be gone on with: to resume, or to try again, and to approve what is answered."""
        info = await self._find(run_id)
        await self._let("retry" if info.status in _BROKEN else "resume", info)
        if options.get("answers"):
            await self._let("approve", info)
        return await super().reopen(run_id, options)

    async def goes_on(self, run_id: str, past: Past) -> None:
        """Ask again: somebody else may have gone on with it meanwhile, and have failed."""
        last = past.records[-1]
        broken = isinstance(last, RunEnded) and last.status in _BROKEN
        await self.past("retry" if broken else "resume", run_id)

    async def past(self, action: AccessAction, run_id: str) -> None:
        """Ask about a kept run."""
        await self._let(action, await self._find(run_id))

    async def _find(self, run_id: str) -> RunInfo:
        entry = None if self._backend is None or is_stream(run_id) else await self._backend.entry(run_id)
        seen = await self.sees_entry(entry, run_id)
        if entry is None or not seen:
            raise RunNotFound(f"there is no run {run_id!r}", hint="look at harness.runs.list()")
        return info_of(entry)

    async def _let(self, action: AccessAction, info: RunInfo) -> None:
        if action != "read" and not await self.allows(action, thing_of_run(info)):
            raise _denied(action)

    async def sees_entry(self, entry: RunEntry | None, run_id: str) -> bool:
        """Whether a kept run is there for whoever asks."""
        return await self.allows("read", Thing(run_id) if entry is None else thing_of_run(info_of(entry)))

    async def may_delete(self, entry: RunEntry) -> bool:
        """Whether whoever asks may forget a run."""
        thing = thing_of_run(info_of(entry))
        return await self.allows("read", thing) and await self.allows("delete", thing)

    def live(self, run: Any, *actions: AccessAction) -> Any:
        """Ask about a run that goes on."""
        thing = Thing() if run is None else thing_of_run(run)
        if not self.allows_now("read", thing) or run is None:
            return None
        for action in actions:
            if not self.allows_now(action, thing):
                raise _denied(action)
        return run

    def sees(self, run_id: str, owner: str | None, session: SessionKey | None) -> bool:
        """Ask about a run that goes on, or has."""
        return self.allows_now("read", Thing(run_id, owner, session))

    # -- sessions

    async def session(self, action: AccessAction, key: SessionKey) -> None:
        """Ask about a session. Whether it is there makes no difference: its key says whose it is."""
        await self.needs(action, thing_of(key))

    # -- what is given to users

    def runs(self, backend: CheckpointBackend, runtime: Runtime) -> Runs:
        """Runs that ask."""
        from noetic_py.guard.given import GuardedRuns

        return GuardedRuns(backend, runtime, self)

    def sessions(self, desk: Desk) -> Sessions:
        """Sessions that ask."""
        from noetic_py.guard.given import GuardedSessions

        return GuardedSessions(desk, self)

    def session_of(self, key: SessionKey, run: Callable[..., Any], stream: Callable[..., Any], desk: Desk) -> Any:
        """A session that asks."""
        from noetic_py.guard.given import GuardedSession

        return GuardedSession(key, run, stream, desk, self)

    def stream(self, run: Any) -> RunStream[Any, Any]:
        """A stream that asks."""
        from noetic_py.guard.given import GuardedStream

        return GuardedStream(run, self)


def thing_of_run(run: Any) -> Thing:
    """A run."""
    return Thing(run.run_id, run.user_id, run.session)


def thing_of(key: SessionKey) -> Thing:
    """A session.

    Raises:
        ConfigError: It is no key; code `"session-key"`.
    """
    given: object = key
    if not isinstance(given, SessionKey):
        raise ConfigError(f"{given!r} is no SessionKey", code="session-key", hint='SessionKey("ada", "trip")')
    return Thing(None, key.user, key)


def _request(action: AccessAction, thing: Thing, thread_id: str | None = None) -> AccessRequest:
    principal = current_principal()
    if principal is None:
        raise AccessDenied(
            f"nobody is known to act, so nobody may {action}",
            action=action,
            hint="with acting_as(Principal(user_id, roles)):",
        )
    return AccessRequest(action, principal, thing.run_id, thing.owner, thing.session, thread_id)


def _denied(action: AccessAction) -> AccessDenied:
    return AccessDenied(
        f"the access policy does not allow {action!r} here", action=action, hint="ask whoever has set up the policy"
    )


def _broken(action: AccessAction) -> AccessDenied:
    return AccessDenied(
        f"the access policy could not say whether {action!r} is allowed, so it is not",
        action=action,
        hint="the cause is what it raised",
    )
