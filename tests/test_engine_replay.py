"""What a process that goes on with a run takes from its journal, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from anyio import CancelScope, Event, sleep_forever
from anyio.lowlevel import checkpoint
from attrs import define, frozen

from noetic_py import (
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Message,
    ReadContext,
    Retry,
    StateBag,
    Step,
    errors,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core.codec import Codec
from noetic_py.engine.journaling.replay import opening_of, version_of
from noetic_py.journal.records import (
    AttemptFailed,
    Intent,
    JournalRecord,
    ResultDiscarded,
    RunEnded,
    StepFinished,
    dump_record,
)
from noetic_py.memory import function
from noetic_py.testing import FaultyBackend, assert_resumable_everywhere
from noetic_py.testing.resumable import kill_points

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]


class World:
    """What bodies have done, in all processes."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()

    def step(self, name: str, **options: Any) -> AnyStep:
        """A step that notes that it has run, says so, and fails while it is broken."""

        @step(id=name, **options)
        async def body(x: int, ctx: Ctx) -> int:
            self.ran.append(name)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            ctx.items.append(Message.assistant(name))
            ctx.state[name] = int(ctx.state.get_as(name, int) or 0) + 1
            return x + 1

        return body

    def calling(self, *names: str, id: str = "body", **options: Any) -> AnyStep:
        """A body that calls such steps, and is broken like them at its end."""

        @step(id=id, version="1", **options)
        async def body(x: int, ctx: Ctx) -> int:
            for name in names:
                x = await self.step(name, version="1")(x, ctx)
            if id in self.broken:
                raise ValueError(f"{id} is broken")
            return x

        return body

    def take(self) -> list[str]:
        """What has run since it was last asked."""
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def world() -> World:
    return World()


def harness(backend: Any) -> Any:
    return Harness(plugins=(), checkpoints=backend)


async def died(flow: AnyStep, after: Callable[[Any], bool]) -> FaultyBackend:
    """A run whose process has died once a record was stored for which `after` is true."""
    whole = InMemoryBackend()
    await harness(whole).run(flow, 1, run_id="r", on_error="result")
    journal, stored = await harness(whole).runs.journal("r"), await whole.read("r")
    for dies_at in range(1, len(journal)):
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        with backend.outlived():
            await harness(backend).run(flow, 1, run_id="r", on_error="result")
        backend.revive()
        if after((await harness(backend).runs.journal("r"))[-1]):
            return backend
    # It is stored together with the steps around it, as a release that stored each by itself has left it.
    last = next(index for index, record in enumerate(journal) if after(record))
    entry, left = await whole.entry("r"), InMemoryBackend()
    assert entry is not None
    assert isinstance(journal[last], StepFinished)
    records = stored[: last + 1]
    await left.append("r", expected_position=0, fence=0, records=records, summary=entry.summary, status="running")
    return FaultyBackend(left)


def ended(name: str) -> Callable[[Any], bool]:
    def is_end(record: Any) -> bool:
        over = isinstance(record, StepFinished) or (isinstance(record, AttemptFailed) and record.final)
        return over and record.path[-1] == name

    return is_end


# ------------------------------------------------------------------------------------------------------------ attempts


async def test_an_attempt_goes_on_with_its_number() -> None:
    @step(retry=Retry(3, initial=0))
    async def flaky(x: int, ctx: Ctx) -> int:
        frame: Any = ctx
        if frame.attempt < 3:
            raise ValueError(frame.attempt)
        return x

    backend = await died(flaky, lambda record: isinstance(record, AttemptFailed) and record.attempt == 2)
    await harness(backend).resume("r", flaky)
    tries = [
        record.attempt
        for record in await harness(backend).runs.journal("r")
        if isinstance(record, (AttemptFailed, StepFinished))
    ]
    assert tries == [1, 2, 3]


async def test_what_a_body_has_done_before_it_failed_is_not_done_again(world: World) -> None:
    """In a process that had gone on with it already."""
    flow = world.calling("a", "b")
    world.broken = {"body"}
    backend = await died(flow, ended("a"))
    world.ran.clear()
    assert (await harness(backend).resume("r", flow, on_error="result")).status == "failed"
    assert world.take() == ["b"]
    world.broken.clear()
    result = await harness(backend).resume("r", flow)
    assert (result.value, world.take()) == (3, [])
    assert [item.text for item in result.items] == ["a", "b"]


