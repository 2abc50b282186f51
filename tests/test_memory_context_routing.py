"""What a run does with entries that are returned, and with parameters that ask for a layer."""

from __future__ import annotations

from typing import Any

import pytest

from noetic_py import Context, Harness, Inject, Memory, Retry, call_tool, sequence, step, tool, with_memory
from noetic_py.errors import ConfigError, InvalidEntry, ReadOnlyMemory, StateTypeError
from noetic_py.memory import CatalogueView, ContextItem, ContextPool, ContextQueue, MemoryLayer, WorkingMemory, function
from noetic_py.memory.listeners import Adding, Appended, Appending
from noetic_py.memory.routing import inject_layer, is_routed, receipt, route, unrouted
from noetic_py.testing import assert_resumable_everywhere
from noetic_py.tools import MISSING

pytestmark = pytest.mark.anyio

WHERE = ("flow", "note")


class Mem(Memory):
    window: ContextQueue[Any] = ContextQueue(limit=5)
    shelf: ContextPool[Any] = ContextPool()


class Refused(Exception):
    pass


def entry(id: str, content: object = 0) -> ContextItem[Any]:
    return ContextItem(content, f"about {id}", id)


async def test_entries_go_where_they_belong() -> None:
    memory = Mem()
    assert await route(memory, ContextItem("a"), where=WHERE)
    assert await route(memory, entry("x"), where=WHERE)
    assert await route(memory, [ContextItem("b"), entry("y"), ContextItem("c")], where=WHERE)
    assert await route(memory, (ContextItem("d"),), where=WHERE)
    assert memory.window.render() == "a\nb\nc\nd"
    assert [each.id for each in memory.shelf] == ["x", "y"]


@pytest.mark.parametrize("value", [None, "text", [], (), {"id": "a"}, [1, 2], {"a": ContextItem("b")}, object()])
async def test_other_values_are_left_alone(value: object) -> None:
    memory = Mem()
    assert not is_routed(value)
    assert not await route(memory, value, where=WHERE)
    assert (len(memory.window), len(memory.shelf)) == (0, 0)


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (ContextItem("a", id="x"), InvalidEntry, "the entry 'x' has no description"),
        ([ContextItem("a"), ContextItem("b", id="x")], InvalidEntry, "the entry 'x' has no description"),
        ([ContextItem("a"), "text"], StateTypeError, "entries and other values"),
    ],
)
async def test_nothing_is_kept_of_what_is_wrong(value: object, error: type[Exception], said: str) -> None:
    memory = Mem()
    with pytest.raises(error, match=said) as caught:
        await route(memory, value, where=WHERE)
    assert getattr(caught.value, "path", None) == WHERE
    assert "[at flow/note]" in str(caught.value)
    assert (len(memory.window), len(memory.shelf)) == (0, 0)


async def test_what_has_no_place() -> None:
    class Pools(Memory):
        one: ContextPool[Any] = ContextPool()
        two: ContextPool[Any] = ContextPool()

    for value, said in ((ContextItem("a"), "no ContextQueue"), (entry("x"), "no ContextPool")):
        with pytest.raises(ConfigError, match=said) as caught:
            await route(Memory(), value, where=WHERE)
        assert caught.value.code == "layer-missing"
    memory = Pools()
    with pytest.raises(ConfigError, match="more than one ContextPool: one, two") as caught:
        await route(memory, entry("x"), where=WHERE)
    assert caught.value.code == "layer-ambiguous"
    assert "ctx.memory.one.add" in (caught.value.hint or "")


async def test_listeners_hear_and_refuse_what_is_routed() -> None:
    memory = Mem()
    heard: list[object] = []

    @memory.window.on(Appended)
    async def log(event: Appended[Any]) -> None:
        heard.append(event.entries)

    @memory.shelf.on(Adding)
    async def refuse(event: Adding[Any]) -> None:
        raise Refused

    with pytest.raises(Refused):
        await route(memory, [ContextItem("a"), entry("x"), ContextItem("b")], where=WHERE)
    # Each on its own: what came before has gone its way.
    assert heard == [(ContextItem("a"),)]
    assert memory.window.render() == "a"


def test_what_a_generator_s_caller_and_the_model_see() -> None:
    assert unrouted([1, ContextItem("a"), None, entry("x")]) == [1, None]
    assert unrouted([[ContextItem("a"), entry("x")], 2]) == [2]
    assert unrouted([ContextItem("a"), [entry("x")]]) == [ContextItem("a"), entry("x")]
    assert unrouted([]) == []
    assert receipt(ContextItem("a")) == "Noted."
    assert receipt([entry("x"), ContextItem("a"), entry("y")]) == "Stored as [x]: about x\nStored as [y]: about y"


async def test_a_generator_sees_what_it_has_yielded() -> None:
    memory = Mem()
    seen: list[int] = []

    @tool
    async def stream() -> Any:
        for name in "ab":
            yield ContextItem(name)
            seen.append(len(memory.window))
        yield "plain"

    async def emit(value: object) -> None:
        await route(memory, value, where=WHERE)

    values: Any = await stream.call({}, inject=lambda name, kind: MISSING, emit=emit)
    assert seen == [1, 2]
    assert unrouted(values) == ["plain"]


