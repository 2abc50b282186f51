"""The scope of a context, and what can be read of a run and not changed: `ReadContext`, steps and services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, overload

from attrs import define, frozen

from noetic_py.core.allowance import Remaining
from noetic_py.core.budget import NO_USAGE, TokenUsage
from noetic_py.core.items import FunctionCall, Item, Message
from noetic_py.core.log import ItemLog, ItemView
from noetic_py.core.progress import ReadProgress
from noetic_py.core.state import NO_LAYER_STATES, Attributes, LayerStates, copy_state, read_only_state
from noetic_py.core.types import T2, M_co, S_co, T
from noetic_py.errors import ConfigError

if TYPE_CHECKING:
    from noetic_py.context.context import Context
    from noetic_py.core.control import SessionKey
    from noetic_py.core.view import LayerUsage
    from noetic_py.journal.changes import StoredLayerStates
    from noetic_py.journal.patches import Known

__all__ = ["ReadContext", "ReadView", "Services", "StepMeta"]


def branch_at(path: Sequence[str]) -> str:
    """The branch of a conversation: the dotted path of the step it begins with, so that no two of a run are equal."""
    return ".".join(path)


def unanswered(log: ItemLog, settled: int) -> int | None:
    """Where the message of the user's stands that a run has left last which did not complete, `None` when none has.

    Args:
        log: The conversation.
        settled: How many items there were when a run had completed last.
    """
    for index in range(log.size - 1, settled - 1, -1):
        item = log[index]
        if isinstance(item, Message) and item.role == "user":
            return None if log.origin_of(index) is None else index
    return None


@define(eq=False)
class Counted:
    """The last token count of a conversation.

    Attributes:
        counter: What counted them.
        size: How many items there were.
        last: The last of them.
        total: Their tokens.
    """

    counter: object
    size: int
    last: Item
    total: int


class ContextScope:
    """Where a body's items and state live: one for an execution, one for each parallel path.

    A path's state is copied from its section's when it is first looked at; until then neither can have changed.
    """

    __slots__ = ("_source", "_state", "began", "branch", "counted", "known", "layer_states", "log", "stored", "view")

    def __init__(
        self,
        log: ItemLog,
        state: object,
        branch: str,
        *,
        source: ContextScope | None = None,
        layer_states: LayerStates = NO_LAYER_STATES,
    ) -> None:
        self.log: ItemLog = log
        self.branch: str = branch
        self._state = state
        self._source = source
        self.counted: Counted | None = None
        # In a durable run: the state's fields as they were stored last, once it was looked at.
        self.known: dict[str, Known] | None = None
        # The states of layers, and those that a child has begun with; what of them is stored, in a durable run; and
        # how the model sees all of it: a value that is replaced, and never changed in place.
        self.layer_states: LayerStates = layer_states
        self.began: LayerStates = layer_states
        self.stored: StoredLayerStates | None = None
        self.view: object = None

    @property
    def state(self) -> Any:
        """The state object; copies it from the source the first time."""
        source = self._source
        if source is not None:
            self._source = None
            self._state = copy_state(source.state)
        return self._state

    @property
    def untouched(self) -> bool:
        """Whether the state was not looked at since it was forked."""
        return self._source is not None

    def fork(self, branch: str) -> ContextScope:
        """A path of its own: a view of the log that it goes on writing, a state copied on first use."""
        log = self.log.fork()
        origin = log.origin
        if origin is not None:
            log.origin = (origin[0], branch)
        scope = ContextScope(log, None, branch, source=self, layer_states=self.layer_states)
        scope.view = self.view
        return scope


@frozen(eq=False)
class StepMeta:
    """The model usage of the most recently completed step.

    Attributes:
        tool_calls: The function calls of its answer.
        usage: The tokens it used; zero for a step that called no model.
        cost: USD, `None` when the model has no price.
        items: The items of its answer.
    """

    tool_calls: Sequence[FunctionCall] = ()
    usage: TokenUsage = NO_USAGE
    cost: Decimal | None = Decimal(0)
    items: Sequence[Item] = ()


class Services:
    """Services by type, frozen for a run: what a run was given, then the harness, then plugins.

    Args:
        layers: Mappings from type to object, the nearest first.
    """

    __slots__ = ("_found",)

    def __init__(self, *layers: Mapping[type[object], object]) -> None:
        self._found: dict[type[object], object] = {}
        for layer in reversed(layers):
            self._found.update(layer)

    @property
    def by_type(self) -> Mapping[type[object], object]:
        """All of them."""
        return self._found

    # A checker takes no abstract class for a `type[T]`, and what a service is found by often is a Protocol.
    @overload
    def __getitem__(self, key: type[T], /) -> T: ...
    @overload
    def __getitem__(self, key: Callable[..., T], /) -> T: ...
    def __getitem__(self, key: Any, /) -> Any:
        """The service of a type.

        Raises:
            ConfigError: There is none; code `"service-missing"`.
        """
        found = self._look(key)
        if found is None:
            raise ConfigError(
                f"no service of type {key.__qualname__}",
                code="service-missing",
                hint=f"Harness(services={{{key.__name__}: ...}}) or run(..., services={{{key.__name__}: ...}})",
            )
        return found

    def _look(self, key: Any) -> object:
        # The service as it was given: a fake, or an implementation of a Protocol, need not be an instance of the key.
        return self._found.get(key)

    @overload
    def get(self, key: type[T], /) -> T | None: ...
    @overload
    def get(self, key: Callable[..., T], /) -> T | None: ...
    @overload
    def get(self, key: type[T], default: T2, /) -> T | T2: ...
    @overload
    def get(self, key: Callable[..., T], default: T2, /) -> T | T2: ...
    def get(self, key: object, default: object = None, /) -> Any:
        """The service of a type, or `default`."""
        found = self._look(key)
        return default if found is None else found

    def __contains__(self, key: type[object]) -> bool:
        return key in self._found


class ReadContext(Protocol[M_co, S_co]):
    """The read-only context of routes, instruction functions, planners and recall."""

    @property
    def id(self) -> str:
        """The execution's id."""
        ...

    @property
    def run_id(self) -> str:
        """The run's id."""
        ...

    @property
    def name(self) -> str:
        """The step's id."""
        ...

    @property
    def path(self) -> tuple[str, ...]:
        """The step's path."""
        ...

    @property
    def branch(self) -> str:
        """The dotted name of the conversation it writes to."""
        ...

    @property
    def depth(self) -> int:
        """Spawns above it."""
        ...

    @property
    def thread_id(self) -> str:
        """The conversation's id."""
        ...

    @property
    def session(self) -> SessionKey | None:
        """The session that the run is a turn of."""
        ...

    @property
    def user_id(self) -> str | None:
        """The owner of the run."""
        ...

    @property
    def request_id(self) -> str | None:
        """The caller's correlation id."""
        ...

    @property
    def step_count(self) -> int:
        """Bodies started in this execution."""
        ...

    @property
    def turns(self) -> int:
        """Model calls of this execution."""
        ...

    @property
    def tokens(self) -> TokenUsage:
        """Tokens used here and below."""
        ...

    @property
    def cost(self) -> Decimal:
        """USD spent here and below."""
        ...

    @property
    def elapsed(self) -> float:
        """Seconds since the execution began."""
        ...

    @property
    def budget(self) -> Remaining:
        """The remaining budget."""
        ...

    @property
    def items(self) -> ItemView:
        """The conversation."""
        ...

    @property
    def state(self) -> S_co:
        """The state, live; what would change it raises `TypeError`."""
        ...

    @property
    def memory(self) -> M_co:
        """The memory bundle."""
        ...

    @property
    def last_step(self) -> StepMeta | None:
        """The most recently completed step."""
        ...

    @property
    def last_layer_usage(self) -> LayerUsage | None:
        """Tokens of the last model call's request by where they came from."""
        ...

    @property
    def services(self) -> Services:
        """The run's services."""
        ...

    @property
    def attrs(self) -> Attributes:
        """Attributes that all parts of the run share; the only writable part of this view."""
        ...

    @property
    def progress(self) -> ReadProgress:
        """How far the step has come, and the others of the run."""
        ...

    @property
    def aborted(self) -> bool:
        """Whether the execution was aborted."""
        ...

    @property
    def abort_reason(self) -> str | None:
        """Why."""
        ...


