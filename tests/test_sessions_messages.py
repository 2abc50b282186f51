"""The queue of messages itself: what waits, in which order it is claimed, and what a session says is taken."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, get_args

import anyio
import anyio.lowlevel
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import FunctionCallOutput, InMemoryBackend, Item, Message, SessionKey, SessionPolicy
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump
from noetic_py.errors import CodecError, ConfigError, InvalidId, LimitExceeded, StoreUnavailable
from noetic_py.journal.session_stream import OpenTurn, ShutTurn, StoredConversation
from noetic_py.journal.values import write_items
from noetic_py.sessions.queue import Delivery, MessageQueue, QueuedMessage, receivers
from noetic_py.testing import VirtualRuntime

pytestmark = pytest.mark.anyio

KEY, OTHER = SessionKey("ada", "trip"), SessionKey("bob", "trip")
SCOPE = ("session queue", KEY.stream)
MOST = 4


class Counted(DelegatingBackend):
    """A backend that counts what is put, lets others run before, and can be one that nothing can be removed from."""

    puts = 0
    is_stuck = False

    async def put(self, scope: Any, key: str, value: bytes, *, expected: int | None = None) -> int:
        self.puts += 1
        await anyio.lowlevel.checkpoint()
        return await super().put(scope, key, value, expected=expected)

    async def remove(self, scope: Any, key: str, *, expected: int | None = None) -> bool:
        if self.is_stuck:
            raise StoreUnavailable("the disk failed", where="here", reason="io", hint="try again")
        return await super().remove(scope, key, expected=expected)


def queue_of(backend: Any, *, durable: bool = True, most: int = MOST) -> MessageQueue:
    return MessageQueue(backend, VirtualRuntime(), SessionPolicy(max_queued=most), durable=durable)


async def empty(key: SessionKey) -> StoredConversation:
    return StoredConversation()


async def ids(queue: MessageQueue, key: SessionKey = KEY) -> list[str]:
    return [each.delivery_id for each in await queue.waiting(key)]


# -- who gets something


async def test_the_sessions_for_which_messages_wait_are_found() -> None:
    backend = InMemoryBackend()
    queue = queue_of(backend)
    # More than the backend gives at once.
    keys = [
        SessionKey(user, f"trip {number}", app=app)
        for user in ("ada", None)
        for app in (None, "shop")
        for number in range(30)
    ]
    for key in keys:
        for delivery in ("1", "2"):
            await queue.send(key, "x", "next_turn", delivery, empty)
    assert sorted(await receivers(backend), key=repr) == sorted([*keys, *keys], key=repr)
    await queue.ack(keys[0], await queue.waiting(keys[0]))
    assert {*await receivers(backend)} == {*keys[1:]}


async def test_a_message_of_an_earlier_release_does_not_say_for_whom_it_is() -> None:
    backend = InMemoryBackend()
    await backend.put(SCOPE, "1", dump({"d": "1"}))
    assert list(await receivers(backend)) == []


@pytest.mark.parametrize("receiver", [["app", "ada"], 3, ["app", "ada", "x" * 2000]])
async def test_a_receiver_that_is_none_is_named(receiver: object) -> None:
    backend = InMemoryBackend()
    await backend.put(SCOPE, "1", dump({"to": receiver}))
    with pytest.raises(CodecError, match=r"message 1.* is not a valid receiver"):
        await receivers(backend)


# -- sending


async def test_places_are_numbered_one_after_the_other_by_all_who_send() -> None:
    backend = Counted(InMemoryBackend())
    queues = [queue_of(backend, most=300) for _ in range(3)]
    async with anyio.create_task_group() as group:
        for number, queue in enumerate(queues):
            group.start_soon(queue.send, KEY, "x", "next_turn", f"first-{number}", empty)
    for number in range(150):
        await queues[0].send(KEY, "x", "next_turn", f"m-{number}", empty)
    # One put each; of three at the same moment one is made three times, and one twice.
    assert backend.puts == 150 + 3 + 2 + 1
    waiting = await queues[1].waiting(KEY)
    assert [each.key for each in waiting] == [f"{number:020d}" for number in range(1, 154)]
    assert [each.delivery_id for each in waiting[3:]] == [f"m-{number}" for number in range(150)]
    assert {each.delivery_id for each in waiting[:3]} == {"first-0", "first-1", "first-2"}


def test_the_id_of_an_item_is_the_same_in_every_release() -> None:
    pictured = Message.user(["look"])
    for message in ("text", pictured):
        item = QueuedMessage("m-1", "next_turn", message).item
        assert item.id == "queued_a461b472cb41a9ec3dee5c90cf8e4a78"
        assert item.role == "user"
    assert QueuedMessage("m-1", "next_turn", pictured).item.content == pictured.content
    assert QueuedMessage("m-\ud800", "next_turn", "text").item.id.startswith("queued_")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"message": 3}, ConfigError, "session-message"),
    ({"message": Message.assistant("x")}, ConfigError, "session-message"),
    ({"message": FunctionCallOutput(call_id="c", output="x")}, ConfigError, "session-message"),
    ({"deliver": "soon"}, ConfigError, "session-delivery"),
    ({"delivery_id": ""}, InvalidId, ""),
    ({"delivery_id": "x" * 257}, InvalidId, ""),
    ({"delivery_id": 3}, InvalidId, ""),
]


@pytest.mark.parametrize(("given", "error", "code"), WRONG)
async def test_what_cannot_be_delivered_is_refused(given: Any, error: type[Exception], code: str) -> None:
    queue = queue_of(InMemoryBackend())
    right: dict[str, Any] = {"message": "x", "deliver": "next_turn", "delivery_id": "m"}
    with pytest.raises(error) as caught:
        await queue.send(KEY, read=empty, **(right | given))
    assert not code or getattr(caught.value, "code", None) == code
    for size in (1, 256):
        assert await queue.send(KEY, "x", "next_turn", "m" * size, empty) is not None
    assert await ids(queue) == ["m", "m" * 256]


async def test_without_a_lock_nothing_is_delivered() -> None:
    queue = MessageQueue(InMemoryBackend(), VirtualRuntime(), SessionPolicy(lock="none"), durable=True)
    with pytest.raises(ConfigError) as caught:
        await queue.send(KEY, "x", "next_turn", None, empty)
    assert caught.value.code == "session-delivery"


# -- taking


Stands = Literal["never", "completed", "suspended", "failed", "open", "shut", "steered"]


def conversation_of(stands: Stands, *, others: bool) -> StoredConversation:
    """A session whose run of message m-1 stands so, perhaps with turns of other runs that are open and shut."""
    found = StoredConversation()
    if others:
        found.open, found.shut = OpenTurn("other", "m-9"), ShutTurn("another", 1)
        found.delivered |= {"m-9": "other", "m-8": "another"}
    if stands != "never":
        found.delivered["m-1"] = "r"
    if stands in ("suspended", "failed"):
        found.unfinished["r"] = (3, 7, stands)
    if stands == "open":
        found.open = OpenTurn("r", "m-1")
    if stands == "shut":
        found.shut = ShutTurn("r", 1)
    if stands == "steered":
        found.open = OpenTurn("r", None)
        found.taken.add("m-1")
    return found


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("stands", get_args(Stands))
async def test_a_message_is_taken_when_its_run_does_not_have_to_go_on(
    stands: Stands, durable: bool, others: bool
) -> None:
    taken = {"never": False, "completed": True, "suspended": True, "open": False, "steered": True}
    # What a process has left goes on in another one, where another one can have it.
    taken |= {"failed": not durable, "shut": not durable}
    queue = queue_of(InMemoryBackend(), durable=durable)
    await queue.send(KEY, "one", "next_turn", "m-1", empty)
    claimed = await queue.claim(KEY, conversation_of(stands, others=others))
    assert (None if claimed is None else claimed.delivery_id) == (None if taken[stands] else "m-1")
    assert await ids(queue) == ([] if taken[stands] else ["m-1"])


async def test_a_message_that_cannot_be_removed_yet_is_found_to_be_taken_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Counted(InMemoryBackend())
    queue = queue_of(backend)
    for name in ("m-1", "m-2"):
        await queue.send(KEY, name, "next_turn", name, empty)
    messages = await queue.waiting(KEY)
    queue.reserve(KEY, messages[:1])
    backend.is_stuck = True
    await queue.ack(KEY, messages[:1])
    assert "message that session 'trip' has taken was not removed yet" in caplog.text
    assert "the disk failed" in caplog.text
    backend.is_stuck = False
    claimed = await queue.claim(KEY, conversation_of("completed", others=False))
    assert claimed is not None
    assert (claimed.delivery_id, await ids(queue)) == ("m-2", ["m-2"])
    # It was removed, and its place is another one's.
    await queue.forget(KEY)
    await queue.send(KEY, "new", "next_turn", "m-3", empty)
    await queue.ack(KEY, messages)
    assert await ids(queue) == ["m-3"]


async def test_a_session_that_is_forgotten_lets_go_of_its_own_messages_only() -> None:
    queue, conversation = queue_of(InMemoryBackend()), StoredConversation()
    for key in (KEY, OTHER):
        await queue.send(key, "x", "next_turn", "m-1", empty)
        queue.reserve(key, await queue.waiting(key))
        assert await queue.claim(key, conversation) is None
    await queue.forget(KEY)
    await queue.send(KEY, "x", "next_turn", "m-1", empty)
    assert await queue.claim(KEY, conversation) is not None
    assert await queue.claim(OTHER, conversation) is None


DAMAGED: list[dict[str, Any]] = [
    {"d": 3},
    {"m": "soon"},
    {"m": None},
    {"i": []},
    {"i": [], "text": "x"},
    {"i": write_items((FunctionCallOutput(call_id="c", output="x"),), Codec())},
    {"i": write_items((FunctionCallOutput(call_id="c", output="x"),), Codec()), "text": "x"},
    {"text": 3},
    {"text": None},
]


@pytest.mark.parametrize("wrong", DAMAGED)
async def test_a_stored_message_that_is_none_is_named(wrong: Any) -> None:
    backend = InMemoryBackend()
    queue = queue_of(backend)
    right = {"d": "m-1", "m": "interrupt", "i": write_items((Message.user("x"),), Codec())}
    await backend.put(SCOPE, "1", dump(right))
    [read] = await queue.waiting(KEY)
    assert (read.delivery_id, read.deliver, read.key, read.version) == ("m-1", "interrupt", "1", read.version)
    assert isinstance(read.message, Message)
    await backend.put(SCOPE, "2", dump(right | wrong))
    with pytest.raises(CodecError, match=r"message 2: is not a valid message"):
        await queue.waiting(KEY)


async def test_one_at_a_time_claims() -> None:
    queue, inside = queue_of(InMemoryBackend()), list[str]()

    async def claims(key: SessionKey) -> None:
        async with queue.claiming(key):
            inside.append(key.stream)

    async with anyio.create_task_group() as group, AsyncExitStack() as held:
        await held.enter_async_context(queue.claiming(KEY))
        for key in (KEY, OTHER):
            group.start_soon(claims, key)
        await anyio.wait_all_tasks_blocked()
        assert inside == [OTHER.stream]
        await held.aclose()
        await anyio.wait_all_tasks_blocked()
        assert inside == [OTHER.stream, KEY.stream]


async def test_a_turn_is_not_told_what_it_answers() -> None:
    queue = queue_of(InMemoryBackend())
    sent: list[tuple[str, Delivery]] = [("m-1", "between_rounds"), ("m-2", "next_turn"), ("m-3", "between_rounds")]
    for name, deliver in sent:
        await queue.send(KEY, name, deliver, name, empty)
    with queue.answering(KEY, {"m-1"}):
        assert [message.text for message in await queue.steering(KEY)] == ["m-3"]
        assert await queue.steering(OTHER) == []
    assert [message.text for message in await queue.steering(KEY)] == ["m-1", "m-3"]
    nothing_left(queue)


async def test_those_who_listen_to_a_session_are_woken() -> None:
    queue = queue_of(InMemoryBackend())
    with queue.listening(KEY) as first, queue.listening(OTHER) as other:
        with queue.listening(KEY):
            # One that leaves takes no other with it.
            pass
        with queue.listening(KEY) as second:
            await queue.send(KEY, "x", "next_turn", None, empty)
            assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
        with queue.listening(KEY) as third:
            queue.wake(KEY)
            assert (third.is_set(), other.is_set()) == (True, False)
        queue.wake()
        assert other.is_set()
    nothing_left(queue)


def nothing_left(queue: MessageQueue) -> None:
    assert (queue._reserved, queue._answered, queue._listening) == (set(), {}, {})


# -- random programs


@define
class Process:
    """A queue of one process, and what it holds back."""

    queue: MessageQueue
    reserved: set[str] = field(factory=set[str])


@define
class Waiting:
    """What a session's queue holds, as lists."""

    messages: list[tuple[str, Delivery]] = field(factory=list[tuple[str, Delivery]])
    done: set[str] = field(factory=set[str])
    open: str | None = None

    def next(self, reserved: set[str]) -> str | None:
        left = [(name, deliver) for name, deliver in self.messages if name not in reserved]
        first = [name for name, _ in left if name == self.open]
        first += [name for name, deliver in left if deliver == "interrupt"]
        return [*first, *(name for name, _ in left), None][0]

    def conversation(self) -> StoredConversation:
        found = StoredConversation(delivered={name: f"run of {name}" for name in self.done})
        if self.open is not None:
            found.open = OpenTurn(f"run of {self.open}", self.open)
            found.delivered[self.open] = f"run of {self.open}"
        return found


