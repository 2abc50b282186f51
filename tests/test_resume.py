"""Going on with a run: what is run again, what is not, and what is said when it cannot be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anyio
import pytest
from attrs import define, field

from noetic_py import (
    NOT_DONE,
    Budget,
    Context,
    Extension,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Item,
    Memory,
    Message,
    ModelRequest,
    Retry,
    RunResult,
    StateBag,
    Step,
    TokenUsage,
    branch,
    call_model,
    errors,
    extension_item,
    loop,
    parallel,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.cli.report import as_json, summary
from noetic_py.core.budget import Usage
from noetic_py.testing import FaultyBackend, ScriptedModel
from noetic_py.testing.faults import When

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]
WHENS: tuple[When, ...] = ("before", "after")


class Ledger:
    """What bodies write down outside of the run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()

    def step(self, name: str, **options: Any) -> Step[int, int, Memory, StateBag]:
        """A step that notes that it has run, and adds one; it raises while it is broken."""

        @step(id=name, **options)
        async def body(x: int, ctx: Ctx) -> int:
            self.ran.append(name)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return x + 1

        return body

    def take(self) -> list[str]:
        """What has run since it was last asked."""
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend(InMemoryBackend())


def harness(backend: Any, **options: Any) -> Harness[Memory]:
    return Harness(plugins=(), checkpoints=backend, **options)


async def begin(backend: FaultyBackend, flow: AnyStep, **options: Any) -> RunResult[Any, Any] | None:
    """The first process of run "r"; `None` when it has died."""
    run: Any = harness(backend, **options.pop("harness", {})).run
    found: list[RunResult[Any, Any]] = []
    with backend.outlived():
        found.append(await run(flow, 1, run_id="r", on_error="result", **options))
    return found[0] if found else None


async def go_on(backend: FaultyBackend, flow: AnyStep, **options: Any) -> RunResult[Any, Any]:
    """The next one."""
    backend.revive()
    resume: Any = harness(backend, **options.pop("harness", {})).resume
    result: RunResult[Any, Any] = await resume("r", flow, **options)
    return result


# -- runs that have ended


