"""What the parts of one run hand to each other without the model, and without anybody storing it.

Steps, tools, hooks and layers of a run share one `ctx.attrs`. Values are found by a name, by a typed key, or by their
class. Nothing of it is in the journal: a run that goes on in another process begins with what it is given then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, TypeVar, overload

from attrs import frozen
from typing_extensions import TypeIs

from noetic_py.core.types import T
from noetic_py.errors import AmbiguousAttribute, ConfigError

__all__ = ["Attributes", "Key"]

D = TypeVar("D")


@frozen
class Key(Generic[T]):
    """Names a value and says its type: `TENANT = Key("tenant", str)`.

    Two keys of one name are one place. A key of another type finds nothing.

    Args:
        name: The name.
        kind: The class of the value.

    Raises:
        ConfigError: The name is no text, or the type no class; code `"attribute"`.
    """

    name: str
    kind: type[T]

    def __attrs_post_init__(self) -> None:
        name: object = self.name
        kind: object = self.kind
        if not isinstance(name, str) or not name or not isinstance(kind, type):
            raise ConfigError(
                f"Key({name!r}, {kind!r}) names nothing", code="attribute", hint='Key("tenant", str): a text, a class'
            )


_NOTHING: Final = object()


class Attributes:
    """Values of one run by name, by typed key and by class; shared by all its parts, and never stored.

    ```python
    TENANT = Key("tenant", str)

    result = await harness.run(flow, input, attrs={TENANT: "acme", Limits: Limits(pages=3)})
    ...
    tenant = ctx.attrs[TENANT]  # a str
    limits = ctx.attrs[Limits]  # the Limits, or the one value of a class below it
    ctx.attrs["seen"] = 5
    ```

    A value that was put under a class is found by that class first; otherwise by a class above its own. Of several the
    most special counts, and where there is none it is an error that names them. Threads of sync tools may use it too:
    each operation is one of a dictionary.

    Args:
        given: What it holds at first; a text, a [`Key`][noetic_py.Key] or a class each.

    Raises:
        ConfigError: A key is none, or a value is not of its key's class; code `"attribute"`.
    """

    __slots__ = ("_named", "_typed")

    def __init__(self, given: Mapping[Any, object] | None = None) -> None:
        self._named: dict[str, object] = {}
        self._typed: dict[type[Any], object] = {}
        for key, value in (given or {}).items():
            self[key] = value

    # -- writing

    @overload
    def __setitem__(self, key: Key[T], value: T) -> None: ...
    @overload
    def __setitem__(self, key: type[T], value: T) -> None: ...
    @overload
    def __setitem__(self, key: str, value: object) -> None: ...
    def __setitem__(self, key: object, value: object) -> None:
        """Put a value in place; `None` is a value."""
        if isinstance(key, type):
            _check(key, value, key.__qualname__)
            self._typed[key] = value
        elif _is_key(key):
            _check(key.kind, value, key.name)
            self._named[key.name] = value
        else:
            self._named[_name(key)] = value

    @overload
    def put(self, key: Key[T], value: T | None) -> None: ...
    @overload
    def put(self, key: type[T], value: T | None) -> None: ...
    @overload
    def put(self, key: str, value: object) -> None: ...
    def put(self, key: Any, value: object) -> None:
        """Put a value in place, or take it away with `None`."""
        if value is not None:
            self[key] = value
        elif isinstance(key, type):
            self._typed.pop(key, None)
        else:
            self._named.pop(key.name if _is_key(key) else _name(key), None)

    @overload
    def __delitem__(self, key: Key[Any]) -> None: ...
    @overload
    def __delitem__(self, key: type[Any]) -> None: ...
    @overload
    def __delitem__(self, key: str) -> None: ...
    def __delitem__(self, key: Any) -> None:
        """Take a value away; one that is not there is no error."""
        self.put(key, None)

    # -- reading

    @overload
    def __getitem__(self, key: Key[T]) -> T: ...
    @overload
    def __getitem__(self, key: type[T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> object: ...
    def __getitem__(self, key: object) -> Any:
        """The value.

        Raises:
            KeyError: There is none.
            AmbiguousAttribute: There are several of a class, and none is the most special one.
        """
        found = self._look(key)
        if found is _NOTHING:
            raise KeyError(key.name if _is_key(key) else key)
        return found

    @overload
    def get(self, key: Key[T]) -> T | None: ...
    @overload
    def get(self, key: Key[T], default: D) -> T | D: ...
    @overload
    def get(self, key: type[T]) -> T | None: ...
    @overload
    def get(self, key: type[T], default: D) -> T | D: ...
    @overload
    def get(self, key: str, default: object = ...) -> object: ...
    def get(self, key: object, default: object = None) -> Any:
        """The value, or `default`; so it is too where a named value is not of the key's class.

        Raises:
            AmbiguousAttribute: There are several of a class, and none is the most special one.
        """
        found = self._look(key)
        return default if found is _NOTHING else found

    def __contains__(self, key: object) -> bool:
        return self._look(key) is not _NOTHING

    def __iter__(self) -> Iterator[str]:
        return iter(self.mapping)

    def __len__(self) -> int:
        return len(self._named) + len(self._typed)

    @property
    def mapping(self) -> dict[str, object]:
        """The values that have names, live: what is changed here is changed. Those kept by class are not in it."""
        return self._named

    @property
    def given(self) -> dict[Any, object]:
        """All values by what they are kept under, so that other attributes can be made of them."""
        return {**self._named, **self._typed}

    def copy(self) -> Attributes:
        """A copy of the values, to be changed independently."""
        made = Attributes()
        made._named.update(self._named)
        made._typed.update(self._typed)
        return made

    def _look(self, key: object) -> object:
        if isinstance(key, type):
            return self._of(key)
        if _is_key(key):
            found = self._named.get(key.name, _NOTHING)
            return found if isinstance(found, key.kind) else _NOTHING
        return self._named.get(_name(key), _NOTHING)

    def _of(self, kind: type[object]) -> object:
        """The value of a class: kept under it, or under a class below it."""
        found = self._typed.get(kind, _NOTHING)
        if found is not _NOTHING:
            return found
        if kind is Attributes:
            return self
        below = [each for each in tuple(self._typed) if issubclass(each, kind)]
        special = [each for each in below if all(issubclass(each, other) for other in below)]
        if below and not special:
            names = ", ".join(sorted(each.__qualname__ for each in below))
            raise AmbiguousAttribute(
                f"several attributes are a {kind.__qualname__}: {names}", hint="ask for one of these classes"
            )
        return self._typed.get(special[0], _NOTHING) if special else _NOTHING

    def __repr__(self) -> str:
        # Names only: values may be private.
        return f"Attributes({', '.join([*self._named, *(kind.__qualname__ for kind in self._typed)])})"


def _is_key(key: object) -> TypeIs[Key[Any]]:
    return isinstance(key, Key)


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise ConfigError(
            f"{key!r:.60} is not a valid key of an attribute; expected a text, a Key or a class",
            code="attribute",
            hint="a text, a Key or a class",
        )
    return key


def _check(kind: type[object], value: object, name: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(
            f"attribute {name} is a {type(value).__qualname__}, not a {kind.__qualname__}",
            code="attribute",
            hint="put a value of the key's class there",
        )
