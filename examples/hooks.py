"""Hooks around an agent: rules for tool calls, a count of answers, a stored file, and a handover to a person.

None of that is in the agent. Rules check each call, a meter counts answers, a sheet is kept as an artifact, and a guard
hands over to a person before the model is asked. `clerk` stands for a model.
"""

import json

import anyio
from attrs import define, field

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Handoff,
    Harness,
    HookContext,
    InMemoryBackend,
    Memory,
    ModelRequest,
    ModelResponse,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.context import hooks
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.testing import ScriptedModel


@define
class Desk:
    answers: int = 0
    refused: list[str] = field(factory=list[str])


Ctx = HookContext[Memory, Desk]


@hooks.after_model
async def meter(ctx: Ctx, response: ModelResponse) -> None:
    ctx.state.answers += 1


@hooks.before_tool(tags=["money"])
async def small_sums(ctx: Ctx, call: FunctionCall) -> hooks.Block | None:
    if json.loads(call.arguments)["euros"] > 99:
        ctx.state.refused.append(call.arguments)
        return hooks.Block("Only up to 99 euros.")
    return None


@hooks.after_tool
async def keep_sheet(ctx: Ctx, call: FunctionCall, output: FunctionCallOutput) -> None:
    ctx.effects.save("sheet.txt", output.text.encode(), media_type="text/plain", scope="run")
    ctx.effects.skip_summary()


@hooks.before_step
async def guard(ctx: Ctx, call: hooks.StepCall) -> None:
    if "complaint" in str(call.input):
        ctx.effects.hand_off(person, str(call.input))


@tool(tags=["money"])
async def refund(euros: int) -> str:
    """Pay something back."""
    return f"{euros} euros paid back"


@tool(hooks=[keep_sheet])
async def price_sheet() -> str:
    """All prices."""
    return "lamp 20, mat 9"


@step
async def person(text: str) -> str:
    return f"a person calls back about: {text}"


agent = loop(call_model(tools=[refund, price_sheet], hooks=[small_sums]), until=until.no_tool_calls())


@step(handoffs=[person])
async def answer(text: str, ctx: Context[Memory, Desk]) -> str | Handoff[str]:
    return await agent(text, ctx) or ""


def clerk(request: ModelRequest) -> str | list[FunctionCall]:
    last = request.items[-1]
    if isinstance(last, FunctionCallOutput):
        return f"Done: {last.text}"
    asked = str(last)
    if "prices" in asked:
        return [FunctionCall(name="price_sheet")]
    return [FunctionCall(name="refund", arguments={"euros": 20 if "lamp" in asked else 2000})]


async def main() -> None:
    backend = InMemoryBackend()
    desk = answer.with_options(hooks=[guard, meter])
    async with Harness(
        model=ScriptedModel(*[clerk] * 5), checkpoints=backend, services={ArtifactStore: StoredArtifacts()}
    ) as harness:
        for text in ("The lamp is broken.", "The house is broken.", "Your prices?", "I have a complaint."):
            result = await harness.run(desk, text, state=Desk())
            print(f"{text} -> {result.value}\n  {result.state}")
            sheet = await StoredArtifacts(backend).load(ArtifactOwner("run", result.run_id), "sheet.txt")
            if sheet is not None:
                print(f"  kept as {sheet.name}, {sheet.media_type}")


if __name__ == "__main__":
    anyio.run(main)
