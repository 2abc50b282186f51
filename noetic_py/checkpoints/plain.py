"""Reading journals without the code of their flows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from noetic_py.checkpoints.backend import Record
from noetic_py.checkpoints.records import JournalRecord
from noetic_py.checkpoints.stored import load_record
from noetic_py.codec import Codec
from noetic_py.errors import CodecError

__all__ = ["PlainCodec", "load_records"]


class PlainCodec(Codec):
    """Makes what needs no class of a flow's; everything else stays stored JSON."""

    def decode(self, tree: object, type: object = object) -> Any:
        """The value, or the tree as it is when it holds a class that is not known here."""
        try:
            return super().decode(tree, type)
        except CodecError:
            return tree


def load_records(page: Iterable[Record], codec: Codec, run_id: str, after: int) -> Iterator[JournalRecord]:
    """The records of a page.

    Args:
        page: As they are stored.
        codec: For the values in them.
        run_id: Whose they are, for messages.
        after: The position that the page begins at.

    Raises:
        CodecError: One cannot be read; the message says which.
    """
    for position, stored in enumerate(page, after + 1):
        try:
            yield stored.value if stored.value is not None else load_record(stored, codec)
        except CodecError as error:
            raise CodecError(error.message, where=f"record {position} of run {run_id}", hint=error.hint) from error
