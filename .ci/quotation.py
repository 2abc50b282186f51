"""Read the output of the README's first command from standard input and refuse it when it quotes nothing."""

from __future__ import annotations

import re
import sys
from pydoc_data.topics import topics

ANSWER = re.compile(
    r"(?P<quotation>.+?)\n\nThis is from the topic '(?P<topic>[\w-]+)', and covers the question\.", re.DOTALL
)


def quotation(text: str) -> str | None:
    """What the output quotes, when it stands in the topic that the output names, to the letter."""
    found = ANSWER.search(text)
    if found is None:
        return None
    quoted = found["quotation"].strip("\n")
    return quoted if quoted in topics.get(found["topic"], "") else None


if __name__ == "__main__":
    quoted = quotation(sys.stdin.read())
    if quoted is None:
        sys.exit("the answer quotes nothing, or not to the letter")
    print(f"quoted, and found to the letter:\n{quoted}")
