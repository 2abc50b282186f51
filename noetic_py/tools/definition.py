"""`Tool` and `@tool`: a function that a model may call, and how it is called."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, closing
from enum import Enum
from functools import partial
from math import isfinite
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeGuard,
    overload,
)

import attrs
from anyio import to_thread
from attrs import define, evolve, field, frozen
from typing_extensions import TypedDict, Unpack

from noetic_py.context.hooks import AnyHook, read_hooks, read_tags
from noetic_py.core.diagnostics import unknown_keyword, warn
from noetic_py.core.items import ContentPart, FunctionCall, InputText, JsonValue, OutputText
from noetic_py.core.secrets import Secret
from noetic_py.core.types import M, M_contra, O_co, P, R, Replay, S, S_contra
from noetic_py.errors import CodecError, ConfigError, NoContextError, NoDescriptionWarning
from noetic_py.redaction import MASK, redact, with_article
from noetic_py.tools.signature import Injected, Signature, read_docs, read_signature

if TYPE_CHECKING:
    from noetic_py.context.context import Context
    from noetic_py.context.read import AnyReadContext
    from noetic_py.tools.arguments import Arguments


def render_output(value: object, *, tool: str) -> str | tuple[ContentPart, ...]:
    """A tool's value as the output of a function call.

    Text and content parts stay as they are, `None` is an empty text. Everything else becomes compact JSON: JSON's own
    values, pydantic models, dataclasses, attrs classes, enums, dates, decimals, UUIDs, paths, sets and bytes that are
    text. This is for reading, not for storing: no type can be recovered from it. Secrets are masked, and so is
    every value that is known as one.

    Args:
        value: What the tool returned.
        tool: The tool's name, for messages.

    Raises:
        CodecError: There is no JSON for the value, or for something inside it.
    """
    if isinstance(value, str):
        return redact(value)
    if value is None:
        return ""
    if isinstance(value, ContentPart):
        return (_shown(value),)
    if _is_content(value):
        return tuple(InputText(text=redact(part)) if isinstance(part, str) else _shown(part) for part in value)
    if isinstance(value, Secret):
        return MASK
    # Loaded by now, because the arguments of the call were checked with it.
    from pydantic_core import to_json

    try:
        return redact(to_json(value, fallback=_fields, inf_nan_mode="strings").decode())
    except (ValueError, TypeError, RecursionError) as error:
        raise CodecError(
            f"tool {tool!r} returned {with_article(type(value).__qualname__)} that has no JSON form: {error}",
            hint="return text, JSON values, content parts, or a pydantic model, dataclass or attrs class of these",
        ) from error


def _is_content(value: object) -> TypeGuard[list[str | ContentPart] | tuple[str | ContentPart, ...]]:
    if not isinstance(value, list | tuple):
        return False
    kinds: list[type[object]] = [type(part) for part in _parts(value)]
    # A list of nothing but text is data, and no list of parts.
    return any(issubclass(kind, ContentPart) for kind in kinds) and all(issubclass(k, str | ContentPart) for k in kinds)


def _parts(value: Any) -> list[object]:
    return list(value)


def _shown(part: ContentPart) -> ContentPart:
    if isinstance(part, InputText | OutputText) and redact(part.text) != part.text:
        return attrs.evolve(part, text=redact(part.text))
    return part


def _fields(value: object) -> object:
    if isinstance(value, Secret):
        return MASK
    kind: type[object] = type(value)
    if not attrs.has(kind):
        raise TypeError(f"{kind.__qualname__} is not a class that can be read")
    return {f.name: getattr(value, f.name) for f in attrs.fields(kind)}


class _Missing(Enum):
    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing.MISSING
"""Returned by an injector without a value of the type; the function's default is used then."""

Injector: TypeAlias = Callable[[str, type[Any]], object]
"""Gives the value for a parameter, by its name and the class that is asked for, or `MISSING`."""

Emit: TypeAlias = Callable[[object], Awaitable[None] | None]
"""Takes each value of a generator tool, before the generator goes on."""


@frozen(eq=False)
class RunBinding:
    """The resources of a run for a tool that is called directly from the body of a step.

    Attributes:
        ctx: The context.
        inject: Where injected values come from.
    """

    ctx: object
    inject: Injector


