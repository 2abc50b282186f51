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
from hypothesis import given
from hypothesis import strategies as st
from noetic_signing import Keyring, Policy, Signer, Signing, keys
from noetic_signing.signing import _about_record, _bytes_of
from signed_runs import SIGNER, database, flow, harness, kept, one, signed_run

from noetic_py import Budget, Harness, Message, StateBag, parallel
from noetic_py.checkpoints import DecodedPayload, Finding, InMemoryBackend, JournalEnd, RecordPlace
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
    for key in (SIGNER.public, SIGNER.public_pem, SIGNER.public_pem.encode()):
        backend = InMemoryBackend()
        await run.put(backend)
        reader = harness(backend, Signing(trusted={"runner": [key]}))
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


NO_KEY = r"the signing key is not an Ed25519 private key in PEM, or its password is wrong or missing"
NO_PUBLIC_KEY = r"a trusted key is no Ed25519 public key in PEM"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Signer.from_pem("no key"), NO_KEY),
        (lambda: Signer.from_pem(b""), NO_KEY),
        (lambda: Signer.from_pem(_pem(generate_private_key(SECP256R1()))), NO_KEY),
        (lambda: Signer.from_pem(SIGNER.public_pem), NO_KEY),
        (lambda: Signer.from_file("/no/such/key.pem"), r"the key file /no/such/key.pem cannot be read: No such"),
        (lambda: Signer.from_file(__file__), NO_KEY),
        (lambda: Keyring({"runner": ["no key"]}), NO_PUBLIC_KEY),
        (lambda: Keyring({"runner": [SIGNER.pem()]}), NO_PUBLIC_KEY),
        (lambda: Keyring({"runner": [Path("/no/such/key.pem")]}), r"the key file /no/such/key.pem cannot be read"),
        (lambda: Keyring({"runner": Path(__file__)}), r"test_signing.py holds no Ed25519 public key in PEM"),
        (
            lambda: Keyring(
                {
                    "runner": generate_private_key(SECP256R1())
                    .public_key()
                    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                }
            ),
            NO_PUBLIC_KEY,
        ),
        (Signing, r"there is no key to sign or to verify with"),
        (lambda: Signing.from_env({"NOETIC_SIGNING_KEY": "a", "NOETIC_SIGNING_KEY_FILE": "b"}), r"are both set"),
        (lambda: Signing.from_env({"NOETIC_SIGNING_POLICY": "strict"}), r"there is no key to sign or to verify with"),
        (lambda: Signing.from_env({"NOETIC_SIGNING_TRUSTED": "/etc/key.pem"}), r"'/etc/key.pem' is not ROLE=FILE"),
        (lambda: Signing.from_env({"NOETIC_SIGNING_TRUSTED": "runner="}), r"'runner=' is not ROLE=FILE"),
        (lambda: Signing.from_env({"NOETIC_SIGNING_KEY_FILE": "/no/such/key.pem"}), r"cannot be read"),
    ],
)
def test_what_is_no_key_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        make()
    assert caught.value.code == "signing-key"
    assert caught.value.hint


def test_two_keys_of_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEY_ID", 0)
    ring = Keyring({"runner": [SIGNER.public, SIGNER.public]})
    with pytest.raises(ConfigError, match="two keys have the id") as caught:
        ring.add(OTHER.public, "gateway")
    assert (caught.value.code, len(ring)) == ("signing-key", 1)


def test_a_keyring_says_whose_signature_fits() -> None:
    ring = Keyring({"runner": [SIGNER.public], "gateway": [OTHER.public]})
    signature = SIGNER.sign(b"data")
    assert ring.fits(SIGNER.key_id, signature, b"data") is True
    for name, data in ((SIGNER.key_id, b"date"), (OTHER.key_id, b"data"), (b"12345678", b"data")):
        assert ring.fits(name, signature, data) is False
    assert repr(ring) == f"Keyring({SIGNER.key_id.hex()}: runner, {OTHER.key_id.hex()}: gateway)"
    assert repr(SIGNER) == f"Signer(role='runner', key={SIGNER.key_id.hex()})"


# -- settings


