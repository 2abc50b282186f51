"""A view as it is stored: what the next one goes on from, and the account of what the model was shown.

The stored form is a mapping, so that a view is stored as what is different from the one before: the pinned blocks when
an epoch begins, the other blocks of layers when they change, and some numbers. It does not hold the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import frozen

from noetic_py.core.codec import Codec
from noetic_py.core.items import Item, JsonValue
from noetic_py.core.view import BlockKind, Dropped, LayerUsage, ViewAccount, ViewBlock
from noetic_py.journal.changes import ViewState
from noetic_py.journal.values import read_items, write_items
from noetic_py.memory.blocks import LayerBlock, Part, PlacedPart, mark_of
from noetic_py.memory.history import Anchors, Habit, HistoryListing, Pin, listing_of
from noetic_py.memory.projector import NOT_RECORDED, HeadMark, LastView, Made, Projector, Recorded

# Items of layers are of the library's own types.
_CODEC: Final = Codec()
_VERSION: Final = 1
_GONE: Final = "it was pinned in an earlier turn, and the session is gone"
_FLAGS: Final = ("fluid", "volatile", "restless")
_ACCOUNT: Final = ("account", "live ", "supersede ")


def view_state(projector: Projector) -> ViewState:
    """The last view of a projector in its stored form; empty when nothing was decided for it.

    Nothing is decided in a conversation without layers that has room in the window.
    """
    made, shown, before = projector.made, projector.shown, projector.recorded.state
    if made is None or shown is None:
        return before
    anchors = projector.anchors
    if not anchors.habits and not shown.cut and not shown.narrowed:
        return {}
    state: dict[str, JsonValue] = {
        "version": _VERSION,
        "epoch": [anchors.number, anchors.reason, anchors.assemblies, anchors.due, anchors.paid],
        "head": [shown.head.model, shown.head.counter, shown.head.instructions, shown.head.tools],
        "shown": [
            shown.size, shown.cut, shown.end, shown.first, shown.last, shown.first_round, shown.repeated,
        ],
        "placed": [_placed(each, at < shown.kept or each.place == shown.cut) for at, each in enumerate(shown.placed)],
        "order": [pin.block.layer for pin in anchors.pins],
        "account": _account(made),
    }  # fmt: skip
    for layer, habit in anchors.habits.items():
        flags = sum(getattr(habit, name) << place for place, name in enumerate(_FLAGS)) | habit.stirs << len(_FLAGS)
        state[f"habit {layer}"] = [habit.mark, habit.changes, flags]
    for pin in anchors.pins:
        key = f"pin {pin.block.layer}"
        # What is pinned is mostly what was pinned before.
        state[key] = before[key] if key in before and pin in projector.recorded.pins else _pin(pin)
    for each in shown.placed:
        state[f"{each.part.kind} {each.part.layer}"] = _part(each.part, None)
    if shown.kept:
        state["kept"] = shown.kept
    if shown.narrowed:
        _put_listing(state, projector, made)
    return state


def record_view(projector: Projector, path: tuple[str, ...] | None) -> Recorded:
    """Note the last view of a projector as recorded; returns the record before it."""
    before = projector.recorded
    projector.recorded = Recorded(path, view_state(projector), projector.anchors.pins)
    return before


def projector_from(view: object) -> Projector:
    """The projector for the next view of a conversation.

    Args:
        view: The last one: its projector, its record, or `None` where there was none.

    Raises:
        CodecError: The record cannot be read.
    """
    if isinstance(view, Projector):
        return view.fork()
    if not isinstance(view, Recorded):
        return Projector()
    return restored(view.state, view.path)


def recorded_of(view: object) -> Recorded:
    """The record of a view; one that is not recorded yet is put into its stored form."""
    if isinstance(view, Recorded):
        return view
    return Recorded(None, view_state(view)) if isinstance(view, Projector) else NOT_RECORDED


def decisive(state: ViewState) -> ViewState:
    """What the next view of the conversation goes on from, without the account of this one."""
    return {key: value for key, value in state.items() if not key.startswith(_ACCOUNT)}


def restored(state: ViewState, path: tuple[str, ...] | None = None) -> Projector:
    """A projector that goes on from a stored view, or begins anew where a later version has stored it.

    Raises:
        CodecError: It cannot be read.
    """
    stored: Mapping[str, Any] = state
    if stored.get("version") != _VERSION:
        projector = Projector()
        projector.recorded = Recorded(path, state)
        return projector
    anchors = Anchors([_read_pin(stored[f"pin {layer}"], layer) for layer in stored["order"]])
    anchors.number, anchors.reason, anchors.assemblies, anchors.due, anchors.paid = stored["epoch"]
    for key, value in stored.items():
        if key.startswith("habit "):
            mark, changes, flags = value
            said = {name: bool(flags >> place & 1) for place, name in enumerate(_FLAGS)}
            anchors.habits[key.removeprefix("habit ")] = Habit(mark, changes, **said, stirs=flags >> len(_FLAGS))
    size, cut, end, first, last, first_round, repeated = stored["shown"]
    listing = partial(_listing, stored) if "list" in stored else None
    placed = [
        PlacedPart(place, _known_part(stored, kind, layer), *mark) for place, kind, layer, *mark in stored["placed"]
    ]
    shown = LastView(
        HeadMark(*stored["head"]), [pin.part for pin in anchors.pins], size, cut, end, placed, first, last, first_round,
        repeated, listing is not None, stored.get("kept", 0), listing,
    )  # fmt: skip
    projector = Projector(anchors, shown)
    projector.recorded = Recorded(path, state, anchors.pins)
    return projector


# -------------------------------------------------------------------------------- blocks of layers


def _pin(pin: Pin) -> JsonValue:
    block = pin.block
    about: JsonValue = [block.slot, block.placement, block.budget, block.tokens, block.volatile]
    items: JsonValue = [*_items(block.items)]
    part = None if pin.part is pin.whole else _part(pin.part, block.items)
    return [about, items, _part(pin.whole, block.items), part]


def _read_pin(tree: Any, layer: str) -> Pin:
    (slot, placement, budget, tokens, volatile), trees, whole, part = tree
    items = read_items(trees, _CODEC)
    block = LayerBlock(layer, slot, items, placement, budget, tokens, volatile)
    read = _read_part(whole, "anchor", layer, items)
    return Pin(block, read, read if part is None else _read_part(part, "anchor", layer, items))


def _pinned_part(stored: Mapping[str, Any], layer: str) -> Part:
    tree = stored.get(f"pin {layer}")
    return Part("anchor", layer, (), 0, 0, _GONE) if tree is None else _read_pin(tree, layer).part


def _placed(each: PlacedPart, marked: bool) -> JsonValue:
    """Where a part stands; with what it says, in short, where the next turn may begin with it."""
    placed = (each.place, each.part.kind, each.part.layer)
    return [*placed, each.mark or mark_of(each.part.items)] if marked else [*placed]


def _part(part: Part, known: Sequence[Item] | None) -> JsonValue:
    """A part in its stored form; items that are stored beside it are left out."""
    items: JsonValue = None if known is not None and part.items == known else [*_items(part.items)]
    return [part.tokens, part.counts, part.why, _dropped(part.dropped), part.note, items]


def _read_part(tree: Any, kind: BlockKind, layer: str, known: Sequence[Item] = ()) -> Part:
    tokens, counts, why, dropped, note, trees = tree
    items = tuple(known) if trees is None else read_items(trees, _CODEC)
    return Part(kind, layer, items, tokens, counts, why, _read_dropped(dropped), note)


def _known_part(stored: Mapping[str, Any], kind: BlockKind, layer: str) -> Part:
    """A part behind the history; without its items where those are of no use any more."""
    tree = stored.get(f"{kind} {layer}")
    return Part(kind, layer, (), 0, 0, "") if tree is None else _read_part(tree, kind, layer)


def _items(items: Iterable[Item]) -> list[Any]:
    return write_items(tuple(items), _CODEC)


def _dropped(dropped: Dropped | None) -> JsonValue:
    return None if dropped is None else [dropped.items, dropped.tokens, dropped.reason]


def _read_dropped(tree: Any) -> Dropped | None:
    return None if tree is None else Dropped(*tree)


# -------------------------------------------------------------------------------- the history


def _put_listing(state: dict[str, JsonValue], projector: Projector, made: Made) -> None:
    before, listed = projector.recorded.state, projector.listed
    known: HistoryListing | None = None
    if "list" in before:
        known = listed[1] if listed is not None and listed[0] is before["list"] else _listing(before)
    listing = listing_of(made.items, made.history, known)
    names = [each.id for each in listing.entries if not isinstance(each, tuple)]
    if listing is known:
        # The list is mostly the one before, with what was said since.
        state |= {key: before[key] for key in ("list", "from", *[f"item {name}" for name in names])}
    else:
        state["list"] = [[*each] if isinstance(each, tuple) else each.id for each in listing.entries]
        state["from"] = listing.start
        literal = {each.id: each for each in listing.entries if not isinstance(each, tuple)}
        for name, item in literal.items():
            [state[f"item {name}"]] = _items([item])
    projector.listed = state["list"], listing


def _listing(stored: Mapping[str, Any]) -> HistoryListing:
    entries: list[Any] = []
    for each in stored["list"]:
        entries += [(each[0], each[1])] if isinstance(each, list) else read_items([stored[f"item {each}"]], _CODEC)
    return HistoryListing(tuple(entries), stored["from"])


# -------------------------------------------------------------------------------- the account


def _account(made: Made) -> JsonValue:
    view = made.view
    rows: JsonValue = [
        [row.kind, row.tokens, row.items, row.why, _dropped(row.dropped), row.note]
        for row in view.blocks
        if row.layer is None
    ]
    counts: JsonValue = {**view.usage.layers}
    return [view.tokens, view.stable, view.moved, counts, rows]


@frozen(eq=False)
class RecordedView:
    """What a model was shown in one call of a stored run.

    Attributes:
        path: The call.
        account: What the request was made of; see [`View`][noetic_py.core.view.View].
        contents: The items of its layers, by the places of their blocks in the account.
    """

    path: tuple[str, ...]
    account: ViewAccount
    contents: Mapping[int, Sequence[Item]]


def is_whole(state: ViewState) -> bool:
    """Whether a stored view is there with all that its account needs."""
    return all(key in state for key in ("epoch", "shown", "placed", "order", "account"))


def recorded_view(path: tuple[str, ...], state: ViewState) -> RecordedView:
    """The account of a stored view.

    Raises:
        CodecError: It cannot be read.
    """
    stored: Mapping[str, Any] = state
    tokens, stable, moved, counts, rows = stored["account"]
    pins = [_pinned_part(stored, layer) for layer in stored["order"]]
    parts = [_known_part(stored, kind, layer) for _, kind, layer, *_ in stored["placed"]]
    own = {
        kind: ViewBlock(kind, None, size, items, why, _read_dropped(dropped), note)
        for kind, size, items, why, dropped, note in rows
    }
    blocks: list[ViewBlock] = [own[kind] for kind in ("system", "tools") if kind in own]
    contents: dict[int, Sequence[Item]] = {}
    for row in (*pins, own.get("history"), *parts, own.get("tail")):
        if isinstance(row, Part):
            contents[len(blocks)] = row.items
            blocks.append(row.described)
        elif row is not None:
            blocks.append(row)
    number, reason, *_ = stored["epoch"]
    sizes = {kind: block.tokens for kind, block in own.items()}
    history = sizes.get("history", 0) + sizes.get("tail", 0)
    around = sizes.get("system", 0) + sizes.get("tools", 0)
    usage = LayerUsage(
        counts, sizes.get("system", 0), sizes.get("tools", 0), history, around + history + sum(counts.values())
    )
    account = ViewAccount(
        usage=usage, tokens=tokens, stable=stable, repeated=stored["shown"][-1], epoch=number, reason=reason,
        moved=moved, blocks=blocks,
    )  # fmt: skip
    return RecordedView(path, account, contents)