@pytest.mark.parametrize("killed", [False, True])
async def test_a_step_that_may_run_only_once_and_has_failed_fails_again_in_the_next_attempt(
    killed: bool, world: World
) -> None:
    world.broken = {"pay"}
    flow = sequence(world.step("pay", replay="once", version="1"), id="flow").with_options(retry=Retry(3, initial=0))
    backend: Any = InMemoryBackend()
    if killed:
        backend = await died(flow, ended("pay"))
        world.ran.clear()
        result = await harness(backend).resume("r", flow, on_error="result")
    else:
        result = await harness(backend).run(flow, 1, run_id="r", on_error="result")
    assert isinstance(result.error, errors.StepFailed)
    assert result.error.path == ("flow", "pay")
    assert world.take() == ([] if killed else ["pay"])


async def test_what_a_reconcile_says_of_the_outcome_comes_out_as_it_is() -> None:
    async def look(x: int, ctx: ReadContext) -> int:
        raise errors.StepOutcomeUnknown("the bank is closed")

    @step(replay="once", reconcile=look, version="1")
    async def pay(x: int) -> int:
        return x

    backend = await died(pay, lambda record: isinstance(record, Intent))
    with pytest.raises(errors.StepOutcomeUnknown) as caught:
        await harness(backend).resume("r", pay)
    assert caught.value.message == "the bank is closed"


class Waiting(InMemoryBackend):
    """A store that takes a while."""

    async def append(self, run_id: str, **options: Any) -> int:
        for _ in range(10):
            await checkpoint()
        return await super().append(run_id, **options)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("fail", [False, True])
async def test_of_paths_that_are_stored_together_the_first_in_the_journal_counts(fail: bool, count: int) -> None:
    """They are woken in any order, and the last path is the first to end."""

    def path(number: int) -> AnyStep:
        @step(id=f"path{number}")
        async def body(x: int) -> int:
            for _ in range(count - number):
                await checkpoint()
            if fail:
                raise ValueError(number)
            return number

        return body

    @step
    async def other(x: int) -> int:
        return x

    section: Callable[..., AnyStep] = parallel if fail else race
    flow = settle([other, section([path(number) for number in range(count)], id="section")])
    for _ in range(10):
        backend = Waiting()
        result = await harness(backend).run(flow, 1, run_id="r")
        ends = (StepFinished, AttemptFailed)
        journal = [record for record in await harness(backend).runs.journal("r") if isinstance(record, ends)]
        first = next(record.path[-1] for record in journal if record.path[-1].startswith("path"))
        settled = result.value[1]
        found = settled.error.first.error_message if fail else str(settled.value)
        assert f"path{found}[{found}]" == first


# --------------------------------------------------------------------------------------------------------- other code


def discarded(records: Sequence[JournalRecord]) -> list[tuple[str, ...]]:
    """What counts no longer, because other code has run."""
    return [record.path for record in records if isinstance(record, ResultDiscarded)]


def within(made: Callable[[], AnyStep]) -> AnyStep:
    """A body that makes a step only when it runs, so that nothing compares it with the records before."""

    @step(id="body", version="1")
    async def body(x: int, ctx: Ctx) -> Any:
        return await made()(x, ctx)

    return body


async def test_a_step_of_another_kind_is_another_step(world: World) -> None:
    def other(step: AnyStep) -> AnyStep:
        return within(lambda: sequence(step, world.step("b"), id="row"))

    backend = await died(other(world.step("a")), ended("a"))
    changed = other(spawn(world.step("inner"), id="a"))
    with pytest.raises(errors.ReplayDiverged, match="a code step is recorded, and a spawn step is called") as caught:
        await harness(backend).resume("r", changed)
    assert caught.value.path == ("body", "row", "a")
    world.ran.clear()
    for began in (["inner", "b"], []):
        result = await harness(backend).resume("r", changed, on_diverge="adopt")
        assert (result.value, [item.text for item in result.items], world.take()) == (3, ["b"], began)
    assert discarded(await harness(backend).runs.journal("r")) == [("body", "row", "a")]


@pytest.mark.parametrize("on_diverge", ["adopt", "pin"])
async def test_what_a_body_does_not_call_any_more_is_discarded(on_diverge: str, world: World) -> None:
    backend = await died(world.calling("a", "b"), ended("b"))
    with pytest.raises(errors.ReplayDiverged, match="is recorded, and was not called this time") as caught:
        await harness(backend).resume("r", world.calling("a"))
    assert caught.value.path == ("body", "b")
    result = await harness(backend).resume("r", world.calling("a"), on_diverge=on_diverge)
    assert [item.text for item in result.items] == ["a"]
    assert discarded(await harness(backend).runs.journal("r")) == [("body", "b")]


