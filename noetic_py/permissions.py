"""Rules that say which calls of tools are made, which need somebody's leave, and which are not made.

A rule names tools by a pattern and may look at arguments. Of all the rules that fit a call the strictest counts, in
whatever order they stand: `deny` before `ask` before `allow`. So a broad allowance never opens what a narrow rule
closes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from noetic_py.errors import ConfigError

__all__ = ["PermissionAction", "PermissionRule", "decide"]

PermissionAction: TypeAlias = Literal["allow", "ask", "deny"]
"""What becomes of a call: it is made, it waits for somebody's leave, or it is not made."""

_STRICT: tuple[PermissionAction, ...] = ("deny", "ask", "allow")


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError(f"a permission rule: {what}", code="permission", hint=hint)


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Patterns by name, however they are given, in one order."""
    pairs: list[tuple[Any, Any]] = list(dict(value).items())
    for name, fit in pairs:
        if not _is_text(name) or not _is_text(fit):
            raise _wrong(f"where {name!r} is {fit!r}, which is no pattern", 'where={"command": "git *"}')
    return tuple(sorted(pairs))


def _is_text(value: object) -> bool:
    """Whether this is a text that says something."""
    return isinstance(value, str) and value != ""


def _texts(value: Any) -> tuple[str, ...]:
    texts: tuple[Any, ...] = (value,) if isinstance(value, str) else tuple(map(os.fspath, value))
    if not all(map(_is_text, texts)):
        raise _wrong(f"{value!r} holds something that is no text", 'folders=["/srv/data"]')
    return texts


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)


@frozen
class PermissionRule:
    """What becomes of the calls that it fits.

    Patterns are those of file names: `*` for any text, `?` for one character, `[abc]` for one of several. Upper and
    lower case differ, and the whole text has to fit.

    Args:
        action: What becomes of them.
        tool: The tool's name, or a pattern; of a layer's function such as `facts/remember`.
        where: Patterns of arguments, by their names: each has to be there and to fit. What is no text is compared as
            compact JSON.
        within: Names of arguments that are paths, each of which has to lie in one of `folders`; links are followed. A
            call of which one does not is not fitted.
        folders: The folders.

    Raises:
        ConfigError: An action is unknown, a pattern is no text, or `within` stands without `folders`; code
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

    def fits(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether it says something of a call."""
        return (
            # As the model knows them.
            fnmatchcase(tool.replace("/", "__"), self.tool.replace("/", "__"))
            and all(name in arguments and fnmatchcase(_text(arguments[name]), fit) for name, fit in self.where)
            and all(name in arguments and self._lies_within(arguments[name]) for name in self.within)
        )

    def _lies_within(self, path: object) -> bool:
        if not isinstance(path, str) or not path or "\0" in path:
            return False
        real = os.path.realpath(path)
        for folder in map(os.path.realpath, self.folders):
            if real == folder or real.startswith(folder.rstrip(os.sep) + os.sep):
                return True
        return False


def decide(
    rules: Iterable[PermissionRule], tool: str, arguments: Mapping[str, Any], *, otherwise: PermissionAction
) -> tuple[PermissionAction, PermissionRule | None]:
    """What becomes of a call, and the rule that says so.

    Args:
        rules: The rules.
        tool: The tool's name.
        arguments: What it is called with.
        otherwise: What becomes of a call that no rule fits.
    """
    found = [rule for rule in rules if rule.fits(tool, arguments)]
    strictest = min(found, key=lambda rule: _STRICT.index(rule.action), default=None)
    return (otherwise, None) if strictest is None else (strictest.action, strictest)
