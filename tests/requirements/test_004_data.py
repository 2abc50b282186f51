"""Which groups of tools a session holds, a session as data, and what has to be seen by other machines."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from attrs import define, evolve

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Message,
    SessionKey,
    SessionPolicy,
    StateBag,
    call_model,
    errors,
    loop,
    step,
    tool,
    until,
)
from noetic_py.memory import ToolGroup, ToolGroups, function
from noetic_py.sessions.export import SessionData
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

KEY = SessionKey("ada", "trip")


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
        groups=[ToolGroup("files", [read], "Read files.", by_model=True), ToolGroup("mail", [send])]
    )


@step
async def switch(names: str, ctx: Context[Mem, StateBag]) -> list[str]:
    for name in names.split():
        layer = ctx.memory.groups
        await (layer.activate if name[0] == "+" else layer.deactivate)(name[1:])
    return list(ctx.memory.groups.active)


def agent(*turns: Any) -> tuple[ScriptedModel, Any]:
    model = ScriptedModel(*turns)
    return model, loop(call_model(model), until=until.no_tool_calls())


def names(model: ScriptedModel, request: int = -1) -> set[str]:
    return {str(each["name"]) for each in model.requests[request].tools}


def harness(backend: InMemoryBackend | None = None) -> Any:
    return Harness(plugins=(), checkpoints=backend, memory=Mem())


@pytest.mark.clause("004-17a")
async def test_004_17_a_session_holds_which_groups_of_tools_are_active() -> None:
    backend = InMemoryBackend()
    # Each turn in a process of its own.
    async with harness(backend) as h:
        assert (await h.session("ada", "trip").run(switch, "+mail")).value == ["mail"]
    async with harness(backend) as h:
        assert (await h.session("ada", "trip").run(switch, "+files -mail")).value == ["files"]
    async with harness(backend) as h:
        assert (await h.session("ada", "trip").run(switch, "")).value == ["files"]
        # Another session, and another user's of the same name, hold their own.
        assert (await h.session("ada", "other").run(switch, "")).value == []
        assert (await h.session("bob", "trip").run(switch, "")).value == []


@pytest.mark.clause("004-17b")
async def test_004_17_only_the_tools_of_active_groups_are_offered() -> None:
    model, flow = agent("one", "two")
    async with harness() as h:
        session = h.session("ada", "trip")
        await session.run(flow, "go")
        await session.run(switch, "+mail")
        await session.run(flow, "go")
    assert not names(model, 0) & {"read", "send"}
    assert names(model, 1) & {"read", "send"} == {"send"}


@pytest.mark.clause("004-17c")
async def test_004_17_a_call_of_another_is_refused_as_of_an_unknown_tool_with_the_reason() -> None:
    _, flow = agent(FunctionCall(name="send", arguments={"to": "bob"}), "done")
    async with harness() as h:
        result = await h.run(flow, "go")
    (output,) = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert "there is no tool 'send'" in str(output.output)
    assert "belongs to the tool group 'mail', which is not active" in str(output.output)


@pytest.mark.clause("004-17d")
async def test_004_17_the_model_switches_a_group_only_where_the_settings_let_it() -> None:
    def wants(group: str) -> Any:
        def turn(request: Any) -> FunctionCall:
            (name,) = [str(each["name"]) for each in request.tools if "switch" in str(each["name"])]
            return FunctionCall(name=name, arguments={"group": group, "active": True})

        return turn

    model, flow = agent(wants("mail"), wants("files"), "done")
    async with harness() as h:
        await h.run(flow, "go")
    # From the next request on, and not the other group.
    assert [names(model, at) & {"read", "send"} for at in range(3)] == [set(), set(), {"read"}]


async def test_004_17_an_unknown_group_is_a_named_error() -> None:
    with pytest.raises(errors.ToolArgumentsInvalid, match="'fles'"):
        await Mem().groups.activate("fles")


@define
class Trip:
    place: str = ""


class Notes(MemoryLayer[list[str]]):
    @function
    async def note(self, text: str) -> None:
        """Take a note."""
        self.state = [*self.state, text]


class Noting(Memory):
    notes: Notes = Notes()


@step
async def go(place: str, ctx: Context[Noting, Trip]) -> list[str]:
    before = [ctx.state.place, *ctx.memory.notes.state]
    ctx.state.place = place
    ctx.items.append(Message.user(place))
    await ctx.memory.notes.note(place)
    return before


async def dumped() -> SessionData:
    async with Harness(plugins=(), memory=Noting()) as h:
        await h.session("ada", "trip").run(go, "Brest", state=Trip())
        return await h.session("ada", "trip").dump()


@pytest.mark.clause("004-19a")
async def test_004_19_a_session_s_state_is_written_as_data_with_a_version_and_read_back() -> None:
    data = await dumped()
    text = data.to_json()
    tree = json.loads(text)
    assert tree["schema_version"] == 1
    assert (tree["user"], tree["session"], tree["turns"], tree["status"]) == ("ada", "trip", 1, "completed")
    assert all(name == name.lower() for name in tree)
    # The order of its fields is always the same, and people can read it.
    assert next(iter(tree)) == "schema_version"
    assert text == (await dumped_again(text)).to_json()
    assert "\n" in text
    assert SessionData.from_json(text) == data


async def dumped_again(text: str) -> SessionData:
    async with Harness(plugins=(), memory=Noting()) as h:
        key = await h.sessions.load(text)
        return await h.session(key.user, key.session).dump()


@pytest.mark.clause("004-19d")
async def test_004_19_with_items_state_and_layers_a_conversation_goes_on_from_it() -> None:
    data = await dumped()
    async with Harness(plugins=(), memory=Noting(), checkpoints=InMemoryBackend()) as h:
        await h.sessions.load(data.to_json())
        session = h.session("ada", "trip")
        assert await session.state(Trip) == Trip("Brest")
        result = await session.run(go, "Cork", state=Trip())
        assert result.value == ["Brest", "Brest"]
        assert [item.text for item in await session.items() if isinstance(item, Message)] == ["Brest", "Cork"]


@pytest.mark.clause("004-19b")
async def test_004_19_missing_fields_have_defaults() -> None:
    assert SessionData.from_json("{}") == SessionData()
    async with Harness(plugins=(), memory=Noting()) as h:
        await h.sessions.load('{"user": "ada", "session": "trip"}')
        assert await h.session("ada", "trip").items() == ()
        assert (await h.session("ada", "trip").run(go, "Cork", state=Trip())).value == [""]


@pytest.mark.clause("004-19c")
async def test_004_19_newer_versions_and_unknown_fields_are_refused_by_name() -> None:
    with pytest.raises(errors.SessionLoadError, match="schema_version 99"):
        SessionData.from_json('{"schema_version": 99, "later": 1}')
    with pytest.raises(errors.CodecError, match="'later'"):
        SessionData.from_json('{"later": 1}')


async def test_004_19_what_goes_on_is_neither_written_nor_compared() -> None:
    data = await dumped()
    busy = evolve(data, open_run="r")
    assert busy == data
    assert busy.to_json() == data.to_json()


@pytest.mark.clause("004-19e")
async def test_004_19_forged_items_are_refused() -> None:
    forged = SessionData(key=KEY, items=[FunctionCall(name="send", arguments="{}")])
    async with Harness(plugins=()) as h:
        with pytest.raises(errors.ForgedEvent):
            await h.sessions.load(forged)


@pytest.mark.clause("004-19e")
async def test_004_19_another_session_and_one_that_is_there_are_written_only_when_asked() -> None:
    data = await dumped()
    async with Harness(plugins=(), memory=Noting()) as h:
        await h.sessions.load(data)
        with pytest.raises(errors.SessionConflict):
            await h.sessions.load(data)
        await h.sessions.load(data, replace=True)
        other = SessionKey("bob", "trip")
        assert await h.sessions.load(data, into=other) == other
        assert await h.sessions.list("bob") == [other]


class RemoteDisk(MemoryLayer[list[str]]):
    distributed: ClassVar[bool] = True

    @function
    async def look(self) -> list[str]:
        """Look at the disk."""
        return self.state


class Remote(Memory):
    disk: RemoteDisk = RemoteDisk()


class OnServer(InMemoryBackend):
    """Says of itself what a backend on a server says."""

    @property
    def shared(self) -> bool:
        return True


@pytest.mark.clause("004-29a")
@pytest.mark.parametrize("part", [{"memory": Remote()}, {"sessions": SessionPolicy(shared=True)}])
@pytest.mark.parametrize("local", [None, "memory:", "sqlite:runs.db", "files:runs"])
async def test_004_29_a_distributed_part_with_a_local_store_is_refused_when_the_harness_is_built(
    part: dict[str, Any], local: str | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.ConfigError) as error:
        Harness(plugins=(), checkpoints=local, **part)
    assert error.value.code == "not-shared"
    assert "backend" in str(error.value.hint)
    # Nothing was made of the store.
    assert not list(tmp_path.iterdir())


@pytest.mark.clause("004-29b")
@pytest.mark.parametrize("part", [{"memory": Remote()}, {"sessions": SessionPolicy(shared=True)}])
async def test_004_29_and_with_a_store_that_other_machines_see_it_is_not(part: dict[str, Any]) -> None:
    assert (OnServer().shared, InMemoryBackend().shared) == (True, False)
    async with Harness(plugins=(), checkpoints=OnServer(), **part) as h:
        assert (await h.session("ada", "trip").run(say, "hi")).value == "hi"


@step
async def say(text: str) -> str:
    return text
