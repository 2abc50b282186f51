"""Keys: what signs, and whose signatures are believed. A private key is in no message, no `repr` and no pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from noetic_py.errors import ConfigError

__all__ = ["DEFAULT_ROLE", "KEY_ID", "SIGNATURE", "Keyring", "PublicKey", "Signer", "Trusted"]

PublicKey: TypeAlias = Ed25519PublicKey | str | bytes | Path
"""A public key: itself, its PEM text, or the file that has that."""

Trusted: TypeAlias = Mapping[str, Iterable[PublicKey] | PublicKey]
"""The public keys of each role, or the one that it has."""

DEFAULT_ROLE = "runner"
"""The default role: the writer of runs."""
KEY_ID = 8
"""The length of a key's id, in bytes."""
SIGNATURE = 64
"""The length of a signature, in bytes."""
_LONGEST_ROLE = 64
_GENERATE = "openssl genpkey -algorithm ed25519 -out key.pem makes one"


def check_role(role: object) -> str:
    """Refuse an invalid role.

    Raises:
        ConfigError: It is not text of 1 to 64 ASCII letters, digits and dashes; code `"signing-role"`.
    """
    if (
        isinstance(role, str)
        and len(role) <= _LONGEST_ROLE
        and role.isascii()
        # Which no text without letters and digits is.
        and role.replace("-", "").isalnum()
    ):
        return role
    raise ConfigError(
        f"{role!r:.80} is not a valid role; expected 1 to 64 letters, digits and dashes", code="signing-role"
    )


def key_id(key: Ed25519PublicKey) -> bytes:
    """The id of a key: the beginning of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).digest()[:KEY_ID]


class Signer:
    """Signs with one Ed25519 key, in one role.

    Args:
        key: The private key.
        role: What its owner is: `"runner"`, `"gateway"`, ... Readers say which keys may sign in which role.

    Raises:
        ConfigError: The key is not an Ed25519 key, or the role is invalid; codes `"signing-key"` and `"signing-role"`.
    """

    def __init__(self, key: Ed25519PrivateKey, *, role: str = DEFAULT_ROLE) -> None:
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(
                f"a {type(key).__name__} is not a valid key; expected an Ed25519 private key",
                code="signing-key",
                hint=_GENERATE,
            )
        self.role: str = check_role(role)
        self.public: Ed25519PublicKey = key.public_key()
        self._sign = key.sign
        self._key = key
        self._id = key_id(self.public)

    @classmethod
    def generate(cls, *, role: str = DEFAULT_ROLE) -> Signer:
        """A signer with a new key; `pem` gives that to be kept."""
        return cls(Ed25519PrivateKey.generate(), role=role)

    @classmethod
    def from_pem(cls, pem: str | bytes, *, role: str = DEFAULT_ROLE, password: bytes | None = None) -> Signer:
        """A signer of a private key in PEM, as `openssl genpkey -algorithm ed25519` writes it.

        Raises:
            ConfigError: That is not such a key, or the password is wrong or missing; code `"signing-key"`.
        """
        data = pem.encode() if isinstance(pem, str) else pem
        try:
            key = load_pem_private_key(data, password)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # The library's message may contain parts of the key, so it is left out with its traceback.
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(
                "the signing key is not an Ed25519 private key in PEM, or its password is wrong or missing",
                code="signing-key",
                hint=_GENERATE,
            )
        return cls(key, role=role)

    @classmethod
    def from_file(cls, path: str | Path, *, role: str = DEFAULT_ROLE, password: bytes | None = None) -> Signer:
        """A signer of the private key in a file.

        Raises:
            ConfigError: The file cannot be read, or holds no such key; code `"signing-key"`.
        """
        return cls.from_pem(_read(Path(path)), role=role, password=password)

    @property
    def key_id(self) -> bytes:
        """The id of its key, 8 bytes."""
        return self._id

    @property
    def public_pem(self) -> str:
        """The public key in PEM: what readers need."""
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def pem(self, password: bytes | None = None) -> bytes:
        """The private key in PEM, encrypted with a password if there is one: to be kept as a secret."""
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    def sign(self, data: bytes) -> bytes:
        """The signature of bytes."""
        return self._sign(data)

    def __repr__(self) -> str:
        return f"Signer(role={self.role!r}, key={self._id.hex()})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Signer holds a private key and is not pickled; make it again where it is needed")


class Keyring:
    """The public keys that are believed, each in its roles.

    Args:
        trusted: The keys of each role. One key may have several roles, and one role several keys, old ones too.

    Raises:
        ConfigError: A key is not valid, or a role; codes `"signing-key"` and `"signing-role"`.
    """

    def __init__(self, trusted: Trusted) -> None:
        self._keys: dict[bytes, Ed25519PublicKey] = {}
        self._roles: dict[bytes, set[str]] = {}
        for role, keys in trusted.items():
            check_role(role)
            for given in _several(keys):
                self.add(_public(given), role)

    def add(self, key: Ed25519PublicKey, role: str) -> None:
        """Believe a key in a role."""
        name = key_id(key)
        known = self._keys.setdefault(name, key)
        if known != key:
            raise ConfigError(f"two keys have the id {name.hex()}", code="signing-key", hint="replace one of them")
        self._roles.setdefault(name, set()).add(role)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        told = ", ".join(f"{name.hex()}: {'+'.join(sorted(roles))}" for name, roles in self._roles.items())
        return f"Keyring({told})"

    def roles(self, name: bytes) -> frozenset[str] | None:
        """The roles of the key with this id; `None` when no such key is here."""
        found = self._roles.get(name)
        return None if found is None else frozenset(found)

    def fits(self, name: bytes, signature: bytes, data: bytes) -> bool:
        """Whether the key with this id has signed these bytes."""
        try:
            self._keys[name].verify(signature, data)
        except (KeyError, InvalidSignature):
            return False
        return True


def _several(keys: Iterable[PublicKey] | PublicKey) -> Iterable[PublicKey]:
    """The keys; one that stands there alone is one, and not a row of characters."""
    return [keys] if isinstance(keys, (str, bytes, Path, Ed25519PublicKey)) else keys


def _public(given: PublicKey) -> Ed25519PublicKey:
    if isinstance(given, Ed25519PublicKey):
        return given
    text = _read(given) if isinstance(given, Path) else given.encode() if isinstance(given, str) else given
    try:
        key: object = load_pem_public_key(text)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        where = f"{given} holds" if isinstance(given, Path) else "a trusted key is"
        raise ConfigError(
            f"{where} no Ed25519 public key in PEM",
            code="signing-key",
            hint="openssl pkey -in key.pem -pubout -out public.pem makes one of a private key",
        )
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be read: {error.strerror}", code="signing-key", hint=_GENERATE
        ) from error
