"""Answers a question about Python with a quotation from the reference that comes with every Python.

    noetic run examples/ask.py "What does the global statement do?"
    python examples/ask.py "What does the global statement do?"

The model that is asked when no other is named runs on this machine and is tiny. It cannot be trusted to write an answer,
or to judge one, but it can choose. So the work is divided: code finds quotations, the model chooses one, and code checks
that it covers the question's words; if not, another round looks for what was missing. With `--model openai:gpt-5-mini`,
or any other model, the model gets the same search as a tool and writes the answer itself.
"""

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pydoc_data.topics import topics
from textwrap import indent
from typing import Any, Literal

import anyio
from attrs import define, field, frozen
from pydantic import BaseModel, create_model

from noetic_py import Budget, Context, Emitted, Harness, Memory, ReadContext, RunResult, TextDelta
from noetic_py import branch, call_model, loop, parallel, spawn, step, tool, until
from noetic_py.until import Verdict

OFFERED = 3  # quotations to choose from in one round
ENOUGH = 0.6  # the share of the question's words, by weight, that a quotation has to cover
COMMON = frozenset(
    "a an and are as at be but by can could do does for from had has have how i if in into is it its me my of on one or"
    " python should so that the their them then there these they this to use used was were what when where which while"
    " who why will with would you your".split()
)
QUOTABLE = re.compile(r"(?!See also|Changed in|New in|Previously|For more)[A-Z\"*“]")


# ------------------------------------------------------------------------------------ the reference, in quotable pieces


@frozen(cache_hash=True)
class Passage:
    topic: str
    title: str
    text: str  # as it stands in the topic, line breaks and all
    place: int  # 0 for the first one of its topic


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w\w+", text.lower()) if word not in COMMON]


def stem(word: str) -> str:
    return re.sub(r"(ing|ed|es|s|e)$", "", word) if len(word) > 4 else word


@cache
def stems(text: str) -> frozenset[str]:
    return frozenset(map(stem, words(text)))


@cache
def passages() -> list[Passage]:
    """The sentences of all topics, each in the shortest topic that has it, since some topics hold others whole."""
    found: dict[str, Passage] = {}
    for topic, text in sorted(topics.items(), key=lambda each: len(each[1])):
        title, _, body = text.strip().partition("\n")
        place = 0
        # A list or an example stays with the colon that announces it, a sentence with the one that it leans on.
        for block in re.split(r"(?<!:)\n\n(?!\s*\* )", body):
            for piece in re.split(r"(?<=\.)\s+(?=[A-Z\"*“])(?!(?:It|This|These|They|Otherwise|Then)\b)", block.strip("\n")):
                whole = piece.endswith(".") or ":\n\n" in piece
                if whole and 30 < len(piece) < 500 and piece not in found and QUOTABLE.match(piece):
                    found[piece] = Passage(topic, title, piece, place)
                    place += 1
    return list(found.values())


@cache
def frequencies() -> Counter[str]:
    return Counter(word for each in passages() for word in stems(each.title) | stems(each.text))


def weight(word: str) -> float:
    """Rare words say more of what a question is about."""
    return math.log(1 + len(passages()) / (1 + frequencies()[stem(word)]))


def score(query: str, text: str) -> float:
    return sum(weight(word) for word in words(query) if stem(word) in stems(text))


# --------------------------------------------------------------------------------------------------------- what is known


@frozen
class Answer:
    text: str = ""
    topic: str = ""
    coverage: float = 0.0
    missing: tuple[str, ...] = ()


@define
class State:
    """What a run has so far; when it is stopped, this is what it has to show."""

    question: str = ""
    offered: set[str] = field(factory=set)
    best: Answer = Answer()
    calls: int = 0


Ctx = Context[Memory, State]
Scores = dict[Passage, float]


@step
async def begin(question: str, ctx: Ctx) -> str:
    ctx.state.question = question
    return question


# ------------------------------------------------------------------------------------------------------- code searches


@step
async def by_title(query: str) -> Scores:
    # What a topic is about, it says first.
    return {each: score(query, each.title) * (1 + 1 / (1 + each.place)) for each in passages()}


@step
async def by_words(query: str) -> Scores:
    # Long pieces hold more words of everything.
    return {each: score(query, each.text) / (1 + 0.02 * len(stems(each.text))) for each in passages()}


def best_new(scores: Sequence[Scores], ctx: Ctx) -> list[Passage]:
    """The paths ran on copies of the state; what is to stay is written here, where they come together."""
    new = [each for each in passages() if each.text not in ctx.state.offered]
    total = {each: sum(part[each] for part in scores) for each in new}
    best = sorted((each for each in new if total[each] > 0), key=lambda each: -total[each])[:OFFERED]
    ctx.state.offered |= {each.text for each in best}
    return best


search = parallel([by_title, by_words], merge=best_new, id="search")


# ------------------------------------------------------------------------------------ a small model chooses, code checks


class Choice(BaseModel):
    quotation: str


def choice_of(openings: Sequence[str]) -> type[Choice]:
    """The output type of one question: a model that is held to it can say nothing else."""
    allowed: Any = Literal  # no checker can know them
    return create_model("Choice", __base__=Choice, quotation=allowed[tuple(openings)])


@step
async def choose(found: list[Passage], ctx: Ctx) -> Answer:
    # The first words are enough to choose by, and writing is what takes a small model long.
    texts = {" ".join(each.text.split()): each for each in found}
    openings = {" ".join(text.split()[:8]): each for text, each in texts.items()}
    if openings:
        ctx.emit(f"choosing from {', '.join(sorted({each.topic for each in found}))}")
        ask = call_model(
            output=choice_of(list(openings)),
            instructions="Answer the question with one of the quotations.",
            settings={"temperature": 0.0, "max_output_tokens": 100},
        )
        ctx.state.calls += 1
        # A conversation of its own: the quotations of earlier rounds would only be in the way.
        listed = "\n".join(f"- {text}" for text in texts)
        choice = await spawn(ask)(f"{listed}\n\nQuestion: {ctx.state.question}", ctx)
        ctx.state.best = max(ctx.state.best, judged(openings[choice.quotation], ctx.state.question), key=coverage_of)
    return ctx.state.best


def judged(passage: Passage, question: str) -> Answer:
    known = stems(passage.title) | stems(passage.text)
    missing = tuple(word for word in words(question) if stem(word) not in known)
    whole = sum(map(weight, words(question)))
    return Answer(passage.text, passage.topic, 1 - sum(map(weight, missing)) / whole, missing)


def coverage_of(answer: Answer) -> float:
    return answer.coverage


def covers(answer: Answer) -> Verdict:
    """A fact about words. Whether the quotation is right, the reader has to say."""
    enough = answer.coverage >= ENOUGH
    return Verdict(enough, "the quotation covers the question" if enough else None, " ".join(answer.missing))


def look_for_more(answer: Answer, verdict: Verdict, ctx: Ctx) -> str:
    # What is missing stands in the query twice, and so counts twice.
    return f"{ctx.state.question} {verdict.feedback}"


quote = loop(search >> choose, until=until.verified(covers) | until.max_rounds(3), prepare_next=look_for_more, id="quote")


# --------------------------------------------------------------------------------------------- a capable model explains


@tool
async def search_reference(ctx: Ctx, query: str) -> list[str]:
    """Search the Python language reference.

    Args:
        query: Words that the passages should contain.
    """
    return [f"{each.topic}: {each.text}" for each in await search(query, ctx)]


@step
async def as_answer(text: str, ctx: Ctx) -> Answer:
    ctx.state.calls = ctx.turns
    return Answer(text)


explain = (
    loop(
        call_model(
            instructions="Search the reference, then answer in a few sentences, and quote what you rely on.",
            tools=(search_reference,),
            settings={"max_output_tokens": 1000},
        ),
        until=until.no_tool_calls() | until.max_rounds(5),
        id="explain",
    )
    >> as_answer
)


# ------------------------------------------------------------------------------------------------------------ the program


@frozen
class Reader:
    """What the flow has to know of the model; a service, because it belongs to the harness and to no step."""

    capable: bool


def who_answers(question: str, ctx: ReadContext[Memory, State]) -> Literal["quote", "explain"]:
    return "explain" if ctx.services[Reader].capable else "quote"


@step
async def best_so_far(_: object, ctx: Ctx) -> Answer:
    return ctx.state.best


# `noetic run` looks for these names in a file: flow, and if they are there harness, state, budget and show.

flow = begin >> branch(who_answers, {"quote": quote, "explain": explain})
state = State
budget = Budget(model_calls=6, tokens=20_000, seconds=60, wrap_up=best_so_far, reserve=Budget(steps=1))


def harness(model: str | None = None) -> Harness[Memory]:
    name = model or "local:smollm2"
    return Harness(model=name, services={Reader: Reader(capable=not name.startswith("local:"))})


def show(result: RunResult[Answer, State]) -> None:
    answer = result.value
    if not answer.text:
        print("The reference has nothing on this.")
    elif answer.topic:
        note = f" Not covered: {', '.join(answer.missing)}." if answer.coverage < ENOUGH else ""
        print(f"{indent(answer.text, '    ')}\n\n-- topic {answer.topic!r}, covers {answer.coverage:.0%} of the question.{note}")
    else:
        print(answer.text)
    cost = "unknown" if result.cost is None else f"${result.cost}"
    print(f"\n{result.state.calls} calls, {result.usage.total} tokens, cost {cost}, {result.seconds:.1f} s: {result.reason}")


async def main(question: str, model: str | None) -> None:
    async with harness(model) as h, h.stream(flow, question, state=State(), budget=budget) as stream:
        async for event in stream.events:  # progress goes to standard error, the result to standard output
            match event:
                case Emitted(event=text):
                    print(text, file=sys.stderr)
                case TextDelta(delta=text):
                    print(text, end="", flush=True, file=sys.stderr)
        print(file=sys.stderr)
        show(await stream.result())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Answer a question about Python from its reference.")
    parser.add_argument("question")
    parser.add_argument("--model", help="such as openai:gpt-5-mini; the small local one unless told")
    arguments = parser.parse_args()
    anyio.run(main, arguments.question, arguments.model)
