"""Runs that wait for somebody: approvals, results that come later, questions; what answers do and which are refused."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from attrs import define, evolve

from noetic_py import (
    Answer,
    Ask,
    Budget,
    Channel,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    ModelRequest,
    PendingRequest,
    Retry,
    RunResult,
    StateBag,
    Step,
    call_model,
    call_tool,
    each,
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
from noetic_py.checkpoints import CheckpointBackend, Lease, SqliteBackend, Transaction
from noetic_py.core.events import RequestMade
from noetic_py.journal.records import Pending
from noetic_py.testing import FaultyBackend, ScriptedModel, VirtualRuntime
from noetic_py.testing.faults import When
from tests.properties.checks import FULL

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
AnyStep = Step[Any, Any, Any, Any]
AnyResult: TypeAlias = RunResult[Any, Any]
WHENS: tuple[When, ...] = ("before", "after")


class Ledger:
    """What bodies and tools write down outside of the run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def step(self, name: str, **options: Any) -> Step[Any, Any, Memory, StateBag]:
        """A step that only notes that it has run."""

        @step(id=name, **options)
        async def body(x: Any, ctx: Ctx) -> Any:
            self.ran.append(name)
            return x

        return body

    def asking(self, name: str, kind: type[Any] = int, **options: Any) -> Step[Any, Any, Memory, StateBag]:
        """A step that asks, named after itself, and returns the answer."""

        @step(id=name, **options)
        async def body(x: Any, ctx: Ctx) -> Any:
            self.ran.append(name)
            return await ctx.ask(Ask(name, kind))

        return body

    def take(self) -> list[str]:
        """What has run since it was last asked."""
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def backend() -> InMemoryBackend:
    return InMemoryBackend()


def harness(backend: CheckpointBackend | None, **options: Any) -> Harness[Memory]:
    made: Any = Harness
    found: Harness[Memory] = made(plugins=(), checkpoints=backend, **options)
    return found


async def begin(backend: CheckpointBackend, flow: AnyStep, value: Any = 1, **options: Any) -> AnyResult:
    run: Any = harness(backend, **options.pop("harness", {})).run
    result: AnyResult = await run(flow, value, run_id="r", **options)
    return result


async def go_on(backend: CheckpointBackend, flow: AnyStep, *answers: Answer, **options: Any) -> AnyResult:
    """What another process does that gets these answers."""
    resume: Any = harness(backend, **options.pop("harness", {})).resume
    result: AnyResult = await resume("r", flow, answers=answers, **options)
    return result


def prompts(result: AnyResult) -> list[str]:
    return [request.prompt for request in result.pending]


def asked(result: AnyResult, prompt: str) -> PendingRequest:
    """The one request with a prompt."""
    (found,) = (request for request in result.pending if request.prompt == prompt)
    return found


def calls(*names: str) -> list[FunctionCall]:
    """What a model asks for in one answer."""
    return [FunctionCall(name=name, arguments={"n": at}, call_id=f"c{at}") for at, name in enumerate(names)]


def outputs(result: AnyResult) -> dict[str, str]:
    return {item.call_id: str(item.output) for item in result.items if isinstance(item, FunctionCallOutput)}


def payments(ledger: Ledger, **options: Any) -> Any:
    """A tool that may not be called without leave."""

    given: dict[str, Any] = {"name": "pay", "needs_approval": True, **options}

    @tool(**given)
    async def pay(n: int) -> str:
        ledger.ran.append(f"pay {n}")
        return f"paid {n}"

    return pay


def looking(ledger: Ledger) -> Any:
    @tool(name="look")
    async def look(n: int) -> str:
        ledger.ran.append(f"look {n}")
        return f"seen {n}"

    return look


# -- questions


async def test_a_question_is_answered_in_another_process(tmp_path: Path, ledger: Ledger) -> None:
    @step
    async def order(x: int, ctx: Ctx) -> str:
        done = await before(x, ctx)
        who = await ctx.ask(Ask("Who?", str))
        many = await ctx.ask(Ask("How many?", int))
        return f"{many} for {who} at {done}"

    before = ledger.step("before")
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        first = await begin(backend, order)
        assert (first.status, prompts(first), first.steps) == ("suspended", ["Who?"], 2)
        with pytest.raises(errors.Suspended):
            _ = first.value
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        (info,) = await harness(backend).runs.list(status="suspended")
        assert (info.run_id, info.alive, list(info.pending)) == ("r", False, list(first.pending))
        second = await go_on(backend, order, info.pending[0].answer("Ada"))
        assert (second.status, prompts(second)) == ("suspended", ["How many?"])
        third = await go_on(backend, order, second.pending[0].answer(3))
        assert (third.status, third.value, third.pending, third.steps) == ("completed", "3 for Ada at 1", (), 2)
        assert (await harness(backend).runs.get("r")).pending == ()
        again = await go_on(backend, order)
        assert again.value == "3 for Ada at 1"
    assert ledger.take() == ["before"]


