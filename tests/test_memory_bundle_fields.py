"""A layer that a bundle names and would not carry is refused when the class is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from noetic_py import Memory, MemoryLayer
from noetic_py.errors import ConfigError


class Notes(MemoryLayer[dict[str, Any]]):
    """A layer."""

    def initial(self) -> dict[str, Any]:
        return {}


class NotABundle:
    """Annotated, and no bundle, so that attrs does not collect its fields."""

    notes: Notes = Notes()


class Plain:
    """Neither."""

    notes = Notes()


def instance() -> type[Memory]:
    class Mem(Memory):
        notes = Notes()

    return Mem


def layer_class() -> type[Memory]:
    class Mem(Memory):
        notes = Notes

    return Mem


def override() -> type[Memory]:
    class Base(Memory):
        notes: Notes = Notes()

    made: Any = type("Mem", (Base,), {"notes": Notes()})
    found: type[Memory] = made
    return found


def mixin() -> type[Memory]:
    class Mem(Plain, Memory):
        pass

    return Mem


def annotated_mixin() -> type[Memory]:
    class Mem(NotABundle, Memory):
        pass

    return Mem


WRITE = "write `notes: Notes = Notes()`"


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (instance, "`notes = Notes()` of Mem", WRITE),
        (layer_class, "`notes = Notes` of Mem", WRITE),
        (override, "`notes = Notes()` of Mem", WRITE),
        (mixin, "`notes = Notes()` of Plain", WRITE),
        (annotated_mixin, "`notes = Notes()` of NotABundle", "make NotABundle a bundle: `class NotABundle(Memory)`"),
    ],
)
def test_a_layer_without_an_annotation_is_refused(make: Callable[[], type[Memory]], message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.message == f"{message} is not a valid field of a bundle; expected an annotation"
    assert (caught.value.hint, caught.value.code) == (hint, "memory-field")


def test_a_class_in_the_place_of_a_layer_is_refused() -> None:
    class Mem(Memory):
        notes: Any = Notes

    with pytest.raises(ConfigError, match="notes=Notes is not a valid field of a bundle") as caught:
        Mem()
    assert caught.value.hint == WRITE


def test_methods_constants_and_classes_of_a_bundle_stay_allowed() -> None:
    class Mem(Memory):
        class Inner(Notes):
            """A layer of this bundle only."""

        shared: ClassVar[Notes] = Notes()
        limit = 3
        notes: Notes = Notes()
        inner: Inner = Inner()

        def most(self) -> int:
            return self.limit

        @property
        def first(self) -> Notes:
            return self.notes

    class Below(Mem):
        other: Notes = Notes()

    assert Below().most() == 3
    assert Below().first.id == "notes"
    assert {layer.id for layer in (Below().notes, Below().inner, Below().other)} == {"notes", "inner", "other"}
