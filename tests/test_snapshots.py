from __future__ import annotations

import json
from typing import Any

import pytest

from noetic_py import Context, Harness, InMemoryBackend, Memory, MemoryLayer, Message, StateBag, step, with_memory
from noetic_py.context.unbound import Conversation, pack, unpack
from noetic_py.errors import CodecError, ConfigError, LayerError
from noetic_py.memory import function
from noetic_py.testing import FaultyBackend

pytestmark = pytest.mark.anyio


def test_a_conversation_comes_back_equal() -> None:
    conversation = Conversation([Message.user("a")], StateBag({"n": 1}), 2, "t", None)
    assert unpack(pack(conversation), StateBag) == conversation


@pytest.mark.parametrize("state", [3, "text", None, [1, 2], {"a": 1}])
def test_a_state_may_be_plain(state: object) -> None:
    data = pack(Conversation([], state, 0, "t", "r"))
    assert unpack(data, type(state)).state == state


def test_an_error_says_where_once() -> None:
    data = pack(Conversation([], {"a": 1}, 0, "t", None))
    with pytest.raises(CodecError) as caught:
        unpack(data, int)
    assert str(caught.value).count("state") == 1


# ---------------------------------------------------------------------------------------------------- with its memory


class Pad(MemoryLayer[list[str]]):
    """Lines that belong to a thread, and values beside them."""

    schema_version = 2

    def migrate(self, state: Any, version: int) -> list[str]:
        return [*state, f"from version {version}"]

    @function
    async def write(self, line: str) -> None:
        """Write a line, and keep it as a value too."""
        self.state.append(line)
        for page in range(120):
            await self.storage.put(f"{line}{page:03d}", page)


class Book(Memory):
    pad: Pad = Pad()


@step
async def write(line: str, ctx: Context[Book]) -> list[str]:
    await ctx.memory.pad.write(line)
    return list(ctx.memory.pad.state)


@step
async def values(_: object, ctx: Context[Book]) -> list[str]:
    """The lines of which there are values."""
    found: set[str] = set()
    after: str | None = None
    while page := await ctx.memory.pad.storage.scan(after=after):
        found |= {key[0] for key, _ in page}
        after = page[-1][0]
    return sorted(found)


async def test_values_beside_a_state_are_copied_too() -> None:
    ctx: Any = Context()
    async with Harness(plugins=[], memory=Book()) as harness:
        await harness.run(write, "a", ctx=ctx)
        child = ctx.child()
        assert (await harness.run(write, "b", ctx=child)).value == ["a", "b"]
        found = [(await harness.run(values, None, ctx=each)).value for each in (ctx, child, ctx.child(memory="new"))]
    assert found == [["a"], ["a", "b"], []]


async def test_a_child_begins_with_what_the_store_has_of_a_thread_that_no_run_of_its_context_has_seen() -> None:
    async with Harness(plugins=[], memory=Book()) as harness:
        await harness.run(write, "a", thread_id="t")
        ctx: Any = Context(thread_id="t")
        child, shared = ctx.child(), ctx.child(memory="share")
        assert (await harness.run(write, "b", ctx=child)).value == ["a", "b"]
        assert (await harness.run(write, "c", ctx=shared)).value == ["a", "c"]
        assert (await harness.run(write, "d", ctx=ctx)).value == ["a", "c", "d"]
        # Both are one, however often they are gone on with.
        with_child = child.child(memory="share")
        assert (await harness.run(write, "e", ctx=with_child)).value == ["a", "b", "e"]
        assert (await harness.run(write, "f", ctx=child)).value == ["a", "b", "e", "f"]
        assert (await harness.run(write, "g", ctx=ctx.child(memory="new"))).value == ["g"]


async def test_a_child_that_a_step_makes_has_the_memory_of_that_moment() -> None:
    children: list[Any] = []

    @step
    async def branch_off(line: str, ctx: Context[Book]) -> None:
        await ctx.memory.pad.write(line)
        children.append(ctx.child())
        children.append(Context.restore(ctx.snapshot()))
        await ctx.memory.pad.write("later")

    async with Harness(plugins=[], memory=Book()) as harness:
        await harness.run(branch_off, "a", thread_id="t")
        for child in children:
            assert (await harness.run(write, "b", ctx=child)).value == ["a", "b"]
        assert (await harness.run(write, "c", thread_id="t")).value == ["a", "later", "c"]


async def test_layers_of_a_part_of_a_flow_are_copied_with_the_first_run_that_meets_them() -> None:
    flow: Any = with_memory(write, memory=Book())
    ctx: Any = Context()
    async with Harness(plugins=[]) as harness:
        await harness.run(flow, "a", ctx=ctx)
        child = ctx.child()
        assert [(await harness.run(flow, line, ctx=child)).value for line in "bc"] == [["a", "b"], ["a", "b", "c"]]
        assert (await harness.run(flow, "d", ctx=ctx)).value == ["a", "d"]


async def test_a_childs_run_goes_on_in_another_process_with_the_memory_that_it_began_with() -> None:
    backend = InMemoryBackend()
    dying = FaultyBackend(backend)
    async with Harness(plugins=[], memory=Book(), checkpoints=dying) as harness:
        ctx: Any = Context(thread_id="t")
        await harness.run(write, "a", ctx=ctx)
        child = ctx.child()
        await harness.run(write, "b", ctx=ctx)
        # Before its layers have begun.
        dying.revive(dies_at=2)
        with dying.outlived():
            await harness.run(write, "c", ctx=child, run_id="r")
    async with Harness(plugins=[], memory=Book(), checkpoints=backend) as harness:
        assert (await harness.resume("r", write)).value == ["a", "c"]
        assert (await harness.run(write, "d", thread_id="t")).value == ["a", "b", "d"]


async def test_a_layers_state_of_an_older_version_is_migrated_and_of_a_newer_one_refused() -> None:
    ctx: Any = Context()
    async with Harness(plugins=[], memory=Book()) as harness:
        await harness.run(write, "a", ctx=ctx)
        tree = json.loads(ctx.snapshot())
        for version, value in ((1, ["a", "from version 1", "b"]), (3, None)):
            tree["memory"]["states"]["pad"][0] = version
            restored: Any = Context.restore(json.dumps(tree).encode())
            result = await harness.run(write, "b", ctx=restored, on_error="result")
            if value is None:
                assert isinstance(result.error, ConfigError | LayerError)
            else:
                assert result.value == value


MISSHAPEN: list[Any] = [
    [],
    {"owner": 1, "source": None, "states": {}},
    {"owner": "a", "source": "b", "states": {"pad": ["one", {}]}},
]


@pytest.mark.parametrize("memory", MISSHAPEN)
def test_what_is_no_memory_is_refused(memory: Any) -> None:
    tree = json.loads(Context().snapshot())
    with pytest.raises(CodecError, match="is not a valid memory") as caught:
        Context.restore(json.dumps({**tree, "memory": memory}).encode())
    assert caught.value.where == "memory"


def test_a_context_without_layers_is_stored_as_before() -> None:
    assert "memory" not in json.loads(Context().snapshot())


def test_a_child_with_a_thread_of_its_own_does_not_share_its_parents_memory() -> None:
    for given in ({"session": "new"}, {"preset": "isolated"}):
        with pytest.raises(ConfigError, match="at odds"):
            Context().child(memory="share", **given)  # type: ignore[arg-type] # given by name
    with pytest.raises(ConfigError, match="unknown"):
        Context().child(memory="some")  # type: ignore[arg-type] # what a program without a checker might say
