"""Journals of which one record was edited under a valid checksum: whatever reads them reads them or refuses by name.

`python -m tests.security.edited 300 1` does it for 300 seconds from seed 1 and says what was found.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from attrs import define, evolve, field, frozen

import noetic_py
from noetic_py import Harness, InMemoryBackend, errors
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.cli.record_lines import as_object, line_of
from noetic_py.cli.run_tree import read_tree
from noetic_py.cli.show import item_lines, show_json, show_text
from tests.histories.programs import Program
from tests.histories.recording import History, forget, harness_for, read_histories, resume_options
from tests.security.fuzzing import TREES, _grafted

LIBRARY = Path(noetic_py.__file__).parent
NAMED = (errors.NoeticError, errors.NoeticWarning)
"""What refuses a journal, or says what it leaves out of it."""
SECONDS = 2
"""After how long a run is given up whose steps wait for each other, which an edited record can make of them."""


TELLS = frozenset({"log.py", "state.py"})
"""What tells a body of a value that it does not take, such as a field of the state that is not there."""


@frozen
class Kept:
    """A run as a backend holds it."""

    history: History
    records: Sequence[Record]
    status: str | None
    summary: bytes


@define
class Tried:
    """What was tried: how many journals, how many were refused, and what was raised without a name."""

    journals: int = 0
    refused: int = 0
    unnamed: list[str] = field(factory=list[str])


async def load(*names: str) -> list[Kept]:
    """Every recorded run, or those that are named."""
    found: list[Kept] = []
    for history in read_histories():
        if names and history.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            async with SqliteBackend(history.restore(Path(folder))) as backend:
                entry = await backend.entry(history.run)
                assert entry is not None
                found.append(Kept(history, await backend.read(history.run), entry.status, entry.summary))
    return found


def edit(records: Sequence[Record], chance: random.Random) -> list[Record]:
    """The journal with one record changed: its tree, its path, its kind or its place."""
    made = list(records)
    at = chance.randrange(len(made))
    record = made[at]
    what = chance.random()
    if what < 0.8:
        tree = json.loads(record.payload)
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            tree = _changed(tree, chance)
        made[at] = evolve(record, payload=json.dumps(tree).encode())
    elif what < 0.9:
        frames = record.path
        other = chance.choice(made).path
        made[at] = evolve(
            record,
            path=chance.choice([(), other, (*frames, "x"), frames[:-1], ("",) * 2, (*frames, *other), frames * 200]),
        )
    elif what < 0.95:
        made[at] = evolve(record, kind=chance.choice(made).kind)
    else:
        made.insert(chance.randrange(len(made) + 1), made.pop(at))
    return made


def _changed(tree: Any, chance: random.Random) -> Any:
    # Of an object one field, so that all fields come by.
    if tree and tree.__class__ in (list, dict) and chance.random() < 0.5:
        made: Any = tree.copy()
        key: Any = chance.choice(list(made) if made.__class__ is dict else range(len(made)))
        made[key] = chance.choice([*TREES, "run", ["a"], 1, 2])
        return made
    return _grafted(tree, chance)


async def feed(kept: Kept, records: list[Record], tried: Tried, told: str) -> None:
    """Let everything that reads a journal read it, and go on with it."""
    tried.journals += 1
    forget(3)
    program = kept.history.made()
    refused = False
    for name in READERS:
        backend = InMemoryBackend()
        try:
            lease = await backend.acquire("run", ttl=60)
            await backend.append(
                "run", expected_position=0, fence=lease.fence, records=records, summary=kept.summary, status=kept.status
            )
            await backend.release(lease)
            with anyio.move_on_after(SECONDS):
                async with harness_for(program, backend) as harness:
                    await READERS[name](harness, program)
        except Exception as error:  # noqa: BLE001  # which ones there are is what is tried
            # A warning of the library, which is an error in tests, says by name what it leaves out.
            refused = refused or isinstance(error, NAMED)
            # A failure of a step says nothing but what its body has raised.
            found = error.__cause__ if isinstance(error, errors.StepFailed) else error
            if found is not None and not isinstance(found, NAMED) and _is_of_the_library(found):
                tried.unnamed.append(ascii(f"{told}: {name}: {type(found).__name__}: {found}\n{_last(found)}"))
    tried.refused += refused


async def _look(harness: Harness[Any], program: Program) -> None:
    assert [info.run_id for info in await harness.runs.list()] == ["run"]
    info = await harness.runs.get("run")
    await harness.runs.progress("run")
    journal = await harness.runs.journal("run")
    run = read_tree(journal)
    assert show_text(info, run, everything=True)
    assert show_json(info, run, items=True)
    list(item_lines(run.items()))
    for position, record in enumerate(journal, 1):
        assert line_of(position, record)
        assert as_object(position, record)


async def _plan(harness: Harness[Any], program: Program) -> None:
    await harness.plan_resume("run", program.flow)


async def _resume(harness: Harness[Any], program: Program) -> None:
    resume: Any = harness.resume
    await resume("run", program.flow, state_type=program.state_type, **resume_options(program))


async def _answer(harness: Harness[Any], program: Program) -> None:
    for request in (await harness.runs.get("run")).pending:
        approval = request.kind == "approval"
        await harness.runs.answer(request.approve(arguments=request.arguments) if approval else request.answer(1))
    await harness.runs.wrap_up("run", "over", wait=0)


READERS = {"look": _look, "plan": _plan, "answer": _answer, "resume": _resume}


def _is_of_the_library(error: BaseException) -> bool:
    """Whether the library's own code raised it, and not a body that was given another value than it takes."""
    frames = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    own = [frame for frame in frames if frame.is_relative_to(LIBRARY) or "histories" in frame.parts]
    return bool(own) and own[-1].is_relative_to(LIBRARY) and own[-1].name not in TELLS


def _last(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-3:])


async def fuzz(all_kept: Sequence[Kept], *, journals: int, seconds: float, seed: int) -> Tried:
    """Edit journals and feed them until the time is over or so many were fed."""
    chance, tried = random.Random(seed), Tried()
    until = time.monotonic() + seconds
    # What the runs log is text of the edits, which a test runner that captures it may not be able to hand on.
    logging.disable()
    try:
        while tried.journals < journals and time.monotonic() < until and len(tried.unnamed) < 40:
            kept = chance.choice(all_kept)
            records = edit(kept.records, chance)
            changed = [(at, one) for at, (one, old) in enumerate(zip(records, kept.records, strict=True)) if one != old]
            await feed(kept, records, tried, f"{kept.history.name} {changed[:1]!r:.300}")
    finally:
        logging.disable(logging.NOTSET)
    return tried


def main(seconds: str, seed: str) -> int:
    """Say what was found; 1 when something was."""

    async def found() -> Tried:
        return await fuzz(await load(), journals=10**9, seconds=float(seconds), seed=int(seed))

    tried = anyio.run(found)
    sys.stdout.write(
        "\n\n".join(tried.unnamed)
        + f"\njournals {tried.journals} refused {tried.refused} unnamed {len(tried.unnamed)}\n"
    )
    return 1 if tried.unnamed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
