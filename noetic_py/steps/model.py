"""`call_model`: one model round, and `select_entries`: a model chooses entries by their descriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, overload

from attrs import field, frozen
from typing_extensions import override

from noetic_py.context.context import AnyContext, current_context
from noetic_py.context.hooks import Hook
from noetic_py.context.read import ReadContext
from noetic_py.context.step import AnyStep, Retry, Spec, Step, is_whole, read_options
from noetic_py.core.budget import Budget
from noetic_py.core.caches import Cache
from noetic_py.core.diagnostics import known_keywords, where_defined
from noetic_py.core.items import ModelInput
from noetic_py.core.types import MD, SD, A, B, C, R
from noetic_py.errors import ConfigError, ModelRetry
from noetic_py.models.model import Model, ModelSettings, check_settings
from noetic_py.steps.handoff import MAX_HANDOFFS, HandoffTargets, Targets, Transfers, agent, check_limit, targets_of
from noetic_py.steps.spawn import spawn

if TYPE_CHECKING:
    from noetic_py.memory.layers.context_pool import CatalogueView
    from noetic_py.memory.listeners import ContextItem
    from noetic_py.tools import Tool
    from noetic_py.tools.definition import AnyTool

T = TypeVar("T")

_ASKED = """Choose the entries whose content is needed to answer the query, the most useful first.
Answer with their ids only, as they stand in the brackets{most}. No entry is an answer too.

Query:
{query}

Entries:
{catalogue}"""


async def select_entries(
    model: str | Model | None,
    pool: CatalogueView[T],
    query: str,
    *,
    limit: int | None = None,
    output_retries: int = 1,
    ctx: AnyContext | None = None,
) -> tuple[ContextItem[T], ...]:
    """Show a model what a pool's entries are about, and return those that it chooses for a query.

    It runs as a step below the one it is called in, in a conversation of its own: it counts against the run's budget,
    leaves nothing in the conversation, and a resumed run does not ask again. A pool that is empty, or out of which
    nothing may be chosen, sends no request.

    Args:
        model: The model, its name, or `None` for the harness's.
        pool: The entries.
        query: What they are wanted for.
        limit: How many to return at most; any number when left out.
        output_retries: How often the model is asked again when it names an entry that there is not.
        ctx: The context of the step, when it is not the one that is running here.

    Returns:
        The entries in the model's order, each once.

    Raises:
        ConfigError: `limit` is not a whole number, 0 or more; code `"select-entries"`.
        NoContextError: It was called outside a step.
        ModelParseError: The model went on naming entries that there are not.
        ModelError: It failed.
    """
    if limit is not None and not is_whole(limit, 0):
        raise ConfigError(f"limit={limit!r} is not 0 or more", code="select-entries", hint="limit=3")
    catalogue = pool.catalogue()
    if not catalogue or limit == 0:
        return ()

    def known(ids: list[str]) -> list[str]:
        chosen = list(dict.fromkeys(ids))
        unknown = [each for each in chosen if each not in pool]
        if unknown:
            raise ModelRetry(f"there is no entry {', '.join(map(repr, unknown))}; choose from the list only")
        return chosen[:limit]

    ask = call_model(
        model,
        output=list[str],
        validate=known,
        output_retries=output_retries,
        settings=ModelSettings(tool_choice="none"),
        id="choose",
    )
    most = "" if limit is None else f", {limit} at most"
    prompt = _ASKED.format(most=most, query=query, catalogue=catalogue)
    running = current_context(required=True) if ctx is None else ctx
    chosen = await spawn(ask, id="select_entries")(prompt, running)
    return tuple(pool.get(each) for each in chosen)


Instructions: TypeAlias = str | Callable[[ReadContext[MD, SD]], str | Awaitable[str]]


@frozen(eq=False)
class ModelSpec(Spec):
    """The parts of a model round; see [`call_model`][noetic_py.call_model]."""

    model: str | Model | None
    outputs: tuple[object, ...]
    validate: Callable[[Any], object] | None
    output_retries: int
    instructions: Any
    tools: tuple[Any, ...]
    settings: ModelSettings
    max_parallel_tools: int | None = field(default=None, metadata={"fingerprint": False})
    # Made of the types on first use, because that needs pydantic; and the tools by their names.
    cache: dict[str, Any] = field(factory=dict[str, Any], init=False)
    # What was counted of the last request, whose instructions may say something of a user.
    counted: Cache[str, Any] = field(factory=lambda: Cache[str, Any](2), init=False, metadata={"fingerprint": False})

    outline: ClassVar[tuple[str, str]] = ("(", ")")
    asks_model: ClassVar[bool] = True

    @override
    def facts(self) -> Sequence[str]:
        model = [] if self.model is None else [self.model if isinstance(self.model, str) else self.model.name]
        # The tools of handoffs are drawn as their targets.
        names = [each.name for each in self.tools if not isinstance(each, Transfers)]
        tools = [f"tools: {', '.join(names)}"] if names else []
        types = [getattr(each, "__name__", str(each)) for each in self.outputs]
        return [*model, *tools, *([f"gives {' or '.join(types)}"] if types else [])]


@overload
def call_model(
    model: str | Model | None = ...,
    *,
    instructions: str | Callable[[ReadContext[MD, SD]], str | Awaitable[str]] | None = None,
    tools: Sequence[Tool[..., object, MD, SD]] | None = None,
    settings: ModelSettings = ...,
    max_parallel_tools: int | None = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
    handoffs: HandoffTargets = ...,
    max_handoffs: int = ...,
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
    max_parallel_tools: int | None = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
    handoffs: HandoffTargets = ...,
    max_handoffs: int = ...,
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
    max_parallel_tools: int | None = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
    handoffs: HandoffTargets = ...,
    max_handoffs: int = ...,
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
    max_parallel_tools: int | None = ...,
    id: str | None = ...,
    retry: Retry | int = ...,
    timeout: float | None = ...,
    budget: Budget | None = ...,
    hooks: Sequence[Hook[MD, SD]] = ...,
    handoffs: HandoffTargets = ...,
    max_handoffs: int = ...,
) -> Step[ModelInput, A | B | C, MD, SD]: ...
@known_keywords("call_model()")
def call_model(
    model: str | Model | None = None,
    *,
    output: object = None,
    validate: Callable[[Any], object] | None = None,
    output_retries: int = 1,
    instructions: object = None,
    tools: Sequence[AnyTool] | None = None,
    settings: ModelSettings | None = None,
    max_parallel_tools: int | None = None,
    id: str | None = None,
    retry: object = 1,
    timeout: float | None = None,
    budget: Budget | None = None,
    hooks: Sequence[object] = (),
    handoffs: HandoffTargets = (),
    max_handoffs: int = MAX_HANDOFFS,
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
        max_parallel_tools: How many calls of one answer run at once; what the harness says when `None`.
        id: The step's id, `"call_model"` when left out.
        retry: How often a failed call is tried.
        timeout: Seconds the whole round may take.
        budget: Limits for the round.
        hooks: Functions that are called around it, its answer and its tools: see
            [`Hook`][noetic_py.context.hooks.Hook].
        handoffs: Steps to which the model may hand over, by a tool each; see [`handoff_to`][noetic_py.handoff_to].
        max_handoffs: How many handoffs may follow one another.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"call-model"`, or `"handoff"`.
        HandoffLimit: While running: there were more handoffs than `max_handoffs`.
        ModelError: While running: the provider failed; one of its subclasses.
        BudgetExceeded: While running: the call does not fit the budget.
        NoOutput: While running, outside a loop: the answer holds tool calls only.
    """
    _check(model, output, output_retries, instructions, tools, settings)
    check_parallel_tools(16 if max_parallel_tools is None else max_parallel_tools)
    options: dict[str, Any] = {"retry": retry, "timeout": timeout, "budget": budget, "hooks": hooks}
    targets = _targets(handoffs, max_handoffs)
    outputs: tuple[Any, ...] = () if output is None or output is str else _several(output)
    given = (*(tools or ()), *(() if targets is None else (Transfers(targets),)))
    known = ModelSettings() if settings is None else settings
    spec = ModelSpec(model, outputs, validate, output_retries, instructions, given, known, max_parallel_tools)
    made = _round(spec, options if id is None else {**options, "id": id})
    return made if targets is None else agent(made, targets, max_handoffs)


