"""Where a conversation may be cut, what its parts take, and that both stay true while it grows, shrinks and forks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message, Opaque, Reasoning
from noetic_py.core.log import ItemLog
from noetic_py.core.tokens import EstimatedCounter, TokenCount
from noetic_py.memory.history import HistoryIndex, Narrowing, narrowed, paired

COUNTER = EstimatedCounter()


def made(kind: str, place: int = 0) -> Item:
    """An item from a letter: u and d input, m the model's message, r reasoning, c1 and o1 a call and its output."""
    name = f"{kind}.{place}"
    match kind[0]:
        case "u":
            return Message(role="user", content=f"says {name}", id=name)
        case "d":
            return Message(role="developer", content=f"tells {name}", id=name)
        case "m":
            return Message(role="assistant", content=f"answers {name}", id=name)
        case "r":
            return Reasoning(summary=f"thinks {name}", id=name)
        case "c":
            return FunctionCall(name="look", call_id=kind[1:], id=name)
        case "o":
            return FunctionCallOutput(call_id=kind[1:], output="seen", id=name)
        case "x":
            return Opaque(raw=f'{{"type":"thing_call","call_id":"{kind[1:]}"}}'.encode(), id=name)
        case "y":
            return Opaque(raw=f'{{"type":"thing_call_output","call_id":"{kind[1:]}"}}'.encode(), id=name)
        case _:
            return Opaque(raw=b'{"type":"web_search_call","id":"ws"}', id=name)


def conversation(text: str) -> list[Item]:
    return [made(kind, place) for place, kind in enumerate(text.split())]


def indexed(text: str) -> HistoryIndex:
    index = HistoryIndex()
    index.update(conversation(text), COUNTER)
    return index


# ------------------------------------------------------------------------------------------------ cuts


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("u m u m", [0, 1, 2, 3]),
        ("u c1 o1 m", [0, 1, 3]),
        ("u c1 c2 o1 o2 u", [0, 1, 5]),
        ("u c1 c2 o2 u o1 m", [0, 1, 6]),
        ("u r m c1 o1 r c2 o2 m", [0, 1, 5, 8]),
        ("u m c1 o1", [0, 1]),
        ("u r m u", [0, 1, 3]),
        ("u r u", [0, 1, 2]),
        ("m r m", [0, 1]),
        ("u r w m u", [0, 1, 4]),
        ("u x1 y1 x2 y2 m", [0, 1, 3, 5]),
        ("u x1 m u m", [0, 1, 3, 4]),
        ("d u m", [0, 1, 2]),
    ],
)
def test_closed_cuts(text: str, cuts: list[int]) -> None:
    assert list(indexed(text).cuts()) == cuts


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        ("u", 0),
        ("u m u", 2),
        ("u m u u d", 2),
        ("u r m c1 o1", 1),
        ("u c1 o1 r m c2 c3 o2 o3", 3),
        ("u c1 o1 u", 3),
        ("u m", 1),
        ("", 0),
    ],
)
def test_the_tail(text: str, tail: int) -> None:
    index = indexed(text)
    assert index.tail == tail
    assert index.awaits_answer is (text[-1:] in ("u", "d"))


def test_an_unknown_item_that_cannot_be_read_stands_alone() -> None:
    broken = Opaque(raw=b'{"call_id": oh', type="thing_call", id="x")
    listed = Opaque(raw=b'["call_id"]', type="thing_call", id="y")
    index = HistoryIndex()
    index.update([made("u"), broken, made("u", 1), listed, made("o9"), made("u", 2)], COUNTER)
    assert list(index.cuts()) == [0, 1, 2, 3, 5]


def test_tokens_add_up() -> None:
    items = conversation("u r c1 o1 m u")
    index = HistoryIndex()
    index.update(items, COUNTER)
    sizes = [COUNTER.count_item(item).value for item in items]
    assert index.tokens == sum(sizes)
    assert index.tokens_from(2) == sum(sizes[2:])
    assert index.tokens_from(1, 4) == sum(sizes[1:4])


def test_the_oldest_cut_that_fits() -> None:
    index = indexed("u c1 o1 m u c2 o2 m")
    cuts = index.cuts()
    for limit in range(index.tokens + 5):
        best = next((cut for cut in cuts if index.tokens_from(cut) <= limit), index.tail)
        assert index.oldest_cut(limit, index.tail) == min(best, index.tail)
    assert index.oldest_cut(0, 4) == 4


# ------------------------------------------------------------------------------------------------ keeping up


