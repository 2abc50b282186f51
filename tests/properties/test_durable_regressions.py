"""Small programs that once came out wrong when they were killed and resumed, each with the rule that it broke."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define

from noetic_py import (
    Budget,
    Channel,
    Context,
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
    call_model,
    errors,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend, Record
from noetic_py.journal.records import AttemptFailed, StepFinished
from noetic_py.steps.flow import Settled
from noetic_py.testing import FaultyBackend, ScriptedModel, assert_resumable_everywhere
from noetic_py.testing.faults import When
from noetic_py.testing.ledger import attempt_of
from noetic_py.testing.resumable import ResumeCheck, kill_points

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]
WHENS: tuple[When, ...] = ("before", "after")


def texts(items: Sequence[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


def harness(backend: Any, **options: Any) -> Any:
    return Harness(plugins=(), checkpoints=backend, **options)


async def killed(flow: AnyStep, at: int, when: When = "before", **options: Any) -> tuple[FaultyBackend, Any]:
    """A run that was killed, and the result of its resumption."""
    backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
    with backend.outlived():
        await harness(backend).run(flow, 1, run_id="r", **options)
    assert backend.dead
    backend.revive()
    return backend, await harness(backend).resume("r", flow, on_error="result")


async def unkilled(flow: AnyStep, **options: Any) -> tuple[FaultyBackend, RunResult[Any, Any]]:
    backend = FaultyBackend(InMemoryBackend())
    return backend, await harness(backend).run(flow, 1, run_id="r", on_error="result", **options)


@step
async def child(x: int, ctx: Ctx) -> int:
    ctx.items.append(Message.assistant(f"child {x}"))
    ctx.state["n"] = int(ctx.state.get_as("n", int) or 0) + x
    return x + 1


@step
async def fail(x: int) -> int:
    raise ValueError(f"no {x}")


# -- a body that starts again


async def test_what_a_body_says_before_a_child_that_is_not_run_again() -> None:
    @step
    async def body(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("before"))
        y = await child(x, ctx)
        ctx.items.append(Message.assistant("after"))
        return await child(y, ctx)

    await assert_resumable_everywhere(lambda: body, 1)


@pytest.mark.parametrize("ends", ["failed", "cancelled"])
async def test_a_process_that_does_not_come_as_far_as_another_shows_all_that_that_has_written(ends: str) -> None:
    """The conversation was what the journal says, and the state what this process had come to itself."""
    again, here = False, anyio.Event()

    @step
    async def body(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("before"))
        ctx.state["before"] = x
        if again and ends == "failed":
            raise ValueError
        if again:
            here.set()
            await anyio.sleep_forever()
        return await child(x, ctx)

    backend = FaultyBackend(InMemoryBackend(), dies_at=2, when="after")
    with backend.outlived():
        await harness(backend).run(body, 1, run_id="r")
    backend.revive()
    again = True
    found: list[RunResult[Any, Any] | None] = []

    async def goes_on(it: Any) -> None:
        found.append(await it.resume("r", body, on_error="result"))

    async with harness(backend) as it, anyio.create_task_group() as group:
        if ends == "cancelled":
            async with it.resume_stream("r", body) as stream:
                await here.wait()
            found.append(stream.outcome)
        else:
            group.start_soon(goes_on, it)
    (left,) = found
    assert left is not None
    assert left.status == ends
    assert texts(left.items) == ["before", "child 1"]
    assert left.state == StateBag({"before": 1, "n": 1})


async def test_what_a_tool_has_done_to_the_state_is_not_lost_with_its_round() -> None:
    @tool
    async def note(ctx: Ctx, x: int) -> str:
        """Note it."""
        ctx.state["notes"] = [*(ctx.state.get_as("notes", list) or []), x]
        ctx.items.append(Message.assistant("a tool's own"))
        return "noted"

    def turn(request: ModelRequest) -> Any:
        if isinstance(request.items[-1], FunctionCallOutput):
            return "done"
        return [FunctionCall(name="note", arguments={"x": x}) for x in (1, 2)]

    def made(backend: CheckpointBackend) -> Harness[Memory]:
        return Harness(plugins=(), checkpoints=backend, model=ScriptedModel(*[turn] * 9))

    await assert_resumable_everywhere(
        lambda: loop(call_model(tools=[note]), until=until.no_tool_calls()), "go", make=made
    )


@define
class Rows:
    """A state with a list."""

    rows: list[int]


async def test_a_list_of_the_state_that_a_body_holds_while_a_child_is_not_run_again() -> None:
    @step
    async def push(x: int, ctx: Context[Memory, Rows]) -> int:
        ctx.state.rows.append(x)
        return x

    @step
    async def body(x: int, ctx: Context[Memory, Rows]) -> int:
        rows = ctx.state.rows
        await push(1, ctx)
        rows.append(2)
        await push(3, ctx)
        return len(rows)

    await assert_resumable_everywhere(lambda: body, 1, state=Rows([]))


async def test_a_list_as_the_state() -> None:
    @step
    async def push(x: int, ctx: Context[Memory, list[int]]) -> int:
        ctx.state.append(x)
        return x + 1

    await assert_resumable_everywhere(lambda: sequence(push, push, push), 1, state=[0])


@step
async def push(x: int, ctx: Context[Memory, Rows]) -> int:
    ctx.state.rows.append(x)
    return x + 1


async def test_what_a_step_appended_is_there_once_when_its_parent_fails_again() -> None:
    """The parent's failure is recorded, the run's end is not: what the child appended was put into the state twice."""

    @step
    async def body(x: int, ctx: Context[Memory, Rows]) -> int:
        await push(x, ctx)
        ctx.state.rows.append(8)
        return await fail(x, ctx)

    await assert_resumable_everywhere(lambda: body, 1, state=Rows([]))
    await assert_resumable_everywhere(lambda: spawn(sequence(push, body), state="share", id="w"), 1, state=Rows([]))


@pytest.mark.parametrize("ends", ["fails", "completes", "aborts"])
async def test_what_a_step_beside_the_flow_appended_is_there_once_when_it_ends_again(ends: str) -> None:
    @step
    async def last(x: int, ctx: Context[Memory, Rows]) -> int:
        if ends == "fails":
            return await fail(x, ctx)
        (ctx.complete if ends == "completes" else ctx.abort)("enough")
        return x

    side = sequence(push, last, id="side")

    @step
    async def body(x: int, ctx: Context[Memory, Rows]) -> list[int]:
        ended: RunResult[Any, Any] = await ctx.spawn_detached(side, x).wait()
        await push(x, ctx)
        return list(ended.state.rows)

    await assert_resumable_everywhere(lambda: body, 1, state=Rows([]))


# -- spawns


@pytest.mark.parametrize("state", ["share", "copy", "deepcopy", "new"])
@pytest.mark.parametrize("items", ["share", "copy", "new", "view"])
async def test_a_spawn_leaves_what_it_shares_and_nothing_else(state: Any, items: Any) -> None:
    @step
    async def push(x: int, ctx: Ctx) -> int:
        ctx.state["rows"] = [*(ctx.state.get_as("rows", list) or []), x]
        ctx.items.append(Message.assistant(f"pushed {x}"))
        return x + 1

    def flow() -> AnyStep:
        return sequence(push, spawn(sequence(push, push), state=state, items=items, id="w"), push)

    await assert_resumable_everywhere(flow, 1)


@pytest.mark.parametrize("kind", ["complete", "abort"])
async def test_a_spawn_that_was_stopped_leaves_what_its_steps_had_done(kind: str) -> None:
    @step
    async def stop(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("last"))
        if kind == "complete":
            ctx.complete(42)
        else:
            ctx.abort("enough")
        return x

    @step
    async def careful(x: int, ctx: Ctx) -> int:
        try:
            return await spawn(sequence(child, stop, fail), state="share", items="share", id="w")(x, ctx)
        except errors.Aborted:
            return -1

    await assert_resumable_everywhere(lambda: sequence(careful, child), 1)


async def test_a_stop_of_an_attempt_that_failed_stops_no_later_one() -> None:
    @step
    async def stop_first(x: int, ctx: Ctx) -> int:
        tries = [node.attempt for node in _frames(ctx)]
        if max(tries) == 1:
            ctx.abort("the first one")
        return x

    inner = spawn(sequence(stop_first, child), id="w")
    flow = sequence(inner, child).with_options(
        retry=Retry(2, initial=0, on=lambda error: not isinstance(error, errors.ReplayDiverged))
    )
    backend, expected = await unkilled(flow)
    # An abort is not tried again, so the retry is of a body that makes another failure of it.
    assert isinstance(expected.error, errors.Aborted)

    @step(retry=Retry(2, initial=0))
    async def body(x: int, ctx: Ctx) -> int:
        try:
            return await inner(x, ctx)
        except errors.Aborted:
            raise ValueError("aborted") from None

    backend, expected = await unkilled(body)
    assert expected.status == "completed"
    for at in range(2, backend.appends + 1):
        for when in WHENS:
            _, result = await killed(body, at, when)
            assert (result.status, result.output_or(None)) == (expected.status, expected.value)


def _frames(ctx: Any) -> list[Any]:
    """A step in flight and those around it."""
    return [ctx] if ctx.up is None else [ctx, *_frames(ctx.up)]


# -- failures


async def test_what_finished_before_a_failure_that_nobody_handles_is_seen() -> None:
    @step
    async def body(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("before"))
        y = await child(x, ctx)
        ctx.items.append(Message.assistant("never written"))
        return await fail(y, ctx)

    flow = sequence(child, sequence(body, child), child)
    backend, expected = await unkilled(flow)
    assert texts(expected.items) == ["child 1", "before", "child 2"]
    for at in range(2, backend.appends):
        for when in WHENS:
            _, result = await killed(flow, at, when)
            assert (texts(result.items), result.state) == (texts(expected.items), expected.state)


async def test_what_settle_gives_can_be_stored_and_is_the_same_error() -> None:
    @step
    async def look(outcomes: list[Settled[int]]) -> list[str]:
        return [str(each.value) if each.error is None else str(each.error) for each in outcomes]

    paths: list[AnyStep] = [child, fail]
    await assert_resumable_everywhere(lambda: sequence(settle(paths, id="s"), look), 1)


async def test_the_first_failure_of_a_section_is_that_of_the_journal() -> None:
    """Two paths fail before the section does; on resume the earlier one's failure is raised, and no path starts."""
    ran: list[str] = []

    def failing(name: str, ticks: int) -> AnyStep:
        @step(id=name)
        async def body(x: int) -> int:
            ran.append(name)
            for _ in range(ticks):
                await checkpoint()
            raise ValueError(name)

        return body

    flow = parallel([failing("late", 1), failing("early", 0)], id="p")
    for at in range(2, 6):
        for when in WHENS:
            ran.clear()
            backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
            with backend.outlived():
                await harness(backend).run(flow, 1, run_id="r", on_error="result")
            if not backend.dead:
                continue
            backend.revive()
            journal = await harness(backend).runs.journal("r")
            failed = [
                record.path[-1] for record in journal if isinstance(record, AttemptFailed) and len(record.path) == 2
            ]
            ended = len(journal) and type(journal[-1]).__name__ == "RunEnded"
            ran.clear()
            result = await harness(backend).resume("r", flow, on_error="result")
            assert isinstance(result.error, errors.ParallelFailed)
            if failed and not ended:
                assert result.error.first.path[-1] == failed[0]
                assert ran == []


