"""Signed runs: written, read, gone on with, forked; keys, roles and policies."""

from __future__ import annotations

import copy
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from noetic_signing import Keyring, Policy, Signer, Signing
from noetic_signing.signing import _about_record, _bytes_of
from signed_runs import SIGNER, database, flow, harness, kept, one, signed_run

from noetic_py import Budget, Harness, Message, StateBag, parallel
from noetic_py.checkpoints import InMemoryBackend, RecordPlace
from noetic_py.errors import CheckpointFailed, ConfigError, NoeticError, RecordRefused, TransformMissing
from noetic_py.testing import assert_resumable_everywhere

pytestmark = pytest.mark.anyio

STORES = ["memory", "sqlite"]
OTHER = Signer.generate(role="gateway")


@pytest.mark.parametrize("kind", STORES)
async def test_a_signed_run_is_verified_resumed_and_forked(kind: str, tmp_path: Path) -> None:
    async with database(kind, tmp_path) as backend:
        writer = harness(backend)
        result = await writer.run(flow, "go", run_id="r")
        assert result.value == "go123"
        report = await harness(backend).runs.verify("r")
        assert report.ok
        assert {check.by for check in report.checks} == {f"runner (key {SIGNER.key_id.hex()})"}
        assert [check.position for check in report.checks] == [*range(1, len(report.checks)), len(report.checks) - 1]
        assert (await harness(backend).resume("r", flow)).value == "go123"
        fork = await harness(backend).fork("r", at=1, state=StateBag({"seen": "?"}))
        assert (await harness(backend).resume(fork, flow)).value == "go123"
        again = await harness(backend).fork(fork)
        for run_id in ("r", fork, again):
            assert (await harness(backend).runs.verify(run_id)).ok
        await writer.runs.delete("r")
        assert (await harness(backend).runs.verify(again)).ok
        assert await writer.runs.prune(keep=1) == 0


async def test_a_signed_run_that_is_killed_anywhere_goes_on() -> None:
    kills = await assert_resumable_everywhere(
        lambda: flow >> parallel(one, one), "go", make=lambda backend: harness(backend)
    )
    assert kills >= 8


async def test_a_signed_run_out_of_budget_goes_on() -> None:
    backend = InMemoryBackend()
    result = await harness(backend).run(flow, "go", run_id="r", budget=Budget(steps=1))
    assert result.status == "budget_exceeded"
    assert (await harness(backend).runs.verify("r")).ok
    assert (await harness(backend).resume("r", flow, budget=Budget(steps=9))).value == "go123"
    assert (await harness(backend).runs.verify("r")).ok


async def test_without_the_plugin_the_run_says_what_it_needs() -> None:
    run = await signed_run()
    backend = InMemoryBackend()
    await run.put(backend)
    plain: Harness[Any] = Harness(checkpoints=backend, plugins=())
    for work in (plain.resume("r", flow), plain.runs.journal("r"), plain.fork("r")):
        with pytest.raises(TransformMissing, match="noetic-signing") as caught:
            await work
        assert caught.value.transform == "signing"
    assert (await kept(backend)).records == run.records


@pytest.mark.parametrize("kind", STORES)
async def test_a_session_is_signed(kind: str, tmp_path: Path) -> None:
    async with database(kind, tmp_path) as backend:
        for turn in ("a", "b", "c"):
            session = harness(backend).session("ada", "trip")
            assert (await session.run(flow, turn)).value == f"{turn}123"
        stream = session.key.stream
        assert (await harness(backend).runs.verify(stream)).ok
        texts = [
            item.text for item in await harness(backend).session("ada", "trip").items() if isinstance(item, Message)
        ]
        assert texts == ["a: one", "b: one", "c: one"]
        run = await kept(backend, stream)
        plain: Harness[Any] = Harness(checkpoints=backend, plugins=())
        with pytest.raises(TransformMissing):
            await plain.session("ada", "trip").items()
        assert {info.status for info in await plain.runs.list()} == {"completed"}
    async with database(kind, tmp_path) as other:
        await run.put(other, run.records[:-1])
        with pytest.raises(RecordRefused):
            await harness(other).session("ada", "trip").items()
        with pytest.raises(RecordRefused):
            await harness(other).session("ada", "trip").run(flow, "d")


# -- keys


async def test_a_key_that_nobody_knows_is_refused() -> None:
    run = await signed_run()
    backend = InMemoryBackend()
    await run.put(backend)
    reader = harness(backend, Signing(trusted={"runner": [OTHER.public]}))
    with pytest.raises(RecordRefused, match=f"the key {SIGNER.key_id.hex()} is not trusted here"):
        await reader.runs.journal("r")
    assert {check.verdict for check in (await reader.runs.verify("r")).checks} == {"unverified"}


