"""`Signing`: the record transform that signs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from attrs import frozen

from noetic_py.checkpoints import DecodedPayload, Finding, JournalEnd, RecordPlace, RecordTransform
from noetic_py.errors import ConfigError
from noetic_signing.canonical import canonical_json
from noetic_signing.keys import DEFAULT_ROLE, KEY_ID, SIGNATURE, Keyring, PublicKey, Signer, Trusted, check_role

__all__ = ["Policy", "Signing"]

Policy: TypeAlias = Literal["strict", "annotate"]
"""The policy for a record that is not verified: `"strict"` refuses it, `"annotate"` reads and reports it."""

_VERSION = 1
_RECORD = "noetic-record/1"
_END = "noetic-end/1"
_TRUSTED_HINT = "Signing(signer, trusted={'runner': [public_key]})"


@frozen
class _Signed:
    """The header of a signed record: the claimed signer and the signature.

    Attributes:
        key: The key's id.
        role: The role.
        signature: The signature.
        rest: The bytes behind it.
    """

    key: bytes
    role: str
    signature: bytes
    rest: bytes

    @property
    def by(self) -> str:
        return f"{self.role} (key {self.key.hex()})"


class Signing(RecordTransform):
    """Signs every record of a run, and where its journal ends, with Ed25519.

    A signature covers the record's bytes, its run, its position, its kind and path, and the record before it. So what
    was changed, left out, doubled, moved or taken from another run is found, and also a journal whose end was cut off.

    Args:
        signer: The signer, or a function from a run's id to its signer. Without one, runs can be read and not written.
            A signer's own key is believed; the keys of those that a function gives have to be among `trusted`.
        trusted: The public keys that are believed, by the role in which they may sign. A key that is not used any more
            stays here as long as there are runs that it has signed.
        policy: `"strict"` refuses to read, and to go on with, what is not verified. `"annotate"` reads it and says how
            each record stands; what is forged is not gone on with all the same.
        accept: The roles whose signatures are enough here; all that have keys when left out.

    Raises:
        ConfigError: There are no keys at all, or something is not a key, role or policy; codes `"signing-key"`,
            `"signing-role"`, `"signing-policy"`.
    """

    name = "signing"

    def __init__(
        self,
        signer: Signer | Callable[[str], Signer] | None = None,
        *,
        trusted: Trusted | None = None,
        policy: Policy = "strict",
        accept: Collection[str] | None = None,
    ) -> None:
        if policy not in get_args(Policy):
            raise ConfigError(
                f"policy={policy!r} is not a valid policy", code="signing-policy", hint='"strict" or "annotate"'
            )
        self.strict = policy == "strict"
        self._keys = Keyring(trusted or {})
        self._signer = signer
        if isinstance(signer, Signer):
            self._keys.add(signer.public, signer.role)
        elif signer is not None and not callable(signer):
            raise ConfigError(
                f"{type(signer).__name__} is not a valid signer; expected a Signer",
                code="signing-key",
                hint="Signer.from_file(path)",
            )
        if not len(self._keys):
            raise ConfigError("there is no key to sign or to verify with", code="signing-key", hint=_TRUSTED_HINT)
        self._accepted = None if accept is None else frozenset(map(check_role, accept))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Signing | None:
        """Signing by environment variables; `None` if none is set.

        `NOETIC_SIGNING_KEY` is a private key in PEM and `NOETIC_SIGNING_KEY_FILE` a file that holds one,
        `NOETIC_SIGNING_ROLE` its role, `NOETIC_SIGNING_TRUSTED` public keys, `ROLE=FILE` separated by commas, and
        `NOETIC_SIGNING_POLICY` the policy.

        Raises:
            ConfigError: It asks for what there is not; codes as of the class.
        """
        given = {name: environ.get(f"NOETIC_SIGNING_{name}", "") for name in ("KEY", "KEY_FILE", "TRUSTED", "POLICY")}
        if not any(given.values()):
            return None
        if given["KEY"] and given["KEY_FILE"]:
            raise ConfigError(
                "NOETIC_SIGNING_KEY and NOETIC_SIGNING_KEY_FILE are both set", code="signing-key", hint="unset one"
            )
        role = environ.get("NOETIC_SIGNING_ROLE") or DEFAULT_ROLE
        signer: Signer | None = None
        if given["KEY"]:
            signer = Signer.from_pem(given["KEY"], role=role)
        elif given["KEY_FILE"]:
            signer = Signer.from_file(given["KEY_FILE"], role=role)
        policy: Any = given["POLICY"] or "strict"
        return cls(signer, trusted=_trusted(given["TRUSTED"]), policy=policy)

    @property
    def keys(self) -> Keyring:
        """The public keys that are believed."""
        return self._keys

    def __repr__(self) -> str:
        signer = self._signer if isinstance(self._signer, Signer) else "by run" if self._signer else None
        return f"Signing({signer!r}, {self._keys!r}, policy={'strict' if self.strict else 'annotate'!r})"

    # -- what a harness asks

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        """A record with its signature before it."""
        signer = self._signer_of(place.run_id)
        return self._signed(signer, _about_record(place, payload)) + payload

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        """A record without its signature, and whether that fits."""
        signed = _taken_apart(payload)
        if signed is None:
            return DecodedPayload(None, Finding("forged", "it does not begin with a signature of this version"))
        return DecodedPayload(signed.rest, self._finding(signed, _about_record(place, signed.rest)))

    def sign_end(self, end: JournalEnd) -> bytes:
        """The signature of where a journal ends."""
        return self._signed(self._signer_of(end.run_id), _about_end(end))

    def check_end(self, end: JournalEnd, signature: bytes | None) -> Finding:
        """Whether the signature of where a journal ends fits."""
        if signature is None:
            return Finding("unverified", "the place where it ends is not signed")
        signed = _taken_apart(signature)
        if signed is None or signed.rest:
            return Finding("forged", "its signature is not of this version")
        return self._finding(signed, _about_end(end))

    def _signer_of(self, run_id: str) -> Signer:
        signer = self._signer
        if signer is None:
            raise ConfigError(
                "there is no key to sign with", code="signing-key", hint="Signing(Signer.from_file(path))"
            )
        if isinstance(signer, Signer):
            return signer
        made = signer(run_id)
        if made.role not in (self._keys.roles(made.key_id) or ()):
            raise ConfigError(
                f"{made!r} would sign with a key that is not trusted here", code="signing-key", hint=_TRUSTED_HINT
            )
        return made

    def _signed(self, signer: Signer, statement: dict[str, Any]) -> bytes:
        role = signer.role.encode()
        signature = signer.sign(_bytes_of(statement, signer.key_id, signer.role))
        return b"".join((bytes((_VERSION,)), signer.key_id, bytes((len(role),)), role, signature))

    def _finding(self, signed: _Signed, statement: dict[str, Any]) -> Finding:
        roles = self._keys.roles(signed.key)
        if roles is None:
            return Finding("unverified", f"the key {signed.key.hex()} is not trusted here")
        try:
            data = _bytes_of(statement, signed.key, signed.role)
        except ValueError:
            # Nothing that can be signed.
            return Finding("forged", "its place is not one that a record can have")
        if not self._keys.fits(signed.key, signed.signature, data):
            return Finding("forged", "the signature is not of this record at this place")
        if signed.role not in roles:
            return Finding("forged", f"key {signed.key.hex()} may not sign as {signed.role}", signed.by)
        if self._accepted is not None and signed.role not in self._accepted:
            return Finding("unverified", f"the signature of a {signed.role} is not enough here", signed.by)
        return Finding("verified", by=signed.by)


# The bytes of a record are signed by their digest and not as JSON: so each bit of them counts, and no two ways to write
# one value are mixed up.
def _about_record(place: RecordPlace, payload: bytes) -> dict[str, Any]:
    return {
        "about": _RECORD,
        "run": place.run_id,
        "position": place.position,
        "kind": place.kind,
        "path": place.path,
        "previous": place.previous.hex(),
        "payload": hashlib.sha256(payload).hexdigest(),
    }


def _about_end(end: JournalEnd) -> dict[str, Any]:
    return {
        "about": _END,
        "run": end.run_id,
        "position": end.position,
        "last": end.digest.hex(),
        "status": end.status,
        "card": hashlib.sha256(end.summary).hexdigest(),
        "origins": [list(origin) for origin in end.origins],
        **({} if end.store is None else {"store": end.store}),
    }


def _bytes_of(statement: dict[str, Any], key: bytes, role: str) -> bytes:
    return canonical_json({**statement, "key": key.hex(), "role": role})


def _taken_apart(data: bytes) -> _Signed | None:
    """The header and the rest of a signed record; `None` if it is not one."""
    start = 2 + KEY_ID
    if len(data) < start or data[0] != _VERSION:
        return None
    end = start + data[start - 1]
    role = data[start:end]
    signature = data[end : end + SIGNATURE]
    if len(signature) < SIGNATURE or not role.isascii():
        return None
    return _Signed(data[1 : 1 + KEY_ID], role.decode(), signature, data[end + SIGNATURE :])


def _trusted(text: str) -> dict[str, list[PublicKey]]:
    found: dict[str, list[PublicKey]] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        role, equals, path = part.partition("=")
        if not equals or not path:
            raise ConfigError(
                f"NOETIC_SIGNING_TRUSTED: {part!r} is not ROLE=FILE", code="signing-key", hint="runner=/etc/runner.pem"
            )
        found.setdefault(role.strip(), []).append(Path(path.strip()))
    return found
