"""What the journal says of work beside the flow when it starts: the step's id, its input, its state and its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetic_py._engine.fingerprint import fingerprint
from noetic_py._engine.limits import limits_of
from noetic_py._engine.revision import as_stored, version_of
from noetic_py.checkpoints.records import Decision
from noetic_py.codec.text import dump
from noetic_py.errors import CodecError, ConfigError, LimitExceeded
from noetic_py.state import StateBag

if TYPE_CHECKING:
    from noetic_py._engine.state import Run
    from noetic_py.checkpoints.records import Path
    from noetic_py.detached import DetachOptions
    from noetic_py.steps.step import Step

__all__ = ["LAUNCHED", "note"]

LAUNCHED = "launched"
"""The decision that says it."""


def note(
    run: Run, path: Path, step: Step[Any, Any, Any, Any], value: object, state: object, options: DetachOptions, at: int
) -> None:
    """Write down what was started; what cannot be stored is not, and does not go on when its starter has finished.

    Layers that were given to it are code and settings, and cannot be stored either.

    Args:
        run: The run.
        path: The work's.
        step: What was started.
        value: Its input.
        state: The state it begins with.
        options: What else it was given.
        at: How many of this step its starter had started before.
    """
    if run.store is None or options.memory is not None or path in (run.relaunched or ()):
        return
    codec = run.store.codec
    try:
        told = {
            "step": step.id,
            "fingerprint": fingerprint(step),
            "count": at,
            # As texts, which can be read before anybody knows of which classes they tell.
            "input": dump(codec.encode(value)).decode(),
            "state": dump(codec.encode(as_stored(state))).decode(),
            "bag": isinstance(state, StateBag),
            "version": version_of(state.__class__),
            "budget": limits_of(options.budget),
        }
        record = Decision(path, LAUNCHED, told)
        run.store.prepare(record)
    except (CodecError, ConfigError, LimitExceeded):
        return
    run.journal.append(record)
