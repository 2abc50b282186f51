"""Record transforms: a backend whose records go through them keeps the contract, and what was changed is found."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import Context, Harness, SessionKey, step
from noetic_py.checkpoints import (
    Anchor,
    CheckedRecord,
    CheckpointBackend,
    DecodedPayload,
    Finding,
    InMemoryBackend,
    JournalEnd,
    Record,
    RecordCheck,
    RecordPlace,
    RecordTransform,
    SqliteBackend,
)
from noetic_py.checkpoints.checks import MAX_STATUS, MAX_SUMMARY
from noetic_py.checkpoints.signed import SignedBackend
from noetic_py.errors import (
    CheckpointFailed,
    ConfigError,
    InvalidId,
    LimitExceeded,
    PluginError,
    RecordRefused,
    TransformMissing,
)
from noetic_py.journal.fields import plain_summary
from noetic_py.journal.records import stored_name
from noetic_py.journal.signing import StoredEnd, TransformChain, digest_of, origins_at
from noetic_py.plugins import TransformRegistry, hookimpl, load_plugins
from noetic_py.testing import FaultyBackend, ReferenceContract, VirtualRuntime, assert_resumable_everywhere
from noetic_py.testing._conformance.base import equal
from noetic_py.testing.conformance import BackendContract
from noetic_py.testing.faults import When

pytestmark = pytest.mark.anyio


def told(place: RecordPlace) -> bytes:
    return "|".join([place.run_id, str(place.position), place.kind, *place.path, place.previous.hex()]).encode()


class Sum(RecordTransform):
    """A checksum over the place and the bytes, which anybody could make: what a signature is, without keys."""

    def __init__(self, name: str = "sum", *, strict: bool = True) -> None:
        self.name, self.strict = name, strict

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return hashlib.sha256(told(place) + payload).digest() + payload

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        right = self.encode(place, payload[32:]) == payload
        return DecodedPayload(
            payload[32:], Finding("verified", by="me") if right else Finding("forged", "the sum is wrong")
        )

    def sign_end(self, end: JournalEnd) -> bytes | None:
        return hashlib.sha256(repr(end).encode()).digest()

    def check_end(self, end: JournalEnd, signature: bytes | None) -> Finding:
        if signature is None:
            return Finding("unverified", "nothing says where the journal ends")
        return Finding("verified") if signature == self.sign_end(end) else Finding("forged", "the end's sum is wrong")


class Veil(RecordTransform):
    """Hides bytes, and needs the place to show them again."""

    name = "veil"

    def _turned(self, place: RecordPlace, payload: bytes) -> bytes:
        key = hashlib.sha256(told(place)).digest()
        mask = (key * (len(payload) // 32 + 1))[: len(payload)]
        return (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(len(payload))

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return self._turned(place, payload)

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        return DecodedPayload(self._turned(place, payload))


class TestSignedBackend(BackendContract):
    """Whatever is sealed: the backend that is seen keeps the contract."""

    def make(self, folder: Path) -> CheckpointBackend:
        self.runtime = VirtualRuntime()
        return SignedBackend(InMemoryBackend(runtime=self.runtime), [Sum(), Veil()])

    async def lapse(self, backend: CheckpointBackend) -> None:
        await self.runtime.advance(3600.0)

    async def test_a_summary_or_status_that_is_too_large_is_refused(self, backend: CheckpointBackend) -> None:
        # What is kept beside a summary takes part of its place.
        summary, status = bytes(MAX_SUMMARY - 500), "s" * MAX_STATUS
        await backend.append("r", expected_position=0, fence=0, records=[], summary=summary, status=status)
        with pytest.raises(LimitExceeded):
            await backend.append("r", expected_position=0, fence=0, records=[], summary=bytes(MAX_SUMMARY))
        with pytest.raises(InvalidId):
            await backend.append("r", expected_position=0, fence=0, records=[], status="s" * (MAX_STATUS + 1))
        entry = await backend.entry("r")
        assert entry is not None
        equal((entry.summary, entry.status), (summary, status))


class TestSealedReference(ReferenceContract):
    """And does with any row of operations what the one that is not sealed does."""

    examples = 50

    def make(self, folder: Path) -> CheckpointBackend:
        return SignedBackend(InMemoryBackend(runtime=self.runtime), [Sum(), Veil()])

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Its clock is the one that was moved."""


# -- in a harness


@step
async def one(text: str, ctx: Context) -> str:
    return text + "1"


@step
async def two(text: str, ctx: Context) -> str:
    return text + "2"


flow = one >> two


