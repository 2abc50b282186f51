"""Channels against a model of one, and with cancellations at every moment: nothing is lost, doubled or overtaken."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any, Literal, TypeVar

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, field
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from noetic_py import (
    Budget,
    Channel,
    Context,
    Harness,
    Memory,
    Retry,
    Step,
    every,
    loop,
    parallel,
    race,
    settle,
    step,
    until,
)
from noetic_py.channels import Board, Entry, LiveChannel, Reader
from noetic_py.context.detached import DetachedRun
from noetic_py.errors import ChannelClosed, ChannelTimeout, ParallelFailed, StepFailed
from noetic_py.journal.records import RunEnded
from tests.properties.checks import SEED, examples, left_over, tasks
from tests.properties.stepping import Points

pytestmark = pytest.mark.anyio

T = TypeVar("T")

MACHINES = settings(max_examples=examples(sample=8, full=600), stateful_step_count=50, deadline=None)
ROUNDS = examples(sample=10, full=100)
HAND_OVERS = 100
"""Hand-overs of one round: the full set hands over 10,000 messages for each mode and event loop."""
SENDS = examples(sample=10_000, full=1_000_000)


def board(told: list[int] | None = None) -> Board:
    def lost(channel: Channel[Any], dropped: int) -> None:
        if told is not None:
            told.append(dropped)

    return Board(lost)


@contextmanager
def reproducible(number: int) -> Generator[random.Random]:
    """Randomness of its own for a round, which a failure names."""
    try:
        yield random.Random(SEED * 100_000 + number)
    except BaseException as error:
        error.add_note(f"NOETIC_SEED={SEED}, round {number}")
        raise


# ------------------------------------------------------------------------------------------------- a model of a channel


class Ended(Exception):
    """What a task of the machine has come to when it was cancelled."""


@define(eq=False)
class Op:
    """A send or a take that may wait, and how it ended."""

    task: asyncio.Task[Any] | None = None
    value: int = 0
    entry: Entry | None = None


class Machine(RuleBasedStateMachine):
    """Operations in any order; after each one everybody runs until all wait, and the model is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.next = 0
        self.closed = False

    def do(self, work: Callable[[], T]) -> T:
        """Do something inside the event loop."""

        async def call() -> T:
            return work()

        return self.loop.run_until_complete(call())

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.settle()
        return task

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def fresh(self) -> int:
        self.next += 1
        return self.next

    def teardown(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.settle()
        self.loop.close()


def outcome(op: Op) -> object:
    """What has become of an operation: `None` while it waits."""
    task = op.task
    if task is None or not task.done():
        return None
    if task.cancelled():
        return Ended
    error = task.exception()
    return task.result() if error is None else type(error)


class QueueMachine(Machine):
    """A queue of three places."""

    CAPACITY = 3

    def __init__(self) -> None:
        super().__init__()
        self.channel = Channel("c", int, capacity=self.CAPACITY)
        self.told: list[int] = []
        self.live: Any = self.do(lambda: board(self.told).live(self.channel))
        self.reader: Reader = self.live.reader(lambda: True)
        # The model: messages as (order, value), and who waits.
        self.order = 0
        self.queue: list[tuple[int, int]] = []
        self.parked: list[Op] = []
        self.waiting: list[Op] = []
        self.expected: dict[Op, object] = {}
        self.dropped = 0
        # What was taken and may be given back.
        self.taken: list[tuple[int, Entry]] = []
        self.ops: list[Op] = []

    # -- the model's own moves

    def put(self, value: int) -> None:
        self.order += 1
        self.queue.append((self.order, value))

    def serve(self) -> None:
        while True:
            if self.waiting and self.queue:
                order, value = self.queue.pop(0)
                self.hand(self.waiting.pop(0), order, value)
            elif self.parked and len(self.queue) < self.CAPACITY:
                op = self.parked.pop(0)
                self.put(op.value)
                self.expected[op] = "sent"
            else:
                return

    def hand(self, op: Op, order: int, value: int) -> None:
        self.expected[op] = value
        op.value = order

    # -- rules

    @rule()
    def send(self) -> None:
        op = Op(value=self.fresh())
        self.ops.append(op)

        async def work() -> str:
            entry = await self.live.wait_for_space()
            self.live.place(entry, op.value)
            return "sent"

        if self.closed:
            self.expected[op] = ChannelClosed
        else:
            self.parked.append(op)
            self.serve()
        op.task = self.start(work())

    @rule()
    def take(self) -> None:
        op = Op()
        self.ops.append(op)

        async def work() -> int:
            op.entry = await self.reader.take()
            value: int = op.entry.value
            return value

        if self.closed and not self.queue:
            self.expected[op] = ChannelClosed
        else:
            self.waiting.append(op)
            self.serve()
        op.task = self.start(work())

    @rule()
    def take_now(self) -> None:
        entry = self.do(self.reader.take_now)
        if not self.queue:
            assert entry is None
            return
        order, value = self.queue.pop(0)
        assert entry is not None
        assert entry.value == value
        self.taken.append((order, entry))
        self.serve()
        self.settle()

    @rule()
    def push(self) -> None:
        value = self.fresh()
        if self.closed:
            with pytest.raises(ChannelClosed):
                self.do(lambda: self.live.push(value))
            return
        self.do(lambda: self.live.push(value))
        if len(self.queue) >= self.CAPACITY:
            self.queue.pop(0)
            self.dropped += 1
        self.put(value)
        self.serve()
        self.settle()

    @precondition(lambda self: self.parked or self.waiting)
    @rule(which=st.integers(min_value=0), by_scope=st.booleans())
    def cancel_one_that_waits(self, which: int, by_scope: bool) -> None:
        line = self.parked + self.waiting
        op = line[which % len(line)]
        (self.parked if op in self.parked else self.waiting).remove(op)
        self.expected[op] = Ended
        assert op.task is not None
        op.task.cancel()
        self.settle()

    @precondition(lambda self: self.waiting and not self.closed)
    @rule(then=st.sampled_from(["push", "give back"]))
    def cancel_at_the_hand_over(self, then: str) -> None:
        """The first receiver is handed a message, and cancelled before it has noticed."""
        op = self.waiting.pop(0)
        value = self.fresh()

        def both() -> None:
            self.live.push(value)
            assert op.task is not None
            op.task.cancel()

        self.do(both)
        self.expected[op] = Ended
        self.put(value)
        self.serve()
        self.settle()

    @precondition(lambda self: self.parked and self.queue)
    @rule()
    def cancel_at_the_grant(self) -> None:
        """The first parked sender is granted a place, and cancelled before it has noticed."""
        op = self.parked.pop(0)

        def both() -> Entry | None:
            entry = self.reader.take_now()
            assert op.task is not None
            op.task.cancel()
            return entry

        entry = self.do(both)
        order, value = self.queue.pop(0)
        assert entry is not None
        assert entry.value == value
        self.taken.append((order, entry))
        self.expected[op] = Ended
        self.serve()
        self.settle()

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(min_value=0), many=st.booleans())
    def give_back(self, which: int, many: bool) -> None:
        self.taken.sort(key=lambda each: (each[0] * (which + 1)) % 7)
        back = self.taken if many else self.taken[:1]
        self.taken = [] if many else self.taken[1:]
        self.queue = sorted([*self.queue, *((order, entry.value) for order, entry in back)])
        self.serve()
        self.do(lambda: self.reader.give_back(*(entry for _, entry in back)))
        self.settle()

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        # Rarely: most of what there is to see is before.
        if self.next % 7 == 0:
            self.closed = True
            for op in (*self.parked, *self.waiting):
                self.expected[op] = ChannelClosed
            self.parked, self.waiting = [], []
            self.do(self.live.close)
            self.settle()

    # -- what has to hold after each

    @invariant()
    def all_is_as_foretold(self) -> None:
        assert [entry.value for entry in self.live._entries] == [value for _, value in self.queue]
        assert all(entry.placed for entry in self.live._entries)
        assert len(self.live._senders) == len(self.parked)
        assert len(self.live._readers) == len(self.waiting)
        assert self.live.dropped == self.dropped
        assert self.told == list(range(1, self.dropped + 1))
        for op in self.ops:
            assert outcome(op) == self.expected.get(op)
            if op.entry is not None and op not in self.expected:
                raise AssertionError("a receiver has something that it was not given")
        for op in [op for op in self.ops if op.entry is not None]:
            assert op.entry is not None
            self.taken.append((op.value, op.entry))
            op.entry = None


