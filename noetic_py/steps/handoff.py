"""`Handoff`: what a step returns to let another step continue in its place, and the tools by which a model does so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias

from attrs import define, evolve, field, frozen
from typing_extensions import TypeIs, override

from noetic_py.context.context import AnyContext, Context
from noetic_py.context.step import (
    AnyStep,
    Body,
    Spec,
    Step,
    asks_model,
    children_of,
    entry_of,
    function_of,
    is_whole,
    require_step,
)
from noetic_py.core.items import Item
from noetic_py.core.types import O_co, T
from noetic_py.errors import ConfigError, ToolFailed
from noetic_py.steps.tool import input_type_of
from noetic_py.tools import make_tool

if TYPE_CHECKING:
    from noetic_py.tools.definition import AnyTool, Approval

HistoryFilter: TypeAlias = Callable[[Sequence[Item]], Sequence[Item]]
"""Says what of the conversation before a handoff the models of its target are shown."""
MAX_HANDOFFS = 1000
"""How many handoffs may follow one another when nothing else is said."""
HandoffTargets: TypeAlias = "Iterable[AnyStep | HandoffTo] | Callable[[], Iterable[AnyStep | HandoffTo]]"
"""The steps that a step may hand over to, or a function that gives them, for those that are defined further down."""


class Handoff(Generic[O_co]):
    """Returned by a step to hand over to another one, whose output becomes the output of the chain.

    Only a step that is declared with `@step(handoffs=...)` can return one. The target runs in the same run, with the
    same state and conversation, after the step that hands over has ended: that step's retry, timeout and budget do not
    hold for it.

    Args:
        step: The next step, one of those declared.
        input: Its input.

    Raises:
        ConfigError: It is not a step; code `"not-a-step"`.
    """

    __slots__ = ("input", "step")

    def __init__(self, step: Step[T, O_co, Any, Any], input: T) -> None:
        self.step: Step[Any, O_co, Any, Any] = step
        self.input: object = input
        require_step(step, "Handoff")

    def __repr__(self) -> str:
        return f"Handoff({self.step!r}, {self.input!r})"


@frozen(eq=False)
class HandoffOutput:
    """A handoff as it is recorded: the target's id, which is one of those declared, and its input."""

    step: str
    input: Any


@frozen(eq=False)
class HandoffTo:
    """A step that a model may hand over to, and how; made by [`handoff_to`][noetic_py.handoff_to].

    Attributes:
        step: The next step.
        input: The type of what the model sends along, which is the step's input; `None` where it sends nothing.
        description: What the model reads about the transfer tool.
        history: What of the conversation so far the step's models are shown; all of it for `None`.
        needs_approval: Whether a transfer waits for a person.
    """

    step: AnyStep
    input: object = None
    description: str = ""
    history: HistoryFilter | None = None
    needs_approval: Approval = False


def handoff_to(
    step: AnyStep,
    /,
    *,
    input: object = None,
    description: str | None = None,
    history: HistoryFilter | None = None,
    needs_approval: Approval = False,
) -> HandoffTo:
    """Say how a model may hand over to a step: `call_model(handoffs=[handoff_to(refunds, input=Claim)])`.

    Args:
        step: The step that replaces the one that asks the model.
        input: The type of what the model sends along, which is the step's input; one that begins with a model gets
            what is not text as JSON. When left out, a step of code gets what its annotation names, and one that begins
            with a model goes on from the conversation.
        description: What the model reads about it; the first lines of a code step's docstring when left out.
        history: A function of the items of the conversation so far that gives those which the step's models are shown.
            The conversation itself keeps them all.
        needs_approval: Whether a transfer waits for a person: `True`, or a function of the call that says so.

    Raises:
        ConfigError: It is not a step, code `"not-a-step"`; or another argument is of the wrong kind, code `"handoff"`.
    """
    target = require_step(step, "handoff_to")
    if history is not None and not callable(history):
        raise ConfigError(
            f"history={history!r} is not a valid filter; expected a function of the items",
            code="handoff",
            hint="history=lambda items: items[-5:]",
        )
    return HandoffTo(target, input, _described(target) if description is None else description, history, needs_approval)


