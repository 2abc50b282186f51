"""What a process does to a store before it is killed or loses its power, and what has to be true of the store then."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.journal.stored import Record, Transaction
from noetic_py.testing._conformance.base import SCOPE, everything, record

__all__ = ["ROUNDS", "carry", "check"]

ROUNDS = 20
_RUN, _BESIDE = "carried", "beside"
_SIZES = (40, 700, 6000, 90, 70_000)
Lapse = Callable[[CheckpointBackend], Awaitable[None]]


def _records(number: int) -> list[Record]:
    """The transaction of a round, the same in every process."""
    dice = random.Random(number)  # noqa: S311 # no secret
    payload = dice.randbytes(_SIZES[number % len(_SIZES)])
    return [
        Record("Test", ("flow", f"round[{number}]"), payload),
        *(record(f"{number}/{n}") for n in range(number % 3)),
    ]


_POSITIONS = [0]
for _number in range(ROUNDS):
    _POSITIONS.append(_POSITIONS[-1] + len(_records(_number)))


async def check(backend: CheckpointBackend, acknowledged: Path) -> int:
    """Check what is stored; returns how many rounds are there.

    Args:
        backend: Another process's, or that of a machine that has its power again.
        acknowledged: The file in which `carry` has written down what it was told is stored.

    Raises:
        AssertionError: Something was lost, or is there in part.
    """
    said = _said(acknowledged)
    rounds = max((int(number) for what, number in said if what == "round"), default=0)
    head = await backend.head(_RUN)
    position = 0 if head is None else head.position
    if position < _POSITIONS[rounds]:
        raise AssertionError(f"{_POSITIONS[rounds]} records were acknowledged, and the journal ends at {position}")
    if position not in _POSITIONS:
        raise AssertionError(f"the journal ends at {position}, in the middle of a transaction")
    rounds = _POSITIONS.index(position)
    expected = [each for number in range(rounds) for each in _records(number)]
    if rounds and await everything(backend, _RUN) != expected:
        raise AssertionError(f"the {position} records are not those that were written")
    entry = await backend.entry(_RUN)
    if entry is not None and rounds:
        found = (entry.position, entry.summary, entry.status)
        if found != (position, *_end(rounds - 1)):
            raise AssertionError(f"the journal has {position} records, and the list of runs says {found}")
    await _check_beside(backend, rounds)
    await _check_values(backend, [int(number) for what, number in said if what == "value"])
    return rounds


def _said(acknowledged: Path) -> list[list[str]]:
    return [line.split() for line in acknowledged.read_text().splitlines()] if acknowledged.exists() else []


async def _check_beside(backend: CheckpointBackend, rounds: int) -> None:
    head = await backend.head(_BESIDE)
    position, most = 0 if head is None else head.position, _beside(rounds)
    # A commit to several runs may be cut between them, in their order.
    if position not in (most, most - 1):
        raise AssertionError(f"{most} commits were of two runs, and the journal of the second has {position} records")
    if position and await everything(backend, _BESIDE) != [record(f"beside {each}") for each in range(position)]:
        raise AssertionError("the records of the second run are not those that were written")


async def _check_values(backend: CheckpointBackend, stored: list[int]) -> None:
    for key in range(4):
        least = max((number for number in stored if number % 4 == key), default=None)
        found = await backend.get(SCOPE, f"k{key}")
        known = {_value(number): number for number in range(key, ROUNDS, 4)}
        number = None if found is None else known.get(found.value, -1)
        if number == -1 or (least is not None and (number is None or number < least)):
            raise AssertionError(f"value {least} of k{key} was acknowledged, and {number} is there")


def _beside(rounds: int) -> int:
    """How many of the first rounds write to the second run too."""
    return (rounds + 4) // 5


def _value(number: int) -> bytes:
    return b"value %d " % number * 50


def _end(number: int) -> tuple[bytes, str]:
    """The summary and the status that a round writes."""
    return b"round %d" % number, "completed" if number == ROUNDS - 1 else "running"


async def carry(backend: CheckpointBackend, acknowledged: Path, lapse: Lapse) -> int:
    """Check the store, do the rounds that are not there yet, and check it again; returns how many are there.

    Raises:
        AssertionError: Something was lost, or is there in part.
    """
    begun = await check(backend, acknowledged)
    await lapse(backend)
    lease = await backend.acquire(_RUN, ttl=60.0)
    handle = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        await _mend(backend, begun)
        for number in range(begun, ROUNDS):
            await _round(backend, number, lease.fence)
            os.write(handle, b"round %d\n" % (number + 1))
            await backend.put(SCOPE, f"k{number % 4}", _value(number))
            os.write(handle, b"value %d\n" % number)
    finally:
        os.close(handle)
    await backend.release(lease)
    return await check(backend, acknowledged)


async def _mend(backend: CheckpointBackend, rounds: int) -> None:
    """Write what a cut commit has not written of the second run."""
    head = await backend.head(_BESIDE)
    position, most = 0 if head is None else head.position, _beside(rounds)
    if position < most:
        mended = [record(f"beside {position}")]
        await backend.append(_BESIDE, expected_position=position, fence=0, records=mended)


async def _round(backend: CheckpointBackend, number: int, fence: int) -> None:
    summary, status = _end(number)
    position, records = _POSITIONS[number], _records(number)
    if number % 5:
        await backend.append(
            _RUN, expected_position=position, fence=fence, records=records, summary=summary, status=status
        )
        return
    beside = number // 5
    first = Transaction(_RUN, position, fence, records, summary=summary, status=status)
    await backend.commit([first, Transaction(_BESIDE, beside, 0, [record(f"beside {beside}")])])
