"""Paste the commands of "Get started" into an empty folder, as a newcomer does who has Python and nothing else.

Usage: get_started.py DIST, a folder with the wheels of this tree, which stand in for the clone of the page. The
commands find a shell, `python3`, `mkdir` and `head`, and the environment is the one that the page makes. They have to
print what the pages say.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "docs" / "start"
ORDER = ("install.md", "first-agent.md", "first-durable-run.md")
# What the page says of `noetic new` and does not show.
MORE = ("noetic new my-agent && cd my-agent && python -m pytest -q",)
LIMIT = 300
"""Seconds for one command."""


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def wheel(dist: Path, package: str) -> str:
    """The wheel of a package."""
    (found,) = dist.glob(f"{package.replace('-', '_')}-*.whl")
    return str(found)


def from_wheels(command: str, dist: Path) -> str:
    """A command in which the wheels take the place of the folders of a clone."""
    command = re.sub(r"\.\./noetic_py/plugins/([\w-]+)", lambda found: wheel(dist, found[1]), command)
    return command.replace("../noetic_py", wheel(dist, "noetic-py"))


def environment(folder: Path) -> dict[str, str]:
    """The variables of a machine on which nothing else is installed."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sh", "mkdir", "head"):
        found = shutil.which(name)
        if found is None:
            sys.exit(f"{name} is not on the path")
        (programs / name).symlink_to(found)
    # Not a link, so that Python finds its library where it is.
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    # How the package index is reached is the machine's.
    kept = re.compile(r"PIP_\w+|SSL_CERT_\w+|\w+_proxy", re.IGNORECASE)
    passed = {name: value for name, value in os.environ.items() if kept.fullmatch(name)}
    return passed | {"PATH": str(programs), "HOME": str(folder / "home"), "LANG": "C.UTF-8"}


def main(dist: Path) -> int:
    """Paste everything; returns how many commands did not print what the page says."""
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = environment(folder)
        before = ""

        def paste(command: str, printed: str | None) -> bool:
            began = time.monotonic()
            done = subprocess.run(
                ["sh", "-ec", before + command],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT,
            )
            print(f"{time.monotonic() - began:5.1f} s  $ {command.splitlines()[0]}")
            if printed is None:
                fits = done.returncode == 0
            else:
                fits = re.fullmatch(re.escape(printed).replace("…", ".*"), done.stdout) is not None
            if not fits:
                print(f"{done.stdout}{done.stderr}exit code {done.returncode}; the page says:\n{printed}")
            return fits

        texts = [(PAGES / page).read_text(encoding="utf-8") for page in ORDER]
        for block in blocks(texts[0], "sh"):
            if not paste(from_wheels(block, dist), None):
                return 1
            # Every command has a shell of its own, in the folder and the environment that the first block made.
            before = before or "cd tides && . .venv/bin/activate && "
        for text in texts:
            for title, code in re.findall(r'^```python title="(\S+)"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE):
                (folder / "tides" / title).write_text(code, encoding="utf-8")
            for block in blocks(text, "console"):
                for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                    command, _, printed = part.partition("\n")
                    wrong += not paste(command, printed)
        wrong += sum(not paste(command, None) for command in MORE)
    return wrong


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
