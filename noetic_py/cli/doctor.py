"""`noetic doctor`: what of an installation works, and the remedy for what does not."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Literal, TypeAlias

from attrs import frozen

from noetic_py.cli.database import Place, chosen, flag, read_runs
from noetic_py.cli.formatting import plural, printable
from noetic_py.cli.report import FAILED, write_out
from noetic_py.errors import MissingExtra, NoeticError
from noetic_py.plugins import Plugins, load_plugins

_Grade: TypeAlias = Literal["ok", "note", "failed"]
_TESTED = "Programming Language :: Python :: "
_EXTRAS = (
    ("embeddings", "wordllama", "SemanticRecall by word vectors"),
    ("evals", "pydantic-evals", "evaluation of flows"),
    ("prices", "genai-prices", "prices of models"),
)


@frozen
class _Finding:
    """One check and its result.

    Attributes:
        grade: `"failed"` is an error of the installation, `"note"` something that only some programs need.
        what: What was looked at.
        text: What was found.
        hint: The remedy.
    """

    grade: _Grade
    what: str
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        line = f"{self.grade:<7} {self.what:<10} {printable(self.text)}"
        return line if self.hint is None else f"{line}\n{'':<19}try: {printable(self.hint)}"


async def doctor(db: str | None) -> int:
    """Print what works and what does not.

    Args:
        db: The database that the command line names.

    Returns:
        The exit code: 1 when something failed.
    """
    found = [_python(), _package(), _sqlite()]
    try:
        plugins = load_plugins()
    except NoeticError as error:
        found.append(_Finding("failed", "plugins", error.message, error.hint))
    else:
        found += [*_plugins(plugins), *_models(plugins)]
    found += [*_extras(), await _database(db)]
    write_out("\n".join(map(str, found)))
    return FAILED if any(each.grade == "failed" for each in found) else 0


def _python() -> _Finding:
    text = f"{platform.python_version()} at {sys.executable}"
    tested = [each.removeprefix(_TESTED) for each in metadata("noetic-py").get_all("Classifier", ()) if _TESTED in each]
    if f"{sys.version_info.major}.{sys.version_info.minor}" in tested:
        return _Finding("ok", "Python", text)
    return _Finding("note", "Python", f"{text}; tested are {', '.join(tested)}")


def _package() -> _Finding:
    return _Finding("ok", "noetic-py", f"{version('noetic-py')} in {Path(__file__).parent.parent}")


def _sqlite() -> _Finding:
    return _Finding("ok", "SQLite", f"{sqlite3.sqlite_version} of the standard library")


def _plugins(plugins: Plugins) -> Iterator[_Finding]:
    for each in plugins.loaded:
        yield _Finding("ok", "plugin", f"{each.name} ({each.distribution} {each.version})")
    if not plugins.loaded:
        yield _Finding("note", "plugins", "none is installed", "pip install noetic-openai")


def _models(plugins: Plugins) -> Iterator[_Finding]:
    """Whether each provider can be asked: making a model needs its key, and sends nothing."""
    for prefix in plugins.models.prefixes:
        try:
            plugins.models(f"{prefix}:any")
        except NoeticError as error:
            if isinstance(error, MissingExtra) or getattr(error, "code", None) == "model-key":
                message = error.message.replace(f"{prefix}:any", "").strip()
                yield _Finding("note", "model", f"{prefix}:... {message}", error.hint)
                continue
            # It asked for a model of another name, so it has what it needs.
        yield _Finding("ok", "model", f"{prefix}:...")


def _extras() -> Iterator[_Finding]:
    for extra, package, use in _EXTRAS:
        try:
            yield _Finding("ok", "extra", f"{extra}: {package} {version(package)}")
        except PackageNotFoundError:
            yield _Finding("note", "extra", f"{extra} is not installed: {use}", f'pip install "noetic-py[{extra}]"')


async def _database(db: str | None) -> _Finding:
    place: Place | None = chosen(db)
    shown = flag(place).removeprefix(" --db ") or str(place)
    if place is None:
        return _Finding("note", "runs", "are not stored: NOETIC_DB or --db says none")
    if isinstance(place, Path) and not place.exists():
        return _Finding("ok", "runs", f"no database yet; noetic run FILE makes {shown}")
    try:
        async with read_runs(db) as (runs, _):
            known = await runs.list(limit=None)
    except (NoeticError, OSError) as error:
        hint = error.hint if isinstance(error, NoeticError) else None
        return _Finding("failed", "runs", f"{shown}: {getattr(error, 'message', error)}", hint)
    bad = [each.run_id for each in known if each.problem is not None]
    if bad:
        return _Finding("failed", "runs", f"{shown}: {plural(len(bad), 'run')} cannot be read", f"noetic show {bad[0]}")
    return _Finding("ok", "runs", f"{shown}: {plural(len(known), 'run')}")
