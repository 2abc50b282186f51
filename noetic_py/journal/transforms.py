"""Packing, and record transforms: what is done to the bytes of every record on the way to the backend and back.

A transform signs records, or encrypts them. It gets a record's stored bytes and the place where they belong, and gives
other bytes; reading, it gets those back and says what it found. It knows nothing of backends, and backends nothing of
it. Where a journal ends is kept with the run in the transaction that moves the end, so that a transform that signs it
finds a journal that was cut, and a crash is never taken for a cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from noetic_py.core.caches import cached
from noetic_py.errors import CorruptRecord, RecordRefused
from noetic_py.journal.stored import Record
from noetic_py.redaction import with_article

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
@cached(1024)
def _text(value: str) -> bytes:
    data = value.encode()
    return _number(len(data)) + data


@cached(1024)
def _decoded(data: bytes) -> str:
    return data.decode()


def pack_scope(scope: Iterable[str]) -> bytes:
    """A tuple of texts as bytes: two scopes are equal exactly when their bytes are."""
    return b"".join(_text(part) for part in scope)


def unpack_scope(packed: bytes) -> tuple[str, ...]:
    """The scope that `pack_scope` has packed.

    Raises:
        CorruptRecord: The bytes are not those of a scope.
    """
    reader = _Reader(packed)
    parts: list[str] = []
    while not reader.done:
        parts.append(reader.text())
    return tuple(parts)


def scopes_behind(found: Iterable[bytes], prefix: bytes, after: bytes, limit: int) -> list[bytes]:
    """The first packed scopes behind one, in their order, that begin with a prefix."""
    fit = sorted(each for each in found if each > after and each.startswith(prefix))
    return fit[:limit]


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
        raise CorruptRecord("a large payload is damaged")
    return payload


def unpack(body: bytes, count: int, blob: Callable[[bytes], bytes], *, skip: int = 0) -> list[Record]:
    """The records of a packed transaction; its checksum was compared before.

    Args:
        body: Its bytes.
        count: How many records they hold.
        blob: Gives the payload of a SHA-256; asked only for records that are returned.
        skip: How many records to leave out at the beginning.

    Raises:
        CorruptRecord: They are not such a transaction.
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


Verdict: TypeAlias = Literal["verified", "unverified", "forged"]
"""Verified: it is what was written here. Unverified: this cannot be checked. Forged: it was not written here."""


@frozen
class RecordPlace:
    """Where a record belongs. Nothing about a place is stored with the record: it is where the record is found.

    Attributes:
        run_id: The run that it was written in; what a fork shares with another run was written in that one.
        position: Its number in the journal, from 1.
        kind: The record's class, such as `"StepFinished"`.
        path: The step's frames.
        previous: SHA-256 of the record before it as it is stored, 32 zero bytes before the first.
    """

    run_id: str
    position: int
    kind: str
    path: tuple[str, ...]
    previous: bytes


@frozen
class JournalEnd:
    """Where a run's journal ends, and what is kept beside it.

    Attributes:
        run_id: The run.
        position: How many records its journal holds.
        digest: SHA-256 of the last record as it is stored, 32 zero bytes when there is none.
        status: The status that lists show.
        summary: The summary that lists show.
        origins: Of a fork: the runs that the first part of its journal was written in, each with the position up to
            which it was.
        store: The identity of the store that it was written in; `None` for what was written before stores had one.
    """

    run_id: str
    position: int
    digest: bytes
    status: str | None
    summary: bytes
    origins: tuple[tuple[str, int], ...] = ()
    store: str | None = None


@frozen
class Finding:
    """The finding of a transform.

    Attributes:
        verdict: How it stands.
        reason: Why it is not verified; in one sentence, without secrets.
        by: The signer, if certain: a role and a key's id, say.
    """

    verdict: Verdict
    reason: str | None = None
    by: str | None = None


VERIFIED = Finding("verified")


@frozen
class DecodedPayload:
    """The result of `RecordTransform.decode`: the record's bytes before `encode`.

    Attributes:
        payload: The bytes; `None` when they cannot be decoded.
        finding: The result of the check.
    """

    payload: bytes | None
    finding: Finding = VERIFIED