async def test_what_other_code_has_begun_is_not_left_to_the_code_that_goes_on(world: World) -> None:
    backend = await died(world.calling("a", "b"), ended("a"))
    with pytest.raises(errors.ReplayDiverged, match="is recorded, and was not called this time"):
        await harness(backend).resume("r", world.calling("c"))
    assert world.take()[-1] == "c"
    result = await harness(backend).resume("r", world.calling("a", "b"))
    assert ([item.text for item in result.items], world.take()) == (["a", "b"], ["b"])
    assert discarded(await harness(backend).runs.journal("r")) == [("body", "c")]


async def test_a_failure_that_was_handled_is_called_again_too(world: World) -> None:
    world.broken = {"bad"}

    def body(*names: str) -> AnyStep:
        @step(id="body", version="1")
        async def body(x: int, ctx: Ctx) -> int:
            for name in names:
                with suppress(errors.StepFailed):
                    await world.step(name, version="1")(x, ctx)
            return x

        return body

    backend = await died(body("bad", "a"), ended("a"))
    with pytest.raises(errors.ReplayDiverged, match="is recorded, and was not called this time") as caught:
        await harness(backend).resume("r", body("a"))
    assert caught.value.path == ("body", "bad")
    world.ran.clear()
    assert (await harness(backend).resume("r", body("bad", "a"))).status == "completed"
    assert world.take() == []


async def test_what_is_called_in_order_is_called_in_the_order_of_the_records(world: World) -> None:
    def row(*names: str) -> AnyStep:
        return within(lambda: sequence(*(world.step(name, version="1") for name in names), id="row"))

    backend = await died(row("a", "b", "c"), ended("b"))
    world.ran.clear()
    for other, orphan in [(("x", "a", "b"), "a"), (("a", "x", "b"), "b")]:
        with pytest.raises(errors.ReplayDiverged, match="is recorded, and x was called instead") as caught:
            await harness(backend).resume("r", row(*other))
        assert caught.value.path == ("body", "row", orphan)
    # It was refused before it had run, so the code that the run was started with goes on.
    assert world.take() == []
    result = await harness(backend).resume("r", row("a", "b", "c"))
    assert ([item.text for item in result.items], world.take()) == (["a", "b", "c"], ["c"])


@frozen
class Receipt:
    """What paying once gave, before it gave a text."""

    number: int


async def test_what_a_step_gave_is_not_told_where_it_cannot_be_read() -> None:
    async def old(x: int) -> Receipt:
        return Receipt(x)

    async def new(x: int) -> str:
        return "receipt"

    def pay(version: str, body: Any) -> AnyStep:
        return step(id="pay", replay="once", version=version)(body)

    @step(id="then", version="1")
    async def then(x: object) -> int:
        raise ValueError

    def flow(first: AnyStep) -> AnyStep:
        return sequence(first, then, id="flow").with_options(retry=Retry(2, initial=0))

    for other, said in [(old, r"it gave Receipt\(number=1\)"), (new, "it gave what cannot be read any more")]:
        backend = await died(flow(pay("1", old)), lambda each: isinstance(each, AttemptFailed) and not each.final)
        with pytest.raises(errors.StepOutcomeUnknown, match=said):
            await harness(backend).resume("r", flow(pay("2", other)))


async def test_an_output_of_a_child_that_is_discarded_is_refused(world: World) -> None:
    flow = sequence(sequence(world.step("a"), id="inner"), world.step("b"), id="flow")
    backend = await died(flow, ended("inner"))
    head = await backend.head("r")
    assert head is not None
    damage = dump_record(ResultDiscarded(("flow", "inner", "a")), Codec())
    await backend.append("r", expected_position=head.position, fence=head.fence, records=[damage])
    with pytest.raises(errors.CodecError, match="its output is that of 'a'"):
        await harness(backend).resume("r", flow)


