"""What record transforms say of a run, for people and for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from noetic_py.cli.words import plural, printable

if TYPE_CHECKING:
    from noetic_py.journal.transforms import VerificationReport

__all__ = ["verified_json", "verified_text"]

_SHOWN = 20
"""How many problems are told, one line each."""


def verified_text(report: VerificationReport) -> str:
    """A line for each problem, or one that says that there is none."""
    problems = report.problems
    count = plural(0 if report.anchor is None else report.anchor.position, "record")
    if report.ok:
        lines = [f"{count}, all verified"]
    elif not problems:
        lines = [f"{count}, and nothing to verify"]
    else:
        lines = [f"\u2717 {printable(str(check))}" for check in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"... and {len(problems) - _SHOWN} more; --json tells all")
    signed = dict.fromkeys(check.by for check in report.checks if check.by is not None and check.verdict == "verified")
    if signed:
        lines.append(f"by      {', '.join(map(printable, signed))}")
    if report.anchor is not None:
        lines.append(f"anchor  {report.anchor}")
    return "\n".join(lines)


def verified_json(report: VerificationReport) -> str:
    """A report as a JSON object."""
    return json.dumps(
        {
            "run_id": report.run_id,
            "ok": report.ok,
            "anchor": None if report.anchor is None else str(report.anchor),
            "checks": [attrs.asdict(check) for check in report.checks],
        }
    )
