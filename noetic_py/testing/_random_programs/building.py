"""The flow of a random program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from attrs import frozen

import noetic_py.until as until
from noetic_py.context.context import Context, current_context
from noetic_py.context.step import AnyStep, Retry
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Message
from noetic_py.errors import BudgetExceeded, ConcurrentStepCall, ConfigError, NoeticError
from noetic_py.steps.code import step
from noetic_py.steps.flow import branch, each, parallel, race, sequence, settle
from noetic_py.steps.loop import loop
from noetic_py.steps.model import call_model
from noetic_py.steps.spawn import spawn
from noetic_py.testing._random_programs.description import (
    Ask,
    Both,
    Branch,
    Call,
    Code,
    EndLoop,
    Fail,
    Gather,
    Give,
    Hang,
    Inc,
    Loop,
    Mark,
    Node,
    OnError,
    Op,
    Open,
    Pair,
    Push,
    Reduce,
    Say,
    Section,
    See,
    Seq,
    Spawn,
    Split,
    Stop,
    Tick,
)
from noetic_py.testing._random_programs.model import MeteredModel, question
from noetic_py.testing._random_programs.numbers import mix, number, see
from noetic_py.testing._random_programs.observations import Observations
from noetic_py.testing._random_programs.states import plain_state, read, write
from noetic_py.testing.ledger import attempt_of
from noetic_py.tools import tool
from noetic_py.tools.definition import AnyTool

AnyContext: TypeAlias = Context[Any, Any]


class Boom(Exception):
    """The exception that a body raises to fail."""


class Builder:
    """Makes the flow of a description."""

    def __init__(self, seen: Observations) -> None:
        self.seen = seen
        self.model = MeteredModel(seen)

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
            seen.request(ctx, "complete", x)
            return "halted"

        self.tools: tuple[AnyTool, ...] = (note, halt)

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
        seen = self.seen

        async def glue(x: Any, ctx: AnyContext) -> Any:
            seen.enter()
            match node:
                case Split():
                    out: Any = [mix(x, index) for index in range(node.count)]
                case Mark():
                    out = x * 16 + node.index
                    # Its path ends in the same breath, so the first one here is the first in the journal.
                    seen.marks.setdefault(attempt_of(ctx)[:-2], node.index)
                case Reduce(mode="race"):
                    seen.winners[attempt_of(ctx)[:-1], node.section] = x % 16
                    out = x // 16
                case _:
                    out = mix(*[number(each_) for each_ in x])
            seen.done.add(attempt_of(ctx))
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
        seen = self.seen

        def route(value: int, ctx: Any) -> AnyStep | None:
            chosen = node.choice(value)
            if chosen == len(cases):
                # The branch ends in the same breath, so it counts as done.
                seen.done.add(attempt_of(ctx._ctx))
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
            self.seen.enter()
            acc = x
            held = ctx.state if len(node.ops) % 2 else None
            for index, op in enumerate(node.ops):
                acc = await self._do(op, index, acc, ctx, children.get(index, []), node.id)
                self._look(ctx, held)
            self.seen.done.add(attempt_of(ctx))
            return acc

        return step(id=node.id)(body)

    def _look(self, ctx: AnyContext, held: object) -> None:
        """A body has its own context, and the one state object, from its first line to its last."""
        if current_context() is not ctx:
            self.seen.unexpected.append(AssertionError(f"the context of {ctx.path} is {current_context()}"))
        if held is not None and ctx.state is not held:
            self.seen.unexpected.append(AssertionError(f"the state of {ctx.path} was replaced"))

    def _instructions(self, ctx: Any) -> str:
        # Called once for each model round, right before the model is asked.
        self.seen.enter()
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
                if sum(attempt - 1 for _, attempt in attempt_of(ctx)) < op.until:
                    raise Boom(id)
            case Stop():
                self.seen.request(ctx, op.kind, acc)
            case EndLoop():
                ctx.stop_loop(op.value)

    async def _give(self, acc: int, ctx: Any, child: AnyStep) -> int:
        with anyio.CancelScope() as cancel_scope:
            self.seen.wait(ctx, cancel_scope)
            try:
                return mix(acc, await child(acc, ctx))
            finally:
                self.seen.wait_no_longer(ctx)
        return mix(acc, 8888)

    async def _wait(self, op: Tick | Both | Pair | Hang, index: int, acc: int, ctx: Any, id: str) -> None:
        match op:
            case Tick():
                await checkpoint()
            case Hang():
                if not (ctx.completed or ctx.aborted):
                    self.seen.give_up(ctx)
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
            except BudgetExceeded:
                self.seen.refused.add((attempt_of(ctx), index))
                raise
            except NoeticError:
                raise
            except BaseException:
                self.seen.cancelled += 1
                raise
            self.seen.answered.add((attempt_of(ctx), index))
            return mix(acc, len(text))
        except NoeticError as error:
            if not op.catch:
                raise
            if isinstance(error, (ConfigError, ConcurrentStepCall)):
                self.seen.unexpected.append(error)
            return mix(acc, 9999)


def _prepare(output: int, verdict: until.Verdict, ctx: AnyContext) -> int:
    return mix(output, 5)


@frozen
class _Decider:
    decision: OnError

    def __call__(self, error: Exception, ctx: AnyContext) -> OnError:
        return self.decision


def _merge(results: Sequence[Any], ctx: Any) -> int:
    ctx.items.append(Message.assistant(f"merged {len(results)}"))
    write(ctx.state, "n", read(ctx.state, "n") + len(results))
    return mix(*[number(each_) for each_ in results])


def _merge_states(results: Sequence[Any], ctx: Any, states: Sequence[Any]) -> int:
    write(ctx.state, "l", [x for state in states for x in read(state, "l")])
    write(ctx.state, "n", sum(read(state, "n") for state in states))
    return mix(*[number(each_) for each_ in results])
