"""House rules that no linter knows, read from the syntax trees of the sources."""

from __future__ import annotations

import ast
import importlib
import io
import itertools
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import frozen

import noetic_py
from tests.public_names import public_names

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "noetic_py"
MAX_MODULE = 700
"""Lines of code, without docstrings, comments and blank lines."""
MAX_FUNCTION = 60
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}

CORE = sorted(PACKAGE.rglob("*.py"))
PLUGINS = sorted(path for path in ROOT.glob("plugins/*/noetic_*/**/*.py"))
SHIPPED = CORE + PLUGINS
TYPED = SHIPPED + sorted(ROOT.glob("tests/**/*.py")) + sorted(ROOT.glob("plugins/*/tests/**/*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@frozen
class Source:
    """A file, parsed and walked through once.

    Attributes:
        path: Where it is.
        text: What it says.
        nodes: All of its syntax tree, the module first.
    """

    path: Path
    text: str
    nodes: Sequence[ast.AST]

    @property
    def module(self) -> ast.Module:
        """The whole of it."""
        assert isinstance(self.nodes[0], ast.Module)
        return self.nodes[0]


def source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path, text, list(ast.walk(ast.parse(text))))


def imported(file: Source) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported, wherever in the module it is."""
    for node in file.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def called(file: Source) -> Iterator[tuple[int, str]]:
    """Line and written name of every call of a plain or dotted name."""
    for node in file.nodes:
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            yield node.lineno, name


def dotted(node: ast.expr) -> str:
    """A plain or dotted name as it is written; empty for anything else. `ast.unparse` takes ten times as long."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


def code_lines(file: Source) -> int:
    """How many lines have code, docstrings apart."""
    tokens = tokenize.generate_tokens(io.StringIO(file.text).readline)
    lines = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    texts = (node.value for node in file.nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    docs = {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    return len(lines - docs)


def inside(path: Path, folder: str) -> bool:
    return path.is_relative_to(PACKAGE / folder)


# ---------------------------------------------------------------------------------------------------- of each file


def over_size(file: Source) -> Iterator[str]:
    """A module or a function that has grown too long."""
    # Few files have that many lines at all, and to look at each token takes long.
    if file.text.count("\n") > MAX_MODULE and (lines := code_lines(file)) > MAX_MODULE:
        yield f"{lines} lines of code"
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION:
                yield f"{node.name} has {lines} lines"


def cast(file: Source) -> Iterator[int]:
    """A cast, which a checker believes."""
    yield from (line for line, name in imported(file) if name in {"typing.cast", "typing_extensions.cast"})
    yield from (line for line, name in called(file) if name in {"cast", "typing.cast", "t.cast"})


def silenced_without_reason(file: Source) -> Iterator[str]:
    """Comments that silence a checker with no word of why after them or in a comment on the line above."""
    if not re.search(r"(type|pyright): *ignore", file.text):
        return
    lines = io.StringIO(file.text).readline
    comments = {t.start[0]: t.string for t in tokenize.generate_tokens(lines) if t.type == tokenize.COMMENT}
    for line, text in comments.items():
        found = re.search(r"(type|pyright): *ignore(\[[^\]]*\])?(?P<rest>.*)", text)
        if found is None:
            continue
        rest = re.sub(r"(type|pyright): *ignore(\[[^\]]*\])?", "", found["rest"]).strip(" #,;:-")
        above = comments.get(line - 1, "").strip(" #")
        if len(rest) < 5 and len(above) < 5:
            yield f"{line}: {text}"


def assert_as_a_check(file: Source) -> Iterator[int]:
    """An assert, which `python -O` takes out."""
    yield from (node.lineno for node in file.nodes if isinstance(node, ast.Assert))


def printed(file: Source) -> Iterator[int]:
    """A print, anywhere but in the command line."""
    yield from (line for line, name in called(file) if name == "print")


def unsafe(file: Source) -> Iterator[tuple[int, str]]:
    """What runs code that it reads."""
    yield from ((line, name) for line, name in imported(file) if name.partition(".")[0] in UNSAFE_MODULES)
    yield from ((line, name) for line, name in called(file) if name in UNSAFE_CALLS)


def import_of_asyncio(file: Source) -> Iterator[int]:
    """An event loop of its own; the core runs on anyio."""
    yield from (line for line, name in imported(file) if name.partition(".")[0] == "asyncio")


def import_of_the_root(file: Source) -> Iterator[int]:
    """A name is imported from the module that defines it; of the root only modules are."""
    if file.path == PACKAGE / "__init__.py":
        return
    for node in file.nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.Import) and "noetic_py" in names:
            yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "noetic_py":
            yield from (node.lineno for name in names if not (PACKAGE / f"{name}.py").exists())


def relative_import(file: Source) -> Iterator[int]:
    """A module is named in full."""
    yield from (node.lineno for node in file.nodes if isinstance(node, ast.ImportFrom) and node.level > 0)


def article_before_a_name(file: Source) -> Iterator[int]:
    """An article in front of what is only known when the text is made: `with_article` finds the right one."""
    for node in file.nodes:
        if isinstance(node, ast.JoinedStr):
            for part, after in itertools.pairwise(node.values):
                text = part.value if isinstance(part, ast.Constant) else ""
                if isinstance(after, ast.FormattedValue) and re.search(r"(^|\W)[Aa]n? $", str(text)):
                    yield node.lineno


RULES: dict[Callable[[Source], Iterator[object]], list[Path]] = {
    over_size: SHIPPED,
    cast: TYPED,
    silenced_without_reason: TYPED,
    assert_as_a_check: [path for path in CORE if not inside(path, "testing")],
    printed: [path for path in SHIPPED if not inside(path, "cli")],
    unsafe: SHIPPED,
    import_of_asyncio: CORE,
    import_of_the_root: CORE,
    relative_import: CORE,
    article_before_a_name: CORE,
}


@pytest.fixture(scope="module")
def core() -> Mapping[Path, Source]:
    """The files of the package: several tests look at all of them."""
    return {path: source(path) for path in CORE}


@pytest.fixture(scope="module")
def broken(core: Mapping[Path, Source]) -> dict[str, dict[str, list[object]]]:
    """What breaks a rule, by file: each file is parsed once for all of them."""
    places: dict[str, dict[str, list[object]]] = {rule.__name__: {} for rule in RULES}
    rules = {rule: frozenset(paths) for rule, paths in RULES.items()}
    shipped = frozenset(SHIPPED)
    for path in TYPED:
        # Reading the tests takes most of the time, and the two rules for them look for a word.
        if path not in shipped and not re.search(r"\bcast\b|(type|pyright): *ignore", path.read_text(encoding="utf-8")):
            continue
        file = core.get(path) or source(path)
        for rule, paths in rules.items():
            if path in paths and (found := list(rule(file))):
                places[rule.__name__][name_of(path)] = found
    return places


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES])
def test_no_file_has(rule: str, broken: dict[str, dict[str, list[object]]]) -> None:
    assert broken[rule] == {}


