# Tools with different demands in one model call, and the agent that it makes.
from typing import Annotated

from attrs import define
from typing_extensions import assert_type

from noetic_py import Context, Harness, Inject, Memory, Step, Tool, call_model, call_tool, loop, step, step_tool
from noetic_py.core.items import ModelInput
from noetic_py import tool, until
from noetic_py.errors import ModelRetry


class Mem(Memory):
    shop: str = "corner"


@define
class State:
    hits: int = 0


class Db:
    async def rows(self) -> list[str]:
        return []


@tool
async def search(query: str) -> list[str]:
    """Search."""
    return [query]


@tool(needs_approval=True, retries=2)
async def buy(ctx: Context[Mem, State], sku: str, n: int = 1) -> str:
    """Buy."""
    ctx.state.hits += 1
    if n > 5:
        raise ModelRetry("at most 5")
    return f"{sku} from {ctx.memory.shop}"


@tool
def plus(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def hit(ctx: Context[Memory, State]) -> int:
    """Count."""
    return ctx.state.hits


@tool
async def where(ctx: Context[Mem]) -> str:
    """Where."""
    return ctx.memory.shop


@tool
async def read(limit: Annotated[int, "at most"], db: Inject[Db]) -> list[str]:
    """Read."""
    return await db.rows()


assert_type(plus(1, b=2), int)
plus(1, "2")  # E
plus(a=1)  # E


async def direct(ctx: Context[Mem, State], db: Db) -> list[str]:
    await buy(sku="a", n=2)
    await buy("a", 1)
    await buy(ctx, "a")  # E
    await read(3)  # E
    await read(3, db)
    return await search("x")


# Demands of a tuple's tools are put together.
both = call_model("m", instructions="hi", tools=(search, buy, plus))
assert_type(both, Step[ModelInput, str, Mem, State])
assert_type(call_model("m", tools=(hit, where)), Step[ModelInput, str, Mem, State])
assert_type(call_model("m", tools=(where, search)), Step[ModelInput, str, Mem, object])
assert_type(call_model("m", tools=(hit, plus)), Step[ModelInput, str, Memory, State])
assert_type(call_model("m", tools=(search, plus)), Step[ModelInput, str, Memory, object])
assert_type(call_model("m", tools=[search]), Step[ModelInput, str, Memory, object])
assert_type(call_model(), Step[ModelInput, str, Memory, object])

agent = loop(both, until=until.no_tool_calls() | until.max_steps(10))
agent0 = loop(call_model("m", tools=(search, plus)), until=until.no_tool_calls())
agent1 = loop(call_model("m"), until=until.no_tool_calls(), max_iterations=5)
assert_type(agent, Step[ModelInput, str, Mem, State])
assert_type(agent0, Step[ModelInput, str, Memory, object])
plain: Step[str, str, Mem, State] = agent
plain0: Step[str, str] = agent0
plain1: Step[str, str] = agent1

call_model("m", tools=(len,))  # E
call_model("m", tools=(search), instructions=3)  # E


# A tool as a step, and a step as a tool.
@step
async def summary(text: str, ctx: Context[Mem, State]) -> int:
    return len(text)


assert_type(call_tool(search, args={"query": "x"}), Step[object, list[str], Memory, object])
assert_type(call_tool(plus, args={"a": 1, "b": 2}), Step[object, int, Memory, object])
assert_type(call_tool(buy, args={"sku": "x"}, id="buy"), Step[object, str, Mem, State])


def wanted(text: str) -> dict[str, object]:
    return {"query": text}


assert_type(call_tool(search, args=wanted), Step[str, list[str], Memory, object])
call_tool(search)  # E
call_tool(summary, args={})  # E
as_tool = step_tool(summary, name="summary", description="Sum up.")
needs: Tool[..., object, Mem, State] = as_tool
lean: Tool[..., object] = as_tool  # E
assert_type(call_model("m", tools=(as_tool, search)), Step[ModelInput, str, Mem, State])


async def main() -> None:
    async with Harness(memory=Mem()) as h:
        r = await h.run(agent, "go", state=State())
        assert_type(r.value, str)
        assert_type(r.state, State)
        r0 = await h.run(agent0, "go")
        assert_type(r0.value, str)
        assert_type(r0.output_or(None), str | None)
        await h.run(agent, "go")  # E
        await h.run(agent0, 3)  # E
        r1 = await h.run(call_tool(search, args=wanted), "tides")
        assert_type(r1.value, list[str])
    async with Harness() as h0:
        await h0.run(agent, "go", state=State())  # E
        assert_type((await h0.run(agent1, "go")).value, str)
        Harness(memory=Mem(), tools=[where])
        Harness(tools=[search, plus])
        Harness(tools=[where])  # E
