"""State types that have changed since a run began, and forks that go on with another state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from attrs import define, field
from pydantic import BaseModel

from noetic_py import (
    Ask,
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    RunResult,
    StateBag,
    errors,
    every,
    loop,
    parallel,
    race,
    sequence,
    spawn,
    step,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.journal.records import StateRevised
from noetic_py.memory import function
from noetic_py.testing import FaultyBackend

pytestmark = pytest.mark.anyio


@define
class Notes:
    """As it was when the runs began."""

    themes: list[str] = field(factory=list[str])
    count: int = 0


First = Notes


@define
class Second:
    """As it is now: one field has another name, another one is text."""

    schema_version: ClassVar[int] = 2
    topics: list[str] = field(factory=list[str])
    count: str = "0"
    extra: int = 7

    @classmethod
    def migrate(cls, stored: dict[str, Any], version: int) -> dict[str, Any]:
        """From version 1."""
        assert version == 1
        return {"topics": stored.pop("themes"), "count": str(stored["count"])}


@define
class Third:
    """Two versions further."""

    schema_version: ClassVar[int] = 3
    topics: list[str] = field(factory=list[str])
    count: int = 0

    @classmethod
    def migrate(cls, stored: dict[str, Any], version: int) -> dict[str, Any]:
        """From versions 1 and 2."""
        if version == 1:
            stored = Second.migrate(stored, 1)
        stored.pop("extra", None)
        return {**stored, "count": int(stored["count"])}


Ctx = Context[Memory, Any]


def note(ctx: Ctx, text: str) -> None:
    """What every step does, whatever the state is."""
    state = ctx.state
    texts(ctx).append(text)
    state.count = str(int(state.count) + 1) if isinstance(state.count, str) else state.count + 1


def noting(name: str) -> Any:
    @step(id=name, version="1")
    async def take(value: int, ctx: Ctx) -> int:
        note(ctx, name)
        return value + 1

    return take


def harness(backend: CheckpointBackend) -> Any:
    return Harness(plugins=[], checkpoints=backend)


async def die_at(flow: Any, at: int, state: Any) -> FaultyBackend:
    """A run that has died at an append."""
    backend = FaultyBackend(InMemoryBackend(), dies_at=at)
    with backend.outlived():
        async with harness(backend) as it:
            await it.run(flow, 0, state=state, run_id="r")
    backend.revive()
    return backend


def around() -> Any:
    """What has a state of its own or shares that of its parent, what failed, and what came after that."""

    @step(id="fails", version="1")
    async def fails(value: int, ctx: Ctx) -> int:
        await child(value, ctx)
        note(ctx, "lost")
        raise ValueError(value)

    @step(id="careful", version="1")
    async def careful(value: int, ctx: Ctx) -> int:
        note(ctx, "before")
        with suppress(errors.StepFailed):
            await fails(value, ctx)
        note(ctx, "behind")
        return value

    @step(id="tick", version="1")
    async def tick(value: None, ctx: Ctx) -> None:
        note(ctx, "tick")
        if len([text for text in texts(ctx) if text == "tick"]) == 2:
            ctx.stop_loop()

    @step(id="sum", version="1")
    async def sum_up(value: object, ctx: Ctx) -> int:
        note(ctx, "sum")
        return 7

    @step(id="bag", version="1")
    async def bag(value: int, ctx: Ctx) -> int:
        ctx.state["themes"] = [*ctx.state.get("themes", ()), value]
        return len(ctx.state["themes"])

    child: Any = noting("child")
    short: Any = sequence(noting("one"), noting("two"), id="short")
    return sequence(
        spawn(noting("shared"), state="share", id="share"),
        spawn(sequence(noting("one"), noting("two"), id="row"), state="deepcopy", id="copy"),
        spawn(sequence(bag, bag, id="row"), state="new", id="new"),
        careful,
        race([noting("racer")], id="race"),
        short.with_options(budget=Budget(steps=1, wrap_up=sum_up, reserve=Budget(steps=1))),
        every(0.001, tick),
        sum_up.with_options(id="last"),
        id="flow",
    )


def texts(ctx: Ctx) -> list[str]:
    found: list[str] = ctx.state.themes if hasattr(ctx.state, "themes") else ctx.state.topics
    return found


def nested() -> Any:
    """Bodies with children, paths, a spawn, a loop."""

    @step(id="body", version="1")
    async def body(value: int, ctx: Ctx) -> int:
        note(ctx, "before")
        value = await a(value, ctx)
        note(ctx, "between")
        value = await b(value, ctx)
        note(ctx, "after")
        return value

    @step(id="done", version="1")
    async def done(value: list[int], ctx: Ctx) -> int:
        note(ctx, "done")
        return sum(value)

    last: Any = done
    a, b = noting("a"), noting("b")
    return sequence(
        noting("first"),
        body,
        loop(noting("round"), until=until.max_rounds(2)),
        spawn(noting("apart")),
        parallel([noting("left"), sequence(noting("right"), noting("more"), id="way")]),
        last,
        id="flow",
    )


async def whole(flow: Any, state: Any) -> tuple[Any, Any, int]:
    backend = FaultyBackend(InMemoryBackend())
    async with harness(backend) as it:
        result = await it.run(flow, 0, state=state, run_id="r")
    return result.output_or(None), result.state, backend.appends


@pytest.mark.parametrize("flow", [nested, around])
async def test_a_run_goes_on_with_a_newer_state_wherever_it_died(flow: Callable[[], Any]) -> None:
    output, state, appends = await whole(flow(), Second())
    for at in range(2, appends + 1):
        backend = await die_at(flow(), at, First())
        async with harness(backend) as it:
            result = await it.resume("r", flow(), state_type=Second)
            again = await it.resume("r", flow(), state_type=Second)
        assert (result.output_or(None), result.state) == (output, state)
        assert (again.output_or(None), again.state) == (output, state)


async def test_a_newer_state_can_become_a_still_newer_one() -> None:
    output, state, appends = await whole(nested(), Third())
    for at in range(2, appends - 4):
        backend = await die_at(nested(), at, First())
        for then in (2, 3):
            backend.revive(dies_at=then)
            with backend.outlived():
                async with harness(backend) as it:
                    await it.resume("r", nested(), state_type=Second)
            assert backend.dead
        backend.revive()
        async with harness(backend) as it:
            result = await it.resume("r", nested(), state_type=Third)
        assert (result.output_or(None), result.state) == (output, state)


async def test_a_run_that_is_over_gives_its_state_in_the_new_form_and_is_not_written() -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        await it.run(nested(), 0, state=First(), run_id="r")
        before = await backend.head("r")
        result = await it.resume("r", nested(), state_type=Second)
        after = await backend.head("r")
    assert result.state.topics[0] == "first"
    assert before is not None
    assert after is not None
    assert before.position == after.position


async def test_an_older_type_is_refused() -> None:
    backend = await die_at(nested(), 4, Second())
    async with harness(backend) as it:
        with pytest.raises(errors.CodecError, match="stored by version 2 of Notes, and this one is 1"):
            await it.resume("r", nested(), state_type=First)
        # The run is free, and goes on with its own.
        assert (await it.resume("r", nested(), state_type=Second)).status == "completed"


async def test_a_changed_type_without_a_version_says_what_to_do() -> None:
    @define
    class Changed:
        topics: list[str]

    backend = await die_at(nested(), 4, First())
    async with harness(backend) as it:
        with pytest.raises(errors.CodecError, match="give it a schema_version and migrate"):
            await it.resume("r", nested(), state_type=Changed)


def broken(stored: dict[str, Any], version: int) -> Any:
    raise KeyError("themes")


def none_at_all(stored: dict[str, Any], version: int) -> Any:
    return None


def unstorable(stored: dict[str, Any], version: int) -> Any:
    return {"themes": object()}


@pytest.mark.parametrize(
    ("migrate", "said"),
    [(broken, "KeyError: 'themes'"), (none_at_all, "returned NoneType"), (unstorable, "migrate\\(\\) failed")],
)
async def test_a_migration_that_fails_is_named_and_nothing_is_lost(migrate: Callable[..., Any], said: str) -> None:
    kind = define(type("Bad", (), {"schema_version": 2, "migrate": staticmethod(migrate), "__annotations__": {}}))
    backend = await die_at(nested(), 4, First())
    async with harness(backend) as it:
        with pytest.raises(errors.CodecError, match=said):
            await it.resume("r", nested(), state_type=kind)
        assert (await it.resume("r", nested(), state_type=First)).status == "completed"


async def test_a_version_without_a_migration_is_refused_where_it_is_declared() -> None:
    @define
    class Careless:
        schema_version: ClassVar[int] = 2

    async with harness(InMemoryBackend()) as it:
        with pytest.raises(errors.ConfigError, match=r"schema_version 2 and no migrate\(\)"):
            await it.run(noting("a"), 0, state=Careless())


async def test_a_field_that_is_called_like_a_version_is_a_field() -> None:
    @define
    class Odd:
        schema_version: str = "x"
        count: int = 0
        topics: list[str] = field(factory=list[str])

    backend = InMemoryBackend()
    async with harness(backend) as it:
        await it.run(noting("a"), 0, state=Odd(), run_id="r")
        assert (await it.resume("r", noting("a"), state_type=Odd)).state.count == 1


class Model(BaseModel):
    """A state that is a pydantic model."""

    themes: list[str] = []
    count: int = 0


class NewModel(BaseModel):
    """The same, later."""

    schema_version: ClassVar[int] = 2
    topics: list[str] = []
    count: int = 0

    @classmethod
    def migrate(cls, stored: dict[str, Any], version: int) -> dict[str, Any]:
        """From version 1."""
        stored["topics"] = stored.pop("themes")
        return stored


async def test_a_pydantic_state_migrates_too() -> None:
    backend = await die_at(nested(), 6, Model())
    async with harness(backend) as it:
        result = await it.resume("r", nested(), state_type=NewModel)
    assert result.state.topics[:2] == ["first", "before"]


# -- forks with another state


async def fork_everywhere(state: Callable[[], Any], other: Callable[[], Any], flow: Callable[[], Any]) -> list[Any]:
    """What comes of a run when its state is replaced at each of its positions."""
    backend = InMemoryBackend()
    found: list[Any] = []
    kind: Any = state().__class__
    options: dict[str, Any] = {} if kind is StateBag else {"state_type": kind}
    async with harness(backend) as it:
        await it.run(flow(), 0, state=state(), run_id="r")
        head = await backend.head("r")
        assert head is not None
        for at in range(1, head.position + 1):
            try:
                new = await it.fork("r", at=at, state=other())
            except errors.PositionConflict:
                continue
            try:
                found.append((await it.resume(new, flow(), **options)).state)
            except (errors.ReplayDiverged, errors.ParallelFailed) as error:
                found.append(REFUSED if REFUSED in str(error) else repr(error))
    return found


def plain() -> Any:
    return sequence(noting("a"), noting("b"), noting("c"), id="flow")


async def test_a_fork_goes_on_with_the_state_that_it_is_given() -> None:
    found = await fork_everywhere(First, lambda: First(["x"], 100), plain)
    assert found == [
        First(["x", "a", "b", "c"], 103),
        First(["x", "b", "c"], 102),
        First(["x", "c"], 101),
        *[First(["x"], 100)] * 3,
    ]


async def test_a_bag_is_replaced_whole() -> None:
    @step(version="1")
    async def put(value: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.state[f"k{value}"] = value
        return value + 1

    found = await fork_everywhere(StateBag, lambda: StateBag({"other": True}), lambda: sequence(put, put, id="two"))
    assert found[0] == StateBag({"other": True, "k0": 0, "k1": 1})
    assert found[1] == StateBag({"other": True, "k1": 1})
    assert found[-1] == StateBag({"other": True})


async def test_a_body_in_flight_meets_the_new_state_behind_its_last_child() -> None:
    calls = noting("child")

    @step(id="body", version="1")
    async def body(value: int, ctx: Ctx) -> int:
        note(ctx, "before")
        value = await calls(value, ctx)
        note(ctx, "behind")
        return value

    found = await fork_everywhere(First, lambda: First(["x"], 100), lambda: sequence(body, noting("last"), id="flow"))
    assert found == [
        First(["x", "before", "child", "behind", "last"], 104),
        First(["x", "behind", "last"], 102),
        First(["x", "last"], 101),
        *[First(["x"], 100)] * 3,
    ]


@step(id="saves", version="1")
async def saves(value: int, ctx: Ctx) -> int:
    note(ctx, "before")
    await ctx.checkpoint()
    note(ctx, "behind")
    return value


@step(id="twice", version="1")
async def twice(value: None, ctx: Ctx) -> None:
    note(ctx, "twice")
    if texts(ctx)[-2:] == ["twice", "twice"]:
        ctx.stop_loop()


REFUSED = "meets another state"
FORKED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a body that has been stored on its way": (
        lambda: saves,
        ["x first before behind", "x before behind", "x before behind", *["x"] * 3],
    ),
    "paths": (lambda: parallel([noting("path")], id="all"), ["x first", "x", REFUSED, *["x"] * 3]),
    "times of a schedule": (
        lambda: every(0.001, twice, id="every"),
        ["x first twice twice", "x twice twice", REFUSED, REFUSED, *["x"] * 3],
    ),
    "a spawn": (
        lambda: spawn(noting("child"), state="deepcopy", id="child"),
        ["x first", "x", REFUSED, *["x"] * 3],
    ),
}


@pytest.mark.parametrize("name", FORKED)
async def test_what_has_begun_with_the_old_state_is_not_mixed_with_the_new_one(name: str) -> None:
    """A body begins again with the new state; what had a copy of the old one says that it meets another state."""
    make, expected = FORKED[name]

    def flow() -> Any:
        return sequence(noting("first"), make(), id="flow")

    found = await fork_everywhere(First, lambda: First(["x"], 100), flow)
    assert [each if isinstance(each, str) else " ".join(each.themes) for each in found] == expected


async def test_a_fork_may_be_given_a_newer_state() -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        await it.run(plain(), 0, state=First(), run_id="r")
        positions: list[str] = []
        for at in range(1, 6):
            try:
                positions.append(await it.fork("r", at=at, state=Second(["new"], "50")))
            except errors.PositionConflict:
                continue
        results = [await it.resume(new, plain(), state_type=Second) for new in positions]
    assert [each.state.topics for each in results][:3] == [["new", "a", "b", "c"], ["new", "b", "c"], ["new", "c"]]


async def test_a_state_of_another_type_is_refused_and_nothing_is_made() -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        await it.run(plain(), 0, state=First(), run_id="r")
        with pytest.raises(errors.ConfigError, match="the run's state is a Notes, and the new one a dict"):
            await it.fork("r", state=StateBag())
        with pytest.raises(errors.CodecError, match=r"state\.count"):
            await it.fork("r", state=First([], lambda: 1))  # type: ignore[arg-type]  # what nobody should give
        assert len(await backend.list()) == 1


async def test_the_journal_says_that_the_state_was_revised() -> None:
    backend = await die_at(nested(), 4, First())
    async with harness(backend) as it:
        await it.resume("r", nested(), state_type=Second)
        records = await it.runs.journal("r")
    assert [record.version for record in records if isinstance(record, StateRevised)] == [2]


for _kind in (Second, Third):
    # The same class, at other times.
    _kind.__name__ = _kind.__qualname__ = "Notes"
NewModel.__name__ = "Model"


# ------------------------------------------------------------------------------------------------------------- layers


class Facts(MemoryLayer[list[str]]):
    """As it was when the runs began."""

    @function
    async def add(self, text: str) -> None:
        self.state = [*self.state, text]

    @function
    async def forget(self) -> None:
        self.state = None  # type: ignore[assignment] # which forgets it


@define
class Kept:
    """The state of the second version."""

    facts: dict[str, int] = field(factory=dict[str, int])


class NewFacts(MemoryLayer[Kept]):
    """As it is now."""

    schema_version = 2

    @function
    async def add(self, text: str) -> None:
        self.state = Kept({**self.state.facts, text: 2})

    @function
    async def forget(self) -> None:
        self.state = None  # type: ignore[assignment] # which forgets it

    def migrate(self, state: Any, version: object) -> object:
        assert version == 1
        return Kept(dict.fromkeys(state, 1))


class Broken(NewFacts):
    """Its migration fails."""

    def migrate(self, state: Any, version: object) -> object:
        raise KeyError("facts")


class AnyFacts(Memory):
    facts: MemoryLayer[Any]
    by: MemoryLayer[list[str]] = Facts()


def remembers(layer: MemoryLayer[Any], backend: CheckpointBackend) -> Any:
    return Harness(plugins=(), checkpoints=backend, memory=AnyFacts(facts=layer))


@step(version="1")
async def learn(text: str, ctx: Context[Any, Any]) -> str:
    await ctx.memory["facts"].add(text)
    await ctx.memory["by"].add(text)
    return text


@step(version="1")
async def wait(text: str, ctx: Context[Any, Any]) -> str:
    await ctx.ask(Ask("Go on?", bool))
    return text


@step(version="1")
async def known(text: str, ctx: Context[Any, Any]) -> Any:
    return ctx.memory["facts"].state


async def answered(it: Any, flow: Any, run_id: str = "r") -> RunResult[Any, Any]:
    info = await it.runs.get(run_id)
    resume: Any = it.resume
    result: RunResult[Any, Any] = await resume(
        run_id, flow, answers=[each.answer(True) for each in info.pending], on_error="result"
    )
    return result


async def test_a_layer_that_has_become_another_goes_on_in_the_run() -> None:
    backend = InMemoryBackend()
    flow = learn >> wait >> learn.with_options(id="more") >> wait.with_options(id="again") >> known
    async with remembers(Facts(), backend) as it:
        assert (await it.run(flow, "x", run_id="r")).status == "suspended"
    async with remembers(Broken(), backend) as it:
        with pytest.raises(errors.CodecError, match=r"migrate\(\) failed on a state of version 1: KeyError") as caught:
            await it.resume("r", flow)
        assert "plain data" in str(caught.value.hint)
        assert (await it.runs.get("r")).status == "suspended", "nothing was done to it"
    async with remembers(NewFacts(), backend) as it:
        result = await answered(it, flow)
        assert (result.status, result.memory) == ("suspended", {"facts": Kept({"x": 2}), "by": ["x", "x"]})
    async with remembers(Facts(), backend) as it:
        with pytest.raises(errors.ConfigError, match="version 2, and its own is 1") as refused:
            await it.resume("r", flow)
        assert (refused.value.code, (await it.runs.get("r")).status) == ("layer-version", "suspended")
    async with remembers(NewFacts(), backend) as it:
        assert (await answered(it, flow)).value == Kept({"x": 2})
        # And of a run that is over too.
        assert (await it.resume("r", flow)).memory["facts"] == Kept({"x": 2})
        journal = await it.runs.journal("r")
    assert [list(each.layers) for each in journal if isinstance(each, StateRevised)] == [["facts"]]


async def test_a_finished_run_shows_its_layers_as_they_are_now() -> None:
    backend = InMemoryBackend()
    async with remembers(Facts(), backend) as it:
        position = (await it.run(learn, "x", run_id="r")).checkpoint.position
    async with remembers(NewFacts(), backend) as it:
        again = await it.resume("r", learn)
        assert (again.memory["facts"], again.checkpoint.position) == (Kept({"x": 1}), position)


async def test_a_layer_that_has_forgotten_its_state_goes_on_too() -> None:
    @step(version="1")
    async def forgets(text: str, ctx: Context[Any, Any]) -> str:
        await ctx.memory["facts"].forget()
        return text

    flow = learn >> forgets >> wait >> known
    for now in (Facts(), NewFacts()):
        backend = InMemoryBackend()
        async with remembers(Facts(), backend) as it:
            assert (await it.run(flow, "x", run_id="r")).status == "suspended"
        async with remembers(now, backend) as it:
            assert (await answered(it, flow)).value is None


async def test_layers_of_a_spawn_and_of_work_beside_become_others_too() -> None:
    def flow(own: MemoryLayer[Any]) -> Any:
        inner = spawn(learn >> wait >> learn.with_options(id="more") >> known, memory=AnyFacts(facts=own), id="own")

        @step(id="work", version="1")
        async def work(text: str, ctx: Context[Any, Any]) -> str:
            await learn(text, ctx)
            await wait(text, ctx)
            kept.append(ctx.memory["facts"].state)
            return text

        @step(id="start", version="1")
        async def start(text: str, ctx: Context[Any, Any]) -> str:
            await learn("before", ctx)
            ctx.spawn_detached(work, text)
            return text

        return start >> inner

    kept: list[Any] = []
    backend = InMemoryBackend()
    async with remembers(Facts(), backend) as it:
        assert len((await it.run(flow(Facts()), "x", run_id="r")).pending) == 2
    for _ in range(2):
        async with remembers(NewFacts(), backend) as it:
            assert (await it.resume("r", flow(NewFacts()))).status == "suspended"
    async with remembers(NewFacts(), backend) as it:
        result = await answered(it, flow(NewFacts()))
    assert (result.value, result.memory["facts"]) == (Kept({"x": 2}), Kept({"before": 1}))
    assert kept == [Kept({"before": 1, "x": 1})]


async def test_a_layer_of_which_an_earlier_release_has_not_said_the_version() -> None:
    """It is taken for the first, unless it fits only what it is now."""

    class Unsaid(NewFacts):
        schema_version = 1

    backend = InMemoryBackend()
    flow = learn >> wait >> known
    async with remembers(Unsaid(), backend) as it:
        assert (await it.run(flow, "x", run_id="r")).status == "suspended"
    async with remembers(Broken(), backend) as it:
        assert (await answered(it, flow)).value == Kept({"x": 2})


@pytest.mark.parametrize(
    ("versions", "newest"), [((9, 10), 10), (("1.9", "1.10"), "1.10"), ((2, 9, "10.1"), "10.1"), (("2.0", 2), 2)]
)
async def test_the_newest_stored_version_counts_and_versions_are_numbers(versions: Any, newest: Any) -> None:
    class Every(MemoryLayer[list[str]]):
        @function
        async def add(self, text: str) -> None:
            self.state = [*self.state, text]

        @function
        async def forget(self) -> None:
            self.state = None  # type: ignore[assignment] # which forgets it

        def migrate(self, state: Any, version: object) -> object:
            return [*state, f"from {version}"]

    def of(version: object) -> Any:
        return type("Of", (Every,), {"schema_version": version})()

    backend = InMemoryBackend()
    for version in versions:
        async with remembers(of(version), backend) as it:
            await it.run(learn, f"{version}", thread_id="t")
    async with remembers(of("11.0"), backend) as it:
        found = (await it.run(known, "", thread_id="t")).value
        assert found[-1] == f"from {newest}"
        assert [text for text in found if not text.startswith("from")] == [f"{each}" for each in versions]
    async with remembers(of(1), backend) as it:
        with pytest.raises(errors.ConfigError, match=f"version {newest}, and its own is 1") as caught:
            await it.run(known, "", thread_id="t")
        assert (caught.value.code, caught.value.hint) == (
            "layer-version", "run the newer code, or give the layer another id",
        )  # fmt: skip

    @step
    async def forgets(text: str, ctx: Context[Any, Any]) -> None:
        await ctx.memory["facts"].forget()

    async with remembers(of(newest), backend) as it:
        await it.run(forgets, "", thread_id="t")
        assert (await it.run(known, "", thread_id="t")).value == [], "no older one comes back"


@pytest.mark.parametrize("version", [0, -1, True, "", "one", "1.", "0.0", None])
def test_what_is_no_version_of_a_layer_is_refused(version: Any) -> None:
    layer: Any = type("Wrong", (Facts,), {"schema_version": version})()
    with pytest.raises(errors.ConfigError, match="is not a version") as caught:
        remembers(layer, InMemoryBackend())
    assert caught.value.code == "layer-version"
