"""`Permissions`: which tools a conversation may call, which need approval, and what was allowed for good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from attrs import evolve, frozen

from noetic_py.core.items import FunctionCall
from noetic_py.core.values import is_dict
from noetic_py.memory.functions import function
from noetic_py.memory.layer import Halt, MemoryLayer, NeedsApproval, Returned
from noetic_py.memory.layers.common import check_counts, is_one_of, refused, wrong
from noetic_py.memory.scopes import Slot
from noetic_py.tools.permissions import PermissionAction, PermissionRule, decide


@frozen
class PermissionState:
    """Decisions made during conversations.

    Attributes:
        rules: Rules besides the layer's own.
        mode: What becomes of a call that no rule fits, `None` for what the layer says.
    """

    rules: tuple[PermissionRule, ...] = ()
    mode: PermissionAction | None = None


class Permissions(MemoryLayer[PermissionState]):
    """Checks each tool call before it is made: it is allowed, waits for approval, or is refused.

        class Mem(Memory):
            permissions: Permissions = Permissions(
                rules=[PermissionRule("allow", "read_*"), PermissionRule("deny", "shell", where={"command": "*sudo*"})],
                otherwise="ask",
            )

        await ctx.memory.permissions.allow("send_mail", {"to": "*@example.org"})

    Of all rules that fit a call, the layer's own and those that were added, the strictest counts: `deny` before `ask`
    before `allow`. A call that waits is a request of the suspended run like that of a tool with `needs_approval`. What
    is refused is not made, and the model gets the rule. Rules are added by code; the model cannot call
    these functions. They stay for the layer's scope: of one thread unless `scope=Scope.USER` says of one user.

    A pattern is not a sandbox: `where={"command": "git *"}` fits `git status; rm -r .` too.

    Attributes:
        rules: The rules that always hold.
        otherwise: What becomes of a call that no rule fits.
        max_rules: How many rules may be added.

    Raises:
        ConfigError: A setting is wrong; code `"permissions"`.
    """

    judges_calls: ClassVar[bool] = True

    rules: Sequence[PermissionRule] = ()
    otherwise: PermissionAction = "ask"
    max_rules: int = 200
    slot: int = Slot.SYSTEM
    fail_closed: bool = True

    def __attrs_post_init__(self) -> None:
        check_counts(self, "permissions", max_rules=self.max_rules)
        is_one_of(self, "permissions", "otherwise", self.otherwise, ("allow", "ask", "deny"))
        for rule in self.rules:
            given: object = rule
            if not isinstance(given, PermissionRule):
                raise wrong(
                    self,
                    f"{given!r} is not a valid rule; expected a PermissionRule",
                    "permissions",
                    'PermissionRule("allow", "read_*")',
                )

    @property
    def mode(self) -> PermissionAction:
        """The action for a call that matches no rule."""
        return self.state.mode or self.otherwise

    def decide(self, call: FunctionCall) -> tuple[PermissionAction, PermissionRule | None]:
        """The action for a call and its rule; `None` without a matching rule.

        Args:
            call: The call, with the arguments that the tool will receive.
        """
        try:
            arguments: object = json.loads(call.arguments)
        except (ValueError, RecursionError):
            arguments = None
        known = arguments if is_dict(arguments) else None
        return decide((*self.rules, *self.state.rules), call.name, known, otherwise=self.mode)

    def call_rules(self) -> tuple[Sequence[PermissionRule], PermissionAction]:
        """All rules, and what becomes of a call that no rule fits."""
        return (*self.rules, *self.state.rules), self.mode

    @function(model=False)
    async def allow(self, tool: str, where: dict[str, str] | None = None) -> None:
        """Let calls be made from now on, unless a stricter rule fits them.

        Args:
            tool: The tool's name, or a pattern.
            where: Patterns of arguments, by their names.

        Raises:
            ToolArgumentsInvalid: There are too many rules.
        """
        self._add(PermissionRule("allow", tool, where or {}))

    @function(model=False)
    async def ask_for(self, tool: str, where: dict[str, str] | None = None) -> None:
        """Require approval for calls from now on.

        Args:
            tool: The tool's name, or a pattern.
            where: Patterns of arguments, by their names.

        Raises:
            ToolArgumentsInvalid: There are too many rules.
        """
        self._add(PermissionRule("ask", tool, where or {}))

    @function(model=False)
    async def deny(self, tool: str, where: dict[str, str] | None = None) -> None:
        """Let calls be refused from now on.

        Args:
            tool: The tool's name, or a pattern.
            where: Patterns of arguments, by their names.

        Raises:
            ToolArgumentsInvalid: There are too many rules.
        """
        self._add(PermissionRule("deny", tool, where or {}))

    @function(model=False)
    async def forget(self, tool: str | None = None) -> int:
        """Take rules back that were added, and say how many.

        Args:
            tool: The pattern that they were added with, all of them when left out.
        """
        kept = tuple(rule for rule in self.state.rules if tool is not None and rule.tool != tool)
        gone = len(self.state.rules) - len(kept)
        self.state = evolve(self.state, rules=kept)
        return gone

    @function(model=False)
    async def set_mode(self, mode: PermissionAction | None) -> None:
        """Say what becomes of calls that no rule fits.

        Args:
            mode: What; what the layer's `otherwise` says for `None`.
        """
        self.state = evolve(self.state, mode=mode)

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str | Halt | NeedsApproval:
        """The call, why it is not made, or that it has to wait."""
        action, rule = self.decide(call)
        if action == "allow":
            return call
        why = "no rule allows it" if rule is None else f"a rule for {rule.tool!r} says so"
        return NeedsApproval(why) if action == "ask" else f"The call was refused: {why}."

    def merge(self, base: PermissionState, mine: PermissionState, theirs: PermissionState) -> PermissionState:
        """The rules that either has added, without those that either has taken back; of two modes the later one."""
        added = tuple(each for each in mine.rules if each not in base.rules and each not in theirs.rules)
        kept = tuple(each for each in theirs.rules if each in mine.rules or each not in base.rules)
        return PermissionState((*kept, *added), theirs.mode if mine.mode == base.mode else mine.mode)

    async def on_return(self, child: Returned[PermissionState]) -> None:
        """Take over nothing: rules of a child do not apply to its parent."""

    def _add(self, rule: PermissionRule) -> None:
        added = (*(each for each in self.state.rules if each != rule), rule)
        if len(added) > self.max_rules:
            raise refused(self, rule.action, f"there are {self.max_rules} rules already, which is the most")
        self.state = evolve(self.state, rules=added)
