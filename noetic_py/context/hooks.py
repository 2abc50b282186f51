"""Hooks: async functions that the engine calls around models, tools, steps and loop rounds, and their effects."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, overload

from attrs import field, frozen
from typing_extensions import TypeIs

from noetic_py.context.read import ReadView
from noetic_py.core.state import merge_state
from noetic_py.core.types import M, M_co, M_contra, R, S, S_co, S_contra, T
from noetic_py.errors import ConfigError, ModelError, NoeticError

if TYPE_CHECKING:
    from noetic_py.context.artifacts import ArtifactScope
    from noetic_py.context.context import Context
    from noetic_py.context.step import AnyStep, Step
    from noetic_py.core.items import FunctionCall, FunctionCallOutput
    from noetic_py.models.model import ModelRequest, ModelResponse

__all__ = [
    "Block",
    "Compact",
    "Effects",
    "HandOff",
    "Hook",
    "HookContext",
    "HookEvent",
    "HookKind",
    "Round",
    "Saved",
    "StepCall",
    "StopLoop",
    "after_model",
    "after_round",
    "after_step",
    "after_tool",
    "before_model",
    "before_step",
    "before_tool",
    "on_model_error",
    "on_step_error",
]


@frozen
class Saved:
    """An artifact that is to be saved."""

    name: str
    data: bytes
    media_type: str
    scope: ArtifactScope


@frozen(eq=False)
class StopLoop:
    """The nearest loop is to end, with a value of its own where that is not `None`; perhaps within a round."""

    value: object
    now: bool = False


@frozen(eq=False)
class HandOff:
    """The step of a handoff by a hook."""

    step: AnyStep
    input: object


@frozen
class Compact:
    """Older items are to be shown as a summary."""

    summary: str
    keep: int


class Effects:
    """Actions that the engine performs after a hook has returned; none when the hook raises.

    It is all done within the step that the hook was called in, and becomes a part of that step's record: a step that
    fails leaves nothing of it, and a run that goes on in another process has it once.
    """

    __slots__ = ("_state", "compaction", "finished", "handoff", "saved", "skips", "stop")

    def __init__(self) -> None:
        self._state: dict[str, object] = {}
        # For the engine: what was asked for.
        self.saved: list[Saved] = []
        self.stop: StopLoop | None = None
        self.handoff: HandOff | None = None
        self.compaction: Compact | None = None
        self.skips: bool = False
        self.finished: bool = False

    @property
    def state(self) -> dict[str, object]:
        """Values of the state by name: `ctx.effects.state["last_model"] = response.model`.

        They are merged into the state: other values stay. Assigning a mapping merges that too.
        """
        return self._state

    @state.setter
    def state(self, changes: Mapping[str, object]) -> None:
        self._state.update(changes)

    def save(
        self,
        name: str,
        data: bytes,
        *,
        media_type: str = "application/octet-stream",
        scope: ArtifactScope = "session",
    ) -> None:
        """Save an artifact in the run's [`ArtifactStore`][noetic_py.context.artifacts.ArtifactStore].

        Args:
            name: Its name; saving under a name that is taken makes another version.
            data: The bytes.
            media_type: What they are.
            scope: The owner: the `"session"`, the `"user"` or the `"run"`.
        """
        self.saved.append(Saved(name, data, media_type, scope))

    def stop_loop(self, value: object = None, *, now: bool = False) -> None:
        """End the nearest loop after this round; its value is `value`, or the round's when that is `None`.

        Args:
            value: The loop's value.
            now: End it at once. From a hook that is called before something, that is not done; from one that is called
                after it, what it gave is kept. The rest of the round does not run, what runs beside is cancelled, and
                the loop's value is `value`. A hook of `after_round` is called at the end of its round anyway.
        """
        self.stop = StopLoop(value, now)

    def hand_off(self, step: Step[T, Any, Any, Any], input: T) -> None:
        """Hand over to another step in place of the nearest step around that may hand over, after its body.

        Loops between that step and the hook end after this round. From `before_step` the body does not run at all.

        Args:
            step: One of those that the step around has declared with `handoffs=`.
            input: Its input.
        """
        self.handoff = HandOff(step, input)

    def skip_summary(self) -> None:
        """From `after_tool`: the output is the answer. No model puts it into words, and a loop around ends with it."""
        self.skips = True

    def finish(self) -> None:
        """Mark the step's progress as done, as `ctx.progress.finish()` does; no loop ends by that."""
        self.finished = True

    def compact(self, summary: str, *, keep: int = 0) -> None:
        """Show models a summary in place of older items from now on; the conversation keeps them all.

        Args:
            summary: The summary.
            keep: How many of the newest items are shown as they are, at the least. What waits for an answer always is,
                and a call is never shown without its output.
        """
        self.compaction = Compact(summary, keep)


