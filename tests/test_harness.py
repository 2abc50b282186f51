from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from attrs import define

import noetic_py
from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    Harness,
    Memory,
    Message,
    ModelSettings,
    RunHandle,
    StateBag,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.errors import ConfigError, ForgedEvent, ModelNotFound, NoeticError, RunBusy, StepFailed, WrongThread
from noetic_py.plugins import hookimpl
from noetic_py.testing import ScriptedModel, VirtualRuntime

pytestmark = pytest.mark.anyio

ROOT = Path(noetic_py.__file__).parents[1]


@step
async def echo(text: str) -> str:
    return text


@step
async def forever(text: str) -> str:
    await anyio.sleep_forever()
    return text


@step
async def fail(text: str) -> str:
    raise ValueError(text)


# ------------------------------------------------------------------------------------------------------------- its life


async def test_a_finished_run_is_freed_without_the_garbage_collector() -> None:
    class Given:
        """An input that can be watched."""

    @step
    async def look(given: Given) -> None: ...

    harness = Harness(plugins=[])
    # The first run imports what all others share.
    await harness.run(look, Given())
    given = Given()
    watched = weakref.ref(given)
    gc.disable()
    try:
        await harness.run(look, given)
        del given
        assert watched() is None
    finally:
        gc.enable()


async def test_it_runs_without_being_entered() -> None:
    harness = Harness()
    assert (await harness.run(echo, "x")).value == "x"
    async with harness.stream(echo, "y") as stream:
        assert (await stream.result()).value == "y"


async def test_leaving_waits_for_started_runs() -> None:
    release = anyio.Event()
    finished: list[str] = []

    @step
    async def wait(text: str) -> str:
        await release.wait()
        finished.append(text)
        return text

    async with Harness() as harness:
        handle = harness.start(wait, "x")
        release.set()
    assert finished == ["x"]
    assert (await handle.result()).value == "x"


class Oops(Exception):
    pass


async def test_leaving_by_an_exception_cancels_started_runs() -> None:
    stopped: list[str] = []
    inside = anyio.Event()

    @step
    async def slow(text: str) -> str:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(text)
        return text

    handles: list[RunHandle[str, StateBag]] = []

    async def use() -> None:
        async with Harness() as harness:
            handles.append(harness.start(slow, "x"))
            await inside.wait()
            raise Oops

    with pytest.raises(Oops):
        await use()
    assert stopped == ["x"]
    assert handles[0].done
    with pytest.raises(RunBusy):
        await handles[0].result()


async def test_leaving_by_an_exception_at_once_leaves_nobody_waiting() -> None:
    handles: list[RunHandle[str, StateBag]] = []

    async def use() -> None:
        async with Harness() as harness:
            handles.append(harness.start(forever, "x"))
            raise Oops

    with pytest.raises(Oops):
        await use()
    with anyio.fail_after(5), pytest.raises(RunBusy):
        await handles[0].result()


async def test_an_error_leaves_the_block_as_it_is() -> None:
    """A handler around the block catches the error itself, no group of it."""
    with pytest.raises(StepFailed):
        async with Harness() as harness:
            await harness.run(fail, "x")
    with pytest.raises(StepFailed):
        async with Harness() as harness, harness.stream(fail, "x") as stream:
            await stream.result()
    with pytest.raises(Oops):
        async with Harness() as harness, harness.stream(forever, "x") as stream:
            raise Oops
    with pytest.raises(StepFailed):
        async with Harness() as harness:
            await harness.start(fail, "x").result()


async def test_a_cancellation_leaves_the_block() -> None:
    with anyio.move_on_after(0.01) as scope:
        async with Harness() as harness:
            harness.start(forever, "x")
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    with anyio.move_on_after(0.01) as scope:
        async with Harness() as harness, harness.stream(forever, "x"):
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_cancellation_while_leaving_waits() -> None:
    harness = Harness()
    handles: list[RunHandle[str, StateBag]] = []
    with anyio.move_on_after(0.01) as scope:
        async with harness:
            handles.append(harness.start(forever, "x"))
    assert scope.cancelled_caught
    assert handles[0].done


async def test_a_failed_run_that_nobody_asks_for_hurts_nobody() -> None:
    async with Harness() as harness:
        handle = harness.start(fail, "x")
    assert handle.done
    with pytest.raises(StepFailed):
        await handle.result()


