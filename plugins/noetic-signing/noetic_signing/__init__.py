"""Signed runs for noetic_py: Ed25519 signatures of every record, and policies for what is not verified."""

from __future__ import annotations

from noetic_signing.canonical import canonical_json
from noetic_signing.keys import Keyring, PublicKey, Signer, Trusted
from noetic_signing.signing import Policy, Signing

__all__ = ["Keyring", "Policy", "PublicKey", "Signer", "Signing", "Trusted", "canonical_json"]
