"""Type variables, literal types and a bound shared by several modules, annotations, and comparison of version texts."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeAlias, get_type_hints

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


def annotations_of(function: Any) -> dict[str, object]:
    """What the annotations of a function name, by its parameters and `"return"`; of a class, by its fields.

    One that cannot be evaluated is left out, and spoils no other: code often imports a type for checkers alone, as
    `if TYPE_CHECKING:` does.
    """
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 # an annotation may be any expression
        found: dict[str, object] = {}
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    module = vars(sys.modules.get(getattr(function, "__module__", ""), SimpleNamespace()))
    names, parameters = getattr(function, "__globals__", module), getattr(function, "__type_params__", ())
    annotations: dict[str, object] = getattr(function, "__annotations__", {})
    for name, annotation in annotations.items():
        one: Any = SimpleNamespace(__annotations__={name: annotation}, __type_params__=parameters)
        try:
            found |= get_type_hints(one, names, include_extras=True)
        except Exception:  # noqa: BLE001, S112 # as above
            continue
    return found
