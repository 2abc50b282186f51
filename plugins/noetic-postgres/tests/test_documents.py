"""`Documents` of noetic-documents, with its passages in a real server with pgvector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from noetic_documents import Documents
from noetic_postgres import PgVectorStore
from postgres_server import PostgresServer

from noetic_py import Context, Harness, InMemoryBackend, Memory, Message, call_model, step
from noetic_py.memory import Scope
from noetic_py.testing import ScriptedModel
from tests.layer_runs import Letters

pytestmark = pytest.mark.anyio


@step
async def take_in(folder: str, ctx: Context[Any]) -> list[str]:
    book: Documents = ctx.memory["book"]
    report = await book.add(folder, prune=True)
    return [f"{each.name} {each.status} {each.passages}" for each in report.documents]


@step
async def look(query: str, ctx: Context[Any]) -> list[tuple[str, str, dict[str, str]]]:
    book: Documents = ctx.memory["book"]
    found = [*await book.search(query, 50), *await book.search(query, 50, where={"document": "book/tides.md"})]
    return sorted((each.text, each.origin, dict(each.metadata)) for each in found)


@step
async def drop(name: str, ctx: Context[Any]) -> int:
    book: Documents = ctx.memory["book"]
    return await book.remove(name)


def bundle(store: PgVectorStore | None) -> Memory:
    class Mem(Memory):
        book: Documents = Documents(embedder=Letters(), scope=Scope.USER, vectors=store, least=-1, top=1)

    return Mem()


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name}.md"
        path.write_text(text)
        os.utime(path, (0, 0))


async def lived(store: PgVectorStore | None, folder: Path) -> list[Any]:
    """What a folder comes to while it changes, seen by two users."""
    seen: list[Any] = []
    model, backend = ScriptedModel("At noon."), InMemoryBackend()

    async with Harness(memory=bundle(store), checkpoints=backend, model=model, plugins=()) as harness:

        async def run(what: Any, given: str, user: str = "ann") -> None:
            seen.append((await harness.run(what, given, user_id=user)).value)

        write(folder, tides="# Tides\n\nHigh water is at noon.", ports="Brest has a lock.", bread="The baker bakes.")
        await run(take_in, str(folder))
        await run(take_in, str(folder), "bob")
        await run(look, "water")
        write(folder, tides="# Tides\n\nHigh water is at ten. " * 60)
        (folder / "ports.md").unlink()
        await run(take_in, str(folder))
        await run(look, "water")
        await run(look, "water", "bob")
        await run(drop, "book/bread.md")
        await run(look, "water")
        await harness.run(call_model(), "When is high water?", user_id="bob")
        seen.append(next(item.text for item in model.requests[0].items if isinstance(item, Message)))
        erased = await harness.erase("ann")
        seen.append(erased.removed.get("passages", 0))
        await run(look, "water")
        await run(take_in, str(folder))
        await run(look, "water", "bob")
    # Another process, which has the same database and the same backend.
    async with Harness(memory=bundle(store), checkpoints=backend, plugins=()) as harness:
        await run(take_in, str(folder))
    return seen


async def test_documents_are_kept_as_they_are_without_a_server(
    vector_server: PostgresServer, vector_schema: str, tmp_path: Path
) -> None:
    for name in ("server", "none"):
        (tmp_path / name / "book").mkdir(parents=True)
    async with PgVectorStore(vector_server.url(vector_schema)) as store:
        kept = await lived(store, tmp_path / "server" / "book")
    plain = await lived(None, tmp_path / "none" / "book")
    # Without a server the passages are values of the backend, and are counted as these.
    erased = plain.index(0)
    assert kept.pop(erased) > 1
    plain.pop(erased)
    assert kept == plain
    assert kept[0] == ["book/bread.md added 1", "book/ports.md added 1", "book/tides.md added 1"]
    assert kept[3][0] == "book/bread.md unchanged 1"
    assert kept[3][1].startswith("book/tides.md changed ")
    assert kept[3][2] == "book/ports.md removed 1"
    assert "[book/tides.md, Tides]\n# Tides\n\nHigh water is at noon." in kept[8]
    assert kept[9] == []
    assert kept[-1] == ["book/bread.md unchanged 1", kept[3][1].replace("changed", "unchanged")]
