"""A backend that dies at a commit, and the check that a flow survives its death anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    MemoryLayer,
    Message,
    ModelRequest,
    ModelResponse,
    StateBag,
    Step,
    call_model,
    loop,
    parallel,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.testing import Died, FaultyBackend, ScriptedModel, assert_resumable_everywhere
from noetic_py.testing.faults import When

pytestmark = pytest.mark.anyio


@define
class Tally:
    """A state of one's own."""

    total: int = 0
    seen: list[int] = field(factory=list[int])


@step
async def note(x: int, ctx: Context[Memory, Tally]) -> int:
    ctx.state.total += x
    ctx.state.seen.append(x)
    ctx.items.append(Message.assistant(f"noted {x}"))
    return x + 1


def noting() -> Step[int, int, Memory, Tally]:
    return sequence(note, note, note)


# -- the backend


@pytest.mark.parametrize("when", ["before", "after"])
async def test_it_dies_at_the_append_that_was_chosen(when: When) -> None:
    inner = InMemoryBackend()
    backend = FaultyBackend(inner, dies_at=2, when=when)
    with pytest.raises(Died):
        await Harness(plugins=(), checkpoints=backend).run(note, 1, run_id="r", state=Tally())
    assert backend.dead
    assert backend.appends == 2
    kept = await inner.read("r")
    assert any(record.kind == "StepFinished" for record in kept) is (when == "after")


async def test_the_dead_do_nothing_any_more() -> None:
    backend = FaultyBackend(InMemoryBackend(), dies_at=1)
    with backend.outlived():
        await Harness(plugins=(), checkpoints=backend).run(note, 1, run_id="r", state=Tally())
    for attempt in (
        lambda: backend.read("r"),
        lambda: backend.head("r"),
        lambda: backend.list(),
        lambda: backend.acquire("r", ttl=1),
        lambda: backend.get(("a",), "b"),
        lambda: backend.put(("a",), "b", b""),
        lambda: backend.stats(),
        lambda: backend.describe(),
    ):
        with pytest.raises(Died):
            await attempt()


async def test_the_lease_of_the_dead_is_free() -> None:
    inner = InMemoryBackend()
    backend = FaultyBackend(inner, dies_at=2, when="after")
    with backend.outlived():
        await Harness(plugins=(), checkpoints=backend).run(noting(), 1, run_id="r", state=Tally())
    lease = await inner.acquire("r", ttl=1)
    await inner.release(lease)
    backend.revive()
    result = await Harness(plugins=(), checkpoints=backend).resume("r", noting(), state_type=Tally)
    assert result.value == 4
    assert result.state == Tally(6, [1, 2, 3])


async def test_death_in_a_section_comes_out_of_its_task_groups() -> None:
    backend = FaultyBackend(InMemoryBackend(), dies_at=2)
    flow = parallel([noting(), noting()], id="p")
    with backend.outlived():
        await Harness(plugins=(), checkpoints=backend).run(flow, 1, run_id="r", state=Tally())
    assert backend.dead


async def test_other_errors_are_not_outlived() -> None:
    backend = FaultyBackend(InMemoryBackend())
    with pytest.raises(ValueError, match="mine"), backend.outlived():
        raise ValueError("mine")
    with pytest.raises(BaseExceptionGroup) as caught, backend.outlived():
        raise BaseExceptionGroup("", [Died("here"), ValueError("mine")])
    assert [str(each) for each in caught.value.exceptions] == ["mine"]


async def test_without_a_death_it_is_the_other_backend() -> None:
    inner = InMemoryBackend()
    async with FaultyBackend(inner) as backend:
        assert (backend.durability, backend.shared) == (inner.durability, inner.shared)
        assert await backend.describe() == await inner.describe()
        await Harness(plugins=(), checkpoints=backend).run(note, 1, run_id="r", state=Tally())
        assert [entry.run_id for entry in await backend.list()] == ["r"]
        await backend.fork("r", at=1, new_run_id="f")
        assert await backend.head("f") is not None
        await backend.delete("f")
        assert await backend.head("f") is None
        version = await backend.put(("s",), "k", b"v")
        assert (await backend.get(("s",), "k")) == (await backend.scan(("s",)))[0]
        assert await backend.remove(("s",), "k", expected=version)
        assert list(await backend.commit([])) == []
        assert await backend.prune(keep=0) == 1
        assert (await backend.stats()).runs == 0


# -- everywhere


async def test_a_flow_of_steps_survives_everywhere() -> None:
    kills = await assert_resumable_everywhere(noting, 1, state=Tally())
    # The head, three steps, the sequence, the end; each before and after.
    assert kills == 8


@tool
async def height(ctx: Context[Memory, StateBag], port: str) -> str:
    """Look a height up."""
    ctx.state["asked"] = [*(ctx.state.get_as("asked", list) or []), port]
    return f"{port}: 6.9 m"


