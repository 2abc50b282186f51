"""All sessions of one harness: their cache, their turns, and how they are read, written and watched."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.context.read import ContextScope, Counted
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump
from noetic_py.core.control import SESSION, RunStatus, SessionKey
from noetic_py.core.events import CAPACITY, Backlog, Event, ReasoningDelta, Subscription, TextDelta
from noetic_py.core.items import Item, Message
from noetic_py.core.log import ItemLog, ItemView, admit
from noetic_py.core.memory import Memory
from noetic_py.core.runtime import Runtime
from noetic_py.core.selections import CommittedItems, Deltas
from noetic_py.core.state import StateBag, class_of
from noetic_py.core.types import T
from noetic_py.engine.journaling.replay import decoded, migrate_fields, version_of
from noetic_py.engine.journaling.writer import fit_together
from noetic_py.engine.stops import Asked, asked_by
from noetic_py.journal import session_stream
from noetic_py.journal.changes import view_change
from noetic_py.journal.patches import state_tree
from noetic_py.journal.stored import Lease, Record, Transaction
from noetic_py.memory.layer import AnyLayer, layers_of
from noetic_py.memory.projector import Projector, Recorded
from noetic_py.memory.scopes import Scope, forget
from noetic_py.memory.view_state import decisive, recorded_of, restored
from noetic_py.runner.lease import acquire_lease, beside, release_lease, when_free
from noetic_py.runner.stop_requests import request_stop
from noetic_py.sessions.policy import SessionPolicy
from noetic_py.sessions.queue import Delivery, MessageQueue, QueuedMessage, Sent, SessionLock

if TYPE_CHECKING:
    from noetic_py.engine.journaling.writer import RunWriter
    from noetic_py.engine.state import Resources, Run

_PATIENCE = 10.0
"""Seconds that the process with a session's turn has to interrupt it; it looks about once a second."""


class SessionStream:
    """A session as it is watched: first what is remembered of its turns, and then what happens.

    Each of `events`, `text`, `reasoning` and `items` has a buffer of its own, so they can be read side by side, each by
    one task. They end when the watcher leaves, or the session is deleted.

    Attributes:
        missed: Events that were forgotten before the watcher came; the oldest go first.
    """

    def __init__(self, missed: int, subscriptions: dict[str, Subscription]) -> None:
        self.missed: int = missed
        self._subscriptions = subscriptions
        self._read: set[str] = set()

    @property
    def dropped(self) -> int:
        """Events that the slowest reader has lost because it did not read them in time."""
        return max((self._subscriptions[name].dropped for name in self._read), default=0)

    @property
    def events(self) -> AsyncIterator[Event]:
        """Every event in order; a `RunStarted` begins each turn, and a `RunFinished` ends it."""
        return self._subscription("events")

    @property
    def text(self) -> AsyncIterator[str]:
        """The answers' text, piece by piece."""
        return Deltas(self._subscription("text"), TextDelta)

    @property
    def reasoning(self) -> AsyncIterator[str]:
        """The models' visible reasoning, piece by piece."""
        return Deltas(self._subscription("reasoning"), ReasoningDelta)

    @property
    def items(self) -> AsyncIterator[Item]:
        """Items as they are committed, of every step, in the order of the commits."""
        return CommittedItems(self._subscription("items"))

    def _subscription(self, name: str) -> Subscription:
        self._read.add(name)
        return self._subscriptions[name]


class _WatchedSession:
    """The cached state of one session, and its watchers."""

    def __init__(self, limit: int) -> None:
        self.history: Backlog[Event] = Backlog(limit)
        self.watchers: list[Subscription] = []

    def put(self, event: Event) -> None:
        size = event.size
        self.history.put(event, size)
        for watcher in self.watchers:
            watcher.put(event, size)

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.close()


