"""Answers a question about Python with a quotation from the reference that comes with every Python.

    noetic run examples/ask.py "What does the global statement do?"
    python examples/ask.py "What does the global statement do?"

The model that is asked when no other is named runs on this machine and is tiny: it cannot be trusted to write an answer
or to judge one, but it can choose. So code finds quotations, the model chooses one, and code checks that it covers the
question's words; if not, another round looks for what was missing. With `noetic run --model openai:gpt-5-mini`, or any
other model, the model gets the same search as a tool and writes the answer itself.
"""

import math
import re
import sys
from collections.abc import Sequence
from functools import cache
from pydoc_data.topics import topics
from textwrap import indent
from typing import Any, Literal

import anyio
from attrs import Factory, define, frozen
from pydantic import BaseModel, create_model

from noetic_py import Budget, Context, Harness, Memory, RunResult, call_model, loop, parallel, spawn, step, tool, until
from noetic_py.until import Verdict

# A passage ends where a sentence does, unless the next one leans on it or a colon announces a list or an example.
BORDER = re.compile(r"(?<!:)\n\n(?!\s*\* )|(?<=\.)\s+(?=[A-Z\"*“])(?!(?:It|This|These|They|Otherwise|Then)\b)")
QUOTABLE = re.compile(r"(?s)(?!See also|Changed|New in|For more)(?=.{30,500}$)[A-Z\"*“].*(\.|:\n\n.*)")
ASKING = re.compile(r"are|be|can|do|does|how|it|its|my|python|so|use|used|what|when|where|which|who|why|you|your")


# ---- The reference, in passages that can be quoted


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
    """The words that say what a text is about, without their endings."""
    found = (word for word in re.findall(r"\w\w+", text.lower()) if not ASKING.fullmatch(word))
    return [re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word) for word in found]


@cache
def weight(word: str) -> float:
    """Rare words say more."""
    return math.log(len(passages()) / (1 + sum(word in each.words for each in passages())))


def shared(query: str, known: frozenset[str]) -> float:
    return sum(weight(word) for word in words(query) if word in known)


@frozen
class Answer:
    text: str = ""
    topic: str = ""
    coverage: float = 0.0
    missing: str = ""


@define
class State:
    """What a run has so far, and so what it has to show when it is stopped."""

    best: Answer = Answer()
    offered: set[str] = Factory(set[str])
    calls: int = 0


# ---- Code searches, in two ways at once


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
    found = [each for score, each in ranked if score > 1 and each.text not in ctx.state.offered][:3]
    # The two ran on copies of the state; what is to last is written here, where they come together.
    ctx.state.offered.update(each.text for each in found)
    return found


search = parallel([by_title, by_words], merge=best_new, id="search")


# ---- A small model chooses, code checks


class Choice(BaseModel):
    quotation: str


@step
async def choose(found: list[Passage], ctx: Context[Memory, State]) -> Answer:
    if found:
        # The first words are enough to choose by, and writing is what takes a small model long.
        openings = {" ".join(each.text.split()[:8]): each for each in reversed(found)}
        # The output type is made for the question; a model that is held to it can say nothing else.
        allowed: Any = Literal
        ask = call_model(
            output=create_model("Choice", __base__=Choice, quotation=allowed[tuple(openings)]),
            instructions="Answer the question with one of the quotations.",
            settings={"temperature": 0.0, "max_output_tokens": 100},
        )
        listed = "\n".join(f"- {' '.join(each.text.split())}" for each in found)
        # In a conversation of its own: the quotations of earlier rounds would only be in the way.
        choice = await spawn(ask)(f"{listed}\n\nQuestion: {ctx.input}", ctx)
        answer = judged(openings[choice.quotation], str(ctx.input))
        ctx.state.best = max(ctx.state.best, answer, key=lambda each: each.coverage)
        ctx.state.calls += 1
    return ctx.state.best


def judged(passage: Passage, question: str) -> Answer:
    known = passage.title_words | passage.words
    missing = " ".join(word for word in question.split() if not known.issuperset(words(word)))
    return Answer(passage.text, passage.topic, shared(question, known) / sum(map(weight, words(question))), missing)


def covers(answer: Answer) -> Verdict:
    """A fact about words; whether the quotation is right is for the reader to say."""
    if answer.coverage >= 0.6:
        return Verdict(True, "the quotation covers the question")
    return Verdict(False, feedback=answer.missing)


quote = loop(
    search >> choose,
    until=until.verified(covers) | until.max_rounds(3),
    # What is missing stands in the query twice now, and counts twice.
    prepare_next=lambda _, verdict, ctx: f"{ctx.input} {verdict.feedback or ''}",
)


# ---- A capable model reads and explains


@tool
async def search_reference(ctx: Context[Memory, State], query: str) -> list[str]:
    """Search the Python language reference for passages with the words of the query."""
    return [f"{each.topic}: {each.text}" for each in await search(query, ctx)]


read = call_model(
    instructions="Search the reference, then answer in a few sentences and quote what you rely on.",
    tools=(search_reference,),
    settings={"max_output_tokens": 1000},
)
explain = loop(read, until=until.no_tool_calls() | until.max_rounds(5))


# ---- The program; `noetic run` looks for flow, harness, state, budget and show


@frozen
class Trust:
    capable: bool


@step
async def flow(question: str, ctx: Context[Memory, State]) -> Answer:
    if not ctx.services[Trust].capable:
        return await quote(question, ctx)
    text = await explain(question, ctx)
    ctx.state.calls = ctx.turns
    return Answer(text)


@step
async def best_so_far(_: object, ctx: Context[Memory, State]) -> Answer:
    return ctx.state.best


state = State
budget = Budget(model_calls=6, tokens=20_000, seconds=120, wrap_up=best_so_far, reserve=Budget(steps=1))


def harness(model: str | None = None) -> Harness[Memory]:
    name = model or "local:smollm2"
    return Harness(model=name, services={Trust: Trust(capable=not name.startswith("local:"))})


def show(result: RunResult[Answer, State]) -> None:
    answer = result.value
    print(indent(answer.text, "    ") if answer.topic else answer.text or "The reference has nothing on this.")
    if answer.topic:
        print(f"\nfrom the topic {answer.topic!r}; covers {answer.coverage:.0%} of the question")
    cost = "cost unknown" if result.cost is None else f"${result.cost}"
    print(f"{result.state.calls} calls, {result.usage.total} tokens, {cost}, {result.seconds:.1f} s: {result.reason}")


async def main(question: str) -> None:
    async with harness() as h, h.stream(flow, question, state=State(), budget=budget) as stream:
        async for piece in stream.text:  # what the model writes, while it writes
            print(piece, end="", flush=True, file=sys.stderr)
        show(await stream.result())


if __name__ == "__main__":
    anyio.run(main, " ".join(sys.argv[1:]))