class ReadView(Generic[M_co, S_co]):
    """A live read-only view of a context; see [`ReadContext`][noetic_py.ReadContext]."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context[M_co, S_co]) -> None:
        self._ctx = ctx

    @property
    def id(self) -> str:
        """The execution's id."""
        return self._ctx.id

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._ctx.run_id

    @property
    def name(self) -> str:
        """The step's id."""
        return self._ctx.name

    @property
    def path(self) -> tuple[str, ...]:
        """The step's path."""
        return self._ctx.path

    @property
    def branch(self) -> str:
        """The dotted name of the conversation it writes to."""
        return self._ctx.branch

    @property
    def depth(self) -> int:
        """Spawns above it."""
        return self._ctx.depth

    @property
    def thread_id(self) -> str:
        """The conversation's id."""
        return self._ctx.thread_id

    @property
    def session(self) -> SessionKey | None:
        """The session that the run is a turn of, `None` outside of one."""
        return self._ctx.session

    @property
    def user_id(self) -> str | None:
        """The owner of the run."""
        return self._ctx.user_id

    @property
    def request_id(self) -> str | None:
        """The caller's correlation id."""
        return self._ctx.request_id

    @property
    def step_count(self) -> int:
        """Bodies started in this execution."""
        return self._ctx.step_count

    @property
    def turns(self) -> int:
        """Model calls of this execution."""
        return self._ctx.turns

    @property
    def tokens(self) -> TokenUsage:
        """Tokens used here and below."""
        return self._ctx.tokens

    @property
    def cost(self) -> Decimal:
        """USD spent here and below."""
        return self._ctx.cost

    @property
    def elapsed(self) -> float:
        """Seconds since the execution began."""
        return self._ctx.elapsed

    @property
    def budget(self) -> Remaining:
        """The remaining budget."""
        return self._ctx.budget

    @property
    def items(self) -> ItemView:
        """The conversation as it is now."""
        return self._ctx.items.frozen()

    @property
    def state(self) -> S_co:
        """The state, live; what would change it raises `TypeError`."""
        state: S_co = read_only_state(self._ctx.state)
        return state

    @property
    def memory(self) -> M_co:
        """The memory bundle, to be read."""
        memory: M_co = self._ctx.engine.bind(self._ctx, reads=True)
        return memory

    @property
    def last_layer_usage(self) -> LayerUsage | None:
        """Tokens of the last model call's request by where they came from."""
        return self._ctx.last_layer_usage

    @property
    def last_step(self) -> StepMeta | None:
        """The most recently completed step."""
        return self._ctx.last_step

    @property
    def services(self) -> Services:
        """The run's services."""
        return self._ctx.services

    @property
    def attrs(self) -> Attributes:
        """Attributes that all parts of the run share; the only writable part of this view."""
        return self._ctx.attrs

    @property
    def progress(self) -> ReadProgress:
        """How far the step has come, and the others of the run."""
        return ReadProgress(self._ctx.engine.progress, self._ctx.path)

    @property
    def aborted(self) -> bool:
        """Whether the execution was aborted."""
        return self._ctx.aborted

    @property
    def abort_reason(self) -> str | None:
        """Why."""
        return self._ctx.abort_reason


AnyReadContext: TypeAlias = ReadContext[Any, Any]
"""A read-only context with whatever memory and state."""
