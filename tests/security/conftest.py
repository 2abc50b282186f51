"""What all tests of hostile input share."""

from __future__ import annotations

from _pytest.terminal import TerminalReporter

from tests.servers.figures import figure, say_figures

__all__ = ["figure"]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what the full sets have counted."""
    say_figures(terminalreporter, "tests/security/")
