"""The lock of a session, and messages without a caller that waits: kept in order until a turn has taken them.

A message stands in the backend from before `send` returns until the session's stream says which turn has taken it: the
record that a turn begins names the message that it answers, and the record that it ends those that came in between its
rounds. So whatever dies in between, the message is there or it is taken, and never both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from hashlib import sha256
from logging import WARNING
from typing import Any, Final, Literal, TypeAlias, get_args

import anyio
from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.contract import Scope as LeaseScope
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump, parse
from noetic_py.core.control import SessionKey
from noetic_py.core.diagnostics import log
from noetic_py.core.items import Item, Message
from noetic_py.core.log import admit
from noetic_py.core.runtime import Runtime, metrics
from noetic_py.journal.session_stream import StoredConversation
from noetic_py.journal.stored import StoredValue
from noetic_py.journal.values import read_items, write_items
from noetic_py.sessions.policy import SessionPolicy

__all__ = ["NEXT", "Delivery", "MessageGone", "MessageQueue", "NothingQueued", "QueuedMessage", "Sent"]


class _Place:
    """A place in the line."""

    def __init__(self, new: bool) -> None:
        self.new = new
        self.called = anyio.Event()
        self.refused = False


class SessionLock:
    """Lets one in at a time for each key, in the order of arrival; an unused key takes no room."""

    def __init__(self) -> None:
        self._lines: dict[SessionKey, deque[_Place]] = {}
        self.is_closed: bool = False

    def __len__(self) -> int:
        """How many keys are in use."""
        return len(self._lines)

    def is_locked(self, key: SessionKey) -> bool:
        """Whether it is locked."""
        return key in self._lines

    @asynccontextmanager
    async def acquire(self, key: SessionKey, *, limit: int | None = None, new: bool = False) -> AsyncGenerator[None]:
        """Wait for one's turn, and have it for as long as the block lasts.

        Args:
            key: What is to be had.
            limit: How many may wait.
            new: Whether it is new work, which does not begin once the lock is closed.

        Raises:
            Overloaded: So many wait already.
            ShuttingDown: The lock is closed, or was while this waited.
        """
        if new:
            self.check()
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque()
        else:
            if limit is not None and len(line) >= limit:
                raise errors.Overloaded(
                    f"{len(line)} turns of session {key.session!r} wait already",
                    waiting=len(line),
                    hint="try again later, or raise max_waiting=",
                )
            await self._wait(key, line, new=new)
        try:
            yield
        finally:
            self._pass_on(key)

    def check(self) -> None:
        """Refuse new work once the lock is closed.

        Raises:
            ShuttingDown: It is.
        """
        if self.is_closed:
            raise errors.ShuttingDown

    def close(self) -> None:
        """Let no new work begin, and refuse what waits; what is to be written still comes in."""
        self.is_closed = True
        for line in self._lines.values():
            for place in [place for place in line if place.new]:
                line.remove(place)
                place.refused = True
                place.called.set()

    async def _wait(self, key: SessionKey, line: deque[_Place], *, new: bool) -> None:
        place = _Place(new)
        line.append(place)
        measured = metrics()
        if measured is not None:
            measured.waits(1)
        try:
            await place.called.wait()
        except BaseException:
            if place.refused:
                raise
            if place.called.is_set():
                # It has come in the moment in which the wait was cancelled: it is the next one's.
                self._pass_on(key)
            else:
                line.remove(place)
            raise
        finally:
            if measured is not None:
                measured.waits(-1)
        if place.refused:
            raise errors.ShuttingDown

    def _pass_on(self, key: SessionKey) -> None:
        line = self._lines[key]
        if line:
            line.popleft().called.set()
        else:
            del self._lines[key]


Delivery: TypeAlias = Literal["next_turn", "between_rounds", "interrupt"]
"""When a message is delivered to a session."""

NEXT: Final = object()
"""The input of a turn that is to take the next message."""

_IDS: Final = "queued_"
"""The prefix of the ids of items that were sent this way."""
_MAX_BYTES: Final = 32 * 1024 * 1024
_MAX_ID: Final = 256


class NothingQueued(Exception):
    """There was no message left when it was the turn's turn."""


class MessageGone(Exception):
    """A message was taken by a run that is not there any more."""


@frozen
class QueuedMessage:
    """A message that waits for a session.

    Attributes:
        delivery_id: What it was delivered as; made when left out.
        deliver: When it is to be delivered.
        message: What was sent, a text or a `Message`.
    """

    delivery_id: str
    deliver: Delivery
    message: str | Message
    key: str = ""
    version: int = 0

    @property
    def item(self) -> Message:
        """The item of a message in a conversation; its id is unique."""
        message = Message.user(self.message) if isinstance(self.message, str) else self.message
        return evolve(message, id=_IDS + sha256(self.delivery_id.encode(errors="surrogatepass")).hexdigest()[:32])


@frozen
class Sent:
    """The outcome of a sent message.

    Attributes:
        delivery_id: What it was delivered as.
        duplicate: Whether it was there already, or was taken, so that this one was dropped.
        interrupted: Whether a turn was interrupted because of it.
        durable: Whether it survives this process: the harness has a backend.
    """

    delivery_id: str
    duplicate: bool
    interrupted: bool
    durable: bool


