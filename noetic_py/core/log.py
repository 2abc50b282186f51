"""The append-only log of a conversation, the views of it, and which items callers may put into it.

A log is a row of segments: lists that only ever grow at their end, each with the length that this log sees of it. A
fork or a frozen view names the same lists and remembers how far they reached, so it costs nothing per item; what
is appended later lies behind the horizon of every other view.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, overload

from attrs import define, field

from noetic_py.core.items import (
    RESERVED_PREFIXES,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    ItemBase,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Role,
)
from noetic_py.core.values import is_array, is_dict, is_list
from noetic_py.errors import DuplicateCall, ForgedEvent, LimitExceeded, NoeticError, UnpairedOutput
from noetic_py.redaction import html_table, with_article

__all__ = ["MAX_ITEMS", "ItemLog", "ItemView", "Origin"]


MAX_ITEMS = 1_000_000
"""The default limit of items in a log."""
# How many items the text of a log or a view shows.
_SHOWN = 50

Origin: TypeAlias = tuple[str, str]
"""Where an item came from: the id of the run and the dotted branch."""

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=ItemBase)

_UNPAIRED = frozenset({Message, Reasoning, Opaque})


class _Segment:
    """A list that one log appends to and many may read, with the places of its calls and the origins of its items."""

    __slots__ = ("calls", "items", "origin_starts", "origins")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.calls: dict[str, tuple[int, FunctionCall]] = {}
        # Run-length encoded: origins[i] holds from origin_starts[i] up to the next start.
        self.origin_starts: list[int] = []
        self.origins: list[Origin | None] = []

    def origin_at(self, index: int) -> Origin | None:
        run = bisect_right(self.origin_starts, index) - 1
        return self.origins[run] if run >= 0 else None

    def add(self, item: Item, origin: Origin | None) -> None:
        if not self.origins or self.origins[-1] != origin:
            self.origin_starts.append(len(self.items))
            self.origins.append(origin)
        self.items.append(item)

    def cut(self, length: int) -> None:
        """Forget the items from `length` on; only for those that no other view can see."""
        for item in self.items[length:]:
            if isinstance(item, FunctionCall):
                del self.calls[item.call_id]
        del self.items[length:]
        while self.origin_starts and self.origin_starts[-1] >= length:
            self.origin_starts.pop()
            self.origins.pop()


_NOTHING = _Segment()
_NO_REASONS: Mapping[str, str] = MappingProxyType({})


def _row(item: Item) -> tuple[str, str]:
    """An item as one row of text: its author and its content."""
    if isinstance(item, Message):
        return item.role, item.text
    if isinstance(item, FunctionCall):
        return "call", f"{item.name}({item.arguments})"
    if isinstance(item, FunctionCallOutput):
        return "output", item.text
    return item.type, repr(item)


class ItemView(Sequence[Item]):
    """A read-only sequence of items, which filters by type, role and origin.

    A slice is a tuple. Filters are looked up when asked for; nothing is copied before.
    """

    # The visible items: `_sealed[i]` up to `_ends[i]`, then `_visible` items of `_segment`.
    __slots__ = ("_base", "_ends", "_sealed", "_segment", "_visible")

    _sealed: tuple[_Segment, ...]
    _ends: tuple[int, ...]
    _base: int
    _segment: _Segment
    _visible: int

    def __init__(self, items: Iterable[Item] = (), /) -> None:
        log = ItemLog(items)
        self._see(log._sealed, log._ends, log._segment, len(log))

    def _see(self, sealed: tuple[_Segment, ...], ends: tuple[int, ...], segment: _Segment, length: int) -> None:
        self._sealed = sealed
        self._ends = ends
        self._base = ends[-1] if ends else 0
        self._segment = segment
        self._visible = length - self._base

    def __len__(self) -> int:
        return self._base + self._visible

    def __repr__(self) -> str:
        shown = [repr(item) for item in self[:_SHOWN]]
        more = len(self) - len(shown)
        if more > 0:
            shown.append(f"... and {more:,} more")
        return f"{type(self).__name__}([{', '.join(shown)}])"

    def _repr_html_(self) -> str:
        """A table with one row an item, which a notebook shows."""
        rows = [_row(item) for item in self[:_SHOWN]]
        more = len(self) - len(rows)
        return html_table([*rows, ("", f"... and {more:,} more")] if more > 0 else rows)

    @overload
    def __getitem__(self, index: int, /) -> Item: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice, /) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return tuple(self._walk(start, stop))
            return tuple([self[i] for i in range(start, stop, step)])
        segment, offset = self._locate(index)
        return segment.items[offset]

    def __iter__(self) -> Iterator[Item]:
        return self._walk(0, len(self))

    def __reversed__(self) -> Iterator[Item]:
        for segment, first, last in reversed(list(self._spans(0, len(self)))):
            for offset in range(last - 1, first - 1, -1):
                yield segment.items[offset]

    @overload
    def view(
        self,
        type: type[ItemT],
        *,
        role: Role | None = None,
        branch: str | None = None,
        branch_prefix: str | None = None,
        run_id: str | None = None,
        exclude_run: str | None = None,
        final: bool | None = None,
    ) -> Sequence[ItemT]: ...
    @overload
    def view(
        self,
        *,
        role: Role | None = None,
        branch: str | None = None,
        branch_prefix: str | None = None,
        run_id: str | None = None,
        exclude_run: str | None = None,
        final: bool | None = None,
    ) -> Sequence[Item]: ...
    def view(
        self,
        type: type[ItemBase] = ItemBase,
        *,
        role: Role | None = None,
        branch: str | None = None,
        branch_prefix: str | None = None,
        run_id: str | None = None,
        exclude_run: str | None = None,
        final: bool | None = None,
    ) -> Sequence[Any]:
        """The items that meet every filter given, in their order.

        Args:
            type: Items of this class.
            role: Messages of this role.
            branch: Items of exactly this branch.
            branch_prefix: Items of this branch and of those below it: `"a.b"` takes `"a.b.c"` and not `"a.bc"`.
            run_id: Items of this run.
            exclude_run: Items that are not of this run.
            final: Answers only, or everything else only: completed assistant messages with text, a picture or a file,
                while no function call waits for its output and none follows in the same answer; and final outputs.
        """
        spans = self._spans(0, len(self))
        if branch is not None or branch_prefix is not None or run_id is not None or exclude_run is not None:
            accepts = partial(
                _comes_from, branch=branch, branch_prefix=branch_prefix, run_id=run_id, exclude_run=exclude_run
            )
            spans = _spans_of(spans, accepts)
        found = chain.from_iterable(segment.items[first:last] for segment, first, last in spans)
        picked = [item for item in found if isinstance(item, type) and (role is None or _has_role(item, role))]
        if final is not None:
            answers = self._answers()
            picked = [item for item in picked if (id(item) in answers) is final]
        return tuple(picked)

    @overload
    def last(self, type: type[ItemT], *, role: Role | None = None) -> ItemT | None: ...
    @overload
    def last(self, *, role: Role | None = None) -> Item | None: ...
    def last(self, type: type[ItemBase] = ItemBase, *, role: Role | None = None) -> Any:
        """The latest item of a class and a role, `None` when there is none."""
        for item in reversed(self):
            if isinstance(item, type) and (role is None or _has_role(item, role)):
                return item
        return None

    @overload
    def last_text(self, role: Role) -> str | None: ...
    @overload
    def last_text(self, role: Role, default: T) -> str | T: ...
    def last_text(self, role: Role, default: object = None) -> object:
        """The first text part of the latest message of `role` that has one; `default` when none has.

        A message without text, such as one that holds only an image, is passed over. An empty text counts as a text.
        """
        for item in reversed(self):
            if isinstance(item, Message) and item.role == role:
                for part in item.content:
                    if isinstance(part, InputText | OutputText):
                        return part.text
        return default

    def snapshot(self) -> list[Item]:
        """A list of the items as they are now; it is the caller's own."""
        return list(self)

    def since(self, mark: int) -> tuple[Item, ...]:
        """The items from position `mark` on; costs what it returns.

        Raises:
            ValueError: `mark` is not a position of this log.
        """
        length = len(self)
        if not 0 <= mark <= length:
            raise ValueError(f"mark {mark} of a log of {length}")
        if mark >= self._base:
            # The most frequent case: the items added last.
            return tuple(self._segment.items[mark - self._base : length - self._base])
        return tuple(self._walk(mark, length))

    def frozen(self) -> ItemView:
        """This view as it is now."""
        return self

    def origin_of(self, index: int) -> Origin | None:
        """The run and branch that item `index` came from, `None` when that is not known."""
        segment, offset = self._locate(index)
        return segment.origin_at(offset)

    def origins(self) -> Sequence[tuple[int, Origin | None]]:
        """Where the items came from, in their order: how many in a row, and of which run and branch."""
        runs = groupby(map(self.origin_of, range(len(self))))
        return [(sum(1 for _ in same), origin) for origin, same in runs]

    @staticmethod
    def of(items: Iterable[Item], /) -> ItemView:
        """Items as a view; unlike the constructor it does not check that calls and outputs fit together."""
        if isinstance(items, ItemView):
            return items.frozen()
        segment = _Segment()
        segment.items = list(items)
        return ItemView._view((), (), segment, len(segment.items))

    @staticmethod
    def _view(sealed: tuple[_Segment, ...], ends: tuple[int, ...], segment: _Segment, length: int) -> ItemView:
        view = ItemView.__new__(ItemView)
        view._see(sealed, ends, segment, length)
        return view

    def _locate(self, index: int) -> tuple[_Segment, int]:
        length = len(self)
        place = index + length if index < 0 else index
        if not 0 <= place < length:
            raise IndexError(f"item {index} of a log of {length}")
        if place >= self._base:
            return self._segment, place - self._base
        at = bisect_right(self._ends, place)
        return self._sealed[at], place - (self._ends[at - 1] if at else 0)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[_Segment, int, int]]:
        """The pieces of segments that make up the items from `start` to `stop`."""
        at = bisect_right(self._ends, start)
        offset = self._ends[at - 1] if at else 0
        for segment, end in zip(self._sealed[at:], self._ends[at:], strict=True):
            if start >= stop:
                return
            yield segment, start - offset, min(stop, end) - offset
            start = offset = end
        if start < stop:
            yield self._segment, start - offset, stop - offset

    def _walk(self, start: int, stop: int) -> Iterator[Item]:
        # Slices rather than islice, which would count its way to the start.
        if start >= self._base:
            return iter(self._segment.items[start - self._base : max(start, stop) - self._base])
        return chain.from_iterable(segment.items[first:last] for segment, first, last in self._spans(start, stop))

    def _answers(self) -> set[int]:
        """The identities of the messages that are final where they stand."""
        answers: set[int] = set()
        waiting: set[str] = set()
        latest: Item | None = None
        for item in self:
            if isinstance(item, FunctionCall):
                waiting.add(item.call_id)
                if isinstance(latest, Message):
                    answers.discard(id(latest))
            elif isinstance(item, FunctionCallOutput):
                waiting.discard(item.call_id)
                if item.final:
                    answers.add(id(item))
            elif item.is_final and not waiting:
                answers.add(id(item))
            # Reasoning may stand between an announcement and its call.
            if not isinstance(item, Reasoning):
                latest = item
        return answers


