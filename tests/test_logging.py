"""Log records: which logger says what, with which fields, at which level, and without secrets."""

from __future__ import annotations

import logging
from typing import Any, get_args

import anyio.lowlevel
import pytest

from noetic_py import Budget, Context, Harness, Memory, Retry, Secret, call_model, loop, step, until
from noetic_py.core.diagnostics import Area, Where, is_verbose, log
from noetic_py.errors import ModelUnavailable, StepFailed
from noetic_py.models import FallbackModel, RetryModel
from noetic_py.testing import ScriptedModel

DOWN = ModelUnavailable("connection refused", model="test:scripted")


def read(caught: pytest.LogCaptureFixture, area: str) -> list[tuple[Any, ...]]:
    """The records of an area: level, path, attempt, message."""
    found: list[Any] = [each for each in caught.records if each.name == f"noetic_py.{area}"]
    assert {each.run for each in found} <= {"tides"}
    return [(each.levelname, each.path, each.attempt, each.getMessage()) for each in found]


def flaky(fails: int, retry: Retry | int) -> Any:
    tries: list[int] = []

    @step(retry=retry)
    async def inner(x: str) -> str:
        tries.append(1)
        if len(tries) <= fails:
            raise ValueError("no")
        return x

    @step
    async def outer(x: str, ctx: Context) -> str:
        return await inner(x, ctx)

    return outer


@pytest.mark.parametrize("checkpoints", [None, "memory:"])
async def test_steps_and_runs_are_told_with_run_path_and_attempt(
    caplog: pytest.LogCaptureFixture, checkpoints: str | None
) -> None:
    caplog.set_level(logging.DEBUG, "noetic_py")
    async with Harness(plugins=[], checkpoints=checkpoints) as harness:
        await harness.run(flaky(1, Retry(2, initial=0.0)), "x", run_id="tides")
    assert read(caplog, "runs") == [
        ("INFO", "", 0, "run tides of outer started"),
        ("INFO", "", 0, "run tides of outer ended: completed"),
    ]
    assert read(caplog, "steps") == [
        ("DEBUG", "outer", 1, "code step started [at outer]"),
        ("DEBUG", "outer/inner", 1, "code step started [at outer/inner]"),
        (
            "WARNING",
            "outer/inner",
            1,
            "attempt 1 of 2 failed, the next follows in 0 s: ValueError: no [at outer/inner]",
        ),
        ("DEBUG", "outer/inner", 2, "code step started [at outer/inner]"),
        ("DEBUG", "outer/inner", 2, "code step finished [at outer/inner]"),
        ("DEBUG", "outer", 1, "code step finished [at outer]"),
    ]


async def test_what_is_raised_is_no_more_than_a_detail_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "noetic_py")
    async with Harness(plugins=[]) as harness:
        with pytest.raises(StepFailed):
            await harness.run(flaky(1, 1), "x", run_id="tides")
    failed = [each for each in caplog.records if "failed" in each.getMessage() and each.name == "noetic_py.steps"]
    assert [(each.levelname, vars(each)["path"], bool(each.exc_info)) for each in failed] == [
        ("DEBUG", "outer/inner", True),
        ("DEBUG", "outer", False),
    ]
    assert read(caplog, "runs")[-1] == ("INFO", "", 0, "run tides of outer ended: failed: ValueError: no")
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_step_that_is_stopped_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "noetic_py.steps")

    @step
    async def stops(x: str, ctx: Context) -> str:
        ctx.abort("enough")
        await anyio.lowlevel.checkpoint()
        return x

    async with Harness(plugins=[]) as harness:
        await harness.run(stops, "x", run_id="tides")
    assert read(caplog, "steps")[-1] == ("DEBUG", "stops", 1, "code step was stopped [at stops]")


async def test_without_debug_nothing_is_told_of_steps(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "noetic_py")
    assert not is_verbose()
    async with Harness(plugins=[], model=ScriptedModel("yes")) as harness:
        await harness.run(call_model(), "x", run_id="tides")
    assert [each.name for each in caplog.records] == ["noetic_py.runs"] * 2


async def test_model_calls_and_their_tries_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "noetic_py.models")
    model = FallbackModel(RetryModel(ScriptedModel(DOWN, DOWN), 2, initial=0.0), ScriptedModel("yes"))
    async with Harness(plugins=[]) as harness:
        assert (await harness.run(call_model(model), "x", run_id="tides")).value == "yes"
    told = read(caplog, "models")
    assert {(path, attempt) for _, path, attempt, _ in told} == {("call_model/answer", 1)}
    assert [(level, text.partition(" ")[2][:30]) for level, _, _, text in told] == [
        ("DEBUG", "failed (ModelUnavailable): 0 i"),
        ("WARNING", "1 of 2 of test:scripted failed"),
        ("DEBUG", "failed (ModelUnavailable): 0 i"),
        ("WARNING", "failed, the next of 1 others i"),
        ("DEBUG", told[-1][3].partition(" ")[2][:30]),
    ]
    assert "answered: " in told[-1][3]


