"""Every cause of failure is an error class of its own."""

from __future__ import annotations

import anyio
import pytest

from noetic_py import Budget, Context, Harness, Message, call_model, errors, parallel, sequence, spawn, step
from noetic_py.core.items import Refusal
from noetic_py.errors import (
    Aborted,
    BudgetExceeded,
    Cancelled,
    ChannelClosed,
    ChannelTimeout,
    CodecError,
    ConfigError,
    ItemSchemaMismatch,
    ModelParseError,
    ModelRefused,
    ModelStatusError,
    NoeticError,
    ParallelFailed,
    RateLimited,
    StepFailed,
    StepTimeout,
    Stopped,
)
from noetic_py.testing import ScriptedModel
from tests.public_names import public_names

pytestmark = pytest.mark.anyio


@step
async def echo(text: str) -> str:
    return text


@step
async def bad(text: str) -> str:
    raise ValueError(text)


CAUSES = {
    "step_failed": StepFailed,
    "model_refused": ModelRefused,
    "model_parse_error": ModelParseError,
    "rate_limit": RateLimited,
    "fork_partial": ParallelFailed,
    "channel_timeout": ChannelTimeout,
    "channel_closed": ChannelClosed,
    "cancelled": Cancelled,
    "budget_exceeded": BudgetExceeded,
    "item_schema_mismatch": ItemSchemaMismatch,
}


@pytest.mark.clause("002-52j")
def test_002_52_one_class_for_each_cause() -> None:
    assert len(set(CAUSES.values())) == len(CAUSES)
    for one in CAUSES.values():
        assert issubclass(one, NoeticError)
        assert not issubclass(one, ConfigError)
        # Catching one never catches another.
        assert [other for other in CAUSES.values() if issubclass(other, one)] == [one]


@pytest.mark.clause("002-52j")
def test_002_52_every_public_error_is_under_one_root() -> None:
    for name in public_names(errors):
        found: object = getattr(errors, name)
        assert isinstance(found, type)
        if issubclass(found, Exception) and not issubclass(found, Warning):
            assert issubclass(found, NoeticError), name
            assert found.__doc__


@pytest.mark.clause("002-52a")
async def test_002_52_step_failed() -> None:
    async with Harness() as harness:
        with pytest.raises(StepFailed) as caught:
            await harness.run(sequence(echo, bad), "x")
    error = caught.value
    assert (error.error_type, error.error_message) == ("ValueError", "x")
    assert error.path == ("sequence", "bad")
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.clause("002-52b")
async def test_002_52_model_refused() -> None:
    async with Harness(model=ScriptedModel(Message(role="assistant", content=[Refusal(refusal="no")]))) as harness:
        with pytest.raises(ModelRefused) as caught:
            await harness.run(call_model(), "x")
    assert caught.value.model == "test:scripted"
    assert "no" in caught.value.message


@pytest.mark.clause("002-52c")
async def test_002_52_model_parse_error() -> None:
    async with Harness(model=ScriptedModel("x", "y")) as harness:
        with pytest.raises(ModelParseError) as caught:
            await harness.run(call_model(output=int), "x")
    assert caught.value.model == "test:scripted"


@pytest.mark.clause("002-52d")
async def test_002_52_rate_limit() -> None:
    limited = RateLimited("slow down", model="openai:gpt-5-mini", retry_after=2.5)
    async with Harness(model=ScriptedModel(limited)) as harness:
        with pytest.raises(RateLimited) as caught:
            await harness.run(call_model(), "x")
    assert caught.value is limited
    assert isinstance(caught.value, ModelStatusError)
    assert (limited.retry_after, limited.status, limited.retryable) == (2.5, 429, True)
    assert limited.path == ("call_model", "answer")


@pytest.mark.clause("002-52e")
async def test_002_52_fork_partial() -> None:
    done = anyio.Event()

    @step
    async def good(text: str) -> str:
        done.set()
        return text

    @step
    async def late(text: str) -> str:
        await done.wait()
        raise ValueError(text)

    async with Harness() as harness:
        with pytest.raises(ParallelFailed) as caught:
            await harness.run(parallel([good, late]), "x")
    assert caught.value.succeeded == {0: "x"}
    assert list(caught.value.failed) == [1]


@pytest.mark.clause("002-52h")
async def test_002_52_budget_exceeded() -> None:
    async with Harness() as harness:
        result = await harness.run(sequence(echo, echo), "x", budget=Budget(steps=1))
    assert result.status == "budget_exceeded"
    with pytest.raises(BudgetExceeded) as caught:
        _ = result.value
    error = caught.value
    assert (error.dimension, error.limit, error.requested, error.settled) == ("steps", 1, 1, 1)
    assert error.result is result


@pytest.mark.clause("002-52g")
async def test_002_52_aborted_cancelled_and_the_like_share_a_base() -> None:
    @step
    async def stop(text: str, ctx: Context) -> str:
        ctx.abort("enough")
        return text

    async with Harness() as harness:
        result = await harness.run(stop, "x")
    with pytest.raises(Stopped) as caught:
        _ = result.value
    assert type(caught.value) is Aborted
    assert issubclass(Cancelled, Stopped)


async def test_002_52_a_timeout_is_python_s_own_too() -> None:
    @step(timeout=0.01)
    async def slow(text: str) -> str:
        await anyio.sleep_forever()
        return text

    async with Harness() as harness:
        with pytest.raises(TimeoutError) as caught:
            await harness.run(slow, "x")
    assert isinstance(caught.value, StepTimeout)
    assert issubclass(ChannelTimeout, TimeoutError)


@pytest.mark.clause("002-52k")
def test_002_52_configuration_errors_are_apart_and_have_code_and_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        sequence(echo, id="a/b")
    error = caught.value
    assert error.code == "step-id"
    assert error.hint
    assert "Try:" in str(error)
    assert not isinstance(error, tuple(CAUSES.values()))


async def test_002_52_errors_name_the_path_and_carry_the_result() -> None:
    @step
    async def write(text: str, ctx: Context) -> str:
        ctx.items.append(Message.user(text))
        return text

    async with Harness() as harness:
        with pytest.raises(NoeticError) as caught:
            await harness.run(sequence(write, spawn(sequence(echo, bad))), "x")
    error = caught.value
    assert "[at sequence/spawn:sequence/sequence/bad]" in str(error)
    assert error.result is not None
    assert error.result.status == "failed"
    assert error.result.error is error
    assert error.result.steps == 3
    assert [item.text for item in error.result.items if isinstance(item, Message)] == ["x"]


@pytest.mark.clause("002-52i")
def test_002_52_item_schema_mismatch_says_where() -> None:
    error = ItemSchemaMismatch("not a text", where="content[0].text")
    assert isinstance(error, CodecError)
    assert error.where == "content[0].text"
    assert str(error) == "content[0].text: not a text"
