"""Typed answers: a model's answer becomes a value of a type, or the model is told what was wrong and asked again.

The first answer is not a valid `Forecast`. The second one is valid but not plausible, and `validate` sends it back. The
third is good. The next step of the flow gets a `Forecast`, and type checkers know it.
"""

from typing import Literal

import anyio
from pydantic import BaseModel, Field

from noetic_py import Harness, Message, call_model, step
from noetic_py.errors import ModelRetry
from noetic_py.testing import ScriptedModel


class Forecast(BaseModel):
    sky: Literal["clear", "cloudy", "rain"]
    celsius: float = Field(ge=-90, le=60)
    wind: list[str] = []


def plausible(forecast: Forecast) -> Forecast:
    if forecast.sky == "clear" and "storm" in forecast.wind:
        raise ModelRetry("a storm under a clear sky is unlikely; look again")
    return forecast


@step
async def advise(forecast: Forecast) -> str:
    return "Take an umbrella." if forecast.sky == "rain" else "Leave the umbrella at home."


flow = call_model(output=Forecast, validate=plausible, output_retries=2) >> advise


async def main() -> None:
    model = ScriptedModel(
        '{"sky": "grey", "celsius": 400}',
        '{"sky": "clear", "celsius": 12.5, "wind": ["storm"]}',
        '{"sky": "rain", "celsius": 12.5, "wind": ["storm"]}',
    )
    async with Harness(model=model) as harness:
        result = await harness.run(flow, "What will the weather be like?")
    for request in model.requests:
        said = [item.text for item in request.items if isinstance(item, Message)]
        print(f"asked:    {said[-1]}")
    print(f"in the end: {result.value} ({result.model_calls} model calls)")


if __name__ == "__main__":
    anyio.run(main)