async def test_a_handle() -> None:
    async with Harness() as harness:
        handle = harness.start(echo, "x", run_id="run-1")
        assert (handle.run_id, handle.done) == ("run-1", False)
        assert (await handle.result()).value == "x"
        assert handle.done
        assert (await handle.result()).run_id == "run-1"


# ------------------------------------------------------------------------------------------------- threads and run_sync


def test_run_sync() -> None:
    @step
    async def count(text: str, ctx: Context[Memory, dict[str, int]]) -> str:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        return text

    harness = Harness()
    state: dict[str, int] = {}
    assert harness.run_sync(echo, "x").value == "x"
    assert harness.run_sync(count, "y", state=state).state == {"n": 1}
    assert harness.run_sync(count, "y", state=state, run_id="r").run_id == "r"
    assert harness.run_sync(fail, "x", on_error="result").status == "failed"
    with pytest.raises(StepFailed):
        harness.run_sync(fail, "x")
    assert state == {"n": 2}


def test_run_sync_goes_on_with_a_context() -> None:
    @step
    async def write(text: str, ctx: Context) -> int:
        ctx.items.append(Message.user(text))
        return len(ctx.items)

    ctx = Context()
    run: Any = Harness().run_sync
    assert [run(write, "x", ctx=ctx).value for _ in range(2)] == [1, 2]


