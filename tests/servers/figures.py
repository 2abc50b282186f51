"""What the full sets count, said at the end of a run."""

from __future__ import annotations

import os
from typing import Any

from _pytest.terminal import TerminalReporter

__all__ = ["say_figures"]


def say_figures(reporter: TerminalReporter, where: str) -> None:
    """Say what the tests have noted as their properties.

    Args:
        reporter: Who says it.
        where: Only of tests with this in their name.
    """
    if "NOETIC_EXAMPLES" not in os.environ:
        return
    reports: list[Any] = reporter.getreports("passed")
    for report in reports:
        figures = [f"{name} {value}" for name, value in report.user_properties]
        if figures and report.when == "call" and where in report.nodeid:
            reporter.write_line(f"{report.nodeid.rpartition('/')[2]}: {', '.join(figures)}")