class ItemLog(ItemView):
    """The log of a conversation: items are appended and never changed.

    Every function call in it has at most one output, and every output stands behind its call.

    Args:
        items: What it holds at the start.
        max_items: How many items it may hold.
        origin: The run and branch of what is appended.

    Raises:
        DuplicateCall: Two calls have the same `call_id`.
        UnpairedOutput: An output has no open call in front of it.
        LimitExceeded: There are more than `max_items`.
        TypeError: Something is not an item.
    """

    # `_tail` is the own segment's list and `_room` how long it may get, `_shared` how much of it other views may see,
    # `_stamp` the origin that its latest items have.
    __slots__ = ("_max_items", "_open", "_room", "_shared", "_stamp", "_tail", "origin", "size")

    origin: Origin | None
    """The run and branch of whatever is appended from now on."""
    size: int
    """The number of items, as an attribute: faster than `len` for callers that read it at every step."""

    def __init__(
        self, items: Iterable[Item] = (), /, *, max_items: int = MAX_ITEMS, origin: Origin | None = None
    ) -> None:
        self.origin = origin
        self._max_items = max_items
        self._open: dict[str, FunctionCall] = {}
        self._begin((), ())
        self.extend(items)

    def _begin(self, sealed: tuple[_Segment, ...], ends: tuple[int, ...]) -> None:
        # A log that nothing was appended to yet shares the empty segment: most forks only ever read.
        self._sealed = sealed
        self._ends = ends
        self._base = self.size = ends[-1] if ends else 0
        self._segment = _NOTHING
        self._visible = 0
        self._tail = _NOTHING.items
        self._room = 0
        self._stamp: Origin | None = None
        self._shared = 0

    def _grow(self) -> list[Item]:
        """The list to append to, when there seems to be no room: an own one now, unless the log is really full."""
        if self.size >= self._max_items:
            raise LimitExceeded("log length", self._max_items)
        self._segment = _Segment()
        self._tail = self._segment.items
        self._room = self._max_items - self._base
        return self._tail

    def __len__(self) -> int:
        return self.size

    @property
    def max_items(self) -> int:
        """How many items the log may hold."""
        return self._max_items

    def append(self, item: Item, /) -> None:
        """Add an item at the end.

        Raises:
            DuplicateCall: The log already holds a call with this `call_id`.
            UnpairedOutput: No call with this `call_id` waits for its output.
            LimitExceeded: The log is full.
            TypeError: This is not an item.
        """
        tail = self._tail
        if len(tail) >= self._room:
            tail = self._grow()
        if item.__class__ not in _UNPAIRED:
            self._admit(item)
        if self.origin is not self._stamp:
            self._stamp = self.origin
            self._segment.origin_starts.append(len(tail))
            self._segment.origins.append(self._stamp)
        tail.append(item)
        self.size += 1

    def extend(self, items: Iterable[Item], /) -> None:
        """Add items at the end: all of them or, when one is refused, none.

        Raises:
            DuplicateCall: The log already holds a call with this `call_id`.
            UnpairedOutput: No call with this `call_id` waits for its output.
            LimitExceeded: There is no room for all of them.
            TypeError: Something is not an item.
        """
        added = tuple(items)
        mark = len(self)
        try:
            for item in added:
                self.append(item)
        except BaseException:
            self.rollback(mark)
            raise

    def put(self, items: Iterable[Item], origins: Iterable[tuple[int, Origin | None]], /) -> None:
        """Add items at the end that came from elsewhere: all of them or, when one is refused, none.

        Args:
            items: The items.
            origins: Where they came from, as `origins()` of a log says it; of those behind, it is not known.

        Raises:
            DuplicateCall: The log already holds a call with this `call_id`.
            UnpairedOutput: No call with this `call_id` waits for its output.
            LimitExceeded: There is no room for all of them.
            TypeError: Something is not an item.
        """
        added, mark, own = tuple(items), len(self), self.origin
        start = 0
        try:
            for count, origin in (*origins, (len(added), None)):
                self.origin = origin
                self.extend(added[start : start + count])
                start += count
        except BaseException:
            self.rollback(mark)
            raise
        finally:
            self.origin = own

    def _admit(self, item: object) -> None:
        """Check an item that may be half of a pair, and note where it will stand."""
        if isinstance(item, FunctionCall):
            if self._find(item.call_id) is not None:
                raise DuplicateCall(item.call_id)
            self._segment.calls[item.call_id] = len(self._tail), item
            self._open[item.call_id] = item
        elif isinstance(item, FunctionCallOutput):
            if self._open.pop(item.call_id, None) is None:
                raise UnpairedOutput(item.call_id)
        elif not isinstance(item, ItemBase):
            raise TypeError(f"a log holds items, not {type(item).__name__}")

    def has_call(self, call_id: str) -> bool:
        """Whether a call with this id is in the log, open or not."""
        return self._find(call_id) is not None

    def _find(self, call_id: str) -> tuple[int, FunctionCall] | None:
        """The call with this id and where it stands, as far as this log sees."""
        found = self._segment.calls.get(call_id)
        if found is not None:
            return self._base + found[0], found[1]
        start = 0
        for segment, end in zip(self._sealed, self._ends, strict=True):
            found = segment.calls.get(call_id)
            if found is not None and start + found[0] < end:
                return start + found[0], found[1]
            start = end
        return None

    @property
    def open_calls(self) -> Mapping[str, FunctionCall]:
        """The calls that have no output yet, by `call_id`; a live view."""
        return MappingProxyType(self._open)

    def mark(self) -> int:
        """The present position, for `since` and `rollback`."""
        return len(self)

    def rollback(self, mark: int) -> None:
        """Go back to an earlier position; forks and frozen views keep what they saw.

        Raises:
            ValueError: `mark` is not a position of this log.
        """
        dropped = self.since(mark)
        if not dropped:
            return
        answered = [self._find(item.call_id) for item in dropped if isinstance(item, FunctionCallOutput)]
        for _, call in filter(None, answered):
            self._open[call.call_id] = call
        for item in dropped:
            if isinstance(item, FunctionCall):
                del self._open[item.call_id]
        kept = mark - self._base
        if kept >= self._shared:
            self._segment.cut(kept)
            self.size = mark
            self._stamp = self._segment.origins[-1] if self._segment.origins else None
        else:
            self._begin(*self._sealed_at(mark))

    def _sealed_at(self, length: int) -> tuple[tuple[_Segment, ...], tuple[int, ...]]:
        """Sealed segments that show the first `length` items."""
        if length > self._base:
            return (*self._sealed, self._segment), (*self._ends, length)
        whole = bisect_right(self._ends, length)
        if whole and self._ends[whole - 1] == length:
            return self._sealed[:whole], self._ends[:whole]
        if length == 0:
            return (), ()
        return self._sealed[: whole + 1], (*self._ends[:whole], length)

    def fork(self) -> Self:
        """A log that starts with what this one holds; from then on neither sees what the other appends."""
        child = type(self).__new__(type(self))
        child.origin = self.origin
        child._max_items = self._max_items
        child._open = self._open.copy()
        if self.size == self._base:
            child._begin(self._sealed, self._ends)
        else:
            self._shared = len(self._tail)
            child._begin((*self._sealed, self._segment), (*self._ends, self.size))
        return child

    def frozen(self) -> ItemView:
        """The current items as a view that never changes; nothing is copied."""
        self._shared = len(self._tail)
        return self._view(self._sealed, self._ends, self._segment, len(self))

    def rendered(self, reason: str, reasons: Mapping[str, str] = _NO_REASONS) -> ItemView:
        """The items as a provider accepts them, each call with its output; the log is not changed.

        A call that is still open is closed by an output that names its reason, right behind the calls and outputs that
        its own call stands among. Its id is made from the call's, so it is the same each time.

        Args:
            reason: Why calls are open.
            reasons: Why some are, by their ids, where that is another reason.
        """
        if not self._open:
            return self.frozen()
        first = min(place for place, _ in filter(None, map(self._find, self._open)))
        closed = _Segment()
        waiting: list[FunctionCallOutput] = []
        for offset, item in enumerate(self.since(first)):
            origin = self.origin_of(first + offset)
            if not isinstance(item, FunctionCall | FunctionCallOutput):
                _drain(waiting, closed)
            closed.add(item, origin)
            if isinstance(item, FunctionCall) and item.call_id in self._open:
                waiting.append(_closing(item, reasons.get(item.call_id, reason)))
        _drain(waiting, closed)
        self._shared = len(self._tail)
        sealed, ends = self._sealed_at(first)
        return self._view(sealed, ends, closed, first + len(closed.items))


