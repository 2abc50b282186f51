"""Evaluation with pydantic-evals: a flow as the task of a data set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Unpack

from noetic_py.context.step import Step
from noetic_py.core.state import StateBag
from noetic_py.core.types import M, R, T
from noetic_py.errors import MissingExtra

if TYPE_CHECKING:
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
