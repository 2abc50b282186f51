"""`Runs`: the runs that a backend keeps, whoever has started them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from noetic_py.checkpoints.backend import CheckpointBackend, RunEntry, Stats
from noetic_py.checkpoints.envelope import card_fields
from noetic_py.checkpoints.naming import is_stream
from noetic_py.checkpoints.plans import PlannedStep, ResumePlan
from noetic_py.control import Checkpoint, RunStatus
from noetic_py.errors import AnswerInvalid, ConfigError, CorruptRecord, InvalidId, RunNotFound
from noetic_py.runtime import Runtime
from noetic_py.sessions.keys import SessionKey

if TYPE_CHECKING:
    from noetic_py.checkpoints.records import JournalRecord
    from noetic_py.checkpoints.transforms import Anchor, VerificationReport
    from noetic_py.pending import Answer, PendingRequest
    from noetic_py.progress import ProgressEntry

__all__ = ["DONE", "PlannedStep", "ResumePlan", "RunInfo", "Runs", "check_statuses", "fork_run", "info_of"]

_STATUSES: tuple[RunStatus, ...] = (
    "running",
    "completed",
    "aborted",
    "budget_exceeded",
    "interrupted",
    "suspended",
    "cancelled",
    "failed",
)
_PAGE = 100
DONE: tuple[RunStatus, ...] = ("completed",)
"""What `prune` forgets when nothing else is said."""


@frozen
class RunInfo:
    """What is known of a run without reading its journal.

    Attributes:
        run_id: The run.
        status: How it stands: `"running"` also says that nobody has written its end, so that its process may be gone.
        alive: Whether a process holds it now.
        flow: The id of the step it was started with.
        source: Where that is found, such as `"agents.py:triage"`; `None` when nobody said.
        position: How many records its journal holds.
        thread_id: The conversation's id.
        user_id: Whose run it is.
        request_id: The caller's correlation id.
        session: The session that it is a turn of, `None` outside of one.
        created: When it was started, UTC.
        updated: When it was last written, UTC.
        pending: What a suspended run waits for; empty otherwise.
        shutdown: Whether the shutdown of a harness has interrupted it, and nobody has gone on with it since.
    """

    run_id: str
    status: RunStatus
    alive: bool
    flow: str
    source: str | None
    position: int
    thread_id: str | None
    user_id: str | None
    request_id: str | None
    session: SessionKey | None
    created: datetime
    updated: datetime
    pending: Sequence[PendingRequest] = ()
    shutdown: bool = False


class Runs:
    """The runs of a harness's backend; get it as `harness.runs`."""

    def __init__(self, backend: CheckpointBackend, runtime: Runtime) -> None:
        self._backend = backend
        self._runtime = runtime

    async def get(self, run_id: str) -> RunInfo:
        """One run.

        Raises:
            RunNotFound: There is no such run.
        """
        entry = await self._backend.entry(run_id)
        if entry is None or is_stream(run_id):
            raise RunNotFound(f"there is no run {run_id!r}", hint="look at harness.runs.list()")
        return await self._told(entry)

    async def _told(self, entry: RunEntry) -> RunInfo:
        info = info_of(entry)
        if info.status != "suspended":
            return info
        from noetic_py._engine.requests import waiting

        return evolve(info, pending=await waiting(self._backend, info.run_id, info.position))

    async def answer(self, *answers: Answer, wait: float = 10.0) -> RunInfo:
        """Answer what a suspended run waits for, without going on with it: needs none of the run's code.

        Answers may come in any order, and each is kept at once. One that was given before is taken once more without
        effect. `harness.resume(run_id, step)` goes on, as soon as something is answered or when everything is.

        Args:
            *answers: All of one run.
            wait: How many seconds to wait while another process holds the run.

        Returns:
            The run, with what it still waits for.

        Raises:
            RequestNotFound: The run does not wait for one of them; then none is taken, and so for the following.
            RequestExpired: One came too late.
            AnswerConflict: One says something else than an earlier answer.
            AnswerInvalid: One is of the wrong kind, or the answers are of several runs.
            RunBusy: Another process holds the run.
            AccessDenied: One is given in another's name than that of who acts.
        """
        from noetic_py._engine.keeping import when_free, write_answers
        from noetic_py.access import signed

        runs = {answer.run_id for answer in answers}
        if len(runs) != 1:
            raise AnswerInvalid(f"answers of {len(runs)} runs were given at once", hint="answer each run by itself")
        run_id = runs.pop()
        if is_stream(run_id):
            raise RunNotFound(f"there is no run {run_id!r}: it is a session's", hint="look at harness.runs.list()")
        await self.get(run_id)
        now, given = self._runtime.now(), signed(answers)
        await when_free(lambda: write_answers(self._backend, run_id, given, now), wait, self._runtime)
        return await self.get(run_id)

    async def list(
        self, *, status: RunStatus | None = None, session: SessionKey | None = None, limit: int | None = 100
    ) -> list[RunInfo]:
        """The newest runs first.

        Args:
            status: Only those that stand so.
            session: Only turns of this session.
            limit: How many at the most, `None` for all.
        """
        found: list[RunInfo] = []
        cursor: int | None = None
        while limit is None or len(found) < limit:
            most = _PAGE if limit is None or session is not None else min(_PAGE, limit - len(found))
            page = await self._backend.list(after=cursor, limit=most, status=status)
            if not page:
                break
            found += [await self._told(entry) for entry in page if await self._lists(entry, session)]
            cursor = page[-1].cursor
        return found if limit is None else found[:limit]

    async def _lists(self, entry: RunEntry, session: SessionKey | None) -> bool:
        return not is_stream(entry.run_id) and _is_of(entry, session) and await self._shows(entry)

    async def _shows(self, entry: RunEntry) -> bool:
        """Whether it is there for whoever asks."""
        return True

    async def journal(self, run_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """What a run's journal holds, read without any code of the run's flow.

        Items and plain values are made. A value of a class of the flow's stays as it is stored: JSON, in which `"$"`
        marks the class.

        Args:
            run_id: The run.
            after: The position from which on.

        Raises:
            RunNotFound: There is no such run.
            CodecError: A record cannot be read; the message says which.
            RecordRefused: A record transform does not know a record, or the journal's end, to be what was written.
            TransformMissing: The run was written through a record transform that is not here.
        """
        return await self._records(run_id, after)

    async def progress(self, run_id: str) -> Mapping[tuple[str, ...], ProgressEntry]:
        """How far the steps of a run had come at its last commit, by their paths, as they have said themselves.

        Any process may ask, also while another one runs it, and needs none of the run's code; `ctx.progress` is what
        steps leave it with.

        Raises:
            RunNotFound: There is no such run.
            CodecError: A record cannot be read; the message says which.
        """
        from noetic_py._engine.progress import progress_of

        return progress_of(await self._records(run_id))

    async def _records(self, run_id: str, after: int = 0) -> Sequence[JournalRecord]:
        from noetic_py.checkpoints.plain import PlainCodec, load_records

        if is_stream(run_id):
            raise RunNotFound(f"there is no run {run_id!r}: it is a session's", hint="look at harness.runs.list()")
        codec = PlainCodec()
        found: list[JournalRecord] = []
        while page := await self._backend.read(run_id, after=after + len(found)):
            found += load_records(page, codec, run_id, after + len(found))
        return found

    async def verify(self, run_id: str, *, anchor: Anchor | None = None) -> VerificationReport:
        """What the record transforms say of a run: of each record, and of where its journal ends.

        Nothing is refused here, whatever is found; `report.ok` says whether everything is as it was written.

        Args:
            run_id: The run.
            anchor: The `anchor` of an earlier report that was kept elsewhere; the journal has to hold all it held then.

        Raises:
            RunNotFound: There is no such run.
            ConfigError: There are no record transforms; code `"no-transforms"`.
        """
        from noetic_py.checkpoints.sealed import SealedBackend

        if not isinstance(self._backend, SealedBackend):
            raise ConfigError(
                "there is nothing that could verify a run: no record transforms",
                code="no-transforms",
                hint="Harness(record_transforms=[...]), or a plugin that has one, such as noetic-signing",
            )
        return await self._backend.verify(run_id, anchor)

    async def describe(self) -> Mapping[str, str]:
        """What keeps the runs and how it is set up, for people: a backend's own words, without secrets."""
        return await self._backend.describe()

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error.

        Raises:
            RunBusy: A process holds it.
        """
        if not is_stream(run_id):
            await self._backend.delete(run_id)

    async def prune(
        self,
        *,
        older_than: timedelta | None = None,
        keep: int | None = None,
        statuses: Collection[RunStatus] = DONE,
    ) -> int:
        """Forget old runs that nobody holds.

        Args:
            older_than: Only runs that were last written so long ago.
            keep: Leave so many of the newest.
            statuses: Only runs that stand so.

        Returns:
            How many were forgotten.

        Raises:
            ConfigError: Neither `older_than` nor `keep` was given, or a status is unknown; code `"prune"`.
        """
        check_statuses(statuses)
        before = None if older_than is None else self._runtime.now() - older_than
        return await self._backend.prune(before=before, keep=keep, statuses=statuses)

    async def stats(self) -> Stats:
        """How much the backend holds."""
        return await self._backend.stats()


def check_statuses(statuses: Collection[RunStatus]) -> None:
    """Refuse what is no status.

    Raises:
        ConfigError: One is unknown; code `"prune"`.
    """
    unknown = set(statuses) - set(_STATUSES)
    if unknown:
        raise ConfigError(f"unknown status {min(unknown)!r}", code="prune", hint=", ".join(_STATUSES))


async def fork_run(
    backend: CheckpointBackend, runtime: Runtime, run_id: str, at: int | Checkpoint | None, state: object
) -> str:
    """See [`Harness.fork`][noetic_py.Harness.fork]."""
    from noetic_py._engine import keeping

    position = at.position if isinstance(at, Checkpoint) else at
    if position is None:
        head = await backend.head(run_id)
        if head is None:
            raise RunNotFound(f"there is no run {run_id!r}", hint="look at harness.runs.list()")
        position = head.position
    info = await Runs(backend, runtime).get(run_id)
    new = runtime.new_id()
    await keeping.fork_at(backend, run_id, keeping.Forked(new, position, _card_of(info)), state)
    return new


def _card_of(info: RunInfo) -> bytes:
    """A run's card again, for a copy of it."""
    told = {name: getattr(info, name) for name in ("flow", "source", "thread_id", "user_id", "request_id")}
    told["session"] = None if info.session is None else info.session.parts
    return json.dumps({name: value for name, value in told.items() if value is not None}).encode()


def _session(card: Mapping[str, Any]) -> SessionKey | None:
    parts = card.get("session")
    if parts is None:
        return None
    try:
        app, user, session = parts
        return SessionKey(user, session, app=app)
    except (TypeError, ValueError, AttributeError, InvalidId):
        raise CorruptRecord(
            f"the card of a run names {parts!r:.60} as its session", hint="restore the store from a backup"
        ) from None


def _is_of(entry: RunEntry, session: SessionKey | None) -> bool:
    return session is None or _card(entry).get("session") == list(session.parts)


def _card(entry: RunEntry) -> dict[str, Any]:
    return card_fields(entry.card)


def info_of(entry: RunEntry) -> RunInfo:
    """What is known of a run, without what it waits for."""
    card = _card(entry)
    known: list[RunStatus] = [status for status in _STATUSES if status == entry.status]
    return RunInfo(
        entry.run_id,
        known[0] if known else "running",
        entry.held,
        str(card.get("flow", "")),
        card.get("source"),
        entry.position,
        card.get("thread_id"),
        card.get("user_id"),
        card.get("request_id"),
        _session(card),
        entry.created,
        entry.updated,
        shutdown=bool(card.get("shutdown")) and entry.status == "interrupted",
    )
