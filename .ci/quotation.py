"""Read the output of the README's first command from standard input and refuse it when it quotes nothing."""

from __future__ import annotations

import re
import sys

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
QUOTED = re.compile(r'[“"][^”"]{20,}[”"]|^\s*[>│▌] *\S.{20,}$', flags=re.MULTILINE)


def quotation(text: str) -> str | None:
    """The first passage in quotation marks, or set apart as a quotation, that is long enough to say something."""
    found = QUOTED.search(ESCAPES.sub("", text))
    return found.group(0).strip() if found else None


if __name__ == "__main__":
    output = sys.stdin.read()
    quoted = quotation(output)
    if quoted is None:
        sys.exit("the answer quotes nothing")
    print(f"quoted: {quoted}")
