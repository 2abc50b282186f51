"""Answers a question about Python with a quotation from the reference that comes with every Python.

    noetic run examples/ask.py "What does the global statement do?"

The default model runs on this machine and is tiny: it cannot be trusted to write an answer or to judge one, but it
can choose. So code finds quotations, the model chooses one, and code checks that it covers the question's words; if
not, another round searches for what was missing. Any other model (`--model openai:gpt-5-mini`) gets the same search
as a tool and writes the answer itself.
"""

import math
import re
import sys
from collections.abc import Sequence
from functools import cache
from pydoc_data.topics import topics
from typing import Any, Literal

import anyio
from attrs import Factory, define, frozen
from pydantic import create_model

from noetic_py import Budget, Context, Harness, Memory, RunResult, call_model, loop, parallel, spawn, step, tool, until

# A passage ends where a sentence does, unless the next one leans on it or a colon announces a list or an example.
BORDER = re.compile(r"(?<!:)\n\n(?!\s*\* )|(?<=\.)\s+(?=[A-Z\"*“])(?!(?:It|This|These|They|Otherwise|Then)\b)")
QUOTABLE = re.compile(r"(?s)(?!See also|Changed|New in|For more)(?=.{40,500}$)[A-Z\"*“].*(\.|:\n\n.*)")
WORD = re.compile(r"\b(?!(?:an|are|be|can|do|does|how|it|my|of|on|the|to|what|when|where|which|who|why|you)\b)\w\w+")


@frozen(eq=False)
class Passage:
    topic: str
    place: int  # 0 for the first of its topic
    text: str  # as it stands there, line breaks and all
    title_words: frozenset[str]
    words: frozenset[str]


@cache
def passages() -> list[Passage]:
    found: dict[str, Passage] = {}
    # Some topics hold others whole; a text belongs to the shortest.
    for topic, text in sorted(topics.items(), key=lambda each: len(each[1])):
        title, _, body = text.strip().partition("\n")
        for place, piece in enumerate(filter(QUOTABLE.fullmatch, BORDER.split(body))):
            found.setdefault(piece, Passage(topic, place, piece, frozenset(words(title)), frozenset(words(piece))))
    return list(found.values())


def words(text: str) -> list[str]:
    return [re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word) for word in WORD.findall(text.lower())]


@cache
def weight(word: str) -> float:
    return math.log(len(passages()) / (1 + sum(word in each.words for each in passages())))


def shared(query: str, known: frozenset[str]) -> float:
    return sum(weight(word) for word in words(query) if word in known)


@frozen
class Answer:
    text: str = ""
    topic: str = ""
    coverage: float = 0.0
    missing: str = ""


# What a run has so far, and so what it has to show when it is stopped.
@define
class State:
    best: Answer = Answer()
    offered: set[str] = Factory(set[str])


@step
async def by_title(query: str) -> list[float]:
    # What a topic is about, it says first.
    return [shared(query, each.title_words) * (1 + 1 / (1 + each.place)) for each in passages()]


@step
async def by_words(query: str) -> list[float]:
    # Long passages hold more words of every kind.
    return [shared(query, each.words) / (1 + len(each.words) / 50) for each in passages()]


def best_new(scores: Sequence[list[float]], ctx: Context[Memory, State]) -> list[Passage]:
    ranked = sorted(zip(map(sum, zip(*scores, strict=True)), passages(), strict=True), key=lambda each: -each[0])
    least = max(2.0, ranked[0][0] / 2)  # worse ones would be a choice for the sake of choosing
    found = [each for score, each in ranked if score > least and each.text not in ctx.state.offered][:3]
    # The two ran on copies of the state; what is to last is written here, where they come together.
    ctx.state.offered.update(each.text for each in found)
    return found


search = parallel([by_title, by_words], merge=best_new, id="search")


