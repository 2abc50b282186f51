"""Print a command line of README.md, so that what is checked is what a reader pastes.

Usage: readme_line.py NAME, where the README has the comment `<!-- line: NAME -->` before a fenced block of one line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def line(name: str, text: str) -> str:
    """The one command of the block marked with `name`."""
    found = re.findall(rf"<!-- line: {re.escape(name)} -->\s*```\w*\n(.*?)\n```", text, flags=re.DOTALL)
    if len(found) != 1 or "\n" in found[0]:
        sys.exit(f"README.md must mark exactly one block of one line with <!-- line: {name} -->")
    return str(found[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(line(sys.argv[1], README.read_text(encoding="utf-8")))
