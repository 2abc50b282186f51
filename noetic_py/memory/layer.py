"""`MemoryLayer` and `Memory`: what a run remembers, as typed handles that code, hooks and the model share."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import get_annotations
from math import isfinite
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    ForwardRef,
    Generic,
    Literal,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from attrs import field, frozen
from typing_extensions import TypeIs, TypeVar, dataclass_transform

from noetic_py.core.diagnostics import warn
from noetic_py.core.memory import Memory, make_frozen
from noetic_py.core.reducers import join
from noetic_py.core.types import version_order
from noetic_py.errors import ConfigError, ModelError
from noetic_py.memory.binding import Alone, Binding
from noetic_py.memory.functions import functions_of
from noetic_py.memory.scopes import LayerStorage, Owner, Scope, Slot
from noetic_py.redaction import with_article

if TYPE_CHECKING:
    from noetic_py.context.read import AnyReadContext
    from noetic_py.context.step import Step
    from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item
    from noetic_py.core.log import ItemView
    from noetic_py.core.runtime import Runtime
    from noetic_py.core.types import Version
    from noetic_py.memory.listeners import ContextItem
    from noetic_py.models.model import Model, ModelResponse
    from noetic_py.tools.definition import AnyTool, ToolSource
    from noetic_py.tools.permissions import PermissionAction, PermissionRule

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
"""Which recalls are out of date: the layer's, also those of the layers after it, or those of all layers."""

S = TypeVar("S")


@frozen
class Recall:
    """The recall of a layer, with its own token count.

    Attributes:
        content: A text, or messages of role `"user"` or `"developer"`; or a function that gives them, called with the
            newest items of the conversation that the request shows in any case, so that nothing is said twice. The
            request may show older items too.
        tokens: How many tokens the layer takes them for; they are counted when left out.
    """

    content: str | Sequence[Item] | Callable[[Sequence[Item]], str | Sequence[Item] | None]
    tokens: int | None = field(default=None, kw_only=True)


@frozen
class AppendedItems:
    """Returned by `on_item_append` when new items make a recall out of date.

    Attributes:
        items: The items to append.
        reread: The layers whose recall is called again although an earlier one could be used.
    """

    items: Sequence[Item]
    reread: Reread = "self"


@frozen
class Guide:
    """Reject the answer; the model gets the reason and is called again.

    Attributes:
        message: The text for the model.
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
    """A tool call is not made before it is approved, whatever the tool itself says.

    Attributes:
        reason: Why; the approver reads it.
    """

    reason: str = ""


@frozen
class Seed(Generic[S]):
    """The initial state of a layer in a child.

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


LayerStateT = TypeVar("LayerStateT", default=None)
L = TypeVar("L", bound="AnyLayer")
T = TypeVar("T")
R = TypeVar("R")

TokenBudget: TypeAlias = int | tuple[int, int] | Literal["auto"]
"""Tokens for what a layer recalls: at most so many, from and to, or what there is."""


def _set_state(layer: object, name: str, value: object) -> None:
    if name == "__orig_class__":
        # The attribute in which typing keeps `Queue[str]`, from which the state's type is read.
        layer.__dict__[name] = value
        return
    if name != "state":
        raise AttributeError(f"{type(layer).__name__}.{name} is fixed; what changes is self.state")
    object.__setattr__(layer, name, value)


def _nothing() -> Any:
    return None


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
class LayerBase(Generic[LayerStateT]):
    """Attributes of a layer that are not settings; type checkers read annotated fields of subclasses as settings."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        make_frozen(cls)
        type.__setattr__(cls, "__setattr__", _set_state)

    # -- what it stands on

    @property
    def binding(self) -> Binding:
        """The state behind the handle; internal."""
        found: Binding | None = self.__dict__.get("_binding")
        if found is None:
            layer: Any = self
            found = self.__dict__["_binding"] = Alone(layer.id or type(layer).__name__, layer.initial())
        return found

    def bound(self, binding: Binding) -> Any:
        """The same layer on something else; for the library's own use."""
        handle = copy.copy(self)
        handle.__dict__["_binding"] = binding
        return handle

    @property
    def state(self) -> LayerStateT:
        """The layer's state; `None` once it was set to that, which also forgets what is stored of it.

        It is changed in a [`@function`][noetic_py.memory.function] or a hook of the layer. Elsewhere in a run it is a
        copy: to assign to it is an error, and a step that has changed it in place fails at its end.

        Raises:
            ConfigError: It was assigned to or changed where it can only be read; code `"layer-state"`.
        """
        state: LayerStateT = self.binding.read()
        return state

    @state.setter
    def state(self, value: LayerStateT) -> None:
        self.binding.set(value)


