"""Patches: what is stored of a part of a value, and that the same value is made of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from attrs import define, field
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from noetic_py import Context, Harness, InMemoryBackend, Memory, Retry, StateBag, errors, loop, parallel, step, until
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump
from noetic_py.core.state import LayerStates
from noetic_py.core.values import is_dict, is_list, separate_state
from noetic_py.engine.frame import frame_of
from noetic_py.journal import patches, values
from noetic_py.journal.changes import StoredLayerStates, apply_layer_states, changed_tree
from noetic_py.journal.patches import difference, is_patch, patched, touched
from noetic_py.journal.records import Segment, StepFinished, dump_record, load_record
from noetic_py.journal.session_stream import StoredConversation, StoredState, ended, state_change
from noetic_py.journal.stored import Record
from tests.properties.checks import examples

pytestmark = pytest.mark.anyio


def stored_tuple(held: list[Any]) -> Any:
    """A tuple in its stored form."""
    return {"$": "tuple", "v": held}


leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.sampled_from([0, 1, True, False, 0.0, 1.0, -0.0, "1"]),
    st.text(max_size=4),
    st.text("ab", min_size=60, max_size=90),
)
names = st.sampled_from(["a", "b", "c", "d"])
trees: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(names, inner, max_size=4),
        st.builds(stored_tuple, st.lists(inner, max_size=3)),
    ),
    max_leaves=20,
)


# -- two values


def check(old: Any, now: Any) -> list[list[Any]] | None:
    """That the operations make the later value, and change nothing of the earlier one."""
    before = dump(old)
    found = difference(old, now)
    if found is not None:
        # As another process reads them.
        assert dump(patched(old, json.loads(dump(found)))) == dump(now)
        assert is_patch(json.loads(dump(found)))
        assert dump(old) == before
        if found:
            touched(now, found)
    return found


@given(trees, trees)
def test_any_value_to_any_other(old: Any, now: Any) -> None:
    check(old, now)
    check({"a": old, "b": [old, now]}, {"a": now, "b": [now, old, now]})


@given(trees, st.lists(st.integers(0, 1000), min_size=1, max_size=4), trees)
def test_a_value_with_some_parts_changed(old: Any, places: list[int], new: Any) -> None:
    now = copy.deepcopy(old)
    for place in places:
        change_somewhere(now, place, copy.deepcopy(new))
    check(old, now)


def change_somewhere(tree: Any, place: int, new: Any) -> None:
    """Put, add or take away something in a part of a value that the place says."""
    parts: list[Any] = []

    def gather(part: Any) -> None:
        if is_list(part) or is_dict(part):
            parts.append(part)
            for each in part.values() if is_dict(part) else part:
                gather(each)

    gather(tree)
    if not parts:
        return
    part, key = parts[place % len(parts)], place % 7
    if is_list(part):
        part[key % (len(part) + 1) : (place // 7) % (len(part) + 1)] = [copy.deepcopy(new) for _ in range(place % 3)]
    elif "$" not in part:
        part.pop("abcd"[key % 4], None)
        part["abcd"[place % 4]] = new


WORDS = [f"word {each}" * 8 for each in range(200)]


Changing = Callable[[Any], object]

SAID: list[tuple[Changing, list[Any]]] = [
    (lambda tree: tree["rows"].append("x"), [["splice", ["rows"], 200, 0, ["x"]]]),
    (lambda tree: tree["rows"].insert(3, "x"), [["splice", ["rows"], 3, 0, ["x"]]]),
    (lambda tree: tree["rows"].pop(5), [["splice", ["rows"], 5, 1, []]]),
    (lambda tree: tree.update(text=tree["text"] + "!"), [["splice", ["text"], 1600, 0, "!"]]),
    (lambda tree: tree["table"].update(new=1), [["put", ["table", "new"], 1]]),
    (lambda tree: tree["table"]["k5"].update(n=True), [["put", ["table", "k5", "n"], True]]),
    (lambda tree: tree["table"].pop("k7"), [["del", ["table", "k7"]]]),
    (
        lambda tree: tree["table"].update(k7=tree["table"].pop("k7")),
        [["del", ["table", "k7"]], ["put", ["table", "k7"], {"n": 1}]],
    ),
]


@pytest.mark.parametrize(("change", "expected"), SAID)
def test_what_an_operation_says(change: Changing, expected: list[Any]) -> None:
    old = {"rows": list(WORDS), "text": "".join(WORDS)[:1600], "table": {f"k{each}": {"n": 1} for each in range(50)}}
    now = copy.deepcopy(old)
    change(now)
    assert check(old, now) == expected


def test_a_patch_that_is_longer_than_the_value_is_not_made() -> None:
    old, now = (patches.known_fields(StateBag({"a": each}), Codec()) for each in (["a", "b"], ["b", "a"]))
    assert [change.op for change in patches.changes(old, now)] == ["set"]
    assert difference({"a": 1}, [1]) is None


@pytest.mark.parametrize(
    "operation",
    [
        ["put", ["no", "x"], 1],
        ["put", ["rows", 2], 1],
        ["put", ["text", 0], "y"],
        ["del", ["no"]],
        ["del", ["rows", "a"]],
        ["splice", ["rows"], 1, 5, []],
        ["splice", ["rows"], 0, 0, "text"],
        ["splice", ["text"], 0, 0, ["list"]],
        ["splice", [], 0, 0, []],
        ["splice", ["rows", "0"], 0, 0, ""],
    ],
)
def test_an_operation_that_does_not_fit_is_refused(operation: list[Any]) -> None:
    with pytest.raises(errors.CodecError, match=r"does not fit the value that it changes"):
        patched({"rows": [1, 2], "text": "x"}, [operation])


@pytest.mark.parametrize(
    "operation",
    [
        *(["put", [], 1], ["put", [-1], 1], ["put", [True], 1], ["put", ["a"]], ["put", "a", 1], ["del", []]),
        *(["del", [0]], ["move", ["a"], 1], ["splice", [], -1, 0, []], ["splice", [], 0, 0, 5], ["splice", [], 0, 0]),
        *(["splice", [], True, 0, []], [], "put"),
    ],
)
def test_what_is_not_an_operation_is_not_read(operation: object) -> None:
    assert not is_patch([operation])
    record = Record("Segment", ("a",), json.dumps([1, [], [["patch", "key", None, [operation]]], []]).encode())
    with pytest.raises(errors.CodecError, match=r"is not a valid delta of a Segment; expected a list of changes"):
        load_record(record, Codec())


# -- what a state costs


def record_bytes(before: Any, after: Any) -> int:
    """Bytes of what is stored of a change of a state."""
    codec = Codec()
    delta = patches.changes(patches.known_fields(before, codec), patches.known_fields(after, codec))
    return len(dump(values.write_changes(delta)))


COSTS: list[Changing] = [
    lambda bag: bag["rows"].append("x" * 100),
    lambda bag: bag.put("text", bag["text"] + "x" * 100),
    lambda bag: bag["table"].update(new="x" * 100),
    lambda bag: bag["table"].update({"key 7": "x" * 100}),
    lambda bag: bag["table"].pop("key 7"),
    lambda bag: bag["deep"]["more"]["table"].update(new="x" * 100),
    lambda bag: bag["deep"]["more"]["table"].pop("key 7"),
    lambda bag: bag["people"][7].update(name="x" * 100),
]


@pytest.mark.parametrize("size", [100, 5_000])
@pytest.mark.parametrize("change", COSTS)
def test_a_change_costs_what_changed(size: int, change: Changing) -> None:
    table = {f"key {each}": "x" * 50 for each in range(size)}
    bag = StateBag({
        "rows": ["x" * 50] * size,
        "text": "x" * 50 * size,
        "table": table,
        "deep": {"more": {"table": dict(table), "n": 1}},
        "people": [{"id": each, "name": "x" * 50} for each in range(size)],
    })  # fmt: skip
    before = copy.deepcopy(bag)
    change(bag)
    assert record_bytes(before, bag) <= 100 + 400


# -- programs of changes


@define
class Card:
    """An object in a state."""

    name: str = "card"
    seen: list[Any] = field(factory=list[Any])


@define(slots=False)
class Notes:
    """A typed state."""

    rows: list[Any] = field(factory=list[Any])
    also: list[Any] = field(factory=list[Any])
    text: str = ""
    table: dict[str, Any] = field(factory=dict[str, Any])
    pair: tuple[Any, ...] = ()
    card: Card = field(factory=Card)
    tags: set[str] = field(factory=set[str])


def seen(card: Any) -> list[Any]:
    """What a card has seen, be it an object or a dict."""
    return card.seen if isinstance(card, Card) else card["seen"]


def renamed(card: Any, name: str) -> Any:
    """The card with another name, changed in place."""
    if isinstance(card, Card):
        card.name = name
    else:
        card["name"] = name
    return card


Mutation = tuple[str, int, Any]
MUTATIONS: Mapping[str, Callable[[Any, int, Any], object]] = {
    "append": lambda held, at, new: held["rows"].append(new),
    "insert": lambda held, at, new: held["rows"].insert(at, new),
    "pop": lambda held, at, new: held["rows"] and held["rows"].pop(at % len(held["rows"])),
    "last": lambda held, at, new: held["rows"].__setitem__(slice(-1, None), [new]),
    "sort": lambda held, at, new: held["rows"].sort(key=repr),
    "clear": lambda held, at, new: at < 6 and held["rows"].clear(),
    "write": lambda held, at, new: held.update(text=f"{held['text']}{new}"),
    "surrogate": lambda held, at, new: held.update(text=f"{held['text']}\ud83d {new}"),
    "cut": lambda held, at, new: held.update(text=held["text"][: at * 4] + held["text"][at * 5 :]),
    "put": lambda held, at, new: held["table"].update({f"k{at % 30}": new}),
    "deep": lambda held, at, new: held["table"].setdefault("deep", {"in": {}})["in"].update({f"k{at % 5}": new}),
    "del": lambda held, at, new: held["table"].pop(f"k{at % 30}", None),
    "order": lambda held, at, new: held["table"].update({"k7": held["table"].pop("k7", new)}),
    "table": lambda held, at, new: at < 9 and held.update(table={"k1": new}),
    "again": lambda held, at, new: held.update(rows=copy.deepcopy(held["rows"])),
    "equal": lambda held, at, new: held.update(table=dict(held["table"])),
    "alias": lambda held, at, new: held.update(also=held["rows"]),
    "pair": lambda held, at, new: held.update(pair=(*held["pair"], new)),
    "see": lambda held, at, new: seen(held["card"]).append(new),
    "rename": lambda held, at, new: renamed(held["card"], f"{new}"),
    "new card": lambda held, at, new: held.update(card=renamed(copy.copy(held["card"]), "other")),
    "tag": lambda held, at, new: held["tags"].add(f"tag {at}"),
}
new_values = st.one_of(
    st.sampled_from([1, True, 1.0, None, "x", ""]),
    st.text(max_size=5),
    st.builds(lambda: {"n": [1, {"m": "x"}]}),
)
mutations: st.SearchStrategy[Mutation] = st.tuples(st.sampled_from(list(MUTATIONS)), st.integers(0, 60), new_values)
scripts = st.lists(st.lists(mutations, max_size=4), min_size=3, max_size=9)


def fields_of(state: Any) -> Any:
    """The fields of a state of any type, to be changed by name."""
    return vars(state) if isinstance(state, Notes) else state


def mutate(state: Any, mutation: Mutation) -> None:
    """Change a state in one of many ways."""
    name, at, new = mutation
    MUTATIONS[name](fields_of(state), at, copy.deepcopy(new))


def begun(kind: type[Any]) -> Any:
    """A state that is large enough for patches to be worth it."""
    have = [f"seen {each}" for each in range(20)]
    fields = dict[str, Any](
        rows=[f"row {each} with some text" for each in range(20)],
        also=[],
        text="a text that grows " * 20,
        table={**{f"k{each}": f"value {each}" for each in range(20)}, "deep": {"in": {"k1": [1, 2]}}},
        pair=(1, "two"),
        card=Card("card", have) if kind is Notes else {"name": "card", "seen": have},
        tags={f"tag {each}" for each in range(20)},
    )
    made: Any = kind
    return made(**fields) if kind is Notes else made(fields)


def plain(state: Any) -> Any:
    """A state as the value that is stored for it."""
    return dict(state.view()) if isinstance(state, StateBag) else state


def exact(state: Any) -> bytes:
    """What tells states apart that are equal to Python."""
    return Codec().dumps(plain(state))


def stored(delta: tuple[patches.Change, ...]) -> tuple[patches.Change, ...]:
    """The changes as another process reads them."""
    record = load_record(dump_record(Segment(("a",), 1, (), delta), Codec()), Codec())
    assert isinstance(record, Segment)
    return record.delta


@given(scripts, st.sampled_from([StateBag, Notes, dict]))
def test_every_fold_gives_what_whole_states_give(script: list[list[Mutation]], kind: type[Any]) -> None:
    codec = Codec([Card, Notes])
    state, live = begun(kind), begun(kind)
    known = patches.known_fields(state, codec)
    fields: Mapping[str, object] = {key: each.tree for key, each in known.items()}
    tree = like = codec.encode(plain(state))
    layers: LayerStates = {"layer": copy.deepcopy(plain(state))}
    found, recorded = layers, StoredLayerStates(layers)
    session = StoredConversation(states={"state": StoredState(like, fields, 1)})
    for each in script:
        for mutation in each:
            mutate(state, mutation)
        separate_state(state)
        now = patches.known_fields(state, codec)
        whole = dump({key: part.tree for key, part in now.items()})
        delta = stored(patches.changes(known, now))
        assert patches.mismatch(known, delta) is None
        # What was added to a value was added to its digest.
        again = patches.known_fields(state, codec)
        assert {key: part.digest for key, part in now.items()} == {key: part.digest for key, part in again.items()}
        patches.require_readable(state, delta, now, codec)
        patches.apply_changes(live, delta, codec)
        assert exact(live) == exact(state)
        fields, known = patches.changed_fields(fields, delta), now
        assert dump(fields) == whole
        # A layer's state is replaced, and not changed in place.
        layers = {"layer": copy.deepcopy(plain(state))}
        deltas, recorded = recorded.changes(layers, codec)
        found = apply_layer_states(found, deltas, lambda layer: kind if kind is Notes else object, codec)
        assert exact(found["layer"]) == exact(state)
        change = state_change(session.states["state"], state, 1, codec)
        session.advance([ended("run", "completed", (), {} if change is None else {"state": change}, codec)], codec)
        assert dump(session.states["state"].fields) == whole
        for _, given_changes in deltas:
            tree = changed_tree(tree, given_changes, None)
        assert dump(patches.field_trees(tree)) == whole


class Program:
    """A flow that changes its state as a script says: in bodies, in what they call, again after failing, and in paths.

    Args:
        script: The changes of each round.
        kind: The type of the state.
    """

    def __init__(self, script: Sequence[Sequence[Mutation]], kind: type[Any]) -> None:
        self.script, self.kind = script, kind

    def flow(self) -> Any:
        """The flow, made anew."""
        script = self.script

        def some(ctx: Any, at: int, part: int) -> None:
            for mutation in script[at][part::4]:
                mutate(ctx.state, mutation)

        @step
        async def inner(at: int, ctx: Context[Memory, Any]) -> int:
            some(ctx, at, 1)
            return at

        @step(retry=Retry(2, initial=0))
        async def unsteady(at: int, ctx: Context[Memory, Any]) -> int:
            some(ctx, at, 0)
            await inner(at, ctx)
            some(ctx, at, 2)
            if at % 3 == 1 and frame_of(ctx).attempt == 1:
                raise RuntimeError("the first attempt")
            return at

        def merge(results: Sequence[int], ctx: Context[Memory, Any], states: Sequence[Any]) -> int:
            mine, first, second = map(fields_of, (ctx.state, *states))
            mine["table"].update(second["table"])
            mine["rows"].extend(first["rows"][-2:])
            return results[0]

        both = parallel([inner, inner], merge=merge)

        @step
        async def around(at: int, ctx: Context[Memory, Any]) -> int:
            some(ctx, at, 3)
            await unsteady(at, ctx)
            if at % 4 == 2:
                await both(at, ctx)
            some(ctx, at, 0)
            return at + 1

        return loop(around, until=until.max_rounds(len(script)))

    async def run(self, harness: Harness[Memory]) -> bytes:
        """The state at the end."""
        return exact((await harness.run(self.flow(), 0, state=begun(self.kind), run_id="r")).state)

    async def compare(self) -> None:
        """That it comes to the same without a store, with one, and gone on with from every position."""
        async with Harness(plugins=()) as harness:
            expected = await self.run(harness)
        backend = InMemoryBackend()
        async with Harness(plugins=(), checkpoints=backend) as harness:
            assert await self.run(harness) == expected
            for at in range(1, len(await harness.runs.journal("r"))):
                try:
                    fork = await harness.fork("r", at=at)
                except errors.PositionConflict:
                    continue
                result = await harness.resume(fork, self.flow(), state_type=self.kind)
                assert exact(result.state) == expected, f"gone on with from {at}"


@settings(max_examples=examples(4, 8), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(scripts, st.sampled_from([StateBag, Notes, dict]))
def test_a_program_comes_to_the_same_from_every_position(script: list[list[Mutation]], kind: type[Any]) -> None:
    anyio.run(Program(script, kind).compare)


async def test_the_programs_are_stored_as_patches() -> None:
    script: list[list[Mutation]] = [
        [("append", 0, "x")],
        [("deep", 1, {"n": 1})],
        [("see", 0, 2)],
        [("write", 0, "more")],
        [("tag", 40, "")],
    ]
    async with Harness(plugins=(), checkpoints=InMemoryBackend()) as harness:
        await Program(script, Notes).run(harness)
        journal = await harness.runs.journal("r")
    deltas = [each.delta for each in journal if isinstance(each, StepFinished | Segment)]
    assert {(change.op, change.key) for delta in deltas for change in delta} >= {
        ("append", "rows"),
        ("patch", "table"),
        ("patch", "card"),
        ("patch", "text"),
        ("patch", "tags"),
    }
