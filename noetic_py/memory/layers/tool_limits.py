"""`ToolLimits`: how often the model may call which tool."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen

from noetic_py.core.items import FunctionCall
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.layers.common import wrong
from noetic_py.memory.scopes import Scope, Slot
from noetic_py.tools.definition import wire_name


@frozen
class CountedCalls:
    """The state of [`ToolLimits`][noetic_py.memory.ToolLimits].

    Attributes:
        calls: How many calls were admitted, by the wire name of the tool; of tools with a limit only.
        total: How many calls of all tools were admitted.
        admitted: The ids of calls that an earlier release has counted when their answer came, before they are made.
    """

    calls: dict[str, int] = field(factory=dict[str, int])
    total: int = 0
    admitted: tuple[str, ...] = ()


class ToolLimits(MemoryLayer[CountedCalls]):
    """Limits how often the model calls a tool; a call above the limit is not made, and the model is told why.

        class Mem(Memory):
            limits: ToolLimits = ToolLimits(limits={"search": 5, "send_mail": 1}, total=20)

    The calls of an answer are counted in their order before the first of them is made, so parallel calls cannot pass a
    limit together. A call that fails, or that an approval or a layer behind this one refuses, counts too; one that a
    hook or a layer before it refuses does not. If a call cannot be counted, it is not made.

    It counts for one run with its children; with another scope for all runs that share the state. Parallel paths, and
    runs at the same time, begin with the same counts, and their calls are added afterwards.

    Attributes:
        limits: How often each tool may be called, by its name; 0 forbids it. Tools without an entry have no limit.
        total: How often tools may be called together; `None` for no limit.

    Raises:
        ConfigError: A setting is wrong; code `"tool-limits"`.
    """

    limits: Mapping[str, int] = {}
    total: int | None = None
    slot: int = Slot.SYSTEM
    scope: Scope = Scope.EXECUTION
    fail_closed: bool = True

    def __attrs_post_init__(self) -> None:
        code = "tool-limits"
        if not self.limits and self.total is None:
            raise wrong(self, "it has no limit", code, 'limits={"search": 5}, or total=20')
        given: list[tuple[str, object]] = [*self._limits.items()]
        if self.total is not None:
            given.append(("total", self.total))
        for name, value in given:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise wrong(self, f"{name}={value!r} is not a valid limit; expected a whole number from 0", code)

    @property
    def _limits(self) -> Mapping[str, int]:
        """The limits by the names that the model knows."""
        return {wire_name(name): limit for name, limit in self.limits.items()}

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
        """Count a call that is within the limits; otherwise the text for the model."""
        counted = self.state
        if call.call_id in counted.admitted:
            self.state = evolve(counted, admitted=tuple(each for each in counted.admitted if each != call.call_id))
            return call
        limit, calls = self._limits.get(call.name), counted.calls.get(call.name, 0)
        if limit is not None and calls >= limit:
            return f"The call was not made: the limit of {limit} for calls of {call.name!r} is reached."
        if self.total is not None and counted.total >= self.total:
            return f"The call was not made: the limit of {self.total} for all tool calls is reached."
        more = {} if limit is None else {call.name: calls + 1}
        self.state = evolve(counted, calls=counted.calls | more, total=counted.total + 1)
        return call

    def merge(self, base: CountedCalls, mine: CountedCalls, theirs: CountedCalls) -> CountedCalls:
        """The calls of both."""
        names = dict.fromkeys([*theirs.calls, *mine.calls])
        calls = {name: theirs.calls.get(name, 0) + mine.calls.get(name, 0) - base.calls.get(name, 0) for name in names}
        admitted = tuple(each for each in theirs.admitted if each in mine.admitted)
        return CountedCalls(calls, theirs.total + mine.total - base.total, admitted)
