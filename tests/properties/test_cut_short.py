"""Runs that a budget or the time cuts short anywhere show conversation, state and layers of one and the same moment.

Each body of a generated program leaves one mark in all three, so whatever a result shows, the three must say the same.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define, field

from noetic_py import (
    Ask,
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Message,
    Retry,
    RunResult,
    StateBag,
    Step,
    branch,
    errors,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, FileBackend, SqliteBackend
from noetic_py.cli.run_tree import read_tree
from noetic_py.memory import function
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

AnyStep = Step[Any, Any, Any, Any]
AnyResult = RunResult[Any, Any]
FIRST = SEED * 100_000 + 70_000
CUT = examples(sample=2, full=600)
STORED = examples(sample=1, full=60)


class Marks(MemoryLayer[list[str]]):
    """Keeps what it is told."""

    @function
    async def add(self, text: str) -> None:
        """Keep a text."""
        self.state = [*self.state, text]


@define
class Noted:
    """What is kept of marks from the second version on."""

    texts: list[str] = field(factory=list[str])


class NewMarks(MemoryLayer[Noted]):
    """The same layer, some releases later."""

    schema_version = 10

    @function
    async def add(self, text: str) -> None:
        """Keep a text."""
        self.state = Noted([*self.state.texts, text])

    def migrate(self, state: Any, version: object) -> object:
        assert version == 1
        return Noted(list(state))


class Mem(Memory):
    marks: Marks = Marks()


class NewMem(Memory):
    marks: NewMarks = NewMarks()


class Tally(MemoryLayer[dict[str, int]]):
    """Counts what it is told; what runs side by side have added is joined by key."""

    @function
    async def add(self, text: str) -> None:
        """Count a text."""
        key = f"{self.ctx.run_id}: {text}"
        self.state = {**self.state, key: self.state.get(key, 0) + 1}


class TallyMem(Memory):
    marks: Tally = Tally()


def marks_of(memory: Mapping[str, Any]) -> list[str]:
    """What a layer of any version holds."""
    state = memory.get("marks", [])
    return list(state.texts if isinstance(state, Noted) else state)


@define(slots=False)
class Program:
    """A random program, and what its bodies note."""

    dice: random.Random
    layers: bool
    asks: bool = False
    # At which body of a process the time stands still.
    hangs_at: int | None = None
    count: int = 0
    begun: int = 0
    # The bodies that have begun, by path and by the attempts of all steps around them.
    bodies: set[tuple[object, ...]] = field(factory=set[tuple[object, ...]])
    at_once: bool = False
    races: bool = False
    retries: bool = False
    questions: int = 0

    def flow(self) -> AnyStep:
        """The whole of it."""
        return sequence(self.node(3), self.node(2), self.body(1), id="flow")

    def _id(self) -> str:
        self.count += 1
        return f"s{self.count}"

    def node(self, depth: int) -> AnyStep:
        if depth == 0:
            return self.body(0)
        makers: tuple[Callable[[int], AnyStep], ...] = (
            self.body, self.body, self.body, self.row, self.rounds, self.paths, self.one_of, self.below, self.chosen,
        )  # fmt: skip
        return self.dice.choice(makers)(depth)

    def row(self, depth: int) -> AnyStep:
        return sequence(*[self.node(depth - 1) for _ in range(self.dice.randint(1, 3))], id=self._id())

    def rounds(self, depth: int) -> AnyStep:
        return loop(self.node(depth - 1), until=until.max_rounds(self.dice.randint(1, 3)), id=self._id())

    def paths(self, depth: int) -> AnyStep:
        self.at_once = True
        made = [self.node(depth - 1) for _ in range(self.dice.randint(1, 3))]
        return parallel(made, merge=lambda results, ctx: 1, id=self._id())

    def one_of(self, depth: int) -> AnyStep:
        self.at_once = self.races = True
        return race([self.node(depth - 1) for _ in range(self.dice.randint(1, 2))], id=self._id())

    def below(self, depth: int) -> AnyStep:
        # A child's layers are its own, so what it leaves in a conversation of its own is not seen at all.
        return spawn(self.node(depth - 1), id=self._id(), budget=self.dice.choice((None, Budget(model_calls=9))))

    def chosen(self, depth: int) -> AnyStep:
        case = self.node(depth - 1)
        return branch(lambda value: 0, {0: case}, id=self._id())

    def body(self, depth: int) -> AnyStep:
        """A step that leaves marks between its children, some of which it lets fail."""
        name, dice = self._id(), self.dice
        children = [self.node(depth - 1) for _ in range(dice.randint(0, 2))] if depth else []
        caught = [dice.random() < 0.3 for _ in children]
        fails = dice.random() < 0.2
        asks = self.asks and dice.random() < 0.3
        self.questions += asks
        attempts = 2 if dice.random() < 0.3 else 1
        self.retries = self.retries or (fails and attempts > 1)
        program = self

        @step(id=name, version="1", retry=Retry(attempts, initial=0))
        async def body(value: object, ctx: Context[Any, Any]) -> int:
            frame: Any = ctx
            await program.enter(ctx)
            await program.mark(ctx, f"{name} begins")
            for child, catches in zip(children, caught, strict=True):
                try:
                    await child(1, ctx)
                except errors.StepFailed:
                    if not catches:
                        raise
                await program.mark(ctx, f"{name} after {child.id}")
            if asks:
                await ctx.ask(Ask(f"{name}?", bool))
                await program.mark(ctx, f"{name} was answered")
            if fails and frame.attempt < attempts:
                raise ValueError(name)
            return 1

        return body

    async def enter(self, ctx: Context) -> None:
        """A body begins."""
        attempts: list[object] = []
        frame: Any = ctx
        while frame is not None:
            attempts.append((frame.path, frame.attempt))
            frame = frame.up
        self.bodies.add(tuple(attempts))
        self.begun += 1
        if self.begun == self.hangs_at:
            await anyio.sleep_forever()

    async def mark(self, ctx: Context[Any, Any], text: str) -> None:
        """Leave a mark everywhere."""
        ctx.items.append(Message.user(text))
        ctx.state["marks"] = [*ctx.state.get("marks", []), text]
        if self.layers:
            await ctx.memory["marks"].add(text)


@define(slots=False)
class Cut:
    """A run of a program, over all the processes that carry it."""

    seed: int
    backend: CheckpointBackend
    layers: bool
    given: bool = False
    asks: bool = False
    run_id: str = "r"
    memory: Memory = field(factory=Mem)
    program: Program = field(init=False)
    flow: AnyStep = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.program = Program(random.Random(self.seed), self.layers, self.asks)
        self.flow = self.program.flow()

    def harness(self) -> Harness[Any]:
        """Of one process."""
        return Harness(plugins=(), checkpoints=self.backend, memory=self.memory if self.layers else None)

    async def process(self, budget: Budget | None = None, *, begins: bool = False, hangs_at: int | None = None) -> Any:
        """One process; what it shows is checked."""
        self.program.begun, self.program.hangs_at = 0, hangs_at
        options: dict[str, Any] = {"budget": budget, "on_error": "result"}
        with anyio.fail_after(30):
            async with self.harness() as harness:
                if begins:
                    state = {"state": StateBag({"marks": []})} if self.given else {}
                    run: Any = harness.run
                    result = await run(self.flow, 1, run_id=self.run_id, **state, **options)
                else:
                    resume: Any = harness.resume
                    result = await resume(self.run_id, self.flow, **options)
        await self.check(result)
        return result

    async def check(self, result: AnyResult) -> None:
        """All that it shows is of one moment, and counted as the journal counts it."""
        items, state = texts(result), list(result.state.get("marks", []))
        assert state == items, (result.status, state, items)
        if self.layers and not isinstance(self.memory, TallyMem):
            assert marks_of(result.memory) == items, (result.status, result.memory, items)
        told = read_tree(await Harness(plugins=(), checkpoints=self.backend).runs.journal(self.run_id))
        assert told.steps == result.steps, (result.status, told.steps, result.steps)
        if not self.program.at_once:
            # Of paths at once one may be counted, and cancelled before its body has begun.
            assert len(self.program.bodies) == result.steps, (result.status, self.program.bodies, result.steps)


def texts(result: AnyResult) -> list[str]:
    return [item.text for item in result.items if isinstance(item, Message)]


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncGenerator[CheckpointBackend]:
    """A backend of a kind."""
    if kind == "memory":
        yield InMemoryBackend()
    elif kind == "sqlite":
        async with SqliteBackend(folder / "runs.db") as backend:
            yield backend
    else:
        async with FileBackend(folder / "runs") as files:
            yield files


async def whole(seed: int, layers: bool) -> AnyResult:
    """The run as it is when nothing cuts it short."""
    result: AnyResult = await Cut(seed, InMemoryBackend(), layers).process(begins=True)
    return result


def assert_same(cut: Cut, result: AnyResult, expected: AnyResult) -> None:
    """A run that was cut short has come to the same in the end; of a race another path may have won."""
    assert result.status == expected.status
    assert texts(result) == texts(expected) or cut.program.races


async def cut_by_steps(seed: int, cut: Cut, expected: AnyResult, at: int) -> None:
    """A run that gets so many steps, then the same once more, then one more step in each process."""
    results = [await cut.process(Budget(steps=at), begins=True), await cut.process(Budget(steps=at))]
    # Where another path wins a race, fewer steps may be enough.
    assert all(each.status == "budget_exceeded" or cut.program.races for each in results)
    assert all(each.steps <= at for each in results)
    if not cut.program.at_once:
        assert [texts(results[1]), results[1].steps] == [texts(results[0]), results[0].steps]
    for more in range(at + 1, expected.steps, 2):
        await cut.process(Budget(steps=more))
    result = await cut.process(Budget())
    assert_same(cut, result, expected)
    again = await cut.process(Budget(steps=1))
    assert (again.status, texts(again), again.steps) == (result.status, texts(result), result.steps)
    if not cut.program.at_once:
        assert result.steps == expected.steps


def noted(error: BaseException, *what: object) -> None:
    error.add_note(f"NOETIC_SEED={SEED}, {what}")


@pytest.mark.parametrize("given", [True, False], ids=["a state", "no state"])
@pytest.mark.parametrize("layers", [True, False], ids=["layers", "no layers"])
async def test_cut_short_by_steps_anywhere(layers: bool, given: bool) -> None:
    cuts = 0
    for seed in range(FIRST, FIRST + CUT):
        expected = await whole(seed, layers)
        for at in random.Random(seed).sample(range(1, expected.steps), min(2, expected.steps - 1)):
            cuts += 1
            try:
                await cut_by_steps(seed, Cut(seed, InMemoryBackend(), layers, given), expected, at)
            except BaseException as error:
                noted(error, seed, layers, given, at)
                raise
    assert cuts > CUT


async def test_a_run_does_not_contradict_what_it_has_stored_itself() -> None:
    """A process that is cut in a second attempt stores a state of its layers that no later process comes to again."""
    seed, at = 1_470_500, 3
    await cut_by_steps(seed, Cut(seed, InMemoryBackend(), True, True), await whole(seed, True), at)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
async def test_cut_short_by_time_anywhere(kind: str, tmp_path: Path) -> None:
    # In the first of these a step that time had cut off was once counted again.
    for seed in {280_000, *range(FIRST + 10_000, FIRST + 10_000 + STORED)}:
        expected = await whole(seed, True)
        at = random.Random(seed).randint(1, expected.steps)
        async with opened(kind, tmp_path / str(seed)) as backend:
            cut = Cut(seed, backend, True)
            try:
                first = await cut.process(Budget(seconds=0.02), begins=True, hangs_at=at)
                # Of a race another path may have won.
                limits = (Budget(seconds=0), Budget(seconds=0.02), Budget(steps=1))
                for limit in limits if first.status == "budget_exceeded" else ():
                    again = await cut.process(limit, hangs_at=1 if limit.seconds else None)
                    # What has begun may come to its end: of steps it needs no more.
                    assert again.status == "budget_exceeded" or limit.seconds is None or cut.program.races
                    assert again.steps >= first.steps
                assert_same(cut, await cut.process(Budget(seconds=100)), expected)
            except BaseException as error:
                noted(error, seed, kind, at)
                raise


async def waiting_and_forked(seed: int, backend: CheckpointBackend) -> int:
    """A run that is cut short while it waits, forked, answered, and so on to its end; how often it has waited."""
    cut, waits = Cut(seed, backend, True, asks=True), 0
    result = await cut.process(begins=True)
    while result.status == "suspended":
        waits += 1
        before = result.steps
        result = await cut.process(Budget(steps=max(1, before)))
        result = await cut.process(Budget(seconds=0))
        result = await cut.process(Budget())
        assert (result.status, result.steps) == ("suspended", before)
        async with cut.harness() as harness:
            forked = await harness.fork(cut.run_id)
            info = await harness.runs.get(forked)
            assert info.status == "suspended"
            assert [each.prompt for each in info.pending] == [each.prompt for each in result.pending]
            assert {each.run_id for each in info.pending} == {forked}
            # The fork is what goes on: it has to be as good as the run.
            await harness.runs.answer(info.pending[0].answer(True))
        cut.run_id = forked
        result = await cut.process(Budget())
    assert result.status == "completed"
    return waits


def surely_waits(seed: int) -> bool:
    """Whether a program asks a question outside a race, which another path may win."""
    program = Cut(seed, InMemoryBackend(), True, asks=True).program
    return program.questions > 0 and not program.races


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
async def test_cut_short_while_it_waits(kind: str, tmp_path: Path) -> None:
    waits = 0
    begin = FIRST + 20_000
    for seed in {next(filter(surely_waits, count(begin))), *range(begin, begin + STORED)}:
        async with opened(kind, tmp_path / str(seed)) as backend:
            try:
                waits += await waiting_and_forked(seed, backend)
            except BaseException as error:
                noted(error, seed, kind)
                raise
    assert waits > 0


async def test_a_fork_of_a_fork_counts_what_its_earlier_processes_have_done_as_its_own() -> None:
    """What a process leaves in the middle of a step is not stored for other runs yet, and the next process meets it."""
    await waiting_and_forked(1_490_012, InMemoryBackend())


@step
async def counted(value: object, ctx: Context[Any, Any]) -> dict[str, int]:
    """What the thread's memory holds."""
    tally: dict[str, int] = ctx.memory["marks"].state
    return tally


