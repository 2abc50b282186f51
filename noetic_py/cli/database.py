"""Finds the database of a command, and the run it names."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from noetic_py.access import ALLOW_ALL
from noetic_py.checkpoints.spec import scheme_of
from noetic_py.core.runtime import SYSTEM
from noetic_py.errors import ConfigError, RunNotFound
from noetic_py.runner.runs import RunInfo, Runs

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend


DEFAULT = Path(".noetic", "runs.db")
"""The database in the current folder."""
LAST = "last"
"""Names the newest run."""
Place: TypeAlias = Path | str
"""Where runs are kept: a file, or another text that `checkpoints=` takes, such as `"postgresql://host/database"`."""
_NONE = "none"
# An address without a password in it, and without parameters, one of which may be one.
_PLAIN = re.compile(r"files:.*|memory:|[\w+.-]+://([^:@/?#]*@)?[^@?#]*")
DATABASE_VARIABLE = "NOETIC_DB"
"""Names the database where the command line names none."""
_SHOWN = 5


def chosen(option: str | None) -> Place | None:
    """The database's file, or its address.

    Args:
        option: What `--db` says: a path, or what `checkpoints=` takes. `NOETIC_DB` decides when it is left out, and the
            folder when that says nothing.

    Returns:
        The file or address, or `None` for no database.
    """
    said = option if option is not None else os.environ.get(DATABASE_VARIABLE) or str(DEFAULT)
    if said == _NONE:
        return None
    scheme = scheme_of(said)
    if scheme == "sqlite" and said != "sqlite:":
        return Path(said.removeprefix("sqlite:"))
    return Path(said) if scheme is None else said


def flag(place: Place | None) -> str:
    """The option that makes a printed command use this database; an address may contain secrets."""
    here = chosen(None)
    if place is None or place == here:
        return ""
    if isinstance(place, str):
        return f" --db {shlex.quote(place) if _PLAIN.fullmatch(place) else '...'}"
    return _flag_of_file(place, here)


def _flag_of_file(path: Path, here: Place | None) -> str:
    if isinstance(here, Path) and here.absolute() == path.absolute():
        return ""
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" --db {shlex.quote(str(near))}"


def folder_of(place: Place | None) -> Path | None:
    """The folder in which a database keeps nothing but what is its own; `None` where it has none."""
    if isinstance(place, str):
        return Path(place.removeprefix("files:")) if place.startswith("files:") else None
    return DEFAULT.parent if place is not None and place.parent == DEFAULT.parent else None


def is_file(name: str) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    return os.path.isfile(name)  # noqa: PTH113 # a Path raises for a name that is too long


def resume_line(info: RunInfo) -> str:
    """The command that resumes a run, without `--db`: it names the flow where the run does not record its file."""
    name = (info.source or "").rpartition(":")[0]
    return f"noetic resume {shlex.quote(info.run_id)}" + ("" if is_file(name) else " --flow FILE:STEP")


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[CheckpointBackend]:
    """Open a database, or make it.

    Raises:
        ConfigError: No installed plugin serves the address; code `"checkpoints"`.
        StoreUnavailable: It cannot be opened.
    """
    async with _backend_of(place) as backend:
        yield backend


def _backend_of(place: Place) -> CheckpointBackend:
    if isinstance(place, str):
        from noetic_py.plugins import load_plugins

        return load_plugins().backends(place)
    from noetic_py.checkpoints.sqlite import SqliteBackend

    path = place
    if path == DEFAULT and not path.parent.exists():
        # Runs hold what their flows were given: nothing to be committed by accident. What cannot be written here is
        # told when the database itself cannot.
        with suppress(OSError):
            path.parent.mkdir(mode=0o700)
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    return SqliteBackend(path)


def existing(place: Place) -> Place:
    """A database that is there, where that can be seen before it is opened.

    Raises:
        ConfigError: It is not; code `"no-database"`.
    """
    kept = Path(place.removeprefix("files:")) if isinstance(place, str) and place.startswith("files:") else place
    if isinstance(kept, Path) and not kept.exists():
        raise ConfigError(
            f"there is no database {kept}",
            code="no-database",
            hint="noetic run FILE makes it; --db PATH names another one",
        )
    return place


@asynccontextmanager
async def read_runs(option: str | None) -> AsyncGenerator[tuple[Runs, CheckpointBackend]]:
    """Open the database whose runs are asked for; it has to be there.

    Raises:
        ConfigError: It is not, or there is to be none; code `"no-database"`.
    """
    place = chosen(option)
    if place is None:
        raise ConfigError(
            f"no database: {'--db' if option is not None else DATABASE_VARIABLE} says none",
            code="no-database",
            hint="--db PATH names one",
        )
    from noetic_py.plugins import load_plugins

    async with opened(existing(place)) as stored:
        backend = load_plugins().transforms.around(stored)
        yield Runs(backend, SYSTEM, ALLOW_ALL), backend


async def find(runs: Runs, name: str) -> RunInfo:
    """The run that a command line means.

    Args:
        runs: Where it is looked for.
        name: Its id, `last` for the newest run, or the beginning of one id only.

    Raises:
        RunNotFound: There is none.
        ConfigError: More than one id begins so; code `"ambiguous-run"`.
    """
    found: list[RunInfo] = []
    for info in await runs.list(limit=None):
        if info.run_id == name or name == LAST:
            return info
        if name and info.run_id.startswith(name):
            found.append(info)
    if not found:
        what = "there is no run yet" if name == LAST else f"there is no run {name!r}"
        raise RunNotFound(what, hint="noetic runs lists those there are")
    if len(found) > 1:
        ids = ", ".join(info.run_id for info in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"{len(found)} runs begin with {name!r}: {ids}{more}", code="ambiguous-run", hint="give more of the id"
        )
    return found[0]


def standing(info: RunInfo) -> str:
    """The status of a run for people: also whether an unfinished run is in progress, or cannot be read."""
    if info.problem is not None:
        return "unreadable"
    return "running, not alive" if info.status == "running" and not info.alive else info.status
