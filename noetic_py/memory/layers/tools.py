"""`ToolMemory`: which tools were called with what, and what they gave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from attrs import evolve, field, frozen

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item
from noetic_py.core.reducers import by_key, reducer
from noetic_py.errors import NoContextError
from noetic_py.memory.functions import functions_of
from noetic_py.memory.layer import MemoryLayer, Recall, Returned, layers_of
from noetic_py.memory.layers import common
from noetic_py.memory.scopes import Slot
from noetic_py.models.model import ModelResponse
from noetic_py.tools.definition import wire_name


@frozen
class ToolUse:
    """A call that was made.

    Attributes:
        name: The tool.
        arguments: Its arguments as JSON, cut to the layer's `max_characters`.
        output: What it gave last, likewise.
        number: The calls that were made before, so a greater number is a newer call.
        times: How often it was made with these arguments.
        call_id: The id of the newest of these calls.
    """

    name: str
    arguments: str
    output: str
    number: int
    times: int = 1
    call_id: str = field(default="", eq=False, repr=False)


class ToolMemory(MemoryLayer[dict[str, ToolUse]]):
    """Remembers the calls of tools beyond the part of the conversation that the model still sees.

        class Mem(Memory):
            calls: ToolMemory = ToolMemory(ignore=("send_mail",))

    Calls of one tool with equal arguments are one entry, with the newest output. The oldest go first when there are
    too many, and when a budget has no room for all.

    Attributes:
        only: Names of the tools that are remembered; `None` for all.
        ignore: Names of tools that are not.
        functions: Whether functions of layers are remembered too.
        max_calls: How many calls are remembered.
        max_characters: How much of arguments and of an output is kept.
        children: What is taken of a child that has succeeded: its calls, or nothing.

    Raises:
        ConfigError: A setting is wrong; code `"tool-memory"`.
    """

    only: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    functions: bool = False
    max_calls: int = 50
    max_characters: int = 500
    children: common.MergeMode = "merge"
    slot: int = Slot.HISTORY

    def __attrs_post_init__(self) -> None:
        common.check_counts(self, "tool-memory", max_calls=self.max_calls, max_characters=self.max_characters)
        if isinstance(self.only, str) or isinstance(self.ignore, str):
            raise common.wrong(self, "only= and ignore= are sequences of names", "tool-memory", 'only=("search",)')
        common.is_one_of(self, "tool-memory", "children", self.children, ("merge", "ignore"))

    @property
    def calls(self) -> Sequence[ToolUse]:
        """The remembered entries, newest first."""
        return _newest_first(self.state)

    async def after_tool_call(self, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
        """Remembers the call and what it gave."""
        if self._is_wanted(call.name):
            arguments = _as_sent(call.arguments)
            key = sha256(f"{call.name}\0{arguments}".encode(errors="replace")).hexdigest()[:32]
            known = self.state.get(key)
            use = ToolUse(
                call.name,
                common.one_line(arguments, self.max_characters),
                common.one_line(output.text, self.max_characters),
                1 + max((each.number for each in self.state.values()), default=0),
                1 if known is None else known.times + 1,
                output.call_id,
            )
            self.state = self._newest({**self.state, key: use})
        return output

    def _is_wanted(self, name: str) -> bool:
        if name in self.ignore or (self.only is not None and name not in self.only):
            return False
        return self.functions or name not in self._functions()

    def _functions(self) -> set[str]:
        try:
            layers = layers_of(self.ctx.memory).values()
        except NoContextError:
            return set()
        names = [f"{layer.id}/{made.name}" for layer in layers for made in functions_of(type(layer)).values()]
        return {*names, *map(wire_name, names)}

    async def store(self, response: ModelResponse) -> None:
        """Lets go of what is too much: calls that were made at once have not seen each other."""
        if len(self.state) > self.max_calls:
            self.state = self._newest(self.state)

    async def recall(self, query: str, budget: int) -> Recall:
        """The calls that the conversation does not show any more, the newest first, as many as there is room for."""
        calls = self.calls

        def unseen(shown: Sequence[Item]) -> str:
            there = {item.call_id for item in shown if isinstance(item, FunctionCallOutput)}
            left = [use for use in calls if use.call_id not in there]
            lines = [f"{use.name}({use.arguments}){_times(use)} gave: {use.output}" for use in left]
            return common.within(self, lines, budget)

        return Recall(unseen)

    def merge(
        self, base: dict[str, ToolUse], mine: dict[str, ToolUse], theirs: dict[str, ToolUse]
    ) -> dict[str, ToolUse]:
        """The calls of both; a call that both have made is counted for both."""
        return self._newest(_BY_KEY.apply(base, mine, theirs))

    async def on_return(self, child: Returned[dict[str, ToolUse]]) -> None:
        """The child's calls, where `children` says so."""
        if self.children == "merge":
            self.state = self._newest(common.merged(self.state, child, child.state))

    def _newest(self, uses: Mapping[str, ToolUse]) -> dict[str, ToolUse]:
        if len(uses) <= self.max_calls:
            return dict(uses)
        kept = set(sorted(uses, key=lambda key: (-uses[key].number, key))[: self.max_calls])
        return {key: use for key, use in uses.items() if key in kept}


def _of_both(base: ToolUse | None, mine: ToolUse, theirs: ToolUse) -> ToolUse:
    newer = theirs if theirs.number > mine.number else mine
    return evolve(newer, times=theirs.times + mine.times - (0 if base is None else base.times))


_BY_KEY: Final = by_key(reducer(_of_both, later=True))


def _newest_first(uses: Mapping[str, ToolUse]) -> list[ToolUse]:
    return [uses[key] for key in sorted(uses, key=lambda key: (-uses[key].number, key))]


def _as_sent(arguments: str) -> str:
    """Arguments in one form, whatever the order and the blanks in which they were sent."""
    try:
        return common.canonical(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments


def _times(use: ToolUse) -> str:
    return "" if use.times == 1 else f" ({use.times} times)"
