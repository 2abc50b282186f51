"""What the tests of the command line share: a folder with flow files, and the command in it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.main import get_command

from noetic_py.cli.app import run_command_line
from tests.warm import forked

ROOT = Path(__file__).resolve().parent.parent
NOETIC = [sys.executable, "-W", "error", "-m", "noetic_py.cli"]
TIMEOUT = 60
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals, named pipes and signals")

PRELUDE = """
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Literal

import anyio
from attrs import define
from pydantic import BaseModel

from noetic_py import *
from noetic_py.testing import ScriptedModel
"""


def environment(**extra: str) -> dict[str, str]:
    """Ours, without what would change the output, and with the package on the path."""
    away = {"NO_COLOR", "TERM", "COLUMNS", "LINES", "NOETIC_DB"}
    kept = {name: value for name, value in os.environ.items() if name not in away}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **extra}


class Shell:
    """A folder with flow files, and the command in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "flow.py") -> Path:
        path = self.folder / name
        path.write_text(PRELUDE + textwrap.dedent(text), encoding="utf-8")
        return path

    def run(self, *arguments: str, stdin: bytes | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
        # The process that forks knows the packages that it found when it began.
        noetic = NOETIC if "PYTHONPATH" in extra else forked("tests.warm_noetic", "-W", "error")
        done = subprocess.run(
            [*noetic, *arguments],
            cwd=self.folder,
            env=environment(**extra),
            input=stdin if stdin is not None else b"",
            capture_output=True,
            check=False,
            timeout=TIMEOUT,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(
        self, *arguments: str, stderr: int = subprocess.PIPE, stdin: int = subprocess.DEVNULL, **extra: str
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*NOETIC, *arguments],
            cwd=self.folder,
            env=environment(**extra),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )


command_of = cache(get_command)
"""The parser of a command line. Making it takes longer than most commands do, and each would make it anew."""


def fresh_command(app: Typer) -> object:
    """A copy, for a group keeps the commands of the plugins that it has loaded."""
    return copy(command_of(app))


class Inside(Shell):
    """The same in this process, which takes a fraction of the time: for tables of cases."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self.patch = patch
        self.capture = capture

    def run(self, *arguments: str, stdin: bytes | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
        with self.patch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["noetic", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr("typer.main.get_command", fresh_command)
            patch.delenv("NOETIC_DB", raising=False)
            for name, value in extra.items():
                patch.setenv(name, value)
            before = set(sys.modules)
            code = run_command_line()
            for name in set(sys.modules) - before:
                if str(self.folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
        done = self.capture.readouterr()
        return subprocess.CompletedProcess(arguments, code, done.out, done.err)


SHOUT = """
@step
async def shout(text: str) -> str:
    return text.upper()
"""


def read_until(stream: Any, marker: bytes) -> bytes:
    """What a program has written up to a marker; what follows stays for the next reader."""
    seen = b""
    while not seen.endswith(marker):
        more = os.read(stream.fileno(), 1)
        assert more, seen
        seen += more
    return seen