def _drain(waiting: list[FunctionCallOutput], into: _Segment) -> None:
    for output in waiting:
        into.add(output, into.origins[-1])
    waiting.clear()


def _closing(call: FunctionCall, reason: str) -> FunctionCallOutput:
    return FunctionCallOutput(
        id=f"{call.id}-closed", call_id=call.call_id, output=f"Not finished: {reason}", status="incomplete"
    )


def _has_role(item: ItemBase, role: Role) -> bool:
    return isinstance(item, Message) and item.role == role


def _spans_of(
    spans: Iterator[tuple[_Segment, int, int]], accepts: Callable[[Origin | None], bool]
) -> Iterator[tuple[_Segment, int, int]]:
    """The parts of spans whose origin is accepted."""
    for segment, start, last in spans:
        first = start
        starts = segment.origin_starts
        run = bisect_right(starts, first) - 1
        while first < last:
            end = min(last, starts[run + 1]) if run + 1 < len(starts) else last
            if accepts(segment.origins[run] if run >= 0 else None):
                yield segment, first, end
            first, run = end, run + 1


def _comes_from(
    origin: Origin | None, *, branch: str | None, branch_prefix: str | None, run_id: str | None, exclude_run: str | None
) -> bool:
    if origin is None:
        return branch is None and branch_prefix is None and run_id is None
    from_run, from_branch = origin
    return (
        (run_id is None or from_run == run_id)
        and (exclude_run is None or from_run != exclude_run)
        and (branch is None or from_branch == branch)
        and (branch_prefix is None or _below(from_branch, branch_prefix))
    )


