"""Hooks in a durable run: what they do is a part of a step's record, and is there once wherever the process dies."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from noetic_py import (
    NOT_DONE,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Handoff,
    Harness,
    HookContext,
    InMemoryBackend,
    Memory,
    Message,
    ModelRequest,
    ModelResponse,
    Retry,
    StateBag,
    Step,
    call_model,
    loop,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.context import hooks
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.core import reducers
from noetic_py.errors import NoeticError, StepFailed
from noetic_py.memory import Compaction
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio


def says(request: ModelRequest) -> Any:
    """Asks for a price first, and tells it then."""
    outputs = [item for item in request.items if isinstance(item, FunctionCallOutput)]
    if not outputs:
        return [FunctionCall(name="price", arguments={"item": "lamp"})]
    return f"it costs {outputs[-1].text}"


@tool
async def price(item: str) -> int:
    """Look a price up."""
    return len(item)


class Mem(Memory):
    short: Compaction = Compaction()


def harness(backend: CheckpointBackend) -> Harness[Mem]:
    return Harness(
        memory=Mem(),
        model=ScriptedModel(*[says] * 9),
        checkpoints=backend,
        services={ArtifactStore: StoredArtifacts()},
    )


async def artifacts(backend: CheckpointBackend) -> object:
    """What there is of every artifact of the run."""
    store, owner = StoredArtifacts(backend), ArtifactOwner("run", "resumable")
    found: list[object] = []
    for name in await store.list(owner):
        found += [await store.load(owner, name, version=version) for version in await store.versions(owner, name)]
    return found


def note(ctx: HookContext[Any, Any], what: str) -> None:
    ctx.effects.state["log"] = [*ctx.state.get("log", []), what]
    ctx.effects.save(f"{what}.md", what.encode(), media_type="text/markdown", scope="run")


@hooks.before_model
async def before_model(ctx: HookContext[Any, Any], request: ModelRequest) -> None:
    note(ctx, "before_model")


@hooks.after_model
async def after_model(ctx: HookContext[Any, Any], response: ModelResponse) -> ModelResponse | None:
    note(ctx, "after_model")
    if not any(isinstance(item, Message) for item in response.items):
        return None
    ctx.effects.compact("They asked for a price.")
    return ModelResponse([Message.assistant("about four")], response.usage, response.cost)


@hooks.before_tool
async def before_tool(ctx: HookContext[Any, Any], call: FunctionCall) -> None:
    note(ctx, "before_tool")


@hooks.after_tool
async def after_tool(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> str:
    note(ctx, "after_tool")
    return f"{output.text} coins"


@hooks.before_step
async def before_step(ctx: HookContext[Any, Any], call: hooks.StepCall) -> None:
    note(ctx, "before_step")


@hooks.after_step
async def after_step(ctx: HookContext[Any, Any], call: hooks.StepCall, output: object) -> None:
    note(ctx, "after_step")
    ctx.effects.finish()


@hooks.after_round
async def after_round(ctx: HookContext[Any, Any], done: hooks.Round) -> None:
    note(ctx, "after_round")
    if done.index == 1:
        ctx.effects.stop_loop("stopped by a hook")


ALL = [before_model, after_model, before_tool, after_tool, before_step, after_step, after_round]


@step
async def last(value: str, ctx: Context[Any, Any]) -> list[str]:
    ctx.state["log"] = [*ctx.state["log"], f"last {value}"]
    log: list[str] = ctx.state["log"]
    return [*log, *("/".join(path) for path, entry in ctx.progress.entries.items() if entry.done)]


def whole() -> Step[Any, Any, Mem, Any]:
    flow = loop(call_model(tools=[price]), until=until.never()) >> last
    return flow.with_options(hooks=ALL)


async def test_what_hooks_do_is_there_once_wherever_the_process_dies() -> None:
    killed = await assert_resumable_everywhere(whole, "lamp?", state=StateBag(), make=harness, also=artifacts)
    assert killed >= 14
    backend = InMemoryBackend()
    async with harness(backend) as one:
        result = await one.run(whole(), "lamp?", state=StateBag(), run_id="resumable")
    assert result.value == [
        *["before_step", "before_model", "after_model", "before_tool", "after_tool", "after_step", "after_round"],
        *["before_step", "before_model", "after_model", "after_step", "after_round"],
        *["before_step", "last stopped by a hook"],
        # Of the first round it is forgotten.
        "sequence/loop/call_model[1]",
    ]
    assert result.text == "about four"
    assert [len(await StoredArtifacts(backend).versions(ArtifactOwner("run", "resumable"), name)) for name in (
        "before_model.md", "after_tool.md", "after_round.md",
    )] == [2, 1, 2]  # fmt: skip


@step
async def human(text: str, ctx: Context[Any, Any]) -> str:
    return f"a person says: {text}"


@hooks.after_tool
async def transfer(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
    ctx.effects.hand_off(human, f"{output.text} coins")


def handed() -> Step[Any, Any, Mem, Any]:
    inner = loop(call_model(tools=[price.with_options(hooks=[transfer])]), until=until.never(), id="inner")

    @step
    async def after(value: object, ctx: Context[Any, Any]) -> str:
        return f"after {value}"

    @step(handoffs=[human])
    async def desk(text: str, ctx: Context[Any, Any]) -> str | Handoff[str]:
        first = await inner(text, ctx)
        return await after(first, ctx)

    return desk


async def test_a_handover_that_a_hook_below_has_asked_for_is_heard_again_by_a_run_that_goes_on() -> None:
    await assert_resumable_everywhere(handed, "lamp?", state=StateBag(), make=harness)
    async with harness(InMemoryBackend()) as one:
        assert (await one.run(handed(), "lamp?")).value == "a person says: 4 coins"


@hooks.after_tool
async def as_it_is(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
    ctx.effects.skip_summary()


def final() -> Step[Any, Any, Mem, Any]:
    @step
    async def told(value: str, ctx: Context[Any, Any]) -> list[str]:
        return [value, *(getattr(item, "text", "") for item in ctx.items.view(final=True))]

    return loop(call_model(tools=[price.with_options(hooks=[as_it_is])]), until=until.no_tool_calls()) >> told


async def test_an_output_that_stands_for_the_answer_does_so_in_a_run_that_goes_on() -> None:
    await assert_resumable_everywhere(final, "lamp?", state=StateBag(), make=harness)
    async with harness(InMemoryBackend()) as one:
        result = await one.run(final(), "lamp?", run_id="r")
        assert result.value == ["4", "4"]
        # As everybody reads it later.
        journal = (await one.resume("r", final())).items
    assert [item.is_final for item in journal] == [False, False, True]


async def test_a_recorded_step_is_put_back_without_its_hooks() -> None:
    called: list[str] = []

    @hooks.before_model
    async def count(ctx: HookContext[Any, Any], request: ModelRequest) -> None:
        called.append("before_model")

    @hooks.after_step
    async def steps(ctx: HookContext[Any, Any], call: hooks.StepCall, output: object) -> None:
        called.append(call.id)

    @hooks.after_round
    async def rounds(ctx: HookContext[Any, Any], done: hooks.Round) -> None:
        called.append(f"round {done.index}")

    def flow() -> Step[Any, Any, Mem, Any]:
        return (loop(call_model(tools=[price]), until=until.no_tool_calls()) >> last).with_options(
            hooks=[count, steps, rounds]
        )

    inner = InMemoryBackend()
    backend = FaultyBackend(inner)
    async with harness(backend) as one:
        await one.run(flow(), "lamp?", state=StateBag({"log": []}), run_id="whole")
    appends, expected = backend.appends, list(called)
    called.clear()
    backend = FaultyBackend(InMemoryBackend(), dies_at=appends - 1, when="after")
    with backend.outlived():
        async with harness(backend) as one:
            await one.run(flow(), "lamp?", state=StateBag({"log": []}), run_id="r")
    assert called == expected
    backend.revive()
    async with harness(backend) as one:
        result = await one.resume("r", flow())
    assert called == expected
    assert result.value == ["last it costs 4"]


async def test_a_recorded_failure_is_raised_again_without_its_hooks() -> None:
    called: list[str] = []

    @hooks.on_step_error
    async def failed(ctx: HookContext[Any, Any], call: hooks.StepCall, error: NoeticError) -> None:
        called.append(f"{call.id} {call.attempt}")
        ctx.effects.save("why.txt", error.message.encode(), scope="run")

    @step(retry=Retry(2, initial=0))
    async def shaky(value: str) -> str:
        raise OSError("no")

    @step
    async def careful(value: str, ctx: Context) -> str:
        try:
            return await shaky(value, ctx)
        except StepFailed as error:
            return await fallback(error.error_message, ctx)

    @step
    async def fallback(value: str) -> str:
        return f"failed: {value}"

    flow = careful.with_options(hooks=[failed])
    inner = FaultyBackend(InMemoryBackend())
    async with harness(inner) as one:
        assert (await one.run(flow, "go", run_id="whole")).value == "failed: no"
    assert called == ["shaky 1", "shaky 2"]
    for dies_at in range(2, inner.appends + 1):
        called.clear()
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        with backend.outlived():
            async with harness(backend) as one:
                await one.run(flow, "go", run_id="r")
        backend.revive()
        async with harness(backend) as one:
            assert (await one.resume("r", flow)).value == "failed: no"
        # Died behind a commit: what it has recorded is not told again.
        assert called == ["shaky 1", "shaky 2"], dies_at
        store, owner = StoredArtifacts(backend), ArtifactOwner("run", "r")
        assert await store.versions(owner, "why.txt") == [1]


async def test_a_retried_step_saves_in_the_place_of_what_it_had_saved() -> None:
    attempts: list[int] = []

    @hooks.before_step
    async def keep(ctx: HookContext[Any, Any], call: hooks.StepCall) -> None:
        ctx.effects.save("try.txt", str(call.attempt).encode(), scope="run")

    @step(retry=2, hooks=[keep])
    async def shaky(value: str) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("no")
        return value

    backend = InMemoryBackend()
    async with harness(backend) as one:
        await one.run(shaky, "go", run_id="r")
    store, owner = StoredArtifacts(backend), ArtifactOwner("run", "r")
    assert await store.versions(owner, "try.txt") == [1]
    found = await store.load(owner, "try.txt")
    assert found is not None
    assert found.data == b"2"


async def test_what_going_on_would_do_counts_the_hooks_of_rounds_as_put_back() -> None:
    """In a spawn with layers too, whose own steps nobody declares either."""

    @step
    async def work(value: str) -> str:
        return value

    @hooks.after_round
    async def tell(ctx: HookContext[Any, Any], done: hooks.Round) -> None:
        ctx.state["rounds"] = done.index

    flow = spawn(loop(work, until=until.max_rounds(3)).with_options(hooks=[tell]))
    whole = FaultyBackend(InMemoryBackend())
    async with harness(whole) as one:
        await one.run(flow, "go", run_id="r")
    for dies_at in range(2, whole.appends + 1):
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        with backend.outlived():
            async with harness(backend) as one:
                await one.run(flow, "go", run_id="r")
        backend.revive()
        async with harness(backend) as one:
            plan = await one.plan_resume("r", flow)
            assert [each for each in plan.steps if each.action == "differ"] == []
            await one.resume("r", flow)


async def test_a_call_that_waits_for_leave_is_asked_for_as_hooks_have_changed_it() -> None:
    made: list[str] = []

    @tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay."""
        made.append(to)
        return f"paid {to}"

    @hooks.before_tool
    async def in_capitals(ctx: HookContext[Any, Any], call: FunctionCall) -> FunctionCall:
        ctx.effects.save("asked.txt", call.arguments.encode(), scope="run")
        return evolve(call, arguments=call.arguments.replace("ada", "ADA"))

    flow = loop(call_model(tools=[pay.with_options(hooks=[in_capitals])]), until=until.no_tool_calls())
    backend = InMemoryBackend()
    model = ScriptedModel([FunctionCall(name="pay", arguments={"to": "ada"})], "done")
    services: Any = {ArtifactStore: StoredArtifacts()}
    async with Harness(model=model, checkpoints=backend, services=services) as one:
        result = await one.run(flow, "go", run_id="r")
        (pending,) = result.pending
        assert pending.arguments == {"to": "ADA"}
        assert made == []
        result = await one.resume("r", flow, answers=[pending.approve()])
    assert (result.value, made) == ("done", ["ADA"])
    # The call has begun twice, and has kept it once.
    assert await StoredArtifacts(backend).versions(ArtifactOwner("run", "r"), "asked.txt") == [1]