async def test_without_an_answer_it_goes_on_waiting(backend: InMemoryBackend, ledger: Ledger) -> None:
    flow = ledger.asking("n")
    first = await begin(backend, flow)
    for _ in range(2):
        again = await go_on(backend, flow)
        assert (again.status, again.pending) == ("suspended", first.pending)
    assert (await go_on(backend, flow, first.pending[0].answer(4))).value == 4


@define
class Trip:
    to: str
    days: int = 1


async def test_an_answer_is_of_the_type_that_was_asked_for(backend: InMemoryBackend, ledger: Ledger) -> None:
    from pydantic import BaseModel

    class Seat(BaseModel):
        row: int
        window: bool = False

    @step
    async def book(x: int, ctx: Ctx) -> str:
        seat = await ctx.ask(Ask("Where?", Seat))
        return repr((type(seat).__name__, seat.row, seat.window))

    first = await begin(backend, book)
    schema: Any = first.pending[0].schema
    assert (schema["type"], set(schema["properties"])) == ("object", {"row", "window"})
    result = await go_on(backend, book, first.pending[0].answer(Seat(row=3, window=True)))
    assert result.value == "('Seat', 3, True)"


@pytest.mark.parametrize("value", ["1", True, 1.5, None, [1]])
async def test_an_answer_that_does_not_fit_is_asked_for_again(
    backend: InMemoryBackend, ledger: Ledger, value: object
) -> None:
    flow = ledger.asking("n")
    first = await begin(backend, flow)
    second = await go_on(backend, flow, first.pending[0].answer(value))
    assert (second.status, second.pending[0].key != first.pending[0].key) == ("suspended", True)
    assert "does not fit" in str(second.pending[0].problem)
    with pytest.raises(errors.RequestNotFound):
        await go_on(backend, flow, first.pending[0].answer(5))
    assert (await go_on(backend, flow, second.pending[0].answer(5))).value == 5


async def test_a_rejected_question_raises_where_it_was_asked(backend: InMemoryBackend) -> None:
    @step
    async def careful(x: int, ctx: Ctx) -> str:
        try:
            return await ctx.ask(Ask("Sure?", str))
        except errors.Rejected as error:
            return f"no: {error.reason}"

    first = await begin(backend, careful)
    result = await go_on(backend, careful, first.pending[0].reject("too late", by="ada"))
    assert result.value == "no: too late"
    assert (await go_on(backend, careful)).value == "no: too late"


async def test_a_rejection_that_nobody_handles_is_a_failure(backend: InMemoryBackend, ledger: Ledger) -> None:
    flow = ledger.asking("n")
    first = await begin(backend, flow)
    result = await go_on(backend, flow, first.pending[0].reject("no"), on_error="result")
    assert (result.status, type(result.error)) == ("failed", errors.Rejected)
    assert result.error is not None
    assert result.error.path == ("n", "ask")


@pytest.mark.parametrize("bad", ["", None, 1])
async def test_a_question_that_is_none(bad: Any) -> None:
    with pytest.raises(errors.ConfigError, match="prompt"):
        Ask(bad, str)
    with pytest.raises(errors.ConfigError, match="expires"):
        Ask("?", str, expires=0)
    with pytest.raises(errors.ConfigError, match="type of an answer"):
        Ask("?", Ledger).adapter()


# -- approvals


def agent(*tools: Any, model: Any = None) -> AnyStep:
    return loop(call_model(model, tools=tools), until=until.no_tool_calls())


async def test_four_approvals_are_answered_in_any_order(tmp_path: Path, ledger: Ledger) -> None:
    flow = agent(payments(ledger), looking(ledger))
    model = ScriptedModel(calls("pay", "pay", "look", "pay", "pay"), "done")
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        result = await begin(backend, flow, "go", harness={"model": model})
    assert [(request.kind, request.tool, request.call_id, request.arguments) for request in result.pending] == [
        ("approval", "pay", "c0", {"n": 0}),
        ("approval", "pay", "c1", {"n": 1}),
        ("approval", "pay", "c3", {"n": 3}),
        ("approval", "pay", "c4", {"n": 4}),
    ]
    assert ledger.take() == ["look 2"]
    assert outputs(result)["c0"] == "Not finished: suspended: it waits for an answer"
    for request in reversed(result.pending):
        # A process of its own each time.
        async with SqliteBackend(tmp_path / "runs.db") as backend:
            answer = request.reject("too much") if request.call_id == "c1" else request.approve(by="ada")
            result = await go_on(backend, flow, answer, harness={"model": model})
    assert (result.value, ledger.take()) == ("done", ["pay 4", "pay 3", "pay 0"])
    assert list(outputs(result).items()) == [
        ("c0", "paid 0"),
        ("c1", "The call was rejected: too much"),
        ("c2", "seen 2"),
        ("c3", "paid 3"),
        ("c4", "paid 4"),
    ]
    assert len(model.requests) == 2


