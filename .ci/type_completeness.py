"""Read the JSON of `basedpyright --verifytypes` from standard input; every public symbol must have a known type."""

from __future__ import annotations

import json
import sys
from typing import Any


def unknown(report: dict[str, Any]) -> list[str]:
    """One line per public symbol whose type is not fully known by a fault of its own, and why."""
    lines: list[str] = []
    for symbol in report["typeCompleteness"]["symbols"]:
        if symbol["isExported"] and not symbol["isTypeKnown"] and symbol["diagnostics"]:
            reasons = dict.fromkeys(entry["message"].splitlines()[0] for entry in symbol["diagnostics"])
            lines.append(f"{symbol['name']}: {'; '.join(reasons)}")
    return lines


if __name__ == "__main__":
    document = json.load(sys.stdin)
    score = document["typeCompleteness"]["completenessScore"]
    print(f"type completeness: {score:.2%}")
    print("\n".join(unknown(document)))
    if score < 1:
        sys.exit(1)