class TopicMachine(Machine):
    """A topic whose readers buffer two messages."""

    CAPACITY = 2

    @define(eq=False)
    class Ear:
        """A reader, what the model says it has heard, and its takes."""

        stream: bool
        reader: Any = None
        alive: bool = True
        heard: deque[int] = field(factory=deque[int])
        waiting: list[Op] = field(factory=list[Op])

    def __init__(self) -> None:
        super().__init__()
        self.channel = Channel("c", int, mode="topic", capacity=self.CAPACITY)
        self.live: Any = self.do(lambda: board().live(self.channel))
        self.ears: list[TopicMachine.Ear] = []
        self.ops: dict[Op, object] = {}
        self.dropped = 0

    @rule(stream=st.booleans())
    def listen(self, stream: bool) -> None:
        ear = TopicMachine.Ear(stream)
        ear.reader = self.do(self.live.listen if stream else lambda: self.live.reader(lambda: ear.alive))
        self.ears.append(ear)

    @rule()
    def send(self) -> None:
        value = self.fresh()
        if self.closed:
            with pytest.raises(ChannelClosed):
                self.do(lambda: self.live.push(value))
            return
        self.do(lambda: self.live.push(value))
        for ear in self.ears:
            self.hear(ear, value)
        self.settle()

    def hear(self, ear: TopicMachine.Ear, value: int) -> None:
        if not ear.alive:
            return
        if ear.waiting:
            self.ops[ear.waiting.pop(0)] = value
            return
        if len(ear.heard) >= self.CAPACITY:
            ear.heard.popleft()
            self.dropped += 1
        ear.heard.append(value)

    @precondition(lambda self: any(ear.stream or ear.alive for ear in self.ears))
    @rule(which=st.integers(min_value=0))
    def take(self, which: int) -> None:
        # A step that has ended receives nothing; whoever has left a stream may still ask it.
        ears = [ear for ear in self.ears if ear.stream or ear.alive]
        ear = ears[which % len(ears)]
        op = Op()

        async def work() -> int:
            value: int = (await ear.reader.take()).value
            return value

        self.ops[op] = None
        if ear.heard:
            self.ops[op] = ear.heard.popleft()
        elif self.closed or (ear.stream and not ear.alive):
            self.ops[op] = ChannelClosed
        else:
            ear.waiting.append(op)
        op.task = self.start(work())

    @precondition(lambda self: any(ear.waiting for ear in self.ears))
    @rule(which=st.integers(min_value=0), hand_over=st.booleans())
    def cancel(self, which: int, hand_over: bool) -> None:
        waiting = [ear for ear in self.ears if ear.waiting]
        ear = waiting[which % len(waiting)]
        op = ear.waiting.pop(0)
        value = self.fresh()
        over = hand_over and ear.alive

        def both() -> None:
            if over:
                self.live.push(value)
            assert op.task is not None
            op.task.cancel()

        self.do(both)
        self.ops[op] = Ended
        if over:
            for each in self.ears:
                self.hear(each, value)
        self.settle()

    @precondition(lambda self: self.ears)
    @rule(which=st.integers(min_value=0))
    def end(self, which: int) -> None:
        ear = self.ears[which % len(self.ears)]
        if ear.stream:
            ear.heard.clear()
            for op in ear.waiting:
                self.ops[op] = ChannelClosed
            ear.waiting.clear()
            self.do(ear.reader.leave)
            self.settle()
        # A step that waits has not ended.
        ear.alive = bool(ear.waiting)

    @rule()
    def close(self) -> None:
        if self.next % 11 == 10 and not self.closed:
            self.closed = True
            for ear in self.ears:
                for op in ear.waiting:
                    self.ops[op] = ChannelClosed
                ear.waiting.clear()
            self.do(self.live.close)
            self.settle()

    @invariant()
    def all_is_as_foretold(self) -> None:
        for op, expected in self.ops.items():
            assert outcome(op) == expected
        for ear in self.ears:
            assert [entry.value for entry in ear.reader._heard] == list(ear.heard)
        assert self.live.dropped == self.dropped


