"""Summaries of a loop's rounds say what the journal says, and a resume from them is one from the journal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from attrs import define, evolve, field

import noetic_py
from noetic_py import (
    Ask,
    Budget,
    Channel,
    Context,
    Handoff,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    RunResult,
    StateBag,
    TokenUsage,
    branch,
    call_model,
    loop,
    race,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.cli.record_lines import line_of
from noetic_py.context.step import AnyStep, Retry
from noetic_py.core.codec import Codec
from noetic_py.core.events import StepCommitted
from noetic_py.engine.frame import Frame
from noetic_py.engine.journaling import summaries
from noetic_py.engine.journaling.fold import Begun, tree, visible
from noetic_py.engine.journaling.run_history import (
    RunHistory,
    is_unpriced,
    iterations_in,
    read_journal,
    recorded_usage,
)
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.kinds import loop as loop_kind
from noetic_py.engine.state import RecordedUsage
from noetic_py.errors import ReplayDiverged
from noetic_py.journal.patches import changed_fields, field_trees
from noetic_py.journal.records import Folded, JournalRecord, StateRevised, StepFinished, StepStopped, dump_record
from noetic_py.journal.run_summary import PlainCodec
from noetic_py.journal.stored import Head, Record
from noetic_py.journal.values import Stored
from noetic_py.memory import ContextQueue
from noetic_py.models import ModelProfile
from noetic_py.runner import lease
from noetic_py.testing import FaultyBackend, ScriptedModel
from tests.properties.checks import FULL, examples

pytestmark = pytest.mark.anyio


# Called with options that no overload has together.
MAKE: Any = noetic_py


@define
class Notes:
    """A state with fields."""

    rows: list[str] = field(factory=list[str])
    text: str = ""
    table: dict[str, int] = field(factory=dict[str, int])
    count: int = 0


def changed(state: Any, which: int, value: int) -> None:
    """Change a state in one of several ways."""
    bag = isinstance(state, StateBag)
    fields: Any = state

    def put(key: str, new: object) -> None:
        if bag:
            fields[key] = new
        else:
            setattr(fields, key, new)

    def get(key: str, old: Any) -> Any:
        return fields.get(key, old) if bag else getattr(fields, key)

    match which:
        case 0:
            put("rows", [*get("rows", []), f"{value}"])
        case 1:
            put("text", get("text", "") + f"{value},")
        case 2:
            put("table", {**get("table", {}), f"k{value % 5}": value})
        case 3:
            put("table", {key: old for key, old in get("table", {}).items() if key != f"k{value % 5}"})
        case 4 if bag:
            put(f"more{value % 3}", value)
        case 5 if bag:
            drop_first(state)
        case _:
            put("count", get("count", 0) + 1)


def drop_first(state: StateBag) -> None:
    """Take away the first field that was added, so that the order of fields changes when it is added again."""
    for key in [key for key in state if key.startswith("more")][:1]:
        del state[key]


class Program:
    """A random flow whose loops say nothing, and what its bodies have done in one life."""

    def __init__(self, seed: int, *, sections: bool = True) -> None:
        self.random = Random(seed)
        self._sections = sections
        self.bag = self.random.random() < 0.5
        self.started: list[tuple[str, ...]] = []
        self._failed: set[tuple[str, ...]] = set()
        self._ids = 0
        parts = [self._leaf(), self._loop(2, self.random.randint(5, 14)), self._leaf(), self._loop(1, 6)]
        self.flow = sequence(*parts[self.random.randint(0, 1) : self.random.randint(2, 4)], id="flow")
        self.budget = self.random.choice(
            [None, None, Budget(steps=self.random.randint(10, 80)), Budget(cost=self.random.randint(1, 20))]
        )

    @property
    def state(self) -> object:
        return StateBag({"rows": [], "first": 1}) if self.bag else Notes()

    def _id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}{self._ids}"

    def _leaf(self, fails: int = 0) -> AnyStep:
        """A step that changes the state. `fails`: 1 at first, 2 in every third round, 3 once, which ends the run."""
        ways = [self.random.choice((0, 1, 2, 3, 4, 4, 5, 6)) for _ in range(self.random.choice((0, 1, 2, 2)))]
        more = self.random.randint(1, 3)

        async def body(value: int, ctx: Context[Any, Any]) -> int:
            self.started.append(ctx.path)
            for way in ways:
                changed(ctx.state, way, value)
            if fails == 1 and ctx.path not in self._failed:
                self._failed.add(ctx.path)
                raise ValueError("once")
            if fails == 3 and ctx.path[-1].endswith("[5]") and ctx.path not in self._failed:
                self._failed.add(ctx.path)
                raise ValueError("until the run is resumed")
            if fails == 2 and ctx.path[-1].endswith(("[1]", "[4]", "[7]")):
                raise ValueError("in this round")
            return value + more

        retry = Retry(attempts=2, initial=0.0) if fails == 1 else None
        made: AnyStep = MAKE.step(body, id=self._id("s"), retry=retry)
        return made

    def _loop(self, depth: int, rounds: int) -> AnyStep:
        options: dict[str, Any] = {}
        fails = 0

        def more(output: int, verdict: object, ctx: object) -> int:
            return output + 10

        if self.random.random() < 0.4:
            fails = 2
            answer = self.random.choice(("skip", "retry"))
            options["on_error"] = partial(_answer, answer)
        elif self.random.random() < 0.2:
            fails = 3
        if self.random.random() < 0.3:
            options["prepare_next"] = more
        if self.random.random() < 0.2:
            rounds += 2
            options |= {"max_iterations": rounds - 2, "at_limit": "end"}
        many = rounds

        def judge(snapshot: until.Snapshot[Any]) -> bool:
            return snapshot.iteration + 1 >= many or (snapshot.outputs[-1] != snapshot.output)

        body = self._body(depth - 1, fails)
        return loop(body, until=until.custom(judge), id=self._id("loop"), **options)

    def _body(self, depth: int, fails: int) -> AnyStep:
        kind = self.random.choice(("leaf", "retried", "many", "section", "section", "chosen", "loop", "loop"))
        if kind == "section" and not self._sections:
            kind = "many"
        if fails > 1 or kind == "leaf" or (kind == "loop" and depth == 0):
            return self._leaf(fails)
        match kind:
            case "retried":
                return self._leaf(1)
            case "many":
                return sequence(self._leaf(), self._body(max(0, depth - 1), 0), self._leaf(), id=self._id("many"))
            case "section":
                paths = [self._leaf(), sequence(self._leaf(1), self._leaf(), id=self._id("path"))]
                if self.random.random() < 0.8:
                    paths.append(sequence(asked, call_model(id=self._id("model")), counted, id=self._id("asks")))
                if self.random.random() < 0.3:
                    return sequence(race([self._leaf()], id=self._id("race")), self._leaf(), id=self._id("r"))
                way = self.random.randint(0, 6)

                def merge(outputs: Sequence[int], ctx: Context[Any, Any]) -> int:
                    changed(ctx.state, way, outputs[0])
                    return sum(outputs[:2])

                joined: AnyStep = MAKE.parallel(paths, merge=merge, id=self._id("all"))
                return joined
            case "chosen":
                cases = {"a": self._leaf(), "b": self._leaf()}
                return branch(lambda value: "ab"[value % 2], cases, id=self._id("branch"))
            case _:
                return self._loop(depth, self.random.randint(3, 7))


def _answer(answer: str, error: Exception, ctx: object) -> str:
    return answer


@step
async def asked(value: int) -> str:
    return f"{value}"


@step
async def counted(text: str) -> int:
    return len(text)


def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have loops summed up after every second round."""
    monkeypatch.setattr(summaries, "EVERY", 2)
    monkeypatch.setattr(summaries, "SHARE", 0)
    monkeypatch.setattr(loop_kind, "KEPT", 1)


