# What a body reads from its context, and what it may not do with it.
from collections.abc import Mapping
from decimal import Decimal

from attrs import define
from typing_extensions import assert_type

from noetic_py import Checkpoint, Context, FunctionCall, Item, JsonValue, Memory, Message, ReadContext
from noetic_py.core.log import ItemLog, ItemView
from noetic_py import RunResult, RunStatus, StateBag, TokenUsage, current_context, step
from noetic_py.context.read import Services, StepMeta
from noetic_py.core.allowance import Remaining


class Mem(Memory): ...


@define
class State:
    n: int = 0


class Db: ...


@step
async def look(x: str, ctx: Context[Mem, State]) -> int:
    assert_type(ctx.state, State)
    assert_type(ctx.memory, Mem)
    assert_type(ctx.items, ItemLog)
    assert_type(ctx.path, tuple[str, ...])
    assert_type(ctx.input, object)
    assert_type(ctx.step_count + ctx.turns + ctx.depth, int)
    assert_type(ctx.tokens, TokenUsage)
    assert_type(ctx.cost, Decimal)
    assert_type(ctx.elapsed, float)
    assert_type(ctx.budget, Remaining)
    assert_type(ctx.budget.tokens, int | None)
    assert_type(ctx.last_step, StepMeta | None)
    assert_type(ctx.services, Services)
    assert_type(ctx.services[Db], Db)
    assert_type(ctx.services.get(Db), Db | None)
    assert_type(ctx.services.get(Db, 3), Db | int)
    assert_type(ctx.metadata, Mapping[str, JsonValue])
    assert_type(ctx.abort_reason, str | None)
    assert_type(ctx.read_only(), ReadContext[Mem, State])
    ctx.complete(3)
    ctx.stop_loop()
    ctx.abort("reason")
    ctx.abort()  # E
    ctx.abort(3)  # E
    ctx.step_count = 3  # E
    ctx.services["db"]  # E
    ctx.cost + 0.5  # E
    return ctx.state.n


@step
async def talk(x: str, ctx: Context) -> str:
    ctx.items.append(Message.user(x))
    ctx.items.append(x)  # E
    ctx.items[0] = Message.user(x)  # E
    assert_type(ctx.items[0], Item)
    assert_type(ctx.items.last(FunctionCall), FunctionCall | None)
    assert_type(ctx.items.last(Message, role="user"), Message | None)
    assert_type(ctx.items.last_text("assistant"), str | None)
    assert_type(ctx.items.last_text("assistant", ""), str)
    assert_type([message.text for message in ctx.items.view(Message, branch=ctx.branch)], list[str])
    assert_type(ctx.items.snapshot(), list[Item])
    ctx.items.last(Message, role="robot")  # E
    ctx.items.view(str)  # E
    for item in ctx.items.view(role="user"):
        assert_type(item, Item)
    return ctx.items.last_text("user", "")


def only_reads(ctx: ReadContext[Mem, State]) -> int:
    assert_type(ctx.items, ItemView)
    ctx.items.append(Message.user("x"))  # E
    ctx.complete()  # E
    ctx.emit("x")  # E
    ctx.state.n += 1
    return ctx.state.n


def wider(ctx: Context[Mem, State], bare: Context) -> None:
    less: Context = ctx
    reading: ReadContext[Memory, object] = ctx
    only_reads(ctx)
    only_reads(bare)  # E
    narrower: Context[Mem, State] = bare  # E


def found() -> str:
    ctx = current_context()
    ctx.run_id  # E
    return current_context(required=True).run_id


assert_type(Context(), Context[Memory, StateBag])
assert_type(Context(state=State(), items=[Message.user("x")], thread_id="t"), Context[Memory, State])
Context(items=["x"])  # E
Context(sate=State())  # E


def bag(state: StateBag) -> None:
    state["a"] = 3
    assert_type(state.get("a"), object | None)
    assert_type(state.get_as("a", int), int | None)
    assert_type(state.put("a", 3), StateBag)
    assert_type(dict(state.view()), dict[str, object])
    state[3] = 3  # E
    state.get_as("a", 3)  # E
    state.view()["a"] = 3  # E
    state.a = 3  # E


def ended(result: RunResult[int, State]) -> None:
    assert_type(result.value, int)
    assert_type(result.state, State)
    assert_type(result.status, RunStatus)
    assert_type(result.output_or("none"), int | str)
    assert_type(result.cost, Decimal | None)
    assert_type(result.checkpoint, Checkpoint)
    if result.status == "budget_exceeded":
        assert_type(result.reason, str | None)
    if result.status == "finished":  # E
        pass
    wide: RunResult[object, object] = result
    narrow: RunResult[bool, State] = result  # E
    result.value = 3  # E
    message: Message = result.items[-1]  # E