HookEvent: TypeAlias = Literal[
    "before_model",
    "after_model",
    "on_model_error",
    "before_tool",
    "after_tool",
    "before_step",
    "after_step",
    "on_step_error",
    "after_round",
]
"""The events that hooks are called for."""

Given = ParamSpec("Given")


class HookContext(ReadView[M_co, S_co]):
    """The argument of hooks: a read-only view of the step, the state, and effects.

    Attributes:
        effects: What the engine is to do once the hook has returned; each hook has its own.
    """

    __slots__ = ("effects",)

    effects: Effects

    def __init__(self, ctx: Context[M_co, S_co]) -> None:
        super().__init__(ctx)
        self.effects = Effects()

    @property
    def state(self) -> S_co:
        """The state. What a hook changes in it is undone when its step fails.

        Assigning a mapping changes the values that it names, and leaves all others as they are.
        """
        state: S_co = self._ctx.state
        return state

    @state.setter
    def state(self, changes: Mapping[str, object]) -> None:
        merge_state(self._ctx.state, changes)


@frozen
class Block:
    """Returned by `before_tool` to refuse a call.

    Attributes:
        message: The text for the model instead.
    """

    message: str


@frozen(eq=False)
class StepCall:
    """A step that is about to begin, is done, or has failed: a code step, a model round or a tool step.

    Attributes:
        id: Its id.
        kind: Its kind: `"code"`, `"model"`, `"tool"`, ...
        tags: Its tags.
        input: What it is given.
        attempt: Which attempt it is, from 1.
    """

    id: str
    kind: str
    tags: frozenset[str]
    input: object
    attempt: int


@frozen(eq=False)
class Round:
    """A round of a loop that is done, and not judged yet.

    Attributes:
        loop: The loop's id.
        index: Which one, from 0.
        output: What the loop's body gave.
    """

    loop: str
    index: int
    output: object


@frozen(eq=False)
class Hook(Generic[M_contra, S_contra]):
    """An async function, and what it is called for; made by `before_model`, `after_tool` and their like.

    Attributes:
        event: What it is called for.
        fn: The function. Called, the hook is that function.
        name: `module:qualified.name` unless it was given another. No two hooks of one event in one place have one name.
        tags: It is called for steps and tools that share one of them; for all when it has none.
    """

    event: HookEvent
    fn: Callable[..., Awaitable[Any]]
    name: str
    tags: frozenset[str] = frozenset()

    def __call__(self, ctx: HookContext[M_contra, S_contra], /, *subject: Any) -> Awaitable[Any]:
        """Call the function."""
        return self.fn(ctx, *subject)

    def holds_for(self, tags: Iterable[str]) -> bool:
        """Whether it is called for a step or a tool with these tags."""
        return not self.tags or not self.tags.isdisjoint(tags)


@frozen(eq=False)
class HookDecorator(Generic[Given, R]):
    """The decorator that `after_model(name=..., tags=...)` returns."""

    _make: Callable[[object], AnyHook] = field(alias="make")

    def __call__(self, fn: Callable[Concatenate[HookContext[M, S], Given], Awaitable[R]], /) -> Hook[M, S]:
        """Make a hook of a function."""
        made: Hook[M, S] = self._make(fn)
        return made


@frozen(eq=False)
class HookKind(Generic[Given, R]):
    """Makes hooks of one event of async functions: `@after_model`, or `@after_model(name=..., tags=...)`.

    Attributes:
        event: The event.
        takes: How many values such a function takes besides the context.
    """

    event: HookEvent
    takes: int = 1

    @overload
    def __call__(self, fn: Callable[Concatenate[HookContext[M, S], Given], Awaitable[R]], /) -> Hook[M, S]: ...
    @overload
    def __call__(self, *, name: str | None = None, tags: Iterable[str] = ()) -> HookDecorator[Given, R]: ...
    def __call__(self, fn: object = None, *, name: object = None, tags: object = ()) -> Any:
        """Make a hook.

        Args:
            fn: The function.
            name: What errors call it, and what tells it from others of the event in one place;
                `module:qualified.name` when left out.
            tags: Call it only for steps and tools that share one of these.

        Raises:
            ConfigError: It is not an async function of as many values as the event has; code `"hook"`.
        """
        make = partial(_make, self, name=name, tags=tags)
        return HookDecorator[Given, R](make) if fn is None else make(fn)


before_model: HookKind[[ModelRequest], ModelRequest | ModelResponse | None] = HookKind("before_model")
"""Called with the finished request. May return another request, or an answer in place of the model's."""

after_model: HookKind[[ModelResponse], ModelResponse | None] = HookKind("after_model")
"""Called with an answer of any source. May return another one, which is what the conversation gets."""

