from __future__ import annotations

from _pytest.terminal import TerminalReporter

from tests.servers.figures import say_figures


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what the full sets have counted."""
    say_figures(terminalreporter, "tests/properties/")
