"""Where two runs part: the first record of one that the other does not have, path by path.

What differs between any two runs is left out: ids, times, tokens, and how a body that was started again came to be. So
is the order in which parallel paths happened to write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field, frozen

from noetic_py.cli.lines import as_object, record_fields, short
from noetic_py.cli.words import plural, printable
from noetic_py.core.codec.text import is_dict, is_list
from noetic_py.engine.journaling.fold import COMPOSITES
from noetic_py.journal.records import (
    AttemptFailed,
    Decision,
    JournalRecord,
    Path,
    RunBegun,
    RunEnded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
    Voided,
)

__all__ = ["Parting", "part", "parting_json", "parting_text"]

_COMPARED = (RunBegun, Segment, StepFinished, AttemptFailed, StepStopped, Decision, RunEnded)
# Of every run its own, or no part of what it did.
_OWN = frozenset({"run_id", "thread_id", "usage", "cost", "digest", "opening"})
_ITEM_IDS = frozenset({"id", "call_id"})
_VALUE = 200


@frozen(eq=False)
class ComparedRecord:
    """A record that is compared."""

    position: int
    record: JournalRecord
    fields: dict[str, Any]


@frozen(eq=False)
class Parting:
    """Where two runs part.

    Attributes:
        path: At which step.
        left: What the first run has there, `None` when it has nothing more.
        right: What the second run has there, likewise.
        fields: What of it differs.
    """

    path: Path
    left: ComparedRecord | None
    right: ComparedRecord | None
    fields: tuple[str, ...]


@define(eq=False)
class _Side:
    """One run's compared records, in order and by path."""

    order: list[ComparedRecord] = field(factory=list[ComparedRecord])
    by_path: dict[Path, list[ComparedRecord]] = field(factory=dict[Path, "list[ComparedRecord]"])

    def add(self, told: ComparedRecord) -> None:
        self.order.append(told)
        self.by_path.setdefault(told.record.path, []).append(told)

    def forget_segments(self, path: Path) -> None:
        """A body was started again: what it had written itself is void."""
        self._forget(told for told in self.order if told.record.path == path and isinstance(told.record, Segment))

    def forget_below(self, path: Path) -> None:
        """A step, and all below it, is void."""
        self._forget(told for told in self.order if told.record.path[: len(path)] == path)

    def _forget(self, void: Iterable[ComparedRecord]) -> None:
        for told in list(void):
            self.order.remove(told)
            self.by_path[told.record.path].remove(told)


def _side(records: Sequence[JournalRecord]) -> _Side:
    side = _Side()
    fences: dict[Path, int] = {}
    for position, record in enumerate(records, 1):
        if isinstance(record, StepOpened):
            again = record.fence > fences.get(record.path, record.fence)
            fences[record.path] = record.fence
            if again and record.kind not in COMPOSITES:
                side.forget_segments(record.path)
        elif isinstance(record, Voided):
            side.forget_below(record.path)
        elif isinstance(record, _COMPARED) and (not isinstance(record, RunEnded) or position == len(records)):
            side.add(ComparedRecord(position, record, _essence(record)))
    return side


def _essence(record: JournalRecord) -> dict[str, Any]:
    fields = {name: _plain(value) for name, value in record_fields(record).items() if name not in _OWN}
    if "delta" in fields:
        fields["delta"] = [
            {name: part for name, part in change.items() if name != "before"} for change in fields["delta"]
        ]
    if "items" in fields:
        fields["items"] = [_without_ids(item) for item in fields["items"]]
    if isinstance(record, StepFinished) and record.kind == "answer" and is_list(fields["output"]):
        # Tokens, cost and the provider's id are of each call its own.
        fields["output"] = fields["output"][2:4]
    return fields


def _plain(value: Any) -> Any:
    """Stored items without their ids, wherever they are."""
    if is_list(value):
        return [_plain(part) for part in value]
    if not is_dict(value):
        return value
    if value.get("$") == "item":
        return {"$": "item", "v": _without_ids(value.get("v"))}
    return {name: _plain(part) for name, part in value.items()}


def _without_ids(item: Any) -> Any:
    return {name: part for name, part in item.items() if name not in _ITEM_IDS} if is_dict(item) else item


def part(left: Sequence[JournalRecord], right: Sequence[JournalRecord]) -> tuple[Parting | None, int]:
    """Compare two journals.

    Returns:
        Where they part, `None` when they do not; and how many records are alike before that.
    """
    ours, theirs = _side(left), _side(right)
    met: dict[Path, int] = {}
    for alike, told in enumerate(ours.order):
        path = told.record.path
        index = met.get(path, 0)
        met[path] = index + 1
        others = theirs.by_path.get(path, [])
        other = others[index] if index < len(others) else None
        differing = () if other is None else _differing(told, other)
        if other is None or differing:
            return Parting(path, told, other, differing), alike
    for told in theirs.order:
        path = told.record.path
        if theirs.by_path[path].index(told) >= met.get(path, 0):
            return Parting(path, None, told, ()), len(ours.order)
    return None, len(ours.order)


def _differing(left: ComparedRecord, right: ComparedRecord) -> tuple[str, ...]:
    if type(left.record) is not type(right.record):
        return ("record",)
    return tuple(name for name in left.fields if _text(left.fields[name]) != _text(right.fields.get(name)))


def _text(value: Any) -> str:
    # In Python 1, 1.0 and True are equal.
    return json.dumps(value, sort_keys=True)


def parting_json(found: Parting | None, alike: int, ids: tuple[str, str]) -> str:
    """The outcome as a JSON object."""
    told: dict[str, Any] = {"left": ids[0], "right": ids[1], "same": found is None, "alike": alike, "parting": None}
    if found is not None:
        sides = {
            name: None if side is None else as_object(side.position, side.record)
            for name, side in (("left", found.left), ("right", found.right))
        }
        told["parting"] = {"path": list(found.path), "fields": list(found.fields), **sides}
    return json.dumps(told)


def parting_text(found: Parting | None, alike: int, ids: tuple[str, str]) -> str:
    """The outcome for people."""
    if found is None:
        return f"no difference in {plural(alike, 'record')}"
    where = printable("/".join(found.path)) or "the run itself"
    lines = [f"they part at {where}, after {plural(alike, 'record')} alike"]
    for name in found.fields or ("record",):
        lines.append(f"  {name}")
        for run_id, side in zip(ids, (found.left, found.right), strict=True):
            lines.append(f"    {printable(run_id)}: {_side_text(side, name)}")
    return "\n".join(lines)


def _side_text(side: ComparedRecord | None, name: str) -> str:
    if side is None:
        return "nothing more"
    number = f"#{side.position} "
    if name == "record":
        return f"{number}{type(side.record).__name__} {short(side.fields, _VALUE)}"
    return f"{number}{short(side.fields.get(name), _VALUE)}"
