"""House rules that no linter knows, read from the syntax trees of the sources."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import noetic_py

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "noetic_py"
MAX_MODULE = 800
MAX_FUNCTION = 60
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}

CORE = sorted(PACKAGE.rglob("*.py"))
PLUGINS = sorted(path for path in ROOT.glob("plugins/*/noetic_*/**/*.py"))
SHIPPED = CORE + PLUGINS
TYPED = SHIPPED + sorted(ROOT.glob("tests/**/*.py")) + sorted(ROOT.glob("plugins/*/tests/**/*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported, wherever in the module it is."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def called(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and written name of every call of a plain or dotted name."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.lineno, ast.unparse(node.func)


def inside(path: Path, folder: str) -> bool:
    return path.is_relative_to(PACKAGE / folder)


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_sizes(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_MODULE
    long = [
        f"{node.name} has {lines} lines"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION
    ]
    assert long == []


@pytest.mark.parametrize("path", TYPED, ids=name_of)
def test_no_cast(path: Path) -> None:
    module = tree(path)
    found = [line for line, name in imported(module) if name in {"typing.cast", "typing_extensions.cast"}]
    found += [line for line, name in called(module) if name in {"cast", "typing.cast", "t.cast"}]
    assert found == []


@pytest.mark.parametrize("path", TYPED, ids=name_of)
def test_a_silenced_checker_has_a_reason(path: Path) -> None:
    assert list(silenced_without_reason(path)) == []


def silenced_without_reason(path: Path) -> Iterator[str]:
    """Comments that silence a checker with no word of why after them or in a comment on the line above."""
    with path.open("rb") as source:
        comments = {t.start[0]: t.string for t in tokenize.tokenize(source.readline) if t.type == tokenize.COMMENT}
    for line, text in comments.items():
        found = re.search(r"(type|pyright): *ignore(\[[^\]]*\])?(?P<rest>.*)", text)
        if found is None:
            continue
        rest = re.sub(r"(type|pyright): *ignore(\[[^\]]*\])?", "", found["rest"]).strip(" #,;:-")
        above = comments.get(line - 1, "").strip(" #")
        if len(rest) < 5 and len(above) < 5:
            yield f"{line}: {text}"


def test_the_reason_check_sees_a_missing_reason(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    comment = "# type: " + "ignore[misc]"
    path.write_text(f"a = 1  {comment}\nb = 1\nc = 1  {comment}  # the library's stub is wrong\n", encoding="utf-8")
    assert list(silenced_without_reason(path)) == [f"1: {comment}"]


@pytest.mark.parametrize("path", [p for p in CORE if not inside(p, "testing")], ids=name_of)
def test_no_assert_as_a_check(path: Path) -> None:
    assert [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)] == []


@pytest.mark.parametrize("path", [p for p in SHIPPED if not inside(p, "cli")], ids=name_of)
def test_no_print(path: Path) -> None:
    assert [line for line, name in called(tree(path)) if name == "print"] == []


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_nothing_unsafe(path: Path) -> None:
    module = tree(path)
    found = [(line, name) for line, name in imported(module) if name.partition(".")[0] in UNSAFE_MODULES]
    found += [(line, name) for line, name in called(module) if name in UNSAFE_CALLS]
    assert found == []


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_imports_of_the_core(path: Path) -> None:
    names = list(imported(tree(path)))
    assert [line for line, name in names if name.partition(".")[0] == "asyncio"] == []
    if path != PACKAGE / "__init__.py":
        assert [line for line, name in names if name == "noetic_py"] == [], (
            "import from the module that defines the name"
        )
    relative = [n.lineno for n in ast.walk(tree(path)) if isinstance(n, ast.ImportFrom) and n.level > 0]
    assert relative == []


def is_public(path: Path) -> bool:
    parts = path.relative_to(PACKAGE).parts
    return not any(part.startswith("_") and part != "__init__.py" for part in parts)


def test_the_core_was_found() -> None:
    assert {"noetic_py/__init__.py", "noetic_py/errors/__init__.py"} <= {name_of(path) for path in CORE}


def test_public_names_are_sorted() -> None:
    names = list(noetic_py.__all__)
    # Constants first, then classes, then functions, each by name: the linter's order.
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    assert len(names) == len(set(names))


def documented_values() -> set[str]:
    """Module-level names of the package that have a string right below their assignment."""
    found: set[str] = set()
    for path in CORE:
        body = tree(path).body
        for node, after in itertools.pairwise(body):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                continue
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_public_names_are_documented() -> None:
    values = documented_values()
    bare: list[str] = []
    for name in noetic_py.__all__:
        value: object = getattr(noetic_py, name)
        has_own = isinstance(value, type) or callable(value) or isinstance(value, type(ast))
        documented = bool(value.__doc__) if has_own and name not in values else name in values
        if not documented and not name.startswith("__"):
            bare.append(name)
    assert bare == []


def test_public_modules_are_documented() -> None:
    assert [name_of(path) for path in CORE if is_public(path) and not ast.get_docstring(tree(path))] == []


def test_the_error_tree_is_public() -> None:
    errors = importlib.import_module("noetic_py.errors")
    assert list(errors.__all__) == sorted(errors.__all__)


def rooms() -> list[str]:
    """The layers of import-linter, one line each, the way the design page writes them."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = configuration["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [", ".join(name.strip(" ()") for name in line.split("|")) for line in layers]


def test_the_design_page_shows_the_import_order_that_is_checked() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert "```text\n" + "\n".join(rooms()) + "\n```" in page
