from __future__ import annotations

from collections.abc import Iterator

import pytest
from noetic_local import LocalServer


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    """One server for all tests of the process; without the weights, the error says how to install them."""
    server = LocalServer()
    server.start()
    yield server
    server.stop()