on_model_error: HookKind[[ModelError], ModelResponse | None] = HookKind("on_model_error")
"""Called with the error of a model. May return an answer instead; otherwise the error is raised."""

before_tool: HookKind[[FunctionCall], FunctionCall | FunctionCallOutput | str | Block | None] = HookKind("before_tool")
"""Called with a model's call. May return it with other arguments, an output in place of the tool's, or a `Block`."""

after_tool: HookKind[[FunctionCall, FunctionCallOutput], FunctionCallOutput | str | None] = HookKind("after_tool", 2)
"""Called with a call of a model's and its output. May return another output, which is what the conversation gets."""

before_step: HookKind[[StepCall], None] = HookKind("before_step")
"""Called before the body of a code step, a model round or a tool step, and before each further attempt."""

after_step: HookKind[[StepCall, object], None] = HookKind("after_step", 2)
"""Called with such a step and its output, when its body is done."""

on_step_error: HookKind[[StepCall, NoeticError], None] = HookKind("on_step_error", 2)
"""Called in place of `after_step` with a step and its error, for each attempt that fails; not for a cancelled one."""

after_round: HookKind[[Round], None] = HookKind("after_round")
"""Called after a round of a loop, before `until` decides whether it was the last one."""


# ------------------------------------------------------------------------------------------------------------- making


def _make(kind: HookKind[..., Any], fn: Any, *, name: object, tags: object) -> AnyHook:
    if isinstance(fn, Hook):
        fn = fn.fn
    where = getattr(fn, "__qualname__", None) or repr(fn)
    if not is_async(fn):
        raise ConfigError(
            f"{where} is not a valid hook; expected an async function",
            code="hook",
            hint=f"async def for a hook of {kind.event}",
        )
    try:
        inspect.signature(fn).bind(*range(kind.takes + 1))
    except TypeError as error:
        raise ConfigError(
            f"the parameters of {where} do not fit a hook of {kind.event}: {error}",
            code="hook",
            hint=_HINTS[kind.takes],
        ) from error
    if name is not None and (not isinstance(name, str) or not name.isprintable() or not name or len(name) > 200):
        raise ConfigError(f"name={name!r} is not a text of 1 to 200 characters", code="hook", hint='name="audit"')
    return Hook(kind.event, fn, name or name_of(fn), read_tags(tags, code="hook"))


_HINTS = {1: "define it with (ctx, subject)", 2: "define it with (ctx, subject, output or error)"}


def is_async(fn: object) -> bool:
    """Whether this is an async function, a partial of one, or an object that is called like one."""
    inner = inner_of(fn)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004 # looked at, not called


def name_of(fn: object) -> str:
    """The name of a function in stored data and errors: `module:qualified.name`."""
    inner = inner_of(fn)
    named = inner if hasattr(inner, "__qualname__") else inner.__class__
    return f"{named.__module__}:{named.__qualname__}"


def inner_of(fn: object) -> Any:
    """The function behind partials of it."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn


def read_tags(given: Any, *, code: str) -> frozenset[str]:
    """Tags as they are kept; one text is one tag.

    Raises:
        ConfigError: They are not texts.
    """
    try:
        tags: frozenset[Any] = frozenset((given,) if isinstance(given, str) else given)
    except TypeError:
        tags = frozenset((None,))
    if not all(isinstance(tag, str) for tag in tags):
        raise ConfigError(f"tags={given!r} are not texts", code=code, hint='tags=("slow",)')
    return tags


def read_hooks(given: Any, where: str) -> tuple[AnyHook, ...]:
    """Hooks as they are kept.

    Raises:
        ConfigError: One is not a hook, or two of one event have one name; code `"hook"`.
    """
    try:
        everything: tuple[object, ...] = tuple(given)
    except TypeError:
        raise ConfigError(
            f"hooks={given!r} of {where} is not valid; expected a list of hooks", code="hook", hint="hooks=[remember]"
        ) from None
    found: dict[tuple[str, str], AnyHook] = {}
    for each in everything:
        if not is_hook(each):
            raise ConfigError(
                f"{each!r} in hooks= of {where} is not a valid hook; expected a function with a hook's decorator",
                code="hook",
                hint="put one of noetic_py.context.hooks on the function, such as @hooks.after_model",
            )
        if found.setdefault((each.event, each.name), each) is not each:
            raise ConfigError(
                f"{where} has two {each.event} hooks named {each.name!r}",
                code="hook",
                hint=f"@hooks.{each.event}(name=...) gives one of them another name",
            )
    return tuple(found.values())


def is_hook(value: object) -> TypeIs[AnyHook]:
    """Whether this is a hook, of whatever context."""
    return isinstance(value, Hook)


AnyHook: TypeAlias = Hook[Any, Any]
"""A hook that takes whatever memory and state."""