async def test_a_public_key_is_enough_to_read_and_not_to_write() -> None:
    run = await signed_run()
    for given in (SIGNER.public, SIGNER.public_pem, SIGNER.public_pem.encode()):
        backend = InMemoryBackend()
        await run.put(backend)
        reader = harness(backend, Signing(trusted={"runner": [given]}))
        assert (await reader.runs.verify("r")).ok
        assert len(await reader.runs.journal("r")) == len(run.records)
        with pytest.raises(CheckpointFailed, match=r"'signing' failed on .*there is no key to sign with"):
            await reader.run(flow, "go", run_id="new")
        assert await backend.head("new") is None or (await backend.read("new")) == []


async def test_the_key_is_changed_in_the_middle_of_a_run() -> None:
    """Rotation: what the old key has signed is still believed, and what follows is signed with the new one."""
    old, new = Signer.generate(), Signer.generate()
    backend = InMemoryBackend()
    await harness(backend, Signing(old)).run(flow, "go", run_id="r", budget=Budget(steps=1))
    signing = Signing(new, trusted={"runner": [old.public]})
    assert (await harness(backend, signing).resume("r", flow, budget=Budget(steps=9))).value == "go123"
    report = await harness(backend, signing).runs.verify("r")
    assert report.ok
    assert [check.by for check in report.checks] == sorted(
        (check.by or "" for check in report.checks), key=lambda by: old.key_id.hex() not in by
    )
    assert len({check.by for check in report.checks}) == 2
    for alone in (old, new):
        with pytest.raises(RecordRefused):
            await harness(backend, Signing(alone)).runs.journal("r")


async def test_each_key_signs_in_its_own_roles_only() -> None:
    run = await signed_run(signing=Signing(OTHER))
    backend = InMemoryBackend()
    await run.put(backend)
    assert (await harness(backend, Signing(trusted={"gateway": [OTHER.public]})).runs.verify("r")).ok
    assert (
        await harness(backend, Signing(trusted={"runner": [OTHER.public], "gateway": [OTHER.public]})).runs.verify("r")
    ).ok
    with pytest.raises(RecordRefused, match="may not sign as gateway") as caught:
        await harness(backend, Signing(trusted={"runner": [OTHER.public]})).runs.journal("r")
    assert caught.value.verdict == "forged"


async def test_a_role_that_is_not_enough() -> None:
    run = await signed_run(signing=Signing(OTHER))
    backend = InMemoryBackend()
    await run.put(backend)
    trusted = {"gateway": [OTHER.public], "runner": [SIGNER.public]}
    assert (await harness(backend, Signing(trusted=trusted, accept=["gateway"])).runs.verify("r")).ok
    reader = harness(backend, Signing(trusted=trusted, accept=["runner"]))
    with pytest.raises(RecordRefused, match="the signature of a gateway is not enough here"):
        await reader.runs.journal("r")


async def test_a_signer_for_each_run() -> None:
    signers = {"a": SIGNER, "b": OTHER}
    trusted = {"runner": [SIGNER.public], "gateway": [OTHER.public]}
    backend = InMemoryBackend()
    writer = harness(backend, Signing(signers.__getitem__, trusted=trusted))
    for run_id, signer in signers.items():
        await writer.run(flow, "go", run_id=run_id)
        report = await harness(backend, Signing(trusted=trusted)).runs.verify(run_id)
        assert report.ok
        assert {check.by for check in report.checks} == {f"{signer.role} (key {signer.key_id.hex()})"}
    with pytest.raises(CheckpointFailed, match="KeyError"):
        await writer.run(flow, "go", run_id="c")
    stranger = harness(backend, Signing(lambda _: Signer.generate(), trusted=trusted))
    with pytest.raises(CheckpointFailed, match="would sign with a key that is not trusted here"):
        await stranger.run(flow, "go", run_id="d")


# -- policies


async def test_annotate_reads_what_was_changed_and_says_so() -> None:
    run = await signed_run()
    lenient = Signing(SIGNER, policy="annotate")
    backend = InMemoryBackend()
    changed = evolve(run.records[3], path=("flow", "elsewhere"))
    await run.put(backend, [*run.records[:3], changed, *run.records[4:]])
    reader = harness(backend, lenient)
    assert len(await reader.runs.journal("r")) == len(run.records)
    report = await reader.runs.verify("r")
    assert [(check.position, check.verdict) for check in report.problems] == [(4, "forged"), (5, "forged")]
    assert [check.verdict for check in report.checks].count("verified") == len(report.checks) - 2
    assert "the signature is not of this record at this place" in str(report.problems[0])
    with pytest.raises(RecordRefused):
        await reader.resume("r", flow)


async def test_annotate_signs_a_run_that_was_begun_without_signatures() -> None:
    backend = InMemoryBackend()
    plain: Harness[Any] = Harness(checkpoints=backend, plugins=())
    await plain.run(flow, "go", run_id="r", budget=Budget(steps=1))
    begun = (await kept(backend)).entry.position
    with pytest.raises(RecordRefused, match="unverified"):
        await harness(backend).resume("r", flow)
    lenient = Signing(SIGNER, policy="annotate")
    assert (await harness(backend, lenient).resume("r", flow, budget=Budget(steps=9))).value == "go123"
    report = await harness(backend, lenient).runs.verify("r")
    assert [check.position for check in report.problems] == list(range(1, begun + 1))
    assert {check.verdict for check in report.problems} == {"unverified"}


