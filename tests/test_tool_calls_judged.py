"""Layers judge the calls of an answer one after the other, before the first is made; what they decide is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Annotated, Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from noetic_py import (
    FunctionCall,
    FunctionCallOutput,
    Harness,
    HookContext,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Secret,
    call_model,
    errors,
    hooks,
    loop,
    parallel,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.core.control import AnyResult
from noetic_py.core.events import LayerFailed
from noetic_py.journal.records import JournalRecord, StepFinished
from noetic_py.memory import Halt, NeedsApproval, PermissionRule, Permissions, Scope
from noetic_py.models.model import ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel
from noetic_py.testing.faults import When
from tests.properties.checks import examples

pytestmark = pytest.mark.anyio

JUDGED = "hooks[before_tool_call]"
made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_made() -> None:
    made.clear()


@tool
async def pay(to: str, amount: int = 1) -> str:
    """Pay somebody."""
    made.append(f"{amount} to {to}")
    return f"paid {amount} to {to}"


def pays(*names: str, **more: Any) -> list[FunctionCall]:
    return [FunctionCall(name="pay", arguments={"to": name, **more}, call_id=f"c-{name}") for name in names]


def agent(*answers: Any, tools: Sequence[Any] = (pay,)) -> Any:
    """A loop with a model that can be asked again: its answer follows from how many outputs it is shown."""
    rounds: dict[int, Any] = {}
    for answer in answers:
        rounds[sum(map(len, rounds.values()))] = answer

    def turn(request: ModelRequest) -> Any:
        return rounds.get(sum(isinstance(item, FunctionCallOutput) for item in request.items), "Done.")

    return loop(call_model(ScriptedModel(*[turn] * 40), tools=tools), until=until.no_tool_calls())


def harness(
    backend: CheckpointBackend | None = None,
    hooks: Sequence[Any] = (),
    most_at_once: int = 16,
    /,
    **layers: MemoryLayer[Any],
) -> Any:
    memory = type("Mem", (Memory,), {"__annotations__": dict.fromkeys(layers, MemoryLayer[Any])})
    return Harness(
        plugins=(),
        checkpoints=backend,
        memory=memory(**layers),
        hooks=hooks,
        max_parallel_tools=most_at_once,
        services={ArtifactStore: StoredArtifacts()},
    )


def outputs(result: AnyResult) -> Sequence[str]:
    return [item.text for item in result.items if isinstance(item, FunctionCallOutput)]


def judgements(journal: Sequence[JournalRecord]) -> set[tuple[str, ...]]:
    """Where a call was judged."""
    found = (each.path for each in journal if isinstance(each, StepFinished))
    return {path for path in found if path[-1].startswith(JUDGED)}


class Limit(MemoryLayer[int]):
    """Counts in the hook, and does not say how two counts become one."""

    most: int = 3
    scope: Scope = Scope.EXECUTION

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
        if self.state >= self.most:
            return "No more tool calls."
        self.state += 1
        return call


FIVE = pays("a", "b", "c", "d", "e")


@pytest.mark.parametrize("most_at_once", [16, 1, 2])
@pytest.mark.parametrize("answers", [[FIVE], [FIVE[:2], FIVE[2:]], [[each] for each in FIVE]])
async def test_calls_of_one_answer_cannot_pass_a_limit_together(answers: list[Any], most_at_once: int) -> None:
    async with harness(None, (), most_at_once, limit=Limit()) as running:
        result = await running.run(agent(*answers), "Go.")
    assert outputs(result) == ["paid 1 to a", "paid 1 to b", "paid 1 to c", *["No more tool calls."] * 2]
    assert sorted(made) == ["1 to a", "1 to b", "1 to c"]
    assert result.memory["limit"] == 3


# ------------------------------------------------------------------------------------------- wherever the process dies


class Judge(MemoryLayer[int]):
    """Decides by how many calls it has seen, and says which process has decided."""

    most: int = 3
    process: int = 1
    asked: dict[str, list[int]]
    fail_closed: bool = True
    scope: Scope = Scope.EXECUTION

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str | NeedsApproval:
        self.asked.setdefault(call.call_id, []).append(self.process)
        self.state += 1
        wanted = json.loads(call.arguments)
        if self.state > self.most:
            return f"no more, says {self.process}"
        match wanted["how"]:
            case "refused":
                return f"refused by {self.process}"
            case "broken":
                raise ValueError("the judge is away")
            case "approved":
                return NeedsApproval("who knows")
            case "changed":
                return evolve(call, arguments=json.dumps(wanted | {"by": self.process}))
            case _:
                return call


@tool
async def work(number: int, how: str, by: int = 0) -> str:
    """Work."""
    return f"{number} made, says {by}" if by else f"{number} made"


NEVER: tuple[int, When] = (10_000, "before")
HOWS = ["plain", "changed", "refused", "broken", "approved"]
Rounds = list[list[str]]


def expected(rounds: Rounds, most: int) -> tuple[list[str], int]:
    """What the calls give, whichever answers they are in, and how many were counted."""
    seen, said = 0, list[str]()
    for number, how in enumerate(how for each in rounds for how in each):
        seen += 1
        if seen > most:
            said.append("no more, says ?")
        elif how == "refused":
            said.append("refused by ?")
        elif how == "broken":
            # What a failing hook has done to the state is undone.
            seen -= 1
            said.append("The call was blocked: judge could not check it.")
        else:
            said.append(f"{number} made, says ?" if how == "changed" else f"{number} made")
    return said, seen


def working(rounds: Rounds) -> Any:
    numbers = count()
    answers = [
        [
            FunctionCall(name="work", arguments={"number": number, "how": how}, call_id=f"c{number}")
            for how, number in zip(each, islice(numbers, len(each)), strict=True)
        ]
        for each in rounds
    ]
    return agent(*answers, tools=[work])


async def lived(backend: FaultyBackend, rounds: Rounds, judge: Judge) -> AnyResult | None:
    """What a process comes to that runs, or goes on with, the run; `None` when it dies."""
    with suppress(errors.CheckpointError), backend.outlived():
        async with harness(backend, judge=judge) as running:
            begun, flow = await has_begun(backend), working(rounds)
            result: AnyResult = await (running.resume("r", flow) if begun else running.run(flow, "Go.", run_id="r"))
            while result.status == "suspended":
                result = await running.resume("r", flow, answers=[each.approve() for each in result.pending])
            return result
    assert backend.dead
    return None


@settings(max_examples=examples(12, 1500))
@given(
    rounds=st.lists(st.lists(st.sampled_from(HOWS), min_size=1, max_size=5), min_size=1, max_size=3),
    most=st.integers(0, 8),
    kills=st.lists(st.tuples(st.integers(1, 25), st.sampled_from(["before", "after"])), max_size=2),
)
async def test_no_call_is_counted_twice_or_decided_anew_wherever_the_process_dies(
    rounds: Rounds, most: int, kills: list[tuple[int, When]]
) -> None:
    backend, asked = FaultyBackend(InMemoryBackend()), dict[str, list[int]]()
    decided: dict[tuple[str, ...], int] = {}
    result, points = None, [*kills, NEVER]
    for process, (dies_at, when) in enumerate(points, 1):
        backend.revive(dies_at=dies_at, when=when)
        result = await lived(backend, rounds, Judge(most=most, process=process, asked=asked))
        backend.revive()
        known = judgements(await journal_of(backend))
        decided |= dict.fromkeys(known - decided.keys(), process)
        if result is not None:
            break
    assert result is not None
    said, seen = expected(rounds, most)
    told = outputs(result)
    processes = {str(process) for process in decided.values()}
    assert [text[:-1] + "?" if text[-1] in processes else text for text in told] == said
    assert result.memory["judge"] == seen
    flat = [(at, index) for at, each in enumerate(rounds) for index in range(len(each))]
    for number, (at, index) in enumerate(flat):
        name = f"{JUDGED}#{index}" if index else JUDGED
        (process,) = (by for path, by in decided.items() if path[-2:] == (f"call_model[{at}]", name))
        # Once in each process up to the one that has recorded the decision, and in none after it.
        assert asked[f"c{number}"] == sorted(set(asked[f"c{number}"]))
        assert asked[f"c{number}"][-1] == process
        if told[number][-1].isdecimal():
            assert told[number].endswith(f" {process}")


async def has_begun(backend: CheckpointBackend) -> bool:
    head = await backend.head("r")
    return head is not None and head.position > 0


async def journal_of(backend: CheckpointBackend) -> Sequence[JournalRecord]:
    """The records of the run, none where it has not begun."""
    if not await has_begun(backend):
        return ()
    found: Sequence[JournalRecord] = await Harness(plugins=(), checkpoints=backend).runs.journal("r")
    return found


# ------------------------------------------------------------------------------------------------ what a layer decides


async def test_a_halt_ends_the_run_before_any_call_of_the_answer() -> None:
    class Halts(Limit):
        async def before_tool_call(self, call: FunctionCall) -> Any:
            self.state += 1
            return Halt("enough") if '"b"' in call.arguments else call

    backend = InMemoryBackend()
    async with harness(backend, limit=Halts()) as running:
        result = await running.run(agent(pays("a", "b", "c")), "Go.", run_id="r")
        assert (result.status, made, result.memory["limit"]) == ("aborted", [], 2)
        again = await running.resume("r", agent(pays("a", "b", "c")))
    assert (again.status, made, again.memory["limit"]) == ("aborted", [], 2)


async def test_a_call_that_its_approval_changes_is_judged_by_what_was_known_before_it() -> None:
    class Purse(MemoryLayer[int]):
        """Has so much to spend, and wants to be asked."""

        scope: Scope = Scope.EXECUTION

        async def before_tool_call(self, call: FunctionCall) -> str | NeedsApproval:
            self.state += json.loads(call.arguments)["amount"]
            return f"no: {self.state}" if self.state > 10 else NeedsApproval(f"then it is {self.state}")

    flow = agent(pays("a", "b", amount=5))
    async with harness(InMemoryBackend(), purse=Purse()) as running:
        result = await running.run(flow, "Go.", run_id="r")
        assert [each.prompt for each in result.pending] == ["then it is 5", "then it is 10"]
        # Both at once, and no merge is defined: a call that is judged again leaves nothing behind.
        answers = [each.approve(arguments={"to": "c", "amount": 4 + at}) for at, each in enumerate(result.pending)]
        result = await running.resume("r", flow, answers=answers)
    assert sorted(made) == ["4 to c", "5 to c"]
    assert result.memory["purse"] == 10
    made.clear()
    async with harness(InMemoryBackend(), purse=Purse()) as running:
        result = await running.run(flow, "Go.", run_id="r")
        first, second = result.pending
        answers = [first.approve(), second.approve(arguments={"to": "c", "amount": 6})]
        result = await running.resume("r", flow, answers=answers)
    assert made == ["5 to a"]
    assert outputs(result)[1].endswith("no: 11")
    assert result.memory["purse"] == 10


async def test_what_was_blocked_stays_blocked_when_the_layer_works_again() -> None:
    class Guard(MemoryLayer[int]):
        broken: bool = True
        fail_closed: bool = True

        async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
            if self.broken and '"a"' in call.arguments:
                raise ValueError("away")
            return call

    flow = agent(pays("a", "b"))
    backend = await decided_and_not_made(flow, guard=Guard())
    async with harness(backend, guard=Guard(broken=False)) as running:
        result = await running.resume("r", flow)
    assert outputs(result) == ["The call was blocked: guard could not check it.", "paid 1 to b"]


async def decided_and_not_made(flow: Any, hooks: Sequence[Any] = (), **layers: MemoryLayer[Any]) -> FaultyBackend:
    """A run whose process has died once all calls of the only round were judged, and none was made."""
    whole = FaultyBackend(InMemoryBackend())
    async with harness(whole, hooks, **layers) as running:
        await running.run(flow, "Go.", run_id="r")
    wanted = judgements(await journal_of(whole))
    assert wanted
    backend = whole
    for dies_at in range(1, whole.appends + 1):
        backend = FaultyBackend(InMemoryBackend(), dies_at=dies_at, when="after")
        with backend.outlived():
            async with harness(backend, hooks, **layers) as running:
                await running.run(flow, "Go.", run_id="r")
        backend.revive()
        if judgements(await journal_of(backend)) == wanted:
            break
    made.clear()
    return backend


async def test_decisions_hold_for_layers_that_are_others_by_now() -> None:
    class Doubles(MemoryLayer[int]):
        times: int = 2

        async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
            wanted = json.loads(call.arguments)
            return evolve(call, arguments=json.dumps(wanted | {"amount": wanted["amount"] * self.times}))

    flow = agent(pays("a", "b", amount=5))
    backend = await decided_and_not_made(flow, doubles=Doubles())
    async with harness(backend, doubles=Doubles(times=3)) as running:
        fork = await running.fork("r")
        await running.resume("r", flow)
    assert sorted(made) == ["10 to a", "10 to b"]
    made.clear()
    # The layer has no part in the run any more, and what it has decided still holds.
    async with Harness(plugins=(), checkpoints=backend) as running:
        await running.resume(fork, flow)
    assert sorted(made) == ["10 to a", "10 to b"]


async def test_what_rules_deny_by_now_is_not_made_although_it_was_decided() -> None:
    flow = agent(pays("a", "b"))
    rules = [PermissionRule("allow", "pay")]
    backend = await decided_and_not_made(flow, rules=Permissions(rules=rules), limit=Limit())
    stricter = [*rules, PermissionRule("deny", "pay", where={"to": "b"})]
    async with harness(backend, rules=Permissions(rules=stricter), limit=Limit(most=0)) as running:
        fork = await running.fork("r")
        result = await running.resume("r", flow)
        assert outputs(result) == ["paid 1 to a", "The call was refused: a rule for 'pay' says so."]
        assert result.memory["limit"] == 2
    asking = [*rules, PermissionRule("ask", "pay", where={"to": "b"})]
    async with harness(backend, rules=Permissions(rules=asking), limit=Limit()) as running:
        result = await running.resume(fork, flow)
        assert [each.arguments["to"] for each in result.pending] == ["b"]
    assert made == ["1 to a", "1 to a"]


async def test_an_answer_that_is_no_decision_is_a_failure_of_the_layer() -> None:
    class Odd(MemoryLayer[int]):
        answer: Callable[[FunctionCall], Any]

        async def before_tool_call(self, call: FunctionCall) -> Any:
            return self.answer(call)

    odd: list[Callable[[FunctionCall], Any]] = [
        lambda call: None,
        lambda call: evolve(call, name="steal"),
        lambda call: FunctionCall(name=call.name, arguments=call.arguments),
    ]
    for answer in odd:
        for closed, said in ((False, "paid 1 to a"), (True, "The call was blocked: odd could not check it.")):
            running = harness(odd=Odd(answer=answer, fail_closed=closed))
            async with running, running.stream(agent(pays("a")), "Go.") as stream:
                failed = [event async for event in stream.events if isinstance(event, LayerFailed)]
                result = await stream.result()
            assert outputs(result) == [said]
            assert [(event.layer, event.hook) for event in failed] == [("odd", "before_tool_call")]
            assert "expected this call" in failed[0].error


# ------------------------------------------------------------------------------------------------------- with all else


async def test_hooks_come_before_layers_and_are_called_once_for_each_call() -> None:
    told: list[str] = []

    @hooks.before_tool
    async def before(ctx: HookContext[Any, Any], call: FunctionCall) -> FunctionCall | hooks.Block | str | None:
        told.append(f"hook {call.arguments}")
        wanted = json.loads(call.arguments)["to"]
        ctx.effects.state["seen"] = [*ctx.state.get("seen", []), wanted]
        ctx.effects.save("seen.txt", call.arguments.encode(), scope="run")
        match wanted:
            case "a":
                return evolve(call, arguments=json.dumps({"to": "A"}))
            case "b":
                return hooks.Block("not b")
            case "c":
                return "c is paid already"
            case _:
                return None

    class Tells(Limit):
        async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
            told.append(f"layer {call.arguments}")
            return await super().before_tool_call(call)

    flow = agent(pays("a", "b", "c", "d"))
    backend = await decided_and_not_made(flow, [before], limit=Tells(most=1))
    assert told[:6] == [
        'hook {"to":"a","amount":1}',
        'layer {"to":"A","amount":1}',
        'hook {"to":"b","amount":1}',
        'hook {"to":"c","amount":1}',
        'hook {"to":"d","amount":1}',
        'layer {"to":"d","amount":1}',
    ]
    told.clear()
    async with harness(backend, [before], limit=Tells(most=1)) as running:
        result = await running.resume("r", flow)
    assert told == []
    assert outputs(result) == ["paid 1 to A", "not b", "c is paid already", "No more tool calls."]
    assert result.state["seen"] == ["a", "b", "c", "d"]
    assert await StoredArtifacts(backend).versions(ArtifactOwner("run", "r"), "seen.txt") == [1, 2, 3, 4]


numbers = count()


class Numbered(BaseModel):
    number: Annotated[int, Field(default_factory=lambda: next(numbers))]


class Looks(MemoryLayer[int]):
    """Notes what it is shown."""

    seen: list[str]

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        self.seen.append(call.arguments)
        return call


async def test_what_was_judged_is_what_the_tool_receives_in_a_later_process_too() -> None:
    @tool(name="pay")
    async def order(to: str, order: Numbered) -> str:
        """Order something."""
        made.append(str(order.number))
        return "ordered"

    seen = list[str]()
    backend = await decided_and_not_made(flow := agent(pays("a", order={}), tools=[order]), looks=Looks(seen=seen))
    judged = str(json.loads(seen[-1])["order"]["number"])
    seen.clear()
    async with harness(backend, looks=Looks(seen=seen)) as running:
        await running.resume("r", flow)
    assert (made, seen) == ([judged], [])


async def test_a_secret_is_in_no_record_and_its_call_is_not_judged_again() -> None:
    @tool(name="pay")
    async def login(to: str, password: Secret[str]) -> str:
        """Log in."""
        made.append(password.reveal())
        return "logged in"

    seen = list[str]()
    backend = await decided_and_not_made(
        flow := agent(pays("a", password="open sesame"), tools=[login]), looks=Looks(seen=seen)
    )
    assert seen == ['{"to":"a","password":"[secret]"}'] * len(seen)
    seen.clear()
    async with harness(backend, looks=Looks(seen=seen)) as running:
        result = await running.resume("r", flow)
    # The secret was in the memory of the process that has died, so the model has to call again.
    assert "password" in outputs(result)[0]
    assert (made, seen) == ([], [])
    assert not any(b"sesame" in record.payload for record in await backend.read("r"))


class Fresh(BaseModel):
    """What is shown of one is not what comes out when that is read again."""

    number: Annotated[int, Field(default_factory=lambda: next(numbers))]

    def __init__(self, **values: Any) -> None:
        super().__init__()


async def test_what_is_another_call_by_now_is_judged_again() -> None:
    @tool(name="pay")
    async def order(to: str, order: Fresh) -> str:
        """Order something."""
        made.append(to)
        return "ordered"

    class Closes(Limit):
        last: float = 1e9

        async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
            if json.loads(call.arguments)["order"]["number"] > self.last:
                return "too late"
            return await super().before_tool_call(call)

    flow = agent(pays("a", "b", order={}), tools=[order])
    backend = await decided_and_not_made(flow, limit=Closes(most=2))
    async with harness(backend, limit=Closes(most=2)) as running:
        fork = await running.fork("r")
        result = await running.resume("r", flow)
    # Each is judged by what was known before it, and counts once.
    assert (sorted(made), result.memory["limit"]) == (["a", "b"], 2)
    async with harness(backend, limit=Closes(most=2, last=0)) as running:
        result = await running.resume(fork, flow)
    assert (outputs(result), len(made)) == (["too late", "too late"], 2)


async def test_nothing_is_recorded_where_no_layer_has_the_hook() -> None:
    class Plain(MemoryLayer[int]):
        async def recall(self, query: str, budget: int) -> str:
            return "known"

    @hooks.before_tool
    async def before(ctx: HookContext[Any, Any], call: FunctionCall) -> None:
        return None

    backend = InMemoryBackend()
    async with harness(backend, [before], plain=Plain()) as running:
        await running.run(agent(pays("a", "b")), "Go.", run_id="r")
    assert not judgements(await journal_of(backend))


async def test_parallel_paths_begin_with_the_same_state_and_are_merged() -> None:
    class Merged(Limit):
        def merge(self, base: int, mine: int, theirs: int) -> int:
            return theirs + mine - base

    paths = parallel([agent(pays("a", "b", "c")), agent(pays("d", "e", "f"))])
    async with harness(limit=Merged(most=2)) as running:
        result = await running.run(paths, "Go.")
    assert sorted(made) == ["1 to a", "1 to b", "1 to d", "1 to e"]
    assert result.memory["limit"] == 4