# ----------------------------------------------------------------------------------------------------- what was left


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize(("items", "state"), [("share", "share"), ("new", "copy")])
async def test_a_wrap_up_sees_and_leaves_the_same_wherever_the_process_dies(
    items: Any, state: Any, retried: bool
) -> None:
    def flow() -> AnyStep:
        world = World()

        @step(id="sum_up")
        async def sum_up(x: object, ctx: Ctx) -> str:
            ctx.items.append(Message.assistant("summed up"))
            return " ".join(item.text for item in ctx.items if isinstance(item, Message)) + repr(ctx.state)

        @step(id="flaky")
        async def flaky(x: int, ctx: Ctx) -> int:
            frame: Any = ctx
            if retried and frame.up.up.up.attempt == 1:
                raise ValueError(x)
            return x

        budget = Budget(steps=4, wrap_up=sum_up, reserve=Budget(steps=1))
        inner = spawn(
            sequence(world.step("a"), flaky, world.step("b"), world.step("c"), id="row"),
            items=items, state=state, budget=budget, id="child",
        )  # fmt: skip
        return sequence(world.step("before"), inner.with_options(retry=Retry(2, initial=0)), id="flow")

    await assert_resumable_everywhere(flow, 1)


def stopping(kind: str) -> AnyStep:
    """A spawn that a step below it stops; its parent goes on."""
    world = World()

    @step(id="stop")
    async def stop(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("stop"))
        (ctx.complete if kind == "complete" else ctx.abort)("enough")
        return x

    row = sequence(world.step("a"), stop, world.step("never"), id="row")

    @step(id="careful")
    async def careful(x: int, ctx: Ctx) -> str:
        ctx.items.append(Message.assistant("before"))
        with suppress(errors.Aborted):
            await spawn(row, state="share", items="share", id="child")(x, ctx)
        ctx.items.append(Message.assistant("after"))
        return "over"

    return sequence(careful, world.step("last"), id="flow") if kind == "abort" else sequence(careful, id="flow")


def handling() -> AnyStep:
    """A body that handles a failure behind which something had finished, twice."""
    world = World()
    world.broken = {"deep"}

    @step(id="body")
    async def body(x: int, ctx: Ctx) -> int:
        for name in ("one", "two"):
            ctx.items.append(Message.assistant(name))
            ctx.state["at"] = name
            with suppress(errors.StepFailed):
                await world.calling("a", id="deep")(x, ctx)
        last: int = await world.step("b")(x, ctx)
        return last

    return sequence(body, world.step("c"), id="flow")


EVERYWHERE: dict[str, Callable[[], AnyStep]] = {
    "a spawn that is completed from inside": lambda: stopping("complete"),
    "a spawn that is aborted from inside": lambda: stopping("abort"),
    "failures that are handled": handling,
}


@pytest.mark.parametrize("name", EVERYWHERE)
async def test_wherever_it_dies_what_is_stored_in_the_end_says_the_same(name: str) -> None:
    """What the resumed process came to, and what a third one reads."""
    make, whole = EVERYWHERE[name], FaultyBackend(InMemoryBackend())
    expected = said(await harness(whole).run(make(), 1, run_id="r", on_error="result"))
    assert said(await harness(whole).resume("r", make(), on_error="result")) == expected
    # Before its first commit there is no run to go on with.
    for at, when in kill_points(whole.appends)[1:]:
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
        with backend.outlived():
            await harness(backend).run(make(), 1, run_id="r", on_error="result")
        backend.revive()
        for _ in range(2):
            assert said(await harness(backend).resume("r", make(), on_error="result")) == expected


def said(result: Any) -> tuple[Any, ...]:
    """What a run has come to."""
    return result.status, result.output_or(None), result.state, [item.text for item in result.items], result.steps


def failing(world: World) -> AnyStep:
    """A failure that is not handled: what had finished behind it shows."""
    world.broken = {"deep", "other"}

    @step(id="body", version="1")
    async def body(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("before"))
        ctx.state["before"] = x
        with suppress(errors.StepFailed):
            await world.calling("a", id="other")(x, ctx)
        await world.step("c", version="1")(x, ctx)
        ctx.items.append(Message.assistant("between"))
        value: int = await world.calling("b", id="deep")(x, ctx)
        return value

    return sequence(world.step("first"), body, id="flow")


def failing_again(world: World) -> AnyStep:
    """A step whose first attempt had written something, and whose last one had not."""

    @step(id="deep", version="1", retry=Retry(2, initial=0))
    async def deep(x: int, ctx: Ctx) -> int:
        frame: Any = ctx
        if frame.attempt == 1:
            await world.step("b", version="1")(x, ctx)
        raise ValueError("broken")

    @step(id="body", version="1")
    async def body(x: int, ctx: Ctx) -> int:
        await world.step("a", version="1")(x, ctx)
        ctx.items.append(Message.assistant("between"))
        ctx.state["between"] = x
        return await deep(x, ctx)

    return sequence(body, id="flow")


