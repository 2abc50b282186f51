"""`WorkingMemory` and `NestedMemory`: notes by key that code and the model change together."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

from noetic_py import FunctionCallOutput, parallel, spawn
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.memory import NestedMemory, WorkingMemory
from noetic_py.memory.layers.common import changed_by
from tests.layer_runs import LayerCases, acting, agent, call, harness, reading, shown

pytestmark = pytest.mark.anyio

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@define
class Attrs:
    topic: str
    pages: int = 3


class Model(BaseModel):
    topic: str
    pages: int = 3


class Typed(TypedDict):
    topic: str
    pages: int


class Inner(BaseModel):
    name: str
    age: int = 0


class Outer(BaseModel):
    user: Inner


# -- by itself


async def test_notes_are_changed_and_taken_away() -> None:
    notes = WorkingMemory()
    await notes.update({"topic": "tides", "draft": "x"})
    await notes.update({"draft": None, "mood": "calm"})
    assert notes.snapshot == {"topic": "tides", "mood": "calm"} == notes.state
    assert await notes.recall("", 100) == "mood: calm\ntopic: tides"


async def test_a_snapshot_is_live_and_a_copy() -> None:
    notes = NestedMemory()
    await notes.update({"a": {"b": 1}})
    before: Any = notes.snapshot
    before["a"]["b"] = 2
    assert notes.snapshot == {"a": {"b": 1}}
    await notes.update({"a": {"b": 3}})
    assert notes.snapshot == {"a": {"b": 3}}


async def test_two_layers_share_nothing() -> None:
    one, other = WorkingMemory(), WorkingMemory()
    await one.update({"a": "b"})
    assert other.snapshot == {}


async def test_nothing_is_recalled_of_nothing() -> None:
    assert await WorkingMemory().recall("", 100) is None


async def test_equal_notes_are_equal_bytes() -> None:
    one, other = NestedMemory(), NestedMemory()
    await one.update({"a": 1, "b": {"c": 1, "d": [2]}})
    await other.update({"b": {"d": [2]}})
    await other.update({"b": {"c": 1}, "a": 1})
    assert one.state == other.state
    assert await one.recall("", 100) == await other.recall("", 100) == "a: 1\nb:\n  c: 1\n  d: [2]"


async def test_mappings_merge_lists_replace_and_none_removes() -> None:
    notes = NestedMemory()
    await notes.update({"user": {"name": "Ada", "tags": ["a", "b"]}, "n": 1})
    await notes.update({"user": {"tags": ["c"], "age": 36}, "n": {"now": "deep"}})
    await notes.update({"user": {"name": None}})
    assert notes.snapshot == {"user": {"tags": ["c"], "age": 36}, "n": {"now": "deep"}}


async def test_what_is_no_text_is_refused() -> None:
    notes = WorkingMemory()
    await notes.update({"a": "b"})
    bad: Any = {"a": {"b": "c"}}
    with pytest.raises(ToolArgumentsInvalid):
        await notes.update(bad)
    assert notes.snapshot == {"a": "b"}


@pytest.mark.parametrize("schema", [Attrs, Model, Typed])
async def test_a_schema_refuses_what_does_not_fit(schema: type[Any]) -> None:
    both: list[Any] = [WorkingMemory(schema=schema), NestedMemory(schema=schema)]
    for notes in both:
        await notes.update({"pages": "4"} if isinstance(notes, WorkingMemory) else {"pages": 4})
        before = notes.snapshot
        for bad in ({"pages": "many"}, {"colour": "blue"}):
            with pytest.raises(ToolArgumentsInvalid, match="do not fit"):
                await notes.update(bad)
        assert notes.snapshot == before


async def test_a_schema_reaches_inside() -> None:
    notes = NestedMemory(schema=Outer)
    await notes.update({"user": {"age": 3}})
    with pytest.raises(ToolArgumentsInvalid, match=r"user\.age"):
        await notes.update({"user": {"age": "three"}})
    assert notes.snapshot == {"user": {"age": 3}}


async def test_there_is_an_end_to_notes() -> None:
    notes = WorkingMemory(max_bytes=100)
    await notes.update({"a": "b"})
    with pytest.raises(ToolArgumentsInvalid, match="100"):
        await notes.update({"c": "d" * 100})
    assert notes.snapshot == {"a": "b"}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"max_bytes": 0}, "working-memory"),
        ({"max_bytes": True}, "working-memory"),
        ({"children": "shallow"}, "working-memory"),
        ({"schema": int}, "layer-schema"),
        ({"schema": object}, "layer-schema"),
    ],
)
def test_wrong_settings(settings: Any, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkingMemory(**settings)
    assert caught.value.code == code


@given(before=st.dictionaries(st.text(max_size=3), JSON, max_size=4), patch=st.dictionaries(st.text(max_size=3), JSON))
def test_changes_lead_from_before_to_after(before: dict[str, Any], patch: dict[str, Any]) -> None:
    after = {**before, **patch}
    assert changed_by(before, after, before) == after
    assert changed_by(after, after, before) == after
    assert changed_by({**before, "other": 1}, after, {**before}) == {"other": 1, **after} or "other" in patch


# -- in a run


class TestWorkingMemory(LayerCases):
    calls = (call("update", patch={"topic": "tides"}),)
    turns = (call("update", patch={"topic": None, "a": "b"}), call("update", patch={"c": "d"}))
    lines = 4

    def make(self, **settings: Any) -> WorkingMemory:
        return WorkingMemory(**settings)

    async def act(self, layer: Any) -> None:
        await layer.update({"topic": "tides"})

    async def fill(self, layer: Any) -> None:
        await layer.update({f"key{number}": "some words of a note" for number in range(100)})

    async def put(self, layer: Any, text: str) -> None:
        await layer.update({"a": text, text: "a"})


class TestNestedMemory(LayerCases):
    calls = (call("update", patch={"user": {"name": "Ada"}}),)
    turns = (call("update", patch={"user": {"age": 36}}), call("update", patch={"user": {"name": None}}))
    lines = 5

    def make(self, **settings: Any) -> NestedMemory:
        return NestedMemory(**settings)

    async def act(self, layer: Any) -> None:
        await layer.update({"user": {"name": "Ada"}})

    async def fill(self, layer: Any) -> None:
        await layer.update({f"key{number}": {"note": "some words of a note"} for number in range(100)})

    async def put(self, layer: Any, text: str) -> None:
        await layer.update({"a": {text: text}, "b": text})


async def test_a_model_is_told_what_does_not_fit() -> None:
    async with harness(WorkingMemory(schema=Attrs)) as built:
        result = await built.run(agent(call("update", patch={"colour": "blue"}), "done"), "hi")
    (output,) = [item for item in result.new_items if isinstance(item, FunctionCallOutput)]
    assert "colour: no such field (fields: pages, topic)" in output.text


async def test_threads_keep_their_own() -> None:
    async with harness(WorkingMemory()) as built:
        await built.run(acting(lambda layer: layer.update({"a": "b"})), "hi", thread_id="one")
        same = await built.run(reading, "hi", thread_id="one")
        other = await built.run(reading, "hi", thread_id="two")
    assert (same.value, other.value) == ("{'a': 'b'}", "{}")


async def test_what_there_is_no_room_for_is_counted() -> None:
    many = {f"key{number:02}": "some words of a note" for number in range(100)}
    (message,) = await shown(WorkingMemory(budget=120), lambda layer: layer.update(many))
    assert "key00: some words" in message.text
    assert "more left out)" in message.text


async def test_what_a_child_has_changed_comes_back() -> None:
    flow = acting(lambda layer: layer.update({"a": "1", "b": "1"})) >> spawn(
        acting(lambda layer: layer.update({"b": "2", "c": "2"}))
    )
    for children, kept in (("merge", "{'a': '1', 'b': '2', 'c': '2'}"), ("ignore", "{'a': '1', 'b': '1'}")):
        async with harness(WorkingMemory(children=children)) as built:  # type: ignore[arg-type] # one of the two
            assert (await built.run(flow >> reading, "hi")).value == kept


async def test_children_do_not_undo_each_other() -> None:
    first = acting(lambda layer: layer.update({"a": "first", "c": None}))
    second = acting(lambda layer: layer.update({"b": "second", "d": "new"})).with_options(id="second")
    begin = acting(lambda layer: layer.update({"a": "0", "b": "0", "c": "0"})).with_options(id="begin")
    async with harness(WorkingMemory()) as built:
        result = await built.run(begin >> parallel(first, second) >> reading, "hi")
    assert result.value == "{'a': 'first', 'b': 'second', 'd': 'new'}"