class SessionWatchers:
    """The cache of the sessions of one harness; the least recently used are dropped."""

    def __init__(self, policy: SessionPolicy) -> None:
        self._history = policy.history
        self._limit = policy.cache_size
        self._watched: OrderedDict[SessionKey, _WatchedSession] = OrderedDict()

    def __len__(self) -> int:
        """The number of sessions of which something is remembered."""
        return len(self._watched)

    def __iter__(self) -> Iterator[SessionKey]:
        """The sessions of which something is remembered."""
        return iter(self._watched)

    def observe(self, run: Any) -> None:
        """Remember what happens in a turn's run."""
        key: SessionKey = run.session
        if self._history or key in self._watched:
            run.bus.watch(self._session(key).put)

    def forget(self, key: SessionKey) -> None:
        """Forget a session, and end its watchers."""
        watched = self._watched.pop(key, None)
        if watched is not None:
            watched.close()

    @contextmanager
    def watch(self, key: SessionKey) -> Generator[SessionStream]:
        """Watch a session for as long as the block lasts."""
        watched = self._session(key)
        names = ("events", "text", "reasoning", "items")
        made = {name: Subscription(max(CAPACITY, self._history)) for name in names}
        for each in made.values():
            for event, size in watched.history:
                each.put(event, size)
        watched.watchers += made.values()
        try:
            yield SessionStream(watched.history.dropped, made)
        finally:
            for each in made.values():
                watched.watchers.remove(each)
                each.close()
            if not self._history and not watched.watchers and self._watched.get(key) is watched:
                del self._watched[key]
            self._trim()

    def _session(self, key: SessionKey) -> _WatchedSession:
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _WatchedSession(self._history)
        self._watched.move_to_end(key)
        self._trim(key)
        return watched

    def _trim(self, kept: SessionKey | None = None) -> None:
        spare = len(self._watched) - self._limit
        if spare <= 0:
            return
        idle = [key for key, watched in self._watched.items() if not watched.watchers and key != kept]
        for key in idle[:spare]:
            del self._watched[key]


class SessionLease:
    """The right to write a session, while it lasts.

    Args:
        backend: Where the session is.
        lease: The lease; or that of the last write, whose owner this was.
        position: Where the session's stream ends.
        ttl: Seconds for which it holds without a renewal.
        held: Whether it is held; otherwise the first write acquires it, if there was no other owner since.

    Attributes:
        position: Where the session's stream ends.
        held: Whether it is held.
        run: The run of the current turn, which stops once the lease is lost.
    """

    def __init__(
        self, backend: CheckpointBackend, lease: Lease, position: int, ttl: float, *, held: bool = True
    ) -> None:
        self._backend = backend
        self._ttl = ttl
        self._lease = lease
        self.held: bool = held
        self._released = False
        self.position: int = position
        self.run: Any = None

    async def heartbeat(self) -> None:
        """Keep it, until cancelled. Its loss is reported by the next step of the turn, or the next write."""
        while not self._released:
            await anyio.sleep(self._ttl / 3)
            await self.renew()

    async def renew(self) -> None:
        """Renew it, while it is held; its loss ends the turn."""
        if self._released or not self.held:
            return
        # It lasts for longer than one try takes.
        with suppress(errors.CheckpointError):
            try:
                self._lease = await self._backend.renew(self._lease, ttl=self._ttl)
            except errors.LeaseLost as error:
                # A run that has not begun yet is notified the next time.
                if self.run is not None and self.run.store is not None:
                    self.run.store.lose(error)

    def appending(self, records: Sequence[Record], summary: bytes | None) -> Transaction:
        """What writes records at the end of the stream."""
        status = None if summary is None else SESSION
        acquire = None if self.held else self._ttl
        return Transaction(self._lease.run_id, self.position, self._lease.fence, records, summary, status, acquire)

    def written(self, lease: Lease) -> None:
        """A write was taken: it is held, and the stream ends where the lease says."""
        self._lease, self.held = lease, True
        self.position = lease.position or 0

    async def commit(self, write: SessionWrite, *, last: bool = False) -> None:
        """Write at the end of the stream; with the end of the turn's run, if that was left to this.

        Args:
            write: What is written.
            last: Whether nothing follows, and it is given up with it.
        """
        run: RunWriter | None = None if self.run is None else self.run.store
        ending = None if run is None else run.ending
        if run is not None and ending is not None and not fit_together(ending, write.transaction):
            await run.finish()
            ending = None
        given = [evolve(write.transaction, release=last)]
        if ending is not None:
            # In a backend that writes them in order, the next turn finds a run that has ended, and closes its turn.
            given.insert(0, ending)
        leases = await self._backend.commit(given)
        if run is not None and ending is not None:
            run.finished()
        self._released = last
        write.written(leases[-1])

    async def release(self) -> None:
        """Give it up, if it is still this process's; cannot be cancelled."""
        if self.held and not self._released:
            await release_lease(self._backend, self._lease)


