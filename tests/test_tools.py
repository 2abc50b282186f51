from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from inspect import Parameter, Signature
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, assert_type

import anyio
import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import noetic_py
from noetic_py.context.context import Context
from noetic_py.core.items import InputImage, InputText, JsonValue
from noetic_py.core.memory import Memory
from noetic_py.core.state import StateBag
from noetic_py.errors import CodecError, ConfigError, ModelRetry, NoContextError, ToolArgumentsInvalid
from noetic_py.tools import (
    INJECT,
    MISSING,
    Inject,
    RunBinding,
    Tool,
    ToolOptions,
    ToolSource,
    make_tool,
    render_output,
    set_run_binding,
    tool,
    wire_name,
)
from noetic_py.tools.signature import read_docs

if TYPE_CHECKING:

    class Nowhere:
        """A class that is not there when the program runs."""


pytestmark = pytest.mark.anyio

ROOT = Path(noetic_py.__file__).parents[1]
T = TypeVar("T")


class Db:
    async def find(self, text: str) -> list[str]:
        return [text]


class Repository(Generic[T]):
    pass


class Clock(Protocol):
    def now(self) -> float: ...


class Layer(Generic[T]):
    __noetic_layer__ = True


class Notes(Layer[str]):
    pass


class Unit(Enum):
    METRE = "m"
    FOOT = "ft"


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    number: int = 1


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    deep: bool


class Pair(NamedTuple):
    left: int
    right: int


def loose(t: Tool[..., Any, Any, Any]) -> Callable[..., Any]:
    """The tool as something that takes any arguments, right ones or wrong ones."""
    return t


def nothing(name: str, kind: type[Any]) -> object:
    return MISSING


def schema_of(t: Tool[..., object, Any, Any]) -> dict[str, Any]:
    return dict(t.parameters)