def harness_on(backend: CheckpointBackend) -> Harness[Any]:
    model = ScriptedModel(*["yes"] * 400, usage=TokenUsage(3, 2), cost="0.5")
    return Harness(plugins=(), checkpoints=backend, model=model)


def facts_of(records: Sequence[JournalRecord], loop: tuple[str, ...] = ()) -> object:
    """What a resume takes from a journal; what is charged, for a loop and the steps around it."""
    opening = getattr(records[0], "opening", None)
    assert opening is not None
    tree_of_state = opening.state.tree if isinstance(opening.state, Stored) else opening.state
    fields = field_trees(tree_of_state)
    root = tree(records, KINDS)
    items = 0
    for part in visible(root):
        fields = dict(changed_fields(fields, part.delta))
        items += len(part.items)
    used = recorded_usage(records, KINDS, Begun(KINDS))
    return {
        "state": list(fields.items()),
        "items": items,
        "steps": sum(each.steps for each in used),
        "tokens": sum((each.used.tokens for each in used), TokenUsage()),
        "cost": sum(each.used.cost or 0 for each in used),
        "calls": sum(each.used.model_calls for each in used),
        "charged": [charged(used, loop[:depth], again) for depth in range(len(loop) + 1) for again in (True, False)],
        "iterations": iterations_in(records, KINDS),
        "unpriced": is_unpriced(records),
    }


def charged(used: Sequence[RecordedUsage], path: tuple[str, ...], again: bool) -> int:
    """The steps that the lease of a step is charged with."""
    depth = len(path)
    return sum(
        each.steps
        for each in used
        if each.path[:depth] == path
        and len(each.path) > depth
        and (each.discarded is None or depth < each.discarded or (again and depth == each.discarded))
    )


