"""The states of random programs: the same four fields in a bag, in a dictionary, and in a class."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from attrs import define, field

from noetic_py.core.state import StateBag

Kind: TypeAlias = Literal["bag", "dict", "attrs"]


@define
class Fields:
    """State as a class."""

    n: int = 0
    l: list[int] = field(factory=list[int])  # noqa: E741
    a: int = 0
    b: int = 0


def read(state: Any, name: str) -> Any:
    """A field, whatever the state is; 0 or an empty list when it was never set."""
    if isinstance(state, Fields):
        return getattr(state, name)
    if name == "l" and name not in state:
        state["l"] = []
    return state.get(name, 0)


def write(state: Any, name: str, value: object) -> None:
    """Set a field, whatever the state is."""
    if isinstance(state, Fields):
        setattr(state, name, value)
    else:
        state[name] = value


def plain_state(state: Any) -> dict[str, Any]:
    """A state's fields, to compare."""
    if isinstance(state, Fields):
        return {"n": state.n, "l": list(state.l), "a": state.a, "b": state.b}
    return {"n": state.get("n", 0), "l": list(state.get("l", [])), "a": state.get("a", 0), "b": state.get("b", 0)}


def new_state(kind: str) -> Any:
    """A fresh state object."""
    if kind == "attrs":
        return Fields()
    fields: dict[str, Any] = {"n": 0, "l": [], "a": 0, "b": 0}
    return fields if kind == "dict" else StateBag(fields)


def state_type(kind: Kind) -> type[object]:
    """The class that a state is read as when its run goes on in another process."""
    types: dict[Kind, type[Any]] = {"bag": StateBag, "dict": dict, "attrs": Fields}
    return types[kind]