async def test_what_stood_before_an_attempt_that_is_void_was_written() -> None:
    """A grandchild had finished in the attempt that failed first, and so all that stood around it was written."""

    @step(retry=Retry(2, initial=0))
    async def twice(x: int, ctx: Ctx) -> int:
        attempt = _frames(ctx)[0].attempt
        if attempt == 1:
            await child(x, ctx)
        raise ValueError(f"no {attempt}")

    @step
    async def body(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("before"))
        ctx.state["before"] = x
        return await twice(x, ctx)

    backend, expected = await unkilled(body)
    assert (texts(expected.items), expected.state) == (["before"], StateBag({"before": 1}))
    for at in range(2, backend.appends):
        for when in WHENS:
            _, result = await killed(body, at, when)
            assert (texts(result.items), result.state) == (texts(expected.items), expected.state), (at, when)


@pytest.mark.parametrize("writes", ["nothing", "all of it", "a child"])
@pytest.mark.parametrize("ends", ["fails", "is given up"])
async def test_a_question_alone_writes_no_state_of_the_bodies_around_it(writes: str, ends: str) -> None:
    """The next process wrote it all, as after a step that had finished."""

    @step(retry=Retry(2, initial=0))
    async def asks(x: int, ctx: Context[Memory, Rows]) -> int:
        with suppress(errors.ModelUnavailable):
            await call_model()(f"attempt {attempt_of(ctx)[-1][1]}", ctx)
        first = attempt_of(ctx)[-1][1] == 1
        if writes == "all of it" and first:
            await ctx.checkpoint()
        elif writes == "a child" and first:
            await push(x, ctx)
        if ends == "is given up" and not first:
            scopes[-1].cancel()
            await anyio.sleep_forever()
        return await fail(x, ctx)

    @step
    async def body(x: int, ctx: Context[Memory, Rows]) -> int:
        ctx.items.append(Message.assistant("before"))
        ctx.state.rows.append(9)
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await asks(x, ctx)
        return await fail(x, ctx)

    def made(backend: CheckpointBackend) -> Harness[Memory]:
        down = ScriptedModel(*[errors.ModelUnavailable("down", model="m")] * 9)
        return Harness(plugins=(), checkpoints=backend, model=down)

    scopes: list[anyio.CancelScope] = []
    check = ResumeCheck(lambda: body, 1, Rows([]), made)
    expected, appends = await check.whole()
    assert expected.parts["state"] == {"rows": [] if writes == "nothing" else [9]}
    # A run that has failed for good would be tried again.
    for at, when in kill_points(appends)[:-1]:
        await check.kill(at, when, expected)