def counts_once(seed: int) -> bool:
    """Whether all of a program counts once: neither run knows what the other makes of paths and attempts in flight."""
    program = Cut(seed, InMemoryBackend(), True, asks=True).program
    return not (program.at_once or program.retries)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
async def test_forks_that_go_on_side_by_side_store_what_each_has_done_once(kind: str, tmp_path: Path) -> None:
    forks = 0
    for seed in islice(filter(counts_once, count(FIRST + 40_000)), 2 * STORED):
        dice = random.Random(seed)
        async with opened(kind, tmp_path / str(seed)) as backend:
            # The runs, whether or not they have ended, and what each shows last.
            cut = Cut(seed, backend, True, asks=True, memory=TallyMem())
            # The bodies of several runs are not counted.
            cut.program.at_once = True
            shown: dict[str, AnyResult] = {}
            try:
                # The first program is cut early and forked at once, so each sample has a fork.
                shown["r"] = await cut.process(Budget(steps=dice.randint(1, 9) if forks else 1), begins=True)
                while going := [each for each, result in shown.items() if result.status != "completed"]:
                    cut.run_id = dice.choice(going)
                    async with cut.harness() as harness:
                        if len(shown) < 4 and (forks == 0 or dice.random() < 0.4):
                            forks += 1
                            cut.run_id = await harness.fork(cut.run_id)
                        for request in (await harness.runs.get(cut.run_id)).pending:
                            await harness.runs.answer(request.answer(True))
                    limit = Budget(steps=shown[cut.run_id].steps + 1) if cut.run_id in shown else Budget()
                    shown[cut.run_id] = await cut.process(dice.choice((limit, Budget())))
                    assert shown[cut.run_id].status != "failed", shown[cut.run_id].error
                async with cut.harness() as harness:
                    stored = await harness.run(counted, 1, thread_id="r")
                # A mark is that of the run that left it: a fork may have begun with one that the run drops later.
                expected: dict[str, int] = {}
                for result in shown.values():
                    expected |= result.memory["marks"]
                for run_id, result in shown.items():
                    tally: dict[str, int] = result.memory["marks"]
                    expected |= {mark: count for mark, count in tally.items() if mark.startswith(run_id)}
                assert stored.value == expected, (stored.value, expected)
            except BaseException as error:
                noted(error, seed, kind)
                raise
    assert forks > 0


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
async def test_cut_short_and_gone_on_with_after_an_upgrade_of_a_layer(kind: str, tmp_path: Path) -> None:
    upgrades = 0
    begin, most = FIRST + 30_000, CUT if kind == "memory" else STORED
    # The first of these once contradicted what it had stored before the upgrade; in the others a section that was
    # cancelled before it could fail of a budget still failed of it when the budget was raised.
    for seed in {1_500_000, 1_500_134, 2_900_019, *range(begin, begin + most)}:
        expected = await whole(seed, True)
        at = random.Random(seed).randint(1, max(1, expected.steps - 1))
        async with opened(kind, tmp_path / str(seed)) as backend:
            cut = Cut(seed, backend, True, asks=True)
            try:
                result = await cut.process(Budget(steps=at), begins=True)
                cut.memory = NewMem()
                upgrades += result.status != "completed"
                for limit in (Budget(seconds=0), Budget(steps=at + 1), Budget()):
                    result = await cut.process(limit)
                while result.status == "suspended":
                    async with cut.harness() as harness:
                        await harness.runs.answer(result.pending[-1].answer(True))
                    result = await cut.process(Budget())
                assert result.status == "completed"
                cut.memory = Mem()
                with pytest.raises(errors.ConfigError, match="of version 10, and its own is 1") as caught:
                    await cut.process(Budget())
                assert caught.value.code == "layer-version"
            except BaseException as error:
                noted(error, seed, kind, at)
                raise
    assert upgrades > 0


