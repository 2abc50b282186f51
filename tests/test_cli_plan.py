"""What the command line asks of the library: plans of a resumption, journals without code, streams of resumed runs."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anyio
import pytest
from attrs import define

from noetic_py import (
    Budget,
    Context,
    Harness,
    InMemoryBackend,
    StateBag,
    Step,
    TokenUsage,
    branch,
    call_model,
    each,
    loop,
    parallel,
    spawn,
    step,
    until,
)
from noetic_py.cli.diff import first_difference
from noetic_py.cli.inputs import read_age, with_limits
from noetic_py.cli.run_tree import read_tree
from noetic_py.core.events import StepStarted
from noetic_py.engine import body
from noetic_py.errors import CodecError, ConfigError, NoeticError, RunBusy, RunNotFound
from noetic_py.errors import StepFailed as StepFailedError
from noetic_py.journal.records import (
    AttemptFailed,
    CallStarted,
    Decision,
    JournalRecord,
    ResultDiscarded,
    RunEnded,
    StepFinished,
    StepOpened,
)
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

AnyStep = Step[Any, Any, Any, Any]


@step
async def one(x: int) -> int:
    return x + 1


@step
async def two(x: int) -> int:
    return x + 2


@step
async def other(x: int) -> int:
    return x - 1


@step
async def broken(x: int) -> int:
    raise ValueError(f"no {x}")


@step
async def broken_list(x: list[int]) -> int:
    raise ValueError("no list")


@step(replay="once")
async def charge(x: int) -> int:
    await anyio.sleep_forever()
    return x


async def asked(x: int, ctx: object) -> int:
    return x


@step(replay="once", reconcile=asked)
async def charge_known(x: int) -> int:
    await anyio.sleep_forever()
    return x


def harness() -> Harness:
    return Harness(checkpoints=InMemoryBackend())


async def planned(flow: AnyStep, value: object, again: AnyStep | None = None) -> list[tuple[str, str]]:
    """What going on with a run of `flow` would do, with `again` in its place."""
    one_ = harness()
    result = await one_.run(flow, value, run_id="r", on_error="result")
    before = await one_.runs.get("r")
    plan = await one_.plan_resume("r", again or flow)
    assert await one_.runs.get("r") == before
    assert (plan.run_id, plan.status) == ("r", result.status)
    assert plan.diverges == any(each.action == "differ" for each in plan.steps)
    return [(each.action, "/".join(each.path)) for each in plan.steps]


def named(flow: AnyStep, id: str) -> AnyStep:
    return flow.with_options(id=id)


@pytest.mark.parametrize(
    ("flow", "value", "plan"),
    [
        (one, 1, ["replay one"]),
        (broken, 1, ["run broken"]),
        (one >> broken >> two, 1, ["run sequence", "replay sequence/one", "run sequence/broken", "run sequence/two"]),
        (
            loop(one >> branch(lambda x: "b" if x > 2 else "a", {"a": two, "b": broken}), until=until.max_rounds(3)),
            0,
            [
                "run loop",
                "replay loop/sequence[0]",
                "run loop/sequence[1]",
                "replay loop/sequence[1]/one",
                "run loop/sequence[1]/branch",
                "run loop/sequence[1]/branch/broken",
            ],
        ),
        (
            parallel([one, two >> broken]),
            1,
            [
                "run parallel",
                "replay parallel/one[0]",
                "run parallel/sequence[1]",
                "replay parallel/sequence[1]/two",
                "run parallel/sequence[1]/broken",
            ],
        ),
        (
            each(one, concurrency=1) >> broken_list,
            [1, 2],
            ["run sequence", "replay sequence/each", "run sequence/broken_list"],
        ),
        (spawn(one >> broken, id="s"), 1, ["run s", "run s/sequence", "replay s/sequence/one"]),
    ],
)
async def test_plans(flow: AnyStep, value: object, plan: list[str]) -> None:
    found = [f"{action} {path}" for action, path in await planned(flow, value)]
    assert found[: len(plan)] == plan


async def test_a_body_that_calls_steps_is_not_compared() -> None:
    @step
    async def body(x: int, ctx: Context) -> int:
        return await broken(await one(x, ctx), ctx)

    assert await planned(body, 1) == [("run", "body"), ("replay", "body/one")]


CHANGED: list[tuple[Callable[[], AnyStep], list[tuple[str, str]]]] = [
    (
        lambda: two.with_options(id="one") >> broken,
        [("run", "sequence"), ("differ", "sequence/one"), ("run", "sequence/broken")],
    ),
    (
        lambda: spawn(one, id="one") >> broken,
        [("run", "sequence"), ("differ", "sequence/one"), ("run", "sequence/broken")],
    ),
    (
        lambda: other >> broken,
        [("run", "sequence"), ("run", "sequence/other"), ("run", "sequence/broken"), ("differ", "sequence/one")],
    ),
    (lambda: named(one >> broken, "main"), [("differ", "main")]),
    (
        lambda: one >> other >> broken,
        [("run", "sequence"), ("replay", "sequence/one"), ("run", "sequence/other"), ("run", "sequence/broken")],
    ),
]


@pytest.mark.parametrize(("again", "plan"), CHANGED)
async def test_plans_of_another_flow(again: Callable[[], AnyStep], plan: list[tuple[str, str]]) -> None:
    assert await planned(one >> broken, 1, again()) == plan


@pytest.mark.parametrize(
    ("flow", "action"), [(one >> charge, "unknown"), (one >> charge_known, "run")], ids=["nobody knows", "reconcile"]
)
async def test_a_step_that_may_run_only_once(flow: AnyStep, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SHIELD_TIMEOUT", 0.02)
    one_ = harness()
    async with one_.stream(flow, 1, run_id="r") as stream:
        async for event in stream.events:
            if event.path[-1:] == (flow.spec.steps[1].id,):
                stream.interrupt()
    steps = (await one_.plan_resume("r", flow)).steps
    assert [(each.action, each.path[-1]) for each in steps] == [
        ("run", "sequence"),
        ("replay", "one"),
        (action, flow.spec.steps[1].id),
    ]


async def test_a_handled_failure_is_replayed() -> None:
    @step
    async def body(x: int, ctx: Context) -> int:
        try:
            return await broken(x, ctx)
        except StepFailedError:
            return await one(x, ctx)

    found = await planned(body >> broken, 1)
    assert found == [("run", "sequence"), ("replay", "sequence/body"), ("run", "sequence/broken")]


async def test_no_plan_of_a_run_that_is_not_there() -> None:
    with pytest.raises(RunNotFound):
        await harness().plan_resume("nobody", one)
    with pytest.raises(ConfigError):
        await Harness().plan_resume("nobody", one)


# -- streams of resumed runs


async def test_a_resumed_run_can_be_watched() -> None:
    gates: list[int] = []

    @step
    async def gated(x: int) -> int:
        if not gates:
            raise ValueError("shut")
        return x

    flow = one >> gated >> two
    async with harness() as one_:
        await one_.run(flow, 1, run_id="r", on_error="result")
        gates.append(1)
        async with one_.resume_stream("r", flow) as stream:
            begun = ["/".join(event.path) async for event in stream.events if isinstance(event, StepStarted)]
            assert (await stream.result()).value == 4
    assert begun == ["sequence", "sequence/gated", "sequence/two"]


async def test_a_resumed_run_can_be_interrupted_and_goes_on() -> None:
    waits = [True]

    @step
    async def waiting(x: int) -> int:
        if waits:
            await anyio.sleep_forever()
        return x

    flow = one >> waiting
    async with harness() as one_:
        for open_ in (
            one_.stream(flow, 1, run_id="r", on_error="result"),
            one_.resume_stream("r", flow, on_error="result"),
        ):
            async with open_ as stream:
                async for event in stream.events:
                    if event.path[-1:] == ("waiting",):
                        stream.interrupt("enough")
                assert (await stream.result()).status == "interrupted"
        waits.clear()
        assert (await one_.resume("r", flow)).value == 2


async def test_errors_before_a_stream_begins() -> None:
    async with harness() as one_:
        with pytest.raises(RunNotFound):
            async with one_.resume_stream("nobody", one):
                pass
        await one_.run(one, 1, run_id="r")
        # Busy: a stream has to end although its run has never begun.
        async with one_.stream(one, 1, run_id="r") as stream:
            assert [event async for event in stream.events] == []
            with pytest.raises(RunBusy):
                await stream.result()
        bad: Any = object()
        async with one_.stream(one, bad) as stream:
            assert [event async for event in stream.events] == []
            with pytest.raises(CodecError):
                await stream.result()


# -- journals without the flow's code


@define
class Trip:
    port: str


@step
async def plan_trip(port: str, ctx: Context[Any, StateBag]) -> Trip:
    ctx.state["trip"] = Trip(port)
    return Trip(port)


@step
async def trip_again(trip: Trip) -> Trip:
    return trip


def _to_brest(trip: Trip, verdict: until.Verdict, ctx: Context[Any, Any]) -> Trip:
    return Trip("Brest")


async def test_a_journal_is_read_without_classes() -> None:
    flow = plan_trip >> loop(trip_again, until=until.max_rounds(2), prepare_next=_to_brest)
    one_ = harness()
    await one_.run(flow, "Nantes", run_id="r")
    records = await one_.runs.journal("r")
    assert len(records) == (await one_.runs.get("r")).position
    decided = [record.value for record in records if isinstance(record, Decision) and record.key.startswith("next")]
    assert decided == [{"$": "object:Trip", "port": "Brest"}]
    run = read_tree(records)
    assert run.flow is not None
    assert run.output(run.flow) == {"$": "object:Trip", "port": "Brest"}
    assert isinstance(run.ended, RunEnded)
    rest = await one_.runs.journal("r", after=2)
    assert [type(record) for record in rest] == [type(record) for record in records[2:]]
    with pytest.raises(RunNotFound):
        await one_.runs.journal("nobody")
    assert "backend" in await one_.runs.describe()


async def test_items_of_a_failed_run() -> None:
    flow = call_model(ScriptedModel("hello")) >> step(_fails)
    one_ = harness()
    result = await one_.run(flow, "hi", run_id="r", on_error="result")
    run = read_tree(await one_.runs.journal("r"))
    assert [item.id for item in run.items()] == [item.id for item in result.items]
    assert len(result.items) == 2


async def _fails(x: str) -> str:
    raise ValueError("no")


async def test_usage_is_what_the_result_says() -> None:
    model = ScriptedModel("a", "b", usage=TokenUsage(3, 2), cost="0.25")
    flow = call_model(model) >> call_model(model, id="second")
    one_ = harness()
    result = await one_.run(flow, "hi", run_id="r", budget=Budget(cost="5"))
    run = read_tree(await one_.runs.journal("r"))
    assert (run.usage, run.cost, run.model_calls, run.steps) == (
        result.usage,
        result.cost,
        result.model_calls,
        result.steps,
    )
    assert not any(run.open_calls.values())


# -- what is made of records


def finished(*path: str, kind: str = "code", output: object = None, attempt: int = 1) -> StepFinished:
    record = StepFinished(path, kind, None, output)
    record.attempt = attempt
    return record


def failed(*path: str, at: tuple[str, ...] | None = None, final: bool = True, attempt: int = 1) -> AttemptFailed:
    error = NoeticError("no", path=at or path)
    return AttemptFailed(path, "code", attempt, final, error, TokenUsage(1, 1), None, None)


def test_void_work_is_not_shown_and_counts() -> None:
    run = read_tree(
        [
            StepOpened(("a",), "code", 1),
            finished("a", "b"),
            failed("a", final=False),
            StepOpened(("a",), "code", 2),
            finished("a", "c"),
            finished("a", "d"),
            ResultDiscarded(("a", "d")),
        ]
    )
    (a,) = run.root.children()
    assert (a.state, a.attempts, [child.path[-1] for child in a.children()]) == ("open", 2, ["c"])
    assert (run.usage.total, run.steps) == (2, 4)


def test_a_failure_is_told_where_it_came_from() -> None:
    run = read_tree([StepOpened(("a",), "sequence", 1), failed("a", "b"), failed("a", at=("a", "b"))])
    assert [failure.path for failure in run.failures] == [("a", "b")]
    assert [(each.path[-1], each.state, each.error) for each in run.root.all()] == [
        ("a", "failed", None),
        ("b", "failed", "no"),
    ]


def test_calls_without_an_outcome() -> None:
    path = ("m", "answer")
    call = CallStarted(path, 100, Decimal("0.5"))
    assert read_tree([call, call]).open_calls == {path: [call, call]}
    outcome = finished(*path, kind="answer")
    outcome.calls = 2
    run = read_tree([call, call, outcome])
    assert (run.open_calls, run.model_calls, run.cost) == ({path: []}, 2, None)


def test_a_call_that_a_crash_cut_off_has_no_outcome_after_the_resume() -> None:
    path = ("m", "answer")
    lost, made = CallStarted(path, 100, Decimal("0.5"), fence=1), CallStarted(path, 100, Decimal("0.5"), fence=2)
    outcome = finished(*path, kind="answer")
    outcome.calls, outcome.cost = 1, Decimal("0.25")
    run = read_tree([lost, made, outcome])
    assert (run.open_calls, run.model_calls, run.cost) == ({path: [lost]}, 1, Decimal("0.25"))


def test_children_are_in_their_order() -> None:
    run = read_tree([finished("e", "s[10]"), finished("e", "s[2]"), finished("e", "t"), finished("e", "s[2]#1")])
    assert [child.path[-1] for child in run.root.children()[0].children()] == ["s[2]", "s[2]#1", "s[10]", "t"]


def test_parting() -> None:
    left: list[JournalRecord] = [finished("a", output=1), finished("b", output=1)]
    same: list[JournalRecord] = [finished("b", output=1), finished("a", output=1)]
    longer: list[JournalRecord] = [*same, finished("c")]
    assert first_difference(left, same) == (None, 2)
    found, common = first_difference(left, longer)
    assert found is not None
    assert (found.path, found.left, common) == (("c",), None, 2)
    found, _ = first_difference(longer, left)
    assert found is not None
    assert (found.path, found.right) == (("c",), None)
    found, common = first_difference(left, [finished("a", output=1), finished("b", output=True)])
    assert found is not None
    assert (found.path, found.fields, common) == (("b",), ("output",), 1)


def test_limits() -> None:
    base = Budget(steps=3, per_tool={"search": 2}, seconds=4, warn_at=0.5, cost="0.50")
    assert with_limits(base, ()) is base
    assert with_limits(None, ()) is None
    raised = with_limits(base, ["steps=5", "tokens=1_000"])
    assert raised is not None
    assert raised.limits == {
        "steps": 5,
        "tokens": 1000,
        "cost": Decimal("0.50"),
        "per_tool:search": 2,
    }
    assert (raised.seconds, raised.warn_at) == (4, 0.5)


@pytest.mark.parametrize(("text", "seconds"), [("30d", 30 * 86400), ("1.5h", 5400), ("90s", 90), ("2w", 14 * 86400)])
def test_ages(text: str, seconds: float) -> None:
    assert read_age(text).total_seconds() == seconds