async def test_what_a_body_did_after_a_failure_that_it_had_handled_goes_with_it() -> None:
    @step
    async def body(x: int, ctx: Ctx) -> int:
        ctx.state["looked"] = True
        try:
            await sequence(child, fail)(x, ctx)
        except errors.StepFailed:
            ctx.state["never written"] = True
        return await fail(x, ctx)

    backend, expected = await unkilled(body)
    assert expected.state == StateBag({"looked": True})
    for at in range(2, backend.appends):
        for when in WHENS:
            _, result = await killed(body, at, when)
            assert (texts(result.items), result.state) == (texts(expected.items), expected.state), (at, when)


# -- races


async def test_the_winner_of_a_race_is_the_one_that_is_first_in_the_journal() -> None:
    """Both paths end while one commit is under way, and are woken in another order."""
    backend = InMemoryBackend()

    def path(number: int) -> AnyStep:
        @step(id=f"path{number}")
        async def body(x: int) -> int:
            return number

        return body

    for _ in range(30):
        flow = race([path(number) for number in range(4)], id="p")
        result = await harness(backend).run(flow, 1)
        journal = await harness(backend).runs.journal(result.run_id)
        ended = [record for record in journal if isinstance(record, StepFinished) and len(record.path) == 2]
        assert result.value == int(ended[0].path[-1].removeprefix("path")[0])


