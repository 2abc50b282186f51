"""`Documents`: folders and files as passages of a memory layer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import define, field
from document_samples import docx, pdf
from noetic_documents import Document, Documents, Limits, StoredDocument, convert

from noetic_py import Context, Harness, InMemoryBackend, Memory, Message, call_model, step
from noetic_py.errors import ConfigError, LayerError
from noetic_py.memory import Scope
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@define
class Letters:
    """Vectors of the letters of a text; counts what it is asked, and fails when it is told to."""

    asked: list[str] = field(factory=list[str])
    broken: bool = False
    name: str = "test:letters"
    dimensions: int = 26

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        if self.broken:
            raise RuntimeError("offline")
        self.asked += texts
        return [[text.lower().count(chr(97 + place)) + 0.01 for place in range(26)] for text in texts]


def layer(embedder: Letters | None = None, **limits: int) -> Documents:
    return Documents(embedder=embedder or Letters(), limits=Limits(**limits), least=-1)


def write(folder: Path, **files: str | bytes) -> Path:
    """Files by their names, in which `_` stands for the dot before the ending."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        (folder / f"{stem}.{ending}").write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


async def texts(documents: Documents, query: str = "water", **where: str) -> list[str]:
    return sorted(each.text for each in await documents.search(query, 50, where=where))


def statuses(documents: Sequence[Document]) -> dict[str, str]:
    return {each.name: each.status for each in documents}


async def test_a_folder_is_taken_in_and_followed(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "book", tides_md="# Tides\n\nHigh water.", ports_txt="Brest", times_csv="port,at\nBrest,9\n"
    )
    write(folder / "deep", more_markdown="More.")
    write(folder / ".git", config_txt="hidden")
    embedder, seen = Letters(), list[Document]()
    documents = layer(embedder)
    report = await documents.add(folder, progress=seen.append)
    assert str(report) == "4 added"
    assert [(each.name, each.number, each.total) for each in seen] == [
        ("book/deep/more.markdown", 1, 4),
        ("book/ports.txt", 2, 4),
        ("book/tides.md", 3, 4),
        ("book/times.csv", 4, 4),
    ]
    assert await texts(documents) == [
        "[book/deep/more.markdown]\nMore.",
        "[book/ports.txt]\nBrest",
        "[book/tides.md, Tides]\n# Tides\n\nHigh water.",
        "[book/times.csv]\nport: Brest; at: 9",
    ]
    # What is the same is not even turned into vectors again.
    before = len(embedder.asked)
    os.utime(folder / "ports.txt", (0, 0))
    assert set(statuses((await documents.add(str(folder))).documents).values()) == {"unchanged"}
    assert len(embedder.asked) == before
    write(folder, tides_md="# Tides\n\nLow water.")
    (folder / "ports.txt").unlink()
    (folder / "deep" / "more.markdown").unlink()
    assert statuses((await documents.add(folder)).documents) == {
        "book/tides.md": "changed",
        "book/times.csv": "unchanged",
    }
    assert await texts(documents, document="book/tides.md") == ["[book/tides.md, Tides]\n# Tides\n\nLow water."]
    assert len(await documents.stored()) == 4
    assert str(await documents.add(folder, prune=True)) == "2 unchanged, 2 removed"
    assert [each.name for each in await documents.stored()] == ["book/tides.md", "book/times.csv"]
    assert await documents.remove("book/times.csv") == 1
    assert await documents.remove("book/times.csv") == 0
    assert len(await texts(documents)) == 1


async def test_a_passage_says_where_it_is_from(tmp_path: Path) -> None:
    folder = write(tmp_path / "book", chart_pdf=pdf("High water is at noon.", "", "Springs."))
    write(folder, guide_docx=docx(("heading 1", "Ports"), ("heading 2", "Brest"), ("Normal", "Pier two.")))
    write(folder, shops_html="<h1>Shops</h1><p>The baker.</p>")
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    os.utime(folder / "chart.pdf", (noon.timestamp(), noon.timestamp()))
    documents = layer()
    assert str(await documents.add(folder, name="guide")) == "3 added"
    [found] = await documents.search("noon", where={"page": "1"})
    assert (found.text, found.origin) == (
        "[guide/chart.pdf, page 1]\nHigh water is at noon.",
        "guide/chart.pdf, page 1",
    )
    assert (found.role, found.said, found.metadata["span"]) == ("document", noon, "0-22")
    [found] = await documents.search("pier", where={"document": "guide/guide.docx"})
    assert found.metadata["heading"] == "Ports"
    assert found.text == "[guide/guide.docx, Ports]\n# Ports\n\n## Brest\n\nPier two."
    assert len(await documents.search("the", where={"page": "3"})) == 1