async def test_answers_are_kept_one_by_one_and_then_gone_on_with(tmp_path: Path, ledger: Ledger) -> None:
    flow = agent(payments(ledger))
    model = ScriptedModel(calls("pay", "pay"), "done")
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        first = await begin(backend, flow, "go", harness={"model": model})
        runs = harness(backend).runs
        one = await runs.answer(first.pending[1].approve(by="ada"))
        assert ([request.call_id for request in one.pending], one.status) == (["c0"], "suspended")
        # Once more, and without effect.
        assert list((await runs.answer(first.pending[1].approve())).pending) == list(one.pending)
        with pytest.raises(errors.AnswerConflict, match="by ada"):
            await runs.answer(first.pending[1].reject())
        two = await runs.answer(first.pending[0].approve())
        assert (list(two.pending), two.status) == ([], "suspended")
        assert ledger.take() == []
        result = await go_on(backend, flow, harness={"model": model})
        assert (result.value, sorted(ledger.take())) == ("done", ["pay 0", "pay 1"])
        with pytest.raises(errors.AnswerConflict):
            await runs.answer(first.pending[0].reject())
        assert (await runs.answer(first.pending[0].approve())).status == "completed"


async def test_whether_leave_is_needed_may_be_decided(backend: InMemoryBackend, ledger: Ledger) -> None:
    seen: list[tuple[str, object]] = []

    async def large(call: FunctionCall, ctx: Any) -> bool:
        seen.append((call.call_id, ctx.run_id))
        return int(json.loads(call.arguments)["n"]) > 0

    flow = agent(payments(ledger, needs_approval=large))
    model = ScriptedModel(calls("pay", "pay"), "done")
    first = await begin(backend, flow, "go", harness={"model": model})
    assert ([request.call_id for request in first.pending], ledger.take()) == (["c1"], ["pay 0"])
    result = await go_on(backend, flow, first.pending[0].approve(), harness={"model": model})
    # What was asked for is not decided again.
    assert (result.value, sorted(seen), ledger.take()) == ("done", [("c0", "r"), ("c1", "r")], ["pay 1"])


async def test_nobody_is_asked_about_a_call_that_cannot_be_made(backend: InMemoryBackend, ledger: Ledger) -> None:
    model = ScriptedModel([FunctionCall(name="pay", arguments={"n": "many"}, call_id="c")], "sorry")
    result = await begin(backend, agent(payments(ledger)), "go", harness={"model": model})
    assert (result.value, result.pending, ledger.take()) == ("sorry", (), [])


async def test_a_tool_that_a_step_calls_needs_leave_too(backend: InMemoryBackend, ledger: Ledger) -> None:
    flow = call_tool(payments(ledger), args={"n": 7})
    first = await begin(backend, flow)
    (request,) = first.pending
    assert (request.tool, request.arguments, request.call_id) == ("pay", {"n": 7}, request.key)
    assert (await go_on(backend, flow, request.approve())).value == "paid 7"
    other = InMemoryBackend()
    first = await begin(other, flow)
    result = await go_on(other, flow, first.pending[0].reject("no"), on_error="result")
    assert (type(result.error), ledger.take()) == (errors.Rejected, ["pay 7"])


async def test_other_code_of_a_tool_needs_leave_anew(backend: InMemoryBackend, ledger: Ledger) -> None:
    def made(more: bool) -> AnyStep:
        async def small(n: int) -> str:
            ledger.ran.append("small")
            return "small"

        async def large(n: int) -> str:
            ledger.ran.append("large")
            return "large"

        return agent(tool(name="pay", needs_approval=True)(large if more else small))

    model = ScriptedModel(calls("pay"), "done")
    first = await begin(backend, made(False), "go", harness={"model": model})
    await harness(backend).runs.answer(first.pending[0].approve())
    second = await go_on(backend, made(True), harness={"model": model})
    assert (second.status, ledger.take()) == ("suspended", [])
    assert (first.pending[0].problem, second.pending[0].problem) == (None, "the tool has changed since the approval")
    with pytest.raises(errors.RequestNotFound):
        await go_on(backend, made(True), first.pending[0].approve(), harness={"model": model})
    assert ledger.take() == []
    result = await go_on(backend, made(True), second.pending[0].approve(), harness={"model": model})
    assert (result.value, ledger.take()) == ("done", ["large"])


