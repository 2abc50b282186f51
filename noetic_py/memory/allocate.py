"""How many tokens each layer may recall: a pool of tokens is shared out between the layers and the history.

The minimums come first, in the order of the layers; of the rest, six tenths go to the layers by the room they have up
to their maximum, and everything else to the history. Nothing is lost on the way: what is given adds up to the pool. A
layer that then recalls less leaves the difference to the history, never to another layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from attrs import field, frozen

__all__ = ["DEFAULT_MAXIMUM", "Allocation", "Demand", "allocate", "allocate_unknown"]

DEFAULT_MAXIMUM: Final = 4_096
"""Tokens of a layer without a maximum of its own, where the window of the model is not known."""

# Of what the minimums leave, the layers get at most this much; the history keeps the rest.
_LAYERS_PERCENT: Final = 60


@frozen
class Demand:
    """What a layer asks for.

    Args:
        layer: The layer's id.
        minimum: Tokens it gets before anything is shared.
        maximum: The most it can use; `None` for no limit of its own.

    Raises:
        ValueError: The minimum is negative or above the maximum.
    """

    layer: str
    minimum: int = 0
    maximum: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise ValueError(f"layer {self.layer!r} asks for {self.minimum} to {self.maximum} tokens")


def _read_only(layers: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(layers))


@frozen
class Allocation:
    """Who may use how many tokens.

    Attributes:
        layers: Tokens by layer id, in the order asked.
        history: Tokens of the history, its newest part included; `None` for as many as it has.
    """

    layers: Mapping[str, int] = field(converter=_read_only)
    history: int | None

    @property
    def total(self) -> int | None:
        """All of it together, `None` when the history has no limit."""
        return None if self.history is None else self.history + sum(self.layers.values())


def allocate(pool: int, demands: Sequence[Demand]) -> Allocation:
    """Share a pool of tokens out.

    When the pool is too short for the minimums, the earlier layers get theirs. No layer gets more than its maximum. The
    same pool and demands always give the same shares.

    Args:
        pool: Tokens there are; a negative number counts as none.
        demands: What the layers ask for, the most important first.

    Raises:
        ValueError: Two demands are of the same layer.
    """
    rest = max(pool, 0)
    given: dict[str, int] = {}
    for demand in demands:
        if demand.layer in given:
            raise ValueError(f"layer {demand.layer!r} asks twice")
        given[demand.layer] = least = min(demand.minimum, rest)
        rest -= least
    share = rest * _LAYERS_PERCENT // 100
    # A layer without a maximum could use all there is to share.
    rooms = [share if demand.maximum is None else demand.maximum - demand.minimum for demand in demands]
    for demand, more in zip(demands, _in_proportion(share, rooms), strict=True):
        given[demand.layer] += more
        rest -= more
    return Allocation(given, rest)


def allocate_unknown(demands: Sequence[Demand]) -> Allocation:
    """What everybody may use when nobody knows how much there is: each layer its maximum, the history all it has.

    A layer without a maximum gets 4096 tokens, or its minimum if that is more.
    """
    layers = {
        demand.layer: max(demand.minimum, DEFAULT_MAXIMUM) if demand.maximum is None else demand.maximum
        for demand in demands
    }
    return Allocation(layers, None)


def _in_proportion(share: int, rooms: Sequence[int]) -> list[int]:
    """Parts of a share in proportion to the rooms, none above its room: by the largest remainder, then the order."""
    total = sum(rooms)
    if total <= share:
        return list(rooms)
    parts = [share * room // total for room in rooms]
    # Short by less than one each; as the share is below the total, one more never passes a room that has a remainder.
    by_remainder = sorted(range(len(rooms)), key=lambda place: -(share * rooms[place] % total))
    for place in by_remainder[: share - sum(parts)]:
        parts[place] += 1
    return parts
