"""A step's input and output are values: what is done to an object in one place is not seen in another."""

from __future__ import annotations

import threading
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from attrs import define, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from noetic_py import (
    Channel,
    Context,
    Handoff,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    Message,
    Retry,
    Secret,
    StateBag,
    Tool,
    branch,
    call_tool,
    each,
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
from noetic_py.checkpoints import FileBackend, SqliteBackend
from noetic_py.context.hooks import before_step
from noetic_py.core.values import alike, copier_of, copy_private, copy_value, is_dict, is_list, separate_state
from noetic_py.errors import CodecError, ConfigError
from noetic_py.memory import function
from noetic_py.until import Verdict

anyio = pytest.mark.anyio


# ---------------------------------------------------------------------------------------------------- what is copied


@define
class Basket:
    names: list[str]


@define(eq=False)
class Marked:
    names: list[str]


class Tally(StateBag):
    """A bag with a class of its own."""


@frozen
class Sealed:
    names: list[str]
    other: str = "x"


@dataclass
class Box:
    names: list[str]


@dataclass(frozen=True, slots=True)
class Tight:
    names: list[str]


class Form(BaseModel):
    names: list[str]


class Pair(NamedTuple):
    names: list[str]
    number: int


class Names(list[str]):
    title = "names"


class Shape(Enum):
    ROUND = "round"


class Client:
    """No data: it is handed on as it is, and in the state of a layer copied as a whole."""

    def __init__(self, *calls: object) -> None:
        self.calls = list(calls)


MUTABLE: list[Callable[[], Any]] = [
    lambda: ["a"],
    lambda: {"k": ["a"]},
    lambda: {"a"},
    lambda: bytearray(b"a"),
    lambda: deque(["a"], maxlen=3),
    lambda: OrderedDict[str, list[str]](k=["a"]),
    lambda: defaultdict(list, k=["a"]),
    lambda: Counter("aab"),
    lambda: (1, ["a"]),
    lambda: Basket(["a"]),
    lambda: Sealed(["a"]),
    lambda: Box(["a"]),
    lambda: Tight(["a"]),
    lambda: Form(names=["a"]),
    lambda: Pair(["a"], 1),
    lambda: Names(["a"]),
    lambda: StateBag({"k": ["a"]}),
    lambda: Tally({"k": ["a"]}),
    lambda: UserDict({"k": ["a"]}),
    lambda: UserList(["a"]),
    lambda: ChainMap({"k": ["a"]}),
    lambda: MappingProxyType({"k": ["a"]}),
    lambda: SimpleNamespace(names=["a"]),
]
COPIES: list[Callable[[Any], Any]] = [copy_value, copy_private, lambda value: copier_of(value)(value)]
copies = pytest.mark.parametrize("copied_by", COPIES, ids=["value", "private", "found"])


def change(given_value: object) -> None:
    """Change an object in place, wherever it can be."""
    value: Any = given_value
    match given_value:
        case Counter():
            value["b"] += 1
        case dict() | UserDict() | ChainMap() | MappingProxyType():
            next(iter(value.values())).append("b")
        case StateBag():
            value["k"].append("b")
        case set():
            value.add("b")
        case bytearray():
            value.extend(b"b")
        case list() | deque() | UserList():
            value.append("b")
        case tuple() if not isinstance(value, Pair):
            value[1].append("b")
        case _:
            value.names.append("b")


@copies
@pytest.mark.parametrize("make", MUTABLE, ids=lambda make: type(make()).__name__)
def test_a_copy_is_equal_of_the_same_class_and_independent(
    make: Callable[[], Any], copied_by: Callable[[Any], Any]
) -> None:
    value = make()
    copied = copied_by(value)
    assert copied == value
    assert type(copied) is type(value)
    change(copied)
    assert value == make() != copied


def only(value: Any) -> Any:
    return next(iter(value))


def second(value: Any) -> Any:
    return only(value)[1]


def whole(value: Any) -> Any:
    return value


class Rows(list[str]):
    def __init__(self, *rows: str) -> None:
        super().__init__(rows)
        self.names = ["a"]


class Keyed(dict[str, str]):
    names: list[str]


@copies
@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: {Marked(["a"])}, only),
        (lambda: frozenset({Marked(["a"])}), only),
        (lambda: {Marked(["a"]): 1}, only),
        (lambda: defaultdict(int, {(1, Marked(["a"])): 1}), second),
        (lambda: Rows("x"), whole),
    ],
    ids=["set", "frozenset", "key", "key in a tuple", "attribute"],
)
def test_members_keys_and_attributes_are_copied_where_they_can_change(
    make: Callable[[], Any], part: Callable[[Any], Any], copied_by: Callable[[Any], Any]
) -> None:
    value = make()
    part(copied_by(value)).names.append("b")
    assert part(value).names == ["a"]
    keyed = Keyed(x="y")
    keyed.names = ["a"]
    copied_by(keyed).names.append("b")
    assert (keyed, keyed.names) == ({"x": "y"}, ["a"])


