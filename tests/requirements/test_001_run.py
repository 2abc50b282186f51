"""How a run is told what to do, stopped from anywhere, and made to wait; and who may only look."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import pytest
from attrs import define, evolve

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    JsonValue,
    Memory,
    MemoryLayer,
    Message,
    ModelRequest,
    ModelSettings,
    ReadContext,
    SessionKey,
    StateBag,
    Step,
    branch,
    call_model,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.core.events import RequestMade
from noetic_py.errors import Aborted, ConfigError
from noetic_py.models import ModelStream, ModelWrapper
from noetic_py.plugins import PluginRegistry, hookimpl
from noetic_py.testing import ScriptedModel

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep: TypeAlias = Step[Any, Any, Any, Any]
KEY = SessionKey("ada", "trip", app="travel")


# --------------------------------------------------------------------------------------------------------------- 001-11


class Acme:
    """A plugin with a model."""

    def __init__(self) -> None:
        self.model = ScriptedModel(*["ok"] * 9)

    @hookimpl
    def noetic_register(self, registry: PluginRegistry) -> None:
        registry.provider("acme", lambda name: self.model)


@pytest.mark.clause("001-11a")
async def test_001_11_settings_of_a_run_reach_the_models_of_plugins_and_win() -> None:
    plugin = Acme()
    ask = call_model("acme:large", settings=ModelSettings(temperature=0.2, top_p=0.5))
    defaults = ModelSettings(temperature=0.0, max_output_tokens=10, extra={"tier": "low"})
    async with Harness(plugins=[plugin], model_settings=defaults) as harness:
        await harness.run(ask, "x", model_settings={"temperature": 0.9, "extra": {"tier": "high"}})
        await harness.run(spawn(ask), "x")
    given, left = (request.settings for request in plugin.model.requests)
    assert given == {"temperature": 0.9, "top_p": 0.5, "max_output_tokens": 10, "extra": {"tier": "high"}}
    assert left == {"temperature": 0.2, "top_p": 0.5, "max_output_tokens": 10, "extra": {"tier": "low"}}


@pytest.mark.clause("001-11b")
async def test_001_11_models_are_told_whose_run_it_is_and_what_the_caller_says() -> None:
    plugin = Acme()
    ask = call_model("acme:large")
    async with Harness(plugins=[plugin]) as harness:
        await harness.run(ask, "x")
        await harness.run(ask, "x", user_id="ada", metadata={"tenant": "t7"})
        await harness.run(spawn(ask), "x", session=KEY)
        await harness.run(ask, "x", session=KEY, metadata={"user_id": "nobody", "labels": ["a"]})
        await harness.session(None, "s").run(ask, "x")
    assert [request.metadata for request in plugin.model.requests] == [
        {},
        {"user_id": "ada", "tenant": "t7"},
        {"user_id": "ada", "session_id": "trip", "app_name": "travel"},
        {"user_id": "nobody", "session_id": "trip", "app_name": "travel", "labels": ["a"]},
        {"session_id": "s"},
    ]


@pytest.mark.clause("001-11b")
async def test_001_11_a_wrapper_sees_it_too() -> None:
    seen: list[Mapping[str, object]] = []

    class Noting(ModelWrapper):
        def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
            seen.append(request.metadata)
            return super().respond(evolve(request, metadata={}))

    inner = ScriptedModel("ok")
    async with Harness(plugins=[]) as harness:
        await harness.run(call_model(Noting(inner)), "x", metadata={"tenant": "t7"})
    assert seen == [{"tenant": "t7"}]
    assert inner.requests[0].metadata == {}


@pytest.mark.clause("001-11c")
async def test_001_11_the_trace_of_a_run_has_them_by_name(spans: InMemorySpanExporter) -> None:
    @step
    async def work(text: str) -> str:
        return text

    async with Harness(plugins=[]) as harness:
        said: Mapping[str, JsonValue] = {"app_name": "mine", "retries": 2, "labels": ["a"], "none": None}
        await harness.run(work, "x", session=KEY, run_id="r", request_id="q", metadata=said)
    (found,) = [span.attributes or {} for span in spans.get_finished_spans() if span.name == "invoke_workflow work"]
    assert (found["noetic.run"], found["noetic.request"]) == ("r", "q")
    known = {name.removeprefix("noetic.metadata."): found[name] for name in found if name.startswith("noetic.metadata")}
    assert known == {
        "user_id": "ada", "session_id": "trip", "app_name": "mine", "retries": 2, "labels": '["a"]', "none": "null"
    }  # fmt: skip


@pytest.mark.clause("001-11d")
async def test_001_11_steps_read_them_and_so_does_the_process_that_goes_on() -> None:
    @step
    async def read(_: object, ctx: Ctx) -> object:
        return ctx.metadata["tenant"], ctx.user_id

    backend = InMemoryBackend()
    plugin = Acme()
    flow = spawn(read) >> step(_texts) >> call_model("acme:large")
    await Harness(plugins=[plugin], checkpoints=backend).run(
        flow, None, run_id="r", user_id="ada", metadata={"tenant": "t7"}
    )
    again = await Harness(plugins=[plugin], checkpoints=backend).fork("r", at=1)
    await Harness(plugins=[plugin], checkpoints=backend).resume(again, flow)
    assert [request.metadata for request in plugin.model.requests] == [{"user_id": "ada", "tenant": "t7"}] * 2


async def _texts(value: object) -> str:
    assert value == ("t7", "ada")
    return str(value)


# --------------------------------------------------------------------------------------------------------------- 001-12


class Tree:
    """A tree with parts that wait for ever, and one that ends the run when all of them wait."""

    def __init__(self, stop: Callable[[Context[Any, Any]], None]) -> None:
        self.waiting = 0
        self.all_wait = anyio.Event()
        self.stop = stop
        self.cut: list[str] = []
        self.ran_after: list[str] = []

    def waits(self, name: str) -> Step[Any, Any]:
        @step(id=name)
        async def body(_: object) -> None:
            self.waiting += 1
            if self.waiting == 3:
                self.all_wait.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.cut.append(name)

        return body

    def never(self, name: str) -> Step[Any, Any]:
        @step(id=name)
        async def body(_: object) -> None:
            self.ran_after.append(name)

        return body

    def flow(self) -> Step[Any, Any]:
        @step(id="stopper")
        async def body(_: object, ctx: Context[Any, Any]) -> None:
            await self.all_wait.wait()
            self.stop(ctx)
            assert ctx.aborted
            # What is derived of it afterwards inherits that.
            assert ctx.child(preset="derive", name="late").aborted
            # A stopped run starts nothing any more.
            with anyio.CancelScope(shield=True), pytest.raises(BaseException):  # noqa: B017, PT011
                await self.never("below")(None, ctx)

        rounds: AnyStep = loop(body, until=until.never())
        deep = spawn(spawn(rounds, id="inner"), id="outer")
        paths: AnyStep = parallel(
            [
                sequence(self.waits("left"), self.never("left's next"), id="a"),
                spawn(parallel([self.waits("right"), self.waits("far right")], id="pair"), id="b"),
                sequence(deep, self.never("deep's next"), id="c"),
            ],
            id="paths",
        )
        return loop(sequence(paths, self.never("next")), until=until.never(), id="Root")


@pytest.mark.clause("001-12a", "001-12b")
@pytest.mark.parametrize("backend", [None, InMemoryBackend], ids=["in memory", "kept"])
async def test_001_12_one_signal_ends_the_whole_run_from_anywhere(backend: Any) -> None:
    tree = Tree(lambda ctx: ctx.root.abort("enough"))
    async with Harness(plugins=[], checkpoints=backend and backend()) as harness:
        with anyio.fail_after(20):
            result = await harness.run(tree.flow(), None)
    assert (result.status, result.reason) == ("aborted", "enough")
    assert sorted(tree.cut) == ["far right", "left", "right"]
    assert tree.ran_after == []
    with pytest.raises(Aborted):
        _ = result.value


@pytest.mark.clause("001-12c")
async def test_001_12_a_child_is_ended_alone_when_that_is_meant() -> None:
    @step
    async def give_up(_: object, ctx: Ctx) -> None:
        ctx.abort("only here")

    @step
    async def goes_on(_: object, ctx: Ctx) -> tuple[bool, bool]:
        with pytest.raises(Aborted):
            await spawn(give_up)(None, ctx)
        return ctx.aborted, ctx.root.aborted

    async with Harness(plugins=[]) as harness:
        result = await harness.run(goes_on, None)
    assert (result.status, result.value) == ("completed", (False, False))


@pytest.mark.clause("001-12b")
async def test_001_12_an_agent_asks_no_more_once_a_tool_has_ended_the_run() -> None:
    @tool
    async def stop(ctx: Context) -> str:
        """Stop everything."""
        ctx.root.abort("by a tool")
        return "never read"

    model = ScriptedModel(FunctionCall(name="stop"), "never asked")
    agent = loop(call_model(model, tools=[stop]), until=until.no_tool_calls())
    ask = step_tool(spawn(agent), name="ask", description="Ask.", input_type=str)
    outer = ScriptedModel(FunctionCall(name="ask", arguments={"input": "x"}), "never asked")
    async with Harness(plugins=[]) as harness:
        result = await harness.run(loop(call_model(outer, tools=[ask]), until=until.no_tool_calls()), "Go.")
    assert (result.status, result.reason) == ("aborted", "by a tool")
    assert (len(model.requests), len(outer.requests)) == (1, 1)


@pytest.mark.clause("001-12d")
async def test_001_12_the_whole_run_may_end_with_a_value_as_well() -> None:
    @step
    async def found(_: object, ctx: Ctx) -> str:
        ctx.root.complete("found it")
        return "nobody's"

    @step
    async def looks(_: object, ctx: Ctx) -> str:
        await anyio.sleep_forever()
        return "never"

    async with Harness(plugins=[]) as harness:
        with anyio.fail_after(20):
            result = await harness.run(parallel([spawn(spawn(found)), looks]), None)
    assert result.status == "completed"
    # Its type is the flow's, of which nobody asked.
    value: object = result.value
    assert value == "found it"


# ---------------------------------------------------------------------------------------------------- 001-13 and 001-38


@tool(long_running=True)
async def order(port: str) -> str:
    """Order a chart; it takes days."""
    return "ordered"


@tool
async def search(query: str) -> str:
    """Search at once."""
    return f"found {query}"


def clerk(*turns: Any) -> Step[Any, Any]:
    return loop(call_model(ScriptedModel(*turns), tools=[order, search]), until=until.no_tool_calls())


def call(name: str, **arguments: str) -> FunctionCall:
    return FunctionCall(name=name, arguments=arguments)


def outputs(items: Any) -> list[object]:
    return [item.output for item in items if isinstance(item, FunctionCallOutput)]


@pytest.mark.clause("001-13a")
async def test_001_13_long_running_calls_suspend_the_run_until_their_results_are_given() -> None:
    backend = InMemoryBackend()
    asked = [call("order", port="Brest"), call("search", query="tides"), call("order", port="Hull")]
    async with Harness(plugins=[], checkpoints=backend) as harness:
        result = await harness.run(clerk(asked), "Charts, please.", run_id="r")
    assert result.status == "suspended"
    assert [(each.kind, each.tool, dict(each.arguments)) for each in result.pending] == [
        ("result", "order", {"port": "Brest"}), ("result", "order", {"port": "Hull"})
    ]  # fmt: skip
    # The ids of the calls are known, and the quick one has its output.
    ids = [item.call_id for item in result.items if isinstance(item, FunctionCall) and item.name == "order"]
    assert [each.call_id for each in result.pending] == ids
    assert outputs(result.items)[0] == "found tides"
    # Another process gives them, one after the other, and the last first.
    first, last = result.pending
    async with Harness(plugins=[], checkpoints=backend) as harness:
        waits = await harness.resume("r", clerk(asked), answers=[last.answer("Hull, 12 pages")])
        assert (waits.status, [each.call_id for each in waits.pending]) == ("suspended", ids[:1])
        assert [each.call_id for each in (await harness.runs.get("r")).pending] == ids[:1]
    async with Harness(plugins=[], checkpoints=backend) as harness:
        done = await harness.resume("r", clerk("Here they are."), answers=[first.answer({"pages": 9})])
    assert (done.status, done.value) == ("completed", "Here they are.")
    assert outputs(done.items) == [json.dumps({"pages": 9}), "found tides", "Hull, 12 pages"]


@pytest.mark.clause("001-13b")
async def test_001_13_a_run_that_nobody_keeps_cannot_wait() -> None:
    async with Harness(plugins=[]) as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.run(clerk(call("order", port="Brest")), "A chart.")
    assert caught.value.code == "no-backend"


@pytest.mark.clause("001-38a")
async def test_001_38_only_a_call_of_such_a_tool_pauses_the_run() -> None:
    for turns, wanted in (
        (("Nothing to do.",), "completed"),
        ((call("search", query="x"), "Found."), "completed"),
        ((call("order", port="Brest"),), "suspended"),
        (([call("search", query="x"), call("order", port="Brest")],), "suspended"),
    ):
        async with Harness(plugins=[], checkpoints=InMemoryBackend()) as harness:
            result = await harness.run(clerk(*turns), "Go.")
        assert result.status == wanted
        assert bool(result.pending) is (wanted == "suspended")


@pytest.mark.clause("001-38b")
async def test_001_38_it_pauses_after_the_call_was_told_and_stored() -> None:
    backend = InMemoryBackend()
    flow = clerk(call("order", port="Brest"))
    async with Harness(plugins=[], checkpoints=backend) as harness, harness.stream(flow, "Go.") as stream:
        told: list[object] = []
        async for event in stream.events:
            if isinstance(event, RequestMade):
                # It is stored by the time that it is told.
                told.append(event.request.call_id)
                kinds = [record.kind for record in await backend.read(stream.run_id)]
                assert "Pending" in kinds
        result = await stream.result()
    (item,) = [item for item in result.items if isinstance(item, FunctionCall)]
    assert (result.status, told) == ("suspended", [item.call_id])
    # What a model would see meanwhile is whole: the call has an output that says what it waits for.
    (output,) = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert output.status == "incomplete"
    assert "waits" in output.text


# --------------------------------------------------------------------------------------------------------------- 001-39


@define
class Trip:
    port: str
    days: int = 1

    def longer(self) -> None:
        self.days += 1


def cannot_write(ctx: ReadContext[Any, Any]) -> None:
    """Everything that a context can be read for is there, and nothing to change the run with."""
    asked: Any = ctx
    assert (ctx.run_id, ctx.name, ctx.path, ctx.branch) == (asked.run_id, ctx.path[-1], asked.path, "Root")
    assert (ctx.session, ctx.user_id) == (KEY, "ada")
    for name in ("abort", "complete", "stop_loop", "emit", "send", "recv", "child", "checkpoint", "gather", "ask"):
        assert not hasattr(asked, name), name
    for name in ("state", "items", "memory", "services", "run_id"):
        with pytest.raises(AttributeError):
            setattr(asked, name, None)
    assert not hasattr(ctx.items, "append")
    if isinstance(ctx.state, Trip):
        with pytest.raises(TypeError):
            ctx.state.days = 9
        with pytest.raises(TypeError):
            ctx.state.longer()
    else:
        with pytest.raises(TypeError):
            ctx.state["days"] = 9
        with pytest.raises(TypeError):
            ctx.state.put("port", None)


class Recalling(MemoryLayer[None]):
    """A layer that looks at the run."""

    asked: list[str]

    async def recall(self, query: str, budget: int) -> str | None:
        cannot_write(self.ctx)
        self.asked.append("recall")
        return None


class Mem(Memory):
    looks: Recalling


@pytest.mark.clause("001-39a")
@pytest.mark.parametrize("state", [None, Trip("Brest")], ids=["a bag", "a class"])
async def test_001_39_instructions_routes_approvals_and_recall_cannot_write(state: Trip | None) -> None:
    asked: list[str] = []

    def instructions(ctx: ReadContext[Any, Any]) -> str:
        cannot_write(ctx)
        asked.append("instructions")
        return f"Help with {ctx.state.port if state else ctx.state['port']}."

    def route(text: object, ctx: ReadContext[Any, Any]) -> str:
        cannot_write(ctx)
        asked.append("route")
        return "only"

    def approval(call: FunctionCall, ctx: ReadContext[Any, Any]) -> bool:
        # Asked for a call, which has a branch of its own.
        with pytest.raises((TypeError, AttributeError)):
            ctx.state.days = 9
        asked.append("approval")
        return False

    @step
    async def begin(text: str, ctx: Context[Any, Any]) -> str:
        if state is None:
            ctx.state["port"] = "Brest"
        return text

    careful = search.with_options(needs_approval=approval)
    model = ScriptedModel(call("search", query="x"), "Done.")
    agent = loop(call_model(model, instructions=instructions, tools=[careful]), until=until.no_tool_calls())
    flow = sequence(begin, branch(route, {"only": agent}), id="Root")
    harness: Harness[Any] = Harness(plugins=[], memory=Mem(looks=Recalling(asked=asked)), checkpoints=InMemoryBackend())
    options: Any = {} if state is None else {"state": state}
    async with harness:
        result = await harness.run(flow, "Go.", session=KEY, **options)
    assert result.status == "completed"
    assert set(asked) == {"instructions", "route", "approval", "recall"}
    assert model.requests[0].instructions == "Help with Brest."
    assert result.state == (StateBag({"port": "Brest"}) if state is None else Trip("Brest"))


@pytest.mark.clause("001-39b")
async def test_001_39_what_they_read_is_live() -> None:
    seen: list[object] = []

    @step
    async def look(_: object, ctx: Ctx) -> None:
        view = ctx.read_only()
        shown = view.state
        ctx.state["n"] = 1
        ctx.items.append(Message.user("x"))
        seen.extend((shown["n"], view.state["n"], len(view.items)))
        # What a value holds is shown as it is.
        ctx.state["list"] = []
        view.state["list"].append(1)
        seen.append(ctx.state["list"])

    async with Harness(plugins=[]) as harness:
        await harness.run(look, None)
    assert seen == [1, 1, 1, [1]]