def looping(world: World, *, now: bool) -> AnyStep:
    """A step below a round asks the loop to end, after the round or at once."""

    @step(id="ends", version="1")
    async def ends(x: int, ctx: Ctx) -> int:
        world.ran.append("ends")
        ctx.stop_loop("ended" if now else None, now=now)
        return x

    row = sequence(sequence(ends, id="deep"), world.step("b"), id="row")
    return sequence(loop(row, until=until.max_rounds(3), id="loop"), id="flow")


def cut_off(world: World, *, ends: bool = False) -> AnyStep:
    """A body cuts off a step behind which something has finished, which may have asked the loop around to end."""

    @step(id="asks", version="1")
    async def asks(x: int, ctx: Ctx) -> int:
        if ends:
            ctx.stop_loop("ended")
        return x

    @step(id="body", version="1")
    async def body(x: int, ctx: Ctx) -> int:
        with CancelScope() as scope:

            @step(id="hangs", version="1")
            async def hangs(x: int) -> int:
                world.ran.append("hangs")
                scope.cancel()
                await sleep_forever()
                return x

            await sequence(world.step("a"), asks, hangs, id="row")(x, ctx)
        value: int = await world.step("b")(x, ctx)
        return value

    return loop(sequence(body, world.step("c"), id="round"), until=until.max_rounds(2), id="loop")


def deciding(world: World, section: Callable[..., AnyStep], *, fail: bool) -> AnyStep:
    """A section that one path decides while another one goes on."""
    begun: list[Event] = []

    @step(id="opens", version="1")
    async def opens(x: int) -> int:
        begun.append(Event())
        return x

    @step(id="decides", version="1")
    async def decides(x: int, ctx: Ctx) -> int:
        world.ran.append("decides")
        await begun[-1].wait()
        ctx.state["decided"] = x
        if fail:
            raise ValueError("decided")
        return x

    @step(id="goes_on", version="1")
    async def goes_on(x: int) -> int:
        world.ran.append("goes_on")
        begun[-1].set()
        await sleep_forever()
        return x

    return sequence(opens, section([decides, sequence(world.step("a"), goes_on, id="way")], id="both"), id="flow")


def spawning(world: World) -> AnyStep:
    """Spawns whose children share, or have their own: only what they share shows around them."""
    ways: list[tuple[Any, Any]] = [("share", "share"), ("new", "share"), ("share", "new")]
    spawns = [
        spawn(world.step(f"{items} {state}"), items=items, state=state, id=f"spawn{number}")
        for number, (items, state) in enumerate(ways)
    ]
    return sequence(*spawns, world.step("last"), id="flow")


# Of each program: the step with whose record a process dies, and what the next one runs.
ONE_DEATH: list[tuple[Callable[[World], AnyStep], str, list[str]]] = [
    (failing, "deep", []),
    (failing, "b", []),
    (failing_again, "deep", []),
    (partial(looping, now=False), "ends", ["b"]),
    (partial(looping, now=False), "deep", ["b"]),
    (partial(looping, now=True), "ends", []),
    (cut_off, "b", ["c", "a", "hangs", "b", "c"]),
    (partial(cut_off, ends=True), "b", ["c"]),
    (partial(deciding, section=race, fail=False), "decides[0]", []),
    (partial(deciding, section=parallel, fail=True), "decides[0]", []),
    (spawning, "spawn2", ["last"]),
    (lambda world: sequence(world.calling("a", "b"), world.step("c"), id="flow"), "body", ["c"]),
]


@pytest.mark.parametrize(("make", "name", "runs"), ONE_DEATH)
async def test_a_process_that_goes_on_runs_only_what_is_left_and_comes_to_the_same(
    make: Callable[[World], AnyStep], name: str, runs: list[str]
) -> None:
    whole = InMemoryBackend()
    expected = said(await harness(whole).run(make(World()), 1, run_id="r", on_error="result"))
    backend = await died(make(World()), ended(name))
    world = World()
    assert said(await harness(backend).resume("r", make(world), on_error="result")) == expected
    assert world.take() == runs
    if expected[0] == "completed":
        # What has failed is tried again.
        assert said(await harness(backend).resume("r", make(world))) == expected


