"""Who a context is: of which run, which session, which step, and on which branch of its tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from attrs import define, frozen

from noetic_py import (
    Context,
    FunctionCall,
    Handoff,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    ReadContext,
    SessionKey,
    StateBag,
    Step,
    branch,
    call_model,
    call_tool,
    each,
    every,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.errors import InvalidId
from noetic_py.memory import Scope, WorkingMemory
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep: TypeAlias = Step[Any, Any, Any, Any]
Make: TypeAlias = Callable[[AnyStep], AnyStep]


@frozen(eq=False)
class Seen:
    """What one step has seen of itself."""

    id: str
    run_id: str
    name: str
    path: tuple[str, ...]
    branch: str
    root: Context[Any, Any]
    state: object


def noting(seen: list[Seen]) -> Step[Any, Any, Memory, object]:
    @step
    async def child(value: Any, ctx: Context) -> Any:
        seen.append(Seen(ctx.id, ctx.run_id, ctx.name, ctx.path, ctx.branch, ctx.root, ctx.state))
        return value

    return child


async def seen_by(make: Make, value: object = "x", **options: Any) -> list[Seen]:
    """What the steps of a flow see that is made around one which notes it."""
    seen: list[Seen] = []
    async with Harness(plugins=[]) as harness:
        await harness.run(make(noting(seen)), value, **options)
    return seen


def every_kind(child: AnyStep) -> AnyStep:
    """A flow that has its step in every place that a step can have."""

    @step
    async def body(value: str, ctx: Context[Any, Any]) -> str:
        await child(value, ctx)
        await ctx.gather(child.bind(1), child.bind(2))
        return value

    @step(handoffs=[child])
    async def hands(value: str) -> str | Handoff[str]:
        return Handoff(child, value)

    model = ScriptedModel(FunctionCall(name="ask", arguments={"input": "x"}), "done")
    agent = loop(
        call_model(model, tools=[step_tool(child, name="ask", description="Ask.", input_type=str)]),
        until=until.no_tool_calls(),
    )

    def route(value: Any, ctx: ReadContext[Any, Any]) -> AnyStep:
        return child

    rounds: AnyStep = loop(child, until=until.max_rounds(2))
    return sequence(
        child,
        parallel([child, child]),
        child.bind("x"),
        each(child).bind([1, 2]),
        rounds.bind("x"),
        spawn(child).bind("x"),
        branch(route).bind("x"),
        body.bind("x"),
        hands.bind("x"),
        agent.bind("Go."),
        id="Root",
    )


# --------------------------------------------------------------------------------------------------------------- 001-01


@pytest.mark.clause("001-01a")
async def test_001_01_every_step_has_a_context_of_the_runs_one_root() -> None:
    seen = await seen_by(every_kind)
    assert len(seen) == 15
    assert len({id(each.root) for each in seen}) == 1
    again = await seen_by(every_kind)
    assert again[0].root is not seen[0].root


@pytest.mark.clause("001-01b")
async def test_001_01_the_root_is_the_runs_own() -> None:
    @step
    async def look(_: object, ctx: Ctx) -> tuple[object, ...]:
        root = ctx.root
        assert root.root is root
        return root.id, root.path, root.depth, root.parent

    async with Harness(plugins=[]) as harness:
        result = await harness.run(spawn(spawn(look)), None)
    assert result.value == (result.run_id, (), 0, None)


# --------------------------------------------------------------------------------------------------------------- 001-02


@pytest.mark.clause("001-02a", "001-02b")
async def test_001_02_one_run_id_in_all_contexts_of_a_run_and_an_id_for_each_execution() -> None:
    seen = await seen_by(every_kind)
    (run_id,) = {each.run_id for each in seen}
    assert UUID(run_id).version == 7
    # The run itself is an execution, and so is the spawn.
    assert {each.id for each in seen} - {run_id} == {each.id for each in seen if "spawn:child" in each.path}
    other = await seen_by(every_kind)
    assert {each.run_id for each in other}.isdisjoint({run_id})


@pytest.mark.clause("001-02c")
async def test_001_02_a_caller_may_choose_it() -> None:
    assert {each.run_id for each in await seen_by(every_kind, run_id="invocation-1")} == {"invocation-1"}


# --------------------------------------------------------------------------------------------------------------- 001-03


@step
async def who(_: object, ctx: Ctx) -> SessionKey | None:
    return ctx.session


@step
async def keep(text: str, ctx: Ctx) -> Mapping[str, object]:
    """Adds to what the session holds, and says what that was."""
    before = dict(ctx.state.view())
    ctx.state[text] = True
    ctx.items.append(Message.user(text))
    return before


@pytest.mark.clause("001-03a")
def test_001_03_a_session_has_to_be_named_user_and_application_may_be_left_out() -> None:
    make: Any = SessionKey
    with pytest.raises(TypeError):
        make("ada")
    for nothing in ("", "  "):
        with pytest.raises(InvalidId, match="session is empty"):
            SessionKey("ada", nothing)
    plain = SessionKey("", "s")
    assert (plain.user, plain.app, plain.session) == (None, None, "s")
    assert plain == SessionKey(None, "s", app="")


@pytest.mark.clause("001-03b")
async def test_001_03_all_three_parts_are_readable_everywhere_in_the_tree() -> None:
    key = SessionKey("ada", "trip", app="travel")
    async with Harness(plugins=[]) as harness:
        result = await harness.run(sequence(who, spawn(who), parallel([who, spawn(who)])), None, session=key)
        assert result.value == [key, key]
        assert (await harness.run(who, None)).value is None
        # A run may belong to a user and to no session.
        assert (await harness.run(who, None, user_id="ada")).value is None


@pytest.mark.clause("001-03c")
@pytest.mark.parametrize("backend", [None, InMemoryBackend], ids=["in memory", "kept"])
async def test_001_03_another_user_or_application_never_gets_the_data_of_a_session(backend: Any) -> None:
    async with Harness(plugins=[], checkpoints=backend and backend()) as harness:
        mine = harness.session("ada", "s", app="travel")
        await mine.run(keep, "secret")
        for user, app in (("bob", "travel"), ("ada", "mail"), (None, "travel"), ("ada", None), ("", "")):
            theirs = harness.session(user, "s", app=app)
            assert list(await theirs.items()) == []
            result = await theirs.run(keep, "other")
            assert (result.value, len(result.items)) == ({}, 1)
        assert (await mine.run(keep, "more")).value == {"secret": True}
        assert [item.text for item in await mine.items() if isinstance(item, Message)] == ["secret", "more"]


# --------------------------------------------------------------------------------------------------------------- 001-04


async def test_001_04_a_context_has_the_name_of_what_runs() -> None:
    seen = await seen_by(every_kind)
    # A frame says the round or the place too.
    assert {each.name.partition("#")[0].partition("[")[0] for each in seen} == {"child"}

    @tool
    async def port(ctx: Context) -> str:
        """Which tool this is."""
        return ctx.name

    @step(id="PilotAgent")
    async def pilot(_: object, ctx: Context) -> str:
        return ctx.name

    async with Harness(plugins=[]) as harness:
        assert (await harness.run(pilot, None)).value == "PilotAgent"
        assert (await harness.run(call_tool(port, args={}), None)).value == "port"


# --------------------------------------------------------------------------------------------------------------- 001-05


@pytest.mark.clause("001-05a")
async def test_001_05_a_branch_is_the_dotted_names_from_the_root_down() -> None:
    nested = await seen_by(lambda child: sequence(child, spawn(parallel([child], id="team"), id="Desk"), id="Root"))
    assert [each.branch for each in nested] == ["Root", "Root.Desk.team.child[0]"]
    for found in nested:
        # A conversation is called after the place where it begins, and so is above all that writes into it.
        assert ".".join(found.path).startswith(found.branch)


@pytest.mark.clause("001-05b")
async def test_001_05_outside_of_a_run_there_is_none() -> None:
    assert Context().branch == ""


# --------------------------------------------------------------------------------------------------------------- 001-06


@define
class Trip:
    port: str
    stops: int = 0


@pytest.mark.clause("001-06a")
async def test_001_06_children_hold_the_same_state_object() -> None:
    trip = Trip("Brest")
    shared: list[Make] = [
        lambda child: sequence(child, child.bind("x")),
        lambda child: loop(child, until=until.max_rounds(2)),
        lambda child: branch(lambda value, ctx: child),
        lambda child: spawn(child, state="share"),
        lambda child: spawn(sequence(child, spawn(child, state="share")), state="share"),
    ]
    for make in shared:
        seen = await seen_by(make, state=trip)
        assert [each.state is trip for each in seen] == [True] * len(seen)
        assert seen
    # Elsewhere a state is a path's own, until it is merged.
    apart: list[Make] = [spawn, lambda child: parallel([child, child])]
    for make in apart:
        assert not any(each.state is trip for each in await seen_by(make, state=trip))


@pytest.mark.clause("001-06b")
async def test_001_06_what_one_part_of_the_tree_writes_another_reads() -> None:
    @step
    async def write(text: str, ctx: Ctx) -> str:
        ctx.state["user_name"] = text
        return text

    @step
    async def read(_: object, ctx: Ctx) -> object:
        return ctx.state["user_name"]

    async with Harness(plugins=[]) as harness:
        result = await harness.run(sequence(spawn(write, state="share"), read), "Alice")
        assert (result.value, result.state["user_name"]) == ("Alice", "Alice")
        copied = await harness.run(sequence(spawn(write), step(_seen)), "Alice")
        assert (copied.value, "user_name" in copied.state) == (False, False)


async def _seen(_: object, ctx: Ctx) -> bool:
    return "user_name" in ctx.state


@pytest.mark.clause("001-06c")
async def test_001_06_what_is_written_persists_in_the_session_of_a_run() -> None:
    @step
    async def write(text: str, ctx: Ctx) -> None:
        ctx.state["said"] = text

    @step
    async def breaks(text: str, ctx: Ctx) -> None:
        ctx.state["said"] = text
        raise ValueError(text)

    async with Harness(plugins=[]) as harness:
        session = harness.session("ada", "s")
        await session.run(spawn(write, state="share"), "deep down")
        # What a step that breaks has written is taken back.
        assert (await session.run(breaks, "broken", on_error="result")).status == "failed"
        assert (await session.run(keep, "x")).value == {"said": "deep down"}


# --------------------------------------------------------------------------------------------------------------- 001-09


@pytest.mark.clause("001-09a")
async def test_001_09_a_run_without_a_session_has_a_log_in_memory() -> None:
    @step
    async def talk(text: str, ctx: Ctx) -> int:
        assert ctx.session is None
        ctx.items.append(Message.user(text))
        return len(ctx.items)

    async with Harness(plugins=[]) as harness:
        for _ in range(2):
            result = await harness.run(talk, "hello")
            assert (result.value, len(result.items)) == (1, 1)


@pytest.mark.clause("001-09b")
async def test_001_09_a_session_gives_the_events_and_the_state_so_far() -> None:
    @step
    async def talk(text: str, ctx: Ctx) -> tuple[list[str], object]:
        ctx.items.append(Message.user(text))
        before = ctx.state.get("last")
        ctx.state["last"] = text
        return [item.text for item in ctx.items.view(Message)], before

    async with Harness(plugins=[]) as harness:
        session = harness.session("ada", "s")
        assert (await session.run(talk, "one")).value == (["one"], None)
        assert (await session.run(talk, "two")).value == (["one", "two"], "one")


# --------------------------------------------------------------------------------------------------------------- 001-16


@pytest.mark.clause("001-16a", "001-16b", "001-16c")
async def test_001_16_memory_is_given_to_a_run_and_reaches_its_whole_tree() -> None:
    class Mem(Memory):
        notes: WorkingMemory = WorkingMemory(scope=Scope.USER)

    @step
    async def note(text: str, ctx: Context[Mem]) -> None:
        await ctx.memory.notes.update({"topic": text})

    @step
    async def recall(_: object, ctx: Context[Mem]) -> object:
        return ctx.memory.notes.snapshot

    backend = InMemoryBackend()
    harness = Harness(plugins=[], memory=Mem(), checkpoints=backend)
    await harness.run(note, "tides", user_id="ada")
    result = await harness.run(parallel([spawn(recall), recall]), None, user_id="ada")
    # It is of another run, and of the same user: long-term.
    assert result.value == [{"topic": "tides"}] * 2
    assert (await harness.run(recall, None, user_id="bob")).value in ({}, None)
    # The model is shown it without anybody asking.
    model = ScriptedModel("About tides.")
    await harness.run(call_model(model), "What about?", user_id="ada")
    assert "tides" in "".join(item.text for item in model.requests[0].items if isinstance(item, Message))


# --------------------------------------------------------------------------------------------------------------- 001-23


@pytest.mark.clause("001-23a")
async def test_001_23_the_parts_of_a_sequence_are_its_children() -> None:
    seen = await seen_by(lambda child: sequence(child, child, id="Root"))
    assert [each.path for each in seen] == [("Root", "child"), ("Root", "child#1")]
    # They go on with one conversation.
    assert {each.branch for each in seen} == {"Root"}


@pytest.mark.clause("001-23b")
async def test_001_23_parallel_paths_have_a_branch_each() -> None:
    sections: list[Make] = [lambda child: parallel([child, child], id="Root"), lambda child: each(child, id="Root")]
    for make in sections:
        seen = await seen_by(make, ["a", "b"])
        assert sorted(found.branch for found in seen) == ["Root.child[0]", "Root.child[1]"]


@pytest.mark.clause("001-23c")
async def test_001_23_each_round_of_a_loop_has_a_place_of_its_own() -> None:
    seen = await seen_by(lambda child: loop(child, until=until.max_rounds(3), id="Root"))
    assert [each.path for each in seen] == [("Root", f"child[{n}]") for n in range(3)]


BEGINNING: Mapping[str, Make] = {
    "Root.part[{n}].child": lambda child: spawn(child, id="part"),
    "Root.part[{n}].child[0]": lambda child: parallel([child], id="part"),
    "Root.part[{n}].desk.child": lambda child: sequence(spawn(child, id="desk"), id="part"),
}


@pytest.mark.clause("001-23c")
@pytest.mark.parametrize("wanted", BEGINNING)
async def test_001_23_what_a_round_begins_has_a_branch_of_that_round(wanted: str) -> None:
    inside = BEGINNING[wanted]

    @step
    async def same(_: object) -> str:
        return "x"

    seen = await seen_by(lambda child: loop(sequence(inside(child), same), until=until.max_rounds(3), id="Root"))
    assert len({each.branch for each in seen}) == 3
    direct = await seen_by(lambda child: loop(inside(child), until=until.max_rounds(3), id="Root"))
    assert [each.branch for each in direct] == [wanted.format(n=n) for n in range(3)]


@pytest.mark.clause("001-23c")
async def test_001_23_every_tick_of_a_schedule_has_a_branch() -> None:
    seen: list[str] = []

    @step
    async def tick(_: object, ctx: Ctx) -> None:
        seen.append(ctx.branch)
        ctx.items.append(Message.user("tick"))
        assert len(ctx.items.view(branch=ctx.branch)) == 1
        if len(seen) == 2:
            ctx.stop_loop()

    async with Harness(plugins=[]) as harness:
        await harness.run(every(0.001, tick, id="Root"), None)
    assert seen == ["Root.tick[0]", "Root.tick[1]"]


@pytest.mark.clause("001-23d")
async def test_001_23_a_step_that_is_called_twice_has_a_branch_for_each_call() -> None:
    seen: list[str] = []

    @step
    async def desk(_: object, ctx: Ctx) -> None:
        seen.append(ctx.branch)

    apart = spawn(desk, id="part")

    @step(id="Root")
    async def root(_: object, ctx: Ctx) -> None:
        await apart(None, ctx)
        await apart(None, ctx)
        handle = ctx.spawn_detached(desk, None)
        await handle.wait()

    async with Harness(plugins=[]) as harness:
        await harness.run(root, None)
    assert seen == ["Root.part.desk", "Root.part#1.desk", "Root.desk[detached].desk"]


@pytest.mark.clause("001-23d")
async def test_001_23_a_tool_made_of_a_step_begins_with_no_conversation() -> None:
    seen: list[tuple[str, int, object]] = []

    @step
    async def expert(question: str, ctx: Ctx) -> str:
        seen.append((ctx.branch, len(ctx.items), ctx.state.get("topic")))
        ctx.items.append(Message.user(question))
        return "slack water"

    ask = step_tool(spawn(expert, state="share"), name="ask", description="Ask the expert.")
    calls = [FunctionCall(name="ask", arguments={"input": n}) for n in ("one", "two")]
    agent = loop(call_model(ScriptedModel(calls, "Done."), tools=[ask]), until=until.no_tool_calls(), id="Root")
    async with Harness(plugins=[]) as harness:
        result = await harness.run(agent, "Go.", state=StateBag({"topic": "tides"}))
    assert sorted(seen) == [(f"Root.call_model[0].ask[{n}].spawn:expert.expert", 0, "tides") for n in range(2)]
    # Nothing of theirs is in the conversation but what they answered.
    assert [item.type for item in result.items] == [
        "message", "function_call", "function_call", "function_call_output", "function_call_output", "message"
    ]  # fmt: skip


@pytest.mark.clause("001-23e")
async def test_001_23_a_handover_changes_the_name_and_not_the_branch() -> None:
    seen: list[tuple[str, str]] = []

    @step
    async def target(text: str, ctx: Ctx) -> str:
        seen.append((ctx.name, ctx.branch))
        return text

    @step(handoffs=[target])
    async def first(text: str, ctx: Ctx) -> str | Handoff[str]:
        seen.append((ctx.name, ctx.branch))
        return Handoff(target, text)

    async with Harness(plugins=[]) as harness:
        await harness.run(first, "x")
    assert seen == [("first", "first"), ("target", "first")]


@pytest.mark.clause("001-23f")
async def test_001_23_a_branch_is_the_same_in_the_process_that_goes_on() -> None:
    seen: list[tuple[str, int]] = []

    @step
    async def say(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user(text))
        seen.append((ctx.branch, len(ctx.items.view(branch=ctx.branch))))
        return text

    flow = spawn(sequence(say, say.bind("y"), id="inner"), id="Root")
    whole = FaultyBackend(InMemoryBackend())
    async with Harness(plugins=[], checkpoints=whole) as harness:
        await harness.run(flow, "x", run_id="r")
    wanted = [("Root.inner", 1), ("Root.inner", 2)]
    assert seen == wanted
    for dies_at in range(2, whole.appends + 1):
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        async with Harness(plugins=[], checkpoints=backend) as harness:
            with backend.outlived():
                await harness.run(flow, "x", run_id="r")
        seen.clear()
        backend.revive()
        async with Harness(plugins=[], checkpoints=backend) as harness:
            await harness.resume("r", flow)
        assert seen == wanted[len(wanted) - len(seen) :]