def properties_of(t: Tool[..., object, Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema_of(t)["properties"]
    return found


@tool
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the handbook.

    Looks at titles first.

    Args:
        (The words come first.)
        query (str): Words to look for,
            in any order.
        limit: The most hits to return.
        nobody: Is no parameter.

    Returns:
        Titles.
    """
    return [query] * limit


def add(a: int, b: int) -> int:
    return a + b


plus = tool(add)


@define
class Shelf:
    books: list[str]
    owner: Address | None = None


@tool
async def with_ctx(ctx: Context[Memory, StateBag], sku: str) -> tuple[Context[Memory, StateBag], str]:
    return ctx, sku


@tool
async def read(doc_id: str, shelf: Layer[Point], db: Db, extra: Inject[Point] | None = None) -> tuple[object, ...]:
    return doc_id, shelf, db, extra


# ----------------------------------------------------------------------------------------------- names and descriptions


def test_name_and_description_come_from_the_function() -> None:
    assert search.name == "search"
    assert search.description == "Search the handbook.\n\nLooks at titles first.\n\nReturns:\n    Titles."
    assert plus.description == ""
    assert (search.needs_approval, search.long_running, search.replay) == (False, False, "repeatable")
    assert (search.timeout, search.retries, search.strict) == (None, 1, False)


def test_options_win() -> None:
    t = tool(name="facts/find", description="Find.", retries=0, timeout=2.5, replay="once", long_running=True)(add)
    assert (t.name, t.wire_name, t.description) == ("facts/find", "facts__find", "Find.")
    assert (t.retries, t.timeout, t.replay, t.long_running) == (0, 2.5, "once", True)
    assert t.definition()["name"] == "facts__find"


def test_parameter_texts_come_from_the_args_section() -> None:
    found = properties_of(search)
    assert found["query"]["description"] == "Words to look for, in any order."
    assert found["limit"]["description"] == "The most hits to return."


def test_a_description_in_the_annotation_wins() -> None:
    @tool
    def f(a: Annotated[int, Field(description="mine", ge=1)], b: int) -> int:
        """F.

        Arguments:
            a: docstring's
            b: docstring's:
                with more
        """
        return a

    assert properties_of(f)["a"] == {"type": "integer", "minimum": 1, "description": "mine"}
    assert properties_of(f)["b"]["description"] == "docstring's: with more"


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]\w{0,8}", fullmatch=True),
        st.from_regex(r"[a-z][a-z :,()]{0,20}[a-z]", fullmatch=True),
        max_size=4,
    )
)
def test_any_args_section_is_read_back(texts: dict[str, str]) -> None:
    section = "".join(f"        {name}: {text}\n" for name, text in texts.items())
    docs = read_docs(f"Sum.\n\n    Body.\n\n    Args:\n{section}\n    Raises:\n        ValueError: Never.\n    ")
    assert docs.parameters == {name: text.strip() for name, text in texts.items()}
    assert docs.description == "Sum.\n\nBody.\n\nRaises:\n    ValueError: Never."


NUMPY = """Look something up.

More of it.

Parameters
----------
query : str
    What to look for,
    in words.
first, last : int, optional
    Pages.
*rest
    Not the model's.

Returns
-------
str
    What was found.
"""
SPHINX = """Look something up.

More of it.

:param str query: What to look for,
    in words.
:param first: Pages.
:type first: int
:parameter last: Pages.

:returns: What was found.
:raises ValueError: Never.
"""


def test_numpy_and_sphinx_docstrings() -> None:
    pages = {"query": "What to look for, in words.", "first": "Pages.", "last": "Pages."}
    numpy = read_docs(NUMPY)
    assert {name: text for name, text in numpy.parameters.items() if name in pages} == pages
    assert numpy.description == ("Look something up.\n\nMore of it.\n\nReturns\n-------\nstr\n    What was found.")
    sphinx = read_docs(SPHINX)
    assert sphinx.parameters == pages
    assert sphinx.description == (
        "Look something up.\n\nMore of it.\n\n:returns: What was found.\n:raises ValueError: Never."
    )


@pytest.mark.parametrize("docstring", [NUMPY, SPHINX], ids=["numpy", "sphinx"])
def test_the_schema_has_what_such_a_docstring_says(docstring: str) -> None:
    def find(query: str, first: int = 1) -> str:
        return query

    find.__doc__ = docstring
    assert properties_of(tool(find)) == {
        "query": {"type": "string", "description": "What to look for, in words."},
        "first": {"type": "integer", "default": 1, "description": "Pages."},
    }
    assert tool(find).description.startswith("Look something up.\n\nMore of it.\n\n")


def test_of_several_styles_in_one_docstring_the_first_is_read() -> None:
    google = "Args:\n    query: Google's.\n"
    both = read_docs(f"Look.\n\n{SPHINX}\n{google}")
    assert both.parameters == {"query": "Google's."}
    assert ":param str query: What to look for," in both.description
    numpy = read_docs(f"Look.\n\n:param query: Sphinx's.\n\n{NUMPY}")
    assert numpy.parameters["query"] == "What to look for, in words."
    assert ":param query: Sphinx's." in numpy.description


@pytest.mark.parametrize(
    "docstring",
    [
        "Count.\n\nParameters\nare numbers.",
        "Count.\n\nParameters\n--",
        "Count.\n\nSee :param x: there.",
        "Parameters",
        "Count :type:",
    ],
)
def test_what_only_looks_like_a_style_is_description(docstring: str) -> None:
    docs = read_docs(docstring)
    assert docs.parameters == {}
    assert docs.description == docstring


@given(st.text(alphabet="Parmetsq:-_ \n*,()", max_size=80))
def test_any_docstring_can_be_read(text: str) -> None:
    read_docs(f"Do.\n\nParameters\n----------\n{text}")
    read_docs(f"Do.\n\n:param a: {text}")


def test_a_google_docstring_loads_no_parser() -> None:
    read = "from noetic_py.tools.signature import read_docs; read_docs('A.\\n\\nArgs:\\n  a: b')"
    code = f"{read}; import sys; print('griffe' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["search", "a-b_C9", "x" * 64, "facts/remember"])
def test_names_that_providers_take(name: str) -> None:
    assert tool(name=name)(add).name == name


@pytest.mark.parametrize("name", ["", "a b", "grün", "x" * 65, "a.b", "a\n", "x" * 62 + "/y"])
def test_names_that_they_do_not_take(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wire_name(name)
    assert caught.value.code == "tool-name"


def test_a_function_without_a_usable_name_needs_one() -> None:
    with pytest.raises(ConfigError, match="<lambda>") as caught:
        tool(lambda: 1)
    assert caught.value.code == "tool-name"
    with pytest.raises(ConfigError, match="has no name"):
        tool(partial(add, 1))
    assert tool(name="one")(lambda: 1)() == 1


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "wrong",
    [
        {"retris": 1},
        {"name": 5},
        {"description": None},
        {"needs_approval": "yes"},
        {"long_running": 1},
        {"replay": "twice"},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"timeout": True},
        {"retries": -1},
        {"retries": 1.5},
        {"retries": True},
        {"strict": "yes"},
    ],
    ids=str,
)
def test_wrong_options_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        tool(**wrong)(add)
    assert caught.value.code == "tool-option"
    with pytest.raises(ConfigError):
        plus.with_options(**wrong)


def test_with_options_makes_another_tool() -> None:
    relaxed = search.definition()
    strict = search.with_options(strict=True, needs_approval=lambda call, ctx: True)
    assert strict.fn is search.fn
    assert callable(strict.needs_approval)
    assert strict.definition()["strict"] is True
    assert search.definition() is relaxed
    assert relaxed["strict"] is False
    assert search.with_options() == search
    assert hash(search.with_options()) == hash(search)
    assert strict != search


def test_a_tool_is_frozen() -> None:
    with pytest.raises(AttributeError):
        setattr(search, "name", "other")  # noqa: B010


@pytest.mark.parametrize("thing", ["name", 5, Db, search], ids=["text", "number", "class", "tool"])
def test_only_functions_are_tools(thing: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        tool(thing)
    assert caught.value.code == "tool-function"


# ---------------------------------------------------------------------------------------------------------- signatures


def refused(fn: Callable[..., Any], match: str) -> ConfigError:
    with pytest.raises(ConfigError, match=match) as caught:
        make_tool(fn, {"name": "t"})
    assert "'t'" in str(caught.value)
    return caught.value


def test_signatures_that_no_model_can_fill() -> None:
    def stars(*args: int) -> None: ...
    def more(**kwargs: int) -> None: ...
    def slash(a: int, /, b: int) -> None: ...
    def untyped(a: int) -> None: ...
    def late(a: int, ctx: Context) -> None: ...
    def maybe(ctx: Context | None, a: int) -> None: ...
    def fielded(a: int = Field(default=1)) -> None: ...
    def asked(a: Inject[int | str]) -> None: ...

    del untyped.__annotations__["a"]
    assert refused(stars, r"'\*args' takes any number").code == "tool-signature"
    refused(more, r"'\*\*kwargs' takes any number")
    refused(slash, "'a' is positional-only")
    refused(untyped, "'a' has no type")
    refused(late, "'ctx' is a context and not the first")
    refused(maybe, "'ctx' is a context that may be missing")
    refused(fielded, "'a' has a pydantic Field as its default")
    refused(asked, "'a' asks for")


def test_an_unbound_method_is_refused_and_a_bound_one_taken() -> None:
    class Shop:
        def price(self, sku: str) -> int:
            return len(sku)

    assert "tool(obj.method)" in (refused(Shop.price, "'self' has no type").hint or "")
    t = tool(Shop().price)
    assert t("abc") == 3
    assert list(properties_of(t)) == ["sku"]


def test_functions_in_disguise_are_read_through() -> None:
    class Caller:
        """Calls."""

        async def __call__(self, a: Decimal) -> str:
            return str(a)

    def base(a: int, b: Decimal) -> int:
        """Adds."""
        return a

    @wraps(base)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        return base(*args, **kwargs)

    called = tool(name="caller")(Caller())
    assert called.description == "Calls."
    assert called.parse('{"a": "1.5"}') == {"a": Decimal("1.5")}
    bound = tool(name="bound")(partial(base, b=Decimal(2)))
    assert bound.description == "Adds."
    assert schema_of(bound)["required"] == ["a"]
    assert list(properties_of(tool(wrapped))) == ["a", "b"]


def test_a_builtin_without_a_signature_is_refused() -> None:
    refused(type.__call__, "cannot be read|takes any number|positional-only|has no type")
    refused(iter, "cannot be read")


def test_annotations_that_cannot_be_evaluated() -> None:
    def broken(a: int) -> None: ...

    broken.__annotations__["a"] = "list["
    assert refused(broken, "'a' cannot be evaluated").code == "tool-annotation"


def test_a_name_that_is_not_there_yet_is_looked_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool
    def f(a: Nowhere, b: int) -> object:
        return a

    assert not f.takes_context
    monkeypatch.setitem(globals(), "Nowhere", Point)
    assert f.parse('{"a": {"x": 1}, "b": 2}') == {"a": Point(1), "b": 2}


def test_a_service_that_is_not_there_yet_is_injected_later(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool
    def f(a: int, db: Inject[Nowhere]) -> object:
        return db

    monkeypatch.setitem(globals(), "Nowhere", Db)
    assert list(f.injected) == ["db"]
    assert list(properties_of(f)) == ["a"]


def test_a_name_that_never_comes_is_an_error_at_first_use() -> None:
    @tool
    def f(a: int, b: list[Nowhere]) -> object:
        return a

    for use in (f.definition, lambda: f.injected, lambda: f.parse("{}")):
        with pytest.raises(ConfigError, match=r"tool 'f': the annotation 'list\[Nowhere\]' of parameter 'b'") as caught:
            use()
        assert caught.value.code == "tool-annotation"


def test_the_return_type_may_be_anything() -> None:
    @tool
    def f(a: int) -> Nowhere:
        raise LookupError(a)

    assert f.parse('{"a": 1}') == {"a": 1}


def test_local_classes_are_found_where_the_decorator_stands() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def f(a: Local, b: list[Local]) -> object:
        return a, b

    assert f.parse('{"a": {"x": 1}, "b": []}') == {"a": Local(x=1), "b": []}


# -------------------------------------------------------------------------------------------- contexts and injection


def test_a_context_is_recognised_however_it_is_written() -> None:
    def bare(ctx: Context, a: int) -> None: ...
    def full(c: Context[Memory, StateBag], a: int) -> None: ...
    def text(ctx: Context[Memory, Nowhere], a: int) -> None: ...
    def late(ctx: Context, a: int) -> None: ...
    def slash(ctx: Context, /, a: int) -> None: ...
    def evaluated(ctx: Context, a: int) -> None: ...
    def none(a: int) -> None: ...

    # As a module would have it that imports the class for type checkers only.
    late.__annotations__["ctx"] = "somewhere_else.Context[Memory, Nowhere]"
    evaluated.__annotations__["ctx"] = Context[Memory, StateBag]
    functions: list[Callable[..., None]] = [bare, full, text, late, slash, evaluated]
    for fn in functions:
        found = make_tool(fn, {})
        assert found.takes_context, fn
        assert list(properties_of(found)) == ["a"], fn
    assert not tool(none).takes_context


def test_an_unknown_first_annotation_is_no_context() -> None:
    def f(a: Nowhere) -> None: ...
    def g(a: list[Nowhere]) -> None: ...

    g.__annotations__["a"] = list["Nowhere"]
    assert not tool(f).takes_context
    assert not tool(g).takes_context


def test_what_is_injected_is_hidden_from_the_model() -> None:
    found = read.injected
    assert list(properties_of(read)) == ["doc_id"]
    assert [(i.name, i.type, i.required) for i in found.values()] == [
        ("shelf", Layer, True),
        ("db", Db, True),
        ("extra", Point, False),
    ]
    assert found["shelf"].hint == Layer[Point]


def test_everything_that_can_be_injected() -> None:
    def f(
        a: Inject[Db],
        b: Inject[Db] | None,
        c: Inject[Db | None],
        d: Annotated[Point, "note", INJECT],
        e: Notes,
        f: Notes | None,
        g: Annotated[Layer[int], "note"],
        h: Repository[Point],
        i: Clock,
        j: "Db",  # noqa: UP037
        k: Db | None = None,
    ) -> None: ...

    found = {name: parameter.type for name, parameter in tool(f).injected.items()}
    assert found == dict(
        zip("abcdefghijk", [Db, Db, Db, Point, Notes, Notes, Layer, Repository, Clock, Db, Db], strict=True)
    )
    assert properties_of(tool(f)) == {}


def test_data_is_never_injected() -> None:
    def f(
        a: Address,
        b: Point,
        c: Options,
        d: Pair,
        e: Unit,
        f: date,
        g: list[Address] | None,
        h: dict[str, int],
        i: Literal["x", "y"],
        j: int | str,
        k: object,
        l: Any,  # noqa: E741
        m: Annotated[int, "note"],
        n: tuple[int, ...] = (),
    ) -> None: ...

    assert tool(f).injected == {}
    assert list(properties_of(tool(f))) == list("abcdefghijklmn")


def test_data_with_a_part_that_has_no_schema_is_an_error_and_no_service() -> None:
    @dataclass
    class Holder:
        db: Db

    def f(a: int, holder: Holder) -> None: ...
    def g(dbs: list[Db]) -> None: ...
    def h(call: Callable[[], int]) -> None: ...

    for fn, name in ((f, "holder"), (g, "dbs"), (h, "call")):
        with pytest.raises(ConfigError, match=f"parameter '{name}' .* has no JSON schema") as caught:
            tool(fn).definition()
        assert caught.value.code == "tool-schema"


def test_a_model_cannot_send_what_is_injected() -> None:
    with pytest.raises(ToolArgumentsInvalid, match="db: no such parameter"):
        read.parse('{"doc_id": "x", "db": {}}')
    with pytest.raises(ToolArgumentsInvalid, match="db: no such parameter"):
        read.parse({"doc_id": "x", "db": Db()})
    db = Db()
    assert read.parse({"doc_id": "x", "db": db}, explicit=True) == {"doc_id": "x", "db": db}
    with pytest.raises(ToolArgumentsInvalid, match="dc: no such parameter"):
        read.parse({"doc_id": "x", "dc": db}, explicit=True)
    with pytest.raises(ToolArgumentsInvalid, match="db: no such parameter"):
        read.parse('{"doc_id": "x", "db": {}}', explicit=True)


async def test_injected_values_are_filled_on_a_call() -> None:
    asked: list[tuple[str, type[Any]]] = []

    def inject(name: str, kind: type[Any]) -> object:
        asked.append((name, kind))
        return MISSING if kind is Point else f"the {name}"

    assert await read.call({"doc_id": "x"}, inject=inject) == ("x", "the shelf", "the db", None)
    assert asked == [("shelf", Layer), ("db", Db), ("extra", Point)]
    asked.clear()
    assert await read.call({"doc_id": "x", "db": "mine"}, inject=inject) == ("x", "the shelf", "mine", None)
    assert asked == [("shelf", Layer), ("extra", Point)]


async def test_none_may_be_injected() -> None:
    @tool
    def f(db: Inject[Db] | None = Db()) -> object:  # noqa: B008
        return db

    assert await f.call({}, inject=lambda name, kind: None) is None


async def test_nothing_to_inject_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="tool 'read': nothing of type Layer to inject into parameter 'shelf'"
    ) as caught:
        await read.call({"doc_id": "x"}, inject=nothing)
    assert caught.value.code == "tool-injection"
    assert "services={Layer: ...}" in (caught.value.hint or "")


# -------------------------------------------------------------------------------------------------------- direct calls


async def test_a_tool_called_directly_is_its_function() -> None:
    assert await search("x", limit=2) == ["x", "x"]
    assert plus(1, b=2) == 3
    assert_type(plus(1, b=2), int)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        loose(plus)(1)


async def test_outside_a_run_injected_parameters_are_the_callers() -> None:
    shelf, db = Layer[Point](), Db()
    assert await read("x", shelf, db=db) == ("x", shelf, db, None)
    with pytest.raises(TypeError, match=r"missing 2 required positional arguments: 'shelf' and 'db'"):
        await loose(read)("x")


async def test_outside_a_run_a_context_is_given_or_missed() -> None:
    ctx = Context()
    function = loose(with_ctx)
    assert await function(ctx, "a") == (ctx, "a")
    assert await function(sku="a", ctx=ctx) == (ctx, "a")
    with pytest.raises(NoContextError, match="'with_ctx' takes a context"):
        await with_ctx("a")


@pytest.fixture
def run() -> Iterator[RunBinding]:
    binding = RunBinding(Context(), lambda name, kind: f"the {name}" if kind is not Point else MISSING)
    before = set_run_binding(lambda: binding)
    yield binding
    set_run_binding(before)


async def test_inside_a_run_the_rest_is_filled(run: RunBinding) -> None:
    function = loose(read)
    db = Db()
    assert await function("x") == ("x", "the shelf", "the db", None)
    assert await function("x", db=db) == ("x", "the shelf", db, None)
    assert await function("x", "mine") == ("x", "mine", "the db", None)
    assert await function("x", "mine", db, 4) == ("x", "mine", db, 4)
    with pytest.raises(TypeError, match="nope"):
        await function("x", nope=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'doc_id'"):
        await function()


async def test_inside_a_run_the_context_is_filled(run: RunBinding) -> None:
    assert await with_ctx("a") == (run.ctx, "a")
    other = Context()
    function = loose(with_ctx)
    assert await function(other, "a") == (other, "a")
    assert await function(ctx=other, sku="a") == (other, "a")


# ------------------------------------------------------------------------------------------------------------- schemas


def test_the_schema_of_a_function() -> None:
    assert search.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words to look for, in any order."},
            "limit": {"type": "integer", "default": 5, "description": "The most hits to return."},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert search.definition() == {
        "name": "search",
        "description": search.description,
        "parameters": search.parameters,
        "strict": False,
    }
    assert search.parameters is search.parameters
    assert search.definition() is search.definition()


def test_a_tool_without_parameters() -> None:
    @tool
    def now() -> float:
        return 0.0

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.parse("") == now.parse(" ") == now.parse("{}") == now.parse({}) == {}
    with pytest.raises(ToolArgumentsInvalid, match=r"a: no such parameter \(parameters: none\)"):
        now.parse('{"a": 1}')


def test_parameters_may_have_any_name() -> None:
    @tool
    def f(
        copy: int, _private: int, model_config: int, json: int, title: int, p0: int, self_: int, schema: int
    ) -> None: ...

    names = ["copy", "_private", "model_config", "json", "title", "p0", "self_", "schema"]
    assert list(properties_of(f)) == names
    sent: dict[str, object] = {name: number for number, name in enumerate(names)}
    assert f.parse(sent) == sent
    assert f.parse(json.dumps(sent)) == sent


def test_titles_are_left_out_and_a_property_called_title_is_not() -> None:
    class Titled(BaseModel):
        title: str
        inner: Address

    @tool
    def f(title: Titled, unit: Unit) -> None: ...

    assert '"title": "' not in json.dumps(f.parameters)
    definitions = schema_of(f)["$defs"]
    assert list(definitions["Titled"]["properties"]) == ["title", "inner"]
    assert definitions["Unit"]["enum"] == ["m", "ft"]


def test_defaults_stand_in_the_schema_where_json_has_them() -> None:
    class Uncopyable:
        def __deepcopy__(self, memo: object) -> object:
            raise TypeError("not to be copied")

    strange: Any = Uncopyable()

    @tool
    def f(
        a: Unit = Unit.FOOT, b: object = strange, c: int | None = None, d: tuple[int, ...] = (1,), e: Any = ...
    ) -> Any:
        return b

    found = properties_of(f)
    assert {name: found[name].get("default", "-") for name in found} == {
        "a": "ft",
        "b": "-",
        "c": None,
        "d": [1],
        "e": "-",
    }
    assert f.parse("{}") == {}
    assert loose(f)(**f.parse("{}")) is strange


def strict_everywhere(schema: JsonValue) -> bool:
    if isinstance(schema, list):
        return all(strict_everywhere(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if isinstance(properties, dict) and (
        schema.get("additionalProperties") is not False or schema.get("required") != list(properties)
    ):
        return False
    if "default" in schema or ("$ref" in schema and len(schema) > 1):
        return False
    return all(strict_everywhere(part) for part in schema.values())


def test_a_strict_schema_is_closed_and_requires_everything() -> None:
    @tool(strict=True)
    def f(
        who: Address,
        at: Point | None,
        tags: dict[str, int],
        unit: Unit = Unit.FOOT,
        n: Annotated[int | None, "n"] = 3,
        m: int = 4,
    ) -> None:
        """F.

        Args:
            who: The person.
        """

    assert strict_everywhere(dict(f.parameters))
    assert not strict_everywhere(dict(f.with_options(strict=False).parameters))
    found = properties_of(f)
    assert found["who"] == {"anyOf": [{"$ref": "#/$defs/Address"}], "description": "The person."}
    assert found["m"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert found["tags"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert f.definition()["strict"] is True


def test_null_stands_for_a_default_in_a_strict_schema_only() -> None:
    @tool(strict=True)
    def f(a: int, n: int | None = 3, m: int = 4) -> None: ...

    assert f.parse('{"a": 1, "n": null, "m": null}') == {"a": 1, "n": None}
    assert f.parse('{"a": 1, "n": 2, "m": 5}') == {"a": 1, "n": 2, "m": 5}
    with pytest.raises(ToolArgumentsInvalid, match="a: "):
        f.parse('{"a": null, "n": 1, "m": 1}')
    with pytest.raises(ToolArgumentsInvalid, match="m: Input should be a valid integer, sent: null"):
        f.with_options(strict=False).parse('{"a": 1, "m": null}')


# ------------------------------------------------------------------------------------------------------------- parsing


def test_values_get_the_types_of_the_parameters() -> None:
    @tool
    def f(who: Address, at: Point, unit: Unit, day: date, pair: Pair, some: set[int], options: Options) -> None: ...

    text = json.dumps(
        {
            "who": {"street": "Elm"},
            "at": {"x": "3"},
            "unit": "m",
            "day": "2025-02-03",
            "pair": [1, 2],
            "some": [1, 1],
            "options": {"deep": True},
        }
    )
    values = {
        "who": Address(street="Elm"),
        "at": Point(3),
        "unit": Unit.METRE,
        "day": date(2025, 2, 3),
        "pair": Pair(1, 2),
        "some": {1},
        "options": {"deep": True},
    }
    assert f.parse(text) == values
    assert f.parse(values) == values


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("{", "not valid JSON (EOF while parsing an object at line 1 column 1), sent: {"),
        ('{"query": "x"} and more', "not valid JSON"),
        ("[]", "a JSON object is wanted, sent: []"),
        ('"x"', 'a JSON object is wanted, sent: "x"'),
        ("null", "a JSON object is wanted, sent: null"),
        ("{}", "query: required, and not sent"),
        ('{"query": 5}', "query: Input should be a valid string, sent: 5"),
        ('{"query": "x", "limit": "many"}', 'parse string as an integer, sent: "many"'),
        ('{"query": "x", "limit": 1.5}', "limit: Input should be a valid integer"),
        ('{"query": "x", "foo": 1}', "foo: no such parameter (parameters: query, limit)"),
        ('{"p0": "x"}', "p0: no such parameter (parameters: query, limit)"),
        ("[" * 5000, "not valid JSON"),
        ('{"query": "\\ud800"}', "not valid JSON"),
    ],
)
def test_what_does_not_fit_is_told_to_the_model(sent: str, told: str) -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        search.parse(sent)
    assert caught.value.tool == "search"
    assert str(caught.value).startswith("the arguments of search are not valid:\n- ")
    assert told in str(caught.value)


def test_paths_lead_into_what_was_sent() -> None:
    @tool
    def f(people: list[Address], size: float) -> None: ...

    with pytest.raises(ToolArgumentsInvalid) as caught:
        f.parse('{"people": [{"street": "Elm"}, {"number": [1]}], "size": NaN}')
    assert caught.value.message.splitlines()[1:] == [
        "- people[1].street: required, and not sent",
        "- people[1].number: Input should be a valid integer, sent: [1]",
        "- size: Input should be a finite number, sent: NaN",
    ]


def test_messages_stay_short() -> None:
    @tool
    def f(numbers: list[int]) -> None: ...

    with pytest.raises(ToolArgumentsInvalid) as caught:
        f.parse(json.dumps({"numbers": ["x" * 10_000] * 500}))
    assert len(str(caught.value)) < 2500
    assert caught.value.message.endswith("- and 490 more")
    with pytest.raises(ToolArgumentsInvalid) as caught:
        f.parse("{" + "x" * 10_000)
    assert len(str(caught.value)) < 300


def test_what_cannot_be_shown_is_named() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(ToolArgumentsInvalid, match="query: Input should be a valid string, sent: a list"):
        search.parse({"query": cycle})
    with pytest.raises(ToolArgumentsInvalid, match=r"sent: \"<object object"):
        search.parse({"query": object()})


JSON_OF: Mapping[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**60), 2**60),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    list[int]: st.lists(st.integers(-9, 9)),
    dict[str, str]: st.dictionaries(st.text(), st.text(), max_size=3),
    int | None: st.none() | st.integers(-9, 9),
    Literal["x", "y"]: st.sampled_from(["x", "y"]),
}
TYPES: st.SearchStrategy[Any] = st.sampled_from(list(JSON_OF))
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(lambda name: name != "_" and not iskeyword(name))


class Shaped:
    """A function with keyword parameters of any names and types, some of them with a default."""

    def __init__(self, parameters: Mapping[str, tuple[Any, bool]]) -> None:
        self.__signature__ = Signature(
            [
                Parameter(
                    name, Parameter.KEYWORD_ONLY, annotation=hint, default=object() if optional else Parameter.empty
                )
                for name, (hint, optional) in parameters.items()
            ]
        )

    def __call__(self, **values: object) -> object:
        return values


@given(hints=st.dictionaries(NAMES, TYPES, max_size=5), strict=st.booleans(), data=st.data())
def test_whatever_fits_the_schema_is_read_back(hints: dict[str, Any], strict: bool, data: st.DataObject) -> None:
    optional = data.draw(st.sets(st.sampled_from(sorted(hints)))) if hints else set[str]()
    ordered = sorted(hints, key=lambda name: name in optional)
    t = make_tool(Shaped({name: (hints[name], name in optional) for name in ordered}), {"name": "t", "strict": strict})
    assert properties_of(t).keys() == hints.keys()
    required = set(hints) if strict else set(hints) - optional
    assert set(schema_of(t).get("required", [])) == required
    sent = {n: data.draw(JSON_OF[hints[n]]) for n in ordered if n not in optional or data.draw(st.booleans())}
    assert t.parse(json.dumps(sent)) == sent
    assert t.parse(sent) == sent
    for name in set(hints) - optional:
        with pytest.raises(ToolArgumentsInvalid, match=f"{name}: required"):
            t.parse({n: v for n, v in sent.items() if n != name})


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    ).map(json.dumps)
)
def test_nothing_a_model_sends_raises_anything_else(text: str) -> None:
    try:
        found = search.parse(text)
    except ToolArgumentsInvalid:
        return
    assert found.keys() <= {"query", "limit"}


# ------------------------------------------------------------------------------------------------------------- calling

WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_a_coroutine_function_runs_here_and_a_plain_one_in_a_thread() -> None:
    @tool
    async def here() -> object:
        return threading.get_ident(), WHO.get()

    @tool
    def there() -> object:
        return threading.get_ident(), WHO.get()

    WHO.set("me")
    assert await here.call({}, inject=nothing) == (threading.get_ident(), "me")
    found = await there.call({}, inject=nothing)
    assert isinstance(found, tuple)
    assert found[0] != threading.get_ident()
    assert found[1] == "me"


async def test_the_context_comes_first_even_when_positional_only() -> None:
    ctx = Context()

    @tool
    async def f(ctx: Context, /, a: int) -> object:
        return ctx, a

    assert await with_ctx.call({"sku": "x"}, ctx=ctx, inject=nothing) == (ctx, "x")
    assert await f.call({"a": 1}, ctx=ctx, inject=nothing) == (ctx, 1)


async def test_an_object_that_is_called_asynchronously_stays_here() -> None:
    class Caller:
        async def __call__(self) -> int:
            return threading.get_ident()

    assert await tool(name="caller")(Caller()).call({}, inject=nothing) == threading.get_ident()


async def test_a_wrapper_that_returns_a_coroutine_is_awaited() -> None:
    @tool
    def f(a: int) -> Awaitable[list[str]]:
        return search("x", limit=a)

    assert await f.call({"a": 2}, inject=nothing) == ["x", "x"]


async def test_errors_come_out_as_they_are() -> None:
    @tool
    async def here() -> None:
        raise ModelRetry("again")

    @tool
    def there() -> None:
        raise LookupError("lost")

    with pytest.raises(ModelRetry, match="again"):
        await here.call({}, inject=nothing)
    with pytest.raises(LookupError, match="lost"):
        await there.call({}, inject=nothing)


async def test_a_cancelled_call_waits_for_its_thread() -> None:
    started, finish, done = threading.Event(), threading.Event(), threading.Event()

    @tool
    def slow() -> None:
        started.set()
        finish.wait(5)
        done.set()

    async with anyio.create_task_group() as group:

        async def call() -> None:
            await slow.call({}, inject=nothing)

        group.start_soon(call)
        await anyio.to_thread.run_sync(started.wait, 5)
        group.cancel_scope.cancel()
        finish.set()
    assert done.is_set()


async def test_a_generator_runs_to_its_end_and_hands_on_each_value_before_it_goes_on() -> None:
    trail: list[object] = []

    @tool
    async def count(upto: int) -> AsyncIterator[int]:
        for n in range(upto):
            trail.append(f"before {n}")
            yield n
        trail.append("end")

    async def emit(value: object) -> None:
        trail.append(value)

    assert await count.call({"upto": 2}, inject=nothing, emit=emit) == [0, 1]
    assert trail == ["before 0", 0, "before 1", 1, "end"]
    assert await count.call({"upto": 2}, inject=nothing) == [0, 1]
    assert await count.call({"upto": 0}, inject=nothing) == []


async def test_a_plain_generator_runs_in_threads() -> None:
    seen: list[object] = []
    threads: set[int] = set()

    @tool
    def count(upto: int) -> Iterator[int]:
        for n in range(upto):
            threads.add(threading.get_ident())
            yield n

    assert await count.call({"upto": 3}, inject=nothing, emit=seen.append) == [0, 1, 2]
    assert seen == [0, 1, 2]
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_generator_is_closed_when_its_taker_fails(kind: str) -> None:
    closed: list[bool] = []

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    def plain() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    def emit(value: object) -> None:
        raise LookupError("enough")

    t: Tool[..., object] = tool(endless) if kind == "async" else tool(plain)
    with pytest.raises(LookupError, match="enough"):
        await t.call({}, inject=nothing, emit=emit)
    assert closed == [True]


# -------------------------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, ""),
        (5, "5"),
        (True, "true"),
        (1.5, "1.5"),
        (float("nan"), '"NaN"'),
        (["a", 1, None], '["a",1,null]'),
        ([], "[]"),
        ({"ä": {"b": [1]}}, '{"ä":{"b":[1]}}'),
        ({1: 2}, '{"1":2}'),
        (Address(street="Elm"), '{"street":"Elm","number":1}'),
        (Point(1), '{"x":1,"y":0}'),
        (Shelf(["x"], Address(street="Elm")), '{"books":["x"],"owner":{"street":"Elm","number":1}}'),
        ([Shelf([])], '[{"books":[],"owner":null}]'),
        (Pair(1, 2), "[1,2]"),
        (Unit.FOOT, '"ft"'),
        ({Unit.FOOT}, '["ft"]'),
        (date(2025, 2, 3), '"2025-02-03"'),
        (Decimal("1.10"), '"1.10"'),
        (b"text", '"text"'),
    ],
    ids=repr,
)
def test_what_a_model_reads(value: object, text: str) -> None:
    assert render_output(value, tool="t") == text


def test_content_parts_stay_as_they_are() -> None:
    image, words = InputImage(url="https://example.org/x.png"), InputText(text="look")
    assert render_output(image, tool="t") == (image,)
    assert render_output([words, image], tool="t") == (words, image)
    assert render_output(("look", image), tool="t") == (words, image)
    assert render_output(["look", "here"], tool="t") == '["look","here"]'
    text = render_output([image, 5], tool="t")
    assert isinstance(text, str)
    assert "https://example.org/x.png" in text


def test_a_value_without_a_json_form_is_an_error() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    hidden: Any = Db()
    values: list[tuple[object, str]] = [
        (Db(), "Db"),
        ([Db()], "Db"),
        (Shelf([hidden]), "Db"),
        (b"\xff", "bytes"),
        (cycle, "list"),
    ]
    for value, told in values:
        with pytest.raises(CodecError, match="tool 'find' returned a ") as caught:
            render_output(value, tool="find")
        assert told in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_values_are_rendered_as_the_same_json(value: object) -> None:
    text = render_output(value, tool="t")
    assert isinstance(text, str)
    if value is not None and not isinstance(value, str):
        assert json.loads(text) == value


# ------------------------------------------------------------------------------------------------- tools made otherwise


def test_types_may_be_given_from_outside() -> None:
    def run(ctx: object, value: object, db: object) -> object:
        return ctx, value, db

    options: ToolOptions = {"name": "made", "description": "Made."}
    t = make_tool(run, options, hints={"ctx": Context[Memory, StateBag], "value": list[int], "db": Inject[Db]})
    assert t.takes_context
    assert t.parse('{"value": ["1"]}') == {"value": [1]}
    assert list(t.injected) == ["db"]


async def test_a_schema_may_come_from_elsewhere() -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"a b": {"title": "A"}}, "required": ["a b"]}

    async def call(**arguments: object) -> object:
        return arguments

    t = Tool.from_schema(call, parameters=schema, name="server/do", description="Do.", needs_approval=True)
    assert t.definition() == {"name": "server__do", "description": "Do.", "parameters": schema, "strict": False}
    assert t.needs_approval is True
    assert t.injected == {}
    for arguments in ('{"a b": [1]}', {"a b": [1]}):
        assert await t.call(t.parse(arguments), inject=nothing) == {"a b": [1]}
    for wrong in ("", "[]", "{", "NaN", '{"a": NaN}', "[" * 5000):
        with pytest.raises(ToolArgumentsInvalid):
            t.parse(wrong)
    with pytest.raises(ConfigError, match="needs a name"):
        Tool.from_schema(call, parameters=schema)
    with pytest.raises(ConfigError):
        Tool.from_schema(call, parameters=schema, name="a b")


async def test_a_source_lists_tools() -> None:
    class Fixed:
        async def tools(self) -> Sequence[Tool[..., object]]:
            return [search, plus]

    source: ToolSource = Fixed()
    assert [t.name for t in await source.tools()] == ["search", "add"]


def test_a_tool_type_may_be_subscripted_at_run_time() -> None:
    assert Tool[[int], int] is not None
    assert Tool[..., object, Memory, StateBag] is not None
    assert repr(INJECT) == "INJECT"
    assert repr(MISSING) == "MISSING"


# ------------------------------------------------------------------------------------------------------------- imports


def test_defining_a_tool_loads_no_heavy_package() -> None:
    program = (
        "import sys\n"
        "from noetic_py.tools import Inject, tool\n"
        "class Db: ...\n"
        "@tool\n"
        "def f(a: int, db: Inject[Db]) -> int:\n    'F.'\n    return a\n"
        "@tool(strict=True)\n"
        "def g(a: list[int], db: Db) -> int:\n    'G.'\n    return len(a)\n"
        "assert f(1, Db()) == 1 and g([], Db()) == 0 and list(f.injected) == ['db']\n"
        "assert not {'pydantic', 'cattrs', 'noetic_py.core.codec', 'noetic_py.context.context'} & sys.modules.keys()\n"
        "g.definition()\n"
        "assert 'pydantic' in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, cwd=ROOT)
