"""The command line, `noetic`: runs a file's flow with live progress, and draws it. It needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["main"]

_NEEDED = ("rich", "typer")


def main() -> int:
    """Run the command that the process was started with.

    Returns:
        The exit code: 0 completed, 1 failed, 2 wrong usage or the extra is missing, 3 aborted or interrupted, 4 out of
        budget, 5 suspended, 130 and 143 stopped by a signal.
    """
    try:
        for name in _NEEDED:
            import_module(name)
    except ImportError as error:
        from noetic_py.errors import MissingExtra

        missing = MissingExtra(
            f"the command line needs {' and '.join(_NEEDED)}, and {error.name or 'one of them'}",
            install='pip install "noetic-py[cli]"',
        )
        print(f"error: {missing}", file=sys.stderr)
        return 2
    from noetic_py.cli.app import run_command_line

    return run_command_line()
