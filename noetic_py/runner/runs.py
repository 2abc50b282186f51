"""`Runs`: the runs that a backend stores, of every process."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.access import AccessAction, Authorizer, Resource, attributed
from noetic_py.checkpoints.checks import check_id, check_prune
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.context.artifacts import ArtifactOwner, artifacts_of
from noetic_py.context.step import awaited, is_seconds
from noetic_py.core.control import (
    END_BY_THEMSELVES,
    Answer,
    Checkpoint,
    PendingRequest,
    RunStatus,
    SessionKey,
    is_stream,
    stream_of,
)
from noetic_py.core.runtime import Runtime, sleep_or_event
from noetic_py.core.shared_budget import has_ended
from noetic_py.core.types import T
from noetic_py.journal.fields import summary_fields
from noetic_py.journal.run_summary import PlainCodec, PlannedStep, ResumePlan, forked_from, load_records
from noetic_py.journal.stored import BudgetRow, QueueStats, RunEntry, Stats
from noetic_py.memory.scopes import Scope, places_of

if TYPE_CHECKING:
    from noetic_py.channels import Channel
    from noetic_py.context.step import AnyStep
    from noetic_py.core.items import Item
    from noetic_py.core.progress import ProgressEntry
    from noetic_py.engine.stops import Asked
    from noetic_py.journal.records import JournalRecord
    from noetic_py.journal.transforms import Anchor, VerificationReport
    from noetic_py.memory.view_state import RecordedView
    from noetic_py.runner.recorded_events import RecordedEvents

__all__ = [
    "DONE",
    "PlannedStep",
    "ResumePlan",
    "RunInfo",
    "Runs",
    "fork_run",
    "require_run",
    "resume_action",
    "session_in",
]

_STATUSES: tuple[RunStatus, ...] = (
    "queued",
    "running",
    "completed",
    "aborted",
    "budget_exceeded",
    "interrupted",
    "suspended",
    "cancelled",
    "failed",
)
_BROKEN: tuple[RunStatus, ...] = ("failed", "budget_exceeded")
_LEFT_BY_WORKERS: tuple[RunStatus, ...] = ("queued", "running", "interrupted", "cancelled", "failed")
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_PAGE = 100
_OF_ROWS: tuple[AccessAction, ...] = ("read", "delete")
DONE: tuple[RunStatus, ...] = ("completed",)
"""The statuses that `prune` removes by default."""
# The reasons that concern the one file that holds a run: the list itself was read.
_OF_ONE_FILE = frozenset({"permission", "directory", "link", "io"})


FlowOf: TypeAlias = "Callable[[str, str], AnyStep | None]"
"""Gives the flow of a run by the run's id and the flow's, `None` where it is not known."""


@frozen
class RunInfo:
    """A run, without reading its journal.

    Attributes:
        run_id: The run.
        status: How it stands: `"queued"` waits for a worker that begins it; `"running"` also says that its end is not
            written, so that its process may be gone.
        alive: Whether a process holds it now.
        flow: The id of the step it was started with.
        source: Where that is found, such as `"agents.py:triage"`; `None` when it was not given.
        position: How many records its journal holds.
        thread_id: The conversation's id.
        user_id: The owner of the run.
        request_id: The caller's correlation id.
        session: The session that it is a turn of, `None` outside of one.
        created: When it was started, UTC.
        updated: When it was last written, UTC.
        pending: What a suspended run waits for; empty otherwise.
        shutdown: Whether the shutdown of a harness has interrupted it, and it was not resumed since.
        queue: The queue that workers take it from, until it has ended; `None` for a run that was not submitted.
        parent: The run that waits for its end, of one that `spawn(queue=)` has begun.
        problem: In a list: why what is kept of it cannot be read or is not verified. The rest is what is known then.
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
    problem: str | None = None
    queue: str | None = None
    parent: str | None = None


