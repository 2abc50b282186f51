"""The record of a detached start: the step's id, its input, its state and its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.core.codec.structure import dump
from noetic_py.core.state import StateBag
from noetic_py.engine.fingerprint import fingerprint
from noetic_py.engine.journaling.replay import as_stored, version_of
from noetic_py.engine.state import Run, limits_of
from noetic_py.errors import CodecError, ConfigError, LimitExceeded
from noetic_py.journal.records import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from noetic_py.context.detached import DetachOptions
    from noetic_py.context.read import ContextScope
    from noetic_py.context.step import AnyStep
    from noetic_py.core.types import Version
    from noetic_py.journal.values import Path


DETACHED_START = "launched"
"""The decision that says it."""


def note(
    run: Run,
    path: Path,
    step: AnyStep,
    value: object,
    scope: ContextScope,
    options: DetachOptions,
    at: int,
    versions: Mapping[str, Version] | None = None,
) -> None:
    """Write down what was started; what cannot be stored is not, and does not go on when its starter has finished.

    Layers that were given to it are code and settings, and cannot be stored either.

    Args:
        run: The run.
        path: The work's.
        step: What was started.
        value: Its input.
        scope: The state it begins with, and those of layers.
        options: What else it was given.
        at: How many of this step its starter had started before.
        versions: Those of the layers that are not the first.
    """
    if run.store is None or options.memory is not None or path in (run.recovered_work or ()):
        return
    codec, state = run.store.codec, scope.state
    try:
        started: dict[str, object] = {
            "step": step.id,
            "fingerprint": fingerprint(step),
            "count": at,
            # Stored as texts, which can be read before their classes are known.
            "input": dump(codec.encode(value)).decode(),
            "state": dump(codec.encode(as_stored(state))).decode(),
            "bag": isinstance(state, StateBag),
            "version": version_of(state.__class__),
            "budget": limits_of(options.budget),
        }
        if scope.layer_states:
            started["memory"] = dump(codec.encode(dict(scope.layer_states))).decode()
            if versions:
                started["layers"] = dict(versions)
        record = Decision(path, DETACHED_START, started)
        run.store.prepare(record)
    except (CodecError, ConfigError, LimitExceeded):
        return
    run.journal.append(record)
