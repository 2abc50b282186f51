"""What all tests of processes that die share."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest
from _pytest.terminal import TerminalReporter

from tests.crash.children import Children, fork_server
from tests.servers.figures import Figure, figure, say_figures

__all__ = ["Figure", "children", "figure"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Forks, signals and locks are the kernel's: these tests are of Linux."""
    if sys.platform != "linux":
        for item in items:
            if item.path.parent.name == "crash":
                item.add_marker(pytest.mark.skip(reason="the tests of killed processes need Linux"))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what the full sets have counted."""
    say_figures(terminalreporter, "tests/crash/")


@pytest.fixture(scope="session")
def children() -> Generator[Children]:
    """A fork server for the tests of all files: what it imports and runs first takes a second or two."""
    with fork_server() as server:
        yield server
