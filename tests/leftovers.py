"""A fixture for the tests of plugins, whose SDKs open connections."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test forgets to close warns when it is collected; the warning shall hit that test and no later one."""
    # Only what the test makes is looked through: the SDK's modules alone would take a tenth of a second each time.
    gc.freeze()
    yield
    if "anyio_backend" in request.fixturenames:
        gc.collect()