@awaited("harness.runs")
class Runs:
    """The runs of a harness's backend; get it as `harness.runs`."""

    def __init__(
        self,
        backend: CheckpointBackend,
        runtime: Runtime,
        access: Authorizer,
        flow_of: FlowOf | None = None,
        end_of: Callable[[str], anyio.Event] | None = None,
    ) -> None:
        self._backend = backend
        self._flow_of = flow_of
        self._end_of = end_of
        self._runtime = runtime
        self._access = access

    async def get(self, run_id: str) -> RunInfo:
        """One run.

        Raises:
            RunNotFound: There is no such run.
        """
        await require_run(self._access, self._backend, run_id, "read")
        return await self._get(run_id)

    async def _get(self, run_id: str) -> RunInfo:
        return await self._with_open_requests(await _entry_of(self._backend, run_id))

    async def _with_open_requests(self, entry: RunEntry) -> RunInfo:
        info = _info_of(entry)
        if info.status != "suspended":
            return info
        from noetic_py.engine.journaling.run_history import waiting
        from noetic_py.runner.inbox import answered_in, received

        pending = await waiting(self._backend, info.run_id, info.position)
        answered = answered_in(await received(self._backend, info.run_id)) if pending else {}
        return evolve(info, pending=[each for each in pending if each.key not in answered])

    async def wait(self, run_id: str, *, timeout: float | None = None) -> RunInfo:
        """Wait until a run of any process has ended, or waits for an answer; `harness.result` gives the result.

        Args:
            run_id: The run.
            timeout: Seconds to wait at most; `None` waits without a limit. The run may not have ended then.

        Returns:
            The run, as it is then. One that was interrupted, and that another worker will go on with, has not ended.

        Raises:
            RunNotFound: There is no such run.
            ConfigError: `timeout` is not a number of seconds; code `"wait"`.
        """
        await require_run(self._access, self._backend, run_id, "read")
        if timeout is not None and not is_seconds(timeout):
            raise errors.ConfigError(
                f"timeout={timeout!r} is not a number of seconds", code="wait", hint="timeout=30.0"
            )
        ends = None if timeout is None else self._runtime.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            # Before the look, so that no end is missed.
            ended = anyio.Event() if self._end_of is None else self._end_of(run_id)
            info = await self._get(run_id)
            left = pause if ends is None else ends - self._runtime.monotonic()
            if left <= 0 or not _goes_on(info):
                return info
            await sleep_or_event(self._runtime, min(pause, left), ended)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def queues(self) -> Sequence[QueueStats]:
        """How full each queue is, by queue and flow.

        Raises:
            ConfigError: The backend has no queues; code `"queues"`.
        """
        await self._access.require("read", on=Resource())
        return await self._backend.queues()

    async def budgets(self, *, name: str | None = None) -> Sequence[BudgetRow]:
        """The rows of shared budgets: what was used in each period, what runs have reserved, and the limits.

        Args:
            name: Only those with this name.

        Returns:
            Them by name and period. Amounts are whole numbers; `cost` is in billionths of a USD.

        Raises:
            ConfigError: The backend has no shared budgets; code `"budgets"`.
        """
        await self._access.require("read", on=Resource())
        return await self._backend.budgets(name=name)

    async def answer(self, *answers: Answer, wait: float = 10.0) -> RunInfo:
        """Answer what a suspended run waits for, without going on with it: needs none of the run's code.

        Answers may come in any order, and each is kept at once. One that was given before is taken once more without
        effect. `harness.resume(run_id, step)` goes on, as soon as something is answered or when everything is.

        Args:
            *answers: All of one run.
            wait: How many seconds to wait while another process holds the run, in a backend without inboxes: a folder
                of files. In the others its next owner finds the answers in the run's inbox, a worker at once.

        Returns:
            The run, with what it still waits for.

        Raises:
            RequestNotFound: The run does not wait for one of them; then none is taken, and so for the following.
            RequestExpired: One came too late.
            AnswerConflict: One says something else than an earlier answer.
            AnswerInvalid: One is of the wrong kind, or the answers are of several runs.
            RunBusy: Another process holds the run, in a folder of files.
            AccessDenied: One is given in another name than that of the principal.
        """
        from noetic_py.engine.journaling.run_history import store_time
        from noetic_py.runner.lease import when_free, write_answers

        runs = {answer.run_id for answer in answers}
        for each in sorted(runs):
            await require_run(self._access, self._backend, each, "approve")
        if len(runs) != 1:
            raise errors.AnswerInvalid(
                f"answers of {len(runs)} runs were given at once", hint="answer each run by itself"
            )
        run_id = runs.pop()
        if is_stream(run_id):
            raise errors.RunNotFound(
                f"there is no run {run_id!r}: it is a session's", hint="look at harness.runs.list()"
            )
        await self._get(run_id)
        now, given = await store_time(self._backend, self._runtime), attributed(answers)
        await when_free(lambda: write_answers(self._backend, run_id, given, now), wait, self._runtime)
        return await self._get(run_id)

    async def send(self, run_id: str, channel: Channel[T], value: T, *, key: str | None = None) -> None:
        """Send to an external channel of a run, in whatever process it runs; the message is stored when this returns.

        The process that has the run looks for messages about once a second, from the first use of the channel on. One
        that finds no place in a full queue waits in the store, and so does one for a run that no process has. If a
        process dies, the next one finds all that no finished step has received.

        Args:
            run_id: The run.
            channel: The channel, declared with `external=True`.
            value: The message.
            key: Names the message: what is sent a second time with the key has no effect. Left out, each is another.

        Raises:
            RunNotFound: There is no such run.
            ChannelClosed: It has ended.
            ChannelValueInvalid: The value is not of the channel's type.
            ForgedEvent: It is an item that only the library makes, such as a call without its output.
            ConfigError: The channel is not external, code `"channel"`; or the backend has no inboxes, code `"queues"`.
            CodecError: The value cannot be stored.
            InvalidId: The key is not a text of 1 to 256 characters.
        """
        from noetic_py.runner.inbox import send_message

        await require_run(self._access, self._backend, run_id, "send")
        if key is None:
            key = self._runtime.new_id()
        check_id(key, "key")
        if is_stream(run_id):
            raise _missing(run_id)
        await send_message(self._backend, run_id, channel, value, key)

    async def complete(self, run_id: str, value: object, *, step: AnyStep | None = None, wait: float = 10.0) -> RunInfo:
        """End a run with a value in any process: a running one is stopped, a waiting one is over.

        Args:
            run_id: The run.
            value: Its value; a running one checks it against the type of its flow's annotation.
            step: The run's flow, to check the value here. Left out, it is the one that this harness has run, or the one
                of its `flows` that has the id; where neither is known, the next resume checks the value.
            wait: How many seconds the process that has the run has to take it; it looks about once a second.

        Returns:
            The run, as it is then: one that was stopped in another process may take a moment to end.

        Raises:
            RunNotFound: There is no such run.
            RunOver: It has ended, or is being stopped in another way.
            RunBusy: The process that has the run has not answered in time; then nothing is asked for any more.
            ConfigError: The value is not of the flow's type; code `"complete"`.
            CodecError: The value cannot be stored.
        """
        from noetic_py.core.codec import Codec
        from noetic_py.engine.stops import COMPLETED, Asked, value_of

        await require_run(self._access, self._backend, run_id, "complete")
        codec = Codec()
        if step is None and self._flow_of is not None:
            step = self._flow_of(run_id, (await self._get(run_id)).flow)
        stored = codec.encode(value)
        value_of(stored, step, codec)
        return await self._stop(run_id, Asked("complete", stored, COMPLETED), wait)

    async def wrap_up(self, run_id: str, reason: str, *, wait: float = 10.0) -> RunInfo:
        """Have a run finish with what it has, whatever process has it; see `RunStream.wrap_up`.

        A run that no process has is finished by the next one that resumes it.

        Args:
            run_id: The run.
            reason: Why.
            wait: How many seconds the process that has the run has to take it; it looks about once a second.

        Raises:
            RunNotFound: There is no such run.
            RunOver: It has ended, or is being stopped in another way.
            RunBusy: The process that has the run has not answered in time; then nothing is asked for any more.
        """
        from noetic_py.engine.stops import Asked

        await require_run(self._access, self._backend, run_id, "complete")
        return await self._stop(run_id, Asked("wrap_up", None, reason), wait)

    async def abort(self, run_id: str, reason: str, *, wait: float = 10.0) -> RunInfo:
        """End a run for good, without a value, whatever process has it; one that waits, or that is queued, too.

        Args:
            run_id: The run.
            reason: Why.
            wait: How many seconds the process that has the run has to take it; it looks about once a second.

        Returns:
            The run, as it is then: one that was stopped in another process may take a moment to end.

        Raises:
            RunNotFound: There is no such run.
            RunOver: It has ended, or is being stopped in another way.
            RunBusy: The process that has the run has not answered in time; then nothing is asked for any more.
        """
        from noetic_py.engine.stops import Asked

        await require_run(self._access, self._backend, run_id, "abort")
        return await self._stop(run_id, Asked("abort", None, reason), wait)

    async def _stop(self, run_id: str, asked: Asked, wait: float) -> RunInfo:
        from noetic_py.engine.stops import asked_by
        from noetic_py.runner.stop_requests import request_stop

        await self._get(run_id)
        asked = evolve(asked, by=asked_by(), key=self._runtime.new_id())
        await request_stop(self._backend, run_id, asked, wait, self._runtime)
        return await self._get(run_id)

    async def list(
        self, *, status: RunStatus | None = None, session: SessionKey | None = None, limit: int | None = 100
    ) -> list[RunInfo]:
        """The newest runs first; one that is damaged, or cannot be verified, says so in `problem` and hides no other.

        Args:
            status: Only those that stand so.
            session: Only turns of this session.
            limit: How many at the most, `None` for all.
        """
        await self._require_principal()
        found: list[RunInfo] = []
        cursor: int | None = None
        while limit is None or len(found) < limit:
            most = _PAGE if limit is None or session is not None else min(_PAGE, limit - len(found))
            page = await self._backend.list(after=cursor, limit=most, status=status)
            if not page:
                break
            found += [await self._listed(entry) for entry in page if await self._lists(entry, session)]
            cursor = page[-1].cursor
        return found if limit is None else found[:limit]

    async def _listed(self, entry: RunEntry) -> RunInfo:
        """A run and the problem of its record."""
        if entry.problem is not None:
            return _bare(entry, entry.problem)
        try:
            return await self._with_open_requests(entry)
        except (errors.CodecError, errors.LimitExceeded) as error:
            return evolve(_info_of(entry), problem=error.message)
        except (errors.CorruptRecord, errors.RecordRefused, errors.RunNotFound, errors.TransformMissing) as error:
            # Its summary may be what is wrong, or it was deleted since the list was read.
            return _bare(entry, error.message)
        except errors.StoreUnavailable as error:
            if error.reason not in _OF_ONE_FILE:
                raise
            return _bare(entry, error.message)

    async def _lists(self, entry: RunEntry, session: SessionKey | None) -> bool:
        return not is_stream(entry.run_id) and _is_of(entry, session) and await self._allows(entry, "read")

    async def _require_principal(self) -> None:
        """Raise what the policy raises: a list leaves out what may not be read, and would be empty instead."""
        await self._access.allows("read", Resource())

    async def _allows(self, entry: RunEntry, *actions: AccessAction) -> bool:
        if self._access.allows_all:
            return True
        resource = _resource_of(entry)
        for action in actions:
            if not await self._access.allows(action, resource):
                return False
        return True

    async def journal(self, run_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Read the journal of a run, without the code of its flow.

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
        await require_run(self._access, self._backend, run_id, "export")
        return await self._records(run_id, after)

    def events(self, run_id: str, *, after: int = 0) -> RecordedEvents:
        """Follow a run of any process by its events: first those that are stored, then those that come.

        `async for each in harness.runs.events(run_id): ...` ends when no process has the run and no worker will take
        it. A run that is suspended or was cut off gives further events after it was resumed, behind the same cursor. An
        event is here once its record is committed; pieces of text and what a step emits are not stored, so they are
        only in [`harness.stream`][noetic_py.Harness.stream].

        Args:
            run_id: The run.
            after: The cursor of the last event that was read, which may be in another process; 0 reads from the
                beginning.

        Raises:
            ConfigError: `after` is not a cursor; code `"cursor"`.
            RunNotFound: There is no such run, or it was deleted meanwhile; this and what follows is raised in the loop.
            CodecError: A record cannot be read; the message says which.
            StoreUnavailable: The store cannot be reached; go on with the last cursor.
        """
        from noetic_py.runner.recorded_events import RecordedEvents

        if type(after) is not int or after < 0:
            raise errors.ConfigError(
                f"after={after!r:.80} is not a valid cursor; expected a whole number from 0 on",
                code="cursor",
                hint="pass the cursor of the last event",
            )
        return RecordedEvents(self, run_id, after, self._runtime.sleep)

    async def views(self, run_id: str) -> Sequence[RecordedView]:
        """What a model was shown in each answered call of a stored run, in the order of the journal.

        Any process may ask, and needs none of the run's code. Calls are missing for which nothing was decided: those
        of a run without layers, while its conversation had room in the model's window; and of a turn whose session was
        deleted those that only tell what differs from an earlier turn.

        Args:
            run_id: The run.

        Raises:
            RunNotFound: There is no such run.
            CodecError: A record cannot be read; the message says which.
        """
        from noetic_py.journal.changes import ViewState, views_in
        from noetic_py.journal.records import RunBegun
        from noetic_py.journal.session_stream import read_conversation
        from noetic_py.memory.view_state import is_whole, recorded_view

        records = await self.journal(run_id)
        opening = next((each.opening for each in records if isinstance(each, RunBegun)), None)
        begun: ViewState = {} if opening is None else opening.view
        if opening is not None and opening.base is not None and opening.base.position >= 0:
            base = opening.base
            stream = stream_of((base.app, base.user, base.session))
            try:
                begun = (await read_conversation(self._backend, stream, PlainCodec(), upto=base.position)).view
            except errors.RunNotFound:
                # The session was deleted; what the run itself has written is shown.
                begun = {}
        found: list[RecordedView] = []
        for path, state in views_in(records, begun):
            if is_whole(state):
                found.append(recorded_view(path, state))
        return found

    async def history(self, run_id: str) -> Sequence[Item]:
        """The conversation that a stored run began with: of a turn what its session held then.

        Any process may ask, and needs none of the run's code.

        Args:
            run_id: The run.

        Raises:
            RunNotFound: There is no such run, or it is a turn of a session that was deleted.
            CodecError: A record cannot be read; the message says which.
        """
        from noetic_py.journal.records import RunBegun
        from noetic_py.journal.session_stream import read_conversation

        records = await self.journal(run_id)
        opening = next((each.opening for each in records if isinstance(each, RunBegun)), None)
        if opening is None:
            return ()
        base = opening.base
        if base is None or base.position < 0:
            return opening.items
        stream = stream_of((base.app, base.user, base.session))
        found = await read_conversation(self._backend, stream, PlainCodec(), upto=base.position)
        return tuple(found.log)

    async def progress(self, run_id: str) -> Mapping[tuple[str, ...], ProgressEntry]:
        """How far the steps of a run had come at its last commit, by their paths, as they have said themselves.

        Any process may ask, also while another one runs it, and needs none of the run's code; `ctx.progress` is what
        steps leave it with.

        Raises:
            RunNotFound: There is no such run.
            CodecError: A record cannot be read; the message says which.
        """
        from noetic_py.engine.progress import progress_of

        await require_run(self._access, self._backend, run_id, "read")
        return progress_of(await self._records(run_id))

    async def _records(self, run_id: str, after: int = 0) -> Sequence[JournalRecord]:
        if is_stream(run_id):
            raise errors.RunNotFound(
                f"there is no run {run_id!r}: it is a session's", hint="look at harness.runs.list()"
            )
        codec = PlainCodec()
        found: list[JournalRecord] = []
        while page := await self._backend.read(run_id, after=after + len(found)):
            found += load_records(page, codec, run_id, after + len(found))
        return found

    async def verify(self, run_id: str, *, anchor: Anchor | None = None) -> VerificationReport:
        """Verify a run with the record transforms: each record, and the end of its journal.

        Nothing is refused here, whatever is found; `report.ok` says whether everything is as it was written.

        Args:
            run_id: The run.
            anchor: The `anchor` of an earlier report that was kept elsewhere; the journal has to hold all it held then.

        Raises:
            RunNotFound: There is no such run.
            ConfigError: There are no record transforms; code `"no-transforms"`.
        """
        from noetic_py.checkpoints.signed import SignedBackend

        await require_run(self._access, self._backend, run_id, "export")
        if not isinstance(self._backend, SignedBackend):
            raise errors.ConfigError(
                "a run cannot be verified without record transforms",
                code="no-transforms",
                hint="Harness(record_transforms=[...]), or a plugin that has one, such as noetic-signing",
            )
        return await self._backend.verify(run_id, anchor)

    async def describe(self) -> Mapping[str, str]:
        """A description of the backend and its settings for people, without secrets."""
        await self._access.require("read", on=Resource())
        return await self._backend.describe()

    async def delete(self, run_id: str) -> None:
        """Forget a run, with its artifacts and what layers keep for it alone; one that is not there is no error.

        Artifacts in a store of your own stay.

        Raises:
            RunBusy: A process holds it, or another run waits for its end.
        """
        try:
            await require_run(self._access, self._backend, run_id, "delete")
        except errors.RunNotFound:
            return
        await self._check_not_awaited(run_id)
        if not is_stream(run_id):
            from noetic_py.runner.lease import give_back

            await give_back(self._backend, run_id)
            await self._backend.delete(run_id)
            await self._clear_values(run_id)

    async def _check_not_awaited(self, run_id: str) -> None:
        try:
            entry = await self._backend.entry(run_id)
            parent = None if entry is None else _summary(entry).get("parent")
            above = None if parent is None else await self._backend.entry(parent)
        except (errors.CorruptRecord, errors.RecordRefused):
            return
        if above is not None and _status_of(above) in ("queued", "running", "suspended"):
            raise errors.RunBusy(f"run {parent!r} waits for run {run_id!r}", hint="delete that one first, or abort it")

    async def prune(
        self,
        *,
        older_than: timedelta | None = None,
        keep: int | None = None,
        statuses: Collection[RunStatus] = DONE,
    ) -> int:
        """Forget old runs that no process holds, with their artifacts and what layers keep for them alone.

        With an access policy these are the runs that the caller may delete; the others are not counted by `keep`.

        With `older_than` the rows of shared budgets go too whose period ended so long ago, and of which no run holds
        anything. An access policy has to allow `"delete"` for all owners, or they stay.

        Args:
            older_than: Only runs that were last written so long ago.
            keep: Leave so many of the newest.
            statuses: Only runs that stand so.

        Returns:
            How many runs were forgotten.

        Raises:
            ConfigError: Neither `older_than` nor `keep` was given, or a status is unknown; code `"prune"`.
            CorruptRecord: The row of a shared budget is damaged; the runs were forgotten, and no row was.
        """
        await self._require_principal()
        _check_statuses(statuses)
        before = None if older_than is None else self._runtime.now() - older_than
        check_prune(before, keep)
        at_once = self._access.allows_all and not await self._hold_budgets(statuses)
        pruned = await (self._prune_at_once if at_once else self._prune_each)(before, keep, statuses)
        if older_than is not None:
            await self._prune_budgets(older_than)
        return pruned

    async def _prune_at_once(self, before: datetime | None, keep: int | None, statuses: Collection[RunStatus]) -> int:
        owners = [run_id for run_id in await self._owners() if await self._is_there(run_id)]
        pruned = await self._backend.prune(before=before, keep=keep, statuses=statuses)
        for run_id in owners:
            if not await self._is_there(run_id):
                await self._clear_values(run_id)
        return pruned

    async def _rows(self) -> Sequence[BudgetRow]:
        """The rows of shared budgets; none where the backend has none."""
        try:
            return await self._backend.budgets()
        except errors.ConfigError as error:
            if error.code != "budgets":
                raise
            return ()

    async def _hold_budgets(self, statuses: Collection[RunStatus]) -> bool:
        """Whether a run that may be pruned holds something of a shared budget, which it has to give back first."""
        try:
            for run_id in {run_id for row in await self._rows() for run_id in row.held}:
                entry = await self._backend.entry(run_id)
                if entry is not None and entry.status in statuses and not entry.held:
                    return True
        except (errors.CorruptRecord, errors.RecordRefused):
            # What cannot be read may be of one of them.
            return True
        return False

    async def _prune_budgets(self, age: timedelta) -> None:
        for action in _OF_ROWS:
            if not await self._access.allows(action, Resource()):
                return
        # By the clock that periods begin and end by.
        before = datetime.fromtimestamp(await self._backend.clock(), UTC) - age
        rows = [row for row in await self._rows() if not row.held and has_ended(row.period, before)]
        ended = [(row.name, row.period) for row in rows]
        for at in range(0, len(ended), _PAGE):
            await self._backend.forget_budgets(ended[at : at + _PAGE])

    async def _prune_each(self, before: datetime | None, keep: int | None, statuses: Collection[RunStatus]) -> int:
        old: list[str] = []
        left = keep or 0
        cursor: int | None = None
        while page := await self._backend.list(after=cursor):
            cursor = page[-1].cursor
            for entry in page:
                if entry.status not in statuses or is_stream(entry.run_id):
                    continue
                if not await self._allows(entry, "read", "delete"):
                    continue
                if left:
                    left -= 1
                elif (before is None or entry.updated < before) and not entry.held:
                    old.append(entry.run_id)
        return sum([await self._forget(run_id) for run_id in old])

    async def _forget(self, run_id: str) -> bool:
        from noetic_py.runner.lease import give_back

        try:
            await give_back(self._backend, run_id)
            await self._backend.delete(run_id)
        except (errors.RunBusy, errors.LeaseLost):
            # It was resumed since.
            return False
        await self._clear_values(run_id)
        return True

    async def _is_there(self, run_id: str) -> bool:
        try:
            return await self._backend.entry(run_id) is not None
        except (errors.CorruptRecord, errors.RecordRefused):
            return True

    async def _owners(self) -> Sequence[str]:
        """The runs that own values beside their journals."""
        places = [place[:-1] for place in _values_of("any")]
        found = [(scope, len(place)) for place in places for scope in await all_scopes(self._backend, place)]
        return sorted({scope[at] for scope, at in found})

    async def _clear_values(self, run_id: str) -> None:
        """Remove what only this run could have read: its artifacts, and the values of layers for its executions."""
        for place in _values_of(run_id):
            await clear_scopes(self._backend, place)

    async def stats(self) -> Stats:
        """How much the backend holds."""
        await self._access.require("read", on=Resource())
        return await self._backend.stats()


def _values_of(run_id: str) -> Sequence[tuple[str, ...]]:
    """What the scopes begin with that hold what a run alone owns."""
    return (*places_of(Scope.EXECUTION, run_id), artifacts_of(ArtifactOwner("run", run_id)))


async def all_scopes(backend: CheckpointBackend, first: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
    """The scopes that hold a value and begin with these parts."""
    found: list[tuple[str, ...]] = []
    while page := await backend.scopes(first, after=found[-1] if found else None):
        found += page
    return found


async def clear_scopes(backend: CheckpointBackend, first: tuple[str, ...]) -> int:
    """Remove the values of all scopes that begin with these parts; returns how many there were."""
    removed = 0
    for scope in await all_scopes(backend, first):
        while page := await backend.scan(scope):
            for value in page:
                removed += await backend.remove(scope, value.key)
    return removed


def _goes_on(info: RunInfo) -> bool:
    """Whether a process goes on with a run, or a worker will."""
    if info.queue is None:
        return info.status == "running"
    # A worker that was cut off has left the run in its queue, or tries it again; one that was answered may be claimed.
    asks = any(each.kind not in END_BY_THEMSELVES for each in info.pending)
    return info.status in _LEFT_BY_WORKERS or (info.status == "suspended" and not asks)


def resume_action(status: RunStatus) -> AccessAction:
    """The access action that a resume needs, by the run's status."""
    return "retry" if status in _BROKEN else "resume"


async def require_run(access: Authorizer, backend: CheckpointBackend, run_id: str, *actions: AccessAction) -> None:
    """Ask whether something may be done to a stored run; nothing is looked up without a policy.

    Args:
        access: The authorizer.
        backend: What keeps the run.
        run_id: The run.
        *actions: The actions; `"resume"` is asked as `"retry"` if the run has failed.

    Raises:
        RunNotFound: There is no such run, or the caller may not read it.
        AccessDenied: The caller may read it and not do the action.
    """
    if access.allows_all:
        return
    missing = _missing(run_id)
    try:
        entry = None if is_stream(run_id) else await backend.entry(run_id)
    except errors.CorruptRecord:
        # Its owner cannot be read; principals with access to every run may delete it all the same.
        await access.require(*actions, on=Resource(run_id), hidden=missing)
        return
    if entry is None:
        await access.require("read", on=Resource(run_id), hidden=missing)
        raise missing
    going_on = resume_action(_status_of(entry))
    asked: list[AccessAction] = [going_on if action == "resume" else action for action in actions]
    await access.require(*asked, on=_resource_of(entry), hidden=missing)


def _missing(run_id: str) -> errors.RunNotFound:
    return errors.RunNotFound(f"there is no run {run_id!r}", hint="look at harness.runs.list()")


async def _entry_of(backend: CheckpointBackend, run_id: str) -> RunEntry:
    entry = await backend.entry(run_id)
    if entry is None or is_stream(run_id):
        raise _missing(run_id)
    return entry


def _resource_of(entry: RunEntry) -> Resource:
    """A stored run; its owner is not known if its summary is damaged."""
    if entry.problem is None:
        try:
            return Resource.of_run(_info_of(entry))
        except errors.CorruptRecord:
            pass
    return Resource(entry.run_id)


def _check_statuses(statuses: Collection[RunStatus]) -> None:
    """Refuse an invalid status.

    Raises:
        ConfigError: One is unknown; code `"prune"`.
    """
    unknown = set(statuses) - set(_STATUSES)
    if unknown:
        raise errors.ConfigError(f"unknown status {min(unknown)!r}", code="prune", hint=", ".join(_STATUSES))


async def fork_run(
    backend: CheckpointBackend, runtime: Runtime, run_id: str, at: int | Checkpoint | None, state: object
) -> str:
    """See [`Harness.fork`][noetic_py.Harness.fork]."""
    from noetic_py.runner import lease

    position = at.position if isinstance(at, Checkpoint) else at
    if position is None:
        head = await backend.head(run_id)
        if head is None:
            raise _missing(run_id)
        position = head.position
    entry = await _entry_of(backend, run_id)
    new = runtime.new_id()
    await lease.fork_at(backend, run_id, lease.PlannedFork(new, position, _forked_summary(entry, position)), state)
    return new


def _forked_summary(entry: RunEntry, position: int) -> bytes:
    """The summary of a run that is another one up to a position."""
    info = _info_of(entry)
    fields: dict[str, object] = {
        name: getattr(info, name) for name in ("flow", "source", "thread_id", "user_id", "request_id")
    }
    fields["session"] = None if info.session is None else info.session.parts
    # It may end within what was forked before; only the runs that have written some of it count.
    earlier = [(run, at) for run, at in forked_from(_summary(entry)) if at < position]
    fields["forked"] = [*earlier, (entry.run_id, position)]
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def session_in(summary: Mapping[str, Any]) -> SessionKey | None:
    """The session that a summary names.

    Raises:
        CorruptRecord: It cannot be one.
    """
    parts = summary.get("session")
    if parts is None:
        return None
    try:
        app, user, session = parts
        return SessionKey(user, session, app=app)
    except (TypeError, ValueError, AttributeError, errors.InvalidId):
        raise errors.CorruptRecord(
            f"the summary of a run names {parts!r:.60} as its session", hint="restore the store from a backup"
        ) from None


def _is_of(entry: RunEntry, session: SessionKey | None) -> bool:
    if session is None:
        return True
    try:
        return entry.problem is None and _summary(entry).get("session") == list(session.parts)
    except errors.CorruptRecord:
        return False


def _bare(entry: RunEntry, problem: str) -> RunInfo:
    """A run whose summary is damaged."""
    return evolve(_info_of(evolve(entry, summary=b"")), problem=problem)


def _summary(entry: RunEntry) -> dict[str, Any]:
    return summary_fields(entry.summary)


def _status_of(entry: RunEntry) -> RunStatus:
    known: list[RunStatus] = [status for status in _STATUSES if status == entry.status]
    return known[0] if known else "running"


def _info_of(entry: RunEntry) -> RunInfo:
    """A run without its open requests."""
    summary = _summary(entry)
    return RunInfo(
        entry.run_id,
        _status_of(entry),
        entry.held,
        str(summary.get("flow", "")),
        summary.get("source"),
        entry.position,
        summary.get("thread_id"),
        summary.get("user_id"),
        summary.get("request_id"),
        session_in(summary),
        entry.created,
        entry.updated,
        shutdown=bool(summary.get("shutdown")) and entry.status == "interrupted",
        queue=summary.get("queue"),
        parent=summary.get("parent"),
    )
