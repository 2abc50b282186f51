"""The program of a plugin's README, run against a server of the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["prints_what_it_says"]


def prints_what_it_says(readme: Path, address: str, url: str, folder: Path) -> None:
    """Run the first program of a page, and compare what it prints with what the page says.

    Args:
        readme: The page.
        address: The one that the program has.
        url: The one of the tests' server, put in its place.
        folder: An empty one.
    """
    text = readme.read_text(encoding="utf-8")
    program = text.partition("```python\n")[2].partition("```\n")[0]
    output = text.partition("```text\n")[2].partition("```\n")[0]
    assert program.count(address) == 1
    file = folder / "program.py"
    file.write_text(program.replace(address, url))
    done = subprocess.run([sys.executable, "-W", "error", file], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