class ValueMachine(Machine):
    """A value, its receivers, and those who hear of its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.channel = Channel("c", int, mode="value")
        self.live: Any = self.do(lambda: board().live(self.channel))
        self.latest: int | None = None
        # Which change each listener has heard last; for a receiver nothing counts but that there is a value.
        self.heard: list[tuple[Any, int]] = [(self.live.reader(lambda: True), -1)]
        self.changes = 0
        self.ops: dict[Op, object] = {}
        self.waiting: list[tuple[Op, int]] = []

    @rule()
    def listen(self) -> None:
        self.heard.append((self.do(self.live.listen), 0))

    @rule(many=st.integers(min_value=1, max_value=3))
    def send(self, many: int) -> None:
        values = [self.fresh() for _ in range(many)]
        if self.closed:
            with pytest.raises(ChannelClosed):
                self.do(lambda: self.live.push(values[0]))
            return

        def push() -> None:
            for value in values:
                self.live.push(value)

        self.do(push)
        self.latest = values[-1]
        self.changes += many
        for op, at in self.waiting:
            self.hand(op, at)
        self.waiting.clear()
        self.settle()

    def hand(self, op: Op, at: int) -> None:
        self.ops[op] = self.latest
        reader, last = self.heard[at]
        self.heard[at] = (reader, last if last < 0 else self.changes)

    @rule(which=st.integers(min_value=0))
    def take(self, which: int) -> None:
        at = which % len(self.heard)
        reader, last = self.heard[at]
        if any(other == at for _, other in self.waiting):
            return
        op = Op()

        async def work() -> int:
            value: int = (await reader.take()).value
            return value

        self.ops[op] = None
        if self.latest is not None and last < self.changes:
            self.hand(op, at)
        elif self.closed:
            self.ops[op] = ChannelClosed
        else:
            self.waiting.append((op, at))
        op.task = self.start(work())

    @rule(which=st.integers(min_value=0))
    def take_now(self, which: int) -> None:
        at = which % len(self.heard)
        reader, last = self.heard[at]
        if any(other == at for _, other in self.waiting):
            return
        entry: Entry | None = self.do(reader.take_now)
        if self.latest is not None and last < self.changes:
            assert entry is not None
            assert entry.value == self.latest
            self.heard[at] = (reader, last if last < 0 else self.changes)
        else:
            assert entry is None

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(min_value=0), hand_over=st.booleans())
    def cancel(self, which: int, hand_over: bool) -> None:
        op, _ = self.waiting.pop(which % len(self.waiting))
        value = self.fresh()

        def both() -> None:
            if hand_over:
                self.live.push(value)
            assert op.task is not None
            op.task.cancel()

        self.do(both)
        self.ops[op] = Ended
        if hand_over:
            self.latest = value
            self.changes += 1
            for other, at in self.waiting:
                self.hand(other, at)
            self.waiting.clear()
        self.settle()

    @rule()
    def close(self) -> None:
        if self.next % 11 == 10 and not self.closed:
            self.closed = True
            for op, _ in self.waiting:
                self.ops[op] = ChannelClosed
            self.waiting.clear()
            self.do(self.live.close)
            self.settle()

    @invariant()
    def all_is_as_foretold(self) -> None:
        for op, expected in self.ops.items():
            assert outcome(op) == expected


@pytest.mark.parametrize("machine", [QueueMachine, TopicMachine, ValueMachine], ids=lambda machine: machine.__name__)
def test_a_channel_is_as_its_model(machine: type[Machine]) -> None:
    run_state_machine_as_test(seed(SEED)(machine), settings=MACHINES)


# --------------------------------------------------------------------------------------- hand-overs, and who is stopped


class Stops:
    """Cancel scopes of operations under way, one of which is cancelled now and then."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.scopes: list[anyio.CancelScope] = []
        self.over = False
        self.count = 0

    @contextmanager
    def stoppable(self) -> Generator[None]:
        with anyio.CancelScope() as scope:
            self.scopes.append(scope)
            try:
                yield
            finally:
                self.scopes.remove(scope)

    async def now_and_then(self) -> None:
        while not self.over:
            for _ in range(self.rng.randrange(3)):
                await checkpoint()
            if self.scopes and self.rng.random() < 0.5:
                self.rng.choice(self.scopes).cancel()
                self.count += 1
            await checkpoint()