def _described(step: AnyStep) -> str:
    function = function_of(inner_of(step))
    # Since Python 3.13 None has a docstring of its own, so a step without a function is asked for first.
    said = ("" if function is None else function.__doc__ or "").strip().partition("\n\n")[0]
    about = " ".join(said.split())
    return f"Hand the conversation over to {step.id}." + (f" {about}" if about else "")


def inner_of(step: AnyStep) -> AnyStep:
    """The step that is the first to get a step's input."""
    inner = entry_of(step)
    return step if inner is None else inner_of(inner)


@define(eq=False)
class Targets:
    """The steps that a step may hand over to. A function that gives them is asked when they are needed first."""

    given: HandoffTargets
    where: str = "handoffs"
    _cache: dict[str, HandoffTo] | None = None

    def steps(self) -> dict[str, AnyStep]:
        """The targets by id.

        Raises:
            ConfigError: There is none, one is not a step (code `"not-a-step"`), or two have one id.
        """
        return {name: way.step for name, way in self.ways().items()}

    def ways(self) -> dict[str, HandoffTo]:
        """The targets by id, and how they are handed over to.

        Raises:
            ConfigError: As for `steps`.
        """
        if self._cache is None:
            given = self.given() if callable(self.given) else self.given
            self._cache = _by_id([self._way(each) for each in given], self.where)
        return self._cache

    def _way(self, given: object) -> HandoffTo:
        if isinstance(given, HandoffTo):
            return given
        step = require_step(given, self.where)
        return handoff_to(step) if self.where == "handoffs" else HandoffTo(step)


def _by_id(ways: list[HandoffTo], where: str) -> dict[str, HandoffTo]:
    if not ways:
        raise ConfigError(f"{where} names no step", code="handoff", hint=f"{where}=[other]")
    found = {each.step.id: each for each in ways}
    if len(found) < len(ways):
        raise ConfigError(f"{where} has two steps with one id", code="duplicate-id", hint="rename one")
    return found


class Transfers:
    """The tools by which a model hands over, listed when it is about to be called."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._tools: list[Any] = []

    async def tools(self) -> Sequence[Any]:
        """One for each target."""
        if not self._tools:
            self._tools = transfer_tools(self._targets)
        return self._tools


@frozen(eq=False)
class HandoffSourceSpec(Spec):
    """The spec of a step that may hand over: its own body, and its targets.

    Attributes:
        fn: Its function; `None` where it asks a model.
        targets: The steps it may hand over to.
        inner: The step in which the model is asked.
    """

    fn: Callable[..., Any] | None
    targets: Targets
    inner: AnyStep | None = None

    @override
    def entry(self) -> AnyStep | None:
        return self.inner

    @override
    def exit(self) -> AnyStep | None:
        return self.inner

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [] if self.inner is None else [("", self.inner)]

    @override
    def label(self, step: AnyStep) -> str:
        return Spec.label(self, step) if self.fn is None else step.id


@frozen(eq=False)
class HandoffSpec(Spec):
    """A chain of handoffs: the step that it begins with, and how many handoffs it may have."""

    first: AnyStep
    targets: Targets
    limit: int
    checked: list[bool] = field(factory=list[bool])

    typed_by_entry: ClassVar[bool] = True

    @override
    def entry(self) -> AnyStep:
        return self.first

    @override
    def exit(self) -> AnyStep:
        return self.first

    @override
    def children(self) -> Sequence[tuple[str, AnyStep]]:
        return [("hands to" if number else "", each) for number, each in enumerate(members(self))]

    def changed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of the step of the chain, once its first step has these options."""
        first = self.first
        if first.spec.inner is not None:
            # They are those of the step in which the model is asked, whatever is put around it later.
            inner = evolve(first.spec.inner, **fields)
            first = evolve(first, spec=evolve(first.spec, inner=inner), id=inner.id, named=inner.named)
        else:
            first = evolve(first, **fields)
        own = {name: value for name, value in fields.items() if name in ("id", "named", "tags")}
        return {"spec": HandoffSpec(first, self.targets, self.limit), **own}


