"""Row 002-50: the layers that come with the library, each used by itself, in no run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from noetic_py import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.errors import ToolArgumentsInvalid
from noetic_py.memory import (
    Compaction,
    Episodic,
    Facts,
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


@pytest.mark.clause("002-50m", "002-50n", "002-50o", "002-50p")
async def test_002_50_facts(caplog: pytest.LogCaptureFixture) -> None:
    facts = Facts()
    said = datetime(2025, 1, 1, tzinfo=UTC)
    await facts.record_from("letter", "We live in Utrecht.", "Ada", "home", "Utrecht", "live in Utrecht", said)
    later = said + timedelta(days=90)
    await facts.record_from("mail", "We live in Delft.", "Ada", "home", "Delft", "live in Delft", later)
    with pytest.raises(ToolArgumentsInvalid):
        await facts.record_from("mail", "We live in Delft.", "Ada", "home", "Rome", "live in Rome", later)
    delft, utrecht = facts.known
    assert (utrecht.source, utrecht.span, utrecht.valid_until) == ("letter", "live in Utrecht", later)
    assert utrecht.superseded_by == delft.id
    assert await facts.recall("", 200) == (
        "- Ada / home: Delft (2025-04-01)\n- Ada / home, outdated since 2025-04-01: Utrecht (2025-01-01)"
    )
    assert not caplog.records
    await facts.record_from("note", "We live in Gouda.", "Ada", "home", "Gouda", "live in Gouda", later)
    assert "contradict" in caplog.text
    assert len(facts.contradictions) == 1
    assert len(facts.known) == 3
