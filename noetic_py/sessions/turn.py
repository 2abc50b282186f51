"""One turn of a session: from what it holds, through a run, back into it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from logging import ERROR
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from attrs import evolve

from noetic_py import errors
from noetic_py.context.read import ContextScope, unanswered
from noetic_py.core.control import AnyResult, RunStatus
from noetic_py.core.diagnostics import Where, log
from noetic_py.core.items import FunctionCallOutput, Item, Message
from noetic_py.core.log import ItemView
from noetic_py.core.state import StateBag, class_of
from noetic_py.core.values import is_dict, is_list
from noetic_py.engine.journaling.replay import stored_type
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.kinds.model import unsaid
from noetic_py.engine.stops import asked_in
from noetic_py.journal import session_stream
from noetic_py.journal.changes import ViewChange, view_change
from noetic_py.journal.patches import state_tree
from noetic_py.journal.records import Base
from noetic_py.journal.values import Stored
from noetic_py.runner.lease import codec_for, left_of, left_view, load_run_history, release_lease, when_free

if TYPE_CHECKING:
    from noetic_py.core.codec import Codec
    from noetic_py.engine.journaling.run_history import RunHistory
    from noetic_py.engine.run import RunPlan
    from noetic_py.engine.state import Run

from noetic_py.core.control import SessionKey
from noetic_py.sessions.queue import NEXT, MessageGone, NothingQueued, QueuedMessage
from noetic_py.sessions.store import FinishedTurn, SessionLease, SessionStore, put_view, state_of

_MOMENT = 1.0
"""Seconds for which a turn waits for the run of a turn that was left, which is free a moment after its session."""
_NONE = ItemView()
_KEEP_TRYING = 10.0
"""Seconds for which a turn that holds no lease tries to write what it has made."""

Go: TypeAlias = Callable[[Any, Any], Awaitable[AnyResult]]
"""Runs a plan to its end."""
Again: TypeAlias = Callable[[str, Any], Awaitable[tuple[AnyResult, ContextScope]]]
"""Goes on with a run of an earlier process, for what a plan was asked to do."""


async def take_turn(store: SessionStore, run: Any, plan: Any, key: SessionKey, go: Go, again: Again) -> AnyResult:
    """Do a turn of a session: wait for it, begin from what is there, run, write what the run has added.

    Raises:
        ConfigError: It has a delivery id, and no runs are kept; code `"no-backend"`.
        RunBusy: Another turn is running, and the policy does not wait; or another process owns the session.
        Overloaded: Too many wait.
        SessionLoadError: The session cannot be read.
        SessionConflict: Another process has written it meanwhile.
        SessionSuspended: A turn of it waits for an answer.
        ShuttingDown: The harness is shut down before it is this turn's turn.
    """
    if plan.delivery_id is not None and not store.durable:
        raise errors.ConfigError(
            "delivery_id= needs a backend, which stores the result for the next delivery",
            code="no-backend",
            hint='Harness(checkpoints="sqlite:runs.db")',
        )
    turn = Turn(store, run, plan, key, go, again)
    queued = plan.value is NEXT
    if store.policy.lock == "none" and plan.run_history is None and not queued:
        return await turn.beside_others()
    if store.policy.lock == "reject" and not queued and store.lock.is_locked(key):
        raise errors.RunBusy(f"session {key.session!r} has a turn already", hint='try again later, or lock="queue"')
    # Requests of a step of the turn in flight are part of that turn.
    new = not run.depth
    async with store.lock.acquire(key, limit=store.policy.max_waiting, new=new):
        store.watchers.observe(run)
        if plan.storage is not None and plan.run_history is None and not queued and not plan.storage.again:
            result = await store.unchanged(key, turn.at_once, new=new)
            if result is not None:
                return result
        return await store.with_lease(key, turn.alone, new=new)


class Turn:
    """One turn of a session."""

    def __init__(self, store: SessionStore, run: Any, plan: Any, key: SessionKey, go: Go, again: Again) -> None:
        self._store = store
        self._run: Run = run
        self._plan: RunPlan = plan
        self._key = key
        self._go = go
        self._again = again
        self._codec = codec_for(plan.step, type(plan.scope.state))
        # The message that it answers, when that was waiting.
        self._queued: QueuedMessage | None = None

    async def alone(self, lease: SessionLease) -> AnyResult:
        """The turn, while it alone may write."""
        store, key, plan = self._store, self._key, self._plan
        lease.run = self._run
        conversation = await store.read(key)
        if plan.run_history is not None:
            with store.queue.answering(key, self._answers(conversation)):
                return await self._resumed(lease, conversation)
        if plan.value is NEXT:
            return await self._next(lease, conversation)
        with store.queue.answering(key, self._answers(conversation)):
            return await self._begun(lease, conversation)

    async def at_once(self, lease: SessionLease, conversation: session_stream.StoredConversation) -> AnyResult | None:
        """The turn of a session that is as this process has left it; `None` if its message was answered before."""
        if self._plan.delivery_id is not None and self._plan.delivery_id in conversation.delivered:
            return None
        lease.run = self._run
        with self._store.queue.answering(self._key, self._answers(conversation)):
            return await self._begun(lease, conversation)

    def _answers(self, conversation: session_stream.StoredConversation) -> set[str]:
        """The delivery ids of the messages that this turn answers, or may answer."""
        former, shut = conversation.open, conversation.shut
        runs = {each.run_id for each in (former, shut) if each is not None}
        if self._plan.run_history is not None:
            runs.add(self._run.run_id)
        found = {name for name, run_id in conversation.delivered.items() if run_id in runs} if runs else set[str]()
        return found if self._plan.delivery_id is None else {*found, self._plan.delivery_id}

    async def _next(self, lease: SessionLease, conversation: session_stream.StoredConversation) -> AnyResult:
        """The turn of the message that waits for one, which is chosen now that no other turn can take it.

        Raises:
            NothingQueued: There is none.
            MessageGone: There was one, and its turn has come and was forgotten.
        """
        queue, key = self._store.queue, self._key
        queued = self._queued = await queue.claim(key, conversation)
        if queued is None:
            raise NothingQueued
        self._plan = evolve(self._plan, value=queued.message, delivery_id=queued.delivery_id)
        before = queued.delivery_id in conversation.delivered
        try:
            with queue.answering(key, self._answers(conversation)):
                return await self._begun(lease, conversation)
        except errors.RunNotFound:
            if not before:
                raise
            await queue.ack(key, [queued])
            raise MessageGone from None

    async def _begun(self, lease: SessionLease, conversation: session_stream.StoredConversation) -> AnyResult:
        """Begin the turn, or resume an earlier one that has the same message."""
        store, key, plan = self._store, self._key, self._plan
        delivery = plan.delivery_id
        former = None if delivery is None else conversation.delivered.get(delivery)
        if delivery is None and conversation.shut is not None:
            result = await self._after_shutdown(lease, conversation, conversation.shut)
            if result is not None:
                return result
        run_history = None if former is None else await self._run_history(former)
        if former is not None and run_history is not None:
            result, scope = await self._again(former, plan)
            begun = run_history.started.history
            if conversation.open is not None and conversation.open.run_id == former:
                await self._write(lease, conversation, self._made(result, scope, conversation, begun))
            else:
                await self._write_rest(lease, conversation, result, scope, begun)
            await self._answered(result)
            return result
        if former is not None and (conversation.open is None or conversation.open.run_id != former):
            raise errors.RunNotFound(
                f"what was delivered as {delivery!r} was answered by run {former!r}, which no longer exists",
                hint="keep runs for as long as their messages may be delivered again",
            )
        if conversation.open is not None:
            await self._close(lease, conversation, conversation.open.run_id)
        opening = [session_stream.started(self._run.run_id, delivery)]
        storage = plan.storage
        if storage is None:
            await store.write(lease, key, conversation, opening, self._codec)
        else:
            turn = await store.planned(lease, key, conversation, opening, self._codec)
            followed = store.policy.persist != "manual"
            self._plan = evolve(plan, storage=evolve(storage, turn=turn, followed=followed))
        return await self._from(conversation, lambda made: self._write(lease, conversation, made))

    async def beside_others(self) -> AnyResult:
        """The turn, beside others, which may write first."""
        self._store.watchers.observe(self._run)
        if self._plan.delivery_id is not None:
            raise errors.ConfigError(
                'delivery_id= needs a lock: with lock="none" turns are not in order',
                code="session-delivery",
                hint='SessionPolicy(lock="queue")',
            )
        conversation = await self._store.read(self._key)

        async def write(made: FinishedTurn) -> None:
            async def work(lease: SessionLease) -> None:
                there = await self._store.read(self._key)
                if there.position != made.seen_position:
                    await self._reconcile(lease, there, made)
                else:
                    await self._write(lease, there, made)

            async with self._store.lock.acquire(self._key):
                await self._store.with_lease(self._key, work, wait=_KEEP_TRYING)

        return await self._from(conversation, write)

    async def _reconcile(
        self, lease: SessionLease, there: session_stream.StoredConversation, made: FinishedTurn
    ) -> None:
        """Another process has written since the turn began."""
        match self._store.policy.on_conflict:
            case "fail":
                raise errors.SessionConflict(
                    f"session {self._key.session!r} was written by another turn while this one ran",
                    hint='the error carries the result; lock="queue", or on_conflict="merge", lets both stay',
                )
            case "merge":
                await self._write(lease, there, made)
            case _:
                whole = {
                    name: {"w": state_tree(each.like, each.fields), "v": each.version}
                    for name, each in made.seen_states.items()
                }
                seen = made.seen_items
                records = [
                    session_stream.edited(seen, (), self._codec, origins=seen.origins()),
                    session_stream.ended(made.run_id, made.status, (), whole, self._codec),
                ]
                await self._store.write(lease, self._key, there, records, self._codec)
                await self._write(lease, there, made)

    async def _from(
        self, conversation: session_stream.StoredConversation, write: Callable[[FinishedTurn], Awaitable[None]]
    ) -> AnyResult:
        """Run from what a session holds, and write what that adds, however the run ends."""
        store, key, run = self._store, self._key, self._run
        log = conversation.log.fork()
        settled = conversation.settled
        for made, _ in store.unsaved(key):
            log.put(made.items, [(len(made.items) - made.said, (made.run_id, made.branch))])
            settled = log.size if made.status == "completed" else settled
        run.asked = unanswered(log, settled)
        log.origin = (run.run_id, self._plan.step.id)
        storage = self._plan.storage
        turn = None if storage is None else storage.turn
        begun, states = log.size, dict(conversation.states)
        # Where the turn has begun: with a run that is stored this is written when the run begins.
        position = conversation.position if turn is None else turn.transaction.expected_position + 1
        scope = ContextScope(log, self._state(conversation), self._plan.step.id)
        put_view(conversation, scope)
        if unsaved := store.unsaved(key):
            scope.view = unsaved[-1][0].view
        # A run whose beginning is not in the backend alone has to hold it itself, and so has one whose turn is not.
        whole = store.unsaved(key) or not store.durable or (conversation.open is None and turn is None)
        base = Base(*key.parts, -1 if whole else position)
        seen = conversation.log.frozen() if store.policy.on_conflict == "overwrite" else _NONE
        store.begins(key, run)
        result: AnyResult | None = None
        try:
            result = await self._go(run, evolve(self._plan, scope=scope, base=base))
            return result
        finally:
            said = store.ends(key, run)
            left = result or run.left
            if left is not None:
                own, queued = log.since(begun), self._answer_to(left) if result or not store.durable else None
                spoken = [Message.user(each) for each in said]
                if queued is not None and not own and left.status not in ("completed", "suspended"):
                    # Its run has kept nothing, and what was said is not lost with that.
                    spoken[:0] = [queued.item] if unsaid(run, log, [queued.item]) else ()
                items = [*own, *spoken]
                cut = _cut(left, items)
                made = FinishedTurn(
                    run.run_id, left.status, items, left.state, position, seen, states, len(spoken), cut,
                    queued=queued, branch=self._plan.step.id, delivery=None if queued else self._plan.delivery_id,
                    view=scope.view, begun=begun, counted=scope.counted,
                )  # fmt: skip
                with anyio.CancelScope(shield=True):
                    await self._finish(write, made, left, cancelled=result is None)
            elif run.store is not None:
                # Its caller was cancelled behind the end of the run, which the next turn finds; or it never began.
                with anyio.CancelScope(shield=True), suppress(errors.CheckpointError):
                    await run.store.finish()
                    await run.store.release()

    async def _finish(
        self,
        write: Callable[[FinishedTurn], Awaitable[None]],
        made: FinishedTurn,
        result: AnyResult,
        *,
        cancelled: bool,
    ) -> None:
        run = self._run.store
        try:
            try:
                if self._store.policy.persist == "manual" and made.status != "suspended":
                    await self._store.keep_unsaved(self._key, made, self._codec)
                else:
                    await write(made)
            except BaseException:
                if run is not None:
                    # It has ended, whatever becomes of the turn; what has failed is why the turn was not written.
                    with suppress(errors.CheckpointError):
                        await run.finish()
                raise
            if run is not None:
                await run.finish()
        except errors.NoeticError as error:
            error.result = error.result or result
            if cancelled:
                # There is no caller to tell, and a cancellation goes on.
                log(
                    "sessions",
                    ERROR,
                    "a cancelled turn was not written to session %r",
                    self._key.session,
                    where=Where(result.run_id),
                    error=error,
                )
            elif result.error is None:
                raise
            else:
                # The error that broke the run is raised to its caller first.
                result.error.add_note(f"the session was not written: {error}")

    async def _write_rest(
        self,
        lease: SessionLease,
        conversation: session_stream.StoredConversation,
        result: AnyResult,
        scope: ContextScope,
        begun: int,
    ) -> None:
        """A turn that had not completed was delivered again and has gone on: write what is not there yet.

        Raises:
            SessionConflict: The session was written by others meanwhile.
        """
        shut, back, items = conversation.shut, 0, scope.log.since(begun)
        if shut is not None and shut.run_id == result.run_id:
            # Nothing follows it, so all of it is written anew; and that it was shut down is said once, whatever comes.
            written, position, back = 0, conversation.position, shut.items
        elif result.run_id in conversation.unfinished:
            written, position, _ = conversation.unfinished[result.run_id]
            if not items[written:] and result.status != "completed":
                return
        else:
            return
        rest = _missing(items, written, [] if back else conversation.log.frozen())
        # A queued message takes its place after the other turns; only a direct one conflicts.
        strict = self._store.policy.on_conflict == "fail" and self._queued is None
        if conversation.position != position and strict:
            error = errors.SessionConflict(
                f"session {self._key.session!r} was written by other turns before this one was delivered again",
                hint='the error carries the result; SessionPolicy(on_conflict="merge") adds it at the end',
            )
            error.result = result
            raise error
        states, cut = conversation.states, _cut(result, rest)
        branch = self._plan.step.id
        made = FinishedTurn(
            result.run_id, result.status, rest, result.state, position, _NONE, states, cut=cut, back=back,
            branch=branch, view=scope.view, begun=begun + (back or written),
        )  # fmt: skip
        with anyio.CancelScope(shield=True):
            await self._write(lease, conversation, made)

    async def _resumed(self, lease: SessionLease, conversation: session_stream.StoredConversation) -> AnyResult:
        """Resume a run of the session that an earlier process began."""
        self._store.begins(self._key, self._run)
        try:
            result = await self._go(self._run, self._plan)
        finally:
            self._store.ends(self._key, self._run)
        if self._plan.run_history is None:
            return result
        # The history that it began with: the session may have been edited while it waited.
        begun, scope = self._plan.run_history.started.history, self._plan.scope
        if conversation.open is not None and conversation.open.run_id == self._run.run_id:
            with anyio.CancelScope(shield=True):
                await self._write(lease, conversation, self._made(result, scope, conversation, begun))
        else:
            shut = conversation.shut is not None and conversation.shut.run_id == self._run.run_id
            if shut or conversation.unfinished.get(self._run.run_id, (0, 0, ""))[2] == "suspended":
                await self._write_rest(lease, conversation, result, scope, begun)
        return result

    def _made(
        self, result: AnyResult, scope: ContextScope, seen: session_stream.StoredConversation, begun: int
    ) -> FinishedTurn:
        items, states = scope.log.since(begun), seen.states
        cut = _cut(result, items)
        at, branch = seen.position, self._plan.step.id
        return FinishedTurn(
            result.run_id, result.status, items, result.state, at, _NONE, states, cut=cut, branch=branch,
            view=scope.view, begun=begun,
        )  # fmt: skip

    def _state(self, conversation: session_stream.StoredConversation) -> object:
        """The state that the turn begins with: the session's, or the one that was given for a session without."""
        given = self._plan.scope.state
        unsaved = self._store.unsaved(self._key)
        if unsaved:
            return unsaved[-1][0].state
        found = state_of(conversation, class_of(given), self._codec)
        return given if found is None else found

    async def _after_shutdown(
        self, lease: SessionLease, conversation: session_stream.StoredConversation, shut: session_stream.ShutTurn
    ) -> AnyResult | None:
        """Resume the turn that a shutdown interrupted if this one has the same message, and add the message once."""
        run_history = await self._run_history(shut.run_id)
        if run_history is None or not _is_same(run_history, self._plan, self._codec):
            return None
        try:
            result, scope = await self._again(shut.run_id, self._plan)
        except errors.ReplayDiverged:
            # It was shut down for other code, which cannot go on with it: it starts again.
            return None
        await self._write_rest(lease, conversation, result, scope, run_history.started.history)
        return result

    async def _run_history(self, run_id: str) -> RunHistory | None:
        """The records of a turn's run; `None` if it has not begun."""
        try:
            run_history = await load_run_history(self._store.backend, run_id, self._codec, KINDS)
        except errors.RunNotFound:
            return None
        base = None if run_history.started.opening is None else run_history.started.opening.base
        ours = base is not None and (base.app, base.user, base.session) == self._key.parts
        return run_history if ours else None

    async def _close(self, lease: SessionLease, conversation: session_stream.StoredConversation, run_id: str) -> None:
        """End an earlier turn whose process has died or sleeps, so that it cannot continue the run.

        Raises:
            RunBusy: Another process is resuming that run.
        """
        backend = self._store.backend
        if await backend.head(run_id) is None:
            await self._end(lease, conversation, run_id)
            return
        # Its lease is not older than the session's by more than it took to begin.
        patience = max(self._store.policy.wait, _MOMENT)
        acquire = partial(backend.acquire, run_id, ttl=self._store.ttl)
        try:
            run_lease = await when_free(acquire, patience, self._store.runtime)
        except errors.RunBusy as busy:
            # It says so of a run, which the caller has not named.
            raise errors.RunBusy(
                f"session {self._key.session!r} is busy: another process resumes run {run_id!r} of its last turn",
                hint=f"SessionPolicy(wait={max(30.0, 2 * patience):g}) waits for it",
            ) from busy
        try:
            await self._end(lease, conversation, run_id)
        finally:
            await release_lease(backend, run_lease)

    async def _end(self, lease: SessionLease, conversation: session_stream.StoredConversation, run_id: str) -> None:
        """End a turn that is not resumed.

        Raises:
            SessionSuspended: It waits for an answer, and the policy does not give it up.
        """
        items: Sequence[Item] = ()
        states: dict[str, object] = {}
        view: ViewChange | None = None
        queue = self._store.queue
        run_history = await self._run_history(run_id)
        if run_history is None:
            # Nothing of it was done, so that what was delivered is still to be.
            records = [session_stream.discarded(run_id)]
            await self._store.write(lease, self._key, conversation, records, self._codec)
            return
        waits = run_history.ended is not None and run_history.ended.status == "suspended"
        if waits and self._store.policy.on_suspended == "refuse":
            raise errors.SessionSuspended(
                f"a turn of session {self._key.session!r} waits for an answer",
                run_id=run_id,
                hint='answer and resume its run, or SessionPolicy(on_suspended="close")',
            )
        given = (
            run_history.ended is not None
            and run_history.ended.status == "completed"
            and asked_in(run_history.records) is not None
        )
        if waits or given or self._store.policy.persist in ("step", "item"):
            items, deltas, begun = left_of(run_history)
            name = stored_type(begun.like)
            name = StateBag.__name__ if name == "dict" else name
            change = session_stream.deltas_change(conversation.states.get(name), begun, deltas)
            states = {} if change is None else {name: change}
            view = view_change(conversation.view, left_view(run_history, conversation.view))
        messages = await queue.contained_in(self._key, items)
        took = [each.delivery_id for each in messages]
        status: RunStatus = "suspended" if waits else "completed" if given else "interrupted"
        records = [
            session_stream.ended(
                run_id, status, items, states, self._codec, branch=run_history.started.flow, took=took, view=view
            )
        ]
        await self._store.write(lease, self._key, conversation, records, self._codec)
        await queue.ack(self._key, messages)

    def _answer_to(self, result: AnyResult) -> QueuedMessage | None:
        """The message that is answered so; one that a shutdown has cut off is to be gone on with."""
        return None if result.shutdown and self._store.durable else self._queued

    async def _answered(self, result: AnyResult) -> None:
        queued = self._answer_to(result)
        if queued is not None:
            with anyio.CancelScope(shield=True):
                await self._store.queue.ack(self._key, [queued])

    async def _write(
        self, lease: SessionLease, conversation: session_stream.StoredConversation, made: FinishedTurn
    ) -> None:
        if made.status == "suspended" and conversation.open is not None and conversation.open.run_id == made.run_id:
            # The turn has not ended: its run holds what there is of it, and writes it when it does.
            if made.queued is not None:
                await self._store.queue.ack(self._key, [made.queued])
            return
        await self._store.write_turn(lease, self._key, conversation, made, self._codec, last=True)


