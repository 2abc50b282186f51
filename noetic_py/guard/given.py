"""What users have of runs and sessions, asking first; each method does what that of its class does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from noetic_py._types import M_co, O_co, S_co, T
from noetic_py.checkpoints.checks import check_prune
from noetic_py.checkpoints.naming import is_stream
from noetic_py.errors import RunBusy, RunNotFound
from noetic_py.guard.asking import Guard, Thing, thing_of, thing_of_run
from noetic_py.runs import DONE, RunInfo, Runs, check_statuses
from noetic_py.sessions.session import Session, SessionEdit, Sessions, as_data
from noetic_py.streams import RunStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from noetic_py.channels import Channel, ChannelHandle
    from noetic_py.checkpoints.backend import CheckpointBackend, RunEntry, Stats
    from noetic_py.checkpoints.records import JournalRecord
    from noetic_py.checkpoints.transforms import Anchor, VerificationReport
    from noetic_py.control import RunStatus
    from noetic_py.items import Item, Message
    from noetic_py.pending import Answer
    from noetic_py.progress import ProgressEntry
    from noetic_py.runtime import Runtime
    from noetic_py.sessions.data import SessionData
    from noetic_py.sessions.desk import Desk
    from noetic_py.sessions.feed import SessionStream
    from noetic_py.sessions.keys import SessionKey
    from noetic_py.sessions.mail import Delivery, QueuedMessage, Sent

__all__ = ["GuardedRuns", "GuardedSession", "GuardedSessions", "GuardedStream"]


class GuardedRuns(Runs):
    """Runs, of which each method asks the policy first."""

    def __init__(self, backend: CheckpointBackend, runtime: Runtime, guard: Guard) -> None:
        super().__init__(backend, runtime)
        self._guard = guard

    async def _shows(self, entry: RunEntry) -> bool:
        return await self._guard.sees_entry(entry, entry.run_id)

    async def get(self, run_id: str) -> RunInfo:
        """Asks for `"read"`."""
        await self._guard.past("read", run_id)
        return await super().get(run_id)

    async def list(
        self, *, status: RunStatus | None = None, session: SessionKey | None = None, limit: int | None = 100
    ) -> list[RunInfo]:
        """Asks for `"read"`, of each run, and of the store so that nobody is told nothing."""
        await self._guard.allows("read", Thing())
        return await super().list(status=status, session=session, limit=limit)

    async def answer(self, *answers: Answer, wait: float = 10.0) -> RunInfo:
        """Asks for `"approve"`."""
        for run_id in sorted({answer.run_id for answer in answers}):
            await self._guard.past("approve", run_id)
        return await super().answer(*answers, wait=wait)

    async def journal(self, run_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Asks for `"export"`."""
        await self._guard.past("export", run_id)
        return await super().journal(run_id, after=after)

    async def progress(self, run_id: str) -> Mapping[tuple[str, ...], ProgressEntry]:
        """Asks for `"read"`."""
        await self._guard.past("read", run_id)
        return await super().progress(run_id)

    async def verify(self, run_id: str, *, anchor: Anchor | None = None) -> VerificationReport:
        """Asks for `"export"`."""
        await self._guard.past("export", run_id)
        return await super().verify(run_id, anchor=anchor)

    async def describe(self) -> Mapping[str, str]:
        """Asks for `"read"`, of the store as a whole."""
        await self._guard.needs("read", Thing())
        return await super().describe()

    async def stats(self) -> Stats:
        """Asks for `"read"`, of the store as a whole."""
        await self._guard.needs("read", Thing())
        return await super().stats()

    async def delete(self, run_id: str) -> None:
        """Asks for `"delete"`."""
        try:
            await self._guard.past("delete", run_id)
        except RunNotFound:
            return
        await super().delete(run_id)

    async def prune(
        self,
        *,
        older_than: timedelta | None = None,
        keep: int | None = None,
        statuses: Collection[RunStatus] = DONE,
    ) -> int:
        """Asks for `"delete"`, of each run; the others count neither as forgotten nor as kept."""
        check_statuses(statuses)
        before = None if older_than is None else self._runtime.now() - older_than
        check_prune(before, keep)
        await self._guard.allows("read", Thing())
        left, old = keep or 0, list[str]()
        cursor: int | None = None
        while page := await self._backend.list(after=cursor):
            cursor = page[-1].cursor
            for entry in page:
                if entry.status not in statuses or is_stream(entry.run_id) or not await self._guard.may_delete(entry):
                    continue
                if left:
                    left -= 1
                elif (before is None or entry.updated < before) and not entry.held:
                    old.append(entry.run_id)
        return sum([await self._forget(run_id) for run_id in old])

    async def _forget(self, run_id: str) -> bool:
        try:
            await self._backend.delete(run_id)
        except RunBusy:
            # Somebody goes on with it since.
            return False
        return True