async def test_one_bad_document_does_not_lose_the_others(tmp_path: Path) -> None:
    secret = write(tmp_path / "secrets", key_txt="secret")
    folder = write(tmp_path / "book", a_md="A.", b_pdf=b"no pdf", c_txt="K\u00fcste".encode("latin-1"), d_md=" \n")
    write(folder, e_txt="x" * 200, f_csv='a,b\n"x', g_png=b"\x89PNG", z_md="\ufeffZ.")
    write(folder, u_txt="U.".encode("utf-16"))
    write(folder, **{os.fsdecode(b"\xff_txt"): "Y."})
    (folder / "link.txt").symlink_to(secret / "key.txt")
    (folder / "linked").symlink_to(secret)
    os.mkfifo(folder / "pipe.txt")
    documents = layer(bytes=150)
    report = await documents.add(folder)
    assert {each.name.removeprefix("book/"): each.code or each.status for each in report.documents} == {
        "?.txt": "added",
        "a.md": "added",
        "b.pdf": "damaged",
        "c.txt": "not-utf-8",
        "d.md": "no-text",
        "e.txt": "too-large",
        "f.csv": "damaged",
        "g.png": "skipped",
        "link.txt": "link",
        "linked": "skipped",
        "pipe.txt": "not-a-file",
        "u.txt": "added",
        "z.md": "added",
    }
    assert await texts(documents) == ["[book/?.txt]\nY.", "[book/a.md]\nA.", "[book/u.txt]\nU.", "[book/z.md]\nZ."]
    assert len(report.failed) == 7
    assert "document 'book/e.txt' has more than 150 bytes\n  Try: split it, or raise Limits(bytes=...)" in str(report)


async def test_what_fails_keeps_its_old_passages(tmp_path: Path) -> None:
    folder = write(tmp_path / "book", a_md="Old.")
    embedder = Letters()
    documents = layer(embedder, bytes=150)
    await documents.add(folder)
    write(folder, a_md="x" * 200)
    [failed] = (await documents.add(folder)).failed
    assert (failed.name, failed.passages) == ("book/a.md", 1)
    write(folder, a_md="New.")
    embedder.broken = True
    with pytest.raises(LayerError, match="offline"):
        await documents.add(folder)
    embedder.broken = False
    assert await texts(documents) == ["[book/a.md]\nOld."]
    await documents.add(folder)
    assert await texts(documents) == ["[book/a.md]\nNew."]


async def test_a_file_by_itself(tmp_path: Path) -> None:
    folder = write(tmp_path, a_md="A.", b_png="B.")
    (tmp_path / "link.md").symlink_to(folder / "a.md")
    documents = layer()
    # A link that is given is meant.
    assert statuses((await documents.add(folder / "link.md", prune=True)).documents) == {"a.md": "added"}
    [failed] = (await documents.add(folder / "b.png")).failed
    assert failed.code == "unknown-type"
    assert "ends in '.png'; expected one of .md" in failed.problem
    with pytest.raises(ConfigError, match="is not a valid path of documents: No such file"):
        await documents.add(folder / "missing")


async def test_the_same_text_belongs_to_each_of_its_documents(tmp_path: Path) -> None:
    folder = write(tmp_path / "book", a_md="The same.", b_md="The same.")
    documents = layer()
    await documents.add(folder)
    (folder / "a.md").unlink()
    await documents.add(folder, prune=True)
    assert await texts(documents) == ["[book/b.md]\nThe same."]


async def test_too_many_passages_are_refused(tmp_path: Path) -> None:
    long = "\n\n".join(f"Paragraph {number} of a long text that is cut in parts." for number in range(60))
    folder = write(tmp_path / "book", a_md="A.", b_md=long)
    documents = layer(passages=3)
    [failed] = (await documents.add(folder)).failed
    assert (failed.name, failed.code) == ("book/b.md", "too-many-passages")
    # Nothing is pushed out for a document that has no room.
    small = Documents(embedder=Letters(), limit=2, least=-1)
    [failed] = (await small.add(folder)).failed
    assert "and the layer keeps 2" in failed.problem
    assert await texts(small) == ["[book/a.md]\nA."]


