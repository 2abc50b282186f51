"""The stored state of one execution's layers: loading, mirroring, and their own steps."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from operator import is_
from types import GenericAlias
from typing import TYPE_CHECKING, Any, get_origin

import anyio
from attrs import frozen

from noetic_py.context.step import AnyStep, Step
from noetic_py.context.step import frame as frame_name
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import digest_of, dump, inside
from noetic_py.core.reducers import Conflict
from noetic_py.core.types import Version
from noetic_py.core.values import alike, copy_private, is_dict, is_list
from noetic_py.engine.execute import execute
from noetic_py.engine.fingerprint import types_in
from noetic_py.engine.frame import Frame
from noetic_py.engine.journaling.fold import below, lasting, placed
from noetic_py.engine.kind import BodySegment
from noetic_py.engine.layers.handles import NO_LAYERS, Live
from noetic_py.engine.layers.lifecycle import report_failure
from noetic_py.engine.layers.state_codec import StateCodec
from noetic_py.engine.layers.versions import NEWER, is_older, migrated, newest
from noetic_py.engine.merge import CONFLICT, conflict, hint_of, merged
from noetic_py.errors import CodecError, ConfigError, NoeticError, VersionConflict
from noetic_py.journal.changes import apply_layer_states
from noetic_py.journal.records import Segment, StepFinished, StepStopped
from noetic_py.memory.binding import Draft, Other
from noetic_py.memory.functions import Called
from noetic_py.memory.layer import AnyLayer, Returned, hooks_of, merges
from noetic_py.memory.scopes import LayerStorage, Scope, owner_of
from noetic_py.steps.model import call_model
from noetic_py.steps.spawn import MemorySpec

if TYPE_CHECKING:
    from noetic_py.core.state import LayerStates
    from noetic_py.engine.state import Execution
    from noetic_py.models.model import Model


@frozen(eq=False)
class _Mirrored:
    """A layer's state as this run and its store had it when they last met.

    Attributes:
        mine: The run's.
        theirs: The store's; another one, when another run has written, too.
        version: Of the value in the store, 0 where there is none.
        written: Its writer, a run, and below it a line for each of the latest executions whose changes are in it, with
            a digest of the state that each had then, or the position of its journal up to which they are.
    """

    mine: object
    theirs: object
    version: int
    written: str = ""


_NEVER = object()
_ATTEMPTS = 5
# At most this many calls between two visits to the store are repeated; earlier ones are not.
_CALLS = 200
# A stored state names the versions that this many executions had when they wrote it.
_MARKS = 8
_LINE = "\n"
_POSITION = "@"
# A run that goes on looks through so many of its states for the one that it had mirrored.
_LOOKED_THROUGH = 100
# The records that say how layers' states were changed.
_CHANGES = (Segment, StepFinished, StepStopped)


class StoredLayers:
    """The store's side of an execution's layers.

    A state is kept under a key that names the form's version, and with it its last writer: a run that goes on after a
    crash knows by that whether the store has what it wrote itself.
    """

    __slots__ = ("_calls", "_lock", "_mirrored", "_x", "copiers", "first", "parents", "recalled", "warned")

    def __init__(self, x: Execution) -> None:
        self._x = x
        self._lock = anyio.Lock()
        self._mirrored: dict[str, _Mirrored] = {}
        # How states are copied, by layer; and the calls that have changed them since they were mirrored last.
        self.copiers: dict[str, tuple[Any, Callable[[Any], Any]]] = {}
        self._calls: dict[str, deque[Called]] = {}
        # The states that the execution began with.
        self.first: dict[str, object] = {}
        # The last recall of layers that recall only at times, by layer.
        self.recalled: dict[str, object] = {}
        # For a child: the states that its parent's layers had when it last read them.
        self.parents: dict[str, object] = dict(x.born)
        self.warned: set[str] = set()

    # -- the store

    def storage(self, layer: AnyLayer, namespace: str = "data") -> LayerStorage:
        """The layer's part of the store.

        Raises:
            ConfigError: Its scope is a person's, and the run has none; code `"layer-scope"`.
        """
        x = self._x
        if layer.scope is Scope.EXECUTION:
            return self._storage_of(layer, namespace, _place_of(x), run_id=x.run_id)
        return self._storage_of(layer, namespace, self._owner_of(layer))

    def _owner_of(self, layer: AnyLayer) -> str:
        return owner_of(layer.scope, layer=layer.id, thread_id=self._thread, user_id=self._x.user_id)

    @property
    def _thread(self) -> str:
        """The owner of memory of scope thread: the run's thread, or a context that was forked."""
        return self._x.run.memory.owner or self._x.thread_id

    def _storage_of(self, layer: AnyLayer, namespace: str, owner: str, *, run_id: str = "") -> LayerStorage:
        backend = self._x.run.resources.storage
        codec = self._state_codec_of(layer, owner) if namespace == "state" else self._codec_of(layer)
        return LayerStorage(
            backend, codec, layer=layer.id, scope=layer.scope, owner=owner, namespace=namespace, run_id=run_id
        )

    def _codec_of(self, layer: AnyLayer) -> Codec:
        """The codec of a layer's values, which knows the classes that its state's type names."""
        known = self._x.layers.codecs
        codec = known.get(layer.id)
        if codec is None:
            codec = known[layer.id] = Codec(types_in(layer.state_type))
        return codec

    def _state_codec_of(self, layer: AnyLayer, owner: str) -> StateCodec:
        """The codec of a layer's state; of the owners that have used it last it knows what is stored."""
        known, key = self._x.layers.state_codecs, (layer.id, owner)
        found = known.get(key)
        if found is not None:
            return found
        return known.put(key, StateCodec(self._codec_of(layer), self._x.layers.state_type(layer.id)))

    async def load(self, layer: AnyLayer) -> object:
        """The state that the store has of a layer, or its first one.

        Raises:
            CodecError: What is stored does not fit the state's type, and nothing makes it fit.
            ConfigError: It was stored by a newer version, or by an older one that nothing migrates.
            StoreUnavailable: The store does not answer.
        """
        if layer.scope is Scope.EXECUTION:
            return _first_of(layer)
        found, version, written = await self._stored(layer, self.storage(layer, "state"))
        state = await self._begun_apart(layer, found)
        if state is _NEVER:
            state = _first_of(layer) if found is _NEVER else found
            if self._state_codec_of(layer, self._owner_of(layer)).is_fixed(state):
                self.copiers[layer.id] = (state, type(state))
            self._mirrored[layer.id] = _Mirrored(state, found, version, written)
        else:
            self._mirrored[layer.id] = _Mirrored(state, _NEVER, -1)
        return state

    async def _begun_apart(self, layer: AnyLayer, there: object) -> object:
        """The state that goes with a context which has gone apart from its thread; `_NEVER` where the store says it."""
        memory = self._x.run.memory
        if layer.scope is not Scope.THREAD or memory.owner is None:
            return _NEVER
        if there is _NEVER and memory.source is not None:
            await self._copy_values(layer, memory.source)
        copy = memory.states.get(layer.id) if self._x.layers is self._x.run.resources.layers else None
        if copy is not None:
            codec, kind = self._codec_of(layer), self._x.layers.state_type(layer.id)
            tree = copy.value if copy.stored else codec.encode(copy.value)
            if is_older(layer, copy.version):
                return migrated(layer, codec, tree, copy.version, kind)
            return codec.decode(tree, kind)
        if there is not _NEVER or memory.source is None:
            return _NEVER
        return (await self._stored(layer, self._storage_of(layer, "state", memory.source)))[0]

    async def _copy_values(self, layer: AnyLayer, source: str) -> None:
        """Give a layer the values that it keeps for another owner, unless it has some of its own."""
        mine, after = self.storage(layer), None
        if await mine.scan(limit=1):
            return
        while page := await self._storage_of(layer, "data", source).scan(after=after):
            for after, value in page:
                await mine.put(after, value)

    async def _stored(self, layer: AnyLayer, storage: LayerStorage) -> tuple[object, int, str]:
        """The stored state of a layer, its version, and the run that wrote it."""
        kind: object = self._x.layers.state_type(layer.id)
        own = state_key(layer.schema_version)
        written: object = GenericAlias(tuple, (str, kind))
        found, place = await storage.get_versioned(own, written)
        version = newest([version_of_key(key) for key in await storage.keys()])
        if version is None:
            return _NEVER, 0, ""
        key = state_key(version)
        if is_older(layer, version):
            stored = await storage.get_stored(key)
            if stored is not None:
                written_by, tree = written_state(stored, f"{layer.id}: {key}")
                state = migrated(layer, self._codec_of(layer), tree, version, kind)
                # Its last writer is known by the state that it had then, which is another one now.
                return state, 0, written_by.replace(digest_of(dump(tree)), self._digest(layer, state), 1)
        elif key != own:
            # The same version in other words, which is written in its own from now on.
            found, place = await storage.get(key, written), 0
        # Another run may have written or removed it between two looks.
        return await self._stored(layer, storage) if found is None else (found[1], place, found[0])

    def is_behind(self, layer_states: LayerStates) -> bool:
        """Whether the store has not got all of these."""
        return any(self._is_behind(layer, layer_states) for layer in self._x.layers.by_id.values())

    def _is_behind(self, layer: AnyLayer, layer_states: LayerStates) -> bool:
        if layer.scope is Scope.EXECUTION or layer.id not in layer_states:
            return False
        known = self._mirrored.get(layer.id)
        return known is None or known.mine is not layer_states[layer.id]

    async def flush(self, frame: Frame) -> None:
        """Mirror the states that the store does not have yet; a failing store is logged, and raises nothing."""
        root = self._x.frame
        if root is not None and frame.scope is not root.scope:
            # A path's states are its own until the paths are joined.
            return
        layer_states = frame.scope.layer_states
        for layer in self._x.layers.by_id.values():
            if self._is_behind(layer, layer_states):
                self._require_readable(frame, layer, layer_states[layer.id])
                try:
                    await self._mirror(frame, layer, layer_states[layer.id])
                except NoeticError as error:
                    if isinstance(error, ConfigError) and error.code in (CONFLICT, NEWER):
                        raise
                    report_failure(frame, layer, "mirror", error)

    def _require_readable(self, frame: Frame, layer: AnyLayer, state: object) -> None:
        """Refuse a state that could be stored, and that no run could begin with.

        Raises:
            CodecError: It is one.
        """
        known, codec = self._mirrored.get(layer.id), self._codec_of(layer)
        kind = self._x.layers.state_type(layer.id)
        new = state if known is None else _new_in(state, known.mine, kind)
        try:
            if new is not None:
                codec.require_readable(codec.encode(new), kind)
        except CodecError as error:
            raise inside(error, f"memory.{layer.id}").at(frame.at) from error

    async def _mirror(self, frame: Frame, layer: AnyLayer, state: object) -> None:
        storage = self.storage(layer, "state")
        known = self._mirrored.get(layer.id)
        if known is None:
            known = _Mirrored(state, _NEVER, -1)
        for _ in range(_ATTEMPTS):
            if known.version < 0:
                theirs, version, written = await self._stored(layer, storage)
                mine = self._met_by(layer, known, state, theirs, written)
                known = _Mirrored(mine, theirs, version, written)
            # Another run may have written meanwhile: what both have changed is kept.
            alone = known.theirs in (_NEVER, known.mine)
            value = state if alone else await self._joined(frame, layer, known, state)
            if self._is_stored(layer, value, layer.initial() if known.theirs is _NEVER else known.theirs):
                # A reader of the store has this already; a run that goes on cannot tell by more than that.
                self._met(layer, _Mirrored(state, known.theirs, known.version, known.written))
                return
            try:
                written = self._signed(layer, state, known.written)
                version = await self._write(layer, storage, value, written, known.version)
            except VersionConflict:
                known = _Mirrored(known.mine, known.theirs, -1)
                continue
            self._met(layer, _Mirrored(state, value, version, written))
            return
        raise VersionConflict(f"layer {layer.id!r}: others write its stored state all the time")

    def _met_by(self, layer: AnyLayer, known: _Mirrored, state: object, theirs: object, written: str) -> object:
        """The state of this execution that the store's state includes: what it has changed since is to be added."""
        writer, *marks = written.split(_LINE)
        ours = writer == self._x.run_id
        if ours and not marks:
            return theirs
        place = _place_of(self._x)
        mark = _mark_of(place, marks)
        if layer.id in self._mirrored and (mark is not None or not ours):
            if mark is None or mark == self._mark(place, layer, known.mine):
                return known.mine
            # A fork of this run has stored more of it.
            at = self._marked(layer, mark, None)
            return known.mine if at is _NEVER else at
        begun = self.first.get(layer.id, self._x.born.get(layer.id, state))
        if mark is not None:
            # In another process. Where no other has written since, all that is stored is what it had.
            if mark is marks[0] and mark == self._mark(place, layer, theirs):
                return theirs
            if mark == self._mark(place, layer, state):
                # The journal does not have a state that a process has stored and not come to record.
                return state
            at = self._marked(layer, mark, None)
            return begun if at is _NEVER else at
        for run_id, end in reversed(self._x.run.forked):
            mark = _mark_of(_place_of(self._x, run_id), marks)
            if mark is not None:
                # Of what the other run has stored, this one knows what is from before the fork.
                at = self._marked(layer, mark, end)
                return self._states_at(end, lasting).get(layer.id, begun) if at is _NEVER else at
        # A child that has written began with what this execution had.
        return begun

    def _marked(self, layer: AnyLayer, mark: str, end: int | None) -> object:
        """The state that a mark stands for; `_NEVER` where the journal has none of it up to a position."""
        what = mark.rpartition(" ")[2]
        if what.startswith(_POSITION):
            position = int(what.removeprefix(_POSITION))
            known = end is None or position <= end
            return self._states_at(position, lasting).get(layer.id, _NEVER) if known else _NEVER
        run = self._x.run
        last = run.position if end is None else min(end, run.position)
        records = placed(run.journal_to(last))
        changed = [at + 1 for at, record in records if isinstance(record, _CHANGES) and record.memory]
        for at in [last, *reversed(changed[-_LOOKED_THROUGH:])]:
            layer_states = self._states_at(at)
            if layer.id in layer_states and self._digest(layer, layer_states[layer.id]) == what:
                return layer_states[layer.id]
        return _NEVER

    def _states_at(self, position: int, changes: Callable[..., Sequence[BodySegment]] = below) -> LayerStates:
        """The execution's states when the journal had so many records, with all changes or with those that last."""
        x, root = self._x, self._x.frame
        run, layer_states = x.run, x.born
        if run.store is not None and root is not None:
            for segment in changes(run.journal_to(position), run.kinds, root.at):
                layer_states = apply_layer_states(layer_states, segment.memory, x.layers.state_type, run.store.codec)
        return layer_states

    def _mark(self, place: str, layer: AnyLayer, state: object) -> str:
        return f"{place} {self._digest(layer, state)}"

    def _digest(self, layer: AnyLayer, state: object) -> str:
        return digest_of(self._form(layer, state))

    def _form(self, layer: AnyLayer, state: object) -> bytes:
        if layer.scope is Scope.EXECUTION:
            return self._codec_of(layer).dumps(state)
        return self._state_codec_of(layer, self._owner_of(layer)).form(state)

    def _signed(self, layer: AnyLayer, state: object, before: str) -> str:
        """The writer of a state, and the executions whose changes are in it, with how far these are."""
        marks = before.split(_LINE)[1:]
        place = _place_of(self._x)
        made = {place: self._mark(place, layer, state)}
        if _mark_of(place, marks) is None:
            # A fork's first write has all that the other run had done up to there, unless that has stored more itself.
            for run_id, end in self._x.run.forked:
                place = _place_of(self._x, run_id)
                mark = _mark_of(place, marks)
                if mark is None or self._marked(layer, mark, end) is not _NEVER:
                    made[place] = f"{place} {_POSITION}{end}"
        others = [each for each in marks if each.rpartition(" ")[0] not in made]
        return _LINE.join([self._x.run_id, *[*made.values(), *others][:_MARKS]])

    def _met(self, layer: AnyLayer, met: _Mirrored) -> None:
        self._mirrored[layer.id] = met
        self._calls.pop(layer.id, None)

    # -- what others have written meanwhile

    def note(self, layer: AnyLayer, call: Called) -> None:
        """Keep a call that has changed a state, for as long as it may have to be made once more."""
        if layer.scope is not Scope.EXECUTION and not merges(type(layer)):
            self._calls.setdefault(layer.id, deque(maxlen=_CALLS)).append(call)

    async def _joined(self, frame: Frame, layer: AnyLayer, known: _Mirrored, state: object) -> object:
        """The store's state with what this run has made of the one that they had in common.

        Raises:
            ConfigError: Nothing says how to join the two; code `"state-conflict"`.
        """
        try:
            return merged(layer, known.mine, state, known.theirs)
        except Conflict as error:
            where = error.where
        made = await self._done_again(frame, layer, known, state)
        if made is not _NEVER:
            return made
        if "on_return" in hooks_of(type(layer)):
            # It says what becomes of what was done beside it; the ids that it gives may be others.
            return await self._returned(frame, layer, known, state)
        who = f"run {self._x.run_id!r} and by run {known.written.partition(_LINE)[0]!r}"
        raise conflict(f"memory.{layer.id}{where}", who, hint_of(layer), frame.path)

    async def _done_again(self, frame: Frame, layer: AnyLayer, known: _Mirrored, state: object) -> object:
        """The store's state with this run's calls made on it: of use where each gives what it has given before."""
        calls: list[Called] = []
        at = state
        for call in reversed(self._calls.get(layer.id, ())):
            if at is known.mine:
                break
            if call.after is at:
                calls.append(call)
                at = call.before
        if at is not known.mine or not calls:
            return _NEVER
        draft = Draft(Other(Live(frame, layer), known.theirs))
        for call in reversed(calls):
            given = await call.function.again(layer.bound(draft), call.values)
            if not alike(given, call.result):
                return _NEVER
        return copy_private(draft.read())

    async def _returned(self, frame: Frame, layer: AnyLayer, known: _Mirrored, state: object) -> object:
        draft = Draft(Other(Live(frame, layer), known.theirs))
        mine, began = copy_private(state), copy_private(known.mine)
        await layer.bound(draft).on_return(Returned(self._x.id, mine, began, frame.items.frozen(), None))
        return copy_private(draft.read())

    def _is_stored(self, layer: AnyLayer, value: object, theirs: object) -> bool:
        # Equal values may be stored in different ways, as 1 and True are.
        return bool(value == theirs) and self._form(layer, value) == self._form(layer, theirs)

    async def _write(self, layer: AnyLayer, storage: LayerStorage, value: object, written: str, expected: int) -> int:
        """Write a layer's state, or remove it.

        Raises:
            ConfigError: A newer version has stored one since this run began; code `"layer-version"`.
        """
        key = state_key(layer.schema_version)
        if value is None:
            others = await storage.keys()
            _refuse_newer(layer, others)
            await storage.remove(key, expected=expected or None)
            for other in others:
                # States of older versions are removed too, or they would be migrated again.
                await storage.remove(other)
            return 0
        version = await storage.put(key, (written, value), expected=expected)
        # Looked at afterwards, so that nothing comes in between: what was written here is read by nothing then.
        _refuse_newer(layer, await storage.keys())
        return version

    # -- steps of a layer's own

    async def call(self, frame: Frame, layer: AnyLayer, step: AnyStep, value: object) -> Any:
        """Run a step for a layer: a spawn below the step in flight, with nothing of its conversation and no layers."""
        spec = MemorySpec(step, "new", "new", None, None, NO_LAYERS.memory)
        child: AnyStep = Step(id=f"{layer.id}.{step.id}", kind="spawn", spec=spec, goes_on=False)
        # Layers that store at once take turns: a step's children are in flight one after the other.
        async with self._lock:
            occurrences = frame.occurrences
            if occurrences is None:
                occurrences = frame.occurrences = {}
            count = occurrences.get(child.id, 0)
            occurrences[child.id] = count + 1
            return await execute(child, value, frame, frame_name(child.id, count))

    async def ask(
        self, frame: Frame, layer: AnyLayer, model: str | Model | None, instructions: str, text: str, output: Any
    ) -> object:
        """Ask a model for a layer."""
        step: AnyStep = call_model(model, instructions=instructions, output=output, id="ask")
        return await self.call(frame, layer, step, text)


