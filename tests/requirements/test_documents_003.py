"""The examples of document 003, "Context" (queues, pools and their entries), in Python."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import frozen

from noetic_py import Context, Harness, Memory, call_tool, step, tool
from noetic_py.errors import NameNotFound
from noetic_py.memory import ContextItem, ContextPool, ContextQueue, Listeners
from noetic_py.memory.listeners import EVERYWHERE, Added, Adding, Appended, Appending

pytestmark = pytest.mark.anyio


@frozen
class Report:
    text: str


def held(queue: ContextQueue[Any]) -> list[object]:
    return [entry.content for entry in queue]


# -- ContextItem


def test_document_003_an_entry() -> None:
    """`item = ContextItem(content=..., description=..., id="doc-1")`."""
    item = ContextItem(
        content={"text": "..."}, description="Q3 earnings report: revenue, margins, guidance", id="doc-1"
    )
    assert (item.content, item.id) == ({"text": "..."}, "doc-1")
    assert item.description is not None
    assert (ContextItem(content="x").description, ContextItem(content="x").id) == (None, None)


# -- ContextQueue


async def test_document_003_creating_a_queue() -> None:
    """`cq = ContextQueue(limit=10)`, and its two first entries."""
    cq = ContextQueue[str](limit=10)
    await cq.append(ContextItem(content="user: hello"))
    await cq.append(ContextItem(content="assistant: hi there"))
    assert held(cq) == ["user: hello", "assistant: hi there"]


async def test_document_003_a_queue_of_one_type() -> None:
    """`cq: ContextQueue[str]`: the mistake is the checker's to find."""
    cq: ContextQueue[str] = ContextQueue(limit=10)
    await cq.append(ContextItem(content="hello"))
    await cq.append(ContextItem(content=42))  # type: ignore[arg-type]  # that is the example
    anything: ContextQueue[object] = ContextQueue(limit=10)
    await anything.append(ContextItem(content="hello"), ContextItem(content=42))
    assert held(cq) == held(anything) == ["hello", 42]


async def test_document_003_tags() -> None:
    """`ContextQueue(limit=20, tags=["session", "monitored"])`."""
    heard: list[int] = []
    before = list(EVERYWHERE)

    @EVERYWHERE.on(Appended, tags=["monitored"])
    async def listen(event: Appended[Any]) -> None:
        heard.append(len(event.entries))

    try:
        cq = ContextQueue[str](limit=20, tags=["session", "monitored"])
        await cq.append(ContextItem(content="a"))
        await ContextQueue[str](limit=20, tags=["session"]).append(ContextItem(content="b"))
        await cq.branch().append(ContextItem(content="c"))
    finally:
        for each in [each for each in EVERYWHERE if each not in before]:
            EVERYWHERE.remove(each)
    assert heard == [1, 1]
    assert cq.tags == frozenset({"session", "monitored"})
    assert ContextQueue[str].load(cq.dump()).tags == cq.tags


async def test_document_003_appending_clearing_and_reading() -> None:
    """`await cq.append(..., ...)`, `await cq.clear()`, `cq.items  # list copy`."""
    cq = ContextQueue[str](limit=10)
    await cq.append(ContextItem(content="msg1"), ContextItem(content="msg2"))
    assert (len(cq), [entry.content for entry in list(cq)], bool(cq)) == (2, ["msg1", "msg2"], True)
    cq.items.clear()
    assert len(cq) == 2
    await cq.clear()
    assert (len(cq), bool(cq)) == (0, False)


# -- queues and pools in a run


class Mem(Memory):
    window: ContextQueue[str] = ContextQueue(limit=10)
    shelf: ContextPool[str] = ContextPool()


@tool
async def summarize(text: str) -> ContextItem[str]:
    """Summarize a text."""
    return ContextItem(content=f"summary of {text}")


@tool
async def fetch_doc(doc_id: str) -> ContextItem[str]:
    """Fetch a report."""
    return ContextItem(id=doc_id, description=f"Report {doc_id}: quarterly financials", content=f"text of {doc_id}")


@step
async def first_content(_: object, ctx: Context[Mem]) -> str:
    return ctx.memory.window.items[0].content


@step
async def report(_: object, ctx: Context[Mem]) -> str:
    return ctx.memory.shelf.get("report-2024").content


async def test_document_003_an_entry_that_a_tool_returns_goes_into_the_queue() -> None:
    """`agent = Agent("summarizer", ...)`, and `agent.context_queue.items[0].content` after the run."""
    flow = call_tool(summarize, args={"text": "..."}) >> first_content
    async with Harness(plugins=[], memory=Mem()) as harness:
        assert (await harness.run(flow, None)).value == "summary of ..."