SENDERS = 4
EACH = HAND_OVERS // SENDERS


class HandOver:
    """Messages from some senders to some receivers; an operation that is cancelled is tried again."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.stops = Stops(rng)
        self.capacity = rng.choice([1, 2, 7])
        self.live: LiveChannel = board().live(Channel("c", tuple[int, int], capacity=self.capacity))
        self.entries: deque[Entry] = vars(self.live)["_entries"]
        # By receiver, in the order in which it got them.
        self.got: dict[int, list[Entry]] = {}

    @property
    def all_got(self) -> list[Entry]:
        """What everybody has got, in the order of the channel."""
        return sorted((entry for own in self.got.values() for entry in own), key=lambda entry: entry.serial)

    async def send(self, sender: int) -> None:
        sent = 0
        while sent < EACH:
            with self.stops.stoppable():
                entry = await self.live.wait_for_space()
                self.live.place(entry, (sender, sent))
                sent += 1
            assert len(self.entries) <= self.capacity
            if self.rng.random() < 0.3:
                await checkpoint()

    async def receive(self, receiver: int) -> None:
        own = self.got[receiver] = []
        reader = self.live.reader(lambda: True)
        while True:
            with self.stops.stoppable():
                entry = await reader.take() if self.rng.random() < 0.9 else reader.take_now()
                if entry is not None:
                    own.append(entry)
            assert len(self.entries) <= self.capacity
            await checkpoint()

    async def run(self, receivers: int) -> None:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(self.stops.now_and_then)
                async with anyio.create_task_group() as workers:
                    for sender in range(SENDERS):
                        workers.start_soon(self.send, sender)
                    for receiver in range(receivers):
                        workers.start_soon(self.receive, receiver)
                    while len(self.all_got) < HAND_OVERS:
                        await checkpoint()
                    # The receivers would wait for ever.
                    workers.cancel_scope.cancel()
                self.stops.over = True


def in_order(entries: Sequence[Entry]) -> bool:
    """Whether the messages of each sender stand in the order in which it sent them."""
    last = Counter[int]()
    for entry in entries:
        sender, message = entry.value
        if message < last[sender]:
            return False
        last[sender] = message + 1
    return True


@pytest.mark.parametrize("receivers", [1, 4])
async def test_hand_overs_of_a_queue(receivers: int) -> None:
    stopped = 0
    before = tasks()
    for number in range(ROUNDS):
        with reproducible(number) as rng:
            hand_over = HandOver(rng)
            await hand_over.run(receivers)
            got = hand_over.all_got
            assert Counter(entry.value for entry in got) == Counter(product(range(SENDERS), range(EACH)))
            assert in_order(got)
            assert all(map(in_order, hand_over.got.values()))
            stopped += hand_over.stops.count
    assert stopped > ROUNDS
    assert await left_over(before) == set()


class Broadcast:
    """One who sends, and several who hear, whose waiting is cancelled now and then."""

    def __init__(self, rng: random.Random, mode: Literal["topic", "value"]) -> None:
        self.rng = rng
        self.stops = Stops(rng)
        self.live: LiveChannel = board().live(Channel("c", int, mode=mode, capacity=HAND_OVERS))
        self.heard: list[list[int]] = [[], [], [], []]

    async def listen(self, own: list[int]) -> None:
        reader = self.live.listen()
        while own[-1:] != [HAND_OVERS - 1]:
            with self.stops.stoppable():
                own.append((await reader.take()).value)
            await checkpoint()

    async def run(self) -> None:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(self.stops.now_and_then)
                async with anyio.create_task_group() as listeners:
                    for own in self.heard:
                        listeners.start_soon(self.listen, own)
                    for _ in range(5):
                        await checkpoint()
                    for message in range(HAND_OVERS):
                        self.live.push(message)
                        for _ in range(self.rng.randrange(3)):
                            await checkpoint()
                self.stops.over = True


async def test_hand_overs_of_a_topic() -> None:
    stopped = 0
    for number in range(ROUNDS):
        with reproducible(number) as rng:
            broadcast = Broadcast(rng, "topic")
            await broadcast.run()
            assert broadcast.heard == [list(range(HAND_OVERS))] * 4
            stopped += broadcast.stops.count
    assert stopped > ROUNDS


async def test_hand_overs_of_a_value() -> None:
    stopped = 0
    for number in range(ROUNDS):
        with reproducible(number) as rng:
            broadcast = Broadcast(rng, "value")
            await broadcast.run()
            for own in broadcast.heard:
                # Each change at most once, none out of order, and the last one by everybody.
                assert all(before < after for before, after in pairwise(own))
                assert own[-1] == HAND_OVERS - 1
            stopped += broadcast.stops.count
    assert stopped > ROUNDS


# ------------------------------------------------------------------------------------------------------------- in a run


class Trouble(Exception):
    """What a receiver raises now and then, after it has taken something."""


class Unreliable:
    """Receivers that fail, that are tried again, and that are cancelled by a race that another wins."""

    TOTAL = 60

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.queue = Channel("c", tuple[int, int], capacity=3)
        self.done: list[tuple[int, int]] = []

        @step(retry=Retry(20, initial=0.0001, max=0.0001))
        async def tried(n: int, ctx: Context) -> list[tuple[int, int]]:
            return await self.taken(ctx)

        once = tried.with_options(retry=1, id="once")
        self.ways: list[Step[int, list[tuple[int, int]], Memory, object]] = [tried, once, race([tried, tried])]

    def flow(self) -> Step[Any, Any, Any, Any]:
        @step
        async def receive(n: int, ctx: Context) -> None:
            while len(self.done) < self.TOTAL:
                try:
                    self.done.extend(await self.rng.choice(self.ways)(0, ctx))
                except (StepFailed, ParallelFailed) as error:
                    # The last of a retry's attempts, the only one of a step, the last path of a race.
                    if "Trouble" not in str(error):
                        raise
                await checkpoint()

        return parallel([*(self.sender(who) for who in range(3)), receive, receive])

    def sender(self, who: int) -> Step[int, None, Memory, object]:
        @step(id=f"send{who}")
        async def send(n: int, ctx: Context) -> None:
            for message in range(self.TOTAL // 3):
                await ctx.send(self.queue, (who, message))

        return send

    async def taken(self, ctx: Context) -> list[tuple[int, int]]:
        """Some messages; sometimes it breaks off in the middle."""
        own: list[tuple[int, int]] = []
        for _ in range(self.rng.randrange(1, 4)):
            try:
                own.append(await ctx.recv(self.queue, timeout=self.rng.choice([0, 0.0005])))
            except ChannelTimeout:
                break
            if self.rng.random() < 0.2:
                await checkpoint()
            if self.rng.random() < 0.2:
                raise Trouble
        return own


@pytest.mark.parametrize("number", range(max(2, ROUNDS // 5)))
async def test_steps_that_fail_after_a_take_lose_nothing(number: int) -> None:
    with reproducible(number) as rng:
        unreliable = Unreliable(rng)
        async with Harness(plugins=()) as harness:
            with anyio.fail_after(60):
                await harness.run(unreliable.flow(), 0)
        assert Counter(unreliable.done) == Counter(product(range(3), range(Unreliable.TOTAL // 3)))


async def in_order_after_failures(rng: random.Random) -> list[int]:
    """Thirty messages, as one receiver gets them that often takes some and fails."""
    queue = Channel("c", int, capacity=2)
    got: list[int] = []

    @step
    async def send(n: int, ctx: Context) -> None:
        for message in range(30):
            await ctx.send(queue, message)

    @step(retry=Retry(1000, initial=0.00001, max=0.00001))
    async def receive(left: int, ctx: Context) -> list[int]:
        own = [await ctx.recv(queue) for _ in range(min(left, rng.randrange(1, 5)))]
        if rng.random() < 0.4:
            raise Trouble
        return own

    @step
    async def collect(n: int, ctx: Context) -> None:
        while len(got) < 30:
            got.extend(await receive(30 - len(got), ctx))

    async with Harness(plugins=()) as harness:
        with anyio.fail_after(30):
            await harness.run(parallel([send, collect]), 0)
    return got


async def test_one_receiver_that_is_tried_again_gets_everything_in_order() -> None:
    for number in range(ROUNDS):
        with reproducible(number) as rng:
            assert await in_order_after_failures(rng) == list(range(30))


async def test_a_hundred_readers_of_a_topic_see_the_same() -> None:
    topic = Channel("c", int, mode="topic")
    count = examples(sample=25, full=1000)
    ready = 0

    @step
    async def listen(n: int, ctx: Context) -> list[int]:
        nonlocal ready
        with pytest.raises(ChannelTimeout):
            await ctx.recv(topic, timeout=0)
        ready += 1
        return [await ctx.recv(topic) for _ in range(count)]

    @step
    async def send(n: int, ctx: Context) -> None:
        while ready < 100:
            await checkpoint()
        for message in range(count):
            await ctx.send(topic, message)

    async with Harness(plugins=()) as harness:
        result = await harness.run(parallel([*[listen] * 100, send]), 0)
    assert result.value[:100] == [list(range(count))] * 100


async def test_a_queue_holds_its_capacity_and_counts_the_rest() -> None:
    queue = Channel("c", int, capacity=1000, external=True)
    full = anyio.Event()

    @step
    async def drain(n: int, ctx: Context) -> list[int]:
        await full.wait()
        found: list[int] = []
        while (value := ctx.try_recv(queue)) is not None:
            found.append(value)
        return found

    async with Harness(plugins=()) as harness:
        run = harness.start(drain, 0)
        handle = run.channel(queue)
        entries: Any = vars(handle)["_live"]._entries
        most = 0
        for value in range(SENDS):
            handle.send(value)
            if value % 997 == 0:
                most = max(most, len(entries))
        most = max(most, len(entries))
        dropped = handle.dropped
        full.set()
        found = (await run.result()).value
    assert most == 1000
    assert dropped == SENDS - 1000
    assert found == list(range(SENDS - 1000, SENDS))


# ------------------------------------------------------------------------------------------------ stopped at any moment


class Town:
    """A run with a bit of everything that waits: parked senders, receivers, an inbox, a schedule, work beside."""

    def __init__(self) -> None:
        self.narrow = Channel("narrow", int, capacity=1)
        self.inbox = Channel("inbox", int)
        self.news = Channel("news", int, mode="topic")
        self.level = Channel("level", int, mode="value")
        self.kept: list[DetachedRun[Any]] = []

    def flow(self) -> Step[Any, Any, Any, Any]:
        @step
        async def send(n: int, ctx: Context) -> None:
            for value in range(4):
                await ctx.send(self.narrow, value)
                await ctx.send(self.news, value)

        @step(retry=Retry(2, initial=0.0001, max=0.0001))
        async def receive(n: int, ctx: Context) -> int:
            first = await ctx.recv(self.narrow)
            if len(self.kept) < 3:
                self.kept.append(ctx.spawn_detached(self.beside(), first))
                raise ValueError
            await ctx.send(self.inbox, first)
            return await ctx.recv(self.level)

        return parallel([send, send, settle([race([receive, receive]), receive]), *self.waiting()])

    def beside(self) -> Step[int, int, Memory, object]:
        @step
        async def deeper(n: int, ctx: Context) -> int:
            await ctx.send(self.level, n)
            return await ctx.recv(self.narrow)

        @step
        async def beside(n: int, ctx: Context) -> int:
            self.kept.append(ctx.spawn_detached(deeper, n))
            return await ctx.recv(self.news)

        return beside

    def waiting(self) -> list[Step[Any, Any, Any, Any]]:
        """What would never end by itself: a parked loop, and a schedule."""

        @step
        async def note(n: int, ctx: Context) -> int:
            await ctx.send(self.level, n)
            return n

        @step
        async def tick(_: None, ctx: Context) -> None:
            await ctx.recv(self.level, timeout=float("inf"))

        parked = loop(note, until=until.max_rounds(1), inbox=self.inbox, inbox_timeout=float("inf"))
        return [parked, every(0.0005, tick, wake=self.inbox)]

    async def run(self, at: int, how: str) -> bool:
        """Run it, and stop it at a scheduling point; whether there was one."""
        scope = anyio.CancelScope()
        runs: list[Any] = []

        async def work() -> None:
            with scope:
                async with Harness(plugins=(), budget=Budget(steps=10_000)) as harness:
                    handle = harness.start(self.flow(), 0, on_error="result")
                    runs.extend([handle, handle._run, harness._resources.lease])
                    await handle.result()

        def stop() -> None:
            if how == "cancel":
                scope.cancel()
            elif runs:
                runs[0].abort("enough")

        points = Points(at, stop)
        with anyio.fail_after(10):
            await points.run(work)
        for handle, run, lease in [runs] if runs else []:
            self.check(handle, run, lease)
        return points.reached

    def check(self, handle: Any, run: Any, lease: Any) -> None:
        assert handle.done
        assert run.detached == []
        assert run.limits.children == 0
        assert run.unacknowledged is None
        assert not any(lease._held.values())
        assert sum(isinstance(record, RunEnded) for record in run.journal) == 1
        assert isinstance(run.journal[-1], RunEnded)
        for work in self.kept:
            assert work.status != "running"


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_a_stop_at_any_moment_leaves_nothing_behind(how: str) -> None:
    before = tasks()
    for at in range(1, 400, examples(sample=61, full=1)):
        try:
            assert await Town().run(at, how)
            assert await left_over(before) == set()
        except BaseException as error:
            error.add_note(f"point {at}")
            raise