def _mark_of(place: str, marks: list[str]) -> str | None:
    """An execution's mark."""
    return next((each for each in marks if each.rpartition(" ")[0] == place), None)


def _new_in(state: Any, before: Any, kind: object) -> object:
    """The changes of a state against the earlier one if the types are equal; otherwise the whole state."""
    many = get_origin(kind)
    if many is dict and type(state) is type(before) is dict:
        return {key: value for key, value in state.items() if before.get(key, _NEVER) is not value}
    if many in (list, tuple) and type(state) is type(before) is many:
        size = len(before)
        if len(state) > size and all(map(is_, state, before)):
            return state[size:]
    return state


def _first_of(layer: AnyLayer) -> object:
    """A layer's first state: its author may hold on to what it is made of."""
    return copy_private(layer.initial())


def _place_of(x: Execution, run_id: str | None = None) -> str:
    """The key of an execution in the store, equal in every process; its id differs in each.

    Args:
        x: The execution.
        run_id: The run, where it is another one: that of which this is a fork.
    """
    run_id = run_id or x.run_id
    up: Frame | None = x.parent_frame
    while x.whole is not x and up is not None:
        # A part of an execution with other memory.
        x, up = up.x, up.x.parent_frame
    root = x.frame
    if root is None:
        return x.id
    if up is None:
        return run_id
    attempts: list[int] = []
    frame: Frame | None = root
    while frame is not None:
        attempts.append(frame.attempt)
        frame = frame.up
    return sha256(json.dumps([run_id, root.path, attempts]).encode()).hexdigest()


def _refuse_newer(layer: AnyLayer, keys: Sequence[str]) -> None:
    for key in keys:
        is_older(layer, version_of_key(key))


def state_key(version: Version) -> str:
    """The key of a layer's state of a version, in its part of the store."""
    return f"v{version}"


def written_state(stored: object, where: str) -> tuple[str, object]:
    """The run that wrote a layer's state, and the state's tree.

    Raises:
        CodecError: The stored value is not such a pair.
    """
    found = stored.get("v") if is_dict(stored) else None
    if not is_list(found) or len(found) != 2 or not isinstance(found[0], str):
        raise CodecError("is not a valid state of a layer; expected the run that wrote it and the state", where=where)
    return found[0], found[1]


def version_of_key(key: str) -> Version:
    """The version that a key names: a number, or a text of numbers with dots."""
    text = key.removeprefix("v")
    return int(text) if text.isdecimal() else text
