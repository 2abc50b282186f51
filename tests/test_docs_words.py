"""The documentation is found by the words of the field, and is written in short sentences."""

from __future__ import annotations

import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.properties.checks import FULL
from tests.warm import forked

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

# For maintainers, or generated.
NOT_FOR_USERS = {"changelog.md", "coverage.md", "design.md", "how-to-add.md", "performance.md", "reliability.md"}
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if path.name not in NOT_FOR_USERS and path.parent.name != "api"
)

# What a reader types into the search box, and the page that has it in its title or in the words below the title.
# `.ci/site_search.py` looks for them in the built site.
SEARCHED = {
    "activities": "concepts/steps.md",
    "agent loop": "guides/tools.md",
    "agents": "guides/tools.md",
    "anthropic": "guides/models.md",
    "api server": "guides/fastapi.md",
    "approval": "guides/tool-approval.md",
    "artifacts": "guides/hooks.md",
    "authorization": "guides/access.md",
    "background runs": "guides/long-jobs.md",
    "background tasks": "concepts/channels.md",
    "batch": "guides/long-jobs.md",
    "bedrock": "guides/models.md",
    "breakpoints": "guides/human-in-the-loop.md",
    "callbacks": "guides/hooks.md",
    "cancellation": "concepts/stopping.md",
    "capacity": "guides/capacity.md",
    "chat app": "guides/fastapi.md",
    "chat history": "guides/sessions.md",
    "checkpointer": "guides/backends.md",
    "checkpointing": "concepts/durability.md",
    "child workflows": "concepts/steps.md",
    "command line": "guides/cli.md",
    "compaction": "guides/retrieval.md",
    "conditional edges": "concepts/steps.md",
    "context compression": "guides/retrieval.md",
    "context window": "guides/retrieval.md",
    "conversations": "guides/sessions.md",
    "cookbook": "recipes/index.md",
    "cost": "concepts/budgets.md",
    "cron": "concepts/channels.md",
    "debugging": "guides/logging.md",
    "deferred tools": "guides/human-in-the-loop.md",
    "delegation": "guides/multi-agent.md",
    "dependencies": "concepts/context.md",
    "dependency injection": "concepts/context.md",
    "deployment": "guides/deployment.md",
    "determinism": "concepts/durability.md",
    "double texting": "guides/sessions.md",
    "durable execution": "concepts/durability.md",
    "embeddings": "guides/retrieval.md",
    "evals": "guides/evaluation.md",
    "evaluation": "guides/evaluation.md",
    "evaluator-optimizer": "recipes/agents.md",
    "exceptions": "concepts/errors.md",
    "failure handling": "concepts/errors.md",
    "fallback": "guides/models.md",
    "fan-out": "guides/map-reduce.md",
    "fastapi": "guides/fastapi.md",
    "few-shot": "guides/prompts.md",
    "function calling": "guides/tools.md",
    "function tools": "guides/tools.md",
    "gemini": "guides/models.md",
    "google adk": "migrate/google-adk.md",
    "graceful shutdown": "guides/deployment.md",
    "graph visualization": "guides/cli.md",
    "graphs": "concepts/steps.md",
    "groq": "guides/models.md",
    "guardrails": "guides/hooks.md",
    "handoffs": "guides/multi-agent.md",
    "heartbeat": "concepts/durability.md",
    "human in the loop": "guides/human-in-the-loop.md",
    "human input": "guides/human-in-the-loop.md",
    "idempotency": "recipes/jobs.md",
    "installation": "start/install.md",
    "instrumentation": "guides/logging.md",
    "interceptors": "guides/hooks.md",
    "interrupt": "guides/human-in-the-loop.md",
    "job queue": "guides/workers.md",
    "json mode": "guides/structured-output.md",
    "kubernetes": "guides/deployment.md",
    "jupyter": "guides/notebooks.md",
    "langgraph": "migrate/langgraph.md",
    "last-event-id": "guides/fastapi.md",
    "lifecycle hooks": "guides/hooks.md",
    "local model": "guides/models.md",
    "logging": "guides/logging.md",
    "long-running": "guides/long-jobs.md",
    "long-term memory": "concepts/memory.md",
    "map-reduce": "guides/map-reduce.md",
    "mcp client": "guides/mcp.md",
    "memory": "concepts/memory.md",
    "message history": "concepts/log.md",
    "message passing": "concepts/channels.md",
    "metrics": "guides/logging.md",
    "middleware": "guides/hooks.md",
    "mistral": "guides/models.md",
    "mocks": "guides/testing.md",
    "model context protocol": "guides/mcp.md",
    "model fallback": "guides/models.md",
    "model settings": "guides/models.md",
    "multi-agent": "guides/multi-agent.md",
    "multimodal input": "guides/prompts.md",
    "multimodal": "guides/prompts.md",
    "nodes": "concepts/steps.md",
    "notebooks": "guides/notebooks.md",
    "observability": "guides/logging.md",
    "ollama": "guides/models.md",
    "openai agents": "migrate/openai-agents.md",
    "openai": "guides/models.md",
    "openrouter": "guides/models.md",
    "opentelemetry": "guides/logging.md",
    "orchestration": "guides/multi-agent.md",
    "orchestrator": "guides/multi-agent.md",
    "output validation": "guides/structured-output.md",
    "parallel agents": "guides/map-reduce.md",
    "parallel execution": "guides/map-reduce.md",
    "parallelization": "guides/map-reduce.md",
    "persistence": "concepts/durability.md",
    "planning": "concepts/memory-layers.md",
    "plugins": "guides/plugins.md",
    "prompt caching": "concepts/memory.md",
    "prompt template": "guides/prompts.md",
    "pub/sub": "concepts/channels.md",
    "pydantic ai": "migrate/pydantic-ai.md",
    "pytest": "guides/testing.md",
    "quickstart": "start/first-agent.md",
    "rag": "guides/retrieval.md",
    "rate limit": "guides/models.md",
    "reconnect": "guides/streaming.md",
    "recursion limit": "concepts/steps.md",
    "reducers": "concepts/steps.md",
    "replay": "concepts/durability.md",
    "requests per minute": "concepts/budgets.md",
    "retries": "concepts/errors.md",
    "retry policy": "concepts/errors.md",
    "roles": "guides/access.md",
    "routing": "guides/multi-agent.md",
    "run results": "concepts/stopping.md",
    "safety": "concepts/security.md",
    "schedules": "concepts/channels.md",
    "secrets": "concepts/security.md",
    "semantic search": "guides/retrieval.md",
    "server-sent events": "guides/fastapi.md",
    "sessions": "guides/sessions.md",
    "short-term memory": "concepts/memory.md",
    "side effects": "concepts/durability.md",
    "signals": "concepts/channels.md",
    "spend limits": "concepts/budgets.md",
    "state": "concepts/context.md",
    "streaming": "guides/streaming.md",
    "structured output": "guides/structured-output.md",
    "sub-agents": "guides/multi-agent.md",
    "subagents": "guides/multi-agent.md",
    "subgraphs": "concepts/steps.md",
    "summarization": "guides/retrieval.md",
    "supervisor": "guides/multi-agent.md",
    "swarm": "guides/multi-agent.md",
    "system prompt": "guides/prompts.md",
    "temporal": "guides/temporal.md",
    "testing": "guides/testing.md",
    "thinking": "guides/models.md",
    "threads": "guides/sessions.md",
    "time travel": "concepts/durability.md",
    "timeouts": "concepts/stopping.md",
    "timers": "concepts/channels.md",
    "todo list": "concepts/memory-layers.md",
    "token limits": "concepts/budgets.md",
    "tokens per minute": "concepts/budgets.md",
    "tool confirmation": "guides/tool-approval.md",
    "tool errors": "guides/tools.md",
    "tool use": "guides/tools.md",
    "toolsets": "concepts/memory-layers.md",
    "tracing": "guides/logging.md",
    "task queue": "guides/workers.md",
    "tutorial": "start/first-agent.md",
    "unit tests": "guides/testing.md",
    "usage limits": "concepts/budgets.md",
    "vector store": "guides/retrieval.md",
    "versioning": "guides/long-jobs.md",
    "webhooks": "guides/sessions.md",
    "workers": "guides/workers.md",
    "workflows": "concepts/steps.md",
}