class RecordTransform:
    """Changes the bytes of records on their way to a backend and back. Subclass it and define `encode` and `decode`.

    Methods are synchronous and do nothing but compute. One transform serves all runs of a harness at once: what it
    needs to know of a record is its place, so it keeps no state of its own between two calls.

    Attributes:
        name: What its records are marked with: letters, digits and dashes, at most 64. It stays the same forever.
        strict: Whether everything that is not verified is refused; otherwise it is read, and said.
    """

    name: str = ""
    strict: bool = True

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        """The bytes to store for a record; an exception fails the step, and nothing is written."""
        raise NotImplementedError(f"{type(self).__name__} cannot write")

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        """The bytes that `encode` received, and whether it received them for this place."""
        raise NotImplementedError(f"{type(self).__name__} cannot read")

    def sign_end(self, end: JournalEnd) -> bytes | None:
        """A signature to store with the end of a journal; `None` for none."""
        return None

    def check_end(self, end: JournalEnd, signature: bytes | None) -> Finding:
        """Whether a journal ends where it was left. Called for journals of other writers, too.

        Args:
            end: Where it ends, as it is stored.
            signature: What `sign_end` returned for it; `None` when nothing is stored.
        """
        return VERIFIED


@frozen
class RecordCheck:
    """The check of a transform on one record, or on the end of the journal.

    Attributes:
        transform: Its name.
        position: The record's number, from 1; of the end, how many records there are.
        kind: The record's class; `None` for the end of the journal.
        path: The step's frames.
        verdict: How it stands.
        reason: Why it is not verified.
        by: The signer, if certain.
    """

    transform: str
    position: int
    kind: str | None
    path: tuple[str, ...]
    verdict: Verdict
    reason: str | None = None
    by: str | None = None

    def __str__(self) -> str:
        what = "the end of the journal" if self.kind is None else f"record {self.position}, {with_article(self.kind)}"
        at = f" at {'/'.join(self.path)}" if self.path else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{what}{at} is {self.verdict}, says {self.transform}{why}"


def refused(run_id: str, check: RecordCheck) -> RecordRefused:
    """The error for a check that is not accepted."""
    return RecordRefused(
        f"run {run_id}: {check}",
        run_id=run_id,
        position=check.position,
        transform=check.transform,
        verdict=check.verdict,
        reason=check.reason,
        path=check.path,
    )


@frozen(eq=False)
class CheckedRecord(Record):
    """A record that has come through transforms; it is equal to a record that holds the same.

    Attributes:
        checks: What each of them says of it.
    """

    checks: tuple[RecordCheck, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return _held(self) == _held(other)

    def __hash__(self) -> int:
        return hash(_held(self))


def _held(record: Record) -> tuple[object, ...]:
    return record.kind, record.path, record.payload, record.value


@frozen
class Anchor:
    """A position and digest of a journal, stored elsewhere to detect that the journal was set back to before it.

    Attributes:
        position: How many records the journal held.
        digest: SHA-256 of the last one of them as it is stored, in hexadecimal digits.
    """

    position: int
    digest: str

    def __str__(self) -> str:
        return f"{self.position}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """The anchor that `str` made this text of.

        Raises:
            ValueError: None did.
        """
        position, colon, digest = text.partition(":")
        if not colon or not position.isascii() or not position.isdigit() or len(bytes.fromhex(digest)) != 32:
            raise ValueError("an anchor is POSITION:DIGEST, the digest of 64 hexadecimal digits")
        return cls(int(position), digest.lower())


@frozen
class VerificationReport:
    """The report of the transforms of a harness on a run.

    Attributes:
        run_id: The run.
        checks: What each transform says of each record, in the order of the journal, and then of its end.
        anchor: Where the journal ends; `None` when it could not be read so far.
    """

    run_id: str
    checks: Sequence[RecordCheck]
    anchor: Anchor | None

    @property
    def ok(self) -> bool:
        """Whether there is something to verify, and all of it is verified."""
        return bool(self.checks) and not self.problems

    @property
    def problems(self) -> Sequence[RecordCheck]:
        """The checks that are not verified, in the order of the journal."""
        return [check for check in self.checks if check.verdict != "verified"]
