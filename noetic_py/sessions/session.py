"""What users have of sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import Unpack

from noetic_py._types import M, M_co, R, S, T
from noetic_py.codec import Codec
from noetic_py.control import RunResult
from noetic_py.errors import CodecError
from noetic_py.items import Item
from noetic_py.state import StateBag

if TYPE_CHECKING:
    from noetic_py.options import RunOptions
    from noetic_py.sessions.data import SessionData
    from noetic_py.steps.step import Step
    from noetic_py.streams import RunStream

from noetic_py.sessions.desk import Desk, SessionEdit, state_of
from noetic_py.sessions.keys import SessionKey

__all__ = ["Session", "SessionEdit", "Sessions", "as_data"]


class Session(Generic[M_co]):
    """One conversation of one user; get it as `harness.session(user, session)`. It holds nothing itself.

    ```python
    session = harness.session("ada", "trip")
    result = await session.run(agent, "Where were we?")
    ```
    """

    def __init__(
        self, key: SessionKey, run: Callable[..., Awaitable[Any]], stream: Callable[..., Any], desk: Desk
    ) -> None:
        self._key = key
        self._run = run
        self._stream = stream
        self._desk = desk

    @property
    def key(self) -> SessionKey:
        """Whose, and which."""
        return self._key

    @overload
    async def run(
        self: Session[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> RunResult[R, StateBag]: ...
    @overload
    async def run(
        self: Session[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> RunResult[R, S]: ...
    async def run(self, step: Any, input: Any, **options: Any) -> Any:
        """Do a turn: a run that goes on from what the session holds, and adds to it what it makes.

        Args:
            step: The step.
            input: Its input.
            **options: See [`RunOptions`][noetic_py.RunOptions]. `state=` is what the first turn begins with; each later
                one begins with what the one before has left, and `result.state` is that object.

        Raises:
            RunBusy: The session is in use, and its policy does not wait.
            Overloaded: Too many turns wait for it.
            SessionLoadError: It cannot be read.
            SessionConflict: Somebody else has written it meanwhile; the error carries the result.
            NoeticError: As of `harness.run`.
        """
        return await self._run(step, input, session=self._key, **options)

    @overload
    def stream(
        self: Session[M], step: Step[T, R, M, StateBag], input: T, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[R, StateBag]]: ...
    @overload
    def stream(
        self: Session[M], step: Step[T, R, M, S], input: T, *, state: S, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[R, S]]: ...
    def stream(self, step: Any, input: Any, **options: Any) -> Any:
        """Do a turn and watch it; errors come out of `stream.result()`."""
        return self._stream(step, input, session=self._key, **options)

    async def items(self) -> Sequence[Item]:
        """What was said so far, calls that were left open closed; a copy.

        Raises:
            SessionLoadError: It cannot be read.
        """
        conversation = await self._desk.read(self._key)
        return tuple(conversation.log.rendered("interrupted"))

    async def state(self, kind: type[T]) -> T | None:
        """The state of a type that the session holds, `None` when it holds none; a copy.

        Raises:
            SessionLoadError: It cannot be read.
            CodecError: What is stored does not fit the type.
        """
        return state_of(await self._desk.read(self._key), kind, Codec([kind]))

    def interrupt(self, message: str | None = None) -> bool:
        """Stop the turn that goes on in this harness; see [`Harness.interrupt`][noetic_py.Harness.interrupt]."""
        return self._desk.interrupt(self._key, message)

    def edit(self) -> AbstractAsyncContextManager[SessionEdit]:
        """Change the conversation by hand: `async with session.edit() as edit: edit.items[:2] = []`.

        No turn begins meanwhile. What was there stays in the backend, before the change.

        Raises:
            RunBusy: Another process has the session.
            ConfigError: What is left is no conversation; code `"session-edit"`.
            ForgedEvent: An item was added that only a run makes.
        """
        return self._desk.edit(self._key)

    async def clear(self) -> None:
        """Forget what was said, and keep the states; a session that does not exist is no error.

        Raises:
            RunBusy: Another process has the session.
        """
        async with self.edit() as edit:
            edit.items.clear()

    async def dump(self) -> SessionData:
        """All that is kept of the session, as data: items, states, and what layers of scope thread keep of it.

        `(await session.dump()).to_json()` is a document with a version;
        [`Sessions.load`][noetic_py.Sessions.load] makes a session of it. Of a turn that goes on there is nothing in it
        but what layers have stored already; nor is what a policy of `persist="manual"` has not written, which message
        was delivered as what, nor the runs. A session that does not exist gives one that holds nothing.

        Raises:
            SessionLoadError: It cannot be read.
            SessionConflict: It is written all the time.
        """
        from noetic_py.sessions.moving import dumped

        return await dumped(self._desk, self._key)

    async def save(self) -> int:
        """Write the turns that a policy of `persist="manual"` has not written; returns how many there were."""
        return await self._desk.save(self._key)


class Sessions:
    """The sessions of a harness; get it as `harness.sessions`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def list(self, user: str | None, *, app: str | None = None) -> Sequence[SessionKey]:
        """The sessions of one user, by name; `None` is the user who is nobody in particular."""
        return await self._desk.known_to(SessionKey(user, "-", app=app).user, app or None)

    async def exists(self, key: SessionKey) -> bool:
        """Whether anything was ever said in it."""
        entry = await self._desk.backend.entry(key.stream)
        return entry is not None and entry.position > 0

    async def load(
        self, data: SessionData | str | bytes, *, into: SessionKey | None = None, replace: bool = False
    ) -> SessionKey:
        """Make a session of what [`Session.dump`][noetic_py.Session.dump] gave, here or elsewhere.

        Everything is checked before anything is written. What the data say of layers is what these keep from now on,
        the rules of [`Permissions`][noetic_py.memory.Permissions] and active groups of tools too: take data from
        nobody who may not decide these, or leave `layers` out of them. States are made of the classes that a turn asks
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
            CodecError: They are no data of a session.
            RunBusy: Another process has the session.
        """
        from noetic_py.sessions.moving import load_into, target_of

        given = as_data(data)
        key = target_of(given, into)
        await load_into(self._desk, key, given, replace=replace)
        return key

    async def delete(self, key: SessionKey) -> None:
        """Forget a session, after the turns that wait for it; one that is not there is no error.

        What the harness's own memory layers of scope thread keep of it goes too. Its runs stay until they are deleted
        or pruned; what they hold of the conversation is what they added.

        Raises:
            RunBusy: Another process has it.
        """
        await self._desk.delete(key)


def as_data(data: SessionData | str | bytes) -> SessionData:
    """Data of a session, read where they are a document.

    Raises:
        SessionLoadError: They are of a newer version.
        CodecError: They are no data of a session.
    """
    from noetic_py.sessions.data import SessionData

    given: object = data
    if isinstance(given, SessionData):
        return given
    if isinstance(given, str | bytes):
        return SessionData.from_json(given)
    raise CodecError(f"{given!r:.60} is no data of a session", hint="what session.dump() gave, or its to_json()")
