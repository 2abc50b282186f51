"""Comparing a run of a random program with what must come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from noetic_py.errors import BudgetExceeded
from noetic_py.testing._random_programs.conversation import pairing_error, told
from noetic_py.testing._random_programs.observations import Observations, read_journal
from noetic_py.testing._random_programs.oracle import expected_outcome
from noetic_py.testing._random_programs.program import RandomProgram
from noetic_py.testing._random_programs.scope import AmbiguousOutcome, ExpectedOutcome
from noetic_py.testing._random_programs.states import plain_state

if TYPE_CHECKING:
    from noetic_py.core.control import AnyResult
    from noetic_py.journal.records import JournalRecord


def assert_expected_outcome(
    program: RandomProgram,
    seen: Observations,
    result: AnyResult,
    *,
    journal: Sequence[JournalRecord] = (),
) -> ExpectedOutcome | None:
    """Compare a run with what must come out of its program: status, value, error, state, conversation, counts, cost.

    Args:
        program: What was run.
        seen: What its bodies saw.
        result: How the run ended, with `on_error="result"`.
        journal: The journal of the run, when it was kept: of paths that end at the same moment it says which was first.

    Returns:
        What must come out; `None` when two outcomes are right and it was not noted which was chosen, as it is with one
        program in a hundred. Then only counts, cost and the conversation's form are compared.

    Raises:
        AssertionError: The run came out another way; a note shows the program.
    """
    try:
        _same("conversations that no provider takes", [pairing_error(each) for each in seen.bad_requests], [])
        _same("what is wrong with the conversation", pairing_error(result.items), None)
        _same("errors that no program brings about", seen.unexpected, [])
        _check_books(program, seen, result)
        try:
            kept = read_journal(journal)
            expected = expected_outcome(program, evolve(seen, marks=seen.marks | kept.marks, asked=kept.asked))
        except AmbiguousOutcome:
            return None
        _check_result(expected, result)
    except AssertionError as error:
        error.add_note(f"{program}")
        raise
    return expected


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, expected {expected!r}")


def _within(what: str, least: Any, found: Any, most: Any) -> None:
    if found is None or not least <= found <= most:
        raise AssertionError(f"{what}: {found}, expected {least} to {most}")


def _check_books(program: RandomProgram, seen: Observations, result: AnyResult) -> None:
    """Every attempt is counted once, and no limit is passed."""
    # A round that was cancelled right before its model was asked has been counted, and was not noted.
    _within("steps", seen.bodies, result.steps, seen.bodies + seen.cancelled)
    # What a call in flight has cost when its process died is not known.
    _within("cost", 0 if seen.deaths else seen.cost, result.cost, seen.cost)
    if program.model_calls is not None:
        _within("model calls", 0, result.model_calls, program.model_calls)
        if seen.refused and not seen.deaths:
            _same("model calls before one was refused", seen.calls, program.model_calls)


def _check_result(expected: ExpectedOutcome, result: AnyResult) -> None:
    _same(f"status (error: {result.error})", result.status, expected.status)
    _same("value", result.output_or(None), expected.value)
    if expected.error is not None:
        _same(f"error ({result.error})", type(result.error).__name__, expected.error)
    if isinstance(result.error, BudgetExceeded):
        _same("dimension", result.error.dimension, "model_calls")
    _same("state", plain_state(result.state), expected.state)
    _same("items", tuple(told(result.items)), expected.items)
    _same("new items", tuple(told(result.new_items)), expected.items)