@pytest.mark.parametrize("layers", [True, False], ids=["layers", "no layers"])
async def test_a_wrap_up_meets_all_that_any_process_has_done(layers: bool) -> None:
    """It is not run again while nothing follows it, and it is void once something has."""
    program = Program(random.Random(1), layers)

    @step
    async def note(text: str, ctx: Context[Any, Any]) -> str:
        await program.mark(ctx, text)
        return text

    @step
    async def work(x: object, ctx: Context[Any, Any]) -> int:
        for text in ("one", "two", "three", "four"):
            await note(text, ctx)
        return 1

    @step
    async def last(x: object, ctx: Context[Any, Any]) -> str:
        here = [item.text for item in ctx.items if isinstance(item, Message)]
        assert ctx.state["marks"] == here
        assert not layers or ctx.memory["marks"].state == here
        await program.mark(ctx, "wrapped up")
        return ",".join(here)

    cut = Cut(0, InMemoryBackend(), layers)
    cut.program, cut.flow = program, work
    # Bodies are not counted here.
    program.at_once = True

    def limit(steps: int) -> Budget:
        return Budget(steps=steps, wrap_up=last, reserve=Budget(steps=1))

    first = await cut.process(limit(4), begins=True)
    assert (first.output_or(None), texts(first)) == ("one,two", ["one", "two", "wrapped up"])
    for _ in range(2):
        again = await cut.process(limit(4))
        assert (again.output_or(None), texts(again), again.steps) == ("one,two", ["one", "two", "wrapped up"], 4)
    further = await cut.process(limit(6))
    assert (further.output_or(None), texts(further)) == ("one,two,three", ["one", "two", "three", "wrapped up"])
    bare = await cut.process(Budget(steps=6))
    assert (bare.status, texts(bare)) == ("budget_exceeded", ["one", "two", "three"])
    result = await cut.process(Budget())
    assert (result.status, texts(result), result.steps) == ("completed", ["one", "two", "three", "four"], 7)


