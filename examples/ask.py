"""Answers a question about Python with a quotation from the reference that comes with every Python.

    noetic run examples/ask.py "What does the global statement do?"

The default model runs on this machine and is tiny: it cannot be trusted to write an answer or to judge one. So code
searches, the model calls a tool to read one of the topics that were found, and chooses one of its quotations. Code
checks that the quotation covers the question's words; if not, another round looks for what was missing. At last the
model writes a sentence of its own, and code leaves it out if it made something up. Any other model
(`--model openai:gpt-5-mini`) does the same, and makes up less.
"""

import math
import re
import sys
from collections.abc import Sequence
from functools import cache
from pydoc_data.topics import topics
from typing import Annotated, Any, Literal

import anyio
from attrs import Factory, define, evolve, frozen
from pydantic import Field, create_model

from noetic_py import Budget, Context, Harness, Memory, RunResult, call_model, loop, parallel, spawn, step, tool, until
from noetic_py.errors import ModelRetry

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
    summary: str = ""
    made_up: str = ""


# What a run has so far, and so what it has to show when it is stopped.
@define
class State:
    best: Answer = Answer()
    offered: set[str] = Factory(set[str])
    read: list[str] = Factory(list[str])


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
    return [each for score, each in ranked if score > least and each.text not in ctx.state.offered][:6]


search = parallel([by_title, by_words], merge=best_new, id="search")


# The model calls a tool. Its schema is made for the question: a model that is held to it can only name what was found.
@step
async def look_up(found: list[Passage], ctx: Context[Memory, State]) -> list[Passage]:
    topics = list(dict.fromkeys(each.topic for each in found))[:3]

    @tool(retries=2)
    async def read_topic(
        ctx: Context[Memory, State], topic: Annotated[str, Field(json_schema_extra={"enum": [*topics]})]
    ) -> list[str]:
        """Read a topic of the Python reference."""
        if topic not in topics:
            raise ModelRetry(f"There is {', '.join(topics)}.")
        ctx.state.read.append(topic)
        ctx.stop_loop(topic)
        return [each.text for each in found if each.topic == topic]

    ask = call_model(
        instructions="Find what answers the question.",
        tools=[read_topic],
        settings={"tool_choice": "required", "temperature": 0.0, "max_output_tokens": 100},
    )
    topic = await spawn(loop(ask, until=until.no_tool_calls()), state="share")(str(ctx.input), ctx)
    return [each for each in found if each.topic == topic][:3] or found[:3]  # a model may answer without a call


# The model gives a typed answer, of a type that is made for the question too.
@step
async def choose(found: list[Passage], ctx: Context[Memory, State]) -> Answer:
    ctx.state.offered.update(each.text for each in found)
    # The first words are enough to choose by, and writing is what takes a small model long.
    openings = {" ".join(each.text.split()[:8]): each for each in reversed(found)}
    allowed: Any = Literal
    ask = call_model(
        output=create_model("Choice", quotation=allowed[tuple(openings)]),
        instructions="Answer the question with one of the quotations.",
        settings={"temperature": 0.0, "max_output_tokens": 100},
    )
    listed = "\n".join(f"- {' '.join(each.text.split())}" for each in reversed(openings.values()))
    choice = await spawn(ask)(f"{listed}\n\nQuestion: {ctx.input}", ctx)
    chosen, question = openings[choice.model_dump()["quotation"]], str(ctx.input)
    known = chosen.title_words | chosen.words
    missing = " ".join(word for word in question.split() if not known.issuperset(words(word)))
    return Answer(chosen.text, chosen.topic, shared(question, known) / sum(map(weight, words(question))), missing)


@step
async def attempt(query: str, ctx: Context[Memory, State]) -> Answer:
    if found := await search(query, ctx):
        answer = await choose(await look_up(found, ctx), ctx)
        ctx.state.best = max(ctx.state.best, answer, key=lambda each: each.coverage)
    return ctx.state.best


def covers(answer: Answer) -> until.Verdict:
    """A fact about words; whether a quotation is right is for the reader to say."""
    return until.Verdict(answer.coverage >= 0.6, "the quotation covers the question", answer.missing)


# The model writes, which is streamed, and code finds the words that it made up.
@step
async def explain(answer: Answer, ctx: Context[Memory, State]) -> Answer:
    if not answer.text:
        return answer
    ask = call_model(
        instructions="Answer the question in one short sentence, from the quotation.",
        settings={"temperature": 0.0, "max_output_tokens": 60},
    )
    said = await spawn(ask)(f"{' '.join(answer.text.split())}\n\nQuestion: {ctx.input}", ctx)
    sentence = re.split(r"(?<=[.!?])\s", said.strip())[0]
    known = {*words(f"{answer.topic} {answer.text} {ctx.input}")}
    rare = [each for each in sentence.split() if max(map(weight, {*words(each)} - known), default=0) > 2.5]
    return evolve(answer, summary=sentence, made_up=" ".join(rare))


answered = loop(
    attempt,
    until=until.verified(covers) | until.max_rounds(3),
    prepare_next=lambda _, verdict, ctx: f"{ctx.input} {verdict.feedback or ''}",  # what is missing counts twice now
)
flow = answered >> explain


@step
async def best_so_far(_: object, ctx: Context[Memory, State]) -> Answer:
    return ctx.state.best


# What `noetic run` looks for in a file, besides flow: harness, state, budget, show.
state = State
budget = Budget(model_calls=10, tokens=20_000, seconds=120, wrap_up=best_so_far, reserve=Budget(steps=1))


def harness(model: str | None = None, checkpoints: Any = None) -> Harness[Memory]:
    return Harness(model=model or "local:smollm2", checkpoints=checkpoints)


def show(result: RunResult[Answer, State]) -> None:
    answer = result.value
    print(answer.text or "Nothing found.")
    if answer.topic:
        says = "covers the question" if covers(answer).stop else f"does not cover {answer.missing!r}"
        print(f"\nThis is from the topic {answer.topic!r}, and {says}.")
        print(f"The model called read_topic for {' and '.join(map(repr, result.state.read))}.")
    if answer.made_up:
        print(f"Its own sentence is left out, because the quotation does not have {answer.made_up!r}.")
    elif answer.summary:
        print(f"Its own sentence: {answer.summary}")


async def main(question: str) -> None:
    async with harness() as h, h.stream(flow, question, state=State(), budget=budget) as stream:
        async for piece in stream.text:  # what the model writes, while it writes
            print(piece, end="", flush=True, file=sys.stderr)
        show(await stream.result())


if __name__ == "__main__":
    anyio.run(main, " ".join(sys.argv[1:]))