@frozen(eq=False)
class SessionWrite:
    """Records that are written at the end of a session, and taken in when they are.

    Attributes:
        transaction: What is written.
    """

    transaction: Transaction
    _lease: SessionLease
    _conversation: session_stream.StoredConversation
    _codec: Codec
    _items: Sequence[Item] = ()

    async def renew(self) -> None:
        """Renew the lease of the session, while it is held."""
        await self._lease.renew()

    def written(self, lease: Lease) -> None:
        """Take them in; the session's stream ends where the lease says."""
        self._lease.written(lease)
        position, conversation, records = self._lease.position, self._conversation, self.transaction.records
        conversation.noted, conversation.fence = True, lease.fence
        # A reader may have taken in some of it meanwhile.
        conversation.advance(records[len(records) - (position - conversation.position) :], self._codec, self._items)


@frozen(eq=False)
class FinishedTurn:
    """The outcome of a turn.

    Attributes:
        run_id: Its run.
        status: How that has ended.
        items: What the turn adds.
        state: Its state at the end.
        seen_position: Where the session stood when it began.
        seen_items: What it held then.
        seen_states: The states that it had then.
        said: How many of the last items are not the run's.
        cut: When a shutdown has interrupted it, how many of those before are of an answer that was cut off.
        back: How many of the session's last items it takes back.
        queued: The message that it has answered, when nothing more is to be done for that.
        branch: The branch of its items.
        delivery: What it was delivered as, when that is to be gone on with.
        view: How a model was shown the conversation last.
        begun: How many items the session has when nothing was written beside it.
        counted: What was counted of it.
    """

    run_id: str
    status: RunStatus
    items: Sequence[Item]
    state: Any
    seen_position: int
    seen_items: ItemView
    seen_states: Mapping[str, session_stream.StoredState]
    said: int = 0
    cut: int | None = None
    back: int = 0
    queued: QueuedMessage | None = None
    branch: str = ""
    delivery: str | None = None
    view: object = None
    begun: int = 0
    counted: Counted | None = None


class SessionEdit:
    """A session as it is edited by hand: put other things into `items`, take names out of `states`.

    Attributes:
        items: The conversation.
        states: The names of the types of which it holds a state; one that is taken out is forgotten.
    """

    def __init__(self, *, items: list[Item], states: set[str]) -> None:
        self.items: list[Item] = items
        self.states: set[str] = states


@contextmanager
def _naming(key: SessionKey, hint: str) -> Generator[None]:
    """Say which session is busy: the store knows its stream only."""
    try:
        yield
    except errors.RunBusy as busy:
        raise errors.RunBusy(f"session {key.session!r} is held by another process", hint=hint) from busy