def in_place(records: Sequence[JournalRecord], position: int) -> list[JournalRecord]:
    """The journal up to a summary, with the summary in place of the records that it stands for."""
    found = records[position]
    assert isinstance(found, Folded)
    kept = [records[one] for one in found.kept]
    return [*records[: found.first], evolve(found, stands=True), *kept, *records[found.end : position]]


@define
class Life:
    """What came of a run that died and was resumed."""

    result: RunResult[Any, Any]
    program: Program
    journal: list[JournalRecord]
    read: list[RunHistory | None]
    deaths: int = 0


async def lived(seed: int, dies: Sequence[int], backend: FaultyBackend, *, whole: bool, sections: bool = True) -> Life:
    """Run a program that dies at these appends, each counted from the death before; `whole` reads no summaries."""
    program = Program(seed, sections=sections)
    read: list[RunHistory | None] = []

    async def reading(*given: Any) -> RunHistory | None:
        read.append(None if whole else await summaries.read_summed_up(*given))
        return read[-1]

    deaths = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lease, "read_summed_up", reading)
        result: Any = None
        for dies_at in (*dies, None, None, None):
            backend.revive(dies_at=dies_at)
            async with harness_on(backend) as harness:
                with backend.outlived():
                    if await backend.head("r") is None:
                        run: Any = harness.run
                        result = await run(
                            program.flow, 1, state=program.state, budget=program.budget, run_id="r", on_error="result"
                        )
                    else:
                        kind: Any = StateBag if program.bag else Notes
                        result = await harness.resume(
                            "r", program.flow, state_type=kind, budget=Budget(steps=10_000), on_error="result"
                        )
            deaths += backend.dead
            if not backend.dead and result.status == "completed":
                break
    backend.revive()
    return Life(result, program, await read_journal(backend, "r", PlainCodec()), read, deaths)


def outcome(life: Life) -> object:
    result = life.result
    state: Any = result.state
    return {
        "status": result.status,
        "value": result.value if result.status == "completed" else None,
        "state": list(state.view().items()) if isinstance(state, StateBag) else state,
        "steps": result.steps,
        "usage": result.usage,
        "cost": result.cost,
        "calls": result.model_calls,
        "reason": result.reason,
        "loop_stop": result.loop_stop,
        "items": [type(item).__name__ for item in result.items],
        "error": repr(result.error),
        "position": result.checkpoint.position > 0,
        "started": sorted(life.program.started),
    }


SEEDS = range(examples(sample=20, full=200))


async def test_a_summary_says_what_the_journal_says(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)
    compared = changes = used = gone = 0
    for seed in SEEDS:
        life = await lived(seed, (), FaultyBackend(InMemoryBackend()), whole=True)
        for position, record in enumerate(life.journal):
            if isinstance(record, Folded):
                told, whole = in_place(life.journal, position), life.journal[:position]
                assert facts_of(told, record.path) == facts_of(whole, record.path), (seed, position)
                compared += 1
                changes += bool(record.delta)
                used += record.calls > 0
                gone += any(change.op == "unset" for change in record.delta)
    assert min(compared, changes, used, gone) > (10 if FULL else 5)