class Counting:
    """A counter that tells how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def count_text(self, text: str, /) -> TokenCount:
        return TokenCount(len(text), "estimated")

    def count_item(self, item: Item, /) -> TokenCount:
        self.asked += 1
        return TokenCount(len(item.id), "estimated")


def same_as_new(index: HistoryIndex, items: Sequence[Item], counter: Counting) -> bool:
    fresh = HistoryIndex()
    fresh.update(items, Counting())
    return (
        len(index) == len(items)
        and index.cuts() == fresh.cuts()
        and index.tail == fresh.tail
        and index.awaits_answer == fresh.awaits_answer
        and [index.tokens_from(place) for place in range(len(items) + 1)]
        == [fresh.tokens_from(place) for place in range(len(items) + 1)]
    )


def test_only_what_is_new_is_counted() -> None:
    counter, index, log = Counting(), HistoryIndex(), ItemLog()
    for place in range(200):
        log.append(made("u", place))
        log.append(made("m", place))
        assert index.update(log.frozen(), counter) == place * 2
    assert counter.asked == 400


def test_another_counter_counts_anew() -> None:
    items, index = conversation("u m"), HistoryIndex()
    index.update(items, COUNTER)
    other = Counting()
    assert index.update(items, other) == 0
    assert index.tokens == sum(len(item.id) for item in items)


def test_what_was_taken_back_is_noticed_even_when_as_much_came_instead() -> None:
    counter, index, log = Counting(), HistoryIndex(), ItemLog(conversation("u r c1 o1 m"))
    index.update(log, counter)
    log.rollback(2)
    log.extend([made("c7", 90), made("o7", 91), made("m", 92), made("u", 93)])
    assert index.update(log, counter) == 2
    assert same_as_new(index, list(log), counter)


def test_a_call_that_was_closed_for_the_reader_gets_its_output_later() -> None:
    counter, index, log = Counting(), HistoryIndex(), ItemLog(conversation("u c1"))
    index.update(log.rendered("interrupted"), counter)
    assert index.tail == 1
    assert index.update(log.rendered("interrupted"), counter) == 3
    log.append(made("o1", 50))
    assert index.update(log.rendered("interrupted"), counter) == 2
    assert same_as_new(index, list(log), counter)


def test_a_closing_output_at_its_old_place_proves_nothing() -> None:
    counter, index, log = Counting(), HistoryIndex(), ItemLog(conversation("u c1 c2 o2"))
    index.update(log.rendered("stopped"), counter)
    log.rollback(2)
    log.extend([made("c33", 33), made("o33", 34)])
    assert index.update(log.rendered("stopped"), counter) == 2
    assert same_as_new(index, list(log.rendered("stopped")), counter)


def test_a_log_that_begins_anew() -> None:
    counter, index = Counting(), HistoryIndex()
    index.update(conversation("u m u"), counter)
    assert index.update((), counter) == 0
    assert (len(index), index.tokens, index.tail) == (0, 0, 0)


def test_forks_go_their_own_ways() -> None:
    counter = Counting()
    log = ItemLog(conversation("u c1 o1 m u"))
    index = HistoryIndex()
    index.update(log, counter)
    forks = [(index.fork(), log.fork()) for _ in range(3)]
    for place, (child, branch) in enumerate(forks):
        branch.extend([made(f"c{place}x", 100 + place), made(f"o{place}x", 200 + place), made("m", 300 + place)])
        child.update(branch, counter)
    log.append(made("m", 400))
    index.update(log, counter)
    for child, branch in [*forks, (index, log)]:
        assert same_as_new(child, list(branch), counter)
    assert counter.asked == 5 + 3 * 3 + 1


def test_a_narrowed_list_is_compared_item_by_item() -> None:
    counter, index = Counting(), HistoryIndex()
    items = conversation("u m u m u m")
    index.update(items, counter, grows=False)
    changed = [items[0], made("m", 77), *items[2:]]
    assert index.update(changed, counter, grows=False) == 1
    assert same_as_new(index, changed, counter)
    # Its last item is where it was, which proves nothing after a list that did not only grow.
    assert index.update(items, counter) == 1
    assert same_as_new(index, items, counter)


@given(st.lists(st.tuples(st.sampled_from(["grow", "back", "fork"]), st.integers(0, 30)), max_size=25))
def test_whatever_happened_the_index_is_that_of_the_log(moves: list[tuple[str, int]]) -> None:
    counter = Counting()
    pairs = [(HistoryIndex(), ItemLog())]
    kinds = ["u", "m", "r", "c", "o", "d"]
    for place, (move, number) in enumerate(moves):
        index, log = pairs[number % len(pairs)]
        if move == "grow":
            kind = kinds[number % len(kinds)]
            if kind == "o" and not log.open_calls:
                kind = "c"
            name = f"o{next(iter(log.open_calls))}" if kind == "o" else f"c{place}" if kind == "c" else kind
            log.append(made(name, place))
        elif move == "back":
            log.rollback(max(0, len(log) - number % 5))
        else:
            pairs.append((index.fork(), log.fork()))
        if number % 3:
            index.update(log.rendered("stopped"), counter)
    for index, log in pairs:
        index.update(log.rendered("stopped"), counter)
        assert same_as_new(index, list(log.rendered("stopped")), counter)


# ------------------------------------------------------------------------------------------------ narrowing


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("u c1 o1 m", "u c1 o1 m"),
        ("u c1 m", "u m"),
        ("o1 m u", "m u"),
        ("u r c1 u", "u u"),
        ("u r c1 o1 c2 m", "u r c1 o1 m"),
        ("c1 o1 c1 o1", "c1 o1"),
        ("o1 c1", ""),
        ("u r", "u"),
        ("r c1 c2 o2 m", "r c2 o2 m"),
    ],
)
def test_halves_of_pairs_are_left_out(text: str, left: str) -> None:
    kept = paired(conversation(text))
    assert " ".join(item.id.partition(".")[0] for item in kept) == left


def test_a_whole_history_is_handed_on_as_it_is() -> None:
    items = conversation("u r c1 o1 m")
    assert paired(items) is items


def test_what_layers_add_to_a_history_is_marked_as_theirs() -> None:
    items = conversation("u c1 o1 m u")
    shorter = FunctionCallOutput(call_id="1", output="s", id=items[2].id)
    said = Message(role="assistant", content="less", id=items[3].id)
    added: list[Item] = [
        Message.developer("They spoke."),
        Message.system("Obey."),
        made("m", 70),
        made("c7"),
        made("o7"),
    ]
    kept = narrowed([*added, *items[:2], shorter, said, items[4]], items, 4)
    assert list(kept[5:]) == [items[0], items[1], shorter, said]
    for item in kept[:5]:
        assert isinstance(item, Message)
        assert item.role == "developer"
        assert item.text.startswith('<memory layer="history">\n')
    assert len({item.id for item in kept}) == len(kept)


@pytest.mark.parametrize(
    "posing",
    [
        Message(role="system", content="Obey.", id="m.3"),
        Message(role="assistant", content="I did.", id="o1.2"),
        FunctionCallOutput(call_id="2", output="approved", id="o1.2"),
        FunctionCall(name="look", call_id="2", id="c1.1"),
        Reasoning(summary="I may.", id="m.3"),
    ],
)
def test_the_id_of_an_item_does_not_make_another_one_of_it(posing: Item) -> None:
    (item,) = narrowed([posing], conversation("u c1 o1 m u"), 4)
    assert isinstance(item, Message)
    assert item.role == "developer"


def test_a_narrowed_history_need_not_leave_out_the_tail() -> None:
    items = conversation("u m u")
    assert list(narrowed(items, items, 2)) == items[:2]
    assert list(narrowed(items[:2], items, 2)) == items[:2]


def test_a_narrowing_that_goes_on_is_the_one_made_anew() -> None:
    went_on = sum(map(narrowings_that_went_on, range(60)))
    assert 100 < went_on < 2_000


def narrowings_that_went_on(number: int) -> int:
    """Compares each narrowing of a random conversation with one made anew; returns how many used the one before."""
    source, log = random.Random(f"narrowing {number}"), ItemLog()
    dropped: set[str] = set()
    before: Narrowing | None = None
    summary = Message.user("a summary")
    went_on = 0
    for step in range(40):
        calls = [f"{step}-{place}" for place in range(source.randint(0, 2))]
        log.append(Message.user(f"asks {step}"))
        if source.random() < 0.5:
            log.append(Reasoning(summary=f"thinks {step}"))
        log.extend([FunctionCall(name="look", call_id=call) for call in calls])
        for call in calls if source.random() < 0.9 else ():
            log.append(FunctionCallOutput(call_id=call, output="seen"))
        if source.random() < 0.1:
            log.rollback(max(0, len(log) - source.randint(1, 6)))
        history = log.rendered("stopped")
        if source.random() < 0.2:
            dropped = {item.id for item in history if source.random() < 0.4}
        projected = [item for item in history if item.id not in dropped]
        if source.random() < 0.1:
            projected = projected[: source.randint(0, len(projected))]
        if dropped and source.random() < 0.8:
            projected = [summary, *projected]
        index = HistoryIndex()
        index.update(history, COUNTER, grows=False)
        tail = index.tail
        anew = Narrowing(projected, history, tail)
        made = Narrowing(projected, history, tail, before)
        assert [*made.wanted] == [*anew.wanted]
        assert [*made.kept] == [*anew.kept]
        went_on += before is not None and before._continued(projected, history, tail) is not None
        before = made
    return went_on
