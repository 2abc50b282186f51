"""Agents that hand a customer over to each other, in one conversation.

The front desk asks a model what the customer wants, and hands over to the step that knows about it. That step may hand
over again. A chain is flat and limited: `max_handoffs=` is the largest number of handoffs in one. `clerk` stands for a
model.
"""

from enum import Enum

import anyio
from attrs import define, field

from noetic_py import (
    Context,
    FunctionCall,
    Handoff,
    Harness,
    Memory,
    Message,
    Step,
    call_model,
    errors,
    handoff_to,
    loop,
    step,
    until,
)
from noetic_py.models import ModelRequest
from noetic_py.testing import ScriptedModel


class Matter(Enum):
    BILLS = "bills"
    REPAIRS = "repairs"


@define
class Case:
    seen_by: list[str] = field(factory=list[str])


Ctx = Context[Memory, Case]

sort_out = call_model(instructions="Whose matter is it: bills or repairs?", output=Matter)


def colleagues() -> list[Step[str, str, Memory, Case]]:
    """Those who stand further down."""
    return [bills, repairs]


@step(handoffs=colleagues, max_handoffs=4)
async def front_desk(text: str, ctx: Ctx) -> str | Handoff[str]:
    ctx.state.seen_by.append("front desk")
    matter = await sort_out(text, ctx)
    return Handoff(bills if matter is Matter.BILLS else repairs, text)


@step(handoffs=colleagues)
async def bills(text: str, ctx: Ctx) -> str | Handoff[str]:
    ctx.state.seen_by.append("bills")
    if "leaks" in text and "repairs" not in ctx.state.seen_by:
        return Handoff(repairs, text)
    # What was said at the other desk is known here.
    said = ctx.items[-1]
    return f"nothing to pay: {said.text}" if isinstance(said, Message) else "to be paid in May"


@step(handoffs=colleagues)
async def repairs(text: str, ctx: Ctx) -> str | Handoff[str]:
    ctx.state.seen_by.append("repairs")
    if "always" in text:
        return Handoff(repairs, text)
    ctx.items.append(Message.assistant("the pipe was ours to mend"))
    return Handoff(bills, text) if "bill" in text else "a plumber comes tomorrow"


night_desk = loop(
    call_model(instructions="Help, or hand over.", handoffs=[bills, handoff_to(repairs, description="Mends things.")]),
    until=until.no_tool_calls(),
    id="night_desk",
)


def porter(request: ModelRequest) -> str | FunctionCall:
    said = request.items.last_text("user", "")
    if "leaks" not in said:
        return "Good night."
    return FunctionCall(name="transfer_to_repairs", arguments={"input": f"{said} Room 12."})


def clerk(request: ModelRequest) -> str:
    said = [item.text for item in request.items if isinstance(item, Message)]
    return '{"value": "bills"}' if "bill" in said[-1] else '{"value": "repairs"}'


async def main() -> None:
    async with Harness(model=ScriptedModel(*[clerk] * 3)) as harness:
        for text in ("The tap drips.", "It leaks, and I got a bill.", "It always drips."):
            case = Case()
            try:
                answer = (await harness.run(front_desk, text, state=case)).value
            except errors.HandoffLimit as error:
                answer = f"({error.message})"
            print(f"{text} -> {answer}\n  {', '.join(case.seen_by)}")
    async with Harness(model=ScriptedModel(porter, porter)) as harness:
        for text in ("Is anyone there?", "It leaks."):
            result = await harness.run(night_desk, text, state=Case())
            print(f"{text} -> {result.value} {[item.type for item in result.items]}")


if __name__ == "__main__":
    anyio.run(main)
