"""Kinds of steps that plugins bring along: run, recorded, resumed and shown like those of the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from noetic_py import Ask, Context, Harness, InMemoryBackend, Memory, StateBag, Step, loop, step, until
from noetic_py.checkpoints import SqliteBackend
from noetic_py.context.step import AnyStep
from noetic_py.core.events import StepStarted
from noetic_py.errors import ConfigError, PluginError, ReplayDiverged
from noetic_py.journal.records import StepFinished
from noetic_py.plugins import PluginRegistry, StepKindRegistry, hookimpl, load_plugins
from noetic_py.steps.kind import StepKind
from noetic_py.testing import FaultyBackend, assert_resumable_everywhere
from tests.cli_shell import Shell

pytestmark = pytest.mark.anyio


@frozen(eq=False)
class Tide:
    """What a step of the kind gives."""

    port: str
    hour: int


@frozen(eq=False)
class Latest(StepKind[str, Tide, Memory, StateBag]):
    """Asks each of its steps, and gives the tide that comes last."""

    kind = "acme.latest"
    steps: tuple[Step[str, int], ...]
    at_once: bool = False

    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [(str(number), each) for number, each in enumerate(self.steps, 1)]

    async def run(self, value: str, ctx: Context[Memory, StateBag], /) -> Tide:
        if self.at_once:
            hours = await ctx.gather(*(each.bind(value) for each in self.steps))
        else:
            hours = [await each(value, ctx) for each in self.steps]
        ctx.state["asked"] = len(hours)
        return Tide(value, max(hours))


class Acme:
    """The plugin."""

    @hookimpl
    def register_step_kinds(self, registry: StepKindRegistry) -> None:
        registry.step_kind(Latest)


CALLS: list[str] = []


@step
async def morning(port: str) -> int:
    CALLS.append("morning")
    return len(port)


@step
async def evening(port: str, ctx: Context) -> int:
    CALLS.append("evening")
    return 12 if await ctx.ask(Ask("In the evening?", bool)) else 0


@step
async def noon(port: str) -> int:
    return 12


@step
async def told(tide: Tide, ctx: Context[Memory, StateBag]) -> str:
    return f"{tide.port}: {tide.hour}, of {ctx.state['asked']}"


def latest(*steps: Step[str, int], at_once: bool = False) -> Step[str, Tide, Memory, StateBag]:
    return Latest(steps, at_once).step()


async def test_a_step_of_the_kind_runs_and_is_recorded_under_its_name() -> None:
    flow = latest(morning, noon) >> told
    async with (
        Harness(checkpoints=InMemoryBackend(), plugins=[Acme()]) as harness,
        harness.stream(flow, "Brest", run_id="r") as stream,
    ):
        started = [event async for event in stream.events if isinstance(event, StepStarted)]
        result = await stream.result()
        records = await harness.runs.journal("r")
    assert (result.value, result.steps) == ("Brest: 12, of 2", 4)
    named = ("sequence", "latest")
    assert next(each.kind for each in started if each.path == named) == "acme.latest"
    assert next(each.kind for each in records if isinstance(each, StepFinished) and each.path == named) == "acme.latest"


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_run_that_is_killed_anywhere_comes_out_the_same(at_once: bool) -> None:
    killed = await assert_resumable_everywhere(
        lambda: latest(morning, noon, at_once=at_once) >> told,
        "Brest",
        make=lambda backend: Harness(checkpoints=backend, plugins=[Acme()]),
    )
    assert killed > 6


async def test_a_stored_run_is_killed_and_then_waits_and_is_resumed(tmp_path: Path) -> None:
    flow = latest(morning, evening) >> told
    CALLS.clear()
    inner = SqliteBackend(tmp_path / "runs.db")
    async with inner:
        # The third append is that of the second step's question.
        backend = FaultyBackend(inner, dies_at=3)
        with backend.outlived():
            await Harness(checkpoints=backend, plugins=[Acme()]).run(flow, "Brest", run_id="r")
    async with Harness(checkpoints=f"sqlite:{tmp_path / 'runs.db'}", plugins=[Acme()]) as harness:
        waits = await harness.resume("r", flow)
        assert waits.status == "suspended"
    async with Harness(checkpoints=f"sqlite:{tmp_path / 'runs.db'}", plugins=[Acme()]) as harness:
        result = await harness.resume("r", flow, answers=[waits.pending[0].answer(True)])
    assert (result.status, result.value) == ("completed", "Brest: 12, of 2")
    assert CALLS.count("morning") == 1


async def test_a_harness_without_the_plugin_reads_a_run_and_does_not_resume_it() -> None:
    flow, backend = latest(morning, evening) >> told, InMemoryBackend()
    async with Harness(checkpoints=backend, plugins=[Acme()]) as harness:
        waits = await harness.run(flow, "Brest", run_id="r")
    length = len(await backend.read("r"))
    async with Harness(checkpoints=backend, plugins=[]) as harness:
        missing = r"no plugin of this harness provides the step kind 'acme\.latest'"
        for ask in (harness.resume("r", flow), harness.plan_resume("r", flow)):
            with pytest.raises(PluginError, match=missing) as caught:
                await ask
            assert "most likely 'acme'" in (caught.value.hint or "")
        assert (await harness.runs.get("r")).status == "suspended"
        assert len(await backend.read("r")) == length
        # An answer is taken, and the run goes on where the plugin is.
        await harness.runs.answer(waits.pending[0].answer(True))
    async with Harness(checkpoints=backend, plugins=[Acme()]) as harness:
        assert (await harness.resume("r", flow)).value == "Brest: 12, of 2"


async def test_a_step_of_a_kind_that_no_plugin_has_fails_by_name() -> None:
    async with Harness(plugins=[]) as harness:
        with pytest.raises(PluginError, match=r"the step kind 'acme\.latest'"):
            await harness.run(latest(noon) >> told, "Brest")
        with pytest.raises(PluginError, match=r"the step kind 'acme\.latest'"):
            await harness.run(latest(noon), "Brest")


async def test_another_option_of_a_recorded_step_is_noticed() -> None:
    backend = InMemoryBackend()

    def flow(*steps: Step[str, int]) -> Step[str, bool, Memory, StateBag]:
        return latest(*steps) >> wait

    async with Harness(checkpoints=backend, plugins=[Acme()]) as harness:
        await harness.run(flow(noon), "Brest", run_id="r")
        with pytest.raises(ReplayDiverged, match="latest"):
            await harness.resume("r", flow(noon, morning))


@step
async def wait(tide: Tide, ctx: Context) -> bool:
    return await ctx.ask(Ask("Go on?", bool))


async def test_it_is_a_step_like_others() -> None:
    class Grow(StepKind[str | None, str, Memory, StateBag]):
        """A loop gives it nothing, so that it goes on from what there is."""

        kind = "acme.grow"

        async def run(self, value: str | None, ctx: Context[Memory, StateBag], /) -> str:
            text = ctx.state["text"] = f"{ctx.state.get('text', '')}{value or '.'}"
            return text

    class Plugin:
        @hookimpl
        def noetic_register(self, registry: PluginRegistry) -> None:
            registry.step_kind(Grow)

    once = Grow().step(id="once", retry=2, tags=["text"])
    assert (once.id, once.tags, repr(once)) == ("once", frozenset({"text"}), "<acme.grow step 'once'>")
    async with Harness(plugins=[Plugin()]) as harness:
        result = await harness.run(loop(Grow().step(), until=until.max_steps(3)), "go")
        assert result.value == "go.."
        assert '"once (acme.grow)"' in harness.graph(once)


# ------------------------------------------------------------------------------------------------------ what is refused


class Unnamed(StepKind[str, str]):
    async def run(self, value: str, ctx: Context, /) -> str:
        return value


def of_kind(name: object) -> type[StepKind[Any, Any, Any, Any]]:
    return type("Named", (Unnamed,), {"kind": name})


@pytest.mark.parametrize("name", ["code", "latest", "acme.", ".latest", "acme.a.b", "acme/latest", "ä.b", 1, None])
def test_a_name_without_a_namespace_is_refused(name: object) -> None:
    with pytest.raises(PluginError, match="is not a valid name for a kind of step; expected a namespace, a dot"):
        StepKindRegistry().step_kind(of_kind(name))
    with pytest.raises(ConfigError, match="is not a valid name for a kind of step") as caught:
        of_kind(name)().step()
    assert caught.value.code == "step-kind"


def test_what_is_not_a_kind_is_refused() -> None:
    registry = StepKindRegistry()
    given: list[Any] = [morning, Unnamed(), object, None]
    for each in given:
        with pytest.raises(PluginError, match="is not a valid kind of step; expected a class below StepKind"):
            registry.step_kind(each)
    with pytest.raises(PluginError, match="is not a valid name"):
        registry.step_kind(Unnamed)

    sync = type("Sync", (Unnamed,), {"kind": "acme.sync", "run": len})
    with pytest.raises(PluginError, match="is not a valid run; expected an async method"):
        registry.step_kind(sync)


def test_two_plugins_with_one_kind_are_refused() -> None:
    class Second:
        @hookimpl
        def register_step_kinds(self, registry: StepKindRegistry) -> None:
            registry.step_kind(of_kind("Acme.Latest"))

    with pytest.raises(PluginError, match=r"plugins 'Acme' and 'Second' both provide a step kind 'Acme\.Latest'"):
        load_plugins([Acme(), Second()])
    assert load_plugins([Acme()]).step_kinds.names == ["acme.latest"]


# ----------------------------------------------------------------------------------------------------- the command line

FLOW = """
from noetic_py.plugins import hookimpl
from noetic_py.steps.kind import StepKind

class Twice(StepKind[str, str]):
    kind = "acme.twice"
    async def run(self, value: str, ctx: Context, /) -> str:
        return await shout(await shout(value, ctx), ctx)

class Acme:
    @hookimpl
    def register_step_kinds(self, registry):
        registry.step_kind(Twice)

@step
async def shout(text: str) -> str:
    return text + "!"

harness = Harness(plugins=[Acme()], checkpoints="sqlite:runs.db")
flow = Twice().step()
"""


def test_the_command_line_shows_it(inside: Shell) -> None:
    inside.write(FLOW)
    done = inside.run("run", "flow.py:flow", "high", "--run-id", "r")
    assert (done.returncode, done.stdout.strip()) == (0, "high!!"), done.stderr
    for command in (["show", "r"], ["show", "r", "--json"], ["diff", "r", "r"]):
        done = inside.run(*command, "--db", "runs.db")
        assert done.returncode == 0, done.stderr
        assert "acme.twice" in done.stdout or command[0] == "diff"
    done = inside.run("graph", "flow.py:flow")
    assert (done.returncode, "twice (acme.twice)" in done.stdout) == (0, True), done.stderr