SEEN: list[tuple[Callable[[Source], Iterator[object]], str]] = [
    (over_size, "def f():\n" + "    pass\n" * MAX_FUNCTION),
    (over_size, "a = 1\n" * (MAX_MODULE + 1)),
    (cast, "from typing import cast"),
    (cast, "import typing\na = typing.cast(int, 1)"),
    (silenced_without_reason, "a = 1  # type: " + "ignore[misc]"),
    (assert_as_a_check, "assert True"),
    (printed, "def f():\n    print(1)"),
    (unsafe, "def f():\n    import pickle"),
    (unsafe, "eval('1')"),
    (import_of_asyncio, "import asyncio"),
    (import_of_the_root, "from noetic_py import step"),
    (relative_import, "from . import step"),
    (article_before_a_name, "a = f'{b} is a {c}'"),
]


@pytest.mark.parametrize(
    ("rule", "text"), SEEN, ids=[f"{rule.__name__}{number}" for number, (rule, _) in enumerate(SEEN)]
)
def test_each_rule_sees_what_breaks_it(rule: Callable[[Source], Iterator[object]], text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"{text}\nb = 1  # type: ignore[misc]  # the library's stub is wrong\n", encoding="utf-8")
    assert len(list(rule(source(path)))) == 1
    path.write_text("b = 1\n", encoding="utf-8")
    assert list(rule(source(path))) == []