def made(backend: CheckpointBackend, *transforms: RecordTransform) -> Harness[Any]:
    return Harness(checkpoints=backend, plugins=(), record_transforms=transforms)


def made_at(place: str) -> Harness[Any]:
    return Harness(checkpoints=place, plugins=(), record_transforms=[Sum()])


async def stored(backend: CheckpointBackend, run_id: str = "r") -> list[Record]:
    return list(await backend.read(run_id))


class Forger(InMemoryBackend):
    """Lets a test do what somebody does who can write the database."""

    def swap(self, run_id: str, records: list[Record], **parts: Any) -> None:
        kept = self._store.runs[run_id]
        kept.records[:] = records
        if kept.ends[-1] != len(records):
            kept.ends[:] = [len(records)]
        for name, value in parts.items():
            setattr(kept, name, value)


async def test_what_the_backend_stores_is_sealed_and_what_is_read_is_not() -> None:
    backend = InMemoryBackend()
    harness = made(backend, Sum(), Veil())
    result = await harness.run(flow, "go", run_id="r")
    assert result.value == "go12"
    raw = await stored(backend)
    assert all(record.payload[:6] == b"\xf5\x04veil" for record in raw)
    assert not any(b"go1" in record.payload for record in raw)
    journal = await harness.runs.journal("r")
    assert [stored_name(record) for record in journal] == [record.kind for record in raw]
    records = await stored(SignedBackend(backend, [Sum(), Veil()]))
    assert all(isinstance(record, CheckedRecord) for record in records)
    assert [
        [check.transform for check in record.checks] for record in records if isinstance(record, CheckedRecord)
    ] == [["veil", "sum"]] * len(raw)
    assert (await harness.runs.get("r")).flow == "flow" or (await harness.runs.get("r")).flow
    again = await made(backend, Sum(), Veil()).resume("r", flow)
    assert again.value == "go12"


async def test_without_transforms_the_backend_is_the_one_that_was_given() -> None:
    backend = InMemoryBackend()
    harness = made(backend)
    await harness.run(flow, "go", run_id="r")
    assert all(record.payload[:1] in b"{[" for record in await stored(backend))
    with pytest.raises(ConfigError) as caught:
        await harness.runs.verify("r")
    assert caught.value.code == "no-transforms"


async def test_a_harness_without_the_transform_says_which_one_it_needs_and_changes_nothing() -> None:
    backend = InMemoryBackend()
    await made(backend, Sum()).run(flow, "go", run_id="r")
    before = await stored(backend)
    plain = made(backend)
    for work in (plain.runs.journal("r"), plain.resume("r", flow), plain.fork("r"), plain.plan_resume("r", flow)):
        with pytest.raises(TransformMissing, match="'sum'") as caught:
            await work
        assert caught.value.transform == "sum"
    assert [info.run_id for info in await plain.runs.list()] == ["r"]
    assert (await plain.runs.get("r")).status == "completed"
    assert await stored(backend) == before
    assert (await made(backend, Sum()).runs.verify("r")).ok


async def test_one_of_two_transforms_is_not_enough() -> None:
    backend = InMemoryBackend()
    await made(backend, Sum(), Veil()).run(flow, "go", run_id="r")
    for transform, name in ((Sum(), "veil"), (Veil(), "sum")):
        with pytest.raises(TransformMissing) as caught:
            await made(backend, transform).runs.journal("r")
        assert caught.value.transform == name


async def test_transforms_may_be_given_in_another_order_to_read() -> None:
    backend = InMemoryBackend()
    await made(backend, Sum(), Veil()).run(flow, "go", run_id="r")
    assert (await made(backend, Veil(), Sum()).resume("r", flow)).value == "go12"


async def test_what_was_written_without_it_is_refused_or_said() -> None:
    backend = InMemoryBackend()
    await made(backend).run(flow, "go", run_id="r")
    with pytest.raises(RecordRefused) as caught:
        await made(backend, Sum()).runs.journal("r")
    assert (caught.value.transform, caught.value.run_id) == ("sum", "r")
    lenient = made(backend, Sum(strict=False))
    assert (await lenient.resume("r", flow)).value == "go12"
    report = await lenient.runs.verify("r")
    assert {check.verdict for check in report.problems} == {"unverified"}
    assert not report.ok


async def test_a_lenient_harness_goes_on_with_an_unsealed_run_and_seals_what_it_adds() -> None:
    backend = FaultyBackend(InMemoryBackend(), dies_at=2)
    with backend.outlived():
        await made(backend).run(flow, "go", run_id="r")
    backend.revive()
    lenient = made(backend, Sum(strict=False))
    assert (await lenient.resume("r", flow)).value == "go12"
    verdicts = [check.verdict for check in (await lenient.runs.verify("r")).checks]
    assert verdicts[0] == "unverified"
    assert verdicts[-1] == "verified"
    assert verdicts == sorted(verdicts)


