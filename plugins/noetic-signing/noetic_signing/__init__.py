"""Signed runs for noetic_py: Ed25519 signatures of every record, and policies for what is not verified."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_signing.canonical import canonical_json
    from noetic_signing.keys import Keyring, PublicKey, Signer, Trusted
    from noetic_signing.signing import Policy, Signing

__all__ = ["Keyring", "Policy", "PublicKey", "Signer", "Signing", "Trusted", "canonical_json"]

_MODULES = {"canonical_json": "canonical", "Policy": "signing", "Signing": "signing"}


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"noetic_signing.{_MODULES.get(name, 'keys')}"), name)
