"""Evaluation with pydantic-evals: a flow as the task of a data set, and how sure its scores are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import isfinite, sqrt
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any, Unpack

from attrs import frozen

from noetic_py.context.step import Step
from noetic_py.core.state import StateBag
from noetic_py.core.types import M, R, T
from noetic_py.errors import ConfigError, MissingExtra
from noetic_py.trial.result import interval_of

if TYPE_CHECKING:
    from pydantic_evals.reporting import EvaluationReport

    from noetic_py.harness import Harness
    from noetic_py.runner.plan import RunOptions


def evaluation_task(
    harness: Harness[M], flow: Step[T, R, M, StateBag], **options: Unpack[RunOptions]
) -> Callable[[T], Awaitable[R]]:
    """Make the task of a `pydantic_evals.Dataset` of a flow: each case is one run, and its inputs are the flow's input.

    ```python
    report = await dataset.evaluate(evaluation_task(harness, agent), repeat=5)
    ```

    The metrics of a case are those of its run: `steps`, `model_calls`, `tokens`, and `cost_usd` where every model has a
    price. A metric that is zero is absent, as in all reports of pydantic-evals. The run's id is the attribute `run_id`.
    A run that broke, or was stopped before it had a value, is a failure of the report.

    Args:
        harness: The harness, in whose event loop the data set is evaluated.
        flow: The flow.
        **options: Options of each run, such as `budget=`; see [`RunOptions`][noetic_py.runner.plan.RunOptions].

    Raises:
        MissingExtra: pydantic-evals is not installed.
    """
    try:
        from pydantic_evals import increment_eval_metric, set_eval_attribute
    except ImportError as error:
        raise MissingExtra("pydantic-evals, which evaluates,", install='pip install "noetic-py[evals]"') from error

    async def task(inputs: T) -> R:
        result = await harness.run(flow, inputs, **options)
        increment_eval_metric("steps", result.steps)
        increment_eval_metric("model_calls", result.model_calls)
        increment_eval_metric("tokens", result.usage.total)
        if result.cost is not None:
            increment_eval_metric("cost_usd", float(result.cost))
        set_eval_attribute("run_id", result.run_id)
        return result.value

    # Reports are named after their task.
    task.__name__ = task.__qualname__ = flow.id
    return task


@frozen
class ScoreInterval:
    """The mean of a score in a report, and the confidence interval around it.

    Attributes:
        mean: The mean over the cases, each with the average of its runs.
        low: Where the interval begins; of a number that was seen once it is minus infinity.
        high: Where it ends.
        cases: How many cases have the score.
        runs: How many runs have it.
    """

    mean: float
    low: float
    high: float
    cases: int
    runs: int


def score_intervals(report: EvaluationReport[Any, Any, Any], *, confidence: float = 0.95) -> dict[str, ScoreInterval]:
    """The mean of each assertion and each score of a report, with a confidence interval.

    ```python
    report = await dataset.evaluate(evaluation_task(harness, agent), repeat=5)
    assert score_intervals(report)["EqualsExpected"].low >= 0.8, report.render()
    ```

    The interval is about other cases of the same kind. So the averages of the cases are the observations, and not the
    runs: repeated runs of one case are alike, and to count them all would make the interval too narrow. In a report of
    a single case the runs are the observations, and the interval is about that case. Assertions have an Agresti-Coull
    interval, which is sound for few cases and if all of them pass; scores have a Student's t interval.

    Args:
        report: What `Dataset.evaluate` returned. Runs that failed, and evaluators that failed, have no score.
        confidence: How often such intervals contain the true mean.

    Returns:
        The intervals by the name of the assertion or the score.

    Raises:
        ConfigError: `confidence` is not between 0 and 1 (code `"confidence"`); a score is not finite (`"score-value"`);
            or a name is an assertion in one run and a score in another (`"score-name"`).
    """
    if not 0 < confidence < 1:
        raise ConfigError(
            f"confidence={confidence!r} is not valid; expected a number between 0 and 1",
            code="confidence",
            hint="confidence=0.95",
        )
    assertions: dict[str, dict[str, list[float]]] = {}
    scores: dict[str, dict[str, list[float]]] = {}
    for case in report.cases:
        for found, results in ((assertions, case.assertions), (scores, case.scores)):
            for name, result in results.items():
                value = float(result.value)
                if not isfinite(value):
                    raise ConfigError(
                        f"{name!r} of case {case.name!r} is {value}: not a valid score; expected a finite number",
                        code="score-value",
                        hint="let the evaluator return no score for what it cannot judge",
                    )
                found.setdefault(name, {}).setdefault(case.source_case_name or case.name, []).append(value)
    for name in assertions.keys() & scores.keys():
        raise ConfigError(
            f"{name!r} is an assertion in some runs and a score in others, so it has no mean",
            code="score-name",
            hint="let the evaluator always return a bool, or always a number",
        )
    return {
        name: _interval(list(cases.values()), confidence, spread)
        for found, spread in ((assertions, _agresti_coull), (scores, _student))
        for name, cases in found.items()
    }


def _interval(
    cases: Sequence[Sequence[float]],
    confidence: float,
    spread: Callable[[Sequence[float], float], tuple[float, float]],
) -> ScoreInterval:
    averages = [fmean(runs) for runs in cases]
    observed = averages if len(cases) > 1 else cases[0]
    low, high = spread(observed, confidence)
    return ScoreInterval(fmean(averages), low, high, len(cases), sum(map(len, cases)))


def _agresti_coull(observed: Sequence[float], confidence: float) -> tuple[float, float]:
    """The interval of shares of 0 to 1, as if a few more had been seen, half of them 0 and half of them 1."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    added = z * z / 2
    size = len(observed) + 2 * added
    middle = (sum(observed) + added) / size
    squares = sum((each - middle) ** 2 for each in observed) + added * (middle**2 + (1 - middle) ** 2)
    half = z * sqrt(squares / size / size)
    return max(0.0, middle - half), min(1.0, middle + half)


def _student(observed: Sequence[float], confidence: float) -> tuple[float, float]:
    """The interval of numbers of any size."""
    found = interval_of(observed, confidence)
    return found.low, found.high
