"""Which commits have to survive a loss of power at once, and which wait for the next one that has to."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    HookContext,
    InMemoryBackend,
    Memory,
    ModelResponse,
    SessionPolicy,
    StateBag,
    branch,
    call_model,
    hooks,
    loop,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, Lease, Record, Transaction
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.memory import WorkingMemory
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Commits = list[list[str]]
NOTED = ("RunStarted", "StepFinished", "RunEnded", "TurnStarted", "TurnEnded")


class Noted(DelegatingBackend):
    """Notes the records that begin or end something, commit by commit."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self.commits: Commits = []

    def _note(self, *written: Sequence[Record]) -> None:
        records = [each for part in written for each in part if each.kind in NOTED]
        self.commits.append([f"{each.kind} {'/'.join(each.path)}".strip() for each in records])

    async def append(self, run_id: str, *, records: Sequence[Record], **given: Any) -> int:
        self._note(records)
        return await super().append(run_id, records=records, **given)

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        self._note(*(each.records for each in transactions))
        return await super().commit(transactions)


@step
async def one(x: int, ctx: Context) -> int:
    return x + 1


@step
async def two(x: int, ctx: Context) -> int:
    return x + 1


@step(replay="once")
async def charged(x: int, ctx: Context) -> int:
    return x + 1


@step
async def outer(x: int, ctx: Context) -> int:
    return await one(x, ctx)


@tool
async def height() -> str:
    """The height of the tide."""
    return "2 m"


@hooks.after_model
async def looks(ctx: HookContext[Memory, StateBag], response: ModelResponse) -> None:
    pass


@dataclass
class Tide:
    metres: int


class Mem(Memory):
    notes: WorkingMemory = WorkingMemory()


async def committed(flow: Any, value: object, **options: Any) -> Commits:
    backend = Noted(InMemoryBackend())
    async with Harness(checkpoints=backend, **options) as harness:
        result = await harness.run(flow, value)
        assert result.status == "completed"
    return backend.commits


async def test_a_step_at_the_end_of_another_waits_for_it() -> None:
    flow = sequence(one, sequence(one, two, id="inner"), id="flow")
    assert await committed(flow, 1) == [
        ["RunStarted"],
        ["StepFinished flow/one"],
        ["StepFinished flow/inner/one"],
        ["StepFinished flow/inner/two", "StepFinished flow/inner", "StepFinished flow", "RunEnded"],
    ]


async def test_a_chosen_case_waits_for_its_branch() -> None:
    flow = sequence(branch(lambda x: "a", {"a": one}, id="either"), two, id="flow")
    (together,) = [each for each in await committed(flow, 1) if "StepFinished flow/either/one" in each]
    assert together[-1] == "StepFinished flow/either"


async def test_what_the_code_of_the_user_goes_on_from_does_not_wait() -> None:
    assert ["StepFinished outer/one"] in await committed(outer, 1)
    rounds = await committed(loop(one, until=until.max_rounds(2), id="rounds"), 1)
    assert [each for each in rounds if each[-1].startswith("StepFinished rounds/")] == [
        ["StepFinished rounds/one[0]"], ["StepFinished rounds/one[1]"]
    ]  # fmt: skip


async def test_a_step_that_may_run_only_once_does_not_wait() -> None:
    commits = await committed(sequence(one, charged, id="flow"), 1)
    assert "StepFinished flow/charged" in [each[-1] for each in commits if each]


async def test_what_detached_work_runs_beside_does_not_wait() -> None:
    free = anyio.Event()

    @step
    async def side(x: int, ctx: Context) -> int:
        await free.wait()
        return x

    @step
    async def starts(x: int, ctx: Context) -> int:
        ctx.spawn_detached(side, x)
        return x

    backend = Noted(InMemoryBackend())
    async with Harness(checkpoints=backend) as harness, anyio.create_task_group() as group:

        async def run() -> None:
            await harness.run(sequence(starts, one, id="flow"), 1)

        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        # The flow has ended, and the run waits for the work.
        assert backend.commits[-1][-1] == "StepFinished flow"
        free.set()


