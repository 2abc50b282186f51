"""Random programs: a description made of frozen dataclasses, and the flow that is built from it.

The bodies note what they chose or what was chosen for them (who won a race, who asked for a stop, which call a budget
refused) in a `World`, keyed by the step's path with the attempt of each frame. The oracle reads these choices and
nothing else of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from types import TracebackType
from typing import Any, Literal, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from attrs import define
from attrs import field as attrs_field

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    ModelRequest,
    ModelStream,
    Retry,
    StateBag,
    Step,
    Tool,
    branch,
    call_model,
    current_context,
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
from noetic_py._engine.state import Frame
from noetic_py.testing import ScriptedModel
from noetic_py.testing.ledger import attempt_of

Key: TypeAlias = tuple[tuple[str, int], ...]
"""A path, with the attempt of each of its frames."""

AnyContext: TypeAlias = Context[Any, Any]
AnyStep: TypeAlias = Step[Any, Any, Any, Any]

How: TypeAlias = Literal["text", "tools", "agent", "down", "halt"]
Join: TypeAlias = Literal["tuple", "merge", "states"]
OnError: TypeAlias = Literal["retry", "skip", "abort"] | None
Share: TypeAlias = Literal["share", "copy", "deepcopy", "new"]
ShareItems: TypeAlias = Literal["new", "copy", "view", "share"]

COST = Decimal("0.25")
"""What a model call costs in these programs."""


class Boom(Exception):
    """What a body raises to fail."""


def mix(*numbers: int) -> int:
    """One number out of several; the order counts."""
    found = 7
    for number in numbers:
        found = (found * 31 + number + 1) % 10007
    return found


# ------------------------------------------------------------------------------------------------- what a body does


@dataclass(frozen=True)
class Tick:
    """Let others run."""


@dataclass(frozen=True)
class Say:
    """Append a message."""


@dataclass(frozen=True)
class Inc:
    """Add one to the state's counter."""


@dataclass(frozen=True)
class Push:
    """Append to the state's list; in place, or with a new list."""

    in_place: bool = True


@dataclass(frozen=True)
class Both:
    """Change two fields of the state, with a wait between."""


@dataclass(frozen=True)
class See:
    """Look at the conversation and the state."""


@dataclass(frozen=True)
class Call:
    """Run a child step."""

    node: Node
    catch: bool = False


@dataclass(frozen=True)
class Gather:
    """Run child steps at once."""

    nodes: tuple[Node, ...]
    catch: bool = False


@dataclass(frozen=True)
class Give:
    """Run a child step, and give it up when it hangs."""

    node: Node


@dataclass(frozen=True)
class Hang:
    """Do nothing for ever; whoever can give it up does so at once."""


@dataclass(frozen=True)
class Fail:
    """Raise until the attempts above and of this step number so many more than the least."""

    until: int


@dataclass(frozen=True)
class Stop:
    """Ask for the end of the execution."""

    kind: Literal["complete", "abort"]


@dataclass(frozen=True)
class EndLoop:
    """End the nearest loop after this iteration."""

    value: int | None


@dataclass(frozen=True)
class Ask:
    """Call a model."""

    how: How
    catch: bool = False


@dataclass(frozen=True)
class Pair:
    """Write a function call, wait, write its output."""


@dataclass(frozen=True)
class Open:
    """Write a function call that nobody answers."""


Op: TypeAlias = (
    Tick | Say | Inc | Push | Both | See | Call | Gather | Give | Hang | Fail | Stop | EndLoop | Ask | Pair | Open
)


# ---------------------------------------------------------------------------------------------------- what a flow is


@dataclass(frozen=True)
class Code:
    """A body."""

    id: str
    ops: tuple[Op, ...]
    attempts: int = 1


@dataclass(frozen=True)
class Reduce:
    """Makes one number of what a section gave; of a race it notes the winner."""

    id: str
    section: str
    mode: Literal["all", "settle", "race"]
    attempts: int = 1


@dataclass(frozen=True)
class Split:
    """Makes several inputs of one."""

    id: str
    count: int
    attempts: int = 1


@dataclass(frozen=True)
class Mark:
    """Puts the index of a race's path into its value."""

    id: str
    index: int
    attempts: int = 1


