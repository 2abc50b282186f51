"""What is done to a signed run without the key is found."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from noetic_signing import Signer, Signing
from signed_runs import SIGNER, Kept, database, flow, harness, kept, signed_run

from noetic_py.checkpoints import InMemoryBackend, Record
from noetic_py.errors import RecordRefused, TransformMissing
from noetic_py.journal.signing import NOTHING, StoredEnd, TransformChain, digest_of
from noetic_py.journal.transforms import JournalEnd

pytestmark = pytest.mark.anyio

FULL = os.environ.get("NOETIC_EXAMPLES") == "full"
SEED = int(os.environ.get("NOETIC_SEED", "1"))
CHAIN = TransformChain([Signing(SIGNER)])
STORES = ["memory", "sqlite"]


async def refused(kept: Kept, records: Sequence[Record] | None = None, **parts: object) -> None:
    """A reader refuses it, one that goes on refuses it, and a report says that it is not right."""
    backend = InMemoryBackend()
    await kept.put(backend, records, **parts)
    run_id = str(parts.get("run_id", kept.entry.run_id))
    reader = harness(backend)
    for work in (reader.runs.journal(run_id), reader.resume(run_id, flow)):
        with pytest.raises((RecordRefused, TransformMissing)):
            await work
    assert not (await reader.runs.verify(run_id)).ok


def flips(data: bytes, chosen: random.Random, count: int | None) -> Sequence[int]:
    every = range(len(data) * 8)
    return every if count is None else chosen.sample(every, min(count, len(every)))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def encoded(run_id: str, count: int) -> tuple[list[Record], StoredEnd]:
    plain = [
        Record("StepFinished", ("flow", f"step[{n}]"), b'{"k":"code","o":{"n":%d,"text":"%s"}}' % (n, b"x" * (n % 40)))
        for n in range(count)
    ]
    records, digest = CHAIN.encode(run_id, 0, NOTHING, plain)
    return records, StoredEnd(count, JournalEnd(run_id, count, digest, "running", b""), {})


def verdicts(seen: StoredEnd, index: int, records: Sequence[Record], changed: Record) -> list[str]:
    previous = digest_of(records[index - 1]) if index else NOTHING
    return [check.verdict for check in CHAIN.decode(seen, index + 1, previous, changed).checks]


def test_every_bit_of_25_records() -> None:
    """All of them with NOETIC_EXAMPLES=full, 60 of each record without."""
    chosen = random.Random(SEED)
    records, seen = encoded("r", 25)
    for index, record in enumerate(records):
        assert verdicts(seen, index, records, record) == ["verified"]
        for bit in flips(record.payload, chosen, None if FULL else 60):
            changed = evolve(record, payload=flipped(record.payload, bit))
            assert "verified" not in verdicts(seen, index, records, changed), f"NOETIC_SEED={SEED}, {index}, {bit}"


def test_one_bit_of_1000_records() -> None:
    chosen = random.Random(SEED)
    records, seen = encoded("r", 1000)
    for index, record in enumerate(records):
        bit = chosen.randrange(len(record.payload) * 8)
        changed = evolve(record, payload=flipped(record.payload, bit))
        assert "verified" not in verdicts(seen, index, records, changed), f"NOETIC_SEED={SEED}, {index}, {bit}"


async def test_every_bit_of_the_summary() -> None:
    run = await signed_run()
    chosen = random.Random(SEED)
    for bit in flips(run.entry.summary, chosen, None if FULL else 200):
        seen, checks = CHAIN.check_end(evolve(run.entry, summary=flipped(run.entry.summary, bit)))
        assert "verified" not in {check.verdict for check in checks}, f"NOETIC_SEED={SEED}, {bit}, {seen}"


async def test_every_record_of_a_run_and_its_place() -> None:
    run = await signed_run()
    chosen = random.Random(SEED)
    for index, record in enumerate(run.records):
        changes = [
            evolve(record, payload=flipped(record.payload, chosen.randrange(len(record.payload) * 8))),
            evolve(record, payload=record.payload + b" "),
            evolve(record, payload=record.payload[:-1]),
            evolve(record, payload=b""),
            evolve(record, kind="Voided" if record.kind != "Voided" else "Intent"),
            evolve(record, path=(*record.path, "x")),
            evolve(record, path=("\u00e9",)),
        ]
        for changed in changes:
            await refused(run, [*run.records[:index], changed, *run.records[index + 1 :]])


@pytest.mark.parametrize("kind", STORES)
async def test_a_run_is_found_cut_wherever_it_is_cut(kind: str, tmp_path: Path) -> None:
    run = await signed_run()
    for length in range(len(run.records)):
        async with database(kind, tmp_path) as backend:
            await run.put(backend, run.records[:length])
            for work in (
                harness(backend).runs.journal("r"),
                harness(backend).runs.get("r"),
                harness(backend).resume("r", flow),
                harness(backend).fork("r"),
            ):
                with pytest.raises(RecordRefused, match=f"left at {len(run.records)} records, and has {length}"):
                    await work


async def test_a_cut_with_the_end_made_up() -> None:
    run = await signed_run()
    whole = str(len(run.records)).encode()
    for length in range(1, len(run.records)):
        summary = run.entry.summary.replace(b'"position":' + whole, b'"position":%d' % length)
        summary = summary.replace(
            digest_of(run.records[-1]).hex().encode(), digest_of(run.records[length - 1]).hex().encode()
        )
        assert summary != run.entry.summary
        await refused(run, run.records[:length], summary=summary)


async def test_without_its_end_and_without_signatures() -> None:
    run = await signed_run()
    await refused(run, summary=b"{}")
    await refused(run, summary=b"")
    opened = [
        CHAIN.decode(StoredEnd(0, JournalEnd("r", 0, NOTHING, None, b""), None), 1, NOTHING, each)
        for each in run.records
    ]
    plain = [
        Record(each.record.kind, each.record.path, each.record.payload) for each in opened if each.record is not None
    ]
    assert len(plain) == len(run.records)
    for summary in (run.entry.summary, b"{}"):
        await refused(run, plain, summary=summary)
    # One that is not signed among those that are.
    for index in range(len(plain)):
        await refused(run, [*run.records[:index], plain[index], *run.records[index + 1 :]])


async def test_another_summary_or_status() -> None:
    run = await signed_run()
    await refused(run, summary=run.entry.summary.replace(b"ada", b"bob"))
    await refused(run, status="failed")


async def test_swapped_left_out_doubled_and_replayed() -> None:
    run = await signed_run()
    records = run.records
    for index in range(len(records) - 1):
        await refused(run, [*records[:index], records[index + 1], records[index], *records[index + 2 :]])
    for index in range(len(records)):
        await refused(run, [*records[:index], *records[index + 1 :]])
        await refused(run, [*records[: index + 1], *records[index:]])
        await refused(run, [*records, records[index]])
    await refused(run, records[::-1])


async def test_moved_to_another_run() -> None:
    """A whole run under another id, and records of one run in another."""
    run, other = await signed_run(), await signed_run(run_id="s")
    await refused(run, run_id="s")
    await refused(run, run_id="s", summary=other.entry.summary)
    for index in range(len(run.records)):
        await refused(run, [*run.records[:index], other.records[index], *run.records[index + 1 :]])
    for index in range(1, len(run.records)):
        await refused(run, [*run.records[:index], *other.records[index:]])
    await refused(run, other.records)


async def test_the_same_run_at_another_time() -> None:
    """A run with the same id, flow and input, of which parts are put into the newer one."""
    older, newer = await signed_run("go"), await signed_run("on")
    await refused(newer, older.records)
    await refused(newer, summary=older.entry.summary)
    for index in range(1, len(newer.records)):
        await refused(newer, [*older.records[:index], *newer.records[index:]])
        await refused(newer, [*newer.records[:index], *older.records[index:]], summary=older.entry.summary)


async def test_a_fork_is_no_place_for_records_of_others() -> None:
    backend = InMemoryBackend()
    maker = harness(backend)
    await maker.run(flow, "go", run_id="r")
    whole = await kept(backend)
    fork = await maker.fork("r", at=len(whole.records) - 1)
    assert (await harness(backend).resume(fork, flow)).value == "go123"
    forked = await kept(backend, fork)
    assert (await harness(backend).runs.verify(fork)).ok
    # What the run wrote after the fork, the fork under the run's name, the run under the fork's.
    await refused(forked, [*forked.records[:-1], whole.records[-1]])
    await refused(forked, whole.records)
    await refused(forked, run_id="r")
    await refused(whole, run_id=fork)
    await refused(whole, run_id=fork, summary=forked.entry.summary)
    # The part that they share as a run of its own.
    await refused(forked, forked.records[: len(whole.records) - 1])
    await refused(forked, summary=forked.entry.summary.replace(b'["r",', b'["q",'))


async def test_signed_by_somebody_else() -> None:
    """A run that was signed with another key, as its own writer says that it is of the same run."""
    mallory = await signed_run(signing=Signing(Signer.generate()))
    run = await signed_run()
    await refused(mallory)
    await refused(run, mallory.records)
    await refused(run, [*run.records[:-1], mallory.records[-1]])


async def test_another_version_or_way_of_signing_is_none() -> None:
    """There is no algorithm to choose in what is stored: the version's byte says all, and there is one version."""
    run = await signed_run()
    record = run.records[1]
    version = record.payload.index(b"signing") + len(b"signing")
    assert record.payload[version] == 1
    for byte in (0, 2, 255):
        changed = bytearray(record.payload)
        changed[version] = byte
        await refused(run, [run.records[0], evolve(record, payload=bytes(changed)), *run.records[2:]])


@given(st.data())
def test_whatever_bytes_are_there(data: st.DataObject) -> None:
    """Bytes of any kind, with and without the mark and the beginning that signed ones have."""
    records, seen = encoded("r", 3)
    index = data.draw(st.integers(0, 2))
    begin = records[index].payload[: data.draw(st.integers(0, len(records[index].payload)))]
    payload = begin + data.draw(st.binary(max_size=200))
    found = verdicts(seen, index, records, evolve(records[index], payload=payload))
    assert ("verified" in found) == (payload == records[index].payload)


@given(st.lists(st.integers(0, 5), max_size=8))
def test_only_the_journal_that_was_written_is_verified(order: list[int]) -> None:
    """Any row of a run's records, doubled, left out, in any order."""
    records, seen = encoded("r", 6)
    digest, verified = NOTHING, True
    for position, index in enumerate(order, 1):
        found = CHAIN.decode(seen, position, digest, records[index])
        verified = verified and all(check.verdict == "verified" for check in found.checks)
        digest = digest_of(records[index])
    assert verified == (order == list(range(len(order))) and len(order) <= 6)
