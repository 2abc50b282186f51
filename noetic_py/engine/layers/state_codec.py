"""The stored form of a layer's state, of which only what has changed is encoded and decoded."""

from __future__ import annotations

from operator import is_
from typing import Any, Final

from attrs import frozen

from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import MAX_KEYS, check_nesting, dump, parse
from noetic_py.core.state import class_of
from noetic_py.core.types import MAX_NESTING
from noetic_py.core.values import copy_private, is_dict, is_list
from noetic_py.errors import CodecError, LimitExceeded

_MARK: Final = "$"
_ABSENT: Final = object()
# A larger state is encoded and decoded whole each time, so that those of many owners stay small.
_LARGEST: Final = 1024 * 1024


@frozen(eq=False)
class _EncodedState:
    """A state with its stored form.

    Attributes:
        state: The state that was encoded, or handed out.
        given: Its entries, in a container that only this has.
        tree: What it is as JSON.
        value: What is read from that, `None` when a part of it can change: each run needs its own then.
    """

    state: Any
    given: Any
    tree: Any
    value: Any


_NOTHING: Final = _EncodedState(_ABSENT, _ABSENT, None, None)


class StateCodec:
    """Stores a layer's state of one owner together with its writer, and keeps what it has stored or read last.

    Most turns change a few entries of a state. Entries that are the same objects as before keep their stored form, and
    bytes that are the same as before are not read again.

    Args:
        codec: The codec of the layer.
        kind: The type of the state.
    """

    __slots__ = ("_codec", "_form", "_kind", "_known", "_stored", "max_bytes")

    # Runs in other threads may use it too, so each attribute is replaced as a whole, and read once.

    def __init__(self, codec: Codec, kind: object) -> None:
        self._codec = codec
        self._kind = kind
        self._known = _NOTHING
        # A tree, its bytes and the texts of its parts: a digest of the bytes is stored beside them.
        self._form: tuple[object, bytes, dict[int, str]] = (None, b"null", {})
        # The bytes that were stored or read last, their writer, and their state.
        self._stored: tuple[bytes, str, _EncodedState] | None = None
        self.max_bytes = codec.max_bytes

    def form(self, state: object) -> bytes:
        """The bytes of a state alone, as the layer's codec makes them.

        Raises:
            CodecError: It cannot be stored.
            LimitExceeded: It is too large, or nested too deep.
        """
        return self._checked(self._form_of(self._encoded(state).tree))

    def dumps(self, value: Any) -> bytes:
        """A writer and a state as the layer's codec stores the pair.

        Raises:
            CodecError: It cannot be stored.
            LimitExceeded: It is too large, or nested too deep.
        """
        written, state = value
        known = self._encoded(state)
        # As the codec stores a tuple.
        data = self._checked(b'{"$":"tuple","v":[' + dump(written) + b"," + self._form_of(known.tree) + b"]}")
        self._keep(data, written, known)
        return data

    def loads(self, data: bytes | str, type: object = object, /) -> Any:
        """The writer and the state that `dumps` has stored.

        Raises:
            CodecError: The data are malformed or do not fit the type.
            LimitExceeded: They are too large, or nested too deep.
        """
        stored = self._stored
        if stored is not None and data == stored[0]:
            _, written, known = stored
            state = _own(known.value)
            self._known = _EncodedState(state, known.value, known.tree, known.value)
            return written, state
        tree = parse(data, self.max_bytes, "value size")
        written, state = self._codec.decode(tree, type)
        if _is_fixed(state):
            value = _own(state)
            known = self._known = _EncodedState(state, value, tree["v"][1], value)
            self._keep(data if isinstance(data, bytes) else data.encode(), written, known)
        return written, state

    def is_fixed(self, state: object) -> bool:
        """Whether nothing in the state that was read last can be changed in place, but for its container."""
        known = self._known
        return state is known.state and known.value is not None

    def _form_of(self, tree: object) -> bytes:
        form = self._form
        if form[0] is not tree:
            # Its own texts, since another thread may go on from the same.
            texts = form[2].copy()
            form = self._form = (tree, dump(tree, texts), texts)
        return form[1]

    def _keep(self, data: bytes, written: str, known: _EncodedState) -> None:
        if known.value is not None and len(data) <= _LARGEST:
            self._stored = (data, written, known)
        else:
            self._stored, self._known, self._form = None, _NOTHING, (None, b"null", {})

    def _checked(self, data: bytes) -> bytes:
        if len(data) > self.max_bytes:
            raise LimitExceeded("value size", self.max_bytes)
        return data

    def _encoded(self, state: Any) -> _EncodedState:
        known = self._known
        if state is known.state:
            return known
        made = self._changed(state, known)
        if made is None:
            tree = self._codec.encode(state)
            # Two less, for the pair around it.
            check_nesting(tree, MAX_NESTING - 2)
            made = _EncodedState(state, _own(state), tree, self._read(tree) if _is_fixed(state) else None)
        self._known = made
        return made

    def _read(self, tree: object) -> Any:
        """What is read from the form of entries; `None` where that can change, or cannot be read."""
        try:
            read = self._codec.decode(tree, self._kind)
        except CodecError:
            return None
        return read if _is_fixed(read) else None

    def _changed(self, state: Any, known: _EncodedState) -> _EncodedState | None:
        """A state that shares entries with the one before; `None` where it does not, or has another form."""
        before, tree, value = known.given, known.tree, known.value
        kind = class_of(state)
        if kind is dict and is_dict(before) and is_dict(tree) and _MARK not in tree:
            new = {key: part for key, part in state.items() if before.get(key, _ABSENT) is not part}
            if len(state) > MAX_KEYS or _MARK in new or not all(type(key) is str for key in new):
                return None
            fresh, read = self._fresh(new, value)
            made = {key: fresh[key] if key in new else tree[key] for key in state}
            if read is None:
                return _EncodedState(state, state.copy(), made, None)
            value = {key: read[key] if key in new else value[key] for key in state}
            return _EncodedState(state, state.copy(), made, value)
        if kind is list and is_list(before) and state and before:
            # Entries are added at the end, and the oldest go.
            gone = next((place for place, part in enumerate(before) if part is state[0]), len(before))
            same = len(before) - gone
            if not same or same > len(state) or not all(map(is_, before[gone:], state)):
                return None
            fresh, read = self._fresh(state[same:], value)
            value = None if read is None else [*value[gone:], *read]
            return _EncodedState(state, state.copy(), [*tree[gone:], *fresh], value)
        return None

    def _fresh(self, new: Any, value: object) -> tuple[Any, Any]:
        """The form of new entries, and what is read from it; `None` where that can change or is not needed."""
        tree = self._codec.encode(new)
        check_nesting(tree, MAX_NESTING - 2)
        return tree, None if value is None else self._read(tree)


def _is_fixed(state: Any) -> bool:
    """Whether a dict or a list holds nothing that can be changed in place."""
    kind = class_of(state)
    if kind not in (dict, list):
        return False
    return all(copy_private(part) is part for part in (state.values() if kind is dict else state))


def _own(state: Any) -> Any:
    """The same entries in a container of their own."""
    return state.copy() if class_of(state) in (dict, list) else state
