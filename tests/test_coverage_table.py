"""The coverage table: complete rows, no test for a row that does not exist, and a page that is up to date."""

from __future__ import annotations

import importlib.util
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


def test_every_requirement_test_names_a_row(page: ModuleType) -> None:
    known = {row.id for row in page.read_rows()}
    tests = page.read_tests()
    assert {row: names for row, names in tests.items() if row not in known} == {}


def test_test_names_give_their_row(page: ModuleType) -> None:
    assert page.row_of("test_002_28_items_are_frozen") == "002-28"
    assert page.row_of("test_002_28") == "002-28"
    assert page.row_of("test_002_281_items") is None
    assert page.row_of("test_items") is None


def test_a_row_without_a_test_shows_as_missing(page: ModuleType) -> None:
    rows = [page.Row("000-01", "000", "one | two", "another way"), page.Row("000-02", "000", "three", "")]
    text = page.render(rows, {"000-02": ["test_a.py::test_000_02_three"]})
    assert "| 000-01 | one \\| two<br>*another way* | **missing** |" in text
    assert "| 000-02 | three | `test_a.py::test_000_02_three` |" in text
    assert "| **All** | **2** | **1** | **1** |" in text


def test_page_is_up_to_date(page: ModuleType) -> None:
    expected = page.render(page.read_rows(), page.read_tests())
    assert page.PAGE.read_text(encoding="utf-8") == expected, "run python3 .ci/coverage_page.py"
