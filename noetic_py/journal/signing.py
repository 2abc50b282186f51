"""The record transforms of a harness, applied as a chain to records and to the end of a journal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from noetic_py.errors import CheckpointFailed, ConfigError
from noetic_py.journal.fields import mark_transformed, split_transformed
from noetic_py.journal.run_summary import EndSignatures, signed_summary, summary_parts
from noetic_py.journal.stored import Record, RunEntry
from noetic_py.journal.transforms import (
    CheckedRecord,
    DecodedPayload,
    Finding,
    JournalEnd,
    RecordCheck,
    RecordPlace,
    RecordTransform,
    pack,
)
from noetic_py.redaction import with_article

NOTHING = bytes(32)
"""The digest before the first record."""
_WITHOUT = Finding("unverified", "it was written without it")
_LONGEST_NAME = 64
_INLINE = 1 << 62


def digest_of(record: Record) -> bytes:
    """SHA-256 of a record as it is stored: its kind, its path and its payload, each with its length before it."""
    return hashlib.sha256(pack((record,), threshold=_INLINE).body).digest()


def origins_at(end: JournalEnd, at: int) -> tuple[tuple[str, int], ...]:
    """In which runs the first records of a journal were written, each up to which of them; of a fork made there."""
    if not at:
        return ()
    before = [origin for origin in end.origins if origin[1] < at]
    return (*before, (_writer(end, at), at))


def _writer(end: JournalEnd, position: int) -> str:
    """The run in which a record of a journal was written."""
    return next((run for run, last in end.origins if position <= last), end.run_id)


@frozen(eq=False)
class StoredEnd:
    """The end of a run's journal, as its entry in the store describes it.

    Attributes:
        position: How many records its journal holds.
        end: The stored end; without one, what the entry shows.
        signatures: What transforms stored for that end; `None` without a stored end.
    """

    position: int
    end: JournalEnd
    signatures: EndSignatures | None


@frozen(eq=False)
class DecodedRecord:
    """A record after all transforms have decoded it.

    Attributes:
        record: The record; `None` when it cannot be decoded.
        checks: What each transform says of it.
        missing: The transform that is needed to decode it, and not installed.
    """

    record: CheckedRecord | None
    checks: tuple[RecordCheck, ...]
    missing: str | None = None


class TransformChain:
    """The transforms of a harness, in the order in which they are applied.

    Args:
        transforms: The transforms.

    Raises:
        ConfigError: One is not a RecordTransform, or two have the same name; code `"record-transforms"`.
    """

    def __init__(self, transforms: Sequence[RecordTransform]) -> None:
        # The identity of the store that is read and written, once it is known.
        self.store: str | None = None
        self.by_name: dict[str, RecordTransform] = {}
        for transform in transforms:
            if not isinstance(transform, RecordTransform):
                raise _unfit(
                    f"{transform!r} is not a valid record transform; expected a RecordTransform",
                    hint="a subclass of RecordTransform",
                )
            name = transform.name
            if not is_name(name):
                raise _unfit(
                    f"{name!r} is not a valid name for a record transform", hint="letters, digits and dashes, up to 64"
                )
            if name in self.by_name:
                raise _unfit(f"two record transforms are named {name!r}", hint="give one of them another name")
            self.by_name[name] = transform

    def encode(
        self, run_id: str, position: int, digest: bytes, records: Sequence[Record]
    ) -> tuple[list[Record], bytes]:
        """Records as they are to be stored, and the digest of the last one.

        Args:
            run_id: The run.
            position: How many records its journal holds.
            digest: Of the last one of them.
            records: What follows.

        Raises:
            CheckpointFailed: A transform failed; the message names it.
        """
        made: list[Record] = []
        for number, record in enumerate(records, position + 1):
            place = RecordPlace(run_id, number, record.kind, record.path, digest)
            payload = bytes(record.payload)
            for name, transform in self.by_name.items():
                try:
                    payload = mark_transformed(name, transform.encode(place, payload))
                except Exception as error:
                    what = f"record {number} of run {run_id}, {with_article(record.kind)}"
                    raise _failed(name, what, error, record.path) from error
            made.append(Record(record.kind, record.path, payload))
            digest = digest_of(made[-1])
        return made, digest

    def sign_end(self, end: JournalEnd) -> bytes:
        """The summary to store, with the signatures of the journal's end.

        Raises:
            CheckpointFailed: A transform failed; the message names it.
        """
        signatures: EndSignatures = {}
        for name, transform in self.by_name.items():
            try:
                signatures[name] = transform.sign_end(end)
            except Exception as error:
                raise _failed(name, f"the end of run {end.run_id}", error, ()) from error
        return signed_summary(end, signatures)

    def check_end(self, entry: RunEntry) -> tuple[StoredEnd, list[RecordCheck]]:
        """Read the stored end of a journal and have each transform check it."""
        bare = JournalEnd(entry.run_id, entry.position, NOTHING, entry.status, entry.summary)
        try:
            parts = summary_parts(entry.run_id, entry.summary)
        except ValueError as error:
            seen = StoredEnd(entry.position, bare, {})
            return seen, [self.about_end(name, entry.position, Finding("forged", str(error))) for name in self.by_name]
        if parts.end is None and not entry.position:
            # An owner holds the run, and has not written it.
            return StoredEnd(0, bare, None), []
        end = parts.end or bare
        checks = [
            self.about_end(name, entry.position, self._check_end(transform, end, parts.signatures.get(name), entry))
            for name, transform in self.by_name.items()
        ]
        return StoredEnd(entry.position, end, None if parts.end is None else parts.signatures), checks

    def _check_end(
        self, transform: RecordTransform, end: JournalEnd, signature: bytes | None, entry: RunEntry
    ) -> Finding:
        found = _check_end(transform, end, signature, entry)
        if found.verdict == "verified" and end.store not in (None, self.store):
            return evolve(found, verdict="forged", reason="the run was written in another store, and copied here")
        return found

    def about_end(self, name: str, position: int, finding: Finding) -> RecordCheck:
        """The check of a transform on the end of a journal."""
        return RecordCheck(name, position, None, (), finding.verdict, finding.reason, finding.by)

    def check_last(self, seen: StoredEnd, digest: bytes) -> Iterator[RecordCheck]:
        """Report a last record that is not the one for which the end was signed."""
        if seen.signatures is None or seen.end.digest == digest:
            return
        for name, signature in seen.signatures.items():
            if signature is not None and name in self.by_name:
                yield self.about_end(name, seen.position, Finding("forged", "the last record is not the signed one"))

    def decode(self, seen: StoredEnd, position: int, digest: bytes, stored: Record) -> DecodedRecord:
        """A stored record as it was written.

        Args:
            seen: The stored end of the run.
            position: The record's number.
            digest: Of the record before it.
            stored: The record.
        """
        place = RecordPlace(_writer(seen.end, position), position, stored.kind, stored.path, digest)
        checks: list[RecordCheck] = []
        payload: bytes | None = bytes(stored.payload)
        missing: str | None = None
        left = dict(self.by_name)
        while payload is not None and (found := split_transformed(payload)) is not None:
            name, inside = found
            transform = left.pop(name, None)
            if transform is None:
                missing, payload = name, None
                checks.append(_about(place, name, Finding("unverified", "this record transform is not installed")))
                break
            payload, finding = _decoded(transform, place, inside)
            checks.append(_about(place, name, finding))
        checks += [_about(place, name, _WITHOUT) for name in left if payload is not None or missing is not None]
        if payload is None:
            return DecodedRecord(None, tuple(checks), missing)
        return DecodedRecord(CheckedRecord(stored.kind, stored.path, payload, None, tuple(checks)), tuple(checks))


def is_name(name: object) -> bool:
    """Whether a text can name a record transform."""
    return isinstance(name, str) and len(name) <= _LONGEST_NAME and name.isascii() and name.replace("-", "").isalnum()


def _unfit(message: str, *, hint: str) -> ConfigError:
    return ConfigError(message, code="record-transforms", hint=hint)


def _failed(name: str, what: str, error: Exception, path: tuple[str, ...]) -> CheckpointFailed:
    return CheckpointFailed(
        f"record transform {name!r} failed on {what}: {type(error).__name__}: {getattr(error, 'message', error)}",
        path=path,
        hint="nothing was written; correct the transform, then resume the run",
    )


def _about(place: RecordPlace, name: str, finding: Finding) -> RecordCheck:
    return RecordCheck(name, place.position, place.kind, place.path, finding.verdict, finding.reason, finding.by)


def _decoded(transform: RecordTransform, place: RecordPlace, payload: bytes) -> tuple[bytes | None, Finding]:
    try:
        found: DecodedPayload = transform.decode(place, payload)
    except Exception as error:  # noqa: BLE001 # whatever foreign code raises at bytes that may be anything
        return None, Finding("unverified", f"it failed: {type(error).__name__}: {error}")
    return found.payload, found.finding


def _check_end(transform: RecordTransform, end: JournalEnd, signature: bytes | None, entry: RunEntry) -> Finding:
    try:
        found = transform.check_end(end, signature)
    except Exception as error:  # noqa: BLE001 # as above
        return Finding("unverified", f"it failed: {type(error).__name__}: {error}")
    if found.verdict != "verified":
        return found
    if end.position != entry.position:
        return evolve(
            found, verdict="forged", reason=f"the journal was left at {end.position} records, and has {entry.position}"
        )
    if end.status != entry.status:
        return evolve(found, verdict="forged", reason=f"the run was left {end.status}, and is {entry.status}")
    return found
