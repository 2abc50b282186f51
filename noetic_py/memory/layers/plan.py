"""`Plan`: an ordered list of what is to be done, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from attrs import evolve, frozen

from noetic_py.memory.functions import function
from noetic_py.memory.layer import MemoryLayer, Returned
from noetic_py.memory.layers import common

PlanStatus: TypeAlias = Literal["pending", "in_progress", "done", "dropped"]
"""How far an item has come."""

_BOXES: Final[Mapping[PlanStatus, str]] = {"pending": "[ ]", "in_progress": "[~]", "done": "[x]", "dropped": "[-]"}


@frozen
class PlanItem:
    """Something to do.

    Attributes:
        text: What.
        place: Its place in the plan.
        status: How far it has come.
        note: What came of it, or why it was dropped.
    """

    text: str
    place: int
    status: PlanStatus = "pending"
    note: str = ""


class Plan(MemoryLayer[dict[str, PlanItem]]):
    """A plan that the model makes, works through and always sees, as a checklist.

        class Mem(Memory):
            plan: Plan = Plan()

        await ctx.memory.plan.set_plan(["read the report", "write the summary"])
        await ctx.memory.plan.complete("1", note="12 pages")

    An item's id is its place and a short digest of its text, so that ids from parallel paths stay right after the join.
    Where one item is at a place, its place alone names it. A child begins with the plan of its parent, and what it
    changes of it is merged into the parent's when it has succeeded.

    Attributes:
        max_items: How many items a plan may have.
        max_characters: How long the text and the note of an item may be; what is longer is cut.
        children: What is taken of a child that has succeeded: what it has changed of the plan, or nothing.

    Raises:
        ConfigError: A setting is wrong; code `"plan"`.
    """

    max_items: int = 50
    max_characters: int = 500
    children: common.MergeMode = "merge"

    def __attrs_post_init__(self) -> None:
        common.check_counts(self, "plan", max_items=self.max_items, max_characters=self.max_characters)
        common.is_one_of(self, "plan", "children", self.children, ("merge", "ignore"))

    @property
    def items(self) -> Mapping[str, PlanItem]:
        """The items by id, in the plan's order."""
        state = self.state
        return {key: state[key] for key in sorted(state, key=lambda key: (state[key].place, key))}

    @property
    def finished(self) -> bool:
        """Whether there is a plan, and nothing of it is left to do."""
        return bool(self.state) and all(item.status in ("done", "dropped") for item in self.state.values())

    @function
    async def set_plan(self, items: Sequence[str]) -> list[str]:
        """Make a new plan, in place of the old one, and return the ids of its items.

        Args:
            items: What is to be done, in order, a short sentence each.

        Raises:
            ToolArgumentsInvalid: There are too many, or one is blank; the plan is as it was then.
        """
        self._check_count("set_plan", len(items))
        made = [PlanItem(self._text("set_plan", text), place) for place, text in enumerate(items, start=1)]
        self.state = {_key(item): item for item in made}
        return list(self.state)

    @function
    async def add(self, item: str) -> str:
        """Add an item at the end of the plan, and return its id.

        Args:
            item: What is to be done besides.

        Raises:
            ToolArgumentsInvalid: The plan is full, or the item blank.
        """
        self._check_count("add", len(self.state) + 1)
        place = 1 + max((each.place for each in self.state.values()), default=0)
        made = PlanItem(self._text("add", item), place)
        key = _key(made)
        self.state = {**self.state, key: made}
        return key

    @function
    async def complete(self, id: str, note: str = "") -> str:
        """Mark an item as done.

        Args:
            id: The item's id, or its place.
            note: What came of it, in a few words.

        Raises:
            ToolArgumentsInvalid: There is no such item.
        """
        return self._change("complete", id, "done", None, note or None)

    @function
    async def update(
        self, id: str, status: PlanStatus | None = None, text: str | None = None, note: str | None = None
    ) -> str:
        """Change an item: what is not given stays.

        Args:
            id: The item's id.
            status: How far it has come.
            text: What is to be done instead.
            note: A remark about it.

        Raises:
            ToolArgumentsInvalid: There is no such item, or the new text is blank.
        """
        return self._change("update", id, status, text, note)

    async def recall(self, query: str, budget: int) -> str | None:
        """The plan as a checklist; what is open comes first where there is no room for all."""
        lines = {key: _line(key, item) for key, item in self.items.items()}
        ranked = list(lines)
        if not common.fits(self, list(lines.values()), budget):
            ranked.sort(key=lambda key: self.state[key].status not in ("pending", "in_progress"))
        return common.within(self, [lines[key] for key in ranked], budget) or None

    def merge(
        self, base: dict[str, PlanItem], mine: dict[str, PlanItem], theirs: dict[str, PlanItem]
    ) -> dict[str, PlanItem]:
        """The items that either has; of one that both have changed what the later has made of it."""
        plan: dict[str, PlanItem] = common.latest(base, mine, theirs)
        return plan

    async def on_return(self, child: Returned[dict[str, PlanItem]]) -> None:
        """The changes of the child, if `children` takes them over."""
        if self.children == "merge":
            plan = common.merged(self.state, child, child.state)
            self._check_count("on_return", len(plan))
            self.state = plan

    def _change(self, name: str, id: str, status: PlanStatus | None, text: str | None, note: str | None) -> str:
        # An item's place is enough where it is the only one there.
        at_place = [key for key in self.state if key.partition("-")[0] == id]
        key = at_place[0] if len(at_place) == 1 else id
        item = self.state.get(key)
        if item is None:
            known = ", ".join(self.items) or "none, as there is no plan"
            raise common.refused(self, name, f"the plan has no item {common.one_line(id, 40)!r}; the ids are {known}")
        changed = evolve(
            item,
            status=status or item.status,
            text=item.text if text is None else self._text(name, text),
            note=item.note if note is None else common.one_line(note, self.max_characters),
        )
        self.state = {**self.state, key: changed}
        return _line(key, changed)

    def _check_count(self, name: str, count: int) -> None:
        if count > self.max_items:
            raise common.refused(self, name, f"a plan has {self.max_items} items at most, not {count}")

    def _text(self, name: str, text: str) -> str:
        if not text.strip():
            raise common.refused(self, name, "an item of a plan is not blank")
        return common.one_line(text, self.max_characters)


def _key(item: PlanItem) -> str:
    """An item's id: paths that run at once plan and add at one place, and their texts keep the items apart."""
    return f"{item.place}-{sha256(item.text.encode(errors='replace')).hexdigest()[:4]}"


def _line(key: str, item: PlanItem) -> str:
    return f"{_BOXES[item.status]} {key}: {item.text}{f' ({item.note})' if item.note else ''}"
