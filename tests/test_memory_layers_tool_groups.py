"""`ToolGroups`: which tools are offered, who switches them, and what is remembered of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    RunResult,
    StateBag,
    Tool,
    call_model,
    errors,
    loop,
    parallel,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.memory import MemoryLayer, PermissionRule, Permissions, ToolGroup, ToolGroups, function
from noetic_py.models.model import ModelRequest
from noetic_py.testing import LayerContract, ScriptedModel

pytestmark = pytest.mark.anyio


@tool
async def read(path: str) -> str:
    """Read a file."""
    return f"read {path}"


@tool
async def send(to: str) -> str:
    """Send mail."""
    return f"sent to {to}"


class Mem(Memory):
    groups: ToolGroups = ToolGroups(
        groups=[
            ToolGroup("files", [read], "Read files.", by_model=True),
            ToolGroup("mail", [send]),
        ]
    )


@step
async def switch(names: str, ctx: Context[Mem, StateBag]) -> None:
    """Switches groups: `+mail -files`."""
    for name in names.split():
        layer = ctx.memory.groups
        await (layer.activate if name[0] == "+" else layer.deactivate)(name[1:])


def agent(*turns: Any, tools: Sequence[Any] = ()) -> tuple[ScriptedModel, Any]:
    model = ScriptedModel(*turns)
    return model, loop(call_model(model, tools=tools), until=until.no_tool_calls())


def harness(backend: CheckpointBackend | None = None, memory: Memory | None = None, **options: Any) -> Any:
    return Harness(plugins=(), checkpoints=backend, memory=memory or Mem(), **options)


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[str(each["name"]) for each in request.tools] for request in model.requests]


def told(result: RunResult[Any, Any]) -> list[str]:
    return [str(item.output) for item in result.items if isinstance(item, FunctionCallOutput)]


def calls(name: str, **arguments: Any) -> FunctionCall:
    return FunctionCall(name=name, arguments=arguments)


class Plain(Memory):
    groups: ToolGroups = ToolGroups(groups=[ToolGroup("files", [read], active=True), ToolGroup("mail", [send])])


class TestContract(LayerContract[ToolGroups]):
    def make(self) -> ToolGroups:
        return ToolGroups(groups=[ToolGroup("files", [read], "Read </memory> files.", by_model=True)])

    async def use(self, layer: ToolGroups, text: str) -> None:
        await layer.switch("files", len(text) % 2 == 0)


async def test_only_the_tools_of_active_groups_are_offered() -> None:
    model, flow = agent("done", "done")
    async with harness(memory=Plain()) as h:
        await h.run(flow, "go")
        await h.run(switch >> flow, "+mail -files")
    # Nothing is there for the model to switch, so it has no function for that either.
    assert offered(model) == [["read"], ["send"]]


async def test_a_call_of_a_tool_that_is_withheld_is_refused_with_the_reason() -> None:
    _, flow = agent(calls("send", to="ada"), "done")
    async with harness() as h:
        result = await h.run(flow, "go")
    (answer,) = told(result)
    assert answer.startswith("there is no tool 'send': it belongs to the tool group 'mail', which is not active")


async def test_a_call_of_no_tool_is_refused_as_before() -> None:
    _, flow = agent(calls("sing"), "done")
    async with harness() as h:
        assert told(await h.run(flow, "go"))[0].startswith("there is no tool 'sing'\n")


async def test_the_model_switches_what_it_may_and_has_it_from_the_next_request_on() -> None:
    model = ScriptedModel("first")
    async with harness() as h:
        await h.run(loop(call_model(model), until=until.no_tool_calls()), "go")
    (name,) = offered(model)[0]
    on, off = (calls(name, group="files", active=active) for active in (True, False))
    # The call beside the switch belongs to the same answer, for which the group was not active.
    model, flow = agent([on, calls("read", path="x")], calls("read", path="y"), [off], "done")
    async with harness() as h:
        result = await h.run(flow, "go")
    assert offered(model) == [[name], [name, "read"], [name, "read"], [name]]
    answers = told(result)
    assert answers[0] == "The group 'files' is on."
    assert "'files', which is not active" in answers[1]
    assert answers[2:] == ["read y", "The group 'files' is off."]


async def test_the_model_cannot_switch_what_it_may_not() -> None:
    def wants(request: ModelRequest) -> FunctionCall:
        return calls(str(request.tools[0]["name"]), group="mail", active=True)

    model, flow = agent(wants, "done")
    async with harness() as h:
        result = await h.run(flow, "go")
    assert told(result) == ["there is no tool group 'mail'\nthe groups are files"]
    assert len(offered(model)[1]) == 1
    assert "mail" not in str(model.requests[0].items)


async def test_the_model_reads_what_it_may_switch() -> None:
    model, flow = agent("done", "done")
    async with harness() as h:
        result = await h.run(flow, "go")
        view = h.explain_view(result.run_id)
        assert "- files (off) Read files." in str(model.requests[0].items)
        assert "groups" in view.explain()
        await h.run(switch >> flow, "+files")
    assert "- files (on) Read files." in str(model.requests[1].items)


async def test_what_moved_the_cache_is_told() -> None:
    model = ScriptedModel("one", "two")
    seen: list[Any] = []
    async with harness(memory=Plain()) as h:

        @step
        async def flow(x: str, ctx: Context[Plain, StateBag]) -> None:
            await ask(x, ctx)
            seen.append(h.explain_view(ctx.run_id).moved)
            await ctx.memory.groups.activate("mail")
            await ask(x, ctx)
            seen.append(h.explain_view(ctx.run_id).moved)

        ask = call_model(model)
        await h.run(flow, "go")
    assert seen[1] == "tools" != seen[0]


async def test_decisions_stay_with_the_session() -> None:
    backend = InMemoryBackend()
    model, flow = agent(*["done"] * 3)
    async with harness(backend) as h:
        await h.session("ada", "trip").run(switch, "+mail")
    async with harness(backend) as h:
        await h.session("ada", "trip").run(flow, "go")
        await h.session("ada", "other").run(flow, "go")
        await h.session("bob", "trip").run(flow, "go")
    assert ["send" in names for names in offered(model)] == [True, False, False]


async def test_a_group_that_is_new_is_as_it_says_and_one_that_is_gone_means_nothing() -> None:
    backend = InMemoryBackend()

    class New(Memory):
        groups: ToolGroups = ToolGroups(groups=[ToolGroup("files", [read]), ToolGroup("net", [send], active=True)])

    model, flow = agent("done", "done")
    async with harness(backend) as h:
        await h.session("ada", "trip").run(switch, "+mail +files")
    async with harness(backend, New()) as h:
        await h.session("ada", "trip").run(flow, "go")
    # What was decided of it is there when it comes back.
    async with harness(backend) as h:
        await h.session("ada", "trip").run(flow, "go")
    assert offered(model)[0] == ["read", "send"]
    assert offered(model)[1][-2:] == ["read", "send"]


async def test_a_state_of_an_older_version_is_migrated() -> None:
    backend = InMemoryBackend()

    class Renamed(ToolGroups):
        schema_version = 2

        def migrate(self, state: Any, version: int) -> Any:
            return {"post" if name == "mail" else name: active for name, active in state.items()}

    class New(Memory):
        groups: Renamed = Renamed(groups=[ToolGroup("post", [send])])

    model, flow = agent("done")
    async with harness(backend) as h:
        await h.session("ada", "trip").run(switch, "+mail")
    async with harness(backend, New()) as h:
        await h.session("ada", "trip").run(flow, "go")
    assert offered(model) == [["send"]]


async def test_a_run_that_goes_on_offers_what_it_had_offered() -> None:
    """Whatever another run of the thread has decided meanwhile."""
    backend = InMemoryBackend()

    @tool(needs_approval=True)
    async def post(to: str) -> str:
        """Post."""
        return f"posted to {to}"

    class Posting(Memory):
        groups: ToolGroups = ToolGroups(groups=[ToolGroup("mail", [post], active=True)])

    model, flow = agent(calls("post", to="ada"), "done")
    options = {"thread_id": "t"}
    async with harness(backend, Posting()) as h:
        first = await h.run(flow, "go", run_id="r", **options)
        assert first.status == "suspended"
        await h.run(switch, "-mail", **options)
    async with harness(backend, Posting()) as h:
        result = await h.resume("r", flow, answers=[first.pending[0].approve()])
    assert (result.value, told(result)) == ("done", ["posted to ada"])
    assert offered(model) == [["post"], ["post"]]
    # And a new one what was decided last.
    model, flow = agent("done")
    async with harness(backend, Posting()) as h:
        await h.run(flow, "go", **options)
    assert offered(model) == [[]]


async def test_rules_hold_for_tools_of_groups() -> None:
    class Ruled(Memory):
        groups: ToolGroups = ToolGroups(groups=[ToolGroup("all", [read, send], active=True)])
        permissions: Permissions = Permissions(rules=[PermissionRule("deny", "send")], otherwise="allow")

    _, flow = agent([calls("read", path="x"), calls("send", to="ada")], "done")
    async with harness(memory=Ruled()) as h:
        result = await h.run(flow, "go")
    assert told(result) == ["read x", "The call was refused: a rule for 'send' says so."]


async def test_what_a_step_has_itself_is_offered_whatever_its_group_is() -> None:
    model, flow = agent("done", tools=[send])
    async with harness() as h:
        await h.run(flow, "go")
    assert "send" in offered(model)[0]


async def test_a_source_is_asked_only_while_its_group_is_active() -> None:
    class Server:
        asked = 0

        async def tools(self) -> Sequence[Tool[..., object]]:
            self.asked += 1
            return [read]

    server = Server()

    class Served(Memory):
        groups: ToolGroups = ToolGroups(groups=[ToolGroup("net", [server])])

    model, flow = agent("done", "done")
    async with harness(memory=Served()) as h:
        await h.run(flow, "go")
        assert server.asked == 0
        await h.run(switch >> flow, "+net")
    assert (server.asked, offered(model)) == (1, [[], ["read"]])


async def test_a_child_begins_with_the_groups_of_its_parent_and_keeps_its_own() -> None:
    @step
    async def child(x: str, ctx: Context[Mem, StateBag]) -> list[str]:
        begun = list(ctx.memory.groups.active)
        await ctx.memory.groups.activate("files")
        return begun

    @step
    async def parent(x: str, ctx: Context[Mem, StateBag]) -> tuple[list[str], list[str]]:
        await ctx.memory.groups.activate("mail")
        return await spawn(child)(x, ctx), list(ctx.memory.groups.active)

    async with harness() as h:
        assert (await h.run(parent, "x")).value == (["mail"], ["mail"])


async def test_paths_of_one_section_decide_apart() -> None:
    @step
    async def there(x: Any, ctx: Context[Mem, StateBag]) -> list[str]:
        return list(ctx.memory.groups.active)

    flow: Any = parallel(switch, there) >> there
    async with harness() as h:
        assert (await h.run(flow, "+mail")).value == []


async def test_an_unknown_group_is_named() -> None:
    layer = Mem().groups
    for deed in (layer.activate, layer.deactivate):
        with pytest.raises(errors.ToolArgumentsInvalid, match="no tool group 'fles'") as error:
            await deed("fles")
        assert error.value.hint == "the groups are files, mail"
    with pytest.raises(errors.ToolArgumentsInvalid, match="'fles'"):
        layer.is_active("fles")
    await layer.activate("files")
    assert (layer.active, layer.is_active("files"), layer.is_active("mail")) == (("files",), True, False)
    await layer.reset()
    assert layer.active == ()


def test_what_are_no_groups_is_refused() -> None:
    other = send.with_options(name="read")
    bad: list[Any] = [
        lambda: ToolGroup("", [read]),
        lambda: ToolGroup("a\nb", [read]),
        lambda: ToolGroup("a", ["read"]),  # type: ignore[list-item] # what it refuses
        lambda: ToolGroups(groups=[ToolGroup("a", [read]), ToolGroup("a", [send])]),
        lambda: ToolGroups(groups=[ToolGroup("a", [read]), ToolGroup("b", [other])]),
        lambda: ToolGroups(groups=["a"]),  # type: ignore[list-item] # what it refuses
    ]
    for make in bad:
        with pytest.raises(errors.ConfigError) as error:
            make()
        assert error.value.code == "tool-groups"
    # One tool may be in two groups.
    ToolGroups(groups=[ToolGroup("a", [read]), ToolGroup("b", [read])])


class Shelf(MemoryLayer[list[str]]):
    """A layer of another package: it offers what was unlocked, and its functions only where a setting says so."""

    open: bool = False

    @property
    def by_model(self) -> bool:
        return self.open

    def available_tools(self) -> Sequence[Tool[..., Any, Any, Any]]:
        return [each for each in (read, send) if each.name in self.state]

    def unavailable_tools(self) -> dict[str, str]:
        return {each.wire_name: "it is locked" for each in (read, send) if each.name not in self.state}

    @function
    async def unlock(self, which: str) -> str:
        """Unlock a tool."""
        self.state = [*self.state, which]
        return "unlocked"


async def test_any_layer_has_a_say_in_which_tools_are_offered() -> None:
    class Open(Memory):
        shelf: Shelf = Shelf(open=True)

    backend = InMemoryBackend()
    model, flow = agent(calls("send", to="ada"), calls("shelf__unlock", which="send"), calls("send", to="ada"), "done")
    async with harness(backend, Open()) as h:
        result = await h.run(flow, "go")
    assert offered(model) == [
        ["shelf__unlock"],
        ["shelf__unlock"],
        ["shelf__unlock", "send"],
        ["shelf__unlock", "send"],
    ]
    said = told(result)
    assert said[0].startswith("there is no tool 'send': it is locked")
    assert said[2] == "sent to ada"


async def test_a_layer_that_keeps_its_functions_from_the_model() -> None:
    class Closed(Memory):
        shelf: Shelf = Shelf()

    model, flow = agent(calls("shelf__unlock", which="send"), "done")
    async with harness(memory=Closed()) as h:
        result = await h.run(flow, "go")
    assert offered(model) == [[], []]
    assert told(result)[0].startswith("there is no tool 'shelf__unlock'")
