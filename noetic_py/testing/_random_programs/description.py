"""The parts of a random program: values that say what its steps are and what its bodies do."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

How: TypeAlias = Literal["text", "tools", "agent", "down", "halt"]
Join: TypeAlias = Literal["tuple", "merge", "states"]
OnError: TypeAlias = Literal["retry", "skip", "abort"] | None
Share: TypeAlias = Literal["share", "copy", "deepcopy", "new"]
ShareItems: TypeAlias = Literal["new", "copy", "view", "share"]


# -- what a body does


@frozen
class Tick:
    """Let others run."""


@frozen
class Say:
    """Append a message."""


@frozen
class Inc:
    """Add one to the state's counter."""


@frozen
class Push:
    """Append to the state's list; in place, or with a new list."""

    in_place: bool = True


@frozen
class Both:
    """Change two fields of the state, with a wait between."""


@frozen
class See:
    """Look at the conversation and the state."""


@frozen
class Call:
    """Run a child step."""

    node: Node
    catch: bool = False


@frozen
class Gather:
    """Run child steps at once."""

    nodes: tuple[Node, ...]
    catch: bool = False


@frozen
class Give:
    """Run a child step, and give it up when it hangs."""

    node: Node


@frozen
class Hang:
    """Do nothing for ever; a section that can cancel it does so at once."""


@frozen
class Fail:
    """Raise until the attempts above and of this step number so many more than the least."""

    until: int


@frozen
class Stop:
    """Ask for the end of the execution."""

    kind: Literal["complete", "abort"]


@frozen
class EndLoop:
    """End the nearest loop after this iteration."""

    value: int | None


@frozen
class Ask:
    """Call a model."""

    how: How
    catch: bool = False


@frozen
class Pair:
    """Write a function call, wait, write its output."""


@frozen
class Open:
    """Write a function call that is not answered."""


Op: TypeAlias = (
    Tick | Say | Inc | Push | Both | See | Call | Gather | Give | Hang | Fail | Stop | EndLoop | Ask | Pair | Open
)


# -- what a flow is


@frozen
class Code:
    """A body."""

    id: str
    ops: tuple[Op, ...]
    attempts: int = 1


@frozen
class Reduce:
    """Makes one number of what a section gave; of a race it notes the winner."""

    id: str
    section: str
    mode: Literal["all", "settle", "race"]
    attempts: int = 1


@frozen
class Split:
    """Makes several inputs of one."""

    id: str
    count: int
    attempts: int = 1


@frozen
class Mark:
    """Puts the index of a race's path into its value."""

    id: str
    index: int
    attempts: int = 1


@frozen
class Seq:
    """Steps in a row."""

    id: str
    nodes: tuple[Node, ...]
    attempts: int = 1


@frozen
class Loop:
    """A step several times."""

    id: str
    body: Node
    rounds: int
    on_error: OnError
    prepare: bool
    attempts: int = 1

    @property
    def most(self) -> int:
        """The bound of its iterations."""
        return self.rounds + 2


@frozen
class Branch:
    """One of several steps, or none; the case after the last is none."""

    id: str
    cases: tuple[Node, ...]
    by: Literal["key", "step"]
    attempts: int = 1

    def choice(self, value: int) -> int:
        """The index of the case; that of none is the number of cases."""
        return value % (len(self.cases) if self.by == "key" else len(self.cases) + 1)


@frozen
class Section:
    """Paths at once."""

    id: str
    mode: Literal["all", "settle", "race", "each"]
    nodes: tuple[Node, ...]
    join: Join = "tuple"
    concurrency: int | None = None
    attempts: int = 1


@frozen
class Spawn:
    """An execution of its own."""

    id: str
    node: Node
    state: Share
    items: ShareItems
    attempts: int = 1


Node: TypeAlias = Code | Reduce | Split | Mark | Seq | Loop | Branch | Section | Spawn