# ------------------------------------------------------------------------------------------------- loops cut short


CUT = "Not finished: completed"
EVENTS = ["before_model", "after_model", "before_tool", "after_tool", "before_step", "after_step", "after_round"]


def cut_by(event: str) -> Step[Any, Any, Any, Any]:
    """An agent whose loop a hook of the event cuts short in its second round."""

    async def cut(ctx: HookContext[Any, Any], *subject: object) -> None:
        ctx.effects.state["hooks"] = ctx.state.get("hooks", 0) + 1
        if "hooks" in ctx.state:
            ctx.effects.stop_loop("cut", now=True)

    hook: Any = getattr(hooks, event)(cut)
    of_tool, of_step = event.endswith("_tool"), event.endswith("_step")
    bought = buy.with_options(hooks=[hook]) if of_tool else buy

    @step(hooks=[hook] if of_step else (), replay="once", reconcile=_not_done)
    async def begin(value: object, ctx: Context[Any, Any]) -> None:
        ctx.state["begun"] = ctx.state.get("begun", 0) + 1

    @step
    async def rest(value: object, ctx: Context[Any, Any]) -> str:
        ctx.state["rest"] = ctx.state.get("rest", 0) + 1
        return "rest"

    body = sequence(begin, call_model(tools=[bought], hooks=[hook] if event.endswith("_model") else ()), rest)
    made: Step[Any, Any, Any, Any] = loop(body, until=until.never())
    return sequence(made.with_options(hooks=[hook]) if event == "after_round" else made, told)


