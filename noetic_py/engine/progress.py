"""The progress that steps report: the run's map of it, what the journal stores, and what discards it.

It is kept by the paths of steps and by nothing else, so that every way in which something is discarded is one rule:
what is left at a path and below it is forgotten. A retry does so, the losers of a race, a step that is run anew because
it differs, and a loop for each round before the next one. A body that is started again by a later owner does not: for
it the progress is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from noetic_py.context.protocol import CURRENT
from noetic_py.core.codec.structure import check_nesting
from noetic_py.core.events import ProgressSet
from noetic_py.core.progress import DONE, ProgressEntry
from noetic_py.core.values import copy_value, is_dict, is_list
from noetic_py.engine.frame import Frame, settle_cuts
from noetic_py.errors import CodecError, ConfigError, LimitExceeded, NoeticError
from noetic_py.journal.records import (
    AttemptFailed,
    JournalRecord,
    Progressed,
    ResultDiscarded,
    StepFinished,
    dump_record,
)
from noetic_py.redaction import with_article

if TYPE_CHECKING:
    from noetic_py.engine.state import Run
    from noetic_py.journal.values import Path


MAX_BYTES = 1024 * 1024
"""How long the progress of one step may be in a journal: it is written again whenever it is set."""
MAX_ENTRIES = 100_000
"""How many steps of one run may have left something."""


class RunProgress:
    """The progress of a run's steps, for holders of a context."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def entries(self) -> Mapping[Path, ProgressEntry]:
        """All of it, live."""
        return _Entries(self._run.progress)

    def put(self, path: Path, entry: ProgressEntry | None) -> None:
        """Set the progress of a step."""
        self._run.in_its_thread(partial(_put, self._run, path, entry))

    def reset_below(self, path: Path) -> None:
        """Forget everything strictly below a step."""
        self._run.in_its_thread(partial(_reset_below, self._run, path))


class _Entries(Mapping[tuple[str, ...], ProgressEntry]):
    """Entries to be read: what is changed in place is a copy, as it would be in a process that resumes the run."""

    __slots__ = ("_held",)

    def __init__(self, held: Mapping[Path, ProgressEntry]) -> None:
        self._held = held

    def __getitem__(self, path: Path) -> ProgressEntry:
        return _own(self._held[path])

    def __iter__(self) -> Iterator[Path]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return repr(self._held)


def _own(entry: ProgressEntry) -> ProgressEntry:
    value = copy_value(entry.value)
    return entry if value is entry.value else ProgressEntry(value)


def _put(run: Run, path: Path, entry: ProgressEntry | None) -> None:
    _check_goes_on(run)
    if entry is None:
        _clear(run, [path] if path in run.progress else [])
        return
    if not entry.done:
        _check(entry.value, path)
    if len(run.progress) >= MAX_ENTRIES and path not in run.progress:
        raise LimitExceeded("progress entries", MAX_ENTRIES, path=path, hint="clear what is not needed any more")
    body = CURRENT.get()
    if isinstance(body, Frame):
        settle_cuts(body)
    _say(run, Progressed(path, "done", None) if entry.done else Progressed(path, "set", entry.value))
    run.progress[path] = _own(entry)
    if run.bus.active:
        said = ProgressSet(path, copy_value(entry.value), entry.done)
        run.bus.publish(said.tagged(body.source or body.find_source()) if isinstance(body, Frame) else said)


def _reset_below(run: Run, path: Path) -> None:
    _check_goes_on(run)
    _clear(run, [each for each in _at(run.progress, path) if each != path])


def _check_goes_on(run: Run) -> None:
    if run.root is None:
        raise ConfigError("the run is over", code="not-running", hint="report progress while the step runs")


def _clear(run: Run, paths: Sequence[Path]) -> None:
    for path in paths:
        _say(run, Progressed(path, "cleared", None))
        del run.progress[path]


def _say(run: Run, record: Progressed) -> None:
    """Have the journal of a kept run say so at the next commit."""
    store = run.store
    if store is not None:
        try:
            stored = dump_record(record, store.codec)
        except NoeticError as error:
            raise error.at(record.path) from None
        if len(stored.payload) > MAX_BYTES:
            raise LimitExceeded(
                "progress size", MAX_BYTES, path=record.path, hint="store the value elsewhere and report its place"
            )
        store.put_off(record, stored)


def _at(paths: Mapping[Path, object], path: Path) -> list[Path]:
    """The paths at and below one."""
    depth = len(path)
    return [each for each in paths if each[:depth] == path]


def _check(value: object, path: Path) -> None:
    """Refuse a value that is not JSON, with a backend and without: a flow is not to fail only where it is kept."""
    check_nesting(value)
    found = _odd(value)
    if found is not None:
        where, odd = found
        shown = (
            repr(odd) if isinstance(odd, float) else f"{with_article(type(odd).__module__)}.{type(odd).__qualname__}"
        )
        raise CodecError(
            f"{shown} is not valid JSON",
            where=f"progress{where}",
            path=path,
            hint="lists, dicts with text keys, plain values",
        )


_PLAIN = frozenset({str, int, bool, type(None)})


def _odd(value: object) -> tuple[str, object] | None:
    """Where in a value something stands that JSON does not have, and what that is."""
    kind = type(value)
    if kind in _PLAIN or (isinstance(value, float) and kind is float and isfinite(value)):
        return None
    if kind is list and is_list(value):
        parts = [(f"[{index}]", part) for index, part in enumerate(value)]
    elif kind is dict and is_dict(value):
        keys = [key for key in value if type(key) is not str]
        if keys:
            return f"[{keys[0]!r:.60}]", keys[0]
        parts = [(f"[{key!r:.60}]", part) for key, part in value.items()]
    else:
        return "", value
    for where, part in parts:
        found = _odd(part)
        if found is not None:
            return where + found[0], found[1]
    return None


# ---------------------------------------------------------------------------------------------------- what is discarded


def forget(run: Run, path: Path) -> None:
    """Discard the progress of a step and all below it, for a reason that the journal shows."""
    for each in _at(run.progress, path):
        del run.progress[each]
    if run.store is not None:
        # It would come after the record that discards it.
        run.store.drop_put_off(path)


def forget_round(frame: Frame, name: str) -> None:
    """A round of a loop is over, and another one follows: the next one finds nothing of it.

    By the round and not by the loop, so that a resumed loop, whose rounds replay, leaves the round in flight alone.
    """
    run = frame.x.run
    _clear(run, _at(run.progress, (*frame.at, name)))


def progress_of(journal: Sequence[JournalRecord]) -> dict[Path, ProgressEntry]:
    """The progress that a journal holds and that was not discarded."""
    found: dict[Path, ProgressEntry] = {}
    for record in journal:
        if isinstance(record, Progressed):
            found.pop(record.path, None)
            if record.what != "cleared":
                found[record.path] = DONE if record.what == "done" else ProgressEntry(record.value)
        elif found and (
            isinstance(record, ResultDiscarded) or (isinstance(record, AttemptFailed) and not record.final)
        ):
            for path in _at(found, record.path):
                del found[path]
        elif found and isinstance(record, StepFinished) and record.winner is not None:
            for path in _losers(found, record.path, record.winner):
                del found[path]
    return found


def _losers(paths: Mapping[Path, object], race: Path, winner: int) -> list[Path]:
    depth = len(race)
    return [each for each in _at(paths, race) if len(each) > depth and not each[depth].endswith(f"[{winner}]")]