def members(spec: HandoffSpec) -> list[AnyStep]:
    """All steps that a chain of handoffs may run, the one that it begins with first; each once.

    Raises:
        ConfigError: One of them has the chain itself inside, so that it would be nested ever deeper; code `"handoff"`.
    """
    found = _members(spec)
    if not spec.checked:
        waiting = [each for each in found if not isinstance(each.spec, HandoffSourceSpec)]
        seen: set[int] = set()
        while waiting:
            step = waiting.pop()
            if id(step) in seen:
                continue
            seen.add(id(step))
            below = (
                _members(step.spec) if isinstance(step.spec, HandoffSpec) else [each for _, each in children_of(step)]
            )
            if spec.first in below:
                raise ConfigError(
                    f"<handoff step {spec.first.id!r}> hands over to a step that has it inside",
                    code="handoff",
                    hint="hand over to the step itself, which goes on in the same chain, or put a loop around it",
                )
            waiting += below
        spec.checked.append(True)
    return found


def _members(spec: HandoffSpec) -> list[AnyStep]:
    found: dict[int, AnyStep] = {id(spec.first): spec.first}
    waiting = [spec.targets]
    while waiting:
        for each in waiting.pop(0).steps().values():
            inner: object = each.spec
            member = inner.first if isinstance(inner, HandoffSpec) else each
            if id(member) in found:
                continue
            found[id(member)] = member
            if isinstance(inner, HandoffSpec):
                waiting.append(inner.targets)
    return list(found.values())


def with_handoffs(step: AnyStep, handoffs: object, limit: Any) -> AnyStep:
    """The chain that begins with a code step.

    Raises:
        ConfigError: `handoffs` or `max_handoffs` is something else than it has to be; code `"handoff"`.
    """
    check_limit(limit)
    targets = targets_of(handoffs, "handoffs")
    body = step.body
    first = evolve(
        step,
        kind="handing",
        spec=HandoffSourceSpec(step.spec, targets),
        body=None if body is None else _naming_targets(body, targets),
    )
    return Step(
        id=step.id,
        kind="handoff",
        spec=HandoffSpec(first, targets, limit),
        goes_on=step.goes_on,
        named=step.named,
        tags=step.tags,
    )


def targets_of(given: object, where: str) -> Targets:
    """The steps that were given as those to hand over to.

    Raises:
        ConfigError: They are something else; code `"handoff"`, `"not-a-step"` or `"duplicate-id"`.
    """
    if _is_targets(given):
        if callable(given):
            return Targets(given, where)
        targets = Targets(tuple(given), where)
        targets.steps()
        return targets
    raise ConfigError(
        f"{where}={given!r} is neither steps nor a function that gives them",
        code="handoff",
        hint=f"{where}=[other], or a function that returns [other] for one that is defined further down",
    )


def check_limit(limit: object) -> None:
    """Refuse an invalid number of handoffs.

    Raises:
        ConfigError: Code `"handoff"`.
    """
    if not is_whole(limit, 1):
        raise ConfigError(
            f"max_handoffs={limit!r} is not a whole number, 1 or more", code="handoff", hint="max_handoffs=100"
        )


def _is_targets(handoffs: object) -> TypeIs[HandoffTargets]:
    return not isinstance(handoffs, (Step, HandoffTo, str)) and (callable(handoffs) or isinstance(handoffs, Iterable))


def is_handoff(output: object) -> TypeIs[Handoff[object]]:
    """Whether a body has given a handoff."""
    return isinstance(output, Handoff)


