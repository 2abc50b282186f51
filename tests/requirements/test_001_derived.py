"""Derived contexts: another name and branch in the same run, and what goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from noetic_py import (
    Channel,
    Context,
    Emitted,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    Retry,
    SessionKey,
    StateBag,
    call_model,
    current_context,
    spawn,
    step,
)
from noetic_py.errors import ConfigError, ForgedEvent, InvalidId, StepFailed
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


def texts(ctx: Context[Any, Any]) -> list[str]:
    return [item.text for item in ctx.items.view(Message)]


async def inside(look: Any, **options: Any) -> Any:
    """Look at a derived context from within a step."""

    @step
    async def agent(text: str, ctx: Ctx) -> Any:
        return await look(ctx)

    async with Harness() as harness:
        return await harness.run(agent, "question", **options)


# ------------------------------------------------------------------------------------------------------ name and branch


@pytest.mark.clause("001-19a")
def test_001_19_a_child_has_a_name_and_a_branch_of_its_own_when_given() -> None:
    root = Context(name="Root")
    named = root.child(preset="derive", name="Child")
    assert (named.name, named.path, named.branch) == ("Child", ("Root", "Child"), "Root.Child")
    both = root.child(preset="derive", name="Child", branch="parallel.child")
    assert (both.name, both.branch) == ("Child", "Root.parallel.child")
    apart = root.child(name="Child", branch="side")
    assert (apart.name, apart.branch) == ("Child", "Root.side")
    # Without either it is another context of the same name and branch.
    plain = root.child(preset="derive")
    assert (plain.name, plain.branch) == ("Root", "Root")
    assert plain is not root


@pytest.mark.clause("001-19b")
@pytest.mark.parametrize("suffix", ["", ".", "a.", ".a", "a..b", "a\nb"])
def test_001_19_a_branch_has_parts_that_can_be_read(suffix: str) -> None:
    with pytest.raises(InvalidId):
        Context(name="Root").child(preset="derive", branch=suffix)
    with pytest.raises(InvalidId):
        Context(name=suffix)


@pytest.mark.clause("001-20a")
def test_001_20_a_childs_branch_is_its_parents_and_its_own() -> None:
    root = Context(name="RootAgent")
    child = root.child(preset="derive", name="ChildAgent", branch="child")
    assert child.branch == "RootAgent.child"
    assert child.child(preset="derive", name="Grandchild").branch == "RootAgent.child.Grandchild"
    # A root without a name has no branch, and its child's is the child's own.
    assert Context().child(preset="derive", name="child").branch == "child"


@pytest.mark.clause("001-20b")
async def test_001_20_in_a_run_the_branch_goes_on_from_the_steps() -> None:
    seen: list[str] = []

    async def look(ctx: Ctx) -> None:
        seen.extend((ctx.branch, ctx.child(preset="derive", name="a").branch))

    await inside(look)
    assert seen == ["agent", "agent.a"]


# ------------------------------------------------------------------------------------------------------- what is shared


@pytest.mark.clause("001-21a")
def test_001_21_outside_of_a_run_state_and_log_are_shared() -> None:
    root = Context(name="Root", thread_id="t", request_id="r")
    child = root.child(preset="derive", name="Child")
    assert child.state is root.state
    child.items.append(Message.user("from the child"))
    assert texts(root) == ["from the child"]
    assert (child.thread_id, child.request_id, child.id) == ("t", "r", root.id)


@pytest.mark.clause("001-24d")
async def test_001_24_outside_of_a_run_an_empty_log_is_a_conversation_with_the_same_ids() -> None:
    root = Context(name="Root", thread_id="t", items=[Message.user("before")])
    child = root.child(preset="derive", name="Child", items="new")
    assert (len(child.items), child.thread_id, child.branch) == (0, "t", "Root.Child")
    assert child.state is root.state
    # What its runs make is no reason to trust what somebody has put into the other log.
    root.items.append(FunctionCall(name="pay", call_id="c"))
    async with Harness(model=ScriptedModel("a", "b", "c")) as harness:
        await harness.run(call_model(), "go", ctx=child)
        with pytest.raises(ForgedEvent):
            await harness.run(call_model(), "go", ctx=root)
    assert len(root.items) == 2


class Clock:
    """A service."""


@pytest.mark.clause("001-21a", "001-21b")
async def test_001_21_in_a_run_all_is_shared_that_is_not_named_otherwise() -> None:
    clock = Clock()

    async def look(ctx: Ctx) -> None:
        child = ctx.child(preset="derive", name="Child")
        child.state["seen"] = [1]
        assert child.state is ctx.state
        assert child.items is ctx.items
        child.items.append(Message.user("from the child"))
        assert child.services[Clock] is clock
        assert child.attrs is ctx.attrs
        assert child.metadata == {"k": 1}
        assert child.budget == ctx.budget
        assert child.idempotency_key != ctx.idempotency_key
        child.emit("hello")
        child.progress.set([1])
        assert {path: entry.value for path, entry in ctx.progress.entries.items()} == {("agent", "Child"): [1]}
        mail = Channel("mail", str)
        await child.send(mail, "letter")
        assert await ctx.recv(mail) == "letter"

    @step
    async def agent(text: str, ctx: Ctx) -> None:
        await look(ctx)

    emitted: list[Emitted] = []
    async with Harness(services={Clock: clock}) as harness, harness.stream(agent, "q", metadata={"k": 1}) as stream:
        emitted.extend([event async for event in stream.events if isinstance(event, Emitted)])
        result = await stream.result()
    # What a child sends reaches the run's stream once, under the child's name.
    assert [(event.event, event.path) for event in emitted] == [("hello", ("agent", "Child"))]
    assert result.state["seen"] == [1]
    assert texts_of(result.items) == ["from the child"]


def texts_of(items: Any) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


@pytest.mark.clause("001-21d")
async def test_001_21_a_shared_state_is_put_back_with_its_step() -> None:
    state = StateBag({"n": 0})

    @step
    async def agent(_: object, ctx: Ctx) -> None:
        ctx.child(preset="derive", name="a").state["n"] = 1
        raise ValueError

    async with Harness() as harness:
        with pytest.raises(StepFailed):
            await harness.run(agent, None, state=state)
    assert state["n"] == 0


@pytest.mark.clause("001-21c")
async def test_001_21_a_child_ends_the_run_for_all() -> None:
    async def look(ctx: Ctx) -> None:
        ctx.child(preset="derive", name="a").abort("enough")

    result = await inside(look)
    assert (result.status, result.reason) == ("aborted", "enough")


@pytest.mark.clause("001-22a", "001-22b", "001-22c")
async def test_001_22_run_session_user_and_input_are_the_parents() -> None:
    seen: list[tuple[object, ...]] = []

    async def look(ctx: Ctx) -> None:
        child = ctx.child(preset="derive", name="a").child(preset="derive", name="b")
        for each in (ctx, child):
            seen.append((each.run_id, each.session, each.user_id, each.input, each.thread_id, each.request_id))
            assert each.root is ctx.root

    await inside(look, session=SessionKey("ada", "trip", app="travel"), request_id="r")
    mine, theirs = seen
    assert mine == theirs
    assert mine[1:4] == (SessionKey("ada", "trip", app="travel"), "ada", "question")


@pytest.mark.clause("001-24a", "001-24b", "001-24c")
async def test_001_24_a_child_may_begin_with_an_empty_log_in_the_same_session() -> None:
    async def look(ctx: Ctx) -> str:
        ctx.items.append(Message.user("before"))
        ctx.state["n"] = 1
        child = ctx.child(preset="derive", name="a", items="new")
        assert len(child.items) == 0
        assert child.state is ctx.state
        assert (child.session, child.thread_id, child.run_id) == (ctx.session, ctx.thread_id, ctx.run_id)
        child.items.append(Message.user("mine"))
        assert texts(ctx) == ["before"]
        (mine,) = child.items.view(branch=child.branch)
        assert mine.id == child.items[0].id
        return child.thread_id

    result = await inside(look, session=SessionKey("ada", "trip"))
    assert texts_of(result.items) == ["before"]


@pytest.mark.clause("001-24d")
async def test_001_24_outside_of_a_session_there_is_none_in_the_child_either() -> None:
    async def look(ctx: Ctx) -> None:
        child = ctx.child(preset="derive", items="new")
        assert (child.session, ctx.session) == (None, None)
        assert child is not ctx

    assert (await inside(look)).status == "completed"


@pytest.mark.clause("001-24b")
async def test_001_24_a_copy_of_the_state_is_the_childs_own() -> None:
    async def look(ctx: Ctx) -> None:
        ctx.state["n"] = 1
        child = ctx.child(preset="derive", items="copy", state="copy")
        child.state["n"] = 2
        assert ctx.state["n"] == 1

    assert (await inside(look)).status == "completed"


# ------------------------------------------------------------------------------------------------- what does not go


@pytest.mark.parametrize(
    "options", [{"counters": "keep"}, {"trace": "new"}, {"session": "new"}, {"parent_span": "00f067aa0ba902b7"}]
)
def test_a_derived_child_has_the_runs_ids_and_counters(options: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Context().child(preset="derive", **options)
    assert caught.value.code == "child-option"


def test_only_a_derived_child_writes_the_same_log() -> None:
    with pytest.raises(ConfigError) as caught:
        Context().child(items="share")
    assert caught.value.code == "child-option"


@pytest.mark.clause("001-01c")
async def test_001_01_a_step_is_run_with_a_derived_context() -> None:
    @step
    async def sub(text: str, ctx: Ctx) -> tuple[Any, ...]:
        ctx.items.append(Message.user(text))
        ctx.state["n"] = (ctx.state.get_as("n", int) or 0) + 1
        return ctx.path[-2:], ctx.branch.rpartition(".")[2], ctx.run_id, len(ctx.items), ctx.state["n"]

    async def look(ctx: Ctx) -> None:
        run_id = ctx.run_id
        same = ctx.child(preset="derive", name="Child", branch="child")
        own = ctx.child(preset="derive", name="Own", items="copy", state="copy")
        unnamed = ctx.child(preset="derive", items="new")
        assert await sub("a", same) == (("Child", "sub"), "child", run_id, 1, 1)
        assert await sub("b", own) == (("Own", "sub"), "Own", run_id, 1, 1)
        assert await sub("c", same) == (("Child#1", "sub"), "child", run_id, 2, 2)
        assert await sub("d", own) == (("Own#1", "sub"), "Own", run_id, 2, 2)
        assert (await sub("e", unnamed))[0] == ("derived", "sub")
        assert (await sub("f", same.child(preset="derive", name="Below", state="new")))[3:] == (3, 1)
        found = [[item.text for item in each.items.view(Message)] for each in (ctx, own, unnamed)]
        assert found == [["a", "c", "f"], ["b", "d"], ["e"]]
        assert (ctx.state["n"], own.state["n"]) == (3, 2)

    assert (await inside(look)).status == "completed"


async def test_a_step_in_a_derived_context_is_right_wherever_the_process_dies() -> None:
    @step(retry=Retry(attempts=2, initial=0.0))
    async def sub(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user(text))
        ctx.state["n"] = (ctx.state.get_as("n", int) or 0) + 1
        if text == "fails" or (text == "again" and "tried" not in seen):
            seen.add("tried")
            raise ValueError(text)
        return f"{text}/{len(ctx.items)}/{ctx.state['n']}"

    @step
    async def top(_: object, ctx: Ctx) -> list[object]:
        same = ctx.child(preset="derive", name="Child")
        own = ctx.child(preset="derive", name="Own", items="copy", state="copy")
        half = ctx.child(preset="derive", name="Half", items="copy")
        found: list[object] = [
            await sub(text, child) for text, child in zip("abca", (same, own, half, own), strict=True)
        ]
        found.append(await sub("again", own))
        try:
            await sub("fails", same)
        except StepFailed:
            found.append(len(same.items))
        return [*found, await sub("last", ctx), [item.text for item in own.items.view(Message)], own.state["n"]]

    seen: set[str] = set()
    plain = await Harness(plugins=[]).run(top, None)
    expected: list[object] = ["a/1/1", "b/1/1", "c/1/2", "a/2/2", "again/3/3", 1, "last/2/3", ["b", "a", "again"], 3]
    assert plain.value == expected
    for dies_at in range(2, 60):
        seen.clear()
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at)
        with backend.outlived():
            await Harness(plugins=[], checkpoints=backend).run(top, None, run_id="r")
        if not backend.dead:
            break
        backend.revive()
        harness = Harness(plugins=[], checkpoints=backend)
        for _ in range(2):
            result: Any = await harness.resume("r", top)
            assert (result.value, result.state) == (expected, plain.state), dies_at
            assert [item.text for item in result.items] == ["a", "last"], dies_at


async def test_several_steps_at_once_are_run_from_the_step_itself() -> None:
    @step
    async def other(text: str) -> str:
        return text

    async def look(ctx: Ctx) -> None:
        child = ctx.child(preset="derive", name="a")
        with pytest.raises(ConfigError) as caught:
            await child.gather(other.bind("x"), other.bind("y"))
        assert caught.value.code == "derived"
        assert await spawn(other, state="share", items="share")("x", ctx) == "x"
        with child.bind():
            assert current_context() is child

    assert (await inside(look)).status == "completed"


async def test_a_child_of_a_step_is_no_context_to_go_on_with() -> None:
    kept: list[Ctx] = []

    async def look(ctx: Ctx) -> None:
        kept.append(ctx.child(preset="derive"))

    await inside(look)

    @step
    async def other(text: str) -> str:
        return text

    async with Harness() as harness:
        with pytest.raises(ConfigError):
            await harness.run(other, "x", ctx=kept[0])
        # Outside of a run a derived one is the same conversation, and goes on.
        root = Context(name="Root")
        await harness.run(other, "x", ctx=root.child(preset="derive", name="a"))
