"""Type variables, literal types and a bound shared by several modules, and comparison of version texts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeAlias

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from noetic_py.core.memory import Memory

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
ShareState: TypeAlias = Literal["copy", "share"]
ShareItems: TypeAlias = Literal["share", "copy", "new", "view"]
Durability: TypeAlias = Literal["step", "exit", "manual"]
OnDiverge: TypeAlias = Literal["fail", "adopt", "pin"]
OnError: TypeAlias = Literal["retry", "skip", "abort"]
"""How a loop or a schedule handles a failure; see `on_error` of [`loop`][noetic_py.loop]."""

MAX_NESTING: Final = 64
"""How deep JSON may be nested."""

Version: TypeAlias = int | str
"""The version of a stored form: a whole number from 1, or a text of numbers with dots such as `"1.10"`."""


def version_order(version: object) -> tuple[int, ...] | None:
    """A version as comparable numbers, `None` if it is not a version: 2, `"2"` and `"2.0"` are equal."""
    text = str(version) if isinstance(version, (int, str)) and not isinstance(version, bool) else ""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    numbers = [int(part) for part in parts]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers) or None