async def test_other_settings_cut_anew(tmp_path: Path) -> None:
    folder = write(tmp_path / "book", a_md="# A\n\n" + "".join(f"High water {day} is at noon. " for day in range(30)))
    documents, backend = list[int](), InMemoryBackend()
    for tokens in (64, 64, 32):

        class Mem(Memory):
            book: Documents = Documents(embedder=Letters(), tokens=tokens, overlap=0, scope=Scope.GLOBAL)

        @step
        async def load(path: str, ctx: Context[Mem]) -> str:
            report = await ctx.memory.book.add(path)
            documents.append(len(await texts(ctx.memory.book)))
            return str(report)

        async with Harness(memory=Mem(), checkpoints=backend) as harness:
            assert (await harness.run(load, str(folder))).value in ("1 added", "1 unchanged", "1 changed")
    assert documents[0] == documents[1] < documents[2]


async def test_a_run_recalls_documents_and_does_not_keep_what_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "book", tides_md="High water is at noon.")
    os.utime(folder / "tides.md", (0, 0))

    class Mem(Memory):
        book: Documents = Documents(embedder=Letters(), scope=Scope.GLOBAL)

    @step
    async def load(path: str, ctx: Context[Mem]) -> tuple[StoredDocument, ...]:
        await ctx.memory.book.add(path)
        return tuple(await ctx.memory.book.stored())

    model = ScriptedModel("At noon.", "Yes.")
    async with Harness(memory=Mem(), checkpoints=InMemoryBackend(), model=model) as harness:
        [stored] = (await harness.run(load, str(folder))).value
        assert (stored.name, stored.passages) == ("book/tides.md", 1)
        for question in ("When is high water?", "Is it at noon?"):
            await harness.run(call_model(), question, thread_id="t")
    shown = [item.text for item in model.requests[1].items if isinstance(item, Message) and "From doc" in item.text]
    assert "From documents:\n1970-01-01 [book/tides.md]\nHigh water is at noon.\n" in shown[0]
    assert "When is high water?" not in shown[0]


async def test_what_is_forgotten_is_taken_in_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "book", a_md="A.", b_md="B.")
    documents = layer()
    for where, again in (
        (None, "2 added"),
        ({"document": "book/a.md"}, "1 added, 1 unchanged"),
        ({"span": "0-2"}, "2 added"),
    ):
        await documents.add(folder)
        await documents.forget(where)
        assert str(await documents.add(folder)) == again
        assert len(await texts(documents)) == 2


@pytest.mark.parametrize(
    ("program", "code", "seconds"),
    [
        ("import time\ntime.sleep(1_000_000)", "too-slow", 1),
        ("import os\nos.abort()", "crashed", 600),
        ("print('no answer')", "crashed", 600),
    ],
    ids=["endless", "crash", "nonsense"],
)
async def test_a_converter_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: str, seconds: int
) -> None:
    folder = write(tmp_path / "book", a_pdf=pdf("A."), b_md="B.")
    write(tmp_path, program_py=program)
    monkeypatch.setattr(convert, "__file__", str(tmp_path / "program.py"))
    documents = layer(seconds=seconds)
    [failed] = (await documents.add(folder)).failed
    assert (failed.name, failed.code) == ("book/a.pdf", code)
    assert await texts(documents) == ["[book/b.md]\nB."]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_conversion_has_so_much_memory(tmp_path: Path) -> None:
    folder = write(tmp_path / "book", a_html="x" * 40_000_000, b_md="B.")
    documents = layer(memory=60_000_000)
    [failed] = (await documents.add(folder)).failed
    assert (failed.name, failed.code) == ("book/a.html", "too-large")
    assert "needs more than 60000000 bytes of memory" in failed.problem
    assert await texts(documents) == ["[book/b.md]\nB."]


@pytest.mark.parametrize(("tokens", "overlap"), [(15, 0), (32, 17), (32, -1)])
def test_settings_that_cannot_be(tokens: int, overlap: int) -> None:
    with pytest.raises(ConfigError, match="are not valid settings of passages"):
        Documents(tokens=tokens, overlap=overlap)
    with pytest.raises(ConfigError, match="pages=0 is not a valid limit"):
        Limits(pages=0)
