"""What the journal of a kept run has of `ctx.progress`, and who finds it there: after crashes, stops, forks."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import anyio
import pytest
from attrs import define, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from noetic_py import (
    Ask,
    Context,
    Harness,
    InMemoryBackend,
    JsonValue,
    Retry,
    errors,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core.events import StepCommitted
from noetic_py.journal.records import Progressed, RunEnded
from noetic_py.testing import FaultyBackend, assert_resumable_everywhere
from tests.progressing import AnyStep, Path, Plain, by_name, noting, plain, rounds

pytestmark = pytest.mark.anyio


def kept(backend: CheckpointBackend) -> Harness[Any]:
    return Harness(plugins=(), checkpoints=backend)


async def begin(backend: FaultyBackend, flow: AnyStep, value: Any = 1) -> Any:
    """The first process of run "r"; `None` when it has died."""
    found: list[Any] = []
    with backend.outlived():
        async with kept(backend) as made:
            found.append(await made.run(flow, value, run_id="r", on_error="result"))
    return found[0] if found else None


async def go_on(backend: FaultyBackend, flow: AnyStep, **options: Any) -> Any:
    """The next one."""
    backend.revive()
    async with kept(backend) as made:
        resume: Any = made.resume
        return await resume("r", flow, on_error="result", **options)


async def left(backend: CheckpointBackend, run_id: str = "r") -> Plain:
    return plain(await kept(backend).runs.progress(run_id))


@step
async def pages(number: int, ctx: Context) -> int:
    for page in range(ctx.progress.get_as(int) or 0, number):
        ctx.progress.set(page + 1)
        await ctx.checkpoint()
    ctx.progress.finish()
    return number


async def test_a_body_that_died_finds_what_it_had_committed_and_nothing_later() -> None:
    began: list[JsonValue] = []
    copied: list[int] = []

    @step
    async def copy(number: int, ctx: Context) -> int:
        began.append(ctx.progress.value)
        for page in range(ctx.progress.get_as(int) or 0, number):
            copied.append(page)
            ctx.progress.set(page + 1)
            await ctx.checkpoint()
        return number

    for when, found in (("before", 1), ("after", 2)):
        began.clear()
        copied.clear()
        point: Literal["before", "after"] = "before" if when == "before" else "after"
        # The head of the run, the first page, and then the second one.
        backend = FaultyBackend(InMemoryBackend(), dies_at=3, when=point)
        assert await begin(backend, copy, 4) is None
        backend.revive()
        assert await left(backend) == {("copy",): (found, False)}
        assert (await go_on(backend, copy)).value == 4
        assert began == [None, found]
        assert copied == [0, 1, *range(found, 4)]
        assert await left(backend) == {("copy",): (4, False)}


async def test_the_round_that_was_in_flight_keeps_what_it_left_when_those_before_it_replay() -> None:
    began: list[tuple[str, JsonValue]] = []

    @step
    async def work(value: int, ctx: Context) -> int:
        began.append((ctx.path[-1], ctx.progress.value))
        ctx.progress.set(ctx.path[-1])
        await ctx.checkpoint()
        return value

    # The head, then two commits of each round: the third round has left something, and has not finished.
    backend = FaultyBackend(InMemoryBackend(), dies_at=7)
    assert await begin(backend, rounds(work, 4)) is None
    backend.revive()
    assert await left(backend) == {("rounds", "work[2]"): ("work[2]", False)}
    began.clear()
    assert (await go_on(backend, rounds(work, 4))).value == 1
    assert began == [("work[2]", "work[2]"), ("work[3]", None)]


async def test_of_several_values_between_two_commits_only_the_last_is_written() -> None:
    @step
    async def child(value: int, ctx: Context) -> int:
        ctx.progress.set("child")
        return value

    @step
    async def body(value: int, ctx: Context) -> int:
        for number in range(1000):
            ctx.progress.set(number)
        await child(value, ctx)
        ctx.progress.set("end")
        ctx.progress.at(("a",)).set(1)
        ctx.progress.at(("a",)).clear()
        return value

    backend = InMemoryBackend()
    async with kept(backend) as made:
        await made.run(body, 1, run_id="r")
        records = [each for each in await made.runs.journal("r") if isinstance(each, Progressed)]
    assert [(each.path[-1], each.what, each.value) for each in records] == [
        ("body", "set", 999),
        ("child", "set", "child"),
        ("body", "set", "end"),
        ("a", "cleared", None),
    ]


async def test_a_commit_writes_what_was_left_since_and_not_all_there_is() -> None:
    """What a step costs does not grow with what others have left."""
    sizes: list[int] = []

    @step
    async def one(value: int, ctx: Context) -> int:
        ctx.progress.set({"page": 7})
        return value + 1

    async def size_of(rounds_of: int) -> int:
        @step
        async def body(value: int, ctx: Context) -> None:
            for _ in range(rounds_of):
                await one(value, ctx)

        backend = InMemoryBackend()
        async with kept(backend) as made:
            await made.run(body, 1, run_id="r")
        return (await backend.stats()).bytes

    sizes = [await size_of(number) for number in (10, 110, 210)]
    assert abs((sizes[2] - sizes[1]) - (sizes[1] - sizes[0])) < 300


async def test_what_one_has_seen_of_another_is_committed_no_later_than_what_it_did_then() -> None:
    """Whoever commits next commits what all have left until then, for others may have acted on it."""
    seen = anyio.Event()

    @step
    async def writes(value: int, ctx: Context) -> int:
        if ctx.progress.value is None:
            ctx.progress.set("half")
            seen.set()
            await anyio.sleep_forever()
        return value

    @step
    async def reads(value: int, ctx: Context) -> JsonValue:
        await seen.wait()
        return ctx.progress.at(("both", "writes[0]")).value

    flow = parallel([writes, reads], id="both")
    # The head, and then the one that has read.
    backend = FaultyBackend(InMemoryBackend(), dies_at=2, when="after")
    assert await begin(backend, flow) is None
    assert list((await go_on(backend, flow)).value) == [1, "half"]


async def test_a_value_is_stored_as_it_was_when_it_was_set() -> None:
    @step
    async def body(_: int, ctx: Context) -> JsonValue:
        value: dict[str, JsonValue] = {"page": 1}
        ctx.progress.set(value)
        value["page"] = 2
        return ctx.progress.value

    backend = InMemoryBackend()
    async with kept(backend) as made:
        assert (await made.run(body, 1, run_id="r")).value == {"page": 1}
    assert await left(backend) == {("body",): ({"page": 1}, False)}


@pytest.mark.parametrize("how", ["interrupt", "abort"])
async def test_a_stopped_run_keeps_what_its_bodies_left_last(how: str) -> None:
    began: list[JsonValue] = []

    @step
    async def body(value: int, ctx: Context) -> int:
        began.append(ctx.progress.value)
        if ctx.progress.value is None:
            ctx.progress.set("half")
            under_way.set()
            await anyio.sleep_forever()
        return value

    under_way = anyio.Event()
    backend = InMemoryBackend()
    async with kept(backend) as made:
        handle = made.start(body, 1, run_id="r", on_error="result")
        await under_way.wait()
        handle.interrupt() if how == "interrupt" else handle.abort("no more")
        await handle.result()
        assert plain(await made.runs.progress("r")) == {("body",): ("half", False)}
        # How it ended is the last that the journal says.
        assert isinstance((await made.runs.journal("r"))[-1], RunEnded)
        if how == "interrupt":
            assert (await made.resume("r", body)).value == 1
            assert began == [None, "half"]


async def test_a_run_that_waits_for_an_answer_keeps_what_its_bodies_left() -> None:
    began: list[JsonValue] = []

    @step
    async def body(value: int, ctx: Context) -> int:
        began.append(ctx.progress.value)
        ctx.progress.set("asked")
        return value + await ctx.ask(Ask("How many?", int))

    backend = FaultyBackend(InMemoryBackend())
    result = await begin(backend, body)
    assert result.status == "suspended"
    assert await left(backend) == {("body",): ("asked", False)}
    assert (await go_on(backend, body, answers=[result.pending[0].answer(2)])).value == 3
    assert began == [None, "asked"]


async def test_a_run_that_has_failed_goes_on_with_what_the_failed_step_left() -> None:
    began: list[JsonValue] = []

    @step
    async def body(value: int, ctx: Context) -> int:
        began.append(ctx.progress.value)
        ctx.progress.set("half")
        if len(began) == 1:
            raise ValueError
        return value

    backend = FaultyBackend(InMemoryBackend())
    assert (await begin(backend, body)).status == "failed"
    assert (await go_on(backend, body)).value == 1
    assert began == [None, "half"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_between_two_attempts_does_not_bring_back_what_is_void(when: Literal["before", "after"]) -> None:
    began: list[Any] = []

    @step
    async def child(value: int, ctx: Context) -> int:
        ctx.progress.set("child")
        return value

    @step(retry=Retry(3, initial=0))
    async def body(value: int, ctx: Context) -> int:
        began.append(by_name(ctx.progress.entries))
        await child(value, ctx)
        ctx.progress.set("body")
        if len(began) < 2:
            raise ValueError
        return value

    # The head, the child, and then the failure of the first attempt.
    backend = FaultyBackend(InMemoryBackend(), dies_at=3, when=when)
    assert await begin(backend, body) is None
    result = await go_on(backend, body)
    assert result.value == 1
    # The child was committed, and is there for the attempt that goes on; with the failure it is void.
    assert began == [{}, {"child": "child"} if when == "before" else {}]
    assert await left(backend) == {("body", "child"): ("child", False), ("body",): ("body", False)}


async def test_a_crash_before_the_end_of_a_race_does_not_bring_back_its_losers() -> None:
    @step
    async def quick(value: int, ctx: Context) -> int:
        await under_way.wait()
        ctx.progress.set("quick")
        return value

    @step
    async def slow(value: int, ctx: Context) -> int:
        ctx.progress.set("slow")
        under_way.set()
        await anyio.sleep_forever()
        return value

    under_way = anyio.Event()
    flow: AnyStep = sequence(race([quick, slow], id="either"), noting([]), id="flow")
    whole = FaultyBackend(InMemoryBackend())
    await begin(whole, flow)
    expected: Plain = {("flow", "either", "quick[0]"): ("quick", False)}
    assert await left(whole) == expected
    for at in range(2, whole.appends + 1):
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when="after")
        assert await begin(backend, flow) is None
        assert (await go_on(backend, flow)).value == 1
        assert await left(backend) == expected


async def test_a_step_that_is_run_anew_because_it_differs_finds_nothing() -> None:
    seen: list[Any] = []

    def made(version: str) -> AnyStep:
        @step(id="work", version=version)
        async def work(value: int, ctx: Context) -> int:
            seen.append(by_name(ctx.progress.entries))
            if version == "1":
                ctx.progress.at((*ctx.path, "below")).set("below")
            ctx.progress.set(version)
            return value

        @step(id="last")
        async def last(value: int, ctx: Context) -> int:
            seen.append(by_name(ctx.progress.entries))
            if version == "1":
                raise ValueError
            return value

        return sequence(work, last, id="flow")

    backend = FaultyBackend(InMemoryBackend())
    await begin(backend, made("1"))
    assert (await go_on(backend, made("2"), on_diverge="adopt")).value == 1
    assert seen == [{}, {"below": "below", "work": "1"}, {}, {"work": "2"}]
    assert await left(backend) == {("flow", "work"): ("2", False)}


async def test_a_fork_has_what_there_was_at_its_position() -> None:
    """At each position at which a fork is possible, what the journal says until there."""
    flow: AnyStep = sequence(pages, rounds(pages, 2), id="flow")
    backend = InMemoryBackend()
    async with kept(backend) as made:
        await made.run(flow, 3, run_id="r")
        journal = await made.runs.journal("r")
        known: Plain = {}
        forks = 0
        for position, record in enumerate(journal, 1):
            if isinstance(record, Progressed):
                known.pop(record.path, None)
                if record.what != "cleared":
                    known[record.path] = (record.value, record.what == "done")
            try:
                fork = await made.fork("r", at=position)
            except errors.PositionConflict:
                continue
            forks += 1
            assert await left(backend, fork) == known
            assert (await made.resume(fork, flow)).value == 3
            assert await left(backend, fork) == await left(backend)
        assert forks >= 10


async def test_where_a_step_was_committed_a_fork_is_possible() -> None:
    """What is left goes into the journal before the record that says where the step was committed."""
    backend = InMemoryBackend()
    async with kept(backend) as made:
        async with made.stream(pages >> noting([]), 2, run_id="r") as stream:
            told = [event.position async for event in stream.events if isinstance(event, StepCommitted)]
        assert len(told) == 3
        for position in told:
            await made.fork("r", at=position)


@pytest.mark.parametrize("mode", ["exit", "manual"])
async def test_a_run_that_commits_seldom_commits_what_was_left_with_the_rest(mode: Any) -> None:
    seen: list[Plain] = []

    @step
    async def body(value: int, ctx: Context) -> int:
        ctx.progress.set("one")
        await pages(value, ctx)
        seen.append(plain(await made.runs.progress("r")))
        await ctx.checkpoint()
        seen.append(plain(await made.runs.progress("r")))
        ctx.progress.set("two")
        return value

    backend = InMemoryBackend()
    async with kept(backend) as made:
        await made.run(noting([]) >> body, 0, run_id="r", durability=mode)
    flow = "notes_body" if ("notes_body", "body") in await left(backend) else next(iter(await left(backend)))[0]
    assert seen == [{}, {(flow, "body", "pages"): (None, True), (flow, "body"): ("one", False)}]
    assert (await left(backend))[(flow, "body")] == ("two", False)


async def test_whoever_may_not_read_a_run_does_not_see_it() -> None:
    async with kept(InMemoryBackend()) as made:
        with pytest.raises(errors.RunNotFound):
            await made.runs.progress("nobody")


async def test_it_is_killed_before_and_after_each_commit_and_comes_out_the_same() -> None:
    @step
    async def counts(value: int, ctx: Context) -> int:
        around = ctx.progress.at(ctx.path[:-1])
        around.set((around.get_as(int) or 0) + value)
        ctx.progress.set({"seen": len([path for path in ctx.progress.entries if path[-1] == "pages"])})
        return value

    @step
    async def tidy(value: int, ctx: Context) -> int:
        assert ctx.progress.at(("flow", "pages")).done
        ctx.progress.at(("flow", "child")).reset_children()
        return value

    def flow() -> AnyStep:
        inner: Any = loop(pages, until=until.max_rounds(2), id="inner")
        return sequence(
            pages,
            rounds(sequence(inner, counts, pages, id="round"), 2),
            spawn(sequence(pages, counts, id="inside"), id="child"),
            tidy,
            id="flow",
        )

    async def progress(backend: CheckpointBackend) -> object:
        return sorted(["/".join(path), *entry] for path, entry in (await left(backend, "resumable")).items())

    assert await assert_resumable_everywhere(flow, 2, also=progress) > 40


# ------------------------------------------------------------------------------------------------- against an oracle


@frozen
class Act:
    """One thing that a body does."""

    what: Literal["set", "finish", "clear", "reset", "commit"]
    path: Path = ()
    value: JsonValue = None


@define
class Oracle:
    """The map as a dict, what of it is committed, and the commits of the body so far."""

    now: Plain
    committed: Plain

    def do(self, act: Act) -> None:
        match act.what:
            case "set":
                self.now[act.path] = (act.value, False)
            case "finish":
                self.now[act.path] = (None, True)
            case "clear":
                self.now.pop(act.path, None)
            case _:
                below = [path for path in self.now if path[: len(act.path)] == act.path and path != act.path]
                for path in below:
                    del self.now[path]


frames = st.sampled_from(["body", "a", "b"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["$", "k", ""]), inner, max_size=2),
    max_leaves=4,
)
whats = st.sampled_from(["set", "set", "finish", "clear", "reset", "commit"])
acts = st.lists(st.builds(Act, whats, st.lists(frames, max_size=3).map(tuple), json_values), max_size=25)


def performing(given: list[Act], oracle: Oracle) -> AnyStep:
    """A body that does all that, and looks after each whether the map is as the oracle's."""

    @step
    async def body(_: int, ctx: Context) -> None:
        for act in given:
            if act.what == "commit":
                await ctx.checkpoint()
                oracle.committed = dict(oracle.now)
                continue
            oracle.do(act)
            progress = ctx.progress.at(act.path)
            calls = {"finish": progress.finish, "clear": progress.clear, "reset": progress.reset_children}
            calls.get(act.what, partial(progress.set, act.value))()
            assert plain(ctx.progress.entries) == oracle.now
            assert (progress.value, progress.done) == oracle.now.get(act.path, (None, False))

    return body


@settings(max_examples=100)
@given(given=acts, dies_at=st.integers(2, 10), when=st.sampled_from(["before", "after"]))
async def test_a_map_is_what_a_plain_dict_would_be_live_and_after_a_death(
    given: list[Act], dies_at: int, when: Literal["before", "after"]
) -> None:
    """Who dies before a commit leaves what was committed before, who dies after it all that there was then."""
    backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when=when)
    oracle = Oracle({}, {})
    flow = performing(given, oracle)
    result = await begin(backend, flow)
    backend.revive()
    if result is None and when == "before" and not await over(backend):
        assert await left(backend) == oracle.committed
    else:
        assert await left(backend) == oracle.now
    if result is None:
        again = Oracle(dict(oracle.now), {})
        again.now = await left(backend)
        await go_on(backend, performing(given, again))
        assert await left(backend) == again.now


async def over(backend: CheckpointBackend) -> bool:
    """Whether the body has finished, and only the end of the run is missing."""
    return any(type(record).__name__ == "StepFinished" for record in await kept(backend).runs.journal("r"))