def injected_pool(memory: Mem) -> ContextPool[Any]:
    pool: Any = inject_layer(memory, "anything", ContextPool)
    assert type(pool) is ContextPool
    made: ContextPool[Any] = pool
    return made


async def test_an_injected_pool_can_only_be_read() -> None:
    memory = Mem()
    await memory.shelf.add(entry("x", 3))
    calls: list[object] = []

    @memory.shelf.on(Adding)
    async def log(event: Adding[Any]) -> None:
        calls.append(event)

    pool = injected_pool(memory)
    view: CatalogueView[Any] = pool
    assert (view.get("x").content, view["x"].content, "x" in view, len(view)) == (3, 3, True, 1)
    assert view.catalogue() == "- [x] about x"
    assert view.entries == tuple(view)
    for write in (pool.add(entry("y")), pool.remove("x"), pool.clear()):
        with pytest.raises(ReadOnlyMemory, match="can only be read") as caught:
            await write
        assert "return a ContextItem" in (caught.value.hint or "")
    with pytest.raises(ReadOnlyMemory):
        pool.state = {}
    assert calls == []
    # It shows what becomes of the pool, and a branch of it is a pool of its own.
    await memory.shelf.add(entry("z"))
    assert [each.id for each in pool] == ["x", "z"]
    branch = pool.branch()
    await branch.add(entry("y"))
    assert (len(branch), len(pool)) == (3, 2)
    assert type(inject_layer(memory, "anything", CatalogueView)) is ContextPool


async def test_an_injected_queue_can_be_written() -> None:
    memory = Mem()
    queue = inject_layer(memory, "anything", ContextQueue)
    assert queue is memory.window
    await memory.window.append(ContextItem("a"))
    assert inject_layer(memory, "shelf", MemoryLayer) is not memory.shelf, "a pool is read only, whatever asks for it"


async def test_a_class_below_is_accepted() -> None:
    class Notes(ContextQueue[str]):
        pass

    class Mine(Memory):
        notes: Notes = Notes()
        log: ContextQueue[int] = ContextQueue()

    memory = Mine()
    assert inject_layer(memory, "x", Notes) is memory.notes
    assert inject_layer(memory, "notes", ContextQueue) is memory.notes
    assert inject_layer(memory, "x", ContextQueue, ContextQueue[int]) is memory.log
    with pytest.raises(ConfigError, match="'notes' or 'log'"):
        inject_layer(memory, "x", ContextQueue)


async def test_listeners_get_layers_by_keyword() -> None:
    class Fixed(Memory):
        window: ContextQueue[str] = ContextQueue(limit=5)
        shelf: ContextPool[int] = ContextPool()

    queue = ContextQueue[str](limit=3)
    seen: list[object] = []

    @queue.on(Appended)
    async def look(event: Appended[str], *, shelf: ContextPool[int] | None = None) -> None:
        seen.append(shelf)

    await queue.append(ContextItem("a"))
    assert seen == [None], "there is no run to take it from"

    class InRun(Elsewhere):
        memory = Fixed()

    bound: ContextQueue[str] = queue.bound(Bound(queue, InRun()))
    await bound.append(ContextItem("b"))
    assert isinstance(seen[1], ContextPool)
    assert queue.render() == "a\nb"

    @queue.on(Appending)
    async def needs(event: Appending[str], *, shelf: ContextPool[int]) -> None:
        seen.append(shelf)

    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'shelf'"):
        await queue.append(ContextItem("c"))
    await bound.append(ContextItem("c"))
    assert queue.render() == "a\nb\nc"


def test_keywords_of_listeners_are_layers() -> None:
    queue = ContextQueue[str](limit=3)

    async def wants_text(event: Appended[str], *, colour: str) -> None: ...
    async def has_text(event: Appended[str], *, colour: str = "red") -> None: ...
    async def unknown(event: Appended[str], *, shelf: int) -> None: ...

    unknown.__annotations__["shelf"] = "Nowhere[int]"
    for fn, said in ((wants_text, "takes 'colour' by keyword"), (unknown, "names nothing")):
        loose: Any = fn
        with pytest.raises(ConfigError, match=said):
            queue.on(Appended)(loose)
    queue.on(Appended)(has_text)
    assert len(queue.listeners) == 1


class Elsewhere:
    memory: Memory


class Bound:
    """A binding in a run, as far as a listener looks at one."""

    def __init__(self, layer: MemoryLayer[Any], ctx: Any) -> None:
        self.below = layer.binding
        self.ctx = ctx

    def read(self) -> Any:
        return self.below.read()

    def peek(self) -> Any:
        return self.below.peek()

    def copy(self) -> Any:
        return self.below.copy()

    def set(self, value: Any) -> None:
        self.below.set(value)

    def note(self, call: Any) -> None:
        self.below.note(call)

    def write(self, value: Any, base: Any) -> None:
        self.below.write(value, base)

    @property
    def storage(self) -> Any:
        return self.below.storage

    @property
    def runtime(self) -> Any:
        return self.below.runtime

    async def ask(self, model: Any, instructions: str, text: str, output: Any) -> Any:
        return await self.below.ask(model, instructions, text, output)

    def warn(self, message: str) -> None:
        raise NotImplementedError

    async def call(self, step: Any, input: object) -> Any:
        return await self.below.call(step, input)


