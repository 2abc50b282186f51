"""Rules that say which calls of tools are made, which need approval, and which are denied.

A rule names tools by a pattern and may look at arguments. Of all the rules that fit a call the strictest counts, in
whatever order they stand: `deny` before `ask` before `allow`. So a broad allowance never opens what a narrow rule
closes.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from noetic_py.core.caches import cached
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import ConfigError
from noetic_py.redaction import MASK, NOT_SHOWN

PermissionAction: TypeAlias = Literal["allow", "ask", "deny"]
"""The action for a call: allow it, ask for approval, or deny it."""

_Fit: TypeAlias = Literal["yes", "maybe", "no"]
_STRICT: tuple[PermissionAction, ...] = ("deny", "ask", "allow")


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError(f"a permission rule: {what}", code="permission", hint=hint)


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Patterns by name, however they are given, in one order."""
    pairs: list[tuple[Any, Any]] = list(dict(value).items())
    for name, fit in pairs:
        if not _is_text(name) or not _is_text(fit):
            raise _wrong(
                f"{fit!r} is not a valid pattern for {name!r} in where=; expected text", 'where={"command": "git *"}'
            )
    return tuple(sorted(pairs))


def _is_text(value: object) -> bool:
    """Whether this is a text that says something."""
    return isinstance(value, str) and value != ""


def _texts(value: Any) -> tuple[str, ...]:
    texts: tuple[Any, ...] = (value,) if isinstance(value, str) else tuple(map(os.fspath, value))
    if not all(map(_is_text, texts)):
        raise _wrong(f"{value!r} is not a valid list; expected texts", 'folders=["/srv/data"]')
    return texts


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


@frozen
class PermissionRule:
    """A rule for the calls that it matches.

    Patterns are those of file names: `*` for any text, `?` for one character, `[abc]` for one of several. Upper and
    lower case differ, letters that look alike differ, and the whole text has to fit.

    A rule looks at what the tool will receive: arguments are parsed, and defaults are filled in. What is not text is
    compared as compact JSON. A number fits a pattern that is the same number, however either is written.

    A rule that denies or asks also fits where it may: when a part of a list or an object fits, a text and the pattern
    are the same time, UUID or address, one of several paths lies in a folder, or a value cannot be judged, such as a
    secret or a URL in the place of a path. A rule that allows does not.

    Args:
        action: What becomes of them.
        tool: The tool's name, or a pattern; of a layer's function such as `facts/remember`.
        where: Patterns of arguments, by their names: each has to be there and to fit.
        within: Names of arguments that are paths or lists of paths, each of which has to lie in one of `folders`; links
            are followed.
        folders: The folders.

    Raises:
        ConfigError: An action is unknown, a pattern is not text, or `within` stands without `folders`; code
            `"permission"`.
    """

    action: PermissionAction
    tool: str = "*"
    where: tuple[tuple[str, str], ...] = field(default=(), converter=_pairs)
    within: tuple[str, ...] = field(default=(), converter=_texts)
    folders: tuple[str, ...] = field(default=(), converter=_texts)

    def __attrs_post_init__(self) -> None:
        if self.action not in _STRICT:
            raise _wrong(f"action {self.action!r} is unknown", ", ".join(_STRICT))
        if not _is_text(self.tool):
            raise _wrong(f"{self.tool!r} names no tool", 'tool="send_*"')
        if bool(self.within) != bool(self.folders):
            raise _wrong("within= and folders= belong together", 'within=["path"], folders=["/srv/data"]')

    def fits(self, tool: str, arguments: Mapping[str, object] | None) -> bool:
        """Whether it says something of a call; of a rule that denies or asks, whether it may.

        Args:
            tool: The tool's name.
            arguments: What the tool will receive, as JSON; `None` when that is not known.
        """
        found = self.judge(tool, arguments)
        return found == "yes" or (found == "maybe" and self.action != "allow")

    def judge(self, tool: str, arguments: Mapping[str, object] | None) -> Literal["yes", "maybe", "no"]:
        """Whether it fits a call; `"maybe"` where that cannot be said, or depends on how a value is written.

        Args:
            tool: The tool's name.
            arguments: What the tool will receive, as JSON; `None` when that is not known.
        """
        # Compare the names as the model knows them.
        if not fnmatchcase(tool.replace("/", "__"), self.tool.replace("/", "__")):
            return "no"
        if arguments is None:
            return "maybe" if self.where or self.within else "yes"
        found = list(self._each(arguments))
        return "no" if "no" in found else "maybe" if "maybe" in found else "yes"

    def _each(self, arguments: Mapping[str, object]) -> Iterator[_Fit]:
        for name, fit in self.where:
            yield _fits(arguments[name], fit) if name in arguments else "no"
        for name in self.within:
            yield self._lies_within(arguments[name]) if name in arguments else "no"

    def _lies_within(self, value: object) -> _Fit:
        """Whether a path, or all of several, lies in one of the folders."""
        found: list[_Fit] = [_within(path, self.folders) for path in (value if is_list(value) else [value])]
        return found[0] if len(set(found)) == 1 else "maybe"


