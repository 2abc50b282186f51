"""Where the files of killed processes lie."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["quick_folder"]

MEMORY = Path("/dev/shm")


@contextmanager
def quick_folder() -> Generator[Path]:
    """A folder in memory where there is one: to a process that is killed it is a disk like any other."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="noetic-crash-") as folder:
        yield Path(folder)
