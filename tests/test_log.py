"""The item log: order, pairing, forks, views."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from noetic_py.core.items import (
    Extension,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    Item,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Refusal,
    extension_item,
)
from noetic_py.core.log import ItemLog, ItemView, admit
from noetic_py.errors import DuplicateCall, ForgedEvent, LimitExceeded, UnpairedOutput


@extension_item("test-log:mark")
class Mark(Extension):
    place: int


def call(call_id: str) -> FunctionCall:
    return FunctionCall(name="look", call_id=call_id, id=f"c-{call_id}")


def output(call_id: str) -> FunctionCallOutput:
    return FunctionCallOutput(call_id=call_id, output="seen", id=f"o-{call_id}")


def said(text: str) -> Message:
    return Message(role="user", content=text, id=text)


def thought(text: str) -> Reasoning:
    return Reasoning(summary=text, id=f"r-{text}")


MAKERS: dict[str, Callable[[str], Item]] = {"m": said, "c": call, "o": output, "r": thought}


def ids(items: Sequence[Item]) -> list[str]:
    return [item.id for item in items]


# ------------------------------------------------------------------------------------------------ appending


def test_appends_in_order_and_reads_back() -> None:
    log = ItemLog([said("a")])
    log.append(said("b"))
    log.extend([said("c"), said("d")])
    assert ids(log) == ["a", "b", "c", "d"]
    assert log[0].id == "a"
    assert log[-1].id == "d"
    assert ids(log[1:3]) == ["b", "c"]
    assert ids(log[::-2]) == ["d", "b"]
    assert ids(list(reversed(log))) == ["d", "c", "b", "a"]
    assert log[3:1] == ()
    assert len(log) == 4
    assert bool(log)
    assert not ItemLog()
    assert repr(log) == f"ItemLog([{', '.join(map(repr, log))}])"
    # What a model is asked shows its items, too.
    assert str(log.frozen()) == f"ItemView([{', '.join(map(repr, log))}])"
    assert repr(ItemLog(said(str(n)) for n in range(1_051))).endswith("... and 1,001 more])")


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_outside_is_an_index_error(index: int) -> None:
    log = ItemLog([said("a"), said("b")])
    with pytest.raises(IndexError):
        log[index]
    with pytest.raises(IndexError):
        log.origin_of(index)


@pytest.mark.parametrize("thing", ["text", None, {"type": "message"}, Message, OutputText(text="x")])
def test_what_is_no_item_is_refused(thing: object) -> None:
    log = ItemLog()
    with pytest.raises(TypeError, match="holds items"):
        log.append(thing)  # type: ignore[arg-type]  # that is the test
    assert len(log) == 0


def test_an_output_needs_an_open_call() -> None:
    log = ItemLog()
    with pytest.raises(UnpairedOutput) as caught:
        log.append(output("1"))
    assert caught.value.call_id == "1"
    log.append(call("1"))
    log.append(output("1"))
    with pytest.raises(UnpairedOutput):
        log.append(output("1"))
    assert ids(log) == ["c-1", "o-1"]


def test_a_call_id_is_used_once() -> None:
    log = ItemLog([call("1")])
    with pytest.raises(DuplicateCall) as caught:
        log.append(call("1"))
    assert caught.value.call_id == "1"
    log.append(output("1"))
    with pytest.raises(DuplicateCall):
        log.append(call("1"))
    fork = log.fork()
    with pytest.raises(DuplicateCall):
        fork.append(call("1"))


def test_any_kind_of_item_is_taken() -> None:
    log = ItemLog([Opaque(raw=b'{"type":"x"}'), Mark(place=3), Reasoning(summary="hm")])
    assert log.view(Mark) == (log[1],)


def test_a_log_knows_its_calls() -> None:
    log = ItemLog([call("1"), output("1"), call("2")])
    fork = log.fork()
    fork.append(call("3"))
    assert all(fork.has_call(call_id) for call_id in "123")
    assert not log.has_call("3")
    log.append(call("4"))
    assert not fork.has_call("4")


def test_forks_may_use_one_call_id_each() -> None:
    log = ItemLog([said("a")])
    left, right = log.fork(), log.fork()
    log.append(call("1"))
    left.append(call("1"))
    right.append(call("1"))
    assert ids(left) == ids(right) == ["a", "c-1"]


def test_extend_takes_all_or_nothing() -> None:
    log = ItemLog([call("1")])
    with pytest.raises(UnpairedOutput):
        log.extend([output("1"), call("2"), output("2"), output("3")])
    assert ids(log) == ["c-1"]
    assert list(log.open_calls) == ["1"]
    log.extend([output("1"), call("2"), output("2")])
    assert len(log) == 4


def test_a_full_log_says_so() -> None:
    log = ItemLog([said("a")], max_items=3)
    assert log.max_items == 3
    log.append(said("b"))
    with pytest.raises(LimitExceeded) as caught:
        log.extend([said("c"), said("d")])
    assert (caught.value.what, caught.value.limit) == ("log length", 3)
    assert len(log) == 2
    fork = log.fork()
    fork.append(said("c"))
    with pytest.raises(LimitExceeded):
        fork.append(said("d"))
    with pytest.raises(LimitExceeded):
        fork.append(call("1"))
    assert not fork.open_calls


# ------------------------------------------------------------------------------------------------ forks and views


def test_a_fork_and_its_parent_do_not_see_each_other() -> None:
    log = ItemLog([said("a"), call("1")])
    fork = log.fork()
    log.append(said("parent"))
    fork.append(output("1"))
    assert ids(log) == ["a", "c-1", "parent"]
    assert ids(fork) == ["a", "c-1", "o-1"]
    assert list(log.open_calls) == ["1"]
    assert not fork.open_calls


def test_a_frozen_view_stays() -> None:
    log = ItemLog([said("a")])
    frozen = log.frozen()
    log.append(said("b"))
    log.rollback(0)
    log.append(said("c"))
    assert ids(frozen) == ["a"]
    assert frozen.frozen() is frozen
    assert not hasattr(frozen, "append")
    assert str(frozen) == f"ItemView([{frozen[0]!r}])"


def test_a_view_of_given_items() -> None:
    view = ItemView([said("a"), said("b")])
    assert ids(view) == ["a", "b"]
    with pytest.raises(UnpairedOutput):
        ItemView([output("1")])


def test_a_snapshot_belongs_to_the_caller() -> None:
    log = ItemLog([said("a")])
    copy = log.snapshot()
    copy.clear()
    assert ids(log) == ["a"]


def test_repeated_forks_stay_shallow() -> None:
    log = ItemLog([said("a")])
    for _ in range(50):
        log = log.fork()
    assert len(log._sealed) == 1
    fork = log.fork()
    fork.append(said("b"))
    assert len(fork._sealed) == 1


def test_since_gives_what_came_after_a_mark() -> None:
    log = ItemLog([said("a")])
    mark = log.mark()
    assert log.since(mark) == ()
    log = log.fork()
    log.append(said("b"))
    assert ids(log.since(mark)) == ["b"]
    assert ids(log.since(0)) == ["a", "b"]
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="mark"):
            log.since(wrong)
        with pytest.raises(ValueError, match="mark"):
            log.rollback(wrong)


def test_rollback_reopens_the_calls_it_uncovers() -> None:
    log = ItemLog([call("1")])
    mark = log.mark()
    log.extend([output("1"), call("2"), said("x")])
    log.rollback(mark)
    assert list(log.open_calls) == ["1"]
    log.extend([call("2"), output("1")])
    assert list(log.open_calls) == ["2"]


def test_rollback_reaches_into_what_is_shared() -> None:
    root = ItemLog([said("a"), call("1"), said("b")])
    fork = root.fork()
    fork.append(output("1"))
    deeper = fork.fork()
    deeper.append(said("c"))
    deeper.rollback(2)
    assert ids(deeper) == ["a", "c-1"]
    assert list(deeper.open_calls) == ["1"]
    deeper.append(said("d"))
    deeper.rollback(2)
    deeper.rollback(0)
    deeper.append(said("e"))
    assert ids(deeper) == ["e"]
    assert ids(fork) == ["a", "c-1", "b", "o-1"]
    assert ids(root) == ["a", "c-1", "b"]


def test_rollback_to_where_a_segment_ends() -> None:
    root = ItemLog([said("a"), said("b")])
    fork = root.fork().fork()
    fork.append(said("c"))
    deeper = fork.fork()
    deeper.append(said("d"))
    view = deeper.frozen()
    deeper.rollback(3)
    deeper.append(said("e"))
    deeper.frozen()
    deeper.rollback(2)
    deeper.append(said("f"))
    assert (ids(deeper), ids(view), ids(fork)) == (["a", "b", "f"], ["a", "b", "c", "d"], ["a", "b", "c"])


def test_slices_across_segments() -> None:
    log = ItemLog()
    for group in ("ab", "cd", "ef"):
        log.extend([said(name) for name in group])
        log = log.fork()
    log.append(said("g"))
    names = "abcdefg"
    assert log.size == len(log) == 7
    for start in range(8):
        for stop in range(8):
            assert "".join(ids(log[start:stop])) == names[start:stop]
        assert "".join(ids(log.since(min(start, 7)))) == names[start:]
    assert "".join(ids(log[::2])) == names[::2]
    assert [log[i].id for i in range(-7, 7)] == list(names + names)


# ------------------------------------------------------------------------------------------------ filters


def test_filters_by_type_and_role() -> None:
    log = ItemLog([Message.user("q"), call("1"), output("1"), Message.assistant("a"), Message.user("q2")])
    assert [m.text for m in log.view(Message)] == ["q", "a", "q2"]
    assert [m.text for m in log.view(Message, role="user")] == ["q", "q2"]
    assert len(log.view(role="assistant")) == 1
    assert [c.name for c in log.view(FunctionCall)] == ["look"]
    assert log.view(Reasoning) == ()
    assert len(log.view()) == 5
    last = log.last(Message, role="assistant")
    assert last is not None
    assert last.text == "a"
    assert log.last() is log[4]
    assert log.last(role="system") is None


def test_last_text_passes_over_messages_without_text() -> None:
    picture = InputImage(url="https://example.org/a.png")
    log = ItemLog([Message.user("old"), Message.user([picture, "first", "second"]), Message.user([picture])])
    assert log.last_text("user") == "first"
    assert log.last_text("assistant") is None
    assert log.last_text("assistant", "none") == "none"
    log.append(Message.user(""))
    assert log.last_text("user", "none") == ""
    log.append(Message.assistant([Refusal(refusal="no")]))
    assert log.last_text("assistant") is None


def test_filters_by_origin() -> None:
    log = ItemLog([said("seed")])
    log.origin = ("run-1", "main")
    log.append(said("a"))
    log.origin = ("run-1", "main.child")
    log.extend([said("b"), said("c")])
    fork = log.fork()
    fork.origin = ("run-2", "main.children")
    fork.append(said("d"))
    fork.origin = None
    fork.append(said("e"))
    assert ids(fork.view(branch="main")) == ["a"]
    assert ids(fork.view(branch="main.child")) == ["b", "c"]
    assert ids(fork.view(branch_prefix="main")) == ["a", "b", "c", "d"]
    assert ids(fork.view(branch_prefix="main.child")) == ["b", "c"]
    assert ids(fork.view(branch_prefix="")) == ["a", "b", "c", "d"]
    assert ids(fork.view(run_id="run-2")) == ["d"]
    assert ids(fork.view(exclude_run="run-1")) == ["seed", "d", "e"]
    assert ids(fork.view(Message, branch_prefix="main", run_id="run-1", role="user")) == ["a", "b", "c"]
    assert [fork.origin_of(i) for i in (0, 1, -2, -1)] == [None, ("run-1", "main"), ("run-2", "main.children"), None]


@given(
    st.lists(
        st.tuples(st.sampled_from(["message", "call", "output"]), st.sampled_from([None, ("r", "a"), ("r", "b")])),
        max_size=12,
    )
)
def test_what_a_provider_is_shown_keeps_its_origins(parts: list[tuple[str, tuple[str, str] | None]]) -> None:
    log, open_calls = ItemLog(), list[str]()
    for number, (kind, origin) in enumerate(parts):
        log.origin = origin
        if kind == "call":
            log.append(FunctionCall(name="look", call_id=f"c{number}"))
            open_calls.append(f"c{number}")
        elif kind == "output" and open_calls:
            log.append(FunctionCallOutput(call_id=open_calls.pop(0), output="seen"))
        else:
            log.append(Message.user("And now?"))
    view = log.rendered("stopped")
    places = {item.id: index for index, item in enumerate(view)}
    assert len(view) == len(log) + len(open_calls)
    assert [view.origin_of(places[item.id]) for item in log] == [log.origin_of(index) for index in range(len(log))]


def test_origins_are_forgotten_with_their_items() -> None:
    log = ItemLog(origin=("r", "a"))
    log.append(said("1"))
    log.origin = ("r", "b")
    log.append(said("2"))
    log.rollback(1)
    log.origin = ("r", "a")
    log.append(said("3"))
    assert ids(log.view(branch="a")) == ["1", "3"]
    log.rollback(0)
    log.append(said("4"))
    assert ids(log.view(branch="a")) == ["4"]


def test_final_answers() -> None:
    plan, answer = Message.assistant("let me look"), Message.assistant("it is blue")
    between, half = Message.assistant("still looking"), Message(role="assistant", content="it", status="incomplete")
    log = ItemLog(
        [Message.user("q"), plan, Reasoning(summary="hm"), call("1"), between, output("1"), answer, half, call("2")]
    )
    assert log.view(Message, final=True) == (answer,)
    assert answer not in log.view(final=False)
    assert len(log.view(final=False)) == len(log) - 1
    late = Message.assistant("seen")
    assert ItemLog([call("1"), Reasoning(summary="hm"), output("1"), late]).view(final=True) == (late,)


# ------------------------------------------------------------------------------------------------ rendering


def test_a_log_without_open_calls_is_rendered_as_it_is() -> None:
    log = ItemLog([said("a"), call("1"), output("1")])
    assert ids(log.rendered("stopped")) == ids(log)


def test_open_calls_are_closed_behind_their_block() -> None:
    log = ItemLog(origin=("run", "main"))
    log.extend([said("a"), call("1"), output("1"), said("b"), call("2"), call("3"), output("2"), said("c"), call("4")])
    view = log.rendered("the run was aborted")
    assert ids(view) == [
        "a", "c-1", "o-1", "b", "c-2", "c-3", "o-2", "c-3-closed", "c", "c-4", "c-4-closed",
    ]  # fmt: skip
    closing = view[7]
    assert isinstance(closing, FunctionCallOutput)
    assert closing.call_id == "3"
    assert closing.status == "incomplete"
    assert "the run was aborted" in closing.text
    assert view.origin_of(-1) == ("run", "main")
    assert list(log.open_calls) == ["3", "4"]
    assert len(log) == 9
    log.append(output("3"))
    assert len(view) == 11
    assert log.rendered("x") != view
    assert list(view) == list(view)


def test_rendering_twice_gives_the_same() -> None:
    log = ItemLog([call("1")])
    assert list(log.rendered("r")) == list(log.rendered("r"))


# ------------------------------------------------------------------------------------------------ model


def paired(items: list[Item]) -> bool:
    waiting: set[str] = set()
    seen: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCall):
            if item.call_id in seen:
                return False
            seen.add(item.call_id)
            waiting.add(item.call_id)
        elif isinstance(item, FunctionCallOutput):
            if item.call_id not in waiting:
                return False
            waiting.discard(item.call_id)
    return not waiting


def test_items_from_elsewhere_are_put_there_all_or_none() -> None:
    log = ItemLog([Message.user("a")])
    call = FunctionCall(name="f", call_id="c", arguments={})
    with pytest.raises(DuplicateCall):
        log.put([Message.user("b"), call, call], [(2, ("r1", "main"))])
    assert [item.type for item in log] == ["message"]
    log.put([Message.user("b"), call], [(2, ("r1", "main"))])
    assert [item.type for item in log] == ["message", "message", "function_call"]


@pytest.mark.parametrize("raw", [b"nothing", b'"text"', b'{"type": ', b"\xff"])
def test_an_unknown_item_whose_bytes_cannot_be_read_does_not_come_in(raw: bytes) -> None:
    with pytest.raises(ForgedEvent, match="something else than it says"):
        admit([Opaque(raw=raw, type="web_search_call", id="i")], entry="history")


class LogModel(RuleBasedStateMachine):
    """Logs against plain lists of items with their origins."""

    logs = Bundle("logs")
    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[int, list[tuple[Item, tuple[str, str] | None]]] = {}
        self.alive: list[ItemLog] = []
        self.kept: list[tuple[ItemView, list[Item]]] = []

    def adopt(self, log: ItemLog, items: list[tuple[Item, tuple[str, str] | None]]) -> ItemLog:
        self.alive.append(log)
        self.expected[id(log)] = items
        return log

    @initialize(target=logs)
    def start(self) -> ItemLog:
        return self.adopt(ItemLog(), [])

    @rule(log=logs, branch=st.sampled_from(["a", "a.b", "a.bc", ""]), run=st.sampled_from(["r", "s"]))
    def move(self, log: ItemLog, branch: str, run: str) -> None:
        log.origin = (run, branch)

    @rule(log=logs, kind=st.sampled_from("mcor"), number=st.integers(0, 5))
    def append(self, log: ItemLog, kind: str, number: int) -> None:
        items = [item for item, _ in self.expected[id(log)]]
        calls = {item.call_id for item in items if isinstance(item, FunctionCall)}
        outputs = {item.call_id for item in items if isinstance(item, FunctionCallOutput)}
        item = MAKERS[kind](str(number))
        if isinstance(item, FunctionCall) and item.call_id in calls:
            with pytest.raises(DuplicateCall):
                log.append(item)
        elif isinstance(item, FunctionCallOutput) and item.call_id not in calls - outputs:
            with pytest.raises(UnpairedOutput):
                log.append(item)
        else:
            log.append(item)
            self.expected[id(log)].append((item, log.origin))

    @rule(target=logs, log=logs)
    def fork(self, log: ItemLog) -> ItemLog:
        return self.adopt(log.fork(), list(self.expected[id(log)]))

    @rule(log=logs, data=st.data())
    def rollback(self, log: ItemLog, data: st.DataObject) -> None:
        mark = data.draw(st.integers(0, len(log)))
        log.rollback(mark)
        del self.expected[id(log)][mark:]

    @rule(log=logs)
    def freeze(self, log: ItemLog) -> None:
        view = log.frozen()
        self.kept.append((view, list(view)))

    @rule(log=logs)
    def render(self, log: ItemLog) -> None:
        view = log.rendered("stopped")
        self.kept.append((view, list(view)))
        assert paired(list(view))
        closed = [item for item in view if item.id.endswith("-closed")]
        assert len(closed) == len(log.open_calls)
        assert [item for item in view if item not in closed] == list(log)

    @rule(log=logs, branch=st.sampled_from(["a", "a.b", "z"]), data=st.data())
    def read(self, log: ItemLog, branch: str, data: st.DataObject) -> None:
        expected = self.expected[id(log)]
        assert list(log.view(branch=branch)) == [i for i, origin in expected if origin and origin[1] == branch]
        assert list(log.view(run_id="r")) == [i for i, origin in expected if origin and origin[0] == "r"]
        assert list(log.view(exclude_run="r")) == [i for i, origin in expected if not origin or origin[0] != "r"]
        piece = data.draw(st.slices(len(expected)))
        assert list(log[piece]) == [i for i, _ in expected][piece]
        mark = data.draw(st.integers(0, len(expected)))
        assert list(log.since(mark)) == [i for i, _ in expected[mark:]]

    @invariant()
    def logs_hold_what_they_should(self) -> None:
        for log in self.alive:
            expected = self.expected[id(log)]
            assert [(item, log.origin_of(i)) for i, item in enumerate(log)] == expected
            assert [log[i] for i in range(len(log))] == list(reversed(list(reversed(log))))
            outputs = {item.call_id for item, _ in expected if isinstance(item, FunctionCallOutput)}
            calls = {item.call_id for item, _ in expected if isinstance(item, FunctionCall)}
            assert set(log.open_calls) == calls - outputs

    @invariant()
    def views_never_change(self) -> None:
        for view, items in self.kept:
            assert list(view) == items
            assert len(view) == len(items)


TestLogModel = LogModel.TestCase


@given(st.lists(st.sampled_from("mcor"), max_size=30))
def test_refusals_leave_the_log_alone(kinds: list[str]) -> None:
    log = ItemLog()
    for kind in kinds:
        before = list(log)
        item = MAKERS[kind]("1")
        try:
            log.append(item)
        except (DuplicateCall, UnpairedOutput):
            assert list(log) == before
        else:
            assert list(log) == [*before, item]


def test_a_notebook_shows_who_says_what() -> None:
    call = FunctionCall(name="look", arguments={"at": "<b>"}, call_id="c")
    view = ItemView(
        [Message.user("a & b"), call, FunctionCallOutput(call_id="c", output="x" * 3000), Reasoning(content="hm")]
    )
    shown: str = view._repr_html_()
    rows = re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", shown)
    assert rows[:2] == [("user", "a &amp; b"), ("call", "look({&quot;at&quot;:&quot;&lt;b&gt;&quot;})")]
    assert rows[2] == ("output", "x" * 2000 + "…")
    assert rows[3][0] == "reasoning"
    many: str = ItemView([Message.user("m")] * 53)._repr_html_()
    assert many.count("<tr>") == 51
    assert "... and 3 more" in many
