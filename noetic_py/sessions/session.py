"""`Session`: the public interface of sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, overload

import anyio
from typing_extensions import Unpack

from noetic_py.access import AccessAction, Authorizer, Resource
from noetic_py.context.step import AnyStep, Step, awaited
from noetic_py.core.codec import Codec
from noetic_py.core.control import RunResult
from noetic_py.core.items import Item, Message
from noetic_py.core.state import StateBag
from noetic_py.core.types import M, M_co, R, S, T
from noetic_py.errors import CodecError, ConfigError, RunBusy, SessionSuspended, ShuttingDown

if TYPE_CHECKING:
    from noetic_py.runner.plan import RunOptions
    from noetic_py.runner.registry import RunStream
    from noetic_py.sessions.export import SessionData

from noetic_py.context.step import is_seconds
from noetic_py.core.control import SessionKey
from noetic_py.core.diagnostics import HIDING, must_enter
from noetic_py.sessions.queue import NEXT, Delivery, MessageGone, NothingQueued, QueuedMessage, Sent
from noetic_py.sessions.store import SessionEdit, SessionStore, SessionStream, listed_sessions, state_of

__all__ = ["Delivery", "QueuedMessage", "Sent", "Session", "SessionEdit", "SessionStream", "Sessions"]


@awaited("session")
class Session(Generic[M_co]):
    """One conversation of one user; get it as `harness.session(user, session)`. It holds nothing itself.

    ```python
    session = harness.session("ada", "trip")
    result = await session.run(agent, "Where were we?")
    ```
    """

    def __init__(
        self,
        key: SessionKey,
        run: Callable[..., Awaitable[object]],
        stream: Callable[..., object],
        store: SessionStore,
        access: Authorizer,
    ) -> None:
        self._key = key
        self._run = run
        self._stream = stream
        self._store = store
        self._access = access
        self._resource = Resource.of_session(key)

    @property
    def key(self) -> SessionKey:
        """The session's key."""
        return self._key

    @overload
    async def run(
        self: Session[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> RunResult[R, StateBag]: ...
    @overload
    async def run(
        self: Session[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> RunResult[R, S]: ...
    async def run(self, step: object, input: object, **options: object) -> Any:
        """Do a turn: a run that continues the session's conversation and adds to it.

        Args:
            step: The step.
            input: Its input.
            **options: See [`RunOptions`][noetic_py.runner.plan.RunOptions]. `state=` is what the first turn begins
                with; each later one begins with what the one before has left, and `result.state` is that object.

        Raises:
            RunBusy: The session is in use, and its policy does not wait.
            Overloaded: Too many turns wait for it.
            SessionLoadError: It cannot be read.
            SessionConflict: Another process has written it meanwhile; the error carries the result.
            NoeticError: As of `harness.run`.
        """
        with HIDING:
            return await self._run(step, input, session=self._key, **options)

    @overload
    def stream(
        self: Session[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[R, StateBag]]: ...
    @overload
    def stream(
        self: Session[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[R, S]]: ...
    @must_enter("session.stream(step, input)")
    def stream(self, step: object, input: object, **options: object) -> Any:
        """Do a turn and watch it; errors come out of `stream.result()`."""
        return self._stream(step, input, session=self._key, **options)

    async def send(
        self, message: str | Message, *, deliver: Delivery = "next_turn", delivery_id: str | None = None
    ) -> Sent:
        """Say something to the session, and do not wait for what comes of it.

        The message waits, in the backend when there is one, until a turn has taken it: one that `serve` or `next_turn`
        begins, or, between two rounds of a model, one that goes on.

        Args:
            message: A text, or a message of the user.
            deliver: `"next_turn"`: it is the input of a turn of its own, in the order of arrival. `"between_rounds"`: a
                turn that goes on, in whatever process, reads it before its next round; when it has none, the message is
                delivered as the next turn. `"interrupt"`: the turn that goes on, in whatever process, is interrupted,
                keeps what it has, and the message is the first to be delivered next.
            delivery_id: What it was delivered as; one that was taken, or waits, is not taken a second time.

        Raises:
            ConfigError: It is not a message of a user, or cannot be delivered so; codes `"session-message"` and
                `"session-delivery"`.
            LimitExceeded: As many messages wait as `SessionPolicy.max_queued` says.
            InvalidId: `delivery_id` is not text of 1 to 256 characters.
            ForgedEvent: The message carries what only a run makes.
            CodecError: It cannot be stored.
        """
        actions: Sequence[AccessAction] = ("send", "abort") if deliver == "interrupt" else ("send",)
        await self._access.require(*actions, on=self._resource)
        return await self._store.send(self._key, message, deliver, delivery_id)

    async def queued(self) -> Sequence[QueuedMessage]:
        """The messages that wait, in the order of arrival; what a turn under way has read waits until that has ended.

        Raises:
            CodecError: The stored value is not a message.
        """
        await self._access.require("read", on=self._resource)
        return tuple(await self._store.queue.waiting(self._key))

    @overload
    async def next_turn(
        self: Session[M], step: Step[T, R, M, StateBag], **options: Unpack[RunOptions]
    ) -> RunResult[R, StateBag] | None: ...
    @overload
    async def next_turn(
        self: Session[M], step: Step[T, R, M, S], *, state: S, **options: Unpack[RunOptions]
    ) -> RunResult[R, S] | None: ...
    async def next_turn(self, step: object, **options: object) -> Any:
        """Do the turn of the message that is to be delivered next; `None` when none waits.

        A turn that an earlier process left is resumed. In one process, one caller at a time takes a message.

        Args:
            step: The step; its input is the message, as it was sent.
            **options: As of `run`, but for the ids of the run and of the delivery.

        Raises:
            ConfigError: An id was given; code `"session-delivery"`.
            RunBusy: Another process has the session.
            SessionSuspended: A turn of it waits for an answer.
            NoeticError: As of `run`; the message is taken when its turn has begun, also when that fails.
        """
        # Before the caller learns whether a message waits.
        await self._access.require("run", on=self._resource)
        given = {"run_id", "delivery_id", "session"} & options.keys()
        if given:
            raise ConfigError(
                f"{', '.join(sorted(given))}= is the message's", code="session-delivery", hint="send(..., delivery_id=)"
            )
        with HIDING:
            return await self._next_turn(step, options)

    async def _next_turn(self, step: object, options: Mapping[str, object]) -> object:
        async with self._store.queue.claiming(self._key):
            while await self._store.queue.waiting(self._key):
                try:
                    return await self._run(step, NEXT, session=self._key, **options)
                except MessageGone:
                    continue
                except NothingQueued:
                    break
            return None

    @overload
    async def serve(
        self: Session[M],
        step: Step[T, R, M, StateBag],
        *,
        on_turn: Callable[[RunResult[R, StateBag]], Awaitable[object]] | None = ...,
        poll: float = ...,
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    async def serve(
        self: Session[M],
        step: Step[T, R, M, S],
        *,
        state: S,
        on_turn: Callable[[RunResult[R, S]], Awaitable[object]] | None = ...,
        poll: float = ...,
        **options: Unpack[RunOptions],
    ) -> None: ...
    async def serve(
        self,
        step: AnyStep,
        *,
        on_turn: Callable[[RunResult[Any, Any]], Awaitable[object]] | None = None,
        poll: float = 1.0,
        **options: Any,
    ) -> None:
        """Do a turn for each message that is sent, one after the other, until cancelled or the harness is shut down.

        While another process has the session, or a turn of it waits for an answer, the messages wait.

        Args:
            step: The step; its input is the message, as it was sent.
            on_turn: Told each result.
            poll: Seconds between two looks for messages that other processes have sent; those of this one come at once.
            **options: As of `next_turn`. With `on_error="result"` a turn that has failed is a result like others.

        Raises:
            ConfigError: `poll` is not a number of seconds above 0, or as of `next_turn`; code `"session-delivery"`.
            NoeticError: A turn has failed.
        """
        if not is_seconds(poll) or not poll:
            raise ConfigError(
                f"poll={poll!r} is not a valid poll; expected a number of seconds above 0",
                code="session-delivery",
                hint="poll=1.0",
            )
        queue, lock = self._store.queue, self._store.lock
        while not lock.is_closed:
            with queue.listening(self._key) as woken:
                result: Any = None
                try:
                    with HIDING:
                        result = await self.next_turn(step, **options)
                except (RunBusy, SessionSuspended):
                    pass
                except ShuttingDown:
                    return
                if result is None and not lock.is_closed:
                    with anyio.move_on_after(poll if self._store.durable else None):
                        await woken.wait()
            if result is not None and on_turn is not None:
                await on_turn(result)

    @must_enter("session.watch()")
    def watch(self) -> AbstractAsyncContextManager[SessionStream]:
        """Watch the turns of this harness: `async with session.watch() as stream`, then `stream.text` and others.

        It begins with what is remembered of the turns before, `SessionPolicy.history` events at most, of which
        `stream.missed` have gone; and goes on with what happens, until the block is left.
        """
        return self._watch()

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[SessionStream]:
        await self._access.require("read", on=self._resource)
        with self._store.watchers.watch(self._key) as stream:
            yield stream

    async def items(self) -> Sequence[Item]:
        """A copy of the conversation so far, with open calls closed.

        Raises:
            SessionLoadError: It cannot be read.
        """
        await self._access.require("read", on=self._resource)
        conversation = await self._store.read(self._key)
        return tuple(conversation.log.rendered("interrupted"))

    async def state(self, kind: type[T]) -> T | None:
        """The state of a type that the session holds, `None` when it holds none; a copy.

        Raises:
            SessionLoadError: It cannot be read.
            CodecError: What is stored does not fit the type.
        """
        await self._access.require("read", on=self._resource)
        return state_of(await self._store.read(self._key), kind, Codec([kind]))

    async def interrupt(self, message: str | None = None) -> bool:
        """Stop the current turn in whatever process; see [`Harness.interrupt`][noetic_py.Harness.interrupt]."""
        await self._access.require("abort", on=self._resource)
        return await self._store.interrupt(self._key, message)

    @must_enter("session.edit()")
    def edit(self) -> AbstractAsyncContextManager[SessionEdit]:
        """Change the conversation by hand: `async with session.edit() as edit: edit.items[:2] = []`.

        No turn begins meanwhile. What was there stays in the backend, before the change.

        Raises:
            RunBusy: Another process has the session.
            ConfigError: What is left is not a conversation; code `"session-edit"`.
            ForgedEvent: An item was added that only a run makes.
        """
        return self._edit()

    @asynccontextmanager
    async def _edit(self) -> AsyncGenerator[SessionEdit]:
        # A turn changes the conversation too, and what was there stays in the store.
        await self._access.require("run", on=self._resource)
        async with self._store.edit(self._key) as edit:
            yield edit

    async def clear(self) -> None:
        """Forget what was said, and keep the states; a session that does not exist is not an error.

        Raises:
            RunBusy: Another process has the session.
        """
        async with self.edit() as edit:
            edit.items.clear()

    async def dump(self) -> SessionData:
        """All that is kept of the session, as data: items, states, and what layers of scope thread keep of it.

        `(await session.dump()).to_json()` is a document with a version;
        [`Sessions.load`][noetic_py.sessions.session.Sessions.load] makes a session of it. Of a turn that goes on there
        is nothing in it but what layers have stored already; nor is what a policy of `persist="manual"` has not
        written, which message was delivered as what, nor the runs. A session that does not exist gives one that holds
        nothing.

        Raises:
            SessionLoadError: It cannot be read.
            SessionConflict: It is written all the time.
        """
        from noetic_py.sessions.export import dumped

        await self._access.require("export", on=self._resource)
        return await dumped(self._store, self._key)

    async def save(self) -> int:
        """Write the turns that a policy of `persist="manual"` has not written; returns how many there were."""
        await self._access.require("run", on=self._resource)
        return await self._store.save(self._key)


@awaited("harness.sessions")
class Sessions:
    """The sessions of a harness; get it as `harness.sessions`."""

    def __init__(self, store: SessionStore, access: Authorizer) -> None:
        self._store = store
        self._access = access

    async def list(self, user: str | None, *, app: str | None = None) -> Sequence[SessionKey]:
        """The sessions of one user, by name; `None` is the anonymous user."""
        # Raises what the policy raises: a list leaves out what may not be read, and would be empty instead.
        await self._access.allows("read", Resource(owner=user))
        found = await listed_sessions(self._store.backend, SessionKey(user, "-", app=app).user, app or None)
        return [key for key in found if await self._access.allows("read", Resource.of_session(key))]

    async def exists(self, key: SessionKey) -> bool:
        """Whether anything was ever said in it."""
        await self._access.require("read", on=Resource.of_session(key))
        entry = await self._store.backend.entry(key.stream)
        return entry is not None and entry.position > 0

    async def load(
        self, data: SessionData | str | bytes, *, into: SessionKey | None = None, replace: bool = False
    ) -> SessionKey:
        """Make a session of what [`Session.dump`][noetic_py.Session.dump] gave, here or elsewhere.

        Everything is checked before anything is written. What the data say of layers is what these keep from now on,
        the rules of [`Permissions`][noetic_py.memory.Permissions] and active groups of tools too: take data from
        users who may not decide these, or leave `layers` out of them. States are made of the classes that a turn asks
        for, and checked then.

        Args:
            data: The data, or their document.
            into: Which session to make; the one that the data come from, when left out.
            replace: Whether a session that is there is replaced, with what layers keep of it; its older records stay in
                the store.

        Returns:
            Which session it is now.

        Raises:
            SessionConflict: The session is there and not to be replaced, or has a turn that has not ended.
            SessionLoadError: The data are of a newer version, or hold something of a layer that this harness has not.
            ForgedEvent: An item is one that only a run makes.
            CodecError: They are not data of a session.
            RunBusy: Another process has the session.
        """
        from noetic_py.sessions.export import load_into, target_of

        given = _as_data(data)
        key = target_of(given, into)
        actions: Sequence[AccessAction] = ("run", "delete") if replace else ("run",)
        await self._access.require(*actions, on=Resource.of_session(key))
        await load_into(self._store, key, given, replace=replace)
        return key

    async def delete(self, key: SessionKey) -> None:
        """Forget a session, after the turns that wait for it; one that is not there is no error.

        What the harness's own memory layers of scope thread keep of it goes too. Its runs stay until they are deleted
        or pruned; what they hold of the conversation is what they added.

        Raises:
            RunBusy: Another process has it.
        """
        await self._access.require("delete", on=Resource.of_session(key))
        await self._store.delete(key)


def _as_data(data: SessionData | str | bytes) -> SessionData:
    """Data of a session, read where they are a document.

    Raises:
        SessionLoadError: They are of a newer version.
        CodecError: They are not data of a session.
    """
    from noetic_py.sessions.export import SessionData

    given: object = data
    if isinstance(given, SessionData):
        return given
    if isinstance(given, str | bytes):
        return SessionData.from_json(given)
    raise CodecError(
        f"{given!r:.60} is not a valid SessionData; expected one or its JSON",
        hint="what session.dump() gave, or its to_json()",
    )
