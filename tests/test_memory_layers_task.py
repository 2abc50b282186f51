"""`TaskState`: the state of a task, typed by a class of the user's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_type

import attrs
import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

from noetic_py import FunctionCallOutput, JsonValue, parallel, spawn
from noetic_py.errors import ConfigError, LayerError, ToolArgumentsInvalid
from noetic_py.memory import TaskState
from noetic_py.memory.layers.common import patched
from tests.layer_runs import LayerCases, acting, agent, call, harness, reading

pytestmark = pytest.mark.anyio


@define
class Attrs:
    title: str = ""
    pages: int = 0
    tags: list[str] = attrs.field(factory=list[str])


@dataclass
class Data:
    title: str = ""
    pages: int = 0
    tags: list[str] = field(default_factory=list[str])


class Model(BaseModel):
    title: str = ""
    pages: int = 0
    tags: list[str] = []


class Typed(TypedDict, total=False):
    title: str
    pages: int
    tags: list[str]


class Parent(BaseModel):
    pages: int = 0
    children: dict[str, Any] = {}


@define
class Needy:
    title: str


CLASSES = [Attrs, Data, Model, Typed]


# -- by itself


async def test_without_a_class_it_is_a_dict() -> None:
    task = TaskState()
    assert_type(task.value, dict[str, JsonValue])
    assert await task.patch({"a": {"b": 1}}) == {"a": {"b": 1}}
    await task.patch({"a": {"c": 2}, "d": None})
    assert task.value == await task.get() == {"a": {"b": 1, "c": 2}}
    await task.put({"e": 1})
    assert task.value == {"e": 1}


@pytest.mark.parametrize("kind", CLASSES)
async def test_with_a_class(kind: Any) -> None:
    task = TaskState(type=kind)
    await task.patch({"pages": 3, "tags": ["a"]})
    assert task.value == kind(**task.state)
    assert task.state["pages"] == 3
    await task.put(kind(title="x", pages=4))
    assert (task.state["title"], task.state["pages"]) == ("x", 4)


@pytest.mark.parametrize("kind", CLASSES)
async def test_what_does_not_fit_is_refused(kind: Any) -> None:
    task = TaskState(type=kind)
    await task.patch({"pages": 3})
    before = task.state
    wrong: list[dict[str, JsonValue]] = [{"pages": "4"}, {"colour": "blue"}, {"tags": "a"}, {"tags": [1]}]
    for bad in wrong:
        with pytest.raises(ToolArgumentsInvalid, match="does not fit"):
            await task.patch(bad)
    with pytest.raises(ToolArgumentsInvalid):
        await task.put(3)
    assert task.state == before


async def test_the_value_is_typed() -> None:
    task = TaskState(type=Attrs)
    assert_type(task.value, Attrs)
    assert task.value == Attrs()
    value = task.value
    value.tags.append("x")
    assert task.value == Attrs()


async def test_where_it_starts() -> None:
    assert TaskState(type=Attrs, start=Attrs(pages=2)).value == Attrs(pages=2)
    assert TaskState(start={"a": 1}).value == {"a": 1}
    assert TaskState(type=Needy, start=Needy("x")).value == Needy("x")


async def test_a_start_is_not_shared() -> None:
    start: dict[str, JsonValue] = {"a": {"b": 1}}
    one, other = TaskState(start=start), TaskState(start=start)
    await one.patch({"a": {"b": 2}})
    assert other.value == start == {"a": {"b": 1}}


async def test_there_is_an_end_to_it() -> None:
    task = TaskState(max_bytes=50)
    with pytest.raises(ToolArgumentsInvalid, match="50"):
        await task.patch({"a": "x" * 50})
    assert task.value == {}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"max_bytes": 0}, "task-state"),
        ({"children": "deep"}, "task-state"),
        ({"start": [1]}, "task-state"),
        ({"type": int}, "layer-schema"),
        ({"type": Needy}, "layer-initial"),
        ({"type": Attrs, "start": 3}, "layer-initial"),
        ({"type": Attrs, "children": "namespaced"}, "task-state"),
    ],
)
def test_wrong_settings(settings: Any, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TaskState(**settings)
    assert caught.value.code == code


async def test_a_stored_state_that_fits_no_more_is_told() -> None:
    task = TaskState(type=Attrs)
    task.state = {"pages": "many"}
    with pytest.raises(LayerError, match="migrate"):
        task.value.tags.append("x")


NESTED: Any = st.dictionaries(
    st.text(max_size=2),
    st.recursive(st.integers(), lambda inner: st.dictionaries(st.text(max_size=2), inner), max_leaves=8),
)


@given(NESTED, NESTED)
def test_a_patch_twice_is_a_patch_once(values: dict[str, Any], patch: dict[str, Any]) -> None:
    once = patched(values, patch)
    assert patched(once, patch) == once
    assert set(once) == set(values) | set(patch)


# -- in a run


class TestTaskState(LayerCases):
    calls = (call("get"), call("patch", changes={"pages": 3}))
    turns = (call("patch", changes={"pages": 4}), call("patch", changes={"tags": ["a", "b"]}))
    lines = 5

    def make(self, **settings: Any) -> TaskState[Attrs]:
        return TaskState(type=Attrs, **settings)

    async def act(self, layer: Any) -> None:
        await layer.patch({"pages": 3})

    async def fill(self, layer: Any) -> None:
        await layer.patch({"tags": [f"some words, {number}" for number in range(100)]})

    async def put(self, layer: Any, text: str) -> None:
        await layer.patch({"title": text, "tags": ["b" + text]})


class TestFreeTaskState(TestTaskState):
    def make(self, **settings: Any) -> Any:
        return TaskState(**settings)

    async def fill(self, layer: Any) -> None:
        await layer.patch({f"key{number}": {"text": "some words"} for number in range(100)})

    async def put(self, layer: Any, text: str) -> None:
        await layer.patch({"a": {"b" + text: [text], "c": text}})


async def test_a_model_reads_it_and_is_told_what_does_not_fit() -> None:
    async with harness(TaskState(type=Attrs)) as built:
        result = await built.run(agent(call("get"), call("patch", changes={"pages": "x"}), "done"), "hi")
    outputs = [item.text for item in result.new_items if isinstance(item, FunctionCallOutput)]
    assert '"pages":0' in outputs[0].replace(" ", "")
    assert "pages: Input should be a valid integer" in outputs[1]


async def test_patches_of_one_round_all_count() -> None:
    calls = [call("patch", changes={"title": "x"}), call("patch", changes={"pages": 3})]
    async with harness(TaskState(type=Attrs)) as built:
        result = await built.run(agent(calls, "done") >> reading, "hi")
    assert result.value == "{'title': 'x', 'pages': 3, 'tags': []}"


async def test_what_a_child_has_changed_comes_back() -> None:
    flow = acting(lambda layer: layer.patch({"a": {"x": 1}, "b": 1})) >> spawn(
        acting(lambda layer: layer.patch({"a": {"y": 2}, "c": 2}))
    )
    for merge, kept in (
        ("shallow", "{'a': {'x': 1, 'y': 2}, 'b': 1, 'c': 2}"),
        ("ignore", "{'a': {'x': 1}, 'b': 1}"),
    ):
        made: Any = TaskState
        async with harness(made(children=merge)) as built:
            assert (await built.run(flow >> reading, "hi")).value == kept


async def test_children_under_their_ids() -> None:
    one = acting(lambda layer: layer.patch({"pages": 1})).with_options(id="p1")
    two = acting(lambda layer: layer.patch({"pages": 2})).with_options(id="p2")
    async with harness(TaskState(type=Parent, children="namespaced")) as built:
        result = await built.run(parallel(one, two) >> reading, "hi", run_id="r")
    assert result.value == "{'pages': 0, 'children': {'r/p1[0]': {'pages': 1}, 'r/p2[1]': {'pages': 2}}}"


async def test_children_do_not_undo_each_other() -> None:
    begin = acting(lambda layer: layer.patch({"a": 0, "b": 0, "c": 0})).with_options(id="begin")
    first = acting(lambda layer: layer.patch({"a": 1, "c": None}))
    second = acting(lambda layer: layer.patch({"b": 2})).with_options(id="second")
    async with harness(TaskState()) as built:
        result = await built.run(begin >> parallel(first, second) >> reading, "hi")
    assert result.value == "{'a': 1, 'b': 2}"


async def test_of_a_field_that_two_children_change_the_later_counts() -> None:
    first = acting(lambda layer: layer.patch({"a": {"x": 1}}))
    second = acting(lambda layer: layer.patch({"a": {"y": 2}})).with_options(id="second")
    async with harness(TaskState()) as built:
        result = await built.run(parallel(first, second) >> reading, "hi")
    assert result.value == "{'a': {'y': 2}}"