@pytest.mark.parametrize(
    ("answer", "change", "problem"),
    [
        ("approve", "code", "the tool has changed since the approval"),
        ("reject", "code", "the tool has changed since the answer"),
        ("approve", "arguments", "the tool would receive other arguments than those that were approved"),
        ("reject", "arguments", "the tool would receive other arguments than those of the answer"),
        ("none", "code", None),
    ],
)
async def test_a_request_that_is_made_anew_says_why(
    backend: InMemoryBackend, ledger: Ledger, answer: str, change: str, problem: str | None
) -> None:
    changed = {"code": False, "arguments": False}

    def flow() -> AnyStep:
        async def pay(n: int) -> str:
            return f"paid {n}"

        async def other(n: int) -> str:
            return f"other {n}"

        paying = tool(name="pay", needs_approval=True)(other if changed["code"] else pay)
        return call_tool(paying, args={"n": 8 if changed["arguments"] else 7})

    (first,) = (await begin(backend, flow())).pending
    if answer != "none":
        await harness(backend).runs.answer(first.approve() if answer == "approve" else first.reject("no"))
    changed[change] = True
    second = await go_on(backend, flow(), on_error="result", on_diverge="adopt")
    assert [request.problem for request in second.pending] == [problem]


async def test_a_question_that_has_changed_since_its_answer_says_so(backend: InMemoryBackend) -> None:
    prompt = "Who?"

    @step
    async def order(x: int, ctx: Ctx) -> str:
        return str(await ctx.ask(Ask(prompt, str)))

    (first,) = (await begin(backend, order)).pending
    await harness(backend).runs.answer(first.answer("Ada"))
    prompt = "Who else?"
    (second,) = (await go_on(backend, order)).pending
    assert (second.prompt, second.problem) == ("Who else?", "the question has changed since the answer")


# -- results that come later


async def test_work_that_takes_long_is_started_once(tmp_path: Path, ledger: Ledger) -> None:
    @tool(long_running=True, needs_approval=True)
    async def render(n: int) -> str:
        """Render."""
        ledger.ran.append("start")
        return f"job {n}"

    flow = agent(render)
    model = ScriptedModel(calls("render"), "done")
    async with SqliteBackend(tmp_path / "runs.db") as backend:
        first = await begin(backend, flow, "go", harness={"model": model})
        assert ([request.kind for request in first.pending], ledger.take()) == (["approval"], [])
        second = await go_on(backend, flow, first.pending[0].approve(), harness={"model": model})
        (request,) = second.pending
        assert (request.kind, request.prompt, request.call_id) == ("result", "job 0", "c0")
        assert (await go_on(backend, flow, harness={"model": model})).pending == second.pending
        result = await go_on(backend, flow, request.answer({"url": "x"}), harness={"model": model})
    assert (result.value, outputs(result), ledger.take()) == ("done", {"c0": '{"url": "x"}'}, ["start"])


async def test_work_that_takes_long_may_fail_or_never_end(backend: InMemoryBackend, ledger: Ledger) -> None:
    @tool(long_running=True, expires=60.0)
    async def render(n: int) -> str:
        """Render."""
        return "started"

    runtime = VirtualRuntime()
    flow = agent(render)
    model = ScriptedModel(calls("render", "render"), "done")
    options = {"harness": {"model": model, "runtime": runtime}}
    first = await begin(backend, flow, "go", **options)
    assert [str(request.expires - request.asked) for request in first.pending if request.expires] == ["0:01:00"] * 2
    await harness(backend, runtime=runtime).runs.answer(first.pending[0].reject("out of disk"))
    await runtime.advance(61.0)
    with pytest.raises(errors.RequestExpired):
        await go_on(backend, flow, first.pending[1].answer(1), harness={"runtime": runtime, "model": model})
    result = await go_on(backend, flow, harness={"runtime": runtime, "model": model})
    told = outputs(result)
    assert told["c0"] == "The work has failed: out of disk"
    assert told["c1"].startswith("The work has no result: it was not answered until")


async def test_a_step_may_call_what_takes_long(backend: InMemoryBackend, ledger: Ledger) -> None:
    @tool(long_running=True)
    def render(n: int) -> str:
        """Render."""
        ledger.ran.append("start")
        return "started"

    flow = call_tool(render, args={"n": 1})
    first = await begin(backend, flow)
    assert (await go_on(backend, flow, first.pending[0].answer([1, 2]))).value == [1, 2]
    assert ledger.take() == ["start"]


@pytest.mark.parametrize("long", [False, True])
async def test_work_that_may_be_done_once_is_not_done_twice(ledger: Ledger, long: bool) -> None:
    """Killed in it, nobody knows; and waiting for leave, or for the result, is not being in it."""

    @tool(replay="once", needs_approval=True, long_running=long)
    async def send(n: int) -> str:
        ledger.ran.append("sent")
        return "sent"

    flow = agent(send)
    unknown, died = 0, True
    for dies_at in range(1, 40):
        ledger.take()
        store = FaultyBackend(InMemoryBackend())
        model = ScriptedModel(*[_sending] * 9)
        result = await begin(store, flow, "go", harness={"model": model})
        store.revive(dies_at=dies_at)
        with store.outlived():
            await go_on(store, flow, result.pending[0].approve(), harness={"model": model}, on_error="result")
        died = store.dead
        store.revive()
        result = await go_on(store, flow, result.pending[0].approve(), harness={"model": model}, on_error="result")
        if result.pending:
            result = await go_on(store, flow, result.pending[0].answer("sent"), harness={"model": model})
        assert ledger.take().count("sent") <= 1
        if isinstance(result.error, errors.StepOutcomeUnknown):
            unknown += 1
        else:
            assert list(outputs(result).values()) == ["sent"]
        if not died:
            break
    assert (unknown, died) == (1, False)


