"""Misspelt names, with the nearest one that is known; unknown keywords; values that are not texts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs

from noetic_py.errors import ConfigError, UnknownKeyword

F = TypeVar("F", bound=Callable[..., Any])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a misspelt one; `None` when none is like it."""
    from difflib import get_close_matches

    names = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), names, n=1)
    if close:
        return names[close[0]]
    # "tokens" for "max_output_tokens" is too far for the measure, and yet plain.
    parts = [each for each in names if len(name) > 3 and name.lower() in each]
    return names[min(parts, key=len)] if parts else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The hint of an error about a name that is not known."""
    names = sorted(known)
    close = nearest(name, names)
    listed = f"known are {', '.join(names)}" if names else "none is known"
    return listed if close is None else f"did you mean {close!r}? {listed}"


def text_or_none(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse a field that is neither text nor `None`; a validator of attrs.

    Raises:
        ConfigError: It is something else; code `"text"`.
    """
    if value is not None and not isinstance(value, str):
        raise ConfigError(
            f"{value!r:.80} is not a valid {attribute.name} of a {type(instance).__name__}; expected text",
            code="text",
            hint="str(value) makes a text of it",
        )


def unknown_keyword(where: str, name: str, known: Iterable[str], *, code: str) -> UnknownKeyword:
    """The error for a keyword that a function does not take.

    Args:
        where: The function, as its caller writes it: `"Harness()"`.
        name: The keyword.
        known: Those it takes.
        code: The code of the error.
    """
    return UnknownKeyword(f"{where} takes no keyword {name!r}", code=code, hint=suggestion(name, known))


def known_keywords(where: str) -> Callable[[F], F]:
    """Make a function refuse keywords that it does not have with the nearest name; type checkers see it as it is.

    Args:
        where: The function, as its caller writes it: `"Harness()"`.
    """

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters.values()
        known = frozenset(
            each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        )

        @functools.wraps(function)
        def checked(*args: object, **kwargs: object) -> object:
            for name in kwargs:
                if name not in known:
                    raise unknown_keyword(where, name, known - {"self"}, code="unknown-keyword")
            return function(*args, **kwargs)

        made: Any = checked
        same: F = made
        return same

    return decorate
