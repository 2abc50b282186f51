from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Protocol

import anyio
import pytest
from attrs import define, field

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    Harness,
    Memory,
    Message,
    ReadContext,
    Retry,
    StateBag,
    TokenUsage,
    branch,
    call_model,
    current_context,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context.read import Services, StepMeta
from noetic_py.core.allowance import Remaining
from noetic_py.errors import ConfigError, NoContextError, StateTypeError, StepFailed
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@step
async def echo(text: str) -> str:
    return text


async def run(flow: Any, input: object = "x", **options: Any) -> Any:
    async with Harness() as harness:
        return (await harness.run(flow, input, **options)).value


# -------------------------------------------------------------------------------------------------------- outside a run


def test_a_context_made_outside_a_run() -> None:
    ctx = Context(items=[Message.user("hi")], thread_id="t", request_id="r")
    assert uuid.UUID(ctx.id).version == 7
    assert (ctx.thread_id, ctx.request_id, ctx.user_id) == ("t", "r", None)
    assert (ctx.run_id, ctx.name, ctx.path, ctx.branch, ctx.depth) == ("", "", (), "", 0)
    assert (ctx.parent, ctx.root) == (None, ctx)
    assert [item.text for item in ctx.items.view(Message)] == ["hi"]
    assert isinstance(ctx.state, StateBag)
    assert (ctx.step_count, ctx.turns, ctx.tokens, ctx.cost) == (0, 0, TokenUsage(), Decimal(0))
    assert ctx.budget == Remaining()
    nothing: list[object] = [ctx.input, ctx.memory, ctx.last_step]
    assert nothing == [None, None, None]
    assert dict(ctx.metadata) == {}
    assert (ctx.completed, ctx.completion_value, ctx.aborted, ctx.abort_reason) == (False, None, False, None)
    assert repr(ctx) == "Context(outside a run, run=None)"
    assert Db not in ctx.services


def test_contexts_are_independent() -> None:
    items = [Message.user("hi")]
    one, two = Context(items=items), Context(items=items)
    one.items.append(Message.user("more"))
    items.append(Message.user("later"))
    assert (len(one.items), len(two.items)) == (2, 1)
    assert one.thread_id != two.thread_id
    assert one.id != two.id


def test_a_context_holds_the_given_state() -> None:
    state = {"a": 1}
    ctx = Context(state=state)
    assert ctx.state is state


async def test_a_run_adopts_a_context() -> None:
    @step
    async def write(text: str, ctx: Context[Memory, dict[str, int]]) -> int:
        ctx.items.append(Message.user(text))
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        return len(ctx.items)

    state: dict[str, int] = {}
    ctx = Context(state=state, items=[Message.user("before")], request_id="r")
    async with Harness() as harness:
        first = await harness.run(write, "x", ctx=ctx)
        second = await harness.run(write, "y", ctx=ctx)
    assert (first.value, second.value) == (2, 3)
    assert state == {"n": 2}
    assert first.state is state
    assert [item.text for item in ctx.items.view(Message)] == ["before", "x", "y"]
    assert list(second.items) == list(ctx.items)
    assert [item.text for item in second.new_items if isinstance(item, Message)] == ["y"]
    assert first.run_id != second.run_id
    assert ctx.run_id == ""


async def test_an_adopted_context_gives_its_ids_unless_told_otherwise() -> None:
    @step
    async def ids(text: str, ctx: Context) -> tuple[str, str | None]:
        return ctx.thread_id, ctx.request_id

    ctx = Context(thread_id="t", request_id="r")
    assert await run(ids, ctx=ctx) == ("t", "r")
    assert await run(ids, ctx=ctx, thread_id="t2", request_id="r2") == ("t2", "r2")