def _sending(request: ModelRequest) -> Any:
    return "done" if any(isinstance(item, FunctionCallOutput) for item in request.items) else calls("send")


# -- time


async def test_the_time_for_an_answer_ends(backend: InMemoryBackend, ledger: Ledger) -> None:
    @step
    async def hurry(x: int, ctx: Ctx) -> str:
        try:
            return await ctx.ask(Ask("Now?", str, expires=10.0))
        except errors.RequestExpired as error:
            return f"late at {'/'.join(error.path)}"

    runtime = VirtualRuntime()
    first = await begin(backend, hurry, harness={"runtime": runtime})
    runs = harness(backend, runtime=runtime).runs
    await runtime.advance(10.0)
    with pytest.raises(errors.RequestExpired):
        await runs.answer(first.pending[0].answer("yes"))
    assert (await go_on(backend, hurry, harness={"runtime": runtime})).value == "late at hurry/ask"


async def test_an_approval_that_nobody_gives_in_time_is_none(backend: InMemoryBackend, ledger: Ledger) -> None:
    runtime = VirtualRuntime()
    flow = agent(payments(ledger, expires=5.0))
    model = ScriptedModel(calls("pay"), "done")
    await begin(backend, flow, "go", harness={"model": model, "runtime": runtime})
    await runtime.advance(5.0)
    result = await go_on(backend, flow, harness={"model": model, "runtime": runtime})
    assert (result.value, ledger.take()) == ("done", [])
    assert outputs(result)["c0"].startswith("The call was rejected: it was not answered until")


# -- what stands around a step that waits


async def test_siblings_go_on_and_do_not_run_again(backend: InMemoryBackend, ledger: Ledger) -> None:
    for make in (parallel, settle):
        store = InMemoryBackend()
        flow = sequence(ledger.step("before"), make([ledger.asking("a"), ledger.step("b"), ledger.asking("c")]))
        first = await begin(store, flow)
        assert (prompts(first), sorted(ledger.take())) == (["a", "c"], ["a", "b", "before", "c"])
        second = await go_on(store, flow, asked(first, "c").answer(3))
        assert (prompts(second), sorted(ledger.take())) == (["a"], ["a", "c"])
        third = await go_on(store, flow, asked(second, "a").answer(1))
        given: list[Any] = list(third.value)
        values = [getattr(each, "value", each) for each in given]
        assert (values, ledger.take()) == ([1, 1, 3], ["a"])


async def test_a_failure_wins_over_waiting_where_all_are_needed(backend: InMemoryBackend, ledger: Ledger) -> None:
    @step(retry=1)
    async def breaks(x: int, ctx: Ctx) -> int:
        await anyio.lowlevel.checkpoint()
        raise ValueError("broken")

    result = await begin(backend, parallel(ledger.asking("a"), breaks), on_error="result")
    assert (result.status, type(result.error), result.pending) == ("failed", errors.ParallelFailed, ())


async def test_a_settled_section_waits_and_tells_both(backend: InMemoryBackend, ledger: Ledger) -> None:
    @step
    async def breaks(x: int, ctx: Ctx) -> int:
        ledger.ran.append("breaks")
        raise ValueError("broken")

    flow = settle([ledger.asking("a"), breaks])
    first = await begin(backend, flow)
    assert first.status == "suspended"
    result = await go_on(backend, flow, first.pending[0].answer(2))
    assert ([each.value if each.ok else type(each.error) for each in result.value], ledger.take().count("breaks")) == (
        [2, errors.StepFailed],
        1,
    )


async def test_who_waits_neither_wins_nor_loses_a_race(backend: InMemoryBackend, ledger: Ledger) -> None:
    @step
    async def breaks(x: int, ctx: Ctx) -> int:
        raise ValueError("broken")

    won = await begin(backend, race([ledger.asking("a"), ledger.step("b")]))
    assert (won.value, won.pending) == (1, ())
    other = InMemoryBackend()
    flow = race([ledger.asking("a"), breaks, ledger.asking("c")])
    first = await begin(other, flow)
    assert prompts(first) == ["a", "c"]
    result = await go_on(other, flow, asked(first, "c").answer(9))
    assert (result.value, result.pending) == (9, ())
    with pytest.raises(errors.RequestNotFound, match="no longer open"):
        await harness(other).runs.answer(asked(first, "a").answer(1))


