"""Tests that the state of a layer changes in its functions and hooks, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from attrs import define, field

from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    MemoryLayer,
    Retry,
    Step,
    branch,
    call_model,
    each,
    errors,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.memory import ContextItem, ContextPool, ContextQueue, Returned, Seed, TaskState, function
from noetic_py.testing import ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio


@define
class Box:
    """A value that can be changed."""

    lines: list[str] = field(factory=list[str])


class Boxes(MemoryLayer[list[Box]]):
    """Holds values that can be changed."""

    @function(model=False)
    async def put(self, box: Box) -> Box:
        """Keep one, and hand it back."""
        self.state.append(box)
        return box

    @function(model=False)
    async def all(self) -> list[Box]:
        """All of them."""
        return self.state

    def sneak(self) -> None:
        """Change the state without saying so."""
        self.state.append(Box())

    def overwrite(self) -> None:
        """Likewise."""
        self.state = []


class Mem(Memory):
    boxes: Boxes = Boxes()
    shelf: ContextPool[list[str]] = ContextPool()
    window: ContextQueue[list[str]] = ContextQueue()
    task: TaskState[dict[str, Any]] = TaskState()


def _deep(ctx: Context[Mem]) -> None:
    ctx.memory.boxes.state[0].lines.append("x")


def _assign(ctx: Context[Mem]) -> None:
    ctx.memory.boxes.state = []


def _of_the_root(ctx: Context[Mem]) -> None:
    ctx.root.memory.boxes.state.clear()


def _read_only(ctx: Context[Mem]) -> None:
    memory: Any = ctx.read_only().memory
    memory.boxes.state.clear()


WAYS: dict[str, Callable[[Any], object]] = {
    "append": lambda ctx: ctx.memory.boxes.state.append(Box()),
    "nested": _deep,
    "assigned": _assign,
    "method": lambda ctx: ctx.memory.boxes.sneak(),
    "assigning method": lambda ctx: ctx.memory.boxes.overwrite(),
    "by id": lambda ctx: ctx.memory["boxes"].state.clear(),
    "root": _of_the_root,
    "read only": _read_only,
    "content of a pool": lambda ctx: ctx.memory.shelf["a"].content.append("x"),
    "content of a queue": lambda ctx: ctx.memory.window.entries[0].content.append("x"),
    "a dict": lambda ctx: ctx.memory.task.state.update(a=1),
}


@step
async def fill(text: str, ctx: Context[Mem]) -> str:
    await ctx.memory.boxes.put(Box(["kept"]))
    await ctx.memory.shelf.add(ContextItem(["kept"], id="a", description="an a"))
    await ctx.memory.window.append(ContextItem(["kept"]))
    return text


def _flow(kind: str, change: Any) -> Step[Any, Any, Any, Any]:
    @step
    async def changes(text: str, ctx: Context[Mem]) -> str:
        change(ctx)
        return text

    @tool
    async def changing(ctx: Context[Mem]) -> str:
        """Change it."""
        change(ctx)
        return "done"

    call = FunctionCall(name="changing", arguments="{}")
    flows: dict[str, Any] = {
        "step": changes,
        "spawn": spawn(changes),
        "race": race([changes]),
        "branch": branch(lambda text, ctx: change(ctx), {None: changes}),
        "merge": parallel([fill], merge=lambda outputs, ctx: change(ctx)),
        "tool": loop(call_model(ScriptedModel(call, "done"), tools=[changing]), until=until.no_tool_calls()),
    }
    made: Step[Any, Any, Any, Any] = flows[kind]
    return fill >> made


# What a route is given has neither a root nor another view of itself.
TRIED = [
    (way, kind)
    for way in WAYS
    for kind in ("step", "spawn", "race", "branch", "merge", "tool")
    if kind != "branch" or way not in ("root", "read only")
]


@pytest.mark.parametrize(("way", "kind"), TRIED)
@pytest.mark.parametrize("durable", [False, True])
async def test_a_change_outside_is_refused(way: str, kind: str, durable: bool) -> None:
    async with Harness(memory=Mem(), checkpoints=InMemoryBackend() if durable else None) as harness:
        result = await harness.run(_flow(kind, WAYS[way]), "x", on_error="result")
    error: Any = result.error
    error = getattr(error, "first", error)
    assert isinstance(error, errors.ConfigError), error
    assert error.code == "layer-state"
    assert "@function" in str(error)
    assert result.memory["boxes"] == [Box(["kept"])]
    assert result.memory["shelf"]["a"].content == result.memory["window"][0].content == ["kept"]
    assert result.memory["task"] == {}


async def test_what_is_only_read_is_not_refused() -> None:
    @step
    async def reads(text: str, ctx: Context[Mem]) -> list[Box]:
        state = ctx.memory.boxes.state
        assert isinstance(state, list)
        assert json.dumps([box.lines for box in state]) == '[["kept"]]'
        assert state == [Box(["kept"])] == ctx.memory.boxes.state
        assert ctx.memory.boxes.state is state, "one copy for a step"
        await ctx.memory.boxes.put(Box(["new"]))
        assert len(state) == 1
        assert len(ctx.memory.boxes.state) == 2
        return state

    @step
    async def has(value: list[Box]) -> int:
        value.append(Box())
        return len(value)

    async with Harness(memory=Mem()) as harness:
        result = await harness.run(fill >> reads >> has, "x")
    assert result.value == 2
    assert result.memory["boxes"] == [Box(["kept"]), Box(["new"])]


async def test_a_change_of_what_was_read_before_is_refused() -> None:
    @step
    async def changes(text: str, ctx: Context[Mem]) -> str:
        ctx.memory.boxes.state.clear()
        await ctx.memory.boxes.put(Box())
        with pytest.raises(errors.ConfigError, match="changed in place"):
            ctx.memory.boxes.state.copy()
        return text

    async with Harness(memory=Mem()) as harness:
        with pytest.raises(errors.ConfigError, match="changed in place"):
            await harness.run(fill >> changes, "x")


async def test_what_a_function_was_given_or_gives_is_apart_from_the_state() -> None:
    @step
    async def holds_on(text: str, ctx: Context[Mem]) -> str:
        box = Box(["a"])
        given = await ctx.memory.boxes.put(box)
        box.lines.append("later")
        given.lines.append("later")
        for each_box in await ctx.memory.boxes.all():
            each_box.lines.append("later")
        content = ["a"]
        await ctx.memory.window.append(ContextItem(content))
        content.append("later")
        return text

    async with Harness(memory=Mem()) as harness:
        result = await harness.run(holds_on, "x")
    assert result.memory["boxes"] == [Box(["a"])]
    assert result.memory["window"][0].content == ["a"]


@pytest.mark.parametrize("how", ["assigned to", "changed in place"])
async def test_a_handle_that_a_function_left_behind_can_only_be_read(how: str) -> None:
    class Left(MemoryLayer[list[str]]):
        @function
        async def leave(self) -> None:
            """Leave the handle behind."""
            left.append(self)
            self.state = ["kept"]

    class Holder(Memory):
        layer: Left = Left()

    left: list[Left] = []

    @step
    async def changes(text: str, ctx: Context[Holder]) -> list[str]:
        await ctx.memory.layer.leave()
        await ctx.memory.layer.leave()
        assert left[0].state == ["kept"]
        if how == "assigned to":
            left[0].state = ["lost"]
        else:
            left[0].state.append("lost")
        return left[0].state

    async with Harness(memory=Holder()) as harness:
        result = await harness.run(changes, "x", on_error="result")
    assert isinstance(result.error, errors.ConfigError)
    assert result.error.code == "layer-state"
    assert how in result.error.message
    assert result.memory["layer"] == []


async def test_what_children_are_given_is_apart_from_the_state() -> None:
    seen: list[list[str]] = []
    shared = ["born"]

    class Kin(MemoryLayer[list[str]]):
        @function
        async def note(self, text: str) -> None:
            self.state.append(text)

        async def on_spawn(self) -> Seed[list[str]]:
            return Seed(shared)

        async def on_return(self, child: Returned[list[str]]) -> None:
            seen.append(list(child.state))
            child.state.append("of the hook")
            child.began.append("of the hook")

    class Bundle(Memory):
        kin: Kin = Kin()

    @step
    async def note(text: str, ctx: Context[Bundle]) -> list[str]:
        await ctx.memory.kin.note(text)
        return list(ctx.memory.kin.state)

    async with Harness(memory=Bundle()) as harness:
        result = await harness.run(each(note), ["a", "b"])
    assert result.value == seen == [["born", "a"], ["born", "b"]]
    assert shared == ["born"]
    assert result.memory["kin"] == []


async def test_attempts_paths_and_forks_see_nothing_of_each_other() -> None:
    seen: list[int] = []

    @step(retry=Retry(3, initial=0.0))
    async def flaky(text: str, ctx: Context[Mem]) -> str:
        seen.append(len(ctx.memory.boxes.state))
        await ctx.memory.boxes.put(Box())
        ctx.memory.boxes.state.append(Box())
        if len(seen) < 3:
            raise ConnectionError
        return text

    @step
    async def path(text: str, ctx: Context[Mem]) -> int:
        ctx.memory.boxes.state.append(Box())
        await anyio.lowlevel.checkpoint()
        return len(ctx.memory.boxes.state)

    async with Harness(memory=Mem()) as harness:
        with pytest.raises(errors.ConfigError, match="changed in place"):
            await harness.run(flaky, "x")
        with pytest.raises(errors.ParallelFailed, match="changed in place"):
            await harness.run(each(path), ["a", "b"])
    assert seen == [0, 0, 0]


async def test_hooks_change_the_state_and_are_taken_back_when_they_fail() -> None:
    class Hooked(MemoryLayer[list[str]]):
        async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
            self.state.append("kept")
            return items

        async def recall(self, query: str, budget: int) -> str:
            self.state.append("void")
            raise ValueError("no")

    class Bundle(Memory):
        hooked: Hooked = Hooked()

    async with Harness(memory=Bundle()) as harness:
        result = await harness.run(call_model(ScriptedModel("a")), "x")
    assert result.memory["hooked"] == ["kept"]


async def test_a_resumed_run_sees_what_the_steps_have_kept() -> None:
    backend: CheckpointBackend = InMemoryBackend()
    flow = fill >> _flow("step", WAYS["append"])
    async with Harness(memory=Mem(), checkpoints=backend) as harness:
        result = await harness.run(flow, "x", run_id="r", on_error="result")
    async with Harness(memory=Mem(), checkpoints=backend) as harness:
        again = await harness.resume("r", flow, on_error="result")
    assert len(result.memory["boxes"]) == len(again.memory["boxes"]) == 2


class Rows(MemoryLayer[dict[str, list[int]]]):
    """Holds one list under two names."""

    @function(model=False)
    async def begin(self) -> None:
        """Put it in."""
        row = [1]
        self.state = {"a": row, "b": row}

    @function(model=False)
    async def add(self) -> list[list[int]]:
        """Append under one name."""
        self.state["a"].append(2)
        return list(self.state.values())


class TwoNames(Memory):
    rows: Rows = Rows()


async def test_one_list_under_two_names_is_two_whoever_goes_on() -> None:
    @step
    async def begin(value: int, ctx: Context[TwoNames]) -> int:
        await ctx.memory.rows.begin()
        return value

    @step
    async def add(value: int, ctx: Context[TwoNames]) -> list[list[int]]:
        return await ctx.memory.rows.add()

    async with Harness(memory=TwoNames()) as harness:
        assert (await harness.run(begin >> add, 0)).value == [[1, 2], [1]]
    await assert_resumable_everywhere(
        lambda: begin >> add, 0, make=lambda backend: Harness(memory=TwoNames(), checkpoints=backend)
    )


HELD: list[int] = [1]


class Holding(MemoryLayer[list[int]]):
    """Begins with a list that somebody else holds."""

    def initial(self) -> list[int]:
        """It."""
        return HELD

    @function(model=False)
    async def clear(self) -> None:
        """Hold nothing."""
        self.state = []


class Unread(MemoryLayer[dict[str, Any]]):
    """Its type does not say what its state holds."""

    @function(model=False)
    async def put(self, box: bool) -> None:
        """Put something in."""
        self.state = {"box": Box(["a"]) if box else "a"}


class Odd(Memory):
    holding: Holding = Holding()
    unread: Unread = Unread()


async def test_what_a_layer_begins_with_is_its_own() -> None:
    @step
    async def look(value: int, ctx: Context[Odd]) -> list[int]:
        HELD.append(value)
        return ctx.memory.holding.state

    async with Harness(memory=Odd()) as harness:
        assert (await harness.run(look, 2)).value == [1]
    HELD.remove(2)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_state_that_could_not_be_read_back_is_refused_and_not_stored(durable: bool) -> None:
    @step
    async def put(box: bool, ctx: Context[Odd]) -> bool:
        await ctx.memory.unread.put(box)
        return box

    async with Harness(memory=Odd(), checkpoints=InMemoryBackend() if durable else None) as harness:
        result = await harness.run(put, True, thread_id="t", on_error="result")
        assert isinstance(result.error, errors.CodecError)
        assert result.error.where == ("memory.unread.box" if durable else "memory.unread['box']")
        assert "could be stored, but not be read back: holds a Box" in result.error.message
        # The next run of the thread can begin.
        assert (await harness.run(put, False, thread_id="t")).memory["unread"] == {"box": "a"}


class Numbers(MemoryLayer[tuple[int, ...]]):
    """Grows."""

    @function(model=False)
    async def put(self, number: Any) -> None:
        """Put one in, whatever it is."""
        self.state = (*self.state, number)


class Names(MemoryLayer[dict[str, int]]):
    """Has one more key."""

    @function(model=False)
    async def put(self, number: Any) -> None:
        """Put one in, whatever it is."""
        self.state = {**self.state, f"k{len(self.state)}": number}


class Growing(Memory):
    numbers: Numbers = Numbers()
    names: Names = Names()


@pytest.mark.parametrize("name", ["numbers", "names"])
async def test_of_a_state_that_has_grown_what_is_new_has_to_fit_its_type(name: str) -> None:
    model = ScriptedModel(*["said"] * 9)

    @step
    async def put(number: object, ctx: Context[Growing]) -> str:
        layer: Any = ctx.memory[name]
        await layer.put(number)
        return "go"

    async with Harness(memory=Growing(), model=model) as harness:
        for number, ends in ((1, "completed"), (2, "completed"), ("three", "failed"), (3, "completed")):
            # The store has it once the model has answered, and again at the end.
            flow: Step[Any, Any, Any, Any] = sequence(put.bind(number), call_model(), put.bind(number))
            result = await harness.run(flow, "go", thread_id="t", on_error="result")
            assert result.status == ends, (number, result.error)
            assert result.error is None or f"memory.{name}" in result.error.message
        last = await harness.run(put, 4, thread_id="t")
    kept: Any = last.memory[name]
    assert list(kept.values() if name == "names" else kept) == [1, 1, 2, 2, 3, 3, 4]


async def test_a_layer_in_no_run_is_its_owners() -> None:
    layer = Boxes()
    layer.state = [Box()]
    layer.sneak()
    assert len(layer.state) == 2
    queue = ContextQueue[list[str]]()
    queue.state = (ContextItem(["a"]),)
    assert queue.entries == (ContextItem(["a"]),)
