"""The page "How to add": the files that it names are there, and no addition touches more than four of them."""

import re
from pathlib import Path as FilePath
from typing import Annotated, Any

import pytest
from attrs import define

from noetic_py.checkpoints import Record
from noetic_py.core.codec import Codec
from noetic_py.errors import CodecError
from noetic_py.journal import records
from noetic_py.journal.fields import StoredKey
from noetic_py.journal.values import COUNT, TEXT, Path

ROOT = FilePath(__file__).resolve().parent.parent
MOST = 4


def sections() -> dict[str, list[str]]:
    """The files of each section, by its heading."""
    page = (ROOT / "docs" / "how-to-add.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        listed = re.search(r"^Package files:\n\n((?:- .*\n)+)", text, flags=re.MULTILINE)
        found[heading] = re.findall(r"^- `([^`]+)`", listed[1], flags=re.MULTILINE) if listed else []
    return found


@pytest.mark.parametrize("heading", sections())
def test_an_addition_touches_at_most_four_files_that_are_there(heading: str) -> None:
    files = sections()[heading]
    assert 1 <= len(files) <= MOST
    for each in files:
        assert [*ROOT.glob(each)], f"{each} is not there"


def test_the_page_has_the_additions_that_records_and_backends_need() -> None:
    assert {"A record field", "A record kind", "A backend"} <= set(sections())


@define(eq=False)
class Counted:
    """A kind of record that the package does not know."""

    path: Path
    text: Annotated[str, StoredKey("t"), TEXT]
    count: Annotated[int, StoredKey("n"), COUNT] = 0


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> Codec:
    monkeypatch.setattr(records, "KINDS", {"Counted": Counted})
    return Codec()


@pytest.mark.parametrize(("count", "payload"), [(0, b'{"t":"a"}'), (2, b'{"t":"a","n":2}')])
def test_a_record_kind_needs_nothing_but_its_class_to_be_written_and_read(
    codec: Codec, count: int, payload: bytes
) -> None:
    record: Any = Counted(("step",), "a", count)
    stored = records.dump_record(record, codec)
    assert stored == Record("Counted", ("step",), payload)
    read: Any = records.load_record(stored, codec)
    assert (read.path, read.text, read.count) == (("step",), "a", count)


@pytest.mark.parametrize(
    ("path", "payload", "name"),
    [
        (("step",), b'{"n":1}', "text"),
        (("step",), b'{"t":1}', "text"),
        (("step",), b'{"t":"a","n":-1}', "count"),
        (("step",), b"[]", "form"),
        ((), b'{"t":"a"}', "path"),
    ],
)
def test_a_record_kind_is_checked_by_its_declarations(
    codec: Codec, path: tuple[str, ...], payload: bytes, name: str
) -> None:
    with pytest.raises(CodecError) as caught:
        records.load_record(Record("Counted", path, payload), codec)
    assert caught.value.where == name