async def test_it_may_wait_anywhere(backend: InMemoryBackend, ledger: Ledger) -> None:
    """In a gather, a spawn, an each, a loop and a body's own task group; each answer is asked for once."""
    inner = ledger.asking("inner")

    @step
    async def gathers(x: int, ctx: Ctx) -> int:
        one, two = await ctx.gather(inner.bind(1), ledger.asking("other").bind(2))
        return int(one + two)

    @step
    async def grouped(x: int, ctx: Ctx) -> int:
        found: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            found.append(await ctx.ask(Ask("grouped", int)))
            group.cancel_scope.cancel()
        return x + found[0]

    composed: Any = sequence
    flow = composed(
        gathers,
        spawn(ledger.asking("spawned")),
        step(id="three")(_thrice),
        each(ledger.asking("each")),
        step(id="total")(_sum),
        loop(grouped, until=until.max_rounds(2)),
    )
    result = await begin(backend, flow)
    seen: list[str] = []
    while result.status == "suspended":
        request = result.pending[-1]
        seen.append(request.prompt)
        result = await go_on(backend, flow, request.answer(10))
    assert result.value == 30 + 20
    assert seen == ["other", "inner", "spawned", "each", "each", "each", "grouped", "grouped"]


async def _thrice(x: int, ctx: Ctx) -> list[int]:
    return [x, x, x]


async def _sum(x: list[int], ctx: Ctx) -> int:
    return sum(x)


@pytest.mark.parametrize("retry", [1, 2])
async def test_what_was_taken_before_a_question_is_taken_again_with_its_answer(
    backend: InMemoryBackend, retry: int
) -> None:
    orders = Channel("orders", str, mode="queue")
    taken: list[str] = []

    @step
    async def order(x: int, ctx: Ctx) -> int:
        await ctx.send(orders, "tea")
        return x

    @step
    async def serve(x: int, ctx: Ctx) -> str:
        taken.append(await ctx.recv(orders))
        sugar = await ctx.ask(Ask("sugar?", int))
        return f"{taken[-1]}, {sugar}"

    flow = sequence(order, serve.with_options(retry=retry), id="flow")
    first = await begin(backend, flow)
    result = await go_on(backend, flow, first.pending[0].answer(2))
    assert (result.value, taken) == ("tea, 2", ["tea", "tea"])


async def test_nobody_can_catch_it(backend: InMemoryBackend, ledger: Ledger) -> None:
    @step(retry=3)
    async def greedy(x: int, ctx: Ctx) -> int:
        ledger.ran.append("greedy")
        try:
            return await ctx.ask(Ask("n", int))
        except Exception as error:  # noqa: BLE001 # what a careless body does
            return len(str(error))
        except BaseException:  # noqa: BLE001 # likewise
            return -1

    flow = loop(greedy, until=until.max_rounds(1), on_error=lambda error, ctx: "skip")
    first = await begin(backend, flow)
    assert (first.status, ledger.take()) == ("suspended", ["greedy"])
    assert (await go_on(backend, flow, first.pending[0].answer(5))).value == 5


async def test_waiting_is_no_attempt_and_no_step_twice(backend: InMemoryBackend, ledger: Ledger) -> None:
    flow = sequence(ledger.step("a"), ledger.asking("b", retry=Retry(attempts=1)), ledger.step("c"))
    first = await begin(backend, flow, budget=Budget(steps=3))
    for _ in range(4):
        await go_on(backend, flow)
    result = await go_on(backend, flow, first.pending[0].answer(2))
    assert (result.value, result.steps) == (2, 3)


async def test_an_attempt_that_fails_takes_its_requests_along(backend: InMemoryBackend, ledger: Ledger) -> None:
    tries: list[int] = []

    @step(retry=2)
    async def twice(x: int, ctx: Ctx) -> int:
        tries.append(x)
        found = await ctx.ask(Ask("n", int))
        if found < 0:
            raise ValueError("below zero")
        return found

    first = await begin(backend, twice)
    second = await go_on(backend, twice, first.pending[0].answer(-1))
    assert (second.status, second.pending[0].key != first.pending[0].key) == ("suspended", True)
    with pytest.raises(errors.RequestNotFound):
        await go_on(backend, twice, first.pending[0].answer(3))
    assert (await go_on(backend, twice, second.pending[0].answer(3))).value == 3


async def test_work_beside_the_flow_may_wait(backend: InMemoryBackend, ledger: Ledger) -> None:
    asking = ledger.asking("beside")

    @step
    async def leaves(x: int, ctx: Ctx) -> int:
        ctx.spawn_detached(asking, 1)
        ledger.ran.append("leaves")
        return x

    @step
    async def waits(x: int, ctx: Ctx) -> int:
        handle = ctx.spawn_detached(asking, 1)
        value: int = (await handle.wait()).value
        return value

    for flow, value in ((leaves, 1), (waits, 7)):
        store = InMemoryBackend()
        async with harness(store) as first_process:
            first = await first_process.run(flow, 1, run_id="r")
        assert (first.status, prompts(first)) == ("suspended", ["beside"])
        async with harness(store) as second_process:
            result = await second_process.resume("r", flow, answers=[first.pending[0].answer(7)])
        assert (result.status, result.value) == ("completed", value)
    assert ledger.take().count("leaves") == 1


