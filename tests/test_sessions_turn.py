"""Turns that do not end at once: they wait for an answer, or were cut off and go on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Message,
    ModelRequest,
    Retry,
    RunResult,
    SessionKey,
    SessionPolicy,
    call_model,
    errors,
    loop,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.core.runtime import Runtime
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


class Hurried(Runtime):
    """The machine's clock, on which a pause takes no time."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    async def sleep(self, seconds: float) -> None:
        self.ahead += seconds
        await anyio.lowlevel.checkpoint()


async def test_a_turn_whose_run_another_process_resumes_names_the_session() -> None:
    backend, policy = InMemoryBackend(), SessionPolicy(on_suspended="close")
    model = ScriptedModel(*[clerk] * 9)
    chat: Any = Harness(plugins=(), checkpoints=backend, model=model, sessions=policy, runtime=Hurried())
    first = await say(chat, "pay")
    lease = await backend.acquire(first.run_id, ttl=30)
    with pytest.raises(errors.RunBusy) as caught:
        await say(chat, "never mind")
    busy = f"session {KEY.session!r} is busy: another process resumes run {first.run_id!r} of its last turn"
    assert (caught.value.message, caught.value.hint) == (busy, "SessionPolicy(wait=30) waits for it")
    await backend.release(lease)
    assert (await say(chat, "never mind")).value == "heard never mind"


async def test_turns_side_by_side_wait_by_themselves() -> None:
    chat = harness(InMemoryBackend(), lock="none", on_conflict="merge")
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
                await session.interrupt()

            group.start_soon(cut)
            result = await session.run(agent, "go", delivery_id="d")
        assert result.status == "interrupted"
        waits.clear()
        if follows:
            await session.run(call_model(), "something else")
        assert (await session.run(agent, "go", delivery_id="d")).value == "done"
        outputs = [item.output for item in await session.items() if isinstance(item, FunctionCallOutput)]
        assert sorted(each for each in outputs if not str(each).startswith("Not")) == ["one", "two"]


# ------------------------------------------------------------------------------------------- what the user has said


def down(_: object = None) -> Any:
    """A provider that does not answer."""
    return errors.ModelUnavailable("down", model="test:scripted")


class Waiting(ScriptedModel):
    """A model that says that it was asked, and then nothing."""

    def __init__(self) -> None:
        super().__init__("never")
        self.asked = anyio.Event()

    async def _answer(self, request: ModelRequest) -> Any:
        self.asked.set()
        await anyio.sleep_forever()


@pytest.fixture(params=["memory", "kept", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "file":
        async with SqliteBackend(tmp_path / "chat.db") as backend:
            yield backend
    else:
        yield None if request.param == "memory" else InMemoryBackend()


def texts(items: Any) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, "failed"),
        ({"budget": Budget(tokens=1)}, "budget_exceeded"),
        ({"budget": Budget(model_calls=0)}, "budget_exceeded"),
        ({"budget": Budget(steps=0)}, "budget_exceeded"),
        ({"deadline": 0.0}, "budget_exceeded"),
    ],
    ids=lambda each: str(each),
)
async def test_what_was_said_stays_whatever_becomes_of_the_answer(store: Any, options: Any, status: str) -> None:
    chat = Harness(plugins=(), checkpoints=store, model=ScriptedModel(*[down] * 2))
    ctx = Context(items=[Message.developer("Be brief.")])
    session = chat.session("ada", "bills")
    results = [
        await chat.run(AGENT, "hello", ctx=ctx, on_error="result", **options),
        await session.run(AGENT, "hello", on_error="result", **options),
    ]
    assert [result.status for result in results] == [status] * 2
    assert texts(ctx.items) == texts(results[0].items) == ["Be brief.", "hello"]
    assert texts(await session.items()) == texts(results[1].items) == ["hello"]


@pytest.mark.parametrize("how", ["cancel", "interrupt", "abort", "complete", "timeout"])
async def test_what_was_said_stays_when_the_run_is_stopped(store: Any, how: str) -> None:
    model = Waiting()
    chat: Any = Harness(plugins=(), checkpoints=store, model=model)
    session = chat.session("ada", "bills")

    @step
    async def stop(text: str, ctx: Context) -> str:
        await model.asked.wait()
        ctx.root.abort("enough") if how == "abort" else ctx.root.complete(text)
        return text

    flow: Any = AGENT
    if how in ("abort", "complete"):
        # Something beside the model stops the run.
        flow = step(id="beside")(beside(stop))
    elif how == "timeout":
        flow = call_model(timeout=0.01)
    async with chat, anyio.create_task_group() as group:
        group.start_soon(partial(session.run, flow, "hello", on_error="result"))
        if how != "timeout":
            # Where the machine is busy, that strikes before the model is asked.
            await model.asked.wait()
        if how == "cancel":
            group.cancel_scope.cancel()
        elif how == "interrupt":
            await chat.interrupt(session.key)
    assert texts(await session.items()) == ["hello"]