def _missing(items: Sequence[Item], written: int, there: Sequence[Item]) -> list[Item]:
    """Return the items of a turn that the session does not hold: outputs of parallel calls come in any order."""
    answered = {item.call_id for item in there if isinstance(item, FunctionCallOutput)}
    early = [item for item in items[:written] if isinstance(item, FunctionCallOutput) and item.call_id not in answered]
    late = [
        item for item in items[written:] if not isinstance(item, FunctionCallOutput) or item.call_id not in answered
    ]
    return [*early, *late]


def _cut(result: AnyResult, items: Sequence[Item]) -> int | None:
    """Return how many of the last items of a run that a shutdown interrupted belong to an answer that was cut off."""
    if not result.shutdown:
        return None
    last = items[-1] if items else None
    return int(isinstance(last, Message) and last.role == "assistant" and last.status == "incomplete")


def _is_same(run_history: RunHistory, plan: RunPlan, codec: Codec) -> bool:
    """Whether a turn is asked for what an earlier one was asked for; the ids of items differ each time."""
    asked = run_history.started.input
    if run_history.started.flow != plan.step.id or not isinstance(asked, Stored):
        return False
    try:
        now: object = codec.encode(plan.value)
    except errors.CodecError:
        return False
    return _without_ids(asked.tree) == _without_ids(now)


def _without_ids(tree: object) -> object:
    if is_list(tree):
        return [_without_ids(each) for each in tree]
    item: object = tree.get("v") if is_dict(tree) and tree.get("$") == "item" else None
    return {key: value for key, value in item.items() if key != "id"} if is_dict(item) else tree
