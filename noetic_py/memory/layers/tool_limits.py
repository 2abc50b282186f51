"""`ToolLimits`: how often the model may call which tool."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from noetic_py.core.items import FunctionCall
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.layers.common import wrong
from noetic_py.memory.scopes import Scope, Slot
from noetic_py.models.model import ModelResponse
from noetic_py.tools.definition import wire_name


@frozen
class CountedCalls:
    """The state of [`ToolLimits`][noetic_py.memory.ToolLimits].

    Attributes:
        calls: How many calls were admitted, by the wire name of the tool; of tools with a limit only.
        total: How many calls of all tools were admitted.
        admitted: The ids of the calls of the newest answer that were admitted.
    """

    calls: dict[str, int] = field(factory=dict[str, int])
    total: int = 0
    admitted: tuple[str, ...] = ()


class ToolLimits(MemoryLayer[CountedCalls]):
    """Limits how often the model calls a tool; a call above the limit is not made, and the model is told why.

        class Mem(Memory):
            limits: ToolLimits = ToolLimits(limits={"search": 5, "send_mail": 1}, total=20)

    The calls of an answer are counted in their order before the first of them is made, so parallel calls cannot pass a
    limit together. A call that fails, or that an approval or another layer refuses, counts too.

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

    async def store(self, response: ModelResponse) -> None:
        """Count the calls of the answer, and admit those that are within the limits."""
        calls = [item for item in response.items if isinstance(item, FunctionCall)]
        if not calls:
            return
        counted, total, admitted = dict(self.state.calls), self.state.total, list[str]()
        for call in calls:
            if self._reached(call.name, counted, total) is None:
                if call.name in self._limits:
                    counted[call.name] = counted.get(call.name, 0) + 1
                total += 1
                admitted.append(call.call_id)
        self.state = CountedCalls(counted, total, tuple(admitted))

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str:
        """The call when it was admitted; otherwise the text for the model."""
        limited = self.total is not None or call.name in self._limits
        if not limited or call.call_id in self.state.admitted:
            return call
        # A call that could not be counted is not admitted.
        reached = self._reached(call.name, self.state.calls, self.state.total) or "it could not be counted"
        return f"The call was not made: {reached}."

    def merge(self, base: CountedCalls, mine: CountedCalls, theirs: CountedCalls) -> CountedCalls:
        """The calls of both."""
        names = dict.fromkeys([*theirs.calls, *mine.calls])
        calls = {name: theirs.calls.get(name, 0) + mine.calls.get(name, 0) - base.calls.get(name, 0) for name in names}
        admitted = dict.fromkeys([*theirs.admitted, *mine.admitted])
        return CountedCalls(calls, theirs.total + mine.total - base.total, tuple(admitted))

    def _reached(self, tool: str, calls: Mapping[str, int], total: int) -> str | None:
        """The limit that forbids one more call of a tool, for the model."""
        limit = self._limits.get(tool)
        if limit is not None and calls.get(tool, 0) >= limit:
            return f"the limit of {limit} for calls of {tool!r} is reached"
        if self.total is not None and total >= self.total:
            return f"the limit of {self.total} for all tool calls is reached"
        return None