def test_a_member_of_a_set_that_is_also_held_elsewhere_becomes_two() -> None:
    marked = Marked(["a"])
    state: dict[str, Any] = {"set": {marked}, "one": marked}
    separate_state(state)
    assert state["one"] is not next(iter(state["set"]))


@pytest.mark.parametrize(
    "value",
    [
        "a",
        1,
        1.5,
        None,
        True,
        b"a",
        Shape.ROUND,
        (1, ("a",)),
        frozenset({1}),
        Sealed,
        len,
        Message.user("hi"),
    ],
    ids=lambda value: type(value).__name__,
)
@copies
def test_what_cannot_change_is_handed_on_itself(value: object, copied_by: Callable[[Any], Any]) -> None:
    assert copied_by(value) is value
    frozen_value = (value, "a")
    assert copied_by(frozen_value) is frozen_value
    assert copied_by([value])[0] is value


def test_what_is_no_data_is_handed_on_itself_and_copied_in_the_state_of_a_layer() -> None:
    client = Client()
    assert copy_value([client])[0] is client
    copied = copy_private([client])[0]
    copied.calls.append("one")
    assert client.calls == []
    with pytest.raises(ConfigError, match="cannot be copied") as caught:
        copy_private([threading.Lock()])
    assert caught.value.code == "state-copy"


def test_a_frozen_object_of_immutable_fields_is_not_copied() -> None:
    sealed: Any = Sealed("abc")  # type: ignore[arg-type] # a text where its author wanted a list
    assert copy_value(sealed) is sealed


def test_classes_keep_what_they_have_besides() -> None:
    many = copy_value(defaultdict(list, {"k": ["a"]}))
    assert many["new"] == []
    limited = copy_value(deque([1, 2], maxlen=2))
    limited.append(3)
    assert list(limited) == [2, 3]
    form = copy_value(Form(names=["a"]))
    assert form.model_fields_set == {"names"}


@copies
def test_one_object_that_stands_twice_is_two_in_a_copy(copied_by: Callable[[Any], Any]) -> None:
    row = [1]
    copied = copied_by([row, row])
    copied[0].append(2)
    assert copied == [[1, 2], [1]]


def test_what_holds_itself_is_copied_as_a_graph_or_refused_by_name() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    for copied_by in (copy_value, copy_private):
        copied = copied_by(ring)
        assert copied[1] is copied is not ring
        assert alike(copied, ring)
    ring.append(threading.Lock())
    with pytest.raises(ConfigError, match="cannot be copied") as caught:
        copy_value(ring)
    assert caught.value.code == "value-copy"


trees = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


def inner_objects(value: Any) -> list[int]:
    parts: list[Any] = list(value.values()) if is_dict(value) else value if is_list(value) else []
    own = [id(value)] if is_dict(value) or is_list(value) else []
    return own + [found for part in parts for found in inner_objects(part)]


@given(trees)
@settings(max_examples=50)
def test_every_copy_is_alike_and_apart(value: Any) -> None:
    for copied_by in COPIES:
        copied = copied_by(value)
        assert alike(copied, value)
        assert not set(inner_objects(copied)) & set(inner_objects(value))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Client([1]), Client([1]), True),
        (Client([1]), Client([True]), False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        (object(), object(), True),
        ([1], [1, 2], False),
        ([float("nan")], [float("nan")], True),
        (deque([Marked(["a"])]), deque([Marked(["a"])]), True),
        (deque([1]), deque([True]), False),
    ],
)
def test_what_is_alike(one: object, other: object, same: bool) -> None:
    assert alike(one, other) is same