async def _not_done(value: object, ctx: object) -> Any:
    return NOT_DONE


@step
async def told(value: object, ctx: Context[Any, Any]) -> str:
    return f"told {value}"


@tool
async def buy(ctx: Context[Any, Any]) -> str:
    """Buy."""
    ctx.state["bought"] = ctx.state.get("bought", 0) + 1
    return "bought"


class Bought(StateBag):
    reducers = {"bought": reducers.sum, "hooks": reducers.sum}  # noqa: RUF012 # as a user writes it


def buying(backend: CheckpointBackend | None) -> Harness[Any]:
    def answer(request: ModelRequest) -> Any:
        number = sum(isinstance(item, FunctionCall) for item in request.items)
        return FunctionCall(name="buy", arguments={}, call_id=f"c{number}")

    return Harness(model=ScriptedModel(*[answer] * 9), checkpoints=backend)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("event", EVENTS)
async def test_a_hook_cuts_a_loop_short_before_or_after_what_it_is_called_for(event: str, durable: bool) -> None:
    async with buying(InMemoryBackend() if durable else None) as harness:
        result = await harness.run(cut_by(event), "x", state=Bought())
    assert result.value == "told cut"
    # In the second round: what comes before it, and it itself where the hook is called after it. What calls of tools
    # have written side by side would have been joined at the end of the round.
    assert dict(result.state.view()) == {
        "hooks": 1 if event.endswith("_tool") else 2,
        "begun": 1 if event == "before_step" else 2,
        "bought": 2 if event == "after_round" else 1,
        "rest": 2 if event == "after_round" else 1,
    }
    outputs = {"after_model": [CUT], "before_tool": [CUT], "after_tool": ["bought"], "after_round": ["bought"]}
    found = [item.text for item in result.items if isinstance(item, FunctionCallOutput)]
    assert found == ["bought", *outputs.get(event, [])]


@pytest.mark.parametrize("event", ["after_model", "before_tool", "after_tool"])
async def test_a_loop_that_a_hook_cuts_short_ends_so_wherever_the_process_dies(event: str) -> None:
    await assert_resumable_everywhere(lambda: cut_by(event), "x", state=Bought(), make=buying)
