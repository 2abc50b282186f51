"""`Documents`: a memory layer with the passages of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

from anyio import to_thread
from attrs import evolve, frozen

from noetic_documents.files import TYPES, DocumentError, Limits, Page, ReadFile, SourceFile, files_of, pages_of, read
from noetic_documents.passages import Passage, cut
from noetic_py.errors import ConfigError
from noetic_py.memory import Found, SemanticRecall, function
from noetic_py.models.model import ModelResponse

__all__ = ["Document", "DocumentReport", "Documents", "StoredDocument"]

_FORMAT: Final = 1
_KEY: Final = "document:"

Status: TypeAlias = Literal["added", "changed", "unchanged", "removed", "failed", "skipped"]


@frozen
class Document:
    """What has become of a document.

    Attributes:
        name: Its name: the folder's, and the path in it.
        status: `"added"`, `"changed"`, `"unchanged"`, `"removed"`, `"failed"`, or `"skipped"` for a file of a kind that
            is not read.
        passages: How many passages it has.
        code: Why it failed, such as `"too-large"`, `"encrypted"`, `"damaged"`, `"no-text"` or `"too-slow"`.
        problem: The same in words, with what to do.
        number: Which of the call's documents it is, from 1.
        total: How many these are.
    """

    name: str
    status: Status
    passages: int = 0
    code: str = ""
    problem: str = ""
    number: int = 0
    total: int = 0


@frozen
class DocumentReport:
    """What has become of the documents of a call.

    Attributes:
        documents: These, in the order of their names; those that were removed at the end.
    """

    documents: tuple[Document, ...] = ()

    @property
    def failed(self) -> Sequence[Document]:
        """The documents that were not taken in; what was kept of them before is still there."""
        return [each for each in self.documents if each.status == "failed"]

    def __str__(self) -> str:
        counts = Counter(each.status for each in self.documents)
        head = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no documents"
        return "\n".join([head, *(each.problem for each in self.failed)])


@frozen
class StoredDocument:
    """A document that is kept.

    Attributes:
        name: Its name.
        digest: A digest of its bytes and of how it was cut.
        passages: How many passages it has.
    """

    name: str
    digest: str
    passages: int


class Documents(SemanticRecall):
    """Passages of files, of which those nearest to the newest input are recalled.

        class Mem(Memory):
            handbook: Documents = Documents(scope=Scope.GLOBAL)

        @step
        async def load(path: str, ctx: Context[Mem]) -> str:
            return str(await ctx.memory.handbook.add(path))

    It reads PDF, DOCX, HTML, Markdown, CSV and text, and with the extra `office` PPTX, XLSX and EPUB. Each document is
    cut at its headings, paragraphs and sentences; PDFs page by page. A passage begins with its document's name, its
    page and its headings, and has these as metadata too: `search(query, where={"document": "handbook/tides.pdf"})`.

    Everything else is as in [`SemanticRecall`][noetic_py.memory.SemanticRecall], except that it does not keep what is
    said in the conversation.

    Attributes:
        tokens: Tokens of a passage, without its first line.
        overlap: Tokens of a passage that the next one of the same part begins with, at most.
        limits: What a document may take.
        limit: Passages of all documents; a document that would be too many is refused, and none goes for it.

    Raises:
        ConfigError: A setting is wrong; codes `"document-settings"` and `"semantic-settings"`.
    """

    heading: ClassVar[str] = "From documents:"

    tokens: int = 128
    overlap: int = 16
    limits: Limits = Limits()
    limit: int = 50_000

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.tokens < 16 or not 0 <= self.overlap <= self.tokens // 2:
            raise ConfigError(
                f"tokens={self.tokens!r} and overlap={self.overlap!r} are not valid settings of passages; expected "
                "16 tokens or more, and an overlap of at most half of these",
                code="document-settings",
                hint="Documents(tokens=128, overlap=16)",
            )

    async def add(
        self,
        path: str | Path,
        *,
        name: str = "",
        prune: bool = False,
        progress: Callable[[Document], object] | None = None,
    ) -> DocumentReport:
        """Take in a file, or all files below a folder that can be read.

        A document whose bytes are the same as before is left as it is, and one that has changed takes the place of its
        old passages. One that cannot be taken in does not hinder the others; the report says what is the matter.

        Args:
            path: The file or the folder. Links below it are not followed, and names with a dot in front are left out.
            name: What the documents' names begin with; the name of the file or the folder when left out.
            prune: Whether documents of this name that are not there any more are removed.
            progress: Called with each document as soon as it is done.

        Raises:
            ConfigError: There is no such file or folder; code `"document-path"`.
            LayerError: The embedder has failed, or the store of `vectors=`; what was done until then is kept.
            StoreUnavailable: The harness's backend does not answer.
        """
        root, sources = await to_thread.run_sync(files_of, Path(path), name)
        known = {each.name: each for each in await self.stored()}
        seen = {each.name for each in sources}
        missing = [each for each in known.values() if each.name.startswith(f"{root}/") and each.name not in seen]
        gone = missing if prune else []
        total, done = len(sources) + len(gone), list[Document]()

        def note(document: Document) -> None:
            done.append(evolve(document, number=len(done) + 1, total=total))
            if progress is not None:
                progress(done[-1])

        for source in sources:
            document = await self._taken(source, known)
            if document.status in ("added", "changed"):
                known[document.name] = StoredDocument(document.name, "", document.passages)
            note(document)
        for each in gone:
            await self.remove(each.name)
            note(Document(each.name, "removed", each.passages))
        return DocumentReport(tuple(done))

    async def remove(self, name: str) -> int:
        """Remove a document; returns how many passages it had.

        Raises:
            LayerError: The store of `vectors=` has failed.
        """
        return await self.forget({"document": name})

    async def stored(self) -> Sequence[StoredDocument]:
        """The documents that are kept, by their names."""
        shelf = self._shelf
        found: list[StoredDocument] = []
        for key in await shelf.keys():
            if key.startswith(_KEY):
                entry, _ = await shelf.get_versioned(key, tuple[str, str, int])
                if entry is not None:
                    found.append(StoredDocument(*entry))
        return sorted(found, key=lambda each: each.name)

    @function(model=False)
    async def forget(self, where: Mapping[str, str] | None = None) -> int:
        """Remove all that is kept for the layer's scope, or what has some metadata.

        Args:
            where: Only what has these metadata.
        """
        # First: a document that is not known is read again, whatever of it is still there.
        shelf, document = self._shelf, (where or {}).get("document")
        keys = [_key(document)] if document is not None else await shelf.keys()
        for key in keys:
            if key.startswith(_KEY):
                await shelf.remove(key)
        return await self._forget(where)

    async def store(self, response: ModelResponse) -> None:
        """What is said in the conversation is not kept here."""

    def _line(self, passage: Found, here: str) -> str:
        # The passage itself begins with where it is from.
        return passage.text if passage.said is None else f"{passage.said.date().isoformat()} {passage.text}"

    async def _taken(self, source: SourceFile, known: Mapping[str, StoredDocument]) -> Document:
        kind, before = source.path.suffix.lower(), known.get(source.name)
        try:
            if kind not in TYPES:
                if source.listed:
                    return Document(source.name, "skipped")
                raise DocumentError(
                    f"document {source.name!r} ends in {kind!r}; expected one of {', '.join(TYPES)}",
                    code="unknown-type",
                    hint="convert it to one of these",
                )
            file = await to_thread.run_sync(read, source, self.limits)
            digest = await to_thread.run_sync(self._digest, file.data)
            if before is not None and before.digest == digest:
                return Document(source.name, "unchanged", before.passages)
            pages = await pages_of(source.name, kind, file.data, self.limits)
            passages = await to_thread.run_sync(self._cut, source.name, file, pages)
            others = sum(each.passages for each in known.values()) - (before.passages if before is not None else 0)
            self._check(source.name, len(passages), others)
        except DocumentError as error:
            return Document(source.name, "failed", before.passages if before else 0, error.code, str(error))
        await self._kept_instead(source.name, digest, passages)
        return Document(source.name, "changed" if before is not None else "added", len(passages))

    def _check(self, name: str, count: int, others: int) -> None:
        if count > self.limits.passages:
            what, hint = f"more than {self.limits.passages}", "split it, or raise Limits(passages=...)"
        elif others + count > self.limit:
            what, hint = f"and the layer keeps {self.limit}", "raise Documents(limit=...), or remove documents"
        else:
            return
        raise DocumentError(f"document {name!r} has {count} passages, {what}", code="too-many-passages", hint=hint)

    async def _kept_instead(self, name: str, digest: str, passages: Sequence[Found]) -> None:
        # Without this entry a document is read again; so it is gone while passages are exchanged.
        await self._shelf.remove(_key(name))
        await self.replace({"document": name}, passages)
        await self._shelf.put(_key(name), (name, digest, len(passages)))

    def _digest(self, data: bytes) -> str:
        return sha256(f"{_FORMAT} {self.tokens} {self.overlap}\n".encode() + data).hexdigest()

    def _cut(self, name: str, file: ReadFile, pages: Sequence[Page]) -> list[Found]:
        return [
            _found(name, file, page, passage)
            for page in pages
            for passage in cut(page.text, self.tokens, self.overlap, markdown=page.markdown)
        ]


def _found(name: str, file: ReadFile, page: Page, passage: Passage) -> Found:
    metadata = {"span": f"{passage.start}-{passage.end}"}
    if page.number:
        metadata["page"] = str(page.number)
    if passage.heading:
        metadata["heading"] = passage.heading
    where = [name, *([f"page {page.number}"] if page.number else []), *([passage.heading] if passage.heading else [])]
    origin = ", ".join(where)
    # The first line makes a passage one of its document: the same text of another is kept too, and goes with that.
    return Found(f"[{origin}]\n{passage.text}", "document", origin=origin, said=file.changed, metadata=metadata)


def _key(name: str) -> str:
    return _KEY + sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
