"""How the view of a conversation was changed between two model calls, so that only what changed is stored.

The stored form of a view is a mapping that `memory/view_state.py` makes and reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from noetic_py.core.items import Item
from noetic_py.core.values import is_dict
from noetic_py.journal import values
from noetic_py.journal.fields import ValueKind

ViewState = Mapping[str, Any]
"""The stored form of a view; empty where nothing was decided for it."""


@frozen
class ViewChange:
    """How a view differs from an earlier one.

    Attributes:
        after: The model call of the earlier one, `None` for the view that the run began with.
        put: What is new or different.
        gone: What is there no more.
    """

    after: tuple[str, ...] | None
    put: ViewState
    gone: Sequence[str] = ()

    def applied(self, before: ViewState) -> ViewState:
        """The view, from the earlier one."""
        return {**{key: value for key, value in before.items() if key not in self.gone}, **self.put}


def views_in(records: Iterable[Any], begun: ViewState) -> Iterator[tuple[tuple[str, ...], ViewState]]:
    """The views of a journal with the model calls that they were made for; of a call that was discarded too.

    Args:
        records: The journal.
        begun: The view that the run began with.
    """
    found: dict[tuple[str, ...] | None, ViewState] = {None: begun}
    for record in records:
        change: ViewChange | None = getattr(record, "view", None)
        if isinstance(change, ViewChange):
            found[record.path] = change.applied(found.get(change.after, {}))
            yield record.path, found[record.path]


def last_views(records: Iterable[Any], begun: ViewState) -> dict[tuple[str, ...] | None, ViewState]:
    """The last view of each model call in a journal, and under `None` the one that the run began with."""
    return {None: begun, **dict(views_in(records, begun))}


def view_change(before: ViewState, now: ViewState, after: tuple[str, ...] | None = None) -> ViewChange | None:
    """How two views differ; `None` when they do not."""
    put = {key: value for key, value in now.items() if key not in before or before[key] != value}
    gone = [key for key in before if key not in now]
    return ViewChange(after, put, gone) if put or gone else None


def _write(change: ViewChange | None, _: object) -> Any:
    return None if change is None else {"of": change.after, "put": change.put, "gone": [*change.gone]}


def _read(tree: Any, _: object) -> ViewChange:
    of = tree["of"]
    return ViewChange(None if of is None else tuple(of), tree["put"], tuple(tree["gone"]))


VIEW = ValueKind(
    "an object of of, put and gone",
    values.object_of(
        {
            "of": lambda path: path is None or values.is_path(path),
            "put": is_dict,
            "gone": values.each_of(values.is_text),
        }
    ),
    _write,
    _read,
)


def item_mark(item: Item) -> str:
    """Stands for the content of an item, whatever its id is."""
    return values.digest_of(repr(evolve(item, id="")).encode(errors="surrogatepass"))


def clipped(state: ViewState, items: Sequence[Item]) -> ViewState:
    """A view of a conversation of which no more than these items at the start are left as they were."""
    if not state or len(items) >= state["shown"][0]:
        return state
    _, cut, end, first, _, first_round, repeated = state["shown"]
    last = item_mark(items[-1]) if items else ""
    return {**state, "shown": [len(items), cut, end, first, last, first_round, repeated]}