def beside(stop: Any) -> Any:
    async def run(text: str, ctx: Context) -> str:
        ctx.spawn_detached(stop, text)
        return await call_model()(text, ctx)

    return run


async def test_what_was_said_before_the_model_fails_is_the_same_after_a_resume(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "chat.db") as backend:
        chat = Harness(plugins=(), checkpoints=backend, model=ScriptedModel(down, down, "At noon."))
        session = chat.session("ada", "bills")
        first = await session.run(AGENT, "hello", on_error="result")
        again = await chat.resume(first.run_id, AGENT, on_error="result")
        assert texts(first.items) == texts(again.items) == texts(await session.items()) == ["hello"]
        last = await chat.resume(first.run_id, AGENT)
        assert texts(last.items) == ["hello", "At noon."]


async def test_a_failure_that_a_step_handles_leaves_nothing_and_a_retry_says_it_once(store: Any) -> None:
    @step
    async def careful(text: str, ctx: Context) -> str:
        try:
            return await call_model(id="first")(text, ctx)
        except errors.ModelError:
            return await call_model(id="second", retry=Retry(attempts=2, initial=0.0))(f"{text} again", ctx)

    chat = Harness(plugins=(), checkpoints=store, model=ScriptedModel(down, down, "At noon."))
    result = await chat.run(careful, "hello")
    assert texts(result.items) == ["hello again", "At noon."]


async def test_an_answer_that_is_handed_on_to_a_model_that_fails_is_not_there_twice(store: Any) -> None:
    chat = Harness(plugins=(), checkpoints=store, model=ScriptedModel("Sums.", down))
    flow: Any = sequence(call_model(id="draft"), call_model(id="mend"))
    result = await chat.run(flow, "hello", on_error="result")
    assert texts(result.items) == ["hello", "Sums."]


async def test_a_prompt_that_was_not_answered_is_said_once_however_often_it_is_repeated(store: Any) -> None:
    model = ScriptedModel(down, down, "At noon.", "As before.")
    session = Harness(plugins=(), checkpoints=store, model=model).session("ada", "bills")
    other: Any = sequence(call_model(), id="other")
    for flow in (AGENT, other, AGENT):
        await session.run(flow, [Message.user("hello")], on_error="result")
    assert [texts(request.items) for request in model.requests] == [["hello"]] * 3
    assert texts(await session.items()) == ["hello", "At noon."]
    # It was answered, so this is another question.
    await session.run(AGENT, "hello")
    assert texts(await session.items()) == ["hello", "At noon.", "hello", "As before."]


async def test_a_prompt_is_repeated_behind_what_its_turn_had_done(store: Any) -> None:
    call = FunctionCall(name="look", arguments={"n": 1})
    model = ScriptedModel(call, down, "Seen.", down, "Else.", "Other.")
    chat = Harness(plugins=(), checkpoints=store, model=model)
    ctx = Context()
    await chat.run(AGENT, "look", ctx=ctx, on_error="result")
    result = await chat.run(AGENT, "look", ctx=ctx)
    assert result.value == "Seen."
    assert [item.type for item in ctx.items] == ["message", "function_call", "function_call_output", "message"]
    # Another prompt is another one, and what was repeated by hand stands there as it was put.
    await chat.run(AGENT, "a", ctx=ctx, on_error="result")
    await chat.run(AGENT, "b", ctx=ctx)
    ctx.items.append(Message.user("c"))
    await chat.run(AGENT, "c", ctx=ctx)
    assert texts(ctx.items) == ["look", "Seen.", "a", "b", "Else.", "c", "c", "Other."]