@dataclass(frozen=True)
class Seq:
    """Steps in a row."""

    id: str
    nodes: tuple[Node, ...]
    attempts: int = 1


@dataclass(frozen=True)
class Loop:
    """A step several times."""

    id: str
    body: Node
    rounds: int
    on_error: OnError
    prepare: bool
    attempts: int = 1

    @property
    def most(self) -> int:
        """The bound of its iterations."""
        return self.rounds + 2


@dataclass(frozen=True)
class Branch:
    """One of several steps, or none; the case after the last is none."""

    id: str
    cases: tuple[Node, ...]
    by: Literal["key", "step"]
    attempts: int = 1

    def choice(self, value: int) -> int:
        """The index of the case; that of none is the number of cases."""
        return value % (len(self.cases) if self.by == "key" else len(self.cases) + 1)


@dataclass(frozen=True)
class Section:
    """Paths at once."""

    id: str
    mode: Literal["all", "settle", "race", "each"]
    nodes: tuple[Node, ...]
    join: Join = "tuple"
    concurrency: int | None = None
    attempts: int = 1


@dataclass(frozen=True)
class Spawn:
    """An execution of its own."""

    id: str
    node: Node
    state: Share
    items: ShareItems
    attempts: int = 1


Node: TypeAlias = Code | Reduce | Split | Mark | Seq | Loop | Branch | Section | Spawn


@dataclass(frozen=True)
class Program:
    """A flow, the kind of its state, and how often it may call a model."""

    seed: int
    flow: Node
    state: Literal["bag", "dict", "attrs"]
    model_calls: int | None
    value: int


# ------------------------------------------------------------------------------------------------------------- state


@define
class Fields:
    """State as a class."""

    n: int = 0
    l: list[int] = attrs_field(factory=list[int])  # noqa: E741
    a: int = 0
    b: int = 0


def read(state: Any, name: str) -> Any:
    """A field, whatever the state is; 0 or an empty list when it was never set."""
    if isinstance(state, Fields):
        return getattr(state, name)
    if name == "l" and name not in state:
        state["l"] = []
    return state.get(name, 0)


def write(state: Any, name: str, value: object) -> None:
    """Set a field, whatever the state is."""
    if isinstance(state, Fields):
        setattr(state, name, value)
    else:
        state[name] = value


def plain_state(state: Any) -> dict[str, Any]:
    """A state's fields, to compare."""
    if isinstance(state, Fields):
        return {"n": state.n, "l": list(state.l), "a": state.a, "b": state.b}
    return {"n": state.get("n", 0), "l": list(state.get("l", [])), "a": state.get("a", 0), "b": state.get("b", 0)}


def new_state(kind: str) -> Any:
    """A fresh state object."""
    if kind == "attrs":
        return Fields()
    fields: dict[str, Any] = {"n": 0, "l": [], "a": 0, "b": 0}
    return fields if kind == "dict" else StateBag(fields)


# -------------------------------------------------------------------------------------------------------- the choices


def where(ctx: Any) -> Key:
    """The key of a step in flight."""
    return attempt_of(ctx)


def execution(ctx: Any) -> Key:
    """The key of the spawn whose execution a step belongs to; empty for the run."""
    node: Frame = ctx
    while not node.virtual:
        assert node.up is not None
        node = node.up
    return () if node.up is None else where(node.up)


@dataclass
class World:
    """What happened, as the bodies and the model saw it."""

    marks: dict[Key, int] = field(default_factory=dict[Key, int])
    winners: dict[tuple[Key, str], int] = field(default_factory=dict[tuple[Key, str], int])
    controls: dict[Key, tuple[Key, str, int]] = field(default_factory=dict[Key, tuple[Key, str, int]])
    refused: set[tuple[Key, int]] = field(default_factory=set[tuple[Key, int]])
    answered: set[tuple[Key, int]] = field(default_factory=set[tuple[Key, int]])
    done: set[Key] = field(default_factory=set[Key])
    bodies: int = 0
    given_up: dict[Key, anyio.CancelScope] = field(default_factory=dict[Key, anyio.CancelScope])
    calls: int = 0
    cancelled: int = 0
    cost: Decimal = Decimal(0)
    bad_requests: list[Sequence[Item]] = field(default_factory=list[Sequence[Item]])
    unexpected: list[BaseException] = field(default_factory=list[BaseException])

    def enter(self) -> None:
        """A body begins."""
        self.bodies += 1

    def give_up(self, ctx: Any) -> None:
        """Let the nearest body above that waits for this one wait no longer."""
        key = where(ctx)
        while key not in self.given_up:
            key = key[:-1]
        self.given_up[key].cancel()

    def request(self, ctx: Any, kind: Literal["complete", "abort"], value: int) -> None:
        """Ask for a stop, and note who was the first in its execution."""
        self.controls.setdefault(execution(ctx), (where(ctx), kind, value))
        if kind == "complete":
            ctx.complete(value)
        else:
            ctx.abort(str(value))


