"""The scripts that the server runs, each as one: nothing happens in between, and it is kept whole or not at all."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from attrs import field, frozen

__all__ = ["NAMES", "Script", "read_file", "script"]

NAMES = (
    "acquire", "budgets", "claim", "clock", "commit", "delete", "entry", "forget_budgets", "fork", "get", "goodbye",
    "head", "hello", "inbox", "list", "prune", "put", "queues", "read", "release", "remove", "renew", "scan", "scopes",
    "send", "stats",
)  # fmt: skip
"""All of them."""


@frozen
class Script:
    """A script.

    Attributes:
        name: Its name.
        source: Its text.
        digest: By what the server knows it.
    """

    name: str
    source: bytes = field(repr=False)
    digest: bytes


def read_file(name: str) -> bytes:
    """The text of a file of scripts."""
    return (files("noetic_redis") / "lua" / f"{name}.lua").read_bytes()


@cache
def script(name: str) -> Script:
    """A script by its name."""
    source = read_file(name) if name == "hello" else read_file("prelude") + read_file(name)
    # The server's own name for a script; not a secret.
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
