"""What the converters make of documents, and of what is none."""

from __future__ import annotations

import sys
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict
from document_samples import archive, docx, epub, pdf
from noetic_documents import Limits
from noetic_documents.convert import converted
from pypdf import PdfReader, PdfWriter


def answer(kind: str, data: bytes, **limits: int) -> dict[str, Any]:
    return converted(kind, BytesIO(data), asdict(Limits(**limits)))


def page(kind: str, data: bytes) -> str:
    [text] = answer(kind, data)["pages"]
    assert isinstance(text, str)
    return text.strip()


def encrypted(password: str) -> bytes:
    writer, data = PdfWriter(clone_from=PdfReader(BytesIO(pdf("High water.")))), BytesIO()
    writer.encrypt(password, "owner", algorithm="RC4-128")
    writer.write(data)
    return data.getvalue()


def test_a_pdf_is_read_page_by_page() -> None:
    assert answer(".pdf", pdf("High water is at noon.", "", "Page three.")) == {
        "pages": ["High water is at noon.", "", "Page three."]
    }
    # One that only an editor needs the password for can be read.
    assert answer(".pdf", encrypted("")) == {"pages": ["High water."]}


def test_a_docx_keeps_its_headings_and_lists() -> None:
    made = page(".docx", docx(("Title", "Harbour"), ("heading 1", "Tides"), ("Normal", "High water &lt; noon.")))
    assert made == "# Harbour\n\n# Tides\n\nHigh water < noon."


def test_html_keeps_what_is_to_be_read() -> None:
    html = (
        "<html><head><title>t</title><style>p{}</style></head><body><script>x</script>"
        "<h1>Tides</h1><p>At <b>noon</b>.</p>"
        "<img src='data:image/png;base64,AAAA' alt='a chart'><ul><li>one</ul>"
        "<table><tr><td>Port</td><td>Time</td></tr><tr><td>Brest</td><td>9</td></tr></table></body></html>"
    )
    made = page(".html", html.encode())
    assert made.startswith("# Tides\n\nAt **noon**.\n\na chart")
    assert "- one" in made
    assert made.endswith("| Port | Time |\n| --- | --- |\n| Brest | 9 |")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages that markitdown loads
def test_the_extra_reads_presentations_workbooks_and_books() -> None:
    from pptx import Presentation

    book, sheets, slides = epub("<h1>Tides</h1><p>At noon.</p>"), BytesIO(), BytesIO()
    workbook: Any = import_module("openpyxl").Workbook()
    workbook.worksheets[0].append(["Port", "Time"])
    workbook.worksheets[0].append(["Brest", "9"])
    workbook.save(sheets)
    deck = Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    assert slide.shapes.title is not None
    slide.shapes.title.text = "Tides"
    deck.save(slides)
    assert "# Tides\n\nAt noon." in page(".epub", book)
    assert "| Brest | 9 |" in page(".xlsx", sheets.getvalue())
    assert "# Tides" in page(".pptx", slides.getvalue())


@pytest.mark.parametrize(
    ("kind", "data", "code", "what"),
    [
        (".pdf", b"%PDF-1.7\n" + bytes(100), "damaged", "is damaged"),
        (".pdf", pdf("one", "two")[:-200], "damaged", "is damaged"),
        (
            ".pdf",
            b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 1 0 R/Kids[1 0 R]/Count 9>>endobj\ntrailer<</Root 1 0 R>>",
            "",
            "",
        ),
        (".pdf", pdf("", " "), "no-text", "pages without text"),
        (".pdf", pdf("a", "b", "c", "d"), "too-large", "has 4 pages, more than 3"),
        (".pdf", pdf("a" * 600, "b" * 600), "too-large", "more than 1000 characters"),
        (".pdf", encrypted("secret"), "encrypted", "is encrypted"),
        (".docx", b"PK\x03\x04" + bytes(100), "damaged", "is damaged: BadZipFile"),
        (".docx", archive({"a": "b"}), "damaged", "is damaged"),
        (".docx", archive({"word/document.xml": bytes(100_000)}), "too-large", "100000 bytes when it is unpacked"),
        (".docx", docx(("Normal", "a" * 2_000)), "too-large", "more than 1000 characters"),
        (".html", b"<div>" * 20_000, "damaged", "nested too deeply"),
        (".xlsx", archive({"a": bytes(100_000)}), "too-large", "bytes when it is unpacked"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_read_says_why(kind: str, data: bytes, code: str, what: str) -> None:
    given = answer(kind, data, pages=3, characters=1_000, unpacked=90_000)
    if not code:
        assert given["code"]
        return
    assert (given["code"], what in given["what"], bool(given["hint"])) == (code, True, True)


def test_entities_neither_grow_nor_read_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("harbour secret")
    names = "abcdefgh"
    grown = "".join(f'<!ENTITY {name} "{f"&{below};" * 10}">' for below, name in pairwise(names))
    many = docx(("Normal", "&h;"), before=f'<!DOCTYPE x [<!ENTITY a "lol">{grown}]>')
    assert answer(".docx", many)["code"] in ("damaged", "too-large")
    outside = docx(("Normal", "at &e; noon"), before=f'<!DOCTYPE x [<!ENTITY e SYSTEM "file://{tmp_path}/secret">]>')
    assert "harbour secret" not in str(answer(".docx", outside))


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "markitdown", None)
    given = answer(".pptx", b"")
    assert given["code"] == "no-converter"
    assert given["hint"] == 'pip install "noetic-documents[office]"'