class Said(MemoryLayer[list[str]]):
    """A layer that keeps texts."""

    @function
    async def add(self, text: str) -> None:
        """Keep a text."""
        self.state = [*self.state, text]


class Mem(Memory):
    said: Said = Said()


@pytest.mark.parametrize("ends", ["aborted", "wrapped up"])
async def test_a_spawn_that_is_stopped_keeps_its_layers_wherever_the_process_dies(ends: str) -> None:
    @step(id="note")
    async def note(x: object, ctx: Context[Mem, StateBag]) -> str:
        await ctx.memory.said.add("noted")
        return ", ".join(ctx.memory.said.state)

    @step(id="stop")
    async def stop(x: object, ctx: Context[Mem, StateBag]) -> object:
        if ends == "aborted":
            ctx.abort("enough")
        return x

    @step(id="careful")
    async def careful(x: int, ctx: Context[Mem, StateBag]) -> list[object]:
        await note(x, ctx)
        budget = None if ends == "aborted" else Budget(steps=3, wrap_up=note, reserve=Budget(steps=1))
        child: AnyStep = spawn(sequence(note, stop, note, id="row"), state="share", budget=budget, id="child")
        found: list[object] = []
        with suppress(errors.Aborted):
            found.append(await child(x, ctx))
        return [*found, await note(x, ctx)]

    def made(backend: CheckpointBackend) -> Harness[Mem]:
        return Harness(plugins=(), memory=Mem(), checkpoints=backend)

    await assert_resumable_everywhere(lambda: careful, 1, make=made)


@pytest.mark.parametrize("name", ["lists", "body", "inner", "outer"])
async def test_an_output_that_is_a_childs_is_stored_once_by_a_later_process_too(name: str) -> None:
    @step(id="lists", version="1")
    async def lists(x: int) -> list[int]:
        return [x]

    @step(id="body", version="1")
    async def body(x: int, ctx: Ctx) -> list[int]:
        return await lists(x, ctx)

    @step(id="outer", version="1")
    async def outer(x: int, ctx: Ctx) -> list[int]:
        return await sequence(body, id="inner")(x, ctx)

    flow = sequence(outer, id="flow")
    backend = await died(flow, ended(name))
    assert (await harness(backend).resume("r", flow)).value == [1]
    outputs = {
        record.path[-1]: getattr(record.output, "name", None)
        for record in await harness(backend).runs.journal("r")
        if isinstance(record, StepFinished)
    }
    assert outputs == {"lists": None, "body": "lists", "inner": "body", "outer": "inner", "flow": "outer"}


@define
class Rows:
    """A state with a list."""

    rows: list[int]


async def test_a_body_holds_the_state_over_a_failure_that_is_not_made_again() -> None:
    @step
    async def push(x: int, ctx: Context[Memory, Rows]) -> int:
        ctx.state.rows.append(x)
        return x

    @step
    async def deep(x: int, ctx: Context[Memory, Rows]) -> int:
        await push(x, ctx)
        raise ValueError(x)

    @step
    async def body(x: int, ctx: Context[Memory, Rows]) -> list[int]:
        rows = ctx.state.rows
        rows.append(1)
        with suppress(errors.StepFailed):
            await deep(2, ctx)
        rows.append(3)
        with suppress(errors.StepFailed):
            await deep(4, ctx)
        rows.append(5)
        await push(6, ctx)
        return list(rows)

    await assert_resumable_everywhere(lambda: body, 1, state=Rows([]))


# ------------------------------------------------------------------------------------------------- what it began with


@define
class Plain:
    """A state without a version."""


@define
class Second:
    """A state of version 2."""

    schema_version = 2

    @classmethod
    def migrate(cls, stored: dict[str, Any], version: int) -> dict[str, Any]:
        return stored


class Odd:
    """What is called like a version, and is none."""

    def __init__(self, version: object) -> None:
        self.schema_version = version


@pytest.mark.parametrize(
    ("kind", "version"),
    [(None, 1), (dict, 1), (Plain, 1), (Second, 2), *((Odd(odd), 1) for odd in ("2", 2.0, True, 0, -1, None, 1))],
)
def test_the_version_of_a_type(kind: Any, version: int) -> None:
    assert version_of(kind) == version


def test_a_journal_that_begins_in_the_middle_has_no_beginning() -> None:
    with pytest.raises(errors.CodecError, match="the journal has no beginning"):
        opening_of([RunEnded((), "completed", None, None)])
