"""Two prompts over the same cases: which one answers better, and what each costs.

A script says what the model might say, so the program needs no key and always prints the same.
Run it with `python evaluation.py`. It needs `pip install "noetic-py[evals]"`.
"""

from __future__ import annotations

import anyio
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected

from noetic_py import Harness, Message, ModelRequest, TokenUsage, call_model
from noetic_py.testing import ScriptedModel, evaluation_task

HEIGHTS = {"Brest": "6.9 m", "Dover": "6.7 m", "Calais": "7.2 m"}

dataset = Dataset[str, str](
    name="heights",
    cases=[
        Case(name=port, inputs=f"How high is high water in {port}?", expected_output=height)
        for port, height in HEIGHTS.items()
    ],
    evaluators=[EqualsExpected()],
)

PROMPTS = {
    "plain": "Answer the question.",
    "strict": "Answer with a number and a unit only, such as 4.2 m.",
}


def answer(request: ModelRequest) -> str:
    """What the model might say: without strict instructions it is chatty now and then."""
    (question,) = request.items
    assert isinstance(question, Message)
    port = next(port for port in HEIGHTS if port in question.text)
    chatty = port != "Dover" and "only" not in (request.instructions or "")
    return f"It is {HEIGHTS[port]}." if chatty else HEIGHTS[port]


async def main() -> None:
    model = ScriptedModel(*[answer] * 12, usage=TokenUsage(input=30, output=6), cost="0.0005")
    async with Harness(model=model) as harness:
        for name, instructions in PROMPTS.items():
            task = evaluation_task(harness, call_model(instructions=instructions))
            report = await dataset.evaluate(task, name=name, repeat=2, progress=False)
            averages = report.averages()
            assert averages is not None
            print(f"{name}: {averages.assertions:.0%} right, {averages.metrics['tokens']:.0f} tokens a run")
            wrong = {case.output for case in report.cases if case.output != case.expected_output}
            for text in sorted(wrong):
                print(f"  wrong: {text}")


if __name__ == "__main__":
    anyio.run(main)
