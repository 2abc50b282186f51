"""Where two runs differ: the first record of one that the other does not have, path by path.

What differs between any two runs is left out: ids, times, tokens, and how a body that was started again came to be. So
is the order in which parallel paths happened to write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field, frozen

from noetic_py.cli.formatting import plural, printable
from noetic_py.cli.record_lines import as_object, record_fields, short
from noetic_py.core.values import is_dict, is_list
from noetic_py.engine.kinds import KINDS
from noetic_py.journal.records import (
    AttemptFailed,
    Decision,
    JournalRecord,
    ResultDiscarded,
    RunBegun,
    RunEnded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
    stored_name,
)
from noetic_py.journal.values import Path

_COMPARED = (RunBegun, Segment, StepFinished, AttemptFailed, StepStopped, Decision, RunEnded)
# Fields that differ in every run, or that say nothing of what it did.
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
class RunDifference:
    """Where two runs differ.

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

    def add(self, compared: ComparedRecord) -> None:
        self.order.append(compared)
        self.by_path.setdefault(compared.record.path, []).append(compared)

    def forget_segments(self, path: Path) -> None:
        """A body was started again: what it had written itself is discarded."""
        self._forget(each for each in self.order if each.record.path == path and isinstance(each.record, Segment))

    def forget_below(self, path: Path) -> None:
        """A step, and all below it, is discarded."""
        self._forget(each for each in self.order if each.record.path[: len(path)] == path)

    def _forget(self, discarded: Iterable[ComparedRecord]) -> None:
        for compared in list(discarded):
            self.order.remove(compared)
            self.by_path[compared.record.path].remove(compared)


def _side(records: Sequence[JournalRecord]) -> _Side:
    side = _Side()
    fences: dict[Path, int] = {}
    for position, record in enumerate(records, 1):
        if isinstance(record, StepOpened):
            again = record.fence > fences.get(record.path, record.fence)
            fences[record.path] = record.fence
            if again and not KINDS[record.kind].composite:
                side.forget_segments(record.path)
        elif isinstance(record, ResultDiscarded):
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
    if isinstance(record, StepFinished) and KINDS[record.kind].part and is_list(fields["output"]):
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


def first_difference(left: Sequence[JournalRecord], right: Sequence[JournalRecord]) -> tuple[RunDifference | None, int]:
    """Compare two journals.

    Returns:
        Where they differ, `None` when they do not; and how many records are common before that.
    """
    ours, theirs = _side(left), _side(right)
    met: dict[Path, int] = {}
    for common, compared in enumerate(ours.order):
        path = compared.record.path
        index = met.get(path, 0)
        met[path] = index + 1
        others = theirs.by_path.get(path, [])
        other = others[index] if index < len(others) else None
        differing = () if other is None else _differing(compared, other)
        if other is None or differing:
            return RunDifference(path, compared, other, differing), common
    for compared in theirs.order:
        path = compared.record.path
        if theirs.by_path[path].index(compared) >= met.get(path, 0):
            return RunDifference(path, None, compared, ()), len(ours.order)
    return None, len(ours.order)


def _differing(left: ComparedRecord, right: ComparedRecord) -> tuple[str, ...]:
    if type(left.record) is not type(right.record):
        return ("record",)
    return tuple(name for name in left.fields if _text(left.fields[name]) != _text(right.fields.get(name)))


def _text(value: Any) -> str:
    # In Python 1, 1.0 and True are equal.
    return json.dumps(value, sort_keys=True)


def difference_json(found: RunDifference | None, common: int, ids: tuple[str, str]) -> str:
    """The outcome as a JSON object."""
    fields: dict[str, Any] = {
        "left": ids[0],
        "right": ids[1],
        "same": found is None,
        "common": common,
        "difference": None,
    }
    if found is not None:
        sides = {
            name: None if side is None else as_object(side.position, side.record)
            for name, side in (("left", found.left), ("right", found.right))
        }
        fields["difference"] = {"path": list(found.path), "fields": list(found.fields), **sides}
    return json.dumps(fields)


def difference_text(found: RunDifference | None, common: int, ids: tuple[str, str]) -> str:
    """The outcome for people."""
    if found is None:
        return f"no difference in {plural(common, 'record')}"
    where = printable("/".join(found.path)) or "the run itself"
    lines = [f"they differ at {where}, after {plural(common, 'record')} in common"]
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
        return f"{number}{stored_name(side.record)} {short(side.fields, _VALUE)}"
    return f"{number}{short(side.fields.get(name), _VALUE)}"