def answer(request: ModelRequest) -> list[Item]:
    if isinstance(last := request.items[-1], FunctionCallOutput):
        return [Message.assistant(f"It is {last.output}.")]
    return [FunctionCall(name="height", arguments={"port": port}) for port in ("Brest", "Bergen")]


def agent() -> Step[Any, str, Memory, StateBag]:
    return loop(call_model(tools=[height]), until=until.no_tool_calls())


def with_model(backend: CheckpointBackend) -> Harness[Memory]:
    return Harness(model=ScriptedModel(*[answer] * 10, cost="0.1"), checkpoints=backend, plugins=())


async def test_an_agent_survives_everywhere() -> None:
    assert await assert_resumable_everywhere(agent, "How high?", make=with_model) >= 10


async def test_a_flow_that_is_no_other_each_time_is_found() -> None:
    counter = iter(range(1000))

    def flow() -> Step[int, int]:
        @step
        async def draw(x: int) -> int:
            return next(counter)

        return sequence(draw, draw)

    with pytest.raises(AssertionError, match=r"killed before commit 1: value is 3, and without the kill 1"):
        await assert_resumable_everywhere(flow, 1)


async def test_a_body_that_hands_on_what_it_drew_is_found() -> None:
    """It must be recorded: a step, or derived from the path."""
    counter = iter(range(1000))

    @step
    async def child(x: int) -> int:
        return 0

    def flow() -> Step[int, int, Memory, StateBag]:
        @step
        async def parent(x: int, ctx: Context[Memory, StateBag]) -> int:
            return await child(next(counter), ctx)

        return parent

    with pytest.raises(AssertionError, match=r"killed after commit 2: status is 'failed'"):
        await assert_resumable_everywhere(flow, 1)


async def test_a_flow_that_goes_on_with_other_code_is_found() -> None:
    flows = iter([noting(), *[sequence(note, note, id="sequence")] * 100])
    with pytest.raises(AssertionError, match=r"killed before commit 1: "):
        await assert_resumable_everywhere(lambda: next(flows), 1, state=Tally())


async def test_a_harness_that_keeps_nothing_is_found() -> None:
    with pytest.raises(AssertionError, match="checkpoints=backend"):
        await assert_resumable_everywhere(noting, 1, state=Tally(), make=lambda backend: Harness(plugins=()))


# -- ids, which each run draws anew


class Marks(MemoryLayer[dict[str, str]]):
    """Keeps an item of the conversation behind each answer."""

    place: int = -1

    async def store(self, response: ModelResponse) -> None:
        item = self.ctx.items[self.place]
        self.state = {**self.state, item.id: f"item {item.id} of {self.ctx.id}", "last": item.id}


def marking(*places: int) -> Callable[[CheckpointBackend], Harness[Memory]]:
    """Harnesses whose layers keep the item of a place, each another one until the last place."""
    left = list(places)

    class Mem(Memory):
        marks: Marks

    def made(backend: CheckpointBackend) -> Harness[Memory]:
        memory = Mem(marks=Marks(place=left.pop(0) if len(left) > 1 else left[0]))
        return Harness(memory=memory, model=ScriptedModel(*[answer] * 10), checkpoints=backend, plugins=())

    return made


async def test_ids_in_the_state_of_a_layer_are_compared_by_what_they_refer_to() -> None:
    assert await assert_resumable_everywhere(agent, "How high?", make=marking(-1)) >= 10
    with pytest.raises(AssertionError, match=r"memory is .*<id \d+>.*, and without the kill"):
        await assert_resumable_everywhere(agent, "How high?", make=marking(0, -1))


@define
class Kept:
    last: str = ""
    call: str = ""


async def test_ids_in_a_state_and_in_a_value_are_compared_by_what_they_refer_to() -> None:
    @step
    async def keep(_: object, ctx: Context[Memory, Kept]) -> dict[str, object]:
        calls = [item for item in ctx.items if isinstance(item, FunctionCall)]
        ctx.state.last, ctx.state.call = ctx.items[-1].id, calls[-1].call_id
        return {item.id: {"before": ctx.items[place - 1].id} for place, item in enumerate(ctx.items)}

    @tool
    async def height(port: str) -> str:
        """Look a height up."""
        return f"{port}: 6.9 m"

    def flow() -> Step[Any, Any, Memory, Kept]:
        return loop(call_model(tools=[height]), until=until.no_tool_calls()) >> keep

    assert await assert_resumable_everywhere(flow, "How high?", state=Kept(), make=with_model) >= 10


async def test_what_else_is_read_has_to_be_the_same() -> None:
    counter = iter(range(1000))

    async def counted(backend: CheckpointBackend) -> int:
        return next(counter)

    async def runs(backend: CheckpointBackend) -> list[str]:
        return [entry.run_id for entry in await backend.list()]

    assert await assert_resumable_everywhere(noting, 1, state=Tally(), also=runs) == 8
    with pytest.raises(AssertionError, match="what else was read is 1, and without the kill 0"):
        await assert_resumable_everywhere(noting, 1, state=Tally(), also=counted)
