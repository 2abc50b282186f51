"""Evaluation with pydantic-evals: what a report says of the runs of its cases."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean
from typing import Any

import pytest
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected, EvaluationResult, EvaluatorSpec
from pydantic_evals.reporting import EvaluationReport, ReportCase

from noetic_py import Budget, Context, Harness, Message, ModelRequest, TokenUsage, call_model, sequence, step
from noetic_py.errors import BudgetExceeded, ConfigError, MissingExtra
from noetic_py.testing import ScoreInterval, ScriptedModel, evaluation_task, score_intervals

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


# -------------------------------------------------------------------------------------------------- how sure a score is

Runs = Sequence[Sequence[bool | float]]
"""The results of one evaluator: of each case, those of its runs."""


def report_of(found: Runs) -> EvaluationReport[Any, Any, Any]:
    cases: list[ReportCase[Any, Any, Any]] = []
    source = EvaluatorSpec(name="it", arguments=None)
    for number, runs in enumerate(found):
        for index, value in enumerate(runs):
            result: dict[str, Any] = {"it": EvaluationResult(name="it", value=value, reason=None, source=source)}
            case: ReportCase[Any, Any, Any] = ReportCase(
                name=f"{number}" if len(runs) == 1 else f"{number} [{index + 1}/{len(runs)}]",
                inputs=None,
                metadata=None,
                expected_output=None,
                output=None,
                metrics={},
                attributes={},
                scores={} if isinstance(value, bool) else result,
                labels={},
                assertions=result if isinstance(value, bool) else {},
                task_duration=0.0,
                total_duration=0.0,
                source_case_name=None if len(runs) == 1 else f"{number}",
            )
            cases.append(case)
    return EvaluationReport(name="report", cases=cases)


def interval(found: Runs, confidence: float = 0.95) -> ScoreInterval:
    return score_intervals(report_of(found), confidence=confidence)["it"]


async def test_a_report_has_an_interval_for_each_scorer() -> None:
    async with harness() as one:
        report = await dataset(("brest", "BREST"), ("dover", "?")).evaluate(
            evaluation_task(one, flow), repeat=3, progress=False
        )
    averages = report.averages()
    found = score_intervals(report)
    assert list(found) == ["EqualsExpected"]
    assert averages is not None
    assert averages.assertions == found["EqualsExpected"].mean == 0.5
    assert (found["EqualsExpected"].cases, found["EqualsExpected"].runs) == (2, 6)


def test_assertions_of_single_runs_have_the_agresti_coull_interval() -> None:
    for passed, size in ((0, 10), (3, 10), (10, 10), (45, 50)):
        z = 1.959963985
        middle = (passed + z * z / 2) / (size + z * z)
        half = z * sqrt(middle * (1 - middle) / (size + z * z))
        found = interval([[number < passed] for number in range(size)])
        assert (found.mean, found.cases, found.runs) == (passed / size, size, size)
        assert found.low == pytest.approx(max(0.0, middle - half))
        assert found.high == pytest.approx(min(1.0, middle + half))


def test_scores_have_the_t_interval() -> None:
    # Student's t for 95 %, from a printed table.
    for size, t in ((2, 12.7062), (3, 4.3027), (4, 3.1824), (5, 2.7764), (10, 2.2622), (30, 2.0452), (100, 1.9842)):
        values = [float(number) for number in range(size)]
        error = sqrt(sum((each - fmean(values)) ** 2 for each in values) / (size - 1) / size)
        found = interval([[each] for each in values])
        assert found.high - found.mean == pytest.approx(t * error, rel=1e-4)
        assert found.mean - found.low == pytest.approx(t * error, rel=1e-4)
    assert interval([[1.0], [2.0], [3.0], [4.0]], confidence=0.99).high == pytest.approx(
        2.5 + 5.8409 * 1.29099 / 2, rel=1e-4
    )
    assert interval([[0.7], [0.7]]) == ScoreInterval(0.7, 0.7, 0.7, 2, 2)


def test_a_number_that_was_seen_once_passes_no_gate() -> None:
    assert interval([[0.9]]) == ScoreInterval(0.9, -inf, inf, 1, 1)
    assert interval([[True]]).low < 0.3


def test_a_case_that_fails_more_often_lowers_the_interval() -> None:
    lows = [interval([[True] * 5] * 19 + [[index >= failed for index in range(5)]]).low for failed in range(6)]
    assert lows == sorted(lows, reverse=True)
    assert len(set(lows)) == 6


def test_repeated_runs_that_agree_are_no_more_evidence() -> None:
    once = interval([[number % 4 > 0] for number in range(20)])
    often = interval([[number % 4 > 0] * 50 for number in range(20)])
    assert (once.low, once.high) == (often.low, often.high)
    # Where the runs of a case differ, repeating them says more.
    varied = interval([[(number + index) % 4 > 0 for index in range(20)] for number in range(20)])
    assert varied.mean == once.mean
    assert once.low < varied.low < varied.high < once.high


def test_of_a_single_case_the_runs_are_observed() -> None:
    runs = [number % 4 > 0 for number in range(20)]
    one, single = interval([runs]), interval([[each] for each in runs])
    assert (one.low, one.high, one.cases, one.runs) == (single.low, single.high, 1, 20)


@pytest.mark.parametrize("cases", [5, 30])
def test_intervals_contain_the_true_mean_as_often_as_they_say(cases: int) -> None:
    dice = random.Random(cases)
    rounds, yes_no, numbers = 400, 0, 0
    for _ in range(rounds):
        # Cases are easy or hard, so that the runs of one are alike.
        shares = [dice.betavariate(3, 1) for _ in range(cases)]
        found = interval([[dice.random() < share for _ in range(4)] for share in shares])
        yes_no += found.low <= 0.75 <= found.high
        means = [dice.gauss(10, 3) for _ in range(cases)]
        found = interval([[dice.gauss(mean, 1) for _ in range(4)] for mean in means])
        numbers += found.low <= 10 <= found.high
    assert yes_no / rounds >= 0.93
    assert 0.93 <= numbers / rounds <= 0.97


def test_what_has_no_interval_is_refused() -> None:
    for wrong in (0.0, 1.0, 95.0, float("nan")):
        with pytest.raises(ConfigError, match="expected a number between 0 and 1") as caught:
            score_intervals(report_of([]), confidence=wrong)
        assert caught.value.code == "confidence"
    with pytest.raises(ConfigError, match="'it' is an assertion in some runs and a score in others") as caught:
        interval([[True], [0.5]])
    assert caught.value.code == "score-name"
    for wrong in (inf, -inf, float("nan")):
        with pytest.raises(ConfigError, match=r"'it' of case '1' is .*: not a valid score") as caught:
            interval([[0.5], [wrong]])
        assert caught.value.code == "score-value"
    assert score_intervals(report_of([])) == {}
