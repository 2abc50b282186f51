"""Erasing all that is stored about one user, in a call that can be made again until it has come to its end.

What is found by something else is deleted before that: the memory of a thread before the run that names the thread, the
messages and the memory of a session before the session. So a call that was cut short leaves behind what the next one
needs to find the rest.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from attrs import Factory, define, frozen

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.context.artifacts import ArtifactOwner, ArtifactScope, ArtifactStore, StoredArtifacts, artifacts_of
from noetic_py.context.step import AnyStep, children_of
from noetic_py.core.caches import clear_caches
from noetic_py.core.control import SessionKey, check_callers_id, is_stream
from noetic_py.engine.journaling.fold import OPEN
from noetic_py.engine.layers.handles import Layers, layers_for
from noetic_py.journal.fields import summary_fields
from noetic_py.journal.records import RunBegun, StepFinished
from noetic_py.journal.run_summary import PlainCodec, load_records
from noetic_py.journal.stored import RunEntry
from noetic_py.memory.layer import AnyLayer, answers
from noetic_py.memory.scopes import Owner, Scope, places_of
from noetic_py.runner.runs import all_scopes, clear_scopes, session_in
from noetic_py.runner.stop_requests import withdraw
from noetic_py.sessions.queue import queue_of, receivers
from noetic_py.sessions.store import index_of, sessions_of
from noetic_py.steps.spawn import MemorySpec

if TYPE_CHECKING:
    from noetic_py.runner.registry import Living
    from noetic_py.sessions.store import SessionStore

_PAGE: Final = 1000
_PASSES: Final = 20
_NAMED: Final = 5
_ANY: Final = "-"
_NOTES: Final = "erasure"
_ARTIFACTS: Final[Mapping[Scope, ArtifactScope]] = {
    Scope.USER: "user",
    Scope.THREAD: "session",
    Scope.EXECUTION: "run",
}


@frozen
class ErasureCertificate:
    """What was erased of a user, and where copies may be that the library cannot reach.

    Attributes:
        user_id: The user.
        erased_at: When the last of it was gone, UTC.
        backend: The name of the backend, such as `"sqlite"`.
        removed: How much this call has removed, by kind: `"runs"`, `"sessions"`, `"records"` of their journals,
            `"messages"` that waited for a session, `"memory"` and `"artifacts"` as stored values, and `"passages"` or
            other entries that layers keep in databases of their own. A kind of which there was nothing is left out.
        remaining: Where copies may still be, and what removes them there; a sentence each.
    """

    user_id: str
    erased_at: datetime
    backend: str
    removed: Mapping[str, int]
    remaining: Sequence[str]


@define(eq=False)
class _Found:
    """What belongs to the user at one moment.

    Attributes:
        runs: Their runs.
        sessions: Their sessions, those included of which only a message or a line of a list is there.
        threads: The threads of both.
        alive: What goes on.
        unread: Runs of which it cannot be read whose they are, or in which thread they were.
        unknown: Layers of which the harness has only the names, with the owners for which runs have opened them.
    """

    runs: list[RunEntry] = Factory(list[RunEntry])
    sessions: set[SessionKey] = Factory(set[SessionKey])
    threads: set[str] = Factory(set[str])
    alive: list[str] = Factory(list[str])
    unread: list[str] = Factory(list[str])
    unknown: defaultdict[str, set[str]] = Factory(lambda: defaultdict[str, set[str]](set))


@frozen(eq=False)
class Erasure:
    """Erases one user.

    Attributes:
        user_id: The user.
        thread_ids: Threads of theirs that no stored run may name any more.
        store: The sessions of the harness.
        bundles: Its bundle, and those of sub-agents that it knows.
        artifacts: Its store of artifacts, `None` if it has none.
        living: The runs of the harness: those in progress, and what is remembered of others.
    """

    user_id: str
    thread_ids: Collection[str]
    store: SessionStore
    bundles: Collection[Layers]
    artifacts: ArtifactStore | None
    living: Living

    async def run(self) -> ErasureCertificate:
        """Erase until nothing more is found.

        Raises:
            RunBusy: A run or a turn of the user goes on.
        """
        removed: Counter[str] = Counter()
        for _ in range(_PASSES):
            found, before = await self._find(), removed.total()
            unknown = await self._noted(found.unknown)
            await self._remove(found, removed)
            if removed.total() == before:
                break
        else:
            raise errors.RunBusy(
                f"user {self.user_id!r} goes on writing while they are erased",
                hint="let this user start and send nothing, then erase again",
            )
        # After the last page was read: reading fills them, too.
        self.living.forget_user(self.user_id)
        clear_caches()
        await clear_scopes(self.store.backend, (_NOTES, self.user_id))
        remaining = [each for backend in self._backends for each in await backend.scrub()]
        remaining += [each for layer in self._layers for each in await layer.scrub()]
        described = await self.store.backend.describe()
        unknown_layers = (*_unknown(unknown), *self._of_children())
        elsewhere = (*await self._everyones(), *await self._ownerless(), *unknown_layers, *_elsewhere(found.unread))
        return ErasureCertificate(
            self.user_id,
            self.store.runtime.now(),
            described["backend"],
            {kind: removed[kind] for kind in sorted(removed) if removed[kind]},
            (*dict.fromkeys(remaining), *elsewhere),
        )

    @property
    def _layers(self) -> Sequence[AnyLayer]:
        return [layer for bundle in self.bundles for layer in bundle.by_id.values()]

    @property
    def _backends(self) -> Sequence[CheckpointBackend]:
        """All that keep something: without a backend of its own, a harness has one for sessions and one for layers."""
        known = [self.store.backend, self.store.layer_store]
        if isinstance(self.artifacts, StoredArtifacts) and self.artifacts.backend is not None:
            known.append(self.artifacts.backend)
        return list({id(each): each for each in known}.values())

    async def _everyones(self) -> Sequence[str]:
        """Layers that keep one state for all users, those included that the harness does not have any more."""
        found = {layer.id for layer in self._layers if layer.scope is Scope.GLOBAL}
        for backend in self._backends:
            for place in places_of(Scope.GLOBAL, _ANY):
                found |= {scope[-1] for scope in await all_scopes(backend, place[:-1])}
        return [
            f"layer {layer!r} keeps one state for all users: remove there what it has of this user"
            for layer in sorted(found)
        ]

    def _of_children(self) -> Iterable[str]:
        """Layers of which a child of a run has entries that only its own path leads to."""
        for layer in self._layers:
            if layer.scope is Scope.EXECUTION and answers(type(layer), "erase_owner"):
                yield (
                    f"layer {layer.id!r} keeps what it has for each execution: if it has a database of its own, remove "
                    "there what children of the user's runs have; their ids are digests"
                )

    async def _ownerless(self) -> Sequence[str]:
        """Where values are of runs that were deleted before, and could be of any user."""
        found: list[str] = []
        for backend in self._backends if self.store.durable else ():
            for place in (*places_of(Scope.EXECUTION, _ANY), artifacts_of(ArtifactOwner("run", _ANY))):
                run_ids = {scope[len(place) - 1] for scope in await all_scopes(backend, place[:-1])}
                found += [each for each in run_ids if not await self._is_stored(each)]
        return [
            f"values of run {run_id!r}, which was deleted before, so its owner is not known: backend.remove(scope, key)"
            for run_id in sorted(set(found))
        ]

    async def _is_stored(self, run_id: str) -> bool:
        try:
            return await self.store.backend.entry(run_id) is not None
        except (errors.CorruptRecord, errors.RecordRefused):
            return True

    # -- finding

    async def _find(self) -> _Found:
        """What belongs to the user now.

        Raises:
            RunBusy: Some of it goes on.
        """
        backend, found = self.store.backend, _Found(threads=set(self.thread_ids))
        found.alive += self.living.of_user(self.user_id)
        after: int | None = None
        while page := await backend.list(after=after, limit=_PAGE):
            after = page[-1].cursor
            for entry in page:
                self._sort(entry, found)
        found.sessions.update(await sessions_of(backend, self.user_id))
        found.sessions.update(key for key in await receivers(backend) if key.user == self.user_id)
        found.sessions.update(self.store.cached_of(self.user_id))
        found.alive += [f"a turn of {key.session!r}" for key in found.sessions if self.store.lock.is_locked(key)]
        if found.alive:
            alive = [*dict.fromkeys(found.alive)]
            named = ", ".join(alive[:_NAMED]) + (", ..." if len(alive) > _NAMED else "")
            raise errors.RunBusy(
                f"user {self.user_id!r} cannot be erased while their runs go on: {named}",
                hint="end them (handle.abort(), harness.interrupt(session), harness.runs.complete(run_id, value)) or "
                "wait for their end, then erase again",
            )
        # A thread that a caller has named may be a session of another user.
        sessions = {key.stream for key in found.sessions}
        found.threads = {each for each in found.threads if not is_stream(each)} | sessions
        for entry in found.runs:
            threads = await self._threads_of(entry, found.unread)
            threads = {each for each in threads if each in sessions or not is_stream(each)}
            found.threads |= threads
            for layer in await self._unknown_in(entry, found.unread):
                found.unknown[layer] |= {self.user_id, entry.run_id, *threads}
        return found

    def _sort(self, entry: RunEntry, found: _Found) -> None:
        try:
            if entry.problem is not None:
                raise errors.CorruptRecord(entry.problem)
            user, key = _owner_of(entry)
        except errors.CorruptRecord:
            found.unread.append(entry.run_id)
            return
        if user != self.user_id:
            return
        if entry.held:
            found.alive.append(entry.run_id if key is None else f"a turn of {key.session!r}")
        if key is not None:
            found.sessions.add(key)
        if not is_stream(entry.run_id):
            found.runs.append(entry)

    async def _threads_of(self, entry: RunEntry, unread: list[str]) -> set[str]:
        """The threads in which layers and artifacts may have kept something of a run."""
        threads = {str(summary_fields(entry.summary).get("thread_id") or entry.run_id)}
        try:
            page = await self.store.backend.read(entry.run_id, limit=1)
            for record in load_records(page, PlainCodec(), entry.run_id, 0):
                opening = record.opening if isinstance(record, RunBegun) else None
                if opening is not None and opening.memory is not None and opening.memory.owner:
                    # The memory of a context that was restored has a thread of its own.
                    threads.add(opening.memory.owner)
        except errors.StoreUnavailable:
            raise
        except (errors.CodecError, errors.CheckpointError):
            unread.append(entry.run_id)
        return threads

    async def _unknown_in(self, entry: RunEntry, unread: list[str]) -> set[str]:
        """The layers that a run has opened and of which the harness has only the names."""
        own, *others = [set(bundle.by_id) for bundle in self.bundles]
        unknown: set[str] = set()
        after = 0
        try:
            while page := await self.store.backend.read(entry.run_id, after=after, limit=_PAGE):
                opened = [each for each in page if each.path[-1:] == (OPEN,)]
                for record in load_records(opened, PlainCodec(), entry.run_id, after):
                    names = {name for name, _ in record.memory} if isinstance(record, StepFinished) else set[str]()
                    # The harness's bundle may have changed since; one of a sub-agent is known by all its names.
                    if names not in ([own, *others]) and (len(record.path) > 1 or names - own):
                        unknown |= names - own if len(record.path) == 1 else names
                after += len(page)
        except errors.StoreUnavailable:
            raise
        except (errors.CodecError, errors.CheckpointError):
            unread.append(entry.run_id)
        return unknown

    async def _noted(self, found: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """These layers and owners, and those that this call and earlier ones that were cut short have found.

        They are kept until the end: with the runs goes what says that they were there.
        """
        scope, known = (_NOTES, self.user_id), {layer: set(owners) for layer, owners in found.items()}
        after: str | None = None
        while page := await self.store.backend.scan(scope, after=after):
            for stored in page:
                after = stored.key
                known.setdefault(stored.key, set()).update(json.loads(stored.value))
        for layer in found:
            await self.store.backend.put(scope, layer, json.dumps(sorted(known[layer])).encode())
        return known

    # -- removing

    async def _remove(self, found: _Found, removed: Counter[str]) -> None:
        await self._disown(Scope.USER, self.user_id, removed)
        for thread in sorted(found.threads):
            await self._disown(Scope.THREAD, thread, removed)
        backend = self.store.backend
        for key in sorted(found.sessions, key=lambda key: key.stream):
            removed["messages"] += await clear_scopes(backend, queue_of(key))
            entry = await backend.entry(key.stream)
            listed = await backend.get(index_of(key.app, key.user), key.session)
            removed["sessions"] += entry is not None or listed is not None
            removed["records"] += 0 if entry is None else entry.position
            await self.store.delete(key)
        for run in found.runs:
            await self._disown(Scope.EXECUTION, run.run_id, removed)
            await withdraw(backend, run.run_id)
            await backend.delete(run.run_id)
            self.living.forget(run.run_id)
            removed["runs"] += 1
            removed["records"] += run.position

    async def _disown(self, scope: Scope, owner: str, removed: Counter[str]) -> None:
        """Remove what layers keep for an owner, and the owner's artifacts."""
        for layer in self._layers:
            if layer.scope is scope:
                removed["passages"] += await layer.erase_owner(Owner(scope, owner, layer.id))
        artifacts = ArtifactOwner(_ARTIFACTS[scope], owner)
        for backend in self._backends:
            for place in places_of(scope, owner):
                removed["memory"] += await clear_scopes(backend, place)
            removed["artifacts"] += await clear_scopes(backend, artifacts_of(artifacts))
        if self.artifacts is not None and not isinstance(self.artifacts, StoredArtifacts):
            for name in await self.artifacts.list(artifacts):
                removed["artifacts"] += await self.artifacts.delete(artifacts, name)


