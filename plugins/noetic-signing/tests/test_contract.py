"""Signatures pass the contract of record transforms."""

from __future__ import annotations

from noetic_signing import Signer, Signing

from noetic_py.testing import TransformContract

KEY = Signer.generate()


class TestSigning(TransformContract):
    detects_changes = True

    def make(self) -> Signing:
        return Signing(KEY)