async def test_an_adopted_context_is_as_the_journal_says_after_a_failure() -> None:
    @step
    async def write(text: str, ctx: Context[Memory, StateBag]) -> str:
        ctx.items.append(Message.user(text))
        ctx.state[text] = True
        return text

    @step
    async def bad(text: str, ctx: Context[Memory, StateBag]) -> str:
        await write("child", ctx)
        ctx.items.append(Message.user("void"))
        ctx.state["void"] = True
        raise ValueError(text)

    ctx = Context()
    async with Harness() as harness:
        result = await harness.run(sequence(write, bad), "x", ctx=ctx, on_error="result")
    assert result.status == "failed"
    assert [item.text for item in ctx.items.view(Message)] == ["x", "child"]
    assert dict(ctx.state.view()) == {"x": True, "child": True}
    assert list(result.items) == list(ctx.items)


# --------------------------------------------------------------------------------------------------------- inside a run


async def test_what_a_step_sees_of_itself() -> None:
    seen: list[tuple[object, ...]] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append((ctx.name, ctx.path, ctx.branch, ctx.input, ctx.metadata["a"]))
        assert repr(ctx) == f"Context({'/'.join(ctx.path)}, run={ctx.run_id})"
        return "changed"

    metadata = {"a": [1]}
    both = parallel([look, look], merge=lambda outputs, ctx: "x")
    await run(sequence(look, both, spawn(look)), "in", metadata=metadata)
    # The two paths may come in either order.
    assert [seen[0], *sorted(seen[1:3], key=str), seen[3]] == [
        ("look", ("sequence", "look"), "sequence", "in", [1]),
        ("look[0]", ("sequence", "parallel", "look[0]"), "sequence.parallel.look[0]", "in", [1]),
        ("look[1]", ("sequence", "parallel", "look[1]"), "sequence.parallel.look[1]", "in", [1]),
        ("look", ("sequence", "spawn:look", "look"), "sequence.spawn:look.look", "x", [1]),
    ]


async def test_turns_count_model_calls_of_the_execution() -> None:
    seen: list[int] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append(ctx.turns)
        return text

    child = spawn(sequence(call_model(), look))
    async with Harness(model=ScriptedModel("a", "b", "c")) as harness:
        await harness.run(sequence(look, call_model(), look, child, call_model(), look), "x")
    assert seen == [0, 1, 1, 2]


async def test_what_budgets_leave() -> None:
    seen: list[Remaining] = []

    @step
    async def look(text: str, ctx: Context) -> str:
        seen.append(ctx.budget)
        return text

    async with Harness(budget=Budget(tool_calls=5)) as harness:
        flow = look.with_options(budget=Budget(steps=3))
        await harness.run(flow, "x", budget=Budget(steps=10, tokens=100, cost="1"))
    remaining = seen[0]
    # A step's budget is for what is below it; the step itself was counted by the run's.
    assert (remaining.steps, remaining.tokens, remaining.cost, remaining.tool_calls) == (3, 100, Decimal(1), 5)
    assert (remaining.seconds, remaining.model_calls) == (None, None)


@pytest.mark.clause("mission-a")
async def test_limit_and_use_of_every_dimension() -> None:
    seen: list[Remaining] = []

    @tool
    async def look(n: int) -> str:
        """Look."""
        return str(n)

    @step
    async def note(text: object, ctx: Context) -> None:
        seen.append(ctx.budget)
        assert ctx.read_only().budget.used.tokens == ctx.budget.used.tokens

    usage = TokenUsage(input=10, output=20, cached_input=4)
    model = ScriptedModel(FunctionCall(name="look", arguments={"n": 1}), "done", usage=usage, cost="0.01")
    flow = sequence(loop(call_model(tools=[look]), until=until.no_tool_calls()), note, spawn(note))
    limits = Budget(per_tool={"look": 3, "other": 2}, cached_input_tokens=100, depth=2, cost=1)
    async with Harness(plugins=[], model=model, budget=Budget(tokens=500)) as harness:
        await harness.run(flow, "x", budget=limits)
    here, below = seen
    assert (here.cached_input_tokens, here.limit.cached_input_tokens, here.used.cached_input_tokens) == (92, 100, 8)
    assert (here.per_tool, here.used.per_tool) == ({"look": 2, "other": 2}, {"look": 1, "other": 0})
    assert (here.limit.tokens, here.used.tokens, here.tokens) == (500, 60, 440)
    assert (here.limit.cost, here.used.cost, here.cost) == (Decimal(1), Decimal("0.02"), Decimal("0.98"))
    # What nothing limits was used all the same.
    assert (here.limit.model_calls, here.used.model_calls, here.used.input_tokens, here.used.steps) == (None, 2, 20, 3)
    assert [(each.limit.depth, each.used.depth, each.depth) for each in seen] == [(2, 0, 2), (2, 1, 1)]
    assert (below.used.tokens, below.used.model_calls) == (60, 0)
    assert Context().budget.used.tokens == 0


