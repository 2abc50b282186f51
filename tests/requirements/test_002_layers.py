"""Row 002-50: the layers that come with the library, each used by itself, in no run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from noetic_py import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.memory import (
    Compaction,
    Episodic,
    Filesystem,
    HistoryWindow,
    Observational,
    Plan,
    Rule,
    SemanticRecall,
    StaticContent,
    Steering,
    TaskState,
    Temporal,
    ToolMemory,
    WorkingMemory,
)

pytestmark = pytest.mark.anyio


class Letters:
    """Vectors of how often each letter is used."""

    name = "test:letters"
    dimensions = 26

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        return [[float(text.lower().count(chr(97 + place))) for place in range(26)] for text in texts]


@pytest.mark.clause("002-50a", "002-50b", "002-50e", "002-50f", "002-50g")
async def test_002_50_layers_that_hold_what_they_are_given() -> None:
    notes = WorkingMemory()
    await notes.update({"topic": "tides"})
    assert notes.snapshot == {"topic": "tides"}
    plan = Plan()
    assert len(await plan.set_plan(["read", "write"])) == 2
    task: TaskState[dict[str, int]] = TaskState()
    assert await task.get() == {}
    content = await StaticContent(content="Be brief.").recall("", 100)
    assert "Be brief." in str(content)
    observed = Observational()
    await observed.note("Ada sails.")
    assert observed.observations == ("Ada sails.",)


@pytest.mark.clause("002-50c", "002-50h", "002-50j", "002-50l")
async def test_002_50_layers_that_look_at_a_conversation(tmp_path: Path) -> None:
    call = FunctionCall(name="drop", arguments={"table": "users"})
    items: list[Item] = [Message.user(f"number {number}") for number in range(50)]
    items += [call, FunctionCallOutput(call_id=call.call_id, output="x" * 8_000)]
    items += [Message.user("and now?")]
    assert len(await HistoryWindow(max_items=10).project_history(items)) < len(items)
    assert len(await Compaction(window=1_000, tiers=("window",)).project_history(items)) < len(items)
    steering = Steering(rules=(Rule(name="users", check=lambda call, ctx: "users" in call.arguments),))
    assert isinstance(await steering.before_tool_call(call), str)
    past = SemanticRecall(embedder=Letters())
    await past.remember("tides")
    assert [found.text for found in await past.search("tide")] == ["tides"]
    files = Filesystem(root=tmp_path)
    await files.write("a.txt", "tides")
    assert await files.read("a.txt") == "tides"
    for layer in (Episodic(), Temporal(), ToolMemory()):
        assert layer.state == layer.initial()
