"""Models with retries, timeouts, limits and fallbacks: a failed call is made again, within the budget.

The first model has a bad day: one answer breaks off in the middle, one stalls, and the third request is rejected. So
the second model takes over. Then five paths share a model that takes two requests at a time.
"""

import logging

import anyio

from noetic_py import Budget, Harness, ModelRequest, TokenUsage, call_model, settle
from noetic_py.core.events import ModelFailed, ModelFinished, ModelStarted, TextDelta
from noetic_py.errors import ModelStreamError, RateLimited
from noetic_py.models import FallbackModel, LimitedModel, RetryModel, TimedModel
from noetic_py.testing import ScriptedModel, Unfinished

LARGE = "acme:large"

large = ScriptedModel(
    Unfinished("The tide is high because", ModelStreamError("the stream was cut", model=LARGE)),
    Unfinished("The tide"),  # and then nothing any more
    RateLimited("too many requests", model=LARGE, retry_after=0.05),
    name=LARGE,
    usage=TokenUsage(input=40, output=20),
    cost="0.04",
)
small = ScriptedModel("The moon pulls the water.", name="acme:small", usage=TokenUsage(input=40, output=6), cost="0.01")

# From the inside: each try has its times and its place; a model that fails three times is given up for the next one.
patient = RetryModel(LimitedModel(TimedModel(large, begin=10.0, idle=0.05), concurrency=2), attempts=3, initial=0.01)
sturdy = FallbackModel(patient, small)


async def watch_one_answer() -> None:
    async with Harness(model=sturdy) as harness:
        async with harness.stream(call_model(), "Why are there tides?", budget=Budget(cost="1.00")) as stream:
            async for event in stream.events:
                match event:
                    case ModelStarted():
                        print(f"{event.model}: ", end="")
                    case TextDelta():
                        print(event.delta, end="")
                    case ModelFailed():
                        print(f" ... discarded, ${event.cost or 0}")
                    case ModelFinished():
                        print(f" ... done, ${event.cost}")
                    case _:
                        pass
            result = await stream.result()
        print(f"{result.model_calls} calls for ${result.cost}: {result.value}")


async def share_a_model() -> None:
    running: list[int] = []

    def answer(request: ModelRequest) -> str:
        running.append(shared.running)
        return "So be it."

    shared = LimitedModel(ScriptedModel(*[answer] * 5, delay=0.01), concurrency=2)
    async with Harness(model=shared) as harness:
        result = await harness.run(settle([call_model(id=f"path{number}") for number in range(5)]), "Go on.")
    print(f"{sum(outcome.ok for outcome in result.value)} answers, at most {max(running)} at once")


async def main() -> None:
    await watch_one_answer()
    await share_a_model()


if __name__ == "__main__":
    # Each attempt that fails is a warning of this logger; here the program itself says what happens.
    logging.getLogger("noetic_py.models").setLevel(logging.ERROR)
    anyio.run(main)
