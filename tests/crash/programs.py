"""Random programs for processes that die: the same flow from the same seed, in whatever process it is built.

They use everything that the journal has to know of: state and conversation, sequences, loops, branches, sections,
gathers, spawns, bodies that fail and are tried again, failures that somebody handles, channels, model rounds with
tools. What comes out depends on the seed alone and on no schedule, so a run that was killed can be compared with one
that was not.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from typing_extensions import TypeIs

from noetic_py import (
    Channel,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    ModelRequest,
    Retry,
    TokenUsage,
    branch,
    call_model,
    current_context,
    each,
    errors,
    loop,
    parallel,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context.step import AnyStep
from noetic_py.steps.flow import Settled
from noetic_py.testing import ScriptedModel
from noetic_py.testing._random_programs.building import AnyContext
from noetic_py.testing._random_programs.description import Share, ShareItems
from noetic_py.testing._random_programs.numbers import mix
from noetic_py.testing._random_programs.states import plain_state, read, write
from noetic_py.testing.ledger import attempt_of
from tests.crash.ledger import Ledger

MOST = 12
"""Bodies in a program."""

Op: TypeAlias = Callable[[int, AnyContext], Awaitable[int]]


class Flaky(Exception):
    """Raised by a body that works later."""


class Broken(Exception):
    """Raised by a body that never works."""


@dataclass(frozen=True)
class Place:
    """What may stand where.

    Attributes:
        depth: How many levels may still come below.
        alone: Whether nothing runs beside it that uses the same channels.
        retried: Whether a composite above tries again, and nothing between runs beside others.
    """

    depth: int = 3
    alone: bool = True
    retried: bool = False

    def below(self, **changes: Any) -> Place:
        return replace(self, depth=self.depth - 1, **changes)


def new_attempts(ctx: AnyContext) -> int:
    """How many attempts have failed, of this step and of all above it."""
    return sum(attempt - 1 for _, attempt in attempt_of(ctx))


def _is_settled(value: object) -> TypeIs[Settled[Any]]:
    return isinstance(value, Settled)


def number(value: Any) -> int:
    """Any output as a number."""
    if isinstance(value, int):
        return value
    if _is_settled(value):
        return number(value.value) if value.ok else 13
    parts: Sequence[Any] = () if isinstance(value, str) else value or ()
    return mix(*[number(part) for part in parts]) if parts else len(str(value))


def _answer(request: ModelRequest) -> Item | Sequence[Item]:
    asked = next(item.text for item in reversed(request.items) if isinstance(item, Message) and item.role == "user")
    how, _, acc = asked.partition(":")
    if how == "agent" and not isinstance(request.items[-1], FunctionCallOutput):
        return [FunctionCall(name="look", arguments={"x": int(acc) + index}) for index in range(2)]
    return Message.assistant(f"re:{acc}")


class Model(ScriptedModel):
    """Answers from the request alone, and writes down that it was asked."""

    def __init__(self, ledger: Ledger) -> None:
        def answer(request: ModelRequest) -> Item | Sequence[Item]:
            with ledger.body(current_context(required=True)):
                return _answer(request)

        super().__init__(*[answer] * 4096, usage=TokenUsage(input=10, output=3), cost="0.25")


class Maker:
    """Makes the flow of a seed."""

    def __init__(self, seed: int, ledger: Ledger) -> None:
        self.dice = random.Random(seed)
        self.ledger = ledger
        self.left = MOST
        self.count = 0
        self.model = Model(ledger)

        @tool
        async def look(ctx: AnyContext, x: int) -> str:
            """Look something up."""
            with ledger.body(ctx):
                if x % 2:
                    await checkpoint()
                return f"seen {x}"

        self.tools = (look,)

    def flow(self) -> AnyStep:
        """The whole program."""
        nodes = [self.node(Place())]
        while self.left > 5 or len(nodes) < 2:
            nodes.append(self.node(Place()))
        return sequence(*nodes, id="flow")

    def _id(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def node(self, place: Place) -> AnyStep:
        """A step that takes a number and gives one."""
        if place.depth == 0 or self.left < 4 or self.dice.random() < 0.2:
            return self.code(place)
        makers = (self.code, self.row, self.row, self.rounds, self.fork, self.section, self.many, self.child, self.mail)
        return self.dice.choice(makers)(place)

    # -- composites

    def row(self, place: Place) -> AnyStep:
        retried = self.dice.random() < 0.3
        inner = place.below(retried=place.retried or retried)
        made = sequence(*[self.node(inner) for _ in range(self.dice.randint(1, 3))], id=self._id("q"))
        return made.with_options(retry=Retry(2, initial=0)) if retried else made

    def rounds(self, place: Place) -> AnyStep:
        body = self.node(place.below())
        return loop(body, until=until.max_rounds(self.dice.randint(1, 2)), id=self._id("o"))

    def fork(self, place: Place) -> AnyStep:
        cases = [self.node(place.below()) for _ in range(2)]

        def route(value: int) -> int:
            return value % 2

        return branch(route, dict(enumerate(cases)), id=self._id("b"))

    def section(self, place: Place) -> AnyStep:
        inner = place.below(retried=False)
        paths = [self.node(inner) for _ in range(self.dice.randint(2, 3))]
        how = self.dice.choice(("tuple", "merge", "states", "settle"))
        name, concurrency = self._id("p"), self.dice.choice((None, None, 1))
        if how == "settle":
            paths[self.dice.randrange(len(paths))] = self.code(inner, broken=True)
            return sequence(settle(paths, id=name, concurrency=concurrency), self.reduce(), id=self._id("q"))
        if how == "tuple":
            return sequence(parallel(paths, id=name, concurrency=concurrency), self.reduce(), id=self._id("q"))
        merge: Any = _merge if how == "merge" else _merge_states
        return parallel(paths, id=name, concurrency=concurrency, merge=merge)

    def many(self, place: Place) -> AnyStep:
        count = self.dice.randint(1, 3)

        async def split(x: int, ctx: AnyContext) -> list[int]:
            with self.ledger.body(ctx):
                return [mix(x, index) for index in range(count)]

        body = self.code(place.below(alone=False, retried=False))
        self.left -= 1
        return sequence(step(id=self._id("s"))(split), each(body, id=self._id("e")), self.reduce(), id=self._id("q"))

    def child(self, place: Place) -> AnyStep:
        state: Share = self.dice.choice(("deepcopy", "deepcopy", "new", "share"))
        items: ShareItems = self.dice.choice(("new", "copy", "view"))
        return spawn(self.node(place.below()), state=state, items=items, id=self._id("w"))

    def mail(self, place: Place) -> AnyStep:
        """One step sends, another one receives, and something happens between them."""
        if not place.alone:
            return self.code(place)
        channel = Channel(self._id("c"), int)

        async def sender(x: int, ctx: AnyContext) -> int:
            with self.ledger.body(ctx):
                await ctx.send(channel, x)
                await ctx.send(channel, mix(x, 2))
                return x

        async def receiver(x: int, ctx: AnyContext) -> int:
            with self.ledger.body(ctx):
                return mix(x, await ctx.recv(channel, timeout=5), await ctx.recv(channel, timeout=5))

        self.left -= 2
        parts = (step(id=self._id("s"))(sender), self.node(place.below()), step(id=self._id("s"))(receiver))
        return sequence(*parts, id=self._id("q"))

    def reduce(self) -> AnyStep:
        async def reduce(x: Any, ctx: AnyContext) -> int:
            with self.ledger.body(ctx):
                return number(x)

        self.left -= 1
        return step(id=self._id("r"))(reduce)

    # -- bodies

    def code(self, place: Place, *, broken: bool = False) -> AnyStep:
        """A body; a broken one never works, others may fail at first."""
        self.left -= 1
        ops = [self.op(place) for _ in range(self.dice.randint(1, 4))]
        own = self.dice.random() < 0.25
        fails = 99 if broken else self.dice.randint(1, 2) if own else int(place.retried and self.dice.random() < 0.4)
        if fails > 1 and not own:
            fails = fails if broken else 1
        place_of_failure = self.dice.randint(0, len(ops))

        async def body(x: int, ctx: AnyContext) -> int:
            with self.ledger.body(ctx):
                acc = x
                for index, op in enumerate([*ops, _nothing]):
                    if index == place_of_failure and new_attempts(ctx) < fails:
                        raise (Broken if broken else Flaky)(f"attempt {new_attempts(ctx) + 1}")
                    acc = await op(acc, ctx)
                return acc

        made = step(id=self._id("s"))(body)
        return made.with_options(retry=Retry(2 if broken else fails + 1, initial=0)) if own else made

    def op(self, place: Place) -> Op:
        """One thing that a body does."""
        chance = self.dice.random()
        if place.depth > 0 and self.left > 2:
            if chance < 0.2:
                return self._call(self.node(place.below()))
            if chance < 0.27:
                return self._handle(self.code(place.below(retried=False), broken=True))
            if chance < 0.36:
                inner = place.below(retried=False, alone=False)
                return _Gather([self.node(inner) for _ in range(2)])
        if chance < 0.5 and self.left > 1:
            self.left -= 1
            return self._ask()
        if chance < 0.56 and place.alone:
            return _Post(Channel(self._id("c"), int))
        plain: tuple[Op, ...] = (_say, _say, _add, _push, _renew, _deep, _see, _tick, _nap)
        return self.dice.choice(plain)

    def _call(self, child: AnyStep) -> Op:
        async def call(acc: int, ctx: AnyContext) -> int:
            out = await child(acc, ctx)
            self.ledger.got(ctx, child.id)
            return mix(acc, number(out))

        return call

    def _handle(self, child: AnyStep) -> Op:
        async def handle(acc: int, ctx: AnyContext) -> int:
            try:
                return mix(acc, number(await child(acc, ctx)))
            except errors.StepFailed as error:
                return mix(acc, len(error.error_message))

        return handle

    def _ask(self) -> Op:
        agent = self.dice.random() < 0.5
        asks: AnyStep = call_model(self.model, tools=self.tools if agent else (), id=self._id("m"))
        if agent:
            asks = loop(asks, until=until.no_tool_calls(), id=self._id("a"))
        return self._call(_Asked(asks, "agent" if agent else "text").made())


@dataclass(frozen=True)
class _Asked:
    """A model's step that takes a number: the question is made of it."""

    step: AnyStep
    how: str

    def made(self) -> AnyStep:
        async def question(x: int) -> str:
            return f"{self.how}:{x}"

        return sequence(step(id=f"{self.step.id}?")(question), self.step, id=f"{self.step.id}!")


