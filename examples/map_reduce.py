"""Map-reduce: a model writes a typed note about each document, and one step joins the notes.

`settle` runs a path for each document, at most four at once, and keeps the failures: one answer is not a note, and the
other notes are not lost. The budget holds for all paths together, and `max_output_tokens` lets their calls share it.
"""

from collections.abc import Sequence

import anyio
from pydantic import BaseModel

from noetic_py import Budget, Context, Harness, Message, ModelRequest, Step, call_model, settle, step
from noetic_py.steps.flow import Settled
from noetic_py.testing import ScriptedModel

LOGS = {f"day {day}": f"{day} boats came in." for day in range(1, 13)} | {"day 7": "This page is wet."}


class Note(BaseModel):
    day: str
    boats: int


note = call_model(
    instructions="How many boats came in?", output=Note, output_retries=0, settings={"max_output_tokens": 50}
)


def one_for_each(days: Sequence[str], ctx: Context) -> list[Step[object, Note]]:
    return [note.bind(f"{day}: {LOGS[day]}") for day in days]


@step
async def add(outcomes: list[Settled[Note]]) -> str:
    notes = [outcome.value for outcome in outcomes if outcome.ok]
    failed = [index for index, outcome in enumerate(outcomes, 1) if not outcome.ok]
    return f"{sum(note.boats for note in notes)} boats on {len(notes)} days; no note of day {failed}"


harbour = settle(one_for_each, concurrency=4) >> add


def read(request: ModelRequest) -> str:
    """What a model might answer."""
    asked = request.items[-1]
    day, _, text = asked.text.partition(": ") if isinstance(asked, Message) else ("", "", "")
    boats = text.split()[0]
    return Note(day=day, boats=int(boats)).model_dump_json() if boats.isdigit() else "I cannot read this page."


async def main() -> None:
    model = ScriptedModel(*[read] * len(LOGS), cost="0.001")
    async with Harness(model=model) as harness:
        result = await harness.run(harbour, list(LOGS), budget=Budget(cost="0.05", tokens=20_000))
    print(result.value)
    print(f"{result.model_calls} model calls for ${result.cost}")


if __name__ == "__main__":
    anyio.run(main)
