"""Documents made byte by byte."""

from __future__ import annotations

import zipfile
import zlib
from io import BytesIO

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_KIND = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
_RELATED = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def archive(entries: dict[str, str | bytes]) -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return data.getvalue()


def docx(*paragraphs: tuple[str, str], before: str = "") -> bytes:
    """Paragraphs with their styles; `before` stands in front of the document's element."""
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="{style.replace(" ", "")}"><w:name w:val="{style}"/></w:style>'
        for style in sorted({style for style, _ in paragraphs})
    )
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style.replace(" ", "")}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    part = f'<Override PartName="/word/document.xml" ContentType="{_KIND}"/>'
    kinds = f'<Types xmlns="{_PACKAGE}/content-types">{part}</Types>'
    document = f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    return archive(
        {
            "[Content_Types].xml": kinds,
            "_rels/.rels": _relation("officeDocument", "word/document.xml"),
            "word/_rels/document.xml.rels": _relation("styles", "styles.xml"),
            "word/styles.xml": f'<w:styles xmlns:w="{_WORD}">{styles}</w:styles>',
            "word/document.xml": f'<?xml version="1.0"?>{before}{document}',
        }
    )


def _relation(kind: str, target: str) -> str:
    relation = f'<Relationship Id="r" Type="{_RELATED}/{kind}" Target="{target}"/>'
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{relation}</Relationships>'


def pdf(*pages: str) -> bytes:
    """Pages of one line each."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * page) for page in range(len(pages)))
    parts = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(pages), kids),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for page, text in enumerate(pages):
        drawn = zlib.compress(b"BT /F1 12 Tf 20 700 Td (%s) Tj ET" % text.encode("latin-1") if text else b"")
        fonts = b"<</Font<</F1 3 0 R>>>>"
        parts.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources%s/Contents %d 0 R>>" % (fonts, 5 + 2 * page)
        )
        parts.append(b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(drawn), drawn))
    made, places = b"%PDF-1.4\n", list[int]()
    for number, part in enumerate(parts, 1):
        places.append(len(made))
        made += b"%d 0 obj%s endobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(parts) + 1, len(made))
    return made + b"xref\n0 %d\n0000000000 65535 f \n" % (len(parts) + 1) + table + end


def epub(body: str) -> bytes:
    roots = '<rootfiles><rootfile full-path="c.opf"/></rootfiles>'
    container = f'<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container">{roots}</container>'
    about = '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Pilot</dc:title></metadata>'
    parts = '<manifest><item id="a" href="a.xhtml"/></manifest><spine><itemref idref="a"/></spine>'
    package = f'<package xmlns="http://www.idpf.org/2007/opf">{about}{parts}</package>'
    return archive(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": container,
            "c.opf": package,
            "a.xhtml": f"<html><body>{body}</body></html>",
        }
    )
