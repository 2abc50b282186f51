"""Backends by a text such as `"sqlite:runs.db"`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.diagnostics import nearest
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9-]+):")


def scheme_of(spec: str) -> str | None:
    r"""The part before the colon of a text that names a backend; `None` for a plain path, such as `C:\runs.db`."""
    found = _SCHEME.match(spec)
    return None if found is None else found[1]


def backend_from(spec: str, *, runtime: Runtime = SYSTEM) -> CheckpointBackend:
    r"""The backend of a text: `"sqlite:runs.db"`, `"files:runs"` or `"memory:"`.

    Everything behind the first colon is the path, as it stands: `sqlite:/var/lib/app/runs.db`, `sqlite:C:\runs.db`.

    Args:
        spec: The text.
        runtime: The clock that the backend gets.

    Raises:
        ConfigError: No backend has that name, or its path is not valid; codes `"checkpoints"`, `"sqlite-path"` and
            `"files-path"`.
    """
    scheme, colon, rest = spec.partition(":")
    if scheme == "sqlite" and rest:
        # Loaded here: a program that stores nothing does not load SQLite.
        from noetic_py.checkpoints.sqlite import SqliteBackend

        return SqliteBackend(rest, runtime=runtime)
    if scheme == "files" and rest:
        from noetic_py.checkpoints.files import FileBackend

        return FileBackend(rest, runtime=runtime)
    if scheme == "memory" and colon and not rest:
        from noetic_py.checkpoints.memory import InMemoryBackend

        return InMemoryBackend(runtime=runtime)
    raise no_backend(spec)


def no_backend(
    spec: str, known: Iterable[str] = ("files", "memory", "sqlite"), package: str | None = None
) -> ConfigError:
    """The error for a text that names no backend.

    Of a text with a colon it tells the part before it only, for behind it there may be a password.

    Args:
        spec: The text.
        known: What it could begin with.
        package: What is to be installed for it.
    """
    scheme, colon, rest = spec.partition(":")
    served = f"a backend itself, or one of {' '.join(f'{name}:...' for name in sorted(known))}"
    if spec in known:
        named, hint = repr(spec), f'"{spec}:"' if spec == "memory" else f'"{spec}:..."'
    elif (not colon or len(scheme) == 1) and "@" not in spec:
        named, hint = repr(spec), f'"sqlite:{spec or "runs.db"}" for a file; {served}'
    else:
        named = f'"{scheme}:..."' if colon and scheme.isascii() and scheme.isalnum() else "..."
        close = nearest(scheme, known)
        # The name itself is known where only what follows it is missing.
        hint = served if close in (None, scheme) else f'did you mean "{close}:..."? {served}'
    if package is not None:
        hint = f"pip install {package}"
    elif colon and not rest and scheme in known:
        hint = f'"{scheme}:" and a path, such as "{scheme}:runs.db"'
    return ConfigError(f"checkpoints={named} is not a backend; expected scheme:place", code="checkpoints", hint=hint)