async def test_what_the_losers_of_a_race_have_taken_comes_back() -> None:
    queue: Channel[int] = Channel("queue", int)

    @step
    async def fill(x: int, ctx: Ctx) -> int:
        await ctx.send(queue, 7)
        return x

    @step
    async def take(x: int, ctx: Ctx) -> int:
        return await ctx.recv(queue, timeout=5)

    paths: list[AnyStep] = [sequence(take, hang), slowly]
    flow = sequence(fill, race(paths, id="p"), take)
    backend, expected = await unkilled(flow)
    assert expected.value == 7
    for at in range(2, backend.appends + 1):
        for when in WHENS:
            with anyio.fail_after(20):
                _, result = await killed(flow, at, when)
            assert result.value == 7, (at, when)


# -- loops


async def test_a_loop_that_a_step_has_ended_stays_ended() -> None:
    @step
    async def enough(x: int, ctx: Ctx) -> int:
        if x >= 3:
            ctx.stop_loop(100)
        return x

    @step
    async def body(x: int, ctx: Ctx) -> int:
        return await enough(await child(x, ctx), ctx)

    await assert_resumable_everywhere(lambda: loop(body, until=until.max_rounds(9), max_iterations=20), 1)


async def test_a_loop_that_was_told_to_end_before_an_inner_one_was() -> None:
    @step
    async def enough(x: int, ctx: Ctx) -> int:
        ctx.stop_loop(x + 100)
        return x

    inner = loop(enough, until=until.max_rounds(9), id="inner")
    await assert_resumable_everywhere(
        lambda: loop(sequence(enough, inner, child), until=until.max_rounds(3), id="outer"), 1
    )


async def test_a_loop_ends_with_the_last_word() -> None:
    @step
    async def last(x: int, ctx: Ctx) -> int:
        ctx.stop_loop(200)
        return x

    @step
    async def body(x: int, ctx: Ctx) -> int:
        ctx.stop_loop(100)
        return await sequence(last, child)(x, ctx)

    await assert_resumable_everywhere(lambda: loop(sequence(body, child), until=until.max_rounds(3), id="l"), 1)


@step
async def hang(x: int) -> int:
    await anyio.sleep_forever()
    return x


@step
async def slowly(x: int) -> int:
    for _ in range(40):
        await checkpoint()
    return x + 1


@step
async def enough(x: int, ctx: Ctx) -> int:
    ctx.stop_loop(100)
    return x


@step
async def lost(x: int, ctx: Ctx) -> int:
    return await race([sequence(enough, hang), sequence(slowly, child)], id="p")(x, ctx)


