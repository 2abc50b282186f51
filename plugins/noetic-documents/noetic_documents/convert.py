"""The converters, run as a script in a process of their own: a document on stdin, its pages as JSON on stdout.

The parsers read what strangers have written. Here a document that crashes them, takes all memory or never ends costs
its own process and nothing else. Only the standard library and the parser that is needed are imported.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import Any, BinaryIO

Settings = Mapping[str, int]

_STYLES = "p[style-name='Title'] => h1:fresh"


class Refused(Exception):
    """A document that is not converted.

    Args:
        code: A short stable code.
        what: What is the matter with it.
        hint: What to do.
    """

    def __init__(self, code: str, what: str, hint: str) -> None:
        super().__init__(what)
        self.code = code
        self.hint = hint


def pdf_pages(data: bytes, settings: Settings) -> list[str]:
    """The text of each page."""
    from pypdf import PasswordType, PdfReader
    from pypdf.errors import DependencyError

    locked = Refused("encrypted", "is encrypted", "save it without a password, such as with `qpdf --decrypt`")
    try:
        reader = PdfReader(BytesIO(data))
        if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
            raise locked
        count = len(reader.pages)
        if count > settings["pages"]:
            raise Refused("too-large", f"has {count} pages, more than {settings['pages']}", "raise Limits(pages=...)")
        pages: list[str] = []
        for page in reader.pages:
            pages.append(page.extract_text())
            _check_characters(sum(map(len, pages)), settings)
    except DependencyError:
        # A kind of encryption that the parser needs another package for.
        raise locked from None
    if not any(page.strip() for page in pages):
        raise Refused("no-text", "has pages without text", "recognise the text of scanned pages first: `ocrmypdf`")
    return pages


def docx_pages(data: bytes, settings: Settings) -> list[str]:
    """The document as one page of Markdown."""
    mammoth = import_module("mammoth")
    _check_archive(data, settings)
    # Files that a document refers to are not read: the parser would, were it told to.
    made = mammoth.convert_to_html(
        BytesIO(data), external_file_access=False, convert_image=_no_image, style_map=_STYLES
    )
    return [_markdown(made.value)]


def _no_image(image: Any) -> list[Any]:
    return []


def html_pages(data: bytes, settings: Settings) -> list[str]:
    """The page as Markdown."""
    return [_markdown(data)]


def _markdown(html: str | bytes) -> str:
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(html, "html.parser")
    for each in soup(["head", "noscript", "script", "style", "svg", "template"]):
        each.decompose()
    for image in soup("img"):
        image.replace_with(str(image.get("alt") or ""))
    text: str = MarkdownConverter(heading_style="ATX", bullets="-", table_infer_header=True).convert_soup(soup)
    return text


def office_pages(kind: str, data: bytes, settings: Settings) -> list[str]:
    """A presentation, a workbook or a book as one page of Markdown, by markitdown."""
    try:
        from markitdown import MarkItDown
    except ModuleNotFoundError:
        raise Refused(
            "no-converter", "needs markitdown, which is not installed", 'pip install "noetic-documents[office]"'
        ) from None
    _check_archive(data, settings)
    made = MarkItDown(enable_plugins=False).convert_stream(BytesIO(data), file_extension=kind)
    return [made.markdown]


def _check_archive(data: bytes, settings: Settings) -> None:
    # Python reads no more of an entry than the size that the archive says it has.
    with zipfile.ZipFile(BytesIO(data)) as archive:
        size = sum(each.file_size for each in archive.infolist())
    if size > settings["unpacked"]:
        what = f"has {size} bytes when it is unpacked, more than {settings['unpacked']}"
        raise Refused("too-large", what, "raise Limits(unpacked=...) if you trust where it is from")


def _check_characters(count: int, settings: Settings) -> None:
    if count > settings["characters"]:
        what = f"has more than {settings['characters']} characters of text"
        raise Refused("too-large", what, "split it, or raise Limits(characters=...)")


CONVERTERS: Mapping[str, Callable[[bytes, Settings], list[str]]] = {
    ".pdf": pdf_pages,
    ".docx": docx_pages,
    ".html": html_pages,
    ".htm": html_pages,
    ".xhtml": html_pages,
    **{kind: partial(office_pages, kind) for kind in (".pptx", ".xlsx", ".epub")},
}


def converted(kind: str, file: BinaryIO, settings: Settings) -> dict[str, Any]:
    """What the process answers: the pages, or what is the matter."""
    damaged = "open it in the program that it is of, and save it anew"
    try:
        pages = CONVERTERS[kind](file.read(), settings)
        _check_characters(sum(map(len, pages)), settings)
    except Refused as refused:
        return {"code": refused.code, "what": str(refused), "hint": refused.hint}
    except MemoryError:
        what = f"needs more than {settings['memory']} bytes of memory to convert"
        return {"code": "too-large", "what": what, "hint": "split it, or raise Limits(memory=...)"}
    except RecursionError:
        return {"code": "damaged", "what": "has parts that are nested too deeply", "hint": damaged}
    except Exception as error:  # noqa: BLE001 # whatever a parser raises on what is no such document
        return {"code": "damaged", "what": f"is damaged: {type(error).__name__}: {error}"[:500], "hint": damaged}
    return {"pages": pages}


def _limit(settings: Settings) -> None:
    try:
        import resource
    except ImportError:
        # Windows has no such limits; there only the parent's limit of time holds.
        return
    resource.setrlimit(resource.RLIMIT_AS, (settings["memory"], settings["memory"]))
    # Its parent limits the time; this is for when there is no parent any more.
    resource.setrlimit(resource.RLIMIT_CPU, (2 * settings["seconds"], 2 * settings["seconds"] + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer for one document."""
    # What a parser prints does not get between.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings = json.loads(sys.argv[2])
    _limit(settings)
    with answers:
        json.dump(converted(sys.argv[1], sys.stdin.buffer, settings), answers)


if __name__ == "__main__":
    main()
