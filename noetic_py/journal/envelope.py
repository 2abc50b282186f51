"""The marks that record transforms leave: on the bytes of a record, and around the summary of a run."""

from __future__ import annotations

import json
from typing import Any

from noetic_py.errors import CorruptRecord, TransformMissing

__all__ = [
    "beside_card",
    "card_fields",
    "missing",
    "opened",
    "plain_card",
    "refuse_sealed",
    "sealed",
    "sealed_around",
]

_MARK = 0xF5
_BEGIN = bytes((_MARK,))
_LENGTH = 4
_HINTS = {
    "signing": "pip install noetic-signing, then NOETIC_SIGNING_TRUSTED, or Harness(record_transforms=[Signing(...)])"
}


def sealed(name: str, payload: bytes) -> bytes:
    """What a transform gave, marked with its name."""
    mark = name.encode()
    return b"".join((_BEGIN, bytes((len(mark),)), mark, payload))


def opened(payload: bytes) -> tuple[str, bytes] | None:
    """A transform's name and what it gave; `None` when these bytes are not sealed."""
    if payload[:1] != _BEGIN:
        return None
    start = 2 + (payload[1] if len(payload) > 1 else 0)
    return payload[2:start].decode("ascii", "backslashreplace"), payload[start:]


def refuse_sealed(payload: bytes, path: tuple[str, ...] = ()) -> None:
    """Refuse bytes that only a transform can read.

    Raises:
        TransformMissing: They are such bytes.
    """
    found = opened(payload)
    if found is not None:
        raise missing(found[0], path)


def missing(name: str, path: tuple[str, ...] = ()) -> TransformMissing:
    """The error for a transform that is needed and not here."""
    return TransformMissing(
        f"the run was written through the record transform {name!r:.80}, which is not here",
        transform=name,
        path=path,
        hint=_HINTS.get(name, "install and configure the plugin that has it, or Harness(record_transforms=[...])"),
    )


def sealed_around(name: str, card: bytes, beside: bytes) -> bytes:
    """A run's card with what is kept beside it, marked with the name of a transform."""
    return sealed(name, len(card).to_bytes(_LENGTH, "big") + card + beside)


def beside_card(stored: bytes) -> bytes:
    """What is kept beside a card; nothing where it is not sealed."""
    found = opened(stored)
    return b"" if found is None else found[1][_LENGTH + len(plain_card(stored)) :]


def plain_card(stored: bytes) -> bytes:
    """The card as its owner gave it."""
    found = opened(stored)
    if found is None:
        return stored
    size = int.from_bytes(found[1][:_LENGTH], "big")
    return found[1][_LENGTH : _LENGTH + size]


def card_fields(stored: bytes) -> dict[str, Any]:
    """What the card of a run or of a session says; nothing where there is none.

    Raises:
        CorruptRecord: It is no JSON object.
    """
    plain = plain_card(stored)
    if not plain:
        return {}
    try:
        fields: Any = json.loads(plain)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise CorruptRecord("the card of a run is not a JSON object", hint="restore the store from a backup")
    return fields  # pyright: ignore[reportUnknownVariableType]  # any JSON