async def test_a_prompt_is_repeated_by_a_run_that_another_process_goes_on_with(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "chat.db") as backend:
        chat = Harness(plugins=(), checkpoints=backend, model=ScriptedModel(*[down] * 3, "At noon."))
        ctx = Context()
        await chat.run(AGENT, "hello", ctx=ctx, on_error="result")
        second = await chat.run(AGENT, "hello", ctx=ctx, on_error="result")
        [first] = {origin[0] for _, origin in ctx.items.origins() if origin}
        result: Any = None
        for _ in range(2):
            result = await chat.resume(second.run_id, AGENT, on_error="result")
        assert texts(result.items) == ["hello", "At noon."]
        assert texts(result.items.view(run_id=first)) == ["hello"]
        assert texts(result.items.view(run_id=second.run_id)) == ["At noon."]


@pytest.mark.parametrize("sent", ["text", Message.user("text")], ids=["text", "message"])
async def test_a_queued_message_whose_turn_is_cancelled_is_gone_on_with(sent: Any) -> None:
    backend, model = InMemoryBackend(), Waiting()
    chat: Any = Harness(plugins=(), checkpoints=backend, model=model)
    await chat.session("ada", "bills").send(sent)
    async with anyio.create_task_group() as group:
        group.start_soon(chat.session("ada", "bills").next_turn, AGENT)
        await model.asked.wait()
        group.cancel_scope.cancel()
    session = Harness(plugins=(), checkpoints=backend, model=ScriptedModel("fine")).session("ada", "bills")
    assert texts(await session.items()) == ["text"]
    assert len(await session.queued()) == 1
    result = await session.next_turn(AGENT)
    assert result is not None
    assert (result.value, texts(await session.items()), await session.queued()) == ("fine", ["text", "fine"], ())


# --------------------------------------------------------------------------------------------- where items come from


@step
async def listed(text: str, ctx: Context) -> dict[str, list[str]]:
    """What the turn's conversation holds of each run and branch."""
    ctx.items.append(Message.user(text))
    seen = {run: texts(ctx.items.view(run_id=run)) for run in {o[0] for _, o in ctx.items.origins() if o is not None}}
    return {**seen, "branch": texts(ctx.items.view(branch=ctx.branch)), "all": texts(ctx.items)}


@pytest.mark.parametrize("persist", ["run", "step", "manual"])
async def test_items_of_earlier_turns_are_found_by_their_run_and_branch(store: Any, persist: Any) -> None:
    def harness() -> Any:
        return Harness(plugins=(), checkpoints=store, sessions=SessionPolicy(persist=persist))

    chat = harness()
    runs: list[str] = []
    for text in ("a", "b"):
        result = await chat.session("ada", "bills").run(listed, text)
        runs.append(result.run_id)
    third = (
        await (harness() if store is not None and persist != "manual" else chat)
        .session("ada", "bills")
        .run(listed, "c")
    )
    assert third.value == {
        runs[0]: ["a"], runs[1]: ["b"], third.run_id: ["c"], "branch": ["a", "b", "c"], "all": ["a", "b", "c"],
    }  # fmt: skip
    assert texts(third.items.view(run_id=runs[1])) == ["b"]
    assert third.items.origin_of(0) == (runs[0], "listed")


async def test_items_that_stay_in_an_edit_keep_their_run(store: Any) -> None:
    chat = Harness(plugins=(), checkpoints=store)
    session = chat.session("ada", "bills")
    runs = [(await session.run(listed, text)).run_id for text in ("a", "b")]
    async with session.edit() as edit:
        edit.items[:1] = [Message.user("put")]
    again = Harness(plugins=(), checkpoints=store).session("ada", "bills") if store is not None else session
    result = await again.run(listed, "c")
    assert result.value == {runs[1]: ["b"], result.run_id: ["c"], "branch": ["b", "c"], "all": ["put", "b", "c"]}


async def test_turns_side_by_side_keep_their_runs_when_one_overwrites_the_other(store: Any) -> None:
    both = Meeting(2)

    @step(id="listed")
    async def slow(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        await both.come()
        return text

    chat = Harness(plugins=(), checkpoints=store, sessions=SessionPolicy(lock="none", on_conflict="overwrite"))
    session = chat.session("ada", "bills")
    first = await session.run(listed, "a")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run, slow, "b")
        group.start_soon(session.run, slow, "c")
    last = await session.run(listed, "d")
    assert last.value[first.run_id] == ["a"]
    assert len(last.value) == 5


class Meeting:
    """Where several wait for one another."""

    def __init__(self, guests: int) -> None:
        self.missing, self.there = guests, anyio.Event()

    async def come(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.there.set()
        await self.there.wait()