@step
async def cancelled(x: int, ctx: Ctx) -> int:
    @step
    async def enough_at_last(x: int, ctx: Ctx) -> int:
        ctx.stop_loop(100)
        scope.cancel()
        await anyio.sleep_forever()
        return x

    with anyio.CancelScope() as scope:
        await enough_at_last(x, ctx)
    return await child(x + 1, ctx)


@step
async def failed(x: int, ctx: Ctx) -> int:
    try:
        return await sequence(enough, fail)(x, ctx)
    except errors.StepFailed:
        return await child(x + 1, ctx)


@pytest.mark.parametrize("body", [lost, cancelled, failed])
async def test_a_loop_is_not_ended_by_a_step_that_came_to_nothing(body: AnyStep) -> None:
    flow: AnyStep = loop(body, until=until.max_rounds(2), id="l")
    backend, expected = await unkilled(flow)
    assert expected.value == 5
    for at in range(2, backend.appends + 1):
        for when in WHENS:
            with anyio.fail_after(20):
                _, result = await killed(flow, at, when)
            assert (result.value, texts(result.items)) == (5, texts(expected.items)), (at, when)


async def test_a_loop_judges_by_the_step_that_was_last_and_not_by_the_last_that_was_a_model() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    @step
    async def after(x: object) -> None:
        """The round's last step, which calls no tools."""

    def made(backend: CheckpointBackend) -> Harness[Memory]:
        call = FunctionCall(name="look", arguments={})
        return Harness(plugins=(), checkpoints=backend, model=ScriptedModel(*[call] * 9))

    def flow() -> AnyStep:
        return loop(sequence(call_model(tools=[look]), after), until=until.no_tool_calls(), max_iterations=3)

    await assert_resumable_everywhere(flow, "go", make=made)


# -- work beside the flow


async def test_a_body_that_starts_again_has_not_forgotten_the_work_beside_it() -> None:
    @step
    async def side(x: int, ctx: Ctx) -> int:
        await child(x, ctx)
        return x * 10

    @step
    async def body(x: int, ctx: Ctx) -> int:
        work = ctx.spawn_detached(side, x)
        y = await child(x, ctx)
        ended = await work.wait()
        return await child(y + ended.value, ctx)

    flow = sequence(child, body, child)
    for at in range(2, 20):
        for when in WHENS:
            backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
            with backend.outlived():
                async with harness(backend) as owner:
                    await owner.run(flow, 1, run_id="r")
            if not backend.dead:
                return
            backend.revive()
            async with harness(backend) as owner:
                result = await owner.resume("r", flow)
            assert (result.value, result.steps) == (25, 7), (at, when)
            assert texts(result.items) == ["child 1", "child 2", "child 23", "child 24"]


@pytest.mark.parametrize("ends", ["returns", "completes", "aborts", "fails"])
async def test_work_beside_the_flow_that_had_ended_is_told_of_as_it_was(ends: str) -> None:
    @step
    async def last(x: int, ctx: Ctx) -> int:
        if ends == "completes":
            ctx.complete(99)
        elif ends == "aborts":
            ctx.abort("enough")
        elif ends == "fails":
            raise ValueError("no")
        return x

    side = sequence(child, last, id="side")

    @step
    async def body(x: int, ctx: Ctx) -> str:
        ended = await ctx.spawn_detached(side, x, budget=Budget(steps=2)).wait()
        await child(x, ctx)
        told = (ended.status, ended.output_or(None), ended.reason, ended.steps, texts(ended.items), ended.state)
        return f"{told}"

    flow = sequence(child, body)
    async with harness(InMemoryBackend()) as owner:
        expected = await owner.run(flow, 1)
    assert "['child 2'], StateBag({'n': 3})" in expected.value
    for at in range(2, 20):
        for when in WHENS:
            backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
            with backend.outlived():
                async with harness(backend) as owner:
                    await owner.run(flow, 1, run_id="r")
            if not backend.dead:
                return
            backend.revive()
            async with harness(backend) as owner:
                result = await owner.resume("r", flow)
            assert (result.value, result.steps) == (expected.value, expected.steps), (at, when)


async def test_work_that_nobody_starts_again_is_named() -> None:
    @step
    async def side(x: int, ctx: Ctx) -> int:
        await child(x, ctx)
        await anyio.sleep_forever()
        return x

    @step
    async def body(x: int, ctx: Ctx) -> int:
        ctx.spawn_detached(side, x)
        return await child(x, ctx)

    backend = FaultyBackend(InMemoryBackend(), dies_at=5, when="after")
    flow = sequence(body, child, child)
    with backend.outlived():
        async with harness(backend) as owner:
            await owner.run(flow, 1, run_id="r")
    backend.revive()
    with pytest.warns(errors.NoeticWarning, match=r"body/side\[detached\] had not ended"):
        assert (await harness(backend).resume("r", flow)).value == 4


