"""Which commits have to survive a loss of power at once, and which wait for the next one that has to."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from noetic_py.checkpoints import CheckpointBackend, Record
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.memory import WorkingMemory
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Commits = list[tuple[str, bool]]


class Noted(DelegatingBackend):
    """Notes the last record of each transaction, and whether it was to be durable."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self.commits: Commits = []

    async def append(self, run_id: str, *, records: Sequence[Record], durable: bool = True, **given: Any) -> int:
        last = records[-1]
        self.commits.append((f"{last.kind} {'/'.join(last.path)}".strip(), durable))
        return await super().append(run_id, records=records, durable=durable, **given)


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
        ("RunStarted", True),
        ("StepFinished flow/one", True),
        ("StepFinished flow/inner/one", True),
        ("StepFinished flow/inner/two", False),
        ("StepFinished flow/inner", False),
        ("StepFinished flow", False),
        ("RunEnded", True),
    ]


async def test_a_chosen_case_waits_for_its_branch() -> None:
    flow = sequence(branch(lambda x: "a", {"a": one}, id="either"), two, id="flow")
    assert ("StepFinished flow/either/one", False) in (commits := await committed(flow, 1))
    assert ("StepFinished flow/either", True) in commits


async def test_what_the_code_of_the_user_goes_on_from_does_not_wait() -> None:
    assert ("StepFinished outer/one", True) in await committed(outer, 1)
    rounds = await committed(loop(one, until=until.max_rounds(2), id="rounds"), 1)
    assert [durable for name, durable in rounds if name.startswith("StepFinished rounds/")] == [True, True]


async def test_a_step_that_may_run_only_once_does_not_wait() -> None:
    assert ("StepFinished flow/charged", True) in await committed(sequence(one, charged, id="flow"), 1)


async def test_a_hook_and_a_layer_go_on_from_what_is_stored() -> None:
    plain = ScriptedModel("ok", "ok", "ok")
    assert [durable for _, durable in await committed(call_model(), "hi", model=plain)] == [True, False, False, True]
    hooked = await committed(call_model(hooks=[looks]), "hi", model=plain)
    with_layer = await committed(call_model(), "hi", model=plain, memory=Mem())
    assert all(durable for _, durable in [*hooked, *with_layer])


async def test_an_answer_is_stored_before_its_tools_run_and_before_it_is_read() -> None:
    flow = loop(call_model(tools=[height]), until=until.no_tool_calls(), id="agent")
    commits = await committed(flow, "hi", model=ScriptedModel(FunctionCall(name="height", arguments={}), "2 m"))
    assert all(durable for name, durable in commits if name.endswith("call_model[0]/answer"))
    assert any(name.endswith("call_model[0]/answer") for name, _ in commits)
    assert ("StepFinished call_model/answer", True) in await committed(
        call_model(output=Tide), "hi", model=ScriptedModel('{"metres": 2}')
    )


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


BEGUN = [("TurnStarted", False), ("RunStarted", True)]
DONE = [("StepFinished call_model/answer", False), ("StepFinished call_model", False)]


async def test_a_turn_has_two_durable_commits() -> None:
    assert await turn() == [*BEGUN, *DONE, ("RunEnded", False), ("TurnEnded", True)]


async def test_the_end_that_a_caller_reads_from_a_stream_is_durable() -> None:
    assert await turn(streams=True) == [*BEGUN, *DONE, ("RunEnded", True), ("TurnEnded", True)]


async def test_a_run_whose_turn_is_not_written_at_once_ends_durably() -> None:
    assert ("RunEnded", True) in await turn(SessionPolicy(persist="manual"))
    assert ("RunEnded", True) in await turn(SessionPolicy(lock="none"))


async def test_a_turn_whose_run_commits_at_its_end_begins_durably() -> None:
    assert (await turn(durability="exit"))[0] == ("TurnStarted", True)


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
