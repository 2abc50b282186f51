"""An owner that has slept past its lease does nothing more that others can see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from noetic_py import Context, Harness, InMemoryBackend, ReadContext, call_model, errors, sequence, step
from noetic_py.checkpoints import Lease, Record
from noetic_py.engine.journaling import writer
from noetic_py.models import FallbackModel, Model, RetryModel
from noetic_py.testing import ScriptedModel, VirtualRuntime

pytestmark = pytest.mark.anyio


class Owned(InMemoryBackend):
    """Its leases run by the clock of the test, which counts how often they are renewed."""

    def __init__(self, clock: VirtualRuntime) -> None:
        super().__init__(runtime=clock)
        self.virtual = clock
        self.renewals = 0
        # A kind of record whose acknowledgement takes longer than a lease lasts.
        self.sleeps_after = ""

    async def append(self, run_id: str, *, records: Sequence[Record], **given: Any) -> int:
        position = await super().append(run_id, records=records, **given)
        if self.sleeps_after in {record.kind for record in records}:
            self.sleeps_after = ""
            await self.sleep()
        return position

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        self.renewals += 1
        return await super().renew(lease, ttl=ttl)

    async def sleep(self, *, taken: bool = True) -> None:
        """The process sleeps for longer than its lease; meanwhile somebody else takes the run."""
        await self.virtual.advance(writer.TTL + 1)
        if taken:
            await self.acquire("r", ttl=writer.TTL)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Owned:
    clock = VirtualRuntime()
    monkeypatch.setattr(writer, "SYSTEM", clock)
    return Owned(clock)


def harness(backend: Owned) -> Any:
    return Harness(plugins=(), checkpoints=backend)


def plain(model: Model) -> Model:
    return model


@pytest.mark.parametrize("wrap", [plain, RetryModel, FallbackModel])
async def test_a_model_is_not_asked_by_an_owner_that_has_slept(backend: Owned, wrap: Any) -> None:
    model = ScriptedModel("answer")

    async def instructions(ctx: ReadContext[Any, Any]) -> str:
        await backend.sleep()
        return "answer"

    with pytest.raises(errors.LeaseLost):
        await harness(backend).run(call_model(wrap(model), instructions=instructions), "?", run_id="r")
    assert model.requests == []


async def test_a_model_is_asked_when_nobody_has_taken_the_run(backend: Owned) -> None:
    model = ScriptedModel("answer")

    async def instructions(ctx: ReadContext[Any, Any]) -> str:
        await backend.sleep(taken=False)
        return "answer"

    result = await harness(backend).run(call_model(model, instructions=instructions), "?", run_id="r")
    assert result.value == "answer"
    assert backend.renewals == 1


async def test_a_lease_that_is_fresh_costs_the_backend_nothing(backend: Owned) -> None:
    @step(replay="once")
    async def send(text: str) -> str:
        return text

    result = await harness(backend).run(sequence(call_model(ScriptedModel("answer")), send), "?", run_id="r")
    assert result.value == "answer"
    assert backend.renewals == 0


async def test_a_once_step_does_not_begin_when_its_owner_has_slept_in_the_commit_before(backend: Owned) -> None:
    sent: list[str] = []

    @step(replay="once")
    async def send(text: str) -> str:
        sent.append(text)
        return text

    backend.sleeps_after = "Intent"
    with pytest.raises(errors.LeaseLost):
        await harness(backend).run(send, "?", run_id="r")
    assert backend.sleeps_after == ""
    assert sent == []


async def test_a_later_owner_has_a_larger_fence() -> None:
    seen: list[int | None] = []

    @step
    async def charge(x: int, ctx: Context) -> int:
        seen.append(ctx.fence)
        if len(seen) == 1:
            raise ValueError("no")
        return x

    async with InMemoryBackend() as backend, Harness(plugins=(), checkpoints=backend) as harness:
        first = await harness.run(charge, 1, on_error="result")
        assert (await harness.resume(first.run_id, charge)).value == 1
    async with Harness(plugins=()) as harness:
        await harness.run(charge, 1)
    first_fence, second, none = seen
    assert first_fence is not None
    assert second is not None
    assert second > first_fence
    assert none is None
    assert Context().fence is None
