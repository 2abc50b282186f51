"""Caches of what users have said, all of which are emptied when a user is erased."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any, Final, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")
T = TypeVar("T")

_numbers: Final = count()
_caches: Final[WeakValueDictionary[int, Cache[Any, Any]]] = WeakValueDictionary()
_functions: Final[list[Callable[[], None]]] = []


class Cache(Generic[K, V]):
    """A cache with the values that were used last; threads may share it.

    Args:
        limit: How many values it keeps, or how large they are together; the last one is kept in any case.
        size: How large a value is; each counts as 1 if left out.
    """

    __slots__ = ("__weakref__", "_limit", "_size", "_values")

    def __init__(self, limit: int, *, size: Callable[[V], int] | None = None) -> None:
        self._limit = limit
        self._size = size
        self._values: dict[K, V] = {}
        _caches[next(_numbers)] = self

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """The value of a key, which is now the last used; `None` without one."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def put(self, key: K, value: V) -> V:
        """Keep a value as the last used; the one that was used longest ago may go. Returns it."""
        self._values.pop(key, None)
        self._values[key] = value
        # Another thread may change it meanwhile; it is made smaller the next time.
        with suppress(StopIteration, RuntimeError):
            while len(self._values) > 1 and self._total() > self._limit:
                self._values.pop(next(iter(self._values)), None)
        return value

    def _total(self) -> int:
        return len(self._values) if self._size is None else sum(map(self._size, self._values.values()))

    def drop(self, key: K) -> None:
        """Drop a value, if there is one."""
        self._values.pop(key, None)

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()


def cached(limit: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have a function of users' texts remember its results, of which the newest are kept.

    Args:
        limit: How many results it keeps.
    """

    def decorate(fn: Callable[P, T]) -> Callable[P, T]:
        made: Any = lru_cache(limit)(fn)
        _functions.append(made.cache_clear)
        # With the parameters of the function, which `lru_cache` does not type.
        typed: Callable[P, T] = made
        return typed

    return decorate


def clear_caches() -> None:
    """Empty all of them: values are made or read again when they are needed."""
    for clear in _functions:
        clear()
    for each in _caches.valuerefs():
        cache = each()
        if cache is not None:
            cache.clear()
