"""What a function's docstring tells a model: what the tool does, and what each parameter means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence

from attrs import field, frozen

__all__ = ["Docs", "read_docs"]

_HEADERS = frozenset({"Args:", "Arguments:", "Parameters:"})
# "name: text", "name (type): text", and starred names, which belong to no parameter a model can fill.
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*+(?:\([^)]*\)\s*+)?:(?:\s+(?P<text>.*))?$")


@frozen
class Docs:
    """A docstring, taken apart.

    Attributes:
        description: All of it but the section on arguments.
        parameters: The text about each parameter, by name.
    """

    description: str = ""
    parameters: Mapping[str, str] = field(factory=dict[str, str])


def read_docs(text: str | None) -> Docs:
    """Take a Google-style docstring apart; without an `Args:` section all of it is the description."""
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((n for n, line in enumerate(lines) if line.rstrip() in _HEADERS), None)
    if start is None:
        return Docs("\n".join(lines).strip())
    end = next((n for n in range(start + 1, len(lines)) if lines[n].strip() and not lines[n][0].isspace()), len(lines))
    before, after = "\n".join(lines[:start]).strip(), "\n".join(lines[end:]).strip()
    return Docs("\n\n".join(part for part in (before, after) if part), _entries(lines[start + 1 : end]))


def _entries(lines: Sequence[str]) -> dict[str, str]:
    filled = [line for line in lines if line.strip()]
    margin = min((_indent(line) for line in filled), default=0)
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in filled:
        entry = _ENTRY.match(line.strip()) if _indent(line) == margin else None
        if entry is not None:
            current = found.setdefault(entry["name"], [])
            current.append((entry["text"] or "").strip())
        elif current is not None:
            current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