# ---------------------------------------------------------------------------------------------------------- the model


class MeteredModel(ScriptedModel):
    """A scripted model that keeps its own account, and looks at every request."""

    def __init__(self, world: World, valid: Callable[[Sequence[Item]], bool]) -> None:
        super().__init__(*[_answer] * 4096, cost=COST)
        self.world = world
        self.valid = valid

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Answer, and count."""
        return _Metered(self, request, super().respond(request))


class _Metered:
    def __init__(
        self, model: MeteredModel, request: ModelRequest, inner: AbstractAsyncContextManager[ModelStream]
    ) -> None:
        self.model = model
        self.request = request
        self.inner = inner

    async def __aenter__(self) -> ModelStream:
        world = self.model.world
        world.calls += 1
        if not self.model.valid(self.request.items):
            world.bad_requests.append(tuple(self.request.items))
        stream = await self.inner.__aenter__()
        world.cost += COST
        world.done.add(where(current_context(required=True)))
        return stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)


def question(how: str, acc: int) -> str:
    """What a body asks."""
    return f"{how}:{acc}"


def _answer(request: ModelRequest) -> Item | Sequence[Item] | Exception:
    asked = next(item.text for item in reversed(request.items) if isinstance(item, Message) and item.role == "user")
    how, _, acc = asked.partition(":")
    if how == "down":
        return errors.ModelUnavailable("down", model="test:scripted")
    if how == "agent" and isinstance(request.items[-1], FunctionCallOutput):
        return Message.assistant(f"re:{acc}")
    if how == "halt":
        return [Message.assistant(f"re:{acc}"), FunctionCall(name="halt", arguments={"x": int(acc)})]
    calls = [FunctionCall(name="note", arguments={"x": int(acc) + index}) for index in range(2)]
    if how == "tools":
        return [Message.assistant(f"re:{acc}"), *calls]
    return calls if how == "agent" else Message.assistant(f"re:{acc}")


# -------------------------------------------------------------------------------------------------------- the builder


class Builder:
    """Makes the flow of a description."""

    def __init__(self, world: World, valid: Callable[[Sequence[Item]], bool]) -> None:
        self.world = world
        self.model = MeteredModel(world, valid)

        @tool
        async def note(ctx: AnyContext, x: int) -> str:
            """Write a number down."""
            if x % 2:
                await checkpoint()
            read(ctx.state, "l").append(x)
            ctx.items.append(Message.assistant("a tool's own"))
            return f"noted {x}"

        @tool
        async def halt(ctx: AnyContext, x: int) -> str:
            """End it all."""
            world.request(ctx, "complete", x)
            return "halted"

        self.tools: tuple[Tool[..., Any, Any, Any], ...] = (note, halt)

    def build(self, node: Node) -> AnyStep:
        """The step of a node."""
        made = self._make(node)
        return made.with_options(retry=Retry(node.attempts, initial=0)) if node.attempts > 1 else made

    def _make(self, node: Node) -> AnyStep:
        match node:
            case Code():
                return self._code(node)
            case Reduce() | Split() | Mark():
                return self._glue(node)
            case Seq():
                return sequence(*[self.build(each_) for each_ in node.nodes], id=node.id)
            case Loop():
                return self._loop(node)
            case Branch():
                return self._branch(node)
            case Section():
                return self._section(node)
            case Spawn():
                return spawn(self.build(node.node), state=node.state, items=node.items, id=node.id)

    def _glue(self, node: Reduce | Split | Mark) -> AnyStep:
        world = self.world

        async def glue(x: Any, ctx: AnyContext) -> Any:
            world.enter()
            match node:
                case Split():
                    out: Any = [mix(x, index) for index in range(node.count)]
                case Mark():
                    out = x * 16 + node.index
                    # Its path ends in the same breath, so the first one here is the first in the journal.
                    world.marks.setdefault(where(ctx)[:-2], node.index)
                case Reduce(mode="race"):
                    world.winners[where(ctx)[:-1], node.section] = x % 16
                    out = x // 16
                case _:
                    out = mix(*[number(each_) for each_ in x])
            world.done.add(where(ctx))
            return out

        return step(id=node.id)(glue)

    def _loop(self, node: Loop) -> AnyStep:
        options: dict[str, Any] = {"max_iterations": node.most, "id": node.id}
        if node.prepare:
            options["prepare_next"] = _prepare
        if node.on_error is not None:
            options["on_error"] = _Decider(node.on_error)
        return loop(self.build(node.body), until=until.max_rounds(node.rounds), **options)

    def _branch(self, node: Branch) -> AnyStep:
        cases = [self.build(case) for case in node.cases]
        if node.by == "key":
            return branch(node.choice, dict(enumerate(cases)), id=node.id)
        world = self.world

        def route(value: int, ctx: Any) -> AnyStep | None:
            chosen = node.choice(value)
            if chosen == len(cases):
                # The branch ends in the same breath, so it counts as done.
                world.done.add(where(ctx._ctx))
                return None
            return cases[chosen]

        return branch(route, id=node.id)

    def _section(self, node: Section) -> AnyStep:
        paths = [self.build(path) for path in node.nodes]
        if node.mode == "each":
            return each(paths[0], id=node.id, concurrency=node.concurrency)
        if node.mode == "race":
            return race(paths, id=node.id, concurrency=node.concurrency)
        merge = {"tuple": None, "merge": _merge, "states": _merge_states}[node.join]
        make: Any = settle if node.mode == "settle" else parallel
        options = {} if merge is None else {"merge": merge}
        made: AnyStep = make(paths, id=node.id, concurrency=node.concurrency, **options)
        return made

    # -- bodies

    def _code(self, node: Code) -> AnyStep:
        children: dict[int, list[AnyStep]] = {}
        for index, op in enumerate(node.ops):
            if isinstance(op, (Call, Give)):
                children[index] = [self.build(op.node)]
            elif isinstance(op, Gather):
                children[index] = [self.build(child) for child in op.nodes]
            elif isinstance(op, Ask):
                ask: AnyStep = call_model(
                    self.model, tools=self.tools, instructions=self._instructions, id=f"ask{index}"
                )
                children[index] = [
                    ask if op.how != "agent" else loop(ask, until=until.no_tool_calls(), id=f"agent{index}")
                ]

        async def body(x: int, ctx: AnyContext) -> int:
            self.world.enter()
            acc = x
            held = ctx.state if len(node.ops) % 2 else None
            for index, op in enumerate(node.ops):
                acc = await self._do(op, index, acc, ctx, children.get(index, []), node.id)
                self._look(ctx, held)
            self.world.done.add(where(ctx))
            return acc

        return step(id=node.id)(body)

    def _look(self, ctx: AnyContext, held: object) -> None:
        """A body has its own context, and the one state object, from its first line to its last."""
        if current_context() is not ctx:
            self.world.unexpected.append(AssertionError(f"the context of {ctx.path} is {current_context()}"))
        if held is not None and ctx.state is not held:
            self.world.unexpected.append(AssertionError(f"the state of {ctx.path} was replaced"))

    def _instructions(self, ctx: Any) -> str:
        # Called once for each model round, right before the model is asked.
        self.world.enter()
        return "answer"

    async def _do(self, op: Op, index: int, acc: int, ctx: Any, children: list[AnyStep], id: str) -> int:
        if isinstance(op, Give):
            return await self._give(acc, ctx, children[0])
        if isinstance(op, (Call, Gather, Ask)):
            return await self._call(op, index, acc, ctx, children)
        if isinstance(op, (Tick, Both, Pair, Hang)):
            await self._wait(op, index, acc, ctx, id)
            return acc
        if isinstance(op, (Fail, Stop, EndLoop)):
            self._end(op, acc, ctx, id)
            return acc
        match op:
            case Say():
                ctx.items.append(Message.assistant(f"{id}.{index}={acc}"))
            case Inc() | Push():
                self._change(op, acc, ctx)
            case See():
                return see(acc, len(ctx.items), plain_state(ctx.state))
            case Open():
                ctx.items.append(FunctionCall(name=f"{id}.{index}={acc}"))
        return acc

    def _change(self, op: Inc | Push, acc: int, ctx: Any) -> None:
        match op:
            case Inc():
                write(ctx.state, "n", read(ctx.state, "n") + 1)
            case Push(in_place=True):
                read(ctx.state, "l").append(acc)
            case Push():
                write(ctx.state, "l", [*read(ctx.state, "l"), acc])

    def _end(self, op: Fail | Stop | EndLoop, acc: int, ctx: Any, id: str) -> None:
        match op:
            case Fail():
                if sum(attempt - 1 for _, attempt in where(ctx)) < op.until:
                    raise Boom(id)
            case Stop():
                self.world.request(ctx, op.kind, acc)
            case EndLoop():
                ctx.stop_loop(op.value)

    async def _give(self, acc: int, ctx: Any, child: AnyStep) -> int:
        key = where(ctx)
        with anyio.CancelScope() as scope:
            self.world.given_up[key] = scope
            try:
                return mix(acc, await child(acc, ctx))
            finally:
                del self.world.given_up[key]
        return mix(acc, 8888)

    async def _wait(self, op: Tick | Both | Pair | Hang, index: int, acc: int, ctx: Any, id: str) -> None:
        match op:
            case Tick():
                await checkpoint()
            case Hang():
                if not (ctx.completed or ctx.aborted):
                    self.world.give_up(ctx)
                await anyio.sleep_forever()
            case Both():
                write(ctx.state, "a", read(ctx.state, "a") + 1)
                await checkpoint()
                write(ctx.state, "b", read(ctx.state, "b") + 1)
            case Pair():
                call = FunctionCall(name=f"{id}.{index}={acc}")
                ctx.items.append(call)
                await checkpoint()
                ctx.items.append(FunctionCallOutput(call_id=call.call_id, output=f"{acc}"))

    async def _call(self, op: Call | Gather | Ask, index: int, acc: int, ctx: Any, children: list[AnyStep]) -> int:
        try:
            if isinstance(op, Gather):
                got = await ctx.gather(*[child.bind(mix(acc, at)) for at, child in enumerate(children)])
                return mix(acc, *got)
            if isinstance(op, Call):
                return mix(acc, await children[0](acc, ctx))
            try:
                text: str = await children[0](question(op.how, acc), ctx)
            except errors.BudgetExceeded:
                self.world.refused.add((where(ctx), index))
                raise
            except errors.NoeticError:
                raise
            except BaseException:
                self.world.cancelled += 1
                raise
            self.world.answered.add((where(ctx), index))
            return mix(acc, len(text))
        except errors.NoeticError as error:
            if not op.catch:
                raise
            if isinstance(error, (errors.ConfigError, errors.ConcurrentStepCall)):
                self.world.unexpected.append(error)
            return mix(acc, 9999)


def _prepare(output: int, verdict: until.Verdict, ctx: AnyContext) -> int:
    return mix(output, 5)


@dataclass(frozen=True)
class _Decider:
    decision: OnError

    def __call__(self, error: Exception, ctx: AnyContext) -> OnError:
        return self.decision


def see(acc: int, items: int, state: dict[str, Any]) -> int:
    """What a look at the world makes of a number."""
    return mix(acc, items, state["n"], len(state["l"]), state["a"], state["b"])


def number(outcome: Any) -> int:
    """A section's outcome as a number."""
    if isinstance(outcome, int):
        return outcome
    return outcome.value if outcome.ok else 9999


def _merge(results: Sequence[Any], ctx: Any) -> int:
    ctx.items.append(Message.assistant(f"merged {len(results)}"))
    write(ctx.state, "n", read(ctx.state, "n") + len(results))
    return mix(*[number(each_) for each_ in results])


def _merge_states(results: Sequence[Any], ctx: Any, states: Sequence[Any]) -> int:
    write(ctx.state, "l", [x for state in states for x in read(state, "l")])
    write(ctx.state, "n", sum(read(state, "n") for state in states))
    return mix(*[number(each_) for each_ in results])