# -- counts


async def test_what_a_budget_has_refused_is_not_counted_as_made() -> None:
    @step
    async def careful(x: int, ctx: Ctx) -> int:
        refused = 0
        for _ in range(3):
            try:
                await call_model()("hi", ctx)
            except errors.BudgetExceeded:
                refused += 1
        return refused

    def made(backend: CheckpointBackend) -> Harness[Memory]:
        return Harness(plugins=(), checkpoints=backend, model=ScriptedModel(*["yes"] * 9))

    backend = FaultyBackend(InMemoryBackend())
    expected = await made(backend).run(careful, 1, run_id="r", budget=Budget(model_calls=1))
    assert (expected.value, expected.model_calls, expected.steps) == (2, 1, 4)
    for at in range(2, backend.appends):
        kept = FaultyBackend(InMemoryBackend(), dies_at=at, when="after")
        with kept.outlived():
            await made(kept).run(careful, 1, run_id="r", budget=Budget(model_calls=1))
        kept.revive()
        result = await made(kept).resume("r", careful)
        assert result.model_calls == 1
        assert result.value == 2


async def test_a_body_that_was_cancelled_is_counted_by_the_next_process() -> None:
    scopes: list[anyio.CancelScope] = []

    @step
    async def wait(x: int) -> int:
        # Its time is over once it has begun, however long that takes.
        scopes[-1].deadline = anyio.current_time()
        await anyio.sleep_forever()
        return x

    @step
    async def patient(x: int, ctx: Ctx) -> int:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await wait(x, ctx)
        return x

    flow = sequence(patient, child, child)
    backend, expected = await unkilled(flow)
    assert expected.steps == 4
    for at in range(3, backend.appends):
        _, result = await killed(flow, at)
        assert result.steps == 4


async def test_an_attempt_that_was_void_does_not_weigh_on_the_budget_of_the_next() -> None:
    tries: list[int] = []

    @step
    async def flaky(x: int) -> int:
        tries.append(x)
        if len(tries) < 3:
            raise ValueError("not yet")
        return x

    inner = sequence(child, flaky).with_options(budget=Budget(steps=2))
    flow = sequence(inner, child).with_options(retry=Retry(3, initial=0))
    backend, expected = await unkilled(flow)
    assert expected.status == "completed"
    for at in range(2, backend.appends):
        for when in WHENS:
            tries.clear()
            _, result = await killed(flow, at, when)
            assert result.status == "completed", (at, when, result.error)


# -- what may run only once


async def test_an_attempt_of_a_once_step_that_failed_has_an_outcome() -> None:
    tries: list[int] = []

    @step(replay="once", retry=Retry(2, initial=0))
    async def pay(x: int) -> int:
        tries.append(x)
        if len(tries) == 1:
            raise ValueError("refused")
        return x

    _, result = await killed(pay, 3, "after")
    assert result.status == "completed"
    assert tries == [1, 1]


async def test_what_a_once_step_has_left_is_seen_in_the_next_attempt_around_it() -> None:
    tries: list[int] = []

    @step(replay="once")
    async def pay(x: int, ctx: Ctx) -> int:
        ctx.items.append(Message.assistant("paid"))
        ctx.state["paid"] = True
        return x

    @step
    async def flaky(x: int) -> int:
        tries.append(x)
        if len(tries) == 1:
            raise ValueError("once")
        return x

    flow = sequence(child, pay, flaky).with_options(retry=Retry(2, initial=0))
    _, result = await unkilled(flow)
    assert (texts(result.items), result.state) == (["child 1", "paid"], StateBag({"n": 1, "paid": True}))


# -- what is stored


@step
async def measure(text: str) -> int:
    return len(text)


async def test_an_output_of_another_type_than_declared_does_not_keep_a_run_from_going_on() -> None:
    @step
    async def lies(x: int) -> int:
        nothing: Any = None
        number: int = nothing
        return number

    @step
    async def last(x: int | None) -> str:
        return f"{x}"

    await assert_resumable_everywhere(lambda: sequence(lies, last, measure), 1)


@define
class Animal:
    """A declared class."""

    name: str


@define
class Dog(Animal):
    """One below it, with the same fields."""