class SessionStore:
    """All sessions of one harness.

    Args:
        backend: Where they are kept; in memory when there is none.
        policy: How they behave.
        runtime: The clock.
        memory: The layers that keep something of a session.
        resources: The harness's, with the store of what layers keep.
    """

    def __init__(
        self,
        backend: CheckpointBackend | None,
        policy: SessionPolicy,
        runtime: Runtime,
        memory: Memory | None,
        resources: Any,
    ) -> None:
        self.backend: CheckpointBackend = InMemoryBackend(runtime=runtime) if backend is None else backend
        self.durable: bool = backend is not None
        self.policy = policy
        self.runtime = runtime
        self.ttl: float = resources.ttl
        layers = () if memory is None else layers_of(memory).values()
        # Those that keep something of a session.
        self.layers: Mapping[str, AnyLayer] = {layer.id: layer for layer in layers if layer.scope is Scope.THREAD}
        self._resources: Resources = resources
        self.lock: SessionLock = SessionLock()
        self.queue: MessageQueue = MessageQueue(self.backend, runtime, policy, durable=self.durable)
        # A turn under way asks for what comes in between its rounds.
        resources.steering = self.queue.steering
        self.watchers: SessionWatchers = SessionWatchers(policy)
        # The sessions read last, newest at the end; compared with the backend before they are used.
        self._known: OrderedDict[SessionKey, session_stream.StoredConversation] = OrderedDict()
        self._live: dict[SessionKey, list[Run]] = {}
        # Turns of earlier processes that go on because their messages have come again.
        self._again: list[Run] = []
        # Turns that were made and not written, of persist="manual".
        self._unsaved: dict[SessionKey, list[tuple[FinishedTurn, Codec]]] = {}

    @property
    def layer_store(self) -> CheckpointBackend:
        """Where layers keep what is theirs; of a harness without a backend in memory, apart from the sessions."""
        return self._resources.storage

    @property
    def in_use(self) -> int:
        """How many sessions have a running or waiting turn."""
        return len(self.lock)

    # -- a turn

    async def with_lease(
        self,
        key: SessionKey,
        work: Callable[[SessionLease], Awaitable[T]],
        *,
        wait: float | None = None,
        new: bool = False,
    ) -> T:
        """Do something while no other process may write a session; `new` work only while the lock is open.

        Raises:
            RunBusy: Another process has it, for longer than the policy waits.
            ShuttingDown: The lock is closed.
        """
        patience = self.policy.wait if wait is None else wait
        lease = await when_free(partial(self._acquire, key, new=new), patience, self.runtime)
        try:
            return await beside(lease.heartbeat, lambda: work(lease))
        finally:
            await lease.release()

    async def unchanged(
        self,
        key: SessionKey,
        work: Callable[[SessionLease, session_stream.StoredConversation], Awaitable[T]],
        *,
        new: bool,
    ) -> T | None:
        """Do something that writes to a session first, as it was when this process wrote it last.

        The first write acquires it, so that nothing is read and no call is made before it.

        Returns:
            `None` if it is not known so, or has had another owner since; then nothing was written.

        Raises:
            ShuttingDown: `new` work, and the lock is closed.
        """
        if new:
            self.lock.check()
        known = self._known.get(key)
        if known is None or not known.fence or known.open is not None or known.shut is not None:
            return None
        lease = SessionLease(self.backend, Lease(key.stream, known.fence), known.position, self.ttl, held=False)
        try:
            # The run's heartbeat keeps the session too: nothing is held before the run begins, and its end is written
            # at once.
            return await work(lease, known)
        except (errors.RunBusy, errors.LeaseLost, errors.PositionConflict):
            if lease.held:
                raise
            known.fence = 0
            return None
        finally:
            await lease.release()

    async def _acquire(self, key: SessionKey, *, new: bool = False) -> SessionLease:
        if new:
            self.lock.check()
        hint = f"SessionPolicy(wait={max(30.0, 2 * self.policy.wait):g}) waits for it"
        with _naming(key, hint):
            lease, head = await acquire_lease(self.backend, key.stream, self.ttl)
        return SessionLease(self.backend, lease, 0 if head is None else head.position, self.ttl)

    async def read(self, key: SessionKey, codec: Codec | None = None) -> session_stream.StoredConversation:
        """The current contents of a session: the cached state, and what was written since.

        Raises:
            SessionLoadError: It cannot be read, and the policy does not say to begin afresh.
            StoreUnavailable: The backend does not answer.
        """
        known = self._known.pop(key, None)
        entry = await self.backend.entry(key.stream)
        position, begins = (0, 0) if entry is None else (entry.position, session_stream.begins_at(entry))
        if known is None or not begins <= known.position <= position:
            # Never read here, or deleted since and perhaps created again.
            known = session_stream.StoredConversation(position=begins, noted=position > 0)
        # Others may have written since it was found empty, and they have said whose it is, and where it begins.
        known.noted = known.noted or position > 0
        try:
            if known.position != position:
                known.fence = 0
                await session_stream.read_conversation(self.backend, key.stream, codec or Codec(), known=known)
        except errors.StoreUnavailable:
            raise
        except (errors.CodecError, errors.CheckpointError) as error:
            if self.policy.on_load_error == "raise":
                raise errors.SessionLoadError(
                    f"session {key.session!r} cannot be read: {error.message}",
                    hint='mend the store, delete the session, or SessionPolicy(on_load_error="fresh")',
                ) from error
            # Its records stay in the store; the next record says that they are not to be read.
            return session_stream.StoredConversation(position=position)
        self.keep(key, known)
        return known

    def keep(self, key: SessionKey, conversation: session_stream.StoredConversation) -> None:
        """Remember what a session holds, and forget the one that was used longest ago."""
        self._known[key] = conversation
        self._known.move_to_end(key)
        while len(self._known) > self.policy.cache_size:
            self._known.popitem(last=False)

    def cached_of(self, user: str) -> set[SessionKey]:
        """The sessions of a user of which this process has something, be it stored or not."""
        return {key for key in (*self._known, *self._unsaved, *self.watchers) if key.user == user}

    # -- what goes on

    def begins(self, key: SessionKey, run: Any) -> None:
        """A turn's run begins."""
        self._live.setdefault(key, []).append(run)

    def ends(self, key: SessionKey, run: Any) -> Sequence[str]:
        """A turn's run is over; returns the messages that interrupted it."""
        runs = self._live[key]
        runs.remove(run)
        if not runs:
            del self._live[key]
        self.queue.wake(key)
        return run.said or ()

    async def interrupt(self, key: SessionKey, message: str | None) -> bool:
        """Stop the current turn of a session; waiting turns stay.

        Raises:
            RunBusy: The process that has the turn has not answered in time.
        """
        reason = "interrupted by the session's user" if message is None else message
        runs = self._live.get(key, [])
        for run in runs:
            run.interrupt_turn(reason, message)
        return bool(runs) or await self._interrupt_elsewhere(key, reason, message)

    async def _interrupt_elsewhere(self, key: SessionKey, reason: str, message: str | None = None) -> bool:
        """Have the process that has a session's turn interrupt it; returns whether there was one.

        Raises:
            RunBusy: It has not answered in time.
        """
        turn = (await self.read(key)).open if self.durable else None
        if turn is None:
            return False
        asked = Asked("interrupt", message, reason, asked_by(), self.runtime.new_id())
        try:
            await request_stop(self.backend, turn.run_id, asked, _PATIENCE, self.runtime)
        except (errors.RunOver, errors.RunNotFound):
            return False
        return True

    async def send(self, key: SessionKey, message: str | Message, deliver: Delivery, delivery_id: str | None) -> Sent:
        """See [`Session.send`][noetic_py.Session.send]."""
        # Those that go on now: once the message is there, a turn that takes it may be one more.
        live = self._going(key) if deliver == "interrupt" else []
        queued = await self.queue.send(key, message, deliver, delivery_id, self.read)
        if queued is None:
            return Sent(delivery_id or "", True, False, self.durable)
        reason = "interrupted by a message to the session"
        going = [run for run in live if run in self._going(key)]
        for run in going:
            run.interrupt_turn(reason)
        interrupted = bool(going)
        if deliver == "interrupt" and not live:
            with suppress(errors.RunBusy):
                interrupted = await self._interrupt_elsewhere(key, reason)
        return Sent(queued.delivery_id, False, interrupted, self.durable)

    def _going(self, key: SessionKey) -> list[Run]:
        return [*self._live.get(key, ()), *(run for run in self._again if run.session == key)]

    @contextmanager
    def again(self, run: Run) -> Generator[None]:
        """Resume a turn of an earlier process, because its message was delivered again."""
        self._again.append(run)
        self.watchers.observe(run)
        try:
            yield
        finally:
            self._again.remove(run)

    def close(self) -> None:
        """Let no new turn begin."""
        self.lock.close()
        self.queue.wake()

    # -- what is not written yet

    async def keep_unsaved(self, key: SessionKey, made: FinishedTurn, codec: Codec) -> None:
        """Keep a turn for `save`."""
        self.queue.reserve(key, await self._messages_of(key, made))
        self._unsaved.setdefault(key, []).append((made, codec))

    def unsaved(self, key: SessionKey) -> Sequence[tuple[FinishedTurn, Codec]]:
        """The turns that are not written yet."""
        return self._unsaved.get(key, ())

    async def save(self, key: SessionKey) -> int:
        """Write them; returns how many there were."""
        saved = 0

        async def work(lease: SessionLease) -> None:
            nonlocal saved
            conversation = await self.read(key)
            while waiting := self._unsaved.get(key):
                made, codec = waiting[0]
                # Once it is written it waits no more; what is not taken waits for the next time.
                with anyio.CancelScope(shield=True):
                    await self.write_turn(lease, key, conversation, made, codec)
                saved += 1
                del waiting[0]
            self._unsaved.pop(key, None)

        async with self.lock.acquire(key):
            if self._unsaved.get(key):
                await self.with_lease(key, work)
        return saved

    # -- by hand

    @asynccontextmanager
    async def edit(self, key: SessionKey) -> AsyncGenerator[SessionEdit]:
        """See [`Session.edit`][noetic_py.Session.edit]."""
        async with self.lock.acquire(key):
            lease = await when_free(partial(self._acquire, key), self.policy.wait, self.runtime)
            try:
                conversation = await self.read(key)
                before = list(conversation.log)
                edit = SessionEdit(items=list(before), states=set(conversation.states))
                yield edit
                if edit.items != before or edit.states != set(conversation.states):
                    try:
                        admit(tuple(edit.items), entry="session", known=before)
                        ItemLog(edit.items)
                    except errors.ForgedEvent:
                        raise
                    except (TypeError, errors.LogError) as error:
                        raise errors.ConfigError(
                            f"the edited items are not a valid conversation: {error}",
                            code="session-edit",
                            hint="items only, and every output behind its one call",
                        ) from error
                    codec = Codec()
                    came = {item.id: conversation.log.origin_of(index) for index, item in enumerate(before)}
                    origins = [(1, came.get(item.id)) for item in edit.items]
                    states = edit.states & set(conversation.states)
                    records = [session_stream.edited(edit.items, states, codec, origins=origins)]
                    with anyio.CancelScope(shield=True):
                        await self.write(lease, key, conversation, records, codec)
            finally:
                await lease.release()

    async def delete(self, key: SessionKey) -> None:
        """Forget a session."""
        async with self.lock.acquire(key):
            with _naming(key, "wait for its turn to end, then delete it"):
                await self.backend.delete(key.stream)
            await self.backend.remove(index_of(key.app, key.user), key.session)
            for layer in self.layers:
                await forget(self.layer_store, layer=layer, scope=Scope.THREAD, owner=key.stream)
            await self.queue.forget(key)
            self.watchers.forget(key)
            self._known.pop(key, None)
            self._unsaved.pop(key, None)

    async def write_turn(
        self,
        lease: SessionLease,
        key: SessionKey,
        conversation: session_stream.StoredConversation,
        made: FinishedTurn,
        codec: Codec,
        *,
        last: bool = False,
    ) -> None:
        """Write what a turn has made behind what a session holds; the `last` write gives the lease up with it."""
        kind = class_of(made.state)
        name = kind.__name__
        stored: object = dict(made.state.view()) if isinstance(made.state, StateBag) else made.state
        before = conversation.states.get(name)
        # An empty bag that was never written is not a state.
        nothing = before is None and isinstance(made.state, StateBag) and not stored
        change = None if nothing else session_stream.state_change(before, stored, version_of(kind), codec)
        states = {} if change is None else {name: change}
        messages = await self._messages_of(key, made)
        took = [each.delivery_id for each in messages if each is not made.queued]
        # A turn that others have written beside has not seen what stands before it now.
        alone = conversation.log.size == made.begun
        seen = made.view if alone else None
        shown, changed = conversation.view, None
        if seen is not None:
            shown = decisive(recorded_of(seen).state)
            changed = view_change(conversation.view, shown)
        record = session_stream.ended(
            made.run_id, made.status, made.items, states, codec,
            branch=made.branch, said=made.said, cut=made.cut, back=made.back, took=took,
            view=changed,
        )  # fmt: skip
        await self.write(lease, key, conversation, [record], codec, items=made.items, last=last)
        conversation.shown = (conversation.view, seen, made.counted if alone else None)
        await self.queue.ack(key, messages)

    async def _messages_of(self, key: SessionKey, made: FinishedTurn) -> Sequence[QueuedMessage]:
        """The messages that a turn has taken."""
        took = [each for each in await self.queue.contained_in(key, made.items) if each.delivery_id != made.delivery]
        if made.queued is None:
            return took
        return [*(each for each in took if each.delivery_id != made.queued.delivery_id), made.queued]

    async def write(
        self,
        lease: SessionLease,
        key: SessionKey,
        conversation: session_stream.StoredConversation,
        records: Sequence[Record],
        codec: Codec,
        *,
        items: Sequence[Item] = (),
        last: bool = False,
    ) -> None:
        """Write at the end of a session, and take it in; the `last` write gives the lease up with it."""
        await lease.commit(await self.planned(lease, key, conversation, records, codec, items), last=last)
        self.keep(key, conversation)

    async def planned(
        self,
        lease: SessionLease,
        key: SessionKey,
        conversation: session_stream.StoredConversation,
        records: Sequence[Record],
        codec: Codec,
        items: Sequence[Item] = (),
    ) -> SessionWrite:
        """What writes at the end of a session."""
        summary = None
        if not conversation.noted:
            summary = dump({"session": list(key.parts), "from": conversation.position})
            # Before the first record, so that no session is in no list.
            await self.backend.put(index_of(key.app, key.user), key.session, b"{}")
        return SessionWrite(lease.appending(records, summary), lease, conversation, codec, items)