# A small model chooses, and code checks.
@step
async def choose(found: list[Passage], ctx: Context[Memory, State]) -> Answer:
    if found:
        # The first words are enough to choose by, and writing is what takes a small model long.
        openings = {" ".join(each.text.split()[:8]): each for each in reversed(found)}
        # The output type is made for the question; a model that is held to it can say nothing else.
        allowed: Any = Literal
        ask = call_model(
            output=create_model("Choice", quotation=allowed[tuple(openings)]),
            instructions="Answer the question with one of the quotations.",
            settings={"temperature": 0.0, "max_output_tokens": 100},
        )
        listed = "\n".join(f"- {' '.join(each.text.split())}" for each in reversed(openings.values()))
        # In a conversation of its own: the quotations of earlier rounds would only be in the way.
        choice = await spawn(ask)(f"{listed}\n\nQuestion: {ctx.input}", ctx)
        chosen, question = openings[choice.model_dump()["quotation"]], str(ctx.input)
        known = chosen.title_words | chosen.words
        missing = " ".join(word for word in question.split() if not known.issuperset(words(word)))
        answer = Answer(chosen.text, chosen.topic, shared(question, known) / sum(map(weight, words(question))), missing)
        ctx.state.best = max(ctx.state.best, answer, key=lambda each: each.coverage)
    return ctx.state.best


@tool
async def search_reference(ctx: Context[Memory, State], query: str) -> list[str]:
    """Search the Python language reference for passages with the words of the query."""
    return [f"{each.topic}: {each.text}" for each in await search(query, ctx)]


explain = loop(
    call_model(instructions="Search, then answer briefly, and quote what you rely on.", tools=[search_reference]),
    until=until.no_tool_calls() | until.max_rounds(5),
)


@frozen
class Trust:
    capable: bool  # what steps have to know of the model, as a service of the harness


@step
async def attempt(query: str, ctx: Context[Memory, State]) -> Answer:
    if ctx.services[Trust].capable:
        return Answer(await explain(query, ctx))
    return await choose(await search(query, ctx), ctx)


def covers(answer: Answer) -> until.Verdict:
    """A fact about words; whether a quotation is right is for the reader to say."""
    if answer.text and not answer.topic:
        return until.Verdict(True, "the model has answered")
    return until.Verdict(answer.coverage >= 0.6, "the quotation covers the question", answer.missing)


flow = loop(
    attempt,
    until=until.verified(covers) | until.max_rounds(3),
    prepare_next=lambda _, verdict, ctx: f"{ctx.input} {verdict.feedback or ''}",  # what is missing counts twice now
)


@step
async def best_so_far(_: object, ctx: Context[Memory, State]) -> Answer:
    return ctx.state.best


# What `noetic run` looks for in a file, besides flow: harness, state, budget, show.
state = State
budget = Budget(model_calls=6, tokens=20_000, seconds=120, wrap_up=best_so_far, reserve=Budget(steps=1))


def harness(model: str | None = None, checkpoints: Any = None) -> Harness[Memory]:
    name = model or "local:smollm2"
    return Harness(model=name, services={Trust: Trust(not name.startswith("local:"))}, checkpoints=checkpoints)


def show(result: RunResult[Answer, State]) -> None:
    answer = result.value
    print(answer.text or "Nothing found.")
    if answer.topic:
        says = "covers the question" if covers(answer).stop else f"does not cover {answer.missing!r}"
        print(f"\nThis is from the topic {answer.topic!r}, and {says}.")
    cost = "unknown" if result.cost is None else f"${result.cost}"
    print(f"calls: {result.model_calls}, tokens: {result.usage.total}, cost: {cost}, seconds: {result.seconds:.1f}")
    print(f"stopped because: {result.reason}")


async def main(question: str) -> None:
    async with harness() as h, h.stream(flow, question, state=State(), budget=budget) as stream:
        async for piece in stream.text:  # what the model writes, while it writes
            print(piece, end="", flush=True, file=sys.stderr)
        show(await stream.result())


if __name__ == "__main__":
    anyio.run(main, " ".join(sys.argv[1:]))