def test_what_the_environment_asks_for(tmp_path: Path) -> None:
    names = ("key.pem", "public.pem", "other.pem")
    key, public, other = (tmp_path / name for name in names)
    key.write_bytes(OTHER.pem())
    public.write_text(SIGNER.public_pem)
    other.write_text(OTHER.public_pem)
    mine, its = SIGNER.key_id.hex(), OTHER.key_id.hex()
    pem = SIGNER.pem().decode()
    asked: list[tuple[dict[str, str], str]] = [
        ({}, "None"),
        ({"ROLE": "gateway"}, "None"),
        ({"KEY": "", "TRUSTED": ""}, "None"),
        ({"KEY": pem}, f"Signing(Signer(role='runner', key={mine}), Keyring({mine}: runner), policy='strict')"),
        (
            {"KEY_FILE": str(key), "ROLE": "gateway", "POLICY": "annotate"},
            f"Signing(Signer(role='gateway', key={its}), Keyring({its}: gateway), policy='annotate')",
        ),
        (
            {"TRUSTED": f" runner = {public} , gateway={public},, runner={other}"},
            f"Signing(None, Keyring({mine}: gateway+runner, {its}: runner), policy='strict')",
        ),
        (
            {"KEY": pem, "TRUSTED": f"gateway={other}"},
            f"Signing(Signer(role='runner', key={mine}), Keyring({its}: gateway, {mine}: runner), policy='strict')",
        ),
    ]
    for texts, made in asked:
        assert repr(Signing.from_env({f"NOETIC_SIGNING_{name}": text for name, text in texts.items()})) == made
    by_run = Signing(lambda _: SIGNER, trusted={"runner": SIGNER.public})
    assert repr(by_run) == f"Signing('by run', Keyring({mine}: runner), policy='strict')"
    assert len(by_run.keys) == 1
    assert by_run.keys.roles(SIGNER.key_id) == frozenset({"runner"})


# -- findings


@given(st.data())
def test_bytes_that_do_not_begin_with_a_whole_signature_are_forged(data: st.DataObject) -> None:
    """The version, the key's id, the length of the role, the role in ASCII, and 64 bytes; a record may be empty."""
    signing, place, end = Signing(SIGNER), RecordPlace("r", 1, "K", (), bytes(32)), JournalEnd("r", 1, b"", None, b"")
    whole = signing.encode(place, b"")
    assert signing.decode(place, whole) == DecodedPayload(
        b"", Finding("verified", by=f"runner (key {SIGNER.key_id.hex()})")
    )
    role = whole.index(b"runner")
    no_ascii = whole[:role] + b"\xc3\xa9" * 3 + whole[role + 6 :]
    other_version = bytes((data.draw(st.integers(2, 255)),)) + whole[1:]
    for cut in (whole[: data.draw(st.integers(0, len(whole) - 1))], no_ascii, other_version):
        nothing = Finding("forged", "it does not begin with a signature of this version")
        assert signing.decode(place, cut) == DecodedPayload(None, nothing)
        assert signing.check_end(end, cut) == Finding("forged", "its signature is not of this version")
    signature = signing.sign_end(end)
    assert signing.check_end(end, signature).verdict == "verified"
    assert signing.check_end(end, signature + b"x") == Finding("forged", "its signature is not of this version")
    assert signing.check_end(end, whole) == Finding("forged", "the signature is not of this record at this place")
    assert signing.check_end(end, None) == Finding("unverified", "the place where it ends is not signed")
    odd = RecordPlace("r", 1, "K", ("\ud800",), bytes(32))
    assert signing.decode(odd, whole).finding == Finding("forged", "its place is not one that a record can have")


def test_an_end_is_signed_with_all_that_it_says() -> None:
    signing = Signing(SIGNER)
    end = JournalEnd("r", 1, b"d", "completed", b"s", (("q", 1),), "here")
    signature = signing.sign_end(end)
    assert signing.check_end(end, signature).verdict == "verified"
    changes: dict[str, Any] = {
        "run_id": "s", "position": 2, "digest": b"e", "status": None, "summary": b"t", "origins": (), "store": None,
    }  # fmt: skip
    for name, value in changes.items():
        assert signing.check_end(evolve(end, **{name: value}), signature).verdict == "forged", name
    before_stores = evolve(end, store=None)
    assert signing.check_end(before_stores, signing.sign_end(before_stores)).verdict == "verified"


def test_what_a_checker_would_refuse_is_refused_without_one() -> None:
    wrong: Any = "a key"
    for make, why in (
        (lambda: Signer(wrong), "a str is not a valid key"),
        (lambda: Signing(wrong), "str is not a valid signer"),
    ):
        with pytest.raises(ConfigError, match=why) as caught:
            make()
        assert caught.value.code == "signing-key"
    policy: Policy = wrong
    with pytest.raises(ConfigError) as caught:
        Signing(SIGNER, policy=policy)
    assert caught.value.code == "signing-policy"


@pytest.mark.parametrize("role", ["x", "7", "a-b", "x" * 64])
def test_a_role_has_letters_digits_and_dashes(role: str) -> None:
    assert Signer.generate(role=role).role == role


@pytest.mark.parametrize("role", ["", "-", "a b", "é", "x" * 65, "a=b", b"runner", None])
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
