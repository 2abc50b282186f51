"""Python as a program that starts at once: what a program with the library imports is there."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

__all__ = ["main"]

for name in ("anyio._backends._trio", "tests.warm_noetic"):
    import_module(name)


def main() -> None:
    """Run the program of the first argument, as `python` does: it stays the module `__main__` to the end."""
    del sys.argv[0]
    path = Path(sys.argv[0])
    sys.path[0] = str(path.resolve().parent)
    program = sys.modules["__main__"] = ModuleType("__main__")
    program.__file__ = str(path)
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(program))