@dataclass(frozen=True)
class _Gather:
    """Children at once, in the middle of a body."""

    children: Sequence[AnyStep]

    async def __call__(self, acc: int, ctx: AnyContext) -> int:
        bound = [child.bind(mix(acc, index)) for index, child in enumerate(self.children)]
        return mix(acc, number(await ctx.gather(*bound)))


@dataclass(frozen=True)
class _Post:
    """A message to oneself."""

    channel: Channel[int]

    async def __call__(self, acc: int, ctx: AnyContext) -> int:
        await ctx.send(self.channel, acc)
        return mix(1, await ctx.recv(self.channel, timeout=5))


async def _nothing(acc: int, ctx: AnyContext) -> int:
    return acc


async def _say(acc: int, ctx: AnyContext) -> int:
    ctx.items.append(Message.assistant(f"said {acc}"))
    return mix(acc, 1)


async def _add(acc: int, ctx: AnyContext) -> int:
    write(ctx.state, "n", read(ctx.state, "n") + acc % 7)
    return acc


async def _push(acc: int, ctx: AnyContext) -> int:
    read(ctx.state, "l").append(acc % 101)
    return acc


async def _renew(acc: int, ctx: AnyContext) -> int:
    write(ctx.state, "l", [*read(ctx.state, "l"), acc % 11][-4:])
    return acc