async def test_an_output_of_a_class_below_the_declared_one_stays_of_that_class() -> None:
    @step
    async def find(x: int) -> Animal:
        return Dog("Rex")

    @step
    async def tell(animal: Animal) -> str:
        return type(animal).__name__

    await assert_resumable_everywhere(lambda: sequence(find, tell, measure), 1)


async def test_a_value_as_deep_as_values_may_be_is_read_again() -> None:
    @step
    async def deep(x: int) -> Any:
        value: Any = x
        for _ in range(60):
            value = [value]
        return value

    @step
    async def count(value: Any) -> int:
        return len(repr(value))

    await assert_resumable_everywhere(lambda: sequence(deep, count), 1)


async def test_a_decision_that_cannot_be_stored_fails_its_step_and_no_other() -> None:
    def prepare(output: int, verdict: object, ctx: object) -> Any:
        return object()

    @step
    async def careful(x: int, ctx: Ctx) -> str:
        try:
            await loop(child, until=until.max_rounds(3), prepare_next=prepare, id="again")(x, ctx)
        except errors.CodecError as error:
            return "/".join(error.path)
        return ""

    _, result = await unkilled(sequence(child, careful, id="s"))
    assert result.value == "s/careful/again"


async def test_a_commit_that_is_refused_ends_the_run_for_whoever_catches_it() -> None:
    """Nothing runs after it in this process: what ran would not be kept."""
    ran: list[str] = []

    class Full(FaultyBackend):
        async def append(self, run_id: str, *, records: Sequence[Record], **options: Any) -> int:
            if self.appends == 2:
                raise errors.CheckpointFailed("the disk is full")
            return await super().append(run_id, records=records, **options)

    @step
    async def noted(x: int) -> int:
        ran.append("noted")
        return x

    @step
    async def stubborn(x: int, ctx: Ctx) -> int:
        for _ in range(3):
            try:
                await noted(x, ctx)
            except errors.CheckpointFailed:
                ran.append("refused")
        return x

    result = await harness(Full(InMemoryBackend())).run(stubborn, 1, on_error="result")
    assert isinstance(result.error, errors.CheckpointFailed)
    assert ran == ["noted", "noted", "refused", "refused"]


async def test_other_code_does_not_spoil_the_run_for_the_code_it_was_started_with() -> None:
    @step
    async def other(x: int) -> int:
        return x

    right = sequence(child, child, fail, id="flow")
    wrong = sequence(child, other, fail, id="flow")
    backend = FaultyBackend(InMemoryBackend(), dies_at=4)
    with backend.outlived():
        await harness(backend).run(right, 1, run_id="r")
    backend.revive()
    with pytest.raises(errors.ReplayDiverged):
        await harness(backend).resume("r", wrong)
    with pytest.raises(errors.StepFailed, match="no 3"):
        await harness(backend).resume("r", right)


# -- calls


async def test_a_call_that_was_in_flight_is_not_forgotten_for_one_that_was_refused_in_its_place() -> None:
    backend = FaultyBackend(InMemoryBackend())
    options: Any = {"on_error": "result", "model_settings": {"max_output_tokens": 10}}
    budget = Budget(tokens=20)
    for at in (2, 1):
        backend.revive(dies_at=at, when="after")
        owner = harness(backend, model=ScriptedModel(usage=TokenUsage(5, 10)))
        with backend.outlived():
            await (
                owner.run(call_model(), "hi", run_id="r", budget=budget, **options)
                if at == 2
                else owner.resume("r", call_model(), **options)
            )
        assert backend.dead
    backend.revive()
    result = await harness(backend, model=ScriptedModel()).resume("r", call_model(), **options)
    assert (result.status, result.usage.total) == ("budget_exceeded", 15)


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
async def test_no_kill_lets_a_run_spend_more_than_its_budget(limit: int) -> None:
    """The meter is the provider's own; a call in flight at a kill is counted with the most it could have cost."""
    # What is counted for the shortest request, so that no call uses more than was reserved for it.
    usage = TokenUsage(5, 10)

    def flow() -> AnyStep:
        return parallel(
            [
                sequence(*[call_model(id=f"ask{path}{number}") for number in range(3)], id=f"path{path}")
                for path in (0, 1)
            ],
            id="p",
        )

    async def lived(kills: list[int]) -> tuple[int, Any, int]:
        backend = FaultyBackend(InMemoryBackend())
        meter = 0
        result: Any = None
        for at in [*kills, None]:
            backend.revive(dies_at=at, when="after")
            model = ScriptedModel(*["yes"] * 99, usage=usage)
            options: Any = {"on_error": "result", "model_settings": {"max_output_tokens": 10}}
            with backend.outlived():
                head = await backend.head("r")
                owner = harness(backend, model=model)
                if head is None or not head.position:
                    budget = Budget(tokens=limit * 40)
                    result = await owner.run(flow(), "hi", run_id="r", budget=budget, **options)
                else:
                    result = await owner.resume("r", flow(), **options)
            meter += len(model.requests) * usage.total
            if not backend.dead:
                break
        return meter, result, backend.appends

    _, _, appends = await lived([])
    for at in range(1, appends + 1):
        for more in ([], [2], [1, 1]):
            meter, result, _ = await lived([at, *more])
            assert meter <= limit * 40
            assert meter <= result.usage.total <= limit * 40


