"""Event sinks of plugins: which events they get, in which order, and what a sink that fails or is slow does not do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import Ask, Context, Event, Harness, call_model, loop, parallel, step, until
from noetic_py.core import sinks
from noetic_py.core.events import Emitted, RunFinished, RunStarted, StepStarted
from noetic_py.core.sinks import EventSink
from noetic_py.errors import NoeticWarning, PluginError
from noetic_py.plugins import EventSinkRegistry, PluginRegistry, hookimpl, load_plugins
from noetic_py.testing import EventSinkContract, ScriptedModel

pytestmark = pytest.mark.anyio


class Recorder:
    """A plugin that keeps what its sink gets."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Event]] = []

    @hookimpl
    def register_event_sinks(self, registry: EventSinkRegistry) -> None:
        registry.event_sink(self.take)

    async def take(self, run_id: str, event: Event) -> None:
        self.got.append((run_id, event))

    def of(self, run_id: str) -> list[str]:
        return [type(event).__name__ for run, event in self.got if run == run_id]


class Plugin:
    """A plugin with these sinks."""

    def __init__(self, *given: EventSink) -> None:
        self._sinks = given

    @hookimpl
    def noetic_register(self, registry: PluginRegistry) -> None:
        for each in self._sinks:
            registry.event_sink(each)


@step
async def shout(text: str, ctx: Context) -> str:
    ctx.emit(len(text))
    return text.upper()


@step
async def confirm(text: str, ctx: Context) -> str:
    return text if await ctx.ask(Ask("Go on?", bool)) else ""


async def test_a_sink_gets_what_a_stream_gets_in_the_same_order() -> None:
    recorder = Recorder()
    flow = shout >> parallel(call_model(), shout) >> shout_all
    async with Harness(model=ScriptedModel("Noon.", chunk=2), plugins=[recorder]) as harness:
        async with harness.stream(flow, "when?", run_id="r") as stream:
            streamed = [type(event).__name__ async for event in stream.events]
        started = harness.start(shout, "later", run_id="s")
        await started.result()
        await harness.run(shout, "now", run_id="t")
    assert recorder.of("r") == streamed
    assert {"RunStarted", "StepStarted", "Emitted", "TextDelta", "ModelFinished", "RunFinished"} <= {*streamed}
    short = ["RunStarted", "StepStarted", "Emitted", "RunFinished"]
    assert [name for name in recorder.of("s") if name in short] == short
    assert [name for name in recorder.of("t") if name in short] == short
    assert {run for run, _ in recorder.got} == {"r", "s", "t"}


@step
async def shout_all(texts: tuple[str, ...]) -> str:
    return " ".join(texts)


async def test_a_resumed_run_sends_its_own_events_and_one_that_is_read_sends_none(tmp_path: Path) -> None:
    recorder, store = Recorder(), f"sqlite:{tmp_path / 'runs.db'}"
    flow = shout >> confirm
    async with Harness(checkpoints=store, plugins=[recorder]) as harness:
        waits = await harness.run(flow, "go", run_id="r")
    assert recorder.of("r")[-1] == "RunFinished"
    assert recorder.of("r").count("Emitted") == 1
    recorder.got.clear()
    async with Harness(checkpoints=store, plugins=[recorder]) as harness:
        assert (await harness.resume("r", flow, answers=[waits.pending[0].answer(True)])).value == "GO"
        had = len(recorder.got)
        assert (await harness.result("r", flow)).value == "GO"
    assert recorder.of("r").count("Emitted") == 0
    finished = [event for _, event in recorder.got if isinstance(event, RunFinished)]
    assert [event.status for event in finished] == ["completed"]
    assert had <= len(recorder.got)


async def test_a_run_does_not_wait_for_a_slow_sink_and_leaving_the_harness_does() -> None:
    let_go = anyio.Event()
    got: list[Event] = []

    async def slow(run_id: str, event: Event) -> None:
        await let_go.wait()
        got.append(event)

    async with Harness(plugins=[Plugin(slow)]) as harness:
        assert (await harness.run(shout, "go")).value == "GO"
        assert got == []
        let_go.set()
    assert isinstance(got[0], RunStarted)
    assert isinstance(got[-1], RunFinished)


