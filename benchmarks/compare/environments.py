"""A virtual environment for each library, made once and kept in a cache folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict, field, frozen

from benchmarks.compare.registry import OURS, Library
from benchmarks.measure import ROOT

STAMP = "installed.json"
MINUTES = 20
TAIL = 3_000


class Failed(Exception):
    """A library could not be installed or measured; the text has what it said itself."""


@frozen
class Environment:
    """An interpreter with one library.

    Attributes:
        python: The interpreter.
        versions: By package: what is installed.
    """

    python: Path
    versions: dict[str, str]


@frozen
class Stamp:
    """What was installed; it is written last, so that a broken environment is made anew."""

    wanted: str
    python: str = sys.version
    versions: dict[str, str] = field(factory=dict[str, str])


def prepare(library: Library, cache: Path, *, upgrade: bool = False) -> Environment:
    """The environment of a library: what is there, or made and installed now.

    Args:
        library: What to install.
        cache: Where the environments are.
        upgrade: Whether to look for newer versions.

    Raises:
        Failed: It cannot be installed.
    """
    folder = cache / library.name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    wanted = Stamp(" ".join(library.packages) if library.name != OURS.name else fingerprint(ROOT))
    found = read(folder / STAMP)
    if found is not None and (found.wanted, found.python) == (wanted.wanted, wanted.python) and not upgrade:
        return Environment(python, found.versions)
    sys.stderr.write(f"installing {library.name} ...\n")
    if found is None or found.python != wanted.python:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command(library, [sys.executable, "-m", "venv", str(folder)])
    (folder / STAMP).unlink(missing_ok=True)
    pip = [str(python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command(library, [*pip, "--upgrade", *library.packages])
    versions = versions_of(library, python)
    (folder / STAMP).write_text(json.dumps(asdict(Stamp(wanted.wanted, versions=versions))), encoding="utf-8")
    return Environment(python, versions)


def read(path: Path) -> Stamp | None:
    """The stamp of an environment, if it was finished."""
    try:
        return Stamp(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def fingerprint(root: Path) -> str:
    """Changes whenever the sources of our package do."""
    digest = hashlib.sha256()
    for path in [root / "pyproject.toml", *sorted((root / "noetic_py").rglob("*.py"))]:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def versions_of(library: Library, python: Path) -> dict[str, str]:
    """The versions that were installed of what was asked for."""
    names = [OURS.name] if library.name == OURS.name else list(library.packages)
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    found: dict[str, str] = json.loads(command(library, [str(python), "-I", "-c", code, *names]))
    return found


def command(library: Library, arguments: Sequence[str]) -> str:
    """What a command printed.

    Raises:
        Failed: It did not end well.
    """
    try:
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        raise Failed(f"{library.name} could not be installed in {MINUTES} minutes") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-TAIL:]
        raise Failed(f"{library.name} could not be installed:\n{said}")
    return done.stdout