async def test_a_completed_run_gives_its_result_once_more(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = sequence(ledger.step("a"), ledger.step("b"))
    first = await begin(backend, flow, state=StateBag({"kept": 1}), metadata={"m": 1})
    assert first is not None
    ledger.take()
    before = await backend.head("r")
    again = await go_on(backend, flow)
    assert (again.status, again.value, again.state, again.steps) == ("completed", 3, StateBag({"kept": 1}), 2)
    assert ledger.take() == []
    after = await backend.head("r")
    assert before is not None
    assert after is not None
    assert after.position == before.position
    assert (await harness(backend).runs.get("r")).status == "completed"


@pytest.mark.clause("002-55b")
async def test_a_failed_run_tries_again_what_failed_and_nothing_else(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = sequence(ledger.step("a"), ledger.step("b"), ledger.step("c"))
    ledger.broken = {"b"}
    first = await begin(backend, flow)
    assert first is not None
    assert first.status == "failed"
    assert ledger.take() == ["a", "b"]
    still = await go_on(backend, flow, on_error="result")
    assert (still.status, ledger.take()) == ("failed", ["b"])
    ledger.broken = set()
    assert (await go_on(backend, flow)).value == 4
    assert ledger.take() == ["b", "c"]
    assert (await go_on(backend, flow)).value == 4
    assert ledger.take() == []


async def test_a_failed_run_tries_again_every_path_that_failed(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = parallel([ledger.step("a"), sequence(ledger.step("b"), ledger.step("c"))], id="p")
    ledger.broken = {"c"}
    await begin(backend, flow)
    ledger.take()
    ledger.broken = set()
    assert (await go_on(backend, flow)).value == [2, 3]
    assert ledger.take() == ["c"]


async def test_a_failure_that_somebody_handled_stays_when_another_is_tried_again(
    backend: FaultyBackend, ledger: Ledger
) -> None:
    bad, last = ledger.step("bad"), ledger.step("last")

    @step
    async def body(x: int, ctx: Ctx) -> int:
        try:
            return await bad(x, ctx)
        except errors.StepFailed as error:
            ctx.state["said"] = error.error_message
            return 10

    flow = sequence(body, last)
    ledger.broken = {"bad", "last"}
    await begin(backend, flow)
    ledger.take()
    ledger.broken = set()
    result = await go_on(backend, flow)
    assert (result.value, result.state["said"]) == (11, "bad is broken")
    assert ledger.take() == ["last"]


async def test_tries_begin_anew_when_a_failed_run_is_resumed(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = ledger.step("a", retry=Retry(2, initial=0))
    ledger.broken = {"a"}
    await begin(backend, flow)
    assert ledger.take() == ["a", "a"]
    with pytest.raises(errors.StepFailed):
        await go_on(backend, flow)
    assert ledger.take() == ["a", "a"]


async def test_a_failed_run_that_is_killed_while_it_tries_again_goes_on_trying(
    backend: FaultyBackend, ledger: Ledger
) -> None:
    flow = sequence(ledger.step("a"), ledger.step("b"), ledger.step("c"))
    ledger.broken = {"b"}
    await begin(backend, flow)
    ledger.broken = set()
    for dies_at, ran in ((1, ["b"]), (1, ["b"]), (2, ["b", "c"])):
        ledger.take()
        backend.revive(dies_at=dies_at)
        with backend.outlived():
            await harness(backend).resume("r", flow)
        assert backend.dead
        assert ledger.take() == ran
    assert (await go_on(backend, flow)).value == 4
    assert ledger.take() == ["c"]


@pytest.mark.parametrize("kind", ["complete", "abort"])
async def test_a_run_that_a_step_has_stopped_stays_stopped(kind: str, backend: FaultyBackend, ledger: Ledger) -> None:
    after = ledger.step("after")

    @step
    async def stop(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("so far"))
        ctx.state["n"] = 5
        if kind == "complete":
            ctx.complete(42)
        else:
            ctx.abort("enough")
        return x

    flow = sequence(stop, after)
    first = await begin(backend, flow)
    again = await go_on(backend, flow)
    assert first is not None
    for result in (first, again):
        assert result.status == ("completed" if kind == "complete" else "aborted")
        assert result.output_or(None) == (42 if kind == "complete" else None)
        assert result.state == StateBag({"n": 5})
        assert [item.text for item in result.items if isinstance(item, Message)] == ["so far"]
    assert ledger.take() == []


async def test_an_interrupted_run_goes_on(backend: FaultyBackend, ledger: Ledger) -> None:
    here, free = anyio.Event(), anyio.Event()

    @step
    async def wait(x: int) -> int:
        ledger.ran.append("wait")
        here.set()
        await free.wait()
        return x

    flow = sequence(ledger.step("a"), wait)
    async with harness(backend) as running:
        handle = running.start(flow, 1, run_id="r", on_error="result")
        await here.wait()
        handle.interrupt("later")
        assert (await handle.result()).status == "interrupted"
    assert (await harness(backend).runs.get("r")).status == "interrupted"
    ledger.take()
    free.set()
    assert (await go_on(backend, flow)).value == 2
    assert ledger.take() == ["wait"]
    assert (await harness(backend).runs.get("r")).status == "completed"


async def test_a_cancelled_run_goes_on(backend: FaultyBackend, ledger: Ledger) -> None:
    here, free = anyio.Event(), anyio.Event()

    @step
    async def wait(x: int) -> int:
        ledger.ran.append("wait")
        here.set()
        await free.wait()
        return x

    flow = sequence(ledger.step("a"), wait)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: harness(backend).run(flow, 1, run_id="r"))
        await here.wait()
        group.cancel_scope.cancel()
    assert (await harness(backend).runs.get("r")).status == "cancelled"
    ledger.take()
    free.set()
    assert (await go_on(backend, flow)).value == 2
    assert ledger.take() == ["wait"]


async def test_a_run_out_of_budget_goes_on_with_a_larger_one(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = sequence(*[ledger.step(name) for name in "abcd"])
    first = await begin(backend, flow, budget=Budget(steps=2))
    assert first is not None
    assert (first.status, ledger.take()) == ("budget_exceeded", ["a", "b"])
    # The budget that it was begun with is still spent.
    assert (await go_on(backend, flow, on_error="result")).status == "budget_exceeded"
    assert ledger.take() == []
    result = await go_on(backend, flow, budget=Budget(steps=4))
    assert (result.value, result.steps, ledger.take()) == (5, 4, ["c", "d"])


# -- what cannot be resumed


async def test_another_flow_is_refused(backend: FaultyBackend, ledger: Ledger) -> None:
    await begin(backend, ledger.step("a"))
    with pytest.raises(errors.ReplayDiverged, match="was started with step 'a', and is resumed with 'b'"):
        await go_on(backend, ledger.step("b"))
    assert (await go_on(backend, ledger.step("a"))).value == 2


async def test_a_run_that_is_not_there_is_named(backend: FaultyBackend, ledger: Ledger) -> None:
    with pytest.raises(errors.RunNotFound):
        await go_on(backend, ledger.step("a"))


async def test_a_run_whose_beginning_was_never_stored_is_not_there(backend: FaultyBackend, ledger: Ledger) -> None:
    backend.revive(dies_at=1)
    await begin(backend, ledger.step("a"))
    with pytest.raises(errors.RunNotFound):
        await go_on(backend, ledger.step("a"))
    assert ledger.take() == []


async def test_a_harness_without_a_backend_says_so(ledger: Ledger) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        await Harness(plugins=()).resume("r", ledger.step("a"))
    assert caught.value.code == "no-backend"


async def test_a_run_that_goes_on_is_busy(backend: FaultyBackend) -> None:
    here, free = anyio.Event(), anyio.Event()

    @step
    async def wait(x: int) -> int:
        here.set()
        await free.wait()
        return x

    other = harness(backend)
    async with harness(backend) as running:
        handle = running.start(wait, 1, run_id="r")
        await here.wait()
        for each in (other, running):
            with pytest.raises(errors.RunBusy, match="'r'"):
                await each.resume("r", wait)
        with pytest.raises(errors.RunBusy, match="'r'"):
            await other.run(wait, 1, run_id="r")
        free.set()
        assert (await handle.result()).value == 1
    # A run that is over is not begun a second time.
    with pytest.raises(errors.RunBusy):
        await other.run(wait, 1, run_id="r")
    assert (await other.resume("r", wait)).value == 1


async def test_an_unknown_option_is_refused(backend: FaultyBackend, ledger: Ledger) -> None:
    await begin(backend, ledger.step("a"))
    with pytest.raises(errors.ConfigError, match="resume\\(\\) takes no keyword 'history'"):
        await go_on(backend, ledger.step("a"), history=[])


# -- the state


@define
class Tally:
    """A state of a class."""

    total: int = 0
    rows: list[int] = field(factory=list[int])


@step
async def count(x: int, ctx: Context[Memory, Tally]) -> int:
    ctx.state.total += x
    ctx.state.rows.append(x)
    return x + 1


async def test_a_state_of_a_class_is_known_by_the_annotations_of_the_flow(backend: FaultyBackend) -> None:
    backend.revive(dies_at=4)
    await begin(backend, sequence(count, count, count), state=Tally(100))
    result = await go_on(backend, sequence(count, count, count))
    assert result.state == Tally(106, [1, 2, 3])


@step
async def count_without_annotation(x: int, ctx: Context[Memory, Any]) -> int:
    ctx.state.total += x
    ctx.state.rows.append(x)
    return x + 1


async def test_a_state_of_a_class_that_no_annotation_names_needs_its_type(backend: FaultyBackend) -> None:
    flow = sequence(count_without_annotation, count_without_annotation, count_without_annotation)
    backend.revive(dies_at=4)
    await begin(backend, flow, state=Tally(100))
    with pytest.raises(errors.ConfigError) as caught:
        await go_on(backend, flow)
    assert caught.value.code == "state-type"
    assert caught.value.hint is not None
    assert "state_type=Tally" in caught.value.hint
    # What was wrong with the call has not taken the run.
    result = await go_on(backend, flow, state_type=Tally)
    assert result.state == Tally(106, [1, 2, 3])


async def test_a_state_of_another_class_is_an_error_and_no_wrong_value(backend: FaultyBackend) -> None:
    @define
    class Other:
        name: str

    backend.revive(dies_at=3)
    await begin(backend, sequence(count, count), state=Tally())
    with pytest.raises(errors.CodecError):
        await go_on(backend, sequence(count, count), state_type=Other)
    assert (await go_on(backend, sequence(count, count), state_type=Tally)).state == Tally(3, [1, 2])


@pytest.mark.parametrize("kind", [dict, list, set])
async def test_a_state_of_pythons_own(kind: type[Any], backend: FaultyBackend) -> None:
    def change(state: Any, x: int) -> None:
        if kind is dict:
            state[x] = str(x)
        elif kind is list:
            state.append(x)
        else:
            state.add(x)

    @step
    async def body(x: int, ctx: Context[Memory, Any]) -> int:
        change(ctx.state, x)
        return x + 1

    flow = sequence(body, body, body)
    expected = kind()
    for x in (1, 2, 3):
        change(expected, x)
    backend.revive(dies_at=4)
    await begin(backend, flow, state=kind())
    result = await go_on(backend, flow, state_type=kind)
    assert result.state == expected


async def test_a_body_that_holds_a_part_of_the_state_over_a_replayed_child(backend: FaultyBackend) -> None:
    @step
    async def child(x: int, ctx: Context[Memory, Tally]) -> int:
        ctx.state.rows.append(x)
        return x

    @step
    async def parent(x: int, ctx: Context[Memory, Tally]) -> int:
        rows = ctx.state.rows
        await child(x, ctx)
        rows.append(99)
        await child(x + 1, ctx)
        return len(rows)

    backend.revive(dies_at=3)
    await begin(backend, parent, state=Tally())
    result = await go_on(backend, parent, state_type=Tally)
    assert (result.value, result.state) == (3, Tally(0, [1, 99, 2]))


async def test_a_child_that_meets_another_state_than_it_had_changed(backend: FaultyBackend) -> None:
    drawn = iter([5, 7])

    @step
    async def triple(_: int, ctx: Context[Memory, Tally]) -> int:
        ctx.state.total *= 3
        return 0

    @step
    async def parent(x: int, ctx: Context[Memory, Tally]) -> int:
        ctx.state.total = next(drawn)
        await triple(1, ctx)
        await triple(1, ctx)
        return 0

    backend.revive(dies_at=3)
    await begin(backend, parent, state=Tally())
    with pytest.raises(errors.ReplayDiverged, match="total differs") as caught:
        await go_on(backend, parent, state_type=Tally)
    assert caught.value.path == ("parent", "triple")


async def test_a_child_that_gets_another_input_than_was_recorded(backend: FaultyBackend, ledger: Ledger) -> None:
    drawn = iter([5, 7])
    child = ledger.step("child")

    @step
    async def parent(x: int, ctx: Ctx) -> int:
        return await child(await child(next(drawn), ctx), ctx)

    backend.revive(dies_at=3)
    await begin(backend, parent)
    with pytest.raises(errors.ReplayDiverged, match="another input") as caught:
        await go_on(backend, parent)
    assert caught.value.path == ("parent", "child")


# -- what cannot be stored


class Secret:
    """Something without a stored form."""


@extension_item("acme:blob")
class Blob(Extension):
    """An item with any payload."""

    payload: Any


async def wild_output(x: int, ctx: Ctx) -> object:
    return {"key": [Secret()]}


async def wild_state(x: int, ctx: Ctx) -> object:
    ctx.state["key"] = [Secret()]
    return x


async def wild_item(x: int, ctx: Ctx) -> object:
    ctx.items.append(Blob(payload=Secret()))
    return x


async def wild_value(x: int, ctx: Ctx) -> object:
    ctx.complete({"key": [Secret()]})
    return x


@step
async def nothing(x: object) -> int:
    """Do nothing."""
    return 0


async def wild_input(x: int, ctx: Ctx) -> object:
    return await nothing({"key": [Secret()]}, ctx)


def before_a_child(body: Callable[[int, Ctx], Any]) -> Any:
    """The same, with a child behind, so that it is a segment of its own."""

    async def wild(x: int, ctx: Ctx) -> object:
        out = await body(x, ctx)
        await nothing(1, ctx)
        return out

    return wild


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (wild_output, r"output\['key'\]\[0\]"),
        (wild_state, r"state\.key\[0\]"),
        (before_a_child(wild_state), r"state\.key\[0\]"),
        (wild_item, r"items\[0\]\.data: a payload cannot hold a Secret"),
        (before_a_child(wild_item), r"items\[0\]\.data: a payload cannot hold a Secret"),
        (wild_value, r"\['key'\]\[0\]"),
        (wild_input, r"\['key'\]\[0\]"),
    ],
)
async def test_what_cannot_be_stored_is_named_and_is_the_steps_own_failure(
    body: Any, where: str, backend: FaultyBackend
) -> None:
    wild: AnyStep = step(id="wild")(body)

    @step
    async def careful(x: int, ctx: Ctx) -> str:
        try:
            await wild(x, ctx)
        except errors.CodecError as error:
            return error.message
        return "stored"

    result = await begin(backend, careful)
    assert result is not None
    assert result.status == "completed"
    message = result.value
    assert "Secret" in message
    with pytest.raises(errors.CodecError, match=where) as caught:
        await harness(InMemoryBackend()).run(wild, 1)
    assert caught.value.path[0] == "wild"
    # A run that keeps nothing does not care.
    assert (await Harness(plugins=()).run(wild, 1)).status == "completed"


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"state": {"a": [Secret()]}}, r"state\['a'\]\[0\]"),
        ({"state": StateBag({"a": Secret()})}, r"state\['a'\]"),
        ({"history": [Blob(payload=Secret())]}, r"history\[0\]\.data: a payload cannot hold a Secret"),
        ({"metadata": {"a": Secret()}}, r"metadata\['a'\]"),
    ],
)
async def test_what_a_run_begins_with_has_to_be_storable(
    options: dict[str, Any], where: str, backend: FaultyBackend
) -> None:
    with pytest.raises(errors.CodecError, match=where):
        await begin(backend, nothing, **options)
    with pytest.raises(errors.CodecError, match=r"input: .*Secret"):
        await harness(backend).run(nothing, Secret())
    assert await backend.list() == []