async def test_outside_of_a_run_the_fields_are_there_and_empty(caplog: pytest.LogCaptureFixture) -> None:
    log("models", logging.WARNING, "so")
    (record,) = caplog.records
    assert {"run": "", "path": "", "attempt": 0}.items() <= vars(record).items()
    assert record.getMessage() == "so"
    assert record.filename == "test_logging.py"


async def test_a_loop_that_goes_on_after_a_failure_says_so(caplog: pytest.LogCaptureFixture) -> None:
    flow = loop(flaky(1, 1), until=until.max_steps(1), on_error=lambda error, ctx: "retry")
    async with Harness(plugins=[]) as harness:
        await harness.run(flow, "x", run_id="tides")
    assert read(caplog, "steps") == [
        ("WARNING", "loop", 1, "iteration 0 failed, on_error says retry: ValueError: no [at loop]")
    ]


async def test_a_wrap_up_that_fails_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    @step
    async def last(x: None) -> str:
        raise ValueError("nothing is left")

    budget = Budget(steps=8, wrap_up=last, reserve=Budget(steps=3))
    flow = loop(flaky(0, 1), until=until.max_steps(9))
    async with Harness(plugins=[]) as harness:
        result = await harness.run(flow, "x", budget=budget, run_id="tides")
    assert result.status == "budget_exceeded"
    assert [(level, text) for level, _, _, text in read(caplog, "runs")] == [
        ("ERROR", "the wrap-up failed: ValueError: nothing is left")
    ]


@pytest.mark.parametrize("area", get_args(Area))
def test_no_area_prints_a_secret(caplog: pytest.LogCaptureFixture, area: Area) -> None:
    secret = Secret("tide-gauge-key")
    where = Where("of tide-gauge-key", ("tide-gauge-key",), 1)
    try:
        raise ValueError(secret.reveal())
    except ValueError as error:
        log(area, logging.ERROR, "with %s", "tide-gauge-key", where=where, error=error)
    # What others write to the same logger is masked too.
    logging.getLogger(f"noetic_py.{area}").error("by others: %s", "tide-gauge-key")
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert "tide-gauge-key" not in f"{logging.Formatter().format(record)} {vars(record)}"
    assert "ValueError: [secret]" in caplog.text


async def test_a_run_s_log_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "noetic_py")
    secret = Secret("tide-gauge-key")

    @step
    async def leaks(x: str) -> str:
        raise ValueError(f"refused {secret.reveal()}")

    async with Harness[Memory](plugins=[]) as harness:
        await harness.run(leaks, "x", run_id="tides", on_error="result")
    assert "refused [secret]" in caplog.text
    assert "tide-gauge-key" not in caplog.text


@step
async def breaks(x: str) -> str:
    raise LookupError(x)


@step
async def quiet(x: str) -> str:
    return x


@step
async def rests(x: str) -> None:
    await anyio.sleep_forever()


def unheard(caught: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caught.records if each.name == "noetic_py.runs" and each.levelno == logging.ERROR]


@pytest.mark.parametrize("checkpoints", [None, "memory:"])
@pytest.mark.parametrize("on_error", ["raise", "result"])
@pytest.mark.parametrize("way", ["started", "kept", "streamed", "spawned"])
async def test_a_failure_that_nothing_asks_for_is_an_error_with_its_traceback(
    way: str, on_error: Any, checkpoints: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    @step
    async def spawns(x: str, ctx: Context) -> str:
        ctx.spawn_detached(breaks, x, owner="harness")
        return x

    async def work() -> None:
        async with Harness(plugins=[], checkpoints=checkpoints) as harness:
            if way == "streamed":
                async with harness.stream(breaks, "x", on_error=on_error) as stream:
                    assert [each async for each in stream.text] == []
                return
            handle = harness.start(spawns if way == "spawned" else breaks, "x", on_error=on_error)
            done = handle.stream
            if way == "started":
                del handle
            while not done.done:
                await anyio.lowlevel.checkpoint()
            if way == "spawned":
                await done.result()
            else:
                assert unheard(caplog) == []

    await work()
    (record,) = unheard(caplog)
    text = logging.Formatter().format(record)
    assert "failed, and nothing asked for its result: LookupError: x" in text
    assert f'File "{__file__}"' in text
    assert "_engine" not in text
    assert vars(record)["run"]


@pytest.mark.parametrize("way", ["result", "late", "outcome", "completed", "aborted"])
async def test_a_failure_that_is_asked_for_is_no_error_of_the_log(way: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with Harness(plugins=[]) as harness:
            handle = harness.start({"completed": quiet, "aborted": rests}.get(way, breaks), "x")
            if way == "aborted":
                handle.abort("enough")
                return
            if way != "result":
                while not handle.done:
                    await anyio.lowlevel.checkpoint()
            if way == "outcome":
                assert handle.stream.outcome is not None
            elif way == "completed":
                return
            else:
                with pytest.raises(StepFailed):
                    await handle.result()

    await work()
    assert unheard(caplog) == []