async def test_a_step_s_own_wrap_up_does_not_meet_what_its_body_has_not_written() -> None:
    @step
    async def last(x: object, ctx: Context[Any, Any]) -> list[object]:
        return [list(ctx.state.view()), [item.text for item in ctx.items if isinstance(item, Message)]]

    @step(budget=Budget(seconds=0.02, steps=9, wrap_up=last, reserve=Budget(steps=1)))
    async def body(x: object, ctx: Context[Any, Any]) -> Any:
        ctx.state["begun"] = True
        ctx.items.append(Message.user("begun"))
        await anyio.sleep(60)
        return x

    for backend in (None, InMemoryBackend()):
        async with Harness(plugins=(), checkpoints=backend) as harness:
            result = await harness.run(body, 1, state=StateBag())
        assert result.value == [[], []]
        assert result.state == StateBag()


async def test_paths_that_a_budget_has_ended_go_on_together() -> None:
    @step
    async def path(x: int) -> int:
        return x

    flow = parallel([path, path.with_options(id="other"), path.with_options(id="third")])
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        first = await harness.run(flow, 1, run_id="r", budget=Budget(steps=0), on_error="result")
        assert first.status == "budget_exceeded"
        assert (await harness.resume("r", flow, budget=Budget(steps=3))).value == [1, 1, 1]