# In threads and on trio the paths of a section do not come to their appends in the same order each time, so they would
# die elsewhere.
@pytest.mark.parametrize(
    ("stored", "anyio_backend", "sections"),
    [("memory", "asyncio", True), ("file", "trio", False)],
    ids=["memory", "file"],
)
async def test_a_resume_from_summaries_is_one_from_the_journal(
    stored: str, sections: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shorter(monkeypatch)
    read = deaths = 0
    for seed in SEEDS if stored == "memory" else SEEDS[:20]:
        random = Random(seed)
        dies = [random.randint(5, 120) for _ in range(random.choice((1, 2, 2)))]
        lives: list[Life] = []
        for whole in (True, False):
            inner: Any = InMemoryBackend() if stored == "memory" else SqliteBackend(tmp_path / f"{seed}-{whole}.db")
            async with inner:
                lives.append(await lived(seed, dies, FaultyBackend(inner), whole=whole, sections=sections))
        assert outcome(lives[0]) == outcome(lives[1]), seed
        read += sum(each is not None for each in lives[1].read)
        deaths += lives[1].deaths
        for history in lives[1].read:
            if history is not None:
                assert facts_of(history.records) == facts_of(lives[1].journal[: history.position]), seed
    assert read >= ((15 if FULL else 8) if stored == "memory" else 3)


class Reads(DelegatingBackend):
    """Counts the records that are read."""

    records = 0

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        page = await super().read(run_id, after=after, limit=limit)
        self.records += len(page)
        return page


@step
async def add(value: int, ctx: Context[Any, Any]) -> int:
    ctx.state["count"] = value
    if value == ctx.state["stops"]:
        raise ValueError("stop")
    return value + 1


async def stopped(backend: CheckpointBackend, rounds: int, **options: Any) -> AnyStep:
    """A run that has failed after so many rounds of a loop; returns its flow."""
    flow = loop(add, until=until.max_rounds(rounds + 5), max_iterations=rounds + 5, id="loop")
    async with Harness(plugins=(), checkpoints=backend) as harness:
        state = StateBag({"stops": rounds, "count": 0})
        result = await harness.run(flow, 0, run_id="r", state=state, on_error="result", **options)
    assert result.status == "failed"
    return flow


async def test_a_resume_reads_as_many_records_of_a_long_run_as_of_a_short_one() -> None:
    read: list[int] = []
    for rounds in (600, 1_800):
        backend = Reads(InMemoryBackend())
        flow = await stopped(backend, rounds)
        async with Harness(plugins=(), checkpoints=backend) as harness:
            error = (await harness.resume("r", flow, on_error="result")).error
            read.append(backend.records)
            assert error is not None
            assert error.path == ("loop", f"add[{rounds}]")
            journal = await harness.runs.journal("r")
        assert sum(isinstance(record, Folded) for record in journal) == rounds // 200 - 1
        first = next(at for at, record in enumerate(journal) if isinstance(record, Folded))
        lines = [line_of(at, record) for at, record in enumerate(journal, 1)]
        assert f"sums up    {journal[first].path[0]}  200 rounds, records " in lines[first]
    assert read[0] == read[1] < 700


async def test_a_fork_reads_the_journal_from_its_beginning_until_it_has_a_summary_of_its_own() -> None:
    backend = Reads(InMemoryBackend())
    flow = await stopped(backend, 1_000)
    async with Harness(plugins=(), checkpoints=backend) as harness:
        journal = await harness.runs.journal("r")
        at = 1 + next(place for place, record in enumerate(journal) if record.path == ("loop", "add[500]"))
        fork = await harness.fork("r", at=at)
        backend.records = 0
        result = await harness.resume(fork, flow, on_error="result")
    assert backend.records >= at
    assert result.error is not None
    assert (result.error.path, result.steps) == (("loop", "add[1000]"), 1001)


async def test_other_code_and_a_newer_state_are_compared_with_the_whole_journal() -> None:
    backend = Reads(InMemoryBackend())
    flow = await stopped(backend, 1_000)
    async with Harness(plugins=(), checkpoints=backend) as harness:
        backend.records = 0
        await harness.resume("r", flow, on_error="result", on_diverge="pin")
        assert backend.records > 2_000

    @step(id="add")
    async def other(value: int, ctx: Context[Any, Any]) -> int:
        return value + 2

    changed_flow = loop(other, until=until.max_rounds(1005), max_iterations=1005, id="loop")
    async with Harness(plugins=(), checkpoints=backend) as harness:
        with pytest.raises(ReplayDiverged):
            await harness.resume("r", changed_flow)


async def test_a_summary_that_is_named_and_was_not_stored_is_not_missed() -> None:
    backend = Reads(InMemoryBackend())
    flow = await stopped(backend, 1_000)
    entry = await backend.entry("r")
    assert entry is not None
    fields = json.loads(entry.summary)
    for named in ([entry.position + 5], [3], ["x"], [fields["folded"][0], 4]):
        lease = await backend.acquire("r", ttl=9)
        await backend.append(
            "r", expected_position=(await head_of(backend)).position, fence=lease.fence, records=(),
            summary=json.dumps(fields | {"folded": named}).encode(),
        )  # fmt: skip
        await backend.release(lease)
        backend.records = 0
        async with Harness(plugins=(), checkpoints=backend) as harness:
            result = await harness.resume("r", flow, on_error="result")
        assert backend.records > 2_000
        assert result.steps == 1001


async def head_of(backend: CheckpointBackend) -> Head:
    found = await backend.head("r")
    assert found is not None
    return found


async def test_rounds_that_speak_are_not_summed_up() -> None:
    @step
    async def say(value: int, ctx: Context[Any, Any]) -> int:
        ctx.items.append(Message.assistant(f"{value}"))
        return value + 1

    flow = loop(say, until=until.max_rounds(700), max_iterations=700)
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(flow, 0, run_id="r")
        assert not any(isinstance(record, Folded) for record in await harness.runs.journal("r"))


async def test_a_large_state_is_summed_up_less_often_than_it_grows() -> None:
    @step
    async def grow(value: int, ctx: Context[Any, Any]) -> int:
        ctx.state["rows"] = [*ctx.state.get("rows", []), "x" * 90]
        return value + 1

    flow = loop(grow, until=until.max_rounds(2_000), max_iterations=2_000)
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(flow, 0, run_id="r")
        journal = await harness.runs.journal("r")
    sizes = [len(dump_record(record, Codec()).payload) for record in journal]
    summed = [size for size, record in zip(sizes, journal, strict=True) if isinstance(record, Folded)]
    assert sum(summed) <= sum(sizes) / 10


async def test_a_stored_run_does_not_hold_its_whole_journal() -> None:
    held: list[int] = []

    @step
    async def look(value: int, ctx: Context[Any, Any]) -> int:
        assert isinstance(ctx, Frame)
        held.append(len(ctx.x.run.journal))
        return value + 1

    flow = loop(look, until=until.max_rounds(2_000), max_iterations=2_000)
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        async with harness.stream(flow, 0, run_id="r") as stream:
            committed = [event.position async for event in stream.events if isinstance(event, StepCommitted)]
            result = await stream.result()
        journal = await harness.runs.journal("r")
    assert max(held) < 700
    assert result.checkpoint.position == len(journal) > 4_000
    finished = [place for place, record in enumerate(journal, 1) if isinstance(record, StepFinished)]
    assert committed == finished


@step
async def plus_one(value: int) -> int:
    return value + 1


@tool
async def increased(value: int) -> int:
    """Increase a value."""
    return value + 1


@step
async def speak(value: int, ctx: Context[Any, Any]) -> int:
    ctx.items.append(Message.assistant(f"{value}"))
    return value + 1


def named(value: int) -> dict[str, int]:
    return {"value": value}


def first(outputs: Sequence[int], ctx: Context[Any, Any]) -> int:
    return outputs[0]


class Bundle(Memory):
    """A layer, for a harness."""

    window: ContextQueue[str] = ContextQueue()


LINE = Channel("line", int, external=True)
NOTES = Channel("notes", int, capacity=100)
WAITING = Channel("waiting", int, capacity=100)


def rounds_of(body: AnyStep, count: int = 12, **options: Any) -> AnyStep:
    """A loop of so many rounds."""
    made: AnyStep = MAKE.loop(body, until=until.max_rounds(count), max_iterations=count, id="loop", **options)
    return made


@step
async def fails_at_three(value: int, ctx: Context[Any, Any]) -> int:
    if ctx.path[-1].endswith("[3]"):
        raise ValueError("three")
    return value + 1


@step
async def sends(value: int, ctx: Context[Any, Any]) -> int:
    await ctx.send(NOTES, value)
    return value + 1


@step
async def takes(value: int, ctx: Context[Any, Any]) -> int:
    return value + (ctx.try_recv(WAITING) or 1)


@step
async def fills(value: int, ctx: Context[Any, Any]) -> int:
    for _ in range(12):
        await ctx.send(WAITING, 1)
    return value


@step
async def starts(value: int, ctx: Context[Any, Any]) -> int:
    ctx.spawn_detached(plus_one, value)
    return value + 1


@step
async def derives(value: int, ctx: Context[Any, Any]) -> int:
    return await plus_one(value, ctx.child(preset="derive", name="apart"))


@step
async def stops_round(value: int, ctx: Context[Any, Any]) -> int:
    ctx.stop_loop()
    return value + 1


@step
async def nothing(value: None) -> None:
    return None


FAILED: list[int] = []


@step
async def fails_once_at_ten(value: int) -> int:
    if value == 10 and not FAILED:
        FAILED.append(value)
        raise ValueError("once")
    return value


INNER = rounds_of(plus_one)


@step(handoffs=[INNER])
async def hand_on(value: int) -> int | Handoff[int]:
    return Handoff(INNER, value)


# What of the run, around the loop or in its rounds has a meaning beyond a round.
BEYOND: dict[str, tuple[AnyStep, dict[str, Any]]] = {
    "layers": (rounds_of(plus_one), {"memory": Bundle()}),
    "an execution of its own": (MAKE.spawn(rounds_of(plus_one)), {}),
    "an execution of its own, with a failure": (
        MAKE.spawn(rounds_of(fails_at_three, on_error=partial(_answer, "skip"))),
        {},
    ),
    "beside other paths": (MAKE.parallel([rounds_of(plus_one), plus_one]), {}),
    "in a chain of handoffs": (hand_on, {}),
    "an inbox": (rounds_of(plus_one, inbox=LINE), {}),
    "a tool in each round": (rounds_of(MAKE.call_tool(increased, args=named)), {}),
    "a spawn in each round": (rounds_of(MAKE.spawn(plus_one)), {}),
    "other layers in each round": (rounds_of(MAKE.with_memory(plus_one, memory=Bundle())), {}),
    "items in each round": (rounds_of(speak), {}),
    "a message that each round sends": (rounds_of(sends), {}),
    "a message that each round takes": (MAKE.sequence(fills, rounds_of(takes)), {}),
    "a handoff in each round": (rounds_of(hand_on), {}),
    "work beside the flow in each round": (rounds_of(starts), {}),
    "a conversation of its own in each round": (rounds_of(derives), {}),
    "below a step that may run only once": (MAKE.sequence(rounds_of(plus_one)).with_options(replay="once"), {}),
    "an answer that the next round may look at": (
        rounds_of(MAKE.parallel([sequence(asked, call_model()), sequence(asked, call_model())], merge=first)),
        {"model": ScriptedModel(*["yes"] * 60)},
    ),
}

# What has no meaning beyond a round.
WITHIN: dict[str, AnyStep] = {
    "rounds of another loop": MAKE.sequence(rounds_of(rounds_of(plus_one, 3))),
    "a loop that its body stops": rounds_of(rounds_of(stops_round, 3)),
    "a choice": rounds_of(branch(lambda value: "ab"[value % 2], {"a": plus_one, "b": plus_one})),
}


@pytest.mark.parametrize("name", BEYOND)
async def test_rounds_that_mean_more_are_not_summed_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)
    flow, options = BEYOND[name]
    for tried, summed in ((rounds_of(plus_one), True), (flow, False)):
        async with Harness(plugins=(), checkpoints=InMemoryBackend(), **(options if tried is flow else {})) as harness:
            result = await harness.run(tried, 0, run_id="r")
            assert result.status == "completed"
            journal = await harness.runs.journal("r")
        assert any(isinstance(record, Folded) for record in journal) is summed