def _no_run() -> RunBinding | None:
    return None


_binding: Callable[[], RunBinding | None] = _no_run


def set_run_binding(source: Callable[[], RunBinding | None]) -> Callable[[], RunBinding | None]:
    """Say where a tool that is called directly finds its run, and return what held before; the engine does."""
    global _binding
    before, _binding = _binding, source
    return before


def inject_missing(
    tool: str, injected: Mapping[str, Injected], given: Mapping[str, object], inject: Injector
) -> dict[str, object]:
    """The values of injected parameters that were not given.

    Raises:
        ConfigError: There is nothing of the type, and the parameter has no default.
    """
    found: dict[str, object] = {}
    for parameter in injected.values():
        if parameter.name in given:
            continue
        value = inject(parameter.name, parameter.type)
        if value is not MISSING:
            found[parameter.name] = value
        elif parameter.required:
            kind = parameter.type.__qualname__
            raise ConfigError(
                f"tool {tool!r}: nothing of type {kind} to inject into parameter {parameter.name!r}",
                code="tool-injection",
                hint=f"give the run services={{{kind}: ...}}, or a layer of that type; data that the model is to send "
                "needs a type that pydantic knows",
            )
    return found


def fill_direct_call(
    tool: str,
    signature: Signature,
    injected: Callable[[], Mapping[str, Injected]],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a direct call, with what the run fills where the caller gave nothing.

    Raises:
        NoContextError: The tool takes a context, none was given, and there is no run to take it from.
    """
    run = _binding()
    if signature.context is not None and signature.context not in kwargs and not (args and _is_context(args[0])):
        if run is None:
            raise NoContextError(
                f"tool {tool!r} takes a context, and was called outside a run",
                hint="call it from a step, or give the context as its first argument",
            )
        args = (run.ctx, *args)
    if run is None:
        return args, kwargs
    given = signature.source.bind_partial(*args, **kwargs).arguments
    return args, kwargs | inject_missing(tool, injected(), given, run.inject)


def _is_context(value: object) -> bool:
    return getattr(type(value), "__noetic_context__", False) is True


# ------------------------------------------------------------------------------------------------------------- running


def kind_of(fn: Callable[..., object]) -> Literal["here", "thread"]:
    """Whether calling the function is quick, because it only makes a coroutine or a generator, or wants a thread."""
    # An object may have a `__call__` that is a coroutine function.
    for candidate in (fn, getattr(fn, "__call__")):  # noqa: B004, B009
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            return "here"
    return "thread"


async def run(
    fn: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    where: Literal["here", "thread"],
    emit: Emit | None = None,
) -> object:
    """Call the function and wait for its value; a generator is run to its end, and its values are a list.

    Context variables are seen in a worker thread as well; a cancelled call waits for the thread.
    """
    result: Any
    if where == "here":
        result = fn(*args, **kwargs)
    else:
        # Boxed, because trio refuses a bare coroutine that comes out of a thread.
        (result,) = await to_thread.run_sync(lambda: (fn(*args, **kwargs),))
    if inspect.isawaitable(result):
        result = await result
    if inspect.isasyncgen(result):
        return await _drain(result, emit)
    if inspect.isgenerator(result):
        return await _drain_in_thread(result, emit)
    return result


async def _drain(generator: AsyncGenerator[object, Any], emit: Emit | None) -> list[object]:
    values: list[object] = []
    async with aclosing(generator):
        async for value in generator:
            values.append(value)
            await _pass_on(value, emit)
    return values


async def _drain_in_thread(generator: Generator[object, Any, object], emit: Emit | None) -> list[object]:
    values: list[object] = []
    with closing(generator):
        while (value := await to_thread.run_sync(next, generator, MISSING)) is not MISSING:
            values.append(value)
            await _pass_on(value, emit)
    return values


async def _pass_on(value: object, emit: Emit | None) -> None:
    if emit is not None:
        done = emit(value)
        if done is not None:
            await done


Approval: TypeAlias = "bool | Callable[[FunctionCall, AnyReadContext], bool | Awaitable[bool]]"
"""Whether a person has to approve a call: always, never, or as a function of the call and the context says."""
ReconcileCall: TypeAlias = "Callable[[dict[str, Any], AnyReadContext], Awaitable[Any]]"
"""Says what became of a call that may be made only once: what it has given, or `NOT_DONE`."""

_WIRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """The options of [`tool`][noetic_py.tool].

    Attributes:
        name: What the model calls it; the function's name by default.
        description: What the model reads about it; the docstring, without its section on parameters, by default.
        needs_approval: Whether a call waits for a person, or a function of the call and the context that says so.
        long_running: The function only starts the work; the result is given to the run later, as an answer.
        expires: Seconds within which an approval or a result has to come; any time when absent.
        replay: Whether a call that was in flight at a crash may run again: `"repeatable"`, `"keyed"`, `"once"`.
        reconcile: For `replay="once"`: an async function `(arguments, ctx)` that is asked when a call with these
            arguments, by parameter, was started before a crash, and it is unknown whether it did its work. It gives
            what the function would have given, or [`NOT_DONE`][noetic_py.NOT_DONE], and then the call is made.
        timeout: Seconds a call may take; as long as it likes when absent.
        retries: How often in a row the model is asked again because the tool raised `ModelRetry` or refused its
            arguments; 1 by default.
        strict: Whether the provider is to keep the model to the schema; some types have no strict schema.
        tags: Words about the tool, for hooks.
        hooks: Functions that are called before and after a model's call of it; see
            `noetic_py.context.hooks`.
    """

    name: str
    description: str
    needs_approval: bool | Callable[[FunctionCall, AnyReadContext], bool | Awaitable[bool]]
    long_running: bool
    expires: float
    replay: Replay
    reconcile: ReconcileCall
    timeout: float
    retries: int
    strict: bool
    tags: Iterable[str]
    hooks: Iterable[AnyHook]


def wire_name(name: str) -> str:
    """A tool's name as providers allow it: `facts/remember` becomes `facts__remember`.

    Raises:
        ConfigError: The name holds something else than letters, digits, `_`, `-` and `/`, or is too long.
    """
    wire = name.replace("/", "__")
    if _WIRE_NAME.fullmatch(wire) is None:
        raise ConfigError(
            f"{name!r} is not a valid name for a tool",
            code="tool-name",
            hint="up to 64 ASCII letters, digits, '_', '-'; a '/' counts as two",
        )
    return wire


def _as_tags(given: Iterable[str]) -> frozenset[str]:
    return read_tags(given, code="tool-option")


def _as_hooks(given: Iterable[AnyHook]) -> tuple[AnyHook, ...]:
    return read_hooks(given, "the tool")


@define(eq=False)
class _Lazy:
    """The parts that are made on first use, because they need pydantic."""

    arguments: Arguments | None = None
    injected: Mapping[str, Injected] | None = None
    definition: Mapping[str, JsonValue] | None = None


@frozen(kw_only=True)
class Tool(Generic[P, O_co, M_contra, S_contra]):
    """A function that a model may call; made by [`tool`][noetic_py.tool].

    Called like the function it is the function. A context that the caller leaves out, and injected parameters, are
    filled from the run when the call stands in the body of a step; outside a run they have to be given.

    Attributes:
        fn: The function.
        name: Its name.
        description: What the model reads about it.
        needs_approval: Whether a call waits for a person.
        long_running: Whether the result comes later, as an answer to the run.
        expires: Seconds within which an approval or a result has to come, `None` for any time.
        replay: Whether a call that was in flight at a crash may run again.
        reconcile: Says what became of a call, when it may be made only once and a crash came in its middle.
        timeout: Seconds a call may take, `None` for any.
        retries: How often in a row the model is asked again.
        strict: Whether the schema is a strict one.
        tags: Words about the tool, for hooks.
        hooks: Functions that are called before and after a model's call of it.
    """

    __noetic_shared__: ClassVar[bool] = True

    fn: Callable[..., O_co]
    name: str
    description: str = ""
    needs_approval: Approval = False
    long_running: bool = False
    expires: float | None = None
    replay: Replay = "repeatable"
    reconcile: ReconcileCall | None = None
    timeout: float | None = None
    retries: int = 1
    strict: bool = False
    tags: frozenset[str] = field(default=frozenset(), converter=_as_tags)
    hooks: tuple[AnyHook, ...] = field(default=(), converter=_as_hooks)
    _signature: Signature = field(alias="signature", eq=False, repr=False)
    _docs: Mapping[str, str] = field(alias="docs", factory=dict[str, str], eq=False, repr=False)
    _where: Literal["here", "thread"] = field(alias="where", eq=False, repr=False)
    _schema: Mapping[str, JsonValue] | None = field(alias="schema", default=None, eq=False, repr=False)
    _lazy: _Lazy = field(factory=_Lazy, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.reconcile is not None and self.replay != "once":
            raise ConfigError(
                f"reconcile= of tool {self.name!r} needs replay='once'", code="tool-option", hint='replay="once"'
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> O_co:
        """Call the function.

        Raises:
            NoContextError: The function takes a context, none was given, and the call stands outside a run.
            TypeError: An argument is missing or unknown, as with every function.
        """
        if self._signature.plain:
            return self.fn(*args, **kwargs)
        filled = fill_direct_call(self.name, self._signature, self._injected, args, kwargs)
        return self.fn(*filled[0], **filled[1])

    @property
    def wire_name(self) -> str:
        """The name as the provider gets it."""
        return wire_name(self.name)

    @property
    def takes_context(self) -> bool:
        """Whether the function's first parameter is the context."""
        return self._signature.context is not None

    @property
    def injected(self) -> Mapping[str, Injected]:
        """The parameters that the run fills, by name.

        Raises:
            ConfigError: An annotation names something that does not exist.
        """
        return self._injected()

    @property
    def parameters(self) -> Mapping[str, JsonValue]:
        """The JSON schema of what the model sends; made once, not to be changed.

        Raises:
            ConfigError: A parameter has a type without a JSON schema, or one that does not exist.
        """
        return self._arguments().schema

    @property
    def secret_parameters(self) -> frozenset[str]:
        """The parameters whose values only the function may see: in whose type a `Secret` is.

        Raises:
            ConfigError: As for `parameters`.
        """
        return self._arguments().secret

    def definition(self) -> Mapping[str, JsonValue]:
        """The tool as [`ModelRequest`][noetic_py.ModelRequest] has it; made once, not to be changed.

        Raises:
            ConfigError: As for `parameters`.
        """
        if self._lazy.definition is None:
            self._lazy.definition = {
                "name": self.wire_name,
                "description": self.description,
                "parameters": self._arguments().schema,
                "strict": self.strict,
            }
        return self._lazy.definition

    def parse(self, arguments: str | Mapping[str, object], *, explicit: bool = False) -> dict[str, object]:
        """Check arguments, and turn them into values of the parameters' types.

        What was not sent is absent from the answer, so that the function's default holds; of a default that can
        change, such as a list, the answer has a copy. Values that plainly mean the type pass for it: `"5"` for an
        integer.

        Args:
            arguments: The JSON text that the model sent, or a mapping.
            explicit: Let a mapping hold injected parameters too; for arguments that code wrote, never for a model's.

        Raises:
            ToolArgumentsInvalid: They are not a JSON object, or do not fit; the message tells the model what to mend.
            ConfigError: As for `parameters`.
        """
        return self._arguments().parse(arguments, explicit=explicit)

    def received(self, values: Mapping[str, object]) -> dict[str, JsonValue]:
        """The arguments of the function for values that `parse` returned, as JSON.

        This is what rules, hooks and people judge: defaults are filled in, and equal values have one form however they
        were spelled. A mask stands for a secret, and a text that begins with `[not shown` for a value without a JSON
        form.

        Args:
            values: By parameter.

        Raises:
            ConfigError: As for `parameters`.
        """
        return self._arguments().received(values)

    async def call(
        self, values: Mapping[str, object], *, ctx: object = None, inject: Injector, emit: Emit | None = None
    ) -> object:
        """Run the function with values that `parse` gave, and wait for what it returns.

        A sync function runs in a worker thread, and a cancelled call waits for it. A generator runs to its end; its
        values make up a list. Whatever the function raises comes out as it is.

        Args:
            values: By parameter; an injected parameter that is among them is not injected.
            ctx: The context, for a function that takes one.
            inject: Gives the value of a parameter by its name and class, or
                [`MISSING`][noetic_py.tools.MISSING].
            emit: Is given each value of a generator, and awaited where it returns an awaitable, before the generator
                goes on.

        Raises:
            ConfigError: There was nothing to inject into a parameter without a default.
        """
        kwargs = dict(values)
        if not self._signature.plain:
            kwargs.update(inject_missing(self.name, self._injected(), kwargs, inject))
        args = (ctx,) if self._signature.context is not None else ()
        return await run(self.fn, args, kwargs, where=self._where, emit=emit)

    def with_options(self, **options: Unpack[ToolOptions]) -> Tool[P, O_co, M_contra, S_contra]:
        """The same tool with other options.

        Raises:
            ConfigError: An option is wrong.
        """
        _check(options)
        return evolve(self, **options)

    @classmethod
    def from_schema(
        cls,
        fn: Callable[..., Awaitable[object]],
        *,
        parameters: Mapping[str, JsonValue],
        **options: Unpack[ToolOptions],
    ) -> Tool[..., Awaitable[object]]:
        """A tool whose schema comes from elsewhere, from a server for instance.

        Args:
            fn: Gets the object that the model sent as keyword arguments, checked against the schema.
            parameters: The JSON schema, an object at its root. A reference to another document is never fetched, and a
                regular expression with a look-around or a back-reference is not checked.
            options: As for [`tool`][noetic_py.tool]; `name` is needed.

        Raises:
            ConfigError: An option is wrong.
        """
        if "name" not in options:
            raise ConfigError("a tool made from a schema needs a name", code="tool-name", hint='name="search"')
        _check(options)
        signature = Signature(inspect.signature(fn), None, (), {})
        return Tool(fn=fn, signature=signature, where=kind_of(fn), schema=dict(parameters), **options)

    def _arguments(self) -> Arguments:
        found = self._lazy.arguments
        if found is None:
            from noetic_py.tools.arguments import SchemaArguments, model_arguments
            from noetic_py.tools.calls import secret_parameters

            if self._schema is None:
                found = model_arguments(self._signature, self._docs, tool=self.name, strict=self.strict)
            else:
                secret, defaults = secret_parameters(self._schema), self._signature.defaults
                found = SchemaArguments(self.name, dict(self._schema), secret, defaults)
            self._lazy.arguments = found
        return found

    def _injected(self) -> Mapping[str, Injected]:
        found = self._lazy.injected
        if found is None:
            if self._signature.decided:
                found = {p.name: p.as_injected() for p in self._signature.parameters if p.role == "injected"}
            else:
                found = self._arguments().injected
            self._lazy.injected = found
        return found


class ToolSource(Protocol):
    """Lists tools when a model is about to be called, for tools that come and go."""

    async def tools(self) -> Sequence[Tool[..., object]]:
        """The tools there are now."""
        ...


class _ToolDecorator:
    """The decorator that `@tool(...)` returns."""

    __slots__ = ("_options",)

    def __init__(self, options: ToolOptions) -> None:
        self._options = options

    @overload
    def __call__(self, fn: Callable[Concatenate[Context[M, S], P], R], /) -> Tool[P, R, M, S]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Tool[P, R]: ...
    def __call__(self, fn: Callable[..., object], /) -> AnyTool:
        return make_tool(fn, self._options)


@overload
def tool(**options: Unpack[ToolOptions]) -> _ToolDecorator: ...
@overload
def tool(fn: Callable[Concatenate[Context[M, S], P], R], /) -> Tool[P, R, M, S]: ...
@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
def tool(fn: Callable[..., object] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool of a function: a coroutine function, a plain one (it runs in a worker thread), or a generator.

    ```python
    @tool
    async def search(query: str, limit: int = 5) -> list[str]: ...
    ```

    The model reads the docstring, and about each parameter what it says in Google, NumPy or Sphinx style.

    The first parameter may be the context, `ctx: Context[Mem, State]`. Of the others the model fills all but these,
    which the run fills and the model never sees:

    - `db: Inject[Db]`: a service, by its class;
    - a parameter whose class is a memory layer, subscripted or not: the run's layer of that class;
    - a parameter whose class is one that pydantic knows nothing of: a service. Data of your own that a model is to
      send is therefore a pydantic model, a dataclass, a `TypedDict` or a `NamedTuple`.

    `| None` and `Annotated` around them change nothing. An argument that the caller gives wins over an injected one.

    Args:
        fn: The function.
        options: See [`ToolOptions`][noetic_py.tools.ToolOptions].

    Raises:
        ConfigError: The function cannot be a tool, or an option is wrong.
    """
    if fn is None:
        return _ToolDecorator(options)
    return make_tool(fn, options)


def make_tool(fn: Callable[..., object], options: ToolOptions, *, hints: Mapping[str, object] | None = None) -> AnyTool:
    """Make a tool of a function whose types are known otherwise than from its annotations.

    Args:
        fn: The function.
        options: As for [`tool`][noetic_py.tool].
        hints: Types by parameter, in place of the function's annotations.

    Raises:
        ConfigError: The function cannot be a tool, or an option is wrong.
    """
    given: object = fn
    if not callable(given) or isinstance(given, Tool | type):
        raise ConfigError(f"{fn!r} is not a function", code="tool-function", hint="@tool goes on a function")
    name = options.get("name") or getattr(fn, "__name__", None)
    if name is None:
        raise ConfigError(f"{fn!r} has no name", code="tool-name", hint='tool(name="search")(fn)')
    docs = read_docs(_doc_of(fn))
    checked: ToolOptions = {"description": docs.description, **options, "name": name}
    _check(checked)
    signature = read_signature(fn, name, hints)
    if not checked["description"].strip():
        _warn_bare(fn, name)
    return Tool(fn=fn, signature=signature, docs=docs.parameters, where=kind_of(fn), **checked)


def _warn_bare(fn: Any, name: str) -> None:
    while isinstance(fn, partial):
        fn = fn.func
    code = getattr(inspect.unwrap(fn), "__code__", None)
    message = f"tool {name!r} has no description: write a docstring, or give description=; a model chooses by it"
    if code is None:
        warn(message, NoDescriptionWarning)
    else:
        warnings.warn_explicit(message, NoDescriptionWarning, code.co_filename, code.co_firstlineno)


def _doc_of(fn: object) -> str | None:
    while isinstance(fn, partial):
        fn = fn.func
    found: str | None = fn.__doc__
    return found


_OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str), "text"),
    "description": (lambda value: isinstance(value, str), "text"),
    "needs_approval": (lambda value: isinstance(value, bool) or callable(value), "True, False or a function"),
    "long_running": (lambda value: isinstance(value, bool), "True or False"),
    "expires": (lambda value: value is None or (_is_number(value) and value > 0), "seconds above zero"),
    "replay": (lambda value: value in ("repeatable", "keyed", "once"), '"repeatable", "keyed" or "once"'),
    "reconcile": (
        lambda value: value is None or inspect.iscoroutinefunction(value),
        "an async function of the arguments and the context",
    ),
    "timeout": (lambda value: value is None or (_is_number(value) and value > 0), "seconds above zero"),
    "retries": (lambda value: _is_number(value) and value >= 0 and value == int(value), "a whole number, 0 or more"),
    "strict": (lambda value: isinstance(value, bool), "True or False"),
    # Looked at where they are kept.
    "tags": (lambda value: True, "texts"),
    "hooks": (lambda value: True, "hooks"),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check(options: ToolOptions) -> None:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise unknown_keyword("a tool", name, _OPTIONS, code="tool-option")
        fits, wanted = _OPTIONS[name]
        if not fits(value):
            raise ConfigError(f"{name}={value!r} of a tool is not {wanted}", code="tool-option")
    if "name" in options:
        wire_name(options["name"])


AnyTool: TypeAlias = Tool[..., Any, Any, Any]
"""A tool with whatever parameters, output, memory and state."""
