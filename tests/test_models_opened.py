"""Models that are context managers: a harness opens each once, and closes it when it ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import pytest

from noetic_py import Context, Harness, ModelRequest, call_model, step
from noetic_py.errors import ConfigError
from noetic_py.models import FallbackModel, Model, ModelStream, RetryModel
from noetic_py.plugins import ModelRegistry, hookimpl
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Opened:
    """A model that is to be opened, with a task group: only the task that has entered one can leave it."""

    def __init__(self, name: str = "acme:a", fails: str = "") -> None:
        self.name = name
        self.fails = fails
        self.inner = ScriptedModel(*["yes"] * 20, name=name)
        self.seen: list[str] = []
        self.group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self.seen.append("open")
        await anyio.lowlevel.checkpoint()
        if self.fails == "open":
            self.fails = ""
            raise ConfigError("there is no key", code="model-key")
        self.group = anyio.create_task_group()
        await self.group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self.group is not None
        await self.group.__aexit__(None, None, None)
        self.seen.append("close")
        if self.fails == "close":
            raise OSError("the socket is gone")

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        self.seen.append("ask")
        async with self.inner.respond(request) as stream:
            yield stream


class Acme:
    def __init__(self) -> None:
        self.made: list[Opened] = []

    @hookimpl
    def register_models(self, registry: ModelRegistry) -> None:
        registry.provider("acme", self.make)

    def make(self, name: str) -> Model:
        self.made.append(Opened(f"acme:{name}"))
        return self.made[-1]


async def test_a_model_is_opened_at_its_first_call_and_closed_with_the_harness() -> None:
    model, never = Opened(), Opened()
    async with Harness(model=model, plugins=[]) as harness:
        assert model.seen == []
        for _ in range(3):
            await harness.run(call_model(), "?")
        assert model.seen == ["open", "ask", "ask", "ask"]
    assert model.seen[-1] == "close"
    async with Harness(model=model, plugins=[]) as harness:
        await harness.run(call_model(), "?")
    assert model.seen[-3:] == ["open", "ask", "close"]
    assert never.seen == []


async def test_a_model_of_a_name_is_opened_once_for_calls_at_the_same_time_and_below_wrappers() -> None:
    acme = Acme()

    @step
    async def ask(_: object, ctx: Context) -> None:
        await ctx.gather(*[call_model("acme:a").bind("?") for _ in range(5)])

    async with Harness(plugins=[acme]) as harness:
        await harness.run(ask, None)
        await harness.run(call_model(RetryModel(FallbackModel("acme:a", "acme:b"))), "?")
        await harness.run(call_model("acme:b"), "?")
    assert [each.name for each in acme.made] == ["acme:a", "acme:b"]
    assert [each.seen for each in acme.made] == [["open", *["ask"] * 6, "close"], ["open", "ask", "close"]]


async def test_work_that_outlives_its_run_has_an_open_model() -> None:
    model, go = Opened(), anyio.Event()

    @step
    async def later(_: object, ctx: Context) -> str:
        await go.wait()
        return (await call_model()("?", ctx)) or ""

    @step
    async def begin(_: object, ctx: Context) -> None:
        ctx.spawn_detached(later, None, owner="harness")

    async with Harness(model=model, plugins=[]) as harness:
        await harness.run(begin >> call_model(), "?")
        go.set()
    assert model.seen == ["open", "ask", "ask", "close"]


async def test_a_model_that_cannot_be_opened_fails_the_call_and_is_tried_again() -> None:
    model = Opened(fails="open")
    async with Harness(model=model, plugins=[]) as harness:
        with pytest.raises(ConfigError, match="no key"):
            await harness.run(call_model(), "?")
        assert (await harness.run(call_model(), "?")).value == "yes"
    assert model.seen == ["open", "open", "ask", "close"]


async def test_a_model_that_cannot_be_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model, other = Opened(fails="close"), Opened("acme:b")
    async with Harness(plugins=[]) as harness:
        await harness.run(call_model(model), "?")
        await harness.run(call_model(other), "?")
    assert (model.seen[-1], other.seen[-1]) == ("close", "close")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("noetic_py.models", logging.WARNING)
    assert record.getMessage() == "acme:a could not be closed"


async def test_a_harness_that_is_cancelled_closes_its_models() -> None:
    model = Opened()
    with anyio.CancelScope() as scope:
        async with Harness(model=model, plugins=[]) as harness:
            await harness.run(call_model(), "?")
            scope.cancel()
            await anyio.sleep_forever()
    assert model.seen == ["open", "ask", "close"]


async def test_models_beyond_the_most_are_asked_without_being_opened() -> None:
    models = [Opened(f"acme:{number}") for number in range(65)]
    async with Harness(plugins=[]) as harness:
        for each in models:
            await harness.run(call_model(each), "?")
    assert [each.seen for each in models[:-1]] == [["open", "ask", "close"]] * 64
    assert models[-1].seen == ["ask"]


async def test_without_an_entered_harness_nothing_is_opened() -> None:
    model = Opened()
    await Harness(model=model, plugins=[]).run(call_model(), "?")
    assert model.seen == ["ask"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_run_without_an_event_loop_opens_its_models_too() -> None:
    model = Opened()
    await anyio.to_thread.run_sync(Harness(model=model, plugins=[]).run_sync, call_model(), "?")
    assert model.seen == ["open", "ask", "close"]
