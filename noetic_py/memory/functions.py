"""`@function`: a method of a layer that code calls through its handle, and the model as a tool."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from attrs import define, field, frozen

from noetic_py.context.protocol import CURRENT, noted
from noetic_py.errors import ConfigError
from noetic_py.memory.binding import Draft
from noetic_py.tools.definition import MISSING, AnyTool, Tool, inject_missing
from noetic_py.tools.signature import Signature, read_docs, read_signature

if TYPE_CHECKING:
    from noetic_py.memory.layer import AnyLayer

FnT = TypeVar("FnT", bound=Callable[..., Awaitable[Any]])

_MARK = "__noetic_function__"
_ATTEMPTS = 5


@frozen(eq=False)
class LayerFunction:
    """A function of a layer.

    Attributes:
        fn: The method as it was written.
        name: What the model knows it by, behind the layer's id.
        description: What the model reads about it.
        model: Whether the model may call it.
        needs_approval: Whether a call of the model waits for a person.
    """

    fn: Callable[..., Awaitable[Any]]
    name: str
    description: str
    model: bool = True
    needs_approval: bool = False
    _parts: _Parts = field(factory=lambda: _Parts(), init=False, repr=False)

    def tool(self, layer: str) -> AnyTool:
        """The function as a tool of the model, named `layer/name`.

        Raises:
            ConfigError: A parameter has no type, or one without a JSON schema.
        """
        made = self._parts.tools.get(layer)
        if made is None:
            made = self._parts.tools[layer] = self._made(layer)
        return made

    def _made(self, layer: str) -> AnyTool:
        name = f"{layer}/{self.name}"
        # Bound to something, so that the signature begins behind `self`.
        read = read_signature(MethodType(self.fn, layer), name)

        async def run(ctx: Any, **values: object) -> Any:
            return await self.run(ctx.memory[layer], values)

        # The signature and the docstring are those of the function.
        vars(run)["__wrapped__"] = self.fn
        return Tool(
            fn=run,
            name=name,
            description=self.description,
            needs_approval=self.needs_approval,
            signature=Signature(read.source, "ctx", read.parameters, read.names),
            docs=read_docs(self.fn.__doc__).parameters,
            where="here",
        )

    async def call(self, layer: AnyLayer, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        """Call it from code; what it is given is checked as what a model sends is.

        Raises:
            ToolArgumentsInvalid: An argument does not fit; the state stays as it was.
            TypeError: An argument is missing or unknown.
        """
        given = inspect.signature(self.fn).bind(layer, *args, **kwargs).arguments
        given.pop(next(iter(given)))
        return await self.run(layer, self.tool(layer.id or type(layer).__name__).parse(given, explicit=True))

    async def run(self, layer: AnyLayer, values: Mapping[str, object]) -> Any:
        """Run it on a draft of the state, which becomes the state when it returns."""
        binding = layer.binding
        if isinstance(binding, Draft):
            # A function or a hook of the layer's own has called it: what both do counts together.
            return await self.fn(layer, **self._filled(layer, values))
        for left in reversed(range(_ATTEMPTS)):
            draft = Draft(binding)
            result = await self.fn(layer.bound(draft), **self._filled(layer, values))
            try:
                if draft.commit():
                    binding.note(Called(self, values, result, draft.base, binding.peek()))
            except ConfigError as error:
                # Another call has changed the state meanwhile, and what both have done cannot be joined: once more.
                if error.code != "state-conflict" or not left:
                    raise
            else:
                return result
        raise AssertionError

    async def again(self, layer: AnyLayer, values: Mapping[str, object]) -> object:
        """Do what a call has done once more, on the state that a handle stands on."""
        return await self.fn(layer, **self._filled(layer, values))

    def _filled(self, layer: AnyLayer, values: Mapping[str, object]) -> dict[str, object]:
        """The values, and the services that were not given."""
        tool = self.tool(layer.id or type(layer).__name__)
        if not tool.injected:
            return dict(values)
        services = layer.ctx.services

        def inject(name: str, kind: type[object]) -> object:
            return services.get(kind, MISSING)

        return {**values, **inject_missing(tool.name, tool.injected, values, inject)}


@frozen(eq=False)
class Called:
    """A call that has changed a layer's state.

    Attributes:
        function: What was called.
        values: Its arguments.
        result: What it has given.
        before: The state that it began with.
        after: The state with what it has changed.
    """

    function: LayerFunction
    values: Mapping[str, Any]
    result: object
    before: object
    after: object


@define(eq=False)
class _Parts:
    """Tools of a function, one for each layer id; made on first use, because they need pydantic."""

    tools: dict[str, Any] = field(factory=dict[str, Any])


@overload
def function(fn: FnT, /) -> FnT: ...
@overload
def function(
    *, name: str = ..., description: str = ..., model: bool = ..., needs_approval: bool = ...
) -> Callable[[FnT], FnT]: ...
def function(
    fn: object = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    model: bool = True,
    needs_approval: bool = False,
) -> Any:
    """Make an async method of a [`MemoryLayer`][noetic_py.MemoryLayer] a function that code and the model can call.

    What it is given is checked against its annotations. It works on a copy of `self.state`, which takes the state's
    place when it returns; when it raises, the state stays as it was.

    Args:
        fn: The method.
        name: What the model calls it, behind the layer's id and a slash; the method's name when left out.
        description: What the model reads about it; the docstring when left out.
        model: Whether the model gets it as a tool.
        needs_approval: Whether a call of the model waits for a person.

    Raises:
        ConfigError: It is not an async function; code `"layer-function"`.
    """
    if fn is None:
        return functools.partial(
            _decorated, name=name, description=description, model=model, needs_approval=needs_approval
        )
    return _decorated(fn, name=name, description=description, model=model, needs_approval=needs_approval)


def _decorated(fn: object, *, name: str | None, description: str | None, model: bool, needs_approval: bool) -> object:
    if not inspect.iscoroutinefunction(fn):
        raise ConfigError(
            f"{getattr(fn, '__qualname__', fn)!r} is not a valid function of a layer; expected an async function",
            code="layer-function",
            hint="@function stands in front of an `async def` of a MemoryLayer",
        )
    text = description if description is not None else inspect.getdoc(fn) or ""
    made = LayerFunction(fn, name or fn.__name__, text.partition("\n\nArgs:")[0].strip(), model, needs_approval)

    @noted(lambda layer: CURRENT.get())
    @functools.wraps(fn)
    async def call(self: AnyLayer, *args: object, **kwargs: object) -> Any:
        return await made.call(self, args, kwargs)

    setattr(call, _MARK, made)
    return call


_FUNCTIONS: dict[type[object], Mapping[str, LayerFunction]] = {}


def functions_of(layer: type[object]) -> Mapping[str, LayerFunction]:
    """The functions of a layer's class, by the name of the method."""
    known = _FUNCTIONS.get(layer)
    if known is None:
        known = _FUNCTIONS[layer] = _found_in(layer)
    return known


def _found_in(layer: type[object]) -> Mapping[str, LayerFunction]:
    found: dict[str, LayerFunction] = {}
    for base in reversed(layer.__mro__):
        for name, value in vars(base).items():
            made = getattr(value, _MARK, None)
            if isinstance(made, LayerFunction):
                found[name] = made
            elif name in found:
                # Overridden by something that is not a function.
                del found[name]
    return found
