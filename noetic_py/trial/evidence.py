"""What of a conversation a request has to show, and whether it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import Attribute, field, frozen

from noetic_py.core.caches import cached
from noetic_py.core.codec import to_wire_json
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.core.values import is_array
from noetic_py.errors import ConfigError
from noetic_py.trial.replay import TriedRequest
from noetic_py.trial.stored import StoredRound, StoredTurn

_WORD: Final = re.compile(r"\w[\w'-]+")
# A word that stands in more items than this tells little of what an answer comes from.
_RARE: Final = 3
_SHORTEST: Final = 3
_LAYER: Final = "<memory"
_MARK: Final = "outdated"


def _texts(instance: object, attribute: Attribute[Sequence[str]], value: object) -> None:
    # A single text is a sequence of its letters, each of which is shown nearly everywhere, as an empty text is.
    if not is_array(value) or not all(isinstance(each, str) and each.strip() for each in value):
        raise ConfigError(
            f"{attribute.name}={value!r} is not valid evidence; expected a list of texts, none of them empty",
            code="trial",
            hint='Evidence(needed=["Delft"], outdated=["Utrecht"])',
        )


@frozen
class Evidence:
    """What one request has to show besides its new input, and what it should not.

    Attributes:
        needed: Texts, or ids of stored items. A text counts as shown if a shown item contains it, whatever the case and
            the spaces; an id if that item is shown, or its whole text in another one.
        outdated: Texts that were true once. One counts as shown if a line of a layer contains it, and does not contain
            the word `outdated`, with which `Facts` marks such lines.
    """

    needed: Sequence[str] = field(default=(), validator=_texts)
    outdated: Sequence[str] = field(default=(), validator=_texts)


EvidenceOf: TypeAlias = Callable[[StoredRound], Evidence | None]
"""Tells the evidence of a stored request; `None` for one without."""


Wanted: TypeAlias = Mapping[tuple[str, int], Evidence | None]
"""The evidence of requests, by their run and their place in it."""


def wanted_of(turns: Iterable[StoredTurn], evidence: EvidenceOf) -> Wanted:
    """The evidence of all requests that a trial replays.

    Raises:
        ConfigError: The function returns something else for one of them; code `"trial"`.
    """
    rounds = [each for turn in turns for each in turn.rounds if each.answer is not None]
    wanted = {(each.run_id, each.index): evidence(each) for each in rounds}
    for (run_id, index), found in wanted.items():
        given: object = found
        if given is not None and not isinstance(given, Evidence):
            raise ConfigError(
                f"{given!r:.100} is not valid evidence of request {index} of run {run_id}; expected an Evidence, or "
                "None for a request without",
                code="trial",
                hint='return Evidence(needed=["Delft"])',
            )
    return wanted


def judge(tried: Sequence[TriedRequest], wanted: Wanted | None) -> Iterator[tuple[float | None, int | None]]:
    """The share of its evidence that each request shows, and how many outdated texts.

    Args:
        tried: The requests, in their order.
        wanted: What they have to show. Left out, it is what their answers took from earlier in the conversation.
    """
    said = _Said()
    texts = {item.id: _text(item) for each in tried for item in (*each.round.input, *(each.round.answer or ()))}
    for each in tried:
        if wanted is None:
            yield said.found(each), None
            continue
        evidence = wanted[each.round.run_id, each.round.index]
        yield (None, None) if evidence is None else _judged(_earlier(each), evidence, texts)


def _judged(items: Sequence[Item], wanted: Evidence, texts: Mapping[str, str]) -> tuple[float | None, int | None]:
    shown, ids = [_folded(_text(item)) for item in items], {item.id for item in items}
    found = None
    if wanted.needed:
        hits = [each in ids or any(_folded(texts.get(each, each)) in text for text in shown) for each in wanted.needed]
        found = sum(hits) / len(hits)
    outdated = None
    if wanted.outdated:
        lines = [line for line in _layer_lines(items) if _MARK not in line]
        outdated = sum(any(_folded(each) in line for line in lines) for each in wanted.outdated)
    return found, outdated


def _earlier(each: TriedRequest) -> Sequence[Item]:
    """What a request shows besides its new input, which would show the evidence that a question names itself."""
    new = {item.id for item in each.round.input}
    return [item for item in each.request.items if item.id not in new]


def _layer_lines(items: Iterable[Item]) -> Iterator[str]:
    for item in items:
        text = _text(item)
        if text.startswith(_LAYER):
            yield from map(_folded, text.splitlines())


class _Said:
    """The words that users and tools have said in each conversation so far, by how many items have them.

    What the model itself has said before does not count, since much of that is its way of speaking.
    """

    def __init__(self) -> None:
        self._counts: dict[object, dict[str, int]] = {}
        self._turn: tuple[object, set[str]] = (None, set())

    def found(self, each: TriedRequest) -> float | None:
        """Which share of the words that an answer took from earlier is shown; `None` where it took none."""
        counts = self._counts.setdefault(each.conversation, {})
        run, now = self._turn
        if run != each.round.run_id:
            now = set(_words(each.request.instructions or ""))
            self._turn = each.round.run_id, now
        for item in each.round.input:
            now |= _words(_text(item))
        answer = [_words(_text(item)) for item in each.round.answer or ()]
        taken = {word for words in answer for word in words - now if 0 < counts.get(word, 0) <= _RARE}
        shown: set[str] = set()
        for item in each.request.items if taken else ():
            shown |= taken & _words(_text(item))
        outputs = [_words(_text(item)) for item in each.round.outputs.values()]
        for words in (*map(_words, map(_text, each.round.input)), *outputs):
            for word in words:
                counts[word] = counts.get(word, 0) + 1
        now |= {word for words in outputs for word in words}
        return len(shown) / len(taken) if taken else None


@cached(65_536)
def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(text.casefold()) if len(word) >= _SHORTEST)


@cached(65_536)
def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _text(item: Item) -> str:
    match item:
        case Message():
            return item.text
        case FunctionCall():
            return f"{item.name} {item.arguments}"
        case FunctionCallOutput() if isinstance(item.output, str):
            return item.output
        case _:
            return to_wire_json(item).decode(errors="replace")