class MemoryLayer(LayerBase[LayerStateT], Generic[LayerStateT]):
    r"""One kind of memory: settings, a state, functions, and hooks that the run calls.

    A subclass names the type of its state, declares its settings as annotated fields, and overrides the hooks it needs:

        class Facts(MemoryLayer[list[str]]):
            limit: int = 20

            @function
            async def remember(self, fact: str) -> None:
                self.state = [*self.state, fact][-self.limit :]

            async def recall(self, query: str, budget: int) -> str:
                return "\n".join(self.state)

    A layer is a frozen value. What changes is `self.state`: in a function or a hook it is a copy that takes the state's
    place at the end, so that one that raises leaves the state as it was. Everywhere else it can only be read. A layer
    that is in no run keeps a state of its own, so that it can be used by itself.

    Attributes:
        id: The layer's name; of a field of a [`Memory`][noetic_py.Memory] the field's name, when left out.
        slot: Where it stands among the layers of its band, lower first; see [`Slot`][noetic_py.memory.Slot].
        scope: Which runs share its state.
        budget: Tokens for what it recalls: at most so many, `(min, max)`, or `"auto"`.
        placement: Where in the request what it recalls stands: before the conversation and unchanged for as long as
            possible (`"anchor"`), behind it and anew each time (`"live"`), or as it turns out (`"auto"`).
        recall_mode: `"atomic"` recalls before each model call; `"eventual"` gives what it gave before, until the layer
            has stored something.
        on_init_error: What a failing `init` means: the run fails, or the layer is left out of this execution.
        fail_closed: Whether a tool call is blocked when `before_tool_call` fails; otherwise it goes on.
        timeouts: Seconds for hooks, by name; see [`TIMEOUTS`][noetic_py.memory.TIMEOUTS] for the others.
    """

    __noetic_layer__: ClassVar[bool] = True
    schema_version: ClassVar[Version] = 1
    """The version of the state's form: a number, or numbers with dots such as `"1.10"`. `migrate` makes it of older
    ones, and code of an older version refuses what is newer."""
    judges_calls: ClassVar[bool] = False
    """Whether `before_tool_call` comes behind those of all other layers, so that none changes what it has judged.

    A resumed run calls it again before it makes a call: what it refuses by then is not made."""
    views: ClassVar[tuple[type[object], ...]] = ()
    """Classes besides the layer's own by which a parameter of a tool asks for it, as in `Inject[View]`."""
    distributed: ClassVar[bool] = False
    """Whether other machines see its data, so that the backend has to be shared too."""

    id: str = ""
    slot: int = Slot.ENTITY
    scope: Scope = Scope.THREAD
    budget: TokenBudget = "auto"
    placement: Literal["anchor", "live", "auto"] = "auto"
    recall_mode: Literal["atomic", "eventual"] = "atomic"
    on_init_error: Literal["raise", "disable"] = "raise"
    fail_closed: bool = False
    timeouts: Mapping[HookName, float] = {}

    # -- what it can reach

    @property
    def alias(self) -> object:
        """The class with its brackets, such as `ContextPool[Doc]`, or `None`; for the library's own use."""
        own = self.__dict__.get("__orig_class__")
        bundle, name = self.__dict__.get("_field", (None, ""))
        return own or _annotated(bundle, name)

    @property
    def state_type(self) -> object:
        """The type of the state: what the layer's class says, filled in by brackets behind the class.

        Those of the instance count, as in `ContextPool[Doc]()`, and otherwise those of the bundle's field, as in
        `shelf: ContextPool[Doc] = ContextPool()`.
        """
        alias, cls = self.alias, type(self)
        if get_origin(alias) is not cls:
            return state_type_of(cls)
        names = getattr(cls, "__parameters__", ())
        return _state_type(cls, dict(zip(names, get_args(alias), strict=False)))

    @property
    def ctx(self) -> AnyReadContext:
        """The context of the step that the layer is used in.

        Raises:
            NoContextError: It is in no run.
        """
        return self.binding.ctx

    @property
    def storage(self) -> LayerStorage:
        """Values beside the state, for the layer's own scope; they are not part of the journal.

        A write takes effect at once: a failed or repeated attempt, a crash and a fork do not undo it.

        Raises:
            NoContextError: The layer is in no run.
        """
        return self.binding.storage

    @property
    def runtime(self) -> Runtime:
        """The run's clock, ids and randomness; the machine's for a layer in no run."""
        return self.binding.runtime

    def warn(self, message: str) -> None:
        """Log a warning, and in a run send it as a [`LayerWarned`][noetic_py.core.events.LayerWarned] event.

        Args:
            message: What is the matter, and what to do.
        """
        self.binding.warn(message)

    async def call(self, step: Step[T, R, Any, Any], input: T) -> R:
        """Run a step for the layer, from a hook or a function: with a conversation of its own, and without layers.

        It has a path below the hook's, counts against the run's budgets, and a resumed run does not run it again.

        Raises:
            NoContextError: The layer is in no run.
        """
        result: R = await self.binding.call(step, input)
        return result

    async def ask(self, model: str | Model | None, text: str, *, instructions: str, output: type[R]) -> R:
        """Ask a model something for the layer, once.

        It is a step, like [`call`][noetic_py.memory.MemoryLayer.call].

        Args:
            model: The model, its name, or `None` for the harness's.
            text: What it is asked.
            instructions: The system instructions.
            output: The type of the answer, of plain data; `str` for its text.

        Raises:
            NoContextError: The layer is in no run.
            ModelError: The model has failed, or its answer does not fit.
        """
        result: R = await self.binding.ask(model, instructions, text, output)
        return result

    def initial(self) -> LayerStateT:
        """The state of a layer that has none yet: the state type's own beginning, such as an empty list.

        Raises:
            ConfigError: The state type cannot be made of nothing; code `"layer-initial"`.
        """
        kind = state_type_of(type(self))
        if kind is None or kind is type(None) or kind is object:
            kind = _nothing
        make = get_origin(kind) or kind
        try:
            made: LayerStateT = make()
        except TypeError as error:
            raise ConfigError(
                f"layer {self.id or type(self).__name__!r} has no first state: {kind!r} cannot be made of nothing",
                code="layer-initial",
                hint="give all its fields defaults, or define initial(self)",
            ) from error
        return made

    def migrate(self, state: Any, version: Any) -> Any:
        """Convert a state that was stored with an older `schema_version`.

        It is asked for what the store holds, and for each change in the journal of a run that goes on: so it only looks
        at what it is given.

        Args:
            state: Plain data: of an object a dict of its fields.
            version: Which version it is of.

        Raises:
            ConfigError: There is none, which is what this one does; code `"layer-version"`.
        """
        raise ConfigError(
            f"layer {self.id!r} has a stored state of version {version}, and its own is {self.schema_version}",
            code="layer-version",
            hint="define migrate(self, state, version)",
        )

    def merge(self, base: LayerStateT, mine: LayerStateT, theirs: LayerStateT) -> LayerStateT:
        """One state of two that were written side by side: by tool calls, by parallel paths, by runs that share it.

        This one keeps what both have changed where nothing of it gets lost, and asks the reducers of the state's
        fields; see `noetic_py.core.reducers`. Where it is overridden, the states of parallel paths and children
        that have succeeded are merged too, unless there is an `on_return`.

        Args:
            base: What both began with; may be changed in place, as the others may.
            mine: What one of them has made of it: the later of two paths, or this run.
            theirs: What the other has.

        Raises:
            Conflict: Both have changed the same, and nothing says how to join that.
        """
        merged: LayerStateT = join(base, mine, theirs)
        return merged

    async def erase_owner(self, owner: Owner) -> int:
        """Remove what the layer keeps of an owner outside of the harness's store, such as in a database of its own.

        [`Harness.erase`][noetic_py.Harness.erase] calls it of the settings, outside of a run: with the user, with each
        of their threads or with each of their runs, as the layer's scope is. What is in `state` and in `storage` is
        removed without it. It may be called again for the same owner.

        Args:
            owner: Whose entries.

        Returns:
            How many entries were removed; 0 for a layer that keeps nothing elsewhere.
        """
        return 0

    async def scrub(self) -> Sequence[str]:
        """Take what `erase_owner` has removed out of the files of a database of the layer's own.

        [`Harness.erase`][noetic_py.Harness.erase] calls it once, when all is removed.

        Returns:
            Where it may still be, and what removes it there; a sentence each, for the certificate.
        """
        return ()

    async def reindex_owner(self, storage: LayerStorage) -> int:
        """Bring what the layer keeps for an owner into the form of its settings, such as vectors of its embedder.

        [`Harness.reindex`][noetic_py.Harness.reindex] calls it of the settings, outside of a run, for each owner that
        the layer has stored something for. It may be called again for the same owner.

        Args:
            storage: The layer's values of the owner.

        Returns:
            How many entries have a new form; 0 if all had it.
        """
        return 0

    # -- questions: plain methods and properties that read the state; what a subclass does not override is not asked

    @property
    def by_model(self) -> bool:
        """Whether the model gets the layer's functions; it is asked of the settings, before there is a state."""
        return True

    def available_tools(self) -> Sequence[AnyTool | ToolSource]:
        """Tools and sources of tools that the model has in the next round, besides those of the step and the harness.

        Called before each round, and again when a run is resumed, so the result may only depend on the settings and
        the state.
        """
        return ()

    def unavailable_tools(self) -> Mapping[str, str]:
        """Tools of the layer that the model may not call now, by wire name, with a reason that the model reads."""
        return {}

    def call_rules(self) -> tuple[Sequence[PermissionRule], PermissionAction] | None:
        """Rules for calls of tools, and what becomes of a call that none fits.

        They are kept with a call that waits for approval, so that an answer with other arguments is judged by them in
        any process.
        """
        return None

    def compactor(self) -> Callable[[str, int], Awaitable[object]] | None:
        """The function that shows a summary in place of older items, keeping so many of the newest.

        The effect `compact(summary, keep=...)` of a hook goes to the first layer that has one.
        """
        return None

    def entry_writer(self, entry: ContextItem[Any]) -> Callable[[ContextItem[Any]], Awaitable[object]] | None:
        """The function that keeps an entry that a step or a tool returns; `None` for one that is not for this layer."""
        return None

    def injected(self) -> object:
        """The value for a tool's parameter of the layer's type: the layer, or a read-only view."""
        return self

    # -- hooks: what a subclass does not override is not called

    async def init(self) -> None:
        """The execution starts: `self.state` is what is stored for the layer's scope, or its first state."""

    async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item] | AppendedItems:
        """Input or tool outputs are about to be appended: what is returned is appended in their place."""
        return items

    async def recall(self, query: str, budget: int) -> Recall | str | Sequence[Item] | None:
        """The model is about to be asked: what it should know.

        Args:
            query: The text of the last input.
            budget: The tokens there are for it.
        """
        return None

    async def render_delta(self, before: Sequence[Item], now: Sequence[Item]) -> str | Sequence[Item] | None:
        """Describe a changed recall to the model, which still sees the earlier one."""
        return None

    async def project_history(self, items: Sequence[Item]) -> Sequence[Item]:
        """The conversation as the model is to see it; the log keeps all of it."""
        return items

    async def after_model_call(self, response: ModelResponse) -> Guide | Halt | None:
        """The answer is here, and was not shown yet."""
        return None

    async def on_model_error(self, error: ModelError) -> ModelResponse | None:
        """The model has failed: an answer in its place, or `None`."""
        return None

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall | str | Halt | NeedsApproval:
        """A tool is about to be called: the call, with other arguments perhaps, or what is to become of it instead.

        A text goes to the model instead, and [`NeedsApproval`][noetic_py.memory.NeedsApproval] lets it wait. The calls
        of an answer are given one after the other before the first is made, so a layer can count them in its state.
        What was decided is recorded, and a resumed run does not ask again.
        """
        return call

    async def after_tool_call(self, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
        """A tool was called: its output, as the conversation shall have it."""
        return output

    async def store(self, response: ModelResponse) -> None:
        """The answer is in the journal: what to keep of it. The layers do this at once, each on its own state.

        The tools that the answer calls are called afterwards.
        """

    async def on_spawn(self) -> Seed[LayerStateT] | None:
        """A child begins: what it has of this layer, `None` for nothing. Without this hook it has the same state."""
        return None

    async def on_return(self, child: Returned[LayerStateT]) -> None:
        """A child has succeeded: what to take of it.

        Without this hook its state is merged where there is a `merge`; otherwise the fields with a reducer are joined.
        """

    async def on_parent_update(self, state: LayerStateT) -> None:
        """The layer's state in the parent was changed while this child runs."""

    async def on_complete(self) -> None:
        """The execution is over, whatever its outcome."""

    async def dispose(self) -> None:
        """The last that is called."""


class Needs(Generic[L]):
    """Another layer of the bundle, which a layer reads.

    It stands in the class without an annotation, and is the other layer where it is read in a run:

        class Digest(MemoryLayer[None]):
            facts = Needs(Facts)

            async def recall(self, query: str, budget: int) -> str:
                return f"{len(self.facts.state)} facts are known."

    A bundle without the other layer is refused before anything runs. If a bundle has several layers of the class, the
    one is taken whose field has the name of the attribute. The other layer can only be read: a function of it that
    changes its state raises an error.

    Args:
        kind: The class of the other layer. Layers of a class below it fit too.

    Raises:
        ConfigError: It is not the class of a layer; code `"layer-needs"`.
    """

    def __init__(self, kind: type[L], /) -> None:
        # A class with brackets is for type checkers; a layer is known by its class alone.
        given: type[L] = get_origin(kind) or kind
        if not _is_layer_class(given):
            raise ConfigError(
                f"Needs({kind!r:.60}) is not valid; expected the class of a memory layer",
                code="layer-needs",
                hint="facts = Needs(Facts)",
            )
        self.kind: type[L] = given
        self.name: str = ""

    def __set_name__(self, owner: type[object], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layer: None, owner: type[object]) -> Needs[L]: ...
    @overload
    def __get__(self, layer: AnyLayer, owner: type[object]) -> L: ...
    def __get__(self, layer: AnyLayer | None, owner: type[object]) -> Needs[L] | L:
        """The other layer, as the step sees it in which the layer is used.

        Raises:
            NoContextError: The layer is in no run.
        """
        return self if layer is None else self.find(layer.ctx.memory, layer)

    def find(self, memory: Memory, layer: AnyLayer) -> L:
        """The other layer in a bundle.

        Args:
            memory: The bundle.
            layer: The layer that needs it.

        Raises:
            ConfigError: There is none (code `"layer-missing"`), or there are several (`"layer-ambiguous"`).
        """
        found = {
            name: each
            for name, each in layers_of(memory).items()
            if isinstance(each, self.kind) and each.id != layer.id
        }
        if self.name in found:
            return found[self.name]
        if len(found) == 1:
            return next(iter(found.values()))
        kind, bundle = self.kind.__name__, type(memory).__name__
        needs = f"layer {layer.id!r} ({type(layer).__name__}) needs {with_article(kind)} layer, and {bundle} has"
        if not found:
            raise ConfigError(
                f"{needs} none",
                code="layer-missing",
                hint=f"add a field to {bundle}: {self.name}: {kind} = {kind}()",
            )
        raise ConfigError(
            f"{needs} several: {', '.join(found)}",
            code="layer-ambiguous",
            hint=f"name the field {self.name!r} of the one that {layer.id!r} is to read",
        )


_HOOKS: dict[type[object], frozenset[HookName]] = {}
_STATES: dict[type[Any], Any] = {}


def hooks_of(cls: type[object]) -> frozenset[HookName]:
    """The hooks that a layer's class overrides."""
    found = _HOOKS.get(cls)
    if found is None:
        mine: list[HookName] = [name for name in TIMEOUTS if getattr(cls, name) is not getattr(MemoryLayer, name)]
        found = _HOOKS[cls] = frozenset(mine)
    return found


def answers(
    cls: type[object],
    question: Literal["available_tools", "unavailable_tools", "call_rules", "compactor", "entry_writer", "erase_owner"],
) -> bool:
    """Whether a layer's class answers a question itself."""
    return getattr(cls, question) is not getattr(MemoryLayer, question)


def merges(cls: type[Any]) -> bool:
    """Whether a layer's class says itself what becomes of two states."""
    return cls.merge is not MemoryLayer.merge


def state_type_of(cls: type[object]) -> Any:
    """The type of a layer's state, `None` where its class does not say."""
    if cls not in _STATES:
        _STATES[cls] = _state_type(cls, {})
    return _STATES[cls]


def _state_type(cls: type[object], given: Mapping[object, object]) -> object:
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if not _is_layer_class(origin):
            continue
        found = [_resolved(each, given, cls) for each in get_args(base)]
        if origin is MemoryLayer:
            return found[0]
        names = getattr(origin, "__parameters__", ())
        return _state_type(origin, dict(zip(names, found, strict=False)))
    parent = next((base for base in cls.__bases__ if base is not MemoryLayer and _is_layer_class(base)), None)
    return None if parent is None else _state_type(parent, given)


def _annotated(bundle: type[object] | None, name: str) -> object:
    """How a bundle's field is annotated, `None` where that names what cannot be found."""
    for base in getattr(bundle, "__mro__", ()):
        found = get_annotations(base)
        if name in found:
            return _evaluated(found[name], base.__module__)
    return None


def _evaluated(annotation: object, module: str) -> object:
    def carrier() -> None: ...

    # By itself, so that what another field names spoils nothing.
    carrier.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(carrier, vars(sys.modules[module]))["it"]
    except (NameError, KeyError):
        return None


def _is_layer_class(cls: object) -> TypeIs[type[object]]:
    return isinstance(cls, type) and issubclass(cls, MemoryLayer)


def _resolved(hint: Any, given: Mapping[object, object], cls: type[object]) -> object:
    """A type argument: of a variable what it stands for, inside another type too."""
    if isinstance(hint, ForwardRef):
        return getattr(sys.modules.get(cls.__module__), hint.__forward_arg__, object)
    if not hasattr(hint, "__typing_subst__") and not getattr(hint, "__parameters__", ()):
        return hint
    if hint in given:
        return given[hint]
    parameters = getattr(hint, "__parameters__", ())
    if not parameters:
        return object
    return hint[tuple(given.get(each, object) for each in parameters)]


def layers_of(memory: Memory) -> dict[str, AnyLayer]:
    """The layers of a bundle, by field, in the order of declaration."""
    return {name: value for name, value in memory.__dict__.items() if isinstance(value, MemoryLayer)}


AnyLayer: TypeAlias = MemoryLayer[Any]
"""A layer with whatever state."""


# ---------------------------------------------------------------------------------------------- checks of a bundle


def check_memory(memory: Memory) -> None:
    """Refuse a bundle that cannot work.

    Raises:
        ConfigError: Two layers have one id (`"layer-id"`), or a setting is wrong (`"layer-slot"`, `"layer-scope"`,
            `"layer-budget"`, `"layer-timeout"`, `"layer-placement"`, `"layer-version"`, `"layer-needs"`); a layer needs
            one that the bundle does not have (`"layer-missing"`) or has several of (`"layer-ambiguous"`).
    """
    seen: dict[str, str] = {}
    for name, layer in layers_of(memory).items():
        if layer.id in seen:
            raise ConfigError(
                f"the fields {seen[layer.id]!r} and {name!r} of {type(memory).__name__} are both layer {layer.id!r}",
                code="layer-id",
                hint="give one of them another id=",
            )
        seen[layer.id] = name
        _check_layer(layer)
        if version_order(layer.schema_version) is None:
            wrong = f"schema_version={layer.schema_version!r} is not a version"
            raise _wrong(layer, wrong, "version", 'a number from 1, or numbers with dots: "1.10"')
        _check_needs(layer, memory)
        if is_idle(layer):
            warn(f"layer {layer.id!r} has neither a hook nor a function, so it has no effect")


def _check_needs(layer: AnyLayer, memory: Memory) -> None:
    for name, value in vars(layer).items():
        if _is_need(value):
            hint = f"without an annotation: {name} = Needs({value.kind.__name__})"
            raise _wrong(layer, f"{name} is annotated, so it is a setting and not a needed layer", "needs", hint)
    # A class below may have put something else in the place of one.
    found = {name: value for base in reversed(type(layer).__mro__) for name, value in vars(base).items()}
    for value in found.values():
        if _is_need(value):
            value.find(memory, layer)


def _is_need(value: object) -> TypeIs[Needs[AnyLayer]]:
    return isinstance(value, Needs)


# A layer's functions are tools, and providers allow no other letters in the name of one.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


def _check_layer(layer: AnyLayer) -> None:
    if _ID.fullmatch(layer.id) is None:
        raise _wrong(layer, "its id is not 1 to 40 ASCII letters, digits, '_' or '-'", "id", 'id="notes"')
    if not isfinite(layer.slot):
        raise _wrong(layer, f"slot={layer.slot!r} is not finite", "slot", "slot=Slot.ENTITY")
    if not isinstance(layer.scope, Scope):
        raise _wrong(layer, f"scope={layer.scope!r} is unknown", "scope", "scope=Scope.THREAD")
    if layer.placement not in ("anchor", "live", "auto"):
        raise _wrong(layer, f"placement={layer.placement!r} is unknown", "placement", '"anchor", "live" or "auto"')
    if layer.recall_mode not in ("atomic", "eventual"):
        raise _wrong(layer, f"recall_mode={layer.recall_mode!r} is unknown", "recall", '"atomic" or "eventual"')
    if layer.on_init_error not in ("raise", "disable"):
        raise _wrong(layer, f"on_init_error={layer.on_init_error!r} is unknown", "init", '"raise" or "disable"')
    least, most = budget_of(layer)
    if least < 0 or (most is not None and most < least):
        raise _wrong(
            layer, f"budget={layer.budget!r} has a minimum above its maximum, or below 0", "budget", "(0, 500)"
        )
    for hook, seconds in layer.timeouts.items():
        if hook not in TIMEOUTS or not seconds > 0:
            raise _wrong(
                layer,
                f"timeouts={{{hook!r}: {seconds!r}}} is not valid; expected a hook and its seconds",
                "timeout",
                "seconds > 0",
            )


def _wrong(layer: AnyLayer, what: str, code: str, hint: str) -> ConfigError:
    return ConfigError(f"layer {layer.id!r}: {what}", code=f"layer-{code}", hint=hint)


def budget_of(layer: AnyLayer) -> tuple[int, int | None]:
    """The least and the most tokens a layer wants, `None` for what there is.

    Raises:
        ConfigError: Its budget is not valid; code `"layer-budget"`.
    """
    budget: object = layer.budget
    if budget == "auto":
        return 0, None
    if isinstance(budget, int) and not isinstance(budget, bool):
        return 0, budget
    if isinstance(layer.budget, tuple) and [type(each) for each in layer.budget] == [int, int]:
        return layer.budget
    raise _wrong(
        layer, f"budget={budget!r} is not valid; expected a number of tokens", "budget", '500, (100, 500) or "auto"'
    )


def is_idle(layer: AnyLayer) -> bool:
    """Whether a layer has neither a hook nor a function, so that nothing ever comes of it."""
    cls = type(layer)
    return not hooks_of(cls) and not functions_of(cls)