# -- where nobody can wait


async def test_a_run_that_is_not_kept_cannot_wait(ledger: Ledger) -> None:
    with pytest.raises(errors.ConfigError) as found:
        await harness(None).run(ledger.asking("n"), 1)
    assert (found.value.code, found.value.path) == ("no-backend", ("n", "ask"))
    assert found.value.message.startswith("a question was asked for in a run that is not stored")


async def test_a_body_that_runs_once_cannot_wait(backend: InMemoryBackend, ledger: Ledger) -> None:
    with pytest.raises(errors.ConfigError, match="once") as found:
        await begin(backend, ledger.asking("n", replay="once"))
    assert found.value.code == "ask"


async def test_a_wrap_up_cannot_wait(backend: InMemoryBackend, ledger: Ledger) -> None:
    budget = Budget(steps=3, reserve=Budget(steps=2), wrap_up=ledger.asking("last"))
    result = await begin(backend, sequence(ledger.step("a"), ledger.step("b")), budget=budget)
    assert (result.status, result.pending, result.has_value) == ("budget_exceeded", (), False)


class Curious(MemoryLayer[dict[str, int]]):
    """Asks when it is opened."""

    async def init(self) -> None:
        await self.call(_asks_in_layer, 1)


@step(id="asks_in_layer")
async def _asks_in_layer(x: int, ctx: Context[Any, Any]) -> int:
    return await ctx.ask(Ask("n", int))


class Mem(Memory):
    curious: Curious


async def test_a_layer_cannot_make_its_run_wait(backend: InMemoryBackend, ledger: Ledger) -> None:
    with pytest.raises(errors.LayerError) as found:
        await begin(backend, ledger.step("a"), harness={"memory": Mem(curious=Curious())})
    assert "not to make its run wait" in str(found.value)


# -- answers that are refused


async def test_answers_are_taken_all_or_none(backend: InMemoryBackend, ledger: Ledger) -> None:
    flow = parallel(ledger.asking("a"), ledger.asking("b"))
    first = await begin(backend, flow)
    a, b = first.pending
    bad: list[tuple[Any, type[errors.AnswerError]]] = [
        (evolve(b.answer(1), run_id="other"), errors.RequestNotFound),
        (evolve(b.answer(1), key="other"), errors.RequestNotFound),
        (evolve(b.answer(1), decision="approved"), errors.AnswerInvalid),
        (evolve(b.answer(1), value=float("nan")), errors.AnswerInvalid),
        ("yes", errors.AnswerInvalid),
        (evolve(a.answer(1), value=2), errors.AnswerConflict),
    ]
    for answer, kind in bad:
        with pytest.raises(kind):
            await go_on(backend, flow, a.answer(1), answer)
        assert list((await harness(backend).runs.get("r")).pending) == [a, b]
    with pytest.raises(errors.AnswerInvalid):
        a.approve()
    with pytest.raises(errors.AnswerInvalid):
        a.answer(object())
    with pytest.raises(errors.AnswerInvalid, match="0 runs"):
        await harness(backend).runs.answer()
    with pytest.raises(errors.RunNotFound):
        await harness(backend).runs.answer(evolve(a.answer(1), run_id="nobody"))
    assert (await go_on(backend, flow, a.answer(1), b.answer(2), b.answer(2))).value == (1, 2)


async def test_a_run_is_free_again_when_an_answer_cannot_be_written(ledger: Ledger) -> None:
    class Full(InMemoryBackend):
        full = False

        async def append(self, *args: Any, **options: Any) -> int:
            if self.full:
                raise errors.CheckpointError("no space is left")
            return await super().append(*args, **options)

        async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
            if self.full:
                raise errors.CheckpointError("no space is left")
            return await super().commit(transactions)

    store = Full()
    flow = ledger.asking("n")
    pending = (await begin(store, flow)).pending
    given = pending[0].answer(1)
    ways: list[Callable[[], Awaitable[object]]] = [
        lambda: go_on(store, flow, given),
        lambda: harness(store).runs.answer(given, wait=0),
    ]
    for answer in ways:
        store.full = True
        with pytest.raises(errors.CheckpointError, match="no space"):
            await answer()
        store.full = False
        # Another owner would get it at once.
        await store.release(await store.acquire("r", ttl=30.0))
        assert (await harness(store).runs.get("r")).pending == pending
    assert (await go_on(store, flow, given)).value == 1


