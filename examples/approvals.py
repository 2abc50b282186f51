"""An agent that pays bills, and a person who approves the payments, also while no process is running.

Two of three calls need approval. They are answered one by one, the second one first, each by a new process: what was
paid is not paid again. The roofer gets a part of what the model wanted to pay, and the model is told so. Then the agent
asks the person a question.
"""

import json
import tempfile

import anyio

from noetic_py import (
    Ask,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Memory,
    ReadContext,
    RunResult,
    StateBag,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.models import ModelRequest
from noetic_py.testing import ScriptedModel

paid: list[str] = []


def is_large(call: FunctionCall, ctx: ReadContext) -> bool:
    return bool(json.loads(call.arguments)["amount"] > 100)


@tool(needs_approval=is_large, expires=7 * 24 * 3600.0)
async def pay(to: str, amount: int) -> str:
    """Pay a bill.

    Args:
        to: Who gets it.
        amount: Euros.
    """
    paid.append(to)
    return f"{amount} euros to {to}: done"


def clerk(request: ModelRequest) -> str | list[FunctionCall]:
    """Stands for a model: pays each bill, then says what has become of it."""
    told = [str(item.output) for item in request.items if isinstance(item, FunctionCallOutput)]
    if told:
        return "; ".join(told)
    bills = {"the baker": 40, "the roofer": 2400, "a stranger": 900}
    return [FunctionCall(name="pay", arguments={"to": to, "amount": amount}) for to, amount in bills.items()]


agent = loop(call_model(tools=[pay]), until=until.no_tool_calls())


@step
async def month(name: str, ctx: Context[Memory, StateBag]) -> str:
    report = await agent(f"Pay the bills of {name}.", ctx)
    again = await ctx.ask(Ask(f"{report}. Again next month?", bool))
    return "see you next month" if again else "goodbye"


def started_anew(folder: str) -> Harness:
    return Harness(model=ScriptedModel(*[clerk] * 3), checkpoints=f"sqlite:{folder}/bills.db")


def tell(result: RunResult[str, StateBag]) -> None:
    print(f"\n{result.status}; paid so far: {', '.join(paid)}")
    for request in result.pending:
        print(f"  {request.kind}: {request.prompt or f'{request.tool} {dict(request.arguments)}'}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with started_anew(folder) as harness:
            tell(await harness.run(month, "May", run_id="may"))

        async with started_anew(folder) as harness:
            (waiting,) = await harness.runs.list(status="suspended")
            stranger = waiting.pending[1].reject("they are unknown", by="ada")
            tell(await harness.resume("may", month, answers=[stranger]))

        async with started_anew(folder) as harness:
            waiting = await harness.runs.get("may")
            part = waiting.pending[0].approve(arguments={"to": "the roofer", "amount": 1200}, by="ada")
            tell(await harness.resume("may", month, answers=[part]))

        async with started_anew(folder) as harness:
            waiting = await harness.runs.get("may")
            result = await harness.resume("may", month, answers=[waiting.pending[0].answer(True)])
            print(f"\n{result.value}")


if __name__ == "__main__":
    anyio.run(main)
