"""Views of random conversations with random layers: what always holds, and what a provider's cache gets out of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import pytest
from attrs import evolve
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import to_wire_json
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from noetic_py.core.log import ItemLog
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.core.view import View
from noetic_py.errors import LimitExceeded
from noetic_py.memory.blocks import LayerBlock, Placement, as_items, weigh
from noetic_py.memory.projector import Demand, Projector, RequestHead
from noetic_py.testing._random_programs.conversation import pairing_error
from tests.properties.checks import SEED, examples

COUNTER = EstimatedCounter()
RUNS = settings(max_examples=examples(sample=60, full=10_000), deadline=None)
DEMANDS = (Demand("a", 20, 60), Demand("b"), Demand("c", 0, 200), Demand("d", 30, 30), Demand("e", 10, 400))
PLACEMENTS: tuple[Placement, ...] = ("auto", "anchor", "live", "auto", "auto")


class Session:
    """A conversation drawn step by step, with the view after each step and what must hold of it."""

    def __init__(self, draw: Callable[[int, int], int]) -> None:
        self.draw = draw
        self.projector = Projector()
        self.log = ItemLog()
        self.head = RequestHead(COUNTER, "Be careful.", window=draw(70, 1500), reserved=draw(0, 60))
        self.contents = ["", "", "", "", ""]
        self.views = 0
        self.refused = 0
        self._made = 0
        self._last: tuple[View, RequestHead] | None = None

    # -- what happens

    def grow(self) -> None:
        """A piece of conversation, whole or broken off."""
        self._made += 1
        name, words = str(self._made), "word " * self.draw(1, 30)
        moves: list[Callable[[], Iterator[Item]]] = [
            lambda: iter([Message.user(f"asks {name} {words}")]),
            lambda: iter([Message.assistant(f"says {name} {words}")]),
            lambda: iter([Reasoning(summary=f"thinks {name}"), Message.assistant(f"says {name}")]),
            lambda: self._round(name, words),
        ]
        self.log.extend(moves[self.draw(0, len(moves) - 1)]())

    def _round(self, name: str, words: str) -> Iterator[Item]:
        calls = [f"{name}-{place}" for place in range(self.draw(1, 3))]
        if self.draw(0, 1):
            yield Reasoning(summary=f"thinks {name}")
        if self.draw(0, 1):
            yield Message.assistant(f"looks {name}")
        for call in calls:
            yield FunctionCall(name="look", call_id=call)
        answered = calls[: self.draw(0, len(calls))]
        random.Random(self.draw(0, 99)).shuffle(answered)
        for call in answered:
            yield FunctionCallOutput(call_id=call, output=f"saw {words}")

    def shake(self) -> None:
        """Something besides the conversation."""
        move = self.draw(0, 9)
        if move == 0:
            self.log.rollback(max(0, len(self.log) - self.draw(1, 6)))
        elif move == 1:
            self.head = evolve(self.head, instructions=f"Be careful {self.draw(0, 1)}.")
        elif move == 2:
            self.head = evolve(self.head, window=self.draw(70, 1500))
        elif move == 3:
            self.projector, self.log = self.projector.fork(), self.log.fork()
        elif move == 4:
            self.projector.answered(TokenUsage(100, 1, cached_input=self.draw(0, 1) * 10_000))
        elif move <= 7:
            self.contents[self.draw(0, 4)] = "note " * self.draw(0, 60) + str(self.draw(0, 3))

    def blocks(self) -> list[LayerBlock]:
        plan = self.projector.plan(self.head, DEMANDS)
        if self.head.room is not None:
            assert plan.total == max(0, self.head.room)
        made = [
            LayerBlock(demand.layer, slot, as_items(demand.layer, content), placement, plan.layers[demand.layer])
            for slot, (demand, content, placement) in enumerate(zip(DEMANDS, self.contents, PLACEMENTS, strict=True))
        ]
        made[4] = evolve(made[4], volatile=True)
        return [block for block in made if self.draw(0, 19)]

    # -- what must hold

    def look(self) -> None:
        history = self.log.rendered("stopped")
        projected = None
        if self.draw(0, 5) == 0:
            projected = [item for place, item in enumerate(history) if (place * 7 + len(history)) % 3]
        blocks = self.blocks()
        try:
            view = self.projector.assemble(self.head, history, blocks, projected=projected)
        except LimitExceeded as error:
            self.refused += 1
            self.is_right_to_refuse(error, history)
            return
        self.views += 1
        self.fits(view)
        self.holds(view, history, blocks, narrowed=projected is not None)
        self.keeps_its_start(view)
        self._last = view, self.head

    def is_right_to_refuse(self, error: LimitExceeded, history: Sequence[Item]) -> None:
        assert self.head.window is not None
        assert error.limit == self.head.window - self.head.reserved
        assert self.head.system + self.head.schemas + weigh(tail_of(history), COUNTER) > error.limit

    def fits(self, view: View) -> None:
        counted = self.head.system + self.head.schemas + weigh(view.items, COUNTER)
        assert view.tokens == counted
        assert self.head.window is None or view.tokens <= self.head.window - self.head.reserved
        assert sum(part.tokens for part in view.blocks) == counted
        assert sum(part.items for part in view.blocks) == len(view.items)
        usage = view.usage
        assert usage.total == usage.system + usage.tools + usage.history + sum(usage.layers.values()) == counted

    def holds(self, view: View, history: Sequence[Item], blocks: Sequence[LayerBlock], *, narrowed: bool) -> None:
        assert pairing_error(view.items) is None
        tail = tail_of(history)
        assert list(view.items)[len(view.items) - len(tail) :] == tail
        own = [item for item in view.items if not item.id.startswith("mem_")]
        if not narrowed:
            assert own == list(history)[len(history) - len(own) :]
            assert_whole_answers(history, len(history) - len(own))
        superseded = {part.layer for part in view.blocks if part.kind == "supersede"}
        pinned = {part.layer for part in view.blocks if part.kind == "anchor"}
        assert superseded <= pinned
        for block in blocks:
            parts = [part for part in view.blocks if part.layer == block.layer]
            if not block.items:
                assert not parts or parts[-1].kind == "supersede"
                continue
            assert parts[-1].kind == "supersede" or parts[-1].items or parts[-1].dropped is not None
            if parts[-1].kind == "live" and block.budget is not None:
                assert parts[-1].tokens <= block.budget

    def keeps_its_start(self, view: View) -> None:
        """What was called stable is the same bytes, unless the view says who moved it."""
        if self._last is None:
            assert (view.moved, view.repeated) == (None, 0)
            return
        before, head = self._last
        common = list(
            takewhile(lambda pair: pair[0] == pair[1], zip(wire(before.items), wire(view.items), strict=False))
        )
        start = head.system + head.schemas if head.instructions == self.head.instructions else 0
        assert view.repeated <= start + weigh(view.items[: len(common)], COUNTER)
        if head.instructions != self.head.instructions:
            assert view.moved == "instructions"
        elif view.moved is None:
            assert len(common) >= before.stable
            assert view.repeated >= start + weigh(view.items[: before.stable], COUNTER)
        if view.epoch == before.epoch and view.moved is not None:
            assert view.moved in ("history", *(demand.layer for demand in DEMANDS))


def wire(items: Sequence[Item]) -> list[bytes]:
    return [to_wire_json(item) for item in items]


def tail_of(history: Sequence[Item]) -> list[Item]:
    """What nobody answered yet, or the last round; written down here by other means."""
    items = list(history)
    place = len(items)
    while place and isinstance(last := items[place - 1], Message) and last.role == "user":
        place -= 1
    if place < len(items) or not items:
        return items[place:]
    place -= 1
    while place and not may_begin(items, place):
        place -= 1
    return items[place:]


def may_begin(items: Sequence[Item], place: int) -> bool:
    """Whether a part of the conversation may begin here: nothing before it belongs to what comes after it."""
    before, after = items[:place], items[place:]
    calls = {item.call_id for item in before if isinstance(item, FunctionCall)}
    if any(isinstance(item, FunctionCallOutput) and item.call_id in calls for item in after):
        return False
    last, first = items[place - 1], items[place]
    if isinstance(first, Message) and first.role == "user":
        return True
    if isinstance(last, Reasoning | FunctionCall):
        return False
    return not (isinstance(first, FunctionCall) and isinstance(last, Message) and last.role == "assistant")


def assert_whole_answers(history: Sequence[Item], cut: int) -> None:
    assert cut == 0 or may_begin(list(history), cut)


@seed(SEED)
@RUNS
@given(st.data())
def test_views_of_whatever_happens(data: st.DataObject) -> None:
    session = Session(lambda low, high: data.draw(st.integers(low, high)))
    for _ in range(data.draw(st.integers(1, 25))):
        session.grow()
        session.shake()
        session.look()


def uneven(source: random.Random) -> Callable[[int, int], int]:
    """Numbers of which many are small, because that is where conversations are taken back, forked and refused."""

    def drawn(low: int, high: int) -> int:
        if source.random() < 0.35:
            return low
        return source.randint(low, min(high, low + 3) if source.random() < 0.3 else high)

    return drawn


def test_many_sessions_see_everything() -> None:
    """Short and long random sessions, and that what is to be tried really happened in them."""
    seen: set[str] = set()
    reasons: set[str] = set()
    refused = views = 0
    for number in range(examples(sample=50, full=4_000)):
        session = Session(uneven(random.Random(f"{SEED} {number}")))
        for _ in range(150 if number % 20 == 0 else 25):
            session.grow()
            session.shake()
            session.look()
            if session._last is not None:
                view = session._last[0]
                seen |= {part.kind for part in view.blocks} | {f"moved {view.moved}"}
                reasons.add(view.reason)
        refused += session.refused
        views += session.views
    assert refused > 0
    assert views > 5 * refused
    assert seen >= {"system", "anchor", "history", "live", "supersede", "tail", "moved None", "moved history"}
    assert reasons >= {"cold start", "changed instructions", "supersedes took more than 15% of the window"}


# ------------------------------------------------------------------------------------------------ the cache


def layers(turn: int, *, now: bool) -> list[LayerBlock]:
    """Five layers as an agent has them: rules, a profile, facts that change at times, a plan, and the time."""
    contents = {
        "rules": "Answer in short sentences, name your sources. " * 8,
        "profile": "Ada lives in Kiel and sails on Sundays. " * 6,
        "facts": "The tide is high at noon. " * 10 + f"Known since turn {turn // 7 * 7}.",
        "plan": "First look, then answer. " * 5 + f"Step {turn // 5}.",
        "clock": f"It is turn {turn}." if now else None,
    }
    return [
        LayerBlock(layer, slot, as_items(layer, content), volatile=layer == "clock")
        for slot, (layer, content) in enumerate(contents.items())
    ]


def naive(head: RequestHead, history: Sequence[Item], blocks: Sequence[LayerBlock]) -> list[Item]:
    """The usual order: what the layers recall now stands in front of the conversation."""
    return [*(item for block in blocks for item in block.items), *history]


class PrefixCache:
    """A provider that serves from its cache what the last request began with, byte for byte."""

    def __init__(self) -> None:
        self._last: list[bytes] = []
        self.read = self.served = 0

    def ask(self, head: RequestHead, items: Sequence[Item]) -> TokenUsage:
        sent = wire(items)
        pairs = zip(self._last, sent, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        served = (head.system + weigh(items[:common], COUNTER)) if self._last else 0
        self._last = sent
        read = head.system + weigh(items, COUNTER)
        self.read += read
        self.served += served
        return TokenUsage(read, 20, cached_input=served)


def converse(log: ItemLog, turn: int) -> Iterator[None]:
    """Two rounds of a turn: the user asks, a tool is called and answers; then the model answers."""
    log.append(Message.user(f"Question {turn}: when can I sail out of the harbour, and how long will it last?"))
    yield
    log.append(FunctionCall(name="look", arguments=f'{{"turn":{turn}}}', call_id=f"call-{turn}"))
    log.append(FunctionCallOutput(call_id=f"call-{turn}", output="high water 12:40, wind 4 from the west, rain later"))
    yield
    log.append(Message.assistant(f"Answer {turn}: leave at eleven, be back by three."))


def test_a_pinned_start_stays_the_same_bytes_for_a_whole_epoch() -> None:
    projector, log = Projector(), ItemLog()
    head = RequestHead(COUNTER, "Be careful.", window=100_000)
    starts: dict[int, set[tuple[bytes, ...]]] = {}
    assemblies: dict[int, int] = {}
    for turn in range(50):
        for _ in converse(log, turn):
            view = projector.assemble(head, log.rendered("x"), layers(turn, now=True))
            pinned = sum(part.items for part in view.blocks if part.kind == "anchor")
            assert pinned >= 2
            starts.setdefault(view.epoch, set()).add(tuple(wire(view.items[:pinned])))
            assemblies[view.epoch] = assemblies.get(view.epoch, 0) + 1
            assert not any(part.layer == "clock" and part.kind != "live" for part in view.blocks)
    assert {len(versions) for versions in starts.values()} == {1}
    assert assemblies == {1: 50, 2: 50}


@pytest.mark.parametrize("window", [100_000, 3_000])
def test_what_a_prefix_cache_serves(window: int, record_testsuite_property: Callable[[str, object], None]) -> None:
    head = RequestHead(COUNTER, "Be careful.", window=window)
    shown, plain = PrefixCache(), PrefixCache()
    projector, log = Projector(), ItemLog()
    index_of_cut = 0
    for turn in range(50):
        for _ in converse(log, turn):
            history = log.rendered("x")
            blocks = layers(turn, now=True)
            view = projector.assemble(head, history, blocks)
            usage = shown.ask(head, view.items)
            # What the view says of it is what the provider finds.
            assert usage.cached_input == view.repeated
            projector.answered(usage)
            # The naive order drops just what has no room, each time anew.
            while head.system + weigh(naive(head, history[index_of_cut:], blocks), COUNTER) > window:
                index_of_cut += 1
                while index_of_cut < len(history) and not may_begin(list(history), index_of_cut):
                    index_of_cut += 1
            plain.ask(head, naive(head, history[index_of_cut:], blocks))
    record_testsuite_property(f"tokens from cache, window {window}", f"{shown.served} of {shown.read}")
    record_testsuite_property(
        f"tokens from cache in the naive order, window {window}", f"{plain.served} of {plain.read}"
    )
    assert shown.served * 100 >= shown.read * (88 if window > 10_000 else 70)
    assert shown.served * 2 > plain.served * 3
