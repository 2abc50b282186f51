# A tool that a person approves, and how its run ended.
from attrs import define
from typing_extensions import assert_type

from noetic_py import Context, FunctionCall, Harness, Memory, ReadContext, RunStatus, call_model, loop, tool, until
from noetic_py.errors import Aborted, NoeticError


@define
class State:
    n: int = 0


@tool(needs_approval=lambda call, ctx: ctx.turns > 3 and call.name == "pay")
async def pay(ctx: Context[Memory, State], amount: int) -> str:
    return "ok"


async def dear(call: FunctionCall, ctx: ReadContext[Memory, object]) -> bool:
    return "amount" in call.arguments


@tool(needs_approval=dear, long_running=True)
async def order(amount: int) -> str:
    return "ok"


@tool(needs_approval=lambda call: True)  # E
async def forget(amount: int) -> str:
    return "ok"


agent = loop(call_model("x", tools=(pay, order)), until=until.no_tool_calls())


async def post(h: Harness, body: dict[str, str]) -> dict[str, object]:
    try:
        r = await h.run(agent, body["text"], state=State())
    except Aborted as error:
        return {"why": error.reason, "at": error.path}
    except NoeticError as error:
        return {"why": str(error)}
    assert_type(r.status, RunStatus)
    assert_type(r.state, State)
    if r.status == "suspended":
        return {"run": r.run_id, "waits": len(r.pending)}
    return {"value": r.value, "text": r.text, "new": r.new_items}


async def post_without_state(h: Harness, body: dict[str, str]) -> str:
    return (await h.run(agent, body["text"])).value  # E