class GuardedStream(RunStream[O_co, S_co]):
    """A run under way, of which what changes it asks the policy first."""

    def __init__(self, run: Any, guard: Guard) -> None:
        super().__init__(run)
        self._guard = guard

    def channel(self, channel: Channel[T]) -> ChannelHandle[T]:
        """Asks for `"send"`."""
        self._guard.needs_now("send", thing_of_run(self._run))
        return super().channel(channel)

    def abort(self, reason: str) -> None:
        """Asks for `"abort"`."""
        self._guard.needs_now("abort", thing_of_run(self._run))
        super().abort(reason)

    def interrupt(self, reason: str = "interrupted") -> None:
        """Asks for `"abort"`."""
        self._guard.needs_now("abort", thing_of_run(self._run))
        super().interrupt(reason)


class GuardedSession(Session[M_co]):
    """A session, of which each method asks the policy first; turns are asked about as runs are."""

    def __init__(
        self, key: SessionKey, run: Callable[..., Any], stream: Callable[..., Any], desk: Desk, guard: Guard
    ) -> None:
        super().__init__(key, run, stream, desk)
        self._guard = guard

    async def send(
        self, message: str | Message, *, deliver: Delivery = "next_turn", delivery_id: str | None = None
    ) -> Sent:
        """Asks for `"send"`, and for `"abort"` as well when it interrupts."""
        await self._guard.session("send", self._key)
        if deliver == "interrupt":
            await self._guard.session("abort", self._key)
        return await super().send(message, deliver=deliver, delivery_id=delivery_id)

    async def queued(self) -> Sequence[QueuedMessage]:
        """Asks for `"read"`."""
        await self._guard.session("read", self._key)
        return await super().queued()

    async def _next_turn(self, step: Any, options: Any) -> Any:
        """Asks for `"run"`, before anybody is told whether a message waits."""
        await self._guard.session("run", self._key)
        return await super()._next_turn(step, options)

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[SessionStream]:
        """Asks for `"read"`."""
        await self._guard.session("read", self._key)
        async with super()._watch() as stream:
            yield stream

    async def items(self) -> Sequence[Item]:
        """Asks for `"read"`."""
        await self._guard.session("read", self._key)
        return await super().items()

    async def state(self, kind: type[T]) -> T | None:
        """Asks for `"read"`."""
        await self._guard.session("read", self._key)
        return await super().state(kind)

    def interrupt(self, message: str | None = None) -> bool:
        """Asks for `"abort"`."""
        self._guard.needs_now("abort", thing_of(self._key))
        return super().interrupt(message)

    def edit(self) -> AbstractAsyncContextManager[SessionEdit]:
        """Asks for `"run"`: who may say something may also change what was said; it stays in the store."""
        return self._edit()

    @asynccontextmanager
    async def _edit(self) -> AsyncGenerator[SessionEdit]:
        await self._guard.session("run", self._key)
        async with super().edit() as edit:
            yield edit

    async def dump(self) -> SessionData:
        """Asks for `"export"`."""
        await self._guard.session("export", self._key)
        return await super().dump()

    async def save(self) -> int:
        """Asks for `"run"`."""
        await self._guard.session("run", self._key)
        return await super().save()


class GuardedSessions(Sessions):
    """Sessions, of which each method asks the policy first."""

    def __init__(self, desk: Desk, guard: Guard) -> None:
        super().__init__(desk)
        self._guard = guard

    async def list(self, user: str | None, *, app: str | None = None) -> Sequence[SessionKey]:
        """Asks for `"read"`, of each session, and of the store so that nobody is told nothing."""
        await self._guard.allows("read", Thing(None, user))
        return [key for key in await super().list(user, app=app) if await self._guard.allows("read", thing_of(key))]

    async def exists(self, key: SessionKey) -> bool:
        """Asks for `"read"`."""
        await self._guard.session("read", key)
        return await super().exists(key)

    async def load(
        self, data: SessionData | str | bytes, *, into: SessionKey | None = None, replace: bool = False
    ) -> SessionKey:
        """Asks for `"run"`, and for `"delete"` too where a session is to be replaced."""
        from noetic_py.sessions.moving import target_of

        given = as_data(data)
        key = target_of(given, into)
        await self._guard.session("run", key)
        if replace:
            await self._guard.session("delete", key)
        return await super().load(given, into=key, replace=replace)

    async def delete(self, key: SessionKey) -> None:
        """Asks for `"delete"`."""
        await self._guard.session("delete", key)
        await super().delete(key)
