"""Rows 001-18 and 001-45: signed records."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from noetic_signing import Signer, Signing

from noetic_py import Harness, step
from noetic_py.checkpoints import InMemoryBackend, Record
from noetic_py.core.events import StepCommitted
from noetic_py.errors import CheckpointFailed, ConfigError, PluginError, RecordRefused, TransformMissing

pytestmark = pytest.mark.anyio

KEY = Signer.generate()


@step
async def begin(text: str) -> str:
    return text.upper()


@step
async def end(text: str) -> str:
    return f"{text}!"


flow = begin >> end


def made(backend: InMemoryBackend, signing: Signing) -> Harness[Any]:
    return Harness(checkpoints=backend, plugins=(), record_transforms=[signing])


@pytest.mark.clause("001-18a")
async def test_001_18_a_run_is_signed_with_a_key_of_its_own() -> None:
    keys = {"a": KEY, "b": Signer.generate(role="gateway")}
    trusted = {key.role: [key.public] for key in keys.values()}
    backend = InMemoryBackend()
    for run_id, key in keys.items():
        await made(backend, Signing(keys.__getitem__, trusted=trusted)).run(flow, "hi", run_id=run_id)
        report = await made(backend, Signing(trusted=trusted)).runs.verify(run_id)
        assert report.ok
        assert {check.by for check in report.checks} == {f"{key.role} (key {key.key_id.hex()})"}


@pytest.mark.clause("001-18b")
async def test_001_18_missing_parts_are_an_error() -> None:
    backend = InMemoryBackend()
    with pytest.raises(ConfigError):
        Signing()
    with pytest.raises(CheckpointFailed, match="no key to sign with"):
        await made(backend, Signing(trusted={"runner": [KEY.public]})).run(flow, "hi", run_id="unsigned")
    assert await backend.entry("unsigned") is None
    await made(backend, Signing(KEY)).run(flow, "hi", run_id="signed")
    with pytest.raises(TransformMissing):
        await Harness(checkpoints=backend, plugins=()).resume("signed", flow)
    with pytest.raises(PluginError):
        Harness(checkpoints=backend, plugins=["no-such-signing"])


@pytest.mark.clause("001-45a")
async def test_001_45_a_change_a_gap_and_a_swap_are_found() -> None:
    backend = InMemoryBackend()
    await made(backend, Signing(KEY)).run(flow, "hi", run_id="r")
    records, entry = list(await backend.read("r")), await backend.entry("r")
    assert entry is not None
    last = len(records) - 1
    changed = [evolve(record, payload=record.payload.replace(b"HI", b"HO")) for record in records]
    assert changed != records
    tried: dict[str, list[Record]] = {
        "change": changed,
        "gap": [*records[:1], *records[2:]],
        "swap": [records[0], records[2], records[1], *records[3:]],
        "cut": records[:last],
        "written twice": [*records, records[last]],
    }
    for what, forged in tried.items():
        other = InMemoryBackend()
        await other.append(
            "r", expected_position=0, fence=0, records=forged, summary=entry.summary, status=entry.status
        )
        with pytest.raises(RecordRefused):
            await made(other, Signing(KEY)).resume("r", flow)
        assert not (await made(other, Signing(KEY)).runs.verify("r")).ok, what


@pytest.mark.clause("001-45b")
async def test_001_45_a_branch_goes_on_from_what_it_shares() -> None:
    """A fork's chain begins with the records of the other run that it shares, and both go on apart."""
    backend = InMemoryBackend()
    harness = made(backend, Signing(KEY))
    async with harness.stream(flow, "hi", run_id="r") as stream:
        ends = [event.position async for event in stream.events if isinstance(event, StepCommitted)]
    fork = await harness.fork("r", at=ends[0])
    assert (await made(backend, Signing(KEY)).resume(fork, flow)).value == "HI!"
    for run_id in ("r", fork):
        assert (await made(backend, Signing(KEY)).runs.verify(run_id)).ok
    shared = [(await backend.read(run_id))[: ends[0]] for run_id in ("r", fork)]
    assert shared[0] == shared[1]
    # What was stored together with the end of the run is signed again.
    inside = await harness.fork("r", at=ends[-1])
    assert (await made(backend, Signing(KEY)).runs.verify(inside)).ok
    assert (await made(backend, Signing(KEY)).resume(inside, flow)).value == "HI!"