@pytest.mark.parametrize("kind", [InMemoryBackend, SqliteBackend])
async def test_every_cut_is_found(kind: type[Any], tmp_path: Path) -> None:
    source = InMemoryBackend()
    await made(source, Sum()).run(flow, "go", run_id="r")
    raw, entry = await stored(source), await source.entry("r")
    assert entry is not None
    for length in range(len(raw)):
        backend = InMemoryBackend() if kind is InMemoryBackend else SqliteBackend(tmp_path / f"{length}.db")
        async with backend:
            await backend.append(
                "r", expected_position=0, fence=0, records=raw[:length], summary=entry.summary, status=entry.status
            )
            harness = made(backend, Sum())
            for work in (
                harness.runs.journal("r"),
                harness.resume("r", flow),
                harness.runs.get("r"),
                harness.fork("r"),
            ):
                with pytest.raises(RecordRefused) as caught:
                    await work
                assert "the end of the journal" in caught.value.message
            assert [check.verdict for check in (await harness.runs.verify("r")).problems][:1] == ["forged"]


async def test_what_was_changed_is_refused_at_its_place() -> None:
    backend = Forger()
    await made(backend, Sum()).run(flow, "go", run_id="r")
    raw = await stored(backend)
    for index, record in enumerate(raw):
        payload = bytearray(record.payload)
        payload[-1] ^= 1
        backend.swap("r", [*raw[:index], evolve(record, payload=bytes(payload)), *raw[index + 1 :]])
        with pytest.raises(RecordRefused) as caught:
            await made(backend, Sum()).resume("r", flow)
        assert caught.value.position == index + 1
        report = await made(backend, Sum()).runs.verify("r")
        # The record itself, and the one that says what it follows, or the end.
        assert [check.position for check in report.problems] == [index + 1, min(index + 2, len(raw))]


async def test_swapped_doubled_moved_and_exchanged_records_are_refused() -> None:
    backend = Forger()
    harness = made(backend, Sum())
    for run_id in ("r", "other"):
        await harness.run(flow, "go", run_id=run_id)
    raw, other = await stored(backend), await stored(backend, "other")
    swapped = [*raw[:1], raw[2], raw[1], *raw[3:]]
    for records in (swapped, [*raw, raw[-1]], [raw[0], *raw], raw[1:], [*raw[:-1], other[-1]], other):
        backend.swap("r", records)
        with pytest.raises(RecordRefused):
            await made(backend, Sum()).runs.journal("r")
        assert not (await made(backend, Sum()).runs.verify("r")).ok


@pytest.mark.parametrize("part", ["summary", "status"])
async def test_what_lists_show_is_sealed_too(part: str) -> None:
    backend = Forger()
    await made(backend, Sum()).run(flow, "go", run_id="r", user_id="ada")
    entry = await backend.entry("r")
    assert entry is not None
    changed = entry.summary.replace(b"ada", b"bob") if part == "summary" else "failed"
    backend.swap("r", await stored(backend), **{part: changed})
    with pytest.raises(RecordRefused):
        await made(backend, Sum()).runs.get("r")
    assert len(await made(backend, Sum()).runs.list()) == 1


async def test_a_seal_of_another_run_does_not_fit() -> None:
    backend = Forger()
    harness = made(backend, Sum())
    for run_id in ("r", "s"):
        await harness.run(flow, "go", run_id=run_id)
    entry = await backend.entry("s")
    assert entry is not None
    backend.swap("r", await stored(backend, "s"), summary=entry.summary)
    with pytest.raises(RecordRefused):
        await made(backend, Sum()).runs.journal("r")


async def test_a_fork_shares_what_was_sealed_and_is_sealed_itself() -> None:
    backend = Forger()
    harness = made(backend, Sum(), Veil())
    result = await harness.run(flow, "go", run_id="r")
    assert result.checkpoint is not None
    whole = len(await stored(backend))
    at = whole - 1
    first = await harness.fork("r", at=at)
    assert (await made(backend, Sum(), Veil()).resume(first, flow)).value == "go12"
    second = await made(backend, Sum(), Veil()).fork(first)
    third = await harness.fork(second, at=at)
    for run_id in (first, second, third):
        assert (await made(backend, Sum(), Veil()).runs.verify(run_id)).ok
        assert (await made(backend, Sum(), Veil()).resume(run_id, flow)).value == "go12"
    await harness.runs.delete("r")
    assert (await made(backend, Sum(), Veil()).runs.verify(second)).ok
    # A fork that says it is of another run.
    entry = await backend.entry(second)
    assert entry is not None
    backend.swap(second, await stored(backend, second), summary=entry.summary.replace(b'["r",', b'["q",'))
    with pytest.raises(RecordRefused):
        await made(backend, Sum(), Veil()).runs.journal(second)