MOVES = ("send", "send", "send again", "claim", "claim", "leave open", "reserve", "save", "die", "forget")


class Machine:
    """Two processes that serve one session, beside another session that has to stay as it is."""

    def __init__(self) -> None:
        backend = InMemoryBackend()
        self.processes = [Process(queue_of(backend)) for _ in range(2)]
        self.model = Waiting()
        self.sent = 0

    async def read(self, key: SessionKey) -> StoredConversation:
        assert key == KEY
        return self.model.conversation()

    async def send(self, process: Process, name: str, deliver: Delivery) -> None:
        model = self.model
        there = name in model.done or name == model.open or name in dict(model.messages)
        if len(model.messages) >= MOST and not there:
            with pytest.raises(LimitExceeded) as caught:
                await process.queue.send(KEY, name, deliver, name, self.read)
            assert caught.value.limit == MOST
            return
        sent = await process.queue.send(KEY, name, deliver, name, self.read)
        assert (sent is None) == there
        if sent is not None:
            assert (sent.delivery_id, sent.deliver, sent.message) == (name, deliver, name)
            model.messages.append((name, deliver))

    async def claim(self, process: Process, then: str) -> None:
        model = self.model
        claimed = await process.queue.claim(KEY, model.conversation())
        model.messages = [each for each in model.messages if each[0] not in model.done - process.reserved]
        assert (None if claimed is None else claimed.delivery_id) == model.next(process.reserved)
        if claimed is None:
            return
        if then == "reserve":
            process.queue.reserve(KEY, [claimed])
            process.reserved.add(claimed.delivery_id)
        elif then == "leave open":
            model.open = claimed.delivery_id
        else:
            self.end(claimed.delivery_id)
            # A process may die before it has removed what its session says is taken.
            if then == "claim":
                await self.ack(process, [claimed])

    async def ack(self, process: Process, messages: Sequence[QueuedMessage]) -> None:
        await process.queue.ack(KEY, messages)
        gone = {each.delivery_id for each in messages}
        process.reserved -= gone
        self.model.messages = [each for each in self.model.messages if each[0] not in gone]

    def end(self, name: str) -> None:
        self.model.done.add(name)
        if self.model.open == name:
            self.model.open = None

    async def move(self, move: str, process: Process, number: int) -> None:
        modes: tuple[Delivery, ...] = get_args(Delivery)
        if move == "send":
            self.sent += 1
            await self.send(process, f"m-{self.sent}", modes[number % 3])
        elif move == "send again" and self.sent:
            await self.send(process, f"m-{1 + number % self.sent}", modes[number % 3])
        elif move == "save":
            held = [each for each in await process.queue.waiting(KEY) if each.delivery_id in process.reserved]
            for each in held:
                self.end(each.delivery_id)
            await self.ack(process, held)
        elif move == "forget":
            await process.queue.forget(KEY)
            process.reserved.clear()
            self.model.messages.clear()
        else:
            await self.claim(process, move)

    async def check(self) -> None:
        names = [name for name, _ in self.model.messages]
        for process in self.processes:
            waiting = await process.queue.waiting(KEY)
            assert [(each.delivery_id, each.deliver) for each in waiting] == self.model.messages
            assert await ids(process.queue, OTHER) == ["not hers"]
            held = set(names[:1])
            items: list[Item] = [
                Message.user("x"),
                *(each.item for each in waiting[1:]),
                FunctionCallOutput(call_id="c", output="x"),
            ]
            assert list(await process.queue.contained_in(KEY, items)) == waiting[1:]
            with process.queue.answering(KEY, held):
                steering = await process.queue.steering(KEY)
            assert list(steering) == [
                each.item for each in waiting if each.deliver == "between_rounds" and each.delivery_id not in held
            ]
            assert [each.id for each in await process.queue.steering(KEY)] == [
                each.item.id for each in waiting if each.deliver == "between_rounds"
            ]


@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 1), st.integers(0, 20)), max_size=20))
async def test_what_waits_is_claimed_as_lists_say(moves: list[tuple[str, int, int]]) -> None:
    machine = Machine()
    await machine.processes[0].queue.send(OTHER, "x", "next_turn", "not hers", empty)
    for move, place, number in moves:
        await machine.move(move, machine.processes[place], number)
        await machine.check()
    for process in machine.processes:
        process.queue.reserve(OTHER, await process.queue.waiting(OTHER))
        for key in (KEY, OTHER):
            await process.queue.forget(key)
        nothing_left(process.queue)
