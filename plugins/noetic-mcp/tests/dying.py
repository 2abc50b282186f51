"""A flow whose process dies in its second step, the first time: `DONE` names the file that says what was done."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from noetic_py import step

DONE = Path(os.environ["DONE"])


def note(what: str) -> int:
    with DONE.open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")
    return DONE.read_text(encoding="utf-8").split().count(what)


@step
async def first(text: str) -> str:
    note("first")
    return text.upper()


@step
async def second(text: str) -> str:
    if note("second") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{text}!"


flow = first >> second
