"""The order in which queued runs are claimed: what is asked of a store, and which of the runs that wait come next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Generic, TypeAlias, TypeVar

from attrs import frozen

from noetic_py.journal.stored import Queued, QueueLimits

__all__ = ["MOST_KEYS", "MOST_REMEMBERED", "Candidate", "ClaimRequest", "Turns"]

_Lane: TypeAlias = tuple[str, str]
_Head: TypeAlias = tuple[int, int, int, float, int, _Lane]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MOST_KEYS = 200
"""How many keys of a queue one claim looks at, so that its cost does not grow with their number."""
MOST_REMEMBERED = 10_000
"""Of how many keys it is remembered when a run of theirs was claimed last."""


@frozen
class ClaimRequest:
    """What a worker asks for: as in `CheckpointBackend.claim`, with the limits of its queues alone."""

    queues: Sequence[str]
    flows: frozenset[str]
    ttl: float
    limit: int
    limits: Mapping[str, QueueLimits]


@frozen
class Candidate(Generic[T_co]):
    """A run that may be claimed.

    Attributes:
        place: Its place in its queue.
        number: Of two that wait equally long, the one with the smaller number goes first.
        run: The run, as the store has it.
    """

    place: Queued
    number: int
    run: T_co


class Turns:
    """Whose turn it is; what it remembers of earlier claims only keeps equals from waiting for each other."""

    def __init__(self) -> None:
        # In the order in which a run of theirs was claimed last.
        self._served: dict[_Lane, int] = {}
        self._claims = 0
        self._after: dict[object, str] = {}

    def choose(
        self, waiting: Iterable[Candidate[T]], at_work: Mapping[tuple[str, str], int], wanted: ClaimRequest
    ) -> Sequence[Candidate[T]]:
        """The runs that a claim gets, the first one first.

        Args:
            waiting: Those that may be claimed; of each queue and key, as many of the first ones as are wanted.
            at_work: How many runs of each queue and key are at work.
            wanted: What is asked for.
        """
        lanes: dict[_Lane, list[Candidate[T]]] = defaultdict(list)
        for each in waiting:
            lanes[each.place.queue, each.place.key].append(each)
        by_key, by_queue = Counter(at_work), Counter[str]()
        for (queue, _), count in at_work.items():
            by_queue[queue] += count

        def head(lane: _Lane) -> _Head:
            priority, at, number = _rank(lanes[lane][-1])
            return priority, by_key[lane], self._served.get(lane, 0), at, number, lane

        for runs in lanes.values():
            # The first one stands last, where it is taken from.
            runs.sort(key=_rank, reverse=True)
        heads = [head(lane) for lane in lanes]
        heapify(heads)
        chosen: list[Candidate[T]] = []
        while heads and len(chosen) < wanted.limit:
            lane = heappop(heads)[-1]
            limits = wanted.limits.get(lane[0], _UNLIMITED)
            if _is_full(limits.concurrency, by_queue[lane[0]]) or _is_full(limits.per_key, by_key[lane]):
                continue
            chosen.append(lanes[lane].pop())
            by_queue[lane[0]] += 1
            by_key[lane] += 1
            self._note(lane)
            if lanes[lane]:
                heappush(heads, head(lane))
        return chosen

    def _note(self, lane: _Lane) -> None:
        self._claims += 1
        self._served.pop(lane, None)
        self._served[lane] = self._claims
        while len(self._served) > MOST_REMEMBERED:
            del self._served[next(iter(self._served))]

    def pages(self, lane: object, read: Callable[[str, int], Iterable[str]]) -> Iterator[Sequence[str]]:
        """All keys of something, a page at a time, where more wait than a claim can look at: claims go round.

        Args:
            lane: What has the keys.
            read: Gives so many keys from a text on, in the order of texts.
        """
        begin = self._after.pop(lane, "")
        keys = chain(_keys(read, _behind(begin), None), _keys(read, "", begin) if begin else ())
        while page := list(islice(keys, MOST_KEYS)):
            if len(page) == MOST_KEYS:
                self._after[lane] = page[-1]
            else:
                self._after.pop(lane, None)
            yield page


_UNLIMITED = QueueLimits()


def _is_full(limit: int | None, count: int) -> bool:
    return limit is not None and count >= limit


def _rank(each: Candidate[object]) -> tuple[int, float, int]:
    return -each.place.priority, each.place.at or 0.0, each.number


def _keys(read: Callable[[str, int], Iterable[str]], low: str, last: str | None) -> Iterator[str]:
    found = list(read(low, MOST_KEYS))
    while found:
        for each in found:
            if last is not None and each > last:
                return
            yield each
        found = list(read(_behind(found[-1]), MOST_KEYS)) if len(found) == MOST_KEYS else []


def _behind(key: str) -> str:
    """The first text behind a key: keys hold no control characters."""
    return key and key + "\x01"
