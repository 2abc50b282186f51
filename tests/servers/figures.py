"""What the full sets count, said at the end of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from _pytest.terminal import TerminalReporter

__all__ = ["Figure", "figure", "say_figures"]

Figure: TypeAlias = Callable[[str, object], None]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Notes a figure of a test by its name, to be shown at the end of a run of the full sets."""

    def note(name: str, value: object) -> None:
        request.node.user_properties.append((name, str(value)))

    return note


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
