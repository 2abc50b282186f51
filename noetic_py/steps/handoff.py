"""`Handoff`: what a step returns to let another step go on in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias

from attrs import define, evolve, field, frozen
from typing_extensions import TypeIs

from noetic_py._types import O_co, T
from noetic_py.errors import ConfigError
from noetic_py.steps.step import Body, Step, is_whole, require_step

__all__ = [
    "Handed",
    "HandingSpec",
    "Handoff",
    "HandoffSpec",
    "HandsTo",
    "Targets",
    "changed",
    "handing",
    "is_handoff",
    "undeclared",
]

AnyStep: TypeAlias = Step[Any, Any, Any, Any]
HandsTo: TypeAlias = Iterable[AnyStep] | Callable[[], Iterable[AnyStep]]
"""The steps that a step may hand over to, or a function that gives them, for those that are defined further down."""


class Handoff(Generic[O_co]):
    """Returned by a step to let another one go on: its output becomes the output, and the handoff itself is nobody's.

    Only a step that says with `@step(hands_to=...)` whom it hands over to can return one. The target runs in the same
    run, with the same state and conversation, after the handing step has ended: that step's retry, timeout and budget
    do not hold for it.

    Args:
        step: The step to go on with, one of those declared.
        input: Its input.

    Raises:
        ConfigError: It is no step; code `"not-a-step"`.
    """

    __slots__ = ("input", "step")

    def __init__(self, step: Step[T, O_co, Any, Any], input: T) -> None:
        self.step: Step[Any, O_co, Any, Any] = step
        self.input: object = input
        require_step(step, "Handoff")

    def __repr__(self) -> str:
        return f"Handoff({self.step!r}, {self.input!r})"


@frozen(eq=False)
class Handed:
    """A handoff as it is recorded: the target's id, which is one of those declared, and its input."""

    step: str
    input: Any


@define(eq=False)
class Targets:
    """The steps that a step may hand over to. A function that gives them is asked when they are needed first."""

    given: HandsTo
    _cache: dict[str, AnyStep] | None = None

    def steps(self) -> dict[str, AnyStep]:
        """The targets by id.

        Raises:
            ConfigError: There is none, one is no step (code `"not-a-step"`), or two have one id.
        """
        if self._cache is None:
            given = self.given() if callable(self.given) else self.given
            self._cache = _by_id([require_step(each, "hands_to") for each in given])
        return self._cache


def _by_id(steps: list[AnyStep]) -> dict[str, AnyStep]:
    if not steps:
        raise ConfigError("hands_to names no step", code="handoff", hint="@step(hands_to=[other])")
    found = {each.id: each for each in steps}
    if len(found) < len(steps):
        raise ConfigError("hands_to has two steps with one id", code="duplicate-id", hint="rename one")
    return found


@frozen(eq=False)
class HandingSpec:
    """What a step that may hand over does itself: its function, and whom it may hand over to."""

    fn: Callable[..., Any]
    targets: Targets


@frozen(eq=False)
class HandoffSpec:
    """A chain of handoffs: the step that it begins with, and how many handoffs it may have."""

    first: AnyStep
    targets: Targets
    limit: int
    checked: list[bool] = field(factory=list[bool])


def handing(step: AnyStep, hands_to: Any, limit: Any) -> AnyStep:
    """The chain that begins with a code step.

    Raises:
        ConfigError: `hands_to` or `max_handoffs` is something else than it has to be; code `"handoff"`.
    """
    if not is_whole(limit, 1):
        raise ConfigError(
            f"max_handoffs={limit!r} is not a whole number, 1 or more", code="handoff", hint="max_handoffs=100"
        )
    targets = _targets(hands_to)
    body = step.body
    first = evolve(
        step,
        kind="handing",
        spec=HandingSpec(step.spec, targets),
        body=None if body is None else _told(body, targets),
    )
    return Step(
        id=step.id,
        kind="handoff",
        spec=HandoffSpec(first, targets, limit),
        goes_on=step.goes_on,
        named=step.named,
        tags=step.tags,
    )


def _targets(hands_to: object) -> Targets:
    if _is_given(hands_to):
        if callable(hands_to):
            return Targets(hands_to)
        targets = Targets(tuple(hands_to))
        targets.steps()
        return targets
    raise ConfigError(
        f"hands_to={hands_to!r} is neither steps nor a function that gives them",
        code="handoff",
        hint="hands_to=[other], or a function that returns [other] for one that is defined further down",
    )


def _is_given(hands_to: object) -> TypeIs[HandsTo]:
    return not isinstance(hands_to, (Step, str)) and (callable(hands_to) or isinstance(hands_to, Iterable))


def is_handoff(output: object) -> TypeIs[Handoff[Any]]:
    """Whether a body has given a handoff."""
    return isinstance(output, Handoff)


def changed(spec: HandoffSpec, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a chain whose first step is to have other options."""
    first = evolve(spec.first, **fields)
    own = {name: value for name, value in fields.items() if name in ("id", "named", "tags")}
    return {"spec": HandoffSpec(first, spec.targets, spec.limit), **own}


def _told(body: Body, targets: Targets) -> Body:
    """A body whose handoffs are named by what is declared."""

    async def run(given: Any, ctx: Any) -> Any:
        output = await body(given, ctx)
        if ctx.handover is not None:
            # A hook below has decided who goes on.
            return ctx.handover
        if not is_handoff(output):
            return output
        to = output
        if targets.steps().get(to.step.id) is not to.step:
            raise ConfigError(
                f"a step handed over to {to.step!r}, which its hands_to does not name",
                code="handoff",
                hint=f"it names {', '.join(targets.steps())}; name the very step that is returned",
            )
        return Handed(to.step.id, to.input)

    return run


def undeclared(path: tuple[str, ...], to: Handoff[Any]) -> ConfigError:
    """What is wrong with a handoff from where none is followed."""
    return ConfigError(
        f"a handoff to {to.step!r} was returned where none is followed",
        code="handoff",
        path=path,
        hint="declare it: @step(hands_to=[other]); step_tool(...) makes a tool of such a step",
    )
