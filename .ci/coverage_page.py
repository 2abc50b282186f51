"""Write docs/coverage.md: every capability that the project owes, its clauses, and the tests that show them.

The rows stand in tests/requirements/rows.toml. A test belongs to a row by its name: `test_002_28_items_are_frozen`
belongs to row 002-28. It shows that row when the row has one clause, or clause b when its name begins with
`test_002_28b_`. A test anywhere shows what it is marked with: `@pytest.mark.clause("002-28b", "002-29a")`.
With `--check` nothing is written, and a page that is not up to date is an error.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "requirements"
PAGE = ROOT / "docs" / "coverage.md"
TEST_NAME = re.compile(r"test_(\d{3})_(\d{2})([a-z]?)(?:_|$)")
CLAUSE = re.compile(r"([a-z]): (.+)")

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

Five documents list the requirements of the library. This page shows each requirement, the clauses that it is split
into, and the tests that check each clause. A script makes the page from the names and marks of the tests, and the build
fails if the page is out of date.

A row is one requirement. It is shown when a test checks each of its clauses. A clause without a test is **missing**:
either it is not built, or no test checks it. If the library answers a requirement in another way, a remark says how.
"""

DIFFERENCES = """
## What a check from outside found to differ

178 clauses were checked with programs against the public interface, and 32 of them differed. The last column says what
holds now: the clause whose test shows it, the other way in which the library answers it, or that it is **missing**.

| Row | Clause | Now |
|---|---|---|"""


class Row(NamedTuple):
    """One capability."""

    id: str
    document: str
    capability: str
    note: str
    clauses: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, str]:
        """What can be checked, by id: the clauses, or the row itself where it is one statement."""
        found = (CLAUSE.fullmatch(each) for each in self.clauses)
        return {self.id + each[1]: each[2] for each in found if each} or {self.id: self.capability}


class Difference(NamedTuple):
    """A clause that once differed."""

    row: str
    clause: str
    shown: str
    """The clause by which it holds."""
    note: str


def _data(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_rows(path: Path = REQUIREMENTS / "rows.toml") -> list[Row]:
    """The rows in the order of the file."""
    return [
        Row(row["id"], row["document"], row["capability"], row.get("note", ""), tuple(row.get("clauses", ())))
        for row in _data(path)["row"]
    ]


def read_differences(path: Path = REQUIREMENTS / "differences.toml") -> list[Difference]:
    """What differed, in the order of the file."""
    return [
        Difference(each["row"], each["clause"], each.get("shown", ""), each.get("note", ""))
        for each in _data(path)["difference"]
    ]


def row_of(test_name: str) -> str | None:
    """The id of the row or clause that a test is named after."""
    found = TEST_NAME.match(test_name)
    return f"{found[1]}-{found[2]}{found[3]}" if found else None


def read_tests(root: Path = ROOT) -> dict[str, list[str]]:
    """The tests of each row and clause, as `file::name`, in the order of the files."""
    tests: dict[str, list[str]] = {}
    folder = root / "tests" / "requirements"
    for path in sorted(folder.rglob("*.py")) + [
        path
        for place in ("tests", "plugins")
        for path in sorted((root / place).rglob("test_*.py"))
        if not path.is_relative_to(folder)
    ]:
        text = path.read_text(encoding="utf-8")
        named = path.is_relative_to(folder)
        if not named and "mark.clause(" not in text:
            continue
        shown = path.relative_to(folder if named else root).as_posix()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                row = row_of(node.name) if named else None
                for each in dict.fromkeys([*([row] if row else []), *marks_of(node)]):
                    tests.setdefault(each, []).append(f"{shown}::{node.name}")
    return tests


def marks_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The clauses that a test is marked with."""
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    marks = [each for each in calls if ast.unparse(each.func) == "pytest.mark.clause"]
    return [ast.literal_eval(argument) for each in marks for argument in each.args]


def render(rows: list[Row], tests: Mapping[str, list[str]], differences: Sequence[Difference] = ()) -> str:
    """The page as Markdown."""
    parts = [
        INTRODUCTION,
        "| Document | Rows | Shown | Clauses | Shown by a test | Missing |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    missing = [(each, text) for row in rows for each, text in row.parts.items() if not tests.get(each)]
    for document, title in [*TITLES.items(), ("", "All")]:
        owed = [row for row in rows if document in ("", row.document)]
        clauses = [each for row in owed for each in row.parts]
        lacking = sum(not tests.get(each) for each in clauses)
        whole = sum(all(tests.get(each) for each in row.parts) for row in owed)
        cells = [f"{document} {title}".strip(), len(owed), whole, len(clauses), len(clauses) - lacking, lacking]
        parts.append("| " + " | ".join(str(cell) if document else f"**{cell}**" for cell in cells) + " |")
    if missing:
        parts += ["", "## Clauses that no test shows", ""]
        parts += [f"- {each}: {text}" for each, text in missing]
    if differences:
        parts += [DIFFERENCES, *(_difference(each, tests) for each in differences)]
    for document, title in TITLES.items():
        parts += ["", f"## {document} {title}", "", "| Row | Capability | Tests |", "|---|---|---|"]
        parts += [line for row in rows if row.document == document for line in _lines(row, tests)]
    return "\n".join(parts) + "\n"


def _lines(row: Row, tests: Mapping[str, list[str]]) -> list[str]:
    capability = _cell(row.capability) + (f"<br>*{_cell(row.note)}*" if row.note else "")
    if not row.clauses:
        return [f"| {row.id} | {capability} | {_named(tests.get(row.id))} |"]
    shown = sum(bool(tests.get(each)) for each in row.parts)
    marked = {test for each in row.parts for test in tests.get(each, ())}
    others = [test for test in tests.get(row.id, ()) if test not in marked]
    count = f"{shown} of {len(row.parts)} clauses" + (f"; besides<br>{_named(others)}" if others else "")
    below = [f"| {each} | {_cell(text)} | {_named(tests.get(each))} |" for each, text in row.parts.items()]
    return [
        f"| **{row.id}** | **{_cell(row.capability)}**{capability[len(_cell(row.capability)) :]} | {count} |",
        *below,
    ]


def _difference(each: Difference, tests: Mapping[str, list[str]]) -> str:
    other = each.note.startswith("another way: ")
    now = each.note if other else "; ".join(filter(None, ("holds", each.note)))
    if each.shown:
        now = f"{now} ({each.shown})" if tests.get(each.shown) else f"**missing** ({each.shown})"
    return f"| {each.row} | {_cell(each.clause)} | {_cell(now)} |"


def _named(tests: Sequence[str] | None) -> str:
    return "<br>".join(f"`{test}`" for test in tests or ()) or "**missing**"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it."""
    text = render(read_rows(), read_tests(), read_differences())
    if arguments != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/coverage.md is out of date: run python3 .ci/coverage_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