async def test_a_hook_and_a_layer_go_on_from_what_is_stored() -> None:
    plain = ScriptedModel("ok", "ok", "ok")
    last = ["StepFinished call_model/answer", "StepFinished call_model", "RunEnded"]
    assert await committed(call_model(), "hi", model=plain) == [["RunStarted"], last]
    hooked = await committed(call_model(hooks=[looks]), "hi", model=plain)
    with_layer = await committed(call_model(), "hi", model=plain, memory=Mem())
    for commits in (hooked, with_layer):
        assert "StepFinished call_model/answer" in [each[-1] for each in commits]


async def test_an_answer_is_stored_before_its_tools_run_and_before_it_is_read() -> None:
    flow = loop(call_model(tools=[height]), until=until.no_tool_calls(), id="agent")
    commits = await committed(flow, "hi", model=ScriptedModel(FunctionCall(name="height", arguments={}), "2 m"))
    assert any(each and each[-1].endswith("call_model[0]/answer") for each in commits)
    parsed = await committed(call_model(output=Tide), "hi", model=ScriptedModel('{"metres": 2}'))
    assert "StepFinished call_model/answer" in [each[-1] for each in parsed]


async def turn(policy: SessionPolicy | None = None, *, streams: bool = False, **options: Any) -> Commits:
    """The commits of the second turn of a session."""
    backend = Noted(InMemoryBackend())
    async with Harness(
        checkpoints=backend, model=ScriptedModel("one", "two"), sessions=policy or SessionPolicy()
    ) as harness:
        session = harness.session("ada", "trip")
        await session.run(call_model(), "hi")
        backend.commits.clear()
        if streams:
            async with session.stream(call_model(), "ho") as stream:
                assert [each async for each in stream.text] == ["two"]
        else:
            await session.run(call_model(), "ho", **options)
    return backend.commits


BEGUN = ["TurnStarted", "RunStarted"]
DONE = ["StepFinished call_model/answer", "StepFinished call_model", "RunEnded"]


async def test_a_turn_has_two_commits() -> None:
    assert await turn() == [BEGUN, [*DONE, "TurnEnded"]]


async def test_the_end_that_a_caller_reads_from_a_stream_is_stored() -> None:
    assert await turn(streams=True) == [BEGUN, DONE, ["TurnEnded"]]


async def test_a_run_whose_turn_is_not_written_at_once_ends_by_itself() -> None:
    # The turn before was not written at all.
    assert await turn(SessionPolicy(persist="manual")) == [["TurnEnded"], BEGUN, DONE]
    assert await turn(SessionPolicy(lock="none")) == [["RunStarted"], DONE, ["TurnEnded"]]


async def test_a_turn_whose_run_commits_at_its_end_begins_all_the_same() -> None:
    assert await turn(durability="exit") == [["TurnStarted"], ["RunStarted", *DONE, "TurnEnded"]]


TURNS = """
import anyio, sys
from noetic_py import Harness, call_model
from noetic_py.testing import ScriptedModel

async def main():
    async with Harness(checkpoints="sqlite:" + sys.argv[1], model=ScriptedModel(*["x"] * 40)) as harness:
        session = harness.session("ada", "trip")
        for _ in range(int(sys.argv[2])):
            await session.run(call_model(), "hi")

anyio.run(main)
"""


@pytest.mark.needs("strace")
def test_a_turn_in_a_file_syncs_twice(tmp_path: Path) -> None:
    def syncs(turns: int) -> int:
        traced = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(tmp_path / f"{turns}.log")]
        command = [*traced, sys.executable, "-c", TURNS, str(tmp_path / f"{turns}.db"), str(turns)]
        subprocess.run(command, check=True, timeout=60)
        return len(re.findall(r"sync\(", (tmp_path / f"{turns}.log").read_text()))

    assert syncs(12) - syncs(2) == 20