# -- how often it commits


async def test_a_run_that_commits_at_its_exit_loses_all_when_it_dies(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = sequence(*[ledger.step(name) for name in "abc"])
    result = await begin(backend, flow, durability="exit")
    assert result is not None
    # It has begun, without a record, and its end has all of them.
    assert backend.appends == 2
    backend.revive(dies_at=2)
    with backend.outlived():
        await harness(backend).run(flow, 1, run_id="s", durability="exit")
    backend.revive()
    with pytest.raises(errors.RunNotFound):
        await harness(backend).resume("s", flow)
    assert (await go_on(backend, flow)).value == 4


async def test_a_run_that_commits_when_it_is_told_loses_what_came_after(backend: FaultyBackend, ledger: Ledger) -> None:
    @step
    async def told(x: int, ctx: Ctx) -> int:
        ledger.ran.append("told")
        ctx.items.append(Message.assistant("committed"))
        await ctx.checkpoint()
        return x

    flow = sequence(ledger.step("a"), told, ledger.step("b"))
    backend.revive(dies_at=3)
    await begin(backend, flow, durability="manual")
    assert ledger.take() == ["a", "told", "b"]
    result = await go_on(backend, flow)
    # The step that had told it was in flight, and what came after was never stored.
    assert ledger.take() == ["told", "b"]
    assert [item.text for item in result.items if isinstance(item, Message)] == ["committed"]


# -- what may run only once


def paying(ledger: Ledger, **options: Any) -> AnyStep:
    @step(replay="once", **options)
    async def pay(x: int, ctx: Ctx) -> int:
        ledger.ran.append("pay")
        ctx.items.append(Message.assistant("paid"))
        return x + 1

    return pay


@pytest.mark.parametrize(("dies_at", "when", "ran"), [(2, "after", []), (3, "before", ["pay"])])
async def test_a_once_step_whose_outcome_nobody_knows(
    dies_at: int, when: Any, ran: list[str], backend: FaultyBackend, ledger: Ledger
) -> None:
    flow = sequence(paying(ledger), ledger.step("after"))
    backend.revive(dies_at=dies_at, when=when)
    await begin(backend, flow)
    assert ledger.take() == ran
    for _ in range(2):
        # Neither forgotten by having been said once, nor tried again.
        with pytest.raises(errors.StepOutcomeUnknown) as caught:
            await go_on(backend, flow)
        assert caught.value.path == ("sequence", "pay")
    assert ledger.take() == []


async def test_a_once_step_that_was_committed_is_not_repeated(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = sequence(paying(ledger), ledger.step("after"))
    backend.revive(dies_at=3, when="after")
    await begin(backend, flow)
    result = await go_on(backend, flow)
    assert (result.value, ledger.take()) == (3, ["pay", "after"])


async def test_a_once_step_is_not_repeated_by_a_retry_around_it(backend: FaultyBackend, ledger: Ledger) -> None:
    pay, after = paying(ledger), ledger.step("after")

    @step(retry=Retry(3, initial=0))
    async def outer(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("try"))
        paid = await pay(x, ctx)
        if ledger.ran.count("after") >= 1:
            ledger.broken = set()
        return await after(paid, ctx)

    for flow in (outer, sequence(pay, after).with_options(retry=Retry(3, initial=0))):
        for dies_at in range(2, 9):
            for when in WHENS:
                if (dies_at, when) in ((2, "after"), (3, "before")):
                    continue
                ledger.take()
                ledger.broken = {"after"} if flow is outer else set()
                kept = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when=when)
                await begin(kept, flow)
                result = await go_on(kept, flow)
                assert result.value == 3
                assert Counter(ledger.take())["pay"] == 1
                texts = [item.text for item in result.items if isinstance(item, Message)]
                assert texts == (["try", "paid"] if flow is outer else ["paid"])


async def test_a_once_step_that_is_given_something_else_by_a_retry_around_it(
    backend: FaultyBackend, ledger: Ledger
) -> None:
    pay = paying(ledger)
    inputs = iter([1, 2])

    @step(retry=Retry(2, initial=0))
    async def outer(x: int, ctx: Ctx) -> int:
        await pay(next(inputs), ctx)
        raise ValueError("again")

    result = await begin(backend, outer)
    assert result is not None
    assert isinstance(result.error, errors.StepOutcomeUnknown)
    assert ledger.take() == ["pay"]


async def test_a_once_step_is_reconciled(backend: FaultyBackend, ledger: Ledger) -> None:
    answers: list[Any] = [NOT_DONE, 42]

    async def look(x: int, ctx: object) -> Any:
        return answers[0]

    flow = paying(ledger, reconcile=look)
    backend.revive(dies_at=2, when="after")
    await begin(backend, flow)
    backend.revive(dies_at=2)
    with backend.outlived():
        await harness(backend).resume("r", flow)
    assert ledger.take() == ["pay"], "it had not done its work, and so it ran"
    answers.pop(0)
    assert (await go_on(backend, flow)).value == 42
    assert ledger.take() == []


async def test_an_idempotency_key_is_the_same_in_every_process(backend: FaultyBackend) -> None:
    keys: list[tuple[str, str]] = []

    @step(replay="keyed")
    async def charge(x: int, ctx: Ctx) -> int:
        keys.append(("/".join(ctx.path), ctx.idempotency_key))
        return x + 1

    flow = sequence(charge, charge)
    for dies_at in (2, 1, 2):
        backend.revive(dies_at=dies_at)
        with backend.outlived():
            if dies_at == 2 and not keys:
                await harness(backend).run(flow, 1, run_id="r")
            else:
                await harness(backend).resume("r", flow)
    await go_on(backend, flow)
    by_path: dict[str, set[str]] = {}
    for path, key in keys:
        by_path.setdefault(path, set()).add(key)
    assert len(keys) > 2
    assert [len(found) for found in by_path.values()] == [1, 1]
    known = {key for found in by_path.values() for key in found}
    assert len(known) == 2
    forked = await harness(backend).fork("r", at=1)
    keys.clear()
    await harness(backend).resume(forked, flow)
    assert not {key for _, key in keys} & known, "a fork is another run"


# -- failures and decisions from before


async def test_a_failure_that_was_handled_before_the_kill_fails_again_and_does_not_run(
    backend: FaultyBackend, ledger: Ledger
) -> None:
    ledger.broken = {"bad"}
    bad, good = ledger.step("bad"), ledger.step("good")
    said: list[str] = []

    @step
    async def body(x: int, ctx: Ctx) -> int:
        try:
            await bad(x, ctx)
        except errors.StepFailed as error:
            said.append(f"{error.error_type}: {error.error_message} at {'/'.join(error.path)}")
        return await good(x, ctx)

    backend.revive(dies_at=3)
    await begin(backend, body)
    ledger.broken = set()
    assert (await go_on(backend, body)).value == 2
    assert ledger.take() == ["bad", "good", "good"]
    assert said == ["ValueError: bad is broken at body/bad"] * 2


async def test_a_settled_section_keeps_its_failures(backend: FaultyBackend, ledger: Ledger) -> None:
    ledger.broken = {"bad"}

    @step
    async def look(outcomes: list[Any]) -> str:
        return " ".join(str(each.value) if each.ok else type(each.error).__name__ for each in outcomes)

    flow = sequence(settle([ledger.step("good"), ledger.step("bad")], id="s"), look)
    first = await begin(backend, flow)
    assert first is not None
    assert first.value == "2 StepFailed"
    for dies_at in range(2, 7):
        kept = FaultyBackend(InMemoryBackend(), dies_at=dies_at)
        await begin(kept, flow)
        assert (await go_on(kept, flow)).value == "2 StepFailed"


async def test_decisions_are_not_asked_for_twice(backend: FaultyBackend, ledger: Ledger) -> None:
    asked: list[str] = []

    def route(x: int) -> str:
        asked.append("route")
        return "a"

    def judge(snapshot: Any) -> until.Verdict:
        asked.append("until")
        return until.Verdict(snapshot.iteration >= 2, "enough")

    def prepare(output: int, verdict: until.Verdict, ctx: object) -> int:
        asked.append("next")
        return output

    flow = loop(branch(route, {"a": ledger.step("a")}), until=until.custom(judge), prepare_next=prepare, id="again")
    whole = FaultyBackend(InMemoryBackend())
    await begin(whole, flow)
    expected = Counter(asked)
    for dies_at in range(1, whole.appends):
        asked.clear()
        kept = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        await begin(kept, flow)
        assert (await go_on(kept, flow)).value == 4
        # What was decided right before the kill, and not committed, is decided once more.
        assert sum((Counter(asked) - expected).values()) <= 2


# -- budgets


def answer(request: ModelRequest) -> Item:
    return Message.assistant("yes")


def model() -> ScriptedModel:
    return ScriptedModel(*[answer] * 50, usage=TokenUsage(10, 5), cost="0.25")


async def test_what_was_spent_is_spent_for_every_process(backend: FaultyBackend) -> None:
    flow = sequence(*[call_model(id=f"ask{number}") for number in range(5)])
    budget = Budget(model_calls=3)
    kept = FaultyBackend(InMemoryBackend())
    result: Any = None
    with kept.outlived():
        result = await harness(kept, model=model()).run(flow, "hi", run_id="r", budget=budget, on_error="result")
    assert (result.status, result.model_calls) == ("budget_exceeded", 3)
    for dies_at in range(2, kept.appends):
        each = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        models = [model(), model()]
        with each.outlived():
            await harness(each, model=models[0]).run(flow, "hi", run_id="r", budget=budget)
        each.revive()
        result = await harness(each, model=models[1]).resume("r", flow, on_error="result")
        assert result.status == "budget_exceeded"
        assert (result.model_calls, result.cost, result.usage) == (3, Decimal("0.75"), TokenUsage(30, 15))
        assert sum(len(each.requests) for each in models) <= 4, "one may have been in flight"


async def test_a_steps_own_budget_is_kept(backend: FaultyBackend, ledger: Ledger) -> None:
    inner = sequence(*[ledger.step(name) for name in "abcd"]).with_options(budget=Budget(steps=3))
    flow = sequence(ledger.step("first"), inner, ledger.step("last"))
    backend.revive(dies_at=5)
    await begin(backend, flow, budget=Budget(steps=100))
    ledger.take()
    result = await go_on(backend, flow, on_error="result")
    assert result.status == "budget_exceeded"
    assert isinstance(result.error, errors.BudgetExceeded)
    assert (result.error.dimension, result.error.limit) == ("steps", 3)
    assert ledger.take() == ["c"]


async def test_a_spawns_budget_is_kept_and_its_next_attempt_has_its_own(backend: FaultyBackend, ledger: Ledger) -> None:
    ledger.broken = {"c"}
    child = spawn(sequence(*[ledger.step(name) for name in "abc"]), budget=Budget(steps=3), id="child")
    flow = child.with_options(retry=Retry(2, initial=0))
    # Killed in the second attempt: the first one's steps are the first one's.
    whole = FaultyBackend(InMemoryBackend())
    await begin(whole, flow)
    assert ledger.take() == ["a", "b", "c"] * 2
    for dies_at in range(2, whole.appends):
        kept = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        await begin(kept, flow)
        result = await go_on(kept, flow, on_error="result")
        assert not isinstance(result.error, errors.BudgetExceeded)
        assert isinstance(result.error, errors.StepFailed)


async def test_a_call_that_was_in_flight_counts_as_possibly_spent(backend: FaultyBackend) -> None:
    flow = sequence(call_model(id="one"), call_model(id="two"))
    meter: list[ModelRequest] = []

    def noted(request: ModelRequest) -> Item:
        meter.append(request)
        return Message.assistant("yes")

    def scripted() -> ScriptedModel:
        return ScriptedModel(*[noted] * 9, usage=TokenUsage(10, 5), name="test:scripted")

    budget = Budget(tokens=10_000)
    options: Any = {"model_settings": {"max_output_tokens": 100}, "budget": budget}
    whole = FaultyBackend(InMemoryBackend())
    plain = await harness(whole, model=scripted()).run(flow, "hi", run_id="r", **options)
    assert plain.usage == TokenUsage(20, 10)
    for dies_at in range(2, whole.appends):
        meter.clear()
        kept = FaultyBackend(InMemoryBackend(), dies_at=dies_at)
        with kept.outlived():
            await harness(kept, model=scripted()).run(flow, "hi", run_id="r", **options)
        kept.revive()
        result = await harness(kept, model=scripted()).resume("r", flow)
        assert result.status == "completed"
        assert result.usage.total >= 15 * len(meter), "every call that was made is counted"
        if len(meter) == 2:
            assert result.usage == TokenUsage(20, 10)
            assert result.possibly_spent == Usage()
        else:
            assert result.usage.output == 10 + 100
            # What is known to be spent is told apart from it.
            maybe = result.possibly_spent
            assert (maybe.tokens.output, maybe.model_calls) == (100, 1)
            assert result.usage.total - maybe.tokens.total == 2 * 15
            assert result.model_calls == 3
            assert f"possibly spent up to {maybe.tokens.total:,} tokens" in summary(result)
            assert json.loads(as_json(result))["possibly_spent"]["calls"] == 1


@tool
async def look(port: str) -> str:
    """Look something up."""
    return f"{port}: 6.9 m"


async def test_tool_calls_are_counted_by_the_name_of_the_tool(backend: FaultyBackend) -> None:
    def turn(request: ModelRequest) -> Item:
        if isinstance(request.items[-1], FunctionCallOutput):
            return Message.assistant("done")
        return FunctionCall(name="look", arguments={"port": "Brest"})

    flow = sequence(
        loop(call_model(tools=[look]), until=until.no_tool_calls(), id="one"),
        loop(call_model(tools=[look]), until=until.no_tool_calls(), id="two"),
    )
    budget = Budget(per_tool={"look": 1})
    for dies_at in range(2, 12):
        kept = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        result: Any = None
        with kept.outlived():
            result = await harness(kept, model=ScriptedModel(*[turn] * 9)).run(
                flow, "hi", run_id="r", budget=budget, on_error="result"
            )
        if result is None:
            kept.revive()
            result = await harness(kept, model=ScriptedModel(*[turn] * 9)).resume("r", flow, on_error="result")
        assert result.status == "budget_exceeded"
        assert isinstance(result.error, errors.BudgetExceeded)
        assert result.error.dimension == "per_tool:look"


# -- forks


async def test_a_fork_goes_on_from_where_it_was_made(backend: FaultyBackend, ledger: Ledger) -> None:
    flow = sequence(*[ledger.step(name) for name in "abc"])
    first = await begin(backend, flow)
    assert first is not None
    ledger.take()
    made = harness(backend)
    records = await made.runs.journal("r")
    positions = [at for at, record in enumerate(records, 1) if type(record).__name__ == "StepFinished"]
    forked = await made.fork("r", at=positions[1])
    assert (await made.runs.get(forked)).status == "interrupted"
    assert (await made.resume(forked, flow)).value == 4
    assert ledger.take() == ["c"]
    whole = await made.fork("r", at=first.checkpoint)
    assert (await made.resume(whole, flow)).value == 4
    assert (await made.resume(await made.fork("r"), flow)).value == 4
    assert ledger.take() == []
    with pytest.raises(errors.PositionConflict):
        await made.fork("r", at=10_000)
    with pytest.raises(errors.RunNotFound):
        await made.fork("s")