def _below(branch: str, prefix: str) -> bool:
    return not prefix or branch == prefix or branch.startswith(f"{prefix}.")


# Calls of a provider's that a program executes; all others the provider has executed itself when it tells of them.
_OPEN_CALLS: Final = frozenset(
    {"apply_patch_call", "computer_call", "custom_tool_call", "local_shell_call", "mcp_tool_call", "shell_call"}
)
_OUTPUT: Final = "_output"
# Fields in which other interfaces carry calls, and the ends of the names of parts that do.
_CALL_FIELDS: Final = frozenset({"function_call", "tool_call", "tool_call_id", "tool_calls", "tool_result", "tool_use"})
_MAX_RAW: Final = 32 * 1024 * 1024


def admit(items: Sequence[object], *, entry: str, known: Iterable[ItemBase] = (), path: tuple[str, ...] = ()) -> None:
    """Refuse items from outside of which one is not to come from there.

    Args:
        items: All of them, in order; the caller refuses what is not an item.
        entry: Where they come in, for the error.
        known: Those among them that were there before, and may be what they are; an open call among these stays open.
        path: The step that they come to.

    Raises:
        ForgedEvent: One of them is a call that has no output, an output that has no call or that answers a call which
            was open before, an approval, or of a type that is the library's own.
    """
    before = tuple(known)
    check = _Check(entry, path, {id(item) for item in before})
    open_before = _open_among(before)
    for index, item in enumerate(items):
        # Most of a history is plain messages, which can do nothing.
        if isinstance(item, ItemBase) and (item.__class__ is not Message or item.extra is not None):
            check.item(index, item)
    for index, item in check.waiting.values():
        if id(item) not in open_before:
            raise check.forged(index, item, "waits to be executed: its output is missing")


