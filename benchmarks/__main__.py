"""The command: `python -m benchmarks`, `python -m benchmarks W1 W4 --json FILE`, `python -m benchmarks --docs`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import (
    w0_run,
    w1_steps,
    w2_parallel,
    w3_durable,
    w4_model_loop,
    w5_import,
    w6_conversations,
    w7_runs,
    w8_turns,
    w9_resume,
)
from benchmarks.measure import ROOT, Figure, Plan, environment
from benchmarks.table import into_page, report

WORKS: dict[str, Callable[[Plan], list[Figure]]] = {
    "W0": w0_run.measure,
    "W1": w1_steps.measure,
    "W2": w2_parallel.measure,
    "W3": w3_durable.measure,
    "W4": w4_model_loop.measure,
    "W5": w5_import.measure,
    "W6": w6_conversations.measure,
    "W7": w7_runs.measure,
    "W8": w8_turns.measure,
    "W9": w9_resume.measure,
}
PAGE = ROOT / "docs" / "performance.md"
HISTORY = ROOT / "benchmarks" / "history.jsonl"
"""A line of JSON for each time the page was renewed: where it was measured, and the medians by work and name."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what the library costs.")
    made.add_argument(
        "works", nargs="*", metavar="WORK", help=f"what to measure: {', '.join(WORKS)}; all when left out"
    )
    made.add_argument("--rounds", type=int, default=Plan().rounds, help="how often each side is measured")
    made.add_argument("--scale", type=float, default=1.0, help="a factor for the amount of work, to try things out")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    made.add_argument(
        "--docs",
        action="store_true",
        help=f"put the figures into {PAGE.relative_to(ROOT)}, and add them to {HISTORY.relative_to(ROOT)}",
    )
    return made


def history_line(figures: Sequence[Figure], where: Mapping[str, str]) -> str:
    """What stays of one measurement."""
    medians = {
        f"{each.work} {each.name}": {
            "unit": each.unit,
            "baseline": each.baseline and each.baseline.median,
            "ours": each.ours.median,
            "ratio": each.ratio and each.ratio.median,
        }
        for each in figures
    }
    return json.dumps({**where, "figures": medians}, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and say what came out."""
    commands = parser()
    given = commands.parse_args(arguments)
    works: list[str] = [name.upper() for name in given.works] or list(WORKS)
    unknown = [name for name in works if name not in WORKS]
    if unknown or given.rounds < 1 or not given.scale > 0:
        commands.error(f"no such work: {unknown[0]}" if unknown else "--rounds is 1 or more, --scale above 0")
    if given.docs and (works != list(WORKS) or given.scale != 1.0):
        commands.error("--docs takes all works, at full size")
    plan = Plan(given.rounds, given.scale)
    figures: list[Figure] = []
    for name in works:
        sys.stderr.write(f"{name} ...\n")
        figures += WORKS[name](plan)
    where = environment()
    text = report(figures, where)
    sys.stdout.write(text)
    if given.json is not None:
        found = {"environment": where, "figures": [figure.to_json() for figure in figures]}
        given.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if given.docs:
        PAGE.write_text(into_page(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
        with HISTORY.open("a", encoding="utf-8") as history:
            history.write(history_line(figures, where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
