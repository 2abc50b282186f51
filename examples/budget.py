"""Budgets: a limit on model calls that holds for twenty calls at once, and a wrap-up when the money is used up.

First twenty model calls start at the same moment under a budget of eight. Then an agent that would never stop runs out
of money, and a wrap-up step summarises the result with the part that was kept back for it.
"""

import anyio

from noetic_py import Budget, Harness, ModelRequest, TokenUsage, call_model, loop, settle, until
from noetic_py.testing import ScriptedModel


def answer(request: ModelRequest) -> str:
    return "The sea comes and goes." if request.instructions else "High water comes about every twelve hours."


# Two cents a call.
model = ScriptedModel(*[answer] * 30, usage=TokenUsage(input=40, output=10), cost="0.02", delay=0.01)

# What is refused in one path is an outcome here, and stops no other.
crowd = settle([call_model(id=f"ask{number}") for number in range(20)])

agent = loop(call_model(), until=until.never(), prepare_next=lambda answer, verdict, ctx: "Tell me another one.")
sum_up = call_model(id="sum_up", instructions="Say what we have, in one sentence.")


async def main() -> None:
    # The harness has a budget too, and it holds for all of its runs together.
    async with Harness(model=model, budget=Budget(cost="1.00")) as harness:
        result = await harness.run(crowd, "Tell me a fact.", budget=Budget(model_calls=8))
        refused = [outcome.error for outcome in result.value if outcome.error is not None]
        print(f"{result.model_calls} calls made for ${result.cost}, {len(refused)} refused")
        print(f"a refusal says: {refused[0].message}")

        frugal = Budget(cost="0.10", wrap_up=sum_up, reserve=Budget(cost="0.02"))
        rest = await harness.run(agent, "Tell me a fact.", budget=frugal)
        print(f"\n{rest.status}: {rest.reason}")
        print(f"{rest.model_calls} calls made for ${rest.cost}, the last one by the wrap-up: {rest.value}")


if __name__ == "__main__":
    anyio.run(main)
