"""The signature and docstring of a function, as a tool."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property, partial
from types import FrameType, NoneType, UnionType
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from attrs import field, frozen
from typing_extensions import is_typeddict

from noetic_py.core.types import T
from noetic_py.errors import ConfigError

_HEADERS = frozenset({"Args:", "Arguments:", "Parameters:"})
_UNDERLINE = re.compile(r"-{3,}\s*$")
_FIELD = re.compile(r":(?:param|parameter|arg|argument|key|keyword|type)\s[^:]*:")
# "name: text", "name (type): text", and starred names, which belong to no parameter a model can fill.
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*+(?:\([^)]*\)\s*+)?:(?:\s+(?P<text>.*))?$")


@frozen
class Docs:
    """A docstring, taken apart.

    Attributes:
        description: All of it but the section on arguments.
        parameters: The text about each parameter, by name.
    """

    description: str = ""
    parameters: Mapping[str, str] = field(factory=dict[str, str])


def read_docs(text: str | None) -> Docs:
    """Take a docstring of Google, NumPy or Sphinx style apart.

    The style is that of the first of these that it has: a section `Args:`, an underlined section `Parameters`, a field
    `:param name:`. What is written in another style stays in the description, as does everything where there is none.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((n for n, line in enumerate(lines) if line.rstrip() in _HEADERS), None)
    if start is not None:
        after = range(start + 1, len(lines))
        end = next((n for n in after if lines[n].strip() and not lines[n][0].isspace()), len(lines))
        return Docs(_around(lines, start, end), _entries(lines[start + 1 : end]))
    start = next((n for n, line in enumerate(lines) if line.rstrip() == "Parameters" and _is_header(lines, n)), None)
    if start is not None:
        end = next((n for n in range(start + 2, len(lines)) if _is_header(lines, n)), len(lines))
        return Docs(_around(lines, start, end), _parsed(lines[start:end], "numpy"))
    kept: list[str] = []
    fields: list[str] = []
    inside = False
    for line in lines:
        # A field goes on in the lines below it that are indented.
        inside = _FIELD.match(line) is not None or (inside and (not line or line[0].isspace()))
        (fields if inside else kept).append(line)
    return Docs("\n".join(kept).strip(), _parsed(fields, "sphinx") if fields else {})


def _around(lines: Sequence[str], start: int, end: int) -> str:
    before, after = "\n".join(lines[:start]).strip(), "\n".join(lines[end:]).strip()
    return "\n\n".join(part for part in (before, after) if part)


def _is_header(lines: Sequence[str], at: int) -> bool:
    """Whether a line is the title of a NumPy section: it is underlined and not indented."""
    return (
        bool(lines[at].strip())
        and not lines[at][0].isspace()
        and bool(_UNDERLINE.match("".join(lines[at + 1 : at + 2])))
    )


def _parsed(lines: Sequence[str], style: Literal["numpy", "sphinx"]) -> dict[str, str]:
    # It takes three times as long to import as pydantic, so only docstrings of these styles pay for it.
    import griffe

    found: dict[str, str] = {}
    for section in griffe.Docstring("\n".join(lines)).parse(style, warnings=False):
        if isinstance(section, griffe.DocstringSectionParameters):
            for each in section.value:
                found[each.name] = " ".join(each.description.split())
    return found