@pytest.mark.parametrize("name", WITHIN)
async def test_rounds_that_mean_nothing_more_are_summed_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(WITHIN[name], 0, run_id="r")
        journal = await harness.runs.journal("r")
    assert max(record.rounds for record in journal if isinstance(record, Folded) and record.path[-1] == "loop") >= 8


def summed_up(journal: Sequence[JournalRecord]) -> list[tuple[int, str]]:
    """How many rounds each summary stands for, and the round in which it was written."""
    return [
        (record.rounds, next(each.path[1] for each in journal[place:] if len(each.path) > 1))
        for place, record in enumerate(journal)
        if isinstance(record, Folded)
    ]


async def journal_of(flow: AnyStep, backend: CheckpointBackend, **options: Any) -> Sequence[JournalRecord]:
    async with Harness(plugins=(), checkpoints=backend) as harness:
        await harness.run(flow, 0, run_id="r", **options)
        return await harness.runs.journal("r")


async def test_every_200_rounds_are_summed_up_once_the_condition_has_100_outputs_behind_them() -> None:
    journal = await journal_of(rounds_of(plus_one, 1_050), InMemoryBackend())
    assert summed_up(journal) == [
        (200, "plus_one[300]"),
        (400, "plus_one[500]"),
        (600, "plus_one[700]"),
        (800, "plus_one[900]"),
    ]


