"""Histories: what is in the files, how one is read, and how a run goes on from it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

from noetic_py import FunctionCall, FunctionCallOutput, Harness, Item, Message, RunResult, StateBag, TokenUsage, errors
from noetic_py.checkpoints import SqliteBackend
from noetic_py.core.codec import to_wire_json
from noetic_py.core.values import is_list, is_mapping
from noetic_py.engine.journaling.fold import tree
from noetic_py.engine.journaling.run_history import read_journal
from noetic_py.engine.kind import Node
from noetic_py.engine.kinds import KINDS
from noetic_py.journal.records import AttemptFailed, JournalRecord
from noetic_py.runner.lease import codec_for
from noetic_py.testing import FaultyBackend, ScriptedModel
from tests.histories.programs import BEGAN, PROGRAMS, WORLD, Program

FOLDER = Path(__file__).resolve().parent / "recorded"
RUN = "run"


@dataclass(frozen=True)
class History:
    """One recorded run.

    Attributes:
        name: Its name, and that of its two files.
        program: The program.
        run: Which run of the file is resumed.
        outcome: What came of it when it was resumed, by the release that recorded it.
    """

    name: str
    program: str
    run: str
    outcome: Mapping[str, Any]

    def made(self) -> Program:
        """Its program."""
        return PROGRAMS[self.program]()

    def restore(self, folder: Path) -> Path:
        """Make the SQLite file again that it was recorded from."""
        path = folder / "runs.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((FOLDER / f"{self.name}.sql").read_text(encoding="utf-8"))
        return path


def dumped(path: Path) -> str:
    """An SQLite file as text: its tables and rows, with every byte of them."""
    with closing(sqlite3.connect(path)) as connection:
        pragmas = [
            f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        return "\n".join([*pragmas, *connection.iterdump()]) + "\n"


def read_histories() -> list[History]:
    """Every history, by name."""
    found: list[History] = []
    for path in sorted(FOLDER.glob("*.json")):
        tree = json.loads(path.read_text(encoding="utf-8"))
        found.append(History(path.stem, tree["program"], tree["run"], tree["outcome"]))
    return found


def write_history(history: History, dump: str, made_by: Mapping[str, Any]) -> None:
    """Add a history.

    Raises:
        FileExistsError: It is there, and a history never changes.
    """
    FOLDER.mkdir(exist_ok=True)
    tree = {"program": history.program, "made_by": made_by, "run": history.run, "outcome": history.outcome}
    with (FOLDER / f"{history.name}.sql").open("x", encoding="utf-8") as file:
        file.write(dump)
    with (FOLDER / f"{history.name}.json").open("x", encoding="utf-8") as file:
        file.write(json.dumps(tree, indent=1, ensure_ascii=False) + "\n")


# ---------------------------------------------------------------------------------------------------- running


def harness_for(program: Program, backend: Any) -> Harness[Any]:
    """A harness with the program's model and layers."""
    if program.answer is None:
        return Harness(plugins=(), checkpoints=backend)
    answers: Any = [program.answer] * 50
    model = ScriptedModel(*answers, usage=TokenUsage(input=10, output=5), cost="0.25", name="test:scripted")
    memory = None if program.memory is None else program.memory()
    return Harness(plugins=(), checkpoints=backend, model=model, memory=memory)


async def begin(program: Program, backend: FaultyBackend, *, process: int = 1) -> dict[str, Any] | None:
    """Run a program; returns what came of it, `None` when its process died."""
    forget(process)
    found: list[dict[str, Any]] = []
    given: dict[str, Any] = {} if program.state is None else {"state": program.state()}
    with backend.outlived():
        async with harness_for(program, backend) as harness:
            run: Any = harness.run
            result = await run(program.flow, program.value, run_id=RUN, on_error="result", **program.options, **given)
            found.append(plain(await _answered(harness, program, result)))
    return found[0] if found else None


async def go_on(history: History, path: Path) -> tuple[dict[str, Any], int]:
    """Resume a history's run; returns what came of it, and how many records were written."""
    forget(3)
    program = history.made()
    async with SqliteBackend(path) as backend:
        before = await backend.head(history.run)
        async with harness_for(program, backend) as harness:
            found = await _outcome(harness, program, history.run)
        after = await backend.head(history.run)
        assert before is not None
        assert after is not None
        return {**found, "began": sorted(BEGAN)}, after.position - before.position


async def die_again(program: Program, backend: FaultyBackend, dies_at: int) -> None:
    """Resume a run in a process that dies as well; what differs is run anew."""
    forget(2)
    backend.revive(dies_at=dies_at)
    with backend.outlived():
        async with harness_for(program, backend) as harness:
            resume: Any = harness.resume
            options = resume_options(program)
            await resume(RUN, program.flow, state_type=program.state_type, on_diverge="adopt", **options)


