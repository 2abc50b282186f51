"""Write docs/coverage.md: every capability that the project owes, and the tests that show it.

The rows stand in tests/requirements/rows.toml. A test belongs to a row by its name: `test_002_28_items_are_frozen`
shows row 002-28. With `--check` nothing is written, and a page that is not up to date is an error.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "requirements"
PAGE = ROOT / "docs" / "coverage.md"
TEST_NAME = re.compile(r"test_(\d{3})_(\d{2})(?:_|$)")

TITLES = {
    "000": "Agentic context",
    "001": "Invocation context",
    "002": "Context and event log",
    "003": "Context items, queue and pool",
    "004": "Agent state",
}
"""The documents that the capabilities come from."""

COUNTS = {"000": 36, "001": 45, "002": 55, "003": 48, "004": 55}
"""How many capabilities each document states."""

INTRODUCTION = """# Coverage

Five documents state what the library has to offer. This page lists every capability they name and the tests that show
it. It is generated from the names of the tests, and it fails the build when it is out of date.

A row without a test is **missing**: not built yet, or built and not shown. A remark says where a row is answered in
another way than it asks, or will be.
"""


class Row(NamedTuple):
    """One capability."""

    id: str
    document: str
    capability: str
    note: str


def read_rows(path: Path = REQUIREMENTS / "rows.toml") -> list[Row]:
    """The rows in the order of the file."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Row(row["id"], row["document"], row["capability"], row.get("note", "")) for row in data["row"]]


def row_of(test_name: str) -> str | None:
    """The id of the row that a test shows, by its name."""
    found = TEST_NAME.match(test_name)
    return f"{found.group(1)}-{found.group(2)}" if found else None


def read_tests(folder: Path = REQUIREMENTS) -> dict[str, list[str]]:
    """The tests of each row, as `file::name`, in the order of the files."""
    tests: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (row := row_of(node.name)):
                tests.setdefault(row, []).append(f"{path.relative_to(folder).as_posix()}::{node.name}")
    return tests


def render(rows: list[Row], tests: Mapping[str, list[str]]) -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION, "| Document | Capabilities | Shown by a test | Missing |", "|---|---:|---:|---:|"]
    totals = [0, 0]
    for document, title in TITLES.items():
        owed = [row for row in rows if row.document == document]
        shown = sum(1 for row in owed if tests.get(row.id))
        totals = [totals[0] + len(owed), totals[1] + shown]
        parts.append(f"| {document} {title} | {len(owed)} | {shown} | {len(owed) - shown} |")
    parts.append(f"| **All** | **{totals[0]}** | **{totals[1]}** | **{totals[0] - totals[1]}** |")
    for document, title in TITLES.items():
        parts += ["", f"## {document} {title}", "", "| Row | Capability | Tests |", "|---|---|---|"]
        parts += [_line(row, tests.get(row.id, [])) for row in rows if row.document == document]
    return "\n".join(parts) + "\n"


def _line(row: Row, tests: list[str]) -> str:
    capability = _cell(row.capability) + (f"<br>*{_cell(row.note)}*" if row.note else "")
    return f"| {row.id} | {capability} | {'<br>'.join(f'`{test}`' for test in tests) or '**missing**'} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it."""
    text = render(read_rows(), read_tests())
    if arguments != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/coverage.md is out of date: run python3 .ci/coverage_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
