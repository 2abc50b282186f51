"""Backends by a text such as `"sqlite:runs.db"`."""

from __future__ import annotations

from noetic_py.checkpoints.backend import CheckpointBackend
from noetic_py.checkpoints.in_memory import InMemoryBackend
from noetic_py.errors import ConfigError
from noetic_py.runtime import SYSTEM, Runtime

__all__ = ["backend_from", "no_backend"]


def backend_from(spec: str, *, runtime: Runtime = SYSTEM) -> CheckpointBackend:
    r"""The backend of a text: `"sqlite:runs.db"`, `"files:runs"` or `"memory:"`.

    Everything behind the first colon is the path, as it stands: `sqlite:/var/lib/app/runs.db`, `sqlite:C:\runs.db`.

    Args:
        spec: The text.
        runtime: The clock that the backend gets.

    Raises:
        ConfigError: No backend has that name, or its path is none; codes `"checkpoints"`, `"sqlite-path"` and
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
        return InMemoryBackend(runtime=runtime)
    raise no_backend(spec, hint='"sqlite:runs.db", or a backend itself')


def no_backend(spec: str, *, hint: str) -> ConfigError:
    """The error for a text that names no backend; it tells the part before the colon only, for there may be a password.

    Args:
        spec: The text.
        hint: What to do.
    """
    scheme, colon, _ = spec.partition(":")
    told = f'"{scheme}:..."' if colon and scheme.isascii() and scheme.isalnum() else "..."
    return ConfigError(f"checkpoints={told} names no backend", code="checkpoints", hint=hint)
