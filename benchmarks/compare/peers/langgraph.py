"""LangGraph: a node that a conditional edge leads back to, `Send` for branches, the quickstart's graph as an agent.

Nothing is persisted, except that W3 keeps each step in SQLite, and W6 its conversations in the checkpointer that lives
in memory. LangSmith's tracing is off.
"""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

os.environ["LANGSMITH_TRACING"] = "false"

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

Run = Callable[[], Awaitable[int]]


class Count(TypedDict):
    count: int


def w1(steps: int) -> Run:
    def same(state: Count) -> Count:
        return {"count": state["count"] + 1}

    def again(state: Count) -> str:
        return "same" if state["count"] < steps else END

    builder = StateGraph(Count)
    builder.add_node("same", same)
    builder.add_edge(START, "same")
    builder.add_conditional_edges("same", again, ["same", END])
    graph = builder.compile()

    async def run() -> int:
        # Without awaiting: for one node at a time, `ainvoke` takes about twice as long.
        return graph.invoke({"count": 0}, {"recursion_limit": steps + 1})["count"]

    return run


class Joined(TypedDict):
    values: list[int]
    results: Annotated[list[int], operator.add]


class Branch(TypedDict):
    value: int


def w2(branches: int) -> Run:
    async def same(state: Branch) -> dict[str, list[int]]:
        return {"results": [state["value"]]}

    def out(state: Joined) -> list[Send]:
        return [Send("same", {"value": value}) for value in state["values"]]

    builder = StateGraph(Joined)
    builder.add_node("same", same)
    builder.add_conditional_edges(START, out, ["same"])
    builder.add_edge("same", END)
    graph = builder.compile()

    async def run() -> int:
        return len((await graph.ainvoke({"values": [1] * branches, "results": []}))["results"])

    return run


class Kept(TypedDict):
    count: int
    text: str
    messages: Annotated[list[str], operator.add]


def w3(steps: int, file: str) -> Run:
    def keep(state: Kept) -> dict[str, Any]:
        number = f"{state['count']:08d}"
        return {"count": state["count"] + 1, "text": number * 125, "messages": [number * 25]}

    def again(state: Kept) -> str:
        return "keep" if state["count"] < steps else END

    builder = StateGraph(Kept)
    builder.add_node("keep", keep)
    builder.add_edge(START, "keep")
    builder.add_conditional_edges("keep", again, ["keep", END])

    async def run() -> int:
        with SqliteSaver.from_conn_string(file) as saver:
            graph = builder.compile(checkpointer=saver)
            config = {"configurable": {"thread_id": "one"}, "recursion_limit": steps + 1}
            # Without awaiting: `ainvoke` takes longer here too.
            kept = graph.invoke({"count": 0, "text": "", "messages": []}, config, durability="sync")
        return len(kept["messages"])

    return run


@tool
async def lookup(key: str) -> str:
    """Look a key up."""
    return key


class Scripted(BaseChatModel):
    """A model that calls a tool again and again, then answers."""

    turns: int
    stamp: Callable[[], None]
    asked: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Scripted:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.stamp()
        self.asked += 1
        if self.asked > self.turns:
            message = AIMessage("done")
        else:
            call = {"name": "lookup", "args": {"key": "tides"}, "id": f"call_{self.asked}"}
            message = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


def w4(turns: int, stamp: Callable[[], None]) -> Run:
    model = Scripted(turns=turns, stamp=stamp).bind_tools([lookup])

    async def ask(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_node("tools", ToolNode([lookup]))
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", tools_condition)
    builder.add_edge("tools", "ask")
    graph = builder.compile()

    async def run() -> int:
        config = {"recursion_limit": 2 * turns + 2}
        state = await graph.ainvoke({"messages": [HumanMessage("Look up the tides.")]}, config)
        return sum(isinstance(message, ToolMessage) for message in state["messages"])

    return run


def w6() -> Callable[[list[str]], Awaitable[object]]:
    async def nothing(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": []}

    builder = StateGraph(MessagesState)
    builder.add_node("nothing", nothing)
    builder.add_edge(START, "nothing")
    builder.add_edge("nothing", END)
    graph = builder.compile(checkpointer=InMemorySaver())

    async def make(texts: list[str]) -> None:
        config = {"configurable": {"thread_id": texts[0]}}
        makers = (HumanMessage, AIMessage)
        messages = [makers[number % 2](text) for number, text in enumerate(texts)]
        await graph.aupdate_state(config, {"messages": messages}, as_node="nothing")

    return make


def w7(runs: int, steps: int, seconds: float) -> Run:
    async def nap(state: Count) -> Count:
        await asyncio.sleep(seconds)
        return {"count": state["count"] + 1}

    def again(state: Count) -> str:
        return "nap" if state["count"] < steps else END

    builder = StateGraph(Count)
    builder.add_node("nap", nap)
    builder.add_edge(START, "nap")
    builder.add_conditional_edges("nap", again, ["nap", END])
    graph = builder.compile()

    async def run() -> int:
        states = await asyncio.gather(*[graph.ainvoke({"count": 0}) for _ in range(runs)])
        return sum(state["count"] for state in states)

    return run


def w8(turns: int, file: str) -> Run:
    model = Scripted(turns=0, stamp=lambda: None)

    def ask(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)

    async def run() -> int:
        with SqliteSaver.from_conn_string(file) as saver:
            graph = builder.compile(checkpointer=saver)
            config = {"configurable": {"thread_id": "chat"}}
            for turn in range(turns):
                # Without awaiting: `ainvoke` takes longer here too.
                kept = graph.invoke({"messages": [HumanMessage(f"message {turn}")]}, config, durability="sync")
        return len(kept["messages"])

    return run
