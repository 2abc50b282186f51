"""What the tests of `ctx.progress` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetic_py import Context, JsonValue, Step, loop, step, until
from noetic_py.core.progress import ProgressEntry

Path = tuple[str, ...]
Plain = dict[Path, tuple[JsonValue, bool]]
AnyStep = Step[Any, Any, Any, Any]


def plain(entries: Mapping[Path, ProgressEntry]) -> Plain:
    return {path: (entry.value, entry.done) for path, entry in entries.items()}


def by_name(entries: Mapping[Path, ProgressEntry]) -> dict[str, JsonValue]:
    """By the last frames, with `True` for what is done."""
    return {path[-1] if path else "": True if entry.done else entry.value for path, entry in entries.items()}


def noting(seen: list[Any], name: str = "notes") -> Step[Any, Any, Any, Any]:
    """A step that notes what there is, by name."""

    @step(id=name)
    async def body(value: object, ctx: Context[Any, Any]) -> object:
        seen.append(by_name(ctx.progress.entries))
        return value

    return body


def rounds(body: AnyStep, number: int = 3, **options: Any) -> AnyStep:
    made: AnyStep = loop(body, until=until.max_rounds(number), id="rounds", **options)
    return made
