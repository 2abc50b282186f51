"""Values of two runs of one flow, told so that they can be compared: what was drawn anew is named by where it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from noetic_py.core.codec import Codec, to_wire
from noetic_py.core.items import Item
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import NoeticError
from noetic_py.journal.patches import known_fields

__all__ = ["Names"]

# The form of a runtime's ids, which stand in states and texts.
_DRAWN: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


class Names:
    """The ids of one run by the order in which they are met, first of all in its conversation.

    Two runs that do the same draw other ids. Each is given a name in the order in which it is met, and no two have one
    name: so what refers to the third item in one run has to refer to the third in the other.
    """

    __slots__ = ("_codec", "_names")

    def __init__(self) -> None:
        self._codec = Codec()
        self._names: dict[str, str] = {}

    def items(self, items: Sequence[Item]) -> list[Any]:
        """A conversation; to be told before anything that refers to it."""
        wires = [to_wire(item) for item in items]
        for wire in wires:
            for key in ("id", "call_id"):
                if isinstance(drawn := wire.get(key), str):
                    self._name(drawn)
        return [self._renamed(wire) for wire in wires]

    def state(self, state: object) -> Any:
        """A state, field by field."""
        try:
            return self._renamed({key: known.tree for key, known in known_fields(state, self._codec).items()})
        except NoeticError:
            return state

    def value(self, value: object) -> Any:
        """A value as it is stored, or as it is where it cannot be."""
        try:
            return self._renamed(self._codec.encode(value))
        except NoeticError:
            return value

    def _name(self, drawn: str) -> str:
        return self._names.setdefault(drawn, f"<id {len(self._names)}>")

    def _renamed(self, tree: Any) -> Any:
        if isinstance(tree, str):
            return self._names.get(tree) or _DRAWN.sub(lambda found: self._name(found[0]), tree)
        if is_list(tree):
            return [self._renamed(each) for each in tree]
        if is_dict(tree):
            # By their names, as equal mappings may have been filled in another order; drawn ones as they come.
            ordered = sorted(tree.items(), key=lambda each: _DRAWN.sub("", repr(each[0])))
            renamed = {self._renamed(key): self._renamed(each) for key, each in ordered}
            # Members of a set are stored in the order of what they were called.
            return {**renamed, "v": sorted(renamed["v"], key=repr)} if _is_set(renamed) else renamed
        return tree


def _is_set(tree: dict[str, Any]) -> bool:
    return tree.get("$") in ("set", "frozenset") and isinstance(tree.get("v"), list)
