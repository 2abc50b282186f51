"""Type variables that several rooms share, and what tells JSON's containers from other values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias

from typing_extensions import TypeIs, TypeVar

if TYPE_CHECKING:
    from noetic_py.memory.layer import Memory

# A step consumes its input and its context and produces its output; hence the variance.
I_contra = TypeVar("I_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)
M_contra = TypeVar("M_contra", contravariant=True, default="Memory")
S_contra = TypeVar("S_contra", contravariant=True, default=object)
M_co = TypeVar("M_co", covariant=True, default="Memory")
S_co = TypeVar("S_co", covariant=True, default=object)

T = TypeVar("T")
T2 = TypeVar("T2")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
M = TypeVar("M")
S = TypeVar("S")
M2 = TypeVar("M2")
S2 = TypeVar("S2")
MD = TypeVar("MD", default="Memory")
SD = TypeVar("SD", default=object)
P = ParamSpec("P")

Replay: TypeAlias = Literal["repeatable", "keyed", "once"]
Share: TypeAlias = Literal["share", "copy", "deepcopy", "new"]
ShareItems: TypeAlias = Literal["share", "copy", "new", "view"]
Durability: TypeAlias = Literal["step", "exit", "manual"]
OnDiverge: TypeAlias = Literal["fail", "adopt", "pin"]
OnError: TypeAlias = Literal["retry", "skip", "abort"]
"""What a loop or a schedule does about a failure; see `on_error` of [`loop`][noetic_py.loop]."""


def is_mapping(value: object) -> TypeIs[Mapping[Any, Any]]:
    """Whether this is a mapping; of what, nobody has looked."""
    return isinstance(value, Mapping)


def is_dict(value: object) -> TypeIs[dict[Any, Any]]:
    """Whether this is a dict; of what, nobody has looked."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeIs[list[Any]]:
    """Whether this is a list; of what, nobody has looked."""
    return isinstance(value, list)


def is_array(value: object) -> TypeIs[list[Any] | tuple[Any, ...]]:
    """Whether this is a list or a tuple; of what, nobody has looked."""
    return isinstance(value, list | tuple)
