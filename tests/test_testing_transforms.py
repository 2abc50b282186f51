"""The contract of record transforms: one that keeps it, and faults that it has to find."""

from __future__ import annotations

import hmac
import zlib
from typing import Any

import pytest

from noetic_py.checkpoints import DecodedPayload, RecordPlace, RecordTransform
from noetic_py.journal.transforms import Finding
from noetic_py.testing import TransformContract


class Squeeze(RecordTransform):
    name = "squeeze"

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return zlib.compress(payload)

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        return DecodedPayload(zlib.decompress(payload))


class Stamp(RecordTransform):
    """A signature with a shared key in front of the payload."""

    name = "stamp"

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return self._mark(place, payload) + payload

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        mark, inner = payload[:32], payload[32:]
        good = hmac.compare_digest(mark, self._mark(place, inner))
        return DecodedPayload(inner) if good else DecodedPayload(inner, Finding("forged", "the mark is another one"))

    def _mark(self, place: RecordPlace, payload: bytes) -> bytes:
        at = f"{place.run_id}\0{place.position}\0{place.kind}\0{place.path}".encode()
        return hmac.digest(b"key", at + place.previous + payload, "sha256")


class TestSqueeze(TransformContract):
    def make(self) -> RecordTransform:
        return Squeeze()


class TestStamp(TransformContract):
    detects_changes = True

    def make(self) -> RecordTransform:
        return Stamp()


class Lossy(Squeeze):
    """Drops what it takes for padding."""

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return zlib.compress(payload.rstrip(b"\0"))


class Remembering(Squeeze):
    """Keeps what it wrote in the process."""

    def __init__(self) -> None:
        self.kept: dict[RecordPlace, bytes] = {}

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        self.kept[place] = payload
        return b""

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        return DecodedPayload(self.kept[place])


class LastOnly(Squeeze):
    """Reads only the record that it wrote last."""

    last: Any = None

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        type(self).last = place
        return super().encode(place, payload)

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        return super().decode(place, payload) if place == self.last else DecodedPayload(b"")


class Renamed(Squeeze):
    """Has another name in each process."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.name = f"squeeze-{self.made}"


class Doubting(Squeeze):
    """Does not accept what it wrote itself."""

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        return DecodedPayload(zlib.decompress(payload), Finding("unverified", "who knows"))


class Unbound(Stamp):
    """Signs the payload and not its place."""

    def _mark(self, place: RecordPlace, payload: bytes) -> bytes:
        return hmac.digest(b"key", payload, "sha256")


@pytest.mark.parametrize(("faulty", "payload"), [(Lossy, b"\0"), (Remembering, b"text"), (Doubting, b"text")])
def test_the_contract_finds_what_is_not_read_back(faulty: type[RecordTransform], payload: bytes) -> None:
    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
        case_of(faulty).test_what_it_wrote_is_read_back_by_another_one(payload)


def test_the_contract_finds_a_transform_for_one_record_only() -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        case_of(LastOnly).test_records_of_many_runs_are_told_apart()


def test_the_contract_finds_a_name_that_changes() -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        case_of(Renamed).test_its_name_is_valid_and_stays_the_same()


@pytest.mark.anyio
async def test_the_contract_finds_a_signature_without_its_place() -> None:
    case = case_of(Unbound)
    case.detects_changes = True
    case.test_what_it_wrote_is_read_back_by_another_one(b"text")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await case.test_a_record_at_another_place_or_changed_is_refused()


def case_of(transform: type[RecordTransform]) -> TransformContract:
    class Case(TransformContract):
        def make(self) -> RecordTransform:
            return transform()

    return Case()
