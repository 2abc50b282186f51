"""Copies of states: as from `deepcopy`, and without a walk where nothing can change. And states that are only shown."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping
from enum import Enum
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import BaseModel

from noetic_py import Context, Harness, InMemoryBackend, Memory, Retry, errors, sequence, step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core.state import (
    SavedState,
    StateBag,
    class_of,
    copy_state,
    merge_state,
    read_only_state,
    restore_state,
    state_fields,
)


@define
class Slotted:
    text: str = ""
    count: int = 0
    parts: list[int] = field(factory=list[int])


@define
class Flat:
    text: str = ""
    count: int = 0


@define(slots=False)
class Open:
    text: str = ""


@dataclasses.dataclass
class Data:
    text: str = ""
    part: float | None = None


@dataclasses.dataclass(slots=True)
class SlottedData:
    text: str = ""


@define
class OwnWay:
    text: str = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnWay:
        return OwnWay(self.text + "!")


class OwnState:
    def __init__(self, text: str) -> None:
        self.text = text

    def __getstate__(self) -> dict[str, str]:
        return {"kept": self.text}

    def __setstate__(self, kept: dict[str, str]) -> None:
        self.text = kept["kept"] + "!"


class OwnArguments:
    text: str

    def __new__(cls, text: str) -> OwnArguments:
        made = super().__new__(cls)
        made.text = text
        return made

    def __getnewargs__(self) -> tuple[str]:
        return ("again",)


class OwnReduction:
    text = "class"

    def __reduce__(self) -> tuple[Any, ...]:
        return (OwnReduction, (), {"text": "reduced"})


class Registered:
    text = "class"


def reduced(_: Registered) -> Any:
    return Registered, (), {"text": "registered"}


copyreg.pickle(Registered, reduced)


class Named(NamedTuple):
    text: str
    parts: list[int]


class Words(list[str]):
    """A list with fields of its own."""


class Table(dict[str, Any]):
    """A dict with fields of its own."""


class Model(BaseModel):
    text: str = ""


class Colour(Enum):
    RED = 1


class Cut:
    __slots__ = ("text", "unset")

    def __init__(self) -> None:
        self.text = "cut"


def words() -> Words:
    made = Words(["a"])
    made.__dict__["extra"] = 1
    return made


STATES: list[Any] = [
    Flat("a", 1), Slotted("a", 1, [1]), Open("a"), Data("a"), Data("a", 0.5), SlottedData("a"), OwnWay("a"),
    OwnState("a"), OwnArguments("a"), OwnReduction(), Registered(), Named("a", [1]), words(), Table(a=1),
    Model(text="a"), Colour.RED, Cut(), SimpleNamespace(text="a"),
    {}, {"a": 1}, {"a": [1]}, {("a", 1): "b"}, {1: {2: 3}}, [], [1], {1},
    frozenset({1}), (1, [2]), StateBag(), StateBag({"a": 1}), StateBag({"a": {"b": [1]}}), bytearray(b"a"), object(),
]  # fmt: skip


def contents(state: Any) -> Any:
    """All that there is to compare."""
    held = (dict, list, set, frozenset, tuple, bytearray)
    plain: Any = state if issubclass(state.__class__, held) else None
    return type(state), plain, state_fields(state), getattr(state, "text", None)


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_copy_is_what_deepcopy_makes(state: Any) -> None:
    before = contents(state)
    copied = copy_state(state)
    assert contents(copied) == contents(copy.deepcopy(state))
    assert (copied is state) is (copy.deepcopy(state) is state)
    assert contents(state) == before


@pytest.mark.parametrize("state", [{"a": [1]}, StateBag({"a": [1]}), Slotted(parts=[1])])
def test_a_copy_shares_nothing_that_can_change(state: Any) -> None:
    copied = copy_state(state)
    mine: Any = next(part for part in state_fields(state).values() if part.__class__ is list)
    other: Any = next(part for part in state_fields(copied).values() if part.__class__ is list)
    assert mine == other
    assert mine is not other


def test_a_copy_of_a_flat_state_is_another_object() -> None:
    state = Flat("a", 1)
    copied = copy_state(state)
    copied.text = "b"
    assert state == Flat("a", 1)


# -------------------------------------------------------------------------------------------------------------- shown


@define
class Counting:
    count: int = 0
    parts: list[int] = field(factory=list[int])

    def up(self) -> None:
        self.count += 1

    def twice(self) -> int:
        return 2 * self.count


class Checked(BaseModel):
    text: str = "a"


@pytest.mark.parametrize("state", [Counting(2, [1]), Open("a"), Data("a"), Checked(), SimpleNamespace(text="a")])
def test_an_object_is_shown_live_and_as_what_it_is(state: Any) -> None:
    shown = read_only_state(state)
    assert shown is not state
    assert isinstance(shown, type(state))
    assert shown == state
    assert (repr(shown), str(shown)) == (repr(state), str(state))
    name = next(iter(state_fields(state)))
    before = getattr(state, name)
    changes: list[Any] = [
        lambda: setattr(shown, name, 5),
        lambda: delattr(shown, name),
        lambda: setattr(shown, "other", 5),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="is read-only here"):
            change()
    assert getattr(state, name) == before
    setattr(state, name, "b")
    assert getattr(shown, name) == "b"
    assert type(copy.copy(shown)) is type(copy.deepcopy(shown)) is type(state)


def test_a_method_of_what_is_shown_cannot_change_it() -> None:
    state = Counting(2, [1])
    shown = read_only_state(state)
    assert shown.twice() == 4
    with pytest.raises(TypeError, match="is read-only here"):
        shown.up()
    assert state.count == 2
    # What a field holds is shown as it is.
    shown.parts.append(3)
    assert state.parts == [1, 3]
    assert Checked.model_validate_json(read_only_state(Checked(text="b")).model_dump_json()) == Checked(text="b")


def test_what_is_shown_has_the_operators_of_its_class() -> None:
    class Ring:
        def __len__(self) -> int:
            return 0

        def __getitem__(self, index: int) -> int:
            return index

        def __lt__(self, other: int) -> bool:
            return other > 1

        def __hash__(self) -> int:
            return 7

    shown = read_only_state(Ring())
    assert (len(shown), bool(shown), shown[3], shown < 2, hash(shown)) == (0, False, 3, True, 7)
    with pytest.raises(TypeError):
        shown[3] = 4
    with pytest.raises(TypeError):
        del shown[3]
    # One without operators has none.
    assert bool(read_only_state(SimpleNamespace()))
    with pytest.raises(TypeError):
        len(read_only_state(SimpleNamespace()))


def test_a_bag_is_shown_live() -> None:
    bag = StateBag({"a": 1})
    shown = read_only_state(bag)
    bag["b"] = 2
    assert shown == bag
    assert (shown["b"], shown.get_as("b", int), list(shown), len(shown), "b" in shown) == (2, 2, ["a", "b"], 2, True)
    changes: list[Any] = [
        lambda: shown.put("a", 5),
        lambda: shown.put("a", None),
        lambda: shown.pop("a"),
        lambda: shown.pop("c", None),
        lambda: shown.popitem(),
        lambda: shown.clear(),
        lambda: shown.setdefault("c", 5),
        lambda: shown.update(a=5),
        lambda: shown.__ior__({"a": 5}),
        lambda: shown.__setitem__("a", 5),
        lambda: shown.__delitem__("a"),
        lambda: shown.view().update(a=5),
    ]
    for change in changes:
        with pytest.raises((TypeError, AttributeError)):
            change()
    assert bag == StateBag({"a": 1, "b": 2})
    assert (shown | {"a": 9})["a"] == ({"a": 9} | shown)["b"] + 7 == 9
    for mine in (copy.copy(shown), copy.deepcopy(shown), shown.copy(), shown | {}, {} | shown):
        mine["a"] = 9
        assert (type(mine), mine["a"], bag["a"]) == (StateBag, 9, 1)


def test_values_are_shown_as_what_cannot_change() -> None:
    given = {"a": 1}
    shown = read_only_state(given)
    given["b"] = 2
    assert shown["b"] == 2
    with pytest.raises(TypeError):
        shown["a"] = 5
    assert read_only_state([1, 2]) == (1, 2)
    assert read_only_state({1}) == frozenset({1})
    for value in (None, 5, "a", (1,), frozenset({1}), Colour.RED):
        assert read_only_state(value) is value


# ------------------------------------------------------------------------------------------ undone, and still the same


@define
class Part:
    words: list[str]


@define
class Nested:
    """A state with all kinds of objects that a body may hold on to."""

    rows: list[Any]
    by_key: dict[str, Any]
    some: set[int]
    part: Part
    pair: tuple[list[int], int]


def nested() -> Nested:
    return Nested([1, [2]], {"a": [1]}, {1}, Part(["x"]), ([1], 2))


def held(state: Nested) -> list[Any]:
    """What a body takes from the state, one of each kind."""
    return [state.rows, state.rows[1], state.by_key, state.by_key["a"], state.some, state.part, state.part.words]


def in_place(state: Nested) -> None:
    state.rows[1].append("bad")
    state.by_key["a"].clear()
    state.by_key["b"] = 1
    state.some.add(7)
    state.part.words.append("bad")
    state.pair[0].append(7)


def other_objects(state: Nested) -> None:
    state.rows = ["bad"]
    state.by_key = {"bad": []}
    state.some = {8}
    state.part = Part(["bad"])
    state.pair = ([], 0)


def moved(state: Nested) -> None:
    state.rows, state.part.words = [state.part.words], state.rows
    state.by_key["a"] = state.by_key


@pytest.mark.anyio
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("change", [in_place, other_objects, moved])
async def test_what_a_body_holds_of_the_state_is_part_of_it_after_a_call_that_failed(
    change: Callable[[Nested], None], attempts: int, backend: CheckpointBackend
) -> None:
    broken = [True]

    @step(retry=Retry(attempts, initial=0))
    async def fails(n: int, ctx: Context[Memory, Nested]) -> int:
        change(ctx.state)
        raise ValueError("broken")

    @step
    async def body(n: int, ctx: Context[Memory, Nested]) -> bool:
        before = held(ctx.state)
        inside = ctx.state.pair[0]
        before[0].append("before")
        try:
            await fails(n, ctx)
        except errors.StepFailed:
            assert all(now is then for now, then in zip(held(ctx.state), before, strict=True))
            assert ctx.state.pair[0] is inside
            before[3].append("after")
            before[6].append("after")
            before[4].add(2)
            inside.append(9)
        if broken:
            raise OSError("broken")
        return True

    expected = Nested([1, [2], "before"], {"a": [1, "after"]}, {1, 2}, Part(["x", "after"]), ([1, 9], 2))
    async with Harness(plugins=(), checkpoints=backend) as harness:
        first = await harness.run(body, 1, state=nested(), run_id="r", on_error="result")
        assert first.status == "failed"
        assert first.state == nested()
        broken.clear()
        resumed = await harness.resume("r", body, state_type=Nested)
        whole = await harness.run(body, 1, state=nested())
    async with Harness(plugins=()) as harness:
        in_memory = await harness.run(body, 1, state=nested())
    assert [found.state for found in (resumed, whole, in_memory)] == [expected] * 3


def deep(levels: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(levels):
        found = {"inside": found}
    return found


@pytest.mark.anyio
@pytest.mark.parametrize(("levels", "stored"), [(400, True), (5_000, True), (5_000, False)])
async def test_a_state_that_is_nested_too_deep_fails_the_step_that_made_it_so(levels: int, stored: bool) -> None:
    @step
    async def deepens(n: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.state["deep"] = deep(n)
        return n

    async with Harness(plugins=(), checkpoints=InMemoryBackend() if stored else None) as harness:
        with pytest.raises(errors.LimitExceeded, match="nesting is limited to 64") as caught:
            await harness.run(sequence(deepens, id="flow"), levels)
    assert caught.value.path == ("flow", "deepens")


@pytest.mark.anyio
@pytest.mark.parametrize("levels", [400, 5_000])
async def test_what_a_failed_step_did_to_a_state_that_is_nested_deep_is_undone(levels: int) -> None:
    """Or it is refused before the step can do anything."""

    @step
    async def fails(n: int, ctx: Context[Memory, StateBag]) -> int:
        ctx.state["seen"] = n
        raise OSError("broken")

    async with Harness(plugins=()) as harness:
        result = await harness.run(fails, 1, state=StateBag({"deep": deep(levels)}), on_error="result")
    assert isinstance(result.error, errors.LimitExceeded if levels > 1_000 else errors.StepFailed)
    assert list(result.state) == ["deep"]


TREES = st.recursive(
    st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)


@given(TREES.map(lambda tree: {"tree": tree}), st.randoms(use_true_random=False))
def test_a_saved_state_is_what_it_was_object_by_object(state: dict[str, Any], rng: Random) -> None:
    def parts(value: Any) -> Iterator[Any]:
        if isinstance(value, list | dict):
            yield value
            for each in values_of(value):
                yield from parts(each)

    saved, was, before = SavedState(state), copy.deepcopy(state), list(parts(state))
    for _ in range(2):
        for part in list(parts(state)):
            if rng.random() < 0.5:
                part.clear()
            elif class_of(part) is list:
                part += [[state["tree"]] if "tree" in state else 1]
            else:
                part["c"] = [0]
        restore_state(state, saved)
        assert state == was
        after = list(parts(state))
        assert len(after) == len(before)
        assert all(now is then for now, then in zip(after, before, strict=True))


@define
class Held:
    """A state of plain containers."""

    rows: Any
    also: Any
    table: Any
    tags: Any


@define(slots=False)
class HeldOpen:
    """The same with a dict of its attributes."""

    rows: Any
    also: Any
    table: Any
    tags: Any


@pytest.mark.parametrize("kind", [StateBag, dict, Held, HeldOpen])
def test_a_state_of_plain_containers_is_saved_with_the_objects_that_it_holds(kind: Any) -> None:
    rows = ["a", 1]
    # One list in two fields stays one.
    fields: dict[str, Any] = {"rows": rows, "also": rows, "table": {"k": "v"}, "tags": {"t"}}
    # By position: in the order of the fields.
    state: Any = kind(*fields.values()) if kind in (Held, HeldOpen) else kind(fields)
    saved, copied = SavedState(state), copy_state(state)
    own = state_fields(copied)
    assert own == fields
    assert own["rows"] is own["also"]
    assert all(own[name] is not fields[name] for name in fields)
    rows.append(2)
    fields["table"].clear()
    fields["tags"].add("u")
    merge_state(state, {"rows": None, "table": {}})
    restore_state(state, saved)
    assert state_fields(state) == own == {"rows": ["a", 1], "also": ["a", 1], "table": {"k": "v"}, "tags": {"t"}}
    assert all(state_fields(state)[name] is held for name, held in fields.items())


def values_of(value: Any) -> list[Any]:
    return list(value.values() if class_of(value) is dict else value)


# -------------------------------------------------------------------------------------------- a bag, as a dict would be


KEYS = st.sampled_from(["a", "b", "c", "keys", "_data", "put", ""])
VALUES = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)
MAPPINGS = st.dictionaries(KEYS, VALUES, max_size=3)


def outcome(of: Callable[[], Any]) -> Any:
    """What a call gives, or the class of what it raises and the key that it names."""
    try:
        return of()
    except (KeyError, TypeError) as error:
        return type(error), error.args if isinstance(error, KeyError) and error.args != () else None


class BagAsDict(RuleBasedStateMachine):
    """Every method of a mutable mapping does to a bag what it does to a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Any] = {}
        self.bag = StateBag()

    @initialize(values=MAPPINGS)
    def begin(self, values: dict[str, Any]) -> None:
        self.model, self.bag = dict(values), StateBag(values)

    def both(self, call: Callable[[Any], Any]) -> None:
        assert outcome(lambda: call(self.bag)) == outcome(lambda: call(self.model))

    @rule(key=KEYS, value=VALUES)
    def set_item(self, key: str, value: object) -> None:
        self.both(lambda it: it.__setitem__(key, value))

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.both(lambda it: it.__delitem__(key))

    @rule(key=KEYS)
    def get_item(self, key: str) -> None:
        self.both(lambda it: it[key])

    @rule(key=KEYS, default=VALUES)
    def get(self, key: str, default: object) -> None:
        self.both(lambda it: [it.get(key), it.get(key, default), key in it])

    @rule(key=KEYS, default=VALUES)
    def pop_or(self, key: str, default: object) -> None:
        self.both(lambda it: it.pop(key, default))

    @rule(key=KEYS)
    def pop(self, key: str) -> None:
        self.both(lambda it: it.pop(key))

    @rule(key=KEYS, default=VALUES)
    def set_default(self, key: str, default: object) -> None:
        self.both(lambda it: [it.setdefault(key, default), it.setdefault(key)])

    @rule(values=MAPPINGS, more=st.dictionaries(st.sampled_from(["a", "z"]), VALUES, max_size=2))
    def update(self, values: dict[str, Any], more: dict[str, Any]) -> None:
        self.both(lambda it: it.update(values, **more))
        self.both(lambda it: it.update(list(values.items())))
        self.both(lambda it: it.update(StateBag(values)))

    @rule(wrong=st.sampled_from([5, ["abc"], [("a", 1, 2)]]))
    def update_with_what_is_no_mapping(self, wrong: Any) -> None:
        assert outcome_class(lambda: self.bag.update(wrong)) == outcome_class(lambda: dict(self.model).update(wrong))

    @rule(values=MAPPINGS)
    def merge(self, values: dict[str, Any]) -> None:
        for other in (values, StateBag(values)):
            assert list((self.bag | other).items()) == list((self.model | values).items())
            self.bag |= other
            self.model |= values
        assert list((values | self.bag).items()) == list((values | self.model).items())
        assert isinstance(values | self.bag, StateBag)
        pairs = list(values.items())
        self.bag |= pairs
        self.model |= pairs

    @rule(wrong=st.sampled_from([5, None, [("a", 1)]]))
    def merge_with_what_is_no_mapping(self, wrong: Any) -> None:
        for merge in (lambda: self.bag | wrong, lambda: wrong | self.bag):
            assert outcome_class(merge) is TypeError

    @rule()
    def pop_item(self) -> None:
        self.both(lambda it: it.popitem())

    @rule()
    def clear(self) -> None:
        self.both(lambda it: it.clear())

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: object) -> None:
        assert self.bag.put(key, value) is self.bag
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = value

    @rule()
    def copies_are_apart(self) -> None:
        for made in (copy.copy(self.bag), copy.deepcopy(self.bag), copy_state(self.bag), self.bag.copy()):
            assert made == self.bag
            made["only here"] = 1
            assert "only here" not in self.bag

    @rule(values=MAPPINGS)
    def restored(self, values: dict[str, Any]) -> None:
        saved = SavedState(self.bag)
        self.bag.update(values)
        self.bag.pop("a", None)
        restore_state(self.bag, saved)

    @invariant()
    def they_are_alike(self) -> None:
        assert list(self.bag) == list(self.model)
        assert list(self.bag.keys()) == list(self.model.keys())
        assert list(self.bag.values()) == list(self.model.values())
        assert list(self.bag.items()) == list(self.model.items())
        assert list(reversed(self.bag)) == list(reversed(self.model))
        assert (len(self.bag), bool(self.bag)) == (len(self.model), bool(self.model))
        assert dict(self.bag) == dict(**self.bag) == dict(self.bag.view()) == self.model
        assert self.bag == StateBag(self.model)
        assert (self.bag == StateBag()) is (not self.model)
        assert repr(self.bag) == f"StateBag({self.model!r})"
        assert self.bag.keys() == self.model.keys()


