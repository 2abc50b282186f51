"""Random programs whose bodies ask before some of what they do come out as if nobody had been asked.

Requests are answered in any order, some now and some later, with the run or apart from it, by processes that die.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from typing import Any

import pytest
from attrs import define, evolve, field, fields, has

from noetic_py import Ask, Context, Harness, PendingRequest, RunResult, step
from noetic_py.testing import random_program
from noetic_py.testing._random_programs.building import Builder
from noetic_py.testing._random_programs.description import Call, Code, Op
from noetic_py.testing.ledger import attempt_of
from tests.properties.checks import SEED, examples, left_over, tasks
from tests.properties.durably import Kill, Life, check_end

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHUNKS = 4
WAITING = examples(sample=40, full=1200)
KILLED = examples(sample=12, full=800)
FIRST = SEED * 100_000 + 50_000
_MOST = 400
"""Processes that a run may take."""


def answer_of(prompt: str) -> int:
    """What is answered to a question."""
    return zlib.crc32(prompt.encode()) % 1000


class Questions:
    """Puts steps that ask into the bodies of a program: one more child, which gives back what it was given."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.share = self.dice.choice((0.1, 0.3, 0.6))
        self.count = 0

    def node(self, node: Any) -> Any:
        """A node with questions in the bodies at it and below it."""
        if isinstance(node, Code):
            return evolve(node, ops=tuple(op for each in node.ops for op in self.ops(each)))
        changed: dict[str, Any] = {}
        kind_of_node: Any = node.__class__
        for attribute in fields(kind_of_node):
            value: Any = getattr(node, attribute.name)
            kind: Any = value.__class__
            if has(kind):
                changed[attribute.name] = self.node(value)
            elif kind is tuple:
                changed[attribute.name] = tuple(self.node(each) for each in value)
        return evolve(node, **changed) if changed else node

    def ops(self, op: Op) -> list[Op]:
        """An operation, perhaps behind a question."""
        op = self.node(op)
        if self.dice.random() >= self.share:
            return [op]
        self.count += 1
        return [Call(Code(f"w{self.count}", ())), op]


class AskingBuilder(Builder):
    """Builds the steps that ask."""

    def _code(self, node: Code) -> Any:
        if node.id[0] != "w":
            return super()._code(node)
        seen = self.seen

        @step(id=node.id)
        async def asks(x: int, ctx: Context[Any, Any]) -> int:
            seen.enter()
            answer = await ctx.ask(Ask(node.id, int))
            if answer != answer_of(node.id):
                seen.unexpected.append(AssertionError(f"{node.id} was answered with {answer}"))
            seen.done.add(attempt_of(ctx))
            return x

        return asks


@define(slots=False)
class WaitingLife(Life):
    """A run that waits, over all the processes that carry it."""

    dice: random.Random = field(factory=random.Random)
    asked: Counter[str] = field(factory=Counter[str])
    waits: int = 0

    def flow(self) -> Any:
        return AskingBuilder(self.seen).build(self.program.root)

    def some(self, pending: list[PendingRequest]) -> list[PendingRequest]:
        """One of them at the least, in any order."""
        return self.dice.sample(pending, self.dice.randint(1, len(pending))) if pending else []

    async def _resume(self, harness: Any) -> RunResult[Any, Any]:
        info = await Harness(plugins=(), checkpoints=self.inner).runs.get(self.run_id)
        chosen = self.some(list(info.pending))
        answers = [request.answer(answer_of(request.prompt)) for request in chosen]
        if answers and self.dice.random() < 0.3:
            # Kept apart from going on; the first one once more.
            for answer in [*answers, answers[0]]:
                info = await harness.runs.answer(answer)
            assert not {each.key for each in info.pending} & {each.key for each in chosen}
            answers = answers[:1] if self.dice.random() < 0.5 else []
        result: RunResult[Any, Any] = await harness.resume(
            self.run_id, self.flow(), on_error="result", state_type=self.state_type, answers=answers
        )
        return result

    async def wait(self, kills: list[Kill]) -> RunResult[Any, Any] | None:
        """Processes until one gets to the end; every so often one dies."""
        for _ in range(_MOST):
            dies = bool(kills) and self.dice.random() < 0.5
            if dies:
                at, when = kills.pop()
                self.backend.revive(dies_at=at, when=when)
            else:
                self.backend.revive()
            result = await self.process()
            if result is None:
                if await self.check_journal() in ("failed", "budget_exceeded"):
                    return None
            elif result.status != "suspended":
                return result
            else:
                self.waits += 1
                assert result.pending, result.reason
                assert len({request.key for request in result.pending}) == len(result.pending)
                await self.check_journal()
        raise AssertionError(f"it still waits after {_MOST} processes")


async def lived(seed: int, kills: list[Kill]) -> tuple[WaitingLife, str]:
    """Run a program through its requests and deaths, and check everything; returns how it ended."""
    before = tasks()
    program = random_program(seed)
    program = evolve(program, root=Questions(seed).node(program.root))
    life = WaitingLife(program, dice=random.Random(seed))
    try:
        ended = await check_end(life, await life.wait(list(kills)))
        assert await left_over(before) == set()
    except BaseException as error:
        error.add_note(f"NOETIC_SEED={SEED}, seed {seed}, kills {kills}: {life.program}")
        raise
    return life, ended


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_a_run_that_waits_comes_out_as_one_that_does_not(chunk: int) -> None:
    ends: Counter[str] = Counter()
    waits = 0
    for seed in range(FIRST + chunk, FIRST + WAITING, CHUNKS):
        life, ended = await lived(seed, [])
        ends[ended] += 1
        waits += life.waits
    assert ends["ambiguous"] <= 1 + sum(ends.values()) / 20, ends
    assert waits > WAITING / CHUNKS, "hardly anything was asked"


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_killed_while_it_waits_or_goes_on(chunk: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(FIRST + 10_000 + chunk, FIRST + 10_000 + KILLED, CHUNKS):
        dice = random.Random(seed)
        kills: list[Kill] = [(dice.randint(1, 8), dice.choice(("before", "after"))) for _ in range(dice.randint(1, 6))]
        ends[(await lived(seed, kills))[1]] += 1
    assert ends["completed"] >= sum(ends.values()) / 3, ends
    assert ends["ambiguous"] <= 1 + sum(ends.values()) / 20, ends
