"""Runs that are completed with a value, or wrapped up, by another task or another process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest
from attrs import define

from noetic_py import (
    Ask,
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    Message,
    StateBag,
    Step,
    acting_as,
    branch,
    call_model,
    errors,
    loop,
    parallel,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.access import Principal, RoleAccess
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.journal.records import Decision, RunEnded
from noetic_py.testing import FaultyBackend, ScriptedModel
from noetic_py.testing.faults import When

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]
ENDS = ("complete", "wrap_up")
_SCOPE = ("run stops",)


class Waiting:
    """A loop that counts up and then waits, for ever or until it is let go."""

    def __init__(self, most: int = 3) -> None:
        self.there = anyio.Event()
        self.go = anyio.Event()
        self.ran: list[int] = []

        @step
        async def count(n: int, ctx: Ctx) -> int:
            self.ran.append(n)
            if n >= most:
                ctx.items.append(Message.assistant("not kept"))
                self.there.set()
                await self.go.wait()
            ctx.items.append(Message.assistant(f"counted {n}"))
            ctx.state["seen"] = n
            return n + 1

        self.count = count
        self.flow: Step[int, int, Memory, StateBag] = loop(count, until=until.never(), id="counting")


def seen_in(state: StateBag) -> int:
    """The last that was counted, -1 before the first."""
    return int(state["seen"]) if "seen" in state else -1


@step
async def summary(_: object, ctx: Ctx) -> int:
    ctx.items.append(Message.assistant("summed up"))
    return 100 + seen_in(ctx.state)


def wrapped(**limits: Any) -> Budget:
    return Budget(steps=50, reserve=Budget(steps=5), wrap_up=summary, **limits)


def harness(backend: CheckpointBackend | None, **options: Any) -> Harness[Memory]:
    made: Any = Harness
    found: Harness[Memory] = made(plugins=(), checkpoints=backend, **options)
    return found


# ------------------------------------------------------------------------------------------------------ another task


@pytest.mark.parametrize("stored", [False, True])
async def test_a_run_is_completed_with_a_value(stored: bool) -> None:
    waiting = Waiting()
    async with harness(InMemoryBackend() if stored else None) as running:
        handle = running.start(waiting.flow, 0, run_id="r")
        await waiting.there.wait()
        assert handle.complete(42)
        # The first stop holds, and each caller is told.
        assert not handle.complete(43)
        assert not handle.wrap_up("late")
        assert not handle.abort("late")
        assert not handle.interrupt("late")
        result = await handle.result()
        assert (result.status, result.value, result.reason) == ("completed", 42, "completed from outside")
        assert result.state["seen"] == 2
        assert [item.text for item in result.items if isinstance(item, Message)] == [
            "counted 0",
            "counted 1",
            "counted 2",
        ]
        assert not handle.complete(44)
        if stored:
            again = await running.resume("r", waiting.flow)
            assert (again.status, again.value, list(again.items)) == ("completed", 42, list(result.items))
            assert again.state["seen"] == 2
            assert waiting.ran == [0, 1, 2, 3]


async def test_what_came_first_holds() -> None:
    waiting = Waiting()
    async with harness(None) as running:
        handle = running.start(waiting.flow, 0)
        await waiting.there.wait()
        assert handle.abort("enough")
        assert not handle.complete(1)
        assert (await handle.result()).status == "aborted"

        @step
        async def short(n: int) -> int:
            return n

        ended = running.start(short, 5)
        assert (await ended.result()).value == 5
        assert not ended.complete(6)
        assert not ended.wrap_up("late")


async def test_a_run_is_completed_before_it_begins() -> None:
    waiting = Waiting()
    async with harness(InMemoryBackend()) as running:
        for how in ENDS:
            handle = running.start(waiting.flow, 0, run_id=how)
            assert handle.complete(9) if how == "complete" else handle.wrap_up("no time")
            assert not handle.abort("late")
            for result in (await handle.result(), await running.resume(how, waiting.flow)):
                assert (result.status, result.output_or(None)) == ("completed", 9 if how == "complete" else None)
    assert waiting.ran == []


@define
class Report:
    text: str


async def test_a_value_of_another_type_or_one_that_cannot_be_stored_is_refused() -> None:
    gone = anyio.Event()

    @step
    async def report(_: str) -> Report:
        await gone.wait()
        return Report("written")

    @step
    async def anything(_: str) -> object:
        await gone.wait()
        return None

    agent = loop(call_model(ScriptedModel("hi")), until=until.no_tool_calls())
    async with harness(InMemoryBackend()) as running:
        handle = running.start(report, "x")
        with pytest.raises(errors.ConfigError, match="not a valid value of 'report'; expected Report") as refused:
            handle.complete("text")
        assert refused.value.code == "complete"
        assert handle.complete(Report("given"))
        assert (await handle.result()).value == Report("given")

        other = running.start(anything, "x")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(errors.CodecError):
            other.complete(gone)
        assert other.complete([1, 2])
        assert (await other.result()).value == [1, 2]

        said = running.start(agent, "x")
        with pytest.raises(errors.ConfigError, match="expected str"):
            said.complete(5)
        assert said.complete("done")
        assert (await said.result()).value == "done"


@pytest.mark.parametrize("stored", [False, True])
async def test_a_run_finishes_with_the_last_value_of_its_loop(stored: bool) -> None:
    waiting = Waiting()
    async with harness(InMemoryBackend() if stored else None) as running:
        handle = running.start(waiting.flow, 0, run_id="r")
        await waiting.there.wait()
        assert handle.wrap_up("closing time")
        assert not handle.wrap_up("again")
        result = await handle.result()
        assert (result.status, result.value, result.reason) == ("completed", 3, "closing time")
        assert result.state["seen"] == 2
        if stored:
            before = list(await running.runs.journal("r"))
            again = await running.resume("r", waiting.flow)
            assert (again.status, again.value, again.reason) == ("completed", 3, "closing time")
            assert len(await running.runs.journal("r")) == len(before)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_run_finishes_with_the_wrap_up_step_of_its_budget(stored: bool) -> None:
    waiting = Waiting()
    async with harness(InMemoryBackend() if stored else None) as running:
        handle = running.start(waiting.flow, 0, run_id="r", budget=wrapped())
        await waiting.there.wait()
        assert handle.wrap_up("closing time")
        result = await handle.result()
        assert (result.status, result.value, result.steps) == ("completed", 102, 5)
        assert result.text == "summed up"
        if stored:
            again = await running.resume("r", waiting.flow, budget=wrapped())
            assert (again.status, again.value, again.steps) == ("completed", 102, 5)
            assert list(again.items) == list(result.items)


def in_sequence(waiting: Waiting) -> AnyStep:
    @step
    async def before(n: int) -> int:
        return n

    return sequence(before, waiting.flow)


def in_branch(waiting: Waiting) -> AnyStep:
    return branch(lambda n: "count", {"count": waiting.flow}, default=waiting.count)


def in_loop(waiting: Waiting) -> AnyStep:
    return loop(waiting.flow, until=until.never(), id="outer")


def in_spawn(waiting: Waiting) -> AnyStep:
    return spawn(waiting.flow)


@pytest.mark.parametrize("made", [in_sequence, in_branch, in_loop, in_spawn])
@pytest.mark.parametrize("stored", [False, True])
async def test_the_loop_may_stand_where_its_value_is_the_flows(made: Any, stored: bool) -> None:
    waiting = Waiting()
    async with harness(InMemoryBackend() if stored else None) as running:
        handle = running.start(made(waiting), 0, run_id="r")
        await waiting.there.wait()
        assert handle.wrap_up("enough")
        assert (await handle.result()).value == 3
        if stored:
            assert (await running.resume("r", made(waiting))).value == 3


async def test_a_loop_elsewhere_has_no_value_of_the_flows() -> None:
    for side_by_side in (False, True):
        waiting = Waiting()
        made: Any = parallel(waiting.flow, waiting.flow) if side_by_side else sequence(waiting.flow, waiting.count)
        async with harness(None) as running:
            handle = running.start(made, 0)
            await waiting.there.wait()
            assert handle.wrap_up("enough")
            result = await handle.result()
            assert (result.status, result.has_value) == ("completed", False)
            with pytest.raises(errors.NoOutput):
                _ = result.value


async def test_the_wrap_up_of_a_steps_own_budget_is_run_too() -> None:
    waiting = Waiting()
    async with harness(None) as running:
        handle = running.start(waiting.flow.with_options(budget=wrapped()), 0)
        await waiting.there.wait()
        assert handle.wrap_up("enough")
        assert (await handle.result()).value == 102


async def test_a_flow_that_is_done_and_waits_for_what_it_started_finishes_with_its_value() -> None:
    waiting = Waiting()

    @step
    async def starts(n: int, ctx: Ctx) -> str:
        ctx.spawn_detached(waiting.flow, n)
        return "started"

    async with harness(InMemoryBackend()) as running:
        handle = running.start(starts, 0, run_id="r")
        await waiting.there.wait()
        assert handle.wrap_up("enough")
        assert (await handle.result()).value == "started"
        assert (await running.resume("r", starts)).value == "started"


@pytest.mark.parametrize("how", ["complete", "abort"])
async def test_a_wrap_up_can_be_stopped_and_one_that_fails_is_a_failure(how: str) -> None:
    waiting = Waiting()
    begun = anyio.Event()

    @step
    async def slow(_: object) -> int:
        begun.set()
        await anyio.sleep_forever()
        return 1

    @step
    async def broken(_: object) -> int:
        raise ValueError("no")

    async with harness(None) as running:
        handle = running.start(waiting.flow, 0, budget=Budget(steps=50, reserve=Budget(steps=5), wrap_up=slow))
        await waiting.there.wait()
        assert handle.wrap_up("enough")
        await begun.wait()
        assert not handle.wrap_up("again")
        assert handle.complete(7) if how == "complete" else handle.abort("stop")
        result = await handle.result()
        assert result.status == ("completed" if how == "complete" else "aborted")
        assert result.output_or(None) == (7 if how == "complete" else None)

        again = Waiting()
        failing = running.start(
            again.flow, 0, budget=Budget(steps=50, reserve=Budget(steps=5), wrap_up=broken), on_error="result"
        )
        await again.there.wait()
        assert failing.wrap_up("enough")
        failed = await failing.result()
        assert (failed.status, failed.has_value) == ("failed", False)
        assert isinstance(failed.error, errors.StepFailed)


async def test_open_calls_are_closed_and_who_watches_may_complete() -> None:
    there = anyio.Event()

    @tool
    async def hang() -> str:
        """Wait."""
        there.set()
        await anyio.sleep_forever()
        return ""

    agent = loop(call_model(ScriptedModel(FunctionCall(name="hang", arguments={})), tools=[hang]), until=until.never())
    async with harness(InMemoryBackend()) as running, running.stream(agent, "go", run_id="r") as stream:
        await there.wait()
        assert stream.complete("given")
        result = await stream.result()
    assert result.value == "given"
    assert [item.type for item in result.items] == ["message", "function_call", "function_call_output"]
    assert [item.text for item in result.items if isinstance(item, FunctionCallOutput)] == [
        "Not finished: completed: completed from outside"
    ]


# ------------------------------------------------------------------------------------------------- another process


@pytest.mark.parametrize("how", ENDS)
async def test_another_process_ends_a_run_that_goes_on(backend: CheckpointBackend, how: str) -> None:
    waiting = Waiting()
    async with harness(backend) as running, harness(backend) as other:
        handle = running.start(waiting.flow, 0, run_id="r")
        await waiting.there.wait()
        with acting_as(Principal("ada")):
            asks = other.runs.complete("r", 8) if how == "complete" else other.runs.wrap_up("r", "enough")
            info = await asks
        assert info.status in ("running", "completed")
        result = await handle.result()
        assert (result.status, result.value) == ("completed", 8 if how == "complete" else 3)
        with pytest.raises(errors.RunOver, match="it has completed"):
            await other.runs.complete("r", 9)
        again = await other.resume("r", waiting.flow)
        assert (again.status, again.value) == ("completed", result.value)
        (asked,) = [each for each in await other.runs.journal("r") if isinstance(each, Decision) and not each.path]
        assert (asked.value["kind"], asked.value["by"]) == (how, "ada")
    assert not await backend.scan(_SCOPE)


async def test_the_owner_refuses_a_value_of_another_type_and_a_late_request() -> None:
    backend, waiting = InMemoryBackend(), Waiting()
    async with harness(backend) as running, harness(backend) as other:
        handle = running.start(waiting.flow, 0, run_id="r")
        await waiting.there.wait()
        with pytest.raises(errors.ConfigError, match="'x' is not a valid value of 'counting'; expected int"):
            await other.runs.complete("r", "x")
        with pytest.raises(errors.ConfigError, match="expected int"):
            await other.runs.complete("r", "x", step=waiting.flow)
        with pytest.raises(errors.RunBusy):
            await other.runs.complete("r", 1, wait=0.0)
        assert not await backend.scan(_SCOPE)
        # Something else is there in its place.
        await backend.put(_SCOPE, "r", b'"nothing"')
        await anyio.sleep(1.2)
        assert not handle.done
        await backend.remove(_SCOPE, "r")
        assert handle.complete(2)
        assert (await handle.result()).value == 2


async def test_of_two_that_ask_at_once_one_is_told_that_it_was_late() -> None:
    backend, waiting = InMemoryBackend(), Waiting()
    told: list[object] = []

    async with harness(backend) as running, harness(backend) as other:
        handle = running.start(waiting.flow, 0, run_id="r")
        await waiting.there.wait()

        async def ask(value: int) -> None:
            try:
                await other.runs.complete("r", value)
                told.append(value)
            except errors.RunOver:
                told.append("late")

        async with anyio.create_task_group() as group:
            for value in (1, 2):
                group.start_soon(ask, value)
        result = await handle.result()
    assert sorted(map(str, told)) == [str(result.value), "late"]


async def test_a_run_is_aborted_in_whatever_process_has_it(backend: CheckpointBackend) -> None:
    @step
    async def asks(n: int, ctx: Ctx) -> int:
        return n + await ctx.ask(Ask("How many?", int))

    waiting = Waiting()
    async with harness(backend) as running, harness(backend) as other:
        handle = running.start(waiting.flow, 0, run_id="r")
        await waiting.there.wait()
        await other.runs.abort("r", "the order was withdrawn")
        result = await handle.result()
        assert (result.status, result.reason) == ("aborted", "the order was withdrawn")
        await running.run(asks, 1, run_id="asked")
        assert (await other.runs.abort("asked", "no need")).status == "aborted"
        again = await other.resume("asked", asks)
        assert (again.status, again.reason, again.pending) == ("aborted", "no need", ())
        for run_id in ("r", "asked"):
            with pytest.raises(errors.RunOver):
                await other.runs.abort(run_id, "once more")


@pytest.mark.parametrize("how", ENDS)
async def test_a_suspended_run_is_ended(backend: CheckpointBackend, how: str) -> None:
    ran: list[str] = []

    @step
    async def begins(n: int, ctx: Ctx) -> int:
        ran.append("begins")
        ctx.items.append(Message.assistant("begun"))
        return n

    @step
    async def asks(n: int, ctx: Ctx) -> int:
        ran.append("asks")
        return n + await ctx.ask(Ask("How many?", int))

    flow = loop(sequence(begins, asks), until=until.max_rounds(2), id="flow")
    async with harness(backend) as running, harness(backend) as other:
        first = await running.run(flow, 1, run_id="r")
        result = await running.resume("r", flow, answers=[first.pending[0].answer(5)])
        assert (result.status, ran) == ("suspended", ["begins", "asks", "asks", "begins", "asks"])
        ran.clear()
        info = await (other.runs.complete("r", 8) if how == "complete" else other.runs.wrap_up("r", "enough"))
        assert info.status == ("completed" if how == "complete" else "interrupted")
        assert not info.pending
        if how == "wrap_up":
            with pytest.raises(errors.RunOver, match="being stopped already"):
                await other.runs.wrap_up("r", "again")
        with pytest.raises(errors.RequestNotFound):
            await other.runs.answer(result.pending[0].answer(1))
        for _ in range(2):
            again = await other.resume("r", flow)
            assert (again.status, again.value, again.pending) == ("completed", 8 if how == "complete" else 6, ())
            assert [item.text for item in again.items if isinstance(item, Message)] == ["begun", "begun"]
        ended = [each.status for each in await other.runs.journal("r") if isinstance(each, RunEnded)]
        assert ended == [
            "suspended",
            "suspended",
            *(["completed"] if how == "complete" else ["interrupted", "completed"]),
        ]
    assert ran == []


async def test_a_run_that_was_to_be_wrapped_up_may_still_be_completed() -> None:
    backend = InMemoryBackend()

    @step
    async def asks(n: int, ctx: Ctx) -> int:
        return n + await ctx.ask(Ask("How many?", int))

    async with harness(backend) as running:
        await running.run(asks, 1, run_id="r")
        await running.runs.wrap_up("r", "enough")
        await running.runs.complete("r", 12)
        assert (await running.resume("r", asks)).value == 12
        with pytest.raises(errors.RunOver):
            await running.runs.wrap_up("r", "late")
        with pytest.raises(errors.RunNotFound):
            await running.runs.complete("nothing", 1)


async def test_a_value_from_json_becomes_one_of_the_flows_type() -> None:
    backend = InMemoryBackend()

    @step
    async def asks(n: int, ctx: Ctx) -> tuple[int, str]:
        return n, await ctx.ask(Ask("Who?", str))

    async with harness(backend) as running:
        for run_id in ("here", "r", "bad"):
            await running.run(asks, 1, run_id=run_id)
        await running.runs.complete("here", [2, "bo"])
        assert (await running.resume("here", asks)).value == (2, "bo")
        with pytest.raises(errors.ConfigError, match="is not a valid value"):
            await running.runs.complete("bad", {"n": 3})
    async with harness(backend) as other:
        # This one has never had the flow, so that the next resume reads the value.
        for run_id, given in (("r", [3, "ada"]), ("bad", {"n": 3})):
            await other.runs.complete(run_id, given)
        assert (await other.resume("r", asks)).value == (3, "ada")
        with pytest.raises(errors.ConfigError, match="is not a valid value"):
            await other.resume("bad", asks)


async def test_a_suspended_turn_of_a_session_is_completed() -> None:
    backend = InMemoryBackend()

    @step
    async def asks(text: str, ctx: Ctx) -> str:
        ctx.items.append(Message.user(text))
        await tells("", ctx)
        return await ctx.ask(Ask("Who?", str))

    @step
    async def tells(_: str, ctx: Ctx) -> str:
        ctx.items.append(Message.assistant("I ask"))
        return ""

    async with harness(backend) as running:
        session = running.session("ada", "trip")
        result = await session.run(asks, "hello")
        assert result.status == "suspended"
        await running.runs.complete(result.run_id, "bob")
        assert [item.text for item in await session.items() if isinstance(item, Message)] == []
        assert (await running.resume(result.run_id, asks)).value == "bob"
        assert [item.text for item in await session.items() if isinstance(item, Message)] == ["hello", "I ask"]

        other = await session.run(asks, "again")
        await running.runs.complete(other.run_id, "eve")

        @step
        async def quiet(text: str, ctx: Ctx) -> int:
            return len(ctx.items)

        # The next turn finds that it is over, and what it had said.
        assert (await session.run(quiet, "next")).value == 4


async def test_the_policy_is_asked() -> None:
    backend, waiting = InMemoryBackend(), Waiting()
    policy = RoleAccess({"user": {"run", "read", "abort"}, "boss": {"run", "read", "complete"}})
    ada, boss = Principal("ada", {"user"}), Principal("ada", {"boss"})
    async with harness(backend, access=policy) as running:
        with acting_as(ada):
            handle = running.start(waiting.flow, 0, run_id="r")
            await waiting.there.wait()
            with pytest.raises(errors.AccessDenied):
                handle.complete(1)
            with pytest.raises(errors.AccessDenied):
                handle.wrap_up("now")
            with pytest.raises(errors.AccessDenied):
                await running.runs.complete("r", 1)
            with pytest.raises(errors.AccessDenied):
                await running.runs.wrap_up("r", "now")
        with acting_as(boss):
            assert handle.wrap_up("now")
            assert (await handle.result()).value == 3


# ----------------------------------------------------------------------------------------------------- killed anywhere


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_anywhere_it_comes_to_the_same_end(how: str, when: When) -> None:
    async def lives(dies_at: int | None) -> tuple[Any, ...] | None:
        """Ends the run, in the process that has it or in a later one; `None` when it was not killed any more."""
        store = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when=when)
        waiting = Waiting()
        with store.outlived():
            async with harness(store) as running, anyio.create_task_group() as group:

                async def end() -> None:
                    await waiting.there.wait()
                    assert handle.complete(102) if how == "complete" else handle.wrap_up("enough")

                handle = running.start(waiting.flow, 0, run_id="r", budget=wrapped())
                group.start_soon(end)
                await handle.stream.ended()
                group.cancel_scope.cancel()
        if dies_at is not None and not store.dead:
            return None
        store.revive()
        async with harness(store) as later:
            info = [each for each in await later.runs.list() if each.run_id == "r" and each.position]
            if not info:
                await later.runs.delete("r")
                return ()
            with suppress(errors.RunOver):
                await (later.runs.complete("r", 102) if how == "complete" else later.runs.wrap_up("r", "enough"))
            result = await later.resume("r", waiting.flow, budget=wrapped())
            told = [item.text for item in result.items if isinstance(item, Message)]
            return result.status, result.value, told, seen_in(result.state)

    whole = await lives(None)
    assert whole is not None
    assert whole[:2] == ("completed", 102)
    at, seen = 1, 0
    while (found := await lives(at)) is not None:
        if found and found[1] == 102 and found[3] == 2:
            assert found == whole
            seen += 1
        elif found:
            # It was killed before it had counted so far.
            assert found[:2] == ("completed", 102 if how == "complete" else 100 + found[3])
        at += 1
    assert seen >= 1


class Lingering:
    """A step that takes its time to end after it was stopped."""

    def __init__(self) -> None:
        self.there, self.go = anyio.Event(), anyio.Event()
        self.began = 0

        @step
        async def linger(n: int, ctx: Ctx) -> int:
            self.began += 1
            self.there.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await self.go.wait()
            return n

        self.flow: Step[int, int, Memory, StateBag] = linger


async def killed_once_stored(store: FaultyBackend, lingering: Lingering, how: str) -> None:
    """A run is stopped; its process dies once that is stored, and before its body has ended."""
    with store.outlived():
        async with harness(store) as running:
            handle = running.start(lingering.flow, 0, run_id="r", on_error="result")
            await lingering.there.wait()
            store.revive(dies_at=1, when="after")
            with acting_as(Principal("ada", ())):
                assert handle.complete(5) if how == "complete" else getattr(handle, how)("enough")
            with anyio.CancelScope(shield=True):
                while not store.dead:
                    await anyio.lowlevel.checkpoint()
                lingering.go.set()
    store.revive()


@pytest.mark.parametrize("how", ["abort", "complete", "wrap_up"])
async def test_a_stop_is_stored_before_what_it_stops_has_ended(backend: CheckpointBackend, how: str) -> None:
    store, lingering = FaultyBackend(backend), Lingering()
    with anyio.fail_after(20):
        await killed_once_stored(store, lingering, how)
        async with harness(store) as later:
            asked = [each for each in await later.runs.journal("r") if isinstance(each, Decision)]
            assert [(each.value["kind"], each.value["by"]) for each in asked] == [(how, "ada")]
            result = await later.resume("r", lingering.flow)
            again = await later.resume("r", lingering.flow)
    ends = {"abort": ("aborted", "enough"), "complete": ("completed", "completed from outside")}
    assert (result.status, result.reason) == ends.get(how, ("completed", "enough"))
    assert (again.status, again.reason) == (result.status, result.reason)
    assert lingering.began == 1


async def test_of_a_run_that_was_aborted_nothing_would_run_and_nothing_else_ends_it() -> None:
    store, lingering = FaultyBackend(InMemoryBackend()), Lingering()
    with anyio.fail_after(20):
        await killed_once_stored(store, lingering, "abort")
        async with harness(store) as later:
            assert (await later.plan_resume("r", lingering.flow)).steps == ()
            with pytest.raises(errors.RunOver, match="stopped already"):
                await later.runs.complete("r", 1)


async def test_a_run_that_was_aborted_before_it_began_does_not_begin_later() -> None:
    store, lingering = FaultyBackend(InMemoryBackend(), dies_at=1, when="after"), Lingering()
    with store.outlived():
        async with harness(store) as running:
            handle = running.start(lingering.flow, 0, run_id="r")
            assert handle.abort("enough")
            await handle.result()
    assert store.dead
    store.revive()
    async with harness(store) as later:
        result = await later.resume("r", lingering.flow)
    assert (result.status, result.reason, lingering.began) == ("aborted", "enough", 0)


@pytest.mark.parametrize("known", ["run here", "named"])
async def test_the_value_of_a_suspended_run_is_of_its_flows_type(backend: CheckpointBackend, known: str) -> None:
    @step
    async def asks(n: int, ctx: Ctx) -> int:
        return await ctx.ask(Ask("how many?", int))

    async with harness(backend, flows={"asks": asks} if known == "named" else None) as running:
        suspended = await running.run(asks, 1, run_id="r")
        assert suspended.status == "suspended"
        later = harness(backend, flows={"asks": asks}) if known == "named" else running
        with pytest.raises(errors.ConfigError, match="'seven' is not a valid value of 'asks'; expected int") as caught:
            await later.runs.complete("r", "seven")
        assert caught.value.code == "complete"
        assert (await later.runs.get("r")).status == "suspended"
        await later.runs.complete("r", 7)
        assert (await running.resume("r", asks)).value == 7
