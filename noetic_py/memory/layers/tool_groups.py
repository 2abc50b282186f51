"""`ToolGroups`: tools in groups, of which a conversation has some at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from attrs import field, frozen

from noetic_py.core.diagnostics import where_defined
from noetic_py.errors import ConfigError
from noetic_py.memory.functions import function
from noetic_py.memory.layer import MemoryLayer, Returned
from noetic_py.memory.layers.common import latest, one_line, refused, within, wrong
from noetic_py.memory.scopes import Slot
from noetic_py.tools.definition import AnyTool, Tool, ToolSource

_ON_OFF: Final = ("off", "on")
ToolEntry: TypeAlias = AnyTool | ToolSource


def _bad(what: str, hint: str | None = None) -> ConfigError:
    return ConfigError(what, code="tool-groups", hint=hint)


def _as_tuple(tools: Sequence[ToolEntry]) -> tuple[ToolEntry, ...]:
    return tuple(tools)


@frozen(eq=False)
class ToolGroup:
    """Tools that are offered together, or not at all.

    Args:
        name: What it is called, in code, in what is stored, and by the model.
        tools: The tools, and sources of tools; a source is asked only while the group is active.
        description: What they are for; the model reads it where it may switch the group.
        active: Whether a conversation that has decided nothing has them.
        by_model: Whether the model may switch the group on and off.

    Raises:
        ConfigError: The name is not a printable text, or something among the tools is not a tool; code `"tool-groups"`.
    """

    name: str
    tools: Sequence[ToolEntry] = field(converter=_as_tuple)
    description: str = ""
    active: bool = False
    by_model: bool = False

    def __attrs_post_init__(self) -> None:
        """Refuse an invalid group."""
        name: object = self.name
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise _bad(f"{name!r:.60} is not a valid name of a group of tools", 'ToolGroup("files", [read, write])')
        for each in self.tools:
            if not isinstance(each, Tool) and not hasattr(each, "tools"):
                raise _bad(
                    f"{where_defined(each):.120} in group {name!r} is not a valid tool; expected a function with @tool",
                    "put @tool on the function",
                )


class ToolGroups(MemoryLayer[dict[str, bool]]):
    """Holds which groups of tools a conversation has: those of active groups are offered to the model, others are not.

        class Mem(Memory):
            groups: ToolGroups = ToolGroups(
                groups=[
                    ToolGroup("files", [read, write], "Read and write files.", by_model=True),
                    ToolGroup("mail", [send], "Send mail."),
                ]
            )

        await ctx.memory.groups.activate("mail")

    A change holds from the next round of a model on. A call of a tool whose group is not active is refused as one of an
    unknown tool, and the model is told why. What is offered is decided by the state that the run has recorded, so a run
    that goes on in another process offers what it had offered. Approval of tools, and the rules of `Permissions`, hold
    for tools of groups as for others.

    The state is what was decided, group by group; what was not is as the group says. A decision about a group that the
    code does not have any more is kept and means nothing. A tool that a step or the harness has itself is offered
    whatever its groups are.

    The model gets the function `switch` when there is a group with `by_model`, and reads which of these groups there
    are. Each switch changes the tools of the next request, so a provider's cache of its start is of no use there.

    Attributes:
        groups: The groups.

    Raises:
        ConfigError: Two groups have one name, or different tools of one name; code `"tool-groups"`.
    """

    groups: Sequence[ToolGroup] = ()
    slot: int = Slot.SYSTEM

    def __attrs_post_init__(self) -> None:
        known: dict[str, ToolEntry] = {}
        names: set[str] = set()
        for group in self.groups:
            given: object = group
            if not isinstance(given, ToolGroup):
                raise wrong(
                    self,
                    f"{given!r:.60} is not a valid group; expected a ToolGroup",
                    "tool-groups",
                    'ToolGroup("files", [read, write])',
                )
            if group.name in names:
                raise wrong(self, f"two groups are named {group.name!r}", "tool-groups")
            names.add(group.name)
            for each in group.tools:
                if isinstance(each, Tool) and known.setdefault(each.wire_name, each) is not each:
                    raise wrong(self, f"two tools of groups are named {each.name!r}", "tool-groups")

    @property
    def active(self) -> Sequence[str]:
        """The names of the active groups, in the order of declaration."""
        return tuple(group.name for group in self.groups if self.is_active(group.name))

    @property
    def by_model(self) -> bool:
        """Whether there is a group that the model may switch."""
        return any(group.by_model for group in self.groups)

    def is_active(self, group: str) -> bool:
        """Whether the tools of a group are offered.

        Raises:
            ToolArgumentsInvalid: There is no such group.
        """
        return self.state.get(group, self._named(group, "is_active").active)

    @function(model=False)
    async def activate(self, group: str) -> None:
        """Offer the tools of a group from now on.

        Args:
            group: Its name.

        Raises:
            ToolArgumentsInvalid: There is no such group.
        """
        self._decide("activate", group, True)

    @function(model=False)
    async def deactivate(self, group: str) -> None:
        """Offer the tools of a group no more.

        Args:
            group: Its name.

        Raises:
            ToolArgumentsInvalid: There is no such group.
        """
        self._decide("deactivate", group, False)

    @function(model=False)
    async def reset(self) -> None:
        """Forget what was decided: each group is as it says itself."""
        self.state = {}

    @function
    async def switch(self, group: str, active: bool) -> str:
        """Switch a group of tools on or off. Its tools can be called from your next answer on.

        Args:
            group: The group's name.
            active: Whether its tools are wanted.

        Raises:
            ToolArgumentsInvalid: There is no such group that the model may switch.
        """
        if not self._named(group, "switch", by_model=True).by_model:
            # The group is reported as unknown: the model need not know of groups that it may not switch.
            raise self._unknown(group, "switch", by_model=True)
        self._decide("switch", group, active)
        return f"The group {group!r} is {_ON_OFF[active]}."

    async def recall(self, query: str, budget: int) -> str | None:
        """The groups that the model may switch."""
        lines = [
            f"- {group.name} ({_ON_OFF[self.is_active(group.name)]}) {one_line(group.description, 500)}".rstrip()
            for group in self.groups
            if group.by_model
        ]
        return within(self, ["Groups of tools that you may switch:", *lines], budget) if lines else None

    def merge(self, base: dict[str, bool], mine: dict[str, bool], theirs: dict[str, bool]) -> dict[str, bool]:
        """The decisions of both; for the same group the later one."""
        groups: dict[str, bool] = latest(base, mine, theirs)
        return groups

    async def on_return(self, child: Returned[dict[str, bool]]) -> None:
        """Take over nothing: switches of a child do not apply to its parent."""

    # -- questions

    def available_tools(self) -> Sequence[ToolEntry]:
        """The tools and sources of the active groups."""
        return [each for group in self.groups if self.is_active(group.name) for each in group.tools]

    def unavailable_tools(self) -> Mapping[str, str]:
        """Return why each tool of an inactive group is not available, by its name on the wire."""
        return {
            each.wire_name: f"it belongs to the tool group {group.name!r}, which is not active"
            for group in self.groups
            if not self.is_active(group.name)
            for each in group.tools
            if isinstance(each, Tool)
        }

    def _decide(self, function: str, group: str, active: bool) -> None:
        self._named(group, function)
        self.state = {**self.state, group: active}

    def _named(self, name: str, function: str, *, by_model: bool = False) -> ToolGroup:
        for group in self.groups:
            if group.name == name:
                return group
        raise self._unknown(name, function, by_model=by_model)

    def _unknown(self, name: str, function: str, *, by_model: bool) -> Exception:
        there = [group.name for group in self.groups if group.by_model or not by_model]
        return refused(
            self, function, f"there is no tool group {name!r}", f"the groups are {', '.join(there) or 'none'}"
        )