async def test_a_sink_that_raises_is_named_once_and_gets_the_other_events(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    async def broken(run_id: str, event: Event) -> None:
        if isinstance(event, (StepStarted, Emitted)):
            raise ValueError("the pipe is full")
        await recorder.take(run_id, event)

    async with Harness(plugins=[Plugin(broken)]) as harness:
        for number in range(3):
            assert (await harness.run(shout, "go", run_id=f"r{number}")).value == "GO"
    assert recorder.of("r2")[0] == "RunStarted"
    assert recorder.of("r2")[-1] == "RunFinished"
    first, last = [record for record in caplog.records if record.name == "noetic_py.events"]
    assert first.levelno == logging.WARNING
    assert "event sink" in first.getMessage()
    assert "of plugin 'Plugin' failed with an event of run r0" in first.getMessage()
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], ValueError)
    assert last.getMessage().endswith("of plugin 'Plugin' has lost 0 events, and failed with 6")


async def test_a_sink_that_hangs_loses_events_and_is_cancelled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CAPACITY", 8)
    monkeypatch.setattr(sinks, "PATIENCE", 0.05)
    ended: list[str] = []

    async def hangs(run_id: str, event: Event) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(run_id)

    recorder = Recorder()
    async with Harness(plugins=[Plugin(hangs), recorder]) as harness:
        for number in range(3):
            await harness.run(shout, "go", run_id=f"r{number}")
            await anyio.wait_all_tasks_blocked()
    assert ended == ["r0"]
    # The other sink has its own buffer.
    assert len(recorder.of("r2")) > 3
    first, last = [record.getMessage() for record in caplog.records if record.name == "noetic_py.events"]
    assert "of plugin 'Plugin' is too slow, and loses events from now on; run r1 goes on" in first
    lost = int(last.partition("has lost ")[2].split()[0])
    assert lost == len(recorder.got) - 1


async def test_a_run_that_never_waits_loses_nothing_of_a_sink_that_never_does(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    rounds = 4_000
    async with Harness(plugins=[recorder]) as harness:
        await harness.run(loop(count, until=until.max_steps(rounds), max_iterations=rounds + 1), 0, run_id="r")
    assert recorder.of("r").count("LoopIteration") == rounds
    assert not caplog.records


@step
async def count(number: int) -> int:
    return number + 1


async def test_events_from_before_a_cancellation_are_delivered() -> None:
    recorder = Recorder()
    with anyio.CancelScope() as scope:
        async with Harness(plugins=[recorder]) as harness:

            @step
            async def waits(text: str) -> str:
                scope.cancel()
                await anyio.sleep_forever()
                return text

            await harness.run(waits, "go", run_id="r")
    assert scope.cancelled_caught
    assert recorder.of("r")[0] == "RunStarted"
    assert recorder.of("r")[-1] == "RunFinished"


async def test_a_harness_that_is_entered_again_delivers_again() -> None:
    recorder = Recorder()
    harness = Harness(plugins=[recorder])
    async with harness:
        await harness.run(shout, "go", run_id="r")
    assert recorder.of("r")[-1] == "RunFinished"


async def test_a_harness_that_is_not_entered_warns_once() -> None:
    recorder = Recorder()
    harness = Harness(plugins=[recorder])
    with pytest.warns(NoeticWarning, match="sink of plugin 'Recorder' gets no events; use: async with"):
        await harness.run(shout, "go")
    # A second warning would be an error here.
    assert (await harness.run(shout, "go")).value == "GO"
    assert recorder.got == []


def test_run_sync_delivers_before_it_returns() -> None:
    recorder = Recorder()
    assert Harness(plugins=[recorder]).run_sync(shout, "go", run_id="r").value == "GO"
    assert recorder.of("r")[-1] == "RunFinished"


async def test_no_run_is_listened_to_without_a_sink() -> None:
    @step
    async def active(text: str, ctx: Context) -> bool:
        engine: Any = ctx.engine
        return bool(engine.run.bus.active)

    async with Harness(plugins=[]) as harness:
        assert (await harness.run(active, "go")).value is False
    async with Harness(plugins=[Recorder()]) as harness:
        assert (await harness.run(active, "go")).value is True


async def written(run_id: str, event: Event) -> None: ...


class Sender:
    async def __call__(self, run_id: str, event: Event) -> None: ...


def test_what_is_not_a_sink_is_refused() -> None:
    given: Sequence[Any] = [None, print, Sender]
    for each in given:
        with pytest.raises(PluginError, match="is not a valid event sink; expected an async function"):
            load_plugins([Plugin(each)])
    with pytest.raises(PluginError, match=r"registers the event sink .* which is registered already"):
        load_plugins([Plugin(written, written)])
    assert len(load_plugins([Plugin(written, Sender())]).event_sinks.sinks) == 2


class TestRecorder(EventSinkContract):
    def make(self) -> EventSink:
        return Recorder().take
