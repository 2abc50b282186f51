"""The programs of the recorded histories.

Nothing in this file is ever changed or taken away, not even a body's wording: the journals beside it were written by
it, and a run that a user has begun with an earlier release is in the same place. New programs are added at the end.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, TypeAlias

import anyio
from attrs import define, field, frozen
from pydantic import BaseModel

from noetic_py import (
    NOT_DONE,
    Ask,
    Budget,
    Channel,
    Context,
    Extension,
    FunctionCall,
    FunctionCallOutput,
    Memory,
    MemoryLayer,
    Message,
    ModelRequest,
    ReadContext,
    Reasoning,
    Retry,
    StateBag,
    Step,
    branch,
    call_model,
    call_tool,
    each,
    errors,
    extension_item,
    loop,
    parallel,
    race,
    sequence,
    settle,
    spawn,
    step,
    step_tool,
    tool,
    until,
)
from noetic_py.memory import Scope, ToolLimits

AnyStep: TypeAlias = Step[Any, Any, Any, Any]
Ctx: TypeAlias = Context[Memory, Any]
AnyContext: TypeAlias = Context[Any, Any]

BEGAN: list[str] = []
"""The bodies that were started, by their paths."""

WORLD: Counter[str] = Counter()
"""What bodies remember of this process, and no journal does; `"process"` is 1 in the one that begins a run."""


def began(ctx: AnyContext) -> None:
    """A body begins."""
    BEGAN.append("/".join(ctx.path))


def say(ctx: AnyContext, text: str) -> None:
    """Put a message into the conversation."""
    ctx.items.append(Message.assistant(text))


@dataclass(frozen=True)
class Program:
    """A flow, and what it is run with.

    Attributes:
        flow: The flow.
        value: Its input.
        state: Makes the state that it begins with; a `StateBag` when left out.
        state_type: The type that the state has when the run is resumed.
        answer: What the model says to a request, when there is one.
        options: Of the run.
        memory: Makes the layers of the harness, when there are any.
    """

    flow: AnyStep
    value: Any = 1
    state: Callable[[], Any] | None = None
    state_type: type[Any] | None = None
    answer: Callable[[ModelRequest], Any] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    memory: Callable[[], Memory] | None = None


PROGRAMS: dict[str, Callable[[], Program]] = {}
"""Every program, by its name."""


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Register a program."""
    PROGRAMS[make.__name__] = make
    return make


# ------------------------------------------------------------------------------------------------------- code steps


@program
def replay_kinds() -> Program:
    """The three kinds of replay, with items and state."""

    @step
    async def repeatable(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"repeatable {x}")
        ctx.state["seen"] = [x]
        return x + 1

    @step(replay="keyed")
    async def keyed(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"keyed {len(ctx.idempotency_key) > 0}")
        ctx.state["seen"].append(x)
        return x * 10

    @step(replay="once")
    async def once(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"once {x}")
        ctx.state["seen"].append(x)
        return x + 3

    return Program(sequence(repeatable, keyed, once, id="kinds"))


@program
def reconciled() -> Program:
    """A step that may run only once, and asks what became of it."""

    async def look(order: str, ctx: ReadContext) -> object:
        return NOT_DONE if order == "unknown" else f"receipt for {order}"

    @step(replay="once", reconcile=look)
    async def charge(order: str, ctx: Ctx) -> str:
        began(ctx)
        return f"receipt for {order}"

    @step
    async def after(receipt: str, ctx: Ctx) -> str:
        began(ctx)
        return receipt.upper()

    return Program(charge >> after, "order-7")


@program
def body_with_children() -> Program:
    """A body that calls steps, the same one several times, and works between them."""

    @step
    async def child(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"child {x}")
        ctx.state["total"] = ctx.state.get("total", 0) + x
        return x + 1

    @step
    async def inner(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "inner before")
        found = await child(x, ctx)
        say(ctx, "inner after")
        return found

    @step
    async def outer(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "outer")
        first = await child(x, ctx)
        ctx.state["between"] = first
        second = await inner(first, ctx)
        say(ctx, "outer again")
        return await child(second, ctx)

    return Program(outer, 5)


