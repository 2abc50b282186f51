"""User programs against the package's types, and the programs of the documentation.

Both checkers report errors on exactly the marked lines of `typing/programs`. A line that ends in `# E` is a mistake
that mypy and pyright must see, one that ends in `# E mypy only` a line that mypy alone cannot follow, where an
annotation by the user helps. Every other line must be free of errors in both.

What mypy knows of the package serves both; both are in this file so that one worker asks after the other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeAlias

import pytest

from tests.test_docs_snippets import SNIPPETS, is_part, label

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "typing"
PROGRAMS = {path.name: path for path in sorted((FOLDER / "programs").glob("*.py"))}
CHECKERS = ("mypy", "pyright")
INSIDE = (
    *("anthropic", "cryptography", "google", "griffe", "httpx2", "hypothesis"),
    *("numpy", "openai", "psycopg", "pydantic_ai", "redis", "rich"),
)
"""Packages whose types no program is checked against; reading them takes mypy two thirds of its time."""
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


def run_checker(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((".", str(ROOT)))
    environment = os.environ | {"MYPYPATH": path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run_mypy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With the same settings each time, so that what was found out of the package is found out once."""
    cache = ROOT / ".mypy_cache" / "programs"
    with NamedTemporaryFile("w", suffix=".ini", encoding="utf-8") as settings:
        settings.write(mypy_settings())
        settings.flush()
        return run_checker(folder, "mypy", "--config-file", settings.name, "--cache-dir", str(cache), *arguments)


def mypy_settings() -> str:
    """The project's settings, without what is checked elsewhere: that takes most of the time."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    del settings["files"], settings["exclude"]
    settings["enable_error_code"] = ", ".join(settings["enable_error_code"])
    own = ["noetic_py", *(path.name for path in ROOT.glob("plugins/*/noetic_*"))]
    return "\n".join(
        [
            "[mypy]",
            *(f"{name} = {value}" for name, value in settings.items()),
            # Where errors are ignored, mypy does not read the bodies of functions.
            f"[mypy-{','.join(f'{name}.*' for name in own)}]",
            "ignore_errors = True",
            # What the packages use inside.
            f"[mypy-{','.join(f'{name}.*' for name in INSIDE)}]",
            "follow_imports = skip",
            # A mark may stand on a branch that is never taken.
            "[mypy-programs.*]",
            "warn_unreachable = False",
        ]
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    # 1 says that there are errors, which the marks promise; any other code, that the check itself is broken.
    assert done.returncode == 1, f"{done.args[2]}: {done.stdout}{done.stderr}"
    return done.stdout


def mypy_errors() -> Iterator[tuple[str, int, str]]:
    for line in said(run_mypy(FOLDER, "--output", "json", "programs")).splitlines():
        entry: dict[str, Any] = json.loads(line)
        if entry["severity"] == "error":
            yield entry["file"], entry["line"], entry["message"]


def pyright_errors() -> Iterator[tuple[str, int, str]]:
    done = run_checker(FOLDER, "pyright", "--project", ".", "--pythonpath", sys.executable, "--outputjson")
    report: dict[str, Any] = json.loads(said(done))
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


@pytest.mark.slow
def test_snippets_have_no_type_errors(tmp_path: Path) -> None:
    blocks = {f"block_{re.sub(r'[^a-zA-Z0-9]+', '_', label(s))}.py": s for s in SNIPPETS if not is_part(s)}
    assert len(blocks) > 100
    for name, snippet in blocks.items():
        (tmp_path / name).write_text(snippet.code, encoding="utf-8")
    # What a page about packages imports from the package that it describes.
    (tmp_path / "noetic_acme").mkdir()
    (tmp_path / "noetic_acme" / "__init__.py").touch()
    (tmp_path / "noetic_acme" / "model.py").write_text(
        "from noetic_py.testing import ScriptedModel\n\n\nclass AcmeModel(ScriptedModel): ...\n", encoding="utf-8"
    )
    done = run_mypy(tmp_path, ".")
    found = re.sub(r"^(block_\w+\.py)", lambda name: label(blocks[name[1]]), done.stdout, flags=re.MULTILINE)
    assert done.returncode == 0, f"page:first line of the block:line in it\n{found}{done.stderr}"