async def _deep(acc: int, ctx: AnyContext) -> int:
    write(ctx.state, "a", mix(acc, read(ctx.state, "a")))
    await checkpoint()
    write(ctx.state, "b", read(ctx.state, "a"))
    return acc


async def _see(acc: int, ctx: AnyContext) -> int:
    state = plain_state(ctx.state)
    return mix(acc, len(ctx.items), state["n"], *state["l"], state["a"] - state["b"])


async def _tick(acc: int, ctx: AnyContext) -> int:
    await checkpoint()
    return acc


async def _nap(acc: int, ctx: AnyContext) -> int:
    await anyio.sleep(acc % 3 / 1000)
    return acc


def _merge(results: Any, ctx: AnyContext) -> int:
    out = mix(*[number(result) for result in results])
    write(ctx.state, "n", out)
    return out


def _merge_states(results: Any, ctx: AnyContext, states: Any) -> int:
    for state in states:
        write(ctx.state, "l", [*read(ctx.state, "l"), *plain_state(state)["l"]][-6:])
    return mix(*[number(result) for result in results])


def gated(ledger: Ledger, gate: Path, held: Callable[[], None]) -> AnyStep:
    """A flow whose second of three steps waits until somebody opens a gate, a named pipe, for writing.

    Args:
        ledger: Where bodies are written down.
        gate: The pipe.
        held: Called when the second step is about to wait.
    """

    async def first(x: int, ctx: AnyContext) -> int:
        with ledger.body(ctx):
            ctx.items.append(Message.assistant(f"first {x}"))
            return x + 1

    async def hold(x: int, ctx: AnyContext) -> int:
        with ledger.body(ctx):
            held()
            await anyio.to_thread.run_sync(gate.read_bytes, abandon_on_cancel=True)
            return x + 1

    async def last(x: int, ctx: AnyContext) -> int:
        with ledger.body(ctx):
            write(ctx.state, "n", x)
            return x + 1

    return sequence(step(first), step(hold), step(last), id="flow")
