"""The files of a folder, and the pages of a file."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryFile
from typing import IO, Final

from anyio import fail_after, run_process, to_thread
from attrs import asdict, frozen

from noetic_documents import convert
from noetic_documents.passages import normalized
from noetic_py.errors import ConfigError, NoeticError

__all__ = ["DocumentError", "Limits", "Page", "ReadFile", "SourceFile", "files_of", "pages_of", "read"]

_MARKDOWN: Final = (".md", ".markdown")
_TEXT: Final = (".txt", ".text", ".rst", ".csv")
TYPES: Final = (*_MARKDOWN, *_TEXT, *convert.CONVERTERS)
"""The names of files that can be read, by how they end."""
_OPENED: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)


class DocumentError(NoeticError):
    """A document that is not taken in; the others are.

    Args:
        message: What is the matter, with the document's name.
        code: A short stable code, such as `"too-large"`.
        hint: What to do.
    """

    def __init__(self, message: str, *, code: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


@frozen
class Limits:
    """What a document may take.

    Attributes:
        bytes: Bytes of the file.
        unpacked: Bytes of an archive's entries together; DOCX, PPTX, XLSX and EPUB are archives.
        pages: Pages of a PDF.
        characters: Characters of its text.
        passages: Passages of its text.
        seconds: Seconds for its conversion.
        memory: Bytes of memory for its conversion, where the system can limit that.
    """

    bytes: int = 50_000_000
    unpacked: int = 250_000_000
    pages: int = 2_000
    characters: int = 5_000_000
    passages: int = 10_000
    seconds: int = 60
    memory: int = 2_000_000_000

    def __attrs_post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ConfigError(
                    f"{name}={value!r} is not a valid limit; expected 1 or more",
                    code="document-limits",
                    hint=f"Limits({name}=...)",
                )


@frozen
class SourceFile:
    """A file that was found.

    Attributes:
        name: The document's name: the folder's, and the path in it.
        path: Where it is.
        listed: Whether it was found below a folder; otherwise it was asked for.
    """

    name: str
    path: Path
    listed: bool = True


@frozen
class ReadFile:
    """What is in a file.

    Attributes:
        data: Its bytes.
        changed: When it was changed last.
    """

    data: bytes
    changed: datetime


@frozen
class Page:
    """A part of a document that is cut by itself.

    Attributes:
        text: Its text, normalized.
        number: Of a PDF its number; 0 of the others, which have one part only.
        markdown: Whether it is Markdown.
    """

    text: str
    number: int = 0
    markdown: bool = True


def files_of(path: Path, name: str) -> tuple[str, list[SourceFile]]:
    """The name of a file or a folder, and the file, or those below the folder in the order of their names.

    What begins with a dot is left out. Links below the folder are not followed, so that none leads out of it.

    Raises:
        ConfigError: There is no such file or folder; code `"document-path"`.
    """
    try:
        root = path.resolve(strict=True)
    except OSError as error:
        raise _no_path(path, f"{error.strerror or error}") from None
    name = name or _readable(root.name) or "root"
    if not root.is_dir():
        return name, [SourceFile(name, root, listed=False)]
    found: list[SourceFile] = []

    def unreadable(error: OSError) -> None:
        raise _no_path(Path(error.filename), f"{error.strerror or error}")

    for folder, below, files in os.walk(root, onerror=unreadable):
        below[:] = sorted(each for each in below if not each.startswith("."))
        links = [each for each in below if Path(folder, each).is_symlink()]
        for each in (*links, *files):
            if not each.startswith("."):
                inside = Path(folder, each)
                found.append(SourceFile(_readable(f"{name}/{inside.relative_to(root).as_posix()}"), inside))
    return name, sorted(found, key=lambda each: each.name)


def _readable(name: str) -> str:
    """A name without the marks that stand for bytes that are not UTF-8."""
    return name.encode(errors="replace").decode()


def _no_path(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{str(path)!r} is not a valid path of documents: {why}; expected a file or a folder that can be read",
        code="document-path",
        hint="check the path and the permissions",
    )


def read(source: SourceFile, limits: Limits) -> ReadFile:
    """The bytes of a regular file.

    Raises:
        DocumentError: It is a link, not a file, too large, or cannot be read.
    """
    if source.path.is_symlink():
        raise _error(source.name, "link", "is a link, and links are not followed", "add what it leads to by itself")
    try:
        with os.fdopen(os.open(source.path, _OPENED), "rb") as file:
            known = os.fstat(file.fileno())
            if not stat.S_ISREG(known.st_mode):
                raise _error(source.name, "not-a-file", "is not a regular file", "add regular files only")
            data = file.read(limits.bytes + 1)
    except OSError as error:
        raise _error(source.name, "unreadable", f"cannot be read: {error.strerror}", "check the permissions") from None
    if len(data) > limits.bytes:
        raise _error(
            source.name, "too-large", f"has more than {limits.bytes} bytes", "split it, or raise Limits(bytes=...)"
        )
    return ReadFile(data, datetime.fromtimestamp(known.st_mtime, UTC))


async def pages_of(name: str, kind: str, data: bytes, limits: Limits) -> Sequence[Page]:
    """The text of a document, converted to Markdown where it has a structure.

    Raises:
        DocumentError: It cannot be converted.
    """
    if kind in convert.CONVERTERS:
        texts = await _converted(name, kind, data, limits)
    else:
        texts = [await to_thread.run_sync(_text, name, kind, data)]
    if sum(map(len, texts)) > limits.characters:
        what = f"has more than {limits.characters} characters of text"
        raise _error(name, "too-large", what, "split it, or raise Limits(characters=...)")
    numbered, markdown = kind == ".pdf", kind not in (".pdf", *_TEXT)
    whole = await to_thread.run_sync(lambda: [normalized(text) for text in texts])
    pages = [Page(text, number if numbered else 0, markdown) for number, text in enumerate(whole, 1) if text]
    if not pages:
        raise _error(name, "no-text", "has no text", "leave it out")
    return pages


def _text(name: str, kind: str, data: bytes) -> str:
    coding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(coding)
    except UnicodeDecodeError:
        raise _error(name, "not-utf-8", "is not text in UTF-8", "convert it: `iconv -f CODING -t UTF-8`") from None
    return _rows(name, text) if kind == ".csv" else text


def _rows(name: str, text: str) -> str:
    """A table as a line for each row that names its columns, so that a row alone says what it is."""
    try:
        rows = csv.reader(StringIO(text), strict=True)
        names = next(rows, list[str]())
        lines = [
            "; ".join(f"{column}: {value}" if column else value for column, value in _columns(names, row) if value)
            for row in rows
        ]
    except csv.Error as error:
        raise _error(name, "damaged", f"is not a table: {error}", "save it as CSV with commas and quotes") from None
    return "\n".join(lines or [", ".join(names)])


def _columns(names: Sequence[str], row: Sequence[str]) -> list[tuple[str, str]]:
    padded = [*names, *[""] * (len(row) - len(names))]
    return list(zip(padded, row, strict=False))


async def _converted(name: str, kind: str, data: bytes, limits: Limits) -> list[str]:
    command = [sys.executable, "-P", "-W", "ignore", convert.__file__, kind, json.dumps(asdict(limits))]
    try:
        with TemporaryFile() as file, fail_after(limits.seconds):
            await to_thread.run_sync(_written, file, data)
            # A cancelled call ends the process.
            done = await run_process(command, stdin=file, stdout=PIPE, stderr=DEVNULL, check=False)
    except TimeoutError:
        what = f"took longer than {limits.seconds} s to convert"
        raise _error(name, "too-slow", what, "split it, or raise Limits(seconds=...)") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        what = f"made its converter end with {done.returncode} and no answer"
        raise _error(name, "crashed", what, "leave it out, or save it in another format") from None
    if "code" in answer:
        raise _error(name, answer["code"], answer["what"], answer["hint"])
    pages: list[str] = answer["pages"]
    return pages


def _written(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.seek(0)


def _error(name: str, code: str, what: str, hint: str) -> DocumentError:
    return DocumentError(f"document {name!r} {what}", code=code, hint=hint)
