"""Answers to a run that a process has at that moment: they wait in its inbox, and its next owner takes them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from noetic_py import Ask, Context, Harness, Memory, PendingRequest, errors, parallel, step
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.checkpoints.files import FileBackend
from noetic_py.context.step import AnyStep
from noetic_py.engine.journaling.run_history import open_requests, request_of
from noetic_py.engine.kinds import KINDS
from noetic_py.journal.transforms import VERIFIED, DecodedPayload, Finding, RecordPlace, RecordTransform

pytestmark = pytest.mark.anyio


class Trip:
    """A flow of which two paths ask, and a third one goes on until it is let go."""

    def __init__(self) -> None:
        self.let_go = anyio.Event()
        self.asked = anyio.Event()

        @step
        async def hotel(city: str, ctx: Context) -> str:
            return await ctx.ask(Ask(f"Which hotel in {city}?", str))

        @step
        async def train(city: str, ctx: Context) -> str:
            return await ctx.ask(Ask(f"Which train to {city}?", str))

        @step
        async def weather(city: str, ctx: Context) -> str:
            self.asked.set()
            await self.let_go.wait()
            return "sun"

        self.flow: AnyStep = parallel(hotel, train, weather, id="trip")

    def harness(self, store: CheckpointBackend, **options: Any) -> Harness[Memory]:
        return Harness(plugins=[], checkpoints=store, flows={"trip": self.flow}, **options)


async def asked_by(harness: Harness[Any], run_id: str) -> list[PendingRequest]:
    """The two open requests of a run in progress, as they are stored."""
    with anyio.fail_after(10):
        while True:
            with suppress(errors.RunNotFound):
                found = open_requests(await harness.runs.journal(run_id), KINDS)
                if len(found) == 2:
                    return [request_of(each, run_id) for each in found.values()]
            await anyio.sleep(0.005)


def named(found: list[PendingRequest], name: str) -> PendingRequest:
    return next(each for each in found if f"Which {name}" in each.prompt)


async def test_a_worker_takes_answers_that_came_while_it_had_the_run(store: CheckpointBackend) -> None:
    trip = Trip()
    async with trip.harness(store) as front, trip.harness(store) as back, anyio.create_task_group() as group:
        run_id = await front.submit(trip.flow, "Rome")
        group.start_soon(back.work)
        asked = await asked_by(front, run_id)
        for name, value in (("hotel", "Forum"), ("train", "night")):
            info = await front.runs.answer(named(asked, name).answer(value), wait=0)
            assert (info.status, info.alive) == ("running", True)
        assert [each.key for each in await store.inbox(run_id)] == [
            f"answer:{named(asked, name).key}" for name in ("hotel", "train")
        ]
        trip.let_go.set()
        assert (await front.runs.wait(run_id, timeout=20)).status == "completed"
        assert (await front.resume(run_id, trip.flow)).value == ("Forum", "night", "sun")
        assert await store.inbox(run_id) == []
        assert await store.queues() == []
        await back.shutdown()


async def test_a_run_by_hand_has_its_answers_when_it_is_resumed(store: CheckpointBackend) -> None:
    trip = Trip()
    async with trip.harness(store) as owner, trip.harness(store) as other:
        handle = owner.start(trip.flow, "Rome")
        asked = await asked_by(other, handle.run_id)
        await other.runs.answer(named(asked, "hotel").answer("Forum", by="ada"), wait=0)
        trip.let_go.set()
        assert (await handle.result()).status == "suspended"
        # What waits in the inbox is answered.
        info = await other.runs.get(handle.run_id)
        assert [each.prompt for each in info.pending] == ["Which train to Rome?"]
        listed = await other.runs.list()
        assert listed[0].pending == info.pending
        # The one that comes now is written at once, as no process has the run.
        await other.runs.answer(info.pending[0].answer("night"))
        assert (await other.runs.get(handle.run_id)).pending == []
        result = await other.resume(handle.run_id, trip.flow)
        assert result.value == ("Forum", "night", "sun")
        assert await store.inbox(handle.run_id) == []


async def test_answers_to_a_run_in_progress_are_checked(store: CheckpointBackend) -> None:
    trip = Trip()
    async with trip.harness(store) as owner, trip.harness(store) as other:
        handle = owner.start(trip.flow, "Rome")
        asked = await asked_by(other, handle.run_id)
        hotel, train = named(asked, "hotel"), named(asked, "train")
        with pytest.raises(errors.RequestNotFound):
            await other.runs.answer(train.answer("night"), evolve(hotel.answer("Forum"), key="other"), wait=0)
        with pytest.raises(errors.AnswerInvalid):
            await other.runs.answer(train.answer("night"), hotel.approve(), wait=0)
        assert await store.inbox(handle.run_id) == []

        await other.runs.answer(hotel.answer("Forum"), wait=0)
        # The same once more has no effect, and another one is told.
        await other.runs.answer(hotel.answer("Forum"), wait=0)
        with pytest.raises(errors.AnswerConflict):
            await other.runs.answer(train.answer("night"), hotel.answer("Palazzo"), wait=0)
        assert len(await store.inbox(handle.run_id)) == 1
        trip.let_go.set()
        await handle.result()
        await other.runs.answer(train.answer("night"))
        assert (await other.resume(handle.run_id, trip.flow)).value == ("Forum", "night", "sun")


class Faster(DelegatingBackend):
    """Another process answers between the look at the inbox and the answer."""

    def __init__(self, inner: CheckpointBackend) -> None:
        super().__init__(inner)
        self.first = b""

    async def send(self, run_id: str, key: str, body: bytes) -> int:
        if not self.first:
            self.first = body.replace(b"Forum", b"Ritz!")
            await self.inner.send(run_id, key, self.first)
        return await self.inner.send(run_id, key, body)


async def test_of_two_answers_at_once_the_second_is_told(store: CheckpointBackend) -> None:
    trip = Trip()
    async with trip.harness(store) as owner, trip.harness(Faster(store)) as other:
        handle = owner.start(trip.flow, "Rome")
        hotel = named(await asked_by(other, handle.run_id), "hotel")
        with pytest.raises(errors.AnswerConflict):
            await other.runs.answer(hotel.answer("Forum"), wait=0)
        trip.let_go.set()
        await handle.result()


async def test_an_answer_that_fits_nothing_has_no_effect(
    store: CheckpointBackend, caplog: pytest.LogCaptureFixture
) -> None:
    trip = Trip()
    async with trip.harness(store) as harness:
        handle = harness.start(trip.flow, "Rome")
        hotel = named(await asked_by(harness, handle.run_id), "hotel")
        await harness.runs.answer(hotel.answer("Forum"), wait=0)
        (signal,) = await store.inbox(handle.run_id)
        # Such as one to a request that was asked once more meanwhile, which has another key.
        old = hotel.key[:-1] + ("0" if hotel.key[-1] != "0" else "1")
        await store.send(handle.run_id, f"answer:{old}", signal.body.replace(hotel.key.encode(), old.encode()))
        trip.let_go.set()
        await handle.result()
        info = await harness.runs.get(handle.run_id)
        result = await harness.resume(handle.run_id, trip.flow, answers=[info.pending[0].answer("night")])
        assert result.value == ("Forum", "night", "sun")
        assert f"an answer of run {handle.run_id} is not taken: request {old}" in caplog.text
        assert await store.inbox(handle.run_id) == []


async def test_a_folder_of_files_has_no_inbox(tmp_path: Path) -> None:
    trip = Trip()
    async with FileBackend(tmp_path / "runs") as store, trip.harness(store) as harness:
        handle = harness.start(trip.flow, "Rome")
        hotel = named(await asked_by(harness, handle.run_id), "hotel")
        with pytest.raises(errors.RunBusy):
            await harness.runs.answer(hotel.answer("Forum"), wait=0)
        trip.let_go.set()
        await handle.result()


# ------------------------------------------------------------------------------------------------------------- signed


class Sum(RecordTransform):
    """A checksum over a record and its place, as a signature would be one."""

    name = "sum"

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return sha256(repr(place).encode() + payload).digest() + payload

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        fits = sha256(repr(place).encode() + payload[32:]).digest() == payload[:32]
        return DecodedPayload(payload[32:], VERIFIED if fits else Finding("forged", "another place or payload"))


async def test_a_signed_inbox(store: CheckpointBackend) -> None:
    trip = Trip()
    async with trip.harness(store, record_transforms=[Sum()]) as harness:
        handle = harness.start(trip.flow, "Rome")
        asked = await asked_by(harness, handle.run_id)
        hotel, train = named(asked, "hotel"), named(asked, "train")
        await harness.runs.answer(hotel.answer("Forum"), wait=0)
        (signal,) = await store.inbox(handle.run_id)
        # It holds for its key only.
        number = await store.send(handle.run_id, f"answer:{train.key}", signal.body)
        trip.let_go.set()
        await handle.result()
        with pytest.raises(errors.RecordRefused):
            await harness.resume(handle.run_id, trip.flow)
        assert number > signal.number


# ---------------------------------------------------------------------------------------------------- the store's clock


class Ahead(DelegatingBackend):
    """A store of several machines, whose clock is two hours ahead of this one's."""

    @property
    def shared(self) -> bool:
        return True

    async def clock(self) -> float:
        return await self.inner.clock() + 7200.0


@step
async def agree(x: str, ctx: Context) -> str:
    return await ctx.ask(Ask("Well?", str, expires=3600.0))


async def test_requests_expire_by_the_clock_of_the_store() -> None:
    async with InMemoryBackend() as inner, Harness(plugins=[], checkpoints=Ahead(inner)) as harness:
        result = await harness.run(agree, "x")
        (asked,) = result.pending
        assert asked.expires is not None
        assert timedelta(hours=2.9) < asked.expires - datetime.now(UTC) < timedelta(hours=3.1)
        # By the clock of this machine it would not have expired for hours.
        async with Harness(plugins=[], checkpoints=Later(inner)) as later:
            with pytest.raises(errors.RequestExpired):
                await later.runs.answer(asked.answer("yes"))
            with pytest.raises(errors.RequestExpired):
                await later.resume(result.run_id, agree)


class Later(Ahead):
    """The same store, two hours later."""

    async def clock(self) -> float:
        return await super().clock() + 7200.0
