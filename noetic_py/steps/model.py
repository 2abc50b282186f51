"""`call_model`: one model round: an answer, and the tools it calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from attrs import field, frozen

from noetic_py._types import MD, SD, A, B, C, R
from noetic_py.budget import Budget
from noetic_py.context import ReadContext
from noetic_py.errors import ConfigError
from noetic_py.hooks import Hook
from noetic_py.items import ModelInput
from noetic_py.models.base import Model, ModelSettings
from noetic_py.steps.step import Retry, Step, is_whole, read_options

if TYPE_CHECKING:
    from noetic_py.tools import Tool

__all__ = ["Instructions", "ModelSpec", "call_model"]

Instructions: TypeAlias = str | Callable[[ReadContext[MD, SD]], str | Awaitable[str]]


@frozen(eq=False)
class ModelSpec:
    """The parts of a model round; see [`call_model`][noetic_py.call_model]."""

    model: str | Model | None
    outputs: tuple[Any, ...]
    validate: Callable[[Any], Any] | None
    output_retries: int
    instructions: Any
    tools: tuple[Any, ...]
    settings: ModelSettings
    # What is made of the types when they are first needed, because it takes pydantic.
    cache: dict[str, Any] = field(factory=dict[str, Any])


@overload
def call_model(
    model: str | Model | None = ...,
    *,
    instructions: str | Callable[[ReadContext[MD, SD]], str | Awaitable[str]] | None = None,
    tools: Sequence[Tool[..., object, MD, SD]] | None = None,
    settings: ModelSettings = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
) -> Step[ModelInput, str, MD, SD]: ...
@overload
def call_model(
    model: str | Model | None = ...,
    *,
    output: type[R],
    validate: Callable[[R], R | Awaitable[R]] | None = None,
    output_retries: int = 1,
    instructions: str | Callable[[ReadContext[MD, SD]], str | Awaitable[str]] | None = None,
    tools: Sequence[Tool[..., object, MD, SD]] | None = None,
    settings: ModelSettings = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
) -> Step[ModelInput, R, MD, SD]: ...
@overload
def call_model(
    model: str | Model | None = ...,
    *,
    output: tuple[type[A], type[B]],
    output_retries: int = 1,
    instructions: str | Callable[[ReadContext[MD, SD]], str | Awaitable[str]] | None = None,
    tools: Sequence[Tool[..., object, MD, SD]] | None = None,
    settings: ModelSettings = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
) -> Step[ModelInput, A | B, MD, SD]: ...
@overload
def call_model(
    model: str | Model | None = ...,
    *,
    output: tuple[type[A], type[B], type[C]],
    output_retries: int = 1,
    instructions: str | Callable[[ReadContext[MD, SD]], str | Awaitable[str]] | None = None,
    tools: Sequence[Tool[..., object, MD, SD]] | None = None,
    settings: ModelSettings = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
) -> Step[ModelInput, A | B | C, MD, SD]: ...
def call_model(
    model: Any = None,
    *,
    output: Any = None,
    validate: Any = None,
    output_retries: int = 1,
    instructions: Any = None,
    tools: Any = None,
    settings: ModelSettings | None = None,
    id: str | None = None,
    retry: Any = 1,
    timeout: float | None = None,
    budget: Budget | None = None,
    hooks: Sequence[Any] = (),
) -> Any:
    """Ask a model once, and run the tools it calls, at once; put it into a `loop` for an agent.

    The input becomes a part of the conversation: a text is a user message, `None` goes on from what is there. The
    output is the answer's text, or a value of `output`. A round that holds only tool calls has no value: `None`
    inside a loop.

    Args:
        model: A model, its name such as `"openai:gpt-5-mini"`, or `None` for the harness's.
        output: A type the answer has to be of, or a tuple of types; checked by pydantic.
        validate: Called with the output; may change it, wait, or raise `ModelRetry(message)`.
        output_retries: How often the model is asked again when its answer does not fit.
        instructions: The system instructions, or a function of the read-only context that gives them.
        tools: Tools the model may call, besides the harness's.
        settings: [`ModelSettings`][noetic_py.ModelSettings]; the run's win over them, and they over the harness's.
        id: The step's id, `"call_model"` when left out.
        retry: How often a failed call is tried.
        timeout: Seconds the whole round may take.
        budget: Limits for the round.
        hooks: Functions that are called around it, its answer and its tools: see [`Hook`][noetic_py.hooks.Hook].

    Raises:
        ConfigError: An argument is of the wrong kind; code `"call-model"`.
        ModelError: While running: the provider failed; one of its subclasses.
        BudgetExceeded: While running: the call does not fit the budget.
        NoOutput: While running, outside a loop: the answer holds tool calls only.
    """
    outputs: tuple[Any, ...] = () if output is None or output is str else _several(output)
    _check(model, output, output_retries, instructions, tools)
    options: dict[str, Any] = {"retry": retry, "timeout": timeout, "budget": budget, "hooks": hooks}
    if id is not None:
        options["id"] = id
    fields = read_options(options)
    spec = ModelSpec(
        model=model,
        outputs=outputs,
        validate=validate,
        output_retries=output_retries,
        instructions=instructions,
        tools=tuple(tools or ()),
        settings=ModelSettings() if settings is None else settings,
    )
    made: Step[Any, Any, Any, Any] = Step(
        id=fields.pop("id", "call_model"), kind="model", spec=spec, counted=True, goes_on=True, **fields
    )
    return made


def _several(output: Any) -> tuple[Any, ...]:
    return tuple(output if isinstance(output, tuple) else (output,))  # pyright: ignore[reportUnknownArgumentType] # of any kind


def _check(model: object, output: object, output_retries: object, instructions: object, tools: Any) -> None:
    if isinstance(output, str):
        raise ConfigError(f"output={output!r} is not a type", code="call-model", hint="output=Report")
    if not is_whole(output_retries, 0):
        raise ConfigError(
            f"output_retries={output_retries!r} is not 0 or more", code="call-model", hint="output_retries=1"
        )
    if instructions is not None and not isinstance(instructions, str) and not callable(instructions):
        raise ConfigError(
            f"instructions={instructions!r} is neither text nor a function",
            code="call-model",
            hint='instructions="..."',
        )
    if model is not None and not isinstance(model, str) and not hasattr(model, "respond"):
        raise ConfigError(f"model={model!r} is no model", code="call-model", hint='call_model("openai:gpt-5-mini")')
    for each in tools or ():
        if not hasattr(each, "definition") and not hasattr(each, "tools"):
            raise ConfigError(f"{each!r} is no tool", code="call-model", hint="put @tool on the function")