def test_paths_are_alike_whatever_they_have_been_asked() -> None:
    asked = Path("a/b")
    assert str(asked)
    assert asked.parts
    assert alike(asked, Path("a/b"))


@given(st.lists(trees, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=5))
@settings(max_examples=100)
def test_a_state_becomes_a_tree_of_equal_values(values: list[Any], places: list[int]) -> None:
    bag = StateBag({f"k{at}": [values[place % len(values)]] * 2 for at, place in enumerate(places)})
    before = repr(bag)
    separate_state(bag)
    assert repr(bag) == before
    found = [each for value in bag.view().values() for each in inner_objects(value)]
    assert len(set(found)) == len(found)


def test_states_of_every_form_become_trees() -> None:
    row = [1]
    plain: dict[str, Any] = {"a": row, "b": row}
    whole = [row, row]
    basket: Any = Basket([row, row])  # type: ignore[list-item] # rows in the place of names
    for state in (plain, whole, basket):
        separate_state(state)
    assert plain["a"] is row is not plain["b"]
    assert whole[0] is row is not whole[1]
    assert basket.names[0] is not basket.names[1]


# ---------------------------------------------------------------------------------------------------- at each border


@asynccontextmanager
async def harness_of(kind: str, folder: Path) -> AsyncGenerator[Harness[Any]]:
    match kind:
        case "none":
            backend: Any = None
        case "memory":
            backend = InMemoryBackend()
        case "sqlite":
            backend = SqliteBackend(folder / "runs.db")
        case _:
            backend = FileBackend(folder / "runs")
    async with Harness(checkpoints=backend) as harness:
        yield harness


BACKENDS = pytest.mark.parametrize("kind", ["none", "memory", "sqlite", "files"])


@step(version="1")
async def add(rows: list[int], ctx: Context) -> int:
    rows.append(0)
    return len(rows)


@step(version="1")
async def grow(rows: list[int]) -> list[int]:
    rows.append(0)
    return rows


def as_it_is(found: Sequence[int], ctx: object) -> Sequence[int]:
    return found


@anyio
@BACKENDS
async def test_sections_give_each_path_an_input_of_its_own(kind: str, tmp_path: Path) -> None:
    @step(version="1")
    async def gathers(rows: list[int], ctx: Context) -> list[int]:
        return [*await ctx.gather(add.bind(rows), add.bind(rows)), len(rows)]

    @step(version="1")
    async def calls(rows: list[int], ctx: Context) -> list[int]:
        return [await add(rows, ctx), await add(rows, ctx), len(rows)]

    flows: list[tuple[Any, Any]] = [
        (parallel([add, add, add]), [2, 2, 2]),
        (each(add), [2, 2]),
        (settle([add, add]), [2, 2]),
        (race([add, add]), 2),
        (gathers, [2, 2, 1]),
        (calls, [2, 2, 1]),
        (spawn(add), 2),
        (branch(lambda rows: rows.append(9), {None: add}), 2),
        (parallel([add, add], merge=as_it_is), [2, 2]),
    ]
    async with harness_of(kind, tmp_path) as harness:
        for number, (flow, expected) in enumerate(flows):
            row = [1]
            value: Any = [row, row] if number == 1 else row
            result = await harness.run(flow, value, run_id=f"r{number}")
            found = [each.value for each in result.value] if number == 2 else result.value
            assert found == expected, flow
            assert row == [1]
            if kind != "none":
                again = (await harness.resume(f"r{number}", flow)).value
                assert ([each.value for each in again] if number == 2 else again) == expected


