"""What a child context takes over: `Derivation`, and the presets by which its choices go by one name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from attrs import evolve, fields, frozen

from noetic_py._types import Share, ShareItems
from noetic_py.errors import ConfigError, InvalidId

__all__ = [
    "Derivation",
    "Preset",
    "ShareCounters",
    "ShareSession",
    "ShareTrace",
    "branch_below",
    "derivation",
    "is_branch",
    "refuse_options",
]

Preset: TypeAlias = Literal["copy", "fork", "derive", "isolated"]
ShareCounters: TypeAlias = Literal["keep", "new"]
ShareTrace: TypeAlias = Literal["same", "child", "link", "new"]
ShareSession: TypeAlias = Literal["same", "new"]


@frozen
class Derivation:
    """What of a context its child has, and how; see [`Context.child`][noetic_py.Context.child]."""

    state: Share = "copy"
    items: ShareItems = "copy"
    counters: ShareCounters = "new"
    trace: ShareTrace = "child"
    session: ShareSession = "same"


_PRESETS: Mapping[Preset, Derivation] = {
    "copy": Derivation(counters="keep", trace="same"),
    "fork": Derivation(),
    "derive": Derivation(state="share", items="share"),
    "isolated": Derivation(state="new", items="new", trace="new", session="new"),
}
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "state": get_args(Share),
    "items": get_args(ShareItems),
    "counters": get_args(ShareCounters),
    "trace": get_args(ShareTrace),
    "session": get_args(ShareSession),
}


def derivation(preset: Preset | None, **given: Any) -> Derivation:
    """What a preset says, but for what was given otherwise.

    Raises:
        ConfigError: A name is unknown; code `"child-option"`.
    """
    if preset is not None and preset not in _PRESETS:
        raise ConfigError(f"preset={preset!r} is unknown", code="child-option", hint=f"one of {tuple(_PRESETS)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    for each in fields(Derivation):
        if each.name in chosen and chosen[each.name] not in _KNOWN[each.name]:
            raise ConfigError(
                f"{each.name}={chosen[each.name]!r} is unknown", code="child-option", hint=f"one of {_KNOWN[each.name]}"
            )
    return evolve(_PRESETS[preset or "fork"], **chosen)


def refuse_options(preset: Preset, given: Mapping[str, object]) -> None:
    """Refuse options that a preset leaves no choice of.

    Raises:
        ConfigError: One was given; code `"child-option"`.
    """
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name}= is at odds with preset={preset!r}",
                code="child-option",
                hint="a child in the same run has the run's; leave it out",
            )


def is_branch(name: str) -> bool:
    """Whether this can be the dotted name of a branch."""
    return all(part and part.isprintable() for part in name.split("."))


def branch_below(branch: str, suffix: str) -> str:
    """The dotted name of a branch below another one; `suffix` may have dots itself.

    Raises:
        InvalidId: A part of it is empty, or cannot be printed.
    """
    if not is_branch(suffix):
        raise InvalidId(f"branch {suffix!r} has a part that is empty or cannot be printed", hint='branch="a.b"')
    return f"{branch}.{suffix}" if branch else suffix