async def test_document_003_a_queue_of_ones_own() -> None:
    """`context_queue=ContextQueue(limit=20)`."""

    @step
    async def limit(_: object, ctx: Context[Mem]) -> int:
        return ctx.memory.window.limit

    for memory, wanted in ((Mem(), 10), (Mem(window=ContextQueue(limit=20)), 20)):
        async with Harness(plugins=[], memory=memory) as harness:
            assert (await harness.run(limit, None)).value == wanted


async def test_document_003_an_entry_with_an_id_goes_into_the_pool() -> None:
    """`agent = Agent("reader", ...)`, and `agent.context_pool.get("report-2024")`."""
    flow = call_tool(fetch_doc, args={"doc_id": "report-2024"}) >> report
    async with Harness(plugins=[], memory=Mem()) as harness:
        assert (await harness.run(flow, None)).value == "text of report-2024"


async def test_document_003_a_pool_of_ones_own_with_a_listener() -> None:
    """`@pool.after_add`, on a pool that is given to the agent."""
    printed: list[str] = []
    pool = ContextPool[str]()

    @pool.on(Added)
    async def on_item_added(pool: Any, item: Any) -> None:
        printed.append(f"Added {item.id!r}: {item.description}")

    async with Harness(plugins=[], memory=Mem(shelf=pool)) as harness:
        await harness.run(call_tool(fetch_doc, args={"doc_id": "report-2024"}), None)
    assert printed == ["Added 'report-2024': Report report-2024: quarterly financials"]


@tool
async def recent(text: str, memory: ContextQueue[str]) -> list[str]:
    """Read the last three entries."""
    return [item.content for item in memory.items[-3:]]


@tool
async def answer(question: str, pool: ContextPool[str]) -> str:
    """Read what there is."""
    return pool.catalogue()


@tool
async def think(question: str, memory: ContextQueue[str] | None = None) -> list[str]:
    """Works inside and outside."""
    return [item.content for item in memory.items] if memory else []


async def test_document_003_tools_read_queue_and_pool_by_annotation() -> None:
    """`async def summarize(text: str, memory: ContextQueue)`, and `answer(question, pool: ContextPool)`."""
    flow = (
        call_tool(summarize, args={"text": "a"})
        >> call_tool(fetch_doc, args={"doc_id": "d"}, id="fetch")
        >> call_tool(recent, args={"text": "..."})
    )
    asks = call_tool(fetch_doc, args={"doc_id": "d"}) >> call_tool(answer, args={"question": "?"})
    async with Harness(plugins=[], memory=Mem()) as harness:
        assert (await harness.run(flow, None)).value == ["summary of a"]
        assert (await harness.run(asks, None)).value == "- [d] Report d: quarterly financials"


async def test_document_003_an_optional_queue() -> None:
    """`memory: ContextQueue | None = None` runs inside and outside an agent."""
    assert await think("?") == []
    flow = call_tool(summarize, args={"text": "a"}) >> call_tool(think, args={"question": "?"})
    async with Harness(plugins=[], memory=Mem()) as harness:
        assert (await harness.run(flow, None)).value == ["summary of a"]
    with pytest.raises(TypeError):
        await recent("?")  # type: ignore[call-arg]  # outside, a required one is missing


async def test_document_003_an_explicit_queue_wins() -> None:
    """`Turn("think", kwargs={"question": "...", "memory": some_other_queue})`."""
    some_other_queue = ContextQueue[str](limit=3)
    await some_other_queue.append(ContextItem(content="other"))
    flow = call_tool(summarize, args={"text": "a"}) >> call_tool(
        think, args={"question": "...", "memory": some_other_queue}
    )
    async with Harness(plugins=[], memory=Mem()) as harness:
        assert (await harness.run(flow, None)).value == ["other"]


# -- branches, listeners and data of queues


async def test_document_003_branching_a_queue() -> None:
    """`turn_cq = agent_cq.branch()`, `tool_cq = turn_cq.branch(limit=5)`."""
    agent_cq = ContextQueue[str](limit=20)
    await agent_cq.append(ContextItem(content="system context"), ContextItem(content="user message"))
    turn_cq = agent_cq.branch()
    await turn_cq.append(ContextItem(content="tool call result"))
    tool_cq = turn_cq.branch(limit=5)
    await tool_cq.append(ContextItem(content="sub-step output"))
    assert ContextItem(content="tool call result") not in agent_cq.items
    assert ContextItem(content="sub-step output") not in turn_cq.items
    assert held(turn_cq.branch(limit=1)) == ["tool call result"]


async def test_document_003_listeners_of_a_branch() -> None:
    """`cq.branch(hooks=[])`, `cq.branch(hooks=[other_hook])`."""
    called: list[str] = []
    cq = ContextQueue[str](limit=10)

    @cq.on(Appending)
    async def my_before_append_hook(queue: Any, incoming: Any, current: Any) -> None:
        called.append("mine")

    others = Listeners()

    @others.on(Appending)
    async def other_hook(queue: Any, incoming: Any, current: Any) -> None:
        called.append("other")

    for queue in (cq.branch(), cq.branch(listeners=[]), cq.branch(listeners=[other_hook])):
        await queue.append(ContextItem(content="x"))
    assert called == ["mine", "other"]