FENCE = re.compile(r"^ *(`{3,})[^\n]*\n.*?^ *\1 *$", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def head_of(page: str) -> str:
    """The title of a page, and the words that other libraries use for its subject."""
    title, _, rest = text_of(page).partition("\n")
    also = re.match(r"\n\*Also called: (.*?)\.\*$", rest, re.DOTALL | re.MULTILINE)
    return " ".join(f"{title} {also[1] if also else ''}".lower().split())


def prose(text: str) -> str:
    """A page without code, comments, headings, tables and links."""
    text = re.sub(r"<!--.*?-->", "\n", FENCE.sub("\n", text), flags=re.DOTALL)
    lines: list[str] = []
    for line in text.splitlines():
        lines.append("" if line.lstrip().startswith(("|", "#", "!!!", ":::")) else line)
        if ITEM.match(line):
            lines[-1:] = ["", ITEM.sub("", line, count=1)]
    joined = "\n".join(lines)
    joined = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", joined)
    return re.sub(r"`[^`]*`", "code", joined)


def sentences(text: str) -> Iterator[int]:
    """The number of words of each sentence."""
    for block in re.split(r"\n\s*\n", prose(text)):
        for sentence in re.split(r"(?<=[.!?])[)*_\"]*\s+", " ".join(block.split())):
            words = len(re.findall(r"[A-Za-z0-9][\w'-]*", sentence))
            if words:
                yield words


def test_sentences_are_counted() -> None:
    text = "# Title\n\nOne two three. `Four()` five\nsix.\n\n| a | b |\n\n- A [list](of.md)\n- of two.\n\n```\nno\n```"
    assert list(sentences(text)) == [3, 3, 2, 2]


@pytest.mark.parametrize("word", sorted(SEARCHED))
def test_a_searched_word_stands_at_the_head_of_its_page(word: str) -> None:
    assert re.search(rf"\b{re.escape(word)}", head_of(SEARCHED[word]))


@pytest.mark.parametrize("page", PAGES)
def test_the_sentences_of_a_page_are_short(page: str) -> None:
    lengths = list(sentences(text_of(page)))
    assert statistics.median(lengths) < 20
    assert max(lengths) <= 45


@pytest.mark.parametrize("page", [*PAGES, "../README.md", "../examples/README.md"])
def test_a_page_names_what_acts(page: str) -> None:
    found = re.findall(r"\b(?:nobody|somebody|whoever|everybody)\b", text_of(page), re.IGNORECASE)
    assert found == []


def test_a_page_that_has_moved_is_found_at_its_old_address() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    moved = re.findall(r"^ {8}(\S+\.md): (\S+\.md)$", site, re.MULTILINE)
    assert len(moved) >= 5
    for old, new in moved:
        assert not (DOCS / old).exists()
        assert (DOCS / new).exists()


def test_the_list_of_recipes_has_each_of_them() -> None:
    folder = DOCS / "recipes"
    listed = re.findall(r"^- \[(.+)\]\((\w+\.md)#", (folder / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {page.name: page.read_text(encoding="utf-8") for page in folder.glob("*.md") if page.name != "index.md"}
    found = [(title, name) for name, text in pages.items() for title in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert sorted(listed) == sorted(found)
    assert len(listed) >= 20


# ------------------------------------------------------------------------------------------------ what a reader pastes


# `.ci/get_started.py` pastes all of them into an empty environment.
STARTING = ("start/install.md", "start/first-agent.md", "start/first-durable-run.md")


@pytest.mark.parametrize("page", STARTING if FULL else STARTING[:1])
def test_the_commands_of_get_started_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    text = text_of(page)
    for name, code in re.findall(r'^```python title="(\S+)"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(code, encoding="utf-8")
    noetic = shlex.join(forked("tests.warm_noetic"))
    functions = f'noetic() {{ {noetic} "$@"; }}; python() {{ "{sys.executable}" "$@"; }}; '
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks != []
    for part in (part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]):
        command, _, printed = part.partition("\n")
        done = subprocess.run(
            ["sh", "-c", functions + command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert re.fullmatch(re.escape(printed).replace("…", ".*"), done.stdout), (command, done.stdout, done.stderr)