async def sessions_of(backend: CheckpointBackend, user: str) -> Sequence[SessionKey]:
    """The sessions of one user that are in a list, of all applications."""
    found: list[SessionKey] = []
    place: tuple[str, ...] | None = None
    while places := await backend.scopes(("sessions",), after=place, limit=1000):
        for place in places:
            _, has_app, app, has_user, whose = place
            if has_user == "user" and whose == user:
                found += await listed_sessions(backend, user, app if has_app == "app" else None)
    return found


async def listed_sessions(backend: CheckpointBackend, user: str | None, app: str | None) -> Sequence[SessionKey]:
    """The sessions of one user in one application, by name."""
    found: list[SessionKey] = []
    after: str | None = None
    while page := await backend.scan(index_of(app, user), after=after):
        found += [SessionKey(user, value.key, app=app) for value in page]
        after = page[-1].key
    return found


def index_of(app: str | None, user: str | None) -> tuple[str, ...]:
    """Where the list of a user's sessions is."""
    # An absent part has its own form, so that it differs from every id.
    return ("sessions", "app" if app else "-", app or "-", "user" if user else "-", user or "-")


def put_view(conversation: session_stream.StoredConversation, scope: ContextScope) -> None:
    """Let a turn go on from how a model was shown the session last.

    In the process that has shown it, what was counted then is not counted again; else it is the same everywhere.
    """
    state, known, counted = conversation.shown or (None, None, None)
    if state is not conversation.view:
        known, counted = None, None
    scope.counted = counted
    if not conversation.view:
        scope.view = known
    elif isinstance(known, Projector):
        scope.view = restored(conversation.view).counting_as(known)
    else:
        scope.view = Recorded(None, conversation.view)


def state_of(conversation: session_stream.StoredConversation, kind: type[T], codec: Codec) -> T | None:
    """The state of a type that a session holds."""
    stored = conversation.states.get(kind.__name__)
    if stored is None:
        return None
    made: T = _made_again(stored, kind, codec)
    return made


def _made_again(stored: session_stream.StoredState, kind: Any, codec: Codec) -> Any:
    tree = state_tree(stored.like, stored.fields)
    if kind is StateBag:
        return StateBag(codec.decode(tree))
    version = version_of(kind)
    if stored.version > version:
        raise errors.SessionLoadError(
            f"the session's {kind.__name__} is of version {stored.version}, and this one is {version}",
            hint="use the newer code",
        )
    if stored.version < version:
        tree = state_tree(stored.like, migrate_fields(kind, stored.fields, stored.version), kind.__name__)
    return decoded(tree, kind, codec)