async def test_document_003_a_queue_as_data() -> None:
    """`data = cq.to_dict()`, `ContextQueue.from_dict(data)`."""
    cq = ContextQueue[str](limit=10)
    heard: list[str] = []

    @cq.on(Appended)
    async def log_after(queue: Any, appended_items: Any, current: Any) -> None:
        heard.append(f"New count: {len(current)}")

    await cq.append(ContextItem(content="a"))
    data = json.loads(json.dumps(cq.dump()))
    assert {"limit", "entries", "listeners"} <= set(data)
    with pytest.raises(NameNotFound):
        ContextQueue[str].load(data)
    restored = ContextQueue[str].load(data, listeners=cq.listeners)
    # Nobody is told while it is read back, and everybody afterwards.
    assert (held(restored), restored.limit, heard) == (["a"], 10, ["New count: 1"])
    await restored.append(ContextItem(content="b"))
    assert heard == ["New count: 1", "New count: 2"]


# -- ContextPool


async def test_document_003_creating_a_pool() -> None:
    """`pool = ContextPool(limit=50)`, `add`, `get`, `remove` and `clear`."""
    pool = ContextPool[int](limit=50, tags=["documents"])
    assert (pool.limit, ContextPool().limit, pool.tags) == (50, None, frozenset({"documents"}))
    await pool.add(ContextItem(id="a", description="First", content=1))
    await pool.add(ContextItem(id="b", description="Second", content=2))
    assert pool.get("a").content == 1
    await pool.remove("a")
    with pytest.raises(KeyError):
        pool.get("a")
    await pool.clear()
    assert not pool


async def test_document_003_a_pool_of_one_type() -> None:
    """`pool: ContextPool[Report]`: the mistake is the checker's to find."""
    pool: ContextPool[Report] = ContextPool(limit=50)
    await pool.add(ContextItem(id="r1", description="Q3 report", content=Report(text="...")))
    await pool.add(ContextItem(id="r2", description="Q4 report", content="plain string"))  # type: ignore[arg-type]  # that is the example
    assert pool.get("r1").content == Report(text="...")
    assert len(pool) == 2


async def test_document_003_reading_a_pool() -> None:
    """`pool.items`, `len(pool)`, `pool.limit`, `pool.catalogue()`."""
    pool = ContextPool[int]()
    assert (len(pool), bool(pool), pool.limit, pool.catalogue()) == (0, False, None, "")
    await pool.add(ContextItem(id="a", description="First", content=1))
    await pool.add(ContextItem(id="b", description="Second", content=2))
    assert [item.id for item in pool.items] == [item.id for item in list(pool)] == ["a", "b"]
    assert pool.catalogue() == "- [a] First\n- [b] Second"
    pool.items.clear()
    assert (len(pool), bool(pool)) == (2, True)


async def test_document_003_branching_a_pool() -> None:
    """`parent.branch()`, `parent.branch(limit=5)`."""
    parent = ContextPool[int](limit=20)
    for number in range(6):
        await parent.add(ContextItem(id=str(number), description="Base", content=number))
    child = parent.branch()
    child2 = parent.branch(limit=5)
    assert (child.limit, len(child)) == (20, 6)
    # The oldest one is left out.
    assert [item.id for item in child2] == ["1", "2", "3", "4", "5"]
    await child.add(ContextItem(id="new", description="Only here", content=7))
    await parent.remove("0")
    assert (len(parent), len(child)) == (5, 7)


async def test_document_003_listeners_of_a_pool() -> None:
    """`@pool.before_add`, `@pool.after_add`."""
    printed: list[str] = []
    pool = ContextPool[int](limit=10)

    @pool.on(Adding)
    async def log_before(pool: Any, item: Any) -> None:
        printed.append(f"About to add {item.id!r}, pool size: {len(pool)}")

    @pool.on(Added)
    async def log_after(pool: Any, item: Any) -> None:
        printed.append(f"Added {item.id!r}, pool size: {len(pool)}")

    await pool.add(ContextItem(id="x", description="Base", content=0))
    assert printed == ["About to add 'x', pool size: 0", "Added 'x', pool size: 1"]
    # A branch has them too, and making one tells nobody.
    child = pool.branch()
    assert len(printed) == 2
    await child.add(ContextItem(id="y", description="More", content=1))
    assert len(printed) == 4


async def test_document_003_a_pool_as_data() -> None:
    """`data = pool.to_dict()`, `ContextPool.from_dict(data)`."""
    pool = ContextPool[int](limit=2)
    for each in "ab":
        await pool.add(ContextItem(id=each, description="Base", content=1))
    restored = ContextPool[int].load(json.loads(json.dumps(pool.dump())))
    assert (restored.entries, restored.limit) == (pool.entries, 2)
