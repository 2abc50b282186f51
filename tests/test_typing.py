"""User programs against the package's types: both checkers report errors on exactly the marked lines.

A line that ends in `# E` is a mistake that mypy and pyright must see, one that ends in `# E mypy only` a line that mypy
alone cannot follow, where an annotation by the user helps. Every other line must be free of errors in both.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "typing"
PROGRAMS = {path.name: path for path in sorted((FOLDER / "programs").glob("*.py"))}
CHECKERS = ("mypy", "pyright")
MARK = re.compile(r"# E(?P<mypy_only> mypy only)?$")

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
@pytest.mark.parametrize("program", PROGRAMS)
def test_errors_stand_on_the_marked_lines(program: str, checker: str, errors: dict[str, Errors]) -> None:
    assert difference(program, checker, errors[checker]) == {}


def test_marks_are_read() -> None:
    text = "a = 1  # E\nb = 2\nc = 3  # E mypy only\nd = 4  # Every one\n"
    assert (marked(text, "mypy"), marked(text, "pyright")) == ({1, 3}, {1})
