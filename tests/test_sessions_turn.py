"""Turns that do not end at once: they wait for an answer, or were cut off and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import (
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Message,
    ModelRequest,
    RunResult,
    SessionKey,
    SessionPolicy,
    call_model,
    errors,
    loop,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

made: list[int] = []
KEY = SessionKey("ada", "bills")


@pytest.fixture(autouse=True)
def nothing_is_made() -> None:
    made.clear()


@tool(needs_approval=True)
async def pay(n: int) -> str:
    """Pay."""
    made.append(n)
    return f"paid {n}"


@tool
async def look(n: int) -> str:
    """Look."""
    made.append(n)
    return f"saw {n}"


def clerk(request: ModelRequest) -> Any:
    """Pays and looks for who asks for it, and repeats everything else."""
    last = request.items[-1]
    if isinstance(last, FunctionCallOutput):
        return "done"
    text = last.text if isinstance(last, Message) else ""
    if text != "pay":
        return f"heard {text}"
    return [FunctionCall(name=name, arguments={"n": n}) for n, name in enumerate(("pay", "look", "pay"))]


AGENT: Any = loop(call_model(tools=[pay, look]), until=until.no_tool_calls())


def harness(backend: CheckpointBackend | None, **policy: Any) -> Any:
    model = ScriptedModel(*[clerk] * 9)
    return Harness(plugins=(), checkpoints=backend, model=model, sessions=SessionPolicy(**policy))


async def say(chat: Any, text: str, **options: Any) -> RunResult[Any, Any]:
    result: RunResult[Any, Any] = await chat.session(KEY.user, KEY.session).run(AGENT, text, **options)
    return result


async def told(chat: Any) -> list[str]:
    """The conversation, in short."""
    lines: list[str] = []
    for item in await chat.session(KEY.user, KEY.session).items():
        match item:
            case Message():
                lines.append(f"{item.role}: {item.text}")
            case FunctionCallOutput():
                lines.append(f"output: {item.output}")
            case _:
                lines.append(item.type)
    return lines


CALLS = ["function_call"] * 3
WHOLE = ["user: pay", *CALLS, "output: paid 0", "output: saw 1", "output: paid 2", "assistant: done"]


@pytest.mark.parametrize("again", ["resumed", "delivered"])
async def test_a_session_that_is_edited_while_a_turn_waits_gets_that_turn_and_nothing_else(again: str) -> None:
    chat = harness(InMemoryBackend())
    session = chat.session(KEY.user, KEY.session)
    await say(chat, "hello")
    first = await say(chat, "pay", delivery_id="d")
    async with session.edit() as edit:
        del edit.items[0]
    await chat.runs.answer(*[request.approve() for request in first.pending])
    result = await (chat.resume(first.run_id, AGENT) if again == "resumed" else say(chat, "pay", delivery_id="d"))
    assert result.value == "done"
    assert await told(chat) == ["assistant: heard hello", *WHOLE]


@pytest.mark.parametrize("persist", ["run", "step", "item"])
async def test_a_turn_that_waits_is_open_until_it_is_answered(tmp_path: Path, persist: str) -> None:
    async with SqliteBackend(tmp_path / "chat.db") as backend:
        chat = harness(backend, persist=persist)
        await say(chat, "hello")
        first = await say(chat, "pay", delivery_id="d")
        assert (first.status, len(first.pending), made) == ("suspended", 2, [1])
        with pytest.raises(errors.SessionSuspended) as caught:
            await say(chat, "hurry")
        assert caught.value.run_id == first.run_id
        # The message once more: nobody is asked anew.
        again = await say(chat, "pay", delivery_id="d")
        assert (again.status, again.pending) == ("suspended", first.pending)
        assert await told(chat) == ["user: hello", "assistant: heard hello"]
    async with SqliteBackend(tmp_path / "chat.db") as backend:
        chat = harness(backend, persist=persist)
        (info,) = await chat.runs.list(status="suspended", session=KEY)
        assert len(info.pending) == 2
        result: Any = None
        for request in info.pending:
            result = await chat.resume(info.run_id, AGENT, answers=[request.approve()])
        assert (result.value, sorted(made)) == ("done", [0, 1, 2])
        assert await told(chat) == ["user: hello", "assistant: heard hello", *WHOLE]
        assert (await say(chat, "pay", delivery_id="d")).value == "done"
        assert (await say(chat, "bye")).value == "heard bye"
        assert (await told(chat))[-2:] == ["user: bye", "assistant: heard bye"]
        assert len(made) == 3


@pytest.mark.parametrize("conflict", ["fail", "merge"])
async def test_a_turn_that_waits_can_be_given_up(conflict: str) -> None:
    backend = InMemoryBackend()
    chat = harness(backend, on_suspended="close", on_conflict=conflict)
    first = await say(chat, "pay")
    assert (await say(chat, "never mind")).value == "heard never mind"
    closed = "output: Not finished"
    there = await told(chat)
    assert [line for line in there if not line.startswith(closed)] == [
        "user: pay",
        *CALLS,
        "output: saw 1",
        "user: never mind",
        "assistant: heard never mind",
    ]
    answers = [request.approve() for request in first.pending]
    if conflict == "fail":
        with pytest.raises(errors.SessionConflict) as caught:
            await chat.resume(first.run_id, AGENT, answers=answers)
        assert caught.value.result is not None
        assert caught.value.result.value == "done"
    else:
        assert (await chat.resume(first.run_id, AGENT, answers=answers)).value == "done"
        assert (await told(chat))[-3:] == ["output: paid 0", "output: paid 2", "assistant: done"]
    assert sorted(made) == [0, 1, 2]
    assert (await say(chat, "bye")).value == "heard bye"


async def test_turns_side_by_side_wait_by_themselves() -> None:
    chat = harness(InMemoryBackend(), gate="none", on_conflict="merge")
    first = await say(chat, "pay")
    assert (await say(chat, "hello")).value == "heard hello"
    result = await chat.resume(first.run_id, AGENT, answers=[request.approve() for request in first.pending])
    assert (result.value, sorted(made)) == ("done", [0, 1, 2])
    assert (await told(chat))[-3:] == ["output: paid 0", "output: paid 2", "assistant: done"]


async def test_outputs_that_came_in_another_order_are_written_once() -> None:
    """Cut off after the second call's output and before the first's, and delivered again."""
    slow = anyio.Event()
    waits = [True]

    @tool
    async def first(n: int) -> str:
        """First."""
        if waits:
            slow.set()
            await anyio.sleep_forever()
        return "one"

    @tool
    async def second(n: int) -> str:
        """Second."""
        return "two"

    def turn(request: ModelRequest) -> Any:
        if isinstance(request.items[-1], FunctionCallOutput):
            return "done"
        return [FunctionCall(name=name, arguments={"n": 1}) for name in ("first", "second")]

    agent: Any = loop(call_model(ScriptedModel(*[turn] * 5), tools=[first, second]), until=until.no_tool_calls())
    for follows in (False, True):
        waits[:], slow = [True], anyio.Event()
        chat = harness(InMemoryBackend(), on_conflict="merge" if follows else "fail")
        session = chat.session("ada", "x")
        result: Any = None
        async with anyio.create_task_group() as group:

            async def cut(session: Any = session, slow: anyio.Event = slow) -> None:
                await slow.wait()
                await anyio.wait_all_tasks_blocked()
                session.interrupt()

            group.start_soon(cut)
            result = await session.run(agent, "go", delivery_id="d")
        assert result.status == "interrupted"
        waits.clear()
        if follows:
            await session.run(call_model(), "something else")
        assert (await session.run(agent, "go", delivery_id="d")).value == "done"
        outputs = [item.output for item in await session.items() if isinstance(item, FunctionCallOutput)]
        assert sorted(each for each in outputs if not str(each).startswith("Not")) == ["one", "two"]