# -- what steps return


@step
async def hand_on(value: Any) -> Any:
    return value


@step
async def add(value: Any) -> Any:
    return [*value, ContextItem("more"), entry("y")]


@step
async def seen(_: object, ctx: Context[Mem]) -> list[object]:
    return [ctx.memory.window.render(), ctx.memory.shelf.catalogue()]


async def test_what_a_step_was_given_is_not_kept_again() -> None:
    flow = hand_on.bind([ContextItem("a"), entry("x")]) >> add >> hand_on >> seen
    async with Harness(memory=Mem()) as harness:
        result = await harness.run(flow, None)
    assert result.value == ["more", "- [y] about y"]


async def test_a_run_without_queue_and_pool_hands_entries_on() -> None:
    class Other(Memory):
        notes: WorkingMemory = WorkingMemory()

    class OnlyQueue(Memory):
        window: ContextQueue[Any] = ContextQueue()

    @step
    async def make(_: object) -> list[Any]:
        return [entry("x"), "text"]

    @step
    async def pooled(_: object) -> ContextItem[Any]:
        return entry("x")

    for harness in (Harness(), Harness(memory=Other())):
        assert (await harness.run(make, None)).value == [entry("x"), "text"]
    with pytest.raises(StateTypeError, match="entries and other values"):
        await Harness(memory=OnlyQueue()).run(make, None)
    with pytest.raises(ConfigError, match="no ContextPool"):
        await Harness(memory=OnlyQueue()).run(pooled, None)


async def test_what_a_step_keeps_goes_with_its_attempt() -> None:
    attempts: list[int] = []

    @step
    async def note(_: object) -> ContextItem[Any]:
        attempts.append(1)
        return ContextItem("a")

    @step(retry=Retry(2, initial=0))
    async def fail_once(value: object, ctx: Context[Mem]) -> str:
        await note(None, ctx)
        if len(attempts) == 1:
            raise ValueError("again")
        return ctx.memory.window.render()

    assert (await Harness(memory=Mem()).run(fail_once, None)).value == "a"


async def test_the_layers_of_with_memory_get_what_is_returned_in_it() -> None:
    inner = sequence(note_text, seen)
    async with Harness() as harness:
        assert (await harness.run(with_memory(inner, memory=Mem()), None)).value == ["a", ""]
        assert (await harness.run(note_text, None)).value == ContextItem("a")


@step
async def note_text(_: object) -> ContextItem[Any]:
    return ContextItem("a")


async def test_a_run_that_dies_keeps_an_entry_once() -> None:
    kills = await assert_resumable_everywhere(
        lambda: sequence(note_text, hand_on, note_text, seen),
        None,
        make=lambda backend: Harness(memory=Mem(), checkpoints=backend, plugins=()),
    )
    assert kills >= 12


class Ledger:
    """What can be read of `Book`."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = tuple(lines)


class Book(MemoryLayer[list[str]]):
    """A layer of another package that keeps texts which are returned, and shows itself as a `Ledger`."""

    views = (Ledger,)

    def entry_writer(self, entry: ContextItem[Any]) -> Any:
        return self.enter if entry.id is None and isinstance(entry.content, str) else None

    def injected(self) -> object:
        return Ledger(self.state)

    @function(model=False)
    async def enter(self, entry: ContextItem[Any]) -> None:
        self.state = [*self.state, entry.content]


class Kept(Memory):
    book: Book = Book()


async def test_another_layer_keeps_what_is_returned_and_is_injected_as_it_says() -> None:
    seen: list[object] = []

    @step
    async def write(x: str, ctx: Context[Kept]) -> Any:
        return [ContextItem(x), ContextItem(x + "!")]

    @tool
    async def read(book: Inject[Book], ledger: Inject[Ledger]) -> str:
        """Read."""
        assert isinstance(book, Ledger)
        seen.append((book.lines, ledger.lines))
        return "read"

    async with Harness(plugins=(), memory=Kept()) as harness:
        result = await harness.run(write >> call_tool(read, args={}), "a")
    assert result.memory["book"] == ["a", "a!"]
    assert seen == [(("a", "a!"), ("a", "a!"))]


async def test_two_layers_that_keep_the_same_are_named() -> None:
    class Both(Memory):
        book: Book = Book()
        window: ContextQueue[Any] = ContextQueue()

    memory = Both()
    with pytest.raises(ConfigError, match="more than one layer: book, window") as caught:
        await route(memory, ContextItem("a"), where=WHERE)
    assert (caught.value.code, caught.value.hint) == (
        "layer-ambiguous",
        "write it yourself: await ctx.memory.book.enter(...)",
    )
    # What only one of them takes is clear.
    assert await route(memory, ContextItem(1), where=WHERE)
    assert memory.window.render() == "1"
    with pytest.raises(ConfigError, match="no ContextPool for it"):
        await route(memory, entry("x"), where=WHERE)
