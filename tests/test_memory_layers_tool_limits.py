"""`ToolLimits`: how often the model may call which tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from noetic_py import (
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    call_model,
    loop,
    parallel,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.core.control import AnyResult
from noetic_py.errors import ConfigError
from noetic_py.memory import CountedCalls, Rule, Scope, Steering, ToolLimits
from noetic_py.models.model import ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere

pytestmark = pytest.mark.anyio

paid: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    paid.clear()


@tool
async def pay(to: str) -> str:
    """Pay somebody."""
    paid.append(to)
    return f"paid {to}"


@tool(name="bank/look")
async def look() -> str:
    """Look at the account."""
    return "100"


LOOK = FunctionCall(name="bank__look", arguments={})


def pays(*names: str) -> list[FunctionCall]:
    return [FunctionCall(name="pay", arguments={"to": name}) for name in names]


def flow(*answers: Any) -> Any:
    model = ScriptedModel(*answers, "Done.")
    return loop(call_model(model, tools=[pay, look]), until=until.no_tool_calls())


def bundle(**settings: Any) -> Memory:
    class Mem(Memory):
        limits: ToolLimits = ToolLimits(**settings)

    return Mem()


def outputs(result: AnyResult) -> Sequence[str]:
    return [item.text for item in result.items if isinstance(item, FunctionCallOutput)]


@step
async def go_on(value: object) -> str:
    return "Go."


NO_MORE = "The call was not made: the limit of 3 for calls of 'pay' is reached."


@pytest.mark.parametrize(
    "answers",
    [
        [pays("a", "b", "c", "d", "e")],
        [pays("a", "b"), pays("c", "d", "e")],
        [pays(each) for each in "abcde"],
    ],
)
async def test_as_many_calls_are_made_as_the_limit_says_however_they_are_spread(answers: list[Any]) -> None:
    async with Harness(memory=bundle(limits={"pay": 3}), plugins=()) as harness:
        result = await harness.run(flow(*answers), "Go.")
    assert sorted(paid) == ["a", "b", "c"]
    assert outputs(result) == ["paid a", "paid b", "paid c", NO_MORE, NO_MORE]
    assert result.memory["limits"].calls == {"pay": 3}
    assert result.value == "Done."


async def test_a_limit_for_all_tools_counts_in_the_order_of_the_calls() -> None:
    answer = [LOOK, *pays("a", "b"), LOOK]
    async with Harness(memory=bundle(total=2, limits={"bank/look": 1}), plugins=()) as harness:
        result = await harness.run(flow(answer), "Go.")
    assert outputs(result) == [
        "100",
        "paid a",
        "The call was not made: the limit of 2 for all tool calls is reached.",
        "The call was not made: the limit of 1 for calls of 'bank__look' is reached.",
    ]


async def test_a_forbidden_tool_is_never_called_and_others_have_no_limit() -> None:
    async with Harness(memory=bundle(limits={"pay": 0}), plugins=()) as harness:
        result = await harness.run(flow([*pays("a"), LOOK], LOOK), "Go.")
    assert paid == []
    assert outputs(result) == [
        "The call was not made: the limit of 0 for calls of 'pay' is reached.",
        "100",
        "100",
    ]


async def test_each_run_has_its_own_count_unless_the_scope_says_otherwise() -> None:
    for scope, expected in ((Scope.EXECUTION, ["a", "b"]), (Scope.THREAD, ["a"])):
        paid.clear()
        async with Harness(memory=bundle(limits={"pay": 1}, scope=scope), plugins=()) as harness:
            for name in ("a", "b"):
                await harness.run(flow(pays(name)), "Go.", thread_id="t")
        assert paid == expected


async def test_children_go_on_with_the_count_and_paths_are_added() -> None:
    async with Harness(memory=bundle(limits={"pay": 3}), plugins=()) as harness:
        result = await harness.run(spawn(flow(pays("a", "b"))) >> flow(pays("c", "d")), "Go.")
        assert sorted(paid) == ["a", "b", "c"]
        paid.clear()
        both = parallel([flow(pays("a", "b")), flow(pays("c"))])
        result = await harness.run(both >> go_on >> flow(pays("d")), "Go.")
    assert sorted(paid) == ["a", "b", "c"]
    assert result.memory["limits"].calls == {"pay": 3}
    assert result.memory["limits"].total == 3


async def test_calls_that_could_not_be_counted_are_not_made() -> None:
    class Broken(ToolLimits):
        async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
            raise OSError("the counter is gone")

    class Mem(Memory):
        limits: Broken = Broken(limits={"pay": 3})

    async with Harness(memory=Mem(), plugins=()) as harness:
        result = await harness.run(flow([*pays("a"), LOOK]), "Go.")
    assert outputs(result) == ["The call was blocked: limits could not check it."] * 2
    assert paid == []


async def test_the_count_is_right_wherever_the_process_dies() -> None:
    def make(backend: Any) -> Harness[Any]:
        return Harness(memory=bundle(limits={"pay": 2}), checkpoints=backend, plugins=())

    def answer(request: ModelRequest) -> Any:
        done = sum(isinstance(item, FunctionCallOutput) for item in request.items)
        return {0: pays("a"), 1: pays("b", "c"), 3: pays("d")}.get(done, "Done.")

    def agent() -> Any:
        return flow(*[answer] * 4)

    assert await assert_resumable_everywhere(agent, "Go.", make=make) > 4
    whole = FaultyBackend(InMemoryBackend())
    async with make(whole) as harness:
        result = await harness.run(agent(), "Go.", run_id="r")
    assert [text.partition(":")[0] for text in outputs(result)] == [
        "paid a",
        "paid b",
        "The call was not made",
        "The call was not made",
    ]


async def test_an_answer_that_is_asked_again_does_not_count() -> None:
    def once(response: Any, ctx: Any) -> str | None:
        asked = [item for item in response.items if isinstance(item, FunctionCall)]
        return "pay one" if len(asked) > 1 else None

    class Mem(Memory):
        limits: ToolLimits = ToolLimits(limits={"pay": 1})
        rules: Steering = Steering(rules=(Rule(name="one", check=once, at="answer"),))

    async with Harness(memory=Mem(), plugins=()) as harness:
        result = await harness.run(flow(pays("a", "b"), pays("c")), "Go.")
    assert paid == ["c"]
    assert any(isinstance(item, Message) for item in result.items)


def test_two_states_are_added() -> None:
    layer = ToolLimits(limits={"pay": 5})
    base, mine = CountedCalls({"pay": 1}, 1, ("a", "b", "c")), CountedCalls({"pay": 3}, 3, ("b", "c"))
    theirs = CountedCalls({"pay": 2, "look": 1}, 3, ("a", "c"))
    assert layer.merge(base, mine, theirs) == CountedCalls({"pay": 4, "look": 1}, 5, ("c",))


async def test_calls_that_an_earlier_release_has_counted_are_counted_once() -> None:
    layer = ToolLimits(limits={"pay": 2}, total=5)
    layer.state = CountedCalls({"pay": 2}, 2, ("b", "a"))
    calls = [FunctionCall(name="pay", arguments={}, call_id=each) for each in "abca"]
    made = [await layer.before_tool_call(call) for call in calls]
    assert made == [*calls[:2], *["The call was not made: the limit of 2 for calls of 'pay' is reached."] * 2]
    assert layer.state == CountedCalls({"pay": 2}, 2)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "it has no limit"),
        ({"limits": {"pay": -1}}, "pay=-1 is not a valid limit"),
        ({"limits": {"pay": True}}, "pay=True is not a valid limit"),
        ({"total": 1.5}, "total=1.5 is not a valid limit"),
        ({"limits": {"pay*": 1}}, "'pay\\*' is not a valid name for a tool"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        ToolLimits(**settings)
