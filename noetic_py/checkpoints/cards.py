"""A run's card with where its journal ends beside it, and what seals that.

It is written in the transaction that moves the end, so a crash never leaves a journal that looks cut.
"""

from __future__ import annotations

import base64
import json
from typing import Any, TypeAlias

from attrs import frozen

from noetic_py.checkpoints.envelope import beside_card, opened, plain_card, sealed_around
from noetic_py.checkpoints.transforms import JournalEnd

__all__ = ["CardParts", "Seals", "sealed_card", "sealed_parts"]

Seals: TypeAlias = dict[str, bytes | None]
"""What transforms have stored beside the end of a journal, by the names of all that were there."""


def sealed_card(end: JournalEnd, seals: Seals) -> bytes:
    """A run's card with where its journal ends, and what seals that."""
    told: dict[str, Any] = {
        "position": end.position,
        "digest": end.digest.hex(),
        "status": end.status,
        "seals": {name: None if seal is None else base64.b64encode(seal).decode() for name, seal in seals.items()},
    }
    if end.origins:
        told["origins"] = [list(origin) for origin in end.origins]
    return sealed_around(next(iter(seals), ""), end.card, json.dumps(told, separators=(",", ":")).encode())


@frozen
class CardParts:
    """A stored card, taken apart.

    Attributes:
        end: Where the journal ended when it was written; `None` when nothing says so.
        seals: What seals that.
        card: The card as its owner gave it.
    """

    end: JournalEnd | None
    seals: Seals
    card: bytes


def sealed_parts(run_id: str, stored: bytes) -> CardParts:
    """A stored card, taken apart; what is none is a card without seals.

    Raises:
        ValueError: It is sealed, and damaged.
    """
    card, beside = plain_card(stored), beside_card(stored)
    if opened(stored) is None:
        return CardParts(None, {}, card)
    try:
        told = json.loads(beside)
        seals: Seals = {
            str(name): None if seal is None else base64.b64decode(seal, validate=True)
            for name, seal in told["seals"].items()
        }
        origins = tuple((str(run), int(at)) for run, at in told.get("origins", ()))
        status = told["status"]
        end = JournalEnd(run_id, int(told["position"]), bytes.fromhex(told["digest"]), status, card, origins)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"what is kept beside the end of the journal is damaged: {type(error).__name__}") from error
    if sealed_card(end, seals) != stored:
        # One way only to write it, so that every bit of it counts.
        raise ValueError("what is kept beside the end of the journal is damaged")
    return CardParts(end, seals, card)
