"""An agent that answers from a folder of documents, and quotes the passages in which its answers stand.

`Documents` of noetic-documents cuts the files into passages, keeps them in the harness's backend, and recalls those
that are near to the question. A folder that has changed is taken in again; only what has changed is read anew. The code
looks up each source that the model names, so an invented one is noticed.

It needs: pip install "noetic-py[embeddings]" noetic-documents
"""

import tempfile
from pathlib import Path

import anyio
from noetic_documents import Documents
from pydantic import BaseModel

from noetic_py import Context, Harness, InMemoryBackend, Memory, Message, call_model, step
from noetic_py.memory import Scope
from noetic_py.testing import ScriptedModel

FILES = {
    "ferries.md": "# Ferries\n\nIn summer the ferry to the island leaves at nine.\n",
    "shops.html": "<h1>Shops</h1><p>The baker at the quay opens at seven.</p>",
    "prices.csv": "berth,euros\nsmall boat,20\nlarge boat,45\n",
}


class Mem(Memory):
    # One state for all users: anyone may ask what is in the handbook.
    handbook: Documents = Documents(scope=Scope.GLOBAL, top=2)


class Answer(BaseModel):
    text: str
    sources: list[str]


@step
async def load(folder: str, ctx: Context[Mem]) -> str:
    return str(await ctx.memory.handbook.add(folder, prune=True))


@step
async def quote(answer: Answer, ctx: Context[Mem]) -> str:
    """The answer, and the passages that it names."""
    lines = [answer.text]
    for source in answer.sources:
        document = source.partition(",")[0]
        found = await ctx.memory.handbook.search(answer.text, 50, where={"document": document})
        # A passage begins with its source in brackets.
        passages = [each.text for each in found if each.origin == source]
        lines += passages or [f"[{source}]\nthere is no such passage"]
    return "\n".join(lines)


INSTRUCTIONS = "Answer from the documents only. Name your sources: what stands in brackets above a passage."
flow = call_model(output=Answer, instructions=INSTRUCTIONS) >> quote


async def main(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    model = ScriptedModel(
        '{"text": "The ferry leaves at nine in summer.", "sources": ["handbook/ferries.md, Ferries", "buses.md"]}',
        '{"text": "The ferry leaves at ten in winter.", "sources": ["handbook/ferries.md, Ferries"]}',
    )
    async with Harness(memory=Mem(), model=model, checkpoints=InMemoryBackend()) as harness:
        for season in ("summer", "winter"):
            if season == "winter":
                (folder / "ferries.md").write_text("# Ferries\n\nIn winter the ferry leaves at ten.\n")
                (folder / "shops.html").unlink()
            print(f"{season}: {(await harness.run(load, str(folder))).value}")
            print((await harness.run(flow, "When does the ferry to the island leave?")).value)
    print("the model was shown:")
    print(next(item.text for item in model.requests[0].items if isinstance(item, Message)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as parent:
        handbook = Path(parent) / "handbook"
        handbook.mkdir()
        anyio.run(main, handbook)
