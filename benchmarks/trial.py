"""What a trial of stored conversations takes, and how much of the evidence of made-up questions is found.

    python -m benchmarks.trial            # 1,000 turns
    python -m benchmarks.trial 100
    python -m benchmarks.trial 100 noetic_embeddings:EnglishEmbedder

First a session of so many turns is stored and replayed without layers and with five. CPU time is measured, as a machine
may be busy, and nothing asks a model. Then messages of made-up dialogues are remembered by `SemanticRecall` as it is,
and each question is searched: r@5 is the share of its evidence in the first five passages. Without the name of
another embedder that needs the extra `embeddings`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import process_time
from typing import get_args

import anyio

from benchmarks.recall_questions import Cached, named_embedder
from benchmarks.views import Five
from noetic_py import Harness, InMemoryBackend, Memory, call_model
from noetic_py.memory import SemanticRecall
from noetic_py.testing import Language, ScriptedModel, VirtualRuntime, random_dialogue
from noetic_py.trial import memory_trial

SEEDS = 3
QUESTIONS = 100


async def measure(turns: int) -> list[str]:
    """What trials of a session take."""
    sessions = max(2, turns // 100)
    dialogue = random_dialogue(0, sessions=sessions, turns=(turns - 100) // sessions + 1, questions=100)
    said = [turn for part in dialogue.sessions for turn in part.turns][-turns:]
    runtime, backend = VirtualRuntime(), InMemoryBackend()
    model = ScriptedModel(*[turn.reply for turn in said])
    flow = call_model(model, instructions="You take notes.")
    async with Harness(memory=Five(), checkpoints=backend, runtime=runtime, plugins=()) as harness:
        run_ids: list[str] = []
        for turn in said:
            await runtime.advance(60)
            run_ids.append((await harness.session("ada", "talk").run(flow, turn.said)).run_id)
        asked, lines = len(model.requests), list[str]()
        for memory in (Memory(), Five()):
            began = process_time()
            trial = await memory_trial(harness.runs, run_ids, memory, flow=flow, evidence=dialogue.evidence)
            name, seconds, calls = type(memory).__name__, process_time() - began, len(model.requests) - asked
            lines.append(f"{name:<8} {len(trial.requests)} requests, {calls} model calls, {seconds:.1f} s of CPU")
    return lines


async def recall(language: Language, embedder: Cached) -> str:
    """How much of the evidence the recall finds."""
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        dialogue = random_dialogue(seed, language=language, sessions=10, turns=40, questions=QUESTIONS)
        layer = SemanticRecall(embedder=embedder)
        for part in dialogue.sessions[:-1]:
            for turn in part.turns:
                await layer.remember(turn.said)
        for question in dialogue.questions:
            if question.needed:
                texts = [each.text for each in await layer.search(question.text, limit=5)]
                hits = [any(needed in text for text in texts) for needed in question.needed]
                found.setdefault(question.ability, []).append(sum(hits) / len(hits))
    every = [each for shares in found.values() for each in shares]
    shares = ", ".join(f"{name} {sum(each) / len(each):.2f}" for name, each in sorted(found.items()))
    return f"{language}       r@5 {sum(every) / len(every):.2f} of {len(every)} questions: {shares}"


async def main(arguments: Sequence[str]) -> None:
    """Print a line for each bundle and each language."""
    turns, *named = arguments or ["1000"]
    for line in await measure(int(turns)):
        sys.stdout.write(f"{line}\n")
    embedder = Cached(named_embedder(named))
    for language in get_args(Language):
        sys.stdout.write(f"{await recall(language, embedder)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:])