def admit_value(value: object, *, entry: str, path: tuple[str, ...] = ()) -> None:
    """Refuse a value from outside that is such an item, or a list that holds one.

    Raises:
        ForgedEvent: It is one.
    """
    if isinstance(value, ItemBase):
        admit((value,), entry=entry, path=path)
    elif is_array(value):
        admit(value, entry=entry, path=path)


Pair: TypeAlias = "tuple[str, str]"


@define
class _Check:
    """One look at a conversation, from its beginning to its end."""

    entry: str
    path: tuple[str, ...]
    trusted: set[int]
    waiting: dict[Pair, tuple[int, ItemBase]] = field(factory=dict[Pair, "tuple[int, ItemBase]"])
    seen: set[Pair] = field(factory=set[Pair])

    def item(self, index: int, item: ItemBase) -> None:
        """Take one item in.

        Raises:
            ForgedEvent: It is not to come from outside.
        """
        if id(item) not in self.trusted:
            why = _refused_alone(item)
            if why is not None:
                raise self.forged(index, item, why)
        kind, key = _half(item)
        if kind == "call":
            if key in self.seen:
                raise self.forged(index, item, "has the id of an earlier call")
            self.seen.add(key)
            self.waiting[key] = index, item
        elif kind == "output":
            _, call = self.waiting.pop(key, (0, None))
            if call is None:
                raise self.forged(index, item, "answers no call before it")
            if id(call) in self.trusted and id(item) not in self.trusted:
                raise self.forged(index, item, "answers a call that only its tool can answer")

    def forged(self, index: int, item: ItemBase, why: str) -> ForgedEvent:
        """The error."""
        where = "the input" if self.entry == "input" else f"the {self.entry}'s items"
        return ForgedEvent(
            f"item {index} of {where}, {with_article(repr(item.type)[:60])}, {why}",
            entry=self.entry,
            index=index,
            kind=item.type,
            path=self.path,
        )