async def test_a_fork_with_another_state_is_sealed() -> None:
    backend = InMemoryBackend()
    harness = made(backend, Sum())
    await harness.run(flow, "go", run_id="r")
    from noetic_py import StateBag

    new = await harness.fork("r", at=1, state=StateBag({"a": 1}))
    assert (await made(backend, Sum()).runs.verify(new)).ok
    result = await made(backend, Sum()).resume(new, flow)
    assert result.value == "go12"


async def test_a_watched_run_is_read_page_by_page_while_it_grows() -> None:
    backend = SignedBackend(InMemoryBackend(), [Sum()])
    reader = SignedBackend(backend.inner, [Sum()])
    seen: list[Record] = []
    for number in range(30):
        record = Record("K", ("p",), b"%d" % number)
        await backend.append("r", expected_position=number, fence=0, records=[record], summary=b"%d" % number)
        seen += await reader.read("r", after=len(seen), limit=7)
        assert not await reader.read("r", after=len(seen))
    assert [record.payload for record in seen] == [b"%d" % number for number in range(30)]


class Counting(InMemoryBackend):
    """Counts the records that are read."""

    count = 0

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        page = await super().read(run_id, after=after, limit=limit)
        self.count += len(page)
        return page


async def test_what_was_written_or_read_here_is_not_read_again_to_be_gone_on_with() -> None:
    inner = Counting()
    sealed = SignedBackend(inner, [Sum()])
    for number in range(5):
        lease = await sealed.acquire("r", ttl=60)
        await sealed.append("r", expected_position=number, fence=lease.fence, records=[Record("K", (), b"{}")])
        await sealed.release(lease)
        assert not await sealed.read("r", after=number + 1)
    assert inner.count == 0
    other = SignedBackend(inner, [Sum()])
    assert len(await other.read("r")) == 5
    lease = await other.acquire("r", ttl=60)
    await other.append("r", expected_position=5, fence=lease.fence, records=[Record("K", (), b"{}")], summary=b"mine")
    await other.release(lease)
    assert inner.count == 5
    # The first one goes on with the summary that the other has left, whatever it knew of it.
    lease = await sealed.acquire("r", ttl=60)
    await sealed.append("r", expected_position=6, fence=lease.fence, records=[Record("K", (), b"{}")])
    entry = await sealed.entry("r")
    assert entry is not None
    assert (entry.summary, (await sealed.verify("r")).ok) == (b"mine", True)


async def test_a_summary_that_another_owner_has_changed_alone_stays() -> None:
    inner = InMemoryBackend()
    one_of_them, other = SignedBackend(inner, [Sum()]), SignedBackend(inner, [Sum()])
    lease = await one_of_them.acquire("r", ttl=60)
    await one_of_them.append(
        "r", expected_position=0, fence=lease.fence, records=[Record("K", (), b"{}")], summary=b"old"
    )
    await one_of_them.release(lease)
    lease = await other.acquire("r", ttl=60)
    await other.append("r", expected_position=1, fence=lease.fence, records=[], summary=b"new", status="done")
    await other.release(lease)
    lease = await one_of_them.acquire("r", ttl=60)
    await one_of_them.append("r", expected_position=1, fence=lease.fence, records=[Record("K", (), b"{}")])
    entry = await one_of_them.entry("r")
    assert entry is not None
    assert (entry.summary, entry.status) == (b"new", "done")


async def test_a_run_that_was_made_anew_is_not_taken_for_a_forged_one() -> None:
    inner = InMemoryBackend()
    reader = SignedBackend(inner, [Sum()])
    for text in ("a", "b"):
        writer = SignedBackend(inner, [Sum()])
        await writer.append("r", expected_position=0, fence=0, records=[Record("K", (), text.encode())] * 2)
        assert [record.payload for record in await reader.read("r", limit=1)] == [text.encode()]
        await writer.delete("r")
    await SignedBackend(inner, [Sum()]).append("r", expected_position=0, fence=0, records=[Record("K", (), b"c")] * 2)
    assert [record.payload for record in await reader.read("r", after=1)] == [b"c"]


