"""The command: `python -m benchmarks.compare`, narrowed by works and `--peers`, written with `--json` and `--docs`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.compare.environments import Environment, Failed, prepare
from benchmarks.compare.processes import measure
from benchmarks.compare.registry import OURS, PEERS, WORKS, Library
from benchmarks.compare.rounds import Outcome, Plan, compare
from benchmarks.compare.table import into_page, report
from benchmarks.measure import ROOT, environment

PAGE = ROOT / "docs" / "performance.md"
CACHE = ROOT / ".benchmarks"
ROUNDS = 3


def parser(peers: Mapping[str, Library]) -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="Measure other libraries beside ours, each in a virtual environment of its own.",
    )
    made.add_argument(
        "works", nargs="*", metavar="WORK", help=f"what to measure: {', '.join(WORKS)}; all when left out"
    )
    made.add_argument("--peers", metavar="NAME,...", help=f"only these: {', '.join(peers)}")
    made.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each is measured; {ROUNDS} when left out")
    made.add_argument("--scale", type=float, default=1.0, help="a factor for the amount of work, to try things out")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round there as well")
    made.add_argument("--docs", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    made.add_argument("--cache", type=Path, default=CACHE, metavar="FOLDER", help="where the environments are kept")
    made.add_argument("--upgrade", action="store_true", help="look for newer versions of the others")
    return made


def planned(commands: argparse.ArgumentParser, given: argparse.Namespace, peers: Mapping[str, Library]) -> Plan:
    """What the command line asks for; ends the program when it makes no sense."""
    works: list[str] = [name.upper() for name in given.works] or list(WORKS)
    names: list[str] = list(peers) if given.peers is None else given.peers.split(",")
    unknown = [name for name in works if name not in WORKS] + [name for name in names if name not in peers]
    if unknown:
        commands.error(f"no such work or library: {unknown[0]!r}")
    if given.rounds < 1 or not given.scale > 0:
        commands.error("--rounds is 1 or more, --scale above 0")
    if given.docs and (works != list(WORKS) or names != list(peers) or given.scale != 1.0):
        commands.error("--docs takes all works and all libraries, at full size")
    return Plan(works, [peers[name] for name in names], given.rounds, given.scale)


def environments(
    libraries: Sequence[Library], cache: Path, upgrade: bool
) -> tuple[dict[str, Environment], dict[str, str]]:
    """The environments by library, and what those said that could not be installed."""
    made: dict[str, Environment] = {}
    failed: dict[str, str] = {}
    for library in libraries:
        try:
            made[library.name] = prepare(library, cache, upgrade=upgrade)
        except Failed as failure:
            failed[library.name] = str(failure)
    return made, failed


def run(plan: Plan, cache: Path, upgrade: bool) -> tuple[Outcome, dict[str, str]]:
    """Install and measure; gives what came out, and where and with what.

    Raises:
        Failed: Ours could not be installed or measured.
    """
    made, failed = environments([OURS, *plan.peers], cache, upgrade)
    if OURS.name in failed:
        raise Failed(failed[OURS.name])
    outcome = compare(plan, lambda library, work, size: measure(library, made[library.name].python, work, size), failed)
    where = environment()
    versions = [f"{name} {version}" for each in made.values() for name, version in each.versions.items()]
    return outcome, {**where, "packages": ", ".join(versions)}


def main(arguments: Sequence[str] | None = None, peers: Mapping[str, Library] = PEERS) -> int:
    """Compare, and say what came out; 1 when a library failed."""
    commands = parser(peers)
    given = commands.parse_args(arguments)
    plan = planned(commands, given, peers)
    try:
        outcome, where = run(plan, given.cache.resolve(), given.upgrade)
    except Failed as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    text = report(outcome.lines, plan.peers, where, plan.rounds)
    sys.stdout.write(text)
    if given.json is not None:
        found = {"environment": where, "lines": [line.to_json() for line in outcome.lines], "failed": outcome.failures}
        given.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for said in outcome.failures.values():
        sys.stderr.write(f"\n{said}\n")
    if outcome.failures:
        return 1
    if given.docs:
        PAGE.write_text(into_page(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