def _round(spec: ModelSpec, options: dict[str, object]) -> AnyStep:
    fields = read_options(options)
    return Step(id=fields.pop("id", "call_model"), kind="model", spec=spec, counted=True, goes_on=True, **fields)


def _targets(handoffs: HandoffTargets, limit: object) -> Targets | None:
    check_limit(limit)
    return targets_of(handoffs, "handoffs") if callable(handoffs) or handoffs else None


def check_parallel_tools(most: object) -> None:
    """Refuse an invalid number of calls that run at once.

    Raises:
        ConfigError: It is not valid; code `"max-parallel-tools"`.
    """
    if not is_whole(most, 1):
        raise ConfigError(
            f"max_parallel_tools={most!r} is not a valid number of calls; expected 1 or more",
            code="max-parallel-tools",
            hint="max_parallel_tools=16",
        )


def _several(output: object) -> tuple[object, ...]:
    return tuple(output if isinstance(output, tuple) else (output,))  # pyright: ignore[reportUnknownArgumentType] # of any kind


def _check(model: Any, output: object, output_retries: object, instructions: object, tools: Any, settings: Any) -> None:
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
        raise ConfigError(
            f"model={model!r} is not a valid model; expected a model or its name",
            code="call-model",
            hint='call_model("openai:gpt-5-mini")',
        )
    if settings is not None and not hasattr(settings, "keys"):
        raise ConfigError(
            f"settings={settings!r} is not a valid mapping of settings; expected names and values",
            code="call-model",
            hint='settings={"temperature": 0.2}',
        )
    if model is not None and not isinstance(model, str):
        # The settings that a model given by name takes are not known yet; they are checked when the model is called.
        check_settings(settings or {}, model, "call_model()")
    for each in tools or ():
        if not hasattr(each, "definition") and not hasattr(each, "tools"):
            raise ConfigError(
                f"{where_defined(each)} is not a valid tool; expected a function with @tool",
                code="call-model",
                hint="put @tool on the function",
            )
    names = [each.wire_name for each in tools or () if hasattr(each, "wire_name")]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two of tools= have the name {twice!r}, and a model calls tools by their names",
            code="call-model",
            hint='rename one: found.with_options(name="search_notes")',
        )
