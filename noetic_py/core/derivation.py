"""How a child context derives from its parent: `Derivation` and its presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from attrs import define, evolve, field, fields, frozen

from noetic_py.core.types import Share, ShareItems, Version, version_order
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import ConfigError, InvalidId

Preset: TypeAlias = Literal["copy", "fork", "derive", "isolated"]
ShareCounters: TypeAlias = Literal["keep", "new"]
ShareTrace: TypeAlias = Literal["same", "child", "link", "new"]
ShareSession: TypeAlias = Literal["same", "new"]
ShareMemory: TypeAlias = Literal["share", "copy", "new"]


@frozen
class Derivation:
    """How a child context derives from its parent; see [`Context.child`][noetic_py.Context.child]."""

    state: Share = "copy"
    items: ShareItems = "copy"
    counters: ShareCounters = "new"
    trace: ShareTrace = "child"
    session: ShareSession = "same"
    memory: ShareMemory = "copy"


_PRESETS: Mapping[Preset, Derivation] = {
    "copy": Derivation(counters="keep", trace="same"),
    "fork": Derivation(),
    "derive": Derivation(state="share", items="share", memory="share"),
    "isolated": Derivation(state="new", items="new", trace="new", session="new", memory="new"),
}
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "state": get_args(Share),
    "items": get_args(ShareItems),
    "counters": get_args(ShareCounters),
    "trace": get_args(ShareTrace),
    "session": get_args(ShareSession),
    "memory": get_args(ShareMemory),
}


def derivation(preset: Preset | None, **given: Any) -> Derivation:
    """The choices of a preset, overridden by those that were given.

    Raises:
        ConfigError: A name is unknown, or two are at odds; code `"child-option"`.
    """
    if preset is not None and preset not in _PRESETS:
        raise ConfigError(f"preset={preset!r} is unknown", code="child-option", hint=f"one of {tuple(_PRESETS)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    for each in fields(Derivation):
        if each.name in chosen and chosen[each.name] not in _KNOWN[each.name]:
            raise ConfigError(
                f"{each.name}={chosen[each.name]!r} is unknown", code="child-option", hint=f"one of {_KNOWN[each.name]}"
            )
    how = evolve(_PRESETS[preset or "fork"], **chosen)
    if how.memory == "share" and how.session == "new":
        raise ConfigError('memory="share" is at odds with session="new"', code="child-option", hint='memory="copy"')
    return how


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


def is_branch(name: object) -> bool:
    """Whether this can be the dotted name of a branch."""
    return isinstance(name, str) and all(part and part.isprintable() for part in name.split("."))


def branch_below(branch: str, suffix: str) -> str:
    """The dotted name of a branch below another one; `suffix` may have dots itself.

    Raises:
        InvalidId: A part of it is empty, or cannot be printed.
    """
    if not is_branch(suffix):
        raise InvalidId(f"branch {suffix!r} has a part that is empty or cannot be printed", hint='branch="a.b"')
    return f"{branch}.{suffix}" if branch else suffix


@frozen
class LayerCopy:
    """A layer's state that goes with a context, and not with its thread.

    Attributes:
        version: The `schema_version` of the layer that it is of.
        value: The state, or its stored form.
        stored: Whether it is that.
    """

    version: Version
    value: Any
    stored: bool = False


@define
class ContextMemory:
    """Where layers of scope thread keep what is a context's.

    Attributes:
        owner: What it is stored under; `None` for the thread's own memory.
        source: The thread whose memory it began as a copy of.
        states: The states as the context's last run has left them, by layer; those of its beginning before the first.
    """

    owner: str | None = None
    source: str | None = None
    states: Mapping[str, LayerCopy] = field(factory=dict[str, LayerCopy])


def write_memory(memory: ContextMemory, encode: Callable[[object], object]) -> dict[str, object]:
    """A context's memory as JSON.

    Raises:
        CodecError: A state cannot be stored.
    """
    states = {
        name: [copy.version, copy.value if copy.stored else encode(copy.value)] for name, copy in memory.states.items()
    }
    return {"owner": memory.owner, "source": memory.source, "states": states}


def read_memory(tree: object) -> ContextMemory:
    """A context's memory from JSON.

    Raises:
        ValueError: It is not valid.
    """
    if is_dict(tree) and tree.keys() == {"owner", "source", "states"} and is_dict(tree["states"]):
        owner, source, states = tree["owner"], tree["source"], tree["states"]
        known = all(is_list(each) and len(each) == 2 and version_order(each[0]) is not None for each in states.values())
        if known and isinstance(owner, str | None) and isinstance(source, str | None):
            return ContextMemory(
                owner, source, {name: LayerCopy(each[0], each[1], stored=True) for name, each in states.items()}
            )
    raise ValueError("is not a valid memory of a context")
