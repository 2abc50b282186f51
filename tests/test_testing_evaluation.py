"""Evaluation with pydantic-evals: what a report says of the runs of its cases."""

from __future__ import annotations

import sys

import pytest
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected

from noetic_py import Budget, Context, Harness, Message, ModelRequest, TokenUsage, call_model, sequence, step
from noetic_py.errors import BudgetExceeded, MissingExtra
from noetic_py.testing import ScriptedModel, evaluation_task

pytestmark = pytest.mark.anyio


def shouts(request: ModelRequest) -> str:
    (said,) = request.items
    assert isinstance(said, Message)
    return said.text.upper()


@step
async def trimmed(text: str) -> str:
    if text == "broken":
        raise ValueError("no such port")
    return text.strip()


flow = sequence(trimmed, call_model(), id="shout")


def dataset(*cases: tuple[str, str]) -> Dataset[str, str]:
    made = [Case(name=text.strip(), inputs=text, expected_output=expected) for text, expected in cases]
    return Dataset[str, str](name="ports", cases=made, evaluators=[EqualsExpected()])


def harness() -> Harness:
    return Harness(model=ScriptedModel(*[shouts] * 9, usage=TokenUsage(input=20, output=5), cost="0.01"))


async def test_a_case_is_a_run_with_its_numbers() -> None:
    async with harness() as one:
        report = await dataset(("brest ", "BREST"), ("dover", "?")).evaluate(evaluation_task(one, flow), progress=False)
    assert (report.name, report.failures) == ("shout", [])
    metrics = {"steps": 2, "model_calls": 1, "tokens": 25, "cost_usd": 0.01}
    assert {case.name: case.metrics for case in report.cases} == {"brest": metrics, "dover": metrics}
    assert {case.name: case.output for case in report.cases} == {"brest": "BREST", "dover": "DOVER"}
    assert len({case.attributes["run_id"] for case in report.cases}) == 2
    averages = report.averages()
    assert averages is not None
    assert averages.assertions == 0.5


async def test_repeated_cases_are_runs_of_their_own() -> None:
    async with harness() as one:
        report = await dataset(("brest", "BREST")).evaluate(evaluation_task(one, flow), repeat=3, progress=False)
    groups = report.case_groups()
    assert groups is not None
    assert [(group.name, len(group.runs), group.summary.assertions) for group in groups] == [("brest", 3, 1.0)]
    assert len({case.attributes["run_id"] for case in report.cases}) == 3


async def test_a_run_without_a_value_is_a_failure_of_the_report() -> None:
    @step
    async def stops(text: str, ctx: Context) -> str:
        if text == "stop":
            ctx.abort("enough")
        return text

    async with harness() as one:
        broken = await dataset(("broken", "?"), ("brest", "BREST")).evaluate(evaluation_task(one, flow), progress=False)
        stopped = await dataset(("stop", "?")).evaluate(evaluation_task(one, stops), progress=False)
    assert [(each.name, each.error_message) for each in broken.failures] == [
        ("broken", "StepFailed: ValueError: no such port [at shout/trimmed]")
    ]
    assert [case.name for case in broken.cases] == ["brest"]
    assert [each.error_message for each in stopped.failures] == ["Aborted: aborted: enough"]


async def test_options_are_those_of_each_run() -> None:
    async with harness() as one:
        task = evaluation_task(one, flow, budget=Budget(steps=1))
        with pytest.raises(BudgetExceeded):
            await task("brest")
        report = await dataset(("brest", "BREST"), ("dover", "DOVER")).evaluate(
            evaluation_task(one, flow, budget=Budget(steps=2)), progress=False
        )
    assert report.failures == []


async def test_without_pydantic_evals_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_evals", None)
    with pytest.raises(MissingExtra, match=r"noetic-py\[evals\]"):
        evaluation_task(Harness(), flow)
