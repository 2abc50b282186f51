"""J9: a step that may run only once is not cut off in the middle, and is not begun twice in a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from noetic_py import (
    NOT_DONE,
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    ModelRequest,
    ReadContext,
    Retry,
    StateBag,
    call_model,
    call_tool,
    errors,
    loop,
    parallel,
    race,
    sequence,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.engine import body
from noetic_py.journal.records import AttemptFailed, Intent, StepFinished, StepStopped, stored_name
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


class Effects:
    """What has been done to the world, and how the one who does it is stopped in the middle."""

    def __init__(self) -> None:
        self.begun = 0
        self.done = 0
        self.halfway = anyio.Event()
        self.interrupt: Callable[[Ctx], object] = lambda _: None

    def paying(self, **options: Any) -> Any:
        @step(replay="once", version="1", **options)
        async def pay(x: int, ctx: Ctx) -> int:
            self.begun += 1
            self.halfway.set()
            self.interrupt(ctx)
            # Many more turns than a cancellation needs to be heard of.
            for _ in range(50):
                await checkpoint()
            self.done += 1
            return x + 1

        return pay

    def after(self) -> Any:
        @step(version="1")
        async def quick(x: int) -> int:
            await self.halfway.wait()
            return x

        return quick


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture
def backend() -> InMemoryBackend:
    return InMemoryBackend()


def harness(backend: CheckpointBackend | None) -> Any:
    return Harness(plugins=(), checkpoints=backend)


async def records(backend: InMemoryBackend) -> list[str]:
    """What the journal says of the step."""
    journal = await harness(backend).runs.journal("r")
    kinds = (Intent, StepFinished, AttemptFailed, StepStopped)
    return [stored_name(each) for each in journal if isinstance(each, kinds) and each.path[-1].startswith("pay")]


async def cancelled_from_outside(backend: InMemoryBackend | None, flow: Any, effects: Effects) -> None:
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        effects.interrupt = lambda _: scope.cancel()
        await harness(backend).run(flow, 1, run_id="r")
    assert scope.cancelled_caught


async def test_a_cancellation_from_outside_waits_for_its_end(backend: InMemoryBackend, effects: Effects) -> None:
    after: list[int] = []

    @step(version="1")
    async def then(x: int) -> int:
        after.append(x)
        return x * 10

    flow = sequence(effects.paying(), then)
    await cancelled_from_outside(backend, flow, effects)
    assert (effects.done, after) == (1, [])
    assert await records(backend) == ["Intent", "StepFinished"]
    result = await harness(backend).resume("r", flow)
    assert (result.value, effects.begun, after) == (20, 1, [2])


async def test_a_race_waits_for_the_end_of_a_loser(backend: InMemoryBackend, effects: Effects) -> None:
    result = await harness(backend).run(race([effects.paying(), effects.after()]), 1, run_id="r")
    assert (result.value, effects.done) == (1, 1)
    assert await records(backend) == ["Intent", "StepFinished"]


async def test_nothing_follows_it_in_a_path_that_was_cancelled(backend: InMemoryBackend, effects: Effects) -> None:
    after: list[int] = []

    @step(version="1")
    async def then(x: int) -> int:
        after.append(x)
        return x

    @step(version="1")
    async def body(x: int, ctx: Ctx) -> int:
        paid: int = await pay(x, ctx)
        return await then(paid, ctx)

    pay = effects.paying()
    result = await harness(backend).run(race([body, effects.after()]), 1, run_id="r")
    assert (result.value, effects.done, after) == (1, 1, [])


async def test_an_abort_beside_it_waits_for_its_end(backend: InMemoryBackend, effects: Effects) -> None:
    @step(version="1")
    async def abort(x: int, ctx: Ctx) -> int:
        await effects.halfway.wait()
        ctx.abort("enough")
        return x

    flow = parallel(effects.paying(), abort)
    for _ in range(2):
        run = harness(backend).resume if effects.begun else harness(backend).run
        given = ("r", flow) if effects.begun else (flow, 1)
        result = await run(*given, **({} if effects.begun else {"run_id": "r"}), on_error="result")
        assert (result.status, result.reason, effects.begun, effects.done) == ("aborted", "enough", 1, 1)
    assert await records(backend) == ["Intent", "StepFinished"]


async def test_its_failure_meanwhile_is_recorded_too(backend: InMemoryBackend, effects: Effects) -> None:
    @step(replay="once", version="1")
    async def pay(x: int) -> int:
        effects.begun += 1
        effects.halfway.set()
        for _ in range(50):
            await checkpoint()
        raise ValueError("no money")

    @step(version="1")
    async def caught(x: int, ctx: Ctx) -> int:
        try:
            with anyio.CancelScope() as scope:
                scope.cancel()
                return await pay(x, ctx)
        except errors.StepFailed:
            return -1
        return -2

    result = await harness(backend).run(caught, 1, run_id="r")
    assert await records(backend) == ["Intent", "StepFailed"]
    assert result.value == -1


async def test_a_retry_around_it_finds_what_it_has_done(backend: InMemoryBackend, effects: Effects) -> None:
    pay = effects.paying()

    @step(version="1", timeout=0.05, retry=Retry(2, initial=0))
    async def around(x: int, ctx: Ctx) -> int:
        paid: int = await pay(x, ctx)
        if effects.begun and not late:
            late.append(1)
            await anyio.sleep_forever()
        return paid

    late: list[int] = []
    result = await harness(backend).run(around, 1, run_id="r")
    assert (result.value, effects.begun) == (2, 1)


async def bought(backend: InMemoryBackend, resumes: int, **options: Any) -> tuple[list[Any], list[int]]:
    """Buy at a price that differs each time, while what follows fails twice; gives how it ended, and what was paid."""
    prices, paid, failures = itertools.count(1), list[int](), [OSError("flaky"), OSError("flaky")]

    @step(version="1")
    async def quote(x: int) -> int:
        return next(prices)

    @step(replay="once", version="1", **options)
    async def pay(price: int) -> str:
        paid.append(price)
        return f"receipt for {price}"

    @step(version="1")
    async def confirm(receipt: str) -> str:
        if failures:
            raise failures.pop()
        return receipt

    flow = (quote >> pay >> confirm).with_options(retry=Retry(3, initial=0))
    ends: list[Any] = []
    for attempt in range(resumes + 1):
        made = harness(backend)
        ended = (
            await made.run(flow, 1, run_id="r", on_error="result")
            if attempt == 0
            else await made.resume("r", flow, on_error="result")
        )
        ends.append(ended.error or ended.value)
    return ends, paid


async def test_another_input_than_it_had_is_for_its_reconcile_to_judge(backend: InMemoryBackend) -> None:
    asked: list[int] = []

    async def look(price: int, ctx: ReadContext) -> Any:
        asked.append(price)
        return NOT_DONE if price == 3 else "receipt of before"

    assert await bought(backend, 2, reconcile=look) == (["receipt for 3"] * 3, [1, 3])
    # Once for each attempt that met another input, and not again by those that resume.
    assert asked == [2, 3]
    assert await records(backend) == ["Intent", "StepFinished", "StepFinished", "Intent", "StepFinished"]


async def test_without_a_reconcile_what_is_recorded_is_said(backend: InMemoryBackend) -> None:
    ends, paid = await bought(backend, 1)
    for error in ends:
        assert isinstance(error, errors.StepOutcomeUnknown)
        assert error.path == ("sequence", "pay")
        assert "has run in an attempt of a step around it" in error.message
        assert "another input than was recorded; it gave 'receipt for 1'" in error.message
        assert "reconcile=" in (error.hint or "")
    assert paid == [1]


async def test_a_reconcile_that_fails_is_asked_again_and_nothing_runs(backend: InMemoryBackend) -> None:
    answers: list[Any] = [OSError("no line"), OSError("no line"), "receipt of before", "receipt of before"]

    async def look(price: int, ctx: ReadContext) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    ends, paid = await bought(backend, 2, reconcile=look, retry=Retry(5, initial=0))
    for error in ends[:2]:
        assert isinstance(error, errors.StepOutcomeUnknown)
        assert "its reconcile= failed: OSError: no line" in error.message
    assert (ends[2], paid) == ("receipt of before", [1])


async def test_the_output_of_a_tool_is_not_that_of_another_call(backend: InMemoryBackend) -> None:
    paid: list[str] = []

    @tool(replay="once")
    async def pay(order: str) -> str:
        """Pay."""
        paid.append(order)
        return f"paid {order}"

    async def ends(*orders: str, run_id: str) -> Any:
        script: list[Any] = []
        for order in orders:
            script += [FunctionCall(name="pay", arguments={"order": order}), "said"]
        failures = [OSError("flaky")]

        @step(version="1")
        async def confirm(x: object) -> str:
            if failures:
                raise failures.pop()
            return "confirmed"

        ask = call_model(ScriptedModel(*script), tools=[pay], id="ask")
        flow = (loop(ask, until=until.no_tool_calls()) >> confirm).with_options(retry=Retry(2, initial=0))
        return await harness(backend).run(flow, "go", run_id=run_id, on_error="result")

    same = await ends("a", "a", run_id="r")
    assert (same.value, paid) == ("confirmed", ["a"])
    other = await ends("b", "c", run_id="s")
    assert isinstance(other.error, errors.StepOutcomeUnknown)
    assert "it gave 'paid b'" in other.error.message
    assert paid == ["a", "b"]


class Till:
    """What a tool has been paid, order by order, by whichever process."""

    def __init__(self, *, knows: bool = True) -> None:
        self.paid: list[str] = []
        self.asked: list[str] = []

        async def look(arguments: dict[str, Any], ctx: ReadContext) -> Any:
            order = arguments["order"]
            self.asked.append(order)
            return f"receipt for {order}" if order in self.paid else NOT_DONE

        once = tool(replay="once", reconcile=look) if knows else tool(replay="once")

        @once
        async def pay(order: str) -> str:
            """Pay."""
            self.paid.append(order)
            return f"receipt for {order}"

        self.pay: Any = pay

    def flow(self, kind: str, order: str = "a") -> Any:
        if kind == "step":
            return call_tool(self.pay, args={"order": order})
        if kind == "asked step":
            return call_tool(self.pay.with_options(needs_approval=True), args={"order": order})
        if kind == "long step":
            return call_tool(self.pay.with_options(long_running=True), args={"order": order})
        taken = self.pay.with_options(long_running=True) if kind == "long" else self.pay

        def answer(request: ModelRequest) -> Any:
            told = [item.text for item in request.items if isinstance(item, FunctionCallOutput)]
            return told[-1] if told else FunctionCall(name="pay", arguments={"order": order}, call_id="c")

        model = ScriptedModel(*[answer] * 2)
        return loop(call_model(model, tools=[taken]), until=until.no_tool_calls())


async def ended(backend: FaultyBackend, till: Till, kind: str) -> Any:
    """Go on with the run for as long as something is asked, and give how it ended; `None` when the process died."""
    head = await backend.head("r")
    resume: Any = partial(harness(backend).resume, "r", on_error="result")
    result: Any = None
    with backend.outlived():
        if head is not None and head.position:
            result = await resume(till.flow(kind))
        else:
            limits: dict[str, Any] = {"budget": Budget(tool_calls=1), "on_error": "result"}
            result = await harness(backend).run(till.flow(kind), "go", run_id="r", **limits)
        while result.pending:
            (request,) = result.pending
            given = request.answer("done") if request.kind == "result" else request.approve(arguments={"order": "b"})
            result = await resume(till.flow(kind), answers=[given])
    return None if backend.dead else result


CALLS = ["step", "asked step", "long step", "model", "long"]


@pytest.mark.parametrize("kind", CALLS)
async def test_a_call_of_a_tool_is_made_once_and_its_reconcile_says_what_it_gave(kind: str) -> None:
    order = "b" if kind == "asked step" else "a"
    output = "done" if kind.startswith("long") else f"receipt for {order}"
    asked: set[str] = set()
    whole = 1
    for at in itertools.count(1):
        for when in ("before", "after"):
            backend, till = FaultyBackend(InMemoryBackend(), dies_at=at, when=when), Till()
            result = await ended(backend, till, kind)
            died = backend.dead
            if died:
                backend.revive()
                result = await ended(backend, till, kind)
            assert (result.value, till.paid) == (output, [order]), (at, when)
            # That the call was made counts, whoever has made it.
            assert [each.tool for each in await harness(backend).runs.journal("r") if getattr(each, "tool", None)]
            asked.update(till.asked)
            whole = max(whole, at)
        if not died:
            break
    assert whole > 3
    assert order in asked


@pytest.mark.parametrize("kind", CALLS)
async def test_without_its_reconcile_the_outcome_of_a_call_is_unknown(kind: str) -> None:
    order = "b" if kind == "asked step" else "a"
    unknown = 0
    for at in range(1, 8):
        backend, till = FaultyBackend(InMemoryBackend(), dies_at=at), Till(knows=False)
        await ended(backend, till, kind)
        backend.revive()
        result = await ended(backend, till, kind)
        assert len(till.paid) <= 1
        if isinstance(result.error, errors.StepOutcomeUnknown):
            unknown += 1
            # Whoever can answer by now goes on with the run.
            knows = Till()
            knows.paid = till.paid
            result = await ended(backend, knows, kind)
        assert (result.status, till.paid) == ("completed", [order])
    assert unknown


async def test_a_call_that_another_attempt_makes_otherwise_is_for_its_reconcile_to_judge(
    backend: InMemoryBackend,
) -> None:
    till, orders, failures = Till(), ["a", "b"], [OSError("flaky")]

    def call(request: Any) -> FunctionCall:
        return FunctionCall(name="pay", arguments={"order": orders.pop(0)})

    @step(version="1")
    async def confirm(x: object) -> str:
        if failures:
            raise failures.pop()
        return "confirmed"

    ask = call_model(ScriptedModel(call, "said", call, "said"), tools=[till.pay], id="ask")
    flow = (loop(ask, until=until.no_tool_calls()) >> confirm).with_options(retry=Retry(2, initial=0))
    result = await harness(backend).run(flow, "go", run_id="r")
    assert (result.value, till.paid) == ("confirmed", ["a", "b"])
    assert till.asked == ["b"]


async def test_a_reconcile_is_for_what_may_happen_once() -> None:
    async def look(arguments: dict[str, Any], ctx: ReadContext) -> Any:
        return NOT_DONE

    pay = Till(knows=False).pay
    assert pay.with_options(reconcile=look).reconcile is look

    def at_once(arguments: dict[str, Any], ctx: ReadContext) -> Any:
        return NOT_DONE

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"reconcile": look, "replay": "keyed"}, "needs replay='once'"),
        ({"reconcile": at_once}, "is not an async function"),
    ]
    for options, said in wrong:
        with pytest.raises(errors.ConfigError, match=said) as caught:
            pay.with_options(**options)
        assert caught.value.code == "tool-option"


async def test_when_the_grace_is_over_its_outcome_is_unknown(
    backend: InMemoryBackend, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "SHIELD_TIMEOUT", 0.02)

    @step(replay="once", version="1")
    async def pay(x: int, ctx: Ctx) -> int:
        effects.begun += 1
        effects.interrupt(ctx)
        await anyio.sleep_forever()
        return x

    await cancelled_from_outside(backend, pay, effects)
    assert "StepFinished" not in await records(backend)
    with pytest.raises(errors.StepOutcomeUnknown):
        await harness(backend).resume("r", pay)
    assert effects.begun == 1


async def test_its_own_timeout_is_no_longer_than_it_says(backend: InMemoryBackend) -> None:
    @step(replay="once", version="1", timeout=0.02)
    async def pay(x: int) -> int:
        await anyio.sleep_forever()
        return x

    with anyio.fail_after(body.SHIELD_TIMEOUT / 2), pytest.raises(errors.StepTimeout):
        await harness(backend).run(pay, 1, run_id="r")


async def test_a_body_that_asks_for_the_end_itself_ends_at_its_next_wait(backend: InMemoryBackend) -> None:
    @step(replay="once", version="1")
    async def pay(x: int, ctx: Ctx) -> int:
        ctx.complete(42)
        await anyio.sleep_forever()
        return x

    with anyio.fail_after(body.SHIELD_TIMEOUT / 2):
        result = await harness(backend).run(pay, 1, run_id="r")
    assert result.value == 42


async def test_a_run_that_is_not_kept_has_no_grace(effects: Effects) -> None:
    await cancelled_from_outside(None, effects.paying(), effects)
    assert effects.done == 0


async def test_what_it_raises_comes_out_as_it_is(backend: InMemoryBackend) -> None:
    @step(replay="once", version="1")
    async def pay(x: int) -> int:
        raise KeyError("gone")

    with pytest.raises(errors.StepFailed) as caught:
        await harness(backend).run(pay, 1, run_id="r")
    assert caught.value.error_type == "KeyError"


async def test_a_fork_does_it_again_only_from_before_it_began(backend: InMemoryBackend, effects: Effects) -> None:
    flow = sequence(effects.paying(), effects.after())
    await harness(backend).run(flow, 1, run_id="r")
    journal = await harness(backend).runs.journal("r")
    begun = next(at for at, record in enumerate(journal, 1) if isinstance(record, Intent))
    ends = backend._store.runs["r"].ends
    before = await harness(backend).fork("r", at=max(end for end in ends if end < begun))
    between = await harness(backend).fork("r", at=min(end for end in ends if end >= begun))
    with pytest.raises(errors.StepOutcomeUnknown):
        await harness(backend).resume(between, flow)
    assert effects.begun == 1
    assert (await harness(backend).resume(before, flow)).value == 2
    assert effects.begun == 2