class MessageQueue:
    """The messages that wait for the sessions of one harness.

    Args:
        backend: Where they are kept.
        runtime: Where ids come from.
        policy: How many may wait.
        durable: Whether the backend is there for longer than the harness.
    """

    def __init__(self, backend: CheckpointBackend, runtime: Runtime, policy: SessionPolicy, *, durable: bool) -> None:
        self._backend = backend
        self._runtime = runtime
        self._policy = policy
        self._durable = durable
        self._senders = SessionLock()
        self._claims = SessionLock()
        # Messages that a turn received and persist="manual" has not written.
        self._reserved: set[tuple[SessionKey, str]] = set()
        # The messages that running turns answer.
        self._answered: dict[SessionKey, set[str]] = {}
        self._listening: dict[SessionKey, list[anyio.Event]] = {}

    # -- sending

    async def send(
        self,
        key: SessionKey,
        message: str | Message,
        deliver: Delivery,
        delivery_id: str | None,
        read: Callable[[SessionKey], Awaitable[StoredConversation]],
    ) -> QueuedMessage | None:
        """Put a message at the end of the line; `None` when it is there, or was taken.

        Raises:
            ConfigError: It is not valid, or cannot be delivered so.
            LimitExceeded: So many wait that there is no place.
        """
        self._check(message, deliver, delivery_id)
        queued = QueuedMessage(delivery_id or self._runtime.new_id(), deliver, message)
        async with self._senders.acquire(key):
            waiting = await self.waiting(key)
            # In this order: what is taken is written down before it is removed.
            known = {each.delivery_id for each in waiting}
            if delivery_id is not None and (delivery_id in known or delivery_id in (await read(key)).delivered):
                return None
            if len(waiting) >= self._policy.max_queued:
                raise errors.LimitExceeded(
                    f"messages that wait for session {key.session!r}",
                    self._policy.max_queued,
                    hint="serve the session, try again later, or raise max_queued=",
                )
            await self._put(key, queued, 1 + (int(waiting[-1].key) if waiting else 0))
        self.wake(key)
        return queued

    async def _put(self, key: SessionKey, queued: QueuedMessage, number: int) -> None:
        fields = {"d": queued.delivery_id, "m": queued.deliver, "i": write_items((queued.item,), Codec())}
        fields["to"] = list(key.parts)
        if isinstance(queued.message, str):
            fields["text"] = queued.message
        while True:
            try:
                await self._backend.put(queue_of(key), f"{number:020d}", dump(fields), expected=0)
            except errors.VersionConflict:
                # Another process sends as well.
                number += 1
            else:
                return

    def _check(self, message: object, deliver: object, delivery_id: object) -> None:
        if self._policy.lock == "none":
            raise errors.ConfigError(
                'messages are delivered in order, which needs a lock: with lock="none" turns are not in order',
                code="session-delivery",
                hint='SessionPolicy(lock="queue")',
            )
        if deliver not in get_args(Delivery):
            raise errors.ConfigError(
                f"deliver={deliver!r} is unknown", code="session-delivery", hint=", ".join(get_args(Delivery))
            )
        if not isinstance(message, str) and not (isinstance(message, Message) and message.role == "user"):
            raise errors.ConfigError(
                f"{type(message).__name__} is not a valid message of a user; expected text or a Message of role user",
                code="session-message",
                hint="a text, or Message.user(...)",
            )
        if isinstance(message, Message):
            admit((message,), entry="session")
        if delivery_id is not None and not (isinstance(delivery_id, str) and 0 < len(delivery_id) <= _MAX_ID):
            raise errors.InvalidId(
                f"delivery_id= is not a valid id; expected a text of 1 to {_MAX_ID} characters",
                hint="the id that the queue gives it",
            )

    # -- looking

    async def waiting(self, key: SessionKey) -> list[QueuedMessage]:
        """The messages that are not taken yet, by their order of arrival; those of a turn under way among them.

        Raises:
            CodecError: The stored value is not a message.
        """
        found: list[QueuedMessage] = []
        after: str | None = None
        while page := await self._backend.scan(queue_of(key), after=after):
            found += [_read(value) for value in page]
            after = page[-1].key
        return found

    async def steering(self, key: SessionKey) -> Sequence[Message]:
        """The new messages for a running turn before its next round."""
        its_own = self._answered.get(key, ())
        waiting = [each for each in await self.waiting(key) if each.delivery_id not in its_own]
        return [each.item for each in waiting if each.deliver == "between_rounds"]

    async def claim(self, key: SessionKey, conversation: StoredConversation) -> QueuedMessage | None:
        """The message that the next turn answers: of a turn that was left, of an interrupt, or the oldest."""
        left: list[QueuedMessage] = []
        for each in await self.waiting(key):
            if (key, each.delivery_id) in self._reserved:
                continue
            if self._is_taken(each, conversation):
                # The process that had taken it died before it was removed.
                await self.ack(key, [each])
            else:
                left.append(each)
        open_turn = None if conversation.open is None else conversation.open.delivery_id
        left.sort(key=lambda each: (each.delivery_id != open_turn, each.deliver != "interrupt"))
        return left[0] if left else None

    def _is_taken(self, queued: QueuedMessage, conversation: StoredConversation) -> bool:
        run_id = conversation.delivered.get(queued.delivery_id)
        if run_id is None:
            return False
        if queued.delivery_id in conversation.taken:
            return True
        if conversation.open is not None and conversation.open.run_id == run_id:
            return False
        if not self._durable:
            return True
        # A turn that was left, or shut down, goes on when its message comes again.
        shut = conversation.shut is not None and conversation.shut.run_id == run_id
        unfinished = conversation.unfinished.get(run_id)
        return not shut and (unfinished is None or unfinished[2] == "suspended")

    async def contained_in(self, key: SessionKey, items: Iterable[Item]) -> Sequence[QueuedMessage]:
        """Those among the messages that a turn's items hold."""
        ids = {item.id for item in items if item.id.startswith(_IDS)}
        return [each for each in await self.waiting(key) if each.item.id in ids] if ids else ()

    # -- taking

    async def ack(self, key: SessionKey, messages: Iterable[QueuedMessage]) -> None:
        """Forget messages of which the session says that they are taken."""
        for queued in messages:
            try:
                await self._backend.remove(queue_of(key), queued.key, expected=queued.version)
            except errors.VersionConflict:
                # It was removed, and the place is another one's.
                pass
            except errors.NoeticError as error:
                # It is found to be taken the next time.
                log(
                    "sessions",
                    WARNING,
                    "a message that session %r has taken was not removed yet",
                    key.session,
                    error=error,
                )
            self._reserved.discard((key, queued.delivery_id))

    def reserve(self, key: SessionKey, messages: Iterable[QueuedMessage]) -> None:
        """Lock the messages of a turn that is not written yet."""
        self._reserved.update((key, each.delivery_id) for each in messages)

    async def forget(self, key: SessionKey) -> None:
        """Forget all messages of a session."""
        for each in await self.waiting(key):
            await self._backend.remove(queue_of(key), each.key)
        self._reserved = {each for each in self._reserved if each[0] != key}

    @contextmanager
    def answering(self, key: SessionKey, ids: set[str]) -> Generator[None]:
        """A turn goes on that is the answer to these, so that they do not come in between its rounds as well."""
        self._answered[key] = ids
        try:
            yield
        finally:
            del self._answered[key]

    def claiming(self, key: SessionKey) -> AbstractAsyncContextManager[None]:
        """Let one at a time take messages."""
        return self._claims.acquire(key)

    # -- waiting

    @contextmanager
    def listening(self, key: SessionKey) -> Generator[anyio.Event]:
        """The event that is set when there may be work."""
        event = anyio.Event()
        events = self._listening.setdefault(key, [])
        events.append(event)
        try:
            yield event
        finally:
            events.remove(event)
            if not events:
                self._listening.pop(key, None)

    def wake(self, key: SessionKey | None = None) -> None:
        """There may be something to do, in one session or in all."""
        for each in list(self._listening) if key is None else [key]:
            for event in self._listening.get(each, ()):
                event.set()


