"""How numbers and texts are written for people, and values as JSON."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeGuard

import attrs

from noetic_py.core.items import ItemBase
from noetic_py.steps.flow import Settled

# Characters that steer a terminal or change the reading order: control characters except tab and line feed, format
# characters except the two joiners that letters and pictures are made with, line separators, lone surrogates.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_COLOURED = re.compile(r"(\x1b\[[0-9;:]*m|\r)")


def program() -> str:
    """How the reader's shell starts this command again: `noetic`, or its path where the shell does not find that.

    `uv run` adds the environment's folder to the path of this process and not to the shell's.
    """
    started = Path(sys.argv[0])
    if started.stem != "noetic" or len(started.parts) == 1:
        return "noetic"
    if "UV" not in os.environ and shutil.which("noetic") is not None:
        return "noetic"
    here = Path.cwd()
    return shlex.quote(str(started.relative_to(here) if started.is_relative_to(here) else started))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts as columns, the first one their names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def plural(count: int, word: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def amount(value: Decimal) -> str:
    """A number with as many places as it has, and commas."""
    return f"{value.normalize():,f}"


def money(value: Decimal | None) -> str:
    """USD with at least two and at most six places; `cost unknown` for `None`."""
    if value is None:
        return "cost unknown"
    whole, _, places = f"{value:,.6f}".partition(".")
    return f"${whole}.{places.rstrip('0').ljust(2, '0')}"


def neutral(text: str, *, coloured: bool = False) -> str:
    """The text with everything that could steer a terminal written as an escape in its place.

    All that the command line writes for people goes through it: values, errors and names may hold anything that a model
    or a database says.

    Args:
        text: The text, of any number of lines.
        coloured: Whether colours and carriage returns stay, as in what a flow's own code prints.
    """
    if not coloured:
        return _STEERING.sub(_escaped, text)
    parts = _COLOURED.split(text)
    return "".join(part if at % 2 else _STEERING.sub(_escaped, part) for at, part in enumerate(parts))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def printable(text: str) -> str:
    """The text on one line, without anything that could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def jsonable(value: object) -> Any:
    """The value as what JSON knows: what JSON has no form for as text."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value, fallback=_outline, inf_nan_mode="strings")
    except (ValueError, TypeError, RecursionError):
        # Bytes that are not text, or a value that holds itself: it can only be named.
        return repr(value)


def _outline(value: object) -> Any:
    """JSON for values that pydantic does not know: items, attrs classes, errors, and others by their text."""
    from noetic_py.journal.values import Stored

    if isinstance(value, ItemBase):
        from noetic_py.core.codec import to_wire

        return to_wire(value)
    if isinstance(value, Stored):
        return value.tree
    if _is_settled(value):
        return {"value": value.value} if value.ok else {"error": value.error}
    kind: type[Any] = type(value)
    if attrs.has(kind):
        return {each.name: getattr(value, each.name) for each in attrs.fields(kind)}
    return str(value)


def _is_settled(value: object) -> TypeGuard[Settled[object]]:
    return isinstance(value, Settled)
