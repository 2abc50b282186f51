"""Texts cut into passages: at headings, paragraphs and sentences, with a limit of tokens and an overlap."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from attrs import frozen
from semantic_text_splitter import MarkdownSplitter, TextSplitter

from noetic_py.core.tokens import EstimatedCounter

__all__ = ["Passage", "cut", "normalized"]

_COUNTER: Final = EstimatedCounter()
_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_LONGEST: Final = 80
_BLOCK: Final = 16_384


@frozen
class Passage:
    """A part of a text.

    Attributes:
        text: The part, `whole[start:end]`.
        start: Where it begins, in characters.
        end: Where it ends.
        heading: The headings that it stands under, such as `"Tides > Springs"`; of plain text none.
    """

    text: str
    start: int
    end: int
    heading: str = ""


def normalized(text: str) -> str:
    """A text whose lines end in a newline, with at most one empty line in a row, and only characters that UTF-8 has."""
    lines = re.sub(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]", "\n", text.replace("\x00", ""))
    # Runs of empty lines say nothing, and the splitter takes each length of these for a level of its own.
    lines = "\n".join(line.rstrip() for line in lines.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).encode(errors="replace").decode().strip()


def cut(text: str, tokens: int, overlap: int, *, markdown: bool) -> list[Passage]:
    """The passages of a normalized text, in their order.

    Args:
        text: The text.
        tokens: How many a passage may have, by the estimate that memory layers count with.
        overlap: How many tokens of the passage before are repeated, at most.
        markdown: Whether it is Markdown, which has headings and lists.
    """
    splitter = MarkdownSplitter if markdown else TextSplitter
    chosen = splitter.from_callback(_count, tokens, overlap=overlap)
    parts = [
        (begin + start, part) for begin, end in _blocks(text) for start, part in chosen.chunk_indices(text[begin:end])
    ]
    headings = _headings(text) if markdown else []
    starts = [start for start, _ in headings]
    under = [headings[place - 1][1] if (place := bisect_right(starts, start)) else "" for start, _ in parts]
    begins, made = frozenset(starts), list[Passage]()
    for (start, part), heading, below in zip(parts, under, [*under, ""][1:], strict=True):
        # A heading alone says nothing that the passages below it do not say too.
        alone = "\n" not in part and len(part) <= _LONGEST and start in begins
        if not alone or not f"{below} > ".startswith(f"{heading} > "):
            made.append(Passage(part, start, start + len(part), heading))
    return made


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where a text is cut first: the splitter's time grows with the square of what it is given."""
    begin = 0
    while len(text) - begin > _BLOCK:
        places = (text.rfind(mark, begin + _BLOCK // 2, begin + _BLOCK) for mark in ("\n\n#", "\n\n", "\n", " "))
        end = next((place for place in places if place > 0), begin + _BLOCK)
        yield begin, end
        begin = end
    yield begin, len(text)


def _count(text: str) -> int:
    return _COUNTER.count_text(text).value


def _headings(text: str) -> list[tuple[int, str]]:
    """Where headings begin, each with those above it."""
    found: list[tuple[int, str]] = []
    above: list[tuple[int, str]] = []
    start, fence = 0, ""
    for line in text.splitlines(keepends=True):
        marks = _FENCE.match(line)
        if marks is not None and (not fence or marks[1].startswith(fence)):
            fence = "" if fence else marks[1]
        heading = None if fence or marks else _HEADING.match(line.rstrip("\n"))
        if heading is not None and heading[2]:
            level = len(heading[1])
            above = [*(each for each in above if each[0] < level), (level, heading[2][:_LONGEST])]
            found.append((start, " > ".join(name for _, name in above)))
        start += len(line)
    return found
