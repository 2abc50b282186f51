"""`StepKind`: a kind of step that a plugin brings along."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeAlias

from typing_extensions import TypeIs, Unpack

from noetic_py.context.context import Context
from noetic_py.context.step import Spec, Step, StepOptions, read_options
from noetic_py.core.types import I_contra, M_contra, O_co, S_contra
from noetic_py.errors import ConfigError
from noetic_py.steps.code import takes_none

__all__ = ["StepKind"]

_NAME = re.compile(r"[A-Za-z0-9-]{1,80}\.[A-Za-z0-9-]{1,80}")


class StepKind(Spec, ABC, Generic[I_contra, O_co, M_contra, S_contra]):
    """A kind of step of a plugin. Derive a frozen class from it, whose fields are what a step of the kind is made of.

    A step is made by `step`, and runs in harnesses whose plugins have registered the class. It is stored, resumed and
    shown as a step with `@step` is, under the name of its kind. Its fields are part of what is compared when a run is
    resumed, and the code of `run` is not: a class that does something else gets another name, or a field more.

    Attributes:
        kind: The name of the kind, in records and events: a namespace, such as the plugin's name, a dot, and a name.
    """

    __slots__ = ()

    kind: ClassVar[str]

    @abstractmethod
    async def run(self, value: I_contra, ctx: Context[M_contra, S_contra], /) -> O_co:
        """Do the work of a step: call other steps with `await step(value, ctx)`, or several with `ctx.gather`.

        Args:
            value: The step's input.
            ctx: Its context.

        Returns:
            The step's output.
        """

    def step(self, **options: Unpack[StepOptions]) -> Step[I_contra, O_co, M_contra, S_contra]:
        """Make a step of the kind; its id is the name behind the dot, unless `id=` says otherwise.

        Args:
            **options: See [`StepOptions`][noetic_py.context.step.StepOptions].

        Raises:
            ConfigError: An option is unknown or out of range, or the class is not valid; code `"step-kind"`.
        """
        check_kind(type(self))
        fields = read_options(options)
        name = fields.pop("id", None) or self.kind.rpartition(".")[2]
        goes_on = takes_none(self.run, next(iter(inspect.signature(self.run).parameters.values())))
        return Step(id=name, kind=self.kind, spec=self, body=self.run, counted=True, goes_on=goes_on, **fields)

    @property
    def fn(self) -> Callable[..., object]:
        """The function whose annotations say what the step takes and gives."""
        return self.run


AnyStepKind: TypeAlias = StepKind[Any, Any, Any, Any]


def is_kind_name(name: str) -> bool:
    """Whether a kind of a plugin may have this name; no kind of the library's has one with a dot."""
    return _NAME.fullmatch(name) is not None


def check_kind(cls: object) -> type[AnyStepKind]:
    """The class, where it is a kind of step.

    Raises:
        ConfigError: It is not, has no valid name, or its `run` is not async; code `"step-kind"`.
    """
    if not _is_kind(cls):
        raise ConfigError(
            f"{cls!r:.80} is not a valid kind of step; expected a class below StepKind",
            code="step-kind",
            hint="class Delay(StepKind[str, str]): ...",
        )
    name: object = getattr(cls, "kind", None)
    if not isinstance(name, str) or not is_kind_name(name):
        raise ConfigError(
            f"kind = {name!r:.80} of {cls.__qualname__} is not a valid name for a kind of step; expected a namespace, "
            "a dot and a name, of letters, digits and dashes",
            code="step-kind",
            hint='kind = "acme.delay"',
        )
    if not inspect.iscoroutinefunction(cls.run) or len(inspect.signature(cls.run).parameters) != 3:
        raise ConfigError(
            f"{cls.__qualname__}.run is not a valid run; expected an async method of an input and a context",
            code="step-kind",
            hint="async def run(self, value, ctx): ...",
        )
    return cls


def _is_kind(cls: object) -> TypeIs[type[AnyStepKind]]:
    return isinstance(cls, type) and issubclass(cls, StepKind)
