"""Rows 001-15, 001-40, 001-41 and 001-42: artifact stores, and hooks whose effects take effect."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define

from noetic_py import (
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
    ReadContext,
    StateBag,
    Step,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.context import hooks
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.errors import ConfigError, ModelError, ModelUnavailable
from noetic_py.memory import Compaction
from noetic_py.plugins import HookRegistry, hookimpl
from noetic_py.testing import ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio


@tool
async def look_up(port: str) -> str:
    """Look a tide up."""
    return f"high at {len(port)}"


def asks(*ports: str) -> list[FunctionCall]:
    return [FunctionCall(name="look_up", arguments={"port": port}) for port in ports]


def agent(*tools: Any, **options: Any) -> Step[Any, Any, Any, Any]:
    return loop(call_model(tools=tools, **options), until=until.no_tool_calls())


# ------------------------------------------------------------------------------------------------------------- 001-15


@step
async def keep(text: str, ctx: Context) -> list[object]:
    store = ctx.services[ArtifactStore]
    owner = ArtifactOwner.of(ctx)
    await store.save(owner, "notes.md", text.encode(), media_type="text/markdown")
    artifact = await store.load(owner, "notes.md")
    return [artifact and artifact.data, await store.list(owner), await store.versions(owner, "notes.md")]


@step
async def ask_softly(text: str, ctx: Context) -> bool:
    return ctx.services.get(ArtifactStore) is None


@pytest.mark.clause("001-15a")
async def test_001_15_a_run_finds_the_artifact_store_that_it_was_given() -> None:
    backend = InMemoryBackend()
    async with Harness(checkpoints=backend, services={ArtifactStore: StoredArtifacts()}) as harness:
        assert (await harness.run(keep, "one", thread_id="t")).value == [b"one", ["notes.md"], [1]]
        assert (await harness.run(keep, "two", thread_id="t")).value == [b"two", ["notes.md"], [1, 2]]
        assert not (await harness.run(ask_softly, "")).value
    async with Harness() as harness:
        mine = {ArtifactStore: StoredArtifacts(InMemoryBackend())}
        assert (await harness.run(keep, "one", services=mine)).value == [b"one", ["notes.md"], [1]]


@pytest.mark.clause("001-15b")
async def test_001_15_a_missing_store_is_an_error_or_none_when_asked_softly() -> None:
    async with Harness() as harness:
        with pytest.raises(ConfigError, match="no service of type ArtifactStore") as missing:
            await harness.run(keep, "one")
        assert missing.value.code == "service-missing"
        assert missing.value.path == ("keep",)
        assert (await harness.run(ask_softly, "")).value


# ------------------------------------------------------------------------------------------------------------- 001-40


@define
class State:
    user_name: str
    last_model: str | None = None


def instructions(ctx: ReadContext[Memory, State]) -> str:
    return f"Help {ctx.state.user_name}."


@hooks.after_model
async def after_model(ctx: HookContext[Memory, State], response: ModelResponse) -> None:
    ctx.state.last_model = response.model
    ctx.effects.state["last_model"] = response.model


@pytest.mark.clause("001-40d")
async def test_001_40_the_documents_own_example() -> None:
    def answer(request: ModelRequest) -> str:
        return f"I was told: {request.instructions}"

    flow = call_model(instructions=instructions, hooks=[after_model])
    async with Harness(model=ScriptedModel(answer, name="small-1")) as harness:
        result = await harness.run(flow, "hello", state=State("Alice"))
    assert result.value == "I was told: Help Alice."
    assert result.state == State("Alice", "small-1")


@pytest.mark.clause("001-40a")
async def test_001_40_a_hook_reads_what_a_reader_reads_and_changes_state_and_effects_only() -> None:
    seen: list[object] = []

    @hooks.before_step
    async def look(ctx: HookContext[Any, Any], call: hooks.StepCall) -> None:
        seen.extend([ctx.name, ctx.path, ctx.thread_id, ctx.user_id, ctx.request_id, ctx.depth, len(ctx.items)])
        seen.extend(hasattr(ctx, name) for name in ("complete", "abort", "send", "child", "emit"))

    @step(hooks=[look])
    async def body(text: str) -> str:
        return text

    async with Harness() as harness:
        await harness.run(body, "go", thread_id="t", user_id="u", request_id="q")
    assert seen == ["body", ("body",), "t", "u", "q", 0, 0, *[False] * 5]


@pytest.mark.clause("001-40b", "001-40c")
async def test_001_40_assigning_state_merges_and_effects_are_fresh_and_done_after_the_hook() -> None:
    seen: list[object] = []

    @hooks.before_step
    async def first(ctx: HookContext[Memory, StateBag], call: hooks.StepCall) -> None:
        ctx.state = {"assigned": 1}
        ctx.effects.state["asked for"] = 2
        seen.append(dict(ctx.state.view()))

    @hooks.before_step
    async def second(ctx: HookContext[Memory, StateBag], call: hooks.StepCall) -> None:
        seen.append((dict(ctx.state.view()), dict(ctx.effects.state)))

    @step(hooks=[first, second])
    async def body(text: str, ctx: Context[Memory, StateBag]) -> None:
        seen.append(ctx.state["asked for"])

    async with Harness() as harness:
        result = await harness.run(body, "go", state=StateBag({"kept": 0}))
    assert seen == [{"kept": 0, "assigned": 1}, ({"kept": 0, "assigned": 1, "asked for": 2}, {}), 2]
    assert result.state == StateBag({"kept": 0, "assigned": 1, "asked for": 2})


# ------------------------------------------------------------------------------------------------------------- 001-41


async def run(flow: Step[Any, Any, Any, Any], *turns: Any, **options: Any) -> Any:
    async with Harness(model=ScriptedModel(*turns), **options) as harness:
        return await harness.run(flow, "Brest?", state=StateBag())


@pytest.mark.clause("001-41a")
async def test_001_41_state_and_artifacts_take_effect() -> None:
    @hooks.after_tool
    async def note(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        ctx.effects.state["tide"] = output.text
        ctx.effects.save("tide.txt", output.text.encode(), media_type="text/plain", scope="run")

    backend = InMemoryBackend()
    services: Any = {ArtifactStore: StoredArtifacts(backend)}
    result = await run(agent(look_up, hooks=[note]), asks("Brest"), "high at five", services=services)
    assert result.state["tide"] == "high at 5"
    saved = await StoredArtifacts(backend).load(ArtifactOwner("run", result.run_id), "tide.txt")
    assert saved is not None
    assert (saved.data, saved.media_type, saved.version) == (b"high at 5", "text/plain", 1)


@pytest.mark.clause("001-41b")
async def test_001_41_another_step_takes_over() -> None:
    @step
    async def harbour_master(text: str) -> str:
        return f"the harbour master says: {text}"

    @hooks.after_tool
    async def transfer(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        ctx.effects.hand_off(harbour_master, output.text)

    inner = agent(look_up, hooks=[transfer])

    @step(handoffs=[harbour_master])
    async def desk(text: str, ctx: Context[Any, Any]) -> str | Handoff[str]:
        return str(await inner(text, ctx))

    assert (await run(desk, asks("Brest"))).value == "the harbour master says: high at 5"
    with pytest.raises(ConfigError, match="hands over") as refused:
        await run(inner, asks("Brest"))
    assert refused.value.code == "handoff"


@pytest.mark.clause("001-41c")
async def test_001_41_a_loop_ends() -> None:
    @hooks.after_model
    async def escalate(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        ctx.effects.stop_loop("escalated")

    flow = loop(call_model(hooks=[escalate]), until=until.never())
    result = await run(flow, "one")
    assert (result.value, result.model_calls) == ("escalated", 1)


@pytest.mark.clause("001-41d")
async def test_001_41_a_tools_output_is_final_without_a_summary() -> None:
    @hooks.after_tool
    async def as_it_is(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        ctx.effects.skip_summary()

    result = await run(agent(look_up, hooks=[as_it_is]), asks("Brest"))
    assert (result.value, result.text, result.model_calls) == ("high at 5", "high at 5", 1)
    assert [item.is_final for item in result.items] == [False, False, True]


@pytest.mark.clause("001-41e")
async def test_001_41_older_items_are_shown_as_a_summary_and_stay_in_the_log() -> None:
    class Mem(Memory):
        short: Compaction = Compaction(keep_first=False)

    @hooks.after_model
    async def shorten(ctx: HookContext[Mem, Any], response: ModelResponse) -> None:
        if ctx.turns == 1:
            ctx.effects.compact("They said hello.")

    ask = call_model(hooks=[shorten])

    @step
    async def chat(text: str, ctx: Context[Mem, Any]) -> None:
        ctx.items.append(Message.user("hello"))
        ctx.items.append(Message.assistant("hello to you"))
        await ask("Brest?", ctx)
        await ask("And Calais?", ctx)

    model = ScriptedModel("high at five", "high at six")
    async with Harness(model=model, memory=Mem()) as harness:
        result = await harness.run(chat, "go")
    first, second = ([item.text for item in each.items if isinstance(item, Message)] for each in model.requests)
    assert first == ["hello", "hello to you", "Brest?"]
    assert "They said hello." in second[0]
    assert second[1:] == ["Brest?", "high at five", "And Calais?"]
    assert len(result.items) == 6


@pytest.mark.clause("001-41f")
async def test_001_41_a_step_is_marked_as_done_and_the_loop_around_it_goes_on() -> None:
    @hooks.after_step
    async def done(ctx: HookContext[Any, Any], call: hooks.StepCall, output: object) -> None:
        if call.id == "work":
            ctx.effects.finish()

    seen: list[bool] = []

    @step
    async def work(value: int, ctx: Context[Any, Any]) -> int:
        ctx.progress.set({"at": value})
        return value + 1

    @step
    async def look(value: int, ctx: Context[Any, Any]) -> int:
        entry = ctx.progress.entries[(*ctx.path[:-1], "work")]
        seen.append(entry.done and entry.value is None)
        return value

    flow = loop(work >> look, until=until.max_rounds(2)).with_options(hooks=[done])
    async with Harness() as harness:
        assert (await harness.run(flow, 1)).value == 3
    assert seen == [True, True]


@pytest.mark.clause("001-41g")
async def test_001_41_effects_are_there_once_when_the_process_dies_before_or_after_their_commit() -> None:
    @hooks.after_model
    async def note(ctx: HookContext[Memory, StateBag], response: ModelResponse) -> None:
        ctx.effects.state["answers"] = (ctx.state.get_as("answers", int) or 0) + 1
        ctx.effects.save("answer.txt", b"saved", scope="run")

    @step
    async def last(text: str) -> str:
        return text

    def harness(backend: CheckpointBackend) -> Harness[Memory]:
        services: Any = {ArtifactStore: StoredArtifacts()}
        return Harness(model=ScriptedModel(lambda request: "one"), checkpoints=backend, services=services)

    async def saved(backend: CheckpointBackend) -> object:
        store, owner = StoredArtifacts(backend), ArtifactOwner("run", "resumable")
        return [await store.versions(owner, name) for name in await store.list(owner)]

    def flow() -> Step[Any, Any, Memory, Any]:
        return call_model(hooks=[note]) >> last

    # State, artifacts and all else are those of a run that nobody has killed, and in that they are there once.
    assert await assert_resumable_everywhere(flow, "hi", state=StateBag(), make=harness, also=saved) >= 6
    backend = InMemoryBackend()
    async with harness(backend) as one:
        result = await one.run(flow(), "hi", state=StateBag(), run_id="resumable")
    assert (result.state["answers"], await saved(backend)) == (1, [[1]])


# ------------------------------------------------------------------------------------------------------------- 001-42


@pytest.mark.clause("001-42a")
async def test_001_42_hooks_before_and_after_models_and_tools_are_registered_by_plugins() -> None:
    order: list[str] = []

    @hooks.before_model
    async def before_model(ctx: HookContext[Any, Any], request: ModelRequest) -> None:
        order.append("before_model")

    @hooks.after_model
    async def after_model(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        order.append(f"after_model {response.model}")

    @hooks.before_tool
    async def before_tool(ctx: HookContext[Any, Any], call: FunctionCall) -> None:
        order.append(f"before_tool {call.name}")

    @hooks.after_tool
    async def after_tool(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        order.append(f"after_tool {output.text}")

    class Plugin:
        @hookimpl
        def register_hooks(self, registry: HookRegistry) -> None:
            for hook in (before_model, after_model, before_tool, after_tool):
                registry.hook(hook)

    await run(agent(look_up), asks("Brest"), "high at five", plugins=[Plugin()])
    name = ScriptedModel().name
    assert order == [
        *["before_model", f"after_model {name}", "before_tool look_up", "after_tool high at 5"],
        *["before_model", f"after_model {name}"],
    ]


@pytest.mark.clause("001-42b")
async def test_001_42_a_hook_may_answer_instead_of_a_model_that_fails_or_let_it_fail() -> None:
    told: list[str] = []

    @hooks.on_model_error
    async def recover(ctx: HookContext[Any, Any], error: ModelError) -> ModelResponse | None:
        told.append(error.message)
        return ModelResponse([Message.assistant("nobody is there")]) if "try" in error.message else None

    flow = call_model(hooks=[recover])
    assert (await run(flow, ModelUnavailable("try again", model="m"))).value == "nobody is there"
    with pytest.raises(ModelUnavailable, match="gone"):
        await run(flow, ModelUnavailable("gone", model="m"))
    assert told == ["try again", "gone"]


@pytest.mark.clause("001-42c")
async def test_001_42_hooks_may_answer_instead_before_models_and_tools_and_change_what_comes_after() -> None:
    @hooks.before_model
    async def cached(ctx: HookContext[Any, Any], request: ModelRequest) -> ModelResponse | None:
        outputs = [item for item in request.items if isinstance(item, FunctionCallOutput)]
        return ModelResponse([Message.assistant(f"cached: {outputs[-1].text}")]) if outputs else None

    @hooks.before_tool
    async def known(ctx: HookContext[Any, Any], call: FunctionCall) -> str:
        return "known already"

    @hooks.after_tool
    async def signed(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> str:
        return f"{output.text}, signed"

    result = await run(agent(look_up, hooks=[cached, known, signed]), asks("Brest"))
    assert (result.value, result.model_calls) == ("cached: known already, signed", 1)