def agent(inner: AnyStep, targets: Targets, limit: int) -> AnyStep:
    """The chain that begins with a step in which a model may hand over."""
    return Step(
        id=inner.id,
        kind="handoff",
        spec=HandoffSpec(
            Step(id=inner.id, kind="agent", spec=HandoffSourceSpec(None, targets, inner), named=inner.named),
            targets,
            limit,
        ),
        goes_on=inner.goes_on,
        named=inner.named,
        tags=inner.tags,
    )


def asked_by_model(step: AnyStep) -> HandoffSpec | None:
    """The chain that a step is, when a model in it may hand over; `None` otherwise."""
    spec: object = step.spec
    return spec if isinstance(spec, HandoffSpec) and spec.first.body is None else None


def _naming_targets(body: Body, targets: Targets) -> Body:
    """A body whose handoffs are named by what is declared."""

    async def run(given: object, ctx: Any) -> Any:
        output = await body(given, ctx)
        if ctx.handover is not None:
            # A hook below has chosen the next step.
            return ctx.handover
        if not is_handoff(output):
            return output
        to = output
        if targets.steps().get(to.step.id) is not to.step:
            raise ConfigError(
                f"a step handed over to {to.step!r}, which is not one of its handoffs",
                code="handoff",
                hint=f"it names {', '.join(targets.steps())}; name the very step that is returned",
            )
        return HandoffOutput(to.step.id, to.input)

    return run


def undeclared(path: tuple[str, ...], to: Handoff[object]) -> ConfigError:
    """The error for a handoff from a step without declared handoffs."""
    return ConfigError(
        f"a handoff to {to.step!r} was returned where none is followed",
        code="handoff",
        path=path,
        hint="declare it: @step(handoffs=[other]); step_tool(...) makes a tool of such a step",
    )


_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_MOST = 64


def transfer_tools(targets: Targets) -> list[AnyTool]:
    """One tool for each target.

    Raises:
        ConfigError: Two targets would have one tool; code `"handoff"`. Or an input has no JSON schema.
    """
    tools = [_tool(way) for way in targets.ways().values()]
    if len({each.name for each in tools}) < len(tools):
        raise ConfigError(
            f"two of the steps to hand over to have one tool: {', '.join(each.name for each in tools)}",
            code="handoff",
            hint="give the steps ids that differ in letters and digits",
        )
    return tools


def is_transfer(tool: AnyTool | None) -> bool:
    """Whether a call of the tool hands over."""
    return tool is not None and "transfer" in getattr(tool.fn, "__dict__", ())


def one_too_many(tool: AnyTool) -> AnyTool:
    """The tool of a transfer that is not made, because it is not the first of its answer."""

    async def refuse(ctx: AnyContext, **_: object) -> object:
        raise ToolFailed("Not transferred: only the first transfer of an answer is made.", tool=tool.name)

    return evolve(tool, fn=refuse, needs_approval=False)


def _tool(way: HandoffTo) -> AnyTool:
    step = way.step
    wanted = _wanted(way)
    begins_with_model = asks_model(inner_of(step))

    async def transfer(ctx: AnyContext) -> object:
        return Handoff(step, None)

    async def transfer_with(ctx: AnyContext, input: object) -> object:
        return Handoff(step, _as_text(input) if begins_with_model else input)

    run = transfer if wanted is None else transfer_with
    run.__annotations__ = {"ctx": Context} if wanted is None else {"ctx": Context, "input": wanted}
    # Fingerprints use the step, and not this function.
    vars(run).update(step=step, transfer=True)
    name = f"transfer_to_{_UNFIT.sub('_', step.id)}"[:_MOST]
    return make_tool(run, {"name": name, "description": way.description, "needs_approval": way.needs_approval})


def _wanted(way: HandoffTo) -> object:
    """The type of what the model sends along; `None` where it sends nothing."""
    if way.input is not None:
        return way.input
    first = inner_of(way.step)
    # A step that needs no input goes on from the conversation.
    if asks_model(first) or first.goes_on or first.bound is not None:
        return None
    return input_type_of(first)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    from pydantic_core import to_json

    return to_json(value).decode()