def resume_options(program: Program) -> dict[str, Any]:
    """What a run has to be given again when it is resumed."""
    again = {name: program.options[name] for name in ("model_settings",) if name in program.options}
    if "budget" in program.options and program.options["budget"].wrap_up is not None:
        again["budget"] = program.options["budget"]
    return again


async def _outcome(harness: Harness[Any], program: Program, run_id: str) -> dict[str, Any]:
    resume: Any = harness.resume
    try:
        options = resume_options(program)
        result = await resume(run_id, program.flow, state_type=program.state_type, on_error="result", **options)
        result = await _answered(harness, program, result)
    except errors.NoeticError as error:
        return {"status": "refused", "error": told_error(error)}
    return plain(result)


async def _answered(harness: Harness[Any], program: Program, result: RunResult[Any, Any]) -> RunResult[Any, Any]:
    """The result once everything that the run waits for was answered, one after the other, the last request first."""
    resume: Any = harness.resume
    while result.status == "suspended":
        request = result.pending[-1]
        answer = request.approve(by="ada") if request.kind == "approval" else request.answer(len(request.prompt))
        result = await resume(
            result.run_id, program.flow, state_type=program.state_type, on_error="result", answers=[answer]
        )
    return result


def forget(process: int) -> None:
    """Begin as a new process does."""
    BEGAN.clear()
    WORLD.clear()
    WORLD["process"] = process


def told_error(error: Exception | None) -> list[str] | None:
    """An error's class and path, and what it says of the cause."""
    if error is None:
        return None
    path = error.path if isinstance(error, errors.NoeticError) else ()
    cause = [error.error_type, error.error_message] if isinstance(error, errors.StepFailed) else []
    return [type(error).__name__, "/".join(path), *cause]


def plain(result: RunResult[Any, Any]) -> dict[str, Any]:
    """A result as JSON."""
    return {
        "status": result.status,
        "value": plain_value(result.output_or(None)),
        "error": told_error(result.error),
        "state": plain_value(result.state),
        "items": plain_items(result.items),
        "usage": [result.usage.input, result.usage.output],
        "cost": str(result.cost),
        "steps": result.steps,
        "calls": result.model_calls,
    }


def plain_items(items: Any) -> list[Any]:
    """Items without what is made anew each time: ids, and those of calls by their order."""
    numbers: dict[str, str] = {}
    return [_plain_item(item, numbers) for item in items]


def _plain_item(item: Item, numbers: dict[str, str]) -> Any:
    if isinstance(item, Message):
        return [item.role, item.text]
    if isinstance(item, FunctionCall):
        number = numbers.setdefault(item.call_id, f"call {len(numbers)}")
        return [number, item.name, plain_value(item.arguments)]
    if isinstance(item, FunctionCallOutput):
        return [f"output of {numbers[item.call_id]}", str(item.output)]
    wire: Any = json.loads(to_wire_json(item))
    return [item.type, {name: value for name, value in wire.items() if name not in ("id", "type", "status")}]


def plain_value(value: Any) -> Any:
    """A value as JSON that says of which class its parts are."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, StateBag):
        return {"StateBag": plain_value(dict(value.view()))}
    if is_mapping(value):
        return {str(key): plain_value(part) for key, part in value.items()}
    if is_list(value):
        return [plain_value(part) for part in value]
    return {type(value).__name__: _plain_object(value)}


def _plain_object(value: Any) -> Any:
    kind: Any = value.__class__
    if attrs.has(kind):
        return plain_value(attrs.asdict(value, recurse=False))
    if kind in (tuple, set, frozenset):
        return [plain_value(part) for part in value]
    return repr(value) if kind in (bytes, Decimal) else str(value)


# ---------------------------------------------------------------------------------------------------- decoding


async def decoded(history: History, path: Path) -> list[JournalRecord]:
    """Every record of the run."""
    program = history.made()
    more = [] if program.state_type is None else [program.state_type]
    async with SqliteBackend(path) as backend:
        return await read_journal(backend, history.run, codec_for(program.flow, *more))


def tried_again(records: list[JournalRecord]) -> list[str]:
    """The steps that failed and were tried again: with them all that had finished below them is void."""
    return ["/".join(record.path) for record in records if isinstance(record, AttemptFailed) and not record.final]


def finished_bodies(records: list[JournalRecord], run_id: str) -> set[str]:
    """The paths of the steps that the journal holds as finished, and not as void."""
    return {"/".join(node.path) for node in _nodes(tree(records, KINDS)) if node.finished is not None}


def _nodes(node: Node) -> Iterator[Node]:
    for child in node.children.values():
        yield child
        yield from _nodes(child)