_QUEUES: Final = "session queue"


def queue_of(key: SessionKey) -> LeaseScope:
    """Where the messages are that wait for a session."""
    return (_QUEUES, key.stream)


async def receivers(backend: CheckpointBackend) -> Sequence[SessionKey]:
    """The sessions for which messages wait; one may have been sent before anything was said in a session.

    Raises:
        CodecError: A message does not say whose it is.
    """
    found: list[SessionKey] = []
    place: LeaseScope | None = None
    while places := await backend.scopes((_QUEUES,), after=place):
        for place in places:
            for value in await backend.scan(place):
                found += _receiver(value)
    return found


def _receiver(value: StoredValue) -> Sequence[SessionKey]:
    fields: Any = parse(value.value, _MAX_BYTES, "message size")
    try:
        # Messages of earlier releases do not say for whom they are.
        parts = fields.get("to")
        return () if parts is None else [SessionKey(parts[1], parts[2], app=parts[0])]
    except (LookupError, TypeError, AttributeError, errors.InvalidId) as error:
        raise errors.CodecError(f"is not a valid receiver: {error}", where=f"message {value.key}") from error


def _read(value: StoredValue) -> QueuedMessage:
    fields: Any = parse(value.value, _MAX_BYTES, "message size")
    try:
        [item] = read_items(fields["i"], Codec())
        message, delivery_id, deliver = fields.get("text", item), fields["d"], fields["m"]
        if not isinstance(item, Message) or not isinstance(message, (str, Message)):
            raise TypeError("a message is expected")
        if not isinstance(delivery_id, str) or deliver not in get_args(Delivery):
            raise TypeError("an id and a way of delivery are expected")
        return QueuedMessage(delivery_id, deliver, message, value.key, value.version)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise errors.CodecError(f"is not a valid message: {error}", where=f"message {value.key}") from error