@anyio
@BACKENDS
async def test_each_attempt_begins_with_the_input_that_was_given(kind: str, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    @step(version="1", retry=Retry(3, initial=0.0))
    async def flaky(rows: list[int]) -> list[int]:
        seen.append(list(rows))
        rows.sort()
        rows.pop()
        if len(seen) < 3:
            raise ConnectionError
        return rows

    async with harness_of(kind, tmp_path) as harness:
        result = await harness.run(flaky, [3, 1, 2], run_id="r")
        assert result.value == [1, 2]
        assert seen == [[3, 1, 2]] * 3
        if kind != "none":
            assert (await harness.resume("r", flaky)).value == [1, 2]
            assert len(seen) == 3


@anyio
@BACKENDS
async def test_what_is_returned_is_no_longer_the_body_s(kind: str, tmp_path: Path) -> None:
    left: list[list[int]] = []

    @step(version="1")
    async def give(number: int, ctx: Context[Any, StateBag]) -> list[int]:
        left.append([number])
        ctx.state["rows"] = left[-1]
        return left[-1]

    @step(version="1")
    async def look(rows: list[int], ctx: Context[Any, StateBag]) -> list[Any]:
        for each_left in left:
            each_left.append(9)
        mine = list(rows)
        rows.append(8)
        return [mine, rows]

    async with harness_of(kind, tmp_path) as harness:
        result = await harness.run(sequence(give, look), 1, run_id="r")
        assert result.value == [[1], [1, 8]]


@anyio
@pytest.mark.parametrize("make", MUTABLE[:1] + MUTABLE[9:14], ids=lambda make: type(make()).__name__)
async def test_a_value_of_every_class_is_the_same_after_a_resume(make: Callable[[], Any]) -> None:
    kind: Any = make().__class__

    async def body(value: Any, ctx: Context) -> Any:
        change(value)
        return value

    body.__annotations__ |= {"value": kind, "return": kind}
    changed = step(id="changed", version="1")(body)

    async def reads(value: Any, ctx: Context) -> Any:
        inner = await changed(value, ctx)
        change(inner)
        return [inner.names if hasattr(inner, "names") else inner, value.names if hasattr(value, "names") else value]

    reads.__annotations__ |= {"value": kind, "return": list[list[str]]}
    boss = step(id="boss", version="1")(reads)
    backend = InMemoryBackend()
    async with Harness(checkpoints=backend) as harness:
        result = await harness.run(boss, make(), run_id="r")
        assert result.value == [["a", "b", "b"], ["a"]]
        assert (await harness.resume("r", boss)).value == result.value


@anyio
async def test_an_output_that_a_body_has_changed_is_not_taken_for_its_child_s() -> None:
    @step(version="1")
    async def rows(number: int) -> list[int]:
        return [number]

    @step(version="1")
    async def changed(number: int, ctx: Context) -> list[int]:
        found = await rows(number, ctx)
        found.append(2)
        return found

    @step(version="1")
    async def unchanged(number: int, ctx: Context) -> list[int]:
        return await rows(number, ctx)

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        for name, flow, expected in (("a", changed, [1, 2]), ("b", unchanged, [1])):
            assert (await harness.run(flow, 1, run_id=name)).value == expected
            assert (await harness.resume(name, flow)).value == expected


@anyio
@BACKENDS
async def test_functions_of_a_section_see_values_of_their_own(kind: str, tmp_path: Path) -> None:
    kept: list[Any] = []

    def merge(given: Sequence[list[int]], ctx: object) -> list[list[int]]:
        found = list(given)
        found[0].append(7)
        kept.append(found)
        return found

    @step(version="1")
    async def same(rows: list[int]) -> list[int]:
        return rows

    @step(version="1")
    async def after(found: list[list[int]]) -> list[list[int]]:
        kept[0][0].append(8)
        return found

    def stop(shown: Any) -> Verdict:
        shown.output.append(3)
        return Verdict(shown.iteration == 1)

    def prepare(output: list[int], verdict: object, ctx: object) -> list[int]:
        output.append(5)
        return output

    async with harness_of(kind, tmp_path) as harness:
        flow = sequence(parallel([same, same], merge=merge), after)
        assert (await harness.run(flow, [1])).value == [[1, 7], [1]]
        rounds = loop(same, until=until.max_rounds(3), prepare_next=prepare)
        assert (await harness.run(rounds, [1])).value == [1, 5, 5]
        stops = loop(same, until=until.custom(stop))
        assert (await harness.run(stops, [1])).value == [1]


@anyio
@BACKENDS
async def test_messages_of_channels_belong_to_who_receives_them(kind: str, tmp_path: Path) -> None:
    rows: Channel[list[int]] = Channel("rows", list[int])

    attempts: list[int] = []

    @step(version="1", retry=Retry(2, initial=0.0))
    async def takes(_: object, ctx: Context) -> list[int]:
        found = await ctx.recv(rows, timeout=5)
        found.append(len(found))
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError
        return found

    @step(version="1")
    async def sends(_: object, ctx: Context) -> list[int]:
        mine = [7]
        await ctx.send(rows, mine, timeout=5)
        mine.append(8)
        return await takes(None, ctx)

    async with harness_of(kind, tmp_path) as harness:
        assert (await harness.run(sends, None)).value == [7, 1]


@anyio
async def test_detached_work_and_ctx_input_hold_values_of_their_own() -> None:
    @step(version="1")
    async def counts(rows: list[int], ctx: Context) -> list[int]:
        shown: Any = ctx.input
        shown.append(0)
        return [len(rows), len(ctx.input)]  # type: ignore[arg-type] # a list, as the run was given one

    @step(version="1")
    async def starts(rows: list[int], ctx: Context) -> list[int]:
        work = ctx.spawn_detached(counts, rows)
        rows.append(2)
        found: list[int] = (await work.wait()).value
        return found

    @step(version="1")
    async def waits_twice(rows: list[int], ctx: Context) -> list[int]:
        grown = ctx.spawn_detached(grow, rows)
        mine: Any = (await grown.wait()).value
        mine.append(7)
        found: list[int] = (await grown.wait()).value
        return found

    async with Harness() as harness:
        assert (await harness.run(starts, [1])).value == [1, 1]
        assert (await harness.run(waits_twice, [1])).value == [1, 0]


@anyio
@BACKENDS
async def test_handoffs_tools_and_hooks_hand_on_values(kind: str, tmp_path: Path) -> None:
    left: list[list[int]] = []

    @step(version="1")
    async def target(rows: list[int]) -> int:
        left[0].append(9)
        return len(rows)

    @step(version="1", handoffs=[target])
    async def hands(rows: list[int]) -> int | Handoff[int]:
        left.append(rows)
        return Handoff(target, rows)

    @tool
    async def grows(rows: list[int]) -> list[int]:
        """Grow."""
        rows.append(1)
        left.append(rows)
        return rows

    constant = {"rows": [1]}

    @before_step
    async def meddles(ctx: Any, call: Any) -> None:
        if is_list(call.input):
            call.input.append(4)

    async with harness_of(kind, tmp_path) as harness:
        assert (await harness.run(hands, [1])).value == 1
        for _ in range(2):
            assert (await harness.run(call_tool(grows, args=constant), None)).value == [1, 1]
        assert constant == {"rows": [1]}
        hooks: Any = [meddles]
        hooked = add.with_options(hooks=hooks)
        assert (await harness.run(hooked, [1])).value == 2


@anyio
@BACKENDS
async def test_defaults_of_tools_and_metadata_are_values_too(kind: str, tmp_path: Path) -> None:
    @tool
    async def grows(number: int, rows: list[int] = []) -> list[int]:  # noqa: B006 # the point of it
        """Grow."""
        rows.append(number)
        return rows

    async def given(number: int, rows: list[int] = []) -> list[int]:  # noqa: B006 # as above
        rows.append(number)
        return rows

    class Grows(MemoryLayer[int]):
        @function
        async def grow(self, number: int, rows: list[int] = []) -> list[int]:  # noqa: B006 # as above
            """Grow."""
            rows.append(number)
            return rows

    class Mem(Memory):
        rows: Grows = Grows()

    from_schema = Tool.from_schema(given, parameters={"type": "object"}, name="given", description="Grow.")

    @step(version="1")
    async def calls(_: object, ctx: Context[Mem]) -> list[list[int]]:
        return [await ctx.memory.rows.grow(number) for number in (1, 2)]

    @step(version="1")
    async def changes(_: object, ctx: Context) -> list[Any]:
        shown: Any = ctx.metadata
        shown["rows"].append(2)
        return [shown["rows"], ctx.metadata["rows"]]

    metadata: Any = {"rows": [1]}
    async with harness_of(kind, tmp_path) as harness:
        for number in (1, 2):
            for called in (grows, from_schema):
                flow = call_tool(called, args={"number": number})
                assert (await harness.run(flow, None)).value == [number]
            assert (await harness.run(changes, None, metadata=metadata)).value == [[1, 2], [1]]
            assert metadata == {"rows": [1]}
        with_memory = spawn(calls, memory=Mem())
        assert (await harness.run(with_memory, None)).value == [[1], [2]]


@anyio
@pytest.mark.parametrize("needs_approval", [False, True])
async def test_the_value_of_a_tool_has_the_type_of_its_function(needs_approval: bool) -> None:
    """`call_tool` in a run that is kept: the value is read back as the class that the function is annotated with."""

    @tool(needs_approval=needs_approval)
    async def packs(name: str) -> list[Sealed]:
        """Pack."""
        return [Sealed([name])]

    alone = call_tool(packs, args={"name": "a"})

    @step(version="1")
    async def inside(_: object, ctx: Context) -> list[str]:
        return [each.names[0] for each in await alone(None, ctx)]

    wanted: dict[Any, Any] = {alone: [Sealed(["a"])], inside: ["a"]}
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        for flow, value in wanted.items():
            result = await harness.run(flow, None)
            if needs_approval:
                answers = [each.approve() for each in result.pending]
                result = await harness.resume(result.run_id, flow, answers=answers)
            assert result.value == value


# ---------------------------------------------------------------------------------------------------- what is refused


def alone(value: Any) -> Any:
    return value


def in_a_list(value: Any) -> Any:
    return [value]


def in_a_dict(value: Any) -> Any:
    return {"k": (value,)}


def unreadable(make: Callable[[], Any]) -> Any:
    @step(id="gives", version="1")
    async def gives(_: object) -> object:
        return make()

    return gives


@anyio
@pytest.mark.parametrize(
    "make",
    [lambda: Shape.ROUND, lambda: Basket([]), lambda: Box([]), lambda: Form(names=[]), lambda: Pair([], 1)],
    ids=["enum", "attrs", "dataclass", "pydantic", "named tuple"],
)
@pytest.mark.parametrize("wrap", [alone, in_a_list, in_a_dict])
async def test_a_value_that_cannot_be_read_back_fails_the_step_that_gives_it(
    make: Callable[[], Any], wrap: Callable[[Any], Any]
) -> None:
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        with pytest.raises(CodecError, match="not be read back") as caught:
            await harness.run(unreadable(lambda: wrap(make())), None)
        assert caught.value.path == ("gives",)
        assert caught.value.where.startswith("output")
        assert caught.value.hint

    async with Harness() as harness:
        assert (await harness.run(unreadable(lambda: wrap(make())), None)).value == wrap(make())


@anyio
async def test_states_inputs_decisions_and_messages_are_read_back_too() -> None:
    anything: Channel[Any] = Channel("anything", object)

    @step(version="1")
    async def puts(_: object, ctx: Context[Any, StateBag]) -> None:
        ctx.state["shape"] = Shape.ROUND

    @step(version="1")
    async def takes(value: Any) -> None:
        return None

    @step(version="1")
    async def sends(_: object, ctx: Context) -> None:
        await ctx.send(anything, Shape.ROUND, timeout=1)

    @step(version="1")
    async def completes(_: object, ctx: Context) -> None:
        ctx.complete(Shape.ROUND)

    def another(output: None, verdict: object, ctx: object) -> Shape:
        return Shape.ROUND

    rounds = loop(takes, until=until.max_rounds(2), prepare_next=another)
    cases: list[tuple[Any, Any, str]] = [
        (puts, None, "state.shape"),
        (takes, [Shape.ROUND, object], "input"),
        (sends, None, ""),
        (completes, None, ""),
        (rounds, None, "next"),
    ]
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        for flow, value, where in cases:
            with pytest.raises(CodecError) as caught:
                await harness.run(flow, value)
            assert caught.value.where.startswith(where), flow


@anyio
async def test_a_class_that_only_a_called_step_names_is_read_back() -> None:
    @step(version="1")
    async def gives(name: str) -> Basket:
        return Basket([name])

    @step(version="1")
    async def boss(_: object, ctx: Context) -> list[str]:
        found = await ctx.gather(gives.bind("a"), gives.bind("b"))
        found[0].names.append("c")
        return [name for basket in found for name in basket.names]

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        assert (await harness.run(boss, None, run_id="r")).value == ["a", "c", "b"]
        assert (await harness.resume("r", boss)).value == ["a", "c", "b"]


@anyio
async def test_a_secret_keeps_its_value_in_the_process_that_has_it() -> None:
    @step(version="1")
    async def reads(_: object) -> list[Secret[str]]:
        return [Secret("hunter2!", name="key", stored="name")]

    @step(version="1")
    async def uses(keys: list[Secret[str]]) -> int:
        return len(keys[0].reveal())

    async with Harness(checkpoints=InMemoryBackend()) as harness:
        assert (await harness.run(sequence(reads, uses), None)).value == 8
