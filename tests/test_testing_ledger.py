"""The ledger: a witness outside of the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, Retry, StateBag, loop, sequence, step, until
from noetic_py.testing import FaultyBackend, Ledger
from noetic_py.testing.ledger import attempt_of, outcomes

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


def noting(ledger: Ledger, name: str) -> Any:
    @step(id=name, version="1")
    async def body(value: int, ctx: Ctx) -> int:
        with ledger.body(ctx):
            return value + 1

    return body


def flow(ledger: Ledger) -> Any:
    @step(id="around", version="1")
    async def around(value: int, ctx: Ctx) -> int:
        with ledger.body(ctx):
            made: int = await inner(value, ctx)
            return made

    inner = noting(ledger, "inner")
    rounds = loop(noting(ledger, "round"), until=until.max_rounds(2))
    return sequence(noting(ledger, "first"), around, rounds, id="flow")


def harness(backend: Any) -> Any:
    return Harness(plugins=[], checkpoints=backend)


async def test_a_run_that_was_killed_everywhere_is_told_truly(tmp_path: Path) -> None:
    at, again, deaths = 0, 0, 0
    while True:
        at += 1
        path = tmp_path / f"{at}.jsonl"
        ledger = Ledger(path)
        ledger.begin()
        backend = FaultyBackend(InMemoryBackend(), dies_at=at)
        with backend.outlived():
            async with harness(backend) as it:
                await it.run(flow(ledger), 0, run_id="r")
        if not backend.dead:
            break
        deaths += 1
        backend.revive()
        async with harness(backend) as it:
            if await backend.entry("r") is None or at == 1:
                continue
            ledger = Ledger(path)
            ledger.begin(await it.runs.journal("r"))
            await it.resume("r", flow(ledger))
        assert ledger.problems() == []
        again += ledger.starts("first") + ledger.starts("inner") + ledger.starts("round") - 4
    assert deaths > 5
    assert again > 0


async def test_lines_say_who_did_what(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.begin()
    async with harness(InMemoryBackend()) as it:
        await it.run(flow(ledger), 0, run_id="r")
        held = outcomes(await it.runs.journal("r"))
    lines = ledger.lines()
    assert [line.what for line in lines[:3]] == ["process", "start", "end"]
    assert lines[1].attempt == (("flow", 1), ("first", 1))
    assert {line.attempt for line in lines if line.what == "end"} <= set(held)
    assert ledger.starts("round") == 2
    assert ledger.starts("nothing") == 0


async def test_an_outcome_that_was_held_is_not_to_be_worked_for_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.begin()
    async with harness(InMemoryBackend()) as it:
        await it.run(flow(ledger), 0, run_id="r")
        ledger.begin(await it.runs.journal("r"))
        # What no run may do: the whole flow once more, as if nothing were recorded.
        await it.run(flow(ledger), 0)
    found = ledger.problems()
    assert "flow/first began, though the journal held the outcome of flow" in found
    assert len(found) == 5


def test_a_body_that_begins_twice_in_one_process(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.begin()
    ledger._write("start", (("flow", 1), ("a", 2)))
    ledger._write("start", (("flow", 1), ("a", 2)))
    assert ledger.problems() == ["flow/a(2) began 2 times in process 0"]


async def test_attempts_are_told_apart(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    seen: list[Any] = []

    @step(id="shaky", version="1", retry=Retry(3, initial=0.0))
    async def shaky(value: int, ctx: Ctx) -> int:
        seen.append(attempt_of(ctx))
        with ledger.body(ctx):
            if len(seen) < 3:
                raise ValueError("not yet")
            made: int = await noting(ledger, "child")(value, ctx)
            return made

    ledger.begin()
    async with harness(InMemoryBackend()) as it:
        await it.run(shaky, 0, run_id="r")
        held = outcomes(await it.runs.journal("r"))
    assert seen == [(("shaky", number),) for number in (1, 2, 3)]
    assert held == {
        (("shaky", 1),): False,
        (("shaky", 2),): False,
        (("shaky", 3), ("child", 1)): True,
        (("shaky", 3),): True,
    }
    assert ledger.problems() == []
    starts = [line for line in ledger.lines() if line.what == "start"]
    ends = [line for line in ledger.lines() if line.what == "end"]
    # A body that raised has not ended.
    assert (len(starts), len(ends)) == (4, 2)


async def test_the_failure_that_ended_a_run_is_no_outcome(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    fails = [True]

    @step(id="broken", version="1")
    async def broken(value: int, ctx: Ctx) -> int:
        with ledger.body(ctx):
            if fails:
                raise ValueError("no")
            return value

    ledger.begin()
    async with harness(InMemoryBackend()) as it:
        made = sequence(noting(ledger, "first"), broken, id="flow")
        await it.run(made, 0, run_id="r", on_error="result")
        fails.clear()
        ledger.begin(await it.runs.journal("r"))
        await it.resume("r", made)
    assert ledger.problems() == []
    assert (ledger.starts("first"), ledger.starts("broken")) == (1, 2)


def test_processes_are_counted_over_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        ledger = Ledger(path)
        ledger.begin()
        ledger.begin()
    assert [json.loads(text)[0] for text in path.read_text().splitlines()] == [0, 1, 2, 3]
