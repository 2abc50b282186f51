"""The passages of one owner and one embedder in memory: a matrix of vectors, and an inverted index of words."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noetic_py.memory.layers.vectors import AGAIN, LONG, Found, VectorQuery, weighed, words

Vectors: TypeAlias = NDArray[np.float32]
"""One vector a row."""

_Numbers: TypeAlias = NDArray[np.float64]
# A word, or a pair of the metadata.
_Token: TypeAlias = str | tuple[str, str]

_TIMES_BITS: Final = 16
_MOST_TIMES: Final = (1 << _TIMES_BITS) - 1
_FEW: Final = 1024
_DIGITS: Final = 9
_PRECISION: Final = float(np.finfo(np.float32).eps)


class Ranking:
    """Passages in the order of their numbers, each with a vector of length 1.

    A passage is a row of one matrix, and its words are entries of an inverted index, so an addition touches nothing
    that is there. The oldest passages are removed at the front, which moves one position; the room is taken back when
    it is as large as what is left. Every method can be called from any thread.

    A search multiplies the matrix with the query in single precision. What can be among the nearest, as far as that
    tells, is computed again in double precision: so the order does not depend on the machine or the size of the
    matrix, and equal passages come in the order of their numbers.

    Args:
        dimensions: Numbers in a vector.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._lock = Lock()
        self._start = 0
        self._passages: list[Found | None] = []
        self._numbers = array("q")
        self._rows: dict[str, int] = {}
        self._matrix: Vectors = np.empty((0, dimensions), np.float32)
        self._lengths: _Numbers = np.empty(0, np.float64)
        self._said: _Numbers = np.empty(0, np.float64)
        self._tokens: dict[_Token, array[int]] = {}
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._passages) - self._start

    def __contains__(self, text: str) -> bool:
        return text in self._rows

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the passages, in their order."""
        return self._numbers[self._start :]

    def having(self, where: Mapping[str, str]) -> list[int]:
        """The numbers of the passages with these metadata."""
        with self._lock:
            rows = self._having(where)
            return list(self.numbers) if rows is None else [self._numbers[self._start + int(row)] for row in rows]

    def behind(self, number: int, end: int | None = None) -> tuple[list[Found], Vectors]:
        """The passages from a number on, up to one before `end`, and their vectors."""
        with self._lock:
            row = max(self._start, bisect_left(self._numbers, number))
            upto = len(self._passages) if end is None else bisect_left(self._numbers, end)
            found = [passage for passage in self._passages[row:upto] if passage is not None]
            return found, self._matrix[row:upto].copy()

    def add(self, passages: Sequence[Found], vectors: Vectors) -> None:
        """Take in passages, whose numbers are greater than all that are there."""
        with self._lock:
            begin = len(self._passages)
            self._grow(begin + len(passages))
            self._matrix[begin : begin + len(passages)] = vectors
            for row, passage in enumerate(passages, begin):
                self._passages.append(passage)
                self._numbers.append(passage.number)
                self._rows[passage.text] = row
                self._said[row] = passage.said.timestamp() if passage.said is not None else np.nan
                self._index(row, passage)

    def _grow(self, size: int) -> None:
        if size <= len(self._matrix):
            return
        room, used = max(size, 2 * len(self._matrix)), len(self._passages)
        matrix: Vectors = np.empty((room, self.dimensions), np.float32)
        matrix[:used] = self._matrix[:used]
        self._matrix = matrix
        self._lengths = np.resize(self._lengths, room) if used else np.empty(room, np.float64)
        self._said = np.resize(self._said, room) if used else np.empty(room, np.float64)

    def _index(self, row: int, passage: Found) -> None:
        counted = Counter(words(passage.text))
        self._lengths[row] = length = counted.total()
        self._total += length
        tokens: dict[_Token, int] = dict.fromkeys(passage.metadata.items(), 1)
        tokens.update(counted)
        for token, times in tokens.items():
            entries = self._tokens.get(token)
            if entries is None:
                entries = self._tokens[token] = array("Q")
            entries.append(row << _TIMES_BITS | min(times, _MOST_TIMES))

    def drop_before(self, number: int) -> None:
        """Remove the passages whose numbers are smaller."""
        with self._lock:
            end = bisect_left(self._numbers, number, self._start)
            for row in range(self._start, end):
                passage, self._passages[row] = self._passages[row], None
                if passage is not None:
                    del self._rows[passage.text]
                self._total -= float(self._lengths[row])
            self._start = end
            if end > _FEW and end > len(self):
                self._take(np.arange(end, len(self._passages)))

    def remove(self, numbers: Collection[int]) -> None:
        """Remove the passages with these numbers, wherever they are; that takes a copy of all the others."""
        with self._lock:
            left = [row for row in range(self._start, len(self._passages)) if self._numbers[row] not in numbers]
            self._take(np.asarray(left, np.intp))

    def _take(self, rows: NDArray[np.intp]) -> None:
        """Keep these rows only, and take back the room of the others."""
        places = np.full(len(self._passages), -1, np.int64)
        places[rows] = np.arange(len(rows))
        chosen: list[int] = rows.tolist()
        self._passages = [self._passages[row] for row in chosen]
        self._numbers = array("q", [self._numbers[row] for row in chosen])
        self._rows = {passage.text: row for row, passage in enumerate(self._passages) if passage is not None}
        self._matrix = self._matrix[rows]
        self._lengths, self._said = self._lengths[rows], self._said[rows]
        self._total = float(self._lengths.sum())
        for token, entries in list(self._tokens.items()):
            every = _entries(entries, self._start)
            moved = places[every >> np.uint64(_TIMES_BITS)]
            kept = moved >= 0
            times = every[kept] & np.uint64(_MOST_TIMES)
            if len(times):
                left = moved[kept].astype(np.uint64) << np.uint64(_TIMES_BITS) | times
                self._tokens[token] = array("Q", left.tobytes())
            else:
                del self._tokens[token]
        self._start = 0

    def nearest(self, query: VectorQuery) -> list[Found]:
        """The passages nearest to a query, the nearest first; of equal ones the oldest."""
        vector = np.asarray(query.vector, np.float32)
        if len(vector) != self.dimensions or query.limit <= 0:
            return []
        with self._lock:
            start, end = self._start, len(self._passages)
            matrix = self._matrix[start:end]
            rows, scores = self._allowed(query), matrix @ vector
            shared = self._shared(query)
            if shared is not None:
                scores = scores + shared
            if rows is not None:
                scores = scores[rows]
            places = self._candidates(scores, query)
            chosen = places if rows is None else rows[places]
            exact = matrix[chosen].astype(np.float64) @ vector.astype(np.float64)
            if shared is not None:
                exact += shared[chosen]
            exact = exact.round(_DIGITS)
            order = np.lexsort((chosen, -exact))[: query.limit]
            return [self._found(start + int(chosen[at]), float(exact[at])) for at in order if exact[at] >= query.least]

    def _found(self, row: int, score: float) -> Found:
        passage = self._passages[row]
        if passage is None:
            raise AssertionError
        # `evolve` looks all fields up, and takes ten times as long.
        return Found(
            passage.text, passage.role, passage.thread, passage.item, passage.origin, passage.said, passage.metadata,
            round(score, 4), passage.number,
        )  # fmt: skip

    def _candidates(self, scores: NDArray[np.floating], query: VectorQuery) -> NDArray[np.intp]:
        """Where the scores are that can be among the nearest, as far as single precision tells."""
        floor = query.least
        if len(scores) > query.limit:
            place = len(scores) - query.limit
            floor = max(floor, float(np.partition(scores, place)[place]))
        return np.flatnonzero(scores >= floor - 2 * _PRECISION * (self.dimensions + 8))

    def _shared(self, query: VectorQuery) -> _Numbers | None:
        """What each passage has for sharing the query's words; `None` when none does."""
        if not query.words:
            return None
        known = {word: self._living(word) for word in sorted(set(words(query.text)))}
        weights = weighed({word: len(entries) for word, entries in known.items()}, len(self))
        lengths, mean = self._lengths[self._start : len(self._passages)], self._total / max(1, len(self)) or 1.0
        shared: _Numbers = np.zeros(len(self), np.float64)
        for word, entries in known.items():
            if len(entries):
                rows, times = _rows(entries, self._start), (entries & np.uint64(_MOST_TIMES)).astype(np.float64)
                shared[rows] += weights[word] * times / (times + AGAIN * (1 - LONG + LONG * lengths[rows] / mean))
        shared *= query.words
        return shared

    def _allowed(self, query: VectorQuery) -> NDArray[np.intp] | None:
        """The rows that the filters of a query let through; `None` for all."""
        rows = self._having(query.where)
        if query.since is None and query.until is None:
            return rows
        said = self._said[self._start : len(self._passages)]
        fits = (said >= _seconds(query.since, -np.inf)) & (said < _seconds(query.until, np.inf))
        return np.flatnonzero(fits) if rows is None else rows[fits[rows]]

    def _having(self, where: Mapping[str, str]) -> NDArray[np.intp] | None:
        """The rows with these metadata; `None` for all."""
        rows: NDArray[np.intp] | None = None
        for pair in where.items():
            having = _rows(self._living(pair), self._start)
            rows = having if rows is None else np.intersect1d(rows, having, assume_unique=True)
        return rows

    def _living(self, token: _Token) -> NDArray[np.uint64]:
        entries = self._tokens.get(token)
        return np.empty(0, np.uint64) if entries is None else _entries(entries, self._start)


def _entries(entries: array[int], start: int) -> NDArray[np.uint64]:
    """A copy of a word's entries from a row on; an array that is looked at cannot grow."""
    every = np.frombuffer(entries, np.uint64)
    return every[np.searchsorted(every, np.uint64(start << _TIMES_BITS)) :].copy()


def _rows(entries: NDArray[np.uint64], start: int) -> NDArray[np.intp]:
    return (entries >> np.uint64(_TIMES_BITS)).astype(np.intp) - start


def _seconds(moment: datetime | None, otherwise: float) -> float:
    return otherwise if moment is None else moment.timestamp()