async def test_an_anchor_finds_a_journal_that_was_set_back_whole() -> None:
    backend = Forger()
    harness = made(backend, Sum())
    await harness.run(one, "go", run_id="r")
    early, entry = await stored(backend), await backend.entry("r")
    assert entry is not None
    anchors = [(await harness.runs.verify("r")).anchor]
    late = await harness.fork("r")
    await made(backend, Sum()).resume(late, one)
    sealed = SignedBackend(backend, [Sum()])
    await sealed.append(
        "r", expected_position=len(early), fence=entry_fence(await backend.head("r")), records=[Record("K", (), b"{}")]
    )
    anchors.append((await made(backend, Sum()).runs.verify("r")).anchor)
    for anchor in anchors:
        assert anchor is not None
        assert Anchor.parse(str(anchor)) == anchor
        assert (await made(backend, Sum()).runs.verify("r", anchor=anchor)).ok
    backend.swap("r", early, summary=entry.summary)
    assert (await made(backend, Sum()).runs.verify("r")).ok
    assert (await made(backend, Sum()).runs.verify("r", anchor=anchors[0])).ok
    report = await made(backend, Sum()).runs.verify("r", anchor=anchors[1])
    assert [(check.transform, check.verdict) for check in report.problems] == [("anchor", "forged")]


def entry_fence(head: Any) -> int:
    return int(head.fence)


