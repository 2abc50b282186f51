"""The bytes of a transaction: its records one after another, every text and payload with its length before it.

Lengths are little-endian groups of seven bits, so a record's frame costs about as many bytes as it has texts. A payload
above a threshold is not in there but named by its SHA-256, and stored once however often it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from attrs import frozen

from noetic_py.errors import CorruptRecord
from noetic_py.journal.stored import Record

__all__ = ["Packed", "pack", "pack_scope", "unpack"]

_INLINE = b"\x00"
_APART = b"\x01"
_DIGEST = 32
_SMALL = [bytes((n,)) for n in range(128)]


@frozen
class Packed:
    """A packed transaction.

    Attributes:
        body: Its bytes.
        blobs: The payloads that are not in there, by their SHA-256.
    """

    body: bytes
    blobs: Mapping[bytes, bytes]


def _number(value: int) -> bytes:
    if value < 128:
        return _SMALL[value]
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


# Kinds and frames come again and again.
@lru_cache(1024)
def _text(value: str) -> bytes:
    data = value.encode()
    return _number(len(data)) + data


@lru_cache(1024)
def _decoded(data: bytes) -> str:
    return data.decode()


def pack_scope(scope: Iterable[str]) -> bytes:
    """A tuple of texts as bytes: two scopes are equal exactly when their bytes are."""
    return b"".join(_text(part) for part in scope)


def pack(records: Sequence[Record], *, threshold: int) -> Packed:
    """The bytes of a transaction.

    Args:
        records: Its records; their texts hold no lone surrogates.
        threshold: Payloads longer than this go apart.
    """
    parts: list[bytes] = []
    blobs: dict[bytes, bytes] = {}
    for record in records:
        parts += (_text(record.kind), _number(len(record.path)))
        parts += map(_text, record.path)
        payload = bytes(record.payload)
        if len(payload) <= threshold:
            parts += (_INLINE, _number(len(payload)), payload)
        else:
            digest = hashlib.sha256(payload).digest()
            blobs[digest] = payload
            parts += (_APART, _number(len(payload)), digest)
    return Packed(b"".join(parts), blobs)


class _Reader:
    """Goes through bytes; reading past their end is a corruption, never a short text."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise CorruptRecord("a stored transaction ends too early")
        part = self._data[self._at : end]
        self._at = end
        return part

    def number(self) -> int:
        value, shift = 0, 0
        while True:
            if self._at == len(self._data):
                raise CorruptRecord("a stored transaction ends too early")
            byte = self._data[self._at]
            self._at += 1
            if byte < 128:
                return value | byte << shift
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise CorruptRecord("a stored length has no end")

    def text(self) -> str:
        try:
            return _decoded(self.take(self.number()))
        except UnicodeDecodeError:
            raise CorruptRecord("a stored text is not UTF-8") from None

    @property
    def done(self) -> bool:
        return self._at == len(self._data)


def _payload(reader: _Reader, blob: Callable[[bytes], bytes], wanted: bool) -> bytes:
    where, size = reader.take(1), reader.number()
    if where == _INLINE:
        return reader.take(size)
    if where != _APART:
        raise CorruptRecord("a stored payload is marked as neither here nor apart")
    digest = reader.take(_DIGEST)
    if not wanted:
        return b""
    payload = blob(digest)
    if len(payload) != size or hashlib.sha256(payload).digest() != digest:
        raise CorruptRecord("a large payload is not what was written")
    return payload


def unpack(body: bytes, count: int, blob: Callable[[bytes], bytes], *, skip: int = 0) -> list[Record]:
    """The records of a packed transaction; its checksum was compared before.

    Args:
        body: Its bytes.
        count: How many records they hold.
        blob: Gives the payload of a SHA-256; asked only for records that are returned.
        skip: How many records to leave out at the beginning.

    Raises:
        CorruptRecord: They are no such transaction.
    """
    reader = _Reader(body)
    records: list[Record] = []
    for index in range(count):
        kind = reader.text()
        path = tuple([reader.text() for _ in range(reader.number())])
        payload = _payload(reader, blob, index >= skip)
        if index >= skip:
            records.append(Record(kind, path, payload))
    if not reader.done:
        raise CorruptRecord("a stored transaction holds more than its records")
    return records
