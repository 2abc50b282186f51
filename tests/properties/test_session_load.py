"""Sessions under load: callers of one session keep their order, many sessions do not wait for each other or stay."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from attrs import Factory, define
from typing_extensions import TypeIs

from noetic_py import Context, Harness, InMemoryBackend, Memory, Message, SessionPolicy, sequence, step
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.checkpoints.sqlite.schema import RunRow
from noetic_py.checkpoints.sqlite.store import _HEADS
from noetic_py.errors import StepFailed
from noetic_py.sessions.queue import SessionLock
from tests.crash.folders import quick_folder
from tests.properties.checks import SEED, examples, left_over, tasks

pytestmark = pytest.mark.anyio

CALLERS = 100
TURNS = examples(sample=40, full=1_000)
"""How many turns a hundred callers of one session make."""
BESIDE = examples(sample=30, full=1_000)
"""How many sessions have a turn under way at one moment."""
SESSIONS = examples(sample=120, full=10_000)
"""How many sessions a harness has had when it is looked at for what it keeps of them."""
CACHED = 32

Figure = Callable[[str, object], None]


@define
class Told:
    """The state of a session."""

    said: list[str] = Factory(list[str])


@define
class Wish:
    """What a caller wants: to say something, and what becomes of that.

    Attributes:
        text: What is said.
        end: `"well"`, `"fails"`, or `"gives up"` after so many `steps` of the event loop.
        steps: See `end`.
    """

    text: str
    end: str
    steps: int = 0


@step
async def note(wish: Wish, ctx: Context[Memory, Told]) -> Wish:
    """Take it down."""
    ctx.items.append(Message.user(wish.text))
    ctx.state.said.append(wish.text)
    await anyio.lowlevel.checkpoint()
    return wish


@step
async def reply(wish: Wish, ctx: Context[Memory, Told]) -> str:
    """Answer, or fail."""
    if wish.end == "fails":
        raise ValueError(wish.text)
    ctx.items.append(Message.assistant(f"re: {wish.text}"))
    return f"re: {wish.text}"


talk = sequence(note, reply)


def wished(dice: random.Random, number: int) -> Wish:
    """Most turns end well."""
    end = dice.choices(("well", "fails", "gives up"), (80, 8, 12))[0]
    return Wish(f"m{number}", end, dice.randrange(200))


async def turn(harness: Harness, session: str, wish: Wish) -> str:
    """Do a turn as it is wished; what its caller was told."""
    told = "gave up"
    async with anyio.create_task_group() as group:
        if wish.end == "gives up":
            group.start_soon(give_up, group.cancel_scope, wish.steps)
        with suppress(StepFailed):
            told = "failed"
            told = (await harness.session("ada", session).run(talk, wish, state=Told())).output_or("interrupted")
        group.cancel_scope.cancel()
    return "gave up" if told == "failed" and wish.end == "gives up" else told


async def interrupt(harness: Harness, session: str, steps: int) -> None:
    """Interrupt what goes on, after a while."""
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    await harness.session("ada", session).interrupt("Never mind.")


async def give_up(scope: anyio.CancelScope, steps: int) -> None:
    """Cancel after a while."""
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


@asynccontextmanager
async def kept_in(store: str) -> AsyncGenerator[CheckpointBackend | None]:
    """What keeps the sessions: nothing but the harness, memory, or a file."""
    if store == "sqlite":
        with quick_folder() as folder:
            async with SqliteBackend(folder / "runs.db") as backend:
                yield backend
    else:
        yield InMemoryBackend() if store == "memory" else None


STORES = pytest.mark.parametrize("store", ["none", "memory", "sqlite"])


@STORES
async def test_callers_of_one_session_are_let_in_by_their_arrival(store: str, record_property: Figure) -> None:
    """Some fail, some give up while they wait or in the middle: nothing is lost, or between two others."""
    dice = random.Random(f"{SEED} {store}")
    wishes = [wished(dice, number) for number in range(TURNS)]
    arrived: list[Wish] = []
    told: dict[str, str] = {}
    waiting = iter(wishes)
    before = tasks()
    async with kept_in(store) as backend, Harness(plugins=[], checkpoints=backend) as harness:

        async def caller() -> None:
            for wish in waiting:
                arrived.append(wish)
                told[wish.text] = await turn(harness, "trip", wish)

        async with anyio.create_task_group() as group:
            for _ in range(CALLERS):
                group.start_soon(caller)
        items = [item.text for item in await harness.session("ada", "trip").items() if isinstance(item, Message)]
        state = await harness.session("ada", "trip").state(Told)
        assert await left_over(before) == set()
        empty(harness)
    said = [text for text in items if not text.startswith("re: ")]
    order = [wish.text for wish in arrived]
    # By arrival, each once.
    assert said == [text for text in order if text in set(said)]
    assert state is not None
    assert state.said == said
    # An answer stands behind its question and nowhere else.
    questions = [items[at - 1] for at, text in enumerate(items) if text.startswith("re: ")]
    answers = [text.removeprefix("re: ") for text in items if text.startswith("re: ")]
    assert questions == answers
    for wish in wishes:
        whole = (wish.text in said, wish.text in answers)
        if wish.end == "well":
            assert (told[wish.text], whole) == (f"re: {wish.text}", (True, True))
        elif wish.end == "fails":
            assert (told[wish.text], whole) == ("failed", (True, False))
        elif told[wish.text] != "gave up":
            assert whole == (True, True)
    ends = Counter(told[wish.text] if told[wish.text] in ("failed", "gave up") else "answered" for wish in wishes)
    record_property(f"turns of {CALLERS} callers", dict(ends))
    assert len(ends) == 3


@STORES
async def test_no_session_waits_for_another(store: str, record_property: Figure) -> None:
    """Every one of them has a turn under way before one of them may end."""
    under_way = 0
    go = anyio.Event()

    @step
    async def hold(text: str, ctx: Context[Memory, Told]) -> str:
        nonlocal under_way
        under_way += 1
        if under_way == BESIDE:
            go.set()
        await go.wait()
        ctx.items.append(Message.user(text))
        return text

    async with kept_in(store) as backend, Harness(plugins=[], checkpoints=backend) as harness:

        async def caller(number: int) -> None:
            session = harness.session(f"user {number % 7}", f"s{number}")
            assert (await session.run(hold, f"m{number}", state=Told())).value == f"m{number}"

        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                for number in range(BESIDE):
                    group.start_soon(caller, number)
        for number in range(BESIDE):
            [item] = await harness.session(f"user {number % 7}", f"s{number}").items()
            assert isinstance(item, Message)
            assert item.text == f"m{number}"
        empty(harness)
    record_property("sessions at one moment", BESIDE)


@STORES
async def test_nothing_is_kept_of_sessions_that_nobody_uses(store: str, record_property: Figure) -> None:
    dice = random.Random(f"{SEED} {store}")
    # What is remembered for watchers is full soon, and grows no more.
    policy = SessionPolicy(cache_size=CACHED, history=4)
    async with kept_in(store) as backend, Harness(plugins=[], checkpoints=backend, sessions=policy) as harness:

        async def wave(numbers: Sequence[int]) -> None:
            async with anyio.create_task_group() as group:
                for number in numbers:
                    for _ in range(dice.choice((1, 1, 2))):
                        group.start_soon(turn, harness, f"s{number}", wished(dice, number))
                    if dice.random() < 0.1:
                        group.start_soon(interrupt, harness, f"s{number}", dice.randrange(200))

        counts: list[Counter[str]] = []
        for part in range(4):
            first = part * SESSIONS // 4
            for start in range(first, first + SESSIONS // 4, 20):
                await wave(range(start, start + 20))
            empty(harness)
            # Who gives up while a session is read takes it out of what is remembered.
            assert CACHED - 20 < len(harness._session_store._known) <= CACHED
            # Behind all that was handed over to the store and is waited for by nobody.
            await harness.sessions.list("ada")
            counts.append(alive())
        assert len(await harness.sessions.list("ada")) > SESSIONS * 0.8
    # What there is by chance was there before too; what is kept of each session is more each time.
    grown = counts[3] - (counts[1] | counts[2])
    # A few are there by chance; one for each session would be fifty and more.
    assert all(grown[name] < SESSIONS // 20 for name in PRIMITIVES), grown
    # A store in memory is made of objects. Of others some are there at any moment, however many sessions there were.
    if store == "sqlite":
        # The ends of the journals that were written last, of which a store keeps so many and no more.
        assert grown.pop(RunRow.__name__, 0) <= _HEADS
        assert grown.total() < max(200, SESSIONS // 20), grown.most_common(10)
        record_property("objects more after the second half of them", grown.total())
    record_property("sessions", SESSIONS)


PRIMITIVES = frozenset(
    {"Event", "Lock", "Condition", "Semaphore", "CancelScope", "Task", "Future", "deque", SessionLock.__name__}
)


def empty(harness: Harness) -> None:
    """Nobody is in a session or waits for one, and nothing of a run is left."""
    store = harness._session_store
    assert (store.in_use, store._live, store._unsaved) == (0, {}, {})
    assert (harness._living._runs, harness._detached_runs) == ({}, {})
    assert len(store._known) <= store.policy.cache_size
    assert len(store.watchers) <= store.policy.cache_size
    assert (store.queue._reserved, store.queue._answered, store.queue._listening) == (set(), {}, {})


def alive() -> Counter[str]:
    """How many objects of each type there are, without the weak references by which classes know their subclasses."""
    gc.collect()
    found = gc.get_objects()
    return Counter(type(each).__name__ for each in found if not (is_reference(each) and isinstance(each(), type)))


def is_reference(found: object) -> TypeIs[weakref.ref[Any]]:
    return isinstance(found, weakref.ref)