@program
def gathered() -> Program:
    """Steps at once, in the middle of a body."""

    @step
    async def left(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "left")
        return x + 1

    @step
    async def right(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x * 2

    @step
    async def both(x: int, ctx: Ctx) -> int:
        began(ctx)
        a, b = await ctx.gather(left.bind(x), right.bind(x))
        say(ctx, f"{a} and {b}")
        c, d = await ctx.gather(left.bind(a), right.bind(b))
        return a + b + c + d

    return Program(both, 3)


# ------------------------------------------------------------------------------------------------------- decisions


@program
def decided() -> Program:
    """A branch whose route is a decision, twice."""

    async def route(x: int, ctx: ReadContext) -> str:
        BEGAN.append("route")
        return "large" if x > 2 else "small"

    @step
    async def small(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + 10

    @step
    async def large(x: int, ctx: Ctx) -> int:
        began(ctx)
        return -x

    chosen = branch(route, {"small": small, "large": large}, id="chosen")
    return Program(sequence(chosen, chosen, id="twice"))


@program
def judged() -> Program:
    """A loop with a verdict of its own, feedback, and inputs that are made of outputs."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.state[f"round {ctx.state.get('rounds', 0)}"] = x
        ctx.state["rounds"] = ctx.state.get("rounds", 0) + 1
        return x * 2

    def judge(snapshot: until.Snapshot[int]) -> until.Verdict:
        BEGAN.append("judge")
        return until.Verdict(snapshot.iteration >= 2, "enough", "go on")

    def further(output: int, verdict: until.Verdict, ctx: object) -> int:
        BEGAN.append("further")
        return output + len(verdict.feedback or "")

    return Program(loop(work, until=until.custom(judge), prepare_next=further, id="rounds"))


@program
def loop_stopped() -> Program:
    """A loop that a body ends."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        if x == 3:
            ctx.stop_loop(100)
        return x + 1

    @step
    async def after(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + 1

    return Program(sequence(loop(work, until=until.max_rounds(9), id="rounds"), after, id="flow"))


# ------------------------------------------------------------------------------------------------------- sections


@program
def merged() -> Program:
    """A section whose paths change their states, and a merge that reads them."""

    @step
    async def first(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.state["n"] = x + 1
        return x + 1

    @step
    async def second(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.state["n"] = x + 2
        say(ctx, "second")
        return x + 2

    def merge(results: Sequence[int], ctx: Ctx, states: Sequence[StateBag]) -> int:
        BEGAN.append("merge")
        ctx.state["all"] = [state["n"] for state in states]
        return sum(results)

    @step
    async def last(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + len(ctx.state["all"])

    makes: Any = parallel
    return Program(sequence(makes([first, second], merge=merge, id="both"), last, id="flow"))


@program
def raced() -> Program:
    """A race: the loser waits until it is cancelled."""

    @step
    async def quick(x: int, ctx: Ctx) -> str:
        began(ctx)
        ctx.state["who"] = "quick"
        say(ctx, "quick")
        return f"quick {x}"

    @step
    async def never(x: int, ctx: Ctx) -> str:
        await anyio.sleep_forever()
        return "never"

    @step
    async def after(text: str, ctx: Ctx) -> str:
        began(ctx)
        return f"{text} of {ctx.state['who']}"

    return Program(sequence(race([never, quick], id="race"), after, id="flow"))


@program
def settled() -> Program:
    """A section in which one path fails, and all are looked at."""

    @step
    async def good(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + 1

    @step
    async def bad(x: int, ctx: Ctx) -> int:
        began(ctx)
        raise ValueError(f"bad {x}")

    @step
    async def look(outcomes: Any, ctx: Ctx) -> str:
        began(ctx)
        return " ".join(str(one.value) if one.ok else type(one.error).__name__ for one in outcomes)

    return Program(sequence(settle([good, bad], id="section"), look, id="flow"))


@program
def for_each() -> Program:
    """One step for each of several inputs, two at once."""

    @step
    async def split(text: str, ctx: Ctx) -> list[str]:
        began(ctx)
        return text.split()

    @step
    async def word(text: str, ctx: Ctx) -> int:
        began(ctx)
        return len(text)

    @step
    async def add(lengths: list[int], ctx: Ctx) -> int:
        began(ctx)
        return sum(lengths)

    return Program(sequence(split, each(word, concurrency=2, id="words"), add, id="flow"), "ebb and flow")


@program
def nested() -> Program:
    """A loop in a section in a spawn in a sequence, tried again."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.state["deep"] = [*ctx.state.get("deep", []), x]
        return x + 1

    @step
    async def shaky(x: int, ctx: Ctx) -> int:
        began(ctx)
        WORLD["shaky"] += 1
        if WORLD["shaky"] == 1:
            raise OSError("the first time")
        return x

    rounds = loop(work, until=until.max_rounds(2), id="rounds")

    def merge(results: list[int]) -> int:
        return sum(results)

    makes: Any = parallel
    both = makes([rounds, sequence(shaky, work, id="row")], merge=merge, id="both")
    child = spawn(both, state="deepcopy", id="child").with_options(retry=Retry(3, initial=0))

    @step
    async def last(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x * 100

    return Program(sequence(work, child, last, id="flow"))


# ------------------------------------------------------------------------------------------------------- spawns


@program
def spawned() -> Program:
    """Executions of their own, with every kind of state and conversation."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"work {x} after {len(ctx.items)}")
        ctx.state["n"] = ctx.state.get("n", 0) + x
        ctx.state["list"] = [*(ctx.state.get("list") or []), x]
        return len(ctx.items)

    children = [
        spawn(work, state="new", id="new"),
        spawn(work, state="deepcopy", items="copy", id="deepcopy"),
        spawn(work, state="copy", items="view", id="copy"),
        spawn(work, state="share", id="shares state"),
        spawn(work, state="share", items="share", id="shares all"),
        spawn(work, state=lambda: StateBag({"n": 1000}), items="share", id="made"),
    ]
    return Program(sequence(work, *children, id="flow"))


@program
def child_aborts() -> Program:
    """A spawn that gives up, and a parent that handles it; and one that completes early."""

    @step
    async def gives_up(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.abort(f"no more than {x}")
        return x

    @step
    async def early(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.complete(77)
        return x

    @step
    async def never(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x

    aborts = spawn(sequence(gives_up, never, id="row"), id="aborts")
    completes = spawn(sequence(early, never, id="row"), id="completes")

    @step
    async def parent(x: int, ctx: Ctx) -> str:
        began(ctx)
        try:
            await aborts(x, ctx)
        except errors.Aborted as error:
            said = str(error.reason)
        else:
            said = "nothing"
        found = await completes(x, ctx)
        return f"{said}, {found}"

    return Program(parent, 4)


# ------------------------------------------------------------------------------------------------------- failures


@program
def tried_again() -> Program:
    """A body that works the third time, and leaves nothing of the first two."""

    @step
    async def child(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.state["child"] = x
        return x + 1

    @step(retry=Retry(5, initial=0))
    async def shaky(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "try")
        found = await child(x, ctx)
        WORLD["tries"] += 1
        if WORLD["tries"] < 3:
            raise OSError(f"try {WORLD['tries']}")
        return found

    @step
    async def after(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x * 2

    return Program(sequence(shaky, after, id="flow"))


@program
def handled() -> Program:
    """A failure that the parent handles, and what it does then."""

    @step
    async def bad(x: int, ctx: Ctx) -> int:
        began(ctx)
        raise LookupError(f"no {x}")

    @step
    async def good(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + 1

    @step
    async def parent(x: int, ctx: Ctx) -> str:
        began(ctx)
        try:
            await bad(x, ctx)
        except errors.StepFailed as error:
            say(ctx, f"{error.error_type}: {error.error_message}")
        return f"{await good(x, ctx)}"

    return Program(sequence(parent, id="flow"))


@program
def broken() -> Program:
    """A run that fails, and fails again when it is resumed."""

    @step
    async def good(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "good")
        return x + 1

    @step(retry=Retry(2, initial=0))
    async def bad(x: int, ctx: Ctx) -> int:
        began(ctx)
        raise RuntimeError(f"broken at {x}")

    return Program(sequence(good, bad, id="flow"))


@program
def skipped() -> Program:
    """A loop that decides what a failed round means."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        WORLD["rounds"] += 1
        if WORLD["rounds"] == 2:
            raise ValueError("the second time")
        return x + 1

    return Program(loop(work, until=until.max_rounds(3), on_error=lambda error, ctx: "retry", id="rounds"))


# ------------------------------------------------------------------------------------------------------- models


def _agent(request: ModelRequest) -> Any:
    outputs = [item for item in request.items if isinstance(item, FunctionCallOutput)]
    if not outputs:
        return [
            FunctionCall(name="height", arguments={"port": "Brest"}),
            FunctionCall(name="height", arguments={"port": "Dover"}),
        ]
    if len(outputs) == 2:
        return [Reasoning(summary=("one more",)), FunctionCall(name="mean", arguments={"numbers": [6, 8]})]
    return Message.assistant("The mean is 7 m.")


@program
def agent() -> Program:
    """A model that calls tools, two at once, and then another one, which is a step."""

    @tool
    async def height(ctx: Ctx, port: str) -> str:
        """How high the tide is."""
        began(ctx)
        return f"{port}: {len(port)} m"

    @step
    async def average(numbers: list[int], ctx: Ctx) -> float:
        began(ctx)
        return sum(numbers) / len(numbers)

    @tool
    async def mean(ctx: Ctx, numbers: list[int]) -> float:
        """The mean."""
        began(ctx)
        return await average(numbers, ctx)

    makes: Any = call_model
    asks = loop(
        makes(tools=[height, mean], instructions="Answer with a number."), until=until.no_tool_calls(), id="agent"
    )
    return Program(asks, "How high is it?", answer=_agent)


class Report(BaseModel):
    """A model's output."""

    port: str
    height: float


def _report(request: ModelRequest) -> Any:
    if len(request.items) == 1:
        return Message.assistant('{"port": "Brest"}')
    return Message.assistant('{"port": "Brest", "height": 6.9}')


@program
def structured() -> Program:
    """A model whose first answer does not fit."""

    asks = call_model(output=Report, output_retries=2, id="ask")

    @step
    async def after(report: Report, ctx: Ctx) -> str:
        began(ctx)
        return f"{report.port}: {report.height}"

    return Program(sequence(asks, after, id="flow"), "How high is it?", answer=_report)


def _step_tool(request: ModelRequest) -> Any:
    if isinstance(last := request.items[-1], FunctionCallOutput):
        return Message.assistant(f"It says {last.output}.")
    return FunctionCall(name="double", arguments={"input": 21})


@program
def steps_as_tools() -> Program:
    """A step as a model's tool, and a tool as a step."""

    @step
    async def double(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x * 2

    @tool
    async def shout(ctx: Ctx, text: str) -> str:
        """Say it louder."""
        began(ctx)
        return text.upper()

    doubles = step_tool(double, name="double", description="Twice as much.")
    asks: Any = loop(call_model(tools=[doubles]), until=until.no_tool_calls(), id="agent")

    def arguments(text: str) -> dict[str, object]:
        return {"text": text}

    calls: Any = call_tool
    called = calls(shout, args=arguments, id="shout")
    return Program(sequence(asks, called, id="flow"), "What is twice 21?", answer=_step_tool)


# ------------------------------------------------------------------------------------------------------- channels

QUEUE = Channel("queue", int)
LATEST = Channel("latest", str, mode="value")
INBOX = Channel("inbox", str)


@program
def posted() -> Program:
    """Messages that steps send and take, some of which stay."""

    @step
    async def sends(x: int, ctx: Ctx) -> int:
        began(ctx)
        for number in range(3):
            await ctx.send(QUEUE, x + number)
        await ctx.send(LATEST, "high")
        return x

    @step
    async def takes(x: int, ctx: Ctx) -> int:
        began(ctx)
        return await ctx.recv(QUEUE, timeout=5) * 10 + (ctx.try_recv(QUEUE) or 0)

    @step
    async def rest(x: int, ctx: Ctx) -> str:
        began(ctx)
        return f"{x} {ctx.try_recv(QUEUE)} {ctx.try_recv(QUEUE)} {await ctx.recv(LATEST, timeout=5)}"

    return Program(sequence(sends, takes, rest, id="flow"))


@program
def inbox() -> Program:
    """A loop whose inputs are messages."""

    @step
    async def fill(text: str, ctx: Ctx) -> str:
        began(ctx)
        for word in text.split():
            await ctx.send(INBOX, word)
        return "first"

    @step
    async def echo(text: str, ctx: Ctx) -> str:
        began(ctx)
        say(ctx, text)
        return text.upper()

    return Program(sequence(fill, loop(echo, until=until.max_rounds(1), inbox=INBOX, id="listen"), id="flow"), "a b c")


@program
def given_back() -> Program:
    """A message that an attempt has taken, and that the next one takes again."""

    @step
    async def sends(x: int, ctx: Ctx) -> int:
        began(ctx)
        await ctx.send(QUEUE, x)
        await ctx.send(QUEUE, x + 1)
        return x

    @step(retry=Retry(5, initial=0))
    async def takes(x: int, ctx: Ctx) -> int:
        began(ctx)
        found = await ctx.recv(QUEUE, timeout=5)
        WORLD["takes"] += 1
        if WORLD["takes"] == 1:
            raise OSError("the oven was cold")
        return found

    return Program(sequence(sends, takes, takes, id="flow"), 7)


# ------------------------------------------------------------------------------------------------------- beside


@program
def detached() -> Program:
    """Work beside the flow."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "beside")
        return x * 2

    @step
    async def starts(x: int, ctx: Ctx) -> int:
        began(ctx)
        handle = ctx.spawn_detached(sequence(work, work, id="row"), x)
        result: Any = await handle.wait()
        found: int = result.value
        return found

    @step
    async def after(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + 1

    return Program(sequence(starts, after, id="flow"), 3)


# ------------------------------------------------------------------------------------------------------- ends


@program
def completes() -> Program:
    """A step that ends the run with a value, in a section."""

    @step
    async def enough(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "enough")
        ctx.state["n"] = x
        ctx.complete({"found": x})
        return x

    @step
    async def never(x: int, ctx: Ctx) -> int:
        await anyio.sleep_forever()
        return x

    @step
    async def after(x: object, ctx: Ctx) -> int:
        began(ctx)
        return 0

    first = enough.with_options(id="first", tags={"place": "before"})
    return Program(sequence(parallel([never, first], id="both"), after, id="flow"), 5)


@program
def aborts() -> Program:
    """A step that gives up."""

    @step
    async def good(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "good")
        return x + 1

    @step
    async def gives_up(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.state["n"] = x
        ctx.abort("not worth it")
        return x

    @step
    async def after(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x

    return Program(sequence(good, gives_up, after, id="flow"))


@program
def out_of_budget() -> Program:
    """A budget that is spent after three steps."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + 1

    return Program(loop(work, until=until.max_rounds(9), id="rounds"), options={"budget": Budget(steps=3)})


def _yes(request: ModelRequest) -> Any:
    return Message.assistant(f"yes, {len(request.items)}")


@program
def out_of_money() -> Program:
    """A budget of money, with models."""

    asks: Any = sequence(*[call_model(id=f"ask {number}") for number in range(4)], id="flow")
    budget = Budget(cost=Decimal("0.60"), model_calls=9, per_tool={"none": 1})
    settings = {"max_output_tokens": 50}
    return Program(asks, "Well?", answer=_yes, options={"budget": budget, "model_settings": settings})


# ------------------------------------------------------------------------------------------------------- commits


@program
def committed_by_hand() -> Program:
    """A run that commits when it is told."""

    @step
    async def silent(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "silent")
        return x + 1

    @step
    async def told(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, "before")
        await ctx.checkpoint()
        say(ctx, "after")
        return x * 10

    return Program(sequence(silent, told, silent, id="flow"), options={"durability": "manual"})


@program
def checkpointed() -> Program:
    """A long body that commits in its middle."""

    @step
    async def long(x: int, ctx: Ctx) -> int:
        began(ctx)
        for number in range(3):
            say(ctx, f"part {number}")
            ctx.state["part"] = number
            await ctx.checkpoint()
        return x

    @step
    async def after(x: int, ctx: Ctx) -> int:
        began(ctx)
        part: int = ctx.state["part"]
        return x + part

    return Program(sequence(long, after, id="flow"))


@program
def large() -> Program:
    """Payloads that are stored apart, one of them twice."""

    @step
    async def writes(x: int, ctx: Ctx) -> str:
        began(ctx)
        return "tide " * 3600

    @step
    async def reads(text: str, ctx: Ctx) -> str:
        began(ctx)
        return text

    @step
    async def counts(text: str, ctx: Ctx) -> int:
        began(ctx)
        return len(text)

    return Program(sequence(writes, reads, counts, id="flow"))


# ------------------------------------------------------------------------------------------------------- values


class Colour(Enum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


@frozen
class Place:
    """A value of attrs."""

    name: str
    height: Decimal
    colours: tuple[Colour, ...] = ()


@dataclass
class Visit:
    """A value of dataclasses."""

    place: Place
    when: datetime
    notes: dict[str, list[int]] = dataclasses.field(default_factory=dict[str, list[int]])


class Letter(BaseModel):
    """A value of pydantic's."""

    to: str
    lines: list[str] = []


@program
def typed() -> Program:
    """Values of every kind of class, as inputs and outputs."""

    @step
    async def place(name: str, ctx: Ctx) -> Place:
        began(ctx)
        return Place(name, Decimal("6.90"), (Colour.BLUE, Colour.RED))

    @step
    async def visit(place: Place, ctx: Ctx) -> Visit:
        began(ctx)
        return Visit(place, datetime(2026, 2, 28, 12, 30, tzinfo=UTC), {"a": [1, 2]})

    @step
    async def letter(visit: Visit, ctx: Ctx) -> Letter:
        began(ctx)
        ctx.state["raw"] = {"bytes": b"\x00\xff", "set": {1, 2}, "pair": (1, "a"), "$": "a key of ours", "none": None}
        return Letter(to=visit.place.name, lines=[str(visit.when.year), visit.place.colours[0].value])

    @step
    async def read(letter: Letter, ctx: Ctx) -> str:
        began(ctx)
        return " ".join([letter.to, *letter.lines, str(ctx.state["raw"]["pair"])])

    return Program(sequence(place, visit, letter, read, id="flow"), "Brest")


@define
class Entry:
    """A part of a state."""

    word: str
    count: int = 1


@define
class Book:
    """A state of a class."""

    title: str
    pages: int = 0
    entries: list[Entry] = field(factory=list[Entry])
    index: dict[str, Entry] = field(factory=dict[str, Entry])


@program
def class_state() -> Program:
    """A state of attrs, changed field by field, in place and by appending."""

    @step
    async def write(x: int, ctx: Context[Memory, Book]) -> int:
        began(ctx)
        entry = Entry(f"word {x}")
        ctx.state.entries.append(entry)
        ctx.state.index[entry.word] = entry
        ctx.state.pages += x
        return x + 1

    @step
    async def mend(x: int, ctx: Context[Memory, Book]) -> int:
        began(ctx)
        ctx.state.entries[0].count += 10
        ctx.state.title = "Tides"
        ctx.state.entries = ctx.state.entries[:2]
        return x

    flow = sequence(write, write, mend, write, id="flow")
    return Program(flow, 1, state=lambda: Book("draft"), state_type=Book)


class Then:
    """What classes of users looked like when the histories were written."""

    @define
    class Profile:
        """A state."""

        name: str
        visits: int = 0
        places: list[str] = field(factory=list[str])


class Now:
    """What became of them: a field more with a default, in another order."""

    @define
    class Profile:
        """A state."""

        places: list[str] = field(factory=list[str])
        name: str = ""
        visits: int = 0
        colour: str = "blue"
        tags: dict[str, int] = field(factory=dict[str, int])


@program
def migrated_state() -> Program:
    """A state whose class has got more fields since."""

    @step
    async def visit(x: int, ctx: Context[Memory, Any]) -> int:
        began(ctx)
        ctx.state.visits += x
        ctx.state.places.append(f"place {x}")
        return x + 1

    return Program(
        sequence(visit, visit, visit, id="flow"), 1, state=lambda: Then.Profile("Ada"), state_type=Now.Profile
    )


@extension_item("histories:note")
class Note(Extension):
    """An item of our own."""

    about: str
    weight: int = 1


@program
def conversation() -> Program:
    """A run that begins with a conversation, ids and metadata, and items of every kind."""

    @step
    async def reads(text: str, ctx: Ctx) -> int:
        began(ctx)
        ctx.items.append(Note(about=text, weight=3))
        ctx.items.append(Message.user(f"{ctx.user_id} {ctx.metadata['ticket']}"))
        return len(ctx.items)

    @step
    async def counts(x: int, ctx: Ctx) -> str:
        began(ctx)
        notes = [item for item in ctx.items if isinstance(item, Note)]
        return f"{x} {notes[0].about} {notes[0].weight}"

    history = [
        Message.system("Be brief."),
        Message.user("How high is it?"),
        FunctionCall(name="height", arguments={"port": "Brest"}, call_id="call-1"),
        FunctionCallOutput(call_id="call-1", output="6.9 m"),
        Message.assistant("6.9 m."),
    ]
    options = {
        "history": history,
        "thread_id": "thread-1",
        "user_id": "ada",
        "request_id": "request-1",
        "metadata": {"ticket": 7, "nested": {"list": [1, 2.5, None, True]}},
    }
    return Program(sequence(reads, counts, id="flow"), "tides", options=options)


@program
def plain_state() -> Program:
    """A dictionary as a state, with keys that come and go."""

    @step
    async def writes(x: int, ctx: Context[Memory, dict[str, Any]]) -> int:
        began(ctx)
        ctx.state["list"] = [*ctx.state.get("list", []), x]
        ctx.state.pop("gone", None)
        ctx.state[f"key {x}"] = {"deep": [x]}
        return x + 1

    return Program(sequence(writes, writes, writes, id="flow"), state=lambda: {"gone": 1}, state_type=dict)


@program
def committed_at_exit() -> Program:
    """A run that commits once, when it ends."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"work {x}")
        ctx.state["n"] = x
        return x + 1

    return Program(sequence(work, work, id="flow"), options={"durability": "exit"})


@program
def wrapped_up() -> Program:
    """A budget that is spent, and a step that sums up what there is."""

    @step
    async def work(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.state["n"] = x
        return x + 1

    @step
    async def sum_up(x: object, ctx: Ctx) -> str:
        began(ctx)
        return f"came to {ctx.state['n']}"

    budget = Budget(steps=3, wrap_up=sum_up, reserve=Budget(steps=1))
    return Program(loop(work, until=until.max_rounds(9), id="rounds"), options={"budget": budget})


@program
def adopted() -> Program:
    """A body that hands to its steps what it has not recorded, and is told to go on all the same."""

    @step
    async def child(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"child {x}")
        ctx.state["n"] = ctx.state.get("n", 0) + x
        return x + 1

    @step
    async def body(x: int, ctx: Ctx) -> int:
        began(ctx)
        found = await child(x, ctx)
        found += await child(min(WORLD["process"], 2) * 10, ctx)
        return found + await child(x, ctx)

    return Program(sequence(body, child, id="flow"))


@program
def decided_above() -> Program:
    """Decisions of everything around a body that is in flight."""

    @step
    async def child(x: int, ctx: Ctx) -> int:
        began(ctx)
        return x + 1

    @step
    async def body(x: int, ctx: Ctx) -> int:
        began(ctx)
        return await child(await child(x, ctx), ctx)

    def route(x: int) -> str:
        BEGAN.append("route")
        return "body" if WORLD["process"] < 3 or x > 20 else "child"

    def judge(snapshot: until.Snapshot[int]) -> until.Verdict:
        BEGAN.append("judge")
        return until.Verdict(snapshot.iteration >= 2, "enough", f"said in process {WORLD['process']}")

    def further(output: int, verdict: until.Verdict, ctx: object) -> int:
        BEGAN.append("further")
        return output + 10

    chosen = branch(route, {"body": body, "child": child}, id="chosen")
    return Program(loop(chosen, until=until.custom(judge), prepare_next=further, id="rounds"))


class Before:
    """A class of a user's in its first version."""

    @define
    class Diary:
        """A state."""

        lines: list[str] = field(factory=list[str])
        words: int = 0


class Later:
    """Its second version: another name, another type."""

    @define
    class Diary:
        """A state."""

        schema_version: ClassVar[int] = 2
        entries: list[str] = field(factory=list[str])
        words: str = "0"

        @classmethod
        def migrate(cls, stored: dict[str, Any], version: int) -> dict[str, Any]:
            """From version 1."""
            return {"entries": stored["lines"], "words": str(stored["words"])}


@program
def renamed_state() -> Program:
    """A state whose class has another version since, and says what became of the first."""

    @step
    async def note(x: int, ctx: Context[Memory, Any]) -> int:
        began(ctx)
        diary = ctx.state
        (diary.lines if hasattr(diary, "lines") else diary.entries).append(f"line {x}")
        diary.words = diary.words.__class__(int(diary.words) + 2)
        return x + 1

    @step
    async def both(x: int, ctx: Context[Memory, Any]) -> int:
        began(ctx)
        return await note(await note(x, ctx), ctx)

    return Program(sequence(note, both, note, id="flow"), 1, state=lambda: Before.Diary(), state_type=Later.Diary)


@program
def asking() -> Program:
    """Questions and approvals, some at once, and work whose result comes later."""

    @tool(needs_approval=True)
    async def pay(n: int) -> str:
        BEGAN.append(f"pay {n}")
        return f"paid {n}"

    @tool(long_running=True, expires=1e9)
    async def render(n: int) -> str:
        BEGAN.append(f"render {n}")
        return f"job {n}"

    def answer(request: ModelRequest) -> Any:
        if isinstance(request.items[-1], FunctionCallOutput):
            return "done"
        return [FunctionCall(name=name, arguments={"n": n}) for n, name in enumerate(("pay", "render", "pay"))]

    @step
    async def asks(x: Any, ctx: Context[Memory, StateBag]) -> int:
        began(ctx)
        ctx.state["asked"] = True
        return await ctx.ask(Ask("How many?", int)) + await ctx.ask(Ask("And besides?", int))

    agent: Any = loop(call_model(tools=[pay, render]), until=until.no_tool_calls(), id="agent")
    return Program(sequence(agent, parallel([asks, asks], id="both"), id="flow"), "go", answer=answer)


@program
def far_along() -> Program:
    """Steps that leave how far they have come: a body in flight, rounds of a loop, a second attempt, a race."""

    @step
    async def pages(x: int, ctx: Ctx) -> int:
        began(ctx)
        for page in range(ctx.progress.get_as(int) or 0, 3):
            ctx.progress.set(page + 1)
            await ctx.checkpoint()
        ctx.progress.finish()
        return x + 1

    @step
    async def tells(x: int, ctx: Ctx) -> int:
        began(ctx)
        known = ctx.progress.at(ctx.path[:-1])
        before: Any = known.value
        known.set([*(before or []), {"x": x}])
        ctx.progress.set({"seen": len(ctx.progress.entries)})
        return x + 1

    @step
    async def waits(x: int, ctx: Ctx) -> int:
        began(ctx)
        ctx.progress.set("for ever")
        await anyio.sleep_forever()
        return x

    @step(retry=Retry(5, initial=0))
    async def twice(x: int, ctx: Ctx) -> int:
        began(ctx)
        say(ctx, f"found {ctx.progress.value}, {ctx.progress.at((*ctx.path, 'tells')).value}")
        await tells(x, ctx)
        ctx.progress.set("half")
        WORLD["tries"] += 1
        if WORLD["tries"] == 1:
            raise ValueError("the first time")
        ctx.progress.at(("flow", "rounds")).reset_children()
        ctx.progress.at(("flow", "pages")).clear()
        return x + 1

    @step
    async def says(x: int, ctx: Ctx) -> str:
        began(ctx)
        left = [["/".join(path), entry.value, entry.done] for path, entry in ctx.progress.entries.items()]
        return str(sorted(left))

    rounds = loop(tells, until=until.max_rounds(3), id="rounds")
    paths = race([pages, waits], id="either")
    return Program(sequence(pages, rounds, paths, twice, says, id="flow"))


@program
def patched() -> Program:
    """A state whose fields grow and change in part: a text, a dict, a dict in a dict, and lists of both."""

    @step
    async def grows(x: int, ctx: Ctx) -> int:
        began(ctx)
        state: Any = ctx.state
        state["text"] += f"and what was said in round {x} "
        state["table"][f"row {x}"] = {"n": x, "words": f"word {x} " * 4}
        state["table"].pop(f"row {x - 3}", None)
        state["table"]["all"]["seen"][f"in {x}"] = [x, float(x), x == 1]
        state["people"][x % 2]["said"] += f"something in round {x} "
        state["people"].insert(1, {"said": f"as number {x} "})
        return x + 1

    @step
    async def around(x: int, ctx: Ctx) -> int:
        began(ctx)
        state: Any = ctx.state
        state["table"]["all"]["rounds"] = x
        made = await grows(x, ctx)
        state["text"] = state["text"].replace("said", "SAID", 1)
        return made

    def state() -> StateBag:
        table = {"all": {"seen": {f"before {each}": "x" * 20 for each in range(5)}, "rounds": None}}
        return StateBag({"text": "it began so " * 9, "table": table, "people": [{"said": "hello " * 9}, {"said": ""}]})

    return Program(loop(around, until=until.max_rounds(4), id="rounds"), state=state)


@program
def judged_calls() -> Program:
    """Calls that layers count, change, refuse and let wait for approval."""

    class Marks(MemoryLayer[int]):
        """Numbers its calls, and refuses those of a word."""

        scope: Scope = Scope.EXECUTION

        async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
            self.state += 1
            if "refused" in call.arguments:
                return "not that"
            return FunctionCall(
                name=call.name, arguments=call.arguments.replace("old", "new"), call_id=call.call_id, id=call.id
            )

        def merge(self, base: int, mine: int, theirs: int) -> int:
            return theirs + mine - base

    class Judges(Memory):
        limits: ToolLimits = ToolLimits(limits={"pay": 3})
        marks: Marks = Marks()

    @tool
    async def pay(what: str) -> str:
        BEGAN.append(f"pay {what}")
        return f"paid {what}"

    @tool(needs_approval=True)
    async def sign(what: str) -> str:
        BEGAN.append(f"sign {what}")
        return f"signed {what}"

    def answer(request: ModelRequest) -> Any:
        done = sum(isinstance(item, FunctionCallOutput) for item in request.items)
        wanted = {
            0: [("pay", "an old one"), ("sign", "an old one"), ("pay", "a refused one"), ("sign", "another")],
            4: [("pay", "the last"), ("pay", "too much"), ("sign", "the end")],
        }
        calls = [FunctionCall(name=name, arguments={"what": what}) for name, what in wanted.get(done, ())]
        return calls or "done"

    @step
    async def counted(x: str, ctx: Context[Judges, Any]) -> str:
        began(ctx)
        return f"{x}: {ctx.memory.marks.state} judged, {ctx.memory.limits.state.calls} paid"

    agent: Any = loop(call_model(tools=[pay, sign]), until=until.no_tool_calls(), id="agent")
    return Program(sequence(agent, counted, id="flow"), "go", answer=answer, memory=Judges)


@program
def summed_up() -> Program:
    """Rounds that change the state and say nothing, some of which fail, with a loop in them."""

    @step
    async def note(x: int, ctx: Context[Any, StateBag]) -> int:
        began(ctx)
        ctx.state["seen"] = [*ctx.state["seen"], x]
        ctx.state[f"last{x % 2}"] = x
        if ctx.path[-2].endswith("[4]"):
            raise ValueError("not in this round")
        return x + 1

    @step
    async def double(x: int) -> int:
        return x * 2

    inner = loop(double, until=until.max_rounds(6), id="inner")
    rounds = loop(
        sequence(note, inner, id="round"),
        until=until.max_rounds(12),
        on_error=lambda error, ctx: "skip",
        prepare_next=lambda output, verdict, ctx: output // 60,
        id="rounds",
    )
    return Program(sequence(double, rounds, id="flow"), 3, state=lambda: StateBag({"seen": [], "last1": None}))