def test_run_sync_in_several_threads_each_with_a_harness() -> None:
    values: list[str] = []

    def work(n: int) -> None:
        values.append(Harness().run_sync(echo, str(n)).value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == ["0", "1", "2", "3"]


async def test_run_sync_from_a_worker_thread_leaves_the_owner_its_harness() -> None:
    async with Harness() as harness:
        handle = harness.start(forever, "x")
        outcome: list[object] = []

        def work() -> None:
            try:
                outcome.append(harness.run_sync(echo, "y").value)
            except WrongThread as error:
                outcome.append(error)

        await anyio.to_thread.run_sync(work)
        assert outcome == ["y"] or isinstance(outcome[0], WrongThread)
        # Whatever the other thread was told, this one may go on.
        assert (await harness.run(echo, "z")).value == "z"
        handle.abort("enough")


async def test_after_run_sync_it_can_be_used_in_a_loop() -> None:
    harness = Harness()
    value = await anyio.to_thread.run_sync(lambda: harness.run_sync(echo, "x").value)
    assert value == "x"
    assert (await harness.run(echo, "y")).value == "y"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_process_refuses_the_parent_s_harness() -> None:
    program = """
import os
import anyio
from noetic_py import Harness, step
from noetic_py.errors import WrongThread

@step
async def echo(text: str) -> str:
    return text

async def main():
    async with Harness() as harness:
        await harness.run(echo, "x")
        return harness

async def child(harness):
    try:
        await harness.run(echo, "x")
    except Exception as error:
        return type(error).__name__
    return "ran"

async def use(harness):
    await harness.run(echo, "x")

harness = Harness()
anyio.run(use, harness)
pid = os.fork()
if pid == 0:
    os._exit(0 if anyio.run(child, harness) == "WrongThread" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


# -------------------------------------------------------------------------------------------------------- configuration


def test_it_shows_its_budget() -> None:
    budget = Budget(steps=3)
    assert Harness(budget=budget).budget is budget
    assert Harness().budget is None


async def test_a_model_of_the_harness_and_one_of_the_step() -> None:
    mine, its = ScriptedModel("mine"), ScriptedModel("its", "its")
    async with Harness(model=its) as harness:
        assert (await harness.run(call_model(), "x")).value == "its"
        assert (await harness.run(call_model(mine), "x")).value == "mine"
    mine.assert_complete()


async def test_tools_of_the_harness_and_the_step_are_one_set_and_the_nearest_wins() -> None:
    @tool(name="look")
    async def far() -> str:
        """Far."""
        return "far"

    @tool(name="look")
    async def near() -> str:
        """Near."""
        return "near"

    @tool
    async def other() -> str:
        """Other."""
        return "other"

    model = ScriptedModel(FunctionCall(name="look"), "done", FunctionCall(name="look"), "done")
    async with Harness(model=model, tools=(far, other)) as harness:
        await harness.run(loop(call_model(tools=(near,)), until=until.no_tool_calls()), "x")
        await harness.run(loop(call_model(), until=until.no_tool_calls()), "x")
    outputs = [getattr(model.requests[n].items[-1], "output", None) for n in (1, 3)]
    assert outputs == ["near", "far"]
    offered = [sorted(str(tool["name"]) for tool in request.tools) for request in model.requests]
    assert offered == [["look", "other"]] * 4


async def test_a_tool_source_is_asked_at_each_round() -> None:
    rounds = 0

    @tool
    async def late() -> str:
        """Late."""
        return "late"

    class Source:
        async def tools(self) -> list[Any]:
            nonlocal rounds
            rounds += 1
            return [late] if rounds > 1 else []

    model = ScriptedModel(FunctionCall(name="late"), FunctionCall(name="late"), "done")
    source: Any = Source()
    async with Harness(model=model) as harness:
        await harness.run(loop(call_model(tools=(source,)), until=until.no_tool_calls()), "x")
    assert [len(request.tools) for request in model.requests] == [0, 1, 1]


async def test_settings_of_the_step_the_run_and_the_harness() -> None:
    model = ScriptedModel("a", "b", "c")
    far: ModelSettings = {"temperature": 0.1, "seed": 1, "max_output_tokens": 100}
    async with Harness(model=model, model_settings=far) as harness:
        flow = call_model(settings={"temperature": 0.5, "top_p": 0.9})
        await harness.run(flow, "x")
        await harness.run(flow, "x", model_settings={"temperature": 1.0})
        await harness.run(call_model(), "x")
    assert [dict(request.settings) for request in model.requests] == [
        {"temperature": 0.5, "top_p": 0.9, "seed": 1, "max_output_tokens": 100},
        {"temperature": 1.0, "top_p": 0.9, "seed": 1, "max_output_tokens": 100},
        {"temperature": 0.1, "seed": 1, "max_output_tokens": 100},
    ]


async def test_instructions_are_text_or_made_from_the_context() -> None:
    async def later(ctx: Any) -> str:
        return f"later {ctx.turns}"

    model = ScriptedModel(*"abcd")
    async with Harness(model=model) as harness:
        await harness.run(call_model(instructions="be brief"), "x")
        await harness.run(call_model(instructions=lambda ctx: f"turn {ctx.turns}"), "x")
        await harness.run(call_model(instructions=later), "x")
        await harness.run(call_model(), "x")
    assert [request.instructions for request in model.requests] == ["be brief", "turn 0", "later 0", None]


async def test_the_memory_bundle_of_the_harness() -> None:
    class Mem(Memory):
        pass

    @step
    async def look(text: str, ctx: Context) -> object:
        return ctx.memory

    mem = Mem()
    async with Harness(memory=mem) as harness:
        assert (await harness.run(look, "x")).value is mem
    async with Harness() as plain:
        assert type((await plain.run(look, "x")).value) is Memory


def test_flows_are_kept_by_name() -> None:
    assert dict(Harness(flows={"main": echo}).flows) == {"main": echo}


async def test_a_model_by_name_comes_from_a_plugin() -> None:
    made: list[str] = []

    class Plugin:
        @hookimpl
        def register_models(self, registry: Any) -> None:
            def make(name: str) -> ScriptedModel:
                made.append(name)
                return ScriptedModel("a", "b")

            registry.provider("acme", make)

    async with Harness(plugins=[Plugin()], model="acme:large") as harness:
        assert (await harness.run(call_model(), "x")).value == "a"
        assert (await harness.run(call_model("acme:large"), "x")).value == "b"
        with pytest.raises(ModelNotFound, match="openai"):
            await harness.run(call_model("openai:gpt-5-mini"), "x")
    assert made == ["large"]


async def test_a_runtime_makes_runs_repeatable() -> None:
    async def ids() -> list[str]:
        found: list[str] = []

        @step
        async def look(text: str, ctx: Context) -> str:
            ctx.items.append(Message.user(text))
            found.extend([ctx.id, ctx.run_id, ctx.thread_id, ctx.items[-1].id])
            return text

        async with Harness(runtime=VirtualRuntime(7)) as harness:
            await harness.run(look, "x")
        return found

    assert await ids() == await ids()


# -------------------------------------------------------------------------------------------------------------- options


@define
class State:
    count: int = 0


@step
async def look(text: str, ctx: Context) -> dict[str, object]:
    return {
        "run_id": ctx.run_id,
        "thread_id": ctx.thread_id,
        "user_id": ctx.user_id,
        "request_id": ctx.request_id,
        "metadata": dict(ctx.metadata),
        "items": len(ctx.items),
    }


async def test_options_reach_the_context() -> None:
    async with Harness() as harness:
        result = await harness.run(
            look,
            "x",
            run_id="run",
            thread_id="thread",
            user_id="user",
            request_id="request",
            metadata={"a": 1},
            history=[Message.user("before")],
        )
        plain = (await harness.run(look, "x")).value
    assert result.value == {
        "run_id": "run",
        "thread_id": "thread",
        "user_id": "user",
        "request_id": "request",
        "metadata": {"a": 1},
        "items": 1,
    }
    assert plain["run_id"]
    assert plain["thread_id"]
    assert (plain["user_id"], plain["request_id"], plain["metadata"], plain["items"]) == (None, None, {}, 0)


@pytest.mark.parametrize("id", ["a", "x" * 256, "a/b#c[0]", "ümlaut", "with space", "../.."])
async def test_ids_from_outside_are_data(id: str) -> None:
    async with Harness() as harness:
        assert (await harness.run(look, "x", run_id=id, thread_id=id)).value["run_id"] == id


async def test_history_is_copied() -> None:
    history = [Message.user("before")]

    @step
    async def write(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        return text

    async with Harness() as harness:
        first = await harness.run(write, "x", history=history)
        second = await harness.run(write, "y", history=first.items)
    assert len(history) == 1
    assert [len(first.items), len(second.items)] == [2, 3]


async def test_history_with_an_open_call_is_refused() -> None:
    model = ScriptedModel("done")
    async with Harness(model=model) as harness:
        with pytest.raises(ForgedEvent, match="waits to be executed"):
            await harness.run(call_model(), "go on", history=[FunctionCall(name="look")])
    assert not model.requests


async def test_services_of_the_run_are_nearer() -> None:
    @step
    async def use(text: str, ctx: Context) -> int:
        return ctx.services[State].count

    async with Harness(services={State: State(1)}) as harness:
        assert (await harness.run(use, "x")).value == 1
        assert (await harness.run(use, "x", services={State: State(2)})).value == 2


@pytest.mark.parametrize("on_error", ["raise", "result"])
async def test_on_error_for_streams_and_started_runs(on_error: Literal["raise", "result"]) -> None:
    async with Harness() as harness:
        async with harness.stream(fail, "x", on_error=on_error) as stream:
            if on_error == "raise":
                with pytest.raises(StepFailed):
                    await stream.result()
            else:
                assert (await stream.result()).status == "failed"
        handle = harness.start(fail, "x", on_error=on_error)
        if on_error == "raise":
            with pytest.raises(StepFailed):
                await handle.result()
        else:
            assert (await handle.result()).status == "failed"


async def test_a_run_inside_a_step_is_a_run_of_its_own() -> None:
    @step
    async def outer(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.state["mine"] = text
        inner = await harness.run(look, text)
        assert inner.run_id != ctx.run_id
        return await echo(inner.run_id, ctx)

    async with Harness() as harness:
        result = await harness.run(outer, "x")
    assert result.steps == 2


async def test_a_budget_of_the_harness_is_shared_by_runs_at_once() -> None:
    async with Harness(budget=Budget(steps=5)) as harness:
        handles = [harness.start(echo, str(n)) for n in range(10)]
        results = [await handle.result() for handle in handles]
    assert [result.status for result in results].count("completed") == 5
    assert [result.status for result in results].count("budget_exceeded") == 5


def test_flows_must_be_steps() -> None:
    wrong: Any = {"main": 3}
    with pytest.raises(ConfigError, match="main"):
        Harness(flows=wrong)


async def test_an_error_is_a_noetic_error_wherever_it_comes_from() -> None:
    async with Harness() as harness:
        with pytest.raises(NoeticError):
            await harness.run(fail, "x")
