"""The list of public names with their types: a change of any of them is noticed, and no other change is."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import noetic_py

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
from __future__ import annotations
from collections.abc import Iterator
from typing import overload
from small._hidden import Base, Moved as Moved

__all__ = ["LIMIT", "Boat", "Moved", "sail"]
LIMIT: int = 3

class Boat(Base):
    name: str = "Argo"
    _log: int = 0

    def __init__(self, crew: int, /, *, sails: int = 2) -> None:
        self.crew: int = crew * 2

    @property
    def speed(self) -> float:
        return 1.0

    async def steer(self, *courses: int, **options: str) -> Iterator[int]: ...

@overload
def sail(to: str) -> str: ...
@overload
def sail(to: int) -> int: ...
def sail(to): return to

def _private(): ...
def not_listed(): ...
"""
HIDDEN = """
class Base:
    def inherited(self) -> None: ...
class Moved: ...
"""
LINES = [
    "small.Boat.__init__: (self, crew: int, /, *, sails: int = 2) -> None",
    "small.Boat.crew: int",
    "small.Boat.inherited: (self) -> None",
    "small.Boat.name: str = 'Argo'",
    "small.Boat.speed: property float",
    "small.Boat.steer: async (self, *courses: int, **options: str) -> Iterator[int]",
    "small.Boat: class(Base)",
    "small.LIMIT: int = 3",
    "small.Moved: class()",
    "small.sail: (to: int) -> int",
    "small.sail: (to: str) -> str",
]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("public_api", ROOT / ".ci" / "public_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lines(script: ModuleType, folder: Path, source: str = SOURCE, hidden: str = HIDDEN) -> list[str]:
    package = folder / "small"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(source, encoding="utf-8")
    (package / "_hidden.py").write_text(hidden, encoding="utf-8")
    found: list[str] = script.surface("small", ["small"], folder)
    return found


def test_each_public_name_has_a_line_with_its_types(script: ModuleType, tmp_path: Path) -> None:
    assert lines(script, tmp_path) == LINES


@pytest.mark.parametrize(
    ("old", "new", "diff"),
    [
        ("sails: int = 2", "sails: int = 3", 2),
        ("crew: int, /", "crew: str, /", 2),
        ("crew: int, /, *", "crew: int, *", 2),
        ("async def steer", "def steer", 2),
        ("@property", "", 2),
        ('name: str = "Argo"', 'title: str = "Argo"', 2),
        ("class Boat(Base)", "class Boat", 3),
        ('"LIMIT", ', "", 1),
        ('"sail"]', '"sail", "not_listed"]', 1),
        ("def sail(to: int) -> int", "def sail(to: int) -> float", 2),
    ],
)
def test_what_users_see_is_noticed(script: ModuleType, tmp_path: Path, old: str, new: str, diff: int) -> None:
    assert SOURCE.count(old) == 1
    changed = script.differences(LINES, lines(script, tmp_path, SOURCE.replace(old, new)))
    assert len(changed) == diff + 2, changed


@pytest.mark.parametrize(
    ("old", "new"), [("return 1.0", "return 2.0"), ("_log: int", "_book: str"), ("crew * 2", "crew * 3")]
)
def test_what_users_do_not_see_is_not(script: ModuleType, tmp_path: Path, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert script.differences(LINES, lines(script, tmp_path, SOURCE.replace(old, new))) == []


def test_a_name_of_two_modules_is_described_once(script: ModuleType, tmp_path: Path) -> None:
    lines(script, tmp_path)
    (tmp_path / "small" / "parts.py").write_text("from small import Moved as Moved\n__all__ = ['Moved']\n")
    found = script.surface("small", ["small", "small.parts"], tmp_path)
    assert "small.parts.Moved: is small.Moved" in found
    assert set(LINES) < set(found)


def test_a_difference_is_told_with_the_command_that_renews_the_list(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "public_api.txt"
    monkeypatch.setattr(script, "LIST", kept)

    # To read the package takes seconds, and CI does it in a stage of its own.
    def surface(*of: object) -> object:
        return [line.replace("small", "noetic_py").replace("Boat", "Budget") for line in LINES]

    monkeypatch.setattr(script, "surface", surface)
    assert script.main(["--write"]) == 0
    assert script.main([]) == 0
    text = kept.read_text(encoding="utf-8")
    kept.write_text(text.replace("noetic_py.Budget: class", "noetic_py.Purse: class"), encoding="utf-8")
    capsys.readouterr()
    assert script.main([]) == 1
    said = capsys.readouterr().out
    assert "-noetic_py.Purse: class" in said
    assert "+noetic_py.Budget: class" in said
    assert script.RENEW in said


def imported(tree: ast.Module) -> dict[str, str]:
    """Where the imports for type checkers take each public name from; a module is its own place."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "noetic_py":
            for alias in node.names:
                assert alias.asname == alias.name, "checkers take only `name as name` for public"
                module = f"{node.module}.{alias.name}"
                is_module = (ROOT / f"{module.replace('.', '/')}.py").exists() or (
                    ROOT / module.replace(".", "/")
                ).is_dir()
                found[alias.name] = module if is_module else str(node.module)
    return found


def test_the_three_lists_of_the_package_root_agree() -> None:
    source = (ROOT / "noetic_py" / "__init__.py").read_text(encoding="utf-8")
    assert imported(ast.parse(source)) == noetic_py._HOMES
    assert sorted(noetic_py._HOMES) == sorted(noetic_py.__all__)
    assert len(noetic_py.__all__) <= 80


def test_a_name_of_the_package_root_is_what_it_names() -> None:
    modules = {name for name in noetic_py.__all__ if isinstance(getattr(noetic_py, name), ModuleType)}
    assert modules == {"errors", "hooks", "memory", "until"}
    # In a process of its own, for a name that was looked up once stays.
    code = "import noetic_py; print([n for n in noetic_py.__all__ if type(getattr(noetic_py, n)).__name__ == 'module'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sorted(modules)}\n"


def test_four_public_names_are_modules_and_loop_is_a_function() -> None:
    modules = {name for name in noetic_py.__all__ if isinstance(getattr(noetic_py, name), ModuleType)}
    assert modules == {"errors", "hooks", "memory", "until"}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("ModelRetry", "errors"),
        ("RunNotFound", "errors"),
        ("Scope", "memory"),
        ("set_price", "models"),
        ("ModelFinished", "core.events"),
        ("ScriptedModel", "testing"),
        ("hookimpl", "plugins"),
        ("SqliteBackend", "checkpoints"),
    ],
)
def test_an_import_of_a_name_of_another_module_says_which_module_has_it(name: str, place: str) -> None:
    with pytest.raises(ImportError, match=rf"Try: from noetic_py\.{re.escape(place)} import {name}$"):
        exec(f"from noetic_py import {name}")
    exec(f"from noetic_py.{place} import {name}")


def test_a_name_that_no_module_has_is_missing_as_in_any_module() -> None:
    assert getattr(noetic_py, "Swordfish", None) is None
    assert getattr(noetic_py, "__wrapped__", None) is None
    with pytest.raises(ImportError, match="cannot import name 'Swordfish'"):
        exec("from noetic_py import Swordfish")


def test_an_import_of_a_module_from_the_package_root_loads_no_other_one() -> None:
    code = "import sys; from noetic_py import testing; print('noetic_py.memory' in sys.modules, testing.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False noetic_py.testing\n"
