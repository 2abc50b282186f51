"""The program of a plugin's README, run against a server of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

__all__ = ["prints_what_it_says", "programs"]


def programs(readme: Path) -> list[tuple[str, str]]:
    """The programs of a page that say what they print, each with that."""
    found: list[tuple[str, str]] = re.findall(
        r"```python\n(.*?)```\n\n<!-- output -->\n```text\n(.*?)```\n", readme.read_text(encoding="utf-8"), re.DOTALL
    )
    return found


def prints_what_it_says(readme: Path, address: str, url: str, folder: Path, *, number: int = 0) -> None:
    """Run a program of a page, and compare what it prints with what the page says.

    Args:
        readme: The page.
        address: The one that the program has.
        url: The one of the tests' server, put in its place.
        folder: An empty one.
        number: Which program, from 0.
    """
    program, output = programs(readme)[number]
    assert program.count(address) == 1
    file = folder / "program.py"
    file.write_text(program.replace(address, url))
    done = subprocess.run([sys.executable, "-W", "error", file], capture_output=True, text=True, timeout=60)
    # Asserts of this module are not rewritten by pytest, so it says itself what was printed.
    printed = f"{done.returncode}: {done.stdout}{done.stderr}"
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0), printed