async def test_work_beside_a_flow_that_waits_shows_one_moment() -> None:
    """Its starter is done, so it is started again from what the journal says, layers as they were then."""
    program = Program(random.Random(1), layers=True)

    @step
    async def work(x: object, ctx: Context[Any, Any]) -> int:
        await program.mark(ctx, "begun")
        await note("one", ctx)
        await ctx.ask(Ask("Go on?", bool))
        await note("two", ctx)
        return 1

    @step
    async def note(text: str, ctx: Context[Any, Any]) -> str:
        await program.mark(ctx, text)
        return text

    works: list[Any] = []

    @step
    async def start(x: object, ctx: Context[Any, Any]) -> int:
        await program.mark(ctx, "before")
        works.append(ctx.spawn_detached(work, x))
        await program.mark(ctx, "after")
        return 2

    @step
    async def waits(x: object, ctx: Context[Any, Any]) -> int:
        await start(x, ctx)
        works.append(ctx.spawn_detached(work, x, state=StateBag()))
        return int((await works[-1].wait()).status == "completed")

    def moment(result: AnyResult) -> list[object]:
        return [list(result.state.get("marks", [])), result.memory["marks"], texts(result)]

    async with Harness(plugins=(), checkpoints=InMemoryBackend(), memory=Mem()) as harness:
        result = await harness.run(waits, 1, run_id="r")
        state, layer, said = moment(works[0].result)
        assert (state, layer, said) == (["before", "begun", "one"], ["before", "begun", "one"], ["begun", "one"])
        for limit in (Budget(), Budget(steps=1), Budget(seconds=0)):
            result = await harness.resume("r", waits, budget=limit)
            assert moment(result) == [["before", "after"]] * 3
            own = works[-1].result
            if limit != Budget(seconds=0):
                # The first state here is an empty one, the layer's is the starter's.
                assert moment(own) == [["begun", "one"], ["before", "after", "begun", "one"], ["begun", "one"]]
        result = await harness.resume("r", waits, budget=Budget())
        assert (result.status, len(result.pending)) == ("suspended", 2)
        result = await harness.resume("r", waits, answers=[each.answer(True) for each in result.pending])
        assert (result.status, result.output_or(None)) == ("completed", 1)
        assert moment(works[-1].result)[2] == ["begun", "one", "two"]