async def test_a_summary_says_what_its_rounds_have_used(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)
    model = ScriptedModel(*["yes"] * 24, usage=TokenUsage(3, 2), cost="0.5")
    ask = sequence(asked, call_model(), counted)
    flow = rounds_of(MAKE.parallel([ask, ask], merge=first) >> plus_one)
    async with Harness(plugins=(), checkpoints=InMemoryBackend(), model=model) as harness:
        await harness.run(flow, 0, run_id="r")
        journal = await harness.runs.journal("r")
    found = [record for record in journal if isinstance(record, Folded)]
    assert len(found) > 3
    for record in found:
        rounds = record.rounds
        assert (record.calls, record.usage, record.cost) == (
            2 * rounds,
            TokenUsage(6 * rounds, 4 * rounds),
            Decimal(rounds),
        )
        assert (record.steps, record.iterations) == (7 * rounds, rounds)


class Unpriced(ScriptedModel):
    """A model whose calls use tokens and have no known price."""

    def __init__(self, *replies: str) -> None:
        super().__init__(*replies, usage=TokenUsage(3, 2))

    @property
    def profile(self) -> ModelProfile:
        return ModelProfile()


async def test_a_run_that_has_waited_for_an_answer_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of it refers to others by their positions."""
    shorter(monkeypatch)
    backend = Reads(InMemoryBackend())

    @step
    async def asks(value: int, ctx: Context[Any, Any]) -> int:
        return value if await ctx.ask(Ask("go on?", bool)) else 0

    flow = rounds_of(plus_one) >> asks
    async with Harness(plugins=(), checkpoints=backend) as harness:
        (request,) = (await harness.run(flow, 0, run_id="r")).pending
    async with Harness(plugins=(), checkpoints=backend) as harness:
        journal = await harness.runs.journal("r")
        assert any(isinstance(record, Folded) for record in journal)
        backend.records = 0
        result = await harness.resume("r", flow, answers=[request.answer(True)])
    assert (result.value, result.steps) == (12, 13)
    assert backend.records >= len(journal)


async def test_a_summary_says_whether_a_call_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)
    ask = sequence(asked, call_model(), counted)
    flow = rounds_of(MAKE.parallel([ask, ask], merge=first) >> plus_one)
    for model, unpriced in ((Unpriced(*["yes"] * 24), True), (ScriptedModel(*["yes"] * 24), False)):
        async with Harness(plugins=(), checkpoints=InMemoryBackend(), model=model) as harness:
            await harness.run(flow, 0, run_id="r")
            journal = await harness.runs.journal("r")
        assert {record.unpriced for record in journal if isinstance(record, Folded)} == {unpriced}


async def test_a_resumed_run_sums_up_from_where_the_summary_that_it_has_read_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorter(monkeypatch)
    backend = InMemoryBackend()
    failed: list[int] = []

    @step
    async def marks(value: int, ctx: Context[Any, Any]) -> int:
        if value == 1:
            ctx.state["early"] = True
        return value + 1

    @step
    async def breaks(value: int) -> int:
        if value in {7, 11} and value not in failed:
            failed.append(value)
            raise ValueError("once")
        return value

    flow = rounds_of(marks >> breaks, 16)
    results: list[RunResult[Any, Any]] = []
    journal: Sequence[JournalRecord] = ()
    for _ in range(3):
        async with Harness(plugins=(), checkpoints=backend) as harness:
            if await backend.head("r") is None:
                results.append(await harness.run(flow, 0, run_id="r", state=StateBag({"late": 0}), on_error="result"))
            else:
                results.append(await harness.resume("r", flow, on_error="result"))
            journal = await harness.runs.journal("r")
    assert [result.status for result in results] == ["failed", "failed", "completed"]
    found = [record for record in journal if isinstance(record, Folded)]
    assert [record.rounds for record in found] == sorted({record.rounds for record in found})
    assert len({record.first for record in found}) == 1
    assert [[change.key for change in record.delta] for record in found] == [["early"]] * len(found)
    assert dict(results[-1].state.view()) == {"late": 0, "early": True}


async def test_the_order_of_the_fields_of_a_state_is_that_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)

    @step
    async def takes_away(value: int, ctx: Context[Any, Any]) -> int:
        del ctx.state["a"]
        return value

    @step
    async def puts_back(value: int, ctx: Context[Any, Any]) -> int:
        ctx.state["a"] = value
        return value + 1

    flow = rounds_of(takes_away >> puts_back >> fails_once_at_ten)
    FAILED.clear()
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(flow, 0, run_id="r", state=StateBag({"a": 0, "b": 0}), on_error="result")
        assert any(isinstance(record, Folded) for record in await harness.runs.journal("r"))
        result = await harness.resume("r", flow)
    assert list(result.state.view().items()) == [("b", 0), ("a", 11)]


async def test_a_failed_round_gives_no_output_to_wait_for() -> None:
    @step(id="plus_one")
    async def fails(value: int, ctx: Context[Any, Any]) -> int:
        if ctx.path[-1] in {"plus_one[200]", "plus_one[210]", "plus_one[220]"}:
            raise ValueError("in this round")
        return value + 1

    # The input of a round behind a failed one is not stored, so round 200 is summed up too. It waits for two more.
    journal = await journal_of(rounds_of(fails, 400, on_error=partial(_answer, "skip")), InMemoryBackend())
    assert summed_up(journal) == [(201, "plus_one[303]")]


async def test_a_summary_too_large_for_what_was_written_is_tried_again_after_twice_as_many_rounds() -> None:
    @step
    async def fill(value: int, ctx: Context[Any, Any]) -> int:
        if value == 0:
            ctx.state["text"] = "x" * 5_000
        return value + 1

    journal = await journal_of(rounds_of(fill, 1_900), InMemoryBackend(), state=StateBag())
    # 200 rounds write less than ten times what a summary takes, 400 write more.
    assert [rounds for rounds, _ in summed_up(journal)] == [600, 1_200]


async def test_a_loop_that_was_stopped_in_a_round_is_summed_up_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was asked to stop writes down what was cut off; it means nothing to the rounds that follow."""
    shorter(monkeypatch)
    backend = InMemoryBackend()
    waiting = anyio.Event()

    @step(id="plus_one")
    async def waits(value: int) -> int:
        if value == 6 and not waiting.is_set():
            waiting.set()
            await anyio.sleep_forever()
        return value + 1

    flow = rounds_of(MAKE.sequence(waits, plus_one, id="both"), 12)
    async with Harness(plugins=(), checkpoints=backend) as harness:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(harness.run, flow, 0, run_id="r"))
            await waiting.wait()
            group.cancel_scope.cancel()
        before = await harness.runs.journal("r")
    async with Harness(plugins=(), checkpoints=backend) as harness:
        await harness.resume("r", flow)
        journal = await harness.runs.journal("r")
    assert any(isinstance(record, StepStopped) for record in before)
    assert max(record.rounds for record in journal if isinstance(record, Folded)) >= 8


