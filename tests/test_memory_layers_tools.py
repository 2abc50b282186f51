"""`ToolMemory`: calls of tools that outlive the part of the conversation the model sees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from noetic_py import FunctionCall, FunctionCallOutput, Harness, Message, parallel, tool
from noetic_py.errors import ConfigError
from noetic_py.memory import Plan, ToolMemory
from noetic_py.memory.binding import Draft
from tests.layer_runs import (
    HOSTILE,
    Act,
    Bundle,
    acting,
    agent,
    assert_lasts,
    harness,
    is_sealed,
    reading,
    shown,
    text_of,
    tokens_shown,
)

pytestmark = pytest.mark.anyio


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def looking(**arguments: Any) -> FunctionCall:
    return FunctionCall(name="look", arguments=json.dumps(arguments))


def noting(*calls: tuple[str, Mapping[str, Any] | str, str]) -> Act:
    """Calls of tools as the layer hears of them."""

    async def act(layer: Any) -> None:
        draft = Draft(layer.binding)
        for name, arguments, output in calls:
            call = FunctionCall(name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))
            await layer.bound(draft).after_tool_call(call, FunctionCallOutput(call_id=call.call_id, output=output))
        draft.commit()

    return act


# -- by itself


@pytest.mark.clause("002-50i")
async def test_calls_are_remembered_the_newest_first() -> None:
    layer = ToolMemory()
    await noting(("look", {"at": "sea"}, "blue"), ("find", {}, "nothing"))(layer)
    assert text_of(await layer.recall("", 200)) == 'find({}) gave: nothing\nlook({"at": "sea"}) gave: blue'


async def test_equal_arguments_are_one_entry() -> None:
    layer = ToolMemory()
    await noting(
        ("look", {"a": 1, "b": 2}, "old"), ("other", "", "x"), ("look", '{"b":2,  "a":1}', "new"), ("look", "{}", "y")
    )(layer)
    assert [(use.name, use.arguments, use.output, use.times) for use in layer.calls] == [
        ("look", "{}", "y", 1),
        ("look", '{"a": 1, "b": 2}', "new", 2),
        ("other", "{}", "x", 1),
    ]
    assert "(2 times)" in text_of(await layer.recall("", 200))


async def test_a_call_whose_output_is_shown_is_not_recalled() -> None:
    layer = ToolMemory()
    call, again = FunctionCall(name="look", arguments="{}"), FunctionCall(name="look", arguments='{"at":"sea"}')
    draft = Draft(layer.binding)
    outputs = [FunctionCallOutput(call_id=each.call_id, output="blue") for each in (call, again)]
    for each, output in zip((call, again), outputs, strict=True):
        await layer.bound(draft).after_tool_call(each, output)
    draft.commit()
    recall = await layer.recall("", 200)
    assert text_of(recall, Message.user("hi"), call, outputs[0]) == 'look({"at": "sea"}) gave: blue'
    # A call alone says nothing of what came of it.
    assert text_of(recall, call).count("gave") == 2
    assert text_of(recall, *outputs) == ""


async def test_the_oldest_go() -> None:
    layer = ToolMemory(max_calls=3)
    await noting(*[("look", {"at": number}, "x") for number in range(10)])(layer)
    assert [use.arguments for use in layer.calls] == ['{"at": 9}', '{"at": 8}', '{"at": 7}']


async def test_long_outputs_are_cut() -> None:
    layer = ToolMemory(max_characters=20)
    await noting(("look", {"at": "x" * 50}, "a b " * 50), ("raw", "no json", "line\nline"))(layer)
    assert [(len(use.arguments) <= 20, len(use.output) <= 20) for use in layer.calls] == [(True, True)] * 2
    assert layer.calls[0].output == "line line"


async def test_only_and_ignore() -> None:
    calls = noting(("a", "", "1"), ("b", "", "1"), ("c", "", "1"))
    for layer, kept in (
        (ToolMemory(only=("a", "b")), "ba"),
        (ToolMemory(ignore=("a",)), "cb"),
        (ToolMemory(only=("a", "b"), ignore=("a",)), "b"),
    ):
        await calls(layer)
        assert "".join(use.name for use in layer.calls) == kept


@pytest.mark.parametrize(
    "settings", [{"max_calls": 0}, {"max_characters": -1}, {"only": "look"}, {"ignore": "look"}, {"children": "x"}]
)
def test_wrong_settings(settings: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ToolMemory(**settings)
    assert caught.value.code == "tool-memory"


# -- in a run


async def test_calls_of_a_round_are_all_remembered() -> None:
    calls = [looking(at=f"{number}") for number in range(4)]
    async with harness(ToolMemory(max_calls=3)) as built:
        result = await built.run(agent(calls, "done", tools=[look]) >> reading, "hi")
    assert str(result.value).count("ToolUse(") == 3


async def test_calls_in_separate_rounds() -> None:
    async with harness(ToolMemory()) as built:
        result = await built.run(agent(looking(at="a"), looking(at="b"), "done", tools=[look]) >> reading, "hi")
    assert "saw a" in str(result.value)
    assert "number=2" in str(result.value)


@pytest.mark.parametrize(("functions", "kept"), [(False, 0), (True, 1)])
async def test_functions_of_layers_are_left_out(functions: bool, kept: int) -> None:
    class Both(Bundle):
        plan: Plan = Plan()

    call = FunctionCall(name="plan__add", arguments='{"item": "x"}')
    async with Harness(plugins=(), memory=Both(layer=ToolMemory(functions=functions))) as built:
        result = await built.run(agent(call, "done") >> reading, "hi")
    assert str(result.value).count("ToolUse(") == kept


async def test_an_interrupted_run_comes_to_the_same(tmp_path: Path) -> None:
    await assert_lasts(
        ToolMemory,
        noting(("look", {"at": "sea"}, "blue")),
        tmp_path,
        looking(at="a"),
        [looking(at="b"), looking(at="c")],
        tools=[look],
    )


@pytest.mark.parametrize("budget", [0, 5, 30, 60, 200])
async def test_a_budget_is_kept(budget: int) -> None:
    many = noting(*[("look", {"at": number}, "many words " * 10) for number in range(40)])
    assert await tokens_shown(ToolMemory(budget=budget), many) <= budget


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_outputs_stay_inside(text: str) -> None:
    (message,) = await shown(ToolMemory(), noting(("look", {"at": text}, text), ("look", text, "x")))
    assert is_sealed(message)
    assert len(message.text.splitlines()) == 4


async def test_calls_of_children_come_back() -> None:
    one, other = noting(("a", "", "1")), noting(("b", "", "1"))
    flow = parallel(acting(one), acting(other).with_options(id="other")) >> reading
    for children, kept in (("merge", 2), ("ignore", 0)):
        made: Any = ToolMemory
        async with harness(made(children=children)) as built:
            assert str((await built.run(flow, "hi")).value).count("ToolUse(") == kept