async def test_the_signature_is_of_the_canonical_statement() -> None:
    run = await signed_run()
    record = run.records[0]
    body = record.payload[2 + len("signing") :]
    role = b"runner"
    assert body[:10] == bytes((1, *SIGNER.key_id, len(role)))
    signature, payload = body[10 + len(role) : 74 + len(role)], body[74 + len(role) :]
    place = RecordPlace("r", 1, record.kind, record.path, bytes(32))
    SIGNER.public.verify(signature, _bytes_of(_about_record(place, payload), SIGNER.key_id, "runner"))
    assert payload[:1] == b"{"
    assert len(record.payload) - len(payload) == 89


# -- what is no key, role or policy


def _pem(key: Any) -> bytes:
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


def test_keys_come_from_pem_texts_and_files(tmp_path: Path) -> None:
    signer = Signer.generate(role="gateway")
    file = tmp_path / "key.pem"
    file.write_bytes(signer.pem())
    (tmp_path / "public.pem").write_text(signer.public_pem)
    for again in (
        Signer.from_pem(signer.pem(), role="gateway"),
        Signer.from_pem(signer.pem().decode(), role="gateway"),
        Signer.from_file(file, role="gateway"),
        Signer.from_file(str(file), role="gateway"),
        Signer.from_pem(signer.pem(b"tide"), role="gateway", password=b"tide"),
    ):
        assert (again.key_id, again.role, again.public) == (signer.key_id, "gateway", signer.public)
    ring = Keyring({"gateway": [tmp_path / "public.pem", signer.public], "runner": signer.public_pem})
    assert len(ring) == 1
    assert ring.roles(signer.key_id) == frozenset({"gateway", "runner"})
    assert ring.roles(b"12345678") is None


def test_a_private_key_is_never_shown(tmp_path: Path) -> None:
    signer = Signer.generate()
    (tmp_path / "wrong.pem").write_bytes(signer.pem(b"tide"))
    secret = "".join(signer.pem().decode().splitlines()[1:-1])
    shown = [repr(signer), str(signer), repr(Signing(signer)), repr(Signing(signer).keys), repr(vars(Signing(signer)))]
    for make in (
        lambda: Signer.from_file(tmp_path / "wrong.pem"),
        lambda: Signer.from_file(tmp_path / "wrong.pem", password=b"moon"),
        lambda: Signer.from_pem(signer.pem()[:-40]),
        lambda: Signing.from_env({"NOETIC_SIGNING_KEY": signer.pem().decode()[:-40]}),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "signing-key"
        shown += ["".join(traceback.format_exception(caught.value)), str(caught.value)]
    assert not [text for text in shown if secret[:20] in text or secret[-20:] in text or "tide" in text.split("\n")[-1]]
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="private key"):
            copied(signer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Signer.from_pem("no key"),
        lambda: Signer.from_pem(b""),
        lambda: Signer.from_pem(_pem(generate_private_key(SECP256R1()))),
        lambda: Signer.from_pem(SIGNER.public_pem),
        lambda: Signer.from_file("/no/such/key.pem"),
        lambda: Keyring({"runner": ["no key"]}),
        lambda: Keyring({"runner": [SIGNER.pem()]}),
        lambda: Keyring({"runner": [Path("/no/such/key.pem")]}),
        lambda: Keyring(
            {
                "runner": generate_private_key(SECP256R1())
                .public_key()
                .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            }
        ),
        Signing,
        lambda: Signing.from_env({"NOETIC_SIGNING_KEY": "a", "NOETIC_SIGNING_KEY_FILE": "b"}),
        lambda: Signing.from_env({"NOETIC_SIGNING_POLICY": "strict"}),
        lambda: Signing.from_env({"NOETIC_SIGNING_TRUSTED": "/etc/key.pem"}),
        lambda: Signing.from_env({"NOETIC_SIGNING_TRUSTED": "runner="}),
        lambda: Signing.from_env({"NOETIC_SIGNING_KEY_FILE": "/no/such/key.pem"}),
    ],
)
def test_what_is_no_key_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.code == "signing-key"
    assert caught.value.hint


def test_what_a_checker_would_refuse_is_refused_without_one() -> None:
    wrong: Any = "a key"
    for make in (lambda: Signer(wrong), lambda: Signing(wrong)):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "signing-key"
    policy: Policy = wrong
    with pytest.raises(ConfigError) as caught:
        Signing(SIGNER, policy=policy)
    assert caught.value.code == "signing-policy"


@pytest.mark.parametrize("role", ["", "a b", "é", "x" * 65, "a=b", None])
def test_what_is_no_role_is_refused(role: Any) -> None:
    for make in (
        lambda: Signer.generate(role=role),
        lambda: Keyring({role: [SIGNER.public]}),
        lambda: Signing(SIGNER, accept=[role]),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "signing-role"


def test_errors_say_what_to_do() -> None:
    with pytest.raises(NoeticError) as caught:
        Signer.from_pem("no key")
    assert "openssl genpkey -algorithm ed25519" in str(caught.value)