async def test_a_state_that_was_revised_is_not_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)
    backend = InMemoryBackend()
    flow = await stopped(backend, 7)
    async with Harness(plugins=(), checkpoints=backend) as harness:
        at = 1 + [record.path for record in await harness.runs.journal("r")].index(("loop", "add[4]"))
        for state, summed in ((None, True), (StateBag({"stops": 10**6, "count": 70}), False)):
            fork = await harness.fork("r", at=at, **({} if state is None else {"state": state}))
            result = await harness.resume(fork, flow, on_error="result")
            journal = await harness.runs.journal(fork)
            assert any(isinstance(record, StateRevised) for record in journal) is not summed
            assert any(isinstance(record, Folded) for record in journal[at:]) is summed
    assert (result.status, result.state["count"]) == ("completed", 11)


class Holed(DelegatingBackend):
    """A backend that has lost the beginning of a journal, for those that read it in parts."""

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        return () if (after, limit) == (0, self.lost) else await super().read(run_id, after=after, limit=limit)

    lost = 0


async def test_what_a_summary_leaves_to_read_has_to_be_there() -> None:
    backend = Holed(InMemoryBackend())
    flow = await stopped(backend, 1_000)
    async with Harness(plugins=(), checkpoints=backend) as harness:
        journal = await harness.runs.journal("r")
        backend.lost = next(record for record in journal if isinstance(record, Folded)).first
        assert backend.lost > 0
        result = await harness.resume("r", flow, on_error="result")
    assert result.steps == 1001