async def test_the_items_know_where_they_come_from() -> None:
    @step
    async def write(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        assert ctx.items.origin_of(-1) == (ctx.run_id, ctx.branch)
        return text

    ctx = Context(items=[Message.user("before")])
    async with Harness() as harness:
        result = await harness.run(sequence(write, spawn(write, items="share"), write), "x", ctx=ctx)
    assert len(ctx.items.view(run_id=result.run_id)) == 3
    assert len(ctx.items.view(exclude_run=result.run_id)) == 1


async def test_the_current_context() -> None:
    seen: list[object] = []

    def note() -> None:
        ctx = current_context()
        seen.append(None if ctx is None else ctx.path)

    @tool
    async def look() -> str:
        note()
        return "x"

    @tool
    def look_in_thread() -> str:
        note()
        return "x"

    def route(text: str) -> str:
        note()
        return "a"

    @step
    async def inner(text: str) -> str:
        note()
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        assert current_context(required=True) is ctx
        await inner(text, ctx)
        assert current_context() is ctx
        with pytest.raises(StepFailed):
            await bad(text, ctx)
        assert current_context() is ctx
        await ctx.gather(inner.bind("x"), inner.bind("y"))
        assert current_context() is ctx
        await look()
        return text

    @step
    async def bad(text: str) -> str:
        raise ValueError(text)

    calls = [FunctionCall(name="look"), FunctionCall(name="look_in_thread")]
    agent = loop(call_model(tools=(look, look_in_thread)), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(calls, "done")) as harness:
        await harness.run(branch(route, {"a": body}), "x")
        assert current_context() is None
        await harness.run(agent, "x")
    expected = [
        ("branch",),
        ("branch", "body", "inner"),
        ("branch", "body", "gather", "inner[0]"),
        ("branch", "body", "gather", "inner[1]"),
        ("branch", "body"),
        ("loop", "call_model[0]", "look[0]"),
        ("loop", "call_model[0]", "look_in_thread[1]"),
    ]
    assert sorted(map(str, seen)) == sorted(map(str, expected))
    assert current_context() is None


async def test_the_current_context_after_a_cancelled_child() -> None:
    @step(timeout=0.01)
    async def slow(text: str) -> str:
        await anyio.sleep_forever()
        return text

    @step
    async def body(text: str, ctx: Context) -> str:
        with pytest.raises(TimeoutError):
            await slow(text, ctx)
        assert current_context() is ctx
        with anyio.move_on_after(0.01):
            await slow.with_options(timeout=60)(text, ctx)
        assert current_context() is ctx
        return await echo(text, ctx)

    assert await run(body) == "x"


async def test_a_tool_called_from_a_body_gets_its_context() -> None:
    @tool
    async def where(ctx: Context, text: str) -> str:
        return f"{ctx.name} {text}"

    @step
    async def body(text: str, ctx: Context) -> str:
        return await where(text)

    assert await run(body) == "body x"


# ------------------------------------------------------------------------------------------------------------ read-only


async def test_a_read_only_view_is_live() -> None:
    @step
    async def body(text: str, ctx: Context[Memory, StateBag]) -> str:
        view: ReadContext[Memory, StateBag] = ctx.read_only()
        assert (view.id, view.run_id, view.name, view.path) == (ctx.id, ctx.run_id, ctx.name, ctx.path)
        assert (view.branch, view.depth, view.thread_id, view.user_id) == (ctx.branch, 0, ctx.thread_id, "u")
        assert (view.request_id, view.memory, view.services) == ("r", ctx.memory, ctx.services)
        assert (view.step_count, view.turns, view.tokens, view.cost) == (1, 0, ctx.tokens, ctx.cost)
        assert (view.last_step, view.budget, view.state) == (None, ctx.budget, ctx.state)
        assert 0 <= view.elapsed <= ctx.elapsed
        before = view.items
        ctx.items.append(Message.user(text))
        ctx.state["x"] = text
        await echo(text, ctx)
        assert (len(before), len(view.items)) == (0, 1)
        assert view.state["x"] == text
        assert view.step_count == 2
        assert isinstance(view.last_step, StepMeta)
        assert (view.aborted, view.abort_reason) == (False, None)
        ctx.abort("enough")
        assert (view.aborted, view.abort_reason) == (True, "enough")
        return text

    async with Harness() as harness:
        assert (await harness.run(body, "x", user_id="u", request_id="r")).status == "aborted"


async def test_a_read_only_view_has_nothing_to_change_the_run_with() -> None:
    view: Any = Context().read_only()
    for name in ("complete", "abort", "stop_loop", "emit", "gather", "metadata", "root", "parent"):
        assert not hasattr(view, name)
    for name in ("state", "items", "memory", "anything"):
        with pytest.raises(AttributeError):
            setattr(view, name, None)
    assert not hasattr(view.items, "append")


# ------------------------------------------------------------------------------------------------------------- services


class Db:
    def name(self) -> str:
        return "db"


class Clock(Protocol):
    def name(self) -> str: ...


class FakeDb:
    """A double that is no subclass."""

    def name(self) -> str:
        return "fake"


async def test_services_come_from_the_run_then_the_harness() -> None:
    @step
    async def look(text: str, ctx: Context) -> tuple[str, str | None]:
        other = ctx.services.get(StateBag)
        return ctx.services[Db].name(), None if other is None else "bag"

    class Other(Db):
        def name(self) -> str:
            return "other"

    async with Harness(services={Db: Db()}) as harness:
        assert (await harness.run(look, "x")).value == ("db", None)
        both: Mapping[type[Any], object] = {Db: Other(), StateBag: StateBag()}
        assert (await harness.run(look, "x", services=both)).value == ("other", "bag")
        assert (await harness.run(spawn(look), "x", services={Db: Other()})).value == ("other", None)


def test_services_by_protocol_and_fakes() -> None:
    services = Services({Clock: FakeDb(), Db: FakeDb()})
    assert Db in services
    assert services[Db].name() == "fake"
    key: Any = Clock
    assert services[key].name() == "fake"
    found: Any = services.get(key)
    assert found.name() == "fake"


def test_services_get() -> None:
    db = Db()
    services = Services({Db: db})
    assert services.get(Db) is db
    assert services.get(StateBag) is None
    assert services.get(StateBag, 3) == 3
    assert (Db in services, StateBag in services) == (True, False)
    with pytest.raises(ConfigError):
        services[StateBag]


# ------------------------------------------------------------------------------------------------------------ state bag


def test_a_bag_is_like_a_mapping() -> None:
    bag = StateBag({"a": 1})
    bag["b"] = 2
    assert (bag["a"], len(bag), list(bag), "b" in bag) == (1, 2, ["a", "b"], True)
    del bag["a"]
    with pytest.raises(KeyError):
        bag["a"]
    assert bag == StateBag({"b": 2})
    assert bag != {"b": 2}
    assert repr(bag) == "StateBag({'b': 2})"
    with pytest.raises(TypeError):
        hash(bag)


def test_a_bag_copies_what_it_is_made_of() -> None:
    values = {"a": 1}
    bag = StateBag(values)
    values["b"] = 2
    assert list(bag) == ["a"]


def test_reading_a_bag() -> None:
    bag = StateBag({"n": 3, "none": None})
    assert (bag.get("n"), bag.get("x"), bag.get("x", 5)) == (3, None, 5)
    assert bag.get_as("n", int) == 3
    assert bag.get_as("x", int) is None
    assert bag.get_as("none", int) is None
    with pytest.raises(StateTypeError, match="int, not str") as caught:
        bag.get_as("n", str)
    assert isinstance(caught.value, TypeError)


def test_none_removes_with_put_and_is_kept_with_an_assignment() -> None:
    bag = StateBag()
    assert bag.put("a", 1).put("b", 2).put("a", None) is bag
    assert list(bag) == ["b"]
    bag.put("missing", None)
    bag["b"] = None
    assert "b" in bag


def test_a_bag_s_view_is_live_and_read_only() -> None:
    bag = StateBag({"a": 1})
    view: Any = bag.view()
    bag["b"] = 2
    assert dict(view) == {"a": 1, "b": 2}
    with pytest.raises(TypeError):
        view["c"] = 3


# ----------------------------------------------------------------------------------------- states and failures of steps


class Plain:
    def __init__(self) -> None:
        self.words: list[str] = []

    def change(self) -> None:
        self.words.append("x")
        self.new = 1


class Slotted:
    __slots__ = ("__secret", "late", "words")

    def __init__(self) -> None:
        self.words: list[str] = []
        self.__secret = 0

    def change(self) -> None:
        self.bump()
        self.late = 1

    def bump(self) -> int:
        self.__secret += 1
        return self.__secret


class OneSlot:
    # A text instead of a tuple is allowed, and read letter by letter by the careless.
    __slots__ = "words"

    def __init__(self) -> None:
        self.words: list[str] = []


@define
class Nested:
    words: list[str] = field(factory=list[str])
    inner: dict[str, list[int]] = field(factory=lambda: {"a": [1]})


async def after_a_failure(state: Any, change: Callable[[Any], object]) -> Any:
    """The state after a step that changed it has failed, and the failure was handled."""

    @step
    async def bad(text: str, ctx: Context[Memory, object]) -> str:
        change(ctx.state)
        raise ValueError(text)

    @step
    async def body(text: str, ctx: Context[Memory, object]) -> str:
        with pytest.raises(StepFailed):
            await bad(text, ctx)
        return text

    async with Harness() as harness:
        result = await harness.run(body, "x", state=state)
    assert result.state is state
    return state


async def test_a_failed_step_leaves_the_state_as_it_was() -> None:
    assert await after_a_failure({"a": [1]}, lambda s: (s["a"].append(2), s.update(b=1))) == {"a": [1]}
    assert await after_a_failure([[1]], lambda s: (s[0].append(2), s.append(3))) == [[1]]
    assert await after_a_failure({1}, lambda s: s.add(2)) == {1}
    assert await after_a_failure(StateBag({"a": [1]}), lambda s: s["a"].append(2)) == StateBag({"a": [1]})
    assert await after_a_failure(Nested(), lambda s: (s.words.append("x"), s.inner["a"].append(2))) == Nested()
    assert (await after_a_failure(Plain(), Plain.change)).__dict__ == {"words": []}
    assert (await after_a_failure(OneSlot(), lambda s: s.words.append("x"))).words == []
    assert await after_a_failure((1, [2]), lambda s: None) == (1, [2])
    assert await after_a_failure("text", lambda s: None) == "text"


async def test_a_failed_step_leaves_private_and_unset_slots_as_they_were() -> None:
    state = Slotted()
    state.bump()
    await after_a_failure(state, Slotted.change)
    assert state.bump() == 2
    assert not hasattr(state, "late")


async def test_a_state_with_pydantic_goes_back_too() -> None:
    from pydantic import BaseModel

    class Model(BaseModel):
        words: list[str] = []
        count: int = 0

    def change(model: Model) -> None:
        model.words.append("x")
        model.count = 1

    state = Model()
    await after_a_failure(state, change)
    assert state == Model()
    assert state.model_fields_set == set()


async def test_a_deque_goes_back_too() -> None:
    from collections import Counter, OrderedDict, defaultdict, deque

    assert await after_a_failure(deque([1]), lambda s: s.append(2)) == deque([1])
    assert await after_a_failure(bytearray(b"a"), lambda s: s.extend(b"b")) == bytearray(b"a")
    assert await after_a_failure(Counter("a"), lambda s: s.update("ab")) == Counter("a")
    assert await after_a_failure(OrderedDict(a=1), lambda s: s.pop("a")) == OrderedDict(a=1)
    assert await after_a_failure(defaultdict(int, a=1), lambda s: s["b"]) == {"a": 1}


async def test_what_a_body_did_before_a_child_failed_late_stays() -> None:
    """The child's own child has committed, and with it what the body had done before."""

    @step
    async def touch(text: str, ctx: Context[Memory, list[str]]) -> str:
        ctx.state.append(text)
        return text

    @step
    async def late(text: str, ctx: Context[Memory, list[str]]) -> str:
        await touch("child", ctx)
        raise ValueError(text)

    @step
    async def body(text: str, ctx: Context[Memory, list[str]]) -> str:
        ctx.state.append("before")
        for _ in range(2):
            with pytest.raises(StepFailed):
                await late(text, ctx)
            assert ctx.state[:1] == ["before"]
            ctx.state.append("after")
        return text

    @step
    async def outer(text: str, ctx: Context[Memory, list[str]]) -> list[str]:
        with pytest.raises(StepFailed):
            await failing(text, ctx)
        return list(ctx.state)

    @step
    async def failing(text: str, ctx: Context[Memory, list[str]]) -> str:
        await body(text, ctx)
        ctx.state.append("void")
        raise ValueError(text)

    first: list[str] = []
    async with Harness() as harness:
        assert (await harness.run(body, "x", state=first)).state == ["before", "after", "after"]
        second: list[str] = []
        assert (await harness.run(outer, "x", state=second)).value == []
        third: list[str] = []
        result = await harness.run(failing, "x", state=third, on_error="result")
    assert result.state == ["before", "after", "after"]


async def test_a_frozen_state_is_no_obstacle() -> None:
    @define(frozen=True)
    class Frozen:
        words: tuple[str, ...] = ()

    assert await after_a_failure(Frozen(("a",)), lambda s: None) == Frozen(("a",))


async def test_a_state_goes_back_on_every_attempt() -> None:
    seen: list[list[int]] = []

    @step
    async def child(n: int, ctx: Context[Memory, list[int]]) -> int:
        ctx.state.append(n)
        return n

    @step(retry=Retry(3, initial=0))
    async def flaky(n: int, ctx: Context[Memory, list[int]]) -> int:
        await child(n, ctx)
        ctx.state.append(n + 1)
        await child(n + 2, ctx)
        seen.append(list(ctx.state))
        if len(seen) < 3:
            raise ValueError(n)
        return n

    async with Harness() as harness:
        result = await harness.run(flaky, 1, state=[0])
    assert seen == [[0, 1, 2, 3]] * 3
    assert result.state == [0, 1, 2, 3]


async def test_a_cancelled_child_leaves_the_state_as_it_was() -> None:
    @step
    async def slow(text: str, ctx: Context[Memory, list[str]]) -> str:
        ctx.state.append("slow")
        ctx.items.append(Message.user("slow"))
        await anyio.sleep_forever()
        return text

    @step
    async def body(text: str, ctx: Context[Memory, list[str]]) -> str:
        ctx.state.append("before")
        with anyio.move_on_after(0.01):
            await slow(text, ctx)
        assert ctx.state == ["before"]
        assert len(ctx.items) == 0
        ctx.state.append("after")
        return text

    async with Harness() as harness:
        state: list[str] = []
        assert (await harness.run(body, "x", state=state)).state == ["before", "after"]


async def test_engine_methods_are_not_there_for_a_context_that_no_run_has_adopted() -> None:
    ctx = Context()
    async with Harness() as harness:
        await harness.run(echo, "x", ctx=ctx)
    with pytest.raises(NoContextError, match=r"needs a run"):
        ctx.complete()
