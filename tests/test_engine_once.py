"""J9: a step that may run only once is not cut off in the middle, and is not begun twice in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from noetic_py import Context, Harness, InMemoryBackend, Memory, Retry, StateBag, errors, parallel, race, sequence, step
from noetic_py._engine import grace
from noetic_py.checkpoints.records import Intent, StepFailed, StepFinished, StepStopped

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


class Effects:
    """What has been done to the world, and how the one who does it is stopped in the middle."""

    def __init__(self) -> None:
        self.begun = 0
        self.done = 0
        self.halfway = anyio.Event()
        self.interrupt: Callable[[Ctx], object] = lambda _: None

    def paying(self, **options: Any) -> Any:
        @step(replay="once", version="1", **options)
        async def pay(x: int, ctx: Ctx) -> int:
            self.begun += 1
            self.halfway.set()
            self.interrupt(ctx)
            # Many more turns than a cancellation needs to be heard of.
            for _ in range(50):
                await checkpoint()
            self.done += 1
            return x + 1

        return pay

    def after(self) -> Any:
        @step(version="1")
        async def quick(x: int) -> int:
            await self.halfway.wait()
            return x

        return quick


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture
def backend() -> InMemoryBackend:
    return InMemoryBackend()


def harness(backend: InMemoryBackend | None) -> Any:
    return Harness(plugins=(), checkpoints=backend)


async def records(backend: InMemoryBackend) -> list[str]:
    """What the journal says of the step."""
    journal = await harness(backend).runs.journal("r")
    kinds = (Intent, StepFinished, StepFailed, StepStopped)
    return [type(each).__name__ for each in journal if isinstance(each, kinds) and each.path[-1].startswith("pay")]


async def cancelled_from_outside(backend: InMemoryBackend | None, flow: Any, effects: Effects) -> None:
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        effects.interrupt = lambda _: scope.cancel()
        await harness(backend).run(flow, 1, run_id="r")
    assert scope.cancelled_caught


async def test_a_cancellation_from_outside_waits_for_its_end(backend: InMemoryBackend, effects: Effects) -> None:
    after: list[int] = []

    @step(version="1")
    async def then(x: int) -> int:
        after.append(x)
        return x * 10

    flow = sequence(effects.paying(), then)
    await cancelled_from_outside(backend, flow, effects)
    assert (effects.done, after) == (1, [])
    assert await records(backend) == ["Intent", "StepFinished"]
    result = await harness(backend).resume("r", flow)
    assert (result.value, effects.begun, after) == (20, 1, [2])


async def test_a_race_waits_for_the_end_of_a_loser(backend: InMemoryBackend, effects: Effects) -> None:
    result = await harness(backend).run(race([effects.paying(), effects.after()]), 1, run_id="r")
    assert (result.value, effects.done) == (1, 1)
    assert await records(backend) == ["Intent", "StepFinished"]


async def test_nothing_follows_it_in_a_path_that_was_cancelled(backend: InMemoryBackend, effects: Effects) -> None:
    after: list[int] = []

    @step(version="1")
    async def then(x: int) -> int:
        after.append(x)
        return x

    @step(version="1")
    async def body(x: int, ctx: Ctx) -> int:
        paid: int = await pay(x, ctx)
        return await then(paid, ctx)

    pay = effects.paying()
    result = await harness(backend).run(race([body, effects.after()]), 1, run_id="r")
    assert (result.value, effects.done, after) == (1, 1, [])


async def test_an_abort_beside_it_waits_for_its_end(backend: InMemoryBackend, effects: Effects) -> None:
    @step(version="1")
    async def abort(x: int, ctx: Ctx) -> int:
        await effects.halfway.wait()
        ctx.abort("enough")
        return x

    flow = parallel(effects.paying(), abort)
    for _ in range(2):
        run = harness(backend).resume if effects.begun else harness(backend).run
        given = ("r", flow) if effects.begun else (flow, 1)
        result = await run(*given, **({} if effects.begun else {"run_id": "r"}), on_error="result")
        assert (result.status, result.reason, effects.begun, effects.done) == ("aborted", "enough", 1, 1)
    assert await records(backend) == ["Intent", "StepFinished"]


async def test_its_failure_meanwhile_is_recorded_too(backend: InMemoryBackend, effects: Effects) -> None:
    @step(replay="once", version="1")
    async def pay(x: int) -> int:
        effects.begun += 1
        effects.halfway.set()
        for _ in range(50):
            await checkpoint()
        raise ValueError("no money")

    @step(version="1")
    async def caught(x: int, ctx: Ctx) -> int:
        try:
            with anyio.CancelScope() as scope:
                scope.cancel()
                return await pay(x, ctx)
        except errors.StepFailed:
            return -1
        return -2

    result = await harness(backend).run(caught, 1, run_id="r")
    assert await records(backend) == ["Intent", "StepFailed"]
    assert result.value == -1


async def test_a_retry_around_it_finds_what_it_has_done(backend: InMemoryBackend, effects: Effects) -> None:
    pay = effects.paying()

    @step(version="1", timeout=0.05, retry=Retry(2, initial=0))
    async def around(x: int, ctx: Ctx) -> int:
        paid: int = await pay(x, ctx)
        if effects.begun and not late:
            late.append(1)
            await anyio.sleep_forever()
        return paid

    late: list[int] = []
    result = await harness(backend).run(around, 1, run_id="r")
    assert (result.value, effects.begun) == (2, 1)


async def test_when_the_grace_is_over_its_outcome_is_unknown(
    backend: InMemoryBackend, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grace, "GRACE", 0.02)

    @step(replay="once", version="1")
    async def pay(x: int, ctx: Ctx) -> int:
        effects.begun += 1
        effects.interrupt(ctx)
        await anyio.sleep_forever()
        return x

    await cancelled_from_outside(backend, pay, effects)
    assert "StepFinished" not in await records(backend)
    with pytest.raises(errors.StepOutcomeUnknown):
        await harness(backend).resume("r", pay)
    assert effects.begun == 1


async def test_its_own_timeout_is_no_longer_than_it_says(backend: InMemoryBackend) -> None:
    @step(replay="once", version="1", timeout=0.02)
    async def pay(x: int) -> int:
        await anyio.sleep_forever()
        return x

    with anyio.fail_after(grace.GRACE / 2), pytest.raises(errors.StepTimeout):
        await harness(backend).run(pay, 1, run_id="r")


async def test_a_body_that_asks_for_the_end_itself_ends_at_its_next_wait(backend: InMemoryBackend) -> None:
    @step(replay="once", version="1")
    async def pay(x: int, ctx: Ctx) -> int:
        ctx.complete(42)
        await anyio.sleep_forever()
        return x

    with anyio.fail_after(grace.GRACE / 2):
        result = await harness(backend).run(pay, 1, run_id="r")
    assert result.value == 42


async def test_a_run_that_is_not_kept_has_no_grace(effects: Effects) -> None:
    await cancelled_from_outside(None, effects.paying(), effects)
    assert effects.done == 0


async def test_what_it_raises_comes_out_as_it_is(backend: InMemoryBackend) -> None:
    @step(replay="once", version="1")
    async def pay(x: int) -> int:
        raise KeyError("gone")

    with pytest.raises(errors.StepFailed) as caught:
        await harness(backend).run(pay, 1, run_id="r")
    assert caught.value.error_type == "KeyError"


async def test_a_fork_does_it_again_only_from_before_it_began(backend: InMemoryBackend, effects: Effects) -> None:
    flow = sequence(effects.paying(), effects.after())
    await harness(backend).run(flow, 1, run_id="r")
    journal = await harness(backend).runs.journal("r")
    begun = next(at for at, record in enumerate(journal, 1) if isinstance(record, Intent))
    ends = backend._runs["r"].ends
    before = await harness(backend).fork("r", at=max(end for end in ends if end < begun))
    between = await harness(backend).fork("r", at=min(end for end in ends if end >= begun))
    with pytest.raises(errors.StepOutcomeUnknown):
        await harness(backend).resume(between, flow)
    assert effects.begun == 1
    assert (await harness(backend).resume(before, flow)).value == 2
    assert effects.begun == 2
