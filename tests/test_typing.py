"""User programs against the package's types: both checkers report errors on exactly the marked lines.

A line that ends in `# E` is a mistake that mypy and pyright must see, one that ends in `# E mypy only` a line that mypy
alone cannot follow, where an annotation by the user helps. Every other line must be free of errors in both.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "typing"
PROGRAMS = {path.name: path for path in sorted((FOLDER / "programs").glob("*.py"))}
CHECKERS = ("mypy", "pyright")
MARK = re.compile(r"# E(?P<mypy_only> mypy only)?$")

# Programs of the contract that use what is not built yet, and what that is: a dotted name, or a function's parameter.
# Each has a twin, `<number>_spine.py`, that does the same with what there is. A name comes off the list when it exists.
WAITING: Mapping[str, tuple[str, ...]] = {
    "p14_plugin.py": ("noetic_py.plugins.PluginRegistry",),
}

Errors: TypeAlias = dict[tuple[str, int], list[str]]
"""Messages by program and line."""


def marked(text: str, checker: str) -> set[int]:
    """The lines on which a checker must report an error."""
    found: set[int] = set()
    for number, line in enumerate(text.splitlines(), 1):
        mark = MARK.search(line)
        if mark is not None and (checker == "mypy" or mark["mypy_only"] is None):
            found.add(number)
    return found


def run_checker(*command: str) -> str:
    environment = os.environ | {"MYPYPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=FOLDER, env=environment, capture_output=True, text=True, check=False
    )
    # 1 says that there are errors, which the marks promise; any other code, that the check itself is broken.
    assert done.returncode == 1, f"{command[0]}: {done.stdout}{done.stderr}"
    return done.stdout


def mypy_errors() -> Iterator[tuple[str, int, str]]:
    cache = ROOT / ".mypy_cache" / "programs"
    out = run_checker("mypy", "--config-file", "mypy.ini", "--cache-dir", str(cache), "--output", "json", "programs")
    for line in out.splitlines():
        entry: dict[str, Any] = json.loads(line)
        if entry["severity"] == "error":
            yield entry["file"], entry["line"], entry["message"]


def pyright_errors() -> Iterator[tuple[str, int, str]]:
    out = run_checker("pyright", "--project", ".", "--pythonpath", sys.executable, "--outputjson")
    report: dict[str, Any] = json.loads(out)
    for entry in report["generalDiagnostics"]:
        if entry["severity"] == "error":
            yield entry["file"], entry["range"]["start"]["line"] + 1, entry["message"]


@pytest.fixture(scope="module")
def errors() -> dict[str, Errors]:
    """What each checker says, asked once for all programs."""
    found: dict[str, Errors] = {}
    for checker, entries in zip(CHECKERS, (mypy_errors(), pyright_errors()), strict=True):
        for file, line, message in entries:
            assert Path(file).name in PROGRAMS, f"{file}:{line}: {message}"
            found.setdefault(checker, {}).setdefault((Path(file).name, line), []).append(message)
    return found


def difference(program: str, checker: str, errors: Errors) -> dict[int, list[str]]:
    """Lines that have an error and no mark, with the messages, and lines that have a mark and no error, with none."""
    expected = marked(PROGRAMS[program].read_text(encoding="utf-8"), checker)
    reported = {line: messages for (name, line), messages in errors.items() if name == program}
    wrong: dict[int, list[str]] = {line: [] for line in expected - reported.keys()}
    wrong.update((line, reported[line]) for line in reported.keys() - expected)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name not in WAITING])
def test_errors_stand_on_the_marked_lines(program: str, checker: str, errors: dict[str, Errors]) -> None:
    assert difference(program, checker, errors[checker]) == {}


def exists(reason: str) -> bool:
    """Whether a dotted name, or the parameter in parentheses behind one, is there by now."""
    name, _, parameter = reason.rstrip(")").partition("(")
    try:
        found = resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return not parameter or parameter in inspect.signature(found).parameters


def used_by(program: str) -> set[str]:
    """The program itself and the programs that it imports."""
    text = PROGRAMS[program].read_text(encoding="utf-8")
    return {program, *(f"{module}.py" for module in re.findall(r"^from programs\.(\w+) import", text, re.MULTILINE))}


@pytest.mark.slow
@pytest.mark.parametrize("program", WAITING)
def test_a_waiting_program_fails_for_what_is_missing(program: str, errors: dict[str, Errors]) -> None:
    assert [reason for reason in WAITING[program] if exists(reason)] == [], "built by now: take it off the list"
    names = {re.split(r"[.(]", reason.rstrip(")"))[-1] for reason in WAITING[program]}
    assert any(difference(program, checker, errors[checker]) for checker in CHECKERS), "it passes: take it off the list"
    for checker in CHECKERS:
        said = [
            message
            for each in used_by(program)
            for messages in difference(each, checker, errors[checker]).values()
            for message in messages
        ]
        assert any(f'"{name}"' in message for name in names for message in said), said


def test_a_waiting_program_has_a_twin() -> None:
    assert {f"{name.partition('_')[0]}_spine.py" for name in WAITING} <= PROGRAMS.keys()
    assert WAITING.keys() <= PROGRAMS.keys()


def test_marks_are_read() -> None:
    text = "a = 1  # E\nb = 2\nc = 3  # E mypy only\nd = 4  # Every one\n"
    assert (marked(text, "mypy"), marked(text, "pyright")) == ({1, 3}, {1})


def test_what_exists_is_found() -> None:
    assert exists("noetic_py.Harness.run")
    assert exists("noetic_py.memory.Memory")
    assert exists("noetic_py.spawn(state)")
    assert not exists("noetic_py.Harness.walk")
    assert not exists("noetic_py.spawn(colour)")
