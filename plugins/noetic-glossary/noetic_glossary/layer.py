"""`Glossary`: what the terms of a field mean, as code and the model have learnt it."""

from __future__ import annotations

import re
from typing import Final

from noetic_py.core.reducers import by_key
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.memory import MemoryLayer, Scope, function

__all__ = ["Glossary"]

_WORD: Final = re.compile(r"\w+")
_COUNTER: Final = EstimatedCounter()


class Glossary(MemoryLayer[dict[str, str]]):
    """The terms of a field and what they mean; the model sees those that the newest input speaks of.

    Attributes:
        limit: How many terms are kept; another one is refused then, so that none is lost unseen.
        longest: The most characters that a meaning may have.

    Raises:
        ConfigError: A limit is below 1; code `"glossary"`.
    """

    limit: int = 200
    longest: int = 400
    scope: Scope = Scope.USER

    def __attrs_post_init__(self) -> None:
        if self.limit < 1 or self.longest < 1:
            raise ConfigError("Glossary: limit= and longest= are 1 or more", code="glossary", hint="Glossary(limit=50)")

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms, sorted."""
        return tuple(sorted(self.state))

    def meaning(self, term: str) -> str | None:
        """The meaning of a term, `None` without one."""
        return self.state.get(_key(term))

    @function
    async def define(self, term: str, meaning: str) -> str:
        """Define a term, or redefine it.

        Args:
            term: The term, as people write it.
            meaning: What it means, in a sentence or two.

        Raises:
            ToolArgumentsInvalid: There is no word in the term, the meaning is too long, or the glossary is full.
        """
        key = _key(term)
        if not key:
            raise self._refused("define", f"{term!r} is not a valid term", "give a word or a few")
        if len(meaning) > self.longest:
            raise self._refused("define", f"the meaning has {len(meaning)} characters of {self.longest}", "shorten it")
        if key not in self.state and len(self.state) >= self.limit:
            raise self._refused("define", f"the glossary is full with {self.limit} terms", "forget one first")
        self.state = {**self.state, key: meaning}
        return f"{key}: {meaning}"

    @function
    async def forget(self, term: str) -> bool:
        """Take a term away; says whether it was there."""
        key = _key(term)
        there = key in self.state
        self.state = {known: meaning for known, meaning in self.state.items() if known != key}
        return there

    def merge(self, base: dict[str, str], mine: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
        """The terms of both; of a term that both have defined the later meaning."""
        terms: dict[str, str] = by_key().apply(base, mine, theirs)
        return terms

    async def recall(self, query: str, budget: int) -> str | None:
        """The terms that the query speaks of, the longer ones first, as far as the budget reaches."""
        spoken = f" {_key(query)} "
        lines: list[str] = []
        left = budget
        for term in sorted(self.state, key=lambda each: (-len(each), each)):
            if f" {term} " not in spoken:
                continue
            line = f"{term}: {self.state[term]}"
            left -= _COUNTER.count_text(f"{line}\n").value
            if left < 0:
                break
            lines.append(line)
        return "\n".join(lines) or None

    def _refused(self, name: str, message: str, hint: str) -> ToolArgumentsInvalid:
        return ToolArgumentsInvalid(message, tool=f"{self.id or 'glossary'}/{name}", hint=hint)


def _key(text: str) -> str:
    """A text as it is compared: its words in small letters, one blank between them."""
    return " ".join(_WORD.findall(text.casefold()))