def outcome_class(of: Callable[[], Any]) -> Any:
    try:
        of()
    except Exception as error:  # noqa: BLE001 # which it is, is what is compared
        return type(error)
    return None


TestBagAsDict = BagAsDict.TestCase


async def test_a_merge_into_the_state_of_a_context_is_tracked(tmp_path: Path) -> None:
    broken = [True]

    @step
    async def adds(x: str, ctx: Context) -> str:
        # Type checkers refuse an assignment.
        held: Any = ctx
        held.state |= {"new": [1]}
        return x

    @step
    async def replaces(x: str, ctx: Context) -> str:
        held: Any = ctx
        held.state = StateBag({"other": 1})
        return x

    @step
    async def reads(x: str, ctx: Context) -> str:
        if broken:
            raise LookupError(x)
        return x

    store = f"sqlite:{tmp_path}/runs.db"
    async with Harness(plugins=[], checkpoints=store) as harness:
        result = await harness.run(adds >> reads, "x", run_id="r", on_error="result")
        assert result.state == StateBag({"new": [1]})
        with pytest.raises(errors.StepFailed, match="the state of a context cannot be replaced") as caught:
            await harness.run(adds >> replaces, "x")
        assert caught.value.path == ("sequence", "replaces")
        assert caught.value.result is not None
        assert caught.value.result.state == StateBag({"new": [1]})
    broken.clear()
    async with Harness(plugins=[], checkpoints=store) as harness:
        assert (await harness.resume("r", adds >> reads)).state == StateBag({"new": [1]})


def test_a_bag_has_every_method_of_a_mutable_mapping() -> None:
    named = {name for name in dir(MutableMapping) if not name.startswith("_")}
    assert named <= {name for name in dir(StateBag) if not name.startswith("_")}
    assert named == {"clear", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"}
