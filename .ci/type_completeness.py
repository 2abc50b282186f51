"""Read the JSON of `basedpyright --verifytypes` from standard input; every public symbol must have a known type.

The engine and the parts of the backends are private, though their names do not begin with an underscore: the page of
the API says so.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PRIVATE = (
    "noetic_py.engine.",
    "noetic_py.checkpoints.files.",
    "noetic_py.checkpoints.locks.",
    "noetic_py.checkpoints.checks.",
    "noetic_py.checkpoints.sqlite.",
    "noetic_py.runner.children.",
    "noetic_py.runner.inbox.",
    "noetic_py.runner.lease.",
    "noetic_py.runner.registry.",
    "noetic_py.runner.stop_requests.",
)
SHOWN = ("noetic_py.checkpoints.files.FileBackend", "noetic_py.checkpoints.sqlite.SqliteBackend")


def is_private(name: str) -> bool:
    """Whether a symbol belongs to a private module."""
    return name.startswith(PRIVATE) and not name.startswith(SHOWN)


def unknown(report: dict[str, Any]) -> list[str]:
    """One line per public symbol whose type is not fully known by a fault of its own, and why."""
    lines: list[str] = []
    for symbol in report["typeCompleteness"]["symbols"]:
        if is_private(symbol["name"]):
            continue
        if symbol["isExported"] and not symbol["isTypeKnown"] and symbol["diagnostics"]:
            reasons = dict.fromkeys(entry["message"].splitlines()[0] for entry in symbol["diagnostics"])
            lines.append(f"{symbol['name']}: {'; '.join(reasons)}")
    return lines


if __name__ == "__main__":
    document = json.load(sys.stdin)
    public = [
        each for each in document["typeCompleteness"]["symbols"] if each["isExported"] and not is_private(each["name"])
    ]
    known = sum(each["isTypeKnown"] for each in public)
    print(f"type completeness: {known / len(public):.2%} of {len(public)} public names")
    print("\n".join(unknown(document)))
    if known < len(public):
        sys.exit(1)