# ------------------------------------------------------------------------------------------------- of the package


def test_warnings_point_at_the_line_of_the_caller() -> None:
    """A number of frames is right for one caller only: `tracebacks.warn` looks for the frame."""
    found = [name_of(path) for path in SHIPPED if "warnings.warn" in path.read_text(encoding="utf-8")]
    assert found == ["noetic_py/core/diagnostics.py", "noetic_py/tools/definition.py"]


def is_public(path: Path) -> bool:
    parts = path.relative_to(PACKAGE).parts
    return not any(part.startswith("_") and part != "__init__.py" for part in parts)


def test_the_core_was_found() -> None:
    assert {"noetic_py/__init__.py", "noetic_py/errors.py"} <= {name_of(path) for path in CORE}


def test_public_names_are_sorted() -> None:
    names = list(noetic_py.__all__)
    # Constants first, then classes, then functions, each by name: the linter's order.
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    assert len(names) == len(set(names))


def documented_values(core: Mapping[Path, Source]) -> set[str]:
    """Module-level names of the package that have a string right below their assignment."""
    found: set[str] = set()
    for file in core.values():
        for node, after in itertools.pairwise(file.module.body):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                continue
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_public_names_are_documented(core: Mapping[Path, Source]) -> None:
    values = documented_values(core)
    bare: list[str] = []
    for name in noetic_py.__all__:
        value: object = getattr(noetic_py, name)
        has_own = isinstance(value, type) or callable(value) or isinstance(value, type(ast))
        documented = bool(value.__doc__) if has_own and name not in values else name in values
        if not documented and not name.startswith("__"):
            bare.append(name)
    assert bare == []


def test_public_modules_are_documented(core: Mapping[Path, Source]) -> None:
    public = [file for path, file in core.items() if is_public(path)]
    assert [name_of(file.path) for file in public if not ast.get_docstring(file.module)] == []


def test_the_tree_of_errors_shows_every_class() -> None:
    errors = importlib.import_module("noetic_py.errors")
    shown = re.findall(r"^[│ ]*[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE)
    raised = [name for name in public_names(errors) if issubclass(getattr(errors, name), errors.NoeticError)]
    assert sorted(["NoeticError", *shown]) == raised


def rooms() -> list[str]:
    """The layers of import-linter, one line each, the way the design page writes them."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = configuration["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [", ".join(name.strip(" ()") for name in re.split("[|:]", line)) for line in layers]


def test_the_design_page_shows_the_import_order_that_is_checked() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert "```text\n" + "\n".join(rooms()) + "\n```" in page


def test_no_two_classes_share_a_name(core: Mapping[Path, Source]) -> None:
    """The oracle of random programs has words of its own."""
    homes: dict[str, list[str]] = {}
    for path, file in core.items():
        if "_random_programs" not in path.parts:
            for node in file.nodes:
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(name_of(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("script", [".ci/run", ".ci/coverage_gate.py"])
def test_a_script_names_files_that_exist(script: str) -> None:
    """A test that moves would otherwise run where it is left out, and a module would lose its gate."""
    named = re.findall(r"\b(?:tests|plugins|noetic_py)/[\w./-]*\w", (ROOT / script).read_text(encoding="utf-8"))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []
