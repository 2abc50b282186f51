"""How often a search finds the passage that answers a question: by meaning, and by words.

    python -m benchmarks.recall

The passages are those of the reference that comes with every Python; the questions are put as by a person who does
not know its words. A question counts as answered when one of the first five passages holds the phrase that answers it.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pydoc_data.topics import topics

import anyio

from noetic_py.memory import SemanticRecall
from noetic_py.memory.layers.vectors import split

QUESTIONS: tuple[tuple[str, str], ...] = (
    ("How can I check something while debugging and stop if it is false?", "insert debugging assertions"),
    ("How do I skip the rest of this round of a loop and go to the next?", "continues with the next cycle"),
    ("How do I leave a loop early?", "terminates the nearest enclosing loop"),
    ("What is a statement good for that does nothing?", "is a null operation"),
    ("How do I change a variable of the module from inside a function?", "impossible to assign to a global variable"),
    ("How can an inner function rebind a variable of the function around it?", "previously bound variables"),
    ("What happens when a function ends without giving anything back?", 'else "none" is substituted'),
    ("How do I make sure that a file is closed even after an error?", "methods defined by a context manager"),
    ("How do I run clean-up code no matter what happened?", "cleanup"),
    ("How do I say that one error was caused by another one?", "exception chaining"),
    ("How do I write a small function without a name?", "anonymous functions"),
    ("How does a function become one that produces values one by one?", "when defining a generator function"),
    ("Which values count as false?", "considered false"),
    ("How do I cut off blanks at both ends of a string?", "with the leading and trailing characters removed"),
    ("How do I break a line of text into its words?", "return a list of the words in the string"),
    ("How do I glue many strings together into one?", "concatenation of the strings in"),
    ("How do I make text all capital letters?", "converted to uppercase"),
    ("How can I show a number with commas between the thousands?", "comma for a thousands separator"),
    ("How do I push text to the right in a field of a given width?", "to be right-aligned"),
    ("How precise are floating point numbers?", "double precision floating"),
    ("Is there a limit on how large a whole number may be?", "unlimited range"),
    ("How do I take an entry out of a dictionary?", 'remove "d[key]" from d'),
    ("How do I get a fallback when a key is not in the dictionary?", "if key is in the dictionary, else default"),
    ("How do I turn a list around in place?", "reverses the items of"),
    ("Which method runs when a new object has been made?", "called after the instance has been created"),
    ("How do I decide how my object is shown for debugging?", "“official” string representation"),
    ("What is called when an attribute is not found?", "default attribute access fails"),
    ("How does my own class work in a for loop?", "called when an iterator is required for a container"),
    ("Which operator multiplies matrices?", "intended to be used for matrix multiplication"),
    (
        "How does the debugger go on to the next line without stepping into a call?",
        "until the next line in the current",
    ),
)
"""Questions, and a phrase of the passage that answers each."""

SHOWN = 5
WORD = re.compile(
    r"\b(?!(?:an|are|be|can|do|does|how|it|my|of|on|the|to|what|when|where|which|who|why|you|is|in)\b)\w\w+"
)


@cache
def passages(length: int = 500) -> tuple[str, ...]:
    """The passages of the reference, each once."""
    found = (piece for _, text in sorted(topics.items()) for piece in split(text, length))
    return tuple(dict.fromkeys(" ".join(piece.replace("*", "").split()) for piece in found if len(piece) > 40))


def questions() -> Sequence[tuple[str, str]]:
    """The questions that this Python's reference answers."""
    whole = "\n".join(passages()).casefold()
    return [(question, phrase) for question, phrase in QUESTIONS if phrase.casefold() in whole]


def answered(found: Sequence[str], phrase: str) -> bool:
    """Whether one of the passages holds the phrase."""
    return any(phrase.casefold() in passage.casefold() for passage in found[:SHOWN])


# ------------------------------------------------------------------------------------------------------------- by words


def stems(text: str) -> list[str]:
    """The words of a text that say something, without their endings."""
    return [re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word) for word in WORD.findall(text.lower())]


@cache
def index(length: int = 500) -> tuple[tuple[Counter[str], ...], dict[str, float], float]:
    """Word counts of each passage, the weight of each word, and the mean length."""
    counts = tuple(Counter(stems(passage)) for passage in passages(length))
    seen = Counter(word for each in counts for word in each)
    weights = {word: math.log(1 + (len(counts) - number + 0.5) / (number + 0.5)) for word, number in seen.items()}
    return counts, weights, sum(each.total() for each in counts) / len(counts)


def by_words(query: str, length: int = 500) -> list[str]:
    """The passages that BM25 ranks first, with its usual settings."""
    counts, weights, mean = index(length)
    wanted = set(stems(query))
    scores = [
        sum(
            weights[word] * each[word] * 2.2 / (each[word] + 1.2 * (0.25 + 0.75 * each.total() / mean))
            for word in wanted
            if word in each
        )
        for each in counts
    ]
    ranked = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return [passages(length)[place] for place in ranked[:SHOWN]]


# ----------------------------------------------------------------------------------------------------------- by meaning


async def filled(length: int = 500, words: float = 0.4) -> SemanticRecall:
    """A layer that has all passages."""
    layer = SemanticRecall(id="reference", limit=10_000, least=-1.0, length=2 * length, words=words)
    for passage in passages(length):
        await layer.remember(passage)
    return layer


async def share(layer: SemanticRecall) -> float:
    """The share of questions that a layer answers."""
    hits = [answered([each.text for each in await layer.search(query, SHOWN)], phrase) for query, phrase in questions()]
    return sum(hits) / len(hits)


def share_by_words(length: int = 500) -> float:
    """The share of questions that BM25 answers."""
    hits = [answered(by_words(query, length), phrase) for query, phrase in questions()]
    return sum(hits) / len(hits)


async def main() -> None:
    """Print both figures."""
    for length in (500, 1000):
        both, vectors = await share(await filled(length)), await share(await filled(length, words=0.0))
        sys.stdout.write(
            f"{len(questions())} questions, {len(passages(length))} passages of {length} characters, recall@{SHOWN}: "
            f"SemanticRecall {both:.2f}, its vectors alone {vectors:.2f}, BM25 {share_by_words(length):.2f}\n"
        )


if __name__ == "__main__":
    anyio.run(main)