async def test_summaries_that_overlap_are_not_read() -> None:
    backend = Reads(InMemoryBackend())
    flow = await stopped(backend, 1_000)
    entry = await backend.entry("r")
    assert entry is not None
    fields: dict[str, Any] = json.loads(entry.summary)
    position: int = fields["folded"][0]
    journal = await read_journal(backend, "r", Codec())
    found = journal[position]
    assert isinstance(found, Folded)
    lease = await backend.acquire("r", ttl=9)
    other = evolve(found, first=found.first + 1, end=found.end + 1)
    await backend.append(
        "r", expected_position=entry.position, fence=lease.fence, records=[dump_record(other, Codec())],
        summary=json.dumps(fields | {"folded": [position, entry.position]}).encode(),
    )  # fmt: skip
    await backend.release(lease)
    backend.records = 0
    async with Harness(plugins=(), checkpoints=backend) as harness:
        result = await harness.resume("r", flow, on_error="result")
    assert backend.records > 2_000
    assert result.steps == 1001


@pytest.mark.parametrize("on_diverge", ["adopt", "pin"])
async def test_a_resume_that_goes_on_with_other_code_sums_nothing_up(
    on_diverge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter(monkeypatch)
    backend = InMemoryBackend()
    flow = await stopped(backend, 3)
    async with Harness(plugins=(), checkpoints=backend) as harness:
        before = len(await harness.runs.journal("r"))
        await harness.resume("r", flow, on_diverge=on_diverge, on_error="result")
        journal = await harness.runs.journal("r")
    assert len(journal) > before
    assert not any(isinstance(record, Folded) for record in journal[before:])


async def test_a_summary_of_an_attempt_that_was_discarded_stands_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch)
    attempts = 0

    @step
    async def opens(value: int) -> int:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            raise ValueError("before the loop")
        return value

    @step
    async def breaks(value: int) -> int:
        if attempts == 1:
            raise ValueError("behind the loop")
        return value

    flow: AnyStep = MAKE.sequence(opens, rounds_of(plus_one), breaks, id="flow")
    flow = flow.with_options(retry=Retry(attempts=2, initial=0.0))
    backend = Reads(InMemoryBackend())
    async with Harness(plugins=(), checkpoints=backend) as harness:
        assert (await harness.run(flow, 0, run_id="r", on_error="result")).status == "failed"
        journal = await harness.runs.journal("r")
        assert any(isinstance(record, Folded) for record in journal)
        backend.records = 0
        result = await harness.resume("r", flow)
    assert (result.value, attempts) == (12, 3)
    # It is read without the rounds all the same.
    assert backend.records < len(journal)
