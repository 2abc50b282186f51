"""The coverage table: complete rows, no test for a row that does not exist, and a page that is up to date."""

from __future__ import annotations

import ast
import importlib.util
import string
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """The generator, which is a script and no part of a package."""
    spec = importlib.util.spec_from_file_location("coverage_page", ROOT / ".ci" / "coverage_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_rows_are_unique_and_complete(page: ModuleType) -> None:
    ids = [row.id for row in page.read_rows()]
    assert [row for row, times in Counter(ids).items() if times > 1] == []
    assert ids == [f"{document}-{n:02}" for document, count in page.COUNTS.items() for n in range(1, count + 1)]


def test_rows_say_something(page: ModuleType) -> None:
    for row in page.read_rows():
        assert row.document == row.id.partition("-")[0]
        assert len(row.capability) >= 15, row.id
        assert "\n" not in row.capability + row.note, row.id


def test_clauses_are_lettered_in_order(page: ModuleType) -> None:
    for row in page.read_rows():
        letters = [each[:1] for each in row.clauses]
        assert letters == list(string.ascii_lowercase[: len(letters)]), row.id
        assert len(letters) != 1, f"{row.id} is one statement, so its clause is the row"
        assert len(row.parts) == max(1, len(letters)), f"{row.id}: a clause is a letter, a colon and a text"
        assert len(set(row.parts.values())) == len(row.parts), row.id


def test_every_requirement_test_names_a_row(page: ModuleType) -> None:
    known = {each for row in page.read_rows() for each in (row.id, *row.parts)}
    known |= {each.shown for each in page.read_differences()}
    tests = page.read_tests()
    assert {row: names for row, names in tests.items() if row not in known} == {}


def test_a_mark_names_a_clause_and_no_row_of_several(page: ModuleType) -> None:
    several = {row.id for row in page.read_rows() if row.clauses}
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    # To parse a file takes a hundred times as long as to look for a mark.
    for path, text in ((path, text) for path, text in texts.items() if "mark.clause(" in text):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert several.isdisjoint(page.marks_of(node)), f"{path.name}::{node.name}"


def test_every_difference_says_what_became_of_it(page: ModuleType) -> None:
    differences = page.read_differences()
    assert len(differences) == 32
    known = {row.id for row in page.read_rows()} | {*page.TITLES, "mission"}
    for each in differences:
        assert each.row in known, each
        assert each.shown or each.note.startswith("another way: "), each


def test_test_names_give_their_row(page: ModuleType) -> None:
    assert page.row_of("test_002_28_items_are_frozen") == "002-28"
    assert page.row_of("test_002_28") == "002-28"
    assert page.row_of("test_002_28b_items_are_frozen") == "002-28b"
    assert page.row_of("test_002_281_items") is None
    assert page.row_of("test_items") is None


def test_a_row_without_a_test_shows_as_missing(page: ModuleType) -> None:
    rows = [page.Row("000-01", "000", "one | two", "another way"), page.Row("000-02", "000", "three", "")]
    text = page.render(rows, {"000-02": ["test_a.py::test_000_02_three"]})
    assert "| 000-01 | one \\| two<br>*another way* | **missing** |" in text
    assert "| 000-02 | three | `test_a.py::test_000_02_three` |" in text
    assert "| **All** | **2** | **1** | **2** | **1** | **1** |" in text
    assert "- 000-01: one | two" in text


def test_a_row_is_shown_when_each_of_its_clauses_is(page: ModuleType) -> None:
    row = page.Row("000-01", "000", "one and two", "", ("a: One.", "b: Two."))
    tests = {
        "000-01": ["test_a.py::test_000_01_both", "test_a.py::test_000_01_more"],
        "000-01a": ["test_a.py::test_000_01_both"],
    }
    text = page.render([row], tests)
    assert "| **000-01** | **one and two** | 1 of 2 clauses; besides<br>`test_a.py::test_000_01_more` |" in text
    assert "| 000-01a | One. | `test_a.py::test_000_01_both` |" in text
    assert "| 000-01b | Two. | **missing** |" in text
    assert "| **All** | **1** | **0** | **2** | **1** | **1** |" in text
    text = page.render([row], tests | {"000-01b": ["test_b.py::test_two"]})
    assert "| **All** | **1** | **1** | **2** | **2** | **0** |" in text
    assert "no test shows" not in text


def test_marks_and_names_are_read_from_files(page: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "requirements"
    folder.mkdir(parents=True)
    (tmp_path / "plugins").mkdir()
    marked = '@pytest.mark.clause("000-01b", "000-02")\ndef test_two(): ...\n'
    (folder / "test_a.py").write_text("def test_000_01a_one(): ...\n" + marked)
    (tmp_path / "tests" / "test_b.py").write_text("def test_000_03_elsewhere(): ...\n" + marked)
    two = ["test_a.py::test_two", "tests/test_b.py::test_two"]
    assert page.read_tests(tmp_path) == {"000-01a": ["test_a.py::test_000_01a_one"], "000-01b": two, "000-02": two}


def test_a_difference_holds_by_a_clause_or_is_answered_in_another_way(page: ModuleType) -> None:
    row = page.Row("000-01", "000", "one", "")
    differences = [
        page.Difference("000-01", "It is one.", "000-01", ""),
        page.Difference("000-01", "It is two.", "000-01b", "when chosen"),
        page.Difference("000-01", "It is three.", "", "another way: it is one"),
        page.Difference("000-01", "It is four.", "000-01", "another way: it is one"),
        page.Difference("000-01", "It is five.", "000-01", "when chosen"),
    ]
    text = page.render([row], {"000-01": ["test_a.py::test_000_01"]}, differences)
    assert "| 000-01 | It is one. | holds (000-01) |" in text
    assert "| 000-01 | It is two. | **missing** (000-01b) |" in text
    assert "| 000-01 | It is three. | another way: it is one |" in text
    assert "| 000-01 | It is four. | another way: it is one (000-01) |" in text
    assert "| 000-01 | It is five. | holds; when chosen (000-01) |" in text


def test_page_is_up_to_date(page: ModuleType) -> None:
    expected = page.render(page.read_rows(), page.read_tests(), page.read_differences())
    assert page.PAGE.read_text(encoding="utf-8") == expected, "run python3 .ci/coverage_page.py"
