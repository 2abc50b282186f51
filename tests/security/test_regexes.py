"""Every pattern of the package, found in its syntax trees and tried with texts that patterns are slow at."""

from __future__ import annotations

import ast
import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.properties.checks import examples
from tests.servers.figures import Figure
from tests.test_house import SHIPPED, Source, dotted, name_of, source

LENGTH = 50_000
SHORT = 3_000
SECONDS = 0.05
METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}


@frozen
class Pattern:
    """A pattern as it is used.

    Attributes:
        where: Its module and line.
        text: What it looks for.
        flags: Its flags.
        methods: How it is used; everything that can be meant where that does not show.
    """

    where: str
    text: str
    flags: int
    methods: frozenset[str]


def patterns() -> Iterator[Pattern]:
    texts = {path: path.read_text(encoding="utf-8") for path in SHIPPED}
    parsed = cache(source)
    for path, text in texts.items():
        if not re.search(r"\bre\.", text):
            continue
        file = parsed(path)
        for node in file.nodes:
            if not isinstance(node, ast.Call) or not dotted(node.func).startswith("re."):
                continue
            name = dotted(node.func).removeprefix("re.")
            if name == "escape":
                continue
            assert isinstance(node.args[0], ast.Constant), (
                f"{name_of(path)}:{node.lineno}: a pattern that is put together"
            )
            where = f"{name_of(path)}:{node.lineno}"
            flags = sum(_flag(part) for part in [*node.args[1:], *(each.value for each in node.keywords)])
            methods = {name} if name in METHODS else _uses(file, texts, node, parsed)
            yield Pattern(where, str(node.args[0].value), flags, frozenset(methods))


def _flag(node: ast.expr) -> int:
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "re":
        return int(getattr(re, node.attr))
    return 0


def _uses(file: Source, texts: Mapping[Path, str], compiled: ast.Call, parsed: Callable[[Path], Source]) -> set[str]:
    """The methods that are called on the name which a compiled pattern is bound to."""
    names = {
        ast.unparse(target)
        for node in file.nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is compiled
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    # A private name is used in its own module.
    private = all(name.startswith("_") for name in names)
    users = [path for path, text in texts.items() if any(name in text for name in names)]
    found = {
        node.attr
        for each in ([file] if private else map(parsed, users))
        for node in each.nodes
        if isinstance(node, ast.Attribute) and dotted(node.value).rpartition(".")[2] in names
    }
    return found & METHODS or {"fullmatch", "match", "search"}


PIECES = [
    "a",
    "1",
    " ",
    "\n",
    "\t",
    "-",
    "_",
    ".",
    "/",
    ":",
    ";",
    ",",
    "@",
    "=",
    "#",
    "[",
    "]",
    "(",
    ")",
    "<",
    "&",
    "*",
    '"',
    "\\",
    '\\"',
    "[0]",
    "#1",
    "a:",
    "a (",
    "a/",
    " \n",
    "\n ",
    "a ",
    ".1",
    "é",
    "\u3000",
    "ing",
    "&a",
    "://",
    "a@",
    ";base64,",
]
HEADS = ["", "a", '"', "data:", "data:a/", "a://", "a (", "[", "#", "gpt-", "openai/gpt-1."]
TAILS = ["", "!", "\x00", "\n"]


def texts(pattern: Pattern) -> Iterator[str]:
    """Long rows of one piece, behind each beginning that might get a pattern going, with an end that fits nothing."""
    own = [word for word in re.findall(r"[A-Za-z0-9:/.;,<>&-]{2,}", pattern.text) if len(word) < 12]
    made = list(itertools.product([*HEADS, *own], [*PIECES, *own], TAILS))
    # A step that shares no factor with the lengths of the lists, so that a sample holds each of everything.
    for head, piece, tail in made[:: max(1, len(made) // examples(25, len(made)) | 1)]:
        yield (head + piece * (LENGTH // len(piece)))[:LENGTH] + tail


def slowest(pattern: Pattern) -> tuple[float, str]:
    compiled = re.compile(pattern.text, pattern.flags)
    worst = (0.0, "")
    for text, method in itertools.product(texts(pattern), sorted(pattern.methods)):
        # A short one first: where that is slow already, nobody need wait for the long one.
        for tried in (text[:SHORT] + text[-1], text):
            seconds = measured(getattr(compiled, method), tried, method)
            worst = max(worst, (seconds, f"{method} {text[:20]!r}...{text[-5:]!r}"))
            if seconds > SECONDS / 5 and tried is not text:
                return seconds * (LENGTH / SHORT), worst[1]
    return worst


def measured(use: Any, text: str, method: str) -> float:
    begun = time.thread_time()
    found = use("", text) if method in {"sub", "subn"} else use(text)
    if method == "finditer":
        deque(found, maxlen=0)
    return time.thread_time() - begun


@pytest.fixture(scope="module")
def every() -> list[Pattern]:
    # Not while tests are collected: each worker of a run would read all of the package for them.
    return list(patterns())


def test_the_patterns_were_found(every: list[Pattern]) -> None:
    assert len(every) >= 20
    assert {"noetic_py/core/codec/wire.py", "noetic_py/memory/blocks.py"} <= {
        each.where.partition(":")[0] for each in every
    }


def test_no_text_makes_a_pattern_slow(every: list[Pattern], figure: Figure) -> None:
    found: dict[str, tuple[float, str]] = {}
    for pattern in every:
        seconds, text = slowest(pattern)
        # A busy machine may take one measurement away from us, and not the same one twice.
        if seconds >= SECONDS:
            seconds, text = min((seconds, text), slowest(pattern))
        found[pattern.where] = (seconds, text)
    figure("slowest", f"{max(found.values())[0] * 1000:.1f} ms")
    assert {where: text for where, (seconds, text) in found.items() if seconds >= SECONDS} == {}


def test_a_slow_pattern_is_noticed() -> None:
    seconds, text = slowest(Pattern("here", r"[\s\S]*[\s\S]*~~", 0, frozenset({"match"})))
    assert seconds > SECONDS
    assert text.startswith("match")
