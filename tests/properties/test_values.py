"""Random programs whose bodies change what they hold agree with an oracle that knows trees only, killed or not."""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import pytest
from attrs import define, field, frozen

from noetic_py import Context, Harness, InMemoryBackend, Retry, StateBag, loop, parallel, sequence, step, until
from noetic_py.core.values import is_dict, is_list
from noetic_py.testing import FaultyBackend
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

CHUNKS = 4
PROGRAMS = examples(sample=16, full=2000)
FIRST = SEED * 100_000

Op = tuple[Any, ...]
Tree = Any


def copied(value: Tree) -> Tree:
    """A tree of its own, as JSON would make it."""
    return json.loads(json.dumps(value))


def poke(value: Tree, number: int) -> None:
    """Change a value in place, somewhere."""
    if is_dict(value):
        if value and number % 3 == 0:
            poke(value[sorted(value)[number % len(value)]], number // 3 + 1)
        else:
            value[f"k{number % 5}"] = number
    elif is_list(value):
        inner = [each for each in value if (is_list(each) or is_dict(each))]
        if inner and number % 3 == 0:
            poke(inner[number % len(inner)], number // 3 + 1)
        elif value and number % 3 == 1:
            value.pop()
        else:
            value.append(number)


@frozen
class Node:
    """A part of a program."""

    kind: Literal["code", "sequence", "parallel", "loop"]
    id: str
    children: tuple[Node, ...] = ()
    ops: tuple[Op, ...] = ()
    failures: int = 0
    rounds: int = 1


class Random:
    """Draws programs."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.made = 0

    def value(self, depth: int = 0) -> Tree:
        kind = self.dice.choice(("int", "list", "dict")) if depth else self.dice.choice(("list", "dict"))
        if kind == "int" or depth > 2:
            return self.dice.randint(0, 9)
        parts: list[Tree] = [self.value(depth + 1) for _ in range(self.dice.randint(0, 3))]
        return parts if kind == "list" else {f"k{at}": part for at, part in enumerate(parts)}

    def node(self, depth: int, *, state: bool) -> Node:
        kind = self.dice.choice(("code", "code", "code", "sequence", "parallel", "loop")) if depth < 3 else "code"
        self.made += 1
        name = f"s{self.made}"
        if kind == "code":
            return self.code(name, depth, state=state)
        if kind == "loop":
            return Node("loop", name, (self.node(depth + 1, state=state),), rounds=self.dice.randint(1, 3))
        inside = state and kind == "sequence"
        children = [self.node(depth + 1, state=inside) for _ in range(self.dice.randint(2, 3))]
        return Node("sequence" if kind == "sequence" else "parallel", name, tuple(children))

    def code(self, id: str, depth: int, *, state: bool) -> Node:
        dice, children, ops = self.dice, list[Node](), list[Op]()
        names = ["poke", "poke", "new", "twice", "hold", "poke held"]
        names += ["put", "put", "get", "poke state"] if state else []
        names += ["call", "call"] if depth < 3 else []
        for _ in range(dice.randint(1, 7)):
            name = dice.choice(names)
            where, number = dice.choice(("given", "local")), dice.randint(0, 50)
            if name == "call":
                self.made += 1
                children.append(self.code(f"s{self.made}", depth + 1, state=state))
                ops.append(("call", where, len(children) - 1))
            else:
                ops.append((name, where, dice.choice("ab"), number, self.value() if name == "new" else None))
        ops.append(("return", dice.choice(("given", "local", "both"))))
        return Node("code", id, tuple(children), tuple(ops), failures=dice.choice((0, 0, 0, 1)))


@define
class Body:
    """What a body holds while it runs; real bodies and those of the oracle do the same with it."""

    given: Tree
    state: Any
    held: list[Tree]
    local: Tree = field(factory=list[Any])

    def do(self, op: Op) -> None:
        name, where, key, number, new = op
        mine = getattr(self, where)
        if name == "poke":
            poke(mine, number)
        elif name == "new":
            self.local = copied(new)
        elif name == "twice":
            self.local = [mine, mine]
        elif name == "put":
            self.state[key] = mine
        elif name == "get":
            self.local = self.state.get(key) if isinstance(self.state.get(key), (list, dict)) else []
        elif name == "poke state":
            poke(self.state.get(key), number)
        elif name == "poke held":
            for each in self.held:
                poke(each, number)

    def let_go(self) -> None:
        """Hold nothing of the state while a step runs: afterwards it may hold another object."""
        self.given, self.local = copied(self.given), copied(self.local)

    def output(self, what: str) -> Tree:
        return [self.given, self.local] if what == "both" else getattr(self, what)

    def leave(self, ops: tuple[Op, ...], output: Tree) -> None:
        """Keep what was given and returned, for others to change when this body is long over; no state is in it."""
        if any(op[0] == "hold" for op in ops) and not any(op[0] in ("put", "get") for op in ops):
            self.held += [self.given, output]


# ------------------------------------------------------------------------------------------------------------- oracle


def parts(value: Tree) -> list[Tree]:
    inner = list(value.values()) if is_dict(value) else value if is_list(value) else []
    return [value, *(each for part in inner for each in parts(part))] if (is_list(value) or is_dict(value)) else []


class Oracle:
    """Runs a program on plain values: a copy at each border, and a state that is a tree at each."""

    def __init__(self) -> None:
        self.state: dict[str, Tree] = {}

    def border(self) -> None:
        seen: set[int] = set()
        for key, value in self.state.items():
            found = parts(value)
            if len({id(each) for each in found}) < len(found) or any(id(each) in seen for each in found):
                self.state[key] = copied(value)
            seen.update(id(each) for each in found)

    def run(self, node: Node, value: Tree) -> Tree:
        if node.kind == "sequence":
            for child in node.children:
                value = self.run(child, value)
            return value
        if node.kind == "parallel":
            return [self.run(child, value) for child in node.children]
        if node.kind == "loop":
            for _ in range(node.rounds):
                value = self.run(node.children[0], value)
            return value
        body = Body(copied(value), self.state, [])
        for op in node.ops[:-1]:
            if op[0] == "call":
                body.let_go()
                self.border()
                name, at = str(op[1]), int(op[2])
                body.local = self.run(node.children[at], getattr(body, name))
                self.border()
            else:
                body.do(op)
        self.border()
        return copied(body.output(node.ops[-1][1]))


# ------------------------------------------------------------------------------------------------------------- library


def build(node: Node, held: list[Tree], tries: dict[str, int]) -> Any:
    below: list[Any] = [build(child, held, tries) for child in node.children]
    if node.kind == "sequence":
        return sequence(*below, id=node.id)
    if node.kind == "parallel":
        return parallel(below, id=node.id)
    if node.kind == "loop":
        return loop(below[0], until=until.max_rounds(node.rounds), id=node.id)

    @step(id=node.id, version="1", retry=Retry(3, initial=0.0) if node.failures else 1)
    async def code(given: object, ctx: Context[Any, StateBag]) -> object:
        body = Body(given, ctx.state, held)
        place = "/".join(ctx.path)
        for op in node.ops[:-1]:
            if op[0] == "call":
                body.let_go()
                body.local = await below[op[2]](getattr(body, op[1]), ctx)
            else:
                body.do(op)
        tries[place] = tries.get(place, 0) + 1
        if node.failures and tries[place] <= node.failures:
            raise ConnectionError("another attempt")
        output = body.output(node.ops[-1][1])
        body.leave(node.ops, output)
        return output

    return code


async def live(node: Node, value: Tree, kills: list[tuple[int, Any]], *, kept: bool) -> tuple[Tree, Tree, int]:
    """Run a program through deaths; gives its value, its state and how many commits the first process made."""
    held: list[Tree] = []
    tries: dict[str, int] = {}
    if not kept:
        async with Harness() as harness:
            result = await harness.run(build(node, held, tries), copied(value), state=StateBag())
        return result.value, dict(result.state.view()), 0
    inner = InMemoryBackend()
    backend = FaultyBackend(inner)
    appends = 0
    last: tuple[int, Any] = (0, "before")
    for number, when in [*kills, last]:
        backend.revive(dies_at=number or None, when=when)
        with backend.outlived():
            harness = Harness(checkpoints=backend)
            flow = build(node, held, tries)
            if (head := await inner.head("r")) is None or not head.position:
                result = await harness.run(flow, copied(value), state=StateBag(), run_id="r")
            else:
                result = await harness.resume("r", flow)
        appends = appends or backend.appends
        if not backend.dead:
            return result.value, dict(result.state.view()), appends
    raise AssertionError("the last process does not die")


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_bodies_that_change_what_they_hold_agree_with_the_oracle(chunk: int) -> None:
    for seed in range(FIRST + chunk, FIRST + PROGRAMS, CHUNKS):
        made = Random(seed)
        node, value = made.node(0, state=True), made.value()
        oracle = Oracle()
        expected = oracle.run(node, copied(value)), oracle.state
        kills: list[tuple[int, Any]] = []
        try:
            assert (await live(node, value, [], kept=False))[:2] == expected, "in memory"
            *found, appends = await live(node, value, [], kept=True)
            assert tuple(found) == expected, "kept"
            for _ in range(2):
                kills = [
                    (made.dice.randint(1, appends), made.dice.choice(("before", "after")))
                    for _ in range(made.dice.randint(1, 2))
                ]
                assert (await live(node, value, kills, kept=True))[:2] == expected, "killed"
        except BaseException as error:
            error.add_note(f"NOETIC_SEED={SEED}, seed {seed}, kills {kills}, input {value}: {node}")
            raise
