"""Random programs, from a seed."""

from __future__ import annotations

import random
from typing import Any, Literal

from attrs import frozen

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
    How,
    Inc,
    Join,
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
    Share,
    ShareItems,
    Spawn,
    Split,
    Stop,
    Tick,
)
from noetic_py.testing._random_programs.program import RandomProgram


@frozen
class Place:
    """The operations and steps that are allowed at a place of a program."""

    depth: int
    control: bool = True
    loop: bool = False
    in_place: bool = True
    hang: bool = False


class Generator:
    """Random descriptions from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 # nothing here is secret
        self.count = 0
        # Each program has a flavour, so that rare things also meet each other often enough.
        self.stops = self.random.random() < 0.35
        self.fails = self.random.random() < 0.7
        self.budget = self.random.random() < 0.2
        self.models = self.budget or self.random.random() < 0.4
        self.open = self.random.random() < 0.5
        self.hangs = self.random.random() < 0.3

    def program(self) -> RandomProgram:
        """A program."""
        flow = self.node(Place(3))
        model_calls = self.random.randint(0, 4) if self.budget else None
        kind: Literal["bag", "dict", "attrs"] = self.random.choice(("bag", "dict", "attrs"))
        return RandomProgram(self.seed, flow, kind, model_calls, self.random.randint(0, 99))

    def _id(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def node(self, place: Place) -> Node:
        """A node that may stand at a place."""
        if place.depth == 0 or self.random.random() < 0.25:
            return self.code(place)
        makers = (self.code, self.seq, self.seq, self.loop, self.branch, self.section, self.section, self.spawn)
        return self.random.choice(makers)(place)

    def _attempts(self) -> int:
        return self.random.choice((2, 3)) if self.fails and self.random.random() < 0.25 else 1

    def _deeper(self, place: Place, **changes: Any) -> Place:
        fields = {"control": place.control, "loop": place.loop, "in_place": place.in_place, "hang": place.hang}
        fields |= changes
        return Place(place.depth - 1, **fields)

    def seq(self, place: Place) -> Node:
        """Steps in a row."""
        nodes = tuple(self.node(self._deeper(place)) for _ in range(self.random.randint(1, 3)))
        return Seq(self._id("q"), nodes, self._attempts())

    def loop(self, place: Place) -> Node:
        """A loop."""
        body = self.node(self._deeper(place, loop=True))
        on_error: OnError = self.random.choice((None, None, "retry", "skip", "abort"))
        return Loop(
            self._id("o"), body, self.random.randint(1, 3), on_error, self.random.random() < 0.4, self._attempts()
        )

    def branch(self, place: Place) -> Node:
        """A branch."""
        cases = tuple(self.node(self._deeper(place)) for _ in range(self.random.randint(1, 2)))
        return Branch(self._id("b"), cases, self.random.choice(("key", "step")), self._attempts())

    def section(self, place: Place) -> Node:
        """A section, with the steps before and behind it that make numbers of its values."""
        mode = self.random.choice(("all", "all", "settle", "race", "each"))
        name = self._id("p")
        inner = self._deeper(place, control=place.control and mode != "race", loop=False, hang=False)
        count = self.random.randint(1, 4)
        concurrency = self.random.choice((None, None, None, 1, 2))
        if mode == "each":
            section = Section(name, "each", (self.node(inner),), concurrency=concurrency, attempts=self._attempts())
            return Seq(
                self._id("q"), (Split(f"{name}s", count), section, Reduce(f"{name}r", name, "all")), self._attempts()
            )
        if mode == "race":
            paths: tuple[Node, ...] = tuple(
                Seq(self._id("q"), (self.node(inner), Mark(f"{name}m{index}", index))) for index in range(count)
            )
            section = Section(name, "race", paths, concurrency=concurrency, attempts=self._attempts())
            return Seq(self._id("q"), (section, Reduce(f"{name}r", name, "race")), self._attempts())
        paths = tuple(self.node(inner) for _ in range(count))
        join: Join = self.random.choice(("tuple", "merge", "states"))
        kind: Literal["all", "settle"] = "all" if mode == "all" else "settle"
        section = Section(name, kind, paths, join, concurrency, self._attempts())
        return Seq(self._id("q"), (section, Reduce(f"{name}r", name, kind))) if join == "tuple" else section

    def spawn(self, place: Place) -> Node:
        """A spawn."""
        state: Share = self.random.choice(("share", "copy", "deepcopy", "deepcopy", "new"))
        items: ShareItems = self.random.choice(("new", "new", "copy", "view", "share"))
        # A shallow copy shares what its fields hold; in a new state two tools would both make the list.
        inner = self._deeper(place, control=True, loop=False, in_place=place.in_place and state not in ("copy", "new"))
        return Spawn(self._id("w"), self.node(inner), state, items, self._attempts())

    def code(self, place: Place) -> Node:
        """A body."""
        ops = tuple(self.op(place) for _ in range(self.random.randint(1, 6)))
        return Code(self._id("s"), ops, self._attempts())

    def op(self, place: Place) -> Op:
        """One thing that a body does."""
        chance = self.random.random()
        if chance < 0.14 and place.depth > 0:
            return Call(self.node(self._deeper(place)), self.random.random() < 0.5)
        if chance < 0.19 and place.depth > 0:
            inner = self._deeper(place, loop=False, hang=False)
            return Gather(tuple(self.node(inner) for _ in range(self.random.randint(1, 3))), self.random.random() < 0.5)
        if chance < 0.22 and place.depth > 0 and self.hangs:
            return Give(self.node(self._deeper(place, loop=False, hang=True)))
        if chance < 0.28:
            return self._rare(place)
        if chance < 0.34 and self.models:
            stop: How = "halt" if self.stops and place.control else "text"
            how: How = "text" if self.budget else self.random.choice(("text", "tools", "agent", "down", stop))
            # A model and its tools work on the list in place.
            if how in ("tools", "agent") and not place.in_place:
                how = "text"
            return Ask(how, self.random.random() < 0.5)
        makers: tuple[Op, ...] = (
            Tick(), Say(), Say(), Inc(), Push(place.in_place), Both(), See(), Pair(), Open() if self.open else Say(),
        )  # fmt: skip
        return self.random.choice(makers)

    def _rare(self, place: Place) -> Op:
        if self.stops and place.control and self.random.random() < 0.5:
            return Stop(self.random.choice(("complete", "abort")))
        if place.hang and self.random.random() < 0.6:
            return Hang()
        if place.loop and self.random.random() < 0.3:
            return EndLoop(self.random.choice((None, 4242)))
        return Fail(self.random.randint(1, 2)) if self.fails else Tick()


def random_program(seed: int) -> RandomProgram:
    """The program of a seed; equal seeds give equal programs.

    Args:
        seed: Any whole number.
    """
    return Generator(seed).program()
