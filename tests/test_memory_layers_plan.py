"""`Plan`: what is to be done, as a checklist that code and the model work through."""

from __future__ import annotations

import re
from typing import Any

import pytest

from noetic_py import Context, FunctionCallOutput, each, spawn, step
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.memory import Plan
from tests.layer_runs import LayerCases, acting, agent, call, harness, reading

pytestmark = pytest.mark.anyio


async def of(*items: str) -> Plan:
    plan = Plan()
    await plan.set_plan(items)
    return plan


async def planned(layer: Any) -> None:
    """A plan of three."""
    await layer.set_plan(["read", "write", "send"])


# -- by itself


async def test_a_plan_is_worked_through() -> None:
    plan = Plan()
    read, write = await plan.set_plan(["read", "write"])
    assert (read[:2], write[:2]) == ("1-", "2-")
    assert not plan.finished
    assert await plan.complete(read, note="12 pages") == f"[x] {read}: read (12 pages)"
    # The place alone names an item, where no other one is there.
    assert await plan.update("2", status="in_progress") == f"[~] {write}: write"
    assert await plan.recall("", 100) == f"[x] {read}: read (12 pages)\n[~] {write}: write"
    await plan.update(write, text="write it", status="dropped", note="no time")
    assert await plan.recall("", 100) == f"[x] {read}: read (12 pages)\n[-] {write}: write it (no time)"
    assert plan.finished


async def test_items_are_added_at_the_end() -> None:
    plan = await of("read")
    first, second = await plan.add("write"), await plan.add("send")
    assert list(plan.items)[1:] == [first, second]
    assert [item.place for item in plan.items.values()] == [1, 2, 3]
    await plan.complete(second)
    assert plan.items[second].status == "done"


async def test_a_new_plan_takes_the_old_one_s_place() -> None:
    plan = await of("a", "b", "c")
    await plan.set_plan(["d"])
    assert [item.text for item in plan.items.values()] == ["d"]
    await plan.set_plan([])
    assert await plan.recall("", 100) is None
    assert not plan.finished


async def test_an_unknown_id_is_told_with_the_known_ones() -> None:
    plan = await of("a", "b")
    for change in (plan.complete, plan.update):
        with pytest.raises(ToolArgumentsInvalid, match=r"no item '9'; the ids are 1-\w{4}, 2-\w{4}$"):
            await change("9")
    with pytest.raises(ToolArgumentsInvalid, match="no plan"):
        await Plan().complete("1")


async def test_what_is_refused_changes_nothing() -> None:
    plan = Plan(max_items=2)
    await plan.set_plan(["a", "b"])
    before = plan.state
    bad: Any = "finished"
    with pytest.raises(ToolArgumentsInvalid, match="2 items at most"):
        await plan.set_plan(["a", "b", "c"])
    with pytest.raises(ToolArgumentsInvalid, match="2 items at most"):
        await plan.add("c")
    with pytest.raises(ToolArgumentsInvalid, match="blank"):
        await plan.set_plan(["a", "  "])
    with pytest.raises(ToolArgumentsInvalid, match="blank"):
        await plan.update("1", text="")
    with pytest.raises(ToolArgumentsInvalid):
        await plan.update("1", status=bad)
    assert plan.state == before


async def test_long_texts_are_cut() -> None:
    plan = Plan(max_characters=20)
    await plan.set_plan(["a " * 50])
    await plan.complete("1", note="b " * 50)
    (item,) = plan.items.values()
    assert [len(text) <= 20 for text in (item.text, item.note)] == [True, True]


@pytest.mark.parametrize("settings", [{"max_items": 0}, {"max_characters": "x"}, {"children": None}])
def test_wrong_settings(settings: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Plan(**settings)
    assert caught.value.code == "plan"


# -- in a run


class TestPlan(LayerCases):
    calls = (call("set_plan", items=["read", "write", "send"]), call("complete", id="1", note="12 pages"))
    turns = (call("complete", id="2"), [call("add", item="a"), call("add", item="b")])

    def make(self, **settings: Any) -> Plan:
        return Plan(**settings)

    async def act(self, layer: Any) -> None:
        await planned(layer)
        await layer.complete("1", note="12 pages")

    async def fill(self, layer: Any) -> None:
        await layer.set_plan([f"something to do, number {number}" for number in range(50)])

    async def put(self, layer: Any, text: str) -> None:
        await layer.set_plan(["x" + text])
        await layer.complete("1", note=text)


async def test_changes_of_one_round_all_count() -> None:
    calls = [call("complete", id="1"), call("update", id="2", status="in_progress"), call("add", item="a")]
    calls += [call("add", item="b")]
    async with harness(Plan()) as built:
        result = await built.run(acting(planned) >> agent(calls, "done") >> reading, "hi")
    text = str(result.value)
    assert (text.count("PlanItem("), text.count("'done'"), text.count("'in_progress'")) == (5, 1, 1)


async def test_a_model_is_told_of_an_unknown_id() -> None:
    async with harness(Plan()) as built:
        result = await built.run(acting(planned) >> agent(call("complete", id="9"), "done"), "hi")
    (output,) = [item for item in result.new_items if isinstance(item, FunctionCallOutput)]
    assert re.fullmatch(r"the plan has no item '9'; the ids are 1-\w{4}, 2-\w{4}, 3-\w{4}", output.text)


@pytest.mark.parametrize("lengths", [(2, 2), (1, 3)])
async def test_ids_that_two_paths_give_out_are_right_after_the_join(lengths: tuple[int, int]) -> None:
    @step
    async def planning(name: str, ctx: Context[Any, Any]) -> list[str]:
        count = lengths[name == "b"]
        return list(await ctx.memory.layer.set_plan([f"{name}{number}" for number in range(count)]))

    @step
    async def checked(given: list[list[str]], ctx: Context[Any, Any]) -> list[list[str]]:
        items = ctx.memory.layer.items
        assert len(items) == sum(lengths)
        return [[items[key].text for key in ids] for ids in given]

    async with harness(Plan()) as built:
        made = (await built.run(each(planning) >> checked, ["a", "b"])).value
    assert made == [[f"{name}{number}" for number in range(count)] for name, count in zip("ab", lengths, strict=True)]


async def test_the_next_run_of_the_thread_goes_on() -> None:
    async with harness(Plan()) as built:
        await built.run(acting(planned), "hi", thread_id="one")
        assert "'send'" in str((await built.run(reading, "hi", thread_id="one")).value)
        assert (await built.run(reading, "hi", thread_id="two")).value == "{}"


async def test_what_is_open_is_shown_first_where_there_is_no_room() -> None:
    plan = await of(*[f"something to do, number {number}" for number in range(50)])
    for number in range(1, 41):
        await plan.complete(str(number))
    told = await plan.recall("", 100) or ""
    assert told.startswith("[ ] 41-")
    assert "[x]" not in told
    assert told.endswith("more left out)")


async def test_what_a_child_has_done_comes_back() -> None:
    flow = acting(planned) >> spawn(acting(lambda layer: layer.complete("2"))) >> reading
    for children, kept in (("merge", 1), ("ignore", 0)):
        made: Any = Plan
        async with harness(made(children=children)) as built:
            assert str((await built.run(flow, "hi")).value).count("'done'") == kept