def _open_among(items: Sequence[ItemBase]) -> set[int]:
    """The identities of the calls that have no output."""
    calls: dict[Pair, int] = {}
    for item in items:
        kind, key = _half(item)
        if kind == "call":
            calls[key] = id(item)
        elif kind == "output":
            calls.pop(key, None)
    return set(calls.values())


def _half(item: ItemBase) -> tuple[Literal["call", "output", None], Pair]:
    """The pair that an item belongs to, and which half it is."""
    if isinstance(item, FunctionCall):
        return "call", ("function_call", item.call_id)
    if isinstance(item, FunctionCallOutput):
        return "output", ("function_call", item.call_id)
    if isinstance(item, Opaque):
        call = item.type.removesuffix(_OUTPUT)
        if call in _OPEN_CALLS:
            raw = _raw(item) or {}
            return "call" if call == item.type else "output", (call, str(raw.get("call_id")))
    return None, ("", "")


def _refused_alone(item: ItemBase) -> str | None:
    """Why an item cannot come from outside, whatever stands beside it."""
    kind = item.type.strip().lower()
    if kind.partition(":")[0] in RESERVED_PREFIXES:
        return "is of a type that is the library's own"
    if item.extra is not None and not _CALL_FIELDS.isdisjoint(item.extra):
        return "carries calls in fields that have no name here"
    return _refused_raw(item, kind) if isinstance(item, Opaque) else None


def _refused_raw(item: Opaque, kind: str) -> str | None:
    raw = _raw(item)
    if raw is None or raw.get("type", "message") != item.type:
        return "is something else than it says"
    if "approval" in kind or "confirmation" in kind:
        return "is an approval, which only its addressee can give"
    if kind.startswith("function_call"):
        return "is a call or an output that cannot be read"
    if kind != item.type or (kind.endswith(_OUTPUT) and kind.removesuffix(_OUTPUT) not in _OPEN_CALLS):
        return "is an output of no known call"
    content = raw.get("content")
    parts = content if is_list(content) else []
    inside = {str(part.get("type")) for part in parts if is_dict(part)}
    if not _CALL_FIELDS.isdisjoint(raw) or not _CALL_FIELDS.isdisjoint(inside):
        return "carries calls inside"
    return None


def _raw(item: Opaque) -> dict[str, object] | None:
    from noetic_py.core.codec.structure import parse

    try:
        found: object = parse(item.raw, _MAX_RAW, "item size")
    except NoeticError:
        return None
    return found if is_dict(found) else None