def check_owners(user_id: str, thread_ids: Sequence[str]) -> None:
    """Refuse what cannot be a user and their threads.

    Raises:
        ConfigError: The threads are one text; code `"memory-owner"`.
        InvalidId: An id cannot be one.
    """
    check_callers_id(user_id, "user_id")
    if isinstance(thread_ids, str):
        raise errors.ConfigError(
            f"thread_ids={thread_ids!r} is not a valid list of threads; expected several texts",
            code="memory-owner",
            hint=f"thread_ids=[{thread_ids!r}]",
        )
    for thread_id in thread_ids:
        check_callers_id(thread_id, "thread_id")


def _owner_of(entry: RunEntry) -> tuple[object, SessionKey | None]:
    """The user of a run or a session, and the session that it is or is a turn of.

    Raises:
        CorruptRecord: Its summary does not say.
    """
    fields = summary_fields(entry.summary)
    key = session_in(fields)
    return fields.get("user_id") if key is None else key.user, key


def known_bundles(opened: Iterable[Layers], flows: Iterable[AnyStep]) -> Sequence[Layers]:
    """The bundle of a harness and those that its runs have opened, with those of the sub-agents in its flows."""
    bundles, seen, left = list(opened), set[int](), list(flows)
    while left:
        step = left.pop()
        if id(step) not in seen:
            seen.add(id(step))
            left += [child for _, child in children_of(step)]
            if isinstance(step.spec, MemorySpec):
                bundles.append(layers_for(step.spec.memory))
    return [*dict.fromkeys(bundles)]


def _unknown(layers: Mapping[str, Collection[str]]) -> Iterable[str]:
    for layer, owners in sorted(layers.items()):
        ids = ", ".join(map(repr, sorted(owners)))
        yield (
            f"layer {layer!r} is of a bundle that this harness does not know: if it has a database of its own, await "
            f"layer.erase_owner(Owner(layer.scope, id, {layer!r})) with each id of {ids}"
        )


def _elsewhere(unread: Iterable[str]) -> Iterable[str]:
    for run_id in dict.fromkeys(unread):
        yield f"run {run_id!r} cannot be read, so its owner or threads are not known: harness.runs.delete(run_id)"
    yield "memory of other processes and harnesses with this store: erase the user there, too, or end them"
    yield "copies and backups of the store: delete them, or erase the user again after one was restored"
    yield "logs and traces of your programs, and what tools and models were sent: ask those who keep them"
