# Options: each has its type, and a misspelt one is an error.
from decimal import Decimal

from typing_extensions import assert_type

from noetic_py import Budget, Context, FunctionCall, Harness, Memory, Message, ModelSettings, Retry, Step
from noetic_py.core.runtime import Runtime
from noetic_py.runner.plan import RunOptions
from noetic_py import Tool, call_model, sequence, step, tool
from noetic_py.context.step import StepOptions


@step(id="a", retry=3, timeout=1.5, replay="once", budget=Budget(steps=1), version="2", tags=["slow"])
async def full(x: str) -> int:
    return 1


@step(retry=Retry(3, backoff="fixed", initial=0.1, max=1.0, jitter=False, on=lambda error: True), tags={"a", "b"})
async def tried(x: str, ctx: Context) -> int:
    return 1


assert_type(full, Step[str, int, Memory, object])
assert_type(tried, Step[str, int, Memory, object])


@step(timeuot=1.5)  # E
async def misspelt(x: str) -> int:
    return 1


@step(replay="never")  # E
async def unknown_replay(x: str) -> int:
    return 1


@step(timeout="1s")  # E
async def wrong_kind(x: str) -> int:
    return 1


@step  # E
async def alone(ctx: str, a: Context, b: int) -> int:
    return 1


@step  # E
def not_async(x: str) -> int:
    return 1


assert_type(full.with_options(timeout=3.0, id="b"), Step[str, int, Memory, object])
full.with_options(timeuot=3.0)  # E
full.id = "other"  # E
shared: StepOptions = {"retry": 2, "timeout": 3.0}
assert_type(full.with_options(**shared), Step[str, int, Memory, object])
sequence(full, id=3)  # E


@tool(name="add", description="Add.", replay="repeatable", timeout=2.0, retries=0, strict=True)
def add(a: int, b: int) -> int:
    return a + b


@tool(retires=3)  # E
def sub(a: int, b: int) -> int:
    return a - b


async def approve(call: FunctionCall, ctx: object) -> bool:
    return call.name == "add"


checked = add.with_options(needs_approval=approve)
assert_type(checked(1, b=2), int)
as_tool: Tool[..., int] = checked
add.with_options(needs_approval="yes")  # E

Budget(steps=10, model_calls=3, tool_calls=3, per_tool={"add": 1}, tokens=100, cost="0.50", seconds=3.5, depth=2)
Budget(cost=Decimal("0.1"), warn_at=0.9, wrap_up=call_model("m"), reserve=Budget(tokens=10))
Budget(cost=0.1)
Budget(token=100)  # E
Budget(steps="10")  # E
Budget(wrap_up=3)  # E
Budget(100)  # E
Retry("3")  # E
Retry(3, backoff="slow")  # E
Retry(3, on=ValueError)  # E


class Db: ...


async def main() -> None:
    h = Harness(
        model="m",
        budget=Budget(cost=1),
        tools=[add],
        plugins=[],
        services={Db: Db()},
        flows={"full": full},
        model_settings={"seed": 3},
        runtime=Runtime(),
    )
    async with h:
        options: RunOptions = {"run_id": "r", "thread_id": "t", "metadata": {"a": [1, None]}}
        r = await h.run(full, "x", **options)
        assert_type(r.value, int)
        await h.run(full, "x", history=[Message.user("a")], user_id="u", request_id="q", on_error="result", deadline=3)
        await h.run(full, "x", budget=Budget(steps=3), services={Db: Db()}, model_settings=ModelSettings(temperature=1))
        await h.run(full, "x", budgt=Budget(steps=3))  # E
        await h.run(full, "x", budget=3)  # E
        await h.run(full, "x", on_error="ignore")  # E
        await h.run(full, "x", metadata={"a": Db()})  # E
        await h.run(full, "x", state=Db(), ctx=Context(state=Db()))  # E
        h.stream(full, "x", budgt=3)  # E
        h.start(full, "x", budgt=3)  # E
        h.graph("full")  # E
        assert_type(h.graph(full), str)
    Harness(modle="m")  # E
    Harness(memory=3).run(full, "x")  # E
    Harness(services=[Db()])  # E
    Harness(flows={"full": len})  # E