async def test_a_fork_asks_for_itself(backend: InMemoryBackend, ledger: Ledger) -> None:
    flow = agent(payments(ledger))
    model = ScriptedModel(calls("pay"), "done", "done")
    first = await begin(backend, flow, "go", harness={"model": model})
    fork = await harness(backend).fork("r")
    await go_on(backend, flow, first.pending[0].approve(), harness={"model": model})
    assert ledger.take() == ["pay 0"]
    resume: Any = harness(backend, model=model).resume
    with pytest.raises(errors.RequestNotFound, match="another run"):
        await resume(fork, flow, answers=[first.pending[0].approve()])
    again = await resume(fork, flow)
    assert (again.status, again.pending[0].run_id, ledger.take()) == ("suspended", fork, [])
    assert (await resume(fork, flow, answers=[again.pending[0].approve()])).value == "done"
    assert ledger.take() == ["pay 0"]


async def test_two_answer_at_one_moment(tmp_path: Path, ledger: Ledger) -> None:
    flow = agent(payments(ledger))
    for _ in range(10):
        model = ScriptedModel(calls("pay"), "done")
        ended: list[str] = []
        async with SqliteBackend(tmp_path / "runs.db") as one, SqliteBackend(tmp_path / "runs.db") as two:
            first = await begin(one, flow, "go", harness={"model": model})

            async def answer(
                store: CheckpointBackend, given: Answer, ended: list[str] = ended, model: Any = model
            ) -> None:
                try:
                    await go_on(store, flow, given, harness={"model": model})
                    ended.append(given.decision)
                except (errors.RunBusy, errors.AnswerConflict) as error:
                    ended.append(type(error).__name__)

            async with anyio.create_task_group() as group:
                group.start_soon(answer, one, first.pending[0].approve())
                group.start_soon(answer, two, first.pending[0].reject())
            await harness(one).runs.delete("r")
        assert len([each for each in ended if each in ("approved", "rejected")]) == 1, ended
        assert len(ledger.take()) == ended.count("approved")


# -- what is told, and when


async def test_a_request_is_told_of_once_it_is_stored(backend: InMemoryBackend, ledger: Ledger) -> None:
    flow = ledger.asking("n")
    seen: list[RequestMade] = []
    kept: list[list[str]] = []
    running = harness(backend)
    async with running.stream(flow, 1, run_id="r") as stream:
        async for event in stream.events:
            if isinstance(event, RequestMade):
                seen.append(event)
                kept.append([each.key for each in await running.runs.journal("r") if isinstance(each, Pending)])
        result = await stream.result()
    assert [event.request for event in seen] == list(result.pending)
    assert kept == [[result.pending[0].key]]


# -- killed anywhere


@pytest.mark.parametrize("when", WHENS)
async def test_killed_anywhere_it_comes_to_the_same_end(ledger: Ledger, when: When) -> None:
    def flow() -> AnyStep:
        @tool(long_running=True, needs_approval=True)
        async def render(n: int) -> str:
            """Render."""
            return f"job {n}"

        asking = agent(payments(ledger), render)
        return sequence(asking, parallel(ledger.asking("a"), spawn(ledger.asking("b"))))

    async def whole(dies_at: int | None) -> tuple[Any, bool]:
        store = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when=when)
        model = ScriptedModel(*[_paying] * 30)
        died = False
        results: list[AnyResult] = []
        plan: list[Callable[[], Awaitable[AnyResult]]] = [
            lambda: begin(store, flow(), "go", harness={"model": model}, on_error="result")
        ]
        for _ in range(12):
            with store.outlived():
                results.append(await plan.pop()())
            if store.dead:
                died = True
                store.revive()
            info = [each for each in await harness(store).runs.list() if each.run_id == "r"]
            if not info or not info[0].position:
                plan.append(lambda: begin(store, flow(), "go", harness={"model": model}, on_error="result"))
                continue
            if info[0].status == "completed":
                break
            answers = [_answer_of(each) for each in info[0].pending[-1:]]
            plan.append(partial(go_on, store, flow(), *answers, harness={"model": model}, on_error="result"))
        result = await go_on(store, flow(), harness={"model": model})
        return (result.value, list(outputs(result).values())), died

    expected, died = await whole(None)
    assert (expected, died) == (((1, 2), ["paid 0", "url"]), False)
    deaths = 0
    # In the sample every other one, before the odd ones and after the even ones.
    for dies_at in range(1 if FULL or when == "before" else 2, 100, 1 if FULL else 2):
        found, died = await whole(dies_at)
        assert found == expected, dies_at
        deaths += died
        if not died:
            break
    assert deaths > 5


def _paying(request: ModelRequest) -> Any:
    """A model that asks for two tools, and has done once it knows what came of them."""
    return "done" if any(isinstance(item, FunctionCallOutput) for item in request.items) else calls("pay", "render")


def _answer_of(request: PendingRequest) -> Answer:
    if request.kind == "approval":
        return request.approve()
    return request.answer("url" if request.kind == "result" else {"a": 1, "b": 2}[request.prompt])
