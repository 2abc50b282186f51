"""What is too large is refused where it comes from: by the model's call or by the tool, and never by the journal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from noetic_py import (
    Budget,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Message,
    ModelRequest,
    ModelResponse,
    ToolFinished,
    call_model,
    loop,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, FileBackend, InMemoryBackend, SqliteBackend
from noetic_py.core.codec.wire import MAX_ITEM_BYTES, check_size
from noetic_py.core.items import InputText, Opaque, OutputText, Refusal
from noetic_py.errors import AnswerTooLarge, LimitExceeded, ModelStreamError
from noetic_py.journal.stored import Record
from noetic_py.models import (
    MAX_ANSWER_BYTES,
    AnswerSize,
    ItemDone,
    ModelEvent,
    ReasoningPart,
    RetryModel,
    TextPart,
    ToolCallPart,
)
from noetic_py.models.model import check_answer
from noetic_py.testing import ScriptedModel
from tests.properties.checks import FULL

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MB = 2**20


class Endless:
    """A model whose answer does not end."""

    name = "test:endless"

    def __init__(self, event: ModelEvent) -> None:
        self.event = event
        self.sent = 0

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[Endless]:
        yield self

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        while True:
            self.sent += 1
            assert self.sent < 3_000_000
            yield self.event

    async def response(self) -> ModelResponse:
        raise AssertionError("it has no end")


EVENTS = [
    TextPart("x" * MB),
    TextPart("é" * MB),
    ReasoningPart("x" * MB),
    ToolCallPart("c1", "find", "x" * MB),
    ItemDone(Message.assistant("x" * MB)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("watched", ["stream", "stored", "budget", "wrapped"])
async def test_an_answer_without_an_end_is_cut_off(event: ModelEvent, watched: str) -> None:
    model = Endless(event)
    stored: dict[str, Any] = {"checkpoints": InMemoryBackend()} if watched == "stored" else {}
    budget = Budget(model_calls=5) if watched != "budget" else Budget(tokens=10**9)
    asked: Any = RetryModel(model, attempts=3) if watched == "wrapped" else model
    async with (
        Harness(model=asked, **stored) as harness,
        harness.stream(call_model(), "x", on_error="result", budget=budget) as stream,
    ):
        result = await stream.result()
    assert isinstance(result.error, AnswerTooLarge)
    assert (result.error.limit, result.error.retryable, result.error.model) == (MAX_ANSWER_BYTES, False, "test:endless")
    assert model.sent <= 70
    assert result.model_calls == 1


def test_small_pieces_count_too() -> None:
    size = AnswerSize("m")
    # Each counts as sixteen bytes.
    small = MAX_ANSWER_BYTES // 16 if FULL else 1_000
    size.count(MAX_ANSWER_BYTES - 16 * small)
    for _ in range(small):
        size.add(TextPart(""))
    with pytest.raises(AnswerTooLarge):
        size.add(TextPart(""))


@pytest.mark.parametrize(
    "items",
    [
        [Message.assistant("x" * (33 * MB))],
        [Message.assistant("\x01" * (6 * MB))],
        [Message.assistant("x" * (20 * MB)), Message.assistant("x" * (20 * MB))],
        [FunctionCall(name="find", arguments="x" * (33 * MB), call_id="c1")],
        [FunctionCall(name="find", arguments='"' * (17 * MB), call_id="c1")],
    ],
)
@pytest.mark.parametrize("stored", [False, True])
async def test_an_answer_of_large_items_is_refused(items: Sequence[Item], stored: bool) -> None:
    """Nothing listens, so its pieces are not counted."""
    model = ScriptedModel(list(items), chunk=MB)
    backend: dict[str, Any] = {"checkpoints": InMemoryBackend()} if stored else {}
    async with Harness(model=model, **backend) as harness:
        result = await harness.run(call_model(), "x", on_error="result")
    assert isinstance(result.error, ModelStreamError)
    assert type(result.error) is AnswerTooLarge


def test_items_that_fit() -> None:
    check_answer([Message.assistant("x" * (15 * MB)), Message.assistant("x" * (15 * MB))], "m")
    many = Message(role="assistant", content=[OutputText(text="x"), Refusal(refusal="y" * 100)])
    assert check_size(many) >= 100
    assert check_size(Opaque(raw=b'{"type": "x"}')) > 0
    assert check_size(FunctionCallOutput(call_id="c", output=(InputText(text="x" * 50),))) == 50
    with pytest.raises(LimitExceeded, match="item size"):
        check_size(FunctionCallOutput(call_id="c", output=[InputText(text="x" * (17 * MB))] * 2))


# ---------------------------------------------------------------------------------------------------- tools


@tool
async def read(mb: int, char: str = "x") -> str:
    """Read."""
    return char * (mb * MB)


@tool(replay="once")
async def read_once(mb: int, char: str = "x") -> str:
    """Read once."""
    return char * (mb * MB)


@tool
async def pages(mb: int, char: str = "x") -> list[InputText]:
    """Read pages."""
    return [InputText(text=char * MB) for _ in range(mb)]


# What is too large is so before a store sees it; the contract of stores has large records of its own.
@pytest.fixture(params=["none", "memory", "sqlite", "files"] if FULL else ["none", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, CheckpointBackend]:
    made: dict[str, Callable[[], CheckpointBackend]] = {
        "memory": InMemoryBackend,
        "sqlite": lambda: SqliteBackend(str(tmp_path / "runs.db")),
        "files": lambda: FileBackend(str(tmp_path / "runs")),
    }
    return {"checkpoints": made[request.param]()} if request.param in made else {}


@pytest.mark.parametrize("name", ["read", "read_once", "pages"])
@pytest.mark.parametrize("arguments", ['{"mb": 33}', '{"mb": 6, "char": "\\u0001"}', '{"mb": 70}'][: 3 if FULL else 2])
async def test_an_output_that_is_too_large_is_the_tools_error(
    name: str, arguments: str, backend: dict[str, Any]
) -> None:
    model = ScriptedModel(FunctionCall(name=name, arguments=arguments, call_id="c1"), "It is too large.")
    agent = loop(call_model(tools=[read, read_once, pages]), until=until.no_tool_calls())
    async with Harness(model=model, **backend) as harness:
        async with harness.stream(agent, "read it", run_id="r") as stream:
            failed = [event.failed async for event in stream.select(ToolFinished)]
            result = await stream.result()
        assert failed == [True]
        outputs = [item.text for item in result.items if isinstance(item, FunctionCallOutput)]
        assert len(outputs) == 1
        assert "output is too large" in outputs[0]
        assert str(MAX_ITEM_BYTES) in outputs[0]
        assert [item.text for item in model.requests[-1].items if isinstance(item, FunctionCallOutput)] == outputs
        if backend:
            assert (await harness.resume("r", agent)).value == "It is too large."


@pytest.mark.parametrize("durability", ["step", "exit"])
async def test_large_outputs_of_one_round_are_stored(
    durability: Literal["step", "exit"], backend: dict[str, Any]
) -> None:
    calls = [FunctionCall(name="read", arguments='{"mb": 22}', call_id=f"c{number}") for number in range(3)]
    agent = loop(call_model(tools=[read]), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(calls, "Thanks."), **backend) as harness:
        result = await harness.run(agent, "read", durability=durability, run_id="r")
        assert (result.status, result.value) == ("completed", "Thanks.")
        if backend:
            again = await harness.resume("r", agent)
            assert (again.value, len(again.items)) == ("Thanks.", len(result.items))


class Slow(InMemoryBackend):
    """Takes the first transaction of tools only when all others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.ready = anyio.Event()

    async def append(self, run_id: str, *, records: Sequence[Record], **rest: Any) -> int:
        size = sum(len(record.payload) for record in records)
        if size > 20 * MB and not self.sizes:
            await self.ready.wait()
        if size > 20 * MB:
            self.sizes.append(size // (20 * MB))
        return await super().append(run_id, records=records, **rest)


async def test_a_step_tool_whose_value_is_too_large_tells_the_model(backend: dict[str, Any]) -> None:
    @step
    async def make(text: str) -> str:
        return "x" * (66 * MB)

    maker = step_tool(make, name="make", description="Make it.")
    call = FunctionCall(name="make", arguments='{"text": "x"}', call_id="c1")
    async with Harness(model=ScriptedModel(call, "It is too large."), **backend) as harness:
        result = await harness.run(loop(call_model(tools=[maker]), until=until.no_tool_calls()), "make")
    assert result.value == "It is too large."


async def test_what_waits_together_is_written_apart_where_it_is_too_large() -> None:
    backend = Slow()
    begun = 0

    @tool
    async def fetch(number: int) -> str:
        """Fetch."""
        nonlocal begun
        begun += 1
        if begun == 5:
            # Those before it have ended, and wait for the first one's commit, when the loop comes round again.
            await anyio.wait_all_tasks_blocked()
            backend.ready.set()
            return ""
        return "x" * (20 * MB)

    calls = [FunctionCall(name="fetch", arguments=f'{{"number": {each}}}', call_id=f"c{each}") for each in range(5)]
    agent = loop(call_model(tools=[fetch]), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(calls, "Thanks."), checkpoints=backend) as harness:
        result = await harness.run(agent, "fetch", run_id="r")
        assert result.value == "Thanks."
        again = await harness.resume("r", agent)
        assert [item.id for item in again.items] == [item.id for item in result.items]
    assert sum(backend.sizes) == 4
    assert max(backend.sizes) == 2


async def test_a_value_that_is_too_large_for_a_record_fails_its_step(backend: dict[str, Any]) -> None:
    @step
    async def make(text: str) -> str:
        return "x" * (70 * MB)

    async with Harness(**backend) as harness:
        result = await harness.run(make, "x", on_error="result")
    if not backend:
        assert result.status == "completed"
        return
    assert isinstance(result.error, LimitExceeded)
    assert (result.error.what, result.error.path) == ("record size", ("make",))