async def test_a_run_of_its_own_is_started_once_wherever_its_starter_dies() -> None:
    """Found by reading: the body that runs again after a crash started a second run beside the first."""
    worked: list[str] = []

    @step(version="1")
    async def apart(value: int, ctx: Ctx) -> int:
        worked.append(ctx.run_id)
        return value * 10

    @step(version="1")
    async def child(value: int, ctx: Ctx) -> int:
        return value + 1

    @step(version="1")
    async def starter(value: int, ctx: Ctx) -> int:
        one = ctx.spawn_detached(apart, value, owner="harness")
        two = ctx.spawn_detached(apart, value + 1, owner="harness")
        value = await child(value, ctx)
        return value + (await one.wait()).value + (await two.wait()).value

    deaths = 0
    for at in range(2, 40):
        for when in WHENS:
            backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
            # The starter of a run that died in the middle of its beginning gets to know of it here, as nowhere else.
            with suppress(errors.RunBusy, errors.StepFailed), backend.outlived():
                async with harness(backend) as it:
                    await it.run(starter, 1, run_id="r")
            deaths += backend.dead
            backend.revive()
            async with harness(backend) as it:
                result = await it.resume("r", starter)
            assert result.value == 2 + 10 + 20
            entries = await backend.list()
            assert len(entries) == 3, (at, when)
            assert {entry.status for entry in entries} == {"completed"}
        if not deaths % 2 and at > deaths:
            break
    assert deaths > 8
    assert len(set(worked)) == 2


async def test_a_run_of_its_own_that_goes_on_is_found_by_the_starter_that_begins_again() -> None:
    go, begun = anyio.Event(), anyio.Event()
    started: list[str] = []

    @step(version="1")
    async def apart(value: int, ctx: Ctx) -> int:
        started.append(ctx.run_id)
        begun.set()
        await go.wait()
        return value * 10

    @step(version="1")
    async def starter(value: int, ctx: Ctx) -> int:
        work = ctx.spawn_detached(apart, value, owner="harness")
        await begun.wait()
        if not resumed:
            await anyio.sleep_forever()
        go.set()
        return (await work.wait()).value

    resumed: list[bool] = []
    async with harness(InMemoryBackend()) as it:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: it.run(starter, 1, run_id="r"))
            await begun.wait()
            group.cancel_scope.cancel()
        resumed.append(True)
        assert (await it.resume("r", starter)).value == 10
    assert len(started) == 1


@pytest.mark.parametrize("ends", ["verdict", "stop_loop"])
async def test_why_a_flow_ended_is_known_after_it_has_been_replayed(ends: str) -> None:
    """Found by the first example: a resumed run did not say which condition had ended it."""

    @step(version="1")
    async def count(value: int, ctx: Ctx) -> int:
        if ends == "stop_loop" and value == 2:
            ctx.stop_loop()
        return value + 1

    def three(value: int) -> bool:
        return value == 3

    def flow() -> AnyStep:
        inner = loop(count, until=until.verified(three) | until.max_rounds(9), id="inner")
        return sequence(loop(count, until=until.max_rounds(1), id="first"), sequence(inner, id="nested"), id="flow")

    backend = FaultyBackend(InMemoryBackend())
    async with harness(backend) as it:
        first = await it.run(flow(), 0, run_id="r")
        appends = backend.appends
        again = await it.resume("r", flow())
    assert first.reason is not None
    assert again.reason == first.reason
    for at in range(2, appends + 1):
        backend = FaultyBackend(InMemoryBackend(), dies_at=at, when="after")
        with backend.outlived():
            async with harness(backend) as it:
                await it.run(flow(), 0, run_id="r")
        backend.revive()
        async with harness(backend) as it:
            assert (await it.resume("r", flow())).reason == first.reason, at
