"""What all tests of hostile input share."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

pytest.register_assert_rewrite("tests.servers.hostile_ids", "tests.servers.journeys")

from tests.servers.figures import figure, say_figures  # noqa: E402  # what it imports is to be rewritten

__all__ = ["figure"]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what the full sets have counted."""
    say_figures(terminalreporter, "tests/security/")
