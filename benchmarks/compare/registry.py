"""What is compared: the works with what is shown of each, and the libraries with what they need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from benchmarks.measure import MICRO, MILLI, ROOT

FILES = Path(__file__).resolve().parent / "peers"
KILO = 1e-3


@frozen
class Shown:
    """One figure of a work, as a line of the table.

    Attributes:
        figure: Its name in what the measured process prints.
        text: What was measured; `{size}` stands for the amount of work, `{part}` for a tenth of it.
        unit: The unit to show.
        factor: From seconds, bytes or a ratio to the unit.
    """

    figure: str
    text: str
    unit: str
    factor: float = 1.0


@frozen
class Work:
    """A work: how much of it is done, and what is shown."""

    size: int
    shown: tuple[Shown, ...]


WORKS: Mapping[str, Work] = {
    "W1": Work(
        10_000,
        (
            Shown("long", "a trivial step, in a run of {size}", "µs", MICRO),
            Shown("short", "a trivial step, in a run of {part}", "µs", MICRO),
        ),
    ),
    "W2": Work(1_000, (Shown("branch", "a branch of {size} parallel ones, joined", "µs", MICRO),)),
    "W3": Work(
        1_000,
        (
            Shown("long seconds", "a step kept in SQLite, in a run of {size}", "µs, wall", MICRO),
            Shown("short seconds", "a step kept in SQLite, in a run of {part}", "µs, wall", MICRO),
            Shown("long bytes", "what a step leaves in the file, in a run of {size}", "bytes"),
            Shown("short bytes", "what a step leaves in the file, in a run of {part}", "bytes"),
        ),
    ),
    "W4": Work(
        200,
        (
            Shown("turn", "a tool turn of an agent, of {size}", "ms", MILLI),
            Shown("growth", "a late turn (190) against an early one (10)", "times"),
        ),
    ),
    "W5": Work(1, (Shown("import", "importing what a first program needs", "ms", MILLI),)),
    "W6": Work(1_000, (Shown("session", "an idle conversation of 20 items", "KB", KILO),)),
    "W7": Work(
        1_000,
        (
            Shown("wall", "{size} runs at once of 20 steps of sleep(1 ms)", "s, wall"),
            Shown("cpu", "{size} runs at once of 20 steps of sleep(1 ms)", "s, CPU"),
        ),
    ),
    "W8": Work(200, (Shown("turn", "a turn of a chat kept in SQLite, of {size}", "ms, wall", MILLI),)),
}


@frozen
class Library:
    """A library that is measured.

    Attributes:
        name: What it is called on the command line and in the table.
        packages: What is installed; the versions of these are shown.
        hello: The imports of a first program.
        files: By work: its file in `folder`, without the suffix.
        sizes: Where a work of full size would take minutes: how much of it is done, by both sides.
        absent: By work: why it cannot be done.
        notes: By work: what a reader should know.
        folder: Where the files are.
    """

    name: str
    packages: tuple[str, ...]
    hello: str
    files: Mapping[str, str]
    sizes: Mapping[str, int] = field(factory=dict[str, int])
    absent: Mapping[str, str] = field(factory=dict[str, str])
    notes: Mapping[str, str] = field(factory=dict[str, str])
    folder: Path = FILES

    def size(self, work: str, scale: float) -> int:
        """How much of a work is done."""
        return max(1 if work == "W5" else 2, int(self.sizes.get(work, WORKS[work].size) * scale))

    def subject(self, work: str) -> str:
        """What the measured process is given: a file, or for W5 the imports themselves."""
        return self.hello if work == "W5" else str(self.folder / f"{self.files[work]}.py")


def everywhere(file: str) -> dict[str, str]:
    """One file for all works."""
    return dict.fromkeys(WORKS, file)


OURS = Library(
    "noetic-py",
    (str(ROOT),),
    "from noetic_py import Harness, call_model, loop, step",
    everywhere("noetic"),
    notes={"W6": "a context with 20 messages, which stands for a session"},
)
PEERS: Mapping[str, Library] = {
    library.name: library
    for library in (
        Library(
            "langgraph",
            ("langgraph", "langgraph-checkpoint-sqlite"),
            "from langgraph.graph import END, START, MessagesState, StateGraph",
            everywhere("langgraph"),
            notes={
                "W1": "run with `invoke`, which for one node at a time takes about half as long as `ainvoke`",
                "W3": '`SqliteSaver` and `durability="sync"`, run with `invoke`; both use a write-ahead log, which '
                "syncs once a commit",
                "W6": "a thread in the checkpointer that lives in memory, written once, as encoded bytes",
                "W8": '`SqliteSaver` and `durability="sync"`, run with `invoke`',
            },
        ),
        Library(
            "pydantic-graph",
            ("pydantic-graph", "pydantic-ai-slim"),
            "from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext",
            {**everywhere("pydantic_graph"), "W4": "pydantic_ai", "W6": "pydantic_ai"},
            absent={"W3": "keeps no run", "W8": "keeps no conversation"},
            notes={
                "W5": "the graph alone; `from pydantic_ai import Agent` takes several times as long",
                "W4": "an agent of Pydantic AI, with a model class of our own because `FunctionModel` counts the "
                "words of the whole history for each request",
                "W6": "a list of messages, which is what a run of Pydantic AI continues from; there is no session",
            },
        ),
        Library(
            "llama-index-workflows",
            ("llama-index-workflows", "llama-index-core"),
            "from workflows import Context, Workflow, step; from workflows.events import Event, StartEvent, StopEvent",
            {**everywhere("llama_index_workflows"), "W4": "llama_index_core", "W6": "llama_index_core"},
            absent={
                "W3": "keeps a run when the program asks for its context as JSON, not each step",
                "W8": "keeps a conversation when the program asks for its context as JSON",
            },
            notes={
                "W2": "four branches at a time, the default, which takes less than a worker for each",
                "W4": "the `FunctionAgent` of llama-index-core",
                "W6": "a `ChatMemoryBuffer` of llama-index-core",
            },
        ),
        Library(
            "openai-agents",
            ("openai-agents",),
            "from agents import Agent, Runner, function_tool",
            everywhere("openai_agents"),
            sizes={"W1": 200, "W7": 100},
            absent={"W3": "keeps the conversation, no steps"},
            notes={
                "W1": "200 turns that call a trivial tool, because the only loop is that of the model; they grow "
                "with the history, so 10,000 would take hours",
                "W2": "1,000 runs that answer at once, each with an agent of its own; runs that share one take longer",
                "W6": "a list of input items, which is what a run continues from; its session keeps them in SQLite",
                "W7": "100 runs of 20 turns that call a tool, the model sleeping; 1,000 would take minutes",
                "W8": "`SQLiteSession` with a file",
            },
        ),
        Library(
            "google-adk",
            ("google-adk",),
            "from google.adk.agents import Agent; from google.adk.runners import InMemoryRunner",
            everywhere("google_adk"),
            absent={"W3": "keeps the session's events, and begins a run again that was cut off"},
            notes={
                "W1": "a `LoopAgent` with an agent that yields one event, which the in-memory session service compares "
                "with all events before it; `Workflow`, which is to replace it, takes several times as long",
                "W2": "a `ParallelAgent`; `Workflow` takes several times as long",
                "W6": "a session in the in-memory service, with an event for each item",
                "W8": "`SqliteSessionService`",
            },
        ),
    )
}
