"""What the hooks of a layer may give, and how long each may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias

from attrs import field, frozen
from typing_extensions import TypeVar

if TYPE_CHECKING:
    from noetic_py.items import Item
    from noetic_py.log import ItemView

__all__ = ["TIMEOUTS", "Appended", "Guide", "Halt", "HookName", "Recall", "Reread", "Returned", "Seed"]

HookName: TypeAlias = Literal[
    "init",
    "on_item_append",
    "recall",
    "render_delta",
    "project_history",
    "after_model_call",
    "on_model_error",
    "before_tool_call",
    "after_tool_call",
    "store",
    "on_spawn",
    "on_return",
    "on_parent_update",
    "on_complete",
    "dispose",
]
"""The hooks of a layer."""

TIMEOUTS: Final[Mapping[HookName, float]] = MappingProxyType(
    {
        "init": 10.0,
        "on_item_append": 5.0,
        "recall": 5.0,
        "render_delta": 5.0,
        "project_history": 5.0,
        "after_model_call": 5.0,
        "on_model_error": 5.0,
        "before_tool_call": 5.0,
        "after_tool_call": 5.0,
        "store": 30.0,
        "on_spawn": 10.0,
        "on_return": 10.0,
        "on_parent_update": 5.0,
        "on_complete": 30.0,
        "dispose": 5.0,
    }
)
"""Seconds that a hook may take, where the layer's `timeouts` say nothing else."""

Reread: TypeAlias = Literal["self", "after", "all"]
"""Whose recall is out of date: the layer's own, that of the layers behind it too, or everybody's."""

S = TypeVar("S")


@frozen
class Recall:
    """What a layer recalls, with its own count of the tokens.

    Attributes:
        content: A text, or messages of role `"user"` or `"developer"`.
        tokens: How many tokens the layer takes them for; they are counted when left out.
    """

    content: str | Sequence[Item]
    tokens: int | None = field(default=None, kw_only=True)


@frozen
class Appended:
    """What `on_item_append` makes of new items, when some recall is out of date by them.

    Attributes:
        items: The items to append.
        reread: Whose recall is to be asked anew, although it could be served from before.
    """

    items: Sequence[Item]
    reread: Reread = "self"


@frozen
class Guide:
    """The answer is not to be taken; the model is told why, and asked again.

    Attributes:
        message: What the model is told.
    """

    message: str


@frozen
class Halt:
    """The execution is to be aborted.

    Attributes:
        reason: Why.
    """

    reason: str


@frozen
class NeedsApproval:
    """A tool call is not to be made before somebody has approved it, whatever the tool itself says.

    Attributes:
        reason: Why; it is what whoever is asked gets to read.
    """

    reason: str = ""


@frozen
class Seed(Generic[S]):
    """What a child begins with.

    Attributes:
        state: The layer's state in the child.
        items: What its conversation begins with; of a spawn only.
    """

    state: S
    items: Sequence[Item] = ()


@frozen
class Returned(Generic[S]):
    """A child that has succeeded.

    Attributes:
        id: Its execution's id.
        state: What the layer's state has become in it.
        began: What it was when the child began; what differs is the child's own doing.
        items: Its conversation.
        value: What it gave.
    """

    id: str
    state: S
    began: S
    items: ItemView
    value: Any = None