_URL = re.compile(r"file:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def _within(path: object, folders: Iterable[str]) -> _Fit:
    if not isinstance(path, str) or not path or "\0" in path or _unreadable(path) or _URL.match(path):
        return "maybe"
    real_folders = [os.path.realpath(os.path.expanduser(each)) for each in folders]  # noqa: PTH111 # as below
    # Tools may take `~` and `$HOME` for a home, or for a name.
    spelled = {path, os.path.expanduser(path), os.path.expanduser(os.path.expandvars(path))}  # noqa: PTH111 # a Path raises where there is no home
    found: set[_Fit] = {_lies(os.path.realpath(each), real_folders) for each in spelled}
    return found.pop() if len(found) == 1 else "maybe"


def _lies(path: str, folders: Sequence[str]) -> _Fit:
    if any(_is_below(path, folder) for folder in folders):
        return "yes"
    # Some file systems take upper for lower case, and letters for those with their marks apart.
    alike = any(_is_below(_folded(path), _folded(folder)) for folder in folders)
    return "maybe" if alike else "no"


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _folded(path: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def _fits(value: object, pattern: str) -> _Fit:
    """Whether a pattern fits a value: surely, or only one of the ways in which that, or a part of it, is written."""
    leaves = list(_leaves(value))
    if any(map(_unreadable, leaves)):
        return "yes" if set(pattern) == {"*"} else "maybe"
    if fnmatchcase(_text(value), pattern) or (_is_number(value) and _same_number(_text(value), pattern)):
        return "yes"
    texts = (text for leaf in leaves for text in _spellings(leaf))
    return "maybe" if any(fnmatchcase(text, pattern) or _same(text, pattern) for text in texts) else "no"


def _leaves(value: object) -> Iterator[object]:
    """A value without parts, or all that is in one that has some, the names too."""
    if is_list(value):
        for part in value:
            yield from _leaves(part)
    elif is_dict(value):
        for name, part in value.items():
            yield name
            yield from _leaves(part)
    else:
        yield value


def _unreadable(leaf: object) -> bool:
    return isinstance(leaf, str) and (leaf == MASK or leaf.startswith(NOT_SHOWN))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _spellings(leaf: object) -> Iterator[str]:
    """The ways in which a value is written, in JSON, in Python and without an exponent."""
    text = _text(leaf)
    yield text
    yield str(leaf)
    number = None if isinstance(leaf, bool) else _number(text)
    if number is not None:
        plain = format(number, "f")
        yield plain
        yield plain.rstrip("0").rstrip(".") if "." in plain else plain


# No more digits than are worth a look: `1e999999` is short, and written out it is not.
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)


def _number(text: str) -> Decimal | None:
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _same_number(text: str, pattern: str) -> bool:
    wanted = _number(pattern)
    return wanted is not None and wanted == _number(text)


def _same(text: str, pattern: str) -> bool:
    """Whether two texts are one value: a number, a time, a UUID or an address."""
    if _same_number(text, pattern):
        return True
    if _number(text) is not None and _number(pattern) is not None:
        return False
    wanted = _read(pattern)
    return bool(wanted) and not wanted.isdisjoint(_read(text))


_LONGEST = 256


@cached(1024)
def _read(text: str) -> frozenset[tuple[str, object]]:
    """The values that a text may become, by the type that reads it."""
    found: list[tuple[str, object]] = []
    value = text if _number(text) is None else float(text)
    for kind, adapter in _readers() if len(text) <= _LONGEST else ():
        try:
            found.append((kind, adapter.validate_python(value)))
        except ValueError:
            continue
    return frozenset(found)


@cache
def _readers() -> Sequence[tuple[str, Any]]:
    # Only here: rules are made where nothing else needs pydantic.
    from datetime import datetime, time, timedelta
    from uuid import UUID

    from pydantic import AnyUrl, TypeAdapter
    from pydantic.networks import IPvAnyAddress, IPvAnyNetwork

    kinds: tuple[Any, ...] = (datetime, time, timedelta, UUID, AnyUrl, IPvAnyAddress, IPvAnyNetwork)
    return [(kind.__name__, TypeAdapter[Any](kind)) for kind in kinds]


def decide(
    rules: Iterable[PermissionRule], tool: str, arguments: Mapping[str, object] | None, *, otherwise: PermissionAction
) -> tuple[PermissionAction, PermissionRule | None]:
    """The action for a call, and its rule.

    Args:
        rules: The rules.
        tool: The tool's name.
        arguments: What the tool will receive, as JSON; `None` when that is not known.
        otherwise: What becomes of a call that no rule fits.
    """
    sure: list[PermissionRule] = []
    possible: list[PermissionRule] = []
    for rule in rules:
        found = rule.judge(tool, arguments)
        if found == "yes":
            sure.append(rule)
        elif found == "maybe" and rule.action != "allow":
            possible.append(rule)
    known = min(sure, key=_strictness, default=None)
    action = otherwise if known is None else known.action
    # A value that a rule cannot judge never makes a call more permissive.
    closing = [rule for rule in possible if _strictness(rule) < _STRICT.index(action)]
    strictest = min(closing, key=_strictness, default=known)
    return (action, None) if strictest is None else (strictest.action, strictest)


def _strictness(rule: PermissionRule) -> int:
    return _STRICT.index(rule.action)