def _entries(lines: Sequence[str]) -> dict[str, str]:
    filled = [line for line in lines if line.strip()]
    margin = min((_indent(line) for line in filled), default=0)
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in filled:
        entry = _ENTRY.match(line.strip()) if _indent(line) == margin else None
        if entry is not None:
            current = found.setdefault(entry["name"], [])
            current.append((entry["text"] or "").strip())
        elif current is not None:
            current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_EMPTY: Final = inspect.Parameter.empty
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _Mark:
    """Marks an annotation; there is one instance, and identity is what counts."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "INJECT"


INJECT: Final = _Mark()
"""The mark inside [`Inject`][noetic_py.Inject]; `Annotated[Db, INJECT]` says the same."""

Inject: TypeAlias = Annotated[T, INJECT]
"""A parameter that the run fills from its services, and that the model never sees: `db: Inject[Db]`."""


@frozen
class _Later:
    """An annotation that names something not defined yet."""

    annotation: object


@frozen
class Injected:
    """A parameter that the run fills.

    Attributes:
        name: The parameter's name.
        type: The class that is asked for; of a subscripted one, the class before the brackets.
        hint: The annotation without `Inject`, `Annotated` and `None`, such as `ContextPool[Doc]`.
        required: Whether the function has no default for it.
    """

    name: str
    type: type[Any]
    hint: Any
    required: bool


@frozen
class Parameter:
    """A parameter of a tool's function, the context excepted.

    Attributes:
        name: Its name.
        hint: Its annotation, evaluated; as it was written while `role` is `"unresolved"`.
        default: Its default, `inspect.Parameter.empty` for none.
        role: What fills it: the model, the run (`"injected"`), or not known yet: `"undecided"` is a class that may be
            data or a service, `"unresolved"` an annotation that names something not defined yet.
    """

    name: str
    hint: Any
    default: object
    role: Literal["model", "injected", "undecided", "unresolved"]

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is _EMPTY

    def as_injected(self) -> Injected:
        """The parameter as something the run fills."""
        core = _core(self.hint)[0]
        return Injected(self.name, get_origin(core) or core, core, self.required)


@frozen(eq=False)
class Signature:
    """A function as a tool reads it.

    Attributes:
        source: The signature as `inspect` gives it.
        context: The name of the context parameter, `None` without one.
        parameters: All others, in order.
        names: Where annotations are evaluated: the globals of the function.
    """

    source: inspect.Signature
    context: str | None
    parameters: tuple[Parameter, ...]
    names: dict[str, object]

    @cached_property
    def plain(self) -> bool:
        """Whether the caller fills everything."""
        return self.context is None and all(p.role == "model" for p in self.parameters)

    @property
    def defaults(self) -> dict[str, object]:
        """The default values of the function, by parameter."""
        return {name: p.default for name, p in self.source.parameters.items() if p.default is not _EMPTY}

    @property
    def decided(self) -> bool:
        """Whether the source of every parameter is known."""
        return all(p.role in ("model", "injected") for p in self.parameters)


def read_signature(fn: Callable[..., object], tool: str, hints: Mapping[str, object] | None = None) -> Signature:
    """Read a function's signature.

    Args:
        fn: The function.
        tool: The tool's name, for messages.
        hints: Annotations by parameter, in place of the function's own.

    Raises:
        ConfigError: The function cannot be a tool.
    """
    try:
        source = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool {tool!r}: its signature cannot be read", code="tool-signature") from error
    names = _globals_of(fn)
    context: str | None = None
    parameters: list[Parameter] = []
    for position, raw in enumerate(source.parameters.values()):
        if raw.kind in _STARRED:
            hint = "give every parameter a name and a type"
            raise _refused(tool, str(raw).partition(":")[0], "takes any number of values", hint)
        annotation = raw.annotation if hints is None or raw.name not in hints else hints[raw.name]
        hint = _first_look(tool, raw.name, annotation, names)
        later = hint.annotation if isinstance(hint, _Later) else None
        if _is_context(hint) or (position == 0 and later is not None and _names_context(tool, later, names)):
            if position != 0:
                raise _refused(tool, raw.name, "is a context and not the first parameter", "put the context first")
            context = raw.name
            continue
        if raw.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise _refused(tool, raw.name, "is positional-only", "models name their arguments; take the slash away")
        parameters.append(_parameter(tool, raw.name, hint, raw.default))
    return Signature(source, context, tuple(parameters), names)


def resolve(signature: Signature, tool: str) -> Signature:
    """Evaluate what could not be evaluated when the tool was defined.

    Raises:
        ConfigError: An annotation still names something that does not exist.
    """
    parameters: list[Parameter] = []
    for parameter in signature.parameters:
        if parameter.role == "unresolved":
            try:
                hint = _evaluate(parameter.hint, signature.names, None)
            except NameError as error:
                raise ConfigError(
                    f"tool {tool!r}: the annotation {parameter.hint!r} of parameter {parameter.name!r} names something "
                    f"that does not exist: {error}",
                    code="tool-annotation",
                    hint="import the name at module level, not under TYPE_CHECKING",
                ) from error
            parameters.append(_parameter(tool, parameter.name, hint, parameter.default))
        else:
            parameters.append(parameter)
    return Signature(signature.source, signature.context, tuple(parameters), signature.names)


def accepts_none(hint: object) -> bool:
    """Whether `None` is a value of the type."""
    if get_origin(hint) is Annotated:
        return accepts_none(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return any(accepts_none(member) for member in get_args(hint))
    return hint in (None, NoneType, Any, object)


def _refused(tool: str, parameter: str, why: str, hint: str) -> ConfigError:
    return ConfigError(f"tool {tool!r}: parameter {parameter!r} {why}", code="tool-signature", hint=hint)


def _parameter(tool: str, name: str, hint: object, default: object) -> Parameter:
    if isinstance(hint, _Later):
        return Parameter(name, hint.annotation, default, "unresolved")
    if _is_context(_core(hint)[0]):
        raise _refused(tool, name, "is a context that may be missing", "annotate it as Context[...] alone")
    if type(default).__module__.startswith("pydantic"):
        raise _refused(tool, name, "has a pydantic Field as its default", "write Annotated[int, Field(ge=1)] = 5")
    core, marked = _core(hint)
    cls = get_origin(core) or core
    if marked and (not isinstance(cls, type) or cls is UnionType):
        raise _refused(tool, name, f"asks for {core!r}, and only a class can be injected", "write Inject[SomeClass]")
    if marked or getattr(cls, "__noetic_layer__", False) is True:
        return Parameter(name, hint, default, "injected")
    return Parameter(name, hint, default, "undecided" if _may_be_service(core, cls) else "model")


def _core(hint: object) -> tuple[Any, bool]:
    """The hint without `Annotated` and without `None`, and whether it bore the mark."""
    marked = False
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            hint, *notes = get_args(hint)
            marked = marked or any(note is INJECT for note in notes)
        elif origin in (Union, UnionType):
            members = [member for member in get_args(hint) if member is not NoneType]
            if len(members) != 1:
                return hint, marked
            hint = members[0]
        else:
            return hint, marked


def _may_be_service(core: object, cls: object) -> bool:
    # Of subscripted classes only the user's own generics are services: list[Db] is data, Repository[User] may not be.
    if not isinstance(cls, type) or (core is not cls and Generic not in cls.__mro__):
        return False
    known: type[object] = cls
    if known.__module__ == "builtins" or is_dataclass(known) or is_typeddict(known) or tuple in known.__mro__:
        return False
    return not (hasattr(known, "__get_pydantic_core_schema__") or hasattr(known, "__pydantic_core_schema__"))


def _is_context(hint: object) -> bool:
    return getattr(get_origin(hint) or hint, "__noetic_context__", False) is True


def _names_context(tool: str, annotation: object, names: dict[str, object]) -> bool:
    """Whether an annotation that cannot be evaluated is a context all the same, imported for checkers only."""
    if not isinstance(annotation, str):
        return False
    head = annotation.partition("[")[0].strip()
    found = _first_look(tool, head, head, names)
    return head.rpartition(".")[2] == "Context" if isinstance(found, _Later) else _is_context(found)


def _first_look(tool: str, name: str, annotation: object, names: dict[str, object]) -> Any:
    """The annotation evaluated, or kept for later when it names something that is not defined yet."""
    if annotation is _EMPTY:
        hint = "write its type" if name != "self" else "decorate the bound method: tool(obj.method)"
        raise _refused(tool, name, "has no type", hint)
    found = _attempt(tool, name, annotation, names, None)
    # Only when the module does not know the name is it worth looking at the frames.
    return _attempt(tool, name, annotation, names, _caller_locals(names)) if isinstance(found, _Later) else found


def _attempt(
    tool: str, name: str, annotation: object, names: dict[str, object], scope: Mapping[str, object] | None
) -> object:
    try:
        return _evaluate(annotation, names, scope)
    except NameError:
        return _Later(annotation)
    except Exception as error:
        raise ConfigError(
            f"tool {tool!r}: the annotation {annotation!r} of parameter {name!r} cannot be evaluated: {error}",
            code="tool-annotation",
        ) from error


def _evaluate(annotation: object, names: dict[str, object], scope: Mapping[str, object] | None) -> object:
    def carrier() -> None: ...

    # Annotations one by one, so that a name missing in one of them spoils no other.
    carrier.__annotations__ = {"it": annotation}
    return get_type_hints(carrier, names, None if scope is None else dict(scope), include_extras=True)["it"]


def _globals_of(fn: Any) -> dict[str, object]:
    fn = inspect.unwrap(fn)
    while isinstance(fn, partial):
        fn = inspect.unwrap(fn.func)
    found: dict[str, object] | None = getattr(fn, "__globals__", None)
    if found is None:
        # An object with a `__call__` of its own.
        found = getattr(getattr(fn, "__call__"), "__globals__", None)  # noqa: B004, B009
    return {} if found is None else found


def _caller_locals(names: dict[str, object]) -> Mapping[str, object] | None:
    """The local names where the decorator stands, for annotations of functions inside functions."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_globals is not names:
        frame = frame.f_back
    return None if frame is None else frame.f_locals
