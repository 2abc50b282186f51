"""A session as data: what is in it, what comes back of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define, evolve, field

from noetic_py import (
    Ask,
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
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.core.codec import Codec
from noetic_py.core.items import InputText
from noetic_py.journal.session_stream import StoredConversation, ended
from noetic_py.memory import Scope, ToolGroup, ToolGroups, WorkingMemory, function
from noetic_py.sessions.export import LayerData, SessionData, StateData
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

KEY, OTHER = SessionKey("ada", "trip"), SessionKey("bob", "trip", app="web")


@define
class Trip:
    places: list[str] = field(factory=list[str])


class Shelf(MemoryLayer[list[str]]):
    @function(model=False)
    async def put(self, text: str) -> None:
        self.state = [*self.state, text]
        await self.storage.put(text, {"text": text})


class Mem(Memory):
    notes: WorkingMemory = WorkingMemory()
    shelf: Shelf = Shelf()
    person: WorkingMemory = WorkingMemory(scope=Scope.USER)


@step
async def visit(place: str, ctx: Context[Mem, Trip]) -> list[str]:
    """Goes to a place, and tells where it was before."""
    before = [*ctx.state.places, *ctx.memory.notes.snapshot, *ctx.memory.shelf.state]
    ctx.items.append(Message.user(place))
    ctx.state.places.append(place)
    await ctx.memory.notes.update({place: "seen"})
    await ctx.memory.shelf.put(place)
    await ctx.memory.person.update({place: "seen"})
    before += [key for key, _ in await ctx.memory.shelf.storage.scan()]
    return before


def harness(backend: CheckpointBackend | None = None, memory: Memory | None = None, **options: Any) -> Any:
    return Harness(plugins=(), checkpoints=backend, memory=memory or Mem(), **options)


async def visited(backend: CheckpointBackend | None = None, *places: str) -> SessionData:
    async with harness(backend) as h:
        for place in places or ("Brest", "Cork"):
            await h.session("ada", "trip").run(visit, place, state=Trip())
        data: SessionData = await h.session("ada", "trip").dump()
        return data


async def test_what_is_in_it() -> None:
    data = await visited()
    assert (data.key, data.turns, data.status, data.open_run) == (KEY, 2, "completed", None)
    assert [item.text for item in data.items if isinstance(item, Message)] == ["Brest", "Cork"]
    assert data.states == {"Trip": StateData({"$": "object:Trip", "places": ["Brest", "Cork"]})}
    assert data.layers == {
        "notes": LayerData(StateData({"Brest": "seen", "Cork": "seen"})),
        "shelf": LayerData(
            StateData(["Brest", "Cork"]), {"Brest": {"text": "Brest"}, "Cork": {"text": "Cork"}}
        ),
    }  # fmt: skip


@pytest.mark.parametrize("durable", [True, False])
async def test_a_session_goes_on_from_it_elsewhere(durable: bool, tmp_path: Any) -> None:
    text = (await visited(InMemoryBackend() if durable else None)).to_json()
    async with SqliteBackend(tmp_path / "runs.db") as backend, harness(backend if durable else None) as h:
        assert await h.sessions.load(text) == KEY
        session = h.session("ada", "trip")
        again = await session.dump()
        assert (again, again.to_json()) == (SessionData.from_json(text), text)
        assert await session.state(Trip) == Trip(["Brest", "Cork"])
        result = await session.run(visit, "Dover", state=Trip())
        assert result.value == ["Brest", "Cork"] * 4 + ["Dover"]
        assert (await session.dump()).turns == 3
        assert await h.sessions.list("ada") == [KEY]


@step(id="visit")
async def look_back(run_id: str, ctx: Context) -> list[str]:
    """Tells what a run has said, on the branch of this flow."""
    return [each.text for each in ctx.items.view(Message, run_id=run_id, branch=ctx.branch)]


async def test_its_items_keep_their_run_and_branch(tmp_path: Path) -> None:
    async with harness() as h:
        session = h.session("ada", "trip")
        runs = [(await session.run(visit, place, state=Trip())).run_id for place in ("Brest", "Cork")]
        data = await session.dump()
    assert [data.origins[item.id] for item in data.items] == [(run, "visit") for run in runs]
    text = data.to_json()
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        async with harness(backend) as h:
            await h.sessions.load(text)
        # And so they are read from the store.
        async with harness(backend) as h:
            session = h.session("ada", "trip")
            assert [(await session.run(look_back, run)).value for run in runs] == [["Brest"], ["Cork"]]
            assert (await session.dump()).origins == data.origins
    # Fewer items, or a document of an earlier version, say less.
    fewer = evolve(data, items=data.items[1:])
    unknown = SessionData.from_json(json.dumps({k: v for k, v in json.loads(text).items() if k != "origins"}))
    nothing: list[str] = []
    for given, found in ((fewer, [nothing, ["Cork"]]), (unknown, [nothing, nothing])):
        async with harness() as h:
            await h.sessions.load(given)
            session = h.session("ada", "trip")
            assert [(await session.run(look_back, run)).value for run in runs] == found


async def test_it_goes_into_another_session_only_when_asked() -> None:
    backend = InMemoryBackend()
    data = await visited(backend)
    async with harness(backend) as h:
        with pytest.raises(errors.SessionConflict, match="there is a session 'trip' already"):
            await h.sessions.load(data)
        assert await h.sessions.load(data, into=OTHER) == OTHER
        made = await h.session("bob", "trip", app="web").dump()
        assert made == evolve(data, key=OTHER)
        assert await h.session("ada", "trip").dump() == data
        with pytest.raises(errors.ConfigError) as error:
            await h.sessions.load(SessionData())
        assert error.value.code == "session-key"


async def test_a_session_is_replaced_only_when_asked_and_then_all_of_it() -> None:
    backend = InMemoryBackend()
    data = await visited(backend, "Brest")
    async with harness(backend) as h:
        session = h.session("ada", "trip")
        await session.run(visit, "Cork", state=Trip())
        with pytest.raises(errors.SessionConflict):
            await h.sessions.load(data)
        await h.sessions.load(data, replace=True)
        assert await session.dump() == data
        await h.sessions.load(SessionData(), into=KEY, replace=True)
        assert await session.dump() == SessionData(key=KEY)
        assert (await session.run(visit, "Dover", state=Trip())).value == ["Dover"]
    # And so it is read from the store.
    async with harness(backend) as h:
        assert len(await h.session("ada", "trip").items()) == 1


async def test_what_is_missing_has_its_default() -> None:
    assert SessionData.from_json("{}") == SessionData()
    assert SessionData.from_json('{"layers": {"x": {}}, "states": {"T": {}}}') == SessionData(
        layers={"x": LayerData()}, states={"T": StateData(None)}
    )
    assert SessionData.from_json(b'{"user": "ada", "session": "trip"}').key == KEY


def test_its_text_is_the_same_for_equal_sessions() -> None:
    layers = {name: LayerData(None, {"b": 1, "a": 2}) for name in ("y", "x")}
    turned = {name: LayerData(None, {"a": 2, "b": 1}) for name in ("x", "y")}
    one = SessionData(layers=layers, states={"B": StateData(1), "A": StateData(2)}, open_run="r")
    two = SessionData(layers=turned, states={"A": StateData(2), "B": StateData(1)})
    assert one == two
    assert one.to_json() == two.to_json()
    tree = json.loads(one.to_json(indent=None))
    assert list(tree) == [
        "schema_version", "app", "user", "session", "status", "turns", "items", "origins", "states", "layers",
    ]  # fmt: skip
    assert tree["schema_version"] == SessionData.SCHEMA_VERSION == 1
    assert "\n" not in one.to_json(indent=None)
    assert one != evolve(one, turns=1)


BAD: list[tuple[str, type[Exception], str]] = [
    ('{"schema_version": 2, "new": 1}', errors.SessionLoadError, "schema_version 2, and this library knows 1"),
    ('{"schema_version": 0}', errors.CodecError, "schema_version: 0 is not a valid version"),
    ('{"schema_version": true}', errors.CodecError, "schema_version"),
    ('{"turns": -1}', errors.CodecError, "turns: -1"),
    ('{"turms": 1}', errors.CodecError, "unknown field 'turms'"),
    ('{"status": "fine"}', errors.CodecError, "status: 'fine'"),
    ('{"status": []}', errors.CodecError, "status: "),
    ('{"session": ""}', errors.InvalidId, "session"),
    ('{"session": 1}', errors.InvalidId, "session"),
    ("[]", errors.CodecError, "is not a valid document; expected a JSON object"),
    ("nothing", errors.CodecError, "not JSON"),
    ('{"items": {}}', errors.CodecError, "items: is not a valid value; expected a list"),
    ('{"items": [1]}', errors.CodecError, "items"),
    ('{"items": [{"$": "quantum"}]}', errors.CodecError, "quantum"),
    ('{"origins": []}', errors.CodecError, "origins: is not a valid document"),
    ('{"origins": {"i": ["r"]}}', errors.CodecError, r"origins\.i: is not a valid origin"),
    ('{"origins": {"i": ["r", 1]}}', errors.CodecError, r"origins\.i: is not a valid origin"),
    ('{"states": []}', errors.CodecError, "states: is not a valid document"),
    ('{"states": {"T": {"value": {"$": "quantum"}}}}', errors.CodecError, r"states\.T"),
    ('{"states": {"T": {"value": 1, "version": "x"}}}', errors.CodecError, r"states\.T\.version"),
    ('{"states": {"T": {"worth": 1}}}', errors.CodecError, "unknown field 'worth'"),
    ('{"layers": {"x": {"state": 1}}}', errors.CodecError, r"layers\.x\.state"),
    ('{"layers": {"x": {"values": {"k": {"$": "date", "v": "never"}}}}}', errors.CodecError, r"layers\.x\.values"),
    ('{"layers": {"x": {"value": {}}}}', errors.CodecError, "unknown field 'value'"),
    ("[" * 200 + "]" * 200, errors.LimitExceeded, "nesting"),
]


@pytest.mark.parametrize(("text", "error", "message"), BAD)
async def test_what_is_no_data_of_a_session_is_refused(text: str, error: type[Exception], message: str) -> None:
    backend = InMemoryBackend()
    async with harness(backend) as h:
        with pytest.raises(error, match=message):
            await h.sessions.load(text, into=KEY)
        assert not await h.sessions.exists(KEY)


async def test_what_is_no_data_at_all_is_refused() -> None:
    async with harness() as h:
        with pytest.raises(errors.CodecError, match="5 is not a valid SessionData"):
            await h.sessions.load(5, into=KEY)


CALL = FunctionCall(name="search", arguments="{}", call_id="c")
FORGED: list[tuple[list[Any], type[Exception]]] = [
    ([CALL], errors.ForgedEvent),
    ([FunctionCallOutput(call_id="c", output="x")], errors.ForgedEvent),
    ([CALL, FunctionCallOutput(call_id="c", output="x"), CALL], errors.ForgedEvent),
    (["no item"], errors.CodecError),
]


@pytest.mark.parametrize(("items", "error"), FORGED)
async def test_items_that_only_a_run_makes_are_refused(items: list[Any], error: type[Exception]) -> None:
    async with harness() as h:
        with pytest.raises(error):
            await h.sessions.load(SessionData(key=KEY, items=items))
        assert not await h.sessions.exists(KEY)
        await h.sessions.load(SessionData(key=KEY, items=[CALL, FunctionCallOutput(call_id="c", output="x")]))


class Newer(Shelf):
    schema_version = 2

    def migrate(self, state: Any, version: int) -> Any:
        return [each.upper() for each in state]


class NewMem(Memory):
    notes: WorkingMemory = WorkingMemory()
    shelf: Newer = Newer()
    person: WorkingMemory = WorkingMemory(scope=Scope.USER)


class Broken(Shelf):
    schema_version = 2

    def migrate(self, state: Any, version: int) -> Any:
        return 5


async def test_layers_migrate_check_and_are_not_invented() -> None:
    data = await visited(None, "Brest")
    async with harness(memory=NewMem()) as h:
        await h.sessions.load(data)
        made = await h.session("ada", "trip").dump()
        assert made.layers["shelf"].state == StateData(["BREST"], 2)
    async with harness() as h:
        with pytest.raises(errors.SessionLoadError, match="layer 'shelf' is of version 2, and its own is 1"):
            await h.sessions.load(made)
        wrong: list[tuple[LayerData, str]] = [
            (LayerData(StateData({"no": "list"})), "layers.shelf.state"),
            (LayerData(StateData([{"$": "object:Path"}])), "layers.shelf.state"),
        ]
        for layer, where in wrong:
            with pytest.raises(errors.CodecError, match=where):
                await h.sessions.load(evolve(data, layers={"shelf": layer}))
        for name in ("ghost", "person"):
            with pytest.raises(errors.SessionLoadError, match=f"layer '{name}'"):
                await h.sessions.load(evolve(data, layers={name: LayerData()}))
        assert not await h.sessions.exists(KEY)

    class BrokenMem(Memory):
        notes: WorkingMemory = WorkingMemory()
        shelf: Broken = Broken()

    async with harness(memory=BrokenMem()) as h:
        with pytest.raises(errors.CodecError, match=r"layers\.shelf\.state"):
            await h.sessions.load(data)


async def test_what_was_not_a_document_is_checked_too() -> None:
    async with harness() as h:
        with pytest.raises(errors.CodecError, match=r"states\.Trip: "):
            await h.sessions.load(SessionData(key=KEY, states={"Trip": StateData({"$": "object"})}))
        assert not await h.sessions.exists(KEY)


async def test_a_layer_may_keep_values_and_no_state() -> None:
    data = SessionData(key=KEY, layers={"shelf": LayerData(None, {"Brest": {"text": "x"}})})
    async with harness() as h:
        await h.sessions.load(data)
        assert await h.session("ada", "trip").dump() == data
        assert (await h.session("ada", "trip").run(visit, "Cork", state=Trip())).value == ["Brest", "Cork"]


async def test_of_several_versions_the_layer_s_own_counts() -> None:
    backend = InMemoryBackend()
    await visited(backend, "Brest")
    async with harness(backend, NewMem()) as h:
        # Nobody has migrated it yet.
        assert (await h.session("ada", "trip").dump()).layers["shelf"].state == StateData(["Brest"], 1)
        await h.session("ada", "trip").run(visit, "Cork", state=Trip())
        assert (await h.session("ada", "trip").dump()).layers["shelf"].state == StateData(["BREST", "Cork"], 2)
    async with harness(backend) as h:
        assert (await h.session("ada", "trip").dump()).layers["shelf"].state == StateData(["Brest"], 1)


async def test_a_state_of_a_newer_class_is_refused_when_it_is_asked_for() -> None:
    data = await visited(None, "Brest")
    newer = evolve(data, states={"Trip": evolve(data.states["Trip"], version=7)})
    async with harness() as h:
        await h.sessions.load(newer)
        with pytest.raises(errors.SessionLoadError, match="version 7"):
            await h.session("ada", "trip").state(Trip)


async def test_a_turn_that_goes_on_is_told_of_and_not_compared() -> None:
    @step
    async def wait(text: str, ctx: Context[Mem, StateBag]) -> str:
        await ctx.ask(Ask("Go on?", bool))
        return text

    backend = InMemoryBackend()
    data = await visited(backend, "Brest")
    async with harness(backend) as h:
        session = h.session("ada", "trip")
        result = await session.run(wait, "x")
        during = await session.dump()
        assert during.open_run == result.run_id
        assert "open_run" not in during.to_json()
        assert result.run_id not in during.to_json()
        assert evolve(during, turns=1) == data
        # It is not written over.
        with pytest.raises(errors.SessionConflict, match="a turn that is not written"):
            await h.sessions.load(data, replace=True)


async def test_open_calls_are_closed_in_it() -> None:
    @tool
    async def stop(ctx: Context[Mem, StateBag]) -> str:
        """Stop."""
        ctx.abort("enough")
        await anyio.sleep_forever()
        return ""

    flow: Any = loop(
        call_model(ScriptedModel(FunctionCall(name="stop", arguments="{}")), tools=[stop]), until=until.never()
    )
    async with harness() as h:
        await h.session("ada", "trip").run(flow, "go")
        data = await h.session("ada", "trip").dump()
        assert [item.type for item in data.items] == ["message", "function_call", "function_call_output"]
        assert data.status == "aborted"
        await h.sessions.load(data.to_json(), into=OTHER)
        assert (await h.session("bob", "trip", app="web").dump()).items == data.items


async def test_turns_that_are_not_saved_are_not_in_it_and_not_lost() -> None:
    async with harness(InMemoryBackend(), sessions=SessionPolicy(persist="manual")) as h:
        session = h.session("ada", "trip")
        await session.run(visit, "Brest", state=Trip())
        data = await session.dump()
        assert data.items == ()
        for replace in (False, True):
            with pytest.raises(errors.SessionConflict):
                await h.sessions.load(data, replace=replace)
        await session.save()
        assert len((await session.dump()).items) == 1


async def test_a_session_that_is_not_there_holds_nothing() -> None:
    async with harness() as h:
        assert await h.session("ada", "trip").dump() == SessionData(key=KEY)
        assert not await h.sessions.exists(KEY)


async def test_active_groups_of_tools_travel() -> None:
    class Grouped(Memory):
        groups: ToolGroups = ToolGroups(groups=[ToolGroup("none", [])])

    @step
    async def activate(name: str, ctx: Context[Grouped, StateBag]) -> list[str]:
        if name:
            await ctx.memory.groups.activate(name)
        return list(ctx.memory.groups.active)

    async with harness(memory=Grouped()) as h:
        await h.session("ada", "trip").run(activate, "none")
        await h.sessions.load((await h.session("ada", "trip").dump()).to_json(), into=OTHER)
        assert (await h.session("bob", "trip", app="web").run(activate, "")).value == ["none"]
        # What was kept in memory of a session that is deleted goes too.
        await h.sessions.delete(KEY)
        assert (await h.session("ada", "trip").run(activate, "")).value == []


class Restless(InMemoryBackend):
    """Somebody writes a session whenever layers are looked at."""

    writes: Callable[[], Any] | None = None

    async def scan(self, scope: tuple[str, ...], **options: Any) -> Any:
        writes, self.writes = self.writes, None
        if writes is not None:
            await writes()
            self.writes = writes
        return await super().scan(scope, **options)


async def test_a_session_that_is_written_all_the_time_is_told() -> None:
    backend = Restless()
    async with harness(backend) as h:
        session = h.session("ada", "trip")
        await session.run(visit, "Brest", state=Trip())
        times = 0

        async def edit() -> None:
            nonlocal times
            times += 1
            async with session.edit() as found:
                found.items.append(Message.user(str(times)))

        backend.writes = edit
        with pytest.raises(errors.SessionConflict, match="written all the time"):
            await session.dump()
        backend.writes = None
        assert len((await session.dump()).items) == 1 + times


def test_a_process_goes_on_with_the_items_that_it_has_written() -> None:
    """As far as nothing can change them: what it has counted of them it need not count again."""
    marks: dict[str, Any] = {"marks": [1]}
    written = [Message.user("hi"), Message(role="user", content=(InputText(text="look", extra=marks),))]
    record = ended("run", "completed", written, {}, Codec())
    here, elsewhere = StoredConversation(), StoredConversation()
    here.advance([record], Codec(), written)
    elsewhere.advance([record], Codec())
    assert here.log[0] is written[0]
    marks["marks"].append(2)
    assert [*here.log] == [*elsewhere.log] != written
    # It is what was stored that counts.
    other = StoredConversation()
    other.advance([record], Codec(), [Message.user("ho"), written[1]])
    assert [*other.log] == [*elsewhere.log]
