"""`noetic` as a program that starts at once: a command that runs a flow has little left to import."""

from __future__ import annotations

import sys
from importlib import import_module

import noetic_py
from noetic_py import plugins
from noetic_py.cli import __main__ as command_line
from noetic_py.cli import app

__all__ = ["main"]

for name in ("anyio._backends._asyncio", "noetic_py.testing"):
    import_module(name)
for name in noetic_py.__all__:
    getattr(noetic_py, name)
plugins.load_plugins()


def main() -> int:
    """Run the command of the arguments."""
    sys.argv[0] = str(command_line.__file__)
    return app.run_command_line()