@pytest.mark.parametrize("text", ["", "5", "x:00", "5:zz", "5:00", f"-1:{'0' * 64}"])
def test_a_text_that_is_no_anchor(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Anchor.parse(text)


async def test_forged_records_can_be_read_and_not_gone_on_with() -> None:
    backend = Forger()
    await made(backend, Sum()).run(flow, "go", run_id="r")
    raw = await stored(backend)
    forged = [evolve(record, payload=record.payload.replace(b'"o":"go12"', b'"o":"go13"')) for record in raw]
    assert forged != raw
    backend.swap("r", forged)
    lenient = made(backend, Sum(strict=False))
    assert len(await lenient.runs.journal("r")) == len(raw)
    report = await lenient.runs.verify("r")
    assert {check.verdict for check in report.problems} == {"forged"}
    with pytest.raises(RecordRefused):
        await lenient.resume("r", flow)
    with pytest.raises(RecordRefused):
        await lenient.fork("r")
    # What stands before the place that is wrong can be saved.
    saved = await lenient.fork("r", at=1)
    assert (await made(backend, Sum()).resume(saved, flow)).value == "go12"


class Broken(Sum):
    """Fails at one record."""

    def __init__(self, at: int, *, end: bool = False) -> None:
        super().__init__("broken")
        self.at, self.end = at, end

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        if place.position == self.at and not self.end:
            raise RuntimeError("no ink")
        return super().encode(place, payload)

    def sign_end(self, end: JournalEnd) -> bytes | None:
        if end.position >= self.at and self.end:
            raise RuntimeError("no ink")
        return super().sign_end(end)


@pytest.mark.parametrize("end", [False, True])
async def test_a_transform_that_fails_fails_the_step_and_nothing_is_written(end: bool) -> None:
    whole = InMemoryBackend()
    await made(whole, Broken(99)).run(flow, "go", run_id="r")
    for at in range(1, len(await stored(whole)) + 1):
        backend = InMemoryBackend()
        with pytest.raises(CheckpointFailed, match=r"'broken' failed on .* run r.*RuntimeError: no ink"):
            await made(backend, Broken(at, end=end)).run(flow, "go", run_id="r")
        left = await backend.entry("r")
        assert left is None or left.position < at
        if left is not None and left.position:
            assert (await made(backend, Broken(99)).runs.verify("r")).ok
            assert (await made(backend, Broken(99)).resume("r", flow)).value == "go12"


class Careless(RecordTransform):
    """Raises at everything that it reads."""

    name = "careless"
    strict = False

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return payload

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        raise LookupError("no glasses")

    def check_end(self, end: JournalEnd, signature: bytes | None) -> Finding:
        raise LookupError("no glasses")


async def test_a_transform_that_fails_to_read_is_named() -> None:
    backend = InMemoryBackend()
    await made(backend, Careless()).run(one, "go", run_id="r")
    harness = made(backend, Careless())
    with pytest.raises(
        RecordRefused, match=r"record 1, a RunStarted.*says careless: it failed: LookupError: no glasses"
    ):
        await harness.runs.journal("r")
    assert {check.reason for check in (await harness.runs.verify("r")).problems} == {
        "it failed: LookupError: no glasses"
    }


async def test_a_sealed_run_that_is_killed_anywhere_goes_on() -> None:
    kills = await assert_resumable_everywhere(
        lambda: one >> two, "go", make=lambda backend: made(backend, Sum(), Veil())
    )
    assert kills >= 4


async def test_a_crash_is_never_taken_for_a_cut() -> None:
    whole = FaultyBackend(InMemoryBackend())
    await made(whole, Sum()).run(flow, "go", run_id="r")
    moments: tuple[When, ...] = ("before", "after")
    for at in range(1, whole.appends + 1):
        for when in moments:
            backend = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
            with backend.outlived():
                await made(backend, Sum()).run(flow, "go", run_id="r")
            backend.revive()
            if (await backend.head("r") or JournalEnd("r", 0, b"", None, b"")).position:
                assert (await made(backend, Sum()).runs.verify("r")).ok


async def test_pruning_and_deleting_leave_the_others_right() -> None:
    backend = InMemoryBackend()
    harness = made(backend, Sum())
    for run_id in ("a", "b", "c"):
        await harness.run(flow, "go", run_id=run_id)
    await harness.runs.delete("a")
    assert await harness.runs.prune(keep=1) == 1
    assert (await harness.runs.verify("c")).ok
    assert "sum" in (await harness.runs.describe())["record transforms"]


# -- which transforms there are


NO_NAMES: list[Any] = ["", "a b", "-", "x" * 65, "\u00e9", b"x"]


@pytest.mark.parametrize(
    ("transforms", "why"),
    [
        ([object()], "is not a valid record transform"),
        *(([Sum(name)], "is not a valid name for a record transform") for name in NO_NAMES),
        ([Sum(), Sum()], "two record transforms are named 'sum'"),
    ],
)
def test_what_is_no_row_of_transforms_is_refused(transforms: list[Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        made(InMemoryBackend(), *transforms)
    assert caught.value.code == "record-transforms"
    made(InMemoryBackend(), *(Sum(name) for name in ("x", "a-1", "x" * 64)))


class Plugin:
    def __init__(self, *transforms: RecordTransform) -> None:
        self.transforms = transforms

    @hookimpl
    def register_record_transforms(self, registry: TransformRegistry) -> None:
        for transform in self.transforms:
            registry.record_transform(transform)


async def test_plugins_register_transforms_and_the_harness_own_come_first() -> None:
    backend = InMemoryBackend()
    harness = Harness(checkpoints=backend, plugins=[Plugin(Veil(), Sum())], record_transforms=[Sum("first")])
    await harness.run(one, "go", run_id="r")
    (check, *_) = (await harness.runs.verify("r")).checks
    assert check.transform == "veil"
    assert [c.transform for c in (await harness.runs.verify("r")).checks[:3]] == ["veil", "sum", "first"]


async def test_the_harness_own_transform_takes_the_place_of_a_plugins() -> None:
    backend = InMemoryBackend()
    harness = Harness(checkpoints=backend, plugins=[Plugin(Broken(1))], record_transforms=[Sum("broken")])
    assert (await harness.run(one, "go", run_id="r")).value == "go1"


def test_a_transform_of_two_plugins_and_what_is_none_are_refused() -> None:
    with pytest.raises(PluginError, match="both provide a record transform 'sum'"):
        load_plugins([Plugin(Sum()), Plugin(Sum())])
    not_one: Any = object()
    with pytest.raises(PluginError, match="is not a valid record transform"):
        load_plugins([Plugin(not_one)])


async def test_a_sealed_backend_is_not_sealed_twice() -> None:
    inner = InMemoryBackend()
    plugins = load_plugins([Plugin(Sum())])
    once = plugins.transforms.around(inner)
    assert plugins.transforms.around(once) is once
    other = plugins.transforms.around(once, [Veil()])
    assert isinstance(other, SignedBackend)
    assert other.inner is inner


def test_a_summary_that_no_transform_changed_stays_as_it_is() -> None:
    assert plain_summary(b"{}") == b"{}"
    assert plain_summary(b"") == b""


@pytest.mark.parametrize("summary", [b"\xf5", b"\xf5\x03sum", b"\xf5\x03sum\0\0\0\x02{}", b"\xf5\x03sum\0\0\0\x02{}[]"])
async def test_a_damaged_summary_is_told_as_one(summary: bytes) -> None:
    backend = Forger()
    await made(backend, Sum()).run(one, "go", run_id="r")
    backend.swap("r", await stored(backend), summary=summary)
    with pytest.raises(RecordRefused, match="damaged"):
        await made(backend, Sum()).runs.journal("r")


# ------------------------------------------------------------------------------------------------- lists and stores


async def test_a_run_that_is_refused_hides_no_other() -> None:
    backend = Forger()
    for run_id in ("a", "b", "c"):
        await made(backend, Sum()).run(flow, "go", run_id=run_id)
    raw = await stored(backend, "b")
    entry = await backend.entry("b")
    assert entry is not None
    backend.swap("b", raw[:-1], status="aborted")
    strict = made(backend, Sum())
    found = {info.run_id: info for info in await strict.runs.list()}
    assert {run_id: info.problem is None for run_id, info in found.items()} == {"a": True, "b": False, "c": True}
    assert "the end of the journal is forged" in str(found["b"].problem)
    assert found["b"].flow == ""
    assert [info.run_id for info in await strict.runs.list(session=SessionKey("ada", "s"))] == []
    assert (await strict.runs.verify("a")).ok
    assert not (await strict.runs.verify("b")).ok
    with pytest.raises(RecordRefused):
        await strict.runs.get("b")
    # Without the transforms nobody can tell.
    assert [info.problem for info in await made(backend).runs.list()] == [None, None, None]


async def test_a_run_is_bound_to_its_store() -> None:
    backend, other = InMemoryBackend(), InMemoryBackend()
    await made(backend, Sum()).run(flow, "go", run_id="r")
    await made(other, Sum()).run(flow, "go", run_id="own")
    entry = await backend.entry("r")
    assert entry is not None
    for run_id in ("r", "another"):
        await other.append(
            run_id,
            expected_position=0,
            fence=0,
            records=await stored(backend),
            summary=entry.summary,
            status=entry.status,
        )
        with pytest.raises(RecordRefused):
            await made(other, Sum()).resume(run_id, flow)
        assert [str(check.reason) for check in (await made(other, Sum()).runs.verify(run_id)).problems][-1:]
    with pytest.raises(RecordRefused, match="written in another store, and copied here"):
        await made(other, Sum()).runs.get("r")
    assert [info.run_id for info in await made(other, Sum()).runs.list() if info.problem is None] == ["own"]
    assert (await made(other, Sum()).runs.verify("own")).ok
    # It is no value of anybody's, and no process makes another one.
    assert (await made(backend, Sum()).runs.stats()).values == 0
    fresh = InMemoryBackend()
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(partial(made(fresh, Sum()).run, flow, "go", run_id=f"r{number}"))
    assert all([(await made(fresh, Sum()).runs.verify(f"r{number}")).ok for number in range(5)])


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_copy_of_the_whole_store_verifies(kind: str, tmp_path: Path) -> None:
    place, copy = tmp_path / "runs", tmp_path / "copy"
    async with made_at(f"{kind}:{place}") as harness:
        await harness.run(flow, "go", run_id="r")
    (shutil.copytree if place.is_dir() else shutil.copy)(place, copy)
    async with made_at(f"{kind}:{copy}") as harness:
        assert (await harness.runs.verify("r")).ok
        assert (await harness.resume("r", flow)).value == "go12"
        await harness.run(flow, "go", run_id="later")
        assert (await harness.runs.verify("later")).ok


# ------------------------------------------------------------------------------------- one record, one end of a journal


class Blind(RecordTransform):
    """Gives nothing back, and says nothing of ends."""

    name = "blind"

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return payload

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        return DecodedPayload(None, Finding("unverified", "it is dark"))


DECODED: list[tuple[list[RecordTransform], list[RecordTransform], bool, str | None, list[tuple[str, str]]]] = [
    ([Sum(), Veil()], [Sum(), Veil()], True, None, [("veil", "verified"), ("sum", "verified")]),
    ([Sum(), Veil()], [Veil(), Sum()], True, None, [("veil", "verified"), ("sum", "verified")]),
    ([Sum()], [Sum(), Veil()], True, None, [("sum", "verified"), ("veil", "unverified")]),
    ([], [Sum(), Veil()], True, None, [("sum", "unverified"), ("veil", "unverified")]),
    ([Sum(), Veil()], [Veil()], False, "sum", [("veil", "verified"), ("sum", "unverified")]),
    ([Sum(), Veil()], [Sum()], False, "veil", [("veil", "unverified"), ("sum", "unverified")]),
    ([Sum(), Blind()], [Sum(), Blind()], False, None, [("blind", "unverified")]),
    ([Sum(), Careless()], [Sum(), Careless()], False, None, [("careless", "unverified")]),
]
REASONS = {
    "it was written without it",
    "this record transform is not installed",
    "it is dark",
    "it failed: LookupError: no glasses",
}


@pytest.mark.parametrize(("written", "read", "whole", "missing", "checks"), DECODED)
def test_a_record_is_decoded_with_the_transforms_that_are_here(
    written: list[RecordTransform],
    read: list[RecordTransform],
    whole: bool,
    missing: str | None,
    checks: list[tuple[str, str]],
) -> None:
    record = Record("K", ("p",), b"{}")
    [encoded], digest = TransformChain(written).encode("r", 4, bytes(32), [record])
    assert digest == digest_of(encoded)
    seen = StoredEnd(9, JournalEnd("r", 9, b"", None, b""), None)
    found = TransformChain(read).decode(seen, 5, bytes(32), encoded)
    assert [(check.transform, check.verdict) for check in found.checks] == checks
    assert {(check.position, check.kind, check.path) for check in found.checks} == {(5, "K", ("p",))}
    assert {check.reason for check in found.checks if check.verdict == "unverified"} <= REASONS
    assert (found.record, found.missing) == (record if whole else None, missing)
    if isinstance(found.record, CheckedRecord):
        assert found.record.checks == found.checks


@given(st.lists(st.integers(1, 9), unique=True, max_size=4).map(sorted), st.integers(0, 12))
def test_a_record_that_forks_share_was_written_in_one_run(ends: list[int], at: int) -> None:
    """A fork of a fork knows of each record that it shares where it was written, and nothing beyond that."""
    end = JournalEnd("r", 12, b"", None, b"", tuple((f"run-{last}", last) for last in ends))
    writers = [next((f"run-{last}" for last in ends if number <= last), "r") for number in range(1, 13)]
    origins = origins_at(end, at)
    assert [last for _, last in origins] == sorted({last for last in ends if last < at} | ({at} if at else set()))
    shared = [next((run for run, last in origins if number <= last), "fork") for number in range(1, 13)]
    assert shared == [*writers[:at], *["fork"] * (12 - at)]


async def ended(backend: InMemoryBackend, transforms: Sequence[RecordTransform]) -> tuple[StoredEnd, list[RecordCheck]]:
    entry = await backend.entry("r")
    assert entry is not None
    return TransformChain(transforms).check_end(entry)


async def test_another_last_record_is_told_by_each_transform_that_has_signed_the_end() -> None:
    backend = InMemoryBackend()
    await SignedBackend(backend, [Sum("first"), Blind(), Sum("second")]).append(
        "r", expected_position=0, fence=0, records=[Record("K", (), b"{}")]
    )
    [record] = await stored(backend)
    here = [Sum("first"), Blind(), Sum("third")]
    seen, _ = await ended(backend, here)
    assert seen.position == 1
    # The one has signed nothing, of the others one is not here and one was not there.
    [check] = TransformChain(here).check_last(seen, bytes(32))
    assert (check.transform, check.verdict, check.position) == ("first", "forged", 1)
    assert check.reason == "the last record is not the signed one"
    assert [*TransformChain(here).check_last(seen, digest_of(record))] == []
    # Without anything beside it there is nothing that could differ, and nothing is verified.
    plain = InMemoryBackend()
    await plain.append("r", expected_position=0, fence=0, records=[record])
    seen, checks = await ended(plain, here)
    assert [*TransformChain(here).check_last(seen, bytes(32))] == []
    assert [check.verdict for check in checks] == ["unverified", "verified", "unverified"]


async def test_a_run_that_is_only_held_is_not_checked() -> None:
    backend = InMemoryBackend()
    await backend.acquire("r", ttl=60)
    seen, checks = await ended(backend, [Sum()])
    assert (seen.position, seen.signatures, checks) == (0, None, [])


async def test_what_a_transform_says_of_an_end_stays_where_the_end_is_another_one_too() -> None:
    """A verdict that is not good is not replaced by another one."""
    backend = InMemoryBackend()
    await SignedBackend(backend, [Sum()]).append(
        "r", expected_position=0, fence=0, records=[Record("K", (), b"{}")], status="running"
    )
    entry = await backend.entry("r")
    assert entry is not None
    changes: list[tuple[dict[str, Any], str]] = [
        ({}, "the run was written in another store, and copied here"),
        ({"position": 2}, "the journal was left at 1 records, and has 2"),
        ({"status": "failed"}, "the run was left running, and is failed"),
    ]
    for change, reason in changes:
        _, [check] = TransformChain([Sum()]).check_end(evolve(entry, **change))
        assert (check.verdict, check.reason) == ("forged", reason)
        for transform in (Sum("other"), Careless()):
            _, [check] = TransformChain([transform]).check_end(evolve(entry, **change))
            assert check.verdict == "unverified"
            assert check.reason in ("nothing says where the journal ends", "it failed: LookupError: no glasses")
