"""Storing an execution, surviving a crash, going on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, Message, StateBag, loop, sequence, step, until
from noetic_py.errors import ReplayDiverged
from noetic_py.testing.faults import FaultyBackend

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.clause("002-25a", "002-25b", "002-25c")
@pytest.mark.parametrize("kept", [False, True])
async def test_002_25_a_checkpoint_stores_the_execution_at_a_chosen_moment(kept: bool, tmp_path: Path) -> None:
    seen: list[int] = []

    @step
    async def body(value: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.items.append(Message.user("before"))
        ctx.state["half"] = True
        for _ in range(2):
            # The second one has nothing to add.
            await ctx.checkpoint()
            if kept:
                seen.append((await harness.runs.get("run")).position)
        ctx.items.append(Message.user("after"))
        return value

    checkpoints = f"sqlite:{tmp_path / 'runs.db'}" if kept else None
    async with Harness(checkpoints=checkpoints, plugins=[]) as harness:
        result = await harness.run(body, 1, run_id="run")
    assert [item.text for item in result.items if isinstance(item, Message)] == ["before", "after"]
    assert result.state["half"] is True
    if kept:
        # The head of the run, the body that was opened, and its first segment: before it has finished.
        assert seen == [3, 3]


def test_002_39_a_kept_run_survives_the_death_of_its_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, str(program), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.run([*command, "run"], env=environment, check=False, capture_output=True, text=True)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = subprocess.run([*command, "resume"], env=environment, check=False, capture_output=True, text=True)
    assert second.stdout.strip() == "['a', 'b', 'c'] completed", second.stderr
    # The step in flight ran again, the finished one did not.
    assert (tmp_path / "ran.txt").read_text(encoding="utf-8").split() == ["a", "b", "b", "c"]


PROGRAM = """
import os, pathlib, signal, sys
import anyio
from noetic_py import Context, Harness, sequence, step

folder = pathlib.Path(sys.argv[1])


def work(name):
    async def body(value: object, ctx: Context) -> str:
        with (folder / "ran.txt").open("a") as file:
            file.write(name + chr(10))
        if name == "b" and sys.argv[2] == "run":
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.state["done"] = [*(ctx.state.get_as("done", list) or []), name]
        return name

    return step(id=name)(body)


flow = sequence(work("a"), work("b"), work("c"))


async def main():
    async with Harness(checkpoints=f"sqlite:{folder}/runs.db", plugins=[]) as harness:
        if sys.argv[2] == "run":
            await harness.run(flow, "", run_id="run")
        else:
            result = await harness.resume("run", flow)
            print(result.state["done"], result.status)


anyio.run(main)
"""


@pytest.mark.clause("002-55a")
async def test_002_55_a_finished_step_is_put_back_as_it_was_and_the_rest_runs() -> None:
    ran: list[str] = []

    @step
    async def first(value: int, ctx: Context[Memory, StateBag]) -> int:
        ran.append("first")
        ctx.items.append(Message.user(f"first saw {value}"))
        ctx.state["sum"] = value
        return value + 1

    @step
    async def second(value: int, ctx: Context[Memory, StateBag]) -> int:
        ran.append("second")
        return value * 10

    backend = FaultyBackend(InMemoryBackend(), dies_at=3)
    with backend.outlived():
        async with Harness(checkpoints=backend, plugins=[]) as harness:
            await harness.run(first >> second, 1, run_id="run")
    assert backend.dead
    backend.revive()
    async with Harness(checkpoints=backend, plugins=[]) as harness:
        result = await harness.resume("run", first >> second)
    assert (result.value, result.state["sum"]) == (20, 1)
    assert [item.text for item in result.items if isinstance(item, Message)] == ["first saw 1"]
    assert ran == ["first", "second", "second"]


@pytest.mark.clause("002-55c")
async def test_002_55_what_differs_is_told_adopted_or_pinned() -> None:
    backend = InMemoryBackend()
    async with Harness(checkpoints=backend, plugins=[]) as harness:

        @step(id="work", version="1")
        async def work(value: int) -> int:
            return value + 1

        @step(id="work", version="2")
        async def changed(value: int) -> int:
            return value + 2

        for run_id in ("fail", "adopt", "pin"):
            await harness.run(sequence(work, fails), 1, run_id=run_id, on_error="result")
        flow = sequence(changed, doubles)
        with pytest.raises(ReplayDiverged) as told:
            await harness.resume("fail", flow)
        assert told.value.path == ("sequence", "work")
        assert (await harness.resume("adopt", flow, on_diverge="adopt")).value == 6
        assert (await harness.resume("pin", flow, on_diverge="pin")).value == 4


@step(id="last")
async def fails(value: int) -> int:
    raise ValueError(value)


@step(id="last")
async def doubles(value: int) -> int:
    return 2 * value


@pytest.mark.clause("002-55d")
async def test_002_55_an_append_does_not_grow_with_the_run(tmp_path: Path) -> None:
    sizes: list[int] = []

    @step
    async def grow(value: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.items.append(Message.user("x" * 100))
        sizes.append((await harness.runs.stats()).bytes)
        return value + 1

    async with Harness(checkpoints=f"sqlite:{tmp_path / 'runs.db'}", plugins=[]) as harness:
        await harness.run(loop(grow, until=until.max_rounds(400)), 0)
    # SQLite grows by pages, so many steps are looked at together.
    early, late = sizes[200] - sizes[100], sizes[399] - sizes[299]
    assert late <= 1.2 * early
